"""Sums by states, of blocks that come one after the other and of a sequence by its halves, as `logsumexp` gives them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softmaxima.base.arguments import Array, as_tensor, like_input
from softmaxima.base.numbers import check_one_temperature, described
from softmaxima.base.public import public
from softmaxima.base.temperature import anchored
from softmaxima.base.tracing import is_concrete
from softmaxima.engine.envelope import envelope
from softmaxima.io.state import LONG, PIECE, LogSumExpState, of_rows, tensor_rows
from softmaxima.lse.logsumexp import GRADIENT, row_logsumexp


@public
def streaming_logsumexp(blocks: Iterable[Any], dim: int = -1, *, temperature: float = 1.0) -> Any:
    """LSE = log Σ exp(x_i/τ) over all scores of all blocks, in nats, reading each block once and keeping none.

    Args:
        blocks: any iterable of NumPy arrays, tensors or numbers. Arrays of several dimensions have one shape, `dim` aside.
        dim: the axis summed over, in every block.
        temperature: τ, a positive number.

    Returns:
        what `logsumexp` returns for the blocks put together along `dim`, of the kind of the first of them: −∞ for no blocks. The
        order of the blocks, and where they are cut, make no difference beyond 1 ulp. Where τ is not 1, x/τ is rounded to float64
        first.

    Raises TypeError or ValueError for a block that is none of these, and ValueError for a tensor that requires grad: keep the
    scores in one tensor, for `logsumexp`, where a gradient is wanted. Cost: as `LogSumExpState.update` without effective size.

    >>> import numpy as np, softmaxima as sm
    >>> sm.streaming_logsumexp(np.log(np.arange(k, k + 10.0)) for k in range(1, 101, 10)) - np.log(5050.0)
    np.float64(0.0)
    >>> sm.streaming_logsumexp([0.0, 0.0])
    np.float64(0.6931471805599453)
    """
    name = "streaming_logsumexp"
    check_one_temperature(name, temperature)
    # What iterates over something else than its scores: names of columns, keys, bytes, entries without their mask; or not at all.
    if hasattr(blocks, "columns") or isinstance(blocks, np.ma.MaskedArray):
        as_tensor(name, "blocks", blocks)
    other = isinstance(blocks, (str, bytes, bytearray, memoryview, Mapping)) or getattr(blocks, "ndim", 1) == 0
    if other or not isinstance(blocks, Iterable):
        raise TypeError(
            f"{name}: blocks must be an iterable of arrays, tensors or numbers, got {described(blocks, 'a list of them')}"
        )
    state, first, dtype = LogSumExpState(squares=None), None, None
    for block in _gathered(blocks):
        state = state.update(block, dim, temperature=temperature)
        first = block if first is None else first
        dtype = _result_dtype(block) if dtype is None else torch.promote_types(dtype, _result_dtype(block))
    if first is None or dtype is None:
        return state.value
    return like_input(torch.as_tensor(state.value, dtype=dtype, device="cpu"), first)


def _gathered(blocks: Iterable[Any]) -> Iterator[Any]:
    """The blocks, with numbers that follow one another as one array."""
    numbers: list[Any] = []
    for block in blocks:
        is_number = isinstance(block, Real) or (
            isinstance(block, (np.ndarray, np.generic)) and block.ndim == 0 and not isinstance(block, np.ma.MaskedArray)
        )
        if is_number:
            numbers.append(block)
        if numbers and (not is_number or len(numbers) == LONG - 1):
            yield np.array(numbers)
            numbers = []
        if not is_number:
            yield block
    if numbers:
        yield np.array(numbers)


def _result_dtype(x: Any) -> torch.dtype:
    """The dtype that `logsumexp` gives x."""
    dtype = x.dtype if isinstance(x, Tensor) else as_tensor("streaming_logsumexp", "scores", x[:0]).dtype
    if dtype.is_floating_point:
        return dtype
    return torch.get_default_dtype() if isinstance(x, Tensor) else torch.float64


@public
def sequence_logsumexp(x: Array, dim: int = -1, *, temperature: float = 1.0, where: Array | None = None) -> Array:
    """LSE of a sequence by halves, `LSE(x) = LSE(LSE(x_{1:n/2}), LSE(x_{n/2+1:n}))`, in nats.

    By associativity that is `logsumexp(x, dim)` itself, and so is its gradient, softmax(x/τ)/τ: a tree gives no other function of
    the scores unless something happens at its nodes. What it gives is the sum in an order that can be shared out, here with one
    rounding a term and none at the nodes.

    Args, shapes and errors as for `logsumexp` with one axis and a number for τ. Cost: one read, some 0.1 µs a score; `logsumexp` is
    many times faster.

    It is sometimes called hierarchical, and taken for another function.

    >>> import numpy as np, softmaxima as sm
    >>> sm.sequence_logsumexp(np.log(np.arange(1.0, 101.0))) == np.log(5050.0)
    np.True_
    """
    name = "sequence_logsumexp"
    scores, mask, tau = tensor_rows(name, x, dim, temperature, where)
    if not is_concrete(scores):
        return row_logsumexp(scores, tau, mask)  # type: ignore[return-value]
    leaves = scores.detach().cpu() if mask is None else scores.detach().masked_fill(~mask, -math.inf).cpu()
    value = scores.new_tensor(_tree(leaves, tau).value, dtype=torch.float64)
    if scores.shape[-1]:
        value = envelope(GRADIENT, value.unsqueeze(-1), anchored(scores, tau, mask)[1], None, {}).squeeze(-1)
    return like_input(value.to(scores.dtype), x)


def _tree(x: Tensor, tau: float) -> LogSumExpState:
    n = x.shape[-1]
    if n * math.prod(x.shape[:-1]) <= PIECE or n < 2:
        return of_rows(x, None, tau, squares=False)
    return _tree(x[..., : n // 2], tau).merge(_tree(x[..., n // 2 :], tau))
