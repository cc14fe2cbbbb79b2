r"""What estimators of ∇E f(D) share: one-hot draws D of softmax(x), their log-probabilities, and the values that f gives them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.tracing import sizes
from softmaxima.maps.log_softmax import LOG_SOFTMAX
from softmaxima.sampling.gumbel import check_drawable
from softmaxima.sampling.rows import Rows, as_rows

Function = Callable[[Tensor], Tensor]  # draws [samples, *x.shape] → values [samples, *those of x's axes that are independent]


@dataclass(frozen=True)
class Drawing:
    """Rows with log p = log_softmax(x) [..., n] in float64, −∞ where masked."""

    rows: Rows
    log_p: Tensor

    def log_prob(self, one_hot: Tensor) -> Tensor:
        """log p of draws [samples, ..., n] → [samples, ...]; 0 of a row of zeros."""
        return torch.where(one_hot, self.log_p, 0.0).sum(-1)

    def values(self, f: Function, draws: Tensor, what: str = "f") -> Tensor:
        """f of draws [samples, ..., n], in float64: [samples, *lead]."""
        return check_values_of(self.rows, f(self.rows.back(draws)), len(draws), what)


def drawn_rows(name: str, x: Any, f: Any, dim: Any, where: Any, samples: Any) -> Rows:
    """Validated before any work."""
    if not callable(f):
        raise TypeError(
            f"{name}: f must be a function of draws of x's shape with an axis of samples in front, got {type(f).__name__}"
        )
    rows = as_rows(name, x, dim, 1.0, where, samples)
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: x must be a torch.Tensor, for it has the gradient, got {type(x).__name__}; call torch.tensor()")
    if sizes(rows.x)[-1] == 0:
        raise ValueError(f"{name}: x must have at least one class to draw, got shape {sizes(x)} with none along dim {dim}")
    check_drawable(rows)
    return rows


def as_drawing(name: str, x: Any, f: Any, dim: Any, where: Any, samples: Any) -> Drawing:
    """Of rows that were validated."""
    rows = drawn_rows(name, x, f, dim, where, samples)
    return Drawing(rows, LOG_SOFTMAX(rows.x))


def check_values_of(drawn: Rows, values: Any, samples: int, what: str) -> Tensor:
    """A tensor of one value a sample and, in front, as many of the rows' axes as are independent."""
    rows = () if drawn.scalar else sizes(drawn.x)[:-1]
    if not isinstance(values, Tensor) or not values.is_floating_point():
        got = values.dtype if isinstance(values, Tensor) else type(values).__name__
        raise TypeError(f"{drawn.name}: {what} must give a tensor of floating point, got {got}")
    shape = sizes(values)
    if shape[:1] != (samples,) or shape[1:] != rows[: len(shape) - 1]:
        raise ValueError(
            f"{drawn.name}: {what} must give values of shape {(samples, *rows)}, one for each draw of "
            f"a row, or without the last of these axes, whose rows have one value together; got {shape}"
        )
    return values.double()


def over_rows(v: Tensor, values: Tensor) -> Tensor:
    """[samples, ...] summed over the axes that have one value together, of `values` [samples, *lead]."""
    return v.sum(tuple(range(values.ndim, v.ndim))) if v.ndim > values.ndim else v
