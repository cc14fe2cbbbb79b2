"""lse_bounds: by how much bounds that look at the scores narrow `max ≤ LSE ≤ max + log n`, on sparse, ordinary and real rows.

The claim (seed 002, open question on adaptive bounds): on sparse data adaptive bounds narrow log n by 50 to 80 %. The narrowing of
a row is 1 − width / log n; the median over rows counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

import softmaxima as sm
from softmaxima.experiments.tables import read_table

CLAIMED = (0.5, 0.8)
ROWS = 200
SIZES = (100, 1000, 10_000)
BOUNDS = {"gap": sm.gap_bounds, "adaptive": sm.adaptive_bounds, "histogram": sm.histogram_bounds}


@dataclass(frozen=True)
class Narrowing:
    """What a bound made of the rows of one kind."""

    rows: str
    n: int
    bound: str
    narrowing: float  # the median over rows of 1 − width / log n
    worst: float  # the least


@dataclass(frozen=True)
class Result:
    """Every narrowing, and whether adaptive bounds narrow sparse rows as claimed."""

    narrowings: tuple[Narrowing, ...]

    def of(self, rows: str, bound: str) -> list[Narrowing]:
        return [each for each in self.narrowings if each.rows == rows and each.bound == bound]

    @property
    def verdict(self) -> str:
        """What of the claim holds: its range, more, or less, over all sizes of sparse rows."""
        found = [each.narrowing for each in self.of("sparse", "adaptive")]
        if min(found) < CLAIMED[0]:
            return "refuted"
        return "holds" if max(found) <= CLAIMED[1] else "holds, and more"


def subjects(seed: int = 0) -> Iterator[tuple[str, Tensor]]:
    """(kind, scores [rows, n]) of every kind and size."""
    generator = torch.Generator().manual_seed(seed)

    def normal(n: int) -> Tensor:
        return torch.randn(ROWS, n, generator=generator, dtype=torch.float64)

    for n in SIZES:
        # One score in a hundred, or one at least, stands out by the size of a usual logit; the rest is noise around −10.
        sparse, few = normal(n) - 10.0, max(1, n // 100)
        sparse[:, :few] += 12.0 + 2.0 * normal(few)
        yield "sparse", sparse
        yield "flat", 0.1 * normal(n)
        yield "normal", 3.0 * normal(n)
    pixels = torch.from_numpy(read_table().features)
    unit = (pixels - pixels.mean(0)) / pixels.std(0).clamp_min(1e-9)
    yield "real: attention of digits", unit[:ROWS] @ unit.T / math.sqrt(unit.shape[1])


def run(seed: int = 0) -> Result:
    """Measures every bound on every kind of rows."""
    found = []
    for kind, x in subjects(seed):
        n = x.shape[-1]
        for bound, function in BOUNDS.items():
            narrowing = 1 - function(x).width / math.log(n)
            found.append(Narrowing(kind, n, bound, float(narrowing.median()), float(narrowing.min())))
    return Result(tuple(found))
