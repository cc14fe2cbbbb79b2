r"""normmax: p = argmax_{q∈Δ} ⟨q, x⟩ − ‖q‖_α = u/Σu,  u = relu(x − λ)^{1/β},  with λ such that Σ u^α = 1;  β = α − 1.

It is entmax-α at a temperature that each row sets itself, p = entmax_α(‖p‖_α^β x/β). `NORMMAX` is the map from x to u, whose
Jacobian has the form of every map; dividing by the sum is left to autograd:

    ∂u/∂x = diag(s) − s rᵀ,    s = u^{2−α}/β,  r = u/Σu        ∂u/∂α = s Σ(u^α log u)/(α Σu) − u log u/β

α = 1 is the limit, uniform over the largest scores, with no gradient. For rows with maximum 0 the solver seeks t = −λ ∈ (0, 1] with

    G(t) = ‖relu(t + x)‖_{α/β} = (Σ u^α)^{β/α} = 1.

G is convex with slope ≥ 1 from its root on, so Newton's steps from t = 1 never pass the root. With g = G − 1 and its slope s, each
step has g′/g + s′/s ≤ 1, by convexity: g·s falls at least fourfold, and some log₂(n) + 26 steps always suffice.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from softmaxima.core.arguments import as_scores, like_input
from softmaxima.core.contract import Map, Parameter
from softmaxima.core.rows import divisor, row_maximum, total
from softmaxima.losses._classification import prepare
from softmaxima.losses.fenchel_young import class_params, composite
from softmaxima.maps.entmax import log_on_support


def reference(x: Tensor, alpha: float) -> Tensor:
    z = x.double()
    high = z.amax(-1, keepdim=True)
    low = high - 1
    for _ in range(200):
        middle = (low + high) / 2
        above = ((z - middle).relu() ** (alpha / (alpha - 1))).sum(-1, keepdim=True) >= 1
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return (z - low).relu() ** (1 / (alpha - 1))


def forward(z: Tensor, alpha: float | Tensor) -> Tensor:
    alpha = torch.as_tensor(alpha, dtype=torch.float64, device=z.device)
    x = z.double() - row_maximum(z).double()
    beta = alpha - 1
    level = torch.ones_like(x[..., :1])
    while True:
        base = (level + x).relu()
        u = base ** (1 / beta)
        mass = (base * u).sum(-1, keepdim=True)  # Σ u^α, where u^α would multiply the rounding of u by α
        step = mass ** (1 / alpha) * torch.expm1(mass.log() * beta / alpha) / u.sum(-1, keepdim=True)  # (G − 1)/G′
        moving = step > 4e-16 * level
        if not moving.any():
            return u.to(z.dtype)
        level = torch.where(moving, level - step, level)


def _per_beta(values: Tensor, alpha: float | Tensor) -> Tensor:
    """values/β, and 0 for β = 0, where u is piecewise constant."""
    beta = torch.as_tensor(alpha, dtype=values.dtype, device=values.device) - 1
    return values / beta.masked_fill(beta == 0, math.inf)


def sensitivity(u: Tensor, z: None, alpha: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
    support, log_u = log_on_support(u)
    s = _per_beta(torch.where(support, ((2 - alpha) * log_u).exp(), 0.0), alpha)
    return s, s, u / total(u)


def alpha_gradient(u: Tensor, z: Tensor, alpha: float | Tensor) -> Tensor:
    support, log_u = log_on_support(u)
    s, _, _ = sensitivity(u, None, alpha)
    powers = torch.where(support, (alpha * log_u).exp(), 0.0)
    return s * (powers * log_u).sum(-1, keepdim=True) / (alpha * total(u)) - _per_beta(u * log_u, alpha)


def _log_powers(p: Tensor, alpha: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(log p where p > 0, α log p and −∞ elsewhere, log Σ p^α and 0 for a row of zeros)."""
    support, log_p = log_on_support(p)
    powers = (alpha * log_p).masked_fill(~support, -math.inf)
    log_sum = torch.logsumexp(powers, -1, keepdim=True)
    return log_p, powers, log_sum.masked_fill(log_sum == -math.inf, 0.0)


def norm(p: Tensor, alpha: float | Tensor) -> Tensor:
    """‖p‖_α by logarithms, as p^α underflows for large α; 1 for a row of zeros."""
    _, _, log_sum = _log_powers(p, alpha)
    return (log_sum / alpha).exp().squeeze(-1)


def norm_gradient(p: Tensor, alpha: float | Tensor) -> Tensor:
    """∂‖p‖_α/∂α = ‖p‖_α (Σ w log p − log(Σ p^α)/α)/α,  w = p^α/Σ p^α."""
    log_p, powers, log_sum = _log_powers(p, alpha)
    mean_log = ((powers - log_sum).exp() * log_p).sum(-1, keepdim=True)
    return (log_sum / alpha).exp() * (mean_log - log_sum / alpha) / alpha


NORMMAX = Map(
    name="normmax_bisect",
    reference=reference,
    forward=forward,
    sensitivity=sensitivity,
    regulariser=norm,  # of p = u/Σu
    params=(
        Parameter(
            name="alpha",
            default=2,
            examples=(1.1, 1.5, 2.0, 5.0),
            valid=lambda alpha: (alpha >= 1) & (alpha < math.inf),
            domain="at least 1 and finite",
            gradient=alpha_gradient,
            regulariser_gradient=norm_gradient,
        ),
    ),
    source="Blondel, Martins & Niculae (2020), arXiv:1901.02324; Santos et al. (2024), arXiv:2402.13725",
)


def normmax(x: Any, dim: int, alpha: float | Tensor) -> Any:
    """Computed in float64 throughout, where u and its sum are both exact enough for every dtype."""
    scores = as_scores(NORMMAX.name, x)
    u = NORMMAX(scores.double(), dim, alpha=alpha)
    return like_input((u / divisor(u.sum(dim, keepdim=True))).to(scores.dtype), x)


def normmax_loss(x: Any, target: Any, alpha: float | Tensor, *, ignore_index: int, reduction: str) -> Any:
    """The Fenchel–Young loss L = max_p (⟨p, x⟩ − ‖p‖_α) + ‖y‖_α − ⟨y, x⟩; ∂L/∂x = p − y."""
    batch = prepare("normmax_bisect_loss", x, target, None, ignore_index, reduction, 0.0)
    params = class_params(batch, NORMMAX, {"alpha": alpha})
    return batch.result(composite(batch, NORMMAX, params, probabilities=partial(normmax, dim=-1)))
