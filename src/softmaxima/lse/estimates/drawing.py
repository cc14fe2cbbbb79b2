"""Draws in stages, until the interval is narrow enough or a pass over all scores costs as much."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softmaxima.lse.estimates.confidence import (
    Moments,
    Stage,
    bernstein_interval,
    betting_interval,
    extrapolated_interval,
    forecast,
    moments,
    skewness_of_mean,
    stake,
    tail_index,
    with_unseen,
)
from softmaxima.lse.estimates.designs import Design, first_occurrences
from softmaxima.lse.estimates.request import Estimate, Request
from softmaxima.lse.estimates.whole import as_asked, exact, log_sum, not_a_number, rounding
from softmaxima.lse.logsumexp import row_logsumexp

PILOT = 2000  # draws at least, to know the variance and the skewness

START = 0.9e6  # nanoseconds of an estimate beside its draws

LOOK = 0.05  # of the time of a pass goes at least into draws before an asymptotic claim, to see scores that are large and rare

LEAST = 2_000_000  # scores of an array that are read before one, or half of a budget

LARGEST_SKEWNESS = 0.5  # of the mean with an unseen draw; that of four equal draws that outweigh all others

LARGEST_TAIL_INDEX = 0.6  # two standard errors of 100 draws above ½, where variances end

FEWEST_DRAWS = 500  # for an asymptotic interval

EQUAL = 1e-12  # relative: terms that differ by no more are rounded differently

NORMAL_SHARE = 0.75  # of the error is spent on an asymptotic interval; the rest pays for stopping when it looks narrow

GROWTH = 1.02  # between the sample sizes that are considered

NEXT_LOOK = 1.03  # times as many draws, after an interval that was not quite narrow enough

STAGE = 3  # times as many draws as before, at most: a variance is known too little to trust it further


class Run:
    """One estimate: what a design has drawn so far, and the interval that it allows."""

    def __init__(self, ask: Request, design: Design) -> None:
        self.ask, self.design = ask, design
        self.head = ask.read(design.head)
        self.indices: list[np.ndarray] = []
        self.z: list[np.ndarray] = []  # x/τ
        self.terms: list[np.ndarray] = []  # x/τ + log weight
        self.bets: list[tuple[float, float]] = []
        self.rounds = 0

    @property
    def drawn(self) -> int:
        return self.rounds * self.design.strata

    @property
    def evaluations(self) -> int:
        return self.design.spent + (len(self.design.head) + self.drawn) * self.ask.width

    @property
    def bounded(self) -> bool:
        return self.design.unread is not None

    def estimate(self) -> Estimate:
        ask, design = self.ask, self.design
        limit = (ask.budget // ask.width - design.spent - len(design.head)) // design.strata
        limit = int(min(limit, design.population))  # rounds
        rounds = min(PILOT // design.strata + 2, limit // 4 + 2)
        planned, bets = limit, (0.0, 0.0)
        special = self._special(self.head)
        if special is not None:
            return special
        while True:
            interval = self._deterministic()
            if self._meets(*interval):
                return self._finish(self._value(), *interval, "deterministic")
            if self._is_dearer_than_a_pass(self.rounds + rounds):
                return exact(ask, self.evaluations)
            self._draw(rounds, bets)
            special = self._special(self.z[-1])
            if special is not None:
                return special
            if self.rounds >= planned:
                lower, upper, certificate = self._look()
                if self.rounds >= limit or (certificate != "none" and self._meets(lower, upper)):
                    return self._finish(self._value(), lower, upper, certificate)
                # Each new look at nearly the same draws may refuse less by chance.
                least = math.ceil((2.0 if certificate == "none" else NEXT_LOOK) * self.rounds)
            else:
                least = 0
            planned = min(max(self._plan(limit), least), limit)
            bets = self._bets(planned)
            # A plan that costs more than a pass needs no better variance.
            trusted = planned if self._is_dearer_than_a_pass(planned) else STAGE * self.rounds
            rounds = min(planned, trusted) - self.rounds

    def _is_dearer_than_a_pass(self, rounds: int) -> bool:
        """Whether so many rounds cost what a pass does, and the budget allows one."""
        return rounds * self.design.strata >= self.ask.whole and self.evaluations + self.ask.source.n <= self.ask.budget

    def _draw(self, rounds: int, bets: tuple[float, float]) -> None:
        indices, log_weights = self.design.draw(rounds)
        z = self.ask.read(indices.ravel()).reshape(indices.shape)
        self.indices.append(indices)
        self.z.append(z)
        self.terms.append(z + log_weights)
        self.bets.append(bets)
        self.rounds += len(indices)

    def _special(self, z: np.ndarray) -> Estimate | None:
        """What a NaN or a +∞ among scores decides."""
        largest = float(np.max(z, initial=-math.inf))
        if math.isnan(largest):
            return not_a_number(self.ask, self.evaluations, self.drawn)
        if largest < math.inf:
            return None
        value = as_asked(self.ask, math.inf, None)
        return Estimate(value, math.inf, math.inf, self.evaluations, "deterministic", self.drawn)

    def _meets(self, lower: Any, upper: Any) -> Any:
        return upper - lower <= 2.0 * self.ask.target

    def _shift(self, bounded: bool) -> float:
        """What is taken from terms before exp: the largest that they can be, or the largest that was drawn."""
        if bounded and self.design.unread is not None:
            return self.design.unread + self.design.largest_log_weight
        largest = max((float(terms.max(initial=-math.inf)) for terms in self.terms), default=-math.inf)
        return largest if math.isfinite(largest) else 0.0

    def _draws(self, bounded: bool) -> np.ndarray:
        return np.exp(np.concatenate(self.terms) - self._shift(bounded))

    def _tail(self, mean: float, bounded: bool) -> float:
        """The logarithm of a tail of this mean."""
        return math.log(mean) + self._shift(bounded) if mean > 0.0 else -math.inf

    def _total(self, mean: float, bounded: bool) -> float:
        return float(np.logaddexp(log_sum(self.head), self._tail(mean, bounded)))

    def _value(self) -> float:
        """log Ẑ + Var Ẑ/(2Ẑ²); before the first draw, the head with a tail in the middle of its limits."""
        if not self.terms:
            lower, upper = self._deterministic()
            return lower if math.isinf(lower) or math.isinf(upper) else 0.5 * lower + 0.5 * upper
        draws = moments(self._draws(False))
        value = self._total(draws.mean, False)
        if not math.isfinite(value):
            return value
        spread = draws.variance / self.drawn * max(0.0, 1.0 - self.drawn / self.design.population)
        return value + 0.5 * spread * math.exp(2.0 * (self._shift(False) - value))

    def _deterministic(self) -> tuple[float, float]:
        """The sum of what was read, and that with all the rest at its bound."""
        read, known = log_sum(self.head), len(self.head)
        if self.z:
            indices = np.concatenate([part.ravel() for part in self.indices])
            z = np.concatenate([part.ravel() for part in self.z])
            if math.isinf(self.design.population):
                z = z[first_occurrences(indices)]
                known = len(z)
            else:
                known += len(indices)
            read = float(np.logaddexp(read, log_sum(z)))
        if (left := self.ask.units - known) == 0:
            return read, read
        return read, math.inf if self.design.unread is None else float(np.logaddexp(read, math.log(left) + self.design.unread))

    def _look(self) -> tuple[float, float, Any]:
        """(lower, upper, certificate) now."""
        sure = self._deterministic()
        if sure[0] == sure[1]:
            return *sure, "deterministic"
        if self.bounded:
            lower, upper = self._finite_sample()
            if sure[0] >= lower and sure[1] <= upper:
                return *sure, "deterministic"
            return max(lower, sure[0]), min(upper, sure[1]), "finite-sample"
        draws = moments(self._draws(False))
        low, high, claimed = self._asymptotic(draws, self.drawn)
        if not claimed:
            return sure[0], math.inf, "none"
        return max(self._total(float(low), False), sure[0]), self._total(float(high), False), "asymptotic"

    def _asymptotic(self, draws: Moments, m: Any) -> tuple[Any, Any, Any]:
        """(lower, upper, whether to claim them) for the mean of m draws with these moments."""
        low, high = extrapolated_interval(draws, m, NORMAL_SHARE * self.ask.delta, self.design.population)
        varied = draws.largest > EQUAL * draws.mean  # a sample of equal terms shows no tail, light or heavy
        light = tail_index(np.concatenate(self.terms)) <= LARGEST_TAIL_INDEX and draws.mean > 0.0 and varied
        normal = np.abs(skewness_of_mean(with_unseen(draws, m), m)) <= LARGEST_SKEWNESS
        return low, high, light & normal & (m >= FEWEST_DRAWS)

    def _finite_sample(self) -> tuple[float, float]:
        shift = self._shift(True)
        stages, centres = [], np.zeros(self.design.strata)
        for number, (terms, bets) in enumerate(zip(self.terms, self.bets, strict=True)):
            stages.append(Stage(np.exp(terms - shift), *bets, centres))
            centres = np.mean(np.concatenate([stage.y for stage in stages[: number + 1]]), axis=0)
        if self.design.strata > 1:
            low, high = bernstein_interval(stages, self.ask.delta)
        else:
            low, high = betting_interval(stages, self.ask.delta, self.design.population)
        return self._total(low, True), self._total(high, True)

    def _bets(self, rounds: int) -> tuple[float, float]:
        draws = moments(self._draws(True))
        best = float(stake(draws.variance, rounds * self.design.strata, self.ask.delta))
        return best, best

    def _plan(self, limit: int) -> int:
        """The fewest rounds, in steps of 2 %, after which the target is likely to be met."""
        if not math.isfinite(self._value()):
            return limit
        steps = math.ceil(math.log(max(limit / self.rounds, 1.0)) / math.log(GROWTH)) + 1
        rounds = np.minimum(np.ceil(self.rounds * GROWTH ** np.arange(1, steps + 1)), limit)
        m = rounds * self.design.strata
        draws, population = moments(self._draws(self.bounded)), self.design.population
        if self.bounded:
            placed = m - sum(z.size for z, bets in zip(self.z, self.bets, strict=True) if bets == (0.0, 0.0))
            low, high = forecast(draws, placed, self.ask.delta, population, linear=self.design.strata > 1)
            claimed = np.ones_like(m, dtype=bool)
        else:
            low, high, claimed = self._asymptotic(draws, m)
            claimed &= m >= self.ask.look
        with np.errstate(divide="ignore"):  # log 0
            limits = [np.logaddexp(log_sum(self.head), np.log(mean) + self._shift(self.bounded)) for mean in (low, high)]
        enough = claimed & self._meets(*limits)
        return int(rounds[np.argmax(enough)]) if enough.any() else limit

    def _finish(self, value: float, lower: float, upper: float, certificate: Any) -> Estimate:
        slack = rounding(self.ask, value)
        inner = (upper - self.ask.target, lower + self.ask.target) if self._meets(lower, upper) else (lower, upper)
        value = min(max(value, lower, inner[0]), upper, inner[1])
        exact = self._sample_logsumexp() if self.ask.source.differentiable else None
        value = as_asked(self.ask, value, exact)
        return Estimate(value, lower - slack, upper + slack, self.evaluations, certificate, self.drawn)

    def _sample_logsumexp(self) -> Tensor:
        """log(Σ_head exp(z) + mean of exp(terms)), which autograd follows to the scores that were read."""
        parts = [self.ask.select(self.design.head)]
        for indices, z, terms in zip(self.indices, self.z, self.terms, strict=True):
            selected = self.ask.select(indices.ravel())
            log_weights = np.where(np.isinf(z), 0.0, terms - np.where(np.isinf(z), 0.0, z)).ravel() - math.log(self.drawn)
            parts.append(selected + torch.from_numpy(log_weights).to(selected.device))
        return row_logsumexp(torch.cat(parts), 1.0, None)
