"""The report of a comparison: one page with figures, that needs no network, and its numbers as JSON and CSV."""

from __future__ import annotations

import csv
import html
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import plotly.graph_objects as go
import torch
from plotly.colors import sample_colorscale
from plotly.offline import get_plotlyjs
from torch import Tensor

from softmaxima.core.writing import write_text
from softmaxima.experiments.compare import BATCH, BINS, EPS, HIDDEN, LEARNING_RATE, Comparison, Pair, Result
from softmaxima.maps import REGISTRY, find_map

# The table ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """A column of the table: its heading, a short one for narrow terminals, and a result's cell."""

    heading: str
    short: str
    cell: Callable[[Result], str]


COLUMNS = (
    Column("pair", "pair", lambda result: result.pair.name),
    Column("accuracy, %", "accuracy, %", lambda result: f"{100 * result.accuracy:.2f} ± {100 * result.accuracy_se:.2f}"),
    Column("negative log-likelihood", "NLL", lambda result: f"{result.nll:.3f}"),
    Column("Brier score", "Brier", lambda result: f"{result.brier:.4f}"),
    Column("calibration error, %", "ECE %", lambda result: f"{100 * result.ece:.2f}"),
    Column("mean support", "supp.", lambda result: f"{result.support:.2f}"),
    Column("true class zero, %", "true 0 %", lambda result: f"{100 * result.zeros:.2f}"),
    Column("step, ms", "ms", lambda result: f"{1000 * result.step_seconds:.2f}"),
)

CAPTION = (
    "Accuracy: mean ± standard error over folds. "
    f"Negative log-likelihood (NLL), in nats: −log((p + ε)/(1 + nε)), ε = {EPS:.0e}, for the true class, so that an exact zero "
    f"counts {-math.log(EPS):.1f} nats instead of ∞. "
    "Brier score: squared error of the probabilities, 0 to 2. "
    f"Calibration error (ECE): {BINS} bins of the top probability. "
    "Support: classes with a non-zero probability. "
    "True class zero: share of rows whose true class gets exactly 0. "
    "Step: median time of a training step. "
    f"All pairs share one learning rate (Adam, {LEARNING_RATE:g}), which suits some better than others."
).replace("e-0", "e-")


def settings_in_words(comparison: Comparison) -> dict[str, str]:
    """What was trained, on what, and with what."""
    facts, settings = comparison.facts, comparison.settings
    sampled = "" if facts.rows == facts.rows_in_table else f" (a sample of {facts.rows_in_table})"
    hidden = f"one hidden layer of {HIDDEN} ReLU units" if settings.model == "mlp" else "one affine layer"
    words = {
        "Table": facts.name,
        "Rows": f"{facts.rows}{sampled}",
        "Features": str(facts.features),
        "Target": repr(facts.target) + (", the last column" if facts.target_by_default else ""),
        "Classes": str(len(facts.classes)),
        "Model": f"{settings.model}: {hidden}",
        "Training": f"{settings.epochs} epochs, Adam {LEARNING_RATE:g}, batches of {BATCH}",
        "Folds": f"{settings.folds}, stratified; seed {settings.seed}",
        "Versions": ", ".join(f"{name} {version}" for name, version in comparison.versions.items()),
    }
    if facts.encoded:
        words["One-hot encoded"] = ", ".join(f"{column!r} ({count} indicator columns)" for column, count in facts.encoded)
    return words


# Numbers ------------------------------------------------------------------------------------------------------------------

