"""Sums of exponentials that no merge rounds: Σ exp(z_i) = (high + low) · 2^exponent, with 106 bits in high + low.

    exp(z) = exp(z − k log 2) · 2^k,    k = round(z / log 2)

The origin is a power of 2 and not the largest score, so that moving a sum to another origin is exact. Every term is rounded once,
in the same way wherever it comes; sums of the same terms then agree to 2⁻¹⁰⁰ whatever their order, for any number of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from softmaxima.base.error_free import ordered_sum, two_product, two_sum

LOG2_HIGH, LOG2_LOW = 0.6931471805599453, 2.3190468138462996e-17  # log 2 in 106 bits
NOTHING = -1e300  # the exponent of a sum of nothing: below every other, and no infinity, of which differences are NaN
LARGEST = 2.0**60  # beyond it two scores differ by 256 nats or by nothing: no number of terms below the maximum counts
WIDE = np.longdouble  # 64 bits where the processor has them: results near 0 cancel
UNDERFLOW = 2000.0  # a factor of 2^-2000 leaves nothing of a double


class Scaled(NamedTuple):
    """(high + low) · 2^exponent, float64 arrays of one shape."""

    high: np.ndarray
    low: np.ndarray
    exponent: np.ndarray

    @property
    def scaled(self) -> Scaled:
        return self

    def relative_to(self, z: np.ndarray, power: int = 1) -> np.ndarray:
        """The sum over exp(z)^power, 0 over no term, in `WIDE`."""
        return self.over(raised(exponential(z), power))

    def __add__(self, other: Scaled) -> Scaled:  # type: ignore[override]  # a sum of numbers, not of tuples
        exponent = np.maximum(self.exponent, other.exponent)
        first, second = self._at(exponent), other._at(exponent)
        return Scaled(*_add(first.high, first.low, second.high, second.low), exponent)

    def times(self, factor: np.ndarray) -> Scaled:
        """The sum times numbers, exactly to 106 bits."""
        high, low = two_product(self.high, factor)
        return Scaled(*ordered_sum(high, low + self.low * factor), self.exponent)

    def squared(self) -> Scaled:
        """The squares of single terms, to 53 bits of each."""
        high, low = two_product(self.high, self.high)
        return Scaled(high, low, np.where(self.high == 0, NOTHING, 2 * self.exponent))

    def sum(self) -> Scaled:
        """The sum along the last axis, by halves."""
        if self.high.shape[-1] == 0:
            return nothing(self.high.shape[:-1])
        exponent = self.exponent.max(-1, keepdims=True)
        high, low, _ = self._at(exponent)
        while (n := high.shape[-1]) > 1:
            half = n // 2
            odd_high, odd_low = high[..., 2 * half :], low[..., 2 * half :]
            high, low = _add(high[..., :half], low[..., :half], high[..., half : 2 * half], low[..., half : 2 * half])
            if n % 2:
                high, low = np.concatenate((high, odd_high), -1), np.concatenate((low, odd_low), -1)
        return Scaled(high[..., 0], low[..., 0], exponent[..., 0])

    def over(self, unit: Scaled) -> np.ndarray:
        """The sum divided by single terms, 0 over no term, in `WIDE`."""
        no_term = unit.high == 0
        high, low, _ = self._at(np.where(no_term, self.exponent, unit.exponent))
        divisor = np.where(no_term, 1.0, unit.high).astype(WIDE) + unit.low
        return np.where(no_term, 0.0, (high.astype(WIDE) + low) / divisor)

    def _at(self, exponent: np.ndarray) -> Scaled:
        """The same number with another exponent."""
        shift = np.clip(self.exponent - exponent, -UNDERFLOW, UNDERFLOW).astype(np.int32)
        return Scaled(np.ldexp(self.high, shift), np.ldexp(self.low, shift), exponent)


@dataclass(frozen=True, eq=False)
class Product:
    """factor · exp(z)^power of float64 arrays, made a `Scaled` where that is asked for: it takes longer than a short row's sum."""

    z: np.ndarray
    factor: np.ndarray
    power: int = 1

    @cached_property
    def scaled(self) -> Scaled:
        return raised(exponential(self.z), self.power).times(self.factor)

    def relative_to(self, z: np.ndarray, power: int = 1) -> np.ndarray:
        """The product over exp(z)^power, in float64 if z is its own."""
        return self.factor if z is self.z and power == self.power else self.scaled.relative_to(z, power)


def raised(term: Scaled, power: int) -> Scaled:
    """Single terms, or their squares."""
    return term if power == 1 else term.squared()


def nothing(shape: tuple[int, ...]) -> Scaled:
    """Sums of no terms."""
    return Scaled(np.zeros(shape), np.zeros(shape), np.full(shape, NOTHING))


def exponential(z: np.ndarray) -> Scaled:
    """exp(z) for finite z and −∞, one term each."""
    z = np.asarray(z)
    counts = np.abs(z) < LARGEST
    finite = np.where(counts, z, 0.0)
    k = np.rint(finite * (1 / math.log(2)))
    high, low = two_product(k, np.asarray(LOG2_HIGH))
    wide = np.exp((finite - high).astype(WIDE) - (low + k * LOG2_LOW))
    term = wide.astype(np.float64)
    return Scaled(np.where(counts, term, 0.0), np.where(counts, wide - term, 0.0).astype(np.float64), np.where(counts, k, NOTHING))


def _add(a: np.ndarray, a_low: np.ndarray, b: np.ndarray, b_low: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(a + a_low) + (b + b_low) in 106 bits."""
    total, lost = two_sum(a, b)
    return ordered_sum(total, lost + (a_low + b_low))
