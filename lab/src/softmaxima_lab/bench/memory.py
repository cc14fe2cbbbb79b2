"""The memory that a call takes, in a process of its own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from softmaxima.base.numbers import InputError


def peak_memory(prepare: Callable[..., Callable[[], Any]], *arguments: Any) -> float:
    """Bytes at the peak of a call, less those before it; `prepare(*arguments)` makes the call, in a new process.

    Both must be picklable. `prepare` should have made the call before, on a little: what is loaded at the first call counts.

    Raises:
        InputError: where that process is ended before it is done, as a system does that has no memory left.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(_peak, prepare, arguments).result()
        except BrokenProcessPool:
            ended = "the process that measures memory was ended before it was done, as where no memory is left"
            raise InputError(f"{ended}; free some, or measure less") from None


def _peak(prepare: Callable[..., Callable[[], Any]], arguments: tuple[Any, ...]) -> float:
    call = prepare(*arguments)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is from now on
    before = _resident("VmRSS")
    call()
    return _resident("VmHWM") - before


def _resident(what: str) -> float:
    """Bytes of this process in memory, now (VmRSS) or at the most (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024.0 * next(int(line.split()[1]) for line in lines if line.startswith(what))
