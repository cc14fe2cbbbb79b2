"""logmatmulexp against the logsumexp of every entry's terms, one after the other, in float64."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import softmaxima as sm
from conftest import normal

INF, NAN = math.inf, math.nan
SCORE = st.one_of(st.floats(-30, 30, width=32), st.sampled_from([-INF, -1e5, -1000.0, 0.0, 1.0, 1000.0, 1e5]))


def literal(x: Tensor, y: Tensor) -> Tensor:
    """z_ij = log Σ_k exp(x_ik + y_kj), of matrices, over the k where neither is −∞."""
    z = torch.full((len(x), y.shape[1]), -INF, dtype=torch.float64)
    for i in range(z.shape[0]):
        for j in range(z.shape[1]):
            terms = (x[i].double() + y[:, j].double())[(x[i] != -INF) & (y[:, j] != -INF)]
            z[i, j] = torch.logsumexp(terms, 0) if len(terms) else -INF
    return z


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    n, k, m = (draw(st.integers(0, 4)) for _ in range(3))
    matrix = lambda rows, columns: torch.tensor(
        [[draw(SCORE) for _ in range(columns)] for _ in range(rows)], dtype=torch.float64
    ).reshape(rows, columns)
    return matrix(n, k), matrix(k, m)


@given(pair=pairs())
def test_each_entry_is_the_sum_of_its_terms(pair: tuple[Tensor, Tensor]):
    torch.testing.assert_close(sm.logmatmulexp(*pair), literal(*pair), rtol=1e-14, atol=1e-13)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e3, 1e5])
@pytest.mark.parametrize("offset", [0.0, 1e6, -1e6])
def test_every_dtype_has_its_own_digits(dtype: torch.dtype, scale: float, offset: float):
    x, y = normal(5, 6, scale=scale), normal(6, 4, seed=1, scale=scale)
    x, y = (x + offset).to(dtype), y.to(dtype)
    z = sm.logmatmulexp(x, y)
    assert z.dtype == dtype
    tolerance = 3 * torch.finfo(dtype).eps
    expected = literal(x, y).to(dtype)  # of float16 with infinities, for its scores end at 65504
    torch.testing.assert_close(z, expected, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


@given(pair=pairs())
def test_the_gradient_is_the_softmax_of_the_terms(pair: tuple[Tensor, Tensor]):
    x, y = (v.clone().requires_grad_() for v in pair)
    z = sm.logmatmulexp(x, y)
    g = normal(*z.shape)
    found = torch.autograd.grad((z.masked_fill(z == -INF, 0.0) * g).sum(), (x, y))
    expected = torch.zeros_like(x), torch.zeros_like(y)
    for i in range(z.shape[0]):
        for j in range(z.shape[1]):
            if z[i, j] > -INF:
                p = (pair[0][i] + pair[1][:, j] - z[i, j].detach()).exp()
                expected[0][i] += g[i, j] * p
                expected[1][:, j] += g[i, j] * p
    for own, other in zip(found, expected, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-9, atol=1e-9)


def test_scores_of_minus_infinity_have_no_gradient_and_a_row_of_them_no_sum():
    x = torch.tensor([[-INF, -INF], [0.0, -INF]], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([[1.0, -INF], [2.0, 3.0]], dtype=torch.float64, requires_grad=True)
    z = sm.logmatmulexp(x, y)
    assert z.tolist() == [[-INF, -INF], [1.0, -INF]]
    by_x, by_y = torch.autograd.grad(z.sum(), (x, y))
    assert by_x.tolist() == [[0.0, 0.0], [1.0, 0.0]]
    assert by_y.tolist() == [[1.0, 0.0], [0.0, 0.0]]


def test_bands_of_allowed_entries_take_no_more_memory_than_matrices(monkeypatch: pytest.MonkeyPatch):
    """Of two banded matrices most entries have no term: they are known to be −∞ without a look at each, but for a few near 0."""
    near = (torch.arange(60)[:, None] - torch.arange(60)).abs() <= 2
    x, y = (normal(60, 60, seed=seed).masked_fill(~near, -INF).requires_grad_() for seed in (0, 1))
    taken = []
    module = importlib.import_module("softmaxima.lse.logmatmulexp")
    monkeypatch.setattr(module, "row_logsumexp", lambda rows, *others: taken.append(rows.numel()) or rows.logsumexp(-1))
    z = sm.logmatmulexp(x, y)
    assert sum(taken) < 60 * 60 / 4
    torch.testing.assert_close(z, literal(x.detach(), y.detach()))
    by_x, _ = torch.autograd.grad(z[z > -INF].sum(), (x, y))
    assert bool((by_x[~near] == 0).all())
    assert bool((by_x[near] > 0).all())


@pytest.mark.parametrize("bad", [NAN, INF])
def test_what_is_no_number_stays_in_its_row_and_column(bad: float):
    x, y = normal(3, 4), normal(4, 5, seed=1)
    x[1, 2], y[0, 3] = bad, bad
    x[2, 0] = -INF
    z = sm.logmatmulexp(x, y)
    torch.testing.assert_close(z, literal(x, y), equal_nan=True)
    touched = torch.zeros(3, 5, dtype=torch.bool)
    touched[1], touched[:, 3] = True, True
    touched[2, 3] = False  # which −∞ takes out
    assert torch.equal(z.isfinite(), ~touched)


@pytest.mark.parametrize("bad", [NAN, INF])
def test_what_stands_against_minus_infinity_is_never_read(bad: float):
    x, y = normal(3, 4), normal(4, 5, seed=1)
    x[:, 1], y[2] = -INF, -INF
    results = []
    for junk in (bad, 0.0):
        own = [x.index_fill(1, torch.tensor(2), junk).requires_grad_(), y.index_fill(0, torch.tensor(1), junk).requires_grad_()]
        for road in (sm.logmatmulexp, lambda a, b: torch.func.vmap(sm.logmatmulexp)(a[None], b[None])[0]):
            z = road(*own)
            first = torch.autograd.grad((z * normal(3, 5, seed=2)).sum(), own, create_graph=True)
            results += [z, *first, *torch.autograd.grad(sum(v.square().sum() for v in first), own)]
    for found, expected in zip(results[: len(results) // 2], results[len(results) // 2 :], strict=True):
        torch.testing.assert_close(found, expected)


def test_derivatives_of_both_orders_and_forward_mode():
    x, y = normal(2, 3), normal(3, 2, seed=1)
    x[0, 1:] = y[0, 0] = -900.0  # whose large entries do not meet
    assert float(sm.logmatmulexp(x, y)[0, 0]) < -800
    x, y = x.requires_grad_(), y.requires_grad_()
    for check in (gradcheck, gradgradcheck):
        assert check(sm.logmatmulexp, (x, y))
    assert gradcheck(sm.logmatmulexp, (x, y), check_forward_ad=True, check_batched_grad=True)


@pytest.mark.parametrize("apart", [340.0, 360.0, 700.0, 720.0, 740.0, 760.0, 1e5])
def test_large_entries_that_do_not_meet_lose_no_digits(apart: float):
    """Terms are below the largest of their row and column by as much as float64 has, and more."""
    x = torch.tensor([[0.0, -apart], [-apart, -0.3 - apart]], dtype=torch.float64)
    y = torch.tensor([[-apart, 0.1], [0.2, -apart]], dtype=torch.float64)
    torch.testing.assert_close(sm.logmatmulexp(x, y), literal(x, y), rtol=1e-15, atol=1e-13)
    whole = lambda x, y: torch.logsumexp(x.unsqueeze(-1) + y.unsqueeze(-3), -2)
    inputs = x.requires_grad_(), y.requires_grad_()
    for found, expected in zip(*(second_derivatives(f, inputs) for f in (sm.logmatmulexp, whole)), strict=True):
        rounded = max(1e-12, 1e-15 * apart)  # of the definition, which takes exp(x + y − z)
        torch.testing.assert_close(found, expected, rtol=rounded, atol=rounded)


def second_derivatives(function: Callable[..., Tensor], inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """The slopes of a sum of slopes, with the slopes."""
    g = torch.tensor([[1.0, -2.0], [0.5, 3.0]], dtype=torch.float64)
    first = torch.autograd.grad((function(*inputs) * g).sum(), inputs, create_graph=True)
    return (*first, *torch.autograd.grad(sum((each * g).sum() for each in first), inputs))  # type: ignore[arg-type]


NEAR_ZERO = st.one_of(st.floats(-50, 0), st.sampled_from([-INF, 0.0, -1e-9, -1e-17, -40.0, -17.0]))


@given(data=st.data(), shift=st.sampled_from([0.0, 1.0, 17.5, 300.0, -1e4]), dtype=st.sampled_from([torch.float64, torch.float32]))
def test_results_near_0_keep_their_digits_by_every_road(data: st.DataObject, shift: float, dtype: torch.dtype):
    """That of `logsumexp` over the terms, eager as it is compiled and under vmap."""
    x, y = (torch.tensor([[data.draw(NEAR_ZERO) for _ in range(3)] for _ in range(3)]).to(dtype) for _ in range(2))
    x, y = x + shift, y - shift
    z = sm.logmatmulexp(x, y)
    expected = sm.logsumexp(x.double().unsqueeze(-1) + y.double(), -2).to(dtype)
    tolerance = {torch.float64: 1e-13, torch.float32: 2e-7}[dtype]  # of what is left of 52 and of 23 bits
    torch.testing.assert_close(z, expected, rtol=tolerance, atol=0)
    torch.testing.assert_close(torch.func.vmap(sm.logmatmulexp)(x[None], y[None])[0], z, rtol=tolerance, atol=0)


def test_large_terms_that_cancel_leave_no_rounding():
    x, y = torch.tensor([300.0, 0.1], dtype=torch.float64), torch.tensor([-INF, 0.0], dtype=torch.float64)
    assert float(sm.logmatmulexp(x, y)) == 0.1
    assert float(sm.logmatmulexp(torch.tensor([0.0, -40.0]), torch.zeros(2))) == pytest.approx(4.248354255291589e-18, rel=1e-7)
    assert float(sm.logmatmulexp(torch.tensor([INF, 0.0]), torch.tensor([-INF, 0.0]))) == 0


@pytest.mark.parametrize("apart", [0.5, 100.0, 229.0, 231.0, 340.0, 740.0])
def test_derivatives_of_every_order_are_those_of_two_terms(apart: float):
    """log(e^{w − a} + e^{−a}), a softplus, whose derivatives at 0 are known: 1/2, 1/4, 0, −1/8, 0, 1/4, 0, −17/16."""
    w = torch.tensor(0.0, dtype=torch.float64, requires_grad=True)
    far = torch.tensor([-apart, 0.0], dtype=torch.float64)
    value = sm.logmatmulexp(torch.stack([w, far[0]]), far)
    for expected in (1 / 2, 1 / 4, 0.0, -1 / 8, 0.0, 1 / 4, 0.0, -17 / 16):
        (value,) = torch.autograd.grad(value, w, create_graph=True)
        assert float(value.detach()) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("apart", [1.0, 100.0, 229.0, 231.0, 340.0])
@pytest.mark.parametrize("g", [1e200, -1e300, 1e-200])
def test_a_slope_of_any_size_goes_through(apart: float, g: float):
    x = torch.tensor([0.0, -apart, -INF], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([-apart, 0.0, 0.0], dtype=torch.float64, requires_grad=True)
    by_x, by_y = torch.autograd.grad(sm.logmatmulexp(x, y), (x, y), torch.tensor(g, dtype=torch.float64))
    for each in (by_x, by_y):
        assert each.tolist() == pytest.approx([g / 2, g / 2, 0.0], rel=1e-13, abs=0)
        assert float(each[2]) == 0


def test_a_slope_of_infinity_stays_in_its_row_and_column():
    x, y = normal(2, 3, 4).requires_grad_(), normal(2, 4, 3, seed=1).requires_grad_()
    g = torch.ones(2, 3, 3, dtype=torch.float64)
    g[0, 1, 2] = INF
    by_x, by_y = torch.autograd.grad(sm.logmatmulexp(x, y), (x, y), g)
    touched = torch.zeros(2, 3, dtype=torch.bool)
    touched[0, 1] = True
    assert torch.equal(by_x.isfinite().all(-1), ~touched)
    assert torch.equal(by_y.isfinite().all(-2), ~touched.roll(1, -1))


def test_axes_broadcast_and_vectors_are_rows_and_columns():
    x, y = normal(3, 1, 2, 4), normal(5, 4, 6, seed=1)
    z = sm.logmatmulexp(x, y)
    assert z.shape == (3, 5, 2, 6)
    for a in range(3):
        for b in range(5):
            torch.testing.assert_close(z[a, b], literal(x[a, 0], y[b]))
    torch.testing.assert_close(sm.logmatmulexp(x[0, 0, 1], y), z[0, :, 1])
    torch.testing.assert_close(sm.logmatmulexp(x, y[2, :, 3]), sm.logmatmulexp(x, y[2])[..., 3])
    assert sm.logmatmulexp(x[0, 0, 1], y[2, :, 3]).shape == ()


def test_arrays_give_arrays_and_strides_do_not_matter():
    x, y = normal(4, 3).numpy(), normal(4, 5, seed=1).numpy()
    z = sm.logmatmulexp(x.T, np.asfortranarray(y))
    assert isinstance(z, np.ndarray)
    np.testing.assert_allclose(z, np.log(np.exp(x.T) @ np.exp(y)), rtol=1e-13)
    assert isinstance(sm.logmatmulexp(x[:, 0], y[:, 0]), np.float64)
    assert sm.logmatmulexp(np.zeros((2, 0)), np.zeros((0, 3))).tolist() == [[-INF] * 3] * 2


def test_transforms_and_compilers_see_the_definition():
    x, y = normal(3, 2, 4), normal(3, 4, 2, seed=1)
    x[0, 0] = -INF
    expected = sm.logmatmulexp(x, y)
    torch.testing.assert_close(torch.func.vmap(sm.logmatmulexp)(x, y), expected)
    compiled = torch.compile(sm.logmatmulexp, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, y), expected)


@given(seed=st.integers(0, 1000))
def test_a_chain_of_products_may_be_grouped_in_any_way(seed: int):
    a, b, c = (normal(3, 3, seed=3 * seed + i, scale=20.0) for i in range(3))
    left = sm.logmatmulexp(sm.logmatmulexp(a, b), c)
    torch.testing.assert_close(left, sm.logmatmulexp(a, sm.logmatmulexp(b, c)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("x", "y", "error", "said"),
    [
        (torch.zeros(2, 3), np.zeros((3, 2)), TypeError, "of one kind"),
        (torch.zeros(2, 3, dtype=torch.cfloat), torch.zeros(3, 2), TypeError, "x must be float64"),
        (torch.zeros(2, 3), torch.zeros(3, 2).to(torch.complex64), TypeError, "y must be float64"),
        (torch.zeros(2, 3), torch.zeros(2, 3), ValueError, "as long as the last but one of y"),
        (torch.zeros(()), torch.zeros(3), ValueError, "vectors or matrices"),
        (torch.zeros(2, 2, 3), torch.zeros(3, 3, 2), ValueError, "must broadcast"),
        (torch.zeros(2, 3), torch.zeros(3, 2, device="meta"), ValueError, "on the device"),
    ],
)
def test_wrong_use_is_told_before_any_work(x: object, y: object, error: type[Exception], said: str):
    with pytest.raises(error, match=f"^logmatmulexp: .*{said}"):
        sm.logmatmulexp(x, y)  # type: ignore[arg-type]
