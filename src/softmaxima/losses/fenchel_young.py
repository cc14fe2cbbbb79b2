r"""Fenchel–Young losses: L(x; y) = Ω*(x) + Ω(y) − ⟨x, y⟩ ≥ 0, zero iff map(x) = y, ∂L/∂x = map(x) − y.

Ω*(x) = ⟨p, x⟩ − Ω(p) at p = map(x), and ∂L/∂θ = ∂Ω_θ(y)/∂θ − ∂Ω_θ(p)/∂θ by the envelope theorem. The sparsemax loss is the
case Ω = ½(‖p‖² − 1), in closed form ½ − x_t + ½ Σ_{p_i>0} (x_i² − λ²).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.arguments import Array, as_tensor, moved_last
from softmaxima.base.public import public
from softmaxima.base.rows import MOST_P, row_maximum, without_mask
from softmaxima.base.tracing import is_concrete
from softmaxima.engine.contract import AnyMap, Map, find_map
from softmaxima.engine.envelope import envelope, with_slope
from softmaxima.engine.evaluation import check_params, plain_numbers
from softmaxima.losses.arguments import check_sums
from softmaxima.losses.batch import Batch
from softmaxima.losses.contract import OF_SCORES, SHARED, Loss, LossModule, register
from softmaxima.losses.evaluation import Evaluation, reduced
from softmaxima.losses.parts import FindMap, RowForm, one_map
from softmaxima.losses.row_losses import losses_of


def probability_map(name: str, map: AnyMap) -> Map:
    """The map of that name, which must return probabilities."""
    found = find_map(map, name)
    if found.properties.logarithmic:
        raise ValueError(f"{name}: {found.name} returns logarithms, not probabilities; take another map")
    return found


def class_params(batch: Batch, map: Map, params: dict[str, Any]) -> dict[str, Any]:
    """The map's parameters, validated against the scores as they came, with the classes last.

    Each may be called `map_…`, as one must be whose own name is an option of the loss.
    """
    scores = as_tensor(batch.name, "scores", batch.given)
    values = check_params(map, map.complete(map.named(params, batch.name), batch.name), scores, batch.class_axis, batch.name)
    moved = (moved_last(value, batch.class_axis) for value in values)
    return {parameter.name: value for parameter, value in zip(map.params, moved, strict=True)}


def any_map(*own: str) -> FindMap:
    """Of a loss that takes `map=`, the map, its parameters and the `own` options."""

    def find(name: str, options: dict[str, Any]) -> tuple[AnyMap, dict[str, Any], dict[str, Any]]:
        found = probability_map(name, options["map"])
        left = {key: options[key] for key in own}
        params = {key: value for key, value in options.items() if key != "map" and key not in own}
        return found, found.named(params, name), left

    return find


def with_params(name: str, map: AnyMap, params: dict[str, Any]) -> tuple[Map, dict[str, Any]]:
    """The map, and its parameters with the defaults filled in."""
    found = probability_map(name, map)
    return found, found.complete(found.named(params, name), name)


def regularised_map(name: str, map: AnyMap) -> Map:
    """The map of that name, which must have a regulariser."""
    found = probability_map(name, map)
    if found.regulariser is None:
        raise ValueError(
            f"{name}: {found.name} has no regulariser, so no Fenchel–Young loss; use surrogate_loss or eps_cross_entropy"
        )
    return found


def reference(z: Tensor, y: Tensor, map: AnyMap, **params: Any) -> Tensor:
    """Ω*(z) + Ω(y) − ⟨y, z⟩, where Ω*(z) is ⟨p, z⟩ − Ω(p) unless the map has it; by the envelope theorem its slope is p."""
    found, values = with_params("fenchel_young_loss", map, params)
    omega: Any = found.regulariser
    p = found.reference(z.detach(), **values)
    if found.conjugate is not None:
        return found.conjugate(z, p, p, **values) + regularised(found, y, z, values) - torch.where(y == 0, 0.0, y * z).sum(-1)
    return ((p - y) * z).sum(-1) - omega(p, **values) + omega(y, **values)


def regularised(map: Map, y: Tensor, z: Tensor, params: dict[str, Any]) -> Tensor:
    """Ω(y) [...], among the scores z that are not masked."""
    allowed = {"allowed": z > -math.inf} if map.properties.neighbours else {}
    return map.regulariser(y, **params, **allowed)  # type: ignore[misc]


class MapLossModule(LossModule):
    """A loss that takes `map=`, and its parameters, as a module."""

    find: Callable[[str, AnyMap], Map] = staticmethod(probability_map)

    def __init__(self, map: AnyMap, weight: Tensor | None = None, own: dict[str, Any] | None = None, **options: Any) -> None:
        name = type(self).__name__
        found = type(self).find(name, map)
        shared = {key: options.pop(key) for key in (*SHARED[1:], *OF_SCORES) if key in options}
        named = found.named(options, name)
        found.complete(named, name)  # a parameter that the map does not have raises here
        held = {p.name: p.held(name, named[p.name]) for p in found.params if p.name in named}
        given = {key: held[next(iter(found.named({key: None}, name)))] for key in options}
        super().__init__(weight, map=map, **shared, **(own or {}), **given)


def fenchel_young(name: str, map: Map, params: dict[str, Any], *shared: Any) -> Any:
    """The reduced loss; `shared` are the arguments that all losses have, in the order of `prepare`."""
    return reduced(name, map, plain_numbers(map, params), evaluation, {"map": map, **params}, *shared, fenchel=True)


def evaluation(batch: Batch, map: AnyMap, **params: Any) -> Evaluation:
    found = regularised_map(batch.name, map)
    if batch.soft is not None and is_concrete(batch.soft):
        check_sums(batch.name, batch.soft.sum(-1))
    found, values, absolute = batch.shifted(found, class_params(batch, found, params))
    losses = losses_of(batch, found, values.values(), fenchel=True)
    others = tuple(values.values())
    return Evaluation(losses, lambda batch: composite(batch, found, values), others, of_map=True, absolute=absolute)


def composite(batch: Batch, map: Map, values: dict[str, Any]) -> Tensor:
    """The same by differentiable operations, in float64: near the loss's zero the terms cancel."""
    params: dict[str, Any] = {name: v.to(torch.float64) if isinstance(v, Tensor) else v for name, v in values.items()}
    z = batch.scores.to(torch.float64)
    top = row_maximum(z)
    if map.shifted is not None:
        top = top.masked_fill(~top.isfinite(), 0.0)
        z, (map, params), top = z - top, map.shifted(top, **params), torch.zeros_like(top)
    elif map.properties.shift_invariant:
        z, top = z - top, torch.zeros_like(top)
    p = map(z, **params)
    y = batch.target_distribution(z.dtype)
    value = conjugate(map, z, p, params, p_minus_y(map, z, p, y, params))
    # All less the row's maximum, which what y lacks of 1, the share of a sink, does not take off.
    missing = (1 - y.sum(-1)).clamp_min(0.0) * top.squeeze(-1)
    terms = (value - top.squeeze(-1), regularised(map, y, z, params) + missing, -expected_score(batch, z - top, y))
    rows = terms[0] + terms[1] + terms[2]
    return batch.reduce(batch.weigh(rows + _rounded_below(rows, terms, y).detach()))


