"""The experiment on bounds: it measures what it says, and its verdict follows from what it measured."""

from __future__ import annotations

import math

import pytest
import torch

import softmaxima as sm
from softmaxima.experiments import lse_bounds
from softmaxima.experiments.lse_bounds import Narrowing, Result


@pytest.fixture(scope="module")
def result() -> Result:
    return lse_bounds.run()


def test_every_kind_of_rows_meets_every_bound(result: Result):
    kinds = [(kind, x.shape[-1]) for kind, x in lse_bounds.subjects()]
    assert [(each.rows, each.n) for each in result.narrowings if each.bound == "adaptive"] == kinds
    assert {each.bound for each in result.narrowings} == lse_bounds.BOUNDS.keys()


def test_a_narrowing_is_the_median_of_its_rows(result: Result):
    kind, x = next(iter(lse_bounds.subjects()))
    widths = torch.stack([sm.adaptive_bounds(row).width for row in x])
    (first, *_) = result.of(kind, "adaptive")
    assert first.narrowing == pytest.approx(float((1 - widths / math.log(x.shape[-1])).median()))
    assert first.worst <= first.narrowing <= 1


def test_histograms_narrow_every_kind_to_their_width(result: Result):
    for each in result.narrowings:
        if each.bound == "histogram":
            assert each.worst >= 1 - 0.1001 / math.log(each.n)


@pytest.mark.parametrize(("found", "verdict"), [((0.6, 0.7), "holds"), ((0.6, 0.9), "holds, and more"), ((0.4, 0.7), "refuted")])
def test_the_verdict_follows_from_the_sparse_rows(found: tuple[float, ...], verdict: str):
    rows = tuple(Narrowing("sparse", 10, "adaptive", each, each) for each in found)
    assert Result((*rows, Narrowing("flat", 10, "adaptive", 0.0, 0.0))).verdict == verdict
