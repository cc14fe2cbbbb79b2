"""Every map over scores that are shared among ranks along the axis of classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.arguments import DType, as_map_scores, moved_last, rows_last
from softmaxima.base.public import public
from softmaxima.base.tracing import outside_compilers
from softmaxima.distributed.agreement import Agreement, alike
from softmaxima.distributed.kept import Kept, once, save, saved
from softmaxima.distributed.mesh_ranks import AnyRanks
from softmaxima.distributed.ranks import MESSAGES, Group, outside_the_graph, ranks_of
from softmaxima.distributed.rows import Shared
from softmaxima.engine.contract import AnyMap, Map, find_map
from softmaxima.engine.evaluation import check_params
from softmaxima.engine.parts import InParts
from softmaxima.maps import REGISTRY
from softmaxima.maps.softmax import SOFTMIN


@public
@outside_the_graph
def shared_map(
    map: AnyMap,
    shard: Tensor,
    dim: int = -1,
    *,
    group: Group = None,
    temperature: float | Tensor = 1.0,
    where: Tensor | None = None,
    dtype: DType = None,
    **params: Any,
) -> Tensor:
    """A map of whole rows x/τ, of which every rank of a group has the scores `shard`, in the order of ranks.

    p_r = map((x_0, …, x_{R−1})/τ)_r,    x_r the scores of the rank r of R, p_r what it gets.

    `sm.distributed.sparsemax(shard, …)` is `shared_map("sparsemax", shard, …)`, and so for every map that has `blocks`.

    Args:
        map: a registered name, the function of a map or a `Map`.
        shard: this rank's scores, of any dtype. All axes but `dim` are the same on every rank; along `dim` each may have any number
            of scores, and none. In the order of ranks they are the rows.
        group: a process group, a mesh of one axis, or None for all ranks.
        dim, temperature, where, dtype, params: as of the map, but that `dim` is one axis; `where` is of this rank's scores.
            Temperature and parameters are the same
            on every rank to the last bit, a function by its code and what it holds; each gets the gradient of whole rows by one
            that requires grad.

    Returns:
        The probabilities of this rank's scores, of their shape and in their dtype: those of whole rows, merged in float64.

    Raises:
        TypeError or ValueError for what the map would refuse, or a map without `blocks`, and RanksError on the other ranks then.
        RanksError on every rank: where rows, dtypes, maps or options differ among them, one has refused its arguments, one has NaN,
        or does not answer within the group's timeout; each names the ranks, and where one has raised since they agreed, its error,
        which that rank raises itself. There is no second derivative, no torch.func and no forward mode.

    Cost: one all-gather of the map's state: of 3 numbers a row for softmax, of room for 64 candidates a row for a map with a
    threshold or top-k (where a rank has more in a row, one more all-gather of all of them), of room for 64 scores and places for
    top-p, which takes nine or ten more, of 263 numbers, where a nucleus is not among the 64 largest of each rank. The gradient is
    one more, of 4 to 7 numbers a row, and one where temperature or a parameter is learnt. All in float64.
    """
    called = f"distributed.{map if isinstance(map, str) and map in REGISTRY else 'shared_map'}"
    ranks = ranks_of(called, group)
    with ranks.telling(called):
        found = find_map(map, called)
        name = f"distributed.{found.name}"
        if found.blocks is None:
            raise ValueError(f"{name}: the map does not say how it works on parts; give its Map `blocks`")
        x = as_map_scores(name, shard, dtype)
        axis, rows, tau, mask = rows_last(name, x, dim, temperature, where)
        values = [moved_last(value, axis) for value in check_params(found, found.complete(params, name), x, axis, name)]
    named = {parameter.name: value for parameter, value in zip(found.params, values, strict=True)}
    options = {"map": found, "rows": tuple(rows.shape[:-1]), "dtype": rows.dtype, "dim": axis, "temperature": tau, **named}
    same = alike(options, learning={"scores": rows, "temperature": tau, **named})
    agreement = ranks.agree(name, rows.shape[-1], same)
    return of_shared_rows(name, found, ranks, agreement, rows, tau, mask, values).movedim(-1, axis)


@public
@outside_the_graph
def softmin(
    shard: Tensor,
    dim: int = -1,
    *,
    group: Group = None,
    temperature: float | Tensor = 1.0,
    where: Tensor | None = None,
    dtype: DType = None,
) -> Tensor:
    """Softmin of whole rows, exp(−x_i/τ) / Σ_j exp(−x_j/τ), of which every rank of a group has the scores `shard`.

    Arguments, shapes, what is returned and raised, and cost as of `shared_map` of softmax. Here +∞ is the score that gets exactly
    zero.
    """
    name = "distributed.softmin"
    with ranks_of(name, group).telling(name):
        x = as_map_scores(name, shard, dtype)
    return shared_map(SOFTMIN, -x, dim, group=group, temperature=temperature, where=where)


def of_shared_rows(
    name: str, found: Map, ranks: AnyRanks, agreement: Agreement, rows: Tensor, tau: Any, mask: Tensor | None, values: Sequence[Any]
) -> Tensor:
    """The map of rows, the axis last, of which the ranks have agreed what each has; all arguments are checked."""

    def share(x: Tensor, tau: Any, values: Sequence[Any]) -> Shared:
        wide = [value.detach().double() if isinstance(value, Tensor) else value for value in (tau, *values)]
        whole = InParts(found, wide[0], dict(zip((p.name for p in found.params), wide[1:], strict=True)))
        return Shared(name, ranks, agreement, whole, x, mask)

    return outside_compilers(_SharedMap.apply, MESSAGES)(share, found, rows, tau, *values)


class _SharedMap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, share: Any, map: Map, x: Tensor, tau: Any, *values: Any) -> Tensor:
        shared = share(x.detach(), tau, values)
        with shared.ranks.working(shared.name):
            state, _ = shared.state()
            p, where = shared.own.supported(state)
        ctx.share, ctx.ranks, ctx.map = share, shared.ranks, map
        save(ctx, state, where, x, tau, values)
        ctx.kept = Kept(shared.mask)
        return p

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        (g,) = upstream
        name = f"distributed.{ctx.map.name}"
        once(name, "gather the scores, and take the map of whole rows")
        with ctx.ranks.working(name):
            ctx.kept.check(name)
            state, where, x, tau, values = saved(ctx)
            shared = ctx.share(x, tau, values)
            v, learned = shared.pull(g, state, where)
            return None, None, v, *_of_all(shared, [tau, *values], ctx.needs_input_grad[3:], learned)


def _of_all(shared: Shared, values: Sequence[Any], needed: Sequence[bool], learned: dict[str, Tensor]) -> list[Tensor | None]:
    """The gradients by temperature and parameters, from what each rank's scores add to them."""
    names = ["temperature", *(parameter.name for parameter in shared.rows.map.params)]
    chosen = [name for name, is_needed in zip(names, needed, strict=True) if is_needed]
    if not chosen:
        return [None] * len(names)
    totals = dict(zip(chosen, shared.total([learned[name] for name in chosen]), strict=True))
    return [
        totals[name].sum_to_size(value.shape).to(value.dtype) if name in totals else None
        for name, value in zip(names, values, strict=True)
    ]
