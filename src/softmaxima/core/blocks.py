"""Maps on parts of a row as on a whole: long rows, chunks of classes, key blocks of attention, shards and files are all this.

A pass makes a state of each part, and states merge in any order. The state of all parts is what the next pass is given, until it is
complete; then it tells every part its probabilities:

    state = None
    while state is None or not blocks.is_complete(state):
        state = merged(blocks.begin(part, state) for part in parts)
    probabilities = [blocks.finish(part, state) for part in parts]

A state is a tuple of tensors, so that it can be sent. One pass is enough for all maps but those that select by mass.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from softmaxima.core import monoid
from softmaxima.core.rows import row_maximum

State = tuple[Tensor, ...]


@dataclass(frozen=True)
class Part:
    """Some scores of each row, in float64, −∞ where they are left out."""

    x: Tensor  # [..., n]
    tau: float | Tensor = 1.0  # a number or [..., 1]
    first: int = 0  # the place of x[..., 0] in its row, by which ties are broken

    def __post_init__(self) -> None:
        if self.x.dtype != torch.float64:
            raise TypeError(f"Part: scores must be float64, got {self.x.dtype}; call x.double()")

    @property
    def z(self) -> Tensor:
        """x/τ."""
        silent = self.x == -math.inf
        return (self.x.masked_fill(silent, 0.0) / self.tau).masked_fill(silent, -math.inf)


@dataclass(frozen=True)
class Blocks:
    """How a map works on parts; every function takes the map's parameters by name as well.

    begin(part, known) → the state of a part, `known` that of all parts in the pass before, None in the first.
    merge(a, b, tau) → the state of both, in either order.
    finish(part, state) → the probabilities of a part, from the state of all; not to be differentiated but for maps of exponentials.
    is_complete(state) → whether no further pass is needed.
    conjugate(state, tau) → (M, c) with Ω*(x/τ) = M/τ + c, from the state of all, where the map is its gradient: what a loss needs.
    """

    begin: Callable[..., State]
    merge: Callable[..., State]
    finish: Callable[..., Tensor]
    is_complete: Callable[[State], bool] = lambda state: True
    conjugate: Callable[..., tuple[Tensor, Tensor]] | None = None


def state_of(blocks: Blocks, parts: Sequence[Part], params: dict[str, Any]) -> State:
    """The complete state of all parts of a row."""
    state: State | None = None
    while state is None or not blocks.is_complete(state):
        known = state
        states: Iterable[State] = (blocks.begin(part, known, **params) for part in parts)
        state = functools.reduce(lambda a, b: blocks.merge(a, b, parts[0].tau, **params), states)
    return state


def exponential(shares: Callable[..., Tensor], conjugate: Callable[..., tuple[Tensor, Tensor]] | None = None) -> Blocks:
    """A map of exponentials over the monoid of logsumexp: `shares(part, sum, **params)` and `conjugate(sum, tau, **params)`."""

    def begin(part: Part, known: State | None, **params: Any) -> State:
        return monoid.log_sum(part.x, part.tau)

    def merge(a: State, b: State, tau: float | Tensor, **params: Any) -> State:
        return monoid.merge(monoid.LogSum(*a), monoid.LogSum(*b), tau)

    def finish(part: Part, state: State, **params: Any) -> Tensor:
        return shares(part, monoid.LogSum(*state), **params)

    def value(state: State, tau: float | Tensor, **params: Any) -> tuple[Tensor, Tensor]:
        return conjugate(monoid.LogSum(*state), tau, **params)  # type: ignore[misc]

    return Blocks(begin, merge, finish, conjugate=None if conjugate is None else value)


class Sum(NamedTuple):
    """A plain sum over parts."""

    total: Tensor


def additive(weigh: Callable[..., Tensor]) -> Blocks:
    """A map p = w/Σw of weights that are taken score by score, `weigh(part, **params)`."""

    def begin(part: Part, known: State | None, **params: Any) -> State:
        return Sum(weigh(part, **params).sum(-1, keepdim=True))

    def merge(a: State, b: State, tau: float | Tensor, **params: Any) -> State:
        return Sum(a[0] + b[0])

    def finish(part: Part, state: State, **params: Any) -> Tensor:
        return weigh(part, **params) / state[0].masked_fill(state[0] == 0, 1.0)

    return Blocks(begin, merge, finish)


def thresholded(solve: Callable[..., Tensor], regulariser: Callable[..., Tensor]) -> Blocks:
    """A map that is 0 below a threshold, of `solve(z, **params)`: its state are the scores that can be in the support.

    A score that is not in the support of a part is in that of no whole, for more scores only raise the threshold. So a state is no
    larger than the largest support among its rows.
    """

    def probabilities(x: Tensor, tau: float | Tensor, params: dict[str, Any]) -> Tensor:
        return solve((x - row_maximum(x)) / tau, **params)

    def candidates(x: Tensor, tau: float | Tensor, params: dict[str, Any]) -> State:
        if x.shape[-1] == 0:
            return (x,)
        ordered = x.sort(-1, descending=True).values
        spoilt = (x.isnan() | (x == math.inf)).any(-1, keepdim=True)
        counts = (probabilities(ordered, tau, params) > 0).masked_fill(spoilt, False)
        kept = torch.where(counts, ordered, -math.inf)
        kept[..., :1] = torch.where(spoilt, math.nan, kept[..., :1])
        return (kept[..., : max(1, int(counts.sum(-1).max()))] if counts.numel() else kept,)

    def begin(part: Part, known: State | None, **params: Any) -> State:
        return candidates(part.x, part.tau, params)

    def merge(a: State, b: State, tau: float | Tensor, **params: Any) -> State:
        return candidates(torch.cat((a[0], b[0]), -1), tau, params)

    def finish(part: Part, state: State, **params: Any) -> Tensor:
        ordered = state[0].flip(-1).contiguous()  # −∞ first
        if ordered.shape[-1] == 0 or part.x.shape[-1] == 0:
            return torch.zeros_like(part.x)
        p = probabilities(ordered, part.tau, params)
        place = torch.searchsorted(ordered, part.x.contiguous()).clamp_max(p.shape[-1] - 1)
        found = (ordered.gather(-1, place) == part.x) & (part.x > -math.inf)
        return torch.where(found, p.gather(-1, place), 0.0) + 0.0 * p.sum(-1, keepdim=True)  # NaN makes the row NaN

    def conjugate(state: State, tau: float | Tensor, **params: Any) -> tuple[Tensor, Tensor]:
        (x,) = state
        if x.shape[-1] == 0:
            return x.new_zeros((*x.shape[:-1], 1)), x.new_full((*x.shape[:-1], 1), -math.inf)
        top, p = row_maximum(x), probabilities(x, tau, params)
        gaps = torch.where(p == 0, 0.0, p * (x - top)).sum(-1, keepdim=True) / tau
        value = gaps - regulariser(p, **params).unsqueeze(-1)
        return top, value.masked_fill((x == -math.inf).all(-1, keepdim=True), -math.inf)

    return Blocks(begin, merge, finish, conjugate=conjugate)


def places(part: Part) -> Tensor:
    """Where each score of a part stands in its row."""
    return (part.first + torch.arange(part.x.shape[-1], device=part.x.device)).expand(part.x.shape)
