"""`compare --save` and `predict`: a model in a file predicts what it did, and a file that holds anything else runs nothing."""

from __future__ import annotations

import contextlib
import datetime
import io
import json
import os
import pickle
import re
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import skops.io
import torch

from conftest import Run, exhaustively
from softmaxima.base.numbers import InputError
from softmaxima.integrations.classifier import Classifier
from softmaxima_lab.compare import model as models
from softmaxima_lab.compare.model import Model, load, predict, save
from softmaxima_lab.compare.table import Settings, trained
from softmaxima_lab.tables.encoding import Encoder, digest
from softmaxima_lab.tables.reading import read_frame
from softmaxima_lab.tables.tables import read_table
from softmaxima_lab.tables.values import Known, KnownColumn

FAST = ("--model=linear", "--folds=3", "--epochs=200", "--maps=softmax,sparsemax", "--metric=log-loss")
SUFFIXES = (".pt", ".skops")
both = pytest.mark.parametrize("suffix", SUFFIXES)


@pytest.fixture
def run(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The same in a directory with the table t.csv."""
    monkeypatch.chdir(tmp_path)
    flowers().write_csv("t.csv")
    return run


def flowers(rows: int = 120) -> pl.DataFrame:
    """Three classes that length and code tell; the codes look like numbers where one is missing."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, rows)
    return pl.DataFrame(
        {
            "length": labels + 0.2 * random.standard_normal(rows),
            "width": random.standard_normal(rows),
            "code": np.array(["001", "002", "blue"])[(labels + (random.random(rows) < 0.2)) % 3],
            "species": np.array(["iris", "lily", "rose"])[labels],
        }
    )


def learnt(frame: pl.DataFrame, missing: str = "refuse", **options: Any) -> Model:
    """What learnt from a frame whose last column is the target."""
    encoder = Encoder.fit(frame, frame.columns[-1])
    classifier = Classifier(hidden=(), learning_rate=0.02, random_state=0, missing=missing, **options)
    rows = encoder.matrix(frame), encoder.labels(frame)
    return Model(classifier.fit(*rows), encoder, digest(*rows))


# From the command line ----------------------------------------------------------------------------------------------------


@both
def test_a_saved_model_predicts_what_it_was_trained_to(run: Run, suffix: str):
    code, said, _ = run("compare", "t.csv", *FAST, "--save", f"m{suffix}")
    assert code == 0
    taken = json.loads(Path("softmaxima-compare/results.json").read_text())["recommendation"]["pair"]
    assert f"saved: m{suffix}, {taken} trained on all 120 rows" in said
    code, said, _ = run("predict", f"m{suffix}", "t.csv", "--out", "p.csv")
    assert code == 0
    assert "accuracy " in said
    assert "of 120 rows" in said
    frame, table = pl.read_csv("p.csv"), read_table(Path("t.csv"))
    settings = Settings("linear", folds=3, epochs=200)
    classifier = load(Path(f"m{suffix}")).classifier
    again = Classifier(**classifier.get_params()).fit(table.features, table.labels)
    assert (classifier.epochs, classifier.hidden) == (settings.epochs, ())
    np.testing.assert_array_equal(frame[:, 2:].to_numpy(), again.predict_proba(table.features))
    assert frame["row"].to_list() == list(range(1, 121))
    assert frame.columns[2:] == ["probability of iris", "probability of lily", "probability of rose"]
    assert (frame["predicted"] == flowers()["species"]).mean() > 0.8


def test_a_comparison_that_is_done_is_saved_without_another_one(run: Run):
    assert run("compare", "t.csv", *FAST)[0] == 0
    folds = json.loads(Path("softmaxima-compare/results.json").read_text())["folds"]
    assert run("compare", "t.csv", *FAST, "--resume", "--save", "new/m.pt")[0] == 0
    assert json.loads(Path("softmaxima-compare/results.json").read_text())["folds"] == folds
    assert load(Path("new/m.pt")).classifier.score(read_table(Path("t.csv")).features, read_table(Path("t.csv")).labels) > 0.8


def test_without_out_the_first_rows_are_printed(run: Run):
    save(Path("m.pt"), learnt(flowers()))
    flowers().drop("species")[:12].write_csv("new.csv")
    code, said, _ = run("predict", "m.pt", "new.csv")
    assert code == 0
    assert "accuracy" not in said
    assert "2 more; --out predictions.csv writes all" in said


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_rows_that_are_printed_fit_the_terminal(run: Run, width: int, monkeypatch: pytest.MonkeyPatch):
    many = flowers().with_columns(species=pl.Series([f"class {i % 12}" for i in range(120)]))
    save(Path("m.pt"), learnt(many))
    monkeypatch.setenv("COLUMNS", str(width))
    code, said, _ = run("predict", "m.pt", "t.csv")
    assert code == 0
    lines = said.splitlines()
    shown = [line for line in lines if re.fullmatch(r" *\d+ +class \d+( +[01]\.\d{4})* *", line)]
    assert len(shown) == 10
    assert max(map(len, shown)) <= width
    probabilities = len(re.findall(r"[01]\.\d{4}", shown[0]))
    assert 0 < probabilities < 12 or width == 120
    assert (f"{12 - probabilities} of 12 classes do not fit here; --out predictions.csv has all" in lines) == (probabilities < 12)


def test_noise_gives_no_model(run: Run):
    random = np.random.default_rng(1)
    pl.DataFrame({"a": random.standard_normal(90), "b": random.standard_normal(90), "y": np.arange(90) % 2}).write_csv("noise.csv")
    code, said, error = run("compare", "noise.csv", *FAST, "--save", "m.pt")
    assert "Nothing to choose" in said
    assert code == 1
    assert "nothing is saved" in error
    assert not Path("m.pt").exists()


def test_tuned_models_take_the_median_of_the_learning_rates_of_their_folds():
    from softmaxima.integrations.pairs import usual_pair
    from softmaxima.maps import find_map

    table = read_table()
    pair = usual_pair(find_map("sparsemax"))
    folds = [{pair.name: type("Fold", (), {"learning_rate": rate})} for rate in (1e-3, 1e-2, 3e-2)]
    classifier = trained(table, Settings("linear", epochs=1), pair, folds)  # type: ignore[arg-type]
    assert classifier.learning_rate == 1e-2
    assert classifier.map == "sparsemax"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("compare", "t.csv", "--save", "m.pkl"), "--save: a model's file ends in .skops or .pt, got 'm.pkl'"),
        (("compare", "t.csv", "--save", "t.csv/m.pt"), "--save: cannot write to t.csv/m.pt"),
        (("predict", "none.pt", "t.csv"), "there is no file none.pt"),
        (("predict", "m.pt", "."), ". is a directory"),
        (("compare", "."), ". is a directory"),
        (("predict", "m.pt", "none.csv"), "there is no file none.csv"),
        (("predict", "t.csv", "m.pt"), "ends in .skops or .pt"),
        (("predict", "m.pt", "t.csv", "--out", "t.csv"), "--out: t.csv is what is read"),
        (("predict", "m.pt", "t.csv", "--out", "t.csv/p.csv"), "--out: cannot write to t.csv/p.csv"),
        (("predict", "m.pt", "t.csv", "--out", "."), "is a directory"),
    ],
    ids=str,
)
def test_a_wrong_path_is_told_before_any_work(run: Run, arguments: tuple[str, ...], words: str):
    save(Path("m.pt"), learnt(flowers()))
    code, said, error = run(*arguments)
    assert (code, said) == (2, "")
    assert words in error


