"""Temperatures that change with the steps of training, as torch's schedulers of learning rates do.

A schedule is a module that says its temperature: give it as `temperature=`, call `step()` after each step of training, and its
state is in the `state_dict` of what has it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from softmaxima.core.numbers import SMALLEST_TEMPERATURE, TEMPERATURE, check_count, check_number


class TemperatureSchedule(nn.Module, ABC):
    """τ as a function of the number of steps that were taken, which `step()` counts. A subclass says `at`.

    >>> import softmaxima as sm
    >>> class Halved(sm.TemperatureSchedule):
    ...     def at(self, step):
    ...         return 2.0**-step
    >>> schedule = Halved()
    >>> schedule.step(); float(schedule())
    0.5
    """

    steps: Tensor  # taken
    temperature: Tensor  # after them, in float64

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("temperature", torch.tensor(self.at(0), dtype=torch.float64))

    @abstractmethod
    def at(self, step: int) -> float:
        """τ after so many steps."""

    @torch.no_grad()
    def step(self) -> None:
        """Counts a step of training."""
        self.steps += 1
        self.temperature.fill_(self.at(int(self.steps)))

    def forward(self) -> Tensor:
        return self.temperature


class ExponentialTemperature(TemperatureSchedule):
    """τ_t = max(τ₀ λᵗ, τ_min): a factor a step.

    Args:
        init: τ₀ > 0.
        factor: λ in (0, 1].
        minimum: τ_min > 0, at most τ₀.

    Raises TypeError or ValueError for anything else. Source: Jang, Gu & Poole (2017), arXiv:1611.01144.

    >>> import softmaxima as sm
    >>> schedule = sm.ExponentialTemperature(1.0, 0.5, minimum=0.2)
    >>> [(schedule.step(), float(schedule()))[1] for _ in range(3)]
    [0.5, 0.25, 0.2]
    """

    def __init__(self, init: float, factor: float, minimum: float = SMALLEST_TEMPERATURE) -> None:
        name = type(self).__name__
        self.init, self.minimum = (
            check_number(name, "init", init, *TEMPERATURE),
            check_number(name, "minimum", minimum, *TEMPERATURE),
        )
        self.factor = check_number(name, "factor", factor, lambda factor: 0 < factor <= 1, "above 0 and at most 1")
        if self.minimum > self.init:
            raise ValueError(f"{name}: minimum must be at most init, got {self.minimum} and {self.init}")
        super().__init__()

    def at(self, step: int) -> float:
        return max(self.init * self.factor**step, self.minimum)

    def extra_repr(self) -> str:
        return f"init={self.init}, factor={self.factor}, minimum={self.minimum}"


class _Between(TemperatureSchedule):
    """From one temperature to another in so many steps, and there it stays. A subclass says `between`, of the share of the steps.

    Args:
        first, last: positive numbers, in any order.
        total: how many steps there are between them.

    Raises TypeError or ValueError for anything else.
    """

    def __init__(self, first: float, last: float, total: int) -> None:
        name = type(self).__name__
        self.first, self.last = (
            check_number(name, what, value, *TEMPERATURE) for what, value in (("first", first), ("last", last))
        )
        self.total = check_count(name, "total", total)
        super().__init__()

    def at(self, step: int) -> float:
        return self.between(step / self.total) if step < self.total else self.last

    @abstractmethod
    def between(self, share: float) -> float:
        """τ at that share of the steps."""

    def extra_repr(self) -> str:
        return f"first={self.first}, last={self.last}, total={self.total}"


class GeometricTemperature(_Between):
    """τ_t = τ_first (τ_last/τ_first)^{t/T}: equal factors.

    Args and errors:
        first, last: τ > 0, in any order.
        total: T, after which τ stays where it is.

    >>> import softmaxima as sm
    >>> schedule = sm.GeometricTemperature(4.0, 1.0, total=2)
    >>> [(schedule.step(), float(schedule()))[1] for _ in range(3)]
    [2.0, 1.0, 1.0]
    """

    def between(self, share: float) -> float:
        return self.first * (self.last / self.first) ** share


class LinearTemperature(_Between):
    """τ_t = τ_first + (τ_last − τ_first) t/T: equal differences. Arguments and errors as for `GeometricTemperature`.

    >>> import softmaxima as sm
    >>> schedule = sm.LinearTemperature(3.0, 1.0, total=2)
    >>> [(schedule.step(), float(schedule()))[1] for _ in range(3)]
    [2.0, 1.0, 1.0]
    """

    def between(self, share: float) -> float:
        return self.first + (self.last - self.first) * share


class CosineTemperature(_Between):
    """τ_t = τ_last + (τ_first − τ_last)(1 + cos(πt/T))/2: slowly at both ends. Arguments and errors as for `GeometricTemperature`.

    >>> import softmaxima as sm
    >>> schedule = sm.CosineTemperature(3.0, 1.0, total=4)
    >>> [round((schedule.step(), float(schedule()))[1], 3) for _ in range(4)]
    [2.707, 2.0, 1.293, 1.0]
    """

    def between(self, share: float) -> float:
        return self.last + (self.first - self.last) * (1 + math.cos(math.pi * share)) / 2
