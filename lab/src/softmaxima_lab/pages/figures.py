"""What the figures of comparisons share: colours, small plots, and the two kinds that every comparison has."""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import plotly.graph_objects as go

from softmaxima.maps import REGISTRY
from softmaxima_lab.compare.differences import Difference, unseen
from softmaxima_lab.compare.measures import Metric
from softmaxima_lab.compare.verdicts import decimals

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


FONT = {"family": "Helvetica, Arial, sans-serif", "size": 12}
GRID: dict[str, Any] = {"gridcolor": "#e6e6e6", "showgrid": True}
ABOVE = {"orientation": "h", "x": 0.5, "xanchor": "center", "y": 1, "yref": "container", "yanchor": "top"}  # a legend


def styled(
    plot: go.Figure, height: int, left: int, right: int, top: int, bottom: int, width: int = 1000, **layout: Any
) -> go.Figure:
    """A picture of the documents, with these margins."""
    margin = {"l": left, "r": right, "t": top, "b": bottom}
    return plot.update_layout(
        {"template": "simple_white", "width": width, "height": height, "margin": margin, "font": FONT, **layout}
    )


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


def bar_above(title: str) -> dict[str, Any]:
    """What the colours of a heat map of shares stand for, above it."""
    shown = {"text": title, "side": "top"}
    return {"title": shown, "orientation": "h", "thickness": 10, "y": 1, "yanchor": "bottom", "ticksuffix": " %"}


# Differences to softmax ---------------------------------------------------------------------------------------------------

TWICE = " (−100 is twice the time)"
SAME = "same rows"  # of a cell


def gain_cell(gain: Difference, metric: Metric) -> str:
    """A difference to softmax ± half of its interval, or with its ends where they are not alike; a mark where it is no chance."""
    if not math.isfinite(gain.mean):
        return "–"
    if gain.same:
        return SAME
    digits = decimals(gain, metric)
    mean, low, high = (metric.show_gain(end, digits) for end in (gain.mean, gain.low, gain.high))
    if not math.isfinite(gain.low):
        return f"{mean} ± ∞"
    if is_cut(gain, metric):
        low, high = (f"{metric.in_unit(end) + 0.0:+.3g}".replace("-", "−") for end in (gain.low, gain.high))
    elif not metric.by_ratio and math.isclose(gain.high - gain.mean, gain.mean - gain.low, rel_tol=1e-6):
        return f"{mean} ± {metric.scale * (gain.high - gain.mean):.{digits}f}{_mark(gain)}"
    return f"{mean} ({low} to {high}){_mark(gain)}"


def same_in_words(metric: Metric) -> str:
    """What a difference says that is `same`."""
    return f"the same {metric.words} as softmax on every row"


def same_note(rows: float, comparisons: int) -> str:
    """What "same rows" in cells stands for, of so many rows and so many that are compared."""
    most = math.ceil(rows * unseen(rows, comparisons))
    return f"Same rows: the same as softmax on every one of {round(rows)} rows; up to {most} of as many new ones may still differ."


def is_cut(gain: Difference, metric: Metric) -> bool:
    """Whether the interval ends where the metric's differences do."""
    return not gain.same and math.isfinite(gain.low) and metric.most_gain in (-gain.low, gain.high)


def cut_note(gains: Sequence[Difference], metric: Metric) -> str:
    """What brackets in cells stand for, where there are any."""
    if metric.by_ratio or not any(is_cut(gain, metric) for gain in gains):
        return ""
    most = metric.show_gain(metric.most_gain).lstrip("+")
    return f"In brackets are the ends of an interval that would go on beyond ±{most}, which no difference can."


