"""What an estimator asks of the scores that it reads, what reading them takes, and their sum in a pass."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from softmaxima.kernels import native
from softmaxima.lse.bounds._gaps import quotient
from softmaxima.lse.logsumexp import row_logsumexp

BLOCK = 1 << 18  # numbers that are read at once, in float64: larger blocks leave the cache, and are new memory each

# Nanoseconds, measured on one core of a server whose disk gives 2 GB/s; docs/logsumexp.md has what comes of them.
SCORE = 0.2  # to sum a score
SCORE_OF_DOUBLE = 0.45  # the same in float64
SCORE_OF_RUN = 2.5  # the same of a run at a random place
PRODUCT = 0.4  # to multiply and add a number of an inner product
PRODUCT_OF_ROW = 1.5  # the same of a row at a random place
DRAW = 400.0  # to find a random place, and what is computed of it
FILE_BYTE = 0.6  # to read a byte of a file in order
FILE_PAGE = 20_000.0  # to read a page of a file at a random place, many at a time


class Times(NamedTuple):
    """Nanoseconds of a score in a pass over all, and of a draw."""

    score: float
    draw: float


class Total(NamedTuple):
    """What a pass finds."""

    log_sum: Tensor  # log Σ exp(x_i/τ), in float64
    largest: float  # x_i/τ
    error: float  # how far `log_sum` may be off, beside what float64 loses


class Source(Protocol):
    """Scores that are read by number.

    `like` is what a result is given back as: a tensor, or an array. `run` is how many neighbours a draw best reads, `row` of how
    many numbers a score is computed, `index` that of the rows, or None.
    """

    n: int
    like: Any

    @property
    def run(self) -> int: ...

    @property
    def row(self) -> int: ...

    @property
    def index(self) -> Any: ...

    def expect(self, numbers: np.ndarray, width: int) -> None:
        """Ask the disk for the runs of `width` neighbours of these numbers."""
        ...

    def runs(self, numbers: np.ndarray, width: int) -> Tensor:
        """These runs in float64, [runs, width], −∞ after the last score, for autograd to follow."""
        ...

    def blocks(self) -> Iterator[Tensor]:
        """All scores in order, a block at a time, in float64 and for autograd to follow."""
        ...

    def total(self, tau: float, accuracy: float) -> Total:
        """The sum of all, which is off by no more than `accuracy`, for autograd to follow."""
        ...

    def times(self, width: int) -> Times:
        """What a pass takes, and what a draw of so many neighbours does."""
        ...

    @property
    def differentiable(self) -> bool:
        """Whether autograd wants to follow."""
        ...


def followed(blocks: Iterator[Tensor], tau: float) -> Total:
    """The total of blocks in float64, for autograd to follow."""
    largest, sums = -math.inf, [torch.tensor(-math.inf, dtype=torch.float64, device="cpu")]
    for block in blocks:
        z = quotient(block, tau)
        largest = max(largest, float(z.detach().max()))
        sums.append(row_logsumexp(z, 1.0, None))
    return Total(row_logsumexp(torch.stack([part.to(sums[-1].device) for part in sums]), 1.0, None), largest, 0.0)


def summed(pieces: Iterable[Tensor], tau: float, error: float) -> Total:
    """The total of pieces by the native kernel, which reads each once."""
    states = [states for piece in pieces if (states := native.logsumexp(piece.detach(), tau, None, wide=True)[1]) is not None]
    if not states:
        return Total(torch.tensor(-math.inf, dtype=torch.float64, device="cpu"), -math.inf, 0.0)
    highest, rest = torch.stack(states, 1)
    tops = quotient(highest, tau)
    return Total(row_logsumexp(tops + rest, 1.0, None), float(tops.max()), error)


@dataclass(frozen=True)
class MappedFile:
    """A file that is mapped into memory: entry i begins `start + i·step` bytes into it."""

    file: mmap.mmap
    start: int
    step: int

    def expect(self, first: np.ndarray, count: int) -> None:
        """Ask for the pages of entries that will be read: the disk brings many at a time in the time of a few."""
        if not hasattr(mmap, "MADV_WILLNEED"):  # Windows
            return
        begins = (self.start + first * self.step) // mmap.PAGESIZE * mmap.PAGESIZE
        ends = np.minimum(self.start + (first + count) * self.step, len(self.file))
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            self.file.madvise(mmap.MADV_WILLNEED, begin, end - begin)


def mapped_file(x: Any, entries: Tensor) -> MappedFile | None:
    """The file that an array lies in, if it lies in one and `entries` shares its memory."""
    base = x
    while isinstance(base, np.ndarray):
        base = base.base
    if not isinstance(base, mmap.mmap):
        return None
    start = entries.data_ptr() - np.frombuffer(base, np.uint8).ctypes.data
    inside = 0 <= start < len(base)
    return MappedFile(base, start, entries.stride(0) * entries.element_size()) if inside else None


def with_file(file: MappedFile | None, width: int, memory: Times) -> Times:
    """With what a file adds where it is not in memory yet; a draw is `width` scores."""
    if file is None:
        return memory
    pages = math.ceil(width * file.step / mmap.PAGESIZE)
    return Times(memory.score + FILE_BYTE * file.step, memory.draw + FILE_PAGE * pages)
