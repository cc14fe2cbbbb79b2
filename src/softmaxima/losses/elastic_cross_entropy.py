r"""elastic_cross_entropy: L = −log p_t = log(Σ exp(x_j) + exp(β)) − x_t, p the elastic softmax; ∂L/∂x = p − y, ∂L/∂β = p_sink."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from softmaxima.base.arguments import Array, as_tensor, moved_last
from softmaxima.base.public import public
from softmaxima.engine.evaluation import check_params, plain_numbers
from softmaxima.losses.batch import Batch
from softmaxima.losses.contract import Loss, LossModule, register
from softmaxima.losses.evaluation import Evaluation, reduced
from softmaxima.losses.parts import RowForm, one_map
from softmaxima.losses.row_losses import losses_of
from softmaxima.maps.elastic_softmax import ELASTIC_SOFTMAX
from softmaxima.maps.log_softmax import LOG_SOFTMAX


def reference(z: Tensor, y: Tensor, beta: float | Tensor) -> Tensor:
    return -torch.special.xlogy(y, ELASTIC_SOFTMAX.reference(z, beta)).sum(-1)


@public
def elastic_cross_entropy(
    input: Array,
    target: Any,
    weight: Any = None,
    *,
    beta: float | Array = 0.0,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    temperature: float | Array = 1.0,
    dim: int | Sequence[int] | None = None,
    where: Array | None = None,
    empty: str = "nan",
) -> Array:
    """Cross-entropy of the elastic softmax, `log(Σ_j exp(x_j) + exp(β)) − x_t` for a label t, in nats.

    Args:
        beta: score of the sink, "none of the classes", a number or a tensor that broadcasts against x with size 1 along the class
            axis; a tensor may require grad (its gradient is the sink's probability). −∞ gives `cross_entropy`.
        The others: as for `cross_entropy`.

    >>> import torch, softmaxima as sm
    >>> sm.elastic_cross_entropy(torch.zeros(1, 2), torch.tensor([0]), beta=0.0)  # log 3
    tensor(1.0986)
    """
    name, params = "elastic_cross_entropy", {"beta": beta}
    shared = (input, target, weight, ignore_index, reduction, label_smoothing, empty, temperature, dim, where)
    return reduced(name, ELASTIC_SOFTMAX, plain_numbers(ELASTIC_SOFTMAX, params), evaluation, params, *shared)


def evaluation(batch: Batch, beta: float | Array) -> Evaluation:
    scores = as_tensor(batch.name, "scores", batch.given)
    (level,) = check_params(ELASTIC_SOFTMAX, {"beta": beta}, scores, batch.class_axis, batch.name)
    level = batch.shifted(ELASTIC_SOFTMAX, {"beta": moved_last(level, batch.class_axis)})[1]["beta"]
    losses = losses_of(batch, ELASTIC_SOFTMAX, (level,))
    return Evaluation(losses, lambda batch: composite(batch, level), (level,), of_map=True)


def composite(batch: Batch, level: float | Tensor) -> Tensor:
    scores = batch.scores
    column = level.to(scores) if isinstance(level, Tensor) else scores.new_full((), level)
    log_p = LOG_SOFTMAX(torch.cat((scores, column.expand(*scores.shape[:-1], 1)), -1))[..., :-1]
    return batch.reduce(batch.cost(log_p))


@public
class ElasticCrossEntropyLoss(LossModule):
    """`elastic_cross_entropy` as a module; give an `nn.Parameter` as β to learn it.

    >>> import torch, softmaxima as sm
    >>> sm.ElasticCrossEntropyLoss(beta=-1.0)(torch.zeros(1, 2), torch.tensor([0]))
    tensor(0.8620)
    """

    function = elastic_cross_entropy

    def __init__(self, beta: float | Tensor | nn.Module = 0.0, weight: Tensor | None = None, **options: Any) -> None:
        (parameter,) = ELASTIC_SOFTMAX.params
        super().__init__(weight, beta=parameter.held(type(self).__name__, beta), **options)


register(
    Loss(
        "elastic_cross_entropy",
        elastic_cross_entropy,
        ElasticCrossEntropyLoss,
        evaluation,
        reference,
        map="elastic_softmax",
        row_form=RowForm(one_map("elastic_softmax")),
        examples=({"beta": 0.0}, {"beta": -3.0}),
    )
)
