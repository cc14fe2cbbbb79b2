"""A map over rows that come in parts: call this from long rows, chunks of classes, key blocks, shards and files.

    rows = in_parts(map, temperature=…, **params)
    state = rows.state(parts)              or, by hand, rows.in_passes(one), where one(known) merges begin(part, known) of all
    p = rows.finish(part, state)           and again for each part

The derivative takes two steps as well, for ⟨q, g⟩ and its like are sums over the whole row:

    sums = rows.sums(parts, slopes, state)  or, by hand, merge_pull of begin_pull(part, g, state) over all parts
    v = rows.pull(part, g, state, sums)

A state is a tuple of tensors that merges in any order; `pack` makes one tensor of it, for another process.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from softmaxima.base import monoid
from softmaxima.base.arguments import Array, as_map_scores, as_scores, check_per_row, check_value, check_where, like_input
from softmaxima.base.jacobian import Jacobian, narrowed, product
from softmaxima.base.numbers import TEMPERATURE, check_int
from softmaxima.base.public import public
from softmaxima.base.rows import row_maximum, without_mask
from softmaxima.base.temperature import over
from softmaxima.engine.blocks import Blocks, Part, State, packed, unpacked
from softmaxima.engine.contract import AnyMap, Map, find_map
from softmaxima.kernels.layout import zeros

AnyState = TypeVar("AnyState", bound=tuple)


@public
@dataclass(frozen=True, eq=False)
class InParts:
    """A map, with τ and its parameters, over rows in parts; `in_parts` makes one.

    The scores of another process, or of another time, come as a state that was packed:

    >>> import torch, softmaxima as sm
    >>> rows = sm.in_parts("entmax15")
    >>> here, there = rows.part(torch.tensor([1.0, 0.0])), rows.part(torch.tensor([0.5]), first=2)
    >>> sent = rows.pack(rows.begin(there), rows.identity(there))
    >>> state = rows.merge(rows.begin(here), rows.unpack(sent, rows.identity(here)))
    >>> rows.finish(here, state), sm.entmax15(torch.tensor([1.0, 0.0, 0.5]))[:2]
    (tensor([0.6242, 0.0841]), tensor([0.6242, 0.0841]))

    and the gradient of ⟨g, p⟩ by sums over all parts:

    >>> upstream = [(here, torch.tensor([1.0, 0.0])), (there, torch.tensor([0.0]))]
    >>> sums = [rows.begin_pull(part, g, state) for part, g in upstream]
    >>> rows.pull(*upstream[0], state, rows.merge_pull(*sums))[0]
    tensor([ 0.4048, -0.1414])
    """

    map: Map
    tau: float | Tensor
    params: Mapping[str, Any]

    @property
    def blocks(self) -> Blocks:
        return self.map.blocks  # type: ignore[return-value]

    @property
    def passes(self) -> int:
        """How many passes over all parts make a state, at most; one more tells the probabilities."""
        return self.blocks.passes(**self.params)

    @property
    def online(self) -> bool:
        """Whether probabilities under the state of some parts only have to be scaled, by `factor`, when others come."""
        return self.blocks.factor is not None

    def part(self, x: Any, first: int | Tensor = 0, where: Any = None) -> Part:
        """Scores [..., n] of some places of the rows, the axis last, of any dtype; `first` is the place of x[..., 0]."""
        scores = as_map_scores("in_parts", x)
        if scores.ndim == 0:
            raise ValueError("in_parts: scores need an axis, the last, got a 0-d tensor")
        no_graph("scores", scores)
        if not isinstance(first, Tensor):
            first = check_int("in_parts", "first", first, lambda place: place >= 0, "an int of at least 0")
        for name, value in (("temperature", self.tau), *self.params.items()):
            if isinstance(value, Tensor):
                check_per_row("in_parts", name, value, scores, scores.ndim - 1, lambda values: values == values, "a number")
        mask = check_where("in_parts", where, scores)
        wide = scores.double() if mask is None else scores.double().masked_fill(~mask, -math.inf)
        return Part(wide, self.tau, first, x)

    def parts(self, parts: Iterable[Any]) -> Iterator[Part]:
        """Arrays as parts, one after the other."""
        if isinstance(parts, (Tensor, np.ndarray)):
            raise TypeError(f"in_parts: parts must be a list of arrays, got one {type(parts).__name__}; call with [x]")
        place, rows = 0, None
        for part in parts:
            own = part if isinstance(part, Part) else self.part(part, place)
            if rows not in (None, own.x.shape[:-1]):
                raise ValueError(f"in_parts: all parts must be of the same rows, {tuple(rows)}, got {tuple(own.x.shape[:-1])}")
            yield own
            place, rows = own.first + own.x.shape[-1], own.x.shape[:-1]

    # States ----------------------------------------------------------------------------------------------------------------------

    def begin(self, part: Part, known: State | None = None) -> State:
        """The state of a part in a pass, `known` being that of all parts after the pass before."""
        _check_part(part)
        return self.blocks.begin(part, known, **self.params)

    def merge(self, a: State, b: State) -> State:
        """The state of the parts of both."""
        return self.blocks.merge(a, b, self.tau, **self.params)

    def together(self, states: Iterable[State]) -> State:
        """The state of all parts."""
        if not self.blocks.is_sum:
            return merged(states, self.merge, self.map.name)
        every = [monoid.LogSum(*state) for state in states]
        return monoid.total(every, self.tau) if len(every) > 1 else every[0]

    def identity(self, like: Part, known: State | None = None) -> State:
        """The state of no scores, for rows like those of a part: merging it changes nothing."""
        return self.begin(replace(like, x=like.x[..., :0]), known)

    def state(self, parts: Iterable[Any]) -> State:
        """The state of rows, of which `parts` are all, each read `passes` times at most."""
        again(parts, self.passes, self.map.name)
        return self.in_passes(
            lambda known: merged((self.begin(part, known) for part in self.parts(parts)), self.merge, self.map.name)
        )

    def in_passes(self, one: Callable[[State | None], State]) -> State:
        """The state of rows by passes, `one(known)` of which makes that of all parts from what it was in the pass before, None at
        first; there are no more than are needed.
        """
        known: State | None = None
        for _ in range(self.passes):
            known = one(known)
            if (last := self.blocks.settled(known, self.tau, **self.params)) is not None:
                return last
        return known  # type: ignore[return-value]

    def pack(self, state: State, identity: State, width: int | None = None) -> Tensor:
        """A state as one float64 tensor [..., m], to be sent: scores that may be in the support are padded to `width` a row.

        Without it, they are as many as this state has. Raises ValueError where they are more.
        """
        return packed(state, identity, width)

    def unpack(self, values: Tensor, identity: State) -> State:
        """The state that was packed."""
        return unpacked(values, identity)

    # Probabilities ---------------------------------------------------------------------------------------------------------------

    def finish(self, part: Part, state: State) -> Any:
        """The probabilities of a part, of the kind and dtype of its scores."""
        return as_given(*self.sparse(part, state), part)

    def wide(self, part: Part, state: State) -> Tensor:
        """The probabilities of a part in float64."""
        return spread(*self.sparse(part, state), part)

    def sparse(self, part: Part, state: State) -> tuple[Tensor, Tensor | None]:
        """(the probabilities in float64 of those scores of a part that may have some, where they are: None for all)."""
        _check_part(part)
        own, where = self._supported(part, state)
        return self.blocks.finish(own, state, **self.params), where

    def probabilities(self, parts: Iterable[Any]) -> Iterator[Any]:
        """The probabilities of each part, in turn. Raises TypeError for an iterator, which cannot be read twice."""
        again(parts, self.passes + 1, self.map.name)
        state = self.state(parts)
        return (self.finish(part, state) for part in self.parts(parts))

    def factor(self, a: State, b: State) -> Tensor:
        """What takes probabilities under the state a to those under b, in which a was merged [..., 1].

        Raises ValueError for a map that is not `online`.
        """
        if self.blocks.factor is None:
            raise ValueError(f"{self.map.name}: a score that comes later may take others out; make the state of all parts first")
        return self.blocks.factor(a, b, self.tau, **self.params)

    # Derivatives -----------------------------------------------------------------------------------------------------------------

    def begin_pull(self, part: Part, g: Any, state: State) -> State:
        """What the gradient of ⟨g, p⟩ needs of a part: its largest score, and the sums of the map's Jacobian over it."""
        return self.pulling(part, g, state).sums()

    def merge_pull(self, a: State, b: State) -> State:
        """The sums over the parts of both."""
        return torch.maximum(a[0], b[0]), *self._form.merge(a[1:], b[1:])

    def sums(self, parts: Iterable[Any], slopes: Iterable[Any], state: State) -> State:
        """The sums over rows, of which `parts` are all and `slopes` their g."""
        begun = (self.begin_pull(part, g, state) for part, g in zip(self.parts(parts), slopes, strict=True))
        return merged(begun, self.merge_pull, self.map.name)

    def pull(self, part: Part, g: Any, state: State, sums: State) -> tuple[Any, dict[str, Tensor]]:
        """(∂⟨g, p⟩/∂x of a part, what it adds to that by "temperature" and by each parameter that is a tensor [..., 1])."""
        return self.pulling(part, g, state).finish(sums)

    def pulling(self, part: Part, g: Any, state: State) -> Pulling:
        """Both steps of the derivative of a part, with its Jacobian, which is made once."""
        slopes = _slopes(part, g)
        own, where = self._supported(part, state)
        slopes = slopes if where is None else slopes.gather(-1, where)
        jacobian = self.map.jacobian_of(self.derivative(own, state, self.map.sensitivity))
        return Pulling(self, part, own, where, slopes, state, jacobian)

    def _supported(self, part: Part, state: State) -> tuple[Part, Tensor | None]:
        """(the scores of a part that may have a probability, where they are, None for all)."""
        where = None if self.blocks.support is None else self.blocks.support(part, state, **self.params)
        return replace(part, x=(part.x if where is None else part.x.gather(-1, where)).double()), where

    def derivative(self, part: Part, state: State, of: Any) -> Any:
        """What of(p, z) says of the scores of a part, which all may have a probability."""
        return self.blocks.derivative(part, state, self.blocks.finish(part, state, **self.params), of, **self.params)

    @functools.cached_property
    def _form(self) -> type[Jacobian]:
        device = next((value.device for value in self.params.values() if isinstance(value, Tensor)), "cpu")
        one = torch.ones((1, 1), dtype=torch.float64, device=device)
        return type(self.map.jacobian_of(self.map.sensitivity(one, one, **self.params)))


