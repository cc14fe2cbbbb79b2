r"""budget: p = argmin_{0≤q≤1, Σq=B} ‖q − x‖² = clamp(x − λ, 0, 1), with λ such that Σp = B: the projection onto the capped simplex.

With a the indicator of 0 < p < 1, and k its number of ones,

    ∂p/∂x = diag(a) − a aᵀ/k        ∂p/∂B = a/k.

A row with fewer than B allowed scores has p = 1 on all of them.

λ lies within 1 below the ⌈B⌉-th largest score: there at most ⌈B⌉ − 1 scores are above λ, and 1 below it ⌈B⌉ have p = 1. Measured
from that score, every score with 0 < p < 1 is exact. Σp is piecewise linear in λ, so Newton's step is exact once it has the pieces.
It takes 2 to 10 steps inside a bracket; should it take more than 15, every third bisects.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor

from softmaxima.core.arguments import as_scores, like_input
from softmaxima.core.contract import Map, Parameter
from softmaxima.core.rows import row_maximum


def reference(x: Tensor, budget: float) -> Tensor:
    z = x.double()
    low, high = z.amin(-1, keepdim=True) - 1, z.amax(-1, keepdim=True)
    for _ in range(200):
        middle = (low + high) / 2
        above = (z - middle).clamp(0, 1).sum(-1, keepdim=True) >= budget
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return (z - low).clamp(0, 1)


def forward(z: Tensor, budget: float | Tensor) -> Tensor:
    budget = torch.as_tensor(budget, dtype=torch.float64, device=z.device)
    budget = torch.minimum(budget, (z > -math.inf).sum(-1, keepdim=True).double())
    rank = budget.ceil().long().clamp_min(1)
    if rank.numel() == 0:
        return z.clone()
    anchor = z.topk(int(rank.max()), -1).values.gather(-1, rank - 1).double()
    y = z.double() - anchor.masked_fill(anchor == -math.inf, 0.0)
    y = y + 0 * row_maximum(z)  # NaN or +∞ anywhere in a row makes the row NaN
    level = high = torch.zeros_like(y[..., :1])
    low = level - 1
    for step in itertools.count():
        q = y - level
        inside = (q > 0) & (q < 1)
        # the ones are counted, for a sum with them would round the rest
        lack = budget - (q >= 1).sum(-1, keepdim=True) - torch.where(inside, q, 0.0).sum(-1, keepdim=True)
        edge = torch.where(lack > 0, q == 0, q == 1)  # what the step sets in motion
        newton = level - lack / (inside | edge).sum(-1, keepdim=True).clamp_min(1)
        low, high = torch.where(lack < 0, level, low), torch.where(lack > 0, level, high)
        moving = ((newton - level).abs() > 4e-16) & (high - low > 4e-16)
        if not moving.any():
            break
        accept = (newton >= low) & (newton <= high) & (step < 15 or step % 3 != 2)
        level = torch.where(moving, torch.where(accept, newton, (low + high) / 2), level)
    return (y - level).clamp(0, 1).to(z.dtype)


def sensitivity(p: Tensor, z: None, budget: float | Tensor) -> tuple[Tensor, Tensor]:
    active = ((p > 0) & (p < 1)).to(p.dtype)
    return active, active / active.sum(-1, keepdim=True).clamp_min(1.0)


def budget_gradient(p: Tensor, z: Tensor, budget: float | Tensor) -> Tensor:
    _, share = sensitivity(p, None, budget)
    return share


BUDGET = Map(
    name="budget_bisect",
    reference=reference,
    forward=forward,
    sensitivity=sensitivity,
    params=(
        Parameter(
            name="budget",
            default=2,
            examples=(2.0, 1.0, 2.5),
            valid=lambda budget: (budget >= 0) & (budget < math.inf),
            domain="at least 0 and finite",
            gradient=budget_gradient,
        ),
    ),
    source="Wang & Lu (2015), arXiv:1503.01002",
)


def capped(x: Any, dim: int, budget: float | Tensor) -> Any:
    """In float64 throughout: probabilities that round to 1 in a narrower dtype still have their gradient."""
    scores = as_scores(BUDGET.name, x)
    return like_input(BUDGET(scores.double(), dim, budget=budget).to(scores.dtype), x)
