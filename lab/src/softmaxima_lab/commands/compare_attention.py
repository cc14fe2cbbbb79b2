"""`softmaxima compare-attention`: trains a Transformer with every map in softmax's place, and tells which to take."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from softmaxima_lab.commands import pieces
from softmaxima_lab.commands.terminal import (
    Output,
    check_file,
    check_named,
    check_writable,
    fail,
    names,
    show_table,
)

if TYPE_CHECKING:
    from softmaxima_lab.compare.attention import Study
    from softmaxima_lab.compare.attention_plan import Settings, Variant
    from softmaxima_lab.compare.attention_tasks import Task


def compare_attention(
    *,
    text: Annotated[
        Path | None, Parameter(help="A text in UTF-8 to learn, of 10000 characters or more. Without it: the help of Python.")
    ] = None,
    task: Annotated[
        Literal["text", "digits", "both"],
        Parameter(help="The next byte of a text, or which digit a picture of scikit-learn's shows."),
    ] = "both",
    maps: Annotated[list[str] | None, Parameter(help="Only these maps: names, separated by commas.", negative=())] = None,
    seeds: Annotated[
        int | None, Parameter(help="Trainings of each map: 5, or 2 with --quick; more tell smaller differences.")
    ] = None,
    steps: Annotated[int | None, Parameter(help="Of each training: 500, or 30 with --quick.")] = None,
    seed: Annotated[int, Parameter(help="The first one; the same seeds give the same table, times aside.")] = 0,
    out: Annotated[Path, Parameter(help="Directory for report.html, results.json and results.csv.")] = Path(
        "softmaxima-compare-attention"
    ),
    resume: Annotated[
        bool, Parameter(help="Go on with what was interrupted in --out, or show what is done there.", negative=())
    ] = False,
    json: Annotated[bool, Parameter(help="Print the numbers as JSON in place of the tables.", negative=())] = False,
    quick: Annotated[bool, Parameter(help="A first look: two seeds and few steps.", negative=())] = False,
) -> None:
    """Train a small Transformer with every map in softmax's place, on a text and on pictures, and tell which to take.

    Initial weights and batches are the same for every map. A map is recommended where its difference to softmax is more than chance
    explains, given how many maps are tried. Also how many keys each head looks at, the α and the sinks that were learnt, and time
    and memory of a step. Ctrl-C keeps the seeds that are done, and --resume goes on from there.
    """
    check_named("--maps", maps, "to train all maps")
    if text is not None:
        if task == "digits":
            fail("--text: no text is read with --task digits; leave one of them out")
        check_file(text, ", a text in UTF-8")
    from softmaxima.core.numbers import choose
    from softmaxima_lab.compare.attention_plan import EXPERIMENT, QUICK_SEEDS, QUICK_STEPS, SEEDS, STEPS, Settings, check_names
    from softmaxima_lab.tables.texts import read_text

    if not resume:
        pieces.check_free(out, EXPERIMENT)
    check_names(names(maps))
    usual_seeds, usual_steps = (QUICK_SEEDS, QUICK_STEPS) if quick else (SEEDS, STEPS)
    settings = Settings(usual_seeds if seeds is None else seeds, usual_steps if steps is None else steps, seed, quick)
    content = read_text(text) if task != "digits" else None
    check_writable("--out", out, is_directory=True)
    from softmaxima_lab.compare.attention import offered
    from softmaxima_lab.compare.attention_saved import read_trainings
    from softmaxima_lab.compare.attention_tasks import digits_task, text_task

    chosen = choose("--maps", offered(), names(maps), "map")
    tasks = [text_task(content)] if content is not None else []
    if task != "text":
        tasks.append(digits_task())
    done = read_trainings(out / pieces.NUMBERS, tasks, settings, chosen) if resume else []
    run(tasks, settings, chosen, done, out, json)


def run(tasks: Sequence[Task], settings: Settings, chosen: Sequence[Variant], done: list, out: Path, json: bool) -> None:
    """Train seed after seed, and after each write what is known; then show it."""
    from softmaxima_lab.compare.attention import seconds_of_all, summary, total_steps, trained
    from softmaxima_lab.pages.compare_attention import FILES

    given = (tasks, settings, chosen)
    trainings = pieces.of_tasks(
        tasks,
        settings.seeds,
        "maps",
        trained=partial(trained, *given),
        steps=partial(total_steps, *given),
        seconds=partial(seconds_of_all, *given),
        summary=lambda done: summary(*given, done, pieces.command_given()),
        files=FILES,
    )
    pieces.run(trainings, done, out, show, pieces.introduction(tasks), json)


def show(study: Study, console: Console | None = None) -> None:
    """A table and what to take for each task, and the caption."""
    from softmaxima_lab.pages.compare_attention import CAPTION, columns, note, reservations

    console = console or Output()
    for finding in study.findings:
        taken = [result is finding.taken for result in finding.results]
        show_table(console, finding.task.name, columns(finding), finding.results, taken)
        words = " ".join((f". {finding.reason}", *reservations(study, finding)))
        console.print(Text.assemble((finding.headline, "bold"), words))
        if told := note(finding):
            console.print(Text(told, style="dim"))
    console.print()
    console.print(Text(CAPTION, style="dim"))
