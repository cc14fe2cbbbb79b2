"""Bounds of logsumexp: every interval holds the true value, is as tight as it claims, in every dtype, layout and mask; errors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import softmaxima as sm
from conftest import normal, rows, some

INF, NAN = math.inf, math.nan

BOUNDS: dict[str, Callable[..., Any]] = {
    "basic": sm.basic_bounds,
    "mean": sm.mean_bounds,
    "shannon": lambda x, *a, **o: sm.renyi_bounds(x, torch.ones(()), 1.0, *a, **o),
    "renyi": lambda x, *a, **o: sm.renyi_bounds(x, sm.softmax(x.double().nan_to_num(0.0)), 1.7, *a, **o),
    "gap": sm.gap_bounds,
    "gap of 1": lambda x, *a, **o: sm.gap_bounds(x, 1, *a, **o),
    "adaptive": sm.adaptive_bounds,
    "adaptive 0": lambda x, *a, **o: sm.adaptive_bounds(x, 0, *a, **o),
    "adaptive 3": lambda x, *a, **o: sm.adaptive_bounds(x, 3.0, *a, **o),
    "histogram": sm.histogram_bounds,
    "histogram 1e-3": lambda x, *a, **o: sm.histogram_bounds(x, 1e-3, *a, **o),
    "lipschitz": lambda x, *a, **o: sm.lipschitz_bounds(x, x / 2 + 1, *a, **o),
    "all": sm.bounds,
}


every_bound = pytest.mark.parametrize("bound", list(BOUNDS.values()), ids=list(BOUNDS))


def truths(x: Tensor, tau: float = 1.0) -> list[mpmath.mpf]:
    """LSE(x/τ) of each row, in digits enough for exp(−200) beside 1."""
    with mpmath.workdps(150):
        values = []
        for row in x.double().tolist():
            z = [mpmath.mpf(score) / mpmath.mpf(tau) for score in row if score > -INF]
            top = max(z, default=mpmath.mpf(0))
            values.append(top + mpmath.log(mpmath.fsum(mpmath.exp(score - top) for score in z)) if z else -mpmath.inf)
        return values


def assert_holds(interval: Any, values: list[mpmath.mpf]) -> None:
    with mpmath.workdps(150):
        for lower, upper, value in zip(*(np.ravel(end.tolist()) for end in (interval.lower, interval.upper)), values, strict=True):
            assert mpmath.mpf(float(lower)) <= value <= mpmath.mpf(float(upper)), (lower, upper, mpmath.nstr(value, 25))


@every_bound
@given(x=rows(), tau=st.sampled_from([1.0, 1.0, 0.3, 7.0]))
def test_an_interval_holds_the_truth(bound: Callable[..., Any], x: Tensor, tau: float):
    assert_holds(bound(x, temperature=tau), truths(x, tau))


@every_bound
def test_an_interval_holds_the_truth_in_every_dtype_and_far_from_zero(bound: Callable[..., Any], dtype: torch.dtype):
    for n, offset in some(itertools.product((1, 2, 150), (0.0, 1e4, -1e4, 1e-9)), list(BOUNDS.values()).index(bound), dtype):
        x = (normal(3, n, scale=4.0) + offset).to(dtype)
        x[1, :: n // 2 + 1] = x[1].amax()  # ties
        x[2, 1:] -= 600.0
        values = truths(x)
        for interval in (bound(x), bound(x, temperature=1.0, where=torch.ones(n, dtype=torch.bool))):
            assert interval.lower.dtype == interval.upper.dtype == dtype
            assert_holds(interval, values)


@every_bound
def test_long_rows_keep_their_promise(bound: Callable[..., Any]):
    x = normal(2, 65_537)
    value = torch.logsumexp(x, -1)
    interval = bound(x)
    assert bool((interval.lower <= value + 1e-12).all())
    assert bool((interval.upper >= value - 1e-12).all())


@every_bound
def test_nothing_infinities_and_nan(bound: Callable[..., Any], dtype: torch.dtype):
    x = torch.tensor([[-INF, -INF], [INF, 0.0], [INF, INF], [NAN, 0.0], [3.0, -INF]], dtype=dtype)
    interval = bound(x)
    assert interval.lower[:3].tolist() == interval.upper[:3].tolist() == [-INF, INF, INF]
    assert interval.lower[3].isnan()
    assert interval.upper[3].isnan()
    assert float(interval.lower[4]) <= 3.0 <= float(interval.upper[4])
    assert interval.width[:3].tolist() == [0, 0, 0]
    for empty in (x[:, :0], x[:0]):
        assert bound(empty).lower.tolist() == bound(empty).upper.tolist() == [-INF] * len(empty)
    single = bound(torch.tensor(2.5, dtype=dtype))
    assert single.lower.shape == single.upper.shape == ()
    assert float(single.lower) <= 2.5 <= float(single.upper)


@every_bound
@pytest.mark.parametrize("dim", [0, 1, -1, -2, -3])
def test_axes_layouts_masks_and_temperatures_are_those_of_logsumexp(bound: Callable[..., Any], dim: int):
    x = normal(3, 4, 5, scale=3.0)
    tau = (normal(3, 4, 5, seed=2) / 2).exp().narrow(dim, 0, 1)
    for view in (x, x.movedim(0, -1).contiguous().movedim(-1, 0)):
        for where in (None, normal(3, 4, 5, seed=1) > -1, normal(4, 1, seed=1) > 5):
            interval = bound(view, dim=dim, temperature=tau, where=where)
            value = sm.logsumexp(x, dim, temperature=tau, where=where)
            assert interval.lower.shape == interval.upper.shape == value.shape
            assert bool((interval.lower <= value + 1e-13 * value.abs().nan_to_num(posinf=0.0)).all())
            assert bool((interval.upper >= value - 1e-13 * value.abs().nan_to_num(posinf=0.0)).all())


def test_ends_are_exact_where_they_can_be():
    for function in (sm.basic_bounds, sm.gap_bounds, sm.adaptive_bounds, sm.histogram_bounds, sm.bounds):
        interval = function(np.array([0.1, -INF]))
        assert interval.lower == interval.upper == 0.1
    equal = torch.full((1000,), 0.3, dtype=torch.float64)
    for function in (sm.mean_bounds, sm.histogram_bounds, sm.adaptive_bounds):
        assert float(function(equal).lower) == pytest.approx(0.3 + math.log(1000), rel=1e-12)
    near_zero = sm.gap_bounds(np.array([0.0, -40.0]))
    assert near_zero.lower == pytest.approx(math.exp(-40), rel=1e-12)
    assert near_zero.upper == pytest.approx(math.exp(-40), rel=1e-12)


@given(x=rows(masks=False), width=st.floats(1e-3, 2.0))
def test_a_histogram_is_as_narrow_as_asked(x: Tensor, width: float):
    assert bool((sm.histogram_bounds(x, width).width <= width + 1e-11).all())


@given(x=rows(), order=st.floats(1.01, 50.0))  # nearer to 1 the rounding that an end makes room for grows
def test_renyi_bounds_fall_with_their_order_and_meet_at_softmax(x: Tensor, order: float):
    p = sm.softmax(x)
    at_one, higher, highest = (sm.renyi_bounds(x, p, t).lower for t in (1.0, order, INF))
    torch.testing.assert_close(at_one, sm.logsumexp(x), atol=1e-11, rtol=1e-13)
    assert bool((higher <= at_one + 1e-9).all())
    assert bool((highest <= higher + 1e-9).all())
    positive = p.masked_fill(p == 0, 1.0)
    literal = {1.0: -(p * positive.log()).sum(-1), 2.0: -(p * p).sum(-1).log(), INF: -p.amax(-1).log()}
    for t, entropy in literal.items():
        mean = (p * x.masked_fill(x == -INF, 0.0)).sum(-1)
        torch.testing.assert_close(sm.renyi_bounds(x, p, t).lower, mean + entropy, atol=1e-11, rtol=1e-12)


def test_renyi_bounds_hold_for_any_weights_and_near_order_one():
    x = normal(40, 6, scale=5.0)
    values = truths(x)
    for t in (1.0, 1.0 + 1e-12, 1.0 + 1e-6, 1.5, 2.0, 1e6, INF):
        for p in (normal(40, 6, seed=1).exp(), sm.sparsemax(normal(40, 6, seed=2)), torch.softmax(x, -1)):
            assert_holds(sm.renyi_bounds(x, p * 7, t), values)
    assert sm.renyi_bounds(x, torch.zeros(6)).lower.tolist() == [-INF] * 40


def test_lse_is_the_weighted_mean_and_entropy_and_divergence():
    x, p = normal(50, 7), torch.softmax(normal(50, 7, seed=1), -1)
    divergence = (p * (p.log() - torch.log_softmax(x, -1))).sum(-1)
    torch.testing.assert_close(sm.renyi_bounds(x, p).lower + divergence, sm.logsumexp(x), atol=1e-12, rtol=1e-12)


@given(x=rows(masks=False), step=st.floats(-3, 3), seed=st.integers(0, 99))
def test_lipschitz_bounds_hold_for_any_other_scores_and_meet_at_a_shift(x: Tensor, step: float, seed: int):
    y = x + normal(*x.shape, seed=seed)
    interval = sm.lipschitz_bounds(x, y)
    assert_holds(interval, truths(x))
    assert bool((interval.upper - sm.logsumexp(y) <= (x - y).abs().amax(-1) + 1e-12).all())
    assert bool((sm.lipschitz_bounds(x + step, x).width <= 1e-12).all())


def test_lipschitz_bounds_see_what_only_one_side_leaves_out():
    x, y = (
        torch.tensor([[0.0, -INF], [0.0, 1.0], [0.0, -INF], [1.0, 2.0]]),
        torch.tensor([[0.0, 1], [0, -INF], [1, -INF], [-INF, -INF]]),
    )
    interval = sm.lipschitz_bounds(x, y)
    assert interval.lower[0] == -INF
    assert interval.upper[1] == INF
    assert float(interval.lower[2]) == pytest.approx(0.0, abs=1e-12)
    assert (interval.lower[3], interval.upper[3]) == (-INF, INF)
    assert_holds(interval, truths(x))


def test_the_published_adaptive_bound_fails_where_the_rest_weighs_more_than_the_maximum():
    x = np.concatenate([[1.0], np.zeros(1000)])
    published = 1.0 + math.log(1 + 1)  # k = 1 score within Δ = ½
    assert published < sm.logsumexp(x) <= sm.adaptive_bounds(x, 0.5).upper


@given(x=rows())
def test_bounds_take_the_tightest_ends_and_say_whose_they_are(x: Tensor):
    names = ("basic", "mean", "gap", "adaptive", "histogram")
    functions = {name: BOUNDS[name](x) for name in names}
    tightest = sm.bounds(x)
    for row in range(len(x)):
        assert tightest.lower[row] == max(interval.lower[row] for interval in functions.values())
        assert tightest.upper[row] == min(interval.upper[row] for interval in functions.values())
        assert tightest.lower[row] == functions[tightest.lower_from[row]].lower[row]
        assert tightest.upper[row] == functions[tightest.upper_from[row]].upper[row]
    assert sm.bounds(x[0], among=("mean", "basic")).lower_from in ("mean", "basic")


def test_numpy_gives_numpy_and_integers_are_promoted():
    x = normal(3, 5).numpy()
    for name, function in BOUNDS.items():
        if name in ("renyi", "shannon"):
            continue
        interval, expected = function(x), function(torch.from_numpy(x))
        assert isinstance(interval.lower, np.ndarray)
        np.testing.assert_array_equal(interval.lower, expected.lower.numpy())
        np.testing.assert_array_equal(interval.width, expected.width.numpy())
        assert isinstance(function(x[0]).upper, np.float64)
    assert sm.renyi_bounds(x, np.ones(5)).lower.dtype == np.float64
    assert sm.basic_bounds(np.array([1, 2])).lower == 2.0
    assert sm.basic_bounds(torch.tensor([1, 2])).lower.dtype == torch.get_default_dtype()


def test_wrong_use_raises_and_says_what_to_do():
    x = normal(2, 3)
    for function in (sm.basic_bounds, sm.mean_bounds, sm.gap_bounds, sm.adaptive_bounds, sm.histogram_bounds, sm.bounds):
        with pytest.raises(TypeError, match=r"must be a torch.Tensor or a numpy.ndarray, got list"):
            function([1.0])
        with pytest.raises(IndexError, match="dim must be in"):
            function(x, dim=2)
        with pytest.raises(ValueError, match="temperature must be positive"):
            function(x, temperature=0.0)
        with pytest.raises(TypeError, match="where must be boolean"):
            function(x, where=x)
    with pytest.raises(ValueError, match=r"order must be a number of at least 1, got 0.5"):
        sm.renyi_bounds(x, torch.ones(3), order=0.5)
    with pytest.raises(ValueError, match="p must be finite and not negative"):
        sm.renyi_bounds(x, -torch.ones(3))
    with pytest.raises(ValueError, match=r"p must broadcast to the scores' shape \(2, 3\), got \(4,\)"):
        sm.renyi_bounds(x, torch.ones(4))
    with pytest.raises(ValueError, match="k must be an int of at least 1, got 0"):
        sm.gap_bounds(x, 0)
    with pytest.raises(ValueError, match="gap must be a finite number of at least 0, or None for log n, got -1"):
        sm.adaptive_bounds(x, -1)
    with pytest.raises(ValueError, match="width must be from 1e-6 nats, and finite, got 0"):
        sm.histogram_bounds(x, 0)
    with pytest.raises(ValueError, match=r"y must have the scores' shape \(2, 3\), got \(3,\)"):
        sm.lipschitz_bounds(x, x[0])
    for among in ((), ("basic", "best"), "basic"):
        with pytest.raises(ValueError, match="among must be a sequence of names from basic, mean, gap, adaptive, histogram"):
            sm.bounds(x, among=among)
