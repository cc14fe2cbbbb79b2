"""Tables as people have them: how a file is read, what is said of it, and what is refused."""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import re
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import datasets

from softmaxima.base.numbers import InputError
from softmaxima_lab.commands import main
from softmaxima_lab.tables.encoding import Encoder
from softmaxima_lab.tables.reading import read_frame
from softmaxima_lab.tables.suspicions import Doubt, suspicions
from softmaxima_lab.tables.tables import Table, read_table
from softmaxima_lab.tables.values import Known, KnownColumn

Read = Callable[..., Table]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """The table in a file with that text or those bytes."""

    def read(content: str | bytes, name: str = "t.csv", **options: Any) -> Table:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return read_table(path, **options)

    return read


def flowers(rows: int = 48) -> pl.DataFrame:
    """Three classes that the first two features tell apart."""
    random = np.random.default_rng(0)
    labels = np.arange(rows) % 3
    return pl.DataFrame(
        {
            "length": labels + 0.6 * random.standard_normal(rows),
            "width": (labels == 1) + 0.6 * random.standard_normal(rows),
            "petals": random.integers(0, 9, rows),
            "species": np.array(["iris", "lily", "rose"])[labels],
        }
    )


def frame_with(labels: np.ndarray, **columns: Any) -> bytes:
    """A CSV of those columns beside two of noise, the target last."""
    random = np.random.default_rng(1)
    noise = {f"noise {number}": random.standard_normal(len(labels)) for number in range(2)}
    return pl.DataFrame({**noise, **columns, "y": labels}).write_csv().encode()


# Formats ------------------------------------------------------------------------------------------------------------------


def test_the_bundled_digits_are_the_default_table() -> None:
    digits = read_table()
    assert (digits.rows, digits.features.shape, len(digits.classes)) == (1797, (1797, 64), 10)
    assert digits.notes == ()


def test_every_format_of_one_table_gives_the_same_table(tmp_path: Path) -> None:
    frame = flowers()
    frame.write_csv(tmp_path / "t.csv")
    frame.write_csv(tmp_path / "semicolons.csv", separator=";")
    frame.write_csv(tmp_path / "decimal commas.csv", separator=";", decimal_comma=True)
    frame.write_csv(tmp_path / "t.tsv", separator="\t")
    frame.write_csv(tmp_path / "bars.txt", separator="|")
    frame.write_csv(tmp_path / "marked.csv", include_bom=True)
    frame.write_parquet(tmp_path / "t.parquet")
    frame.write_ipc(tmp_path / "t.feather")
    np.savez(tmp_path / "t.npz", X=frame.drop("species").to_numpy(), y=frame["species"].to_numpy().astype(str))
    (tmp_path / "wide.txt").write_bytes((tmp_path / "t.tsv").read_text().encode("utf-16"))
    (tmp_path / "dos.csv").write_bytes((tmp_path / "t.csv").read_bytes().replace(b"\n", b"\r\n"))
    for name in ("t.csv", "t.tsv", "t.parquet"):
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress((tmp_path / name).read_bytes()))
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w") as archive:
            archive.write(tmp_path / name, f"folder/{name}")
            archive.writestr("__MACOSX/folder/t.csv", "")
            archive.writestr("readme.md", "")
    for name, packed in (("gzip.csv", "t.csv.gz"), ("zip.csv", "t.csv.zip"), ("unpacked.csv.gz", "t.csv")):  # by their first bytes
        (tmp_path / name).write_bytes((tmp_path / packed).read_bytes())
    found = {path.name: read_table(path) for path in sorted(tmp_path.iterdir())}
    assert len(found) == 20
    assert {name for name, table in found.items() if table.digest != found["t.csv"].digest} == set()
    assert {table.classes for table in found.values()} == {("iris", "lily", "rose")}
    assert found["t.csv"].notes == found["t.csv.gz"].notes == ()
    assert found["semicolons.csv"].notes == ("columns are separated by ';'",)
    assert found["t.tsv"].notes == ("columns are separated by tabs",)
    assert found["wide.txt"].notes == ("read as UTF-16", "columns are separated by tabs")
    assert found["decimal commas.csv"].notes[1].startswith("read as numbers: 'length' ('")


@given(
    cells=st.lists(
        st.tuples(st.floats(-1e9, 1e9), st.text("ab ,;|\"\n'\té", max_size=5), st.sampled_from(["u", "v"])), min_size=6, max_size=20
    ),
    separator=st.sampled_from(",;\t|"),
)
def test_quoted_texts_hold_separators_quotes_and_line_breaks(cells: list, separator: str, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("t") / "t.csv"
    frame = pl.DataFrame(cells, schema=["number", "text", "y"], orient="row")
    frame.write_csv(path, separator=separator, quote_style="always")
    found = read_frame(path, Known(dict.fromkeys(["text", "y"], KnownColumn(is_text=True)))).frame
    assert found.columns == frame.columns
    assert found["number"].cast(pl.Float64).to_list() == frame["number"].to_list()
    # a blank between a separator and a quote may be lost within a text, where a file has them before quoted texts
    read, written = (
        [(text or "").replace(f'{separator} "', f'{separator}"') for text in texts] for texts in (found["text"], frame["text"])
    )
    assert read == [text.strip() for text in written]


def test_text_boolean_and_categorical_columns_become_indicators(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {
            "colour": ["red", "blue", "red", "green"],
            "number": [1, 2, 3, 4],
            "sweet": [True, False, True, False],
            "size": pl.Series(["s", "m", "s", "m"], dtype=pl.Categorical),
            "class": ["a", "b", "a", "b"],
        }
    )
    frame.write_parquet(tmp_path / "t.parquet")
    table = read_table(tmp_path / "t.parquet")
    assert table.notes == ("one-hot encoded, with so many indicator columns: 'colour' (3), 'sweet' (2), 'size' (2)",)
    blue, green, red = (0, 1, 0, 0), (0, 0, 0, 1), (1, 0, 1, 0)
    no, yes = (0, 1, 0, 1), (1, 0, 1, 0)
    m, s = (0, 1, 0, 1), (1, 0, 1, 0)
    np.testing.assert_array_equal(table.features.T, [blue, green, red, (1, 2, 3, 4), no, yes, m, s])


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        ([3, 10, 3, 10], ("3", "10")),
        ([3.0, 10.0, 3.0, 10.0], ("3", "10")),
        ([0.5, 10.0, 0.5, 10.0], ("0.5", "10")),
        (["3", "b", "3", "b"], ("3", "b")),
        ([False, True, False, True], ("false", "true")),
    ],
)
def test_a_target_may_be_ints_integer_valued_floats_text_or_booleans(tmp_path: Path, values: list[Any], classes: tuple) -> None:
    pl.DataFrame({"x": [1.0, 2.0, 3.0, 4.0], "y": values}).write_parquet(tmp_path / "t.parquet")
    table = read_table(tmp_path / "t.parquet")
    assert table.classes == classes
    assert table.labels.tolist() == [0, 1, 0, 1]


