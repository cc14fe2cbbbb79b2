"""HDF5 and Zarr, a chunk at a time."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from softmaxima.core.numbers import InputError
from softmaxima.core.places import Place, handed
from softmaxima.streams.formats import source
from softmaxima.streams.formats.items import Items, among, items_of
from softmaxima.streams.formats.source import (
    TRUST,
    Asked,
    Scores,
    beginnings,
    check_memory,
    first_scores,
    library,
    of_parts,
    skip_scores,
)

if TYPE_CHECKING:
    from softmaxima.streams.formats.source import Block

IN_A_CHUNK = " in one chunk"


def open_hdf5(path: Place, asked: Asked) -> Scores:
    h5py = library("h5py", "HDF5")
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
        chosen, items = among(str(path), "dataset", dtypes, column, "/")
        shape, chunks = file[chosen].shape, file[chosen].chunks
        if not asked.trusted and (file[chosen].external or file[chosen].is_virtual):
            raise InputError(f"{path}: the scores of {chosen!r} are in other files that it names, and any may be named; {TRUST}")

    @contextlib.contextmanager
    def reading() -> Iterator[Any]:
        with h5py.File(handed(path)) as file:
            yield file[chosen]

    # A null dataset has no shape, and no scores.
    check_memory(path, asked, math.prod(chunks or ()) * items.dtype.itemsize, IN_A_CHUNK)
    return _in_chunks(str(path), items, (0,) if shape is None else shape, chunks, reading)


def open_zarr(path: Place, asked: Asked) -> Scores:
    zarr = library("zarr", "Zarr")
    if isinstance(path, Path) and not asked.trusted:
        _check_folder(path)
    array = zarr.open(path if isinstance(path, Path) else path.url, mode="r")
    if isinstance(array, zarr.Group):
        dtypes = {name: member.dtype for name, member in array.members(max_depth=None) if isinstance(member, zarr.Array)}
        chosen, items = among(str(path), "array", dtypes, None if asked.column is None else asked.column.strip("/"), "/")
        array = array[chosen]
    else:
        items = items_of(str(path), array.dtype, asked.column)
    reading = lambda: contextlib.nullcontext(array)
    chunks = getattr(array, "shards", None) or array.chunks
    check_memory(path, asked, math.prod(chunks) * items.dtype.itemsize, IN_A_CHUNK)
    return _in_chunks(str(path), items, array.shape, chunks, reading)


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


def _in_chunks(
    name: str,
    items: Items,
    shape: tuple[int, ...],
    chunks: tuple[int, ...] | None,
    reading: Callable[[], contextlib.AbstractContextManager[Any]],
) -> Scores:
    """Of an array that is read a region at a time."""
    count, regions = math.prod(shape) * items.each, list(_regions(shape, chunks, max(1, source.PIECE // max(items.each, 1))))
    lengths = (math.prod(len(range(n)[part]) for n, part in zip(shape, region, strict=True)) for region in regions)
    begins = beginnings(length * items.each for length in lengths)

    def part(start: int, stop: int) -> Iterator[Block]:
        held = of_parts(begins, start, stop)
        with reading() as array:
            blocks = (items.scores(array[region]) for region in regions[held.start : held.stop])
            yield from first_scores(skip_scores(blocks, start - begins[held.start]), stop - start)

    itemsize = items.dtype.itemsize // max(items.each, 1)
    return Scores(name, items.name, itemsize, count, lambda start: part(start, count), part, lambda: begins)


def _regions(shape: tuple[int, ...], chunks: tuple[int, ...] | None, piece: int) -> Iterator[tuple[slice, ...]]:
    """Parts of an array that are together all of it: whole chunks, as many at a time as make a piece of so many items."""
    step = [1] * len(shape) if chunks is None else list(chunks)
    for axis in reversed(range(len(shape))):
        step[axis] = min(max(shape[axis], 1), step[axis] * max(1, piece // math.prod(step)))
    return itertools.product(*([slice(i, i + s) for i in range(0, n, s)] for n, s in zip(shape, step, strict=True)))
