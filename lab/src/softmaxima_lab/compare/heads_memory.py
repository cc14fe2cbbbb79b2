"""The memory of a training step of each head, in processes of their own."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import resource_tracker
from pathlib import Path

import torch
from torch import Tensor

from softmaxima_lab.bench.memory import peak_memory
from softmaxima_lab.compare.heads_bodies import CONTEXT, HIDDEN, LastWords
from softmaxima_lab.compare.heads_layers import layer
from softmaxima_lab.compare.heads_plan import Head

AT_ONCE = 2  # processes
LITTLE = 8  # rows of the step before, in which everything is loaded


def peaks(heads: Sequence[Head], counts: Tensor, rows: int, advanced: Callable[[], None] = lambda: None) -> dict[str, float]:
    """Bytes at the peak of a step beyond those before it, of each head; NaN where the system does not tell."""
    if not Path("/proc/self/clear_refs").exists():
        return {head.name: math.nan for head in heads}
    found = {}
    resource_tracker.ensure_running()  # the thread that starts it heeds Ctrl-C again, and it is to be none of the pool's
    pool = ThreadPoolExecutor(AT_ONCE, initializer=_deaf)
    try:
        for head, bytes in zip(heads, pool.map(lambda head: peak_memory(training_step, head, counts, rows), heads), strict=True):
            found[head.name] = bytes
            advanced()
    finally:
        pool.shutdown(cancel_futures=True)
    return found


def _deaf() -> None:
    """The processes that this thread starts leave Ctrl-C to the one that waits for them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def training_step(head: Head, counts: Tensor, rows: int) -> Callable[[], None]:
    """A step on so many words as frequent as those, of a network with that head that has made a little one before."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    body, last = LastWords(len(counts)), layer(head, HIDDEN, counts, 0)
    parameters = [*body.parameters(), *last.parameters()]
    optimizer = torch.optim.Adam(parameters, fused=True)
    windows = torch.multinomial(counts, rows * (CONTEXT + 1), replacement=True).reshape(rows, CONTEXT + 1)

    def step(count: int) -> None:
        last(body(windows[:count, :-1]), windows[:count, -1]).backward()
        optimizer.step()
        optimizer.zero_grad()

    for parameter in parameters:  # so that the optimiser has made its state of all
        parameter.grad = torch.zeros_like(parameter)
    step(LITTLE)
    return lambda: step(rows)
