"""The functions of `attention.py` on the CPU: tensors as matrices in memory, and the structures of the library's two kernels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softmaxima.kernels import native
from softmaxima.kernels.attention import Options, contiguous_rows, new_results
from softmaxima.kernels.interface import find_function, run, threads
from softmaxima.kernels.kernel import Kernel
from softmaxima.kernels.layout import DTYPES, computed_in, in_memory, one_per_row, theta_in_memory
from softmaxima.kernels.structures import ATTENTION, ATTENTION_BACKWARD, Attention, AttentionBackward, Matrices

ALL = 2**62  # how far a query sees that sees all, and a size of heads that none exceeds
EXPONENTIAL = ("softmax", "elastic_softmax")  # of which p is known key by key from two numbers a query, the state of its row
MANY = 8192  # keys, from which on the backward pass is faster by states: a block of queries with fewer is in the cache as a whole


def largest_head(kernel: Kernel, theta: tuple[float | None, ...], dtype: torch.dtype) -> int:
    """Up to which size of heads there is attention by the kernel's map: all, or 0 where it lacks a function."""
    return ALL if native.has(kernel, "forward") and native.has(kernel, "backward") else 0


def kept_shapes(q: Tensor, k: Tensor, v: Tensor, kernel: Kernel) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of what `forward` leaves for `backward`: room for the states of softmax, each a double in the place of two floats.

    It is used where keys are `MANY`; whether it is there depends on no size, of which a compiler would make a graph of its own.
    Gradients by states take the output, which must be as exact as what is computed in.
    """
    has_states = kernel.forward in EXPONENTIAL and q.dtype == computed_in(q.dtype)
    return (4 * math.prod(q.shape[:-1]) if has_states else 0,), (0,)


def forward(
    q: Tensor, k: Tensor, v: Tensor, options: Options, *, lse: bool, keeps: bool, wide: bool = False
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """(o, LSE of the scores that a query sees, what `backward` needs); of no elements what is not asked for, and here the last."""
    if wide:
        q, k, v = (x.to(computed_in(x.dtype)) for x in (q, k, v))
    out, sums = new_results(q, v, lse, wide)
    matrices = q.shape[:-2].numel()
    parts = max(1, -(-4 * threads() // matrices)) if matrices % threads() else 1
    state, marks = kept_shapes(q, k, v, options.kernel) if keeps else ((0,), (0,))
    kept = q.new_empty(state, dtype=torch.float32), q.new_empty(marks, dtype=torch.int8)
    call, _kept = _describe(q, k, v, options, parts, out, sums if lse else None, kept[0] if k.shape[-2] >= MANY else kept[0][:0])
    run(find_function("attention"), ATTENTION(*call))
    return out, sums, kept


def backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    g_lse: Tensor | None,
    options: Options,
    *,
    out: Tensor,
    kept: tuple[Tensor, Tensor],
    uses_scores: bool,
    of_part: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """∂(⟨g, o⟩ + ⟨g_lse, LSE⟩) by q, k and v, in what is computed in; the LSE is that with the sinks of elastic softmax."""
    wide = computed_in(q.dtype)
    if out.dtype != q.dtype:
        q, k, v, g = (x.to(wide) for x in (q, k, v, g))
    matrices = q.shape[:-2].numel()
    parts = -(-threads() // matrices)
    g, out, state = in_memory(g), in_memory(out), kept[0].contiguous()
    state = state if of_part or k.shape[-2] >= MANY else state[:0]
    call, _kept = _describe(q, k, v, options, parts, out, None, state)
    g_lse = None if g_lse is None else in_memory(g_lse.to(wide))
    dq = q.new_empty(q.shape, dtype=wide)
    dk, dv = (q.new_empty((parts, *q.shape[:-2], *x.shape[-2:]), dtype=wide) for x in (k, v))
    own = AttentionBackward(
        derivative=options.kernel.addresses.backward,
        uses_scores=int(uses_scores),
        on_support=int(options.sparse and not uses_scores),
        g=g.data_ptr(),
        g_lse=0 if g_lse is None else g_lse.data_ptr(),
        dq=dq.data_ptr(),
        dk=dk.data_ptr(),
        dv=dv.data_ptr(),
    )
    run(find_function("attention_backward"), ATTENTION_BACKWARD(*call, *own))
    return dq, _shared(dk, k, options.groups), _shared(dv, v, options.groups)


def state_of(lse: Tensor, q: Tensor, tau: float | Tensor) -> Tensor:
    """M and log Σ exp((x − M)/τ), each a double, of LSE = M/τ + log Σ exp((x − M)/τ): M has the digits of what is computed in."""
    taus = tau.double().expand(*lse.shape, 1).squeeze(-1) if isinstance(tau, Tensor) else tau
    top = (lse * taus).to(computed_in(q.dtype)).double()
    rest = torch.where(lse.isinf(), 0.0, lse - top / taus)
    return torch.stack((top, rest)).view(torch.float32).flatten()


def _shared(gradient: Tensor, x: Tensor, groups: int) -> Tensor:
    """A gradient [parts, ..., S, size] of each head of the queries, summed to what x had."""
    gradient = gradient.squeeze(0) if gradient.shape[0] == 1 else gradient.sum(0)
    return (gradient if groups == 1 else gradient.unflatten(-3, (-1, groups)).sum(-3)).sum_to_size(x.shape)


def _describe(
    q: Tensor, k: Tensor, v: Tensor, options: Options, parts: int, out: Tensor, lse: Tensor | None, states: Tensor
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """(the fields of `Attention` with its matrices, what they point into)."""
    batch, queries, keys = q.shape[:-2], q.shape[-2], k.shape[-2]
    wide = computed_in(q.dtype)
    tau, taus = one_per_row(options.tau, q)
    numbers, theta, distance = theta_in_memory(options.theta, q)
    mask = None if options.mask is None else _of_scores(options.mask.view(torch.uint8), keys)
    bias = None if options.bias is None else _of_scores(options.bias.to(wide), keys)
    lengths = None if options.lengths is None else _of_matrices(options.lengths, batch)
    first, firsts = (0, _of_matrices(options.first, batch)) if isinstance(options.first, Tensor) else (options.first, None)
    slopes = None if options.slopes is None else _of_matrices(options.slopes.detach(), batch, torch.float64)
    sinks = None
    if options.sinks is not None:  # as scores, none of which is +∞
        sinks = torch.as_tensor(options.sinks, dtype=torch.float64, device=q.device)
        sinks = sinks * (options.tau.double() if isinstance(options.tau, Tensor) else options.tau)
        sinks = in_memory(sinks.detach().double().clamp_max(torch.finfo(wide).max).expand(*q.shape[:-1], 1))
    q, k, v = contiguous_rows(q), contiguous_rows(k), contiguous_rows(v)
    lie = [_lie(x, batch, groups) for x, groups in ((q, 1), (k, options.groups), (v, options.groups), (mask, 1), (bias, 1))]
    call = Attention(
        dtype=DTYPES[q.dtype],
        matrices=batch.numel(),
        queries=queries,
        keys=keys,
        size=q.shape[-1],
        value_size=v.shape[-1],
        threads=threads(),
        parts=parts,
        lengths=0 if lengths is None else lengths.data_ptr(),
        left=ALL if options.left is None else options.left,
        right=ALL if options.right is None else options.right,
        first=first,
        firsts=0 if firsts is None else firsts.data_ptr(),
        scale=options.scale,
        softcap=options.softcap or 0.0,
        slopes=0 if slopes is None else slopes.data_ptr(),
        tau=tau,
        taus=0 if taus is None else taus.data_ptr(),
        theta=theta,
        distance=distance,
        sinks=0 if sinks is None else sinks.data_ptr(),
        sparse=int(options.sparse),
        map=options.kernel.addresses.forward,
        out=out.data_ptr(),
        lse=0 if lse is None else lse.data_ptr(),
        states=states.data_ptr() if states.numel() else 0,
    )
    fields = (*(field for matrices, _ in lie for field in matrices), *call)
    return fields, (q, k, v, mask, bias, lie, taus, numbers, lengths, firsts, slopes, sinks)


def _of_matrices(x: Tensor, batch: torch.Size, dtype: torch.dtype = torch.int64) -> Tensor:
    """Numbers [..., 1, 1], one for each matrix."""
    return in_memory(x.to(dtype).expand(*batch, 1, 1))


def _of_scores(x: Tensor, keys: int) -> Tensor:
    """A mask or a bias [..., L or 1, S]."""
    x = x[(None,) * max(0, 2 - x.ndim)]
    return contiguous_rows(x.expand(*x.shape[:-1], keys))


def _lie(x: Tensor | None, batch: torch.Size, groups: int) -> tuple[Matrices, np.ndarray | None]:
    """(where the matrices are, what that points into)."""
    if x is None:
        return Matrices(0, 0, 0), None
    offsets = np.zeros((), np.int64)
    for size, stride in zip(x.shape[:-2], x.stride()[:-2], strict=True):
        offsets = np.add.outer(offsets, np.arange(0, size * stride, stride) if stride else np.zeros(size, np.int64))
    if groups > 1:
        offsets = offsets.repeat(groups, -1)
    if offsets.shape != batch:
        offsets = np.ascontiguousarray(np.broadcast_to(offsets, batch))
    distance = 0 if x.shape[-2] == 1 else x.stride(-2)
    return Matrices(x.data_ptr(), distance, offsets.__array_interface__["data"][0]), offsets
