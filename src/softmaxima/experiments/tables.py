"""Tables to train on, in a file of any kind that `reading` reads, or the handwritten digits that scikit-learn brings.

Whatever cannot be trained on raises `InputError` here, with one line that says what was wrong, what arrived and what to do.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from sklearn.datasets import load_digits

from softmaxima.core.numbers import InputError
from softmaxima.experiments.encoding import Encoder, check_types, digest, in_order, kind_of
from softmaxima.experiments.reading import Reading, of_arrays, read_frame
from softmaxima.experiments.suspicions import suspicions
from softmaxima.experiments.values import Known, KnownColumn, as_float, is_quantity, maybe_missing, several_units, stray
from softmaxima.experiments.wording import named, rows

MOST_CATEGORIES = 1000  # indicator columns that one column may become


@dataclass(frozen=True, eq=False)
class Table:
    """Rows with numbers for features and one of several classes for a target."""

    name: str
    target: str
    target_by_default: bool  # nobody named the target: it is the last column
    features: np.ndarray  # [rows, features] float64, finite but for NaN where a value is missing and that is allowed
    labels: np.ndarray  # [rows] int64, indices into `classes`
    classes: tuple[str, ...]
    numeric_target: bool = False
    notes: tuple[str, ...] = ()  # what was done to the file, and what looks odd in it
    encoder: Encoder | None = None  # what makes features of another frame
    sample_of: int | None = None  # so many rows

    @cached_property
    def digest(self) -> str:
        """Of the numbers that are trained on."""
        return digest(self.features, self.labels)

    @property
    def rows(self) -> int:
        return len(self.labels)

    def class_sizes(self) -> np.ndarray:
        """Rows of each class."""
        return np.bincount(self.labels, minlength=len(self.classes))


def read_table(
    path: Path | None = None,
    target: str | None = None,
    without: Sequence[str] = (),
    missing: str = "refuse",
    missing_words: Sequence[str] = (),
    categories: Sequence[str] = (),
) -> Table:
    """The table in a file, or the bundled digits; `target` defaults to the last column.

    Text, boolean and categorical features are one-hot encoded. An NPZ holds `X` [rows, features] and `y` [rows]. The columns in
    `without` are left out, and those in `categories` are text. Where values are missing, features are NaN if `missing` is "impute";
    `missing_words` stand for missing values besides those that always do.
    """
    if path is None:
        pixels, digits = map(np.asarray, load_digits(return_X_y=True))
        return _table("digits", of_arrays(pixels, digits, "digit"), target, without, missing, categories, watched=False)
    texts = dict.fromkeys(names_given(categories), KnownColumn(True, None))
    known = Known(texts, missing_words, target=target, left_out=names_given(without))
    try:
        return _table(path.name, read_frame(path, known), target, without, missing, categories, missing_words)
    except InputError as error:
        raise InputError(f"{path.name}: {error}") from None


def _table(
    name: str,
    reading: Reading,
    target: str | None,
    without: Sequence[str],
    missing: str,
    categories: Sequence[str],
    words: Sequence[str] = (),
    watched: bool = True,
) -> Table:
    declared = _columns(reading.frame, "--categories", categories)
    reading = replace(reading, frame=reading.frame.with_columns(pl.col(declared).cast(pl.String)))
    frame, chosen, numbers, notes = target_rows(reading, target, without)
    if empty := [column.name for column in frame if frame.height and column.null_count() == frame.height]:
        notes.append(f"left out, having no values: {named(map(repr, empty))}")
        frame = frame.drop(empty)
    if frame.width < 2 or not frame.height:
        raise InputError(f"needs rows and features, got {frame.height} rows and {frame.width - 1} features; add some")
    problems = Problems()
    with problems:
        refuse_infinite(frame)
    with problems:
        notes += _missing(frame, reading.words, missing)
    found = {word.lower() for texts in reading.words.values() for word in texts}
    if absent := [word for word in words if word.lower() not in found]:
        notes.append(f"--missing-words: nowhere in the table is {named(map(repr, absent))}")
    strays = _strays(frame.drop(chosen, *declared, strict=False), numbers)
    problems += _many_texts(frame.drop(chosen), strays)
    with problems:
        check_types(frame.drop(chosen))
    with problems:
        check_target(frame[chosen])
        check_classes(chosen, in_order(frame[chosen]))
    problems.tell()
    encoder = Encoder.fit(frame, chosen, reading.written, reading.units, words)
    labels = encoder.labels(frame)
    if encoded := [f"{column.name!r} ({column.width})" for column in encoder.columns if column.kind == "category"]:
        notes.append(f"one-hot encoded, with so many indicator columns: {named(encoded)}")
    for kind in ("numbers", "dates"):
        if found := [f"{column!r} ({text})" for column, (others, text) in strays.items() if others == kind]:
            notes.append(f"taken for texts, though most are {kind}: {named(found)}; if those stand for nothing, leave them empty")
    notes += _doubtful([*frame.drop(chosen), pl.Series(chosen, encoder.classes)])
    if watched:
        notes += suspicions(encoder.columns, [column.values(frame[column.name]) for column in encoder.columns], labels)
    by_default = target is None and reading.target is None
    y = frame[chosen]
    numeric = y.dtype.is_numeric() or (y.dtype == pl.String and is_quantity(y))
    return Table(name, chosen, by_default, encoder.matrix(frame), labels, encoder.classes, numeric, tuple(notes), encoder)


class Problems(list[str]):
    """What is wrong with a table: of each block under `with` what it raised, so that all is told at once."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> bool:
        if isinstance(error, InputError):
            self.append(str(error))
        return isinstance(error, InputError)

    def tell(self) -> None:
        """Raise `InputError` with all of them."""
        if len(self) > 1:
            listed = "; ".join(f"({number}) {problem}" for number, problem in enumerate(self, 1))
            raise InputError(f"has {len(self)} problems: {listed}")
        if self:
            raise InputError(self[0])


