r"""entmax_loss and entmax15_loss: the Fenchel–Young losses of entmax-α; ∂L/∂x = p − y, ∂L/∂α = ∂Ω_α(y)/∂α − ∂Ω_α(p)/∂α."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from softmaxima.base.arguments import Array
from softmaxima.base.public import public
from softmaxima.losses.contract import LossModule
from softmaxima.losses.fenchel_young import fenchel_young, register_named
from softmaxima.maps.entmax import ENTMAX
from softmaxima.maps.entmax15 import ENTMAX15


@public
def entmax_loss(
    input: Array,
    target: Any,
    weight: Any = None,
    *,
    alpha: float | Array = 1.5,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    temperature: float | Array = 1.0,
    dim: int | Sequence[int] | None = None,
    where: Array | None = None,
    empty: str = "nan",
) -> Array:
    """The loss of entmax-α: convex, and for α > 1 exactly zero once x_t exceeds every other score by 1/(α − 1).

    Args:
        alpha: α > 0 as of `entmax`, a number or a tensor that broadcasts against x with size 1 along the class axis; a tensor
            may require grad. 1 is KL(y ‖ softmax), 2 the sparsemax loss.
        The others, errors and cost: as for `fenchel_young_loss`.

    Source: Peters, Niculae & Martins (2019), arXiv:1905.05702.

    >>> import torch, softmaxima as sm
    >>> sm.entmax_loss(torch.tensor([[4.0, 0.0]]), torch.tensor([0]), alpha=1.25)
    tensor(0.)
    """
    shared = (input, target, weight, ignore_index, reduction, label_smoothing, empty, temperature, dim, where)
    return fenchel_young("entmax_loss", ENTMAX, {"alpha": alpha}, *shared)


@public
class EntmaxLoss(LossModule):
    """`entmax_loss` as a module; give `Positive(1.5, minimum=1.0)` as α to learn it.

    >>> import torch, softmaxima as sm
    >>> sm.EntmaxLoss(alpha=1.0)(torch.zeros(1, 2), torch.tensor([0]))
    tensor(0.6931)
    """

    function = entmax_loss

    def __init__(self, alpha: float | Tensor | nn.Module = 1.5, weight: Tensor | None = None, **options: Any) -> None:
        (parameter,) = ENTMAX.params
        super().__init__(weight, alpha=parameter.held(type(self).__name__, alpha), **options)


@public
def entmax15_loss(
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
    """The loss of entmax-1.5: convex, and exactly zero once x_t exceeds every other score by 2.

    Arguments, errors and cost as for `fenchel_young_loss`. Source: Peters, Niculae & Martins (2019), arXiv:1905.05702.

    >>> import torch, softmaxima as sm
    >>> sm.entmax15_loss(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 0]), reduction="none")
    tensor([0.0000, 0.3905])
    """
    shared = (input, target, weight, ignore_index, reduction, label_smoothing, empty, temperature, dim, where)
    return fenchel_young("entmax15_loss", ENTMAX15, {}, *shared)


@public
class Entmax15Loss(LossModule):
    """`entmax15_loss` as a module.

    >>> import torch, softmaxima as sm
    >>> sm.Entmax15Loss()(torch.zeros(1, 2), torch.tensor([0]))
    tensor(0.3905)
    """

    function = entmax15_loss


register_named(entmax_loss, EntmaxLoss, ENTMAX, {"alpha": 1.5}, {"alpha": 1.0}, {"alpha": 1.1}, {"alpha": 2.5})
register_named(entmax15_loss, Entmax15Loss, ENTMAX15)
