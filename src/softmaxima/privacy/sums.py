"""logsumexp with noise: log Σ exp(x/τ) + Z, Z of Laplace's distribution of scale Δ/ε, or normal of σ = Δ/√(2ρ)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from softmaxima.base.arguments import Array
from softmaxima.base.numbers import check_confidence, check_one_temperature
from softmaxima.base.public import public
from softmaxima.privacy.library import dp
from softmaxima.privacy.measurements import Cost, check_cost, noisy_sum, within_float64
from softmaxima.privacy.records import Records, check_records, read_row, sensitivity_of


@dataclass(frozen=True)
class Release:
    """A number that may be told, what telling it cost, and an interval that holds the true one.

    value: log Σ exp(x/τ) with noise, in nats.
    lower, upper: they hold the number without noise with a probability of `confidence`; the interval tells no more than the value.
    epsilon, delta, rho: what was spent, in the measure that was asked for; None of the other.
    sensitivity: the most that one record moves the number.
    scale: of the noise: Laplace's, or the standard deviation.
    mechanism: "laplace" or "gaussian".

    >>> import numpy as np, softmaxima as sm
    >>> release = sm.privacy.logsumexp(np.zeros(1000), sm.privacy.Entries(bounds=(0, 1)), epsilon=1.0)
    >>> release.mechanism, release.epsilon, round(release.scale, 6)
    ('laplace', 1.0, 0.001717)
    """

    value: float
    lower: float
    upper: float
    confidence: float
    epsilon: float | None
    delta: float
    rho: float | None
    sensitivity: float
    scale: float
    mechanism: str


@public
def logsumexp(
    x: Array,
    records: Records,
    *,
    epsilon: float | None = None,
    delta: float = 0.0,
    rho: float | None = None,
    temperature: float = 1.0,
    confidence: float = 0.95,
) -> Release:
    """log Σ exp(x_i/τ) in nats, with OpenDP's noise of the least scale that keeps the promise.

    Args:
        x: scores [n], NumPy's or torch's.
        records: `Scores` or `Entries`, what one record can do to them.
        epsilon: ε > 0 of pure privacy, by Laplace's noise; with `delta` of approximate privacy, by a Gaussian's.
        delta: δ, at least 0 and below 1. The scale is found by way of ρ, which is more than is needed; of one number Laplace's
            noise of the same ε is smaller yet unless δ is large. A Gaussian has lighter tails, and adds up better in ρ.
        rho: ρ > 0 of zero-concentrated privacy, by a Gaussian's noise, instead of ε.
        temperature: τ > 0, public.
        confidence: with which the interval of the `Release` holds the sum.

    Raises:
        TypeError or ValueError, with nothing released: for NaN, for scores beyond the declared bounds (which clip=True moves
        there), for an ε or ρ that is not positive, both or neither, and for noise beyond float64. That data
        was refused tells of it.

    Noise is OpenDP's, of the operating system's randomness, and takes no seed: who knows the seed knows the noise.

    Cost: one read of x, and 10 ms to search the scale, with δ half a second. Source: Dwork et al. (2006); Bun and Steinke (2016).

    >>> import numpy as np, softmaxima as sm
    >>> votes = sm.privacy.Scores(bounds=(0, 1000), change=1)
    >>> release = sm.privacy.logsumexp(np.array([410.0, 320.0, 15.0]), votes, epsilon=0.5)
    >>> release.lower < release.value < release.upper, round(release.scale, 6)
    (True, 2.0)
    """
    name = "logsumexp"
    check_records(name, records)
    cost = check_cost(name, epsilon, delta, rho)
    tau, confidence = check_one_temperature(name, temperature), check_confidence(name, confidence)
    scores = read_row(name, x, records)
    return releasing(name, records, len(scores), tau, cost, confidence)(scores)


def releasing(
    name: str, records: Records, n: int, temperature: float, cost: Cost, confidence: float, at_once: int = 1
) -> Callable[[list[float]], Release]:
    """What takes n scores to a `Release`; all that can be refused is, before it has them. So many intervals hold at once."""
    sensitivity = sensitivity_of(name, records, n, temperature)
    laplace = cost.measure == "epsilon"
    accuracy = dp.laplacian_scale_to_accuracy if laplace else dp.gaussian_scale_to_accuracy
    with within_float64(name, f"{cost} at temperature={temperature}", records):
        measurement, scale = noisy_sum(records, n, temperature, cost)
        reach = accuracy(scale, (1 - confidence) / at_once)
        if not reach < math.inf:
            raise ValueError("the interval is beyond float64")

    def release(scores: list[float]) -> Release:
        value = measurement(scores)
        return Release(
            value, value - reach, value + reach, confidence, cost.epsilon, cost.delta, cost.rho, sensitivity, scale,
            "laplace" if laplace else "gaussian",
        )  # fmt: skip

    return release
