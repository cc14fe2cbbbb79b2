"""A handler of signals that raises ends a long call of native code within a second; one that returns changes nothing."""

from __future__ import annotations

import contextlib
import itertools
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

AFTER = 0.2  # seconds, at which the signal comes
SOON = 0.5


class Interruption(ValueError):
    """Of a kind that calls on plain arguments take for a refusal, and do otherwise."""


@contextlib.contextmanager
def alarm(handler: Callable[..., None], after: float = AFTER, every: float = 0.0) -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, after, every)
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


@torch.enable_grad()  # a handler has the modes of what it interrupts, as in an autograd function
def gradient(x: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(sm.entmax15(x)[:, 0].sum(), x)[0]


def values(x: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """Every way to work in a thread's own memory: rows, columns, a long row, backward, attention, a linear layer, segments."""
    q = x[:16, :1024].reshape(16, 16, 64)
    weight, labels = x[:, :512].contiguous(), torch.arange(64) % len(x)
    segments = torch.arange(x.numel()) // 1000
    return {
        **{f.__name__: lambda f=f: f(x) for f in (sm.softmax, sm.sparsemax, sm.entmax15, sm.logsumexp, sm.perturb_max)},
        "entmax": lambda: sm.entmax(x, alpha=1.3),
        "on another axis": lambda: sm.entmax15(x, dim=0),
        "of one row": lambda: sm.entmax15(x.flatten()),
        "float64": lambda: sm.entmax15(x.double()),
        "backward": lambda: gradient(x),
        "attention": lambda: sm.attention(q, q, q, map="entmax15"),
        "linear loss": lambda: sm.linear_loss(q.reshape(-1, 64)[:64].repeat(1, 8), weight, labels, loss="entmax15"),
        "segments": lambda: sm.segment_softmax(x.flatten(), segments),
    }


def test_a_handler_that_returns_changes_nothing() -> None:
    """Though it calls what it interrupts, on other scores, each time that a clock tells it to."""
    x, other = normal(40, 40_000, seed=1, dtype=torch.float32), normal(20, 2_000, seed=2, dtype=torch.float32)
    calls, inner = values(x), values(other)
    expected, of_handler = {name: call() for name, call in calls.items()}, {name: call() for name, call in inner.items()}
    heard: list[str] = []
    wrong: list[str] = []
    turns = itertools.cycle(inner)

    def handler(*told: Any) -> None:
        name = next(turns)  # its own, for this may interrupt itself
        heard.append(name)
        if not torch.equal(inner[name](), of_handler[name]):
            wrong.append(name)

    for name, call in calls.items():
        with alarm(handler, 0.01, 0.05):
            found = call()
        assert torch.equal(found, expected[name]), name
    heard.clear()
    with alarm(handler, 0.01, 0.05):
        assert torch.equal(calls["perturb_max"](), expected["perturb_max"])
    assert len(heard) >= 3, "at its begin and its end alone"
    assert not wrong
