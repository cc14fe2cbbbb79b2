"""Bounds of scores that come in blocks: the truth is inside whatever the cuts, and they are as tight as those of rows in memory."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_bounds import assert_holds, truths
from torch import Tensor

import softmaxima as sm
from conftest import normal, rows
from softmaxima.lse.bounds.intervals import BOUNDS

INF, NAN = math.inf, math.nan


def summary_of(x: Tensor, cuts: list[int], tau: float = 1.0) -> sm.ScoreSummary:
    summary = sm.ScoreSummary(tau)
    for start, stop in pairwise([0, *sorted(cuts), len(x)]):
        summary = summary.update(x[start:stop])
    return summary


@given(x=rows(), tau=st.sampled_from([1.0, 0.3, 7.0]), cuts=st.lists(st.integers(0, 8), max_size=4))
def test_every_bound_holds_the_truth_however_the_scores_are_cut(x: Tensor, tau: float, cuts: list[int]):
    (value,) = truths(x[:1], tau)
    summary = summary_of(x[0], [min(cut, x.shape[-1]) for cut in cuts], tau)
    assert summary.n == x.shape[-1]
    for bound in BOUNDS:
        interval = summary.interval(bound)
        assert_holds(interval, [value])
        assert interval.lower_from == interval.upper_from == bound
    assert_holds(summary.bounds(), [value])


@given(x=rows(), data=st.data())
def test_scores_that_are_counted_are_so_many(x: Tensor, data: st.DataObject):
    often = data.draw(st.lists(st.integers(0, 20), min_size=x.shape[-1], max_size=x.shape[-1]))
    counted, each = sm.ScoreSummary(0.3).update(x[0], torch.tensor(often)), sm.ScoreSummary(0.3)
    each = each.update(x[0].repeat_interleave(torch.tensor(often)))
    assert (counted.n, counted._finite, counted._at_maximum) == (each.n, each._finite, each._at_maximum)
    np.testing.assert_array_equal(counted._counts, each._counts)
    np.testing.assert_array_equal(counted._largest, each._largest)
    np.testing.assert_allclose(counted._mean, each._mean, rtol=1e-13)


@pytest.mark.parametrize("offsets", [(0.0, 1e4), (1e4, 0.0), (-800.0, 0.0, 900.0), (1e-9, 30.0, 29.99), (-1e308, 1e308)], ids=str)
def test_a_maximum_that_moves_loses_nothing(offsets: tuple[float, ...]):
    parts = [normal(200, seed=k) + offset for k, offset in enumerate(offsets)]
    x = torch.cat(parts)
    summary = sm.ScoreSummary()
    for part in parts:
        summary = summary.update(part)
    (value,) = truths(x[None])
    for bound in BOUNDS:
        assert_holds(summary.interval(bound), [value])
    if max(map(abs, offsets)) < 1e5:
        assert float(summary.interval("histogram").width) <= 0.0501


def test_the_bounds_are_those_of_the_row_but_for_the_edges_of_bins():
    x = normal(50_000, scale=2.0)
    summary = summary_of(x, [17, 20_000])
    for bound, same in (("basic", 1e-12), ("mean", 1e-9), ("gap", 1e-12), ("adaptive", 0.1), ("histogram", 0.06)):
        interval, row = summary.interval(bound), sm.bounds(x, among=(bound,))
        assert float(interval.lower) == pytest.approx(float(row.lower), abs=same)
        assert float(interval.upper) == pytest.approx(float(row.upper), abs=same)
    tightest = summary.bounds()
    assert float(tightest.lower) == max(float(summary.interval(bound).lower) for bound in BOUNDS)
    assert summary.interval(tightest.upper_from).upper == tightest.upper


def test_nothing_infinities_and_nan():
    empty = sm.ScoreSummary()
    assert empty.bounds().lower == empty.bounds().upper == empty.update(np.array([-INF, -INF])).bounds().upper == -INF
    infinite = empty.update(np.array([1.0, INF])).update(np.zeros(3))
    assert infinite.bounds().lower == infinite.bounds().upper == INF
    for blocks in ([NAN], [INF, NAN], [NAN, INF], [0.0, NAN, 1.0]):
        summary = empty
        for score in blocks:
            summary = summary.update(np.array([score]))
        assert math.isnan(summary.interval("basic").lower)
        assert math.isnan(summary.interval("histogram").upper)


def test_wrong_use_is_told():
    with pytest.raises(ValueError, match="temperature must be positive and finite"):
        sm.ScoreSummary(temperature=-1.0)
    with pytest.raises(TypeError, match="complex"):
        sm.ScoreSummary().update(np.array([1j]))
    with pytest.raises(TypeError, match="counts must be integers, got torch"):
        sm.ScoreSummary().update(np.zeros(2), np.ones(2))
    with pytest.raises(ValueError, match=r"counts must be of the shape of x, \(2,\), got \(3,\)"):
        sm.ScoreSummary().update(np.zeros(2), np.ones(3, int))
    with pytest.raises(ValueError, match="counts must be at least 0, got -1"):
        sm.ScoreSummary().update(np.zeros(2), np.array([1, -1]))
    with pytest.raises(ValueError, match="bound must be one of basic, mean, gap, adaptive, histogram, got 'best'"):
        sm.ScoreSummary().interval("best")


def test_integers_and_every_shape_are_scores():
    x = np.arange(24).reshape(2, 3, 4)
    assert sm.ScoreSummary().update(x).bounds().lower == sm.ScoreSummary().update(x.ravel().astype(float)).bounds().lower
