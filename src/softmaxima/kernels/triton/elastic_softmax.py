r"""elastic_softmax: p = e^{(x − M)/τ} / (m + r + e^{β − M/τ}). Its gradient is that of softmax."""

from __future__ import annotations

import triton
import triton.language as tl

from softmaxima.kernels.triton.rows import INFINITY, RowFunctions, exp, gap, inverse, over
from softmaxima.kernels.triton.softmax import begin, merge


@triton.jit
def sink(maximum, theta, tau, TEMPERED: tl.constexpr):
    """e^{β − M/τ}, +∞ in a row without scores; of one number a row, in double."""
    top = tl.where(maximum == -INFINITY, 0.0, maximum).to(tl.float64)
    if TEMPERED:
        top = top / tau
    return tl.where(maximum == -INFINITY, INFINITY, tl.exp(theta - top))


@triton.jit
def finish(x, p, g, column, theta, tau, TEMPERED: tl.constexpr, a, b, c, d):
    mass = (b + c).to(tl.float64) + sink(a, theta, tau, TEMPERED)
    mass = tl.where(a == INFINITY, float("nan"), mass.to(x.dtype))
    return exp(over(gap(x, a), tau, TEMPERED)) * inverse(mass)


FORWARD = RowFunctions(begin, merge, finish)
