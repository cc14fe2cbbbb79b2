"""Temperatures that change with the steps of training, as torch's schedulers of learning rates do.

A schedule is a module that says its temperature: give it as `temperature=`, call `step()` after each step of training, and its
state is in the `state_dict` of what has it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from softmaxima.base.modules import WithOptions
from softmaxima.base.numbers import SMALLEST_TEMPERATURE, TEMPERATURE, check_count, check_number, described
from softmaxima.base.public import public


@public
class TemperatureSchedule(WithOptions, nn.Module):
    """τ as a function of the number of steps that were taken, which `step()` counts.

    Args:
        at: τ after so many steps, a function of an int that gives a positive number.

    `module()` is τ now, in float64 whatever dtype the module is converted to; `module.step()` counts a step of training.

    Raises TypeError or ValueError for another `at`, and where it gives anything but a positive number: at once of 0 steps, and of
    others by `step()`, which then counts nothing. Cost: a step calls `at` and reads the count, and a call copies one number.

    >>> import softmaxima as sm
    >>> schedule = sm.TemperatureSchedule(lambda step: 2.0**-step)
    >>> schedule.step(); float(schedule())
    0.5
    """

    at: Callable[[int], float]
    steps: Tensor  # taken
    temperature: Tensor  # after them, in float64

    def __init__(self, at: Callable[[int], float]) -> None:
        super().__init__()
        if not callable(at):
            wanted = "a function of the number of steps"
            raise TypeError(f"{type(self).__name__}: at must be {wanted}, got {described(at, wanted)}")
        self.hold(at=at)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("temperature", torch.tensor(self._checked(0), dtype=torch.float64))

    @torch.no_grad()
    def step(self) -> None:
        """Counts a step of training."""
        steps = int(self.steps) + 1
        self.temperature.fill_(self._checked(steps))
        self.steps.fill_(steps)

    def forward(self) -> Tensor:
        return self.temperature.clone()  # of which a graph may keep what `step` changes

    def _checked(self, steps: int) -> float:
        return check_number(type(self).__name__, f"at({steps})", self.at(steps), *TEMPERATURE)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """What moves a module or converts it: τ moves."""

        def moved(tensor: Tensor) -> Tensor:
            found = fn(tensor)
            return found if found.dtype == tensor.dtype else tensor.to(found.device)

        return super()._apply(moved, recurse)


@public
class ExponentialTemperature(TemperatureSchedule):
    """τ_t = max(τ₀ λᵗ, τ_min): a factor a step.

    Args:
        init: τ₀ > 0.
        factor: λ in (0, 1].
        minimum: τ_min > 0, at most τ₀.

    Raises TypeError or ValueError for anything else. Cost as of `TemperatureSchedule`. Source: Jang, Gu & Poole (2017),
    arXiv:1611.01144.

    >>> import softmaxima as sm
    >>> schedule = sm.ExponentialTemperature(1.0, 0.5, minimum=0.2)
    >>> [(schedule.step(), float(schedule()))[1] for _ in range(3)]
    [0.5, 0.25, 0.2]
    """

    def __init__(self, init: float, factor: float, minimum: float = SMALLEST_TEMPERATURE) -> None:
        name = type(self).__name__
        init, minimum = (
            check_number(name, "init", init, *TEMPERATURE),
            check_number(name, "minimum", minimum, *TEMPERATURE),
        )
        factor = check_number(name, "factor", factor, lambda factor: 0 < factor <= 1, "above 0 and at most 1")
        if minimum > init:
            raise ValueError(f"{name}: minimum must be at most init, got {minimum} and {init}")
        options = {"init": init, "factor": factor, "minimum": minimum}
        super().__init__(partial(_falling, **options))
        self.hold(**options)


@public
class GeometricTemperature(TemperatureSchedule):
    """τ_t = τ₀ (τ_T/τ₀)^{t/T}: equal factors.

    Args:
        init, last: τ₀ and τ_T > 0, in any order.
        total: T steps of 1 or more, after which τ stays where it is.

    Raises TypeError or ValueError for anything else. Cost as of `TemperatureSchedule`. Source: how simulated annealing cools,
    Kirkpatrick, Gelatt & Vecchi (1983), Science 220.

    >>> import softmaxima as sm
    >>> schedule = sm.GeometricTemperature(4.0, 1.0, total=2)
    >>> [(schedule.step(), float(schedule()))[1] for _ in range(3)]
    [2.0, 1.0, 1.0]
    """

    def __init__(self, init: float, last: float, total: int) -> None:
        options = _between(type(self).__name__, init, last, total)
        super().__init__(partial(_geometric, **options))
        self.hold(**options)


@public
class LinearTemperature(TemperatureSchedule):
    """τ_t = τ₀ + (τ_T − τ₀) t/T: equal differences. Arguments, errors and cost as for `GeometricTemperature`.

    >>> import softmaxima as sm
    >>> schedule = sm.LinearTemperature(3.0, 1.0, total=2)
    >>> [(schedule.step(), float(schedule()))[1] for _ in range(3)]
    [2.0, 1.0, 1.0]
    """

    def __init__(self, init: float, last: float, total: int) -> None:
        options = _between(type(self).__name__, init, last, total)
        super().__init__(partial(_linear, **options))
        self.hold(**options)


@public
class CosineTemperature(TemperatureSchedule):
    """τ_t = τ_T + (τ₀ − τ_T)(1 + cos(πt/T))/2: slowly at both ends. Arguments, errors and cost as for `GeometricTemperature`.

    Source: Loshchilov & Hutter (2017), arXiv:1608.03983, for learning rates.

    >>> import softmaxima as sm
    >>> schedule = sm.CosineTemperature(3.0, 1.0, total=4)
    >>> [round((schedule.step(), float(schedule()))[1], 3) for _ in range(4)]
    [2.707, 2.0, 1.293, 1.0]
    """

    def __init__(self, init: float, last: float, total: int) -> None:
        options = _between(type(self).__name__, init, last, total)
        super().__init__(partial(_cosine, **options))
        self.hold(**options)


# τ of a number of steps. Means of positive numbers: neither cancels, nor is one beyond double where the ends are not.


def _falling(step: int, init: float, factor: float, minimum: float) -> float:
    half = step // 2
    return max(init * factor**half * factor ** (step - half), minimum)


def _geometric(step: int, init: float, last: float, total: int) -> float:
    rest = max(total - step, 0)
    return _held(init ** (rest / total) * last ** ((total - rest) / total), init, last)


def _linear(step: int, init: float, last: float, total: int) -> float:
    rest = max(total - step, 0)
    return _held(init * (rest / total) + last * ((total - rest) / total), init, last)


def _cosine(step: int, init: float, last: float, total: int) -> float:
    rest = max(total - step, 0)
    of_init, of_last = (math.sin(math.pi / 2 * share / total) ** 2 for share in (rest, total - rest))
    return _held(init * of_init + last * of_last, init, last)


def _held(tau: float, init: float, last: float) -> float:
    """Between the two, beyond which roundings may take it."""
    return min(max(tau, min(init, last)), max(init, last))


def _between(name: str, init: Any, last: Any, total: Any) -> dict[str, Any]:
    """Checked."""
    init, last = (check_number(name, what, value, *TEMPERATURE) for what, value in (("init", init), ("last", last)))
    return {"init": init, "last": last, "total": check_count(name, "total", total)}
