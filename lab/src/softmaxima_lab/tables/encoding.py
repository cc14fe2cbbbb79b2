"""From a frame to the matrix that is trained on: numbers as they are, dates as days, and an indicator column for each category."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Literal, Self

import numpy as np
import polars as pl

from softmaxima.base.numbers import InputError, Problems
from softmaxima_lab.tables.values import Known, KnownColumn, as_float, misfit
from softmaxima_lab.wording import named, rows

PLAIN = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
BOOLEANS = (("true", "false"), ("t", "f"), ("yes", "no"), ("y", "n"), ("on", "off"), (Decimal(1), Decimal(0)))
DAY = {"ns": 86400e9, "us": 86400e6, "ms": 86400e3}


def where_of_frame(index: int) -> str:
    """Where a row is that comes from no file."""
    return f"row {index + 1}"


@dataclass(frozen=True)
class Column:
    """A feature's column; among its categories None is that of missing values. `written` and `unit` are as in `Values`."""

    name: str
    kind: Literal["number", "date", "category"]
    categories: tuple[str | None, ...] = ()
    written: str | None = None
    unit: str | None = None

    @property
    def width(self) -> int:
        """Columns of the matrix."""
        return len(self.categories) if self.kind == "category" else 1

    def values(self, series: pl.Series, where: Callable[[int], str] = where_of_frame) -> np.ndarray:
        """[rows] float64: numbers, days, or the index of the category, -1 for one that is not known; NaN where it is missing.

        `where` says of a row's index where in its file it is.
        """
        if self.kind == "category":
            return _indices(as_texts(series), self.categories)
        if series.null_count() == len(series):
            return np.full(len(series), np.nan)  # the type of a column without values tells nothing
        if kind_of(series.dtype) != self.kind:
            texts = as_texts(series)
            place = misfit(texts, self.kind, self.written, self.unit)
            found = f"{texts[place]!r} in {where(place)}"
            unit = f" in {self.unit!r}" if self.unit else ""
            raise InputError(f"column {self.name!r} must hold {self.kind}s{unit}, as where it was learnt, got {found}; repair it")
        return (_days(series) if self.kind == "date" else series.cast(pl.Float64)).to_numpy()


