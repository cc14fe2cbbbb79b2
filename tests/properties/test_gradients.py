"""Gradients: reverse, forward, second order, batched, of scores, temperature and every learnable parameter."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import softmaxima as sm
from conftest import Case, normal

pytestmark = pytest.mark.gpu


def check(function, *inputs: Tensor) -> None:
    inputs = tuple(t.detach().requires_grad_() for t in inputs)
    assert gradcheck(function, inputs, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True, atol=1e-6)
    assert gradgradcheck(function, inputs, check_fwd_over_rev=True, check_rev_over_rev=True, atol=1e-5)


def test_gradient_of_scores(case: Case):
    check(lambda x: case(x), normal(3, 5))


def test_gradient_of_masked_scores_and_temperature(case: Case):
    where = torch.tensor([[1, 1, 0, 1, 1], [0, 1, 1, 1, 0], [1, 1, 1, 1, 1]]).bool()
    tau = torch.tensor([[0.7], [1.3], [2.0]], dtype=torch.float64)
    # log_softmax is −∞ at a mask, where no difference quotient exists.
    finite = lambda p: p.masked_fill(~where, 0.0)
    check(lambda x, tau: finite(case(x, where=where, temperature=tau)), normal(3, 5, seed=2), tau)


def test_gradient_of_learnable_parameter(learnable):
    case, parameter = learnable
    value = float(case.params[parameter.name])
    if not bool(parameter.valid(value - 1e-3)):
        value += 2e-3  # finite differences need room below; the limit itself is tested beside
    values = torch.full((3, 1), value, dtype=torch.float64) + 0.05 * torch.arange(3, dtype=torch.float64)[:, None]
    check(lambda x, v: case.map(x, **case.params | {parameter.name: v}), normal(3, 5, seed=1), values)


def test_gradient_of_shared_parameter_is_summed_over_rows(learnable):
    case, parameter = learnable
    value = torch.tensor(float(case.params[parameter.name]), dtype=torch.float64, requires_grad=True)
    x, g = normal(4, 5), normal(4, 5, seed=7)
    (shared,) = torch.autograd.grad((g * case.map(x, **case.params | {parameter.name: value})).sum(), value)
    each = value.detach().expand(4, 1).clone().requires_grad_()
    (apart,) = torch.autograd.grad((g * case.map(x, **case.params | {parameter.name: each})).sum(), each)
    torch.testing.assert_close(shared, apart.sum())


@pytest.mark.parametrize("alpha", [1.0, 1.0 + 1e-12, 1.0 + 1e-8, 1.0 + 1e-4])
def test_entmax_alpha_gradient_is_continuous_through_softmax(alpha: float):
    x = normal(4, 6)
    a = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    p = sm.softmax(x)
    log_p = p.log()
    limit = 0.5 * (p * (p * log_p**2).sum(-1, keepdim=True) - p * log_p**2)
    g = normal(4, 6, seed=3)
    (gradient,) = torch.autograd.grad((g * sm.entmax(x, alpha=a)).sum(), a, create_graph=True)
    torch.testing.assert_close(gradient, (g * limit).sum(), atol=10 * (alpha - 1) + 1e-11, rtol=0)
    (second,) = torch.autograd.grad(gradient, a)
    step = 1e-4
    at = lambda alpha: float((g * sm.entmax(x, alpha=alpha)).sum())
    base = max(alpha, 1 + step)
    difference = (at(base + step) - 2 * at(base) + at(base - step)) / step**2
    assert math.isclose(float(second), difference, abs_tol=5e-3)


def test_entmax_alpha_gradient_matches_the_published_formula():
    x = normal(5, 7)
    for alpha in (1.05, 1.3, 1.5, 2.0, 2.5):
        a = torch.full((5, 1), alpha, dtype=torch.float64, requires_grad=True)
        g = normal(5, 7, seed=4)
        p = sm.entmax(x, alpha=a)
        (ours,) = torch.autograd.grad((g * p).sum(), a)
        p, beta = p.detach(), alpha - 1
        s = torch.where(p > 0, p ** (2 - alpha), 0.0)
        q, h = s / s.sum(-1, keepdim=True), torch.xlogy(p, p).sum(-1, keepdim=True)
        published = (p - q) / beta**2 - (torch.xlogy(p, p) - q * h) / beta
        torch.testing.assert_close(ours, (g * published).sum(-1, keepdim=True), atol=1e-9, rtol=0)


def test_gradient_at_a_mask_is_exactly_zero(case: Case):
    x = normal(4, 6).masked_fill(torch.eye(4, 6).bool(), -math.inf).requires_grad_()
    tau = torch.full((4, 1), 1.5, dtype=torch.float64, requires_grad=True)
    weights = torch.where(x.detach() == -math.inf, 0.0, normal(4, 6, seed=9))
    out = case(x, temperature=tau).masked_fill(x == -math.inf, 0.0)
    gx, gt = torch.autograd.grad((weights * out).sum(), (x, tau))
    assert bool((gx[x == -math.inf] == 0).all())
    assert bool(gx.isfinite().all())
    assert bool(gt.isfinite().all())


def test_half_precision_gradient_is_near_that_of_float64(case: Case):
    for dtype, tolerance in ((torch.bfloat16, 0.03), (torch.float16, 0.005), (torch.float32, 1e-5)):
        x = normal(6, 7, dtype=dtype).requires_grad_()
        g = normal(6, 7, seed=5)
        (half,) = torch.autograd.grad((g.to(dtype) * case(x)).sum(), x)
        wide = x.detach().double().requires_grad_()
        (full,) = torch.autograd.grad((g.to(dtype).double() * case(wide)).sum(), wide)
        assert half.dtype == dtype
        torch.testing.assert_close(half.double(), full, atol=tolerance, rtol=tolerance)


def test_no_gradient_is_recorded_where_none_is_wanted(case: Case):
    assert not case(normal(2, 3)).requires_grad
    with torch.no_grad():
        assert not case(normal(2, 3).requires_grad_()).requires_grad
