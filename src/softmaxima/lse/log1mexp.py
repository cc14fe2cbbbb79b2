r"""log1mexp: log(1 − exp(x)) for x ≤ 0, the logarithm of the complement of a probability.

log(−expm1(x)) for x > −log 2,  log1p(−exp(x)) below          (Mächler 2012)
"""

from __future__ import annotations

import math

import torch

from softmaxima.base.arguments import COMPUTE_DTYPE, Array, as_map_scores, like_input
from softmaxima.base.onnx import expm1
from softmaxima.base.public import public


@public
def log1mexp(x: Array) -> Array:
    """`log(1 − exp(x))` for x ≤ 0: from log p to log(1 − p), in nats.

    Exact to the last digits both where exp(x) is near 1 and where it is near 0; −∞ at 0, 0 at −∞, and NaN above 0.

    Args:
        x: any shape, float64, float32, bfloat16 or float16. Note the sign: some libraries take −x.

    Raises:
        TypeError for another dtype.

    The derivative is −exp(x)/(1 − exp(x)). Cost: one read and one write, and a few passes between.
    Source: Mächler (2012), "Accurately computing log(1 − exp(−|a|))".

    >>> import numpy as np, softmaxima as sm
    >>> sm.log1mexp(np.array([-1e-20, -np.log(2.0), -40.0, 0.0]))
    array([-4.60517019e+01, -6.93147181e-01, -4.24835426e-18,           -inf])
    """
    scores = as_map_scores("log1mexp", x, what="x")
    wide = scores.to(COMPUTE_DTYPE[scores.dtype])
    near = wide > -math.log(2)
    # Each form sees only what it is for, so that the derivative of the other is no NaN.
    from_one = (0 - expm1(torch.where(near, wide, -1.0))).log()  # 0 − 0 is 0, and −0 has another derivative
    from_zero = torch.log1p(-torch.where(near, -1.0, wide).exp())
    return like_input(torch.where(near, from_one, from_zero).to(scores.dtype), x)
