"""How long calls take: on the CPU by a clock around them, on a GPU by events around them and by replaying a CUDA graph of them.

A round is a call on each of several problems; on a GPU these are together several times its cache, and their results are kept until
the round is over, so that neither scores nor results are found there. Rounds of all calls take turns, A B A B …, so that a machine
that is busy for a while slows all of them. A turn is a burst of rounds, whose first, that brings back data and threads after the
others' turns, or waits for its launch, does not count. Turns are short enough for several of each in the time that there is, and
what is compared are the turns of the same pass over the calls, so that what slows one pass slows both sides of a quotient.

    called      what a program sees: the median over rounds, divided by the calls of a round; of small shapes on a GPU the launches
    replayed    the kernels without their launches; None where there is no graph
    quotient    the median over turns of the median round / that of the first of the calls, and an interval that holds half of the
                turns, at few turns more: the 95 % interval of their median, if they were independent, and below six their
                range, which holds it less often
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch

from softmaxima_lab.bench.workers import describe

RUNS = 5  # turns of each call at least
SLOW, SLOW_RUNS = 0.3, 2  # but only so many of one that takes more seconds than this
BURST, BURST_SECONDS, TURNS = 20, 0.02, 8  # rounds of one in its turn: at most so many, for so long, and for 1/TURNS of its time
CACHES = 4  # the problems of a round together, in caches of the GPU

Run = Callable[[], Any]
Turns = Mapping[int, Sequence[float]]  # the seconds of the rounds of each turn, by the number of its pass over the calls


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
class Quotient:
    """A time / another, turn by turn: the median, and an interval."""

    median: float
    low: float
    high: float
    turns: int

    @classmethod
    def of(cls, numerators: Turns, denominators: Turns) -> Quotient | None:
        """From the passes in which both had a turn; None where there are less than two."""
        each = sorted(
            median(rounds) / median(denominators[number]) for number, rounds in numerators.items() if number in denominators
        )
        count = len(each)
        outside = max(0, min(count // 4, math.floor(count / 2 - 0.98 * math.sqrt(count) - 1)))  # at each end
        return None if count < 2 else cls(median(each), each[outside], each[count - 1 - outside], count)

    @property
    def reversed(self) -> Quotient:
        return Quotient(1 / self.median, 1 / self.high, 1 / self.low, self.turns)

    @property
    def spread(self) -> float:
        """The upper end of the interval / the lower."""
        return self.high / self.low

    @property
    def is_about_one(self) -> bool:
        """Whether neither side is faster, for all that is known."""
        return self.low <= 1 <= self.high


@dataclass(frozen=True)
class Measured:
    """The times of calls, why there are none, which of them turned out not to be captured, and why; and each time / the first's."""

    times: dict[str, Timing]
    failed: dict[str, str]
    not_captured: dict[str, str]
    quotients: dict[str, Quotient] = field(default_factory=dict)


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
        return [after - before for before, after in itertools.pairwise(marks)]

    def captured(self, run: Run) -> Run | None:
        """A graph of it, which gives the same memory at each replay; raises CaptureError."""
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
        return [before.elapsed_time(after) / 1e3 for before, after in itertools.pairwise(events)]

    def captured(self, run: Run) -> Run | None:
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


