r"""Extremes of a sum of exponentials over a ball of ℓ2: δ with ‖δ‖ = r at which LSE(z + δ) is greatest or least.

At both, δ = ± r p/‖p‖ with p = softmax(z + δ), so that |δ_j| e^{∓|δ_j|} is a multiple of e^{z_j}, the same for all j.

**The least** is that of a convex function. With v = −δ, v_j e^{v_j} = e^{a + z_j}: v_j = ω(z_j + a), Wright's omega function, which
rises with a. One a has ‖v‖ = r.

**The greatest** is that of a convex function too, which may have many local maxima. In s_j = δ_j² it is that of Σ e^{z_j} e^{√s_j}
with Σ s_j = r², and e^{√s} is concave where s ≤ 1 and convex beyond. Of two s_j above 1 the sum would grow by moving s from one to
the other, so at most one δ_j is above 1, and by exchange it is that of the largest z. The greatest value is therefore on one
curve, with t the δ of the largest score:

    u_j − log u_j = (t − log t) + (z_top − z_j),    0 ≤ u_j ≤ 1,    δ(t) = (t; u_j(t)).

For t ≤ 1 all of δ(t) rises with t, and one t has ‖δ‖ = r; that is all where r ≤ 1. Beyond t = 1 the u_j fall. An interval [a, b]
of t then holds no root of ‖δ(t)‖ = r unless r lies between ‖(a; u(b))‖ and ‖(b; u(a))‖, and no value above LSE(z + (b; u(a))):
intervals are halved in eight until none can hold more than what was attained. What is left after that is told as a bound.

`opposed` has one more coordinate, that of a score whose probability is sought: δ_i = −Σδ_j, because LSE does not move with a
constant.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

HALVINGS = 60
NEWTON = 12  # quadratic from the first step on; 8 suffice
LEVELS = 17  # 32 · 8^16 intervals are as narrow as float64 can tell
FIRST, SPLIT = 32, 8
MOST = 2**22  # numbers of the intervals that are looked at together
LEAST_RADIUS = 1e-290  # below which directions are those of r → 0
ROUNDING = 1e-14  # by which a length of n numbers may be off, over n: some units in the last place of each, roots of `_lower_root`
CLOSE = 1e-13  # nats, by which a bound may be above what is attained


def greatest(z: Tensor, radius: Tensor, opposed: bool = False) -> tuple[Tensor, Tensor]:
    """(δ ≥ 0 of ‖δ‖ = r, a bound of the greatest value) for rows [rows, n] with a finite largest score and r [rows, 1] > 0."""
    if len(z) > (together := max(1, MOST // (FIRST * z.shape[-1]))):
        parts = [greatest(*part, opposed) for part in zip(z.split(together), radius.split(together), strict=True)]
        return torch.cat([delta for delta, _ in parts]), torch.cat([bound for _, bound in parts])
    top = z.argmax(-1, keepdim=True)
    gaps = z.gather(-1, top) - z  # ∞ at a mask
    at = _first_root(gaps, top, radius, opposed)
    best = _value(z, _scaled(_curve(gaps, top, at), radius, opposed), opposed)
    bound = best
    if bool((radius > 1).any()):
        at, best, bound = _beyond_one(z, gaps, top, radius, opposed, at, best)
    return _scaled(_curve(gaps, top, at), radius, opposed), bound


def least(z: Tensor, radius: Tensor, opposed: bool = False) -> Tensor:
    """v ≥ 0 of ‖v‖ = r with which LSE(z − v) is least, for rows and r as of `greatest`."""
    n = z.shape[-1]
    z = z - z.amax(-1, keepdim=True)
    smallest = radius / (math.sqrt(2) * n)  # at most: v of the largest score
    low, high = smallest + smallest.log(), radius + radius.log()
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        small = length(_omega(z + middle), opposed) < radius
        low, high = torch.where(small, middle, low), torch.where(small, high, middle)
    return _scaled(_omega(z + (low + high) / 2), radius, opposed)


def length(delta: Tensor, opposed: bool = False) -> Tensor:
    """‖δ‖ of δ ≥ 0, whose squares may be beyond float64."""
    most = delta.amax(-1, keepdim=True).clamp_min(torch.finfo(delta.dtype).tiny)
    share = delta / most
    squares = share.square().sum(-1, keepdim=True)
    return most * (squares + share.sum(-1, keepdim=True) ** 2 if opposed else squares).sqrt()


def _scaled(delta: Tensor, radius: Tensor, opposed: bool) -> Tensor:
    """Of length r: what rounding left of it, and of an interval's middle what lies beside the root."""
    return delta * (radius / length(delta, opposed))


def _value(z: Tensor, delta: Tensor, opposed: bool) -> Tensor:
    """LSE(z + δ), and less the opposed score where there is one."""
    value = (z + delta).logsumexp(-1)
    return value + delta.sum(-1) if opposed else value


