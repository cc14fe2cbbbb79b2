"""logsumexp, real_softmax, softplus and its inverse: oracles, exactness near 0, infinities, axes, gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.special
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

import softmaxima as sm
from conftest import normal, rows

pytestmark = pytest.mark.gpu

INF = math.inf


@given(x=rows())
def test_agrees_with_scipy_and_torch(x: torch.Tensor):
    ours = sm.logsumexp(x)
    torch.testing.assert_close(ours, torch.from_numpy(scipy.special.logsumexp(x.numpy(), axis=-1)), atol=1e-14, rtol=1e-14)
    torch.testing.assert_close(ours, torch.logsumexp(x, -1), atol=1e-14, rtol=1e-14)


@pytest.mark.parametrize("dim", [0, -1, 1, (0, 1), (2, 0), (-1, -2, 0), [1, 2]])
@pytest.mark.parametrize("keepdim", [False, True])
def test_axes_are_those_of_torch(dim, keepdim: bool):
    x = normal(3, 4, 5)
    dims = tuple(dim) if isinstance(dim, list) else dim
    torch.testing.assert_close(sm.logsumexp(x, dim, keepdim=keepdim), torch.logsumexp(x, dims, keepdim=keepdim))
    where = normal(3, 4, 5, seed=1) > -1
    masked = x.masked_fill(~where, -INF)
    torch.testing.assert_close(sm.logsumexp(x, dim, keepdim=keepdim, where=where), torch.logsumexp(masked, dims, keepdim=keepdim))


def test_temperature_broadcasts_with_size_one_along_every_summed_axis():
    x, tau = normal(3, 4, 5), torch.tensor([0.5, 1.0, 2.0, 4.0], dtype=torch.float64)
    torch.testing.assert_close(sm.logsumexp(x, (0, 2), temperature=tau[:, None]), torch.logsumexp(x / tau[:, None], (0, 2)))
    torch.testing.assert_close(sm.logsumexp(x, 1, temperature=2.0), torch.logsumexp(x / 2, 1))
    with pytest.raises(ValueError, match="must broadcast against scores"):
        sm.logsumexp(x, (0, 2), temperature=torch.ones(5))


@given(x=rows(), shift=st.floats(-100, 100))
def test_shifts_with_its_scores_and_lies_between_max_and_max_plus_log_n(x: torch.Tensor, shift: float):
    value, largest = sm.logsumexp(x), x.amax(-1)
    torch.testing.assert_close(sm.logsumexp(x + shift), value + shift, atol=1e-12, rtol=1e-13)
    assert bool((value >= largest).all())
    assert bool((value <= largest + math.log(x.shape[-1]) + 1e-13).all())


def test_keeps_its_digits_near_zero():
    assert float(sm.logsumexp(torch.tensor([0.0, -40.0]))) == pytest.approx(4.248354255e-18, rel=1e-6)
    assert sm.logsumexp(np.array([0.0, -40.0])) == pytest.approx(4.248354255291589e-18, rel=1e-15)
    assert sm.logsumexp(np.array([0.0, -700.0])) == pytest.approx(math.exp(-700.0), rel=1e-13)


def test_infinities_and_nothing(dtype: torch.dtype):
    x = torch.tensor([[-INF, -INF], [INF, 0.0], [INF, INF], [math.nan, 0.0], [0.0, -INF]], dtype=dtype, requires_grad=True)
    value = sm.logsumexp(x)
    torch.testing.assert_close(value, torch.tensor([-INF, INF, INF, math.nan, 0.0], dtype=dtype), equal_nan=True)
    (gradient,) = torch.autograd.grad(value.sum(), x)
    expected = torch.tensor([[0, 0], *[[math.nan, math.nan]] * 3, [1, 0]], dtype=dtype)
    torch.testing.assert_close(gradient, expected, equal_nan=True)
    assert float(sm.logsumexp(torch.zeros(0, dtype=dtype))) == -INF
    assert sm.logsumexp(torch.zeros(3, 0, dtype=dtype)).tolist() == [-INF] * 3
    assert sm.logsumexp(torch.zeros(0, 3, dtype=dtype)).shape == (0,)
    assert float(sm.logsumexp(torch.tensor(2.5, dtype=dtype))) == 2.5
    assert sm.logsumexp(torch.tensor(2.5, dtype=dtype), keepdim=True).shape == ()


def test_integers_are_promoted():
    assert sm.logsumexp(torch.tensor([0, 0])).dtype == torch.get_default_dtype()
    assert sm.logsumexp(np.array([0, 0])) == math.log(2)
    assert sm.logsumexp(np.array([0, 0])).dtype == np.float64


def test_long_half_precision_sums_do_not_overflow():
    assert float(sm.logsumexp(torch.zeros(100_000, dtype=torch.float16))) == pytest.approx(math.log(1e5), abs=4e-3)


def test_gradients_of_scores_and_temperature():
    x, tau = normal(3, 4).requires_grad_(), torch.tensor([[0.5], [1.0], [2.0]], dtype=torch.float64, requires_grad=True)
    where = normal(3, 4, seed=1) > -1
    function = lambda x, tau: sm.logsumexp(x, temperature=tau, where=where)
    assert gradcheck(function, (x, tau), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(function, (x, tau), check_fwd_over_rev=True)
    (gradient,) = torch.autograd.grad(sm.logsumexp(x, 0).sum(), x)
    torch.testing.assert_close(gradient, sm.softmax(x.detach(), 0))


def test_float32_gradient_far_from_zero_keeps_its_digits():
    x = (normal(5, dtype=torch.float32) + 1e4).requires_grad_()
    (gradient,) = torch.autograd.grad(sm.logsumexp(x), x)
    torch.testing.assert_close(gradient.double(), torch.softmax(x.detach().double(), -1), atol=1e-6, rtol=1e-5)


def test_transforms_and_compile():
    x = normal(3, 4)
    torch.testing.assert_close(torch.func.vmap(sm.logsumexp)(x), torch.logsumexp(x, -1))
    torch.testing.assert_close(torch.func.hessian(sm.logsumexp)(x[0]), sm.jacobian("softmax", x[0]))
    torch.testing.assert_close(torch.func.jacfwd(torch.func.jacfwd(sm.logsumexp))(x[0]), sm.jacobian("softmax", x[0]))
    torch._dynamo.reset()
    x.requires_grad_()
    compiled = torch.compile(lambda x: sm.logsumexp(x, (0, 1), temperature=2.0), fullgraph=True, backend="aot_eager")
    (gradient,) = torch.autograd.grad(compiled(x), x)
    torch.testing.assert_close(gradient, sm.softmax(x.detach().flatten(), temperature=2.0).view(3, 4) / 2)


@given(x=rows(masks=False), sharpness=st.floats(0.01, 1e4))
def test_real_softmax_is_a_smooth_maximum(x: torch.Tensor, sharpness: float):
    value, largest = sm.real_softmax(x, sharpness), x.amax(-1)
    assert bool((value >= largest - 1e-12 * (1 + largest.abs())).all())
    assert bool((value <= largest + math.log(x.shape[-1]) / sharpness + 1e-11).all())


def test_real_softmax_is_strictly_above_the_maximum_where_it_can_be():
    assert float(sm.real_softmax(torch.tensor([1.0, 2.0], dtype=torch.float64))) > 2.0
    assert sm.real_softmax(np.array([3.0, 1.0]), sharpness=1e6) == 3.0


def test_softplus_is_not_negative(dtype: torch.dtype):
    """Nor is it −0, which prints as a negative number."""
    x = torch.tensor([-math.inf, -6e4, -800.0, -100.0, -1.0, 0.0, 5.0], dtype=dtype)
    for beta in (0.5, 1.0, 20.0):
        assert not bool(torch.signbit(sm.softplus(x, beta)).any())


@given(x=st.floats(-700, 700), beta=st.floats(0.05, 20))
def test_softplus_lies_above_relu_by_at_most_log_2_over_beta(x: float, beta: float):
    value = sm.softplus(np.array(x), beta)
    assert 0 <= value - max(x, 0.0) <= math.log(2) / beta + 1e-12
    if abs(beta * x) < 700:
        assert value == pytest.approx(max(x, 0.0) + math.log1p(math.exp(-abs(beta * x))) / beta, rel=1e-13)


@given(y=st.floats(1e-300, 1e300), beta=st.floats(0.05, 20))
def test_inverse_softplus_inverts(y: float, beta: float):
    x = sm.inverse_softplus(np.array(y), beta)
    assert sm.softplus(x, beta) == pytest.approx(y, rel=1e-9)


def test_softplus_derivatives_are_exact_everywhere():
    x = torch.tensor([-INF, -1000.0, -3.0, 0.0, 3.0, 1000.0, INF], dtype=torch.float64, requires_grad=True)
    for beta in (0.5, 1.0, 3.0):
        (first,) = torch.autograd.grad(sm.softplus(x, beta).sum(), x, create_graph=True)
        sigma = torch.sigmoid(beta * x.detach())
        torch.testing.assert_close(first.detach(), sigma)
        inner = x.detach()[1:-1].requires_grad_()
        (first,) = torch.autograd.grad(sm.softplus(inner, beta).sum(), inner, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), inner)
        torch.testing.assert_close(second, (beta * sigma * (1 - sigma))[1:-1])


def test_softplus_of_half_precision_is_computed_wide():
    x = torch.tensor([-8.0, 0.5, 9.0], dtype=torch.float16)
    torch.testing.assert_close(sm.softplus(x), torch.nn.functional.softplus(x.double()).half(), rtol=2**-10, atol=0)
    assert sm.inverse_softplus(torch.tensor([0.0, -1.0])).isnan().tolist() == [False, True]


CUTS = (np.s_[:, 3:40], np.s_[5:90, :33], np.s_[:, 10:11], np.s_[20:21, 2:70], np.s_[7:, 1:], np.s_[::2, 4:50])


@pytest.mark.parametrize("cut", CUTS)
def test_columns_of_a_slice_are_summed_where_they_lie(cut: tuple[slice, slice], dtype: torch.dtype) -> None:
    whole = (3 * torch.randn(4, 100, 77, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).to(dtype)
    whole[0, 30, 5] = -math.inf
    for x in (whole[0][cut], whole[(slice(None), *cut)], whole[1:3, 20:60][(slice(None), *cut)]):
        wide = x.double()
        expected = torch.logsumexp(wide, -2)
        tolerance = 2e-15 if dtype == torch.float64 else float(torch.finfo(dtype).eps)  # of torch's sums
        torch.testing.assert_close(sm.logsumexp(x, -2).double(), expected, rtol=tolerance, atol=tolerance)
        tau = torch.linspace(0.5, 2, x.shape[-1], dtype=torch.float64)
        found = sm.logsumexp(x, -2, temperature=tau.to(dtype))
        expected = torch.logsumexp(wide / tau.to(dtype).double(), -2)
        torch.testing.assert_close(found.double(), expected, rtol=2 * tolerance, atol=2 * tolerance)
        probabilities, logs = wide.softmax(-2), wide.log_softmax(-2).clamp_min(-100.0)
        # Kernels that round a difference of scores move its exponential by as much.
        room = tolerance * probabilities * (4 - logs) + float(torch.finfo(dtype).tiny)
        assert ((sm.softmax(x, -2).double() - probabilities).abs() <= room).all()
        mask = wide < 2.0
        found, expected = sm.logsumexp(x, -2, where=mask), torch.logsumexp(wide.masked_fill(~mask, -math.inf), -2)
        torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=2 * tolerance)
