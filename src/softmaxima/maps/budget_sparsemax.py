r"""budget_sparsemax: p = argmin_{0≤q≤1, Σq=B} ‖q − x‖² = clamp(x − λ, 0, 1), with λ such that Σp = B.

It is the Euclidean projection onto the capped simplex. With a the indicator of 0 < p < 1, and k its number of ones,

    ∂p/∂x = diag(a) − a aᵀ/k        ∂p/∂B = a/k.

A row with fewer than B allowed scores has p = 1 on all of them.

λ lies within 1 below the ⌈B⌉-th largest score: there at most ⌈B⌉ − 1 scores are above λ, and 1 below it ⌈B⌉ have p = 1. Measured
from that score, every score with 0 < p < 1 is exact. Σp is piecewise linear in λ, so Newton's step is exact once it has the pieces.
It takes 2 to 10 steps inside a bracket; should it take more than 15, every third bisects.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from softmaxima.base.arguments import Array, DType
from softmaxima.base.public import public
from softmaxima.base.rows import row_maximum
from softmaxima.base.tracing import is_exporting_to_onnx
from softmaxima.engine.blocks import thresholded
from softmaxima.engine.contract import Cost, Map, Parameter, Properties, register
from softmaxima.engine.evaluation import evaluate
from softmaxima.kernels.kernel import Kernel
from softmaxima.maps._module import MapModule
from softmaxima.maps._threshold import halved


def reference(x: Tensor, budget: float | Tensor) -> Tensor:
    z = x.double()
    low = z.masked_fill(z == -math.inf, math.inf).amin(-1, keepdim=True) - 1
    high = z.amax(-1, keepdim=True)
    for _ in range(70):
        middle = (low + high) / 2
        above = (z - middle).clamp(0, 1).sum(-1, keepdim=True) >= budget
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return (z - low).clamp(0, 1)


def spent(allowed: Tensor, budget: float | Tensor) -> Tensor:
    """Σp of rows with so many allowed scores."""
    return allowed.double().minimum(torch.as_tensor(budget, dtype=torch.float64, device=allowed.device))


def forward(z: Tensor, budget: float | Tensor) -> Tensor:
    if z.numel() == 0:
        return z.clone()
    allowed = (z > -math.inf).sum(-1, keepdim=True)
    mass = spent(allowed, budget)
    rank = mass.ceil().long().clamp_min(1)
    ordered = z.sort(-1, descending=True).values if is_exporting_to_onnx() else z.topk(int(rank.max()), -1).values
    anchor = ordered.gather(-1, rank - 1).double()
    y = z.double() - anchor.masked_fill(anchor == -math.inf, 0.0)
    y = y + 0 * row_maximum(z)  # NaN or +∞ anywhere in a row makes the row NaN
    level = (_by_halving if is_exporting_to_onnx() else _by_newton)(y, mass)
    level = torch.where(mass == allowed, -1.0, level)  # exactly, for each of them gets 1
    return (y - level).clamp(0, 1).to(z.dtype)


def _newton(y: Tensor, level: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
    """(what Σp lacks of the mass at λ = level, Newton's step from there)."""
    q = y - level
    inside = (q > 0) & (q < 1)
    # the ones are counted, for a sum with them would round the rest
    lack = mass - (q >= 1).sum(-1, keepdim=True) - torch.where(inside, q, 0.0).sum(-1, keepdim=True)
    edge = torch.where(lack > 0, q == 0, q == 1)  # what the step sets in motion
    return lack, level - lack / (inside | edge).sum(-1, keepdim=True).clamp_min(1)


def _by_newton(y: Tensor, mass: Tensor) -> Tensor:
    """λ ∈ [−1, 0]."""
    level = high = torch.zeros_like(y[..., :1])
    low = level - 1
    for step in itertools.count():
        lack, newton = _newton(y, level, mass)
        low, high = torch.where(lack < 0, level, low), torch.where(lack > 0, level, high)
        moving = ((newton - level).abs() > 4e-16) & (high - low > 4e-16)
        if not moving.any():
            break
        accept = (newton >= low) & (newton <= high) & (step < 15 or step % 3 != 2)
        level = torch.where(moving, torch.where(accept, newton, (low + high) / 2), level)
    return level


def _by_halving(y: Tensor, mass: Tensor) -> Tensor:
    """The same without a loop whose length depends on the data, for ONNX."""
    top = torch.zeros_like(y[..., :1])
    low, _ = halved(top - 1, top, lambda level: (y - level).clamp(0, 1).sum(-1, keepdim=True) >= mass)
    return low


def sensitivity(p: Tensor, z: Tensor, budget: float | Tensor) -> tuple[Tensor, Tensor]:
    if p.dtype != torch.float64:  # what rounds to 1 is not among the ones
        p = BUDGET_SPARSEMAX(z.detach().double(), budget=budget.detach() if isinstance(budget, Tensor) else budget)
    active = ((p > 0) & (p < 1)).to(z.dtype) + 0 * p.detach().to(z.dtype)  # NaN in a row of NaN, as p is
    return active, active / active.sum(-1, keepdim=True).clamp_min(1.0)


def budget_gradient(p: Tensor, z: Tensor, budget: float | Tensor) -> Tensor:
    _, share = sensitivity(p, z, budget)
    return share


KERNEL = Kernel("budget_sparsemax", "budget_sparsemax_backward")
BUDGET_SPARSEMAX = register(
    Map(
        name="budget_sparsemax",
        reference=reference,
        forward=forward,
        sensitivity=sensitivity,
        params=(
            Parameter(
                name="budget",
                default=2.0,
                examples=(2.0, 2.5),
                valid=lambda budget: (budget >= 0) & (budget < math.inf),
                domain="at least 0 and finite",
                gradient=budget_gradient,
            ),
        ),
        properties=Properties(mass=spent, sparse=True),
        cost=Cost(reads=2),
        uses_scores=True,
        kernel=KERNEL,
        blocks=thresholded(forward, kernel=KERNEL),
        formula="clamp(x_i − λ, 0, 1)",
        source="Wang & Lu (2015), arXiv:1503.01002",
    )
)


@public
def budget_sparsemax(
    x: Array,
    *,
    budget: float | Array = 2.0,
    dim: int | Sequence[int] = -1,
    temperature: float | Array = 1.0,
    where: Array | None = None,
    dtype: DType = None,
) -> Array:
    """Sparsemax with a budget, `p = clamp(x/τ − λ, 0, 1)` with λ such that Σp = B: the point nearest to x/τ with 0 ≤ p ≤ 1, Σp = B.

    A differentiable choice of B out of n, the projection onto the capped simplex: p_i says how far score i is among the chosen.
    1 is sparsemax. Where fewer scores are allowed than the budget asks for, each of them gets 1. With its mass of B it is no
    distribution over classes, so it has no Fenchel–Young loss here; `eps_cross_entropy` with it asks that the label be chosen.

    Args:
        budget: B ≥ 0, a number or a tensor that broadcasts against x with size 1 along `dim`; a tensor may require grad.
        x, dim, temperature, where, dtype: as for `softmax`.

    Errors as for `softmax`. Cost: two reads, one write, a selection of the largest ⌈B⌉ scores, and Newton's method on those
    within 1 of the last of them. Source: Wang & Lu (2015), arXiv:1503.01002.

    >>> import numpy as np, softmaxima as sm
    >>> sm.budget_sparsemax(np.array([2.0, 1.5, 1.0, 0.5, 0.0]), budget=3)
    array([1.  , 1.  , 0.75, 0.25, 0.  ])
    """
    return evaluate(BUDGET_SPARSEMAX, x, dim, temperature, where, {"budget": budget}, dtype)


@public
class BudgetSparsemax(MapModule):
    """`budget_sparsemax` as a module; give `Positive(2.0)` as the budget to learn it.

    >>> import torch, softmaxima as sm
    >>> sm.BudgetSparsemax(budget=2)(torch.tensor([3.0, 2.0, 1.5]))
    tensor([1.0000, 0.7500, 0.2500])
    """

    def __init__(
        self,
        budget: float | Tensor | nn.Module = 2.0,
        dim: int | Sequence[int] = -1,
        *,
        temperature: float | Tensor | nn.Module = 1.0,
    ) -> None:
        super().__init__(BUDGET_SPARSEMAX, dim, temperature=temperature, budget=budget)
