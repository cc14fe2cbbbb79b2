"""The activations of the package, exact or by bisection there, and their modules."""
# ruff: noqa: N803
# The arguments keep the names that the package gave them.

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from softmaxima import maps
from softmaxima.base.arguments import as_map_scores, as_scores, check_dim, like_input
from softmaxima.base.public import public
from softmaxima.compat.entmax_modules import MapModule, check_count_or_none
from softmaxima.engine.contract import Map
from softmaxima.engine.evaluation import check_params
from softmaxima.maps.budget_sparsemax import BUDGET_SPARSEMAX
from softmaxima.maps.entmax import ENTMAX
from softmaxima.maps.normmax import NORMMAX


def _in_float64(name: str, map: Map, X: Any, dim: int, **params: Any) -> Any:
    """The map in float64, whatever the dtype: what rounds to 0 or 1 in a narrower one still has its gradient."""
    scores = as_map_scores(name, X)
    check_params(map, params, scores if scores.ndim else scores.reshape(1), check_dim(name, dim, scores.ndim), name)
    return like_input(map(scores.to(torch.float64), dim, **params).to(scores.dtype), X)


@public
def sparsemax(X: Tensor, dim: int = -1, k: int | None = None) -> Tensor:
    """Sparsemax, `p = argmin_{q∈Δ} ‖q − X‖²` along `dim`; see `softmaxima.sparsemax`.

    Args:
        X: scores of any shape.
        k: how many scores 1.3 sorts first; nothing is sorted here.

    >>> sparsemax(torch.tensor([[2.0, 1.5, 0.0]]), dim=-1, k=2)
    tensor([[0.7500, 0.2500, 0.0000]])
    """
    check_count_or_none("sparsemax", "k", k)
    return maps.sparsemax(X, dim)


@public
def entmax15(X: Tensor, dim: int = -1, k: int | None = None) -> Tensor:
    """Entmax with α = 1.5, `p = relu(X/2 − λ)²` along `dim`; see `softmaxima.entmax15`.

    Args: as for `sparsemax`.

    >>> entmax15(torch.tensor([[1.0, 0.0, -2.0]]))
    tensor([[0.8307, 0.1693, 0.0000]])
    """
    check_count_or_none("entmax15", "k", k)
    return maps.entmax15(X, dim)


@public
def sparsemax_bisect(X: Tensor, dim: int = -1, n_iter: int | None = 50, ensure_sum_one: bool = True) -> Tensor:
    """`sparsemax` by another name: 1.3 bisects `n_iter` times, here the solution is exact and sums to one.

    >>> sparsemax_bisect(torch.tensor([[2.0, 1.5, 0.0]]), n_iter=24)
    tensor([[0.7500, 0.2500, 0.0000]])
    """
    check_count_or_none("sparsemax_bisect", "n_iter", n_iter)
    return maps.sparsemax(X, dim)


@public
def entmax_bisect(
    X: Tensor, alpha: float | Tensor = 1.5, dim: int = -1, n_iter: int | None = 50, ensure_sum_one: bool = True
) -> Tensor:
    """Entmax-α, `p = argmax_{q∈Δ} ⟨q, X⟩ − (Σ q^α − 1)/(α(α − 1))` along `dim`; see `softmaxima.entmax`.

    Args:
        alpha: α > 0, a number or a tensor that broadcasts against X with size 1 along `dim`; a tensor may require grad. 1 is
            softmax, 2 sparsemax; below 1 no finite score gets zero.
        n_iter, ensure_sum_one: what 1.3 approximates with; the solution is exact and sums to one.

    >>> entmax_bisect(torch.tensor([[1.0, 0.0, -2.0]]), alpha=torch.tensor([[1.2]]))
    tensor([[0.7622, 0.2328, 0.0050]])
    """
    check_count_or_none("entmax_bisect", "n_iter", n_iter)
    return maps.entmax(X, dim=dim, alpha=alpha)


@public
def normmax_bisect(X: Tensor, alpha: float | Tensor = 2, dim: int = -1, n_iter: int | None = 50) -> Tensor:
    """Normmax, `p = argmax_{q∈Δ} ⟨q, X⟩ − ‖q‖_α` along `dim`, in float64; see `softmaxima.normmax`.

    Args:
        alpha: α ≥ 1, a number or a tensor that broadcasts against X with size 1 along `dim`; a tensor may require grad.
        n_iter: how often 1.3 bisects; the solution is exact to float64, whatever the dtype.

    >>> normmax_bisect(torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]), alpha=2)
    tensor([0.0000, 0.0239, 0.1746, 0.3254, 0.4761])
    """
    check_count_or_none("normmax_bisect", "n_iter", n_iter)
    return _in_float64("normmax_bisect", NORMMAX, X, dim, alpha=alpha)


