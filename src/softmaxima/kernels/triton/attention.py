"""The functions of `kernels/attention.py` for tensors on a GPU, of scores that are held a block at a time.

Nothing here waits for the device, and nothing depends on the order in which programs run.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from softmaxima.kernels.attention import Options, contiguous_rows, new_results
from softmaxima.kernels.kernel import Kernel
from softmaxima.kernels.triton import online_attention, threshold_attention
from softmaxima.kernels.triton.attention_backward import Slopes, pull_keys, pull_queries
from softmaxima.kernels.triton.attention_blocks import AttentionFunctions, Matrices, Problem, describe, matrices, numbers, width
from softmaxima.kernels.triton.launches import ceiling
from softmaxima.kernels.triton.library import module_of, on_device

LARGEST_SIZE = 256  # of a query or a value: a block of wider ones does not stay on chip


class Blocks(NamedTuple):
    """How many queries and keys a program holds, with how many warps, and how many blocks it has under way."""

    queries: int
    keys: int
    warps: int
    stages: int


# By the size of heads, for halves and for float32.
FORWARD = {
    64: (Blocks(128, 64, 4, 3), Blocks(64, 32, 4, 2)),
    128: (Blocks(128, 64, 8, 3), Blocks(64, 32, 4, 2)),
    256: (Blocks(64, 32, 4, 2), Blocks(16, 16, 8, 1)),
}
SHARED = {  # by all kernels of a derivative, and those of sparse maps, whose blocks are marked
    64: (Blocks(64, 64, 4, 2), Blocks(32, 32, 4, 2)),
    128: (Blocks(64, 64, 8, 2), Blocks(32, 32, 8, 2)),
    256: (Blocks(64, 32, 8, 2), Blocks(16, 16, 8, 1)),
}


def largest_head(kernel: Kernel, theta: tuple[float | None, ...], dtype: torch.dtype) -> int:
    """Up to which size of heads there is attention by the kernel's map with these numbers, None for tensors; 0 where there is none.

    Of β > 1, where s is huge for small p and the derivative cancels, there is none; a tensor is taken to have no such.
    """
    attention: AttentionFunctions | None = getattr(module_of(kernel.triton), "ATTENTION", None)
    if attention is None or dtype == torch.float64:
        return 0
    return LARGEST_SIZE if None in theta or attention.order(*theta) <= 1.0 else 0


def forward(
    q: Tensor, k: Tensor, v: Tensor, options: Options, *, lse: bool, keeps: bool, wide: bool = False
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """(o, LSE of the scores that a query sees, what `backward` needs), where something is not asked for of no elements."""
    attention, problem = _problem(q, k, v, options)
    out, sums = new_results(q, v, lse, wide)
    shapes = kept_shapes(q, k, v, options.kernel) if keeps else ((0,), (0,))
    state = torch.empty(shapes[0], dtype=torch.float32, device=q.device)
    marks = torch.zeros(shapes[1], dtype=torch.int8, device=q.device)
    blocks = _blocks(FORWARD if attention.online else SHARED, q, v)
    rows = ceiling(problem.queries, blocks.queries)
    programs = (q.shape[:-2].numel() * rows,)
    given = (problem, matrices(out, q.shape[:-2], out.shape[-2:]))
    with on_device(q):
        if attention.online:
            _run(online_attention.attend, programs, *given, sums if lse else None, state if keeps else None, **_sizes(blocks, q, v))
        else:
            lists = torch.empty((*programs, 2, ceiling(problem.keys, blocks.keys)), dtype=torch.int32, device=q.device)
            marked = (state, lists, marks) if keeps else (None, lists, None)
            _run(threshold_attention.attend, programs, *given, *marked, **_sizes(blocks, q, v))
    return out, sums, (state, marks)


def kept_shapes(q: Tensor, k: Tensor, v: Tensor, kernel: Kernel) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of M and D of each query, float32, and of which blocks have a p that is not 0, int8."""
    state, blocks = (*q.shape[:-1], 2), _blocks(SHARED, q, v)
    if module_of(kernel.triton).ATTENTION.online:
        return state, (0,)
    return state, (math.prod(q.shape[:-2]), -(-k.shape[-2] // blocks.keys), -(-q.shape[-2] // blocks.queries))


def state_of(lse: Tensor, q: Tensor, tau: float | Tensor) -> Tensor:
    """M = LSE in units of log 2 and D = 0 of each query; one that sees nothing has M = +∞, with which no p is more than 0."""
    level = torch.where(lse == -math.inf, math.inf, lse / math.log(2.0)).float()
    return torch.stack((level, torch.zeros_like(level)), -1)


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
    """∂(⟨g, o⟩ + ⟨g_lse, LSE⟩) by q, k and v, in float32; the LSE is that with the sinks."""
    attention, problem = _problem(q, k, v, options)
    batch, (state, marks) = q.shape[:-2], kept
    blocks = _blocks(SHARED, q, v)
    shared = problem.k.data.shape[:2]
    dq = torch.empty(q.shape, dtype=torch.float32, device=q.device)
    dk, dv = (torch.empty((*shared, *x.shape[-2:]), dtype=torch.float32, device=q.device) for x in (k, v))
    slopes = Slopes(
        g=matrices(contiguous_rows(g), batch, g.shape[-2:]),
        out=matrices(out if attention.online else None, batch, out.shape[-2:]),
        lse=numbers(None if g_lse is None else g_lse.unsqueeze(-1), q),
        state=state,
        delta=torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device),
        blocks=None,
        counts=None,
    )
    of_queries = slopes if attention.online else _listed(slopes, marks.mT)
    of_keys = slopes if attention.online else _listed(slopes, marks)
    with on_device(q):
        programs = (batch.numel() * ceiling(problem.queries, blocks.queries),)
        _run(pull_queries, programs, problem, of_queries, matrices(dq, batch, q.shape[-2:]), **_sizes(blocks, q, v))
        programs = (shared.numel() * ceiling(problem.keys, blocks.keys),)
        _run(pull_keys, programs, problem, of_keys, *(Matrices(x, *x.stride()) for x in (dk, dv)), **_sizes(blocks, q, v))
    return dq, _summed(dk, k, q, options.groups), _summed(dv, v, q, options.groups)


def _run(kernel: Any, programs: tuple[int], problem: Problem, *given: Any, **sizes: int) -> None:
    """The kernel, and again those programs whose results are not finite, which then leave out the terms of pairs without a p."""
    spoilt = torch.empty(programs, dtype=torch.int8, device=problem.q.data.device)
    for careful in (False, True):
        kernel[programs](problem, *given, spoilt, **sizes, CAREFUL=careful)


def _problem(q: Tensor, k: Tensor, v: Tensor, options: Options) -> tuple[AttentionFunctions, Problem]:
    attention: AttentionFunctions = module_of(options.kernel.triton).ATTENTION
    return attention, describe(q, k, v, attention, options)


def _blocks(table: dict[int, tuple[Blocks, Blocks]], q: Tensor, v: Tensor) -> Blocks:
    size = max(q.shape[-1], v.shape[-1])
    half, single = next(blocks for most, blocks in table.items() if size <= most)
    return single if q.dtype == torch.float32 else half


def _sizes(blocks: Blocks, q: Tensor, v: Tensor) -> dict[str, int]:
    return {
        "ROWS": blocks.queries,
        "BLOCK": blocks.keys,
        "WIDTH": width(q.shape[-1]),
        "VALUE_WIDTH": width(v.shape[-1]),
        "num_warps": blocks.warps,
        "num_stages": blocks.stages,
    }


def _listed(slopes: Slopes, marks: Tensor) -> Slopes:
    """With the numbers of the marked blocks [*, blocks, others] first, in order."""
    return slopes._replace(blocks=marks.argsort(dim=-1, descending=True, stable=True).contiguous(), counts=marks.sum(-1))


def _summed(gradient: Tensor, x: Tensor, q: Tensor, groups: int) -> Tensor:
    """A gradient [batch, heads / groups, ...] of what broadcast to it, as that lies."""
    batch = q.shape[:-2]
    shape = (*batch[:-1], *(heads // groups for heads in batch[-1:]), *gradient.shape[-2:])
    return gradient.reshape(shape).sum_to_size(x.shape)
