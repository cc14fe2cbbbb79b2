"""The picture and the table of estimators show what was measured, in the style of what was claimed."""

from __future__ import annotations

import math

import pytest

from softmaxima.base.numbers import InputError
from softmaxima_lab.pages.estimators import certificate, coverage_table, picture
from softmaxima_lab.pages.signed_log import signed_log
from softmaxima_lab.studies.estimators import MAXIMUM_KNOWN, Work, measure_budgets, standard_subjects


@pytest.fixture(scope="module")
def works() -> list[Work]:
    return measure_budgets(standard_subjects(20_000), (300, 3000), runs=2)


def work(evaluations: float, upper: float, claim: str, source: str = "s") -> Work:
    bounded = 2 if upper < math.inf else 0
    return Work(source, "uniform", 0.1, None, evaluations, -0.5, upper, 0.1, 0.5, bounded, bounded // 2, {claim: 2})


def test_no_method_reads_more_than_its_budget(works: list[Work]):
    assert {each.method for each in works} == {"uniform", "stratified"}  # the others need a pass
    for each in works:
        assert each.budget is not None
        assert each.evaluations <= each.budget


def test_a_larger_budget_knows_more_where_the_maximum_is_known(works: list[Work]):
    for source in {each.source for each in works if each.source.endswith(MAXIMUM_KNOWN)}:
        for method in ("uniform", "stratified"):
            few, many = (each.upper - each.lower for each in works if (each.source, each.method) == (source, method))
            assert many < few


def test_nothing_to_measure_is_refused():
    with pytest.raises(InputError, match=r"need a subject, a budget and a run, got 0, 6 and 10"):
        measure_budgets({})


def test_the_table_counts_intervals_that_hold_the_truth():
    works = [work(100, math.inf, "none"), work(200, 0.5, "asymptotic"), work(200, 0.5, "finite-sample", f"s{MAXIMUM_KNOWN}")]
    assert coverage_table(works).splitlines() == [
        "| source | uniform |",
        "|---|---:|",
        "| s | 1 of 2, 2 open |",
        f"| s{MAXIMUM_KNOWN} | 1 of 2 |",
    ]


def test_the_picture_draws_both_ends_in_the_style_of_the_weaker_claim():
    works = [work(100, math.inf, "none"), work(200, 0.5, "asymptotic"), work(300, 0.2, "finite-sample")]
    assert certificate(works[1]) == "asymptotic"
    lines = [trace for trace in picture(works).data if trace.mode == "lines" and trace.x[0] is not None]
    assert [(trace.x, trace.line.dash, trace.y) for trace in lines] == [
        ((100, 200), "1px,3px", (signed_log(-0.5), signed_log(-0.5))),
        ((100, 200), "1px,3px", (None, signed_log(0.5))),
        ((200, 300), "4px,3px", (signed_log(-0.5), signed_log(-0.5))),
        ((200, 300), "4px,3px", (signed_log(0.5), signed_log(0.2))),
    ]
