"""Functions whose derivative is stated: autograd functions where torch runs, registered operations where it is recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from softmaxima._tracing import is_recorded, operation, outside_compilers, transforming


def differentiable(name: str, function: Any) -> Callable[..., Tensor]:
    """An autograd function of tensors as a function, that recorders see as the operation `softmaxima::name`.

    It has `forward`, `setup_context`, `backward`, `jvp` and `vmap`, and `fake`, which makes an empty result.
    """
    recorded = operation(name)(function.forward)
    recorded.register_fake(function.fake)
    recorded.register_autograd(function.backward, setup_context=function.setup_context)
    recorded.register_vmap(function.vmap)

    def call(*tensors: Tensor) -> Tensor:
        if is_recorded(tensors[0]) and not transforming():
            return recorded(*tensors)
        return outside_compilers(function.apply)(*tensors)

    return call