# Rows ---------------------------------------------------------------------------------------------------------------------


def predicted(frame: pl.DataFrame | str, tmp_path: Path, missing: str = "refuse", of: pl.DataFrame | None = None) -> Any:
    """What a model of the flowers says of other rows."""
    save(tmp_path / "m.pt", learnt(flowers() if of is None else of, missing))
    path = tmp_path / "new.csv"
    path.write_text(frame if isinstance(frame, str) else frame.write_csv())
    return predict(load(tmp_path / "m.pt"), path)


def test_columns_may_come_in_another_order_and_with_others(tmp_path: Path):
    expected = predicted(flowers(), tmp_path)
    other = flowers().select("species", "code", pl.lit(1).alias("more"), "width", "length")
    np.testing.assert_array_equal(predicted(other, tmp_path).p, expected.p)


@pytest.mark.parametrize("columns", [("length", "width", "code"), ("length",), ("code",)], ids=str)
def test_a_table_may_be_without_the_target(columns: tuple[str, ...], tmp_path: Path):
    learnt_from = flowers().select(*columns, "species")
    whole = predicted(learnt_from, tmp_path, of=learnt_from)
    for rows in (120, 1):
        found = predicted(learnt_from.drop("species")[:rows], tmp_path, of=learnt_from)
        np.testing.assert_array_equal(found.p, whole.p[:rows])
        assert (found.score, found.scored) == (None, 0)


