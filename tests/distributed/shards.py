"""Numbers that ranks share, and how far what they find is from what one process does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

import conftest


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return conftest.normal(*shape, seed=seed, scale=1.0, dtype=dtype)


def own_of(rank: int, widths: tuple[int, ...]) -> slice:
    return slice(sum(widths[:rank]), sum(widths[: rank + 1]))


def in_turns(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """What each call gives, one rank making it for all: of one process, to be compared with what ranks find together."""
    rank, size = dist.get_rank(), dist.get_world_size()
    every: list[Any] = [None] * size
    dist.all_gather_object(every, [call() for call in calls[rank::size]])
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
