r"""Confidence limits for the mean of non-negative draws: two that hold at any sample size, and some that hold in the limit.

Draws y_1 … y_m in [0, 1] have the mean μ, each given those before it. With bets λ_t that depend on earlier draws only,

    K_m(μ) = Π_t (1 + λ_t (y_t − μ))        is a martingale that starts at 1,  so P(K ever reaches 2/δ) ≤ δ/2.

The μ for which K stays below are a confidence sequence: its coverage is at least 1 − δ however the moment to stop is chosen.
Where the mean moves from draw to draw but not from round to round (strata), log(1 + ξ) ≥ ξ − ψ(λ)·(ξ/λ)² with ξ ≥ −λ and
ψ(λ) = −log(1 − λ) − λ makes the exponent linear in the means, which then add up to μ: the empirical Bernstein form.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

LARGEST_STAKE = 0.95  # of what a bet could lose at most
LARGEST_LINEAR_STAKE = 0.7  # ψ grows without limit towards 1
LARGEST = 100  # draws that tell the index of a tail
PRECISION = 2.0**-10  # of a limit, as a share of its distance from the mean
UNSEEN = 2.0  # distances of the largest draw at which the next record is expected: 1/(1 − k), with k = ½ where variances end


class Moments(NamedTuple):
    """Of one draw, within its stratum: the mean of m draws has variance/m, and third/m² as its third central moment.

    `largest` is the distance of the largest draw above its mean. Each may be an array, an entry for each number of draws.
    """

    mean: Any
    variance: Any
    third: Any
    largest: Any = 0.0


@dataclass(frozen=True)
class Stage:
    """Draws made under bets that were placed before them: `up` against a smaller mean, `down` against a larger one.

    Its rows are rounds of one draw a stratum. `centres` are the strata's means as they were known before.
    """

    y: np.ndarray  # [rounds, strata]
    up: float
    down: float
    centres: np.ndarray  # [strata]


def moments(y: np.ndarray) -> Moments:
    """The moments of draws [rounds, strata], of which there are at least two rounds."""
    deviation = y - y.mean(0)
    rounds = y.shape[0]
    square = deviation**2
    variance, third = square.mean() * rounds / (rounds - 1), (square * deviation).mean()
    return Moments(float(y.mean()), float(variance), float(third), float(deviation.max()))


def with_unseen(draws: Moments, m: Any) -> Moments:
    """The moments of m draws and of one more, UNSEEN times as far above the mean as the largest.

    Heavy tails look light in a sample that has missed their largest terms, and its variance and skewness are too small just where
    its mean is. Of a Pareto tail of index k, what lies above the largest of m draws has about the share 1/m, and 1/(1 − k) times
    its distance.
    """
    unseen = UNSEEN * draws.largest
    return Moments(draws.mean + unseen / m, draws.variance + unseen**2 / m, draws.third + unseen**3 / m, unseen)


def skewness_of_mean(draws: Moments, m: Any) -> Any:
    """The skewness of the mean of m draws; 0 for draws that are all equal."""
    return draws.third / np.maximum(draws.variance, 1e-200) ** 1.5 / np.sqrt(m)


def tail_index(logarithms: np.ndarray) -> float:
    """Hill's estimate of k in P(y > u) ~ u^(−1/k), from the logarithms of the LARGEST draws; +∞ of fewer that are above 0.

    Variances end at k = ½, means at 1.
    """
    flat = logarithms.ravel()
    if flat.size <= LARGEST:
        return math.inf
    top = np.partition(flat, flat.size - LARGEST - 1)[-LARGEST - 1 :]
    return float(np.mean(top[1:] - top[0])) if top[0] > -math.inf else math.inf


def remaining(m: Any, population: float) -> Any:
    """The share of a draw's variance that is left when m of a finite population are drawn without replacement."""
    return np.clip(1.0 - m / population, 0.0, 1.0)


def hall_interval(draws: Moments, m: Any, delta: float, population: float) -> tuple[Any, Any]:
    """Asymptotic limits of the mean: the t statistic, its skewness removed by Hall's cubic (1992, JRSS B 54).

    `g(T) = T + γT²/3 + γ²T³/27 + γ/6` is nearly normal for a mean of skewness γ, so the limits are mean − se·g⁻¹(±z).
    """
    z = NormalDist().inv_cdf(1.0 - delta / 2)
    error = np.sqrt(draws.variance / m * remaining(m, population))
    gamma = np.maximum(np.abs(skewness_of_mean(draws, m)), 1e-6)  # the limit at 0 is 0/0
    inverse = lambda q: 3.0 / gamma * (np.cbrt(1.0 + gamma * (q - gamma / 6.0)) - 1.0)
    narrow, wide = error * inverse(z), error * -inverse(-z)
    right = np.asarray(draws.third) >= 0.0
    return np.maximum(draws.mean - np.where(right, narrow, wide), 0.0), draws.mean + np.where(right, wide, narrow)


def extrapolated_interval(draws: Moments, m: Any, delta: float, population: float) -> tuple[Any, Any]:
    """Hall's limits, the upper one of the draws with the unseen one."""
    return hall_interval(draws, m, delta, population)[0], hall_interval(with_unseen(draws, m), m, delta, population)[1]


def stake(variance: float, m: Any, delta: float) -> Any:
    """The bet that is best after m draws, √(2 log(2/δ) / (m·variance)), before it is limited to what can be lost."""
    return np.sqrt(2.0 * math.log(2.0 / delta) / (m * max(variance, 1e-300)))


