"""Attacks stay within their ball, and find what is to be found; detectors see what they are fitted to see."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import softmaxima as sm
from conftest import normal
from softmaxima import robust

NORMS = (1.0, 2.0, math.inf)
norms = pytest.mark.parametrize("norm", NORMS)


def linear(seed: int = 0, inputs: int = 20, classes: int = 4) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(inputs, classes).double()


@norms
@pytest.mark.parametrize("of", robust.ATTACK_LOSSES)
@pytest.mark.parametrize("limits", [None, (0.0, 1.0)])
def test_attacks_stay_within_the_ball_and_the_limits(norm: float, of: str, limits: Any):
    x = normal(10, 20).sigmoid()
    inputs, misled = robust.attack(
        linear(), x, torch.zeros(10, dtype=torch.int64), 0.3, norm, loss=of, steps=7, restarts=2, limits=limits, generator=0
    )
    assert (torch.linalg.vector_norm(inputs - x, norm, -1) <= 0.3 * (1 + 1e-9)).all()
    if limits:
        assert ((inputs >= 0) & (inputs <= 1)).all()
    assert torch.equal(misled, linear()(inputs).argmax(-1) != 0)


@pytest.mark.parametrize("of", robust.ATTACK_LOSSES)
def test_a_linear_model_is_misled_exactly_where_it_can_be(of: str):
    """Of two classes the worst δ under ℓ∞ and ℓ2 is known: the margin falls by ε times the dual norm of the weights' difference."""
    if of == "dlr":
        pytest.skip("has no meaning for two classes")
    model = linear(classes=2)
    x = normal(200, 20, scale=0.5)
    target = model(x).argmax(-1)
    w = model.weight[0] - model.weight[1]
    margin = robust.worst_margin(model(x), target, 0.0)
    for norm, dual in ((math.inf, w.abs().sum()), (2.0, w.norm()), (1.0, w.abs().max())):
        for eps in (0.05, 0.2):
            found = robust.attack(model, x, target, eps, norm, loss=of, steps=20, limits=None).misled
            can_be = margin < eps * dual
            sure = (margin - eps * dual).abs() > 1e-9
            assert torch.equal(found[sure], can_be[sure])


def test_a_saturated_softmax_hides_gradients_that_logits_show():
    """Gradient masking: of probabilities over a low temperature the attack sees a slope of exactly 0; of scores it succeeds."""
    model = linear().float()
    x = normal(100, 20, dtype=torch.float32)
    target = model(x).argmax(-1)
    of_probabilities = lambda scores, target: -sm.softmax(scores, temperature=1e-3).gather(1, target.unsqueeze(1)).squeeze(1)
    masked = robust.attack(model, x, target, 0.8, loss=of_probabilities, limits=None).misled
    honest = robust.attack(model, x, target, 0.8, limits=None).misled
    assert masked.float().mean() < 0.3
    assert honest.float().mean() > 0.9


def test_restarts_repeat_with_their_seed_and_do_no_harm():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 4))
    x = normal(60, 20, dtype=torch.float32).sigmoid()
    target = model(x).argmax(-1)
    once = robust.attack(model, x, target, 0.05, steps=5)
    a, b = (robust.attack(model, x, target, 0.05, steps=5, restarts=3, generator=3) for _ in range(2))
    assert torch.equal(a.inputs, b.inputs)
    assert (a.misled | ~once.misled).all()
    assert not [p.grad for p in model.parameters() if p.grad is not None]


def test_an_attack_that_stops_is_just_beyond_the_boundary():
    model = linear()
    x = normal(100, 20)
    target = model(x).argmax(-1)
    stopped, ended = (robust.attack(model, x, target, 1.0, stop=stop, limits=None) for stop in (True, False))
    assert torch.equal(stopped.misled, ended.misled)
    margin = lambda found: robust.worst_margin(model(found.inputs), target, 0.0)[found.misled].mean()
    assert margin(ended) < 3 * margin(stopped) < 0


def test_progress_is_told_step_by_step():
    told: list[None] = []
    robust.attack(
        linear(), normal(2, 20), torch.tensor([0, 1]), 0.1, steps=4, restarts=2, limits=None, advanced=lambda: told.append(None)
    )
    assert len(told) == 8


