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

from softmaxima.core.arguments import Array, check_number, like_input
from softmaxima.lse.bounds._gaps import GapsOfRows, ends, read_rows
from softmaxima.lse.bounds.intervals import Interval, in_order, interval_of, sums_between


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

    Cost: a few reads of x, and an exponential for each kept term. Where exponentials are vectorised they cost less than finding
    out which to leave out: `logsumexp` is quicker, and this tells what a sparse sum would lose.

    >>> import numpy as np, softmaxima as sm
    >>> result = sm.sparsified_logsumexp(np.array([10.0, 9.0, -10.0]), eps=1e-6)
    >>> bool(result.interval.lower <= sm.logsumexp(np.array([10.0, 9.0, -10.0])) <= result.interval.upper)
    True
    """
    name = "sparsified_logsumexp"
    eps = check_number(name, "eps", eps, lambda eps: 0 < eps < 1, "a number in (0, 1)")
    rows = read_rows(name, x, dim, temperature, where)
    found = [_sparsified(block, eps) for block in rows.blocks()]
    interval = interval_of(rows, "sparsified", *in_order(ends for ends, *_ in found))
    value, share = (like_input(torch.cat(parts).reshape(rows.scores.shape[:-1]), x) for parts in list(zip(*found, strict=True))[1:])
    return Sparsified(value, interval, share)


def _sparsified(rows: GapsOfRows, eps: float) -> tuple[tuple[Tensor, Tensor], Tensor, Tensor]:
    """(the ends, the value, the share) of each row."""
    reach = -math.log(eps)
    kept = rows.each <= reach
    row, column = kept.nonzero(as_tuple=True)
    kept_gaps = rows.each[row, column]
    terms = torch.where(rows.is_highest[row, column], 0.0, (-kept_gaps).exp())
    rest = torch.zeros_like(rows.count.squeeze(-1)).index_add(0, row, terms).unsqueeze(-1) + rows.ties()
    number = kept.sum(-1, keepdim=True).double()
    # A gap that rounding took for one within reach was kept; one that it took for one beyond may weigh that much more than eps.
    dropped = (rows.count - number).clamp_min(0) * eps * (1 + 2**-40)
    maximum = rows.highest / rows.tau
    value = torch.where(maximum.isfinite(), maximum + torch.log1p(rest), maximum)
    share = torch.where(rows.count > 0, number / rows.count.clamp_min(1), 1.0)
    interval = ends(rows, *sums_between(rest, rest + dropped, rows.count, rows.n, reach))
    return interval, value.squeeze(-1).to(rows.dtype), share.squeeze(-1).to(rows.dtype)