def _curve(gaps: Tensor, top: Tensor, t: Tensor) -> Tensor:
    """δ(t)."""
    above = torch.where(t < 0.5, (t - 1) - t.log(), (t - 1) - torch.log1p((t - 1).clamp_min(-0.5)))  # t − log t − 1 ≥ 0
    below = _lower_root(gaps + above)
    return below.scatter(-1, top, t)


def _lower_root(d: Tensor) -> Tensor:
    """u in [0, 1] with u − log u = 1 + d, d ≥ 0: by Newton for s = log u, where e^s − s is convex."""
    d = d.clamp(0.0, 800.0)  # e^−800 is 0
    lowest = -1 - d  # s is above, for e^s > 0
    s = torch.maximum(lowest, -(2 * d).sqrt() - d / 2)
    for _ in range(NEWTON):
        slope = torch.expm1(s)
        s = torch.maximum(lowest, torch.where(slope < 0, s - (slope - s - d) / slope, s)).clamp_max(0.0)
    return s.exp()


def _omega(z: Tensor) -> Tensor:
    """v with v + log v = z: by Newton for s = log v from above, where e^s + s is convex."""
    bounded = z.clamp_min(-800.0)
    s = torch.where(bounded <= 1, bounded, bounded.clamp_min(1.0).log())
    for _ in range(NEWTON):
        e = s.exp()
        s = s - (e + s - bounded) / (e + 1)
    return s.exp().masked_fill(z <= -800.0, 0.0)


def _first_root(gaps: Tensor, top: Tensor, radius: Tensor, opposed: bool) -> Tensor:
    """t ≤ 1 with ‖δ(t)‖ = r, or 1 where there is none."""
    low, high = torch.zeros_like(radius), radius.clamp_max(1.0)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        small = length(_curve(gaps, top, middle), opposed) < radius
        low, high = torch.where(small, middle, low), torch.where(small, high, middle)
    return high


def _beyond_one(
    z: Tensor, gaps: Tensor, top: Tensor, radius: Tensor, opposed: bool, at: Tensor, best: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """(t, what is attained there, a bound) with what t > 1 may give."""
    row = (radius > 1).squeeze(-1).nonzero().squeeze(-1)
    width = (radius[row] - 1) / FIRST
    place = torch.arange(FIRST, dtype=z.dtype, device=z.device)
    a = (1 + width * place).flatten()
    b, row = a + width.expand(-1, FIRST).flatten(), row.repeat_interleave(FIRST)
    at = at.clone()
    bound = best
    for _ in range(LEVELS):
        a, b, row, upper = _kept(z, gaps, top, radius, opposed, a, b, row)
        middle = ((a + b) / 2).unsqueeze(-1)
        candidate = _scaled(_curve(gaps[row], top[row], middle), radius[row], opposed)
        value = _value(z[row], candidate, opposed)
        best = best.scatter_reduce(0, row, value, "amax")
        here = value >= best[row]
        at[row[here]] = middle[here]
        open_ = upper > best[row] + CLOSE * (1 + best[row].abs())
        bound = best.scatter_reduce(0, row[open_], upper[open_], "amax")
        a, b, row = a[open_], b[open_], row[open_]
        if len(row) == 0 or len(row) * SPLIT * z.shape[-1] > MOST:
            break
        part = torch.arange(SPLIT + 1, dtype=z.dtype, device=z.device) / SPLIT
        edges = a.unsqueeze(-1) + (b - a).unsqueeze(-1) * part
        a, b, row = edges[:, :-1].flatten(), edges[:, 1:].flatten(), row.repeat_interleave(SPLIT)
    return at, best, torch.maximum(bound, best + CLOSE * (1 + best.abs()))


def _kept(
    z: Tensor, gaps: Tensor, top: Tensor, radius: Tensor, opposed: bool, a: Tensor, b: Tensor, row: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The intervals that can hold a root, and the most that each can hold."""
    gaps, top, radius = gaps[row], top[row], radius[row]
    a, b = a.unsqueeze(-1), b.unsqueeze(-1)
    first, last = _curve(gaps, top, a), _curve(gaps, top, b)
    smallest, largest = last.scatter(-1, top, a), first.scatter(-1, top, b)
    slack = ROUNDING * z.shape[-1]
    may = (length(smallest, opposed) <= radius * (1 + slack)) & (length(largest, opposed) >= radius * (1 - slack))
    may = may.squeeze(-1)
    return a[may, 0], b[may, 0], row[may], _value(z[row[may]], largest[may], opposed)


class _FirstOrder(Function):
    """A value whose point is held fixed: its first derivative is that of the extreme (Danskin), a second one would not be."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, name: str) -> Tensor:
        ctx.name = name
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None]:
        if torch.is_grad_enabled():
            raise NotImplementedError(
                f"{ctx.name}: under ℓ2 there is a first derivative alone, got create_graph=True; differentiate without it"
            )
        return slopes[0], None


def first_order(name: str, value: Tensor) -> Tensor:
    """The value, which may be differentiated once."""
    found: Any = _FirstOrder.apply(value, name)
    return found
