"""The one autograd function that evaluates every map, with reverse, forward and double derivatives, vmap and torch.func."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from softmaxima.base.differentiable import batch_first, forward_mode, primal
from softmaxima.base.jacobian import narrowed, of_rows
from softmaxima.base.temperature import over
from softmaxima.base.tracing import is_recorded, may_differentiate, outside_compilers, transforming
from softmaxima.engine.recorded import gradients, recall, record, save
from softmaxima.engine.rowwise import centred, compute, is_rounded_away, jacobian, keeps_scores
from softmaxima.kernels import native

if TYPE_CHECKING:
    from softmaxima.engine.contract import Map
    from softmaxima.kernels.kernel import Theta


def apply(map: Map, *arguments: Any) -> Tensor:
    if transforming():
        return outside_compilers(_TransformableMapFunction.apply)(map, *arguments)
    if not is_recorded(arguments[0]) and may_differentiate(arguments):
        return _apply_reverse(map, *arguments)
    return _MapFunction.forward(map, *arguments)


def evaluate(map: Map, x: Tensor, tau: float | Tensor, where: Tensor | None, params: Sequence[Any]) -> Tensor:
    """p, differentiable."""
    return apply(map, x, tau, where, *params)


class _MapFunction(torch.autograd.Function):
    """p = map(x/τ) along the last axis, with every derivative from the sensitivity."""

    @staticmethod
    def forward(map: Map, x: Tensor, tau: float | Tensor, where: Tensor | None, *params: Any) -> Tensor:
        if is_recorded(x):
            return record(map, x, tau, where, params)
        return compute(map, x, tau, where, params)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        save(ctx, inputs, output)
        ctx.evaluate = evaluate

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        _, _, tau_needs, _, *params_need = ctx.needs_input_grad
        x_grad, tau_grad, *param_grads = gradients(ctx, ctx.saved_tensors, grad_outputs[0], tau_needs, params_need)
        return (None, x_grad, tau_grad, None, *param_grads)


class _ReverseMapFunction(_MapFunction):
    """The same for plain reverse mode, with the context in `forward`: an eager call of `setup_context` costs 0.1 ms."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        map, x, tau, where, *params = inputs
        output = compute(map, x, tau, where, params)
        _MapFunction.setup_context(ctx, inputs, output)
        return output

    setup_context = torch.autograd.Function.setup_context


class _PlainMapFunction(torch.autograd.Function):
    """The same of what `CALLS` takes, plain scores, a plain mask and numbers, with the fewest steps in Python; None of all else."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, plan: tuple[Any, ...]) -> Tensor | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        map, dim, tau, where, _, theta = ctx.plan = plan
        output = native.CALLS.forward(map.kernel.addresses.forward, x, dim, tau, where, theta)
        if output is not None:
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(*((output, x, where) if keeps_scores(map, x.dtype) else (output, None, None)))
        return output

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        g, saved = grad_outputs[0], ctx.saved_tensors
        map, _, tau, _, numbers, theta = ctx.plan
        p, x, mask = saved
        if not (g is None or is_rounded_away(p.dtype) or is_dynamo_compiling() or torch.is_grad_enabled()):
            v = native.CALLS.backward(map.kernel.addresses.backward, p, g, x, tau, mask, theta)
            if v is not None:
                return v, None
        ctx.map, ctx.numbers, ctx.dtype, ctx.evaluate = map, (tau, *numbers), p.dtype, evaluate
        whole = (*saved, *[None] * len(ctx.numbers))
        return gradients(ctx, whole, g, False, [False] * len(numbers))[0], None


# The C++ half of `apply`: the other half is for torch.func, and takes as long again.
_apply_reverse: Callable[..., Tensor] = super(torch.autograd.Function, _ReverseMapFunction).apply  # type: ignore[misc]
_apply_plain: Callable[..., Tensor | None] = super(torch.autograd.Function, _PlainMapFunction).apply  # type: ignore[misc]


def apply_plain(map: Map, x: Tensor, dim: Any, tau: Any, where: Any, numbers: tuple[Any, ...], theta: Theta) -> Tensor | None:
    """What `CALLS` is to compute and autograd to record; None where the arguments are not plain."""
    return _apply_plain(x, (map, dim, tau, where, numbers, theta))


class _TransformableMapFunction(_MapFunction):
    """Adds forward mode and vmap."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _MapFunction.setup_context(ctx, inputs, output)
        ctx.save_for_forward(*ctx.to_save)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        _, dx, dtau, _, *dparams = tangents
        with forward_mode():
            p, z, tau, params = recall(ctx, [None if t is None else primal(t) for t in ctx.saved_tensors])
            moved = torch.zeros_like(p) if dx is None else dx.to(p.dtype)  # τ ∂z
            if dtau is not None:
                moved = moved - centred(ctx.map, z) * dtau
            dp = over(of_rows(jacobian(ctx.map, p, z, params).push, moved), tau)
            for parameter, tangent in zip(ctx.map.params, dparams, strict=True):
                if tangent is not None and parameter.gradient is not None:
                    dp = dp + parameter.gradient(p, z, **params) * tangent
            return narrowed(dp, ctx.dtype)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
        map, x, *rest = batch_first(in_dims, args)
        x = x.expand(info.batch_size, *x.shape[1:])
        return _TransformableMapFunction.apply(map, x, *rest), 0  # type: ignore[return-value]
