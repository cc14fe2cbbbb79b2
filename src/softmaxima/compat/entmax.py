"""The entmax package, version 1.3: its names, arguments and defaults over exact solvers.

    import softmaxima.compat.entmax as entmax        # instead of `import entmax`

Every function and module of its `activations`, `root_finding` and `losses` is here, with the two threshold helpers, and without the
autograd functions behind them. `k`, `n_iter` and `ensure_sum_one` steer approximations that are not made here: they are accepted,
and change nothing.

What differs from 1.3 is what its documentation promises but 1.3 does not do, and what 1.3 does not define:

- `k` with `dim=-2` or lower raised; every axis works.
- A row of −∞ alone, or with NaN, raised or gave NaN, and NaN in one row failed for all. Zeros and NaN here, in that row only.
- float16 and bfloat16 were summed in their own precision: sums of 0.98, and NaN for scores near −1000. Sums are wide here.
- Tensors of another dtype as `alpha` changed the result's dtype; it is that of X here.
- Second derivatives of entmax15, entmax_bisect and normmax_bisect were NaN where a probability is zero, those by alpha were wrong,
  and the losses had none.
- `budget_bisect` raised in its gradient where `dim` named the last axis by a positive number or the first by a negative one, and
  gave NaN with a score of −∞.
- `EntmaxBisect(nn.Parameter(...))` raised. `alpha` of normmax and of the losses, and `budget`, got no gradient, without a word.
- One alpha a row, (N, 1), turned the N losses of a batch into an N × N table.
- A masked class, X = −∞, made every loss NaN; scores of 1e5 in float32 gave losses below 0; sums over a float16 batch overflowed.
- The loss of normmax lost its norm to underflow for large alpha.
- An `ignore_index` that is no class, 255 or the default −100, raised as soon as a target had it. Such targets are ignored here, as
  torch does. An ignored row with NaN made its gradient NaN; it is zero here.
- A mean over no target at all, every row ignored, is NaN with a zero gradient, in 1.3, in torch and here.

Wrong arguments raise ValueError, TypeError or IndexError with a reason, also where 1.3 has an assertion, and where it returns
something: for α ≤ 0, α < 1 in normmax, a negative budget.

>>> import torch
>>> import softmaxima.compat.entmax as entmax
>>> entmax.sparsemax(torch.tensor([1.0, 0.8, 0.1]), dim=0)
tensor([0.6000, 0.4000, 0.0000])
>>> entmax.entmax_bisect(torch.tensor([[1.0, 0.0]]), alpha=torch.tensor([[1.5]]), n_iter=30)
tensor([[0.8307, 0.1693]])
"""
# ruff: noqa: N803
# The arguments keep the names that the package gave them.

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from softmaxima import losses as _losses
from softmaxima import maps as _maps
from softmaxima.base.arguments import as_map_scores, as_scores, check_dim, like_input
from softmaxima.base.numbers import check_axis, check_choice, check_count, check_int
from softmaxima.base.public import listing, public
from softmaxima.engine.contract import Map
from softmaxima.engine.evaluation import check_params
from softmaxima.losses.fenchel_young import fenchel_young
from softmaxima.maps.budget_sparsemax import BUDGET_SPARSEMAX
from softmaxima.maps.entmax import ENTMAX
from softmaxima.maps.normmax import NORMMAX

__all__ = [
    "BudgetBisect",
    "Entmax15",
    "Entmax15Loss",
    "EntmaxBisect",
    "EntmaxBisectLoss",
    "NormmaxBisect",
    "NormmaxBisectLoss",
    "Sparsemax",
    "SparsemaxBisect",
    "SparsemaxBisectLoss",
    "SparsemaxLoss",
    "activations",
    "budget_bisect",
    "entmax15",
    "entmax15_loss",
    "entmax_bisect",
    "entmax_bisect_loss",
    "losses",
    "normmax_bisect",
    "normmax_bisect_loss",
    "root_finding",
    "sparsemax",
    "sparsemax_bisect",
    "sparsemax_bisect_loss",
    "sparsemax_loss",
]
__dir__ = listing(globals())

