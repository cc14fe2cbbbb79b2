r"""What queries make of keys that come in parts, in rounds over all of them: states that merge, of the output and of its gradient.

Softmax and elastic softmax take one round, for (o, LSE) of parts merge, and one for the gradient, for with o and LSE of all keys

    p = exp(x/τ − LSE),    ∂x = p (⟨g, v⟩ − ⟨g, o⟩)/τ

is known of each part. The sink of elastic softmax is one part more, with LSE = β and o = 0. Any other map takes the rounds of its
blocks, and one more for the outputs where a key that comes later may take others out; its gradient takes two (`attn/parts.py`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from softmaxima.attn import blocks, fused, naive
from softmaxima.attn.arguments import Request, Visible
from softmaxima.attn.merge import merge_attention
from softmaxima.attn.parts import AttentionInParts, AttentionPart
from softmaxima.base.arguments import COMPUTE_DTYPE
from softmaxima.base.jacobian import product
from softmaxima.distributed.layouts import Span
from softmaxima.distributed.ranks import Ranks
from softmaxima.distributed.rows import gathered, told
from softmaxima.engine.blocks import State
from softmaxima.engine.contract import find_map
from softmaxima.engine.parts import InParts
from softmaxima.lse.logaddexp import logaddexp


@dataclass(frozen=True, eq=False)
class Part:
    """Some keys with their values, and what the queries are asked of them."""

    request: Request
    first: int  # the place of the first key


def sees(visible: Visible, query: Span, key: Span) -> bool:
    """Whether a query of some places may see a key of others."""
    nearest, furthest = _distances(query, key)
    is_before = visible.left is not None and furthest < -visible.left
    is_after = visible.right is not None and nearest > visible.right
    return query.length > 0 and key.length > 0 and not is_before and not is_after


def part_of(request: Request, query: Span, key: Span, keys: Tensor, values: Tensor) -> Part:
    """What the queries of a span are asked of the keys of another, of a request of all keys in order.

    Places count from the span's first key.
    """
    visible = request.visible
    lengths = None if visible.lengths is None else (visible.lengths - key.place).clamp(0, key.length)
    found = replace(
        rows_of(request, query),
        key=keys,
        value=values,
        mask=_columns(request.mask, request, query, key),
        bias=_columns(request.bias, request, query, key),
        visible=Visible(query.length, key.length, visible.left, visible.right, lengths, query.place - key.place),
    )
    return Part(found, key.place)


def rows_of(request: Request, query: Span) -> Request:
    """The request of the queries of a span, but for what is of keys."""

    def rows(x: Any) -> Any:
        return x[..., query.own, :] if isinstance(x, Tensor) and x.ndim > 1 and x.shape[-2] != 1 else x

    params = {name: rows(value) for name, value in request.params.items()}
    own = {"query": request.query[..., query.own, :], "temperature": rows(request.temperature), "params": params}
    return replace(request, **own, visible=replace(request.visible, queries=query.length))


def scores_of(x: Tensor, request: Request, query: Span, key: Span) -> Tensor:
    """Those of two spans, of what broadcasts to [..., L, S]: a view."""
    if x.ndim > 1 and x.shape[-2] == request.visible.queries:
        x = x[..., query.own, :]
    return x[..., key.whole] if x.ndim and x.shape[-1] == request.visible.keys else x


def _columns(x: Tensor | None, request: Request, query: Span, key: Span) -> Tensor | None:
    return None if x is None else scores_of(x, request, query, key)


def _distances(query: Span, key: Span) -> tuple[int, int]:
    """(the least, the largest) of how far behind a query a key is."""
    return key.place - (query.place + query.length - 1), key.place + key.length - 1 - query.place


# Rounds -----------------------------------------------------------------------------------------------------------------------


class Rounds(ABC):
    """Some queries, and the rounds over all keys that their outputs and gradients take.

    In a round each part has a state, given what is `known` of the rounds before, and states merge in any order; what is then known
    of all keys is the next round's. What is known at the end begins with the output, or the gradient by the query.
    """

    forward: int
    backward: int

    def __init__(self, request: Request) -> None:
        self.request = request  # of the queries, and of no keys in particular

    def nothing(self, keys: Tensor, values: Tensor) -> Part:
        """A part without keys."""
        visible = Visible(self.request.visible.queries, 0, lengths=None)
        empty = {"key": keys[..., :0, :], "value": values[..., :0, :], "mask": None, "bias": None, "visible": visible}
        return Part(replace(self.request, **empty), 0)

    @abstractmethod
    def reads_values(self, number: int) -> bool: ...

    @abstractmethod
    def begin(self, number: int, part: Part, known: State | None) -> State: ...

    @abstractmethod
    def merge(self, number: int, a: State, b: State) -> State: ...

    @abstractmethod
    def known(self, number: int, before: State | None, state: State) -> State: ...

    @abstractmethod
    def told(self, number: int, ranks: Ranks, name: str, most: int, state: State, empty: Part, before: State | None) -> list[State]:
        """The states of all ranks, each of which has `most` keys at most."""

    @abstractmethod
    def begin_pull(self, number: int, part: Part, g: Tensor, end: State, known: State | None) -> tuple[State, Mapping[str, Tensor]]:
        """(state, gradients by the part's "key", "value" and "bias"), of g by the output; `end` is what was known at last."""

    @abstractmethod
    def merge_pull(self, number: int, a: State, b: State) -> State: ...

    @abstractmethod
    def pulled(self, g: Tensor, end: State, known: State) -> dict[str, Tensor]:
        """The gradients by "query", and by "temperature" and parameters that are tensors, [..., L, 1], by what is known at last."""


def rounds_of(request: Request, learns_bias: bool) -> Rounds:
    """Beside a bias, which may be far from 0, an LSE has not the digits of x/τ − LSE by which τ learns, and a map's states do."""
    beside_bias = request.bias is not None and isinstance(request.temperature, Tensor)
    return OfMap(request) if request.map.with_sink is None or beside_bias else OfSoftmax(request, learns_bias)


class OfSoftmax(Rounds):
    """States (o, LSE), the latter in double, [..., L, 1]; of the gradient (∂q, ∂τ where it is a tensor)."""

    forward = backward = 1

    def __init__(self, request: Request, learns_bias: bool) -> None:
        super().__init__(request)
        self.level, self.learns_bias = request.level, learns_bias

    def reads_values(self, number: int) -> bool:
        return True

    def begin(self, number: int, part: Part, known: State | None) -> State:
        request = self._softmax(part)
        if request.visible.keys == 0:
            return self._empty(request)
        output, mass = fused.attend_part(request) if fused.fits(request) else blocks.attend(_wide(request), True)
        return output, mass.double().unsqueeze(-1)  # type: ignore[union-attr]

    def merge(self, number: int, a: State, b: State) -> State:
        output, mass = merge_attention([a[0], b[0]], [a[1].squeeze(-1), b[1].squeeze(-1)])
        return output, mass.unsqueeze(-1)

    def known(self, number: int, before: State | None, state: State) -> State:
        if self.level is None:
            return state
        output, mass = state
        level = torch.as_tensor(self.level, dtype=torch.float64, device=mass.device).expand_as(mass)
        whole = logaddexp(mass, level)
        return product((mass - whole).exp().masked_fill(mass == -math.inf, 0.0), output).to(output.dtype), whole

    def told(self, number: int, ranks: Ranks, name: str, most: int, state: State, empty: Part, before: State | None) -> list[State]:
        return [(o.to(state[0].dtype), mass) for o, mass in told(name, ranks, [state[0].double(), state[1]])]

    def begin_pull(self, number: int, part: Part, g: Tensor, end: State, known: State | None) -> tuple[State, Mapping[str, Tensor]]:
        request, (output, mass), found = self._softmax(part), end, dict[str, Tensor]()
        if request.visible.keys == 0:
            dq = torch.zeros_like(_wide(request).query)
        elif fused.fits(request) and (request.is_bilinear or not (self.learns_bias or self._learns_tau)):
            dq, found["key"], found["value"] = fused.pull_part(request, output, mass.squeeze(-1), g)
        else:
            dq, found = self._pull_definition(request, g, output, mass)
        if not self._learns_tau:
            return (dq,), found
        if "temperature" not in found:  # Σ_j x_j ∂/∂x_j = ⟨q, ∂/∂q⟩
            found["temperature"] = -product(dq, request.query.double()).sum(-1, keepdim=True) / request.temperature
        return (dq, found.pop("temperature").double()), found

    def merge_pull(self, number: int, a: State, b: State) -> State:
        return tuple(x + y for x, y in zip(a, b, strict=True))

    def pulled(self, g: Tensor, end: State, known: State) -> dict[str, Tensor]:
        output, mass = end
        found: dict[str, Tensor] = dict(zip(("query", "temperature"), known, strict=False))
        if isinstance(self.level, Tensor):  # the share of the sink, whose value is 0, is exp(β − LSE)
            slope = -product(output, g.double()).sum(-1, keepdim=True)
            share = (self.level.double() - mass).exp()
            found[self.request.map.with_sink[1]] = torch.where(mass == -math.inf, 0.0, share * slope)  # type: ignore[index]
        return found

    @property
    def _learns_tau(self) -> bool:
        return isinstance(self.request.temperature, Tensor)

    def _softmax(self, part: Part) -> Request:
        """Of the keys alone, without the sink."""
        return replace(part.request, map=find_map("softmax"), params={})

    def _empty(self, request: Request) -> State:
        query, value = request.query, request.value
        output = query.new_zeros((*query.shape[:-1], value.shape[-1]), dtype=COMPUTE_DTYPE[query.dtype])
        return output, query.new_full((*query.shape[:-1], 1), -math.inf, dtype=torch.float64)

    def _pull_definition(self, request: Request, g: Tensor, output: Tensor, mass: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """By o_k and LSE_k of the part: o = Σ w_k o_k, w_k = exp(LSE_k − LSE), ∂o_k = w_k g, ∂LSE_k = w_k ⟨g, o_k − o⟩."""
        request = _wide(request)
        own = {"query": request.query, "key": request.key, "value": request.value}
        own |= {} if request.bias is None else {"bias": request.bias}
        if self._learns_tau:
            own["temperature"] = torch.as_tensor(request.temperature).to(own["query"]).expand(*request.query.shape[:-1], 1)
        with torch.enable_grad():
            own = {name: x.detach().requires_grad_() for name, x in own.items()}
            mine, log_mass = blocks.attend(replace(request, **own), True)
            share = (log_mass.unsqueeze(-1) - mass).exp().masked_fill(log_mass.unsqueeze(-1) == -math.inf, 0.0)  # type: ignore[union-attr]
            slope = share.to(mine.dtype) * g.to(mine.dtype)
            of_mass = (slope * (mine - output)).sum(-1).detach()
            found = torch.autograd.grad((mine, log_mass), list(own.values()), (slope.detach(), of_mass.to(log_mass.dtype)))  # type: ignore[union-attr]
        by_name = dict(zip(own, found, strict=True))
        return by_name.pop("query"), by_name


class OfMap(Rounds):
    """States of the map's blocks; o and they, where they are online; of the gradient the Jacobian's sums, then (∂q, ∂τ, …)."""

    backward = 2

    def __init__(self, request: Request) -> None:
        super().__init__(_wide(request))
        numbers = {"temperature": request.temperature, **request.params}
        numbers = {name: value.double() if isinstance(value, Tensor) else value for name, value in numbers.items()}
        self.learnt = [name for name, value in numbers.items() if isinstance(value, Tensor)]
        self.rows = InParts(request.map, numbers.pop("temperature"), numbers)
        self.online = self.rows.online and self.rows.passes == 1
        self.forward = 1 if self.online else self.rows.passes + 1
        self.queries = AttentionInParts(self.request.query, self.rows, {})

    def reads_values(self, number: int) -> bool:
        return self.online or number == self.rows.passes

    def begin(self, number: int, part: Part, known: State | None) -> State:
        own = self._part(part)
        if number == self.rows.passes:
            return (self.queries.finish(own, known),)  # type: ignore[arg-type]
        state = self.rows.begin(own.scores, known)
        return (self.queries.finish(own, state), *state) if self.online else state

    def merge(self, number: int, a: State, b: State) -> State:
        if number == self.rows.passes:
            return (a[0] + b[0],)
        if not self.online:
            return self.rows.merge(a, b)
        state = self.rows.merge(a[1:], b[1:])
        output = sum(product(self.rows.factor(each[1:], state), each[0]) for each in (a, b))
        return torch.as_tensor(output).to(a[0].dtype), *state

    def known(self, number: int, before: State | None, state: State) -> State:
        return (*state, *before) if number == self.rows.passes else state  # type: ignore[misc]

    def told(self, number: int, ranks: Ranks, name: str, most: int, state: State, empty: Part, before: State | None) -> list[State]:
        if number == self.rows.passes:
            return [tuple(each) for each in told(name, ranks, state)]
        identity = self.rows.begin(self._part(empty).scores, before)
        if not self.online:
            return gathered(name, ranks, self.rows, most, state, identity)[0]
        states, outputs = gathered(name, ranks, self.rows, most, state[1:], identity, state[0].double())
        return [(output.to(state[0].dtype), *each) for output, each in zip(outputs, states, strict=True)]

    def begin_pull(self, number: int, part: Part, g: Tensor, end: State, known: State | None) -> tuple[State, Mapping[str, Tensor]]:
        own, state = self._part(part), end[1:]
        if number == 0:
            return self.queries.begin_pull(own, g, state), {}
        found = self.queries.pull(own, g, state, known)  # type: ignore[arg-type]
        return (found.pop("query"), *(found.pop(name) for name in self.learnt)), found

    def merge_pull(self, number: int, a: State, b: State) -> State:
        return self.rows.merge_pull(a, b) if number == 0 else tuple(x + y for x, y in zip(a, b, strict=True))

    def pulled(self, g: Tensor, end: State, known: State) -> dict[str, Tensor]:
        return dict(zip(("query", *self.learnt), known, strict=True))

    def _part(self, part: Part) -> AttentionPart:
        request = _wide(part.request)
        return AttentionPart(request, self.rows.part(naive.scores(request), part.first))


def _wide(request: Request) -> Request:
    """With queries, keys and values in what is computed in, so that sums over parts are rounded once."""
    wide = COMPUTE_DTYPE[request.query.dtype]
    return replace(request, query=request.query.to(wide), key=request.key.to(wide), value=request.value.to(wide))
