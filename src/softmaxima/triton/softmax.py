r"""softmax, from the monoid of logsumexp: M = max z, m = #{z = M}, r = Σ_{z<M} e^{z − M}.

    p = e^{z − M} / (m + r)          ∂⟨g, p⟩/∂z = p ⊙ (g − ⟨p, g⟩)
"""

from __future__ import annotations

import triton
import triton.language as tl

from softmaxima.triton._rows import RowFunctions, exp, row_max, row_sum


@triton.jit
def gap(z, maximum):
    """z − M, −∞ in a row without scores; NaN with +∞."""
    return z - tl.where(maximum == -float("inf"), 0.0, maximum)


@triton.jit
def begin(z, p, g, theta):
    maximum = row_max(z)
    at_maximum = z == maximum
    nothing = maximum == -float("inf")
    count = tl.where(nothing, 0.0, row_sum(at_maximum.to(z.dtype)))
    rest = row_sum(tl.where(at_maximum & (maximum < float("inf")), 0.0, exp(gap(z, maximum))))
    return maximum, count, rest


@triton.jit
def merge(a, b, c, a2, b2, c2):
    maximum = tl.maximum(a, a2)
    shift = tl.where(maximum == -float("inf"), 0.0, maximum)
    first, second = a == maximum, a2 == maximum
    count = tl.where(first, b, 0.0) + tl.where(second, b2, 0.0)
    rest = tl.where(first, c, (b + c) * tl.exp(a - shift)) + tl.where(second, c2, (b2 + c2) * tl.exp(a2 - shift))
    return maximum, count, rest


@triton.jit
def finish(z, p, g, theta, a, b, c):
    mass = b + c
    return exp(gap(z, a)) / tl.where(mass == 0.0, 1.0, mass)


FORWARD = RowFunctions(begin, merge, finish)


@triton.jit
def begin_backward(z, p, g, theta):
    # Where p is 0 the gradient is 0, whatever g is.
    dot = row_sum(tl.where(p == 0.0, 0.0, p * g))
    return dot, tl.zeros_like(dot), tl.zeros_like(dot)


@triton.jit
def add(a, b, c, a2, b2, c2):
    return a + a2, b + b2, c + c2


@triton.jit
def finish_backward(z, p, g, theta, a, b, c):
    return tl.where(p == 0.0, 0.0, p * (g - a))


BACKWARD = RowFunctions(begin_backward, add, finish_backward, nothing=0.0, is_derivative=True)
