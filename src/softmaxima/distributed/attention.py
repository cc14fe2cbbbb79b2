"""Attention over a sequence whose places are shared among ranks: context parallelism."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from softmaxima.attn.arguments import Request, check_request, of_module
from softmaxima.attn.attention import attend
from softmaxima.base.arguments import COMPUTE_DTYPE
from softmaxima.base.numbers import check_choice, check_count
from softmaxima.base.public import public
from softmaxima.distributed.agreement import alike, learns
from softmaxima.distributed.copied import copied
from softmaxima.distributed.kept import Kept, once, save, saved
from softmaxima.distributed.layouts import Span, check_layout, spans_of
from softmaxima.distributed.ranks import Group, Ranks, outside_the_graph, ranks_of
from softmaxima.distributed.rounds import Part, Rounds, part_of, rounds_of, rows_of, scores_of, sees
from softmaxima.distributed.rows import told
from softmaxima.distributed.sequence import Parts
from softmaxima.engine.blocks import State
from softmaxima.engine.contract import AnyMap
from softmaxima.engine.parts import merged

NAME = "distributed.attention"
FORMS = ("ring", "gather", "merge")


@public
@outside_the_graph
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    *,
    group: Group = None,
    form: str = "ring",
    layout: str = "contiguous",
    first_query: int = 0,
    scale: float | None = None,
    enable_gqa: bool = False,
    map: AnyMap | nn.Module = "softmax",
    softcap: float | None = None,
    bias: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    temperature: float | Tensor = 1.0,
    window: int | tuple[int | None, int | None] | None = None,
    key_lengths: Tensor | None = None,
    **params: Any,
) -> Tensor:
    r"""`sm.attention` over the keys and values of all ranks of a group, with any map.

    o_i = Σ_j p_ij v_j,    p_i = map(x_i/τ),    x_ij = scale ⟨q_i, k_j⟩ + bias_ij    over the keys j of all ranks.

    Args:
        query: this rank's, [..., L, E]; in the form "merge" the same on every rank.
        key: this rank's, [..., S, E], and
        value: its values [..., S, Ev]. All but the lengths L and S is the same on every rank; each may have any number, and none.
        attn_mask, bias: as of `sm.attention`, of this rank's queries and of the keys of all ranks, in the order of places.
        form: how queries come to keys.
            "ring": keys and values go from rank to rank while each attends to what it has; a rank holds two parts beside its own.
                Softmax and maps of exponentials take one trip, others one for each pass of their states (one, of top-p ten) and one
                for the outputs. The gradient is one trip of softmax, two of others.
            "gather": every rank gathers all keys and values, once, and attends to them as `sm.attention` does, with its kernels and
                second derivatives. For any map, and the faster where the keys fit; gradients of keys are sent to whom they belong.
            "merge": each rank attends to its own keys, and what they find is merged, by one gather in place of each trip. For few
                queries that all ranks know, as in decoding with a shared cache; the output is the same on all, to the last bit.
            A map that has no form in parts (perturb_max, fusedmax, oscarmax) has its keys and values gathered in every form; in
            "merge" each rank then attends to all of them, for all queries, and nothing is sent for the gradient.
        layout: which places the ranks have, "contiguous", one after the other, or "balanced", those of `sm.distributed.places`, by
            which all have the same work where attention is causal. What a rank's queries may not see is skipped, and sent only as
            far as someone reads it.
        first_query: the place of the first query of the whole sequence, which is how many keys come before it.
        is_causal, window, alibi_slopes: by places in the whole sequence. Slopes are the same on every rank, and do not learn here.
        key_lengths: integers [batch], how many keys there are in the whole sequence.
        scale, softcap, enable_gqa, map: as of `sm.attention`, the same on every rank.
        temperature, params: as of `sm.attention`. A tensor has one number for each of this rank's queries; or one for all queries
            of all ranks, or one a head: then it has size 1 along the axis of queries on every rank.
        group: a process group, a mesh of one axis, or None for all ranks.

    Returns:
        This rank's part of the output [..., L, Ev], in value's dtype. Gradients are those of the sum over all ranks of what is made
        of their parts; in the form "merge" those of what is made of the one output. Each rank gets that by its own keys, values
        and queries, and by what is for all queries (a temperature, parameters, and a bias of size 1 along their axis) the whole
        one, the same on every rank; what learns and is so must be the same on all to the last bit. Where each rank has one query,
        all that is said of queries is of this kind.

    Raises:
        TypeError, ValueError for what `sm.attention` refuses, and RanksError on the other ranks; RanksError on every rank where
        shapes, dtypes or options differ among them, lengths are not those of the layout, or one does not answer within the group's
        timeout. There is no second derivative but by the form "gather".

    Cost: 2·L·S·(E + Ev) operations of all ranks together. Softmax is by the kernels in every form, and its gradient computes each p
    once, from the LSE of all keys; halves are added up in float32. What is for all queries and learns takes one all-reduce of its
    size more, by "ring" and "gather". Other maps in "ring" and "merge" hold the scores of one part in
    float64, and take tens of times as long as in "gather".

    Source: Liu, Zaharia & Abbeel (2023), arXiv:2310.01889; for the balanced layout the Llama 3 report, arXiv:2407.21783.
    """
    ranks = ranks_of(NAME, group)
    with ranks.telling(NAME):
        map, temperature, params = of_module(NAME, map, temperature, params)
    options = {
        "map": map, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa, "temperature": temperature, "window": window,
        "params": params, "softcap": softcap, "alibi_slopes": alibi_slopes,
    }  # fmt: skip
    of_all_keys = {"attn_mask": attn_mask, "bias": bias, "key_lengths": key_lengths}
    with ranks.telling(NAME):
        form, layout = check_choice(NAME, "form", form, FORMS), check_layout(NAME, layout)
        first_query = check_count(NAME, "first_query", first_query, 0)
        own = check_request(NAME, query, key, value, **options)
        if learns(own.slopes):
            raise ValueError(f"{NAME}: alibi_slopes must not require grad; call alibi_slopes.detach(), or give their bias as bias=")
    length, same = own.query.shape[-2], _alike(own, of_all_keys, form=form, layout=layout, first_query=first_query)
    learning = {what: x for what, x in {**_numbers(own), **of_all_keys}.items() if learns(x)}
    rows = [x.shape[-2] if x.ndim > 1 else 1 for x in learning.values()]
    of_queries, of_keys, *of_rows = ranks.agree_on(NAME, (length, own.key.shape[-2], *rows), same)
    of_all = {what: x for (what, x), each in zip(learning.items(), of_rows, strict=True) if set(each.widths) == {1}}
    of_all = of_all if form != "merge" else {}  # where every rank finds whole gradients
    keys = spans_of(NAME, "keys", of_keys, layout)
    queries = [(Span(0, length, 0),)] * ranks.size if form == "merge" else spans_of(NAME, "queries", of_queries, layout)
    queries = [tuple(replace(span, place=span.place + first_query) for span in spans) for spans in queries]
    request, agrees = own, bool(of_all) or any(x is not None for x in of_all_keys.values())
    with ranks.telling(NAME) if agrees else ranks.working(NAME):
        same = dict(zip(of_all, copied(ranks, NAME, *of_all.values()), strict=True))
        of_all_keys = {what: same.get(what, x) for what, x in of_all_keys.items()}
        options["temperature"] = same.get("temperature", temperature)
        options["params"] = {what: same.get(what, x) for what, x in own.map.named(params, NAME).items()}
        everywhere = (x.new_zeros(1).expand(*x.shape[:-2], of_keys.whole, x.shape[-1]) for x in (own.key, own.value))
        request = check_request(NAME, query, *everywhere, **of_all_keys, **options)
    if agrees:
        ranks.agree(NAME, 0, alike(of_all))  # and one may have been refused
    reads = [[any(sees(request.visible, i, j) for i in mine for j in theirs) for theirs in keys] for mine in queries]
    parts = Parts(NAME, ranks, keys, reads)
    with ranks.working(NAME):
        if form == "gather" or own.map.blocks is None:
            output = _gathered(SharedAttention(form, request, queries[ranks.rank], parts), own.key, own.value)
        else:
            shared = SharedAttention(form, _without_graph(request), queries[ranks.rank], parts)
            learns_bias = request.bias is not None and request.bias.requires_grad
            output = _Attention.apply(shared, learns_bias, own.key, own.value, *_tensors(request).values())
    return output.to(value.dtype) if isinstance(value, Tensor) else output


def _alike(request: Request, of_all_keys: Mapping[str, Tensor | None], **others: Any) -> dict[str, str]:
    """What must be the same on all ranks; numbers that are tensors are of own queries, which all have in the form "merge"."""
    numbers = _numbers(request)
    learning = {"query": request.query, "key": request.key, "value": request.value, **of_all_keys, **numbers}
    merges = others["form"] == "merge"
    own = numbers if merges else {what: "a tensor" if isinstance(x, Tensor) else x for what, x in numbers.items()}
    options = {
        **others, "map": request.map, "dtype": request.query.dtype, "batch": request.query.shape[:-2],
        "batch of keys": request.key.shape[:-2], "batch of values": request.value.shape[:-2],
        "sizes": (request.key.shape[-1], request.value.shape[-1]), "groups": request.groups, "scale": request.scale,
        "softcap": request.softcap, "alibi_slopes": request.slopes,
        "window": (request.visible.left, request.visible.right), **own, "queries": request.query.shape[-2] if merges else "own",
        "key_lengths": of_all_keys["key_lengths"],
    }  # fmt: skip
    return alike(options, beside={what: of_all_keys[what] for what in ("attn_mask", "bias")}, learning=learning)


def _numbers(request: Request) -> dict[str, Any]:
    """What may be one number, or one a head or a query."""
    return {"temperature": request.temperature, **request.params}


@dataclass(frozen=True, eq=False)
class SharedAttention:
    """Attention of which this rank has some queries, and a part of the keys and values."""

    form: str
    request: Request  # of own queries and of all keys, but for those themselves
    queries: tuple[Span, ...]
    parts: Parts

    @property
    def ranks(self) -> Ranks:
        return self.parts.ranks

    def visible(self, whose: int, keys: Tensor, values: Tensor) -> list[tuple[int, Span, Part]]:
        """(the number of a span of queries, a span of a rank's keys that it sees, these keys)."""
        return [
            (i, key, part_of(self.request, query, key, keys[..., key.own, :], values[..., key.own, :]))
            for key in self.parts.spans[whose]
            for i, query in enumerate(self.queries)
            if sees(self.request.visible, query, key)
        ]


def _gathered(shared: SharedAttention, key: Tensor, value: Tensor) -> Tensor:
    """Every span of queries attends to the keys that some of it see, by operations that autograd records."""
    keys, values = shared.parts.gathered(key, value, is_same=shared.form == "merge")
    visible, outputs = shared.request.visible, []
    for span in shared.queries:
        least = 0 if visible.left is None else span.place - visible.left
        most = visible.keys if visible.right is None else span.place + span.length + visible.right
        least = min(max(least, 0), visible.keys)
        seen = Span(least, max(min(most, visible.keys) - least, 0), 0)
        part = part_of(shared.request, span, seen, keys[..., seen.whole, :], values[..., seen.whole, :])
        outputs.append(attend(part.request, value)[0])
    return torch.cat(outputs, -2)


@dataclass(frozen=True, eq=False)
class _InRounds:
    """The rounds of each span of queries, with tensors of which no graph is recorded."""

    shared: SharedAttention
    rounds: list[Rounds]
    nothing: list[Part]  # a part without keys

    @classmethod
    def of(cls, shared: SharedAttention, key: Tensor, value: Tensor, learns_bias: bool) -> _InRounds:
        rounds = [rounds_of(rows_of(shared.request, span), learns_bias) for span in shared.queries]
        return cls(shared, rounds, [own.nothing(key, value) for own in rounds])

    def attend(self, key: Tensor, value: Tensor) -> list[State]:
        """What is known at the end of each span."""
        known: list[Any] = [None for _ in self.rounds]
        for number in range(self.rounds[0].forward):
            known = self._attend(number, [key, value], known)
        return known

    def _attend(self, number: int, tensors: list[Tensor], known: list[Any]) -> list[State]:
        """What is known after a round of what was known before."""
        rounds, ranks = self.rounds, self.shared.ranks
        most = max(map(self.shared.parts.length, range(ranks.size)))
        states, _ = self._round(
            tensors if rounds[0].reads_values(number) else tensors[:1],
            lambda i, part: (rounds[i].begin(number, part, known[i]), {}),
            lambda i, a, b: rounds[i].merge(number, a, b),
            lambda i, state: rounds[i].told(number, ranks, NAME, most, state, self.nothing[i], known[i]),
        )
        return [own.known(number, known[i], states[i]) for i, own in enumerate(rounds)]

    def pull(self, key: Tensor, value: Tensor, g: list[Tensor], ends: list[State]) -> tuple[list[dict[str, Tensor]], list[Tensor]]:
        """(gradients by what each span of queries has, by the key, the value and the bias), of g by each span's output."""
        wide, bias = COMPUTE_DTYPE[key.dtype], self.shared.request.bias
        of_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.promote_types(bias.dtype, wide))
        known, last = [None for _ in self.rounds], self.rounds[0].backward - 1
        for number in range(last):
            known, _ = self._pull(number, [key, value], g, ends, known)
        known, slopes = self._pull(last, [key, value], g, ends, known, (wide, of_bias))
        if self.shared.form == "merge" and of_bias is not None:
            of_bias = self.shared.ranks.sum(NAME, of_bias)
        found = [own.pulled(g[i], ends[i], known[i]) for i, own in enumerate(self.rounds)]
        return found, [*slopes, *([] if of_bias is None else [of_bias])]

    def _pull(
        self,
        number: int,
        tensors: list[Tensor],
        g: list[Tensor],
        ends: list[State],
        known: list[Any],
        pulls: tuple[torch.dtype | None, Tensor | None] = (None, None),
    ) -> tuple[list[Any], list[Tensor]]:
        return self._round(
            tensors,
            lambda i, part: self.rounds[i].begin_pull(number, part, g[i], ends[i], known[i]),
            lambda i, a, b: self.rounds[i].merge_pull(number, a, b),
            lambda i, state: [tuple(each) for each in told(NAME, self.shared.ranks, [x.double() for x in state])],
            pulls,
        )

    def _round(
        self,
        tensors: list[Tensor],
        begin: Callable[[int, Part], tuple[State, Mapping[str, Tensor]]],
        merge: Callable[[int, State, State], State],
        of_ranks: Callable[[int, State], list[State]],
        pulls: tuple[torch.dtype | None, Tensor | None] = (None, None),
    ) -> tuple[list[State], list[Tensor]]:
        """(the state of each span of queries from all keys, gradients of own tensors where it pulls, in a dtype).

        Those by the bias, of all keys, are added to the second of `pulls`.
        """
        shared, (wide, of_bias) = self.shared, pulls
        states: list[Any] = [None for _ in self.rounds]

        def visit(whose: int, tensors: list[Tensor]) -> list[Tensor] | None:
            slopes = None if wide is None else [torch.zeros_like(x, dtype=wide) for x in tensors]
            for i, key, part in shared.visible(whose, tensors[0], tensors[-1]):
                state, found = begin(i, part)
                states[i] = state if states[i] is None else merge(i, states[i], state)
                for x, what in zip(slopes or [], ("key", "value"), strict=False):
                    x[..., key.own, :] += found[what]
                if of_bias is not None and "bias" in found:
                    scores_of(of_bias, shared.request, shared.queries[i], key).add_(found["bias"])
            return slopes

        is_ring = shared.form == "ring"
        slopes = shared.parts.passed(tensors, visit, wide) if is_ring else visit(shared.ranks.rank, tensors) or []
        for i, nothing in enumerate(self.nothing):
            states[i] = begin(i, nothing)[0] if states[i] is None else states[i]
            if shared.form == "merge":
                states[i] = merged(of_ranks(i, states[i]), functools.partial(merge, i), NAME)
        return states, slopes


