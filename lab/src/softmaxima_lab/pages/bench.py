"""What is shown of attention, heads, graphs, ranks and Dask arrays; and the pages of all groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from softmaxima_lab.bench.attention import MEMORY, SIZE
from softmaxima_lab.bench.attention import read_size as read_attention
from softmaxima_lab.bench.case import FORWARD, OURS, Result
from softmaxima_lab.bench.dask import PEAKED, PLAIN
from softmaxima_lab.bench.dask import read_size as read_dask
from softmaxima_lab.bench.graph import INDEX, PEER
from softmaxima_lab.bench.heads import MEMORY as MEMORY_OF_HEADS
from softmaxima_lab.bench.heads import read_size as read_heads
from softmaxima_lab.bench.ranks import GATHERED, HANDSHAKE, MESSAGE, TORCH
from softmaxima_lab.bench.record import Benchmark
from softmaxima_lab.pages.bench_maps import MAPS
from softmaxima_lab.pages.bench_tables import Column, Page, interval, milliseconds, ratio_of, seconds, seconds_of

# Attention ----------------------------------------------------------------------------------------------------------------


def _heading_of_attention(benchmark: Benchmark, row: Result) -> str:
    queries, keys, size = read_attention(row.case.size)
    return f"{queries}x{keys}" + (f", heads of {size}" if size != SIZE else "")


def _columns_of_attention(benchmark: Benchmark, results: Sequence[Result]) -> list[Column]:
    def other(row: Result, peer: str) -> str:
        return row.peers[peer].problem or milliseconds(row.peers[peer].seconds) if peer in row.peers else ""

    others = dict.fromkeys(peer for row in benchmark.of("attention") for peer in row.peers if peer != "torch")
    return [
        Column("ms", lambda row: milliseconds(row.seconds)),
        Column("torch, ms", lambda row: milliseconds(seconds_of(row, "torch"))),
        Column("ratio", lambda row: interval(ratio_of(row, "torch"))),
        Column("GFLOP/s", lambda row: f"{row.facts['operations'] / (row.seconds or 1.0) / 1e9:.0f}"),
        Column("not 0", lambda row: f"{100 * row.facts['support']:.3g} %"),
        *(Column(f"{peer}, ms", lambda row, peer=peer: other(row, peer)) for peer in others),
    ]


def _memory_of_attention(benchmark: Benchmark) -> str:
    found = [
        f"{name} {read_attention(row.case.size)[0]} {size / 2**20:.0f} MiB"
        for row in benchmark.of("attention", MEMORY)
        for name, size in row.facts["memory"].items()
    ]
    return f"Peak memory of a forward and a backward pass, beyond its inputs: {', '.join(found)}." if found else ""


ATTENTION = Page(
    "attention",
    _heading_of_attention,
    lambda row: row.case.name + ("" if row.case.direction == FORWARD else ", + backward"),
    _columns_of_attention,
    "torch: scaled_dot_product_attention, of softmax whatever our map is. ratio: torch's time / ours, the median over turns and an "
    "interval that holds half of them. GFLOP/s: as if every product were made, which where few probabilities are not 0 it is not. "
    "not 0: the share of probabilities that are not. Nothing is timed before its first head "
    "agrees with its definition in float64, on as many as 1024 queries and keys.",
    says=_memory_of_attention,
    beside=(MEMORY,),
)


# Heads --------------------------------------------------------------------------------------------------------------------


def _columns_of_heads(benchmark: Benchmark, results: Sequence[Result]) -> list[Column]:
    def support(row: Result) -> str:
        value = row.facts["support"]
        return f"{value:.0f}" if value >= 100 else f"{value:.2g}"

    peers = dict.fromkeys(peer for row in HEADS.rows(benchmark) for peer in row.peers)
    return [
        Column("s", lambda row: seconds(row.seconds)),
        *(Column(f"{peer} / ours", lambda row, peer=peer: interval(ratio_of(row, peer))) for peer in peers),
        Column("not 0", support),
        Column("of the peak", lambda row: f"{100 * row.facts['operations'] / (row.seconds or 1.0) / row.facts['peak']:.0f} %"),
    ]


def _peers_of_heads(results: Sequence[Result]) -> list[list[str]]:
    """What torch takes."""
    peers = next((row.peers for row in results if row.peers), {})
    blank = [""] * (len(peers) + 2)
    return [[f"{name}: cross_entropy", peer.problem or seconds(peer.seconds), *blank] for name, peer in peers.items()]


def _memory_of_heads(benchmark: Benchmark) -> str:
    rows = [row for row in benchmark.of("heads") if row.case.name.startswith(MEMORY_OF_HEADS)]
    found = [f"{row.case.name.removeprefix(MEMORY_OF_HEADS)} {row.facts['memory'] / 2**20:.0f} MiB" for row in rows]
    most = max((read_heads(row.case.size)[2] for row in rows), default=0)
    return f"Peak memory beyond the tensors and their gradients, of {most} classes: {', '.join(found)}." if found else ""


HEADS = Page(
    "heads",
    lambda benchmark, row: f"{read_heads(row.case.size)[2]} classes",
    lambda row: row.case.name,
    _columns_of_heads,
    "Seconds of a forward and a backward pass, and torch's time / ours: the median over turns, and their range, which is wide "
    "where something else ran beside it; then nothing can be told. torch is its cross-entropy of hidden @ weight.T, whatever "
    "our loss is; torch, in parts, its linear_cross_entropy with options. The first weights are those that nn.Linear begins "
    "with; trained ones come after 30 steps of Adam by the same loss. not 0: how many probabilities of a row are not, on "
    "average. of the peak: the operations of the products that cannot be left out (all three of cross-entropy, of the others "
    "that of the scores) a second, over those of the fastest product that torch makes of matrices in cache. Nothing is timed "
    "before its loss and gradients agree with float64 on 16 rows.",
    facts=lambda rows: "{} rows of {} features".format(*read_heads(rows[0].case.size)),
    says=_memory_of_heads,
    beside=(MEMORY_OF_HEADS,),
    more=_peers_of_heads,
)


# Graphs -------------------------------------------------------------------------------------------------------------------


def quotient(row: Result, peer: str, over: str) -> str:
    """Of the medians of seconds; nothing where there is no such way."""
    theirs, ours = seconds_of(row, peer), row.seconds if over == OURS else seconds_of(row, over)
    return "" if theirs is None or ours is None else f"{theirs / ours:.2f}"


def _over_ours(row: Result, peer: str) -> str:
    its = ratio_of(row, peer)
    return "" if its is None else f"{quotient(row, peer, OURS)} ({its.low:.2f}–{its.high:.2f})"


def _title_of_graph(row: Result) -> str:
    task, _, order = row.case.name.partition(", ")
    return f"{task}, {'forward' if row.case.direction == FORWARD else 'forward and backward'}, {order}"


def _facts_of_graph(rows: Sequence[Result]) -> str:
    facts = rows[0].facts
    nodes = f"{facts['nodes']} nodes of at most {facts['largest']} edges"
    return f"{rows[0].case.size} edges, {nodes}, a copy takes {seconds(facts['copy'])} s"


GRAPH = Page(
    "graph",
    lambda benchmark, row: "",
    _title_of_graph,
    lambda benchmark, rows: [
        Column("s", lambda row: seconds(row.seconds)),
        Column("copies", lambda row: f"{(row.seconds or 0.0) / row.facts['copy']:.1f}"),
        Column(f"{INDEX} / ours", lambda row: _over_ours(row, INDEX)),
        Column(f"{PEER} / ours", lambda row: _over_ours(row, PEER)),
        Column(f"{PEER} / {INDEX}", lambda row: quotient(row, PEER, INDEX)),
    ],
    "Seconds with Segments that were found before, the median over turns; and quotients of such medians, as in the picture, after "
    "each of ours the range that the quotients of single turns have. "
    "index: ours of an index, which is looked at and put in order in each call. torch_geometric: its softmax, and logsumexp made "
    "of its scatter; it has no sparsemax. copies: our time in copies of the scores.",
    facts=_facts_of_graph,
    order=lambda row: tuple(
        name in text for name, text in (("sparsemax", row.case.name), ("logsumexp", row.case.name), ("back", row.case.direction))
    ),
)


# Ranks --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shared:
    """The case of a result of ranks."""

    task: str
    scaling: str
    ranks: int
    rows: int
    classes: int
    result: Result = field(compare=False)

    @classmethod
    def of(cls, result: Result) -> Shared:
        return cls(*result.case.name.split(", "), *map(int, result.case.size.split("x")), result)  # type: ignore[arg-type]


def shared_of(benchmark: Benchmark) -> list[Shared]:
    return [Shared.of(result) for result in RANKS.rows(benchmark)]


def _title_of_ranks(result: Result) -> str:
    each = Shared.of(result)
    return f"{each.task}, {each.scaling}, {each.ranks} rank{'s' * (each.ranks > 1)}, {each.classes} classes"


def _sent(result: Result, way: str) -> str:
    kinds = ", ".join(f"{count} {kind}" for kind, count in result.facts["messages"].get(way, {}).items())
    return f"{kinds}: {result.facts['sent'][way]} B" if kinds else ""


def _order_of_ranks(result: Result) -> tuple[Any, ...]:
    each = Shared.of(result)
    return ("cross_entropy", "sparsemax_loss", "logsumexp").index(each.task), each.scaling, each.ranks


RANKS = Page(
    "ranks",
    lambda benchmark, row: "",
    _title_of_ranks,
    lambda benchmark, rows: [
        Column("s", lambda row: seconds(row.seconds)),
        Column(f"{GATHERED} / ours", lambda row: interval(ratio_of(row, GATHERED))),
        Column(f"{TORCH} / ours", lambda row: interval(ratio_of(row, TORCH))),
        Column("messages", lambda row: _sent(row, OURS)),
        Column(f"of {TORCH}", lambda row: _sent(row, TORCH)),
    ],
    "Seconds of a forward and a backward pass of float32 scores, as the first rank sees them, each rank with one thread, and the "
    "time of each other way / ours: the median over turns and their range. gathered: every rank gathers all scores and takes the "
    "function of whole rows; loss_parallel: torch's, of a DTensor. strong: so many classes in all; weak: on each rank. "
    "messages: ours of both passes, with the bytes that a rank gives to them. Results agree with those of all scores within 2e-5.",
    facts=lambda rows: f"{Shared.of(rows[0]).rows} rows",
    beside=(MESSAGE, HANDSHAKE),
    order=_order_of_ranks,
)


# Dask ---------------------------------------------------------------------------------------------------------------------


def _title_of_dask(row: Result) -> str:
    shape, _ = read_dask(row.case.size)
    return f"{row.case.dtype} {list(shape.sizes)}, axis {shape.axis}{PEAKED if row.case.name.endswith(PEAKED) else ''}"


def _twice(benchmark: Benchmark) -> str:
    found = [ratio for row in benchmark.of("dask") if (ratio := row.ratio(PLAIN)) is not None]
    slower = [ratio for ratio in found if ratio < 2]
    rows = f"not on {len(slower)} of {len(found)} rows, lowest {min(slower):.1f}" if slower else "on all rows"
    return f"logsumexp twice as fast as plain Dask: {rows}."


def _held(row: Result, name: str, of: str = "") -> str:
    return f"{row.facts['held'][name]}{of}" if name in row.facts["held"] else ""


DASK = Page(
    "dask",
    lambda benchmark, row: "scores",
    _title_of_dask,
    lambda benchmark, rows: [
        Column("in chunks of", lambda row: str(list(read_dask(row.case.size)[1])), is_left=True),
        Column("from", lambda row: row.case.name.removesuffix(PEAKED), is_left=True),
        Column("plain Dask, ms", lambda row: f"{1e3 * (seconds_of(row, PLAIN) or 0.0):.0f}"),
        Column("sm.dask, ms", lambda row: f"{1e3 * (row.seconds or 0.0):.0f}"),
        Column("times as fast", lambda row: "" if (ratio := row.ratio(PLAIN)) is None else f"{ratio:.1f}"),
        Column("chunks held by plain Dask", lambda row: _held(row, PLAIN, f" of {row.facts['chunks']}")),
        Column("by sm.dask", lambda row: _held(row, OURS)),
    ],
    "Scores are normal numbers times 3; one + 30: with 30 added to one of each row. Chunks held are the most in memory at a "
    "time, where each is read when it is needed, as from files; of all chunks of the array. Times are medians of 7 turns, on "
    "Dask's scheduler of threads, all of the cores.",
    says=_twice,
)

PAGES: Mapping[str, Page] = {page.group: page for page in (MAPS, ATTENTION, HEADS, GRAPH, RANKS, DASK)}
