"""`softmaxima bench`: measures maps, losses and sums beside torch, the entmax package and scipy."""

from __future__ import annotations

import errno
import itertools
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from softmaxima.cli.terminal import WIDE, WRONG_RESULT, Output, fail, keeping, names, plain_table, progress_bar, say

if TYPE_CHECKING:
    from softmaxima.experiments.bench import Benchmark


def bench(
    *,
    maps: Annotated[
        list[str] | None, Parameter(help="Only these maps, losses and sums: names, separated by commas.", negative=())
    ] = None,
    shapes: Annotated[
        list[str] | None,
        Parameter(
            help="Sizes joined by x, and @axis for another axis than the last: 256x32000,32000x4096@0. Without it: 4096x64, "
            "1024x1024, 256x32000 and 64x128256, or two small ones with --quick.",
            negative=(),
        ),
    ] = None,
    peers: Annotated[
        list[str] | None, Parameter(help="Only these packages: torch, entmax, scipy. Without it: those installed.", negative=())
    ] = None,
    dtype: Annotated[Literal["float32", "float64", "bfloat16", "float16"], Parameter(help="Of the scores.")] = "float32",
    threads: Annotated[int | None, Parameter(help="Threads of torch and softmaxima. Without it: torch's own choice.")] = None,
    json: Annotated[Path | None, Parameter(help="A file for everything that was measured, with machine and versions.")] = None,
    quick: Annotated[bool, Parameter(help="A first look: small shapes and few repetitions.", negative=())] = False,
) -> None:
    """Measure maps, losses and sums of exponentials beside torch, the entmax package and scipy, in the same run.

    Nothing is timed before it agrees with its float64 definition; a result that does not is called wrong, and the exit code is 1.
    """
    from softmaxima.experiments import InputError
    from softmaxima.experiments.bench import QUICK_SECONDS, QUICK_SHAPES, SECONDS, SHAPES, Settings, plan, steps
    from softmaxima.experiments.bench import bench as run
    from softmaxima.experiments.peers import PACKAGES
    from softmaxima.experiments.subjects import choose, read_shape
    from softmaxima.report.bench import write

    try:
        settings = Settings(
            shapes=tuple(dict.fromkeys(read_shape(text) for text in names(shapes) or (QUICK_SHAPES if quick else SHAPES))),
            peers=names(peers) or PACKAGES,
            dtype=dtype,
            threads=threads,
            seconds=QUICK_SECONDS if quick else SECONDS,
        )
        chosen = choose(names(maps))
        planned = plan(settings, chosen)
    except InputError as error:
        fail(str(error))
    if json is not None:
        check_writable(json)

    left_out = [name for name in settings.peers if name not in settings.installed_peers]
    if left_out:
        say(f"left out, for {'they are' if len(left_out) > 1 else 'it is'} not installed: {', '.join(left_out)}")
    without_losses = [str(shape) for shape in settings.shapes if len(planned.get(shape, ())) < len(chosen)]
    if without_losses:
        say(f"losses are measured on rows x classes, so not on {', '.join(without_losses)}")
    with progress_bar() as progress:
        task = progress.add_task("", total=steps(settings, chosen))
        done = itertools.count()

        def starting(what: str) -> None:
            progress.update(task, completed=next(done), description=escape(what))

        try:
            benchmark = run(settings, chosen, starting)
        except InputError as error:
            progress.stop()
            fail(str(error))
    if json is None:
        show_benchmark(benchmark)
    else:
        with keeping("--json", json, lambda: write(benchmark, json)):
            show_benchmark(benchmark)
        say(f"\nwritten: {json}")
    if benchmark.wrong:
        what = "; ".join(f"{row.title} on {row.shape}, {row.direction}: {row.problem}" for row in benchmark.wrong)
        fail(f"{len(benchmark.wrong)} of {len(benchmark.rows)} results are wrong: {what}", WRONG_RESULT)


def check_writable(json: Path) -> None:
    """Make sure that the file can be written, before anything is measured; a device or a pipe need only be open to us."""
    try:
        if json.is_dir():
            fail(f"--json: {json} is a directory; give a file")
        if json.is_file() or not json.exists():
            with tempfile.TemporaryFile(dir=Path(os.path.realpath(json)).parent):
                pass
        elif not os.access(json, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        fail(f"--json: cannot write {json} ({error.strerror}); choose another path")


def show_benchmark(benchmark: Benchmark, console: Console | None = None) -> None:
    """A table for each shape, the overheads, and the caption."""
    from softmaxima.report.bench import CAPTION, OVERHEAD_COLUMNS, columns, made_with, of_ground

    console = console or Output()
    wide = console.width >= WIDE
    for ground in benchmark.grounds:
        shown = [column for column in columns(benchmark, ground) if wide or column.short is not None]
        table = plain_table([column.heading if wide else column.short or "" for column in shown], wide)
        for row in benchmark.rows:
            if row.shape == ground.shape:
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
    console.print()
    console.print(Text(CAPTION, style="dim"))
    console.print(Text(f"{made_with(benchmark)}.", style="dim"))
