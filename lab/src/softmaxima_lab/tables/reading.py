"""Files of rows, as people have them, as a frame: archives, encodings, separators, names, arrays. `values` says what texts are.

Whatever cannot be read raises `InputError`, with one line that says what is wrong and what to do. What was done to the file beyond
reading it is said in notes.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import importlib
import io
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np
import polars as pl

from softmaxima.base.memory import bounded
from softmaxima.base.numbers import InputError
from softmaxima.io.texts import encoding_of, layout_of, most_unpacked, table_in
from softmaxima_lab.tables.values import NUMBER_LIKE, Known, as_float, is_missing, values_of
from softmaxima_lab.wording import named, rows

ARCHIVES = (".gz", ".zip")
GZIP, ZIP = b"\x1f\x8b", b"PK\x03\x04"
COLUMNS = 100_000  # each takes kilobytes, even of few rows
FIRST_ROWS = 200  # by which the header is
NUMBERED = re.compile(r"column [1-9][0-9]*")
ENCODINGS = {"utf-8-sig": (), "utf-16": ("read as UTF-16",), "cp1252": ("read as Windows-1252 (latin-1), for it is not UTF-8",)}
NEW = Known()


@dataclass(frozen=True, eq=False)
class Reading:
    """A file's frame, and what was done to get it."""

    frame: pl.DataFrame
    notes: tuple[str, ...] = ()
    words: Mapping[str, Sequence[str]] = field(default_factory=dict)  # this and the next two as in `Values`
    written: Mapping[str, str] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    target: str | None = None  # where the format says which column it is
    separator: str | None = None  # of text
    places: np.ndarray | None = None  # the numbers of the rows in the file, from 1, where some may have been left out
    lines: np.ndarray | None = None  # of text, those at which rows begin, from 1
    misfits: tuple[str, ...] = ()  # as in `Values`
    doubt: str | None = None  # as in `Layout`, said in a note too
    untrainable: str | None = None  # of rows that a model may predict, but that have no target beside features: what to say

    @property
    def numbers(self) -> np.ndarray:
        """The number of each row in the file, from 1."""
        return np.arange(1, self.frame.height + 1) if self.places is None else self.places

    def where(self, index: int) -> str:
        """Where a row is in the file, from 1: the line of a text, which names the columns in one too, or a row."""
        return f"row {self.numbers[index]}" if self.lines is None else f"line {self.lines[index]}"


def read_frame(path: Path, known: Known = NEW) -> Reading:
    """The frame in a file, of which something may be known.

    Raises:
        InputError: without the file's name.
    """
    if path.is_dir():
        raise InputError(f"is a directory; give a file: {suffixes()}")
    if not path.exists():
        raise InputError(f"there is no such file; give a path to an existing file: {suffixes()}")
    kind, content = "a file", b""
    try:
        content = path.read_bytes()
        kind = "an archive"
        name, content = _unpacked(path.name, content)
        suffix = PurePosixPath(name).suffix.lower()
        if suffix not in READERS:
            raise InputError(f"unknown suffix {suffix!r}; convert the table to one of: {suffixes()}")
        kind, read = READERS[suffix]
        # Polars' reader of CSV aborts where memory ends.
        with bounded(3 * most_unpacked(len(content))) if kind != "CSV" else contextlib.nullcontext():
            reading = read(content, known)
    except InputError:
        raise
    except ModuleNotFoundError:
        raise
    except MemoryError:
        raise InputError("memory ran out, or what a file may take of it; free some, or split the table") from None
    except (Exception, pl.exceptions.PanicException) as error:  # of any library that reads files
        raise InputError(
            f"cannot be read as {kind} ({_reason(kind, content, error)}); {REPAIRS.get(kind, f'write it again as {kind}')}"
        ) from None
    found = values_of(reading.frame, kind == "CSV", known, reading.separator == ";")
    notes = (*reading.notes, *found.notes)
    return replace(
        reading,
        frame=found.frame,
        notes=notes,
        words=found.words,
        written=found.written,
        units=found.units,
        misfits=found.misfits,
    )


