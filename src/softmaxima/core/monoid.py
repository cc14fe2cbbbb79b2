r"""The monoid of logsumexp: sums of exponentials of parts of a row, which merge in any order.

    Σ exp(x/τ) = e^{M/τ} (m + r),    M = max x,  m = #{x = M},  r = Σ_{x<M} e^{(x − M)/τ}

Of M only differences are divided by τ, and r is kept apart from m, so that log Σ has its digits near 0. All is differentiable, by x
and τ.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor


class LogSum(NamedTuple):
    """The sum over a part of each row, [..., 1] in float64; of nothing M = −∞ and m = r = 0."""

    top: Tensor  # M
    ties: Tensor  # m
    rest: Tensor  # r

    @property
    def mass(self) -> Tensor:
        """m + r = Σ exp((x − M)/τ); NaN where M is +∞, of which there are no shares."""
        return (self.ties + self.rest).masked_fill(self.top == math.inf, math.nan)

    def log_mass(self) -> Tensor:
        """log(m + r), −∞ of nothing."""
        return self.ties.log() + torch.log1p(self.rest / self.ties.clamp_min(1.0))

    def value(self, tau: float | Tensor) -> Tensor:
        """log Σ exp(x/τ)."""
        return torch.where(self.top.isinf(), self.top, self.top / tau + self.log_mass())

    def shares(self, x: Tensor, tau: float | Tensor, more: float | Tensor = 0.0) -> Tensor:
        """exp((x − M)/τ)/(m + r + more): 0 in a row of nothing, NaN in one with NaN or +∞."""
        mass = self.mass + more
        return self.weigh(x, tau) / mass.masked_fill(mass == 0, 1.0)

    def weigh(self, x: Tensor, tau: float | Tensor) -> Tensor:
        """exp((x − M)/τ), 0 at −∞."""
        return torch.where(x == -math.inf, 0.0, ((x - self.top) / tau).exp())


def log_sum(x: Tensor, tau: float | Tensor) -> LogSum:
    """The sum over a part [..., n] of each row, −∞ where scores are left out."""
    x = x.double()
    nothing = x.new_full((*x.shape[:-1], 1), -math.inf)
    top = x.amax(-1, keepdim=True) if x.shape[-1] else nothing
    at_top = (x == top) & (top > -math.inf)
    silent = at_top | (x == -math.inf)
    terms = torch.where(silent, 0.0, (torch.where(silent, 0.0, x - top) / tau).exp())
    return LogSum(top, at_top.sum(-1, keepdim=True).double(), terms.sum(-1, keepdim=True))


def merge(a: LogSum, b: LogSum, tau: float | Tensor) -> LogSum:
    """The sum over both parts."""
    top = torch.maximum(a.top, b.top)
    count, rest = torch.zeros_like(top), torch.zeros_like(top)
    for part in (a, b):
        same = part.top == top
        below = torch.where(same | (part.top == -math.inf), 0.0, part.top - top) / tau
        count = count + torch.where(same, part.ties, 0.0)
        rest = rest + torch.where(same, part.rest, (part.ties + part.rest) * below.exp())
    return LogSum(top, count, rest + 0.0 * torch.where(top.isnan(), top, 0.0))


def merged(parts: Iterable[LogSum], tau: float | Tensor) -> LogSum:
    """The sum over all parts, of which there is at least one."""
    return functools.reduce(lambda a, b: merge(a, b, tau), parts)
