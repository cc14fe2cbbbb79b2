r"""log_mean_exp: log((1/n) Σ exp(x_i)) = LSE(x) − log n = M + log1p((1/n) Σ expm1(x_i − M)), M = max x.

The second form is used where the sum of it is above −1/2: there LSE(x) and log n may cancel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.arguments import Array, like_input
from softmaxima.base.onnx import expm1
from softmaxima.base.public import public
from softmaxima.base.rows import row_maximum
from softmaxima.base.temperature import anchored
from softmaxima.base.tracing import sizes
from softmaxima.engine.envelope import envelope
from softmaxima.engine.fused import Native, fused, is_readable
from softmaxima.kernels import native
from softmaxima.lse.logsumexp import GRADIENT, check_real, prepare


@public
def log_mean_exp(
    x: Array,
    dim: int | Sequence[int] = -1,
    keepdim: bool = False,
    *,
    where: Array | None = None,
    temperature: float | Array = 1.0,
) -> Array:
    """The logarithm of a mean of exponentials, `log((1/n) Σ_i exp(x_i/τ))`, in nats: of importance weights, or of likelihoods.

    n counts the scores that `where` allows. A score of −∞ is a term of 0, and counts. Equal scores give their common value exactly.
    Near 0 float64 results keep their digits to 2⁻⁶¹ of the largest score, where long doubles have 64 bits, and others all of them.

    Args:
        x: scores of any shape. Integers become torch's default dtype, or float64 for NumPy.
        dim: the axis, or axes, over which the mean is taken.
        keepdim: keep these axes with size 1.
        where: boolean, broadcasts to x; False leaves a score out.
        temperature: τ > 0, a number or a tensor that broadcasts against x with size 1 along `dim`; a tensor may require grad.

    Returns:
        x's array kind and dtype, without `dim`; −∞ where nothing is allowed.

    Raises:
        TypeError, ValueError or IndexError, before any work, for anything else.

    The gradient, softmax(x/τ)/τ, is that of `logsumexp`. Cost: one read of x, in float64, and another where the mean is more than
    half of the largest term and, of narrower scores, the result is near 0; as many again for the gradient. A row of float64 whose
    result is below ¼ takes some ten times as long.

    >>> import numpy as np, softmaxima as sm
    >>> sm.log_mean_exp(np.array([1e4, 1e4, 1e4])), sm.log_mean_exp(np.array([1e-20, 0.0]))
    (np.float64(10000.0), np.float64(5e-21))
    """
    rows, tau, mask, _, shape = prepare("log_mean_exp", x, dim, keepdim, where, temperature)
    check_real("log_mean_exp", rows)
    return like_input(row_log_mean_exp(rows, tau, mask).reshape(shape), x)


def row_log_mean_exp(x: Tensor, tau: float | Tensor, where: Tensor | None) -> Tensor:
    """That of each row [..., n] → [...] in x's dtype, differentiable."""
    if sizes(x)[-1] == 0:
        return x.sum(-1) - math.inf
    composite = partial(_careful, tau=tau, where=where)
    return fused(_native(tau, where), composite, x) if is_readable(x, tau, where) else composite(x)


def _native(tau: float | Tensor, where: Tensor | None) -> Native:
    def evaluate(x: Tensor, gradient: bool) -> tuple[Tensor, Any, tuple[Tensor, ...]]:
        value, states = native.log_mean_exp(x, tau, where, wide=gradient)
        pull = lambda g, x, states: native.logsumexp_backward(x, states, g, tau, where)
        return value, pull, () if states is None else (states,)

    return evaluate


def _careful(x: Tensor, tau: float | Tensor, where: Tensor | None) -> Tensor:
    """The same by torch's operations."""
    top, z = anchored(x, tau, where)
    with torch.no_grad():
        maximum = row_maximum(z)
        allowed = torch.ones_like(z, dtype=torch.bool) if where is None else where
        count = allowed.sum(-1, keepdim=True)
        relative = (z - maximum).masked_fill(z == maximum, 0.0)  # also of +∞
        excess = expm1(relative).masked_fill(~allowed, 0.0).sum(-1, keepdim=True) / count
        mean = relative.exp().sum(-1, keepdim=True) / count
        value = maximum + torch.where(excess > -0.5, torch.log1p(excess), mean.log())
        value = value.masked_fill(maximum == math.inf, math.inf).masked_fill(count == 0, -math.inf)
    return (top + envelope(GRADIENT, value, z, None, {})).to(x.dtype).squeeze(-1)
