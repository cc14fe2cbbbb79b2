"""The public edge of functions of a row: x/τ with masks as −∞, the axis last."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from softmaxima._arguments import as_floating, check_dim, check_scores, check_temperature, check_where, like_input
from softmaxima._map import tempered, without_mask
from softmaxima._rows import row_maximum


def scores_last(name: str, x: Any, dim: int, temperature: Any, where: Any) -> tuple[Tensor, Callable[[Tensor], Any]]:
    """(z [..., n] in the compute dtype, what gives a result [...] back in x's kind and dtype). Integers become floating point."""
    scores = check_scores(name, as_floating(name, x))
    dim = check_dim(name, dim, scores.ndim)
    rows = scores if scores.ndim else scores.reshape(1)
    tau = check_temperature(name, temperature, rows, dim)
    mask = check_where(name, where, rows)
    if dim != rows.ndim - 1:
        rows = rows.movedim(dim, -1)
        tau = tau.movedim(dim, -1) if isinstance(tau, Tensor) else tau
        mask = None if mask is None else mask.movedim(dim, -1)
    return tempered(rows, tau, mask), lambda value: like_input(value.to(scores.dtype), x)


def anchored(x: Tensor, tau: float | Tensor, where: Tensor | None, used: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(A/τ [..., 1], (x − A)/τ [..., n], −∞ where masked) in float64, A the largest score used, or 0 where that is infinite.

    A sum of exponentials is that of the second, times exp of the first: x/τ itself has not the digits in which large scores differ.
    """
    scores = x.to(torch.float64)
    scores = scores if where is None else scores.masked_fill(~where, -math.inf)
    tau = tau.to(torch.float64) if isinstance(tau, Tensor) else tau
    anchor = row_maximum(scores if used is None else scores.masked_fill(~used, -math.inf))
    anchor = anchor.masked_fill(~anchor.isfinite(), 0.0)
    return anchor / tau, (without_mask(scores - anchor) / tau).masked_fill(scores == -math.inf, -math.inf)