def test_the_last_column_is_the_target_unless_another_is_named(read: Read) -> None:
    content = "a,b\n0,5\n1,5\n0,6\n1,6\n"
    last, other = read(content), read(content, target="a")
    assert (last.target, last.target_by_default, last.classes) == ("b", True, ("5", "6"))
    assert (other.target, other.target_by_default, other.classes) == ("a", False, ("0", "1"))


def test_texts_that_are_not_utf8_are_read_and_named(read: Read) -> None:
    table = read("a,b,y\n1,été,u\n2,non,v\n".encode("latin-1"))
    assert table.notes[0] == "read as Windows-1252 (latin-1), for it is not UTF-8"
    assert table.encoder is not None
    assert table.encoder.columns[1].categories == ("non", "été")


# The first line -----------------------------------------------------------------------------------------------------------


def test_a_file_without_names_loses_no_row(read: Read) -> None:
    good = flowers().write_csv()
    table = read(good.partition("\n")[2])
    np.testing.assert_array_equal(table.features, read(good).features)
    assert "the first line is a row, not names" in table.notes[0]
    assert "'column 1'" in table.notes[0]


MUSHROOMS = "\n".join(f"{'pqr'[i % 3]},{'xy'[i % 2]},{'ab'[i % 5 > 1]}" for i in range(30)) + "\n"
YEARS = "".join(f"c{i},{i % 7 * 0.1},{i % 5 * 0.2},{'ab'[i % 2]}\n" for i in range(20))
COUNTED = "".join(f"{i},{i % 3},{i * 0.1},{i % 5},{i % 2}\n" for i in range(30))
LINES = [
    (MUSHROOMS, 30),  # texts that all occur again
    ("cap,stalk,kind\n" + MUSHROOMS, 30),
    ("country,1990,2000,label\n" + YEARS, 20),  # years, not among the numbers below
    (YEARS, 20),
    (",0,1,2,3\n" + COUNTED, 30),  # as pandas writes columns that have no names
    ("01/02/2020;1,5;a\n02/02/2020;1,7;b\n03/02/2020;2,5;a\n02/02/2020;1,6;b\n", 4),
    ("day;size;kind\n01/02/2020;1,5;a\n02/02/2020;1,7;b\n", 2),
    ("3,5,y\n" + "".join(f"{i % 4},{i % 7},{i % 2 * 2 + 3}\n" for i in range(30)), 30),  # the classes of y
    ("name,?,kind\n1,2,a\n2,3,b\n3,4,b\n", 3),
]


@pytest.mark.parametrize(("content", "rows"), LINES, ids=range(len(LINES)))
def test_a_first_line_is_names_where_its_cells_do_not_fit_the_columns(read: Read, content: str, rows: int) -> None:
    assert read(content).rows == rows


@given(
    kinds=st.lists(st.sampled_from(["float", "int", "comma", "date", "category", "rare", "text"]), min_size=1, max_size=5),
    rows=st.integers(2, 60),
    seed=st.integers(0, 2**32 - 1),
)
def test_no_row_is_lost_and_no_name_becomes_a_row(kinds: list[str], rows: int, seed: int, tmp_path_factory: Any) -> None:
    random = np.random.default_rng(seed)
    columns: dict[str, list[str]] = {}
    for number, kind in enumerate([*kinds, "category"]):
        values = {
            "float": lambda: [str(x) for x in random.standard_cauchy(rows)],
            "int": lambda: [str(x) for x in random.integers(-5, 100, rows)],
            "comma": lambda: [f"{x:.2f}".replace(".", ",") for x in random.standard_normal(rows)],
            "date": lambda: [f"2020-01-{x:02}" for x in random.integers(1, 31, rows)],
            "category": lambda: [f"kind {x}" for x in random.integers(0, 3, rows)],
            "rare": lambda: [f"kind {x}" for x in np.minimum(random.zipf(2.5, rows), 99)],
            "text": lambda: [f"text {x}" for x in random.permutation(rows)],
        }[kind]()
        columns[f"name {number}"] = values
    path = tmp_path_factory.mktemp("t") / "t.csv"
    frame = pl.DataFrame(columns)
    frame.write_csv(path, separator=";")
    found = read_frame(path)
    assert found.frame.columns == frame.columns
    assert found.frame.height == rows
    frame.write_csv(path, separator=";", include_header=False)
    try:
        found = read_frame(path)
    except InputError as error:
        assert "the first line may" in str(error)  # noqa: PT017
    else:
        assert found.frame.height == rows or any("is taken as names: " in note for note in found.notes)


def test_names_without_a_text_or_twice_are_made_and_said(read: Read) -> None:
    table = read("a,a, b ,,y,\n1,2,3,1,u,\n4,5,6,2,v,\n")
    assert [column.name for column in table.encoder.columns] == ["a", "a (2)", "b", "column 4"]  # type: ignore[union-attr]
    assert table.target == "y"
    assert table.notes == (
        "columns without a name are called: 'column 4'",
        "names that occur again are made different: 'a (2)'",
        "blanks around names are left out: 'b'",
    )


