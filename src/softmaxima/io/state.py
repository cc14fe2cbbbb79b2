r"""The state of a logsumexp: the monoid (M, m, r) of `base/monoid.py` in 106 bits, for sums of any number of parts.

    LSE = M + log m + log1p(r/m),        M = max z,  m = #{z_i = M},  r = Σ_{z_i<M} exp(z_i − M)

    (M, m, R) ⊕ (M′, m′, R′) = (M, m, R + R′ + m′ exp(M′))   if M > M′,        R = r exp(M)
                             = (M, m + m′, R + R′)           if M = M′

Merging is associative and commutative, with the state of nothing (−∞, 0, 0) as its identity: sums over a stream, over the pieces
of a sequence, over files and over machines are all this one. R is kept and not r, in 106 bits (`_scaled.py`), so that it holds of
the rounded sums too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from softmaxima.base.numbers import check_one_temperature
from softmaxima.base.public import public
from softmaxima.io._scaled import WIDE, Product, Scaled, exponential, nothing
from softmaxima.kernels import interface

if TYPE_CHECKING:
    from torch import Tensor

    from softmaxima.base.arguments import Array
    from softmaxima.io.formats.source import Block

LONG = 4096  # float64 scores of a row from which the native kernel sums it
PIECE = 2**18  # scores of all rows that are summed at a time, in cache


@public
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
        scores, mask, tau = tensor_rows(name, x, dim, temperature, where)
        if scores.requires_grad:
            raise ValueError(f"{name}: a state carries no gradient; call x.detach(), or logsumexp(x) for a value that has one")
        self._check_shape(name, tuple(scores.shape[:-1]))
        return self.merge(of_rows(scores, mask, tau, self.squares is not None))

    def merge(self, other: LogSumExpState) -> LogSumExpState:
        """The state of what both have seen. It keeps the effective size if both do.

        Raises TypeError for anything but a state, and ValueError for one of another shape, or for 2^63 scores or more together.

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
        if np.any(self.n > np.iinfo(np.int64).max - other.n):
            raise ValueError("merge: states must be of fewer than 2^63 scores together; add their values by logaddexp instead")
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


def tensor_rows(name: str, x: Any, dim: int, temperature: Any, where: Any) -> tuple[Tensor, Tensor | None, float]:
    """(scores, mask, τ) validated, with `dim` moved last."""
    import torch  # here, for sums of files do without it

    from softmaxima.base.arguments import as_floating, check_scores, rows_last

    scores = check_scores(name, as_floating(name, x, torch.float64))
    tau = check_one_temperature(name, temperature)
    _, rows, _, mask = rows_last(name, scores, dim, tau, where)
    return rows, mask, tau


def of_rows(x: Tensor, where: Tensor | None, tau: float, squares: bool) -> LogSumExpState:
    """The state of rows [..., n]."""
    shape, n = tuple(x.shape[:-1]), x.shape[-1]
    seen = np.full(shape, n) if where is None else where.expand(x.shape).sum(-1).cpu().numpy()
    x = x.detach().cpu()
    return _of_block(x if where is None else x.masked_fill(~where.cpu(), -math.inf), seen, tau, squares)


def _of_block(x: Block, seen: np.ndarray, tau: float, squares: bool) -> LogSumExpState:
    """The same of rows in memory, of a dtype of floating point, of which `seen` count."""
    shape, n = tuple(x.shape[:-1]), x.shape[-1]
    if _is_long(x):
        return _of_sums(_sums(x, tau, squares), tau, seen)
    state = _nothing(shape, squares)
    step = max(1, min(LONG, PIECE // max(math.prod(shape), 1)))
    for start in range(0, n, step):
        state = state.merge(_of_short_rows(_wide(x[..., start : start + step]), tau, squares))
    return replace(state, n=seen)


def _is_long(x: Block) -> bool:
    """Whether the native kernel sums rows [..., n]."""
    return interface.AVAILABLE and x.shape[-1] >= (LONG if x.dtype.itemsize == 8 else 1)  # of narrower dtypes the digits are fewer


def _wide(x: Block) -> np.ndarray:
    return x.astype(np.float64) if isinstance(x, np.ndarray) else x.detach().double().numpy()


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


class _Sums(NamedTuple):
    """What the native kernel says of rows, of x/τ and, or None, of 2x/τ."""

    rest: np.ndarray  # Σ exp((x − M)/τ) over the others
    highest: np.ndarray  # the largest x, M
    maxima: np.ndarray  # how many x are that
    squares: np.ndarray | None  # Σ exp(2 (x − M)/τ) over the others


def _sums(x: Block, tau: float, squares: bool) -> _Sums:
    return _Sums(*_row_sums(x, tau), _row_sums(x, tau / 2)[0] if squares else None)


def _row_sums(x: Block, tau: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if isinstance(x, np.ndarray):
        return interface.logsumexp_state(interface.array_rows(x, tau), x.shape[:-1])
    from softmaxima.kernels import native

    return native.logsumexp_state(x, tau)


def _of_sums(sums: _Sums, tau: float, seen: np.ndarray) -> LogSumExpState:
    with np.errstate(over="ignore"):
        maximum = sums.highest / tau
    count = np.where(maximum == -math.inf, 0, sums.maxima)
    squares = None if sums.squares is None else Product(maximum, sums.squares, 2)
    return LogSumExpState(maximum, count, Product(maximum, sums.rest), squares, seen)


def of_pieces(pieces: Iterable[Block], tau: float, squares: bool) -> LogSumExpState:
    """The state of pieces [n] that follow one another, each of which may be gone when the next comes.

    Many pieces that stay in cache cost no more than one that does not: their sums become a state together.
    """
    state = _nothing((), squares)
    sums, seen = [], []
    for piece in pieces:
        x = _floating(piece)
        if _is_long(x):
            sums.append(_sums(x, tau, squares))
            seen.append(len(x))
        else:
            state = state.merge(_of_block(x, np.asarray(len(x)), tau, squares))
    if sums:
        together = _Sums(*(None if field[0] is None else np.stack(field) for field in zip(*sums, strict=True)))  # type: ignore[arg-type]
        state = state.merge(_merged(_of_sums(together, tau, np.array(seen))))
    return state


def _floating(x: Block) -> Block:
    """Scores as kernels read them: of floating point, in the machine's order, one after the other. Integers become float64."""
    if isinstance(x, np.ndarray):
        return np.ascontiguousarray(x, x.dtype.newbyteorder("=") if x.dtype.kind == "f" else np.float64)
    return x


def of_counts(scores: np.ndarray, counts: np.ndarray, tau: float, squares: bool) -> LogSumExpState:
    """The state of scores in float64, each of which occurs so often."""
    with np.errstate(over="ignore"):
        z = scores / tau
    return _merged(replace(_nothing(z.shape, squares), maximum=z, count=np.where(z == -math.inf, 0, counts), n=counts))


def _merged(states: LogSumExpState) -> LogSumExpState:
    """The state of all the rows along the last axis."""
    maximum = states.maximum.max(-1, initial=-math.inf)
    at_maximum = states.maximum == maximum[..., None]
    term = exponential(np.where(at_maximum, -math.inf, states.maximum))
    count = np.where(at_maximum, states.count, 0).sum(-1)
    rest = (states.rest.scaled + term.times(states.count.astype(np.float64))).sum()
    squares = None
    if states.squares is not None:
        squares = (states.squares.scaled + term.squared().times(states.count.astype(np.float64))).sum()
    return LogSumExpState(maximum, count, rest, squares, states.n.sum(-1))
