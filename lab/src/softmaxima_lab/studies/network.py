r"""What one step of many ranks takes, from what a message takes between two: the α–β model, and ranks some of which are late.

    a message of m bytes from one rank to another takes α + βm seconds

    all-gather by a ring            R − 1 rounds of messages of m bytes
    all-gather by Bruck's doubling  ⌈log₂ R⌉ rounds, of m, 2m, 4m … bytes, and of what is left
    all-reduce by doubling          log₂ R rounds of m bytes; of a number that is no power of 2, ⌊log₂ R⌋ + 2: those beyond
                                    the power first give theirs to others, and get the sum of all from these at last
                                    (Thakur, Rabenseifner & Gropp 2005, doi:10.1177/1094342005051521)

A collective is over when the last rank has begun it and all rounds are done, so that

    a step = work · max_r F_r + the time of its messages        P(max_r F_r ≤ x) = P(F ≤ x)^R

of the independent factors F_r by which the ranks take longer. Nothing is drawn: quantiles and means are those of this law.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Network:
    """What joins ranks."""

    name: str
    alpha: float  # seconds that a message takes, however small
    beta: float  # seconds a byte


# Assumed, not measured: a latency through a collective library, and the bandwidth that one rank has.
FABRICS = (Network("100 Gb/s Ethernet", 20e-6, 1 / 12.5e9), Network("NVLink, 200 GB/s", 4e-6, 1 / 200e9))


@dataclass(frozen=True)
class Scheme:
    """The messages of a step: collectives one after the other, each of so many bytes a row."""

    name: str
    collective: str
    bytes: tuple[float, ...]


@dataclass(frozen=True)
class Collective:
    """What it takes of ranks that begin at once."""

    rounds: int  # messages one after the other
    received: float  # bytes, of the rank that receives the most
    seconds: float


def by_ring(ranks: int, size: float, network: Network) -> Collective:
    """An all-gather in which at each round what a rank has of one neighbour goes to the other."""
    rounds = ranks - 1
    return Collective(rounds, rounds * size, rounds * (network.alpha + network.beta * size))


def by_bruck(ranks: int, size: float, network: Network) -> Collective:
    """An all-gather in which at round k each rank gives what it has to the one 2ᵏ before it."""
    rounds = (ranks - 1).bit_length()
    return Collective(rounds, (ranks - 1) * size, rounds * network.alpha + (ranks - 1) * network.beta * size)


def by_doubling(ranks: int, size: float, network: Network) -> Collective:
    """An all-reduce in which ranks 2ᵏ apart exchange their sums."""
    whole = ranks.bit_length() - 1
    beyond = ranks > 2**whole
    rounds = whole + 2 * beyond
    return Collective(rounds, (whole + beyond) * size, rounds * (network.alpha + network.beta * size))


def collective(kind: str, ranks: int, size: float, network: Network) -> Collective:
    """The faster way to do it."""
    ways = (by_bruck, by_ring) if kind == "all-gather" else (by_doubling,)
    return min((way(ranks, size, network) for way in ways), key=lambda found: found.seconds)


def messages(scheme: Scheme, network: Network, ranks: int, rows: int) -> Collective:
    """All collectives of a step."""
    found = [collective(scheme.collective, ranks, size * rows, network) for size in scheme.bytes]
    return Collective(*(sum(column) for column in zip(*((f.rounds, f.received, f.seconds) for f in found), strict=True)))


def first_faster(one: Scheme, other: Scheme, network: Network, rows: int, most: int = 1024) -> tuple[int, int]:
    """(up to how many ranks one takes no longer than the other, from how many on it takes longer), of 2 to `most`.

    The first is 1 where it takes longer of two ranks, the second `most` + 1 where it takes no longer of `most`.
    """
    slower = [
        messages(one, network, ranks, rows).seconds > messages(other, network, ranks, rows).seconds for ranks in range(2, most + 1)
    ]
    upto = next((i + 1 for i, each in enumerate(slower) if each), most)
    after = next((most + 1 - i for i, each in enumerate(reversed(slower)) if not each), 2)
    return upto, after


def fitted(name: str, points: Sequence[tuple[int, int, float]]) -> Network:
    """α and β of all-gathers (ranks, bytes, seconds) by a ring, with the least sum of squared logarithms of measured / predicted.

    That is least at one α for each ratio β/α; the ratio is looked for among 0 and 10⁻¹⁵ to 10³ a byte, in steps of 2 %.
    """
    ranks, sizes, seconds = (np.array(column, float) for column in zip(*points, strict=True))
    ratios = np.concatenate(([0.0], np.logspace(-15, 3, 2001)))[:, None]
    logs = np.log(seconds / (ranks - 1)) - np.log1p(ratios * sizes)  # [ratios, points]
    best = logs.var(1).argmin()
    alpha = float(np.exp(logs[best].mean()))
    return Network(name, alpha, alpha * float(ratios[best, 0]))


@dataclass(frozen=True)
class Straggling:
    """How much longer the work of a rank takes: a lognormal factor, and now and then another."""

    spread: float = 0.05  # of the factor's logarithm
    odds: float = 1e-3  # of being late in a step
    factor: float = 3.0  # how much later

    def odds_beyond(self, logs: np.ndarray) -> np.ndarray:
        """P(F > eʸ) of one rank."""
        beyond = np.vectorize(lambda y: math.erfc(y / self.spread / math.sqrt(2)) / 2)
        return (1 - self.odds) * beyond(logs) + self.odds * beyond(logs - math.log(self.factor))

    @property
    def mean(self) -> float:
        """Of the factor of one rank."""
        return math.exp(self.spread**2 / 2) * (1 + self.odds * (self.factor - 1))

    def of_slowest(self, ranks: int) -> tuple[float, float, float]:
        """(median, the least of one step in a hundred, mean) of the largest factor of so many ranks."""
        far = 8 * self.spread
        logs = np.linspace(-far, math.log(self.factor) + far, 4001)
        within = np.exp(ranks * np.log1p(-np.minimum(self.odds_beyond(logs), 1 - 1e-16)))
        median, late = (float(np.exp(logs[np.searchsorted(within, part)])) for part in (0.5, 0.99))
        mean = np.exp(logs[0]) + (np.diff(np.exp(logs)) * (1 - (within[1:] + within[:-1]) / 2)).sum()  # ∫ P(max F > x) dx
        return median, late, float(mean)


@dataclass(frozen=True)
class Step:
    """A step of so many ranks."""

    scheme: str
    network: str
    ranks: int
    messages: Collective
    median: float  # seconds
    late: float  # of one step in a hundred, at least
    waiting: float  # share of all steps' time in which a rank waits for the others' work


def step(scheme: Scheme, network: Network, ranks: int, rows: int, work: float, straggling: Straggling) -> Step:
    """One in which each rank works so many seconds, more or less, and then sends."""
    sent = messages(scheme, network, ranks, rows)
    median, late, mean = (work * factor + sent.seconds for factor in straggling.of_slowest(ranks))
    waiting = (mean - sent.seconds - work * straggling.mean) / mean
    return Step(scheme.name, network.name, ranks, sent, median, late, waiting)
