"""Values whose gradient is a map: logsumexp, and the conjugates under every Fenchel–Young loss.

By the envelope theorem V(x, θ) = max_{p∈Δ} ⟨p, x⟩ − Ω_θ(p) has

    ∂V/∂x = p = map(x)        ∂V/∂θ = −∂Ω_θ(p)/∂θ  at fixed p

so that only the value and the map are needed, and the map's own derivative makes the second order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.differentiable import batch_first, differentiable, forward_mode, primal
from softmaxima.base.tracing import is_exporting_to_onnx, is_recorded, may_differentiate, transforming
from softmaxima.engine.contract import Map


def envelope(
    map: Map, value: Tensor, x: Tensor, p: Tensor | None, params: Mapping[str, Any], slope: Tensor | None = None
) -> Tensor:
    """`value` [rows, 1] of `x` [rows, n], with p as its gradient, or the `slope` that is given.

    Where p is None, it is `map.forward(x)` when it is needed; then torch must be able to differentiate that, as it can for softmax.
    """
    value = value.detach()
    if not (transforming() or is_recorded(x) or may_differentiate((x, p, *params.values()))):
        return value
    if p is None:
        p = map.forward(x, **params)
    value = with_slope(value, x, p if slope is None else slope)
    for parameter in map.params:
        theta = params[parameter.name]
        if isinstance(theta, Tensor) and parameter.regulariser_gradient is not None:
            value = with_slope(value, theta, -parameter.regulariser_gradient(p, **params))
    return value


def with_slope(value: Tensor, x: Tensor, slope: Tensor) -> Tensor:
    """`value` [rows, 1], whose derivative by x [rows, n] is `slope` [rows, n] beside what it has itself; x may broadcast."""
    return value if is_exporting_to_onnx() else _with_slope(value, x, slope)


class _WithSlope(torch.autograd.Function):
    @staticmethod
    def forward(value: Tensor, x: Tensor, slope: Tensor) -> Tensor:
        return value.clone(memory_format=torch.contiguous_format)

    @staticmethod
    def fake(value: Tensor, x: Tensor, slope: Tensor) -> Tensor:
        return value.new_empty(value.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, x, slope = inputs
        ctx.shape, ctx.dtype = x.shape, x.dtype
        ctx.save_for_backward(slope)
        ctx.save_for_forward(slope)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (g,), (slope,) = grad_outputs, ctx.saved_tensors
        return g, (g * slope).sum_to_size(ctx.shape).to(ctx.dtype), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        of_value, of_x, _ = tangents
        with forward_mode():
            (slope,) = (primal(t) for t in ctx.saved_tensors)
            if of_x is None:
                return of_value
            change = (slope * of_x).sum(-1, keepdim=True)
            return change if of_value is None else of_value + change

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
        value, x, slope = batch_first(in_dims, args)
        return with_slope(value.expand(info.batch_size, *value.shape[1:]), x, slope), 0


_with_slope = differentiable("with_slope", _WithSlope)
