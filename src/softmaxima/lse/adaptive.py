r"""adaptive_logsumexp: max where one score has the mass, LSE where many share it, by the entropy H of softmax(x).

    AdaLSE(x) = α max x + (1 − α) LSE(x) = max x + (1 − α)(LSE(x) − max x)           H = LSE(x) − ⟨p, x⟩,  p = softmax(x)
    α = 1 for H ≤ θ₁, 0 for H ≥ θ₂, linear between           or           α = σ((θ − H)/w)

α weighs the maximum, so that it falls with the entropy. (The second form is written elsewhere with σ(H − θ), which contradicts the
first.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.arguments import Array
from softmaxima.base.numbers import check_number, check_positive, is_finite, shown
from softmaxima.base.public import public
from softmaxima.base.temperature import anchored
from softmaxima.engine.envelope import with_slope
from softmaxima.lse._scores import scores_last
from softmaxima.lse.logsumexp import logsumexp
from softmaxima.maps.softmax import softmax

ENDS = ("between[0]", "between[1]")


@public
def adaptive_logsumexp(
    x: Array,
    dim: int = -1,
    *,
    between: tuple[float, float] | None = None,
    around: float | None = None,
    width: float = 1.0,
    temperature: float | Array = 1.0,
    where: Array | None = None,
) -> Array:
    """AdaLSE, `α max(x/τ) + (1 − α) LSE(x/τ)`, in nats: the maximum of rows of low entropy, logsumexp of rows of high entropy.

    `max ≤ AdaLSE ≤ LSE` but for rounding, and a shift of all scores shifts the value. It is neither convex nor increasing in every
    score, because α moves with the scores too; use `real_softmax` where that matters.

    Args:
        x: scores of any shape. Integers become torch's default dtype, or float64 for NumPy.
        dim: the axis.
        between: (θ₁, θ₂) in nats, 0 ≤ θ₁ < θ₂: α falls linearly from 1 at entropy θ₁ to 0 at θ₂. (The entropy is at most
            log n.)
        around: θ in nats: α = σ((θ − H)/width), smooth everywhere. Give exactly one of `between` and `around`.
        width: w > 0 in nats, for `around`.
        temperature: τ > 0, a number or a tensor that broadcasts against x with size 1 along `dim`; a tensor may require grad.
        where: boolean, broadcasts to x; False (like a score of −∞) leaves a score out.

    Returns:
        x's array kind and dtype, without `dim`. −∞ for a row of nothing, +∞ if any score is +∞.

    Raises:
        TypeError, ValueError or IndexError, before any work, for anything else.

    The gradient is exact, that of α included, and sums to 1/τ; of several maxima each has an equal share. With `between` it jumps
    at θ₁ and θ₂. Cost: logsumexp and softmax.

    >>> import numpy as np, softmaxima as sm
    >>> sm.adaptive_logsumexp(np.array([[9.0, 0.0], [1.0, 1.0]]), between=(0.2, 0.6)).round(4)  # max; LSE
    array([9.    , 1.6931])
    """
    name = "adaptive_logsumexp"
    gate = _gate(name, between, around, width)
    rows, tau, finish = scores_last(name, x, dim, temperature, where)
    if rows.shape[-1] == 0:
        return finish(logsumexp(rows))
    top, z = anchored(rows, tau, None)
    maximum = z.amax(-1, keepdim=True)
    decided = maximum.isinf()  # rows of +∞, and of nothing, are their maximum
    below = z.masked_fill(decided, 0.0) - maximum.masked_fill(decided, 0.0)
    excess = logsumexp(below)  # LSE − max, with its digits near 0
    entropy = excess - (softmax(below) * below.masked_fill(below == -math.inf, 0.0)).sum(-1)
    value = (top + maximum).squeeze(-1) + (1 - gate(entropy)) * excess
    unknown = torch.zeros_like(z).masked_fill(maximum == math.inf, math.nan)
    value = with_slope(value.masked_fill(maximum.squeeze(-1) == -math.inf, -math.inf).unsqueeze(-1), z, unknown)
    return finish(value.squeeze(-1))


def _gate(name: str, between: Any, around: Any, width: Any) -> Callable[[Tensor], Tensor]:
    """α of the entropy."""
    if (between is None) == (around is None):
        raise ValueError(f"{name}: give exactly one of between and around, got between={shown(between)} and around={shown(around)}")
    width = check_positive(name, "width", width)
    if between is None:
        theta = check_number(name, "around", around, is_finite, "a finite number")
        return lambda entropy: torch.sigmoid((theta - entropy) / width)
    numbers = tuple(between) if isinstance(between, (tuple, list)) else ()
    if len(numbers) != 2:
        raise ValueError(f"{name}: between must be two numbers (θ₁, θ₂), got {shown(between)}")
    low, high = (check_number(name, what, v, is_finite, "a finite number") for what, v in zip(ENDS, numbers, strict=True))
    if not 0 <= low < high:
        raise ValueError(f"{name}: between must be (θ₁, θ₂) with 0 ≤ θ₁ < θ₂, in nats, got {between!r}")
    return lambda entropy: ((high - entropy) / (high - low)).clamp(0.0, 1.0)