def test_a_radius_of_nothing_moves_nothing():
    x = normal(5, 20)
    found = robust.attack(linear(), x, torch.zeros(5, dtype=torch.int64), 0.0, limits=None)
    assert torch.equal(found.inputs, x)
    assert torch.equal(found.misled, linear()(x).argmax(-1) != 0)


@norms
def test_what_a_narrow_dtype_rounds_stays_in_the_ball_and_the_limits(norm: float, dtype: torch.dtype):
    x = normal(40, 20, scale=3.0).sigmoid().to(dtype)
    low, high = float(x.min()), float(x.max())
    model = linear().to(dtype)
    for eps in (0.1, 1e-3):
        found = robust.attack(
            model, x, torch.zeros(40, dtype=torch.int64), eps, norm, steps=5, restarts=2, limits=(low, high), generator=0
        ).inputs.double()
        assert (torch.linalg.vector_norm(found - x.double(), norm, -1) <= eps * (1 + 1e-15)).all()
        assert ((found >= low) & (found <= high)).all()


@norms
def test_limits_that_a_dtype_does_not_have_are_kept(norm: float, dtype: torch.dtype):
    """0.1 and 0.9 lie between two numbers of each dtype, and the nearest may be outside."""
    x = (0.15 + 0.7 * torch.rand(20, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).to(dtype)
    model = linear().to(dtype)
    for target in range(4):
        classes = torch.full((20,), target)
        found = robust.attack(model, x, classes, 2.0, norm, steps=5, limits=(0.1, 0.9)).inputs.double()
        assert ((found >= 0.1) & (found <= 0.9)).all()
        assert (torch.linalg.vector_norm(found - x.double(), norm, -1) <= 2.0).all()


def test_a_broken_model_does_not_seem_to_withstand():
    x, target = normal(8, 20), torch.zeros(8, dtype=torch.int64)
    broken = lambda value: lambda x: (0 * x).sum(1, keepdim=True) + torch.full((1, 4), value, dtype=torch.float64)
    for value in (0.0, math.inf):
        assert robust.attack(broken(value), x, target, 0.1, limits=None, steps=3).misled.all()
    blind = lambda x: (x - x).abs().sqrt().sum(1, keepdim=True) + torch.tensor([[1.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    stopping = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64).expand(8, 3)
    for model, message in (
        (blind, "the gradient is NaN"),
        (lambda x: stopping, "a gradient by its inputs, got none"),
        (broken(math.nan), "model gives NaN for 8 of 8 inputs as they are"),
    ):
        with pytest.raises(ValueError, match=message):
            robust.attack(model, x, target, 0.1, limits=None)


def test_models_that_work_without_gradients_alone_are_refused_in_a_sentence():
    x, target = normal(8, 20), torch.zeros(8, dtype=torch.int64)
    with torch.inference_mode():
        inferred = nn.Linear(20, 4).double()
    weight = linear().weight.detach()

    def changing(then: Any) -> Any:
        calls: list[None] = []
        return lambda z: calls.append(None) or (linear()(z) if len(calls) < 3 else then(linear()(z)))

    for model, error, message in (
        (inferred, ValueError, "got an error that it does not give without them, “Inference tensors.*outside torch.inference_mode"),
        (lambda z: torch.from_numpy(z.numpy() @ weight.numpy().T), ValueError, r"“Can't call numpy\(\).*keep its numbers in torch"),
        (lambda z: (z @ weight.T).detach().numpy(), TypeError, "model must give scores in a floating-point tensor, got ndarray"),
        (changing(lambda scores: scores.detach().numpy()), TypeError, "got ndarray"),
        (changing(lambda scores: scores[:7]), ValueError, r"of one kind at each call, got \(8, 4\) of .* and then \(7, 4\)"),
        (changing(lambda scores: scores[:, :3]), ValueError, r"and then \(8, 3\) of torch.float64 on cpu; keep no state"),
        (changing(lambda scores: scores.float()), ValueError, r"and then \(8, 4\) of torch.float32"),
    ):
        with pytest.raises(error, match=message):
            robust.attack(model, x, target, 0.1, limits=None)
    with torch.inference_mode(), pytest.raises(ValueError, match="“Inference tensors"):
        robust.attack(inferred, x, target, 0.1, limits=None)


def test_errors_of_a_model_itself_are_its_own():
    with pytest.raises(RuntimeError, match="shape '\\[7\\]' is invalid"):
        robust.attack(lambda z: z.view(7), X, Y, 0.1, limits=None)


@norms
@pytest.mark.parametrize("eps", [1e-320, 1e-200, 1e200])
def test_attacks_of_any_radius_stay_within_the_ball(norm: float, eps: float):
    found = robust.attack(linear(), torch.zeros(3, 20, dtype=torch.float64), Y, eps, norm, steps=5, restarts=2, limits=None).inputs
    assert (torch.linalg.vector_norm(found / eps, norm, -1) <= 1).all()
    if eps > 1:
        assert (torch.linalg.vector_norm(found / eps, norm, -1) > 0.9).any()


# Detectors ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [0.5, 2.0])
def test_statistics_are_what_they_are_called(tau: float):
    x = normal(30, 5)
    literal = {
        "margin": x.sort(-1).values[:, -1] - x.sort(-1).values[:, -2],
        "entropy": ((x / tau).softmax(-1) * (x / tau).log_softmax(-1)).sum(-1),
        "energy": tau * (x / tau).exp().sum(-1).log(),
    }
    for statistic, expected in literal.items():
        torch.testing.assert_close(robust.Detector(statistic, 0.0, tau).values(x), expected)
        torch.testing.assert_close(robust.Detector(statistic, 0.0, tau).values(x.T, 0), expected)


@pytest.mark.parametrize("statistic", ["margin", "entropy", "energy"])
@pytest.mark.parametrize("share", [0.02, 0.3])
def test_the_share_of_false_alarms_is_what_was_asked_for(statistic: str, share: float):
    detector = robust.fit_detector(normal(1000, 4), statistic, share)
    assert detector(normal(1000, 4)).double().mean() == pytest.approx(share, abs=2e-3)
    assert detector(normal(4000, 4, seed=1)).double().mean() == pytest.approx(share, abs=0.04)


@pytest.mark.parametrize("statistic", ["margin", "entropy", "energy"])
@pytest.mark.parametrize("n", [2, 7, 33, 1000])
def test_a_row_like_those_it_was_fitted_to_is_not_suspected_among_any_others(statistic: str, n: int, dtype: torch.dtype):
    """The row that has the threshold, alone, repeated, and among others."""
    for seed in range(5):
        row = normal(1, n, scale=5.0, seed=seed).to(dtype)
        for tau in (0.3, 1.0, 4.0):
            detector = robust.fit_detector(row.expand(17, n), statistic, 0.5, temperature=tau)
            for many in (1, 2, 3, 8, 31):
                assert not detector(row.repeat(many, 1)).any()
                assert not detector(row.repeat(many, 1).T.contiguous(), 0).any()
                assert not detector(torch.cat([normal(many, n).to(dtype), row]))[-1]
            higher = robust.Detector(statistic, detector.threshold + 1e-9 * (1 + abs(detector.threshold)), tau)
            assert higher(row).all()  # it is lower by rounding alone


def test_masks_nan_and_arrays_of_a_detector():
    detector = robust.Detector("margin", 0.5)
    x = torch.tensor([[math.nan, 0.0, 1.0], [2.0, -math.inf, -math.inf], [0.1, 0.0, -math.inf]])
    assert detector(x).tolist() == [True, False, True]
    assert isinstance(detector(x.numpy()), np.ndarray)
    assert detector(torch.tensor([[1.0]])).tolist() == [False]


X, Y = normal(3, 20), torch.tensor([0, 1, 2])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: robust.attack(linear(), X, Y, -1.0), ValueError, "radius must be at least 0 and finite, got -1.0"),
        (lambda: robust.attack(linear(), X, Y, 0.1), ValueError, "inputs must be within limits, 0.0 to 1.0, got -"),
        (lambda: robust.attack(linear(), X, Y, 0.1, limits=(1.0, 0.0)), ValueError, "limits must be two numbers, the least first"),
        (lambda: robust.attack(linear(), X, Y, 0.1, 7), ValueError, "norm must be 1, 2 or math.inf"),
        (lambda: robust.attack(linear(), X, Y, 0.1, loss="cw", limits=None), ValueError, "loss must be one of margin, dlr"),
        (lambda: robust.attack(linear(), X, Y, 0.1, steps=0, limits=None), ValueError, "steps must be an int of at least 1, got 0"),
        (lambda: robust.attack(linear(), X, Y, 0.1, step_size=0.0, limits=None), ValueError, "step_size must be a positive"),
        (lambda: robust.attack(linear(), X[0], Y, 0.1, limits=None), ValueError, r"inputs must be \[rows, …\]"),
        (lambda: robust.attack(linear(), X, Y + 9, 0.1, limits=None), ValueError, r"target must be in \[0, 3\], got 9"),
        (lambda: robust.attack(lambda x: x.sum(), X, Y, 0.1, limits=None), ValueError, r"model must give scores \[3, classes\]"),
        (lambda: robust.attack(linear(classes=2), X, Y * 0, 0.1, loss="dlr", limits=None), ValueError, "at least 3 classes, got 2"),
        (lambda: robust.attack(linear(), X.long(), Y, 0.1), TypeError, "inputs must be float64"),
        (
            lambda: robust.attack(linear(), X, Y, 0.1, loss=lambda s, t: s.sum(), limits=None),
            ValueError,
            "loss must give one",
        ),
        (lambda: robust.attack(linear(), X, Y, 0.1, loss=lambda s, t: s[:, 0] * math.nan, limits=None), ValueError, "loss is NaN"),
        (lambda: robust.attack(linear(), X * math.nan, Y, 0.1, limits=None), ValueError, "inputs must be finite, got 60"),
        (
            lambda: robust.attack(cast(Any, 3), X, Y, 0.1, limits=None),
            TypeError,
            "model must be a function from inputs to scores, got int",
        ),
        (lambda: robust.fit_detector(X[:, :1]), ValueError, "at least two allowed classes, got 3 that have not"),
        (lambda: robust.fit_detector(X - math.inf, "energy"), ValueError, "at least two allowed classes, got 3 that have not"),
        (lambda: robust.worst_margin(X[:, :0], Y * 0, 0.1), ValueError, "there must be a class for target to name"),
        (lambda: robust.fit_detector(X * math.inf), ValueError, r"must not be NaN or \+∞"),
        (lambda: robust.attack(linear(), X[:, :0], Y, 0.1, 2), ValueError, "inputs must have numbers to move"),
        (lambda: robust.attack(lambda x: (x[:, :4] > 0).long(), X, Y, 0.1, limits=None), TypeError, "tensor, got torch.int64"),
        (lambda: robust.attack(cast(Any, lambda x: 1.0), X, Y, 0.1, limits=None), TypeError, "tensor, got float"),
        (lambda: robust.attack(linear(), X, Y, 0.1, loss=cast(Any, lambda s, t: 1.0), limits=None), ValueError, "got float"),
        (lambda: robust.Detector("max", 0.0), ValueError, "statistic must be one of margin, entropy, energy"),
        (lambda: robust.Detector("margin", math.nan), ValueError, "threshold must be a number, got nan"),
        (lambda: robust.Detector("margin", 0.0, 0.0), ValueError, "temperature must be positive"),
        (lambda: robust.fit_detector(X, "margin", 1.0), ValueError, "false_alarms must be a number between 0 and 1, got 1.0"),
        (lambda: robust.fit_detector(X[:0]), ValueError, "there must be ordinary rows to go by"),
        (lambda: robust.fit_detector(X * math.nan), ValueError, "scores of ordinary rows must not be NaN or"),
    ],
)
def test_attacks_and_detectors_that_are_refused(call: Any, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        call()


def test_a_loss_of_one_s_own_is_raised():
    model = linear()
    energy = lambda scores, target: sm.logsumexp(scores)
    x = normal(10, 20)
    target = torch.zeros(10, dtype=torch.int64)
    found = robust.attack(model, x, target, 0.2, loss=energy, limits=None)
    same = found.misled == (model(x).argmax(-1) != 0)
    before: Tensor = sm.logsumexp(model(x))
    assert (sm.logsumexp(model(found.inputs)) >= before - 1e-12)[same].all()
