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
from softmaxima.core.arguments import COMPUTE_DTYPE, Array, as_scores, check_device, like_input
from softmaxima.core.numbers import check_flag
from softmaxima.core.tracing import may_differentiate, transforming

NAME = "linear_attention"
CHUNK = 256  # keys whose features are held at once, and within which a causal query sees keys one by one


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
    features of 256 keys at a time, and for the gradient a state every 256 keys. Differentiable, twice too.

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
    wants_state = check_flag(NAME, "return_state", return_state)
    if order != 2:
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
    causal = check_flag(NAME, "is_causal", is_causal)
    if causal and request.visible.queries != request.visible.keys:
        shapes = f"{request.visible.queries} and {request.visible.keys}"
        raise ValueError(f"{NAME}: is_causal=True needs as many queries as keys, got {shapes}; give earlier keys as a state")
    sums, q, k, v = _prepared(request, state)
    output, sums = (_causal if causal else _whole)(sums, q, k, v)
    output = like_input(output.to(value.dtype if isinstance(value, Tensor) else request.value.dtype), query)
    return (output, like_input(sums, query)) if wants_state else output


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
    k, v = (request.repeated(x).to(wide).expand(*batch, *x.shape[-2:]) for x in (request.key, beside))
    size = q.shape[-1]
    shape = (*batch, 1 + size + size * (size + 1) // 2, v.shape[-1])
    if state is None:
        return q.new_zeros(shape), q, k, v
    sums = check_device(NAME, "state", as_scores(NAME, state, "state"), q)
    if sums.shape != shape:
        raise ValueError(f"{NAME}: state must have the shape {tuple(shape)}, got {tuple(sums.shape)}")
    return sums.to(wide), q, k, v


def _divided(o: Tensor) -> Tensor:
    """Σ f v / Σ f, 0 of nothing."""
    mass = o[..., -1:]
    return o[..., :-1] / mass.masked_fill(mass == 0, 1.0)


def _chunks(*rows: Tensor) -> Any:
    return zip(*(x.split(CHUNK, -2) for x in rows), strict=True)


def _again(function: Any, *inputs: Tensor) -> Any:
    """The function's value, whose insides the backward pass computes again."""
    if may_differentiate(inputs) and not transforming():
        return checkpoint(function, *inputs, use_reentrant=False)
    return function(*inputs)


def _added(sums: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return sums + features(k).transpose(-2, -1) @ v


def _seen(sums: Tensor, q: Tensor) -> Tensor:
    return _divided(features(q) @ sums)


def _whole(sums: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    for own_k, own_v in _chunks(k, v):
        sums = _again(_added, sums, own_k, own_v)
    return torch.cat([_again(_seen, sums, own) for (own,) in _chunks(q)], -2), sums


def _seen_within(sums: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Of keys before the chunk by their sum, and of those in it one by one."""
    z = q @ k.transpose(-2, -1)
    f = (1 + z * (1 + 0.5 * z)).tril()
    return _divided(features(q) @ sums + f @ v)


def _causal(sums: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    outputs = []
    for own_q, own_k, own_v in _chunks(q, k, v):
        outputs.append(_again(_seen_within, sums, own_q, own_k, own_v))
        sums = _again(_added, sums, own_k, own_v)
    return torch.cat(outputs, -2), sums
