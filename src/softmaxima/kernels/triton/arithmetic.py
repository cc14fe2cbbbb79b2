"""Arithmetic of kernels: exponentials, sums of rows, quotients, derivatives within their dtype."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from softmaxima.base import rows as of_rows

INFINITY = tl.constexpr(float("inf"))
MOST_P = tl.constexpr(of_rows.MOST_P)
LARGEST_FLOAT64 = tl.constexpr(torch.finfo(torch.float64).max)
LARGEST_FLOAT32 = tl.constexpr(torch.finfo(torch.float32).max)
LARGEST_BFLOAT16 = tl.constexpr(torch.finfo(torch.bfloat16).max)
LARGEST_FLOAT16 = tl.constexpr(torch.finfo(torch.float16).max)
LARGE_FLOAT64, SHRINK_FLOAT64 = tl.constexpr(2.0**900), tl.constexpr(2.0**-100)  # slopes, and what gives sums of them room
LARGE_FLOAT32, SHRINK_FLOAT32 = tl.constexpr(2.0**100), tl.constexpr(2.0**-24)
LOG2_E = tl.constexpr(1.4426950408889634)
LOG2_E_LOW = tl.constexpr(1.925963033500e-8)  # LOG2_E less its rounding to float32
LOG_2 = tl.constexpr(0.6931471805599453)
TINY, HUGE = tl.constexpr(2.0**-126), tl.constexpr(2.0**127)  # float32 has them


@triton.jit
def exp(x):
    """e^x to 2 ulp: 2^t for the rounded t = x log₂e, times what rounding t lost. −∞ and below −200 give 0."""
    if x.dtype == tl.float64:
        power = tl.exp(x)
    else:
        x = tl.maximum(x, -200.0, propagate_nan=tl.PropagateNan.ALL)  # x·LOG2_E − t is NaN at −∞
        t = x * LOG2_E
        lost = tl.fma(x, tl.full(x.shape, LOG2_E, tl.float32), -t) + x * LOG2_E_LOW
        power = tl.exp2(t)
        power += power * (lost * LOG_2)
    return power


@triton.jit
def row_max(x):
    """[R, B] → [R, 1]; NaN may be taken for nothing."""
    return tl.max(x, 1)[:, None]


@triton.jit
def row_sum(x):
    return tl.sum(x, 1)[:, None]


@triton.jit
def divide(a, b):
    """a/b, rounded to nearest."""
    if a.dtype == tl.float64:
        quotient = a / b
    else:
        quotient = tl.div_rn(a, b + tl.zeros_like(a))
    return quotient


@triton.jit
def over(x, tau, TEMPERED: tl.constexpr):
    """x/τ; float32 takes a τ beyond its numbers for the nearest of them."""
    if TEMPERED:
        if x.dtype == tl.float32:
            tau = tl.minimum(tl.maximum(tau, TINY), HUGE)
        x = divide(x, tau.to(x.dtype))
    return x


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
def gap(x, maximum):
    """x − M: exact before the temperature divides it; −∞ in a row without scores, NaN of +∞."""
    return x - tl.where(maximum == -INFINITY, 0.0, maximum)


@triton.jit
def inverse(mass):
    """1/mass, 1 for 0."""
    return divide(tl.full(mass.shape, 1.0, mass.dtype), tl.where(mass == 0.0, 1.0, mass))


@triton.jit
def narrowed(value, tau, TEMPERED: tl.constexpr, dtype: tl.constexpr):
    """value/τ, and the largest number of the dtype where that is more. In double, for τ may be beyond float32."""
    quotient = value
    if TEMPERED:
        quotient = value.to(tl.float64) / tau
    if dtype == tl.float64:
        bound: tl.constexpr = LARGEST_FLOAT64
    elif dtype == tl.float32:
        bound: tl.constexpr = LARGEST_FLOAT32
    elif dtype == tl.bfloat16:
        bound: tl.constexpr = LARGEST_BFLOAT16
    else:
        bound: tl.constexpr = LARGEST_FLOAT16
    return tl.where(quotient > bound, bound, tl.where(quotient < -bound, -bound, quotient))


@triton.jit
def weighed(s, g):
    """(Σ s g of moderate g, Σ s g of large ones, shrunk); where s is 0, g is not read."""
    limit: tl.constexpr = LARGE_FLOAT64 if g.dtype == tl.float64 else LARGE_FLOAT32
    shrink: tl.constexpr = SHRINK_FLOAT64 if g.dtype == tl.float64 else SHRINK_FLOAT32
    is_large = tl.abs(g) > limit
    moderate = row_sum(tl.where((s == 0.0) | is_large, 0.0, s * g))
    return moderate, row_sum(tl.where((s == 0.0) | ~is_large, 0.0, s * (g * shrink)))


@triton.jit
def pulled(s, g, moderate, large, total):
    """s (g − mean), the mean that of `weighed` over a total; where s is 0 it is 0, whatever g is."""
    shrink: tl.constexpr = SHRINK_FLOAT64 if g.dtype == tl.float64 else SHRINK_FLOAT32
    plain = s * (g - divide(moderate, total))
    shrunk = s * (g * shrink - divide(moderate * shrink + large, total)) * (1.0 / shrink)
    return tl.where(s == 0.0, 0.0, tl.where(large == 0.0, plain, shrunk))
