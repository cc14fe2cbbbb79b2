r"""surrogate_loss: L = ⟨stop_gradient(p − y), x⟩, p = map(x): the gradient p − y of a Fenchel–Young loss, for any map.

Stopping the gradient at x instead, ⟨p − y, stop_gradient(x)⟩ (as it is often written), has the gradient Jᵀx, not p − y.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.arguments import Array
from softmaxima.base.public import public
from softmaxima.base.rows import without_mask
from softmaxima.engine.contract import AnyMap, Map
from softmaxima.engine.envelope import with_slope
from softmaxima.engine.evaluation import plain_numbers
from softmaxima.losses.batch import Batch
from softmaxima.losses.contract import Loss, register
from softmaxima.losses.evaluation import Evaluation, reduced
from softmaxima.losses.fenchel_young import MapLossModule, class_params, expected_score, p_minus_y, probability_map, with_params
from softmaxima.losses.row_losses import losses_given


def reference(z: Tensor, y: Tensor, map: AnyMap, **params: Any) -> Tensor:
    found, values = with_params("surrogate_loss", map, params)
    return ((found.reference(z.detach(), **values) - y) * z).sum(-1)


@public
def surrogate_loss(
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
    """A loss whose gradient is `p − y` for any map, with or without a regulariser. **Its value means nothing.**

    It can have either sign and need not fall as the fit improves: watch an accuracy or a cross-entropy instead. For a map with a
    regulariser, `fenchel_young_loss` has the same gradient and a meaning. The second derivative is the map's Jacobian; the
    map's parameters get no gradient.

    Args:
        map: a registered name, the function of a map or a `Map`; **params are its parameters (`k=3`, or `map_k=3`).
        weight: as for `fenchel_young_loss`.
        The others, errors: as for `cross_entropy`. Cost: the map.

    >>> import torch, softmaxima as sm
    >>> x = torch.tensor([[2.0, 0.0, 1.0]], requires_grad=True)
    >>> sm.surrogate_loss(x, torch.tensor([2]), map="topk_softmax", k=1).backward()
    >>> x.grad
    tensor([[ 1.,  0., -1.]])
    """
    name = "surrogate_loss"
    found = probability_map(name, map)
    shared = (input, target, weight, ignore_index, reduction, label_smoothing, empty, temperature, dim, where)
    options = {"map": found, **params}
    return reduced(name, found, plain_numbers(found, params), evaluation, options, *shared, fenchel=True, given=name)


def evaluation(batch: Batch, map: AnyMap, **params: Any) -> Evaluation:
    found = probability_map(batch.name, map)
    found, values, absolute = batch.shifted(found, class_params(batch, found, params))
    fixed: dict[str, Any] = {k: v.detach() if isinstance(v, Tensor) else v for k, v in values.items()}
    whole = found.properties.mass == "one" and batch.labels is not None  # both p and y add up to 1
    name = "surrogate_loss" if found.properties.mass == "one" else "surrogate_loss_of_any_mass"
    losses = losses_given(batch, name, found, fixed.values(), fenchel=True) if batch.divided is None or whole else None
    of_batch = lambda batch: composite(batch, found, fixed, absolute)
    return Evaluation(losses, of_batch, tuple(fixed.values()), wide=True, absolute=absolute)


def composite(batch: Batch, map: Map, fixed: dict[str, Any], absolute: bool) -> Tensor:
    z = batch.scores
    p = batch.probabilities(map, fixed, absolute)
    with torch.no_grad():
        value = (p * without_mask(z)).sum(-1, keepdim=True)
    y = batch.target_distribution(p.dtype)
    rows = with_slope(value.detach(), z, p_minus_y(map, z, p, y, fixed)).squeeze(-1) - expected_score(batch, z, y)
    if batch.divided is not None and not absolute:
        mass = 1.0 if map.properties.mass == "one" else p.detach().sum(-1)  # without the rounding of p
        rows = rows + (mass - y.sum(-1)) * batch.divided.level.squeeze(-1)
    return batch.reduce(batch.weigh(rows))


@public
class SurrogateLoss(MapLossModule):
    """`surrogate_loss` as a module.

    >>> import torch, softmaxima as sm
    >>> sm.SurrogateLoss("proportional", f=torch.sigmoid)(torch.zeros(1, 2), torch.tensor([0]))
    tensor(0.)
    """

    function = surrogate_loss

    def __init__(self, map: AnyMap = "softmax", weight: Tensor | None = None, **options: Any) -> None:
        super().__init__(map, weight, **options)


register(
    Loss(
        "surrogate_loss",
        surrogate_loss,
        SurrogateLoss,
        evaluation,
        reference,
        examples=({"map": "softmax"}, {"map": "sparsemax"}, {"map": "taylor_softmax"}),
        nonnegative=False,
    )
)
