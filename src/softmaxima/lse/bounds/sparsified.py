r"""logsumexp without the terms that hardly count, and an interval that says how little.

With M = max x, the d terms exp(x_i − M) < ε left out and S = Σ_kept exp(x_i − M) ≥ 1,

    0 ≤ LSE(x) − LSE_kept(x) ≤ log1p(d ε / S)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.arguments import Array, like_input
from softmaxima.base.numbers import check_number
from softmaxima.base.public import public
from softmaxima.lse.bounds._gaps import GapsOfRows, KeptAtOnce, ends, read_rows
from softmaxima.lse.bounds.intervals import Interval, interval_of, sums_between


@dataclass(frozen=True, eq=False)
class Sparsified:
    """LSE_kept, an interval that holds LSE, and the share of the scores whose exponential was taken.

    >>> import numpy as np, softmaxima as sm
    >>> sm.sparsified_logsumexp(np.array([0.0, -1.0, -50.0, -60.0])).evaluated
    np.float64(0.5)
    """

    value: Any
    interval: Interval
    evaluated: Any


@public
def sparsified_logsumexp(
    x: Array, eps: float = 1e-6, dim: int = -1, *, temperature: float | Array = 1.0, where: Array | None = None
) -> Sparsified:
    """The logsumexp of x/τ over the terms of at least `eps` of the largest, with a certified error: at most `log1p(n · eps)`.

    Args:
        x: scores of any shape; integers become torch's default dtype, or float64 for NumPy.
        eps: in (0, 1); scores more than −τ log eps below the maximum are left out.
        dim: the axis summed over.
        temperature: τ > 0, a number or a tensor that broadcasts against x with size 1 along `dim`.
        where: boolean, broadcasts to x; False leaves a score out.

    Returns:
        `value`, `interval.lower ≤ LSE(x/τ) ≤ interval.upper` and `evaluated`, the kept share of the scores that are allowed and not
        −∞, of x's array kind and dtype, without `dim`. No gradient passes. −∞ for a sum of nothing (of which all is evaluated).

    Raises:
        TypeError, ValueError or IndexError, before any work, for anything else.

    Cost: two reads of x. An exponential costs less than finding out whether to leave it out, so that the native kernel takes all:
    `logsumexp` is as quick, and this tells what a sparse sum would lose.

    >>> import numpy as np, softmaxima as sm
    >>> result = sm.sparsified_logsumexp(np.array([10.0, 9.0, -10.0]), eps=1e-6)
    >>> bool(result.interval.lower <= sm.logsumexp(np.array([10.0, 9.0, -10.0])) <= result.interval.upper)
    True
    """
    name = "sparsified_logsumexp"
    eps = check_number(name, "eps", eps, lambda eps: 0 < eps < 1, "a number in (0, 1)")
    rows = read_rows(name, x, dim, temperature, where)
    reach = -math.log(eps)
    gaps = KeptAtOnce(rows, reach) if rows.is_native else rows
    number, rest = (gaps.number, gaps.rest) if isinstance(gaps, KeptAtOnce) else _kept(rows, reach)
    rest = rest + gaps.ties()
    # A gap that rounding took for one within reach was kept; one that it took for one beyond may weigh that much more than eps.
    dropped = (gaps.count - number).clamp_min(0) * eps * (1 + 2**-40)
    lower, upper = ends(gaps, *sums_between(rest, rest + dropped, gaps.count, rows.n, reach))
    maximum = gaps.highest / rows.tau
    value = torch.where(maximum.isfinite(), maximum + torch.log1p(rest), maximum)
    share = torch.where(gaps.count > 0, number / gaps.count.clamp_min(1), 1.0)
    value, share = (like_input(part.squeeze(-1).to(rows.dtype), x) for part in (value, share))
    return Sparsified(value, interval_of(rows, "sparsified", lower, upper), share)


def _kept(rows: GapsOfRows, reach: float) -> tuple[Tensor, Tensor]:
    """(how many gaps are kept, the sum of their terms but for those of M), [..., 1]."""
    found = torch.cat([_kept_of_few(block, reach) for block in rows.blocks()])
    number, rest = found.reshape(*rows.scores.shape[:-1], 2).split(1, -1)
    return number, rest


def _kept_of_few(rows: GapsOfRows, reach: float) -> Tensor:
    kept = rows.each <= reach
    rest = torch.where(kept & ~rows.is_highest, (-rows.each).exp(), 0.0).sum(-1)
    return torch.stack((kept.sum(-1).double(), rest), -1)
