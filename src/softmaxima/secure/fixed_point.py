r"""Numbers of secret shares: multiples of u = 2^−f, of which products are rounded to a neighbour, off by less than u.

Constants are float64 before they are multiples of u, and what is opened is float64 after: both are in what is stated.

What is computed of n scores in [a, b], and how far off each step is, from which `error` and `softmax_error` are added up:

    M = max x                                 exact: comparisons
    z = (x − M)/2ᵏ + ½ ∈ [−½, ½]              b − a ≤ 2ᵏ
    e = e^{−½} Σ_{j≤m} zʲ/j!, squared k times      e ← e²: an error ε of v becomes 2vε + ε² + u
    S = Σ e ∈ [1, n],  2ⁱ ≤ S < 2ⁱ⁺¹          i from ⌈log₂ n⌉ comparisons at once, 2^−i = 1 − Σ_{l≤i} 2^−l
    s = S 2^−i ∈ [1, 2)
    LSE = M + i log 2 + log s                 log by its Chebyshev series about 3/2
    p = e · (1/s) · 2^−i                      1/s by Newton's steps r ← r(2 − sr)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import cached_property
from typing import Any

import numpy as np

from softmaxima.base.numbers import InputError, as_number, check_int
from softmaxima.base.public import public
from softmaxima.base.unquoted import kind_of

HALF_WIDTH = 17 / 32  # of the interval about 3/2 in which s is, with what S may be off
CELLS = 4096  # in which the error of exp is bounded
CONSTANT = 2.0**-53  # of itself, what a number is off by in float64
SUMMED = 1e-9  # of itself, more than these sums are off by themselves
DIGITS = 50  # of constants before that
FARTHEST = 2.0**32  # bounds
MOST = 2**53  # scores, which float64 counts


@public
@dataclass(frozen=True)
class FixedPoint:
    """Numbers of `bits` fractional bits for n scores in [a, b], with what results may be off.

    Args:
        n: the number of scores of all parties.
        bounds: (a, b): all scores are within. They, n and bits are public.
        bits: f, from 12 to 64.

    Attributes:
        error: |logsumexp − the true one| is at most this, in nats, whatever the scores; about (2ᵏ + 10) 2^−f for b − a ≤ 2ᵏ. What
            is opened is float64, and so are constants: from 48 bits on more bits gain little.
        softmax_error: of every probability; n of them sum to 1 to within n times this.
        spacing: u = 2^−f. argmax is that of scores rounded to it, the first of equals.

    Raises:
        TypeError or ValueError for bounds that are not in order or beyond ±2³², and for too few bits for n and the bounds.

    >>> import softmaxima as sm
    >>> numbers = sm.secure.FixedPoint(n=100, bounds=(-8, 8), bits=32)
    >>> f"{numbers.error:.1e} {numbers.softmax_error:.1e}"
    '4.2e-08 6.0e-08'
    """

    n: int
    bounds: tuple[float, float]
    bits: int = 32

    def __post_init__(self) -> None:
        self._check("FixedPoint")

    def _check(self, name: str) -> None:
        n = check_int(name, "n", self.n, lambda n: 1 <= n <= MOST, "an int from 1 to 2^53")
        bits = check_int(name, "bits", self.bits, lambda bits: 12 <= bits <= 64, "an int from 12 to 64")
        ends = self.bounds if isinstance(self.bounds, (tuple, list)) and len(self.bounds) == 2 else (None, None)
        low, high = (as_number(end) for end in ends)
        if low is None or high is None:
            got = f"({', '.join(map(kind_of, ends))})" if ends != (None, None) else kind_of(self.bounds)
            raise TypeError(f"{name}: bounds must be a pair (a, b) of numbers, got {got}; pass two numbers")
        if not -FARTHEST <= low < high <= FARTHEST:
            raise InputError.of_argument(name, "bounds", f"must be within ±2³² with a < b, got ({low}, {high})")
        for what, value in (("n", n), ("bounds", (low, high)), ("bits", bits)):
            object.__setattr__(self, what, value)
        if self.halvings + 2 > self.bits or self._off >= 1 / 32:
            raise InputError.of_argument(
                name,
                "bits",
                f"must be more for {self.n} scores in [{low}, {high}], got {self.bits}; each doubling of b − a takes one",
            )

    @property
    def spacing(self) -> float:
        return 2.0**-self.bits

    @property
    def halvings(self) -> int:
        """k, the squarings after the series of exp."""
        return max(0, math.ceil(math.log2(self.bounds[1] - self.bounds[0])))

    @property
    def doublings(self) -> int:
        """The largest i."""
        return (self.n - 1).bit_length()

    @property
    def length(self) -> int:
        """All bits of a number, which no step exceeds."""
        largest = max(map(abs, self.bounds)) + math.log(self.n) + 1
        return max(math.ceil(math.log2(largest)), self.halvings, self.doublings + 1) + 3 + self.bits

    @cached_property
    def numbers(self) -> Any:
        """mpyc's type of such numbers.

        Of f bits more than they have: where mpyc 0.11 rounds products in arrays it offsets and masks them by the length of their
        type, as if they had not f bits more before. Then one in 2ˡ⁻ᶠ of the negative ones comes out wrong, and masks are too short.
        """
        from softmaxima.secure.library import runtime

        return runtime().SecFxp(self.length + self.bits, self.bits)

    # Series ---------------------------------------------------------------------------------------------------------------------

    @cached_property
    def exponential_series(self) -> np.ndarray:
        """c_j of e^{−½} zʲ, j ≤ m: as many as leave no more than u/2. Float64, each rounded once."""
        degree = _first(_exponential_remainder, self.spacing / 2)
        with localcontext(prec=DIGITS):
            root = Decimal("-0.5").exp()
            return np.array([float(root / math.factorial(j)) for j in range(degree + 1)])

    @cached_property
    def logarithm_series(self) -> np.ndarray:
        """c_j of (s − 3/2)ʲ: log(3/2 + h w) = log(h/2q) + 2 Σ (−1)^{j+1} qʲ T_j(w)/j, (1 + q²)/2q = 3/2h."""
        degree = _first(_logarithm_remainder, self.spacing / 2)
        with localcontext(prec=DIGITS):
            h = Decimal(HALF_WIDTH)
            r = Decimal("1.5") / h
            q = r - (r * r - 1).sqrt()
            chebyshev = [(h / (2 * q)).ln(), *(-2 * (-q) ** j / j for j in range(1, degree + 1))]
            powers: Any = np.polynomial.chebyshev.cheb2poly(np.array(chebyshev, object))
            return np.array([float(c / h**j) for j, c in enumerate(powers)])

    @property
    def newton_steps(self) -> int:
        """Of 1/s, until another gains nothing."""
        return next(step for step, (now, before) in enumerate(_pairs(self._reciprocal_errors())) if now > before / 2)

    # Errors ---------------------------------------------------------------------------------------------------------------------

    def _series_error(self, c: np.ndarray, largest: float, first: float, remainder: float) -> float:
        """Of Σ c_j zʲ, |z| ≤ largest, from the powers in order, whose first is off by `first`."""
        u, e = self.spacing, {1: first}
        for j in range(2, len(c)):
            a = 1 << (j - 1).bit_length() - 1  # zʲ = zᵃ zʲ⁻ᵃ, a the largest power of 2 below j
            e[j] = largest**a * e[j - a] + largest ** (j - a) * e[a] + e[a] * e[j - a] + u
        own = u / 2 + CONSTANT * np.abs(c)  # what the constants are off by
        inside = sum((abs(c[j]) + own[j]) * e[j] + own[j] * largest**j for j in range(1, len(c)))
        return float(inside + own[0] + u + remainder)

    @cached_property
    def _exponential_errors(self) -> tuple[np.ndarray, np.ndarray]:
        """(v, ε) at the edges of cells of x − M, from the lowest: e^{x − M}, and how far off it is at most."""
        u, k = self.spacing, self.halvings
        d = np.linspace(-(2.0**k) - u, 0, CELLS + 1)  # by u/2 either of two scores is rounded
        c = self.exponential_series
        error = np.full_like(d, self._series_error(c, 0.5 + u, u, _exponential_remainder(len(c) - 1)))
        for step in range(k):
            error = 2 * np.exp(d / 2 ** (k - step)) * error + error**2 + u
        return np.exp(d), error

    @cached_property
    def _off(self) -> float:
        """|S̃/S − 1| at most: one term is that of M, and the worst others are all alike, for which a ratio of sums is largest."""
        v, error = self._exponential_errors
        return float(((error[-1] + (self.n - 1) * error[1:]) / (1 + (self.n - 1) * v[:-1])).max()) * (1 + SUMMED)

    @cached_property
    def error(self) -> float:
        u, opened = self.spacing, CONSTANT * (max(map(abs, self.bounds)) + math.log(self.n))
        if self.n == 1:
            return u / 2 + opened
        c = self.logarithm_series
        logarithm = self._series_error(c, HALF_WIDTH, u, _logarithm_remainder(len(c) - 1))
        twos = self.doublings * (u / 2 + CONSTANT)
        return (u / 2 - math.log1p(-self._off) + logarithm + twos + opened) * (1 + SUMMED)

    @cached_property
    def softmax_error(self) -> float:
        u, off = self.spacing, self._off
        _, error = self._exponential_errors
        reciprocal = list(zip(range(self.newton_steps + 1), self._reciprocal_errors(), strict=False))[-1][1]
        return float(u / 2 + (error[-1] + off) / (1 - off) + 1.1 * reciprocal + 2.2 * u + CONSTANT) * (1 + SUMMED)

    def _reciprocal_errors(self) -> Iterator[float]:
        """|rs − 1| at most, after each step."""
        s = np.array([1.5 - HALF_WIDTH, 1.5, 1.5 + HALF_WIDTH])
        error = float(abs(1 - s * (24 / 17 - 8 / 17 * s)).max()) + 6 * (self.spacing + CONSTANT)
        while True:
            yield error
            error = error**2 + 5 * self.spacing  # two roundings, of s ≤ 2.04 and r ≤ 1.1


def _first(remainder: Any, bound: float) -> int:
    return next(degree for degree in range(1, 200) if remainder(degree) <= bound)


def _exponential_remainder(degree: int) -> float:
    """Of Σ e^{−½} zʲ/j! beyond the degree, |z| ≤ ½ and a little: Lagrange's."""
    return 0.501 ** (degree + 1) / math.factorial(degree + 1)


def _logarithm_remainder(degree: int) -> float:
    q = _ratio()
    return 2 * q ** (degree + 1) / ((degree + 1) * (1 - q))


def _ratio() -> float:
    """q."""
    r = 1.5 / HALF_WIDTH
    return r - math.sqrt(r * r - 1)


def _pairs(errors: Iterator[float]) -> Iterator[tuple[float, float]]:
    """(the next, this one)."""
    before = next(errors)
    for now in errors:
        yield now, before
        before = now


def fixed_point(name: str, n: int, bounds: Any, bits: Any) -> FixedPoint:
    """The `FixedPoint` that a function of this name makes."""
    format = object.__new__(FixedPoint)
    for what, value in (("n", n), ("bounds", bounds), ("bits", bits)):
        object.__setattr__(format, what, value)
    format._check(name)
    return format
