"""Processes that work through tasks, so that a kernel that crashes or hangs takes its own task with it and nothing else."""

from __future__ import annotations

import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, NoReturn, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

GRACE = 10.0  # seconds that a task may go on after the end
LATE = "the budget ended"


@dataclass(frozen=True)
class Lost:
    """What comes of a task without a result."""

    problem: str


@dataclass(frozen=True)
class Last(Generic[Result]):
    """A result after which the process is not to be used any more."""

    result: Result


def describe(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def leave() -> NoReturn:
    """Ends a process that had ranks, at once.

    Threads of gloo live on where a DeviceMesh holds its group, and one that asks for Python while that ends aborts the process.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _serve(pipe: Connection, begin: Callable[[], Any]) -> None:
    begin()
    while True:
        try:
            function, task = pipe.recv()
        except EOFError:
            return
        try:
            result = function(task)
        except Exception as error:
            # Whatever a task does not catch may have cost the process its device: the next one gets another.
            result = Last(Lost(describe(error)))
        pipe.send(result)
        if isinstance(result, Last):
            return


class _Worker(Generic[Task]):
    def __init__(self, begin: Callable[[], Any]) -> None:
        context = multiprocessing.get_context("spawn")  # a forked process cannot use a device that its parent has opened
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, begin), daemon=True)
        self.process.start()
        theirs.close()

    def start(self, function: Callable[[Task], Any], task: Task, stops: float) -> None:
        self.task, self.stops = task, stops
        self.pipe.send((function, task))

    def result(self) -> Any:
        """What the task gave; `Lost` where the process ended over it."""
        try:
            found = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            return Lost(f"its process ended with exit code {self.process.exitcode}")
        if isinstance(found, Last):
            self.process.join(GRACE)
            self.kill()
            return found.result
        return found

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


class Workers:
    """So many processes, each of which calls `begin` first, or none: then tasks run in this one.

    `map(function, tasks, limit, ends)` yields (task, result) in the order in which they are finished. No task is drawn after `ends`
    (of `time.monotonic`), none may take more than `limit` seconds; what was not drawn is not yielded.
    """

    def __init__(self, count: int, begin: Callable[[], Any] = tuple) -> None:
        self.count, self.begin = count, begin
        self._idle: list[_Worker] = []
        self._busy: list[_Worker] = []

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *exception: object) -> None:
        for worker in self._idle + self._busy:
            worker.kill()

    def map(
        self,
        function: Callable[[Task], Result | Last[Result]],
        tasks: Iterable[Task],
        limit: float = math.inf,
        ends: float = math.inf,
    ) -> Iterator[tuple[Task, Result | Lost]]:
        return self._in_processes(function, iter(tasks), limit, ends) if self.count else _here(function, tasks, ends)

    def _free(self) -> _Worker:
        while self._idle:
            worker = self._idle.pop()
            if worker.process.is_alive():
                return worker
        return _Worker(self.begin)

    def _in_processes(
        self, function: Callable[[Task], Any], tasks: Iterator[Task], limit: float, ends: float
    ) -> Iterator[tuple[Task, Any]]:
        while True:
            while len(self._busy) < self.count and time.monotonic() < ends:
                task = next(tasks, None)
                if task is None:
                    break
                worker = self._free()
                self._busy.append(worker)
                worker.start(function, task, min(time.monotonic() + limit, ends + GRACE))
            if not self._busy:
                return
            soonest = min(worker.stops for worker in self._busy) - time.monotonic()
            ready = wait([worker.pipe for worker in self._busy], None if soonest == math.inf else max(soonest, 0.0))
            for worker in tuple(self._busy):
                if worker.pipe in ready:
                    result = worker.result()
                elif time.monotonic() >= worker.stops:
                    worker.kill()
                    result = Lost(LATE if time.monotonic() >= ends else f"took more than {limit:.0f} s")
                else:
                    continue
                self._busy.remove(worker)
                if worker.process.is_alive():
                    self._idle.append(worker)
                yield worker.task, result


def _here(function: Callable[[Task], Any], tasks: Iterable[Task], ends: float) -> Iterator[tuple[Task, Any]]:
    for task in tasks:
        if time.monotonic() >= ends:
            return
        try:
            result = function(task)
        except Exception as error:
            result = Lost(describe(error))
        yield task, result.result if isinstance(result, Last) else result
