"""The benchmark: groups of cases, each checked against its float64 definition and then timed in turns with its peers.

Nothing is timed before it is right, and a result that comes after the last that is timed must be right too. On a GPU cases run in
processes of their own, so that a kernel that crashes or hangs is named and the rest goes on; they are checked by all processes,
which compiles their kernels into the caches on disk, and then timed by one.
"""

from __future__ import annotations

import functools
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from softmaxima.base.numbers import InputError
from softmaxima_lab.bench.attention import ATTENTION
from softmaxima_lab.bench.case import Case, Found, Group, Peer, Place, Result, Wanted
from softmaxima_lab.bench.dask import DASK
from softmaxima_lab.bench.graph import GRAPH
from softmaxima_lab.bench.heads import HEADS
from softmaxima_lab.bench.machine import installed, machine, versions
from softmaxima_lab.bench.peers import missing
from softmaxima_lab.bench.ranks import RANKS
from softmaxima_lab.bench.record import Benchmark
from softmaxima_lab.bench.rows import KERNELS, MAPS_GROUP
from softmaxima_lab.bench.workers import Lost, Workers

GROUPS: dict[str, Group] = {
    "kernels": KERNELS,
    "maps": MAPS_GROUP,
    "attention": ATTENTION,
    "heads": HEADS,
    "graph": GRAPH,
    "ranks": RANKS,
    "dask": DASK,
}
USUAL = {"cpu": ("maps",), "cuda": ("kernels", "maps")}
DTYPES = ("float32", "float64", "bfloat16", "float16")
MOST = 1024  # threads, and neighbours
LIMIT = 90.0  # seconds of a case on a GPU, compilers and tuners of peers included, before it counts as hanging
CHECKING = 0.4  # of a budget at most, for what is not timed; the rest is for speed
WAVE = 48  # cases on a GPU that are checked by all processes, then timed by one
MEMORY = 14 << 30  # bytes of a GPU for a process that checks: sorts of 1 GiB of scores take 10 GiB
SAVED = 5.0  # seconds from one saving of what was found to the next


@dataclass(frozen=True)
class Settings:
    """What to measure, and for how long. What is None or empty is as each group has it."""

    cases: tuple[str, ...] = ()  # groups, or GROUP/NAME, or names of maps, losses and sums
    shapes: tuple[str, ...] = ()
    peers: tuple[str, ...] | None = None
    dtypes: tuple[str, ...] = ()
    device: str = "cpu"
    threads: int | None = None
    neighbours: int = 0  # processes that do nothing but take time of the processor
    budget: float = math.inf  # seconds for everything
    quick: bool = False
    seed: int = 0
    processes: int | None = None  # by default as many as a GPU has room for, and none but this one on the CPU

    def __post_init__(self) -> None:
        if self.device not in USUAL:
            raise InputError(f"`device` must be one of {', '.join(USUAL)}, got {self.device!r}")
        for name in self.peers or ():
            if name not in self.packages:
                raise InputError(f"`peers`: there is no peer {name!r} on {self.device}; choose among: {', '.join(self.packages)}")
        for dtype in self.dtypes:
            if dtype not in DTYPES:
                raise InputError(f"there is no dtype {dtype!r} here; choose among: {', '.join(DTYPES)}")
        if self.threads is not None and not 1 <= self.threads <= MOST:
            raise InputError(f"`threads` must be from 1 to {MOST}, got {self.threads}")
        if not 0 <= self.neighbours <= MOST:
            raise InputError(f"`neighbours` must be from 0 to {MOST}, got {self.neighbours}")
        if not self.budget > 0:
            raise InputError(f"`budget` must be more than 0 seconds, got {self.budget:g}")

    @property
    def names(self) -> dict[str, list[str]]:
        """What is asked for of each group; nothing: all that it has."""
        found: dict[str, list[str]] = {}
        for word in self.cases or USUAL[self.device]:
            group, slash, name = word.partition("/") if "/" in word or word in GROUPS else ("maps", "/", word)
            if group not in GROUPS or (slash and not name):
                raise InputError(f"CASES: {word!r} is not a group or GROUP/NAME; the groups are: {', '.join(GROUPS)}")
            found.setdefault(group, [])
            found[group] += [name] if slash else []
        return found

    @property
    def packages(self) -> list[str]:
        """The peers of all groups that are asked for."""
        return list(dict.fromkeys(name for group in self.names for name in GROUPS[group].packages.get(self.device, ())))

    @property
    def in_processes(self) -> bool:
        return self.device != "cpu" if self.processes is None else self.processes > 0

    def place(self, group: str, peers: Sequence[str]) -> Place:
        its = tuple(name for name in GROUPS[group].packages.get(self.device, ()) if name in peers)
        return GROUPS[group].place(self.device, its, self.quick, self.seed)


