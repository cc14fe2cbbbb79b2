r"""taylor_softmax: p_i = f_k(x_i) / Σ_j f_k(x_j), f_k(x) = Σ_{m≤k} xᵐ/m!, k even, where f_k > 0.

f_k is the Taylor polynomial of exp, so f_k′ = f_{k−1}. Its tails are a polynomial's: heavier than those of softmax.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from softmaxima.base.arguments import Array, DType
from softmaxima.base.public import public
from softmaxima.base.rows import divisor, row_maximum, total, without_mask
from softmaxima.engine.blocks import Blocks, Part, State, of_the_mass
from softmaxima.engine.contract import Cost, Map, Parameter, Properties, register
from softmaxima.engine.evaluation import evaluate
from softmaxima.kernels.kernel import Kernel
from softmaxima.maps._module import MapModule


def reference(x: Tensor, order: int) -> Tensor:
    f = torch.stack([x.double() ** m / math.factorial(m) for m in range(order + 1)]).sum(0).masked_fill(x == -math.inf, 0.0)
    return f / f.sum(-1, keepdim=True)


def polynomial(z: Tensor, scale: Tensor, degree: int, order: int) -> Tensor:
    """f_degree(z) / scale^order, by Horner in z/scale, so that no power overflows; 0 at a mask."""
    ratio = without_mask(z) / scale
    value = torch.zeros_like(ratio)
    for m in range(degree, -1, -1):
        value = value * ratio + scale ** (m - order) / math.factorial(m)
    return value.masked_fill(z == -math.inf, 0.0)


def terms(z: Tensor) -> tuple[Tensor, Tensor]:
    """(z in float64, the row's scale max(1, |z|)), for negative scores cancel digits."""
    wide = z.double()
    scale = row_maximum(without_mask(wide).abs()).clamp_min(1.0)
    return wide, scale


def forward(z: Tensor, order: int) -> Tensor:
    wide, scale = terms(z)
    f = polynomial(wide, scale, order, order)
    return (f / total(f)).to(z.dtype)


def sensitivity(p: Tensor, z: Tensor, order: int) -> tuple[Tensor, Tensor]:
    wide, scale = terms(z)
    slope = polynomial(wide, scale, order - 1, order) / total(polynomial(wide, scale, order, order))
    return slope.to(z.dtype), p


def _begin(part: Part, known: State | None, order: int) -> State:
    wide, scale = terms(part.z)
    return scale, polynomial(wide, scale, order, order).sum(-1, keepdim=True)


def _merge(a: State, b: State, tau: float | Tensor, order: int) -> State:
    scale = torch.maximum(a[0], b[0])
    return scale, a[1] * (a[0] / scale) ** order + b[1] * (b[0] / scale) ** order


def _finish(part: Part, state: State, order: int) -> Tensor:
    scale, mass = state
    return polynomial(part.z, scale, order, order) / divisor(mass)


def _factor(a: State, b: State, tau: float | Tensor, order: int) -> Tensor:
    return a[1] / divisor(b[1]) * (a[0] / b[0]) ** order


BLOCKS = Blocks(_begin, _merge, _finish, factor=_factor, derivative=of_the_mass)

TAYLOR_SOFTMAX = register(
    Map(
        name="taylor_softmax",
        reference=reference,
        forward=forward,
        sensitivity=sensitivity,
        params=(
            Parameter(
                name="order",
                default=2,
                examples=(2, 4),
                valid=lambda order: 2 <= order <= 10_000 and order % 2 == 0,
                domain="an even int from 2 to 10000 (odd Taylor polynomials of exp are negative somewhere)",
                kind=int,
            ),
        ),
        properties=Properties(shift_invariant=False, order_preserving=False, monotone=False),
        cost=Cost(reads=2),
        kernel=Kernel("taylor_softmax", "taylor_backward"),
        blocks=BLOCKS,
        formula="f(x_i) / Σ f(x_j), f the Taylor polynomial of exp",
        source="de Brébisson & Vincent (2016), arXiv:1511.05042",
        uses_scores=True,
    )
)


@public
def taylor_softmax(
    x: Array,
    *,
    order: int = 2,
    dim: int | Sequence[int] = -1,
    temperature: float | Array = 1.0,
    where: Array | None = None,
    dtype: DType = None,
) -> Array:
    """Taylor softmax, `p_i = f(x_i/τ) / Σ_j f(x_j/τ)` with f the even Taylor polynomial of exp at 0.

    It neither ignores a shift of all scores nor keeps their order below the root of the odd polynomial f′ (for order 2: below −1,
    where p rises again).

    Args:
        order: degree k of f, even, at most 10000.
        x, dim, temperature, where, dtype: as for `softmax`.

    Errors and cost as for `softmax`.

    >>> import numpy as np, softmaxima as sm
    >>> sm.taylor_softmax(np.array([2.0, 1.0, 0.0])).round(4)
    array([0.5882, 0.2941, 0.1176])
    """
    return evaluate(TAYLOR_SOFTMAX, x, dim, temperature, where, {"order": order}, dtype)


@public
class TaylorSoftmax(MapModule):
    """`taylor_softmax` as a module.

    >>> import torch, softmaxima as sm
    >>> sm.TaylorSoftmax(order=4)(torch.zeros(2))
    tensor([0.5000, 0.5000])
    """

    def __init__(self, order: int = 2, dim: int | Sequence[int] = -1, *, temperature: float | Tensor | nn.Module = 1.0) -> None:
        super().__init__(TAYLOR_SOFTMAX, dim, temperature=temperature, order=order)
