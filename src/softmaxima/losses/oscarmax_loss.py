r"""oscarmax_loss: the Fenchel–Young loss of oscarmax, Ω*(x) + Ω(y) − ⟨x, y⟩ with Ω(p) = ½ (‖p‖² − 1) − γ Σ_k (k − 1) p_(k)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from softmaxima.base.arguments import Array
from softmaxima.base.public import public
from softmaxima.losses.contract import LossModule
from softmaxima.losses.fenchel_young import fenchel_young, register_named
from softmaxima.maps.oscarmax import OSCARMAX


@public
def oscarmax_loss(
    input: Array,
    target: Any,
    weight: Any = None,
    *,
    gamma: float | Array = 0.05,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    temperature: float | Array = 1.0,
    dim: int | Sequence[int] | None = None,
    where: Array | None = None,
    empty: str = "nan",
) -> Array:
    """The loss of oscarmax, `Ω*(x) + Ω(y) − ⟨x, y⟩`: convex, and zero exactly where oscarmax(x) = y; ∂L/∂x = p − y.

    A target of a few equal probabilities costs least to meet.

    Args:
        gamma: as for `oscarmax`.
        The others and errors: as for `fenchel_young_loss`. Cost: `oscarmax`, and one more read.

    Source: Niculae & Blondel (2017), arXiv:1705.07704; Blondel, Martins & Niculae (2020), arXiv:1901.02324, for such losses.

    >>> import torch, softmaxima as sm
    >>> sm.oscarmax_loss(torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]), torch.tensor([0, 0]), gamma=0.5, reduction="none")
    tensor([0.1875, 0.8333])
    """
    shared = (input, target, weight, ignore_index, reduction, label_smoothing, empty, temperature, dim, where)
    return fenchel_young("oscarmax_loss", OSCARMAX, {"gamma": gamma}, *shared)


@public
class OscarmaxLoss(LossModule):
    """`oscarmax_loss` as a module; give `sm.Positive(0.05)` as γ to learn it.

    >>> import torch, softmaxima as sm
    >>> sm.OscarmaxLoss(gamma=0.5)(torch.tensor([[3.0, 0.0, 0.0]]), torch.tensor([0]))
    tensor(0.)
    """

    function = oscarmax_loss

    def __init__(self, gamma: float | Tensor | nn.Module = 0.05, weight: Tensor | None = None, **options: Any) -> None:
        super().__init__(weight, gamma=OSCARMAX.params[0].held(type(self).__name__, gamma), **options)


register_named(oscarmax_loss, OscarmaxLoss, OSCARMAX, {"gamma": 0.05}, {"gamma": 0.5})
