"""The kernels as registered operations, which torch.compile takes into its graph without looking inside.

A compiler is told how their results lie: as those of the kernels that it calls do outside of compilers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.tracing import constant_when_compiled, operation
from softmaxima.kernels import native
from softmaxima.kernels.devices import library
from softmaxima.kernels.kernel import KERNELS, Kernel, Theta
from softmaxima.kernels.layout import layout_of


def logsumexp(x: Tensor, tau: float | Tensor, where: Tensor | None, *, wide: bool) -> tuple[Tensor, Tensor]:
    return _logsumexp(x, *_split(tau), where)


def logsumexp_backward(x: Tensor, states: Tensor, g: Tensor, tau: float | Tensor, where: Tensor | None) -> Tensor:
    return _logsumexp_backward(x, states, g, *_split(tau), where)


def logcumsumexp(x: Tensor, tau: float | Tensor, where: Tensor | None, *, wide: bool) -> tuple[Tensor, Tensor]:
    return _logcumsumexp(x, *_split(tau), where)


def logcumsumexp_backward(x: Tensor, states: Tensor, g: Tensor, tau: float | Tensor, where: Tensor | None) -> Tensor:
    return _logcumsumexp_backward(x, states, g, *_split(tau), where)


def loss(
    kernel: Kernel, x: Tensor, target: Tensor, *, theta: Theta, gradient: bool, **options: Any
) -> tuple[Tensor, Tensor | None]:
    tensors = [value for value in theta if isinstance(value, Tensor)]
    numbers = [math.nan if isinstance(value, Tensor) else float(value) for value in theta]
    values, slope = _loss(kernel.key, x, target, gradient, tensors, numbers, **options)
    return values, slope if gradient else None


def new_like(x: Tensor) -> Tensor:
    """A new tensor that lies as what the kernels of its device compute of the rows x [..., n]."""
    return x.new_empty(x.shape) if _by_triton(x.device.type) else layout_of(x).empty(x)


def lying_like(x: Tensor, y: Tensor) -> Tensor:
    """y, of x's shape, copied if it does not lie as `new_like(x)` does; as it is for `torch.jit.trace`, whose sizes may change."""
    if torch._C._get_tracing_state() is not None:
        return y
    return y.contiguous() if _by_triton(x.device.type) else layout_of(x).laid_out(y)


@constant_when_compiled
def _by_triton(device_type: str) -> bool:
    return library(device_type) not in (None, native)


def _split(value: float | Tensor) -> tuple[Tensor | None, float]:
    """A number or a tensor as the two arguments that an operation can have for it."""
    return (value, 0.0) if isinstance(value, Tensor) else (None, value)


def _join(tensor: Tensor | None, number: float) -> float | Tensor:
    return number if tensor is None else tensor


def join(tensors: Sequence[Tensor], numbers: Sequence[float]) -> list[Any]:
    """The numbers, with the tensors where they are NaN: several values as two arguments of an operation."""
    rest = iter(tensors)
    return [next(rest) if number != number else number for number in numbers]


@operation("logsumexp")
def _logsumexp(x: Tensor, taus: Tensor | None, tau: float, where: Tensor | None) -> tuple[Tensor, Tensor]:
    return library(x.device.type).logsumexp(x, _join(taus, tau), where, wide=True)  # type: ignore[return-value]


@_logsumexp.register_fake
def _(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape[:-1]), x.new_empty((2, *x.shape[:-1]), dtype=torch.float64)


@operation("logsumexp_backward")
def _logsumexp_backward(x: Tensor, states: Tensor, g: Tensor, taus: Tensor | None, tau: float, where: Tensor | None) -> Tensor:
    return library(x.device.type).logsumexp_backward(x, states, g, _join(taus, tau), where)


@_logsumexp_backward.register_fake
def _(x: Tensor, *_: Any) -> Tensor:
    return new_like(x)


@operation("logcumsumexp")
def _logcumsumexp(x: Tensor, taus: Tensor | None, tau: float, where: Tensor | None) -> tuple[Tensor, Tensor]:
    return native.logcumsumexp(x, _join(taus, tau), where, wide=True)  # type: ignore[return-value]


@_logcumsumexp.register_fake
def _(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return new_like(x), x.new_empty((2, x.numel()), dtype=torch.float64)


@operation("logcumsumexp_backward")
def _logcumsumexp_backward(x: Tensor, states: Tensor, g: Tensor, taus: Tensor | None, tau: float, where: Tensor | None) -> Tensor:
    return native.logcumsumexp_backward(x, states, g, _join(taus, tau), where)


@_logcumsumexp_backward.register_fake
def _(x: Tensor, *_: Any) -> Tensor:
    return new_like(x)


@operation("loss")
def _loss(
    key: str,
    x: Tensor,
    target: Tensor,
    gradient: bool,
    tensors: Sequence[Tensor],
    numbers: Sequence[float],
    class_weight: Tensor | None,
    smoothing: float,
    scale: float,
    fenchel: bool,
) -> tuple[Tensor, Tensor]:
    values, slope = library(x.device.type).loss(
        KERNELS[key],
        x,
        target,
        theta=join(tensors, numbers),
        class_weight=class_weight,
        smoothing=smoothing,
        scale=scale,
        fenchel=fenchel,
        gradient=gradient,
    )
    return values, x.new_empty(0) if slope is None else slope


@_loss.register_fake
def _(key: str, x: Tensor, target: Tensor, gradient: bool, *_: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape[:-1], dtype=torch.float64), new_like(x) if gradient else x.new_empty(0)
