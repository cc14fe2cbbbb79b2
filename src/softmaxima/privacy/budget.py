"""Several releases of the same scores, whose costs add up to no more than was allowed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from softmaxima.core.numbers import check_confidence, check_one_temperature
from softmaxima.privacy.choice import Choice, as_choice
from softmaxima.privacy.library import dp
from softmaxima.privacy.measurements import Cost, check_cost, noisy_choice, noisy_sum, scale_of_choice
from softmaxima.privacy.records import Records, Scores, check_records, read_row, sensitivity_of
from softmaxima.privacy.sums import Release, released


@dataclass(frozen=True, eq=False)
class Budget:
    """Scores with a sum that all releases of them may cost, Σ ε_i ≤ ε or Σ ρ_i ≤ ρ, kept by OpenDP's privacy filter.

    What is asked may depend on what was answered. A release beyond the budget is refused with nothing told, and a smaller one may
    follow. The measure is that of the budget: with ε Laplace's and exponential noise, with ρ Gaussian and Gumbel's.

    Args:
        x: scores [n], NumPy's or torch's; the budget keeps them.
        records: `Scores` or `Entries`.
        epsilon, rho: one of them, positive.

    Raises:
        TypeError or ValueError, with nothing released: see `logsumexp`.

    Source: Rogers et al. (2021) for filters, Bun and Steinke (2016) for ρ.

    >>> import numpy as np, softmaxima as sm
    >>> budget = sm.privacy.Budget(np.zeros(50), sm.privacy.Scores(bounds=(0, 1), change=0.1), rho=1.0)
    >>> answers = budget.logsumexp(0.5), budget.argmax(0.25)
    >>> budget.spent, budget.left
    (0.75, 0.25)
    >>> budget.sample(0.5)
    Traceback (most recent call last):
        ...
    ValueError: sample: 0.5 of rho was asked for and 0.25 is left of 1.0; nothing was released
    """

    x: Any = field(repr=False)  # which nobody is to read
    records: Records
    epsilon: float | None = None
    rho: float | None = None
    _asked: Any = field(init=False, repr=False)
    _spent: list[float] = field(init=False, repr=False, default_factory=list)

    def __post_init__(self) -> None:
        name = "Budget"
        check_records(name, self.records)
        cost = check_cost(name, self.epsilon, 0.0, self.rho)
        scores = read_row(name, self.x, self.records)
        object.__setattr__(self, "x", scores)
        measure = dp.max_divergence() if cost.rho is None else dp.zero_concentrated_divergence()
        odometer = dp.c.make_fully_adaptive_composition(*self.records.space(len(scores)), measure)
        object.__setattr__(self, "_asked", dp.c.make_privacy_filter(odometer, self.records.distance, cost.amount)(scores))

    @property
    def spent(self) -> float:
        """What was, in the measure of the budget."""
        return sum(self._spent)

    @property
    def left(self) -> float:
        """What is."""
        return (self.epsilon if self.rho is None else self.rho) - self.spent  # type: ignore[operator]

    def logsumexp(self, amount: float, *, temperature: float = 1.0, confidence: float = 0.95) -> Release:
        """log Σ exp(x/τ), for this much of the budget; see `logsumexp`."""
        name, n = "logsumexp", len(self.x)
        cost = self._cost(name, amount)
        tau, confidence = check_one_temperature(name, temperature), check_confidence(name, confidence)
        measurement, scale = noisy_sum(self.records, n, tau, cost)
        value = self._ask(measurement)
        return released(value, scale, sensitivity_of(self.records, n, tau), cost, confidence)

    def argmax(self, amount: float, *, confidence: float = 0.95) -> Choice:
        """The index of the largest score, for this much of the budget; see `argmax`."""
        return self._choose("argmax", amount, confidence)

    def sample(self, amount: float, *, confidence: float = 0.95) -> Choice:
        """A draw from softmax(x/τ), τ being what this much of the budget allows; of a budget of ρ alone. See `sample`."""
        if self.rho is None:
            raise ValueError("sample: draws from softmax are accounted for in ρ; make the Budget with rho=, or take argmax")
        return self._choose("sample", amount, confidence)

    def _choose(self, name: str, amount: float, confidence: float) -> Choice:
        if not isinstance(self.records, Scores):
            raise ValueError(
                f"{name}: an index among records themselves would name one of them; make the Budget of sm.privacy.Scores"
            )
        cost, confidence = self._cost(name, amount), check_confidence(name, confidence)
        scale = scale_of_choice(self.records, len(self.x), cost)
        measure = "epsilon" if self.rho is None else "rho"
        index = self._ask(noisy_choice(self.records, len(self.x), scale, measure))
        return as_choice(index, len(self.x), scale, cost, confidence)

    def _cost(self, name: str, amount: float) -> Cost:
        measure = "epsilon" if self.rho is None else "rho"
        cost = check_cost(name, **{"epsilon": None, "delta": 0.0, "rho": None, measure: amount})
        if amount > self.left:
            allowed = self.epsilon if self.rho is None else self.rho
            raise ValueError(
                f"{name}: {amount} of {measure} was asked for and {self.left:.6g} is left of {allowed}; nothing was released"
            )
        return cost

    def _ask(self, measurement: Any) -> Any:
        answer = self._asked(measurement)
        self._spent.append(measurement.map(self.records.distance))
        return answer
