"""Plain memory: NPY, NPZ and raw numbers, read from several places at once or as they come."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from softmaxima.base.numbers import InputError
from softmaxima.base.places import Place, handed
from softmaxima.io.formats import source
from softmaxima.io.formats.items import Items, among, items_of, npy_header, numpy_dtype
from softmaxima.io.formats.source import Asked, Scores, check_memory, first_scores, no_column, skip_scores, unreadable
from softmaxima.io.formats.stream import Stream

if TYPE_CHECKING:
    from softmaxima.io.formats.source import Block

RAW_DTYPES = ("float64", "float32", "bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8")


def open_npy(path: Place, asked: Asked) -> Scores:
    with path.open("rb") as file:
        dtype, count = npy_header(file, str(path))
        offset = file.tell()
    items = items_of(str(path), dtype, asked.column)
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


def open_raw(path: Place, column: str | None, dtype: str) -> Scores:
    no_column(str(path), column)
    plain = numpy_dtype(dtype)
    count, rest = divmod(path.stat().st_size, plain.itemsize)
    if rest:
        raise InputError(f"{path}: {path.stat().st_size} bytes are no whole number of {dtype}; check `dtype`, or copy it again")
    return _plain(path, 0, count, Items(plain))


def _plain(path: Place, offset: int, length: int, items: Items) -> Scores:
    """Of a file that holds so many items from an offset on."""
    item, each = items.dtype.itemsize, items.each
    count = length * each

    def part(start: int, stop: int) -> Iterator[Block]:
        if not count:
            return iter(())
        blocks = map(items.scores, read(start // each, -(-stop // each)))
        return blocks if each == 1 else first_scores(skip_scores(blocks, start % each), stop - start)

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
    return max(1, source.CACHED // itemsize)


def open_npz(path: Place, asked: Asked) -> Scores:
    with zipfile.ZipFile(handed(path)) as archive:
        headers = {}
        for member in archive.namelist():
            if member.endswith(".npy"):
                with archive.open(member) as file:
                    headers[member.removesuffix(".npy")] = npy_header(file, str(path))
    array, items = among(str(path), "array", {name: dtype for name, (dtype, _) in headers.items()}, asked.column, ".")
    chosen, count = f"{array}.npy", headers[array][1]
    check_memory(path, asked, count * items.dtype.itemsize)

    def blocks(start: int) -> Iterator[Block]:
        with zipfile.ZipFile(handed(path)) as archive, archive.open(chosen) as file:
            npy_header(file, str(path))
            yield from skip_scores(items_in(file, str(path), items, count), start)

    return Scores(str(path), items.name, items.dtype.itemsize, count * items.each, blocks)


def npy_stream(stream: Stream) -> Scores:
    with stream.open() as file:
        dtype, count = npy_header(file, stream.name)
    items = items_of(stream.name, dtype, stream.asked.column)

    def blocks(file: Any) -> Iterator[Block]:
        npy_header(file, stream.name)
        return items_in(file, stream.name, items, count)

    return replace(stream.scores(items.name, blocks), itemsize=dtype.itemsize, count=count * items.each)


def items_in(file: Any, name: str, items: Items, count: int | None) -> Iterator[Block]:
    """The scores of items of plain memory from a stream: `count` items, after which it ends, or all."""
    size, left = items.dtype.itemsize, math.inf if count is None else count
    while left > 0:
        wanted = int(min(source.PIECE, left)) * size
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
