"""`softmaxima bench-ranks`: measures losses and sums of scores that are shared among processes, and what they send."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.text import Text

from softmaxima_lab.commands import measuring
from softmaxima_lab.commands.terminal import WIDE, Output, check_named, fail, names, plain_table

if TYPE_CHECKING:
    from softmaxima_lab.bench.ranks import Benchmark


def bench_ranks(
    *,
    ranks: Annotated[
        list[str] | None, Parameter(help="How many processes share the scores. Without it: 1,2,4; 1,2 with --quick.", negative=())
    ] = None,
    tasks: Annotated[
        list[str] | None,
        Parameter(help="Losses and sums to measure. Without it: cross_entropy, sparsemax_loss and logsumexp.", negative=()),
    ] = None,
    rows: Annotated[int | None, Parameter(help="Rows of scores. Without it: 256, or 16 with --quick.")] = None,
    classes: Annotated[
        int | None,
        Parameter(
            help="Classes of all ranks, a multiple of each number of ranks and of 4. Without it: 131072, or 4096 with --quick."
        ),
    ] = None,
    json: Annotated[Path | None, Parameter(help="A file for everything that was measured, with machine and versions.")] = None,
    quick: Annotated[bool, Parameter(help="A first look: few classes, and few repetitions.", negative=())] = False,
) -> None:
    """Measure losses and sums of scores that are shared among processes of this machine, forward and backward, on gloo.

    Beside them: the same of scores that every process gathers, and torch's loss_parallel; how many messages they send, and how
    long messages of each size take.
    """
    from softmaxima.core.numbers import check_choice, check_count
    from softmaxima_lab.bench.ranks import CLASSES, PASSES, RANKS, ROWS, SIZES, TASKS, bench, write

    check_named("--ranks", ranks, "to measure 1, 2 and 4")
    check_named("--tasks", tasks, "to measure all")
    command = "bench-ranks"
    try:
        counts = tuple(check_count(command, "ranks", int(name) if name.isdecimal() else name) for name in names(ranks))
        chosen = tuple(check_choice(command, "tasks", name, TASKS) for name in names(tasks)) or TASKS
        height = check_count(command, "rows", (16 if quick else ROWS) if rows is None else rows)
        width = check_count(command, "classes", (4096 if quick else CLASSES) if classes is None else classes)
    except (TypeError, ValueError) as error:
        fail(error)
    counts = counts or (RANKS[:2] if quick else RANKS)
    for count in (*counts, 4):
        if width % count:
            fail(f"--classes: {width} are not the same number on each of {count} ranks; give a multiple of {count}")
    measuring.check_place("cpu", json)
    with measuring.announcing(len(counts)) as starting:
        benchmark = bench(height, width, counts, chosen, 2 if quick else PASSES, SIZES[:2] if quick else SIZES, starting)
    measuring.show_and_write(benchmark, _show, write, json)
    measuring.check_results(benchmark.results)


def _show(benchmark: Benchmark) -> None:
    from softmaxima_lab.pages.ranks import CAPTION, cells, headings, made_with, model

    console = Output()
    shown = plain_table(["", *headings()], console.width >= WIDE)
    for result in benchmark.results:
        shown.add_row(*map(Text, cells(result)))
    console.print(shown)
    console.print()
    console.print(Text(f"{model(benchmark)} {CAPTION} {made_with(benchmark)}.", style="dim"))
