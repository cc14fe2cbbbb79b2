"""bench: every map and loss, logsumexp and its relatives, beside what people use today, in the same run, on the CPU or a GPU.

Nothing is timed before its values, and with the backward pass its gradients, agree with the float64 definition on some rows, and
the results on all rows in another order are the same rows in that order. Then ours and the peers take turns, and a result that
comes after the last that is timed must agree with the definition too.

    ratio      time of the peer / time of ours in the same turn, the median over turns, with an interval (clocks.Quotient): where 1
               is in it neither is faster, and where its ends are more than a factor 2 apart the row is unreliable
    bytes      inputs read once + outputs written once, the traffic that no implementation can avoid. Forward: x → p. With the
               backward pass: x and the upstream gradient g → p and ∂x for a map, x → ∂x for a loss, as if both were one kernel.
    copy       x → out by `out.copy_(x)`, the bandwidth that a result is held against
    floor      the time of `x.clone()` and of `x.amax(axis)` in the same turns: the result allocated and written, and one more read
               of the row

Forward is timed under `no_grad` on scores without grad; the backward pass with a fixed upstream gradient, for a loss with that of
its mean. On a GPU kernels run in processes of their own, so that one that crashes or hangs is named and the rest goes on.
"""

from __future__ import annotations

import datetime
import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from softmaxima.core.numbers import InputError
from softmaxima_lab.bench.checks import check
from softmaxima_lab.bench.clocks import Measured
from softmaxima_lab.bench.machine import commit, machine, versions
from softmaxima_lab.bench.peers import missing
from softmaxima_lab.bench.plan import Plan, RowTask, Settings, plan
from softmaxima_lab.bench.results import Benchmark, Overhead, PeerResult, Row
from softmaxima_lab.bench.subjects import Subject, choose
from softmaxima_lab.bench.tasks import FLOOR, OURS, check_row, row_of, time_ground, time_overheads, time_row
from softmaxima_lab.bench.workers import LATE, Lost, Workers

LIMIT = 90.0  # seconds of a task on a GPU, compilers and tuners of peers included, before it counts as hanging
CHECKING = 0.4  # of a budget at most, for rows of awkward lengths; the rest is for speed
WAVE = 48  # rows on a GPU are checked by all processes, then timed by one, so many at a time
MEMORY = 14 << 30  # bytes of a GPU for a process that checks: sorts of 1 GiB of scores take 10 GiB
SAVED = 5.0  # seconds from one saving of what was found to the next


@dataclass(frozen=True)
class Surroundings:
    """What only a process with the device open can tell."""

    machine: dict[str, Any]
    versions: dict[str, str]
    left_out: dict[str, str]
    room: int  # for processes


