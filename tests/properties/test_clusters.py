"""fusedmax and oscarmax, which make scores equal: against their definitions, and what is known of them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

import softmaxima as sm
from conftest import normal, rows
from softmaxima.maps import REGISTRY
from softmaxima.maps.fusedmax import variation

NAMES = ("fusedmax", "oscarmax")
STRENGTHS = st.sampled_from([0.0, 0.02, 0.3, 1.0, 5.0])


def penalty_rows(name: str, n: int) -> np.ndarray:
    """Each |p_{i+1} − p_i|, or max(p_i, p_j), as the greater of two rows of numbers times p [terms, 2, n]."""
    units = np.eye(n)
    if name == "fusedmax":
        return np.array([[units[i + 1] - units[i], units[i] - units[i + 1]] for i in range(n - 1)])
    return np.array([[units[i], units[j]] for i in range(n) for j in range(i)])


def by_a_quadratic_program(name: str, x: np.ndarray, gamma: float) -> np.ndarray:
    """argmin ½‖p‖² − ⟨p, x⟩ + γ Σ t over (p, t), p in the simplex and each t at least both of its numbers."""
    n = len(x)
    terms = penalty_rows(name, n)
    start = np.concatenate((np.full(n, 1 / n), np.abs(terms @ np.full(n, 1 / n)).max(1)))
    above = np.concatenate([np.hstack((-side, np.eye(len(terms)))) for side in (terms[:, 0], terms[:, 1])])
    total = np.concatenate((np.ones(n), np.zeros(len(terms))))
    value = lambda v: 0.5 * v[:n] @ v[:n] - v[:n] @ x + gamma * v[n:].sum()
    slope = lambda v: np.concatenate((v[:n] - x, np.full(len(terms), gamma)))
    found = minimize(
        value,
        start,
        jac=slope,
        method="SLSQP",
        bounds=[(0, None)] * n + [(None, None)] * len(terms),
        constraints=[
            {"type": "ineq", "fun": lambda v: above @ v, "jac": lambda v: above},
            {"type": "eq", "fun": lambda v: total @ v - 1, "jac": lambda v: total},
        ],
        options={"maxiter": 500, "ftol": 1e-15},
    )
    return found.x[:n]


@pytest.mark.parametrize("gamma", [0.0, 0.05, 0.3, 2.0])
@pytest.mark.parametrize("name", NAMES)
def test_is_what_a_solver_of_quadratic_programs_finds(name: str, gamma: float):
    for x in normal(8, 5, scale=0.7).numpy():
        np.testing.assert_allclose(REGISTRY[name](x, gamma=gamma), by_a_quadratic_program(name, x, gamma), atol=2e-6)


@given(x=rows(), gamma=STRENGTHS)
@pytest.mark.parametrize("name", NAMES)
def test_kernels_and_torch_and_the_reference_agree(name: str, x: Tensor, gamma: float):
    map = REGISTRY[name]
    p = map(x, gamma=gamma)
    torch.testing.assert_close(p, map.reference(x, gamma=gamma), atol=1e-12, rtol=0)
    torch.testing.assert_close(p, map.forward(x, gamma=gamma), atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_kernels_and_torch_have_one_gradient(name: str):
    map, g = REGISTRY[name], normal(30, 12, seed=1)
    ordinary = normal(30, 12, scale=1.0)
    for scores, gamma in itertools.product((ordinary, (4 * ordinary).round() / 4), (0.0, 0.03, 0.25, 1.0)):  # with ties as well
        x = scores.clone().requires_grad_()
        where = torch.rand(x.shape, generator=torch.Generator().manual_seed(2)) < 0.8
        z = x.detach().masked_fill(~where, -math.inf)
        map(x, gamma=gamma, where=where).backward(g)
        expected = map.sensitivity(map(z, gamma=gamma), z, gamma=gamma).pull(g)  # type: ignore[union-attr]
        torch.testing.assert_close(x.grad, expected, atol=1e-13, rtol=0)


@given(x=rows(), gamma=STRENGTHS, seed=st.integers(0, 100))
def test_oscarmax_does_not_see_the_order_of_scores(x: Tensor, gamma: float, seed: int):
    order = torch.randperm(x.shape[-1], generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(sm.oscarmax(x[:, order], gamma=gamma), sm.oscarmax(x, gamma=gamma)[:, order], atol=1e-14, rtol=0)


@given(x=rows(), gamma=STRENGTHS)
def test_fusedmax_sees_the_order_but_not_its_direction(x: Tensor, gamma: float):
    torch.testing.assert_close(sm.fusedmax(x.flip(-1), gamma=gamma), sm.fusedmax(x, gamma=gamma).flip(-1), atol=1e-13, rtol=0)
    apart, together = torch.tensor([1.0, 0.0, 0.9]), torch.tensor([1.0, 0.9, 0.0])
    assert sm.fusedmax(apart, gamma=0.2)[0] > sm.fusedmax(apart, gamma=0.2)[2]
    assert sm.fusedmax(together, gamma=0.2)[0] == sm.fusedmax(together, gamma=0.2)[1]


@given(x=rows())
@pytest.mark.parametrize("name", NAMES)
def test_between_sparsemax_and_equal_shares(name: str, x: Tensor):
    map, allowed = REGISTRY[name], (x > -math.inf).double()
    torch.testing.assert_close(map(x, gamma=0.0), sm.sparsemax(x), atol=1e-13, rtol=0)
    torch.testing.assert_close(map(x, gamma=2000.0), allowed / allowed.sum(-1, keepdim=True), atol=1e-11, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_few_scores(name: str):
    map = REGISTRY[name]
    assert map(torch.empty(3, 0), gamma=0.3).shape == (3, 0)
    assert map(torch.tensor([-7.0]), gamma=0.3).tolist() == [1.0]
    pair = map(torch.tensor([0.5, 0.0], dtype=torch.float64), gamma=0.1)  # 0.5 − 2γ apart, or 0.5 − γ
    assert pair.tolist() == pytest.approx([0.65, 0.35] if name == "fusedmax" else [0.7, 0.3])
    assert map(torch.tensor([0.5, 0.0]), gamma=1.0).tolist() == [0.5, 0.5]
    assert map(torch.zeros(2, 4), gamma=0.2).tolist() == [[0.25] * 4] * 2


@pytest.mark.parametrize("name", NAMES)
def test_levels_at_the_threshold_but_for_rounding(name: str):
    """Where scores are tenths, many are: such a one may leave the support and come back."""
    tenths = torch.arange(-30, 1, dtype=torch.float64) / 10
    x = torch.cartesian_prod(tenths, tenths, tenths)
    for gamma in (0.0, 0.1, 0.3):
        p = REGISTRY[name](x, gamma=gamma)
        assert float((p.sum(-1) - 1).abs().max()) <= 1e-12
        some = slice(None, None, 97)
        torch.testing.assert_close(p[some], REGISTRY[name].reference(x[some], gamma), atol=1e-12, rtol=0)


def test_a_masked_score_is_taken_out_of_the_chain():
    x = torch.tensor([1.0, 5.0, 0.9, -1.0], dtype=torch.float64)
    where = torch.tensor([True, False, True, True])
    assert sm.fusedmax(x, gamma=0.1, where=where).tolist() == [0.5, 0.0, 0.5, 0.0]
    assert float(variation(torch.tensor([0.5, 0.0, 0.5, 0.0]), where)) == 0.5


@pytest.mark.parametrize("name", NAMES)
def test_its_loss_is_zero_at_its_target_without_masked_classes(name: str):
    x, gamma = normal(20, 6, scale=0.8), torch.full((20, 1), 0.1, dtype=torch.float64, requires_grad=True)
    for where in (None, torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) < 0.7):
        p = REGISTRY[name](x, gamma=gamma, where=where).detach()
        loss = getattr(sm, f"{name}_loss")(x, p, gamma=gamma, where=where, reduction="none")
        torch.testing.assert_close(loss, torch.zeros_like(loss), atol=1e-13, rtol=0)
        (slope,) = torch.autograd.grad(loss.sum(), gamma)
        torch.testing.assert_close(slope, torch.zeros_like(slope), atol=1e-13, rtol=0)


@pytest.mark.parametrize("n", [1000, 20_000])
@pytest.mark.parametrize("name", NAMES)
def test_long_rows(name: str, n: int):
    gamma = 3.0 if name == "fusedmax" else 1e-4
    x = normal(2, n, scale=1.0)
    if n < 20_000:
        torch.testing.assert_close(REGISTRY[name](x, gamma=gamma), REGISTRY[name].reference(x, gamma=gamma), atol=1e-11, rtol=0)
    p = REGISTRY[name](x, gamma=gamma)
    torch.testing.assert_close(p, REGISTRY[name].forward(x, gamma=gamma), atol=1e-12, rtol=0)
    torch.testing.assert_close(p.sum(-1), torch.ones(2, dtype=torch.float64), atol=1e-12, rtol=0)
    assert len(p[0].unique()) < n / 20


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [1, 5, 300])
def test_a_strength_beyond_all_scores_gives_equal_shares(name: str, n: int):
    x = normal(3, n)
    for gamma in (1e9, 1e12, 1e15, 1e30):
        for p in (REGISTRY[name](x, gamma=gamma), REGISTRY[name].forward(x, gamma=gamma)):
            torch.testing.assert_close(p, torch.full_like(p, 1 / n), atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_the_slope_by_a_strength_of_0_is_that_above_it(name: str):
    x = torch.tensor([[0.3, 0.1, 0.1, 0.45], [0.2, 0.2, 0.4, 0.3]], dtype=torch.float64)
    gamma, g = torch.zeros((), dtype=torch.float64, requires_grad=True), normal(2, 4, seed=1)
    (slope,) = torch.autograd.grad((g * REGISTRY[name](x, gamma=gamma)).sum(), gamma)
    step = 1e-7
    change = (g * (REGISTRY[name](x, gamma=step) - REGISTRY[name](x, gamma=0.0))).sum() / step
    torch.testing.assert_close(slope, change, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_second_derivatives_of_its_loss_are_symmetric(name: str):
    x, y = normal(3, 4, scale=0.3).requires_grad_(), torch.tensor([0, 2, 3])
    gamma = torch.tensor(0.03, dtype=torch.float64, requires_grad=True)
    loss = lambda x, gamma: getattr(sm, f"{name}_loss")(x, y, gamma=gamma)
    assert torch.autograd.gradcheck(loss, (x, gamma))
    assert torch.autograd.gradgradcheck(loss, (x, gamma))


@pytest.mark.parametrize("name", NAMES)
def test_several_axes_are_one_in_the_order_given(name: str):
    x = torch.tensor([[[0.3, 1.0, 0.8], [0.5, 0.2, 1.1]]])
    for dim in ((1, 2), (2, 1)):
        flat = x.permute(0, *dim).flatten(1)
        expected = REGISTRY[name](flat, gamma=0.3)
        p = REGISTRY[name](x, dim, gamma=0.3)
        torch.testing.assert_close(p.permute(0, *dim).flatten(1), expected)
        loss = sm.fenchel_young_loss(x, torch.tensor([2]), map=name, gamma=0.3, dim=dim)
        torch.testing.assert_close(loss, sm.fenchel_young_loss(flat, torch.tensor([2]), map=name, gamma=0.3))
