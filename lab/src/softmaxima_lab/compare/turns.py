"""How what is compared trains side by side, so that a machine that is busy for a while slows all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

import torch

T = TypeVar("T")

TURN = 5  # steps of one before it is the next one's turn
WARMING = 0.1  # of the steps, in which the rate rises; then it falls to 0
BETAS = (0.9, 0.99)  # of Adam


def rate(most: float, number: int, steps: int) -> float:
    """Of learning at that step, the first of which is 0.

    >>> [rate(1.0, number, 10) for number in (0, 9)]
    [1.0, 0.1]
    """
    done = (number + 1) / steps
    return most * min(done / WARMING, (1 - done) / (1 - WARMING) + 1 / steps)


def rotated(items: Sequence[T], turn: int) -> list[T]:
    """All of them, another one first in each turn.

    >>> rotated("abc", 1)
    ['b', 'c', 'a']
    """
    begin = turn % len(items)
    return [*items[begin:], *items[:begin]]


class Training(Protocol):
    """Of one of what is compared."""

    def advance(self, steps: int, /) -> int: ...


def in_turns(trainings: Sequence[Training], steps: int, advanced: Callable[[int], None]) -> None:
    """Some steps of each in turn, to the end of all."""
    for turn, first in enumerate(range(0, steps, TURN)):
        for training in rotated(trainings, turn):
            advanced(training.advance(min(TURN, steps - first)))


@contextmanager
def one_thread() -> Iterator[None]:
    """Batches are too small for several threads, and sums over several threads could differ between machines."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
