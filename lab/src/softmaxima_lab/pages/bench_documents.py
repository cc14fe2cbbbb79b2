"""What the documents show of all that `softmaxima bench` found."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from softmaxima_lab.bench.record import Benchmark, read
from softmaxima_lab.pages import bench_figures, ranks
from softmaxima_lab.pages.bench import ATTENTION, DASK, GRAPH, HEADS
from softmaxima_lab.pages.bench_maps import LOGSUMEXP_ROWS, MAPS, TABLE_CAPTION, beside_others, chosen_table
from softmaxima_lab.pages.bench_tables import in_markdown, made_with, markdown, tables
from softmaxima_lab.pages.documents import Block, Entry, Picture

RESULTS = "All results: [maps-cpu.json](benchmarks/maps-cpu.json), [maps-cpu-busy.json](benchmarks/maps-cpu-busy.json)."


def blocks(found: Mapping[str, Benchmark]) -> list[Block]:
    """Of the benchmarks by the names of their files."""
    quiet, busy, gpu = (found[f"maps-{name}"] for name in ("cpu", "cpu-busy", "gpu"))
    attention, graph, of_ranks = (found[f"{name}-cpu"] for name in ("attention", "graph", "ranks"))
    made, of_gpu = made_with(quiet, MAPS), tables(gpu, MAPS, lambda result: result.seconds is not None)
    ratios, times, edges, steps = (
        Picture(
            "bench.png", bench_figures.of_maps(quiet), "Time of each peer divided by that of softmaxima, for every map and loss"
        ),
        Picture(
            "attention-speed.png",
            bench_figures.of_attention(attention),
            "Time of a forward and of both passes, and memory, against the length",
        ),
        Picture(
            "graph.png", bench_figures.of_graph(graph), "Nanoseconds an edge of ours and torch_geometric's, forward and both passes"
        ),
        Picture(
            "ranks.png",
            ranks.picture(of_ranks),
            "Time against the number of ranks, of a step, measured, and of its messages, by a model",
        ),
    )
    note = f"*{TABLE_CAPTION} {beside_others(quiet, busy)} {RESULTS} `make bench`, {made}.*"
    return [
        Block("bench", (chosen_table(quiet), ratios, note)),
        Block("speed", (chosen_table(quiet, LOGSUMEXP_ROWS), f"*`make bench`, {made}.*")),
        Block("bench-gpu", (in_markdown(of_gpu), MAPS.says(gpu), f"*{made_with(gpu, MAPS)}.*")),
        Block("bench-attention", (times, markdown(attention, page=ATTENTION))),
        Block("bench-attention-gpu", (markdown(found["attention-gpu"], page=ATTENTION),)),
        Block("bench-heads", (markdown(found["heads-cpu"], found["heads-cpu-bfloat16"], page=HEADS),)),
        Block("bench-graph", (edges, markdown(graph, page=GRAPH))),
        Block("bench-ranks", (steps, ranks.markdown(of_ranks))),
        Block("bench-dask", (markdown(found["dask-cpu"], page=DASK),)),
    ]


ENTRY = Entry(
    "bench",
    "shows what softmaxima bench left in benchmarks/, which make bench runs",
    blocks,
    read=lambda: {path.stem: read(path) for path in Path("benchmarks").glob("*.json")},
)
