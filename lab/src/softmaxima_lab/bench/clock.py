"""How long calls take: on the CPU by a clock around them, on a GPU by events around them and by replaying a CUDA graph of them.

A round is a call on each of several problems; on a GPU these are together several times its cache, and their results are kept until
the round is over, so that neither scores nor results are found there. All calls take turns, A B A B …, so that a machine that is
busy for a while slows all of them. A turn is a burst of rounds, whose first does not count: it brings back data and threads after
the turns of the others. What is compared are turns of the same pass over the calls.

These are own loops, and not `torch.utils.benchmark.Timer` or `triton.testing.do_bench`: both time one function until they are done
with it, and warm it up anew each time, so that turns would consist of warming up.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

import torch

from softmaxima_lab.bench.workers import describe

LEAST_TURNS = 5
SLOW, SLOW_TURNS = 0.3, 2  # seconds of a call that has no more turns than these
BURST, BURST_SECONDS, TURNS = 20, 0.02, 8  # rounds of a turn: at most so many, for so long, and for 1/TURNS of the time there is
CACHES = 4  # the problems of a round together, in caches of the GPU

Call = Callable[[], Any]
Turns = Mapping[int, float]  # the median round of each turn, by the number of its pass


class Quotient(NamedTuple):
    """A time / another of the same pass: the median over passes, and an interval that holds half of them; at few passes more, the
    95 % interval of the median if they were independent, and below six their range.
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, numerators: Turns, denominators: Turns) -> Quotient | None:
        """From the passes in which both had a turn; None where there are less than two."""
        each = sorted(seconds / denominators[number] for number, seconds in numerators.items() if number in denominators)
        count = len(each)
        outside = max(0, min(count // 4, math.floor(count / 2 - 0.98 * math.sqrt(count) - 1)))  # at each end
        return None if count < 2 else cls(median(each), each[outside], each[count - 1 - outside])

    @property
    def spread(self) -> float:
        """The upper end of the interval / the lower."""
        return self.high / self.low

    @property
    def is_about_one(self) -> bool:
        """Whether neither side is known to be faster."""
        return self.low <= 1 <= self.high


class CaptureError(Exception):
    """A call that no CUDA graph can hold."""


class Clock:
    """The CPU's."""

    def problems(self, size: int) -> int:
        """On how many problems of `size` bytes a round calls."""
        return 1

    def burst(self, run: Call, count: int) -> list[float]:
        """The seconds of so many rounds, one behind the other."""
        marks = [time.perf_counter()]
        for _ in range(count):
            run()
            marks.append(time.perf_counter())
        return [after - before for before, after in itertools.pairwise(marks)]

    def captured(self, run: Call) -> Call | None:
        """A CUDA graph of it, which gives the same memory at each replay; raises CaptureError."""
        return None

    def synchronise(self) -> None:
        """Raises where the device is lost."""


class CudaClock(Clock):
    """A GPU's, by events."""

    def problems(self, size: int) -> int:
        return max(2, math.ceil(CACHES * torch.cuda.get_device_properties(0).L2_cache_size / size))

    def burst(self, run: Call, count: int) -> list[float]:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        events[0].record()
        for event in events[1:]:
            run()
            event.record()
        torch.cuda.synchronize()
        return [before.elapsed_time(after) / 1e3 for before, after in itertools.pairwise(events)]

    def captured(self, run: Call) -> Call | None:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                results = run()
        except Exception as error:
            torch.cuda.set_stream(torch.cuda.default_stream())  # a capture that fails leaves its own behind
            torch.cuda.synchronize()
            raise CaptureError(describe(error)) from error

        def replay() -> Any:
            graph.replay()
            return results

        replay()
        torch.cuda.synchronize()
        return replay

    def synchronise(self) -> None:
        torch.cuda.synchronize()


def clock_of(device: str) -> Clock:
    return Clock() if device == "cpu" else CudaClock()


def take_turns(
    rounds: Mapping[Any, Call],
    seconds: float,
    clock: Clock | None = None,
    passes: int | None = None,
    failed: dict[Any, str] | None = None,
) -> dict[Any, dict[int, float]]:
    """The `Turns` of each in so many passes, of one round a turn; or until so many seconds for each have passed.

    What raises is put into `failed` with the reason, and the others go on. A slow call misses the later passes, until it is fast.
    """
    clock, failed = clock or Clock(), {} if failed is None else failed
    turns: dict[Any, dict[int, float]] = {name: {} for name in rounds}
    last: dict[Any, float] = {}

    def turn(name: Any, number: int) -> None:
        span = min(BURST_SECONDS, seconds / TURNS)
        quick = number >= 0 and passes is None and last[name] <= SLOW
        count = max(1, min(BURST, int(span / max(last[name], 1e-9)))) if quick else 1
        try:
            last[name] = median(clock.burst(rounds[name], 1 + count)[1:] if quick else clock.burst(rounds[name], 1))
        except Exception as error:  # which may be any
            clock.synchronise()
            failed[name] = describe(error)
        else:
            turns[name][number] = last[name]

    def has_turn(name: Any, number: int) -> bool:
        if passes is not None:
            return number < passes
        if last[name] > SLOW:
            return number < SLOW_TURNS
        return number < LEAST_TURNS or time.perf_counter() < ends

    for name in rounds:
        turn(name, -1)
        turns[name].clear()  # it compiles, and loads
    ends = time.perf_counter() + seconds * len(rounds)
    number = 0
    while names := [name for name in rounds if name not in failed and has_turn(name, number)]:
        for name in names:
            turn(name, number)
            ends += last[name] if last[name] > SLOW else 0.0
        number += 1
    return turns


@dataclass(frozen=True)
class Measured:
    """The turns of calls, by whether they were called or replayed; why there are none; and what no graph could hold, and why."""

    turns: Mapping[tuple[str, str], Turns]
    problems: Mapping[str, int]  # of a round
    failed: Mapping[str, str]
    not_captured: Mapping[str, str]

    def seconds(self, name: str, way: str = "") -> float | None:
        """Of a call: the median over turns, of replays where there are any."""
        way = way or self._way(name)
        its = self.turns.get((name, way))
        return median(its.values()) / self.problems[name] if its and name not in self.failed else None

    def ratio(self, name: str, ours: str) -> Quotient | None:
        """Time of the one / ours, by graphs if both have one."""
        way = self._way(name, ours)
        return None if name in self.failed else Quotient.of(self.turns.get((name, way), {}), self.turns.get((ours, way), {}))

    def _way(self, *names: str) -> str:
        return "replayed" if all((name, "replayed") in self.turns for name in names) else "called"


def measure(
    clock: Clock,
    calls: Mapping[str, Sequence[Call]],
    seconds: float,
    passes: int | None = None,
    not_captured: Mapping[str, str] | None = None,
    complaint: Callable[[str, Any], str] = lambda name, result: "",
) -> Measured:
    """Time calls on several problems each, in turns. `complaint` says what is wrong with a result on the first problem after all.

    `not_captured` says of which calls it is known that no graph can hold them, and why.
    """
    rounds: dict[tuple[str, str], Call] = {}
    failed, captures = dict[str, str](), dict(not_captured or {})
    for name, its_calls in calls.items():
        run = lambda its_calls=its_calls: [call() for call in its_calls]
        try:
            run()
            rounds[name, "called"] = run
            replay = None if name in captures else clock.captured(run)
            if replay is not None:
                rounds[name, "replayed"] = replay
        except CaptureError as error:
            captures[name] = str(error)
        except Exception as error:
            clock.synchronise()
            failed[name] = describe(error)
    broken: dict[tuple[str, str], str] = {}
    turns = take_turns(rounds, seconds, clock, passes, broken)
    for (name, way), run in rounds.items():
        try:
            if (name, way) not in broken and (wrong := complaint(name, run()[0])):
                broken[name, way] = f"after it was timed: {wrong}"
        except Exception as error:
            clock.synchronise()
            broken[name, way] = describe(error)
    failed |= {name: why for (name, _), why in broken.items()}
    new = {name: why for name, why in captures.items() if name not in (not_captured or {})}
    return Measured(turns, {name: len(each) for name, each in calls.items()}, failed, new)