@dataclass(frozen=True, eq=False)
class Pulling:
    """The derivative of ⟨g, p⟩ by a part of the rows."""

    rows: InParts
    part: Part
    own: Part  # its scores that may have a probability
    where: Tensor | None  # where these are, None for all
    slopes: Tensor  # g, of these
    state: State
    jacobian: Jacobian

    def sums(self) -> State:
        """Its largest score, and the sums of the map's Jacobian over it."""
        x = self.part.x
        top = x.amax(-1, keepdim=True) if x.shape[-1] else x.new_full((*x.shape[:-1], 1), -math.inf)
        return top, *self.jacobian.sums(self.slopes)

    def finish(self, sums: State) -> tuple[Any, dict[str, Tensor]]:
        """(∂⟨g, p⟩/∂x of the part, what it adds to that by "temperature" and parameters), given the sums over all parts."""
        rows, own, learned = self.rows, self.own, dict[str, Tensor]()
        v = over(self.jacobian.pull(self.slopes, sums[1:]), rows.tau)
        if isinstance(rows.tau, Tensor):
            z = own.z
            if rows.map.properties.shift_invariant or rows.map.properties.locally_shift_invariant:
                z = (own.x - row_maximum(sums[0])) / rows.tau  # a constant adds nothing but its rounding
            learned["temperature"] = -(without_mask(z) * v).sum(-1, keepdim=True)
        for parameter in rows.map.params:
            if isinstance(rows.params[parameter.name], Tensor):
                moved = rows.derivative(own, self.state, parameter.gradient)
                learned[parameter.name] = product(moved, self.slopes).sum(-1, keepdim=True)
        return as_given(narrowed(v, _dtype(self.part)), self.where, self.part), learned


