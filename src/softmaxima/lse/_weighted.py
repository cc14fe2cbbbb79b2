r"""Weighted sums: log|S| and the sign of S = Σ b_i exp(z_i), for weights b of either sign.

    S = 2^k e^M (m + r),  M the score of the largest |b_i exp(z_i)|,  m what the scores equal to M contribute,  r the others
    ∂log|S|/∂z_i = b_i exp(z_i)/S          ∂log|S|/∂b_i = exp(z_i)/S, also where b_i = 0

A weight of 0 removes its score, whatever that is; several +∞ share the gradient by their weights, and cancel to NaN. Where S is
exactly 0, of terms that cancel as of none, log|S| is −∞, its sign 0, and its gradient zero.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.compiler import is_compiling

from softmaxima.core.envelope import with_slope
from softmaxima.core.fused import is_fusible
from softmaxima.core.routing import is_native
from softmaxima.core.temperature import anchored
from softmaxima.core.tracing import may_differentiate
from softmaxima.kernels import native

LARGEST_GAP = 1418.0  # e^(gap/2) is finite, times a scale above 1 that is taken off it
SAFE_GAP = 600.0  # e^gap has room for its derivatives
UNDECIDED = 2.0  # the sign that the native kernel gives rows with +∞, NaN, or weights of unusual size
ORDINARY_EXPONENT = 500  # sums of so large and products of so small weights stay inside float64


def weighted_logsumexp(x: Tensor, weights: Tensor, tau: float | Tensor, where: Tensor | None) -> tuple[Tensor, Tensor]:
    """(log|S| [...], the sign of S [...]) of S = Σ b_i exp(x_i/τ) in float64, x and b [..., n], n > 0."""
    readable = is_native(x) and is_fusible(x, weights, tau, where) and not is_compiling() and not may_differentiate((x,))
    if readable and x.numel() > 0:
        value, sign = native.weighted(x, weights, tau, where)
        if not bool((sign == UNDECIDED).any()):
            return value, sign
    top, z = anchored(x, tau, where, used=weights != 0)
    value, sign = _composed(z, weights.to(torch.float64))
    return (value + top.squeeze(-1)).masked_fill(value == -math.inf, -math.inf), sign  # with a gradient of 0, by τ too


def _composed(z: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The same of torch's operations, which autograd follows: z and weights in float64."""
    with torch.no_grad():
        used = weights != 0
        size = (z + weights.abs().log()).masked_fill(~used | (z == -math.inf), -math.inf)  # log|b_i exp(z_i)|
        largest, first = size.max(-1, keepdim=True)
        nothing, infinite = largest == -math.inf, size == math.inf
        overflows = infinite.any(-1, keepdim=True)
        origin = z.gather(-1, first).masked_fill(nothing | overflows, 0.0)
        size_of_weight = weights.gather(-1, first).abs()
        power = torch.where((size_of_weight > 0) & (size_of_weight < math.inf), size_of_weight, 1.0).log2()
        power = torch.where((power.abs() > ORDINARY_EXPONENT) & ~overflows, 2 * (power / 2).floor(), 0.0)
        scale = 2.0 ** (-power / 2)
        most = LARGEST_GAP + power.clamp_max(0.0) * math.log(2)
        relative = torch.where(used, z - origin, torch.minimum(z - origin, most)).masked_fill(~used & ~z.isfinite(), -math.inf)
        relative = torch.where(overflows, torch.where(infinite, 0.0, -math.inf), relative).masked_fill(size.isnan(), math.nan)
    # No product overflows, nor does its derivative: where a root is large, its weight is small.
    root = (with_gradient_of(z, relative) / 2).exp() * scale
    root = torch.where(used | (relative.abs() < SAFE_GAP), root, root.detach())  # of no weight and far away, by the weight alone
    terms = weights * root * root
    total = terms.sum(-1, keepdim=True)
    with torch.no_grad():
        at_origin = used & (relative == 0)
        m = terms.masked_fill(~at_origin, 0.0).sum(-1, keepdim=True)
        r = terms.masked_fill(at_origin, 0.0).sum(-1, keepdim=True)
        share = r / m
        log_sum = torch.where(share.abs() <= 0.5, m.abs().log() + torch.log1p(share), (m + r).abs().log())
        value = origin + (log_sum + power * math.log(2))
        opposed = (infinite & (weights > 0)).any(-1, keepdim=True) & (infinite & (weights < 0)).any(-1, keepdim=True)
        value = torch.where(overflows & ~value.isnan(), math.inf, value).masked_fill(opposed, math.nan)
        sign = (m + r).sign().masked_fill(value.isnan(), math.nan)
    total = total.masked_fill((total == 0) & ~value.isnan(), 1.0)  # whose logarithm has the gradient 0
    return with_gradient_of(total.abs().log(), value).squeeze(-1), sign.squeeze(-1)


def with_gradient_of(y: Tensor, value: Tensor) -> Tensor:
    """`value`, with the derivatives of y: where y is rounded more than the value, or is infinite."""
    return with_slope(value.detach().unsqueeze(-1), y.unsqueeze(-1), torch.ones_like(y).unsqueeze(-1)).squeeze(-1)
