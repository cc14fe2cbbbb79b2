"""Scores in files, a block at a time: NumPy, raw memory, Parquet, Arrow, Feather, HDF5, Zarr, CSV, numbers as text, standard input.

A logsumexp takes its scores in any order, so an array of any shape is read as it lies, and a file of plain memory from several
places at once.
"""

from __future__ import annotations

import bisect
import codecs
import contextlib
import csv
import functools
import gzip
import importlib
import io
import itertools
import math
import os
import re
import stat
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from softmaxima.core.numbers import InputError, Problems
from softmaxima.core.places import STANDARD_INPUT, Place, Remote, handed
from softmaxima.streams.texts import (
    COMPRESSED,
    UTF16,
    Ended,
    Limited,
    Recoded,
    doubt_of,
    encoding_of,
    layout_of,
    most_unpacked,
    rows_of,
    table_in,
)

if TYPE_CHECKING:
    from torch import Tensor

    Block = np.ndarray | Tensor

CACHED = 2**22  # bytes of plain memory that are read at a time, into cache, which is faster than to map them
PIECE = 2**20  # scores that are decoded at a time
RAW_DTYPES = ("float64", "float32", "bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8")
LONGEST = 1000  # letters of a number in a text
ROW = 2**23  # letters of a row of a table in a text
MISSING = ("", "NA", "N/A", "null", "NULL")
POINTED = re.compile(r"[+-]?[1-9][0-9]{0,2}(?:\.[0-9]{3})+")
GROUPED = re.compile(r"[+-]?[1-9][0-9]{0,2}(?:,[0-9]{3})+")  # a decimal comma, or thousands
IN_A_CHUNK = " in one chunk"
TRUST = "if you trust who wrote it, ask for that with `trusted`"
CONTROLS = re.compile(rb"[\x00-\x08\x0e-\x1f]")
AS_TEXT = "give numbers between spaces, commas or line ends, or `dtype` for raw memory"
_MAGIC = b"\x93NUMPY"
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Scores:
    """Scores in a file: `blocks(start)` are those from number `start` on, always in the same order.

    A block may be gone when the next one comes. Where a file need not be read from its beginning, `part(start, stop)` are the
    blocks from one score to another, and `begins()` the numbers of scores at which such a part begins without reading what is
    before it: a block of memory, a row group, a chunk. Of plain memory on this machine, of which several threads can read parts
    at once, `mapped()` is all scores in place. Where the count is not known, `position()` is how many of the file's `size` bytes
    were read.
    """

    name: str
    dtype: str
    itemsize: int
    count: int | None  # None where it is known only at the end
    blocks: Callable[[int], Iterator[Block]]
    part: Callable[[int, int], Iterator[Block]] | None = None
    begins: Callable[[], Sequence[int]] = lambda: (0,)
    mapped: Callable[[], Block] | None = None
    size: int | None = None
    position: Callable[[], int] | None = None

    def bytes_read(self, done: int) -> tuple[int, int | None]:
        """(bytes that were read for the first `done` scores, of how many), as far as is known."""
        if self.count is None and self.position is not None:
            return self.position(), self.size
        return done * self.itemsize, None if self.count is None else self.count * self.itemsize


@dataclass(frozen=True)
class Asked:
    """Which scores of a file, whether its writer is trusted, and its last line may have no end, as in `file_logsumexp`."""

    column: str | None = None
    dtype: str | None = None
    trusted: bool = False
    unended: bool = False


def open_scores(
    path: Place, column: str | None = None, dtype: str | None = None, *, trusted: bool = False, unended: bool = False
) -> Scores:
    """The scores in a file, by its suffix; with a `dtype`, of raw memory in the machine's byte order.

    `column` names the array of an NPZ, the field of a structured NPY ("position.x" of a field within a field, "x.position" in the
    array x of an NPZ), the column of a table, the dataset of an HDF5 or Zarr file ("data/x" of a field); it may be left out where
    there is only one. All numbers of an array in a field, and of lists in a column, are scores. Text is UTF-8, UTF-16 with a mark,
    or Windows-1252. Columns of CSV may be separated by tabs, semicolons, | or what Excel's line `sep=` says, and decimals by commas
    where that is not the separator or the number is quoted; a warning tells of commas that may mean either. Two bytes
    without a kind, as ml_dtypes saves bfloat16 in NPY, are read as that. "-" is
    standard input, and a named pipe is read as it is. A suffix .gz or .zst is of the compression, and the suffix before it of
    the format; a .zip holds one file. Raises InputError.

    >>> import tempfile, numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "scores.npy"
    ...     np.save(path, np.zeros((3, 4), np.float32))
    ...     scores = open_scores(path)
    ...     scores.count, scores.dtype, [block.shape for block in scores.blocks(2)]
    (12, 'float32', [(10,)])
    """
    if dtype is not None and dtype not in RAW_DTYPES:
        raise InputError(f"`dtype`: raw memory is of {', '.join(RAW_DTYPES)}; got {dtype!r}")
    if path == STANDARD_INPUT:
        if sys.stdin is None:
            raise InputError("standard input is closed; give a file, or the output of another command")
        return _from_pipe("standard input", sys.stdin.buffer, Asked(column, dtype, trusted, unended))
    with _told(path):
        scores = _from_file(path, Asked(column, dtype, trusted, unended))
    part = scores.part
    return replace(
        scores,
        blocks=lambda start: _all_told(path, scores.blocks(start)),
        part=None if part is None else lambda start, stop: _all_told(path, part(start, stop)),
    )


@contextlib.contextmanager
def _told(path: Place) -> Iterator[None]:
    """Whatever the library of a format or a protocol raises, as of a wrong checksum, is an InputError."""
    try:
        yield
    except (InputError, Warning):
        raise
    except Exception as error:
        raise unreadable(str(path), error) from None


def _all_told(path: Place, blocks: Iterator[Block]) -> Iterator[Block]:
    with _told(path):
        yield from blocks


def read_once(path: Place) -> bool:
    """Whether it is standard input or a pipe, which cannot be read again."""
    try:
        return path == STANDARD_INPUT or path.is_fifo()
    except OSError as error:
        raise unreadable(str(path), error) from None


