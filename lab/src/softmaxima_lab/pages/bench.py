"""What `softmaxima bench` found, in words: one way to make tables, for the terminal and for pages, and what each group shows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from softmaxima_lab.bench.attention import MEMORY, SIZE
from softmaxima_lab.bench.attention import read_size as read_attention
from softmaxima_lab.bench.case import BACKWARD, FORWARD, OURS, UNRELIABLE, Result
from softmaxima_lab.bench.clock import Quotient
from softmaxima_lab.bench.dask import PEAKED, PLAIN
from softmaxima_lab.bench.dask import read_size as read_dask
from softmaxima_lab.bench.definitions import LEAST_ROWS
from softmaxima_lab.bench.graph import INDEX, PEER
from softmaxima_lab.bench.heads import MEMORY as MEMORY_OF_HEADS
from softmaxima_lab.bench.heads import read_size as read_heads
from softmaxima_lab.bench.maps import read_shape
from softmaxima_lab.bench.peers import OUR_CPU, PARTIAL_SORT
from softmaxima_lab.bench.ranks import GATHERED, HANDSHAKE, MESSAGE, TORCH
from softmaxima_lab.bench.record import Benchmark
from softmaxima_lab.bench.rows import COPY, FEW, FLOOR, IN_TURNS, LEARNING, OURS_ALONE, TORCH_ALONE
from softmaxima_lab.pages.markdown import table

# Numbers ------------------------------------------------------------------------------------------------------------------

EQUAL, UNSURE, UNRELIABLY = "≈ 1", "?", ", unreliable"


def number(value: float, digits: int = 3) -> str:
    """To so many significant digits, never with an exponent.

    >>> number(1234.5), number(0.01234), number(27.44, digits=2)
    ('1234', '0.0123', '27')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}"


def seconds(value: float | None) -> str:
    return "" if value is None else f"{value:#.3g}".rstrip(".")


def milliseconds(value: float | None) -> str:
    return "" if value is None else seconds(1e3 * value)


def interval(quotient: Quotient | None) -> str:
    return "" if quotient is None else "{:.2f} ({:.2f}–{:.2f})".format(*quotient)


def with_interval(quotient: Quotient) -> str:
    """With the digits that tell the ends apart, of the median two or three.

    >>> with_interval(Quotient(1.024, 0.966, 1.083)), with_interval(Quotient(126.3, 119.4, 130.9))
    ('≈ 1 (0.97–1.08)', '126 (119–131)')
    """
    places = -math.floor(math.log10(quotient.median))
    apart = -math.floor(math.log10(max(quotient.high - quotient.low, 1e-9) / 2))
    decimals = max(0, min(2 + places, max(1 + places, apart)))
    middle, low, high = (f"{value:.{decimals}f}" for value in quotient)
    return f"{EQUAL if quotient.is_about_one else middle} ({low}–{high})"


def short_ratio(result: Result, peer: str) -> str:
    """How many times faster than the peer we are, ≈ 1 where that is not known to be faster or slower; a word where the peer failed,
    nothing where it has no part.
    """
    its = result.peers.get(peer)
    if its is None:
        return ""
    if its.problem:
        return "fails" if its.deviation is None else "differs"
    value = result.ratio(peer)
    return "" if value is None else EQUAL if its.ratio is not None and its.ratio.is_about_one else number(value, digits=2)


def _seconds_of(result: Result, peer: str) -> float | None:
    return result.peers[peer].seconds if peer in result.peers else None


def _ratio_of(result: Result, peer: str) -> Quotient | None:
    return result.peers[peer].ratio if peer in result.peers else None


# Tables -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """A heading, a result's cell, and a short heading for narrow terminals; "-": the column is left out there."""

    heading: str
    cell: Callable[[Result], str]
    short: str = ""
    is_left: bool = False


@dataclass(frozen=True)
class Page:
    """How the results of a group are shown: a table for each heading, a row for each title, what is said of it, and where."""

    heading: Callable[[Benchmark, Result], str]
    title: Callable[[Result], str]
    columns: Callable[[Benchmark, Sequence[Result]], Sequence[Column]]
    caption: str
    facts: Callable[[Sequence[Result]], str] = lambda results: ""  # that all results share
    below: Callable[[Benchmark, Sequence[Result]], str] = lambda benchmark, table: ""  # a line below a table
    says: Callable[[Benchmark], str] = lambda benchmark: ""  # a paragraph after all tables
    beside: tuple[str, ...] = ()  # names of results that are no rows
    more: Callable[[Sequence[Result]], list[list[str]]] = lambda results: []  # rows of peers
    order: Callable[[Result], Any] = lambda result: 0

    def rows(self, results: Iterable[Result]) -> list[Result]:
        return sorted((r for r in results if not r.case.name.startswith(self.beside)), key=self.order)


