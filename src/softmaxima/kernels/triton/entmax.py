r"""entmax-α, β = α − 1 ≥ 0, in the variable Λ = −log p_max ∈ [0, log n], in which β = 0 is softmax:

    p = e^{−Λ} ρ^{1/β},  ρ = relu(1 + βz e^{βΛ});    w = p/ρ

Newton's step is on (Σp)^β for β ≤ 1, where that is convex in e^{−βΛ}, and on log Σp for β > 1.

    τ ∂⟨g, p⟩/∂x = s ⊙ (g − Σ s g / Σ s),  s = p^{1 − β}

For β > 1 s may be huge, and the difference cancels. With k that has the largest s, and L = log Σ s and μ = the mean of g − g_k over
the others, weighted by s,

    τ ∂⟨g, p⟩/∂x_i = e^L (s_i e^{−L} (g_i − g_k) − s_i/s_k μ q_k),    q_k = s_k / (s_k + e^L)

in which only e^L may be huge, and that is the size of the result.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from softmaxima.kernels.triton.arithmetic import (
    INFINITY,
    LARGEST_FLOAT32,
    LARGEST_FLOAT64,
    divide,
    exp,
    expm1,
    gap,
    log1p,
    row_max,
    row_sum,
)
from softmaxima.kernels.triton.attention_blocks import AttentionFunctions
from softmaxima.kernels.triton.attention_blocks import log1p as log1p_of_float32
from softmaxima.kernels.triton.launches import RowFunctions
from softmaxima.kernels.triton.loss import Loss
from softmaxima.kernels.triton.threshold import Method, Threshold, begin_rows, conjugate_of, finish_rows, level_of, minus

LARGEST_ORDER = tl.constexpr(1e30)


@triton.jit
def order(theta):
    """β = α − 1, in double, NaN below 0; bounded, for p has stopped changing there, and float32 does not overflow."""
    return tl.where(theta[0] < 1.0, float("nan"), tl.minimum(theta[0], LARGEST_ORDER) - 1.0)


@triton.jit
def bracket(count):
    high = tl.log(tl.where(count == 0.0, 1.0, count).to(tl.float64))
    return tl.zeros_like(high), high


@triton.jit
def sum_with(product, factor, factor_low, addend):
    """factor · product + addend with one rounding, both in double where they are one number a row."""
    high = addend.to(product.dtype)
    low = (addend - high.to(tl.float64)).to(product.dtype) + factor_low * product
    return tl.fma(factor + tl.zeros_like(product), product, high + tl.zeros_like(product)) + low


@triton.jit
def power(z, beta, level):
    """u = p^β = βz + e^{−βΛ}, and u − 1 from the same terms."""
    factor = beta.to(z.dtype)
    factor_low = (beta - factor.to(tl.float64)).to(z.dtype)
    finite = tl.where(z == -INFINITY, 0.0, z)
    u = sum_with(finite, factor, factor_low, tl.exp(-beta * level))
    below_one = sum_with(finite, factor, factor_low, expm1(-beta * level))
    return tl.where(z == -INFINITY, 0.0, u), below_one


@triton.jit
def root(z, beta, level, u, below_one):
    """p = u^{1/β}, 0 where u is not positive; u of the maximum may be too small for a number."""
    outside = u <= 0.0
    u = tl.where(outside, 1.0, u)
    logarithm = tl.log(u) + tl.where(u > 0.5, (below_one - (u - 1.0)) / u, 0.0)
    is_plain = (beta == 0.0) | (z == 0.0)
    inverse = 1.0 / tl.where(beta == 0.0, 1.0, beta)
    high = inverse.to(z.dtype)
    low = (inverse - high.to(tl.float64)).to(z.dtype)
    p = exp(tl.where(is_plain, minus(z, level), logarithm * low + logarithm * high))
    return tl.where((outside & (z < 0.0)) | (z == -INFINITY), 0.0, p)


@triton.jit
def probability(z, beta, b, c):
    """At the level b + c; or, where b < 0, p^β = β(z − b) + c^β."""
    at_edge = b < 0.0
    of_edge = tl.where(at_edge & (c > 0.0), tl.exp(beta * tl.log(tl.where(c > 0.0, c, 1.0).to(tl.float64))), 0.0)
    largest = tl.where(at_edge, of_edge - beta * b.to(tl.float64), 1.0)
    level = tl.where(at_edge, -tl.log(largest) / tl.where(at_edge, beta, 1.0), level_of(b, c))
    u, below_one = power(z, beta, level)
    u = tl.where(at_edge, beta.to(z.dtype) * gap(z, b) + of_edge.to(z.dtype), u)
    p = root(z, beta, level, u, tl.where(at_edge, u - 1.0, below_one))
    return tl.where(level == level, p, level.to(z.dtype))  # NaN in a row with +∞


@triton.jit
def sums(z, beta, level):
    u, below_one = power(z, beta, level)
    p = root(z, beta, level, u, below_one)
    largest = tl.exp(-beta * level).to(z.dtype)
    w = tl.where(z == 0.0, p, p * largest / tl.where(u <= 0.0, 1.0, u))
    return row_sum(p).to(tl.float64), row_sum(w).to(tl.float64)


@triton.jit
def edges(z, beta, low, high):
    """Scores whose p^β is little more than the rounding of e^{−βΛ}, which has two terms."""
    u, _ = power(z, beta, low)
    least, _ = power(z, beta, high)
    little = tl.exp(-beta * low) * (2.0**-12 if z.dtype == tl.float64 else 2.0**-28)
    return (u > 0.0) & (least <= little.to(z.dtype)) & (z < 0.0)


@triton.jit
def step(level, mass, slope, beta):
    log_mass = tl.log(tl.where(mass > 0.0, mass, 1.0))
    ascent = mass * log_mass / tl.where(slope == 0.0, 1.0, slope)
    t = -beta * log_mass
    convex = ascent * tl.where(t == 0.0, 1.0, expm1(t) / tl.where(t == 0.0, 1.0, t))
    reach = tl.where(beta == 0.0, 1.0, beta)
    convex = tl.where(beta == 0.0, convex, -log1p(tl.maximum(-beta * convex, -0.999999)) / reach)
    return level + tl.where(beta <= 1.0, convex, ascent)


@triton.jit
def begin(x, p, g, column, theta, tau, TEMPERED: tl.constexpr):
    return begin_rows(x, theta, tau, TEMPERED, Method(order, bracket, sums, step, probability, edges))


@triton.jit
def finish(x, p, g, column, theta, tau, TEMPERED: tl.constexpr, a, b, c, d):
    return finish_rows(x, order(theta), tau, TEMPERED, a, b, c, probability)


FORWARD = Threshold(begin=begin, finish=finish, beside=3, method=Method(order, bracket, sums, step, probability, edges))


@triton.jit
def conjugate(a, b, c, d, theta):
    beta, level = order(theta), level_of(b, c)
    of_beta = tl.where(beta == 0.0, 1.0, beta)
    depth = tl.where(beta == 0.0, level, -expm1(-beta * level) / of_beta)
    return conjugate_of(d, beta, tl.where(b < 0.0, b.to(tl.float64) + 1.0 / of_beta, depth))


@triton.jit
def regulariser(y, theta):
    """y (y^β − 1)/(β(1 + β)), which is y log y at β = 0."""
    beta = order(theta)
    positive = tl.where(y > 0.0, y, 1.0)
    logarithm = tl.log(positive)
    ratio = tl.where(beta == 0.0, logarithm, expm1(beta * logarithm) / tl.where(beta == 0.0, 1.0, beta))
    return tl.where(y > 0.0, positive * ratio / (1.0 + beta), y)


LOSS = Loss(FORWARD, conjugate, regulariser)


# The derivative ---------------------------------------------------------------------------------------------------------------


@triton.jit
def log_ratio(p, reference):
    """log(p/reference): for a float32 near 1 by a series, where tl.log is right in absolute terms alone."""
    ratio = divide(p, reference)
    logarithm = tl.log(tl.where(ratio == 0.0, 1.0, ratio))
    if p.dtype == tl.float32:
        excess = divide(p - reference, reference)
        near = tl.abs(excess) < 0.375
        s = tl.where(near, divide(excess, 2.0 + excess), 0.0)
        square = s * s
        series = 2.0 * s * (1.0 + square * (1.0 / 3.0 + square * (0.2 + square * (1.0 / 7.0 + square / 9.0))))
        logarithm = tl.where(near, series, logarithm)
    return logarithm


@triton.jit
def rank(p, beta):
    """Smaller where s is larger, ∞ outside the support."""
    return tl.where(p > 0.0, tl.where(beta > 1.0, p, -p), INFINITY)


@triton.jit
def log_sensitivity(p, beta):
    """(1 − β) log p of numbers a row, in double; −∞ of 0."""
    positive = p > 0.0
    logarithm = (1.0 - beta) * tl.log(tl.where(positive, p, 1.0).to(tl.float64))
    return tl.where(positive, logarithm, -INFINITY)


@triton.jit
def power_of_ratio(p, reference, beta, offset):
    """(p/reference)^{1 − β} e^offset, at most 1, 0 outside the support."""
    argument = (1.0 - beta).to(p.dtype) * log_ratio(tl.where(p > 0.0, p, 1.0), reference) + offset
    return tl.where(p > 0.0, exp(tl.minimum(argument, 0.0)), tl.where(p == 0.0, 0.0, p))  # NaN stays


@triton.jit
def finite(g):
    """g/4, of which differences have room; of a second derivative it may have been beyond its dtype. NaN stays."""
    largest: tl.constexpr = LARGEST_FLOAT64 if g.dtype == tl.float64 else LARGEST_FLOAT32
    return tl.where(g > largest, largest, tl.where(g < -largest, -largest, g)) * 0.25


@triton.jit
def begin_backward(x, p, g, column, theta, tau, TEMPERED: tl.constexpr):
    """(p_k, g_k, L, μ) of a block, L and μ in double."""
    beta = order(theta)
    g = finite(g)
    ranks = rank(p, beta)
    first = tl.min(ranks, 1)[:, None]
    is_first = ranks == first
    first_g = row_max(tl.where(is_first, g, -INFINITY))
    is_alone = row_sum(is_first.to(tl.float64)) < 1.5
    second = tl.where(is_alone, tl.min(tl.where(is_first, INFINITY, ranks), 1)[:, None], first)
    there = second < INFINITY
    reference = tl.where(there, tl.abs(second), 1.0)
    weight = power_of_ratio(tl.where(is_first & is_alone, 0.0, p), reference, beta, tl.zeros_like(reference))
    total = row_sum(weight.to(tl.float64)) - tl.where(is_alone | (first == INFINITY), 0.0, 1.0)
    shares = weight.to(tl.float64) / tl.where(there, total, 1.0)  # before the product, which may be beyond double
    mean = row_sum(tl.where(weight == 0.0, 0.0, shares * (g - first_g)))
    others = log_sensitivity(tl.where(there, reference, 0.0), beta) + tl.log(tl.where(there, total, 1.0))
    return tl.where(first < INFINITY, tl.abs(first), 0.0), tl.where(first < INFINITY, first_g, 0.0), others, mean


@triton.jit
def merge_backward(is_part, a, b, c, d, theta, tau, TEMPERED: tl.constexpr):
    beta = order(theta)
    ranks = tl.where(is_part, rank(a, beta), INFINITY)
    first = tl.min(ranks, 1)[:, None]
    is_first = ranks == first
    first_g = row_max(tl.where(is_first, b, -INFINITY))
    is_alone = row_sum(is_first.to(tl.float64)) < 1.5
    shift = tl.where(is_part, b, first_g) - first_g
    own = tl.where(ranks < INFINITY, log_sensitivity(a, beta), -INFINITY)
    own = tl.where(is_first & is_alone, -INFINITY, own)
    others = tl.where(is_part, c, -INFINITY)
    largest = tl.maximum(row_max(own), row_max(others))
    there = largest > -INFINITY
    largest = tl.where(there, largest, 0.0)
    of_own, of_others = tl.exp(own - largest), tl.exp(others - largest)
    # Of the first itself, which is not one of the others, the shift is 0.
    itself = tl.where(is_alone | (first == INFINITY), 0.0, tl.exp(tl.minimum(log_sensitivity(tl.abs(first), beta) - largest, 0.0)))
    total = row_sum(of_own) + row_sum(of_others) - itself
    total = tl.where(there, total, 1.0)
    mean = row_sum(of_own / total * shift) + row_sum(tl.where(of_others == 0.0, 0.0, of_others / total * (d + shift)))
    first = tl.where(first < INFINITY, tl.abs(first), 0.0)
    return first, first_g, tl.where(there, largest + tl.log(total), -INFINITY), mean


@triton.jit
def finish_backward(x, p, g, column, theta, tau, TEMPERED: tl.constexpr, a, b, c, d):
    g, beta = finite(g), order(theta)
    first, first_g = a.to(p.dtype), b.to(p.dtype)
    there = c > -INFINITY
    others = tl.where(there, c, 0.0)
    ratio = tl.exp(tl.where(there, others - log_sensitivity(a, beta), 0.0))  # at most n
    center = d / (1.0 + ratio)
    # The reference has nearly the others' s, so that no exponent is a difference of large numbers.
    farthest = 708.0 if p.dtype == tl.float64 else 87.0
    steepness = tl.where(beta == 1.0, 1.0, 1.0 - beta)
    nearly = tl.where(beta == 1.0, 0.0, others / steepness)
    reference = tl.exp(tl.minimum(tl.maximum(nearly, -farthest), 0.0)).to(p.dtype)
    offset = log_sensitivity(reference, beta) - others
    weight = power_of_ratio(p, reference, beta, offset.to(p.dtype))
    own = weight * ((g - first_g) - (ratio * center).to(p.dtype))
    value = tl.where(p == first, weight * (g - first_g) - center.to(p.dtype), own)
    value = tl.where((p == 0.0) | ~there, tl.where(p == p, 0.0, p), value)
    half = tl.exp(tl.minimum(others * 0.5, farthest)).to(p.dtype)
    return value * half * half * 4.0


BACKWARD = RowFunctions(begin_backward, merge_backward, finish_backward, is_derivative=True, wide=True)


# Attention --------------------------------------------------------------------------------------------------------------------


@triton.jit
def exponential(t, beta):
    """relu(1 + βt)^{1/β} = e^{log1p(βt)/β}; s = p/(1 + βt)."""
    t = tl.where(t < -1e30, -1e30, t)  # of which β = 0 has a multiple
    w = beta * t
    p = tl.exp(tl.where(beta == 0.0, t, log1p_of_float32(w) / tl.where(beta == 0.0, 1.0, beta)))
    outside = 1.0 + w <= 0.0
    return tl.where(outside, 0.0, p), tl.where(outside, 0.0, p / tl.where(outside, 1.0, 1.0 + w))


def beta_of(alpha: float | Tensor) -> float | Tensor:
    return (alpha.double() if isinstance(alpha, Tensor) else alpha) - 1.0


ATTENTION = AttentionFunctions(exponential, beta_of)
