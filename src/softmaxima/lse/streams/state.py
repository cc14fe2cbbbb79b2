r"""The state of a logsumexp: the monoid (M, m, r) of `core/monoid.py` in 106 bits, for sums of any number of parts.

    LSE = M + log m + log1p(r/m),        M = max z,  m = #{z_i = M},  r = Σ_{z_i<M} exp(z_i − M)

    (M, m, R) ⊕ (M′, m′, R′) = (M, m, R + R′ + m′ exp(M′))   if M > M′,        R = r exp(M)
                             = (M, m + m′, R + R′)           if M = M′

Merging is associative and commutative, with the state of nothing (−∞, 0, 0) as its identity: sums over a stream, over the pieces
of a sequence, over files and over machines are all this one. R is kept and not r, in 106 bits (`_scaled.py`), so that it holds of
the rounded sums too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from softmaxima.core.arguments import (
    Array,
    as_floating,
    as_tensor,
    check_one_temperature,
    check_scores,
    like_input,
    rows_last,
)
from softmaxima.core.envelope import envelope
from softmaxima.core.temperature import anchored
from softmaxima.core.tracing import is_concrete
from softmaxima.kernels import native
from softmaxima.lse.logsumexp import GRADIENT, row_logsumexp
from softmaxima.lse.streams._scaled import WIDE, Product, Scaled, exponential, nothing

LONG = 4096  # float64 scores of a row from which the native kernel sums it
PIECE = 2**18  # scores of all rows that are summed at a time, in cache


@dataclass(frozen=True, eq=False)
class LogSumExpState:
    """What is known of scores seen so far: enough for their logsumexp and effective size, and to merge with what others have seen.

    A state is never changed: `update` and `merge` return a new one. Its arrays have the shape [...] of the rows [..., n] it was
    updated with; `LogSumExpState()` is the state of nothing, for rows of any shape, and `LogSumExpState(squares=None)` one that
    does not keep the effective size, which is the larger part of the work on long rows. States can be pickled.

    Attributes:
        maximum: the largest score M = max x/τ, −∞ for none. float64.
        count: how many scores equal it, m. 0 where the maximum is −∞ or NaN. int64.
        rest: Σ exp(x_i/τ) over the others.
        squares: Σ exp(2 x_i/τ) over the others, or None.
        n: how many scores were seen, those of −∞ included and those left out by `where` not. int64.

    Merging rounds nothing that shows: whatever the order and the grouping of updates and merges, the value is the same to 1 ulp,
    over 10⁹ updates as over two (where M and log Σ exp(x − M) nearly cancel, to 2⁻⁶² M, on processors with 64-bit mantissas).
    Sums are in float64, whatever the dtype of the scores. Rows of fewer than 4096 float64 scores have one rounding a term; longer
    ones, and those of narrower scores, are summed by the native kernel, of differences x − M rounded to float64: the value is
    within 2 ulp of the largest of itself, 1 and log n, so that near 0 it has the digits of its sum and not its own. Where τ is not
    1, x/τ is rounded to float64 before.

    >>> import numpy as np, softmaxima as sm
    >>> morning = sm.LogSumExpState().update(np.array([0.0, 1.0]))
    >>> evening = sm.LogSumExpState().update(np.array([2.0]))
    >>> morning.merge(evening).value
    np.float64(2.40760596444438)
    >>> float(round(morning.merge(evening).effective_size, 6))
    1.958699
    """

    maximum: np.ndarray = field(default_factory=lambda: np.array(-math.inf))
    count: np.ndarray = field(default_factory=lambda: np.array(0))
    rest: Scaled | Product = field(default_factory=lambda: nothing(()))
    squares: Scaled | Product | None = field(default_factory=lambda: nothing(()))
    n: np.ndarray = field(default_factory=lambda: np.array(0))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the rows, without the axis that is summed over."""
        return np.shape(self.maximum)

    @property
    def value(self) -> Any:
        """LSE = log Σ exp(x_i/τ) of all scores seen, in nats, float64 [...]: −∞ of none, +∞ of any +∞, NaN of any NaN.

        Digits near 0 are kept, as in `logsumexp`.

        >>> import numpy as np, softmaxima as sm
        >>> sm.LogSumExpState().update(np.array([0.0, -40.0])).value
        np.float64(4.248354255291589e-18)
        """
        maximum, count, rest = np.broadcast_arrays(self.maximum, self.count, self.rest.relative_to(self.maximum))
        value = np.asarray(maximum + _log_sum(count, rest))
        if rest.dtype != WIDE:  # half of the digits cancel
            cancels = np.abs(value) < 0.5 * np.abs(maximum)
            if cancels.any():
                value[cancels] = maximum[cancels] + _log_sum(count[cancels], rest[cancels].astype(WIDE))
        return np.asarray(value, np.float64)[()]

    @property
    def effective_size(self) -> Any:
        """1/Σp², p = softmax(x/τ) over all scores seen: how many scores share the mass, in [1, n], float64 [...]. 0 of no mass.

        Raises ValueError where the state does not keep it.

        >>> import numpy as np, softmaxima as sm
        >>> sm.LogSumExpState().update(np.array([5.0, 5.0, -800.0])).effective_size
        np.float64(2.0)
        """
        if self.squares is None:
            raise ValueError("effective_size: this state was made with squares=None; start from LogSumExpState() to keep it")
        total = self.count + self.rest.relative_to(self.maximum)
        squares = self.count + self.squares.relative_to(self.maximum, 2)
        size = total / np.where(squares == 0, 1.0, squares) * total
        return np.where(np.isnan(self.maximum), np.nan, size).astype(np.float64)[()]

    def update(self, x: Array, dim: int = -1, *, temperature: float = 1.0, where: Array | None = None) -> LogSumExpState:
        """The state with more scores, x/τ along `dim`.

        Args:
            x: scores of any shape, whose shape without `dim` is that of the state. Integers are taken as float64.
            dim: the axis summed over.
            temperature: τ, a positive number.
            where: boolean, broadcasts to x; False leaves a score out.

        Raises TypeError, ValueError or IndexError, before any work; ValueError also for a tensor that requires grad, because a
        state carries no gradient. Cost: one read of x, and for the effective size another with as much arithmetic again.

        >>> import numpy as np, softmaxima as sm
        >>> sm.LogSumExpState().update(np.zeros((2, 3))).update(np.zeros((2, 5))).value
        array([2.07944154, 2.07944154])
        """
        name = "LogSumExpState.update"
        scores, mask, tau = _rows(name, x, dim, temperature, where)
        if scores.requires_grad:
            raise ValueError(f"{name}: a state carries no gradient; call x.detach(), or logsumexp(x) for a value that has one")
        self._check_shape(name, tuple(scores.shape[:-1]))
        return self.merge(_of_rows(scores, mask, tau, self.squares is not None))

    def merge(self, other: LogSumExpState) -> LogSumExpState:
        """The state of what both have seen. It keeps the effective size if both do.

        Raises TypeError for anything but a state, and ValueError for one of another shape.

        >>> import numpy as np, softmaxima as sm
        >>> half = sm.LogSumExpState().update(np.array([3.0]))
        >>> half.merge(half).value
        np.float64(3.6931471805599454)
        """
        if not isinstance(other, LogSumExpState):
            raise TypeError(f"merge: a LogSumExpState merges with another, got {type(other).__name__}; call update() for scores")
        if other._has_shape():
            self._check_shape("merge", other.shape)
        for state, empty in ((self, other), (other, self)):
            if not empty._has_shape():
                return replace(state, squares=None) if empty.squares is None else state
        maximum = np.maximum(self.maximum, other.maximum)
        ours, theirs = self.maximum == maximum, other.maximum == maximum
        count = np.where(ours, self.count, 0) + np.where(theirs, other.count, 0)
        # What is no longer the maximum joins the rest.
        fallen = np.where(ours, np.where(theirs, -math.inf, other.maximum), self.maximum)
        fallen_count = np.where(ours, other.count, self.count).astype(np.float64)
        term = exponential(fallen)
        squares = None
        if self.squares is not None and other.squares is not None:
            squares = self.squares.scaled + other.squares.scaled + term.squared().times(fallen_count)
        rest = self.rest.scaled + other.rest.scaled + term.times(fallen_count)
        return LogSumExpState(maximum, count, rest, squares, self.n + other.n)

    def _has_shape(self) -> bool:
        """Whether this is more than the state of nothing, which merges with rows of any shape."""
        return self.shape != () or bool(self.n > 0)

    def _check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        if self._has_shape() and self.shape != shape:
            raise ValueError(f"{name}: this state is of rows of shape {self.shape}, got {shape}; keep one state for each shape")


