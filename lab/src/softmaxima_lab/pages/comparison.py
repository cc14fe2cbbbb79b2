"""The report of a comparison with seeds: columns, sentences, figures, and the page, which needs no network."""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Generic, Protocol

import plotly.graph_objects as go

from softmaxima_lab import wording
from softmaxima_lab.compare.differences import LEVEL
from softmaxima_lab.compare.engine import (
    COST,
    Comparison,
    Finding,
    R,
    Study,
    T,
    Task,
    Verdict,
    compare,
    difference,
    pace,
    total_steps,
)
from softmaxima_lab.compare.record import as_csv, as_json, as_text
from softmaxima_lab.compare.settings import Settings
from softmaxima_lab.compare.verdicts import Named, interval, paces
from softmaxima_lab.pages.columns import Column, markdown_table
from softmaxima_lab.pages.documents import Block, Entry, Picture
from softmaxima_lab.pages.figures import (
    GREY,
    SAME,
    SYMBOLS,
    Figure,
    Point,
    Priced,
    cost_plot,
    cut_note,
    gain_plot,
    reading_of_gains,
    same_note,
)
from softmaxima_lab.pages.page import choice, document, facts, figure, page_table, sentences
from softmaxima_lab.wording import listed, rows

Marks = Mapping[str, Mapping[str, str]]  # a colour and a symbol for each result


@dataclass(frozen=True)
class Report(Generic[T, R]):
    """What the report of a comparison has of its own."""

    comparison: Comparison[T, R]
    heading: str
    lead: str
    columns: Callable[[Finding[T, R]], Sequence[Column[R]]]
    figures: Callable[[Finding[T, R]], Sequence[Figure | None]]
    caption: Callable[[Finding[T, R]], str]  # what some of the rows are
    settings: Callable[[Study[T, R]], Mapping[str, str]]  # what was trained, besides data, seeds and versions
    of_bar: Callable[[R], str]  # what there is to say of a bar that is not trained
    first: Callable[[Finding[T, R], R], Sequence[str]] = lambda finding, result: ()  # what a result's sentence begins with
    last: Callable[[Finding[T, R], R], Sequence[str]] = lambda finding, result: ()  # and what it ends with
    numbers: str = "scores"  # that a training gives, which are none where it diverges
    few_steps: str = "few steps show what is learnt fast"
    reservations: Callable[[Study[T, R], Finding[T, R]], Sequence[str]] = lambda study, finding: ()  # besides few seeds
    note: Callable[[Finding[T, R]], str] = lambda finding: ""  # on a table, beside its caption
    sections: Callable[[Finding[T, R]], Sequence[str]] = lambda finding: ()  # of a page, after the table
    besides: Callable[[Finding[T, R]], Sequence[str]] = lambda finding: ()  # after the table in the docs


# What is said -------------------------------------------------------------------------------------------------------------


def note(report: Report[T, R], finding: Finding[T, R], shown: Sequence[Column[R]]) -> str:
    """On the columns of a task that are shown."""
    found, shows_same = [], any(column.cell(result) == SAME for column in shown for result in finding.results)
    for question in finding.task.questions:
        gains = [finding.gain(result, question) for result in finding.results if result is not finding.softmax]
        found.append(cut_note(gains, question.metric))
        if shows_same and any(gain.same for gain in gains):
            reached = [run.reached for run in finding.softmax.runs]
            found.append(same_note(min(each.rows[question.measure] for each in reached), finding.family(question)))
    return " ".join(dict.fromkeys(filter(None, (*found, report.note(finding)))))


def sentence(report: Report[T, R], finding: Finding[T, R], result: R) -> str:
    """What there is to say of a result."""
    if result.candidate is None:
        return report.of_bar(result)
    if result.diverged:
        steps, seeds = listed(list(map(str, result.diverged))), f"{len(result.diverged)} of {len(result.runs)} seeds"
        return f"It diverged with {seeds}, at step {steps}: its loss or its {report.numbers} were no numbers."
    words = [*report.first(finding, result), *_not_shown(finding, result)]
    if result is finding.softmax:
        words.append("what the others are compared with")
    elif finding.softmax.diverged:
        words.append("nothing to compare with, for softmax diverged")
    else:
        words += _compared(finding, result)
    return wording.sentence("; ".join((*words, *report.last(finding, result))))


