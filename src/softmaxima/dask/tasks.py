"""Tasks on workers of Dask that are watched: who falls silent is told of after seconds, and what he had begins anew elsewhere."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from softmaxima.base.numbers import InputError
from softmaxima.dask.cluster import TIMEOUT, answered, distributed

QUIET = 12.0  # seconds in which a worker or a scheduler is not heard of, after which that is told
LOOKS = 1.0  # seconds between two looks at who works, and until the scheduler is to answer
ATTEMPTS = 3  # workers on which a task is begun
SLOWER = 4  # times as long as the slowest like it, a task may take
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Shared:
    """An argument of many tasks, which is sent once. It is a task's result, made anew where the worker that has it dies."""

    value: Any


@dataclass(eq=False)
class _Asked(Generic[T]):
    """A task, and the futures of its attempts."""

    what: T
    size: float
    call: tuple[Any, ...]
    attempts: list[Any] = field(default_factory=list)
    tried: set[str] = field(default_factory=set)
    since: float | None = None  # when the last of its attempts fell silent


@dataclass(frozen=True)
class _Trouble:
    """Why nothing is to be expected of an attempt, since when, what to do, and how much beyond a timeout it is given up."""

    why: str
    since: float
    repair: str = "see whether it runs, or pass a longer timeout"
    more: float = 0.0


class Tasks(Generic[T]):
    """Tasks on the workers of a client, each for something whose `str` names it. As a context it gives up what is not done.

    A worker that dies costs time alone, for what it had goes to others, and so does one that falls silent. Where no worker answers
    for `timeout` seconds, InputError names who was to.
    """

    def __init__(self, client: Any, timeout: float = TIMEOUT) -> None:
        self.client, self.timeout = client, timeout
        self.quiet = min(QUIET, timeout / 2)
        self.waiting: dict[Any, _Asked[T]] = {}  # by future
        self.done = distributed().as_completed(loop=client.loop, with_results=True, raise_errors=False)
        self.shared: dict[Shared, Any] = {}  # futures of what several tasks take
        self.watch = _Watch(client, self.quiet)

    def __enter__(self) -> Tasks[T]:
        return self

    def __exit__(self, *_: object) -> None:
        for future in [*self.waiting, *self.shared.values()]:
            future.release()  # which waits for nobody
        self.waiting.clear()
        self.shared.clear()

    def submit(self, what: T, function: Callable[..., Any], *arguments: Any, size: float = 1.0) -> None:
        """A call for later; those that come first are begun first. What is twice as large may take twice as long."""
        self._begin(_Asked(what, size, (function, *arguments)))

    def _begin(self, asked: _Asked[T], workers: Sequence[str] | None = None) -> None:
        where: dict[str, Any] = {} if workers is None else {"workers": workers, "allow_other_workers": True}
        if workers is not None:  # who has what is shared may be who is silent
            for argument in asked.call:
                if isinstance(argument, Shared):
                    self.shared.pop(argument, None)
        arguments = [self._sent(argument, where) for argument in asked.call]
        future = self.client.submit(_timed, *arguments, pure=False, **where)
        asked.attempts.append(future)
        self.waiting[future] = asked
        self.done.add(future)

    def _sent(self, argument: Any, where: dict[str, Any]) -> Any:
        if not isinstance(argument, Shared):
            return argument
        if argument not in self.shared:
            self.shared[argument] = self.client.submit(_itself, argument.value, pure=False, **where)
        return self.shared[argument]

    def __iter__(self) -> Iterator[tuple[T, Any]]:
        """(what it is for, its result) as they are done, those too that are submitted meanwhile. Raises what a task raised."""
        look = time.monotonic() + LOOKS
        while self.waiting:
            if self.done.has_ready():
                future, result = next(self.done)
                asked = self.waiting.pop(future, None)
                if asked is None:  # another attempt was first
                    continue
                asked.attempts.remove(future)
                if future.status == "error" and _is_killed(result[1]) and asked.attempts:
                    continue
                for attempt in asked.attempts:
                    del self.waiting[attempt]
                    attempt.release()
                if future.status == "error":
                    raise _meant(asked.what, result[1])
                if future.status != "finished":
                    raise InputError(f"the scheduler at {self.watch.address} is gone; start it and this again")
                seconds, result = result
                self.watch.finished(seconds / asked.size)
                yield asked.what, result
            elif time.monotonic() > look:
                self._look()
                look = time.monotonic() + LOOKS
            else:
                time.sleep(0.002)

    def _look(self) -> None:
        """Begin anew what is with somebody silent, and raise InputError where that is so for too long."""
        sizes = {future.key: asked.size for future, asked in self.waiting.items()}
        if not self.watch.look(sizes):
            silent = time.monotonic() - self.watch.heard
            if silent > self.timeout:
                raise InputError(f"{self.watch.scheduler_silent(self.timeout)}; see whether it runs, or pass a longer timeout")
            if silent > self.quiet:
                self.watch.tell("scheduler", self.watch.scheduler_silent(silent))
            return
        for asked in dict.fromkeys(self.waiting.values()):
            troubles = [self.watch.trouble(attempt.key) for attempt in asked.attempts]
            if None in troubles:
                asked.since = None
                continue
            latest = max((trouble for trouble in troubles if trouble is not None), key=lambda trouble: trouble.since)
            asked.since = latest.since if asked.since is None else asked.since
            if time.monotonic() - asked.since > self.timeout + latest.more:
                raise InputError(f"{asked.what}: {latest.why}, and is given up; {latest.repair}")
            for attempt in asked.attempts:
                asked.tried |= self.watch.at(attempt.key)
            others = [worker for worker in self.watch.able() if worker not in asked.tried]
            begins = bool(others) and len(asked.attempts) < ATTEMPTS
            then = "it begins anew elsewhere" if begins else "there is no other worker yet" if not others else "it is waited for"
            self.watch.tell(latest.why.split(" has ")[0], f"{asked.what}: {latest.why}; {then}")
            if begins:
                self._begin(asked, others)


