r"""entmax-α below α = 1: p_i = (βx_i − λ)^{1/β} with λ such that Σp = 1, −1 < β = α − 1 < 0.

The bracket is positive, 1/β negative, and every finite score gets a positive probability with a tail heavier than softmax's,
~ |x|^{1/β}. In the variable of `_threshold.py`, for rows with maximum 0,

    p_i = e^{−Λ} ρ_i^{1/β},    ρ_i = 1 + βx_i e^{βΛ} ≥ 1,    F(Λ) = Σ p_i = 1,    Λ ∈ [0, log n],

F^β is a power mean of affine functions of e^{−βΛ}, concave and increasing as β < 0, so Newton's steps for F^β = 1 from Λ = 0 never
pass the root. With g = 1 − F^β and its slope s, each step has g′/g + s′/s ≤ 1, by convexity: g·s falls at least fourfold.
"""

from __future__ import annotations

import torch
from torch import Tensor

from softmaxima.base.rows import row_maximum, total
from softmaxima.base.series import expm1_ratio
from softmaxima.base.tracing import is_eager

STEPS = 16  # of which 11 are taken at the most, also at α next to 0 and to 1, of 10⁵ scores, and of those of 10³⁰


def literal_rows(x: Tensor, beta: Tensor) -> Tensor:
    """The definition, by bisection."""
    z = beta * x.double()
    low, high = z.amin(-1, keepdim=True) - x.shape[-1] ** -beta, z.amin(-1, keepdim=True) - 1
    for _ in range(200):
        middle = (low + high) / 2
        above = ((z - middle) ** (1 / beta)).sum(-1, keepdim=True) >= 1
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return (z - high) ** (1 / beta)


def dense_rows(z: Tensor, beta: Tensor) -> Tensor:
    """In float64."""
    x = z.double() - row_maximum(z).double()
    p, level = x, torch.zeros_like(x[..., :1])
    for _ in range(STEPS):
        excess = beta * x * (beta * level).exp()  # ρ − 1
        p = (torch.log1p(excess) / beta - level).exp()
        mass, slope = p.sum(-1, keepdim=True), (p / (1 + excess)).sum(-1, keepdim=True)
        step = mass * mass.log() / slope * expm1_ratio(-beta * mass.log())  # (F^{1−β} − F) / (−β F′)
        higher = level - torch.log1p(-beta * step) / beta
        moving = higher - level > 4e-16 * level.clamp_min(1.0)
        if is_eager(moving) and not moving.any():
            break
        level = torch.where(moving, higher, level)
    return p / total(p)
