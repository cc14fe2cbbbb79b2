"""`compare`: what it reads, what it measures, what it recommends and what it writes."""

from __future__ import annotations

import csv
import html
import json
import math
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.metrics import f1_score, log_loss

import softmaxima
from softmaxima.base.numbers import InputError
from softmaxima.base.writing import finite
from softmaxima.integrations.pairs import choose, pairs
from softmaxima.maps import REGISTRY, Map
from softmaxima.maps.softmax import SOFTMAX
from softmaxima_lab.compare import record
from softmaxima_lab.compare.differences import Difference
from softmaxima_lab.compare.fold_differences import difference
from softmaxima_lab.compare.measures import METRICS, Result, evaluate
from softmaxima_lab.compare.table import (
    BASELINE,
    Comparison,
    Settings,
    check_classes,
    compare,
    epochs_for,
    sampled,
    seconds_a_step,
    summary,
    total_steps,
    trained_folds,
)
from softmaxima_lab.compare.table_saved import as_json, as_text, read_folds
from softmaxima_lab.pages.columns import write_files
from softmaxima_lab.pages.compare_table import FILES, caption, page, rates, sentence, times, unlearnt
from softmaxima_lab.pages.compare_table_figures import (
    LEGEND,
    drawn_maps,
    figures,
    gain_figure,
    rarest_first,
    styles_of,
    support_groups,
)
from softmaxima_lab.pages.figures import COLOURS, GREY, gain_cell, logarithmic, pareto_front
from softmaxima_lab.tables.suspicions import Doubt
from softmaxima_lab.tables.tables import Table, read_table

TINY = Settings(folds=2, repeats=1, epochs=2)
SOME = [pair for name in ("softmax", "sparsemax", "top-p softmax") for pair in choose(pairs(3), [name])]


def flowers(rows: int = 48) -> pl.DataFrame:
    """Three classes that the first two features tell apart."""
    random = np.random.default_rng(0)
    labels = np.arange(rows) % 3
    return pl.DataFrame(
        {
            "length": labels + 0.1 * random.standard_normal(rows),
            "width": (labels == 1) + 0.1 * random.standard_normal(rows),
            "petals": random.integers(0, 9, rows),
            "species": np.array(["iris", "lily", "rose"])[labels],
        }
    )


def measured(comparison: Comparison) -> list[Any]:
    """Everything but the times."""
    return [(result.name, [replace(fold, step_seconds=0.0) for fold in result.folds]) for result in comparison.results]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    flowers().write_csv(tmp_path / "flowers.csv")
    return read_table(tmp_path / "flowers.csv")


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    path = tmp_path_factory.mktemp("table") / "flowers.csv"
    flowers().write_csv(path)
    return compare(read_table(path), TINY)


# Measures -----------------------------------------------------------------------------------------------------------------


def test_measures_are_those_computed_by_hand() -> None:
    p = torch.tensor([[0.5, 0.5, 0.0], [0.1, 0.9, 0.0], [0.0, 0.0, 1.0], [0.2, 0.2, 0.6]])
    fold, rows = evaluate(p, torch.tensor([0, 1, 0, 2]), 0.25, 1e-3)
    log = [math.log((p_target + 1e-6) / (1 + 3e-6)) for p_target in (0.5, 0.9, 0.0, 0.6)]
    assert fold.accuracy == 0.75  # of the tie in the first row the lowest index is predicted
    assert fold.log_loss == pytest.approx(-sum(log) / 4, rel=1e-6)
    assert fold.brier == pytest.approx((0.5 + 0.02 + 2.0 + 0.24) / 4, rel=1e-6)
    assert (fold.support, fold.zeros, fold.support_rows, fold.step_seconds) == (2.0, 0.25, (0, 1, 2, 1), 0.25)
    # Class 0: two rows, one called it and right; class 1: one row, right; class 2: one row, two called it, one right.
    assert [(counts.recall, counts.precision) for counts in fold.classes] == [(0.5, 1.0), (1.0, 1.0), (1.0, 0.5)]
    assert fold.macro_f1 == pytest.approx((2 / 3 + 1 + 2 / 3) / 3)
    assert set(rows.squares(rows).values()) == {0.0}
    result = Result("softmax", SOME[0], (fold, fold))
    # Bins 7 (0.5), 13 (0.9), 14 (1.0, wrong) and 9 (0.6) hold one row each.
    assert [index for index, bin in enumerate(result.bins) if bin.rows] == [7, 9, 13, 14]
    assert result.calibration == pytest.approx((0.5 + 0.1 + 1.0 + 0.4) / 4, rel=1e-6)


def test_rows_add_up_to_the_measures_and_say_what_one_row_less_changes() -> None:
    """Which is how intervals know that few folds agree by chance."""
    random = torch.Generator().manual_seed(0)
    p = torch.softmax(2 * torch.randn(400, 3, generator=random, dtype=torch.float64), -1)
    target = torch.multinomial(p, 1, generator=random).squeeze(-1)
    fold, rows = evaluate(p, target, 0.0, 0.0)
    assert rows.rows.keys() == METRICS.keys() - {"cost"}
    for name, values in rows.rows.items():
        whole = getattr(fold, METRICS[name].attribute)
        assert float(values.mean()) == pytest.approx(whole)
        without = [evaluate(p[torch.arange(400) != i], target[torch.arange(400) != i], 0.0, 0.0)[0] for i in range(40)]
        moved = torch.tensor([399 * (whole - getattr(fold, METRICS[name].attribute)) for fold in without])
        np.testing.assert_allclose(moved, values[:40] - whole, atol=0.05)


