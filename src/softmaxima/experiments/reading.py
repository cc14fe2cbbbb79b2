"""Files of rows, as people have them, as a frame: numbers, dates and texts in columns with names, null where a value is missing.

Whatever cannot be read raises `InputError`, with one line that says what is wrong and what to do. What was done to the file beyond
reading it is said in notes.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

import numpy as np
import polars as pl

from softmaxima.core.numbers import InputError

ARCHIVES = (".gz", ".zip")
SEPARATORS = ("\t", ";", "|", ",")  # the first of those that fit equally well: a comma may be a decimal one
SAMPLE = 200_000  # characters by which the separator is recognised
FIRST_ROWS = 200  # by which the header is

# Texts that stand for a missing value. Without this, one "NA" would turn a column of numbers into categories.
MISSING = ("NA", "N/A", "n/a", "N.A.", "n.a.", "k.A.", "<NA>", "NaN", "nan", "null", "NULL", "Null", "None", "?", "-", "--", ".")
MISSING += ("#N/A", "#DIV/0!", "#VALUE!", "#REF!", "#NUM!", "#NAME?")  # of spreadsheets

# What a number looks like with a point or a comma before its decimals, once a currency or a percent sign is taken off.
POINT = r"^[+-]?(?:(?:[0-9]+|[1-9][0-9]{0,2}(?:[, '\x{a0}\x{202f}][0-9]{3})+)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?$"
COMMA = r"^[+-]?(?:(?:[0-9]+|[1-9][0-9]{0,2}(?:[. '\x{a0}\x{202f}][0-9]{3})+)(?:,[0-9]*)?|,[0-9]+)(?:[eE][+-]?[0-9]+)?$"
BEFORE = r"^([+-]?)\s*(?:[$€£¥]|USD|EUR|GBP|CHF)\s*"
AFTER = r"\s*(?:[$€£¥%]|USD|EUR|GBP|CHF)$"
NUMBER_LIKE = re.compile(r"[-+$€£¥\s.,]*\d[-\d.,:/\s'%$€£¥eE+TZ]*")  # dates and times too

DATES = ("%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y")
DATES += ("%d %b %Y", "%d %B %Y", "%d-%b-%Y", "%b %d, %Y", "%B %d, %Y")
TIMES = ("%H:%M", "%H:%M:%S", "%H:%M:%S%.f", "%I:%M %p", "%I:%M:%S %p")
DATE_LIKE = re.compile(r"\d{1,4}[-/.:]\d{1,2}|\d{1,2}[ -][A-Za-z]{3,9}[ -]\d{2,4}|[A-Za-z]{3,9} \d{1,2}, \d{4}")


@dataclass(frozen=True, eq=False)
class Reading:
    """A file's frame, and what was done to get it."""

    frame: pl.DataFrame
    notes: tuple[str, ...] = ()
    words: Mapping[str, Sequence[str]] = field(default_factory=dict)  # of each column, the texts that stand for a missing value
    target: str | None = None  # where the format says which column it is
    written: Mapping[str, str] = field(default_factory=dict)  # before which sign decimals are, "point" or "comma"; a date's pattern
    separator: str | None = None  # of text
    places: np.ndarray | None = None  # the number of each row in the file, from 1, where some may have been left out
    untrainable: str | None = None  # of rows that a model may predict, but that have no target beside features: what to say


