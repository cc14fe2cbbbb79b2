"""The pictures of what `softmaxima bench` found: maps, attention, graphs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from softmaxima_lab.bench.attention import CAUSAL, LINEAR, MEMORY
from softmaxima_lab.bench.attention import read_size as read_attention
from softmaxima_lab.bench.case import BACKWARD, FORWARD, OURS, Result
from softmaxima_lab.bench.clock import Quotient
from softmaxima_lab.bench.graph import INDEX, PEER
from softmaxima_lab.bench.record import Benchmark
from softmaxima_lab.pages.bench import ATTENTION, GRAPH
from softmaxima_lab.pages.bench_maps import labels, shown_of_maps
from softmaxima_lab.pages.figures import ABOVE, COLOURS, FONT, GREY, GRID, styled

# Okabe and Ito's colours, from few scores to many.
OF_SIZES = ("#56B4E9", "#009E73", "#E69F00", "#D55E00", "#CC79A7", "#0072B2", "#8c8c8c")
ROW_HEIGHT = 19  # pixels


def of_maps(benchmark: Benchmark) -> go.Figure:
    """The ratios on a logarithmic axis: a line for each subject and peer, a dot for each shape, a panel for each direction."""
    measured = {(row.case.name, row.case.direction, row.case.size): row for row in shown_of_maps(benchmark)}
    lines = _lines(benchmark, list(measured.values()))
    places = [f"{title}  <span style='color:#8c8c8c'>{label}</span>" for title, label in lines]
    plot = make_subplots(1, 2, shared_yaxes=True, horizontal_spacing=0.03, subplot_titles=(FORWARD, BACKWARD))
    sizes = list(dict.fromkeys(size for _, _, size in measured))
    drawn = []
    for column, direction in enumerate((FORWARD, BACKWARD), 1):
        for place, size in enumerate(sizes):
            rows = [(measured.get((title, direction, size)), label) for title, label in lines]
            values = [None if row is None else row.ratio(label) for row, label in rows]
            quotients = [row.peers[label].ratio if row is not None and label in row.peers else None for row, label in rows]
            unsure = [row is not None and row.is_unreliable for row, _ in rows]
            drawn += [value for value in values if value is not None]
            plot.add_scatter(
                x=values,
                y=places,
                mode="markers",
                name=size.replace("x", " × "),
                marker={
                    "size": 9,
                    "color": OF_SIZES[place % len(OF_SIZES)],
                    "symbol": list(map(_symbol, quotients, unsure)),
                    "line": {"width": 0.7},
                },
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
    plot.update_xaxes(type="log", range=[math.log10(low), math.log10(high)], **_ticks(low, high), **GRID)
    plot.update_yaxes(range=[len(lines) - 0.3, -0.7], gridcolor="#f0f0f0", showgrid=True, ticks="", showline=False)
    legend = ABOVE | {"x": 1, "xanchor": "right"}
    styled(plot, ROW_HEIGHT * len(lines) + 110, 10, 20, 64, 46, legend=legend, font=FONT | {"size": 12.5})
    plot.update_yaxes(automargin=True, row=1, col=1)
    plot.add_annotation(
        text="time of the peer / time of softmaxima; right of the line softmaxima is faster, "
        "hollow: neither is, for 1 is in the interval; ×: unreliable",
        xref="paper", yref="paper", x=0.5, y=0, yshift=-30, yanchor="top", showarrow=False,
    )  # fmt: skip
    return plot


def _symbol(quotient: Quotient | None, unsure: bool) -> str:
    return "x-thin-open" if unsure else "circle-open" if quotient is not None and quotient.is_about_one else "circle"


def _lines(benchmark: Benchmark, measured: Sequence[Result]) -> list[tuple[str, str]]:
    """(title, peer) of whatever has a ratio, peer by peer."""
    titles = dict.fromkeys(row.case.name for row in measured)
    found = {(row.case.name, label) for row in measured for label in labels(benchmark) if row.ratio(label) is not None}
    return [(title, label) for label in labels(benchmark) for title in titles if (title, label) in found]


def _ticks(low: float, high: float) -> dict[str, Any]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)))
    ticks = [tick for power in powers for digit in (1, 3) if low <= (tick := digit * 10.0**power) <= high]
    return {"tickvals": ticks, "ticktext": [f"{tick:g}×" for tick in ticks]}


# Of lines, each with its colour and its dashes; torch's is softmax whatever our map is.
LINES = {
    "softmax": (COLOURS[0], "solid"),
    "softmax" + CAUSAL: (COLOURS[0], "dot"),
    "sparsemax": (COLOURS[3], "solid"),
    "entmax15": (COLOURS[4], "solid"),
    LINEAR: (COLOURS[2], "solid"),
    LINEAR + CAUSAL: (COLOURS[2], "dot"),
    "torch, softmax": (GREY, "solid"),
    "torch, softmax" + CAUSAL: (GREY, "dot"),
}
PANELS = {"forward": "forward, ms", "forward+backward": "forward and backward, ms"}


def of_attention(benchmark: Benchmark) -> go.Figure:
    """Time of each pass, and memory, against the length."""
    plot = make_subplots(1, 3, horizontal_spacing=0.075, subplot_titles=[*PANELS.values(), "memory beyond the tensors, MiB"])
    lengths = set()
    for column, direction in enumerate(PANELS, 1):
        for name, (colour, dash) in LINES.items():
            points = _times(benchmark, name, direction)
            lengths |= points.keys()
            _line(plot, column, name, colour, dash, points, is_named=direction == "forward")
    memory = {read_attention(row.case.size)[0]: row.facts["memory"] for row in benchmark.of("attention", MEMORY)}
    for name, line in ((OURS, "softmax"), (LINEAR, LINEAR), ("torch", "torch, softmax")):
        sizes = {length: taken[name] / 2**20 for length, taken in memory.items() if name in taken}
        _line(plot, 3, line, *LINES[line], sizes, is_named=False)
    ticks = sorted(lengths)
    plot.update_xaxes(type="log", tickvals=ticks, ticktext=[str(tick) for tick in ticks], title="queries and keys", showgrid=True)
    plot.update_yaxes(type="log", showgrid=True, dtick=1, tickformat="d")
    plot.update_yaxes(tickvals=[10, 20, 50, 100, 200, 500], col=3)
    return styled(plot, 380, 50, 10, 40, 90, legend={"orientation": "h", "y": -0.22}, font={})


def _times(benchmark: Benchmark, name: str, direction: str) -> dict[int, float]:
    """Milliseconds of a line, by length; of equal queries and keys alone."""
    found = {}
    for row in ATTENTION.rows(benchmark):
        queries, keys, _ = read_attention(row.case.size)
        peer = row.peers.get("torch")
        seconds = row.seconds if name == row.case.name else peer.seconds if peer and name == f"torch, {row.case.name}" else None
        if queries == keys and row.case.direction == direction and seconds is not None:
            found[queries] = 1e3 * seconds
    return found


def _line(plot: go.Figure, column: int, name: str, colour: str, dash: str, points: dict[int, float], is_named: bool) -> None:
    if points:
        plot.add_scatter(
            x=list(points),
            y=list(points.values()),
            mode="lines+markers",
            line={"color": colour, "dash": dash, "width": 2},
            name=name.replace("_", " "),
            showlegend=is_named,
            row=1,
            col=column,
        )


def of_graph(benchmark: Benchmark) -> go.Figure:
    """Nanoseconds an edge, of each way."""
    plot = make_subplots(1, 2, subplot_titles=("forward", "forward and backward"), shared_yaxes=True, horizontal_spacing=0.04)
    for column, direction in enumerate((FORWARD, BACKWARD), 1):
        rows = [row for row in GRAPH.rows(benchmark) if row.case.direction == direction]
        for way, name, colour in (
            (OURS, "ours, Segments", "#1f77b4"),
            (INDEX, "ours, index", "#9ecae1"),
            (PEER, PEER, "#7f7f7f"),
        ):
            seconds = {
                row.case: row.seconds if way == OURS else row.peers[way].seconds for row in rows if way in (OURS, *row.peers)
            }
            plot.add_bar(
                x=[case.name.replace(", edges ", "<br>") for case in seconds],
                y=[1e9 * (each or 0.0) / int(case.size) for case, each in seconds.items()],
                name=name, marker_color=colour, showlegend=column == 1, row=1, col=column,
            )  # fmt: skip
    plot.update_yaxes(title="ns an edge", row=1, col=1)
    return styled(plot, 420, 60, 20, 40, 60, legend={"x": 0.01, "y": 0.99}, barmode="group", font={})
