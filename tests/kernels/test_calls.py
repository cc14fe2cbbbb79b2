"""Calls on plain arguments, in C: they give what the same calls in Python do, and leave to Python whatever is not plain."""

from __future__ import annotations

import gc
import math
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import softmaxima as sm
from conftest import Case, LossCase, normal
from softmaxima.base.numbers import SMALLEST_TEMPERATURE
from softmaxima.kernels import native

pytestmark = pytest.mark.skipif(native.CALLS is None, reason="the module of calls was not built")


class Counted:
    """The module, which counts what it has answered."""

    def __init__(self, calls: Any) -> None:
        self.answered = {"forward": 0, "backward": 0, "loss": 0, "is_plain": 0}
        for name in self.answered:
            setattr(self, name, self._counting(name, getattr(calls, name)))

    def _counting(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            found = function(*arguments)
            self.answered[name] += found is not None and found is not NotImplemented
            return found

        return call


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counted:
    counted = Counted(native.CALLS)
    monkeypatch.setattr(native, "CALLS", counted)
    return counted


def in_python(call: Callable[[], Any]) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "CALLS", None)
        return call()


def assert_same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


HARD = torch.tensor(
    [[0.0, 0.0, 0.0, -math.inf], [-math.inf] * 4, [math.nan, 1.0, 2.0, 3.0], [math.inf, 1.0, 1.0, 0.0], [60.0, 1e4, 1.0, 1.0]]
)


def test_maps_and_their_gradients_are_those_of_python(case: Case, dtype: torch.dtype, calls: Counted):
    takes_calls = case.map.kernel is not None
    for shape in ((7,), (3, 5), (2, 3, 70), (64, 64), HARD):
        x = (HARD if shape is HARD else normal(*shape)).to(dtype).requires_grad_()
        for options in ({}, {"temperature": 0.7}, {"where": normal(*x.shape, seed=1) > -0.5}):
            g, before = normal(*x.shape, seed=2).to(dtype), dict(calls.answered)
            p = case(x, **options)
            slope = torch.autograd.grad(p, x, g)[0]
            assert (calls.answered["forward"] > before["forward"]) == takes_calls
            # That of float16 is of p in float32, for Python to compute.
            assert (calls.answered["backward"] > before["backward"]) == (takes_calls and dtype != torch.float16)
            expected = in_python(lambda x=x, options=options: case(x, **options))
            assert_same(p, expected)
            assert_same(slope, torch.autograd.grad(expected, x, g)[0])
            with torch.no_grad():
                assert_same(case(x, **options), expected)
            strided = g.repeat(1, 2)[..., : g.shape[-1]] if g.ndim == 2 else g
            assert_same(torch.autograd.grad(case(x, **options), x, strided)[0], slope)


def test_arrays_are_taken_as_tensors_are(case: Case, dtype: torch.dtype, calls: Counted):
    if dtype == torch.bfloat16:
        pytest.skip("NumPy has no bfloat16")
    for x in (normal(4, 6).to(dtype), normal(5).to(dtype)):
        for options in ({}, {"where": normal(*x.shape, seed=1) > 0}):
            of_array = {name: value.numpy() for name, value in options.items()}
            array = x.numpy()
            array.flags.writeable = False
            before = calls.answered["forward"]
            p = case(array, **of_array)
            assert type(p) is np.ndarray
            assert p.dtype == array.dtype
            assert p.flags.writeable
            assert (calls.answered["forward"] > before) == (case.map.kernel is not None)
            assert_same(torch.from_numpy(p), case(x, **options))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_losses_and_their_gradients_are_those_of_python(loss: LossCase, reduction: str, smoothing: float, calls: Counted):
    names = ("cross_entropy", "elastic_cross_entropy", "sparsemax_loss", "entmax15_loss", "entmax_loss")
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        own = loss.loss.name in names or (loss.loss.on_cosines and dtype != torch.bfloat16)
        for rows in ((), (6,)):
            x = loss.scores(*rows, 9, dtype=dtype).requires_grad_()
            y = torch.arange(math.prod(rows)).reshape(rows) % 9
            for labels in (y, y.masked_fill(y == 2, -100)):
                before = calls.answered["loss"]
                value = loss(x, labels, reduction=reduction, label_smoothing=smoothing)
                (slope,) = torch.autograd.grad(value, x)
                assert calls.answered["loss"] > before or not own
                expected = in_python(partial(loss, x, labels, reduction=reduction, label_smoothing=smoothing))
                torch.testing.assert_close(value, expected, rtol=2 * torch.finfo(dtype).eps, atol=0)
                assert_same(slope, torch.autograd.grad(expected, x)[0])
                with torch.no_grad():
                    assert_same(loss(x, labels, reduction=reduction, label_smoothing=smoothing), value)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