# Values -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "values", "separator"),
    [
        (["1,234", "12,345.5", "5"], [1234, 12345.5, 5], ","),
        (["1 234", "12 345,5", "5"], [1234, 12345.5, 5], ";"),
        (["1\u202f234", "1\u00a0234\u00a0567", "-5"], [1234, 1234567, -5], "\t"),
        (["1.234,5", "-12.345", "5"], [1234.5, -12345, 5], ";"),
        (["0,5", "-1,25", "3"], [0.5, -1.25, 3], ";"),
        (["1,234", "2,345", "9,999"], [1.234, 2.345, 9.999], ";"),
        (["1,234", "2,345", "9,999"], [1234, 2345, 9999], "\t"),
        (["5 %", "7%", "0"], [0.05, 0.07, 0], ","),
        (["$5", "-$1,000.50", "$ 7"], [5, -1000.5, 7], ","),
        (["5 €", "1.000,50 €", "7 EUR"], [5, 1000.5, 7], ";"),
        (["0.2 kg", "-1.5kg", "0"], [0.2, -1.5, 0], ","),
        (["36 months", "1,200 months", "6"], [36, 1200, 6], "\t"),
        (["1 year", "2 years", "1 year"], [1, 2, 1], ","),
        (["1 box", "2 boxes", "0"], [1, 2, 0], ","),
        (["5 km/h", "7,5 km/h", "-1 km/h"], [5, 7.5, -1], ";"),
        (["20 °C", "-3.5 °C", "0 °C"], [20, -3.5, 0], ","),
        (["1e5", "+2", " 3 "], [1e5, 2, 3], ","),
        (["2020-01-02", "1970-01-01", "2020-1-3"], [18263, 0, 18264], ","),
        (["13/01/1970", "01/02/1970", "02/01/1970"], [12, 31, 1], ","),
        (["1.2.1970", "31.12.1970", "2.1.1970"], [31, 364, 1], ";"),
        (["13/01/70", "01/02/70", "02/01/70"], [12, 31, 1], ","),
        (["1970-01-02T12:00:00Z", "1970-01-01T00:00:00Z", "1970-01-01T06:00:00Z"], [1.5, 0, 0.25], ","),
        (["1970-01-02 12:00", "1970-01-01 00:00", "1970-01-01 06:00"], [1.5, 0, 0.25], ","),
        (["12:00", "06:00", "00:00"], [0.5, 0.25, 0], ","),
        (["12pm", "12am", "6pm"], [0.5, 0, 0.75], ","),
        (["12 P.M.", "6 a.m.", "12 a.m."], [0.5, 0.25, 0], ","),
        (["2 Jan 1970", "31 Dec 1970", "01 Feb 1970"], [1, 364, 31], ","),
        (["1970-03", "1970-01", "1970-2"], [59, 0, 31], ","),
        (["1970/03", "1970/01", "1970/02"], [59, 0, 31], ","),
        (["03/1970", "12/1970", "1/1970"], [59, 334, 0], ","),
        (["Mar 1970", "Dec 1970", "Jan 1970"], [59, 334, 0], ","),
        (["May 1970", "March 1970", "January 1970"], [120, 59, 0], ";"),
        (["Mar-1970", "Dec-1970", "Jan-1970"], [59, 334, 0], ","),
        (["1970Q3", "1970Q1", "1971Q1"], [181, 0, 365], ","),
        (["1970-Q3", "1970-q1", "1971 Q1"], [181, 0, 365], ","),
        (["Q3 1970", "Q1 1970", "Q1/1971"], [181, 0, 365], ","),
        (["January 2, 1970", "December 31, 1970", "May 1, 1970"], [1, 364, 120], ";"),
        (["01/02/1970 12:00 PM", "01/13/1970 06:00 AM", "01/01/1970 12:00 AM"], [1.5, 12.25, 0], ","),
    ],
)
def test_numbers_and_dates_are_read_as_they_are_written(
    read: Read, written: list[str], values: list[float], separator: str
) -> None:
    lines = [f'"{cell}"{separator}"{name}"' for cell, name in zip(["x", *written], "yabc", strict=True)]
    table = read("\n".join(lines))
    np.testing.assert_allclose(table.features[:, 0], values)
    plain = written[0] == "1e5"
    assert plain != any(
        note.startswith(("read as numbers: 'x' (", "read as dates, which features have in days: 'x' (")) for note in table.notes
    )


@pytest.mark.parametrize(
    "cells",
    [
        ("1234-05", "2020-01"),
        ("2021-13", "2021-01"),
        ("Max 2021", "Mar 2021"),
        ("2021Q5", "2021Q1"),
        ("1.9.1", "2.10.3"),
        ("2021.1.3", "9.1.3"),
        ("2XL", "3xl"),
        ("13pm", "1pm"),
    ],
)
def test_what_is_like_a_date_or_a_number_but_is_none_stays_text(read: Read, cells: tuple[str, str]) -> None:
    table = read("a,b,y\n" + "".join(f"{i},{cells[i % 2]},{'uv'[i % 2]}\n" for i in range(6)))
    assert table.encoder.columns[1].kind == "category"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("cells", "units"),
    [
        (("5 kg", "300 g"), "'kg', 'g'"),
        (("$5", "7 €"), "'$', '€'"),
        (("5%", "0.05"), "'%', none"),
        (("2 h", "30 min"), "'h', 'min'"),
        (("1 m", "2 ms"), "'m', 'ms'"),
        (("$5k", "3 $"), None),
        (("3a", "4b"), None),
    ],
)
def test_numbers_of_several_units_are_texts_and_named(read: Read, cells: tuple[str, str], units: str | None) -> None:
    table = read("a,b,y\n" + "".join(f"{i},{cells[i % 2]},{'uv'[i % 2]}\n" for i in range(6)))
    assert table.encoder.columns[1].kind == "category"  # type: ignore[union-attr]
    lines = [note for note in table.notes if "several units" in note]
    assert lines == ([f"taken for texts, being numbers of several units: 'b' ({units}); write them in one"] if units else [])


@given(
    numbers=st.lists(st.decimals(-9999, 9999, places=2), min_size=2, max_size=8, unique=True),
    unit=st.sampled_from(["", "kg", " kg", " °C", "%", " €", " mg/dL", "d"]),
)
def test_a_unit_changes_no_number(numbers: list, unit: str, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("t") / "t.csv"
    path.write_text("\n".join(["x,y", *(f"{number}{unit},{'uv'[i % 2]}" for i, number in enumerate(numbers))]))
    reading = read_frame(path)
    expected = [float(number) / (100 if unit == "%" else 1) for number in numbers]
    np.testing.assert_allclose(reading.frame["x"].to_numpy(), expected, rtol=1e-15)
    assert dict(reading.units) == ({"x": unit.strip()} if unit else {})


def test_zeros_before_numbers_are_named_and_kept_where_columns_are_categories(read: Read) -> None:
    content = "zip,code,a,y\n00123,7,0.5,u\n10115,8,0.25,v\n00123,8,0,u\n10115,7,1,v\n"
    table = read(content)
    assert table.notes == (
        "read as numbers, though they may be codes: 'zip' ('00123' is 123); --categories takes columns of codes as texts",
    )
    table = read(content, categories=["zip, code"])
    assert [column.categories for column in table.encoder.columns] == [("00123", "10115"), ("7", "8"), ()]  # type: ignore[union-attr]
    with pytest.raises(InputError, match="--categories: there is no column 'b'"):
        read(content, categories=["b"])


@pytest.mark.parametrize(
    ("cells", "code"),
    [
        (("1.9", "1.10", "1.11"), "'1.10' is 1.1"),
        (("12", "1E5"), "'1E5' is 100000"),
        (("12345678901234567891", "5"), "'12345678901234567891' is 12345678901234567168"),
        (("1.10", "2.25"), None),
        (("5", "7.50"), None),
        (("1e5", "0.25"), None),
    ],
)
def test_numbers_that_may_be_codes_are_named(read: Read, cells: tuple[str, ...], code: str | None) -> None:
    notes = read("x,y\n" + "".join(f"{cell},{'uv'[i % 2]}\n" for i, cell in enumerate(cells * 2))).notes
    said = [note for note in notes if "may be codes" in note]
    hint = "; --categories takes columns of codes as texts"
    assert said == ([f"read as numbers, though they may be codes: 'x' ({code}){hint}"] if code else [])


@given(
    versions=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 120)), min_size=2, max_size=8, unique=True),
    separator=st.sampled_from([",", ";"]),
)
def test_versions_that_become_one_number_are_named(versions: list, separator: str, tmp_path_factory: Any) -> None:
    sign = "." if separator == "," else ","
    path = tmp_path_factory.mktemp("t") / "t.csv"
    path.write_text("\n".join([f"x{separator}y", *(f"{one}{sign}{two}{separator}u" for one, two in versions)]))
    reading = read_frame(path)
    assert reading.frame["x"].dtype == pl.Float64
    assert reading.frame["x"].n_unique() == len(versions) or "--categories" in " ".join(reading.notes)


