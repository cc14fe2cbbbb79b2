"""What attention is of on every device. `native_attention.py` and `triton/attention.py` have functions of the same names:

largest_head(kernel, theta, dtype): up to which size of heads there is attention by the kernel's map with these numbers, None for
    tensors; 0 where there is none.
kept_shapes(q, k, v, kernel): of the two tensors that `forward` leaves for `backward`, float32 and int8.
forward(q, k, v, options, lse=, keeps=, wide=): (o, LSE of the scores that a query sees, what `backward` needs), of no elements what
    is not asked for. wide: o in what is computed in, to be merged with that of other keys.
backward(q, k, v, g, g_lse, options, out=, kept=, uses_scores=, of_part=): ∂(⟨g, o⟩ + ⟨g_lse, LSE⟩) by q, k and v, in what is
    computed in; the LSE is that with the sinks of elastic softmax. of_part: whether `kept` is of `state_of`.
state_of(lse, q, tau): the first of what `forward` keeps, of softmax over more keys than those here, whose LSE in double is given:
    with it, and o of all keys as wide, `backward` has what these keys add to the gradient by q, and theirs.

q is [..., L, E], k [..., S, E] and v [..., S, Ev].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from softmaxima.kernels.kernel import Kernel, Theta
from softmaxima.kernels.layout import computed_in, in_memory


@dataclass(frozen=True, kw_only=True)
class Options:
    """What attention is of, beside queries, keys and values.

    kernel, tau, theta: the map's. sparse: whether many p may be 0.
    softcap: c of c tanh(scale ⟨q, k⟩/c). slopes: m of −m |distance| added to it, [..., 1, 1].
    groups: how many matrices of queries share one of keys and values, along the last axis of the batch.
    mask, bias: [..., L or 1, S or 1]. lengths: [..., 1, 1]. left, right: how many keys before
    and after its place a query sees, None for all. first: the place of the first query, or [..., 1, 1].
    sinks: one more score a query with the value 0, divided by τ, that broadcasts to [..., L, 1].
    """

    kernel: Kernel
    tau: float | Tensor = 1.0
    theta: Theta
    sparse: bool
    scale: float
    softcap: float | None = None
    slopes: Tensor | None = None
    groups: int = 1
    mask: Tensor | None = None
    bias: Tensor | None = None
    lengths: Tensor | None = None
    left: int | None = None
    right: int | None = None
    first: int | Tensor = 0
    sinks: float | Tensor | None = None


def new_results(q: Tensor, v: Tensor, lse: bool, wide: bool) -> tuple[Tensor, Tensor]:
    """Memory of o, and of the LSE, of no elements where it is not asked for."""
    out = torch.empty((*q.shape[:-1], v.shape[-1]), dtype=computed_in(q.dtype) if wide else q.dtype, device=q.device)
    return out, torch.empty(q.shape[:-1] if lse else 0, dtype=computed_in(q.dtype), device=q.device)


def contiguous_rows(x: Tensor) -> Tensor:
    """x with contiguous rows."""
    plain = x.stride(-1) == 1 and not x.is_neg() and not x._is_zerotensor()
    return x if plain else in_memory(x)
