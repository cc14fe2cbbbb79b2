"""Sums of many clients that tell less than their own: with noise, or as shares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from softmaxima.base.numbers import check_choice, check_confidence, check_one_temperature, check_positive
from softmaxima.base.public import public
from softmaxima.base.unquoted import kind_of, read_scores
from softmaxima.federated.summaries import rounding

if TYPE_CHECKING:
    from softmaxima.privacy import Entries, Release
    from softmaxima.secure import Opened


@public
def private_logsumexp(
    clients: Sequence[Any],
    records: Entries,
    *,
    epsilon: float,
    noise: str = "client",
    temperature: float = 1.0,
    confidence: float = 0.95,
) -> Release:
    """log Σ exp(x/τ) over all clients, ε-differentially private, each score being a record of one client alone.

    Noise is added by the clients, each to its own sum before it sends it, so that the server is told nothing else; or once by
    the server, which is trusted with all scores: its noise is for the sensitivity of all n of them, with "add-remove" of `least`
    times the number of clients, and where scores are many that is as many times less. A record is with one client, so that ε of
    each is ε of all. Of entries with `relation="replace"` n and how many scores each client has are public; with "add-remove" how
    many clients there are, each of which has at least `least`.

    Args:
        clients: of each client its scores [n_i], NumPy's or torch's.
        records: `sm.privacy.Entries`.
        epsilon: ε > 0.
        noise: who adds it, "client" or "server".
        temperature: τ > 0, the same for all.
        confidence: with which the interval holds the sum: of clients' noise each interval with more, so that all hold at once.

    Returns:
        A `sm.privacy.Release`. Of clients' noise its scale is the largest of theirs, and its value is high on average, by
        Σ_c p_c (1 − p_c) s_c² up to terms of s⁴, with p_c the share of client c in the sum and s_c its scale: (1 − 1/C) s² of C
        clients that are alike, and nothing of one. At scales of ½ that is up to a sixth too much, at larger ones more.

    Raises:
        ImportError without opendp, and TypeError or ValueError, with nothing released: as `sm.privacy.logsumexp`, and for a client
        of no scores, or of fewer than `least`, with either noise.

    Cost: two reads of x, and 10 ms a client to search the scale. Source: as of `sm.privacy.logsumexp`.

    >>> import numpy as np, softmaxima as sm
    >>> clients, entries = [np.zeros(500), np.ones(300)], sm.privacy.Entries(bounds=(0, 1))
    >>> found = sm.federated.private_logsumexp(clients, entries, epsilon=1.0)
    >>> found.lower < found.value < found.upper, round(found.scale, 4)
    (True, 0.0057)
    """
    from softmaxima import privacy
    from softmaxima.privacy.measurements import Cost
    from softmaxima.privacy.records import read_row
    from softmaxima.privacy.sums import releasing

    name = "private_logsumexp"
    rows = _clients(name, clients)
    check_choice(name, "noise", noise, ("client", "server"))
    if not isinstance(records, privacy.Entries):
        raise TypeError(f"{name}: records must be sm.privacy.Entries(bounds=…), got {kind_of(records)}; pass what one entry can be")
    confidence, temperature = check_confidence(name, confidence), check_one_temperature(name, temperature)
    cost = Cost(check_positive(name, "epsilon", epsilon))
    read = [read_row(f"{name}: client {client}", row, records) for client, row in enumerate(rows)]
    if noise == "server":
        read = [[score for row in read for score in row]]
        if records.least is not None:
            records = replace(records, least=records.least * len(rows))
    # All that can be refused is, before one is told.
    releases = [releasing(name, records, len(row), temperature, cost, confidence, len(read)) for row in read]
    told = [release(row) for release, row in zip(releases, read, strict=True)]
    if noise == "server":
        return told[0]
    value, lower, upper = (float(np.logaddexp.reduce([getattr(one, what) for one in told])) for what in ("value", "lower", "upper"))
    widest = max(told, key=lambda one: one.scale)
    return privacy.Release(
        value, lower, upper, confidence, widest.epsilon, 0.0, None, widest.sensitivity, widest.scale, widest.mechanism
    )


@public
def secure_logsumexp(
    clients: Sequence[Any], *, bounds: tuple[float, float], bits: int = 32, temperature: float = 1.0, timeout: float = 60.0
) -> Opened[float]:
    """log Σ exp(x/τ) over at least three clients, each a party that shares its own sum and shows it to none.

    Each sums its scores by itself, so that what is computed on shares is the logsumexp of one number a client. Public are the
    bounds, τ, bits and the largest n_i; all are told the sum, from which each knows that of the others together.

    Args:
        clients: of each client its scores [n_i], NumPy's or torch's, at least one. One client alone has nobody to hide from.
        bounds: (a, b), public, which hold x/τ.
        bits, timeout: as of `sm.secure.evaluate`, which runs the parties on this machine.
        temperature: τ > 0, the same for all.

    Raises:
        ImportError without mpyc, TypeError or ValueError before any work, ConnectionError for parties that are missing.

    >>> import numpy as np, softmaxima as sm
    >>> found = sm.federated.secure_logsumexp([np.zeros(4)], bounds=(-1, 1))  # one alone hides nothing
    >>> bool(abs(found.value - np.log(4)) <= found.error)
    True
    """
    from softmaxima.io import LogSumExpState
    from softmaxima.secure.evaluation import evaluated
    from softmaxima.secure.fixed_point import FARTHEST, fixed_point

    name = "secure_logsumexp"
    rows, temperature = _clients(name, clients), check_one_temperature(name, temperature)
    if len(rows) == 2:
        raise ValueError(f"{name}: clients must be one or at least three, for two cannot hide from each other, got 2")
    low, high = fixed_point(name, 1, bounds, bits).bounds
    largest = max(map(len, rows))
    if largest and (more := math.log(largest)) > FARTHEST - high:
        raise ValueError(f"{name}: bounds must be at most 2³² − log n = {FARTHEST - more:.17g}, got ({low}, {high})")
    for client, row in enumerate(rows):
        if not len(row):
            raise ValueError(f"{name}: a client must have at least one score, got none from client {client}; leave it out")
        if not np.isfinite(row).all():
            raise ValueError(f"{name}: scores must be finite, and some of client {client} are not; leave them out of its own sum")
        with np.errstate(over="ignore"):
            z = row / temperature
        if ((z < low) | (z > high)).any():
            raise ValueError(
                f"{name}: scores must lie in the bounds [{low}, {high}], and some of client {client} do not; declare wider bounds"
            )
    states = [LogSumExpState(squares=None).update(row, temperature=temperature) for row in rows]
    wide = low, high + math.log(largest)
    sums = [np.array([float(state.value)]).clip(*wide) for state in states]  # which rounding may have moved out
    found = evaluated(name, "logsumexp", sums, wide, bits, timeout=timeout)
    return replace(found, error=found.error + max(map(rounding, states)))


def _clients(name: str, clients: Any) -> list[np.ndarray]:
    if not isinstance(clients, (list, tuple)) or not clients:
        raise ValueError(
            f"{name}: clients must be a list of the scores [n] of each, "
            f"got {'none' if isinstance(clients, (list, tuple)) else kind_of(clients)}; pass a row of each"
        )
    rows = [read_scores(name, row, f" of client {client}") for client, row in enumerate(clients)]
    for client, row in enumerate(rows):
        if np.isnan(row).any():
            raise ValueError(f"{name}: scores must be numbers, got NaN from client {client}; nothing was released")
    return rows