@dataclass(frozen=True)
class Table:
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    wrong: Sequence[bool]
    below: str = ""


def tables(benchmark: Benchmark, group: str, of: Callable[[Result], bool] = lambda result: True) -> list[Table]:
    """Those of a group: rows that are not timed say why."""
    page, by_heading = PAGES[group], dict[str, list[Result]]()
    for result in page.rows(filter(of, benchmark.of(group))):
        by_heading.setdefault(page.heading(benchmark, result), []).append(result)
    found = []
    for heading, results in by_heading.items():
        columns = [Column(heading, page.title, heading), *page.columns(benchmark, results)]
        rows = [
            [page.title(result), _untimed(result), *[""] * (len(columns) - 2)]
            if result.seconds is None
            else [column.cell(result) for column in columns]
            for result in results
        ]
        more = page.more(results)
        wrong = [result.verdict == "wrong" for result in results] + [False] * len(more)
        found.append(Table(columns, rows + more, wrong, page.below(benchmark, results)))
    return found


def _untimed(result: Result) -> str:
    return "not reached" if result.verdict == "right" else result.verdict


def in_markdown(found: Iterable[Table]) -> str:
    return "\n\n".join(
        table(
            [column.heading for column in each.columns],
            each.rows,
            left=[i for i, column in enumerate(each.columns) if column.is_left or not i],
        )
        for each in found
    )


def markdown(*benchmarks: Benchmark, group: str) -> str:
    """Everything of a group, for a page; of several benchmarks, what is the same once."""
    parts = []
    for benchmark in benchmarks:
        parts += [in_markdown(tables(benchmark, group)), PAGES[group].says(benchmark), f"*{made_with(benchmark, group)}.*"]
    return "\n\n".join([*filter(None, parts), f"*{PAGES[group].caption}*"])


def made_with(benchmark: Benchmark, group: str = "maps") -> str:
    """When, where and with what it was measured, in words."""
    machine, results = benchmark.machine, PAGES[group].rows(benchmark.of(group))
    facts = PAGES[group].facts(results) if results else ""
    threads = machine["threads"]
    told = [
        *([facts] if facts else []),
        benchmark.date,
        *([] if benchmark.commit is None else [f"commit {benchmark.commit}"]),
        *([str(machine["device"])] if "device" in machine else []),
        str(machine["processor"]),
        f"{threads} thread{'s' * (threads != 1)}",
        *([_neighbours(benchmark)] if "neighbours" in machine else []),
        " and ".join(dtypes(benchmark, group)),
        *(f"{name} {version}" for name, version in benchmark.versions.items()),
    ]
    return ", ".join(told)


def dtypes(benchmark: Benchmark, group: str = "maps") -> list[str]:
    return list(dict.fromkeys(result.case.dtype for result in PAGES[group].rows(benchmark.of(group))))


def _neighbours(benchmark: Benchmark) -> str:
    processes = benchmark.machine["neighbours"]
    return f"beside {processes} busy process{'es' * (processes != 1)}"


# Maps, losses and sums ----------------------------------------------------------------------------------------------------


def labels(benchmark: Benchmark) -> tuple[str, ...]:
    """The peers of maps that took part, in the order of the packages."""
    rows = PAGES["maps"].rows(benchmark.of("maps"))
    found = dict.fromkeys(peer for row in rows for peer in row.peers if peer != FLOOR)
    packages = [package.lower() for package in benchmark.peers]

    def place(label: str) -> int:
        name = label.lower() if label.lower() in packages else label.lower().partition(" ")[0]
        return packages.index(name) if name in packages else len(packages)

    return tuple(sorted(found, key=lambda label: (place(label), len(label))))


def share_of_copy(benchmark: Benchmark, row: Result) -> float | None:
    """Of the bandwidth of a copy of the same shape."""
    copy = copy_of(benchmark, row)
    if row.seconds is None or copy is None or copy.seconds is None:
        return None
    return row.facts["bytes"] / row.seconds / (copy.facts["bytes"] / copy.seconds)


def copy_of(benchmark: Benchmark, row: Result) -> Result | None:
    found = (each for each in benchmark.of("maps", COPY) if (each.case.size, each.case.dtype) == (row.case.size, row.case.dtype))
    return next(found, None)


