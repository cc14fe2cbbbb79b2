"""Bounds through networks hold of what networks compute, in their dtype, and certify what no attack breaks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from conftest import normal
from softmaxima import robust

RISING = (
    nn.ReLU(), nn.ReLU6(), nn.Hardtanh(), nn.Tanh(), nn.Sigmoid(), nn.Softsign(), nn.ELU(2.0), nn.LeakyReLU(), nn.Softplus(),
    nn.Identity(), nn.Dropout().eval(),
)  # fmt: skip


def network(function: nn.Module, dtype: torch.dtype, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 16), function, nn.Sequential(nn.Linear(16, 3, bias=False), function)).to(dtype)


@pytest.mark.parametrize("function", RISING, ids=lambda function: type(function).__name__)
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [0.0, 1e-7, 0.1, 30.0])
def test_no_inputs_within_the_ends_give_scores_outside(function: nn.Module, kind: torch.dtype, width: float):
    model = network(function, kind)
    low = normal(20, 6, scale=10.0).to(kind)
    high = low + width * normal(20, 6, seed=1).abs().to(kind)
    lower, upper = robust.interval_bound_propagation(model, low, high)
    for seed in range(20):
        share = torch.rand(20, 6, generator=torch.Generator().manual_seed(seed)).to(kind)
        share = share.round() if seed % 2 else share
        scores = model(torch.minimum(torch.maximum(low + share * (high - low), low), high))
        assert ((lower <= scores) & (scores <= upper)).all()


def test_one_layer_is_bounded_tightly():
    layer = nn.Linear(5, 4, dtype=torch.float64)
    low, high = normal(10, 5), normal(10, 5) + 0.5
    ends = robust.interval_bound_propagation(layer, low, high)
    weight = layer.weight
    most = weight.clamp_min(0) @ high.unsqueeze(-1) + weight.clamp_max(0) @ low.unsqueeze(-1)
    torch.testing.assert_close(ends[1], most.squeeze(-1) + layer.bias, rtol=0, atol=1e-12)
    torch.testing.assert_close(-robust.interval_bound_propagation(layer, -high, -low)[0] + 2 * layer.bias, ends[1])


def test_what_is_certified_no_attack_breaks_and_the_bounds_can_be_trained_on():
    model = network(nn.ReLU(), torch.float32)
    x = normal(200, 6, dtype=torch.float32)
    target = model(x).argmax(-1)
    lower, upper = robust.interval_bound_propagation(model, x - 0.02, x + 0.02)
    certified = robust.is_certified(lower, upper, target)
    assert 0.1 < certified.float().mean() < 1
    assert not (certified & robust.attack(model, x, target, 0.02, limits=None).misled).any()
    (-robust.interval("log_softmax", lower, upper).lower.gather(1, target.unsqueeze(1)).mean()).backward()
    weight: Any = model[1].weight
    assert weight.grad.abs().sum() > 0


def test_a_softplus_is_bounded_where_it_falls():
    at = torch.tensor([[20.0]], dtype=torch.float64)
    lower, upper = robust.interval_bound_propagation(nn.Softplus(), at - 1e-12, at + 1e-12)
    scores = nn.Softplus()(torch.linspace(-1e-12, 1e-12, 101, dtype=torch.float64) + at)
    assert lower.item() <= scores.min().item() <= scores.max().item() <= upper.item()


def test_ties_nan_arrays_and_axes_are_certified_or_not():
    low = np.array([[1.0, 0.0], [1.0, 0.0], [math.nan, 0.0]])
    high = np.array([[2.0, 0.9], [2.0, 1.0], [math.nan, 0.5]])
    assert robust.is_certified(low, high, 0).tolist() == [True, False, False]
    assert robust.is_certified(low.T, high.T, 0, 0).tolist() == [True, False, False]
    assert robust.is_certified(low[:1, :1], high[:1, :1], 0).tolist() == [True]


X = normal(2, 4)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: robust.interval_bound_propagation(nn.Conv2d(1, 1, 1), X, X), TypeError, "no subclass, got Conv2d"),
        (lambda: robust.interval_bound_propagation(nn.Dropout(), X, X), TypeError, "got Dropout"),
        (lambda: robust.interval_bound_propagation(nn.GELU(), X, X), TypeError, "got GELU"),
        (lambda: robust.interval_bound_propagation(nn.LeakyReLU(-1.0), X, X), TypeError, "got LeakyReLU"),
        (
            lambda: robust.interval_bound_propagation(nn.ReLU(), X, X - 1),
            ValueError,
            "got 8 that are above it, by up to 1; exchange them",
        ),
        (lambda: robust.interval_bound_propagation(nn.ReLU(), X, X[:1]), ValueError, r"got \(2, 4\) of torch.float64 and \(1, 4\)"),
        (lambda: robust.interval_bound_propagation(nn.ReLU(), X.long(), X.long()), TypeError, "lower must be float64"),
        (lambda: robust.is_certified(X, X[:1], 0), ValueError, r"lower and upper must be of one shape, got \(2, 4\) and \(1, 4\)"),
        (lambda: robust.is_certified(X, X, 4), ValueError, r"target must be in \[0, 3\], got 4"),
        (lambda: robust.is_certified(X, X, 0, 2), IndexError, "dim"),
    ],
)
def test_bounds_that_are_refused(call: Any, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        call()


def test_ends_are_in_order_however_small_the_radius():
    x = torch.cat([normal(200, 3), torch.tensor([[2.0, 1.0, 0.0]], dtype=torch.float64)])
    for name, eps, norm in ((m, e, n) for m in ("softmax", "log_softmax") for e in (0.0, 1e-300, 1e-16) for n in (1, 2, math.inf)):
        ends: tuple[Tensor, ...] = robust.worst_probabilities(name, x, eps, norm)[:2]
        assert (ends[0] <= ends[1]).all()
    box = robust.interval("log_softmax", x, x)
    assert (box.lower <= box.upper).all()


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("scales", [(1.0, 1.0), (1e4, 1e-3), (200.0, 1e-3), (6e-8, 0.5), (1e-3, 1e-4)])
def test_ends_hold_where_numbers_overflow_and_underflow(kind: torch.dtype, scales: tuple[float, float]):
    """Of the network in its dtype, of numbers as far from 1 as the dtype has them."""
    info = torch.finfo(kind)
    weight, second = scales
    for size in (1.0, info.max / 2, info.max, info.smallest_normal, 16 * info.smallest_normal * info.eps):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.LeakyReLU(0.0), nn.Linear(4, 3), nn.Softsign()).to(kind)
        for layer, scale in ((model[0], weight), (model[2], second)):
            assert isinstance(layer, nn.Linear)
            layer.weight.data.copy_((normal(*layer.weight.shape) * scale).clamp(info.min, info.max))
        x = (normal(30, 3, scale=0.3).clamp(-1, 1) * size).to(kind)
        low, high = torch.minimum(x, x / 2), torch.maximum(x, x / 2)
        lower, upper = robust.interval_bound_propagation(model, low, high)
        target = model(x).argmax(-1)
        certified = robust.is_certified(lower, upper, target)
        assert not lower.isnan().any()
        assert not upper.isnan().any()
        for end in (low, high, x * 0.75):
            scores = model(torch.minimum(torch.maximum(end, low), high))
            known = ~scores.isnan()
            assert ((lower <= scores) & (scores <= upper))[known].all()
            assert (lower[~known] == -math.inf).all()
            assert (scores.argmax(-1) == target)[certified].all()


def test_what_overflows_certifies_no_wrong_class():
    layer = nn.Linear(1, 2).half()
    layer.weight.data.copy_(torch.tensor([[1e-3], [-1e-3]]))
    layer.bias.data.copy_(torch.tensor([-100.0, 100.0]))
    x = torch.tensor([[4e4]], dtype=torch.float16)
    lower, upper = robust.interval_bound_propagation(layer, x, x)
    assert not robust.is_certified(lower, upper, 0).item()
    assert robust.is_certified(lower, upper, 1).item()


@pytest.mark.parametrize("end", [0, 1])
@pytest.mark.parametrize("place", [0, 1])
def test_no_row_with_nan_is_certified(end: int, place: int):
    ends = torch.tensor([[[1.0, 0.0]], [[2.0, 0.5]]])
    assert robust.is_certified(ends[0], ends[1], 0).item()
    ends[end, 0, place] = math.nan
    assert not robust.is_certified(ends[0], ends[1], 0).item()


@pytest.mark.parametrize("threshold", [-1e4, -3.0, 0.0, 5.0])
def test_a_softplus_of_any_threshold_is_bounded(threshold: float):
    function = nn.Softplus(threshold=threshold)
    x = torch.linspace(threshold - 2, threshold + 2, 101, dtype=torch.float64).unsqueeze(0)
    lower, upper = robust.interval_bound_propagation(function, x[:, :1], x[:, -1:])
    assert lower.item() <= function(x).min().item() <= function(x).max().item() <= upper.item()
    with pytest.raises(TypeError, match="where it becomes x"):
        robust.lipschitz_bound(function)


@pytest.mark.parametrize("what", ["weight", "bias"])
def test_a_buffer_that_is_no_number_is_refused(what: str):
    layer = nn.Linear(4, 3, dtype=torch.float64)
    delattr(layer, what)
    layer.register_buffer(what, torch.full((3, 4) if what == "weight" else (3,), math.nan, dtype=torch.float64))
    for call in (lambda: robust.interval_bound_propagation(layer, X, X), lambda: robust.lipschitz_bound(layer)):
        with pytest.raises(ValueError, match=f"{what} of Linear must be finite, got"):
            call()
