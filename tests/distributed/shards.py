"""Numbers that ranks share, and how far what they find is from what one process does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

import conftest
from softmaxima.engine.contract import Map


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return conftest.normal(*shape, seed=seed, scale=1.0, dtype=dtype)


def learnt_of(map: Map, shape: Sequence[int]) -> dict[str, Tensor]:
    """A value a row of each parameter that has a gradient."""
    found = {p.name: (p, normal(*shape, seed=5).abs() + 1.2) for p in map.params if p.gradient is not None}
    return {name: v if bool(p.valid(v).all()) else v / (1 + v) for name, (p, v) in found.items()}


def own_of(rank: int, widths: tuple[int, ...]) -> slice:
    return slice(sum(widths[:rank]), sum(widths[: rank + 1]))


def in_turns(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """What each call gives, one rank making it for all: of one process, to be compared with what ranks find together."""
    rank, size = dist.get_rank(), dist.get_world_size()
    every: list[Any] = [None] * size
    try:
        own: Any = [call() for call in calls[rank::size]]
    except Exception as error:  # the others wait for what this rank has
        own = error
    dist.all_gather_object(every, own)
    if wrong := next((found for found in every if isinstance(found, Exception)), None):
        raise wrong
    return [every[number % size][number // size] for number in range(len(calls))]


def finite(p: Tensor) -> Tensor:
    return torch.where(p.isfinite(), p, torch.zeros_like(p))


def apart(a: Tensor, b: Tensor, least: float = 1.0) -> float:
    """The largest difference, in shares of the largest number, or of `least` where all are smaller."""
    a = a.full_tensor() if isinstance(a, DTensor) else a
    assert a.shape == b.shape, (a.shape, b.shape)
    assert b.dtype in (a.dtype, torch.float64)
    assert torch.equal(a.isinf(), b.isinf())
    assert torch.equal(a.isnan(), b.isnan())
    a, b = finite(a).double(), finite(b).double()
    return float((a - b).abs().max() / b.abs().max().clamp_min(least)) if a.numel() else 0.0
