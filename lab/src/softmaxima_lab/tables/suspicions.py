"""Columns that look odd: those that number the rows, say nothing, say the same as another, or give the target away.

All is looked for in at most `SAMPLE` rows, and what is said of every row is checked on all.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import polars as pl

from softmaxima_lab.tables.encoding import Column
from softmaxima_lab.wording import MOST_NAMED, listed, named

SAMPLE = 5_000
COPIED_SHARE = 0.05  # of the rows, from where on they are named
LEAST_ROWS = 20  # below, columns agree by chance
LEAK_ACCURACY = 0.995  # right on rows that it was not learnt from
LEAST_ERRORS = 10  # of the most frequent class there, so that no column of noise can do without
LEAK_ERRORS = 0.05  # of those errors, at most
ERRORS_IN_ORDER = 0.2  # at most, of a column that numbers rows: classes may follow one another, with errors where one ends
ROW_NAMES = re.compile(r"unnamed.*|id|index|idx|key|nr|no|row.*|uuid|guid|.*[ _.]id|.*[a-z]I[dD]", re.IGNORECASE)


class Doubt(str):
    """A note on what makes results look better than they will be on new rows."""


def suspicions(columns: Sequence[Column], values: Sequence[np.ndarray], labels: np.ndarray) -> list[str]:
    """A line for each kind of oddity, with the columns and what to do; `values` [rows] of each as `Column.values` gives them."""
    if len(labels) < LEAST_ROWS:
        return []
    # a missing value is a value of its own
    given = {column.name: np.nan_to_num(v, nan=-np.inf) for column, v in zip(columns, values, strict=True)}
    lines: list[str] = []
    hashes = pl.DataFrame({**{str(i): v for i, v in enumerate(given.values())}, "target": labels}).hash_rows().to_numpy()
    first = np.sort(np.unique(hashes, return_index=True)[1])
    if (copies := len(labels) - len(first)) > COPIED_SHARE * len(labels):
        lines.append(
            Doubt(
                f"{copies} of {len(labels)} rows repeat an earlier one, target included; folds then test what they were trained "
                "on, so leave copies out"
            )
        )
    if len(first) < LEAST_ROWS:
        return lines
    given, labels = {name: v[first] for name, v in given.items()}, labels[first]
    constant = [name for name, v in given.items() if v[0] == v[-1] and (v == v[0]).all()]
    numbering = [column.name for column in columns if _numbers_rows(column, given[column.name])]
    telling = {name: v for name, v in given.items() if name not in constant}
    sample = np.random.default_rng(0).permutation(len(labels))[:SAMPLE]
    if constant:
        lines.append(f"the same in every row, and so of no use: {_names(constant)}; {_without(constant)}")
    if numbering:
        lines.append(f"numbers or names the rows, which says nothing of new ones: {_names(numbering)}; {_without(numbering)}")
    if twins := _duplicates({name: v for name, v in telling.items() if name not in numbering}, sample):
        pairs = named(f"{name!r} that of {other!r}" for name, other in twins.items())
        lines.append(f"tells only what another column tells: {pairs}; {_without(twins)}")
    usual, leaks = _leaks(telling, numbering, labels, sample)
    if leaks:
        if len(leaks) == 1:
            ((name, share),) = leaks.items()
            told = f"column {name!r} alone tells the target in {_per_cent(share)}"
        else:
            shares = [f"{name!r} ({_per_cent(share)})" for name, share in leaks.items()]
            columns_told = listed(shares) if len(shares) <= MOST_NAMED else named(shares)
            told = f"each of the columns {columns_told} alone tells the target in such a share"
        advice = _without(leaks) if len(leaks) < len(columns) else "take other columns, for these are all"
        lines.append(
            Doubt(
                f"{told} of {len(sample) // 2} rows that it was not learnt from, where the most frequent class is right in "
                f"{_per_cent(usual)}; if it is not known before the target is, {advice}"
            )
        )
    return lines


def _per_cent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _names(names: Iterable[str]) -> str:
    return named(map(repr, names))


def _without(names: Collection[str]) -> str:
    """The option that leaves the columns out."""
    if len(names) > 10:
        return "--without leaves columns out"
    together = ",".join(name for name in names if "," not in name)
    parts = [part for part in (together, *(name for name in names if "," in name)) if part]
    return f"{' '.join(f'--without {shlex.quote(part)}' for part in parts)} leaves {'them' if len(names) > 1 else 'it'} out"


def _numbers_rows(column: Column, values: np.ndarray) -> bool:
    """0, 1, 2, … in any order; all different where the name is that of an index; or texts that are all different."""
    if column.kind == "date" or not np.isfinite(values).all() or (values != np.rint(values)).any():
        return False
    sequence = column.kind == "number" and values.max() - values.min() == len(values) - 1
    if not (sequence or column.kind == "category" or ROW_NAMES.fullmatch(column.name)):
        return False
    return len(np.unique(values)) == len(values)


def _duplicates(given: Mapping[str, np.ndarray], sample: np.ndarray) -> dict[str, str]:
    """Columns that are equal or one-to-one to one before them, with its name."""
    first: dict[bytes, str] = {}
    found = {}
    for name, values in given.items():
        other = first.setdefault(_told(values[sample]), name)
        if other != name and _told(values) == _told(given[other]):
            found[name] = other
    return found


def _told(values: np.ndarray) -> bytes:
    """The same for columns that tell the same: of few values by any relation that is one-to-one, of many by a monotone one."""
    different, first, codes = np.unique(values, return_index=True, return_inverse=True)
    if len(different) > len(values) / 2:
        return min(codes.tobytes(), (codes.max() - codes).tobytes())
    order = np.empty(len(different), codes.dtype)
    order[np.argsort(first)] = np.arange(len(different))
    return order[codes].tobytes()


def _leaks(
    given: Mapping[str, np.ndarray], numbering: Collection[str], labels: np.ndarray, sample: np.ndarray
) -> tuple[float, dict[str, float]]:
    """How often the most frequent class is right, and columns that are right almost always."""
    learning, judging = np.array_split(sample, 2)
    usual = float(np.bincount(labels).max() / len(labels))
    errors = (1 - usual) * len(judging)
    found = {}
    if errors >= LEAST_ERRORS and labels.max() < len(learning) / 5:
        for name, values in given.items():
            least = 1 - ERRORS_IN_ORDER * (1 - usual) if name in numbering else max(LEAK_ACCURACY, 1 - LEAK_ERRORS * (1 - usual))
            right = float((_by_nearest(values[learning], labels[learning], values[judging]) == labels[judging]).mean())
            if right >= least:
                found[name] = right
    return usual, found


def _by_nearest(values: np.ndarray, labels: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """The most frequent label of the value that is nearest, which finds tables of values and thresholds alike."""
    different, codes = np.unique(values, return_inverse=True)
    classes = labels.max() + 1
    pairs, counts = np.unique(codes * classes + labels, return_counts=True)
    order = np.lexsort((counts, pairs // classes))
    best = pairs[order][np.flatnonzero(np.diff(pairs[order] // classes, append=-1))] % classes  # the last of each value
    return best[np.searchsorted(different[1:] / 2 + different[:-1] / 2, asked)]