@public
def in_parts(map: AnyMap, *, temperature: float | Array = 1.0, **params: Any) -> InParts:
    """A map, with its temperature and parameters, over rows whose scores come in parts along the last axis.

    Args:
        map: a registered name, the function of a map or a `Map`, which must have `blocks`.
        temperature, params: as the map has them; a tensor has size 1 along the last axis.

    Returns:
        What makes the state of a part, merges states in any order, and tells a part its probabilities and its gradient. `parts`
        are arrays, one after the other, or what its `part(x, first, where)` makes of scores that lie elsewhere in their rows or
        are left out. All is computed in float64; probabilities have the dtype and array kind of their part.

    Raises:
        TypeError or ValueError for what the map would refuse, for scores that require grad, of which `pull` has the gradient, and
        for an iterator where the parts are read more than once.

    Cost: up to `passes` reads of the parts for a state, which is as large as the largest support of a row of its parts (k for
    top-k; of the first pass of top-p up to 512 scores and places), and one more for the probabilities.

    >>> import numpy as np, softmaxima as sm
    >>> rows = sm.in_parts("sparsemax", temperature=0.5)
    >>> list(rows.probabilities([np.array([1.0, 0.0]), np.array([0.9])]))
    [array([0.6, 0. ]), array([0.4])]
    >>> sm.sparsemax(np.array([1.0, 0.0, 0.9]), temperature=0.5)
    array([0.6, 0. , 0.4])
    """
    found = find_map(map, "in_parts")
    if found.blocks is None:
        raise ValueError(f"in_parts: {found.name} does not say how it works on parts; give its Map `blocks`")
    return bound_in_parts("in_parts", found, temperature, params)


