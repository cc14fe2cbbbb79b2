r"""entmax-α for every α > 0: p_i = (βx_i − λ)^{1/β} with λ such that Σp = 1, β = α − 1.

From α = 1 on it is `maps.entmax`. Below 1 the bracket is positive, 1/β negative, and every finite score gets a positive
probability with a tail heavier than softmax's, ~ |x|^{1/β}. In the variable of `maps/_threshold.py`, for rows with maximum 0,

    p_i = e^{−Λ} ρ_i^{1/β},    ρ_i = 1 + βx_i e^{βΛ} ≥ 1,    F(Λ) = Σ p_i = 1,    Λ ∈ [0, log n],

F^β is a power mean of affine functions of e^{−βΛ}, concave and increasing as β < 0, so Newton's steps for F^β = 1 from Λ = 0 never
pass the root. With g = 1 − F^β and its slope s, each step has g′/g + s′/s ≤ 1, by convexity: g·s falls at least fourfold.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from softmaxima.core.contract import Map
from softmaxima.core.rows import row_maximum, total
from softmaxima.core.series import expm1_ratio
from softmaxima.maps.entmax import ENTMAX


def reference(x: Tensor, alpha: float | Tensor) -> Tensor:
    """For α < 1; from 1 on it is that of entmax."""
    beta = torch.as_tensor(alpha, dtype=torch.float64, device=x.device) - 1
    z = beta * x.double()
    low, high = z.amin(-1, keepdim=True) - x.shape[-1] ** -beta, z.amin(-1, keepdim=True) - 1
    for _ in range(200):
        middle = (low + high) / 2
        above = ((z - middle) ** (1 / beta)).sum(-1, keepdim=True) >= 1
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return (z - high) ** (1 / beta)


def forward(z: Tensor, alpha: float | Tensor) -> Tensor:
    alpha = torch.as_tensor(alpha, dtype=torch.float64, device=z.device)
    below = alpha < 1
    dense = _below_one(z, torch.where(below, alpha, 0.5) - 1).to(z.dtype)
    return dense if below.all() else torch.where(below, dense, ENTMAX.forward(z, alpha.clamp_min(1.0)))


def _below_one(z: Tensor, beta: Tensor) -> Tensor:
    x = z.double() - row_maximum(z).double()
    level = torch.zeros_like(x[..., :1])
    while True:
        excess = beta * x * (beta * level).exp()  # ρ − 1
        p = (torch.log1p(excess) / beta - level).exp()
        mass, slope = p.sum(-1, keepdim=True), (p / (1 + excess)).sum(-1, keepdim=True)
        step = mass * mass.log() / slope * expm1_ratio(-beta * mass.log())  # (F^{1−β} − F) / (−β F′)
        higher = level - torch.log1p(-beta * step) / beta
        moving = higher - level > 4e-16 * level.clamp_min(1.0)
        if not moving.any():
            return p / total(p)
        level = torch.where(moving, higher, level)


# The derivatives and the regulariser of entmax hold for every α > 0.
POSITIVE_ENTMAX: Map = dataclasses.replace(
    ENTMAX,
    kernel=None,  # it is for α ≥ 1
    name="entmax_bisect",
    reference=reference,
    forward=forward,
    params=(
        dataclasses.replace(
            ENTMAX.params[0],
            examples=(0.2, 0.75, 0.99),
            valid=lambda alpha: (alpha > 0) & (alpha < math.inf),
            domain="positive and finite",
        ),
    ),
)
