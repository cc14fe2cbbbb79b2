r"""elastic_softmax: p_i = exp(x_i) / (Σ_j exp(x_j) + exp(β)).

The mass that is missing, exp(β) / (Σ exp(x_j) + exp(β)), is the probability of a sink with score β: of none of the classes.
It is the softmax over (x, β) without its last entry, and so the gradient of log(Σ exp(x_j) + exp(β)).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from softmaxima.base.arguments import Array, DType
from softmaxima.base.jacobian import DiagonalAndProduct
from softmaxima.base.monoid import LogSum
from softmaxima.base.public import public
from softmaxima.base.rows import number_like, row_maximum, total, xlogx
from softmaxima.engine.blocks import RegulariserInParts, exponential
from softmaxima.engine.contract import Cost, Map, Parameter, Properties, register
from softmaxima.engine.envelope import with_slope
from softmaxima.engine.evaluation import evaluate
from softmaxima.kernels.kernel import Kernel
from softmaxima.maps._module import MapModule


def reference(x: Tensor, beta: float | Tensor) -> Tensor:
    e = x.double().exp()
    return e / (e.sum(-1, keepdim=True) + torch.as_tensor(beta, dtype=torch.float64, device=x.device).exp())


def weigh(z: Tensor, beta: float | Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(weights of the scores [rows, n], weight of the sink [rows, 1], their sum in float64, the one shift [rows, 1] of all).

    The shift covers β too: adding a constant after a shift by max(x) alone would be another function.
    """
    level = number_like(beta, z).clamp_max(torch.finfo(z.dtype).max).to(z.dtype)
    shift = torch.maximum(row_maximum(z), level.detach())
    weights, of_sink = (z - shift).exp(), (level - shift).exp()
    return weights, of_sink, total(weights, of_sink), shift


def forward(z: Tensor, beta: float | Tensor) -> Tensor:
    weights, _, mass, _ = weigh(z, beta)
    return (weights / mass).to(z.dtype)


def sink(z: Tensor, beta: float | Tensor) -> Tensor:
    """The probability of the sink [rows, 1], exact also where it is small, and differentiable."""
    _, of_sink, mass, _ = weigh(z, beta)
    return (of_sink / mass).to(z.dtype)


def sensitivity(p: Tensor, z: Tensor, beta: float | Tensor) -> DiagonalAndProduct:
    return DiagonalAndProduct(p, p, p, sink(z, beta))


def beta_gradient(p: Tensor, z: Tensor, beta: float | Tensor) -> Tensor:
    return -p * sink(z, beta)


def regulariser(p: Tensor, beta: float | Tensor) -> Tensor:
    """Ω(p) = Σ p log p + p₀ log p₀ − β p₀, with p₀ = 1 − Σp the probability of the sink."""
    return with_sink_entropy(entropy(p), p.sum(-1), beta)


def with_sink_entropy(value: Tensor, mass: Tensor, beta: float | Tensor) -> Tensor:
    """Ω(p) of Σ p log p and Σp."""
    missing = (1 - mass).clamp_min(0.0)  # rounding can leave −1e-17
    level = beta.to(mass).squeeze(-1) if isinstance(beta, Tensor) else mass.new_full((), beta)
    missing = missing.masked_fill(level == -math.inf, 0.0)  # there is no sink
    return value + xlogx(missing) - torch.where(missing > 0, level * missing, 0.0)


def entropy(p: Tensor, **params: Any) -> Tensor:
    return xlogx(p).sum(-1)


REGULARISER_IN_PARTS = RegulariserInParts(entropy, whole=with_sink_entropy)


def beta_regulariser_gradient(p: Tensor, beta: float | Tensor) -> Tensor:
    return p.sum(-1, keepdim=True) - 1


def conjugate(total: LogSum, tau: float | Tensor, beta: float | Tensor) -> tuple[Tensor, Tensor]:
    above, lost = total.above(beta, tau)
    return total.anchor, torch.logaddexp(total.log_mass(), -(above + lost))


