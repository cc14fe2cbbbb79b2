"""Checks of the arguments that losses share: targets, class weights, smoothing, reduction."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from softmaxima.base.arguments import as_tensor, check_device
from softmaxima.base.numbers import check_choice, check_int, check_number
from softmaxima.base.tracing import is_concrete, is_exporting_to_onnx, sizes, transforming

REDUCTIONS = ("mean", "sum", "none")
EMPTY = ("nan", "zero")


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


def widened(scores: Tensor) -> Tensor:
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
