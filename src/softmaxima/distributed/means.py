"""The mean over the batches of all ranks, under data parallelism, of which each may have another number of labels."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.arguments import as_scores, check_value
from softmaxima.base.public import public
from softmaxima.distributed.agreement import alike
from softmaxima.distributed.ranks import Group, Ranks, outside_the_graph, ranks_of

NAME = "distributed.batch_mean"


@public
@outside_the_graph
def batch_mean(total: Tensor, count: float | Tensor, *, group: Group = None) -> Tensor:
    """Σ total / Σ count over the ranks of a group, for models whose gradients are averaged over these ranks, as by DDP and FSDP.

    The mean of each rank's own mean is not that of all rows where ranks have different numbers of labels. So take a loss with
    reduction="sum", and give it with what it counts, such as the number of labels that are not ignored:

        loss = sm.distributed.batch_mean(head(hidden, target), (target != -100).sum(), group=data_parallel)

    Args:
        total: the sum of this rank's losses, a floating-point tensor of no axes.
        count: of this rank, finite and at least 0: how many rows count, or with class weights the sum of those of its labels.
        group: a process group, a mesh of one axis, or None for all ranks.

    Returns:
        The mean over all rows, the same on every rank, NaN where none counts. Its gradient by this rank's total is R / Σ count, of
        R ranks, and 0 where none counts: the average over ranks of the gradients that follow is that of the mean. Where they are
        summed, divide it by R.

    Raises:
        TypeError or ValueError for anything else, and RanksError on every other rank then, or where a rank does not answer.

    Cost: one all-reduce of 2 numbers in float64; the gradient needs none.
    """
    ranks = ranks_of(NAME, group)
    with ranks.telling(NAME):
        loss = as_scores(NAME, total, "total")
        if loss.ndim:
            raise ValueError(f"{NAME}: total must have no axes, got shape {tuple(loss.shape)}; take the loss with reduction='sum'")
        number = check_value(NAME, "count", count, lambda n: (n >= 0) & (n < math.inf), "finite and at least 0")
        if isinstance(number, Tensor) and number.ndim:
            raise ValueError(f"{NAME}: count must be one number, got shape {tuple(number.shape)}; call count.sum()")
    ranks.agree(NAME, 1, alike({"dtype": loss.dtype}))
    return _Mean.apply(ranks, loss, number)


class _Mean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ranks: Ranks, total: Tensor, count: float | Tensor) -> Tensor:
        with ranks.working(NAME):
            own = [torch.as_tensor(value, dtype=torch.float64, device=total.device) for value in (total.detach(), count)]
            whole, number = ranks.sum(NAME, torch.stack(own))
        ctx.save_for_backward((ranks.size / number).masked_fill(number == 0, 0.0))  # no row counts
        return (whole / number).masked_fill(number == 0, math.nan).to(total.dtype)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        (scale,) = ctx.saved_tensors
        return None, (upstream[0] * scale).to(upstream[0].dtype), None
