"""Columns that the tables of comparisons with seeds share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from softmaxima_lab.compare.engine import COST, Finding, Question, R, Result, T
from softmaxima_lab.pages.columns import Column
from softmaxima_lab.pages.figures import TWICE, gain_cell

BETTER = (
    "The mean over seeds of the difference to softmax with the same seed, and half of its interval or its ends, so wide that "
    "those of all in a column together hold at 95 %; more is better. ▲ is better and ▼ worse, for 0 is not in it (t, "
    "Bonferroni; the variance is that over seeds and that over held-out rows, in batches of neighbours)."
)
ALIKE = "As the first of the differences to softmax."


def name_column(one: str) -> Column[Any]:
    return Column(one, one, lambda result: result.name, lambda result: result.name, best_first="ascending")


def value_column(
    heading: str,
    short: str,
    shown: str,
    value: Callable[[R], float],
    spare: int,
    meaning: str = "",
    best_first: str = "ascending",
) -> Column[R]:
    return Column(heading, short, lambda result: cell_of(shown, value(result)), value, spare, best_first, meaning=meaning)


def leading_column(finding: Finding[T, R], heading: str, short: str, shown: str, meaning: str = "") -> Column[R]:
    """What the table is sorted by."""
    metric = finding.task.questions[0].metric

    def value(result: R) -> float:
        return metric.scale * getattr(result, metric.attribute)

    def cell(result: R) -> str:
        return "diverged" if result.diverged else cell_of(shown, value(result))

    return Column(heading, short, cell, value, 0, "ascending" if metric.sign < 0 else "descending", True, meaning)


def better_column(finding: Finding[T, R], question: Question, heading: str, short: str, spare: int, meaning: str) -> Column[R]:
    """The difference to softmax."""

    def cell(result: R) -> str:
        known = result is not finding.softmax and not math.isnan(getattr(result, question.metric.attribute))
        return gain_cell(finding.gain(result, question), question.metric) if known else ""

    def value(result: R) -> float:
        return 0.0 if result is finding.softmax else finding.gain(result, question).mean

    return Column(heading, short, cell, value, spare, meaning=meaning)


def step_columns(finding: Finding[T, R], what: str, shown: str, spare: int) -> tuple[Column[R], ...]:
    """The time of a step, and how much faster it is than with softmax."""

    def faster(result: R) -> str:
        return gain_cell(finding.pace(result), COST) if result.candidate and result is not finding.softmax else ""

    return (
        value_column(
            "step, ms",
            "ms",
            shown,
            lambda result: 1000 * result.step_seconds,
            spare,
            f"A step of training of the whole network, in turns with the other {what}, on one thread: the median of each seed, and "
            "of these the geometric mean.",
        ),
        Column(
            f"step faster than softmax by, %{TWICE}",
            "faster %",
            faster,
            lambda result: finding.pace(result).mean,
            8,
            meaning="+50 is half the time and −100 twice the time, with an interval as of the differences.",
        ),
    )


def cell_of(shown: str, value: float) -> str:
    if math.isnan(value):
        return ""
    return "∞" if math.isinf(value) else shown.format(value)


def percent(measure: str) -> Callable[[Result], float]:
    """A measure that is a share."""
    return lambda result: 100 * result.mean(measure)