@dataclass(frozen=True)
class Encoder:
    """What the columns of a frame become, learnt from one frame and applied to others. `words` are as in `Known`."""

    target: str
    classes: tuple[str, ...]
    columns: tuple[Column, ...]
    words: tuple[str, ...] = ()

    @classmethod
    def fit(
        cls,
        frame: pl.DataFrame,
        target: str,
        written: Mapping[str, str] = MappingProxyType({}),
        units: Mapping[str, str] = MappingProxyType({}),
        words: Sequence[str] = (),
    ) -> Self:
        """That of all columns but the target, which were `written` so in their file.

        Raises:
            InputError: where a column is of another type.
        """
        check_types(frame.drop(target))
        columns = tuple(_column(series, written.get(series.name), units.get(series.name)) for series in frame.drop(target))
        return cls(target, in_order(frame[target]), columns, tuple(words))

    def matrix(self, frame: pl.DataFrame, where: Callable[[int], str] = where_of_frame) -> np.ndarray:
        """[rows, features] float64, NaN where a number is missing; a category that is not known has no indicator.

        `where` says of a row's index where in its file it is. Raises InputError with all that is wrong.
        """
        problems, given, parts = Problems(), set(frame.columns), []
        if absent := [column.name for column in self.columns if column.name not in given]:
            problems.append(
                f"there is no column {named(map(repr, absent))}, which was learnt from; got {named(map(repr, frame.columns))}"
            )
        for column in self.columns:
            with problems:
                if column.name in given:
                    values = column.values(frame[column.name], where)[:, None]
                    parts.append(values == np.arange(column.width) if column.kind == "category" else values)
        problems.tell()
        return np.hstack([np.empty((frame.height, 0)), *parts])

    def labels(self, frame: pl.DataFrame) -> np.ndarray:
        """[rows] int64, the indices of the classes, -1 for one that is not known; 1.0 is the class 1."""
        return _indices(*self._classes_of(frame)).astype(np.int64)

    def _classes_of(self, frame: pl.DataFrame) -> tuple[pl.Series, tuple[str, ...]]:
        """The names of the rows' classes, nulls where the target is of no type that can be used, and of all classes."""
        y = frame[self.target]
        names = _class_names(y if kind_of(y.dtype) is not None else _nulls(y))
        return without_point(names), tuple(without_point(pl.Series(self.classes, dtype=pl.String)))

    def unknown(self, frame: pl.DataFrame) -> tuple[str, ...]:
        """A line for each column with categories that were not learnt from, or not in this spelling, and one for such classes."""
        known = {column.name: column.categories for column in self.columns if column.kind == "category"}
        lines = []
        for name, texts, kept in (
            *((name, as_texts(frame[name]), kept) for name, kept in known.items()),
            *((name, *self._classes_of(frame)) for name in frame.columns if name == self.target),
        ):
            if others := respelt(texts, kept):
                found = named((f"{text!r} as {other!r}" for text, other in others.items()), 3)
                lines.append(f"{name!r}: read as another spelling of what was learnt: {found}")
            if name in known and (new := _indices(texts, kept) < 0).any():
                found = texts.filter(new).unique(maintain_order=True).to_list()
                found = named(("a missing value" if text is None else repr(text) for text in found), 3)
                lines.append(
                    f"{name!r}: {found} ({rows(int(new.sum()))}) was not in the rows learnt from, and counts as no category"
                )
        return tuple(lines)

    @property
    def known(self) -> Known:
        """What is known of other files with these columns."""
        columns = {self.target: KnownColumn(kept=self.classes)}
        for column in self.columns:
            kept = [text for text in column.categories if text is not None]
            columns[column.name] = KnownColumn(column.kind == "category", kept or (), column.written, column.unit)
        return Known(columns, self.words, [column.name for column in self.columns], self.target)

    def as_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """What `as_dict` gave, also after a passage through JSON. Raises ValueError where something else stands for a text."""
        given = [Column(**column) for column in _listed(record["columns"])]
        columns = tuple(replace(column, categories=_listed(column.categories)) for column in given)
        made = cls(record["target"], _listed(record["classes"]), columns, _listed(record.get("words", ())))
        of_columns = [text for column in columns for text in (column.name, column.kind)]
        may_be_none = [text for column in columns for text in (*column.categories, column.written, column.unit) if text is not None]
        if not all(type(text) is str for text in (made.target, *made.classes, *made.words, *of_columns, *may_be_none)):
            raise ValueError("names of columns, classes and words must be texts")
        if len(set(made.classes)) < len(made.classes):
            raise ValueError("classes must be different")
        return made


def _listed(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):  # a tensor, or a text, would be gone through too
        raise ValueError(f"columns, classes, categories and words must be lists, got a {type(value).__name__}")
    return tuple(value)


def check_types(frame: pl.DataFrame) -> None:
    """Raise `InputError` for columns that can be no features."""
    if unusable := [series.name for series in frame if kind_of(series.dtype) is None]:
        found = named(f"{name!r} ({frame[name].dtype})" for name in unusable)
        raise InputError(
            f"columns of a type that cannot be used: {found}; make them numbers or text{or_without(unusable, frame.columns)}"
        )


def or_without(names: Collection[str], features: Collection[str]) -> str:
    """The advice to leave columns out, where others are left."""
    return ", or leave out those columns with --without" if len(names) < len(features) else ""


def digest(features: np.ndarray, labels: np.ndarray) -> str:
    """Of the numbers [rows, features] and [rows] that are trained on."""
    return hashlib.sha256(features.tobytes() + labels.tobytes()).hexdigest()


def kind_of(dtype: Any) -> Literal["number", "date", "category"] | None:
    """What a column of a type is taken for."""
    if dtype.is_numeric():
        return "number"
    if dtype.is_temporal():
        return "date"
    return "category" if dtype in (pl.Boolean, pl.String, pl.Categorical, pl.Enum) else None


