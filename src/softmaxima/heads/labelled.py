r"""The scores s = (W h + b)/τ of a linear layer for rows of hidden states, and the labels of these rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.nn.functional import embedding
from torch.utils.checkpoint import checkpoint

from softmaxima.base.arguments import COMPUTE_DTYPE, as_tensor, check_per_row, like_input, scale_domain
from softmaxima.base.numbers import check_choice, check_int
from softmaxima.base.tracing import may_differentiate, sizes, transforming
from softmaxima.heads.arguments import as_rows_of, check_bias, check_hidden, check_targets, check_weight
from softmaxima.losses.arguments import REDUCTIONS

HELD = 2**26  # bytes of an array that can be made in parts


@dataclass(frozen=True)
class Rows:
    """Hidden states as rows, and the layer that scores them."""

    hidden: Tensor  # [rows, features], of the dtype that is computed in, divided by τ
    weight: Tensor  # [classes, features]
    bias: Tensor | None  # [classes]
    tau: float | Tensor  # a number, or [rows, 1]
    shape: tuple[int, ...]  # of what has one value a row
    dtype: torch.dtype  # of results
    given: Any  # the hidden states as they came, whose kind results have

    @property
    def classes(self) -> int:
        return sizes(self.weight)[0]

    def part(self, rows: slice) -> Rows:
        tau = self.tau[rows] if isinstance(self.tau, Tensor) else self.tau
        return replace(self, hidden=self.hidden[rows], tau=tau)

    def scores(self, classes: slice) -> Tensor:
        """[rows, classes] of some classes that follow one another."""
        scores = self.hidden @ self.weight[classes].to(self.hidden.dtype).T
        return scores if self.bias is None else scores + self.bias[classes].to(scores.dtype) / self.tau

    def scores_of(self, shared: Tensor, own: Tensor, sparse: bool) -> tuple[Tensor, Tensor]:
        """([rows, m] of the classes `shared` [m], [rows] of each row's `own`); sparse: with a sparse gradient by the layer."""
        few, both, sparse = self._distinct(torch.cat((own, shared)), sparse)  # one gradient by the layer
        rows = own.shape[0]
        found = looked_up(few.weight, both, sparse)
        of_own, of_shared = found[:rows], found[rows:]
        one, many = (self.hidden * of_own).sum(-1), self.hidden @ of_shared.T
        if few.bias is None:
            return many, one
        found = looked_up(few.bias, both, sparse)
        of_own, of_shared = found[:rows], found[rows:]
        return many + of_shared / self.tau, one + (of_own.unsqueeze(-1) / self.tau).squeeze(-1)

    def scores_each(self, classes: Tensor, sparse: bool) -> Tensor:
        """[rows, m] of classes [rows, m], others for each row."""
        count, features = sizes(classes)[1], sizes(self.hidden)[1]
        few, places, sparse = self._distinct(classes, sparse)
        # A part is not smaller than the gradient by the layer, of which each makes one.
        held = max(HELD, few.weight.numel() * few.weight.element_size())
        at_once = max(1, held // max(1, count * features * self.hidden.element_size()))
        parts = [(few.part(rows), places[rows]) for rows in slices(sizes(classes)[0], at_once)]
        again = len(parts) > 1 and may_differentiate((self.hidden, self.weight, self.bias)) and not transforming()
        found = [
            checkpoint(_scores_each, part, own, sparse, use_reentrant=False) if again else _scores_each(part, own, sparse)
            for part, own in parts
        ]
        return found[0] if len(found) == 1 else torch.cat(found)

    def widened(self) -> Rows:
        """With the whole layer in the dtype that is computed in."""
        wide = self.hidden.dtype
        return replace(self, weight=self.weight.to(wide), bias=None if self.bias is None else self.bias.to(wide))

    def _distinct(self, classes: Tensor, sparse: bool) -> tuple[Rows, Tensor, bool]:
        """The rows with a layer in the dtype that is computed in, the places of classes in it, and whether its gradient is sparse.

        A narrower layer is read once for each class that is there: its gradient has one row for each of these, a sum in the dtype
        that is computed in, which is rounded once.
        """
        if self.weight.dtype == self.hidden.dtype:
            return self, classes, sparse
        ordered, order = classes.flatten().sort()
        place = (ordered.diff(prepend=ordered[:1]) != 0).cumsum(0)
        # Their number is that which there can be, so that shapes are known; the places that are left over read the last class.
        kinds = ordered[-1:].expand(min(classes.numel(), self.classes)).scatter(0, place, ordered)
        weight, bias = (x if x is None else looked_up(x, kinds, sparse) for x in (self.weight, self.bias))
        few = replace(self, weight=weight, bias=bias).widened()
        return few, torch.empty_like(order).scatter(0, order, place).view_as(classes), False

    def result(self, values: Tensor, shape: tuple[int, ...]) -> Any:
        """Values in this shape, of the dtype and kind of what came."""
        return like_input(values.to(self.dtype).reshape(shape), self.given)


def _scores_each(rows: Rows, classes: Tensor, sparse: bool) -> Tensor:
    scores = (looked_up(rows.weight, classes, sparse) @ rows.hidden.unsqueeze(-1)).squeeze(-1)
    return scores if rows.bias is None else scores + looked_up(rows.bias, classes, sparse) / rows.tau


def looked_up(table: Tensor, classes: Tensor, sparse: bool) -> Tensor:
    """The rows of a table [classes, …], perhaps with a sparse gradient, which compilers do not know and leave to autograd."""

    def found(table: Tensor, classes: Tensor) -> Tensor:
        if table.ndim == 1:
            return table.gather(0, classes.flatten(), sparse_grad=sparse).view_as(classes)
        return embedding(classes, table, sparse=sparse)

    aside: Any = torch.compiler.disable(found, reason="a sparse gradient is not compiled") if sparse and is_compiling() else found
    return aside(table, classes)


@dataclass(frozen=True)
class Labelled:
    """Rows with their labels."""

    rows: Rows
    labels: Tensor  # [rows], 0 where they are ignored
    ignored: Tensor | None  # [rows], None where none is
    reduction: str

    @property
    def first(self) -> Tensor:
        """The label 0 of each row for `cross_entropy`, with −100 where it is ignored."""
        labels = torch.zeros_like(self.labels)
        return labels if self.ignored is None else labels.masked_fill(self.ignored, -100)

    def reduce(self, values: Tensor) -> Any:
        """The loss from one value a row, as `F.cross_entropy` reduces."""
        if self.ignored is not None:
            values = values.masked_fill(self.ignored, 0.0)
        if self.reduction == "none":
            return self.result(values)
        if self.reduction == "sum":
            return self.result(values.sum())
        rows = sizes(values)[0] or math.nan
        return self.result(values.sum() / (rows if self.ignored is None else (~self.ignored).sum()))

    def result(self, loss: Tensor) -> Any:
        """The reduced loss as the kind of array that came."""
        return self.rows.result(loss, self.rows.shape if self.reduction == "none" else ())


def as_rows(name: str, hidden: Any, weight: Any, bias: Any, temperature: Any) -> Rows:
    """Checked."""
    states = check_hidden(name, hidden)
    check_bias(name, bias, check_weight(name, weight, states))
    # As they are: under autocast the checks widen them, and torch has no sparse gradient through that.
    layer, column = as_tensor(name, "weight", weight), None if bias is None else as_tensor(name, "bias", bias)
    tau = check_per_row(name, "temperature", temperature, states, states.ndim - 1, *scale_domain(states.dtype))
    shape = states.shape[:-1]
    wide = COMPUTE_DTYPE[states.dtype]
    if isinstance(tau, Tensor):
        tau = tau.to(wide).expand(*shape, 1).reshape(-1, 1)
    rows = as_rows_of(states).to(wide)
    return Rows(rows if isinstance(tau, float) and tau == 1 else rows / tau, layer, column, tau, tuple(shape), states.dtype, hidden)


def as_labelled(
    name: str, hidden: Any, weight: Any, target: Any, bias: Any, temperature: Any, ignore_index: Any, reduction: Any,
    shared: bool = False,
) -> Labelled:  # fmt: skip
    """Checked; the hidden states of rows that are ignored are 0, whatever they hold. `shared`: others have classes too."""
    rows = as_rows(name, hidden, weight, bias, temperature)
    reduction, ignore_index = check_choice(name, "reduction", reduction, REDUCTIONS), check_int(name, "ignore_index", ignore_index)
    states = rows.hidden.reshape(*rows.shape, sizes(rows.hidden)[1])
    labels, ignored = check_targets(name, target, states, None if shared else rows.classes, ignore_index)
    labels, ignored = labels.flatten(), None if ignored is None else ignored.flatten()
    if ignored is not None:
        rows = replace(rows, hidden=rows.hidden.masked_fill(ignored.unsqueeze(-1), 0.0))
    return Labelled(rows, labels, ignored, reduction)


def slices(count: int, at_once: int) -> list[slice]:
    """0, …, count − 1 in parts; one part of nothing."""
    return [slice(first, min(first + at_once, count)) for first in range(0, max(count, 1), at_once)]
