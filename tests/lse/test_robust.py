"""Trimmed, winsorised and median-of-means logsumexp: literal references, bounds, what corrupted scores can do, gradients."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp as scipy_logsumexp
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import softmaxima as sm
from conftest import normal, rows

INF = math.inf
PROPORTIONS = st.sampled_from([0.0, 0.1, 0.25, 0.3, 0.49])
FORMS: dict[str, Callable] = {"trimmed": sm.trimmed_logsumexp, "winsorized": sm.winsorized_logsumexp}


def cut_of(row: np.ndarray, proportion: float) -> int:
    return int(proportion * len(row))


def trimmed(row: np.ndarray, proportion: float) -> float:
    cut = cut_of(row, proportion)
    return float(scipy_logsumexp(np.sort(row)[cut : len(row) - cut])) if len(row) else -INF


def winsorized(row: np.ndarray, proportion: float) -> float:
    if not len(row):
        return -INF
    return float(scipy_logsumexp(np.asarray(scipy.stats.mstats.winsorize(row, (proportion, proportion)))))


def median_of_means(row: np.ndarray, blocks: int) -> float:
    """In plain numbers, so for small scores."""
    means = [np.exp(row[b::blocks]).mean() for b in range(blocks) if len(row[b::blocks])]
    return float(np.log(np.median(means) * len(row))) if means else -INF


@given(x=rows(), proportion=PROPORTIONS)
def test_trimmed_and_winsorised_are_their_definitions(x: Tensor, proportion: float):
    kept = [row[row > -INF] for row in x.numpy()]
    expected = torch.tensor([trimmed(row, proportion) for row in kept], dtype=torch.float64)
    torch.testing.assert_close(sm.trimmed_logsumexp(x, proportion), expected, atol=1e-13, rtol=1e-13)
    expected = torch.tensor([winsorized(row, proportion) for row in kept], dtype=torch.float64)
    torch.testing.assert_close(sm.winsorized_logsumexp(x, proportion), expected, atol=1e-13, rtol=1e-13)


@given(x=rows(), blocks=st.integers(1, 12))
def test_median_of_means_is_its_definition(x: Tensor, blocks: int):
    blocks = min(blocks, x.shape[-1])
    expected = torch.tensor([median_of_means(row[row > -INF], blocks) for row in x.numpy()], dtype=torch.float64)
    torch.testing.assert_close(sm.median_of_means_logsumexp(x, blocks), expected, atol=1e-12, rtol=1e-12)


@given(x=rows())
def test_nothing_cut_and_one_block_are_logsumexp(x: Tensor):
    value = sm.logsumexp(x)
    torch.testing.assert_close(sm.trimmed_logsumexp(x, 0.0), value, atol=1e-13, rtol=1e-13)
    torch.testing.assert_close(sm.winsorized_logsumexp(x, 0), value, atol=1e-13, rtol=1e-13)
    torch.testing.assert_close(sm.median_of_means_logsumexp(x, 1), value, atol=1e-12, rtol=1e-13)


@given(x=rows(masks=False), proportion=PROPORTIONS)
def test_values_lie_within_their_stated_bounds(x: Tensor, proportion: float):
    n = x.shape[-1]
    cut = int(proportion * n)
    ranked = x.sort(-1, descending=True).values
    largest, smallest = ranked[:, cut], ranked[:, n - cut - 1]
    low, high = sm.trimmed_logsumexp(x, proportion), sm.winsorized_logsumexp(x, proportion)
    rounding = 1e-12
    assert bool((smallest + math.log(n - 2 * cut) <= low + rounding).all())
    assert bool((low <= largest + math.log(n - 2 * cut) + rounding).all())
    assert bool((smallest + math.log(n) <= high + rounding).all())
    assert bool((high <= largest + math.log(n) + rounding).all())
    assert bool((low <= high + rounding).all())
    assert bool((low <= sm.logsumexp(x) + rounding).all())


@pytest.mark.parametrize("form", FORMS)
@given(
    x=rows(masks=False),
    proportion=PROPORTIONS,
    corrupted=st.integers(0, 4),
    junk=st.lists(st.sampled_from([-1e4, -3.0, 0.0, 7.0, 1e4, INF]), min_size=4, max_size=4),
    seed=st.integers(0, 1000),
)
def test_the_clean_value_lies_in_the_interval_of_the_corrupted_row(
    form: str, x: Tensor, proportion: float, corrupted: int, junk: list[float], seed: int
):
    n = x.shape[-1]
    corrupted = min(corrupted, n)
    dirty = x.clone()
    places = torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:corrupted]
    dirty[:, places] = torch.tensor(junk[:corrupted], dtype=x.dtype)
    clean = FORMS[form](x, proportion)
    lower, upper = sm.robust_interval(dirty, proportion, corrupted, form=form)
    assert bool(((lower <= clean + 1e-12) & (clean <= upper + 1e-12)).all())
    if corrupted > int(proportion * n):
        assert bool(((lower == -INF) & (upper == INF)).all())
    else:
        assert bool(FORMS[form](dirty, proportion).isfinite().all())


@pytest.mark.parametrize("form", FORMS)
def test_the_interval_is_attained(form: str):
    x = normal(50).sort().values
    lower, upper = sm.robust_interval(x, 0.2, 5, form=form)
    worst = x.clone()
    worst[:5] = 1e4  # the smallest become the largest: every order statistic moves by five places
    torch.testing.assert_close(FORMS[form](worst, 0.2), upper)
    worst = x.clone()
    worst[-5:] = -1e4
    torch.testing.assert_close(FORMS[form](worst, 0.2), lower)


@given(x=rows(masks=False), seed=st.integers(0, 1000), proportion=PROPORTIONS)
def test_shift_with_their_scores_and_are_one_lipschitz(x: Tensor, seed: int, proportion: float):
    step = normal(*x.shape, seed=seed)
    blocks = min(3, x.shape[-1])
    for function in (
        lambda x: sm.trimmed_logsumexp(x, proportion),
        lambda x: sm.winsorized_logsumexp(x, proportion),
        lambda x: sm.median_of_means_logsumexp(x, blocks),
    ):
        torch.testing.assert_close(function(x + 7.5), function(x) + 7.5, atol=1e-12, rtol=1e-12)
        assert bool(((function(x + step) - function(x)).abs() <= step.abs().amax(-1) + 1e-12).all())


def test_a_minority_of_bad_blocks_moves_the_median_by_as_many_places():
    x = normal(90)
    blocks = torch.stack([sm.logsumexp(x[b::9]) - math.log(10) + math.log(90) for b in range(9)]).sort().values
    for bad in (0, 1, 4):
        for junk in (-1e4, 1e4, INF):
            dirty = x.clone()
            for b in range(bad):
                dirty[b::9] = junk
            value = sm.median_of_means_logsumexp(dirty, 9)
            assert blocks[4 - bad] - 1e-12 <= value <= blocks[4 + bad] + 1e-12


def test_median_of_means_keeps_its_promise_on_heavy_tails():
    # e^x is Pareto with a finite variance and no third moment: P(e^x > t) = t^−2.5 for t > 1
    a, delta, n = 2.5, 0.05, 24 * 25
    mean, variance = a / (a - 1), a / ((a - 1) ** 2 * (a - 2))
    blocks = math.ceil(8 * math.log(1 / delta))
    uniform = torch.rand(2000, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = -uniform.log() / a
    value = (sm.median_of_means_logsumexp(x, blocks) - math.log(n)).exp()
    assert blocks == 24
    assert float(((value - mean).abs() > math.sqrt(32 * variance * math.log(1 / delta) / n)).double().mean()) <= delta


def test_infinities_nan_and_nothing(dtype: torch.dtype):
    x = torch.tensor([[1, INF, 2, 3], [math.nan, 0, 1, 2], [-INF] * 4, [0, -INF, 0, 0]], dtype=dtype)
    torch.testing.assert_close(
        sm.trimmed_logsumexp(x, 0.25),
        torch.tensor([math.log(math.exp(2) + math.exp(3)), math.nan, -INF, math.log(3)], dtype=dtype),
        equal_nan=True,
    )
    torch.testing.assert_close(
        sm.winsorized_logsumexp(x, 0.25),
        torch.tensor([math.log(2 * math.exp(2) + 2 * math.exp(3)), math.nan, -INF, math.log(3)], dtype=dtype),
        equal_nan=True,
    )
    means = sm.median_of_means_logsumexp(x, 4)
    middle = math.log(4 * (math.exp(2) + math.exp(3)) / 2)
    torch.testing.assert_close(means, torch.tensor([middle, math.nan, -INF, math.log(3)], dtype=dtype), equal_nan=True)
    for function in (lambda x: sm.trimmed_logsumexp(x, 0.3), lambda x: sm.winsorized_logsumexp(x, 0.3)):
        assert function(torch.zeros(3, 0, dtype=dtype)).tolist() == [-INF] * 3
        assert float(function(torch.tensor(2.5, dtype=dtype))) == 2.5
    assert sm.median_of_means_logsumexp(torch.zeros(3, 0, dtype=dtype), 1).tolist() == [-INF] * 3
    assert float(sm.median_of_means_logsumexp(torch.tensor(2.5, dtype=dtype), 1)) == 2.5


def test_a_row_of_nothing_has_a_zero_gradient():
    for function in (
        lambda x: sm.trimmed_logsumexp(x, 0.25),
        lambda x: sm.winsorized_logsumexp(x, 0.25),
        lambda x: sm.median_of_means_logsumexp(x, 3),
    ):
        x = torch.full((1, 4), -INF, dtype=torch.float64, requires_grad=True)
        (gradient,) = torch.autograd.grad(function(x).sum(), x)
        assert gradient.tolist() == [[0.0] * 4]


def test_half_precision_of_a_long_row_is_the_rounded_double(dtype: torch.dtype):
    x = normal(65_537, dtype=dtype)
    for function in (
        lambda x: sm.trimmed_logsumexp(x, 0.1),
        lambda x: sm.winsorized_logsumexp(x, 0.1),
        lambda x: sm.median_of_means_logsumexp(x, 7),
    ):
        torch.testing.assert_close(function(x), function(x.double()).to(dtype), atol=0, rtol=2 * torch.finfo(dtype).eps)


def test_axes_strides_masks_and_arrays():
    x, where = normal(4, 5, 6), normal(4, 5, 6, seed=1) > -1
    masked = x.masked_fill(~where, -INF)
    tau = torch.tensor([0.5, 1.0, 2.0, 3.0, 4.0], dtype=torch.float64)[:, None]
    for function in (
        lambda x, dim=-1, **options: sm.trimmed_logsumexp(x, 0.2, dim, **options),
        lambda x, dim=-1, **options: sm.winsorized_logsumexp(x, 0.2, dim, **options),
        lambda x, dim=-1, **options: sm.median_of_means_logsumexp(x, 3, dim, **options),
        lambda x, dim=-1, **options: sm.robust_interval(x, 0.2, 1, dim, **options)[1],
    ):
        for dim in (0, 1, -2, -3):
            torch.testing.assert_close(function(x, dim), function(x.movedim(dim, -1).contiguous()))
        torch.testing.assert_close(function(x, where=where), function(masked))
        torch.testing.assert_close(function(x, temperature=tau), function(x / tau))
        torch.testing.assert_close(function(x[:, ::2]), function(x[:, ::2].contiguous()))
        result = function(x.numpy())
        assert isinstance(result, np.ndarray)
        torch.testing.assert_close(torch.from_numpy(result), function(x))
        assert function(torch.tensor([0, 0, 0])).dtype == torch.get_default_dtype()


def test_gradients():
    x, tau = normal(3, 9).requires_grad_(), torch.tensor([[0.5], [1.0], [2.0]], dtype=torch.float64, requires_grad=True)
    where = normal(3, 9, seed=1) > -2
    for function in (
        lambda x, tau: sm.trimmed_logsumexp(x, 0.2, temperature=tau, where=where),
        lambda x, tau: sm.winsorized_logsumexp(x, 0.2, temperature=tau, where=where),
        lambda x, tau: sm.median_of_means_logsumexp(x, 3, temperature=tau, where=where),
        lambda x, tau: sm.median_of_means_logsumexp(x, 4, temperature=tau, where=where),
    ):
        assert gradcheck(function, (x, tau), check_forward_ad=True, check_batched_grad=True)
        assert gradgradcheck(function, (x, tau))
        (gradient,) = torch.autograd.grad(function(x, 1.0).sum(), x)
        torch.testing.assert_close(gradient.sum(-1), torch.ones(3, dtype=torch.float64))
        assert bool((gradient >= 0).all())


def test_cut_scores_get_no_gradient_and_winsorised_ones_pass_theirs_on():
    x = torch.tensor([0.0, 1.0, 2.0, 3.0, 90.0], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(sm.trimmed_logsumexp(x, 0.2), x)
    torch.testing.assert_close(gradient[1:4], torch.softmax(x.detach()[1:4], 0))
    assert gradient[[0, 4]].tolist() == [0.0, 0.0]
    (gradient,) = torch.autograd.grad(sm.winsorized_logsumexp(x, 0.2), x)
    p = torch.softmax(torch.tensor([1.0, 1.0, 2.0, 3.0, 3.0], dtype=torch.float64), 0)
    torch.testing.assert_close(gradient, torch.stack([p[0] * 0, p[0] + p[1], p[2], p[3] + p[4], p[0] * 0]))


def test_shuffling_makes_the_order_of_scores_meaningless():
    x = torch.arange(1000, dtype=torch.float64).remainder(10)  # block i mod 10 holds nothing but i
    exact = sm.logsumexp(x)
    assert float((sm.median_of_means_logsumexp(x, 10) - exact).abs()) > 1
    shuffled = sm.median_of_means_logsumexp(x, 10, shuffle=True, generator=0)
    assert float((shuffled - exact).abs()) < 0.3
    with pytest.raises(ValueError, match=r"generator draws the order of a shuffle; pass shuffle=True"):
        sm.median_of_means_logsumexp(x, 10, generator=0)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: sm.trimmed_logsumexp(x, 0.5), ValueError, r"trimmed_logsumexp: proportion must be a number in \[0, 0.5\)"),
        (lambda x: sm.winsorized_logsumexp(x, -0.1), ValueError, r"proportion must be a number in \[0, 0.5\), got -0.1"),
        (lambda x: sm.trimmed_logsumexp(x, math.nan), ValueError, r"got nan"),
        (lambda x: sm.trimmed_logsumexp(x, "0.1"), TypeError, r"got the string '0.1'; pass a number"),
        (lambda x: sm.trimmed_logsumexp(x, 0.1, 2), IndexError, r"dim must be in \[-2, 1\]"),
        (lambda x: sm.trimmed_logsumexp([1.0], 0.1), TypeError, r"must be a torch.Tensor or a numpy.ndarray, got list"),
        (lambda x: sm.trimmed_logsumexp(x, 0.1, temperature=0.0), ValueError, r"temperature must be positive"),
        (lambda x: sm.trimmed_logsumexp(x, 0.1, where=x), TypeError, r"where must be boolean"),
        (lambda x: sm.trimmed_logsumexp(x * 1j, 0.1), TypeError, r"scores must be float64.*got torch.complex64"),
        (lambda x: sm.robust_interval(x, 0.1, -1), ValueError, r"corrupted must be an int of at least 0, got -1"),
        (lambda x: sm.robust_interval(x, 0.1, 1, form="mean"), ValueError, r"form must be one of trimmed, winsorized, got 'mean'"),
        (lambda x: sm.median_of_means_logsumexp(x, 0), ValueError, r"blocks must be an int of at least 1, got 0"),
        (lambda x: sm.median_of_means_logsumexp(x, 4), ValueError, r"blocks must be at most the number of scores, 3, got 4"),
    ],
)  # fmt: skip
def test_wrong_use_raises(call: Callable, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        call(torch.zeros(2, 3))
