"""What graph networks make of aggregations, in a table, a picture and a sentence."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from statistics import fmean

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from softmaxima_lab.compare.differences import Difference
from softmaxima_lab.pages.documents import Block, Entry, Picture
from softmaxima_lab.pages.figures import GRID, styled
from softmaxima_lab.pages.markdown import table
from softmaxima_lab.studies.graph_study import (
    BASELINE,
    FEATURES,
    NODES,
    SEEDS,
    STEPS,
    TASKS,
    WIDTH,
    Study,
    Trained,
    ceilings,
    gain,
    names,
    run,
    spread,
    verdict,
)

CEILING = "who knows the truth"
AXIS = (40, 104)  # of accuracies in %, with room for the markers at 100
CAPTION = (
    "Accuracy in % on the half of the nodes that is tested, the mean over seeds ± its standard error, and below it the gain over "
    f"{BASELINE} in points, with an interval that holds at once with those of the column at 95 % (paired by seed; Bonferroni); "
    f"↑ and ↓ where it leaves out 0. Two layers of {WIDTH} channels, Adam at "
    f"{' or '.join(f'{rate} ({count} steps)' for rate, count in STEPS.items())}, each seed of each at the rate and the step of its "
    "own least validation loss. blocks: a stochastic block model; largest, sum: the class is what that aggregation says of "
    f"neighbours; {NODES} nodes with {FEATURES} features, drawn anew for each seed. karate club: Zachary's, 34 members, split anew "
    "for each seed; splits share members, so that standard errors and intervals are those of Nadeau and Bengio. "
    f"{CEILING}: belief propagation with the true parameters and the classes that are trained on; where the class follows from the "
    "features, 100. In the picture standard errors end at 100."
)


def _interval(found: Difference) -> str:
    return f"{100 * found.mean:+.1f} ({100 * found.low:+.1f} to {100 * found.high:+.1f})"


def _shown(task: str, values: Sequence[float]) -> str:
    return f"{100 * fmean(values):.1f} ± {100 * _error(task, values):.1f}"


def _error(task: str, values: Sequence[float]) -> float:
    return spread(task, values).variance ** 0.5


def markdown_table(found: Sequence[Trained], ceilings: Mapping[str, Sequence[float]]) -> str:
    """A line an aggregation, a column a task."""
    by = {(each.task, each.aggregation): each.accuracies for each in found}
    tasks, names = (tuple(dict.fromkeys(getattr(each, what) for each in found)) for what in ("task", "aggregation"))

    def cell(task: str, name: str) -> str:
        if name == BASELINE:
            return _shown(task, by[task, name])
        difference = gain(found, task, name, BASELINE, len(names) - 1)
        mark = " ↑" if difference.better else " ↓" if difference.worse else ""
        return f"{_shown(task, by[task, name])}<br>{_interval(difference)}{mark}"

    def known(task: str) -> str:
        reached = ceilings.get(task)
        return "" if reached is None else "100" if min(reached) == 1 else _shown(task, reached)

    rows = [[name, *(cell(task, name) for task in tasks)] for name in names]
    return table(["", *tasks], [*rows, [CEILING, *map(known, tasks)]])


def sentence(found: Sequence[Trained]) -> str:
    """What holds of logsumexp at τ = 1, against the mean and the best of the usual."""
    word = lambda gain: "better" if gain.better else "worse" if gain.worse else "not told apart"
    parts: dict[str, list[str]] = {}
    for task, over, difference in verdict(found):
        parts.setdefault(task, []).append(f"{_interval(difference)} points on {over}, {word(difference)}")
    said = "; ".join(f"**{task}**: {', and '.join(each)}" for task, each in parts.items())
    return f"Logsumexp at τ = 1 against the mean, and against the best of mean, sum and max: {said}."


def picture(found: Sequence[Trained], ceilings: Mapping[str, Sequence[float]]) -> go.Figure:
    """Accuracies with standard errors, a panel a task; a line where who knows the truth would be."""
    tasks = tuple(dict.fromkeys(each.task for each in found))
    plot = make_subplots(1, len(tasks), subplot_titles=tasks, shared_yaxes=True, horizontal_spacing=0.03)
    for column, task in enumerate(tasks, 1):
        own = [each for each in found if each.task == task][::-1]
        colours = ["#D55E00" if each.aggregation.startswith("LSE") else "#0072B2" for each in own]
        means = [100 * fmean(each.accuracies) for each in own]
        errors = [100 * _error(task, each.accuracies) for each in own]
        above = [min(error, 100 - mean) for mean, error in zip(means, errors, strict=True)]
        plot.add_scatter(
            x=means, y=[each.aggregation for each in own], mode="markers",
            error_x={"type": "data", "symmetric": False, "array": above, "arrayminus": errors, "thickness": 1.5},
            marker={"size": 8, "color": colours}, showlegend=False, row=1, col=column,
        )  # fmt: skip
        if task not in ceilings:
            continue
        plot.add_scatter(
            x=[100 * fmean(ceilings[task])] * 2, y=[own[0].aggregation, own[-1].aggregation], mode="lines", name=CEILING,
            line={"dash": "dot", "color": "#7f7f7f"}, showlegend=column == 1, row=1, col=column,
        )  # fmt: skip
    plot.update_xaxes(title="accuracy, %", range=AXIS, tickvals=[40, 60, 80, 100], **GRID)
    return styled(plot, 420, 200, 20, 60, 50, width=1200, legend={"orientation": "h", "x": 1, "xanchor": "right", "y": 1.2})


def blocks(found: Study) -> list[Block]:
    """What docs/graph.md says of it."""
    says = "Accuracy of each aggregation on each task, with standard errors"
    drawn = Picture("graph-study.png", picture(found.results, found.ceilings), says)
    parts = (sentence(found.results), drawn, markdown_table(found.results, found.ceilings))
    return [Block("graph-study", parts, f"{CAPTION} {len(found.results[0].accuracies)} seeds.")]


ENTRY = Entry(
    "graph-study",
    "trains graph networks with every aggregation, in 9 minutes",
    blocks,
    lambda told: Study(ceilings(range(SEEDS)), run(processes=os.cpu_count() or 1, done=told)),
    "graph-study.json",
    Study,
    facts=lambda found: {"seeds": len(found.results[0].accuracies), "steps": {str(rate): count for rate, count in STEPS.items()}},
    steps=lambda: len(TASKS) * len(names()),
    threads=1,
)
