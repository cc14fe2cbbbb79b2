r"""log_softmax: log p = (x − M)/τ − log(m + r), with log1p so that a log p near 0 keeps its digits.

τ ∂⟨g, log p⟩/∂x = g − p Σ g over the scores that are not −∞
"""

from __future__ import annotations

import triton
import triton.language as tl

from softmaxima.kernels.triton.arithmetic import (
    INFINITY,
    MOST_P,
    SHRINK_FLOAT32,
    SHRINK_FLOAT64,
    exp,
    expm1,
    gap,
    over,
    row_max,
    weighed,
)
from softmaxima.kernels.triton.launches import RowFunctions
from softmaxima.kernels.triton.rows import add
from softmaxima.kernels.triton.softmax import begin, log_mass, merge


@triton.jit
def finish(x, p, g, column, theta, tau, TEMPERED: tl.constexpr, a, b, c, d):
    log_p = over(gap(x, a), tau, TEMPERED) - log_mass(b, c).to(x.dtype)
    return tl.where(a == INFINITY, float("nan"), log_p)


FORWARD = RowFunctions(begin, merge, finish)


@triton.jit
def begin_backward(x, p, g, column, theta, tau, TEMPERED: tl.constexpr):
    """(Σ g of moderate g, of large ones, the first without a p that is most of its row); p is log p."""
    share = exp(p)
    total, large = weighed(tl.where(p == -INFINITY, 0.0, 1.0).to(p.dtype), g)
    of_others, _ = weighed(tl.where((p == -INFINITY) | (share > MOST_P), 0.0, 1.0).to(p.dtype), g)
    return total, large, of_others, tl.zeros_like(total)


@triton.jit
def finish_backward(x, p, g, column, theta, tau, TEMPERED: tl.constexpr, a, b, c, d):
    shrink: tl.constexpr = SHRINK_FLOAT64 if g.dtype == tl.float64 else SHRINK_FLOAT32
    share = exp(p)
    plain = g - tl.where(share == 0.0, 0.0, share * a)
    shrunk = (g * shrink - tl.where(share == 0.0, 0.0, share * (a * shrink + b))) * (1.0 / shrink)
    largest = row_max(tl.where(p < 0.0, p, -INFINITY))  # behind the row p is 0
    rest = tl.where(p == 0.0, 0.0, (-expm1(largest.to(tl.float64))).to(g.dtype))
    plain = tl.where(share > MOST_P, tl.where(rest == 0.0, 0.0, g * rest) - share * c, plain)
    return tl.where(p == -INFINITY, 0.0, tl.where(b == 0.0, plain, shrunk))


BACKWARD = RowFunctions(begin_backward, add, finish_backward, is_derivative=True)