def reading_of_gains(what: str, each: str) -> str:
    """How to read a figure of differences to softmax of what is compared, whose means are over seeds or folds."""
    return (
        f"Each symbol is the mean difference over {each}, to the right for the better; each bar its interval, wide enough for all "
        f"{what} together at 95 %, with a triangle where it goes on beyond the edge. Where the bar crosses the dotted line it may "
        "be chance; ▲ is better for certain, ▼ worse. A symbol on the left edge stands for a mean further to the left, which is "
        "written beside it; of its bar the part is drawn that reaches the axis."
    )


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
    gains = [point.gain for point in points]
    means = [metric.in_unit(gain.mean) for gain in gains]
    ends = [[metric.in_unit(end) for end in _drawn(gain, metric)] for gain in gains]
    low, high = _around_leaders(means, ends)
    rows = [point.label + _mark(point.gain) for point in points]
    cells = [gain_cell(gain, metric) for gain in gains]
    # Below ticks that are slanted where they have no room.
    title = {"text": metric.with_unit("better by").replace(", ", ",<br>"), "standoff": 8}
    axis = {"title": title, "range": [low, high], "automargin": True, "nticks": 6}
    plot = go.Figure(layout=rows_layout(len(points), xaxis=axis))
    plot.add_vline(0, line={"color": GREY, "width": 1, "dash": "dot"})
    near = [i for i, mean in enumerate(means) if low <= mean <= high]
    far = [i for i, mean in enumerate(means) if math.isfinite(mean) and mean < low]
    for which in (near, far):
        x = [max(low, means[i]) for i in which]
        plot.add_scatter(
            x=x,
            y=[rows[i] for i in which],
            error_x={
                "array": [max(0.0, min(high, ends[i][1]) - at) for i, at in zip(which, x, strict=True)],
                "arrayminus": [at - max(low, ends[i][0]) for i, at in zip(which, x, strict=True)],
                "thickness": 1.5,
                "width": 4,
                "color": GREY,
            },
            mode="markers",
            marker={"size": 10, **_together([points[i] for i in which])},
            customdata=[cells[i] for i in which],
            cliponaxis=False,
            hovertemplate="%{y}: %{customdata}<extra></extra>",
        )
    for edge, symbol, beyond in (
        (low, "triangle-left", [i for i in near if ends[i][0] < low]),
        (high, "triangle-right", [i for i in (*near, *far) if ends[i][1] > high]),
    ):
        plot.add_scatter(
            x=[edge] * len(beyond),
            y=[rows[i] for i in beyond],
            mode="markers",
            marker={"size": 10, "symbol": symbol, "color": GREY},
            cliponaxis=False,
            hoverinfo="skip",
        )
    for i in far:
        above = ends[i][1] > low  # its bar
        plot.add_annotation(
            x=low,
            y=rows[i],
            text=f"◂ {metric.show_gain(gains[i].mean, decimals(gains[i], metric))}",
            showarrow=False,
            xanchor="left",
            xshift=7,
            yanchor="bottom" if above else "middle",
            yshift=2 if above else 0,
            borderpad=0,
            font={"size": 11},
        )
    plot.update_yaxes(categoryorder="array", categoryarray=rows, ticklabelstandoff=12)
    plot.update_layout(margin_r=24)
    return plot


def _drawn(gain: Difference, metric: Metric) -> tuple[float, float]:
    """The ends of the bar: none where nothing is known of other rows."""
    return (gain.mean, gain.mean) if gain.same and not metric.is_mean_of_rows else (gain.low, gain.high)


def _together(points: Sequence[Point]) -> dict[str, list[str]]:
    return {key: [point.style[key] for point in points] for key in ("color", "symbol")}