__version__ = "1.3"  # whose interface this is

# `entmax.losses.SparsemaxLoss` and the like are names of the package too.
activations = root_finding = losses = sys.modules[__name__]


def _check_count(name: str, what: str, count: Any) -> None:
    if count is not None:
        check_count(name, what, count)


def _in_float64(name: str, map: Map, X: Any, dim: int, **params: Any) -> Any:
    """The map in float64, whatever the dtype: what rounds to 0 or 1 in a narrower one still has its gradient."""
    scores = as_map_scores(name, X)
    check_params(map, params, scores if scores.ndim else scores.reshape(1), check_dim(name, dim, scores.ndim), name)
    return like_input(map(scores.double(), dim, **params).to(scores.dtype), X)


# Activations -----------------------------------------------------------------------------------------------------------------


@public
def sparsemax(X: Tensor, dim: int = -1, k: int | None = None) -> Tensor:
    """Sparsemax, `p = argmin_{q∈Δ} ‖q − X‖²` along `dim`; see `softmaxima.sparsemax`.

    Args:
        X: scores of any shape.
        k: how many scores 1.3 sorts first; nothing is sorted here.

    >>> sparsemax(torch.tensor([[2.0, 1.5, 0.0]]), dim=-1, k=2)
    tensor([[0.7500, 0.2500, 0.0000]])
    """
    _check_count("sparsemax", "k", k)
    return _maps.sparsemax(X, dim)


@public
def entmax15(X: Tensor, dim: int = -1, k: int | None = None) -> Tensor:
    """Entmax with α = 1.5, `p = relu(X/2 − λ)²` along `dim`; see `softmaxima.entmax15`.

    Args: as for `sparsemax`.

    >>> entmax15(torch.tensor([[1.0, 0.0, -2.0]]))
    tensor([[0.8307, 0.1693, 0.0000]])
    """
    _check_count("entmax15", "k", k)
    return _maps.entmax15(X, dim)


@public
def sparsemax_bisect(X: Tensor, dim: int = -1, n_iter: int | None = 50, ensure_sum_one: bool = True) -> Tensor:
    """`sparsemax` by another name: 1.3 bisects `n_iter` times, here the solution is exact and sums to one.

    >>> sparsemax_bisect(torch.tensor([[2.0, 1.5, 0.0]]), n_iter=24)
    tensor([[0.7500, 0.2500, 0.0000]])
    """
    _check_count("sparsemax_bisect", "n_iter", n_iter)
    return _maps.sparsemax(X, dim)


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
    _check_count("entmax_bisect", "n_iter", n_iter)
    return _maps.entmax(X, dim=dim, alpha=alpha)


@public
def normmax_bisect(X: Tensor, alpha: float | Tensor = 2, dim: int = -1, n_iter: int | None = 50) -> Tensor:
    """Normmax, `p = argmax_{q∈Δ} ⟨q, X⟩ − ‖q‖_α` along `dim`, in float64; see `softmaxima.normmax`.

    Args:
        alpha: α ≥ 1, a number or a tensor that broadcasts against X with size 1 along `dim`; a tensor may require grad.
        n_iter: how often 1.3 bisects; the solution is exact to float64, whatever the dtype.

    >>> normmax_bisect(torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]), alpha=2)
    tensor([0.0000, 0.0239, 0.1746, 0.3254, 0.4761])
    """
    _check_count("normmax_bisect", "n_iter", n_iter)
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
    _check_count("budget_bisect", "n_iter", n_iter)
    return _in_float64("budget_bisect", BUDGET_SPARSEMAX, X, dim, budget=budget)


# Thresholds ------------------------------------------------------------------------------------------------------------------