def _reason(kind: str, content: bytes, error: Exception) -> str:
    """Why it cannot be read, by what it holds."""
    if isinstance(error, UnicodeDecodeError):
        encodings = "no UTF-16" if error.encoding.startswith("utf-16") else "neither UTF-8 nor Windows-1252"
        return f"byte {content[error.start]:#04x}, after {error.start} others, is {encodings}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if kind in BEGINNINGS and not content.startswith(BEGINNINGS[kind]):
        return f"it begins with {content[:12]!r}, as none does"
    if isinstance(error, csv.Error):
        return f"a field has more than {csv.field_size_limit()} letters, as where a quote is not closed"
    if isinstance(error, pl.exceptions.PanicException):
        return "polars fails on what it holds"
    if kind == "CSV":
        return "its quotes and separators do not fit together"
    if kind == "NPZ" and type(error) is ValueError:
        return "it holds Python objects, none of which is loaded"
    return "it is damaged, cut short or encrypted"


def _unpacked(name: str, content: bytes) -> tuple[str, bytes]:
    """The name and the bytes of the table, out of archives, which go by their first bytes where their name says something else."""
    suffix = PurePosixPath(name).suffix.lower()
    if content.startswith(GZIP):
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            return _unpacked(name[:-3] if suffix == ".gz" else name, _read_some(file, len(content)))
    if suffix == ".gz":  # unpacked already, as browsers do
        return name[:-3], content
    if suffix != ".zip" and not (content.startswith(ZIP) and READERS.get(suffix, ("",))[0] == "CSV"):
        return name, content
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        member = table_in(archive, READERS)
        with archive.open(member) as file:
            return _unpacked(member, _read_some(file, len(content)))


def _read_some(file: IO[bytes] | gzip.GzipFile, packed: int) -> bytes:
    """All that is unpacked of so many bytes, unless it is too much."""
    content = file.read((most := most_unpacked(packed)) + 1)
    _check_size(len(content), most)
    return content


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise InputError(
            f"is unpacked to more than {most / 1e9:.1f} GB, as what is made to fill a memory; unpack it, if you trust it"
        )


def suffixes() -> str:
    """Those that are read."""
    return ", ".join([*READERS, *ARCHIVES])


def _check_columns(width: int) -> None:
    if width > COLUMNS:
        raise InputError(f"has {width} columns, and a table to train on has at most {COLUMNS}; leave some out")


# Text ---------------------------------------------------------------------------------------------------------------------


def _read_text(content: bytes, known: Known) -> Reading:
    text, notes = _decoded(content)
    layout = layout_of(text)
    text, separator, width, sample = text[layout.begin :], layout.separator, layout.width, layout.lines
    if not any(map(str.strip, sample)):
        raise InputError(f"cannot be read as CSV (it is empty); {REPAIRS['CSV']}")
    _check_columns(width)
    if layout.doubt:
        notes.append(layout.doubt)
    untrainable = None
    if width == 1:
        untrainable = (
            f"needs features and a target, got 1 column: {sample[0].strip()[:60]!r}; separate the columns by commas, semicolons, "
            "tabs or |"
        )
    if separator != ",":
        notes.append(f"columns are separated by {'tabs' if separator == chr(9) else repr(separator)}")
    if any(field.startswith(' "') for fields in csv.reader(sample, delimiter=separator) for field in fields):
        text = text.replace(f'{separator} "', f'{separator}"')  # such a quote would be part of the text
    frame = _strings(text, separator, width, layout.line)
    begins = layout.line + _lines_before(frame, text)
    blank = frame[:, 0].is_null() | (frame[:, 0].str.strip_chars() == "")
    if blank.any():
        blank &= frame.select(pl.all_horizontal(pl.all().is_null() | (pl.all().str.strip_chars() == ""))).to_series()
        if blank.any():
            notes.append(f"left out, being empty: {rows(int(blank.sum()))}")
            frame = frame.filter(~blank)
    told = np.flatnonzero(~blank.to_numpy())
    names, frame = _with_names(frame, notes, known)
    frame.columns = names
    places = told + 1 if frame.height == len(told) else told[1:] - told[0]  # below the names
    begins = begins[told][-frame.height or len(told) :]
    return Reading(
        frame, tuple(notes), separator=separator, places=places, lines=begins, untrainable=untrainable, doubt=layout.doubt
    )


