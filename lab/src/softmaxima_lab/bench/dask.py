"""logsumexp of Dask arrays beside plain Dask, max, exp, sum and log, and how much of an array each holds at a time."""

from __future__ import annotations

import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import softmaxima as sm
from softmaxima.base.numbers import InputError, check_choice
from softmaxima_lab.bench.case import FORWARD, OURS, Case, Found, Group, Place, Result, Trial, Wanted, run_trial
from softmaxima_lab.bench.clock import Clock
from softmaxima_lab.bench.maps import Shape, read_shape

PLACES, PEAKED = ("memory", "npy", "zarr"), ", one + 30"
PEAK = 30.0  # that is added to one score of each row, as that of the label in a row of a classifier that is trained
PLAIN = "plain Dask"
TOLERANCE = {"float64": 1e-12, "float32": 1e-5}
ROWS, COLUMNS, LONG, SMALL = "8192x16384@1/2048x4096", "16384x8192@0/8192x1024", "134217728/8388608", "1024x16384@1/256x2048"
# (place, size, dtypes); in the small one chunks are so small that their work is as much Dask's as ours
USUAL = (
    ("memory", ROWS, ("float64", "float32")),
    ("memory" + PEAKED, ROWS, ("float64", "float32")),
    ("memory", COLUMNS, ("float64", "float32")),
    ("memory", LONG, ("float64", "float32")),
    ("memory", SMALL, ("float32",)),
    ("npy", ROWS, ("float64",)),
    ("zarr", ROWS, ("float64",)),
)
QUICK_SIZE = "256x1024@1/64x512"


def read_size(text: str) -> tuple[Shape, tuple[int, ...]]:
    """(the shape and the axis, the chunks)"""
    shape, _, chunks = text.partition("/")
    found, cut = read_shape(shape), read_shape(chunks or shape.partition("@")[0]).sizes
    if len(cut) != len(found.sizes):
        raise InputError(f"`shapes`: {text!r} needs as many sizes of a chunk as of the array, as in {ROWS}")
    return found, cut


def _cases(wanted: Wanted) -> list[Case]:
    try:
        import softmaxima.dask  # noqa: F401 - which says what is missing
    except ImportError as error:
        raise InputError(str(error)) from None
    if wanted.device != "cpu":
        raise InputError("CASES: dask is measured on the CPU; leave out --device")
    names = [check_choice("bench", "CASES", name, PLACES) for name in wanted.names]
    dtypes = [check_choice("bench", "dtype", dtype, tuple(TOLERANCE)) for dtype in wanted.dtypes]
    sizes = wanted.sizes or ((QUICK_SIZE,) if wanted.quick else ())
    usual = USUAL if not sizes else tuple((name, size, ("float64",)) for size in sizes for name in PLACES)
    return [
        Case("dask", name, size, dtype, FORWARD)
        for name, size, usual_dtypes in usual
        for dtype in dtypes or usual_dtypes
        if read_size(size) and (not names or name.partition(",")[0] in names)
    ]


def _plain(x: Any, axis: int) -> Any:
    """As it is written with Dask alone."""
    import dask.array as da

    top = x.max(axis, keepdims=True)
    return (top + da.log(da.exp(x - top).sum(axis, keepdims=True))).squeeze(axis)


WAYS: dict[str, Callable[[Any, int], Any]] = {OURS: lambda x, axis: sm.dask.logsumexp(x, axis), PLAIN: _plain}  # type: ignore[attr-defined]


def _run(case: Case, place: Place, known: Sequence[Result] = (), timed: bool = True) -> Found:
    """On Dask's scheduler of threads."""
    with tempfile.TemporaryDirectory() as folder:
        return run_trial(case, _trial(case, place, Path(folder)), Clock(), place, known, timed)


def _trial(case: Case, place: Place, folder: Path) -> Trial:
    shape, chunks = read_size(case.size)
    values = _scores(case, shape)
    x = _stored(values, chunks, case.name.partition(",")[0], folder)
    ways = {name: way for name, way in WAYS.items() if name == OURS or "dask" in place.peers}
    calls = {name: lambda way=way: way(x, shape.axis).compute(scheduler="threads") for name, way in ways.items()}
    expected = WAYS[PLAIN](x, shape.axis).compute(scheduler="threads")

    def off(name: str, found: np.ndarray) -> float:
        return float(np.max(np.abs(found / expected - 1))) / TOLERANCE[case.dtype]

    facts = {"held": {name: _held(values, chunks, shape.axis, way) for name, way in ways.items()}, "chunks": x.npartitions}
    return Trial({name: [run] for name, run in calls.items()}, lambda name: off(name, calls[name]()), off, facts={OURS: facts})


def _scores(case: Case, shape: Shape) -> np.ndarray:
    """Normal numbers times 3."""
    random = np.random.default_rng(0)
    values = 3 * random.standard_normal(shape.sizes).astype(case.dtype)
    if case.name.endswith(PEAKED):
        places = random.integers(0, shape.n, tuple(1 if i == shape.axis else size for i, size in enumerate(shape.sizes)))
        np.put_along_axis(values, places, np.take_along_axis(values, places, shape.axis) + PEAK, shape.axis)
    return values


def _stored(values: np.ndarray, chunks: tuple[int, ...], place: str, folder: Path) -> Any:
    import dask.array as da

    if place == "npy":
        np.save(folder / "scores.npy", values)
        return da.from_array(np.load(folder / "scores.npy", mmap_mode="r"), chunks=chunks)  # type: ignore[arg-type]
    if place == "zarr":
        import zarr

        store = zarr.create_array(folder / "scores.zarr", shape=values.shape, chunks=chunks, dtype=values.dtype, compressors=None)
        store[:] = values
        return da.from_zarr(folder / "scores.zarr")
    return da.from_array(values, chunks=chunks)  # type: ignore[arg-type]


def _held(values: np.ndarray, chunks: tuple[int, ...], axis: int, way: Callable[[Any, int], Any]) -> int:
    """The most chunks that are in memory at a time, of copies that are made where a chunk is read, as from files."""
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

    x = da.from_array(values, chunks=chunks)  # type: ignore[arg-type]
    way(x.map_blocks(read, dtype=x.dtype, meta=x._meta), axis).compute(scheduler="threads")
    return most


DASK = Group(_cases, _run, {"cpu": ("dask",), "cuda": ()}, passes=7, quick=2, extra=("dask", "zarr"))
