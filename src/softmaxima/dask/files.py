"""logsumexp of files by the workers of a Dask cluster, a piece of a file at a time."""

from __future__ import annotations

import functools
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softmaxima.base.numbers import InputError, check_count, check_positive
from softmaxima.base.places import Place, found
from softmaxima.base.public import public
from softmaxima.dask.cluster import TIMEOUT, connected, processes
from softmaxima.dask.tasks import Tasks
from softmaxima.io import pieces
from softmaxima.io.files import Read, Request, check_again
from softmaxima.io.pieces import Piece, Plan
from softmaxima.io.state import LogSumExpState

if TYPE_CHECKING:
    from distributed import Client
    from softmaxima.io.formats.source import Scores

TOGETHER = 64  # small files or pieces that are a task; each costs some milliseconds
OPENED = 2**22  # bytes that are read in about the time in which a file is opened
BEGINS = 10.0  # seconds that threads of this process may take for what is left, for processes take some to begin


@public
def file_logsumexp(
    path: str | Path | Iterable[str | Path],
    *,
    client: Client | str | None = None,
    workers: int | None = None,
    column: str | None = None,
    dtype: str | None = None,
    temperature: float = 1.0,
    scale: float | None = None,
    zero_point: float = 0.0,
    effective_size: bool = False,
    trusted: bool = False,
    unended: bool = False,
    timeout: float = TIMEOUT,
    progress: Callable[[int, Scores], None] | None = None,
) -> LogSumExpState:
    """The state of all scores in files, read by many processes: its `value` is their logsumexp, log Σ exp(x_i/τ), in nats.

    Files are cut into pieces of about 64 MiB, which workers read and sum to states of a few numbers: Parquet by row groups, Arrow
    by record batches, HDF5 and Zarr by chunks, NPY and raw memory anywhere. What can only be read from its beginning (compressed
    files, CSV, text, NPZ, Arrow streams) is one piece. States are merged in the order of the files and their pieces, so that the
    result is the same to the last bit for any number of workers of one kind of processor, and within 1 ulp of what
    `softmaxima.file_logsumexp` gives of the same files in one process.

    Args:
        path: a file, a pattern as "part-*.parquet", a URL of fsspec as "s3://bucket/part-*.parquet", or several of these. Workers
            read by the same path, so that on other machines it must be on a file system that they share. A file that is meant
            twice, as by patterns that overlap or another way of writing it, is summed once.
        client: a `distributed.Client`, or the address of a scheduler, as "tcp://host:8786". Without it: the current client.
        workers: instead of a client, so many processes on this machine, which end with the call. What threads of this process read
            in less time than processes take to begin is read so.
        column, dtype, temperature, scale, zero_point, effective_size, trusted, unended: as in `softmaxima.file_logsumexp`.
        timeout: seconds after which InputError names a worker or a scheduler that does not answer, or a worker that has a piece
            for so much longer than others take for as much. After seconds a RuntimeWarning says so, and the piece begins
            anew elsewhere.
        progress: called with (scores summed so far, a `Scores` that stands for all files) at the beginning and after each piece.

    Raises:
        ValueError (its subclass `InputError`): a file that is missing, of another kind, or that was written to while it was read; a
            piece that cannot be read, with its file and, of several pieces, which scores; a scheduler that does not answer, or
            whose workers have another softmaxima; always in one line that says what to do. TypeError for arguments of another type.

    A worker that dies loses nothing: what it was to read goes to another, up to `distributed.scheduler.allowed-failures` times.
    Cost: one read of the files, and a message of some hundred bytes a piece; small pieces go together.

    >>> import pathlib, tempfile, numpy as np, softmaxima as sm
    >>> from distributed import Client
    >>> with tempfile.TemporaryDirectory() as folder, Client(processes=False, n_workers=1, dashboard_address=":0") as client:
    ...     for i in range(3):
    ...         np.save(pathlib.Path(folder) / f"part-{i}.npy", np.zeros(1000, np.float32))
    ...     state = sm.dask.file_logsumexp(f"{folder}/part-*.npy", client=client)
    >>> int(state.n), state.value == np.log(3000)
    (3000, np.True_)
    """
    name = "dask.file_logsumexp"
    request = Request.of(name, column, dtype, temperature, scale, zero_point, effective_size, trusted, unended)
    paths = found(name, path)
    for place in paths:
        check_again(place, "read in pieces")
    if workers is not None:
        check_count(name, "workers", workers)
    check_positive(name, "timeout", timeout)
    files = [_File(str(path), path.absolute()) for path in paths]
    tell = progress or (lambda done, scores: None)
    if workers is not None and client is None:
        threads = min(workers, os.cpu_count() or 1)
        with ThreadPoolExecutor(threads) as pool:
            plans = list(pool.map(lambda file: file.planned(request), files))
        work = _Work(files, plans, tell, workers)
        left = work.here(threads) if BEGINS >= 0 else work.batches
        if left:
            with connected(name, None, min(workers, len(left)), timeout) as joined:
                work.by(joined, left, timeout)
    else:
        with connected(name, client, workers, timeout) as joined:
            work = _Work(files, _plans(joined, files, request, timeout), tell, processes(joined))
            work.by(joined, work.batches, timeout)
    return functools.reduce(LogSumExpState.merge, work.in_order(), request.nothing())


