"""Files cut into pieces that may be read anywhere, in any order: row groups, chunks, ranges of memory; each gives a small state.

Where the cuts are depends on the file alone, and the states are merged in the order of the pieces: the sum is the same to the last
bit whoever reads which piece, and when.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from softmaxima.base.numbers import InputError
from softmaxima.base.places import Place
from softmaxima.io.checkpoint import Fingerprint
from softmaxima.io.files import Request, check_unchanged
from softmaxima.io.formats.source import unreadable
from softmaxima.io.state import LogSumExpState
from softmaxima.kernels import interface

LEAST = 2**26  # bytes of scores of a piece, if the file has so many: reading them takes long beside sending them


@dataclass(frozen=True)
class Piece:
    """Scores of a file, from number `start` to before `stop`; all of a file whose `count` shows only at its end."""

    path: Place
    request: Request
    start: int
    stop: int | None
    count: int | None
    size: int  # bytes that are read

    def __str__(self) -> str:
        if self.stop is None or (self.start, self.stop) == (0, self.count):
            return str(self.path)
        return f"{self.path}, scores {self.start + 1} to {self.stop} of {self.count}"

    def state(self) -> LogSumExpState:
        """Read and summed, by one thread. Raises InputError that names the file and which of its scores could not be read."""
        try:
            with interface.one_thread():
                scores, reading = self.request.opened(self.path)
                if scores.part is None or self.stop is None:
                    return reading.state(scores.blocks(self.start))
                return reading.state(scores.part(self.start, self.stop))
        except Exception as error:  # of any library that reads files
            said = str(error if isinstance(error, InputError) else unreadable(str(self.path), error))
            rest = said.removeprefix(str(self.path))
            between = ": " if rest == said else "" if rest.startswith(":") or str(self) == str(self.path) else ","
            raise InputError(f"{self}{between}{rest}") from error


@dataclass(frozen=True)
class Plan:
    """A file, as it was when it was cut, and its pieces in order."""

    path: Place
    fingerprint: Fingerprint
    pieces: tuple[Piece, ...]

    @staticmethod
    def of(path: Place, request: Request) -> Plan:
        """How a file is cut. Raises InputError if it cannot be used."""
        fingerprint = Fingerprint.of(path)
        scores, _ = request.opened(path)
        if scores.count is None:
            return Plan(path, fingerprint, (Piece(path, request, 0, None, None, scores.size or 0),))
        cuts = cut(scores.begins(), scores.count, LEAST // scores.itemsize)
        return Plan(
            path,
            fingerprint,
            tuple(Piece(path, request, start, stop, scores.count, (stop - start) * scores.itemsize) for start, stop in cuts),
        )

    def check(self) -> None:
        """Raise InputError if the file changed since it was cut."""
        check_unchanged(self.path, self.fingerprint)


def cut(begins: Sequence[int], count: int, least: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of pieces of at least so many scores, but for the last, each of which begins at one of `begins`.

    >>> list(cut([0, 40, 80, 120], 130, 50))
    [(0, 80), (80, 130)]
    """
    start = 0
    while True:
        following = bisect.bisect_left(begins, start + max(least, 1))
        stop = begins[following] if following < len(begins) else count
        yield start, stop
        if stop >= count:
            return
        start = stop
