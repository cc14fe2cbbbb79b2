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

from softmaxima._map import Map, batch_first, forward_mode, may_differentiate, primal, transforming


def envelope(map: Map, value: Tensor, x: Tensor, p: Tensor | None, params: Mapping[str, Any]) -> Tensor:
    """`value` [rows, 1] of `x` [rows, n], with p as its gradient.

    Where p is None, it is `map.forward(x)` when it is needed; then torch must be able to differentiate that, as it can for softmax.
    """
    if not (transforming() or may_differentiate((x, p, *params.values()))):
        return value.detach()
    function = _Envelope if torch.compiler.is_compiling() else _EagerEnvelope
    return function.apply(map, value.detach(), x, p, *params.values())  # type: ignore[return-value]


class _Envelope(torch.autograd.Function):
    @staticmethod
    def forward(map: Map, value: Tensor, x: Tensor, p: Tensor | None, *params: Any) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        map, value, x, p, *params = inputs
        tensors = (x if p is None else None, p, *(v if isinstance(v, Tensor) else None for v in params))
        ctx.map = map
        ctx.dtype = value.dtype
        ctx.numbers = tuple(None if isinstance(v, Tensor) else v for v in params)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (g,) = grad_outputs
        if g is None:
            return (None,) * (4 + len(ctx.numbers))
        map, p, params = _recall(ctx, ctx.saved_tensors)
        grads = [
            (-g * parameter.regulariser_gradient(p, **params)).sum_to_size(params[parameter.name].shape)
            if needs and parameter.regulariser_gradient is not None
            else None
            for parameter, needs in zip(map.params, ctx.needs_input_grad[4:], strict=True)
        ]
        return (None, None, (g * p).to(p.dtype), None, *grads)


class _EagerEnvelope(_Envelope):
    """Adds forward mode and vmap, which torch.compile does not take in an autograd function."""

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        _, _, dx, _, *dparams = tangents
        with forward_mode():
            map, p, params = _recall(ctx, [None if t is None else primal(t) for t in ctx.saved_tensors])
            dv = torch.zeros_like(p[..., :1]) if dx is None else (p * dx).sum(-1, keepdim=True)
            for parameter, tangent in zip(map.params, dparams, strict=True):
                if tangent is not None and parameter.regulariser_gradient is not None:
                    dv = dv - parameter.regulariser_gradient(p, **params) * tangent
            return dv.to(ctx.dtype)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
        map, value, x, *rest = batch_first(in_dims, args)
        value, x = (t.expand(info.batch_size, *t.shape[1:]) for t in (value, x))
        return _EagerEnvelope.apply(map, value, x, *rest), 0  # type: ignore[return-value]


def _recall(ctx: Any, tensors: Any) -> tuple[Map, Tensor, dict[str, Any]]:
    x, p, *values = tensors
    params = {
        parameter.name: number if value is None else value
        for parameter, value, number in zip(ctx.map.params, values, ctx.numbers, strict=True)
    }
    return ctx.map, ctx.map.forward(x, **params) if p is None else p, params
