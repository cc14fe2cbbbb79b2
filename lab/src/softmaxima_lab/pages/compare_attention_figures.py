"""The figures of a comparison of attention."""

from __future__ import annotations

import math
from typing import Any

import plotly.graph_objects as go
import torch
from torch import Tensor

from softmaxima_lab.compare.attention import COMPARISON, Finding, pictured
from softmaxima_lab.pages.comparison import came_to_numbers, cost_figure, difference_figures, label_of
from softmaxima_lab.pages.figures import Figure, bar_above, panel, panels, rows_layout, styles

# Blank is 0, and what is not shows on a light page and on a dark one.
WEIGHTS = [[0, "rgba(0, 114, 178, 0.25)"], [1, "rgba(0, 114, 178, 1)"]]
SHARES = [[0, "#8fc1e3"], [0.5, "#c2dbec"], [1, "#f0e0c8"]]  # under dark numbers
INK = [[0, "#f4f4f4"], [1, "#3a3a3a"]]


def figures(finding: Finding) -> list[Figure | None]:
    """The figures of one task."""
    marks = styles({result.name: result.candidate and result.candidate.map for result in finding.results})
    causal = finding.task.causal
    axis, down = (finding.task.metric.unit, "a lower loss") if causal else ("errors, %", "fewer errors")
    cost = cost_figure(finding, COMPARISON, marks, {}, axis, ".3f", down)
    return [*difference_figures(finding, "maps", marks, {}), heads_figure(finding), weights_figure(finding), cost]


def heads_figure(finding: Finding) -> Figure:
    """Which share of the keys each head looks at, and how many they are in effect."""
    results = came_to_numbers(finding)
    cells = [result.heads for result in results]
    layers = [head.layer for head in finding.softmax.heads]
    names = [f"{layer + 1}.{layers[:place].count(layer) + 1}" for place, layer in enumerate(layers)]
    plot = go.Figure(
        go.Heatmap(
            x=list(range(len(names))),
            y=[label_of(finding, result) for result in results],
            z=[[100 * head.share for head in row] for row in cells],
            text=[[_short(head.keys) for head in row] for row in cells],
            texttemplate="%{text}",
            textfont={"size": 11, "color": "#222"},
            zmin=0,
            zmax=100,
            colorscale=SHARES,
            colorbar=bar_above("keys that are not 0"),
            xgap=1,
            ygap=1,
            hovertemplate="%{y}: %{z:.1f} % of keys, %{text} in effect<extra></extra>",
        ),
        rows_layout(
            len(results),
            xaxis={
                "tickvals": list(range(len(names))),
                "ticktext": names,
                "tickfont": {"size": 11},
            },
        ),
    )
    plot.update_layout(height=rows_layout(len(results))["height"] + 20, margin_t=24, margin_b=32)
    return Figure(
        f"{finding.task.name}-heads",
        f"{finding.task.heading}: how many keys each head looks at",
        "A column for each layer and head, of each seed the head with the fewest keys first: 2.1 is that of the second layer. The "
        "colour is the share of the keys that a query may see whose probability is not 0; the number is exp(H), as many equal keys "
        "as would be spread as widely. Means over seeds and over queries of held-out rows"
        + ("." if finding.task.causal else ", in the last layer of the query that is read alone."),
        plot,
    )


def _short(number: float) -> str:
    return f"{number:.1f}" if number < 9.95 else f"{number:.0f}"


def weights_figure(finding: Finding) -> Figure | None:
    """The attention of one head to one held-out row, by map; None where softmax has none to show."""
    task, softmax = finding.task, finding.softmax
    shown = [(result, torch.tensor(weights)) for result in finding.trained if (weights := result.drawn("weights"))]
    if not softmax.drawn("weights"):
        return None
    layer, head = pictured(softmax.runs[0], task.causal)
    which = f"head {head + 1} of layer {layer + 1}, where softmax looks at the fewest keys"
    labels = [label_of(finding, result) for result, _ in shown]
    keys = task.length + (not task.causal)
    matrices = [weights.reshape(keys, keys) for _, weights in shown]
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
