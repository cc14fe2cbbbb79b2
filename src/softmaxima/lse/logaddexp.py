r"""logaddexp: log(exp(x) + exp(y)) = LSE(x, y) = max + log1p(exp(−|x − y|)), elementwise."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from softmaxima._fused import fused, is_fusible
from softmaxima._map import Array, as_tensor, check_scores, is_native, like_input
from softmaxima.lse.logsumexp import row_logsumexp, shared_softmax

PIECE = 2**16  # pairs that are in cache at a time


def logaddexp(x: Array, y: Array) -> Array:
    """The logarithm of the sum of two exponentials, `log(exp(x) + exp(y))`, elementwise, in nats.

    Args:
        x, y: any two shapes that broadcast, float64, float32, bfloat16 or float16, both arrays or both tensors.

    Returns:
        The broadcast shape and the wider dtype. −∞ if both are −∞, +∞ if either is +∞. Results near 0 keep their digits:
        logaddexp(0, −40) is 4.248e-18.

    Raises:
        TypeError for another dtype or for an array with a tensor, ValueError for shapes that do not broadcast.

    The gradient is softmax(x, y): zero where both are −∞, a half each where both are +∞. Cost: x and y are read twice and written
    once, side by side.

    >>> import numpy as np, softmaxima as sm
    >>> sm.logaddexp(np.array([0.0, 1000.0, -np.inf]), np.array([-40.0, 1000.0, -np.inf]))
    array([4.24835426e-18, 1.00069315e+03,           -inf])
    """
    name = "logaddexp"
    if isinstance(x, torch.Tensor) != isinstance(y, torch.Tensor):
        raise TypeError(f"{name}: x and y must be of one kind, got {type(x).__name__} and {type(y).__name__}; convert one of them")
    first, second = (check_scores(name, as_tensor(name, what, v)) for what, v in (("x", x), ("y", y)))
    try:
        pair = torch.broadcast_tensors(first, second)
    except RuntimeError:
        shapes = f"{tuple(first.shape)} and {tuple(second.shape)}"
        raise ValueError(f"{name}: x and y must broadcast against each other, got shapes {shapes}") from None
    dtype = torch.promote_types(first.dtype, second.dtype)
    pairs = torch.stack([v.to(dtype) for v in pair], -1)
    if dtype == torch.float64 or not (is_native(pairs) and is_fusible(pairs)):
        return like_input(row_logsumexp(pairs, 1.0, None), x)
    return like_input(fused(_in_double, lambda pairs: row_logsumexp(pairs, 1.0, None), pairs), x)


def _in_double(pairs: Tensor, gradient: bool) -> tuple[Tensor, Any, tuple[Tensor, ...]]:
    """The formula as it stands, whose cancellation near 0 double hides from narrower results."""
    value = pairs.new_empty(pairs.shape[:-1])
    for part, sums in zip(pairs.view(-1, 2).split(PIECE), value.view(-1).split(PIECE), strict=True):
        x, y = part.double().unbind(-1)
        apart = torch.where(x == y, 0.0, (x - y).abs())  # also of equal infinities
        sums.copy_(torch.maximum(x, y) + apart.neg().exp().log1p())
    return value, lambda g, pairs: (g.unsqueeze(-1) * shared_softmax(pairs.double())).to(pairs.dtype), ()
