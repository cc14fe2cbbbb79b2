"""What is shown of maps, losses and sums: all rows, the chosen ones of the documentation, and the targets of a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from softmaxima_lab.bench.case import BACKWARD, FORWARD, UNRELIABLE, Result
from softmaxima_lab.bench.definitions import LEAST_ROWS
from softmaxima_lab.bench.maps import read_shape
from softmaxima_lab.bench.peers import OUR_CPU, PARTIAL_SORT
from softmaxima_lab.bench.record import Benchmark
from softmaxima_lab.bench.rows import COPY, FEW, FLOOR, IN_TURNS, LEARNING, OURS_ALONE, TORCH_ALONE
from softmaxima_lab.pages.bench_tables import (
    EQUAL,
    UNRELIABLY,
    UNSURE,
    Column,
    Page,
    neighbours,
    number,
    ratio_of,
    seconds_of,
    short_ratio,
    untimed,
    with_interval,
)
from softmaxima_lab.pages.markdown import table

# Maps, losses and sums ----------------------------------------------------------------------------------------------------


def labels(benchmark: Benchmark) -> tuple[str, ...]:
    """The peers of maps that took part, in the order of the packages."""
    rows = MAPS.rows(benchmark)
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
        quotient = ratio_of(row, FLOOR)
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
    theirs, ours, both = (seconds_of(copy, peer) or 0.0 for peer in (TORCH_ALONE, OURS_ALONE, IN_TURNS))
    speed = number(copy.facts["bytes"] / copy.seconds / 1e9)
    return f"copy {speed} GB/s ({number(1000 * copy.seconds)} ms), in turns with torch {number(both / (theirs + ours))} × alone"


def _title_of_map(row: Result) -> str:
    return {FORWARD: row.case.name, BACKWARD: "  + backward", LEARNING: "  with grad"}[row.case.direction]


MAPS = Page(
    "maps",
    lambda benchmark, row: row.case.size if len(MAPS.dtypes(benchmark)) == 1 else f"{row.case.size} {row.case.dtype}",
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
        rows = [row for row in MAPS.rows(benchmark) if row.case.size != FEW and self.is_for(row)]
        figures = [(figure, row) for row in rows if (figure := self.figure(benchmark, row)) is not None]
        if not figures:
            return "not measured"
        least, lowest = min(figures, key=lambda pair: pair[0])
        below = sum(figure < self.least for figure, _ in figures)
        which = f"lowest {least:.3g}, {lowest.case}"
        return f"reached on {len(figures)} rows, {which}" if not below else f"not on {below} of {len(figures)} rows, {which}"


def _least_ratio(label: str) -> Callable[[Benchmark, Result], float | None]:
    """The lower end of its interval, where that is known: what is reached for sure."""
    return lambda benchmark, row: row.ratio(label) if (found := ratio_of(row, label)) is None else found.low


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
    first = MAPS.dtypes(benchmark)[:1]
    return [row for row in MAPS.rows(benchmark) if [row.case.dtype] == first and row.case.size != FEW]


def _cell(row: Result | None, peer: str | None) -> str:
    if row is None:
        return ""
    if peer is not None:
        quotient = ratio_of(row, peer)
        return short_ratio(row, peer) if quotient is None else with_interval(quotient) + UNRELIABLY * row.is_unreliable
    scores = read_shape(row.case.size).scores
    return untimed(row) if row.seconds is None else f"{number(1e9 * row.seconds / scores, digits=2)} ns a score"


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
        f"{neighbours(busy).capitalize()} the ratios to torch are {median} times as large in the median of "
        f"{len(pairs)} ({low} to {high} for nine of ten), and {ahead[1]} of them at least 1, where {ahead[0]} are without."
    )