def test_the_baseline_is_a_result_of_its_own_and_pairs_merge_only_where_they_are_the_same(comparison: Comparison) -> None:
    """A softmax that has learnt the frequencies, and a pair that is better by half a percent in log loss, or faster."""
    frequencies = comparison.baseline.folds
    learnt = [{"class frequencies": fold, "softmax": fold, "sparsemax": fold} for fold in frequencies]
    table = Table("t", "y", False, np.zeros((120, 1)), np.arange(120) % 3, ("a", "b", "c"))
    found = summary(table, TINY, learnt, SOME)
    assert {result.name: result.twins for result in found.results} == {"class frequencies": (), "softmax": ("sparsemax",)}
    better = [fold | {"sparsemax": replace(fold["softmax"], log_loss=0.995 * fold["softmax"].log_loss)} for fold in learnt]
    assert len(summary(table, TINY, better, SOME).results) == 3
    assert len(summary(table, replace(TINY, metric="cost"), learnt, SOME).results) == 3


def test_probabilities_whose_mass_is_below_one_are_measured_as_they_are() -> None:
    fold, _ = evaluate(torch.tensor([[0.5, 0.25], [0.0, 0.0]]), torch.tensor([0, 1]), 0.0, 0.0)
    assert (fold.accuracy, fold.brier, fold.support_rows) == (0.5, (0.25 + 0.0625 + 1.0) / 2, (1, 0, 1))


def test_the_measures_are_those_of_scikit_learn() -> None:
    random = np.random.default_rng(0)
    p, target = random.dirichlet(np.ones(4), 300), random.integers(0, 4, 300)
    fold, _ = evaluate(torch.from_numpy(p), torch.from_numpy(target), 0.0, 0.0)
    assert fold.macro_f1 == pytest.approx(f1_score(target, p.argmax(1), average="macro"))
    assert fold.log_loss == pytest.approx(log_loss(target, (p + 1e-6) / (1 + 4e-6)))


# The experiment -----------------------------------------------------------------------------------------------------------


def test_a_seed_gives_one_result_whatever_the_callers_random_state(table: Table) -> None:
    torch.manual_seed(1)
    with torch.no_grad():
        first = compare(table, TINY, SOME)
    torch.manual_seed(2)
    assert measured(compare(table, TINY, SOME)) == measured(first)
    assert measured(compare(table, replace(TINY, seed=1), SOME)) != measured(first)


def test_a_pair_gets_the_same_result_beside_softmax_as_among_others(table: Table) -> None:
    two, among = (dict(measured(compare(table, TINY, some))) for some in (SOME[1:2], SOME))
    assert set(two) == {"softmax", SOME[1].name, BASELINE}
    assert all(among[name] == folds for name, folds in two.items())


def test_the_callers_random_state_and_threads_stay_as_they_were(table: Table) -> None:
    torch.set_num_threads(2)
    before = torch.get_rng_state()
    compare(table, TINY, SOME[:1])
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_a_table_that_is_easy_to_tell_apart_is_learnt(table: Table, model: Any) -> None:
    found = compare(table, Settings(model=model, folds=2, repeats=1, epochs=epochs_for(table.rows, 2)), SOME[:1])
    assert found.results[0].accuracy > 0.9


def test_a_small_table_gets_more_epochs() -> None:
    assert [epochs_for(rows, 5) for rows in (48, 1797, 10**6)] == [360, 30, 30]
    assert [epochs_for(rows, 3, quick=True) for rows in (48, 1000)] == [60, 10]


def test_results_are_sorted_by_the_metric_then_brier(comparison: Comparison) -> None:
    order = [(-result.accuracy, round(result.brier, 4), result.name) for result in comparison.results]
    assert order == sorted(order)
    again = summary(read_some(comparison), replace(TINY, metric="log-loss"), comparison.folds)
    assert [result.log_loss for result in again.results] == sorted(result.log_loss for result in comparison.results)


def read_some(comparison: Comparison) -> Table:
    """A table with the classes of a comparison's."""
    sizes = [rows for _, rows in comparison.facts.classes]
    labels = np.repeat(np.arange(len(sizes)), sizes)
    return Table("t", "y", False, np.zeros((len(labels), 1)), labels, tuple(name for name, _ in comparison.facts.classes))


def test_the_baseline_gives_every_row_the_frequencies_of_the_classes(comparison: Comparison) -> None:
    baseline = comparison.baseline
    assert (baseline.pair, baseline.accuracy) == (None, pytest.approx(1 / 3))
    assert baseline.log_loss == pytest.approx(math.log(3), rel=1e-5)


def test_pairs_that_predict_the_same_are_one_row(comparison: Comparison) -> None:
    assert "eps softmax" in comparison.softmax.twins
    names = [name for result in comparison.results for name in (result.name, *result.twins)]
    assert sorted(names) == sorted([BASELINE, *(pair.name for pair in pairs(3))])


def noise(rows: int = 120, seed: int = 0) -> Table:
    random = np.random.default_rng(seed)
    labels = (random.random(rows) < 0.3).astype(np.int64)
    return Table("noise", "y", False, random.standard_normal((rows, 6)), labels, ("a", "b"))


@pytest.mark.parametrize("metric", ["accuracy", "macro-f1", "log-loss"])
def test_on_noise_nothing_is_recommended(metric: str) -> None:
    found = compare(
        noise(), Settings(metric=metric, epochs=20, repeats=1), choose(pairs(2), ["softmax", "sparsemax", "elastic softmax"])
    )
    assert found.recommendation.headline == "Nothing to choose"
    assert "Nothing to choose" in page(found)


