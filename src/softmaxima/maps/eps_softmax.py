r"""eps_softmax: p_i = exp(x_i) / (Σ_j exp(x_j) + ε), the elastic softmax with β = log ε."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from softmaxima.base.arguments import Array, DType
from softmaxima.base.jacobian import DiagonalAndProduct
from softmaxima.base.public import public
from softmaxima.engine.blocks import RegulariserInParts, exponential
from softmaxima.engine.contract import Cost, Map, Parameter, Properties, register
from softmaxima.engine.evaluation import evaluate
from softmaxima.kernels.kernel import Kernel
from softmaxima.maps._module import MapModule
from softmaxima.maps.elastic_softmax import conjugate as elastic_conjugate
from softmaxima.maps.elastic_softmax import entropy, log_mass, sink, with_sink_entropy
from softmaxima.maps.elastic_softmax import forward as elastic_forward
from softmaxima.maps.elastic_softmax import regulariser as elastic_regulariser
from softmaxima.maps.elastic_softmax import sensitivity as elastic_sensitivity
from softmaxima.maps.elastic_softmax import shifted as elastic_shifted


def reference(x: Tensor, eps: float | Tensor) -> Tensor:
    e = x.double().exp()
    return e / (e.sum(-1, keepdim=True) + eps)


def log(eps: float | Tensor) -> float | Tensor:
    return eps.log() if isinstance(eps, Tensor) else math.log(eps)


def forward(z: Tensor, eps: float | Tensor) -> Tensor:
    return elastic_forward(z, log(eps))


def sensitivity(p: Tensor, z: Tensor, eps: float | Tensor) -> DiagonalAndProduct:
    return elastic_sensitivity(p, z, log(eps))


def eps_gradient(p: Tensor, z: Tensor, eps: float | Tensor) -> Tensor:
    return -p * sink(z, log(eps)) / eps


def regulariser(p: Tensor, eps: float | Tensor) -> Tensor:
    return elastic_regulariser(p, log(eps))


def eps_regulariser_gradient(p: Tensor, eps: float | Tensor) -> Tensor:
    return (p.sum(-1, keepdim=True) - 1) / eps


BLOCKS = exponential(
    lambda part, total, eps: total.shares_beside(part.x, part.tau, log(eps)),
    lambda total, tau, eps: elastic_conjugate(total, tau, log(eps)),
)

REGULARISER_IN_PARTS = RegulariserInParts(entropy, whole=lambda value, mass, eps: with_sink_entropy(value, mass, log(eps)))

EPS_SOFTMAX = register(
    Map(
        name="eps_softmax",
        reference=reference,
        forward=forward,
        sensitivity=sensitivity,
        regulariser=regulariser,
        conjugate=lambda z, p, slope, eps: log_mass(z, p, slope, log(eps)),
        params=(
            Parameter(
                name="eps",
                default=1e-6,
                examples=(1e-6, 2.0),
                valid=lambda eps: (eps > 0) & (eps < math.inf),
                domain="positive and finite",
                gradient=eps_gradient,
                regulariser_gradient=eps_regulariser_gradient,
            ),
        ),
        properties=Properties(mass="at most one", shift_invariant=False, additive_regulariser=False),
        cost=Cost(reads=2),
        shifted=lambda c, eps: elastic_shifted(c, log(eps)),
        uses_scores=True,
        kernel=Kernel("elastic_softmax", "elastic_backward", "elastic_softmax_loss", theta=lambda eps: (log(eps),)),
        blocks=BLOCKS,
        regulariser_in_parts=REGULARISER_IN_PARTS,
        formula="exp(x_i) / (Σ exp(x_j) + ε)",
        source="Miller (2023), Attention Is Off By One, is the case ε = 1",
    )
)


@public
def eps_softmax(
    x: Array,
    *,
    eps: float | Array = 1e-6,
    dim: int | Sequence[int] = -1,
    temperature: float | Array = 1.0,
    where: Array | None = None,
    dtype: DType = None,
) -> Array:
    """Softmax with ε in the denominator, `p_i = exp(x_i/τ) / (Σ_j exp(x_j/τ) + ε)`, stable for scores of any size.

    Rows whose scores are all far below log ε get (almost) no mass. It is `elastic_softmax(x, beta=log(eps))`, and not the common
    code that subtracts the maximum first and then adds ε, which can never give less than 1/(1 + ε) of the mass.

    Args:
        eps: ε > 0, a number or a tensor that broadcasts against x with size 1 along `dim`; a tensor may require grad.
        x, dim, temperature, where, dtype: as for `softmax`.

    Errors and cost as for `softmax`.

    >>> import numpy as np, softmaxima as sm
    >>> sm.eps_softmax(np.array([[0.0, 0.0], [-20.0, -20.0]]), eps=1e-6).round(4)
    array([[0.5   , 0.5   ],
           [0.0021, 0.0021]])
    """
    return evaluate(EPS_SOFTMAX, x, dim, temperature, where, {"eps": eps}, dtype)


@public
class EpsSoftmax(MapModule):
    """`eps_softmax` as a module.

    >>> import torch, softmaxima as sm
    >>> sm.EpsSoftmax(eps=2.0)(torch.zeros(2))
    tensor([0.2500, 0.2500])
    """

    def __init__(
        self,
        eps: float | Tensor | nn.Module = 1e-6,
        dim: int | Sequence[int] = -1,
        *,
        temperature: float | Tensor | nn.Module = 1.0,
    ) -> None:
        super().__init__(EPS_SOFTMAX, dim, temperature=temperature, eps=eps)
