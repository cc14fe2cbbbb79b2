"""A map as the operations that recorders see, `softmaxima::map` and `softmaxima::map_backward`, and its reverse derivative.

τ and the parameters come as numbers, a NaN among them for the next of the tensors. An operation knows its map by a key, so that a
graph which was saved finds it in a new process.
"""

from __future__ import annotations

import contextlib
import importlib
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from softmaxima.base.arguments import COMPUTE_DTYPE
from softmaxima.base.differentiable import batch_first, differentiable
from softmaxima.base.jacobian import narrowed, of_rows, product
from softmaxima.base.temperature import over
from softmaxima.base.tracing import is_exporting_to_onnx, is_recorded, operation
from softmaxima.engine.rowwise import (
    arguments_of,
    centred,
    compose,
    compute,
    is_rounded_away,
    jacobian,
    keeps_scores,
    named,
    pull,
    read,
)
from softmaxima.kernels.operations import join, lying_like, new_like

if TYPE_CHECKING:
    from softmaxima.engine.contract import Map


BY_KEY: WeakValueDictionary[str, Map] = WeakValueDictionary()  # registered or not


def remember(map: Map) -> str:
    """The key of a new map."""
    key = place = f"{map.reference.__module__}:{map.name}"
    n = 1
    while key in BY_KEY:
        key, n = f"{place} #{n + 1}", n + 1
    BY_KEY[key] = map
    return key


def find_keyed(key: str) -> Map:
    """The map, also in a new process that has loaded a graph."""
    if key not in BY_KEY:
        with contextlib.suppress(ImportError):
            importlib.import_module(key.partition(":")[0])
    if key not in BY_KEY:
        raise KeyError(f"there is no map {key!r}; define it before the graph that has it runs")
    return BY_KEY[key]


def record(map: Map, x: Tensor, tau: float | Tensor, where: Tensor | None, params: Sequence[Any]) -> Tensor:
    """p as an operation that a recorder keeps; by torch's own for ONNX, and where a parameter is no number and no word."""
    if is_exporting_to_onnx():
        return compose(map, x, tau, where, params)
    coded = encode(map, tau, params)
    return lying_like(x, compose(map, x, tau, where, params)) if coded is None else _recorded(map.key, x, where, *coded)


def encode(map: Map, tau: float | Tensor, params: Sequence[Any]) -> tuple[list[Tensor], list[float]] | None:
    """(tensors, numbers); what is no number is its place among the examples and others."""
    tensors: list[Tensor] = []
    numbers: list[float] = []
    for value, parameter in zip((tau, *params), (None, *map.params), strict=True):
        if isinstance(value, Tensor):
            tensors.append(value)
            numbers.append(math.nan)
        elif parameter is None or parameter.kind in (float, int):
            numbers.append(float(value))
        elif isinstance(value, (str, tuple)) and value in (known := parameter.examples + parameter.others):
            numbers.append(float(known.index(value)))
        else:
            return None
    return tensors, numbers


def decode(map: Map, tensors: Sequence[Tensor], numbers: Sequence[float]) -> list[Any]:
    """[τ, parameters…]."""
    values = join(tensors, numbers)
    for i, parameter in enumerate(map.params, 1):
        if parameter.kind in (str, object):
            values[i] = (parameter.examples + parameter.others)[int(values[i])]
        elif parameter.kind is int:
            values[i] = int(values[i])
    return values


@operation("map")
def _recorded(key: str, x: Tensor, where: Tensor | None, tensors: Sequence[Tensor], numbers: Sequence[float]) -> Tensor:
    map = find_keyed(key)
    tau, *params = decode(map, tensors, numbers)
    return lying_like(x, compute(map, x, tau, where, params))


@_recorded.register_fake
def _(key: str, x: Tensor, *_: Any) -> Tensor:
    return new_like(x)


@_recorded.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
    key, x, where, tensors, numbers = args
    x, where, *tensors = batch_first((*in_dims[1:3], *in_dims[3]), (x, where, *tensors))
    return _recorded(key, x.expand(info.batch_size, *x.shape[1:]), where, tensors, numbers), 0


@operation("map_backward")
def _recorded_pull(
    key: str, p: Tensor, g: Tensor, x: Tensor | None, where: Tensor | None, tensors: Sequence[Tensor], numbers: Sequence[float]
) -> Tensor:
    map = find_keyed(key)
    tau, *params = decode(map, tensors, numbers)
    return lying_like(p, pull(map, p, g, x, tau, where, params))


@_recorded_pull.register_fake
def _(key: str, p: Tensor, *_: Any) -> Tensor:
    return new_like(p)


@_recorded_pull.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
    key, *rows, tensors, numbers = args
    p, g, x, where, *tensors = batch_first((*in_dims[1:5], *in_dims[5]), (*rows, *tensors))
    p, g, x = (None if v is None else v.expand(info.batch_size, *v.shape[1:]) for v in (p, g, x))
    return _recorded_pull(key, p, g, x, where, tensors, numbers), 0


