"""What type checkers know of the rooms that make their functions by name."""

from __future__ import annotations

import importlib

from softmaxima.base.by_name import stub
from softmaxima.losses import REGISTRY as LOSSES
from softmaxima.maps import REGISTRY as MAPS
from softmaxima_lab.pages.documents import Entry, File

CONTRACT = "from softmaxima.engine.contract import AnyMap"
OF_ROOMS = {
    "distributed": (CONTRACT, "from softmaxima.base.arguments import DType", "from softmaxima.distributed.ranks import Group"),
    "dask": (CONTRACT, "from softmaxima.dask.chunks import Array"),
}


def types_of_rooms() -> dict[str, str]:
    """The text of each room's `__init__.pyi`: what is public, and each map and loss of the library that has a form in parts."""
    maps = {name: map.reference for name, map in MAPS.items() if map.blocks is not None}
    losses = {name: loss.function for name, loss in LOSSES.items() if loss.row_form is not None}
    own = sorted(name for name, function in (maps | losses).items() if function.__module__.startswith("softmaxima."))
    return {name: stub(importlib.import_module(f"softmaxima.{name}"), imports, own) for name, imports in OF_ROOMS.items()}


ENTRY = Entry(
    "types",
    "writes what type checkers know of functions that are made by name, for sm.distributed and sm.dask",
    lambda found: [File(f"src/softmaxima/{room}/__init__.pyi", text) for room, text in found.items()],
    read=types_of_rooms,
)
