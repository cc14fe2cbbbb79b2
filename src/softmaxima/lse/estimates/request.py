"""What is asked of an estimate, and what comes out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from softmaxima.lse.bounds._gaps import quotient
from softmaxima.lse.estimates.sources import Source
from softmaxima.lse.logsumexp import row_logsumexp

GATHERED = 1 << 16  # numbers from all places that are in cache together, in float64


@dataclass(frozen=True)
class Estimate:
    """A value of log Σ exp(x_i) in nats, with an interval and what stands behind it; `estimate` returns it.

    value: the estimate, in float64; for tensors a tensor, which autograd can follow.
    lower, upper: the interval.
    evaluations: how many scores were read, or computed, by the estimator and its index.
    draws: at how many random places: runs of neighbours where "auto" draws from an array, else scores; 0 if all were read.
    certificate: "deterministic" (the truth is inside), "finite-sample" (it is inside with the asked confidence if no score exceeds
        what bounds them: the `maximum`, or an exact head), "asymptotic" (so if what was not read is about like what was; see
        `estimate`), or "none" (the sample shows a tail too heavy for that: the lower limit holds, and the upper one is +∞).

    >>> import numpy as np, softmaxima as sm
    >>> sm.estimate(np.zeros(8), generator=0).certificate
    'deterministic'
    """

    value: Any
    lower: float
    upper: float
    evaluations: int
    certificate: Literal["deterministic", "finite-sample", "asymptotic", "none"]
    draws: int = 0

    @property
    def guaranteed(self) -> bool:
        return self.certificate in ("deterministic", "finite-sample")


@dataclass(frozen=True)
class Request:
    """What was asked for, and what is drawn: units of `width` neighbours. `cap` bounds every x/τ, or is None.

    `whole` draws cost as much as a pass, and `look` of them come before an asymptotic claim.
    """

    source: Source
    target: float
    delta: float
    tau: float
    cap: float | None
    budget: int  # in scores
    rng: np.random.Generator
    k: int | None
    strata: int
    width: int
    whole: float
    look: float

    @property
    def units(self) -> int:
        return math.ceil(self.source.n / self.width)

    @property
    def bound(self) -> float | None:
        """Of log Σ exp(x/τ) over a unit, or None."""
        return None if self.cap is None else self.cap + math.log(self.width)

    def read(self, units: np.ndarray) -> np.ndarray:
        """log Σ exp(x/τ) over each of these units, whose scores are none above the cap; in the order of places, which is faster."""
        sums, order = np.empty(len(units)), np.argsort(units)
        height = max(1, GATHERED // (self.width * self.source.row))
        self.source.expect(units[order], self.width)
        with torch.no_grad():
            for start in range(0, len(units), height):
                part = order[start : start + height]
                sums[part] = self.select(units[part]).cpu().numpy()
        return sums

    def select(self, units: np.ndarray) -> Tensor:
        """The same, in the order of `units`, for autograd to follow."""
        z = quotient(self.source.runs(units, self.width), self.tau)
        if z.numel():
            self.check(float(z.detach().max()))
        return z.squeeze(1) if self.width == 1 else row_logsumexp(z, 1.0, None)

    def check(self, largest: float) -> None:
        if self.cap is not None and largest > self.cap:
            raise ValueError(
                f"estimate: maximum must be at least every score, and a score of {largest * self.tau} was met; raise maximum "
                "or leave it out"
            )


def log_over(score: float, tau: float) -> float:
    return float(quotient(torch.tensor(score, dtype=torch.float64, device="cpu"), tau))
