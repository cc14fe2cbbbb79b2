"""logsumexp of Dask arrays that are chunked along any axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dask.array as da
import numpy as np
import torch
from torch import Tensor

from softmaxima.base import monoid
from softmaxima.base.arguments import as_floating
from softmaxima.base.public import public
from softmaxima.dask.chunks import Array, Chunks, Known, check_scores, check_split, matching, stand_in
from softmaxima.dask.maps import MapOfChunk
from softmaxima.lse.logsumexp import check_real, prepare
from softmaxima.maps.softmax import SOFTMAX

NAME = "dask.logsumexp"


@public
def logsumexp(
    x: Array, dim: int | Sequence[int] = -1, *, keepdim: bool = False, where: Any = None, temperature: Any = 1.0,
    split_every: Any = None,
) -> Array:  # fmt: skip
    """log Σ exp(x/τ) of a Dask array in whatever chunks, in nats.

    Args:
        x: scores of any shape, in chunks of known sizes along any axes; a chunk may be empty. Integers become float64.
        dim, keepdim, where, temperature: as of `sm.logsumexp`; `where` and `temperature` may be NumPy or Dask arrays.
        split_every: how many states are merged at a time, an int of at least 2 or a dict with one for each axis as Dask has it; by
            default what Dask's setting of that name says, or 32.

    Returns:
        A Dask array of x's dtype, without `dim`, of which nothing is computed yet: −∞ for a sum of nothing, +∞ if any score is +∞.

    Raises:
        TypeError, ValueError or IndexError at once for anything else; ValueError when it is computed for a Dask array of
        temperatures that are not positive.

    Cost: one pass, in which each chunk is read once by one thread and leaves 3 numbers a row. All sums are in float64.

    >>> import dask.array as da, numpy as np, softmaxima as sm
    >>> x = da.from_array(np.array([[0.0, -40.0], [1e4, 1e4]]), chunks=1)
    >>> sm.dask.logsumexp(x).compute()
    array([4.24835426e-18, 1.00006931e+04])
    >>> sm.dask.logsumexp(x, (0, 1))
    dask.array<squeeze, shape=(), dtype=float64, chunksize=(), chunktype=numpy.ndarray>
    """
    scores = check_scores(NAME, x)
    split_every = check_split(NAME, split_every, scores)
    like = as_floating(NAME, stand_in(NAME, "scores", scores), torch.float64)
    check_real(NAME, like, "take dask.array.logaddexp for pairs, or sm.logsumexp of one array")
    tau, mask = stand_in(NAME, "temperature", temperature), stand_in(NAME, "where", where)
    prepare(NAME, like, dim, keepdim, mask, tau)
    if scores.dtype.kind != "f":
        scores = scores.astype(np.float64)
    dims = tuple(dim) if isinstance(dim, Sequence) else (dim,)
    rank = max(scores.ndim, 1)
    axes = tuple(sorted(int(d) % rank for d in dims))
    rows = scores if scores.ndim else scores.reshape(1)
    beside = {"where": where, "temperature": temperature}
    every = tuple(range(rows.ndim))
    chunks = Chunks(NAME, rows, axes, {key: matching(value, rows, every) for key, value in beside.items()}, places=False)
    known = chunks.summary(MapOfChunk(NAME, SOFTMAX, axes).begin, 1, split_every)
    value = chunks.of_rows(_value, known, scores.dtype.newbyteorder("="))
    return value if keepdim and scores.ndim else da.squeeze(value, axes)


def _value(known: Known) -> Tensor:
    return monoid.LogSum(*known.state).value(known.rows.tau).squeeze(-1)