def _columns_of_maps(benchmark: Benchmark, results: Sequence[Result]) -> list[Column]:
    def percent_of_spread(row: Result) -> str:
        """Half the width of the widest interval, where that does not make the row unreliable."""
        spread = row.spread
        return "" if spread is None else UNSURE if row.is_unreliable else number(50 * (spread - 1), digits=1)

    def floor(row: Result) -> str:
        quotient = _ratio_of(row, FLOOR)
        return "" if quotient is None else number(1 / quotient.median)

    def share(row: Result) -> str:
        found = share_of_copy(benchmark, row)
        return "" if found is None else number(100 * found, digits=2)

    return [
        Column("ms", lambda row: number(1e3 * (row.seconds or 0.0))),
        *(
            Column(f"× {peer}", lambda row, peer=peer: short_ratio(row, peer), f"×{peer.rpartition(' ')[2]}")
            for peer in labels(benchmark)
        ),
        Column("± %", percent_of_spread, "±%"),
        Column("GB/s", lambda row: number(row.facts["bytes"] / (row.seconds or 1.0) / 1e9) if "bytes" in row.facts else "", "-"),
        Column("of copy, %", share, "copy %"),
        Column("/ floor", floor, "/floor"),
    ]


def _below_maps(benchmark: Benchmark, results: Sequence[Result]) -> str:
    copy = copy_of(benchmark, results[0])
    if copy is None or copy.seconds is None:
        return ""
    theirs, ours, both = (_seconds_of(copy, peer) or 0.0 for peer in (TORCH_ALONE, OURS_ALONE, IN_TURNS))
    speed = number(copy.facts["bytes"] / copy.seconds / 1e9)
    return f"copy {speed} GB/s ({number(1000 * copy.seconds)} ms), in turns with torch {number(both / (theirs + ours))} × alone"


def _title_of_map(row: Result) -> str:
    return {FORWARD: row.case.name, BACKWARD: "  + backward", LEARNING: "  with grad"}[row.case.direction]


MAPS = Page(
    lambda benchmark, row: row.case.size if len(dtypes(benchmark)) == 1 else f"{row.case.size} {row.case.dtype}",
    _title_of_map,
    _columns_of_maps,
    "×: time of the peer / ours in the same turn of several calls, the median over turns; above 1 we are faster. "
    f"± %: half the width of the widest interval of the row, which holds half of the turns; {EQUAL}: an interval with 1 in it; "
    f"{UNSURE}: the ends of one are more than a factor {number(UNRELIABLE, digits=1)} apart, and the row is unreliable. "
    f"Nothing is timed before it agrees with the float64 definition, on at least {LEAST_ROWS} rows, and gives the same on all rows "
    "in another order, nor told if it does not agree after; peers to 0.1 % in float32. "
    f"k={PARTIAL_SORT}: with the partial sort that the entmax package offers. "
    "Bytes: inputs read once and outputs written once, with the backward pass x and g read, p and ∂x written (a loss: x read, ∂x "
    "written); of copy: the share of the bandwidth of out.copy_(x). "
    "Floor: x.clone() and x.amax() in the same turns, whose time ours is divided by. "
    "In turns with torch: time of torch's softmax and ours called in turns / of each alone; above 1 they disturb each other. "
    f"{FEW}: a call on few scores, what it takes whatever it computes.",
    below=_below_maps,
    says=lambda benchmark: "\n".join(f"- {told}." for told in outcomes(benchmark)) if benchmark.device != "cpu" else "",
    beside=(COPY,),
)


# Targets of a GPU ---------------------------------------------------------------------------------------------------------

LONG, LARGE = 1024, 64e6  # scores of a row, bytes that are moved: what the targets of a GPU are for
DENSE = ("softmax", "log_softmax", "logsumexp", "cross_entropy")
SPARSE = ("sparsemax", "entmax15", "entmax")