def bound_in_parts(name: str, found: Map, temperature: Any, params: Mapping[str, Any]) -> InParts:
    """The same of a map with `blocks`, where `name` is of the function that was called."""
    values = {"temperature": check_value(name, "temperature", temperature, *TEMPERATURE)}
    values |= {p.name: p.check(name, value) for p, value in zip(found.params, found.complete(params, name).values(), strict=True)}
    for what, value in values.items():
        if isinstance(value, Tensor):
            no_graph(what, value, name)
            if value.ndim and value.shape[-1] != 1:
                raise ValueError(f"{name}: {what} must have size 1 along the last axis, got shape {tuple(value.shape)}")
            values[what] = value.double()
    return InParts(found, values.pop("temperature"), values)


def again(parts: Iterable[Any], passes: int, name: str) -> None:
    """Raise TypeError for what can be read once only, where it is read more often."""
    if passes > 1 and iter(parts) is parts:
        raise TypeError(f"{name}: the parts are read {passes} times, and an iterator only once; give a list, or what iterates anew")


@dataclass(frozen=True)
class Anew:
    """What iterates from the beginning each time."""

    begin: Callable[[], Iterator[Any]]

    def __iter__(self) -> Iterator[Any]:
        return self.begin()


def merged(states: Iterable[AnyState], merge: Callable[[AnyState, AnyState], AnyState], name: str) -> AnyState:
    """The state of all, by pairs, pairs of pairs and so on: each of k parts is rounded ⌈log₂ k⌉ times."""
    pending: list[tuple[int, AnyState]] = []  # (parts, their state), each of more parts than the next
    for state in states:
        count = 1
        while pending and pending[-1][0] == count:
            state = merge(pending.pop()[1], state)
            count *= 2
        pending.append((count, state))
    if not pending:
        raise ValueError(f"{name}: there must be one part at least, got none; a part may be empty")
    return functools.reduce(lambda later, earlier: merge(earlier, later), [state for _, state in reversed(pending)])


def no_graph(what: str, values: Tensor, name: str = "in_parts") -> None:
    """Raise ValueError for what requires grad; `name` is of the function that was called."""
    if values.requires_grad and torch.is_grad_enabled():
        raise ValueError(f"{name}: {what} must not require grad, which stops at a part; call .detach(), and take `pull`")


def spread(values: Tensor, where: Tensor | None, part: Part) -> Tensor:
    """Values of some scores of a part, 0 for the others."""
    return values if where is None else zeros(values, part.x.shape).scatter_(-1, where, values)


def _check_part(part: Any) -> None:
    if not isinstance(part, Part):
        raise TypeError(f"in_parts: a part must be made by `part(x)`, got {type(part).__name__}")


def _slopes(part: Part, g: Any) -> Tensor:
    _check_part(part)
    slopes = as_scores("in_parts", g, "g")
    if slopes.shape != part.x.shape:
        raise ValueError(f"in_parts: g must have the shape of the part, {tuple(part.x.shape)}, got {tuple(slopes.shape)}")
    return slopes.detach().double()


def as_given(values: Tensor, where: Tensor | None, part: Part) -> Any:
    """The values of a part, of which it has some, of the kind of its scores, rounded to their dtype."""
    if part.given is None:
        return spread(values, where, part)
    return like_input(spread(values.to(_dtype(part)), where, part), part.given)


def _dtype(part: Part) -> torch.dtype:
    return part.x.dtype if part.given is None else as_map_scores("in_parts", part.given).dtype
