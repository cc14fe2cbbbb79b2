"""How soon tasks are solved by policies of many temperatures, in sentences, a picture and a table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from plotly.colors import sample_colorscale
from plotly.subplots import make_subplots

from softmaxima.experiments.policies import (
    EPISODES,
    LEVEL,
    RATE,
    TESTED_ON,
    TUNED_ON,
    WINDOW,
    Trained,
    ranked,
    ratio,
    tested,
    unsolved,
    verdict,
)
from softmaxima.report.markdown import table

CAPTION = (
    f"The episode at which the task is solved, the first of {WINDOW} with a mean return of the goal (475 in CartPole, −20 in "
    f"CliffWalking): its mean over {TESTED_ON} seeds, with those not solved by then counted as {EPISODES} and told in brackets; "
    "the ratio of that mean to the same of the fixed temperature that is best on other seeds (above 1: slower), with intervals of "
    f"the bootstrap that hold at once at {100 * (1 - LEVEL):g} % (Bonferroni), in the table over all of its ratios, above it over "
    f"all that are told. In bold the fixed and the adaptive one that are best on {TUNED_ON} other seeds. Soft Sarsa(0.9) in "
    f"expectation, γ = 0.99, rate {RATE} for Fourier features of order 3; τ in units of the reward, entropies in % of log n."
)
KINDS = {"fixed": "Blues", "falling": "Greens", "adaptive": "Oranges"}
DASHES = {"fixed": "solid", "falling": "dash", "adaptive": "dot"}


def sentence(found: Sequence[Trained]) -> str:
    """The verdicts on the claim, a line a task."""
    return "\n".join(f"- {verdict(found, task)}." for task in dict.fromkeys(each.task for each in found))


def markdown_table(found: Sequence[Trained]) -> str:
    """A line a method, two columns a task."""
    tasks, methods = (tuple(dict.fromkeys(getattr(each, what) for each in found)) for what in ("task", "method"))
    by = {(each.task, each.method): each for each in found}
    best = {task: ranked(found, task, "fixed")[0] for task in tasks}

    def cells(task: str, method: str) -> list[str]:
        own, chosen = by[task, method], ranked(found, task, by[task, method].kind)[0]
        left = unsolved(own)
        shown = f"{tested(own).mean():.1f}" + (f" ({left} not)" if left else "")
        r = ratio(own, best[task], len(tasks) * (len(methods) - 1))
        mark = "**" if own is chosen and own.kind != "falling" else ""
        return [f"{mark}{shown}{mark}", "1" if own is best[task] else f"{r.value:.2f} ({r.low:.2f} to {r.high:.2f})"]

    header = ["", *(cell for task in tasks for cell in (f"{task}, solved at", "of the best fixed"))]
    return table(header, [[method, *(cell for task in tasks for cell in cells(task, method))] for method in methods])


def picture(found: Sequence[Trained]) -> go.Figure:
    """The share of the seeds that judge which have solved a task, against episodes; a panel a task."""
    tasks = tuple(dict.fromkeys(each.task for each in found))
    plot = make_subplots(1, len(tasks), subplot_titles=tasks, shared_yaxes=True, horizontal_spacing=0.03)
    for column, task in enumerate(tasks, 1):
        own = [each for each in found if each.task == task]
        for kind, scale in KINDS.items():
            same = [each for each in own if each.kind == kind]
            shades = sample_colorscale(scale, list(np.linspace(0.35, 1.0, len(same)))) if len(same) > 1 else ["#009E73"]
            for each, shade in zip(same, shades, strict=True):
                at = np.sort(tested(each)[np.asarray(each.solved[TUNED_ON:])])
                share = 100 * np.arange(len(at) + 1) / TESTED_ON
                plot.add_scatter(
                    x=[1, *at, EPISODES], y=[*share, share[-1]],
                    mode="lines", line={"shape": "hv", "color": shade, "dash": DASHES[kind], "width": 2},
                    name=each.method, legendgroup=each.method, showlegend=column == 1, row=1, col=column,
                )  # fmt: skip
    plot.update_xaxes(title="episodes", gridcolor="#e6e6e6", showgrid=True, type="log", range=[0, float(np.log10(EPISODES))])
    plot.update_yaxes(gridcolor="#e6e6e6", showgrid=True, range=[0, 101])
    plot.update_yaxes(title="seeds that have solved it, %", col=1)
    plot.update_layout(
        legend={"tracegroupgap": 0}, template="simple_white", width=1100, height=620, margin={"l": 60, "r": 20, "t": 40, "b": 50},
        font={"family": "Helvetica, Arial, sans-serif", "size": 12},
    )  # fmt: skip
    return plot
