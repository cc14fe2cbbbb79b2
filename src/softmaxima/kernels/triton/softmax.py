r"""softmax, from the monoid of logsumexp: M = max x, m = #{x = M}, r = Σ_{x<M} e^{(x − M)/τ}.

p = e^{(x − M)/τ} / (m + r)          τ ∂⟨g, p⟩/∂x = p ⊙ (g − ⟨p, g⟩)
"""

from __future__ import annotations

import triton
import triton.language as tl

from softmaxima.kernels.triton.arithmetic import (
    INFINITY,
    LOG2_E,
    MOST_P,
    exp,
    gap,
    inverse,
    log1p,
    over,
    pulled,
    row_max,
    row_sum,
    weighed,
)
from softmaxima.kernels.triton.attention_blocks import AttentionFunctions
from softmaxima.kernels.triton.launches import RowFunctions
from softmaxima.kernels.triton.loss import Loss, shannon
from softmaxima.kernels.triton.rows import add


@triton.jit
def begin(x, p, g, column, theta, tau, TEMPERED: tl.constexpr):
    maximum = row_max(x)
    at_maximum = x == maximum
    count = tl.where(maximum == -INFINITY, 0.0, row_sum(at_maximum.to(x.dtype)))
    rest = row_sum(tl.where(at_maximum, 0.0, exp(over(gap(x, maximum), tau, TEMPERED))))
    return maximum, count, rest, tl.zeros_like(rest)


@triton.jit
def merge(is_part, a, b, c, d, theta, tau, TEMPERED: tl.constexpr):
    maximum = row_max(a)
    at_maximum = a == maximum
    count = row_sum(tl.where(is_part & at_maximum, b, 0.0))
    rest = tl.where(at_maximum, c, (b + c) * exp(over(gap(a, maximum), tau, TEMPERED)))
    rest = row_sum(tl.where(is_part, rest, 0.0))
    return maximum, count, rest, tl.zeros_like(rest)


@triton.jit
def finish(x, p, g, column, theta, tau, TEMPERED: tl.constexpr, a, b, c, d):
    mass = tl.where(a == INFINITY, float("nan"), b + c)
    return exp(over(gap(x, a), tau, TEMPERED)) * inverse(mass)


FORWARD = RowFunctions(begin, merge, finish)


@triton.jit
def log_mass(count, rest):
    """log(m + r) = log m + log1p(r/m) of one number a row, in double, 0 in a row without scores."""
    m = tl.where(count == 0.0, 1.0, count).to(tl.float64)
    return tl.log(m) + log1p(rest.to(tl.float64) / m)


@triton.jit
def conjugate(a, b, c, d, theta):
    return tl.where(a == INFINITY, float("nan"), log_mass(b, c))


LOSS = Loss(FORWARD, conjugate, shannon, is_log=True)


@triton.jit
def begin_backward(x, p, g, column, theta, tau, TEMPERED: tl.constexpr):
    """(⟨p, g⟩ of moderate g, of large ones, the first without a p that is most of its row, Σp without it)."""
    dot, large = weighed(p, g)
    others = tl.where(p > MOST_P, 0.0, p)
    of_others, _ = weighed(others, g)
    return dot, large, of_others, row_sum(others)


@triton.jit
def less_the_mean(s, p, g, a, b, of_others, rest):
    """s (g − ⟨p, g⟩), of a p that is most of its row by the others: s ((1 − p) g − Σ of the others p g)."""
    value = pulled(s, g, a, b, tl.full(a.shape, 1.0, a.dtype))
    of_most = tl.where(s == 0.0, 0.0, s * (tl.where(rest == 0.0, 0.0, g * rest) - of_others))
    return tl.where((p > MOST_P) & (b == 0.0), of_most, value)


@triton.jit
def finish_backward(x, p, g, column, theta, tau, TEMPERED: tl.constexpr, a, b, c, d):
    return less_the_mean(p, p, g, a, b, c, d)


BACKWARD = RowFunctions(begin_backward, add, finish_backward, is_derivative=True)


@triton.jit
def exponential(t, beta):
    """e^t for t in units of log 2."""
    p = tl.exp2(t)
    return p, p


ATTENTION = AttentionFunctions(exponential, lambda *theta: 0.0, unit=LOG2_E.value, online=True)
