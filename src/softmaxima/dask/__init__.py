"""Maps, losses and sums of Dask arrays, chunked along any axes: `sm.dask.softmax(x)`, lazy, by a tree of states that merge.

Every map with `blocks` and every loss with a form in parts has its function here by its own name, those of users too.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from softmaxima.core.by_name import by_name
from softmaxima.losses import REGISTRY as LOSSES
from softmaxima.maps import REGISTRY as MAPS

if importlib.util.find_spec("dask") is None:
    raise ImportError('sm.dask needs Dask, which is not installed: pip install "softmaxima[dask]"', name="dask")

from softmaxima.dask.losses import chunked_loss
from softmaxima.dask.maps import chunked_map
from softmaxima.dask.sums import logsumexp

__all__ = ["chunked_loss", "chunked_map", "logsumexp"]


def __getattr__(name: str) -> Any:
    if name not in MAPS and name not in LOSSES:
        raise AttributeError(f"module 'softmaxima.dask' has no attribute {name!r}")
    return by_name(chunked_map if name in MAPS else chunked_loss, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *MAPS, *LOSSES})
