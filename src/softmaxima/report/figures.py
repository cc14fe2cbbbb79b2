"""What the figures of comparisons share: colours, small plots, and the two kinds that every comparison has."""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import plotly.graph_objects as go

from softmaxima.experiments.measures import METRICS, Metric
from softmaxima.experiments.recommendation import Difference
from softmaxima.maps import REGISTRY

# Okabe and Ito's colours without yellow and black; orange and sky blue are darker, for 3 : 1 against both backgrounds.
COLOURS = ("#0072B2", "#B97F00", "#009E73", "#D55E00", "#CC79A7", "#3A93D0", "#8c8c8c")
SYMBOLS = (
    "circle",
    "diamond",
    "square",
    "triangle-up",
    "cross",
    "star",
    "triangle-down",
    "pentagon",
    "hexagram",
    "hourglass",
    "bowtie",
)
GREY = "#8c8c8c"

PANEL = 170  # pixels that a small plot should at least be wide


@dataclass(frozen=True)
class Figure:
    """A figure of the page and how to read it. The page gives it its width, its colours of text and lines, and its fonts."""

    id: str
    title: str
    reading: str
    plot: go.Figure
    legend: Mapping[str, str] = field(default_factory=dict)  # what each colour stands for


def styles(maps: Mapping[str, str | None]) -> dict[str, dict[str, str]]:
    """A colour and a symbol for each name, given its map: a map has a colour, and a symbol tells what shares it apart."""
    order = {map: number for number, map in enumerate(REGISTRY)}
    found = {name: {"color": GREY, "symbol": "x"} for name, map in maps.items() if map is None}
    used: Counter[str] = Counter()
    for name, map in sorted(maps.items(), key=lambda item: (order.get(item[1] or "", 0), item[0])):
        if map is not None:
            found[name] = {"color": colour_of(map), "symbol": SYMBOLS[used[colour_of(map)] % len(SYMBOLS)]}
            used[colour_of(map)] += 1
    return found


def colour_of(map: str) -> str:
    """Of a map."""
    return COLOURS[list(REGISTRY).index(map) % len(COLOURS)]


def rows_layout(rows: int, **layout: Any) -> dict[str, Any]:
    """The layout of a figure with one row a pair, the best on top."""
    return {
        "height": 24 * rows + 106,
        "margin": {"l": 8, "r": 16, "t": 8, "b": 64},
        "yaxis": {"autorange": "reversed", "automargin": True, "ticklabelstandoff": 6},
        "showlegend": False,
        **layout,
    }


# Differences to softmax ---------------------------------------------------------------------------------------------------


def gain_cell(gain: Difference, metric: Metric) -> str:
    """A difference to softmax and half its interval's width, with a mark where it is more than chance."""
    if not math.isfinite(gain.mean):
        return "–"
    half = f"{metric.gain_scale * (gain.high - gain.mean):.{metric.decimals}f}" if math.isfinite(gain.high) else "∞"
    mean = f"{round(metric.gain_scale * gain.mean, metric.decimals) + 0.0:+.{metric.decimals}f}"
    return f"{mean} ± {half}{_mark(gain)}".replace("-", "−")


def _mark(gain: Difference) -> str:
    return " ▲" if gain.better else " ▼" if gain.worse else ""


@dataclass(frozen=True)
class Point:
    """What is drawn of one that is compared: its label, its mark, and its difference to softmax."""

    label: str
    style: Mapping[str, str]
    gain: Difference


