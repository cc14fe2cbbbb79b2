r"""sparsemax_loss: L = ½ − x_t + ½ Σ_{p_i>0} (x_i² − λ²), the Fenchel–Young loss of sparsemax; ∂L/∂x = p − y."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from softmaxima.base.arguments import Array
from softmaxima.base.public import public
from softmaxima.losses.contract import LossModule
from softmaxima.losses.fenchel_young import fenchel_young, register_named
from softmaxima.maps.sparsemax import SPARSEMAX


@public
def sparsemax_loss(
    input: Array,
    target: Any,
    weight: Any = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    temperature: float | Array = 1.0,
    dim: int | Sequence[int] | None = None,
    where: Array | None = None,
    empty: str = "nan",
) -> Array:
    """The loss of sparsemax: convex, and exactly zero once x_t exceeds every other score by 1.

    For a label t it is `½ − x_t + ½ Σ_{p_i>0} (x_i² − λ²)`, with the gradient p − y, of scores: not of probabilities, and not
    `nll_loss` of their logarithm, which has no gradient where p_t is 0. Arguments, errors and cost as for `fenchel_young_loss`.
    Source: Martins & Astudillo (2016), arXiv:1602.02068.

    >>> import torch, softmaxima as sm
    >>> sm.sparsemax_loss(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 0]), reduction="none")
    tensor([0.0000, 0.2500])
    """
    shared = (input, target, weight, ignore_index, reduction, label_smoothing, empty, temperature, dim, where)
    return fenchel_young("sparsemax_loss", SPARSEMAX, {}, *shared)


@public
class SparsemaxLoss(LossModule):
    """`sparsemax_loss` as a module.

    >>> import torch, softmaxima as sm
    >>> sm.SparsemaxLoss()(torch.zeros(1, 2), torch.tensor([0]))
    tensor(0.2500)
    """

    function = sparsemax_loss


register_named(sparsemax_loss, SparsemaxLoss, SPARSEMAX)
