"""matrix_logsumexp of operators: every kind of operator, intervals that hold the truth, no overflow, gradients of parameters."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse
import scipy.stats
import torch
from torch import Tensor

import softmaxima as sm
from conftest import exhaustively, normal
from softmaxima.lse.matrix.quantiles import student_quantile


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def symmetric(d: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    """Eigenvalues fill about [−2·scale, 2·scale]."""
    A = normal(d, d, seed=seed, scale=scale)
    return (A + A.mT) / math.sqrt(2 * d)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
def test_every_kind_of_operator_gives_the_same_value():
    X = symmetric(60)
    X[X.abs() < 0.1] = 0.0
    exact = float(sm.matrix_logsumexp(X))
    array = X.numpy()
    operators = [
        scipy.sparse.csr_array(array),
        scipy.sparse.coo_matrix(array),
        scipy.sparse.linalg.aslinearoperator(array),
        X.to_sparse(),
        X.to_sparse_csr(),
    ]
    for method in ("eigh", "lanczos", "auto"):
        for operator in operators:
            estimate = sm.matrix_logsumexp(operator, method=method, confidence=0.999, generator=generator())
            assert float(estimate.lower) <= exact <= float(estimate.upper)
            assert isinstance(estimate.value, Tensor if isinstance(operator, Tensor) else np.float64)
        estimate = sm.matrix_logsumexp(lambda V: X @ V, size=60, method=method, confidence=0.999, generator=generator())
        assert float(estimate.lower) <= exact <= float(estimate.upper)


def test_half_precision_callables_are_given_their_own_dtype():
    X = symmetric(40).float()
    estimate = sm.matrix_logsumexp(lambda V: X @ V, size=40, dtype=torch.float32, generator=generator(), method="lanczos")
    assert float(estimate.value) == pytest.approx(float(sm.matrix_logsumexp(X)), abs=0.03)


def test_complex_hermitian_operators():
    A = torch.complex(normal(80, 80), normal(80, 80, seed=1))
    X = (A + A.mH) / 10
    exact = float(sm.matrix_logsumexp(X))
    estimate = sm.matrix_logsumexp(lambda V: X @ V, size=80, dtype=torch.complex128, method="lanczos", generator=generator())
    assert float(estimate.lower) <= exact <= float(estimate.upper)
    sparse = sm.matrix_logsumexp(scipy.sparse.csr_array(X.numpy()), method="lanczos", generator=generator())
    assert sparse.lower <= exact <= sparse.upper


@pytest.mark.parametrize("scale", [exhaustively(0.1), 1.0, exhaustively(5.0)])
def test_an_interval_holds_the_truth_as_often_as_it_says(scale: float):
    X = symmetric(100, scale=scale)
    exact = float(sm.matrix_logsumexp(X))
    held = 0
    for seed in range(60):
        estimate = sm.matrix_logsumexp(
            lambda V: X @ V, size=100, method="lanczos", deflation=4, confidence=0.9, tolerance=0.05, generator=generator(seed)
        )
        assert estimate.certificate == "asymptotic"
        assert float(estimate.upper - estimate.lower) <= 2 * 0.05 * 2  # a pilot's spread may be half of the true one
        held += float(estimate.lower) <= exact <= float(estimate.upper)
    assert held >= 48  # 54 of 60, less 2.6 standard deviations


@pytest.mark.parametrize("confidence", [0.8, 0.9, 0.95])
def test_a_half_width_is_as_many_standard_errors_as_squares_of_normal_numbers_need(confidence: float):
    """A needle is in one direction, whose square is all that differs among probes: sixteen of them at least."""
    needle = torch.zeros(40, dtype=torch.float64)
    needle[0] = 8.0
    estimate = sm.matrix_logsumexp(
        lambda V: needle[:, None] * V,
        size=40,
        method="lanczos",
        deflation=0,
        confidence=confidence,
        tolerance=20.0,
        max_probes=17,
        generator=generator(),
    )
    errors = math.expm1(float(estimate.upper - estimate.value)) / float(estimate.standard_error)
    squares = np.random.default_rng(0).standard_normal((100_000, 16)) ** 2
    statistics = np.abs(squares.mean(1) - 1) / squares.std(1, ddof=1) * 4
    needed = max(np.quantile(statistics, confidence), scipy.stats.t.isf((1 - confidence) / 2, 16))
    assert errors == pytest.approx(needed, rel=0.02)


def test_more_probes_are_taken_until_the_interval_is_as_narrow_as_asked():
    X = symmetric(200)
    wide, narrow = (
        sm.matrix_logsumexp(lambda V: X @ V, size=200, method="lanczos", tolerance=tolerance, generator=generator())
        for tolerance in (0.1, 0.01)
    )
    assert narrow.products > 2 * wide.products
    assert float(narrow.upper - narrow.lower) <= 0.04 < float(wide.upper - wide.lower)
    capped = sm.matrix_logsumexp(lambda V: X @ V, size=200, method="lanczos", tolerance=0.001, max_probes=20, generator=generator())
    assert float(capped.upper - capped.lower) > 0.01  # honest about what was not reached


def test_deflation_takes_the_variance_of_the_largest_eigenvalues():
    direction = torch.linalg.qr(normal(150, 3)).Q
    X = symmetric(150, scale=0.2) + direction @ torch.diag(torch.tensor([9.0, 8.5, 8.0], dtype=torch.float64)) @ direction.mT
    errors = [
        float(
            sm.matrix_logsumexp(
                lambda V: X @ V, size=150, method="lanczos", deflation=deflation, max_probes=17, generator=generator()
            ).standard_error
        )
        for deflation in (0, 8)
    ]
    assert errors[1] < errors[0] / 100


def test_a_needle_among_equal_eigenvalues_is_found():
    diagonal = torch.zeros(500, dtype=torch.float64)
    diagonal[123] = 50.0
    estimate = sm.matrix_logsumexp(lambda V: diagonal[:, None] * V, size=500, method="lanczos", generator=generator())
    assert float(estimate.lower) <= float(sm.logsumexp(diagonal)) <= float(estimate.upper)


@pytest.mark.parametrize("shift", [-1e4, 0.0, 1e4])
def test_nothing_overflows_at_a_norm_of_ten_thousand(shift: float):
    for X in (symmetric(120, scale=5000.0), symmetric(120, scale=0.5)):
        X = X + shift * torch.eye(120, dtype=torch.float64)
        exact = float(sm.matrix_logsumexp(X))
        estimate = sm.matrix_logsumexp(lambda V, X=X: X @ V, size=120, method="lanczos", generator=generator())
        assert float(estimate.lower) <= exact <= float(estimate.upper)
        assert float(estimate.upper - estimate.lower) <= 0.04


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("method", ["eigh", "lanczos"])
def test_small_spaces_are_deflated_completely(size: int, method: str):
    X = normal(size, size)
    X = (X + X.mT) / 2
    estimate = sm.matrix_logsumexp(lambda V: X @ V, size=size, method=method, generator=generator())
    assert estimate.certificate == "deterministic"
    assert float(estimate.standard_error) == 0
    assert float(estimate.lower) <= float(sm.matrix_logsumexp(X)) <= float(estimate.upper)
    assert float(estimate.upper - estimate.lower) < 1e-11


@pytest.mark.parametrize("multiple", [-1e4, -3.0, 0.0, 3.0, 1e4])
def test_multiples_of_the_identity_exhaust_their_krylov_space_at_once(multiple: float):
    estimate = sm.matrix_logsumexp(lambda V: multiple * V, size=1000, method="lanczos", generator=generator())
    exact = multiple + math.log(1000)
    assert float(estimate.value) == pytest.approx(exact, abs=1e-11)
    assert float(estimate.lower) <= exact <= float(estimate.upper)
    assert float(estimate.upper - estimate.lower) < 1e-8


def test_columns_that_end_early_do_not_disturb_the_others():
    diagonal = torch.full((400,), -1e4, dtype=torch.float64)
    diagonal[:3] = torch.tensor([-9990.0, -9991.0, -9995.0])
    estimate = sm.matrix_logsumexp(lambda V: diagonal[:, None] * V, size=400, method="lanczos", generator=generator())
    exact = float(sm.logsumexp(diagonal))
    assert float(estimate.lower) <= exact <= float(estimate.upper)
    assert float(estimate.value) == pytest.approx(exact, abs=1e-6)


def test_a_space_without_states_has_no_trace():
    assert sm.matrix_logsumexp(scipy.sparse.csr_array((0, 0))).value == -math.inf


def test_too_few_steps_certify_nothing():
    X = symmetric(300, scale=1000.0)
    estimate = sm.matrix_logsumexp(lambda V: X @ V, size=300, method="lanczos", max_steps=9, generator=generator())
    assert estimate.certificate == "none"
    assert float(estimate.lower) <= float(sm.matrix_logsumexp(X))  # Gauss's rule lies below the truth all the same


def test_the_cheaper_method_is_chosen():
    assert sm.matrix_logsumexp(scipy.sparse.eye_array(100, format="csr")).certificate == "deterministic"
    diagonal = torch.linspace(-1, 1, 20_000, dtype=torch.float64)
    estimate = sm.matrix_logsumexp(lambda V: diagonal[:, None] * V, size=20_000, generator=generator())
    assert estimate.products < 20_000
    assert float(estimate.lower) <= float(sm.logsumexp(diagonal)) <= float(estimate.upper)


class Rotor(torch.nn.Module):
    """θ₁·D + θ₂·(shift + shiftᵀ): a diagonal and a chain."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.theta = torch.nn.Parameter(torch.tensor([1.5, 0.7], dtype=torch.float64))
        self.register_buffer("potential", normal(size).unsqueeze(-1))

    def forward(self, V: Tensor) -> Tensor:
        return self.theta[0] * self.potential * V + self.theta[1] * (V.roll(1, 0) + V.roll(-1, 0))


