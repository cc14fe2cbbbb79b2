"""Entire functions that cancel where they are written plainly: the φ-functions of exponential integrators."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Below |t| = 1/2 the series is used: its 16th term is below 2^-53; above, the plain form loses at most two bits.
_RADIUS = 0.5
_TERMS = 16


def _series(t: Tensor, order: int) -> Tensor:
    """Σ_m t^m / (m + order)!."""
    value = torch.zeros_like(t)
    for m in range(_TERMS, -1, -1):
        value = value * t + 1 / math.factorial(m + order)
    return value


def expm1_ratio(t: Tensor) -> Tensor:
    """φ₁(t) = (eᵗ − 1)/t, and 1 at 0; its derivative is φ₁ − φ₂."""
    small = t.abs() < _RADIUS
    plain = torch.where(small, 1.0, t)
    return torch.where(small, _series(t.clamp(-_RADIUS, _RADIUS), 1), torch.expm1(plain) / plain)


def expm1_remainder(t: Tensor) -> Tensor:
    """φ₂(t) = (eᵗ − 1 − t)/t², and 1/2 at 0."""
    small = t.abs() < _RADIUS
    plain = torch.where(small, 1.0, t)
    return torch.where(small, _series(t.clamp(-_RADIUS, _RADIUS), 2), (torch.expm1(plain) - plain) / plain**2)
