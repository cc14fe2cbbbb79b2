"""`softmaxima bench-heads`: measures losses of a large layer beside torch's cross-entropy, and the memory that they take."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.text import Text

from softmaxima_lab.commands import measuring
from softmaxima_lab.commands.terminal import WIDE, Output, check_named, fail, names, plain_table

if TYPE_CHECKING:
    from softmaxima_lab.bench.heads import Benchmark


def bench_heads(
    *,
    classes: Annotated[
        list[str] | None, Parameter(help="Numbers of classes. Without it: 32000,128256; 4000 with --quick.", negative=())
    ] = None,
    losses: Annotated[
        list[str] | None, Parameter(help="Without it: cross_entropy, sparsemax, entmax15 and entmax-1.3.", negative=())
    ] = None,
    rows: Annotated[int | None, Parameter(help="Hidden states. Without it: 2048, or 256 with --quick.")] = None,
    features: Annotated[int | None, Parameter(help="Of each. Without it: 512, or 64 with --quick.")] = None,
    device: Annotated[Literal["cpu", "cuda"], Parameter(help="Where to measure.")] = "cpu",
    dtype: Annotated[
        Literal["float32", "float64", "bfloat16", "float16"] | None,
        Parameter(help="Of hidden states and weights. Without it: float32, on a GPU bfloat16."),
    ] = None,
    threads: Annotated[int | None, Parameter(help="Threads of torch and softmaxima. Without it: torch's own choice.")] = None,
    json: Annotated[Path | None, Parameter(help="A file for everything that was measured, with machine and versions.")] = None,
    quick: Annotated[bool, Parameter(help="A first look: few classes, and few repetitions.", negative=())] = False,
) -> None:
    """Measure losses of a large linear layer, forward and backward, beside torch's cross-entropy of it.

    torch's: of all scores at once, in parts (linear_cross_entropy), and compiled; on a GPU also Liger's. Each loss is measured on
    the weights that a layer begins with and on trained ones, in turns with torch's; on the CPU, without --quick, also the memory
    that a pass takes.
    """
    import torch

    from softmaxima.core.numbers import check_choice, check_count
    from softmaxima_lab.bench.heads import CLASSES, FEATURES, LOSSES, PASSES, QUICK_CLASSES, ROWS, bench, write

    check_named("--losses", losses, "to measure the usual ones")
    check_named("--classes", classes, "to measure the usual numbers")
    command = "bench-heads"
    try:
        counts = tuple(check_count(command, "classes", int(name) if name.isdecimal() else name, 2) for name in names(classes))
        chosen = tuple(check_choice(command, "losses", name, tuple(LOSSES)) for name in names(losses)) or tuple(LOSSES)
        height = check_count(command, "rows", (256 if quick else ROWS) if rows is None else rows)
        width = check_count(command, "features", (64 if quick else FEATURES) if features is None else features)
        if threads is not None:
            torch.set_num_threads(check_count(command, "threads", threads))
    except (TypeError, ValueError) as error:
        fail(error)
    counts = counts or (QUICK_CLASSES if quick else CLASSES)
    kind = getattr(torch, dtype or ("bfloat16" if device == "cuda" else "float32"))
    remembers = device == "cpu" and not quick
    measuring.check_place(device, json)
    with measuring.announcing(2 * len(counts) + (len(chosen) + 1) * remembers) as starting:
        benchmark = bench(height, width, counts, chosen, kind, device, 2 if quick else PASSES, starting, remembers)
    measuring.show_and_write(benchmark, _show, write, json)
    measuring.check_results(benchmark.results)


def _show(benchmark: Benchmark) -> None:
    from softmaxima_lab.pages.heads import CAPTION, headings, made_with, memory, tables

    console = Output()
    for classes, rows in tables(benchmark).items():
        shown = plain_table([f"{classes} classes", *headings(benchmark)], console.width >= WIDE)
        for row in rows:
            shown.add_row(*map(Text, row))
        console.print()
        console.print(shown)
    console.print()
    if benchmark.memory:
        console.print(Text(memory(benchmark)))
    console.print(Text(f"{CAPTION} {made_with(benchmark)}.", style="dim"))
