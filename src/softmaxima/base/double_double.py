r"""Arithmetic with pairs of float64 (high, low), |low| ≤ ½ ulp(high), of about 106 bits: sums, products, exp, expm1, log and log1p.

    exp(x) = 2^k 2^{j/64} (1 + expm1(r)),  64 k + j the integer nearest 64 x / log 2,  r = x − (64 k + j) log(2)/64
    log1p(u) = y + (u − expm1(y)) / (1 + u),  y = log1p(u) in float64

Every relative error is below 2^{−96}. Dekker (1971); Knuth, TAOCP 2, 4.2.2; Hida, Li & Bailey (2001).
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from functools import cache

import torch
from torch import Tensor

from softmaxima.base.error_free import ordered_sum, two_product, two_sum

Pair = tuple[Tensor, Tensor]

STEPS = 64
TAIL = range(6, 13)  # the orders of expm1's series that need no low part, for |r| < log(2)/128


def add(a: Pair, b: Pair) -> Pair:
    high, error = two_sum(a[0], b[0])
    low, rest = two_sum(a[1], b[1])
    high, error = ordered_sum(high, error + low)
    return ordered_sum(high, error + rest)


def multiply(a: Pair, b: Pair) -> Pair:
    high, error = two_product(a[0], b[0])
    return ordered_sum(high, error + (a[0] * b[1] + a[1] * b[0]))


def divide(a: Pair, b: Tensor) -> Pair:
    high = a[0] / b
    product, error = two_product(high, b)
    return ordered_sum(high, (((a[0] - product) - error) + a[1]) / b)


def total(a: Pair) -> Pair:
    """The sum along the last axis, in a tree; [..., n] → [..., 1]."""
    high, low = a
    while (n := high.shape[-1]) > 1:
        half = n // 2
        merged = add((high[..., :half], low[..., :half]), (high[..., half : 2 * half], low[..., half : 2 * half]))
        high, low = (torch.cat((s, own[..., 2 * half :]), -1) for s, own in zip(merged, (high, low), strict=True))
    return high, low


def power_of_two(exponent: Tensor) -> Tensor:
    """2^exponent for integers from −1022 to 1023, exactly."""
    return ((exponent + 1023) << 52).view(torch.float64)


def scale(a: Pair, exponent: Tensor) -> Pair:
    """a·2^exponent, 0 where that is below all numbers."""
    bounded = exponent.clamp(-2000, 2000)
    half = bounded >> 1
    first, second = power_of_two(half), power_of_two(bounded - half)
    return a[0] * first * second, a[1] * first * second


def exp(x: Pair) -> tuple[Pair, Tensor]:
    """(m, k) with exp(x) = m·2^k and m in (0.99, 2), for |x| up to 2000."""
    steps = torch.round(x[0] * (STEPS / math.log(2)))
    (powers_high, powers_low), logarithms = _tables(x[0].device)
    place = steps.to(torch.int64)
    power = powers_high[place & (STEPS - 1)], powers_low[place & (STEPS - 1)]
    return add(power, multiply(power, _expm1_near_0(x, steps, logarithms))), place >> int(math.log2(STEPS))


def expm1(x: Pair) -> Pair:
    """exp(x) − 1 for |x| up to 1; near 0 its relative error is as small as elsewhere."""
    steps = torch.round(x[0] * (STEPS / math.log(2)))
    (powers_high, powers_low), logarithms = _tables(x[0].device)
    place = steps.to(torch.int64)
    power = powers_high[place & (STEPS - 1)], powers_low[place & (STEPS - 1)]
    power = scale(power, place >> int(math.log2(STEPS)))
    less_one = add(power, (-torch.ones_like(steps), torch.zeros_like(steps)))
    return add(less_one, multiply(power, _expm1_near_0(x, steps, logarithms)))


def _expm1_near_0(x: Pair, steps: Tensor, logarithms: tuple[float, float, float]) -> Pair:
    """expm1(r), r = x − steps·log(2)/64."""
    first, second, third = logarithms  # a product with the first two is exact
    high, error = two_sum(x[0], -steps * first)
    high, more = two_sum(high, -steps * second)
    r = ordered_sum(high, ((x[1] - steps * third) + error) + more)
    tail = torch.zeros_like(high)
    for order in reversed(TAIL):
        tail = tail * r[0] + 1 / math.factorial(order)
    value = (tail, torch.zeros_like(tail))
    for order in reversed(range(1, TAIL.start)):
        value = multiply(r, value)
        coefficient, lost = _inverse_factorial(order)
        high, error = ordered_sum(torch.full_like(tail, coefficient), value[0])
        value = ordered_sum(high, error + (value[1] + lost))
    return multiply(r, value)


def log1p(u: Pair) -> Pair:
    """log(1 + u) for u in [−½, ½]."""
    y = torch.log1p(u[0])
    high, low = expm1((y, torch.zeros_like(y)))
    distance = add(u, (-high, -low))
    return ordered_sum(y, distance[0] / (1 + u[0]))


def log(x: Tensor) -> Pair:
    """log x of positive numbers; 0 at 1, exactly."""
    mantissa, exponent = torch.frexp(x)
    small = mantissa < math.sqrt(0.5)
    mantissa = torch.where(small, 2 * mantissa, mantissa)
    return add(log1p((mantissa - 1, torch.zeros_like(x))), times_log_2((exponent - small.to(exponent.dtype)).to(x.dtype)))


def times_log_2(exponent: Tensor) -> Pair:
    """exponent·log 2, for integers below 2¹⁷."""
    first, second, third = _tables(exponent.device)[1]
    steps = exponent * STEPS
    high, error = two_sum(steps * first, steps * second)
    return ordered_sum(high, error + steps * third)


# Constants, from their definitions -------------------------------------------------------------------------------------------


@cache
def _tables(device: torch.device) -> tuple[Pair, tuple[float, float, float]]:
    """(2^{j/64} for j < 64 as pairs, log(2)/64 in parts of 32, 32 and 53 bits)."""
    with localcontext() as context:
        context.prec = 60
        step = Decimal(2).ln() / STEPS
        powers = [(step * j).exp() for j in range(STEPS)]
        high = [float(power) for power in powers]
        low = [float(power - Decimal(near)) for power, near in zip(powers, high, strict=True)]
        parts, rest = [], step
        for bits in (38, 70):  # step is below 2^−6
            part = math.floor(rest * 2**bits) / 2**bits
            parts.append(part)
            rest -= Decimal(part)
    tensor = lambda values: torch.tensor(values, dtype=torch.float64, device=device)
    return (tensor(high), tensor(low)), (*parts, float(rest))


@cache
def _inverse_factorial(order: int) -> tuple[float, float]:
    with localcontext() as context:
        context.prec = 60
        exact = 1 / Decimal(math.factorial(order))
        return float(exact), float(exact - Decimal(float(exact)))
