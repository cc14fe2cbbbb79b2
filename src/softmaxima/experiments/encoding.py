"""From a frame to the matrix that is trained on: numbers as they are, dates as days, and an indicator column for each category."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Literal, Self

import numpy as np
import polars as pl

from softmaxima.core.numbers import InputError
from softmaxima.experiments.values import Known, KnownColumn, as_float, misfit
from softmaxima.experiments.wording import named, rows

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

    def values(self, series: pl.Series, numbers: Sequence[int] | np.ndarray | None = None) -> np.ndarray:
        """[rows] float64: numbers, days, or the index of the category, -1 for one that is not known; NaN where it is missing.

        The rows have `numbers` in their file, or 1, 2, ….
        """
        if self.kind == "category":
            return _indices(series.cast(pl.String), self.categories)
        if series.null_count() == len(series):
            return np.full(len(series), np.nan)  # the type of a column without values tells nothing
        if kind_of(series.dtype) != self.kind:
            texts = series.cast(pl.String)
            place = misfit(texts, self.kind, self.written, self.unit)
            found = f"{texts[place]!r} in row {place + 1 if numbers is None else numbers[place]}"
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

    def matrix(self, frame: pl.DataFrame, numbers: Sequence[int] | np.ndarray | None = None) -> np.ndarray:
        """[rows, features] float64, NaN where a number is missing; a category that is not known has no indicator.

        The rows have `numbers` in their file, or 1, 2, ….
        """
        given = set(frame.columns)
        if absent := [column.name for column in self.columns if column.name not in given]:
            raise InputError(
                f"there is no column {named(map(repr, absent))}, which was learnt from; got {named(map(repr, frame.columns))}"
            )
        parts = []
        for column in self.columns:
            values = column.values(frame[column.name], numbers)[:, None]
            parts.append(values == np.arange(column.width) if column.kind == "category" else values)
        return np.hstack([np.empty((frame.height, 0)), *parts])

    def labels(self, frame: pl.DataFrame) -> np.ndarray:
        """[rows] int64, the indices of the classes, -1 for one that is not known; 1.0 is the class 1."""
        classes = without_point(pl.Series(self.classes, dtype=pl.String)).to_list()
        return _indices(without_point(_class_names(frame[self.target])), tuple(classes)).astype(np.int64)

    def unknown(self, frame: pl.DataFrame) -> tuple[str, ...]:
        """A line for each column with categories that were not learnt from, or not in these capitals."""
        lines = []
        for column in self.columns:
            texts = frame[column.name].cast(pl.String)
            if column.kind == "category" and (others := _in_other_capitals(texts, column.categories)):
                found = named((f"{text!r} as {other!r}" for text, other in others.items()), 3)
                lines.append(f"{column.name!r}: read as what differs in capitals alone: {found}")
            if column.kind == "category" and (new := column.values(frame[column.name]) < 0).any():
                found = texts.filter(new).unique(maintain_order=True).to_list()
                found = named(("a missing value" if text is None else repr(text) for text in found), 3)
                lines.append(
                    f"{column.name!r}: {found} ({rows(int(new.sum()))}) was not in the rows learnt from, and counts as no category"
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
        """What `as_dict` gave, also after a passage through JSON."""
        columns = tuple(Column(**column | {"categories": tuple(column["categories"])}) for column in record["columns"])
        return cls(record["target"], tuple(record["classes"]), columns, tuple(record.get("words", ())))


def check_types(frame: pl.DataFrame) -> None:
    """Raise `InputError` for columns that can be no features."""
    if unusable := [f"{series.name!r} ({series.dtype})" for series in frame if kind_of(series.dtype) is None]:
        raise InputError(
            f"columns of a type that cannot be used: {named(unusable)}; make them numbers or text, or leave them out with --without"
        )


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
    texts = series.cast(pl.String)
    categories = texts.drop_nulls().unique().sort().to_list()
    return (*categories, None) if texts.has_nulls() else tuple(categories)


def _indices(texts: pl.Series, known: tuple[str | None, ...]) -> np.ndarray:
    """[rows] float64: where among the known texts each is, or -1; one that differs from a single one in capitals alone is that."""
    places = {text: place for place, text in enumerate(known) if text is not None}
    places |= {text: places[other] for text, other in _in_other_capitals(texts, known).items()}
    found = texts.replace_strict(list(places), list(places.values()), default=-1, return_dtype=pl.Float64)
    missing = known.index(None) if None in known else -1
    return np.where(texts.is_null().to_numpy(), missing, found.fill_null(-1).to_numpy())


def _in_other_capitals(texts: pl.Series, known: Sequence[str | None]) -> dict[str, str]:
    """Texts that are not known → the single known one that differs in capitals alone, as TRUE is of true."""
    told = {text for text in known if text is not None}
    alike: dict[str, list[str]] = {}
    for text in told:
        alike.setdefault(text.casefold(), []).append(text)
    new = (text for text in texts.drop_nulls().unique(maintain_order=True) if text not in told)
    return {text: others[0] for text in new if len(others := alike.get(text.casefold(), [])) == 1}


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
    return series.cast(pl.String)


def without_point(names: pl.Series) -> pl.Series:
    """1 for 1.0."""
    return names.str.replace(r"^([+-]?[0-9]+)\.0$", "${1}")


def _days(series: pl.Series) -> pl.Series:
    """Days since 1970, of a duration or since midnight, as floats."""
    dtype = series.dtype
    day = 1.0 if dtype == pl.Date else DAY["ns"] if dtype == pl.Time else DAY[dtype.time_unit]  # type: ignore[attr-defined]
    return series.to_physical().cast(pl.Float64) / day
