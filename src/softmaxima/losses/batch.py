"""Scores with their targets, as `F.cross_entropy` has them: expectations over the target, weights, reductions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_compiling

from softmaxima.base.arguments import as_scores, check_device, check_per_row, check_where, like_input, moved_last, scale_domain
from softmaxima.base.rows import row_length, without_mask
from softmaxima.base.temperature import anchored, is_one, quotient
from softmaxima.base.tracing import is_concrete, sizes
from softmaxima.engine.contract import Map
from softmaxima.losses.arguments import check_class_weight, check_empty, check_labels, check_shared, check_target, widened


class Divided(NamedTuple):
    """Of scores over a temperature, (x − A)/τ with A the largest of a row."""

    x: Tensor  # [rows…, classes], in float64
    tau: float | Tensor
    level: Tensor  # A/τ [rows…, 1], a constant where τ does not learn


@dataclass(frozen=True)
class Batch:
    """Scores with the classes last, and their targets."""

    name: str
    rows: Tensor  # [rows…, classes], the scores in their own dtype
    labels: Tensor | None  # [rows…], 0 where ignored
    soft: Tensor | None  # [rows…, classes]; one of labels and soft is None
    ignored: Tensor | None  # [rows…], None where no row is
    class_weight: Tensor | None  # [classes]
    smoothing: float
    reduction: str
    given: Any = field(repr=False)  # the scores as they came, whose kind the result has
    dtype: torch.dtype  # of the result
    divided: Divided | None = None  # what `rows` are made of, where there is a temperature
    allowed: Tensor | None = None  # [rows…, classes], False for classes that are not there, whose scores are −∞; None for all
    empty: str = "nan"  # the mean over nothing

    def shifted(self, map: Map, params: dict[str, Any]) -> tuple[Map, dict[str, Any], bool]:
        """(map, parameters) that make of these rows what the map makes of x/τ, and whether none do, so that it needs x/τ itself."""
        if self.divided is None or map.properties.shift_invariant:
            return map, params, False
        if map.shifted is None:
            return map, params, True
        return *map.shifted(self.divided.level, **params), False

    def absolute(self) -> Batch:
        """The same of x/τ."""
        return self if self.divided is None else replace(self, rows=quotient(self.divided.x, self.divided.tau))

    def probabilities(self, map: Map, params: dict[str, Any], absolute: bool) -> Tensor:
        """p [rows…, classes] of what `shifted` returns."""
        if absolute and self.divided is not None:
            return map(self.divided.x, temperature=self.divided.tau, **params)
        return map(self.scores, **params)

    def in_double(self) -> Batch:
        """The same, computed in float64."""
        soft, class_weight = (None if x is None else x.double() for x in (self.soft, self.class_weight))
        return replace(self, rows=self.rows.double(), soft=soft, class_weight=class_weight)

    def in_range(self) -> Batch:
        """The same, in float64 where a sum of weighted losses may be beyond float32, and those of double scores as they are."""
        if self.rows.dtype == torch.float64 or not is_concrete(self.rows):
            return self
        scores = self.rows.detach().abs()
        span = 2 * float(scores.where(scores < math.inf, 0.0).max()) + 128 if scores.numel() else 0.0
        weight = 1.0 if self.class_weight is None else max(1.0, float(self.class_weight.detach().sum(dtype=torch.float64)))
        return self.in_double() if span * weight * scores.numel() > 2.0**126 else self

    @property
    def scores(self) -> Tensor:
        """[rows…, classes]: half precision as float32, and 0 in rows that are ignored, whatever they hold."""
        scores = widened(self.rows)
        return scores if self.ignored is None else scores.masked_fill(self.ignored.unsqueeze(-1), 0.0)

    @property
    def class_axis(self) -> int:
        return 0 if self.given.ndim == 1 else 1

    @property
    def classes(self) -> int | Tensor:
        """How many each row has; [rows…, 1] where they are not the same."""
        if self.allowed is None:
            return row_length(self.rows)
        return self.allowed.sum(-1, keepdim=True, dtype=torch.float64).clamp_min(1.0)

    def spread(self, dtype: torch.dtype) -> float | Tensor:
        """What smoothing gives each class, [rows…, classes] where some are not there."""
        each = self.smoothing / self.classes
        if self.allowed is not None:
            each = each * self.allowed
        return each.to(dtype) if isinstance(each, Tensor) else each

    def target_distribution(self, dtype: torch.dtype) -> Tensor:
        """y [rows…, classes], smoothed."""
        classes = self.rows.shape[-1]
        if self.labels is None:
            y = self.soft.to(dtype)  # type: ignore[union-attr]
        else:
            y = (self.labels.unsqueeze(-1) == torch.arange(classes, device=self.labels.device)).to(dtype)
        return y if self.smoothing == 0 else y * (1 - self.smoothing) + self.spread(dtype)

    def expectation(
        self, values: Tensor, class_weight: Tensor | None = None, of: Callable[[Tensor], Tensor] = lambda values: values
    ) -> Tensor:
        """Σ_c w_c y_c of(values_c) [rows…]; where that is −∞ it counts only if y_c > 0, and gets no gradient."""
        if self.labels is None:
            y = self.target_distribution(values.dtype)
            return _weighted_sum(y if class_weight is None else y * class_weight, of(values))
        one = values.new_ones(())
        share = (1 - self.smoothing) * (one if class_weight is None else class_weight[self.labels])
        index = self.labels.unsqueeze(-1)
        hit = _weighted_sum(share.expand(self.labels.shape).unsqueeze(-1), of(values.gather(-1, index)))
        if self.smoothing == 0:
            return hit
        spread = self.spread(values.dtype) * (one if class_weight is None else class_weight)
        return hit + _weighted_sum(spread if spread.ndim > 1 else spread.expand(values.shape[-1:]), of(values))

    def weighted_expectation(self, values: Tensor) -> Tensor:
        """The expectation with the class weights inside, Σ_c w_c y_c values_c, as in cross-entropy."""
        return self.expectation(values, self.class_weight)

    def cost(self, log_p: Tensor) -> Tensor:
        """The cross-entropy −Σ_c w_c y_c log p_c; 0 − 0 is 0, where −0 would be −0."""
        return 0.0 - self.weighted_expectation(log_p)

    def weigh(self, rows: Tensor) -> Tensor:
        """One weight a row, Σ_c w_c y_c, y smoothed; 0 times a loss of +∞ is 0, and times NaN it is NaN."""
        if self.class_weight is None:
            return rows
        if self.labels is not None and self.smoothing == 0:
            weight = self.class_weight[self.labels]
        else:
            weight = (self.target_distribution(self.class_weight.dtype) * self.class_weight).sum(-1)
        return rows.masked_fill((weight == 0) & (rows == math.inf), 0.0) * weight

    def reduce(self, rows: Tensor) -> Tensor:
        """The loss from one value a row, weights included; the mean is over the weights of hard targets, over rows of soft ones."""
        if self.ignored is not None:
            rows = rows.masked_fill(self.ignored, 0.0)
        if self.reduction != "none":
            rows = rows.sum()
        if self.reduction == "mean":
            rows = mean_over(rows, self.normaliser(), self.empty)
        return rows.to(self.dtype)

    def result(self, loss: Tensor) -> Any:
        """The loss as the kind of array that the scores are."""
        return like_input(loss, self.given)

    def kernel_target(self) -> Tensor:
        """The target as kernels take it, a negative label for a row that is ignored."""
        (target,) = self.targets
        if self.labels is not None and not is_concrete(target) and not is_compiling():
            target = target.where(target >= 0, self.rows.shape[-1])  # one of no class, whose value is NaN
        return target if self.ignored is None else target.masked_fill(self.ignored, -1)

    @property
    def targets(self) -> list[Tensor]:
        """The one of labels and soft that there is."""
        return [target for target in (self.labels, self.soft) if target is not None]

    def normaliser(self) -> float | Tensor:
        if self.labels is None or (self.class_weight is None and self.ignored is None):
            rows = math.prod(self.rows.shape[:-1])
            return rows.double() if isinstance(rows, Tensor) else rows  # a tensor where it is traced
        weights = (
            self.class_weight[self.labels]
            if self.class_weight is not None
            else torch.ones(self.labels.shape, device=self.labels.device)
        )
        return (weights if self.ignored is None else weights.masked_fill(self.ignored, 0.0)).sum(dtype=torch.float64)


def mean_over(sums: Tensor, weight: float | Tensor, empty: str) -> Tensor:
    """sums/weight; over nothing NaN, or 0 if `empty` is "zero" and no loss is NaN."""
    weight = weight if isinstance(weight, Tensor) else sums.new_full((), weight)
    nothing = weight == 0
    if empty == "nan":
        return sums / weight.masked_fill(nothing, math.nan)
    return (sums / weight.masked_fill(nothing, 1.0)).masked_fill(nothing & ~sums.isnan(), 0.0)


def _weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """Σ weights·values along the last axis; −∞, with the gradient of the finite values, if a value of −∞ has a weight."""
    finite = (weights * without_mask(values)).sum(-1)
    impossible = ((values == -math.inf) & (weights > 0)).any(-1)
    return finite + torch.zeros_like(finite).masked_fill(impossible, -math.inf)


def prepare(
    name: str,
    x: Any,
    target: Any,
    weight: Any,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    empty: str = "nan",
    temperature: Any = 1.0,
    where: Any = None,
    shared: bool = False,
) -> Batch:
    """Validate the arguments that all losses share, and move the classes last.

    Of scores that are `shared`, x has some: labels, probabilities and weights are checked, but not whether labels are of a class.
    """
    scores = as_scores(name, x)
    if scores.ndim == 0:
        raise ValueError(f"{name}: scores need a class axis: (C), (N, C) or (N, C, d…); got a 0-d tensor")
    ignore_index, reduction, label_smoothing = check_shared(name, ignore_index, reduction, label_smoothing)
    empty, mask = check_empty(name, empty), check_where(name, where, scores)
    class_axis = 0 if scores.ndim == 1 else 1
    shape = sizes(scores)
    classes = shape[class_axis]
    targets = check_target(name, scores, target, class_axis, ignore_index)
    if targets.dtype.is_floating_point:
        labels, soft = None, moved_last(targets.to(widened(scores).dtype), class_axis)
    else:
        labels, soft = targets.long(), None
    rows = moved_last(scores, class_axis)
    class_weight = None
    if weight is not None:
        class_weight = check_device(name, "weight", check_class_weight(name, weight, classes, widened(scores).dtype), scores)
    ignored = None
    if labels is not None:
        labels, ignored = check_labels(name, labels, None if shared else classes, ignore_index)
    if mask is not None:
        mask = moved_last(mask.expand_as(scores), class_axis)
        rows = rows.masked_fill(~mask, -math.inf)
    own = {"allowed": mask, "empty": empty}
    batch = Batch(name, rows, labels, soft, ignored, class_weight, label_smoothing, reduction, x, scores.dtype, **own)
    tau = check_per_row(name, "temperature", temperature, scores, class_axis, *scale_domain(scores.dtype))
    if is_one(tau):
        return batch
    rows = rows if ignored is None else rows.masked_fill(ignored.unsqueeze(-1), 0.0)  # whatever they hold
    tau = moved_last(tau, class_axis)
    level, rows_less = anchored(rows, tau, None)
    return replace(batch.in_double(), rows=rows_less, divided=Divided(rows.double(), tau, level))
