r"""Quantised scores x = s (q − z), q of 8 bits: logsumexp and softmax by counting.

    LSE(x) = log Σ_b c_b exp(s (b − z)),   c_b = #{i : q_i = b},   256 bins b        p_i = t[q_i],   t_b = exp(s (b − z) − LSE(x))

The counts are exact, and there are 256 exponentials and one table, however long the row. x itself is never made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.arguments import COMPUTE_DTYPE, Array, as_tensor, check_per_row, like_input, moved_back, moved_last, rows_last
from softmaxima.base.numbers import as_number
from softmaxima.base.public import public
from softmaxima.base.rows import row_maximum
from softmaxima.base.tracing import is_concrete, may_differentiate, transforming
from softmaxima.kernels import native
from softmaxima.lse._weighted import weighted_sum

BINS = 256


@public
def quantized_logsumexp(
    q: Array,
    scale: float | Array,
    zero_point: float | Array = 0,
    dim: int = -1,
    *,
    keepdim: bool = False,
    temperature: float | Array = 1.0,
    where: Array | None = None,
) -> Array:
    """The logsumexp of quantised scores, `log Σ_i exp(scale · (q_i − zero_point)/τ)`, in nats, from a histogram of each row.

    Args:
        q: int8 or uint8, any shape.
        scale: positive, a number or a tensor that broadcasts against q with size 1 along `dim`: one a row.
        zero_point: finite, in the same way.
        dim: the axis summed over.
        keepdim: keep it with size 1.
        temperature: τ > 0, a number or one a row.
        where: boolean, broadcasts to q; False leaves a score out.

    Returns:
        q's array kind, without `dim`, in the dtype of `scale`; for a number in torch's default dtype, or float64 for NumPy. −∞ for
        a sum of nothing. The sum is taken in float64, of exact counts, and keeps its digits near 0.

    Raises:
        TypeError, ValueError or IndexError, before any work, for anything else.

    `scale`, `zero_point` and `temperature` may require grad: ∂LSE/∂scale = Σ p_i (q_i − zero_point), ∂LSE/∂zero_point = −scale.
    Cost: one read of q, a byte a score, and 256 exponentials a scale. Source: Jacob et al. (2018), arXiv:1712.05877.

    >>> import torch, softmaxima as sm
    >>> q = torch.tensor([[-128, 0, 127], [5, 5, 5]], dtype=torch.int8)
    >>> sm.quantized_logsumexp(q, scale=0.1, zero_point=3)
    tensor([12.4000,  1.2986])
    """
    codes, axis = _check("quantized_logsumexp", q, scale, zero_point, dim, temperature, where)
    value = moved_back(codes.logsumexp(), axis)
    return like_input(value.reshape(()) if q.ndim == 0 else value if keepdim else value.squeeze(axis), q)


@public
def quantized_softmax(
    q: Array,
    scale: float | Array,
    zero_point: float | Array = 0,
    dim: int = -1,
    *,
    temperature: float | Array = 1.0,
    where: Array | None = None,
) -> Array:
    """The softmax of quantised scores `scale · (q − zero_point)/τ`, looked up in a table of 256 probabilities a row.

    Arguments, dtypes, errors and gradients as for `quantized_logsumexp`; a score that is left out gets 0, and so does all of a row
    without any. `zero_point` cancels. Cost: two reads of q and one write of p.

    >>> import numpy as np, softmaxima as sm
    >>> sm.quantized_softmax(np.array([250, 255, 255], dtype=np.uint8), scale=0.5)
    array([0.03942442, 0.48028779, 0.48028779])
    """
    codes, axis = _check("quantized_softmax", q, scale, zero_point, dim, temperature, where)
    return like_input(moved_back(codes.softmax(), axis).reshape(q.shape), q)


@dataclass(frozen=True, eq=False)
class _Codes:
    """q as rows, with what makes scores of it: scale · (q − zero_point), in float64 where it is one a row."""

    q: Tensor  # [..., n]
    scale: float | Tensor
    zero_point: float | Tensor
    where: Tensor | None
    dtype: torch.dtype  # of the result

    def logsumexp(self) -> Tensor:
        """[..., 1]."""
        if self._is_native():
            value = native.quantized(self.q, self.scale, self.zero_point, self.where, self.dtype, softmax=False)[0].unsqueeze(-1)
        else:
            value = _logsumexp(*self._bins())
        return value.to(self.dtype)

    def softmax(self) -> Tensor:
        """[..., n]."""
        if self._is_native():
            _, p = native.quantized(self.q, self.scale, self.zero_point, self.where, self.dtype, softmax=True)
            return p  # type: ignore[return-value]
        scores, counts = self._bins()
        scores = scores.masked_fill(counts == 0, -math.inf)
        scores = scores - row_maximum(scores)  # so that the difference below is of small numbers
        table = (scores - _logsumexp(scores, counts)).masked_fill(counts == 0, -math.inf).exp().to(self.dtype)
        p = table.gather(-1, self._bin_of_each())
        return p if self.where is None else p.masked_fill(~self.where, 0.0)

    def _is_native(self) -> bool:
        tensors = [v for v in (self.q, self.scale, self.zero_point, self.where) if isinstance(v, Tensor)]
        readable = all(is_concrete(tensor) for tensor in tensors) and not transforming()
        return native.AVAILABLE and readable and not may_differentiate(tensors) and self.q.numel() > 0

    def _bin_of_each(self) -> Tensor:
        return self.q.long() - torch.iinfo(self.q.dtype).min

    def _bins(self) -> tuple[Tensor, Tensor]:
        """(the score of every bin, how many there are in it), [..., 256] in float64."""
        index = self._bin_of_each()
        each = torch.ones_like(index, dtype=torch.float64) if self.where is None else self.where.double().expand(index.shape)
        counts = each.new_zeros((*index.shape[:-1], BINS)).scatter_add(-1, index, each)
        codes = torch.arange(BINS, dtype=torch.float64, device=index.device) + torch.iinfo(self.q.dtype).min
        return (self.scale * (codes - self.zero_point)).expand(counts.shape), counts


def _logsumexp(scores: Tensor, counts: Tensor) -> Tensor:
    return weighted_sum(scores, counts, 1.0).value(1.0)


def _check(name: str, q: Any, scale: Any, zero_point: Any, dim: int, temperature: Any, where: Any) -> tuple[_Codes, int]:
    """(the codes with their rows last, dim ≥ 0)."""
    codes = as_tensor(name, "q", q)
    if codes.dtype not in (torch.int8, torch.uint8):
        raise TypeError(f"{name}: q must be int8 or uint8, got {codes.dtype}; call logsumexp or softmax for scores of other dtypes")
    dim, q_rows, tau, mask = rows_last(name, codes, dim, temperature, where)
    codes = codes if codes.ndim else codes.reshape(1)
    given, scale = scale, check_per_row(name, "scale", scale, codes, dim, lambda s: (s > 0) & (s < math.inf), "positive and finite")
    dtype = torch.get_default_dtype() if isinstance(q, Tensor) else torch.float64
    if isinstance(scale, Tensor) and as_number(given) is None:
        dtype = scale.dtype
        if dtype not in COMPUTE_DTYPE:
            raise TypeError(f"{name}: scale must be float64, float32, bfloat16 or float16, got {dtype}; call scale.float()")
    zero_point = check_per_row(name, "zero_point", zero_point, codes, dim, lambda z: abs(z) < math.inf, "finite")
    scale, zero_point = moved_last(scale, dim), moved_last(zero_point, dim)
    scale, zero_point, tau = (v.double() if isinstance(v, Tensor) else v for v in (scale, zero_point, tau))
    return _Codes(q_rows, scale / tau, zero_point, mask, dtype), dim
