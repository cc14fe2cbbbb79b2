r"""logsumexp: LSE(x) = log Σ exp(x_i) = M + log m + log1p(r/m), M = max x, m the number of maxima, r = Σ_{x_i<M} exp(x_i − M).

Its gradient is softmax(x), NaN in a row with +∞. Weighted sums are in `_weighted.py`, complex ones in
`_complex.py`, and sums that are exact to the last place in `_compensated.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, get_args, overload

import torch
from torch import Tensor

from softmaxima.base.arguments import (
    Array,
    as_floating,
    as_tensor,
    broadcasts,
    check_device,
    check_dims,
    check_scores,
    check_temperature,
    check_where,
    like_input,
    merged_last,
)
from softmaxima.base.dtensors import form_of_dtensors, is_dtensor
from softmaxima.base.monoid import log_sum
from softmaxima.base.numbers import check_choice, check_positive
from softmaxima.base.onnx import refuse_export
from softmaxima.base.public import public
from softmaxima.base.temperature import anchored
from softmaxima.base.tracing import sizes
from softmaxima.engine.envelope import envelope
from softmaxima.engine.fused import Composite, Native, fused, is_fusible
from softmaxima.engine.routing import is_plain, kernels
from softmaxima.kernels import native
from softmaxima.lse._compensated import compensated_logsumexp
from softmaxima.lse._complex import complex_logsumexp, over_temperature
from softmaxima.lse._weighted import weighted_logsumexp, with_gradient_of
from softmaxima.maps.softmax import SOFTMAX

Precision = Literal["native", "compensated"]


@overload
def logsumexp(
    x: Array,
    dim: int | Sequence[int] = ...,
    keepdim: bool = ...,
    *,
    weights: Array | None = ...,
    where: Array | None = ...,
    temperature: float | Array = ...,
    return_sign: Literal[False] = ...,
    precision: Precision = ...,
) -> Array: ...
@overload
def logsumexp(
    x: Array,
    dim: int | Sequence[int] = ...,
    keepdim: bool = ...,
    *,
    weights: Array | None = ...,
    where: Array | None = ...,
    temperature: float | Array = ...,
    return_sign: Literal[True],
    precision: Precision = ...,
) -> tuple[Array, Array]: ...
@public
def logsumexp(
    x: Array,
    dim: int | Sequence[int] = -1,
    keepdim: bool = False,
    *,
    weights: Array | None = None,
    where: Array | None = None,
    temperature: float | Array = 1.0,
    return_sign: bool = False,
    precision: Precision = "native",
) -> Any:
    """The logarithm of a sum of exponentials, `log Σ_i b_i exp(x_i/τ)`, in nats.

    Args:
        x: scores of any shape. Integers become torch's default dtype, or float64 for NumPy. Complex scores give the logarithm
            whose imaginary part lies in (−π, π].
        dim: the axis, or axes, summed over.
        keepdim: keep the summed axes with size 1.
        weights: b, which broadcasts to x; 1 by default. A weight may be negative; one of 0 removes its score, whatever it is.
        where: boolean, broadcasts to x; False leaves a score out.
        temperature: τ > 0, a number or a tensor that broadcasts against x with size 1 along `dim`; a tensor may require grad.
            The result is that of x/τ, and is not multiplied by τ.
        return_sign: return `(log|S|, sign)` for the sum S, the sign being 1, 0 or −1, of complex scores S/|S|. Without it the
            logarithm of a negative sum is NaN.
        precision: "native" sums in float64; "compensated" is within 1 ulp of the exact logarithm, however many terms there are and
            however much they cancel. It has the same gradient.

    Returns:
        x's array kind and dtype, without `dim`. −∞ for a sum of nothing, +∞ if any score is +∞. Results near 0 keep their digits:
        LSE(0, −40) is 4.248e-18. Sums are taken in float64.

    Raises:
        TypeError, ValueError or IndexError, before any work, for anything else.

    The gradient by x, b_i exp(x_i/τ)/(τS), and that by b_i, exp(x_i/τ)/S, are zero where S is 0, of nothing or of terms that
    cancel, and NaN beside a score of +∞. Cost: two reads of x; as many again for the gradient. Complex sums, and weighted
    ones whose gradient by b or τ is asked for, are made of torch's operations. Compensated sums take hundreds of passes over blocks
    that stay in cache, and, on rows whose result 106 bits cannot tell, decimal arithmetic of some 10 µs a score.
    Blanchard, Higham & Higham (2021), doi:10.1093/imanum/draa038; the meaning of weights and signs is `scipy.special.logsumexp`'s.

    >>> import torch, softmaxima as sm
    >>> sm.logsumexp(torch.tensor([[0.0, -40.0], [1e4, 1e4]]))
    tensor([4.2484e-18, 1.0001e+04])
    >>> sm.logsumexp(torch.tensor([1.0, 2.0]), weights=torch.tensor([1.0, -1.0]), return_sign=True)
    (tensor(1.5413), tensor(-1.))
    """
    plain = (
        weights is None
        and return_sign is False
        and isinstance(keepdim, bool)
        and isinstance(precision, str)
        and precision == "native"
    )
    if plain and is_plain(x, dim, temperature, where):
        if x.requires_grad and torch.is_grad_enabled():  # type: ignore[union-attr]
            value = fused(*_evaluations(temperature, None), x)  # type: ignore[arg-type]
        else:
            value, _ = native.logsumexp(x, temperature, None, wide=False)  # type: ignore[arg-type]
        return value.unsqueeze(-1) if keepdim else value
    check_choice("logsumexp", "precision", precision, get_args(Precision))
    if is_dtensor(x):
        return form_of_dtensors("logsumexp")(
            x, dim, weights=weights, keepdim=keepdim, where=where, temperature=temperature, return_sign=return_sign,
            precision=precision,
        )  # fmt: skip
    rows, tau, mask, factors, shape = prepare("logsumexp", x, dim, keepdim, where, temperature, weights)
    if precision == "compensated":
        check_real("logsumexp", rows, "precision='native' takes complex scores")
    elif factors is None and not return_sign and not rows.is_complex():
        return like_input(row_logsumexp(rows, tau, mask).reshape(shape), x)
    value, sign = row_signed_logsumexp(rows, tau, mask, factors, precision)
    if return_sign:
        value = value.real if value.is_complex() else value
        return like_input(value.reshape(shape), x), like_input(sign.reshape(shape), x)
    value = value if value.is_complex() else value.masked_fill(sign < 0, math.nan)
    return like_input(value.reshape(shape), x)


def prepare(
    name: str, x: Any, dim: int | Sequence[int], keepdim: bool, where: Any, temperature: Any, weights: Any = None
) -> tuple[Tensor, float | Tensor, Tensor | None, Tensor | None, list[int]]:
    """(x, τ, mask, weights, all validated and with the axes `dim` as one, last; the shape of the result)."""
    scores = as_floating(name, x)
    factors = None if weights is None else check_weights(name, weights, scores)
    scores = _promoted(name, scores, factors)
    dims = check_dims(name, dim, scores.ndim)
    rows = scores if scores.ndim else scores.reshape(1)
    mask = check_where(name, where, rows)
    tau = merged_last(check_temperature(name, temperature, rows, dims), dims)
    mask, factors = (None if v is None else merged_last(v.expand(rows.shape), dims) for v in (mask, factors))
    shape = [1 if d in dims else size for d, size in enumerate(scores.shape) if keepdim or d not in dims]
    return merged_last(rows, dims), tau, mask, factors, shape


def check_real(name: str, x: Tensor, instead: str = "logsumexp takes complex scores") -> None:
    """Raise for complex scores."""
    if x.is_complex():
        raise TypeError(f"{name}: scores must be real, got {x.dtype}; {instead}")


def check_weights(name: str, weights: Any, x: Tensor) -> Tensor:
    """Numbers that broadcast to x."""
    factors = as_tensor(name, "weights", weights)
    if factors.dtype == torch.bool:
        raise TypeError(f"{name}: weights must be numbers, got {factors.dtype}; leave scores out by where")
    if not broadcasts(factors, sizes(x) if x.ndim else (1,)):
        raise ValueError(f"{name}: weights must broadcast to the scores' shape {tuple(x.shape)}, got {tuple(factors.shape)}")
    return check_device(name, "weights", factors, x)


def _promoted(name: str, scores: Tensor, weights: Tensor | None) -> Tensor:
    """Scores that can be summed, complex where the weights are."""
    if weights is not None and weights.is_complex():
        scores = scores.to(torch.promote_types(scores.dtype, weights.dtype))
    return scores if scores.dtype in (torch.complex64, torch.complex128) else check_scores(name, scores)


def row_logsumexp(x: Tensor, tau: float | Tensor, where: Tensor | None) -> Tensor:
    """LSE of each row [..., n] → [...] in x's dtype, differentiable."""
    if sizes(x)[-1] == 0:
        return x.sum(-1) - math.inf
    native, composite = _evaluations(tau, where)
    return fused(native, composite, x) if is_fusible(x, tau, where) else composite(x)


