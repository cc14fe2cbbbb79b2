"""HDF5 and Zarr, a chunk at a time."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from softmaxima.base.numbers import InputError
from softmaxima.base.places import Place, handed
from softmaxima.io.formats import source
from softmaxima.io.formats.items import Items, among, items_of
from softmaxima.io.formats.source import (
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
    from softmaxima.io.formats.source import Block

IN_A_CHUNK = " in one chunk"
DEEPEST = 8  # that virtual datasets may be of virtual datasets
LONGEST = 1000  # groups and links on the way to one


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
    left = math.prod(dataset.shape or ()) * dataset.dtype.itemsize
    for name, offset, size in dataset.external or ():
        size, left = min(size, left), left - min(size, left)
        held = min((place.stat().st_size for place in _places(path, name)), default=offset + size)  # HDF5 tells what is missing
        if held < offset + size:  # its end would be zeros
            raise InputError(
                f"{path}: its scores are in {name!r}, which is cut off: {offset + size} bytes are stated; copy it again"
            )
    for part in virtual:
        names = (part.file_name, part.dset_name)
        is_pattern = _numbered(names, 0) != _numbered(names, 1)
        for number in itertools.count() if is_pattern else (0,):  # HDF5 reads on until one is not there
            name, held = _numbered(names, number)
            if not _check_source(path, dataset, name, held, h5py, depth):
                if not is_pattern:  # its scores would be zeros
                    raise InputError(f"{path}: its scores are in {held!r} of {name!r}, which is not there; copy that too")
                break


def _numbered(names: tuple[str, str], number: int) -> tuple[str, str]:
    """The names that HDF5 makes of patterns, as "part-%b.h5"."""
    file, dataset = (re.sub("%[b%]", lambda found: {"%b": str(number), "%%": "%"}[found[0]], name) for name in names)
    return file, dataset


def _check_source(path: Place, dataset: Any, name: str, held: str, h5py: Any, depth: int) -> bool:
    """Whether the dataset `held` is in the file `name`; if it has sources too, they are checked."""
    places = [] if name == "." else _places(path, name)
    if name != "." and not places:
        return False
    with contextlib.nullcontext(dataset.file) if name == "." else h5py.File(places[0]) as file:
        if not isinstance(found := _within(path, file, held, h5py), h5py.Dataset):
            return False
        _check_sources(path if name == "." else places[0], found, h5py, depth + 1)
    return True


def _places(path: Place, name: str) -> list[Path]:
    """The files, which end, that HDF5 may find by the name in that file: in its folder, or from where the command is run."""
    found = []
    for place in (Path(str(path)).parent / name, Path(name), Path(os.path.realpath(str(path))).parent / Path(name).name):
        if place.exists():
            if not place.is_file():
                raise InputError(f"{path}: its scores are in {place}, which is a pipe, a device or a directory; name a file there")
            found.append(place)
    return found


def _within(path: Place, file: Any, name: str, h5py: Any) -> Any:
    """What is at a name in a file. Links to other files, which HDF5 would open, raise InputError."""
    found, parts = file, name.split("/")
    for _ in range(LONGEST):
        if not parts or not isinstance(found, h5py.Group):
            break
        part, parts = parts[0], parts[1:]
        link: Any = found.get(part, getlink=True) if part not in ("", ".") else None
        if isinstance(link, h5py.SoftLink):
            found, parts = (file if link.path.startswith("/") else found), link.path.split("/") + parts
        elif isinstance(link, h5py.HardLink):
            found = found[part]
        elif link is not None:
            raise InputError(f"{path}: its scores are in {name!r}, which is a link to another file; name that file there")
        elif part not in ("", "."):
            return None
    return None if parts else found


def open_zarr(path: Place, asked: Asked) -> Scores:
    zarr = library("zarr", "Zarr")
    if isinstance(path, Path):
        _check_folder(path, asked.trusted)
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


def _check_folder(path: Path, trusted: bool) -> None:
    """Raise InputError where a directory has what is neither a file nor a directory, or links out of it that nobody trusts."""
    within, seen = os.path.realpath(path) + os.sep, set()
    for folder, folders, names in os.walk(path, followlinks=True):
        for place in (os.path.join(folder, name) for name in (*folders, *names)):
            mode = os.lstat(place).st_mode
            if stat.S_ISLNK(mode):
                if not trusted and not os.path.realpath(place).startswith(within):
                    raise InputError(f"{place} is a link out of {path}, and any file may be at its end; {TRUST}")
                if not os.path.exists(place):
                    continue
                mode = os.stat(place).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise InputError(f"{place} is a pipe, a device or a socket; take it out")
        seen.add(os.path.realpath(folder))
        folders[:] = [name for name in folders if os.path.realpath(os.path.join(folder, name)) not in seen]  # links in a circle


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
