"""A map of rows, the axis last, and its derivatives, without autograd: by a kernel where there is one, else by torch's operations.

J, of ∂p/∂z for z = x/τ, is the map's `sensitivity`; ∂⟨g, p⟩/∂x = Jᵀg/τ, and by τ it is −⟨z, Jᵀg⟩/τ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from softmaxima.base.arguments import COMPUTE_DTYPE
from softmaxima.base.jacobian import DiagonalAndProduct, Jacobian, narrowed, of_rows
from softmaxima.base.rows import row_maximum, without_mask
from softmaxima.base.temperature import anchored, is_one, over, tempered
from softmaxima.engine.routing import has_kernel, kernels
from softmaxima.kernels.operations import lying_like

if TYPE_CHECKING:
    from softmaxima.engine.contract import Map


def compute(map: Map, x: Tensor, tau: float | Tensor, where: Tensor | None, params: Sequence[Any]) -> Tensor:
    """p, as a new tensor."""
    if x.numel() == 0:
        return x.clone()
    if has_kernel(map.kernel, x) and (theta := map.kernel.theta(*params)) is not None:
        return kernels(x).forward(map.kernel, x, tau, where, theta)
    p = lying_like(x, compose(map, x, tau, where, params))
    return p.clone() if p._is_view() or p is x else p  # eager autograd takes no views from a function


def compose(map: Map, x: Tensor, tau: float | Tensor, where: Tensor | None, params: Sequence[Any]) -> Tensor:
    """p by torch's operations."""
    z = arguments_of(map, x, tau, where)
    values = [v.to(z.dtype) if isinstance(v, Tensor) else v for v in params]
    return map.forward(z, **named(map, values)).to(x.dtype)


def pull(
    map: Map, p: Tensor, g: Tensor, x: Tensor | None, tau: float | Tensor, where: Tensor | None, params: Sequence[Any]
) -> Tensor:
    """∂⟨g, p⟩/∂x, not to be differentiated itself; x where `keeps_scores` says so."""
    if x is not None and is_rounded_away(p.dtype):
        wide = x.to(COMPUTE_DTYPE[p.dtype])
        scores = wide if map.uses_scores else None
        v = pull(map, compute(map, wide, tau, where, params), read(map, p, g), scores, tau, where, params)
        return narrowed(v, p.dtype)
    if p.numel() > 0 and has_kernel(map.kernel, p, g) and (theta := map.kernel.theta(*params)) is not None:
        return kernels(p).backward(map.kernel, p, g, x, tau, where, theta)
    dtype = COMPUTE_DTYPE[p.dtype]
    values = [v.to(dtype) if isinstance(v, Tensor) else v for v in params]
    z = None if x is None else arguments_of(map, x, tau, where)
    v = of_rows(jacobian(map, p.to(dtype), z, named(map, values)).pull, g.to(dtype))
    return narrowed(over(v, tau), p.dtype)


def is_rounded_away(dtype: torch.dtype) -> bool:
    """Whether p, or log p, is beyond the range of a dtype where its derivative need not be, which is then that of p in float32."""
    return dtype == torch.float16


def read(map: Map, p: Tensor, g: Tensor) -> Tensor:
    """g in the compute dtype; 0 where p was rounded to 0, and g is the slope there of something else, as −log p is."""
    nothing = p == (-math.inf if map.properties.logarithmic else 0.0)
    return g.masked_fill(nothing & ~g.isfinite(), 0.0).to(COMPUTE_DTYPE[p.dtype])


def keeps_scores(map: Map, dtype: torch.dtype) -> bool:
    """Whether the derivative of a map is one of its scores too."""
    return map.uses_scores or is_rounded_away(dtype)


def arguments_of(map: Map, x: Tensor, tau: float | Tensor, where: Tensor | None) -> Tensor:
    """The scores that the map's functions are given: x/τ, up to a constant of the row where that changes nothing."""
    plain = is_one(tau) or not map.properties.shift_invariant
    return tempered(x, tau, where) if plain else anchored(x, tau, where)[1]


def named(map: Map, values: Sequence[Any]) -> dict[str, Any]:
    return {parameter.name: value for parameter, value in zip(map.params, values, strict=True)}


def jacobian(map: Map, p: Tensor, z: Tensor | None, params: dict[str, Any]) -> Jacobian:
    if p.shape[-1] == 0:
        return DiagonalAndProduct(p, p, p)
    return map.jacobian_of(map.sensitivity(p, z, **params))


def centred(map: Map, z: Tensor) -> Tensor:
    """z, less its largest where the slopes v of a row add up to 0: a constant adds nothing but its rounding to ⟨z, v⟩."""
    return without_mask(z - row_maximum(z) if map.properties.locally_shift_invariant else z)
