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

from softmaxima.base.tracing import is_eager, may_differentiate, transforming
from softmaxima.engine.routing import is_native, takes_kernel

Pull = Callable[..., Any]  # (g, *x, *kept) → ∂⟨g, value⟩/∂x, of several x a tuple
Native = Callable[..., tuple[Tensor, Pull, tuple[Tensor, ...]]]  # (*x, with gradient) → (value, pull, kept)
Composite = Callable[..., Tensor]


def is_fusible(x: Tensor, *others: Any) -> bool:
    """Whether the value at x can be `fused`; `others` are what else it depends on."""
    if transforming() or not takes_kernel(x):
        return False
    learning = torch.is_grad_enabled()
    return not any(isinstance(v, Tensor) and ((v.requires_grad and learning) or v.device != x.device) for v in others)


def is_readable(x: Tensor, *others: Any) -> bool:
    """Whether the native library can say the value at x now, unseen by a compiler, and gradients are asked of x alone."""
    return not is_compiling() and is_native(x) and is_fusible(x, *others)


def fused(native: Native, composite: Composite, *x: Tensor) -> Tensor:
    """The value at x by `native`, and its higher derivatives by `composite`."""
    if may_differentiate(x):
        apply = _Fused.apply if is_compiling() else _apply
        return apply(native, composite, *x)  # type: ignore[return-value]
    return native(*x, False)[0]


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, native: Native, composite: Composite, *x: Tensor) -> Tensor:
        value, ctx.pull, kept = native(*x, True)
        ctx.composite, ctx.count = composite, len(x)
        ctx.save_for_backward(*x, *kept)
        return value

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (g,) = grad_outputs
        if is_compiling() or (is_eager(g) and not torch.is_grad_enabled()):
            gradients = ctx.pull(g, *ctx.saved_tensors)
            return (None, None, *gradients) if isinstance(gradients, tuple) else (None, None, gradients)
        with torch.enable_grad():
            # Views, so that the derivative is by what the composite is given here, and goes on to x.
            x = [v.view_as(v) if v.requires_grad else v.detach().requires_grad_() for v in ctx.saved_tensors[: ctx.count]]
            return None, None, *torch.autograd.grad(ctx.composite(*x), x, g, create_graph=True)


_apply: Callable[..., Tensor] = super(torch.autograd.Function, _Fused).apply  # type: ignore[misc]  # as in autograd.py