def test_what_is_not_plain_is_left_to_python(calls: Counted):
    """The same results and the same refusals, of whatever there is."""
    x, y = normal(4, 6), torch.tensor([0, 5, 2, 1])
    tries: list[Callable[[], Any]] = [
        lambda: sm.softmax(x.T),
        lambda: sm.softmax(x, 0),
        lambda: sm.softmax(x[:, ::2]),
        lambda: sm.softmax(x[:0]),
        lambda: sm.softmax(x.long()),
        lambda: sm.softmax(x, True),
        lambda: sm.softmax(x, 7),
        lambda: sm.softmax(torch.tensor(1.0)),
        lambda: sm.softmax(x, temperature=2),
        lambda: sm.softmax(x, temperature=0.0),
        lambda: sm.softmax(x, temperature=math.nan),
        lambda: sm.softmax(x, temperature=SMALLEST_TEMPERATURE),
        lambda: sm.softmax(x, temperature=SMALLEST_TEMPERATURE / 2),
        lambda: sm.softmax(x, temperature=torch.full((4, 1), 0.5)),
        lambda: sm.softmax(x, where=x[0] > 0),
        lambda: sm.softmax(x, where=x.numpy() > 0),
        lambda: sm.softmax(x, where=(x > 0).long()),
        lambda: sm.softmax(x, where=(x.T > 0).contiguous().T),
        lambda: sm.softmax(torch._neg_view(x)),
        lambda: sm.softmax(x.to_sparse()),
        lambda: sm.softmax(torch.nested.nested_tensor([x[0], x[1, :3]])),
        lambda: sm.softmax(torch._efficientzerotensor((2, 3))),
        lambda: sm.softmax(x.to("meta")),
        lambda: sm.softmax(x.numpy().T),
        lambda: sm.softmax(x.numpy().astype(">f8")),
        lambda: sm.softmax(np.ma.masked_array(x.numpy())),
        lambda: sm.softmax(np.zeros((0, 3))),
        lambda: sm.softmax(np.float64(1.0)),
        lambda: sm.softmax(x.tolist()),
        lambda: sm.topk_softmax(x, k=2.0),
        lambda: sm.topk_softmax(x, k=0),
        lambda: sm.entmax(x, alpha=2),
        lambda: sm.entmax(x, alpha="high"),
        lambda: sm.cross_entropy(x, y + 1),
        lambda: sm.cross_entropy(x, y, ignore_index=2),
        lambda: sm.cross_entropy(x, y.float()),
        lambda: sm.cross_entropy(x, y.int()),
        lambda: sm.cross_entropy(x, y[:3]),
        lambda: sm.cross_entropy(x, torch.full((4,), -100)),
        lambda: sm.cross_entropy(x, y, reduction="none"),
        lambda: sm.cross_entropy(x, y, reduction="all"),
        lambda: sm.cross_entropy(x, y, reduction=np.array(["mean"])),
        lambda: sm.cross_entropy(x, y, reduction=np.str_("mean")),
        lambda: sm.cross_entropy(x, y, label_smoothing=1.5),
        lambda: sm.cross_entropy(x, y, label_smoothing=0),
        lambda: sm.cross_entropy(x, y, torch.ones(6)),
        lambda: sm.cross_entropy(x, x.softmax(-1)),
        lambda: sm.cross_entropy(x.numpy(), y.numpy()),
        lambda: sm.cross_entropy(x.expand(2, 4, 6), y),
        lambda: sm.elastic_cross_entropy(x, y, beta=torch.zeros(4, 1)),
        lambda: sm.entmax_loss(x, y, alpha=0.5),
    ]

    def outcome(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            return type(error), str(error)

    for number, call in enumerate(tries):
        actual, expected = outcome(call), in_python(lambda call=call: outcome(call))
        assert type(actual) is type(expected), number
        if isinstance(actual, (Tensor, np.ndarray)) and not (isinstance(actual, Tensor) and actual.is_meta):
            torch.testing.assert_close(
                actual, expected, rtol=1e-15, atol=0, equal_nan=True, msg=lambda text, number=number: f"{number}: {text}"
            )
        elif isinstance(actual, tuple):
            assert actual == expected, number


def test_half_precision_under_autocast_is_left_to_python(calls: Counted):
    x = normal(3, 4, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert sm.softmax(x).dtype == torch.float32
        assert sm.cross_entropy(x, torch.tensor([0, 1, 2])).dtype == torch.float32
    assert calls.answered["forward"] == calls.answered["loss"] == 0


def test_saved_tensors_that_another_gives_back_are_read_anew():
    """As they come from a checkpoint or from a disk, in any layout."""
    x, g = normal(4, 6).requires_grad_(), normal(4, 6, seed=1)
    for back in (lambda p: p.clone(), lambda p: p.T.contiguous().T, lambda p: torch._neg_view(-p)):
        with torch.autograd.graph.saved_tensors_hooks(torch.clone, back):
            p = sm.softmax(x)
        for upstream in (g, torch._efficientzerotensor((4, 6), dtype=torch.float64)):
            expected = torch.autograd.grad(x.softmax(-1), x, upstream)[0]
            torch.testing.assert_close(torch.autograd.grad(p, x, upstream, retain_graph=True)[0], expected)


def test_a_mask_that_is_changed_before_the_gradient_is_noticed():
    x, mask = normal(4, 5).requires_grad_(), normal(4, 5, seed=1) > -0.5
    p = sm.taylor_softmax(x, where=mask)
    mask.logical_not_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        p.sum().backward()


def test_a_parameter_that_no_number_can_hold_keeps_every_score():
    for x in (normal(2, 3), normal(2, 3).requires_grad_()):
        torch.testing.assert_close(sm.topk_softmax(x, k=10**400), sm.softmax(x))


def test_an_interruption_is_not_lost():
    """A signal that comes while C is at work is raised, and no result takes its place."""
    code = """
import signal, random, torch, softmaxima as sm
arrived = raised = 0
def handler(number, frame):
    global arrived
    arrived += 1
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, handler)
x, y = torch.randn(8, 4000), torch.arange(8)
learning = x.clone().requires_grad_()
calls = [lambda: sm.softmax(x), lambda: sm.cross_entropy(x, y), lambda: sm.softmax(learning), lambda: sm.cross_entropy(learning, y)]
for _ in range(100):
    for call in calls:
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 3e-4))
            while True:
                assert call() is not None
        except KeyboardInterrupt:
            raised += 1
assert arrived == raised == 400, (arrived, raised)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_another_default_device_changes_nothing():
    x, y = normal(4, 6), torch.tensor([0, 5, 2, 1])
    tries = [
        lambda: sm.softmax(x),
        lambda: sm.cross_entropy(x, y),
        lambda: sm.cross_entropy(x, y, torch.ones(6, device="cpu")),
        lambda: sm.cross_entropy(x, y, reduction="none"),
        lambda: sm.logsumexp(x),
    ]
    for call in tries:
        expected = call()
        for with_calls in (native.CALLS, None):
            with pytest.MonkeyPatch.context() as patch, torch.device("meta"):
                patch.setattr(native, "CALLS", with_calls)
                assert_same(call(), expected)


def test_nothing_is_kept_of_a_call():
    x, y, mask = normal(3, 4).requires_grad_(), torch.tensor([0, 1, 2]), torch.ones(3, 4, dtype=torch.bool)
    array = x.detach().numpy()

    def call() -> None:
        sm.softmax(x, where=mask).sum().backward()
        sm.cross_entropy(x, y).backward()
        sm.softmax(array)
        sm.softmax(x.detach().T)
        with pytest.raises(IndexError):
            sm.cross_entropy(x, y + 9)
        x.grad = None

    watched = (x, y, mask, array, torch.float64, torch.strided, None, NotImplemented)
    for _ in range(3):
        call()
    kept = []
    gc.freeze()  # what other tests have left takes no time
    for _ in range(3):  # in which others may keep some of None, too, but not of as many each time
        gc.collect()
        before = [sys.getrefcount(value) for value in watched]
        for _ in range(50):
            call()
        gc.collect()
        kept.append(max(abs(sys.getrefcount(value) - count) for value, count in zip(watched, before, strict=True)))
    gc.unfreeze()
    assert min(kept) < 20


def test_threads_call_side_by_side():
    x = normal(64, 1000)
    expected, found = x.softmax(-1), []

    def work() -> None:
        found.extend(sm.softmax(x) for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80
    for p in found:
        torch.testing.assert_close(p, expected)
