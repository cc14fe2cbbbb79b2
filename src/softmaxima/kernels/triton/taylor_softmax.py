r"""taylor_softmax: p = f_k(z)/Σ f_k, f_k(z) = Σ_{m≤k} z^m/m!, θ = k even; in double, for negative scores cancel digits.

    τ ∂⟨g, p⟩/∂x = f_{k−1}(z)/Σ f_k ⊙ (g − ⟨p, g⟩)

Values are of f/S^k with S = max(1, |z|) over the row, so that no power overflows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from softmaxima.kernels.triton.arithmetic import INFINITY, pulled, row_max, row_sum, weighed
from softmaxima.kernels.triton.launches import RowFunctions


@triton.jit
def polynomial(z, scale, order, LOWER: tl.constexpr):
    """f_{k − LOWER}(z)/S^k by Horner in z/S, 0 at −∞."""
    masked = z == -INFINITY
    ratio = tl.where(masked, 0.0, z) / scale
    value = tl.zeros_like(ratio)
    # S^{m−k}/m!, from m = k − LOWER downwards.
    shrink = 1.0 / scale
    coefficient = tl.full(scale.shape, 1.0, tl.float64)
    for m in range(1, order - LOWER + 1):
        coefficient = coefficient / m
    for _power in range(LOWER):
        coefficient = coefficient * shrink
    for m in range(order - LOWER + 1):
        value = value * ratio + coefficient
        coefficient = coefficient * shrink * (order - LOWER - m)
    return tl.where(masked, 0.0, value)


@triton.jit
def wide(x, tau, TEMPERED: tl.constexpr):
    z = x.to(tl.float64)
    if TEMPERED:
        z = z / tau
    return z


@triton.jit
def begin_double(x, theta, tau, TEMPERED: tl.constexpr):
    z = wide(x, tau, TEMPERED)
    scale = tl.maximum(row_max(tl.where(z == -INFINITY, 0.0, tl.abs(z))), 1.0)
    order = tl.max(theta[0]).to(tl.int32)
    f = polynomial(z, scale, order, 0)
    f = tl.where(x == INFINITY, float("nan"), f)
    return scale, row_sum(f)


@triton.jit
def begin(x, p, g, column, theta, tau, TEMPERED: tl.constexpr):
    scale, mass = begin_double(x, theta, tau, TEMPERED)
    return scale, mass, tl.zeros_like(mass), tl.zeros_like(mass)


@triton.jit
def merge(is_part, a, b, c, d, theta, tau, TEMPERED: tl.constexpr):
    scale = row_max(a)
    ratio = (a / scale).to(tl.float64)
    mass = b.to(tl.float64)
    for _power in range(tl.max(theta[0]).to(tl.int32)):
        mass = mass * ratio
    mass = row_sum(tl.where(is_part, mass, 0.0))
    return scale, mass, row_sum(tl.where(is_part, c, 0.0)), row_sum(tl.where(is_part, d, 0.0))


@triton.jit
def finish(x, p, g, column, theta, tau, TEMPERED: tl.constexpr, a, b, c, d):
    order = tl.max(theta[0]).to(tl.int32)
    f = polynomial(wide(x, tau, TEMPERED), a.to(tl.float64), order, 0)
    return f / tl.where(b == 0.0, 1.0, b).to(tl.float64)


FORWARD = RowFunctions(begin, merge, finish)


@triton.jit
def begin_backward(x, p, g, column, theta, tau, TEMPERED: tl.constexpr):
    scale, mass = begin_double(x, theta, tau, TEMPERED)
    dot, large = weighed(p, g)
    return scale, mass, dot, large


@triton.jit
def finish_backward(x, p, g, column, theta, tau, TEMPERED: tl.constexpr, a, b, c, d):
    order = tl.max(theta[0]).to(tl.int32)
    slope = polynomial(wide(x, tau, TEMPERED), a.to(tl.float64), order, 1) / tl.where(b == 0.0, 1.0, b).to(tl.float64)
    return pulled(slope, g, c, d, tl.full(c.shape, 1.0, c.dtype))


BACKWARD = RowFunctions(begin_backward, merge, finish_backward, is_derivative=True)
