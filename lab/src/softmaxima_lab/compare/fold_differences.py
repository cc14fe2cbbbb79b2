"""How much better one pair is than another that was trained and tested on the same folds.

The folds' training rows overlap, so that their differences d_1 … d_J are not independent, and the variance of their mean is not
s²/J. It is taken as

    max((1/J + n_test/n_train) s², v/n),

the first by Nadeau and Bengio, "Inference for the Generalization Error" (Machine Learning 52, 2003), which tests learners rather
than two trained networks, and which Bouckaert and Frank (PAKDD 2004) take for repeated folds; the second, with v the variance of
the difference over the table's n rows, keeps few folds that happen to agree from counting as certainty. v is known of differences
to softmax and to the baseline, whatever their direction, and of probabilities; the variance of other differences, and of times, is
the first alone. t has J − 1 degrees of freedom.

No estimate of that variance is without bias (Bengio and Grandvalet, JMLR 5, 2004): how often the rule is wrong is measured, by
`softmaxima docs confirmation --run`.
"""

from __future__ import annotations

import math
from statistics import fmean

from softmaxima_lab.compare.differences import Difference, Spread, interval_of, spread_of
from softmaxima_lab.compare.measures import Metric, Result


def difference(result: Result, reference: Result, metric: Metric, folds: int, comparisons: int) -> Difference:
    """The gain of a result over a reference of the same folds, of which so many (`folds`) make up the table each time."""
    pairs = list(zip(result.folds, reference.folds, strict=True))
    gains = [metric.gain(getattr(fold, metric.attribute), getattr(other, metric.attribute)) for fold, other in pairs]
    if not all(map(math.isfinite, gains)):
        return interval_of(gains, [], metric, comparisons)
    spread = (1 / len(gains) + 1 / (folds - 1)) * spread_of(gains)
    rows = rows_of(result, folds)
    apart = [fold.squares.get(reference.name) or other.squares.get(result.name, {}) for fold, other in pairs]
    squares = [own[metric.name] for own in apart if metric.name in own]
    known = len(squares) == len(pairs)
    if known:
        spread = max(spread, (fmean(squares) - fmean(gains) ** 2) / rows)
    return interval_of(
        gains, [Spread(spread, len(gains) - 1)], metric, comparisons, rows, same=known and not any((*squares, *gains))
    )


def rows_of(result: Result, folds: int) -> float:
    """How many rows of the table were held out: repeats hold the same ones out."""
    return sum(counts.rows for counts in result.classes) * min(1.0, folds / len(result.folds))
