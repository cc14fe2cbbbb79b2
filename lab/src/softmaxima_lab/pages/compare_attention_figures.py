"""The figures of a comparison of attention."""

from __future__ import annotations

import html
import math
from typing import Any

import plotly.graph_objects as go
from torch import Tensor

from softmaxima_lab.compare.attention import COST, Finding, Result, difference
from softmaxima_lab.compare.attention_plan import REFERENCE
from softmaxima_lab.compare.differences import Difference
from softmaxima_lab.compare.measures import Metric
from softmaxima_lab.pages.figures import (
    Figure,
    Point,
    Priced,
    cost_plot,
    gain_plot,
    panel,
    panels,
    reading_of_gains,
    rows_layout,
    styles,
)

# Blank is 0, and what is not shows on a light page and on a dark one.
WEIGHTS = [[0, "rgba(0, 114, 178, 0.25)"], [1, "rgba(0, 114, 178, 1)"]]
SHARES = [[0, "#8fc1e3"], [0.5, "#c2dbec"], [1, "#f0e0c8"]]  # under dark numbers
INK = [[0, "#f4f4f4"], [1, "#3a3a3a"]]


def figures(finding: Finding) -> tuple[Figure, ...]:
    """The figures of one task."""
    drawn = gain_figure(finding), heads_figure(finding), weights_figure(finding), cost_figure(finding)
    return tuple(figure for figure in drawn if figure is not None)


def marks(finding: Finding) -> dict[str, dict[str, str]]:
    """A colour and a symbol for each result."""
    return styles({result.name: result.variant and result.variant.map for result in finding.results})


def _label(finding: Finding, result: Result) -> str:
    """The result's name, that of the recommended map in bold."""
    name = html.escape(result.name, quote=False)
    return f"<b>{name}</b>" if result is finding.taken else name


def _trained(finding: Finding) -> list[Result]:
    """The maps that came to numbers with every seed."""
    return [result for result in finding.maps if math.isfinite(result.quality)]


def gain_figure(finding: Finding) -> Figure:
    """Differences to softmax with their intervals."""
    own = marks(finding)
    others = [result for result in finding.results if result.name != REFERENCE]
    points = [Point(_label(finding, result), own[result.name], finding.gain(result)) for result in others]
    return Figure(
        f"{finding.task.name}-gain",
        f"{finding.task.name.capitalize()}: differences to softmax in {finding.metric.words}",
        reading_of_gains("maps", "seeds"),
        gain_plot(points, finding.metric),
    )


def heads_figure(finding: Finding) -> Figure:
    """Which share of the keys each head looks at, and how many they are in effect."""
    results = _trained(finding)
    places = [(layer, head) for layer, heads in enumerate(finding.softmax.heads) for head in range(len(heads))]
    cells = [[result.heads[layer][head] for layer, head in places] for result in results]
    plot = go.Figure(
        go.Heatmap(
            x=list(range(len(places))),
            y=[_label(finding, result) for result in results],
            z=[[100 * head.share for head in row] for row in cells],
            text=[[_short(head.keys) for head in row] for row in cells],
            texttemplate="%{text}",
            textfont={"size": 11, "color": "#222"},
            zmin=0,
            zmax=100,
            colorscale=SHARES,
            colorbar={
                "title": {"text": "keys that are not 0", "side": "top"},
                "orientation": "h",
                "thickness": 10,
                "y": 1,
                "yanchor": "bottom",
                "ticksuffix": " %",
            },
            xgap=1,
            ygap=1,
            hovertemplate="%{y}: %{z:.1f} % of keys, %{text} in effect<extra></extra>",
        ),
        rows_layout(
            len(results),
            xaxis={
                "tickvals": list(range(len(places))),
                "ticktext": [f"{layer + 1}.{head + 1}" for layer, head in places],
                "tickfont": {"size": 11},
            },
        ),
    )
    plot.update_layout(height=rows_layout(len(results))["height"] + 20, margin_t=24, margin_b=32)
    return Figure(
        f"{finding.task.name}-heads",
        f"{finding.task.name.capitalize()}: how many keys each head looks at",
        "A column for each layer and head, of each seed the head with the fewest keys first: 2.1 is that of the second layer. The "
        "colour is the share of the keys that a query may see whose probability is not 0; the number is exp(H), as many equal keys "
        "as would be spread as widely. Means over seeds and over queries of held-out rows"
        + ("." if finding.task.causal else ", in the last layer of the query that is read alone."),
        plot,
    )


def _short(number: float) -> str:
    return f"{number:.1f}" if number < 9.95 else f"{number:.0f}"