@pytest.mark.parametrize("others", [{}, {"ids": np.arange(40)}], ids=str)
def test_an_archive_may_be_without_the_target(others: dict[str, np.ndarray], tmp_path: Path):
    x = np.random.default_rng(0).standard_normal((40, 3))
    np.savez(tmp_path / "known.npz", X=x, y=(x[:, 0] > 0).astype(int))
    np.savez(tmp_path / "new.npz", X=x, **others)
    table = read_table(tmp_path / "known.npz")
    model = Model(Classifier(hidden=(), random_state=0).fit(table.features, table.labels), table.encoder, "")  # type: ignore[arg-type]
    whole, found = (predict(model, tmp_path / name) for name in ("known.npz", "new.npz"))
    np.testing.assert_array_equal(found.p, whole.p)
    assert whole.score is not None
    assert found.score is None
    with pytest.raises(InputError, match="needs arrays X and y"):
        read_table(tmp_path / "new.npz")


def test_a_score_of_the_rows_learnt_from_is_called_one(tmp_path: Path):
    told = "these are the rows that the model learnt from, which says little of new ones"
    assert [told in predicted(rows, tmp_path).notes for rows in (flowers(), flowers()[1:], flowers()[::-1])] == [True, False, False]


def test_texts_stay_texts_where_all_look_like_numbers(tmp_path: Path):
    numbers = flowers().filter(pl.col("code") != "blue")
    found = predicted(numbers, tmp_path)
    assert not found.notes
    assert found.score.accuracy > 0.9


def test_a_category_that_is_new_is_said_and_counts_as_none(tmp_path: Path):
    found = predicted("length,width,code\n1,0.5,003\n2,0.1,002\n", tmp_path)
    assert any("'code': '003' (1 row) was not in the rows learnt from" in note for note in found.notes)
    assert np.isfinite(found.p).all()


@pytest.mark.parametrize(
    ("text", "line"), [("length,width,code\n1,0,001\n,,\n2,0,001\n", 4), ("\nlength,width,code\n1,0,001\n\n2,0,001\n", 5)]
)
def test_rows_keep_their_numbers_where_empty_ones_are_left_out(text: str, line: int, tmp_path: Path):
    assert predicted(text, tmp_path).frame["row"].to_list() == [1, 3]
    with pytest.raises(InputError, match=rf"missing values in 'width' \(line {line}\)"):
        predicted(text.replace("2,0", "2,"), tmp_path)


@pytest.mark.parametrize(
    ("learnt_from", "asked", "read_as"),
    [
        (["21/04/2020", "02/01/2020"], "01/02/2021", 18659),  # days since 1970 of 1 February
        (["21.04.20", "02.01.20"], "01.02.21", 18659),
        (["5,100", "12,345.5"], "5,100", 5100),
        (["0.25", "0.5"], "1.250", 1.25),
        (["1.234,5", "0,5"], "1.250", 1250),
    ],
)
@pytest.mark.parametrize("separator", [",", ";"])
def test_what_can_be_read_in_two_ways_is_read_as_it_was_learnt(
    learnt_from: list[str], asked: str, read_as: float, separator: str, tmp_path: Path
):
    rows = [f'"{cell}"{separator}{"ab"[i % 2]}' for i, cell in enumerate(learnt_from * 10)]
    (tmp_path / "t.csv").write_text("\n".join([f"x{separator}y", *rows]))
    encoder = read_table(tmp_path / "t.csv").encoder
    (column,) = Encoder.from_dict(json.loads(json.dumps(encoder.as_dict()))).columns
    for other in ",;":
        (tmp_path / "new.csv").write_text(f'x{other}z\n"{asked}"{other}1\n')
        frame = read_frame(tmp_path / "new.csv", Known({"x": KnownColumn(written=column.written)})).frame
        assert column.values(frame["x"]).tolist() == [read_as]


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize(("rows", "with_target"), [(1, False), (1, True), (7, False), (7, True)])
def test_a_model_of_a_table_without_names_predicts_rows_without_names(place: int, rows: int, with_target: bool, tmp_path: Path):
    random = np.random.default_rng(0)
    cells = [random.permutation(40) / 8, random.permutation(40) / 4]
    cells.insert(place, np.arange(40) % 2)
    frame = pl.DataFrame({f"column {i}": column for i, column in enumerate(cells, 1)})
    frame.write_csv(tmp_path / "known.csv", include_header=False)
    new = frame[:rows] + 1000.0  # no number of the file that was learnt from is about as large
    target = f"column {place + 1}"
    table = read_table(tmp_path / "known.csv", target)
    model = Model(Classifier(hidden=(), random_state=0).fit(table.features, table.labels), table.encoder, "")  # type: ignore[arg-type]
    (new if with_target else new.drop(target)).write_csv(tmp_path / "new.csv", include_header=False)
    found = predict(model, tmp_path / "new.csv")
    np.testing.assert_array_equal(found.p, model.classifier.predict_proba(new.drop(target).to_numpy()))
    assert found.frame["row"].to_list() == list(range(1, rows + 1))
    (new if with_target else new.drop(target)).write_csv(tmp_path / "named.csv")
    np.testing.assert_array_equal(predict(model, tmp_path / "named.csv").p, found.p)