def row_signed_logsumexp(
    x: Tensor, tau: float | Tensor, where: Tensor | None, weights: Tensor | None, precision: Precision
) -> tuple[Tensor, Tensor]:
    """(log|S|, sign) of each row [..., n] → [...] in x's dtype; of complex rows (log S, S/|S|)."""
    if sizes(x)[-1] == 0:
        nothing = x.sum(-1)
        return nothing.masked_fill(nothing == 0, -math.inf), nothing.detach()
    if x.is_complex():
        refuse_export("logsumexp", "complex numbers")
        value, phase = complex_logsumexp(over_temperature(x, tau, where), weights)
        return value.to(x.dtype), phase.to(x.dtype)
    if weights is None:
        value = row_logsumexp(x.to(torch.float64) if precision == "compensated" else x, tau, where)
        empty, known = value.detach() == -math.inf, ~value.detach().isnan()
        sign = torch.ones_like(value.detach()).masked_fill(empty, 0.0).where(known, math.nan)
    else:
        if where is not None:  # nor is the weight of what is left out read
            weights = torch.where(where, weights, 0.0)
        value, sign = weighted_logsumexp(x, weights, tau, where)
    if precision == "compensated":
        refuse_export("logsumexp", "compensated sums; take precision='native'")
        wide, factors = x.to(torch.float64), None if weights is None else weights.to(torch.float64)
        exact, its_sign = compensated_logsumexp(wide if where is None else wide.masked_fill(~where, -math.inf), tau, factors)
        known = ~exact.isnan()
        value, sign = with_gradient_of(value, torch.where(known, exact, value.detach())), torch.where(known, its_sign, sign)
    return value.to(x.dtype), sign.to(x.dtype)


