"""What `softmaxima compare-heads` and `compare-estimators` share: how they run, and how they show what was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from softmaxima_lab.commands import pieces
from softmaxima_lab.commands.terminal import Output, show_table


def run(
    experiment: Any, report: Any, what: str, tasks: Sequence[Any], settings: Any, left_out: Mapping[str, str], done: list,
    out: Path, json: bool
) -> None:  # fmt: skip
    """Train seed after seed by the module `experiment`, and after each write what is known as `report` does; then show it."""
    given = (tasks, settings)
    trainings = pieces.of_tasks(
        tasks,
        settings.seeds,
        what,
        trained=partial(experiment.trained, *given),
        steps=partial(experiment.total_steps, *given),
        seconds=partial(experiment.seconds_of_all, *given),
        summary=lambda done: experiment.summary(*given, done, pieces.command_given(), left_out),
        files=report.FILES,
    )
    absent = [f"{name} is left out: {why}" for name, why in left_out.items()]
    pieces.run(trainings, done, out, partial(show, report), [*pieces.introduction(tasks), *absent], json)


def show(report: Any, study: Any, console: Console | None = None) -> None:
    """A table and what to take for each task, and what rows and columns are."""
    from softmaxima_lab.pages.studies import answer

    console = console or Output()
    meanings: dict[str, str] = {}
    for finding in study.findings:
        taken = [result is finding.taken for result in finding.results]
        shown = show_table(console, finding.task.name, report.columns(finding), finding.results, taken)
        meanings |= {column.short: column.meaning for column in shown if column.meaning}
        for verdict in finding.verdicts:
            title, headline, words = answer(verdict, report.reservations(study, finding, verdict))
            console.print(Text.assemble(f"{title}: ", (headline, "bold"), f". {words}"))
        if told := report.note(finding, shown):
            console.print(Text(told, style="dim"))
    console.print()
    for told in dict.fromkeys(report.caption(finding) for finding in study.findings):
        console.print(Text(told, style="dim"))
    for short, meaning in meanings.items():
        console.print(Text(f"{short}: {meaning}", style="dim"))
