"""What graph networks make of aggregations, in a table, a picture and a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from softmaxima.experiments.neighbours import BASELINE, FEATURES, NODES, STEPS, Trained, gains, verdict
from softmaxima.report.markdown import table

CAPTION = (
    "Accuracy in % on the half of the nodes that is tested, the mean over seeds ± its standard error, and below it the gain over "
    f"{BASELINE} in points, with an interval that holds at once with those of the column at 95 % (paired by seed; Bonferroni); "
    "↑ and ↓ where it leaves out 0. "
    f"Two layers of 16 channels, {STEPS} steps of Adam, the step of the least validation loss. blocks: a stochastic block model; "
    f"largest, sum: the class is what that aggregation says of neighbours; {NODES} nodes with {FEATURES} features, drawn anew for "
    "each seed."
)


def markdown_table(found: Sequence[Trained]) -> str:
    """A line an aggregation, a column a task."""
    by = {(each.task, each.aggregation): each.accuracies for each in found}
    gained = {(gain.task, gain.aggregation): gain.difference for gain in gains(found)}
    tasks, names = (tuple(dict.fromkeys(getattr(each, what) for each in found)) for what in ("task", "aggregation"))

    def cell(task: str, name: str) -> str:
        values = by[task, name]
        shown = f"{100 * fmean(values):.1f} ± {100 * stdev(values) / len(values) ** 0.5:.1f}"
        if name == BASELINE:
            return shown
        difference = gained[task, name]
        mark = " ↑" if difference.better else " ↓" if difference.worse else ""
        return f"{shown}<br>{100 * difference.mean:+.1f} ({100 * difference.low:+.1f} to {100 * difference.high:+.1f}){mark}"

    return table(["", *tasks], [[name, *(cell(task, name) for task in tasks)] for name in names])


def sentence(found: Sequence[Trained]) -> str:
    """The verdict on the claim."""
    return f"Logsumexp at τ = 1 against the best of mean, sum and max: {verdict(found)}."


def picture(found: Sequence[Trained]) -> go.Figure:
    """Accuracies with standard errors, a panel a task."""
    tasks = tuple(dict.fromkeys(each.task for each in found))
    plot = make_subplots(1, len(tasks), subplot_titles=tasks, shared_yaxes=True, horizontal_spacing=0.02)
    for column, task in enumerate(tasks, 1):
        own = [each for each in found if each.task == task][::-1]
        colours = ["#D55E00" if each.aggregation.startswith("LSE") else "#0072B2" for each in own]
        plot.add_scatter(
            x=[100 * fmean(each.accuracies) for each in own], y=[each.aggregation for each in own], mode="markers",
            error_x={"array": [100 * stdev(each.accuracies) / len(each.accuracies) ** 0.5 for each in own], "thickness": 1.5},
            marker={"size": 8, "color": colours}, showlegend=False, row=1, col=column,
        )  # fmt: skip
    plot.update_xaxes(title="accuracy, %", gridcolor="#e6e6e6", showgrid=True)
    plot.update_layout(
        template="simple_white", width=1100, height=420, margin={"l": 200, "r": 20, "t": 40, "b": 50},
        font={"family": "Helvetica, Arial, sans-serif", "size": 12},
    )  # fmt: skip
    return plot
