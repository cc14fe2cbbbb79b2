"""A handler of signals that raises ends a long call of native code within a second; one that returns changes nothing."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import softmaxima as sm
from conftest import normal
from softmaxima.kernels import native
from softmaxima.maps.perturb_max import PERTURB_MAX, theta

pytestmark = pytest.mark.skipif(not native.AVAILABLE, reason="without the native library calls are of torch, each of them short")

AFTER = 0.3  # seconds, at which the signal comes
SOON = 1.0


class Interruption(ValueError):
    """Of a kind that calls on plain arguments take for a refusal, and do otherwise."""


@contextlib.contextmanager
def alarm(handler: Callable[..., None]) -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, AFTER)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def calls(count: int, n: int) -> dict[str, Callable[[], Any]]:
    """Of 300 rows of 20,000 scores some seconds each, on any machine."""
    rows, columns, one = (normal(*shape, dtype=torch.float32) for shape in ((count, n), (n, count), (1, 100 * n)))
    labels, slopes, array = torch.zeros(count, dtype=torch.int64), rows.softmax(-1), rows.numpy()
    sequences = normal(16, n, 64, dtype=torch.float32)
    kernel, number = PERTURB_MAX.kernel, theta("normal", 1.0)
    assert kernel is not None
    assert number is not None
    return {
        **{name: lambda name=name: sm.perturb_max(rows, noise=name) for name in ("normal", "laplace")},
        "on another axis": lambda: sm.perturb_max(columns, dim=0),
        "of an array": lambda: sm.perturb_max(array),
        "of one row": lambda: sm.perturb_max(one),
        "loss": lambda: sm.perturb_max_loss(rows, labels),
        "backward": lambda: native.backward(kernel, slopes, rows, rows, 1.0, None, number),
        "attention": lambda: sm.attention(sequences, sequences, sequences, map="entmax15"),
    }


def test_a_long_call_is_interrupted_soon() -> None:
    came: list[float] = []

    def handler(*told: Any) -> None:
        came.append(time.monotonic())
        raise Interruption

    for call in calls(2, 20).values():
        call()  # which may import
    for name, call in calls(300, 20_000).items():
        begun = time.monotonic()
        with alarm(handler), pytest.raises(Interruption):
            call()
        assert came[-1] - begun < AFTER + SOON, name
        assert time.monotonic() - came[-1] < SOON, name
    x = torch.tensor([1.0, 0.0, -1.0])
    torch.testing.assert_close(sm.perturb_max(x), PERTURB_MAX.reference(x, "normal", 1.0).float())  # and all is as it was


def test_a_handler_that_returns_changes_nothing() -> None:
    heard: list[float] = []
    x = normal(40, 20_000, seed=1, dtype=torch.float32)
    with alarm(lambda *told: heard.append(time.monotonic())):
        begun = time.monotonic()
        found = sm.perturb_max(x)
        assert time.monotonic() - begun > AFTER
    assert len(heard) == 1
    assert heard[0] - begun < AFTER + SOON
    assert torch.equal(found, torch.cat([sm.perturb_max(some) for some in x.split(8)]))
