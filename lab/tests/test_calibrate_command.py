"""`softmaxima calibrate` tells the temperature and what it is worth on held-out rows, and what is wrong in one line."""

from __future__ import annotations

import inspect
import json
import math
import re
from pathlib import Path
from typing import Any, get_args

import numpy as np
import polars as pl
import pytest
import torch

from conftest import Run
from softmaxima.base.numbers import InputError
from softmaxima.temperature.calibration import METHODS, calibrate_temperature
from softmaxima_lab.calibrate.calibration import Settings, calibrated, crossed_classes
from softmaxima_lab.calibrate.calibration_peers import beside_others
from softmaxima_lab.calibrate.calibration_scores import Scores, read_scores
from softmaxima_lab.commands.calibrate import calibrate
from softmaxima_lab.compare.measures import METRICS
from softmaxima_lab.compare.record import written as as_text
from softmaxima_lab.pages.calibration import BESIDE_OTHERS, columns, lines, page, reliability_figure, settings_in_words

NAMES = ["ant", "bee", "cat"]


@pytest.fixture
def run(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The same in a directory with the tables s.csv and p.csv."""
    monkeypatch.chdir(tmp_path)
    scores().write_csv("s.csv")
    x, labels = logits()
    p = torch.from_numpy(x).softmax(-1).numpy()
    pl.DataFrame(dict(zip(NAMES, p.T, strict=True)) | {"y": [NAMES[label] for label in labels]}).write_csv("p.csv")
    return run


def logits(rows: int = 400, temperature: float = 3.0) -> tuple[np.ndarray, np.ndarray]:
    """Which should be divided by that."""
    random = np.random.default_rng(0)
    x = 2 * random.standard_normal((rows, len(NAMES)))
    labels = np.argmax(x + random.gumbel(size=x.shape), -1)
    return temperature * x, labels


def scores(**more: Any) -> pl.DataFrame:
    x, labels = logits()
    order = [2, 0, 1]  # of columns, not that of the alphabet
    named = {NAMES[place]: x[:, place] for place in order}
    return pl.DataFrame(named | {"y": [NAMES[label] for label in labels]} | more)


@pytest.mark.parametrize("columns", [["a", "b", "y"], ["y", "a", "b"], ["a", "y", "b"]])
def test_scores_are_nobody_elses_memory(columns: list[str], tmp_path: Path) -> None:
    for _ in range(20):  # two columns may lie together
        x = np.random.default_rng(0).standard_normal((40, 2))
        frame = pl.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": ["a", "b"] * 20})
        frame.select(columns).write_csv(tmp_path / "t.csv")
        assert read_scores(tmp_path / "t.csv", "y").x.flags.writeable


def test_scores_that_need_no_calibration_are_seldom_told_worse_for_it() -> None:
    """What was fitted to other folds is then as much of the variance as a row's own gain."""
    random, told, misses = np.random.default_rng(0), 0, 0
    for seed in range(60):
        x = 2 * random.standard_normal((200, 3))
        labels = np.argmax(x + random.gumbel(size=x.shape), -1)
        gain = calibrated(Scores("s", "t", ("a", "b", "c"), x, labels), Settings(seed=seed)).gains["log-loss"]
        told += gain.worse or gain.better
        misses += not gain.low <= 0 <= gain.high
    assert told == misses <= 2  # without it 11 %


def test_probabilities_that_do_not_sum_to_1_are_told(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("ant,bee,y\n" + "0.2,0.8,ant\n0.9,0.1,bee\n" * 9 + "0.2,0.2,ant\n")
    notes = read_scores(tmp_path / "t.csv", "y", probabilities=True).notes
    assert any("1 row with another sum of probabilities than 1 (0.4 to 1), which is divided by" in note for note in notes)
    (tmp_path / "t.csv").write_text("ant,bee,y\n" + "0.2,0.8,ant\n0.9,0.1,bee\n" * 9)
    assert not any("another sum" in note for note in read_scores(tmp_path / "t.csv", "y", probabilities=True).notes)


def found_in(directory: str = "softmaxima-calibrate") -> dict[str, Any]:
    return json.loads(Path(directory, "results.json").read_text())


def test_it_tells_the_temperature_and_writes_a_page(run: Run):
    code, said, wrong = run("calibrate", "s.csv", "--target", "y")
    assert (code, wrong) == (0, "")
    tau = calibrate_temperature(*logits()).temperature
    assert f"Divide the scores by τ = {tau:.4g}. On held-out rows the log loss with calibration is better by" in " ".join(
        said.split()
    )
    assert f"probabilities = sm.softmax(scores, temperature={tau:.6g})" in said
    assert said.endswith("written: softmaxima-calibrate/results.json, softmaxima-calibrate/report.html\n")
    found = found_in()
    assert found["calibration"]["temperature"] == pytest.approx(tau, rel=1e-12)
    assert len(found["temperatures"]) == 5
    assert found["after"]["log_loss"] < found["before"]["log_loss"]
    assert found["gains"]["log-loss"]["low"] > 0
    shown = Path("softmaxima-calibrate/report.html").read_text()
    assert "Divide the scores by τ" in shown
    assert "as they are" in shown


def test_every_row_is_measured_by_what_was_fitted_to_others():
    x, labels = logits()
    given = Scores("t", "y", tuple(NAMES), x, labels)
    result = calibrated(given, Settings(folds=2), command="c")
    assert len(result.temperatures) == 2
    assert result.after.rows == len(x)
    best = calibrate_temperature(x, labels)
    assert best.after.log_loss < result.after.log_loss < best.after.log_loss + 0.01
    assert result.before.log_loss == pytest.approx(best.before.log_loss, rel=1e-12)
    gain = result.gains["log-loss"]
    assert gain.low < result.before.log_loss - result.after.log_loss < gain.high
    again = calibrated(given, Settings(folds=2), command="c")
    assert again.after == result.after
    assert calibrated(given, Settings(folds=2, seed=1), command="c").after != result.after


def test_probabilities_give_the_same(run: Run):
    assert run("calibrate", "s.csv", "--out=a")[0] == 0
    code, said, _ = run("calibrate", "p.csv", "--probabilities", "--out=b")
    assert code == 0
    assert "sm.softmax(np.log(probabilities), temperature=" in said
    one, other = found_in("a"), found_in("b")
    assert one["calibration"]["temperature"] == pytest.approx(other["calibration"]["temperature"], rel=1e-10)
    pl.read_csv("p.csv").with_columns(pl.col(NAMES).round(2)).write_csv("r.csv")
    pl.read_csv("r.csv").with_columns(pl.col(NAMES) * 100).write_csv("c.csv")
    as_such = "take them as such with --probabilities"
    for name, told in (("p", as_such), ("r", as_such), ("c", "divide them by 100, and give --probabilities")):
        said = " ".join(run("calibrate", f"{name}.csv", "--out=c")[1].split())
        assert "Look first whether the scores are probabilities. " in said
        assert told in said
        assert "temperature=" not in said
    assert "of 0 counted as 0.005 or less" in run("calibrate", "r.csv", "--probabilities", "--out=d")[1]


@pytest.mark.parametrize("method", ["per-class", "vector", "matrix"])
def test_every_method_and_json(run: Run, method: str):
    penalty = () if method == "per-class" else ("--penalty=0.1",)
    code, said, _ = run("calibrate", "s.csv", f"--method={method}", "--json", "--folds=4", "--seed=3", *penalty, "--out=o")
    assert code == 0
    found = json.loads(said)
    assert found == found_in("o")
    assert found["settings"]["method"] == method.replace("-", "_")
    assert np.shape(found["calibration"]["factors"]) == ((3, 3) if method == "matrix" else (3,))
    assert (found["calibration"]["bias"] is None) == (method == "per-class")
    assert "whose numbers are in results.json" in found["recommendation"]["headline"]


def test_what_is_calibrated_is_left_as_it_is(run: Run):
    x, labels = logits(temperature=1.0)
    frame = dict(zip(NAMES, x.T, strict=True)) | {"y": [NAMES[label] for label in labels]}
    pl.DataFrame(frame).write_csv("c.csv")
    code, said, _ = run("calibrate", "c.csv")
    assert code == 0
    assert "Leave the scores as they are." in said
    assert "cannot be told from that without" in " ".join(said.split())
    assert found_in()["recommendation"]["code"] is None


def test_scores_without_fault_are_told(run: Run):
    labels = np.arange(60) % 3
    x = 3.0 * np.eye(3)[labels] + 0.1 * np.random.default_rng(0).standard_normal((60, 3))
    pl.DataFrame(dict(zip(NAMES, x.T, strict=True)) | {"y": [NAMES[label] for label in labels]}).write_csv("c.csv")
    code, said, _ = run("calibrate", "c.csv")
    assert code == 0
    assert "as if one in 62 were wrong, Platt's rule for 60 rows" in " ".join(said.split())


def test_scores_that_tell_nothing_give_every_class_the_same():
    x, labels = logits(90)
    mixed = np.random.default_rng(1).permutation(labels)
    result = calibrated(Scores("t", "y", tuple(NAMES), x, mixed), Settings(), command="c")
    infinite = sum(map(math.isinf, result.temperatures))
    assert math.isinf(result.calibration.temperature)
    assert (result.headline, result.code) == ("Look first whether the columns and the labels are in one order", "")
    assert infinite
    assert f"∞ in {infinite} of 5: more rows would tell better." in result.reservations[-1]
    for said in (*result.reservations, result.reason, *settings_in_words(result).values()):
        assert not re.search(r"\binf\b", said)


@pytest.mark.parametrize("wrong", [None, "permuted", "swapped"])
def test_scores_that_are_not_those_of_the_classes_are_no_advice(wrong: str | None):
    """A temperature makes the log loss of shuffled labels and swapped columns less too."""
    for seed in range(5):
        random = np.random.default_rng(seed)
        labels = random.integers(0, 3, 300)
        x = random.standard_normal((300, 3))
        x[np.arange(300), labels] += 1.5
        x, labels = (
            6 * (x[:, [1, 0, 2]] if wrong == "swapped" else x),
            random.permutation(labels) if wrong == "permuted" else labels,
        )
        result = calibrated(Scores("t", "y", tuple(NAMES), x, labels), Settings(), command="c")
        assert result.headline.startswith("Divide" if wrong is None else "Look first")
        assert bool(result.code) == (wrong is None)
        assert result.crossed == ((("ant", "bee"),) if wrong == "swapped" else ())


def sure(rows: int, margin: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Calibrated scores, by which nearly every row is of its likeliest class."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((rows, len(NAMES)))
    x[np.arange(rows), random.integers(0, len(NAMES), rows)] += margin
    return x, np.argmax(x + random.gumbel(size=x.shape), -1)


@pytest.mark.parametrize(("classes", "told"), [(2, (("0", "1"),)), (10, ())])
def test_columns_are_called_swapped_by_the_error_of_all_pairs_together(classes: int, told: tuple[Any, ...]):
    """Three and a half errors apart: beyond 3.1 of one pair with a false alarm in a thousand, within 4.1 of 45."""
    rows, labels = 20, np.repeat(np.arange(classes), 20)
    x = np.where(np.arange(classes) > 1, 100.0 * (labels[:, None] == np.arange(classes)), 0.0)
    x[: 2 * rows, 0] = np.tile([1.0, -1.0], rows)
    x[:rows, 0] -= 3.5 * math.sqrt(2 * np.var(x[:rows, 0], ddof=1) / rows)
    assert crossed_classes(Scores("scores", "target", tuple(map(str, range(classes))), x, labels)) == told


def test_calibrated_scores_are_not_divided_because_no_row_shows_what_an_error_costs():
    def is_better(x: np.ndarray, labels: np.ndarray) -> bool:
        return calibrated(Scores("t", "y", tuple(NAMES), x, labels), Settings(), command="c").changed.better

    tables = [sure(rows, margin, seed) for rows, margin in ((60, 5.0), (150, 6.0)) for seed in range(10)]
    assert sum(is_better(*table) for table in tables) <= 1  # 7 by the spread of the rows alone
    assert is_better(*logits(temperature=0.4))


def test_gains_are_means_over_rows_whatever_the_folds():
    for rows in (11, 60):
        x, labels = logits(rows)
        for folds in (2, 5):
            result = calibrated(Scores("t", "y", tuple(NAMES), x, labels), Settings(folds=folds), command="c")
            for name, gain in result.gains.items():
                attribute = METRICS[name].attribute
                change = getattr(result.before, attribute) - getattr(result.after, attribute)
                assert gain.mean == pytest.approx(change, rel=1e-9)
                assert gain.low < gain.mean < gain.high


@pytest.mark.parametrize("size", [1e7, 1e100, 1e200, 1e308])
def test_scores_of_no_classifier_are_one_line_and_masks_are_none(size: float):
    x, labels = logits(60)
    for is_own in (True, False):
        for sign in (1, -1):
            odd = x.copy()
            odd[0, (labels[0] + (not is_own)) % 3] = sign * size
            given = Scores("t", "y", tuple(NAMES), odd, labels)
            if size > 1e100 or is_own != (sign > 0):
                with pytest.raises(InputError, match=r"in row 1 the score of its class .* as of no classifier"):
                    calibrated(given, Settings(), command="c")
            else:
                shown = calibrated(given, Settings(), command="c")
                assert max(len(column.cell(line)) for line in lines(shown) for column in columns(shown)) < 40


def test_every_difference_is_told_with_its_direction():
    random = np.random.default_rng(0)
    rare = (random.random(200) < 0.1).astype(np.int64)
    told = random.integers(0, 3, 200)
    noise, sure = random.standard_normal((200, 2)), 9 * np.eye(3)[np.where(random.random(200) < 0.3, 0, told)]
    for x, labels in ((noise, rare), (10 * noise, rare), (sure, told), logits(), logits(temperature=1.0)):
        result = calibrated(Scores("t", "y", tuple(NAMES[: x.shape[-1]]), x, labels), Settings(), command="c")
        said = re.findall(r"(better|worse) by ([+−]?)[0-9]", result.reason)
        gains = [result.changed] if result.informed.better else [result.informed, result.changed]
        assert len(said) == len(gains)
        for (way, sign), gain in zip(said, gains, strict=True):
            assert (way == "worse") == gain.worse
            assert bool(sign) == (not gain.better and not gain.worse)


def test_columns_may_be_left_out_and_classes_be_without_rows(run: Run):
    scores(id=range(400), dog=np.full(400, -9.0)).select("id", *NAMES, "dog", "y").write_csv("m.csv")
    code, _, wrong = run("calibrate", "m.csv")
    assert code == 2
    assert "columns 'id', 'dog' have the name of no class in 'y'; leave them out with --without" in wrong
    code, said, _ = run("calibrate", "m.csv", "--without=id", "--absent=dog")
    assert code == 0
    assert "4 classes" in said
    assert found_in()["table"]["classes"][-1] == ["dog", 0]


def with_classes(names: list[str], rows: int = 60) -> pl.DataFrame:
    random = np.random.default_rng(0)
    columns = dict(zip(names, random.standard_normal((len(names), rows)), strict=True))
    return pl.DataFrame(columns | {"kind": [names[i % len(names)] for i in range(rows)]})


@pytest.mark.parametrize(
    "names",
    [["0", "1"], ["0", "1", "2"], ["-1", "1"], ["1", "3", "5"], ["0.0", "1.0"], ["EU", "NA"], ["none", "1", "2"], ["a,b", "?"]],
    ids=" ".join,
)
def test_classes_may_have_any_name(names: list[str], tmp_path: Path):
    frame = with_classes(names)
    for suffix, write in (("csv", pl.DataFrame.write_csv), ("parquet", pl.DataFrame.write_parquet)):
        for order in (frame.columns, ["kind", *names]):
            write(frame.select(order), path := tmp_path / f"t.{suffix}")
            found = read_scores(path, "kind")
            assert sorted(found.classes) == sorted(names)
            np.testing.assert_array_equal(found.x, frame.select(found.classes).to_numpy())
            assert [found.classes[label] for label in found.labels] == frame["kind"].to_list()
    with_points = frame.with_columns(pl.col("kind").replace({"0": "0.0", "1": "1.0"}))
    with_points.write_csv(tmp_path / "t.csv")
    np.testing.assert_array_equal(read_scores(tmp_path / "t.csv").labels, np.arange(60) % len(names))


ODD: list[dict[str, Any]] = [
    {"bee": -pl.col("ant")},
    {"bee": pl.lit(0.0)},
    {"bee": pl.lit(None)},
    {"bee": pl.lit("1.10")},
    {"bee": pl.Series([f"{i},5" for i in range(60)])},
    {"bee": pl.lit("5 %")},
    {"bee": pl.lit("x")},
    {"kind": pl.Series(["ant", "bee", "none"] * 20)},
    {"kind": pl.Series(["ant", "bee", "NA"] * 20)},
    {"kind": pl.lit("ant")},
    {"id": pl.int_range(60)},
]


@pytest.mark.parametrize("change", ODD, ids=range(len(ODD)))
def test_only_options_that_there_are_are_advised(change: dict[str, Any], tmp_path: Path):
    frame = with_classes(["ant", "bee"]).with_columns(**change)
    for suffix, write in (("csv", pl.DataFrame.write_csv), ("parquet", pl.DataFrame.write_parquet)):
        write(frame, path := tmp_path / f"t.{suffix}")
        try:
            said = " ".join(read_scores(path, "kind").notes)
        except InputError as error:
            said = str(error)
        assert set(re.findall(r"--([a-z-]+)", said)) <= inspect.signature(calibrate).parameters.keys()
        assert not re.search("no use|only what another", said)


def test_rows_that_occur_again_are_told(tmp_path: Path):
    frame = with_classes(["ant", "bee"])
    for given, told in (
        (frame, ()),
        (pl.concat([frame, frame]), ("60 of 120 rows have the scores and the class of an earlier one",)),
    ):
        given.write_csv(tmp_path / "t.csv")
        notes = read_scores(tmp_path / "t.csv").notes
        assert [note.startswith(words) for note, words in zip(notes, told, strict=True)] == [True] * len(told)


def test_an_array_has_its_columns_in_the_order_of_the_classes(tmp_path: Path):
    x, labels = logits()
    np.savez(tmp_path / "s.npz", X=x, y=labels)
    found = read_scores(tmp_path / "s.npz")
    np.testing.assert_array_equal(found.x, x)
    np.testing.assert_array_equal(found.labels, labels)
    np.savez(tmp_path / "s.npz", X=x[labels != 1], y=labels[labels != 1])
    with pytest.raises(InputError, match=r"3 columns without names .* name in --absent what classes no row has"):
        read_scores(tmp_path / "s.npz")
    found = read_scores(tmp_path / "s.npz", absent=["1"])
    assert found.classes == ("0", "1", "2")
    np.testing.assert_array_equal(found.labels, labels[labels != 1])


@pytest.mark.parametrize(
    ("change", "options", "told"),
    [
        ({}, ["--seed=-1"], "--seed must be an int from 0 to 4294967295, got -1"),
        ({}, ["--seed=4294967296"], "--seed must be an int from 0 to 4294967295, got 4294967296"),
        ({}, ["--folds=1"], "--folds must be an int of at least 2, got 1"),
        ({}, ["--penalty=0.1"], "--penalty is for biases and matrices, and method 'temperature' has none; leave it out"),
        ({}, ["--method=vector", "--penalty=-1"], "--penalty must be a finite number of at least 0"),
        ({}, ["--method=isotonic"], "isotonic"),
        ({}, ["--target=z"], "there is no column 'z'"),
        ({}, ["--absent=z"], "--absent: there is no column 'z'"),
        ({}, ["--absent="], "--absent: no name is given"),
        ({}, ["--absent=cat"], "--absent: there are rows of 'cat'"),
        ({"ant": None}, [], "scores are missing in 'ant' (400 rows); fill them in, or leave those rows out"),
        ({}, ["--without=ant"], "has classes without a column of scores: 'ant'"),
        ({}, ["--probabilities"], "--probabilities takes numbers between 0 and 1"),
        ({}, ["--folds=1000"], "1000 folds, each held out once, need 2000 rows, got 400; add rows, or take fewer --folds"),
        ({"ant": 1.0, "bee": 1.0, "cat": 1.0}, [], "the scores of each row are equal"),
        ({"ant": "x"}, [], "scores are numbers, and 'ant' are none"),
        ({"ant": math.inf}, [], "infinite values in 'ant'"),
    ],
)
def test_what_is_wrong_is_one_line(run: Run, change: dict[str, Any], options: list[str], told: str):
    scores().with_columns(**{name: pl.lit(value) for name, value in change.items()}).write_csv("w.csv")
    code, said, wrong = run("calibrate", "w.csv", *options)
    assert (code, said) == (2, "")
    assert told in wrong
    assert wrong.count("\n") == 1


def test_a_table_without_rows_says_so(run: Run):
    Path("none.csv").write_text("a,b,y\n")
    code, out, err = run("calibrate", "none.csv")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "no row has a value of the target 'y'; check that the table has rows" in err


def test_truth_values_have_the_columns_that_python_names(tmp_path: Path):
    x, labels = logits()
    pl.DataFrame({"False": x[:, 0], "True": x[:, 1], "y": labels == 1}).write_parquet(tmp_path / "b.parquet")
    found = read_scores(tmp_path / "b.parquet")
    np.testing.assert_array_equal(found.labels, labels == 1)


def test_it_replaces_its_own_results_and_nobody_elses(run: Run):
    assert run("calibrate", "s.csv", "--target=y", "--out=out")[0] == 0
    assert run("calibrate", "p.csv", "--target=y", "--probabilities", "--out=out")[0] == 0
    assert found_in("out")["table"]["name"] == "p.csv"
    before = as_text({"experiment": "compare", "partial": False})
    Path("out", "results.json").write_text(before)
    code, _, err = run("calibrate", "s.csv", "--target=y", "--out=out")
    assert (code, "holds a softmaxima compare that is done; choose another --out" in err) == (2, True)
    assert Path("out", "results.json").read_text() == before


def test_a_file_that_is_not_there_is_told(run: Run):
    assert "there is no file none.csv" in run("calibrate", "none.csv")[2]
    Path("a file").touch()
    assert "--out: cannot write to a file" in run("calibrate", "s.csv", "--out=a file")[2]


def test_an_interrupt_is_one_line(run: Run, monkeypatch: pytest.MonkeyPatch):
    def interrupted(*_: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("softmaxima_lab.calibrate.calibration.calibrate_safely", interrupted)
    code, _, wrong = run("calibrate", "s.csv")
    assert (code, wrong) == (130, "softmaxima: interrupted\n")


def test_the_figure_has_a_dot_for_each_bin_with_rows():
    x, labels = logits()
    result = calibrated(Scores("t", "y", tuple(NAMES), x, labels), Settings(), command="c")
    drawn = reliability_figure(result).plot
    for line, markers in zip(lines(result), drawn.select_traces({"mode": "markers"}), strict=True):
        filled = [bin for bin in line.measured.bins if bin.rows]
        assert list(markers.y) == [bin.hits / bin.rows for bin in filled]
        for share, up, down in zip(markers.y, markers.error_y.array, markers.error_y.arrayminus, strict=True):
            assert 0 <= share - down <= share <= share + up <= 1
    assert [column.cell(lines(result)[0]) for column in columns(result)][2] == ""
    assert page(result).count("<section") == 4


def test_beside_others_it_is_no_worse(monkeypatch: pytest.MonkeyPatch):
    x, labels = logits(600)
    monkeypatch.setattr("softmaxima_lab.calibrate.calibration_peers.datasets", lambda seed: [("drawn", x, labels)])
    found = {peer.name: peer for peer in beside_others(repeats=1)}
    ours, theirs, none = (found[name] for name in ("softmaxima", "scikit-learn", "none"))
    assert ours.held_out.log_loss == pytest.approx(theirs.held_out.log_loss, abs=1e-6)
    assert ours.temperature == pytest.approx(theirs.temperature, rel=1e-5)
    assert ours.held_out.log_loss < none.held_out.log_loss
    assert {"softmaxima, per_class", "softmaxima, vector", "softmaxima, matrix"} <= set(found)


def test_the_page_has_the_caption_of_its_table():
    assert (
        f"*{BESIDE_OTHERS} `softmaxima docs calibration --run`, "
        in Path(__file__).parents[2].joinpath("docs/temperature.md").read_text()
    )


def test_it_offers_every_method():
    options = inspect.get_annotations(calibrate, eval_str=True)
    offered = get_args(get_args(options["method"])[0])
    assert [name.replace("-", "_") for name in offered] == list(METHODS)


def test_scores_that_do_not_fit_are_an_input_error(tmp_path: Path):
    with pytest.raises(InputError, match="there is no such file"):
        read_scores(tmp_path / "none.csv")
