"""Whether one that was trained differs from another, and what may be said of it: what `compare` and `compare-attention` share.

A difference is taken fold by fold, for both pairs were trained and tested on the same rows. The folds' training rows overlap, so
that their differences d_1 … d_J are not independent, and the variance of their mean is not s²/J. It is taken as

    max((1/J + n_test/n_train) s², v/n),

the first by Nadeau and Bengio, "Inference for the Generalization Error" (Machine Learning 52, 2003), which tests learners rather
than two trained networks, and which Bouckaert and Frank (PAKDD 2004) take for repeated folds; the second, with v the variance of
the difference over the table's n rows, keeps few folds that happen to agree from counting as certainty. The interval is
mean ± t √variance, t of J − 1 degrees of freedom at level 1 − 5 %/(number of pairs that are compared): Bonferroni's correction, so
that in one metric all the intervals hold at once with about 95 %, and the best of many pairs is not taken for what luck made of it.
A pair differs where its interval leaves out 0. A variance that is the sum of two, each known to other degrees of freedom, makes it
mean ± √(t₁² variance₁ + t₂² variance₂).

Where no row differs, both variances are 0, and an interval of 0 to 0 would claim that no row can. Of n rows of which none differs
the share that does may be as large as the upper end of Clopper and Pearson's interval for 0 of n,

    u = 1 − a^(1/n),    a = 5 %/(number of pairs),

about 3/n for a single pair. What is a mean over rows of numbers that are at most m apart (accuracy: 1, Brier score: 2, log loss:
13.8) can then be u m better or worse, which is the interval. Macro F1 and the calibration error have none, and are held to no such
claim: they are no means over rows, a few of which can be all of a rare class, so that u does not bound their difference. Both ends
follow from the one statement about u, so that a is not halved.

No estimate of that variance is without bias (Bengio and Grandvalet, JMLR 5, 2004):
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

LEVEL = 0.05  # the chance that any interval of a family misses
MOST_DECIMALS = 20  # that a difference is told with
STAY = "Stay with softmax"


@dataclass(frozen=True)
class Difference:
    """How much better one is than another, a mean and an interval that holds together with those of the other pairs."""

    mean: float
    low: float
    high: float
    same: bool = False  # nothing differs in any fold, so that the interval is what the number of rows leaves open

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
        return interval_of(gains, [], metric, comparisons)
    spread = (1 / len(gains) + 1 / (folds - 1)) * spread_of(gains)
    rows = rows_of(result, folds)
    squares = [fold.squares.get(reference.name, {}).get(metric.name) for fold in result.folds]
    if None not in squares:
        spread = max(spread, (fmean(squares) - fmean(gains) ** 2) / rows)  # type: ignore[type-var]
    return interval_of(gains, [Spread(spread, len(gains) - 1)], metric, comparisons, rows)


def rows_of(result: Result, folds: int) -> float:
    """How many rows of the table were held out: repeats hold the same ones out."""
    return sum(counts.rows for counts in result.classes) * min(1.0, folds / len(result.folds))


@dataclass(frozen=True)
class Spread:
    """A part of the variance of a mean, and how many degrees of freedom it is known to."""

    variance: float
    freedom: int


def interval_of(
    gains: Sequence[float], spreads: Sequence[Spread], metric: Metric, comparisons: int, rows: float = math.inf
) -> Difference:
    """Of paired gains on so many rows, whose mean has these variances together, one of so many that are compared.

    One gain tells nothing of their spread: its interval is infinite. A gain that is not a number makes all so. Another interval
    ends at the latest where the metric's differences do.
    """
    if not all(map(math.isfinite, gains)):
        return Difference(math.nan, -math.inf, math.inf)
    mean = fmean(gains)
    if len(gains) < 2:
        return Difference(mean, -math.inf, math.inf)
    same = not any(gains) and all(spread.variance <= 0 for spread in spreads)
    reach = math.hypot(*(_quantile(comparisons, spread.freedom) * math.sqrt(max(spread.variance, 0.0)) for spread in spreads))
    if same and metric.is_mean_of_rows:
        reach = metric.most_gain * unseen(rows, comparisons)
    return Difference(mean, max(mean - reach, -metric.most_gain), min(mean + reach, metric.most_gain), same)


def unseen(rows: float, comparisons: int) -> float:
    """The largest share of rows that may differ where none of so many did, one of so many that are compared.

    >>> round(300 * unseen(300, 1), 2)
    2.98
    """
    return -math.expm1(math.log(LEVEL / comparisons) / rows)


def spread_of(gains: Sequence[float]) -> float:
    """The variance of gains; of a single one, which does not show it, 0."""
    return variance(gains) if len(gains) > 1 else 0.0


@cache
def _quantile(comparisons: int, freedom: int) -> float:
    return float(student.isf(LEVEL / 2 / comparisons, freedom))


class Named(Protocol):
    """What is compared: it has a name, and the metric's attribute."""

    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=Named)


@dataclass(frozen=True)
class Words:
    """What is compared, on what, and how often."""

    one: str
    many: str
    place: str
    each: str


