"""Whether a pair differs from softmax, and which to take.

A difference is taken fold by fold, for both pairs were trained and tested on the same rows. The folds' training rows overlap, so
that their differences d_1 … d_J are not independent, and the variance of their mean is not s²/J. It is taken as

    max((1/J + n_test/n_train) s², v/n),

the first by Nadeau and Bengio, "Inference for the Generalization Error" (Machine Learning 52, 2003), which tests learners rather
than two trained networks, and which Bouckaert and Frank (PAKDD 2004) take for repeated folds; the second, with v the variance of
the difference over the table's n rows, keeps few folds that happen to agree from counting as certainty. The interval is
mean ± t √variance, t of J − 1 degrees of freedom at level 1 − 5 %/(number of pairs that are compared): Bonferroni's correction, so
that in one metric all the intervals hold at once with about 95 %, and the best of many pairs is not taken for what luck made of it.
A pair differs where its interval leaves out 0. No estimate of that variance is without bias (Bengio and Grandvalet, JMLR 5, 2004):
how often the rule is wrong is measured, by `make confirmation`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, median, variance
from typing import Protocol, TypeVar

from scipy.stats import t as student

from softmaxima.experiments.measures import METRICS, Metric, Result
from softmaxima.integrations.pairs import Pair

LEVEL = 0.05  # the chance that any interval of a family misses
ACCURACY_GIVEN_UP = 0.01  # for a shorter time: no more than a point


@dataclass(frozen=True)
class Difference:
    """How much better one is than another, a mean and an interval that holds together with those of the other pairs."""

    mean: float
    low: float
    high: float

    @property
    def better(self) -> bool:
        return self.low > 0

    @property
    def worse(self) -> bool:
        return self.high < 0

    def beyond(self, least: float) -> bool:
        """Whether all of the interval is further from 0 than that, on either side."""
        return self.low > least or self.high < -least


def difference(result: Result, reference: Result, metric: Metric, folds: int, comparisons: int) -> Difference:
    """The gain of a result over a reference of the same folds, of which so many (`folds`) make up the table each time."""
    gains = [
        metric.gain(getattr(fold, metric.attribute), getattr(other, metric.attribute))
        for fold, other in zip(result.folds, reference.folds, strict=True)
    ]
    if not all(map(math.isfinite, gains)):
        return interval_of(gains, math.nan, comparisons)
    spread = (1 / len(gains) + 1 / (folds - 1)) * spread_of(gains)
    squares = [fold.squares.get(reference.name, {}).get(metric.name) for fold in result.folds]
    if None not in squares:
        rows = sum(counts.rows for counts in result.classes) * min(1.0, folds / len(gains))  # of the table: repeats hold the same
        spread = max(spread, (fmean(squares) - fmean(gains) ** 2) / rows)  # type: ignore[type-var]
    return interval_of(gains, spread, comparisons)


def interval_of(gains: Sequence[float], spread: float, comparisons: int) -> Difference:
    """Of paired gains with that variance of their mean, one of so many that are compared.

    One gain tells nothing of their spread: its interval is infinite. A gain that is not a number makes all so.
    """
    if not all(map(math.isfinite, gains)):
        return Difference(math.nan, -math.inf, math.inf)
    mean = fmean(gains)
    if len(gains) < 2:
        return Difference(mean, -math.inf, math.inf)
    reach = _quantile(comparisons, len(gains) - 1) * math.sqrt(max(spread, 0.0))
    return Difference(mean, mean - reach, mean + reach)


def spread_of(gains: Sequence[float]) -> float:
    """The variance of gains; of a single one, which does not show it, 0."""
    return variance(gains) if len(gains) > 1 else 0.0


@cache
def _quantile(comparisons: int, freedom: int) -> float:
    return float(student.isf(LEVEL / 2 / comparisons, freedom))


@dataclass(frozen=True)
class Recommendation:
    """The pair to take and why, or None where the table gives no reason to take any."""

    metric: Metric
    pair: Pair | None
    headline: str
    reason: str


def recommend(softmax: Result, baseline: Result, others: Sequence[Result], metric: Metric, folds: int) -> Recommendation:
    """What the differences allow to say.

    Nothing is recommended where no pair is better than the baseline, which has not read the features. Softmax stays unless
    another pair is better than both. For time, a pair must also be within a point of accuracy of softmax, for certain.
    """
    if len(softmax.folds) < 2:
        return Recommendation(metric, None, "Too few folds to tell", "What is chance shows in several folds, and one is done.")
    # Frequencies are calibrated, and fast, without having learnt anything, and guesses at random have a better macro F1 than they.
    unlearnt = metric.name in ("calibration", "macro-f1", "cost")
    judged = [METRICS["accuracy"], METRICS["brier"]] if unlearnt else [metric]
    tries = len(judged) * (1 + len(others))
    learnt = [r for r in (softmax, *others) if any(difference(r, baseline, by, folds, tries).better for by in judged)]
    if not learnt:
        by = " or ".join(by.words for by in judged)
        reached = listed([_value(baseline, by) for by in judged])
        return Recommendation(
            metric,
            None,
            "Nothing to choose",
            f"No pair is shown to have a better {by} than {baseline.name} ({reached}), which ignore the features: these do not "
            "tell the target, or there are too few rows or folds to see that they do.",
        )
    if metric.name == "cost":
        return _fastest(softmax, [r for r in others if r in learnt], others, folds)
    proven = [r for r in others if r in learnt or difference(r, baseline, metric, folds, tries).better]
    return _best(softmax, proven, others, metric, folds)


def _best(softmax: Result, proven: Sequence[Result], others: Sequence[Result], metric: Metric, folds: int) -> Recommendation:
    found = {r.name: difference(r, softmax, metric, folds, len(others)) for r in others}
    taken, reason = best_of(softmax, proven, found, metric, WORDS)
    if taken is None:
        return Recommendation(metric, softmax.pair, STAY, reason)
    lost = _lost(taken, softmax, metric, folds, len(others))
    return Recommendation(metric, taken.pair, f"Take {taken.name}", reason + lost)


class Named(Protocol):
    """What is compared: it has a name, and the metric's attribute."""

    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=Named)