def plan(settings: Settings) -> dict[str, list[Case]]:
    """The cases of each group. Raises InputError where something is not known or cannot be measured, before any work."""
    return {
        group: GROUPS[group].cases(Wanted(tuple(names), settings.shapes, settings.dtypes, settings.device, settings.quick))
        for group, names in settings.names.items()
    }


def by_weight(cases: Sequence[Case]) -> list[Case]:
    """The most important first: names of a kind, sizes and dtypes count together, so that of each something comes early."""
    kinds = {case.name: GROUPS[case.group].kind(case.name) for case in cases}
    orders = [list(dict.fromkeys(each)) for each in zip(*((c.size, c.dtype, c.direction) for c in cases), strict=True)]

    def weight(case: Case) -> int:
        size, dtype, direction = (
            order.index(at) for order, at in zip(orders, (case.size, case.dtype, case.direction), strict=True)
        )
        return [name for name, kind in kinds.items() if kind == kinds[case.name]].index(case.name) + 3 * size + dtype + direction

    return sorted(cases, key=weight)


@dataclass(frozen=True)
class Task:
    """A case to check, or, with what is known of it, to time, or both."""

    case: Case
    place: Place
    known: Sequence[Result] = ()
    timed: bool = True
    lost: str = ""  # how a process ended over it; then it goes on without peers

    def __str__(self) -> str:
        return str(self.case)


def run_task(task: Task) -> Found:
    found = GROUPS[task.case.group].run(task.case, task.place, task.known, task.timed)
    if task.place.device != "cpu":
        torch.cuda.empty_cache()
    return found


@dataclass(frozen=True)
class Surroundings:
    """What only a process with the device open can tell."""

    machine: dict[str, Any]
    versions: dict[str, str]
    left_out: dict[str, str]
    room: int  # for processes


