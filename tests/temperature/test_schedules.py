"""Temperatures that follow a schedule: their formulas, what is saved of them, and who takes them."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
from typing import Any

import mpmath
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
    for other in (again, copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
        assert other() == first()
        other.step()
        assert float(other()) == pytest.approx(SCHEDULES[name][1](4))


ENDS = (2.3e-308, 1e-300, 1e-20, 0.3, 1.0, 1e300, 1.7e308)
BETWEEN = {
    sm.GeometricTemperature: lambda a, b, share: a ** (1 - share) * b**share,
    sm.LinearTemperature: lambda a, b, share: a * (1 - share) + b * share,
    sm.CosineTemperature: lambda a, b, share: b + (a - b) * (1 + mpmath.cos(mpmath.pi * share)) / 2,
}


@pytest.mark.parametrize("kind", BETWEEN)
def test_between_any_two_temperatures_it_has_the_digits_of_its_formula(kind: Any):
    for init, last, total in itertools.product(ENDS, ENDS, (1, 3, 10)):
        schedule = kind(init, last, total)
        taken = [schedule.at(step) for step in range(total + 2)]
        assert (taken[0], taken[total], taken[total + 1]) == (init, last, last)
        assert taken == sorted(taken, reverse=init > last)
        with mpmath.workdps(700):
            for step in range(total):
                exact = BETWEEN[kind](mpmath.mpf(init), mpmath.mpf(last), mpmath.mpf(step) / total)
                assert abs(taken[step] / exact - 1) < 1e-12, (init, last, total, step)  # 2 · 708 roundings of an exponent


@pytest.mark.parametrize(("init", "factor"), [(1.7e308, 0.5), (1.0, 1e-10), (1e-300, 0.9), (3.0, 1.0)])
def test_it_falls_by_its_factor_as_far_as_there_are_numbers(init: float, factor: float):
    schedule = sm.ExponentialTemperature(init, factor)
    for step in (0, 1, 2, 31, 200, 2043, 10**6):
        exact = max(mpmath.mpf(init) * mpmath.mpf(factor) ** step, mpmath.mpf(2) ** -1022)
        assert abs(schedule.at(step) / exact - 1) < 1e-12


@pytest.mark.parametrize("convert", [torch.nn.Module.half, torch.nn.Module.bfloat16, torch.nn.Module.float, torch.nn.Module.double])
@pytest.mark.parametrize("tau", [1e-300, 1 / 3])
def test_a_module_that_is_converted_keeps_its_temperature(convert: Any, tau: float):
    layer = sm.Softmax(temperature=sm.GeometricTemperature(tau, 1.0, 3))
    assert convert(layer).float().temperature() == torch.tensor(tau, dtype=torch.float64)
    layer.temperature.step()
    assert float(layer.temperature()) == layer.temperature.at(1)
    assert layer.to("meta", torch.half).temperature.temperature.is_meta
    assert layer.to_empty(device="cpu").temperature().dtype == torch.float64


def test_steps_change_nothing_that_a_graph_or_a_caller_has():
    schedule, x = sm.LinearTemperature(2.0, 1.0, 4), torch.tensor([1.0, 2.0], requires_grad=True)
    tau = schedule()
    loss = (sm.softmax(x, temperature=schedule) * x / schedule()).sum()
    expected = torch.autograd.grad(loss, x, retain_graph=True)[0]
    schedule.step()
    assert torch.equal(torch.autograd.grad(loss, x)[0], expected)
    assert tau == 2.0
    tau.fill_(7.0)
    assert schedule() == 1.75


def test_what_a_schedule_gives_is_a_temperature_or_is_refused():
    for wrong in (0.0, -1.0, math.nan, math.inf, 1e-310, "1", True, torch.ones(2), None):
        with pytest.raises((TypeError, ValueError), match=r"^TemperatureSchedule: at\(0\) must be positive"):
            sm.TemperatureSchedule(lambda step, wrong=wrong: wrong)
        schedule = sm.TemperatureSchedule(lambda step, wrong=wrong: wrong if step else 1.0)
        with pytest.raises((TypeError, ValueError), match=r"^TemperatureSchedule: at\(1\) must be positive"):
            schedule.step()
        assert (int(schedule.steps), float(schedule())) == (0, 1.0)
    with pytest.raises(TypeError, match=r"at must be a function of the number of steps, got 2\.0"):
        sm.TemperatureSchedule(2.0)  # type: ignore[arg-type]


def test_a_module_that_has_one_follows_it():
    layer = sm.Softmax(temperature=sm.LinearTemperature(2.0, 1.0, 1))
    x = torch.tensor([1.0, 2.0])
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for run in (layer, compiled):
        torch.testing.assert_close(run(x), sm.softmax(x, temperature=2.0))
    layer.temperature.step()
    with torch.compiler.set_stance("fail_on_recompile"):
        for run in (layer, compiled):
            torch.testing.assert_close(run(x), sm.softmax(x))
    assert set(layer.state_dict()) == {"temperature.steps", "temperature.temperature"}
    assert "init=2.0, last=1.0, total=1" in repr(layer)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: sm.ExponentialTemperature(0.0, 0.5), "init must be positive"),
        (lambda: sm.ExponentialTemperature(1.0, 1.5), "factor must be above 0 and at most 1, got 1.5"),
        (lambda: sm.ExponentialTemperature(1.0, 0.5, 2.0), "minimum must be at most init"),
        (lambda: sm.GeometricTemperature(1.0, -1.0, 5), "last must be positive"),
        (lambda: sm.LinearTemperature(1.0, 0.5, 0), "total must be an int of at least 1"),
        (lambda: sm.CosineTemperature(math.inf, 0.5, 3), "init must be positive"),
    ],
)
def test_wrong_arguments_are_told_in_a_sentence(make: Any, says: str):
    with pytest.raises(ValueError, match=r"^\w+: " + says):
        make()
