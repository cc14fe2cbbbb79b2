"""Derivatives by name: the Jacobian of a map, and Hessian–vector products of a loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.arguments import Array, as_map_scores, as_scores, like_input
from softmaxima.base.jacobian import narrowed
from softmaxima.base.onnx import refuse_export
from softmaxima.base.public import listing, public
from softmaxima.engine.contract import AnyMap
from softmaxima.engine.evaluation import linearise
from softmaxima.maps import find_map

__all__ = ["hessian_vector_product", "jacobian"]
__dir__ = listing(globals())


@public
def jacobian(
    map: AnyMap,
    x: Array,
    dim: int | Sequence[int] = -1,
    *,
    temperature: float | Array = 1.0,
    where: Array | None = None,
    **params: Any,
) -> Array:
    """The Jacobian of a map, one n×n matrix a row: `J[..., i, j] = ∂p_i/∂x_j`.

    Args:
        map: a registered name ("sparsemax"), the function of a map (`sm.sparsemax`) or a `Map`.
        x, dim, temperature, where, **params: as for the map.

    Returns:
        Shape: x's without `dim`, then (n, n). No gradient flows through it; differentiate the map for that.

    Half the sum of its absolute entries is 1 − Σp² for softmax: zero at a one-hot p, where the gradient has vanished.
    Cost: one evaluation of the map, and n² writes a row.

    >>> import numpy as np, softmaxima as sm
    >>> sm.jacobian("sparsemax", np.array([1.0, 0.8, 0.1]))
    array([[ 0.5, -0.5,  0. ],
           [-0.5,  0.5,  0. ],
           [ 0. ,  0. ,  0. ]])
    """
    found = find_map(map, "jacobian")
    scores = as_map_scores(found.name, x)
    refuse_export("jacobian", "derivatives")
    with torch.no_grad():
        local, tau = linearise(found, scores, dim, temperature, where, params)
        matrix = local.matrix(tau)
    return like_input(narrowed(matrix, scores.dtype), x)


@public
def hessian_vector_product(loss: Callable[[Tensor], Tensor], x: Array, v: Array) -> Array:
    """`H v` with H the Hessian of `loss` at x, without forming H: the forward derivative of the gradient.

    Args:
        loss: a scalar function of a tensor.
        x, v: tensors, or NumPy arrays, of one shape and dtype.

    Returns:
        A tensor (or array) of x's shape. Cost: about three evaluations of the loss with gradient.

    For cross-entropy H is diag(p) − p pᵀ, the covariance of a one-hot draw from p, which is Fisher's information as well.

    >>> import torch, softmaxima as sm
    >>> x, target = torch.tensor([0.0, 0.0]), torch.tensor(0)
    >>> sm.hessian_vector_product(lambda x: sm.cross_entropy(x, target), x, torch.tensor([1.0, 0.0]))
    tensor([ 0.2500, -0.2500])
    """
    name = "hessian_vector_product"
    refuse_export(name, "derivatives")
    if not callable(loss):
        raise TypeError(f"{name}: loss must be a function of a tensor, got {type(loss).__name__}")
    point, direction = as_scores(name, x, "x"), as_scores(name, v, "v")
    if point.shape != direction.shape or point.dtype != direction.dtype or point.device != direction.device:
        raise ValueError(
            f"{name}: x and v must have one shape and dtype, and one device, got {tuple(point.shape)} {point.dtype} {point.device} "
            f"and {tuple(direction.shape)} {direction.dtype} {direction.device}"
        )

    def number(z: Tensor) -> Tensor:
        value: Any = loss(z)
        if not isinstance(value, Tensor) or value.numel() != 1:
            got = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise TypeError(f"{name}: loss must return a tensor of one number, got {got}; take its .sum() or .mean()")
        return value

    return like_input(torch.func.jvp(torch.func.grad(number), (point,), (direction,))[1], x)
