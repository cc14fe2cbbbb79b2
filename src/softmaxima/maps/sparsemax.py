r"""sparsemax: p = argmin_{q∈Δ} ‖q − x‖² = relu(x − λ), with λ such that Σp = 1: the Euclidean projection onto the simplex."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from softmaxima.base.arguments import Array, DType
from softmaxima.base.public import public
from softmaxima.engine.blocks import thresholded
from softmaxima.engine.contract import Cost, Map, Properties, register
from softmaxima.engine.evaluation import evaluate
from softmaxima.kernels.kernel import Kernel
from softmaxima.maps._module import MapModule
from softmaxima.maps._threshold import entmax_rows


def reference(x: Tensor) -> Tensor:
    z = x.double()
    ordered = z.sort(dim=-1, descending=True).values
    k = torch.arange(1, z.shape[-1] + 1, device=z.device)
    candidates = (ordered.cumsum(-1) - 1) / k
    support = (ordered > candidates).sum(-1, keepdim=True)
    return (z - candidates.gather(-1, support - 1)).relu()


def forward(z: Tensor) -> Tensor:
    return entmax_rows(z, 1.0)


def sensitivity(p: Tensor, z: None) -> tuple[Tensor, Tensor]:
    s = (p > 0).to(p.dtype) + 0 * p.detach()  # NaN in a row of NaN, as p is
    return s, s / s.sum(-1, keepdim=True).clamp_min(1.0)


def gini(p: Tensor) -> Tensor:
    """Ω(p) = ½ (Σ p² − 1)."""
    return (p * (p - 1)).sum(-1) / 2


KERNEL = Kernel("sparsemax", "sparsemax_backward", "sparsemax_loss")
SPARSEMAX = register(
    Map(
        name="sparsemax",
        reference=reference,
        forward=forward,
        sensitivity=sensitivity,
        regulariser=gini,
        properties=Properties(sparse=True),
        cost=Cost(reads=2),
        kernel=KERNEL,
        blocks=thresholded(forward, gini, KERNEL),
        formula="relu(x_i − λ)",
        source="Martins & Astudillo (2016), arXiv:1602.02068",
    )
)


@public
def sparsemax(
    x: Array, dim: int | Sequence[int] = -1, *, temperature: float | Array = 1.0, where: Array | None = None, dtype: DType = None
) -> Array:
    """Sparsemax, `p = relu(x/τ − λ)` with λ such that Σp = 1: the point of the simplex nearest to x/τ.

    Scores more than 1 below the maximum of x/τ always get exactly zero. On its support the gradient is that of a centred
    identity, so it does not vanish as p grows confident. Arguments and errors as for `softmax`. Train with `sparsemax_loss` of the
    scores: where the target has p = 0, −log p is +∞ without a gradient.

    Cost: two reads, one write and an exact solve over the scores within 1 of the maximum; never a sort.

    >>> import numpy as np, softmaxima as sm
    >>> sm.sparsemax(np.array([1.0, 0.8, 0.1, -1.0]))
    array([0.6, 0.4, 0. , 0. ])
    """
    return evaluate(SPARSEMAX, x, dim, temperature, where, {}, dtype)


@public
class Sparsemax(MapModule):
    """`sparsemax` as a module.

    >>> import torch, softmaxima as sm
    >>> sm.Sparsemax()(torch.tensor([3.0, 1.0]))
    tensor([1., 0.])
    """

    def __init__(self, dim: int | Sequence[int] = -1, *, temperature: float | Tensor | nn.Module = 1.0) -> None:
        super().__init__(SPARSEMAX, dim, temperature=temperature)