def _lines_before(frame: pl.DataFrame, text: str) -> np.ndarray:
    """[rows], how many lines of the text are before each row."""
    before = np.arange(frame.height)
    if text.count("\n") + (not text.endswith("\n")) != frame.height:  # quoted texts hold line ends
        held = frame.select(pl.sum_horizontal(pl.all().str.count_matches("\n").fill_null(0))).to_series().to_numpy()
        before += np.cumsum(held, dtype=np.int64) - held
    return before


def _decoded(content: bytes) -> tuple[str, list[str]]:
    """The text, and a note if it is not in UTF-8."""
    encoding = encoding_of(content)
    if encoding == "cp1252":
        _refuse_two_encodings(content)
    text, notes = content.decode(encoding), ENCODINGS[encoding]
    if "\0" in text:
        raise InputError("cannot be read as CSV (it holds zero bytes, as no text does); " + REPAIRS["CSV"])
    return text.replace("\r\n", "\n").replace("\r", "\n"), [*notes]


def _refuse_two_encodings(content: bytes) -> None:
    """Raise `InputError` where most letters beyond ASCII are UTF-8, and name the first line that is not."""
    sequences = [
        len(re.findall(pattern, content))
        for pattern in (rb"[\xc2-\xf4][\x80-\xbf]+", rb"(?<![\x80-\xff])[\x80-\xff](?![\x80-\xff])")
    ]
    if sequences[0] > sequences[1]:
        lines = content.split(b"\n")
        number, line = next((n, line) for n, line in enumerate(lines, 1) if not _is_utf8(line))
        raise InputError(f"cannot be read as CSV (it is UTF-8, but for line {number}: {line[:60]!r}); {REPAIRS['CSV']}")


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _strings(text: str, separator: str, width: int, lines: int) -> pl.DataFrame:
    """Every line a row of texts, of which the first is number `lines` of the file."""
    schema = {f"column {number}": pl.String for number in range(1, width + 1)}
    try:
        frame = pl.read_csv(io.BytesIO(text.encode()), has_header=False, schema=schema, separator=separator)
    except pl.exceptions.PolarsError:
        _refuse_ragged(text, separator, width, lines)
        raise
    if frame[:, -1].has_nulls():  # as a line has that is too short
        _refuse_ragged(text, separator, width, lines)
    return frame


def _refuse_ragged(text: str, separator: str, width: int, lines: int) -> None:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    line = lines
    for fields in reader:
        if len(fields) != width and any(map(str.strip, fields)):
            held = f"{len(fields)} field{'s' * (len(fields) != 1)}"
            raise InputError(
                f"line {line} has {held}, where most have {width}: {separator.join(fields)[:60]!r}; "
                f"repair it, or quote a text that holds {separator!r}"
            )
        line = lines + reader.line_num


# The header ---------------------------------------------------------------------------------------------------------------


def _with_names(frame: pl.DataFrame, notes: list[str], known: Known) -> tuple[list[str], pl.DataFrame]:
    """The names of the columns, and the rows below them."""
    first = [(cell or "").strip() for cell in frame.row(0)]
    names: dict[str, str] = {}  # and what the file has
    for number, name in enumerate(first, 1):
        names[_free(name or f"column {number}", names)] = name
    is_known = bool(known.names) and {name for name, cell in names.items() if cell}.issuperset(known.names)
    if not is_known and (_are_numbered(known.names) or not _is_header(first, frame[1:], notes)):
        called = _numbers_of(known, frame.width)
        notes.append(f"the first line is a row, not names ({named(map(repr, first), 3)}); the columns are called {called[0]!r}, …")
        return called, frame
    given = frame.row(0)
    frame = frame[1:]
    frame.columns = list(names)
    # a column without a name and without a value comes from a separator at the end of each line
    frame = frame.drop([column.name for column in frame if not names[column.name] and column.null_count() == frame.height])
    if unnamed := [name for name in frame.columns if not names[name]]:
        notes.append(f"columns without a name are called: {named(map(repr, unnamed))}")
    if twice := [name for name, cell in names.items() if cell and name != cell]:
        notes.append(f"names that occur again are made different: {named(map(repr, twice))}")
    if padded := [cell for cell, was in zip(first, given, strict=True) if was and was != cell]:
        notes.append(f"blanks around names are left out: {named(map(repr, padded))}")
    return frame.columns, frame