def measure(
    clock: Clock,
    calls: Mapping[str, Sequence[Run]],
    seconds: float,
    without_graph: Mapping[str, str] | None = None,
    complaint: Callable[[str, Any], str] = lambda name, result: "",
    shares: Mapping[str, float] | None = None,
) -> Measured:
    """The time of each, from its calls on several problems, in so many seconds for each way of timing it, or its share of them.

    `without_graph` says of which calls it is known that no graph can hold them, and why. `complaint` says what is wrong with the
    result of a call on the first problem: it is asked of a call after all that are timed, and of a replay.
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
    share = {(name, way): (shares or {}).get(name, 1.0) for name, way in rounds}
    turns = take_turns(rounds, seconds, clock, failed=broken, shares=share)
    for (name, way), run in rounds.items():
        try:
            if (name, way) not in broken and (wrong := complaint(name, run()[0])):
                broken[name, way] = f"after it was timed: {wrong}"
        except Exception as error:
            clock.synchronise()
            broken[name, way] = describe(error)
    failed |= {name: why for (name, _), why in broken.items()}
    every = {key: its_turns for key, its_turns in turns.items() if key[0] not in failed}
    found = {key: (median_round(each) / len(calls[key[0]]), sum(map(len, each.values()))) for key, each in every.items()}
    times = {
        name: Timing(*found[name, "called"], found.get((name, "replayed"), (None,))[0], captures.get(name, ""))
        for name in calls
        if (name, "called") in found
    }
    first, quotients = next(iter(calls), ""), {}
    for name, timing in times.items():
        if name != first and first in times:
            way = "called" if None in (timing.replayed, times[first].replayed) else "replayed"
            quotient = Quotient.of(turns[name, way], turns[first, way])
            quotients |= {} if quotient is None else {name: quotient}
    return Measured(times, failed, {name: why for name, why in captures.items() if name not in known}, quotients)


def _round(calls: Sequence[Run]) -> Run:
    return lambda: [call() for call in calls]


def median_round(turns: Turns) -> float:
    """The median over the rounds of all turns."""
    return median(itertools.chain.from_iterable(turns.values()))


def take_turns(
    rounds: Mapping[Any, Run],
    seconds: float,
    clock: Clock | None = None,
    most: int = BURST,
    failed: dict[Any, str] | None = None,
    shares: Mapping[Any, float] | None = None,
) -> dict[Any, dict[int, list[float]]]:
    """The `Turns` of each, until so many seconds for each, or its share of them, have passed.

    A turn is a burst of up to `most` rounds; where that is one, it counts. The first pass counts only beside a call so slow that it
    has few turns. What raises is put into `failed`, with the reason, and the others go on.
    """
    clock, failed, shares = clock or Clock(), {} if failed is None else failed, shares or {}
    first: dict[Any, float] = {}
    turns: dict[Any, dict[int, list[float]]] = {name: {} for name in rounds}

    def burst(name: Any, count: int) -> list[float]:
        try:
            return [] if name in failed else clock.burst(rounds[name], count)
        except Exception as error:
            clock.synchronise()
            failed[name] = describe(error)
            return []

    def turn(name: Any) -> list[float]:
        span = min(BURST_SECONDS, seconds / TURNS) * shares.get(name, 1.0)
        count = max(1, min(most, int(span / max(first[name], 1e-9))))
        return burst(name, 1 + count)[1:] if most > 1 else burst(name, 1)

    for name in rounds:
        found = burst(name, 1)
        first[name] = min(found, default=0.0)
        if first[name] > SLOW:
            turns[name][0] = found
    for name in rounds:
        if any(turns.values()) and name not in failed and first[name] <= SLOW:
            turns[name][0] = turn(name)
    ends = time.perf_counter() + seconds * sum(shares.get(name, 1.0) for name in rounds if first[name] <= SLOW)

    def waits(name: Any) -> bool:
        if first[name] > SLOW:
            return len(turns[name]) < SLOW_RUNS
        return time.perf_counter() < ends or len(turns[name]) < RUNS

    for number in itertools.count(1):
        names = [name for name in rounds if name not in failed and waits(name)]
        if not names:
            break
        for name in names:
            if first[name] <= SLOW:
                turns[name][number] = turn(name)
                continue
            found = burst(name, 1)
            turns[name][number] = found
            ends += sum(found)
            if min(found, default=math.inf) <= SLOW:  # the machine had paused: all begin again, for turns of one pass are compared
                first[name] = min(found)
                ends += seconds * shares.get(name, 1.0)
                for other in turns.values():
                    other.clear()
                break
    return turns
