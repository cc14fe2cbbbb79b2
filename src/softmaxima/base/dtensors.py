"""DTensors at the public edge: whether a tensor is one, and who takes it.

torch brings them in a module of its own, without which there are none. `softmaxima.distributed.dtensors` states here what becomes
of them, and is loaded when the first comes.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from torch.compiler import is_compiling

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
    if is_compiling():
        _load()
        return FORMS[kind]

    def taken(*given: Any, **options: Any) -> Any:
        try:
            _load()
            return FORMS[kind](*given, **options)
        except BaseException as error:
            if may_be_alone(error):
                abandon = importlib.import_module("softmaxima.distributed.mesh_ranks").abandon
                abandon(next(x for x in given if is_dtensor(x)), error)
            raise

    return taken


def may_be_alone(error: BaseException) -> bool:
    """Whether one rank may raise it where the others do not: an interrupt, by the handler of an alarm too, or a lack of memory."""
    return not isinstance(error, Exception) or isinstance(error, (OSError, MemoryError))


@constant_when_compiled
def _load() -> bool:
    importlib.import_module("softmaxima.distributed.dtensors")
    return True
