"""The losses of the package, and their modules."""
# ruff: noqa: N803
# The arguments keep the names that the package gave them.

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from softmaxima import losses
from softmaxima.base.numbers import check_choice, check_int
from softmaxima.base.public import public
from softmaxima.compat.entmax_modules import HoldingModule, check_count_or_none
from softmaxima.losses.fenchel_young import fenchel_young
from softmaxima.maps.entmax import ENTMAX
from softmaxima.maps.normmax import NORMMAX

# No label is this, so no target is ignored: the functions have no ignore_index.
_EVERY_SAMPLE = {"ignore_index": torch.iinfo(torch.int64).min, "reduction": "none"}
_EXACT = {
    "sparsemax_loss": losses.sparsemax_loss,
    "sparsemax_bisect_loss": losses.sparsemax_loss,
    "entmax15_loss": losses.entmax15_loss,
    "entmax_bisect_loss": losses.entmax_loss,
}


def _losses(name: str, X: Tensor, target: Tensor, options: dict[str, Any] | None = None, **arguments: Any) -> Tensor:
    """The losses of this name; `k` and `n_iter` are checked, and change nothing."""
    options = options or _EVERY_SAMPLE
    for what in ("k", "n_iter"):
        check_count_or_none(name, what, arguments.pop(what, None))
    if name == "normmax_bisect_loss":
        return fenchel_young(name, NORMMAX, arguments, X, target, None, options["ignore_index"], options["reduction"], 0.0)
    return _EXACT[name](X, target, **arguments, **options)


@public
def sparsemax_loss(X: Tensor, target: Tensor, k: int | None = None) -> Tensor:
    """The N losses of sparsemax, for scores X (N, C) and labels (N); see `softmaxima.sparsemax_loss`.

    Args:
        k: how many scores 1.3 sorts first; nothing is sorted here.

    >>> sparsemax_loss(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 0]))
    tensor([0.0000, 0.2500])
    """
    return _losses("sparsemax_loss", X, target, k=k)


@public
def sparsemax_bisect_loss(X: Tensor, target: Tensor, n_iter: int | None = 50) -> Tensor:
    """`sparsemax_loss` by another name; `n_iter` changes nothing.

    >>> sparsemax_bisect_loss(torch.zeros(1, 2), torch.tensor([0]))
    tensor([0.2500])
    """
    return _losses("sparsemax_bisect_loss", X, target, n_iter=n_iter)


@public
def entmax15_loss(X: Tensor, target: Tensor, k: int | None = None) -> Tensor:
    """The N losses of entmax-1.5, for scores X (N, C) and labels (N); see `softmaxima.entmax15_loss`.

    Args: as for `sparsemax_loss`.

    >>> entmax15_loss(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 0]))
    tensor([0.0000, 0.3905])
    """
    return _losses("entmax15_loss", X, target, k=k)


@public
def entmax_bisect_loss(X: Tensor, target: Tensor, alpha: float | Tensor = 1.5, n_iter: int | None = 50) -> Tensor:
    """The N losses of entmax-α, for scores X (N, C) and labels (N); see `softmaxima.entmax_loss`.

    Args:
        alpha: α > 0, a number or a tensor that broadcasts to (N, 1); a tensor may require grad.
        n_iter: changes nothing.

    >>> entmax_bisect_loss(torch.zeros(2, 2), torch.tensor([0, 1]), alpha=torch.tensor([[1.5], [2.0]]))
    tensor([0.3905, 0.2500])
    """
    return _losses("entmax_bisect_loss", X, target, alpha=alpha, n_iter=n_iter)


@public
def normmax_bisect_loss(X: Tensor, target: Tensor, alpha: float | Tensor = 2, n_iter: int | None = 50) -> Tensor:
    """The N losses of normmax, `max_{q∈Δ} (⟨q, x⟩ − ‖q‖_α) + 1 − x_t`, for scores X (N, C) and labels t (N): ∂L/∂x = p − y.

    It is exactly zero once x_t exceeds every other score by 1.

    Args:
        alpha: α ≥ 1, a number or a tensor that broadcasts to (N, 1); a tensor may require grad.
        n_iter: changes nothing.

    >>> normmax_bisect_loss(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 0]))
    tensor([0.0000, 0.2929])
    """
    return _losses("normmax_bisect_loss", X, target, alpha=alpha, n_iter=n_iter)


