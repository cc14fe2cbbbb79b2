"""The report of a benchmark: cells of its table, targets of a GPU, and the tables and the picture of the documentation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from softmaxima_lab.bench.checks import Check
from softmaxima_lab.bench.clocks import Quotient, Timing
from softmaxima_lab.bench.definitions import LEAST_ROWS
from softmaxima_lab.bench.peers import OUR_CPU, PARTIAL_SORT
from softmaxima_lab.bench.plan import OVERHEAD_SCORES
from softmaxima_lab.bench.results import UNRELIABLE, Benchmark, Ground, Overhead, Row
from softmaxima_lab.bench.subjects import DIRECTIONS
from softmaxima_lab.pages.markdown import table

if TYPE_CHECKING:
    import plotly.graph_objects as go

# The table ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """A column of the table: its heading, a short one for narrow terminals (none: left out there), and a row's cell."""

    heading: str
    short: str | None
    cell: Callable[[Row], str]


def columns(benchmark: Benchmark, ground: Ground) -> tuple[Column, ...]:
    """The columns of the table of a shape; the row with the backward pass comes below the row without."""
    return (
        Column(
            _heading(benchmark, ground),
            _heading(benchmark, ground),
            lambda row: row.title if row.direction == "forward" else "  + backward",
        ),
        Column("ms", "ms", _milliseconds),
        *(_ratio_column(label) for label in labels(benchmark)),
        Column("± %", "±%", _percent_of_spread),
        Column("GB/s", None, lambda row: "" if row.bytes_a_second is None else number(row.bytes_a_second / 1e9)),
        Column("of copy, %", "copy %", lambda row: _percent(benchmark.share_of_copy(row))),
        Column("/ floor", "/floor", lambda row: "" if row.floor is None else number(row.floor.median)),
    )


def _heading(benchmark: Benchmark, ground: Ground) -> str:
    return ground.shape if len(benchmark.dtypes) == 1 else f"{ground.shape} {ground.dtype}"


def _milliseconds(row: Row) -> str:
    return _untimed(row) if row.timing is None else number(1000 * row.timing.seconds)


def _untimed(row: Row) -> str:
    return "not reached" if row.verdict == "right" else row.verdict


def _ratio_column(label: str) -> Column:
    return Column(f"× {label}", f"×{label.rpartition(' ')[2]}", lambda row: ratio(row, label))


def _percent_of_spread(row: Row) -> str:
    """Half the width of the widest interval, where that does not make the row unreliable."""
    if row.spread is None:
        return ""
    return UNSURE if row.is_unreliable else number(50 * (row.spread - 1), digits=1)


def _percent(share: float | None) -> str:
    return "" if share is None else number(100 * share, digits=2)


def labels(benchmark: Benchmark) -> tuple[str, ...]:
    """The peers that took part, in the order of the packages."""
    found = dict.fromkeys(peer.label for row in benchmark.rows for peer in row.peers)
    packages = [package.lower() for package in benchmark.peers]

    def place(label: str) -> int:
        name = label.lower()
        return packages.index(name if name in packages else name.partition(" ")[0])

    return tuple(sorted(found, key=lambda label: (place(label), len(label))))


def ratio(row: Row, label: str) -> str:
    """How many times faster than the peer we are, ≈ 1 where that is not known to be faster or slower; a word where the peer failed,
    nothing where it has no part.
    """
    value, quotient = row.ratio(label), row.quotient(label)
    if value is not None:
        return EQUAL if quotient is not None and quotient.is_about_one else number(value, digits=2)
    failed = [peer for peer in row.peers if peer.label == label and peer.problem]
    return "" if not failed else "fails" if failed[0].deviation is None else "differs"


