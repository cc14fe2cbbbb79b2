"""Tasks in processes of their own, so that a kernel that crashes or hangs takes its own task with it and nothing else."""

from __future__ import annotations

import math
import multiprocessing
import multiprocessing.process
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, NoReturn

from softmaxima.base.numbers import InputError

GRACE = 10.0  # seconds that a task may go on after the end


@dataclass(frozen=True)
class Lost:
    """What comes of a task without a result."""

    problem: str
    late: bool = False  # the time for all was over


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
            pipe.send(function(task))
        except EOFError:
            return
        except Exception as error:  # which may have cost the process its device: the next task gets another
            pipe.send(Lost(describe(error)))
            return


class Worker:
    """A process that runs one task after the other, and is replaced where one ends it."""

    def __init__(self, begin: Callable[[], Any] = tuple) -> None:
        self.begin = begin
        self.process: multiprocessing.process.BaseProcess | None = None

    def _started(self) -> multiprocessing.process.BaseProcess:
        if self.process is None or not self.process.is_alive():
            context = multiprocessing.get_context("spawn")  # a forked process cannot use a device that its parent has opened
            self.pipe, theirs = context.Pipe()
            self.process = context.Process(target=_serve, args=(theirs, self.begin), daemon=True)
            self.process.start()
            theirs.close()
        return self.process

    def run(self, function: Callable[[Any], Any], task: Any, limit: float, ends: float) -> Any:
        """What the task gives; `Lost` where it raises, crashes, or takes more than `limit` seconds."""
        process = self._started()
        self.pipe.send((function, task))
        if not self.pipe.poll(max(0.0, min(limit, ends + GRACE - time.monotonic()))):
            self.close()
            late = time.monotonic() >= ends
            return Lost("the budget ended" if late else f"took more than {limit:.0f} s", late)
        try:
            found = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            process.join()
            return Lost(f"its process ended with exit code {process.exitcode}")
        if isinstance(found, Lost) or getattr(found, "spoils", False):
            self.close()
        return found

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.process = None


class Workers:
    """So many workers, or none: then tasks run in this process."""

    def __init__(self, count: int, begin: Callable[[], Any] = tuple) -> None:
        self.workers = [Worker(begin) for _ in range(count)]

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *exception: object) -> None:
        for worker in self.workers:
            worker.close()

    def map(
        self,
        function: Callable[[Any], Any],
        tasks: Sequence[Any],
        limit: float = 86400.0,
        ends: float = math.inf,
        starting: Callable[[Any], None] = lambda task: None,
    ) -> Iterator[tuple[Any, Any]]:
        """(task, result) in the order in which they are finished. No task starts after `ends`, of `time.monotonic`."""

        def run(task: Any, once: Callable[[], Any]) -> Any:
            if time.monotonic() >= ends:
                return Lost("the budget ended", late=True)
            starting(task)
            return once()

        if not self.workers:
            yield from ((task, run(task, lambda task=task: _here(function, task))) for task in tasks)
            return
        idle: SimpleQueue[Worker] = SimpleQueue()
        for worker in self.workers:
            idle.put(worker)

        def in_process(task: Any) -> Any:
            worker = idle.get()
            try:
                return run(task, lambda: worker.run(function, task, limit, ends))
            finally:
                idle.put(worker)

        pool = ThreadPoolExecutor(len(self.workers))
        try:
            futures = {pool.submit(in_process, task): task for task in tasks}
            yield from ((futures[done], done.result()) for done in as_completed(futures))
        except BaseException:  # Ctrl-C: threads end when the processes do that they wait for
            self.__exit__()
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _here(function: Callable[[Any], Any], task: Any) -> Any:
    try:
        return function(task)
    except InputError:  # what was asked for cannot be measured here
        raise
    except Exception as error:
        return Lost(describe(error))
