r"""The target's cosine with a margin, ψ = cos(m₁θ + m₂) − m₃ at θ = arccos c, as margin losses have it.

Past m₁θ + m₂ = kπ, where that cosine turns, ψ goes on as (−1)^k cos(m₁θ + m₂) − 2k − m₃: continuous with its derivative, and
decreasing in θ throughout. The derivative by c grows without bound towards |c| = 1; at ±1 it is that of the nearest cosine inside.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Margin(NamedTuple):
    """m₁, m₂ in radians, and m₃."""

    factor: float = 1.0
    angle: float = 0.0
    cosine: float = 0.0

    def moved(self, cosine: Tensor) -> Tensor:
        """ψ."""
        c = cosine.clamp(-1.0, 1.0)
        square = (1 - c) * (1 + c)
        pad = torch.where(square > 0, 0.0, torch.finfo(c.dtype).eps)
        sine = (square + pad).sqrt() - pad.sqrt()
        turned = self.factor * torch.atan2(sine, c) + self.angle
        half_turns = (turned.detach() / math.pi).floor()
        return (1 - 2 * (half_turns % 2)) * turned.cos() - 2 * half_turns - self.cosine

    def slope(self, cosine: Tensor) -> Tensor:
        """∂ψ/∂c, 0 beyond ±1."""
        c = cosine.clamp(-1.0, 1.0)
        square = (1 - c) * (1 + c)
        sine = torch.where(square > 0, square, torch.finfo(c.dtype).eps).sqrt()
        turned = self.factor * c.acos() + self.angle
        half_turns = (turned / math.pi).floor()
        slope = (1 - 2 * (half_turns % 2)) * self.factor * turned.sin() / sine
        return slope.masked_fill((cosine.abs() > 1), 0.0)
