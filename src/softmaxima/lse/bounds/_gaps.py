r"""What bounds of logsumexp know of scores: their maximum M, their number, and answers about the gaps δ_i = (M − x_i)/τ ≥ 0.

Bounds ask the same of rows in memory (`GapsOfRows`) and of blocks long gone (`score_summary.py`). An operation in float64 is off by
u = 2⁻⁵³ of its result, or by 2⁻¹⁰⁷⁵ where that is subnormal; `ends` moves an interval outward by all of them, and rounds it outward
to the dtype of the scores. A gap beyond float64 is +∞ and weighs nothing, which is right to 10⁻³⁰⁰; an M/τ beyond it is its largest
number, with an error that reaches further.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from softmaxima.base.arguments import as_floating, check_scores, rows_last
from softmaxima.base.onnx import refuse_export
from softmaxima.base.tracing import cached, is_eager
from softmaxima.engine.fused import is_readable
from softmaxima.kernels import native

UNIT = 2.0**-53
SUBNORMAL = 2.0**-1074  # twice what rounding takes from the smallest numbers
LARGEST = torch.finfo(torch.float64).max
BLOCK = 2**16  # scores at a time: 512 KiB in float64


class Histogram(NamedTuple):
    """How many positive gaps are in each bin, and its nearest and furthest gap; in the last bin, everything beyond."""

    counts: Tensor  # [..., bins + 1]
    nearest: Tensor  # [bins + 1]
    furthest: Tensor  # [bins + 1], the last +∞


class Maximum(Protocol):
    """What the ends of an interval ask. All tensors are float64; those of one number a row are [..., 1]."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the scores."""
        ...

    @property
    def maximum(self) -> Tensor:
        """M/τ, at most the largest number if M is finite; where it is not, the rest is meaningless."""
        ...

    @property
    def rounding(self) -> Tensor | float:
        """The error of the maximum."""
        ...


class Gaps(Maximum, Protocol):
    """What a bound may ask, the same way."""

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

    def near(self, gap: float | None) -> tuple[Tensor, Tensor, Tensor]:
        """(how many gaps are near, what none of them exceeds, what all others exceed), about this gap; None: `usual`."""
        ...

    def histogram(self, width: float, reach: float) -> Histogram:
        """Bins about this wide, up to gaps of about `reach`."""
        ...


