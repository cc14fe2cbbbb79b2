"""What a backward pass reads again: what autograd saves of it, and what it does not."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


def save(ctx: Any, *values: Any) -> None:
    """Keeps values for `saved`: tensors by autograd, alone or in tuples, lists and dicts, and anything else as it is."""
    leaves, ctx.tree = pytree.tree_flatten(values)
    ctx.others = [(not isinstance(leaf, Tensor), None if isinstance(leaf, Tensor) else leaf) for leaf in leaves]
    ctx.save_for_backward(*(leaf for leaf in leaves if isinstance(leaf, Tensor)))


def saved(ctx: Any) -> Any:
    """The values that were kept, once in a backward pass: what a checkpoint computes again, it computes for one reading."""
    tensors = iter(ctx.saved_tensors)
    return pytree.tree_unflatten([other if is_other else next(tensors) for is_other, other in ctx.others], ctx.tree)


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
