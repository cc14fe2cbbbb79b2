"""`softmaxima bench`: measures cases of all groups beside what people use today, on the CPU or a GPU."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from softmaxima_lab.commands.terminal import (
    WIDE,
    WRONG_RESULT,
    Output,
    check_named,
    check_writable,
    fail,
    keeping,
    names,
    plain_table,
    progress_bar,
    say,
)

if TYPE_CHECKING:
    from softmaxima_lab.bench.record import Benchmark
    from softmaxima_lab.bench.run import Settings

SHOWN = 5  # of what was not reached, or is unreliable


def bench(
    *cases: Annotated[
        str,
        Parameter(
            help="Groups: maps, attention, heads, graph, ranks, dask, kernels; or GROUP/NAME, as attention/sparsemax; or names of "
            "maps, losses and sums. Without any: maps; on a GPU kernels and maps."
        ),
    ],
    shapes: Annotated[
        list[str] | None,
        Parameter(
            help="maps: sizes joined by x, and @axis for another axis than the last: 256x32000,32000x4096@0. attention: 1024, "
            "1x100000 (queries x keys) or 4096x4096x128 (and the size of a head). heads: rows x features x classes. graph: edges. "
            "ranks: ranks x rows x classes. dask: 8192x16384@1/2048x4096 (sizes, axis and chunks). kernels: a length. "
            "Without it: the usual ones of each group.",
            negative=(),
        ),
    ] = None,
    peers: Annotated[
        list[str] | None,
        Parameter(
            help="Only these packages beside ours, as torch, entmax, scipy; on a GPU torch, torch.compile, entmax, liger, "
            "adasplash, softmaxima CPU. Without it: those installed.",
            negative=(),
        ),
    ] = None,
    device: Annotated[Literal["cpu", "cuda"], Parameter(help="Where to measure.")] = "cpu",
    dtype: Annotated[
        list[str] | None,
        Parameter(
            help="Of the scores: float32, float64, bfloat16, float16. Without it: float32, on a GPU bfloat16 too.", negative=()
        ),
    ] = None,
    threads: Annotated[int | None, Parameter(help="Threads of torch and softmaxima. Without it: torch's own choice.")] = None,
    neighbours: Annotated[
        int, Parameter(help="Processes beside, each of which keeps a core busy: what the ratios are on a machine that others use.")
    ] = 0,
    budget: Annotated[
        float | None, Parameter(help="Seconds for everything: what is not reached is named, and the exit code is 1.")
    ] = None,
    json: Annotated[Path | None, Parameter(help="A file for everything that was measured, with machine and versions.")] = None,
    quick: Annotated[bool, Parameter(help="A first look: small shapes and few repetitions.", negative=())] = False,
) -> None:
    """Measure maps, losses and sums, attention, heads, graphs, ranks and Dask arrays beside what people use today.

    Ours and the peers take turns in the same run. Nothing is timed before it agrees with its float64 definition, nor what has none;
    a result that does not agree, before or after, is called wrong, and the exit code is 1. A ratio whose interval contains 1 is
    written ≈ 1. On a GPU every kernel is checked on rows of awkward lengths first.
    """
    import torch

    from softmaxima_lab.bench.rows import FEW
    from softmaxima_lab.bench.run import GROUPS, Settings, plan

    check_named("--shapes", shapes, "to measure the usual ones")
    settings = Settings(
        cases=names(cases),
        shapes=tuple(dict.fromkeys(names(shapes))),
        peers=names(peers) or None,
        dtypes=names(dtype),
        device=device,
        threads=threads,
        neighbours=neighbours,
        budget=math.inf if budget is None else budget,
        quick=quick,
    )
    if device == "cuda" and not torch.cuda.is_available():
        fail("--device: torch finds no CUDA device here; leave it out to measure on the CPU")
    try:
        planned = plan(settings)
    except (TypeError, ValueError) as error:
        fail(error)
    if json is not None:
        check_writable("--json", json)
    of_maps = planned.get("maps", ())
    with_losses = {case.size for case in of_maps if GROUPS["maps"].kind(case.name) == "loss"}
    if with_losses and (without := dict.fromkeys(case.size for case in of_maps if case.size not in {*with_losses, FEW})):
        say(f"losses are measured on rows x classes, so not on {', '.join(without)}")
    benchmark = watched(settings, sum(map(len, planned.values())), json)
    show_and_write(benchmark, json)
    finish(benchmark)


def watched(settings: Settings, steps: int, json: Path | None) -> Benchmark:
    """Measure, show how far it is, and write what there is so far."""
    from softmaxima_lab.bench.record import write
    from softmaxima_lab.bench.run import bench as run

    def save(found: Benchmark) -> None:
        if json is not None and (json.is_file() or not json.exists()):  # a pipe is written to once, at the end
            with contextlib.suppress(OSError):  # of which the last writing tells
                write(found, json)

    with progress_bar() as progress:
        task = progress.add_task("", total=steps * (2 if settings.in_processes else 1))
        done = itertools.count()
        return run(settings, lambda what: progress.update(task, completed=next(done), description=escape(what)), save)


def show_and_write(benchmark: Benchmark, json: Path | None) -> None:
    """Show what was measured, and write it where a file is named."""
    from softmaxima_lab.bench.record import write

    if json is None:
        show_benchmark(benchmark)
        return
    with keeping("--json", json, lambda: write(benchmark, json)):
        show_benchmark(benchmark)
    say("")
    say(f"written: {json}")


def finish(benchmark: Benchmark) -> None:
    """Say what is left out, not reached and wrong; fail if anything is."""
    from softmaxima_lab.bench.case import UNRELIABLE

    if benchmark.left_out:
        say(f"left out: {'; '.join(f'{name}, for {why}' for name, why in benchmark.left_out.items())}")
    if unchecked := dict.fromkeys(result.case.name for result in benchmark.results if result.verdict == "unchecked"):
        say(f"not timed, for there is no definition to check against: {', '.join(unchecked)}")
    if unreliable := [str(result.case) for result in benchmark.of("maps") if result.is_unreliable]:
        say(f"unreliable, for their turns disagree by more than a factor {UNRELIABLE:g}: {_some(unreliable)}")
    problems = []
    if benchmark.wrong:
        what = "; ".join(f"{result.case}: {result.problem}" for result in benchmark.wrong)
        problems.append(f"{len(benchmark.wrong)} of {len(benchmark.results)} results are wrong: {what}")
    if benchmark.not_reached:
        first = _some(benchmark.not_reached)
        problems.append(f"{len(benchmark.not_reached)} were not reached in {benchmark.elapsed:.0f} seconds: {first}")
    if problems:
        fail(". ".join(problems), WRONG_RESULT)


def _some(named: Iterable[str]) -> str:
    """The first of them."""
    every = list(named)
    return "; ".join(every[:SHOWN]) + ("; …" if len(every) > SHOWN else "")


def show_benchmark(benchmark: Benchmark, console: Console | None = None) -> None:
    """The tables of each group and what is said of it."""
    from softmaxima_lab.pages.bench import PAGES
    from softmaxima_lab.pages.bench_tables import made_with, tables

    console = console or Output()
    wide = console.width >= WIDE
    if checked := benchmark.of("kernels"):
        right = sum(result.verdict == "right" for result in checked)
        console.print(Text(f"Kernels on rows of awkward lengths: {right} of {len(checked)} are right."))
    for page in (page for group, page in PAGES.items() if benchmark.of(group)):
        for each in tables(benchmark, page):
            shown = [(i, column) for i, column in enumerate(each.columns) if wide or column.short != "-"]
            table = plain_table([column.heading if wide else column.short or column.heading for _, column in shown], wide)
            for row, wrong in zip(each.rows, each.wrong, strict=True):
                table.add_row(*(Text(row[i]) for i, _ in shown), style="bold red" if wrong else None)
            console.print()
            console.print(table)
            if each.below:
                console.print(Text(each.below, style="dim"))
        console.print()
        if said := page.says(benchmark):
            console.print(Text(said))
        console.print(Text(page.caption, style="dim"))
        console.print(Text(f"{made_with(benchmark, page)}.", style="dim"))
