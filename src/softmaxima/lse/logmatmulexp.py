r"""logmatmulexp: z_ij = log Σ_k exp(x_ik + y_kj), the product of matrices that are known by the logarithms of their entries.

    z_ij = a_i + b_j + log Σ_k exp(x_ik − a_i) exp(y_kj − b_j)        a_i = max_k x_ik,  b_j = max_k y_kj

The sum is a matrix product of numbers in [0, 1]. Where the large entries of a row and of a column do not meet, all its terms may be
too small for float64: an entry whose sum is below 1e-150 is the logsumexp of its own k terms.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from softmaxima.core.arguments import Array, as_scores, check_device, like_input
from softmaxima.core.tracing import is_eager, sizes, transforming
from softmaxima.lse.logsumexp import row_logsumexp

SMALLEST = 1e-150  # what is lost of a sum are terms below 1e-308, and 1/Σ, of which gradients are made, is a number


def logmatmulexp(x: Array, y: Array) -> Array:
    """The matrix product in log space, `z_ij = log Σ_k exp(x_ik + y_kj)`, in nats: of log-probabilities, a step of a Markov chain.

    It is associative, so that a chain of products may be taken in any grouping: by halves, in log₂ of its length many steps.

    Args:
        x, y: matrices [..., n, k] and [..., k, m] as of `torch.matmul`, whose further axes broadcast; a vector [k] is a row as x
            and a column as y. float64, float32, bfloat16 or float16, both arrays or both tensors. −∞ is a probability of 0.

    Returns:
        [..., n, m], less the axis of a vector, in the wider dtype; sums are taken in float64. −∞ where nothing is allowed.

    Raises:
        TypeError for another dtype or for an array with a tensor, ValueError for numbers and shapes that do not go together.

    The gradient by x_ik is Σ_j g_ij p_k(i, j), p(i, j) being the softmax of the terms of z_ij; it is zero for entries of −∞. Cost:
    a matrix product, the exponential of each entry and the logarithm of each result, and twice as much for the gradient; with
    forbidden pairs another product. Entries whose terms are all far below the largest of their row and column take k exponentials
    and numbers of memory each. Under `torch.compile` and `torch.func` all do. On a GPU the call waits for the product, to see
    whether there are any.

    >>> import numpy as np, softmaxima as sm
    >>> log_p = np.log(np.array([[0.9, 0.1], [0.5, 0.5]]))
    >>> np.exp(sm.logmatmulexp(log_p, log_p)).round(2)  # two steps of a chain
    array([[0.86, 0.14],
           [0.7 , 0.3 ]])
    >>> sm.logmatmulexp(np.array([0.0, -1000.0]), np.array([-1000.0, 0.0])).round(4)
    np.float64(-999.3069)
    """
    first, second = _matrices(x, y)
    wide = first.to(torch.float64), second.to(torch.float64)
    by_product = is_eager(first) and is_eager(second) and not transforming()
    z = (_by_product if by_product else _by_terms)(*wide).to(torch.promote_types(first.dtype, second.dtype))
    z = z if x.ndim > 1 else z.squeeze(-2)
    return like_input(z if y.ndim > 1 else z.squeeze(-1), x)


def _matrices(x: Any, y: Any) -> tuple[Tensor, Tensor]:
    """Both as matrices [..., n, k] and [..., k, m], validated."""
    name = "logmatmulexp"
    if isinstance(x, Tensor) != isinstance(y, Tensor):
        raise TypeError(f"{name}: x and y must be of one kind, got {type(x).__name__} and {type(y).__name__}; convert one of them")
    first, second = (as_scores(name, v, what) for what, v in (("x", x), ("y", y)))
    second = check_device(name, "y", second, first)
    shapes = f"{sizes(first)} and {sizes(second)}"
    if not (first.ndim and second.ndim):
        raise ValueError(f"{name}: x and y must be vectors or matrices, got shapes {shapes}; add the number instead")
    first = first if first.ndim > 1 else first.unsqueeze(0)
    second = second if second.ndim > 1 else second.unsqueeze(-1)
    rows, columns = sizes(first), sizes(second)
    if rows[-1] != columns[-2]:
        raise ValueError(f"{name}: the last axis of x must be as long as the last but one of y, got shapes {shapes}; transpose one")
    try:
        torch.broadcast_shapes(rows[:-2], columns[:-2])
    except RuntimeError:
        raise ValueError(f"{name}: the axes of x and y before the last two must broadcast, got shapes {shapes}") from None
    return first, second


def _by_terms(x: Tensor, y: Tensor) -> Tensor:
    """The definition."""
    return row_logsumexp(x.unsqueeze(-2) + y.mT.unsqueeze(-3), 1.0, None)


def _by_product(x: Tensor, y: Tensor) -> Tensor:
    """The same, as one product and the terms of those entries that it does not know."""
    if x.shape[-1] == 0:
        return _by_terms(x, y)
    scaled_x, a = _below_largest(x, -1)
    scaled_y, b = _below_largest(y, -2)
    sums = scaled_x.exp() @ scaled_y.exp()  # [..., n, m]
    known = sums.detach() > SMALLEST
    z = torch.where(known, sums, 1.0).log() + (a + b)
    if bool(known.all()):
        return z
    possible = _any_term(x.detach(), y.detach())
    z = z.masked_fill(~possible, -math.inf)
    *batch, i, j = (possible & ~known).nonzero(as_tuple=True)
    rows, columns = (v.expand(*known.shape[:-2], *v.shape[-2:]) for v in (x, y.mT))
    return z.index_put((*batch, i, j), row_logsumexp(rows[(*batch, i)] + columns[(*batch, j)], 1.0, None))


def _any_term(x: Tensor, y: Tensor) -> Tensor:
    """[..., n, m], whether an entry has a term that is not −∞, or is of a row or column with NaN or +∞."""
    terms = (x != -math.inf).to(x.dtype) @ (y != -math.inf).to(y.dtype)
    is_number = (x.amax(-1, keepdim=True) < math.inf) & (y.amax(-2, keepdim=True) < math.inf)
    return (terms > 0) | ~is_number


def _below_largest(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """(x less its largest along `dim`, that largest); −∞ and 0 where it is no number, so that NaN and +∞ stay where they are."""
    largest = x.detach().amax(dim, keepdim=True)
    is_number = largest.isfinite()
    largest = largest.masked_fill(~is_number, 0.0)
    return torch.where(is_number, x - largest, -math.inf), largest