def conjugate(map: Map, z: Tensor, p: Tensor, params: dict[str, Any], slope: Tensor | None = None) -> Tensor:
    """Ω*(z) = ⟨p, z⟩ − Ω(p) [rows…], whose gradient is p = map(z), or the `slope` that is given."""
    slope = p if slope is None else slope
    if map.conjugate is not None:
        return map.conjugate(z, p, slope, **params)
    with torch.no_grad():
        value = (p * without_mask(z)).sum(-1, keepdim=True) - map.regulariser(p, **params).unsqueeze(-1)  # type: ignore[misc]
    return envelope(map, value, z, p, params, slope).squeeze(-1)


def p_minus_y(map: Map, z: Tensor, p: Tensor, y: Tensor, params: dict[str, Any]) -> Tensor:
    """p − y [rows…, classes], 0 at masks; of a p that is most of its row it is (1 − y) − (1 − p), 1 − p what all others have."""
    slope, mass = p - y, map.properties.mass
    if mass in ("one", "zero or one", "at most one"):
        most = p > MOST_P
        lack: Any = p.masked_fill(most, 0.0).sum(-1, keepdim=True, dtype=torch.float64)
        if mass == "at most one":  # beside that of a sink
            form = map.jacobian_of(map.sensitivity(p, z if map.uses_scores else None, **params))
            own, missing = getattr(form, "lack", None), getattr(form, "missing", 0.0)
            lack = lack + missing if own is None else own
        slope = torch.where(most, ((1 - y) - lack).to(p.dtype), slope)
    return slope.masked_fill(z == -math.inf, 0.0)


