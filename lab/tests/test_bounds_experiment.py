"""The experiments on bounds: they measure what they say, and verdict, tables and picture follow from what was measured."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import softmaxima as sm
from softmaxima.base.numbers import InputError
from softmaxima_lab.pages.lse_bounds import narrowing_table, picture, sparsity_table, verdict
from softmaxima_lab.pages.signed_log import signed_log
from softmaxima_lab.studies import lse_bounds
from softmaxima_lab.studies.lse_bounds import EPS, Narrowing, Placed, Result, Sparsity


@pytest.fixture(scope="module")
def result() -> Result:
    return lse_bounds.run()


def test_every_kind_of_rows_meets_every_bound(result: Result):
    kinds = [(kind, x.shape[-1]) for kind, x in lse_bounds.subjects()]
    assert [(each.rows, each.n) for each in result.narrowings if each.bound == "adaptive"] == kinds
    assert {each.bound for each in result.narrowings} == lse_bounds.BOUNDS.keys()


def test_an_interval_beside_the_truth_is_refused(monkeypatch: pytest.MonkeyPatch):
    empty = lambda x: replace(found := sm.adaptive_bounds(x), upper=found.lower)
    monkeypatch.setattr(lse_bounds, "BOUNDS", {"adaptive": empty})
    with pytest.raises(InputError, match="an interval does not hold the exact logsumexp"):
        lse_bounds.run()


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


@pytest.fixture(scope="module")
def placed() -> list[Placed]:
    return lse_bounds.place()


def test_every_interval_that_is_shown_holds_the_truth(placed: list[Placed]):
    assert len({each.rows for each in placed}) == 4
    for each in placed:
        assert each.lower <= 1e-12 * each.n, each
        assert each.upper >= -1e-12 * each.n, each


def test_the_picture_shows_every_interval(placed: list[Placed]):
    drawn = picture(placed).data
    assert len(drawn) == len(placed)
    assert [trace.x[0] for trace in drawn] == [signed_log(each.lower) for each in placed]
    assert sum("arrow-right" in trace.marker.symbol for trace in drawn) == sum(math.isinf(each.upper) for each in placed)


def test_the_table_has_a_line_for_each_kind_and_a_column_for_each_bound(result: Result):
    head, _, *lines = narrowing_table(result).splitlines()
    assert [cell.strip() for cell in head.strip("|").split("|")] == ["rows", "n", *(f"{bound}, %" for bound in lse_bounds.BOUNDS)]
    assert len(lines) == len(list(lse_bounds.subjects()))
    assert "Found: 51 to 85 %" in verdict(result)


def test_the_table_of_sparsity_shows_share_error_and_speed():
    found = [Sparsity("flat", 100, eps, 0.25, 3e-4, 0.5) for eps in EPS]
    assert sparsity_table(found).splitlines()[-1] == "| flat | 100 |" + " 25.0 %, 3e-04, 0.50× |" * len(EPS)


def test_the_larger_epsilon_leaves_out_more(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lse_bounds, "SIZES", (100,))
    found = lse_bounds.sparsify(seconds=0.0)
    for rows, n in {(each.rows, each.n) for each in found}:
        shares = [each.evaluated for each in found if (each.rows, each.n) == (rows, n)]
        assert shares == sorted(shares)
        assert all(0 < share <= 1 for share in shares)