def _around_leaders(means: Sequence[float], ends: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The range that shows the better half of the intervals, and zero; of one without end its mean."""
    known = [(mean, *(end if math.isfinite(end) else mean for end in both)) for mean, both in zip(means, ends, strict=True)]
    half = sorted((each for each in known if math.isfinite(each[0])), reverse=True)
    half = half[: max(1, (len(half) + 1) // 2)] or [(0.0, -1.0, 1.0)]
    low, high = min(0.0, *(low for _, low, _ in half)), max(0.0, *(high for *_, high in half))
    margin = 0.06 * (high - low) or 1.0
    return low - margin, high + margin


# Time against quality -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Priced:
    """A point of time and quality, both positive and the less the better. `named` is named wherever it is."""

    name: str
    label: str
    style: Mapping[str, str]
    milliseconds: float
    value: float
    named: bool = False


def cost_plot(
    points: Sequence[Priced], quality: str, shown: str, better: Callable[[int, int], bool], faster: Callable[[int, int], bool]
) -> go.Figure:
    """A quality, whose numbers are shown in a format of d3, against the time of a step.

    The Pareto front is filled, and what of it is lower than all that is faster is joined and named.

    better(i, j), faster(i, j): whether the quality, or the time, of point i is better than that of j by more than chance.
    """
    front = pareto_front(len(points), better, faster)
    steps, values = [point.milliseconds for point in points], [point.value for point in points]
    low, high = _span(values, 1.25, 0.25)
    ordered: list[int] = []
    for i in sorted(front, key=lambda i: (steps[i], values[i])):
        if not ordered or values[i] < values[ordered[-1]]:
            ordered.append(i)
    names = [
        {"x": x, "y": y, "text": point.label if (i in ordered or point.named) and min(x, y) > 0 else ""}
        for i, (x, y, point) in enumerate(zip(steps, values, points, strict=True))
    ]
    row, height = 17, 260  # of a name, and of the points above a row for each name
    room = 10 + row * sum(bool(name["text"]) for name in names)
    scores = logarithmic(low / (high / low) ** (room / height), high)
    margin = {"l": 32 + 8 * max(map(len, scores["ticktext"])), "r": 24, "t": 24, "b": 48}
    plot = go.Figure(
        layout={
            "height": margin["t"] + height + room + margin["b"],
            "margin": margin,
            "xaxis": {"title": "step, ms", **logarithmic(*_span(steps, 1.6))},
            "yaxis": {"title": quality, **scores},
            "showlegend": False,
        }
    )
    plot.layout.meta = {"names": names, "row": row, "line": [{"x": steps[i], "y": values[i]} for i in ordered]}
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
        customdata=[html.escape(point.name, quote=False) for point in points],
        cliponaxis=False,
        hovertemplate="%{customdata}: %{x:.2f} ms, %{y:" + shown + "}<extra></extra>",
    )
    return plot


def pareto_front(count: int, *better: Callable[[int, int], bool]) -> set[int]:
    """Of so many, those to which no other is preferable, being better in one respect and not worse in the others."""

    def preferable(i: int, j: int) -> bool:
        return any(of(i, j) for of in better) and not any(of(j, i) for of in better)

    return {i for i in range(count) if not any(preferable(j, i) for j in range(count))}


# Axes and small plots -----------------------------------------------------------------------------------------------------


def _span(values: Sequence[float], margin: float, share: float = math.inf) -> tuple[float, float]:
    """The range of positive values on a logarithmic axis, with that margin or the share of the range, whichever is less."""
    positive = [value for value in values if value > 0] or [1.0]
    low, high = min(positive), max(positive)
    if high > low:
        margin = min(margin, (high / low) ** share)
    return low / margin, high * margin


def logarithmic(low: float, high: float) -> dict[str, Any]:
    """A logarithmic axis over that range, with ticks that have room."""
    ticks = _ticks(low, high)
    return {
        "type": "log",
        "range": [math.log10(low), math.log10(high)],
        "tickvals": ticks,
        "ticktext": [f"{tick:.6g}" for tick in ticks],
    }


def _ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Two ticks at least: at 1, 2, 3 and 5 times powers of ten, at fewer where those are too many, at round steps where too few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks: list[float] = []
    digits_and_powers = [((1, 2, 3, 5), 1), ((1, 3), 1), *(((1,), every) for every in range(1, len(powers)))]
    for digits, every in digits_and_powers:
        ticks = [tick for n in powers if n % every == 0 for digit in digits if low <= (tick := digit * 10.0**n) <= high]
        if len(ticks) <= most:
            break
    for power in range(powers[-1], powers[0] - 9, -1):
        for digit in (5, 2, 1):
            if len(ticks) >= 2:
                return ticks
            step = digit * 10.0**power
            ticks = [n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return ticks


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


COLUMNS = 7  # of panels in a picture


def in_panels(plot: go.Figure) -> go.Figure:
    """Small plots as a picture, which has a width of its own."""
    rows = -(-plot.layout.meta["panels"] // COLUMNS)
    return plot.update_layout(template="simple_white", grid={"rows": rows, "columns": COLUMNS}, width=1000, height=160 * rows)


def panel(number: int) -> dict[str, str]:
    """The axes of a small plot, as plotly names them: x, x2, x3, …"""
    suffix = "" if number == 1 else str(number)
    return {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}"}