def test_names_that_are_known_are_no_row_whatever_is_below(tmp_path: Path):
    table = pl.DataFrame({"1": [0.0, 1.0] * 9, "2": [2.0, 3.0] * 9, "y": ["a", "b"] * 9})
    assert predicted("2,1\n2,1\n", tmp_path, of=table).frame["row"].to_list() == [1]


@pytest.mark.parametrize(
    ("learnt_from", "asked", "value"),
    [
        (["5 kg", "7 kg"], "6 kg", 6.0),
        (["5%", "7 %"], "6%", 0.06),
        (["5%", "7 %"], "0.06", 0.06),
        (["5 kg", "7 kg"], "6 g", "'x' is in 'g', not in 'kg', which was learnt from"),
        (["5", "unknown"], "unknown", None),
        (["2021-01", "2021-02"], "1970-02", 31.0),
        (["1 year", "2 years"], "1 year", 1.0),
        (["3 years", "2 years"], "1 year", 1.0),
        (["1 year", "1 year"], "3 years", 3.0),
    ],
)
def test_units_and_words_are_those_that_were_learnt(learnt_from: list[str], asked: str, value: Any, tmp_path: Path):
    rows = [f"{cell},{'ab'[i % 2]}" for i, cell in enumerate(learnt_from * 10)]
    (tmp_path / "t.csv").write_text("\n".join(["x,y", *rows]))
    encoder = read_table(tmp_path / "t.csv", missing="impute").encoder
    assert encoder is not None
    encoder = Encoder.from_dict(json.loads(json.dumps(encoder.as_dict())))
    (tmp_path / "new.csv").write_text(f"x\n{asked}\n")
    reading = read_frame(tmp_path / "new.csv", encoder.known)
    if isinstance(value, str):
        assert value in " ".join(reading.misfits)
        return
    assert reading.misfits == ()
    np.testing.assert_array_equal(encoder.matrix(reading.frame), [[np.nan if value is None else value]])
    assert any("without the unit" in note for note in reading.notes) == (asked == "0.06")


@pytest.mark.parametrize(
    ("learnt_from", "new", "words"),
    [
        ("x,y|12.7,a|6.5,b", "x|12.7%", "'x' is in '%', not in a plain number"),
        ("x,y|12.7,a|6.5,b", "x|12700 g", "'x' is in 'g', not in a plain number"),
        ('x,w,y|"1,5","12,7",a|"2,5","6,5",b', "x,w|12.700,6.48|63.500,1.25", "with a decimal comma.*has a decimal point"),
        ("x,w,y|1.5,12.7,a|2.5,6.5,b", "x;w|12,700;6,480|63,500;0,25", "with a decimal point.*has a decimal comma"),
    ],
)
def test_numbers_that_are_written_otherwise_than_learnt_are_refused(learnt_from: str, new: str, words: str, tmp_path: Path):
    header, *rows = learnt_from.split("|")
    (tmp_path / "t.csv").write_text("\n".join([header, *rows * 9]))
    encoder = read_table(tmp_path / "t.csv").encoder
    assert encoder is not None
    (tmp_path / "new.csv").write_text("\n".join(new.split("|")))
    assert re.search(words, " ".join(read_frame(tmp_path / "new.csv", encoder.known).misfits))


