r"""The monoid of logsumexp: sums of exponentials of parts of a row, which merge in any order.

    Σ exp(x/τ) = e^{M/τ} (m + r),    M = max x,  m = #{x = M},  r = Σ_{x<M} e^{(x − M)/τ}

Of M only differences are divided by τ, and r is kept apart from m, so that log Σ has its digits near 0. M is a constant, and m the
sum of e^0 with its derivatives: those of the whole, of every order, by x and τ, hold also where several scores are the largest.
"""

from __future__ import annotations

import math
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

    @property
    def anchor(self) -> Tensor:
        """M, and 0 where it is infinite."""
        return self.top.masked_fill(self.top.isinf(), 0.0)

    def log_mass(self) -> Tensor:
        """log(m + r), −∞ of nothing."""
        nothing = self.ties == 0
        ties = self.ties.masked_fill(nothing, 1.0)
        return (ties.log() + torch.log1p(self.rest / ties)).masked_fill(nothing & ~self.top.isnan(), -math.inf)

    def value(self, tau: float | Tensor) -> Tensor:
        """log Σ exp(x/τ)."""
        return torch.where(self.top.isinf(), self.top, self.anchor / tau + self.log_mass())

    def weigh(self, x: Tensor, tau: float | Tensor) -> Tensor:
        """exp((x − M)/τ), 0 at −∞."""
        silent = x == -math.inf
        return torch.where(silent, 0.0, (torch.where(silent, 0.0, x - self.top) / tau).exp())

    def shares(self, x: Tensor, tau: float | Tensor) -> Tensor:
        """exp(x/τ)/Σ exp(x/τ): 0 in a row of nothing, NaN in one with NaN or +∞."""
        return self.weigh(x, tau) / self.mass.masked_fill(self.mass == 0, 1.0)

    def shares_beside(self, x: Tensor, tau: float | Tensor, level: float | Tensor) -> Tensor:
        """exp(x/τ)/(Σ exp(x/τ) + exp(level))."""
        sink = torch.as_tensor(level, dtype=x.dtype, device=x.device)
        nothing, height = self.top == -math.inf, self.anchor / tau
        shift = torch.maximum(height.masked_fill(nothing, -math.inf), sink).detach()
        shift = shift.masked_fill(shift == -math.inf, 0.0)
        scale = torch.where(nothing, 0.0, (height - shift).exp())
        mass = self.mass * scale + (sink - shift).exp()
        return self.weigh(x, tau) * scale / mass.masked_fill(mass == 0, 1.0)


def log_sum(x: Tensor, tau: float | Tensor) -> LogSum:
    """The sum over a part [..., n] of each row, −∞ where scores are left out."""
    x = x.double()
    nothing = x.new_full((*x.shape[:-1], 1), -math.inf)
    top = x.detach().amax(-1, keepdim=True) if x.shape[-1] else nothing
    silent = x == -math.inf
    terms = torch.where(silent, 0.0, (torch.where(silent, 0.0, x - top) / tau).exp())
    at_top = (x == top) & ~silent
    terms = torch.where(at_top & (top == math.inf), 1.0, terms)
    ties, rest = (torch.where(chosen, terms, 0.0).sum(-1, keepdim=True) for chosen in (at_top, ~at_top))
    return LogSum(top, ties, rest)


def merge(a: LogSum, b: LogSum, tau: float | Tensor) -> LogSum:
    """The sum over both parts."""
    top = torch.maximum(a.top, b.top)
    ties, rest = torch.zeros_like(top), torch.zeros_like(top)
    for part in (a, b):
        same = part.top == top
        below = torch.where(same | (part.top == -math.inf), 0.0, part.top - top) / tau
        ties = ties + torch.where(same, part.ties, 0.0)
        rest = rest + torch.where(same, part.rest, (part.ties + part.rest) * below.exp())
    return LogSum(top, ties, rest + 0.0 * torch.where(top.isnan(), top, 0.0))
