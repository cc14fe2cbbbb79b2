r"""Weighted sums: log|S| and the sign of S = Σ b_i exp(z_i), for weights b of either sign.

    S = e^{M/τ} (m + r),  M the score of the largest |b_i exp(x_i/τ)|          (m and r of `base/monoid.py`, with signs)
    ∂log|S|/∂z_i = b_i exp(z_i)/S          ∂log|S|/∂b_i = exp(z_i)/S, also where b_i = 0;  z = x/τ

A weight of 0 removes its score, whatever that is; +∞ of weights of either sign cancel to NaN, and beside any +∞ the gradient is
NaN. Where S is exactly 0, of terms that cancel as of none, log|S| is −∞, its sign 0, and its gradient zero.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from softmaxima.base.monoid import LogSum, nothing, terms_apart
from softmaxima.base.temperature import anchored, anchored_at
from softmaxima.base.tracing import may_differentiate, sizes
from softmaxima.engine.envelope import with_slope
from softmaxima.engine.fused import fused, is_readable
from softmaxima.kernels import native

LARGEST_GAP = 1418.0  # e^(gap/2) is finite, times a scale above 1 that is taken off it
SAFE_GAP = 600.0  # e^gap has room for its derivatives
UNDECIDED = 2.0  # the sign that the native kernel gives rows with +∞, NaN, or weights of unusual size
ORDINARY_EXPONENT = 500  # sums of so large and products of so small weights stay inside float64


def weighted_logsumexp(x: Tensor, weights: Tensor, tau: float | Tensor, where: Tensor | None) -> tuple[Tensor, Tensor]:
    """(log|S| [...], the sign of S [...]) of S = Σ b_i exp(x_i/τ) in float64, x and b [..., n], n > 0."""

    def total(x: Tensor) -> LogSum:
        wide = x.double() if where is None else x.double().masked_fill(~where, -math.inf)
        return weighted_sum(wide, weights.double(), tau)

    if is_readable(x, weights, tau, where) and x.numel() > 0:
        value, sign, states = native.weighted(x.detach(), weights, tau, where, wide=may_differentiate((x,)))
        if not bool((sign == UNDECIDED).any()):
            pull = lambda g, x, b, sign, states: native.weighted_backward(x, b, sign, states, g, tau, where)
            kept = () if states is None else (weights, sign.clone(), states)
            return fused(lambda x, gradient: (value, pull, kept), lambda x: total(x).value(tau).squeeze(-1), x), sign
    whole = total(x)
    return whole.value(tau).squeeze(-1), whole.sign.squeeze(-1)


def weighted_sum(x: Tensor, weights: Tensor, tau: float | Tensor) -> LogSum:
    """The sum over each row of x and weights [..., n], in float64, by torch's operations, which autograd follows.

    M is the score of the largest term; where its weight is beyond float64's roots, M takes that from m and r.
    """
    if sizes(x)[-1] == 0:
        return nothing(x)
    known, used, fixed_tau = x.detach(), weights.detach() != 0, tau.detach() if isinstance(tau, Tensor) else tau
    size = anchored(known, fixed_tau, None, used)[1] + weights.detach().abs().log()  # log|b_i exp(z_i)|, up to a constant
    size = size.masked_fill(~used | (known == -math.inf), -math.inf)
    largest, first = size.max(-1, keepdim=True)
    infinite, silent = size == math.inf, largest == -math.inf
    overflows = infinite.any(-1, keepdim=True)
    origin = known.gather(-1, first).masked_fill(silent | overflows, 0.0)
    size_of_weight = weights.detach().gather(-1, first).abs()
    power = torch.where((size_of_weight > 0) & (size_of_weight < math.inf), size_of_weight, 1.0).log2()
    power = torch.where((power.abs() > ORDINARY_EXPONENT) & ~overflows, 2 * (power / 2).floor(), 0.0)
    most = LARGEST_GAP + power.clamp_max(0.0) * math.log(2)
    z = anchored_at(origin, x, tau)[1]
    relative = torch.where(used, z, torch.minimum(z, most)).masked_fill(~used & ~known.isfinite(), -math.inf)
    relative = torch.where(overflows, torch.where(infinite, 0.0, -math.inf), relative).masked_fill(size.isnan(), math.nan)
    top = origin + power * math.log(2) * fixed_tau
    # No product overflows, nor does its derivative: where a root is large, its weight is small.
    scale = (((origin - top) / tau + power * math.log(2)) / 2).exp() * 2.0 ** (-power / 2)  # the first factor is 1, to a rounding
    slope = torch.ones_like(relative).masked_fill(overflows, math.nan)  # nobody can say the shares of infinities
    root = (with_slope(relative.detach().unsqueeze(-1), z.unsqueeze(-1), slope.unsqueeze(-1)).squeeze(-1) / 2).exp() * scale
    root = torch.where(used | (relative.abs() < SAFE_GAP), root, root.detach())  # of no weight and far away, by the weight alone
    ties, rest = terms_apart(weights * root * root, used & (relative == 0))
    opposed = (infinite & (weights > 0)).any(-1, keepdim=True) & (infinite & (weights < 0)).any(-1, keepdim=True)
    top = top.masked_fill(overflows, math.inf).masked_fill(silent, -math.inf)
    return LogSum(top, ties.masked_fill(opposed, math.nan), rest)


def with_gradient_of(y: Tensor, value: Tensor) -> Tensor:
    """`value`, with the derivatives of y: where y is rounded more than the value, or is infinite."""
    return with_slope(value.detach().unsqueeze(-1), y.unsqueeze(-1), torch.ones_like(y).unsqueeze(-1)).squeeze(-1)
