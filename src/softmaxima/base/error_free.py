"""Sums and products of two float64 numbers without error, as the nearest number and what it lost; of arrays and of tensors.

Dekker (1971); Knuth, TAOCP 2, 4.2.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from softmaxima.base.arguments import Array

SPLIT = 2.0**27 + 1


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b, exactly."""
    high = a + b
    part = high - a
    return high, (a - (high - part)) + (b - part)


def ordered_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b, exactly, where |a| ≥ |b| or a = 0."""
    high = a + b
    return high, b - (high - a)


def two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """a·b, exactly, for factors below 2⁹⁹⁶ and products above 2⁻⁹⁶⁸."""
    product = a * b
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _halves(a: Array) -> tuple[Array, Array]:
    scaled = SPLIT * a
    high = scaled - (scaled - a)
    return high, a - high
