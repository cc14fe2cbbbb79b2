"""Maps, losses and sums of scores that are shared among processes, on torch.distributed: `sm.distributed.softmax(shard, group=…)`;
and attention over a sequence that is.

Heads whose classes are shared have the names of those that are not: `sm.distributed.LinearLoss(features, classes, group=…)`.
Every map with `blocks` and every loss with a form in parts has its function here by its own name, those of users too. Type checkers
know of the library's by `__init__.pyi`, and take a user's as `shared_map(map, …)` or `shared_loss(loss, …)`.

By a group of this process alone, which has all classes; started by torchrun, each rank has its own:

>>> import torch, softmaxima as sm
>>> torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
>>> sm.distributed.sparsemax(torch.tensor([1.0, 0.0, 0.5]))
tensor([0.7500, 0.0000, 0.2500])
>>> sm.distributed.cross_entropy(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1]))
tensor(0.4100)
>>> sm.distributed.logsumexp(torch.zeros(2, 4))
tensor([1.3863, 1.3863])
>>> head = sm.distributed.LinearLoss(8, 100, loss="entmax15")
>>> head(torch.zeros(3, 8), torch.tensor([0, 42, 99])).detach()
tensor(1.2000)
>>> torch.distributed.destroy_process_group()
"""

from __future__ import annotations

from typing import Any

from softmaxima.base.by_name import by_name, in_parts
from softmaxima.base.public import listing
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


__dir__ = listing(globals(), lambda: in_parts(MAPS, LOSSES))
