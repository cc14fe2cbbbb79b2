r"""Noises ε of `perturb_max`: log F and f/F of their CDF F, and nodes z with weights w of a rule ∫ h(z) dz ≈ Σ w h(z).

The integrands are h_i(z) = (f/F)(z − u_i) e^{L(z)}, L(z) = Σ_j log F(z − u_j), of scores u with maximum 0, so that Σ h_i = (e^L)′.
e^L ≤ e^{−40} below the first node, and 1 − e^L ≤ 1e−17 above the last one. Between them are

- for Gumbel, normal and logistic noise the trapezoid rule, whose error falls exponentially as F is analytic;
- for exponential noise v = e^{−z} ∈ (0, 1], where h_i dz = w_i Π_{j≠i} (1 − v w_j) dv, w = e^u, is a polynomial: one Gauss rule;
- for uniform noise panels between its kinks, the scores + 1, where h is a polynomial, and each e^{−8} or less of e^L high;
- for Laplace noise the same as for exponential noise above all scores, and panels between the scores below;
- for others panels between the scores, fine near them and coarser away from them. e^L ≤ 2^{−k} at the k-th largest score or so:
  the first 54 are all that double precision sees.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributions
from torch.distributions import Distribution

from softmaxima.base.onnx import atan2, erfcx, expm1, logsigmoid
from softmaxima.base.rows import highest
from softmaxima.base.tracing import is_concrete, is_keeping, sizes

LOWEST = -40.0  # of log e^L
LEAST = 1e-17  # of 1 − e^L
STEPS, MODERATE = 192, 512  # of the trapezoid rule, and the scores up to which fewer will do, where e^L is less steep
SEEN = 54  # scores whose places matter to double precision, where half the noise is below its median
MANY = 1 << 20  # scores of a row that may have any number of them
COARSE = 64  # steps in which the ends of the nodes are found
BLOCK = 1 << 18  # numbers at a time
EULER = 0.57721566490153286
LEAST_ORDER, LARGEST_ORDER = 0.5, 100.0  # of Student's t


Rule = tuple[Tensor, Tensor, Tensor]


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


def at_nodes(at: Callable[[Tensor], tuple[Tensor, Tensor]], z: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """(L(z) [m, ..., 1], (f/F)(z − u) [m, ..., n]); a masked score does not count."""
    masked = u == -math.inf
    log_f, rate = at(z - u.masked_fill(masked, 0.0))
    return log_f.masked_fill(masked, 0.0).sum(-1, keepdim=True), rate.masked_fill(masked, 0.0)


def in_blocks(z: Tensor, u: Tensor) -> list[slice]:
    """Nodes of which there is room for as many times n numbers at once."""
    if is_keeping():
        return [slice(None)]
    size = max(1, BLOCK // max(1, math.prod(sizes(u))))
    return [slice(i, i + size) for i in range(0, sizes(z)[0], size)]


def level(at: Callable[..., Any], z: Tensor, u: Tensor) -> Tensor:
    """L(z) [m, ..., 1]."""
    return torch.cat([at_nodes(at, z[block], u)[0] for block in in_blocks(z, u)])


@functools.cache
def _gauss(order: int) -> tuple[list[float], list[float]]:
    """(x, w) by Newton's method on Legendre's polynomial: numpy's weights have the error 1e−12."""
    root = slope = np.cos(np.pi * (np.arange(order) + 0.75) / (order + 0.5))
    for _ in range(8):
        last, value = np.ones(order), root
        for i in range(2, order + 1):
            last, value = value, ((2 * i - 1) * root * value - (i - 1) * last) / i
        slope = order * (root * value - last) / (root * root - 1)
        root = root - value / slope
    return ((1 - root) / 2).tolist(), (1 / ((1 - root * root) * slope * slope)).tolist()


# (x, w) of the rules of Gauss and Legendre on [0, 1], as tensors, for recorders take no new ones.
GAUSS = {order: [torch.tensor(each, dtype=torch.float64, device="cpu") for each in _gauss(order)] for order in (6, 12, 14, 16, 48)}


def nodes_like(values: Tensor, u: Tensor) -> Tensor:
    """[m, 1, …, 1], m numbers to go with u [..., n]."""
    return values.to(u.device, u.dtype).reshape(-1, *[1] * u.ndim)


