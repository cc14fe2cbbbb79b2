r"""The threshold of entmax-α: the T with Σ_i exp_β(x_i − T) = 1, for rows x whose maximum is 0, β = α − 1 ≥ 0.

    exp_β(t) = relu(1 + βt)^{1/β}        (β → 0: exp(t);  β = 1: relu(1 + t))

is smooth in β, so this form of entmax, p = exp_β(x − T), passes through softmax at β = 0 without cancellation (with
λ = βT − 1 it is relu(βx − λ)^{1/β}). T lies in [0, (1 − n^{−β})/β].

F(T) = Σ exp_β(x_i − T) decreases. F^β is a norm with exponent 1/β of relu of an affine function: convex for β ≤ 1, and linear
while the support is a set of equal scores, or the row is at β = 0. So Newton's step on H(T) = (F^β − 1)/β from the left
never passes the root, and is exact for softmax, for sparsemax once its support is found, and for ties. A bracket and every
third step a bisection bound the steps also for β > 1, where H is not convex.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from softmaxima._rows import row_maximum
from softmaxima._series import expm1_ratio

# Newton takes 3 to 8 steps; bisecting every third step, 200 shrink the bracket below the rounding of float64.
_MAX_STEPS = 200


def deformed_exp(t: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """(exp_β(t), −∂exp_β(x − T)/∂T = exp_β(t)^{1−β})."""
    base = 1 + beta * t
    inside = ~(base <= 0)  # True for NaN
    exponent = torch.where(beta == 0, t, torch.log1p(beta * t) / beta)
    value = torch.where(inside, exponent.exp(), 0.0)
    return value, torch.where(inside, value / base, 0.0)


def deformed_exp_1(t: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """The case β = 1, sparsemax."""
    value = (1 + t).relu()
    return value, (value > 0).to(t.dtype)


def deformed_exp_half(t: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """The case β = ½, entmax-1.5."""
    slope = (1 + t / 2).relu()
    return slope.square(), slope


def entmax_rows(z: Tensor, beta: float | Tensor) -> Tensor:
    """entmax of the rows of z [..., n], β a number or a tensor [..., 1]."""
    level = torch.as_tensor(beta, dtype=torch.float64, device=z.device)
    return _entmax_rows(z, level) if torch.compiler.is_compiling() else _solve(z, level)


def _solve(z: Tensor, beta: Tensor) -> Tensor:
    """In float64 throughout: the threshold's rounding counts once for every score of the support."""
    deform = deformed_exp
    if beta.numel() == 1:
        deform = {1.0: deformed_exp_1, 0.5: deformed_exp_half}.get(beta.item(), deformed_exp)
    x = z.double() - row_maximum(z).double()
    x = x.clamp_min(torch.finfo(torch.float64).min)  # 0·(−∞) is NaN
    log_n = math.log(z.shape[-1])
    low, high = torch.zeros_like(x[..., :1]), (log_n * expm1_ratio(-beta * log_n)).expand(*x.shape[:-1], 1)
    threshold = low
    for step in range(_MAX_STEPS):
        value, slope = deform(x - threshold, beta)
        mass, slope = value.sum(-1, keepdim=True), slope.sum(-1, keepdim=True)
        low = torch.where(mass >= 1, threshold, low)
        high = torch.where(mass <= 1, threshold, high)
        log_mass = mass.log()
        newton = threshold + mass * (-beta * log_mass).exp() * log_mass * expm1_ratio(beta * log_mass) / slope
        accept = (newton > low) & (newton < high) & ((beta <= 1) | (step % 3 != 2))
        proposal = torch.where(accept, newton, (low + high) / 2)
        error = (mass - 1).abs()
        rounding = 4e-16 * threshold.clamp_min(1.0)
        still = ((newton - threshold).abs() <= rounding) & ((beta <= 1) | (error <= 1e-12))
        settled = (error <= 1e-15) | (high - low <= rounding) | still
        moving = ~(settled | mass.isnan() | (mass == 0))
        if not moving.any():
            break
        threshold = torch.where(moving, proposal, threshold)
    value, _ = deform(x - threshold, beta)
    return (value + 0 * value.sum(-1, keepdim=True)).to(z.dtype)  # NaN anywhere in a row makes the row NaN


@torch.library.custom_op("softmaxima::entmax_rows", mutates_args=())
def _entmax_rows(z: Tensor, beta: Tensor) -> Tensor:
    """The solver as one operation, for its number of steps depends on the data, which torch.compile cannot trace."""
    return _solve(z, beta)


@_entmax_rows.register_fake
def _(z: Tensor, beta: Tensor) -> Tensor:
    return torch.empty_like(z)
