"""Which loss is meant: by its name or that of a map, its function, its module, or itself; perhaps with options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from softmaxima.base.numbers import nearest
from softmaxima.engine.contract import REGISTRY as MAPS
from softmaxima.losses.contract import REGISTRY, Loss


def find_loss(name: str, loss: Any) -> tuple[Loss, dict[str, Any]]:
    """(the loss that is meant, its options, defaults filled in); of a tuple of a loss and options as well."""
    called, given = loss if isinstance(loss, (tuple, list)) and len(loss) == 2 else (loss, None)
    found, options = _itself(called), {}
    if found is None:
        if not isinstance(called, str):
            raise TypeError(
                f"{name}: loss must be the name of a loss or of a map, or a tuple of it and its options, got "
                f'{type(loss).__name__}; give for instance "sparsemax" or ("entmax", 1.3)'
            )
        found, options = _named(name, called)
    if found.on_cosines:
        raise ValueError(f"{name}: {found.name} is a loss of cosines; take MarginSoftmax, whose scores are cosines")
    if isinstance(given, Mapping):
        options |= given
    elif given is not None:
        own = [parameter.name for parameter in MAPS[options["map"]].params] if options else [*found.complete({})]
        own = [option for option in own if option != "map"]
        if not own:
            raise TypeError(f"{name}: {found.name} takes no option, got {given!r}; give loss={called!r}")
        options[own[0]] = given
    return found, found.complete(options, name)


def _itself(loss: Any) -> Loss | None:
    if isinstance(loss, Loss):
        return loss
    return next((one for one in REGISTRY.values() if loss is one.function or loss is one.module), None)


def _named(name: str, called: str) -> tuple[Loss, dict[str, Any]]:
    of_map = {one.map: one for one in REGISTRY.values() if one.map is not None}
    spelled = [REGISTRY.get(called + end) for end in ("", "_loss", "_cross_entropy")]
    found = next((one for one in (*spelled, of_map.get(called)) if one is not None), None)
    if found is not None:
        return found, {}
    if called in MAPS and MAPS[called].regulariser is not None:
        return REGISTRY["fenchel_young_loss"], {"map": called}
    if called in MAPS and not MAPS[called].properties.logarithmic:
        raise ValueError(f'{name}: the map {called!r} has no loss of its own; take loss=("surrogate_loss", {{"map": {called!r}}})')
    known = sorted({loss for loss in (*REGISTRY, *of_map) if loss not in REGISTRY or not REGISTRY[loss].on_cosines})
    raise ValueError(f"{name}: unknown loss {called!r}{nearest(called, known)}; known are: {', '.join(known)}, and maps with one")
