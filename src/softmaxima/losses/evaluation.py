"""How a loss is evaluated: plain labels by one call, anything else as a batch, by a kernel or by differentiable operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.compiler import is_compiling, is_dynamo_compiling

from softmaxima.base.arguments import as_scores, as_tensor, check_dims, check_where, like_input
from softmaxima.base.dtensors import form_of_dtensors, is_dtensor
from softmaxima.base.tracing import is_concrete, sizes
from softmaxima.engine.contract import Map
from softmaxima.engine.fused import fused, is_fusible
from softmaxima.engine.routing import kernels
from softmaxima.kernels import native
from softmaxima.losses.arguments import widened
from softmaxima.losses.batch import Batch, prepare
from softmaxima.losses.row_losses import RowLosses


class Evaluation(NamedTuple):
    """How a loss is made of a batch."""

    losses: RowLosses | None  # by a kernel, where there is one
    composite: Callable[[Batch], Tensor]  # the reduced loss, by differentiable operations
    others: tuple[Any, ...] = ()  # what it depends on beside the scores
    wide: bool = False  # whether the kernel takes half precision as float32
    double: bool = False  # whether all is computed in float64
    of_map: bool = False  # whether `losses` are those of `losses_of`
    absolute: bool = False  # whether it takes x/τ, and not differences over τ


def evaluate_batch(batch: Batch, how: Evaluation) -> Any:
    """The reduced loss: by a kernel, where there is one, or by differentiable operations."""
    if how.double:
        return evaluate_batch(batch.in_double(), how._replace(double=False))
    if how.absolute:
        return evaluate_batch(batch.absolute(), how._replace(absolute=False))
    losses, composite = how.losses, how.composite
    if losses is None or not is_by_kernel(batch, how):
        return batch.result(composite(batch.in_range()))
    compiling, dtype = is_compiling(), batch.dtype
    # A compiler has no number to scale the gradient by, and reduces the rows itself.
    normaliser = batch.normaliser() if batch.reduction == "mean" and not compiling else 1.0
    if is_concrete(batch.rows):
        normaliser = float(normaliser)
        if not normaliser > 0:
            return batch.result(composite(batch.in_range()))
    scale = 1.0 / normaliser
    target = batch.kernel_target()

    def evaluate(x: Tensor, gradient: bool) -> tuple[Tensor, Tensor | None]:
        account = {"class_weight": batch.class_weight, "smoothing": batch.smoothing, "scale": scale}
        return losses(x, target, **account, gradient=gradient)

    def by_kernel(x: Tensor, gradient: bool) -> tuple[Tensor, Any, tuple[Tensor, ...]]:
        values, slope = evaluate(x, gradient)
        if compiling:
            value = values
        elif batch.reduction == "none":
            value = values.to(dtype)
        elif is_concrete(x):
            value = torch.tensor(float(values.sum()) * float(scale), dtype=dtype, device=x.device)
        else:
            value = (values.sum() * scale).to(dtype)
        in_place = slope is not None and not compiling and not is_concrete(x)
        pull = _InPlace(lambda x: evaluate(x, True)[1]) if in_place else _scaled
        return value, pull, () if slope is None else (slope,)

    # Probabilities are not rounded to the scores' dtype.
    rows = batch.rows if batch.soft is None and not how.wide else widened(batch.rows)
    loss = fused(by_kernel, lambda rows: composite(replace(batch, rows=rows).in_range()).to(dtype), rows)
    return batch.result(batch.reduce(loss) if compiling else loss)


def is_by_kernel(batch: Batch, how: Evaluation) -> bool:
    """Whether a kernel can make the losses; none smooths a target among some classes alone."""
    if batch.allowed is not None and batch.smoothing > 0:
        return False
    return how.losses is not None and is_fusible(batch.rows, *batch.targets, batch.class_weight, *how.others)


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
    return evaluate_batch(batch, evaluation(batch, **options))


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