def target_rows(reading: Reading, target: str | None, without: Sequence[str]) -> tuple[pl.DataFrame, str, np.ndarray, list[str]]:
    """The rows that have a target, the column of which it is, their numbers in the file, and what was done."""
    if reading.untrainable is not None:
        raise InputError(reading.untrainable)
    notes = list(reading.notes)
    frame = reading.frame.drop(_columns(reading.frame, "--without", without))
    if frame.width < 2:
        raise InputError(
            f"needs features and a target, got {rows(frame.width, 'column')}: {named(map(repr, frame.columns)) or 'none'}"
        )
    chosen = (reading.target or frame.columns[-1]) if target is None else target
    if chosen not in frame.columns:
        raise InputError(f"there is no column {chosen!r}; choose a --target among: {named(map(repr, frame.columns))}")
    numbers, kept = reading.numbers, set(frame.columns)
    if without := [column for column in reading.frame.columns if column not in kept]:
        notes.append(f"left out as --without says: {named(map(repr, without))}")
    if frame.height and (untold := frame[chosen].null_count()):
        if untold == frame.height:
            raise InputError(f"the target {chosen!r} has no values; choose another column with --target")
        notes.append(f"left out, having no {chosen!r}: {rows(untold)}{_words(reading.words, chosen)}")
        told = frame[chosen].is_not_null()
        frame, numbers = frame.filter(told), numbers[told.to_numpy()]
    return frame, chosen, numbers, notes


def check_target(y: pl.Series) -> None:
    """Raise `InputError` for a column that can be no target."""
    if kind_of(y.dtype) is None:
        raise InputError(f"the target {y.name!r} is of a type that cannot be used ({y.dtype}); make it ints or text")


def check_classes(target: str, classes: Sequence[str]) -> None:
    """Raise `InputError` where there is nothing to tell apart."""
    if not classes:
        raise InputError(f"no row has a value of the target {target!r}; check that the table has rows, and this column")
    if len(classes) < 2:
        raise InputError(
            f"the target {target!r} has the single class {named(map(repr, classes))}; choose another column with --target"
        )


def names_given(given: Sequence[str]) -> list[str]:
    """Texts, and the names in them where they are several, separated by commas."""
    return [name for text in given for name in (text, *_listed(text))]


def _strays(frame: pl.DataFrame, numbers: np.ndarray) -> dict[str, tuple[str, str]]:
    """Of columns of texts most of which are something else: what that is, and a text that is not, with the number of its row."""
    found = {}
    for series in frame:
        if kind_of(series.dtype) == "category" and (odd := stray(series)) is not None:
            text, kind = odd
            found[series.name] = kind, f"{text!r} in row {numbers[(series.cast(pl.String) == text).arg_max()]}"  # type: ignore[index]
    return found


