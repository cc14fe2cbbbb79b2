r"""logsumexp: LSE = M/τ + l, l = log(m + r), in double; its gradient exp((x − M)/τ − l), with equal shares for several +∞."""

from __future__ import annotations

import triton
import triton.language as tl

from softmaxima.kernels.triton.rows import INFINITY, RowFunctions, add, exp, over, row_sum
from softmaxima.kernels.triton.softmax import begin, log_mass, merge


@triton.jit
def finish(x, p, g, column, theta, tau, TEMPERED: tl.constexpr, a, b, c, d):
    """(M, l)."""
    return tl.where(tl.arange(0, 2)[None, :] == 0, a.to(tl.float64), log_mass(b, c))


FORWARD = RowFunctions(begin, merge, finish, each_out=False)


@triton.jit
def begin_backward(x, p, g, column, theta, tau, TEMPERED: tl.constexpr):
    count = row_sum((x == INFINITY).to(x.dtype))
    return count, tl.zeros_like(count), tl.zeros_like(count), tl.zeros_like(count)


@triton.jit
def finish_backward(x, p, g, column, theta, tau, TEMPERED: tl.constexpr, a, b, c, d):
    """g, p = M and θ = (l) are one number a row."""
    log_sum = theta[0]
    shared = tl.where(x == INFINITY, 1.0 / tl.where(a == 0.0, 1.0, a), 0.0)
    empty = p == -INFINITY
    probability = exp(over(x - tl.where(empty, 0.0, p), tau, TEMPERED) - log_sum.to(x.dtype))
    probability = tl.where((p == INFINITY) & (log_sum == log_sum), shared, probability)
    return tl.where(empty | (probability == 0.0), 0.0, g * probability)


BACKWARD = RowFunctions(begin_backward, add, finish_backward, each_p=False, each_g=False, is_derivative=True)
