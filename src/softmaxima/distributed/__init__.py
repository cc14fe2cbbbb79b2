"""Maps, losses and sums of scores that are shared among processes, on torch.distributed: `sm.distributed.softmax(shard, group=…)`;
and attention over a sequence that is.

Every map with `blocks` and every loss with a form in parts has its function here by its own name, those of users too.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from softmaxima.distributed.attention import attention
from softmaxima.distributed.losses import shared_loss
from softmaxima.distributed.maps import shared_map
from softmaxima.distributed.places import places
from softmaxima.distributed.ranks import RanksError
from softmaxima.distributed.sequence import unshard
from softmaxima.distributed.sums import logsumexp
from softmaxima.losses import REGISTRY as LOSSES
from softmaxima.maps import REGISTRY as MAPS

__all__ = ["RanksError", "attention", "logsumexp", "places", "shared_loss", "shared_map", "unshard"]


def __getattr__(name: str) -> Any:
    shared: Any = shared_map if name in MAPS else shared_loss
    if name not in MAPS and name not in LOSSES:
        raise AttributeError(f"module 'softmaxima.distributed' has no attribute {name!r}")
    function = functools.partial(shared, name)
    functools.update_wrapper(function, shared)
    known = inspect.signature(shared)
    function.__signature__ = known.replace(parameters=list(known.parameters.values())[1:])  # type: ignore[attr-defined]
    function.__name__ = function.__qualname__ = name  # type: ignore[attr-defined]
    return function


def __dir__() -> list[str]:
    return sorted({*globals(), *MAPS, *LOSSES})