def _sparsemax_threshold_and_support(X: Tensor, dim: int = -1, k: int | None = None) -> tuple[Tensor, Tensor]:
    """(λ, size of the support) of sparsemax, both of size 1 along `dim`: p = relu(X − λ). λ is +∞ for a row of −∞.

    >>> _sparsemax_threshold_and_support(torch.tensor([2.0, 1.5, 0.0]))
    (tensor([1.2500]), tensor([2]))
    """
    _check_count("sparsemax", "k", k)
    scores = as_scores("sparsemax", X)
    return _threshold(scores, _maps.sparsemax(scores.double(), dim), dim, power=1.0)


def _entmax_threshold_and_support(X: Tensor, dim: int = -1, k: int | None = None) -> tuple[Tensor, Tensor]:
    """(λ, size of the support) of entmax-1.5 of 2X, both of size 1 along `dim`: p = relu(X − λ)². λ is +∞ for a row of −∞.

    1.3 also counts a score that is exactly λ, whose probability is 0.

    >>> _entmax_threshold_and_support(torch.tensor([0.0, -1.0]))
    (tensor([-1.]), tensor([1]))
    """
    _check_count("entmax15", "k", k)
    scores = as_scores("entmax15", X)
    return _threshold(scores, _maps.entmax15(2 * scores.double(), dim), dim, power=0.5)


def _threshold(scores: Tensor, p: Tensor, dim: int, power: float) -> tuple[Tensor, Tensor]:
    """λ = max x − (max p)^power."""
    largest = scores.double().amax(dim, keepdim=True)
    nothing = largest == -math.inf
    width = p.amax(dim, keepdim=True).masked_fill(nothing, 1.0) ** power
    return (largest - width).masked_fill(nothing, math.inf).to(scores.dtype), (p > 0).sum(dim, keepdim=True)


# Losses ----------------------------------------------------------------------------------------------------------------------

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
    _check_count("sparsemax_loss", "k", k)
    return _losses.sparsemax_loss(X, target, **options)


@public
def sparsemax_bisect_loss(X: Tensor, target: Tensor, n_iter: int | None = 50) -> Tensor:
    """`sparsemax_loss` by another name; `n_iter` changes nothing.

    >>> sparsemax_bisect_loss(torch.zeros(1, 2), torch.tensor([0]))
    tensor([0.2500])
    """
    return _sparsemax_bisect_loss(X, target, n_iter, **_EVERY_SAMPLE)


def _sparsemax_bisect_loss(X: Tensor, target: Tensor, n_iter: int | None, **options: Any) -> Tensor:
    _check_count("sparsemax_bisect_loss", "n_iter", n_iter)
    return _losses.sparsemax_loss(X, target, **options)


@public
def entmax15_loss(X: Tensor, target: Tensor, k: int | None = None) -> Tensor:
    """The N losses of entmax-1.5, for scores X (N, C) and labels (N); see `softmaxima.entmax15_loss`.

    Args: as for `sparsemax_loss`.

    >>> entmax15_loss(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 0]))
    tensor([0.0000, 0.3905])
    """
    return _entmax15_loss(X, target, k, **_EVERY_SAMPLE)


def _entmax15_loss(X: Tensor, target: Tensor, k: int | None, **options: Any) -> Tensor:
    _check_count("entmax15_loss", "k", k)
    return _losses.entmax15_loss(X, target, **options)


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
    _check_count("entmax_bisect_loss", "n_iter", n_iter)
    return _losses.entmax_loss(X, target, alpha=alpha, **options)


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
    _check_count("normmax_bisect_loss", "n_iter", n_iter)
    ignore_index, reduction = options["ignore_index"], options["reduction"]
    return fenchel_young("normmax_bisect_loss", NORMMAX, {"alpha": alpha}, X, target, None, ignore_index, reduction, 0.0)


# Modules ---------------------------------------------------------------------------------------------------------------------


