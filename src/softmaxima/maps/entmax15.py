r"""entmax15: p = relu(x/2 − λ)², with λ such that Σp = 1: between softmax and sparsemax, sparse and smooth at the edge."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from softmaxima.base.arguments import Array, DType
from softmaxima.base.jacobian import Balanced
from softmaxima.base.public import public
from softmaxima.engine.blocks import thresholded
from softmaxima.engine.contract import Cost, Map, Properties, register
from softmaxima.engine.evaluation import evaluate
from softmaxima.kernels.kernel import Kernel
from softmaxima.maps._module import MapModule
from softmaxima.maps._threshold import entmax_rows
from softmaxima.maps.entmax import reference as entmax_reference
from softmaxima.maps.entmax import sensitivity as entmax_sensitivity


def reference(x: Tensor) -> Tensor:
    return entmax_reference(x, 1.5)


def forward(z: Tensor) -> Tensor:
    return entmax_rows(z, 0.5)


def sensitivity(p: Tensor, z: None) -> Balanced:
    return entmax_sensitivity(p, z, 1.5)


def tsallis15(p: Tensor) -> Tensor:
    """Ω(p) = (Σ p^{3/2} − 1) / (3/4)."""
    impossible = p <= 0  # where a root has no slope
    return (p * (p.masked_fill(impossible, 1.0).sqrt().masked_fill(impossible, 0.0) - 1)).sum(-1) / 0.75


KERNEL = Kernel("entmax15", "entmax15_backward", "entmax15_loss")
ENTMAX15 = register(
    Map(
        name="entmax15",
        reference=reference,
        forward=forward,
        sensitivity=sensitivity,
        regulariser=tsallis15,
        properties=Properties(sparse=True),
        cost=Cost(reads=2),
        kernel=KERNEL,
        blocks=thresholded(forward, tsallis15, KERNEL),
        formula="relu(x_i/2 − λ)²",
        source="Peters, Niculae & Martins (2019), arXiv:1905.05702",
    )
)


@public
def entmax15(
    x: Array, dim: int | Sequence[int] = -1, *, temperature: float | Array = 1.0, where: Array | None = None, dtype: DType = None
) -> Array:
    """Entmax with α = 1.5, `p = relu(x/(2τ) − λ)²` with λ such that Σp = 1.

    Scores more than 2 below the maximum of x/τ always get exactly zero. Arguments and errors as for `softmax`.

    Cost: two reads, one write and a Newton solve over the scores within 2 of the maximum; never a sort.

    >>> import numpy as np, softmaxima as sm
    >>> sm.entmax15(np.array([1.0, 0.0, -2.0])).round(4)
    array([0.8307, 0.1693, 0.    ])
    """
    return evaluate(ENTMAX15, x, dim, temperature, where, {}, dtype)


@public
class Entmax15(MapModule):
    """`entmax15` as a module.

    >>> import torch, softmaxima as sm
    >>> sm.Entmax15()(torch.tensor([3.0, 1.0]))
    tensor([1., 0.])
    """

    def __init__(self, dim: int | Sequence[int] = -1, *, temperature: float | Tensor | nn.Module = 1.0) -> None:
        super().__init__(ENTMAX15, dim, temperature=temperature)
