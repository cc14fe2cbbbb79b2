r"""StreamingFrequency: log Q of items in a stream of batches, learned from the gaps between their occurrences.

An item of probability Q is drawn every 1/Q draws on average. After a batch that has it n times, the k-th time until now,

    gap = draws since the last batch that had it / n        B ← B + max(1 − (1 − rate)ⁿ, n/k) (gap − B)        log Q = −log B
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from softmaxima.base.arguments import as_tensor, check_values
from softmaxima.base.numbers import check_count, check_number
from softmaxima.base.public import public


class KeepsDouble(nn.Module):
    """A module whose float64 tables stay so, to whatever dtype a module that has it is cast; they move with it."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        return super()._apply(lambda x: x.to(fn(x).device) if x.dtype == torch.float64 else fn(x), recurse)


# Odd multipliers of hash functions, one a table: multiply, and take the upper bits.
MULTIPLIERS = (-7046029254386353131, -4417276706812531889, 1609587929392839161, -8796714831421723037)


@public
class StreamingFrequency(KeepsDouble):
    """Log Q of items of any int64 ids, however many, for losses whose negatives are the batch's own items.

    Ids are hashed into buckets. Items that share one make each other look more frequent, so of several tables that one counts in
    which an item is least frequent. With rate = 0 and no collisions, Q is the number of an item's occurrences by the number of
    draws until the last batch that has it; a rate above 0 forgets what is older than about 1/rate occurrences.

    Args:
        buckets: how many each table has; give some times more than there are items.
        rate: in [0, 1).
        tables: how many hash functions, from 1 to 4.

    Shapes: `observe(ids)` takes the ids of one batch, of any shape; their order is not read. `log_prob(ids)` gives log Q of each,
    in nats and float64. It is for items that were seen: −∞ for others, or what an item in the same bucket has.

    Cost: 24 bytes a bucket of each table; a sort of the batch. Source: after Yi et al. (2019), "Sampling-bias-corrected neural
    modeling for large corpus item recommendations", RecSys, where gaps are counted in batches and not in draws.

    >>> import torch, softmaxima as sm
    >>> frequency = sm.StreamingFrequency(1000)
    >>> for _ in range(50):
    ...     frequency.observe(torch.tensor([7, 7, 12345678901, 3]))
    >>> frequency.log_prob(torch.tensor([7, 12345678901])).exp()
    tensor([0.5000, 0.2500], dtype=torch.float64)
    """

    last: Tensor
    gap: Tensor
    count: Tensor
    draws: Tensor

    def __init__(self, buckets: int, rate: float = 0.01, tables: int = 1) -> None:
        super().__init__()
        name = type(self).__name__
        self.buckets = check_count(name, "buckets", buckets)
        self.rate = check_number(name, "rate", rate, lambda share: 0 <= share < 1, "in [0, 1)")
        self.tables = check_count(name, "tables", tables)
        if self.tables > len(MULTIPLIERS):
            raise ValueError(f"{name}: tables must be at most {len(MULTIPLIERS)}, got {tables}; give more buckets instead")
        for what in ("last", "count"):
            self.register_buffer(what, torch.zeros(self.tables, self.buckets, dtype=torch.long))
        self.register_buffer("gap", torch.zeros(self.tables, self.buckets, dtype=torch.float64))
        self.register_buffer("draws", torch.zeros((), dtype=torch.long))

    def observe(self, ids: Tensor) -> None:
        """Learn of one batch."""
        ids = check_ids(type(self).__name__, ids).flatten().to(self.gap.device)
        self.draws += ids.numel()
        for last, gap, count, own in zip(self.last, self.gap, self.count, self._hashed(ids), strict=True):
            bucket, times = own.unique(return_counts=True)
            known, mean = count[bucket], (self.draws - last[bucket]).double() / times
            share = (times / (known + times).double()).clamp_min(1 - (1 - self.rate) ** times.double())
            gap[bucket] += share * (mean - gap[bucket])
            last[bucket] = self.draws
            count[bucket] = known + times

    def log_prob(self, ids: Tensor) -> Tensor:
        """Log Q of each id."""
        ids = check_ids(type(self).__name__, ids).to(self.gap.device)
        gaps = torch.stack([gap[own] for gap, own in zip(self.gap, self._hashed(ids), strict=True)]).amax(0)
        return -gaps.where(gaps > 0, math.inf).log()

    def _hashed(self, ids: Tensor) -> list[Tensor]:
        """The bucket of each id in each table: the upper bits of a product that wraps."""
        return [((ids * multiplier) >> 33 & 0x7FFFFFFF) % self.buckets for multiplier in MULTIPLIERS[: self.tables]]

    def extra_repr(self) -> str:
        return f"buckets={self.buckets}, rate={self.rate}, tables={self.tables}"


def check_ids(name: str, ids: Any) -> Tensor:
    """Ids of items, int64."""
    values = check_values(name, "ids", as_tensor(name, "ids", ids))
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        raise TypeError(f"{name}: ids must be integers, got {values.dtype}; call ids.long()")
    return values.long()
