"""lse_bounds: by how much bounds that look at the scores narrow `max ≤ LSE ≤ max + log n`, on sparse, ordinary and real rows;
every bound's interval on one row of each kind; and what leaving small terms out saves there.

The claim, which is made without a proof: on sparse data adaptive bounds narrow log n by 50 to 80 %. The narrowing of
a row is 1 − width / log n; the median over rows counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

import softmaxima as sm
from softmaxima.base.numbers import InputError
from softmaxima_lab.bench.clock import take_turns
from softmaxima_lab.tables.tables import read_table

CLAIMED = (0.5, 0.8)
ROWS = 200
SIZES = (100, 1000, 10_000)
SHOWN = 1000  # scores of a row whose intervals are shown, where a kind has this size
STEP = 0.1  # standard deviation of the change between x and the neighbour whose LSE, or softmax, is known
EPS = (1e-3, 1e-6, 1e-9)
SECONDS = 0.15  # to time each way of a row
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
    yield from real()


def real() -> Iterator[tuple[str, Tensor]]:
    """The attention scores ⟨x_i, x_j⟩/√d of handwritten digits, standardised."""
    pixels = torch.from_numpy(read_table().features)
    unit = (pixels - pixels.mean(0)) / pixels.std(0).clamp_min(1e-9)
    yield "real: attention of digits", unit[:ROWS] @ unit.T / math.sqrt(unit.shape[1])


def run(seed: int = 0) -> Result:
    """Measures every bound on every kind of rows."""
    found = []
    for kind, x in subjects(seed):
        n, exact = x.shape[-1], sm.logsumexp(x)
        for bound, function in BOUNDS.items():
            interval = function(x)
            check_holds(f"{bound} bounds of {kind} rows of {n}", interval, exact)
            narrowing = 1 - interval.width / math.log(n)
            found.append(Narrowing(kind, n, bound, float(narrowing.median()), float(narrowing.min())))
    return Result(tuple(found))


def check_holds(what: str, interval: sm.lse.Interval, exact: Tensor) -> None:
    """Raise InputError for an interval that does not hold the truth, which is within a unit in the last place of `exact`."""
    above, below = (exact.nextafter(torch.full_like(exact, end)) for end in (math.inf, -math.inf))
    if bool((interval.lower > above).any() or (interval.upper < below).any()):
        raise InputError(f"{what}: an interval does not hold the exact logsumexp; nothing was written")


# Every bound on one row -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Placed:
    """The interval of a bound on a row, less the LSE of the row, in nats."""

    rows: str
    n: int
    bound: str
    lower: float
    upper: float


def _every_bound() -> dict[str, Callable[[Tensor, Tensor], sm.lse.Interval]]:
    """name → f(x, y) with a neighbour y = x + noise."""
    return {
        "basic": lambda x, y: sm.basic_bounds(x),
        "mean": lambda x, y: sm.mean_bounds(x),
        "gap, k = 8": lambda x, y: sm.gap_bounds(x),
        "adaptive": lambda x, y: sm.adaptive_bounds(x),
        "histogram, 0.1 nats": lambda x, y: sm.histogram_bounds(x),
        "Rényi 1, softmax(y)": lambda x, y: sm.renyi_bounds(x, sm.softmax(y)),
        "Rényi 2, softmax(y)": lambda x, y: sm.renyi_bounds(x, sm.softmax(y), order=2.0),
        "Lipschitz from y": lambda x, y: sm.lipschitz_bounds(x, y),
        "sparsified, ε = 10⁻³": lambda x, y: sm.sparsified_logsumexp(x, eps=1e-3).interval,
        "bounds: first five": lambda x, y: sm.bounds(x),
    }


def place(seed: int = 0) -> list[Placed]:
    """Every bound on the first row of every kind of SHOWN scores, and on a real one."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for kind, rows in subjects(seed):
        x, n = rows[0], rows.shape[-1]
        if n != SHOWN and not kind.startswith("real"):
            continue
        y = x + STEP * torch.randn(n, generator=generator, dtype=torch.float64)
        exact = sm.logsumexp(x, precision="compensated")
        for bound, function in _every_bound().items():
            interval = function(x, y)
            check_holds(f"{bound} of a {kind} row of {n}", interval, exact)
            found.append(Placed(kind, n, bound, float(interval.lower - exact), float(interval.upper - exact)))
    return found


# What leaving terms out saves -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sparsity:
    """sparsified_logsumexp on the rows of one kind: means over rows, and the median time of logsumexp divided by its own."""

    rows: str
    n: int
    eps: float
    evaluated: float
    width: float
    speed: float


def sparsify(seed: int = 0, seconds: float = SECONDS) -> list[Sparsity]:
    """The share of the exponentials taken, the certified error, and the speed beside logsumexp, on every kind of rows."""
    found = []
    for kind, x in subjects(seed):
        for eps in EPS:
            sums = sm.sparsified_logsumexp(x, eps=eps)
            calls = {"all": lambda x=x: sm.logsumexp(x), "sparsified": lambda x=x, eps=eps: sm.sparsified_logsumexp(x, eps=eps)}
            turns = take_turns(calls, seconds)
            speed = median(turns["all"].values()) / median(turns["sparsified"].values())
            width = float(sums.interval.width.mean())
            found.append(Sparsity(kind, x.shape[-1], eps, float(sums.evaluated.mean()), width, speed))
    return found


@dataclass(frozen=True)
class Study:
    """All that was found."""

    narrowings: tuple[Narrowing, ...]
    placed: Sequence[Placed]
    sparsities: Sequence[Sparsity]
