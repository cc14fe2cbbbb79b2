"""The public edge of functions of a row that are made of logsumexp: scores in double with masks as −∞, the axis last."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from softmaxima.core.arguments import as_floating, check_dim, check_scores, check_temperature, check_where, like_input


def scores_last(
    name: str, x: Any, dim: int, temperature: Any, where: Any
) -> tuple[Tensor, float | Tensor, Callable[[Tensor], Any]]:
    """(x [..., n], τ, what gives a result [...] back in x's kind and dtype). Integers become floating point."""
    scores = check_scores(name, as_floating(name, x))
    dim = check_dim(name, dim, scores.ndim)
    rows = scores if scores.ndim else scores.reshape(1)
    tau = check_temperature(name, temperature, rows, dim)
    mask = check_where(name, where, rows)
    if dim != rows.ndim - 1:
        rows = rows.movedim(dim, -1)
        tau = tau.movedim(dim, -1) if isinstance(tau, Tensor) else tau
        mask = None if mask is None else mask.movedim(dim, -1)
    rows = rows.double()
    rows = rows if mask is None else rows.masked_fill(~mask, -math.inf)
    return rows, tau, lambda value: like_input(value.to(scores.dtype), x)
