"""The public edge of functions of a row that are made of logsumexp: scores in double with masks as −∞, the axis last."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from softmaxima.base.arguments import as_floating, check_scores, like_input, rows_last


def scores_last(
    name: str, x: Any, dim: int, temperature: Any, where: Any
) -> tuple[Tensor, float | Tensor, Callable[[Tensor], Any]]:
    """(x [..., n], τ, what gives a result [...] back in x's kind and dtype). Integers become floating point."""
    scores = check_scores(name, as_floating(name, x))
    _, rows, tau, mask = rows_last(name, scores, dim, temperature, where)
    rows = rows.double() if mask is None else rows.double().masked_fill(~mask, -math.inf)
    return rows, tau, lambda value: like_input(value.to(scores.dtype), x)
