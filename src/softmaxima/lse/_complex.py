r"""Sums of complex exponentials: log S = log|S| + i arg S of S = Σ b_i exp(z_i), arg S in (−π, π].

    log S = M + log m + log(1 + r/m),  M a score of largest real part,  m what the scores equal to M contribute,  r the others
    log(1 + a + ib) = ½ log1p(a(2 + a) + b²) + i atan2(b, 1 + a)

Written with torch's complex operations; the gradient is that of log Σ b_i exp(z_i − M).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from softmaxima.lse._weighted import with_gradient_of


def complex_logsumexp(z: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """(log S, the phase S/|S|) [...] along the last axis of z [..., n], n > 0. Terms of −∞, or of weight 0, are left out."""
    z = torch.complex(z.real, _turned(z.imag))
    with torch.no_grad():
        nil = z.real == -math.inf
        left_out = nil if weights is None else nil | (weights == 0)
        # A finite score of weight 0 keeps its part in the gradient by the weights.
        nil = nil | (left_out & ~z.isfinite())
        origin = z.gather(-1, z.real.masked_fill(left_out, -math.inf).argmax(-1, keepdim=True))
        origin = torch.where(origin.isfinite(), origin, 0).detach()  # a tracer does not see `no_grad`
        nothing = left_out.all(-1, keepdim=True)
    factors = (z.masked_fill(nil, 0.0) - origin).exp().masked_fill(nil, 0.0)
    terms = factors if weights is None else factors * weights.to(z.dtype)
    total = terms.sum(-1, keepdim=True)
    with torch.no_grad():
        at_origin = (z == origin) & ~left_out
        m = terms.masked_fill(~at_origin, 0.0).sum(-1, keepdim=True)
        r = terms.masked_fill(at_origin, 0.0).sum(-1, keepdim=True)
        value = origin + torch.where((r / m).abs() <= 0.5, _log(m) + _log1p(r / m), _log(m + r))
        value = torch.complex(value.real, _wrapped(value.imag))
        plain = _exp(z) if weights is None else _exp(z) * weights
        plain = plain.masked_fill(left_out, 0.0).sum(-1, keepdim=True)
        value = torch.where(value.isfinite(), value, _log(plain))
        value = value.masked_fill(nothing, -math.inf)
        phase = torch.polar(torch.ones_like(value.real), value.imag.detach()).masked_fill(value.real == -math.inf, 0.0)
    total = total.masked_fill((total == 0) & ~value.isnan(), 1.0)  # whose logarithm has the gradient 0
    return with_gradient_of(total.log(), value).squeeze(-1), phase.squeeze(-1)


def _exp(z: Tensor) -> Tensor:
    """exp with the infinities of C99: exp(∞ + 0i) = ∞ + 0i and exp(∞ + ∞i) = ∞ + NaN i, where torch has NaN in both parts."""
    size = z.real.exp()
    across = torch.where(z.imag.isinf() & (size == math.inf), 1.0, z.imag.cos())
    return torch.complex(size * across, torch.where(z.imag == 0, z.imag, size * z.imag.sin()))


def _log(z: Tensor) -> Tensor:
    """log with the infinities of C99: the real part is ∞ if either part of z is infinite."""
    return torch.complex(torch.where(z.real.isinf() | z.imag.isinf(), math.inf, z.abs()).log(), torch.atan2(z.imag, z.real))


def _log1p(s: Tensor) -> Tensor:
    a, b = s.real, s.imag
    return torch.complex(0.5 * torch.log1p(a * (2 + a) + b * b), torch.atan2(b, 1 + a))


def _turned(angle: Tensor) -> Tensor:
    """The angle in [−π, π], with its derivative 1: differences of large angles would have lost the phase."""
    known = angle.detach()
    turned = torch.atan2(known.sin(), known.cos()) + (angle - known)
    return torch.where(known.isfinite() & (known.abs() > math.pi), turned, angle)


def _wrapped(angle: Tensor) -> Tensor:
    """The angle in (−π, π], as it is where it lies there."""
    return torch.where(angle.abs() < math.pi, angle, math.pi - torch.remainder(math.pi - angle, 2 * math.pi))