def _evaluations(tau: float | Tensor, where: Tensor | None) -> tuple[Native, Composite]:
    def native(x: Tensor, gradient: bool) -> tuple[Tensor, Any, tuple[Tensor, ...]]:
        value, states = kernels(x).logsumexp(x, tau, where, wide=gradient)
        return value, lambda g, x, states: kernels(x).logsumexp_backward(x, states, g, tau, where), (states,)

    def composite(x: Tensor) -> Tensor:
        top, z = anchored(x, tau, where)
        return (top + envelope(GRADIENT, log_sum(z.detach(), 1.0).value(1.0), z, None, {})).to(x.dtype).squeeze(-1)

    return native, composite


GRADIENT = replace(SOFTMAX, name="logsumexp", kernel=None)


@public
def real_softmax(x: Array, sharpness: float = 1.0, dim: int = -1, *, where: Array | None = None) -> Array:
    """The smooth maximum, `log(Σ_i exp(λ x_i)) / λ` with sharpness λ > 0.

    It is in [max x, max x + log(n)/λ] but for rounding, and max x as λ → ∞.

    (Softmax is a smooth argmax; this is the smooth max, and `real_softmin` the smooth min.) Shapes, errors and cost
    as for `logsumexp`; the gradient is softmax(λx).

    >>> import numpy as np, softmaxima as sm
    >>> sm.real_softmax(np.array([1.0, 2.0]), sharpness=100.0)
    np.float64(2.0)
    """
    return _smooth_maximum("real_softmax", as_floating("real_softmax", x), sharpness, dim, where, x)


@public
def real_softmin(x: Array, sharpness: float = 1.0, dim: int = -1, *, where: Array | None = None) -> Array:
    """The smooth minimum, `−log(Σ_i exp(−λ x_i)) / λ` with sharpness λ > 0.

    It is in [min x − log(n)/λ, min x] but for rounding, and min x as λ → ∞.

    Here +∞ is the score that counts for nothing, and the minimum of nothing is +∞. (`softmin` is the smooth argmin: its
    probabilities, at temperature 1/λ, are the gradient.) Shapes, errors and cost as for `logsumexp`, and those of −x.

    >>> import numpy as np, softmaxima as sm
    >>> sm.real_softmin(np.array([1.0, 2.0]), sharpness=100.0)
    np.float64(1.0)
    """
    return -_smooth_maximum("real_softmin", -as_floating("real_softmin", x), sharpness, dim, where, x)


def _smooth_maximum(name: str, scores: Tensor, sharpness: Any, dim: int, where: Any, x: Any) -> Any:
    sharpness = check_positive(name, "sharpness", sharpness)
    rows, tau, mask, _, shape = prepare(name, scores, dim, False, where, 1.0 / sharpness)
    check_real(name, rows)
    return like_input(row_logsumexp(rows, tau, mask).reshape(shape) / sharpness, x)
