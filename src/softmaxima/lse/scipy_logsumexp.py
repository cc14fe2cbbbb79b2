r"""scipy_logsumexp: the signature of `scipy.special.logsumexp`, for NumPy code that is written for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from softmaxima.base.arguments import as_tensor, check_dims
from softmaxima.base.numbers import described, shown
from softmaxima.base.public import public
from softmaxima.lse.logsumexp import logsumexp


@public
def scipy_logsumexp(
    a: Any, axis: int | Sequence[int] | None = None, b: Any = None, keepdims: bool = False, return_sign: bool = False
) -> Any:
    """`log Σ b exp(a)` with the signature, the broadcasting and the dtypes of `scipy.special.logsumexp`, for NumPy.

    Args:
        a: scores, array-like.
        axis: what is summed over; everything, if None.
        b: weights, array-like; a and b broadcast against each other. A weight of 0 removes its score.
        keepdims: keep the summed axes with size 1.
        return_sign: return `(log|S|, sign)`; without it the logarithm of a negative sum is NaN.

    Returns:
        The common dtype of a and b, float64 if both are integers. −∞ for a sum of nothing. No gradient; for tensors there is
        `logsumexp`, whose cost this has.

    Raises:
        TypeError for what are not numbers, ValueError for shapes that do not broadcast, IndexError for an axis that is not there.

    >>> import softmaxima as sm
    >>> sm.lse.scipy_logsumexp([1, 2], b=[1, -1], return_sign=True)
    (np.float64(1.5413248546129181), np.float64(-1.0))
    """
    scores = _floating(np.atleast_1d(_array("a", a)))
    if b is None:
        weights = None
    else:
        weights = _floating(np.atleast_1d(_array("b", b)))
        # Integers take the other's dtype, as in NumPy.
        dtype = np.result_type(_array("a", a).dtype, _array("b", b).dtype)
        dtype = dtype if np.issubdtype(dtype, np.inexact) else np.dtype(np.float64)
        scores, weights = scores.astype(dtype, copy=False), weights.astype(dtype, copy=False)
        try:
            shape = np.broadcast_shapes(scores.shape, weights.shape)
        except ValueError:
            raise ValueError(f"scipy_logsumexp: b must broadcast with a of shape {scores.shape}, got {weights.shape}") from None
        scores = np.broadcast_to(scores, shape)
    axes = tuple(range(scores.ndim)) if axis is None else check_dims("scipy_logsumexp", axis, scores.ndim, "axis")
    return logsumexp(scores, axes, weights=weights, keepdim=keepdims, return_sign=return_sign)


def _array(what: str, value: Any) -> np.ndarray:
    """A tensor too; one that lies in memory otherwise than it reads is brought into order first."""
    try:
        array = np.asarray(as_tensor("scipy_logsumexp", what, value) if isinstance(value, Tensor) else value)
    except ValueError:  # lists of several lengths
        raise ValueError(f"scipy_logsumexp: {what} must be an array of numbers, got {shown(value)}; pad it with b=0") from None
    if array.dtype.kind not in "biufcV":  # the last of bfloat16
        raise TypeError(
            f"scipy_logsumexp: {what} must be numbers, got {described(value, 'an array')} of NumPy dtype {array.dtype}; "
            "call .astype(numpy.float64) where they are numbers"
        )
    return array


def _floating(array: np.ndarray) -> np.ndarray:
    return array if np.issubdtype(array.dtype, np.inexact) else array.astype(np.float64)
