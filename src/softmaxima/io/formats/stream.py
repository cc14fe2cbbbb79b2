"""Files that are read from their beginning, through a decompressor if they have one."""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING, Any

from softmaxima.base.numbers import InputError
from softmaxima.base.places import Place
from softmaxima.io.formats.source import Asked, Scores, skip_scores, too_much
from softmaxima.io.texts import COMPRESSED, Limited, most_unpacked

if TYPE_CHECKING:
    from softmaxima.io.formats.source import Block


class Rejoined(io.RawIOBase):
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
                        file = io.BufferedReader(Limited(file, most, str(too_much(self.name, most))), 2**20)
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
                yield from skip_scores(blocks(file), start)

        return Scores(self.name, dtype, 1, None, read, size=self.size, position=self.position)


def refuse_compressed(name: str, start: bytes) -> None:
    if start.startswith(COMPRESSED):
        raise InputError(
            f"{name} is compressed; decompress it first, or give a file whose suffix says so, as .npy.gz, .txt.zst, .csv.zip"
        )
