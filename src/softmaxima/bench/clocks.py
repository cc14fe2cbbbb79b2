"""How long calls take: on the CPU by a clock around them, on a GPU by events around them and by replaying a CUDA graph of them.

A round is a call on each of several problems; on a GPU these are together several times its cache, and their results are kept until
the round is over, so that neither scores nor results are found there. Rounds of all calls take turns, A B A B …, so that a machine
that is busy for a while slows all of them. A turn is a burst of rounds, whose first, that brings back data and threads after the
others' turns, or waits for its launch, does not count.

    called      what a program sees: the median over rounds, divided by the calls of a round; of small shapes on a GPU the launches
    replayed    the kernels without their launches; None where there is no graph
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import torch

from softmaxima.bench.workers import describe

RUNS = 5  # rounds of each call at least
SLOW, SLOW_RUNS = 0.3, 2  # but only so many of one that takes more seconds than this
BURST, BURST_SECONDS = 20, 0.02  # rounds of one in its turn: at most so many, and for so long
CACHES = 4  # the problems of a round together, in caches of the GPU

Run = Callable[[], Any]


@dataclass(frozen=True)
class Timing:
    """The median of so many rounds, for one call. Where there is no graph, `capture` may say why."""

    called: float
    runs: int
    replayed: float | None = None
    capture: str = ""

    @property
    def seconds(self) -> float:
        return self.called if self.replayed is None else self.replayed

    def over(self, ours: Timing) -> float:
        """This time / ours, by graphs if both have one."""
        if self.replayed is None or ours.replayed is None:
            return self.called / ours.called
        return self.replayed / ours.replayed


@dataclass(frozen=True)
class Measured:
    """The times of calls, why there are none, and which of them turned out not to be captured, and why."""

    times: dict[str, Timing]
    failed: dict[str, str]
    not_captured: dict[str, str]


class CaptureError(Exception):
    """A call that no graph can hold."""


class Clock:
    """The CPU's."""

    def problems(self, size: int) -> int:
        """On how many problems of `size` bytes a round calls."""
        return 1

    def burst(self, run: Run, count: int) -> list[float]:
        """The seconds of so many rounds, one behind the other."""
        marks = [time.perf_counter()]
        for _ in range(count):
            run()
            marks.append(time.perf_counter())
        return [after - before for before, after in pairwise(marks)]

    def captured(self, run: Run) -> Run | None:
        """A graph of it; raises CaptureError."""
        return None

    def synchronise(self) -> None:
        """Raises where the device is lost."""


class CudaClock(Clock):
    """A GPU's, by events."""

    def problems(self, size: int) -> int:
        return max(2, math.ceil(CACHES * torch.cuda.get_device_properties(0).L2_cache_size / size))

    def burst(self, run: Run, count: int) -> list[float]:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        events[0].record()
        for event in events[1:]:
            run()
            event.record()
        torch.cuda.synchronize()
        return [before.elapsed_time(after) / 1e3 for before, after in pairwise(events)]

    def captured(self, run: Run) -> Run | None:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                run()
        except Exception as error:
            torch.cuda.set_stream(torch.cuda.default_stream())  # a capture that fails leaves its own behind
            torch.cuda.synchronize()
            raise CaptureError(describe(error)) from error
        graph.replay()
        torch.cuda.synchronize()
        return graph.replay

    def synchronise(self) -> None:
        torch.cuda.synchronize()


def clock_of(device: str) -> Clock:
    return Clock() if device == "cpu" else CudaClock()


def measure(
    clock: Clock, calls: Mapping[str, Sequence[Run]], seconds: float, without_graph: Mapping[str, str] | None = None
) -> Measured:
    """The time of each, from its calls on several problems, in so many seconds for each way of timing it.

    `without_graph` says of which calls it is known that no graph can hold them, and why.
    """
    known = dict(without_graph or {})
    rounds: dict[tuple[str, str], Run] = {}
    failed: dict[str, str] = {}
    captures = dict(known)
    for name, its_calls in calls.items():
        run = _round(its_calls)
        try:
            run()
            rounds[name, "called"] = run
            replay = None if name in known else clock.captured(run)
            if replay is not None:
                rounds[name, "replayed"] = replay
        except CaptureError as error:
            captures[name] = str(error)
        except Exception as error:
            clock.synchronise()
            failed[name] = describe(error)
    broken: dict[tuple[str, str], str] = {}
    turns = take_turns(rounds, seconds, clock, failed=broken)
    failed |= {name: why for (name, _), why in broken.items()}
    found = {key: (median(times) / len(calls[key[0]]), len(times)) for key, times in turns.items() if key[0] not in failed}
    times = {
        name: Timing(*found[name, "called"], found.get((name, "replayed"), (None,))[0], captures.get(name, ""))
        for name in calls
        if (name, "called") in found
    }
    return Measured(times, failed, {name: why for name, why in captures.items() if name not in known})


def _round(calls: Sequence[Run]) -> Run:
    return lambda: [call() for call in calls]


def take_turns(
    rounds: Mapping[Any, Run],
    seconds: float,
    clock: Clock | None = None,
    most: int = BURST,
    failed: dict[Any, str] | None = None,
) -> dict[Any, list[float]]:
    """The seconds of the rounds of each, which run by turns until so many seconds for each have passed.

    A turn is a burst of up to `most` rounds; where that is one, it counts. What raises is put into `failed`, with the reason, and
    the others go on.
    """
    clock, failed = clock or Clock(), {} if failed is None else failed

    def burst(name: Any, count: int) -> list[float]:
        try:
            return [] if name in failed else clock.burst(rounds[name], count)
        except Exception as error:
            clock.synchronise()
            failed[name] = describe(error)
            return []

    times = {name: burst(name, 1) for name in rounds}
    slow = [name for name, found in times.items() if found and found[0] > SLOW]
    for name in slow:  # unless that was a pause of the machine
        times[name] += burst(name, SLOW_RUNS - 1)
    first = {name: min(found, default=0.0) for name, found in times.items()}
    fast = [name for name in rounds if first[name] <= SLOW]
    for name in fast:
        times[name] = []
    ends = time.perf_counter() + seconds * len(fast)

    def waiting() -> list[Any]:
        more = time.perf_counter() < ends
        return [name for name in fast if name not in failed and (more or len(times[name]) < RUNS)]

    while names := waiting():
        for name in names:
            count = max(1, min(most, int(BURST_SECONDS / max(first[name], 1e-9))))
            times[name] += burst(name, 1 + count)[1:] if most > 1 else burst(name, 1)
    return times
