"""Temperatures that hold an entropy, against the entropy that they give."""

from __future__ import annotations

import math
from typing import Any

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


def test_the_derivatives_are_those_of_the_implicit_function():
    x = normal(3, 4).requires_grad_()
    h = torch.tensor([[0.3], [0.8], [1.3]], dtype=torch.float64, requires_grad=True)
    assert gradcheck(sm.entropy_temperature, (x, h))
    assert gradgradcheck(sm.entropy_temperature, (x, h))


def test_the_dual_is_learnt_to_where_the_mean_entropy_is_held():
    x = normal(200, 4).float()
    fitted, learnt = sm.EntropyTarget(1.0).fit_(x), sm.EntropyTarget(1.0, init=5.0)
    assert float(entropy(x, fitted().detach()).mean()) == pytest.approx(1.0, abs=1e-6)
    optimizer = torch.optim.Adam(learnt.parameters(), 0.05)
    for _ in range(200):
        optimizer.zero_grad()
        learnt.loss(x).backward()
        optimizer.step()
    assert float(learnt().detach()) == pytest.approx(float(fitted().detach()), rel=1e-3)
    assert sm.softmax(x, temperature=learnt).shape == x.shape


def test_the_slope_of_the_dual_is_how_far_the_entropy_is_from_its_target():
    x, target = normal(20, 4), sm.EntropyTarget(0.7, init=1.3, dtype=torch.float64)
    (slope,) = torch.autograd.grad(target.loss(x), target.temperature.rho)
    assert float(slope) == pytest.approx(1.3 * (float(entropy(x, 1.3).mean()) - 0.7))


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
        (lambda: sm.EntropyTarget(1.0, 1.0, 0.9, 1.1).fit_(100 * torch.randn(3, 4)), "value must be"),
        (lambda: sm.EntropyTarget(math.nan), "entropy must be a finite number"),
    ],
)
def test_an_entropy_that_cannot_be_had_is_refused_in_a_sentence(call: Any, says: str):
    with pytest.raises(ValueError, match=r"^[\w.]+: ") as raised:
        call()
    assert raised.match(says)
