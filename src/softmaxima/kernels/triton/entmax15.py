r"""entmax-1.5: p = relu(z/2 − λ)², with λ ∈ [−1, 0] below half the maximum. Newton's step is on √Σp, which is convex.

τ ∂⟨g, p⟩/∂x = √p ⊙ (g − Σ √p g / Σ √p)
"""

from __future__ import annotations

import triton
import triton.language as tl

from softmaxima.kernels.triton.arithmetic import row_sum
from softmaxima.kernels.triton.attention_blocks import AttentionFunctions
from softmaxima.kernels.triton.launches import RowFunctions
from softmaxima.kernels.triton.loss import Loss
from softmaxima.kernels.triton.rows import add
from softmaxima.kernels.triton.sparsemax import above, bracket, linear
from softmaxima.kernels.triton.threshold import (
    Method,
    Threshold,
    begin_derivative,
    begin_rows,
    conjugate_of,
    finish_derivative,
    finish_rows,
    level_of,
)


@triton.jit
def order(theta):
    """β = ½."""
    return tl.full((1, 1), 0.5, tl.float64)


@triton.jit
def probability(z, beta, b, c):
    root = above(z * 0.5, level_of(b, c))
    return root * root


@triton.jit
def sums(z, beta, level):
    root = above(z * 0.5, level)
    return row_sum(root * root).to(tl.float64), row_sum(root).to(tl.float64)


@triton.jit
def step(level, mass, slope, beta):
    root = tl.sqrt(mass)
    return level + root * (root - 1.0) / tl.where(slope == 0.0, 1.0, slope)


@triton.jit
def begin(x, p, g, column, theta, tau, TEMPERED: tl.constexpr):
    return begin_rows(x, theta, tau, TEMPERED, Method(order, bracket, sums, step, probability, None))


@triton.jit
def finish(x, p, g, column, theta, tau, TEMPERED: tl.constexpr, a, b, c, d):
    return finish_rows(x, order(theta), tau, TEMPERED, a, b, c, probability)


FORWARD = Threshold(begin=begin, finish=finish, method=Method(order, bracket, sums, step, probability))


@triton.jit
def conjugate(a, b, c, d, theta):
    return conjugate_of(d, order(theta), 2.0 * (1.0 + level_of(b, c)))


@triton.jit
def regulariser(y, theta):
    return y * (tl.sqrt(y) - 1.0) / 0.75


LOSS = Loss(FORWARD, conjugate, regulariser)


@triton.jit
def begin_backward(x, p, g, column, theta, tau, TEMPERED: tl.constexpr):
    return begin_derivative(tl.sqrt(p), g)


@triton.jit
def finish_backward(x, p, g, column, theta, tau, TEMPERED: tl.constexpr, a, b, c, d):
    return finish_derivative(tl.sqrt(p), g, a, b, c)


BACKWARD = RowFunctions(begin_backward, add, finish_backward, is_derivative=True)


@triton.jit
def exponential(t, beta):
    """relu(1 + t)² for t in units of 2."""
    s = linear(t)
    return s * s, s


ATTENTION = AttentionFunctions(exponential, lambda: 0.5, unit=0.5)
