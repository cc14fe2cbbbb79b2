"""Several releases of the same scores, whose costs add up to no more than was allowed: Σ ε_i ≤ ε or Σ ρ_i ≤ ρ.

Sums are of fractions, which do not round: OpenDP's privacy filter adds floats, rounds each sum up, by which seven sevenths are more
than one, and answers nothing more once it has refused. Amounts are floats, each a rounding of what is meant: a share w_i/Σw of a
budget among k has been rounded by (k + 2) 2⁻⁵³ of itself at most, and all of them by as much of the budget, which is rounded too;
below 2⁻¹⁰²² each by 2⁻¹⁰⁷⁵ besides.
Where no more than that is missing of a share, what is left is spent in its place, and never more.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from fractions import Fraction
from typing import Any, NoReturn, TypeVar

from softmaxima.base.numbers import check_confidence, check_one_temperature, check_positive
from softmaxima.base.public import public
from softmaxima.privacy.choice import Choice, check_scores_of_records, choosing
from softmaxima.privacy.measurements import Cost, check_cost
from softmaxima.privacy.records import Records, check_records, read_row
from softmaxima.privacy.sums import Release, releasing

ROUNDING = Fraction(1, 2**53)  # of the budget: so much by each share of the sum of all, and by a division, a product and the budget
LEAST = Fraction(1, 2**1075)  # by which a subnormal float is rounded
CUT = Fraction(1, 2**20)  # of what is asked for: a share is never cut by more
T = TypeVar("T")


@public
@dataclass(frozen=True, eq=False)
class Budget:
    """Scores with a sum that all releases of them by this object may cost, Σ ε_i ≤ ε or Σ ρ_i ≤ ρ, added up without rounding.

    What is asked may depend on what was answered, and threads may ask at once. A release beyond the budget is refused with nothing
    told and nothing spent, and a smaller one may follow. k shares of a budget are all of it: the last is what is left, which may
    be less than was asked for by k + 3 times 2⁻⁵³ of the budget and 2⁻¹⁰⁷⁵, if that is no more than 2⁻²⁰ of itself, and its
    `Release` says so. The measure is that of the budget: with ε Laplace's and exponential noise, with ρ Gaussian and Gumbel's.

    Args:
        x: scores [n], NumPy's or torch's; the budget keeps a copy, which no repr and no error shows. It is hidden from what
            is printed and sent, and not from code in this process.
        records: `Scores` or `Entries`.
        epsilon, rho: one of them, positive.

    Raises:
        TypeError or ValueError, with nothing released: see `logsumexp`. TypeError when it is pickled or copied deeply, for a copy
        would spend the same budget again; RuntimeError in another process than the one that made it, such as a fork, which
        would spend it again likewise.

    Cost: one read of x here and one a release. Source: Rogers et al. (2016) for filters, Bun and Steinke (2016) for ρ.

    >>> import numpy as np, softmaxima as sm
    >>> budget = sm.privacy.Budget(np.zeros(50), sm.privacy.Scores(bounds=(0, 1), change=0.1), rho=1.0)
    >>> answers = budget.logsumexp(0.5), budget.argmax(0.25)
    >>> budget.spent, budget.left
    (0.75, 0.25)
    >>> budget.sample(0.5)
    Traceback (most recent call last):
        ...
    ValueError: sample: 0.5 of rho was asked for and 0.25 is left of 1.0; nothing was released, ask for no more than is left
    """

    x: InitVar[Any]
    records: Records
    epsilon: float | None = None
    rho: float | None = None
    _account: _Account = field(init=False, repr=False)

    def __post_init__(self, x: Any) -> None:
        name = "Budget"
        check_records(name, self.records)
        cost = check_cost(name, self.epsilon, 0.0, self.rho)
        object.__setattr__(self, "epsilon", cost.epsilon)
        object.__setattr__(self, "rho", cost.rho)
        object.__setattr__(self, "_account", _Account(read_row(name, x, self.records), cost.amount, self._measure))

    @property
    def spent(self) -> float:
        """What was, in the measure of the budget: the float nearest the exact sum."""
        return float(self._account.spent)

    @property
    def left(self) -> float:
        """What is: the float nearest the exact difference."""
        return float(self._account.left)

    def logsumexp(self, amount: float, *, temperature: float = 1.0, confidence: float = 0.95) -> Release:
        """log Σ exp(x/τ), for this much of the budget, positive; see `logsumexp`. ValueError beyond what is left."""
        name = "logsumexp"
        tau, confidence = check_one_temperature(name, temperature), check_confidence(name, confidence)
        return self._release(name, amount, lambda n, cost: releasing(name, self.records, n, tau, cost, confidence))

    def argmax(self, amount: float, *, confidence: float = 0.95) -> Choice:
        """The index of the largest score, for this much of the budget; see `argmax`. ValueError beyond what is left."""
        return self._choose("argmax", amount, confidence)

    def sample(self, amount: float, *, confidence: float = 0.95) -> Choice:
        """A draw from softmax(x/τ), τ being what this much of the budget allows; of a budget of ρ alone. See `sample`."""
        if self.rho is None:
            raise ValueError("sample: draws from softmax are accounted for in ρ; make the Budget with rho=, or take argmax")
        return self._choose("sample", amount, confidence)

    def _choose(self, name: str, amount: float, confidence: float) -> Choice:
        records, confidence = check_scores_of_records(name, self.records), check_confidence(name, confidence)
        return self._release(
            name, amount, lambda n, cost: choosing(name, records, n, cost, confidence, gumbel=cost.rho is not None)
        )

    @property
    def _measure(self) -> str:
        return "epsilon" if self.rho is None else "rho"

    def _release(self, name: str, amount: float, made: Callable[[int, Cost], Callable[[list[float]], T]]) -> T:
        asked = check_positive(name, "amount", amount)
        return self._account.release(name, asked, lambda n, paid: made(n, Cost(**{self._measure: paid})))


class _Account:
    """Scores, and what was spent on them: one release at a time."""

    def __init__(self, scores: list[float], allowed: float, measure: str) -> None:
        self._scores, self._allowed, self._measure = scores, allowed, measure
        self._lock, self._process = threading.Lock(), os.getpid()
        self.spent, self._answers = Fraction(0), 0

    @property
    def left(self) -> Fraction:
        return Fraction(self._allowed) - self.spent

    def release(self, name: str, amount: float, made: Callable[[int, float], Callable[[list[float]], T]]) -> T:
        """What `made` of n and of what is paid answers. What it refuses costs nothing; of what is left no more is paid."""
        if os.getpid() != self._process:  # before the lock, which may have been held when this process began
            raise RuntimeError(
                f"{name}: this Budget is a copy that came by a fork, and would spend the same again; nothing was released, ask "
                "in the process that made it, and send what it released"
            )
        with self._lock:
            asked, left = Fraction(amount), self.left
            if asked - left > min((self._answers + 4) * (ROUNDING * Fraction(self._allowed) + LEAST), CUT * asked):
                raise ValueError(
                    f"{name}: {amount} of {self._measure} was asked for and {float(left)} is left of {self._allowed}; "
                    "nothing was released, ask for no more than is left"
                )
            paid = min(asked, left)
            answer = made(len(self._scores), _at_most(paid))
            self.spent, self._answers = (
                self.spent + paid,
                self._answers + 1,
            )  # before the answer: one that fails may have told something
            return answer(self._scores)

    def __reduce__(self) -> NoReturn:
        raise TypeError("Budget: a copy would spend the same budget again; keep one, and send what it released")


def _at_most(exact: Fraction) -> float:
    """The largest float that is no more."""
    near = float(exact)
    return near if Fraction(near) <= exact else math.nextafter(near, 0.0)