def test_parameters_get_the_gradient_of_the_truth():
    rotor = Rotor(200)
    exact = sm.matrix_logsumexp(rotor(torch.eye(200, dtype=torch.float64)))
    (expected,) = torch.autograd.grad(exact, rotor.theta)
    by_eigh = sm.matrix_logsumexp(rotor, size=200, method="eigh")
    (gradient,) = torch.autograd.grad(by_eigh.value, rotor.theta)
    torch.testing.assert_close(gradient, expected, atol=1e-12, rtol=0)
    estimate = sm.matrix_logsumexp(rotor, size=200, method="lanczos", tolerance=0.002, generator=generator())
    (gradient,) = torch.autograd.grad(estimate.value, rotor.theta)
    torch.testing.assert_close(gradient, expected, atol=0.01, rtol=0.01)


def test_the_gradient_of_a_completely_deflated_estimate_is_exact():
    rotor = Rotor(12)
    tau = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    X = rotor(torch.eye(12, dtype=torch.float64))
    expected = torch.autograd.grad(sm.matrix_logsumexp(X, temperature=tau), (rotor.theta, tau))
    estimate = sm.matrix_logsumexp(rotor, size=12, method="lanczos", temperature=tau, generator=generator())
    torch.testing.assert_close(torch.autograd.grad(estimate.value, (rotor.theta, tau)), expected, atol=1e-11, rtol=0)