def expected_score(batch: Batch, z: Tensor, y: Tensor) -> Tensor:
    """⟨y, z⟩ [rows…], with a slope by y alone: that by z stands beside p, in `p_minus_y`."""
    value = batch.expectation(z.detach())
    if batch.soft is None:
        return value
    return with_slope(value.detach().unsqueeze(-1), y, without_mask(z)).squeeze(-1)


def _rounded_below(rows: Tensor, terms: tuple[Tensor, ...], y: Tensor) -> Tensor:
    """What a loss lacks of 0 where rounding, of its terms or of a target that sums to 1 no better, may have taken it below."""
    rounding = (1 - y.sum(-1)).abs() + 2.0**-40
    largest = rounding * (1 + terms[0].abs() + terms[1].abs() + terms[2].abs())
    return torch.where((rows < 0) & (rows >= -largest), -rows, 0.0)


def register_named(function: Callable[..., Any], module: type[LossModule], map: Map, *examples: dict[str, Any]) -> Loss:
    """The loss of one map that has a name of its own, in parts where the map is."""
    form = None if map.blocks is None else RowForm(one_map(map.name), fenchel=True)
    given = {"map": map.name, "examples": examples or ({},), "zero_at_target": True, "row_form": form}
    own = partial(evaluation, map=map), partial(reference, map=map)
    return register(Loss(function.__name__, function, module, *own, **given))


@public
def fenchel_young_loss(
    input: Array,
    target: Any,
    weight: Any = None,
    *,
    map: AnyMap = "softmax",
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    temperature: float | Array = 1.0,
    dim: int | Sequence[int] | None = None,
    where: Array | None = None,
    empty: str = "nan",
    **params: Any,
) -> Array:
    """The Fenchel–Young loss of a map with regulariser Ω, `Ω*(x) + Ω(y) − ⟨x, y⟩`: convex, and zero exactly where map(x) = y.

    For softmax it is KL(y ‖ p): cross-entropy less the target's entropy, the same for labels.

    Args:
        map: a registered name, the function of a map or a `Map`; it must have a regulariser.
        weight: one weight a class, not negative; a row counts Σ_c w_c y_c, y the smoothed target.
        **params: the map's parameters (`alpha=1.3`, or `map_alpha=1.3`); tensors may require grad.
        The others: as for `cross_entropy`. Rows of target probabilities must sum to 1.

    Returns and raises as `cross_entropy`; where a target's class has the score −∞, the loss is +∞ and its gradient p − y at the
    other scores. A target probability of 0 that requires grad gets Ω′(0) − x_c, with 0 for the Ω′(0) = −∞ of softmax and elastic
    softmax. Cost: the map, and one more read.

    >>> import torch, softmaxima as sm
    >>> x = torch.tensor([[2.0, 0.0, -1.0]])
    >>> sm.fenchel_young_loss(x, torch.tensor([0]), map="entmax", alpha=1.3)
    tensor(0.0135)
    """
    name = "fenchel_young_loss"
    found = regularised_map(name, map)
    shared = (input, target, weight, ignore_index, reduction, label_smoothing, empty, temperature, dim, where)
    return fenchel_young(name, found, params, *shared)


@public
class FenchelYoungLoss(MapLossModule):
    """`fenchel_young_loss` as a module.

    >>> import torch, softmaxima as sm
    >>> sm.FenchelYoungLoss("sparsemax")(torch.tensor([[0.0, 0.0]]), torch.tensor([0]))
    tensor(0.2500)
    """

    function = fenchel_young_loss
    find = staticmethod(regularised_map)

    def __init__(self, map: AnyMap = "softmax", weight: Tensor | None = None, **options: Any) -> None:
        super().__init__(map, weight, **options)


register(
    Loss(
        "fenchel_young_loss",
        fenchel_young_loss,
        FenchelYoungLoss,
        evaluation,
        reference,
        examples=({"map": "softmax"}, {"map": "elastic_softmax", "beta": 1.0}, {"map": "eps_softmax", "eps": 0.5}),
        zero_at_target=True,
        row_form=RowForm(any_map(), fenchel=True),
    )
)
