r"""logsumexp: LSE = M/τ + l, l = log(m + r), in double; its gradient exp((x − M)/τ − l), NaN of +∞."""

from __future__ import annotations

import triton
import triton.language as tl

from softmaxima.kernels.triton.arithmetic import INFINITY, exp, over, row_sum
from softmaxima.kernels.triton.launches import RowFunctions
from softmaxima.kernels.triton.rows import add
from softmaxima.kernels.triton.softmax import begin, log_mass, merge


@triton.jit
def finish(x, p, g, column, theta, tau, TEMPERED: tl.constexpr, a, b, c, d):
    """(M, l)."""
    return tl.where(tl.arange(0, 2)[None, :] == 0, a.to(tl.float64), log_mass(b, c))


FORWARD = RowFunctions(begin, merge, finish, each_out=False)


@triton.jit
def begin_backward(x, p, g, column, theta, tau, TEMPERED: tl.constexpr):
    nothing = row_sum(tl.zeros_like(x))
    return nothing, nothing, nothing, nothing


@triton.jit
def finish_backward(x, p, g, column, theta, tau, TEMPERED: tl.constexpr, a, b, c, d):
    """g, p = M and θ = (l) are one number a row."""
    log_sum = theta[0]
    empty, unknown = p == -INFINITY, p == INFINITY
    gaps = tl.where(unknown, 0.0, x) - tl.where(empty | unknown, 0.0, p)
    probability = tl.where(unknown, float("nan"), exp(over(gaps, tau, TEMPERED) - log_sum.to(x.dtype)))
    return tl.where(empty | (probability == 0.0), 0.0, g * probability)


BACKWARD = RowFunctions(begin_backward, add, finish_backward, each_p=False, each_g=False, is_derivative=True)
