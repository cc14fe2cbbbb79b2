r"""The Jacobian of a row, J = ∂p/∂z, and its products: what `Map.sensitivity` says of it.

Most maps state vectors (s, q) or (s, q, r), r = s:    J = diag(s) − q rᵀ

    pull(g) = Jᵀg = s ⊙ g − r ⟨q, g⟩        push(t) = J t = s ⊙ t − q ⟨r, t⟩

Where probabilities are small s may be huge, and s ⊙ g − r ⟨q, g⟩ is then a small difference of huge numbers. A map with q = s/Σs,
whose rows and columns add up to 0, states log s instead: `Balanced`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from softmaxima._rows import normalise_exp


@dataclass(frozen=True)
class DiagonalAndProduct:
    """J = diag(s) − q rᵀ."""

    s: Tensor
    q: Tensor
    r: Tensor

    def pull(self, g: Tensor) -> Tensor:
        return self.s * g - self.r * (self.q * g).sum(-1, keepdim=True)

    def push(self, t: Tensor) -> Tensor:
        return self.s * t - self.q * (self.r * t).sum(-1, keepdim=True)

    def matrix(self, tau: float | Tensor) -> Tensor:
        """J/τ."""
        return (torch.diag_embed(self.s) - self.q.unsqueeze(-1) * self.r.unsqueeze(-2)) / tau


@dataclass(frozen=True)
class Balanced:
    r"""J = diag(s) − s sᵀ/Σs, from log s in double, −∞ where s is 0.

    Let k have the largest s, and e^a be the second largest. A constant added to g changes nothing, so g_k may be taken off, and
    then s_k appears in q alone:

        J g = e^a (h − q Σh),    h = e^{ℓ − a} ⊙ (g − g_k) with h_k = 0,    q = softmax(ℓ),    ℓ = log s

    Here e^{ℓ − a} ≤ 1, and nothing cancels more than g itself does. Results beyond the dtype become its largest number.
    """

    log_s: Tensor

    @property
    def s(self) -> Tensor:
        return self.log_s.exp()

    @property
    def q(self) -> Tensor:
        return normalise_exp(self.log_s)

    @property
    def r(self) -> Tensor:
        return self.s

    def pull(self, g: Tensor) -> Tensor:
        constant = self.log_s.detach()
        top, index = constant.topk(min(2, constant.shape[-1]), -1)
        scale = top[..., -1:]
        scale = scale.masked_fill(scale == -math.inf, 0.0)
        largest = torch.finfo(g.dtype).max
        wide = g.clamp(-largest, largest).to(constant.dtype)  # of a second derivative g may have been beyond its dtype
        gaps = wide - torch.take_along_dim(wide, index[..., :1], -1)
        h = (self.log_s - scale).clamp_max(0.0).exp() * gaps
        return _times_exp(h - self.q * h.sum(-1, keepdim=True), scale, g.dtype)

    push = pull

    def matrix(self, tau: float | Tensor) -> Tensor:
        n = self.log_s.shape[-1]
        each = (torch.eye(n, dtype=self.log_s.dtype, device=self.log_s.device) / tau).expand(*self.log_s.shape, n)
        return Balanced(self.log_s.unsqueeze(-2)).pull(each)


Jacobian = DiagonalAndProduct | Balanced


def jacobian_of(sensitivity: tuple[Tensor, ...] | Jacobian) -> Jacobian:
    """What a map states, as a Jacobian."""
    if not isinstance(sensitivity, tuple):
        return sensitivity
    s, q, *r = sensitivity
    return DiagonalAndProduct(s, q, r[0] if r else s)


def _times_exp(u: Tensor, a: Tensor, dtype: torch.dtype) -> Tensor:
    """u eᵃ in the dtype."""
    half = (a / 2).clamp_max(math.floor(math.log(torch.finfo(u.dtype).max))).exp()  # in two factors, for eᵃ may be beyond u's dtype
    largest = torch.finfo(dtype).max
    return (u * half * half).clamp(-largest, largest).to(dtype)


def narrowed(v: Tensor, dtype: torch.dtype) -> Tensor:
    """v in a dtype that may be narrower: its largest number where only the dtype makes it infinite."""
    if v.dtype == dtype:
        return v
    largest = torch.finfo(dtype).max
    return torch.where(v.isinf(), v, v.clamp(-largest, largest)).to(dtype)
