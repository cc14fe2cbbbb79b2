"""Sums over clients that keep their scores: from a state (M, m, r) of each, with noise of each or of a server, and from shares.

Every client is a process of its own, which has readings that no other sees and sends one small message. The truth is what one who
saw all readings would find.

    pip install 'softmaxima[privacy,secure]'
    python examples/private_sums.py
"""

from __future__ import annotations

from contextlib import ExitStack
from multiprocessing import get_context

import numpy as np

import softmaxima as sm
from softmaxima_lab.commands.example import run, unheard

CLIENTS, READINGS, LARGEST = 3, 400, 2
BOUNDS = (0.0, 4.0)


def readings(client: int) -> np.ndarray:
    """What a client measured, higher with some than with others."""
    return np.random.default_rng(client).normal(1.0 + 0.3 * client, 0.7, READINGS).clip(*BOUNDS)


def summary(client: int) -> sm.federated.Summary:
    """What a client sends: its sum as a state, and its largest readings."""
    return sm.federated.summarise(readings(client), LARGEST)


def study(processes: int = CLIENTS, share: bool = True) -> dict[str, float]:
    """log Σ exp of all readings, by each way, and the largest reading, which the states come with."""
    merge = sm.federated.merge  # imported here, before a thread of the pool would
    with ExitStack() as ending:  # the processes, whatever they do
        with unheard():
            pool = ending.enter_context(get_context("spawn").Pool(processes))
        merged = merge(pool.map(summary, range(CLIENTS)))
    clients = [readings(client) for client in range(CLIENTS)]
    entries = sm.privacy.Entries(BOUNDS)
    found = {
        "truth": float(np.logaddexp.reduce(np.concatenate(clients))),
        "states": merged.estimate.value,
        "the largest reading": float(merged.top[0]),
        "noise of each, ε = 1": sm.federated.private_logsumexp(clients, entries, epsilon=1.0).value,
        "noise of the server, ε = 1": sm.federated.private_logsumexp(clients, entries, epsilon=1.0, noise="server").value,
    }
    if share:
        found["shares"] = sm.federated.secure_logsumexp(clients, bounds=BOUNDS, bits=24).value
    return found


def main() -> None:
    print("log Σ exp of all readings, and the largest of them")
    for way, value in study().items():
        print(f"{way:28} {value:.6f}")


if __name__ == "__main__":
    run(main, __doc__, needs=("opendp", "mpyc"))
