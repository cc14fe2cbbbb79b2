"""Which items of a catalogue does a user like? Scores of all items, a chunk at a time, are never in memory together.

How many items sparsemax leaves a user, the probability of the likeliest by softmax, and the loss come from one Dask array of
users × items that is made of two matrices.

    pip install 'softmaxima[dask]'
    python examples/dask_catalogue.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import softmaxima as sm
from softmaxima_lab.commands.example import run

if TYPE_CHECKING:
    import dask.array as da

USERS, ITEMS, SIZE = 200, 20_000, 16
TEMPERATURE = 0.2


def catalogue(users: int = USERS, items: int = ITEMS) -> tuple[da.Array, np.ndarray]:
    """(scores [users, items] in chunks of 100 × 5000, the item that each user chose)."""
    import dask.array as da

    generator = np.random.default_rng(0)
    tastes, features = generator.standard_normal((users, SIZE)), generator.standard_normal((items, SIZE))
    chosen = generator.integers(0, items, users)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    tastes = 0.3 * tastes + 3.0 * features[chosen]
    return da.from_array(tastes, chunks=(100, SIZE)) @ da.from_array(features, chunks=(5000, SIZE)).T, chosen


def study(scores: da.Array, chosen: np.ndarray) -> dict[str, np.ndarray]:
    """log Z [users], how many items sparsemax leaves [users], what softmax gives to the largest [users], the loss."""
    import dask
    import dask.array as da

    log_partition = sm.dask.logsumexp(scores, temperature=TEMPERATURE)
    wanted = {
        "log_partition": log_partition,
        "support": (sm.dask.sparsemax(scores, temperature=TEMPERATURE) > 0).sum(-1),
        "largest": da.exp(scores.max(-1) / TEMPERATURE - log_partition),
        "loss": sm.dask.cross_entropy(scores, chosen, temperature=TEMPERATURE),
    }
    return dask.compute(wanted)[0]  # one graph: each chunk of scores is made once


def main() -> None:
    scores, chosen = catalogue()
    found = study(scores, chosen)
    print(f"{scores.shape[1]} items, of which sparsemax leaves {found['support'].mean():.1f} a user")
    print(f"softmax gives {found['largest'].mean():.2f} to the likeliest; cross-entropy {float(found['loss']):.3f} nats")


if __name__ == "__main__":
    run(main, __doc__, needs=("dask",))
