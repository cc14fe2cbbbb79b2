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
from softmaxima.maps import REGISTRY, Map

pytestmark = pytest.mark.skipif(not native.AVAILABLE, reason="without the native library calls are of torch, each of them short")

AFTER = (0.003, 0.1)  # seconds, at which the signal comes: within calls that are soon done, and within long loops of others
SOON = 1.0  # of the processor, so that a busy machine changes nothing


class Interruption(ValueError, RuntimeError):
    """Of kinds that calls on plain arguments take for a refusal and do otherwise, and that torch raises where it has no memory."""


def interrupt(*told: Any) -> None:
    raise Interruption


@contextlib.contextmanager
def alarm(handler: Callable[..., Any], after: float) -> Iterator[None]:
    """Calls it once, if by then what is done is not done."""
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, after)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def calls(count: int, n: int) -> dict[str, Callable[[], Any]]:
    """Every kind of kernel, on `count` rows of n scores, on as many columns and on one row."""
    rows, labels = normal(count, n, dtype=torch.float32), torch.arange(count) % n
    columns, one, array = rows.view(n, count), rows.view(1, -1), rows.numpy()
    slopes = rows.abs()
    sequences = rows.flatten()[: count * n // 64 * 64].view(4, -1, 64)
    weight, hidden = rows.view(-1, 512)[: count * 16], rows.view(-1, 512)[-count:]
    index = torch.arange(count * n).mul_(7919).remainder_(count * n // 10)
    of_rows: dict[str, Callable[..., Any]] = {name: m for name, m in REGISTRY.items() if m.kernel is not None}
    of_rows |= {"logsumexp": sm.logsumexp, "log_mean_exp": sm.log_mean_exp}
    losses = {f.__name__: f for f in (sm.cross_entropy, sm.sparsemax_loss, sm.entmax15_loss, sm.entmax_loss, sm.perturb_max_loss)}
    backward = {name: REGISTRY[name] for name in ("softmax", "entmax", "fusedmax", "perturb_max", "taylor_softmax")}
    return {
        **{f"{name} of rows": lambda f=f: f(rows, -1) for name, f in of_rows.items()},
        **{f"{name} of columns": lambda f=f: f(columns, 0) for name, f in of_rows.items()},
        **{f"{name} of one row": lambda f=f: f(one, -1) for name, f in of_rows.items()},
        **{name: lambda f=f: f(rows, labels) for name, f in losses.items()},
        **{f"derivative of {name}": lambda f=f: derivative(f, rows, slopes) for name, f in backward.items()},
        "perturb_max of an array": lambda: sm.perturb_max(array),
        "attention": lambda: sm.attention(sequences, sequences, sequences, map="entmax15"),
        "linear loss": lambda: sm.linear_loss(hidden, weight, labels[: len(hidden)] % len(weight)),
        "segments": lambda: sm.segment_softmax(rows.flatten(), index),
        "segments with a support": lambda: sm.segment_map("entmax", rows.flatten(), index),
        "gumbel_softmax": lambda: sm.gumbel_softmax(rows),
    }


def derivative(map: Map, rows: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
    kernel = map.kernel
    assert kernel is not None
    numbers = kernel.theta(*(parameter.default for parameter in map.params))
    assert numbers is not None
    return native.backward(kernel, slopes, rows, slopes, 1.0, None, numbers)


def test_a_long_call_is_interrupted_soon() -> None:
    """By Ctrl-C's own handler or any other, and the next call is right."""
    few, many = calls(16, 1024), calls(256, 16_384)
    handlers = itertools.cycle((signal.default_int_handler, interrupt, interrupt, signal.default_int_handler))
    expected = {name: call() for name, call in few.items()}
    stopped = 0
    for (name, call), after in itertools.product(many.items(), AFTER):
        begun = time.process_time()
        try:
            with alarm(next(handlers), after):
                call()
        except (KeyboardInterrupt, Interruption):
            stopped += 1
        assert time.process_time() - begun < 2 * after + SOON, name
        if "gumbel" not in name:  # which draws
            torch.testing.assert_close(few[name](), expected[name], rtol=0, atol=0)
    assert stopped > len(many) // 2


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
    """Though it calls what it interrupts, on other scores, again and again."""
    x, other = normal(40, 20_000, seed=1, dtype=torch.float32), normal(20, 2_000, seed=2, dtype=torch.float32)
    calls, inner = values(x), values(other)
    expected, of_handler = {name: call() for name, call in calls.items()}, {name: call() for name, call in inner.items()}
    heard: list[str] = []
    wrong: list[str] = []
    turns = itertools.cycle(inner)

    def handler(*told: Any) -> None:
        name = next(turns)
        heard.append(name)
        if not torch.equal(inner[name](), of_handler[name]):
            wrong.append(name)
        signal.setitimer(signal.ITIMER_REAL, 0.05)  # once more, when something else was done

    for name, call in calls.items():
        with alarm(handler, 0.01):
            found = call()
        assert torch.equal(found, expected[name]), name
    heard.clear()
    with alarm(handler, 0.01):
        assert torch.equal(calls["perturb_max"](), expected["perturb_max"])
    assert len(heard) >= 3, "at its begin and its end alone"
    assert not wrong
