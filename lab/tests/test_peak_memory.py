"""The memory of a call, in a process of its own: what is measured, and what is said where that process ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial

import pytest

from softmaxima.base.numbers import InputError
from softmaxima_lab.bench.memory import peak_memory

SIZE = 2**26


def takes(size: int) -> Callable[[], object]:
    return lambda: b"1" * size


def is_killed() -> Callable[[], object]:
    """As by a system that has no memory left."""
    return partial(os.kill, os.getpid(), signal.SIGKILL)


def fails() -> Callable[[], object]:
    return lambda: 1 // 0


def test_it_is_what_the_call_takes() -> None:
    assert peak_memory(takes, SIZE) == pytest.approx(SIZE, rel=0.05)  # the system counts some pages later


def test_a_process_that_is_killed_is_an_error_and_no_endless_wait() -> None:
    with pytest.raises(InputError, match="was ended before it was done, as where no memory is left; free some, or measure less"):
        peak_memory(is_killed)


def test_what_the_call_raises_is_raised_here() -> None:
    with pytest.raises(ZeroDivisionError):
        peak_memory(fails)
