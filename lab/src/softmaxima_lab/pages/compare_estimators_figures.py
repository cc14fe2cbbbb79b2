"""The figures of a comparison of estimators."""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Callable, Sequence

import plotly.graph_objects as go

from softmaxima_lab.compare.differences import Difference
from softmaxima_lab.compare.estimators import SHARE, Finding, Result, mean_of, target
from softmaxima_lab.pages.comparison import difference_figures, label_of, marks_of_families
from softmaxima_lab.pages.figures import COLOURS, GREY, GRID, Figure, rows_layout, styled

FAMILIES = {
    "no draws": COLOURS[3],
    "relaxed draws": COLOURS[1],
    "one-hot draws, a relaxed gradient": COLOURS[0],
    "unbiased": COLOURS[2],
}
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")


def figures(finding: Finding) -> list[Figure]:
    """The figures of one task."""
    own, legend = marks(finding), legend_of(finding)
    gains = difference_figures(finding, "estimators", own, legend)
    measured = [
        _measured(
            finding,
            "snr",
            "signal to noise of a step's gradient",
            "|E g| over the root of its variance, of batches and draws, at the same weights for all: more is a surer step, to "
            "wherever its mean points. Each bar is the interval over seeds, wide enough for all estimators together at 95 %.",
            "SNR",
            lambda result: result.by_seed("snr"),
        ),
        _measured(
            finding,
            "bias",
            "how far the mean gradient is from the unbiased one",
            "|E g − E ĝ|/|E ĝ| of the mean over batches and draws, ĝ that of REINFORCE with many draws, with intervals as above. "
            "What is unbiased shows how far this measures: it is around 0, by chance on either side.",
            "relative bias",
            lambda result: result.by_seed("bias"),
        ),
    ]
    return [*gains, curve_figure(finding), *measured]


def marks(finding: Finding) -> dict[str, dict[str, str]]:
    """A colour for each family, and a symbol for each result of one."""
    return marks_of_families(finding, FAMILIES)


def legend_of(finding: Finding) -> dict[str, str]:
    families = {result.candidate.kind for result in finding.trained if result.candidate}
    return {family: colour for family, colour in FAMILIES.items() if family in families}


def curve_figure(finding: Finding) -> Figure:
    """The ELBO of one-hot draws against the steps taken, the mean over seeds."""
    plot = curves(finding)
    plot.update_layout(height=420, margin={"l": 56, "r": 16, "t": 12, "b": 52}, showlegend=False)
    return Figure(
        f"{finding.task.name}-curves",
        f"{finding.task.heading}: ELBO against the steps",
        "Of one-hot draws on some held-out pictures, whatever is maximised; the mean over seeds. The dotted line is where "
        f"convergence is measured: {100 * SHARE:.0f} % of the way from pixel frequencies to the best. The weight of KL rises in "
        "the first steps, so that all first learn what KL then takes back. What leaves the figure below is worse still.",
        plot,
        legend_of(finding),
    )


def curves(finding: Finding) -> go.Figure:
    """A line an estimator, on an axis around what is better than pixel frequencies."""
    own, reached = marks(finding), target(finding)
    shown = [result for result in finding.trained if result.drawn("curve")]
    best = max((value for result in shown for value in result.drawn("curve")), default=reached)
    least = finding.results[-1].elbo if not shown else min(result.drawn("curve")[0] for result in shown)
    room = 0.08 * (best - least) or 1.0
    axes = {
        "xaxis": {"title": "steps"},
        "yaxis": {"title": {"text": "ELBO, nats", "standoff": 8}, "automargin": True, "range": [least - 4 * room, best + room]},
    }
    plot = go.Figure(layout=axes)
    plot.add_hline(reached, line={"color": GREY, "width": 1, "dash": "dot"})
    used = Counter[str]()
    for result in shown:
        colour = own[result.name]["color"]
        dash = DASHES[used[colour] % len(DASHES)]
        used[colour] += 1
        plot.add_scatter(
            x=result.drawn("taken"),
            y=result.drawn("curve"),
            name=result.name,
            mode="lines",
            line={"color": colour, "width": 2, "dash": dash},
            hovertemplate=f"{html.escape(result.name)}, step %{{x:.0f}}: %{{y:.2f}}<extra></extra>",
        )
    return plot


def _measured(
    finding: Finding,
    id: str,
    title: str,
    reading: str,
    axis: str,
    values: Callable[[Result], Sequence[float]],
) -> Figure:
    """A measure of each estimator with its interval over seeds."""
    found = {result.name: mean_of(values(result), len(finding.trained)) for result in finding.trained}
    known = [result for result in finding.trained if math.isfinite(found[result.name].mean)]
    known.sort(key=lambda result: -found[result.name].mean)
    plot = intervals(finding, known, [found[result.name] for result in known])
    plot.update_layout(rows_layout(len(known), xaxis={"title": axis, "zeroline": True}))
    return Figure(f"{finding.task.name}-{id}", f"{finding.task.heading}: {title}", reading, plot, legend_of(finding))


def intervals(finding: Finding, results: Sequence[Result], found: Sequence[Difference]) -> go.Figure:
    """Means with their intervals, a row each."""
    own, reach = marks(finding), [each.reach if math.isfinite(each.reach) else 0.0 for each in found]
    scatter = go.Scatter(
        x=[each.mean for each in found],
        y=[label_of(finding, result) for result in results],
        error_x={"array": reach, "thickness": 1.5, "width": 4, "color": GREY},
        mode="markers",
        marker={"size": 10, **{key: [own[result.name][key] for result in results] for key in ("color", "symbol")}},
        hovertemplate="%{y}: %{x:.3g}<extra></extra>",
        showlegend=False,
    )
    return go.Figure(scatter)


def picture(finding: Finding) -> go.Figure:
    """ELBO against the steps, and the SNR of gradients, side by side for a page."""
    from plotly.subplots import make_subplots

    plot = make_subplots(1, 2, horizontal_spacing=0.2, column_widths=[0.6, 0.4])
    lines = curves(finding)
    for line in lines.data:
        plot.add_trace(line, row=1, col=1)
    known = sorted(finding.trained, key=lambda result: -result.mean("snr"))
    found = [mean_of(result.by_seed("snr"), len(known)) for result in known]
    plot.add_trace(intervals(finding, known, found).data[0], row=1, col=2)
    plot.add_hline(target(finding), line={"color": GREY, "width": 1, "dash": "dot"}, row=1, col=1)  # type: ignore[arg-type]
    plot.update_xaxes(title="steps", row=1, col=1)
    plot.update_yaxes(title="ELBO of one-hot draws, nats", range=lines.layout.yaxis.range, row=1, col=1)
    plot.update_xaxes(title="SNR of a step's gradient", rangemode="tozero", **GRID, row=1, col=2)
    plot.update_yaxes(autorange="reversed", row=1, col=2)
    return styled(plot, 460, 50, 20, 12, 130, legend={"orientation": "h", "x": 0, "y": -0.16, "yanchor": "top"})