def test_pairs_of_years_are_categories_and_named(read: Read) -> None:
    table = read("x,y\n" + "2008-09,u\n2009-10,v\n2013-14,u\n" * 2)
    assert table.encoder.columns[0].categories == ("2008-09", "2009-10", "2013-14")  # type: ignore[union-attr]
    assert table.notes[0] == "taken for texts, being pairs of years: 'x' ('2008-09'); if they are months, write them as 2008-09-01"
    table = read("x,y\n" + "2008-09,u\n2008-10,v\n" * 2)
    assert table.encoder.columns[0].kind == "date"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (("5 kg", "6 kg", "heavy"), "numbers: 'x' ('heavy' in line 5)"),
        (("1,5", "2,5", "3.5.1"), "numbers: 'x' ('3.5.1' in line 5)"),
        (("2021-01", "spring", "2021-02"), "dates: 'x' ('spring' in line 4)"),
        (("spring", "2021-01", "2021-02"), "dates: 'x' ('spring' in line 2)"),
        (("9am", "12pm", "noon"), "dates: 'x' ('noon' in line 5)"),
    ],
)
def test_a_text_among_others_is_named_with_its_row(read: Read, cells: tuple[str, ...], said: str) -> None:
    rows = [f"{i}|{cell}|{'uv'[i % 2]}" for i, cell in enumerate(cells * 2)]
    notes = read("\n".join(["a|x|y", rows[0], "||", *rows[1:]])).notes
    assert f"taken for texts, though most are {said}; if those stand for nothing, leave them empty" in notes


def test_categories_that_differ_in_capitals_or_blanks_alone_are_named(read: Read) -> None:
    rows = [("Paris", "yes"), ("paris ", "No"), ("PARIS", "no"), ("New  York", "yes"), ("New York", "No"), ("Rome", "no")]
    notes = read("a,city,y\n" + "".join(f"{i},{city},{label}\n" for i, (city, label) in enumerate(rows))).notes
    assert notes[-1] == (
        "texts that differ in capitals, blanks or zeros alone count as different: 'city' ('New  York' and 'New York'), "
        "'y' ('No' and 'no'); write them in one way if they are one"
    )


def test_a_text_among_numbers_is_named(read: Read) -> None:
    notes = read("a,y\n1,u\n2,v\nmuch,u\n4,v\n").notes
    said = "taken for texts, though most are numbers: 'a' ('much' in line 4); if those stand for nothing, leave them empty"
    assert notes[-1] == said


def test_a_quote_may_follow_a_blank(read: Read) -> None:
    table = read('a,b,y\n1, "k, l",u\n2, "m, n",v\n3, "k, l",v\n')
    assert table.encoder.columns[1].categories == ("k, l", "m, n")  # type: ignore[union-attr]


def test_the_line_of_excel_that_names_the_separator_is_no_row(read: Read) -> None:
    assert read("sep=;\na;b;y\n1;2;u\n3;4;v\n").features.tolist() == [[1, 2], [3, 4]]


def test_decimal_commas_elsewhere_make_points_separate_thousands(read: Read) -> None:
    table = read("a;b;y\n1.234;5,1;u\n2.345;2;v\n5;7,5;u\n")
    np.testing.assert_array_equal(table.features, [[1234, 5.1], [2345, 2], [5, 7.5]])
    assert table.notes[1] == "read as numbers: 'a' ('1.234' is 1234), 'b' ('5,1' is 5.1)"
    np.testing.assert_array_equal(read("a;b;y\n1.234;5;u\n2.345;2;v\n5;7;u\n").features[:, 0], [1.234, 2.345, 5])


def test_dates_of_parquet_become_days(tmp_path: Path) -> None:
    days = [datetime(1970, 1, 2, 6), datetime(1970, 1, 1)]
    frame = pl.DataFrame({"a": days, "b": [day.date() for day in days], "c": [day - days[1] for day in days], "y": [0, 1]})
    frame = frame.with_columns(pl.col("a").dt.time().alias("d")).select("a", "b", "c", "d", "y")
    frame.write_parquet(tmp_path / "t.parquet")
    np.testing.assert_array_equal(read_table(tmp_path / "t.parquet").features, [[1.25, 1, 1.25, 0.25], [0, 0, 0, 0]])


def test_blanks_around_texts_make_no_category(read: Read) -> None:
    table = read("a,b,y\n1,yes,u\n2,yes ,v\n3, no,u \n")
    assert table.features.shape == (3, 3)
    assert table.classes == ("u", "v")
    assert "blanks around texts are left out in 'b', 'y'" in table.notes


def test_all_that_is_wrong_with_a_table_is_told_at_once(read: Read) -> None:
    rows = [f"{k or ''},name {k},{'inf' if k == 7 else k},{'ticket'[k % 6 :]} {k},u" for k in range(60)]
    with pytest.raises(InputError) as found:
        read("\n".join(["a,name,b,ticket,y", *rows]))
    said = str(found.value)
    assert "has 5 problems: (1) infinite values in 'b' (1 row)" in said
    assert "(2) missing values in 'a' (1 row)" in said
    assert "(3) column 'name' has 60 texts in 60 rows" in said
    assert "(4) column 'ticket' has 60 texts" in said
    assert "(5) the target 'y' has the single class 'u'" in said
    assert "\n" not in said


def test_a_text_that_differs_in_capitals_alone_is_that_which_was_learnt(read: Read) -> None:
    encoder = read("kind,a,y\nTRUE,1,Yes\nFALSE,2,No\nMs,3,Yes\nMS,4,No\n").encoder
    assert encoder is not None
    frame = pl.DataFrame({"kind": ["true", "False", "ms", "Ms", "new"], "a": [1] * 5, "y": ["yes", "NO", "No", "Yes", "x"]})
    kind = encoder.columns[0]
    assert [kind.categories[int(i)] if i >= 0 else None for i in kind.values(frame["kind"])] == ["TRUE", "FALSE", None, "Ms", None]
    assert [encoder.classes[i] if i >= 0 else None for i in encoder.labels(frame)] == ["Yes", "No", "No", "Yes", None]
    lines = encoder.unknown(frame)
    assert "'kind': read as another spelling of what was learnt: 'true' as 'TRUE', 'False' as 'FALSE'" in lines
    assert "'y': read as another spelling of what was learnt: 'yes' as 'Yes', 'NO' as 'No'" in lines
    assert any("'ms', 'new' (2 rows) was not in the rows learnt from" in line for line in lines)


