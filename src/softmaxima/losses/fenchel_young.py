r"""Fenchel–Young losses: L(x; y) = Ω*(x) + Ω(y) − ⟨x, y⟩ ≥ 0, zero iff map(x) = y, ∂L/∂x = map(x) − y.

Ω*(x) = ⟨p, x⟩ − Ω(p) at p = map(x), and ∂L/∂θ = ∂Ω_θ(y)/∂θ − ∂Ω_θ(p)/∂θ by the envelope theorem. The sparsemax loss is the
case Ω = ½(‖p‖² − 1), in closed form ½ − x_t + ½ Σ_{p_i>0} (x_i² − λ²).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from softmaxima._envelope import envelope
from softmaxima._map import Array, Map, as_tensor, check_params, find_map, is_concrete, without_mask
from softmaxima._rows import row_maximum
from softmaxima.losses._classification import Batch, Loss, LossModule, prepare, register


def probability_map(name: str, map: str | Map) -> Map:
    """The map of that name, which must return probabilities."""
    found = find_map(map)
    if found.properties.logarithmic:
        raise ValueError(f"{name}: {found.name} returns logarithms, not probabilities; take another map")
    return found


def class_params(batch: Batch, map: Map, params: dict[str, Any]) -> dict[str, Any]:
    """The map's parameters, validated against the scores as they came, with the classes last."""
    scores = as_tensor(batch.name, "scores", batch.given)
    values = check_params(map, map.complete(params), scores, batch.class_axis)
    moved = (v.movedim(batch.class_axis, -1) if isinstance(v, Tensor) else v for v in values)
    return {parameter.name: value for parameter, value in zip(map.params, moved, strict=True)}


def fenchel_young(batch: Batch, map: Map, params: dict[str, Any]) -> Any:
    """The reduced loss."""
    if map.regulariser is None:
        raise ValueError(
            f"{batch.name}: {map.name} has no regulariser, so no Fenchel–Young loss; use surrogate_loss or eps_cross_entropy"
        )
    if batch.soft is not None and is_concrete(batch.soft):
        mass = batch.soft.sum(-1)
        if bool(((mass - 1).abs() > 1e-2).any()):
            raise ValueError(
                f"{batch.name}: each row of target probabilities must sum to 1; divide it by its sum, or use cross_entropy"
            )
    values = class_params(batch, map, params)
    theta = map.kernel.theta(*values.values()) if map.kernel is not None and values else 0.0
    return batch.evaluate(map, theta, lambda batch: composite(batch, map, values), tuple(values.values()), fenchel=True)


def composite(batch: Batch, map: Map, values: dict[str, Any]) -> Tensor:
    """The same by differentiable operations, in a wider dtype: near the loss's zero the terms cancel."""
    params: dict[str, Any] = {name: v.to(batch.wide_dtype) if isinstance(v, Tensor) else v for name, v in values.items()}
    z = batch.scores.to(batch.wide_dtype)
    if map.properties.shift_invariant:
        z = z - row_maximum(z)
    p = map(z, **params)
    y = batch.target_distribution().to(z.dtype)
    with torch.no_grad():
        value = (p * without_mask(z)).sum(-1, keepdim=True) - map.regulariser(p, **params).unsqueeze(-1)  # type: ignore[misc]
    conjugate = envelope(map, value, z, p, params).squeeze(-1)
    rows = conjugate + map.regulariser(y, **params) - batch.expectation(z)  # type: ignore[misc]
    return batch.reduce(batch.weigh(rows))


def fenchel_young_loss(
    x: Array,
    target: Any,
    weight: Any = None,
    *,
    map: str | Map = "softmax",
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    **params: Any,
) -> Array:
    """The Fenchel–Young loss of a map with regulariser Ω, `Ω*(x) + Ω(y) − ⟨x, y⟩`: convex, and zero exactly where map(x) = y.

    For softmax it is KL(y ‖ p): cross-entropy less the target's entropy, the same for labels.

    Args:
        map: a registered name or a `Map`; it must have a regulariser.
        weight: one weight a class; a row counts w_t, or Σ_c w_c y_c for probabilities y.
        **params: the map's parameters (`alpha=1.3`); tensors may require grad.
        The others: as for `cross_entropy`. Rows of target probabilities must sum to 1.

    Returns and raises as `cross_entropy`. Cost: the map, and one more read.

    >>> import torch, softmaxima as sm
    >>> x = torch.tensor([[2.0, 0.0, -1.0]])
    >>> sm.fenchel_young_loss(x, torch.tensor([0]), map="entmax", alpha=1.3)
    tensor(0.0135)
    """
    batch = prepare("fenchel_young_loss", x, target, weight, ignore_index, reduction, label_smoothing)
    return fenchel_young(batch, probability_map(batch.name, map), params)


class FenchelYoungLoss(LossModule):
    """`fenchel_young_loss` as a module.

    >>> import torch, softmaxima as sm
    >>> sm.FenchelYoungLoss("sparsemax")(torch.tensor([[0.0, 0.0]]), torch.tensor([0]))
    tensor(0.2500)
    """

    function = fenchel_young_loss

    def __init__(self, map: str | Map = "softmax", weight: Tensor | None = None, **options: Any) -> None:
        super().__init__(weight, map=map, **options)


register(
    Loss(
        "fenchel_young_loss",
        fenchel_young_loss,
        FenchelYoungLoss,
        examples=({"map": "softmax"}, {"map": "elastic_softmax", "beta": 1.0}, {"map": "eps_softmax", "eps": 0.5}),
        zero_at_target=True,
    )
)