def _many_texts(frame: pl.DataFrame, strays: Mapping[str, tuple[str, str]]) -> list[str]:
    """A line for each column that would become too many indicator columns, with what its texts look like."""
    lines, most = [], min(MOST_CATEGORIES, max(20, frame.height // 2))
    for series in frame:
        if kind_of(series.dtype) != "category" or (count := series.drop_nulls().n_unique()) <= most:
            continue
        repair = "group its texts, or if it names rows"
        if series.name in strays:
            repair = "repair its texts that are no {}, such as {}, or".format(*strays[series.name])
        elif (several := several_units(series)) is not None:
            repair = f"they are numbers of several units, {several}: write them in one, or"
        lines.append(
            f"column {series.name!r} has {count} texts in {frame.height} rows, too many to one-hot encode; {repair} leave it out "
            f"with --without {series.name!r}"
        )
    return lines


def _columns(frame: pl.DataFrame, option: str, given: Sequence[str]) -> list[str]:
    """Names may come several in one text, separated by commas, unless that is the name of a column."""
    names = [name for text in given for name in ([text] if text in frame.columns else _listed(text))]
    if unknown := [name for name in names if name not in frame.columns]:
        raise InputError(
            f"{option}: there is no column {named(map(repr, unknown))}; choose among: {named(map(repr, frame.columns))}"
        )
    return names


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _doubtful(texts: Sequence[pl.Series]) -> list[str]:
    """A line for texts that may stand for a missing value, and one for those that differ in capitals, blanks and zeros alone."""
    columns = {
        series.name: series.drop_nulls().unique().cast(pl.String).sort()
        for series in texts
        if series.dtype in (pl.String, pl.Categorical, pl.Enum)
    }
    lines = []
    if maybe := {name: found for name, texts in columns.items() if (found := maybe_missing(texts))}:
        found = named(f"{name!r} ({named(map(repr, words))})" for name, words in maybe.items())
        words = ",".join(sorted({word for words in maybe.values() for word in words}))
        lines.append(
            f"taken for texts, though they may stand for missing values: {found}; --missing-words {shlex.quote(words)} says they do"
        )
    if alike := {name: found for name, texts in columns.items() if (found := _alike(texts.to_list()))}:
        pairs = named(f"{name!r} ({one!r} and {other!r})" for name, (one, other) in alike.items())
        lines.append(
            f"texts that differ in capitals, blanks or zeros alone count as different: {pairs}; write them in one way if they are "
            "one"
        )
    return lines


def _alike(texts: Sequence[str]) -> tuple[str, str] | None:
    """The first two that differ in capitals, blanks and the zeros of a number alone."""
    first: dict[str | float, str] = {}
    for text in texts:
        number = as_float(bare := "".join(text.casefold().split()))
        if (other := first.setdefault(bare if number is None else number, text)) != text:
            return other, text
    return None


def _words(words: Mapping[str, Sequence[str]], column: str) -> str:
    """What stands for a missing value in a column, besides nothing."""
    return f", written {named(map(repr, words[column]))}" if column in words else ""


def refuse_infinite(frame: pl.DataFrame) -> None:
    infinite = {column.name: int(column.is_infinite().sum()) for column in frame if column.dtype.is_float()}
    if found := [f"{name!r} ({rows(count)})" for name, count in infinite.items() if count]:
        raise InputError(f"infinite values in {named(found)}; repair those rows, or leave columns out with --without")


def _missing(frame: pl.DataFrame, words: Mapping[str, Sequence[str]], missing: str) -> list[str]:
    """What becomes of missing values."""
    kinds: dict[bool, list[str]] = {True: [], False: []}
    for column in frame:
        if count := column.null_count():
            kinds[kind_of(column.dtype) == "category"].append(f"{column.name!r} ({rows(count)}{_words(words, column.name)})")
    texts, numbers = kinds[True], kinds[False]
    if (texts or numbers) and missing != "impute":
        raise InputError(
            f"missing values in {named(numbers + texts)}; --missing impute puts medians there, and for texts a category of their "
            "own; or fill them in, or leave columns out with --without"
        )
    lines = []
    if numbers:
        lines.append(f"missing values become the median of the rows trained on, with a column that says where: {named(numbers)}")
    if texts:
        lines.append(f"missing values are a category of their own: {named(texts)}")
    return lines
