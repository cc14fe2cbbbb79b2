"""What a backward pass reads again: what autograd saves of it, and what it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def save(ctx: Any, *values: Any) -> None:
    """Keeps values for `saved`: tensors by autograd, alone or in tuples, lists and dicts, and anything else as it is."""
    tensors: list[Tensor] = []
    ctx.values = _each(values, lambda value: tensors.append(value) or _SAVED if isinstance(value, Tensor) else value)
    ctx.save_for_backward(*tensors)


def saved(ctx: Any) -> Any:
    """The values that were kept, once in a backward pass: what a checkpoint computes again, it computes for one reading."""
    tensors = iter(ctx.saved_tensors)
    return _each(ctx.values, lambda value: next(tensors) if value is _SAVED else value)


_SAVED = object()  # in the place of a tensor


def _each(values: Any, of: Callable[[Any], Any]) -> Any:
    """The same with what `of` makes of each value in tuples, lists and dicts, in less time than by torch's pytrees."""
    if isinstance(values, dict):
        return {key: _each(value, of) for key, value in values.items()}
    if isinstance(values, (tuple, list)):
        made = [_each(value, of) for value in values]
        return values._make(made) if hasattr(values, "_make") else type(values)(made)  # type: ignore[attr-defined]
    return of(values)


def once(name: str, instead: str) -> None:
    """Raises RuntimeError where a backward pass is to be differentiated itself."""
    if torch.is_grad_enabled():
        raise RuntimeError(f"{name}: there is no second derivative; {instead}")


class Kept:
    """Tensors as they are now; other values are left out."""

    def __init__(self, *values: Any) -> None:
        self._versions = [(x, x._version) for x in values if isinstance(x, Tensor) and not x.is_inference()]

    def check(self, name: str) -> None:
        """Raises RuntimeError where one was changed in place since, as autograd does for what it saves."""
        if any(x._version != version for x, version in self._versions):
            raise RuntimeError(f"{name}: a tensor that the gradient needs was changed in place after the call; change a copy of it")
