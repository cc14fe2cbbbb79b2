"""An index of scores by noise: argmax(x + Z). With Gumbel's noise of scale τ it is a draw from softmax(x/τ)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from softmaxima.core.arguments import Array
from softmaxima.core.numbers import InputError, check_confidence, check_one_temperature
from softmaxima.privacy.measurements import Cost, check_cost, noisy_choice, scale_of_choice, within_float64
from softmaxima.privacy.records import Scores, read_row


@dataclass(frozen=True)
class Choice:
    """An index that may be told, and what telling it cost.

    index: of the score that was the largest with noise.
    epsilon, rho: what was spent. Of Gumbel's noise both are: ρ = ε²/8.
    scale: of the noise, in the unit of the scores.
    within: with a probability of `confidence` the score at the index is no further than this below the largest.
    mechanism: "exponential noise" or "gumbel noise".

    >>> import numpy as np, softmaxima as sm
    >>> votes = sm.privacy.Scores(bounds=(0, 1000), change=1)
    >>> sm.privacy.argmax(np.array([410.0, 20.0, 15.0]), votes, epsilon=1.0).index
    0
    """

    index: int
    epsilon: float | None
    rho: float | None
    scale: float
    within: float
    confidence: float
    mechanism: str


def argmax(
    x: Array, records: Scores, *, epsilon: float | None = None, rho: float | None = None, confidence: float = 0.95
) -> Choice:
    """The index of the largest score, as surely as ε or ρ allows: exponential noise of scale 2c/ε, or Gumbel's.

    Args:
        x: scores [n], NumPy's or torch's.
        records: `Scores`: what one record can do to them.
        epsilon: ε > 0 of pure privacy.
        rho: ρ > 0 of zero-concentrated privacy, instead.
        confidence: of `Choice.within`.

    Raises:
        TypeError or ValueError, with nothing released: see `logsumexp`.

    Cost: one read of x. Source: McKenna and Sheldon (2020), whose permute-and-flip is this with exponential noise.

    >>> import torch, softmaxima as sm
    >>> votes = sm.privacy.Scores(bounds=(0, 1000), change=1, monotone=True)
    >>> choice = sm.privacy.argmax(torch.tensor([2.0, 300.0]), votes, epsilon=1.0)
    >>> choice.index, choice.scale, round(choice.within, 6)
    (1, 1.0, 3.688879)
    """
    name = "argmax"
    check_scores_of_records(name, records)
    cost, confidence = check_cost(name, epsilon, 0.0, rho), check_confidence(name, confidence)
    scores = read_row(name, x, records)
    return choosing(name, records, len(scores), cost, confidence)(scores)


def sample(
    x: Array,
    records: Scores,
    *,
    temperature: float | None = None,
    epsilon: float | None = None,
    rho: float | None = None,
    confidence: float = 0.95,
) -> Choice:
    """A draw from softmax(x/τ), the exponential mechanism, which costs ε = 2c/τ and ρ = ε²/8; monotone scores half the ε.

    Args:
        x: scores [n], NumPy's or torch's.
        records: `Scores`: what one record can do to them.
        temperature: τ > 0, and the cost follows. Or
        epsilon, rho: what may be spent, and τ follows.
        confidence: of `Choice.within`.

    Raises:
        TypeError or ValueError, with nothing released: see `logsumexp`; also for more or less than one of τ, ε and ρ.

    Cost: one read of x. Source: McSherry and Talwar (2007).

    >>> import numpy as np, softmaxima as sm
    >>> votes = sm.privacy.Scores(bounds=(0, 1000), change=1)
    >>> choice = sm.privacy.sample(np.array([410.0, 20.0, 15.0]), votes, temperature=4.0)
    >>> choice.index, choice.epsilon, choice.rho
    (0, 0.5, 0.03125)
    """
    name = "sample"
    check_scores_of_records(name, records)
    given = [what for what, value in (("temperature", temperature), ("epsilon", epsilon), ("rho", rho)) if value is not None]
    if len(given) != 1:
        raise ValueError(f"{name}: pass one of temperature=, epsilon= and rho=, got {' and '.join(given) or 'none of them'}")
    confidence = check_confidence(name, confidence)
    tau = None if temperature is None else check_one_temperature(name, temperature)
    cost = None if tau is not None else check_cost(name, epsilon, 0.0, rho)
    scores = read_row(name, x, records)
    n = len(scores)
    with within_float64(name, cost or f"temperature={tau}", records):
        if cost is not None:  # exponential noise of the same scale costs the same ε
            tau = scale_of_choice(records, n, cost)
        drawn = Cost(rho=noisy_choice(records, n, tau, "rho").map(records.distance))  # type: ignore[arg-type]
    return choosing(name, records, n, drawn, confidence, tau)(scores)


def choosing(
    name: str, records: Scores, n: int, cost: Cost, confidence: float, scale: float | None = None
) -> Callable[[list[float]], Choice]:
    """What takes n scores to a `Choice`, by noise of the least scale, or of this; all that can be refused is, before it has them.

    A score below the largest by t is chosen only if its noise is above t more than that of the largest.
    """
    with within_float64(name, cost, records):
        least = scale_of_choice(records, n, cost) if scale is None else scale
        measurement = noisy_choice(records, n, least, "rho" if cost.rho is not None else "epsilon")
    within = least * (math.log(n) - math.log1p(-confidence))
    pure, kind = (cost.epsilon, "exponential noise") if cost.rho is None else (math.sqrt(8 * cost.rho), "gumbel noise")
    return lambda scores: Choice(measurement(scores), pure, cost.rho, least, within, confidence, kind)


def check_scores_of_records(name: str, records: Any) -> Scores:
    """Whether an index tells of candidates, and not of a person."""
    if not isinstance(records, Scores):
        raise InputError.of_argument(
            name,
            "records",
            "must be sm.privacy.Scores(bounds=…, change=…): an index among records themselves would name one of them",
        )
    return records
