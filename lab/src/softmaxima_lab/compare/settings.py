"""For how long comparisons train. Without torch, so that what is wrong with an option is told at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from softmaxima.base.numbers import InputError


@dataclass(frozen=True)
class Settings:
    """Of trainings with several seeds."""

    seeds: int = 5
    steps: int = 500
    seed: int = 0  # the first
    quick: bool = False

    def __post_init__(self) -> None:
        check_counts((("--seeds", self.seeds, 1), ("--steps", self.steps, 1)))
        check_seed(self.seed)


def check_counts(counts: Iterable[tuple[str, int, int]]) -> None:
    """Raise `InputError` for an option that is below its least value."""
    for option, value, least in counts:
        if value < least:
            raise InputError(f"{option} must be at least {least}, got {value}")


def check_seed(seed: int) -> None:
    check_counts((("--seed", seed, 0),))
    if seed >= 2**32:
        raise InputError(f"--seed must be below 2**32, got {seed}")
