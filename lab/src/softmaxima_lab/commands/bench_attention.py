"""`softmaxima bench-attention`: measures attention beside torch's, and the memory that it takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.text import Text

from softmaxima_lab.commands import measuring
from softmaxima_lab.commands.terminal import WIDE, Output, check_named, fail, names, plain_table

if TYPE_CHECKING:
    from softmaxima_lab.bench.attention import Benchmark


def bench_attention(
    *,
    lengths: Annotated[
        list[str] | None,
        Parameter(
            help="Of queries and keys. Without it: 1024,4096,16384; on a GPU 4096,8192,16384,32768; 256 with --quick.", negative=()
        ),
    ] = None,
    maps: Annotated[
        list[str] | None,
        Parameter(help="Without it: softmax, elastic_softmax, sparsemax, entmax15 and linear_attention.", negative=()),
    ] = None,
    device: Annotated[Literal["cpu", "cuda"], Parameter(help="Where to measure.")] = "cpu",
    dtype: Annotated[
        Literal["float32", "float64", "bfloat16", "float16"] | None,
        Parameter(help="Of queries, keys and values. Without it: float32, on a GPU bfloat16."),
    ] = None,
    threads: Annotated[int | None, Parameter(help="Threads of torch and softmaxima. Without it: torch's own choice.")] = None,
    json: Annotated[Path | None, Parameter(help="A file for everything that was measured, with machine and versions.")] = None,
    quick: Annotated[bool, Parameter(help="A first look: a small length and few repetitions.", negative=())] = False,
) -> None:
    """Measure attention with several maps beside torch's, forward and backward: 8 heads of size 64.

    Scores are spread as those of a trained model, so that sparse maps keep few. Also linear attention, forward, up to 65536. On the
    CPU also one query that looks at 100 000 keys, and the memory that a forward and a backward pass take. On a GPU also heads of
    size 128, all maps causal too, and beside FlexAttention and adasplash.
    """
    import torch

    from softmaxima.core.contract import find_map
    from softmaxima.core.numbers import check_count
    from softmaxima_lab.bench.attention import (
        GPU_LENGTHS,
        GPU_SIZES,
        LENGTHS,
        LINEAR,
        LINEAR_LENGTHS,
        MANY_KEYS,
        MAPS,
        QUICK_LENGTHS,
        SIZE,
        bench,
        cases,
        refuse_what_does_not_fit,
        write,
    )

    check_named("--maps", maps, "to measure the usual ones")
    check_named("--lengths", lengths, "to measure the usual ones")
    try:
        sizes = tuple(check_count("bench-attention", "lengths", _number(name), 1) for name in names(lengths))
        wanted = names(maps) or (*MAPS, LINEAR)
        found = [find_map(name, "--maps") for name in wanted if name != LINEAR]
        if logarithmic := [map.name for map in found if map.properties.logarithmic]:
            fail(f"--maps: {logarithmic[0]} is left out, for it gives logarithms of probabilities; choose another")
        chosen = tuple(map.name for map in found)
        if threads is not None:
            torch.set_num_threads(check_count("bench-attention", "threads", threads, 1))
    except (TypeError, ValueError) as error:
        fail(error)
    on_gpu = device == "cuda"
    linear = () if LINEAR not in wanted else sizes or (QUICK_LENGTHS if quick else LINEAR_LENGTHS)
    sizes = sizes or (QUICK_LENGTHS if quick else GPU_LENGTHS if on_gpu else LENGTHS)
    planned = cases(sizes, chosen, None if on_gpu or quick else MANY_KEYS, linear, GPU_SIZES if on_gpu else (SIZE,), device)
    remembered = () if on_gpu or quick else sizes
    kind = dtype or ("bfloat16" if on_gpu else "float32")
    measuring.check_place(device, json)
    refuse_what_does_not_fit(planned, getattr(torch, kind), device)
    with measuring.announcing(len(planned) + 3 * len(remembered)) as starting:
        benchmark = bench(planned, getattr(torch, kind), device, 0.03 if quick else 2.0, starting, remembered)
    measuring.show_and_write(benchmark, _show, write, json)
    measuring.check_results(benchmark.results)


def _number(name: str) -> int | str:
    return int(name) if name.isdecimal() else name


def _show(benchmark: Benchmark) -> None:
    from softmaxima_lab.pages.attention import CAPTION, cells, headings, made_with, memory, others, shapes

    console = Output()
    for shape in shapes(benchmark):
        table = plain_table([shape, *headings(benchmark)], console.width >= WIDE)
        for result in benchmark.results:
            if result.case.shape == shape:
                table.add_row(*map(Text, cells(result, others(benchmark))))
        console.print()
        console.print(table)
    console.print()
    if benchmark.memory:
        console.print(Text(memory(benchmark)))
    console.print(Text(f"{CAPTION} {made_with(benchmark)}.", style="dim"))