class _Attention(torch.autograd.Function):
    """Of a request without a graph: it takes the tensors of one beside keys and values."""

    @staticmethod
    def forward(ctx: Any, shared: SharedAttention, learns_bias: bool, key: Tensor, value: Tensor, *beside: Tensor) -> Tensor:
        with torch.autocast(key.device.type, enabled=False):
            ends = _InRounds.of(shared, key, value, learns_bias).attend(key, value)
        request = shared.request
        ctx.kept = Kept(*vars(request).values(), *request.params.values(), request.visible.lengths)
        ctx.shared, ctx.learns_bias = shared, learns_bias
        save(ctx, key, value, ends)
        return torch.cat([end[0].to(value.dtype) for end in ends], -2)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        (g,) = upstream
        shared: SharedAttention = ctx.shared
        once(NAME, "gather the keys, by form='gather'")
        with shared.ranks.working(NAME):
            ctx.kept.check(NAME)
            key, value, ends = saved(ctx)
            slopes = [g[..., span.own, :] for span in shared.queries]
            with torch.autocast(key.device.type, enabled=False):
                rounds = _InRounds.of(shared, key, value, ctx.learns_bias)
                of_queries, (of_key, of_value, *of_bias) = rounds.pull(key, value, slopes, ends)
            found = {what: torch.cat([each[what] for each in of_queries], -2) for what in of_queries[0]}
            found |= {"bias": of_bias[0]} if of_bias else {}
            by_tensor = [found[what].sum_to_size(x.shape).to(x.dtype) for what, x in _tensors(shared.request).items()]
            return None, None, of_key.to(key.dtype), of_value.to(value.dtype), *by_tensor


def _tensors(request: Request) -> dict[str, Tensor]:
    """What a request learns by, beside keys and values."""
    found = {"query": request.query, "bias": request.bias, **_numbers(request)}
    return {what: x for what, x in found.items() if isinstance(x, Tensor)}


def _without_graph(request: Request) -> Request:
    def bare(x: Any) -> Any:
        return x.detach() if isinstance(x, Tensor) else x

    params = {name: bare(x) for name, x in request.params.items()}
    own = {"query": bare(request.query), "bias": bare(request.bias), "temperature": bare(request.temperature), "params": params}
    return replace(request, **own)
