"""linear_attention: attention with Taylor softmax of order 2, in time linear in the number of keys.

1 + s + s²/2 = ⟨φ(q), φ(k)⟩ for s = ⟨q, k⟩,    φ(x) = (1, x, x_i²/√2, x_i x_j for i < j)
o_i = φ(q_i) Σ_j φ(k_j) v_jᵀ / φ(q_i) Σ_j φ(k_j)
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from softmaxima.attn.arguments import Request, check_request
from softmaxima.attn.products import pairwise, weighted
from softmaxima.base.arguments import COMPUTE_DTYPE, Array, as_scores, check_device, like_input
from softmaxima.base.numbers import check_int
from softmaxima.base.public import public
from softmaxima.base.tracing import is_recorded, is_traced, may_differentiate, transforming

NAME = "linear_attention"
CHUNK = 256  # keys whose features are held at once, and within which a causal query sees keys one by one


@public
def linear_attention(
    query: Array,
    key: Array,
    value: Array,
    *,
    order: int = 2,
    is_causal: bool = False,
    scale: float | None = None,
    temperature: float | Array = 1.0,
    key_lengths: Array | None = None,
    enable_gqa: bool = False,
    state: Array | None = None,
    return_state: bool = False,
) -> Any:
    r"""Attention with Taylor softmax of order 2, without the scores: time and memory grow with the length, not with its square.

    o_i = Σ_j p_ij v_j,    p_ij = f(z_ij) / Σ_j f(z_ij),    f(z) = 1 + z + z²/2,    z_ij = scale ⟨q_i, k_j⟩/τ

    f(⟨q, k⟩) is an inner product of features of q and of k, 1 + E + E(E + 1)/2 of them, so that keys and values enter by one sum.
    It equals `attention(query, key, value, map="taylor_softmax")`.

    Args:
        query, key, value, scale, temperature, key_lengths, enable_gqa: as of `attention`; τ may be one a head.
        is_causal: Query i sees the keys 0 to i, of which there must be as many as queries; earlier keys come as a state.
        order: 2. Those of a higher one have more features than there are keys, and of order 1 there are no probabilities.
        state: What an earlier call returned for keys before these, which all queries see.
        return_state: Also the state with these keys, for the next call: a token at a time takes the same time at any length.

    Returns:
        o [..., L, Ev] in value's dtype, or (o, state): Σ_j φ(k_j) (v_j, 1)ᵀ [..., heads, features, Ev + 1], in float32 at least.
        States of different keys add up. A query that sees nothing gives 0.

    Raises:
        TypeError, ValueError: As `attention`; for another order, and for a state of another shape.

    Cost: 2·(L + S)·F·(Ev + 1) operations for F features, 2145 for E = 64, and where it is causal 2·L·256·(E + Ev). Holds the
    features of 256 keys and a state, for the gradient too, which sums the states again. A forward and a backward pass over 8 heads
    of 8192 float32 queries and keys with E = Ev = 64, of 16 MiB each, took 210 MiB at their peak beyond what was given, and 162 MiB
    where it is causal. Differentiable, twice too; second derivatives and torch.func hold more.

    Source: Katharopoulos et al. (2020), arXiv:2006.16236, with Taylor's features, Zhang et al. (2024), arXiv:2402.04347.

    >>> import torch, softmaxima as sm
    >>> q, k = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.8, 0.6], [-1.0, 0.0]])
    >>> v = torch.tensor([[1.0], [2.0], [3.0]])
    >>> sm.linear_attention(q, k, v), sm.attention(q, k, v, map="taylor_softmax")
    (tensor([[1.6653]]), tensor([[1.6653]]))
    >>> _, state = sm.linear_attention(q, k[:2], v[:2], return_state=True)
    >>> sm.linear_attention(q, k[2:], v[2:], state=state)
    tensor([[1.6653]])
    """
    if check_int(NAME, "order", order) != 2:
        raise ValueError(f"{NAME}: order must be 2, got {order!r}; attention with map='taylor_softmax' takes any even order")
    request = check_request(
        NAME,
        query,
        key,
        value,
        map="taylor_softmax",
        scale=scale,
        temperature=temperature,
        enable_gqa=enable_gqa,
        key_lengths=key_lengths,
    )
    if is_causal and request.visible.queries != request.visible.keys:
        shapes = f"{request.visible.queries} and {request.visible.keys}"
        raise ValueError(f"{NAME}: is_causal=True needs as many queries as keys, got {shapes}; give earlier keys as a state")
    sums, q, k, v = _prepared(request, state)
    output, sums = _attend(is_causal, sums, q, k, v)
    output = like_input(_divided(output).to(value.dtype if isinstance(value, Tensor) else request.value.dtype), query)
    return (output, like_input(sums, query)) if return_state else output


def features(x: Tensor) -> Tensor:
    """φ(x) [..., 1 + E + E(E + 1)/2] of x [..., E]."""
    products = [x[..., i : i + 1] * x[..., i + 1 :] for i in range(x.shape[-1] - 1)]  # a gather takes many times as long
    return torch.cat((torch.ones_like(x[..., :1]), x, math.sqrt(0.5) * x * x, *products), -1)


def _prepared(request: Request, state: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(the state so far, queries with the scale, keys, values beside 1, which are 0 where there is no key)."""
    wide = COMPUTE_DTYPE[request.query.dtype]
    batch = request.query.shape[:-2]
    q = (request.query.to(wide) * (request.scale / request.temperature)).to(wide)
    beside = torch.cat((request.value, torch.ones_like(request.value[..., :1])), -1)
    there = (_there(request.repeated(x), request.visible.lengths) for x in (request.key, beside))
    k, v = (x.to(wide).expand(*batch, *x.shape[-2:]) for x in there)
    size = q.shape[-1]
    shape = (*batch, 1 + size + size * (size + 1) // 2, v.shape[-1])
    if state is None:
        return q.new_zeros(shape), q, k, v
    sums = check_device(NAME, "state", as_scores(NAME, state, "state"), q)
    if sums.shape != shape:
        raise ValueError(f"{NAME}: state must have the shape {tuple(shape)}, got {tuple(sums.shape)}")
    return sums.to(wide), q, k, v


def _there(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Keys or values, 0 behind the lengths."""
    if lengths is None:
        return x
    there = torch.arange(x.shape[-2], device=x.device) < lengths
    return x.masked_fill(~there.transpose(-2, -1), 0.0)


def _divided(o: Tensor) -> Tensor:
    """Σ f v / Σ f, 0 of nothing."""
    mass = o[..., -1:]
    return o[..., :-1] / mass.masked_fill(mass == 0, 1.0)


def _chunks(*rows: Tensor) -> Any:
    whole = not isinstance(rows[0].shape[-2], int)  # to a recorder, for which the number of chunks is one
    return [rows] if whole else zip(*(x.split(CHUNK, -2) for x in rows), strict=True)


def _again(function: Any, *inputs: Tensor) -> Any:
    """The function's value, whose insides the backward pass computes again."""
    if may_differentiate(inputs) and not transforming():
        return checkpoint(function, *inputs, use_reentrant=False)
    return function(*inputs)


def _added(k: Tensor, v: Tensor) -> Tensor:
    return features(k).transpose(-2, -1) @ v


def _seen(sums: Tensor, q: Tensor) -> Tensor:
    return features(q) @ sums


def _whole(sums: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """(φ(q_i) Σ_j φ(k_j) v_jᵀ, the sum), of which torch has every derivative."""
    for own_k, own_v in _chunks(k, v):
        sums = sums + _again(_added, own_k, own_v)
    return torch.cat([_again(_seen, sums, own) for (own,) in _chunks(q)], -2), sums


def _seen_within(sums: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Of keys before the chunk by their sum, and of those in it one by one."""
    z = pairwise(q, k)
    f = (1 + z * (1 + 0.5 * z)).tril()
    return features(q) @ sums + weighted(f, v)


def _causal(sums: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    outputs = []
    for own_q, own_k, own_v in _chunks(q, k, v):
        outputs.append(_again(_seen_within, sums, own_q, own_k, own_v))
        sums = sums + _again(_added, own_k, own_v)
    return torch.cat(outputs, -2), sums


# In one buffer ------------------------------------------------------------------------------------------------------------------


def _attend(causal: bool, *inputs: Any) -> tuple[Tensor, Tensor]:
    """What `_causal` and `_whole` are, whose features of all chunks and gradients lie in one place, one after the other."""
    if transforming() or is_recorded(inputs[1]):
        return (_causal if causal else _whole)(*inputs)
    if may_differentiate(inputs):
        return _InChunks.apply(causal, *inputs)  # type: ignore[return-value]
    return _forward(causal, *inputs)


class _InChunks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, causal: bool, *inputs: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        output, total = _forward(causal, *inputs)
        ctx.causal = causal
        ctx.save_for_backward(*inputs, total)
        return output, total

    @staticmethod
    def backward(ctx: Any, g: Tensor, g_total: Tensor) -> Any:  # type: ignore[override]
        *inputs, total = ctx.saved_tensors
        again = torch.is_grad_enabled()
        if not (again or is_traced(g) or is_traced(g_total)):
            return None, *_backward(ctx.causal, (*inputs, total), g, g_total)
        needed = ctx.needs_input_grad[1:]
        wanted = [x for x, is_needed in zip(inputs, needed, strict=True) if is_needed]
        with torch.enable_grad():
            outputs = (_causal if ctx.causal else _whole)(*inputs)
        found = iter(torch.autograd.grad(outputs, wanted, (g, g_total), create_graph=again, allow_unused=True))
        return None, *(next(found) if is_needed else None for is_needed in needed)


def _forward(causal: bool, sums: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    output = q.new_empty((*q.shape[:-1], v.shape[-1]))
    total = sums.clone(memory_format=torch.contiguous_format)
    s, q, k, v, o = (x.flatten(0, -3) for x in _with_batch(total, q, k, v, output))
    buffer = _buffer(s)
    for own in _spans(k):
        if causal:
            torch.baddbmm(weighted(_kernel(q[:, own], k[:, own])[1], v[:, own]), _features(q[:, own], buffer).mT, s, out=o[:, own])
        s.baddbmm_(_features(k[:, own], buffer), v[:, own])
    if not causal:
        for own in _spans(q):
            torch.bmm(_features(q[:, own], buffer).mT, s, out=o[:, own])
    return output, total


def _backward(causal: bool, saved: tuple[Tensor, ...], g: Tensor, g_total: Tensor) -> tuple[Tensor, ...]:
    """The gradients by the state, q, k and v. The states of a causal pass are summed again, those of gradients from its end on."""
    sums, q, k, v, total = saved
    gradients = (g_total.clone(memory_format=torch.contiguous_format), *(x.new_zeros(x.shape) for x in (q, k, v)))
    ds, dq, dk, dv = (x.flatten(0, -3) for x in _with_batch(*gradients))
    s = sums.clone(memory_format=torch.contiguous_format) if causal else total
    s, q, k, v, g = (x.flatten(0, -3) for x in _with_batch(s, q, k, v, g))
    buffer = _buffer(ds)
    for own in _spans(q):
        q_, k_, v_, g_ = (x[:, own] for x in (q, k, v, g))
        if causal:
            slope, f = _kernel(q_, k_)
            dv[:, own] = weighted(f.mT, g_)
            dz = (g_ @ v_.mT).mul_(slope).tril_()
            dq[:, own], dk[:, own] = weighted(dz, k_), weighted(dz.mT, q_)
        else:
            ds.baddbmm_(_features(q_, buffer), g_)
        _pull(q_, g_, s, buffer, dq[:, own])
        if causal:
            s.baddbmm_(_features(k_, buffer), v_)
    for own in reversed(_spans(k)):
        dv[:, own] += _features(k[:, own], buffer).mT @ ds
        _pull(k[:, own], v[:, own], ds, buffer, dk[:, own])
        if causal:
            ds.baddbmm_(_features(q[:, own], buffer), g[:, own])
    return gradients


def _with_batch(*matrices: Tensor) -> tuple[Tensor, ...]:
    return tuple(x if x.ndim > 2 else x.unsqueeze(0) for x in matrices)


def _spans(x: Tensor) -> list[slice]:
    return [slice(first, min(first + CHUNK, x.shape[-2])) for first in range(0, x.shape[-2], CHUNK)]


def _buffer(sums: Tensor) -> Tensor:
    return sums.new_empty((*sums.shape[:-1], CHUNK))


def _kernel(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """(f′(z), f(z) of the keys up to each query's own)."""
    z = q @ k.mT
    return 1 + z, (1 + z * (1 + 0.5 * z)).tril_()


def _features(x: Tensor, buffer: Tensor) -> Tensor:
    """φ(x)ᵀ [matrices, features, n], in the buffer."""
    x, found, size = x.mT.contiguous(), buffer[..., : x.shape[-2]], x.shape[-1]
    found[:, 0] = 1.0
    found[:, 1 : 1 + size] = x
    found[:, 1 + size : 1 + 2 * size] = math.sqrt(0.5) * x * x
    for i, products in _products(found, size):
        torch.mul(x[:, i : i + 1], x[:, i + 1 :], out=products)
    return found


def _pull(x: Tensor, y: Tensor, sums: Tensor, buffer: Tensor, dx: Tensor) -> None:
    """Adds to dx the gradient of Σ φ(x) S yᵀ by x: of φ it is w = S yᵀ, in the buffer."""
    size = x.shape[-1]
    w, x = buffer[..., : x.shape[-2]], x.mT.contiguous()
    torch.bmm(sums, y.mT, out=w)
    found = w[:, 1 : 1 + size] + math.sqrt(2) * x * w[:, 1 + size : 1 + 2 * size]
    for i, by_product in _products(w, size):
        found[:, i] += (by_product * x[:, i + 1 :]).sum(1)
        found[:, i + 1 :].addcmul_(by_product, x[:, i : i + 1])
    dx += found.mT


def _products(rows: Tensor, size: int) -> Any:
    """(i, the rows of x_i x_j for j > i) of each i."""
    first = 1 + 2 * size
    for i in range(size - 1):
        yield i, rows[:, first : first + size - 1 - i]
        first += size - 1 - i