def best_of(softmax: N, proven: Sequence[N], gains: Mapping[str, Difference], metric: Metric, words: Words) -> tuple[N, str] | None:
    """(the one of `proven` that is better than softmax by the most, why), given all gains over softmax; None where nothing is."""
    # What is no mean over rows can be better in each fold and worse in all of them together, which is the value that is shown.
    better = [r for r in proven if gains[r.name].better and shown_gain(r, softmax, metric) > 0]
    if not better:
        return None
    taken = max(better, key=lambda r: gains[r.name].mean)
    gain = gains[taken.name]
    reason = (
        f"Its {metric.words} is {value_of(taken, metric)}, that of softmax {value_of(softmax, metric)}: {words.each} it is better "
        f"by {interval(gain, metric)}."
    )
    if ahead := [r for r in proven if r not in better and gains[r.name].mean > gain.mean]:
        reason += f" Of {listed([r.name for r in ahead])} the mean is better still, and too uncertain to tell from that of softmax."
    if len(better) > 1:
        shown = "is" if len(better) == 2 else "are"
        rest = ", ".join(r.name for r in better if r is not taken)
        reason += f" {len(better) - 1} more {shown} shown to be better than softmax: {rest}."
    return taken, reason


def shown_gain(result: Named, reference: Named, metric: Metric) -> float:
    return metric.gain(getattr(result, metric.attribute), getattr(reference, metric.attribute))


def stay(
    softmax: Named, gains: Mapping[str, Difference], metric: Metric, words: Words, seen: Sight | None, elsewhere: str = ""
) -> str:
    """That nothing is shown to be better than softmax, given all gains over it, and what could have been."""
    if not gains:
        return f"It is the only {words.one} that was trained; its {metric.words} is {value_of(softmax, metric)}."
    shown = f"be better than softmax in {metric.words} {words.place}, where that of softmax is {value_of(softmax, metric)}"
    return f"{none_of(len(gains), words)} shown to {shown}{elsewhere}." + (
        f" What looks better in {metric.words} may be chance: {seen.told}." if seen else ""
    )


def none_of(others: int, words: Words) -> str:
    if others == 1:
        return f"The other {words.one} is not"
    return f"Neither of the 2 other {words.many} is" if others == 2 else f"None of the {others} other {words.many} is"


def paces(found: Mapping[str, Difference]) -> str:
    """With which a step takes another time than with softmax, for certain and by more than is worth a word."""
    least = METRICS["cost"].least_gain
    told = [
        f"{how} with {listed(names)}"
        for how, sign in (("faster", 1), ("slower", -1))
        if (names := [name for name, by in found.items() if sign * by.mean > 0 and by.beyond(least)])
    ]
    limit = 100 * math.expm1(least)
    return f"By more than {limit:.0f} %, for certain, a step of training is {'; it is '.join(told)}." if told else ""


@dataclass(frozen=True)
class Sight:
    """The gain that half of those compared would have shown, and the largest that there can be."""

    gain: float
    possible: float
    told: str  # in words

    @property
    def is_blind(self) -> bool:
        return self.gain > self.possible


def sight(value: float, gains: Mapping[str, Difference], metric: Metric, words: Words) -> Sight | None:
    """What gains over a value could be seen; None where none looks better, or nothing is known of it."""
    reaches = [gain.high - gain.mean for gain in gains.values() if math.isfinite(gain.high) and not gain.same]
    if not reaches or not any(gain.mean > 0 for gain in gains.values()):
        return None
    reach, possible = median(reaches), metric.possible(value)
    size, most = (f"{metric.show_gain(gain).lstrip('+')}{metric.gain_unit}" for gain in (reach, possible))
    differ = "" if len(reaches) == len(gains) else f" that differ{'s' * (len(reaches) == 1)} from it"
    half = f"for half of the {len(reaches)} {words.many}{differ} " if differ else f"for half of the {words.many} "
    half = (f"for the one{differ} " if differ else "") if len(reaches) == 1 else half
    told = f"{half}the largest gain that is possible, {most}, would not have shown"
    return Sight(reach, possible, told if reach > possible else f"{half}only a gain above {size} would have shown")


def listed(words: Sequence[str], last: str = "and") -> str:
    """Words as a sentence lists them: a, b and c."""
    return f" {last} ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def interval(gain: Difference, metric: Metric) -> str:
    """How much better it is, or worse where it is that, with the ends of the interval; with signs, + for better, where neither."""
    ends = (gain.high, gain.low) if gain.worse else (gain.low, gain.high)
    mean, least, most = (metric.show_gain(value, decimals(gain, metric)) for value in (gain.mean, *ends))
    if metric.by_ratio:
        mean, least, most = (_faster(shown, metric.gain_unit) for shown in (mean, least, most))
        return f"{mean} ({least} to {most})" if math.isfinite(gain.low) else f"{mean} (± ∞)"
    if not math.isfinite(gain.low):
        return f"{mean} (± ∞)"
    if gain.better or gain.worse:
        mean, least, most = (value.lstrip("+−") for value in (mean, least, most))
    return f"{mean}{metric.gain_unit} ({least} to {most})"


def decimals(gain: Difference, metric: Metric) -> int:
    """As many as the metric has, and of what is better or worse as many as show that its interval leaves out 0."""
    if not (gain.better or gain.worse) or not math.isfinite(gain.low + gain.high):
        return metric.decimals
    near = metric.in_unit(gain.low if gain.better else gain.high)
    mean, half = abs(metric.in_unit(gain.mean)), metric.scale * (gain.high - gain.mean)

    def leaves_out_0(digits: int) -> bool:
        return round(near, digits) != 0 and (metric.by_ratio or round(mean, digits) > round(half, digits))

    return next(filter(leaves_out_0, range(metric.decimals, MOST_DECIMALS)), MOST_DECIMALS)


def _faster(shown: str, unit: str) -> str:
    """Per cent with a sign in words."""
    return f"{shown.lstrip('+−')}{unit} {'slower' if shown.startswith('−') else 'faster'}"


def value_of(result: Named, metric: Metric) -> str:
    return metric.show(getattr(result, metric.attribute))
