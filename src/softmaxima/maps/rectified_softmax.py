r"""rectified_softmax: the softmax over {i : x_i ≥ 0}, and 0 elsewhere: softmax(ReLU∞(x)) with ReLU∞(x) = x if x ≥ 0 else −∞."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from softmaxima.base.arguments import Array, DType
from softmaxima.base.monoid import LogSum, log_sum, merge
from softmaxima.base.public import public
from softmaxima.base.rows import normalise_exp
from softmaxima.engine.blocks import Blocks, Part, State, growth
from softmaxima.engine.contract import Cost, Map, Parameter, Properties, register
from softmaxima.engine.evaluation import evaluate
from softmaxima.kernels.kernel import Kernel
from softmaxima.maps._module import MapModule


def reference(x: Tensor, empty: str) -> Tensor:
    e = torch.where(x >= 0, x.double().exp(), 0.0)
    p = torch.nan_to_num(e / e.sum(-1, keepdim=True))
    if empty == "uniform":
        allowed = (x > -math.inf).double()
        p = torch.where((x < 0).all(-1, keepdim=True), torch.nan_to_num(allowed / allowed.sum(-1, keepdim=True)), p)
    return p


def forward(z: Tensor, empty: str) -> Tensor:
    negative = z < 0  # False for NaN, which so reaches the row
    rectified = z.masked_fill(negative, -math.inf)
    if empty == "uniform":
        zero = z.masked_fill(z != -math.inf, 0.0)
        rectified = torch.where(negative.all(-1, keepdim=True), zero, rectified)
    return normalise_exp(rectified)


def sensitivity(p: Tensor, z: Tensor, empty: str) -> tuple[Tensor, Tensor]:
    return p.masked_fill(z < 0, 0.0), p  # a uniform row does not move with its scores


def _begin(part: Part, known: State | None, empty: str) -> State:
    allowed = (part.x > -math.inf).sum(-1, keepdim=True).double()
    return (*log_sum(part.x.masked_fill(part.x < 0, -math.inf), part.tau), allowed)


def _merge(a: State, b: State, tau: float | Tensor, empty: str) -> State:
    return (*merge(LogSum(*a[:3]), LogSum(*b[:3]), tau), a[3] + b[3])


def _finish(part: Part, state: State, empty: str) -> Tensor:
    total, allowed = LogSum(*state[:3]), state[3]
    p = total.shares(part.x.masked_fill(part.x < 0, -math.inf), part.tau)
    if empty == "zeros":
        return p
    return torch.where(total.top == -math.inf, (part.x > -math.inf) / allowed.clamp_min(1.0), p)


def _factor(a: State, b: State, tau: float | Tensor, empty: str) -> Tensor:
    old, new = (LogSum(*state[:3]) for state in (a, b))
    of_sums = growth((old.anchor, old.log_mass()), (new.anchor, new.log_mass()), tau)
    return torch.where(new.top == -math.inf, a[3] / b[3].clamp_min(1.0), of_sums)


BLOCKS = Blocks(_begin, _merge, _finish, factor=_factor)

RECTIFIED_SOFTMAX = register(
    Map(
        name="rectified_softmax",
        reference=reference,
        forward=forward,
        sensitivity=sensitivity,
        params=(
            Parameter(
                name="empty",
                default="zeros",
                examples=("zeros", "uniform"),
                valid=lambda empty: empty in ("zeros", "uniform"),
                domain="'zeros' or 'uniform'",
                kind=str,
            ),
        ),
        properties=Properties(
            mass="zero or one", shift_invariant=False, locally_shift_invariant=True, sparse=True, continuous=False
        ),
        cost=Cost(reads=2),
        kernel=Kernel("rectified_softmax", "rectified_backward", theta=lambda empty: (float(empty == "uniform"),)),
        blocks=BLOCKS,
        formula="softmax over {x_i ≥ 0}",
        source="softmaxima: softmax over the scores that are not negative",
        uses_scores=True,
    )
)


@public
def rectified_softmax(
    x: Array,
    *,
    empty: Literal["zeros", "uniform"] = "zeros",
    dim: int | Sequence[int] = -1,
    temperature: float | Array = 1.0,
    where: Array | None = None,
    dtype: DType = None,
) -> Array:
    """Softmax over the scores that are not negative; every negative score gets exactly zero.

    Args:
        empty: what a row without a non-negative score becomes: "zeros" (no mass), or "uniform" over the allowed scores. Its
            gradient is zero either way.
        x, dim, temperature, where, dtype: as for `softmax`.

    It jumps where a score crosses 0, so its gradient says nothing of that crossing. Errors and cost as for `softmax`.

    >>> import numpy as np, softmaxima as sm
    >>> sm.rectified_softmax(np.array([-2.0, 3.0, -1.0, 5.0, 0.0, 2.0])).round(4)
    array([0.    , 0.1135, 0.    , 0.839 , 0.0057, 0.0418])
    """
    return evaluate(RECTIFIED_SOFTMAX, x, dim, temperature, where, {"empty": empty}, dtype)


@public
class RectifiedSoftmax(MapModule):
    """`rectified_softmax` as a module.

    >>> import torch, softmaxima as sm
    >>> sm.RectifiedSoftmax(empty="uniform")(torch.tensor([-1.0, -2.0]))
    tensor([0.5000, 0.5000])
    """

    def __init__(
        self,
        empty: Literal["zeros", "uniform"] = "zeros",
        dim: int | Sequence[int] = -1,
        *,
        temperature: float | Tensor | nn.Module = 1.0,
    ) -> None:
        super().__init__(RECTIFIED_SOFTMAX, dim, temperature=temperature, empty=empty)
