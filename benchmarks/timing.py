"""How long calls take on a GPU: by events around them, and by replaying a CUDA graph of them.

A round is a call on each of several buffers, together several times the cache, whose results are kept until the round is over, so
that neither scores nor results are found in the cache. Rounds of all calls take turns, in bursts that fill the device's queue; the
first round of a burst, which waits for its launch, does not count.

    seconds    the median over rounds, divided by the calls of a round
    events     what an eager program sees: of small shapes the launches, not the kernel
    graph      the kernels without their launches; where something cannot be captured, there is none
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import torch

from benchmarks.workers import describe

BURST = 4  # rounds of one call in its turn, the first of which does not count
BURSTS = 3  # of each call at least
SLOW = 0.1  # a round of more seconds than this is timed only twice
COPIED = 1 << 30  # bytes read and as many written by the copy that all is held against
QUICK_COPIED = 1 << 22
COPY_SECONDS = 0.2

Run = Callable[[], Any]


@dataclass(frozen=True)
class Timing:
    """The median of so many rounds, of one call."""

    seconds: float
    runs: int


@dataclass(frozen=True)
class Times:
    """Of one call. Without a graph, `capture` says why."""

    events: Timing
    graph: Timing | None = None
    capture: str = ""

    @property
    def seconds(self) -> float:
        return (self.graph or self.events).seconds


@dataclass(frozen=True)
class Measured:
    """The times of calls, why there are none, and which of them turned out not to be captured, and why."""

    times: dict[str, Times]
    failed: dict[str, str]
    not_captured: dict[str, str]


def measure(calls: Mapping[str, Sequence[Run]], device: str, seconds: float, without_graph: Mapping[str, str]) -> Measured:
    """The times of each, from its calls on several buffers, in so many seconds for each way of timing it.

    `without_graph` says of which calls it is known that they cannot be captured, and why.
    """
    rounds: dict[tuple[str, str], Run] = {}
    failed: dict[str, str] = {}
    captures = dict(without_graph)
    for name, its_calls in calls.items():
        eager = _round(its_calls)
        try:
            eager()
            rounds[name, "events"] = eager
            if name not in captures and device != "cpu":
                rounds[name, "graph"] = _captured(eager)
        except CaptureError as error:
            captures[name] = str(error)
        except Exception as error:
            _synchronise(device)  # raises where the device is lost
            failed[name] = describe(error)
    timings = {
        key: Timing(median(times) / len(calls[key[0]]), len(times)) for key, times in take_turns(rounds, device, seconds).items()
    }
    times = {
        name: Times(timings[name, "events"], timings.get((name, "graph")), captures.get(name, ""))
        for name in calls
        if (name, "events") in timings
    }
    return Measured(times, failed, {name: why for name, why in captures.items() if name not in without_graph})


class CaptureError(Exception):
    """A call that cannot be captured."""


def _round(calls: Sequence[Run]) -> Run:
    return lambda: [call() for call in calls]


def _captured(run: Run) -> Run:
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            run()
    except Exception as error:
        torch.cuda.set_stream(torch.cuda.default_stream())  # a capture that fails leaves its own behind
        _synchronise("cuda")
        raise CaptureError(describe(error)) from error
    graph.replay()
    torch.cuda.synchronize()
    return graph.replay


def take_turns(rounds: Mapping[Any, Run], device: str, seconds: float) -> dict[Any, list[float]]:
    """The seconds of the rounds of each, which run in bursts by turns until so many seconds for each have passed."""
    slow = {name: run for name, run in rounds.items() if burst(run, device, 1)[0] > SLOW}
    times = {name: burst(run, device, 2) if name in slow else [] for name, run in rounds.items()}
    fast = {name: run for name, run in rounds.items() if name not in slow}
    ends, turns = time.perf_counter() + seconds * len(fast), 0
    while fast and (turns < BURSTS or time.perf_counter() < ends):
        turns += 1
        for name, run in fast.items():
            times[name] += burst(run, device, BURST)[1:]
    return times


def burst(run: Run, device: str, count: int) -> list[float]:
    """The seconds of so many rounds, queued one behind the other."""
    if device == "cpu":
        marks = [time.perf_counter()]
        for _ in range(count):
            run()
            marks.append(time.perf_counter())
        return [after - before for before, after in pairwise(marks)]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    for event in events[1:]:
        run()
        event.record()
    torch.cuda.synchronize()
    return [before.elapsed_time(after) / 1e3 for before, after in pairwise(events)]


def _synchronise(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def copy_bandwidth(asked: tuple[str, bool]) -> float:
    """Bytes a second of `out.copy_(x)` on (a device, with few bytes), what is read and what is written counted."""
    device, quick = asked
    size = QUICK_COPIED if quick else COPIED
    x = torch.randn(size // 4, device=device)
    out = torch.empty_like(x)
    times = take_turns({"copy": lambda: out.copy_(x)}, device, COPY_SECONDS)["copy"]
    return 2 * size / median(times)
