r"""The threshold of entmax-α, for rows x whose maximum is 0 and β = α − 1 ≥ 0, in the variable Λ = −log p_max:

    p_i = e^{−Λ} ρ_i^{1/β},    ρ_i = relu(1 + βx_i e^{βΛ}),    Λ ∈ [0, log n] with F(Λ) = Σ p_i = 1

At β = 0 this is p = exp(x − Λ), so softmax is met without cancellation; for large β, where p is a high root of a small number,
equal scores still share exactly. (With λ = −e^{−βΛ} it is relu(βx − λ)^{1/β}.)

F decreases; with w_i = p_i/ρ_i its slope is F′ = −Σw. As a function of e^{−βΛ}, F^β is a norm with exponent 1/β of relu of affine
functions: convex for β ≤ 1, and linear for equal scores, for a known support of sparsemax, and at β = 0. Newton's step on F^β,

    Λ ← Λ − log1p(−βD)/β,    D = F^{1−β} (F^β − 1)/(β Σw),

then never passes the root from the left, and is exact in those cases. For β > 1 the step is Newton's on log F, and every third step
bisects.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.rows import normalise_exp, number_like, row_length, row_maximum
from softmaxima.base.series import expm1_ratio
from softmaxima.base.tracing import is_exporting_to_onnx

# Newton takes 3 to 8 steps; bisecting every third step, 200 shrink the bracket below the rounding of float64.
_MAX_STEPS = 200


def _rows(x: Tensor, level: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """(p, w) at Λ = level."""
    ratio = torch.where(x == 0, 0.0, beta * x * (beta * level).exp())
    support = ~(ratio <= -1)  # True for NaN
    inside = torch.where(support, ratio, 0.0)
    # log1p(βx)/β → x as β → 0
    log_p = torch.where(beta == 0, x, torch.log1p(inside) / beta) - level
    p = torch.where(support, log_p.exp(), 0.0)
    return p, p / (1 + inside)


def _sparsemax_rows(x: Tensor, level: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """(p, w) for β = 1."""
    largest = (-level).exp()
    p = (largest + x).relu()
    return p, largest * (p > 0)


def _entmax15_rows(x: Tensor, level: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """(p, w) for β = ½."""
    largest = (-level / 2).exp()
    root = (largest + x / 2).relu()
    return root.square(), largest * root


def entmax_rows(z: Tensor, beta: float | Tensor) -> Tensor:
    """entmax of the rows of z [..., n], β a number or a tensor [..., 1]."""
    if is_exporting_to_onnx():
        return _unrolled(z, beta)
    return _solve(z, number_like(beta, z))


def _solve(z: Tensor, beta: Tensor) -> Tensor:
    """In float64 throughout: the threshold's rounding counts once for every score of the support."""
    evaluate = _rows
    if beta.numel() == 1:
        evaluate = {1.0: _sparsemax_rows, 0.5: _entmax15_rows}.get(beta.item(), _rows)
    x = z.double() - row_maximum(z).double()
    x = x.clamp_min(torch.finfo(torch.float64).min)  # 0·(−∞) is NaN
    level = low = torch.zeros_like(x[..., :1])
    high = torch.full_like(low, math.log(z.shape[-1]))
    for step in range(_MAX_STEPS):
        p, weights = evaluate(x, level, beta)
        mass, slope = p.sum(-1, keepdim=True), weights.sum(-1, keepdim=True)
        low = torch.where(mass >= 1, level, low)
        high = torch.where(mass <= 1, level, high)
        log_mass = mass.log()
        ascent = mass * log_mass / slope
        convex = ascent * expm1_ratio(-beta * log_mass)  # D
        newton = level + torch.where(beta <= 1, torch.where(beta == 0, convex, -torch.log1p(-beta * convex) / beta), ascent)
        accept = (newton > low) & (newton < high) & ((beta <= 1) | (step % 3 != 2))
        proposal = torch.where(accept, newton, (low + high) / 2)
        error = (mass - 1).abs()
        rounding = 4e-16 * level.clamp_min(1.0)
        still = ((newton - level).abs() <= rounding) & ((beta <= 1) | (error <= 1e-12))
        settled = (error <= 1e-15) | (high - low <= rounding) | still
        moving = ~(settled | mass.isnan() | (mass == 0))
        if not moving.any():
            break
        level = torch.where(moving, proposal, level)
    p, _ = evaluate(x, level, beta)
    mass = p.sum(-1, keepdim=True)
    if bool((unresolved := (mass > 0) & ((mass - 1).abs() > 1e-12)).any()):
        p = torch.where(unresolved, _between(evaluate(x, low, beta)[0], evaluate(x, high, beta)[0]), p)
    # Above the edge of the support by no more than its rounding; for β > 1 that would not be little.
    edge = -(-beta * level).exp() / beta.masked_fill(beta == 0, 1.0)
    p = p.masked_fill((x <= edge * (1 - 16 * torch.finfo(torch.float64).eps)) & (beta > 0) & (beta <= 1), 0.0)
    return (p + 0 * mass).to(z.dtype)  # NaN anywhere in a row makes the row NaN


