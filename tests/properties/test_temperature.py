"""x/τ at any temperature and any size of the scores: as if (x − max x)/τ were formed exactly."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from functools import partial

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import softmaxima as sm
from conftest import INTERPRETED, ON_TRITON, TOLERANCE, Case, LossCase, normal, some

pytestmark = pytest.mark.gpu

INF = math.inf
TEMPERATURES = (1e-38, 1e-30, 0.01, 0.7, 1.0, 3.0, 1e38)
SIZES = (0.0, 1e-3, -0.3, 1e4, 671119.5625, -1e12, 1e30)
# One row after the other, side by side, short, long, and of several blocks.
LAYOUTS = ((3, 2), (2, 3), (40, 7), (7, 40), (3, 300), (300, 3), (2, 5000))
SHAPES = LAYOUTS[:2] if INTERPRETED else LAYOUTS


def finite(values: tuple[float, ...], dtype: torch.dtype) -> list[float]:
    """Those that the dtype has."""
    return [value for value in values if abs(value) <= torch.finfo(dtype).max]


def differences(x: torch.Tensor, tau: float) -> torch.Tensor:
    """(x − max x)/τ of rows [..., n], rounded once."""
    rows = []
    for row in x.double().flatten(0, -2).tolist():
        top = max(map(Fraction, row))
        rows.append([float(max((Fraction(score) - top) / Fraction(tau), Fraction(-(10**9)))) for score in row])
    return torch.tensor(rows, dtype=torch.float64).reshape(x.shape)


def spread(dtype: torch.dtype, tau: float, offset: float, shape: tuple[int, ...] = (4, 6)) -> torch.Tensor:
    """Scores about τ apart, if the dtype has them there, at an offset."""
    return (normal(*shape, scale=2.0) * tau + offset).to(dtype)


def takes_any_size(case: Case) -> bool:
    """Whether x/τ itself may be larger than any number."""
    return case.claims.shift_invariant or case.map.name in ("elastic_softmax", "eps_softmax", "rectified_softmax", "taylor_softmax")


def test_equal_scores_have_equal_probabilities(case: Case, dtype: torch.dtype):
    if not takes_any_size(case):
        pytest.skip("f(x/τ) may overflow")
    sizes = torch.tensor(finite(SIZES, dtype), dtype=dtype).unsqueeze(-1)
    lengths = (1, 3) if INTERPRETED else (1, 2, 3, 20, 300)
    for tau, n in some(itertools.product(TEMPERATURES[:: 2 if INTERPRETED else 1], lengths), case, dtype):
        alike = sizes.expand(-1, n)
        few = 4 if ON_TRITON else 2  # the mass that a threshold of the GPU kernels may leave is of 4
        rounding = torch.finfo(dtype).eps * (few + n / 4 if not case.claims.logarithmic else 2 + 2 * math.log(n))  # of n terms
        for rows, dim in ((alike, -1), (alike.T.contiguous(), 0), (alike.repeat(6, 1), -1))[: 2 if INTERPRETED else 3]:
            taus = torch.full_like(rows.select(dim, 0), tau, dtype=torch.float64).unsqueeze(dim)
            for temperature in (tau, taus):
                p = case.probabilities(rows, dim, temperature=temperature).double()
                where = f"{n} at {temperature}, dim {dim}"
                largest = p.amax(dim, keepdim=True)
                assert not bool(p.isnan().any()), where
                assert bool(((p == largest) | (p == 0)).all()), where  # 0 where top-k and top-p leave out all but the first
                excess = p.sum(dim) - case.largest_mass(rows, dim)
                assert bool((excess <= rounding).all()), where
                assert not case.claims.constant_mass or bool((excess >= -rounding).all()), where


def test_constant_that_is_added_exactly_changes_nothing(case: Case, dtype: torch.dtype):
    if not case.claims.shift_invariant:
        pytest.skip("this map is not invariant")
    for tau, shape in some(itertools.product(TEMPERATURES[:: 2 if INTERPRETED else 1], SHAPES), case, dtype):
        whole = normal(*shape, scale=5).round().clamp(-15, 15)
        # Multiples of a power of 2 of four digits, and a constant of seven.
        unit = 2.0 ** max(-20 if dtype == torch.float16 else -100, min(8, math.floor(math.log2(tau))))
        x, shift = (whole * unit).to(dtype), 112 * unit
        moved = x + shift
        assert torch.equal(moved.double() - shift, x.double())
        for dim in (0, 1):
            here, there = case(x, dim, temperature=tau), case(moved, dim, temperature=tau)
            # Where τ is 1 the origin of the exponentials is another; and so may be the candidates that entmax sums over.
            rounding = TOLERANCE[dtype] if tau == 1 else 4 * torch.finfo(dtype).eps
            torch.testing.assert_close(here, there, atol=rounding, rtol=TOLERANCE[dtype] if tau == 1 else 1e-13)


def test_agrees_with_exact_differences(case: Case, dtype: torch.dtype):
    if not case.claims.shift_invariant:
        pytest.skip("x/τ is not a matter of differences")
    tolerance = TOLERANCE[dtype] * (10 if case.claims.logarithmic else 1)
    offsets = finite((0.0, 1e4, -3e6, 1e12), dtype)[:: 2 if INTERPRETED else 1]
    temperatures = finite((1e-30, 0.01, 0.7, 1.0, 30.0, 1e30), dtype)
    for shape, tau, offset in some(itertools.product(SHAPES[1:3], temperatures, offsets), case, dtype):
        x = spread(dtype, tau, offset, shape)
        expected = case.reference(differences(x, tau))
        for y in (case(x, temperature=tau), case(x.T, 0, temperature=tau).T):
            torch.testing.assert_close(
                y.double(), expected, atol=tolerance, rtol=TOLERANCE[dtype], msg=partial("{}: {}".format, f"{tau}, {offset}")
            )


@given(
    row=st.lists(st.floats(-40, 0), min_size=1, max_size=9),
    tau=st.sampled_from([1e-300, 1e-38, 0.01, 0.7, 1.0, 3.0, 1e38, 1e300]),
    offset=st.sampled_from([0.0, 1.0, -1e6, 1e20]),
)
@pytest.mark.parametrize("dim", [0, 1])
def test_float64_softmax_and_its_sum_are_within_a_few_units(dim: int, row: list[float], tau: float, offset: float):
    if INTERPRETED:
        pytest.skip("exp is within 2 units of the argument's rounding there")
    x = torch.tensor([row] * 20, dtype=torch.float64) * tau + offset
    x = x if dim == 1 else x.T.contiguous()
    scores = [mpmath.mpf(v) for v in (x[0] if dim == 1 else x[:, 0]).tolist()]
    with mpmath.workprec(2000):
        terms = [mpmath.exp((v - max(scores)) / mpmath.mpf(tau)) for v in scores]
        p = [float(term / mpmath.fsum(terms)) for term in terms]
        above = float(mpmath.log(mpmath.fsum(terms)))
    exact = torch.tensor(p, dtype=torch.float64)
    ours = sm.softmax(x, dim, temperature=tau)
    ours = ours[0] if dim == 1 else ours[:, 0]
    assert bool(((ours - exact).abs() <= 5 * 2.0**-53 * exact + 1e-300).all())
    if tau == 1:
        return
    # Temperatures are large enough for M/τ to be 0 or so, or LSE is M/τ to all digits.
    value = sm.logsumexp(x, dim, temperature=tau)[0]
    top = float(max(scores)) / tau
    assert float(value) == pytest.approx(top + above, rel=4e-16, abs=1e-15)


def test_temperature_of_a_row_is_that_of_a_number(case: Case, dtype: torch.dtype):
    if not takes_any_size(case):
        pytest.skip("f(x/τ) may overflow")
    for tau, offset in itertools.product((1e-30, 0.01, 1e30), finite((0.0, 671119.5625), dtype)):
        others = (tau, 1.0, 2 * tau, 0.5)
        x = spread(dtype, min(tau, 1e3), offset, (4, 6))
        taus = torch.tensor(others, dtype=torch.float64).unsqueeze(-1)
        together = case(x, temperature=taus), case(x.T, 0, temperature=taus.T).T
        for i, each in enumerate(others):
            alone = case(x[i], temperature=each)
            for rows in together:
                torch.testing.assert_close(rows[i], alone, atol=TOLERANCE[dtype], rtol=2 * TOLERANCE[dtype])


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "topk_softmax"])
def test_gradients_agree_with_exact_differences(name: str, dtype: torch.dtype):
    map, g = sm.find_map(name), normal(4, 6, seed=1).to(dtype)
    for tau, offset in itertools.product((0.01, 0.7, 1.0, 30.0), finite((0.0, -3e6, 1e12), dtype)):
        x = spread(dtype, tau, offset).requires_grad_()
        z = differences(x.detach(), tau).requires_grad_()
        params = map.complete({})
        (expected,) = torch.autograd.grad(map.reference(z, **params), z, g.double())
        for y in (map(x, temperature=tau), map(x.T, 0, temperature=tau).T):
            (gradient,) = torch.autograd.grad(y, x, g)
            torch.testing.assert_close(gradient.double() * tau, expected, atol=20 * TOLERANCE[dtype], rtol=20 * TOLERANCE[dtype])


def test_derivatives_at_any_temperature_are_those_of_the_scores_over_it(case: Case, dtype: torch.dtype):
    """Of equal scores 0, whose z is 0 at every temperature; what is beyond the dtype is its largest number."""
    g = torch.tensor([[1.0, -0.5, 0.5]], dtype=dtype)
    exact = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(case(exact), exact, g.double())
    largest = torch.finfo(dtype).max
    number = partial(torch.tensor, dtype=torch.float64)
    kinds = (float, number, partial(number, requires_grad=True))
    for tau, kind in itertools.product((1e-60, 3e-39, 1e-6, 1e41, 1e50)[:: 2 if INTERPRETED else 1], kinds):
        expected, temperature = (slope / tau).clamp(-largest, largest), kind(tau)
        x = torch.zeros(1, 3, dtype=dtype, requires_grad=True)
        learns = isinstance(temperature, torch.Tensor) and temperature.requires_grad
        found, *of_tau = torch.autograd.grad(case(x, temperature=temperature), (x, temperature) if learns else x, g)
        smallest = 2 * torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
        torch.testing.assert_close(found.double(), expected, rtol=8 * torch.finfo(dtype).eps, atol=smallest)
        assert of_tau == [] or float(of_tau[0]) == 0


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e8])
def test_gradient_by_the_temperature_of_rectified_scores_knows_no_offset(offset: float):
    g, tau = torch.tensor([1.0, 0.0, -2.0]), torch.tensor(10.4, requires_grad=True)
    x = torch.tensor([16.0, 8.0, 24.0]) + offset
    of_rectified, of_softmax = (
        torch.autograd.grad(function(x, temperature=tau), tau, g)[0] for function in (sm.rectified_softmax, sm.softmax)
    )
    torch.testing.assert_close(of_rectified, of_softmax)


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_of_masks_are_zero_for_any_sink(dtype: torch.dtype, shape: tuple[int, int]):
    nothing = torch.full(shape, -INF, dtype=dtype)
    target = torch.zeros(shape[0], dtype=torch.int64)
    for beta in (-INF, -1000.0, -745.0, -400.0, -120.0, -88.0, -20.0, 0.0, 88.0, 120.0, 1000.0)[:: 3 if INTERPRETED else 1]:
        eps = math.exp(max(-690.0, min(beta, 690.0)))  # 1/eps is a number
        for tau in (1.0, 0.7):
            for dim in (0, 1):
                for p in (
                    sm.elastic_softmax(nothing, dim=dim, beta=beta, temperature=tau),
                    sm.elastic_softmax(nothing, dim=dim, beta=torch.tensor([[beta]]), temperature=tau),
                    sm.eps_softmax(nothing, dim=dim, eps=eps, temperature=tau),
                ):
                    assert bool((p == 0).all()), beta
        for loss, option in ((sm.elastic_cross_entropy, {"beta": beta}), (sm.eps_cross_entropy, {"eps": eps})):
            x = nothing.clone().requires_grad_()
            value = loss(x, target, reduction="none", **option)
            (gradient,) = torch.autograd.grad(value.sum(), x)
            assert bool((gradient == 0).all()), beta
            assert not bool(value.isnan().any())


def sums(x: torch.Tensor, tau: float) -> dict[str, torch.Tensor]:
    """Every logarithm of a sum of all x [n] of a row."""
    others = sm.logcumsumexp(x, temperature=tau)[..., -1]
    found = {
        "logsumexp": sm.logsumexp(x, temperature=tau),
        "column": sm.logsumexp(x.T.contiguous(), 0, temperature=tau),
        "logcumsumexp": others,
        "cumulative column": sm.logcumsumexp(x.T.contiguous(), 0, temperature=tau)[-1],
        "log_mean_exp": sm.log_mean_exp(x, temperature=tau),
        "compensated": sm.logsumexp(x, temperature=tau, precision="compensated"),
        "weighted": sm.logsumexp(x, temperature=tau, weights=torch.ones_like(x)),
        "sequence": sm.sequence_logsumexp(x, temperature=tau),
        "composed": torch.func.vmap(lambda row: sm.logsumexp(row, temperature=tau))(x),
        "composed running": torch.func.vmap(lambda row: sm.logcumsumexp(row, temperature=tau)[-1])(x),
    }
    if tau == 1 and x.shape[-1] == 2:
        found["logaddexp"] = sm.logaddexp(x[..., 0], x[..., 1])
    return found


@pytest.mark.parametrize("row", [[0.0, 0.0], [0.0, -1.0], [-3.0, 0.25, 0.25, -1.0], [0.5]], ids=len)
def test_gradients_of_sums_are_softmax(dtype: torch.dtype, row: list[float]):
    for tau, offset in itertools.product(
        finite((1.0, 0.7, 1e20), dtype) + [1 / t for t in finite((1e20,), dtype)], finite((0.0, 1e4, -1e10, 1e20), dtype)
    ):
        x = (torch.tensor([row, row], dtype=torch.float64) * tau + offset).to(dtype).requires_grad_()
        expected = torch.softmax(differences(x.detach(), tau), -1)
        for name, value in sums(x, tau).items():
            (gradient,) = torch.autograd.grad(value.sum(), x)
            share = gradient.double() * tau
            torch.testing.assert_close(
                share, expected, atol=2 * TOLERANCE[dtype], rtol=2 * TOLERANCE[dtype], msg=partial("{}: {}".format, name)
            )
            torch.testing.assert_close(
                share.sum(-1),
                torch.ones_like(share[:, 0]),
                atol=8 * torch.finfo(dtype).eps,
                rtol=0,
                msg=partial("{}: {}".format, name),
            )


@pytest.mark.parametrize("offset", [0.0, 1e8])
def test_gradients_of_sums_by_the_temperature(offset: float):
    x = normal(2, 5, scale=1.0) + offset
    tau = torch.tensor([[0.5], [2.0]], dtype=torch.float64, requires_grad=True)
    p = torch.softmax((x - x.amax(-1, keepdim=True)) / tau.detach(), -1)
    expected = -(p * x).sum(-1, keepdim=True) / tau.detach() ** 2
    for function in (
        lambda: sm.logsumexp(x, temperature=tau),
        lambda: sm.logcumsumexp(x, temperature=tau)[..., -1],
        lambda: sm.log_mean_exp(x, temperature=tau),
        lambda: sm.logsumexp(x, temperature=tau, weights=torch.ones_like(x)),
        lambda: sm.logsumexp(x, temperature=tau, precision="compensated"),
    ):
        (gradient,) = torch.autograd.grad(function().sum(), tau)
        torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=0)


def test_one_score_has_all_the_mass(case: Case, dtype: torch.dtype):
    if case.claims.mass == "at most one" or not takes_any_size(case):
        pytest.skip("there is a sink, or f(x) may be 0")
    x = normal(200, 1, scale=20, dtype=dtype)
    x = x.abs() if case.claims.mass == "zero or one" else x
    masked = torch.cat((torch.full_like(x, -INF), x, torch.full_like(x, -INF)), -1)
    for tau in (1.0, 0.7, 1e-38, 1e38):
        for p in (
            case.probabilities(x, temperature=tau),
            case.probabilities(x.T.contiguous(), 0, temperature=tau).T,
            case.probabilities(masked, temperature=tau)[:, 1:2],
        ):
            assert bool((p == 1).all())
    lone = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(sm.logsumexp(lone).sum(), lone)
    torch.testing.assert_close(gradient, torch.ones_like(gradient), atol=torch.finfo(dtype).eps, rtol=0)
    long = torch.full((2, 3000), -INF, dtype=dtype)
    long[:, 1234] = x[:2, 0]
    assert bool((case.probabilities(long)[:, 1234] == 1).all())


def test_row_with_infinity_or_nan_is_nan(case: Case, dtype: torch.dtype):
    if not takes_any_size(case):
        pytest.skip("f(x/τ) may overflow")
    temperatures = (1.0, 0.7, 1e-38, 1e38)[:: 2 if INTERPRETED else 1]
    for shape, dim, tau, value in some(itertools.product(SHAPES, (0, 1), temperatures, (INF, math.nan)), case, dtype):
        x = normal(*shape, dtype=dtype)
        x.select(1 - dim, 1)[1] = value
        out = case(x, dim, temperature=tau)
        assert bool(out.select(1 - dim, 1).isnan().all()), (shape, dim, tau, value)
        assert not bool(out.select(1 - dim, 0).isnan().any()), (shape, dim, tau, value)


@pytest.mark.skipif(INTERPRETED, reason="threads are those of the native kernels")
def test_long_row_that_threads_share_has_one_anchor(case: Case, dtype: torch.dtype):
    tau = 0.7
    x = normal(1, 70_000, dtype=dtype)
    x[0, 60_000] = 20
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 4):
            torch.set_num_threads(threads)
            results.append(case(x, temperature=tau))
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(*results, atol=TOLERANCE[dtype], rtol=2 * TOLERANCE[dtype])


def test_states_of_narrow_scores_have_the_digits_of_double():
    for dtype in (torch.float32, torch.bfloat16):
        for n in (127, 128, 5000):
            for tau in (1.0, 0.7):
                x = normal(3, n, dtype=dtype)
                state = sm.LogSumExpState().update(x, temperature=tau)
                wide = (
                    sm.LogSumExpState()
                    .update(x.double()[:, : n // 2], temperature=tau)
                    .update(x.double()[:, n // 2 :], temperature=tau)
                )
                torch.testing.assert_close(torch.as_tensor(state.value), torch.as_tensor(wide.value), rtol=5e-16, atol=0)
                torch.testing.assert_close(
                    torch.as_tensor(state.effective_size), torch.as_tensor(wide.effective_size), rtol=2e-14, atol=0
                )


def test_loss_of_one_class_is_zero(loss: LossCase, dtype: torch.dtype):
    map = loss.options.get("map", loss.loss.map)
    if not loss.loss.zero_at_target or (map is not None and sm.find_map(map).properties.mass != "one"):
        pytest.skip("this loss is not zero at its target, or has a sink")
    x = loss.scores(50, 1, dtype=dtype).requires_grad_()
    value = loss(x, torch.zeros(50, dtype=torch.int64), reduction="none")
    (gradient,) = torch.autograd.grad(value.sum(), x)
    assert bool((value == 0).all())
    assert bool((gradient == 0).all())
