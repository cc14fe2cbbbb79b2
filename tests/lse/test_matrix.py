"""matrix_logsumexp of matrices: expm, degenerate eigenvalues, states left out, convexity and bounds, derivatives."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import softmaxima as sm
from conftest import normal, rows

INF = math.inf


def symmetric(A: Tensor) -> Tensor:
    return (A + A.mH) / 2


def hermitian(*shape: int, seed: int = 0) -> Tensor:
    return symmetric(torch.complex(normal(*shape, seed=seed), normal(*shape, seed=seed + 100)))


def density(X: Tensor) -> Tensor:
    """exp(X)/tr exp(X), literally."""
    weights = torch.linalg.matrix_exp(X)
    return weights / weights.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Two symmetric matrices of one size."""
    d, seed, scale = draw(st.integers(1, 6)), draw(st.integers(0, 10_000)), draw(st.sampled_from([0.1, 1.0, 10.0, 1e4]))
    return symmetric(normal(d, d, seed=seed, scale=scale)), symmetric(normal(d, d, seed=seed + 1, scale=scale))


@pytest.mark.parametrize("X", [symmetric(normal(4, 7, 7)), hermitian(4, 7, 7)], ids=["symmetric", "hermitian"])
def test_is_the_logarithm_of_the_trace_of_expm(X: Tensor):
    expected = [math.log(np.trace(scipy.linalg.expm(x)).real) for x in X.numpy()]
    # expm squares its result log₂‖X‖ times, and loses digits in it
    torch.testing.assert_close(sm.matrix_logsumexp(X), torch.tensor(expected, dtype=torch.float64), atol=0, rtol=1e-11)


def test_agrees_with_forty_digits_at_a_norm_of_ten_thousand():
    X = symmetric(normal(5, 5, scale=1e4))
    with mpmath.workdps(40):
        eigenvalues = mpmath.eigsy(mpmath.matrix(X.tolist()), eigvals_only=True)
        expected = float(mpmath.log(mpmath.fsum(mpmath.exp(value) for value in eigenvalues)))
    assert float(sm.matrix_logsumexp(X)) == pytest.approx(expected, rel=1e-15, abs=1e-11)


@given(x=rows())
def test_a_diagonal_matrix_is_a_row_with_its_masks(x: Tensor):
    X = torch.diag_embed(x).requires_grad_()
    value = sm.matrix_logsumexp(X)
    torch.testing.assert_close(value, sm.logsumexp(x), atol=1e-13, rtol=1e-13)
    (gradient,) = torch.autograd.grad(value.sum(), X)
    torch.testing.assert_close(gradient, torch.diag_embed(sm.softmax(x)), atol=1e-13, rtol=0)
    assert bool((gradient.diagonal(dim1=-2, dim2=-1)[x == -INF] == 0).all())


def test_infinities_and_nan_stay_in_their_own_matrix(dtype: torch.dtype):
    x = torch.tensor([[0, -INF, 1], [INF, 0, INF], [-INF, -INF, -INF], [math.nan, 0, 1], [1, 2, 3]], dtype=dtype)
    X = torch.diag_embed(x).requires_grad_()
    value = sm.matrix_logsumexp(X)
    torch.testing.assert_close(value, sm.logsumexp(x), equal_nan=True)
    (gradient,) = torch.autograd.grad(value.sum(), X)
    assert bool(gradient[1].isnan().any())
    assert bool((gradient[2] == 0).all())
    assert bool(gradient[3].isnan().all())
    assert bool(gradient[4].isfinite().all())
    coupled = torch.tensor([[0.0, INF], [INF, 0.0]], dtype=dtype)
    assert bool(sm.matrix_logsumexp(coupled).isnan())


def test_minus_infinity_on_the_diagonal_leaves_a_state_out_with_its_couplings():
    X = symmetric(normal(3, 5, 5))
    kept = [0, 2, 3]
    masked = X.clone()
    masked[:, [1, 4], [1, 4]] = -INF
    masked.requires_grad_()
    value = sm.matrix_logsumexp(masked)
    part = X[:, kept][:, :, kept]
    torch.testing.assert_close(value, sm.matrix_logsumexp(part))
    (gradient,) = torch.autograd.grad(value.sum(), masked)
    torch.testing.assert_close(gradient[:, kept][:, :, kept], density(part))
    assert bool((gradient[:, [1, 4]] == 0).all())
    assert bool((gradient[:, :, [1, 4]] == 0).all())


