r"""Margins, m = x_t − max_{j≠t} x_j, and the least that they are where ‖δ‖ ≤ ε: m − c ε.

One rival at a time, x_t + δ_t − x_j − δ_j is linear in δ, with the slope e_t − e_j, whose dual norm is c: 2 under ℓ∞, √2 under ℓ2
and 1 under ℓ1.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.arguments import Array
from softmaxima.base.public import public
from softmaxima.robust.arguments import check_classes, check_norm, prepared, sum_up

SLOPE = {math.inf: 2.0, 2.0: math.sqrt(2.0), 1.0: 1.0}  # the dual norm of e_t − e_j; of these √2 is rounded, upward


def margins(x: Tensor, target: Tensor) -> Tensor:
    """x_t − max_{j≠t} x_j of rows [..., n]; ∞ where nothing else is allowed, −∞ where the target is masked."""
    own, rival = sides(x, target)
    return own - rival


def falls(radius: Tensor, norm: float) -> Tensor:
    """What a margin falls by at most, c ε, rounded up."""
    fall = SLOPE[norm] * radius
    if norm != 2.0:
        return fall  # without rounding
    above = torch.nextafter(fall.detach(), torch.full_like(fall, math.inf, requires_grad=False))
    return torch.where(radius > 0, above + (fall - fall.detach()), fall)


def sides(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """(x_t, max_{j≠t} x_j), the latter 0 where nothing is allowed."""
    place = target.unsqueeze(-1)
    own = x.gather(-1, place).squeeze(-1)
    rival = x.scatter(-1, place, -math.inf).amax(-1)
    # A target that is masked has lost, be there a rival or not.
    return own, torch.where((rival == -math.inf) & (own == -math.inf), 0.0, rival)


@public
def worst_margin(
    x: Array, target: Any, radius: float | Array, norm: float = math.inf, dim: int = -1, *, where: Array | None = None
) -> Array:
    """The least margin x_t − max_{j≠t} x_j of any x + δ with ‖δ‖ ≤ ε: the margin less 2ε, √2 ε or ε under ℓ∞, ℓ2 or ℓ1.

    Where it is positive, no such perturbation changes the argmax.

    Args:
        x: scores of any shape, a tensor or an array. −∞ is a mask, and stays one.
        target: the class t of each row, integers of x's shape without `dim`, or one for all.
        radius, norm, dim, where: as for `worst_logsumexp`.

    Returns one number a row, rounded down, ∞ where only t is allowed, −∞ where t is masked.

    Raises:
        TypeError, ValueError or IndexError for arguments that cannot be used, such as numbers above 2⁹⁶⁰, before any work.

    Cost: one read of x. Source: Crammer & Singer (2001) for the margin; its worst case is Hölder's inequality.

    >>> import numpy as np, softmaxima as sm
    >>> sm.robust.worst_margin(np.array([3.0, 1.0, 0.5]), 0, 0.25)
    np.float64(1.5)
    """
    name = "worst_margin"
    norm = check_norm(name, norm)
    rows = prepared(name, x, radius, dim, 1.0, where)
    classes = check_classes(name, target, rows.z)
    own, rival = sides(rows.z, classes)
    return rows.reduced(-sum_up(rival, -own, falls(rows.radius.squeeze(-1), norm)), -math.inf)