@pytest.mark.parametrize("word", ["", "?", "-", "NA", "na", " NaN ", "Null", "n/a", '""', "#N/A", ".", "--"])
def test_words_for_a_missing_value_are_recognised_and_named(read: Read, word: str) -> None:
    content = f"a,b,y\n1,x,u\n{word},{word},v\n3,z,u\n"
    table = read(content, missing="impute")
    np.testing.assert_array_equal(table.features, [[1, 1, 0, 0], [math.nan, 0, 0, 1], [3, 0, 1, 0]])
    written = f", written '{word.strip()}'" if word.strip('" ') else ""
    for kind, column in (("become the median", "a"), ("are a category", "b")):
        assert any(f"missing values {kind}" in note and f"{column!r} (1 row{written})" in note for note in table.notes)
    with pytest.raises(InputError, match=r"missing values in 'a' \(1 row.*'b' \(1 row.*--missing impute"):
        read(content)


@pytest.mark.parametrize("word", ["none", "None", "NIL", "unknown", "Missing", "undefined"])
def test_a_word_that_may_be_a_category_is_missing_among_numbers_alone(read: Read, word: str) -> None:
    content = f"a,b,c,y\n1,x,2020-01-01,u\n{word},{word},{word},v\n3,z,2020-01-03,u\n"
    table = read(content, missing="impute")
    assert [column.kind for column in table.encoder.columns] == ["number", "category", "date"]  # type: ignore[union-attr]
    assert any(f"'a' (1 row, written '{word}'), 'c' (1 row, written '{word}')" in note for note in table.notes)
    assert table.notes[-1] == (
        f"taken for texts, though they may stand for missing values: 'b' ('{word}'); --missing-words {word} says they do"
    )
    table = read(content, missing="impute", missing_words=[word])
    assert table.encoder.columns[1].categories == ("x", "z", None)  # type: ignore[union-attr]
    assert any(f"are a category of their own: 'b' (1 row, written '{word}')" in note for note in table.notes)


@pytest.mark.parametrize("word", ["-999", "99", "TBD"])
def test_words_that_are_named_are_missing_wherever_they_are(read: Read, word: str) -> None:
    text = "a,b,y\n" + f"1,2.5,u\n{word.lower()},3 kg,v\n3,{word} ,u\n" * 9
    table = read(text, missing="impute", missing_words=[word])
    assert np.isnan(table.features).sum(0).tolist() == [9, 9]
    assert "nowhere" not in str(table.notes)
    assert "nowhere in the table is 'abc'" in " ".join(read(text, missing="impute", missing_words=[word, "abc"]).notes)


def test_a_scale_is_no_unit_of_numbers_without_it(read: Read) -> None:
    assert "several units: 'x' ('k', none)" in " ".join(read("x,y\n" + "5k,a\n500,b\n10k,a\n" * 9).notes)
    assert "taken to be in that of the others: 'x' ('0.5' is in 'kg')" in " ".join(read("x,y\n" + "5 kg,a\n0.5,b\n0,a\n" * 9).notes)


def test_a_line_in_another_encoding_is_named(read: Read) -> None:
    text = "größe,y\né1,a\né2,b\n".encode()
    with pytest.raises(InputError, match="it is UTF-8, but for line 4"):
        read(text + "é1,a\n".encode("latin-1"))


def test_a_line_may_be_longer_than_the_sample(read: Read) -> None:
    columns = 400
    cells = ",".join(f"{i}.{10**480}" for i in range(columns))
    table = read(f"{','.join(f'x{i}' for i in range(columns))},y\n{cells},u\n{cells},v\n")
    assert table.features.shape == (2, columns)


def test_signs_alone_are_categories(read: Read) -> None:
    assert read("a,s,y\n1,+,u\n2,-,v\n3,-,u\n4,+,v\n").features.shape == (4, 3)


def test_rows_without_a_target_and_empty_lines_and_columns_are_left_out(read: Read) -> None:
    table = read("a,b,c,y\n1,2,,u\n\n3,4,?,v\n,,,\n5,6,, ?\n7,8,,v\n")
    np.testing.assert_array_equal(table.features, [[1, 2], [3, 4], [7, 8]])
    assert table.notes[:3] == (
        "left out, being empty: 2 rows",
        "left out, having no 'y': 1 row, written '?'",
        "left out, having no values: 'c'",
    )