def cost_figure(finding: Finding) -> Figure:
    """The loss against the time of a step."""
    own, causal, results = marks(finding), finding.task.causal, _trained(finding)
    points = [
        Priced(
            result.name,
            _label(finding, result),
            own[result.name],
            1000 * result.step_seconds,
            result.quality if causal else 100 * (1 - result.quality),
            result.name == REFERENCE,
        )
        for result in results
    ]

    def gain(metric: Metric, one: int, other: int) -> Difference:
        return difference(results[one], results[other], metric, len(results) - 1)

    def better(one: int, other: int) -> bool:
        return gain(finding.task.metric, one, other).better

    def faster(one: int, other: int) -> bool:
        return gain(COST, one, other).low > COST.least_gain

    return Figure(
        f"{finding.task.name}-cost",
        f"{finding.task.name.capitalize()}: time against quality",
        f"To the left trains faster, further down has {'a lower loss' if causal else 'fewer errors'} on held-out rows; both axes "
        "are logarithmic. Filled are the maps to which no other is preferable, being better in one and not worse in the "
        "other, both for certain: where the interval of their difference over seeds leaves out 0 (95 %, for all others of a map "
        f"together), in time by {100 * math.expm1(COST.least_gain):.0f} % at least. The dotted line joins those that are lower "
        "than all faster ones. These and softmax are named. The symbols are those of the differences above.",
        cost_plot(points, finding.metric.unit if causal else "errors, %", ".3f", better, faster),
    )


def weights_figure(finding: Finding) -> Figure | None:
    """The attention of one head to one held-out row, by map; None where softmax has none to show."""
    shown = [(result, weights) for result in finding.maps if (weights := result.runs[0].weights) is not None]
    if not any(result.name == REFERENCE for result, _ in shown):
        return None
    layer, head = finding.pictured
    which = f"head {head + 1} of layer {layer + 1}, where softmax looks at the fewest keys"
    labels = [_label(finding, result) for result, _ in shown]
    matrices = [weights for _, weights in shown]
    if finding.task.causal:
        letters = bytes(finding.task.held_x[0].tolist()).decode(errors="ignore")
        begin = "".join(filter(str.isprintable, " ".join(letters.split())))[:40]
        return Figure(
            "text-weights",
            "Text: what a head looks at",
            f"One held-out block, “{begin}…”, through {which}: a row for each byte that is read, a column for each that it may "
            "look at, itself and those before. Blank is exactly 0, and the deeper the blue, the more.",
            _texts(labels, matrices),
        )
    return Figure(
        "digits-weights",
        "Digits: what a head looks at",
        f"One held-out picture, and how the token that decides looks at its 16 patches through {which} of that layer. Blank is "
        "exactly 0, and the deeper the blue, the more. What it gives to itself is not shown.",
        _pictures(labels, matrices, finding.task.held_x[0]),
    )


def _texts(labels: list[str], matrices: list[Tensor]) -> go.Figure:
    hidden = {"showgrid": False, "showticklabels": False, "ticks": "", "constrain": "domain"}
    plot = panels(labels, xaxis=hidden, yaxis={**hidden, "autorange": "reversed"})
    for number, p in enumerate(matrices, 1):
        plot.add_heatmap(**_heatmap(p), hovertemplate="byte %{y} looks at %{x}: %{customdata:.3f}<extra></extra>", **panel(number))
    return plot


def _pictures(labels: list[str], matrices: list[Tensor], patches: Tensor) -> go.Figure:
    hidden = {"showgrid": False, "showticklabels": False, "ticks": ""}
    plot = panels(["the picture", *labels], xaxis=hidden, yaxis={**hidden, "autorange": "reversed"})
    pixels = patches.reshape(4, 4, 2, 2).transpose(1, 2).reshape(8, 8)
    plot.add_heatmap(z=pixels.tolist(), colorscale=INK, showscale=False, hoverinfo="skip", **panel(1))
    for number, p in enumerate(matrices, 2):
        given = _heatmap(p[0, 1:].reshape(4, 4))
        plot.add_heatmap(**given, hovertemplate="%{customdata:.3f}<extra></extra>", xgap=1, ygap=1, **panel(number))
    return plot


def _heatmap(p: Tensor) -> dict[str, Any]:
    """√p, so that small probabilities show, and blank where p is 0."""
    return {
        "z": [[round(math.sqrt(x), 3) if x > 0 else None for x in row] for row in p.tolist()],
        "customdata": [[round(x, 4) for x in row] for row in p.tolist()],
        "zmin": 0,
        "zmax": 1,
        "colorscale": WEIGHTS,
        "showscale": False,
    }
