"""Radii within which a decision or a probability holds, and beyond which, where that is said, it does not."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import softmaxima as sm
from conftest import Case, normal
from softmaxima import robust

NORMS = (1.0, 2.0, math.inf)
norms = pytest.mark.parametrize("norm", NORMS)


@norms
def test_within_the_radius_the_argmax_stays_and_beyond_it_goes(norm: float):
    x = normal(50, 6)
    radius = robust.certified_radius(x, norm=norm)
    own, rival = x.topk(2, -1).indices.unbind(-1)
    place = torch.arange(6)
    towards = (place == rival.unsqueeze(1)).double() - (place == own.unsqueeze(1)).double()
    towards = towards * radius.unsqueeze(1) / {1.0: 2.0, 2.0: 2**0.5, math.inf: 1.0}[norm]
    assert ((x + 0.999 * towards).argmax(-1) == own).all()
    assert ((x + 1.001 * towards).argmax(-1) == rival).all()
    rng = torch.Generator().manual_seed(0)
    for _ in range(50):
        delta = torch.randn(50, 6, generator=rng, dtype=torch.float64)
        delta *= 0.999 * radius.unsqueeze(1) / torch.linalg.vector_norm(delta, norm, -1, keepdim=True)
        assert ((x + delta).argmax(-1) == own).all()


def test_radii_of_targets_masks_and_lone_scores():
    x = torch.tensor([[2.0, 1.0, -math.inf], [2.0, -math.inf, -math.inf], [math.nan, 0.0, 1.0]])
    assert robust.certified_radius(x)[:2].tolist() == [0.5, math.inf]
    assert robust.certified_radius(x)[2].isnan()
    assert robust.certified_radius(x, 1)[:2].tolist() == [0.0, 0.0]
    assert robust.certified_radius(x[:1], torch.tensor([0]), 1, lipschitz=4.0).tolist() == [0.25]
    assert isinstance(robust.certified_radius(x.numpy()), np.ndarray)


@norms
def test_inputs_within_the_radius_of_a_network_do_not_change_its_decision(norm: float):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(), nn.Sequential(nn.Linear(8, 3), nn.Tanh())).double().eval()
    x = normal(40, 4)
    bound = robust.lipschitz_bound(model, norm)
    a, b = normal(500, 4, seed=1), normal(500, 4, seed=2)
    ratio = torch.linalg.vector_norm(model(a) - model(b), norm, -1) / torch.linalg.vector_norm(a - b, norm, -1)
    assert ratio.max() <= bound
    scores = model(x).detach()
    radius = robust.certified_radius(scores, norm=norm, lipschitz=bound)
    for row in range(len(x)):
        found = robust.attack(
            model, x[row : row + 1], scores[row].argmax().unsqueeze(0), float(radius[row]) * 0.999, norm, limits=None
        )
        assert not found.misled.any()


@norms
def test_the_lipschitz_bound_of_one_layer_is_its_norm(norm: float):
    layer = nn.Linear(3, 5, dtype=torch.float64)
    weight = layer.weight.detach()
    literal = {
        1.0: weight.abs().sum(0).max(),
        2.0: torch.linalg.svdvals(weight).max(),
        math.inf: weight.abs().sum(1).max(),
    }[norm]
    assert robust.lipschitz_bound(layer, norm) == pytest.approx(float(literal))


# Probabilities ------------------------------------------------------------------------------------------------------------------


@norms
def test_the_probability_holds_within_its_radius_and_is_lost_beyond(norm: float, case: Case):
    x, target, level = normal(6, 4, scale=1.0), torch.tensor([0, 1, 2, 3, 0, 1]), 0.2
    radius = robust.probability_radius(case.map, x, target, level, norm, **case.params)
    place = target.unsqueeze(1)
    of = lambda p: (p.exp() if case.claims.logarithmic else p).gather(1, place).squeeze(1)
    assert (of(case(x))[radius > 0] >= level).all()
    finite = radius.isfinite()
    within = torch.where(finite, radius * (1 - 1e-9), 100.0).unsqueeze(1)
    inside = of(robust.worst_probabilities(case.map, x, within, norm, **case.params).lower)
    assert (inside >= level - 1e-9)[radius > 0].all()
    beyond = torch.where(finite, radius + 1e-6, 0.0).unsqueeze(1)
    outside = of(robust.worst_probabilities(case.map, x, beyond, norm, **case.params).lower)
    assert (outside < level)[finite].all()


def test_the_radius_of_softmax_under_linf_is_half_the_difference_of_logits():
    x = normal(20, 5)
    p = x.softmax(-1).amax(-1)
    expected = ((p.logit() - math.log(0.3 / 0.7)) / 2).clamp_min(0.0)
    found = robust.probability_radius("softmax", x, x.argmax(-1), 0.3)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    halved = robust.probability_radius("softmax", x, x.argmax(-1), 0.3, lipschitz=2.0)
    torch.testing.assert_close(halved, expected / 2, rtol=1e-12, atol=1e-14)
    cold = robust.probability_radius("log_softmax", x, x.argmax(-1), 0.3, temperature=0.5)
    torch.testing.assert_close(cold, 0.5 * robust.probability_radius("softmax", 2 * x, x.argmax(-1), 0.3), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("norm", [1.0, math.inf])
def test_a_probability_is_kept_at_its_radius_and_lost_at_the_next_number(norm: float):
    x, target = normal(8, 3), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    radius = robust.probability_radius("softmax", x, target, 0.2, norm)
    lost = radius.nextafter(torch.full_like(radius, math.inf))
    at = lambda eps: robust.worst_probabilities("softmax", x, eps.unsqueeze(1), norm).lower.gather(1, target.unsqueeze(1))[:, 0]
    inside = radius > 0
    assert inside.sum() >= 4
    assert (at(radius)[inside] >= 0.2).all()
    assert (at(lost)[inside] < 0.2).all()


@pytest.mark.parametrize("of", ["temperature", "lipschitz"])
def test_a_radius_of_a_probability_is_the_largest_number_that_holds_in_other_units(of: str):
    """Scores are 3τ and 0, or are moved by 3 L of what inputs are: exact are τ times and 1/L of the radius at 3 and 0."""
    kept = Fraction(float(robust.probability_radius("softmax", np.array([3.0, 0.0]), 0, 0.7)))
    units = [unit for unit in np.random.default_rng(0).uniform(0.1, 10, 25) if 3 * unit / unit == 3]
    assert len(units) > 15
    for unit in units:
        score, factor = (3 * unit, Fraction(unit)) if of == "temperature" else (3.0, 1 / Fraction(unit))
        radius = float(robust.probability_radius("softmax", np.array([score, 0.0]), 0, 0.7, **{of: unit}))
        assert Fraction(radius) <= kept * factor < Fraction(math.nextafter(radius, math.inf))


def test_nothing_takes_a_lone_probability_and_nan_stays():
    x = torch.tensor([[1.0, -math.inf], [math.nan, 0.0], [-math.inf, -math.inf]])
    found = robust.probability_radius("softmax", x, 0, 0.5)
    assert found[0] == math.inf
    assert found[1].isnan()
    assert found[2] == 0


X = normal(2, 3)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: robust.certified_radius(X, norm=0), ValueError, "norm must be 1, 2 or math.inf, got 0"),
        (lambda: robust.certified_radius(X, lipschitz=0.0), ValueError, "lipschitz must be a positive finite number, got 0.0"),
        (lambda: robust.certified_radius(X[:, :0]), ValueError, "there must be a class to certify"),
        (lambda: robust.certified_radius(X, True), TypeError, "target must be a torch.Tensor or a numpy.ndarray, got bool"),
        (lambda: robust.probability_radius("softmax", X, 0, 1.0), ValueError, "level must be a number between 0 and 1, got 1.0"),
        (lambda: robust.probability_radius("softmax", X, -1, 0.5), ValueError, r"target must be in \[0, 2\], got -1"),
        (
            lambda: robust.lipschitz_bound(nn.Conv2d(1, 1, 1)),
            TypeError,
            r"got Conv2d\(.*\); bound that layer otherwise, and multiply",
        ),
        (lambda: robust.lipschitz_bound(nn.Dropout()), TypeError, "got Dropout"),
        (lambda: robust.lipschitz_bound(type("Residual", (nn.Linear,), {})(2, 2)), TypeError, "no subclass, got Residual"),
        (
            lambda: robust.lipschitz_bound(nn.Softplus()),
            TypeError,
            r"falls by 2e-09 where it becomes x.* nn.Softplus\(beta=1, threshold=40\)",
        ),
    ],
)
def test_certificates_that_are_refused(call: Any, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        call()


def test_the_room_is_reached_by_its_name():
    assert sm.robust is robust
    assert all(hasattr(robust, name) for name in robust.__all__)
    assert not {*robust.__all__} & {*getattr(sm, "__all__")}  # noqa: B009


def test_type_checkers_know_what_is_given():
    for public in (getattr(robust, name) for name in robust.__all__):
        if isinstance(public, dict):
            continue
        functions = [each for each in vars(public).values() if callable(each)] if isinstance(public, type) else [public]
        told = [getattr(each, "__annotations__", {}).get("return") for each in functions]
        told += vars(public)["__annotations__"].values() if isinstance(public, type) else []
        assert not {"Any", "ForwardRef('Any')", "typing.Any"} & {str(each) for each in told}, public


def test_slopes_beyond_1_count():
    assert robust.lipschitz_bound(nn.ELU(alpha=5.0)) == 5
    assert robust.lipschitz_bound(nn.Sequential(nn.LeakyReLU(-2.0), nn.ELU())) == 2


def test_a_radius_is_rounded_down_and_found_at_any_size():
    for kind in (torch.bfloat16, torch.float16, torch.float32):
        x = torch.randn(200, 4, generator=torch.Generator().manual_seed(0)).to(kind)
        wide = robust.certified_radius(x.double())
        assert (robust.certified_radius(x).double() <= wide).all()
        for level in (0.2, 0.5):
            radius = robust.probability_radius("softmax", x, 0, level).double()
            assert (radius <= robust.probability_radius("softmax", x.double(), 0, level) * (1 + 1e-9)).all()
        ends, exact = robust.interval("softmax", x, x), x.double().softmax(-1)
        assert (ends.lower.double() <= exact + 1e-15).all()
        assert (ends.upper.double() >= exact - 1e-15).all()
    far = torch.tensor([3e12, 0.0], dtype=torch.float64)
    assert robust.probability_radius("softmax", far, 0, 0.5).item() == pytest.approx(1.5e12, rel=1e-9)
    sharp = robust.probability_radius("softmax", torch.tensor([1.0, 0.0], dtype=torch.float64), 0, 0.5, temperature=1e-13)
    assert sharp.item() == pytest.approx(0.5, rel=1e-9)
