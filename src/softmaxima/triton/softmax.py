"""softmax: p = e^{z − M} / Σ e^{z − M}; its gradient p ⊙ (g − ⟨p, g⟩)."""

from __future__ import annotations

import triton
import triton.language as tl

from softmaxima.triton._rows import RowFunctions, exp, row_max, row_sum


@triton.jit
def finite(maximum):
    """What is subtracted from scores: 0 in a row without any."""
    return tl.where(maximum == -float("inf"), 0.0, maximum)


@triton.jit
def begin(z, p, g, theta):
    maximum = row_max(z)
    mass = row_sum(exp(z - finite(maximum)))
    return maximum, mass, tl.zeros_like(mass)


@triton.jit
def merge(a, b, c, a2, b2, c2):
    maximum = tl.maximum(a, a2)
    shift = tl.where(maximum == -float("inf"), 0.0, maximum)
    return maximum, b * tl.exp(a - shift) + b2 * tl.exp(a2 - shift), c + c2


@triton.jit
def finish(z, p, g, theta, a, b, c):
    return exp(z - finite(a)) / tl.where(b == 0.0, 1.0, b)


FORWARD = RowFunctions(begin, merge, finish)


@triton.jit
def begin_backward(z, p, g, theta):
    dot = row_sum(p * g)
    return dot, tl.zeros_like(dot), tl.zeros_like(dot)


@triton.jit
def add(a, b, c, a2, b2, c2):
    return a + a2, b + b2, c + c2


@triton.jit
def finish_backward(z, p, g, theta, a, b, c):
    # Where p is 0 the gradient is 0, whatever g is.
    return tl.where(p == 0.0, 0.0, p * (g - a))


BACKWARD = RowFunctions(begin_backward, add, finish_backward, nothing=0.0)