def _not_shown(finding: Finding[T, R], result: R) -> list[str]:
    """Which bars others beat, and this one does not for certain."""
    asked = [question for question in finding.task.questions if not result.is_bar and finding.is_learnt(question)]
    found = {question.metric.words: bars for question in asked if (bars := finding.unbeaten(result, question))}
    bars = listed(list(dict.fromkeys(bar for own in found.values() for bar in own)), "or")
    return [f"not known to have a better {listed(list(found), 'or')} than {bars}"] if found else []


def _compared(finding: Finding[T, R], result: R) -> list[str]:
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


def reservations(report: Report[T, R], study: Study[T, R], finding: Finding[T, R], verdict: Verdict[R]) -> list[str]:
    """Why a verdict is a first one; of what recommends nothing, with the first question of a task alone."""
    settings, seeds = study.settings, len(finding.softmax.runs)
    recommends = verdict.taken is not None and verdict.taken is not finding.softmax
    if not recommends and verdict is not finding.verdicts[0]:
        return []
    found = [f"Partial: interrupted after {seeds} of {settings.seeds} seeds."] if seeds < settings.seeds else []
    if settings.quick:
        found.append(
            f"Made with --quick: {rows(settings.steps, 'step')}, {rows(settings.seeds, 'seed')}. It is a first look: "
            f"{report.few_steps}, and few seeds show only enormous differences."
        )
    if recommends and (unseen := 0.9**seeds) > LEVEL:
        often = f"{100 * unseen:.0f} times of 100, of each {study.comparison.one}"
        found.append(f"What fails with one seed in ten is not seen in {seeds} seeds {often}.")
    return [*found, *report.reservations(study, finding), *filter(None, [finding.task.doubt])]


def answer(report: Report[T, R], study: Study[T, R], finding: Finding[T, R], verdict: Verdict[R]) -> tuple[str, str, str]:
    """(what was asked, what to take, why and what speaks against it)."""
    title = verdict.question.title
    words = " ".join((verdict.reason, *reservations(report, study, finding, verdict)))
    return title[:1].upper() + title[1:], verdict.headline, words


def settings_in_words(report: Report[T, R], study: Study[T, R]) -> dict[str, str]:
    """What was trained, on what, and with what."""
    many, settings = study.comparison.many, study.settings
    left = f"; {study.done} of {study.wanted} trainings of all {many} done, interrupted" if study.partial else ""
    return {
        **{finding.task.heading: f"{finding.task.title}: {'; '.join(finding.task.notes)}" for finding in study.findings},
        **report.settings(study),
        "Seeds": f"{settings.seeds}, from {settings.seed} on{left}",
        "Left out": "; ".join(f"{name}: {why}" for name, why in study.left_out.items()),
        "Date": study.date,
        "Versions": ", ".join(f"{name} {version}" for name, version in study.versions.items()),
        "Command": study.command,
    }


def spoken(task: Task) -> str:
    """A task's name within a sentence."""
    return task.heading if task.heading.isupper() else task.name


def training_in_words(study: Study[T, R], besides: str = "") -> str:
    """Steps, batches and rates."""
    tasks = [finding.task for finding in study.findings]
    batches = listed([f"{task.batch} rows at a rate of up to {task.rate:g} for {spoken(task)}" for task in tasks])
    return f"{study.settings.steps} steps of Adam, in batches of {batches}; the rate rises and falls to 0{besides}"


# Figures ------------------------------------------------------------------------------------------------------------------


class Recommends(Protocol):
    """What was found, with the result that is recommended."""

    @property
    def taken(self) -> Any: ...


def label_of(found: Recommends, result: Named) -> str:
    """The result's name, what is recommended in bold."""
    name = html.escape(result.name, quote=False)
    return f"<b>{name}</b>" if result is found.taken else name


