"""The picture of what `softmaxima bench-attention` found."""

from __future__ import annotations

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from softmaxima_lab.bench.attention import LINEAR, OURS, TORCH, Benchmark
from softmaxima_lab.pages.figures import COLOURS, GREY

# Of lines, each with its colour and its dashes; torch's is softmax whatever our map is.
LINES = {
    "softmax": (COLOURS[0], "solid"),
    "softmax, causal": (COLOURS[0], "dot"),
    "sparsemax": (COLOURS[3], "solid"),
    "entmax15": (COLOURS[4], "solid"),
    LINEAR: (COLOURS[2], "solid"),
    f"{LINEAR}, causal": (COLOURS[2], "dot"),
    "torch, softmax": (GREY, "solid"),
    "torch, softmax, causal": (GREY, "dot"),
}
PANELS = {"forward": "forward, ms", "forward+backward": "forward and backward, ms"}


def picture(benchmark: Benchmark) -> go.Figure:
    """Time of each pass, and memory, against the length."""
    plot = make_subplots(1, 3, horizontal_spacing=0.075, subplot_titles=[*PANELS.values(), "memory beyond the tensors, MiB"])
    lengths = set()
    for column, direction in enumerate(PANELS, 1):
        for name, (colour, dash) in LINES.items():
            points = _times(benchmark, name, direction)
            lengths |= points.keys()
            _line(plot, column, name, colour, dash, points, is_named=direction == "forward")
    for name, line in ((OURS, "softmax"), (LINEAR, LINEAR), (TORCH, "torch, softmax")):
        sizes = {
            int(what.rpartition(" ")[2]): size / 2**20 for what, size in benchmark.memory.items() if what.startswith(f"{name} ")
        }
        _line(plot, 3, line, *LINES[line], sizes, is_named=False)
    ticks = sorted(lengths)
    plot.update_xaxes(type="log", tickvals=ticks, ticktext=[str(tick) for tick in ticks], title="queries and keys", showgrid=True)
    plot.update_yaxes(type="log", showgrid=True, dtick=1, tickformat="d")
    plot.update_yaxes(tickvals=[10, 20, 50, 100, 200, 500], col=3)
    plot.update_layout(
        template="simple_white",
        width=1000,
        height=380,
        margin={"l": 50, "r": 10, "t": 40, "b": 90},
        legend={"orientation": "h", "y": -0.22},
    )
    return plot


def _times(benchmark: Benchmark, name: str, direction: str) -> dict[int, float]:
    """Milliseconds of a line, by length; of equal queries and keys alone."""
    found = {}
    for result in benchmark.results:
        case = result.case
        title = f"{case.map}{', causal' if case.causal else ''}"
        seconds = result.torch_seconds if name == f"torch, {title}" else result.seconds if name == title else None
        if case.queries == case.keys and case.direction == direction and seconds is not None:
            found[case.queries] = 1e3 * seconds
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