def gain_plot(points: Sequence[Point], metric: Metric) -> go.Figure:
    """Differences to softmax with their intervals, on an axis around the leaders."""
    scale, unit = metric.gain_scale, metric.unit
    gains = [point.gain for point in points]
    means = [scale * gain.mean for gain in gains]
    reach = [scale * (gain.high - gain.mean) for gain in gains]
    low, high = _around_leaders(means, reach)
    rows = [point.label + _mark(point.gain) for point in points]
    cells = [gain_cell(gain, metric) for gain in gains]
    plot = go.Figure(layout=rows_layout(len(points), xaxis={"title": f"better by,<br>{unit}", "range": [low, high]}))
    plot.add_vline(0, line={"color": GREY, "width": 1, "dash": "dot"})
    near = [i for i, mean in enumerate(means) if low <= mean <= high]
    ends = {i: (max(low, means[i] - reach[i]), min(high, means[i] + reach[i])) for i in near}
    plot.add_scatter(
        x=[means[i] for i in near],
        y=[rows[i] for i in near],
        error_x={
            "array": [ends[i][1] - means[i] for i in near],
            "arrayminus": [means[i] - ends[i][0] for i in near],
            "thickness": 1.5,
            "width": 4,
            "color": GREY,
        },
        mode="markers",
        marker={"size": 10, **_together([points[i] for i in near])},
        customdata=[cells[i] for i in near],
        hovertemplate="%{y}: %{customdata}<extra></extra>",
    )
    for edge, symbol, beyond in (
        (low, "triangle-left", [i for i in near if means[i] - reach[i] < low]),
        (high, "triangle-right", [i for i in near if means[i] + reach[i] > high]),
    ):
        plot.add_scatter(
            x=[edge] * len(beyond),
            y=[rows[i] for i in beyond],
            mode="markers",
            marker={"size": 10, "symbol": symbol, "color": GREY},
            cliponaxis=False,
            hoverinfo="skip",
        )
    far = [i for i, mean in enumerate(means) if math.isfinite(mean) and mean < low]
    plot.add_scatter(
        x=[low] * len(far),
        y=[rows[i] for i in far],
        mode="markers+text",
        marker={"size": 10, **_together([points[i] for i in far])},
        text=[f" ◂ {cells[i]}" for i in far],
        textposition="middle right",
        cliponaxis=False,
        hoverinfo="skip",
    )
    plot.update_yaxes(categoryorder="array", categoryarray=rows, ticklabelstandoff=12)
    plot.update_layout(margin_r=24)
    return plot


def _together(points: Sequence[Point]) -> dict[str, list[str]]:
    return {key: [point.style[key] for point in points] for key in ("color", "symbol")}


