r"""What a client sends of its scores: its k largest, and of the others their sum of exponentials, or only how many there are.

(M, m, r) of all scores: three numbers, from which log Σ exp is exact whatever is merged.
The k largest and the count c of the others: each of these is in [floor, cap], the cap being the smallest that was sent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from softmaxima.core.arguments import Array, as_scores
from softmaxima.core.numbers import InputError, check_count, check_flag, check_number, check_one_temperature
from softmaxima.streams import LogSumExpState


@dataclass(frozen=True, eq=False)
class Summary:
    """What one client tells. It can be pickled, and is sent by whatever sends.

    top: the k largest x/τ in falling order, float64 [k], fewer where there are fewer; −∞ is left out.
    items: which they are: the client's names for them, or their places.
    n: how many scores above −∞ the client has.
    state: (M, m, r) of all of them, a `LogSumExpState`, or None where only the largest are told.
    floor: below which no score is, −∞ where nothing is known.

    >>> import numpy as np, softmaxima as sm
    >>> told = sm.federated.summarise(np.array([0.0, 3.0, 1.0, 2.0]), k=2)
    >>> told.top, told.items, told.left_out, told.cap, told.numbers
    (array([3., 2.]), array([1, 3]), 0, -inf, 8)
    """

    top: np.ndarray
    items: np.ndarray
    n: int
    state: LogSumExpState | None
    floor: float

    @property
    def left_out(self) -> int:
        """How many scores are known by their number alone."""
        return 0 if self.state is not None else self.n - len(self.top)

    @property
    def cap(self) -> float:
        """What none of those exceeds: the smallest that was sent, +∞ where none was; −∞ where nothing is left out."""
        if not self.left_out:
            return -math.inf
        return float(self.top[-1]) if len(self.top) else math.inf

    @property
    def numbers(self) -> int:
        """How many numbers are sent: two for each of the largest, n, and the state or the floor."""
        return 2 * len(self.top) + 1 + (3 if self.state is not None else 1)


def summarise(
    x: Array, k: int = 0, *, items: Any = None, whole: bool = True, floor: float = -math.inf, temperature: float = 1.0
) -> Summary:
    """What a client sends of its scores x.

    Args:
        x: scores [n] of one client, NumPy's or torch's; n may be 0. −∞ counts for nothing.
        k: how many of the largest to send.
        items: [n] names of the scores, which no other client has; their places without.
        whole: whether to send the sum of exponentials of all scores, in three numbers. Without it only the k largest are told, and
            the number of the others, so that merging gives an interval.
        floor: a number that no x/τ is below, which narrows that interval.
        temperature: τ > 0, the same for all clients.

    Raises:
        TypeError or ValueError before any work: also for NaN, +∞, and scores below the floor.

    Cost: one read of x for the sum, and one for the largest.

    >>> import numpy as np, softmaxima as sm
    >>> told = sm.federated.summarise(np.array([0.0, 3.0, 1.0, 2.0]), k=2, whole=False, floor=-1.0)
    >>> told.left_out, told.cap, told.floor
    (2, 2.0, -1.0)
    """
    name = "summarise"
    scores = as_scores(name, x).detach().double().cpu().numpy()
    k, whole = check_count(name, "k", k, 0), check_flag(name, "whole", whole)
    tau = check_one_temperature(name, temperature)
    floor = check_number(name, "floor", floor, lambda number: number < math.inf, "a number below +inf")
    if scores.ndim != 1:
        raise ValueError(f"{name}: scores of a client must be one row [n], got shape {scores.shape}")
    if np.isnan(scores).any() or (scores == math.inf).any():
        raise InputError.of_argument(name, "scores", "must be numbers below +inf, and some are not; nothing was sent")
    places = np.arange(len(scores)) if items is None else np.asarray(items)
    if places.shape != scores.shape:
        raise ValueError(f"{name}: items must name each of the {len(scores)} scores, got shape {places.shape}")
    z = scores / tau
    if (z < floor).any():
        raise ValueError(
            f"{name}: scores must be at least the floor {floor}, and some are not; declare a lower one. Nothing was sent"
        )
    state = LogSumExpState(squares=None).update(scores, temperature=tau) if whole else None
    order = np.argsort(-z, kind="stable")[:k]
    order = order[z[order] > -math.inf]
    return Summary(z[order], places[order], int((z > -math.inf).sum()), state, floor)