def surroundings(settings: Settings) -> Surroundings:
    left_out = {name: why for name in settings.peers or () if (why := missing(name))}
    room = 1
    if settings.device != "cpu":
        room = max(1, min((os.cpu_count() or 1) - 2, torch.cuda.get_device_properties(0).total_memory // MEMORY))
    return Surroundings(machine(settings.device), versions(settings.device), left_out, room)


def bench(
    settings: Settings | None = None,
    chosen: Sequence[Subject] | None = None,
    starting: Callable[[str], None] = lambda what: None,
    save: Callable[[Benchmark], None] = lambda found: None,
) -> Benchmark:
    """Measure every chosen subject (default: all, on a GPU all with a kernel) on every shape.

    `starting(what)` is called before each part, and `save` every few seconds with what was found so far. Raises `InputError` where
    nothing can be measured.
    """
    settings = settings or Settings()
    chosen = choose((), settings.device) if chosen is None else chosen
    plan(settings, chosen)
    _refuse_what_does_not_fit(settings)
    started = time.monotonic()
    threads = functools.partial(torch.set_num_threads, settings.threads or torch.get_num_threads())
    timers = Workers(1 if settings.in_processes else 0, threads)
    with _threads(settings.threads), _busy(settings.neighbours), timers as timer, torch.no_grad():
        ((_, around),) = timer.map(surroundings, [settings], LIMIT)
        if isinstance(around, Lost):
            raise InputError(f"`device`: {settings.device} could not be opened: {around.problem}")
        there = tuple(name for name in settings.peers or () if name not in around.left_out)
        found = Benchmark(
            date=datetime.date.today().isoformat(),
            commit=commit(),
            device=settings.device,
            machine=around.machine | ({"neighbours": settings.neighbours} if settings.neighbours else {}),
            versions=around.versions,
            dtypes=settings.dtypes or (),
            seconds=settings.seconds or 0.0,
            seed=settings.seed,
            peers=there,
            left_out=around.left_out,
        )
        run = _Run(settings, plan(settings, chosen, there), found, started, starting, save)
        with Workers((settings.processes or around.room) if settings.in_processes else 0, threads) as checkers:
            run.all(checkers, timer)
    return found


class _Run:
    """Fills a benchmark."""

    def __init__(
        self,
        settings: Settings,
        plan: Plan,
        found: Benchmark,
        started: float,
        starting: Callable[[str], None],
        save: Callable[[Benchmark], None],
    ) -> None:
        self.settings, self.plan, self.found, self.started = settings, plan, found, started
        self.starting, self.save = starting, save
        self.ends = started + settings.budget
        self.saved = started
        self.lost: list[str] = []  # copies that could not be measured
        self.rows: dict[tuple[str, ...], Row] = {}
        self.not_captured: dict[str, dict[str, str]] = {}  # title → label → why

    def all(self, checkers: Workers, timer: Workers) -> None:
        try:
            self.check_lengths(checkers)
            self.time_grounds(timer)
            rows = self.plan.rows_by_weight if self.settings.in_processes else self.plan.rows
            wave = WAVE if self.settings.in_processes else 1
            for first in range(0, len(rows), wave):
                self.measure_rows(checkers, timer, rows[first : first + wave])
            self.time_overheads(timer)
        finally:
            self.summarise()
            self.save(self.found)

    def _announced(self, tasks: Iterable[Any]) -> Iterator[Any]:
        for task in tasks:
            self.starting(str(task))
            yield task

    def _done(self) -> None:
        if time.monotonic() - self.saved >= SAVED:
            self.summarise()
            self.save(self.found)
            self.saved = time.monotonic()

    def summarise(self) -> None:
        """Put what was found in the order of the plan, and say what was not reached."""
        found, missing = self.found, []
        found.rows = [self.rows[task.key] for task in self.plan.rows if task.key in self.rows]
        reached = {(check.title, check.dtype, check.n, check.variant) for check in found.checks}
        planned = [each for task in self.plan.checks for each in task.checks]
        missing += [str(each) for each in planned if (each.title, each.dtype, each.n, each.variant) not in reached]
        for task in self.plan.rows:
            row = self.rows.get(task.key)
            if row is None or (row.verdict == "right" and row.timing is None):
                missing.append(str(task))
        there = {overhead.name for overhead in found.overheads} | {row.name for row in found.rows if row.verdict != "right"}
        missing += [str(task) for task in self.plan.overheads if task.subject.name not in there]
        found.not_reached, found.elapsed = [*missing, *self.lost], time.monotonic() - self.started

    def check_lengths(self, workers: Workers) -> None:
        """Every kernel on rows of awkward lengths."""
        ends = self.started + CHECKING * self.settings.budget
        for task, result in workers.map(check, self._announced(self.plan.checks), LIMIT, ends):
            if not isinstance(result, Lost):
                self.found.checks += result
            elif result.problem != LATE:
                self.found.checks += [replace(planned, problem=result.problem) for planned in task.checks]
            self._done()

    def time_grounds(self, timer: Workers) -> None:
        results = timer.map(time_ground, self._announced(self.plan.grounds), LIMIT, self.ends)
        for task, result in results:
            if isinstance(result, Lost):
                self.lost.append(f"{task}, {result.problem}")
            else:
                self.found.grounds = [*self.found.grounds, result]

    def measure_rows(self, checkers: Workers, timer: Workers, tasks: Sequence[RowTask]) -> None:
        """Check the rows, in many processes, then time those that are right, in one."""
        lost: list[RowTask] = []
        for task, result in checkers.map(check_row, self._announced(tasks), LIMIT, self.ends):
            if not isinstance(result, Lost):
                self.rows[task.key] = result
            elif result.problem != LATE:
                lost.append(replace(task, lost=result.problem))
            self._done()
        for task, result in checkers.map(check_row, lost, LIMIT, self.ends):  # without the peers, one of whom it may have been
            if not isinstance(result, Lost):
                self.rows[task.key] = replace(result, peers=(PeerResult("peers", problem=task.lost),))
            elif result.problem != LATE:
                self.rows[task.key] = row_of(task, "wrong", problem=result.problem)
        lost = []
        for task, measured in timer.map(time_row, self._to_time(tasks), LIMIT, self.ends):
            if isinstance(measured, Lost) and measured.problem != LATE and len(task.labels) > 1:
                lost.append(replace(task, labels=(OURS,), lost=measured.problem))
            else:
                self._record(task, measured)
            self._done()
        for task, measured in timer.map(time_row, lost, LIMIT, self.ends):
            row = self.rows[task.key]
            self.rows[task.key] = replace(row, peers=tuple(replace(peer, problem=peer.problem or task.lost) for peer in row.peers))
            self._record(task, measured)

    def _to_time(self, tasks: Sequence[RowTask]) -> Iterator[RowTask]:
        for task in tasks:
            row = self.rows.get(task.key)
            if row is not None and row.verdict == "right":
                labels = tuple(peer.label for peer in row.peers if not peer.problem)
                known = dict(self.not_captured.get(task.subject.title, {}))
                yield replace(task, labels=(OURS, *labels), without_graph=known)

    def _record(self, task: RowTask, measured: Measured | Lost) -> None:
        row = self.rows[task.key]
        if isinstance(measured, Lost):
            if measured.problem != LATE:
                self.rows[task.key] = replace(row, verdict="wrong", problem=measured.problem)
            return
        known = {label: why for label, why in measured.not_captured.items() if "out of memory" not in why.lower()}
        self.not_captured.setdefault(task.subject.title, {}).update(known)
        if OURS in measured.failed:
            self.rows[task.key] = replace(row, verdict="wrong", problem=measured.failed[OURS], peers=())
            return
        peers = tuple(
            replace(
                peer,
                timing=measured.times.get(peer.label),
                problem=measured.failed.get(peer.label, peer.problem),
                quotient=measured.quotients.get(peer.label),
            )
            for peer in row.peers
        )
        floor = measured.quotients.get(FLOOR)
        self.rows[task.key] = replace(
            row, timing=measured.times[OURS], peers=peers, floor=None if floor is None else floor.reversed
        )

    def time_overheads(self, timer: Workers) -> None:
        others = {row.title for row in self.rows.values() if row.verdict != "right"}
        right = [task for task in self._announced(self.plan.overheads) if task.subject.title not in others]
        for task, result in timer.map(time_overheads, right, LIMIT, self.ends):
            if not isinstance(result, Lost):
                self.found.overheads += result
            elif result.problem != LATE:
                self.found.overheads.append(Overhead(task.subject.name, OURS, problem=result.problem))


def _refuse_what_does_not_fit(settings: Settings) -> None:
    for shape in settings.shapes or ():
        try:
            torch.empty(shape.sizes)
        except (RuntimeError, TypeError, OverflowError):
            raise InputError(f"`shapes`: {shape} does not fit in memory; take smaller sizes") from None


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