def _from_file(path: Place, asked: Asked) -> Scores:
    suffix, dtype = path.suffix.lower(), asked.dtype
    if not path.exists():
        raise InputError(f"there is no file {path}; give a path to an existing file, or - for standard input")
    if path.is_dir() and suffix != ".zarr":
        raise InputError(f"{path} is a directory; give a file: {', '.join(READERS)}, or raw memory with `dtype`")
    if path.is_fifo():
        return _named_pipe(path, asked)
    if not path.is_file() and not path.is_dir():
        raise InputError(f"{path} is a device or a socket; give a file, or - for standard input")
    if (dtype is not None or suffix in {*READERS, *COMPRESSIONS, ".zip"}) and path.is_file() and path.stat().st_size == 0:
        raise _empty(str(path))
    if suffix in {*COMPRESSIONS, ".zip"}:
        return _compressed(path, asked, suffix)
    if dtype is None and suffix not in READERS:
        raise InputError(
            f"{path}: unknown suffix {suffix!r}; give `dtype` for raw memory, or convert it to one of: {', '.join(READERS)}"
        )
    if dtype is not None and suffix in READERS:
        raise InputError(f"{path}: a file with the suffix {suffix} states its own dtype; leave `dtype` out")
    return _raw(path, asked.column, dtype) if dtype is not None else READERS[suffix](path, asked)


def _check_memory(path: Place, asked: Asked, size: int, what: str = "") -> None:
    """Raise InputError where a file takes more bytes when it is unpacked than one that is not trusted may."""
    if size > most_unpacked(0) and not asked.trusted:
        if isinstance(path, Remote):
            stored, _ = path.version()
        else:
            stored = sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())
        if size > (most := most_unpacked(stored)):
            raise _too_much(str(path), most, what)


def _too_much(name: str, most: int, what: str = "") -> InputError:
    return InputError(f"{name} is unpacked to more than {most / 1e9:.1f} GB{what}, as what is made to fill a memory; {TRUST}")


def _empty(name: str) -> InputError:
    return InputError(f"{name} is empty: 0 bytes came, as where what was to write them failed; write it again")


def unreadable(name: str, error: Exception) -> InputError:
    """What the system or a library said, in one line."""
    said = (str(getattr(error, "strerror", None) or error).strip().splitlines() or [type(error).__name__])[0]
    if isinstance(error, FileNotFoundError) and error.errno:  # the system's: zarr has one for files of another kind
        return InputError(f"there is no file {name}; give a path to an existing file")
    if isinstance(error, PermissionError):
        return InputError(f"{name} cannot be read ({said}); permit it to this user (chmod +r, and +x of its folders)")
    repair = "or download it first" if "://" in name else "and write it again"
    return InputError(f"{name} cannot be read ({said.rstrip('.')}); check that it is whole, {repair}")


# Plain memory ---------------------------------------------------------------------------------------------------------------


def _npy(path: Place, asked: Asked) -> Scores:
    with path.open("rb") as file:
        dtype, count = _header(file, str(path))
        offset = file.tell()
    items = _items(str(path), dtype, asked.column)
    held = path.stat().st_size - offset
    if held < count * dtype.itemsize:
        raise InputError(
            f"{path} is cut off: its header states {count} scores, and it holds {held // dtype.itemsize}; copy it again"
        )
    if held > count * dtype.itemsize:
        raise _too_long(str(path), count)
    return _plain(path, offset, count, items)


def _too_long(name: str, count: int) -> InputError:
    return InputError(f"{name} goes on after the {count} scores that its header states; write it again, one array a file")


def _raw(path: Place, column: str | None, dtype: str) -> Scores:
    _no_column(str(path), column)
    plain = _numpy_dtype(dtype)
    count, rest = divmod(path.stat().st_size, plain.itemsize)
    if rest:
        raise InputError(f"{path}: {path.stat().st_size} bytes are no whole number of {dtype}; check `dtype`, or copy it again")
    return _plain(path, 0, count, _Items(plain))