def test_empty_and_single_matrices():
    assert sm.matrix_logsumexp(torch.zeros(2, 0, 0)).tolist() == [-INF, -INF]
    assert sm.matrix_logsumexp(torch.zeros(0, 3, 3)).shape == (0,)
    assert sm.matrix_logsumexp(torch.tensor([[2.5]])).tolist() == 2.5


def test_narrow_dtypes_are_solved_in_double(dtype: torch.dtype):
    X = symmetric(normal(6, 6, scale=3.0)).to(dtype)
    value = sm.matrix_logsumexp(X)
    assert value.dtype == dtype
    torch.testing.assert_close(value, sm.matrix_logsumexp(X.double()).to(dtype), atol=0, rtol=0)


def test_arrays_strides_and_complex_dtypes():
    X = hermitian(2, 4, 4)
    value = sm.matrix_logsumexp(X.to(torch.complex64))
    assert value.dtype == torch.float32
    array = X.numpy()
    assert isinstance(sm.matrix_logsumexp(array), np.ndarray)
    np.testing.assert_allclose(sm.matrix_logsumexp(array), sm.matrix_logsumexp(X).numpy())
    assert isinstance(sm.matrix_logsumexp(array[0]), np.float64)
    wide = symmetric(normal(8, 8))
    torch.testing.assert_close(sm.matrix_logsumexp(wide[::2, ::2]), sm.matrix_logsumexp(wide[::2, ::2].contiguous()))
    np.testing.assert_allclose(sm.matrix_logsumexp(array[:, ::-1, ::-1]), sm.matrix_logsumexp(array))


@given(both=pairs(), share=st.floats(0, 1))
def test_is_convex_and_one_lipschitz_and_between_its_bounds(both: tuple[Tensor, Tensor], share: float):
    X, Y = both
    scale = float(X.abs().max() + Y.abs().max()) + 1
    x, y = sm.matrix_logsumexp(X), sm.matrix_logsumexp(Y)
    between = sm.matrix_logsumexp(share * X + (1 - share) * Y)
    assert float(between) <= float(share * x + (1 - share) * y) + 1e-13 * scale
    assert float((x - y).abs()) <= float(torch.linalg.matrix_norm(X - Y, 2)) + 1e-13 * scale
    largest = float(torch.linalg.eigvalsh(X)[-1])
    assert largest - 1e-13 * scale <= float(x) <= largest + math.log(X.shape[-1]) + 1e-13 * scale


@given(both=pairs())
def test_golden_and_thompson_bound_the_sum_of_two(both: tuple[Tensor, Tensor]):
    X, Y = (M / M.abs().max().clamp_min(1.0) for M in both)
    product = torch.linalg.matrix_exp(X) @ torch.linalg.matrix_exp(Y)
    assert float(sm.matrix_logsumexp(X + Y)) <= float(product.diagonal().sum().log()) + 1e-12


@pytest.mark.parametrize("shift", [-1e4, 0.0, 1e4])
def test_shifts_with_the_identity(shift: float):
    X = symmetric(normal(5, 5))
    torch.testing.assert_close(sm.matrix_logsumexp(X + shift * torch.eye(5)), sm.matrix_logsumexp(X) + shift, atol=1e-11, rtol=0)


def test_the_gradient_is_the_density_matrix():
    for X in (symmetric(normal(3, 6, 6)), hermitian(3, 6, 6)):
        X.requires_grad_()
        (gradient,) = torch.autograd.grad(sm.matrix_logsumexp(X).sum(), X)
        torch.testing.assert_close(gradient, density(X.detach()), atol=1e-13, rtol=1e-12)