def _around_leaders(means: Sequence[float], reach: Sequence[float]) -> tuple[float, float]:
    """The range that shows the better half of the intervals, and zero; of one without end its mean."""
    known = [(mean, r if math.isfinite(r) else 0.0) for mean, r in zip(means, reach, strict=True) if math.isfinite(mean)]
    half = sorted(known, reverse=True)[: max(1, (len(known) + 1) // 2)] or [(0.0, 1.0)]
    low, high = min(0.0, *(mean - r for mean, r in half)), max(0.0, *(mean + r for mean, r in half))
    margin = 0.06 * (high - low) or 1.0
    return low - margin, high + margin


# Time against quality -----------------------------------------------------------------------------------------------------

STEADINESS = math.exp(METRICS["cost"].least_gain)


@dataclass(frozen=True)
class Priced:
    """A point of time and quality, both positive and the less the better. `named` is named even where others are preferable."""

    name: str
    label: str
    style: Mapping[str, str]
    milliseconds: float
    value: float
    named: bool = False


def cost_plot(points: Sequence[Priced], quality: str, shown: str) -> go.Figure:
    """A quality, whose numbers are shown in a format of d3, against the time of a step; those on the Pareto front are named."""
    front = pareto_front([(point.milliseconds, point.value) for point in points], STEADINESS)
    steps, values = [point.milliseconds for point in points], [point.value for point in points]
    low, high = _span(values, 1.25)
    names = [
        {"x": x, "y": y, "text": point.label if (i in front or point.named) and min(x, y) > 0 else ""}
        for i, (x, y, point) in enumerate(zip(steps, values, points, strict=True))
    ]
    margin = {"l": 56, "r": 24, "t": 24, "b": 48}
    row, height = 17, 260  # of a name, and of the points above a row for each name
    room = 10 + row * sum(bool(name["text"]) for name in names)
    plot = go.Figure(
        layout={
            "height": margin["t"] + height + room + margin["b"],
            "margin": margin,
            "xaxis": {"title": "step, ms", **logarithmic(*_span(steps, 1.6))},
            "yaxis": {"title": quality, **logarithmic(low / (high / low) ** (room / height), high)},
            "showlegend": False,
            "meta": {"names": names, "row": row},
        }
    )
    ordered = sorted(front, key=lambda i: steps[i])
    line = {"color": GREY, "width": 1, "dash": "dot", "shape": "hv"}
    plot.add_scatter(x=[steps[i] for i in ordered], y=[values[i] for i in ordered], mode="lines", line=line, hoverinfo="skip")
    symbols = [point.style["symbol"] + ("" if i in front else "-open") for i, point in enumerate(points)]
    plot.add_scatter(
        x=steps,
        y=values,
        mode="markers",
        marker={
            "size": 10,
            "line": {"width": [0 if i in front else 2 for i in range(len(points))]},
            "color": [point.style["color"] for point in points],
            "symbol": symbols,
        },
        customdata=[html.escape(point.name) for point in points],
        cliponaxis=False,
        hovertemplate="%{customdata}: %{x:.2f} ms, %{y:" + shown + "}<extra></extra>",
    )
    return plot


def pareto_front(points: Sequence[tuple[float, float]], steadiness: float = 1.0) -> set[int]:
    """The points (x, y) that no (a, b) replaces, by b < y and a ≤ x·steadiness, or b = y and a < x; of equal ones the first."""
    return {
        i
        for i, (x, y) in enumerate(points)
        if not any((b < y and a <= x * steadiness) or (b == y and (a, j) < (x, i)) for j, (a, b) in enumerate(points))
    }


# Axes and small plots -----------------------------------------------------------------------------------------------------


FEWEST_TICKS = 3


def _span(values: Sequence[float], margin: float) -> tuple[float, float]:
    """The range of positive values on a logarithmic axis, with that margin, or less where all are much alike."""
    positive = [value for value in values if value > 0] or [1.0]
    least, most = min(positive), max(positive)
    margin = min(margin, 1.002 * (most / least) ** 0.25) if most > least else margin
    return least / margin, most * margin


def logarithmic(low: float, high: float) -> dict[str, Any]:
    """An axis over that range, with ticks at 1, 2, 3 and 5 times a power of ten, or at round numbers where it has few of these."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)))
    ticks = [tick for power in powers for digit in (1, 2, 3, 5) if low <= (tick := digit * 10.0**power) <= high]
    if len(ticks) < FEWEST_TICKS:
        power = 10.0 ** math.floor(math.log10((high - low) / FEWEST_TICKS))
        step = next(size * power for size in (5, 2, 1) if (high - low) / (size * power) >= FEWEST_TICKS)
        ticks = [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return {
        "type": "log",
        "range": [math.log10(low), math.log10(high)],
        "tickvals": ticks,
        "ticktext": [f"{tick:.6g}" for tick in ticks],
    }


def panels(titles: Sequence[str], aspect: float = 1.0, **axes: Any) -> go.Figure:
    """A figure of small plots, one a title, of height/width = aspect. The page arranges them in the columns that fit its width."""
    plot = go.Figure(
        layout={
            "grid": {"rows": len(titles), "columns": 1, "pattern": "independent", "xgap": 0.2, "ygap": 0.34},
            "margin": {"l": 26, "r": 8, "t": 30, "b": 26},
            "showlegend": False,
            "meta": {"panels": len(titles), "panel": PANEL, "aspect": aspect},
        }
    )
    for number, title in enumerate(titles, 1):
        where = panel(number)
        plot.layout[f"xaxis{number}"] = {"anchor": where["yaxis"], **axes.get("xaxis", {})}
        plot.layout[f"yaxis{number}"] = {"anchor": where["xaxis"], **axes.get("yaxis", {})}
        plot.add_annotation(
            text=title,
            xref=f"{where['xaxis']} domain",
            yref=f"{where['yaxis']} domain",
            x=0.5,
            y=1,
            yanchor="bottom",
            yshift=3,
            showarrow=False,
            font={"size": 12},
        )
    return plot


def panel(number: int) -> dict[str, str]:
    """The axes of a small plot, as plotly names them: x, x2, x3, …"""
    suffix = "" if number == 1 else str(number)
    return {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}"}
