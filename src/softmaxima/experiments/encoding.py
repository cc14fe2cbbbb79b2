"""From a frame to the matrix that is trained on: numbers as they are, dates as days, and an indicator column for each category."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Literal, Self

import numpy as np
import polars as pl

from softmaxima.core.numbers import InputError
from softmaxima.experiments.values import Known, among_dates, among_numbers, as_float
from softmaxima.experiments.wording import named, rows

MOST_CATEGORIES = 1000  # indicator columns that one column may become
DAY = {"ns": 86400e9, "us": 86400e6, "ms": 86400e3}


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

    def values(self, series: pl.Series) -> np.ndarray:
        """[rows] float64: numbers, days, or the index of the category, -1 for one that is not known; NaN where it is missing."""
        if self.kind == "category":
            return _indices(series.cast(pl.String), self.categories)
        if series.null_count() == len(series):
            return np.full(len(series), np.nan)  # the type of a column without values tells nothing
        if kind_of(series.dtype) != self.kind:
            example = series.drop_nulls().head(1).cast(pl.String).to_list()
            raise InputError(f"column {self.name!r} must hold {self.kind}s, as where it was learnt, got {example}; repair it")
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
            InputError: where a text column has too many texts, or a column is of another type.
        """
        unusable = [
            f"{series.name!r} ({series.dtype})" for series in frame if series.name != target and kind_of(series.dtype) is None
        ]
        if unusable:
            raise InputError(
                f"columns of a type that cannot be used: {named(unusable)}; make them numbers or text, or leave them out "
                "with --without"
            )
        columns = tuple(_column(series, written.get(series.name), units.get(series.name)) for series in frame.drop(target))
        return cls(target, _classes(frame[target]), columns, tuple(words))

    def matrix(self, frame: pl.DataFrame) -> np.ndarray:
        """[rows, features] float64, NaN where a number is missing; a category that is not known has no indicator."""
        given = set(frame.columns)
        if absent := [column.name for column in self.columns if column.name not in given]:
            raise InputError(
                f"there is no column {named(map(repr, absent))}, which was learnt from; got {named(map(repr, frame.columns))}"
            )
        parts = []
        for column in self.columns:
            values = column.values(frame[column.name])[:, None]
            parts.append(values == np.arange(column.width) if column.kind == "category" else values)
        return np.hstack([np.empty((frame.height, 0)), *parts])

    def labels(self, frame: pl.DataFrame) -> np.ndarray:
        """[rows] int64, the indices of the classes, -1 for one that is not known."""
        return _indices(_class_names(frame[self.target]), self.classes).astype(np.int64)

    def unknown(self, frame: pl.DataFrame) -> tuple[str, ...]:
        """A line for each column with categories that were not learnt from."""
        lines = []
        for column in self.columns:
            if column.kind == "category" and (new := column.values(frame[column.name]) < 0).any():
                texts = frame[column.name].filter(new).unique(maintain_order=True).cast(pl.String).to_list()
                found = named(("a missing value" if text is None else repr(text) for text in texts), 3)
                lines.append(
                    f"{column.name!r}: {found} ({rows(int(new.sum()))}) was not in the rows learnt from, and counts as no category"
                )
        return tuple(lines)

    @property
    def known(self) -> Known:
        """What is known of other files with these columns."""
        written = {column.name: column.written for column in self.columns if column.written is not None}
        units = {column.name: column.unit for column in self.columns if column.unit is not None}
        texts = {column.name for column in self.columns if column.kind == "category"}  # "001" is one, though a number elsewhere
        names = [column.name for column in self.columns]
        quantities = set(names) - texts
        if any(as_float(name) is None for name in self.classes):
            texts.add(self.target)
        known_texts = {column.name: column.categories for column in self.columns if column.categories} | {self.target: self.classes}
        kept = {name: [text for text in categories if text is not None] for name, categories in known_texts.items()}
        return Known(texts, kept, quantities, written, units, self.words, names, self.target)

    def as_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """What `as_dict` gave, also after a passage through JSON."""
        columns = tuple(Column(**column | {"categories": tuple(column["categories"])}) for column in record["columns"])
        return cls(record["target"], tuple(record["classes"]), columns, tuple(record.get("words", ())))


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
    texts = series.cast(pl.String)
    categories = texts.drop_nulls().unique().sort().to_list()
    if len(categories) > min(MOST_CATEGORIES, max(20, len(texts) // 2)):
        odd, kind = among_numbers(texts), "numbers"
        if odd is None:
            odd, kind = among_dates(texts), "dates"
        raise InputError(
            f"column {series.name!r} has {len(categories)} texts in {len(texts)} rows, too many to one-hot encode; "
            + (
                "group its texts, or if it names rows "
                if odd is None
                else f"repair its texts that are no {kind}, such as {odd!r}, or "
            )
            + f"leave it out with --without {series.name!r}"
        )
    return (*categories, None) if texts.has_nulls() else tuple(categories)


def _indices(texts: pl.Series, known: tuple[str | None, ...]) -> np.ndarray:
    """[rows] float64: where among the known texts each is, or -1."""
    known_texts = [text for text in known if text is not None]
    found = texts.replace_strict(known_texts, range(len(known_texts)), default=-1, return_dtype=pl.Float64)
    missing = known.index(None) if None in known else -1
    return np.where(texts.is_null().to_numpy(), missing, found.fill_null(-1).to_numpy())


def _classes(series: pl.Series) -> tuple[str, ...]:
    """Numbers in their order, texts in that of the alphabet."""
    order = series.drop_nulls().unique()
    order = order.cast(pl.String) if kind_of(order.dtype) == "category" else order
    return tuple(dict.fromkeys(_class_names(order.sort())))


def _class_names(series: pl.Series) -> pl.Series:
    """As texts, whole numbers without a point."""
    if series.dtype.is_float() or series.dtype.is_decimal():
        numbers = series.cast(pl.Float64).to_list()
        return pl.Series(
            [None if n is None else str(int(n)) if n.is_integer() and abs(n) < 2**53 else str(n) for n in numbers], dtype=pl.String
        )
    return series.cast(pl.String)


def _days(series: pl.Series) -> pl.Series:
    """Days since 1970, of a duration or since midnight, as floats."""
    dtype = series.dtype
    day = 1.0 if dtype == pl.Date else DAY["ns"] if dtype == pl.Time else DAY[dtype.time_unit]  # type: ignore[attr-defined]
    return series.to_physical().cast(pl.Float64) / day
