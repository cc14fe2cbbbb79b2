"""What secret sharing costs: time, rounds and bytes of logsumexp against the number of scores, of parties and of bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from softmaxima.secure import evaluate

CASES = ((3, 3, 24), (3, 12, 24), (3, 48, 24), (3, 96, 24), (3, 12, 16), (3, 12, 32), (5, 10, 24))  # parties, n, bits
BOUNDS = (-8.0, 8.0)
TURNS = 3
LATENCY = 0.1


@dataclass(frozen=True)
class Evaluation:
    """Of n scores: seconds, bytes of all parties, rounds, and how far off the value was and might have been at most."""

    parties: int
    n: int
    bits: int
    seconds: float
    bytes: int
    rounds: int
    off: float
    stated: float


def run(starting: Callable[[str], None] = lambda what: None) -> list[Evaluation]:
    """Each case in some turns, whose bytes are nearly the same, and once more with a latency, for rounds as a network has them."""
    found, rng = [], np.random.default_rng(0)
    for parties, n, bits in CASES:
        starting(f"{parties} parties, {n} scores, {bits} bits")
        x = rng.normal(size=n).clip(*BOUNDS)
        rows = np.array_split(x, parties)
        turns = [evaluate("logsumexp", rows, bounds=BOUNDS, bits=bits, timeout=300) for _ in range(TURNS)]
        late = evaluate("logsumexp", rows, bounds=BOUNDS, bits=bits, timeout=300, latency=LATENCY)
        exact = float(np.logaddexp.reduce(x))
        seconds = median(turn.seconds for turn in turns)
        off = max(abs(turn.value - exact) for turn in (*turns, late))
        found.append(Evaluation(parties, n, bits, seconds, turns[0].bytes, late.rounds, off, turns[0].error))
    return found


def verdict(found: Sequence[Evaluation]) -> str:
    """What holds of the claim that logsumexp can be computed by secret sharing."""
    right = all(each.off <= each.stated for each in found)
    three = [each for each in found if each.parties == 3 and each.bits == 24]
    small, large = min(three, key=lambda each: each.n), max(three, key=lambda each: each.n)
    return (
        f"It {'works' if right else 'is further off than stated'}: with three parties and 24 bits {small.n} scores take "
        f"{small.seconds:.1f} s, {small.rounds} rounds and {small.bytes / 1e6:.2f} MB, {large.n} scores {large.seconds:.1f} s, "
        f"{large.rounds} rounds and {large.bytes / 1e6:.1f} MB"
    )
