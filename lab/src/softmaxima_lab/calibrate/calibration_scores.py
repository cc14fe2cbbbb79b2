"""Scores of rows whose class is known, from a table with a column for each class that has its name, or stands in its place.

Whatever cannot be calibrated raises `InputError` here, with one line that says what was wrong, what arrived and what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from softmaxima.base.numbers import InputError, Problems
from softmaxima.temperature.calibration import floor_of, logarithms
from softmaxima_lab.tables.encoding import Encoder, in_order, respelt, where_of_frame, without_point
from softmaxima_lab.tables.reading import NUMBERED, read_frame
from softmaxima_lab.tables.suspicions import COPIED_SHARE
from softmaxima_lab.tables.tables import check_classes, check_target, names_given, refuse_infinite, target_rows
from softmaxima_lab.tables.values import Known
from softmaxima_lab.wording import named, rows


@dataclass(frozen=True, eq=False)
class Scores:
    """A score of each class for rows whose class is known."""

    name: str
    target: str
    classes: tuple[str, ...]
    x: np.ndarray  # [rows, classes] float64
    labels: np.ndarray  # [rows] int64
    notes: tuple[str, ...] = ()
    where: Callable[[int], str] = where_of_frame  # in the file a row is

    @property
    def rows(self) -> int:
        return len(self.labels)

    @property
    def sum(self) -> int | None:
        """1 or 100 where each row sums to that as probabilities do, in two digits too; None of other scores."""
        if bool((self.x < 0).any()):
            return None
        return next((sum for sum in (1, 100) if bool(_sum_to(self.x, sum).all())), None)


def _sum_to(x: np.ndarray, total: int) -> np.ndarray:
    """Which rows do, in two digits too."""
    return np.abs(x.sum(-1) / total - 1) <= min(0.005 * x.shape[-1] + 1e-3, 0.1)


def read_scores(
    path: Path, target: str | None = None, without: Sequence[str] = (), absent: Sequence[str] = (), probabilities: bool = False
) -> Scores:
    """The scores in a table whose columns have the names of the classes in its target; those in `absent` have no rows.

    Raises:
        InputError: where columns and classes do not fit together, or a number is no score.
    """
    try:
        return _scores(path, target, without, absent, probabilities)
    except InputError as error:
        Problems().fail(error, of=f"{path.name}: ")


def _scores(path: Path, target: str | None, without: Sequence[str], absent: Sequence[str], probabilities: bool) -> Scores:
    reading = read_frame(path, Known(target=target, left_out=names_given(without), has_codes=False))
    problems = Problems()
    frame, chosen, kept, notes = target_rows(reading, target, without, problems)
    problems.tell()
    check_target(frame[chosen])
    encoder = Encoder.fit(frame, chosen, reading.written, reading.units)
    check_classes(chosen, encoder.classes)
    given = frame.drop(chosen)
    _refuse_what_is_no_number(given)
    columns, places = _classes_of(given.columns, encoder.classes, absent, chosen)
    x, labels = given.cast(pl.Float64).to_numpy(writable=True), places[encoder.labels(frame)]
    if (again := len(x) - len(np.unique(np.column_stack((x, labels)), axis=0))) > COPIED_SHARE * len(x):
        notes.append(
            f"{again} of {len(x)} rows have the scores and the class of an earlier one; leave out those that are copies, for "
            "each row counts as independent"
        )
    if probabilities:
        x, told = _logarithms(x)
        notes += told
    return Scores(path.name, chosen, columns, x, labels, tuple(notes), lambda index: reading.where(kept[index]))


def _refuse_what_is_no_number(given: pl.DataFrame) -> None:
    """Raise `InputError` for missing and infinite numbers, texts and dates."""
    if missing := [f"{column.name!r} ({rows(count)})" for column in given if (count := column.null_count())]:
        raise InputError(f"scores are missing in {named(missing)}; fill them in, or leave those rows out")
    if texts := [column.name for column in given if not column.dtype.is_numeric()]:
        raise InputError(f"scores are numbers, and {named(map(repr, texts))} are none; leave columns out with --without")
    refuse_infinite(given)


def _classes_of(
    given: Sequence[str], classes: Sequence[str], absent: Sequence[str], target: str
) -> tuple[tuple[str, ...], np.ndarray]:
    """The class of each column, and the place of the column of each class that has rows.

    Columns that have numbers alone, as those of an array, are those of all classes in their order.
    """
    columns = tuple(given)
    if all(NUMBERED.fullmatch(name) for name in given):
        columns = in_order(pl.Series([*classes, *absent], dtype=pl.String))
        if len(columns) != len(given):
            raise InputError(
                f"{rows(len(given), 'column')} without names are taken for all classes in their order, and {target!r} has "
                f"{named(map(repr, classes))}; name in --absent what classes no row has, or give each column the name of its class"
            )
    names, own, idle = (without_point(pl.Series(each, dtype=pl.String)).to_list() for each in (columns, classes, absent))
    others = respelt(pl.Series(names, dtype=pl.String), [name for name in (*own, *idle) if name not in names])
    if len({*others.values()}) == len(others):  # as true, which Python calls True
        names = [others.get(name, name) for name in names]
    if unknown := [name for name in idle if name not in names]:
        raise InputError(f"--absent: there is no column {named(map(repr, unknown))}; choose among: {named(map(repr, columns))}")
    if present := [name for name in idle if name in own]:
        raise InputError(f"--absent: there are rows of {named(map(repr, present))}; name only classes that no row has")
    if missing := [name for name in own if name not in names]:
        raise InputError(
            f"the target {target!r} has classes without a column of scores: {named(map(repr, missing))}; the columns are "
            f"{named(map(repr, columns))}"
        )
    if stray := [column for column, name in zip(columns, names, strict=True) if name not in {*own, *idle}]:
        raise InputError(
            f"columns {named(map(repr, stray))} have the name of no class in {target!r}; leave them out with --without, or name "
            "them in --absent where they are classes that no row has"
        )
    return columns, np.array([names.index(name) for name in own])


def _logarithms(p: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """log p, and what was raised."""
    if not bool(((p >= 0) & (p <= 1)).all()):
        wrong = p[(p < 0) | (p > 1)][0]
        raise InputError(f"--probabilities takes numbers between 0 and 1, got {wrong:g}; leave it out for logits")
    if not bool(p.any(-1).all()):
        raise InputError("a row has probabilities of 0 alone; leave such rows out")
    floor = floor_of(p)
    raised = int((p == 0).sum())
    notes = [f"{rows(raised, 'number')} of 0 counted as {floor:.2g} or less, or the log loss may be infinite"] if raised else []
    if others := int((~_sum_to(p, 1)).sum()):
        sums = p.sum(-1)
        notes.append(
            f"{rows(others)} with another sum of probabilities than 1 ({sums.min():.3g} to {sums.max():.3g}), which is divided by: "
            "check that each row is of classes of which one is true"
        )
    return logarithms(p, floor), notes
