"""How many probes an estimate takes, and the t of its interval: Student's, or that of squares of normal numbers."""

from __future__ import annotations

import math
from functools import cache

import torch

PILOT = 17  # probes before the variance is known: 16 degrees of freedom
CHI_SQUARES = 2**21  # drawn to find a quantile
TAIL = 64  # of the t statistics drawn are beyond it, at least


def enough_probes(spread: float, confidence: float, most: int) -> int:
    """How many make an interval of half width 1 from probes of this spread."""
    count = PILOT
    while count < most:
        needed = math.ceil(min((largest_quantile(confidence, count) * spread) ** 2, most))
        if needed <= count:
            break
        count = min(needed, 2 * _floor_power(count))  # beyond, fewer suffice
    return count


def _floor_power(count: int) -> int:
    return 1 << (count.bit_length() - 1)


def largest_quantile(confidence: float, count: int) -> float:
    """A t that suffices for `count` probes, Student's or that of χ²; +∞ where draws cannot tell it."""
    size = _floor_power(count)
    while size >= PILOT // 2 and (1 - confidence) * (CHI_SQUARES // size) < TAIL:
        size //= 2  # of fewer probes more means are drawn
    if size < PILOT // 2:
        return math.inf
    return max(_quantile_of_squares(confidence, size), student_quantile(confidence, PILOT - 1))


@cache
def _quantile_of_squares(confidence: float, size: int) -> float:
    """The t with P(|T| ≤ t) = confidence for the t statistic T of `size` squares of normal numbers, from draws."""
    draws = CHI_SQUARES // size
    generator = torch.Generator("cpu").manual_seed(0)
    squares = torch.randn(draws, size, dtype=torch.float64, generator=generator, device="cpu").square_()
    statistics = (squares.mean(1) - 1).abs() / squares.std(1) * math.sqrt(size)
    return float(statistics.kthvalue(math.ceil(confidence * draws)).values)


def student_quantile(confidence: float, freedom: int) -> float:
    """The t with P(|T| ≤ t) = confidence for Student's T with an even number ν of degrees of freedom.

    With t = √ν tan θ that probability is sin θ Σ_{j<ν/2} c_j cos^{2j} θ, c_0 = 1, c_j = c_{j−1} (2j − 1)/(2j), which rises with θ.
    """

    def probability(theta: float) -> float:
        term, total = 1.0, 0.0
        for j in range(1, freedom // 2 + 1):
            total += term
            term *= (2 * j - 1) / (2 * j) * math.cos(theta) ** 2
        return math.sin(theta) * total

    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if probability(middle) < confidence else (low, middle)
    return math.sqrt(freedom) * math.tan(high)
