"""Tables to train on: CSV, Parquet, Feather, NPZ, or the handwritten digits that scikit-learn brings.

Whatever cannot be trained on raises `InputError` here, with one line that says what was wrong, what arrived and what to do.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from sklearn.datasets import load_digits

from softmaxima.core.numbers import InputError

MOST_CATEGORIES = 1000  # indicator columns that one text column may become

# Texts that stand for a missing value in a CSV. Without this, one "NA" would turn a column of numbers into categories.
MISSING = ["NA", "N/A", "NaN", "nan", "null", "NULL"]


@dataclass(frozen=True, eq=False)
class Table:
    """Rows with numbers for features and one of several classes for a target."""

    name: str
    target: str
    target_by_default: bool  # nobody named the target: it is the last column
    features: np.ndarray  # [rows, features] float64, finite
    labels: np.ndarray  # [rows] int64, indices into `classes`
    classes: tuple[str, ...]
    encoded: tuple[tuple[str, int], ...] = ()  # one-hot encoded columns, and how many indicator columns each became
    numeric_target: bool = False

    @property
    def rows(self) -> int:
        return len(self.labels)

    def class_sizes(self) -> np.ndarray:
        """Rows of each class."""
        return np.bincount(self.labels, minlength=len(self.classes))


def read_table(path: Path | None = None, target: str | None = None) -> Table:
    """The table in a file, or the bundled digits; `target` defaults to the last column.

    Text, boolean and categorical features are one-hot encoded. An NPZ holds `X` [rows, features] and `y` [rows].
    """
    if path is None:
        pixels, digits = load_digits(return_X_y=True)
        _target_must_be("the bundled digits", "digit", target)
        return _table("digits", "digit", False, pixels, digits)
    if path.is_dir():
        raise InputError(f"{path} is a directory; give a file: {_suffixes()}")
    if not path.exists():
        raise InputError(f"there is no file {path}; give a path to an existing file: {_suffixes()}")
    if path.suffix.lower() == ".npz":
        return _read_npz(path, target)
    if path.suffix.lower() not in READERS:
        raise InputError(f"{path.name}: unknown suffix {path.suffix!r}; convert the table to one of: {_suffixes()}")
    kind, read = READERS[path.suffix.lower()]
    try:
        frame = read(path)
    except (pl.exceptions.PolarsError, OSError, ValueError) as error:
        raise InputError(f"{path.name} cannot be read as {kind} ({_first_line(error)}); {_repair(kind)}") from None
    return _from_frame(path.name, frame, target)


def _read_csv(path: Path) -> pl.DataFrame:
    return pl.read_csv(path, infer_schema_length=None, try_parse_dates=True, null_values=MISSING)


def _read_parquet(path: Path) -> pl.DataFrame:
    return pl.read_parquet(path, hive_partitioning=False)


def _read_feather(path: Path) -> pl.DataFrame:
    return pl.read_ipc(path)


READERS: dict[str, tuple[str, Callable[[Path], pl.DataFrame]]] = {
    ".csv": ("CSV", _read_csv),
    ".parquet": ("Parquet", _read_parquet),
    ".pq": ("Parquet", _read_parquet),
    ".feather": ("Feather", _read_feather),
    ".arrow": ("Feather", _read_feather),
    ".ipc": ("Feather", _read_feather),
}


def _suffixes() -> str:
    return ", ".join([*READERS, ".npz"])


def _repair(kind: str) -> str:
    return "save it as UTF-8 text, one header line, commas between columns" if kind == "CSV" else f"write it again as {kind}"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _named(columns: Iterable[str], limit: int = 10) -> str:
    """The first few, and how many more."""
    names = list(columns)
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _target_must_be(name: str, only: str, target: str | None) -> None:
    if target not in (None, only):
        raise InputError(f"{name}: there is no column {target!r}; the target is {only!r}, so leave --target out")


def _read_npz(path: Path, target: str | None) -> Table:
    repair = "save it with numpy.savez(path, X=…, y=…): X [rows, features] of numbers, y [rows] of ints or text"
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            arrays = {name: archive[name] for name in archive} if isinstance(archive, np.lib.npyio.NpzFile) else {}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path.name} cannot be read as NPZ ({_first_line(error)}); {repair}") from None
    if not {"X", "y"} <= arrays.keys():
        raise InputError(f"{path.name}: needs arrays X and y, got {_named(map(repr, arrays)) or 'none'}; {repair}")
    x, y = arrays["X"], arrays["y"]
    _target_must_be(path.name, "y", target)
    if x.ndim != 2 or y.shape != x.shape[:1]:
        raise InputError(f"{path.name}: X must be [rows, features] and y [rows], got {x.shape} and {y.shape}; reshape them")
    if x.dtype.kind not in "buif" or y.dtype.kind not in "buifU":
        raise InputError(f"{path.name}: X must hold numbers and y ints or text, got {x.dtype} and {y.dtype}; {repair}")
    broken = {f"X[:, {column}]": int(rows) for column, rows in enumerate((~np.isfinite(x)).sum(0)) if rows}
    if y.dtype.kind == "f" and (rows := int((~np.isfinite(y)).sum())):
        broken["y"] = rows
    _refuse_broken(path.name, broken)
    return _table(path.name, "y", False, x.astype(np.float64), y)


def _from_frame(name: str, frame: pl.DataFrame, target: str | None) -> Table:
    if frame.width < 2:
        raise InputError(
            f"{name}: needs features and a target, got {frame.width} column(s): {_named(map(repr, frame.columns)) or 'none'}; "
            "check that a CSV has commas between its columns"
        )
    chosen = frame.columns[-1] if target is None else target
    if chosen not in frame.columns:
        raise InputError(f"{name}: there is no column {chosen!r}; choose a --target among: {_named(map(repr, frame.columns))}")
    unusable = [
        f"{column.name!r} ({column.dtype})" for column in frame if not (_is_number(column.dtype) or _is_category(column.dtype))
    ]
    if unusable:
        raise InputError(
            f"{name}: columns of a type that cannot be used: {_named(unusable)}; make them numbers or text, or remove them"
        )
    _refuse_broken(name, {repr(column.name): rows for column in frame if (rows := _broken(column))})
    features, encoded = [], []
    for column in frame.drop(chosen):
        if _is_number(column.dtype):
            features.append(column.cast(pl.Float64).to_numpy()[:, None])
        else:
            features.append(_one_hot(name, column))
            encoded.append((column.name, features[-1].shape[1]))
    y = frame[chosen]
    values = (y.cast(pl.Float64) if y.dtype.is_decimal() else y).to_numpy() if y.dtype.is_numeric() else _texts(y)
    return _table(name, chosen, target is None, np.hstack(features), values, tuple(encoded))


def _is_number(dtype: pl.DataType) -> bool:
    return dtype.is_numeric() or dtype == pl.Null  # a column of nulls is reported as missing values


def _is_category(dtype: pl.DataType) -> bool:
    return dtype in (pl.Boolean, pl.String, pl.Categorical, pl.Enum)


def _broken(column: pl.Series) -> int:
    """Rows without a finite value."""
    infinite = int((~column.is_finite()).sum()) if column.dtype.is_float() else 0  # nulls do not count in the sum
    return column.null_count() + infinite


def _refuse_broken(name: str, broken: dict[str, int]) -> None:
    if broken:
        columns = _named(f"{column} ({rows} row{'s' * (rows > 1)})" for column, rows in broken.items())
        raise InputError(f"{name}: missing, NaN or infinite values in {columns}; fill them in, or remove those rows or columns")


def _texts(column: pl.Series) -> np.ndarray:
    return column.cast(pl.String).to_numpy().astype(str)


def _one_hot(name: str, column: pl.Series) -> np.ndarray:
    """[rows, categories] of 0 and 1, the categories in alphabetical order."""
    categories, codes = np.unique(_texts(column), return_inverse=True)
    if len(categories) > min(MOST_CATEGORIES, max(20, len(codes) // 2)):
        raise InputError(
            f"{name}: column {column.name!r} has {len(categories)} texts in {len(codes)} rows, too many to one-hot encode; "
            "remove it if it names rows, or group its texts"
        )
    return (codes[:, None] == np.arange(len(categories))).astype(np.float64)


def _table(
    name: str,
    target: str,
    target_by_default: bool,
    features: np.ndarray,
    values: np.ndarray,
    encoded: tuple[tuple[str, int], ...] = (),
) -> Table:
    if not features.size:
        raise InputError(f"{name}: needs rows and features, got {len(features)} rows and {features.shape[1]} features; add some")
    if values.dtype.kind == "f" and (values == np.rint(values)).all() and np.abs(values).max() < 2**53:
        values = values.astype(np.int64)
    found, labels = np.unique(values, return_inverse=True)
    classes = [str(value) for value in found]
    if len(classes) < 2:
        raise InputError(f"{name}: the target {target!r} has the single class {classes[0]!r}; choose another column with --target")
    numeric = values.dtype.kind in "iuf"
    return Table(name, target, target_by_default, features, labels.astype(np.int64), tuple(classes), encoded, numeric)
