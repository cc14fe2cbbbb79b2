r"""log_softmax: log p = (x − M)/τ − log(m + r), with log1p so that a log p near 0 keeps its digits.

τ ∂⟨g, log p⟩/∂x = g − p Σ g over the scores that are not −∞
"""

from __future__ import annotations

import triton
import triton.language as tl

from softmaxima.kernels.triton.rows import INFINITY, RowFunctions, add, exp, gap, over, row_sum
from softmaxima.kernels.triton.softmax import begin, log_mass, merge


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
