r"""Rules of `perturb_max`: nodes z with weights w, ∫ h(z) dz ≈ Σ w h(z).

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
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softmaxima.base.onnx import expm1
from softmaxima.base.rows import highest, row_maximum
from softmaxima.base.tracing import is_concrete, is_keeping, sizes

LOWEST = -40.0  # of log e^L
LEAST = 1e-17  # of 1 − e^L
STEPS, MODERATE = 192, 512  # of the trapezoid rule, and the scores up to which fewer will do, where e^L is less steep
SEEN = 54  # scores whose places matter to double precision, where half the noise is below its median
MANY = 1 << 20  # scores of a row that may have any number of them
COARSE = 64  # steps in which the ends of the nodes are found
BLOCK = 1 << 18  # numbers at a time

Rule = tuple[Tensor, Tensor, Tensor]


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


def log_cdf_of_all(at: Callable[..., Any], z: Tensor, u: Tensor) -> Tensor:
    """L(z) [m, ..., 1]."""
    return torch.cat([at_nodes(at, z[block], u)[0] for block in in_blocks(z, u)])


@functools.cache
def gauss_rule(order: int) -> tuple[list[float], list[float]]:
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
GAUSS = {
    order: [torch.tensor(each, dtype=torch.float64, device="cpu") for each in gauss_rule(order)] for order in (6, 12, 14, 16, 48)
}


def nodes_like(values: Tensor, u: Tensor) -> Tensor:
    """[m, 1, …, 1], m numbers to go with u [..., n]."""
    return values.to(u.device, u.dtype).reshape(-1, *[1] * u.ndim)


def ends(at: Callable[..., Any], u: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Of increasing places [k, …, 1] the last with L ≤ −40 and the first with 1 − e^L ≤ 1e−17, or the outer ones [1, …, 1]."""
    steps = log_cdf_of_all(at, places.expand(-1, *u.shape[:-1], 1), u)
    last = sizes(places)[0] - 1
    low = ((steps <= LOWEST).sum(0, keepdim=True) - 1).clamp(0, last)
    high = (steps < -LEAST).sum(0, keepdim=True).clamp(0, last)
    flat = places.flatten()
    return flat[low], flat[high]


def spaced(low: float, high: float, u: Tensor, curve: Callable[[Tensor], Tensor] = lambda t: t) -> Tensor:
    """COARSE + 1 places from low to high, in equal steps before the curve."""
    share = torch.arange(COARSE + 1, dtype=u.dtype, device=u.device) / COARSE
    return curve(low + (high - low) * share).reshape(-1, *[1] * u.ndim)


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


def relative(z: Tensor, scale: float | Tensor) -> tuple[Tensor, Tensor]:
    """(u = z/σ less its largest, 0 in a row that has NaN or +∞; that row's NaN, 0 for the others) in float64."""
    wide = z.double()
    wrong = (wide.isnan() | (wide == math.inf)).any(-1, keepdim=True)
    wide = wide.masked_fill(wrong, 0.0)
    u = (wide - row_maximum(wide)) / scale
    return u, torch.where(wrong, math.nan, 0.0)


def halved_sum(terms: Tensor) -> Tensor:
    """Σ over the first axis, in the same order for every place: equal scores get equal probabilities."""
    if is_keeping():  # of nodes whose number depends on that of the scores
        return terms.sum(0)
    while (count := sizes(terms)[0]) > 1:
        half = count // 2
        sums = terms[:half] + terms[half : 2 * half]
        terms = sums if count % 2 == 0 else torch.cat((sums, terms[2 * half :]))
    return terms[0]
