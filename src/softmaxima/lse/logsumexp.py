r"""logsumexp: LSE(x) = log Σ exp(x_i) = M + log m + log1p(r/m), M = max x, m the number of maxima, r = Σ_{x_i<M} exp(x_i − M).

Its gradient is softmax(x); of several +∞, each has an equal share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from softmaxima import _kernels
from softmaxima._envelope import envelope
from softmaxima._fused import Composite, Native, fused, is_fusible
from softmaxima._map import (
    Array,
    as_tensor,
    check_dim,
    check_positive,
    check_scores,
    check_temperature,
    check_where,
    is_plain,
    kernels,
    like_input,
    tempered,
)
from softmaxima._rows import normalise_exp, shifted_logsumexp
from softmaxima.maps.softmax import SOFTMAX


def logsumexp(
    x: Array,
    dim: int | Sequence[int] = -1,
    *,
    keepdim: bool = False,
    temperature: float | Array = 1.0,
    where: Array | None = None,
) -> Array:
    """The logarithm of a sum of exponentials, `log Σ_i exp(x_i/τ)`, in nats.

    Args:
        x: scores of any shape. Integers become torch's default dtype, or float64 for NumPy.
        dim: the axis, or axes, summed over.
        keepdim: keep the summed axes with size 1.
        temperature: τ > 0, a number or a tensor that broadcasts against x with size 1 along `dim`; a tensor may require grad.
            The result is that of x/τ, and is not multiplied by τ.
        where: boolean, broadcasts to x; False leaves a score out.

    Returns:
        x's array kind and dtype, without `dim`. −∞ for a sum of nothing, +∞ if any score is +∞. Results near 0 keep their digits:
        LSE(0, −40) is 4.248e-18. Sums are taken in float64.

    Raises:
        TypeError, ValueError or IndexError, before any work, for anything else.

    The gradient, softmax(x/τ)/τ, is zero where all is −∞ and shared where several scores are +∞. Cost: two reads of x; as many
    again for the gradient.

    >>> import torch, softmaxima as sm
    >>> sm.logsumexp(torch.tensor([[0.0, -40.0], [1e4, 1e4]]))
    tensor([4.2484e-18, 1.0001e+04])
    """
    if is_plain(x, dim, temperature, where):
        if x.requires_grad and torch.is_grad_enabled():  # type: ignore[union-attr]
            value = fused(*_evaluations(temperature, None), x)  # type: ignore[arg-type]
        else:
            value, _ = _kernels.logsumexp(x, temperature, None, wide=False)  # type: ignore[arg-type]
        return value.unsqueeze(-1) if keepdim else value  # type: ignore[return-value]
    name = "logsumexp"
    scores = as_tensor(name, "scores", x)
    if not scores.is_floating_point() and not scores.is_complex():
        scores = scores.to(torch.get_default_dtype() if isinstance(x, Tensor) else torch.float64)
    scores = check_scores(name, scores)
    dims = tuple(check_dim(name, d, scores.ndim) for d in (dim if isinstance(dim, Sequence) else (dim,)))
    if not dims or len(set(dims)) < len(dims):
        raise ValueError(f"{name}: dim must name each axis to sum over once, and at least one; got {dim}")
    rows = scores if scores.ndim else scores.reshape(1)
    mask = check_where(name, where, rows)
    flat = _merge(rows, dims)
    tau = check_temperature(name, _per_row(name, temperature, rows, dims), flat, flat.ndim - 1)
    value = row_logsumexp(flat, tau, None if mask is None else _merge(mask.expand(rows.shape), dims))
    shape = [1 if d in dims else size for d, size in enumerate(scores.shape) if keepdim or d not in dims]
    return like_input(value.reshape(shape), x)


def _merge(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The axes `dims` as one, last."""
    if dims == (x.ndim - 1,):
        return x
    return x.movedim(dims, tuple(range(-len(dims), 0))).flatten(-len(dims))


def _per_row(name: str, temperature: Any, x: Tensor, dims: tuple[int, ...]) -> Any:
    """A temperature tensor of x's rank with the axes `dims` merged; anything else as it came."""
    if isinstance(temperature, (int, float)):
        return temperature
    tau = as_tensor(name, "temperature", temperature)
    if tau.ndim > x.ndim:
        return tau
    return _merge(tau.reshape((1,) * (x.ndim - tau.ndim) + tuple(tau.shape)), dims)


def row_logsumexp(x: Tensor, tau: float | Tensor, where: Tensor | None) -> Tensor:
    """LSE of each row [..., n] → [...] in x's dtype, differentiable."""
    if x.shape[-1] == 0:
        return x.sum(-1) - math.inf
    native, composite = _evaluations(tau, where)
    return fused(native, composite, x) if is_fusible(x, tau, where) else composite(x)


def _evaluations(tau: float | Tensor, where: Tensor | None) -> tuple[Native, Composite]:
    def native(x: Tensor, gradient: bool) -> tuple[Tensor, Any, tuple[Tensor, ...]]:
        value, wide = kernels().logsumexp(x, tau, where, wide=gradient)
        return value, lambda g, x, wide: kernels().logsumexp_backward(x, wide, g, tau, where), (wide,)

    def composite(x: Tensor) -> Tensor:
        z = tempered(x, tau, where)
        maximum, log_sum = shifted_logsumexp(z.detach())
        return envelope(GRADIENT, maximum + log_sum, z, None, {}).to(x.dtype).squeeze(-1)

    return native, composite


def shared_softmax(z: Tensor) -> Tensor:
    """softmax, in which several +∞ have equal shares."""
    infinite = z == math.inf
    shares = torch.where(infinite, 0.0, -math.inf).to(z.dtype)
    return normalise_exp(torch.where(infinite.any(-1, keepdim=True), shares, z))


GRADIENT = replace(SOFTMAX, name="logsumexp", forward=shared_softmax, kernel=None)


def real_softmax(x: Array, sharpness: float = 1.0, dim: int = -1, *, where: Array | None = None) -> Array:
    """The smooth maximum, `log(Σ_i exp(λ x_i)) / λ` with sharpness λ > 0: in (max x, max x + log(n)/λ], and max x as λ → ∞.

    (Softmax is a smooth argmax; this is the smooth max. With −x and a minus sign it is the smooth minimum.) Shapes, errors and cost
    as for `logsumexp`; the gradient is softmax(λx).

    >>> import numpy as np, softmaxima as sm
    >>> sm.real_softmax(np.array([1.0, 2.0]), sharpness=100.0)
    np.float64(2.0)
    """
    sharpness = check_positive("real_softmax", "sharpness", sharpness)
    return logsumexp(x, dim, temperature=1.0 / sharpness, where=where) / sharpness
