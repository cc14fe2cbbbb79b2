r"""rectified_softmax: the softmax over {x ≥ 0}; a row without any is 0, or uniform over its scores where θ = 1.

τ ∂⟨g, p⟩/∂x = p ⊙ (g − ⟨p, g⟩) where x ≥ 0, and 0 elsewhere
"""

from __future__ import annotations

import triton
import triton.language as tl

from softmaxima.kernels.triton.arithmetic import INFINITY, exp, inverse, over, row_max, row_sum
from softmaxima.kernels.triton.launches import RowFunctions
from softmaxima.kernels.triton.rows import add
from softmaxima.kernels.triton.softmax import begin_backward, less_the_mean


@triton.jit
def weight(x, origin, tau, TEMPERED: tl.constexpr):
    """e^{(x − origin)/τ} of the scores that are not negative; NaN of NaN."""
    return tl.where(x < 0.0, 0.0, exp(over(x - origin, tau, TEMPERED)))


@triton.jit
def begin(x, p, g, column, theta, tau, TEMPERED: tl.constexpr):
    """(max(x, 0), Σ_{x≥0} e^{(x − a)/τ}, how many scores there are)."""
    maximum = tl.maximum(row_max(x), 0.0)
    mass = row_sum(weight(x, maximum, tau, TEMPERED))
    count = row_sum(tl.where(x == -INFINITY, 0.0, tl.full(x.shape, 1.0, x.dtype)))
    return maximum, mass, count, tl.zeros_like(mass)


@triton.jit
def merge(is_part, a, b, c, d, theta, tau, TEMPERED: tl.constexpr):
    maximum = row_max(a)
    mass = row_sum(tl.where(is_part, b * exp(over(a - maximum, tau, TEMPERED)), 0.0))
    return maximum, mass, row_sum(tl.where(is_part, c, 0.0)), tl.zeros_like(mass)


@triton.jit
def finish(x, p, g, column, theta, tau, TEMPERED: tl.constexpr, a, b, c, d):
    kept = weight(x, a, tau, TEMPERED) * inverse(b)
    uniform = (b == 0.0) & (theta[0] == 1.0) & (x > -INFINITY)
    return tl.where(uniform, inverse(c), kept)


FORWARD = RowFunctions(begin, merge, finish)


@triton.jit
def finish_backward(x, p, g, column, theta, tau, TEMPERED: tl.constexpr, a, b, c, d):
    return less_the_mean(tl.where(x < 0.0, 0.0, p), p, g, a, b, c, d)


BACKWARD = RowFunctions(begin_backward, add, finish_backward, is_derivative=True)
