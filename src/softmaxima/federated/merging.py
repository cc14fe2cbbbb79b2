r"""What a server makes of summaries, whatever was left out:

    log(Σ_sent eˣ + Σ_c n_c e^{floor_c}) ≤ LSE ≤ log(Σ_sent eˣ + Σ_c n_c e^{cap_c})

over clients c that left n_c scores out. Where all sent (M, m, r) nothing is left out, and both are the value. Either end is moved
outwards by what rounding may have done. The k largest of all are among the k largest of each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from softmaxima.base.numbers import InputError, check_count
from softmaxima.base.public import public
from softmaxima.base.unquoted import kind_of
from softmaxima.federated.summaries import Summary, check_summary, rounding
from softmaxima.io import LogSumExpState
from softmaxima.lse import Estimate

MOST = 2**62  # scores of all clients, which int64 counts


@dataclass(frozen=True, eq=False)
class Merged:
    """What is known of the scores of all clients.

    estimate: log Σ exp(x/τ) with an interval that holds it, `deterministic`; an `Estimate`. Its `evaluations` are the scores whose
        exponentials are in it, and its value is the middle of the interval, which of whole sums has the width of their rounding.
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
    items: list[tuple[int, str | int | float]]
    n: int
    numbers: int


@public
def merge(summaries: Sequence[Summary], k: int | None = None) -> Merged:
    """The sum of exponentials and the largest scores of all clients, from what they sent.

    Args:
        summaries: of each client one, with the same τ.
        k: how many of the largest to give; all that are known without it.

    Raises:
        TypeError or ValueError for what are no summaries or none, for one that no scores have (its client is named), for other τ
        than one, for more than 2⁶² scores in all, and for more of the largest than are known.

    In another order of clients the estimate is the same to 1 ulp, and equals among the largest stand in the order of clients.

    Cost: of the numbers that were sent, in one round.

    >>> import numpy as np, softmaxima as sm
    >>> rows = np.array([0.0, 3.0, -1.0]), np.array([4.0, 1.0, 0.5])
    >>> found = sm.federated.merge([sm.federated.summarise(row, k=2, whole=False, floor=-2.0) for row in rows]).estimate
    >>> round(found.lower, 3), round(found.upper, 3), found.certificate
    (4.365, 4.408, 'deterministic')
    """
    name = "merge"
    if not isinstance(summaries, (list, tuple)):
        raise TypeError(f"{name}: summaries must be a list of Summary, got {kind_of(summaries)}; pass a list of one of each client")
    for client, each in enumerate(summaries):
        if not isinstance(each, Summary):
            raise TypeError(
                f"{name}: summaries must be a list of Summary, got {kind_of(each)} from client {client}; "
                "pass what summarise() gives"
            )
        check_summary(f"{name}: client {client}", each)  # one that was unpickled was not looked at
    if not summaries:
        raise ValueError(f"{name}: summaries must be of at least one client, got none")
    _check_temperatures(name, summaries)
    _check_total(name, summaries)
    top, items = _largest(summaries)
    if k is not None:
        check_count(name, "k", k, 0)
        if k > len(top):
            client = max(range(len(summaries)), key=lambda client: _unsent(summaries[client]))
            sent = f"client {client} sent {len(summaries[client].top)} of its {summaries[client].n}"
            raise InputError.of_argument(
                name, "k", f"must be at most {len(top)}, which are known to be the largest, got {k}; {sent}: more are needed"
            )
        top, items = top[:k], items[:k]
    estimate = _estimate(summaries)
    return Merged(estimate, top, items, sum(each.n for each in summaries), sum(each.numbers for each in summaries))


def _check_temperatures(name: str, summaries: Sequence[Summary]) -> None:
    first = summaries[0].temperature
    others = [client for client, each in enumerate(summaries) if each.temperature != first]
    if others:
        raise InputError.of_argument(
            name,
            "summaries",
            f"must be of one temperature, got {first} of client 0 and {summaries[others[0]].temperature} of client {others[0]}"
            f"{f' ({len(others)} of {len(summaries)} differ from the first)' * (len(others) > 1)}; summarise all with the same",
        )


def _check_total(name: str, summaries: Sequence[Summary]) -> None:
    total = sum(each.n if each.state is None else int(each.state.n) for each in summaries)
    if total > MOST:
        raise InputError.of_argument(
            name,
            "summaries",
            f"must be of at most 2⁶² scores in all, those of −∞ included, got {total}; merge them in parts, and take the logsumexp "
            "of the ends of their intervals",
        )


def _estimate(summaries: Sequence[Summary]) -> Estimate:
    sent = LogSumExpState(squares=None)
    for each in summaries:
        sent = sent.merge(each.state or LogSumExpState(squares=None).update(each.top))
    least = most = sent
    for each in summaries:
        if each.left_out:
            least, most = least.merge(_alike(each.floor, each.left_out)), most.merge(_alike(each.cap, each.left_out))
    known, lower, upper = float(sent.value), float(least.value) - rounding(least), float(most.value) + rounding(most)
    seen = sum(each.n - each.left_out for each in summaries)
    if most is sent:
        return Estimate(known, lower, upper, seen, "deterministic")
    value = lower / 2 + upper / 2 if math.isfinite(upper - lower) else max(known, lower)
    return Estimate(value, lower, upper, seen, "deterministic")


def _alike(z: float, count: int) -> LogSumExpState:
    """The state of as many scores that all are z."""
    return LogSumExpState(np.array(z), np.array(count if z > -math.inf else 0), squares=None, n=np.array(count))


def _largest(summaries: Sequence[Summary]) -> tuple[np.ndarray, list[tuple[int, Any]]]:
    """The largest scores and whose they are, down to the last that no client may have one above which it did not send."""
    scores = np.concatenate([each.top for each in summaries])
    items = [(client, item) for client, each in enumerate(summaries) for item in each.items.tolist()]
    edge = max(map(_unsent, summaries))
    order = [int(place) for place in np.argsort(-scores, kind="stable") if scores[place] >= edge]
    return scores[order], [items[place] for place in order]


def _unsent(told: Summary) -> float:
    """What no score that is not in its top exceeds."""
    if len(told.top) == told.n:
        return -math.inf
    if len(told.top):
        return float(told.top[-1])
    return math.inf if told.state is None else float(told.state.maximum)
