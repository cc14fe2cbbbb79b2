"""Functions whose derivative is stated: autograd functions where torch runs, registered operations where it is recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.tracing import is_recorded, operation, outside_compilers, transforming


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


def batch_first(in_dims: tuple[Any, ...], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Tensors with vmap's axis in front, size 1 where a tensor is not batched. All have the rank of the rows."""
    return tuple(
        (arg.movedim(d, 0) if d is not None else arg.unsqueeze(0)) if isinstance(arg, Tensor) else arg
        for arg, d in zip(args, in_dims, strict=True)
    )


def forward_mode() -> Any:
    """Lets the operations inside a `jvp` carry the tangents of outer levels, so that forward mode nests."""
    return torch.autograd.forward_ad._set_fwd_grad_enabled(True)


def primal(x: Tensor) -> Tensor:
    """x without the tangent of the innermost level, whose part of the derivative `jvp` itself states."""
    return torch.autograd.forward_ad.unpack_dual(x).primal