@pytest.mark.parametrize(
    "X",
    [
        normal(2, 4, 4),
        torch.diag(torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=torch.float64)),
        torch.eye(4, dtype=torch.float64) + 1e-9 * symmetric(normal(4, 4)),
        torch.zeros(3, 3, dtype=torch.float64),
        torch.complex(normal(3, 3), normal(3, 3, seed=1)),
    ],
    ids=["generic", "degenerate", "nearly degenerate", "zero", "complex"],
)
def test_first_and_second_derivatives(X: Tensor):
    function = lambda X: sm.matrix_logsumexp(symmetric(X), temperature=1.5)
    X.requires_grad_()
    assert gradcheck(function, X, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(function, X, check_fwd_over_rev=not X.is_complex())


def test_second_derivatives_are_those_of_autograd_through_matrix_exp():
    X = torch.diag(torch.tensor([2.0, 2.0, 2.0, -1.0, -1.0], dtype=torch.float64))
    ours = torch.func.hessian(lambda X: sm.matrix_logsumexp(symmetric(X)))(X)
    theirs = torch.autograd.functional.hessian(lambda X: torch.linalg.matrix_exp(symmetric(X)).diagonal().sum().log(), X)
    torch.testing.assert_close(ours, theirs, atol=1e-13, rtol=1e-12)


def test_third_derivatives_raise():
    X = symmetric(normal(3, 3))
    function = lambda X: sm.matrix_logsumexp(symmetric(X))
    for third in (torch.func.jacfwd(torch.func.hessian(function)), torch.func.jacrev(torch.func.hessian(function))):
        with pytest.raises(NotImplementedError, match="third derivatives"):
            third(X)


def test_vmap_is_a_batch():
    X = symmetric(normal(3, 4, 4))
    torch.testing.assert_close(torch.func.vmap(sm.matrix_logsumexp)(X), sm.matrix_logsumexp(X))
    gradient = torch.func.vmap(torch.func.grad(sm.matrix_logsumexp), 1, 1)(X.movedim(0, 1))
    torch.testing.assert_close(gradient.movedim(1, 0), density(X))


def test_temperature_divides_and_learns():
    X = symmetric(normal(3, 4, 4))
    X[:, 0, 0] = -INF
    tau = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64).view(3, 1, 1).requires_grad_()
    value = sm.matrix_logsumexp(X, temperature=tau)
    each = [sm.matrix_logsumexp(x, temperature=t) for x, t in zip(X, tau.flatten().tolist(), strict=True)]
    torch.testing.assert_close(value.detach(), torch.stack(each))
    assert gradcheck(lambda tau: sm.matrix_logsumexp(X, temperature=tau), tau)


@pytest.mark.parametrize(
    ("X", "options", "error", "message"),
    [
        (torch.zeros(3), {}, ValueError, r"X must be square, \[\.\.\., d, d\], got shape \(3,\)"),
        (torch.zeros(3, 2), {}, ValueError, r"must be square"),
        (torch.zeros(2, 2, dtype=torch.int64), {}, TypeError, r"got torch.int64; call X.double\(\) first"),
        (torch.tensor([[0.0, 1.0], [2.0, 0.0]]), {}, ValueError, r"symmetric or Hermitian, but \|X − Xᴴ\| reaches 1; pass"),
        (torch.tensor([[0.0, INF], [0.0, 0.0]]), {}, ValueError, r"symmetric or Hermitian"),
        (torch.eye(2) * 1j, {}, ValueError, r"symmetric or Hermitian"),
        (torch.eye(2), {"temperature": 0.0}, ValueError, r"temperature must be positive"),
        (torch.eye(2), {"temperature": torch.ones(2, 1)}, ValueError, r"size 1 along X's last two axes"),
        (torch.eye(2), {"tolerance": 0.1}, TypeError, r"tolerance is for operators, and X is a matrix"),
        ([[0.0]], {}, TypeError, r"X must be a matrix, a sparse matrix, a linear operator or a function.*got list"),
    ],
    ids=str,
)
def test_wrong_matrices_raise(X, options: dict, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        sm.matrix_logsumexp(X, **options)


def test_rounding_is_not_asymmetry():
    A = normal(50, 50, dtype=torch.float32)
    X = A @ torch.diag(normal(50, seed=1, dtype=torch.float32)) @ A.mT
    assert not torch.equal(X, X.mT)
    assert math.isfinite(sm.matrix_logsumexp(X))
