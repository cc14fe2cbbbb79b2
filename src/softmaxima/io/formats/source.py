"""What a file of scores is to whoever reads it: blocks in order, parts that can be read apart, and errors in one line."""

from __future__ import annotations

import bisect
import importlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from softmaxima.base.numbers import InputError
from softmaxima.base.places import Place, Remote, files_in
from softmaxima.io.texts import most_unpacked

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    Block = np.ndarray | Tensor

CACHED = 2**22  # bytes of plain memory that are read at a time, into cache, which is faster than to map them

PIECE = 2**20  # scores that are decoded at a time

TRUST = "if you trust who wrote it, ask for that with `trusted`"


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


def check_memory(path: Place, asked: Asked, size: int, what: str = "") -> None:
    """Raise InputError where a file takes more bytes when it is unpacked than one that is not trusted may."""
    if size > most_unpacked(0) and not asked.trusted:
        if isinstance(path, Remote):
            stored, _ = path.version()
        else:
            stats = [file.stat() for file in files_in(path) if file.is_file()]
            stored = sum(min(stat.st_size, 512 * getattr(stat, "st_blocks", stat.st_size)) for stat in stats)  # holes aside
        if size > (most := most_unpacked(stored)):
            raise too_much(str(path), most, what)


def too_much(name: str, most: int, what: str = "") -> InputError:
    return InputError(f"{name} is unpacked to more than {most / 1e9:.1f} GB{what}, as what is made to fill a memory; {TRUST}")


def empty_file(name: str, what: str = "0 bytes") -> InputError:
    return InputError(f"{name} is empty: {what} came, as where what was to write them failed; write it again")


def check_stated(name: str, what: str, came: int, stated: int) -> None:
    """Raise InputError where a file held other than it states, as where pages of it were skipped."""
    if came != stated:
        raise InputError(f"{name} is damaged: {came} {what} came where {stated} are stated; copy it again")


def unreadable(name: str, error: Exception) -> InputError:
    """What the system or a library said, in one line."""
    said = (str(getattr(error, "strerror", None) or error).strip().splitlines() or [type(error).__name__])[0]
    if isinstance(error, FileNotFoundError) and error.errno:  # the system's: zarr has one for files of another kind
        return InputError(f"there is no file {name}; give a path to an existing file")
    if isinstance(error, PermissionError):
        return InputError(f"{name} cannot be read ({said}); permit it to this user (chmod +r, and +x of its folders)")
    if isinstance(error, MemoryError) or re.search("allocat|expand output", said):  # as Zstandard says it
        return InputError(f"{name}: memory ran out, or what a file may take of it that nobody trusts; free some, or {TRUST}")
    if "filter returned failure" in said:  # as HDF5 says both
        return InputError(
            f"{name}: a chunk cannot be unpacked: it is damaged, or takes more memory than a file may that nobody trusts; write it "
            f"again, or {TRUST}"
        )
    repair = "or download it first" if "://" in name else "and write it again"
    return InputError(f"{name} cannot be read ({said.rstrip('.')}); check that it is whole, {repair}")


def no_column(name: str, column: str | None) -> None:
    if column is not None:
        raise InputError(f"{name} has no columns; leave `column` out, got {column!r}")


def choose_column(name: str, what: str, names: Any, column: str | None) -> str:
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


def skip_scores(blocks: Iterator[Block], start: int) -> Iterator[Block]:
    """Without the first `start` scores."""
    for block in blocks:
        n = len(block)
        if start < n:
            yield block[start:]
        start = max(0, start - n)


def first_scores(blocks: Iterator[Block], n: int) -> Iterator[Block]:
    """The first `n` scores."""
    while n > 0 and (block := next(blocks, None)) is not None:
        yield block[:n]
        n -= len(block)


def of_parts(begins: Sequence[int], start: int, stop: int) -> range:
    """Which parts hold the scores from one to another, where `begins` are their first scores."""
    return range(bisect.bisect_right(begins, start) - 1, bisect.bisect_left(begins, stop))


def beginnings(lengths: Iterable[int]) -> list[int]:
    """The first scores of parts of those lengths; of no parts, 0."""
    return [0, *itertools.accumulate(lengths)][:-1] or [0]


def library(module: str, kind: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        package = module.partition(".")[0]
        raise InputError(f"{kind} needs {package}, which is not installed: pip install {package}") from None


def missing_values(count: int, where: str) -> str:
    return f"{count} values are missing, the first in {where}" if count > 1 else f"1 value is missing, in {where}"
