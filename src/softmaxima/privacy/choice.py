"""An index of scores by noise: argmax(x + Z). With Gumbel's noise of scale τ it is a draw from softmax(x/τ)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from softmaxima.base.arguments import Array
from softmaxima.base.numbers import InputError, check_confidence, check_one_temperature
from softmaxima.base.public import public
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


@public
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
    return choosing(name, records, len(scores), cost, confidence, gumbel=cost.rho is not None)(scores)


@public
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
    asked = check_cost(name, epsilon, 0.0, rho) if temperature is None else check_one_temperature(name, temperature)
    scores = read_row(name, x, records)
    return choosing(name, records, len(scores), asked, confidence, gumbel=True)(scores)


def choosing(
    name: str, records: Scores, n: int, asked: Cost | float, confidence: float, *, gumbel: bool
) -> Callable[[list[float]], Choice]:
    """What takes n scores to a `Choice`, by noise of the least scale for a cost, or of the scale that is asked for.

    All that can be refused is, before it has them. Gumbel's noise costs the ε of exponential noise of its scale, and ρ = ε²/8. A
    score below the largest by t is chosen only if its noise is above t more than that of the largest.
    """
    with within_float64(name, asked if isinstance(asked, Cost) else f"temperature={asked}", records):
        scale, cost = (scale_of_choice(records, n, asked), asked) if isinstance(asked, Cost) else (asked, Cost())
        measurement = noisy_choice(records, n, scale, "rho" if gumbel else "epsilon")
        epsilon, rho = cost.epsilon, cost.rho
        if gumbel and rho is None:
            rho = float(measurement.map(records.distance))
        if epsilon is None and rho is not None:
            epsilon = math.sqrt(8 * rho)
    within = scale * (math.log(n) - math.log1p(-confidence))
    kind = "gumbel noise" if gumbel else "exponential noise"
    return lambda scores: Choice(measurement(scores), epsilon, rho, scale, within, confidence, kind)


def check_scores_of_records(name: str, records: Any) -> Scores:
    """Whether an index tells of candidates, and not of a person."""
    if not isinstance(records, Scores):
        raise InputError.of_argument(
            name,
            "records",
            "must be sm.privacy.Scores(bounds=…, change=…): an index among records themselves would name one of them",
        )
    return records