def _column(series: pl.Series, written: str | None, unit: str | None) -> Column:
    kind = kind_of(series.dtype) or "category"
    return Column(series.name, kind, _categories(series) if kind == "category" else (), written, unit)


def _categories(series: pl.Series) -> tuple[str | None, ...]:
    """In alphabetical order, None last."""
    texts = as_texts(series)
    categories = texts.drop_nulls().unique().sort().to_list()
    return (*categories, None) if texts.has_nulls() else tuple(categories)


def as_texts(series: pl.Series) -> pl.Series:
    """As texts.

    Raises:
        InputError: where they are of a type that has none.
    """
    if series.null_count() == len(series):
        return _nulls(series)
    if kind_of(series.dtype) is None:
        raise InputError(f"column {series.name!r} is of a type that cannot be used ({series.dtype}); make it numbers or text")
    return series.dt.to_string() if series.dtype == pl.Duration else series.cast(pl.String)


def _nulls(series: pl.Series) -> pl.Series:
    return pl.Series(series.name, [None] * len(series), dtype=pl.String)


def _indices(texts: pl.Series, known: tuple[str | None, ...]) -> np.ndarray:
    """[rows] float64: where among the known texts each is, or -1; another spelling of a single one is that."""
    places = {text: place for place, text in enumerate(known) if text is not None}
    places |= {text: places[other] for text, other in respelt(texts, known).items()}
    found = texts.replace_strict(list(places), list(places.values()), default=-1, return_dtype=pl.Float64)
    missing = known.index(None) if None in known else -1
    return np.where(texts.is_null().to_numpy(), missing, found.fill_null(-1).to_numpy())


def likeness(text: str) -> str | Decimal:
    """The same for texts that differ in capitals, blanks and the zeros of a number alone."""
    bare = text.strip()
    return Decimal(bare) if PLAIN.fullmatch(bare) else "".join(text.casefold().split())


def respelt(texts: pl.Series, known: Sequence[str | None]) -> dict[str, str]:
    """Texts that are not known → the single known one of their likeness, or of their truth where all known ones are booleans."""
    told = dict.fromkeys(text for text in known if text is not None)
    new = [text for text in texts.drop_nulls().unique(maintain_order=True) if text not in told]
    alike: dict[Any, list[str]] = {}
    for text in told if new else ():
        alike.setdefault(likeness(text), []).append(text)
    for pair in BOOLEANS:
        if alike.keys() == {*pair}:
            alike = {word: alike[pair[place]] for words in BOOLEANS for place, word in enumerate(words)}
            break
    return {text: others[0] for text in new if len(others := alike.get(likeness(text), [])) == 1}


def in_order(series: pl.Series) -> tuple[str, ...]:
    """The classes: numbers in their order, texts in that of the alphabet, as they are written where 1 or 1.0 comes first."""
    order = series.drop_nulls().unique().sort()
    names = _class_names(order).to_list()
    if kind_of(order.dtype) == "category":
        numbers = [as_float(name) for name in names]
        names = sorted(names) if None in numbers else [name for _, name in sorted(zip(numbers, names, strict=True))]
    found = pl.Series(names, dtype=pl.String)
    return tuple(found.filter(without_point(found).is_first_distinct()))


def _class_names(series: pl.Series) -> pl.Series:
    """As texts, whole numbers without a point."""
    if series.dtype.is_float() or series.dtype.is_decimal():
        numbers = series.cast(pl.Float64).to_list()
        return pl.Series(
            [None if n is None else str(int(n)) if n.is_integer() and abs(n) < 2**53 else str(n) for n in numbers], dtype=pl.String
        )
    return as_texts(series)


def without_point(names: pl.Series) -> pl.Series:
    """1 for 1.0."""
    return names.str.replace(r"^([+-]?[0-9]+)\.0$", "${1}")


def _days(series: pl.Series) -> pl.Series:
    """Days since 1970, of a duration or since midnight, as floats."""
    dtype = series.dtype
    day = 1.0 if dtype == pl.Date else DAY["ns"] if dtype == pl.Time else DAY[dtype.time_unit]  # type: ignore[attr-defined]
    return series.to_physical().cast(pl.Float64) / day