@dataclass(frozen=True)
class Target:
    """A figure that every row which has it should reach on a GPU; `large`: on long rows and large tensors only."""

    title: str
    least: float
    figure: Callable[[Benchmark, Result], float | None]
    names: tuple[str, ...] = ()  # of subjects; none: all
    large: bool = False

    def is_for(self, row: Result) -> bool:
        large = not self.large or (read_shape(row.case.size).n >= LONG and row.facts["bytes"] >= LARGE)
        return large and (not self.names or row.case.name.partition(" ")[0] in self.names)

    def outcome(self, benchmark: Benchmark) -> str:
        """Whether it is reached, in words."""
        rows = [row for row in PAGES["maps"].rows(benchmark.of("maps")) if row.case.size != FEW and self.is_for(row)]
        figures = [(figure, row) for row in rows if (figure := self.figure(benchmark, row)) is not None]
        if not figures:
            return "not measured"
        least, lowest = min(figures, key=lambda pair: pair[0])
        below = sum(figure < self.least for figure, _ in figures)
        which = f"lowest {least:.3g}, {lowest.case}"
        return f"reached on {len(figures)} rows, {which}" if not below else f"not on {below} of {len(figures)} rows, {which}"


def _least_ratio(label: str) -> Callable[[Benchmark, Result], float | None]:
    """The lower end of its interval, where that is known: what is reached for sure."""
    return lambda benchmark, row: row.ratio(label) if (found := _ratio_of(row, label)) is None else found.low


TARGETS = (
    Target("softmax, log_softmax, logsumexp, cross-entropy: 0.85 of the copy", 0.85, share_of_copy, DENSE, True),
    Target("sparsemax, entmax15, entmax: 0.6 of the copy", 0.60, share_of_copy, SPARSE, True),
    Target("sparsemax, entmax15, entmax: 20 times the entmax package", 20.0, _least_ratio("entmax"), SPARSE, True),
    Target("ahead of Liger everywhere", 1.0, _least_ratio("Liger")),
    Target("ahead of adasplash everywhere", 1.0, _least_ratio("adasplash")),
    Target("100 times our CPU path", 100.0, _least_ratio(OUR_CPU)),
)


def outcomes(benchmark: Benchmark) -> list[str]:
    return [f"{target.title}: {target.outcome(benchmark)}" for target in TARGETS]


# Tables of chosen rows ----------------------------------------------------------------------------------------------------

# (name, direction, peer); the other rows are in the JSON.
README_ROWS = (
    ("logsumexp", FORWARD, "torch"),
    ("softmax", FORWARD, "torch"),
    ("log_softmax", FORWARD, "torch"),
    ("cross_entropy", BACKWARD, "torch"),
    ("sparsemax", FORWARD, "entmax"),
    ("sparsemax", FORWARD, f"entmax k={PARTIAL_SORT}"),
    ("entmax15", FORWARD, "entmax"),
    ("entmax15", FORWARD, f"entmax k={PARTIAL_SORT}"),
    ("entmax alpha=1.3", FORWARD, "entmax"),
    ("sparsemax_loss", BACKWARD, "entmax"),
    ("sparsemax_loss", BACKWARD, f"entmax k={PARTIAL_SORT}"),
    ("entmax15_loss", BACKWARD, "entmax"),
    ("entmax15_loss", BACKWARD, f"entmax k={PARTIAL_SORT}"),
)

# The same of docs/logsumexp.md. Without a peer: seconds a score.
LOGSUMEXP_ROWS = (
    ("logsumexp", FORWARD, "torch"),
    ("logsumexp", FORWARD, "scipy"),
    ("logsumexp", BACKWARD, "torch"),
    ("weighted_logsumexp", FORWARD, "torch"),
    ("weighted_logsumexp", FORWARD, "scipy"),
    *((name, FORWARD, "torch") for name in ("log_mean_exp", "logaddexp", "logcumsumexp", "quantized_logsumexp")),
    *((name, FORWARD, "torch") for name in ("state_update", "sparsified_logsumexp", "bounds")),
    ("compensated_logsumexp", FORWARD, None),
)

TABLE_CAPTION = (
    "Time of the peer / time of softmaxima in the same turn of several calls, the median over turns, and an interval that holds "
    f"half of the turns; {EQUAL} where 1 is in it. "
    f"k={PARTIAL_SORT}: with the partial sort that the entmax package offers beside its full one, its default."
)


def chosen_table(benchmark: Benchmark, chosen: Sequence[tuple[str, str, str | None]] = README_ROWS) -> str:
    """The ratios of the chosen rows over the shapes, in the first dtype."""
    measured = {(row.case.name, row.case.direction, row.case.size): row for row in shown_of_maps(benchmark)}
    sizes = list(dict.fromkeys(row.case.size for row in shown_of_maps(benchmark)))
    lines = []
    for name, direction, peer in chosen:
        cells = [_cell(measured.get((name, direction, size)), peer) for size in sizes]
        if any(cells):
            lines.append([f"`{name}`" + " and its gradient" * (direction == BACKWARD), peer or "", *cells])
    return table(["times as fast as", "", *(size.replace("x", " × ") for size in sizes)], lines, left=(0, 1))