MEASURES = ("accuracy", "accuracy_se", "nll", "brier", "ece", "support", "zeros", "step_seconds")


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Everything in the comparison; a number that is not finite becomes null."""
    pair = comparison.recommendation.pair
    record = {
        "versions": dict(comparison.versions),
        "settings": {
            **asdict(comparison.settings),
            "batch": BATCH,
            "hidden": HIDDEN,
            "learning_rate": LEARNING_RATE,
            "eps": EPS,
            "bins": BINS,
        },
        "table": asdict(comparison.facts),
        "recommendation": {"pair": pair.name, "reason": comparison.recommendation.reason, "code": pair.code},
        "results": [
            {
                "pair": result.pair.name,
                "map": result.pair.map,
                "loss": result.pair.loss,
                "head": result.pair.head,
                "code": result.pair.code,
                **{measure: getattr(result, measure) for measure in MEASURES},
                "support_rows": result.support_rows,
                "bins": [asdict(bin) for bin in result.bins],
                "folds": [asdict(fold) for fold in result.folds],
            }
            for result in comparison.results
        ],
    }
    return _finite(record)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def as_csv(comparison: Comparison) -> str:
    """One line a pair, the best first."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["pair", "map", "loss", *MEASURES, "recommended"])
    for result in comparison.results:
        recommended = int(result.pair == comparison.recommendation.pair)
        numbers = [getattr(result, measure) for measure in MEASURES]
        lines.writerow([result.pair.name, result.pair.map, result.pair.loss, *numbers, recommended])
    return text.getvalue()


# Figures ------------------------------------------------------------------------------------------------------------------

# Okabe and Ito's colours without yellow and black, which vanish on one of the two backgrounds.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#8c8c8c")
SYMBOLS = ("circle", "diamond", "square", "triangle-up")
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


def figures(comparison: Comparison) -> tuple[Figure, ...]:
    """The figures of the page."""
    return (
        accuracy_figure(comparison),
        cost_figure(comparison),
        reliability_figure(comparison),
        support_figure(comparison),
        curve_figure(comparison),
        simplex_figure(comparison),
    )


