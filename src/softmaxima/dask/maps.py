"""Every map over Dask arrays that are chunked along any axes, that of its rows too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from dask.tokenize import normalize_object, normalize_token

from softmaxima.base.arguments import as_dtype as convert
from softmaxima.base.arguments import check_scores as check_dtype
from softmaxima.base.arguments import check_where
from softmaxima.base.arguments import rows_last as check_rows
from softmaxima.base.numbers import TEMPERATURE
from softmaxima.base.public import public
from softmaxima.dask.chunks import Array, Chunks, Known, check_scores, check_split, matching, per_row, rows_last, stand_in
from softmaxima.engine.contract import REGISTRY, AnyMap, Map, find_map
from softmaxima.engine.evaluation import check_params
from softmaxima.engine.own_part import OwnPart
from softmaxima.engine.parts import InParts
from softmaxima.maps.softmax import SOFTMAX


@public
def chunked_map(
    map: AnyMap,
    x: Array,
    dim: int = -1,
    *,
    temperature: Any = 1.0,
    where: Any = None,
    dtype: Any = None,
    split_every: Any = None,
    **params: Any,
) -> Array:
    """A map of x/τ along `dim`, of a Dask array in whatever chunks.

    `sm.dask.sparsemax(x, …)` is `chunked_map("sparsemax", x, …)`, and so for every map that has `blocks`.

    Args:
        map: a registered name, the function of a map or a `Map`.
        x: scores of any shape, in chunks of known sizes along any axes; a chunk may be empty.
        dim, temperature, where, dtype, params: as of the map, but that `dim` is one axis. Each may be a NumPy or a Dask array
            where it may be an array there: it broadcasts against x, temperature and parameters with size 1 along `dim`.
        split_every: how many states are merged at a time, an int of at least 2 or a dict with one for each axis as Dask has it; by
            default what Dask's setting of that name says, or 32.

    Returns:
        A Dask array of the shape, chunks and dtype of x, of which nothing is computed yet.

    Raises:
        TypeError, ValueError or IndexError at once for anything else; ValueError when it is computed for a Dask array of numbers
        that the map refuses.

    Cost: a state of each chunk for each pass of the map, which are ten for top-p and one for any other: 3 numbers a row for
    softmax, the candidates for the support for a map with a threshold, k scores and places for top-k. Then the chunk once more,
    which Dask keeps in between. All in float64; each chunk is computed by one thread.

    >>> import dask.array as da, numpy as np, softmaxima as sm
    >>> x = da.from_array(np.array([[1.0, 0.8, 0.1], [0.0, 3.0, 0.0]]), chunks=(2, 2))
    >>> sm.dask.sparsemax(x).compute()
    array([[0.6, 0.4, 0. ],
           [0. , 1. , 0. ]])
    """
    found = find_map(map, "dask")
    return _chunked(
        f"dask.{found.name}", found, as_dtype(f"dask.{found.name}", x, dtype), dim, temperature, where, split_every, params
    )


@public
def softmin(
    x: Array, dim: int = -1, *, temperature: Any = 1.0, where: Any = None, dtype: Any = None, split_every: Any = None
) -> Array:
    """Softmin, exp(−x_i/τ) / Σ_j exp(−x_j/τ), of a Dask array in whatever chunks. Here +∞ is the score that gets exactly zero.

    Arguments, errors and cost as of `chunked_map`.

    >>> import dask.array as da, numpy as np, softmaxima as sm
    >>> sm.dask.softmin(da.from_array(np.array([2.0, 1.0, 0.1]), chunks=2)).compute().round(3)
    array([0.096, 0.261, 0.643])
    """
    name = "dask.softmin"
    return _chunked(name, SOFTMAX, -as_dtype(name, x, dtype), dim, temperature, where, split_every, {})


def as_dtype(name: str, x: Any, dtype: Any) -> Array:
    """Scores in the dtype that is given, integers in float64."""
    scores = check_scores(name, x)
    if dtype is None and scores.dtype.kind not in "biu":
        check_dtype(name, stand_in(name, "scores", scores))
        return scores
    return scores.astype(convert(name, np.empty(0, scores.dtype), np.float64 if dtype is None else dtype).dtype)


def _chunked(
    name: str, found: Map, x: Array, dim: int, temperature: Any, where: Any, split_every: Any, params: dict[str, Any]
) -> Array:
    if found.blocks is None:
        is_own = REGISTRY.get(found.name) is found
        repair = f"take sm.{found.name} of whole rows, as of x.compute()" if is_own else "give its Map `blocks`"
        raise ValueError(f"{name}: the map does not say how it works on parts; {repair}")
    scores = x
    split_every = check_split(name, split_every, scores)
    like = stand_in(name, "scores", scores)
    given = found.complete(params, name)
    axis, *_ = check_rows(name, like, dim, stand_in(name, "temperature", temperature), stand_in(name, "where", where))
    values = {p.name: stand_in(name, p.name, given[p.name], p.default if p.kind is float else 1) for p in found.params}
    checked = check_params(found, values, like if like.ndim else like.reshape(1), axis, name)
    numbers = {p.name: value for p, value in zip(found.params, checked, strict=True) if p.gradient is None}
    scores = scores if scores.ndim else scores.reshape(1)
    every, beside = tuple(range(scores.ndim)), {"where": where, "temperature": temperature, **given}
    chunks = Chunks(
        name, scores, (axis,),
        {key: (numbers[key], ()) if key in numbers else matching(value, scores, every) for key, value in beside.items()},
        places=not found.blocks.is_sum,
    )  # fmt: skip
    of = MapOfChunk(name, found, (axis,))
    known = chunks.summary(of.begin, found.blocks.passes(**numbers), split_every)
    return chunks.each(of.finish, x.dtype.newbyteorder("="), known=known, whole=True).reshape(x.shape)


@normalize_token.register(Map)
def _token(map: Map) -> Any:
    """What tells a map from others in the keys of results: of a registered one its name, as where it is pickled."""
    return (map.reference.__module__, map.name) if REGISTRY.get(map.name) is map else normalize_object(map)


@dataclass(frozen=True)
class MapOfChunk:
    """What a map has of a chunk, whose `axes` are those of its rows; `name` is the caller's, for messages."""

    name: str
    map: Map
    axes: tuple[int, ...]

    def own(self, x: np.ndarray, *, first: int, where: np.ndarray | None, temperature: Any, **params: Any) -> OwnPart:
        scores = rows_last(x, self.axes, self.name)
        mask = None
        if where is not None:
            wide = where if len(self.axes) == 1 else np.broadcast_to(where, x.shape)
            mask = check_where(self.name, rows_last(wide, self.axes, self.name, "where"), scores)
        tau = per_row(self.name, "temperature", temperature, scores, self.axes, *TEMPERATURE)
        values = {
            p.name: per_row(self.name, p.name, params[p.name], scores, self.axes, p.valid, p.domain)
            if p.gradient is not None
            else params[p.name]
            for p in self.map.params
        }
        return OwnPart(InParts(self.map, tau, values), scores, mask, first)

    def begin(self, x: np.ndarray, *, known: Known | None, **beside: Any) -> Known:
        return Known.begun(self.own(x, **beside), known)

    def finish(self, x: np.ndarray, *, known: Known, **beside: Any) -> np.ndarray:
        return self.own(np.ascontiguousarray(x), **beside).probabilities(known.state).movedim(-1, self.axes[0]).numpy()