def test_parameters_of_complex_operators_learn():
    A = torch.complex(normal(20, 20), normal(20, 20, seed=1))
    X = (A + A.mH) / 8
    field = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(sm.matrix_logsumexp(field * X), field)
    estimate = sm.matrix_logsumexp(
        lambda V: field * (X @ V), size=20, dtype=torch.complex128, method="lanczos", deflation=20, generator=generator()
    )
    (gradient,) = torch.autograd.grad(estimate.value, field)
    torch.testing.assert_close(gradient, expected, atol=1e-11, rtol=0)


def test_values_of_a_sparse_tensor_learn():
    X = symmetric(30)
    values = X.flatten().clone().requires_grad_()
    index = torch.cartesian_prod(torch.arange(30), torch.arange(30)).T
    sparse = torch.sparse_coo_tensor(index, values, (30, 30), check_invariants=False).coalesce()
    estimate = sm.matrix_logsumexp(sparse, method="lanczos", deflation=30, generator=generator())
    (gradient,) = torch.autograd.grad(estimate.value, values)
    weights = torch.linalg.matrix_exp(X)
    torch.testing.assert_close(gradient.view(30, 30), weights / weights.diagonal().sum(), atol=1e-11, rtol=0)


def test_second_derivatives_of_an_estimate_raise_and_those_by_eigh_do_not():
    rotor = Rotor(40)
    estimate = sm.matrix_logsumexp(rotor, size=40, method="lanczos", generator=generator())
    with pytest.raises(NotImplementedError, match="first derivatives only"):
        torch.autograd.grad(estimate.value, rotor.theta, create_graph=True)
    exact = sm.matrix_logsumexp(rotor, size=40, method="eigh")
    (first,) = torch.autograd.grad(exact.value, rotor.theta, create_graph=True)
    (second,) = torch.autograd.grad(first[0], rotor.theta)
    assert float(second[0]) > 0  # convex in a linear parameter