class _Watch:
    """Who works on which tasks, and who is silent, as the scheduler knows it."""

    def __init__(self, client: Any, quiet: float) -> None:
        self.client, self.quiet = client, quiet
        self.address = client.scheduler.address
        self.began = client.cluster is not None  # workers, with the client
        self.heard = self.peopled = time.monotonic()  # when the scheduler answered, and when it had a worker
        self.ages: dict[str, tuple[str, float]] = {}  # name and seconds of silence of each worker, by its address
        self.needs: dict[str, list[list[str]]] = {}  # of each task: groups of workers, of each of which one must answer
        self.had: dict[str, tuple[frozenset[str], float]] = {}  # of each worker: its tasks, and since when it has just these
        self.slowest: float | None = None  # seconds for a task of size 1
        self.told: set[str] = set()
        self.sizes: dict[str, float] = {}

    def look(self, sizes: dict[str, float]) -> bool:
        """Whether the scheduler answers."""
        self.sizes = sizes
        try:
            self.ages, self.needs = answered(self.client, lambda: self.client.run_on_scheduler(_placed(), list(sizes)), LOOKS)
        except (TimeoutError, OSError):
            return False
        now = self.heard = time.monotonic()
        if self.ages:
            self.peopled = now
        has = {worker: frozenset(key for key, needs in self.needs.items() if [worker] in needs) for worker in self.ages}
        self.had = {
            worker: self.had[worker] if worker in self.had and self.had[worker][0] == tasks else (tasks, now)
            for worker, tasks in has.items()
        }
        return True

    def finished(self, seconds: float) -> None:
        self.slowest = max(self.slowest or 0.0, seconds)

    def at(self, key: str) -> set[str]:
        return {worker for group in self.needs.get(key, ()) for worker in group}

    def trouble(self, key: str) -> _Trouble | None:
        """Why nothing is to be expected of a task."""
        now = time.monotonic()
        if not self.ages:
            quiet = now - self.peopled
            if self.began:  # whose processes are begun anew, which is not yet a trouble
                repair = "see what holds or ends them, as a memory that is full, or pass a longer timeout"
                why = f"every worker begun here has been gone for {quiet:.0f} s"
                return _Trouble(why, self.peopled, repair) if quiet > self.quiet else None
            repair = f"start some with: dask worker {self.address}"
            why = f"the scheduler at {self.address} has had no worker for {quiet:.0f} s"
            return _Trouble(why, self.peopled, repair) if quiet > 1 else None
        for group in self.needs.get(key, ()):
            if all(self._is_silent(worker) for worker in group):
                name, age = min(
                    (self.ages.get(worker, (f"the worker at {worker}", 0.0)) for worker in group), key=lambda one: one[1]
                )
                return _Trouble(f"{name} has not answered for {age:.0f} s", now - age)
        late = [worker for worker in self.at(key) if self._is_late(worker)]
        if late:
            since = self.had[late[0]][1]
            like = self._expected(late[0])
            why = f"{self.ages[late[0]][0]} has had it for {now - since:.0f} s, and others took at most {like:.2g} s for as much"
            return _Trouble(why, since, "see what holds it, or pass a longer timeout", 2 * SLOWER * like)
        return None

    def able(self) -> list[str]:
        """Who may take more."""
        return [worker for worker in self.ages if not self._is_silent(worker) and not self._is_late(worker)]

    def _is_silent(self, worker: str) -> bool:
        return (
            worker not in self.ages or self.ages[worker][1] > self.quiet + len(self.ages) / 50
        )  # many are to be heard of less often

    def _is_late(self, worker: str) -> bool:
        tasks, since = self.had.get(worker, (frozenset(), 0.0))
        if not tasks or self.slowest is None:
            return False
        return time.monotonic() - since > self.quiet + SLOWER * self._expected(worker)

    def _expected(self, worker: str) -> float:
        """Seconds that the largest task of a worker takes, by what others took."""
        return (self.slowest or 0.0) * max((self.sizes.get(key, 0.0) for key in self.had[worker][0]), default=0.0)

    def tell(self, of: str, said: str) -> None:
        """Once of each."""
        if of not in self.told:
            self.told.add(of)
            warnings.warn(said, RuntimeWarning, stacklevel=2)

    def scheduler_silent(self, seconds: float) -> str:
        return f"the scheduler at {self.address} has not answered for {seconds:.0f} s"


