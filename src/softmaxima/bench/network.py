r"""What one step of many ranks takes, from what a message takes between two: the α–β model, and a simulation with stragglers.

    a message of m bytes from one rank to another takes α + βm seconds

    all-gather by a ring            R − 1 messages of m bytes, each begun when the one before has come
    all-gather by doubling          ⌈log₂ R⌉ messages, of m, 2m, 4m … bytes
    all-reduce by doubling          ⌈log₂ R⌉ messages of m bytes, one less than it takes of ranks that are no power of 2

A rank begins when its own work is done, which takes longer on some, and ends when it has what all have sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Times = np.ndarray  # seconds of each rank [R], since a step began


@dataclass(frozen=True)
class Network:
    """What joins ranks."""

    name: str
    alpha: float  # seconds that a message takes, however small
    beta: float  # seconds a byte


# Of what is sold: the latency of a message through a collective library, and the bandwidth that one rank has.
FABRICS = (Network("100 Gb/s Ethernet", 20e-6, 1 / 12.5e9), Network("NVLink, 200 GB/s", 4e-6, 1 / 200e9))


@dataclass(frozen=True)
class Scheme:
    """The messages of a step: collectives one after the other, each of so many bytes a row."""

    name: str
    collective: str
    bytes: tuple[float, ...]


def by_ring(ready: Times, size: float, network: Network) -> Times:
    """When each rank has what all gather: at each step what it has of one neighbour goes to the other."""
    done = ready
    for _ in range(len(ready) - 1):
        done = np.maximum(done, np.roll(done, 1)) + network.alpha + network.beta * size
    return done


def by_doubling(ready: Times, size: float, network: Network, *, grows: bool) -> Times:
    """The same where ranks a power of 2 apart exchange all that they have, or, unless it grows, its sum."""
    done, ranks = ready, len(ready)
    for k in range(math.ceil(math.log2(ranks)) if ranks > 1 else 0):
        sent = min(2**k, ranks - 2**k) if grows else 1
        done = np.maximum(done, np.roll(done, 2**k)) + network.alpha + network.beta * size * sent
    return done


def algorithm(collective: str, ranks: int, size: float, network: Network) -> tuple[Callable[[Times], Times], int]:
    """(when ranks that are ready at some times have the result, how many messages come one after the other): the faster way."""
    doubling = math.ceil(math.log2(ranks)) if ranks > 1 else 0
    ways: list[tuple[Callable[[Times], Times], int]] = [
        (lambda ready: by_doubling(ready, size, network, grows=collective == "all-gather"), doubling)
    ]
    if collective == "all-gather":
        ways.append((lambda ready: by_ring(ready, size, network), ranks - 1))
    return min(ways, key=lambda way: float(way[0](np.zeros(ranks)).max()))


def fitted(name: str, points: Sequence[tuple[int, int, float]]) -> Network:
    """α and β of all-gathers (ranks, bytes, seconds) by a ring, with the least sum of squared relative deviations.

    Neither is below 0.
    """
    ranks, sizes, seconds = (np.array(column, float) for column in zip(*points, strict=True))
    design = np.stack([(ranks - 1) / seconds, (ranks - 1) * sizes / seconds], 1)
    scale = design.max(0)
    alpha, beta = np.linalg.lstsq(design / scale, np.ones(len(seconds)), rcond=None)[0] / scale
    if min(alpha, beta) < 0:  # the other alone
        one = [np.linalg.lstsq(design[:, [i]], np.ones(len(seconds)), rcond=None)[0][0] for i in (0, 1)]
        alpha, beta = (one[0], 0.0) if beta < 0 else (0.0, one[1])
    return Network(name, float(alpha), float(beta))


def predicted(network: Network, ranks: int, size: float) -> float:
    """Seconds of an all-gather by a ring."""
    return float(by_ring(np.zeros(ranks), size, network).max())


@dataclass(frozen=True)
class Straggling:
    """How much longer the work of a rank takes: a lognormal factor, and now and then another."""

    spread: float = 0.05  # of the factor's logarithm
    odds: float = 1e-3  # of being late in a step
    factor: float = 3.0  # how much later

    def draw(self, work: float, ranks: int, rng: np.random.Generator) -> Times:
        """Seconds of the work of each rank."""
        late = np.where(rng.random(ranks) < self.odds, self.factor, 1.0)
        return work * late * rng.lognormal(0.0, self.spread, ranks)


@dataclass(frozen=True)
class Simulated:
    """Steps of so many ranks."""

    scheme: str
    network: str
    ranks: int
    rounds: int  # messages one after the other
    received: float  # bytes of a rank
    messages: float  # seconds of them, if all ranks are ready at once
    median: float  # seconds of a step
    late: float  # of one step in a hundred, at least
    waiting: float  # share of a step in which a rank waits for the others' work, on average


def simulate(
    scheme: Scheme, network: Network, ranks: int, rows: int, work: float, straggling: Straggling, *, steps: int = 300, seed: int = 0
) -> Simulated:
    """Steps in which each rank works so many seconds, more or less, and then sends."""
    rng = np.random.default_rng(seed)
    ways = [algorithm(scheme.collective, ranks, size * rows, network) for size in scheme.bytes]

    def step(ready: Times) -> Times:
        for collective, _ in ways:
            ready = collective(ready)
        return ready

    works = [straggling.draw(work, ranks, rng) for _ in range(steps)]
    whole = np.array([step(each).max() for each in works])
    waits = np.array([each.max() - each.mean() for each in works])
    rounds = sum(count for _, count in ways)
    copies = ranks - 1 if scheme.collective == "all-gather" else rounds / len(ways)
    return Simulated(
        scheme.name, network.name, ranks, rounds, sum(scheme.bytes) * rows * copies, float(step(np.zeros(ranks)).max()),
        float(np.median(whole)), float(np.quantile(whole, 0.99)), float((waits / whole).mean()),
    )  # fmt: skip
