r"""logaddexp: log(exp(x) + exp(y)) = LSE(x, y) = max + log1p(exp(−|x − y|)), elementwise."""

from __future__ import annotations

import torch
from torch import Tensor

from softmaxima.base.arguments import Array, as_map_scores, check_device, like_input
from softmaxima.base.public import public
from softmaxima.engine.fused import Pull, fused, is_readable
from softmaxima.engine.routing import is_plain
from softmaxima.kernels import native
from softmaxima.kernels.layout import in_memory
from softmaxima.lse.logsumexp import row_logsumexp


@public
def logaddexp(x: Array, y: Array) -> Array:
    """The logarithm of the sum of two exponentials, `log(exp(x) + exp(y))`, elementwise, in nats.

    Args:
        x, y: any two shapes that broadcast, float64, float32, bfloat16 or float16, both arrays or both tensors.

    Returns:
        The broadcast shape and the wider dtype. −∞ if both are −∞, +∞ if either is +∞. Results near 0 keep their digits:
        logaddexp(0, −40) is 4.248e-18.

    Raises:
        TypeError for another dtype or for an array with a tensor, ValueError for shapes that do not broadcast.

    The gradient is softmax(x, y): zero where both are −∞, NaN where one is +∞. Cost: x and y
    are read once, and once more for the gradient.

    >>> import numpy as np, softmaxima as sm
    >>> sm.logaddexp(np.array([0.0, 1000.0, -np.inf]), np.array([-40.0, 1000.0, -np.inf]))
    array([4.24835426e-18, 1.00069315e+03,           -inf])
    """
    if is_plain(x, -1, 1.0, None) and is_plain(y, -1, 1.0, None) and x.shape == y.shape and x.dtype == y.dtype:
        return fused(_native, _composed, x, y)  # type: ignore[arg-type,return-value]
    name = "logaddexp"
    if isinstance(x, torch.Tensor) != isinstance(y, torch.Tensor):
        raise TypeError(f"{name}: x and y must be of one kind, got {type(x).__name__} and {type(y).__name__}; convert one of them")
    first, second = (as_map_scores(name, v, what=what) for what, v in (("x", x), ("y", y)))
    second = check_device(name, "y", second, first)
    try:
        pair = torch.broadcast_tensors(first, second)
    except RuntimeError:
        shapes = f"{tuple(first.shape)} and {tuple(second.shape)}"
        raise ValueError(f"{name}: x and y must broadcast against each other, got shapes {shapes}") from None
    dtype = torch.promote_types(first.dtype, second.dtype)
    pair = tuple(v.to(dtype) for v in pair)
    value = fused(_native, _composed, *pair) if all(map(is_readable, pair)) else _composed(*pair)
    return like_input(value, x)


def _native(x: Tensor, y: Tensor, gradient: bool) -> tuple[Tensor, Pull, tuple[()]]:
    pull = lambda g, x, y: native.logaddexp_backward(*map(in_memory, (x, y, g)))
    return native.logaddexp(in_memory(x), in_memory(y)), pull, ()


def _composed(x: Tensor, y: Tensor) -> Tensor:
    """The same of operations that have every derivative."""
    return row_logsumexp(torch.stack((x, y), -1), 1.0, None)
