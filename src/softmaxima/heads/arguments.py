"""Checks that all heads share: hidden states [..., features], the layer's weight [classes, features] and bias, and labels [...]."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.arguments import as_scores, as_tensor, check_device
from softmaxima.base.public import unknown_argument
from softmaxima.base.tracing import sizes
from softmaxima.losses.arguments import check_labels


def check_hidden(name: str, hidden: Any, features: int | None = None) -> Tensor:
    """Hidden states [..., features] of a floating dtype."""
    states = as_scores(name, hidden, "hidden")
    if states.ndim == 0:
        raise ValueError(f"{name}: hidden must be (…, features), got a 0-d tensor; give hidden.reshape(1)")
    if features is not None and sizes(states)[-1] != features:
        raise ValueError(f"{name}: hidden must have {features} features on its last axis, got shape {sizes(states)}")
    return states


def as_rows_of(x: Tensor) -> Tensor:
    """[..., n] as [rows, n], of as many rows as there are where a graph that was traced runs."""
    return x.flatten(0, -2) if x.ndim > 1 else x.unsqueeze(0)


def check_weight(name: str, weight: Any, hidden: Tensor) -> Tensor:
    """The weight of a linear layer, [classes, features] as torch.nn.Linear has it, of the dtype and on the device of hidden."""
    layer = check_device(name, "weight", as_scores(name, weight, "weight"), hidden)
    features = sizes(hidden)[-1]
    if layer.ndim != 2 or sizes(layer)[1] != features:
        turned = layer.ndim == 2 and sizes(layer)[0] == features
        repair = "; call weight.T" if turned else ""
        raise ValueError(
            f"{name}: weight must be (classes, {features}) for hidden of shape {sizes(hidden)}, got {sizes(layer)}{repair}"
        )
    if layer.dtype != hidden.dtype:
        raise TypeError(f"{name}: weight must be {hidden.dtype} as hidden is, got {layer.dtype}; call weight.to(hidden.dtype)")
    return layer


def check_bias(name: str, bias: Any, weight: Tensor) -> Tensor | None:
    """One number a class, of the dtype of the weight."""
    if bias is None:
        return None
    column = check_device(name, "bias", as_scores(name, bias, "bias"), weight)
    if sizes(column) != sizes(weight)[:1]:
        classes = sizes(weight)[0]
        raise ValueError(f"{name}: bias must hold one number for each of the {classes} classes, got shape {sizes(column)}")
    if column.dtype != weight.dtype:
        raise TypeError(f"{name}: bias must be {weight.dtype} as weight is, got {column.dtype}; call bias.to(weight.dtype)")
    return column


def check_targets(name: str, target: Any, hidden: Tensor, classes: int | None, ignore_index: int) -> tuple[Tensor, Tensor | None]:
    """(labels of hidden's shape but for its last axis, 0 where they are ignored; where that is, None for nowhere)."""
    return check_labels(name, check_indices(name, target, hidden).long(), classes, ignore_index)


def check_indices(name: str, target: Any, hidden: Tensor) -> Tensor:
    """Integers of hidden's shape but for its last axis."""
    labels = check_device(name, "target", as_tensor(name, "target", target), hidden)
    shape = sizes(hidden)[:-1]
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool or sizes(labels) != shape:
        raise ValueError(
            f"{name}: target must hold class indices of shape {shape}, hidden's but for its last axis; got {labels.dtype} of shape "
            f"{sizes(labels)}"
        )
    return labels


def check_options(name: str, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Those of a module that go to a function of (hidden, weight, target, *, …)."""
    parameters = inspect.signature(function).parameters.values()
    known = sorted(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
    for unknown in options.keys() - known:
        raise unknown_argument(name, unknown, known)
