r"""A detector of inputs that look attacked, by one number of their scores: unusually low, and the row is suspected.

    margin    x₍₁₎ − x₍₂₎
    entropy   −H(softmax(x/τ)), in nats
    energy    τ LSE(x/τ), in nats times τ; Liu et al. (2020)

All are computed in float64. A detector is worth what an attacker does not know of it: one who raises the same number while
misleading the model is not seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.arguments import Array, as_scores, check_dim, like_input
from softmaxima.base.numbers import check_choice, check_number, check_one_temperature
from softmaxima.base.public import public
from softmaxima.base.rows import xlogx
from softmaxima.lse import logsumexp
from softmaxima.maps import softmax


def _margin(x: Tensor, tau: float) -> Tensor:
    if x.shape[-1] < 2:
        return torch.full(x.shape[:-1], math.inf, dtype=x.dtype, device=x.device)
    top = x.topk(2, -1).values
    return top[..., 0] - top[..., 1]


STATISTICS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "margin": _margin,
    "entropy": lambda x, tau: xlogx(softmax(x, temperature=tau)).sum(-1),
    "energy": lambda x, tau: tau * logsumexp(x, temperature=tau),
}
SPREADS: dict[str, Callable[[int, float], float]] = {  # of sums, whose last bits depend on how many rows there are
    "entropy": lambda n, tau: math.log(n),
    "energy": lambda n, tau: tau * math.log(n),
}


def _rows(name: str, x: Any, dim: Any) -> Tensor:
    """Scores with their classes last; a number is a row of one."""
    scores = as_scores(name, x)
    axis = check_dim(name, dim, scores.ndim)
    return scores.movedim(axis, -1) if scores.ndim else scores.reshape(1)


@public
@dataclass(frozen=True)
class Detector:
    """Suspects rows whose statistic, in float64, is below a threshold. Made by `fit_detector`, or with a threshold of one's own.

    Args:
        statistic: "margin", "entropy" or "energy".
        threshold: below which a row is suspected.
        temperature: τ of the entropy and the energy.

    Raises:
        TypeError or ValueError for arguments that cannot be used.

    >>> import numpy as np, softmaxima as sm
    >>> detector = sm.robust.Detector("margin", 1.0)
    >>> detector(np.array([[3.0, 0.0], [0.2, 0.0]]))
    array([False,  True])
    """

    statistic: str
    threshold: float
    temperature: float = 1.0

    def __post_init__(self) -> None:
        check_choice("Detector", "statistic", self.statistic, tuple(STATISTICS))
        check_number("Detector", "threshold", self.threshold, lambda number: not math.isnan(number), "a number")
        check_one_temperature("Detector", self.temperature)

    def values(self, x: Array, dim: int = -1) -> Array:
        """The statistic, one number a row, in the dtype of x: low where a row looks attacked."""
        rows = _rows("Detector", x, dim)
        return like_input(self._of(rows).to(rows.dtype), x)

    def _of(self, rows: Tensor) -> Tensor:
        return STATISTICS[self.statistic](rows.double(), self.temperature)

    def __call__(self, x: Array, dim: int = -1) -> Array:
        """Whether each row is suspected. Cost: one or two reads of x."""
        return like_input(~(self._of(_rows("Detector", x, dim)) >= self.threshold), x)  # NaN is suspected


@public
def fit_detector(
    x: Array, statistic: str = "margin", false_alarms: float = 0.05, dim: int = -1, *, temperature: float = 1.0
) -> Detector:
    """The detector that suspects the given share of ordinary rows, or less where rows tie.

    Rows whose number is the threshold are not suspected: of rows that are all alike, none is, among however many others they come.
    The threshold of entropy and energy is therefore the number of a row less what a sum may be off.

    Args:
        x: scores of ordinary inputs, a tensor or an array, that the model was not trained on.
        statistic: "margin", "entropy" or "energy".
        false_alarms: the share of these rows that is suspected at most, in (0, 1).
        dim: the axis of classes.
        temperature: τ of the entropy and the energy.

    Raises:
        TypeError, ValueError or IndexError for arguments that cannot be used, such as no rows at all, scores that are NaN
            or +∞, or rows with fewer than two allowed classes, of which there is no attack.

    Cost: a sort of one number a row.

    >>> import numpy as np, softmaxima as sm
    >>> scores = np.stack([np.arange(100.0), np.zeros(100)], -1)
    >>> detector = sm.robust.fit_detector(scores, "margin", 0.1)
    >>> int(detector(scores).sum())
    10
    """
    share = check_number("fit_detector", "false_alarms", false_alarms, lambda number: 0 < number < 1, "a number between 0 and 1")
    detector = Detector(statistic, 0.0, temperature)
    rows = _rows("fit_detector", x, dim).detach()
    if rows[..., :1].numel() == 0 and rows.shape[-1]:
        raise ValueError(f"fit_detector: there must be ordinary rows to go by, got scores of shape {tuple(x.shape)}; give some")
    if bool((rows.isnan() | (rows == math.inf)).any()):
        raise ValueError("fit_detector: scores of ordinary rows must not be NaN or +∞, got some; leave those rows out")
    alone = int(((rows > -math.inf).sum(-1) < 2).sum())
    if alone:
        raise ValueError(
            f"fit_detector: ordinary rows must have at least two allowed classes, got {alone} that have not; leave those rows out"
        )
    values = detector._of(rows).flatten()
    threshold = float(values.sort().values[int(share * values.numel())])  # so many are below
    if statistic in SPREADS:
        n = rows.shape[-1]
        threshold -= (n + 8) * torch.finfo(torch.float64).eps * (abs(threshold) + SPREADS[statistic](n, detector.temperature))
    return Detector(statistic, threshold, temperature)