@dataclass(frozen=True, eq=False)
class GapsOfRows:
    """Gaps of the rows of a tensor."""

    given: Any
    shape: torch.Size  # of what was given
    dim: int
    dtype: torch.dtype
    scores: Tensor  # [..., n]; −∞ where left out
    tau: Tensor | float

    @property
    def n(self) -> int:
        return self.scores.shape[-1]

    @property
    def is_native(self) -> bool:
        """Whether the native library reads these rows."""
        return is_readable(self.scores, self.tau) and self.scores.numel() > 0

    @cached
    def wide(self) -> Tensor:
        """The scores in float64."""
        return self.scores.double()

    @cached
    def highest(self) -> Tensor:
        """M [..., 1], not divided by τ."""
        return most(self.scores).double()

    @property
    def maximum(self) -> Tensor:
        return quotient(self.highest, self.tau)

    @property
    def rounding(self) -> Tensor | float:
        return quotient_error(self.highest, self.tau)

    @cached
    def _count(self) -> Tensor:
        return _how_many(self.scores > -math.inf)

    @property
    def count(self) -> Tensor:
        return self._count

    @property
    def is_highest(self) -> Tensor:
        """Where scores equal M."""
        return self.scores == self.highest.to(self.dtype)

    @cached
    def each(self) -> Tensor:
        """The gaps [..., n], +∞ where left out, and where they are beyond float64."""
        return gaps_between(self.highest, self.wide, self.tau)

    @cached
    def _ties(self) -> Tensor:
        return (_how_many(self.is_highest) - 1).clamp_min(0)

    def ties(self) -> Tensor:
        return self._ties

    def mean(self) -> tuple[Tensor, Tensor]:
        everything = self._by_blocks(lambda block: block.each.sum(-1, keepdim=True))
        if not is_eager(everything) or bool((everything == math.inf).any()):
            everything = self._by_blocks(lambda block: block.each.masked_fill(block.scores == -math.inf, 0.0).sum(-1, keepdim=True))
        return _mean(everything, self.count, self.n)

    def smallest(self, k: int) -> Tensor:
        return gaps_between(self.highest, self.scores.topk(min(k, self.n)).values.double(), self.tau)

    def near(self, gap: float | None) -> tuple[Tensor, Tensor, Tensor]:
        delta = usual(self.count) if gap is None else torch.full_like(self.count, gap)
        # Scores are compared, and not their gaps, of which that of the score nearest to M − Δτ is then what all keep to.
        edge = self.highest - delta * self.tau
        scaled = self.highest * 2.0**-32 - delta * (self.tau * 2.0**-32)  # where Δτ is beyond float64
        edge = torch.where(edge.isfinite(), edge, scaled * 2.0**32).to(self.dtype).clamp_min(torch.finfo(self.dtype).min)
        found = gaps_between(self.highest, edge.double(), self.tau)
        return _how_many(self.scores >= edge), found, found

    def histogram(self, width: float, reach: float) -> Histogram:
        bins = math.ceil(reach / width)
        edges = _edges(width, bins, self.scores.device)

        def count(block: GapsOfRows) -> Tensor:
            index = (block.each / width).nan_to_num_(nan=math.inf, posinf=math.inf).clamp_max_(bins).long()
            return edges[0].new_zeros((*index.shape[:-1], bins + 1)).scatter_add_(-1, index, torch.ones_like(block.each))

        counts = self._by_blocks(count)
        counts[..., :1] -= self.ties() + 1
        counts[..., -1:] -= self.n - self.count
        return Histogram(counts.clamp_min_(0), *edges)  # below 0 where no maximum is finite

    def _by_blocks(self, measure: Callable[[GapsOfRows], Tensor]) -> Tensor:
        """What `measure` makes of a few rows, [rows, m], of all of them, [..., m]."""
        found = torch.cat([measure(block) for block in self.blocks()])
        return found.reshape(*self.scores.shape[:-1], found.shape[-1])

    def blocks(self) -> Iterator[GapsOfRows]:
        """The same for a few rows at a time, [rows, n], so that what is computed of them stays in cache."""
        scores = self.blocks_of(self.scores)
        taus = itertools.repeat(self.tau)
        if isinstance(self.tau, Tensor):
            taus = self.blocks_of(self.tau.expand(*self.scores.shape[:-1], 1))
        for part, tau in zip(scores, taus, strict=False):
            yield replace(self, scores=part, tau=tau)

    def blocks_of(self, values: Tensor) -> tuple[Tensor, ...]:
        """Anything with these rows in the same blocks."""
        rows = math.prod(self.scores.shape[:-1])
        together = max(1, BLOCK // max(1, self.n)) if values.device.type == "cpu" else max(1, rows)
        return values.reshape(rows, values.shape[-1]).split(together)


class _AtOnce:
    """What one call of the native library says of rows that it reads, n > 0."""

    def __init__(self, rows: GapsOfRows, summary: Tensor) -> None:
        self.dtype, self.n, self.tau = rows.dtype, rows.n, rows.tau
        columns = summary.movedim(-1, 0).contiguous().unsqueeze(-1)  # each in one piece, for what is computed of them
        self.highest, self.count, self._at_maximum, *self._more = columns
        self.maximum = quotient(self.highest, self.tau)
        self.rounding = quotient_error(self.highest, self.tau)

    def ties(self) -> Tensor:
        return (self._at_maximum - 1).clamp_min(0)


class GapsAtOnce(_AtOnce):
    """Answers to these questions alone: the k smallest gaps, the usual near ones, and bins of this width up to this reach."""

    def __init__(self, rows: GapsOfRows, k: int, width: float, reach: float) -> None:
        self._asked = {"smallest": (k,), "near": (None,), "histogram": (width, reach)}
        bins = math.ceil(reach / width)
        summary, self._largest, self._counts = native.gaps(rows.scores, rows.tau, width=width, bins=bins, k=min(k, rows.n))
        super().__init__(rows, summary)
        self._sum, self._edge, self._near = self._more

    def mean(self) -> tuple[Tensor, Tensor]:
        return _mean(self._sum, self.count, self.n)

    def smallest(self, k: int) -> Tensor:
        self._check("smallest", k)
        return gaps_between(self.highest, self._largest, self.tau)

    def near(self, gap: float | None) -> tuple[Tensor, Tensor, Tensor]:
        self._check("near", gap)
        found = gaps_between(self.highest, self._edge, self.tau)
        return self._near, found, found

    def histogram(self, width: float, reach: float) -> Histogram:
        self._check("histogram", width, reach)
        return Histogram(self._counts, *_edges(width, self._counts.shape[-1] - 1, self._counts.device))

    def _check(self, question: str, *about: float | None) -> None:
        if about != self._asked[question]:
            raise ValueError(f"{question}: asked of {about}, and these rows were read for {self._asked[question]}; ask GapsOfRows")


class KeptAtOnce(_AtOnce):
    """How many gaps are within reach, and Σ exp(−δ) of those but for the ones of M."""

    def __init__(self, rows: GapsOfRows, reach: float) -> None:
        super().__init__(rows, native.kept(rows.scores, rows.tau, reach))
        self.number, self.rest = self._more


def usual(count: Tensor) -> Tensor:
    """The gap beyond which so many scores weigh no more than one."""
    return count.clamp_min(1).log()


def with_nothing_beyond(furthest: Tensor) -> Tensor:
    """The furthest gap of each bin, with a last one for everything beyond."""
    return torch.cat((furthest, furthest.new_full((1,), math.inf)))


def _mean(everything: Tensor, count: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """(the mean, its error) of gaps from their sum."""
    mean = everything / count.clamp_min(1)
    return mean, 4 * UNIT * (n + 16) * mean


def _edges(width: float, bins: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(the nearest gap of each bin, the furthest)."""
    nearest = width * torch.arange(bins + 1, dtype=torch.float64, device=device)
    return nearest, with_nothing_beyond(nearest[1:])


def read_rows(name: str, x: Any, dim: int, temperature: Any, where: Any) -> GapsOfRows:
    """The gaps of x/τ along `dim`, everything validated."""
    scores = check_scores(name, as_floating(name, x).detach())
    dim, rows, tau, mask = rows_last(name, scores, dim, temperature, where)
    rows = rows if mask is None else rows.masked_fill(~mask, -math.inf)
    tau = tau.detach().double() if isinstance(tau, Tensor) else tau
    return GapsOfRows(x, rows.movedim(-1, dim).shape, dim, scores.dtype, rows, tau)


def quotient(x: Tensor, tau: Tensor | float) -> Tensor:
    """x/τ, at most the largest number where x is finite."""
    if not isinstance(tau, Tensor) and tau == 1.0:
        return x
    return torch.where(x.isfinite(), (x / tau).clamp(-LARGEST, LARGEST), x)


def quotient_error(x: Tensor, tau: Tensor | float) -> Tensor | float:
    if not isinstance(tau, Tensor) and tau == 1.0:
        return 0.0
    exact = (x == 0) | (tau == 1.0)
    return torch.where(exact, 0.0, (2 * UNIT * quotient(x, tau).abs()).clamp_min(SUBNORMAL))


def gaps_between(top: Any, x: Any, tau: Any) -> Any:
    """(top − x)/τ of numbers, arrays or tensors, ±∞ only where that is beyond float64.

    A difference may overflow where its quotient does not, for τ > 1. All are therefore taken in units of a power of 2 that is about
    τ, which takes less than 10⁻³²³ from a gap.
    """
    if not isinstance(tau, Tensor) and tau <= 1.0:
        gaps = top - x
        return gaps if tau == 1.0 else gaps / tau
    if isinstance(tau, Tensor):
        power = torch.ldexp(torch.ones_like(tau), (1 - torch.frexp(tau).exponent).clamp(-1022, 0))
    else:
        power = 2.0 ** max(1 - math.frexp(tau)[1], -1022)
    gaps = x * -power
    gaps += top * power
    gaps /= tau * power
    return gaps


def _how_many(chosen: Tensor) -> Tensor:
    """How many of each row are True [..., 1], in double."""
    few = chosen.shape[-1] < 2**31  # sums of bools as int64 take 16 times as long
    return chosen.sum(-1, keepdim=True, dtype=torch.int32 if few else torch.int64).double()


def most(values: Tensor) -> Tensor:
    """The largest [..., 1], −∞ of nothing."""
    return values.amax(-1, keepdim=True) if values.shape[-1] else values.new_full((*values.shape[:-1], 1), -math.inf)


def least(values: Tensor) -> Tensor:
    """The smallest [..., 1], +∞ of nothing."""
    return -most(-values)


def ends(gaps: Maximum, lower: Tensor, upper: Tensor, below: Tensor | float, above: Tensor | float) -> tuple[Tensor, Tensor]:
    """M + lower and M + upper, [...] in the dtype of the scores, each outside by its error and by that of this sum."""
    exact = gaps.maximum.isfinite()
    results = []
    for part, error, away in ((lower, below, -1.0), (upper, above, 1.0)):
        total = gaps.maximum + part
        log_and_sum = part.abs().mul_(4 * UNIT).add_(total.abs(), alpha=2 * UNIT).add_(4 * SUBNORMAL)
        error = log_and_sum.masked_fill_(part == 0, 0.0).add_(error).add_(gaps.rounding)
        end = torch.where(error > 0, _next(total + away * error, away), total)
        results.append(_outward(torch.where(exact, end, gaps.maximum), gaps.dtype, away).squeeze(-1))
    return results[0], results[1]


def _next(value: Tensor, away: float) -> Tensor:
    refuse_export("an interval", "nextafter, which rounds its ends outward")
    return torch.nextafter(value, value.new_full((), away * math.inf))


def _outward(value: Tensor, dtype: torch.dtype, away: float) -> Tensor:
    """value in `dtype`, rounded towards away · ∞."""
    rounded = value.to(dtype)
    inside = rounded.double() < value if away > 0 else rounded.double() > value
    return torch.where(inside, _next(rounded, away), rounded)
