"""logsumexp with weights, signs and complex scores, and with scipy's signature: oracles, infinities, gradients."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
import scipy.special
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

import softmaxima as sm
from conftest import normal, rows

INF, NAN = math.inf, math.nan
COMPLEX_INFINITIES = [
    *(complex(real, imaginary) for real in (-INF, INF) for imaginary in (0.0, -0.0, INF, -INF, 0.7533, 2.3562, 3.9270, 5.4978)),
    -INF,
    INF,
]


def exact(z, weights) -> tuple[float, float]:
    """(log|S|, sign) with 400 digits."""
    with mpmath.workdps(400):
        total = mpmath.fsum(mpmath.mpf(b) * mpmath.exp(mpmath.mpf(score)) for b, score in zip(weights, z, strict=True) if b != 0)
        return float(mpmath.log(abs(total))) if total else -INF, float(mpmath.sign(total))


@given(x=rows(), data=st.data())
def test_weighted_sums_agree_with_exact_arithmetic(x: torch.Tensor, data: st.DataObject):
    weight = st.one_of(st.floats(-10, 10, width=32), st.sampled_from([0.0, 1.0, -1.0]))
    weights = torch.tensor([[data.draw(weight) for _ in row] for row in x.tolist()], dtype=torch.float64)
    value, sign = sm.logsumexp(x, weights=weights, return_sign=True)
    for row, b, ours, its_sign in zip(x.tolist(), weights.tolist(), value.tolist(), sign.tolist(), strict=True):
        kept = [(factor, score) for factor, score in zip(b, row, strict=True) if factor != 0 and score > -INF]
        largest = max((score for _, score in kept), default=0.0)
        sizes = math.fsum(abs(factor) * math.exp(score - largest) for factor, score in kept)
        expected, expected_sign = exact([score for _, score in kept], [factor for factor, _ in kept])
        lost = 8 * 2**-53 * sizes * math.exp(min(largest - expected, 700.0)) if expected > -INF else 0.0  # rounding / |S|
        if expected == -INF or lost > 0.1:
            assert ours < largest - 30 or ours == expected
        else:
            assert ours == pytest.approx(expected, abs=2 * lost, rel=1e-14)
            assert its_sign == expected_sign


@pytest.mark.parametrize(
    ("scores", "weights", "expected", "expected_sign"),
    [
        ([1, 1, 1], [1, -1, -1], 1.0, -1.0),
        ([1, 1], [1, -1], -INF, 0.0),
        ([1, 10_000], [1, 0], 1.0, 1.0),
        ([INF, 0], [0, 1], 0.0, 1.0),
        ([NAN, 0], [0, 1], 0.0, 1.0),
        ([NAN, 0], [1, 1], NAN, NAN),
        ([INF, NAN], [1, 1], NAN, NAN),
        ([INF, 1], [-1, 2], INF, -1.0),
        ([INF, INF], [1, -1], NAN, NAN),
        ([-INF, -INF], [1, 1], -INF, 0.0),
        ([-INF, 2], [5, 1], 2.0, 1.0),
        ([3, 4], [0, 0], -INF, 0.0),
        ([0, -40], [1, 1], 4.248354255291589e-18, 1.0),
        ([1e4, 1e4], [1.5, 2.5], 1e4 + math.log(4), 1.0),
        ([0, 0], [1e308, 1e308], math.log(2) + 308 * math.log(10), 1.0),
        ([0, 1386.2943611198906], [2.0**1000, 2.0**-1000], 1001 * math.log(2), 1.0),
        ([0, 720], [1e300, 1e-300], 300 * math.log(10), 1.0),
        ([5.0], [-2.0], 5 + math.log(2), -1.0),
    ],
)
def test_weighted_sums_on_hard_rows(scores, weights, expected: float, expected_sign: float):
    x, b = torch.tensor(scores, dtype=torch.float64), torch.tensor(weights, dtype=torch.float64)
    value, sign = sm.logsumexp(x, weights=b, return_sign=True)
    torch.testing.assert_close(value, torch.tensor(expected, dtype=torch.float64), rtol=1e-15, atol=0, equal_nan=True)
    torch.testing.assert_close(sign, torch.tensor(expected_sign, dtype=torch.float64), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(sm.logsumexp(x, weights=b), value.masked_fill(sign < 0, NAN), rtol=0, atol=0, equal_nan=True)


def test_a_negative_sum_has_no_logarithm_without_its_sign():
    x, b = torch.zeros(2, 2), torch.tensor([[1.0, -2.0], [2.0, -1.0]])
    assert sm.logsumexp(x, weights=b).isnan().tolist() == [True, False]
    value, sign = sm.logsumexp(x, weights=b, return_sign=True)
    assert value.tolist() == [0.0, 0.0]
    assert sign.tolist() == [-1.0, 1.0]


def test_the_sign_of_an_unweighted_sum_is_one_unless_it_is_empty(dtype: torch.dtype):
    x = torch.tensor([[0.0, 1.0], [-INF, -INF], [INF, 0.0], [NAN, 0.0]], dtype=dtype)
    value, sign = sm.logsumexp(x, return_sign=True)
    torch.testing.assert_close(value, sm.logsumexp(x), equal_nan=True)
    torch.testing.assert_close(sign, torch.tensor([1.0, 0.0, 1.0, NAN], dtype=dtype), equal_nan=True)
    value, sign = sm.logsumexp(torch.zeros(2, 0, dtype=dtype), return_sign=True)
    assert (value.tolist(), sign.tolist()) == ([-INF, -INF], [0.0, 0.0])


def test_weights_of_one_change_nothing(dtype: torch.dtype):
    x = normal(5, 33, dtype=dtype)
    expected = sm.logsumexp(x.double(), temperature=0.7).to(dtype)
    ours = sm.logsumexp(x, weights=torch.ones(33, dtype=dtype), temperature=0.7)
    assert ours.dtype == dtype
    torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("dim", [0, -1, (0, 2), (-1, -2, 0)])
@pytest.mark.parametrize("keepdim", [False, True])
def test_weights_and_masks_broadcast_over_any_axes(dim, keepdim: bool):
    x, b, where = normal(3, 4, 5), normal(4, 1, seed=1), normal(3, 1, 5, seed=2) > -1
    value, sign = sm.logsumexp(x, dim, weights=b, where=where, keepdim=keepdim, return_sign=True)
    total = (b * x.exp() * where).sum(dim, keepdim=keepdim)
    torch.testing.assert_close(value, total.abs().log())
    torch.testing.assert_close(sign, total.sign())
    transposed = sm.logsumexp(x.mT.contiguous().mT, dim, weights=b, where=where, keepdim=keepdim, return_sign=True)[0]
    torch.testing.assert_close(transposed, value)


def test_long_weighted_rows_keep_their_digits():
    x, b = normal(65_537), normal(65_537, seed=1)
    value, sign = sm.logsumexp(x + 1e4, weights=b, return_sign=True)
    total = math.fsum((b * x.exp()).tolist())
    assert float(sign) == math.copysign(1, total)
    assert float(value) == pytest.approx(1e4 + math.log(abs(total)), abs=1e-9)


def test_gradients_of_scores_weights_and_temperature():
    x, b = normal(3, 4).requires_grad_(), normal(3, 4, seed=1).requires_grad_()
    tau, where = torch.tensor([[0.5], [1.0], [2.0]], dtype=torch.float64, requires_grad=True), normal(3, 4, seed=2) > -1.5
    function = lambda x, b, tau: sm.logsumexp(x, weights=b, temperature=tau, where=where, return_sign=True)[0]
    assert gradcheck(function, (x, b, tau), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(function, (x, b, tau), check_fwd_over_rev=True)


def test_gradients_of_scores_alone():
    x, b, where = normal(6, 5).requires_grad_(), normal(6, 5, seed=1), normal(6, 5, seed=2) > -1.5
    b[0], b[1, 2], where[2] = b[0].abs(), 0.0, False
    for tau in (1.0, 0.7, normal(6, 1, seed=3).exp()):
        for scores in (x, x.detach().add(2000.0).requires_grad_()):
            sums = lambda x, tau=tau: sm.logsumexp(x, weights=b, temperature=tau, where=where, return_sign=True)[0]
            function = lambda x, sums=sums: sums(x)[[0, 1, 3, 4]]
            assert gradcheck(function, (scores,), check_forward_ad=True, check_batched_grad=True)
            assert gradgradcheck(function, (scores,))


@given(x=rows(), data=st.data(), offset=st.sampled_from([0.0, -0.5, 100.0, -100.0, 1e4]))
def test_narrow_weighted_sums_and_their_gradients_are_those_of_float64(x: torch.Tensor, data: st.DataObject, offset: float):
    weight = st.one_of(st.floats(-10, 10, width=32), st.sampled_from([0.0, 1.0, -1.0, 2.0**-120, 2.0**40]))
    b = torch.tensor([data.draw(weight) for _ in range(x.shape[-1])], dtype=torch.float32)
    b = b.abs() if data.draw(st.booleans()) else b
    x = (x.clamp(-80, 80) + offset).float().requires_grad_()
    wide = x.detach().double().requires_grad_()
    value, sign = sm.logsumexp(x, weights=b, return_sign=True)
    expected, its_sign = sm.logsumexp(wide, weights=b.double(), return_sign=True)
    assert torch.equal(sign, its_sign.float())
    torch.testing.assert_close(value.double(), expected, rtol=2**-23, atol=1e-15)
    (slope,) = torch.autograd.grad(value.sum(), x)
    (its_slope,) = torch.autograd.grad(expected.sum(), wide)
    cancelled = (sm.logsumexp(wide, weights=b.double().abs()) - expected).detach().nan_to_num(0.0).exp().max()
    torch.testing.assert_close(slope.double(), its_slope, rtol=2**-21, atol=2**-120 * max(1.0, float(cancelled)))


def test_a_weight_of_zero_has_a_gradient():
    x, b = (
        torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64),
        torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64, requires_grad=True),
    )
    assert gradcheck(lambda b: sm.logsumexp(x, weights=b), (b,))
    assert gradgradcheck(lambda x, b: sm.logsumexp(x, weights=b), (x.clone().requires_grad_(), b))
    (gradient,) = torch.autograd.grad(sm.logsumexp(x, weights=b), b)
    torch.testing.assert_close(gradient, (x - 0.5).exp())
    far = torch.tensor([0.0, 5000.0, -INF, INF, NAN], dtype=torch.float64)
    b = torch.tensor([1.0, 0, 0, 0, 0], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(sm.logsumexp(far, weights=b), b)
    assert gradient.tolist() == [1.0, INF, 0.0, 0.0, 0.0]


def test_gradients_of_rows_with_infinities_and_of_nothing():
    x = torch.tensor([[INF, INF, 0.0], [-INF, -INF, -INF], [1.0, -INF, INF]], dtype=torch.float64, requires_grad=True)
    b = torch.tensor([[1.0, 3.0, 5.0], [1.0, 1.0, 1.0], [1.0, 1.0, 0.0]], dtype=torch.float64, requires_grad=True)
    by_x, by_b = torch.autograd.grad(sm.logsumexp(x, weights=b).sum(), (x, b))
    assert bool(by_x[0, :2].isnan().all())
    assert by_x[1:].tolist() == [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    assert by_b.tolist() == [[0.25, 0.25, 0.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]


@given(size=st.integers(-1070, 1018), sizes=st.lists(st.integers(0, 4), min_size=1, max_size=5), seed=st.integers(0, 1000))
def test_a_common_factor_of_the_weights_changes_no_gradient(size: int, sizes: list[int], seed: int):
    z = 3 * normal(len(sizes), seed=seed)
    plain = torch.tensor([2.0**k for k in sizes], dtype=torch.float64)
    x = z.clone().requires_grad_()
    value = sm.logsumexp(x, weights=torch.tensor([math.ldexp(1.0, k + size) for k in sizes], dtype=torch.float64))
    (slope,) = torch.autograd.grad(value, x)
    torch.testing.assert_close(slope, torch.softmax(z + plain.log(), 0), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(value.detach(), sm.logsumexp(z, weights=plain) + size * math.log(2), rtol=1e-14, atol=1e-13)


def test_weighted_sums_under_transforms_and_compilation():
    x, b = normal(3, 4), normal(4, seed=1)
    function = lambda x: sm.logsumexp(x, weights=b, return_sign=True)[0]
    torch.testing.assert_close(torch.func.vmap(function)(x), function(x))
    expected = torch.stack([torch.autograd.functional.hessian(function, row) for row in x])
    torch.testing.assert_close(torch.func.vmap(torch.func.hessian(function))(x), expected)
    torch._dynamo.reset()
    x.requires_grad_()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    (gradient,) = torch.autograd.grad(compiled(x).sum(), x)
    (expected,) = torch.autograd.grad(function(x).sum(), x)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        (torch.ones(4), ValueError, r"weights must broadcast to the scores' shape \(2, 3\), got \(4,\)"),
        (torch.ones(1, 2, 3), ValueError, r"weights must broadcast to the scores' shape"),
        (torch.ones(2, 3).bool(), TypeError, r"weights must be numbers, got torch.bool; leave scores out by where"),
        ([1.0, 2.0, 3.0], TypeError, r"weights must be a torch.Tensor or a numpy.ndarray, got list"),
    ],
)
def test_wrong_weights_raise(weights, error: type[Exception], message: str):
    with pytest.raises(error, match=rf"logsumexp: {message}"):
        sm.logsumexp(torch.zeros(2, 3), weights=weights)


# Complex scores, and scipy's signature ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [torch.complex64, torch.complex128])
def test_complex_sums_agree_with_scipy(kind: torch.dtype):
    x = torch.complex(normal(4, 50, seed=1) * 10, normal(4, 50, seed=2) * 20).to(kind)
    b = torch.complex(normal(4, 50, seed=3), normal(4, 50, seed=4)).to(kind)
    for weights in (None, b):
        its = None if weights is None else weights.numpy()
        tolerance = {"rtol": 1e-4, "atol": 1e-5} if kind == torch.complex64 else {"rtol": 1e-11, "atol": 1e-12}
        value = sm.logsumexp(x, weights=weights)
        assert value.dtype == kind
        assert bool((value.imag.abs() <= math.pi).all())
        expected = scipy.special.logsumexp(x.numpy(), axis=-1, b=its)
        np.testing.assert_allclose(np.exp(value.numpy() - expected), 1, **tolerance)
        value, phase = sm.logsumexp(x, weights=weights, return_sign=True)
        expected, expected_phase = scipy.special.logsumexp(x.numpy(), axis=-1, b=its, return_sign=True)
        np.testing.assert_allclose(value.numpy(), expected, **tolerance)
        np.testing.assert_allclose(phase.numpy(), expected_phase, **tolerance)


def test_complex_gradients():
    x = torch.complex(normal(2, 4, seed=1), normal(2, 4, seed=2)).requires_grad_()
    b = torch.complex(normal(2, 4, seed=3), normal(2, 4, seed=4)).requires_grad_()
    tau = torch.tensor([[0.5], [2.0]], dtype=torch.float64, requires_grad=True)
    where = torch.tensor([[True, True, False, True]])
    function = lambda x, b, tau: sm.logsumexp(x, weights=b, temperature=tau, where=where)
    assert gradcheck(function, (x, b, tau))
    assert gradgradcheck(function, (x, b, tau))


def test_complex_sums_keep_small_parts():
    value = sm.logsumexp(np.array([0, 2.2204460492503132e-17j]))
    assert value.real == pytest.approx(math.log(2), rel=1e-15)
    assert value.imag == pytest.approx(1.1102230246251566e-17, rel=1e-15)
    assert sm.logsumexp(np.array([0, complex(-40, 0.5)])).real == pytest.approx(math.exp(-40) * math.cos(0.5), rel=1e-14)


@pytest.mark.parametrize(("first", "second"), list(itertools.product(COMPLEX_INFINITIES, repeat=2)))
def test_complex_infinities_are_those_of_scipy(first, second):
    x = np.array([first, second])
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(sm.lse.scipy_logsumexp(x), scipy.special.logsumexp(x))


def test_complex_sums_of_nothing():
    x = torch.tensor([[1 + 1j, 2], [-INF, -INF]], dtype=torch.complex128, requires_grad=True)
    value, phase = sm.logsumexp(x, where=torch.tensor([[False], [True]]), return_sign=True)
    assert (value.tolist(), phase.tolist()) == ([-INF, -INF], [0, 0])
    (gradient,) = torch.autograd.grad(value.sum(), x)
    assert gradient.tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("kind", [torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize("shape", [(0,), (3, 0)], ids=str)
def test_complex_sums_without_scores_are_those_of_nothing(kind: torch.dtype, shape: tuple[int, ...]):
    value, phase = sm.logsumexp(torch.zeros(shape, dtype=kind), return_sign=True)
    assert bool((value == -INF).all())
    assert bool((phase == 0).all())
    value = sm.logsumexp(torch.zeros(shape, dtype=kind))
    assert bool(((value.real == -INF) & (value.imag == 0)).all())


@given(x=st.floats(-300, 300), rest=st.lists(st.floats(-300, 300), max_size=3), kind=st.sampled_from(["real", "complex"]))
def test_a_sum_of_exactly_zero_has_gradient_zero(x: float, rest: list[float], kind: str):
    """Its terms cancel, or there are none: log 0 = −∞ of either is a constant."""
    scores = torch.tensor([x, *rest, x], dtype=torch.float64)
    weights = torch.tensor([1.0, *[0.0 for _ in rest], -1.0], dtype=torch.float64)
    arguments = [scores.to(torch.complex128) if kind == "complex" else scores, weights]
    scores, weights, tau = (v.requires_grad_() for v in (*arguments, torch.tensor([1.0], dtype=torch.float64)))
    value, sign = sm.logsumexp(scores, weights=weights, return_sign=True, temperature=tau)
    assert float(value.detach().real) == -INF
    assert complex(sign.detach()) == 0
    for gradient in torch.autograd.grad(value.real, (scores, weights, tau)):
        assert torch.equal(gradient, torch.zeros_like(gradient))


@pytest.mark.parametrize("name_a", ["float16", "float32", "float64", "int32", "int64", "bool", "complex64", "complex128"])
@pytest.mark.parametrize("name_b", [None, "float32", "float64", "int32", "int64", "complex64", "complex128"])
def test_scipy_signature_has_the_dtypes_of_scipy(name_a: str, name_b: str | None):
    a = np.array([1, 0], dtype=name_a)
    b = None if name_b is None else np.array([1, -1], dtype=name_b)
    ours = sm.lse.scipy_logsumexp(a, b=b)
    expected = np.log(np.e if b is None else np.e - 1) if b is not None else np.log(np.e + 1)
    assert np.abs(ours - expected) < 2e-3 if name_a == "float16" else np.abs(ours - expected) < 1e-6
    if name_a != "bool" and (name_a != "float16" or b is None):
        assert ours.dtype == scipy.special.logsumexp(a, b=b).dtype


@pytest.mark.parametrize(
    ("a", "options"),
    [
        ([1000, 1000], {}),
        (1.0, {}),
        (np.arange(200.0), {"b": np.arange(200.0, 0.0, -1.0)}),
        ([1000, 1000], {"b": [1.2, 1.2]}),
        ([1, 1, 1], {"b": [1, -1, -1], "return_sign": True}),
        ([1, 1], {"b": [1, -1], "return_sign": True}),
        (np.zeros((4, 1, 2, 1)), {"b": np.ones((3, 1, 5))}),
        (np.zeros((4, 1, 2, 1)), {"b": np.ones((3, 1, 5)), "axis": (1, 3), "keepdims": True}),
        (np.ones((1, 2, 3, 4)), {"b": np.ones((1, 2, 3, 4)), "axis": 2, "return_sign": True}),
        ([[1e10, 1e-10], [-1e10, -INF]], {"axis": -1, "keepdims": True}),
        ([[1e10, 1e-10], [-1e10, -INF]], {"axis": (-1, -2)}),
        ([3.06409428, 0.37251854, 3.87471931], {"b": [1.88190708, 2.84174795, -0.85016884]}),
        ([3.06409428, 0.37251854, 3.87471931], {"b": [1.88190708, 2.84174795, -3.85016884]}),
        ([INF], {"return_sign": True}),
        ([INF], {"b": [-1.0], "return_sign": True}),
        ([1 + 1j, 2 - 1j, -2 + 3j], {"return_sign": True}),
        (np.zeros((0,)), {}),
        (np.zeros((2, 0)), {"axis": 1, "return_sign": True}),
    ],
    ids=str,
)
def test_scipy_signature_gives_what_scipy_gives(a, options: dict):
    if np.size(a) == 0 and options:
        expected = np.full(2, -INF), np.zeros(2)  # scipy has the sign −1 of −∞ there
    else:
        with np.errstate(all="ignore"):
            expected = scipy.special.logsumexp(a, **options)
    ours = sm.lse.scipy_logsumexp(a, **options)
    for value, its in zip(ours, expected, strict=True) if options.get("return_sign") else [(ours, expected)]:
        assert np.shape(value) == np.shape(its)
        np.testing.assert_allclose(value, its, rtol=1e-14, atol=0)


@pytest.mark.parametrize("size", [-math.inf, -2000.0, 0.0, 2000.0, 1e300])
def test_a_score_of_weight_0_changes_no_gradient(size: float):
    for scale in (1e-5, 1.0, 1e5):
        x = torch.tensor([size, 0.0, -1.0], dtype=torch.float64, requires_grad=True)
        weights = torch.tensor([0.0, 1.0, -0.5], dtype=torch.float64) * scale
        (gradient,) = torch.autograd.grad(sm.logsumexp(x, weights=weights), x)
        others = x.detach()[1:].requires_grad_()
        (expected,) = torch.autograd.grad(sm.logsumexp(others, weights=weights[1:]), others)
        assert float(gradient[0]) == 0
        torch.testing.assert_close(gradient[1:], expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("turns", [1.0, 1e8, 1e15])
def test_complex_scores_keep_their_phase_at_large_angles(turns: float):
    x = torch.complex(normal(20, 5), turns * normal(20, 5, seed=1))
    with mpmath.workdps(60):
        exact = [complex(mpmath.log(mpmath.fsum(mpmath.exp(mpmath.mpc(score)) for score in row))) for row in x.tolist()]
    torch.testing.assert_close(sm.logsumexp(x), torch.tensor(exact, dtype=torch.complex128), rtol=1e-14, atol=1e-14)