def _between(above: Tensor, below: Tensor) -> Tensor:
    """The mixture with mass 1 of rows of mass ≥ 1 and ≤ 1, whose Λ are neighbouring numbers.

    For β > 1 a score enters with infinite slope: the resolution of Λ leaves a jump there, and that score takes what is missing.
    """
    excess, lack = above.sum(-1, keepdim=True) - 1, 1 - below.sum(-1, keepdim=True)
    share = torch.where(lack > 0, excess / (excess + lack), 0.0)
    return above + share * (below - above)


# Without a loop whose length depends on the data, for ONNX -------------------------------------------------------------------

_HALVINGS = 60


def _unrolled(z: Tensor, beta: float | Tensor) -> Tensor:
    if not isinstance(beta, Tensor) and beta == 0:
        return normalise_exp(z)
    x = z.double() - row_maximum(z).double()
    closed = not isinstance(beta, Tensor) and beta in (0.5, 1.0)
    p = _by_sorting(x, beta) if closed else _by_halving(x, beta)
    return (p + 0 * x.clamp_min(-1.0).sum(-1, keepdim=True)).to(z.dtype)  # NaN anywhere in a row makes the row NaN


def _by_sorting(x: Tensor, beta: Any) -> Tensor:
    """relu(βx − λ)^{1/β} for β = 1 or ½, where λ is in closed form once the support is known."""
    ordered = (beta * x).clamp_min(-2.0).sort(dim=-1, descending=True).values  # no score so low is in the support
    k = (ordered <= 0).to(x.dtype).cumsum(-1)  # by no size, which torch's exporter takes for a constant after unflatten
    mean = ordered.cumsum(-1) / k
    # Σ (z − λ) = 1, or Σ (z − λ)² = 1
    spread = (ordered.square().cumsum(-1) / k - mean.square()).clamp_min(0.0)
    candidates = mean - 1 / k if beta == 1 else mean - (1 / k - spread).clamp_min(0.0).sqrt()
    support = (ordered >= candidates).sum(-1, keepdim=True)
    return (beta * x - candidates.gather(-1, support - 1)).relu() ** (1 / beta)


def _by_halving(x: Tensor, beta: float | Tensor) -> Tensor:
    order = number_like(beta, x, x.dtype).clamp_min(1e-8)  # where it is softmax to eight digits
    z = order * x
    at = lambda level: (z - level).relu() ** (1 / order)
    low = torch.full_like(z[..., :1], -1.0)
    high = -(row_length(x) ** -order) + torch.zeros_like(low)
    low, high = halved(low, high, lambda level: at(level).sum(-1, keepdim=True) >= 1)
    return torch.where(x.isfinite().any(-1, keepdim=True), _between(at(low), at(high)), 0.0)


def halved(low: Tensor, high: Tensor, is_below: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """The ends between which `is_below(level)` ceases to hold."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        below = is_below(middle)
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return low, high