def with_interval(quotient: Quotient) -> str:
    """With the digits that tell the ends apart, of the median two or three.

    >>> with_interval(Quotient(1.024, 0.966, 1.083, 25)), with_interval(Quotient(126.3, 119.4, 130.9, 2))
    ('≈ 1 (0.97–1.08)', '126 (119–131)')
    """
    places = -math.floor(math.log10(quotient.median))
    apart = -math.floor(math.log10(max(quotient.high - quotient.low, 1e-9) / 2))
    decimals = max(0, min(2 + places, max(1 + places, apart)))
    middle, low, high = (f"{value:.{decimals}f}" for value in (quotient.median, quotient.low, quotient.high))
    return f"{EQUAL if quotient.is_about_one else middle} ({low}–{high})"


def number(value: float, digits: int = 3) -> str:
    """To so many significant digits, never with an exponent.

    >>> number(1234.5), number(0.01234), number(27.44, digits=2)
    ('1234', '0.0123', '27')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}"


def of_ground(ground: Ground) -> str:
    """A shape in words."""
    return (
        f"copy {number(ground.bytes_a_second / 1e9)} GB/s ({number(1000 * ground.copy.seconds)} ms), "
        f"in turns with torch {number(ground.disturbance)} × alone"
    )


EQUAL, UNSURE = "≈ 1", "?"

CAPTION = (
    "×: time of the peer / ours in the same turn of several calls, the median over turns; above 1 we are faster. "
    f"± %: half the width of the widest interval of the row, which holds half of the turns; {EQUAL}: an interval with 1 in it; "
    f"{UNSURE}: the ends of one are more than a factor {number(UNRELIABLE, digits=1)} apart, and the row is unreliable. "
    f"Nothing is timed before it agrees with the float64 definition, on at least {LEAST_ROWS} rows, and gives the same on all rows "
    "in another order, nor told if it does not agree after; peers to 0.1 % in float32. "
    f"k={PARTIAL_SORT}: with the partial sort that the entmax package offers. "
    "Bytes: inputs read once and outputs written once, with the backward pass x and g read, p and ∂x written (a loss: x read, ∂x "
    "written); of copy: the share of the bandwidth of out.copy_(x). "
    "Floor: x.clone() and x.amax() in the same turns, whose time ours is divided by. "
    "In turns with torch: time of torch's softmax and ours called in turns / of each called alone; above 1 they disturb each other."
)


@dataclass(frozen=True)
class OverheadColumn:
    """A column of the table of overheads."""

    heading: str
    cell: Callable[[Overhead], str]


def _microseconds(timing: Timing | None) -> str:
    return "wrong" if timing is None else number(1e6 * timing.called)


OVERHEAD_COLUMNS = (
    OverheadColumn(f"a call on {OVERHEAD_SCORES} scores, µs", lambda overhead: f"{overhead.name}, {overhead.by}"),
    OverheadColumn("forward", lambda overhead: _microseconds(overhead.forward)),
    OverheadColumn("with grad", lambda overhead: _microseconds(overhead.forward_with_grad)),
    OverheadColumn("+ backward", lambda overhead: _microseconds(overhead.forward_backward)),
)


# What is wrong, and targets -----------------------------------------------------------------------------------------------


def complaint(found: Row | Check | Overhead) -> str:
    """What is wrong, in words."""
    if isinstance(found, Overhead):
        return f"{found.name} on {OVERHEAD_SCORES} scores: {found.problem}"
    if isinstance(found, Check):
        return f"{found}: {found.problem or f'{found.units:.3g} times the tolerance away'}"
    return f"{where(found)}: {found.problem}"


def where(row: Row) -> str:
    """What was measured, in words."""
    return f"{row.title} on {row.shape}, {row.dtype}, {row.direction}"


LONG, LARGE = 1024, 64e6  # scores of a row, bytes that are moved: what the targets of a GPU are for
DENSE = ("softmax", "log_softmax", "logsumexp", "cross_entropy")
SPARSE = ("sparsemax", "entmax15", "entmax")


@dataclass(frozen=True)
class Target:
    """A figure that every row which has it should reach on a GPU; `large`: on long rows and large tensors only."""

    title: str
    least: float
    figure: Callable[[Benchmark, Row], float | None]
    names: tuple[str, ...] = ()  # of subjects; none: all
    large: bool = False

    def outcome(self, benchmark: Benchmark) -> str:
        """Whether it is reached, in words."""
        figures = [
            (figure, row)
            for row in benchmark.rows
            if (not self.names or row.name in self.names)
            and (not self.large or (row.n >= LONG and row.bytes >= LARGE))
            and (figure := self.figure(benchmark, row)) is not None
        ]
        if not figures:
            return "not measured"
        least, lowest = min(figures, key=lambda pair: pair[0])
        below = sum(figure < self.least for figure, _ in figures)
        which = f"lowest {least:.3g}, {where(lowest)}"
        return f"reached on {len(figures)} rows, {which}" if not below else f"not on {below} of {len(figures)} rows, {which}"


def _ratio_to(label: str) -> Callable[[Benchmark, Row], float | None]:
    """The lower end of its interval, where that is known: what is reached for sure."""
    return lambda benchmark, row: row.ratio(label) if (found := row.quotient(label)) is None else found.low


TARGETS = (
    Target("softmax, log_softmax, logsumexp, cross-entropy: 0.85 of the copy", 0.85, Benchmark.share_of_copy, DENSE, True),
    Target("sparsemax, entmax15, entmax: 0.6 of the copy", 0.60, Benchmark.share_of_copy, SPARSE, True),
    Target("sparsemax, entmax15, entmax: 20 times the entmax package", 20.0, _ratio_to("entmax"), SPARSE, True),
    Target("ahead of Liger everywhere", 1.0, _ratio_to("Liger")),
    Target("ahead of adasplash everywhere", 1.0, _ratio_to("adasplash")),
    Target("100 times our CPU path", 100.0, _ratio_to(OUR_CPU)),
)


# Tables and picture of the documentation ----------------------------------------------------------------------------------

# (name, direction, peer); the other rows are in the JSON.
README_ROWS = (
    ("logsumexp", "forward", "torch"),
    ("softmax", "forward", "torch"),
    ("log_softmax", "forward", "torch"),
    ("cross_entropy", "forward+backward", "torch"),
    ("sparsemax", "forward", "entmax"),
    ("sparsemax", "forward", f"entmax k={PARTIAL_SORT}"),
    ("entmax15", "forward", "entmax"),
    ("entmax15", "forward", f"entmax k={PARTIAL_SORT}"),
    ("entmax", "forward", "entmax"),
    ("sparsemax_loss", "forward+backward", "entmax"),
    ("sparsemax_loss", "forward+backward", f"entmax k={PARTIAL_SORT}"),
    ("entmax15_loss", "forward+backward", "entmax"),
    ("entmax15_loss", "forward+backward", f"entmax k={PARTIAL_SORT}"),
)

# The same of docs/logsumexp.md. Without a peer: seconds a score.
LOGSUMEXP_ROWS = (
    ("logsumexp", "forward", "torch"),
    ("logsumexp", "forward", "scipy"),
    ("logsumexp", "forward+backward", "torch"),
    ("weighted_logsumexp", "forward", "torch"),
    ("weighted_logsumexp", "forward", "scipy"),
    ("log_mean_exp", "forward", "torch"),
    ("logaddexp", "forward", "torch"),
    ("logcumsumexp", "forward", "torch"),
    ("quantized_logsumexp", "forward", "torch"),
    ("state_update", "forward", "torch"),
    ("sparsified_logsumexp", "forward", "torch"),
    ("bounds", "forward", "torch"),
    ("compensated_logsumexp", "forward", None),
)


UNRELIABLY = ", unreliable"

TABLE_CAPTION = (
    "Time of the peer / time of softmaxima in the same turn of several calls, the median over turns, and an interval that holds "
    f"half of the turns; {EQUAL} where 1 is in it. "
    f"k={PARTIAL_SORT}: with the partial sort that the entmax package offers beside its full one, its default."
)


def markdown_table(benchmark: Benchmark, chosen: Sequence[tuple[str, str, str | None]] = README_ROWS) -> str:
    """The ratios of the chosen rows over the shapes."""
    grounds, measured = _of_first_dtype(benchmark)
    shapes, scores = [ground.shape for ground in grounds], {ground.shape: ground.scores for ground in grounds}
    lines = []
    for name, direction, label in chosen:
        title = next((row.title for row in measured if (row.name, row.direction) == (name, direction)), "")
        rows = {row.shape: row for row in measured if (row.title, row.direction) == (title, direction)}
        cells = [_cell(rows[shape], label, scores[shape]) if shape in rows else "" for shape in shapes]
        if any(cells):
            what = f"`{title}`" + (" and its gradient" if direction == "forward+backward" else "")
            lines.append([what, label or "", *cells])
    return table(["times as fast as", "", *(shape.replace("x", " × ") for shape in shapes)], lines, left=(0, 1))


def _cell(row: Row, label: str | None, scores: int) -> str:
    if label is not None:
        quotient = row.quotient(label)
        return ratio(row, label) if quotient is None else with_interval(quotient) + UNRELIABLY * row.is_unreliable
    return _untimed(row) if row.timing is None else f"{number(1e9 * row.timing.seconds / scores, digits=2)} ns a score"


def markdown_of_rows(benchmark: Benchmark) -> str:
    """Every row that was timed, a table a shape and dtype."""
    tables = []
    for ground in benchmark.grounds:
        shown = columns(benchmark, ground)
        timed = [row for row in benchmark.rows if row.timing is not None and benchmark.ground(row) == ground]
        if timed:
            tables.append(table([column.heading for column in shown], [[column.cell(row) for column in shown] for row in timed]))
    return "\n\n".join(tables)


def beside_others(quiet: Benchmark, busy: Benchmark) -> str:
    """What becomes of the ratios to torch on a machine that others use, in words."""
    rows = {(row.title, row.direction, row.shape, row.dtype): row.ratio("torch") for row in quiet.rows}
    pairs = [
        (before, then)
        for row in busy.rows
        if (then := row.ratio("torch")) and (before := rows.get((row.title, row.direction, row.shape, row.dtype)))
    ]
    if not pairs:
        return ""
    changes = sorted(then / before for before, then in pairs)
    median, low, high = (number(changes[i]) for i in (len(changes) // 2, len(changes) // 20, -1 - len(changes) // 20))
    ahead = [sum(ratio >= 1 for ratio in ratios) for ratios in zip(*pairs, strict=True)]
    return (
        f"{_neighbours(busy).capitalize()} the ratios to torch are {median} times as large in the median of "
        f"{len(pairs)} ({low} to {high} for nine of ten), and {ahead[1]} of them at least 1, where {ahead[0]} are without."
    )


def made_with(benchmark: Benchmark) -> str:
    """Where and with what it was measured, in words."""
    versions = ", ".join(f"{name} {version}" for name, version in benchmark.versions.items())
    threads = benchmark.machine["threads"]
    machine = f"{benchmark.machine['processor']}, {threads} thread{'s' * (threads != 1)}"
    if "neighbours" in benchmark.machine:
        machine += f", {_neighbours(benchmark)}"
    if "device" in benchmark.machine:
        machine = f"{benchmark.machine['device']}, {machine}"
    commit = "" if benchmark.commit is None else f", commit {benchmark.commit}"
    return f"{benchmark.date}{commit}, {machine}, {' and '.join(benchmark.dtypes)}, {versions}"


def _neighbours(benchmark: Benchmark) -> str:
    processes = benchmark.machine["neighbours"]
    return f"beside {processes} busy process{'es' * (processes != 1)}"


# Okabe and Ito's colours, from few scores to many.
COLOURS = ("#56B4E9", "#009E73", "#E69F00", "#D55E00", "#CC79A7", "#0072B2", "#8c8c8c")
ROW_HEIGHT = 19  # pixels


def picture(benchmark: Benchmark) -> go.Figure:
    """The ratios on a logarithmic axis: a line for each subject and peer, a dot for each shape, a panel for each direction."""
    from plotly.subplots import make_subplots

    lines = _lines(benchmark)
    places = [f"{title}  <span style='color:#8c8c8c'>{label}</span>" for title, label in lines]
    plot = make_subplots(1, 2, shared_yaxes=True, horizontal_spacing=0.03, subplot_titles=DIRECTIONS)
    grounds, measured = _of_first_dtype(benchmark)
    shapes = [ground.shape for ground in grounds]
    drawn = []
    for column, direction in enumerate(DIRECTIONS, 1):
        for shape, colour in zip(shapes, _colours(len(shapes)), strict=True):
            rows = {row.title: row for row in measured if (row.shape, row.direction) == (shape, direction)}
            values = [rows[title].ratio(label) if title in rows else None for title, label in lines]
            quotients = [rows[title].quotient(label) if title in rows else None for title, label in lines]
            unsure = [title in rows and rows[title].is_unreliable for title, _ in lines]
            drawn += [value for value in values if value is not None]
            plot.add_scatter(
                x=values,
                y=places,
                mode="markers",
                name=shape.replace("x", " × "),
                marker={"size": 9, "color": colour, "symbol": list(map(_symbol, quotients, unsure)), "line": {"width": 0.7}},
                error_x={
                    "symmetric": False,
                    "array": [0.0 if each is None else each.high - each.median for each in quotients],
                    "arrayminus": [0.0 if each is None else each.median - each.low for each in quotients],
                    "thickness": 1,
                    "width": 0,
                },
                showlegend=column == 1,
                row=1,
                col=column,
            )
        plot.add_vline(x=1, line={"color": "#444", "width": 1}, row=1, col=column)  # type: ignore[arg-type]
    low, high = min([*drawn, 0.8]) / 1.3, max([*drawn, 10.0]) * 1.3
    plot.update_xaxes(
        type="log", range=[math.log10(low), math.log10(high)], **_ticks(low, high), gridcolor="#e6e6e6", showgrid=True
    )
    plot.update_yaxes(range=[len(lines) - 0.3, -0.7], gridcolor="#f0f0f0", showgrid=True, ticks="", showline=False)
    plot.update_layout(
        template="simple_white",
        width=1000,
        height=ROW_HEIGHT * len(lines) + 110,
        margin={"l": 10, "r": 20, "t": 64, "b": 46},
        legend={"orientation": "h", "x": 1, "xanchor": "right", "y": 1, "yref": "container", "yanchor": "top"},
        font={"family": "Helvetica, Arial, sans-serif", "size": 12.5},
    )
    plot.update_yaxes(automargin=True, row=1, col=1)
    plot.add_annotation(
        text="time of the peer / time of softmaxima; right of the line softmaxima is faster, "
        "hollow: neither is, for 1 is in the interval; ×: unreliable",
        xref="paper", yref="paper", x=0.5, y=0, yshift=-30, yanchor="top", showarrow=False,
    )  # fmt: skip
    return plot


def _symbol(quotient: Quotient | None, unsure: bool) -> str:
    return "x-thin-open" if unsure else "circle-open" if quotient is not None and quotient.is_about_one else "circle"


def _of_first_dtype(benchmark: Benchmark) -> tuple[list[Ground], list[Row]]:
    """What tables and picture show; all is in the JSON."""
    shown = benchmark.dtypes[0]
    return [g for g in benchmark.grounds if g.dtype == shown], [row for row in benchmark.rows if row.dtype == shown]


def _lines(benchmark: Benchmark) -> list[tuple[str, str]]:
    """(title, peer) of whatever has a ratio, peer by peer."""
    _, measured = _of_first_dtype(benchmark)
    titles = list(dict.fromkeys(row.title for row in measured))
    found = {(row.title, label) for row in measured for label in labels(benchmark) if row.ratio(label) is not None}
    return [(title, label) for label in labels(benchmark) for title in titles if (title, label) in found]


def _colours(count: int) -> Sequence[str]:
    return [COLOURS[index % len(COLOURS)] for index in range(count)]


def _ticks(low: float, high: float) -> dict[str, Any]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)))
    ticks = [tick for power in powers for digit in (1, 3) if low <= (tick := digit * 10.0**power) <= high]
    return {"tickvals": ticks, "ticktext": [f"{tick:g}×" for tick in ticks]}
