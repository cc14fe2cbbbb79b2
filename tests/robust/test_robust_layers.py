"""Layers are bounded as they compute, or refused; what is given is not written over."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize, prune, spectral_norm, weight_norm

from conftest import normal
from softmaxima import robust

X = normal(3, 4)
BOUNDS: dict[str, Callable[[nn.Module], Any]] = {
    "lipschitz_bound": robust.lipschitz_bound,
    "interval_bound_propagation": lambda model: robust.interval_bound_propagation(model, X - 0.1, X + 0.1),
}
bounds = pytest.mark.parametrize("bound", BOUNDS.values(), ids=BOUNDS)


def linear() -> nn.Linear:
    return nn.Linear(4, 4, dtype=torch.float64)


def hooked(kind: str) -> nn.Module:
    layer = linear()
    getattr(layer, kind)(lambda *given: None)
    return layer


def of_weight_norm() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return weight_norm(linear())


def with_own_forward() -> nn.Module:
    layer = linear()
    layer.forward = cast(Any, lambda x: 10 * x)
    return layer


def parametrised() -> nn.Module:
    layer = linear()
    parametrize.register_parametrization(layer, "weight", nn.Tanh())
    return layer


def with_numbers(layer: nn.Module, what: str, number: float) -> nn.Module:
    cast(torch.Tensor, getattr(layer, what)).data[0] = number
    return layer


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "weight_norm": (of_weight_norm, "model must have no hooks.* got Linear with some; remove them"),
    "spectral_norm": (lambda: spectral_norm(linear()), "no hooks"),
    "prune": (lambda: prune.l1_unstructured(linear(), "weight", 0.5), "no hooks.*prune.remove"),
    "forward hook": (lambda: hooked("register_forward_hook"), "no hooks"),
    "forward hook before": (lambda: hooked("register_forward_pre_hook"), "no hooks"),
    "hook of a sequence": (lambda: hook_of_a_sequence(), "no hooks.* got Sequential with some"),
    "forward": (with_own_forward, "forward pass of its class, got Linear with one of its own; del layer.forward"),
    "parametrised": (parametrised, "no subclass"),
    "NaN weight": (
        lambda: with_numbers(linear(), "weight", math.nan),
        "weight of Linear must be finite, got 4 numbers that are not",
    ),
    "infinite bias": (lambda: with_numbers(linear(), "bias", math.inf), "bias of Linear must be finite, got 1 number that is not"),
    "LeakyReLU(nan)": (lambda: nn.LeakyReLU(math.nan), "numbers of a layer must not be NaN, got LeakyReLU"),
    "ELU(nan)": (lambda: nn.ELU(math.nan), "numbers of a layer must not be NaN, got ELU"),
    "ELU of a tensor": (lambda: nn.ELU(cast(Any, torch.tensor(math.nan))), "alpha of ELU must be finite, got 1 number that is not"),
    "Softplus(0)": (lambda: nn.Softplus(0.0, 40.0), "got Softplus"),
    "Softplus(nan)": (lambda: nn.Softplus(math.nan, 40.0), "numbers of a layer must not be NaN"),
    "Softplus to nan": (lambda: nn.Softplus(1.0, math.nan), "numbers of a layer must not be NaN"),
    "no module": (lambda: cast(Any, lambda x: x), "model must be a torch.nn.Module, got function"),
}


def hook_of_a_sequence() -> nn.Module:
    model = nn.Sequential(linear())
    model.register_forward_hook(cast(Any, lambda layer, given, result: 5 * result))
    return model


@bounds
@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_a_layer_that_is_not_what_its_class_says_is_refused(bound: Callable[[nn.Module], Any], make: Any, message: str):
    for model in (make(), nn.Sequential(nn.ReLU(), make())) if isinstance(make(), nn.Module) else (make(),):
        with pytest.raises((TypeError, ValueError), match=message):
            bound(model)


@bounds
def test_a_hook_of_all_modules_is_refused(bound: Callable[[nn.Module], Any]):
    handle = nn.modules.module.register_module_forward_hook(lambda *given: None)
    try:
        with pytest.raises(TypeError, match="no hooks"):
            bound(linear())
    finally:
        handle.remove()


@bounds
def test_what_was_pruned_for_good_is_bounded(bound: Callable[[nn.Module], Any]):
    bound(prune.remove(prune.l1_unstructured(linear(), "weight", 0.5), "weight"))


@pytest.mark.parametrize("function", [nn.ReLU, nn.ReLU6, nn.Hardtanh, nn.LeakyReLU, nn.ELU])
def test_layers_in_place_leave_what_is_given(function: Callable[..., nn.Module]):
    literal, model = (nn.Sequential(nn.Flatten(), function(inplace=inplace), linear()) for inplace in (False, True))
    model.load_state_dict(literal.state_dict())
    low, high = X - 0.1, X + 0.1
    ends = robust.interval_bound_propagation(model, low, high)
    assert torch.equal(low, X - 0.1)
    assert torch.equal(high, X + 0.1)
    for end, expected in zip(ends, robust.interval_bound_propagation(literal, low, high), strict=True):
        assert torch.equal(end, expected)
    x = X.clone()
    found = robust.attack(model, x, torch.tensor([0, 1, 2]), 0.1, limits=None, steps=3)
    assert torch.equal(x, X)
    assert torch.equal(found.inputs, robust.attack(literal, X, torch.tensor([0, 1, 2]), 0.1, limits=None, steps=3).inputs)


@pytest.mark.parametrize("where", [torch.no_grad, torch.inference_mode])
def test_attacks_are_found_where_there_are_no_gradients(where: Callable[[], Any]):
    model, target = linear(), torch.tensor([0, 1, 2])
    expected = robust.attack(model, X, target, 0.5, limits=None, steps=3, loss="cross_entropy")
    with where():
        found = robust.attack(model, X + 0, target + 0, 0.5, limits=None, steps=3, loss="cross_entropy")
    assert torch.equal(found.inputs, expected.inputs)
    assert torch.equal(found.misled, expected.misled)


ARRAY = np.zeros((3, 4))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: robust.interval_bound_propagation(linear(), cast(Any, ARRAY), cast(Any, ARRAY)), TypeError,
         r"lower must be a torch.Tensor, got ndarray; call torch.as_tensor\(lower\)"),
        (lambda: robust.interval_bound_propagation(linear(), X[:, :3], X[:, :3]), ValueError,
         r"takes \[rows, 4\] of torch.float64 on cpu, got ends of shape \(3, 3\)"),
        (lambda: robust.interval_bound_propagation(linear(), X[0, 0], X[0, 0]), ValueError, r"got ends of shape \(\)"),
        (lambda: robust.interval_bound_propagation(linear(), X.float(), X.float()), ValueError, "got ends of torch.float32 on cpu"),
        (lambda: robust.is_certified(X + 1, X, 0), ValueError, "lower must be at most upper, got 12 that are above it"),
        (lambda: robust.attack(linear(), cast(Any, ARRAY), torch.zeros(3).long(), 0.1), TypeError, "inputs must be a torch.Tensor"),
        (lambda: robust.attack(linear(), X, torch.zeros(3).long(), 0.1, limits=None, advanced=cast(Any, None)), TypeError,
         "advanced must be a function that takes nothing, got None"),
        (lambda: robust.attack(lambda x: x * math.nan, X, torch.zeros(3).long(), 0.1, limits=None), ValueError,
         "model gives NaN for 3 of 3 inputs as they are"),
        (lambda: robust.attack(linear(), 0 * X, linear_target(), 0.1, limits=None, loss=lambda s, t: s[:, 0] * 0 + math.inf),
         ValueError, r"loss is \+∞ where the model is right"),
        (lambda: robust.fit_detector(torch.tensor(1.0)), ValueError, "at least two allowed classes, got 1 that have not"),
        (lambda: robust.certified_radius(X, norm=cast(Any, "inf")), ValueError, "norm must be 1, 2 or math.inf, got 'inf'"),
        (lambda: robust.certified_radius(X, norm=cast(Any, "2")), ValueError, "norm must be 1, 2 or math.inf, got '2'"),
    ],
)  # fmt: skip
def test_what_layers_and_attacks_refuse(call: Any, error: type[Exception], message: str):
    torch.manual_seed(0)
    with pytest.raises(error, match=message):
        call()


def linear_target() -> torch.Tensor:
    """What `linear` makes of zeros, of the same seed."""
    torch.manual_seed(0)
    target = linear()(0 * X).argmax(1)
    torch.manual_seed(0)
    return target


def test_of_rows_that_tie_none_is_suspected():
    scores = torch.tensor([[1.0, 0.0]]).expand(20, 2)
    assert not robust.fit_detector(scores, "margin", 0.5)(scores).any()
    assert robust.Detector("margin", 1.0)(torch.tensor(0.5)).tolist() is False
