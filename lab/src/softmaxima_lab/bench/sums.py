"""logsumexp and what is made of it, as the benchmark calls it: each with its literal definition and what it is given."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

import softmaxima as sm

STEPS = 32  # of a quantised score, a nat
BINS = 20  # of the histogram of bounds, a nat


@dataclass(frozen=True, eq=False)
class Sum:
    """`function(x, axis, *operands)`, whose definition on float64 rows is `reference(z, *operands)`, along the last axis.

    The result is one number a row, or one a score. `operand` makes a second argument of N(0, 1) numbers of x's shape. Quantised x
    are int8, with the operand 1/STEPS as their scale.
    """

    function: Callable[..., Any]
    reference: Callable[..., Tensor]
    gives: Literal["row", "score"] = "row"
    operand: Callable[[Tensor], Tensor] | None = None
    quantised: bool = False
    differentiable: bool = True
    ends: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None  # of an interval that holds the reference
    has_kernel: bool = False  # on every device


def _literal(z: Tensor) -> Tensor:
    return z.exp().sum(-1, keepdim=True).log()


def _ends(z: Tensor) -> tuple[Tensor, Tensor]:
    """The tightest of all bounds that `sm.bounds` names, from the gaps δ = M − z. Each is M + log1p r for an r between

    basic        0                                        n − 1
    gap          Σ_{2≤i≤8} e^{−δ_(i)}                     that + (n−8) e^{−δ_(8)}
    adaptive     m − 1 + (k−m) e^{−Δ}                     k − 1 + (n−k) e^{−Δ},              Δ = log n, k = #{δ ≤ Δ}, m = #{δ = 0}
    histogram    m − 1 + Σ_b c_b e^{−(b+1)w}              m − 1 + Σ_b c_b e^{−bw},           w = 1/20, all beyond log 20n in one bin
    mean         e^{log n − mean δ} − 1                   ∞
    """
    n = z.shape[-1]
    top = z.amax(-1, keepdim=True)
    gaps = (top - z).sort(-1).values
    ties = (gaps == 0).sum(-1, keepdim=True) - 1.0
    largest = (-gaps[:, 1:8]).exp().sum(-1, keepdim=True)
    beyond = max(n - 8, 0) * (-gaps[:, min(n, 8) - 1 :][:, :1]).exp()
    near = (gaps <= math.log(n)).sum(-1, keepdim=True).double()
    bins, last = (BINS * gaps).floor(), math.ceil(BINS * math.log(BINS * n))
    furthest = torch.where((gaps > 0) & (bins < last), (-(bins + 1) / BINS).exp(), 0.0).sum(-1, keepdim=True)
    nearest = torch.where(gaps > 0, (-bins.clamp_max(last) / BINS).exp(), 0.0).sum(-1, keepdim=True)
    lowest = (
        torch.zeros_like(top),
        largest,
        ties + (near - 1 - ties) / n,
        ties + furthest,
        (math.log(n) - gaps.mean(-1, keepdim=True)).expm1(),
    )
    highest = (torch.full_like(top, n - 1), largest + beyond, near - 1 + (n - near) / n, ties + nearest)
    lower, upper = torch.cat(lowest, -1).amax(-1, keepdim=True), torch.cat(highest, -1).amin(-1, keepdim=True)
    return top + lower.log1p(), top + upper.log1p()


def _kept(z: Tensor) -> Tensor:
    return _literal(torch.where(z >= z.amax(-1, keepdim=True) + math.log(1e-6), z, -math.inf))


SUMS: dict[str, Sum] = {
    "logsumexp": Sum(sm.logsumexp, _literal, has_kernel=True),
    "weighted_logsumexp": Sum(
        lambda x, axis, b: sm.logsumexp(x, axis, weights=b),
        lambda z, b: (b * z.exp()).sum(-1, keepdim=True).log(),
        operand=torch.abs,
    ),
    "compensated_logsumexp": Sum(  # its gradient is that of logsumexp
        lambda x, axis: sm.logsumexp(x, axis, precision="compensated"), _literal, differentiable=False
    ),
    "log_mean_exp": Sum(sm.log_mean_exp, lambda z: z.exp().mean(-1, keepdim=True).log()),
    "logcumsumexp": Sum(sm.logcumsumexp, lambda z: z.exp().cumsum(-1).log(), gives="score"),
    "logaddexp": Sum(
        lambda x, axis, y: sm.logaddexp(x, y), lambda z, y: (z.exp() + y.exp()).log(), gives="score", operand=torch.clone
    ),
    "quantized_logsumexp": Sum(
        lambda q, axis, scale: sm.quantized_logsumexp(q, scale, dim=axis),
        lambda z, scale: _literal(z * scale),
        quantised=True,
        differentiable=False,
    ),
    "sparsified_logsumexp": Sum(lambda x, axis: sm.sparsified_logsumexp(x, dim=axis).value, _kept, differentiable=False),
    "bounds": Sum(lambda x, axis: sm.bounds(x, axis), _literal, differentiable=False, ends=_ends),
    "state_update": Sum(lambda x, axis: sm.LogSumExpState(squares=None).update(x, axis).value, _literal, differentiable=False),
}