# The derivative ----------------------------------------------------------------------------------------------------------------


def save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Keep what `gradients` needs, of the inputs (map, x, τ, mask, parameters…)."""
    map, x, tau, where, *params = inputs
    learns = isinstance(tau, Tensor) or any(isinstance(v, Tensor) for v in params)
    keep = (output, x, where) if keeps_scores(map, x.dtype) or learns else (output, None, None)
    ctx.map = map
    ctx.numbers = tuple(None if isinstance(v, Tensor) else v for v in (tau, *params))
    ctx.dtype = x.dtype
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*keep, *(v if isinstance(v, Tensor) else None for v in (tau, *params)))


def recall(ctx: Any, saved: Sequence[Tensor | None]) -> tuple[Tensor, Any, float | Tensor, dict[str, Any]]:
    """(p, z, τ, parameters) in the compute dtype, differentiable where the saved tensors are."""
    p, x, where, *tensors = saved
    dtype = COMPUTE_DTYPE[ctx.dtype]
    tau, *values = (n if t is None else t.double() for t, n in zip(tensors, ctx.numbers, strict=True))
    values = [v.to(dtype) if isinstance(v, Tensor) else v for v in values]
    if x is None:
        return p.to(dtype), None, tau, named(ctx.map, values)  # type: ignore[union-attr]
    if is_rounded_away(ctx.dtype):
        x = _widened(x)
        p = ctx.evaluate(ctx.map, x, tau, where, values)
    return p.to(dtype), arguments_of(ctx.map, x, tau, where), tau, named(ctx.map, values)  # type: ignore[union-attr]


class _Widened(torch.autograd.Function):
    """float16 as float32, whose gradient is the largest number of float16 where only that makes it infinite."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.float()

    @staticmethod
    def fake(x: Tensor) -> Tensor:
        return x.new_empty(x.shape, dtype=torch.float32)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        return narrowed(grad_outputs[0], torch.float16)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return tangents[0].float()

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
        return _widened(*batch_first(in_dims, args)), 0


_widened = differentiable("widened", _Widened)


def gradients(
    ctx: Any, saved: Sequence[Any], g: Tensor | None, tau_needs: bool, params_need: Sequence[bool]
) -> list[Tensor | None]:
    """∂⟨g, p⟩ by x, τ and each parameter; by torch's operations where more is asked than a kernel has.

    `saved` is read off ctx once: what a checkpoint recomputes, it recomputes for one reading.
    """
    map: Map = ctx.map
    if g is None:
        return [None] * (2 + len(map.params))
    if not (tau_needs or any(params_need) or torch.is_grad_enabled()):
        p, x, where, *tensors = saved
        tau, *params = (n if t is None else t for t, n in zip(tensors, ctx.numbers, strict=True))
        coded = encode(map, tau, params) if is_recorded(g) else None
        x = x if keeps_scores(map, ctx.dtype) else None
        pulled = pull(map, p, g, x, tau, where, params) if coded is None else _recorded_pull(map.key, p, g, x, where, *coded)
        return [pulled, *[None] * (1 + len(params))]
    wide = read(map, saved[0], g) if is_rounded_away(ctx.dtype) else g
    p, z, tau, values = recall(ctx, saved)
    v = over(of_rows(jacobian(map, p, z, values).pull, wide.to(p.dtype)), tau)
    grads: list[Tensor | None] = [narrowed(v, ctx.dtype)]
    grads.append(_to_shape(-centred(map, z) * v, tau) if isinstance(tau, Tensor) and tau_needs else None)
    for parameter, needs in zip(map.params, params_need, strict=True):
        if needs and parameter.gradient is not None:
            largest = torch.finfo(p.dtype).max  # of a second derivative g may be beyond its dtype, and sums of infinities are NaN
            slopes = product(parameter.gradient(p, z, **values), g.double().clamp(-largest, largest))
            grads.append(_to_shape(slopes, values[parameter.name]))
        else:
            grads.append(None)
    return grads


def _to_shape(gradient: Tensor, value: Tensor) -> Tensor:
    return gradient.sum_to_size(value.shape).to(value.dtype)


def _set_up(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    key, x, where, tensors, numbers = inputs
    map = find_keyed(key)
    tau, *params = decode(map, tensors, numbers)
    save(ctx, (map, x, tau, where, *params), output)
    ctx.evaluate = record


def _backward(ctx: Any, g: Tensor | None) -> Any:
    tensors_need = iter(ctx.needs_input_grad[3])
    tau_needs, *params_need = (number is None and next(tensors_need) for number in ctx.numbers)
    x_grad, *others = gradients(ctx, ctx.saved_tensors, g, tau_needs, params_need)
    return None, x_grad, None, [grad for grad, number in zip(others, ctx.numbers, strict=True) if number is None], None


_recorded.register_autograd(_backward, setup_context=_set_up)
