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
    has_kernel: bool = False  # on every device


def _literal(z: Tensor) -> Tensor:
    return z.exp().sum(-1, keepdim=True).log()


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
    "bounds": Sum(lambda x, axis: sm.bounds(x, axis), _literal, differentiable=False),
    "state_update": Sum(lambda x, axis: sm.LogSumExpState(squares=None).update(x, axis).value, _literal, differentiable=False),
}