def test_nothing_is_attached_where_no_gradient_is_wanted():
    with torch.no_grad():
        estimate = sm.matrix_logsumexp(Rotor(40), size=40, method="lanczos", generator=generator())
    assert not estimate.value.requires_grad
    estimate = sm.matrix_logsumexp(Rotor(40), size=40, method="lanczos", generator=generator())
    assert estimate.value.requires_grad
    assert not any(number.requires_grad for number in (estimate.lower, estimate.upper, estimate.standard_error))


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.999])
@pytest.mark.parametrize("freedom", [2, 4, 16])
def test_quantiles_of_student_are_those_of_scipy(confidence: float, freedom: int):
    expected = scipy.stats.t.ppf((1 + confidence) / 2, freedom)
    assert student_quantile(confidence, freedom) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("operator", "options", "error", "message"),
    [
        (lambda V: V, {}, TypeError, r"a callable needs size="),
        (lambda V: V, {"size": 0}, ValueError, r"size must be an int of at least 1, got 0"),
        (lambda V: V, {"size": 2, "dtype": torch.int64}, TypeError, r"dtype must be a real or complex floating point"),
        (lambda V: V[:1], {"size": 2}, ValueError, r"must map V of shape \(2, 2\) to a tensor of that shape, got shape \(1, 2\)"),
        (lambda V: V.numpy(), {"size": 2}, ValueError, r"to a tensor of that shape, got ndarray"),
        (lambda V: V * 1j, {"size": 2}, TypeError, r"complex values for real vectors; pass dtype=torch.complex128"),
        (lambda V: V / 0, {"size": 2}, ValueError, r"values that are not finite"),
        (lambda V: V.cumsum(0), {"size": 50}, ValueError, r"operator must be symmetric or Hermitian"),
        (lambda V: V, {"size": 2, "method": "cg"}, ValueError, r"method must be one of auto, eigh, lanczos, got 'cg'"),
        (lambda V: V, {"size": 2, "tolerance": 0.0}, ValueError, r"tolerance must be a positive finite number"),
        (lambda V: V, {"size": 2, "confidence": 1.0}, ValueError, r"confidence must be a number between 0 and 1, got 1.0"),
        (lambda V: V, {"size": 2, "deflation": -1}, ValueError, r"deflation must be an int of at least 0, got -1"),
        (lambda V: V, {"size": 2, "max_probes": 5}, ValueError, r"max_probes must be an int of at least 17, got 5"),
        (lambda V: V, {"size": 2, "temperature": -1.0}, ValueError, r"temperature must be positive and finite"),
        (lambda V: V, {"size": 2, "temperature": torch.ones(2)}, ValueError, r"must be one number, got shape \(2,\)"),
        (lambda V: V, {"size": 2, "temperature": torch.tensor(1e-310, dtype=torch.float64)}, ValueError, r"at least 2.3e-308"),
        (scipy.sparse.eye_array(3, 4), {}, ValueError, r"must be square, \[d, d\], got shape \(3, 4\)"),
        (scipy.sparse.eye_array(3), {"size": 3}, TypeError, r"size is for callables; dia_array knows its own"),
        (scipy.sparse.eye_array(3, dtype=bool), {}, TypeError, r"X must be of numbers, got NumPy dtype bool"),
        (torch.eye(2, dtype=torch.int64).to_sparse(), {}, TypeError, r"got torch.int64; call X.double\(\) first"),
    ],
)  # fmt: skip
def test_wrong_operators_raise(operator, options: dict, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        sm.matrix_logsumexp(operator, **options)
