r"""fusedmax_loss: the Fenchel–Young loss of fusedmax, Ω*(x) + Ω(y) − ⟨x, y⟩ with Ω(p) = ½ (‖p‖² − 1) + γ Σ |p_{i+1} − p_i|."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from softmaxima.base.arguments import Array
from softmaxima.base.public import public
from softmaxima.losses.contract import LossModule
from softmaxima.losses.fenchel_young import fenchel_young, register_named
from softmaxima.maps.fusedmax import FUSEDMAX


@public
def fusedmax_loss(
    input: Array,
    target: Any,
    weight: Any = None,
    *,
    gamma: float | Array = 0.1,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    temperature: float | Array = 1.0,
    dim: int | Sequence[int] | None = None,
    where: Array | None = None,
    empty: str = "nan",
) -> Array:
    """The loss of fusedmax, `Ω*(x) + Ω(y) − ⟨x, y⟩`: convex, and zero exactly where fusedmax(x) = y; ∂L/∂x = p − y.

    Classes have an order in it, such as places of a sequence; a target of equal neighbours costs least to meet.

    Args:
        gamma: as for `fusedmax`.
        The others and errors: as for `fenchel_young_loss`. Cost: `fusedmax`, and one more read.

    Source: Niculae & Blondel (2017), arXiv:1705.07704; Blondel, Martins & Niculae (2020), arXiv:1901.02324, for such losses.

    >>> import torch, softmaxima as sm
    >>> sm.fusedmax_loss(torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]), torch.tensor([0, 0]), gamma=0.5, reduction="none")
    tensor([0.1875, 0.8333])
    """
    shared = (input, target, weight, ignore_index, reduction, label_smoothing, empty, temperature, dim, where)
    return fenchel_young("fusedmax_loss", FUSEDMAX, {"gamma": gamma}, *shared)


@public
class FusedmaxLoss(LossModule):
    """`fusedmax_loss` as a module; give `sm.Positive(0.1)` as γ to learn it.

    >>> import torch, softmaxima as sm
    >>> sm.FusedmaxLoss(gamma=0.5)(torch.tensor([[3.0, 0.0, 0.0]]), torch.tensor([0]))
    tensor(0.)
    """

    function = fusedmax_loss

    def __init__(self, gamma: float | Tensor | nn.Module = 0.1, weight: Tensor | None = None, **options: Any) -> None:
        super().__init__(weight, gamma=FUSEDMAX.params[0].held(type(self).__name__, gamma), **options)


register_named(fusedmax_loss, FusedmaxLoss, FUSEDMAX, {"gamma": 0.1}, {"gamma": 0.5})
