"""Sums of exponentials along the last axis, stable: what several maps and logsumexp are made of."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from softmaxima.core.tracing import sizes


def row_maximum(z: Tensor) -> Tensor:
    """The maximum of each row as a constant, and 0 for a row of −∞, so that `z - row_maximum(z)` is −∞ there and not NaN."""
    if sizes(z)[-1] == 0:
        return z.new_zeros((*z.shape[:-1], 1))
    maximum = z.detach().amax(-1, keepdim=True)
    return maximum.masked_fill(maximum == -math.inf, 0.0)


def xlogx(p: Tensor) -> Tensor:
    """p log p; 0 at 0, where it is given no slope."""
    return p * p.masked_fill(p <= 0, 1.0).log()


def without_mask(z: Tensor) -> Tensor:
    """z with 0 for −∞, so that a product with an exact zero is zero."""
    return z.masked_fill(z == -math.inf, 0.0)


def divisor(mass: Tensor) -> Tensor:
    """The mass, and 1 where it is 0, so that a division leaves a row of zeros as it is."""
    return mass.masked_fill(mass == 0, 1.0)


def total(weights: Tensor, more: float | Tensor = 0.0) -> Tensor:
    """Σ weights + more in float64, as a divisor."""
    return divisor(weights.sum(-1, keepdim=True, dtype=torch.float64) + more)


def normalise_exp(z: Tensor) -> Tensor:
    """exp(z) / Σ exp(z)."""
    weights = (z - row_maximum(z)).exp()
    return (weights / total(weights)).to(z.dtype)
