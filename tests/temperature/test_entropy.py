"""Temperatures that hold an entropy, against the entropy that they give."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

import softmaxima as sm
from conftest import TOLERANCE, normal


def entropy(x: torch.Tensor, tau: Any, dim: int = -1) -> torch.Tensor:
    """The literal entropy of the softmax."""
    x = x.double()
    return torch.special.entr(torch.softmax((x - x.amax(dim, keepdim=True)) / tau, dim)).sum(dim)


@given(
    row=st.lists(st.floats(-1, 1, width=16), min_size=2, max_size=9, unique=True),
    share=st.floats(1e-3, 1 - 1e-3),
    scale=st.sampled_from([1e-3, 1.0, 1e4]),
    offset=st.sampled_from([0.0, -1e6]),
)
def test_the_entropy_is_what_was_wanted(row: list[float], share: float, scale: float, offset: float):
    x = torch.tensor(row, dtype=torch.float64) * scale + offset
    if len(x.unique()) < len(x):
        return
    h = share * math.log(len(row))
    assert float(entropy(x, sm.entropy_temperature(x, h))) == pytest.approx(h, abs=1e-9)


def test_any_dim_mask_and_dtype(dtype: torch.dtype):
    x = normal(2, 5, 3, dtype=dtype)
    mask = torch.ones(5, 1, dtype=torch.bool)
    mask[3] = False
    tau = sm.entropy_temperature(x, 1.1, 1, where=mask)
    assert (tau.shape, tau.dtype) == ((2, 1, 3), dtype)
    kept = x[:, [0, 1, 2, 4]]
    close = {"rtol": 0, "atol": 4 * TOLERANCE[dtype]}  # of τ's rounding
    torch.testing.assert_close(entropy(kept, tau.double(), 1), torch.full((2, 3), 1.1, dtype=torch.float64), **close)
    assert isinstance(sm.entropy_temperature(np.array([2.0, 1.0]), 0.5), np.ndarray)


H = torch.tensor([[0.3], [0.8], [1.3]], dtype=torch.float64)


def test_the_derivatives_are_those_of_the_implicit_function():
    x, h = normal(3, 4).requires_grad_(), H.clone().requires_grad_()
    assert gradcheck(
        sm.entropy_temperature, (x, h), check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True
    )
    assert gradgradcheck(sm.entropy_temperature, (x, h), check_fwd_over_rev=True, check_rev_over_rev=True)


HIDDEN = {
    "nothing": lambda x, keep: (x, None),
    "by where": lambda x, keep: (x, keep),
    "by −∞": lambda x, keep: (x.masked_fill(~keep, -math.inf), None),
    "by both": lambda x, keep: (x.masked_fill(~keep, -math.inf), keep),
    "by where, +∞ and NaN under it": lambda x, keep: (torch.where(keep, x, torch.tensor([math.inf, math.nan, 0, 9, 1e308])), keep),
}


@pytest.mark.parametrize("hidden", HIDDEN)
def test_every_kind_of_derivative_is_its_formula_of_the_scores_that_are_kept(hidden: str):
    """Reverse, forward, over each other, of rows at once; and those of scores that are not kept are 0."""
    keep = torch.tensor([True, False, True, True, False]) | torch.tensor(hidden == "nothing")
    x, h = normal(5), torch.tensor([0.6], dtype=torch.float64)
    literal = x[keep].double()
    tau = sm.entropy_temperature(literal, h)
    p = torch.softmax(literal / tau, -1)
    spread = (p * (literal / tau - (p * literal / tau).sum()).square()).sum()
    slope = torch.zeros(5, dtype=torch.float64).masked_scatter(keep, p * (p.log() + h) / spread)

    def f(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        scores, where = HIDDEN[hidden](x, keep)
        return sm.entropy_temperature(scores, h, where=where)[0]

    both = (0, 1)
    close = {"rtol": 1e-9, "atol": 1e-12}
    for derivative in (torch.func.jacrev, torch.func.jacfwd):
        by_x, by_h = derivative(f, both)(x, h)
        torch.testing.assert_close(by_x, slope, **close)
        torch.testing.assert_close(by_h, tau / spread, **close)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones(5, dtype=torch.float64) * torch.arange(5))
        tangent = torch.autograd.forward_ad.unpack_dual(f(dual, h)).tangent
    torch.testing.assert_close(tangent, (slope * torch.arange(5)).sum(), **close)
    leaves = x.clone().requires_grad_(), h.clone().requires_grad_()
    second = torch.autograd.functional.hessian(f, leaves)
    kept = torch.autograd.functional.hessian(lambda x, h: sm.entropy_temperature(x, h)[0], (literal, h))
    torch.testing.assert_close(second[0][0][keep][:, keep], kept[0][0], **close)
    assert bool((second[0][0][~keep] == 0).all())
    for outer in (torch.func.jacfwd, torch.func.jacrev):
        for inner in (torch.func.jacfwd, torch.func.jacrev):
            torch.testing.assert_close(outer(inner(f, both), both)(x, h), second, **close)


def test_of_rows_at_once_and_compiled_it_is_what_it_is_of_each():
    x = normal(3, 4)
    expected = torch.stack([sm.entropy_temperature(row, h) for row, h in zip(x, H, strict=True)])
    torch.testing.assert_close(torch.func.vmap(sm.entropy_temperature)(x, H), expected, rtol=0, atol=0)
    torch.testing.assert_close(torch.func.vmap(sm.entropy_temperature, (None, 0))(x[0], H)[0], expected[0], rtol=0, atol=0)
    impossible = torch.func.vmap(lambda h: sm.entropy_temperature(x[0], h))(torch.tensor([[0.0], [0.8], [1.4]]))
    assert impossible.isnan().flatten().tolist() == [True, False, True]
    compiled = torch.compile(lambda x: sm.entropy_temperature(x, H).square(), fullgraph=True, backend="aot_eager")
    leaf, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    compiled(leaf).sum().backward()
    sm.entropy_temperature(other, H).square().sum().backward()
    torch.testing.assert_close(leaf.grad, other.grad)
    for shape in ((0, 4), (2, 0, 3)):
        assert sm.entropy_temperature(torch.empty(shape), 0.5).shape == (*shape[:-1], 1)
    assert sm.entropy_temperature(torch.empty(4, 0, device="cpu"), 0.5, 0).shape == (1, 0)


HARD_ROWS = (
    [1.0, 0.0, -1.0],
    [1e300, 0.0, 0.5],
    [1e-300, 0.0, 3e-300],
    [1.0, 1.0, 0.0],
    [1.79e308, -1.79e308, 0.0],
    [0.0, 1e-200, -1e200],
    [-math.inf, 2.0, 3.0],
    [5e-324, 0.0, -1e-323],
)


def test_one_row_does_not_change_another():
    x = torch.tensor(HARD_ROWS, dtype=torch.float64)
    h = torch.tensor([0.5, 1e-9, 1.09, 0.7, 0.3, 0.6931, 1e-200, 0.5], dtype=torch.float64).unsqueeze(-1)
    alone = torch.cat([sm.entropy_temperature(row, each).unsqueeze(0) for row, each in zip(x, h, strict=True)])
    assert torch.equal(sm.entropy_temperature(x, h), alone)
    assert torch.equal(sm.entropy_temperature(x.clone().requires_grad_(), h), alone)
    assert bool(((alone >= 2.2250738585072014e-308) & alone.isfinite()).all())


def exact_entropy(row: list[float], tau: float) -> Any:
    z = [(mpmath.mpf(score) - max(row)) / tau for score in row if score > -math.inf]
    weights = [mpmath.exp(each) for each in z]
    return mpmath.log(sum(weights)) - sum(w * each for w, each in zip(weights, z, strict=True)) / sum(weights)


@pytest.mark.parametrize("row", [*HARD_ROWS[:3], HARD_ROWS[4], *HARD_ROWS[6:7], [3.0, -2.5, 1.0, 0.25, -7.0]], ids=str)
def test_the_smallest_entropy_has_its_digits(row: list[float]):
    x = torch.tensor(row, dtype=torch.float64)
    for h in (0.6, 0.01, 1e-5, 1e-12, 1e-30, 1e-100, 1e-290):
        tau = float(sm.entropy_temperature(x, h))
        with mpmath.workdps(400):
            # h is like exp(−gap/τ): a rounding of τ moves it by log(1/h) of them.
            assert abs(exact_entropy(row, tau) / h - 1) < 2**-51 * (2 - math.log(h)), h


def test_of_scores_times_a_number_it_is_times_that_number():
    x = normal(4, 5, scale=0.5)
    for h in (1e-150, 1e-3, 1.0, 1.6):
        for power in (-900, -60, 60, 1000):
            assert torch.equal(sm.entropy_temperature(x * 2.0**power, h), sm.entropy_temperature(x, h) * 2.0**power)


def test_it_is_a_positive_number_of_the_dtype_of_the_scores(dtype: torch.dtype):
    numbers = torch.finfo(dtype)
    for x in ([numbers.max, -numbers.max], [0.0, -numbers.tiny], [numbers.tiny * numbers.eps, 0.0], [22400.0, -346.0], [1.0, 0.0]):
        scores = torch.tensor(x, dtype=dtype)
        for h in (1e-300, 0.1, 0.6931, math.nextafter(math.log(2), 0)):
            tau, learnt = sm.entropy_temperature(scores, h), sm.entropy_temperature(scores.clone().requires_grad_(), h)
            assert torch.equal(tau, learnt)
            assert bool((tau > 0).all() & tau.isfinite().all()), (x, h)
            sm.softmax(scores, temperature=tau)


def test_the_dual_is_learnt_to_where_the_mean_entropy_is_held():
    x = normal(200, 4).float()
    fitted, learnt = sm.EntropyTarget(1.0).fit_(x), sm.EntropyTarget(1.0, 5.0)
    assert float(entropy(x, fitted().detach()).mean()) == pytest.approx(1.0, abs=1e-6)
    optimizer = torch.optim.Adam(learnt.parameters(), 0.05)
    for _ in range(200):
        optimizer.zero_grad()
        learnt.loss(x).backward()
        optimizer.step()
    assert float(learnt().detach()) == pytest.approx(float(fitted().detach()), rel=1e-3)
    assert sm.softmax(x, temperature=learnt).shape == x.shape


def test_the_slope_of_the_dual_is_how_far_the_entropy_is_from_its_target():
    x, target = normal(20, 4), sm.EntropyTarget(0.7, sm.Temperature(1.3, dtype=torch.float64))
    (slope,) = torch.autograd.grad(target.loss(x), target.temperature.rho)
    assert float(slope) == pytest.approx(1.3 * (float(entropy(x, 1.3).mean()) - 0.7))


@pytest.mark.parametrize("h", [1e-12, 0.4, 1.0])
def test_it_fits_rows_of_every_size_to_their_mean_entropy(h: float):
    x = torch.cat([normal(20, 4) * 10.0**power for power in (-250, 0, 280)])
    target = sm.EntropyTarget(h, sm.Temperature(1.0, dtype=torch.float64))
    tau = target.fit_(x)().item()
    rounding = 2**-52 * 600 * (1 - math.log(h))  # of ρ = log τ, which is −576 or more, and of exp(−gap/τ)
    with mpmath.workdps(60):
        assert abs(sum(exact_entropy(row, tau) for row in x.tolist()) / 60 / h - 1) < rounding
    shared = sm.Temperature(2.0, 0.1, 10.0)
    assert sm.EntropyTarget(1.0, shared).temperature is shared


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: sm.entropy_temperature(torch.randn(3, 4), 1.5), r"below log n, .* here 0 and 1.38629 nats; got 1.5"),
        (lambda: sm.entropy_temperature(torch.randn(3, 4), 0.0), "entropy must be above log m"),
        (lambda: sm.entropy_temperature(torch.tensor([1.0, 1.0, 0.0]), 0.5), "here 0.693147 and 1.09861"),
        (lambda: sm.entropy_temperature(torch.ones(4), 1.0), "here 1.38629 and 1.38629"),
        (lambda: sm.entropy_temperature(torch.randn(3), -1.0), "entropy must be a finite number of nats"),
        (lambda: sm.entropy_temperature(torch.tensor([1.0, math.nan]), 0.1), r"scores must be numbers below \+∞, got nan"),
        (lambda: sm.EntropyTarget(2.0).loss(torch.randn(3, 4)), "below the mean over rows of log n"),
        (lambda: sm.EntropyTarget(1.0, sm.Temperature(1.0, 0.9, 1.1)).fit_(100 * torch.randn(3, 4)), "value must be"),
        (lambda: sm.EntropyTarget(1.0, 0.0), "EntropyTarget: temperature must be at least"),
        (lambda: sm.EntropyTarget(1.0, sm.Positive(shape=(2, 1))), r"must be a Positive of one number, got one of shape \(2, 1\)"),
        (lambda: sm.EntropyTarget(1.0).fit_(torch.empty(0, 4)), r"fit_: scores must have rows, .* got shape \(0, 4\)"),
        (lambda: sm.EntropyTarget(1.0).loss(torch.empty(4, 0)), r"loss: scores must have rows, .* got shape \(4, 0\)"),
        (lambda: sm.entropy_temperature(torch.empty(4, 0), 0.5), "here -inf and -inf nats; got 0.5"),
        (lambda: sm.EntropyTarget(math.nan), "entropy must be a finite number"),
    ],
)
def test_an_entropy_that_cannot_be_had_is_refused_in_a_sentence(call: Any, says: str):
    with pytest.raises(ValueError, match=r"^[\w.]+: ") as raised:
        call()
    assert raised.match(says)