@dataclass(frozen=True)
class _File:
    """A file as it was given, and where workers reach it, whose directory may be another."""

    name: str
    path: Place

    def named(self, told: str) -> str:
        return told.replace(str(self.path), self.name)

    def planned(self, request: Request) -> Plan:
        return self.read(Plan.of, self.path, request)

    def read(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a worker makes of it, which says of what is wrong whose file it is as it was given."""
        try:
            return function(*arguments)
        except InputError as error:
            raise InputError(self.named(str(error))) from error


@dataclass(frozen=True)
class _Batch:
    """Pieces that are read one after the other: (number of a file, number of its piece) of each, and their bytes."""

    places: tuple[tuple[int, int], ...]
    size: int
    name: str

    def __str__(self) -> str:
        return self.name if len(self.places) < 2 else f"{self.name} and {len(self.places) - 1} more"


def _plans(client: Client, files: Sequence[_File], request: Request, timeout: float) -> list[Plan]:
    together = max(1, min(TOGETHER, len(files) // (4 * processes(client))))
    plans: dict[int, Plan] = {}
    with Tasks[_Batch](client, timeout) as tasks:
        for first in range(0, len(files), together):
            some = files[first : first + together]
            batch = _Batch(tuple((first + i, 0) for i in range(len(some))), len(some), some[0].name)
            tasks.submit(batch, _planned, some, request, size=len(some))
        for batch, planned in tasks:
            plans.update((number, plan) for (number, _), plan in zip(batch.places, planned, strict=True))
    return [plans[number] for number in range(len(files))]


def _planned(files: Sequence[_File], request: Request) -> list[Plan]:
    return [file.planned(request) for file in files]


def _summed(pieces: Sequence[tuple[_File, Piece, Plan | None]]) -> list[LogSumExpState]:
    """The states of pieces, and of files that are one piece a comparison with what they were."""
    states = []
    for file, piece, plan in pieces:
        states.append(file.read(piece.state))
        if plan is not None:
            file.read(plan.check)
    return states


class _Work:
    """The pieces of files in batches, and the states of those that are read."""

    def __init__(self, files: Sequence[_File], plans: Sequence[Plan], tell: Callable[[int, Scores], None], readers: int) -> None:
        self.files, self.plans, self.tell = files, plans, tell
        self.total = sum(piece.size for plan in plans for piece in plan.pieces)
        self.read = Read(len(plans), self.total)
        self.states: dict[tuple[int, int], LogSumExpState] = {}
        self.left, self.done = [len(plan.pieces) for plan in plans], 0
        self.batches = list(self._batches(min(pieces.LEAST, self.total // (4 * readers))))
        tell(0, self.read.scores)

    def _batches(self, most: int) -> Iterator[_Batch]:
        """In order, each of at most so many bytes, or one piece."""
        places: list[tuple[int, int]] = []
        size = 0
        for number, plan in enumerate(self.plans):
            for place, piece in enumerate(plan.pieces):
                if places and (size + piece.size > most or len(places) == TOGETHER):
                    yield self._batch(places, size)
                    places, size = [], 0
                places.append((number, place))
                size += piece.size
        if places:
            yield self._batch(places, size)

    def _batch(self, places: Sequence[tuple[int, int]], size: int) -> _Batch:
        number, place = places[0]
        return _Batch(tuple(places), size, self.files[number].named(str(self.plans[number].pieces[place])))

    def _pieces(self, batch: _Batch) -> list[tuple[_File, Piece, Plan | None]]:
        of = lambda number: self.plans[number] if len(self.plans[number].pieces) == 1 else None
        return [(self.files[number], self.plans[number].pieces[place], of(number)) for number, place in batch.places]

    def _take(self, batch: _Batch, states: Sequence[LogSumExpState]) -> Iterator[int]:
        """Keep what came of a batch, and give the numbers of files in several pieces that are read to their end now."""
        for (number, place), state in zip(batch.places, states, strict=True):
            self.states[number, place] = state
            self.done += int(state.n)
            self.left[number] -= 1
            if not self.left[number] and len(self.plans[number].pieces) > 1:
                yield number
        self.read.bytes += batch.size
        self.tell(self.done, self.read.scores)

    def here(self, threads: int) -> list[_Batch]:
        """Read by threads of this process, which have done with most before others have begun. What is left for others."""
        whole = any(
            batch.size > 2 * pieces.LEAST for batch in self.batches
        )  # what cannot be cut is decoded, by one thread at a time
        if whole or not all(isinstance(file.path, Path) for file in self.files):
            return self.batches
        left, reading = deque(self.batches), dict[Future[list[LogSumExpState]], _Batch]()
        begun, stays = time.monotonic(), True
        with ThreadPoolExecutor(threads) as pool:
            while reading or (left and stays):
                while left and stays and len(reading) < threads:
                    batch = left.popleft()
                    reading[pool.submit(_summed, self._pieces(batch))] = batch
                for future in wait(reading, return_when=FIRST_COMPLETED).done:
                    for number in self._take(reading.pop(future), future.result()):
                        self.files[number].read(self.plans[number].check)
                rest = sum(batch.size for batch in left)
                stays = (time.monotonic() - begun) * rest <= BEGINS * self.read.bytes
        return list(left)

    def by(self, client: Client, batches: Sequence[_Batch], timeout: float) -> None:
        """Read by the workers of a client."""
        with Tasks[_Batch | int](client, timeout) as tasks:
            for batch in batches:
                tasks.submit(batch, _summed, self._pieces(batch), size=batch.size + OPENED * len(batch.places))
            for batch, states in tasks:
                if isinstance(batch, _Batch):
                    for number in self._take(batch, states):
                        tasks.submit(number, self.files[number].read, self.plans[number].check, size=OPENED)

    def in_order(self) -> list[LogSumExpState]:
        return [self.states[place] for place in sorted(self.states)]