def forecast(draws: Moments, m: Any, delta: float, population: float, *, linear: bool) -> tuple[Any, Any]:
    """About what `betting_interval`, or if `linear` `bernstein_interval`, will give after m draws with these moments."""
    largest = LARGEST_LINEAR_STAKE if linear else LARGEST_STAKE
    variance = draws.variance * remaining(m, population)
    needed = math.log(2.0 / delta)
    best = stake(draws.variance, m, delta)
    up, down = np.minimum(best, largest / max(draws.mean, 1e-300)), np.minimum(best, largest)
    cost = lambda bet, scale: psi(bet * scale) / scale**2 if linear else bet**2 / 2.0
    lower = draws.mean - needed / (m * up) - variance * cost(up, max(draws.mean, 1e-300)) / up
    upper = draws.mean + needed / (m * down) + variance * cost(down, 1.0) / down
    return np.maximum(lower, 0.0), np.minimum(upper, 1.0)


def psi(stake: Any) -> Any:
    """ψ(λ) = −log(1 − λ) − λ."""
    return -np.log1p(-stake) - stake


def betting_interval(stages: list[Stage], delta: float, population: float) -> tuple[float, float]:
    """Limits of the mean that hold with probability 1 − δ at any time (Waudby-Smith & Ramdas, 2024, arXiv:2010.09686).

    A finite `population` is drawn from without replacement: given the draws before, the t-th has the mean (Nμ − Σ y)/(N − t + 1).
    """
    y = np.concatenate([stage.y.ravel() for stage in stages])
    up = np.concatenate([np.full(stage.y.size, stage.up) for stage in stages])
    down = np.concatenate([np.full(stage.y.size, stage.down) for stage in stages])
    if math.isinf(population):
        growth, drawn = np.ones_like(y), np.zeros_like(y)
    else:
        left = population - np.arange(y.size)
        growth, drawn = population / left, (np.cumsum(y) - y) / left

    def capital_up(mean: float) -> float:
        conditional = growth * mean - drawn
        if conditional.min() < 0.0:
            return math.inf
        with np.errstate(divide="ignore", over="ignore"):
            bets = np.minimum(up, LARGEST_STAKE / conditional)
        return float(np.log1p(bets * (y - conditional)).sum())

    def capital_down(mean: float) -> float:
        conditional = growth * mean - drawn
        if conditional.max() > 1.0:
            return math.inf
        with np.errstate(divide="ignore", over="ignore"):
            bets = np.minimum(down, LARGEST_STAKE / (1.0 - conditional))
        return float(np.log1p(bets * (conditional - y)).sum())

    middle, needed = float(np.clip(y.mean(), 1e-300, 1.0)), math.log(2.0 / delta)
    return _refused(capital_up, needed, middle, -1.0), _refused(capital_down, needed, middle, 1.0)


def _refused(log_capital: Callable[[float], float], needed: float, middle: float, direction: float) -> float:
    """The refused mean next to those that are not, from `middle` downwards (to 0) or upwards (to 1), on a logarithmic scale.

    The capital grows with the distance. The bracket is cut by regula falsi, with the Illinois rule against an end that stays.
    """
    surplus = lambda position: log_capital(math.exp(position)) - needed
    step, start = 1e-3, math.log(middle)
    floor, ceiling = start - 80.0, 0.0
    kept, below = start, surplus(start)
    while True:
        edge = min(max(kept + direction * step, floor), ceiling)
        above = surplus(edge)
        if above >= 0.0:
            break
        if edge in (floor, ceiling):
            return 1.0 if direction > 0 else 0.0
        kept, below, step = edge, above, 4.0 * step
    moved = 0.0
    while abs(edge - kept) > PRECISION * abs(edge - start):
        share = above / (above - below) if math.isfinite(above) else 0.5
        cut = edge + min(max(share, PRECISION / 2), 0.9) * (kept - edge)
        found = surplus(cut)
        if found >= 0.0:
            edge, above, below = cut, found, below / 2 if moved > 0 else below
            moved = 1.0
        else:
            kept, below, above = cut, found, above / 2 if moved < 0 else above
            moved = -1.0
    return math.exp(edge)


def bernstein_interval(stages: list[Stage], delta: float) -> tuple[float, float]:
    """Limits of the mean over rounds, each stratum with a mean of its own, that hold with probability 1 − δ at any time.

    The lower limit needs no range: what a bet on a larger mean can lose is the centre, as no draw is negative.
    """
    needed = math.log(2.0 / delta)
    weight_up = weight_down = 0.0
    gain_up, gain_down = -needed, needed
    for stage in stages:
        squares, total = float(((stage.y - stage.centres) ** 2).sum()), float(stage.y.sum())
        scale = float(stage.centres.max())
        if scale > 0.0:
            up = min(stage.up, LARGEST_LINEAR_STAKE / scale)
            weight_up += up * stage.y.size
            gain_up += up * total - psi(up * scale) * squares / scale**2
        down = min(stage.down, LARGEST_LINEAR_STAKE)
        weight_down += down * stage.y.size
        gain_down += down * total + psi(down) * squares
    lower = max(gain_up / weight_up, 0.0) if weight_up else 0.0
    return lower, min(gain_down / weight_down, 1.0) if weight_down else 1.0
