"""logsumexp of scores that are shared among ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from softmaxima.base import monoid
from softmaxima.base.arguments import as_map_scores, check_dims
from softmaxima.base.jacobian import narrowed
from softmaxima.base.public import public
from softmaxima.base.rows import without_mask
from softmaxima.base.temperature import over
from softmaxima.base.tracing import outside_compilers
from softmaxima.distributed.agreement import Agreement, alike
from softmaxima.distributed.kept import Kept, once, save, saved
from softmaxima.distributed.mesh_ranks import AnyRanks
from softmaxima.distributed.ranks import MESSAGES, Group, outside_the_graph, ranks_of
from softmaxima.distributed.rows import Shared
from softmaxima.engine.contract import find_map
from softmaxima.engine.parts import InParts
from softmaxima.lse.logsumexp import prepare

NAME = "distributed.logsumexp"


@public
@outside_the_graph
def logsumexp(
    shard: Tensor,
    dim: int | Sequence[int] = -1,
    *,
    group: Group = None,
    keepdim: bool = False,
    where: Tensor | None = None,
    temperature: float | Tensor = 1.0,
) -> Tensor:
    """log Σ_r Σ exp(x_r/τ), in nats, of whole rows, of which every rank r of a group has the scores `shard`, x_r.

    Args:
        shard: this rank's scores. All axes but `dim` are the same on every rank; along `dim` each may have any number, and none.
        dim: the axis that ranks share, or several that are summed over together.
        group: a process group, a mesh of one axis, or None for all ranks.
        keepdim, where, temperature: as of `sm.logsumexp`; `where` is of this rank's scores.

    Returns:
        The sums, the same to the last bit on every rank, in the dtype of the scores and of their shape without `dim`, or 1 there.

    Raises:
        TypeError or ValueError for what `sm.logsumexp` refuses, and for complex scores, and RanksError on the other ranks then.
        RanksError on every rank: where rows or dtypes differ among them, one has refused its arguments, has NaN, or does not
        answer within the group's timeout. There is no second derivative.

    Cost: one all-gather of 3 numbers a row, in float64. The gradient softmax(x/τ)/τ needs none, or one by a temperature; where a
    sum is +∞ it is NaN.
    """
    ranks = ranks_of(NAME, group)
    with ranks.telling(NAME):
        x = as_map_scores(NAME, shard)
        dims = check_dims(NAME, dim, x.ndim)
        rows, tau, mask, _, shape = prepare(NAME, x, dims, keepdim, where, temperature)
    options = {"rows": tuple(rows.shape[:-1]), "dtype": rows.dtype, "dim": dims, "keepdim": keepdim, "temperature": tau}
    agreement = ranks.agree(NAME, rows.shape[-1], alike(options, learning={"scores": rows, "temperature": tau}))
    return sum_of_shared_rows(NAME, ranks, agreement, rows, tau, mask).reshape(shape)


def sum_of_shared_rows(name: str, ranks: AnyRanks, agreement: Agreement, rows: Tensor, tau: Any, mask: Tensor | None) -> Tensor:
    """The sum of rows [..., 1], the axis last, of which the ranks have agreed what each has; all arguments are checked."""

    def share(x: Tensor, tau: Any) -> Shared:
        wide = tau.detach().double() if isinstance(tau, Tensor) else tau
        return Shared(name, ranks, agreement, InParts(find_map("softmax"), wide, {}), x, mask)

    return outside_compilers(_Sum.apply, MESSAGES)(share, rows, tau)


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, share: Any, x: Tensor, tau: Any) -> Tensor:
        shared = share(x.detach(), tau)
        with shared.ranks.working(shared.name):
            state, _ = shared.state()
        ctx.share, ctx.ranks = share, shared.ranks
        ctx.kept, ctx.name = Kept(shared.mask), shared.name
        save(ctx, state, x, tau)
        return monoid.LogSum(*state).value(shared.rows.tau).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        (g,) = upstream
        once(ctx.name, "gather the scores, and take the sum of whole rows")
        learns = ctx.needs_input_grad[2]
        with ctx.ranks.working(ctx.name) if learns else contextlib.nullcontext():  # for no message nobody waits
            ctx.kept.check(ctx.name)
            state, x, tau = saved(ctx)
            shared = ctx.share(x, tau)
            of_tau = None
            if shared.own.has_shares and not learns:
                return None, shared.own.slope(state, g), None
            p = shared.rows.wide(shared.own.part, state)
            v = over(p * g.double(), shared.rows.tau)
            if learns:
                (total,) = shared.total([-(without_mask(shared.own.part.z) * v).sum(-1, keepdim=True)])
                of_tau = total.sum_to_size(tau.shape).to(tau.dtype)
            return None, narrowed(v, x.dtype), of_tau
