r"""elastic_softmax: p = e^{(x − M)/τ} / (m + r + e^{β − M/τ}). Its gradient is that of softmax, 1 − p having the sink's share."""

from __future__ import annotations

import triton
import triton.language as tl

from softmaxima.kernels.triton import softmax
from softmaxima.kernels.triton.arithmetic import INFINITY, MOST_P, exp, gap, inverse, log1p, over, row_max
from softmaxima.kernels.triton.launches import RowFunctions
from softmaxima.kernels.triton.loss import Loss, shannon
from softmaxima.kernels.triton.rows import add
from softmaxima.kernels.triton.softmax import ATTENTION as ATTENTION
from softmaxima.kernels.triton.softmax import begin, begin_backward, less_the_mean, merge


@triton.jit
def sink(maximum, beta, tau, TEMPERED: tl.constexpr):
    """e^{β − M/τ}, +∞ in a row without scores; of one number a row, in double."""
    top = tl.where(maximum == -INFINITY, 0.0, maximum).to(tl.float64)
    if TEMPERED:
        top = top / tau
    return tl.where(maximum == -INFINITY, INFINITY, tl.exp(beta - top))


@triton.jit
def finish(x, p, g, column, theta, tau, TEMPERED: tl.constexpr, a, b, c, d):
    mass = (b + c).to(tl.float64) + sink(a, theta[0], tau, TEMPERED)
    mass = tl.where(a == INFINITY, float("nan"), mass.to(x.dtype))
    return exp(over(gap(x, a), tau, TEMPERED)) * inverse(mass)


FORWARD = RowFunctions(begin, merge, finish)


@triton.jit
def finish_backward(x, p, g, column, theta, tau, TEMPERED: tl.constexpr, a, b, c, d):
    is_most = p > MOST_P
    most, top = row_max(tl.where(is_most, p, 0.0)), row_max(tl.where(is_most, x, -INFINITY))
    missing = tl.where(most > MOST_P, most.to(tl.float64) * sink(top, theta[0], tau, TEMPERED), 0.0)
    return less_the_mean(p, p, g, a, b, c, (d.to(tl.float64) + missing).to(p.dtype))


BACKWARD = RowFunctions(begin_backward, add, finish_backward, is_derivative=True)


@triton.jit
def above(maximum, beta):
    """β − M, β in a row without scores."""
    return beta - tl.where(maximum == -INFINITY, 0.0, maximum).to(tl.float64)


@triton.jit
def conjugate(a, b, c, d, theta):
    """log(e^v + e^{β − M}), from the larger of the two."""
    v = softmax.conjugate(a, b, c, d, theta)
    of_sink = above(a, theta[0])
    larger = tl.where(v != v, v, tl.maximum(v, of_sink))
    return larger + log1p(tl.exp(tl.where(v > of_sink, of_sink - v, v - of_sink)))


@triton.jit
def missing(share, maximum, theta):
    """What the sink's share of a target adds to Ω: share (log share − (β − M))."""
    beta = theta[0]
    term = share * (tl.log(tl.where(share > 0.0, share, 1.0)) - above(maximum, beta))
    return tl.where((share > 0.0) & (beta > -INFINITY), term, 0.0)


LOSS = Loss(FORWARD, conjugate, shannon, missing, is_log=True)
