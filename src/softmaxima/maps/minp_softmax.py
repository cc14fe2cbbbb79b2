r"""minp_softmax: the softmax over the scores whose probability is at least the share p of the largest, and 0 elsewhere.

Of softmax e^{(x_i − M)/τ} is how the probability of score i compares to the largest, so that those with x_i ≥ M + τ log p are kept.
Scores that are equal are kept or left out together, and the largest always are kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from softmaxima.base.arguments import Array, DType
from softmaxima.base.monoid import LogSum, log_sum, merge
from softmaxima.base.public import public
from softmaxima.base.rows import normalise_exp, row_maximum
from softmaxima.engine.blocks import Blocks, Part, State
from softmaxima.engine.contract import Cost, Map, Parameter, Properties, register
from softmaxima.engine.evaluation import evaluate
from softmaxima.kernels.kernel import Kernel
from softmaxima.maps._module import MapModule
from softmaxima.maps.softmax import sensitivity


def reference(x: Tensor, p: float | Tensor) -> Tensor:
    below = x.double() - x.double().amax(-1, keepdim=True)
    e = torch.where(below >= torch.as_tensor(p, dtype=torch.float64, device=x.device).log(), below.exp(), 0.0)
    return e / e.sum(-1, keepdim=True)


def log(p: float | Tensor) -> float | Tensor:
    """log p, −∞ of 0."""
    return p.log() if isinstance(p, Tensor) else math.log(p) if p > 0 else -math.inf


def forward(z: Tensor, p: float | Tensor) -> Tensor:
    below = z.double() - row_maximum(z).double() < log(p)  # False for NaN, which so reaches the row
    return normalise_exp(z.masked_fill(below, -math.inf))


def p_gradient(of: Tensor, z: Tensor, /, p: float | Tensor) -> Tensor:
    """0, but where p leaves out one score more."""
    return torch.zeros_like(of)


# On parts of a row the first pass finds M, and the second adds up what is kept.


def _passes(**params: Any) -> int:
    return 2


def _kept(part: Part, top: Tensor, p: float | Tensor) -> Tensor:
    """x, −∞ of what is left out."""
    level = top + part.tau * log(p)
    return part.x.masked_fill(part.x < level, -math.inf)


def _begin(part: Part, known: State | None, p: float | Tensor) -> State:
    if known is not None:
        return log_sum(_kept(part, known[0], p), part.tau)
    x = part.x
    return (x.amax(-1, keepdim=True) if x.shape[-1] else x.new_full((*x.shape[:-1], 1), -math.inf),)


def _merge(a: State, b: State, tau: float | Tensor, p: float | Tensor) -> State:
    return (torch.maximum(a[0], b[0]),) if len(a) == 1 else merge(LogSum(*a), LogSum(*b), tau)


def _finish(part: Part, state: State, p: float | Tensor) -> Tensor:
    total = LogSum(*state)
    return total.shares(_kept(part, total.top, p), part.tau)


BLOCKS = Blocks(_begin, _merge, _finish, _passes)

MINP_SOFTMAX = register(
    Map(
        name="minp_softmax",
        reference=reference,
        forward=forward,
        sensitivity=sensitivity,
        params=(
            Parameter(
                name="p",
                default=0.1,
                examples=(0.1, 0.6),
                valid=lambda p: (p >= 0) & (p <= 1),
                domain="a number in [0, 1]",
                gradient=p_gradient,
            ),
        ),
        properties=Properties(sparse=True, monotone=False, continuous=False),
        cost=Cost(reads=3),
        kernel=Kernel("minp_softmax", "softmax_backward", theta=lambda p: (log(p),)),
        blocks=BLOCKS,
        formula="softmax over {p_i ≥ p · max p_j}",
        source="Nguyen et al. (2024), arXiv:2407.01082",
    )
)


@public
def minp_softmax(
    x: Array,
    *,
    p: float | Array = 0.1,
    dim: int | Sequence[int] = -1,
    temperature: float | Array = 1.0,
    where: Array | None = None,
    dtype: DType = None,
) -> Array:
    """Softmax over the scores whose probability is at least p times the largest; exactly zero for the others.

    These are the scores with x_i ≥ max x + τ log p: min-p sampling's distribution. The temperature comes first, as in vLLM: a
    higher one keeps more scores. Equal scores are kept or left out together, and the largest are always kept.

    Args:
        p: the share in [0, 1], a number or a tensor that broadcasts against x with size 1 along `dim`, such as one a request; 0 is
            softmax, and 1 keeps the largest scores alone. Its gradient is 0, for p moves only where a score is left out.
        x, dim, temperature, where, dtype: as for `softmax`.

    It jumps where a score is left out. Errors as for `softmax`. Cost: three reads and one write.

    Source: Nguyen et al. (2024), arXiv:2407.01082.

    >>> import numpy as np, softmaxima as sm
    >>> sm.minp_softmax(np.log([0.5, 0.3, 0.15, 0.05]), p=0.5).round(4)
    array([0.625, 0.375, 0.   , 0.   ])
    """
    return evaluate(MINP_SOFTMAX, x, dim, temperature, where, {"p": p}, dtype)


@public
class MinPSoftmax(MapModule):
    """`minp_softmax` as a module.

    >>> import torch, softmaxima as sm
    >>> sm.MinPSoftmax(p=0.5)(torch.tensor([0.0, 0.0, -1.0]))
    tensor([0.5000, 0.5000, 0.0000])
    """

    def __init__(
        self, p: float | Tensor | nn.Module = 0.1, dim: int | Sequence[int] = -1, *, temperature: float | Tensor | nn.Module = 1.0
    ) -> None:
        super().__init__(MINP_SOFTMAX, dim, temperature=temperature, p=p)
