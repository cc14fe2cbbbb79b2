"""Maps, losses and sums of scores that are shared among processes, on torch.distributed: `sm.distributed.softmax(shard, group=…)`;
and attention over a sequence that is.

Heads whose classes are shared have the names of those that are not: `sm.distributed.LinearLoss(features, classes, group=…)`.
Every map with `blocks` and every loss with a form in parts has its function here by its own name, those of users too. Type checkers
know of the library's by `__init__.pyi`, and take a user's as `shared_map(map, …)` or `shared_loss(loss, …)`.
"""

from __future__ import annotations

from typing import Any

from softmaxima.core.by_name import by_name
from softmaxima.distributed.attention import attention
from softmaxima.distributed.heads import linear_loss, margin_softmax_loss
from softmaxima.distributed.layers import LinearLoss, MarginSoftmax, SampledSoftmax
from softmaxima.distributed.layouts import places
from softmaxima.distributed.losses import shared_loss
from softmaxima.distributed.maps import shared_map, softmin
from softmaxima.distributed.means import batch_mean
from softmaxima.distributed.ranks import RanksError
from softmaxima.distributed.sampled import sampled_softmax_loss
from softmaxima.distributed.sequence import unshard
from softmaxima.distributed.sums import logsumexp
from softmaxima.losses import REGISTRY as LOSSES
from softmaxima.maps import REGISTRY as MAPS

__all__ = [
    "LinearLoss",
    "MarginSoftmax",
    "RanksError",
    "SampledSoftmax",
    "attention",
    "batch_mean",
    "linear_loss",
    "logsumexp",
    "margin_softmax_loss",
    "places",
    "sampled_softmax_loss",
    "shared_loss",
    "shared_map",
    "softmin",
    "unshard",
]


def __getattr__(name: str) -> Any:
    if name not in MAPS and name not in LOSSES:
        raise AttributeError(f"module 'softmaxima.distributed' has no attribute {name!r}")
    shared, whole = (shared_map, MAPS[name]) if name in MAPS else (shared_loss, LOSSES[name])
    return by_name(__name__, shared, name, whole.function)


def __dir__() -> list[str]:
    return sorted({*globals(), *MAPS, *LOSSES})
