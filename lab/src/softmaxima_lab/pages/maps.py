"""The tables of the maps and of their parameters, from what each states of itself."""

from __future__ import annotations

import inspect

from softmaxima.attn import attention
from softmaxima.maps import REGISTRY, Map
from softmaxima_lab.pages.documents import Block, Entry
from softmaxima_lab.pages.markdown import table

MASS = {"one": "1", "at most one": "at most 1", "zero or one": "0 or 1"}


def blocks(found: None) -> list[Block]:
    """Formula, whether finite scores can get zero, and the sum; and how maps are called."""
    rows, maps = [], sorted(REGISTRY.values(), key=_place)
    for map in maps:
        names = ", ".join(parameter.name for parameter in map.params)
        called = f"`{map.name}({names})`" if names else f"`{map.name}`"
        rows.append([called, map.formula, "yes" if map.properties.sparse else "no", MASS.get(_mass(map) or "", names)])
    headings = ["`map=`", "parameters beside it, and their defaults", "may be a tensor"]
    beside = [_beside(map) for map in maps if not map.properties.logarithmic]
    return [
        Block("maps", (table(["map", "p_i", "zeros", "sum"], rows, left=range(4)),)),
        Block("parameters", (table(headings, beside, left=range(3)),)),
    ]


def _beside(map: Map) -> list[str]:
    """What stands beside the map's name in a call, and what of it may be a tensor."""
    values = [f"torch.{each.default.__name__}" if callable(each.default) else repr(each.default) for each in map.params]
    taken = inspect.signature(attention).parameters
    names = ["map_" + each.name if each.name in taken else each.name for each in map.params]
    defaults = [f"`{name}={value}`" for name, value in zip(names, values, strict=True)]
    learns = [f"`{name}`" for name, each in zip(names, map.params, strict=True) if each.gradient is not None]
    return [f"`{map.name}`", ", ".join(defaults) or "none", ", ".join(learns)]


def _place(map: Map) -> tuple[int, bool, bool, str]:
    claims = map.properties
    return [*MASS, None].index(_mass(map)), claims.sparse, claims.logarithmic, map.name


def _mass(map: Map) -> str | None:
    """What a map's mass is called, None where it depends on parameters."""
    return map.properties.mass if isinstance(map.properties.mass, str) else None


ENTRY = Entry("maps", "shows what maps state of themselves", blocks, read=lambda: None)
