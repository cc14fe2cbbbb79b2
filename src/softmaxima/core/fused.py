"""Values that a kernel computes together with their gradient, as one autograd function.

Where that does not reach (second derivatives, torch.func, forward mode, other devices, gradients by anything but the scores) the
same value is composed of differentiable operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from softmaxima.core.routing import takes_kernel
from softmaxima.core.tracing import is_eager, transforming

Pull = Callable[..., Tensor]  # (g, x, *kept) → ∂⟨g, value⟩/∂x
Native = Callable[[Tensor, bool], tuple[Tensor, Pull, tuple[Tensor, ...]]]  # (x, with gradient) → (value, pull, kept)
Composite = Callable[[Tensor], Tensor]


def is_fusible(x: Tensor, *others: Any) -> bool:
    """Whether the value at x can be `fused`; `others` are what else it depends on."""
    if transforming() or not takes_kernel(x):
        return False
    learning = torch.is_grad_enabled()
    return not any(isinstance(v, Tensor) and ((v.requires_grad and learning) or v.device != x.device) for v in others)


def fused(native: Native, composite: Composite, x: Tensor) -> Tensor:
    """The value at x by `native`, and its higher derivatives by `composite`."""
    if x.requires_grad and torch.is_grad_enabled():
        apply = _Fused.apply if is_compiling() else _apply
        return apply(native, composite, x)  # type: ignore[return-value]
    return native(x, False)[0]


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, native: Native, composite: Composite, x: Tensor) -> Tensor:
        value, ctx.pull, kept = native(x, True)
        ctx.composite = composite
        ctx.save_for_backward(x, *kept)
        return value

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (g,) = grad_outputs
        x, *kept = ctx.saved_tensors
        if is_compiling() or (is_eager(g) and not torch.is_grad_enabled()):
            return None, None, ctx.pull(g, x, *kept)
        with torch.enable_grad():
            # A view, so that the derivative is by what the composite is given here, and goes on to x.
            x = x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(ctx.composite(x), x, g, create_graph=True)
        return None, None, gradient


_apply: Callable[..., Tensor] = super(torch.autograd.Function, _Fused).apply  # type: ignore[misc]  # as in autograd.py