def _style(map: str) -> dict[str, Any]:
    """The colour and symbol of a map, the same in every figure."""
    index = list(REGISTRY).index(map)
    return {"color": COLOURS[index % len(COLOURS)], "symbol": SYMBOLS[index // len(COLOURS) % len(SYMBOLS)]}


def _labels(comparison: Comparison) -> list[str]:
    """The pairs' names, the recommended one in bold."""
    taken = comparison.recommendation.pair
    names = [(html.escape(result.pair.name), result.pair == taken) for result in comparison.results]
    return [f"<b>{name}</b>" if bold else name for name, bold in names]


def _rows_layout(rows: int, **layout: Any) -> dict[str, Any]:
    """The layout of a figure with one row a pair, the best on top."""
    return {
        "height": 24 * rows + 90,
        "margin": {"l": 8, "r": 16, "t": 8, "b": 48},
        "yaxis": {"autorange": "reversed", "automargin": True, "ticklabelstandoff": 6},
        "showlegend": False,
        **layout,
    }


def accuracy_figure(comparison: Comparison) -> Figure:
    """Accuracy with one standard error either way."""
    results = comparison.results
    plot = go.Figure(
        go.Scatter(
            x=[100 * result.accuracy for result in results],
            y=_labels(comparison),
            error_x={"array": [100 * result.accuracy_se for result in results], "thickness": 1.5, "width": 4, "color": GREY},
            mode="markers",
            marker={"size": 10, **_styles(results)},
            hovertemplate="%{y}: %{x:.2f} ± %{error_x.array:.2f} %<extra></extra>",
        ),
        _rows_layout(len(results), xaxis={"title": "accuracy, %"}),
    )
    best = results[0]
    plot.add_vline(100 * (best.accuracy - best.accuracy_se), line={"color": GREY, "width": 1, "dash": "dot"})
    return Figure(
        "accuracy",
        "Accuracy",
        "Each dot is the mean over folds, each bar one standard error either way. Right of the dotted line a pair is within one "
        "standard error of the best; the recommended pair is in bold.",
        plot,
    )


def _styles(results: Sequence[Result]) -> dict[str, list[str]]:
    styles = [_style(result.pair.map) for result in results]
    return {key: [style[key] for style in styles] for key in ("color", "symbol")}


def cost_figure(comparison: Comparison) -> Figure:
    """The Brier score against the time of a step, with labels in a column that lines lead to."""
    results = sorted((result for result in comparison.results if math.isfinite(result.brier)), key=lambda result: -result.brier)
    steps, briers = [1000 * result.step_seconds for result in results], [result.brier for result in results]
    left, right = _span(steps)
    bottom, top = _span(briers)
    evenly = [_between(top, bottom, (row + 0.5) / len(results)) for row in range(len(results))]
    places = _uncrossed(steps, briers, right, evenly)
    plot = go.Figure(
        layout={
            "height": 24 * len(results) + 110,
            "margin": {"l": 56, "r": 168, "t": 12, "b": 48},
            "xaxis": {"title": "step, ms", **_logarithmic(left, right)},
            "yaxis": {"title": "Brier score", **_logarithmic(bottom, top)},
            "showlegend": False,
        }
    )
    for step, brier, place in zip(steps, briers, places, strict=True):
        leader = {"color": GREY, "width": 0.7}
        plot.add_scatter(x=[step, right], y=[brier, place], mode="lines", line=leader, opacity=0.5, hoverinfo="skip")
    plot.add_scatter(
        x=steps,
        y=briers,
        mode="markers",
        marker={"size": 11, **_styles(results)},
        text=[result.pair.name for result in results],
        hovertemplate="%{text}: %{x:.2f} ms, %{y:.4f}<extra></extra>",
    )
    taken = comparison.recommendation.pair
    names = [html.escape(result.pair.name) for result in results]
    plot.add_scatter(
        x=[right] * len(results),
        y=places,
        mode="text",
        text=[f" <b>{name}</b>" if result.pair == taken else f" {name}" for name, result in zip(names, results, strict=True)],
        textposition="middle right",
        textfont={"size": 12},
        cliponaxis=False,
        hoverinfo="skip",
    )
    return Figure(
        "cost",
        "Cost against quality",
        "To the left trains faster, further down has more accurate probabilities (a lower Brier score); both axes are logarithmic.",
        plot,
    )


def _span(values: Sequence[float]) -> tuple[float, float]:
    """The range of positive values on a logarithmic axis, with a margin."""
    positive = [value for value in values if value > 0] or [1.0]
    return min(positive) / 1.25, max(positive) * 1.25


def _logarithmic(low: float, high: float) -> dict[str, Any]:
    """An axis over that range, with ticks at 1, 2, 3 and 5 times a power of ten."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)))
    ticks = [tick for power in powers for digit in (1, 2, 3, 5) if low <= (tick := digit * 10.0**power) <= high]
    return {
        "type": "log",
        "range": [math.log10(low), math.log10(high)],
        "tickvals": ticks,
        "ticktext": [f"{tick:.6g}" for tick in ticks],
    }


def _between(start: float, end: float, share: float) -> float:
    return start ** (1 - share) * end**share


def _uncrossed(x: Sequence[float], y: Sequence[float], right: float, places: Sequence[float]) -> list[float]:
    """The heights on the line `right`, so assigned to the points that no two lines from a point to its height cross.

    Swapping the ends of two lines that cross shortens their sum, so the swaps come to an end.
    """
    points = [(math.log(right / step), math.log(brier)) for step, brier in zip(x, y, strict=True)]  # distance to the line, height
    ends = [math.log(place) for place in places]

    def cross(i: int, j: int) -> bool:
        (near, near_height), (far, far_height), end, far_end = *sorted((points[i], points[j])), ends[i], ends[j]
        if points[i] > points[j]:
            end, far_end = far_end, end
        at_near = far_end + (far_height - far_end) * near / far  # height of the far point's line beside the near point
        return (at_near - near_height) * (far_end - end) < 0

    while crossing := next(((i, j) for i in range(len(ends)) for j in range(i) if cross(i, j)), None):
        i, j = crossing
        ends[i], ends[j] = ends[j], ends[i]
    return [math.exp(end) for end in ends]


def _panels(titles: Sequence[str], aspect: float = 1.0, **axes: Any) -> go.Figure:
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
        where = _panel(number)
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


def _panel(number: int) -> dict[str, str]:
    """The axes of a small plot, as plotly names them: x, x2, x3, …"""
    suffix = "" if number == 1 else str(number)
    return {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}"}


def reliability_figure(comparison: Comparison) -> Figure:
    """The accuracy of each bin of confidence."""
    shares = {"range": [-0.04, 1.06], "tickvals": [0, 0.5, 1], "ticktext": ["0", "½", "1"], "tickfont": {"size": 11}}
    plot = _panels(_labels(comparison), xaxis=shares, yaxis=shares)
    for number, result in enumerate(comparison.results, 1):
        where = _panel(number)
        filled = [bin for bin in result.bins if bin.rows]
        rows = sum(bin.rows for bin in filled)
        plot.add_scatter(
            x=[0, 1], y=[0, 1], mode="lines", line={"color": GREY, "width": 1, "dash": "dot"}, hoverinfo="skip", **where
        )
        plot.add_scatter(
            x=[bin.confidence / bin.rows for bin in filled],
            y=[bin.hits / bin.rows for bin in filled],
            mode="lines+markers",
            line={"width": 1},
            marker={"size": [4 + 10 * math.sqrt(bin.rows / rows) for bin in filled], "color": _style(result.pair.map)["color"]},
            line_color=_style(result.pair.map)["color"],
            text=[f"{bin.rows} rows" for bin in filled],
            cliponaxis=False,
            hovertemplate="confidence %{x:.2f}, accuracy %{y:.2f}, %{text}<extra></extra>",
            **where,
        )
    return Figure(
        "reliability",
        "Reliability",
        "Across: the top probability; up: how often it was right. On the dotted diagonal probabilities mean what they say, below "
        "it they are too sure, above it not sure enough; a larger dot stands for more rows.",
        plot,
    )


def support_figure(comparison: Comparison) -> Figure:
    """How many classes get a non-zero probability."""
    classes = len(comparison.facts.classes)
    groups = support_groups(classes)
    colours = sample_colorscale(
        ["#0a4f8f", "#5ba3cf", "#c3cfdb"], [index / max(1, len(groups) - 1) for index in range(len(groups))]
    )
    plot = go.Figure(
        layout=_rows_layout(
            len(comparison.results),
            barmode="stack",
            bargap=0.25,
            xaxis={"title": "rows, %", "range": [0, 100]},
        )
    )
    legend = {}
    for (name, sizes), colour in zip(groups.items(), colours, strict=True):
        shares = [
            100 * sum(result.support_rows[size] for size in sizes) / sum(result.support_rows) for result in comparison.results
        ]
        if any(shares):
            legend[name] = colour
            plot.add_bar(
                x=shares,
                y=_labels(comparison),
                orientation="h",
                marker={"color": colour, "line": {"width": 0}},
                hovertemplate="%{y}: %{x:.1f} % of rows<extra>" + name + "</extra>",
            )
    return Figure(
        "support",
        "Size of the support",
        "How many classes are left in the running: the share of rows by the number of classes whose probability is not zero.",
        plot,
        legend,
    )


def support_groups(classes: int) -> dict[str, range]:
    """Sizes of the support that share a colour."""
    groups = {"none": range(1), "1 class": range(1, 2), "2": range(2, 3), "3": range(3, 4), "4 or 5": range(4, 6)}
    groups = {name: sizes for name, sizes in groups.items() if sizes.stop <= classes}
    between = range(max(sizes.stop for sizes in groups.values()), classes)
    if between:
        groups[f"{between.start} to {between.stop - 1}" if len(between) > 1 else str(between.start)] = between
    return {**groups, f"all {classes}": range(classes, classes + 1)}


def drawn_maps(pairs: Sequence[Pair]) -> dict[str, Pair]:
    """The different maps among the pairs, by label, in the registry's order, as they are for three classes."""
    found: dict[str, Pair] = {}
    for pair in sorted(pairs, key=lambda pair: list(REGISTRY).index(pair.map)):
        label = pair.name.split(" · ")[0]
        params = dict(pair.params)
        if "k" in params:  # all three of three classes would be softmax
            params["k"] = min(params["k"], 2)
            label = f"{label}, k = {params['k']}"
        found.setdefault(label, Pair(label, pair.map, pair.loss, params))
    return found


def _probabilities(pair: Pair, scores: Tensor) -> Tensor:
    return find_map(pair.map)(scores, **pair.params)


def curve_figure(comparison: Comparison) -> Figure:
    """p₁ of scores (t, 0, −1)."""
    maps = drawn_maps([result.pair for result in comparison.results])
    t = torch.linspace(-4, 4, 321, dtype=torch.float64)
    scores = torch.stack((t, torch.zeros_like(t), -torch.ones_like(t)), -1)
    plot = _panels(
        [html.escape(label) for label in maps],
        xaxis={"range": [-4, 4], "tickvals": [-4, 0, 4], "tickfont": {"size": 11}},
        yaxis={"range": [-0.05, 1.05], "tickvals": [0, 0.5, 1], "ticktext": ["0", "½", "1"], "tickfont": {"size": 11}},
    )
    for number, pair in enumerate(maps.values(), 1):
        where = {"x": t.tolist(), "mode": "lines", **_panel(number)}
        dashed = {"color": GREY, "width": 1.2, "dash": "dot"}
        plot.add_scatter(y=scores.softmax(-1)[:, 0].tolist(), line=dashed, hoverinfo="skip", **where)
        plot.add_scatter(
            y=_probabilities(pair, scores)[:, 0].tolist(),
            line={"color": _style(pair.map)["color"], "width": 2.5},
            hovertemplate="t = %{x:.2f}, p₁ = %{y:.3f}<extra></extra>",
            **where,
        )
    return Figure(
        "curves",
        "The maps: one score moves",
        "The first probability of the scores (t, 0, −1) as t goes from −4 to 4; the dotted line is softmax.",
        plot,
    )


CORNERS = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, math.sqrt(0.75)]], dtype=torch.float64)
MASSES = {"mass below 0.7": (0.0, 0.7), "mass 0.7 to 0.9": (0.7, 0.9), "mass above 0.9": (0.9, math.inf)}
LEGEND = {
    "support 1": "#D55E00",
    "support 2": "#E69F00",
    "support 3": "#56B4E9",
    "mass below 0.7": "#e3a5c6",
    "mass 0.7 to 0.9": "#b3598e",
    "mass above 0.9": "#8c3466",
}


