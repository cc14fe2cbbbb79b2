"""HDF5 and Zarr, a chunk at a time."""

from __future__ import annotations

import contextlib
import math
import os
import stat
from collections.abc import Callable, Iterator, Sequence
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
    check_memory,
    first_scores,
    library,
    of_parts,
    skip_scores,
)

if TYPE_CHECKING:
    from softmaxima.streams.formats.source import Block

IN_A_CHUNK = " in one chunk"
DEEPEST = 8  # that virtual datasets may be of virtual datasets


def open_hdf5(path: Place, asked: Asked) -> Scores:
    h5py = library("h5py", "HDF5")
    dtypes: dict[str, np.dtype] = {}
    links: dict[str, Any] = {}

    def visit(name: str, item: Any) -> None:
        if name.count("/") > 200:  # each of whose names takes longer to build
            raise InputError(f"{path} has groups within groups, more than 200 deep; copy its scores to a file of their own")
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
        _check_sources(path, file[chosen], h5py)

    @contextlib.contextmanager
    def reading() -> Iterator[Any]:
        with h5py.File(handed(path)) as file:
            yield file[chosen]

    # A null dataset has no shape, and no scores.
    shape = (0,) if shape is None else shape
    check_memory(path, asked, math.prod(chunks or ()) * items.dtype.itemsize, IN_A_CHUNK)
    check_memory(path, asked, math.prod(shape) * items.dtype.itemsize)
    return _in_chunks(str(path), items, shape, chunks, reading)


def _check_sources(path: Place, dataset: Any, h5py: Any, depth: int = 0) -> None:
    """Raise InputError where scores in other files are in none that ends: HDF5 waits for pipes, and crashes on circles."""
    if depth > DEEPEST:
        raise InputError(f"{path}: its scores are in datasets that name each other; copy them into one dataset")
    virtual = dataset.virtual_sources() if dataset.is_virtual else ()
    for name in {name for name, *_ in dataset.external or ()} | {part.file_name for part in virtual}:
        for place in (Path(str(path)).parent / name.replace("%b", "0"), Path(name)) if name != "." else ():
            if place.exists() and not place.is_file():
                raise InputError(f"{path}: its scores are in {place}, which is a pipe, a device or a directory; name a file there")
    for part in virtual:
        within = part.file_name == "."
        with contextlib.nullcontext(dataset.file) if within else _opened(Path(str(path)).parent / part.file_name, h5py) as file:
            if file is not None and isinstance(found := file.get(part.dset_name), h5py.Dataset):
                _check_sources(path if within else Path(file.filename), found, h5py, depth + 1)


def _opened(path: Path, h5py: Any) -> contextlib.AbstractContextManager[Any]:
    return h5py.File(path) if path.is_file() else contextlib.nullcontext()


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
    check_memory(path, asked, math.prod(array.shape) * items.dtype.itemsize)
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
    count, begins = math.prod(shape) * items.each, _Regions(shape, chunks, items.each)

    def part(start: int, stop: int) -> Iterator[Block]:
        held = of_parts(begins, start, stop)
        with reading() as array:
            blocks = (items.scores(array[begins.region(number)]) for number in held)
            yield from first_scores(skip_scores(blocks, start - begins[held.start]), stop - start)

    itemsize = items.dtype.itemsize // max(items.each, 1)
    return Scores(name, items.name, itemsize, count, lambda start: part(start, count), part, lambda: begins)


class _Regions(Sequence[int]):
    """Parts of an array that are together all of it: whole chunks, as many at a time as make a piece; of each the first score.

    None is made before it is asked for, since a few bytes can state an array of 2⁶⁰ scores.
    """

    def __init__(self, shape: tuple[int, ...], chunks: tuple[int, ...] | None, each: int) -> None:
        self.shape, self.each, piece = shape, each, max(1, source.PIECE // max(each, 1))
        self.step = [1] * len(shape) if chunks is None else list(chunks)
        for axis in reversed(range(len(shape))):
            self.step[axis] = min(max(shape[axis], 1), self.step[axis] * max(1, piece // math.prod(self.step)))

    def _starts(self, number: int) -> list[int]:
        starts = []
        for n, step in zip(reversed(self.shape), reversed(self.step), strict=True):
            number, place = divmod(number, max(1, -(-n // step)))
            starts.append(place * step)
        return starts[::-1]

    def region(self, number: int) -> tuple[slice, ...]:
        return tuple(slice(start, start + step) for start, step in zip(self._starts(number), self.step, strict=True))

    def __len__(self) -> int:
        return math.prod(max(1, -(-n // step)) for n, step in zip(self.shape, self.step, strict=True))

    def __getitem__(self, number: Any) -> Any:
        before, held = 0, self.each
        for axis, (start, step) in enumerate(zip(self._starts(number), self.step, strict=True)):
            before += held * start * math.prod(self.shape[axis + 1 :])
            held *= min(step, self.shape[axis] - start)
        return before
