r"""The monoid of logsumexp: sums of exponentials of parts of a row, which merge in any order.

    S = Σ b e^{x/τ} = e^{M/τ} (m + r),    M a largest score,  m = Σ_{x=M} b,  r = Σ_{x≠M} b e^{(x − M)/τ}
    (M, m, r) ∘ (M′, m′, r′)  has the larger M, to whose r all of the other is moved
    log|S| = M/τ + log|c| + log1p((m + r − c)/c),    c = m where the logarithms do not cancel, else m + r rounded

Without weights m counts the largest scores. Weights with signs, or complex, make such numbers of m and r, and complex scores have a
complex M, of the largest real part. Of M only differences are divided by τ, and r is kept apart from m, so that log|S| has its
digits near 0. M is a constant, and m the sum of b e^0 with its derivatives: those of the whole, of every order, by x, b and τ, hold
also where several scores are the largest. A sum is a tuple of tensors, so that it can be sent, and that of nothing the identity.

`io/state.py` has the sums of plain scores once more, without torch and derivatives, relative to a power of 2: relative to M
each new maximum would round what came before. Here (m, r) are relative to M, as they are differentiated and weighted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from softmaxima.base.double_double import Pair, divide
from softmaxima.base.error_free import two_sum
from softmaxima.base.rows import number_like
from softmaxima.base.temperature import is_one
from softmaxima.base.tracing import sizes


class LogSum(NamedTuple):
    """A sum over a part of each row, [..., 1] in float64 or complex128; of nothing M = −∞ and m = r = 0."""

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

    @property
    def sign(self) -> Tensor:
        """The sign of a real sum, a constant."""
        whole = (self.ties + self.rest).detach()
        return whole.sign().masked_fill(whole.isnan(), math.nan)

    def log_mass(self) -> Tensor:
        """log|m + r|, of complex numbers log(m + r); −∞, with a gradient of 0, where that is 0."""
        near = self.rest.abs() <= 0.5 * self.ties.abs()
        if not self.ties.is_complex():  # two logarithms of one sign do not cancel
            near = near | ((self.ties.abs() >= 1) & (self.ties * self.rest > 0))
        whole = self.ties + self.rest
        added = whole - self.ties
        lost = ((self.ties - (whole - added)) + (self.rest - added)).detach()
        base = torch.where(near, self.ties, whole)
        nothing = base == 0
        base = base.masked_fill(nothing, 1.0)
        share = torch.where(near, self.rest, torch.where(lost.isfinite(), lost, 0.0)) / base
        value = complex_log(base) + _log1p(share) if base.is_complex() else base.abs().log() + torch.log1p(share)
        return value.masked_fill(nothing, -math.inf)

    def value(self, tau: float | Tensor) -> Tensor:
        """log|S|; where M is +∞, that with the derivatives of log|m + r|."""
        log_mass = self.log_mass()
        height = self.anchor if is_one(tau) else self.anchor / tau
        return (height + log_mass + (self.top - self.anchor)).masked_fill(log_mass == -math.inf, -math.inf)

    def at(self, top: Tensor, tau: float | Tensor) -> LogSum:
        """The same sum relative to an M that is no smaller."""
        same = self.top == top
        gap = torch.where(same, 0.0, self.top - top)
        gone = (gap.real if gap.is_complex() else gap) == -math.inf
        if gap.is_complex():
            factor = (gap.masked_fill(gone, 0.0) / tau).exp()
        else:
            still = same | gone
            factor = _exp(*_over(two_sum(self.top.masked_fill(still, 0.0), -top.masked_fill(still, 0.0)), tau))
        moved = (self.ties + self.rest) * factor.masked_fill(gone, 0.0)
        return LogSum(top, torch.where(same, self.ties, 0.0), torch.where(same, self.rest, moved))

    def weigh(self, x: Tensor, tau: float | Tensor) -> Tensor:
        """exp((x − M)/τ) to an ulp or two, 0 at −∞."""
        silent = x == -math.inf
        high, low = two_sum(x.masked_fill(silent, 0.0), -self.top)
        high, low = (part.masked_fill(silent, 0.0) for part in _over((high, low), tau))
        return _exp(high, low).masked_fill(silent, 0.0)

    def shares(self, x: Tensor, tau: float | Tensor) -> Tensor:
        """exp(x/τ)/Σ exp(x/τ): 0 in a row of nothing, NaN in one with NaN or +∞."""
        return self.weigh(x, tau) / self.mass.masked_fill(self.mass == 0, 1.0)

    def above(self, level: float | Tensor, tau: float | Tensor) -> Pair:
        """How far M/τ is above a level, in two terms; +∞ above −∞."""
        sink = number_like(level, self.top, self.top.dtype)
        height, lost = _over((self.anchor, torch.zeros_like(self.anchor)), tau)
        above, rounding = two_sum(height, -sink)
        lost = torch.nan_to_num(lost + rounding, 0.0, 0.0, 0.0)
        high, low = two_sum(above.masked_fill(sink == -math.inf, math.inf), lost.masked_fill(sink == -math.inf, 0.0))
        return high, low.masked_fill(high.isinf(), 0.0)

    def shares_beside(self, x: Tensor, tau: float | Tensor, level: float | Tensor) -> Tensor:
        """exp(x/τ)/(Σ exp(x/τ) + exp(level))."""
        above, lost = self.above(level, tau)
        empty = self.top == -math.inf
        scale = _exp(above.clamp_max(0.0), torch.where(above < 0, lost, 0.0)).masked_fill(empty, 0.0)
        beside = _exp(-above.clamp_min(0.0), torch.where(above > 0, -lost, 0.0)).masked_fill(empty & (above < math.inf), 1.0)
        mass = self.mass * scale + beside
        return self.weigh(x, tau) * scale / mass.masked_fill(mass == 0, 1.0)


def gap(x: Tensor, y: Tensor, tau: float | Tensor) -> Tensor:
    """(x − y)/τ, also where x − y is beyond all numbers and the quotient is not."""
    apart = x - y
    return torch.where(apart.isinf(), (x / 2 - y / 2) / tau * 2, apart / tau)


def _over(x: Pair, tau: float | Tensor) -> Pair:
    """x/τ of two terms, the second a constant."""
    if is_one(tau):
        return x[0], x[1].detach()
    z = x[0] / tau
    high, low = divide((x[0].detach(), x[1].detach()), number_like(tau, z).detach())
    return z, (high - z.detach()) + low  # torch multiplies by the reciprocal of a number


def _exp(high: Tensor, low: Tensor) -> Tensor:
    """exp(high + low), where low has its digits, else of high alone."""
    return high.exp() * (1 + torch.where(low.isfinite(), low, 0.0))


def nothing(x: Tensor) -> LogSum:
    """The sum over no scores of the rows x [..., n]."""
    none = x.detach().new_zeros((*x.shape[:-1], 1), dtype=torch.complex128 if x.is_complex() else torch.float64)
    return LogSum(torch.full_like(none, -math.inf), none, none)


def log_sum(x: Tensor, tau: float | Tensor) -> LogSum:
    """The sum over a part [..., n] of each row, −∞ where scores are left out. Of +∞ m = 1 and r = 0."""
    if sizes(x)[-1] == 0:
        return nothing(x)
    x = x.double()
    top = x.detach().amax(-1, keepdim=True)
    infinite = top == math.inf
    terms = LogSum(top.masked_fill(top.isinf(), 0.0), top, top).weigh(x, tau)
    ties, rest = terms_apart(terms, x == top)
    return LogSum(top, ties.masked_fill(infinite, 1.0), rest.masked_fill(infinite, 0.0))


def terms_apart(terms: Tensor, at_top: Tensor) -> tuple[Tensor, Tensor]:
    """(m, r) of the terms of each row, relative to M."""
    wide = terms.dtype if terms.is_complex() else torch.float64
    ties, rest = torch.where(at_top, terms, 0.0), terms.masked_fill(at_top, 0.0)
    return ties.sum(-1, keepdim=True, dtype=wide), rest.sum(-1, keepdim=True, dtype=wide)


def merge(a: LogSum, b: LogSum, tau: float | Tensor) -> LogSum:
    """The sum over both parts; ∞ − ∞ is NaN."""
    top = _higher(a.top, b.top)
    a, b = a.at(top, tau), b.at(top, tau)
    ties = a.ties + b.ties
    if not ties.is_complex():
        ties = ties.masked_fill((top == math.inf) & (a.ties * b.ties < 0), math.nan)
    return LogSum(top, ties, a.rest + b.rest)


def total(sums: Sequence[LogSum], tau: float | Tensor) -> LogSum:
    """The sum over many parts of real rows with weights of 1, as by `merge`, at once: each term is moved once."""
    apart = LogSum(*(torch.cat(fields, -1) for fields in zip(*sums, strict=True)))  # [..., parts]
    top = apart.top.amax(-1, keepdim=True)
    moved = apart.at(top, tau)
    return LogSum(top, moved.ties.sum(-1, keepdim=True), moved.rest.sum(-1, keepdim=True))


def _higher(a: Tensor, b: Tensor) -> Tensor:
    """The larger, of complex numbers by the real part and then the other; NaN if either is."""
    if not a.is_complex():
        return torch.maximum(a, b)
    later = (b.real > a.real) | ((b.real == a.real) & (b.imag > a.imag)) | b.isnan()
    return torch.where(later & ~a.isnan(), b, a)


def complex_log(z: Tensor) -> Tensor:
    """log with the infinities of C99: the real part is ∞ if either part of z is infinite."""
    return torch.complex(torch.where(z.real.isinf() | z.imag.isinf(), math.inf, z.abs()).log(), torch.atan2(z.imag, z.real))


def _log1p(s: Tensor) -> Tensor:
    a, b = s.real, s.imag
    return torch.complex(0.5 * torch.log1p(a * (2 + a) + b * b), torch.atan2(b, 1 + a))