def hexagon(reach: float = 3.0, steps: int = 12) -> Tensor:
    """A triangular grid [points, 3] of scores with Σx = 0 and |x_i| ≤ reach."""
    ticks = range(-steps, steps + 1)
    points = [(i, j, -i - j) for i in ticks for j in ticks if abs(i + j) <= steps]
    return torch.tensor(points, dtype=torch.float64) * (reach / steps)


def simplex_figure(comparison: Comparison) -> Figure:
    """The image of a grid of scores in the triangle of probabilities."""
    maps = drawn_maps([result.pair for result in comparison.results])
    across, up = (-0.08, 1.08), (-0.06, 0.94)  # the triangle and a margin
    plot = _panels(
        [html.escape(label) for label in maps],
        aspect=(up[1] - up[0]) / (across[1] - across[0]),
        xaxis={"range": across, "visible": False},
        yaxis={"range": up, "visible": False},
    )
    scores = hexagon()
    outline = CORNERS[[0, 1, 2, 0]]
    named: set[str] = set()
    for number, pair in enumerate(maps.values(), 1):
        where = _panel(number)
        line = {"color": GREY, "width": 1}
        plot.add_scatter(x=outline[:, 0].tolist(), y=outline[:, 1].tolist(), mode="lines", line=line, hoverinfo="skip", **where)
        p = _probabilities(pair, scores)
        mass = p.sum(-1)
        places = (p / mass.clamp_min(1e-300)[:, None]) @ CORNERS
        for name, kept in _point_groups(pair, p, mass).items():
            plot.add_scatter(
                x=places[kept, 0].tolist(),
                y=places[kept, 1].tolist(),
                customdata=torch.cat((scores, p), -1)[kept].round(decimals=3).tolist(),
                hovertemplate="scores (%{customdata[0]}, %{customdata[1]}, %{customdata[2]})<br>"
                "probabilities (%{customdata[3]}, %{customdata[4]}, %{customdata[5]})<extra></extra>",
                mode="markers",
                marker={"size": 3.5, "color": LEGEND[name]},
                **where,
            )
            named.add(name)
    return Figure(
        "simplex",
        "The maps: where scores land",
        "Each dot is one of a regular grid of scores with sum 0, placed in the triangle of the probabilities of three classes "
        "(a corner is one class alone). Maps with a mass below 1 are drawn as p/Σp, coloured by the mass. Maps that do "
        "not ignore a shift of all scores give another picture for another sum.",
        plot,
        {name: colour for name, colour in LEGEND.items() if name in named},
    )


