"""What a comparison may say of differences: intervals that hold, and nothing where there is nothing."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from conftest import exhaustively
from softmaxima.integrations.pairs import Pair
from softmaxima_lab.compare.differences import Difference
from softmaxima_lab.compare.fold_differences import difference
from softmaxima_lab.compare.measures import BINS, METRICS, Bin, ClassCounts, Fold, Metric, Result
from softmaxima_lab.compare.recommendation import PROVING, learnt, recommend
from softmaxima_lab.compare.verdicts import interval
from softmaxima_lab.pages.compare_table_figures import NAME_SHOWN, _shortened
from softmaxima_lab.pages.figures import Point, gain_cell, gain_plot

ROWS = 100  # that a fold holds out
ACCURACY = METRICS["accuracy"]


def scored(name: str, accuracies: Any, step: float = 1e-3, squares: float = 0.0, **measures: float) -> Result:
    """A result with these accuracies in its folds, and the same for the rest of its measures in all."""

    def fold(accuracy: float) -> Fold:
        hits = 0 if math.isnan(accuracy) else round(accuracy * ROWS / 2)
        return Fold(
            accuracy=accuracy,
            log_loss=measures.get("log_loss", 0.5),
            brier=measures.get("brier", 0.3),
            support=2.0,
            zeros=0.0,
            bins=(Bin(0, 0.0, 0),) * (BINS - 1) + (Bin(ROWS, 0.9 * ROWS, 2 * hits),),
            classes=(ClassCounts(ROWS // 2, ROWS // 2, hits),) * 2,
            support_rows=(0, 0, ROWS),
            predicted="",
            step_seconds=step,
            learning_rate=3e-3,
            squares={other: {"accuracy": squares} for other in ("softmax", "class frequencies")} if squares else {},
        )

    pair = None if name == "class frequencies" else Pair(name, "softmax", "cross_entropy")
    return Result(name, pair, tuple(fold(accuracy) for accuracy in accuracies))


def test_the_interval_is_that_of_nadeau_and_bengio_with_bonferronis_correction() -> None:
    ours, other = np.array([0.91, 0.93, 0.95, 0.92, 0.94]), np.array([0.90, 0.90, 0.91, 0.92, 0.90])
    found = difference(scored("a", ours), scored("softmax", other), ACCURACY, folds=5, comparisons=7)
    gains = ours - other
    half = stats.t.ppf(1 - 0.05 / 7 / 2, 4) * math.sqrt((1 / 5 + 1 / 4) * gains.var(ddof=1))
    assert (found.mean, found.low, found.high) == pytest.approx((gains.mean(), gains.mean() - half, gains.mean() + half))


def test_folds_that_agree_by_luck_are_not_certainty() -> None:
    """Six rows of a hundred better in every fold, but each a row that only one of both has right."""
    even = scored("a", [0.96] * 5), scored("softmax", [0.90] * 5)
    assert difference(*even, ACCURACY, 5, 1).low == pytest.approx(0.06)
    rows = scored("a", [0.96] * 5, squares=0.5)
    found = difference(rows, even[1], ACCURACY, 5, 1)
    assert found.high - found.mean == pytest.approx(stats.t.ppf(0.975, 4) * math.sqrt((0.5 - 0.06**2) / (5 * ROWS)))
    repeated = difference(scored("a", [0.96] * 10, squares=0.5), scored("softmax", [0.90] * 10), ACCURACY, 5, 1)
    assert repeated.high - repeated.mean == pytest.approx(stats.t.ppf(0.975, 9) * math.sqrt((0.5 - 0.06**2) / (5 * ROWS)))


@pytest.mark.parametrize("metric", [metric for metric in METRICS.values() if not metric.by_ratio], ids=lambda metric: metric.name)
def test_no_interval_goes_beyond_what_the_metric_can_differ_by(metric: Metric) -> None:
    one = scored("a", [0.0, 1.0]), scored("softmax", [1.0, 1.0], log_loss=13.0, brier=1.9)
    wild = tuple(
        replace(fold, log_loss=log_loss, brier=brier) for fold, log_loss, brier in zip(one[0].folds, (0, 13), (0, 1.9), strict=True)
    )
    found = difference(replace(one[0], folds=wild), one[1], metric, 12, 17)
    assert (found.low, found.high) == (-metric.most_gain, metric.most_gain)


def alike(folds: int, name: str = "a", step: float = 1e-3) -> Result:
    """Right on the same rows as `softmax` of the same number of folds."""
    result = scored(name, [0.9] * folds, step=step)
    same = {reference: dict.fromkeys(METRICS, 0.0) for reference in ("softmax", "class frequencies")}
    return replace(result, folds=tuple(replace(fold, squares=same) for fold in result.folds))


def test_only_what_is_known_to_differ_in_no_row_is_the_same() -> None:
    other_rows = difference(scored("a", [0.9, 0.8], squares=0.1), scored("softmax", [0.9, 0.8]), ACCURACY, 2, 1)
    unknown = difference(scored("a", [0.9, 0.8]), scored("b", [0.9, 0.8]), ACCURACY, 2, 1)
    assert [difference(alike(2), alike(2, "softmax"), ACCURACY, 2, 1).same, other_rows.same, unknown.same] == [True, False, False]


def test_a_difference_turned_round_has_the_same_interval_turned_round() -> None:
    one, softmax = scored("a", [0.96] * 5, squares=0.5), scored("softmax", [0.90] * 5)
    there, back = difference(one, softmax, ACCURACY, 5, 1), difference(softmax, one, ACCURACY, 5, 1)
    assert (back.mean, back.low, back.high) == pytest.approx((-there.mean, -there.high, -there.low))


def test_few_folds_see_nothing_even_where_their_interval_ends_before() -> None:
    """Gains of some 60 points over 30 %, of 70 that are possible: with two folds their intervals would go on far beyond."""
    softmax, baseline = scored("softmax", [0.95, 0.85]), scored("class frequencies", [0.3, 0.3])
    found = recommend(softmax, baseline, [scored("a", [0.80, 0.99])], ACCURACY, 2)
    assert found.headline == "Too little to tell"
    assert "would not have shown" in found.reason


@pytest.mark.parametrize("comparisons", [1, 17])
@pytest.mark.parametrize("metric", [metric for metric in METRICS.values() if not metric.by_ratio], ids=lambda metric: metric.name)
def test_rows_of_which_none_differs_bound_what_is_a_mean_over_them(metric: Metric, comparisons: int) -> None:
    for folds, repeats in ((2, 1), (5, 1), (5, 2)):
        found = difference(alike(folds * repeats), alike(folds * repeats, "softmax"), metric, folds, comparisons)
        unseen = stats.binomtest(0, folds * ROWS, alternative="less").proportion_ci(1 - 0.05 / comparisons).high
        reach = metric.most_gain * (unseen if metric.name in ("accuracy", "log-loss", "brier") else 1)
        assert (found.same, found.mean, found.low, found.high) == (True, 0.0, pytest.approx(-reach), pytest.approx(reach))


@pytest.mark.parametrize(("folds", "taken"), [(2, False), (5, True)])
def test_a_faster_pair_that_is_right_on_the_same_rows_is_taken_only_if_they_are_many(folds: int, taken: bool) -> None:
    """Of 200 rows of which none differs three may, which is more than a point."""
    softmax, fast = alike(folds, "softmax"), alike(folds, "fast", step=5e-4)
    baseline = scored("class frequencies", [0.1] * folds)
    found = recommend(softmax, baseline, [fast], METRICS["cost"], folds)
    assert (found.headline == "Take fast") == taken
    assert ("known of none" in found.reason) == (not taken)


@pytest.mark.parametrize("accuracies", [[0.9], [0.9, math.nan]])
def test_one_fold_or_nan_tells_nothing(accuracies: list[float]) -> None:
    found = difference(scored("a", accuracies), scored("softmax", [0.1] * len(accuracies)), ACCURACY, 5, 1)
    assert (found.better, found.worse) == (False, False)
    assert "∞" in interval(found, ACCURACY)


def test_on_noise_a_pair_of_many_is_taken_in_at_most_five_of_a_hundred() -> None:
    """Learners of equal quality, whose folds share what their training rows have in common, as those of a cross-validation do."""
    random = np.random.default_rng(0)
    taken = 0
    for _ in range(400):
        shared = random.normal(0, 0.01, (20, 1)) * math.sqrt(1 / 4)  # one draw for all folds of a learner
        accuracies = 0.8 + shared + random.normal(0, 0.01, (20, 10))
        softmax, *others = (scored(name, row) for name, row in zip(["softmax", *map(str, range(19))], accuracies, strict=True))
        baseline = scored("class frequencies", [0.5] * 10)
        taken += recommend(softmax, baseline, others, ACCURACY, 5).headline != "Stay with softmax"
    assert taken <= 0.05 * 400


def spread(mean: float, seed: int) -> np.ndarray:
    return mean + np.random.default_rng(seed).normal(0, 0.002, 10)


BASELINE = scored("class frequencies", [0.5] * 10, log_loss=0.69)
SOFTMAX = scored("softmax", spread(0.90, 0))


def test_a_pair_that_is_better_is_taken_with_what_it_loses() -> None:
    better, best = scored("better", spread(0.93, 1)), scored("best", spread(0.95, 2), step=4e-3, brier=0.4)
    found = recommend(SOFTMAX, BASELINE, [better, scored("worse", spread(0.8, 3)), best], ACCURACY, 5)
    assert (found.headline, found.pair) == ("Take best", best.pair)
    for part in (
        "95.",
        "90.",
        "points",
        "better",
        "Brier score (0.4000 against 0.3000)",
        "time of a training step (4.00 ms against 1.00 ms)",
    ):
        assert part in found.reason


def test_what_has_learnt_has_by_intervals_that_hold_for_all_pairs_and_metrics() -> None:
    """Three of each."""
    baseline, others = scored("class frequencies", [0.5] * 5), [scored(name, [0.5] * 5) for name in ("softmax", "b")]
    found = lambda gain: scored("a", gain / 1000 + np.array([0.51, 0.49, 0.52, 0.48, 0.5]))
    shown = lambda gain, tries: difference(found(gain), baseline, ACCURACY, 5, tries).better
    enough = next(gain for gain in range(1, 300) if shown(gain, 9))
    assert shown(enough - 1, 3)
    for gain, names in ((enough - 1, []), (enough, ["a"])):
        by_metric = learnt([found(gain), *others], baseline, PROVING, 5)
        assert [result.name for result in by_metric[ACCURACY]] == names


def test_pairs_that_predicted_the_same_are_counted_one_by_one() -> None:
    softmax, other = (
        replace(scored(name, spread(0.90, seed)), twins=("twin", "another")) for seed, name in enumerate(("softmax", "a"))
    )
    found = [recommend(softmax, BASELINE, [other, scored("b", spread(0.8, 2))], METRICS[by], 5) for by in ("accuracy", "cost")]
    assert all(each.reason.startswith("None of the 6 other pairs is shown to ") for each in found)


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS.keys())
def test_what_is_no_better_than_frequencies_is_never_taken(metric: Metric) -> None:
    """However much faster it is, or better calibrated."""
    random = np.random.default_rng(1)
    softmax, pair = (
        scored(name, random.normal(0.5, 0.01, 10), step=step, log_loss=0.69) for name, step in (("softmax", 1e-3), ("fast", 5e-4))
    )
    assert recommend(softmax, BASELINE, [pair], metric, 5).headline == "Nothing to choose"


def test_one_fold_gives_no_reason_to_take_or_to_leave_anything() -> None:
    one = [scored(name, [accuracy]) for name, accuracy in (("softmax", 0.9), ("class frequencies", 0.1), ("a", 0.95))]
    assert recommend(*one[:2], one[2:], ACCURACY, 5).headline == "Too little to tell"


def test_every_reason_is_made_of_whole_sentences() -> None:
    softmax, other = scored("softmax", spread(0.9, 0)), scored("a", spread(0.95, 1), step=5e-4)
    stupid = [scored(name, spread(0.5, seed)) for seed, name in enumerate(("softmax", "a", "b"))]
    few = [scored(name, [0.4, 0.6]) for name in ("softmax", "a")]
    reasons = [
        recommend(first, scored("class frequencies", [0.5] * len(first.folds)), others, metric, folds).reason
        for first, *others in ([softmax], [softmax, other], [softmax, other, scored("b", spread(0.9, 2))], stupid, few)
        for metric in METRICS.values()
        for folds in (2, 5, 12)
    ]
    known = "No|So|Softmax|None|Neither|The|Its|It|Of|What|A|1"
    assert all(re.fullmatch(rf"({known}) .*\.", reason) for reason in reasons)
    assert {"So far no pair is", "No pair is shown"} <= {" ".join(reason.split()[:n]) for reason in reasons for n in (4, 5)}


def test_few_folds_of_many_say_so_instead_of_staying() -> None:
    """Where softmax is not known to have learnt, and where only more than there is would show."""
    baseline = scored("class frequencies", [0.5] * 3)
    softmax, other = scored("softmax", [0.84, 0.85, 0.83]), scored("a", [0.90, 0.78, 0.87])
    assert recommend(softmax, baseline, [other], ACCURACY, 3).headline == "Stay with softmax"
    found = recommend(softmax, baseline, [other], ACCURACY, 12)
    assert (found.headline, found.pair) == ("Too little to tell", None)
    assert "the largest gain that is possible, 16.00 points, would not have shown" in found.reason
    unsure = scored("softmax", [0.4, 0.95, 0.9])
    found = recommend(unsure, baseline, [scored("a", [0.84, 0.85, 0.83])], ACCURACY, 12)
    assert (found.headline, found.pair) == ("Too little to tell", None)
    assert "Softmax is not shown to have a better accuracy than class frequencies" in found.reason
    unlearnt = recommend(scored("softmax", [0.4, 0.6, 0.5]), baseline, [], ACCURACY, 12)
    assert unlearnt.headline == "Too little to tell"


def test_a_whole_round_of_folds_stays_and_says_that_no_gain_would_have_shown() -> None:
    softmax, other = scored("softmax", spread(0.97, 0)), scored("a", [1.0, 0.95] * 5)
    found = recommend(softmax, BASELINE, [other], ACCURACY, 5)
    assert found.headline == "Stay with softmax"
    assert "the largest gain that is possible, 2.98 points, would not have shown" in found.reason
    perfect = recommend(scored("softmax", [1.0] * 10), BASELINE, [scored("a", [1.0] * 10)], ACCURACY, 5)
    assert (perfect.headline, "chance" in perfect.reason) == ("Stay with softmax", False)


def test_what_stays_says_what_is_better_elsewhere_and_what_is_taken_what_it_rules_out() -> None:
    calm = scored("calm", spread(0.90, 4), log_loss=0.4)
    found = recommend(SOFTMAX, BASELINE, [calm], ACCURACY, 5)
    assert found.headline == "Stay with softmax"
    assert "; in log loss calm is better by 0.100 nats (0.100 to 0.100)." in found.reason
    sparse = scored("sparse", spread(0.95, 4))
    sparse = replace(sparse, folds=tuple(replace(fold, zeros=0.04) for fold in sparse.folds))
    assert recommend(SOFTMAX, BASELINE, [sparse], ACCURACY, 5).reason.endswith(" It rules the true class out in 4 % of rows.")


def test_a_pair_that_is_better_fold_by_fold_alone_is_not_taken() -> None:
    """Errors of calibration that cancel over the folds of softmax, and add up over those of the other pair."""

    def with_bins(result: Result, hits: Sequence[int]) -> Result:
        bins = [(*(Bin(0, 0.0, 0),) * (BINS - 1), Bin(ROWS, 0.9 * ROWS, count)) for count in hits]
        return replace(result, folds=tuple(replace(fold, bins=each) for fold, each in zip(result.folds, bins, strict=True)))

    softmax = with_bins(SOFTMAX, [80, 100] * 5)
    other = with_bins(scored("a", spread(0.90, 4)), [81] * 10)
    metric = METRICS["calibration"]
    assert difference(other, softmax, metric, 5, 1).better
    assert other.calibration > softmax.calibration == pytest.approx(0.0)
    assert recommend(softmax, BASELINE, [other], metric, 5).pair == softmax.pair


def test_a_time_that_is_hardly_longer_is_no_loss() -> None:
    for step, said in ((1.03e-3, False), (1.2e-3, True)):
        found = recommend(SOFTMAX, BASELINE, [scored("better", spread(0.95, 2), step=step)], ACCURACY, 5)
        assert ("time of a training step" in found.reason) == said


def test_softmax_stays_where_nothing_differs() -> None:
    found = recommend(SOFTMAX, BASELINE, [scored("a", spread(0.901, 4)), scored("b", spread(0.899, 5))], ACCURACY, 5)
    assert (found.headline, found.pair) == ("Stay with softmax", SOFTMAX.pair)
    assert "Neither of the 2 other pairs is shown to be better" in found.reason
    alone = recommend(SOFTMAX, BASELINE, [], ACCURACY, 5)
    assert "only pair" in alone.reason
    assert "for half of the pairs only a gain above" in found.reason
    one = recommend(SOFTMAX, BASELINE, [scored("a", spread(0.901, 4))], ACCURACY, 5)
    assert "The other pair is not shown" in one.reason
    assert "may be chance: only a gain above" in one.reason


def test_nothing_is_chosen_where_no_pair_beats_the_class_frequencies() -> None:
    softmax, other = scored("softmax", spread(0.40, 6)), scored("a", spread(0.50, 7))
    found = recommend(softmax, BASELINE, [other], ACCURACY, 5)
    assert (found.headline, found.pair) == ("Nothing to choose by accuracy", None)
    assert "class frequencies (50.00 %, the share of the largest class)" in found.reason
    assert "in log loss (softmax: 0.500 against 0.690)" in found.reason
    assert "--metric log-loss may tell" in found.reason
    unsure = [Result(r.name, r.pair, scored(r.name, spread(0.4, 6), log_loss=0.9).folds) for r in (softmax, other)]
    found = recommend(unsure[0], BASELINE, unsure[1:], ACCURACY, 5)
    assert (found.headline, "do not tell the target" in found.reason) == ("Nothing to choose", True)


def test_frequencies_are_calibrated_and_yet_no_reason_to_choose_nothing() -> None:
    """A softmax that is accurate and too sure stays, and a pair that is less so is taken."""
    sure, frequencies = scored("softmax", spread(0.90, 6)), scored("class frequencies", [0.5] * 10)
    assert recommend(sure, frequencies, [], METRICS["calibration"], 5).pair == sure.pair
    found = recommend(scored("softmax", [0.5] * 10), frequencies, [], METRICS["calibration"], 5)
    assert (found.pair, "accuracy, log loss or Brier score" in found.reason) == (None, True)
    told = scored("softmax", spread(0.50, 6), log_loss=0.3)
    assert [recommend(told, frequencies, [], METRICS[name], 5).pair for name in ("calibration", "macro-f1", "cost")] == [
        told.pair
    ] * 3


def test_a_pair_below_the_class_frequencies_is_not_taken_for_being_better_than_softmax() -> None:
    softmax, other, learnt = scored("softmax", spread(0.40, 6)), scored("a", spread(0.45, 7)), scored("b", spread(0.41, 8))
    learnt = Result("b", learnt.pair, scored("b", spread(0.60, 8)).folds)
    assert recommend(softmax, BASELINE, [other, learnt], ACCURACY, 5).pair == learnt.pair
    assert recommend(softmax, BASELINE, [other], ACCURACY, 5).pair is None


@pytest.mark.parametrize("metric", ["log-loss", "brier", "calibration", "macro-f1"])
def test_every_metric_knows_which_way_is_better(metric: str) -> None:
    good = {"log_loss": 0.2, "brier": 0.1}
    one, other = scored("a", spread(0.9, 9), **good), scored("softmax", spread(0.6, 10))
    found = difference(one, other, METRICS[metric], 5, 1)
    assert found.mean > 0 > difference(other, one, METRICS[metric], 5, 1).mean


def test_a_faster_pair_is_taken_only_if_it_is_as_accurate() -> None:
    cost = METRICS["cost"]
    fast, wrong = scored("fast", spread(0.90, 11), step=5e-4), scored("wrong", spread(0.85, 12), step=1e-4)
    assert recommend(SOFTMAX, BASELINE, [fast, wrong], cost, 5).pair == fast.pair
    assert recommend(SOFTMAX, BASELINE, [wrong], cost, 5).pair == SOFTMAX.pair
    hardly = scored("hardly", spread(0.90, 13), step=0.97e-3)
    assert recommend(SOFTMAX, BASELINE, [hardly], cost, 5).pair == SOFTMAX.pair


@pytest.mark.parametrize("steps", [(1e-3, 1e-3, 9e-3), (2e-3, 1e-3, 0.1e-3), (1e-3, 4e-3)])
def test_the_ratio_of_the_times_that_are_shown_is_the_difference_that_is_told(steps: Sequence[float]) -> None:
    cost = METRICS["cost"]
    uneven, even = (scored(name, [0.9] * len(steps)) for name in ("a", "softmax"))
    uneven = replace(uneven, folds=tuple(replace(fold, step_seconds=step) for fold, step in zip(uneven.folds, steps, strict=True)))
    shown = cost.gain(uneven.step_seconds, even.step_seconds)
    assert difference(uneven, even, cost, len(steps), 1).mean == pytest.approx(shown)


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS.keys())
def test_the_words_of_a_difference_have_the_sign_of_the_table(metric: Metric) -> None:
    differences = (0.05, 0.02, 0.08), (-0.05, -0.08, -0.02), (-0.01, -0.04, 0.02)
    better, worse, untold = (interval(Difference(*ends), metric) for ends in differences)
    found = (re.findall(r"[−+]?[\d.]+", text) for text in (better, worse, untold))
    numbers = [[float(number.replace("−", "-")) for number in each] for each in found]
    for mean, low, high in numbers[:2]:
        assert 0 < low <= mean <= high
    if metric.by_ratio:
        assert untold == "1 % slower (4 % slower to 2 % faster)"
    else:
        mean, low, high = numbers[2]
        assert low < mean < 0 < high
    assert not {"+", "−"} & {*better, *worse}
    assert not re.search(r"−0(\.0*)?(?![\d.])", metric.show_gain(-1e-9))


@pytest.mark.parametrize("sign", [1, exhaustively(-1)])
@pytest.mark.parametrize("metric", [METRICS["accuracy"], *map(exhaustively, [*METRICS.values()][1:])], ids=METRICS.keys())
def test_what_is_marked_is_shown_to_leave_out_0(metric: Metric, sign: int) -> None:
    """However near the end of its interval is, in the table, in the figure and in words."""
    random = np.random.default_rng(0)
    for _ in range(300):
        near, half = 10 ** random.uniform(-9, -1, 2)
        low, high = sorted((sign * near, sign * (near + 2 * half)))
        gain = Difference(sign * (near + half), low, high)
        cell, label = gain_cell(gain, metric), gain_plot([Point("a", {"color": "red", "symbol": "x"}, gain)], metric).data[0].y[0]
        assert cell[-1] == label[-1] == ("▲" if sign > 0 else "▼")
        numbers = [float(number.replace("−", "-")) for number in re.findall(r"[−+]?[\d.]+", cell)]
        ends = (numbers[0] - numbers[1], numbers[0] + numbers[1]) if "±" in cell else numbers
        assert all(sign * end > 0 for end in ends), cell
        assert all(float(number) > 0 for number in re.findall(r"[\d.]+", interval(gain, metric))), interval(gain, metric)


def test_names_that_differ_in_the_middle_are_cut_so_that_they_differ() -> None:
    names = [f"species number {i} of thirty that there are" for i in range(30)]
    cut = _shortened(names)
    assert len({cut(name) for name in names}) == 30
    assert all(len(cut(name)) <= NAME_SHOWN for name in names)
    assert cut("short") == "short"
