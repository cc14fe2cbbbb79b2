r"""Margins, m = x_t − max_{j≠t} x_j, and the least that they are where ‖δ‖ ≤ ε: m − c ε.

One rival at a time, x_t + δ_t − x_j − δ_j is linear in δ, with the slope e_t − e_j, whose dual norm is c: 2 under ℓ∞, √2 under ℓ2
and 1 under ℓ1.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from softmaxima.core.arguments import Array
from softmaxima.robust.arguments import check_classes, check_norm, prepared

SLOPE = {math.inf: 2.0, 2.0: math.sqrt(2.0), 1.0: 1.0}  # the dual norm of e_t − e_j


def margins(x: Tensor, target: Tensor) -> Tensor:
    """x_t − max_{j≠t} x_j of rows [..., n]; ∞ where nothing else is allowed, −∞ where the target is masked."""
    place = target.unsqueeze(-1)
    own = x.gather(-1, place).squeeze(-1)
    rival = x.scatter(-1, place, -math.inf).amax(-1)
    # A target that is masked has lost, be there a rival or not.
    rival = torch.where((rival == -math.inf) & (own == -math.inf), 0.0, rival)
    return own - rival


def worst_margin(
    x: Array, target: Any, radius: float | Array, norm: float = math.inf, dim: int = -1, *, where: Array | None = None
) -> Any:
    """The least margin x_t − max_{j≠t} x_j of any x + δ with ‖δ‖ ≤ ε: the margin less 2ε, √2 ε or ε under ℓ∞, ℓ2 or ℓ1.

    Where it is positive, no such perturbation changes the argmax.

    Args:
        x: scores of any shape, a tensor or an array. −∞ is a mask, and stays one.
        target: the class t of each row, integers of x's shape without `dim`, or one for all.
        radius, norm, dim, where: as for `worst_logsumexp`.

    Returns one number a row, ∞ where only t is allowed, −∞ where t is masked; in a dtype narrower than float64 rounded down.

    Raises:
        TypeError, ValueError or IndexError for arguments that cannot be used, before any work.

    Cost: one read of x. Source: Crammer & Singer (2001) for the margin; its worst case is Hölder's inequality.

    >>> import numpy as np, softmaxima as sm
    >>> sm.robust.worst_margin(np.array([3.0, 1.0, 0.5]), 0, 0.25)
    np.float64(1.5)
    """
    name = "worst_margin"
    norm = check_norm(name, norm)
    rows = prepared(name, x, radius, dim, 1.0, where)
    classes = check_classes(name, target, rows.z)
    return rows.reduced(margins(rows.z, classes) - SLOPE[norm] * rows.radius.squeeze(-1), -math.inf)