def ends(at: Callable[..., Any], u: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Of increasing places [k, …, 1] the last with L ≤ −40 and the first with 1 − e^L ≤ 1e−17, or the outer ones [1, …, 1]."""
    steps = level(at, places.expand(-1, *u.shape[:-1], 1), u)
    last = sizes(places)[0] - 1
    low = ((steps <= LOWEST).sum(0, keepdim=True) - 1).clamp(0, last)
    high = (steps < -LEAST).sum(0, keepdim=True).clamp(0, last)
    flat = places.flatten()
    return flat[low], flat[high]


def spaced(low: float, high: float, u: Tensor, curve: Callable[[Tensor], Tensor] = lambda t: t) -> Tensor:
    """COARSE + 1 places from low to high, in equal steps before the curve."""
    share = torch.arange(COARSE + 1, dtype=u.dtype, device=u.device) / COARSE
    return curve(low + (high - low) * share).reshape(-1, *[1] * u.ndim)


# The rules -----------------------------------------------------------------------------------------------------------------------


def trapezoid(at: Callable[..., Any], few: int, low: float, high: Callable[[int], float], u: Tensor) -> Rule:
    """Equal steps, for noises that are analytic; `high(n)` has 1 − F ≤ 1e−17/n."""
    u = u.detach()
    n = MANY if is_keeping() else max(1, sizes(u)[-1])
    count = few if n <= MODERATE else STEPS
    first, last = ends(at, u, spaced(low, high(n), u))
    step = (last - first) / count
    nodes = first + step * (nodes_like(torch.arange(count, device=u.device), u) + 0.5)
    return nodes, step.expand(count, *step.shape[1:]), first.squeeze(0)


def above_the_scores(share: float, u: Tensor) -> Rule:
    """Of F = 1 − share e^{−t} for t > 0: v = e^{−z} up to that of the largest score, or to where Π (1 − share v w) ≤ e^{−45}."""
    x, w = (nodes_like(values, u) for values in GAUSS[48])
    mass = u.detach().exp().sum(-1, keepdim=True)
    bound = torch.minimum((-largest(u)).exp(), 45.0 / share / mass.clamp_min(1e-300))
    return -(bound * x).log(), (w / x).expand(-1, *u.shape[:-1], 1), -bound.log()


def largest(u: Tensor) -> Tensor:
    """The largest score [..., 1], 0 but with its derivative; 0 in a row of masks."""
    top = u.amax(-1, keepdim=True)
    return top.masked_fill(top == -math.inf, 0.0)


def panels(edges: Tensor, order: int) -> tuple[Tensor, Tensor]:
    """Gauss's rule between each edge [..., k] and the next, left out where none is: these are as many as the most of a row."""
    start, width = edges[..., :-1], edges[..., 1:] - edges[..., :-1]
    if is_concrete(edges):
        count = max(1, int((width.detach() > 0).sum(-1).max()))
        places = width.detach().topk(min(count, sizes(width)[-1]), -1).indices
        start, width = start.gather(-1, places), width.gather(-1, places)
    x, w = (values.to(edges.device, edges.dtype) for values in GAUSS[order])
    z = (start.unsqueeze(-1) + width.unsqueeze(-1) * x).flatten(-2)
    weights = (width.unsqueeze(-1) * w).flatten(-2)
    return tuple(v.movedim(v.ndim - 1, 0).unsqueeze(-1) for v in (z, weights))  # type: ignore[return-value]


def between_kinks(u: Tensor) -> Rule:
    """Uniform noise on [0, 1]: panels between the kinks u + 1, below 1 by s where −log e^L ≥ H(s) = Σ (s − d)₊, d = −u."""
    fixed = u.detach()
    count = max(1, int((fixed > -1).sum(-1).max())) if is_concrete(u) else u.shape[-1]
    kinks = highest(u, count)[0]
    depths = -highest(fixed, count)[0].clamp_min(-1.0)  # of masks and what is below 1 it is the end that there is
    k = torch.arange(1, depths.shape[-1] + 1, dtype=u.dtype, device=u.device)
    sums = depths.cumsum(-1)
    heights = k * depths - sums  # H at each kink
    few = not is_keeping() and sizes(depths)[-1] <= 64
    levels = torch.arange(8.0, 41.0, 8.0) if few else torch.arange(0.5, 40.5, 0.5)
    levels = levels.to(u.dtype).to(u.device).expand(*u.shape[:-1], -1)
    active = (heights.unsqueeze(-2) <= levels.unsqueeze(-1)).sum(-1).clamp_min(1) - 1
    s = (levels + sums.gather(-1, active)) / (active + 1)
    deepest = 1 - s[..., -1:]
    bottom = torch.maximum(largest(u), deepest)
    # What is not differentiated lies between what is, never at the same place.
    edges = torch.cat((bottom, *(torch.where(v > bottom + 1e-12, v, bottom) for v in (1 - s, kinks + 1))), -1)
    return *panels(edges.sort(-1).values, 12 if few else 6), bottom


def graded(scores: Tensor, low: Tensor, high: Tensor, width: float, kind: float, more: Tensor | None = None) -> Tensor:
    """Edges from low to high: the scores [..., k], and between them steps that are as wide as `width` near a score, and away from
    it as wide as the distance over `kind`."""
    places = torch.where(scores < low, low, torch.where(scores > high, high, scores)).sort(-1).values
    fixed = places.detach()
    middles = (fixed[..., 1:] + fixed[..., :-1]) / 2
    # Halves of gaps, from a score out: up from the scores to `tops`, and down to `bottoms`.
    tops, bottoms = torch.cat((middles, high), -1), torch.cat((low, middles), -1)
    lengths = torch.stack((fixed - bottoms, tops - fixed), -1).flatten(-2)
    steps = kind * (lengths / (kind * width)).log1p()
    before = steps.cumsum(-1)
    total = before[..., -1:]
    count = 128
    if is_concrete(total):
        count = max(1, min(512, math.ceil(float(total.detach().max()))))
    t = total * (torch.arange(1, count, dtype=total.dtype, device=total.device) / count)
    half = (before.unsqueeze(-2) < t.unsqueeze(-1)).sum(-1).clamp_max(steps.shape[-1] - 1)
    left = before.gather(-1, half) - t  # to the end of the half
    way = torch.where(half % 2 == 0, left, steps.gather(-1, half) - left)
    distance = kind * width * expm1(way / kind)
    score = places.gather(-1, half // 2)
    inner = score.detach() + torch.where(half % 2 == 0, -distance, distance)
    # What is not differentiated lies between what is, never at the same place.
    inner = torch.where(distance < 1e-9 * width, score, inner)
    parts = [inner] if more is None else [inner, more]
    within = (torch.where(v <= low, low, torch.where(v >= high, high, v)) for v in parts)
    return torch.cat((low, places, *within, high), -1).sort(-1).values


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


def of_tails(
    at: Callable[..., Any],
    low: float,
    high: float,
    width: float,
    quantiles: tuple[float, ...],
    smooth: bool,
    kinks: tuple[float, ...],
    u: Tensor,
) -> Rule:
    """Panels for any noise: `quantiles` in which −log F falls e-fold, `kinks` of F, a `width` in which it is smooth."""
    fixed = u.detach()
    curve = lambda t: width * torch.sinh(t)
    first, last = ends(at, fixed, spaced(math.asinh(low / width), math.asinh(high / width), u, curve))
    first, last = first.squeeze(0), last.squeeze(0)
    scores = highest(u, SEEN)[0]
    if smooth:
        scores = (scores.detach() / width).floor() * width
    else:
        scores = torch.cat([scores + kink for kink in kinks], -1)
        bottom = kinks[0] + largest(u) if low == kinks[0] else None
        if bottom is not None:
            first = torch.maximum(first, bottom)
    more = largest(fixed) + torch.tensor(quantiles, dtype=u.dtype, device=u.device)
    return *panels(graded(scores, first, last, width, 2.0, more), 16), first


# The noises ----------------------------------------------------------------------------------------------------------------------


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
    x, w = _gauss(200)
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
    quantiles = [_bisect(number, level) for level in (math.exp(LOWEST), 0.25, 0.5, 0.75)]
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


def _bisect(cdf: Callable[[float], float], level: float) -> float:
    """The least t, to double precision, with F(t) ≥ level."""
    low, high = -1.0, 1.0
    while cdf(low) >= level and low > -1e300:
        low *= 2
    while cdf(high) < level and high < 1e300:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if cdf(middle) >= level else (middle, high)
    return high


NAMED = {  # in the order of csrc/perturb_max.cpp
    "normal": Noise("normal", normal, functools.partial(trapezoid, normal, 128, -8.9, lambda n: 8.6 + 0.26 * math.log(n)), 0.0),
    "gumbel": Noise("gumbel", gumbel, functools.partial(trapezoid, gumbel, 192, -3.7, lambda n: 39.5 + math.log(n)), EULER),
    "logistic": Noise("logistic", logistic, functools.partial(trapezoid, logistic, 192, LOWEST, lambda n: 39.5 + math.log(n)), 0.0),
    "laplace": Noise("laplace", laplace, of_laplace, 0.0),
    "uniform": Noise("uniform", uniform, between_kinks, 0.5, 1.0),
    "exponential": Noise("exponential", exponential, functools.partial(above_the_scores, 1.0), 1.0),
}
