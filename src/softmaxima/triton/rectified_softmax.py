r"""rectified_softmax: the softmax over {z ≥ 0}; a row without any is 0, or uniform over its scores where θ = 1.

    ∂⟨g, p⟩/∂z = p ⊙ (g − ⟨p, g⟩) where z ≥ 0, and 0 elsewhere
"""

from __future__ import annotations

import triton
import triton.language as tl

from softmaxima.triton._rows import RowFunctions, exp, row_max, row_sum
from softmaxima.triton.softmax import add, begin_backward


@triton.jit
def begin(z, p, g, theta):
    """(max z, Σ_{z≥0} e^{z − max(M, 0)}, how many scores there are); NaN in a row with NaN."""
    maximum = row_max(z)
    mass = row_sum(tl.where(z < 0.0, 0.0, exp(z - tl.maximum(maximum, 0.0))))
    return maximum, mass, row_sum(tl.where(z == -float("inf"), 0.0, tl.full(z.shape, 1.0, z.dtype)))


@triton.jit
def merge(a, b, c, a2, b2, c2):
    maximum = tl.maximum(a, a2)
    shift = tl.maximum(maximum, 0.0)
    mass = b * tl.exp(tl.maximum(a, 0.0) - shift) + b2 * tl.exp(tl.maximum(a2, 0.0) - shift)
    return maximum, mass, c + c2


@triton.jit
def finish(z, p, g, theta, a, b, c):
    kept = tl.where(z < 0.0, 0.0, exp(z - tl.maximum(a, 0.0))) / tl.where(b == 0.0, 1.0, b)
    uniform = (b == 0.0) & (theta == 1.0) & (z > -float("inf"))
    return tl.where(uniform, 1.0 / tl.where(c == 0.0, 1.0, c), kept)


FORWARD = RowFunctions(begin, merge, finish)


@triton.jit
def finish_backward(z, p, g, theta, a, b, c):
    return tl.where((z < 0.0) | (p == 0.0), 0.0, p * (g - a))


BACKWARD = RowFunctions(begin_backward, add, finish_backward, nothing=0.0, is_derivative=True)
