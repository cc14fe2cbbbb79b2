"""logsumexp of a file of any size: its blocks one after the other into a state, which an interruption leaves in a checkpoint."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch

from softmaxima import _kernels
from softmaxima._map import check_positive
from softmaxima.lse.checkpoint import Checkpoint, Fingerprint
from softmaxima.lse.formats import STANDARD_INPUT, Block, FileError, Scores, open_scores, piece_length, unreadable
from softmaxima.lse.state import LogSumExpState, of_pieces

CHECKPOINT_SECONDS = 5.0
WINDOW = 64  # pieces of plain memory, at most, that a thread sums at a time


def file_logsumexp(
    path: str | Path,
    *,
    column: str | None = None,
    dtype: str | None = None,
    temperature: float = 1.0,
    effective_size: bool = False,
    checkpoint: str | Path | None = None,
    progress: Callable[[int, Scores], None] | None = None,
    observe: Callable[[Block], None] | None = None,
) -> LogSumExpState:
    """The state of all scores in a file: its `value` is their logsumexp, log Σ exp(x_i/τ), in nats.

    Args:
        path: .npy or raw memory (which several threads read at once), .npz, .parquet, .arrow, .feather, .h5, .hdf5, .zarr,
            .txt with numbers between spaces, commas or line ends, or "-" for standard input. Arrays may have any shape.
        column: the array of an .npz, the column of a table, the dataset of an HDF5 or Zarr file, the field of a structured .npy;
            where there is only one it may be left out.
        dtype: for raw memory: float64, float32, bfloat16, float16, int64, int32, int16, int8 or uint8, in the machine's byte order.
        temperature: τ, a positive number.
        effective_size: keep 1/Σp² too. It costs several times as much as the value.
        checkpoint: a file to continue from if it exists, written every few seconds and when an exception, such as
            KeyboardInterrupt, ends the call, and removed when the sum is complete.
        progress: called with (scores summed so far, the file's `Scores`) at the beginning and after each block.
        observe: called with each block of scores, for what else is to be known of them; not together with a checkpoint, which
            would keep no record of it.

    Raises:
        ValueError (its subclass FileError): a file that is missing, cut off, of another kind, or not that of the checkpoint, or
            that was written to while it was read; always in one line that says what to do. A checkpoint is then left as it is.

    Memory is constant: 4 MiB a thread, or 2²⁰ scores (one chunk of HDF5 and Zarr, if larger). Cost: one read.

    >>> import pathlib, tempfile, numpy as np, softmaxima as sm
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "scores.npy"
    ...     np.save(path, np.zeros((100, 1000), np.float32))
    ...     sm.file_logsumexp(path).value == np.log(1e5)
    np.True_
    """
    path = Path(path)
    tau = check_positive("file_logsumexp", "temperature", temperature)
    place = None if checkpoint is None else Path(checkpoint)
    if place is not None and path == STANDARD_INPUT:
        raise FileError("--checkpoint: standard input cannot be read again from where it stopped; give a file")
    if place is not None and observe is not None:
        raise FileError("--checkpoint keeps the sum alone; leave it out, or ask for nothing beside the sum")
    scores = open_scores(path, column, dtype)
    state = LogSumExpState() if effective_size else LogSumExpState(squares=None)
    if path == STANDARD_INPUT:
        return _summed(scores, state, tau, progress, observe, lambda state: None)

    fingerprint = Fingerprint.of(path)
    options = {"column": column, "dtype": dtype, "temperature": tau, "effective size": effective_size}
    if place is not None and place.exists():
        found = Checkpoint.load(place)
        found.check(path, fingerprint, options)
        state = found.state

    def save(state: LogSumExpState) -> None:
        if place is None:
            return
        try:
            Checkpoint(str(path.absolute()), fingerprint, options, state).save(place)
        except OSError as error:
            raise FileError(f"--checkpoint: cannot write {place} ({error.strerror}); choose another path") from None

    save(state)  # a place that cannot be written to shows now, not after hours
    state = _summed(scores, state, tau, progress, observe, save)
    if (happened := fingerprint.difference(Fingerprint.of(path))) is not None:
        raise FileError(f"{path} {happened} while it was read, and the sum may be of neither; start again when it is at rest")
    if place is not None:
        place.unlink()
    return state


def _summed(
    scores: Scores,
    state: LogSumExpState,
    tau: float,
    progress: Callable[[int, Scores], None] | None,
    observe: Callable[[Block], None] | None,
    save: Callable[[LogSumExpState], None],
) -> LogSumExpState:
    """The state with all scores from number `state.n` on, saved now and then, and whatever happens."""
    saved, tell = time.monotonic(), progress or (lambda done, scores: None)
    squares = state.squares is not None
    if scores.part is not None and scores.count is not None and observe is None:
        parts = _side_by_side(scores.part, int(state.n), scores.count, piece_length(scores.itemsize), tau, squares)
    else:
        parts = _one_by_one(scores.blocks(int(state.n)), tau, squares, observe)
    try:
        tell(int(state.n), scores)
        for part in parts:
            state = state.merge(part)
            tell(int(state.n), scores)
            if time.monotonic() > saved + CHECKPOINT_SECONDS:
                save(state)
                saved = time.monotonic()
    except BaseException as error:
        save(state)
        if isinstance(error, OSError):
            raise unreadable(scores.name, error) from None
        raise
    return state


def _one_by_one(
    blocks: Iterator[Block], tau: float, squares: bool, observe: Callable[[Block], None] | None
) -> Iterator[LogSumExpState]:
    for block in blocks:
        yield of_pieces([block], tau, squares)
        if observe is not None:
            observe(block)


def _side_by_side(
    part: Callable[[int, int], Iterator[Block]], start: int, stop: int, piece: int, tau: float, squares: bool
) -> Iterator[LogSumExpState]:
    """The states of windows of one length, of which each of as many threads as torch has reads and sums equally many.

    Windows are of whole pieces, so that the sum does not depend on the number of threads.
    """
    threads, pieces = torch.get_num_threads(), math.ceil((stop - start) / piece)
    rounds = math.ceil(pieces / (threads * WINDOW))
    length = piece * max(1, math.ceil(pieces / max(1, threads * rounds)))

    def window(first: int) -> LogSumExpState:
        with _kernels.one_thread():
            return of_pieces(part(first, min(first + length, stop)), tau, squares)

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
