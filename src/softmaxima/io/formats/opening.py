"""A file by its suffix, a compressed one by what is in it, a pipe by its beginning."""

from __future__ import annotations

import contextlib
import functools
import gzip
import os
import select
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from softmaxima.base.numbers import InputError
from softmaxima.base.places import STANDARD_INPUT, Place
from softmaxima.io.formats.chunked import open_hdf5, open_zarr
from softmaxima.io.formats.columns import arrow_stream, open_arrow, open_parquet
from softmaxima.io.formats.items import Items, items_of, npy_header, numpy_dtype
from softmaxima.io.formats.numbers import numbers_in, open_text, text_stream
from softmaxima.io.formats.plain import RAW_DTYPES, items_in, npy_stream, open_npy, open_npz, open_raw
from softmaxima.io.formats.rows import csv_stream, open_csv
from softmaxima.io.formats.source import Asked, Scores, check_stated, empty_file, library, no_column, skip_scores, unreadable
from softmaxima.io.formats.stream import Rejoined, Stream
from softmaxima.io.texts import table_in

if TYPE_CHECKING:
    from softmaxima.io.formats.source import Block

_MAGIC = b"\x93NUMPY"

_GZIP = b"\x1f\x8b"

SILENCE = 3  # seconds, after which it is said of a pipe


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

    >>> import pathlib, tempfile, numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "scores.npy"
    ...     np.save(path, np.zeros((3, 4), np.float32))
    ...     scores = open_scores(path)
    ...     scores.count, scores.dtype, [block.shape for block in scores.blocks(2)]
    (12, 'float32', [(10,)])
    """
    if dtype is not None and (not isinstance(dtype, str) or dtype not in RAW_DTYPES):
        raise InputError(f"`dtype`: raw memory is of {', '.join(RAW_DTYPES)}; got {dtype!r}")
    if path == STANDARD_INPUT and sys.stdin is None:
        raise InputError("standard input is closed; give a file, or the output of another command")
    asked, name = Asked(column, dtype, trusted, unended), "standard input" if path == STANDARD_INPUT else str(path)
    with _told(name):
        scores = _from_pipe(name, sys.stdin.buffer, asked) if path == STANDARD_INPUT else _from_file(path, asked)
    part, count = scores.part, scores.count
    return replace(
        scores,
        blocks=lambda start: _all_told(name, scores.blocks(start), None if count is None else max(0, count - start)),
        part=None if part is None else lambda start, stop: _all_told(name, part(start, stop), stop - start),
    )


@contextlib.contextmanager
def _told(name: str) -> Iterator[None]:
    """Whatever the library of a format or a protocol raises, as of a wrong checksum, is an InputError."""
    try:
        yield
    except (InputError, Warning):
        raise
    except Exception as error:
        raise unreadable(name, error) from None


def _all_told(name: str, blocks: Iterator[Block], stated: int | None) -> Iterator[Block]:
    came = 0
    with _told(name):
        for block in blocks:
            came += len(block)
            yield block
        if stated is not None:
            check_stated(name, "scores", came, stated)


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
        raise empty_file(str(path))
    if suffix in {*COMPRESSIONS, ".zip"}:
        return _compressed(path, asked, suffix)
    if dtype is None and suffix not in READERS:
        raise InputError(
            f"{path}: unknown suffix {suffix!r}; give `dtype` for raw memory, or convert it to one of: {', '.join(READERS)}"
        )
    if dtype is not None and suffix in READERS:
        raise InputError(f"{path}: a file with the suffix {suffix} states its own dtype; leave `dtype` out")
    return open_raw(path, asked.column, dtype) if dtype is not None else READERS[suffix](path, asked)


def _from_pipe(name: str, file: Any, asked: Asked) -> Scores:
    """NPY if it begins like one, raw memory with a `dtype`, or else numbers as text."""
    column, dtype, start = asked.column, asked.dtype, b""
    while len(start) < len(_MAGIC) and (more := file.read(len(_MAGIC) - len(start))):
        start += more
    if not start:
        raise empty_file(name)
    file = Rejoined(start, file)
    if dtype is not None:
        no_column(name, column)
        items = Items(numpy_dtype(dtype))
        scores = items_in(file, name, items, None)
        return Scores(name, items.name, items.dtype.itemsize, None, lambda start: skip_scores(scores, start))
    if start == _MAGIC:
        stated, count = npy_header(file, name)
        items = items_of(name, stated, column)
        scores = items_in(file, name, items, count)
        return Scores(name, items.name, stated.itemsize, count * items.each, lambda start: skip_scores(scores, start))
    no_column(name, column)
    return Scores(name, "text", 1, None, lambda start: skip_scores(numbers_in(file, name, asked.unended), start))


def _opened_pipe(path: Place) -> Any:
    """A pipe, where something comes of it; of silence it is told."""
    if not hasattr(os, "O_NONBLOCK"):
        return path.open("rb")
    file = open(os.open(str(path), os.O_RDONLY | os.O_NONBLOCK), "rb")  # noqa: SIM115 - who reads it closes it
    poll = select.poll()
    poll.register(file, select.POLLIN)
    try:
        if not poll.poll(1000 * SILENCE):
            told = f"{path} is a pipe, and nothing has come of it in {SILENCE} s; waiting for what writes to it"
            warnings.warn(told, stacklevel=2)
            poll.poll()
    except BaseException:
        file.close()
        raise
    os.set_blocking(file.fileno(), True)
    return file


def _named_pipe(path: Place, asked: Asked) -> Scores:
    file = _opened_pipe(path)
    try:
        scores = _from_pipe(str(path), file, asked)
    except BaseException:
        file.close()
        raise

    def blocks(start: int) -> Iterator[Block]:
        with file:
            yield from scores.blocks(start)

    return replace(scores, blocks=blocks)


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
            raise empty_file(str(path))
    if dtype is not None:
        no_column(str(path), asked.column)
        items = Items(numpy_dtype(dtype))
        return stream.scores(items.name, lambda file: items_in(file, str(path), items, None))
    if start == _MAGIC:
        return npy_stream(stream)
    if inner == ".npy":
        with stream.open() as file:
            npy_header(file, str(path))  # which raises
    return STREAMS.get(inner, text_stream)(stream)


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


READERS: dict[str, Callable[[Place, Asked], Scores]] = {
    ".npy": open_npy,
    ".npz": open_npz,
    ".txt": open_text,
    ".parquet": open_parquet,
    ".pq": open_parquet,
    ".csv": open_csv,
    ".tsv": open_csv,
    ".arrow": open_arrow,
    ".arrows": open_arrow,
    ".feather": open_arrow,
    ".ipc": open_arrow,
    ".h5": open_hdf5,
    ".hdf5": open_hdf5,
    ".zarr": open_zarr,
}


# What can be read from its beginning, and so compressed.
STREAMS: dict[str, Callable[[Stream], Scores]] = {
    ".npy": npy_stream,
    ".txt": text_stream,
    ".csv": csv_stream,
    ".tsv": csv_stream,
    ".arrow": arrow_stream,
    ".arrows": arrow_stream,
    ".ipc": arrow_stream,
}


def _zstandard() -> Callable[[Any], Any]:
    pyarrow = library("pyarrow", "Zstandard")
    return lambda file: pyarrow.CompressedInputStream(file, "zstd")


COMPRESSIONS: dict[str, Callable[[], Callable[[Any], Any]]] = {
    ".gz": lambda: lambda file: gzip.GzipFile(fileobj=file),
    ".zst": _zstandard,
}
