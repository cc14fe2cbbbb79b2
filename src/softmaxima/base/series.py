"""Entire functions that cancel where they are written plainly: the φ-functions of exponential integrators."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from softmaxima.base.onnx import expm1

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
    """φ₁(t) = (eᵗ − 1)/t, and 1 at 0."""
    small = t.abs() < _RADIUS
    plain = torch.where(small, 1.0, t)
    return torch.where(small, _series(t.clamp(-_RADIUS, _RADIUS), 1), expm1(plain) / plain)


def scaled_expm1_remainder(t: Tensor, c: Tensor) -> Tensor:
    """e^{−c} φ₂(t) for c ≥ 0, finite where eᵗ is not but e^{t−c} is."""
    small = t.abs() < _RADIUS
    plain = torch.where(small, 1.0, t)
    series = _series(t.clamp(-_RADIUS, _RADIUS), 2) * (-c).exp()
    return torch.where(small, series, (((plain - c).exp() - (-c).exp()) / plain - (-c).exp()) / plain)


def expm1_ratio_slope(t: Tensor) -> Tensor:
    """φ₁′(t) = φ₁ − φ₂ = (eᵗ − φ₁)/t, and 1/2 at 0."""
    small = t.abs() < _RADIUS
    plain = torch.where(small, 1.0, t)
    near = t.clamp(-_RADIUS, _RADIUS)
    return torch.where(small, _series(near, 1) - _series(near, 2), (plain.exp() - expm1(plain) / plain) / plain)
