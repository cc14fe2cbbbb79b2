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

from softmaxima.core.rows import normalise_exp
from softmaxima.core.temperature import over


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
        return over(torch.diag_embed(self.s) - self.q.unsqueeze(-1) * self.r.unsqueeze(-2), tau)


# Of s and of g, with room in double for their products and sums.
_LARGEST_LOGARITHM = 700.0
_LARGEST_SLOPE = 2.0**900


@dataclass(frozen=True)
class Balanced:
    r"""J = diag(s) − s sᵀ/Σs, from log s in double, −∞ where s is 0.

    Let k have the largest s, and e^a be the second largest. A constant added to g changes nothing, so γ = g − g_k may stand for it:

        (J g)_i = s_i (γ_i − c)    (J g)_k = −e^a C    C = Σ_{j≠k} w_j γ_j / (1 + ρ Σ_{j≠k} w_j)    c = ρC = ⟨q, γ⟩

    with w_j = e^{ℓ_j − a} ≤ 1, ρ = e^{a − ℓ_k} ≤ 1 and ℓ = log s, where nothing cancels more than g itself does. Results beyond the
    dtype become its largest number.
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
        top, order = self.log_s.detach().topk(min(2, self.log_s.shape[-1]), -1)
        second = top[..., -1:]
        second = second.masked_fill(second == -math.inf, 0.0)
        largest = order[..., :1]
        is_largest = torch.arange(self.log_s.shape[-1], device=g.device) == largest
        bound = torch.finfo(g.dtype).max
        most = min(bound, _LARGEST_SLOPE)  # of a second derivative g may have been beyond its dtype
        wide = g.clamp(-most, most).to(self.log_s.dtype)
        gaps = wide - torch.take_along_dim(wide, largest, -1)
        weights = (self.log_s - second).masked_fill(is_largest, -math.inf).exp()
        ratio = (second - torch.take_along_dim(self.log_s, largest, -1)).clamp_max(0.0).exp()
        moved = (weights * gaps).sum(-1, keepdim=True) / (1 + ratio * weights.sum(-1, keepdim=True))
        others = self.log_s.clamp_max(_LARGEST_LOGARITHM).exp() * (gaps - ratio * moved)
        v = torch.where(is_largest, -second.clamp_max(_LARGEST_LOGARITHM).exp() * moved, others)
        return v.clamp(-bound, bound).to(g.dtype)

    push = pull

    def matrix(self, tau: float | Tensor) -> Tensor:
        n = self.log_s.shape[-1]
        each = torch.eye(n, dtype=self.log_s.dtype, device=self.log_s.device).expand(*self.log_s.shape, n)
        return over(Balanced(self.log_s.unsqueeze(-2)).pull(each), tau)


Jacobian = DiagonalAndProduct | Balanced


def jacobian_of(sensitivity: tuple[Tensor, ...] | Jacobian) -> Jacobian:
    """What a map states, as a Jacobian."""
    if not isinstance(sensitivity, tuple):
        return sensitivity
    s, q, *r = sensitivity
    return DiagonalAndProduct(s, q, r[0] if r else s)


def narrowed(v: Tensor, dtype: torch.dtype) -> Tensor:
    """v in a dtype that may be narrower: its largest number where only the dtype makes it infinite."""
    if v.dtype == dtype:
        return v
    largest = torch.finfo(dtype).max
    return torch.where(v.isinf(), v, v.clamp(-largest, largest)).to(dtype)