def test_shuffled_labels_are_noise(table: Table) -> None:
    settings = Settings(epochs=20, repeats=1)
    assert compare(table, settings, SOME).recommendation.pair is not None
    shuffled = replace(table, labels=np.random.default_rng(1).permutation(table.labels))
    assert compare(shuffled, settings, SOME).recommendation.pair is None


def test_a_map_made_worse_on_purpose_is_found_out(monkeypatch: pytest.MonkeyPatch, table: Table) -> None:
    """It gives its probabilities to the wrong classes."""
    map = replace(SOFTMAX, name="another_map", regulariser=None, kernel=None, forward=lambda z: torch.softmax(z, -1).roll(1, -1))
    monkeypatch.setitem(REGISTRY, map.name, map)
    worse = replace(next(pair for pair in pairs(3) if pair.map == "another_map"), loss="cross_entropy", options={})
    found = compare(table, Settings(epochs=40, repeats=1), [SOME[0], worse])
    assert found.recommendation.pair == SOME[0]
    assert found.gain(found.of("another map")).worse
    assert "Worse than softmax in accuracy" in sentence(found, found.of("another map"))


def test_a_learning_rate_is_chosen_inside_each_fold(table: Table) -> None:
    tuned = compare(table, replace(TINY, tune=True), SOME[:1])
    plain = compare(table, TINY, SOME[:1])
    assert {fold.learning_rate for fold in plain.softmax.folds} == {3e-3}
    assert {fold.learning_rate for fold in tuned.softmax.folds} == {3e-2}  # two epochs are too few for the others
    assert tuned.softmax.log_loss < plain.softmax.log_loss


@pytest.mark.parametrize("rows", [60, 193])  # of which some folds train on 128 rows, a batch, and others on one more
@pytest.mark.parametrize("settings", [TINY, replace(TINY, tune=True, repeats=2)])
def test_the_steps_are_those_that_were_announced(rows: int, settings: Settings) -> None:
    table = Table("t", "y", False, np.random.default_rng(0).standard_normal((rows, 3)), np.arange(rows) % 3, ("a", "b", "c"))
    taken: list[int] = []
    compare(table, settings, SOME, taken.append)
    assert sum(taken) == total_steps(table, settings, SOME)


@pytest.mark.parametrize(("rows", "features", "tune"), [(60, 4, False), (60, 4, True), (1500, 64, False)])
def test_a_fold_takes_about_as_long_as_was_estimated(rows: int, features: int, tune: bool) -> None:
    random = np.random.default_rng(0)
    table = Table("t", "y", False, random.standard_normal((rows, features)), np.arange(rows) % 3, ("a", "b", "c"))
    settings = Settings(folds=3, repeats=1, epochs=60 if rows < 100 else 10, tune=tune)
    ratios = []
    for _ in range(5):  # a machine that others use may be slower for a while
        estimated = seconds_a_step(table, settings, SOME) * total_steps(table, settings, SOME, settings.splits - 1)
        start = time.perf_counter()
        next(trained_folds(table, settings, SOME, settings.splits - 1))
        ratios.append((time.perf_counter() - start) / estimated)
        if 0.5 < ratios[-1] < 2:
            return
    pytest.fail(f"took so many times what was estimated: {ratios}")


# Interrupted ----------------------------------------------------------------------------------------------------------------


def test_what_was_interrupted_goes_on_to_the_same_result(table: Table, tmp_path: Path) -> None:
    settings = replace(TINY, repeats=2)
    whole = compare(table, settings, SOME)
    folds = trained_folds(table, settings, SOME)
    partial = summary(table, settings, [next(folds)], SOME)
    folds.close()
    assert (whole.partial, partial.partial) == (False, True)
    assert "Partial: interrupted after 1 of 4 folds" in page(partial)
    assert json.loads(as_text(partial))["partial"] is True
    write_files(FILES, partial, tmp_path)
    done = read_folds(tmp_path / "results.json", table, settings, SOME)
    assert done == list(partial.folds)
    rest = list(trained_folds(table, settings, SOME, len(done)))
    assert measured(summary(table, settings, [*done, *rest], SOME)) == measured(whole)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda table: (table, replace(TINY, seed=1), SOME), "--seed 0, not 1"),
        (lambda table: (table, replace(TINY, rows=40), SOME), "without --quick"),
        (lambda table: (replace(table, features=table.features + 1), TINY, SOME), "another table"),
        (lambda table: (table, TINY, SOME[:2]), "other --maps"),
    ],
)
def test_another_comparison_is_not_gone_on_with(change: Any, part: str, table: Table, tmp_path: Path) -> None:
    write_files(FILES, compare(table, TINY, SOME), tmp_path)
    with pytest.raises(InputError, match=part):
        read_folds(tmp_path / "results.json", *change(table))


