r"""sparsemax: p = relu(z − λ), with λ ∈ [−1, 0] below the maximum. On a known support the step of Newton is exact.

τ ∂⟨g, p⟩/∂x = g − mean of g over the support, there; 0 elsewhere
"""

from __future__ import annotations

import triton
import triton.language as tl

from softmaxima.kernels.triton.arithmetic import row_sum
from softmaxima.kernels.triton.attention_blocks import AttentionFunctions
from softmaxima.kernels.triton.launches import RowFunctions
from softmaxima.kernels.triton.loss import Loss
from softmaxima.kernels.triton.rows import add
from softmaxima.kernels.triton.threshold import (
    Method,
    Threshold,
    begin_derivative,
    begin_rows,
    conjugate_of,
    finish_derivative,
    finish_rows,
    level_of,
    minus,
)


@triton.jit
def order(theta):
    """β = 1."""
    return tl.full((1, 1), 1.0, tl.float64)


@triton.jit
def bracket(count):
    high = tl.zeros(count.shape, tl.float64)
    return high - 1.0, high


@triton.jit
def above(z, level):
    """relu(z − level)."""
    excess = minus(z, level)
    return tl.where(excess <= 0.0, 0.0, excess)  # NaN stays


@triton.jit
def probability(z, beta, b, c):
    return above(z, level_of(b, c))


@triton.jit
def sums(z, beta, level):
    p = above(z, level)
    return row_sum(p).to(tl.float64), row_sum((p > 0.0).to(z.dtype)).to(tl.float64)


@triton.jit
def step(level, mass, slope, beta):
    return level + (mass - 1.0) / tl.where(slope == 0.0, 1.0, slope)


@triton.jit
def begin(x, p, g, column, theta, tau, TEMPERED: tl.constexpr):
    return begin_rows(x, theta, tau, TEMPERED, Method(order, bracket, sums, step, probability, None))


@triton.jit
def finish(x, p, g, column, theta, tau, TEMPERED: tl.constexpr, a, b, c, d):
    return finish_rows(x, order(theta), tau, TEMPERED, a, b, c, probability)


FORWARD = Threshold(begin=begin, finish=finish, method=Method(order, bracket, sums, step, probability))


@triton.jit
def conjugate(a, b, c, d, theta):
    return conjugate_of(d, order(theta), 1.0 + level_of(b, c))


@triton.jit
def regulariser(y, theta):
    return y * (y - 1.0) * 0.5


LOSS = Loss(FORWARD, conjugate, regulariser)


@triton.jit
def sensitivity(p):
    return tl.where(p > 0.0, 1.0, p)  # NaN stays


@triton.jit
def begin_backward(x, p, g, column, theta, tau, TEMPERED: tl.constexpr):
    return begin_derivative(sensitivity(p), g)


@triton.jit
def finish_backward(x, p, g, column, theta, tau, TEMPERED: tl.constexpr, a, b, c, d):
    return finish_derivative(sensitivity(p), g, a, b, c)


BACKWARD = RowFunctions(begin_backward, add, finish_backward, is_derivative=True)


@triton.jit
def linear(t):
    """relu(1 + t), which keeps NaN."""
    u = 1.0 + t
    return tl.where(u <= 0.0, 0.0, u)


@triton.jit
def exponential(t, beta):
    p = linear(t)
    return p, sensitivity(p)


ATTENTION = AttentionFunctions(exponential, lambda: 1.0)
