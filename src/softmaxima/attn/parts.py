r"""Attention over keys in parts, with any map: o = Σ_k Σ_{j∈k} p_j v_j, p_j by the map of all scores.

A threshold is that of all keys, so that parts have two rounds: their states merge (`engine/parts.py`), and under the state of all
each says what it adds to o. The derivative has two more: with g_j = ⟨∂o, v_j⟩ the map's sums over the parts, and under these

    ∂x = J g,    ∂q = scale Σ_k Σ_{j∈k} ∂x_j k_j,    ∂k_j = scale Σ_i ∂x_ij q_i,    ∂v_j = Σ_i p_ij ∂o_i
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from softmaxima.attn import naive
from softmaxima.attn.arguments import Request, check_request
from softmaxima.attn.products import pairwise, weighted, without_hidden
from softmaxima.base.arguments import COMPUTE_DTYPE, Array, as_scores, like_input
from softmaxima.base.numbers import check_count
from softmaxima.base.public import public
from softmaxima.engine.blocks import Part, State
from softmaxima.engine.contract import AnyMap
from softmaxima.engine.parts import InParts, in_parts, no_graph

NAME = "attention_in_parts"


@dataclass(frozen=True, eq=False)
class AttentionPart:
    """Some keys with their values, and the scores that the queries give them."""

    request: Request
    scores: Part  # [..., L, n]


@public
@dataclass(frozen=True, eq=False)
class AttentionInParts:
    """Queries, with a map, that attend to keys in parts; `attention_in_parts` makes one.

    `rows` has the states of a part's scores: `rows.begin(part.scores)`, `merge`, `pack` and `unpack`, as of `in_parts`.

    The keys of another process come as a state, which is packed, and as what they add to the output:

    >>> import torch, softmaxima as sm
    >>> q, k = torch.tensor([[4.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.8, 0.6], [-1.0, 0.0]])
    >>> v = torch.tensor([[1.0], [2.0], [3.0]])
    >>> queries = sm.attention_in_parts(q, map="sparsemax")
    >>> here, there = queries.part(k[:1], v[:1]), queries.part(k[1:], v[1:], first=1)
    >>> state = queries.rows.merge(queries.rows.begin(here.scores), queries.rows.begin(there.scores))
    >>> queries.finish(here, state) + queries.finish(there, state), sm.attention(q, k, v, map="sparsemax")
    (tensor([[1.2172]]), tensor([[1.2172]]))

    and their gradients by sums over all parts:

    >>> g = torch.tensor([[1.0]])
    >>> sums = queries.rows.merge_pull(*(queries.begin_pull(part, g, state) for part in (here, there)))
    >>> queries.pull(there, g, state, sums)["value"]
    tensor([[0.2172],
            [0.0000]])
    """

    query: Any  # [..., L, E]
    rows: InParts
    options: Mapping[str, Any]

    def part(
        self, key: Any, value: Any, first: int = 0, *, attn_mask: Array | None = None, bias: Array | None = None
    ) -> AttentionPart:
        """The keys [..., n, E] from the place `first` on, their values [..., n, Ev], and what `attention` takes of these keys."""
        first = check_count(NAME, "first", first, 0)
        request = check_request(NAME, self.query, key, value, map=self.rows.map, attn_mask=attn_mask, bias=bias, **self.options)
        for what, given in (
            ("query", request.query),
            ("key", request.key),
            ("bias", request.bias),
            ("alibi_slopes", request.slopes),
        ):
            if given is not None:
                no_graph(what, given, NAME)
        visible = replace(request.visible, first=request.visible.first - first)  # places count from the part's first key
        request = replace(request, visible=visible)
        return AttentionPart(request, self.rows.part(naive.scores(request), first))

    def state(self, parts: Iterable[AttentionPart]) -> State:
        """The state of the scores, of which `parts` have all."""
        return self.rows.state([_checked(part).scores for part in _listed(parts)])

    def finish(self, part: AttentionPart, state: State) -> Any:
        """What a part adds to the output, Σ_{j∈part} p_j v_j [..., L, Ev], in float32 at least."""
        if not isinstance(state, tuple):
            raise TypeError(f"{NAME}: state must be of all parts, from .state(parts), got {type(state).__name__}")
        p = without_hidden(self.rows.wide(_checked(part).scores, state), part.scores.x)
        return like_input(_weighted(p.to(COMPUTE_DTYPE[part.request.value.dtype]), part.request), self.query)

    def attend(self, parts: Iterable[AttentionPart]) -> Any:
        """The output, of all parts."""
        parts = _listed(parts)
        state = self.state(parts)
        output = sum(self.finish(part, state) for part in parts)
        return like_input(torch.as_tensor(output).to(parts[0].request.value.dtype), self.query)

    def begin_pull(self, part: AttentionPart, g: Any, state: State) -> State:
        """What the gradients by a part need of it, of the output's gradient g: `rows.merge_pull` merges these."""
        return self.rows.begin_pull(_checked(part).scores, _slopes(part, g), state)

    def pull(self, part: AttentionPart, g: Any, state: State, sums: State) -> dict[str, Any]:
        """Gradients by "key", "value" and "bias" of the part, and what it adds to those by "query" and each tensor of the map.

        The latter, "temperature" and parameters, have the shape of numbers of rows, [..., L, 1].
        """
        request, g = _checked(part).request, as_scores(NAME, g, "g")
        dx, learnt = self.rows.pull(part.scores, _slopes(part, g), state, sums)
        p = without_hidden(self.rows.finish(part.scores, state), part.scores.x)
        own = {"query": request.query, "key": request.key, "value": request.value}
        own |= {} if request.bias is None else {"bias": request.bias}
        with torch.enable_grad():
            own = {name: x.detach().requires_grad_() for name, x in own.items()}
            linear = replace(request, **own)  # what has x and o for its linear functions
            x, o = naive.scores(linear), _weighted(p.to(dx.dtype), linear)
            found = torch.autograd.grad((x, o), list(own.values()), (dx, g.to(o.dtype)))
        found = (found[0].sum_to_size(np.shape(self.query)), *found[1:])  # keys may have more axes of the batch
        return {name: like_input(v, self.query) for name, v in (dict(zip(own, found, strict=True)) | learnt).items()}


