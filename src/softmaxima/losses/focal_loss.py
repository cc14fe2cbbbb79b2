r"""focal_loss: L = −(1 − p_t)^γ log p_t, p = softmax(x): a cross-entropy whose fitted rows count less. Not convex.

With d = log(1 − p_t) − log p_t it is f(d) = σ(d)^γ log(1 + e^d), and ∂L/∂x_t = −f′(d), ∂L/∂x_j = f′(d) p_j/(1 − p_t) of the others.
No difference of p and 1 is taken. Of c = −log p_t it is (1 − e^{−c})^γ c, whose slope h makes h (p − y) of that of cross-entropy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from softmaxima.base.arguments import Array, as_tensor, check_per_row, check_value, moved_last
from softmaxima.base.modules import held_value
from softmaxima.base.onnx import logsigmoid
from softmaxima.base.public import public
from softmaxima.base.rows import row_maximum
from softmaxima.base.tracing import sizes
from softmaxima.losses.batch import Batch
from softmaxima.losses.contract import Loss, LossModule, register
from softmaxima.losses.evaluation import Evaluation, evaluated
from softmaxima.losses.parts import RowForm
from softmaxima.losses.row_losses import RowLosses, losses_of
from softmaxima.lse.logsumexp import logsumexp
from softmaxima.maps.log_softmax import LOG_SOFTMAX
from softmaxima.maps.softmax import SOFTMAX

GAMMA = (lambda gamma: (gamma >= 0) & (gamma < math.inf)), "at least 0 and finite"  # (valid, domain)
LIKELY = -0.5  # a log p above which no other class has one
LEAST = -1e30  # of log(1 − p), so that it is a number by which γ and its slope can be taken


def reference(z: Tensor, y: Tensor, gamma: float | Tensor) -> Tensor:
    p = SOFTMAX.reference(z)
    return -((1 - p) ** gamma * torch.special.xlogy(y, p)).sum(-1)


@public
def focal_loss(
    input: Array,
    target: Any,
    weight: Any = None,
    *,
    gamma: float | Array = 2.0,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    temperature: float | Array = 1.0,
    dim: int | Sequence[int] | None = None,
    where: Array | None = None,
    empty: str = "nan",
) -> Array:
    """The focal loss of softmax over any number of classes, `−(1 − p_t)^γ log p_t` for a label t, in nats.

    Rows that are fitted already, with p_t near 1, count the less the larger γ is. For probabilities y it is
    `−Σ_c y_c (1 − p_c)^γ log p_c`.

    Args:
        gamma: γ ≥ 0: a number, a tensor that broadcasts against x with size 1 along the class axis (one for each row, for
            instance), or a module that says it; it may require grad. 0 gives `cross_entropy`.
        weight: one weight a class (C), the α of the focal loss. The mean divides by the weights of the labels, as `cross_entropy`
            does; take reduction="sum" over the number of rows for a mean over rows.
        The others, errors: as for `cross_entropy`.

    Value and gradient are true where p_t rounds to 0 or to 1, for γ below 1 too. Of two classes with scores 0 and x it is the
    sigmoid focal loss of x. Cost: that of `cross_entropy`, and one more read and write of the gradient.

    Source: Lin et al. (2017), arXiv:1708.02002; of softmax and calibration: Mukhoti et al. (2020), arXiv:2002.09437.

    >>> import torch, softmaxima as sm
    >>> sm.focal_loss(torch.tensor([[3.0, 0.0], [0.0, 3.0]]), torch.tensor([0, 0]), gamma=2.0, reduction="none")
    tensor([1.0928e-04, 2.7663e+00])
    """
    shared = (input, target, weight, ignore_index, reduction, label_smoothing, empty, temperature, dim, where)
    return evaluated("focal_loss", evaluation, {"gamma": gamma}, *shared)


def evaluation(batch: Batch, gamma: float | Array) -> Evaluation:
    scores = as_tensor(batch.name, "scores", batch.given)
    power: Any = moved_last(check_per_row(batch.name, "gamma", gamma, scores, batch.class_axis, *GAMMA), batch.class_axis)
    return Evaluation(_losses(batch, power), lambda batch: composite(batch, power), (power,), wide=True)


def composite(batch: Batch, gamma: float | Tensor) -> Tensor:
    log_p = LOG_SOFTMAX(batch.scores)
    likely = log_p > LIKELY
    others = logsumexp(log_p.masked_fill(likely, -math.inf), -1, keepdim=True)
    unlikely = torch.where(likely, LIKELY, log_p)
    odds = torch.where(likely, others - log_p, torch.log1p(-unlikely.exp()) - unlikely)
    endless = row_maximum(batch.scores) == math.inf  # beside +∞ a finite score costs ∞, and +∞ nothing where it has no share
    odds = odds.masked_fill(endless & (batch.scores < math.inf), math.inf)
    if batch.labels is None:
        odds = odds.masked_fill(endless & (batch.scores == math.inf) & (batch.target_distribution(odds.dtype) == 0), -math.inf)
    power = gamma.to(log_p.dtype) if isinstance(gamma, Tensor) else gamma
    return batch.reduce(0.0 - batch.expectation(odds, batch.class_weight, lambda odds: -_of_odds(odds, power)))


def _of_odds(d: Tensor, gamma: float | Tensor) -> Tensor:
    """f(d), with no slope where p = 0."""
    impossible = d == math.inf
    d = d.masked_fill(impossible, 0.0)
    value = (gamma * logsigmoid(d).clamp_min(LEAST)).exp() * -logsigmoid(-d)
    return value.masked_fill(impossible, math.inf)


def _of_log(log_p: Tensor, n: int, gamma: float | Tensor) -> tuple[Tensor, Tensor]:
    """(ℓ, ∂ℓ/∂log p) of log p in float64, no slope where p = 0."""
    possible = log_p != -math.inf
    c = -log_p.masked_fill(~possible, -1.0)
    q = -torch.expm1(-c)
    power = q.clamp_min(0.0) ** gamma
    slope = power * (1 + gamma * torch.where(q > 0, torch.exp(-c) * c / q.where(q > 0, 1.0), 1.0))  # at p = 1 it is p c/q
    value = torch.where(c < 0, 0.0, power * c + 0.0)
    return value.masked_fill(~possible, math.inf), -slope.masked_fill(~possible, 0.0)


def _losses(batch: Batch, gamma: float | Tensor) -> RowLosses | None:
    """Those of labels by the kernel of cross-entropy: of its value c, and h times its slope."""
    of_log = losses_of(batch, SOFTMAX)
    if of_log is None or batch.soft is not None or batch.smoothing > 0:
        return None

    def losses(
        x: Tensor, target: Tensor, *, class_weight: Tensor | None, smoothing: float, scale: float, gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        c, slope = of_log(x, target, class_weight=None, smoothing=0.0, scale=1.0, gradient=gradient)
        power = gamma.to(c.dtype).squeeze(-1) if isinstance(gamma, Tensor) else gamma
        values, factors = _of_log(-c, sizes(x)[-1], power)
        label = target.clamp(0, sizes(x)[-1] - 1)
        if class_weight is not None:
            weight = class_weight.double()[label]
            silent = (weight == 0) & ~c.isnan()
            values, factors = (torch.where(silent, 0.0, v * weight) for v in (values, factors))
            slope = None if slope is None else slope.masked_fill_(silent.unsqueeze(-1), 0.0)
        if slope is None:
            return values, None
        factors = factors * -scale
        largest = torch.finfo(slope.dtype).max  # of which 0 is 0
        of_others, of_label = (v.clamp(-largest, largest).to(slope.dtype) for v in (factors, factors * torch.expm1(-c)))
        return values, slope.mul_(of_others.unsqueeze(-1)).scatter_(-1, label.unsqueeze(-1), of_label.unsqueeze(-1))

    return losses


def _of_softmax(name: str, options: dict[str, Any]) -> tuple[str, dict[str, Any], dict[str, Any]]:
    return "softmax", {}, {"gamma": check_value(name, "gamma", options["gamma"], *GAMMA)}


@public
class FocalLoss(LossModule):
    """`focal_loss` as a module.

    >>> import torch, softmaxima as sm
    >>> sm.FocalLoss(gamma=0.5)(torch.tensor([[0.0, 3.0]]), torch.tensor([0]))
    tensor(2.9754)
    """

    function = focal_loss

    def __init__(self, gamma: float | Tensor | nn.Module = 2.0, weight: Tensor | None = None, **options: Any) -> None:
        super().__init__(weight, gamma=held_value(type(self).__name__, "gamma", gamma, *GAMMA), **options)


register(
    Loss(
        "focal_loss",
        focal_loss,
        FocalLoss,
        evaluation,
        reference,
        row_form=RowForm(_of_softmax, of_p=_of_log, of_log=True),
        examples=({"gamma": 2.0}, {"gamma": 0.5}),
    )
)
