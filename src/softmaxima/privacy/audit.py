r"""Whether a mechanism leaks more than it says: a lower bound of ε from what it answers to two neighbours.

    ε ≥ log((P[A(x) ∈ E] − δ) / P[A(x′) ∈ E])      for every event E, either way round

One half of the answers chooses E, the other bounds both probabilities (Clopper–Pearson), so that the choice does not count. An
audit can show that a promise is broken, and never that it is kept. It sees thresholds and values of what is answered, to these two
inputs: no other neighbours, no low bits of a float, no event rarer than some in `trials`, neither time nor errors, and nothing that
was told beside the answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from softmaxima.base.numbers import as_number, check_confidence, check_count, check_number
from softmaxima.base.public import public
from softmaxima.base.unquoted import kind_of

THRESHOLDS = 64  # events of each side that are tried
FEW = 32  # values that are events themselves


@dataclass(frozen=True)
class Audit:
    """What two neighbours' answers say of ε.

    epsilon: at least so much leaks, with the asked confidence; 0 if nothing was seen, which proves nothing.
    confidence: with which that holds, over the noise of the answers.
    event: where the answers differ most, such as "answer >= 2.5 of x".
    trials: how many answers of each were taken.
    """

    epsilon: float
    confidence: float
    event: str
    trials: int


@public
def audit(
    release: Callable[[Any], Any],
    x: Any,
    neighbour: Any,
    *,
    trials: int = 10_000,
    confidence: float = 0.99,
    delta: float = 0.0,
    advanced: Callable[[], None] = lambda: None,
) -> Audit:
    """A lower bound of the ε of a mechanism, from its answers to two neighbouring inputs.

    Args:
        release: a function of the input that gives a number or an index, with its noise, such as `Release.value`; independent
            answers, so that none may spend a `Budget` that another has.
        x, neighbour: two inputs that differ in one record: the worse they are for the mechanism, the more is seen.
        trials: answers to each.
        confidence: with which ε is at least what comes out.
        delta: δ that the mechanism may add.
        advanced: called after each pair of answers, for a bar of progress.

    Raises:
        TypeError or ValueError, before any answer; and at the first answer that is not a number, or NaN.

    Cost: 2 · trials answers. Source: Jagielski, Ullman and Oprea (2020).

    >>> import numpy as np, softmaxima as sm
    >>> entries, x = sm.privacy.Entries(bounds=(0, 1)), np.zeros(4)
    >>> found = sm.privacy.audit(
    ...     lambda row: sm.privacy.logsumexp(row, entries, epsilon=1.0).value, x, np.array([1.0, 0, 0, 0]), trials=200)
    >>> found.epsilon <= 1.0
    True
    """
    name = "audit"
    if not callable(release):
        raise TypeError(f"{name}: release must be a function of the input, got {type(release).__name__}")
    check_count(name, "trials", trials, 4)
    confidence = check_confidence(name, confidence)
    delta = check_number(name, "delta", delta, lambda number: 0 <= number < 1, "a number of at least 0 and below 1")
    answers = np.empty((2, trials))
    for trial in range(trials):
        answers[:, trial] = _number(name, release(x)), _number(name, release(neighbour))
        advanced()
    seen, held = answers[:, : trials // 2], answers[:, trials // 2 :]
    doubt = (1 - confidence) / 2
    event, holds, first = max(_events(seen), key=lambda one: _bound(one[1](seen[one[2]]), one[1](seen[1 - one[2]]), doubt, delta))
    found = _bound(holds(held[first]), holds(held[1 - first]), doubt, delta)
    return Audit(max(found, 0.0), confidence, f"{event} of {('x', 'the neighbour')[first]}", trials)


def _number(name: str, answer: Any) -> float:
    number = as_number(answer)
    if number is None:
        wanted = "pass a function that gives a number of it, such as .value of a Release and .index of a Choice"
        raise TypeError(f"{name}: release must give a number or an index, got {kind_of(answer)}; {wanted}")
    if math.isnan(number):
        raise ValueError(f"{name}: release must give a number or an index, got NaN; give another number where it has none")
    return number


def _events(seen: np.ndarray) -> Iterator[tuple[str, Callable[[np.ndarray], np.ndarray], int]]:
    """(what, whether answers are in it, whose answers are to be the more often there)."""
    for first in (0, 1):
        for t in np.unique(np.quantile(seen, np.linspace(0, 1, THRESHOLDS), method="inverted_cdf")):
            yield f"answer >= {t:.6g}", (lambda y, t=t: y >= t), first
            yield f"answer <= {t:.6g}", (lambda y, t=t: y <= t), first
        values = np.unique(seen)
        for v in values if len(values) <= FEW else ():
            yield f"answer == {v:.6g}", (lambda y, v=v: y == v), first


def _bound(often: np.ndarray, rarely: np.ndarray, doubt: float, delta: float) -> float:
    """log((p − δ)/q) of the lower limit of p and the upper one of q."""
    from scipy.stats import beta  # loaded for an audit alone

    inside, n, other, m = int(often.sum()), often.size, int(rarely.sum()), rarely.size
    low = float(beta.ppf(doubt, inside, n - inside + 1)) if inside else 0.0
    high = float(beta.ppf(1 - doubt, other + 1, m - other)) if other < m else 1.0
    return math.log((low - delta) / high) if low > delta else -math.inf