@public
def attention_in_parts(
    query: Array,
    *,
    map: AnyMap | nn.Module = "softmax",
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    temperature: float | Array = 1.0,
    window: int | tuple[int | None, int | None] | None = None,
    first_query: int | Array = 0,
    softcap: float | None = None,
    alibi_slopes: Array | None = None,
    **params: Any,
) -> AttentionInParts:
    """Attention over keys that come in parts, with any map: two rounds over the parts, exact.

    For maps whose probabilities know all scores, a threshold or a selection; `merge_attention` merges softmax in one round.

    Args:
        query: [..., L, E], which all parts know.
        map, temperature, params: as for `attention`; the map must have `blocks`.
        is_causal, window, first_query, alibi_slopes: by the places of keys, which a part has from its `first` on. There is no
            "bottom_right", for no part knows how many keys there are.
        scale, softcap, enable_gqa: as for `attention`.

    Returns:
        What makes a part of keys and values, its state, and under the state of all what it adds to the output, and its gradients.

    Raises:
        TypeError or ValueError for what `attention` or `in_parts` would refuse. Nothing is recorded for autograd: queries and keys
        that require grad are refused, of which `pull` has the gradients.

    Cost: a part holds its scores, [..., L, n] in float64. Sent are a state, as large as the largest support of a query in a part
    (of the relatives of softmax three numbers), and an output; the same again for gradients.

    >>> import torch, softmaxima as sm
    >>> q, k = torch.tensor([[4.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.8, 0.6], [-1.0, 0.0]])
    >>> v = torch.tensor([[1.0], [2.0], [3.0]])
    >>> queries = sm.attention_in_parts(q, map="entmax15")
    >>> queries.attend([queries.part(k[:2], v[:2]), queries.part(k[2:], v[2:], first=2)])
    tensor([[1.3040]])
    >>> sm.attention(q, k, v, map="entmax15")
    tensor([[1.3040]])
    """
    if isinstance(first_query, str):
        raise TypeError(f"{NAME}: first_query must be an integer or integers [batch], got {first_query!r}: keys come in parts")
    options = {
        "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa, "window": window, "first_query": first_query,
        "softcap": softcap, "alibi_slopes": alibi_slopes,
    }  # fmt: skip
    given = as_scores(NAME, query, "query")
    no_graph("query", given, NAME)
    nothing, own = given[..., :0, :] if given.ndim > 1 else given, {"temperature": temperature, "params": params}
    request = check_request(NAME, given, nothing, nothing, map=map, **own, **options)
    if request.map.blocks is None:
        raise ValueError(f"{NAME}: {request.map.name} does not say how it works on parts; give its Map `blocks`")
    return AttentionInParts(query, in_parts(request.map, temperature=request.temperature, **request.params), options)


def _checked(part: Any) -> AttentionPart:
    if not isinstance(part, AttentionPart):
        raise TypeError(f"{NAME}: a part must come from .part(key, value), got {type(part).__name__}")
    return part


def _listed(parts: Any) -> list[AttentionPart]:
    if isinstance(parts, AttentionPart) or not isinstance(parts, Iterable):
        raise TypeError(f"{NAME}: parts must be a list of what .part(key, value) gives, got {type(parts).__name__}")
    return list(parts)


def _slopes(part: AttentionPart, g: Any) -> Tensor:
    """g_j = ⟨∂o, v_j⟩."""
    x, value = part.scores.x, part.request.repeated(part.request.value)
    g = as_scores(NAME, g, "g").to(x.dtype)
    shape = (*x.shape[:-1], value.shape[-1])
    if g.shape != shape:
        raise ValueError(f"{NAME}: g must have the shape of the output, {tuple(shape)}, got {tuple(g.shape)}")
    return pairwise(g, value.to(x.dtype))


def _weighted(p: Tensor, request: Request) -> Tensor:
    return weighted(p, request.repeated(request.value).to(p.dtype))
