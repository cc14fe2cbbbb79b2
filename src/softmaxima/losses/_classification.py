"""What every classification loss shares, as F.cross_entropy has it: targets, class weights, smoothing, ignored rows, reductions.

A loss turns a `Batch` into one value a row; `Batch` says what the target's expectation of a row of values is, and reduces.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import math
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.compiler import is_compiling, is_dynamo_compiling

from softmaxima.base.arguments import (
    as_scores,
    as_tensor,
    check_device,
    check_dims,
    check_per_row,
    check_where,
    like_input,
    moved_last,
    scale_domain,
)
from softmaxima.base.dtensors import form_of_dtensors, is_dtensor
from softmaxima.base.modules import OptionsModule, held_value
from softmaxima.base.numbers import TEMPERATURE, check_choice, check_int, check_number
from softmaxima.base.public import public, unknown_argument
from softmaxima.base.rows import row_length, without_mask
from softmaxima.base.temperature import anchored, is_one, quotient
from softmaxima.base.tracing import is_concrete, is_exporting_to_onnx, sizes, transforming
from softmaxima.engine.blocks import Part, places
from softmaxima.engine.contract import Map
from softmaxima.engine.fused import fused, is_fusible
from softmaxima.engine.parts import again, as_given, in_parts
from softmaxima.engine.routing import is_native, kernels
from softmaxima.kernels import native
from softmaxima.kernels.devices import has_kernel
from softmaxima.losses._parts import RowForm, all_rows, bind, some_rows

REDUCTIONS = ("mean", "sum", "none")
EMPTY = ("nan", "zero")
SHARED = ("weight", "ignore_index", "reduction", "label_smoothing", "empty")  # options of all losses
OF_SCORES = ("temperature", "dim", "where")  # and of those that are not of cosines

# (rows, target, class_weight=, smoothing=, scale=, gradient=) → (the loss of each row in double, `scale` times its gradient)
RowLosses = Callable[..., tuple[Tensor, Tensor | None]]


class Evaluation(NamedTuple):
    """How a loss is made of a batch."""

    losses: RowLosses | None  # by a kernel, where there is one
    composite: Callable[[Batch], Tensor]  # the reduced loss, by differentiable operations
    others: tuple[Any, ...] = ()  # what it depends on beside the scores
    wide: bool = False  # whether the kernel takes half precision as float32
    double: bool = False  # whether all is computed in float64
    of_map: bool = False  # whether `losses` are those of `losses_of`
    absolute: bool = False  # whether it takes x/τ, and not differences over τ


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
        scores = _wide(self.rows)
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

    def evaluate(self, how: Evaluation) -> Any:
        """The reduced loss: by a kernel, where there is one, or by differentiable operations."""
        if how.double:
            return self.in_double().evaluate(how._replace(double=False))
        if how.absolute:
            return self.absolute().evaluate(how._replace(absolute=False))
        losses, composite = how.losses, how.composite
        if losses is None or not self.is_fusible(how):
            return self.result(composite(self.in_range()))
        compiling, dtype = is_compiling(), self.dtype
        # A compiler has no number to scale the gradient by, and reduces the rows itself.
        normaliser = self.normaliser() if self.reduction == "mean" and not compiling else 1.0
        if is_concrete(self.rows):
            normaliser = float(normaliser)
            if not normaliser > 0:
                return self.result(composite(self.in_range()))
        scale = 1.0 / normaliser
        target = self.kernel_target()

        def evaluate(x: Tensor, gradient: bool) -> tuple[Tensor, Tensor | None]:
            account = {"class_weight": self.class_weight, "smoothing": self.smoothing, "scale": scale}
            return losses(x, target, **account, gradient=gradient)

        def by_kernel(x: Tensor, gradient: bool) -> tuple[Tensor, Any, tuple[Tensor, ...]]:
            values, slope = evaluate(x, gradient)
            if compiling:
                value = values
            elif self.reduction == "none":
                value = values.to(dtype)
            elif is_concrete(x):
                value = torch.tensor(float(values.sum()) * float(scale), dtype=dtype, device=x.device)
            else:
                value = (values.sum() * scale).to(dtype)
            in_place = slope is not None and not compiling and not is_concrete(x)
            pull = _InPlace(lambda x: evaluate(x, True)[1]) if in_place else _scaled
            return value, pull, () if slope is None else (slope,)

        # Probabilities are not rounded to the scores' dtype.
        rows = self.rows if self.soft is None and not how.wide else _wide(self.rows)
        loss = fused(by_kernel, lambda rows: composite(replace(self, rows=rows).in_range()).to(dtype), rows)
        return self.result(self.reduce(loss) if compiling else loss)

    def is_fusible(self, how: Evaluation) -> bool:
        """Whether a kernel can make the losses; none smooths a target among some classes alone."""
        if self.allowed is not None and self.smoothing > 0:
            return False
        return how.losses is not None and is_fusible(self.rows, *self._targets, self.class_weight, *how.others)

    def kernel_target(self) -> Tensor:
        """The target as kernels take it, a negative label for a row that is ignored."""
        (target,) = self._targets
        if self.labels is not None and not is_concrete(target) and not is_compiling():
            target = target.where(target >= 0, self.rows.shape[-1])  # one of no class, whose value is NaN
        return target if self.ignored is None else target.masked_fill(self.ignored, -1)

    @property
    def _targets(self) -> list[Tensor]:
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


def reduced(
    name: str,
    map: Map,
    numbers: tuple[Any, ...] | None,
    evaluation: Callable[..., Evaluation],
    options: Mapping[str, Any],
    *shared: Any,
    fenchel: bool = False,
    margin: native.Margin = native.NO_MARGIN,
    given: str | None = None,
) -> Any:
    """The reduced loss whose gradient is the map less the target: of plain scores, labels and numbers by one call.

    `numbers` are the map's parameters, None where they are not plain; `options` what the `evaluation` of a batch takes; `shared`
    are the arguments that all losses have, in the order of `prepare`. The kernel `given`, where there is one, makes the loss of the
    map's probabilities.
    """
    general = lambda *shared: evaluated(name, evaluation, options, *shared)
    found = None if numbers is None else _of_labels(name, map, numbers, general, fenchel, margin, given, *shared)
    return general(*shared) if found is None else found


def evaluated(
    name: str,
    evaluation: Callable[..., Evaluation],
    options: Mapping[str, Any],
    input: Any,
    target: Any,
    weight: Any,
    ignore_index: Any,
    reduction: Any,
    label_smoothing: Any,
    empty: Any = "nan",
    temperature: Any = 1.0,
    dim: Any = None,
    where: Any = None,
) -> Any:
    """The reduced loss of any arguments."""
    if is_dtensor(input):
        if dim is not None or where is not None:
            what, repair = ("where", "give −∞ for scores to leave out") if dim is None else ("dim", "move the classes to axis 1")
            raise ValueError(f"{name}: {what} is not for scores that are a DTensor; {repair}")
        shared = (target, weight, ignore_index, reduction, label_smoothing, empty, temperature)
        return form_of_dtensors("loss")(name, evaluation, options, input, *shared)
    if dim is not None:
        input, target, temperature, where, options = _classes_first(name, dim, input, target, temperature, where, options)
    batch = prepare(name, input, target, weight, ignore_index, reduction, label_smoothing, empty, temperature, where)
    return batch.evaluate(evaluation(batch, **options))


def _classes_first(
    name: str, dim: Any, input: Any, target: Any, temperature: Any, where: Any, options: Mapping[str, Any]
) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
    """(scores, target, temperature, where, options), with the axes `dim` of the scores as one, where F.cross_entropy has it."""
    scores = as_scores(name, input)
    dims, shape = check_dims(name, dim, scores.ndim), sizes(scores)
    rest = [axis for axis in range(len(shape)) if axis not in dims]
    order, first = (*rest[:1], *dims, *rest[1:]), len(rest[:1])
    merged = lambda v: v.permute(order).flatten(first, first + len(dims) - 1)

    def a_row(what: str, value: Any) -> Any:
        if not isinstance(value, (Tensor, np.ndarray)):
            return value
        each = as_tensor(name, what, value)
        if each.ndim == 0 or each.ndim > len(shape):
            return each
        each = each[(None,) * (len(shape) - each.ndim)]
        if any(each.shape[axis] != 1 for axis in dims):
            raise ValueError(f"{name}: {what} must have size 1 along dim {dim} of scores of shape {shape}, got {sizes(each)}")
        return merged(each)

    y, mask = as_tensor(name, "target", target), check_where(name, where, scores)
    if y.is_floating_point():
        if sizes(y) != shape:
            raise ValueError(f"{name}: target probabilities must have the scores' shape {shape}, got {sizes(y)}")
        y = merged(y)
    return (
        like_input(merged(scores), input),
        y,
        a_row("temperature", temperature),
        None if mask is None else merged(mask.expand(shape)),
        {key: a_row(key, value) for key, value in options.items()},
    )


def _of_labels(
    name: str,
    map: Map,
    numbers: tuple[Any, ...],
    general: Callable[..., Any],
    fenchel: bool,
    margin: native.Margin,
    given: str | None,
    input: Any,
    target: Any,
    weight: Any,
    ignore_index: Any,
    reduction: Any,
    label_smoothing: Any,
    empty: Any = "nan",
    temperature: Any = 1.0,
    dim: Any = None,
    where: Any = None,
) -> Tensor | None:
    """What `CALLS` makes of it; None of all that is not plain."""
    calls, kernel = native.CALLS, map.kernel
    if (
        calls is None
        or is_dynamo_compiling()
        or kernel is None
        or dim is not None
        or where is not None
        or not isinstance(empty, str)
        or empty != "nan"
    ):
        return None
    loss, of_map = (kernel.addresses.loss, None) if given is None else (native.given_address(given), kernel.addresses.forward)
    if not loss:
        return None
    if weight is not None or not isinstance(reduction, str) or reduction not in ("mean", "sum"):
        return None
    if type(label_smoothing) is not float or not 0 <= label_smoothing <= 1 or type(temperature) is not float or temperature != 1.0:
        return None
    if label_smoothing and kernel.labels_only:
        return None
    theta = kernel.theta(*numbers) if numbers else ()
    if theta is None:
        return None
    own = (loss, input, target, theta, label_smoothing, ignore_index, fenchel, reduction == "mean", margin, of_map)
    found = calls.loss(*own, False)
    if found is None:
        return None
    if found is not NotImplemented:
        return torch.scalar_tensor(found[0], dtype=input.dtype, device="cpu")
    whole = lambda x: general(x, target, weight, ignore_index, reduction, label_smoothing)

    def with_gradient(x: Tensor, _: bool) -> tuple[Tensor, Any, tuple[Tensor, ...]]:
        found = calls.loss(*own, True)
        if found is None:  # a moment ago it was not: the other way refuses the scores, or there is no memory
            whole(x.detach())
            raise MemoryError(f"{name}: no memory for the gradient, of shape {tuple(x.shape)}")
        return torch.scalar_tensor(found[0], dtype=x.dtype, device="cpu"), _scaled, found[1:]

    return fused(with_gradient, whole, input)


def losses_of(batch: Batch, map: Map, params: Iterable[Any] = (), fenchel: bool = False) -> RowLosses | None:
    """The losses whose gradient is the map less the target, by its kernel."""
    kernel = map.kernel
    if kernel is None or not has_kernel(batch.rows.device.type, kernel.key, "loss"):
        return None
    if kernel.labels_only and (batch.soft is not None or batch.smoothing > 0):
        return None
    if (theta := kernel.theta(*params)) is None:
        return None
    return lambda x, target, **account: kernels(x).loss(kernel, x, target, theta=theta, fenchel=fenchel, **account)


def losses_given(batch: Batch, name: str, map: Map, params: Iterable[Any] = (), fenchel: bool = False) -> RowLosses | None:
    """The losses that the kernel `name` makes of the map's probabilities."""
    kernel = map.kernel
    if kernel is None or (theta := kernel.theta(*params)) is None:
        return None

    def losses(x: Tensor, target: Tensor, **account: Any) -> tuple[Tensor, Tensor | None]:
        return native.given_loss(name, native.forward(kernel, x, 1.0, None, theta), x, target, fenchel=fenchel, **account)

    return native_only(batch, losses)


