"""Temperatures that follow a schedule: their formulas, what is saved of them, and who takes them."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch

import softmaxima as sm

SCHEDULES = {
    "exponential": (lambda: sm.ExponentialTemperature(2.0, 0.5, 0.3), lambda t: max(2.0 * 0.5**t, 0.3)),
    "geometric": (lambda: sm.GeometricTemperature(4.0, 0.25, 8), lambda t: 4.0 * (0.25 / 4.0) ** min(t / 8, 1)),
    "linear": (lambda: sm.LinearTemperature(4.0, 0.25, 8), lambda t: 4.0 - 3.75 * min(t / 8, 1)),
    "linear, rising": (lambda: sm.LinearTemperature(0.25, 4.0, 8), lambda t: 0.25 + 3.75 * min(t / 8, 1)),
    "cosine": (lambda: sm.CosineTemperature(4.0, 0.25, 8), lambda t: 0.25 + 3.75 * (1 + math.cos(math.pi * min(t / 8, 1))) / 2),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_it_follows_its_formula_and_stays_where_it_ends(name: str):
    schedule, formula = SCHEDULES[name][0](), SCHEDULES[name][1]
    for t in range(12):
        assert float(schedule()) == pytest.approx(formula(t), rel=1e-14)
        assert not schedule().requires_grad
        schedule.step()


@pytest.mark.parametrize("name", SCHEDULES)
def test_it_goes_on_where_it_was_saved(name: str):
    first, again = SCHEDULES[name][0](), SCHEDULES[name][0]()
    for _ in range(3):
        first.step()
    again.load_state_dict(first.state_dict())
    for other in (again, copy.deepcopy(first)):
        assert other() == first()
        other.step()
        assert float(other()) == pytest.approx(SCHEDULES[name][1](4))


def test_a_module_that_has_one_follows_it():
    layer = sm.Softmax(temperature=sm.LinearTemperature(2.0, 1.0, 1))
    x = torch.tensor([1.0, 2.0])
    torch.testing.assert_close(layer(x), sm.softmax(x, temperature=2.0))
    layer.temperature.step()
    torch.testing.assert_close(layer(x), sm.softmax(x))
    assert set(layer.state_dict()) == {"temperature.steps", "temperature.temperature"}
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), sm.softmax(x))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: sm.ExponentialTemperature(0.0, 0.5), "init must be positive"),
        (lambda: sm.ExponentialTemperature(1.0, 1.5), "factor must be above 0 and at most 1, got 1.5"),
        (lambda: sm.ExponentialTemperature(1.0, 0.5, 2.0), "minimum must be at most init"),
        (lambda: sm.GeometricTemperature(1.0, -1.0, 5), "last must be positive"),
        (lambda: sm.LinearTemperature(1.0, 0.5, 0), "total must be an int of at least 1"),
        (lambda: sm.CosineTemperature(math.inf, 0.5, 3), "first must be positive"),
    ],
)
def test_wrong_arguments_are_told_in_a_sentence(make: Any, says: str):
    with pytest.raises(ValueError, match=r"^\w+: " + says):
        make()
