r"""soft_accuracy_loss: L = −p_t, p = map(x): a smooth accuracy with its sign changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.arguments import Array
from softmaxima.base.public import public
from softmaxima.engine.contract import AnyMap
from softmaxima.losses.batch import Batch
from softmaxima.losses.contract import Loss, register
from softmaxima.losses.evaluation import Evaluation, evaluated
from softmaxima.losses.fenchel_young import MapLossModule, any_map, class_params, probability_map, with_params
from softmaxima.losses.parts import RowForm
from softmaxima.losses.row_losses import losses_of_p


def reference(z: Tensor, y: Tensor, map: AnyMap, **params: Any) -> Tensor:
    found, values = with_params("soft_accuracy_loss", map, params)
    return -(y * found.reference(z, **values)).sum(-1)


@public
def soft_accuracy_loss(
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
    """The soft accuracy `−p_t` of a map, in [−1, 0]: minus the expected accuracy of a label drawn from p.

    Its gradient vanishes with p_t, so a row that is badly wrong does not learn: use it to fine-tune, not from scratch.

    Args:
        map: a registered name, the function of a map or a `Map`; **params are its parameters (`k=3`, or `map_k=3`).
        The others, errors: as for `cross_entropy`. Cost: the map.

    >>> import torch, softmaxima as sm
    >>> sm.soft_accuracy_loss(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor(-0.8808)
    """
    shared = (input, target, weight, ignore_index, reduction, label_smoothing, empty, temperature, dim, where)
    return evaluated("soft_accuracy_loss", evaluation, {"map": map, **params}, *shared)


def evaluation(batch: Batch, map: AnyMap, **params: Any) -> Evaluation:
    found = probability_map(batch.name, map)
    found, values, absolute = batch.shifted(found, class_params(batch, found, params))

    def composite(batch: Batch) -> Tensor:
        return batch.reduce(-batch.weighted_expectation(batch.probabilities(found, values, absolute)))

    losses = None if absolute else losses_of_p(batch, found, values.values(), _of_p)
    return Evaluation(losses, composite, tuple(values.values()), wide=True)


def _of_p(p: Tensor, n: int | Tensor) -> tuple[Tensor, Tensor]:
    return -p, -torch.ones_like(p)


@public
class SoftAccuracyLoss(MapLossModule):
    """`soft_accuracy_loss` as a module.

    >>> import torch, softmaxima as sm
    >>> sm.SoftAccuracyLoss("sparsemax")(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor(-1.)
    """

    function = soft_accuracy_loss

    def __init__(self, map: AnyMap = "softmax", weight: Tensor | None = None, **options: Any) -> None:
        super().__init__(map, weight, **options)


register(
    Loss(
        "soft_accuracy_loss",
        soft_accuracy_loss,
        SoftAccuracyLoss,
        evaluation,
        reference,
        examples=({"map": "softmax"}, {"map": "entmax15"}),
        row_form=RowForm(any_map(), of_p=_of_p),
        nonnegative=False,
    )
)