def _point_groups(pair: Pair, p: Tensor, mass: Tensor) -> dict[str, Tensor]:
    """Which points to draw alike: by mass where it can be below one, else by the size of the support. Names as in the legend."""
    if find_map(pair.map).properties.mass == "at most one":
        groups = {name: (mass >= low) & (mass < high) for name, (low, high) in MASSES.items()}
    else:
        support = (p > 0).sum(-1)
        groups = {f"support {size}": support == size for size in (1, 2, 3)}
    return {name: kept for name, kept in groups.items() if bool(kept.any())}


# The page -----------------------------------------------------------------------------------------------------------------


def page(comparison: Comparison) -> str:
    """The page, complete in itself."""
    escape = html.escape
    drawn = figures(comparison)
    taken = comparison.recommendation
    facts = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in settings_in_words(comparison).items()
    )
    heading = "".join(f"<th scope='col'>{escape(column.heading)}</th>" for column in COLUMNS)
    rows = "".join(
        f"<tr{' class=taken' * (result.pair == taken.pair)}>"
        + "".join(f"<td>{escape(column.cell(result))}</td>" for column in COLUMNS)
        + "</tr>"
        for result in comparison.results
    )
    sections = "".join(
        f"<section><h2>{escape(figure.title)}</h2><p class='reading'>{escape(figure.reading)}</p>{_legend(figure)}"
        f"<div class='figure' id='{figure.id}'></div></section>"
        for figure in drawn
    )
    plots = {figure.id: figure.plot.to_plotly_json() for figure in drawn}
    return Template(files("softmaxima.report").joinpath("compare.html").read_text(encoding="utf-8")).substitute(
        title=escape(f"softmaxima compare: {comparison.facts.name}"),
        table_name=escape(comparison.facts.name),
        pair=escape(taken.pair.name),
        reason=escape(taken.reason),
        code=escape(taken.pair.code),
        facts=facts,
        heading=heading,
        rows=rows,
        caption=escape(CAPTION),
        sections=sections,
        figures=_script_json(_finite(plots)),
        plotly=get_plotlyjs(),
    )


def _legend(figure: Figure) -> str:
    swatches = "".join(f"<li><i style='background:{colour}'></i>{html.escape(name)}</li>" for name, colour in figure.legend.items())
    return f"<ul class='legend'>{swatches}</ul>" if swatches else ""


def _script_json(value: Any) -> str:
    """JSON that cannot end the script element that holds it."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


FILES = {
    "report.html": page,
    "results.json": lambda comparison: json.dumps(as_json(comparison), indent=1, ensure_ascii=False, allow_nan=False) + "\n",
    "results.csv": as_csv,
}


def write(comparison: Comparison, directory: Path) -> tuple[Path, ...]:
    """Write the page and the numbers. A file appears complete or not at all."""
    paths = []
    for name, text in FILES.items():
        write_text(directory / name, text(comparison))
        paths.append(directory / name)
    return tuple(paths)
