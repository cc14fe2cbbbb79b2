"""What the losses of a large layer take beside their gradients, by the process's own peak."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import softmaxima as sm
from conftest import exhaustively
from softmaxima_lab.bench.memory import peak_memory

ROWS, CLASSES, FEATURES = 1024, 60_000, 64
SCORES, GRADIENTS = 4 * ROWS * CLASSES, 4 * FEATURES * (ROWS + CLASSES)
ALLOWED = 2**26


def step(options: dict[str, Any]) -> Callable[[], Any]:
    """A forward and a backward pass, which have been made on a little."""
    torch.set_num_threads(2)
    function = partial(sm.margin_softmax_loss if "margin" in options else sm.linear_loss, **options)

    def both_passes(rows: int, classes: int) -> Callable[[], Any]:
        hidden, weight = torch.randn(rows, FEATURES, requires_grad=True), torch.randn(classes, FEATURES, requires_grad=True)
        target = torch.randint(classes, (rows,))

        def call() -> None:
            loss = function(hidden, weight, target)
            (loss.loss if isinstance(loss, tuple) else loss).sum().backward()

        return call

    both_passes(600, 600)()
    return both_passes(ROWS, CLASSES)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"loss": "sparsemax"},
        exhaustively({"loss": ("entmax", 1.3), "reduction": "none"}),
        exhaustively({"softcap": 30.0, "z_loss": 1e-4, "outputs": "entropy"}),
        {"margin": 0.3},
    ],
    ids=str,
)
def test_scores_take_no_more_than_64_mib(options: dict[str, Any]):
    assert SCORES > 3 * ALLOWED
    assert peak_memory(step, options) <= ALLOWED + GRADIENTS