@pytest.mark.parametrize(
    ("learnt_from", "asked", "words"),
    [
        (["1.5", "2"], ["wide", "3"], "numbers, .*'wide' in line 2"),
        (["1,5", "2"], ["1,5", "2.5"], "numbers, .*'2.5' in line 3"),
        (["5 kg", "7 kg"], ["6 kg", "8", "300 g"], "numbers in 'kg', .*'300 g' in line 4"),
        (["5 years", "7 years"], ["1 year", "2 years", "old"], "numbers in 'years', .*'old' in line 4"),
        (["5%", "7%"], ["6%", "0", "0.07"], "numbers in '%', .*'0.07' in line 4"),
        (["2021-01-03", "2021-02-04"], ["2021-03-04", "2021-02-30"], "dates, .*'2021-02-30' in line 3"),
        (["2021-01", "2021-02"], ["spring", "2021-03"], "dates, .*'spring' in line 2"),
        (["2021-01", "2021-03"], ["20210405", "20210406"], "dates, .*'20210405' in line 2"),
    ],
)
def test_the_value_that_is_none_of_what_was_learnt_is_named_with_its_row(
    learnt_from: list[str], asked: list[str], words: str, tmp_path: Path
):
    (tmp_path / "t.csv").write_text("x;y\n" + "".join(f"{cell};{'ab'[i % 2]}\n" for i, cell in enumerate(learnt_from * 9)))
    table = read_table(tmp_path / "t.csv")
    model = Model(Classifier(hidden=(), epochs=1).fit(table.features, table.labels), table.encoder, "")  # type: ignore[arg-type]
    (tmp_path / "new.csv").write_text("x;z\n" + "".join(f"{cell};1\n" for cell in asked))
    with pytest.raises(InputError, match=words):
        predict(model, tmp_path / "new.csv")


@pytest.mark.parametrize("written", ["%d/%m/%Y", "%d/%m/%y", "%d/%m/%Y %H:%M"])
def test_days_stay_before_months_where_they_were_learnt_so(written: str, tmp_path: Path):
    days = [datetime.date(2021, 1, 25), datetime.date(2021, 2, 26)]
    (tmp_path / "t.csv").write_text("x,y\n" + "".join(f"{day:%d/%m/%Y},{day.day}\n" for day in days) * 9)
    encoder = read_table(tmp_path / "t.csv").encoder
    assert encoder is not None
    (tmp_path / "new.csv").write_text(f"x\n{datetime.date(2021, 6, 5).strftime(written)}\n")
    frame = read_frame(tmp_path / "new.csv", encoder.known).frame
    assert frame["x"].cast(pl.Date).to_list() == [datetime.date(2021, 6, 5)]


@pytest.mark.parametrize(
    "names",
    [
        *(("2021-03", "2021-04"), ("10:20", "11:30"), ("5G", "4G"), ("5%", "10%"), ("2021Q3", "2021Q4"), ("1.234,5", "2.345,6")),
        *(("1.1", "1.10"), ("01", "1"), ("2", "1E5"), ("1.0", "2.0"), ("1.234", "2.345"), ("0,5", "1,5")),
    ],
)
@pytest.mark.parametrize("separator", [",", exhaustively(";")])
def test_classes_keep_their_names(names: tuple[str, str], separator: str, tmp_path: Path):
    quoted = [f'"{name}"' for name in names]
    text = f"x{separator}y\n" + "".join(f'"{i % 2},5"{separator}{quoted[i % 2]}\n' for i in range(40))
    (tmp_path / "t.csv").write_text(text)
    table = read_table(tmp_path / "t.csv")
    assert sorted(table.classes) == sorted(names)
    assert table.encoder is not None
    model = Model(Classifier(hidden=(), epochs=1).fit(table.features, table.labels), table.encoder, "")
    assert predict(model, tmp_path / "t.csv").scored == 40


def test_a_class_is_the_same_with_and_without_a_point(tmp_path: Path):
    (tmp_path / "t.csv").write_text("x,y\n" + "1,10.0\n2,2\n3,2.0\n4,1.5\n" * 9)
    table = read_table(tmp_path / "t.csv")
    assert table.classes == ("1.5", "2", "10.0")
    assert table.encoder is not None
    for classes in ([10, 2, 3], [10.0, 2.0, 3.0], ["10", "2.0", "3"]):
        assert table.encoder.labels(pl.DataFrame({"y": classes})).tolist() == [2, 1, -1]


def test_words_for_a_missing_value_are_texts_in_columns_of_categories(tmp_path: Path):
    (tmp_path / "t.csv").write_text("x,y\n" + "NA,EU\nEU,NA\nunknown,AS\n" * 9)
    table = read_table(tmp_path / "t.csv", categories=["x", "y"])
    assert table.classes == ("AS", "EU", "NA")
    assert table.encoder is not None
    assert table.encoder.columns[0].categories == ("EU", "NA", "unknown")
    known = Encoder.from_dict(json.loads(json.dumps(table.encoder.as_dict()))).known
    assert read_frame(tmp_path / "t.csv", known).frame["x"].null_count() == 0