def _log_sum(count: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """log(m + r), in r's dtype, with the digits that it has near 0."""
    ties = np.maximum(count, 1).astype(rest.dtype)
    return np.log(ties, out=np.zeros_like(ties), where=ties > 1) + np.log1p(rest / ties)


def _rows(name: str, x: Any, dim: int, temperature: Any, where: Any) -> tuple[Tensor, Tensor | None, float]:
    """(scores, mask, τ) validated, with `dim` moved last."""
    scores = check_scores(name, as_floating(name, x, torch.float64))
    tau = check_one_temperature(name, temperature)
    _, rows, _, mask = rows_last(name, scores, dim, tau, where)
    return rows, mask, tau


def _of_rows(x: Tensor, where: Tensor | None, tau: float, squares: bool) -> LogSumExpState:
    """The state of rows [..., n]."""
    shape, n = tuple(x.shape[:-1]), x.shape[-1]
    seen = np.full(shape, n) if where is None else where.expand(x.shape).sum(-1).cpu().numpy()
    x = x.detach().cpu()
    if where is not None:
        x = x.masked_fill(~where.cpu(), -math.inf)
    if _is_long(x):
        return _of_long_rows(x, tau, seen, squares)
    state = _nothing(shape, squares)
    step = max(1, min(LONG, PIECE // max(math.prod(shape), 1)))
    for start in range(0, n, step):
        state = state.merge(_of_short_rows(x[..., start : start + step].double().numpy(), tau, squares))
    return replace(state, n=seen)


def _is_long(x: Tensor) -> bool:
    """Whether the native kernel sums rows [..., n]."""
    return native.AVAILABLE and x.shape[-1] >= (LONG if x.dtype == torch.float64 else 1)  # of narrower dtypes the digits are fewer


def _nothing(shape: tuple[int, ...], squares: bool) -> LogSumExpState:
    zero = np.zeros(shape, np.int64)
    return LogSumExpState(np.full(shape, -math.inf), zero, nothing(shape), nothing(shape) if squares else None, zero)


def _of_short_rows(x: np.ndarray, tau: float, squares: bool) -> LogSumExpState:
    with np.errstate(over="ignore"):
        z = x / tau
    maximum = z.max(-1)
    at_maximum = z == maximum[..., None]
    terms = exponential(np.where(at_maximum, -math.inf, z))
    count = np.where(maximum == -math.inf, 0, at_maximum.sum(-1))
    return LogSumExpState(
        maximum, count, terms.sum(), terms.squared().sum() if squares else None, np.full(maximum.shape, z.shape[-1])
    )


def _of_long_rows(x: Tensor, tau: float, seen: np.ndarray, squares: bool) -> LogSumExpState:
    """The same by the native kernel."""
    return _of_sums(_sums(x, tau, squares), tau, seen)


class _Sums(NamedTuple):
    """What the native kernel says of rows, of x/τ and, or None, of 2x/τ."""

    rest: Tensor  # Σ exp((x − M)/τ) over the others
    highest: Tensor  # the largest x, M
    maxima: Tensor  # how many x are that
    squares: Tensor | None  # Σ exp(2 (x − M)/τ) over the others


def _sums(x: Tensor, tau: float, squares: bool) -> _Sums:
    return _Sums(*native.logsumexp_state(x, tau), native.logsumexp_state(x, tau / 2)[0] if squares else None)


def _of_sums(sums: _Sums, tau: float, seen: np.ndarray) -> LogSumExpState:
    maximum = (sums.highest / tau).numpy()
    count = np.where(maximum == -math.inf, 0, sums.maxima.numpy())
    squares = None if sums.squares is None else Product(maximum, sums.squares.numpy(), 2)
    return LogSumExpState(maximum, count, Product(maximum, sums.rest.numpy()), squares, seen)


def of_pieces(pieces: Iterable[Any], tau: float, squares: bool) -> LogSumExpState:
    """The state of pieces [n] that follow one another, each of which may be gone when the next comes.

    Many pieces that stay in cache cost no more than one that does not: their sums become a state together.
    """
    state = _nothing((), squares)
    sums, seen = [], []
    for piece in pieces:
        x = as_floating("LogSumExpState", piece, torch.float64)
        if _is_long(x):
            sums.append(_sums(x, tau, squares))
            seen.append(len(x))
        else:
            state = state.merge(_of_rows(x, None, tau, squares))
    if sums:
        together = _Sums(*(None if field[0] is None else torch.stack(field) for field in zip(*sums, strict=True)))  # type: ignore[arg-type]
        state = state.merge(_merged(_of_sums(together, tau, np.array(seen))))
    return state


def of_codes(blocks: Iterable[Any], scale: float, zero_point: float, tau: float, squares: bool) -> LogSumExpState:
    """The state of scores scale · (q − zero_point) for blocks of q, all int8 or all uint8, by a histogram of q."""
    counts, codes = np.zeros(256, np.int64), np.arange(256)
    for block in blocks:
        q = as_tensor("LogSumExpState", "q", block)
        codes = np.arange(256, dtype=np.uint8).view(np.int8 if q.dtype == torch.int8 else np.uint8)
        counts += torch.bincount(q.view(torch.uint8), minlength=256).numpy()
    with np.errstate(over="ignore"):
        z = scale * (codes.astype(np.float64) - zero_point) / tau
    z = np.where(counts > 0, z, -math.inf)
    return _merged(replace(_nothing(z.shape, squares), maximum=z, count=np.where(z == -math.inf, 0, counts), n=counts))


def _merged(states: LogSumExpState) -> LogSumExpState:
    """The state of all the rows along the last axis."""
    maximum = states.maximum.max(-1)
    at_maximum = states.maximum == maximum[..., None]
    term = exponential(np.where(at_maximum, -math.inf, states.maximum))
    count = np.where(at_maximum, states.count, 0).sum(-1)
    rest = (states.rest.scaled + term.times(states.count.astype(np.float64))).sum()
    squares = None
    if states.squares is not None:
        squares = (states.squares.scaled + term.squared().times(states.count.astype(np.float64))).sum()
    return LogSumExpState(maximum, count, rest, squares, states.n.sum(-1))


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
    check_one_temperature("streaming_logsumexp", temperature)
    state, first, dtype = LogSumExpState(squares=None), None, None
    for block in _gathered(blocks):
        state = state.update(block, dim, temperature=temperature)
        first = block if first is None else first
        dtype = _result_dtype(block) if dtype is None else torch.promote_types(dtype, _result_dtype(block))
    if first is None or dtype is None:
        return state.value
    return like_input(torch.as_tensor(state.value).to(dtype), first)


def _gathered(blocks: Iterable[Any]) -> Iterator[Any]:
    """The blocks, with numbers that follow one another as one array."""
    numbers: list[Any] = []
    for block in blocks:
        is_number = isinstance(block, Real) or (isinstance(block, (np.ndarray, np.generic)) and block.ndim == 0)
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
    scores, mask, tau = _rows(name, x, dim, temperature, where)
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
        return _of_rows(x, None, tau, squares=False)
    return _tree(x[..., : n // 2], tau).merge(_tree(x[..., n // 2 :], tau))
