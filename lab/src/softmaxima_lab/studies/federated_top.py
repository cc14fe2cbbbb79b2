"""How far logsumexp is known of what clients send: their k largest scores, or their sum; and with noise of either side."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from softmaxima.federated import merge, private_logsumexp, summarise

CLIENTS, EACH, SEEDS = 10, 1000, 20
FLOOR = -20.0
LARGEST = 1, 10, 100, 300, 1000
NOISE_EPSILONS = 0.1, 1.0
RELEASES = 20


def _same(rng: np.random.Generator, scale: float) -> np.ndarray:
    return rng.normal(0, scale, (CLIENTS, EACH))


SOURCES: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "normal, σ = 1": lambda rng: _same(rng, 1.0),
    "normal, σ = 3": lambda rng: _same(rng, 3.0),
    "clients differ": lambda rng: rng.normal(0, 3, (CLIENTS, 1)) + _same(rng, 1.0),
    "exp(x) of Pareto, α = 1": lambda rng: rng.exponential(1.0, (CLIENTS, EACH)),
}


@dataclass(frozen=True)
class Known:
    """Means over seeds: the width of the interval, how far off its middle and the sum of what was sent are, the share that held."""

    source: str
    k: int
    numbers: int
    width: float
    off: float
    off_of_sent: float
    held: float


@dataclass(frozen=True)
class Noise:
    """The mean distance of a private sum from the exact one."""

    by: str
    epsilon: float
    off: float
    held: float


@dataclass(frozen=True)
class Study:
    """All that was found."""

    known: Sequence[Known]
    noises: Sequence[Noise]


def run(starting: Callable[[str], None] = lambda what: None) -> list[Known]:
    """k = 0 stands for the sum of each client, (M, m, r)."""
    found = []
    for name, draw in SOURCES.items():
        starting(name)
        for k in (0, *LARGEST):
            lines = []
            for seed in range(SEEDS):
                rows = draw(np.random.default_rng(seed))
                exact = _exact(rows)
                summaries = [summarise(row, k, whole=k == 0, floor=FLOOR) for row in rows]
                merged = merge(summaries)
                estimate = merged.estimate
                sent = exact if k == 0 else _exact(np.concatenate([each.top for each in summaries]))
                held = estimate.lower <= exact <= estimate.upper
                lines.append((merged.numbers, estimate.upper - estimate.lower, abs(estimate.value - exact), exact - sent, held))
            numbers, *means = np.mean(lines, 0).tolist()
            found.append(Known(name, k, round(numbers), *means))
    return found


def _exact(rows: np.ndarray) -> float:
    """log Σ exp, off by an ulp or two: less than the rounding that every interval allows for."""
    top = float(rows.max())
    return top + math.log(math.fsum(math.exp(x - top) for x in rows.ravel().tolist()))


def noises() -> list[Noise]:
    """Scores in [0, 1], each a record."""
    from softmaxima.privacy import Entries

    drawn = np.random.default_rng(0).uniform(0, 1, (CLIENTS, EACH))
    rows, exact, found = list(drawn), _exact(drawn), []
    for by in ("client", "server"):
        for epsilon in NOISE_EPSILONS:
            told = [private_logsumexp(rows, Entries((0, 1)), epsilon=epsilon, noise=by) for _ in range(RELEASES)]
            off = float(np.mean([abs(one.value - exact) for one in told]))
            found.append(Noise(by, epsilon, off, float(np.mean([one.lower <= exact <= one.upper for one in told]))))
    return found


def verdict(found: Sequence[Known]) -> str:
    """What holds of the claim that clients need to send their k largest scores alone."""
    parts = []
    for source in dict.fromkeys(each.source for each in found):
        enough = [each.k for each in found if each.source == source and each.k and each.width < 0.1]
        parts.append(f"{source}: k = {min(enough)} of {EACH}" if enough else f"{source}: none")
    held = "every interval held" if all(each.held == 1 for each in found) else "not every interval held"
    return f"The least k of those tried with an interval narrower than 0.1 nats, by source: {'; '.join(parts)}; {held}"