def test_words_that_were_said_to_be_missing_are_so_in_new_rows(tmp_path: Path):
    (tmp_path / "t.csv").write_text("a,b,y\n" + "1,x,u\n2,unclear,v\n3,z,u\n" * 9)
    encoder = read_table(tmp_path / "t.csv", missing="impute", missing_words=["unclear"]).encoder
    assert encoder is not None
    (tmp_path / "new.csv").write_text("a,b\n1,unclear\n")
    frame = read_frame(tmp_path / "new.csv", encoder.known).frame
    assert frame["b"].to_list() == [None]
    assert encoder.unknown(frame) == ()


def test_rows_of_an_unknown_class_are_not_scored(tmp_path: Path):
    found = predicted("length,width,code,species\n1,0.5,001,tulip\n0.1,0.1,001,iris\n2,0,002,\n", tmp_path)
    assert found.scored == 1
    assert any("not scored" in note and "2 rows" in note for note in found.notes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("length,width\n1,2\n", "there is no column 'code'"),
        ("length,width,code\n1,2,001\n,2,001\n", r"missing values in 'length' \(line 3\)"),
        ("length,width,code\n1,2,\n1,2,001\n", r"missing values in 'code' \(line 2\)"),
        ("length,width,code\n1,2,001\n1,inf,001\n", r"infinite values in 'width' \(line 3\)"),
        ("length,width,code\n1,2,001\n\n1,wide,001\n", "'width' must hold numbers, as where it was learnt, got 'wide' in line 4"),
    ],
)
def test_what_a_model_cannot_take_is_named(text: str, words: str, tmp_path: Path):
    with pytest.raises(InputError, match=words):
        predicted(text, tmp_path)


def test_a_model_that_was_trained_on_missing_values_takes_them(tmp_path: Path):
    gaps = flowers().with_columns(pl.when(pl.int_range(pl.len()) % 5 > 0).then(pl.col("length")).alias("length"))
    found = predicted("length,width,code\n,0.5,001\n,0.1,002\n", tmp_path, "impute", gaps)
    assert np.isfinite(found.p).all()
    assert predicted(gaps, tmp_path, "impute", gaps).score.accuracy > 0.8


@pytest.mark.parametrize("classes", [[1, 2], [1.5, 2.5], [True, False], ["1", "x"]], ids=str)
def test_classes_of_any_kind_are_scored(classes: list, tmp_path: Path):
    frame = flowers().with_columns(pl.Series("species", [classes[kind != "iris"] for kind in flowers()["species"]]))
    assert predicted(frame, tmp_path, of=frame).score.accuracy > 0.8
    assert predicted(frame[:1], tmp_path, of=frame).scored == 1


# Files --------------------------------------------------------------------------------------------------------------------


@both
def test_a_damaged_file_is_refused_or_predicts_the_same(suffix: str, tmp_path: Path):
    model = learnt(flowers())
    classifier, encoder = model.classifier, model.encoder
    save(path := tmp_path / f"m{suffix}", model)
    content, expected = path.read_bytes(), classifier.predict_proba(encoder.matrix(flowers()))
    refused = 0
    for place in np.random.default_rng(0).integers(0, len(content), 60):
        path.write_bytes(content[:place] + bytes([content[place] ^ 64]) + content[place + 1 :])
        try:
            found = load(path)
        except InputError:
            refused += 1
        else:
            np.testing.assert_array_equal(found.classifier.predict_proba(encoder.matrix(flowers())), expected)
    assert refused > 0


@both
@pytest.mark.parametrize("how", ["packed", "of members that overlap"])
def test_a_file_that_would_fill_a_memory_is_refused_before_it_is_unpacked(suffix: str, how: str, tmp_path: Path):
    save(tmp_path / f"whole{suffix}", learnt(flowers()))
    with zipfile.ZipFile(tmp_path / f"whole{suffix}") as whole, zipfile.ZipFile(path := tmp_path / f"m{suffix}", "w") as archive:
        for name in whole.namelist():
            kind = zipfile.ZIP_DEFLATED if how == "packed" else zipfile.ZIP_STORED
            archive.writestr(name, whole.read(name), kind)
        if how != "packed":  # one more name in the table, for what is there already
            largest = max(archive.infolist(), key=lambda member: member.file_size)
            archive.filelist += [largest] * 99
    with pytest.raises(InputError, match="what it holds is packed"):
        load(path)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["mean_", "scale_", "network_"])
