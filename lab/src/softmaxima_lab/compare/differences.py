"""Whether one that was trained differs from another: the statistics that all comparisons share.

A difference is a mean of paired gains, of folds or of seeds, with an interval mean ± t √variance, t at level
1 − 5 %/(number of pairs that are compared): Bonferroni's correction, so that in one metric all the intervals hold at once with
about 95 %, and the best of many pairs is not taken for what luck made of it. A pair differs where its interval leaves out 0. A
variance that is the sum of two, each known to other degrees of freedom, makes it mean ± √(t₁² variance₁ + t₂² variance₂).

Where no row differs there is no variance, and an interval of 0 to 0 would claim that no row can. Of n rows of which none differs
the share that does may be as large as the upper end of Clopper and Pearson's interval for 0 of n,

    u = 1 − a^(1/n),    a = 5 %/(number of pairs),

about 3/n for a single pair. What is a mean over rows of numbers that are at most m apart (accuracy: 1, Brier score: 2, log loss:
13.8) can then be u m better or worse, which is the interval; both ends follow from the one statement about u, so that a is not
halved. Macro F1 and the calibration error are no means over rows, a few of which can be all of a rare class, so that u does not
bound their difference: nothing is claimed, and the interval is all that they can differ by. Where rows that are seen are few, but
some, the same bound of their share says which other means are as possible, and an interval may be `widened` to hold them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean, variance

import numpy as np
from scipy.stats import beta
from scipy.stats import t as student

from softmaxima_lab.compare.measures import Metric

LEVEL = 0.05  # the chance that any interval of a family misses
BATCHES = 16  # at most, of held-out rows that follow one another, whose means count as independent
BATCH_ROWS = 16  # at least, where there are enough for two


@dataclass(frozen=True)
class Difference:
    """How much better one is than another, a mean and an interval that holds together with those of the other pairs."""

    mean: float
    low: float
    high: float
    reach: float = math.inf  # from the mean to either end, were it not for where the metric's differences end
    same: bool = False  # nothing differs in any row, so that the interval is what the number of rows leaves open

    @property
    def better(self) -> bool:
        return self.low > 0

    @property
    def worse(self) -> bool:
        return self.high < 0

    def beyond(self, least: float) -> bool:
        """Whether all of the interval is further from 0 than that, on either side."""
        return self.low > least or self.high < -least


@dataclass(frozen=True)
class Spread:
    """A part of the variance of a mean, and how many degrees of freedom it is known to."""

    variance: float
    freedom: int


def interval_of(
    gains: Sequence[float],
    spreads: Sequence[Spread],
    metric: Metric,
    comparisons: int,
    rows: float = math.inf,
    same: bool = False,
) -> Difference:
    """Of paired gains on so many rows, whose mean has these variances together, one of so many that are compared.

    `same` says that nothing differs in any row. One gain tells nothing of their spread: its interval is infinite. A gain that is
    not a number makes all so. Another interval ends at the latest where the metric's differences do.
    """
    if not all(map(math.isfinite, gains)):
        return Difference(math.nan, -math.inf, math.inf)
    mean, most = fmean(gains), metric.most_gain
    if len(gains) < 2:
        return Difference(mean, -math.inf, math.inf)
    if same:
        reach = most * (unseen(rows, comparisons) if metric.is_mean_of_rows else 1)
    else:
        reach = math.hypot(*(_quantile(comparisons, spread.freedom) * math.sqrt(max(spread.variance, 0.0)) for spread in spreads))
    return Difference(mean, max(mean - reach, -most), min(mean + reach, most), reach, same)


def unseen(rows: float, comparisons: int, seen: int = 0) -> float:
    """The largest share of rows that may differ where so many have been `seen` to, one of so many that are compared.

    >>> round(300 * unseen(300, 1), 2)
    2.98
    """
    return float(beta.isf(LEVEL / max(1, comparisons), seen + 1, rows - seen)) if seen < rows else 1.0


def widened(found: Difference, mean: float, metric: Metric) -> Difference:
    """Its interval, so far that it holds another mean that is as possible."""
    low, high = max(min(found.low, mean), -metric.most_gain), min(max(found.high, mean), metric.most_gain)
    return replace(found, low=low, high=high, reach=max(found.reach, found.mean - mean))


def share_interval(hits: float, rows: float, z: float = 1.96) -> tuple[float, float]:
    """The ends of Wilson's interval of a share, at 95 %; Wilson (1927).

    >>> [round(end, 4) for end in share_interval(9, 10)]
    [0.5958, 0.9821]
    """
    share, more = hits / rows, z * z / rows
    middle, half = (share + more / 2) / (1 + more), z / (1 + more) * math.sqrt((share * (1 - share) + more / 4) / rows)
    return min(middle - half, share), max(middle + half, share)


def spread_of(gains: Sequence[float]) -> float:
    """The variance of gains; of a single one, which does not show it, 0."""
    return variance(gains) if len(gains) > 1 else 0.0


def of_mean(gains: Sequence[float]) -> Spread:
    """The variance of the mean of gains that are independent."""
    return Spread(spread_of(gains) / len(gains), len(gains) - 1)


def means_of_batches(rows: Sequence[float]) -> tuple[float, ...]:
    """The means of rows that follow one another, two batches at least."""
    count = max(2, min(BATCHES, len(rows) // BATCH_ROWS))
    return tuple(float(batch.mean()) for batch in np.array_split(np.asarray(rows, float), count))


@cache
def _quantile(comparisons: int, freedom: int) -> float:
    return float(student.isf(LEVEL / 2 / max(1, comparisons), freedom))
