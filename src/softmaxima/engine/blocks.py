"""What a map states of parts of a row; long rows, chunks of classes, key blocks of attention, shards and files are all this.

A pass makes a state of each part, and states merge in any order. The state of all parts is what the next pass is given; after the
last it tells every part its probabilities. `parts.py` is for those who call this.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from softmaxima.base import monoid
from softmaxima.base.rows import FEW, largest_scores, row_maximum
from softmaxima.engine.routing import has_kernel, is_native, kernels
from softmaxima.kernels.kernel import Kernel

State = tuple[Tensor, ...]  # of float64 or int64 [..., m]


@dataclass(frozen=True)
class Part:
    """Some scores of each row, −∞ where they are left out."""

    x: Tensor  # [..., n] in float64; for `begin` and `support` of a map that has `support` as they came
    tau: float | Tensor = 1.0  # a number or [..., 1]
    first: int | Tensor = 0  # the place of x[..., 0] in its row, a number or [..., 1], by which ties are broken and labels found
    given: Any = None  # the scores as they came, whose kind and dtype the results have

    def __post_init__(self) -> None:
        if not self.x.is_floating_point():
            raise TypeError(f"Part: scores must be of floating point, got {self.x.dtype}; call x.double()")

    @property
    def z(self) -> Tensor:
        """x/τ."""
        silent = self.x == -math.inf
        return (self.x.masked_fill(silent, 0.0) / self.tau).masked_fill(silent, -math.inf)


def _of_each_score(part: Part, state: State, p: Tensor, of: Callable[..., Any], /, **params: Any) -> Any:
    return of(p, part.z, **params)


@dataclass(frozen=True)
class Blocks:
    """How a map works on parts; every function takes the map's parameters by name as well.

    begin(part, known) → the state of a part, `known` that of all parts in the pass before, None in the first. Of a part without
        scores it is the identity; what has no width then, scores and places, may have any in other states.
    merge(a, b, tau) → the state of both, in either order.
    finish(part, state) → the probabilities of a part, from the state of all.
    passes() → how many passes over all parts make that state, at most.
    conjugate(state, tau) → (M, c) with V = M/τ + c, of which the map is the gradient: what a loss needs.
    factor(a, b, tau) → what takes probabilities under the state a, of some parts, to those under b, of more: what attention needs
        to begin before it knows all parts. None where a score that comes later takes others out.
    derivative(part, state, p, of) → what of(p, z), the map's sensitivity or a parameter's gradient, says of the scores of a part
        when it is given the whole row. Without it `of` is taken of each score by itself.
    support(part, state) → where the scores of a part are that may have a probability, indices [..., w], or None for anywhere. The
        others have none and no derivative, `finish` and `derivative` are given a part of those w alone, and places must not matter.
    settled(state, tau) → the state after the last pass, where that of all parts after an earlier one tells it; None elsewhere.
    is_sum: whether a state is the `monoid.LogSum` of x/τ and no more, which kernels make and of which many merge at once.
    """

    begin: Callable[..., State]
    merge: Callable[..., State]
    finish: Callable[..., Tensor]
    passes: Callable[..., int] = lambda **params: 1
    conjugate: Callable[..., tuple[Tensor, Tensor]] | None = None
    factor: Callable[..., Tensor] | None = None
    derivative: Callable[..., Any] = _of_each_score
    support: Callable[..., Tensor | None] | None = None
    settled: Callable[..., State | None] = lambda state, tau, **params: None
    is_sum: bool = False


@dataclass(frozen=True)
class RegulariserInParts:
    """Ω(p) of rows in parts: each comes to a number, these merge in any order, and Ω is made of that of all and Σp.

    of_part(p, **params) → the number of a part [...]; of zeros it is what merging changes nothing with.
    merge(a, b) → that of both.
    whole(number, mass, **params) → Ω(p).
    """

    of_part: Callable[..., Tensor]
    merge: Callable[[Tensor, Tensor], Tensor] = torch.add
    whole: Callable[..., Tensor] = lambda number, mass, **params: number


def packed(state: State, identity: State, width: int | None = None) -> Tensor:
    """A state as one tensor [..., m] of float64, to be sent: what varies in width, as in the identity, is padded to `width`."""
    varies = [values.shape[-1] == 0 for values in identity]
    own = max((values.shape[-1] for values, varying in zip(state, varies, strict=True) if varying), default=0)
    width = own if width is None else width
    if own > width:
        raise ValueError(f"packed: width must be at least that of the state, {own}, got {width}; exchange the largest width first")
    columns = []
    for values, varying in zip(state, varies, strict=True):
        if varying:
            values = _padded(values, width)
        columns.append(values.contiguous().view(torch.float64))
    return torch.cat(columns, -1)


def joined(states: Sequence[State]) -> State:
    """The state of rows that follow one another along the first axis, from those of some of them each."""
    if len(states) == 1:
        return states[0]
    columns = [torch.cat([_padded(v, max(w.shape[-1] for w in values)) for v in values]) for values in zip(*states, strict=True)]
    make: Any = getattr(states[0], "_make", tuple)
    return make(columns)


def _padded(values: Tensor, width: int) -> Tensor:
    """With scores and places of nothing."""
    nothing = -math.inf if values.is_floating_point() else torch.iinfo(values.dtype).max
    return torch.cat((values, values.new_full((*values.shape[:-1], width - values.shape[-1]), nothing)), -1)


def unpacked(values: Tensor, identity: State) -> State:
    """The state that was packed."""
    widths = [column.shape[-1] for column in identity]
    width, rest = divmod(values.shape[-1] - sum(widths), max(1, widths.count(0)))
    if values.dtype != torch.float64 or width < 0 or rest or (width and 0 not in widths):
        raise ValueError(
            f"unpacked: this is no packed state of the map in this pass: {values.dtype} of shape {tuple(values.shape)}"
        )
    columns = values.split([own or width for own in widths], -1)
    return tuple(column.contiguous().view(like.dtype) for column, like in zip(columns, identity, strict=True))


def exponential(shares: Callable[..., Tensor], conjugate: Callable[..., tuple[Tensor, Tensor]] | None = None) -> Blocks:
    """A map of exponentials over the monoid of logsumexp: `shares(part, sum, **params)` and `conjugate(sum, tau, **params)`.

    Where there is a conjugate the shares are exp(x/τ − V), and a parameter's gradient knows the row by its sum alone.
    """

    def begin(part: Part, known: State | None, **params: Any) -> State:
        return monoid.log_sum(part.x, part.tau)

    def merge(a: State, b: State, tau: float | Tensor, **params: Any) -> State:
        return monoid.merge(monoid.LogSum(*a), monoid.LogSum(*b), tau)

    def finish(part: Part, state: State, **params: Any) -> Tensor:
        return shares(part, monoid.LogSum(*state), **params)

    def value(state: State, tau: float | Tensor, **params: Any) -> tuple[Tensor, Tensor]:
        top, rest = conjugate(monoid.LogSum(*state), tau, **params)  # type: ignore[misc]
        return top, rest.masked_fill(state[0] == math.inf, math.inf)

    def factor(a: State, b: State, tau: float | Tensor, **params: Any) -> Tensor:
        return growth(value(a, tau, **params), value(b, tau, **params), tau)

    def derivative(part: Part, state: State, p: Tensor, of: Callable[..., Any], /, **params: Any) -> Any:
        return of(p, monoid.LogSum(*state).value(part.tau), **params)

    if conjugate is None:
        return Blocks(begin, merge, finish, derivative=derivative, is_sum=True)
    return Blocks(begin, merge, finish, conjugate=value, factor=factor, derivative=derivative, is_sum=True)


def growth(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], tau: float | Tensor) -> Tensor:
    """exp(V_a − V_b) of two conjugates (M, c), 0 where there was nothing."""
    return torch.where(a[1] == -math.inf, 0.0, ((a[0] - b[0]) / tau + (a[1] - b[1])).exp())


def of_the_mass(part: Part, state: State, p: Tensor, of: Callable[..., tuple[Tensor, ...]], /, **params: Any) -> tuple[Tensor, ...]:
    """The sensitivity (w′/Σw, p) of a map p = w/Σw, which of a part alone is over the weight of that part."""
    s, q = of(p, part.z, **params)
    return s * p.sum(-1, keepdim=True), q


NARROW = 16  # scores of a row, the largest, among which its support is looked for first


def thresholded(
    solve: Callable[..., Tensor], regulariser: Callable[..., Tensor] | None = None, kernel: Kernel | None = None
) -> Blocks:
    """A map that is 0 below a threshold, of `solve(z, **params)` or, on the CPU, of the map's kernel: its state are the scores that
    can be in the support.

    A score that is not in the support of a part is in that of no whole, for more scores only raise the threshold. So a state is no
    larger than the largest support among its rows.
    """

    def probabilities(x: Tensor, tau: float | Tensor, params: dict[str, Any]) -> Tensor:
        z = (x - row_maximum(x)) / tau
        if z.numel() and is_native(z) and has_kernel(kernel, z) and (theta := kernel.theta(*params.values())) is not None:
            return kernels(z).forward(kernel, z, 1.0, None, theta)
        return solve(z, **params)

    def largest(x: Tensor, tau: float | Tensor, params: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """(the largest scores of each row in order, among them its support, which of them that are)."""
        n, width = x.shape[-1], 0 if x.numel() > FEW else x.shape[-1]
        while True:
            width = min(n, max(NARROW, 8 * width))
            ordered = largest_scores(x, width)[0].double()
            counts = probabilities(ordered, tau, params) > 0
            if width == n or not bool(counts[..., -1].any()):
                return ordered, counts

    def candidates(x: Tensor, tau: float | Tensor, params: dict[str, Any]) -> State:
        if x.shape[-1] == 0:
            return (x.double(),)
        ordered, counts = largest(x, tau, params)
        spoilt = ~(ordered[..., :1] < math.inf)  # NaN and +∞ are the largest
        kept = torch.where(counts, ordered, -math.inf)
        kept[..., :1] = torch.where(spoilt, math.nan, kept[..., :1])
        return (kept[..., : max(1, int(counts.sum(-1).max()))] if counts.numel() else kept,)

    def begin(part: Part, known: State | None, **params: Any) -> State:
        return candidates(part.x, part.tau, params)

    def merge(a: State, b: State, tau: float | Tensor, **params: Any) -> State:
        return candidates(torch.cat((a[0], b[0]), -1), tau, params)

    def found(part: Part, state: State, params: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        """(the candidates in order, −∞ before them, their p, where among them each score is: at −∞ if it is none)."""
        ordered = torch.nn.functional.pad(state[0].flip(-1), (1, 0), value=-math.inf)
        place = torch.searchsorted(ordered, part.x.contiguous()).clamp_max(ordered.shape[-1] - 1)
        place = torch.where(ordered.gather(-1, place) == part.x, place, 0)
        return ordered, probabilities(ordered, part.tau, params), place

    def finish(part: Part, state: State, **params: Any) -> Tensor:
        _, p, place = found(part, state, params)
        return p.gather(-1, place)

    def conjugate(state: State, tau: float | Tensor, **params: Any) -> tuple[Tensor, Tensor]:
        x = torch.nn.functional.pad(state[0], (0, 1), value=-math.inf)
        top, p = row_maximum(x), probabilities(x, tau, params)
        gaps = torch.where(p == 0, 0.0, p * (x - top)).sum(-1, keepdim=True) / tau
        value = gaps - regulariser(p, **params).unsqueeze(-1)  # type: ignore[misc]
        return top, value.masked_fill((x == -math.inf).all(-1, keepdim=True), -math.inf)

    def derivative(part: Part, state: State, p: Tensor, of: Callable[..., Any], /, **params: Any) -> Any:
        ordered, p, place = found(part, state, params)
        return _at(of(p, (ordered - row_maximum(ordered)) / part.tau, **params), place)

    def support(part: Part, state: State, **params: Any) -> Tensor | None:
        n, width = part.x.shape[-1], state[0].shape[-1]  # which holds all that have a probability
        if n <= 8 * NARROW or 2 * width >= n or bool(state[0].isnan().any()):  # a row of NaN has it everywhere
            return None
        return largest_scores(part.x, width)[1]

    value = None if regulariser is None else conjugate
    return Blocks(begin, merge, finish, conjugate=value, derivative=derivative, support=support)


def _at(found: Any, place: Tensor) -> Any:
    """What was found of each candidate, a tensor, several or a Jacobian, where they are."""
    if isinstance(found, Tensor):
        return found.gather(-1, place)
    if isinstance(found, tuple):
        return tuple(_at(values, place) for values in found)
    return replace(found, **{field.name: _at(getattr(found, field.name), place) for field in fields(found)})


def places(part: Part) -> Tensor:
    """Where each score of a part stands in its row."""
    return (part.first + torch.arange(part.x.shape[-1], device=part.x.device)).expand(part.x.shape)