def read_frame(path: Path, texts: Collection[str] = (), written: Mapping[str, str] = MappingProxyType({})) -> Reading:
    """The frame in a file; the columns in `texts` stay text, whatever they look like.

    What may be read in several ways is read as `written` says, as another `Reading` has it.

    Raises:
        InputError: without the file's name.
    """
    if path.is_dir():
        raise InputError(f"is a directory; give a file: {suffixes()}")
    if not path.exists():
        raise InputError(f"there is no such file; give a path to an existing file: {suffixes()}")
    kind = "an archive" if path.suffix.lower() in ARCHIVES else "a file"
    try:
        name, content = _unpacked(path)
        suffix = PurePosixPath(name).suffix.lower()
        if suffix not in READERS:
            raise InputError(f"unknown suffix {suffix!r}; convert the table to one of: {suffixes()}")
        kind, read = READERS[suffix]
        reading = read(content)
    except InputError:
        raise
    except (
        pl.exceptions.PolarsError,
        csv.Error,
        OSError,
        ValueError,
        EOFError,
        RuntimeError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise InputError(
            f"cannot be read as {kind} ({_first_line(error)}); {REPAIRS.get(kind, f'write it again as {kind}')}"
        ) from None
    return _cleaned(reading, texts, kind == "CSV", written)


def _unpacked(path: Path) -> tuple[str, bytes]:
    """The name and the bytes of the table, out of its archive."""
    if path.suffix.lower() == ".gz":
        return path.stem, gzip.decompress(path.read_bytes())
    if path.suffix.lower() != ".zip":
        return path.name, path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        members = [member for member in archive.namelist() if not member.startswith("__MACOSX/")]
        tables = [member for member in members if PurePosixPath(member).suffix.lower() in READERS]
        if len(tables) != 1:
            raise InputError(
                f"needs one table in it, got {named(map(repr, tables or members)) or 'none'}; take out the one to train on"
            )
        return tables[0], archive.read(tables[0])


def suffixes() -> str:
    """Those that are read."""
    return ", ".join([*READERS, *ARCHIVES])


def named(columns: Iterable[str], limit: int = 10) -> str:
    """The first few, and how many more."""
    names = list(columns)
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def rows(count: int, what: str = "row") -> str:
    """So many of them."""
    return f"{count} {what}{'s' * (count != 1)}"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


# Text ---------------------------------------------------------------------------------------------------------------------


def _read_text(content: bytes) -> Reading:
    text, notes = _decoded(content)
    if text[:4].lower() == "sep=":  # Excel's own line
        text = text.partition("\n")[2]
    text = re.sub(r"\A(?:[ \t]*\n)+", "", text)
    sample = list(islice(io.StringIO(text[: text.find("\n", SAMPLE) + 1] or text), 1000))
    if not any(map(str.strip, sample)):
        raise InputError(f"cannot be read as CSV (it is empty); {REPAIRS['CSV']}")
    separator, width = _separator(sample)
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
    frame = _strings(text, separator, width)
    blank = frame[:, 0].is_null() | (frame[:, 0].str.strip_chars() == "")
    if blank.any():
        blank &= frame.select(pl.all_horizontal(pl.all().is_null() | (pl.all().str.strip_chars() == ""))).to_series()
        if blank.any():
            notes.append(f"left out, being empty: {rows(int(blank.sum()))}")
            frame = frame.filter(~blank)
    lines = np.flatnonzero(~blank.to_numpy())
    names, frame = _with_names(frame, notes)
    frame.columns = names
    places = lines + 1 if frame.height == len(lines) else lines[1:] - lines[0]  # below the names
    return Reading(frame, tuple(notes), separator=separator, places=places, untrainable=untrainable)


def _decoded(content: bytes) -> tuple[str, list[str]]:
    """The text, and a note if it is not in UTF-8."""
    notes = []
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        text = content.decode("utf-16")
        notes.append("read as UTF-16")
    else:
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = content.decode("cp1252")
            notes.append("read as Windows-1252 (latin-1), for it is not UTF-8")
    if "\0" in text:
        raise InputError("cannot be read as CSV (it holds zero bytes, as no text does); " + REPAIRS["CSV"])
    return text.replace("\r\n", "\n").replace("\r", "\n"), notes


def _separator(sample: Sequence[str]) -> tuple[str, int]:
    """The separator that cuts the most lines into one number of columns, and that number; a comma and 1 where none cuts."""

    def cut(separator: str) -> tuple[float, int]:
        try:
            widths = Counter(
                len(fields) for fields in csv.reader(sample, delimiter=separator, skipinitialspace=True) if any(fields)
            )
        except csv.Error:  # a line that it does not cut is longer than a field may be
            return 0.0, 1
        width, lines = max(widths.items(), key=lambda item: item[1], default=(1, 0))
        return (lines / widths.total(), width) if width > 1 else (0.0, 1)

    found = {separator: cut(separator) for separator in SEPARATORS}
    separator = max(SEPARATORS, key=lambda separator: found[separator][0])
    return (separator, found[separator][1]) if found[separator][1] > 1 else (",", 1)


def _strings(text: str, separator: str, width: int) -> pl.DataFrame:
    """Every line a row of texts."""
    schema = {f"column {number}": pl.String for number in range(1, width + 1)}
    try:
        frame = pl.read_csv(io.BytesIO(text.encode()), has_header=False, schema=schema, separator=separator)
    except pl.exceptions.PolarsError:
        _refuse_ragged(text, separator, width)
        raise
    if frame[:, -1].has_nulls():  # as a line has that is too short
        _refuse_ragged(text, separator, width)
    return frame


def _refuse_ragged(text: str, separator: str, width: int) -> None:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    for fields in reader:
        if len(fields) != width and any(map(str.strip, fields)):
            held = f"{len(fields)} field{'s' * (len(fields) != 1)}"
            raise InputError(
                f"line {reader.line_num} has {held}, where most have {width}: {separator.join(fields)[:60]!r}; "
                f"repair it, or quote a text that holds {separator!r}"
            )


# The header ---------------------------------------------------------------------------------------------------------------


def _with_names(frame: pl.DataFrame, notes: list[str]) -> tuple[list[str], pl.DataFrame]:
    """The names of the columns, and the rows below them."""
    first = [(cell or "").strip() for cell in frame.row(0)]
    if not _is_header(first, frame[1:], notes):
        notes.append(f"the first line is a row, not names ({named(map(repr, first), 3)}); the columns are called 'column 1', …")
        return frame.columns, frame
    names: dict[str, str] = {}  # and what the file has
    for number, name in enumerate(first, 1):
        names[_free(name or f"column {number}", names)] = name
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


def _free(name: str, taken: Collection[str]) -> str:
    """The name, with a number where another column has it already."""
    numbered = (name if number == 1 else f"{name} ({number})" for number in range(1, len(taken) + 2))
    return next(candidate for candidate in numbered if candidate not in taken)


def _is_header(first: Sequence[str], below: pl.DataFrame, notes: list[str]) -> bool:
    """Whether a first line names the columns, by how its cells fit what is below.

    A text over numbers is a name, and so is one that a column of few texts does not have; a number in about the range of those
    below is a value, and so is a text that occurs again.
    """
    numbers = [(number, cell) for number, cell in enumerate(first) if NUMBER_LIKE.fullmatch(cell)]
    start = numbers[0][0] if numbers else 0
    places = [[str(number - start + least) for number, _ in numbers] for least in (0, 1)]
    counted = len(numbers) > 3 and [cell for _, cell in numbers] in places  # as libraries name columns that have no names
    votes = [_vote(cell, column) for cell, column in zip(first, below[:FIRST_ROWS], strict=True)]
    names = [cell for cell, vote in zip(first, votes, strict=True) if vote in ("name", "new")]
    values = [cell for cell, vote in zip(first, votes, strict=True) if vote == "value"]
    if counted or (not values and "name" not in votes and (names or not numbers)):
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


def _vote(cell: str, below: pl.Series) -> str | None:
    """What a cell of the first line is by its column: a name, a value, a new text, or None where that cannot be told."""
    others = [other.strip() for other in below.drop_nulls() if other.strip() not in ("", *MISSING)]
    if not others or cell in ("", *MISSING):
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


def as_float(text: str) -> float | None:
    """The number that Python reads, or None."""
    try:
        return float(text)
    except ValueError:
        return None


# Values -------------------------------------------------------------------------------------------------------------------


def _cleaned(reading: Reading, texts: Collection[str], is_text: bool, written: Mapping[str, str]) -> Reading:
    """Missing values are null, and where all is written as text, numbers and dates are what they stand for."""
    columns, padded, words, strings = {}, [], {}, {}
    for column in reading.frame:
        if column.dtype.is_float():
            column = column.fill_nan(None)
        elif column.dtype == pl.String:
            column = _stripped(column, is_text and column.name not in texts, padded, words)
            if column.dtype == pl.String and is_text and column.name not in texts:
                strings[column.name] = column
        columns[column.name] = column
    numbers, dates = {}, {}
    semicolons = reading.separator == ";"
    plain = {
        name: reading.frame[name].str.strip_chars().set(column.is_null(), None)
        for name, column in columns.items()
        if column.dtype == pl.Float64 and reading.frame[name].dtype == pl.String
    }
    written = dict(written)
    for name, (column, example, kind) in _written_numbers(strings, plain, semicolons, written).items():
        columns[name], numbers[name], written[name] = column, example, kind
    for name in strings.keys() - numbers.keys():
        if (found := _written_dates(strings[name], written.get(name))) is not None:
            columns[name], dates[name], written[name] = found
    written = dict.fromkeys(plain, "point") | {name: how for name, how in written.items() if name in columns}
    notes = list(reading.notes)
    for what, found in (("numbers", numbers), ("dates, which features have in days", dates)):
        if found:
            ordered = (f"{name!r} ({found[name]})" for name in columns if name in found)
            notes.append(f"read as {what}: {named(ordered)}")
    if padded:
        notes.append(f"blanks around texts are left out in {named(map(repr, padded))}")
    return replace(reading, frame=pl.DataFrame(list(columns.values())), notes=tuple(notes), words=words, written=written)


def _stripped(column: pl.Series, written: bool, padded: list[str], words: dict[str, list[str]]) -> pl.Series:
    """Without blanks around, null where a word for that stands, and numbers if all are plainly written."""
    if written and (number := _plain(column)) is not None:
        return number
    bare = column.str.strip_chars().replace("", None)
    values = bare.drop_nulls().unique() if not written else _not_plain(bare)
    found = [word for word in MISSING if word in values]
    others = bare.filter(~bare.is_in(found)).drop_nulls() if found else bare
    if len(others) and not others.str.contains(r"[\p{L}\p{N}]").any():
        found = [word for word in found if word.isalnum()]  # a column of signs, such as + and -
    if found:
        bare = bare.set(bare.is_in(found), None)
        words[column.name] = found
    if written and (number := _plain(bare)) is not None:
        return number
    if (bare != column.replace("", None)).any():
        padded.append(column.name)
    return bare


def _plain(column: pl.Series) -> pl.Series | None:
    """Ints or floats, if Python would read all as such, and None otherwise."""
    for dtype in (pl.Int64, pl.Float64):
        number = column.cast(dtype, strict=False)
        if number.null_count() == column.null_count():
            nan = dtype == pl.Float64 and number.is_nan().any()  # which stands for a missing value
            return None if nan or number.null_count() == len(number) else number
    return None


def _not_plain(column: pl.Series) -> pl.Series:
    """The texts in it that are no number."""
    number = column.cast(pl.Float64, strict=False)
    return column.filter(column.is_not_null() & (number.is_null() | number.is_nan())).unique()


def _written_numbers(
    strings: Mapping[str, pl.Series], plain: Mapping[str, pl.Series], semicolons: bool, written: Mapping[str, str]
) -> dict[str, tuple[pl.Series, str, str]]:
    """Columns of numbers with separators of thousands, decimal commas, currencies and percent signs, each with an example, and
    what its decimals are before.

    `plain` are texts of columns that have been read as floats already.
    """
    bare, fits = {}, {}
    for name, column in strings.items():
        values = column.drop_nulls().unique(maintain_order=True)
        kinds = _fitting(_bare(values.head(50)))
        if kinds and (kinds := _fitting(_bare(values))):
            bare[name], fits[name] = values, {written[name]} if written.get(name) in kinds else kinds
    only_comma = any(kinds == {"comma"} for kinds in fits.values())
    for name, column in plain.items():  # where 1.234 is no fraction, if all in the column may be like it
        if written.get(name, "comma" if only_comma and semicolons else "point") != "comma":
            continue
        values = column.drop_nulls().unique(maintain_order=True)
        if values.str.contains(".", literal=True).any() and "comma" in _fitting(values):
            bare[name], fits[name] = values, {"comma"}
    found = {}
    for name, kinds in fits.items():
        with_comma = only_comma or (semicolons and not bare[name].str.contains(".", literal=True).any())
        kind = next(iter(kinds)) if len(kinds) == 1 else "comma" if with_comma else "point"
        numbers = _read_numbers(bare[name], kind)
        read = list(zip(bare[name], numbers, strict=True))
        text, number = next((pair for pair in read if as_float(pair[0]) != pair[1]), read[0])
        example = f"{text!r} is {int(number) if number.is_integer() else number}"
        column = strings[name] if name in strings else plain[name]
        found[name] = column.replace_strict(bare[name], numbers, return_dtype=pl.Float64), example, kind
    return found


def _bare(values: pl.Series) -> pl.Series:
    return values.str.replace(BEFORE, "${1}").str.replace(AFTER, "")


def _fitting(bare: pl.Series) -> set[str]:
    """Before which sign the decimals of all may be: a point, a comma, or either."""
    return (
        set()
        if not len(bare)
        else {kind for kind, pattern in (("point", POINT), ("comma", COMMA)) if bare.str.contains(pattern).all()}
    )


def _read_numbers(values: pl.Series, kind: str) -> pl.Series:
    groups = r"[, '\x{a0}\x{202f}]" if kind == "point" else r"[. '\x{a0}\x{202f}]"
    numbers = _bare(values).str.replace_all(groups, "").str.replace(",", ".", literal=True).cast(pl.Float64)
    percent = values.str.ends_with("%")
    return pl.Series(np.where(percent.to_numpy(), numbers.to_numpy() / 100, numbers.to_numpy()))


def _written_dates(column: pl.Series, known: str | None) -> tuple[pl.Series, str, str] | None:
    """Dates or times, if all are written in one way, an example, and the pattern: the known one where it fits."""
    values = column.drop_nulls().unique(maintain_order=True)
    if not len(values) or not DATE_LIKE.match(values[0]):
        return None
    for dtype, pattern in sorted(_patterns(values[0]), key=lambda found: found[1] != known):
        for some in (values.head(20), values):
            dates = some.str.strptime(dtype, pattern, strict=False)
            if dates.has_nulls():
                break
        else:
            read = column.replace_strict(values, dates, return_dtype=dates.dtype)
            example = f"{values[0]!r} is {dates[0]:{'%d %B %Y'}}" if dtype != pl.Time else f"{values[0]!r}"
            return read, example, pattern
    return None


def among_dates(texts: pl.Series) -> str | None:
    """A text in a column whose other texts, more than half, are dates or times that are written in one way."""
    values = texts.drop_nulls().unique(maintain_order=True)
    for dtype, pattern in _patterns(values[0]) if len(values) and DATE_LIKE.match(values[0]) else ():
        odd = values.filter(values.str.strptime(dtype, pattern, strict=False).is_null())
        if 0 < len(odd) < len(values) / 2:
            return odd[0]
    return None


def _patterns(example: str) -> Iterator[tuple[Any, str]]:
    """How dates and times are written, month before day where / separates them and both fit."""
    long = re.search(r"\d{4}", example) is not None
    for date in DATES if long else [date.replace("%Y", "%y") for date in DATES if date.endswith("%Y")]:
        yield pl.Date, date
        for between, time, zone in product((" ", "T"), TIMES, ("", "Z", "%#z")):
            yield pl.Datetime("us"), f"{date}{between}{time}{zone}"
    for time in TIMES:
        yield pl.Time, time


# Formats with types -------------------------------------------------------------------------------------------------------


def _read_parquet(content: bytes) -> Reading:
    return Reading(pl.read_parquet(io.BytesIO(content), hive_partitioning=False))


def _read_feather(content: bytes) -> Reading:
    return Reading(pl.read_ipc(io.BytesIO(content)))


def _read_npz(content: bytes) -> Reading:
    archive = np.load(io.BytesIO(content), allow_pickle=False)
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


READERS: dict[str, tuple[str, Callable[[bytes], Reading]]] = {
    **dict.fromkeys((".csv", ".tsv", ".txt"), ("CSV", _read_text)),
    **dict.fromkeys((".parquet", ".pq"), ("Parquet", _read_parquet)),
    **dict.fromkeys((".feather", ".arrow", ".ipc"), ("Feather", _read_feather)),
    ".npz": ("NPZ", _read_npz),
}
REPAIRS = {
    "CSV": "save it as UTF-8 text, one header line, one row a line",
    "NPZ": "save it with numpy.savez(path, X=…, y=…): X [rows, features] of numbers, y [rows] of ints or text",
    "an archive": "pack it again, or give the table itself",
    "a file": "give one that can be read",
}