def shown_of_maps(benchmark: Benchmark) -> list[Result]:
    """What tables of chosen rows and the picture show: the first dtype, without calls on few scores; all is in the JSON."""
    first = dtypes(benchmark)[:1]
    return [row for row in PAGES["maps"].rows(benchmark.of("maps")) if [row.case.dtype] == first and row.case.size != FEW]


def _cell(row: Result | None, peer: str | None) -> str:
    if row is None:
        return ""
    if peer is not None:
        quotient = _ratio_of(row, peer)
        return short_ratio(row, peer) if quotient is None else with_interval(quotient) + UNRELIABLY * row.is_unreliable
    scores = read_shape(row.case.size).scores
    return _untimed(row) if row.seconds is None else f"{number(1e9 * row.seconds / scores, digits=2)} ns a score"


def beside_others(quiet: Benchmark, busy: Benchmark) -> str:
    """What becomes of the ratios to torch on a machine that others use, in words."""
    rows = {row.case: row.ratio("torch") for row in shown_of_maps(quiet)}
    found = [(rows.get(row.case), row.ratio("torch")) for row in shown_of_maps(busy)]
    pairs = [(before, then) for before, then in found if before is not None and then is not None]
    if not pairs:
        return ""
    changes = sorted(then / before for before, then in pairs)
    median, low, high = (number(changes[i]) for i in (len(changes) // 2, len(changes) // 20, -1 - len(changes) // 20))
    ahead = [sum(ratio >= 1 for ratio in ratios) for ratios in zip(*pairs, strict=True)]
    return (
        f"{_neighbours(busy).capitalize()} the ratios to torch are {median} times as large in the median of "
        f"{len(pairs)} ({low} to {high} for nine of ten), and {ahead[1]} of them at least 1, where {ahead[0]} are without."
    )


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
        Column("torch, ms", lambda row: milliseconds(_seconds_of(row, "torch"))),
        Column("ratio", lambda row: interval(_ratio_of(row, "torch"))),
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

    peers = dict.fromkeys(peer for row in PAGES["heads"].rows(benchmark.of("heads")) for peer in row.peers)
    return [
        Column("s", lambda row: seconds(row.seconds)),
        *(Column(f"{peer} / ours", lambda row, peer=peer: interval(_ratio_of(row, peer))) for peer in peers),
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
    theirs, ours = _seconds_of(row, peer), row.seconds if over == OURS else _seconds_of(row, over)
    return "" if theirs is None or ours is None else f"{theirs / ours:.2f}"


def _over_ours(row: Result, peer: str) -> str:
    its = _ratio_of(row, peer)
    return "" if its is None else f"{quotient(row, peer, OURS)} ({its.low:.2f}–{its.high:.2f})"


def _title_of_graph(row: Result) -> str:
    task, _, order = row.case.name.partition(", ")
    return f"{task}, {'forward' if row.case.direction == FORWARD else 'forward and backward'}, {order}"


def _facts_of_graph(rows: Sequence[Result]) -> str:
    facts = rows[0].facts
    nodes = f"{facts['nodes']} nodes of at most {facts['largest']} edges"
    return f"{rows[0].case.size} edges, {nodes}, a copy takes {seconds(facts['copy'])} s"


GRAPH = Page(
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
    return [Shared.of(result) for result in PAGES["ranks"].rows(benchmark.of("ranks"))]


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
    lambda benchmark, row: "",
    _title_of_ranks,
    lambda benchmark, rows: [
        Column("s", lambda row: seconds(row.seconds)),
        Column(f"{GATHERED} / ours", lambda row: interval(_ratio_of(row, GATHERED))),
        Column(f"{TORCH} / ours", lambda row: interval(_ratio_of(row, TORCH))),
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
    lambda benchmark, row: "scores",
    _title_of_dask,
    lambda benchmark, rows: [
        Column("in chunks of", lambda row: str(list(read_dask(row.case.size)[1])), is_left=True),
        Column("from", lambda row: row.case.name.removesuffix(PEAKED), is_left=True),
        Column("plain Dask, ms", lambda row: f"{1e3 * (_seconds_of(row, PLAIN) or 0.0):.0f}"),
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

PAGES: Mapping[str, Page] = {
    "maps": MAPS,
    "attention": ATTENTION,
    "heads": HEADS,
    "graph": GRAPH,
    "ranks": RANKS,
    "dask": DASK,
}
