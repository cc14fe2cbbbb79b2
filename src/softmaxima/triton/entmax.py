r"""entmax-α, θ = β = α − 1 ≥ 0, in the variable Λ = −log p_max ∈ [0, log n], in which β = 0 is softmax:

    p = e^{−Λ} ρ^{1/β},  ρ = relu(1 + βz e^{βΛ});    w = p/ρ

Newton's step is on (Σp)^β for β ≤ 1, where that is convex in e^{−βΛ}, and on log Σp for β > 1.

    τ ∂⟨g, p⟩/∂x = s ⊙ (g − Σ s g / Σ s),  s = p^{1 − β}
"""

from __future__ import annotations

import triton
import triton.language as tl

from softmaxima.triton._rows import INFINITY, RowFunctions, add, divide, exp, gap, row_sum
from softmaxima.triton._threshold import Threshold, begin_derivative, begin_rows, finish_derivative, finish_rows, level_of, minus


@triton.jit
def log1p(x):
    """log(1 + x) of numbers a row, in double, without cancellation."""
    whole = 1.0 + x
    return tl.where(whole == 1.0, x, tl.log(whole) * (x / tl.where(whole == 1.0, 1.0, whole - 1.0)))


@triton.jit
def expm1(x):
    """e^x − 1 of numbers a row, in double (Kahan)."""
    power = tl.exp(x)
    plain = power - 1.0
    logarithm = tl.log(tl.where(power == 0.0, 1.0, power))
    near = plain * (x / tl.where(logarithm == 0.0, 1.0, logarithm))
    return tl.where(power == 1.0, x, tl.where(plain == -1.0, -1.0, near))


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
    logarithm = tl.log(u) + tl.where(u > 0.5, divide(below_one - (u - 1.0), u), 0.0)
    is_plain = (beta == 0.0) | (z == 0.0)
    of_beta = tl.where(beta == 0.0, 1.0, beta).to(z.dtype)
    p = exp(tl.where(is_plain, minus(z, level), divide(logarithm, of_beta)))
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
    return root(z, beta, level, u, tl.where(at_edge, u - 1.0, below_one))


@triton.jit
def sums(z, beta, level):
    u, below_one = power(z, beta, level)
    p = root(z, beta, level, u, below_one)
    largest = tl.exp(-beta * level).to(z.dtype)
    w = tl.where(z == 0.0, p, divide(p * largest, tl.where(u <= 0.0, 1.0, u)))
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
    return begin_rows(x, theta, tau, TEMPERED, bracket, sums, step, probability, edges)


@triton.jit
def finish(x, p, g, column, theta, tau, TEMPERED: tl.constexpr, a, b, c, d):
    return finish_rows(x, theta, tau, TEMPERED, a, b, c, probability)


@triton.jit
def depth(b, c, beta):
    level = level_of(b, c)
    of_level = tl.where(beta == 0.0, level, -expm1(-beta * level) / tl.where(beta == 0.0, 1.0, beta))
    return tl.where(b < 0.0, b.to(tl.float64) + 1.0 / tl.where(beta == 0.0, 1.0, beta), of_level)


FORWARD = Threshold(begin=begin, finish=finish, bracket=bracket, sums=sums, step=step, probability=probability, edges=edges)


@triton.jit
def sensitivity(p, theta):
    return tl.where(p == 0.0, 0.0, exp((1.0 - theta).to(p.dtype) * tl.log(tl.where(p == 0.0, 1.0, p))))


@triton.jit
def begin_backward(x, p, g, column, theta, tau, TEMPERED: tl.constexpr):
    return begin_derivative(sensitivity(p, theta), g)


@triton.jit
def finish_backward(x, p, g, column, theta, tau, TEMPERED: tl.constexpr, a, b, c, d):
    return finish_derivative(sensitivity(p, theta), g, a, b)


BACKWARD = RowFunctions(begin_backward, add, finish_backward, is_derivative=True)
