"""Every map over scores that are shared among ranks along the axis of classes, by the map's own name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from softmaxima.core.arguments import as_scores, like_input, moved_last, rows_last
from softmaxima.core.contract import AnyMap, Map, find_map
from softmaxima.core.evaluation import check_params
from softmaxima.core.parts import InParts
from softmaxima.distributed.ranks import Group, ranks_of
from softmaxima.distributed.rows import Shared


def shared_map(
    map: AnyMap, shard: Tensor, group: Group = None, dim: int = -1, *, temperature: Any = 1.0, where: Any = None, **params: Any
) -> Tensor:
    """A map of whole rows x/τ, of which every rank of the group has the scores `shard`, in the order of ranks.

    Args:
        map: a registered name, the function of a map or a `Map`, which must have `blocks`.
        shard: this rank's scores. All but `dim` is the same on every rank; along `dim` each may have any number, and none.
        group: a process group, a mesh of one axis, or None for all ranks.
        dim, temperature, where, params: as of the map. Temperature and parameters are the same on every rank; a tensor that requires
            grad gets the gradient of whole rows on each.

    Returns:
        The probabilities of this rank's scores.

    Cost: each pass over the scores is one all-gather of the map's state, a few numbers a row; the gradient is one more.
    """
    found = find_map(map, "distributed")
    name = f"distributed.{found.name}"
    if found.blocks is None:
        raise ValueError(f"{name}: the map does not say how it works on parts; give its Map `blocks`")
    ranks = ranks_of(name, group)
    x = as_scores(name, shard)
    dim, rows, tau, mask = rows_last(name, x, dim, temperature, where)
    values = check_params(found, found.complete(params), x, dim, name)
    values = [moved_last(value, dim) for value in values]
    agreement = ranks.agree(name, rows.shape[-1], rows=tuple(rows.shape[:-1]), dtype=rows.dtype, axis=dim)
    p = _Shared.apply(rows, tau, found, ranks, agreement, mask, *values)
    return p.movedim(-1, dim)


class _Shared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, tau: Any, map: Map, ranks: Any, agreement: Any, mask: Tensor | None, *values: Any) -> Tensor:
        wide = lambda v: v.detach().double() if isinstance(v, Tensor) else v
        params = {parameter.name: wide(value) for parameter, value in zip(map.params, values, strict=True)}
        rows = InParts(map, wide(tau), params)
        part = rows.part(x.detach(), agreement.first(ranks.rank), mask)
        shared = Shared(f"distributed.{map.name}", ranks, agreement, rows, part)
        state = shared.state()
        p = rows.wide(part, state)
        ctx.shared, ctx.dtypes = shared, [v.dtype if isinstance(v, Tensor) else None for v in (tau, *values)]
        ctx.save_for_backward(*state)
        return p.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        shared, state = ctx.shared, ctx.saved_tensors
        with torch.no_grad():
            sums = shared.sums(g, state)
            v, learned = shared.rows.pull(shared.part, g, state, sums)
        return v, None, None, None, None, None, *(None for _ in shared.rows.params)
