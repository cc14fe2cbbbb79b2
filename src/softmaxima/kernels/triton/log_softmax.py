r"""log_softmax: log p = (x − M)/τ − log(m + r), with log1p so that a log p near 0 keeps its digits.

τ ∂⟨g, log p⟩/∂x = g − p Σ g over the scores that are not −∞
"""

from __future__ import annotations

import triton
import triton.language as tl

from softmaxima.kernels.triton.rows import INFINITY, RowFunctions, add, exp, gap, over, row_sum
from softmaxima.kernels.triton.softmax import begin, merge


@triton.jit
def log_mass(count, rest):
    """log(m + r) = log m + log1p(r/m) of one number a row, in double, 0 in a row without scores."""
    m = tl.where(count == 0.0, 1.0, count).to(tl.float64)
    share = rest.to(tl.float64) / m
    whole = 1.0 + share
    # What rounding 1 + share lost is in share/(whole − 1).
    log1p = tl.where(whole == 1.0, share, tl.log(whole) * (share / (whole - 1.0)))
    return tl.log(m) + log1p


@triton.jit
def finish(x, p, g, column, theta, tau, TEMPERED: tl.constexpr, a, b, c, d):
    log_p = over(gap(x, a), tau, TEMPERED) - log_mass(b, c).to(x.dtype)
    return tl.where(a == INFINITY, float("nan"), log_p)


FORWARD = RowFunctions(begin, merge, finish)


@triton.jit
def begin_backward(x, p, g, column, theta, tau, TEMPERED: tl.constexpr):
    total = row_sum(tl.where(p == -INFINITY, 0.0, g))
    return total, tl.zeros_like(total), tl.zeros_like(total), tl.zeros_like(total)


@triton.jit
def finish_backward(x, p, g, column, theta, tau, TEMPERED: tl.constexpr, a, b, c, d):
    return tl.where(p == -INFINITY, 0.0, g - exp(p) * a)


BACKWARD = RowFunctions(begin_backward, add, finish_backward, is_derivative=True)