def surroundings(settings: Settings) -> Surroundings:
    asked = settings.packages if settings.peers is None else settings.peers
    left_out = {name: why for name in asked if (why := missing(name))}
    room = 1
    if settings.device != "cpu":
        room = max(1, min((os.cpu_count() or 1) - 2, torch.cuda.get_device_properties(0).total_memory // MEMORY))
    extra = installed(*(name for group in settings.names for name in GROUPS[group].extra))
    return Surroundings(machine(settings.device), {**versions(settings.device), **extra}, left_out, room)


def bench(
    settings: Settings | None = None,
    starting: Callable[[str], None] = lambda what: None,
    save: Callable[[Benchmark], None] = lambda found: None,
) -> Benchmark:
    """Measure the cases. `starting(what)` is called before each, and `save` every few seconds with what was found so far."""
    settings = settings or Settings()
    planned, started = plan(settings), time.monotonic()
    threads = functools.partial(torch.set_num_threads, settings.threads or torch.get_num_threads())
    timers = Workers(1 if settings.in_processes else 0, threads)
    with _threads(settings.threads), _busy(settings.neighbours), timers as timer, torch.no_grad():
        ((_, around),) = timer.map(surroundings, [settings], LIMIT)
        if isinstance(around, Lost):
            raise InputError(f"`device`: {settings.device} could not be opened: {around.problem}")
        asked = settings.packages if settings.peers is None else settings.peers
        found = Benchmark(
            device=settings.device,
            machine=around.machine | ({"neighbours": settings.neighbours} if settings.neighbours else {}),
            versions=around.versions,
            peers=[name for name in settings.packages if name in asked and name not in around.left_out],
            left_out=around.left_out,
        )
        with Workers((settings.processes or around.room) if settings.in_processes else 0, threads) as checkers:
            _Run(settings, planned, found, started, starting, save).all(checkers, timer)
    return found


@dataclass
class _Run:
    """Fills a benchmark."""

    settings: Settings
    planned: dict[str, list[Case]]
    found: Benchmark
    started: float
    starting: Callable[[str], None]
    save: Callable[[Benchmark], None]
    results: dict[Case, Sequence[Result]] = field(default_factory=dict)
    not_captured: dict[str, dict[str, str]] = field(default_factory=dict)  # by the name of a case
    saved: float = 0.0

    def all(self, checkers: Workers, timer: Workers) -> None:
        try:
            for name, cases in self.planned.items():
                ordered = by_weight(cases) if self.settings.in_processes else cases
                for first in range(0, len(ordered), WAVE):
                    self.measure(GROUPS[name], ordered[first : first + WAVE], checkers, timer)
        finally:
            self.summarise()
            self.save(self.found)

    def measure(self, group: Group, cases: Sequence[Case], checkers: Workers, timer: Workers) -> None:
        """Check and time in one go, or check in many processes and time what is right in one."""
        tasks = [Task(case, self.settings.place(case.group, self.found.peers), timed=group.is_timed) for case in cases]
        ends = self.started + self.settings.budget * (1.0 if group.is_timed else CHECKING)
        if self.settings.in_processes:
            self.go_through(checkers, [replace(task, timed=False) for task in tasks], ends)
            known = ((task, self.results.get(task.case, ())) for task in tasks if group.is_timed)
            tasks = [
                replace(task, known=results, place=replace(task.place, not_captured=self.not_captured.get(task.case.name, {})))
                for task, results in known
                if any(result.verdict == "right" for result in results)
            ]
        self.go_through(timer, tasks, ends)

    def go_through(self, workers: Workers, tasks: Sequence[Task], ends: float) -> None:
        lost = []
        for task, found in workers.map(run_task, tasks, LIMIT, ends, lambda task: self.starting(str(task))):
            if isinstance(found, Lost):
                if found.late:
                    continue
                if task.lost or not task.place.peers:
                    self.results[task.case] = [Result(task.case, "wrong", problem=found.problem)]
                else:  # it may have been a peer
                    lost.append(_without_peers(task, found.problem))
                continue
            peers = {"peers": Peer(problem=task.lost)} if task.lost else {}
            self.results[task.case] = [replace(result, peers={**result.peers, **peers}) for result in found.results]
            known = {name: why for name, why in found.not_captured.items() if "out of memory" not in why.lower()}
            self.not_captured.setdefault(task.case.name, {}).update(known)
            if time.monotonic() - self.saved >= SAVED:
                self.summarise()
                self.save(self.found)
                self.saved = time.monotonic()
        if lost:
            self.go_through(workers, lost, ends)

    def summarise(self) -> None:
        """Put what was found in the order of the plan, and say what was not reached."""
        every = [case for cases in self.planned.values() for case in cases]
        self.found.results = [result for case in every for result in self.results.get(case, ())]
        self.found.not_reached = [str(case) for case in every if not self.is_reached(case)]
        self.found.elapsed = time.monotonic() - self.started

    def is_reached(self, case: Case) -> bool:
        results = self.results.get(case, ())
        timed = GROUPS[case.group].is_timed
        return bool(results) and all(
            r.verdict != "right" or r.seconds is not None or "memory" in r.facts or not timed for r in results
        )


def _without_peers(task: Task, lost: str) -> Task:
    known = [
        replace(result, peers={name: replace(peer, problem=peer.problem or lost) for name, peer in result.peers.items()})
        for result in task.known
    ]
    return replace(task, place=replace(task.place, peers=()), known=known, lost=lost)


# Ends with its input, which the process that started it holds, however that one ends.
_NEIGHBOUR = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
while True: pass
"""


@contextmanager
def _busy(processes: int) -> Iterator[None]:
    """As many processes beside this one that always have something to do."""
    with ExitStack() as stack:
        for _ in range(processes):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", _NEIGHBOUR], stdin=subprocess.PIPE))
            stack.callback(process.kill)
        yield


@contextmanager
def _threads(threads: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