def marks_of_families(finding: Finding[T, R], colours: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """A colour and a symbol for each result: a kind of candidates has a colour, and a symbol tells what shares it apart."""
    found, used = {}, Counter[str]()
    for result in finding.results:
        colour = colours[result.candidate.kind] if result.candidate else GREY
        found[result.name] = {"color": colour, "symbol": SYMBOLS[used[colour] % len(SYMBOLS)] if result.candidate else "x"}
        used[colour] += 1
    return found


def came_to_numbers(finding: Finding[T, R]) -> list[R]:
    """What was trained and did so with every seed."""
    return [result for result in finding.trained if not result.diverged]


def difference_figures(finding: Finding[T, R], what: str, marks: Marks, legend: Mapping[str, str]) -> list[Figure]:
    """For each question the differences to softmax with their intervals."""
    found = []
    for question in finding.task.questions:
        metric = question.metric
        others = [r for r in finding.results if r is not finding.softmax and not math.isnan(getattr(r, metric.attribute))]
        gains = {result.name: finding.gain(result, question) for result in others}
        others.sort(key=lambda result: -gains[result.name].mean)
        points = [Point(label_of(finding, result), marks[result.name], gains[result.name]) for result in others]
        again = f"Read as the differences above; here {what} are judged {question.title}."
        found.append(
            Figure(
                f"{finding.task.name}-{question.measure.replace(' ', '-')}",
                f"{finding.task.heading}: differences to softmax in {metric.words}",
                again if found else reading_of_gains(what, "seeds"),
                gain_plot(points, metric),
                legend,
            )
        )
    return found


def cost_figure(
    finding: Finding[T, R],
    comparison: Comparison[T, R],
    marks: Marks,
    legend: Mapping[str, str],
    axis: str,
    shown: str,
    down: str,
    names_all: bool = False,
) -> Figure:
    """Quality by the first question against the time of a step; `down` is what is further down, where less is better."""
    results, question = came_to_numbers(finding), finding.task.questions[0]

    def value(result: R) -> float:
        found = getattr(result, question.metric.attribute)
        return found if question.metric.sign < 0 else 100 * (1 - found)

    def better(one: int, other: int) -> bool:
        return difference(results[one], results[other], question, len(results) - 1).better

    def faster(one: int, other: int) -> bool:
        return pace(results[one], results[other], len(results) - 1).low > COST.least_gain

    def priced(result: R) -> Priced:
        named, milliseconds = names_all or result is finding.softmax, 1000 * result.step_seconds
        return Priced(result.name, label_of(finding, result), marks[result.name], milliseconds, value(result), named)

    return front_figure(
        f"{finding.task.name}-cost",
        f"{finding.task.heading}: time against quality",
        f"To the left trains faster, further down has {down} on held-out rows; both axes are logarithmic.",
        (comparison.one, comparison.many, "seeds"),
        cost_plot(list(map(priced, results)), axis, shown, better, faster),
        names_all,
        legend,
    )


def front_figure(
    id: str,
    title: str,
    axes: str,
    words: tuple[str, str, str],
    plot: go.Figure,
    names_all: bool = False,
    legend: Mapping[str, str] | None = None,
) -> Figure:
    """A plot of time against quality with how to read it; `words`: one and many of what is compared, and what pairs them."""
    one, many, each = words
    reading = (
        f"{axes} Filled are the {many} to which no other is preferable, being better in one and not worse in the other, both for "
        f"certain: where the interval of their difference over {each} leaves out 0 (95 %, for all others of a {one} together), in "
        f"time by {100 * math.expm1(COST.least_gain):.0f} % at least. The dotted line joins those that are lower than all faster "
        f"ones; what is filled above it may be as good.{'' if names_all else ' These and softmax are named.'}"
    )
    return Figure(id, title, reading, plot, legend or {})


# The page -----------------------------------------------------------------------------------------------------------------


def page(report: Report[T, R], study: Study[T, R]) -> str:
    """The page, complete in itself."""
    drawn = [[shown for shown in report.figures(finding) if shown is not None] for finding in study.findings]
    choices = [
        choice(
            verdict.headline,
            verdict.reason,
            reservations(report, study, finding, verdict),
            label=f"{finding.task.heading}: {verdict.question.title}",
        )
        for finding in study.findings
        for verdict in finding.verdicts
    ]
    tasks = zip(study.findings, drawn, strict=True)
    return document(
        f"softmaxima compare {study.comparison.name}",
        report.heading,
        report.lead,
        (
            *choices,
            facts("What was trained", settings_in_words(report, study)),
            *(section for finding, own in tasks for section in _sections(report, finding, own)),
        ),
        [shown for own in drawn for shown in own],
    )


def _sections(report: Report[T, R], finding: Finding[T, R], drawn: Sequence[Figure]) -> list[str]:
    """Of a task: its table with what its columns are, what is said of each result and of times, and its figures."""
    one, task, shown = report.comparison.one, finding.task, report.columns(finding)
    caption = f"{report.caption(finding)} {note(report, finding, shown)}".strip()
    meanings = {f"{column.heading} ({column.short})": column.meaning for column in shown if column.meaning}
    said = {result.name: sentence(report, finding, result) for result in finding.results}
    title = f"{task.heading}: all {report.comparison.many}, the best first"
    return [
        page_table(f"{task.name}-{report.comparison.many}", title, shown, finding.results, finding.taken, caption),
        facts(f"{task.heading}: what the columns are", meanings),
        *report.sections(finding),
        sentences(f"{task.heading}: {one} by {one}", said, times(finding)),
        *map(figure, drawn),
    ]


def markdown(report: Report[T, R], study: Study[T, R]) -> str:
    """The tables, what they say, and what their rows and columns are, for a page of the docs."""
    parts = []
    for finding in study.findings:
        parts.append(markdown_table(finding.task.name, report.columns(finding), finding.results, finding.taken))
        for verdict in finding.verdicts:
            title, headline, words = answer(report, study, finding, verdict)
            parts.append(f"{title}: **{headline}.** {words}")
        parts += filter(None, (times(finding), *report.besides(finding)))
    return "\n\n".join((*parts, explanations(report, study)))


def explanations(report: Report[T, R], study: Study[T, R]) -> str:
    """What the rows and columns of the tables are, each once."""
    told, headings = dict[str, None](), dict[str, dict[str, None]]()
    for finding in study.findings:
        shown = report.columns(finding)
        told[f"{report.caption(finding)} {note(report, finding, shown)}".strip()] = None
        for column in shown:
            if column.meaning:
                headings.setdefault(column.meaning, {})[f"*{column.heading}*"] = None
    return "\n".join((" ".join(told), "", *(f"- {'; '.join(same)}: {meaning}" for meaning, same in headings.items())))


def files(report: Report[T, R]) -> dict[str, Callable[[Study[T, R]], str]]:
    """What is written, by size: a disk may be nearly full."""
    return {"results.json": as_text, "results.csv": as_csv, "report.html": partial(page, report)}


# The documents ------------------------------------------------------------------------------------------------------------


def documented(
    report: Report[T, R],
    about: str,
    tasks: Callable[[], Sequence[T]],
    settings: Settings,
    data: str,
    pictures: Callable[[Finding[T, R]], Sequence[str | Picture]] = lambda finding: (),
) -> Entry[Study[T, R]]:
    """The entry of a comparison, whose pictures, tables and explanations are one block."""
    comparison, tasks = report.comparison, cache(tasks)
    name = f"compare-{comparison.name}"

    def blocks(study: Study[T, R]) -> list[Block]:
        drawn = [part for finding in study.findings for part in pictures(finding)]
        return [Block(name, (*drawn, markdown(report, study)), note="", after=f" All numbers: [{data}]({data}).")]

    return Entry(
        name,
        about,
        blocks,
        lambda told: compare(comparison, tasks(), settings, lambda steps: told(steps=steps)),
        data,
        facts=partial(as_json, runs=False),
        steps=lambda: total_steps(comparison, tasks(), settings),
        threads=1,
    )
