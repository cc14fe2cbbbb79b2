"""The pictures of the gallery, all in one style. Each takes what an example's `main` returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from softmaxima_lab.pages.figures import ABOVE, COLOURS, GREY, GRID, SYMBOLS, styled

Found = Mapping[str, Any]
BLUE, ORANGE, GREEN, RED = COLOURS[:4]
DARK = "#333333"


def _panels(*titles: str, legend: bool = False, **options: Any) -> go.Figure:
    """A row of plots, with room for a legend above."""
    plot = make_subplots(1, len(titles), subplot_titles=titles, horizontal_spacing=0.09, **options)
    plot.update_xaxes(**GRID).update_yaxes(**GRID)
    return styled(plot, 340 if legend else 300, 60, 20, 70 if legend else 30, 50, legend=ABOVE)


def maximum_entropy(found: Found) -> go.Figure:
    """Dice, weights, and the gap."""
    plot = _panels("dice of mean 4.5", "weights, found and true", "duality gap, nats", legend=True)
    faces, dice = list(range(1, 7)), found["dice"]
    plot.add_bar(x=faces, y=dice["exact"], marker={"color": "#cfe0ee"}, name="p ∝ r^k", row=1, col=1)
    plot.add_scatter(x=faces, y=dice["found"], mode="markers", marker={"color": BLUE, "size": 9}, name="found", row=1, col=1)
    ends = [min(found["truth"]) - 0.1, max(found["truth"]) + 0.1]
    plot.add_scatter(x=ends, y=ends, mode="lines", line={"color": GREY, "width": 1}, showlegend=False, row=1, col=2)
    plot.add_scatter(
        x=found["truth"], y=found["found"], mode="markers", marker={"color": BLUE, "size": 6}, showlegend=False,
        error_y={"array": [1.96 * error for error in found["errors"]], "thickness": 1.5}, row=1, col=2,
    )  # fmt: skip
    gaps = [(step, gap) for step, gap in enumerate(found["gaps"]) if gap is not None and gap > 1e-14]  # below it is rounding
    steps, values = zip(*gaps, strict=True)
    marks = {"mode": "lines+markers", "line": {"color": ORANGE}, "marker": {"size": 8}, "showlegend": False}
    plot.add_scatter(x=steps, y=values, **marks, row=1, col=3)
    plot.update_xaxes(title="face", dtick=1, row=1, col=1)
    plot.update_xaxes(title="true weight", row=1, col=2)
    plot.update_xaxes(title="step", dtick=1, row=1, col=3)
    return plot.update_yaxes(type="log", exponentformat="power", row=1, col=3)


def tagging(found: Found) -> go.Figure:
    """The shares of tags in one sentence, by tagger."""
    sentence = found["one sentence"]
    shown = ("truth", "softmax chain", "sparsemax chain")
    plot = _panels("P(tag | words), the truth", *shown[1:], shared_yaxes=True)
    scale = [[0.0, "#ffffff"], [1e-9, "#e3eef7"], [0.5, "#6ba3cf"], [1.0, BLUE]]
    for column, name in enumerate(shown, 1):
        shares = [list(places) for places in zip(*sentence[name], strict=True)]  # [tags, places]
        places = list(range(1, len(shares[0]) + 1))
        bar = {"title": "share", "thickness": 12}
        style = {
            "zmin": 0,
            "zmax": 1,
            "colorscale": scale,
            "xgap": 1,
            "ygap": 1,
            "showscale": column == len(shown),
            "colorbar": bar,
        }
        plot.add_heatmap(x=places, z=shares, **style, row=1, col=column)
        plot.update_xaxes(range=[0.5, len(places) + 0.5], row=1, col=column)
        mark = {"color": RED, "symbol": "x-thin", "size": 7, "line": {"width": 2, "color": RED}}
        plot.add_scatter(x=places, y=sentence["tags"], mode="markers", marker=mark, showlegend=False, row=1, col=column)
    plot.update_xaxes(title="place", showgrid=False)
    plot.update_yaxes(showgrid=False)
    plot.update_yaxes(title="tag", dtick=1, row=1, col=1)
    return plot.update_layout(height=250, plot_bgcolor="#d9d9d9")


def partition_function(found: Found) -> go.Figure:
    """log Ẑ − log Z of every run, and how often intervals hold Z."""
    plot = _panels("log Ẑ − log Z of every run", "intervals that hold log Z, %", "effective chains")
    rows = found["rows"]
    steps = [str(row["steps"]) for row in rows]
    for row in rows:
        errors = [value - found["exact"] for value in row["values"]]
        box = {"marker": {"color": BLUE, "size": 3}, "line": {"width": 1.5}, "boxpoints": "outliers", "showlegend": False}
        plot.add_box(y=errors, name=str(row["steps"]), **box, row=1, col=1)
    plot.add_hline(y=0, line={"color": GREY, "width": 1}, row=1, col=1)  # type: ignore[arg-type]
    marks = {"mode": "lines+markers", "marker": {"size": 8}, "showlegend": False}
    plot.add_scatter(x=steps, y=[100 * row["coverage"] for row in rows], line={"color": ORANGE}, **marks, row=1, col=2)
    plot.add_hline(y=95, line={"color": GREY, "width": 1, "dash": "4px,3px"}, row=1, col=2)  # type: ignore[arg-type]
    plot.add_scatter(x=steps, y=[row["effective"] for row in rows], line={"color": GREEN}, **marks, row=1, col=3)
    plot.update_xaxes(title="steps", type="category")
    plot.update_yaxes(range=[40, 101], row=1, col=2)
    return plot.update_yaxes(range=[0, found["chains"]], row=1, col=3)


def ising_torus(found: Found) -> go.Figure:
    """Energy, heat capacity, and the central charge."""
    plot = _panels("energy a spin", "heat capacity a spin", "central charge, by width L", legend=True)
    for (name, points), colour in zip(found["curves"].items(), (COLOURS[5], GREEN, ORANGE, DARK), strict=True):
        line = {"color": colour, "width": 2, "dash": "4px,3px" if name == "onsager" else "solid", "simplify": False}
        beta, *values = zip(*points, strict=True)
        for column, each in enumerate(values, 1):
            shown = {"name": "∞ (Onsager)" if name == "onsager" else name, "showlegend": column == 1}
            plot.add_scatter(x=beta, y=each, mode="lines", line=line, **shown, row=1, col=column)
    dotted = {"color": GREY, "width": 1, "dash": "2px,2px"}
    for column in (1, 2):
        plot.add_vline(x=math.log1p(math.sqrt(2)) / 2, line=dotted, row=1, col=column)  # type: ignore[arg-type]
    widths, charges = zip(*found["charges"].items(), strict=True)
    marks = {"mode": "lines+markers", "line": {"color": BLUE}, "marker": {"size": 8}, "showlegend": False}
    plot.add_scatter(x=[int(width) for width in widths], y=charges, **marks, row=1, col=3)
    plot.add_hline(y=0.5, line={"color": GREY, "width": 1, "dash": "4px,3px"}, row=1, col=3)  # type: ignore[arg-type]
    plot.update_xaxes(title="β", row=1, col=1).update_xaxes(title="β", row=1, col=2)
    return plot.update_xaxes(title="L", row=1, col=3).update_yaxes(range=[0.495, 0.525], row=1, col=3)


def class_codes(found: Found) -> go.Figure:
    """Regions of classes by both networks, and bits a symbol."""
    plot = _panels("softmax, linear", "two bits, linear", "bits a symbol, K in a block")
    regions = found["regions"]
    colours = ("#d0d0d0", "#9cc4e4", "#f0c98a", "#93d3bd")  # of none and of the three
    steps = [[(i + end) / 4, colour] for i, colour in enumerate(colours) for end in (0, 1)]
    for column, name in enumerate(("softmax", "bits"), 1):
        style = {"zmin": -1.5, "zmax": 2.5, "colorscale": steps, "showscale": False}
        plot.add_heatmap(x=regions["axis"], y=regions["axis"], z=regions[name], **style, row=1, col=column)
        angles = [2 * math.pi * k / 3 for k in range(3)]
        centres = {"x": [math.sqrt(3) * math.cos(a) for a in angles], "y": [math.sqrt(3) * math.sin(a) for a in angles]}
        text = ["", "", ""] if name == "softmax" else ["01", "10", "11"]
        mark = {"color": DARK, "symbol": "x-thin", "size": 9, "line": {"width": 2, "color": DARK}}
        plot.add_scatter(
            **centres, mode="markers+text", text=text, textposition="top center", marker=mark, showlegend=False, row=1, col=column
        )  # fmt: skip
    none = [(x, y) for y, line in enumerate(regions["bits"]) for x, said in enumerate(line) if said == -1]
    x, y = (regions["axis"][round(fmean(ends))] for ends in zip(*none, strict=True))
    plot.add_annotation(x=x, y=y, text="00, none", showarrow=False, row=1, col=2)
    lengths = list(range(1, len(found["bits"]) + 1))
    each = [bits / k for k, bits in zip(lengths, found["bits"], strict=True)]
    plot.add_scatter(
        x=lengths, y=each, mode="lines+markers", line={"color": BLUE}, marker={"size": 4}, showlegend=False, row=1, col=3
    )
    plot.add_hline(y=math.log2(3), line={"color": GREY, "width": 1, "dash": "4px,3px"}, row=1, col=3)  # type: ignore[arg-type]
    for column in (1, 2):
        plot.update_xaxes(title="first feature", showgrid=False, row=1, col=column)
        plot.update_yaxes(title="second feature", row=1, col=column)
    return plot.update_xaxes(title="K", row=1, col=3).update_yaxes(range=[1.55, 2.02], row=1, col=3)


def click_rates(found: Found) -> go.Figure:
    """How right p is, and what choices by p lose."""
    plot = _panels("mean click rate against mean p", "lost by choices, % of the best", legend=True)
    plot.add_scatter(
        x=[10**-4.5, 1], y=[10**-4.5, 1], mode="lines", line={"color": GREY, "width": 1}, showlegend=False, row=1, col=1
    )
    for (name, (own, true)), colour, symbol in zip(found["groups"].items(), COLOURS, SYMBOLS, strict=False):
        style = {"line": {"color": colour, "width": 1.5}, "marker": {"size": 6, "symbol": symbol}}
        plot.add_scatter(x=own, y=true, mode="lines+markers", name=name, **style, row=1, col=1)
    names = [name.replace(" of ", " of<br>").replace("and a ", "and a<br>") for name in found["models"]]
    for key, called, colour in (("ten best", "the ten best by p", "#b9c4cf"), ("auction", "the best by bid · p", DARK)):
        lost = [100 * (1 - fmean(each[key])) for each in found["models"].values()]
        plot.add_bar(x=names, y=lost, marker={"color": colour}, name=called, row=1, col=2)
    plot.update_xaxes(tickangle=0, row=1, col=2)
    logarithmic = {"type": "log", "exponentformat": "power", "dtick": 1}
    plot.update_xaxes(title="p", range=[-4.5, 0], **logarithmic, row=1, col=1)
    return plot.update_yaxes(range=[-4, 0], **logarithmic, row=1, col=1)


PICTURES: dict[str, Callable[[Found], go.Figure]] = {
    each.__name__: each for each in (maximum_entropy, tagging, partition_function, ising_torus, class_codes, click_rates)
}
