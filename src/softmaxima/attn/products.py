r"""Products of probabilities and values that leave out what has no part in them, in every derivative.

    weighted(p, v)_i = Σ_{j: p_ij ≠ 0} p_ij v_j        pairwise(a, b)_ij = ⟨a_i, b_j⟩

A matrix product has 0 · NaN = NaN. Here a key whose p is 0, and a pair whose slope is 0, adds nothing, whatever the other factor
holds. The derivatives of each are made of the two:

    ∂p_ij = ⟨g_i, v_j⟩, 0 where p_ij is 0 and that is not finite,   ∂v = weighted(pᵀ, g)
    ∂a = weighted(g, b),   ∂b = weighted(gᵀ, a)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.differentiable import batch_first, differentiable, forward_mode, primal
from softmaxima.base.tracing import is_concrete, is_exporting_to_onnx, is_recorded, may_differentiate, transforming


def weighted(p: Tensor, v: Tensor) -> Tensor:
    """Σ_j p_j v_j [..., L, E] of the j whose p [..., L, S] is not 0, v [..., S, E]; the axes of the batch broadcast."""
    return _call(_Weighted, p, v)


def pairwise(a: Tensor, b: Tensor) -> Tensor:
    """⟨a_i, b_j⟩ [..., L, S] of a [..., L, E] and b [..., S, E], whose gradient leaves out the pairs with a slope of 0."""
    return _call(_Pairwise, a, b)


def without_hidden(values: Tensor, scores: Tensor) -> Tensor:
    """The values, and 0 where the score is −∞: a map makes all of a row NaN that has one."""
    return values if _is_finite(values) else values.masked_fill(scores == -math.inf, 0.0)


def _call(product: type[_Product], x: Tensor, y: Tensor) -> Tensor:
    if is_exporting_to_onnx():
        return product.forward(x, y)
    if transforming() or is_recorded(x):
        rank = max(x.ndim, y.ndim)  # of both, as vmap needs it
        return product.recorded(*(v[(None,) * (rank - v.ndim)] if v.ndim < rank else v for v in (x, y)))
    return product.reverse(x, y) if may_differentiate((x, y)) else product.forward(x, y)


def _is_finite(x: Tensor) -> bool:
    """Whether all is known to be finite, without waiting for a device."""
    return is_concrete(x) and math.isfinite(x.detach().sum().item())


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    if not torch.is_autocast_enabled(a.device.type):
        return a @ b
    with torch.autocast(a.device.type, enabled=False):
        return a @ b


class _Product(torch.autograd.Function):
    """What both have in common: two factors."""

    recorded: Callable[..., Tensor]  # for recorders and transforms, of factors of one rank
    reverse: Callable[..., Tensor]  # for plain reverse mode

    @staticmethod
    def fake(x: Tensor, y: Tensor, /) -> Tensor:
        raise NotImplementedError

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)


class _Weighted(_Product):
    @staticmethod
    def forward(p: Tensor, v: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        found = _matmul(p, v)
        if _is_finite(found):
            return found
        found = _matmul(p, v.masked_fill(~v.isfinite(), 0.0))
        rising, falling = (v.isnan() | (v == infinity) for infinity in (math.inf, -math.inf))
        counts = _matmul((p != 0).to(v.dtype), torch.cat((rising, falling), -1).to(v.dtype)).chunk(2, -1)
        above, below = (torch.where(count > 0, math.inf, 0.0).to(v.dtype) for count in counts)
        return found + (above - below)  # ∞ − ∞ is NaN

    @staticmethod
    def fake(p: Tensor, v: Tensor) -> Tensor:
        return p @ v

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (g,), (p, v) = grad_outputs, ctx.saved_tensors
        p_needs, v_needs = ctx.needs_input_grad
        dp = _slopes(p, g, v).sum_to_size(p.shape) if p_needs else None
        return dp, weighted(p.transpose(-2, -1), g).sum_to_size(v.shape) if v_needs else None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        dp, dv = tangents
        with forward_mode():
            p, v = (primal(x) for x in ctx.saved_tensors)
            moved = [weighted(*pair) for pair in ((dp, v), (p, dv)) if pair[0] is not None and pair[1] is not None]
            return sum(moved[1:], moved[0])

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
        return weighted(*batch_first(in_dims, args)), 0


def _slopes(p: Tensor, g: Tensor, v: Tensor) -> Tensor:
    """⟨g_i, v_j⟩, 0 where p is 0 and that is not finite."""
    found = pairwise(g, v)
    return found if _is_finite(found) else found.masked_fill((p == 0) & ~found.isfinite(), 0.0)


class _Pairwise(_Product):
    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _matmul(a, b.transpose(-2, -1))

    @staticmethod
    def fake(a: Tensor, b: Tensor) -> Tensor:
        return a @ b.transpose(-2, -1)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (g,), (a, b) = grad_outputs, ctx.saved_tensors
        a_needs, b_needs = ctx.needs_input_grad
        da = weighted(g, b).sum_to_size(a.shape) if a_needs else None
        return da, weighted(g.transpose(-2, -1), a).sum_to_size(b.shape) if b_needs else None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        da, db = tangents
        with forward_mode():
            a, b = (primal(x) for x in ctx.saved_tensors)
            moved = [pairwise(*pair) for pair in ((da, b), (a, db)) if pair[0] is not None and pair[1] is not None]
            return sum(moved[1:], moved[0])

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
        return pairwise(*batch_first(in_dims, args)), 0


def _reverse(product: type[_Product]) -> Callable[..., Tensor]:
    """With the context in `forward`, by the C++ half of `apply` alone: an eager call of `setup_context` costs 0.1 ms."""

    class Reverse(product):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
            ctx.save_for_backward(x, y)
            return product.forward(x, y)

        setup_context = torch.autograd.Function.setup_context

    return super(torch.autograd.Function, Reverse).apply  # type: ignore[misc]


for _each, _name in ((_Weighted, "weighted"), (_Pairwise, "pairwise")):
    _each.recorded, _each.reverse = staticmethod(differentiable(_name, _each)), staticmethod(_reverse(_each))
