"""Scores over a temperature: x/τ, and (x − A)/τ, which has the digits of differences that a large x/τ has lost."""

from __future__ import annotations

import math

from torch import Tensor

from softmaxima.base.arguments import COMPUTE_DTYPE
from softmaxima.base.rows import row_maximum, without_mask


def is_one(tau: float | Tensor) -> bool:
    """Whether there is nothing to divide by."""
    return not isinstance(tau, Tensor) and tau == 1.0


def tempered(x: Tensor, tau: float | Tensor, where: Tensor | None) -> Tensor:
    """z = x/τ, −∞ where masked: in the compute dtype, and in double where τ is not 1."""
    z = x.to(COMPUTE_DTYPE[x.dtype]) if is_one(tau) else x.double()
    return quotient(z if where is None else z.masked_fill(~where, -math.inf), tau)


def anchored(x: Tensor, tau: float | Tensor, where: Tensor | None, used: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(A/τ [..., 1], (x − A)/τ [..., n], −∞ where masked) in float64, A the largest score used, or 0 where that is infinite."""
    scores = x.double() if where is None else x.double().masked_fill(~where, -math.inf)
    anchor = row_maximum(scores if used is None else scores.masked_fill(~used, -math.inf))
    return anchored_at(anchor, scores, tau)


def anchored_at(anchor: Tensor, x: Tensor, tau: float | Tensor) -> tuple[Tensor, Tensor]:
    """(A/τ, (x − A)/τ), with 0 for an anchor that is infinite."""
    anchor = anchor.masked_fill(~anchor.isfinite(), 0.0)
    return quotient(anchor, tau), quotient(x - anchor, tau)


def over(v: Tensor, tau: float | Tensor) -> Tensor:
    """A derivative by z as one by x = τz: v/τ, in double, for 1/τ may be beyond narrower dtypes where v/τ is 0."""
    return v if is_one(tau) else v.double() / tau


def quotient(x: Tensor, tau: float | Tensor) -> Tensor:
    """x/τ in x's dtype, −∞ where x is."""
    if not isinstance(tau, Tensor):
        return x if tau == 1.0 else x / tau
    return (without_mask(x) / tau.to(x.dtype)).masked_fill(x == -math.inf, -math.inf)  # ∂z/∂τ is 0, not −∞·0, at a mask