@public
def budget_bisect(X: Tensor, budget: float | Tensor = 2, dim: int = -1, n_iter: int | None = 50) -> Tensor:
    """Sparsemax with a budget, `p = argmin ‖q − X‖²` over 0 ≤ q ≤ 1 with Σq = budget, in float64.

    Args:
        budget: at least 0, a number or a tensor that broadcasts against X with size 1 along `dim`; a tensor may require grad.
        n_iter: how often 1.3 bisects; the solution is exact to float64, whatever the dtype.

    See `softmaxima.budget_sparsemax`.

    >>> budget_bisect(torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0]), budget=3)
    tensor([0.0000, 0.2500, 0.7500, 1.0000, 1.0000])
    """
    check_count_or_none("budget_bisect", "n_iter", n_iter)
    return _in_float64("budget_bisect", BUDGET_SPARSEMAX, X, dim, budget=budget)


def _sparsemax_threshold_and_support(X: Tensor, dim: int = -1, k: int | None = None) -> tuple[Tensor, Tensor]:
    """(λ, size of the support) of sparsemax, both of size 1 along `dim`: p = relu(X − λ). λ is +∞ for a row of −∞.

    >>> _sparsemax_threshold_and_support(torch.tensor([2.0, 1.5, 0.0]))
    (tensor([1.2500]), tensor([2]))
    """
    check_count_or_none("sparsemax", "k", k)
    scores = as_scores("sparsemax", X)
    return _threshold(scores, maps.sparsemax(scores.double(), dim), dim, power=1.0)


def _entmax_threshold_and_support(X: Tensor, dim: int = -1, k: int | None = None) -> tuple[Tensor, Tensor]:
    """(λ, size of the support) of entmax-1.5 of 2X, both of size 1 along `dim`: p = relu(X − λ)². λ is +∞ for a row of −∞.

    1.3 also counts a score that is exactly λ, whose probability is 0.

    >>> _entmax_threshold_and_support(torch.tensor([0.0, -1.0]))
    (tensor([-1.]), tensor([1]))
    """
    check_count_or_none("entmax15", "k", k)
    scores = as_scores("entmax15", X)
    return _threshold(scores, maps.entmax15(2 * scores.double(), dim), dim, power=0.5)


def _threshold(scores: Tensor, p: Tensor, dim: int, power: float) -> tuple[Tensor, Tensor]:
    """λ = max x − (max p)^power."""
    largest = scores.double().amax(dim, keepdim=True)
    nothing = largest == -math.inf
    width = p.amax(dim, keepdim=True).masked_fill(nothing, 1.0) ** power
    return (largest - width).masked_fill(nothing, math.inf).to(scores.dtype), (p > 0).sum(dim, keepdim=True)


@public
class Sparsemax(MapModule):
    """`sparsemax` as a module.

    >>> Sparsemax(dim=0)(torch.tensor([3.0, 1.0]))
    tensor([1., 0.])
    """

    function = sparsemax

    def __init__(self, dim: int = -1, k: int | None = None) -> None:
        super().__init__(dim=dim, k=k)


@public
class Entmax15(MapModule):
    """`entmax15` as a module.

    >>> Entmax15(dim=0)(torch.tensor([3.0, 1.0]))
    tensor([1., 0.])
    """

    function = entmax15

    def __init__(self, dim: int = -1, k: int | None = None) -> None:
        super().__init__(dim=dim, k=k)


@public
class SparsemaxBisect(MapModule):
    """`sparsemax_bisect` as a module.

    >>> SparsemaxBisect()(torch.tensor([3.0, 1.0]))
    tensor([1., 0.])
    """

    function = sparsemax_bisect

    def __init__(self, dim: int = -1, n_iter: int | None = None) -> None:
        super().__init__(dim=dim, n_iter=n_iter)


@public
class EntmaxBisect(MapModule):
    """`entmax_bisect` as a module; an `nn.Parameter` as alpha learns.

    >>> EntmaxBisect(alpha=torch.tensor(2.0))(torch.tensor([3.0, 1.0]))
    tensor([1., 0.])
    """

    function = entmax_bisect
    map = ENTMAX

    def __init__(self, alpha: float | Tensor = 1.5, dim: int = -1, n_iter: int | None = 50) -> None:
        super().__init__(alpha=alpha, dim=dim, n_iter=n_iter)


@public
class NormmaxBisect(MapModule):
    """`normmax_bisect` as a module; an `nn.Parameter` as alpha learns.

    >>> NormmaxBisect()(torch.tensor([1.0, 0.0]))
    tensor([1., 0.])
    """

    function = normmax_bisect
    map = NORMMAX

    def __init__(self, alpha: float | Tensor = 2, dim: int = -1, n_iter: int | None = 50) -> None:
        super().__init__(alpha=alpha, dim=dim, n_iter=n_iter)


@public
class BudgetBisect(MapModule):
    """`budget_bisect` as a module; an `nn.Parameter` as budget learns.

    >>> BudgetBisect(budget=2)(torch.tensor([3.0, 2.0, 1.5]))
    tensor([1.0000, 0.7500, 0.2500])
    """

    function = budget_bisect
    map = BUDGET_SPARSEMAX

    def __init__(self, budget: float | Tensor = 2, dim: int = -1, n_iter: int | None = 50) -> None:
        super().__init__(budget=budget, dim=dim, n_iter=n_iter)
