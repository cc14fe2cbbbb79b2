"""logsumexp of Dask arrays beside plain Dask, max, exp, sum and log, in turns in one process, and what each holds of an array."""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import softmaxima as sm

SCORES = 2**27
TURNS = 7
PEAK = 30.0  # as that of the label in a row of a classifier that is trained


@dataclass(frozen=True)
class Case:
    """An array of normal numbers times 3, where it lies, how it is cut, and what is added to one score of each row."""

    place: str  # memory | npy | zarr
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    axis: int
    peak: float = 0.0


@dataclass(frozen=True)
class Found:
    """Median seconds of each, and how many chunks of how many each has in memory at a time, where they are read one by one."""

    case: Case
    plain: float
    ours: float
    plain_held: int
    ours_held: int
    chunks: int
    apart: float  # the largest relative difference


ROWS, LONG = (8192, SCORES // 8192), (SCORES,)
WIDE, TALL = (2048, 4096), (8192, 1024)
CASES = (
    Case("memory", "float64", ROWS, WIDE, 1),
    Case("memory", "float32", ROWS, WIDE, 1),
    Case("memory", "float64", ROWS, WIDE, 1, PEAK),
    Case("memory", "float32", ROWS, WIDE, 1, PEAK),
    Case("memory", "float64", ROWS[::-1], TALL, 0),
    Case("memory", "float32", ROWS[::-1], TALL, 0),
    Case("memory", "float64", LONG, (SCORES // 16,), 0),
    Case("memory", "float32", LONG, (SCORES // 16,), 0),
    Case("memory", "float32", (1024, SCORES // 8192), (256, 2048), 1),  # chunks whose work is as much Dask's as ours
    Case("npy", "float64", ROWS, WIDE, 1),
    Case("zarr", "float64", ROWS, WIDE, 1),
)


def plain(x: Any, axis: int) -> Any:
    """As it is written with Dask alone."""
    import dask.array as da

    top = x.max(axis, keepdims=True)
    return (top + da.log(da.exp(x - top).sum(axis, keepdims=True))).squeeze(axis)


def ours(x: Any, axis: int) -> Any:
    return sm.dask.logsumexp(x, axis)  # type: ignore[attr-defined]


def measure(folder: Path, cases: tuple[Case, ...] = CASES, advanced: Callable[[], None] = lambda: None) -> Iterator[Found]:
    """Each case, on Dask's scheduler of threads; files go to the folder."""
    for case in cases:
        values = _scores(case)
        x = _stored(values, case, folder)
        seconds: dict[Any, list[float]] = {plain: [], ours: []}
        results: dict[Any, Any] = {}
        for _, each in itertools.product(range(TURNS), (plain, ours)):
            begun = time.perf_counter()
            results[each] = each(x, case.axis).compute(scheduler="threads")
            seconds[each].append(time.perf_counter() - begun)
        apart = float(np.max(np.abs(results[ours] / results[plain] - 1)))
        held = {each: _held(values, case, each) for each in (plain, ours)}
        yield Found(case, median(seconds[plain]), median(seconds[ours]), held[plain], held[ours], x.npartitions, apart)
        advanced()


def _scores(case: Case) -> np.ndarray:
    random = np.random.default_rng(0)
    values = 3 * random.standard_normal(case.shape).astype(case.dtype)
    places = random.integers(0, case.shape[case.axis], (*case.shape[: case.axis], 1, *case.shape[case.axis + 1 :]))
    np.put_along_axis(values, places, np.take_along_axis(values, places, case.axis) + case.peak, case.axis)
    return values


def _stored(values: np.ndarray, case: Case, folder: Path) -> Any:
    import dask.array as da

    if case.place == "npy":
        np.save(folder / "scores.npy", values)
        return da.from_array(np.load(folder / "scores.npy", mmap_mode="r"), chunks=case.chunks)  # type: ignore[arg-type]
    if case.place == "zarr":
        import zarr

        store = zarr.create_array(folder / "scores.zarr", shape=case.shape, chunks=case.chunks, dtype=case.dtype, compressors=None)
        store[:] = values
        return da.from_zarr(folder / "scores.zarr")
    return da.from_array(values, chunks=case.chunks)  # type: ignore[arg-type]


def _held(values: np.ndarray, case: Case, each: Callable[..., Any]) -> int:
    """The most chunks that are in memory at a time, of copies that are made where a chunk is read."""
    import dask.array as da

    lock, now, most = threading.Lock(), 0, 0

    def gone() -> None:
        nonlocal now
        now -= 1

    def read(block: np.ndarray) -> np.ndarray:
        nonlocal now, most
        own = block.copy()
        with lock:
            now += 1
            most = max(most, now)
        weakref.finalize(own, gone)
        return own

    x = da.from_array(values, chunks=case.chunks)  # type: ignore[arg-type]
    each(x.map_blocks(read, dtype=x.dtype, meta=x._meta), case.axis).compute(scheduler="threads")
    return most