def test_numbers_that_no_training_leaves_are_refused(name: str, wrong: float):
    classifier = learnt(flowers()).classifier
    record = classifier.as_dict()
    array = record["learnt"][name]
    (array[0][0] if name == "network_" else array)[0] = wrong
    if (name, wrong) == ("scale_", np.inf):  # of a constant
        Classifier.from_dict(record)
        return
    with pytest.raises(ValueError, match="that no training leaves"):
        Classifier.from_dict(record)


@both
def test_every_classifier_comes_back_as_it_was(suffix: str, tmp_path: Path):
    frame = flowers()
    for options in (
        {},
        {"map": "proportional", "map_params": {"f": torch.sigmoid}, "loss": "eps_cross_entropy"},
        {"head": "cosine", "temperature": 0.5, "loss": "arcface", "loss_params": {"margin": 0.1}},
        {"missing": "impute", "early_stopping": True},
    ):
        options = options | ({"loss_params": {"map": "proportional", "f": torch.sigmoid}} if "map" in options else {})
        model = learnt(frame, **options)
        classifier, encoder = model.classifier, model.encoder
        save(path := tmp_path / f"m{suffix}", model)
        found = load(path)
        assert found.encoder == encoder
        assert found.classifier.as_dict()["params"] == classifier.as_dict()["params"]
        np.testing.assert_array_equal(
            found.classifier.predict_proba(encoder.matrix(frame)), classifier.predict_proba(encoder.matrix(frame))
        )


class Planted:
    """What writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.path}",)


def as_pickle(record: dict[str, Any], path: Path) -> bytes:
    return pickle.dumps(record)


def as_archive(record: dict[str, Any], path: Path) -> bytes:
    torch.save(record, file := io.BytesIO())
    return file.getvalue()


@pytest.mark.parametrize("write", [as_pickle, as_archive])
def test_a_pickle_that_would_run_a_command_does_not(write: Callable, tmp_path: Path):
    target = tmp_path / "ran"
    save(path := tmp_path / "m.pt", learnt(flowers()))
    record = torch.load(path, weights_only=True) | {"more": Planted(target)}
    path.write_bytes(write(record, path))
    with pytest.raises(InputError, match=r"m\.pt is not a model that softmaxima compare --save wrote"):
        load(path)
    assert not target.exists()
    pickle.loads(pickle.dumps(Planted(target)))
    assert target.exists(), "the plant is one that works"


class Stranger:
    """A type that skops does not know."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        Path(state["path"]).touch()


@pytest.mark.parametrize("place", ["more", "classifier", "parameter"])
def test_a_skops_file_with_another_type_is_refused_and_makes_none(place: str, tmp_path: Path):
    target = tmp_path / "ran"
    save(path := tmp_path / "m.skops", learnt(flowers()))
    stranger = Stranger()
    vars(stranger)["path"] = str(target)
    record = skops.io.load(path, trusted=list(models.TRUSTED))
    if place == "parameter":
        vars(record["classifier"])["map"] = stranger
    else:
        record[place] = stranger
    skops.io.dump(record, path)
    with pytest.raises(InputError, match="holds objects that no model has, and that might run code"):
        load(path)
    assert not target.exists()


def test_a_function_in_a_skops_file_is_refused(tmp_path: Path):
    save(path := tmp_path / "m.skops", learnt(flowers(), map="proportional", map_params={"f": "sigmoid"}))
    record = skops.io.load(path, trusted=list(models.TRUSTED))
    for function in (np.exp, os.system):
        vars(record["classifier"])["map_params"] = {"f": function}
        skops.io.dump(record, path)
        with pytest.raises(InputError):
            load(path)


