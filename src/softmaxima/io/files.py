"""logsumexp of a file of any size: its blocks one after the other into a state, which an interruption leaves in a checkpoint."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from softmaxima.base.numbers import (
    InputError,
    Problems,
    as_number,
    check_number,
    check_one_temperature,
    check_positive,
    described,
    is_finite,
)
from softmaxima.base.places import STANDARD_INPUT, Place, found
from softmaxima.base.public import public
from softmaxima.io.checkpoint import Checkpoint, Fingerprint
from softmaxima.io.counts import COUNTED, Codes
from softmaxima.io.formats.opening import open_scores, read_once
from softmaxima.io.formats.plain import piece_length
from softmaxima.io.formats.source import Asked, Scores
from softmaxima.io.state import LogSumExpState, of_pieces
from softmaxima.kernels import interface

if TYPE_CHECKING:
    from softmaxima.io.formats.source import Block

    Observer = Callable[[Block, np.ndarray | None], None]

CHECKPOINT_SECONDS = 5.0
TOLD_SECONDS = 0.2  # after which scores that are counted become a state
WINDOW = 64  # pieces of plain memory, at most, that a thread sums at a time


@public
def file_logsumexp(
    path: str | Path | Iterable[str | Path],
    *,
    column: str | None = None,
    dtype: str | None = None,
    temperature: float = 1.0,
    scale: float | None = None,
    zero_point: float = 0.0,
    effective_size: bool = False,
    trusted: bool = False,
    unended: bool = False,
    checkpoint: str | Path | None = None,
    progress: Callable[[int, Scores], None] | None = None,
    observe: Observer | None = None,
) -> LogSumExpState:
    """The state of all scores in a file, or in several: its `value` is their logsumexp, log Σ exp(x_i/τ), in nats.

    Args:
        path: .npy or raw memory (which several threads read at once), .npz, .parquet, .arrow (files and streams), .feather, .h5,
            .hdf5, .zarr, .csv (a first line of numbers is no header, and its columns are f0, f1, …), .txt with numbers between
            spaces, commas or line ends, or "-" for standard input; a named pipe is read as standard input is. Arrays may have any
            shape. Of these .npy, .csv, .txt, Arrow streams and raw memory may be compressed: .npy.gz, .csv.zst, .zip and so on. A
            pattern, as "part-*.parquet", stands for all files that it matches, in the order of their names; s3://, https:// and the
            other URLs of fsspec for what is elsewhere. Several paths, or patterns, are summed together; a file that is meant
            twice, as by patterns that overlap, another way of writing its path or URL or a symbolic link, is summed once.
        column: the array of an .npz, the column of a table, the dataset of an HDF5 or Zarr file, the field of a structured .npy;
            where there is only one it may be left out.
        dtype: for raw memory: float64, float32, bfloat16, float16, int64, int32, int16, int8 or uint8, in the machine's byte order.
        temperature: τ, a positive number.
        scale, zero_point: of int8 and uint8, whose scores are then scale · (q − zero_point).
        effective_size: keep 1/Σp² too. It costs several times as much as the value.
        trusted: the files are of who may make this process read any file: HDF5 datasets whose scores are in files that it names,
            links out of a Zarr directory, and Feather of version 1, whose reader may crash, are read and not refused.
        unended: of CSV and text, the last line may have no line end, and of CSV there may be no row after the header; of Arrow
            streams the mark of their end may be missing. That is else taken for the sign of a file that is cut off, unless all is
            one line of at most 4096 bytes.
        checkpoint: of one file: a file to continue from if it exists, written every few seconds and when an exception, such as
            KeyboardInterrupt, ends the call, and removed when the sum is complete.
        progress: called with (scores summed so far, the file's `Scores`) at the beginning and after each block; of several files,
            with what stands for all of them.
        observe: called with (scores, counts) for what else is to be known of them: each block, scaled, and None, or of dtypes of 8
            and 16 bits the scores that occur and how often each does; not together with a checkpoint, which keeps no record of it.

    Raises:
        ValueError (its subclass `InputError`): a file that is missing, empty, cut off, of another kind, or not that of the
            checkpoint, or that was written to while it was read; always in one line that says what to do. A checkpoint is then left
            as it is.

    Memory is constant: 5 MiB a thread, or 2²⁰ scores (one chunk of HDF5 and Zarr, if larger). Cost: one read. Scores of 8 and 16
    bits are summed by counting how often each value occurs, which gives `effective_size` too at no cost. Terms of wider ones are
    taken in float64: of float32 in memory that takes some three times what `logsumexp` of the mapped file does, which takes them in
    float32.

    >>> import pathlib, tempfile, numpy as np, softmaxima as sm
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "scores.npy"
    ...     np.save(path, np.zeros((100, 1000), np.float32))
    ...     sm.file_logsumexp(path).value == np.log(1e5)
    np.True_
    """
    name = "file_logsumexp"
    request = Request.of(name, column, dtype, temperature, scale, zero_point, effective_size, trusted, unended)
    paths = found(name, path)
    for what, told in {"progress": progress, "observe": observe}.items():
        if told is not None and not callable(told):
            raise TypeError(f"{name}: {what} must be a function or None, got {described(told, 'a function')}")
    place = None if checkpoint is None else _checked_path(name, "checkpoint", checkpoint)
    if place is not None and observe is not None:
        raise InputError("`checkpoint` keeps the sum alone; leave it out, or ask for nothing beside the sum")
    if len(paths) == 1:
        return _of_file(paths[0], request, request.nothing(), place, progress, observe)
    if place is not None:
        raise InputError(f"`checkpoint` is of one file, and these are {len(paths)}; leave it out, or sum one file at a time")
    return _of_files(paths, request, progress, observe)


def _of_files(
    paths: Sequence[Place],
    request: Request,
    progress: Callable[[int, Scores], None] | None,
    observe: Observer | None,
) -> LogSumExpState:
    """Of one after the other, each of which is opened first, so that one that cannot be used shows before any work."""
    sizes, problems = [], Problems()
    for path in paths:
        with problems:
            check_again(path, "one of several files")
            sizes.append(request.opened(path)[0].bytes_read(0)[1])
    problems.tell()
    read = Read(len(paths), sum(size or 0 for size in sizes))
    state, tell = request.nothing(), progress or (lambda done, scores: None)
    tell(0, read.scores)
    for path, size in zip(paths, sizes, strict=True):
        before, bytes_before = int(state.n), read.bytes

        def summed(done: int, scores: Scores, before: int = before, bytes_before: int = bytes_before) -> None:
            read.bytes = bytes_before + scores.bytes_read(done)[0]
            tell(before + done, read.scores)

        state = state.merge(_of_file(path, request, request.nothing(), None, summed, observe))
        read.bytes = bytes_before + (size or 0)
    return state


class Read:
    """How much of several files is read: `scores` is what `progress` is told of them."""

    def __init__(self, files: int, size: int) -> None:
        self.bytes = 0
        nothing = lambda start: iter(())
        self.scores = Scores(f"{files} files", "several", 1, None, nothing, size=size, position=lambda: self.bytes)


def check_again(path: Place, what: str) -> None:
    """Raise InputError for what can be read once alone."""
    if read_once(path):
        raise InputError(f"{_named(path)} cannot be {what}, for it can be read once alone; give a file")


def _named(path: Place) -> str:
    return "standard input" if path == STANDARD_INPUT else str(path)


def _of_file(
    path: Place,
    request: Request,
    state: LogSumExpState,
    place: Path | None,
    progress: Callable[[int, Scores], None] | None,
    observe: Observer | None,
) -> LogSumExpState:
    once = read_once(path)
    if place is not None and once:
        raise InputError(f"`checkpoint`: {_named(path)} cannot be read again from where it stopped; give a file")
    scores, reading = request.opened(path)
    if once:
        return _summed(scores, state, reading, progress, observe, lambda state: None)

    fingerprint = Fingerprint.of(path)
    options = request.options()
    if place is not None and os.path.exists(place):  # not Path.exists, which raises in a folder that may not be read
        kept = Checkpoint.load(place)
        kept.check(place, path, fingerprint, options, scores.count)
        state = kept.state

    own = None if place is None else Path(os.path.realpath(place))  # once, for a link may be put in its place
    written: list[tuple[int, ...]] = []

    def save(state: LogSumExpState) -> None:
        if own is None:
            return
        try:
            Checkpoint(str(path.absolute()), fingerprint, options, state).save(own, follow=False)
            written[:] = [_identity(own)]
        except OSError as error:
            raise InputError(f"`checkpoint`: cannot write {place} ({error.strerror}); choose another path") from None

    save(state)  # a place that cannot be written to shows now, not after hours
    state = _summed(scores, state, reading, progress, observe, save)
    check_unchanged(path, fingerprint)
    if own is not None:
        try:
            if _identity(own) == written[0]:  # and not what another has put there
                own.unlink()
        except FileNotFoundError:  # it was moved away
            pass
        except OSError as error:
            said = f"the sum is done, and its checkpoint {place} cannot be removed ({error.strerror}); remove it"
            warnings.warn(said, RuntimeWarning, stacklevel=4)
    return state


def _identity(path: Path) -> tuple[int, ...]:
    """What tells a file from another in its place, which may have its inode."""
    stat = os.lstat(path)
    return stat.st_dev, stat.st_ino, stat.st_mode, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def check_unchanged(path: Place, fingerprint: Fingerprint) -> None:
    """Raise InputError if a file is not what it was."""
    if (happened := fingerprint.difference(Fingerprint.of(path))) is not None:
        raise InputError(f"{path} {happened} while it was read, and the sum may be of neither; start again when it is at rest")


@dataclass(frozen=True)
class Request:
    """What is asked of files: which scores, and what of their sum."""

    asked: Asked
    tau: float
    squares: bool
    quantised: tuple[float, float] | None  # of int8 and uint8, where it is given: (scale, zero point)

    @staticmethod
    def of(
        name: str,
        column: str | None,
        dtype: str | None,
        temperature: float,
        scale: float | None,
        zero_point: float,
        effective_size: bool,
        trusted: bool = False,
        unended: bool = False,
    ) -> Request:
        """The arguments of the function `name`, checked."""
        tau = check_one_temperature(name, temperature)
        quantised = None
        if scale is not None or as_number(zero_point) != 0.0:
            scale = 1.0 if scale is None else check_positive(name, "scale", scale)
            quantised = scale, check_number(name, "zero_point", zero_point, is_finite, "a finite number")
        asked = Asked(column, dtype, trusted, unended)
        return Request(asked, tau, effective_size, quantised)

    def nothing(self) -> LogSumExpState:
        return LogSumExpState() if self.squares else LogSumExpState(squares=None)

    def opened(self, path: Place) -> tuple[Scores, Reading]:
        """A file's scores, and how they are summed."""
        scores = open_scores(path, **vars(self.asked))
        if self.quantised is not None and scores.dtype not in ("int8", "uint8"):
            holds = f"{scores.name} holds {scores.dtype}"
            raise InputError(f"`scale` and `zero_point` are of int8 and uint8, and {holds}; leave them out")
        codes = Codes(scores.dtype, *(self.quantised or ())) if scores.dtype in COUNTED else None
        return scores, Reading(self.tau, self.squares, codes)

    def options(self) -> dict[str, Any]:
        """As a checkpoint has them."""
        asked = self.asked
        given = {"column": asked.column, "dtype": asked.dtype, "temperature": self.tau, "effective size": self.squares}
        return given if self.quantised is None else given | dict(zip(("scale", "zero point"), self.quantised, strict=True))


def _checked_path(name: str, what: str, path: Any) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"{name}: {what} must be a path, got {described(path, 'a str or a pathlib.Path')}")
    if path == "":
        raise ValueError(f"{name}: {what} must be a path, got the empty string; name a file")
    return Path(path)


