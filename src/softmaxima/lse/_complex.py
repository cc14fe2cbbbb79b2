r"""Sums of complex exponentials: log S = log|S| + i arg S of S = Σ b_i exp(z_i), arg S in (−π, π], by `base/monoid.py`.

Written with torch's complex operations; the gradient is that of log Σ b_i exp(z_i − M).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from softmaxima.base.monoid import LogSum, complex_log, nothing, terms_apart
from softmaxima.base.tracing import sizes
from softmaxima.lse._weighted import with_gradient_of


def complex_logsumexp(z: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """(log S, the phase S/|S|) [...] along the last axis of z [..., n], n > 0. Terms of −∞, or of weight 0, are left out."""
    total = complex_sum(z, weights)
    value = total.value(1.0).detach()
    value = torch.complex(value.real, wrapped(value.imag))
    value = or_plain(value, total.top, plain_terms(z.detach(), weights).sum(-1, keepdim=True))
    phase = torch.polar(torch.ones_like(value.real), value.imag).masked_fill(value.real == -math.inf, 0.0)
    return with_gradient_of(total.log_mass(), value).squeeze(-1), phase.squeeze(-1)


def plain_terms(z: Tensor, weights: Tensor | None = None) -> Tensor:
    """b exp(z), with the infinities of C99."""
    plain = _exp(torch.complex(z.real, _turned(z.imag)))
    return (plain if weights is None else plain * weights.detach()).masked_fill(_left_out(z, weights), 0.0)


def or_plain(value: Tensor, top: Tensor, plain: Tensor) -> Tensor:
    """log S, that of the plain sum where it is infinite or NaN."""
    return torch.where(value.isfinite() | (top.real == -math.inf), value, complex_log(plain))


def over_temperature(x: Tensor, tau: float | Tensor, where: Tensor | None) -> Tensor:
    """x/τ in double, −∞ where it is left out: a complex division makes NaN of infinities."""
    wide = x.to(torch.complex128)
    z = torch.complex(wide.real / tau, wide.imag / tau)
    return z if where is None else z.masked_fill(~where, -math.inf)


def each_complex(z: Tensor) -> LogSum:
    """The sum of each score alone, with its derivatives."""
    left_out = z.detach().real == -math.inf
    z = torch.complex(z.real.masked_fill(left_out, 0.0), _turned(z.imag).masked_fill(left_out, 0.0))
    ties = (z - z.detach()).exp().masked_fill(left_out, 0.0)
    return LogSum(z.detach().masked_fill(left_out, -math.inf), ties, torch.zeros_like(ties))


def complex_sum(z: Tensor, weights: Tensor | None) -> LogSum:
    """The sum over each row of z [..., n]."""
    if sizes(z)[-1] == 0:
        return nothing(z)
    z = torch.complex(z.real, _turned(z.imag))
    known = z.detach()
    left_out = _left_out(known, weights)
    # A finite score of weight 0 keeps its part in the gradient by the weights.
    nil = (known.real == -math.inf) | (left_out & ~known.isfinite())
    origin = known.gather(-1, known.real.masked_fill(left_out, -math.inf).argmax(-1, keepdim=True))
    origin = torch.where(origin.isfinite(), origin, 0)
    factors = (z.masked_fill(nil, 0.0) - origin).exp().masked_fill(nil, 0.0)
    terms = factors if weights is None else factors * weights.to(z.dtype)
    ties, rest = terms_apart(terms, (known == origin) & ~left_out)
    return LogSum(origin.masked_fill(left_out.all(-1, keepdim=True), -math.inf), ties, rest)


def _left_out(z: Tensor, weights: Tensor | None) -> Tensor:
    nil = z.real == -math.inf
    return nil if weights is None else nil | (weights == 0)


def _exp(z: Tensor) -> Tensor:
    """exp with the infinities of C99: exp(∞ + 0i) = ∞ + 0i and exp(∞ + ∞i) = ∞ + NaN i, where torch has NaN in both parts."""
    size = z.real.exp()
    across = torch.where(z.imag.isinf() & (size == math.inf), 1.0, z.imag.cos())
    return torch.complex(size * across, torch.where(z.imag == 0, z.imag, size * z.imag.sin()))


def _turned(angle: Tensor) -> Tensor:
    """The angle in [−π, π], with its derivative 1: differences of large angles would have lost the phase."""
    known = angle.detach()
    turned = torch.atan2(known.sin(), known.cos()) + (angle - known)
    return torch.where(known.isfinite() & (known.abs() > math.pi), turned, angle)


def wrapped(angle: Tensor) -> Tensor:
    """The angle in (−π, π], as it is where it lies there."""
    return torch.where(angle.abs() < math.pi, angle, math.pi - torch.remainder(math.pi - angle, 2 * math.pi))