class _Module(nn.Module):
    """Holds arguments. An `nn.Parameter` learns; a tensor moves with the module, and stays out of its state_dict as in 1.3."""

    function: Callable[..., Tensor]
    map: Map | None = None  # whose parameter is among the arguments

    def __init__(self, **arguments: Any) -> None:
        super().__init__()
        name = type(self).__name__
        for what in ("k", "n_iter"):
            _check_count(name, what, arguments.get(what))
        if "dim" in arguments:
            arguments["dim"] = check_axis(name, arguments["dim"])
        for parameter in () if self.map is None else self.map.params:
            arguments[parameter.name] = parameter.check(name, arguments[parameter.name])
        self._argument_names = tuple(arguments)
        for name, value in arguments.items():
            if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
                self.register_buffer(name, value, persistent=False)
            else:
                setattr(self, name, value)

    @property
    def _arguments(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._argument_names}


class _MapModule(_Module):
    """`function` of X and the arguments."""

    def forward(self, X: Tensor) -> Tensor:
        return type(self).function(X, **self._arguments)


@public
class Sparsemax(_MapModule):
    """`sparsemax` as a module.

    >>> Sparsemax(dim=0)(torch.tensor([3.0, 1.0]))
    tensor([1., 0.])
    """

    function = sparsemax

    def __init__(self, dim: int = -1, k: int | None = None) -> None:
        super().__init__(dim=dim, k=k)


@public
class Entmax15(_MapModule):
    """`entmax15` as a module.

    >>> Entmax15(dim=0)(torch.tensor([3.0, 1.0]))
    tensor([1., 0.])
    """

    function = entmax15

    def __init__(self, dim: int = -1, k: int | None = None) -> None:
        super().__init__(dim=dim, k=k)


@public
class SparsemaxBisect(_MapModule):
    """`sparsemax_bisect` as a module.

    >>> SparsemaxBisect()(torch.tensor([3.0, 1.0]))
    tensor([1., 0.])
    """

    function = sparsemax_bisect

    def __init__(self, dim: int = -1, n_iter: int | None = None) -> None:
        super().__init__(dim=dim, n_iter=n_iter)


@public
class EntmaxBisect(_MapModule):
    """`entmax_bisect` as a module; an `nn.Parameter` as alpha learns.

    >>> EntmaxBisect(alpha=torch.tensor(2.0))(torch.tensor([3.0, 1.0]))
    tensor([1., 0.])
    """

    function = entmax_bisect
    map = ENTMAX

    def __init__(self, alpha: float | Tensor = 1.5, dim: int = -1, n_iter: int | None = 50) -> None:
        super().__init__(alpha=alpha, dim=dim, n_iter=n_iter)


@public
class NormmaxBisect(_MapModule):
    """`normmax_bisect` as a module; an `nn.Parameter` as alpha learns.

    >>> NormmaxBisect()(torch.tensor([1.0, 0.0]))
    tensor([1., 0.])
    """

    function = normmax_bisect
    map = NORMMAX

    def __init__(self, alpha: float | Tensor = 2, dim: int = -1, n_iter: int | None = 50) -> None:
        super().__init__(alpha=alpha, dim=dim, n_iter=n_iter)


@public
class BudgetBisect(_MapModule):
    """`budget_bisect` as a module; an `nn.Parameter` as budget learns.

    >>> BudgetBisect(budget=2)(torch.tensor([3.0, 2.0, 1.5]))
    tensor([1.0000, 0.7500, 0.2500])
    """

    function = budget_bisect
    map = BUDGET_SPARSEMAX

    def __init__(self, budget: float | Tensor = 2, dim: int = -1, n_iter: int | None = 50) -> None:
        super().__init__(budget=budget, dim=dim, n_iter=n_iter)


_REDUCTIONS = {"elementwise_mean": "mean", "sum": "sum", "none": "none"}


class _LossModule(_Module):
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
