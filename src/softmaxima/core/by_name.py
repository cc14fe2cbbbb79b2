"""The functions of a room that has a form of every map and loss, under the names of these."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any


def by_name(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The function with a map's or loss's name as its first argument, and called so."""
    bound = functools.partial(function, name)
    functools.update_wrapper(bound, function)
    known = inspect.signature(function)
    bound.__signature__ = known.replace(parameters=list(known.parameters.values())[1:])  # type: ignore[attr-defined]
    bound.__name__ = bound.__qualname__ = name  # type: ignore[attr-defined]
    return bound