def tampered(record: dict[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """What is put in the place of an entry, and what is said."""
    yield "kind", "another", "something else than a model"
    yield "format", 2, "is of format 2"
    yield "encoder", {}, "is not a model"
    yield "encoder", record["encoder"] | {"classes": ("a",)}, "do not fit"
    encoder = record["encoder"]
    first, *others = encoder["columns"]
    for wrong in (True, 1, ("a",), torch.zeros(1)):
        yield "encoder", encoder | {"classes": (wrong, *encoder["classes"][1:])}, "must be texts"
        yield "encoder", encoder | {"words": (wrong,)}, "must be texts"
        for name, value in (("categories", (wrong,)), ("name", wrong), ("unit", wrong), ("written", wrong)):
            yield "encoder", encoder | {"columns": (first | {name: value}, *others)}, "must be texts"
    classifier = record["classifier"]
    for part, name, value in (
        ("params", "map", "none"),
        ("params", "loss", "system"),
        ("params", "missing", "drop"),
        ("params", "map_params", {"f": "system"}),
        ("params", "unknown", 1),
        ("learnt", "network_", ()),
        ("learnt", "network_", ((torch.zeros(3, 1), torch.zeros(3)),)),
        ("learnt", "mean_", torch.zeros(2)),
        ("learnt", "mean_", "text"),
        ("learnt", "missing_", torch.tensor([99])),
        ("learnt", "classes_", [0]),
    ):
        yield "classifier", classifier | {part: classifier[part] | {name: value}}, "is not a model"


def test_a_file_that_was_changed_is_refused(tmp_path: Path):
    save(path := tmp_path / "m.pt", learnt(flowers()))
    record = torch.load(path, weights_only=True)
    for name, value, words in tampered(record):
        torch.save(record | {name: value}, path)
        with pytest.raises(InputError, match=words):
            load(path)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to all that a record holds; of a long list to its first entries."""
    if path:
        yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, (list, tuple)) else ()
    for key, entry in entries:
        yield from places(entry, (*path, key))


def put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """The record with another entry at a path."""
    if not path:
        return new
    if isinstance(value, dict):
        return value | {path[0]: put(value[path[0]], path[1:], new)}
    return type(value)(put(entry, path[1:], new) if key == path[0] else entry for key, entry in enumerate(value))


def test_what_is_small_in_a_file_and_large_in_memory_is_refused_wherever_it_stands(tmp_path: Path):
    gaps = flowers().with_columns(pl.when(pl.int_range(pl.len()) % 5 > 0).then(pl.col("length")).alias("length"))
    save(path := tmp_path / "m.pt", learnt(gaps, "impute"))
    record = torch.load(path, weights_only=True)
    many: list[Any] = [0]
    for _ in range(12):
        many = [many] * 10
    for place in places(record):
        for bomb in (torch.zeros(1).expand(10**9), many):
            torch.save(put(record, place, bomb), path)
            assert path.stat().st_size < 20_000
            with pytest.raises(InputError, match="what it holds is larger than the file"):
                load(path)
    flowers().write_csv(tmp_path / "t.csv")
    for place in places(record):  # what could be gone through as a list, and is none
        torch.save(put(record, place, torch.zeros(3)), path)
        with contextlib.suppress(InputError):
            predict(load(path), tmp_path / "t.csv")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the memory of a library has no limit of ours")
def test_a_scalar_of_many_bytes_in_a_skops_file_is_refused_in_bounded_memory(tmp_path: Path):
    import resource

    save(path := tmp_path / "m.skops", learnt(flowers()))
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    node = {"__class__": "void", "__module__": "numpy", "__loader__": "NdArrayNode", "type": "numpy", "file": "n.npy"}
    np.save(file := io.BytesIO(), np.array(2 * 10**9))  # numpy.void(3) is three bytes
    schema = json.loads(members["schema.json"])
    schema["content"]["learnt_from"] = node
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in (members | {"n.npy": file.getvalue(), "schema.json": json.dumps(schema).encode()}).items():
            archive.writestr(name, content)
    with pytest.raises(InputError, match="not a model"):
        load(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1.5e6  # in KiB


def raiser(error: Exception) -> Callable[..., Any]:
    def raised(*_: Any) -> None:
        raise error

    return raised


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"
        ),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8 GiB"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_memory_that_is_full_is_told_in_a_sentence(run: Run, error: Exception, monkeypatch: pytest.MonkeyPatch):
    save(Path("m.pt"), learnt(flowers()))
    monkeypatch.setattr(Classifier, "predict_proba", raiser(error))
    code, _, said = run("predict", "m.pt", "t.csv")
    assert (code, said) == (1, "softmaxima: memory ran out; free some, or give less at a time\n")


@both
def test_a_file_of_another_kind_is_refused(suffix: str, tmp_path: Path):
    path = tmp_path / f"m{suffix}"
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("schema.json", json.dumps({"protocol": 99}))
    save(tmp_path / f"whole{suffix}", learnt(flowers()))
    whole = (tmp_path / f"whole{suffix}").read_bytes()
    for content in (b"", b"text", (tmp_path / "other.zip").read_bytes(), whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(InputError, match="not a model") as refused:
            load(path)
        said = {b"": ": it is empty; give", b"text": ": it begins with b'text'; give"}.get(content, "or is damaged; save it again")
        assert said in str(refused.value)
    if suffix == ".pt":
        torch.save([1], path)
    else:
        skops.io.dump([1], path)
    with pytest.raises(InputError, match="something else"):
        load(path)
