"""How what is compared trains side by side, so that a machine that is busy for a while slows all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")


def rotated(items: Sequence[T], turn: int) -> list[T]:
    """All of them, another one first in each turn.

    >>> rotated("abc", 1)
    ['b', 'c', 'a']
    """
    begin = turn % len(items)
    return [*items[begin:], *items[:begin]]


@contextmanager
def one_thread() -> Iterator[None]:
    """Batches are too small for several threads, and sums over several threads could differ between machines."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
