r"""What a server makes of summaries, whatever was left out:

    log(Σ_sent eˣ + Σ_c n_c e^{floor_c}) ≤ LSE ≤ log(Σ_sent eˣ + Σ_c n_c e^{cap_c})

over clients c that left n_c scores out. Where all sent (M, m, r) nothing is left out, and both are the value. The k largest of all
are among the k largest of each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from softmaxima.core.numbers import InputError, check_count
from softmaxima.federated.summaries import Summary
from softmaxima.lse import Estimate
from softmaxima.streams import LogSumExpState

ROUNDING = 2.0**-50  # of the largest of the sums and the logarithm, what their roundings may take


@dataclass(frozen=True, eq=False)
class Merged:
    """What is known of the scores of all clients.

    estimate: log Σ exp(x/τ) with an interval that holds it, `deterministic`; an `Estimate`. Its `evaluations` are the scores whose
        exponentials are in it, and its value the middle of the interval.
    top: the largest scores of all clients, in falling order; as many as are known to be the largest, k or fewer.
    items: (client, name) of each.
    n: how many scores there are.
    numbers: how many numbers were sent.

    >>> import numpy as np, softmaxima as sm
    >>> clients = [sm.federated.summarise(np.array([0.0, 3.0]), k=1), sm.federated.summarise(np.array([4.0, 1.0]), k=1)]
    >>> merged = sm.federated.merge(clients, k=1)
    >>> round(merged.estimate.value, 6), merged.top, merged.items
    (4.361849, array([4.]), [(1, 0)])
    """

    estimate: Estimate
    top: np.ndarray
    items: list[tuple[int, Any]]
    n: int
    numbers: int


def merge(summaries: Sequence[Summary], k: int | None = None) -> Merged:
    """The sum of exponentials and the largest scores of all clients, from what they sent.

    Args:
        summaries: of each client one, with the same τ.
        k: how many of the largest to give; all that are known without it.

    Raises:
        TypeError or ValueError for what are no summaries, none, and more of the largest than were sent.

    Cost: of the numbers that were sent, in one round.

    >>> import numpy as np, softmaxima as sm
    >>> rows = np.array([0.0, 3.0, -1.0]), np.array([4.0, 1.0, 0.5])
    >>> found = sm.federated.merge([sm.federated.summarise(row, k=2, whole=False, floor=-2.0) for row in rows]).estimate
    >>> round(found.lower, 3), round(found.upper, 3), found.certificate
    (4.365, 4.408, 'deterministic')
    """
    name = "merge"
    if not isinstance(summaries, (list, tuple)) or not all(isinstance(each, Summary) for each in summaries):
        raise TypeError(f"{name}: summaries must be a list of Summary, one of each client, got {type(summaries).__name__}")
    if not summaries:
        raise ValueError(f"{name}: summaries must be of at least one client, got none")
    top, items = _largest(summaries)
    if k is not None:
        check_count(name, "k", k, 0)
        if k > len(top):
            raise InputError.of_argument(
                name, "k", f"must be at most {len(top)}, which are known to be the largest, got {k}; send more"
            )
        top, items = top[:k], items[:k]
    estimate = _estimate(summaries)
    return Merged(estimate, top, items, sum(each.n for each in summaries), sum(each.numbers for each in summaries))


def _estimate(summaries: Sequence[Summary]) -> Estimate:
    sent = LogSumExpState(squares=None)
    for each in summaries:
        sent = sent.merge(each.state or LogSumExpState(squares=None).update(each.top))
    known = float(sent.value)
    seen = sum(each.n - each.left_out for each in summaries)
    partial = [each for each in summaries if each.left_out]
    if not partial:
        return Estimate(known, known, known, seen, "deterministic")
    counts = np.log([each.left_out for each in partial])
    ends = (
        float(np.logaddexp.reduce([known, *(counts + [getattr(each, bound) for each in partial])])) for bound in ("floor", "cap")
    )
    lower, upper = (end - sign * ROUNDING * (abs(end) + 40) for sign, end in zip((1, -1), ends, strict=True))
    value = (lower + upper) / 2 if math.isfinite(upper - lower) else max(known, lower)
    return Estimate(value, lower, upper, seen, "deterministic")


def _largest(summaries: Sequence[Summary]) -> tuple[np.ndarray, list[tuple[int, Any]]]:
    """The largest scores and whose they are, down to the last that no client may have one above which it did not send."""
    scores = np.concatenate([each.top for each in summaries])
    items = [(client, item) for client, each in enumerate(summaries) for item in each.items.tolist()]
    unsent = [float(each.top[-1]) if len(each.top) else math.inf for each in summaries if len(each.top) < each.n]
    edge = max(unsent, default=-math.inf)
    order = [int(place) for place in np.argsort(-scores, kind="stable") if scores[place] >= edge]
    return scores[order], [items[place] for place in order]
