r"""elastic_softmax: p = e^{z − S} / (Σ e^{z − S} + e^{β − S}), S = max(M, β). Its gradient is that of softmax."""

from __future__ import annotations

import triton
import triton.language as tl

from softmaxima.triton._rows import RowFunctions, exp
from softmaxima.triton.softmax import begin, merge


@triton.jit
def finish(z, p, g, theta, a, b, c):
    beta = theta.to(z.dtype)
    shift = tl.maximum(a, beta, propagate_nan=tl.PropagateNan.ALL)
    shift = tl.where(shift == -float("inf"), 0.0, shift)
    mass = (b + c) * exp(tl.where(a == -float("inf"), a, a - shift)) + exp(beta - shift)
    return exp(z - shift) / tl.where(mass == 0.0, 1.0, mass)


FORWARD = RowFunctions(begin, merge, finish)
