"""Functions whose derivative is stated: autograd functions where torch runs, registered operations where it is recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from softmaxima._tracing import is_recorded, outside_compilers, transforming


def differentiable(name: str, function: Any) -> Callable[..., Tensor]:
    """An autograd function of tensors as a function, that recorders see as the operation `softmaxima::name`.

    It has `forward`, `setup_context`, `backward`, `jvp` and `vmap`, and `fake`, which makes an empty result.
    """
    operation: Any = torch.library.custom_op(f"softmaxima::{name}", function.forward, mutates_args=())
    operation.register_fake(function.fake)
    operation.register_autograd(function.backward, setup_context=function.setup_context)
    operation.register_vmap(function.vmap)

    def call(*tensors: Tensor) -> Tensor:
        if is_recorded(tensors[0]) and not transforming():
            return operation(*tensors)
        return outside_compilers(function.apply)(*tensors)

    return call
