"""A map, as layers of a graph hold it, over the neighbours of each node, who are found once for all layers of one graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric import Index

from softmaxima.base.arguments import check_dim
from softmaxima.base.modules import held_value
from softmaxima.base.numbers import TEMPERATURE, described
from softmaxima.base.tracing import is_recorded, outside_compilers, transforming
from softmaxima.engine.contract import AnyMap, Map, find_map
from softmaxima.maps import MapModule
from softmaxima.segments import segment_map
from softmaxima.segments.grouping import found_again, found_segments


def segments_of(name: str, index: Tensor | None, ptr: Tensor | None, size: int | None, x: Tensor, dim: int) -> Any:
    """The neighbours of each node, as torch_geometric says them, along `dim` of x, which has a place for each edge.

    They are found once for layers one after another over one graph.
    """
    given = index.as_tensor() if isinstance(index, Index) else index
    edges = x.shape[check_dim(name, dim, x.ndim)]
    if is_recorded(x) and not transforming():
        found = found_segments(name, given if ptr is None else None, size, ptr, edges)
    else:
        find, *said = (found_again, name, given, size) if ptr is None else (found_segments, name, None, size, ptr)
        found = outside_compilers(find, "what finds the neighbours of nodes")(*said)
    if found.elements != edges:
        what = "ptr ends at" if ptr is not None else "index has"
        raise ValueError(f"{name}: {what} {found.elements}, and x of shape {tuple(x.shape)} has {edges} edges along dim {dim}")
    return found


# What layers hold ---------------------------------------------------------------------------------------------------------------


class NotScripted:
    """What `torch.jit.script` cannot read, and says so."""

    def __prepare_scriptable__(self) -> Any:
        raise NotImplementedError(
            f"{type(self).__name__}: torch.jit.script does not take it; use torch.export.export or torch.compile, which do"
        )


def held_map(name: str, map: AnyMap | MapModule, options: Mapping[str, Any]) -> MapModule:
    """A map with its temperature and parameters, which may learn; a module has its own."""
    if isinstance(map, MapModule):
        if options:
            own, got = type(map).__name__, ", ".join(options)
            raise TypeError(
                f"{name}: a module has temperature and parameters of its own, got {got} beside it; give them to {own}(…)"
            )
        return map
    found = find_map(map, name)
    params = found.complete({key: value for key, value in options.items() if key != "temperature"}, name)
    for parameter in found.params:
        parameter.held(name, params[parameter.name])
    held_value(name, "temperature", options.get("temperature", 1.0), *TEMPERATURE)
    return MapModule(found, 0, **options)


def said_map(held: MapModule) -> str:
    """Its name and what it holds, but for dim, which has no meaning here."""
    own = {name: getattr(held, name) for name in held._option_names if name != "dim"}
    said = {name: "learnt" if isinstance(value, (nn.Module, nn.Parameter)) else _brief(value) for name, value in own.items()}
    return f"{held.map.name}({', '.join(f'{name}={value}' for name, value in said.items())})"


def _brief(value: Any) -> str:
    return f"Tensor{tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)


def check_gate(name: str, gate: Any) -> nn.Module | None:
    """A network of scores, or None."""
    if isinstance(gate, MapModule) or isinstance(getattr(gate, "map", None), Map) or isinstance(gate, Map):
        raise TypeError(f"{name}: gate must be a network that makes scores, got the map {type(gate).__name__}; give map= for it")
    if gate is not None and not isinstance(gate, nn.Module):
        wanted = "a torch.nn.Module, such as torch.nn.Linear(channels, 1)"
        raise TypeError(f"{name}: gate must be {wanted}, got {described(gate, wanted)}")
    return gate


def scores_of(name: str, gate: nn.Module, x: Tensor, dim: int) -> Tensor:
    """What the gate makes of x, with an axis for each of its."""
    scores, axis = gate(x), check_dim(name, dim, x.ndim)
    one = tuple(size if a == axis else 1 for a, size in enumerate(x.shape))
    got = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
    fits = isinstance(got, tuple) and len(got) == x.ndim and all(a in pair for a, *pair in zip(got, one, x.shape, strict=True))
    if not fits:
        raise ValueError(
            f"{name}: gate must give scores of shape {one} or of x's, {tuple(x.shape)}, got {got}; "
            f"a network that ends in torch.nn.Linear(…, 1) does"
        )
    return scores


def first_numbers(layer: nn.Module, held: str) -> dict[str, Tensor]:
    """A copy of all that learns of what a layer holds by this name."""
    return {name: p.detach().clone() for name, p in layer.named_parameters() if name.split(".")[0] == held}


def restore(numbers: dict[str, Tensor], layer: nn.Module) -> None:
    """Put them back."""
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name in numbers:
                parameter.copy_(numbers[name])


def over_neighbours(held: MapModule, x: Tensor, segments: Any, dim: int) -> Tensor:
    """The map of the scores of each node's neighbours."""
    options = {name: value for name, value in held.options.items() if name != "dim"}
    return segment_map(held.map, x, segments, dim=dim, **options)
