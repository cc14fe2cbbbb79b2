"""Maps, losses and sums of Dask arrays, chunked along any axes: `sm.dask.softmax(x)`, lazy, by a tree of states that merge.

Files are summed by the workers of a cluster: `sm.dask.file_logsumexp("part-*.parquet", workers=4)`.

Every map with `blocks` and every loss with a form in parts has its function here by its own name, those of users too. Names are
imported on first use: workers that sum files do without torch.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from softmaxima.base.by_name import by_name, in_parts
from softmaxima.base.public import listing

if importlib.util.find_spec("dask") is None:
    raise ImportError('sm.dask needs Dask, which is not installed: pip install "softmaxima[dask]"', name="dask")

if TYPE_CHECKING:
    from softmaxima.dask.files import file_logsumexp
    from softmaxima.dask.losses import chunked_loss
    from softmaxima.dask.maps import chunked_map, softmin
    from softmaxima.dask.sums import logsumexp

__all__ = ["chunked_loss", "chunked_map", "file_logsumexp", "logsumexp", "softmin"]
_ROOMS = {
    "chunked_loss": "losses",
    "chunked_map": "maps",
    "file_logsumexp": "files",
    "logsumexp": "sums",
    "softmin": "maps",
}


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        found = globals()[name] = getattr(importlib.import_module(f"softmaxima.dask.{_ROOMS[name]}"), name)
        return found
    maps, losses = _registries()
    if name not in maps and name not in losses:
        raise AttributeError(f"module 'softmaxima.dask' has no attribute {name!r}")
    chunked, whole = ("chunked_map", maps[name]) if name in maps else ("chunked_loss", losses[name])
    return by_name(__name__, __getattr__(chunked), name, whole.function)


__dir__ = listing(globals(), lambda: in_parts(*_registries()))


def _registries() -> tuple[Any, Any]:
    return importlib.import_module("softmaxima.maps").REGISTRY, importlib.import_module("softmaxima.losses").REGISTRY
