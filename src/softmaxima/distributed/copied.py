"""Tensors that are the same on all ranks, to whose gradients each rank adds its part."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from softmaxima.distributed.agreement import learns
from softmaxima.distributed.ranks import Ranks, summed


def copied(ranks: Ranks, name: str, *values: Any) -> tuple[Any, ...]:
    """The same values; those that require grad get the sum over all ranks of the gradients by them, of all by one message.

    Which these are must be the same on all ranks, and so must whether their gradients are asked for. Anything else is as it came.
    """
    learning = [value for value in values if learns(value)]
    found = iter(_Copied.apply(ranks, name, *learning) if learning else ())
    return tuple(next(found) if learns(value) else value for value in values)


class _Copied(torch.autograd.Function):
    """x on every rank: the gradient is Σ_r g_r."""

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, name: str, *same: Tensor) -> tuple[Tensor, ...]:
        ctx.ranks, ctx.name = ranks, name
        return tuple(x.view_as(x) for x in same)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        needed = ctx.needs_input_grad[2:]
        found = iter(_Summed.apply(ctx.ranks, ctx.name, *(g for g, is_needed in zip(upstream, needed, strict=True) if is_needed)))
        return None, None, *(next(found) if is_needed else None for is_needed in needed)


class _Summed(torch.autograd.Function):
    """Σ_r g_r on every rank, whose gradient is such a sum again."""

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, name: str, *own: Tensor) -> tuple[Tensor, ...]:
        ctx.ranks, ctx.name = ranks, name
        wide = functools.reduce(torch.promote_types, (g.dtype for g in own), torch.float32)
        with ranks.working(name):
            total = summed(ranks, name, own, wide)
        return tuple(each.to(g.dtype) for each, g in zip(total, own, strict=True))  # type: ignore[union-attr]

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        return None, None, *_Summed.apply(ctx.ranks, ctx.name, *upstream)
