"""DTensors at the public edge: whether a tensor is one, and who takes it.

torch brings them in a module of its own, without which there are none. `softmaxima.distributed.dtensors` states here what becomes
of them, and is loaded when the first comes.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from softmaxima.base.tracing import PLAIN, constant_when_compiled

FORMS: dict[str, Callable[..., Any]] = {}  # of maps, losses and logsumexp: a function of their arguments


def is_dtensor(x: Any) -> bool:
    """Whether it is a DTensor."""
    if type(x) in PLAIN:
        return False
    loaded = sys.modules.get("torch.distributed.tensor")
    return loaded is not None and isinstance(x, loaded.DTensor)


def form_of_dtensors(kind: str) -> Callable[..., Any]:
    """What takes DTensors for maps ("map"), losses ("loss") or "logsumexp"."""
    _load()
    return FORMS[kind]


@constant_when_compiled
def _load() -> bool:
    importlib.import_module("softmaxima.distributed.dtensors")
    return True
