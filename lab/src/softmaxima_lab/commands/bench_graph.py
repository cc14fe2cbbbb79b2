"""`softmaxima bench-graph`: measures maps and sums over the edges of a graph beside torch_geometric's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.text import Text

from softmaxima_lab.commands import measuring
from softmaxima_lab.commands.terminal import WIDE, Output, check_named, fail, names, plain_table

if TYPE_CHECKING:
    from softmaxima_lab.bench.graph import Benchmark


def bench_graph(
    *,
    tasks: Annotated[list[str] | None, Parameter(help="Without it: softmax, logsumexp and sparsemax.", negative=())] = None,
    edges: Annotated[int | None, Parameter(help="Without it: 10000000, or 100000 with --quick.")] = None,
    device: Annotated[Literal["cpu", "cuda"], Parameter(help="Where to measure.")] = "cpu",
    json: Annotated[Path | None, Parameter(help="A file for everything that was measured, with machine and versions.")] = None,
    quick: Annotated[bool, Parameter(help="A first look: few edges, and few repetitions.", negative=())] = False,
) -> None:
    """Measure maps and sums over the edges of each node of a graph, of a power law of degrees, forward and backward.

    Beside them: torch_geometric's softmax, and logsumexp of its scatter.
    """
    try:
        import softmaxima.graph  # noqa: F401 - which says what is missing
    except ImportError as error:
        fail(str(error))
    from softmaxima.core.numbers import check_choice, check_count
    from softmaxima_lab.bench.graph import EDGES, PASSES, TASKS, bench, write

    check_named("--tasks", tasks, "to measure all")
    command = "bench-graph"
    try:
        chosen = tuple(check_choice(command, "tasks", name, TASKS) for name in names(tasks)) or TASKS
        count = check_count(command, "edges", (100_000 if quick else EDGES) if edges is None else edges)
    except (TypeError, ValueError) as error:
        fail(error)
    measuring.check_place(device, json)
    with measuring.announcing(2 * len(chosen)) as starting:
        benchmark = bench(count, chosen, 2 if quick else PASSES, starting, device)
    measuring.show_and_write(benchmark, _show, write, json)
    measuring.check_results(benchmark.results)


def _show(benchmark: Benchmark) -> None:
    from softmaxima_lab.pages.graph import CAPTION, cells, headings, made_with

    console = Output()
    shown = plain_table(["", *headings()], console.width >= WIDE)
    for result in benchmark.results:
        shown.add_row(*map(Text, cells(benchmark, result)))
    console.print(shown)
    console.print()
    console.print(Text(f"{CAPTION} {made_with(benchmark)}.", style="dim"))