def test_another_version_is_not_gone_on_with_but_another_metric_is(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(FILES, compare(table, TINY, SOME), tmp_path)
    path = tmp_path / "results.json"
    assert read_folds(path, table, replace(TINY, metric="brier"), SOME) == read_folds(path, table, TINY, SOME)
    monkeypatch.setattr(record, "__version__", "0.0.1")
    with pytest.raises(InputError, match=rf"softmaxima {re.escape(softmaxima.__version__)}, not 0\.0\.1"):
        read_folds(path, table, TINY, SOME)


@pytest.mark.parametrize("content", [None, "", "{}", '{"folds": [3]}', "[]", "\x00"])
def test_a_file_that_is_none_of_ours_is_not_gone_on_with(content: str | None, table: Table, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "results.json").write_text(content)
    with pytest.raises(InputError, match="--resume"):
        read_folds(tmp_path / "results.json", table, TINY, SOME)


def test_a_sample_keeps_every_class_in_every_fold(table: Table) -> None:
    facts = compare(table, replace(TINY, rows=7), SOME[:1]).facts
    assert dict(facts.classes) == {"iris": 2, "lily": 2, "rose": 2}
    assert (facts.rows, facts.rows_in_table) == (6, 48)


def test_a_table_that_need_not_be_sampled_is_taken_as_it_is(table: Table) -> None:
    assert sampled(table, TINY) is table is sampled(table, replace(TINY, rows=48))
    some = sampled(table, replace(TINY, rows=12))
    assert some.digest != table.digest
    assert some.digest is some.digest  # the numbers of a large table are read once


# Pairs --------------------------------------------------------------------------------------------------------------------


def test_there_are_at_least_14_pairs_with_names_of_their_own() -> None:
    names = [pair.name for pair in pairs(10)]
    assert len(set(names)) == len(names) >= 14
    claims = {map.name: map.properties for map in REGISTRY.values()}
    assert {pair.map for pair in pairs(10)} == {name for name, c in claims.items() if c.of_one_class and not c.logarithmic}


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("pair", range(len(pairs(10))))
def test_the_printed_code_runs_and_is_what_was_trained(pair: int, classes: int) -> None:
    chosen = pairs(classes)[pair]
    random = torch.Generator().manual_seed(0)
    scores = torch.randn(8, classes, generator=random)
    given = {"scores": scores, "target": torch.arange(8) % classes}
    if chosen.head == "cosine":
        given |= {
            "features": torch.randn(8, 5, generator=random),
            "class_vectors": torch.randn(classes, 5, generator=random),
        }
    exec(chosen.code, given)
    assert torch.equal(given["loss"], chosen.losses(given["scores"], given["target"]))
    assert torch.equal(given["p"], chosen.probabilities(given["scores"]))
    assert given["p"].shape == (8, classes)


@pytest.fixture
def another_map(monkeypatch: pytest.MonkeyPatch) -> Map:
    map = replace(SOFTMAX, name="another_map", regulariser=None)
    monkeypatch.setitem(REGISTRY, map.name, map)
    return map


def test_a_newly_registered_map_is_compared_and_drawn(another_map: Map, table: Table) -> None:
    pair = next(pair for pair in pairs(3) if pair.map == "another_map")
    assert (pair.name, pair.loss, pair.options["eps"]) == ("another map", "eps_cross_entropy", 0.0)
    given: dict[str, Any] = {"scores": torch.zeros(2, 3), "target": torch.tensor([0, 1])}
    exec(pair.code, given)
    found = compare(table, TINY, [pair])
    assert "another map" in page(found)


def test_a_pair_that_gives_nan_comes_last_and_is_still_reported(another_map: Map, table: Table, monkeypatch: Any) -> None:
    broken = replace(another_map, kernel=None, forward=lambda z: torch.full_like(z, math.nan))
    monkeypatch.setitem(REGISTRY, "another_map", broken)
    found = compare(table, Settings(folds=2, epochs=20), choose(pairs(3), ["softmax", "another map"]))
    assert [result.name for result in found.results] == ["softmax", BASELINE, "another map"]
    assert found.recommendation.pair == SOME[0]
    assert found.results[2].accuracy == 0.0
    assert as_json(found)["results"][2]["brier"] is None
    assert "not numbers" in sentence(found, found.results[2])
    assert "another map" in page(found)


def test_pairs_are_chosen_by_name_or_by_map() -> None:
    offered = pairs(3)
    assert [pair.name for pair in choose(offered, ["Sparsemax eps-CE"])] == ["sparsemax · eps CE"]
    assert [pair.name for pair in choose(offered, ["softmax"])] == ["softmax"]
    assert {pair.map for pair in choose(offered, ["proportional"])} == {"proportional"}
    assert len(choose(offered, ["proportional"])) == 3
    assert choose(offered, []) == offered


# The report -----------------------------------------------------------------------------------------------------------------


def test_the_files_agree_with_the_comparison(comparison: Comparison, tmp_path: Path) -> None:
    paths = write_files(FILES, comparison, tmp_path)
    assert [path.name for path in paths] == ["results.json", "results.csv", "report.html"]
    numbers = json.loads(paths[0].read_text())
    rows = list(csv.DictReader(paths[1].read_text().splitlines()))
    assert numbers["settings"]["epochs"] == TINY.epochs
    assert [row["pair"] for row in rows] == [result.name for result in comparison.results]
    assert [entry["pair"] for entry in numbers["results"]] == [result.name for result in comparison.results]
    for entry, row, result in zip(numbers["results"], rows, comparison.results, strict=True):
        for measure in ("accuracy", "macro_f1", "log_loss", "brier", "calibration", "support", "zeros"):
            assert entry[measure] == float(row[measure]) == getattr(result, measure)
        gain = comparison.gain(result)
        told = [entry["gain"][end] if entry["gain"] else None for end in ("mean", "low", "high")]
        assert told == [float(row[end]) if row[end] else None for end in ("gain", "gain_low", "gain_high")]
        assert told == ([None] * 3 if result is comparison.softmax else finite([gain.mean, gain.low, gain.high]))
    taken = comparison.recommendation.pair
    assert [row["pair"] for row in rows if row["recommended"] == "1"] == ([taken.name] if taken else [])


def test_the_front_holds_what_no_other_beats_in_both() -> None:
    def front(points: Sequence[tuple[float, float]], steadiness: float = 1.0, untold: float = 0.0) -> set[int]:
        better, faster = (
            (lambda i, j: points[i][1] < points[j][1] - untold),
            (lambda i, j: points[i][0] * steadiness < points[j][0]),
        )
        return pareto_front(len(points), better, faster)

    assert front([(1, 5), (2, 2), (3, 3), (5, 1), (2, 2), (5, 2)]) == {0, 1, 3, 4}
    nearly = [(1.00, 5), (1.04, 4), (1.00, 4.5), (2.1, 3), (2.0, 3.1)]
    assert front(nearly) == {1, 2, 3, 4}
    assert front(nearly, 1.06) == {1, 3}  # as fast as others, but for what a machine wavers
    assert front(nearly, 1.06, untold=0.2) == {1, 3, 4}  # and as good, but for chance
    assert front([(1, 5), (2, 4.9)], untold=0.2) == {0}


def plotted(comparison: Comparison, id: str) -> Any:
    return next(figure.plot for figure in figures(comparison) if figure.id == id)


def test_softmax_and_the_pairs_on_the_front_alone_are_named_and_these_are_filled(comparison: Comparison) -> None:
    trained = [result for result in comparison.results if result.pair is not None]

    def gain(name: str, i: int, j: int) -> Difference:
        return difference(trained[i], trained[j], METRICS[name], TINY.folds, len(trained) - 1)

    front = pareto_front(
        len(trained), lambda i, j: gain("brier", i, j).better, lambda i, j: gain("cost", i, j).low > METRICS["cost"].least_gain
    )
    plot = plotted(comparison, "cost")
    levels = [point["y"] for point in plot.layout.meta["line"]]
    assert levels == sorted(levels, reverse=True) == list(plot.data[0].y)
    assert levels[-1] == min(result.brier for i, result in enumerate(trained) if i in front)
    named = [re.sub("<.*?>", "", entry["text"]) for entry in plot.layout.meta["names"]]
    joined = {(point["x"], point["y"]) for point in plot.layout.meta["line"]}
    shown = [(1000 * result.step_seconds, result.brier) in joined or result is comparison.softmax for result in trained]
    assert named == [result.name if own else "" for result, own in zip(trained, shown, strict=True)]
    assert [not symbol.endswith("-open") for symbol in plot.data[-1].marker.symbol] == [i in front for i in range(len(trained))]


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_a_colour_and_a_symbol_belong_to_one_pair(comparison: Comparison, classes: int) -> None:
    results = tuple(replace(comparison.softmax, name=pair.name, pair=pair) for pair in pairs(classes))
    found = styles_of(replace(comparison, results=(*results, comparison.baseline)))
    assert len({(style["color"], style["symbol"]) for style in found.values()}) == len(results) + 1


def test_marks_stand_out_from_both_backgrounds() -> None:
    """3 : 1, which WCAG 2 asks of graphical objects."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    template = files("softmaxima_lab.pages").joinpath("page.html").read_text(encoding="utf-8")
    backgrounds = re.findall(r"--card: (#[0-9a-f]{6})", template)
    assert len(backgrounds) == 2
    for colour in {*COLOURS, GREY, *LEGEND.values()}:
        for background in backgrounds:
            low, high = sorted((luminance(colour), luminance(background)))
            assert (high + 0.05) / (low + 0.05) >= 3, (colour, background)


def test_empty_bins_are_hidden_and_counts_are_below(comparison: Comparison) -> None:
    trained = [result for result in comparison.results if result.pair is not None]
    assert any(not bin.rows for result in trained for bin in result.bins)
    traces = plotted(comparison, "reliability").data
    for result, dots, bars in zip(trained, traces[1::3], traces[2::3], strict=True):
        rows = [bin.rows for bin in result.bins if bin.rows]
        assert list(dots.text) == [f"{count} rows" for count in rows]
        assert bars.type == "bar"
        np.testing.assert_allclose(bars.y, 0.3 * np.array(rows) / sum(rows))
        np.testing.assert_allclose(bars.x, dots.x)
        sizes = np.array(dots.marker.size)
        large = sizes > sizes.min()
        np.testing.assert_allclose(sizes[large] ** 2 / sizes.max() ** 2, np.array(rows)[large] / max(rows))


def test_the_axis_of_differences_is_around_the_leaders(comparison: Comparison) -> None:
    """Whoever is far behind is an arrow, and changes no range."""
    last = [result for result in comparison.results if result is not comparison.softmax][-1]
    hopeless = replace(last, folds=tuple(replace(fold, accuracy=fold.accuracy - 1e6) for fold in last.folds))
    results = tuple(hopeless if result is last else result for result in comparison.results)
    plot = plotted(replace(comparison, results=results), "gain")
    low, high = plot.layout.xaxis.range
    assert (low, high) == pytest.approx(plotted(comparison, "gain").layout.xaxis.range)
    assert low < 0 < high
    dots, far, *_ = plot.data
    assert all(low <= x <= high for x in dots.x)
    assert any("◂ −100000" in note.text for note in plot.layout.annotations)
    assert len(dots.x) + len(far.x) == len(results) - 1


@pytest.mark.parametrize("metric", METRICS)
def test_the_figure_of_differences_says_what_the_table_says(comparison: Comparison, metric: str) -> None:
    comparison = replace(comparison, settings=replace(comparison.settings, metric=metric))
    cells = {
        result.name: gain_cell(comparison.gain(result), comparison.metric)
        for result in comparison.results
        if result is not comparison.softmax
    }
    plot = plotted(comparison, "gain")
    dots, far, left, right = plot.data
    written = {note.y: note.text.lstrip(" ◂") for note in plot.layout.annotations}
    assert list(written.items()) == [(label, cell.split(" ")[0]) for label, cell in zip(far.y, far.customdata, strict=True)]
    shown = dict(zip((*dots.y, *far.y), (*dots.customdata, *far.customdata), strict=True))
    assert {re.sub("<.*?>| [▲▼]$", "", label): cell for label, cell in shown.items()} == {
        name: cell for name, cell in cells.items() if cell != "–"
    }
    assert all((label[-1] in "▲▼") == (cell[-1] in "▲▼") for label, cell in shown.items())
    # No bar leaves the axis, and a triangle is where one would.
    low, high = plot.layout.xaxis.range
    x, before, after = (
        np.array([*a, *b])
        for a, b in ((dots.x, far.x), (dots.error_x.arrayminus, far.error_x.arrayminus), (dots.error_x.array, far.error_x.array))
    )
    ends, is_far = (x - before, x + after), np.arange(len(x)) >= len(dots.x)
    rounding = 1e-9 * (high - low)
    assert low - rounding <= ends[0].min() <= ends[1].max() <= high + rounding
    for cut, edge, triangles in ((ends[0] <= low + rounding, low, left), (ends[1] >= high - rounding, high, right)):
        cut = cut & ~(is_far & (edge == low))
        assert list(triangles.y) == [label for label, is_cut in zip((*dots.y, *far.y), cut, strict=True) if is_cut]
        assert set(triangles.x) <= {edge}
    # The bar of a mean beyond the edge begins there.
    by_name = {result.name: comparison.gain(result) for result in comparison.results}
    for label, bar in zip(far.y, far.error_x.array, strict=True):
        high_end = comparison.metric.in_unit(by_name[re.sub("<.*?>| [▲▼]$", "", label)].high)
        assert bar == pytest.approx(max(0.0, min(high, high_end) - low))


def test_the_numbers_of_the_table_and_of_the_classes_are_those_of_the_results(comparison: Comparison) -> None:
    text = page(comparison)
    table = re.search(r'<table id="pairs">.*?<tbody>(.*?)</tbody>', text, re.DOTALL)
    assert table is not None
    names = [html.unescape(name) for name in re.findall(r"<th scope='row'[^>]*>(.*?)</th>", table[1])]
    assert names == [result.name for result in comparison.results]
    recall = re.search(r"<table id='recall'>.*?<tbody>(.*?)</tbody>", text, re.DOTALL)
    assert recall is not None
    found = dict(re.findall(r"<th scope='row'>(.*?)</th>(.*?)</tr>", recall[1]))
    for (name, rows), counts in zip(comparison.facts.classes, comparison.softmax.classes, strict=True):
        cells = re.findall(r"<td>(.*?)</td>", found[name])
        assert cells[:2] == [str(rows), f"{100 * counts.hits / rows:.1f}"]
        assert len(cells) == 3


@pytest.mark.parametrize(("rows", "folds", "words"), [(None, 2, []), (9, 2, ["--quick"]), (9, 1, ["Partial", "--quick"])])
def test_a_first_look_is_called_one_beside_the_recommendation(
    comparison: Comparison, rows: int | None, folds: int, words: list[str]
) -> None:
    facts = replace(comparison.facts, notes=("read as UTF-16", Doubt("column 'a' gives it all away")))
    found = replace(comparison, facts=facts, settings=replace(comparison.settings, rows=rows), folds=comparison.folds[:folds])
    choice = re.search(r'<section class="choice">.*?</section>', page(found), re.DOTALL)
    assert choice is not None
    said = re.findall(r"<p class='reservation'>(.*?)</p>", choice[0])
    assert html.unescape(said[0]) == "Column 'a' gives it all away."
    assert page(found).count("gives it all away") == 1
    assert len(said) == 1 + len(words)
    assert all(word in text for word, text in zip(words, said[1:], strict=True))


def test_macro_f1_and_calibration_are_those_of_the_figures(comparison: Comparison) -> None:
    """Of all held-out rows together, and not the mean of folds, whose few rows make both worse."""
    plot = plotted(comparison, "reliability")
    trained = [result for result in comparison.results if result.pair is not None]
    for result, dots in zip(trained, plot.data[1::3], strict=True):
        rows = np.array([int(text.split()[0]) for text in dots.text])
        assert result.calibration == pytest.approx((rows * np.abs(np.array(dots.x) - np.array(dots.y))).sum() / rows.sum())
        both = [(counts.recall, counts.precision) for counts in result.classes]
        assert result.macro_f1 == pytest.approx(np.mean([2 * r * p / (r + p) if r + p else 0.0 for r, p in both]))
        assert result.calibration <= np.mean([fold.calibration for fold in result.folds]) + 1e-12


def of_softmaxs_rows(comparison: Comparison, **changes: Any) -> Comparison:
    """The comparison with another result in the place of the last, which predicted what softmax did but for the changes."""
    last = comparison.others[-1]
    folds = tuple(
        replace(fold, squares=fold.squares | {"softmax": dict.fromkeys(METRICS, 0.0)}, **changes)
        for fold in comparison.softmax.folds
    )
    results = tuple(replace(last, folds=folds) if result is last else result for result in comparison.results)
    return replace(comparison, results=results)


@pytest.mark.parametrize("metric", [metric.name for metric in METRICS.values() if not metric.by_ratio])
def test_what_is_the_same_on_every_row_is_called_so(comparison: Comparison, metric: str) -> None:
    found = of_softmaxs_rows(replace(comparison, settings=replace(TINY, metric=metric)), step_seconds=1.0)
    same = found.others[-1]
    assert sentence(found, same).startswith(f"The same {found.metric.words} as softmax on every row")
    assert gain_cell(found.gain(same), found.metric) == "same rows"
    assert "as many new ones may still differ" in caption(found)
    shown = next(trace for trace in gain_figure(found).plot.data if same.name in (trace.y or ()))
    assert (shown.error_x.array[list(shown.y).index(same.name)] > 0) == found.metric.is_mean_of_rows


def test_an_interval_that_would_leave_the_metrics_range_shows_its_ends(comparison: Comparison) -> None:
    """Two folds of 24 rows, in which some pairs are far apart."""
    cells = [gain_cell(comparison.gain(result), comparison.metric) for result in comparison.results]
    cut = [cell for cell in cells if "(" in cell]
    assert cut
    assert all(float(end.replace("−", "-")) <= 100 for cell in cells for end in re.findall(r"[\d.]+", cell))
    assert "go on beyond ±100.00" in caption(comparison)


def test_times_are_compared_in_per_cent_everywhere(comparison: Comparison) -> None:
    found = replace(comparison, settings=replace(comparison.settings, metric="cost"))
    slow = found.of("normmax")
    steps = [fold.step_seconds for fold in found.softmax.folds]
    slow = replace(
        slow,
        folds=tuple(
            replace(fold, step_seconds=(3 + i / 99) * step) for i, (fold, step) in enumerate(zip(slow.folds, steps, strict=True))
        ),
    )
    found = replace(found, results=tuple(slow if result.name == "normmax" else result for result in found.results))
    assert re.match(r"−20[01] \(−\d+ to ", gain_cell(found.gain(slow), found.metric))
    assert re.search(r"20[01] % slower \(", sentence(found, slow))
    assert ", %" in plotted(found, "gain").layout.xaxis.title.text.replace("<br>", " ")
    assert "log of the times" not in page(found)
    assert "± half" not in caption(found)
    assert not any("difference of" in sentence(found, result) for result in found.results)


def test_pairs_that_have_learnt_nothing_are_named_once(comparison: Comparison) -> None:
    frequencies = comparison.baseline.folds
    stupid = replace(comparison, results=tuple(replace(result, folds=frequencies) for result in comparison.results))
    assert unlearnt(stupid) == "Not known to have a better accuracy than class frequencies: all pairs."
    assert page(stupid).count("better accuracy than class frequencies") == 1 + stupid.recommendation.reason.count("better accuracy")


def test_a_pair_that_has_learnt_nothing_says_so_where_others_have(comparison: Comparison) -> None:
    told = "not known to have a better accuracy than class frequencies"
    trained = [result for result in comparison.results if result.name not in (BASELINE, "sparsemax")]
    learnt = [replace(r, folds=tuple(replace(fold, accuracy=0.9, squares={}) for fold in r.folds)) for r in trained]
    stupid = replace(comparison.of("sparsemax"), folds=comparison.baseline.folds)
    some = replace(comparison, results=(*learnt, stupid, comparison.baseline))
    results = some.results
    assert [result.name for result in results if told in sentence(some, result)] == ["sparsemax"]
    assert (page(some).count(told), unlearnt(some)) == (1, "")


def test_chosen_rates_are_said_with_those_at_an_end_of_the_grid(comparison: Comparison) -> None:
    assert rates(comparison) == ""
    tuned = replace(comparison, settings=replace(TINY, tune=True))
    assert rates(tuned).startswith("0.003 with ")
    assert "None" not in rates(tuned)
    softmax = replace(tuned.softmax, folds=tuple(replace(fold, learning_rate=3e-2) for fold in tuned.softmax.folds))
    tuned = replace(tuned, results=tuple(softmax if result is tuned.softmax else result for result in tuned.results))
    assert "; 0.03 with softmax (" in rates(tuned)
    assert rates(tuned).endswith("None above 0.03 was tried, which may be better there.")
    assert "Learning rates" in page(tuned)


@pytest.mark.parametrize(
    ("low", "high"), [(5e-8, 0.3), (1e-7, 1e-4), (0.31, 0.49), (0.6, 0.62), (0.2, 0.9), (2e-3, 5e-2), (1.0, 1e12)]
)
def test_an_axis_has_two_to_six_ticks(low: float, high: float) -> None:
    axis = logarithmic(low, high)
    assert 2 <= len(axis["tickvals"]) <= 6
    assert all(low <= tick <= high for tick in axis["tickvals"])
    assert len(set(axis["ticktext"])) == len(axis["ticktext"])


def test_classes_are_in_order_of_the_rows_that_are_named(comparison: Comparison) -> None:
    """Of an interrupted comparison some rows of a class have been held out, of which few more than of another."""
    rare = replace(
        comparison.softmax,
        folds=tuple(
            replace(fold, classes=tuple(replace(counts, rows=n) for counts, n in zip(fold.classes, (9, 3, 5), strict=True)))
            for fold in comparison.softmax.folds
        ),
    )
    found = replace(comparison, results=tuple(rare if result is comparison.softmax else result for result in comparison.results))
    assert rarest_first(found) == [1, 2, 0]
    assert list(plotted(found, "classes").data[0].x) == ["lily (6)", "rose (10)", "iris (18)"]


def test_top_k_is_explained_where_there_is_one(comparison: Comparison) -> None:
    def reading(found: Comparison) -> str:
        return next(figure.reading for figure in figures(found) if figure.id == "curves")

    assert "Top-k" in reading(comparison)
    assert "Top-k" not in reading(replace(comparison, results=(comparison.softmax, comparison.baseline)))


def test_what_is_slower_is_said_once(comparison: Comparison) -> None:
    def with_steps(result: Result, seconds: float) -> Result:
        return replace(result, folds=tuple(replace(fold, step_seconds=seconds) for fold in result.folds))

    softmax, first, second = comparison.softmax, *comparison.others[:2]
    steps = {softmax.name: 1e-3, first.name: 1.04e-3, second.name: 2e-3}
    results = tuple(with_steps(result, steps.get(result.name, 1e-3)) for result in comparison.results)
    found = replace(comparison, results=results)
    assert times(found) == f"By more than 5 %, for certain, a step of training is slower with {second.name}."
    assert not any("training step" in sentence(found, result) for result in results)
    assert times(replace(found, settings=replace(found.settings, metric="cost"))) == ""


def test_top_k_is_named_with_its_k() -> None:
    assert {pair.name for classes in (2, 3, 10) for pair in pairs(classes) if pair.map == "topk_softmax"} == {
        "top-1 softmax", "top-2 softmax", "top-3 softmax",
    }  # fmt: skip
    assert [pair.name for pair in choose(pairs(2), ["top-k softmax"])] == ["top-1 softmax"]


def test_the_page_has_one_sentence_a_pair(comparison: Comparison) -> None:
    listed = re.search(r'<ul class="pairs">(.*?)</ul>', page(comparison), re.DOTALL)
    assert listed is not None
    items = re.findall(r"<li><b>(.*?):</b> (.*?)</li>", listed[1])
    assert [html.unescape(name) for name, _ in items] == [result.name for result in comparison.results]
    assert all(re.fullmatch(r"[A-Z].*[^.]\.", words) and ". " not in words for _, words in items)


def test_the_page_tells_command_date_and_versions(comparison: Comparison) -> None:
    text = page(replace(comparison, command="softmaxima compare a.csv --seed 7", date="2001-02-03", versions={"torch": "9.8.7"}))
    assert "<span class='option'>--seed</span>" in text
    facts = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", re.sub("</?span.*?>", "", text)))
    assert (facts["Command"], facts["Date"], facts["Versions"]) == (
        "softmaxima compare a.csv --seed 7",
        "2001-02-03",
        "torch 9.8.7",
    )
    facts = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page(comparison)))
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", facts["Date"])
    assert {f"softmaxima {softmaxima.__version__}", f"torch {torch.__version__}"} <= set(facts["Versions"].split(", "))


def test_the_page_escapes_what_comes_from_the_table(comparison: Comparison) -> None:
    nasty = "</script><script>alert(1)</script><b>&"
    facts = replace(comparison.facts, name=nasty, target=nasty, notes=(nasty,))
    text = page(replace(comparison, facts=facts))
    assert "alert(1)" in text
    assert "<script>alert" not in text
    assert "<b>&" not in text


def test_the_page_asks_nothing_of_the_network(comparison: Comparison) -> None:
    text = page(comparison)
    assert "<script src" not in text
    assert "<link" not in text
    assert text.count("plotly.js v") == 1


def test_every_map_is_drawn_once(comparison: Comparison) -> None:
    trained = [result.pair for result in comparison.results if result.pair is not None]
    maps = drawn_maps(trained)
    assert len({(pair.map, *pair.params.items()) for pair in maps.values()}) == len(maps)
    assert {pair.map for pair in maps.values()} == {pair.map for pair in trained}
    assert all(figure.reading.endswith(".") for figure in figures(comparison))


@pytest.mark.parametrize("classes", [2, 3, 4, 5, 6, 7, 10, 100])
def test_groups_of_support_sizes_hold_every_size_once(classes: int) -> None:
    assert sorted(size for sizes in support_groups(classes).values() for size in sizes) == list(range(classes + 1))


# What cannot be used --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"folds": 1}, "--folds"),
        ({"repeats": 0}, "--repeats"),
        ({"metric": "recall"}, "--metric"),
        ({"epochs": 0}, "--epochs"),
        ({"seed": -1}, "--seed"),
        ({"seed": 2**32}, "--seed"),
        ({"model": "cnn"}, "--model"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], part: str) -> None:
    with pytest.raises(InputError, match=part):
        Settings(**settings)


def test_unknown_pairs_are_refused_with_those_that_there_are() -> None:
    with pytest.raises(InputError, match=r"'hardmax'; choose among: softmax, .*sparsemax"):
        choose(pairs(3), ["softmax", "hardmax"])


@pytest.mark.parametrize(
    ("begun", "whole"),
    [("top-p", "top-p softmax"), ("Top P", "top-p softmax"), ("top-k", "top-3 softmax"), ("top", "top-3 softmax or top-p softmax"),
     ("normalised", "normalised sigmoid or normalised softplus or normalised square"), ("rectified", "rectified softmax")],
)  # fmt: skip
def test_a_name_that_is_not_whole_is_refused_with_the_whole_ones(begun: str, whole: str) -> None:
    with pytest.raises(InputError) as refused:
        choose(pairs(10), [begun])
    assert str(refused.value) == f"--maps: there is no pair or map {begun!r}; write the whole name: {whole}"
    assert choose(pairs(10), whole.split(" or "))


def test_classes_are_checked_before_anything_is_trained(table: Table) -> None:
    check_classes(table, Settings(folds=16))
    with pytest.raises(InputError, match="--folds 16"):
        compare(table, Settings(folds=17), advanced=lambda steps: pytest.fail("training started"))


@pytest.mark.parametrize("numeric", [True, False])
@pytest.mark.parametrize("least", [1, 2, 3])
@pytest.mark.parametrize("classes", [2, 3, 10, 40])
def test_folds_are_advised_wherever_they_work_and_nowhere_else(classes: int, least: int, numeric: bool) -> None:
    labels = np.repeat(np.arange(classes), [least, *[least + 1] * (classes - 1)])
    table = Table("t", "y", numeric, np.zeros((len(labels), 1)), labels, tuple(map(str, range(classes))))
    with pytest.raises(InputError) as refused:
        check_classes(table, Settings(folds=5))
    advised = re.findall(r"--folds (\d+)", str(refused.value))
    assert advised == ([str(least)] if least >= 2 else [])
    if advised:
        check_classes(table, Settings(folds=least))
