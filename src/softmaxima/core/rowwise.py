"""A map of rows, the axis last, and its derivatives, without autograd: by a kernel where there is one, else by torch's operations.

J, of ∂p/∂z for z = x/τ, is the map's `sensitivity`; ∂⟨g, p⟩/∂x = Jᵀg/τ, and by τ it is −⟨z, Jᵀg⟩/τ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from softmaxima.core.arguments import COMPUTE_DTYPE
from softmaxima.core.jacobian import DiagonalAndProduct, Jacobian, jacobian_of, narrowed, of_rows
from softmaxima.core.routing import has_kernel, kernels
from softmaxima.core.rows import row_maximum, without_mask
from softmaxima.core.temperature import anchored, is_one, over, tempered
from softmaxima.kernels.operations import lying_like

if TYPE_CHECKING:
    from softmaxima.core.contract import Map


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
    """∂⟨g, p⟩/∂x, not to be differentiated itself; x where it depends on it."""
    if p.numel() > 0 and has_kernel(map.kernel, p, g) and (theta := map.kernel.theta(*params)) is not None:
        return kernels(p).backward(map.kernel, p, g, x, tau, where, theta)
    dtype = COMPUTE_DTYPE[p.dtype]
    values = [v.to(dtype) if isinstance(v, Tensor) else v for v in params]
    z = None if x is None else arguments_of(map, x, tau, where)
    v = of_rows(jacobian(map, p.to(dtype), z, named(map, values)).pull, g.to(dtype))
    return narrowed(over(v, tau), p.dtype)


def arguments_of(map: Map, x: Tensor, tau: float | Tensor, where: Tensor | None) -> Tensor:
    """The scores that the map's functions are given: x/τ, up to a constant of the row where that changes nothing."""
    plain = is_one(tau) or not map.properties.shift_invariant
    return tempered(x, tau, where) if plain else anchored(x, tau, where)[1]


def named(map: Map, values: Sequence[Any]) -> dict[str, Any]:
    return {parameter.name: value for parameter, value in zip(map.params, values, strict=True)}


def jacobian(map: Map, p: Tensor, z: Tensor | None, params: dict[str, Any]) -> Jacobian:
    if p.shape[-1] == 0:
        return DiagonalAndProduct(p, p, p)
    return jacobian_of(map.sensitivity(p, z, **params))


def centred(map: Map, z: Tensor) -> Tensor:
    """z, less its largest where the slopes v of a row add up to 0: a constant adds nothing but its rounding to ⟨z, v⟩."""
    return without_mask(z - row_maximum(z) if map.properties.locally_shift_invariant else z)