@dataclass(frozen=True)
class Reading:
    """How blocks become a state; `codes` is of scores that are counted."""

    tau: float
    squares: bool
    codes: Codes | None

    def state(self, blocks: Iterable[Block]) -> LogSumExpState:
        if self.codes is None:
            return of_pieces(blocks, self.tau, self.squares)
        return self.codes.state(next(self.codes.counted(blocks)), self.tau, self.squares)  # type: ignore[arg-type]

    def states(self, blocks: Iterable[Block], observe: Observer | None) -> Iterator[LogSumExpState]:
        """The states of some blocks, then of those that follow; `observe` is told of each."""
        told = observe or (lambda scores, counts: None)
        if self.codes is None:
            for block in blocks:
                yield of_pieces([block], self.tau, self.squares)
                told(block, None)
            return
        for counts in self.codes.counted(blocks, TOLD_SECONDS):  # type: ignore[arg-type]
            yield self.codes.state(counts, self.tau, self.squares)
            told(*self.codes.occurring(counts))


def _summed(
    scores: Scores,
    state: LogSumExpState,
    reading: Reading,
    progress: Callable[[int, Scores], None] | None,
    observe: Observer | None,
    save: Callable[[LogSumExpState], None],
) -> LogSumExpState:
    """The state with all scores from number `state.n` on, saved now and then, and whatever happens."""
    saved, tell = time.monotonic(), progress or (lambda done, scores: None)
    if scores.part is not None and scores.mapped is not None and scores.count is not None and observe is None:
        parts = _side_by_side(scores.part, int(state.n), scores.count, piece_length(scores.itemsize), reading)
    else:
        parts = reading.states(scores.blocks(int(state.n)), observe)
    try:
        tell(int(state.n), scores)
        for part in parts:
            state = state.merge(part)
            tell(int(state.n), scores)
            if time.monotonic() > saved + CHECKPOINT_SECONDS:
                save(state)
                saved = time.monotonic()
    except BaseException:
        save(state)
        raise
    return state


def _side_by_side(
    part: Callable[[int, int], Iterator[Block]], start: int, stop: int, piece: int, reading: Reading
) -> Iterator[LogSumExpState]:
    """The states of windows of one length, of which each thread reads and sums equally many.

    Windows are of whole pieces, so that the sum does not depend on the number of threads.
    """
    threads, pieces = interface.threads(), math.ceil((stop - start) / piece)
    rounds = math.ceil(pieces / (threads * WINDOW))
    length = piece * max(1, math.ceil(pieces / max(1, threads * rounds)))

    def window(first: int) -> LogSumExpState:
        with interface.one_thread():
            return reading.state(part(first, min(first + length, stop)))

    if threads == 1 or length >= stop - start:  # a thread of its own would only cost its beginning
        yield from map(window, range(start, stop, length))
        return
    pool = ThreadPoolExecutor(threads)
    waiting: deque[Future[LogSumExpState]] = deque()
    try:
        for first in range(start, stop, length):
            waiting.append(pool.submit(window, first))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