def _are_numbered(names: Sequence[str]) -> bool:
    """Whether they are those of columns without names."""
    return bool(names) and all(NUMBERED.fullmatch(name) for name in names)


def _numbers_of(known: Known, width: int) -> list[str]:
    """column 1, column 2, …, without the number of the target where rows that have none are short of a column."""
    called = [f"column {number}" for number in range(1, width + 2)]
    if known.target in called[:-1] and called[-1] in known.names:
        called.remove(known.target)
    return called[:width]


def _free(name: str, taken: Collection[str]) -> str:
    """The name, with a number where another column has it already."""
    numbered = (name if number == 1 else f"{name} ({number})" for number in range(1, len(taken) + 2))
    return next(candidate for candidate in numbered if candidate not in taken)


def _is_header(first: Sequence[str], below: pl.DataFrame, notes: list[str]) -> bool:
    """Whether a first line names the columns, by how its cells fit what is below.

    A text over numbers is a name, and so is one that a column of few texts does not have; a number in about the range of those
    below is a value, and so is a text that occurs again. Numbers are names where they count the columns, and all cells are
    where each text of a column is one of the others.
    """
    numbers = [(number, cell) for number, cell in enumerate(first) if NUMBER_LIKE.fullmatch(cell)]
    start = numbers[0][0] if numbers else 0
    places = [[str(number - start + least) for number, _ in numbers] for least in (0, 1)]
    counted = len(numbers) > 3 and [cell for _, cell in numbers] in places  # as libraries name columns that have no names
    votes = [_vote(cell, column) for cell, column in zip(first, below[:FIRST_ROWS], strict=True)]
    names = [cell for cell, vote in zip(first, votes, strict=True) if vote in ("name", "new")]
    values = [cell for cell, vote in zip(first, votes, strict=True) if vote == "value"]
    cells = set(map(_as_class, first))
    told_apart = [_told(column) for column, vote in zip(below[:FIRST_ROWS], votes, strict=True) if vote in ("name", "new")]
    classed = len(cells) == len(first) and any(cells.issuperset(map(_as_class, texts)) for texts in told_apart)
    if counted or (values and classed) or (not values and "name" not in votes and (names or not numbers)):
        notes.append(f"the first line is taken as names: {named(map(repr, filter(None, first)), 3)}")
        return True
    if not names and not values:
        raise InputError(
            f"the first line may name the columns or be a row ({named((repr(cell) for _, cell in numbers), 3)}); "
            "put a line of names above it, or write names that are no numbers"
        )
    if names and values:
        raise InputError(
            f"the first line may name the columns ({named(map(repr, names), 3)}) or be a row ({named(map(repr, values), 3)}); "
            "put a line of names above it, or write names that no row has"
        )
    return bool(names)


def _told(below: pl.Series) -> list[str]:
    """The texts of a column that stand for no missing value."""
    return [text for given in below.drop_nulls() if not is_missing(text := given.strip())]


def _as_class(text: str) -> str | float:
    """1 for 1.0."""
    number = as_float(text)
    return text if number is None else number


def _vote(cell: str, below: pl.Series) -> str | None:
    """What a cell of the first line is by its column: a name, a value, a new text, or None where that cannot be told."""
    others = _told(below)
    if not others or is_missing(cell):
        return None
    if sum(NUMBER_LIKE.fullmatch(other) is not None for other in others) >= 0.9 * len(others):
        if not NUMBER_LIKE.fullmatch(cell):
            return "name"
        value, values = as_float(cell), [number for other in others if (number := as_float(other)) is not None]
        if value is None or not values:
            return "value" if (value is None) == (not values) else None
        least, most = min(values), max(values)
        return "value" if 2 * least - most <= value <= 2 * most - least else None  # years as names are farther off
    if cell in others:
        return "value"
    once = sum(count == 1 for count in Counter(others).values())
    # the share of those that occur once is about the chance of one that is not among them (Good–Turing)
    return "new" if once + 1 < 0.1 * (len(others) + 1) else None


