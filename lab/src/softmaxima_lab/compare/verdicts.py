"""What may be said of differences in words: what all comparisons share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from statistics import median
from typing import Generic, Protocol, TypeVar

from softmaxima_lab.compare.differences import Difference
from softmaxima_lab.compare.measures import METRICS, Metric
from softmaxima_lab.wording import listed

MOST_DECIMALS = 20  # that a difference is told with
STAY = "Stay with softmax"


class Named(Protocol):
    """What is compared: it has a name, and the metric's attribute."""

    @property
    def name(self) -> str: ...


class Trained(Named, Protocol):
    """What was trained with several seeds, some of which may have come to no numbers."""

    @property
    def runs(self) -> Sized: ...
    @property
    def diverged(self) -> Sized: ...


N = TypeVar("N", bound=Named)
T = TypeVar("T", bound=Trained)


@dataclass(frozen=True)
class Words:
    """What is compared, on what, and how often."""

    one: str
    many: str
    place: str
    each: str


@dataclass(frozen=True)
class Bar(Generic[T]):
    """What one must be better than to have learnt anything, and what follows where nothing is."""

    result: T
    why: str


def recommend(
    softmax: T,
    others: Sequence[T],
    bars: Sequence[Bar[T]],
    over: Mapping[str, Mapping[str, Difference]],
    gains: Mapping[str, Difference],
    metric: Metric,
    words: Words,
) -> tuple[T | None, str, str]:
    """(what to take, in words, why). Nothing where none has learnt anything, softmax unless another is better.

    `over` has of each, softmax too, how much better it is than each bar, `gains` of the others how much better than softmax.
    """
    if softmax.diverged:
        told = f"With {len(softmax.diverged)} of {len(softmax.runs)} seeds it came to no numbers"
        return (
            None,
            "Softmax diverged",
            f"{told}, so that nothing can be compared with it: other seeds or fewer steps may train it.",
        )
    if len(softmax.runs) < 2:
        return None, "Too few seeds to tell", "What is chance shows in several seeds, and one is done."
    for bar in bars:
        above = {name: found[bar.result.name] for name, found in over.items()}
        if any(gain.better for gain in above.values()):
            continue
        shown = f"No {words.one} is shown to have a better {metric.words} than {bar.result.name} ({value_of(bar.result, metric)})"
        seen = sight(getattr(bar.result, metric.attribute), above, metric, words)
        if seen is not None and seen.is_blind:
            return None, "Too few seeds to tell", f"{shown}, and {seen.told}: more seeds or steps may tell."
        return None, "Nothing to choose", f"{shown}, which {bar.why}"
    learnt = [result for result in (softmax, *others) if all(gain.better for gain in over[result.name].values())]
    proven = [result for result in others if result in learnt]
    if best := best_of(softmax, proven, gains, metric, words):
        taken, reason = best
        return taken, f"Take {taken.name}", reason
    if softmax not in learnt:
        unbeaten = listed([name for name, gain in over[softmax.name].items() if not gain.better])
        told = f"Softmax is not shown to be better than {unbeaten}, and no other {words.one} to be better than softmax"
        return None, "Too few seeds to tell", f"{told}: more seeds or steps may tell."
    value = getattr(softmax, metric.attribute)
    return softmax, STAY, stay(softmax, len(others), metric, words, sight(value, gains, metric, words))


def best_of(softmax: N, proven: Sequence[N], gains: Mapping[str, Difference], metric: Metric, words: Words) -> tuple[N, str] | None:
    """(the one of `proven` that is better than softmax by the most, why), given all gains over softmax; None where nothing is."""
    # What is no mean over rows can be better in each fold and worse in all of them together, which is the value that is shown.
    better = [r for r in proven if gains[r.name].better and shown_gain(r, softmax, metric) > 0]
    if not better:
        return None
    taken = max(better, key=lambda r: gains[r.name].mean)
    gain = gains[taken.name]
    reason = (
        f"Its {metric.words} is {value_of(taken, metric)}, that of softmax {value_of(softmax, metric)}: {words.each} it is "
        f"{'' if metric.by_ratio else 'better by '}{interval(gain, metric)}."
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


def stay(softmax: Named, others: int, metric: Metric, words: Words, seen: Sight | None, elsewhere: str = "") -> str:
    """That nothing of so many others is shown to be better than softmax, and what could have been."""
    if not others:
        return f"It is the only {words.one} that was trained; its {metric.words} is {value_of(softmax, metric)}."
    shown = f"be better than softmax in {metric.words} {words.place}, where that of softmax is {value_of(softmax, metric)}"
    limit = f" What looks better in {metric.words} may be chance:" if seen and seen.looks else " Yet"
    return f"{none_of(others, words)} shown to {shown}{elsewhere}.{f'{limit} {seen.told}.' if seen else ''}"


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
    looks: bool  # whether any looks better

    @property
    def is_blind(self) -> bool:
        return self.gain > self.possible


def sight(value: float, gains: Mapping[str, Difference], metric: Metric, words: Words) -> Sight | None:
    """What gains over a value could be seen; None where nothing is known of it."""
    reaches = [gain.reach for gain in gains.values() if math.isfinite(gain.reach) and not gain.same]
    if not reaches:
        return None
    reach, possible = median(reaches), metric.possible(value)
    size, most = (f"{metric.show_gain(gain).lstrip('+')}{metric.gain_unit}" for gain in (reach, possible))
    differ = "" if len(reaches) == len(gains) else f" that differ{'s' * (len(reaches) == 1)} from it"
    half = f"for half of the {len(reaches)} {words.many}{differ} " if differ else f"for half of the {words.many} "
    half = (f"for the one{differ} " if differ else "") if len(reaches) == 1 else half
    told = f"{half}the largest gain that is possible, {most}, would not have shown"
    told = told if reach > possible else f"{half}only a gain above {size} would have shown"
    return Sight(reach, possible, told, any(gain.mean > 0 for gain in gains.values()))


def by_how_much(gain: Difference, metric: Metric) -> str:
    """`interval` with its direction, of what is no ratio."""
    return f"{'worse' if gain.worse else 'better'} by {interval(gain, metric)}"


def interval(gain: Difference, metric: Metric) -> str:
    """How much better it is, or worse where it is that, with the ends of the interval; with signs, + for better, where neither."""
    ends = (gain.high, gain.low) if gain.worse else (gain.low, gain.high)
    mean, least, most = (metric.show_gain(value, decimals(gain, metric)) for value in (gain.mean, *ends))
    if metric.by_ratio:
        mean, least, most = (_in_words(shown, metric) for shown in (mean, least, most))
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
    end = gain.low if gain.better else gain.high
    near, mean, half = metric.in_unit(end), abs(metric.in_unit(gain.mean)), metric.scale * abs(gain.mean - end)

    def leaves_out_0(digits: int) -> bool:
        return round(near, digits) != 0 and (metric.by_ratio or round(mean, digits) > round(half, digits))

    return next(filter(leaves_out_0, range(metric.decimals, MOST_DECIMALS)), MOST_DECIMALS)


def _in_words(shown: str, metric: Metric) -> str:
    """Per cent with a sign in words."""
    return f"{shown.lstrip('+−')}{metric.gain_unit} {metric.ratio_words[shown.startswith('−')]}"


def value_of(result: Named, metric: Metric) -> str:
    return metric.show(getattr(result, metric.attribute))
