r"""Bounds of logsumexp for scores that come in blocks: what bounds may ask of the gaps (`_gaps.py`), in constant memory.

Scores are counted in bins of width w, #{i : b w ≤ x_i/τ < (b+1) w}, from that of the maximum down, so that a higher maximum moves
the counts to other places and not to other bins. x/τ is rounded by as much as M/τ is, or by 2u of the gap. The mean is that of gaps
to the maximum R of the first block, which keep their digits far from zero; the gap to M is less by (R − M)/τ ≤ 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from softmaxima.base.arguments import Array, as_floating, as_tensor, check_scores
from softmaxima.base.numbers import check_choice, check_one_temperature
from softmaxima.base.public import public
from softmaxima.lse.bounds._gaps import UNIT, Histogram, ends, gaps_between, quotient, quotient_error, usual, with_nothing_beyond
from softmaxima.lse.bounds.intervals import BOUNDS, Interval

WIDTH = 0.05  # nats a bin; histogram_bounds has the same by default
BINS = 1024  # 51 nats: beyond, 10²⁰ scores weigh nothing
FURTHEST = 1e300  # scores over τ that are further from 0 are in the bin of this
LARGEST = 8  # scores that are kept, as many as gap_bounds takes by default


@public
@dataclass(frozen=True, eq=False)
class ScoreSummary:
    """What the bounds basic, mean, gap, adaptive and histogram need to know of scores seen so far; a few kilobytes.

    A summary is never changed: `update` returns a new one. It is of one row, over any number of blocks, and does not depend on
    where they are cut. It tells between which numbers `LogSumExpState`, `file_logsumexp` or any other sum of them must lie.

    Attributes:
        temperature: τ > 0; the intervals are those of x/τ.
        n: how many scores were seen, those of −∞ included.

    Raises ValueError for another temperature.

    >>> import numpy as np, softmaxima as sm
    >>> summary = sm.ScoreSummary()
    >>> for block in np.split(np.log(np.arange(1.0, 1001.0)), 10):
    ...     summary = summary.update(block)
    >>> interval = summary.bounds()
    >>> bool(interval.lower < np.log(500500.0) < interval.upper), interval.upper_from
    (True, 'histogram')
    """

    temperature: float = 1.0
    n: int = 0
    _finite: int = 0  # how many are not −∞
    _reference: float = -math.inf  # x, not x/τ, as all that follow
    _largest: np.ndarray = field(default_factory=lambda: np.empty(0))  # in descending order
    _at_maximum: int = 0
    _mean: float = 0.0  # of (R − x)/τ; not finite where one is beyond float64
    _top: float = -math.inf  # the bin of the maximum
    _counts: np.ndarray = field(default_factory=lambda: np.zeros(BINS + 1, np.int64))  # from bin _top down; the last is all below

    def __post_init__(self) -> None:
        check_one_temperature("ScoreSummary", self.temperature)

    def update(self, x: Array, counts: Array | None = None) -> ScoreSummary:
        """The summary with more scores, of any shape; integers are taken as float64.

        counts: how often each score occurs, integers ≥ 0 of the shape of x; once each without it.

        Raises TypeError for anything but real scores and integer counts, ValueError for counts of another shape or below 0. Cost:
        some ten passes over x.

        >>> import numpy as np, softmaxima as sm
        >>> sm.ScoreSummary().update(np.zeros((2, 3))).interval("basic").upper.round(6)
        np.float64(1.791759)
        """
        scores = check_scores("ScoreSummary.update", as_floating("ScoreSummary.update", x, torch.float64))
        block = scores.detach().double().cpu().numpy().ravel()
        often = np.ones((), np.int64) if counts is None else _checked_counts(counts, scores)
        each = np.broadcast_to(often, block.shape)
        seen = replace(self, n=self.n + int(each.sum()))
        some = (block != -math.inf) & (each > 0)
        block, each = block[some], each[some]
        if not block.size:
            return seen
        highest = float(block.max())
        if not math.isfinite(highest) or (self._finite and not math.isfinite(self._maximum)):
            return replace(seen, _finite=self._finite + int(each.sum()), _largest=np.array([np.maximum(self._maximum, highest)]))
        return seen._with(block, each, highest)

    def _with(self, block: np.ndarray, each: np.ndarray, highest: float) -> ScoreSummary:
        """The summary with finite scores, each of which occurs so often."""
        reference = self._reference if self._finite else highest
        size = int(each.sum())
        finite = self._finite + size
        maximum = max(self._maximum, highest)
        at_maximum = (self._at_maximum if self._maximum == maximum else 0) + int(each[block == maximum].sum())
        some = np.argpartition(block, -LARGEST)[-LARGEST:] if block.size > LARGEST else slice(None)
        largest = np.sort(np.concatenate([self._largest, np.repeat(block[some], np.minimum(each[some], LARGEST))]))
        with np.errstate(over="ignore", invalid="ignore"):
            gap = float((gaps_between(reference, block, self.temperature) * each).sum() / size)
            mean = self._mean + (gap - self._mean) * (size / finite)
        bins = _bins(block, self.temperature)
        top = max(float(bins.max()), self._top)
        counts = np.zeros(BINS + 1, np.int64)
        np.add.at(counts, np.minimum(top - bins, BINS).astype(np.int64), each)
        moved = int(min(top - self._top, BINS))
        counts[moved:BINS] += self._counts[: BINS - moved]
        counts[BINS] += self._counts[BINS - moved :].sum()
        return replace(
            self,
            _finite=finite,
            _reference=reference,
            _largest=largest[::-1][:LARGEST],
            _at_maximum=at_maximum,
            _mean=mean,
            _top=top,
            _counts=counts,
        )

    def interval(self, bound: str) -> Interval:
        """The interval of one bound: "basic", "mean", "gap", "adaptive" or "histogram". Raises ValueError for another name.

        >>> import numpy as np, softmaxima as sm
        >>> sm.ScoreSummary().update(np.array([1.0, 2.0, 3.0])).interval("mean").lower.round(6)
        np.float64(3.098612)
        """
        check_choice("ScoreSummary.interval", "bound", bound, tuple(BOUNDS))
        lower, upper = ends(_Summarised(self), *BOUNDS[bound](_Summarised(self)))
        return Interval(lower.numpy()[()], upper.numpy()[()], bound, bound)

    def bounds(self) -> Interval:
        """The tightest interval of all of them, with the names of those that gave its ends.

        >>> import numpy as np, softmaxima as sm
        >>> sm.ScoreSummary().bounds().upper
        np.float64(-inf)
        """
        found = {name: self.interval(name) for name in BOUNDS}
        lowest, highest = max(found, key=lambda name: found[name].lower), min(found, key=lambda name: found[name].upper)
        return Interval(found[lowest].lower, found[highest].upper, lowest, highest)

    def as_dict(self) -> dict[str, tuple[float, float]]:
        """The ends of every bound, and of the tightest of them, by name.

        >>> import numpy as np, softmaxima as sm
        >>> sm.ScoreSummary().update(np.array([0.0, -math.inf])).as_dict()["tightest"]
        (0.0, 0.0)
        """
        intervals = {bound: self.interval(bound) for bound in BOUNDS} | {"tightest": self.bounds()}
        return {name: (float(interval.lower), float(interval.upper)) for name, interval in intervals.items()}

    @property
    def _maximum(self) -> float:
        return float(self._largest[0]) if self._largest.size else -math.inf


class _Summarised:
    """A summary as `Gaps`."""

    dtype = torch.float64

    def __init__(self, summary: ScoreSummary) -> None:
        self._of = summary
        self.n = summary.n
        self.count = _number(summary._finite)
        highest = _number(summary._maximum)
        self.maximum = quotient(highest, summary.temperature)
        self.rounding = quotient_error(highest, summary.temperature)

    def ties(self) -> Tensor:
        return _number(max(self._of._at_maximum - 1, 0))

    def mean(self) -> tuple[Tensor, Tensor]:
        ahead = _number(gaps_between(self._of._reference, self._of._maximum, self._of.temperature))
        mean = (self._of._mean - ahead).clamp_min(0)
        return mean, 4 * UNIT * (self.n + 16) * (mean - ahead)

    def smallest(self, k: int) -> Tensor:
        return gaps_between(self._of._maximum, torch.from_numpy(self._of._largest[:k].copy()), self._of.temperature)

    def near(self, gap: float | None) -> tuple[Tensor, Tensor, Tensor]:
        delta = usual(self.count) if gap is None else gap
        nearest, furthest = self._edges()
        last = min(int(torch.searchsorted(furthest, delta)), BINS - 1)
        return _number(int(self._of._counts[: last + 1].sum())), furthest[last : last + 1], nearest[last + 1 : last + 2]

    def histogram(self, width: float, reach: float) -> Histogram:
        counts = torch.from_numpy(self._of._counts).double()
        counts[0] -= self._of._at_maximum
        return Histogram(counts, *self._edges())

    def _edges(self) -> tuple[Tensor, Tensor]:
        """(the nearest gap of each bin, the furthest)."""
        maximum = self.maximum.clamp(-FURTHEST, FURTHEST)
        above = (maximum - WIDTH * self._of._top).clamp(0, WIDTH)  # the lower edge of its bin
        edges = above + WIDTH * torch.arange(-1, BINS, dtype=torch.float64, device="cpu")
        rounding = 8 * UNIT * maximum.abs()
        return (edges - rounding).clamp_min(0), with_nothing_beyond(edges[1:] + rounding)


def _checked_counts(counts: Array, scores: Tensor) -> np.ndarray:
    name = "ScoreSummary.update"
    often = as_tensor(name, "counts", counts)
    if often.dtype not in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        raise TypeError(f"{name}: counts must be integers, got {often.dtype}; round them, or call .long()")
    if often.shape != scores.shape:
        raise ValueError(f"{name}: counts must be of the shape of x, {tuple(scores.shape)}, got {tuple(often.shape)}")
    if often.numel() and int(often.min()) < 0:
        raise ValueError(f"{name}: counts must be at least 0, got {int(often.min())}; leave out what is not there")
    return often.long().cpu().numpy().ravel()


def _bins(x: np.ndarray, tau: float) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.floor(np.clip(x / tau, -FURTHEST, FURTHEST) / WIDTH)


def _number(value: float) -> Tensor:
    return torch.tensor([value], dtype=torch.float64, device="cpu")
