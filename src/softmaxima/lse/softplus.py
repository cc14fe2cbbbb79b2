r"""softplus: log(1 + exp(βx))/β = LSE(0, βx)/β, and its inverse."""

from __future__ import annotations

import torch
from torch import Tensor

from softmaxima.base.arguments import COMPUTE_DTYPE, Array, as_map_scores, like_input
from softmaxima.base.numbers import check_number
from softmaxima.base.onnx import expm1, logsigmoid
from softmaxima.base.public import public


@public
def softplus(x: Array, beta: float = 1.0, threshold: float | None = None) -> Array:
    """Softplus, `log(1 + exp(βx))/β = max(x, 0) + log1p(exp(−β|x|))/β`, a smooth relu.

    Exact for every x, without a threshold: `0 < softplus(x) − relu(x) ≤ log(2)/β`. Derivative σ(βx), second derivative
    βσ(βx)(1 − σ(βx)).

    Args:
        x: any shape; integers become torch's default dtype, or float64 for NumPy.
        beta: β in [1e-30, 1e30], the sharpness.
        threshold: where βx is above it the result is x, as in torch's function, which has 20 there. None: nowhere.

    Raises:
        TypeError for complex numbers, ValueError for another β.

    >>> import torch, softmaxima as sm
    >>> sm.softplus(torch.tensor([-40.0, 0.0, 40.0]))
    tensor([4.2484e-18, 6.9315e-01, 4.0000e+01])
    """
    scores, beta = _check("softplus", "x", x, beta)
    if threshold is not None:
        threshold = check_number("softplus", "threshold", threshold, lambda level: level == level, "a number")
    # max(x, 0) + log1p(exp(−|x|)) is −log σ(−x), of which torch has exact first and second derivatives also at 0 and ±∞.
    wide = _wide(scores, beta)
    y = (0.0 - logsigmoid(-beta * wide)) / beta  # 0 − 0 is 0, where −0 would be −0
    if threshold is not None:
        y = torch.where(beta * wide > threshold, wide, y)
    return like_input(y.to(scores.dtype), x)


@public
def inverse_softplus(y: Array, beta: float = 1.0) -> Array:
    """The x with softplus(x) = y, `x = y + log(−expm1(−βy))/β`, for y > 0; −∞ at 0 and NaN below.

    Use it to initialise an unconstrained parameter for a positive quantity. Arguments and errors as for `softplus`.

    >>> import torch, softmaxima as sm
    >>> sm.softplus(sm.inverse_softplus(torch.tensor([1e-8, 1.0, 50.0])))
    tensor([1.0000e-08, 1.0000e+00, 5.0000e+01])
    """
    values, beta = _check("inverse_softplus", "y", y, beta)
    wide = _wide(values, beta)
    return like_input((wide + torch.log(-expm1(-beta * wide)) / beta).to(values.dtype), y)


def _check(name: str, what: str, x: Array, beta: float) -> tuple[Tensor, float]:
    return as_map_scores(name, x, what=what), check_number(
        name, "beta", beta, lambda beta: 1e-30 <= beta <= 1e30, "between 1e-30 and 1e30"
    )


def _wide(x: Tensor, beta: float) -> Tensor:
    """In double where β may take x beyond float32."""
    return x.to(COMPUTE_DTYPE[x.dtype]) if beta == 1.0 else x.double()
