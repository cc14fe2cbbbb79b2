r"""logsumexp without the terms that hardly count, and an interval that says how little.

With M = max x, the d terms exp(x_i − M) < ε left out and S = Σ_kept exp(x_i − M) ≥ 1,

    0 ≤ LSE(x) − LSE_kept(x) ≤ log1p(d ε / S)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from softmaxima._map import Array, like_input
from softmaxima.lse._gaps import read_rows
from softmaxima.lse.bounds import Interval, interval_of, sums_between


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
    out which to leave out: `logsumexp` is quicker, and this tells what a sparse sum would lose. Source: seed 002, optimisation 3.

    >>> import numpy as np, softmaxima as sm
    >>> result = sm.sparsified_logsumexp(np.array([10.0, 9.0, -10.0]), eps=1e-6)
    >>> bool(result.interval.lower <= sm.logsumexp(np.array([10.0, 9.0, -10.0])) <= result.interval.upper)
    True
    """
    name = "sparsified_logsumexp"
    if isinstance(eps, bool) or not isinstance(eps, (int, float, np.number)) or not 0 < eps < 1:
        raise ValueError(f"{name}: eps must be a number in (0, 1), got {eps!r}")
    rows = read_rows(name, x, dim, temperature, where)
    reach = -math.log(eps)
    gaps = rows.each.reshape(rows.count.numel(), rows.n)
    kept = gaps <= reach
    row, column = kept.nonzero(as_tuple=True)
    kept_gaps = gaps[row, column]
    terms = torch.where(kept_gaps == 0, 0.0, (-kept_gaps).exp())
    shape = rows.count.shape
    rest = gaps.new_zeros(len(gaps)).index_add(0, row, terms).reshape(shape) + rows.ties()
    number = kept.sum(-1).double().reshape(shape)
    # A gap that rounding took for one within reach was kept; one that it took for one beyond may weigh that much more than eps.
    dropped = (rows.count - number).clamp_min(0) * eps * (1 + 2**-40)
    interval = interval_of(rows, "sparsified", *sums_between(rest, rest + dropped, rows.count, rows.n, reach))
    value = torch.where(rows.maximum.isfinite(), rows.maximum + torch.log1p(rest), rows.maximum).squeeze(-1).to(rows.dtype)
    share = torch.where(rows.count > 0, number / rows.count.clamp_min(1), 1.0).squeeze(-1).to(rows.dtype)
    return Sparsified(like_input(value, x), interval, like_input(share, x))
