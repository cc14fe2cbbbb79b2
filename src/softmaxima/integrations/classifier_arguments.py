"""Checks of what a `Classifier` is given, and of what one from a file has learnt."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from softmaxima import losses
from softmaxima.integrations.pairs import FUNCTIONS, with_functions
from softmaxima.maps import find_map

if TYPE_CHECKING:
    from softmaxima.integrations.classifier import Classifier

DTYPES = (np.float64, np.float32)
OWN = {"input", "target", "weight", "reduction", "ignore_index"}  # arguments of losses that training gives


def check_parameters(model: Classifier) -> None:
    """Raise ValueError for what cannot be used, before any work."""
    if not isinstance(model.map, str):
        raise ValueError(f"map must be the name of a map, such as 'softmax', got {model.map!r}")
    properties = find_map(model.map, type(model).__name__).properties
    if properties.logarithmic or not properties.of_one_class:
        raise ValueError(f"map must give probabilities of which at most one happens, as 'softmax' does, got {model.map!r}")
    if model.loss is not None and not (isinstance(model.loss, str) and model.loss in losses.REGISTRY):
        raise ValueError(f"loss must be None or one of {', '.join(map(repr, sorted(losses.REGISTRY)))}, got {model.loss!r}")
    for name, given in (("map_params", model.map_params), ("loss_params", model.loss_params)):
        if given is not None and not isinstance(given, Mapping):
            raise ValueError(f'{name} must be a dict such as {{"alpha": 1.25}}, or None, got {given!r}')
        if isinstance(f := (given or {}).get("f"), str) and f not in FUNCTIONS:
            raise ValueError(f"{name}: f must be a function or one of {', '.join(map(repr, FUNCTIONS))}, got {f!r}")
    choices = ("head", ("linear", "cosine")), ("missing", ("refuse", "impute")), ("dtype", (None, "float32", "float64"))
    for name, allowed in choices:
        if getattr(model, name) not in allowed:
            raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {getattr(model, name)!r}")
    for name in ("batch_size", "patience", *(("epochs",) if model.epochs is not None else ())):
        if not _is_count(value := getattr(model, name)):
            raise ValueError(f"{name} must be an int of at least 1, got {value!r}")
    for name in ("temperature", *(("learning_rate",) if model.learning_rate is not None else ())):
        if not _is_between(0, value := getattr(model, name), math.inf):
            raise ValueError(f"{name} must be a positive number, got {value!r}")
    if not _is_between(0, model.validation_fraction, 1):
        raise ValueError(f"validation_fraction must be between 0 and 1, got {model.validation_fraction!r}")
    if not isinstance(model.early_stopping, bool | np.bool_):
        raise ValueError(f"early_stopping must be True or False, got {model.early_stopping!r}")
    if not isinstance(model.hidden, Sequence) or isinstance(model.hidden, str) or not all(map(_is_count, model.hidden)):
        raise ValueError(f"hidden must be the units of each hidden layer, such as (128,) or (), got {model.hidden!r}")
    _check_options(model)


def _check_options(model: Classifier) -> None:
    """Raise ValueError for parameters that the map or the loss does not have, or values that it does not take."""
    found = find_map(model.map)
    names = [parameter.name for parameter in found.params]
    if unknown := set(model.map_params or {}) - set(names):
        raise ValueError(f"map_params: {model.map} takes {', '.join(names) or 'none'}, got {min(unknown)!r}")
    if own := set(model.loss_params or {}) & OWN:
        raise ValueError(f"loss_params: {min(own)} is not taken here; give rows their weights by sample_weight of fit")
    x, target = torch.zeros(2, 2, device="cpu"), torch.tensor([0, 1], device="cpu")
    for name, evaluate in (
        ("map_params", lambda: found(x, **with_functions(model.map_params or {}))),
        ("map_params" if model.loss_params is None else "loss_params", lambda: model.pair.losses(x, target)),
    ):
        try:
            evaluate()
        except (TypeError, ValueError) as error:
            lacking = {parameter.name: parameter.default for parameter in found.params if not getattr(model, name)}
            raise ValueError(f"{name}: {error}{f'; give for instance {name}={lacking}' if lacking else ''}") from error
    if losses.REGISTRY[model.pair.loss].on_cosines and model.head != "cosine":
        raise ValueError(f"head must be 'cosine' for the loss {model.pair.loss!r}, got {model.head!r}")


def check_learnt(model: Classifier) -> None:
    """Raise ValueError where arrays are none, do not fit together, or hold what training does not leave."""
    features, indicators = model.n_features_in_, len(model.missing_)
    sizes = (features + indicators, *model.hidden, len(model.classes_))
    parts = [part for layer in model.network_ for part in layer]
    shapes = [shape for inputs, outputs in pairwise(sizes) for shape in ((outputs, inputs), (outputs,))]
    arrays = [model.missing_, model.medians_, model.mean_, model.scale_, *parts]
    wanted = [(indicators,), (features,), sizes[:1], sizes[:1], *shapes]
    if len(arrays) != len(wanted):
        raise ValueError(f"its network has {len(model.network_)} layers where hidden={model.hidden!r} has {len(sizes) - 1}")
    for array, shape in zip(arrays, wanted, strict=True):
        kinds, what = ("i", "whole numbers") if array is model.missing_ else ("if", "numbers")
        if not isinstance(array, np.ndarray) or array.dtype.kind not in kinds or array.shape != shape:
            raise ValueError(f"needs an array of {what} of the shape {shape}, got {' '.join(repr(array).split()):.80}")
    medians = [model.medians_] if model.missing == "impute" else []
    if not all(np.isfinite(array).all() for array in (*parts, model.mean_, *medians)) or not (model.scale_ > 0).all():
        raise ValueError("holds numbers that no training leaves: NaN, ∞, or a deviation of 0")
    if len({part.dtype for part in parts}) > 1 or parts[0].dtype not in DTYPES:
        raise ValueError("needs a network of float32 or of float64")
    if not all(0 <= column < features for column in model.missing_):
        raise ValueError(f"columns with missing values must be below {features}, got {model.missing_!r:.80}")


def _is_count(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1


def _is_between(low: float, value: Any, high: float) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and low < float(value) < high
