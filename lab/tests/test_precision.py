"""The experiment on precision: what it measures is right, ours keeps its promise, and its table says so."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch

from softmaxima_lab.pages.precision import CAPTION, cell, markdown_table
from softmaxima_lab.studies import precision as experiment


@pytest.fixture(scope="module")
def measured() -> experiment.Precision:
    return experiment.precision(experiment.QUICK_EQUAL_TERMS)


def test_compensated_sums_are_within_one_ulp_on_every_row(measured: experiment.Precision):
    for result in measured.results:
        error = result.ulps["softmaxima compensated"]
        assert error is not None
        assert error < 0.51, result


def test_native_sums_are_within_two_ulp_but_where_terms_or_parts_cancel(measured: experiment.Precision):
    for result in measured.results:
        if "weights" not in result.title and "log" not in result.title:
            error = result.ulps["softmaxima"]
            assert error is not None
            assert error < 2, result


def test_what_a_peer_cannot_do_is_left_empty(measured: experiment.Precision):
    for result in measured.results:
        assert (result.ulps["torch"] is None) == ("weights" in result.title)
        assert (result.ulps["scipy"] is None) == (result.dtype == "bfloat16")


def test_the_exact_value_is_exact():
    x = torch.tensor([0.0, -40.0], dtype=torch.float64)
    assert float(experiment.exact_logsumexp(x, None)) == pytest.approx(4.248354255291589e-18, rel=1e-15)
    ones = torch.ones(3, dtype=torch.float64)
    value = experiment.exact_logsumexp(ones, torch.tensor([1.0, -1.0, -2.0], dtype=torch.float64))
    assert float(value) == pytest.approx(1 + math.log(2), rel=1e-15)


def test_the_next_number_is_one_ulp_away(dtype: torch.dtype):
    for number in (1.25, 1e-3, -700.0, 0.0):
        value = torch.tensor(number, dtype=dtype)
        above = torch.nextafter(value, torch.tensor(math.inf, dtype=dtype))
        assert experiment._ulps(above, mpmath.mpf(float(value)), dtype) == 1
        assert experiment._ulps(value, mpmath.mpf(float(value)), dtype) == 0


def test_the_table_has_a_line_for_each_row_and_a_column_for_each_method(measured: experiment.Precision):
    head, rule, *lines = markdown_table(measured.results).splitlines()
    assert all(method in head for method in experiment.METHODS)
    assert len(lines) == len(measured.results)
    assert {line.count("|") for line in (head, rule, *lines)} == {len(experiment.METHODS) + 4}
    assert "mpmath" in CAPTION
    assert cell(0.25) == "0.25"


def test_without_mpmath_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(experiment, "_optional", lambda module: None)
    with pytest.raises(experiment.InputError, match="pip install mpmath"):
        experiment.precision(10)