# Formats with types -------------------------------------------------------------------------------------------------------


def _read_parquet(content: bytes, _: Known) -> Reading:
    about = importlib.import_module("pyarrow.parquet").read_metadata(io.BytesIO(content))
    _check_columns(about.num_columns)
    _check_size(8 * about.num_rows * about.num_columns, most_unpacked(len(content)))
    # by pyarrow, which asks the checksums of pages
    frame = pl.read_parquet(io.BytesIO(content), use_pyarrow=True, pyarrow_options={"page_checksum_verification": True})
    if frame.height != about.num_rows:  # as where the header of a page, which has no checksum, is damaged
        raise InputError(f"is damaged: {frame.height} rows came where {about.num_rows} are stated; copy it again")
    return Reading(frame)


def _read_feather(content: bytes, _: Known) -> Reading:
    return Reading(pl.read_ipc(io.BytesIO(content), use_pyarrow=True))  # which raises where memory ends, and does not abort


def _read_npz(content: bytes, _: Known) -> Reading:
    archive = np.load(io.BytesIO(content), allow_pickle=False)
    if isinstance(archive, np.lib.npyio.NpzFile):
        members = zipfile.ZipFile(io.BytesIO(content)).infolist()
        _check_size(sum(member.file_size for member in members), most_unpacked(len(content)))
    arrays = {name: archive[name] for name in archive} if isinstance(archive, np.lib.npyio.NpzFile) else {}
    needed = f"needs arrays X and y, got {named(map(repr, arrays)) or 'none'}; {REPAIRS['NPZ']}"
    if "X" not in arrays:
        raise InputError(needed)
    x, y = arrays["X"], arrays.get("y")
    if x.ndim != 2 or (y is not None and y.shape != x.shape[:1]):
        shapes = f"{x.shape}" if y is None else f"{x.shape} and {y.shape}"
        raise InputError(f"X must be [rows, features] and y [rows], got {shapes}; reshape them")
    if x.dtype.kind not in "buif" or (y is not None and y.dtype.kind not in "buifU"):
        types = f"{x.dtype}" if y is None else f"{x.dtype} and {y.dtype}"
        raise InputError(f"X must hold numbers and y ints or text, got {types}; {REPAIRS['NPZ']}")
    return replace(of_arrays(x, y, "y"), untrainable=needed if y is None else None)


def of_arrays(x: np.ndarray, y: np.ndarray | None, target: str) -> Reading:
    """Features [rows, features] and the target [rows], if there is one, as a frame."""
    features = x.astype(np.float64)
    columns = [pl.Series(f"column {number}", column) for number, column in enumerate(features.T, 1)]
    return Reading(pl.DataFrame(columns if y is None else [*columns, pl.Series(target, y)]), target=target)


READERS: dict[str, tuple[str, Callable[[bytes, Known], Reading]]] = {
    **dict.fromkeys((".csv", ".tsv", ".txt"), ("CSV", _read_text)),
    **dict.fromkeys((".parquet", ".pq"), ("Parquet", _read_parquet)),
    **dict.fromkeys((".feather", ".arrow", ".ipc"), ("Feather", _read_feather)),
    ".npz": ("NPZ", _read_npz),
}
BEGINNINGS = {"Parquet": (b"PAR1",), "Feather": (b"ARROW1", b"FEA1"), "NPZ": (b"PK", b"\x93NUMPY")}
REPAIRS = {
    "CSV": "save it as UTF-8 text, one header line, one row a line",
    "Feather": "write it again without compression, or as Parquet",
    "NPZ": "save it with numpy.savez(path, X=…, y=…): X [rows, features] of numbers, y [rows] of ints or text",
    "an archive": "pack it again, or give the table itself",
    "a file": "give one that can be read",
}
