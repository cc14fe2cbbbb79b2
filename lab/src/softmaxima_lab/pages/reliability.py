"""The figure of reliability: how often a top probability was right, by how high it was."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from softmaxima.temperature.reliability import Bin
from softmaxima_lab.compare.differences import share_interval
from softmaxima_lab.pages.figures import GREY, Figure, panel, panels


def reliability_panels(shown: Sequence[tuple[str, Sequence[Bin], str]], large: bool = False) -> Figure:
    """The accuracy of each bin of confidence: a panel for each title with bins and a colour. Large ones have intervals."""
    ticks = {0: "0", 0.25: "¼", 0.5: "½", 0.75: "¾", 1: "1"} if large else {0: "0", 0.5: "½", 1: "1"}
    shares = {"range": [-0.04, 1.06], "tickvals": list(ticks), "ticktext": list(ticks.values())}
    shares |= {} if large else {"tickfont": {"size": 11}}
    plot = panels([title for title, _, _ in shown], aspect=0.8 if large else 1.0, xaxis=shares, yaxis=shares)
    for number, (_, bins, colour) in enumerate(shown, 1):
        _add_reliability(plot, panel(number), bins, colour, large)
    between, little = ", with its interval at 95 %" * large, "; the smallest dots are of few rows, and say little" * (not large)
    return Figure(
        "reliability",
        "Reliability",
        f"Across: the top probability; up: how often it was right{between}. On the dotted diagonal probabilities mean what they "
        "say, below it they are too sure, above it not sure enough. The area of a dot, and the bar below it, say how many rows it "
        f"stands for{little}. A bin without rows has no dot.",
        plot,
    )


def _add_reliability(plot: go.Figure, where: Mapping[str, str], bins: Sequence[Bin], colour: str, large: bool) -> None:
    filled, dot = [bin for bin in bins if bin.rows], 13 if large else 9
    counts = [bin.rows for bin in filled]
    sure, right = [bin.confidence / bin.rows for bin in filled], [bin.hits / bin.rows for bin in filled]
    ends = [share_interval(bin.hits, bin.rows) for bin in filled]
    reach = {
        "array": [high - share for share, (_, high) in zip(right, ends, strict=True)],
        "arrayminus": [share - low for share, (low, _) in zip(right, ends, strict=True)],
        "color": colour,
        "thickness": 1,
        "width": 0,
    }
    plot.add_scatter(x=[0, 1], y=[0, 1], mode="lines", line={"color": GREY, "width": 1, "dash": "dot"}, hoverinfo="skip", **where)
    plot.add_scatter(
        x=sure,
        y=right,
        mode="markers",
        error_y=reach if large else None,
        marker={
            "size": [max(dot / 3, dot * math.sqrt(count / max(counts))) for count in counts],
            "color": colour,
            "opacity": 1,
            "line": {"width": 0},
        },
        text=[f"{count} rows" for count in counts],
        cliponaxis=False,
        hovertemplate="confidence %{x:.2f}, accuracy %{y:.2f}, %{text}<extra></extra>",
        **where,
    )
    plot.add_bar(
        x=sure,
        y=[0.3 * count / sum(counts) for count in counts],
        width=0.9 / len(bins),
        marker={"color": "rgba(0, 0, 0, 0)", "line": {"color": colour, "width": 1}},
        hoverinfo="skip",
        **where,
    )
