"""`softmaxima bench`: measures maps, losses and sums beside torch, the entmax package and others, on the CPU or a GPU."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from softmaxima_lab.commands import measuring
from softmaxima_lab.commands.terminal import WIDE, WRONG_RESULT, Output, check_named, fail, names, plain_table, say

if TYPE_CHECKING:
    from softmaxima_lab.bench.plan import Settings
    from softmaxima_lab.bench.results import Benchmark
    from softmaxima_lab.bench.subjects import Subject

SHOWN = 5  # of what was not reached, or is unreliable


def bench(
    *,
    maps: Annotated[
        list[str] | None, Parameter(help="Only these maps, losses and sums: names, separated by commas.", negative=())
    ] = None,
    shapes: Annotated[
        list[str] | None,
        Parameter(
            help="Sizes joined by x, and @axis for another axis than the last: 256x32000,32000x4096@0. Without it: 4096x64, "
            "1024x1024, 256x32000 and 64x128256 on the CPU, larger ones on a GPU, two small ones with --quick.",
            negative=(),
        ),
    ] = None,
    peers: Annotated[
        list[str] | None,
        Parameter(
            help="Only these: torch, entmax, scipy; on a GPU torch, torch.compile, entmax, liger, adasplash, softmaxima CPU. "
            "Without it: those installed.",
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
    """Measure maps, losses and sums of exponentials beside torch, the entmax package and others, in the same run.

    Nothing is timed before it agrees with its float64 definition, nor what has none; a result that does not agree, before or
    after, is called wrong, and the exit code is 1. A ratio whose interval contains 1 is written ≈ 1. On a GPU every kernel is
    checked on rows of awkward lengths first.
    """
    from softmaxima_lab.bench.checks import LENGTHS, QUICK_LENGTHS
    from softmaxima_lab.bench.plan import QUICK_SECONDS, QUICK_SHAPES, Settings, plan
    from softmaxima_lab.bench.results import write
    from softmaxima_lab.bench.subjects import choose, read_shape

    check_named("--maps", maps, "to measure all")
    named = names(shapes) or (QUICK_SHAPES if quick else ())
    settings = Settings(
        device=device,
        shapes=tuple(dict.fromkeys(map(read_shape, named))) or None,
        peers=names(peers) or None,
        dtypes=names(dtype) or None,
        threads=threads,
        neighbours=neighbours,
        seconds=QUICK_SECONDS if quick else None,
        budget=math.inf if budget is None else budget,
        lengths=() if device == "cpu" else QUICK_LENGTHS if quick else LENGTHS,
    )
    chosen = choose(names(maps), device)
    planned = plan(settings, chosen)
    measuring.check_place(device, json)
    without_losses = [str(s) for s in settings.shapes or () if not s.takes_losses and any(c.kind == "loss" for c in chosen)]
    if without_losses:
        say(f"losses are measured on rows x classes, so not on {', '.join(without_losses)}")
    benchmark = watched(settings, chosen, len(planned), json)
    measuring.show_and_write(benchmark, show_benchmark, write, json)
    finish(benchmark)


def watched(settings: Settings, chosen: Sequence[Subject], steps: int, json: Path | None) -> Benchmark:
    """Measure, show how far it is, and write what there is so far."""
    from softmaxima_lab.bench.results import write
    from softmaxima_lab.bench.run import bench as run

    def save(found: Benchmark) -> None:
        if json is not None and (json.is_file() or not json.exists()):  # a pipe is written to once, at the end
            with contextlib.suppress(OSError):  # of which the last writing tells
                write(found, json)

    with measuring.announcing(steps) as starting:
        return run(settings, chosen, starting, save)


def finish(benchmark: Benchmark) -> None:
    """Say what is left out, not reached and wrong; fail if anything is."""
    from softmaxima_lab.bench.results import UNRELIABLE
    from softmaxima_lab.pages.bench import complaint, where

    if benchmark.left_out:
        say(f"left out: {'; '.join(f'{name}, for {why}' for name, why in benchmark.left_out.items())}")
    if benchmark.unchecked:
        titles = dict.fromkeys(row.title for row in benchmark.unchecked)
        say(f"not timed, for there is no definition to check against: {', '.join(titles)}")
    if benchmark.unreliable:
        say(f"unreliable, for their turns disagree by more than a factor {UNRELIABLE:g}: {_some(map(where, benchmark.unreliable))}")
    problems = []
    if benchmark.wrong:
        measured = len(benchmark.rows) + len(benchmark.checks) + sum(bool(each.problem) for each in benchmark.overheads)
        what = "; ".join(map(complaint, benchmark.wrong))
        problems.append(f"{len(benchmark.wrong)} of {measured} results are wrong: {what}")
    if benchmark.not_reached:
        first = _some(benchmark.not_reached)
        problems.append(f"{len(benchmark.not_reached)} were not reached in {benchmark.elapsed:.0f} seconds: {first}")
    if problems:
        fail(". ".join(problems), WRONG_RESULT)


def _some(named: Iterable[str]) -> str:
    """The first of them."""
    names = list(named)
    return "; ".join(names[:SHOWN]) + ("; …" if len(names) > SHOWN else "")


def show_benchmark(benchmark: Benchmark, console: Console | None = None) -> None:
    """A table for each shape, the overheads, and the caption."""
    from softmaxima_lab.pages.bench import CAPTION, OVERHEAD_COLUMNS, TARGETS, columns, made_with, of_ground

    console = console or Output()
    wide = console.width >= WIDE
    for ground in benchmark.grounds:
        shown = [column for column in columns(benchmark, ground) if wide or column.short is not None]
        table = plain_table([column.heading if wide else column.short or "" for column in shown], wide)
        for row in benchmark.rows:
            if benchmark.ground(row) == ground:
                style = "bold red" if row.verdict == "wrong" else None
                table.add_row(*(Text(column.cell(row)) for column in shown), style=style)
        console.print()
        console.print(table)
        console.print(Text(of_ground(ground), style="dim"))
    if benchmark.overheads:
        table = plain_table([column.heading for column in OVERHEAD_COLUMNS], wide)
        for overhead in benchmark.overheads:
            table.add_row(*(Text(column.cell(overhead)) for column in OVERHEAD_COLUMNS))
        console.print()
        console.print(table)
    if benchmark.device != "cpu":
        console.print()
        for target in TARGETS:
            console.print(Text(f"{target.title}: {target.outcome(benchmark)}"))
    console.print()
    console.print(Text(CAPTION, style="dim"))
    console.print(Text(f"{made_with(benchmark)}.", style="dim"))