def test_missing_values_of_arrays_are_imputed_too(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", X=[[1.0, math.nan], [2.0, 3.0]], y=[0, 1])
    assert np.isnan(read_table(tmp_path / "t.npz", missing="impute").features[0, 1])


def test_columns_are_left_out_by_name(read: Read) -> None:
    content = 'id,"a,b",c,y\n1,2,3,u\n2,5,6,v\n'
    table = read(content, without=["a,b", "id"])
    assert [column.name for column in table.encoder.columns] == ["c"]  # type: ignore[union-attr]
    assert table.notes == ("left out as --without says: 'id', 'a,b'",)
    assert read(content, without=["id,c"]).features.tolist() == [[2], [5]]


# Columns that look odd ----------------------------------------------------------------------------------------------------

N = 400
LABELS = np.random.default_rng(7).integers(0, 3, N)
RANDOM = np.random.default_rng(2)
NUMBERS, OTHERS = "numbers or names the rows", "tells only what another column tells"
LEAK, SAME = "alone tells the target in", "the same in every row"
ODD = {
    "counts": (NUMBERS, RANDOM.permutation(N) + 17),
    "id": (NUMBERS, RANDOM.permutation(10 * N)[:N]),
    "Patient ID": (NUMBERS, 3 * np.arange(N)),
    "always": (SAME, np.full(N, 3)),
    "always said": (SAME, np.full(N, "x")),
    "copy": (OTHERS, "of 'noise 0'"),
    "logarithm": (OTHERS, "of 'noise 0'"),
    "leak": (LEAK, np.array([7, 3, 5])[LABELS]),
    "leaking text": (LEAK, np.array(["late", "in time", "early"])[LABELS]),
    "leaking band": (LEAK, LABELS + RANDOM.uniform(0, 0.9, N)),
    "leak of many texts": (LEAK, np.array([f"{label} {i}" for label, i in zip(LABELS, RANDOM.integers(0, 9, N), strict=True)])),
    "leak with noise": (LEAK, np.where(np.arange(N) % 399 == 0, 0, LABELS)),
}


@pytest.mark.parametrize("name", ODD)
def test_a_column_that_looks_odd_is_named_with_what_to_do(read: Read, name: str) -> None:
    warning, values = ODD[name]
    if warning == OTHERS:
        noise = np.random.default_rng(1).standard_normal(N)
        values = noise if name == "copy" else np.exp(-noise)
    notes = [note for note in read(frame_with(LABELS, **{name: values})).notes if not note.startswith("one-hot")]
    assert len(notes) == 1
    assert warning in notes[0]
    assert isinstance(notes[0], Doubt) == (warning == LEAK)  # which the recommendation has beside it
    assert f"{name!r}" in notes[0]
    assert f"--without {name!r}" in notes[0] or f"--without {name} " in notes[0]


def test_a_number_of_rows_that_are_sorted_by_class_gives_the_target(read: Read) -> None:
    numbering, leak = read(frame_with(np.sort(LABELS), id=np.arange(N))).notes
    assert numbering.startswith(NUMBERS)
    assert re.match(
        r"column 'id' alone tells the target in (99\.\d|100\.0) % of (\d+) rows that it was not learnt from, where ", leak
    )
    assert f" of {N // 2} rows " in leak
    assert LEAK in leak


def test_rows_that_occur_again_are_counted_and_make_no_other_column_odd(read: Read) -> None:
    random = np.random.default_rng(4)
    few = {f"number {i}": random.standard_normal(60) for i in range(3)}
    labels = random.integers(0, 2, 60)
    tiled = pl.DataFrame({name: np.tile(values, 5) for name, values in {**few, "y": labels}.items()})
    (note,) = read(tiled.write_csv().encode()).notes
    assert note.startswith("240 of 300 rows repeat an earlier one, target included")
    assert isinstance(note, Doubt)


def test_what_leaves_odd_columns_out_can_be_copied(read: Read) -> None:
    content = frame_with(LABELS, **{"a,b": np.ones(N), "c d": np.ones(N), "e": np.ones(N)})
    (note,) = read(content).notes
    assert note.endswith("'a,b', 'c d', 'e'; --without 'c d,e' --without a,b leaves them out")
    assert len(read(content, without=["c d,e", "a,b"]).notes) == 1
    many = read(frame_with(LABELS, **{f"column {i}": np.ones(N) for i in range(20)})).notes
    assert many[0].endswith("'column 9' and 10 more; --without leaves columns out")


def test_categories_that_are_one_to_one_are_named(read: Read) -> None:
    codes = np.random.default_rng(3).integers(0, 5, N)
    notes = read(frame_with(LABELS, code=codes, word=np.array(["e", "a", "d", "b", "c"])[codes])).notes
    assert any(note.startswith(OTHERS) and "'word' that of 'code'" in note for note in notes)


@pytest.mark.parametrize("seed", range(10))
def test_nothing_is_said_of_noise(read: Read, seed: int) -> None:
    random = np.random.default_rng(seed)
    rows = int(random.integers(20, 600))
    columns = {f"number {i}": random.standard_normal(rows) for i in range(5)}
    columns |= {f"integer {i}": random.integers(0, 40, rows) for i in range(5)}
    columns |= {f"binary {i}": random.integers(0, 2, rows) for i in range(5)}
    assert read(frame_with(random.integers(0, 2, rows), **columns)).notes == ()


@pytest.mark.parametrize("name", ["iris", "wine", "breast_cancer"])
def test_nothing_is_said_of_columns_that_are_good(name: str, tmp_path: Path) -> None:
    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    np.savez(tmp_path / "t.npz", X=x, y=y)
    assert read_table(tmp_path / "t.npz").notes == ()


@pytest.mark.parametrize("right", [0.9, 0.98])
def test_a_column_that_is_often_right_is_no_leak(read: Read, right: float) -> None:
    random = np.random.default_rng(5)
    labels = random.integers(0, 2, 2000)
    assert read(frame_with(labels, good=np.where(random.uniform(size=2000) < right, labels, 1 - labels))).notes == ()


def test_a_column_that_is_right_as_often_as_the_most_frequent_class_is_no_leak(read: Read) -> None:
    labels = (np.arange(8000) % 250 == 0).astype(int)
    assert read(frame_with(labels, seldom=np.random.default_rng(0).integers(0, 3, 8000))).notes == ()


def test_looking_for_odd_columns_is_cheap(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    columns = [random.standard_normal(100_000) for _ in range(20)]
    encoder = Encoder.fit(pl.DataFrame({**{f"c{i}": v for i, v in enumerate(columns)}, "y": [0, 1] * 50_000}), "y")
    start = time.process_time()
    assert suspicions(encoder.columns, columns, random.integers(0, 2, 100_000)) == []
    assert time.process_time() - start < 1


# The encoder --------------------------------------------------------------------------------------------------------------


LEARNT = 'size,day,colour,kind\n"1,5",2020-01-01,red,u\n2,2020-01-02,,v\n3,2020-01-03,blue,u\n'


def test_an_encoder_survives_json_and_makes_the_same_matrix(tmp_path: Path, read: Read) -> None:
    table = read(LEARNT.replace('"1,5"', "1.5"), missing="impute")
    assert table.encoder is not None
    again = Encoder.from_dict(json.loads(json.dumps(table.encoder.as_dict())))
    assert again == table.encoder
    frame = read_frame(tmp_path / "t.csv").frame
    np.testing.assert_array_equal(again.matrix(frame), table.features)
    np.testing.assert_array_equal(again.labels(frame), table.labels)
    assert again.unknown(frame) == ()


def test_new_rows_are_encoded_as_those_that_were_learnt_from(read: Read) -> None:
    encoder = read("size,day,colour,kind\n1,2020-01-01,red,u\n2,2020-01-02,grey,v\n3,2020-01-03,blue,u\n").encoder
    assert encoder is not None
    new = pl.DataFrame(
        {
            "other": [1, 2, 3],
            "colour": ["blue", "green", None],
            "size": [5, 6, None],
            "day": [datetime(1970, 1, 2)] * 3,
            "kind": ["v", "u", "w"],
        }
    )
    np.testing.assert_array_equal(encoder.matrix(new), [[5, 1, 1, 0, 0], [6, 1, 0, 0, 0], [math.nan, 1, 0, 0, 0]])
    assert encoder.labels(new).tolist() == [1, 0, -1]
    (line,) = encoder.unknown(new)
    assert line.startswith("'colour': 'green', a missing value (2 rows)")
    with pytest.raises(InputError, match=r"no column 'size', 'colour', which was learnt from; got 'day', 'kind'"):
        encoder.matrix(new.select("day", "kind"))
    with pytest.raises(InputError, match="'size' must hold numbers"):
        encoder.matrix(new.with_columns(size=pl.lit("big")))


def test_categories_stay_text_where_a_column_is_asked_for_as_text(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("code,a,y\n01,1,u\n02,2,v\n")
    assert read_frame(tmp_path / "t.csv").frame["code"].to_list() == [1, 2]
    assert read_frame(tmp_path / "t.csv", Known({"code": KnownColumn(is_text=True)})).frame["code"].to_list() == ["01", "02"]


# What cannot be used ------------------------------------------------------------------------------------------------------


def npz(**arrays: Any) -> Any:
    return lambda path: np.savez(path, **arrays)


def parquet(**columns: Any) -> Any:
    return lambda path: pl.DataFrame(columns).write_parquet(path)


def raw(content: bytes) -> Any:
    return lambda path: path.write_bytes(content)


def packed(*names: str) -> Any:
    def pack(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            for name in names:
                archive.writestr(name, "a,y\n1,u\n2,v\n")

    return pack


def directory(path: Path) -> None:
    path.mkdir()


HALVES = [0.5, 1.5, 2.5, 3.5]
X = np.ones((4, 2))
UNUSABLE = [
    ("missing.csv", lambda path: None, {}, ["no file", "missing.csv"]),
    (
        "t.csv",
        raw("\n".join(["when,y", *(f"2020-0{1 + i // 28}-{1 + i % 28:02},{i % 2}" for i in range(60)), "2020-02-31,0"]).encode()),
        {},
        ["texts that are no dates, such as '2020-02-31' in line 62", "or add features, for it is the only one"],
    ),
    ("folder.csv", directory, {}, ["is a directory", "give a file"]),
    ("t.xlsx", raw(b"x"), {}, ["unknown suffix '.xlsx'", ".parquet"]),
    ("t", raw(b"x"), {}, ["unknown suffix ''"]),
    ("t.csv", lambda path: path.symlink_to("/proc/self/mem"), {}, ["cannot be read as a file", "Input/output error"]),
    ("t.csv", raw(b""), {}, ["cannot be read as CSV", "save it"]),
    ("t.csv", raw(b"\n  \n"), {}, ["it is empty"]),
    ("t.csv", raw(b"a,b\0\n1,2\n"), {}, ["zero bytes", "UTF-8"]),
    ("t.csv", raw(b"a,b\n\x81\x9d,1\n"), {}, ["(byte 0x81, after 4 others, is neither UTF-8 nor Windows-1252)", "save it"]),
    ("t.csv", raw(b"\xff\xfea\0,\0b"), {}, ["(byte 0x62, after 6 others, is no UTF-16)"]),
    ("t.csv", raw(b"a,b\n1," + b"x" * 200_000 + b"\n"), {}, ["t.csv"]),
    ("t.csv", raw(b"a b\n1 2\n3 4\n"), {}, ["1 column", "'a b'", "commas, semicolons, tabs"]),
    ("t.csv", raw(b"a,b\n"), {}, ["0 rows"]),
    ("t.csv", raw(b"a,b,y\n1,2,u\n\n1,2\n3,4,v\n"), {}, ["line 4 has 2 fields, where most have 3", "'1,2'"]),
    ("t.csv", raw(b'a,b,y\n1,"2\n2",u\n1,2,u,5\n3,4,v\n3,4,v\n'), {}, ["line 4 has 4 fields, where most have 3"]),
    ("t.csv", raw(b"Report of May\na,b,y\n1,2,u\n3,4,v\n"), {}, ["line 1 has 1 field, where", "'Report of May'"]),
    ("t.csv", raw(b'a,b,y\n1,2,u\n3,4,v\n3,"4,v\n'), {}, ["line 4 has 2 fields", "quote"]),
    ("t.csv", raw(b"a,1,y\n2,1,u\n2,3,v\n2,1,v\n"), {}, ["first line may name the columns ('a') or be a row ('1')"]),
    ("t.csv", raw(b"7,8,9\n1,2,0\n2,3,1\n2,3,0\n"), {}, ["first line may name the columns or be a row ('7', '8', '9')"]),
    ("t.csv", raw(b"a,b\n1,0\nNA,1\n3,0\n4,1\n"), {}, ["missing", "'a' (1 row, written 'NA')", "--missing impute"]),
    ("t.csv", raw(b"a,b,y\n1,2,\n3,4,?\n"), {}, ["the target 'y' has no values"]),
    ("t.csv", raw(b"a,b,y\n1,inf,0\n2,3,1\n"), {}, ["infinite", "'b' (1 row)"]),
    ("t.csv", raw(b"a,b,y\n1,2,0\n2,3,1\n"), {"without": "a,z"}, ["--without: there is no column 'z'", "'a', 'b', 'y'"]),
    ("t.csv", raw(b"a,b,y\n1,2,0\n2,3,1\n"), {"without": "a,b"}, ["1 column: 'y'"]),
    ("t.csv", raw(b"a,b,y\n1,2,0\n2,3,1\n"), {"target": ""}, ["no column ''", "'a', 'b', 'y'"]),
    ("t.zip", packed("a.csv", "b.tsv"), {}, ["one table", "'a.csv', 'b.tsv'"]),
    ("t.zip", packed("a.doc"), {}, ["one table", "'a.doc'"]),
    ("t.csv", packed("[Content_Types].xml", "xl/workbook.xml"), {}, ["is a workbook of Excel; save its sheet as CSV"]),
    (
        "t.csv",
        raw(b"a,y\n" + b"".join(b"%d %s,%d\n" % (i, (b"kg", b"g")[i % 3 > 0], i % 2) for i in range(1, 40))),
        {},
        ["numbers of several units, 'g', 'kg': write them in one", "the only one"],
    ),
    ("t.zip", raw(b"PK\x03\x04 cut short"), {}, ["cannot be read as an archive"]),
    (
        "t.csv.gz",
        raw(gzip.compress(b"a,y\n1,u\n2,v\n")[:15]),
        {},
        ["an archive (it is damaged, cut short or encrypted)", "pack"],
    ),
    (
        "t.parquet",
        raw(b"not parquet"),
        {},
        ["(it begins with b'not parquet', as none does)", "write it again"],
    ),
    (
        "t.feather",
        raw(b"not feather"),
        {},
        ["(it begins with b'not feather', as none does)", "write it again"],
    ),
    ("t.npz", raw(b"not a zip"), {}, ["cannot be read as NPZ (it begins with b'not a zip', as none does)", "numpy.savez"]),
    ("t.npz", raw(b"PK\x03\x04 cut short"), {}, ["cannot be read as NPZ (it is damaged, cut short or encrypted)", "numpy.savez"]),
    ("t.parquet", parquet(a=[1, 2], y=[0, 1]), {"target": "z"}, ["no column 'z'", "'a', 'y'"]),
    ("t.parquet", parquet(a=[1.0, None, math.nan], b=[1.0, 3.0, 2.0], y=["a", "b", "a"]), {}, ["missing", "'a' (2 rows)"]),
    ("t.parquet", parquet(a=[None, None], y=["a", "b"]), {}, ["0 features"]),
    ("t.parquet", parquet(a=[[1], [2]], b=[1, 2], y=["a", "b"]), {}, ["'a' (List(Int64))", "--without"]),
    ("t.parquet", parquet(a=[1, 2], y=[[1], [2]]), {}, ["target 'y'", "List(Int64)"]),
    (
        "t.parquet",
        parquet(a=[f"row {i}" for i in range(30)], b=[0] * 30, y=[0, 1] * 15),
        {},
        ["'a' has 30 texts in 30 rows", "--without 'a'"],
    ),
    (
        "t.csv",
        raw(b"a,y\n" + b"".join(b"%d.5,%d\n" % (i, i % 2) for i in range(30)) + b"much,1\n"),
        {},
        ["repair its texts", "'much'"],
    ),
    ("t.parquet", parquet(a=[1, 2, 3, 4], y=["a"] * 4), {}, ["single class 'a'", "--target"]),
    ("t.parquet", parquet(a=[1, 2, 3, 4, 5], y=[0, 0, 0, 1, 1]), {"folds": 3}, ["class '1'", "2 rows", "--folds 2"]),
    ("t.parquet", parquet(a=[1, 2, 3, 4, 5], y=["a", "a", "a", "a", "b"]), {}, ["class 'b'", "1 row", "merge"]),
    ("t.parquet", parquet(a=[1, 2, 3, 4], y=HALVES), {}, ["4 different values in 4 rows", "regression", "--target"]),
    ("t.parquet", parquet(a=[1, 2, 3, 4], y=["a", "b", "c", "d"]), {}, ["too many classes", "name of each row"]),
    ("t.npz", npz(X=X, labels=[0, 1, 0, 1]), {}, ["X and y", "'labels'"]),
    ("t.npz", npz(X=X, y=[0, 1, 0]), {}, ["(4, 2) and (3,)", "reshape"]),
    ("t.npz", npz(X=X[0], y=[0, 1]), {}, ["(2,) and (2,)"]),
    (
        "t.npz",
        npz(X=X, y=np.array([0, "a", None, 1], dtype=object)),
        {},
        ["it holds Python objects, none of which is loaded"],
    ),
    ("t.npz", npz(X=X.astype(complex), y=[0, 1, 0, 1]), {}, ["complex128"]),
    ("t.npz", npz(X=X * [1, math.inf], y=[0, 1, math.inf, 1]), {}, ["'column 2' (4 rows)", "'y' (1 row)"]),
    ("t.npz", npz(X=X, y=[0, 1, 0, 1]), {"target": "label"}, ["no column 'label'", "'y'"]),
    ("t.csv", raw(b"a,y\n1,u\n2,v\n"), {"maps": ""}, ["--maps: no name is given; leave it out to train all pairs"]),
    ("t.csv", raw(b"a,y\n1,u\n2,v\n"), {"without": ","}, ["--without: no name is given"]),
    *(
        ("t.csv", raw(b"a,y\n1,u\n2,v\n"), {option: value}, [f"--{option}", f"--{option}"])
        for option, value in (
            ("folds", "2.5"),
            ("repeats", "1.5"),
            ("epochs", "0.5"),
            ("seed", "1e-3"),
            ("seed", "inf"),
            ("folds", "x"),
        )
    ),
]


@pytest.mark.parametrize(("name", "make", "options", "parts"), UNUSABLE, ids=range(len(UNUSABLE)))
def test_what_cannot_be_used_is_refused_in_one_line(
    name: str, make: Any, options: dict[str, Any], parts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    make(tmp_path / name)
    given = {"folds": 2, "out": tmp_path / "out", **options}
    with pytest.raises(SystemExit) as refused:
        main(["compare", str(tmp_path / name), *(f"--{option}={value}" for option, value in given.items())])
    out, err = capsys.readouterr()
    assert refused.value.code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert [part for part in parts if part not in err] == [], err
    assert not (tmp_path / "out").exists()


@given(
    cells=st.lists(st.text("019٣.,;|\t\"' ?-+ab$%€/:eE\0\r\n", max_size=8), min_size=1, max_size=24),
    width=st.integers(1, 4),
    separator=st.sampled_from(",;\t"),
    encoding=st.sampled_from(["utf-8", "utf-16", "cp1252"]),
)
def test_whatever_is_in_a_text_file_is_read_or_refused(
    cells: list[str], width: int, separator: str, encoding: str, tmp_path_factory: Any
) -> None:
    path = tmp_path_factory.mktemp("t") / "t.csv"
    lines = [separator.join(cells[start : start + width]) for start in range(0, len(cells), width)]
    path.write_bytes("\n".join(lines).encode(encoding, errors="ignore"))
    try:
        table = read_table(path, missing="impute")
    except InputError as error:
        assert str(error).startswith("t.csv: ")  # noqa: PT017
    else:
        assert not np.isinf(table.features).any()
        assert len(set(table.labels)) == len(table.classes)


def test_a_wrong_path_is_refused_before_anything_is_loaded() -> None:
    code = (
        "import sys\n"
        "from softmaxima_lab.commands import main\n"
        "try:\n    main(['compare', 'no such file.csv'])\n"
        "finally:\n    print([name for name in ('torch', 'polars', 'sklearn') if name in sys.modules])\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (2, "[]\n")
    assert "there is no file no such file.csv" in ended.stderr


def test_the_command_says_what_it_did_and_imputes(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    frame = (
        flowers()
        .with_columns(pl.int_range(48).alias("id"), pl.when(pl.int_range(48) % 7 > 0).then("petals"))
        .select("id", *flowers().columns)
    )
    frame.write_csv(tmp_path / "t.csv", separator=";", null_value="?")
    options = ["--missing=impute", "--folds=2", "--repeats=1", "--epochs=1", "--maps=softmax"]
    with contextlib.suppress(SystemExit):
        main(["compare", str(tmp_path / "t.csv"), f"--out={tmp_path / 'out'}", *options])
    out, err = capsys.readouterr()
    assert err == ""
    expected = (
        "columns are separated by ';'",
        "missing values become the median of the rows trained on, with a column that says where: 'petals' (7 rows, written '?')",
        "numbers or names the rows, which says nothing of new ones: 'id'; --without id leaves it out",
    )
    for line in expected:
        assert f"\n{line}\n" in out
    notes = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))["table"]["notes"]
    assert notes == list(expected)
    with contextlib.suppress(SystemExit):
        main(["compare", str(tmp_path / "t.csv"), f"--out={tmp_path / 'other'}", "--without=id,petals", *options])
    assert "\nleft out as --without says: 'id', 'petals'\n" in capsys.readouterr().out
