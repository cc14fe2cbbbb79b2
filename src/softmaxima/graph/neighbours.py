"""A map, as layers of a graph hold it, over the neighbours of each node."""

from __future__ import annotations

from torch import Tensor

from softmaxima.core.contract import AnyMap
from softmaxima.maps import MapModule
from softmaxima.segments import Segments, segment_map


def held_map(map: AnyMap | MapModule) -> MapModule:
    """A map with its temperature and parameters, which may learn; a name or a function means those of the map by default."""
    return map if isinstance(map, MapModule) else MapModule(map, 0)


def segments_of(index: Tensor | None, ptr: Tensor | None, size: int | None) -> Segments:
    """The neighbours of each node, as torch_geometric says them."""
    return Segments.from_ptr(ptr) if ptr is not None else Segments(index, size)  # type: ignore[type-var]


def over_neighbours(held: MapModule, x: Tensor, segments: Segments, dim: int) -> Tensor:
    """The map of the scores of each node's neighbours."""
    options = {name: value for name, value in held.options.items() if name != "dim"}
    return segment_map(held.map, x, segments, dim=dim, **options)
