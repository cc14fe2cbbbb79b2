"""OpenDP's measurements of scores: which noise, how much of it, and what it costs. Nothing here draws noise of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from softmaxima.base.numbers import InputError, check_number, check_positive
from softmaxima.io import LogSumExpState
from softmaxima.privacy.library import NUMBER, dp
from softmaxima.privacy.records import Records, Scores, sensitivity_of

CLOSE = 2.0**-40  # to the formula of a scale, relative: more than OpenDP rounds by


@dataclass(frozen=True)
class Cost:
    """What may be spent, in one of three measures: ε, (ε, δ) or ρ of zero-concentrated privacy."""

    epsilon: float | None = None
    delta: float = 0.0
    rho: float | None = None

    @property
    def measure(self) -> Literal["epsilon", "epsilon, delta", "rho"]:
        """Which."""
        return "rho" if self.rho is not None else "epsilon, delta" if self.delta else "epsilon"

    @property
    def amount(self) -> Any:
        """As OpenDP says it."""
        return self.rho if self.rho is not None else (self.epsilon, self.delta) if self.delta else self.epsilon

    def __str__(self) -> str:
        given = ("epsilon", self.epsilon), ("delta", self.delta or None), ("rho", self.rho)
        return " and ".join(f"{what}={value}" for what, value in given if value is not None)


def check_cost(name: str, epsilon: Any, delta: Any, rho: Any) -> Cost:
    """One of ε, with or without δ, and ρ."""
    if (epsilon is None) == (rho is None):
        said = "neither" if epsilon is None else "both"
        raise ValueError(f"{name}: say what may be spent by one of epsilon= and rho=, got {said}")
    delta = check_number(name, "delta", delta, lambda number: 0 <= number < 1, "a number of at least 0 and below 1")
    if rho is not None:
        if delta:
            raise ValueError(f"{name}: delta goes with epsilon, got it with rho; leave one out")
        return Cost(rho=check_positive(name, "rho", rho))
    return Cost(check_positive(name, "epsilon", epsilon), delta)


@contextmanager
def within_float64(name: str, asked: Cost | str, records: Records) -> Iterator[None]:
    """Where a measurement is made, which nothing of the data but n goes into: what OpenDP refuses is told as what was asked."""
    try:
        yield
    except InputError:
        raise
    except (dp.OpenDPException, ArithmeticError, ValueError):
        said = f"no noise that float64 holds keeps the promise of {asked} for {records.declared}"
        raise InputError(f"{name}: {said}; ask for a number nearer 1, or scale the scores and what is declared of them") from None


def sum_of(records: Records, n: int, temperature: float) -> Any:
    """OpenDP's transformation of n scores into log Σ exp(x/τ), with its sensitivity.

    Inputs k times as far apart as neighbours, k ≥ 1, move it by k times as much at most; nearer ones by no more than neighbours.
    """
    one = sensitivity_of("logsumexp", records, n, temperature)

    def value(scores: Any) -> float:
        return float(LogSumExpState(squares=None).update(np.asarray(scores, np.float64), temperature=temperature).value)

    def moved(distance: float) -> float:
        return one * max(1.0, distance / records.distance)

    return dp.t.make_user_transformation(*records.space(n), *NUMBER, value, moved)


def noisy_sum(records: Records, n: int, temperature: float, cost: Cost) -> tuple[Any, float]:
    """(the measurement, the scale of its noise): Laplace's for ε, a Gaussian for ρ and (ε, δ)."""
    exact = sum_of(records, n, temperature)

    def noise(scale: float) -> Any:
        if cost.measure == "epsilon":
            return dp.m.make_laplace(*NUMBER, scale=scale)
        return dp.m.make_gaussian(*NUMBER, scale=scale)

    def spending(measurement: Any) -> Any:
        approximate = cost.measure == "epsilon, delta"
        return dp.c.make_fix_delta(dp.c.make_zCDP_to_approxDP(measurement), cost.delta) if approximate else measurement

    moved = exact.map(records.distance)
    if cost.delta:  # of a number that moves by 1
        near = moved * dp.binary_search_param(lambda scale: spending(noise(scale)), d_in=1.0, d_out=cost.amount, T=float)
    else:
        near = moved / cost.amount if cost.rho is None else moved / math.sqrt(2 * cost.amount)
    scale = _least(lambda scale: spending(noise(scale)), moved, cost.amount, near)
    return spending(exact >> noise(scale)), scale


def noisy_choice(records: Scores, n: int, scale: float, measure: Literal["epsilon", "rho"]) -> Any:
    """The index of the largest score: for ε with exponential noise, for ρ with Gumbel's, which draws from softmax(x/scale)."""
    spent = dp.max_divergence() if measure == "epsilon" else dp.zero_concentrated_divergence()
    return dp.m.make_noisy_max(*records.space(n), spent, scale=scale)


def scale_of_choice(records: Scores, n: int, cost: Cost) -> float:
    """The least scale that costs no more."""
    measure = "rho" if cost.rho is not None else "epsilon"
    near = records.apart / cost.amount if cost.rho is None else records.apart / math.sqrt(8 * cost.amount)
    return _least(lambda scale: noisy_choice(records, n, scale, measure), records.distance, cost.amount, near)


def _least(made: Callable[[float], Any], moved: float, amount: Any, near: float) -> float:
    """The least scale for which OpenDP says no more, close to what the formula says: from 1 its search does not go far enough."""
    return dp.binary_search_param(made, d_in=moved, d_out=amount, bounds=(near * (1 - CLOSE), near * (1 + CLOSE)), T=float)
