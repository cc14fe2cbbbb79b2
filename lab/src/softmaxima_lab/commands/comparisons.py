"""What `softmaxima compare attention`, `heads` and `estimators` share: options, how they run, and how they show what was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from softmaxima_lab.commands import pieces
from softmaxima_lab.commands.terminal import Output, check_file, fail, show_table

if TYPE_CHECKING:
    from softmaxima_lab.compare.engine import Study
    from softmaxima_lab.compare.settings import Settings
    from softmaxima_lab.pages.comparison import Report

    S = TypeVar("S", bound=Settings)

TextFile = Annotated[
    Path | None, Parameter(help="A text in UTF-8 to learn, of 10000 characters or more. Without it: the help of Python.")
]
FirstSeed = Annotated[int, Parameter(help="The first one; the same seeds give the same table, times and memory aside.")]
Out = Annotated[Path, Parameter(help="Directory for report.html, results.json and results.csv.")]
Resume = Annotated[bool, Parameter(help="Go on with what was interrupted in --out, or show what is done there.", negative=())]
Json = Annotated[bool, Parameter(help="Print the numbers as JSON in place of the tables.", negative=())]
Quick = Annotated[bool, Parameter(help="A first look: few seeds, and few steps.", negative=())]


def check_text(text: Path | None, task: str, tasks_without: Sequence[str]) -> None:
    """Fail where a text is given to a task that reads none, or is no file."""
    if text is None:
        return
    if task in tasks_without:
        fail(f"--text: no text is read with --task {task}; leave one of them out")
    check_file(text, ", a text in UTF-8")


def settings_of(kind: type[S], usual: tuple[int, int], seeds: int | None, steps: int | None, **others: Any) -> S:
    """Settings with the usual seeds and steps, where none are given."""
    of_seeds, of_steps = usual
    return kind(of_seeds if seeds is None else seeds, of_steps if steps is None else steps, **others)


def check_data(option: str, asked: Sequence[str], left_out: Mapping[str, str]) -> None:
    """Fail where the data of all tasks are missing."""
    if left_out.keys() >= set(asked):
        fail("; ".join(f"{option} {name}: {why}" for name, why in left_out.items()))


def check_out(out: Path, name: str, resume: bool) -> None:
    """Fail where results would be lost, or cannot be written."""
    pieces.claim(out, f"compare {name}", resume)


def run(
    report: Report, tasks: Sequence[Any], settings: Settings, out: Path, resume: bool, json: bool, left_out: Mapping[str, str]
) -> None:
    """Train seed after seed, and after each write what is known; then show it."""
    from softmaxima_lab.compare import engine
    from softmaxima_lab.compare.record import read_trainings
    from softmaxima_lab.pages.comparison import files

    comparison, many = report.comparison, report.comparison.many
    done = read_trainings(out / pieces.NUMBERS, comparison, tasks, settings) if resume else []

    def place(number: int) -> str:
        seed, task = divmod(number, len(tasks))
        return f"{tasks[task].name}, seed {seed + 1} of {settings.seeds}"

    given = (comparison, tasks, settings)
    trainings = pieces.Pieces(
        wanted=settings.seeds * len(tasks),
        one=f"training of all {many}",
        many=f"trainings of all {many}",
        trained=partial(engine.trained, *given),
        steps=partial(engine.total_steps, *given),
        seconds=partial(engine.seconds_of_all, *given),
        place=place,
        summary=lambda done: engine.summary(*given, done, pieces.command_given(), left_out),
        files=files(report),
    )
    introduction = [f"{task.name}: {task.title}; {'; '.join(task.notes)}" for task in tasks]
    absent = [f"{name} is left out: {why}" for name, why in left_out.items()]
    pieces.run(trainings, done, out, partial(show, report), [*introduction, *absent], json)


def show(report: Report, study: Study, console: Console | None = None) -> None:
    """A table and what to take for each task, and what rows and columns are."""
    from softmaxima_lab.pages.comparison import answer, note

    console = console or Output()
    meanings: dict[str, str] = {}
    for finding in study.findings:
        taken = [result is finding.taken for result in finding.results]
        shown = show_table(console, finding.task.name, report.columns(finding), finding.results, taken)
        meanings |= {column.short: column.meaning for column in shown if column.meaning}
        for verdict in finding.verdicts:
            title, headline, words = answer(report, study, finding, verdict)
            console.print(Text.assemble(f"{title}: ", (headline, "bold"), f". {words}"))
        if told := note(report, finding, shown):
            console.print(Text(told, style="dim"))
    console.print()
    for told in dict.fromkeys(report.caption(finding) for finding in study.findings):
        console.print(Text(told, style="dim"))
    for short, meaning in meanings.items():
        console.print(Text(f"{short}: {meaning}", style="dim"))