def log_mass(z: Tensor, p: Tensor, slope: Tensor, beta: float | Tensor) -> Tensor:
    """log(Σ exp(z) + exp(β)), which takes no product of a large β with what 1 − Σp is rounded to; ∂/∂β is the sink."""
    _, _, mass, shift = weigh(z.detach(), beta.detach() if isinstance(beta, Tensor) else beta)
    value = with_slope(shift + mass.log().to(z.dtype), z, slope)
    return (with_slope(value, beta, sink(z, beta)) if isinstance(beta, Tensor) else value).squeeze(-1)


def shifted(c: Tensor, beta: float | Tensor) -> tuple[Map, dict[str, Any]]:
    return ELASTIC_SOFTMAX, {"beta": beta - c}


BLOCKS = exponential(lambda part, total, beta: total.shares_beside(part.x, part.tau, beta), conjugate)

ELASTIC_SOFTMAX = register(
    Map(
        name="elastic_softmax",
        reference=reference,
        forward=forward,
        sensitivity=sensitivity,
        regulariser=regulariser,
        conjugate=log_mass,
        params=(
            Parameter(
                name="beta",
                default=0.0,
                examples=(0.0, -3.0, 4.0),
                valid=lambda beta: beta < math.inf,
                domain="a number below +∞",
                gradient=beta_gradient,
                regulariser_gradient=beta_regulariser_gradient,
            ),
        ),
        properties=Properties(mass="at most one", shift_invariant=False, additive_regulariser=False),
        shifted=shifted,
        with_sink=("elastic_softmax", "beta"),
        cost=Cost(reads=2),
        uses_scores=True,
        kernel=Kernel("elastic_softmax", "elastic_backward", "elastic_softmax_loss"),
        blocks=BLOCKS,
        regulariser_in_parts=REGULARISER_IN_PARTS,
        formula="exp(x_i) / (Σ exp(x_j) + exp(β))",
        source="Miller (2023), Attention Is Off By One, is the case β = 0",
    )
)


@public
def elastic_softmax(
    x: Array,
    *,
    beta: float | Array = 0.0,
    dim: int | Sequence[int] = -1,
    temperature: float | Array = 1.0,
    where: Array | None = None,
    dtype: DType = None,
) -> Array:
    """Elastic softmax, `p_i = exp(x_i/τ) / (Σ_j exp(x_j/τ) + exp(β))`, whose mass is below one.

    The missing mass is the probability of "none of these". It replaces adding an ε to a shifted sum, which is another function
    for every row.

    Args:
        beta: score of the sink, a number or a tensor that broadcasts against x with size 1 along `dim` (one a head:
            `beta[:, None, None]` for scores [batch, head, query, key]); a tensor may require grad. −∞ gives softmax.
        x, dim, temperature, where, dtype: as for `softmax`. β is not divided by τ.

    Errors and cost as for `softmax`.

    >>> import numpy as np, softmaxima as sm
    >>> p = sm.elastic_softmax(np.array([2.0, 1.0, 0.1]), beta=1.0)
    >>> p.round(3), p.sum().round(3)
    (array([0.53 , 0.195, 0.079]), np.float64(0.805))
    """
    return evaluate(ELASTIC_SOFTMAX, x, dim, temperature, where, {"beta": beta}, dtype)


@public
class ElasticSoftmax(MapModule):
    """`elastic_softmax` as a module; give `nn.Parameter` as β to learn it, and `sm.Temperature` or a schedule as temperature.

    For attention with 8 heads, each with a β and a τ of its own:

    >>> import torch, softmaxima as sm
    >>> per_head = (8, 1, 1)
    >>> beta, tau = torch.nn.Parameter(torch.zeros(per_head)), sm.Temperature(1.0, shape=per_head)
    >>> elastic = sm.ElasticSoftmax(beta, temperature=tau)
    >>> elastic(torch.randn(2, 8, 5, 7)).shape, [name for name, _ in elastic.named_parameters()]
    (torch.Size([2, 8, 5, 7]), ['beta', 'temperature.rho'])
    """

    def __init__(
        self,
        beta: float | Tensor | nn.Module = 0.0,
        dim: int | Sequence[int] = -1,
        *,
        temperature: float | Tensor | nn.Module = 1.0,
    ) -> None:
        super().__init__(ELASTIC_SOFTMAX, dim, temperature=temperature, beta=beta)
