r"""What bounds of logsumexp know of scores: their maximum M, their number, and answers about the gaps δ_i = (M − x_i)/τ ≥ 0.

Bounds ask the same of rows in memory (`GapsOfRows`) and of blocks long gone (`score_summary.py`). u = 2⁻⁵³ bounds the error of
every operation in float64; `ends` moves an interval outward by all of them, and rounds it outward to the dtype of the scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from softmaxima._map import as_floating, check_dim, check_scores, check_temperature, check_where

UNIT = 2.0**-53


class Histogram(NamedTuple):
    """How many positive gaps are in each bin, and its nearest and furthest gap; in the last bin, everything beyond."""

    counts: Tensor  # [..., bins + 1]
    nearest: Tensor  # [bins + 1]
    furthest: Tensor  # [bins + 1], the last +∞


class Gaps(Protocol):
    """What a bound may ask. All tensors are float64; those of one number a row are [..., 1]."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the scores."""
        ...

    @property
    def maximum(self) -> Tensor:
        """M/τ; where it is not finite, the rest is meaningless."""
        ...

    @property
    def rounding(self) -> Tensor | float:
        """The error of the maximum."""
        ...

    @property
    def gap_error(self) -> Tensor | float:
        """The error of a gap beyond 2u of it; a logsumexp is off by as much at most."""
        ...

    @property
    def n(self) -> int:
        """How many scores there are."""
        ...

    @property
    def count(self) -> Tensor:
        """How many of them are not −∞."""
        ...

    def ties(self) -> Tensor:
        """How many scores equal the maximum beside one."""
        ...

    def mean(self) -> tuple[Tensor, Tensor]:
        """(the mean gap, its error)."""
        ...

    def smallest(self, k: int) -> Tensor:
        """The k smallest gaps in order, [..., k]; fewer if there are fewer."""
        ...

    def near(self, delta: Tensor) -> tuple[Tensor, Tensor]:
        """(how many gaps are within Δ′, Δ′), for the least Δ′ ≥ delta that is known of."""
        ...

    def histogram(self, width: float, reach: float) -> Histogram:
        """Bins about this wide, up to gaps of about `reach`."""
        ...


@dataclass(frozen=True, eq=False)
class GapsOfRows:
    """Gaps of the rows of a tensor."""

    given: Any
    dtype: torch.dtype
    shape: torch.Size
    dim: int
    scores: Tensor  # [..., n], not divided by τ; −∞ where left out
    divisor: Tensor | float  # τ
    highest: Tensor  # [..., 1], not divided by τ
    maximum: Tensor
    rounding: Tensor | float
    count: Tensor
    gap_error = 0.0

    @property
    def n(self) -> int:
        return self.scores.shape[-1]

    @cached_property
    def each(self) -> Tensor:
        """The gaps [..., n], +∞ where left out."""
        return ((self.highest - self.scores) / self.divisor).masked_fill(self.scores == -math.inf, math.inf)

    def ties(self) -> Tensor:
        return ((self.each == 0).sum(-1, keepdim=True).double() - 1).clamp_min(0)

    def mean(self) -> tuple[Tensor, Tensor]:
        mean = self.each.masked_fill(self.each == math.inf, 0.0).sum(-1, keepdim=True) / self.count.clamp_min(1)
        return mean, 4 * UNIT * (self.n + 16) * mean

    def smallest(self, k: int) -> Tensor:
        return self.each.topk(min(k, self.n), largest=False, sorted=True).values

    def near(self, delta: Tensor) -> tuple[Tensor, Tensor]:
        return (self.each <= delta).sum(-1, keepdim=True).double(), delta

    def histogram(self, width: float, reach: float) -> Histogram:
        bins = math.ceil(reach / width)
        index = (self.each.nan_to_num(nan=math.inf, posinf=math.inf) / width).clamp_max(bins).long()
        apart = ((self.each > 0) & (self.each < math.inf)).double()
        counts = torch.zeros((*index.shape[:-1], bins + 1), dtype=torch.float64, device=index.device)
        edges = width * torch.arange(bins + 1, dtype=torch.float64, device=index.device)
        return Histogram(counts.scatter_add(-1, index, apart), edges, with_nothing_beyond(edges))


def with_nothing_beyond(edges: Tensor) -> Tensor:
    """The furthest gap of each bin, of bins that follow one another."""
    return torch.cat((edges[1:], edges.new_full((1,), math.inf)))


def read_rows(name: str, x: Any, dim: int, temperature: Any, where: Any) -> GapsOfRows:
    """The gaps of x/τ along `dim`, everything validated."""
    scores = check_scores(name, as_floating(name, x).detach())
    dim = check_dim(name, dim, scores.ndim)
    scores = scores if scores.ndim else scores.reshape(1)
    tau, mask = check_temperature(name, temperature, scores, dim), check_where(name, where, scores)
    z = scores.double()
    z = (z if mask is None else z.masked_fill(~mask, -math.inf)).movedim(dim, -1)
    divisor = tau.detach().double().movedim(dim, -1) if isinstance(tau, Tensor) else tau
    highest = most(z)
    maximum = highest / divisor
    rounding = 0.0 if isinstance(tau, float) and tau == 1.0 else 2 * UNIT * maximum.abs()
    count = (z > -math.inf).sum(-1, keepdim=True).double()
    return GapsOfRows(x, scores.dtype, scores.shape, dim, z, divisor, highest, maximum, rounding, count)


def most(values: Tensor) -> Tensor:
    """The largest [..., 1], −∞ of nothing."""
    return values.amax(-1, keepdim=True) if values.shape[-1] else values.new_full((*values.shape[:-1], 1), -math.inf)


def least(values: Tensor) -> Tensor:
    """The smallest [..., 1], +∞ of nothing."""
    return -most(-values)


def ends(gaps: Gaps, lower: Tensor, upper: Tensor, below: Tensor | float, above: Tensor | float) -> tuple[Tensor, Tensor]:
    """M + lower and M + upper, [...] in the dtype of the scores, each outside by its error and by that of this sum."""
    exact = gaps.maximum.isfinite()
    results = []
    for part, error, away in ((lower, below, -1.0), (upper, above, 1.0)):
        total = gaps.maximum + part
        log_and_sum = torch.where(part == 0, 0.0, UNIT * (4 * part.abs() + 2 * total.abs()))
        error = error + log_and_sum + gaps.rounding + gaps.gap_error
        end = torch.where(error > 0, _next(total + away * error, away), total)
        results.append(_outward(torch.where(exact, end, gaps.maximum), gaps.dtype, away).squeeze(-1))
    return results[0], results[1]


def _next(value: Tensor, away: float) -> Tensor:
    return torch.nextafter(value, torch.full_like(value, away * math.inf))


def _outward(value: Tensor, dtype: torch.dtype, away: float) -> Tensor:
    """value in `dtype`, rounded towards away · ∞."""
    rounded = value.to(dtype)
    inside = (rounded.double() - value) * away < 0
    return torch.where(inside, _next(rounded, away), rounded)
