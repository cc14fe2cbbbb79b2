"""logsumexp of files by the workers of a Dask cluster, a piece of a file at a time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softmaxima.core.numbers import InputError, check_count
from softmaxima.core.places import Place, found
from softmaxima.core.public import public
from softmaxima.dask.cluster import Tasks, connected, grow
from softmaxima.streams.files import Read, Request, check_again
from softmaxima.streams.pieces import Plan
from softmaxima.streams.state import LogSumExpState

if TYPE_CHECKING:
    from distributed import Client
    from softmaxima.streams.formats import Scores


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
        workers: instead of a client, so many processes on this machine, no more than there are pieces, which end with the call.
        column, dtype, temperature, scale, zero_point, effective_size, trusted: as in `softmaxima.file_logsumexp`.
        progress: called with (scores summed so far, a `Scores` that stands for all files) at the beginning and after each piece.

    Raises:
        ValueError (its subclass `InputError`): a file that is missing, of another kind, or that was written to while it was read; a
            piece that cannot be read, with its file and, of several pieces, which scores; a scheduler that does not answer, or
            whose workers have another softmaxima; always in one line that says what to do. TypeError for arguments of another type.

    A worker that dies loses nothing: what it was to read goes to another, up to `distributed.scheduler.allowed-failures` times.
    Cost: one read of the files, and a message of some hundred bytes a piece.

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
    request = Request.of(name, column, dtype, temperature, scale, zero_point, effective_size, trusted)
    paths = found(name, path)
    for place in paths:
        check_again(place, "read in pieces")
    if workers is not None:
        check_count(name, "workers", workers)
    with connected(name, client, None if workers is None else min(workers, max(1, len(paths)))) as joined:
        files = [_File(str(path), path.absolute()) for path in paths]
        plans = _plans(joined, files, request)
        if workers is not None:
            grow(joined, min(workers, sum(len(plan.pieces) for plan in plans)))
        states = _states(joined, files, plans, progress or (lambda done, scores: None))
    return functools.reduce(LogSumExpState.merge, states, request.nothing())


@dataclass(frozen=True)
class _File:
    """A file as it was given, and where workers reach it, whose directory may be another."""

    name: str
    path: Place

    def named(self, told: str) -> str:
        return told.replace(str(self.path), self.name)

    def read(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a worker makes of it, which says of what is wrong whose file it is as it was given."""
        try:
            return function(*arguments)
        except InputError as error:
            raise InputError(self.named(str(error))) from error


@dataclass(frozen=True)
class _Task:
    """What is done for the piece of that number of a file, or for a file."""

    file: int
    piece: int
    name: str

    def __str__(self) -> str:
        return self.name


def _plans(client: Client, files: Sequence[_File], request: Request) -> list[Plan]:
    plans: dict[int, Plan] = {}
    with Tasks[_Task](client) as tasks:
        for number, file in enumerate(files):
            tasks.submit(_Task(number, 0, file.name), file.read, Plan.of, file.path, request)
        for task, plan in tasks:
            plans[task.file] = plan
    return [plans[number] for number in range(len(files))]


def _states(
    client: Client, files: Sequence[_File], plans: Sequence[Plan], tell: Callable[[int, Scores], None]
) -> list[LogSumExpState]:
    """Of all pieces in order. A file is compared with what it was when the last of its pieces is read."""
    read = Read(len(plans), sum(piece.size for plan in plans for piece in plan.pieces))
    states: dict[tuple[int, int], LogSumExpState] = {}
    left, done = [len(plan.pieces) for plan in plans], 0
    with Tasks[_Task](client) as tasks:
        for number, (file, plan) in enumerate(zip(files, plans, strict=True)):
            for place, piece in enumerate(plan.pieces):
                tasks.submit(_Task(number, place, file.named(str(piece))), file.read, piece.state)
        tell(done, read.scores)
        for task, state in tasks:
            if state is None:  # of a check
                continue
            states[task.file, task.piece] = state
            left[task.file] -= 1
            if not left[task.file]:
                file = files[task.file]
                tasks.submit(_Task(task.file, 0, file.name), file.read, plans[task.file].check)
            done += int(state.n)
            read.bytes += plans[task.file].pieces[task.piece].size
            tell(done, read.scores)
    return [states[place] for place in sorted(states)]
