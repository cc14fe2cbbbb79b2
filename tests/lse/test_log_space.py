"""logaddexp, log1mexp, log_mean_exp, logcumsumexp and real_softmin: oracles, exactness near 0, infinities, axes, gradients."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

import softmaxima as sm
from conftest import normal, rows

INF, NAN = math.inf, math.nan


def cumulative_reference(x: torch.Tensor) -> torch.Tensor:
    """LSE of every prefix, each on its own."""
    prefixes = [sm.logsumexp(x[..., : k + 1]) for k in range(x.shape[-1])]
    return torch.stack(prefixes, -1)


# logaddexp -------------------------------------------------------------------------------------------------------------------


@given(x=st.floats(-1e4, 1e4), y=st.floats(-1e4, 1e4))
def test_logaddexp_agrees_with_numpy(x: float, y: float):
    assert sm.logaddexp(np.array(x), np.array(y)) == pytest.approx(np.logaddexp(x, y), rel=1e-14, abs=1e-300)


def test_logaddexp_broadcasts_and_takes_the_wider_dtype():
    x, y = normal(3, 1), normal(4, seed=1, dtype=torch.float32)
    value = sm.logaddexp(x, y)
    assert value.dtype == torch.float64
    torch.testing.assert_close(value, torch.logaddexp(x, y.double()))
    assert sm.logaddexp(np.zeros((2, 1), np.float32), np.zeros(0, np.float32)).shape == (2, 0)


def test_logaddexp_of_infinities(dtype: torch.dtype):
    x = torch.tensor([-INF, -INF, INF, INF, INF, NAN, 0.0], dtype=dtype, requires_grad=True)
    y = torch.tensor([-INF, 1.0, INF, -INF, 0.0, 0.0, -40.0], dtype=dtype, requires_grad=True)
    value = sm.logaddexp(x, y)
    expected = torch.tensor([-INF, 1.0, INF, INF, INF, NAN, math.exp(-40)], dtype=dtype)
    torch.testing.assert_close(value, expected, equal_nan=True)
    by_x, by_y = torch.autograd.grad(value.sum(), (x, y))
    torch.testing.assert_close(by_x, torch.tensor([0, 0, NAN, NAN, NAN, NAN, 1], dtype=dtype), equal_nan=True)
    torch.testing.assert_close(by_y[:5], torch.tensor([0, 1, NAN, NAN, NAN], dtype=dtype), equal_nan=True)


def test_logaddexp_gradients():
    x, y = normal(3, 1).requires_grad_(), normal(4, seed=1).requires_grad_()
    assert gradcheck(sm.logaddexp, (x, y), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(sm.logaddexp, (x, y))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 40.0])
def test_logaddexp_is_exact_to_the_last_places(dtype: torch.dtype, scale: float):
    x, y = normal(300, scale=scale, dtype=dtype), normal(300, seed=1, scale=scale, dtype=dtype)
    x[:100], y[:100] = -math.log(2) + x[:100], -math.log(2) + y[:100]  # results near 0
    smallest = torch.finfo(dtype).smallest_normal
    for first, second, value in zip(x.tolist(), y.tolist(), sm.logaddexp(x, y).tolist(), strict=True):
        with mpmath.workdps(60):
            exact = mpmath.log(mpmath.exp(mpmath.mpf(first)) + mpmath.exp(mpmath.mpf(second)))
            unit = torch.finfo(dtype).eps * mpmath.mpf(2) ** mpmath.floor(mpmath.log(max(abs(exact), smallest), 2))
            # An eighth of a double term is what may be left of it; smaller results are those of long double.
            allowed = 12 * unit + mpmath.mpf(2) ** -63 if dtype == torch.float64 else unit
            assert abs(value - exact) <= allowed


@given(x=st.floats(-800, 800, width=32), y=st.floats(-800, 800, width=32))
def test_logaddexp_gradient_is_the_softmax_of_the_pair(x: float, y: float):
    for offset in (0.0, 1e10):
        pair = torch.tensor([x + offset, y + offset], dtype=torch.float64)
        first, second = (v.requires_grad_() for v in pair.clone().unbind())
        gradients = torch.autograd.grad(sm.logaddexp(first, second), (first, second))
        torch.testing.assert_close(torch.stack(gradients), torch.softmax(pair, -1), rtol=1e-13, atol=0)


def test_logaddexp_gradient_of_infinities():
    x = torch.tensor([INF, INF, -INF, -INF, INF, 1.0, NAN], requires_grad=True)
    y = torch.tensor([INF, 0.0, -INF, 0.0, -INF, 1.0, 0.0], requires_grad=True)
    first, second = torch.autograd.grad(sm.logaddexp(x, y).sum(), (x, y))
    assert first[[2, 3, 5]].tolist() == [0, 0, 0.5]
    assert second[[2, 3, 5]].tolist() == [0, 1, 0.5]
    assert bool((first + second)[[0, 1, 4, 6]].isnan().all())


def test_logaddexp_of_any_layout(dtype: torch.dtype):
    x, y = normal(6, 4, dtype=dtype), normal(4, 6, seed=1, dtype=dtype)
    expected = sm.logaddexp(x, y.T.contiguous())
    for first, second in ((x, y.T), (x.T.contiguous().T, y.T), (x.flip(0).flip(0), y.T)):
        assert torch.equal(sm.logaddexp(first, second), expected)
    column = x[:, :1].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(sm.logaddexp(column, y.T).sum(), column)
    each = torch.autograd.grad(sm.logaddexp(full := column.detach().expand(6, 4).clone().requires_grad_(), y.T).sum(), full)[0]
    torch.testing.assert_close(gradient, each.sum(1, keepdim=True))


# log1mexp --------------------------------------------------------------------------------------------------------------------


@given(x=st.floats(-800, -1e-300))
def test_log1mexp_is_exact_to_the_last_places(x: float):
    with mpmath.workdps(400):
        expected = float(mpmath.log(-mpmath.expm1(mpmath.mpf(x))))
    assert sm.log1mexp(np.array(x)) == pytest.approx(expected, rel=4e-16, abs=5e-324)


def test_log1mexp_at_its_edges(dtype: torch.dtype):
    x = torch.tensor([0.0, -INF, 1.0, NAN, -math.log(2)], dtype=dtype, requires_grad=True)
    value = sm.log1mexp(x)
    expected = torch.tensor([-INF, 0.0, NAN, NAN, -math.log(2)], dtype=dtype)
    torch.testing.assert_close(value, expected, equal_nan=True, rtol=4 * torch.finfo(dtype).eps, atol=0)
    (gradient,) = torch.autograd.grad(value[[0, 1]].sum(), x)
    assert gradient[:2].tolist() == [-INF, 0.0]


def test_log1mexp_gradients():
    x = torch.tensor([-1e-3, -0.5, -0.7, -3.0, -30.0], dtype=torch.float64, requires_grad=True)
    assert gradcheck(sm.log1mexp, (x,), eps=1e-8, check_forward_ad=True)
    (gradient,) = torch.autograd.grad(sm.log1mexp(x).sum(), x)
    torch.testing.assert_close(gradient, -1 / torch.expm1(-x.detach()))
    assert gradgradcheck(sm.log1mexp, (x,), eps=1e-8)


# log_mean_exp ----------------------------------------------------------------------------------------------------------------


@given(x=rows())
def test_log_mean_exp_is_logsumexp_less_log_n_between_the_mean_and_the_maximum(x: torch.Tensor):
    value = sm.log_mean_exp(x)
    torch.testing.assert_close(value, sm.logsumexp(x) - math.log(x.shape[-1]), atol=1e-14, rtol=1e-14)
    assert bool((value <= x.amax(-1)).all())
    assert bool((value >= x.mean(-1) - 1e-13).all())


@pytest.mark.parametrize("dim", [0, -1, (0, 2), (-1, -2, 0)])
@pytest.mark.parametrize("keepdim", [False, True])
def test_log_mean_exp_counts_what_is_allowed(dim, keepdim: bool):
    x, where = normal(3, 4, 5), normal(3, 1, 5, seed=1) > -1
    value = sm.log_mean_exp(x, dim, keepdim=keepdim, where=where, temperature=2.0)
    mean = ((x / 2).exp() * where).sum(dim, keepdim=keepdim) / where.expand(x.shape).sum(dim, keepdim=keepdim)
    torch.testing.assert_close(value, mean.log())


def test_log_mean_exp_keeps_its_digits():
    for n in (1, 2, 65_537):
        for value in (0.1, 1.5, -3.7, -1e4):
            for dtype in (np.float64, np.float32):
                assert sm.log_mean_exp(np.full(n, value, dtype)) == dtype(value)
    assert sm.log_mean_exp(np.array([2e-20, 0.0])) == pytest.approx(1e-20, rel=1e-15)
    assert float(sm.log_mean_exp(torch.zeros(100_000, dtype=torch.float16))) == 0.0


@given(
    scores=st.lists(st.floats(-30, 30), min_size=1, max_size=24),
    tau=st.sampled_from([1.0, 0.7, 12.0]),
    near=st.sampled_from([0.0, 1e-12, -1e-3, 0.2, -3.0]),
)
def test_log_mean_exp_in_double_has_its_digits_near_0(scores: list[float], tau: float, near: float):
    x = np.array(scores)
    x = x - tau * (sm.log_mean_exp(x, temperature=tau) - near)
    with mpmath.workdps(60):
        exact = mpmath.log(mpmath.fsum(mpmath.exp(mpmath.mpf(float(score)) / mpmath.mpf(tau)) for score in x) / len(x))
        error = abs(mpmath.mpf(float(sm.log_mean_exp(x, temperature=tau))) - exact)
    assert error <= 4 * np.spacing(abs(float(exact))) + 2.0**-61 * max(abs(x).max() / tau, 1.0)  # of 64 bits


@given(x=rows(), offset=st.sampled_from([0.0, -0.3, 1.0, 40.0]))
def test_log_mean_exp_is_the_nearest_float32(x: torch.Tensor, offset: float):
    x = (x.clamp(-50, 50) + offset).float()
    for scores, value in zip(x.tolist(), sm.log_mean_exp(x), strict=True):
        with mpmath.workdps(40):
            exact = mpmath.log(mpmath.fsum(mpmath.exp(score) for score in scores) / len(scores))
            largest = max(map(abs, scores))
            assert abs(float(value) - exact) <= 0.6 * 2**-23 * abs(exact) + 2**-49 * largest + 2**-149


def test_log_mean_exp_of_infinities_and_nothing(dtype: torch.dtype):
    x = torch.tensor([[-INF, -INF], [INF, 0.0], [INF, INF], [NAN, 0.0], [0.0, -INF]], dtype=dtype, requires_grad=True)
    value = sm.log_mean_exp(x)
    expected = torch.tensor([-INF, INF, INF, NAN, -math.log(2)], dtype=dtype)
    torch.testing.assert_close(value, expected, equal_nan=True)
    (gradient,) = torch.autograd.grad(value.sum(), x)
    expected = torch.tensor([[0, 0], *[[NAN, NAN]] * 3, [1, 0]], dtype=dtype)
    torch.testing.assert_close(gradient, expected, equal_nan=True)
    assert sm.log_mean_exp(torch.zeros(2, 0, dtype=dtype)).tolist() == [-INF, -INF]
    assert sm.log_mean_exp(x.detach(), where=torch.tensor([False])).tolist() == [-INF] * 5


def test_log_mean_exp_gradients():
    x, tau = normal(3, 4).requires_grad_(), torch.tensor([[0.5], [1.0], [2.0]], dtype=torch.float64, requires_grad=True)
    where = normal(3, 4, seed=1) > -1
    function = lambda x, tau: sm.log_mean_exp(x, temperature=tau, where=where)
    assert gradcheck(function, (x, tau), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(function, (x, tau), check_fwd_over_rev=True)


# logcumsumexp ----------------------------------------------------------------------------------------------------------------


@given(x=rows())
def test_every_prefix_has_its_logsumexp(x: torch.Tensor):
    torch.testing.assert_close(sm.logcumsumexp(x), cumulative_reference(x), atol=1e-15, rtol=1e-14)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8, 9, 33])
@pytest.mark.parametrize("dim", [0, 1, -1, -3])
def test_logcumsumexp_runs_along_any_axis(n: int, dim: int):
    x = normal(n, n, n).transpose(0, 1)
    where = normal(n, 1, n, seed=1) > -1
    expected = cumulative_reference((x.movedim(dim, -1) / 3).masked_fill(~where.expand(x.shape).movedim(dim, -1), -INF))
    torch.testing.assert_close(sm.logcumsumexp(x, dim, where=where, temperature=3.0), expected.movedim(-1, dim))


def test_logcumsumexp_of_infinities(dtype: torch.dtype):
    x = torch.tensor([[-INF, 0, -40, INF, 1, INF], [-INF, -INF, 1, NAN, 0, INF]], dtype=dtype, requires_grad=True)
    value = sm.logcumsumexp(x)
    expected = torch.tensor([[-INF, 0, math.exp(-40), INF, INF, INF], [-INF, -INF, 1, NAN, NAN, NAN]], dtype=dtype)
    torch.testing.assert_close(value, expected, equal_nan=True)
    by_last, by_first = (torch.autograd.grad(value[0, k], x, retain_graph=True)[0][0].tolist() for k in (-1, 0))
    assert math.isnan(by_last[3] + by_last[5])
    assert by_first == [0] * 6
    assert sm.logcumsumexp(torch.zeros(2, 0, dtype=dtype)).shape == (2, 0)
    assert sm.logcumsumexp(torch.tensor(2.5, dtype=dtype)).tolist() == 2.5


def test_long_logcumsumexp_keeps_its_digits():
    x = normal(65_537, scale=5.0)
    value = sm.logcumsumexp(x + 1e4)
    for k in (1, 1000, 65_536):
        assert float(value[k]) == pytest.approx(float(sm.logsumexp(x[: k + 1] + 1e4)), rel=3e-16)
    n = 100_000
    assert sm.logcumsumexp(np.zeros(n)) == pytest.approx(np.log(np.arange(1, n + 1)), rel=3e-16)
    assert float(sm.logcumsumexp(torch.zeros(n, dtype=torch.float16))[-1]) == pytest.approx(math.log(n), abs=4e-3)


def test_logcumsumexp_gradients():
    x, tau = normal(2, 5).requires_grad_(), torch.tensor([[0.5], [2.0]], dtype=torch.float64, requires_grad=True)
    where = torch.tensor([[True, True, False, True, True]])
    function = lambda x, tau: sm.logcumsumexp(x, temperature=tau, where=where)[:, [0, 2, 3, 4]]
    assert gradcheck(function, (x, tau), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(function, (x, tau), check_fwd_over_rev=True)
    torch.testing.assert_close(torch.func.vmap(sm.logcumsumexp)(x), sm.logcumsumexp(x))


# real_softmin ----------------------------------------------------------------------------------------------------------------


@given(x=rows(masks=False), sharpness=st.floats(0.01, 1e4))
def test_real_softmin_is_a_smooth_minimum(x: torch.Tensor, sharpness: float):
    value, smallest = sm.real_softmin(x, sharpness), x.amin(-1)
    assert bool((value <= smallest + 1e-12 * (1 + smallest.abs())).all())
    assert bool((value >= smallest - math.log(x.shape[-1]) / sharpness - 1e-11).all())
    torch.testing.assert_close(value, -sm.real_softmax(-x, sharpness), rtol=0, atol=0)


def test_the_gradient_of_real_softmin_is_softmin():
    x = normal(3, 4).requires_grad_()
    (gradient,) = torch.autograd.grad(sm.real_softmin(x, 2.0, 0).sum(), x)
    torch.testing.assert_close(gradient, sm.softmin(x.detach(), 0, temperature=0.5))


def test_real_softmin_of_unsigned_integers_and_of_nothing():
    assert sm.real_softmin(np.array([3, 1, 255], np.uint8), 1e3) == 1.0
    assert sm.real_softmin(np.array([INF, INF])) == INF
    assert sm.real_softmin(np.zeros(2), where=np.zeros(2, bool)) == INF


# wrong use -------------------------------------------------------------------------------------------------------------------

X = torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: sm.logaddexp(X, torch.zeros(2)), ValueError, r"logaddexp: x and y must broadcast.*\(2, 3\) and \(2,\)"),
        (lambda: sm.logaddexp(X, X.numpy()), TypeError, r"logaddexp: x and y must be of one kind, got Tensor and ndarray"),
        (lambda: sm.logaddexp(X, X.cfloat()), TypeError, r"logaddexp: y must be float64.*got torch.complex64"),
        (lambda: sm.log1mexp(X.cfloat()), TypeError, r"log1mexp: x must be float64.*got torch.complex64"),
        (lambda: sm.log_mean_exp(X.cfloat()), TypeError, r"log_mean_exp: scores must be real, got torch.complex64"),
        (lambda: sm.log_mean_exp(X, ()), ValueError, r"log_mean_exp: dim must name each axis"),
        (lambda: sm.log_mean_exp(X, temperature=0.0), ValueError, r"log_mean_exp: temperature must be positive"),
        (lambda: sm.logcumsumexp(X, (0, 1)), TypeError, r"logcumsumexp: dim must be an int here, got tuple"),
        (lambda: sm.logcumsumexp(X, 2), IndexError, r"logcumsumexp: dim must be in \[-2, 1\]"),
        (lambda: sm.real_softmin(X, sharpness=0.0), ValueError, r"real_softmin: sharpness must be a positive finite number"),
        (lambda: sm.real_softmin([1.0]), TypeError, r"real_softmin: scores must be a torch.Tensor or a numpy.ndarray, got list"),
    ],
)
def test_wrong_use_in_log_space_raises(call, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("scale", [1e-3, 1e-1, 1.0, 10.0])
def test_a_mean_near_0_of_narrow_scores_has_all_their_digits(dtype: torch.dtype, scale: float):
    x = normal(200, 9, scale=scale).to(dtype)
    info = torch.finfo(dtype)
    for tau in (1.0, 1e3):
        exact = sm.log_mean_exp(x.double(), temperature=tau)
        actual = sm.log_mean_exp(x, temperature=tau).double()
        torch.testing.assert_close(actual, exact, rtol=info.eps, atol=max(info.smallest_normal * info.eps, 1e-16))


@pytest.mark.parametrize("kind", [torch.complex128, torch.complex64], ids=str)
def test_every_prefix_of_complex_scores_is_their_logsumexp(kind: torch.dtype):
    x = torch.complex(3 * normal(3, 9), 5 * normal(3, 9, seed=1)).to(kind)
    x[1, :2] = -math.inf
    x[2, 4] = -math.inf
    where, tau = normal(3, 9, seed=2) > -2, torch.tensor([[0.5], [1.0], [3.0]], dtype=torch.float64)
    for options in ({}, {"where": where}, {"temperature": tau, "where": where}):
        y, z = x.clone().requires_grad_(), x.clone().requires_grad_()
        found = sm.logcumsumexp(y, **options)
        parts = [{key: value[:, : k + 1] for key, value in options.items()} for k in range(9)]
        expected = torch.stack([sm.logsumexp(z[:, : k + 1], **part) for k, part in enumerate(parts)], -1)
        assert found.dtype == kind
        torch.testing.assert_close(found, expected)
        g = torch.complex(normal(3, 9, seed=3), normal(3, 9, seed=4)).to(kind).masked_fill(found.real.isinf(), 0.0)
        torch.testing.assert_close(torch.autograd.grad(found, y, g), torch.autograd.grad(expected, z, g))
        np.testing.assert_array_equal(
            sm.logcumsumexp(x.T.numpy(), 0, **{k: v.T.numpy() for k, v in options.items()}).T, found.detach()
        )