def _placed() -> Callable[..., Any]:
    """What a scheduler is asked: as it stands, for it may have nothing of this."""

    def placed(keys: list[str], dask_scheduler: Any) -> Any:
        from time import time

        ages = {
            worker.address: (f"the worker at {worker.address} (process {worker.pid} of {worker.host})", time() - worker.last_seen)
            for worker in dask_scheduler.workers.values()
        }

        def needs(task: Any) -> list[list[str]]:
            if task is None:
                return []
            if task.state == "memory":
                return [[worker.address for worker in task.who_has]]
            at = task.processing_on
            own = [] if at is None else [[at.address]]
            return own + [group for of in task.dependencies if at is None or at not in (of.who_has or ()) for group in needs(of)]

        return ages, {key: needs(dask_scheduler.tasks.get(key)) for key in keys}

    return placed


def _timed(function: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """(seconds, result), on a worker."""
    begun = time.monotonic()
    result = function(*arguments)
    return time.monotonic() - begun, result


def _itself(value: Any) -> Any:
    return value


def _is_killed(error: BaseException) -> bool:
    return isinstance(error, distributed().KilledWorker)


def _meant(what: Any, error: BaseException) -> BaseException:
    if _is_killed(error):
        return InputError(f"{what}: every worker that took it died; give workers more memory, or read their logs")
    return error