def losses_of_p(
    batch: Batch, map: Map, params: Iterable[Any], of_p: Callable[[Tensor, Any], tuple[Tensor, Tensor]]
) -> RowLosses | None:
    """The losses w ℓ(p_t) of labels t by the map's kernels; of_p(p, n) = (ℓ(p), ℓ′(p)) in float64."""
    kernel = map.kernel
    if kernel is None or kernel.library is not None or batch.soft is not None or batch.smoothing > 0 or 0 in sizes(batch.rows):
        return None
    if (theta := kernel.theta(*params)) is None:
        return None

    def losses(
        x: Tensor, target: Tensor, *, class_weight: Tensor | None, smoothing: float, scale: float, gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        p = native.forward(kernel, x, 1.0, None, theta)
        label = target if batch.ignored is None else target.clamp_min(0)
        classes = batch.classes
        n = classes.squeeze(-1) if isinstance(classes, Tensor) else classes
        values, slopes = of_p(p.gather(-1, label.unsqueeze(-1)).squeeze(-1).double(), n)
        if class_weight is not None:
            weight = class_weight.double()[label]
            values = torch.where((weight == 0) & (values == math.inf), 0.0, values * weight)
            slopes = torch.where(weight == 0, 0.0, slopes * weight)
        if batch.ignored is not None:
            values = values.masked_fill(batch.ignored, 0.0)
        if not gradient:
            return values, None
        largest = torch.finfo(p.dtype).max  # of which 0 is 0
        g = (slopes * scale).clamp(-largest, largest).to(p.dtype)
        return values, native.backward_of_labels(kernel, p, g, target, x if map.uses_scores else None, theta)

    return native_only(batch, losses)


def native_only(batch: Batch, losses: RowLosses) -> RowLosses | None:
    """Losses that only the native library has, and no compiler takes."""
    return losses if is_native(batch.rows) and not is_compiling() else None


class _InPlace:
    """g · slope in the slope's own memory, which a kernel leaves as it is where g is 1: no host can see that without waiting.

    A second call, after `retain_graph`, computes the slope anew.
    """

    def __init__(self, slope: Callable[[Tensor], Any]) -> None:
        self.slope, self.is_fresh = slope, True

    def __call__(self, g: Tensor, x: Tensor, slope: Tensor) -> Tensor:
        fresh = slope if self.is_fresh else self.slope(x)
        self.is_fresh = False
        return kernels(x).scale_rows(fresh, g)


def _scaled(g: Tensor, x: Tensor, slope: Tensor) -> Tensor:
    """g · slope, and the slope itself where g is the 1 that backward() starts from.

    Whoever gets it may change it in place, so it is a copy while the graph, and the slope with it, stays for another backward().
    """
    if g.ndim == 0 and not is_compiling() and float(g) == 1.0:
        return slope.clone() if torch._C._autograd._get_current_graph_task_keep_graph() else slope  # type: ignore[attr-defined]
    return slope * g.to(slope.dtype).unsqueeze(-1)


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
        labels, soft = None, moved_last(targets.to(_wide(scores).dtype), class_axis)
    else:
        labels, soft = targets.long(), None
    rows = moved_last(scores, class_axis)
    class_weight = None
    if weight is not None:
        class_weight = check_device(name, "weight", check_class_weight(name, weight, classes, _wide(scores).dtype), scores)
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


def check_target(name: str, scores: Tensor, target: Any, class_axis: int, ignore_index: int) -> Tensor:
    """Class indices, one a row, or probabilities of the shape of the scores."""
    targets = check_device(name, "target", as_tensor(name, "target", target), scores)
    shape = sizes(scores)
    hard_shape = shape[:class_axis] + shape[class_axis + 1 :]
    if targets.dtype.is_floating_point:
        check_soft(name, scores, targets, ignore_index)
    elif targets.dtype == torch.bool or targets.is_complex() or sizes(targets) != hard_shape:
        repair = "; one-hot labels need target.float()" if sizes(targets) == shape and not targets.is_complex() else ""
        if targets.dtype == torch.bool and sizes(targets) == hard_shape:
            repair = "; classes 0 and 1 need target.long()"
        raise ValueError(
            f"{name}: target must hold class indices of shape {hard_shape}, or probabilities of shape {tuple(scores.shape)}; "
            f"got {targets.dtype} of shape {tuple(targets.shape)}{repair}"
        )
    return targets


def check_shared(name: str, ignore_index: Any, reduction: Any, label_smoothing: Any) -> tuple[int, str, float]:
    """The options that all losses have."""
    return (
        check_int(name, "ignore_index", ignore_index),
        check_choice(name, "reduction", reduction, REDUCTIONS),
        check_number(name, "label_smoothing", label_smoothing, lambda share: 0.0 <= share <= 1.0, "in [0, 1]"),
    )


def check_empty(name: str, empty: Any) -> str:
    """What the mean over nothing is."""
    return check_choice(name, "empty", empty, EMPTY)


def check_class_weight(
    name: str, weight: Any, classes: int | None, dtype: torch.dtype | None = None, what: str = "weight", first: int = 0
) -> Tensor:
    """Floating-point numbers [classes], finite in a dtype and not negative; of any number, they are those from class `first` on."""
    if isinstance(weight, (str, Real)):
        raise TypeError(f"{name}: {what} must hold one number for each class, got {weight!r}; pass other options by name")
    values = as_tensor(name, what, weight)
    if values.ndim != 1 or classes not in (None, *sizes(values)) or not values.is_floating_point():
        of = "class" if classes is None else f"of the {classes} classes"
        raise ValueError(
            f"{name}: {what} must hold one floating-point number for each {of}, got {values.dtype} of shape {tuple(values.shape)}"
        )
    given, values = values, values if dtype is None else values.to(dtype)
    if is_concrete(values):
        wrong = ~((values >= 0) & (values < math.inf))  # True for NaN
        if bool(wrong.any()):
            place = int(wrong.nonzero()[0])
            got = float(given[place])
            beyond = f", beyond {values.dtype}," if math.isfinite(got) and got > 0 else ""
            raise ValueError(f"{name}: {what} must be finite and not negative, got {got}{beyond} for class {first + place}")
    return values


@torch.library.custom_op("softmaxima::labels_in_range", mutates_args=())
def _labels_in_range(name: str, labels: Tensor, classes: int) -> Tensor:
    """A copy of the labels, each of which must be one of the classes."""
    _refuse_others(name, labels, classes)
    return labels.clone(memory_format=torch.contiguous_format)


@_labels_in_range.register_fake
def _(name: str, labels: Tensor, classes: int) -> Tensor:
    return labels.new_empty(labels.shape)


def _refuse_others(name: str, labels: Tensor, classes: int) -> None:
    out_of_range = (labels < 0) | (labels >= classes)
    if bool(out_of_range.any()):
        label = int(labels[out_of_range][0])
        repair = f"ignore_index={label} leaves its rows out"
        raise IndexError(f"{name}: target {label} is out of range for {classes} classes; {repair}")


def check_labels(name: str, labels: Tensor, classes: int | None, ignore_index: int) -> tuple[Tensor, Tensor | None]:
    """(labels, 0 where they are ignored; where that is, None for nowhere); any label where the classes are not known."""
    if classes is not None and is_concrete(labels) and labels.numel() and not 0 <= ignore_index < classes:
        lowest, highest = labels.aminmax()
        if int(lowest) >= 0 and int(highest) < classes:
            return labels, None
    ignored = labels == ignore_index
    labels = labels.masked_fill(ignored, 0)
    if is_concrete(labels):
        if classes is not None:
            _refuse_others(name, labels, classes)
        return labels, ignored if bool(ignored.any()) else None
    if classes is not None and is_compiling() and labels.is_cpu and not (transforming() or is_exporting_to_onnx()):
        labels = _labels_in_range(name, labels, classes)  # which the kernels rely on
    return labels, ignored


def _wide(scores: Tensor) -> Tensor:
    return scores.float() if scores.dtype in (torch.bfloat16, torch.float16) else scores


def check_soft(name: str, scores: Tensor, targets: Tensor, ignore_index: int) -> None:
    if sizes(targets) != sizes(scores):
        raise ValueError(
            f"{name}: target probabilities must have the scores' shape {tuple(scores.shape)}, got {tuple(targets.shape)}; "
            "class indices must be integers"
        )
    if ignore_index >= 0:
        raise ValueError(
            f"{name}: ignore_index works with class indices, not with probabilities; leave those rows out of scores and target"
        )
    if is_concrete(targets) and bool((targets < 0).any()):
        raise ValueError(f"{name}: target probabilities must not be negative, got {float(targets.min())}")


def check_sums(name: str, mass: Tensor) -> None:
    """The target of a Fenchel–Young loss is a distribution."""
    wrong = (mass - 1).abs() > 1e-2
    if bool(wrong.any()):
        got = float(mass[wrong].flatten()[0])
        repair = "divide each row by its sum" if got else "leave out rows that have no target"
        raise ValueError(f"{name}: each row of target probabilities must sum to 1, got one that sums to {got:.6g}; {repair}")


def as_labels(name: str, target: Any) -> Tensor:
    """Class indices of rows in parts."""
    labels = as_tensor(name, "target", target)
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(
            f"{name}: target must hold class indices, or be a list of the probabilities of each part, got {labels.dtype}"
        )
    return labels.long()


@public
class LossModule(OptionsModule):
    """A loss as a module. Subclasses name the function that they mirror.

    `weight` is a buffer; parameters of the loss may be numbers, tensors or modules such as `Positive`. Raises TypeError or
    ValueError at once for an option that the loss does not take, or a value that it would refuse.

    >>> import torch, softmaxima as sm
    >>> sm.SparsemaxLoss(weight=torch.ones(3), reduction="sum")
    SparsemaxLoss(weight=Tensor(3,), ignore_index=-100, reduction='sum', label_smoothing=0.0)
    """

    function: Callable[..., Tensor]

    def __init__(
        self,
        weight: Tensor | None = None,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        empty: str = "nan",
        **options: Any,
    ) -> None:
        name = type(self).__name__
        if check_empty(name, empty) != "nan":
            options["empty"] = empty
        self.check_names(options)
        if weight is not None:
            weight = check_class_weight(name, weight, None)
        ignore_index, reduction, label_smoothing = check_shared(name, ignore_index, reduction, label_smoothing)
        if "temperature" in options:
            options["temperature"] = held_value(name, "temperature", options["temperature"], *TEMPERATURE)
        super().__init__(weight=weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing, **options)

    @classmethod
    def check_names(cls, options: Iterable[str]) -> None:
        """That the function has such options."""
        known = inspect.signature(cls.function).parameters
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
        for unknown in () if takes_any else {*options} - known.keys():
            raise unknown_argument(cls.__name__, unknown, [*known][2:])

    def forward(self, input: Tensor, target: Tensor, where: Tensor | None = None) -> Tensor:
        """The loss; `where` is that of this batch."""
        of_batch = {} if where is None else {"where": where}
        return type(self).function(input, target, **{**self.options, **of_batch})


@public
@dataclass(frozen=True, eq=False)
class Loss:
    """What a loss claims; the tests hold it to every claim.

    reference(z, y, **options): the literal definition: one value a row of scores z and target probabilities y, [rows, classes] in
        float64 each, differentiable by z; the options are all that the loss has of its own. Tests and benchmarks compare with it,
        and a loss without one is not timed.
    map: that with ∂L/∂x = map(x) − y, None where the gradient has another form.
    evaluation(batch, **options): how it is made of a batch.
    examples: the option sets that tests and benchmarks iterate.

    >>> import softmaxima as sm
    >>> sm.losses.REGISTRY["entmax15_loss"].map
    'entmax15'
    """

    name: str
    function: Callable[..., Any]
    module: type[LossModule]
    evaluation: Callable[..., Evaluation]
    reference: Callable[..., Tensor] | None = None
    map: str | None = None
    examples: tuple[dict[str, Any], ...] = ({},)
    nonnegative: bool = True
    zero_at_target: bool = False  # L = 0 where p = y
    row_form: RowForm | None = None  # how it is made of rows in parts, None where it is not
    on_cosines: bool = False
    own_options: dict[str, Any] = field(init=False, repr=False)  # with their defaults
    takes_any: bool = field(init=False, repr=False)  # whether it takes others too, which are a map's

    def __post_init__(self) -> None:
        known = inspect.signature(self.function).parameters.values()
        shared = SHARED if self.on_cosines else SHARED + OF_SCORES
        own = {p.name: p.default for p in known if p.kind is p.KEYWORD_ONLY and p.name not in shared}
        object.__setattr__(self, "own_options", own)
        object.__setattr__(self, "takes_any", any(p.kind is p.VAR_KEYWORD for p in known))

    def __reduce__(self) -> Any:
        if REGISTRY.get(self.name) is not self:
            raise pickle.PicklingError(
                f"{self.name}: only a registered loss can be pickled; call register(loss) where it is defined"
            )
        return _registered, (self.function.__module__, self.name)

    def __deepcopy__(self, memo: Any) -> Loss:
        return self

    @property
    def is_of_log(self) -> bool:
        """Whether it is −Σ_c y_c log p_c of its map."""
        form = self.row_form
        return self.map is not None and form is not None and not form.fenchel and form.of_p is None

    def in_parts(
        self,
        parts: Iterable[Any],
        target: Any,
        weight: Any = None,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        empty: str = "nan",
        temperature: float | Tensor = 1.0,
        **options: Any,
    ) -> tuple[Any, list[Any]]:
        """(the loss, its gradient by the scores of each part), of rows whose classes come in parts, the last axis.

        Args:
            parts: arrays [..., n], one after the other, or what `sm.in_parts(…).part(…)` makes; not an iterator, for they are read
                several times.
            target: labels [...], the places of classes in the rows; or a list of the target probabilities of each part.
            weight, ignore_index, reduction, label_smoothing, empty, options: as the loss has them. `temperature` divides scores.

        Raises ValueError for a loss that has no form in parts, and for labels that are no place in them. Cost: two reads of the
        parts more than the map's probabilities take, or three where the loss is no value whose gradient is the map; of rows that
        are ignored nothing.

        >>> import torch, softmaxima as sm
        >>> x = torch.tensor([[0.0, 1.0, 3.0]])
        >>> sm.losses.REGISTRY["sparsemax_loss"].in_parts([x[:, :2], x[:, 2:]], torch.tensor([1]))
        (tensor(2.), [tensor([[ 0., -1.]]), tensor([[1.]])])
        """
        name, empty = self.name, check_empty(self.name, empty)
        ignore_index, reduction, label_smoothing = check_shared(name, ignore_index, reduction, label_smoothing)
        options = self.complete(options)
        soft = isinstance(target, (list, tuple))
        again(parts, 2, name)
        plain = in_parts("softmax")
        n = sum(part.x.shape[-1] for part in plain.parts(parts))
        own = bind(name, self.row_form, n, soft, label_smoothing, ignore_index, temperature, options)
        rows, labels, shape = own.rows, None if soft else as_labels(name, target), ()
        first = next(iter(rows.parts(parts)))
        weights, some = None if weight is None else check_class_weight(name, weight, n), None
        if labels is not None:
            own.check_labels(first.x, labels)
            counts, shape = labels != ignore_index, sizes(labels)
            if not bool(counts.all()):  # rows that are ignored are left out
                some = counts.flatten().nonzero().squeeze(-1)
                own, labels = own.of_rows(shape, some), labels.flatten()[some]

        def chunks() -> Iterator[tuple[Part, Tensor, Tensor | None]]:
            targets = (as_tensor(name, "target", y) for y in target) if soft else itertools.repeat(labels)
            for part, y in zip(rows.parts(parts), targets, strict=soft):
                if soft:
                    check_soft(name, part.x, y, ignore_index)  # type: ignore[arg-type]
                if some is not None:
                    part = Part(some_rows(part.x, some, shape), own.rows.tau, some_rows(part.first, some, shape))
                yield part, y, None if weights is None else weights[places(part)]  # type: ignore[misc]

        targets = own.targets(chunks)
        counted = torch.ones_like(targets.mass)
        if labels is not None and not bool((targets.mass == counted).all()):
            wrong = labels[(targets.mass != counted).squeeze(-1)].flatten()[0]
            raise ValueError(
                f"{name}: each label must be the place of one score in the parts, whose `first` says where they begin; "
                f"got {int(wrong)}"
            )
        if soft and own.form.fenchel:
            check_sums(name, targets.mass.squeeze(-1))
        value, gradients = own.evaluate(chunks, targets)
        slopes = list(gradients)
        scale = value.new_ones(())
        if reduction == "mean":
            scale = mean_over(scale, (counted if soft or weights is None else targets.counted).sum(dtype=torch.float64), empty)
        value = value if reduction == "none" else value.sum() * scale
        slopes = [torch.where(v == 0, 0.0, v * scale) for v in slopes]  # also where no row counts
        if some is not None:
            value = all_rows(value, some, shape) if reduction == "none" else value
            slopes = [all_rows(v, some, shape) for v in slopes]
        return as_given(value, None, first), [as_given(v, None, part) for v, part in zip(slopes, rows.parts(parts), strict=True)]

    def complete(self, options: Mapping[str, Any], name: str | None = None) -> dict[str, Any]:
        """The options that the loss has of its own, defaults filled in; `name` is of what is called, if it is not the loss."""
        own = self.own_options
        for unknown in () if self.takes_any else options.keys() - own.keys():
            raise unknown_argument(name or self.name, unknown, own, f"loss {self.name!r}")
        return {**own, **options}


REGISTRY: dict[str, Loss] = {}


def _registered(module: str, name: str) -> Loss:
    """The loss that importing the module registers, as a pickled map."""
    importlib.import_module(module)
    return REGISTRY[name]


def register(loss: Loss) -> Loss:
    """Add a loss to `losses.REGISTRY`, which tests and benchmarks iterate."""
    if loss.name in REGISTRY:
        raise ValueError(f"register: a loss named {loss.name!r} exists already; choose another name")
    REGISTRY[loss.name] = loss
    return loss
