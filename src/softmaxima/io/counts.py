"""Scores of 8 or 16 bits by how often each of their values occurs: of any number there are at most 65,536.

Counts are exact in any order, and their sum, effective size and bounds take a pass over the values and none over the scores.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from softmaxima.io.state import LogSumExpState, of_counts
from softmaxima.kernels import interface

EIGHT_BITS = ("bool", "int8", "uint8")
COUNTED = (*EIGHT_BITS, "int16", "uint16", "float16", "bfloat16")
CODES = 2**16
MOST = 2**31  # that a counter of 32 bits is asked to hold


@dataclass(frozen=True)
class Codes:
    """What codes stand for: scale · (q − zero_point), q the number that a code is of this dtype."""

    dtype: str
    scale: float = 1.0
    zero_point: float = 0.0

    def counted(self, blocks: Iterable[np.ndarray], seconds: float = math.inf) -> Iterator[np.ndarray]:
        """How often each code occurs, int64, in blocks that come within so many seconds, and then in those that follow."""
        counts, table = np.zeros(self._number, np.int64), np.zeros((CODES, 2), np.uint32)
        seen, told = 0, time.monotonic()
        for block in blocks:
            codes = np.ascontiguousarray(block, block.dtype.newbyteorder("=")).reshape(-1)
            for start in range(0, len(codes), MOST):
                part = codes[start : start + MOST]
                if seen + len(part) > MOST:
                    counts += self._taken(table)
                    seen = 0
                seen += len(part)
                self._count(part.view(f"u{part.itemsize}"), counts, table)
            if time.monotonic() > told + seconds:
                yield counts + self._taken(table)
                counts[:], seen, told = 0, 0, time.monotonic()
        yield counts + self._taken(table)

    def state(self, counts: np.ndarray, tau: float, squares: bool) -> LogSumExpState:
        """The sum of all scores that were counted."""
        return of_counts(*self.occurring(counts), tau, squares)

    def occurring(self, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(the scores that occur, in float64, how often each does)."""
        occur = np.flatnonzero(counts)
        kind = np.uint16 if self._number == CODES else np.uint8
        q = occur.astype(kind)
        numbers = (q.astype(np.uint32) << 16).view(np.float32) if self.dtype == "bfloat16" else q.view(self.dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            return self.scale * (numbers.astype(np.float64) - self.zero_point), counts[occur]

    @property
    def _number(self) -> int:
        return 256 if self.dtype in EIGHT_BITS else CODES

    def _taken(self, table: np.ndarray) -> np.ndarray:
        """What the table holds, which it then does not."""
        held = table.sum(1, dtype=np.int64)
        table[:] = 0
        if self._number == CODES:
            return held
        pairs = held.reshape(256, 256)
        return pairs.sum(0) + pairs.sum(1)

    def _count(self, codes: np.ndarray, counts: np.ndarray, table: np.ndarray) -> None:
        """Of 8 bits two at a time, which takes half as long; what is left over goes to the counts."""
        if self._number != CODES:
            if len(codes) % 2:
                counts[codes[-1]] += 1
            codes = codes[: len(codes) // 2 * 2].view(np.uint16)
        if interface.AVAILABLE:
            interface.count_codes(codes, table)
        else:
            table[:, 0] += np.bincount(codes, minlength=CODES).astype(np.uint32)
