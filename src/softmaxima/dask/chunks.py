"""Scores in chunks, with what stands beside them in chunks that match: what is made of each chunk, and states that merge in a tree.

Dask's `blockwise` and `reduction` are all that makes graphs here. A block of states holds one object, of the rows of its chunks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import dask.array as da
import dask.config
import numpy as np
import torch
from torch import Tensor

from softmaxima.base.arguments import as_tensor, check_per_row
from softmaxima.base.numbers import check_int
from softmaxima.engine.blocks import State
from softmaxima.engine.own_part import OwnPart
from softmaxima.engine.parts import InParts
from softmaxima.kernels.interface import one_thread

if TYPE_CHECKING:
    from dask.array.core import Array
else:
    from dask.array import Array  # or another class, as Dask is configured


TOGETHER = 32  # states that are merged at a time, where Dask is not told; they are small, and each merge is a task


class Summary(Protocol):
    """What is known of the rows of some chunks."""

    def together(self, others: Sequence[Any]) -> Any:
        """What is known of them by this and others, which are one or more."""


@dataclass(frozen=True)
class Known:
    """The state of the rows of some chunks, with the map that merges it, and of a loss what their targets come to."""

    rows: InParts
    state: State
    targets: Any = None  # a `Summary`

    @staticmethod
    def begun(own: OwnPart, known: Known | None, targets: Any = None) -> Known:
        """Of a chunk, after what is known of all in the pass before."""
        return Known(own.rows, compact(own.begun(None if known is None else known.state)), targets)

    def together(self, others: Sequence[Known]) -> Known:
        state = self.rows.together([self.state, *(other.state for other in others)])
        targets = None if self.targets is None else self.targets.together([other.targets for other in others])
        return Known(self.rows, compact(state), targets)


@dataclass(frozen=True, eq=False)
class Chunks:
    """Scores, of whose `axes` the rows are made, and beside them arrays of some of their axes, or what is no array."""

    name: str
    x: Array
    axes: tuple[int, ...]
    beside: Mapping[str, tuple[Any, tuple[int, ...]]]  # (values, their axes)
    places: bool = True  # whether a chunk is told where it stands in its rows, which lie along one axis then; a task for each chunk

    def each(self, function: Callable[..., Any], dtype: Any = object, *, known: Array | None = None, whole: bool = False) -> Array:
        """function(x, first=, known=, **beside) of each chunk: of its own shape, or, unless `whole`, one number or object for it.

        `first` is the place in its row of a chunk's first score, or 0; `known` is of all chunks of a row.
        """
        every, axis = tuple(range(self.x.ndim)), self.axes[0]
        starts = np.cumsum((0, *self.x.chunks[axis][:-1]))
        given = {name: (value, axes if isinstance(value, Array) else None) for name, (value, axes) in self.beside.items()}
        given["first"] = (in_chunks(starts, (1,)), (axis,)) if self.places else (0, None)
        given["known"] = (known, None if known is None else every)
        return da.blockwise(
            _OfAChunk(function, tuple(given)), every, self.x, every, *(each for pair in given.values() for each in pair),
            name=None, token=self.name.replace(".", "-"), align_arrays=False, meta=np.empty((0,) * self.x.ndim, dtype),
            adjust_chunks=None if whole else dict.fromkeys(self.axes, 1),
        )  # fmt: skip

    def summary(self, begin: Callable[..., Summary], passes: int, split_every: Any) -> Array:
        """What is known of whole rows after so many passes: one object for the chunks along `axes`, of which each is begun with
        what is known of all after the pass before, and merged in a tree.
        """
        known: Any = None
        merge = _Merged()
        for _ in range(passes):
            known = da.reduction(
                self.each(begin, known=known), chunk=_as_it_is, combine=merge, aggregate=merge, axis=self.axes, keepdims=True,
                concatenate=False, dtype=object, split_every=split_every, name=f"{self.name}-summary".replace(".", "-"),
                meta=np.empty((0,) * self.x.ndim, object),
            )  # fmt: skip
        return known

    def of_rows(self, function: Callable[[Any], Tensor], summary: Array, dtype: Any) -> Array:
        """One number a row, of what is known of it, with `axes` of size 1."""
        every = tuple(range(self.x.ndim))
        return da.blockwise(
            _OfRows(function, self.axes, dtype), every, summary, every, token=self.name.replace(".", "-"), align_arrays=False,
            meta=np.empty((0,) * self.x.ndim, dtype),
        )  # fmt: skip


@dataclass(frozen=True)
class _OfAChunk:
    """A function of a chunk and of what is beside it by name, in the one thread that Dask gave it."""

    function: Callable[..., Any]
    names: tuple[str, ...]

    def __call__(self, x: np.ndarray, *beside: Any) -> Any:
        given = dict(zip(self.names, beside, strict=True))
        first = given["first"]
        given["first"] = int(first[0]) if isinstance(first, np.ndarray) else first
        with one_thread():
            return self.function(x, **given)


@dataclass(frozen=True)
class _OfRows:
    function: Callable[[Any], Tensor]
    axes: tuple[int, ...]
    dtype: Any

    def __call__(self, summary: Any) -> np.ndarray:
        with one_thread():
            values = self.function(summary).to(as_tensor("dask", "scores", np.empty((), self.dtype)).dtype)  # [rows]
        for axis in sorted(self.axes):
            values = values.unsqueeze(axis)
        return values.numpy()


@dataclass(frozen=True)
class _Merged:
    """What several say of the same rows, in a list of lists, one for each axis."""

    def __call__(self, summaries: Any, axis: Any, keepdims: bool) -> Any:
        with one_thread():
            first, *others = _flat(summaries)
            return first.together(others) if others else first


def _flat(summaries: Any) -> Iterator[Any]:
    if not isinstance(summaries, list):
        yield summaries
        return
    for each in summaries:
        yield from _flat(each)


def _as_it_is(summary: Any, axis: Any, keepdims: bool) -> Any:
    return summary


# Arguments ------------------------------------------------------------------------------------------------------------------------


def check_scores(name: str, x: Any) -> Array:
    """A Dask array of NumPy arrays, in chunks of known sizes."""
    if not isinstance(x, Array):
        repair = "call dask.array.from_array(x), or take the function of softmaxima itself"
        raise TypeError(f"{name}: scores must be a dask.array.Array, got {type(x).__name__}; {repair}")
    return _check_chunks(name, "scores", x)


# Of masked arrays what takes the place of what is masked, and what that does.
MASKED = {
    "scores": ("-numpy.inf", "which leaves those scores out"),
    "target": ("-100", "which ignore_index leaves out"),
    "where": ("False", "which leaves those scores out"),
}


def _check_chunks(name: str, what: str, x: Array) -> Array:
    if type(x._meta) is not np.ndarray:
        kind = type(x._meta).__name__
        repair = "call .map_blocks(numpy.asarray)"
        if isinstance(x._meta, np.ma.MaskedArray):  # of which that would show what is masked
            value, meaning = MASKED.get(what, ("…", "with a value that counts"))
            given = f"{what}.astype(float)" if what == "scores" and x.dtype.kind in "iu" else what
            repair = f"call dask.array.ma.filled({given}, {value}), {meaning}"
        raise TypeError(f"{name}: the chunks of {what} must be NumPy arrays, got {kind}; {repair}")
    if any(math.isnan(size) for size in x.shape):
        raise ValueError(f"{name}: the chunks of {what} must be of known sizes, got shape {x.shape}; call .compute_chunk_sizes()")
    return x


KINDS = {"where": "b", "target": "iuf"}  # of dtypes


def stand_in(name: str, what: str, value: Any, fill: Any = 1) -> Any:
    """For a Dask array a tensor of its shape and dtype without memory, for the checks that read no scores; else the value.

    Raises TypeError for a tensor or a list, which Dask does not share out, and for a dtype that an array of its kind repairs.
    """
    if isinstance(value, (Tensor, list, tuple)):
        kind, repair = ("a tensor", f"{what}.numpy()") if isinstance(value, Tensor) else ("a list", f"numpy.asarray({what})")
        raise TypeError(f"{name}: {what} must be a number, a NumPy or a Dask array, got {kind}; call {repair}")
    if isinstance(value, (Array, np.ndarray)) and value.dtype.kind not in KINDS.get(what, value.dtype.kind):
        meant, repair = ("boolean", "bool") if what == "where" else ("class indices or probabilities", "int")
        raise TypeError(f"{name}: {what} must be {meant}, got {value.dtype}; call {what}.astype({repair})")
    if not isinstance(value, Array):
        return value
    _check_chunks(name, what, value)
    like = as_tensor(name, what, np.empty((), value.dtype))
    return torch.full_like(like, fill).expand(value.shape)


def matching(value: Any, x: Array, axes: tuple[int, ...], whole: bool = False) -> tuple[Any, tuple[int, ...]]:
    """(an array in chunks as x has them along these of its axes, one where it broadcasts; these axes); anything else as it came.

    A `whole` one has these axes as x has them. Else one number stands for all of an axis, that of one score too.
    """
    if not isinstance(value, (Array, np.ndarray)):
        return value, ()
    value = value[(None,) * (len(axes) - value.ndim) + (...,)]  # an array also where it has no axes
    chunks = tuple(x.chunks[axis] if whole or size != 1 else (1,) for axis, size in zip(axes, value.shape, strict=True))
    return in_chunks(value, chunks) if isinstance(value, np.ndarray) else value.rechunk(chunks), axes


def in_chunks(values: np.ndarray, chunks: Any) -> Array:
    """A Dask array of what is in memory."""
    return da.from_array(values, chunks=chunks)


def check_split(name: str, split_every: Any, x: Array) -> int | dict[int, int]:
    """How many states are merged at a time: an int, or one for each axis of scores; where it is None, as Dask's setting has it."""
    what = "split_every"
    if split_every is None:
        split_every, what = dask.config.get("split_every", None), "Dask's setting split_every"
        split_every = TOGETHER if split_every is None else split_every
    if not isinstance(split_every, Mapping):
        return _check_together(name, what, split_every)
    ndim = max(x.ndim, 1)
    within, domain = (lambda axis: -ndim <= axis < ndim), f"an axis of scores, an int in [{-ndim}, {ndim - 1}]"
    axes = [check_int(name, f"each key of {what}", axis, within, domain) % ndim for axis in split_every]
    numbers = [_check_together(name, f"{what}[{axis}]", number) for axis, number in split_every.items()]
    return dict(zip(axes, numbers, strict=True))


def _check_together(name: str, what: str, number: Any) -> int:
    return check_int(name, what, number, lambda count: count >= 2, "an int of at least 2")


# Chunks as tensors ----------------------------------------------------------------------------------------------------------------


def rows_last(x: np.ndarray, axes: tuple[int, ...], name: str, what: str = "scores") -> Tensor:
    """A chunk as a tensor with `axes` as one, last."""
    if axes == (x.ndim - 1,):
        return as_tensor(name, what, x)
    return as_tensor(name, what, x).movedim(axes, tuple(range(-len(axes), 0))).flatten(-len(axes))


def per_row(name: str, what: str, value: Any, scores: Tensor, axes: tuple[int, ...], valid: Any, domain: str) -> float | Tensor:
    """A number, or one for each row of scores [..., n], [..., 1] of an array that lies as the chunk does."""
    if isinstance(value, np.ndarray):
        value = rows_last(value, axes, name, what).double()
    return check_per_row(name, what, value, scores, scores.ndim - 1, valid, domain)


def compact(state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The same with memory of its own: a view would keep that of its chunk, and be sent with it."""
    return tuple(
        values if values.untyped_storage().nbytes() == values.nbytes else values.clone(memory_format=torch.contiguous_format)
        for values in state
    )