_REDUCTIONS = {"elementwise_mean": "mean", "sum": "sum", "none": "none"}


class _LossModule(HoldingModule):
    """The losses `of` a name for scores (N, C), labels (N) and arguments; the mean is over labels other than `ignore_index`."""

    of: str
    ignore_index: int
    reduction: str

    def __init__(self, ignore_index: int, reduction: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        name = type(self).__name__
        self.reduction = check_choice(name, "reduction", reduction, tuple(_REDUCTIONS))
        self.ignore_index = check_int(name, "ignore_index", ignore_index)

    def loss(self, X: Tensor, target: Tensor) -> Tensor:
        """The N losses, no label ignored."""
        return _losses(self.of, X, target, **self._arguments)

    def forward(self, X: Tensor, target: Tensor) -> Tensor:
        options = {"ignore_index": self.ignore_index, "reduction": _REDUCTIONS[self.reduction]}
        return _losses(self.of, X, target, options, **self._arguments)


@public
class SparsemaxLoss(_LossModule):
    """`sparsemax_loss` as a module, reduced.

    Args:
        ignore_index: the label of rows that count for nothing; the default ignores −100.
        reduction: "elementwise_mean" over the rows that count, "sum", or "none".

    >>> SparsemaxLoss(ignore_index=1)(torch.zeros(2, 2), torch.tensor([0, 1]))
    tensor(0.2500)
    """

    of = "sparsemax_loss"

    def __init__(self, k: int | None = None, ignore_index: int = -100, reduction: str = "elementwise_mean") -> None:
        super().__init__(ignore_index, reduction, k=k)


@public
class SparsemaxBisectLoss(_LossModule):
    """`sparsemax_bisect_loss` as a module, reduced as by `SparsemaxLoss`.

    >>> SparsemaxBisectLoss(reduction="sum")(torch.zeros(2, 2), torch.tensor([0, 1]))
    tensor(0.5000)
    """

    of = "sparsemax_bisect_loss"

    def __init__(self, n_iter: int | None = 50, ignore_index: int = -100, reduction: str = "elementwise_mean") -> None:
        super().__init__(ignore_index, reduction, n_iter=n_iter)


@public
class Entmax15Loss(_LossModule):
    """`entmax15_loss` as a module, reduced as by `SparsemaxLoss`.

    >>> Entmax15Loss()(torch.zeros(2, 2), torch.tensor([0, 1]))
    tensor(0.3905)
    """

    of = "entmax15_loss"

    def __init__(self, k: int | None = 100, ignore_index: int = -100, reduction: str = "elementwise_mean") -> None:
        super().__init__(ignore_index, reduction, k=k)


@public
class EntmaxBisectLoss(_LossModule):
    """`entmax_bisect_loss` as a module, reduced as by `SparsemaxLoss`; an `nn.Parameter` as alpha learns.

    >>> EntmaxBisectLoss(alpha=1.0)(torch.zeros(2, 2), torch.tensor([0, 1]))
    tensor(0.6931)
    """

    of = "entmax_bisect_loss"
    map = ENTMAX

    def __init__(
        self,
        alpha: float | Tensor = 1.5,
        n_iter: int | None = 50,
        ignore_index: int = -100,
        reduction: str = "elementwise_mean",
    ) -> None:
        super().__init__(ignore_index, reduction, alpha=alpha, n_iter=n_iter)


@public
class NormmaxBisectLoss(_LossModule):
    """`normmax_bisect_loss` as a module, reduced as by `SparsemaxLoss`; an `nn.Parameter` as alpha learns.

    >>> NormmaxBisectLoss()(torch.zeros(2, 2), torch.tensor([0, 1]))
    tensor(0.2929)
    """

    of = "normmax_bisect_loss"
    map = NORMMAX

    def __init__(
        self,
        alpha: float | Tensor = 2,
        n_iter: int | None = 50,
        ignore_index: int = -100,
        reduction: str = "elementwise_mean",
    ) -> None:
        super().__init__(ignore_index, reduction, alpha=alpha, n_iter=n_iter)