@dataclass(frozen=True)
class Words:
    """What is compared, on what, and what was repeated."""

    one: str
    many: str
    place: str
    repeats: str


WORDS = Words("pair", "pairs", "on this table", "these folds")
STAY = "Stay with softmax"


def best_of(softmax: N, proven: Sequence[N], gains: Mapping[str, Difference], metric: Metric, words: Words) -> tuple[N | None, str]:
    """(the one of `proven` that is better than softmax by the most, None where nothing is; why), given all gains over softmax."""
    better = [r for r in proven if gains[r.name].better]
    if not better:
        return None, _stay(softmax, gains, metric, words)
    taken = max(better, key=lambda r: gains[r.name].mean)
    gain = gains[taken.name]
    reason = (
        f"Its {metric.words} is {_value(taken, metric)}, that of softmax {_value(softmax, metric)}: better by "
        f"{interval(gain, metric)}."
    )
    if ahead := [r for r in proven if r not in better and gains[r.name].mean > gain.mean]:
        reason += f" Of {listed([r.name for r in ahead])} the mean is better still, and too uncertain to tell from that of softmax."
    if len(better) > 1:
        shown = "is" if len(better) == 2 else "are"
        rest = ", ".join(r.name for r in better if r is not taken)
        reason += f" {len(better) - 1} more {shown} shown to be better than softmax: {rest}."
    return taken, reason


def _fastest(softmax: Result, proven: Sequence[Result], others: Sequence[Result], folds: int) -> Recommendation:
    metric, accuracy = METRICS["cost"], METRICS["accuracy"]
    found = {r.name: difference(r, softmax, metric, folds, len(others)) for r in others}
    cheaper = [
        r
        for r in proven
        if found[r.name].low > metric.least_gain and difference(r, softmax, accuracy, folds, len(others)).low > -ACCURACY_GIVEN_UP
    ]
    if not cheaper:
        why = _stay(softmax, found, metric, WORDS, " by 5 % or more, and as accurate to a point")
        return Recommendation(metric, softmax.pair, STAY, why)
    taken = max(cheaper, key=lambda r: found[r.name].mean)
    reason = (
        f"A step of training takes {_value(taken, metric)}, that of softmax {_value(softmax, metric)}, and its accuracy is within "
        f"a point of that of softmax, {_value(softmax, accuracy)}, or above."
    )
    return Recommendation(metric, taken.pair, f"Take {taken.name}", reason + _lost(taken, softmax, metric, folds, len(others)))


def _stay(softmax: Named, found: Mapping[str, Difference], metric: Metric, words: Words, besides: str = "") -> str:
    if not found:
        return f"It is the only {words.one} that was trained; its {metric.words} is {_value(softmax, metric)}."
    counted = f"The other {words.one} is not" if len(found) == 1 else f"None of the {len(found)} other {words.many} is"
    reason = (
        f"{counted} shown to be better than softmax in {metric.words}{besides} {words.place}, where that of softmax is "
        f"{_value(softmax, metric)}."
    )
    if any(gain.mean > 0 for gain in found.values()):
        reason += " What looks better may be chance"
        reach = median(gain.high - gain.mean for gain in found.values())
        size = f"{metric.show_gain(reach).lstrip('+')}{metric.gain_unit}"
        half = f": of half of the {words.many}, {words.repeats} would not show a gain below {size}."
        reason += half if math.isfinite(reach) else "."
    return reason


def _lost(taken: Result, softmax: Result, metric: Metric, folds: int, comparisons: int) -> str:
    """What the pair is worse at than softmax, by more than is worth a word."""
    lost = [
        f"{other.words} ({_value(taken, other)} for {_value(softmax, other)})"
        for other in METRICS.values()
        if other is not metric
        and (by := difference(taken, softmax, other, folds, comparisons)).worse
        and by.beyond(other.least_gain)
    ]
    return f" It is worse than softmax in {listed(lost)}." if lost else ""


def listed(words: Sequence[str]) -> str:
    """Words as a sentence lists them: a, b and c."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def interval(gain: Difference, metric: Metric) -> str:
    """How much better it is, or worse where it is that, with the ends of the interval; with signs, + for better, where neither."""
    if not math.isfinite(gain.low):
        return f"{metric.show_gain(gain.mean)} (± ∞)"
    ends = (gain.high, gain.low) if gain.worse else (gain.low, gain.high)
    mean, least, most = (metric.show_gain(value) for value in (gain.mean, *ends))
    if gain.better or gain.worse:
        mean, least, most = (value.lstrip("+−") for value in (mean, least, most))
    return f"{mean}{metric.gain_unit} ({least} to {most})"


def _value(result: Named, metric: Metric) -> str:
    return metric.show(getattr(result, metric.attribute))
