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


@public
def sparsemax_loss(X: Tensor, target: Tensor, k: int | None = None) -> Tensor:
    """The N losses of sparsemax, for scores X (N, C) and labels (N); see `softmaxima.sparsemax_loss`.

    Args:
        k: how many scores 1.3 sorts first; nothing is sorted here.

    >>> sparsemax_loss(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 0]))
    tensor([0.0000, 0.2500])
    """
    return _sparsemax_loss(X, target, k, **_EVERY_SAMPLE)


def _sparsemax_loss(X: Tensor, target: Tensor, k: int | None, **options: Any) -> Tensor:
    check_count_or_none("sparsemax_loss", "k", k)
    return losses.sparsemax_loss(X, target, **options)


@public
def sparsemax_bisect_loss(X: Tensor, target: Tensor, n_iter: int | None = 50) -> Tensor:
    """`sparsemax_loss` by another name; `n_iter` changes nothing.

    >>> sparsemax_bisect_loss(torch.zeros(1, 2), torch.tensor([0]))
    tensor([0.2500])
    """
    return _sparsemax_bisect_loss(X, target, n_iter, **_EVERY_SAMPLE)


def _sparsemax_bisect_loss(X: Tensor, target: Tensor, n_iter: int | None, **options: Any) -> Tensor:
    check_count_or_none("sparsemax_bisect_loss", "n_iter", n_iter)
    return losses.sparsemax_loss(X, target, **options)


@public
def entmax15_loss(X: Tensor, target: Tensor, k: int | None = None) -> Tensor:
    """The N losses of entmax-1.5, for scores X (N, C) and labels (N); see `softmaxima.entmax15_loss`.

    Args: as for `sparsemax_loss`.

    >>> entmax15_loss(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 0]))
    tensor([0.0000, 0.3905])
    """
    return _entmax15_loss(X, target, k, **_EVERY_SAMPLE)


def _entmax15_loss(X: Tensor, target: Tensor, k: int | None, **options: Any) -> Tensor:
    check_count_or_none("entmax15_loss", "k", k)
    return losses.entmax15_loss(X, target, **options)


@public
def entmax_bisect_loss(X: Tensor, target: Tensor, alpha: float | Tensor = 1.5, n_iter: int | None = 50) -> Tensor:
    """The N losses of entmax-α, for scores X (N, C) and labels (N); see `softmaxima.entmax_loss`.

    Args:
        alpha: α > 0, a number or a tensor that broadcasts to (N, 1); a tensor may require grad.
        n_iter: changes nothing.

    >>> entmax_bisect_loss(torch.zeros(2, 2), torch.tensor([0, 1]), alpha=torch.tensor([[1.5], [2.0]]))
    tensor([0.3905, 0.2500])
    """
    return _entmax_bisect_loss(X, target, alpha, n_iter, **_EVERY_SAMPLE)


def _entmax_bisect_loss(X: Tensor, target: Tensor, alpha: float | Tensor, n_iter: int | None, **options: Any) -> Tensor:
    check_count_or_none("entmax_bisect_loss", "n_iter", n_iter)
    return losses.entmax_loss(X, target, alpha=alpha, **options)


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
    return _normmax_bisect_loss(X, target, alpha, n_iter, **_EVERY_SAMPLE)


def _normmax_bisect_loss(X: Tensor, target: Tensor, alpha: float | Tensor, n_iter: int | None, **options: Any) -> Tensor:
    check_count_or_none("normmax_bisect_loss", "n_iter", n_iter)
    ignore_index, reduction = options["ignore_index"], options["reduction"]
    return fenchel_young("normmax_bisect_loss", NORMMAX, {"alpha": alpha}, X, target, None, ignore_index, reduction, 0.0)


_REDUCTIONS = {"elementwise_mean": "mean", "sum": "sum", "none": "none"}


class _LossModule(HoldingModule):
    """`function` of scores (N, C), labels (N) and the arguments, reduced; the mean is over labels other than `ignore_index`."""

    ignore_index: int
    reduction: str

    def __init__(self, ignore_index: int, reduction: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        name = type(self).__name__
        self.reduction = check_choice(name, "reduction", reduction, tuple(_REDUCTIONS))
        self.ignore_index = check_int(name, "ignore_index", ignore_index)

    def loss(self, X: Tensor, target: Tensor) -> Tensor:
        """The N losses, no label ignored."""
        return type(self).function(X, target, **self._arguments, **_EVERY_SAMPLE)

    def forward(self, X: Tensor, target: Tensor) -> Tensor:
        options = {"ignore_index": self.ignore_index, "reduction": _REDUCTIONS[self.reduction]}
        return type(self).function(X, target, **self._arguments, **options)


@public
class SparsemaxLoss(_LossModule):
    """`sparsemax_loss` as a module, reduced.

    Args:
        ignore_index: the label of rows that count for nothing; the default ignores −100.
        reduction: "elementwise_mean" over the rows that count, "sum", or "none".

    >>> SparsemaxLoss(ignore_index=1)(torch.zeros(2, 2), torch.tensor([0, 1]))
    tensor(0.2500)
    """

    function = _sparsemax_loss

    def __init__(self, k: int | None = None, ignore_index: int = -100, reduction: str = "elementwise_mean") -> None:
        super().__init__(ignore_index, reduction, k=k)


@public
class SparsemaxBisectLoss(_LossModule):
    """`sparsemax_bisect_loss` as a module, reduced as by `SparsemaxLoss`.

    >>> SparsemaxBisectLoss(reduction="sum")(torch.zeros(2, 2), torch.tensor([0, 1]))
    tensor(0.5000)
    """

    function = _sparsemax_bisect_loss

    def __init__(self, n_iter: int | None = 50, ignore_index: int = -100, reduction: str = "elementwise_mean") -> None:
        super().__init__(ignore_index, reduction, n_iter=n_iter)


@public
class Entmax15Loss(_LossModule):
    """`entmax15_loss` as a module, reduced as by `SparsemaxLoss`.

    >>> Entmax15Loss()(torch.zeros(2, 2), torch.tensor([0, 1]))
    tensor(0.3905)
    """

    function = _entmax15_loss

    def __init__(self, k: int | None = 100, ignore_index: int = -100, reduction: str = "elementwise_mean") -> None:
        super().__init__(ignore_index, reduction, k=k)


@public
class EntmaxBisectLoss(_LossModule):
    """`entmax_bisect_loss` as a module, reduced as by `SparsemaxLoss`; an `nn.Parameter` as alpha learns.

    >>> EntmaxBisectLoss(alpha=1.0)(torch.zeros(2, 2), torch.tensor([0, 1]))
    tensor(0.6931)
    """

    function = _entmax_bisect_loss
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

    function = _normmax_bisect_loss
    map = NORMMAX

    def __init__(
        self,
        alpha: float | Tensor = 2,
        n_iter: int | None = 50,
        ignore_index: int = -100,
        reduction: str = "elementwise_mean",
    ) -> None:
        super().__init__(ignore_index, reduction, alpha=alpha, n_iter=n_iter)
