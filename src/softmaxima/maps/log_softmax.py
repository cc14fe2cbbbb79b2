r"""log_softmax: log p_i = x_i − LSE(x).

The Jacobian I − 1 pᵀ is diag(s) − q rᵀ with s = q = 1 and r = p.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from softmaxima.base.arguments import Array, DType
from softmaxima.base.jacobian import DiagonalAndProduct
from softmaxima.base.monoid import LogSum, gap, log_sum
from softmaxima.base.public import public
from softmaxima.engine.blocks import Part, exponential
from softmaxima.engine.contract import Cost, Map, Properties, register
from softmaxima.engine.evaluation import evaluate
from softmaxima.kernels.kernel import Kernel
from softmaxima.maps._module import MapModule


def reference(x: Tensor) -> Tensor:
    return x.double() - x.double().exp().sum(-1, keepdim=True).log()


def forward(z: Tensor) -> Tensor:
    total = log_sum(z, 1.0)
    # A row of −∞ has log m = −∞ and stays −∞; one with +∞ has no probabilities.
    log_mass = total.log_mass().masked_fill(total.top == -math.inf, 0.0).masked_fill(total.top == math.inf, math.nan)
    return ((z - total.anchor) - log_mass).to(z.dtype)


def sensitivity(log_p: Tensor, z: None) -> DiagonalAndProduct:
    allowed = (log_p != -math.inf).to(log_p.dtype)
    return DiagonalAndProduct(allowed, allowed, log_p.exp(), lack=-log_p.expm1())


def _log_shares(part: Part, total: LogSum) -> Tensor:
    log_p = gap(part.x, total.top, part.tau) - total.log_mass()
    return log_p.masked_fill((part.x == -math.inf) & ~total.mass.isnan(), -math.inf) + 0.0 * total.mass


BLOCKS = exponential(_log_shares)

LOG_SOFTMAX = register(
    Map(
        name="log_softmax",
        reference=reference,
        forward=forward,
        sensitivity=sensitivity,
        properties=Properties(logarithmic=True),
        cost=Cost(reads=2),
        kernel=Kernel("log_softmax", "log_softmax_backward"),
        blocks=BLOCKS,
        formula="x_i − log Σ exp(x_j), the logarithm of softmax",
        source="Bridle (1990)",
    )
)


@public
def log_softmax(
    x: Array,
    dim: int | Sequence[int] = -1,
    *,
    temperature: float | Array = 1.0,
    where: Array | None = None,
    dtype: DType = None,
    _stacklevel: Any = 3,
) -> Array:
    """The logarithm of softmax, `x_i/τ − LSE(x/τ)`, in nats; −∞ where a score is masked.

    It keeps its digits near 0, where softmax rounds to 1: `log_softmax([0, −40])[0]` is −4.248e-18. Arguments and errors as
    for `softmax`. Cost: two reads and one write.

    >>> import torch, softmaxima as sm
    >>> sm.log_softmax(torch.tensor([0.0, -40.0]))
    tensor([-4.2484e-18, -4.0000e+01])
    """
    return evaluate(LOG_SOFTMAX, x, dim, temperature, where, {}, dtype)


@public
class LogSoftmax(MapModule):
    """`log_softmax` as a module.

    >>> import torch, softmaxima as sm
    >>> sm.LogSoftmax()(torch.zeros(2))
    tensor([-0.6931, -0.6931])
    """

    def __init__(self, dim: int | Sequence[int] = -1, *, temperature: float | Tensor | nn.Module = 1.0) -> None:
        super().__init__(LOG_SOFTMAX, dim, temperature=temperature)
