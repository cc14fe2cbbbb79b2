"""What the reports of compare-heads and compare-estimators share: columns, and what is said of differences."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from softmaxima_lab.compare.studies import COST, Finding, Question, R, Study, T, Verdict
from softmaxima_lab.compare.verdicts import interval, paces
from softmaxima_lab.pages.columns import Column, markdown_table
from softmaxima_lab.pages.figures import TWICE, Figure, Point, gain_cell, gain_plot, reading_of_gains
from softmaxima_lab.pages.page import choice
from softmaxima_lab.wording import listed

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


def leading_column(finding: Finding[T, R], heading: str, short: str, shown: str, scale: float, meaning: str) -> Column[R]:
    """What the table is sorted by."""
    metric = finding.task.questions[0].metric

    def value(result: R) -> float:
        return scale * getattr(result, metric.attribute)

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
        return gain_cell(finding.pace(result), COST) if result.entry and result is not finding.softmax else ""

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


def compared(finding: Finding[T, R], result: R) -> list[str]:
    """With softmax, by each question."""
    told: dict[str, list[str]] = {"same": [], "better": [], "worse": [], "open": []}
    for question in finding.task.questions:
        metric, gain = question.metric, finding.gain(result, question)
        if gain.same:
            told["same"].append(metric.words)
        elif gain.better or gain.worse:
            by = "," if metric.by_ratio else " by"
            told["better" if gain.better else "worse"].append(f"in {metric.words}{by} {interval(gain, metric)}")
        else:
            told["open"].append(f"in {metric.words}, {interval(gain, metric)}")
    words = [f"{how} than softmax {listed(told[how])}" for how in ("better", "worse") if told[how]]
    if told["same"]:
        words.append(f"the same {listed(told['same'])} as softmax on every row")
    if told["open"]:
        words.append(f"cannot be told from softmax {listed(told['open'])}")
    return words


def times(finding: Finding[T, R]) -> str:
    """With which a step takes another time than with softmax, for certain and by more than is worth a word."""
    return paces({result.name: finding.pace(result) for result in finding.others})


def label_of(finding: Finding[T, R], result: R) -> str:
    """The result's name, what is recommended in bold."""
    name = html.escape(result.name, quote=False)
    return f"<b>{name}</b>" if result is finding.taken else name


def differences_figure(
    finding: Finding[T, R],
    heading: str,
    question: Question,
    what: str,
    own: Mapping[str, dict[str, str]],
    legend: Mapping[str, str],
) -> Figure:
    """Differences to softmax of what is compared, with their intervals, in its own marks."""
    metric = question.metric
    others = [r for r in finding.results if r is not finding.softmax and not math.isnan(getattr(r, metric.attribute))]
    others.sort(key=lambda result: -finding.gain(result, question).mean)
    points = [Point(label_of(finding, result), own[result.name], finding.gain(result, question)) for result in others]
    reading = f"Read as the differences above; here {what} are judged {question.title}."
    return Figure(
        f"{finding.task.name}-{question.measure.replace(' ', '-')}",
        f"{heading}: differences to softmax in {metric.words}",
        reading_of_gains(what, "seeds") if question is finding.task.questions[0] else reading,
        gain_plot(points, metric),
        legend,
    )


def begun(words: str) -> str:
    """As a sentence begins."""
    return words[:1].upper() + words[1:]


def answer(verdict: Verdict, reservations: Sequence[str]) -> tuple[str, str, str]:
    """(what was asked, what to take, why and what speaks against it)."""
    return begun(verdict.question.title), verdict.headline, " ".join((verdict.reason, *reservations))


def choices(study: Study, reservations: Callable[[Any, Any, Any], Sequence[str]]) -> list[str]:
    """What to take by each question, as sections of a page."""
    return [
        choice(
            verdict.headline,
            verdict.reason,
            reservations(study, finding, verdict),
            label=f"{finding.task.heading}: {verdict.question.title}",
        )
        for finding in study.findings
        for verdict in finding.verdicts
    ]


def meanings(shown: Sequence[Column[R]]) -> dict[str, str]:
    """Of columns, by their headings, which have a short one for terminals."""
    return {f"{column.heading} ({column.short})": column.meaning for column in shown if column.meaning}


def markdown_of(
    study: Study,
    finding: Finding[T, R],
    columns: Sequence[Column[R]],
    reservations: Callable[[Any, Any, Any], Sequence[str]],
) -> list[str]:
    """The table of a task and what it says, for a page."""
    answers = [answer(verdict, reservations(study, finding, verdict)) for verdict in finding.verdicts]
    said = [f"{title}: **{headline}.** {words}" for title, headline, words in answers]
    return [markdown_table(finding.task.name, columns, finding.results, finding.taken), *said, *filter(None, [times(finding)])]