def _plain(path: Place, offset: int, length: int, items: _Items) -> Scores:
    """Of a file that holds so many items from an offset on."""
    item, each = items.dtype.itemsize, items.each
    count = length * each

    def part(start: int, stop: int) -> Iterator[Block]:
        if not count:
            return iter(())
        blocks = map(items.scores, read(start // each, -(-stop // each)))
        return blocks if each == 1 else _first(_skip(blocks, start % each), stop - start)

    def read(start: int, stop: int) -> Iterator[np.ndarray]:
        memory = np.empty(piece_length(item), items.dtype)
        data = memory.view(np.uint8).data
        with path.open("rb", buffering=0) as file:
            file.seek(offset + start * item)
            for first in range(start, stop, len(memory)):
                n = min(len(memory), stop - first)
                filled = 0
                while filled < n * item:
                    if not (more := file.readinto(data[filled : n * item])):
                        raise InputError(f"{path} was cut off while it was read; copy it again")
                    filled += more
                yield memory[:n]

    def mapped() -> Block:
        if not count:
            return np.empty(0)
        try:
            return items.in_place(np.memmap(handed(path), items.dtype, "r", offset, (length,)))
        except OSError as error:
            raise unreadable(str(path), error) from None

    return Scores(
        str(path),
        items.name,
        item // max(each, 1),
        count,
        lambda start: part(start, count),
        part,
        lambda: range(0, max(count, 1), piece_length(item) * each),
        mapped if isinstance(path, Path) and each == 1 else None,
    )


def piece_length(itemsize: int) -> int:
    """Scores of plain memory that are read at a time."""
    return max(1, CACHED // itemsize)


_BFLOAT16 = np.dtype("V2")  # NumPy has no bfloat16: as two bytes it is what ml_dtypes, and JAX with it, writes to NPY


@dataclass(frozen=True)
class _Items:
    """Items of memory, and where the scores of each are: in `fields`, one in the other, of which the last may be an array."""

    dtype: np.dtype
    fields: tuple[str, ...] = ()

    @property
    def _held(self) -> np.dtype:
        return self._within(self.dtype)

    @property
    def each(self) -> int:
        """Scores in an item."""
        return math.prod(self._held.shape)

    @property
    def name(self) -> str:
        """Of the dtype of scores."""
        return "bfloat16" if self._held.base == _BFLOAT16 else self._held.base.name

    def in_place(self, items: np.ndarray) -> Block:
        """The scores where they lie, one in an item."""
        found = self._within(items)
        if found.dtype != _BFLOAT16:
            return found
        import torch  # here, for other scores do without it

        from softmaxima.core.arguments import as_tensor

        return as_tensor("lse", "scores", found.view(np.int16)).view(torch.bfloat16)

    def scores(self, items: np.ndarray) -> np.ndarray:
        """The scores, one behind the other; those of bfloat16 as two bytes."""
        return np.ascontiguousarray(self._within(np.asarray(items))).reshape(-1)

    def _within(self, held: Any) -> Any:
        """What the fields have of an array, or of a dtype."""
        return functools.reduce(lambda outer, field: outer[field], self.fields, held)


def _numpy_dtype(dtype: str) -> np.dtype:
    return _BFLOAT16 if dtype == "bfloat16" else np.dtype(dtype)


def _header(file: IO[bytes], name: str) -> tuple[np.dtype, int]:
    """(dtype, number of items) of an NPY file, and the file at its first byte of data."""
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    except ValueError as error:
        raise unreadable(name, error) from None
    return dtype, math.prod(shape)


def _items(name: str, dtype: np.dtype, column: str | None) -> _Items:
    """The items of an array, and the field with the scores that is asked for, or the only one."""
    if dtype.names is None:
        _no_column(name, column)
        _check_real(name, dtype)
        return _Items(dtype)
    return _among(name, "field", {"": dtype}, column, ".")[1]


def _among(name: str, what: str, arrays: Mapping[str, np.dtype], column: str | None, mark: str) -> tuple[str, _Items]:
    """The array that is asked for, or the only one, and in its items the field: "t.score" of the array t by the mark "."."""
    found = [(array, field, held) for array, dtype in arrays.items() for field, held in _fields(dtype)]
    whole = [mark.join(filter(None, (array, *field))) for array, field, _ in found]
    array, field, held = found[whole.index(_choose(name, what, whole, column))]
    _check_real(name, held)
    return array, _Items(arrays[array], field)


def _fields(dtype: np.dtype, outer: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], np.dtype]]:
    """(the names of a field and those around it, its dtype) for all that have none within; () of a dtype without fields."""
    if dtype.names is None:
        yield outer, dtype
    for field in dtype.names or ():
        yield from _fields(dtype[field], (*outer, field))


def _check_real(name: str, dtype: np.dtype) -> None:
    dtype = dtype.base  # of an array in a field
    if dtype != _BFLOAT16 and (dtype.kind not in "fiub" or dtype.itemsize > 8):
        repair = REPAIRS.get(dtype.kind, "save numbers instead")
        raise InputError(f"{name} holds {dtype}; scores are real numbers of at most 64 bits: {repair}")


# Of each kind of dtype that holds no scores: what to do with it.
REPAIRS = {
    "f": "save it with .astype(numpy.float64)",
    "c": "save x.real, or sum the array itself with softmaxima.logsumexp",
    "U": "save it with .astype(numpy.float64), if all of it is numbers",
    "S": "save it with .astype(numpy.float64), if all of it is numbers",
    "O": "save numpy.hstack(list(x)).astype(float), if all of it is numbers",
    "M": "dates have no exponential, so save numbers",
    "m": "save it divided by its unit, as x / numpy.timedelta64(1, 's')",
    "V": "save what it was before with .astype(numpy.float32); two bytes without a kind are read as bfloat16",
}


def _no_column(name: str, column: str | None) -> None:
    if column is not None:
        raise InputError(f"{name} has no columns; leave `column` out, got {column!r}")


def _choose(name: str, what: str, names: Any, column: str | None) -> str:
    """The column asked for, or the only one."""
    found = list(names)
    listed = ", ".join(map(repr, found[:10])) + (f" and {len(found) - 10} more" if len(found) > 10 else "")
    if not found:
        raise InputError(f"{name} has no {what}s, and so no scores; write it again")
    if column is None and len(found) != 1:
        raise InputError(f"{name}: name one of its {what}s with `column`: {listed}")
    if column is not None and column not in found:
        raise InputError(f"{name}: there is no {what} {column!r}; choose `column` among: {listed}")
    if column is not None and found.count(column) > 1:
        raise InputError(f"{name}: {found.count(column)} {what}s are called {column!r}; rename all but one")
    return found[0] if column is None else column


# Streams --------------------------------------------------------------------------------------------------------------------


def _npz(path: Place, asked: Asked) -> Scores:
    with zipfile.ZipFile(handed(path)) as archive:
        headers = {}
        for member in archive.namelist():
            if member.endswith(".npy"):
                with archive.open(member) as file:
                    headers[member.removesuffix(".npy")] = _header(file, str(path))
    array, items = _among(str(path), "array", {name: dtype for name, (dtype, _) in headers.items()}, asked.column, ".")
    chosen, count = f"{array}.npy", headers[array][1]
    _check_memory(path, asked, count * items.dtype.itemsize)

    def blocks(start: int) -> Iterator[Block]:
        with zipfile.ZipFile(handed(path)) as archive, archive.open(chosen) as file:
            _header(file, str(path))
            yield from _skip(_streamed(file, str(path), items, count), start)

    return Scores(str(path), items.name, items.dtype.itemsize, count * items.each, blocks)


def _from_pipe(name: str, file: Any, asked: Asked) -> Scores:
    """NPY if it begins like one, raw memory with a `dtype`, or else numbers as text."""
    column, dtype, start = asked.column, asked.dtype, b""
    while len(start) < len(_MAGIC) and (more := file.read(len(_MAGIC) - len(start))):
        start += more
    if not start:
        raise _empty(name)
    file = _Rejoined(start, file)
    if dtype is not None:
        _no_column(name, column)
        items = _Items(_numpy_dtype(dtype))
        scores = _streamed(file, name, items, None)
        return Scores(name, items.name, items.dtype.itemsize, None, lambda start: _skip(scores, start))
    if start == _MAGIC:
        stated, count = _header(file, name)
        items = _items(name, stated, column)
        scores = _streamed(file, name, items, count)
        return Scores(name, items.name, stated.itemsize, count * items.each, lambda start: _skip(scores, start))
    _no_column(name, column)
    return Scores(name, "text", 1, None, lambda start: _skip(_numbers(file, name, asked.unended), start))


def _named_pipe(path: Place, asked: Asked) -> Scores:
    file = path.open("rb")
    try:
        scores = _from_pipe(str(path), file, asked)
    except BaseException:
        file.close()
        raise

    def blocks(start: int) -> Iterator[Block]:
        with file:
            yield from scores.blocks(start)

    return replace(scores, blocks=blocks)


class _Rejoined(io.RawIOBase):
    """A stream with the bytes that were read from it in front again."""

    def __init__(self, start: bytes, rest: IO[bytes]) -> None:
        self.start, self.rest = start, rest

    def read(self, size: int = -1) -> bytes:
        if size < 0 or not self.start:
            start, self.start = self.start, b""
            return start + self.rest.read(size)
        taken, self.start = self.start[:size], self.start[size:]
        return taken + self.rest.read(size - len(taken)) if len(taken) < size else taken


class Stream:
    """A file that is read from its beginning, through a decompressor if it has one; `position()` is where in the file that is."""

    def __init__(self, path: Place, asked: Asked, *unpacks: Callable[[Any], Any]) -> None:
        self.path, self.name, self.size, self.asked = path, str(path), path.stat().st_size, asked
        self._unpacks = unpacks
        self._at: Callable[[], int] = lambda: 0

    @contextlib.contextmanager
    def open(self) -> Iterator[Any]:
        """The file at its first byte."""
        with self.path.open("rb") as raw:
            self._at = lambda: self.size if raw.closed else raw.tell()  # what reads it may close it at its end
            try:
                with contextlib.ExitStack() as stack:
                    file = functools.reduce(lambda file, unpack: stack.enter_context(unpack(file)), self._unpacks, raw)
                    if self._unpacks and not self.asked.trusted:
                        most = most_unpacked(self.size)
                        file = io.BufferedReader(Limited(file, most, str(_too_much(self.name, most))), 2**20)
                    yield file
            finally:
                at = self._at()
                self._at = lambda: at

    def position(self) -> int:
        return self._at()

    def scores(self, dtype: str, blocks: Callable[[Any], Iterator[Block]]) -> Scores:
        """The scores that `blocks(file)` reads."""

        def read(start: int) -> Iterator[Block]:
            with self.open() as file:
                yield from _skip(blocks(file), start)

        return Scores(self.name, dtype, 1, None, read, size=self.size, position=self.position)


def _compressed(path: Place, asked: Asked, suffix: str) -> Scores:
    """What the suffix before that of the compression says, or that in the archive, or NPY or text by its beginning."""
    dtype = asked.dtype
    if suffix == ".zip":
        name = _member(path)
        unpacks = [functools.partial(_unzipped, member=name), *([COMPRESSIONS[".gz"]()] if name.endswith(".gz") else [])]
        name = name.removesuffix(".gz")
    else:
        name, unpacks = path.stem, [COMPRESSIONS[suffix]()]
    stream, inner = Stream(path, asked, *unpacks), PurePosixPath(name).suffix.lower()
    with path.open("rb") as file:
        if suffix == ".gz" and file.read(len(_GZIP)) != _GZIP:
            raise InputError(f"{path} is not compressed by gzip, as its suffix says; take {suffix} from its name, or compress it")
    if inner in READERS:
        if dtype is not None:
            raise InputError(f"{path}: a file with the suffix {inner} states its own dtype; leave `dtype` out")
        if inner not in STREAMS:
            raise InputError(f"{path}: a file with the suffix {inner} is read from several places; decompress it first")
    with stream.open() as file:
        if not (start := file.read(len(_MAGIC))):
            raise _empty(str(path))
    if dtype is not None:
        _no_column(str(path), asked.column)
        items = _Items(_numpy_dtype(dtype))
        return stream.scores(items.name, lambda file: _streamed(file, str(path), items, None))
    if start == _MAGIC:
        return _npy_stream(stream)
    if inner == ".npy":
        with stream.open() as file:
            _header(file, str(path))  # which raises
    return STREAMS.get(inner, _text_stream)(stream)


def _member(path: Place) -> str:
    """The one file in an archive that can be read."""
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            member = table_in(archive, READERS)
            if archive.getinfo(member).flag_bits & 1:
                raise InputError(f"is encrypted; take {member!r} out")
    except InputError as error:
        raise InputError(f"{path} {error}") from None
    return member


@contextlib.contextmanager
def _unzipped(file: Any, member: str) -> Iterator[Any]:
    with zipfile.ZipFile(file) as archive, archive.open(member) as unpacked:
        yield unpacked


def _npy_stream(stream: Stream) -> Scores:
    with stream.open() as file:
        dtype, count = _header(file, stream.name)
    items = _items(stream.name, dtype, stream.asked.column)

    def blocks(file: Any) -> Iterator[Block]:
        _header(file, stream.name)
        return _streamed(file, stream.name, items, count)

    return replace(stream.scores(items.name, blocks), itemsize=dtype.itemsize, count=count * items.each)


def _text_stream(stream: Stream) -> Scores:
    _no_column(stream.name, stream.asked.column)
    return stream.scores("text", lambda file: _numbers(file, stream.name, stream.asked.unended))


def _text(path: Place, asked: Asked) -> Scores:
    return _text_stream(Stream(path, asked))


def _numbers(file: Any, name: str, unended: bool) -> Iterator[Block]:
    """Numbers between white space or commas."""
    text = file.read(8 * PIECE)
    _refuse_compressed(name, text)
    if not text.startswith(UTF16) and CONTROLS.search(text):
        raise InputError(f"{name}: it is no text; {AS_TEXT}")
    file = _Rejoined(text, file)
    file = io.BufferedReader(Ended(Recoded(file, name) if text.startswith(UTF16) else file, name, unended), 2**20)
    text = file.read(8 * PIECE)
    text = text.removeprefix(codecs.BOM_UTF8)  # some editors begin a text with it
    words = text[:4096].decode(errors="replace").split()
    if doubt := doubt_of(words[: -1 if len(text) > 4096 else None]):
        warnings.warn(f"{name}: {doubt}", stacklevel=2)
    rest, lines = b"", 1
    while text:
        whole = rest + text
        words = whole.replace(b",", b" ").split()
        rest = words.pop() if words and not text[-1:].isspace() and text[-1:] != b"," else b""
        if len(rest) > LONGEST:
            raise InputError(
                f"{name}: {rest[:40].decode(errors='replace')!r}… is no number of at most {LONGEST} letters; repair it"
            )
        if words:
            yield _parsed(words, name, whole, lines)
        lines += text.count(b"\n")
        text = file.read(8 * PIECE)
    if rest:
        yield _parsed([rest], name, rest, lines)


def _parsed(words: list[bytes], name: str, text: bytes, line: int) -> np.ndarray:
    """The numbers of a text, whose first line has that number."""
    try:
        if (b"_" in text and any(b"_" in word for word in words)) or max(map(len, words)) > LONGEST:
            raise ValueError  # Python takes _ in numbers
        return np.fromiter(map(float, words), np.float64, len(words))  # not an array of texts, all as long as the longest
    except ValueError:
        wrong = next(word for word in words if not _is_number(word) or b"_" in word or len(word) > LONGEST)
        line += next(i for i, words in enumerate(text.split(b"\n")) if wrong in words.replace(b",", b" ").split())
        word = wrong.decode(errors="replace")[:40]
        is_text = word.isprintable() and "\N{REPLACEMENT CHARACTER}" not in word
        raise InputError(f"{name}: {f'{word!r} in line {line} is no number' if is_text else 'it is no text'}; {AS_TEXT}") from None


def _is_number(word: bytes) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return b"_" not in word


def _streamed(file: Any, name: str, items: _Items, count: int | None) -> Iterator[Block]:
    """The scores of items of plain memory from a stream: `count` items, after which it ends, or all."""
    size, left = items.dtype.itemsize, math.inf if count is None else count
    while left > 0:
        wanted = int(min(PIECE, left)) * size
        data = bytearray()
        while len(data) < wanted and (more := file.read(wanted - len(data))):
            data += more
        if len(data) % size or (len(data) < wanted and count is not None):
            raise InputError(
                f"{name} is cut off: it ends in the middle of {'a score' if count is None else 'its data'}; write it again"
            )
        if not data:
            return
        read = np.frombuffer(data, items.dtype)
        yield items.scores(read)
        left -= len(read)
    if count is not None and file.read(1):
        raise _too_long(name, count)


def _skip(blocks: Iterator[Block], start: int) -> Iterator[Block]:
    """Without the first `start` scores."""
    for block in blocks:
        n = len(block)
        if start < n:
            yield block[start:]
        start = max(0, start - n)


def _first(blocks: Iterator[Block], n: int) -> Iterator[Block]:
    """The first `n` scores."""
    while n > 0 and (block := next(blocks, None)) is not None:
        yield block[:n]
        n -= len(block)


def _of_parts(begins: Sequence[int], start: int, stop: int) -> range:
    """Which parts hold the scores from one to another, where `begins` are their first scores."""
    return range(bisect.bisect_right(begins, start) - 1, bisect.bisect_left(begins, stop))


def _beginnings(lengths: Iterable[int]) -> list[int]:
    """The first scores of parts of those lengths; of no parts, 0."""
    return [0, *itertools.accumulate(lengths)][:-1] or [0]


# Tables and arrays of other libraries ---------------------------------------------------------------------------------------


def _library(module: str, kind: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        package = module.partition(".")[0]
        raise InputError(f"{kind} needs {package}, which is not installed: pip install {package}") from None


def _parquet(path: Place, asked: Asked) -> Scores:
    pyarrow, parquet = _library("pyarrow", "Parquet"), _library("pyarrow.parquet", "Parquet")
    file = parquet.ParquetFile(handed(path), page_checksum_verification=True)
    chosen, dtype, each = _column(str(path), file.schema_arrow, asked.column)
    groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    lengths = [group.num_rows for group in groups]
    if each is None:
        columns = [column for group in groups for column in map(group.column, range(group.num_columns))]
        held = sum(column.num_values for column in columns if column.path_in_schema.partition(".")[0] == chosen)
        _check_memory(path, asked, held * dtype.itemsize)
        together = max(1, PIECE * sum(lengths) // max(held, 1))  # rows with about so many scores
        batches = lambda: (batch.column(0) for batch in file.iter_batches(together, columns=[chosen]))
        return _of_lists(str(path), dtype, lambda: _decoded(str(path), batches(), pyarrow))
    count, begins = sum(lengths) * each, _beginnings(length * each for length in lengths)

    def part(start: int, stop: int) -> Iterator[Block]:
        held = _of_parts(begins, start, stop)
        chunks = file.iter_batches(max(1, PIECE // each), row_groups=list(held), columns=[chosen]) if held else iter(())
        row = begins[held.start] // each if held else 0
        decoded = _decoded(str(path), (batch.column(0) for batch in chunks), pyarrow, row)
        return _first(_skip(decoded, start - begins[held.start]), stop - start)

    return Scores(str(path), str(dtype), dtype.itemsize, count, lambda start: part(start, count), part, lambda: begins)


def _arrow(path: Place, asked: Asked) -> Scores:
    """An Arrow file (which is Feather V2), an Arrow stream, or Feather V1, by its beginning."""
    pyarrow, ipc = _library("pyarrow", "Arrow"), _library("pyarrow.ipc", "Arrow")
    with path.open("rb") as start:
        magic = start.read(6)
    if magic[:4] == b"FEA1":
        if not asked.trusted:
            repair = f"pandas.read_feather(path).to_feather(path) writes version 2; {TRUST}"
            raise InputError(f"{path} is Feather of version 1, whose reader believes what is in it and may crash: {repair}")
        return _feather_v1(path, asked.column)
    if magic != b"ARROW1":
        return _arrow_stream(Stream(path, asked))
    file = ipc.open_file(pyarrow.memory_map(str(path)) if isinstance(path, Path) else path.open())
    chosen, dtype, each = _column(str(path), file.schema, asked.column)
    system, place = (None, path) if isinstance(path, Path) else path.place
    count = _library("pyarrow.dataset", "Arrow").dataset(place, format="ipc", filesystem=system).count_rows()
    if each is None:
        batches = lambda: (file.get_batch(i).column(chosen) for i in range(file.num_record_batches))
        return _of_lists(str(path), dtype, lambda: _decoded(str(path), batches(), pyarrow))
    count *= each

    @functools.cache
    def begins() -> Sequence[int]:
        return _beginnings(file.get_batch(i).num_rows * each for i in range(file.num_record_batches))

    def blocks(start: int) -> Iterator[Block]:
        chunks = (file.get_batch(i).column(chosen) for i in range(file.num_record_batches))
        return _skip(_decoded(str(path), chunks, pyarrow), start)

    def part(start: int, stop: int) -> Iterator[Block]:
        held = _of_parts(begins(), start, stop)
        chunks = (file.get_batch(i).column(chosen) for i in held)
        decoded = _decoded(str(path), chunks, pyarrow, begins()[held.start] // max(each, 1))
        return _first(_skip(decoded, start - begins()[held.start]), stop - start)

    if not isinstance(path, Path):  # from elsewhere all batches would be fetched to be counted
        return Scores(str(path), str(dtype), dtype.itemsize, count, blocks)
    return Scores(str(path), str(dtype), dtype.itemsize, count, blocks, part, begins)


def _arrow_stream(stream: Stream) -> Scores:
    pyarrow, ipc = _library("pyarrow", "Arrow"), _library("pyarrow.ipc", "Arrow")
    with stream.open() as file:
        chosen, dtype, _ = _column(stream.name, ipc.open_stream(file).schema, stream.asked.column)

    def blocks(file: Any) -> Iterator[Block]:
        return _decoded(stream.name, (batch.column(chosen) for batch in ipc.open_stream(file)), pyarrow)

    return replace(stream.scores(str(dtype), blocks), itemsize=dtype.itemsize)


def _feather_v1(path: Place, column: str | None) -> Scores:
    """Columns of plain memory, one after the other."""
    pyarrow, feather = _library("pyarrow", "Feather"), _library("pyarrow.feather", "Feather")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # pyarrow's, of a file that is there and can be read
        table = feather.read_table(handed(path), memory_map=isinstance(path, Path))
    chosen, dtype, _ = _column(str(path), table.schema, column)  # its format has no lists

    def blocks(start: int) -> Iterator[Block]:
        rest = table.column(chosen).slice(start)
        return _decoded(
            str(path), (piece for i in range(0, len(rest), PIECE) for piece in rest.slice(i, PIECE).chunks), pyarrow, start
        )

    return Scores(str(path), str(dtype), dtype.itemsize, table.num_rows, blocks)


def _csv(path: Place, asked: Asked) -> Scores:
    return _csv_stream(Stream(path, asked))


def _csv_stream(stream: Stream) -> Scores:
    """A column of a table. A first line of numbers is no header."""
    pyarrow, reader = _library("pyarrow", "CSV"), _library("pyarrow.csv", "CSV")
    table = _table(stream)
    # Threads read one column no faster. All columns have their number for a name, whatever they are called.
    reading = lambda: reader.ReadOptions(
        block_size=8 * PIECE,
        column_names=[str(number) for number in range(table.width)],
        skip_rows_after_names=int(table.has_names),
        use_threads=False,
    )
    parsing = reader.ParseOptions(delimiter=table.separator)
    converting = reader.ConvertOptions(
        include_columns=[str(table.place)],
        column_types={str(table.place): pyarrow.float64()},
        null_values=[*MISSING],
        decimal_point="," if table.with_commas else ".",
    )

    def blocks(file: Any) -> Iterator[Block]:
        done = 0
        with contextlib.suppress(pyarrow.ArrowInvalid):  # of what it does not read as it is
            for batch in reader.open_csv(
                table.rows(file), read_options=reading(), parse_options=parsing, convert_options=converting
            ):
                if batch.column(0).null_count:
                    break
                yield from _decoded(stream.name, iter([batch.column(0)]), pyarrow)
                done += batch.num_rows
            else:
                return
        with stream.open() as again:
            yield from _skip(table.row_by_row(again), done)

    return stream.scores("text", blocks)


@dataclass(frozen=True)
class _Table:
    """A table in a text, and the column of it that holds the scores."""

    name: str
    encoding: str
    begin: int  # bytes before the first row
    line: int  # of the first row, from 1
    separator: str
    names: Sequence[str]
    has_names: bool
    column: str
    with_commas: bool  # before decimals, in the first rows
    may_have_commas: bool  # before them, in any row
    unended: bool

    @property
    def width(self) -> int:
        return len(self.names)

    @property
    def place(self) -> int:
        return self.names.index(self.column)

    def rows(self, file: Any) -> Any:
        """The file from its first row on, in UTF-8 where it was UTF-16."""
        file = Recoded(file, self.name) if self.encoding == "utf-16" else file
        file = io.BufferedReader(Ended(file, self.name, self.unended), 2**20)
        left = self.begin
        while left and (more := file.read(left)):
            left -= len(more)
        return file

    def row_by_row(self, file: Any) -> Iterator[np.ndarray]:
        """The scores, read slowly, with less asked of what is around them; all that is wrong in some rows is told at once."""
        encoding = "cp1252" if self.encoding == "cp1252" else "utf-8"
        found: list[float] = []
        wrong: dict[str, list[str]] = {"missing": [], "no number": [], "no row": []}
        line, names, place = self.line, self.has_names, self.place
        with io.TextIOWrapper(self.rows(file), encoding, errors="replace", newline="") as text:
            letters = [0]  # of the row that is read
            reader = csv.reader(self._lines(text, letters), delimiter=self.separator, skipinitialspace=True)
            for fields in self._whole(reader):
                letters[0] = 0
                first, line = line, self.line + reader.line_num
                if not any(map(str.strip, fields)):
                    continue
                if names:
                    names = False
                elif len(fields) != self.width:
                    wrong["no row"].append(f"line {first} has {len(fields)} field{'s' * (len(fields) != 1)}")
                elif (cell := fields[place].strip()) in MISSING:
                    wrong["missing"].append(f"line {first}")
                elif (number := self._number(cell)) is None:
                    wrong["no number"].append(f"line {first} holds {cell[:40]!r}")
                else:
                    found.append(number)
                if len(found) + sum(map(len, wrong.values())) >= PIECE:
                    self._refuse(wrong)
                    yield np.array(found)
                    found = []
        self._refuse(wrong)
        yield np.array(found)

    def _lines(self, text: Any, letters: list[int]) -> Iterator[str]:
        """The lines of a text, of which a row takes no more than `ROW` letters."""
        while line := text.readline(ROW):
            letters[0] += len(line)
            if letters[0] >= ROW:
                raise InputError(
                    f"{self.name}: a row has {ROW} letters or more, as where no line ends; give a table of shorter rows"
                )
            yield line

    def _whole(self, reader: Any) -> Iterator[list[str]]:
        """The rows of a reader of csv, of which none is too long."""
        try:
            yield from reader
        except csv.Error:
            held = f"line {self.line + reader.line_num - 1} ends a field of more than {csv.field_size_limit()} letters"
            raise InputError(f"{self.name}: {held}, as where a quote is not closed; repair it") from None

    def _number(self, cell: str) -> float | None:
        # 1.234 beside 2,5 is more than a thousand, and so may be 1,234 where no row before it has a comma
        grouped = (POINTED if self.with_commas else GROUPED).fullmatch(cell) if self.may_have_commas else None
        text = "" if grouped else cell.replace(",", ".") if self.may_have_commas and "." not in cell else cell
        return float(text) if _is_number(text.encode()) else None

    def _refuse(self, wrong: Mapping[str, Sequence[str]]) -> None:
        """Raise InputError where anything is wrong."""
        problems, other = Problems(), ", or name another column" if self.width > 1 else ""
        if lines := wrong["no number"]:
            repair = "write its decimals after a point and its thousands without commas" if "," in lines[0] else "repair it"
            if self.with_commas and "." in lines[0]:
                repair = "write its decimals after a comma and its thousands without points"
            problems.append(f"column {self.column!r} is not numeric: {_first_of(lines)}; {repair}{other}")
        if lines := wrong["missing"]:
            problems.append(f"{_missing(len(lines), lines[0])}; fill them in, or remove those rows")
        if lines := wrong["no row"]:
            repair = f"give every row as many, or quote what holds {self.separator!r}"
            problems.append(f"{_first_of(lines)}, where the first line has {self.width}; {repair}")
        if problems:
            problems.fail(of=f"{self.name}: ")


def _first_of(lines: Sequence[str]) -> str:
    return lines[0] + (f" (and {len(lines) - 1} more)" if len(lines) > 1 else "")


def _missing(count: int, where: str) -> str:
    return f"{count} values are missing, the first in {where}" if count > 1 else f"1 value is missing, in {where}"


def _table(stream: Stream) -> _Table:
    """What the beginning of a text tells. Raises InputError where it is none, or has no such column."""
    with stream.open() as file:
        content = file.read(8 * PIECE)
    content = content[: content.find(b"\n", PIECE) + 1 or None]
    _refuse_compressed(stream.name, content)
    encoding = encoding_of(content, whole=False)
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    text = decoder.decode(content)
    layout = layout_of(text)
    try:
        first = next(csv.reader(layout.lines, delimiter=layout.separator, skipinitialspace=True), [])
    except csv.Error:
        held = f"its first line has a field of more than {csv.field_size_limit()} letters"
        raise InputError(f"{stream.name}: {held}, as where a quote is not closed; repair it") from None
    if found := re.search("[\x01-\x08\x0e-\x1f\x7f]", "".join(first)):
        raise InputError(f"{stream.name}: its first line holds a control character, {found[0]!r}; take it out")
    if re.search("[\x00\ufffd]", "".join(first)):
        raise InputError(f"{stream.name}: its first line is no text in UTF-8, UTF-16 or Windows-1252; save it as CSV in UTF-8")
    names = [name.strip() for name in first]
    numbers = [not name or _is_number(name.replace(",", ".").encode()) for name in names]
    bare = all(numbers)
    if bare:
        names = [f"f{i}" for i in range(len(names))]  # as pyarrow calls them
    try:
        chosen = _choose(stream.name, "column", names, stream.asked.column)
    except InputError as error:
        doubt = f"; {layout.doubt}" if layout.doubt else ""
        taken = "; its first line was taken for the header: give it one, if that is a row" if any(numbers) and not bare else doubt
        raise InputError(f"{error}{taken}") from None
    if layout.doubt:
        warnings.warn(f"{stream.name}: {layout.doubt}", stacklevel=2)
    place = names.index(chosen)
    rows = rows_of(layout.lines[not bare :], layout.separator)
    cells = [row[place].strip() for row in rows if place < len(row)]
    commas = [cell for cell in cells if "," in cell]
    may_group = bool(commas) and all(map(GROUPED.fullmatch, commas))
    if may_group and layout.separator != ",":
        told = f"{stream.name}: the commas in column {chosen!r} are taken for decimal ones"
        warnings.warn(f"{told}; if they group thousands, as that of {commas[0]!r} may, leave them out", stacklevel=2)
    before = text[: layout.begin]
    begin = len(before.encode()) + (len(codecs.BOM_UTF8) if content.startswith(codecs.BOM_UTF8) else 0)
    with_commas = bool(commas) and (layout.separator != "," or not may_group)
    may_have_commas = with_commas or (layout.separator != "," and not any("." in cell for cell in cells))
    return _Table(
        stream.name,
        encoding,
        begin,
        layout.line,
        layout.separator,
        names,
        not bare,
        chosen,
        with_commas,
        may_have_commas,
        stream.asked.unended,
    )


def _refuse_compressed(name: str, start: bytes) -> None:
    if start.startswith(COMPRESSED):
        raise InputError(
            f"{name} is compressed; decompress it first, or give a file whose suffix says so, as .npy.gz, .txt.zst, .csv.zip"
        )


def _column(name: str, schema: Any, column: str | None) -> tuple[str, np.dtype, int | None]:
    """(the column, the dtype of its scores, how many a row has: 1, those of lists of one length, or None for lists of any)."""
    types = _library("pyarrow", "tables").types
    chosen = _choose(name, "column", schema.names, column)
    kind, each = schema.field(chosen).type, 1
    while _is_list(kind, types):
        each = each * kind.list_size if types.is_fixed_size_list(kind) and each is not None else None
        kind = kind.value_type
    try:
        dtype = np.dtype(kind.to_pandas_dtype())
        _check_real(name, dtype)
    except (InputError, NotImplementedError, TypeError):
        kind = schema.field(chosen).type
        raise InputError(f"{name}: column {chosen!r} is of type {kind}; cast it to a number of at most 64 bits") from None
    return chosen, dtype, each


def _is_list(kind: Any, types: Any) -> bool:
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def _of_lists(name: str, dtype: np.dtype, blocks: Callable[[], Iterator[Block]]) -> Scores:
    """Of lists of any lengths, whose scores are counted as they come."""
    return Scores(name, str(dtype), dtype.itemsize, None, lambda start: _skip(blocks(), start))


def _decoded(name: str, columns: Iterator[Any], pyarrow: Any, row: int = 0) -> Iterator[Block]:
    """The scores of columns, of which the first begins with that row."""
    for rows in columns:
        rows.validate(full=True)  # or lists may begin and end outside their memory
        values = rows
        while values.null_count == 0 and _is_list(values.type, pyarrow.types):
            values = values.flatten()
        if count := values.null_count:
            first = row + 1 + next(i for i, held in enumerate(rows.to_pylist()) if _has_none(held))
            raise InputError(f"{name}: {_missing(count, f'row {first}')}; fill them in, or remove those rows")
        row += len(rows)
        for start in range(0, len(values), PIECE):  # of lists there may be more than rows
            yield values.slice(start, PIECE).to_numpy(zero_copy_only=False)


def _has_none(held: Any) -> bool:
    """Whether it is a missing value, or a list with one."""
    return any(map(_has_none, held)) if isinstance(held, list) else held is None


def _hdf5(path: Place, asked: Asked) -> Scores:
    h5py = _library("h5py", "HDF5")
    dtypes: dict[str, np.dtype] = {}
    links: dict[str, Any] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            dtypes[name] = item.dtype
        else:
            found = {f"{name}/{key}".lstrip("/"): item.get(key, getlink=True) for key in item}
            links.update({key: link for key, link in found.items() if isinstance(link, h5py.ExternalLink)})

    column = None if asked.column is None else asked.column.strip("/")
    with h5py.File(handed(path)) as file:
        visit("", file)
        file.visititems(visit)
        if column in links or (links and not dtypes):
            name, link = (column, links[column]) if column in links else next(iter(links.items()))
            raise InputError(f"{path}: {name!r} is a link to {link.path!r} in another file, {link.filename!r}; give that file")
        chosen, items = _among(str(path), "dataset", dtypes, column, "/")
        shape, chunks = file[chosen].shape, file[chosen].chunks
        if not asked.trusted and (file[chosen].external or file[chosen].is_virtual):
            raise InputError(f"{path}: the scores of {chosen!r} are in other files that it names, and any may be named; {TRUST}")

    @contextlib.contextmanager
    def reading() -> Iterator[Any]:
        with h5py.File(handed(path)) as file:
            yield file[chosen]

    # A null dataset has no shape, and no scores.
    _check_memory(path, asked, math.prod(chunks or ()) * items.dtype.itemsize, IN_A_CHUNK)
    return _chunked(str(path), items, (0,) if shape is None else shape, chunks, reading)


def _zarr(path: Place, asked: Asked) -> Scores:
    zarr = _library("zarr", "Zarr")
    if isinstance(path, Path) and not asked.trusted:
        _check_folder(path)
    array = zarr.open(path if isinstance(path, Path) else path.url, mode="r")
    if isinstance(array, zarr.Group):
        dtypes = {name: member.dtype for name, member in array.members(max_depth=None) if isinstance(member, zarr.Array)}
        chosen, items = _among(str(path), "array", dtypes, None if asked.column is None else asked.column.strip("/"), "/")
        array = array[chosen]
    else:
        items = _items(str(path), array.dtype, asked.column)
    reading = lambda: contextlib.nullcontext(array)
    chunks = getattr(array, "shards", None) or array.chunks
    _check_memory(path, asked, math.prod(chunks) * items.dtype.itemsize, IN_A_CHUNK)
    return _chunked(str(path), items, array.shape, chunks, reading)


def _check_folder(path: Path) -> None:
    """Raise InputError where a directory has links out of it, or what is neither a file nor a directory."""
    within = os.path.realpath(path) + os.sep
    for folder, folders, names in os.walk(path):
        for place in (os.path.join(folder, name) for name in (*folders, *names)):
            mode = os.lstat(place).st_mode
            if stat.S_ISLNK(mode) and not os.path.realpath(place).startswith(within):
                raise InputError(f"{place} is a link out of {path}, and any file may be at its end; {TRUST}")
            if not (stat.S_ISLNK(mode) or stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise InputError(f"{place} is a pipe, a device or a socket; take it out")


def _chunked(
    name: str,
    items: _Items,
    shape: tuple[int, ...],
    chunks: tuple[int, ...] | None,
    reading: Callable[[], contextlib.AbstractContextManager[Any]],
) -> Scores:
    """Of an array that is read a region at a time."""
    count, regions = math.prod(shape) * items.each, list(_regions(shape, chunks, max(1, PIECE // max(items.each, 1))))
    lengths = (math.prod(len(range(n)[part]) for n, part in zip(shape, region, strict=True)) for region in regions)
    begins = _beginnings(length * items.each for length in lengths)

    def part(start: int, stop: int) -> Iterator[Block]:
        held = _of_parts(begins, start, stop)
        with reading() as array:
            blocks = (items.scores(array[region]) for region in regions[held.start : held.stop])
            yield from _first(_skip(blocks, start - begins[held.start]), stop - start)

    itemsize = items.dtype.itemsize // max(items.each, 1)
    return Scores(name, items.name, itemsize, count, lambda start: part(start, count), part, lambda: begins)


def _regions(shape: tuple[int, ...], chunks: tuple[int, ...] | None, piece: int) -> Iterator[tuple[slice, ...]]:
    """Parts of an array that are together all of it: whole chunks, as many at a time as make a piece of so many items."""
    step = [1] * len(shape) if chunks is None else list(chunks)
    for axis in reversed(range(len(shape))):
        step[axis] = min(max(shape[axis], 1), step[axis] * max(1, piece // math.prod(step)))
    return itertools.product(*([slice(i, i + s) for i in range(0, n, s)] for n, s in zip(shape, step, strict=True)))


READERS: dict[str, Callable[[Place, Asked], Scores]] = {
    ".npy": _npy,
    ".npz": _npz,
    ".txt": _text,
    ".parquet": _parquet,
    ".pq": _parquet,
    ".csv": _csv,
    ".tsv": _csv,
    ".arrow": _arrow,
    ".arrows": _arrow,
    ".feather": _arrow,
    ".ipc": _arrow,
    ".h5": _hdf5,
    ".hdf5": _hdf5,
    ".zarr": _zarr,
}

# What can be read from its beginning, and so compressed.
STREAMS: dict[str, Callable[[Stream], Scores]] = {
    ".npy": _npy_stream,
    ".txt": _text_stream,
    ".csv": _csv_stream,
    ".tsv": _csv_stream,
    ".arrow": _arrow_stream,
    ".arrows": _arrow_stream,
    ".ipc": _arrow_stream,
}


def _zstandard() -> Callable[[Any], Any]:
    pyarrow = _library("pyarrow", "Zstandard")
    return lambda file: pyarrow.CompressedInputStream(file, "zstd")


COMPRESSIONS: dict[str, Callable[[], Callable[[Any], Any]]] = {
    ".gz": lambda: lambda file: gzip.GzipFile(fileobj=file),
    ".zst": _zstandard,
}
