"""What a backward pass reads again without autograd's having saved it."""

from __future__ import annotations

from typing import Any

from torch import Tensor


class Kept:
    """Tensors as they are now; other values are left out."""

    def __init__(self, *values: Any) -> None:
        self._versions = [(x, x._version) for x in values if isinstance(x, Tensor) and not x.is_inference()]

    def check(self, name: str) -> None:
        """Raises RuntimeError where one was changed in place since, as autograd does for what it saves."""
        if any(x._version != version for x, version in self._versions):
            raise RuntimeError(f"{name}: a tensor that the gradient needs was changed in place after the call; change a copy of it")
