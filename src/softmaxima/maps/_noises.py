"""Noises ε of `perturb_max`: log F and f/F of their CDF F, by name, by Student's order, or of a distribution of torch."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, distributions
from torch.distributions import Distribution

from softmaxima.base.numbers import as_number
from softmaxima.base.onnx import atan2, erfcx, expm1, logsigmoid
from softmaxima.base.rows import highest
from softmaxima.maps._quadrature import (
    LOWEST,
    SEEN,
    Rule,
    above_the_scores,
    between_kinks,
    ends,
    gauss_rule,
    graded,
    largest,
    of_tails,
    panels,
    spaced,
    trapezoid,
)

EULER = 0.57721566490153286
LEAST_ORDER, LARGEST_ORDER = 0.5, 100.0  # of Student's t


@dataclass(frozen=True)
class Noise:
    """A noise of CDF F with density f.

    at(t): (log F(t), (f/F)(t)), elementwise.
    rule(u): nodes and weights [m, ..., 1] for scores u [..., n] with maximum 0, −∞ where masked, and the place [..., 1] below which
        there are none, as e^L is 0 there.
    mean: E ε, None where no loss needs it.
    width: that of the support of ε: a score so far below another has no probability.
    unit, start: how much wider it is than that of its name, and what is added to it, the same for all scores: at, rule and mean are
        without that.
    """

    name: str
    at: Callable[[Tensor], tuple[Tensor, Tensor]]
    rule: Callable[[Tensor], Rule]
    mean: float | None
    width: float = math.inf
    unit: float = 1.0
    start: float = 0.0


def of_laplace(u: Tensor) -> Rule:
    *above, bottom = above_the_scores(0.5, u)
    top, fixed = largest(u), u.detach()
    first, _ = ends(laplace, fixed, spaced(LOWEST, 0.0, u))
    is_all = laplace_level(fixed) < LOWEST  # nothing of e^L is below the largest score
    first = torch.where(is_all, top.detach(), torch.minimum(first.squeeze(0), top.detach()))
    below = panels(graded(highest(u, SEEN)[0], first, top, 1.0, 1e6), 14)
    nodes, weights = (torch.cat(pair) for pair in zip(above, below, strict=True))
    return nodes, weights, torch.where(is_all, bottom, first)


def laplace_level(u: Tensor) -> Tensor:
    """L at the largest score."""
    return torch.log1p(-0.5 * u.exp()).sum(-1, keepdim=True)


def gumbel(t: Tensor) -> tuple[Tensor, Tensor]:
    """F = exp(−e^{−t})."""
    rate = (-t).exp()
    return -rate, rate


def logistic(t: Tensor) -> tuple[Tensor, Tensor]:
    """F = 1/(1 + e^{−t})."""
    return logsigmoid(t), torch.sigmoid(-t)


def normal(t: Tensor) -> tuple[Tensor, Tensor]:
    """F = Φ; f/F = √(2/π)/erfcx(−t/√2) below 0."""
    t = t.clamp_max(100.0)  # from 39 up F is 1 and f is 0, and t² would overflow
    tail = erfcx(t.abs() * math.sqrt(0.5))
    square = -t * t / 2
    density = square.exp()
    above = 1 - density * tail / 2
    log_f = torch.where(t < 0, square + (tail / 2).log(), torch.log1p(-density * tail / 2))
    return log_f, math.sqrt(2 / math.pi) * torch.where(t < 0, 1 / tail, density / 2 / above)


def exponential(t: Tensor) -> tuple[Tensor, Tensor]:
    """F = 1 − e^{−t} for t > 0."""
    t = t.clamp_min(1e-300)
    rest, cdf = (-t).exp(), -expm1(-t)
    return torch.where(t < 0.7, cdf.log(), torch.log1p(-rest.clamp_max(0.6))), rest / cdf


def laplace(t: Tensor) -> tuple[Tensor, Tensor]:
    """F = e^t/2 below 0, 1 − e^{−t}/2 above."""
    rest = (-t.abs()).exp() / 2
    return torch.where(t < 0, t - math.log(2), torch.log1p(-rest)), torch.where(t < 0, 1.0, rest / (1 - rest))


def uniform(t: Tensor) -> tuple[Tensor, Tensor]:
    """F = t on [0, 1]."""
    inside = t < 1
    t = torch.where(inside, t, 1.0).clamp_min(1e-18)
    return t.log(), torch.where(inside, 1 / t, 0.0)


@functools.lru_cache(maxsize=64)
def student_t(order: float) -> Noise:
    r"""F(t) = C ∫₀^φ sin^{ν−1} = C φ^ν g(φ²) below 0, t = −√ν cot φ, where log g is analytic for |φ| < π: a polynomial."""
    constant = math.lgamma((order + 1) / 2) - math.lgamma(order / 2) - math.log(math.pi) / 2  # of C
    polynomial = np.polynomial.chebyshev.Chebyshev.interpolate(
        lambda y: np.array([_log_g(float(v), order) for v in y]), _degree(order), domain=[0.0, (math.pi / 2) ** 2]
    )
    coefficients = polynomial.trim(1e-18).coef.tolist()
    root = math.sqrt(order)

    def at(t: Tensor) -> tuple[Tensor, Tensor]:
        size = t.abs()
        angle = atan2(torch.full_like(size, root), size)
        x = angle.square() * (2 / (math.pi / 2) ** 2) - 1
        b, c = torch.zeros_like(x), torch.zeros_like(x)
        for coefficient in coefficients[:0:-1]:
            b, c = coefficient + 2 * x * b - c, b
        log_tail = constant + order * angle.log() + coefficients[0] + x * b - c
        # f = C/√ν sin^{ν+1} φ
        log_density = constant - math.log(root) + (order + 1) * angle.sin().log()
        log_f = torch.where(t < 0, log_tail, torch.log1p(-log_tail.clamp_max(-0.5).exp()))
        return log_f, (log_density - log_f).exp()

    def quantile(log_tail: float) -> float:
        """t > 0 with log(1 − F(t)) = log_tail."""
        low, high = 0.0, math.pi / 2
        for _ in range(200):
            middle = (low + high) / 2
            above = constant + order * math.log(middle or 1e-300) + _log_g(middle**2, order) > log_tail
            low, high = (low, middle) if above else (middle, high)
        return root / math.tan(max(high, 1e-300))

    far = [quantile(-k) for k in range(1, 53)]
    near = [-quantile(-math.exp(k)) for k in (0, 1, 2, 3)]
    width = min(1.0, root)
    rule = functools.partial(of_tails, at, -quantile(LOWEST), far[-1], width, (*near, 0.0, *far), True, ())
    return Noise("student_t", at, rule, None)


def _degree(order: float) -> int:
    return 16 + int(6 * math.sqrt(order))


def _log_g(y: float, order: float) -> float:
    """log φ^{−ν} ∫₀^φ sin^{ν−1} at φ² = y."""
    phi = math.sqrt(y)
    if order < 8:  # (sin φ/φ)^{ν−1} = Σ s_k y^k, and g = Σ s_k y^k/(2k + ν)
        sinc = [(-1.0) ** k / math.factorial(2 * k + 1) for k in range(40)]
        powers = [1.0]
        for k in range(1, 40):
            powers.append(sum(((order - 1) * i - (k - i)) * sinc[i] * powers[k - i] for i in range(1, k + 1)) / k)
        return math.log(math.fsum(s * y**k / (2 * k + order) for k, s in enumerate(powers)))
    x, w = gauss_rule(200)
    return math.log(math.fsum(b * (a * _sinc(phi * a)) ** (order - 1) for a, b in zip(x, w, strict=True)))


def _sinc(x: float) -> float:
    return math.sin(x) / x if x else 1.0


def known_family(noise: Any) -> Noise | None:
    """A distribution of a family that is known here, whose CDF is exact; None for any other."""
    families: tuple[tuple[Any, str, str, str], ...] = (
        (distributions.Normal, "normal", "loc", "scale"),
        (distributions.Gumbel, "gumbel", "loc", "scale"),
        (distributions.Laplace, "laplace", "loc", "scale"),
        (distributions.Uniform, "uniform", "low", "high"),
        (distributions.Exponential, "exponential", "rate", "rate"),
        (distributions.Cauchy, "cauchy", "loc", "scale"),
        (distributions.StudentT, "student_t", "loc", "scale"),
    )
    for family, name, place, scale in families:
        if type(noise) is family:
            start, width = float(getattr(noise, place)), float(getattr(noise, scale))
            start, width = {"uniform": (start, width - start), "exponential": (0.0, 1 / width)}.get(name, (start, width))
            orders = {"cauchy": 1.0, "student_t": float(getattr(noise, "df", 1.0))}
            if name in orders and not LEAST_ORDER <= orders[name] <= LARGEST_ORDER:
                return None
            return moved(student_t(orders[name]) if name in orders else NAMED[name], start, width)
    return None


def moved(noise: Noise, start: float, width: float) -> Noise:
    """start + width ε."""

    def at(t: Tensor) -> tuple[Tensor, Tensor]:
        log_f, rate = noise.at(t / width)
        return log_f, rate / width

    def rule(u: Tensor) -> Rule:
        nodes, weights, bottom = noise.rule(u / width)
        return nodes * width, weights * width, bottom * width

    mean = None if noise.mean is None else width * noise.mean
    return Noise(noise.name, at, rule, mean, width * noise.width, width, start)


def of_distribution(noise: Distribution) -> Noise:
    """Any distribution with a CDF and a density, at the precision of its CDF."""
    if (family := known_family(noise)) is not None:
        return family
    bottom, top = (float(getattr(noise.support, end, sign * math.inf)) for end, sign in (("lower_bound", -1), ("upper_bound", 1)))

    def cdf(t: Tensor) -> Tensor:
        inside = (t > bottom) & (t < top)
        safe = torch.where(inside, t, _inside(bottom, top))
        return torch.where(inside, noise.cdf(safe).to(t.dtype), torch.where(t <= bottom, 0.0, 1.0).to(t.dtype))

    def at(t: Tensor) -> tuple[Tensor, Tensor]:
        inside = (t > bottom) & (t < top)
        safe = torch.where(inside, t, _inside(bottom, top))
        f = cdf(t)
        log_f = f.clamp_min(1e-300).log().masked_fill(f <= 0, -math.inf)
        rate = (noise.log_prob(safe).to(t.dtype) - log_f.masked_fill(f <= 0, 0.0)).exp()
        return log_f.clamp_min(-1e4), torch.where(inside & (f > 0), rate, 0.0)

    number = lambda t: float(cdf(torch.tensor(t, dtype=torch.float64)))
    quantiles = [_bisect(number, log_cdf_of_all) for log_cdf_of_all in (math.exp(LOWEST), 0.25, 0.5, 0.75)]
    lows = [_bisect(number, math.exp(-math.exp(k))) for k in (3, 2, 1, 0)]
    highs = [_bisect(number, -math.expm1(-k)) for k in range(1, 37)]
    low = max(bottom, quantiles[0]) if bottom > -math.inf else quantiles[0]
    high = top if top < math.inf else _bisect(number, 1 - 2.0**-53)
    width = max((quantiles[3] - quantiles[1]) / 2, 1e-300)
    kinks = tuple(sorted({v for v in (bottom, top, quantiles[2]) if math.isfinite(v)}))
    points = tuple(t for t in (*lows, *quantiles[1:], *highs) if math.isfinite(t))
    return Noise(repr(noise), at, functools.partial(of_tails, at, low, high, width, points, False, kinks), None, top - bottom)


def _inside(bottom: float, top: float) -> float:
    """A place where the density is."""
    if math.isfinite(bottom) and math.isfinite(top):
        return (bottom + top) / 2
    return bottom + 1 if math.isfinite(bottom) else top - 1 if math.isfinite(top) else 0.0


def _bisect(cdf: Callable[[float], float], log_cdf_of_all: float) -> float:
    """The least t, to double precision, with F(t) ≥ log_cdf_of_all."""
    low, high = -1.0, 1.0
    while cdf(low) >= log_cdf_of_all and low > -1e300:
        low *= 2
    while cdf(high) < log_cdf_of_all and high < 1e300:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if cdf(middle) >= log_cdf_of_all else (middle, high)
    return high


NAMED = {  # in the order of csrc/perturb_max.cpp
    "normal": Noise("normal", normal, functools.partial(trapezoid, normal, 128, -8.9, lambda n: 8.6 + 0.26 * math.log(n)), 0.0),
    "gumbel": Noise("gumbel", gumbel, functools.partial(trapezoid, gumbel, 192, -3.7, lambda n: 39.5 + math.log(n)), EULER),
    "logistic": Noise("logistic", logistic, functools.partial(trapezoid, logistic, 192, LOWEST, lambda n: 39.5 + math.log(n)), 0.0),
    "laplace": Noise("laplace", laplace, of_laplace, 0.0),
    "uniform": Noise("uniform", uniform, between_kinks, 0.5, 1.0),
    "exponential": Noise("exponential", exponential, functools.partial(above_the_scores, 1.0), 1.0),
}

NoiseLike = str | tuple[str, float] | Distribution

_KNOWN: WeakKeyDictionary[Distribution, Noise] = WeakKeyDictionary()


def find_noise(noise: NoiseLike) -> Noise:
    """The noise of that name, of ("student_t", ν), or of a distribution."""
    if isinstance(noise, str):
        return NAMED[noise]
    if isinstance(noise, tuple):
        return student_t(float(noise[1]))
    if noise not in _KNOWN:
        _KNOWN[noise] = of_distribution(noise)
    return _KNOWN[noise]


def is_noise(noise: Any) -> bool:
    """Whether there is such a noise. Of a distribution that will not do it is said why."""
    if isinstance(noise, str):
        return noise in NAMED
    if isinstance(noise, tuple):
        number = as_number(noise[1]) if len(noise) == 2 and noise[0] == "student_t" else None
        return number is not None and LEAST_ORDER <= number <= LARGEST_ORDER
    if not isinstance(noise, Distribution):
        return False
    if noise in _KNOWN:
        return True
    what = type(noise).__name__
    if tuple(noise.batch_shape) + tuple(noise.event_shape):
        raise ValueError(
            f"perturb_max: noise must be one distribution of a number for all scores, got a {what} of shape "
            f"{tuple(noise.batch_shape) + tuple(noise.event_shape)}; give its parameters as numbers"
        )
    if getattr(noise.support, "is_discrete", False):
        raise ValueError(f"perturb_max: noise must have a density, got the discrete {what}; take a continuous distribution")
    if known_family(noise) is not None:
        return True
    try:
        noise.cdf(noise.sample())
        noise.log_prob(noise.sample())
    except NotImplementedError:
        raise ValueError(
            f"perturb_max: noise must have a CDF and a density, and torch has none for {what}; take one of {', '.join(NAMED)}, "
            "('student_t', ν), or a distribution with cdf and log_prob"
        ) from None
    return True
