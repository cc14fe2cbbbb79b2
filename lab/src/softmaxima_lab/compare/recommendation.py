"""Which pair `softmaxima compare` recommends, and why; what differs is told by `fold_differences`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from softmaxima.integrations.pairs import Pair
from softmaxima_lab.compare.fold_differences import difference
from softmaxima_lab.compare.measures import METRICS, Metric, Result
from softmaxima_lab.compare.verdicts import STAY, Words, best_of, interval, none_of, shown_gain, sight, stay, value_of
from softmaxima_lab.wording import listed

ACCURACY_GIVEN_UP = 0.01  # for a shorter time: no more than a point
WORDS = Words("pair", "pairs", "on this table", "fold by fold")


@dataclass(frozen=True)
class Recommendation:
    """The pair to take and why, or None where the table gives no reason to take any."""

    metric: Metric
    pair: Pair | None
    headline: str
    reason: str


# Frequencies are calibrated, and fast, without having learnt anything, and guesses at random have a better macro F1 than they.
PROVING = tuple(METRICS[name] for name in ("accuracy", "log-loss", "brier"))


def proving(metric: Metric) -> tuple[Metric, ...]:
    """By what a pair must be better than the baseline, in one of them, to have learnt anything."""
    return (metric,) if metric in PROVING else PROVING


def learnt(results: Sequence[Result], baseline: Result, by: Sequence[Metric], folds: int) -> dict[Metric, list[Result]]:
    """For each metric the results that are better than the baseline, of all of these results and metrics together."""
    tries = len(by) * len(results)
    return {metric: [r for r in results if difference(r, baseline, metric, folds, tries).better] for metric in by}


def recommend(softmax: Result, baseline: Result, others: Sequence[Result], metric: Metric, folds: int) -> Recommendation:
    """What the differences allow to say.

    Nothing is recommended where no pair is better than the baseline, which has not read the features. Softmax stays unless
    another pair is better than both, if it is known to have learnt. For time, a pair must also be within a point of accuracy of
    softmax, for certain.
    """
    if len(softmax.folds) < 2:
        return _too_little(metric, "What is chance shows in several folds, and one is done.")
    judged = proving(metric)
    known = {r.name for found in learnt((softmax, *others), baseline, judged, folds).values() for r in found}
    tries = len(judged) * (1 + len(others))
    if not known:
        none = f"pair is shown to have a better {_either(judged)} than {baseline.name}"
        if len(softmax.folds) < folds:
            return _too_little(metric, f"So far no {none}.")
        gains = {by: {r.name: difference(r, baseline, by, folds, tries) for r in (softmax, *others)} for by in judged}
        seen = [sight(_by_folds(baseline, by), found, by, WORDS) for by, found in gains.items()]
        if all(each is not None and each.is_blind for each in seen):
            return _too_little(metric, f"No {none}, and {seen[0].told}: more rows, folds or repeats may tell.")  # type: ignore[union-attr]
        return _nothing((softmax, *others), baseline, metric, folds)
    proven = [r for r in others if r.name in known]
    taken = _fastest(softmax, proven, others, folds) if metric.name == "cost" else _best(softmax, proven, others, metric, folds)
    if taken is not None:
        return taken
    if softmax.name not in known:
        either = _either(judged)
        return _too_little(
            metric,
            f"Softmax is not shown to have a better {either} than {baseline.name}, and no other pair to be better than softmax: "
            "more rows, folds or repeats may tell, or a longer training (--epochs) at other rates (--tune).",
        )
    return _stay(softmax, proven, others, metric, folds)


def _either(metrics: Sequence[Metric]) -> str:
    return listed([metric.words for metric in metrics], "or")


def _too_little(metric: Metric, reason: str) -> Recommendation:
    return Recommendation(metric, None, "Too little to tell", reason)


def _nothing(results: Sequence[Result], baseline: Result, metric: Metric, folds: int) -> Recommendation:
    """Why there is nothing to choose by this metric, and by which there may be."""
    judged = proving(metric)
    reached = listed([value_of(baseline, by) for by in judged])
    largest = ", the share of the largest class" if judged == (METRICS["accuracy"],) else ""
    reason = (
        f"No pair is shown to have a better {_either(judged)} than {baseline.name} ({reached}{largest}), which ignore the features"
    )
    elsewhere = learnt(results, baseline, [by for by in PROVING if by not in judged], folds)
    found = {by: max(better, key=lambda r: by.gain(getattr(r, by.attribute), 0.0)) for by, better in elsewhere.items() if better}
    if not found:
        reason += ": these do not tell the target, or there are too few rows, folds or epochs to see that they do."
        return Recommendation(metric, None, "Nothing to choose", reason)
    told = listed(
        [f"in {by.words} ({best.name}: {value_of(best, by)} against {value_of(baseline, by)})" for by, best in found.items()]
    )
    reason += f". Yet some are shown to be better than the frequencies {told}: the features do tell something of the target, and "
    reason += f"{listed([f'--metric {by.name}' for by in found], 'or')} may tell which pair to take."
    return Recommendation(metric, None, f"Nothing to choose by {metric.words}", reason)


def _best(softmax: Result, proven: Sequence[Result], others: Sequence[Result], metric: Metric, folds: int) -> Recommendation | None:
    found = {r.name: difference(r, softmax, metric, folds, len(others)) for r in others}
    best = best_of(softmax, proven, found, metric, WORDS)
    if best is None:
        return None
    taken, reason = best
    return Recommendation(metric, taken.pair, f"Take {taken.name}", reason + _lost(taken, softmax, metric, folds, len(others)))


def _fastest(softmax: Result, proven: Sequence[Result], others: Sequence[Result], folds: int) -> Recommendation | None:
    metric, accuracy = METRICS["cost"], METRICS["accuracy"]
    found = {r.name: difference(r, softmax, metric, folds, len(others)) for r in others}
    cheaper = [
        r
        for r in proven
        if found[r.name].low > metric.least_gain and difference(r, softmax, accuracy, folds, len(others)).low > -ACCURACY_GIVEN_UP
    ]
    if not cheaper:
        return None
    taken = max(cheaper, key=lambda r: found[r.name].mean)
    reason = (
        f"A step of training takes {value_of(taken, metric)}, that of softmax {value_of(softmax, metric)}, and its accuracy is "
        f"within a point of that of softmax, {value_of(softmax, accuracy)}, or above."
    )
    return Recommendation(metric, taken.pair, f"Take {taken.name}", reason + _lost(taken, softmax, metric, folds, len(others)))


def _stay(softmax: Result, proven: Sequence[Result], others: Sequence[Result], metric: Metric, folds: int) -> Recommendation:
    found = {r.name: difference(r, softmax, metric, folds, len(others)) for r in others}
    elsewhere = _elsewhere(softmax, proven, metric, folds, len(others))
    if metric.name == "cost" and found:
        return Recommendation(metric, softmax.pair, STAY, _slower(softmax, others, folds) + elsewhere + ".")
    seen = sight(_by_folds(softmax, metric), found, metric, WORDS)
    if seen is not None and seen.is_blind and len(softmax.folds) < folds:
        return _too_little(metric, f"So far {seen.told}.")
    return Recommendation(metric, softmax.pair, STAY, stay(softmax, _trained(softmax, others), metric, WORDS, seen, elsewhere))


def _slower(softmax: Result, others: Sequence[Result], folds: int) -> str:
    """That none trains faster and is as accurate, and of how many the latter is known."""
    cost, accuracy = METRICS["cost"], METRICS["accuracy"]
    near = sum(difference(r, softmax, accuracy, folds, len(others)).low > -ACCURACY_GIVEN_UP for r in others)
    faster = f"at least {100 * math.expm1(cost.least_gain):.0f} % faster than softmax ({value_of(softmax, cost)} a step)"
    none = none_of(_trained(softmax, others), WORDS)
    return f"{none} shown to train {faster} and to be at most a point less accurate, which is known of {near or 'none'} of them"


def _trained(softmax: Result, others: Sequence[Result]) -> int:
    """The pairs besides softmax, each by itself where several predicted the same."""
    return len(softmax.twins) + sum(1 + len(result.twins) for result in others)


def _by_folds(result: Result, metric: Metric) -> float:
    """The mean over folds, which differences are taken of; that over all rows may be another."""
    return fmean(getattr(fold, metric.attribute) for fold in result.folds)


def _elsewhere(softmax: Result, proven: Sequence[Result], metric: Metric, folds: int, comparisons: int) -> str:
    """In which other metrics a pair is better than softmax, and the best of them."""
    told = []
    for other in METRICS.values():
        if other is metric or other.by_ratio:
            continue
        found = {r.name: difference(r, softmax, other, folds, comparisons) for r in proven if shown_gain(r, softmax, other) > 0}
        if better := {name: gain for name, gain in found.items() if gain.better}:
            best = max(better, key=lambda name: better[name].mean)
            told.append(f"in {other.words} {best} is better by {interval(better[best], other)}")
    return f"; {listed(told)}" if told else ""


def _lost(taken: Result, softmax: Result, metric: Metric, folds: int, comparisons: int) -> str:
    """What the pair is worse at than softmax, by more than is worth a word, and how often it rules out what is true."""
    lost = [
        f"{other.words} ({value_of(taken, other)} against {value_of(softmax, other)})"
        for other in METRICS.values()
        if other is not metric
        and (by := difference(taken, softmax, other, folds, comparisons)).worse
        and by.beyond(other.least_gain)
    ]
    told = f" It is worse than softmax in {listed(lost)}." if lost else ""
    return told + (f" It rules the true class out in {100 * taken.zeros:.2g} % of rows." if taken.zeros else "")
