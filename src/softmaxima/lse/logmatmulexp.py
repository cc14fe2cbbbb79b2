r"""logmatmulexp: z_ij = log Σ_k exp(x_ik + y_kj), the product of matrices that are known by the logarithms of their entries.

    z_ij = a_i + b_j + log Σ_k E_ik F_kj        E = exp(x − a),  a_i = max_k x_ik,  F = exp(y − b),  b_j = max_k y_kj

Reference: `_by_terms`, the logsumexp of each entry's own k terms.

Forward: the sum is a matrix product of numbers in [0, 1]. It does not know an entry whose terms are all too small for float64,
because the large ones of its row and column do not meet, nor the digits of one near 0, where log Σ cancels against a + b or Σ is 1
but for little. Those are taken by terms.

Sensitivity: with g = ∂/∂z, and R = exp(a + b − z) = 1/Σ,

    ∂/∂x = E ∘ ((g ∘ R) Fᵀ)        ∂/∂y = F ∘ (Eᵀ (g ∘ R))

which has one R at a time in derivatives of every order, for R is a function of z.

Cost: 2nkm operations and nk + km exponentials, the gradient twice as much; k exponentials and numbers of memory for each entry by
terms. Blanchard, Higham & Higham (2021), doi:10.1093/imanum/draa038, of the shift; chains by halves: Hassan, Särkkä &
García-Fernández (2021), doi:10.1109/TSP.2021.3103338.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.arguments import Array, as_map_scores, check_device, like_input
from softmaxima.base.public import public
from softmaxima.base.tracing import is_eager, may_differentiate, sizes, transforming
from softmaxima.lse.logsumexp import row_logsumexp

SMALLEST = 1e-100  # of a sum that is known: terms below 1e-308 are nothing beside it, and R times a slope up to 1e208 is a number
NEAR = 2.0**-6  # of 1 + |a + b|: a smaller |z| has lost more than 6 of its 52 bits


@public
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

    Results near 0 keep their digits, as those of `logsumexp` do. −∞ takes its term out, whatever stands against it, +∞ and NaN too.

    The gradient by x_ik is Σ_j g_ij p_k(i, j), p(i, j) being the softmax of the terms of z_ij; it is zero for entries of −∞. Cost:
    a matrix product in float64, whatever the dtype, the exponential of each entry and the logarithm of each result, and twice as
    much for the gradient; with forbidden pairs another product. Entries whose terms are all far below the largest of their row and
    column, by 230 nats, and those near 0 take k exponentials and k float64 numbers of memory each: where scores spread over
    many hundreds of nats those are most, and the call is no faster than the definition, `logsumexp(x[..., None] + y, -2)`, and
    takes as much memory. Under `torch.compile` and `torch.func` all do. On a GPU the call waits for the product, to see whether
    there are any. Blanchard, Higham & Higham (2021), doi:10.1093/imanum/draa038; of chains Hassan, Särkkä & García-Fernández
    (2021), doi:10.1109/TSP.2021.3103338.

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
    first, second = (as_map_scores(name, v, what=what) for what, v in (("x", x), ("y", y)))
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
    return _of_terms(x.unsqueeze(-2), y.transpose(-2, -1).unsqueeze(-3))


def _of_terms(x: Tensor, y: Tensor) -> Tensor:
    """log Σ_k exp(x_k + y_k), of the k where neither is −∞."""
    left_out = (x == -math.inf) | (y == -math.inf)
    return row_logsumexp((x + y).masked_fill(left_out, -math.inf), 1.0, None)


def _by_product(x: Tensor, y: Tensor) -> Tensor:
    """The same, as one product and the terms of those entries that it does not know."""
    if 0 in (*x.shape, *y.shape):
        return _by_terms(x, y)
    z, known, tiny = _Product.apply(x, y) if may_differentiate((x, y)) else _product(x, y)[:3]  # type: ignore[misc]
    if bool(known.all()):
        return z
    others = ~known
    if bool(tiny.any()):
        possible = _any_term(x.detach(), y.detach())
        z, others = z.masked_fill(~possible, -math.inf), others & possible
    *batch, i, j = others.nonzero(as_tuple=True)
    rows, columns = (v.expand(*known.shape[:-2], *v.shape[-2:]) for v in (x, y.mT))
    return z.index_put((*batch, i, j), _of_terms(rows[(*batch, i)], columns[(*batch, j)]))


def _product(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """(z, whether that is known, whether the sum is too small to be; E, F, a + b). Where the sum is too small, z is a + b."""
    (scaled_x, a), (scaled_y, b) = _below_largest(x, -1), _below_largest(y, -2)
    e, f, top = scaled_x.exp(), scaled_y.exp(), a + b
    sums = e @ f  # [..., n, m]
    tiny = ~(sums > SMALLEST)
    z = sums.masked_fill(tiny, 1.0).log() + top
    return z, ~tiny & (z.abs() >= NEAR * (1 + top.abs())), tiny, e, f, top


class _Product(torch.autograd.Function):
    """`_product`, whose derivatives divide by no power of the sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        z, known, tiny, *parts = _product(x, y)
        ctx.save_for_backward(x, y, z, *parts)
        ctx.mark_non_differentiable(known, tiny)
        return z, known, tiny

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor, Tensor]:
        g, (x, y, z, e, f, top) = grad_outputs[0], ctx.saved_tensors
        if torch.is_grad_enabled():  # E and F as functions of x and y
            e, f = _below_largest(x, -1)[0].exp(), _below_largest(y, -2)[0].exp()
        with torch.no_grad():  # a large g R overflows
            height = g.abs()
            height = torch.where(height < math.inf, height, 1.0).amax((-2, -1), keepdim=True).clamp_min(1.0)
        slope = g / height * (top - z).exp()
        by_x, by_y = e * (slope @ f.mT), f * (e.mT @ slope)
        return (height * by_x).sum_to_size(x.shape), (height * by_y).sum_to_size(y.shape)


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
