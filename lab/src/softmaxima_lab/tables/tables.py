"""Tables to train on, in a file of any kind that `reading` reads, or the handwritten digits that scikit-learn brings.

Whatever cannot be trained on raises `InputError` here, with one line that says what was wrong, what arrived and what to do.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from sklearn.datasets import load_digits

from softmaxima.base.numbers import InputError, Problems
from softmaxima_lab.tables.encoding import Encoder, as_texts, check_types, digest, in_order, kind_of, likeness, or_without
from softmaxima_lab.tables.reading import Reading, of_arrays, read_frame
from softmaxima_lab.tables.suspicions import suspicions
from softmaxima_lab.tables.values import Known, KnownColumn, is_quantity, maybe_missing, several_units, stray
from softmaxima_lab.wording import named, rows

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
    folds: int = 1,
) -> Table:
    """The table in a file, or the bundled digits; `target` defaults to the last column.

    Text, boolean and categorical features are one-hot encoded. An NPZ holds `X` [rows, features] and `y` [rows]. The columns in
    `without` are left out, and those in `categories` are text. Where values are missing, features are NaN if `missing` is "impute";
    `missing_words` stand for missing values besides those that always do. Each class has a row for each of so many `folds`.

    Raises:
        InputError: with all that is wrong.
    """
    name = "digits" if path is None else path.name
    texts = dict.fromkeys(names_given(categories), KnownColumn(True, None))
    known = Known(texts, missing_words, target=target, left_out=names_given(without))
    try:
        if path is not None:
            return _table(name, read_frame(path, known), target, without, missing, categories, folds, missing_words)
        pixels, digits = map(np.asarray, load_digits(return_X_y=True))
        return _table(name, of_arrays(pixels, digits, "digit"), target, without, missing, categories, folds, watched=False)
    except InputError as error:
        Problems().fail(error, of=f"{name}: ")


def _table(
    name: str,
    reading: Reading,
    target: str | None,
    without: Sequence[str],
    missing: str,
    categories: Sequence[str],
    folds: int,
    words: Sequence[str] = (),
    watched: bool = True,
) -> Table:
    problems = Problems()
    declared = _columns(reading.frame, "--categories", categories, problems)
    texts = [name for name in declared if kind_of(reading.frame[name].dtype) is not None]
    reading = replace(reading, frame=reading.frame.with_columns(as_texts(reading.frame[name]) for name in texts))
    frame, chosen, places, notes = target_rows(reading, target, without, problems)
    if empty := [column.name for column in frame if frame.height and column.null_count() == frame.height]:
        notes.append(f"left out, having no values: {named(map(repr, empty))}")
        frame = frame.drop(empty)
    if frame.width < 2 or not frame.height:
        problems.fail(f"needs rows and features, got {frame.height} rows and {frame.width - 1} features; add some")
    with problems:
        refuse_infinite(frame, chosen)
    with problems:
        notes += _missing(frame.drop(chosen), reading.words, missing)
    found = {word.lower() for texts in reading.words.values() for word in texts}
    if absent := [word for word in words if word.lower() not in found]:
        notes.append(f"--missing-words: nowhere in the table is {named(map(repr, absent))}")
    strays = _strays(frame.drop(chosen, *declared, strict=False), lambda index: reading.where(places[index]))
    problems += _many_texts(frame.drop(chosen), strays)
    with problems:
        check_types(frame.drop(chosen))
    with problems:
        if target in (None, chosen):
            check_target(frame[chosen])
            check_classes(chosen, classes := in_order(frame[chosen]))
            labels = Encoder(chosen, classes, ()).labels(frame)
            check_folds(chosen, classes, labels, _is_quantity(frame[chosen]), folds)
    if problems and reading.doubt is not None:
        problems.append(reading.doubt)
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
    return Table(
        name,
        chosen,
        by_default,
        encoder.matrix(frame),
        labels,
        encoder.classes,
        _is_quantity(frame[chosen]),
        tuple(notes),
        encoder,
    )


def _is_quantity(y: pl.Series) -> bool:
    return y.dtype.is_numeric() or (y.dtype == pl.String and is_quantity(y))


def target_rows(
    reading: Reading, target: str | None, without: Sequence[str], problems: Problems
) -> tuple[pl.DataFrame, str, np.ndarray, list[str]]:
    """The rows that have a target, the column of which it is, where among all rows they are, and what was done.

    Where options name columns that there are not, that is one of the problems, and the target the one without --target.
    """
    if reading.untrainable is not None:
        problems.fail(reading.untrainable)
    notes, wanted = list(reading.notes), reading.target if target is None else target
    left_out = _columns(reading.frame, "--without", without, problems)
    if wanted in left_out:
        problems.append(f"the target {wanted!r} is left out by --without; choose another --target, or take it from --without")
        left_out = [name for name in left_out if name != wanted]
    frame = reading.frame.drop(left_out)
    if frame.width < 2:
        problems.fail(
            f"needs features and a target, got {rows(frame.width, 'column')}: {named(map(repr, frame.columns)) or 'none'}"
        )
    if wanted is not None and wanted not in frame.columns:
        problems.append(f"there is no column {wanted!r}; choose a --target among: {named(map(repr, frame.columns))}")
        return frame, reading.target or frame.columns[-1], np.arange(frame.height), notes
    chosen, places = frame.columns[-1] if wanted is None else wanted, np.arange(frame.height)
    if left_out:
        kept = set(frame.columns)
        notes.append(f"left out as --without says: {named(repr(name) for name in reading.frame.columns if name not in kept)}")
    if frame.height and (untold := frame[chosen].null_count()):
        if untold == frame.height:
            problems.fail(f"the target {chosen!r} has no values; choose another column with --target")
        notes.append(f"left out, having no {chosen!r}: {rows(untold)}{_words(reading.words, chosen)}")
        told = frame[chosen].is_not_null()
        frame, places = frame.filter(told), np.flatnonzero(told.to_numpy())
    return frame, chosen, places, notes


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


def check_folds(target: str, classes: Sequence[str], labels: np.ndarray, is_quantity: bool, folds: int) -> None:
    """Raise `InputError` unless every class has a row in every fold."""
    sizes = np.bincount(labels, minlength=len(classes))
    smallest = int(sizes.argmin())
    least = int(sizes[smallest])
    if least >= folds:
        return
    if len(classes) > max(folds, len(labels) / folds):
        kind = "a quantity (regression)" if is_quantity else "a name of each row"
        raise InputError(
            f"the target {target!r} has {len(classes)} different values in {len(labels)} rows, too many classes "
            f"for {folds} folds; it looks like {kind}, so choose a column of classes with --target"
            + (f", or --folds {least} if these are classes" if least >= 2 else "")
        )
    fewer = f"use --folds {least}, or " if least >= 2 else "two folds, the fewest, need 2; "
    raise InputError(
        f"class {classes[smallest]!r} of {target!r} has {rows(least)}, and {folds} folds need {folds} of each class; "
        f"{fewer}add rows, or remove or merge that class"
    )


def names_given(given: Sequence[str]) -> list[str]:
    """Texts, and the names in them where they are several, separated by commas."""
    return [name for text in given for name in (text, *_listed(text))]


def _strays(frame: pl.DataFrame, where: Callable[[int], str]) -> dict[str, tuple[str, str]]:
    """Of columns of texts most of which are something else: what that is, and a text that is not, with where it is."""
    found = {}
    for series in frame:
        if kind_of(series.dtype) == "category" and (odd := stray(series)) is not None:
            text, kind = odd
            found[series.name] = kind, f"{text!r} in {where((series.cast(pl.String) == text).arg_max())}"  # type: ignore[arg-type]
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
        leave = f"leave it out with --without {series.name!r}" if frame.width > 1 else "add features, for it is the only one"
        lines.append(
            f"column {series.name!r} has {count} texts in {frame.height} rows, too many to one-hot encode; {repair} {leave}"
        )
    return lines


def _columns(frame: pl.DataFrame, option: str, given: Sequence[str], problems: list[str]) -> list[str]:
    """Names may come several in one text, separated by commas, unless that is the name of a column; others are a problem."""
    names = [name for text in given for name in ([text] if text in frame.columns else _listed(text))]
    if unknown := [name for name in names if name not in frame.columns]:
        problems.append(
            f"{option}: there is no column {named(map(repr, unknown))}; choose among: {named(map(repr, frame.columns))}"
        )
    return [name for name in names if name in frame.columns]


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
    """The first two that are alike."""
    first: dict[Any, str] = {}
    for text in texts:
        if (other := first.setdefault(likeness(text), text)) != text:
            return other, text
    return None


def _words(words: Mapping[str, Sequence[str]], column: str) -> str:
    """What stands for a missing value in a column, besides nothing."""
    return f", written {named(map(repr, words[column]))}" if column in words else ""


def refuse_infinite(frame: pl.DataFrame, target: str | None = None) -> None:
    infinite = {column.name: int(column.is_infinite().sum()) for column in frame if column.dtype.is_float()}
    if found := {name: f"{name!r} ({rows(count)})" for name, count in infinite.items() if count}:
        features = [name for name in frame.columns if name != target]
        leave = or_without(found, features) if target not in found else ""
        raise InputError(f"infinite values in {named(found.values())}; repair those rows{leave}")


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
            f"own; or fill them in{or_without([*numbers, *texts], frame.columns)}"
        )
    lines = []
    if numbers:
        lines.append(f"missing values become the median of the rows trained on, with a column that says where: {named(numbers)}")
    if texts:
        lines.append(f"missing values are a category of their own: {named(texts)}")
    return lines
