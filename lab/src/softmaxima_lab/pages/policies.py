"""How soon tasks are solved by policies of many temperatures, in sentences, a picture and a table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from softmaxima_lab.pages.documents import Block, Entry, Picture
from softmaxima_lab.pages.figures import GRID, styled
from softmaxima_lab.pages.markdown import table
from softmaxima_lab.studies.policies import (
    EPISODES,
    LEVEL,
    METHODS,
    RATE,
    TASKS,
    TESTED_ON,
    TUNED_ON,
    WINDOW,
    Trained,
    learn,
    ranked,
    ratio,
    tested,
    unsolved,
    verdict,
)

CAPTION = (
    f"The episode at which the task is solved, the first of {WINDOW} with a mean return of the goal (475 in CartPole, −20 in "
    f"CliffWalking): its mean over {TESTED_ON} seeds, with those not solved by then counted as {EPISODES} and told in brackets; "
    "the ratio of that mean to the same of the fixed temperature that is best on other seeds (above 1: slower), with intervals of "
    f"the bootstrap that hold at once at {100 * (1 - LEVEL):g} % (Bonferroni), in the table over all of its ratios, above it over "
    f"all that are told. In bold the fixed and the adaptive one that are best on {TUNED_ON} other seeds. Soft Sarsa(0.9) in "
    f"expectation, γ = 0.99, rate {RATE} for Fourier features of order 3; τ in units of the reward, entropies in % of log n."
)
COLOURS = {"fixed": "#0072B2", "falling": "#009E73", "adaptive": "#D55E00"}


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
    """When each seed that judges has solved a task, a row a method and a panel a task, with the mean of the table as a line."""
    tasks, methods = (tuple(dict.fromkeys(getattr(each, what) for each in found)) for what in ("task", "method"))
    plot = make_subplots(1, len(tasks), subplot_titles=tasks, shared_yaxes=True, horizontal_spacing=0.08)
    row = {method: len(methods) - number for number, method in enumerate(methods)}  # the first is the highest
    for column, task in enumerate(tasks, 1):
        for each in (each for each in found if each.task == task):
            at, solved, middle = tested(each), np.asarray(each.solved[TUNED_ON:]), row[each.method]
            mean, seen = float(at.mean()), np.sort(at[solved])
            spread = np.array(
                [0.32 * (-1) ** k * (k % 7) / 6 for k in range(len(seen))]
            )  # beside each other where they are the same
            marks = {"color": COLOURS[each.kind], "size": 6, "opacity": 0.45}
            plot.add_scatter(x=seen, y=middle + spread, mode="markers", marker=marks, row=1, col=column)
            line = {"color": COLOURS[each.kind], "width": 3}
            plot.add_scatter(x=[mean, mean], y=[middle - 0.42, middle + 0.42], mode="lines", line=line, row=1, col=column)
            if left := unsolved(each):
                plot.add_annotation(
                    x=1, xref="x domain", y=middle, text=f"{left} not", showarrow=False, xanchor="left", xshift=4,
                    font={"color": COLOURS[each.kind], "size": 11}, row=1, col=column,
                )  # fmt: skip
    plot.update_xaxes(title="solved at episode", type="log", range=[-0.05, float(np.log10(EPISODES)) + 0.03])
    plot.update_xaxes(**GRID, tickvals=[1, 2, 5, 10, 20, 50, 100, EPISODES])
    plot.update_yaxes(
        tickvals=list(row.values()), ticktext=list(row), range=[0.4, len(methods) + 0.6], showgrid=True, gridcolor="#f2f2f2"
    )
    return styled(plot, 620, 170, 60, 40, 50, showlegend=False)


def blocks(found: Sequence[Trained]) -> list[Block]:
    """What docs/policy.md says of it."""
    says = "The episode at which each seed has solved a task, by temperature; lines are means"
    return [Block("policy", (sentence(found), Picture("policy.png", picture(found), says), markdown_table(found)), CAPTION)]


ENTRY = Entry(
    "policies",
    "learns two tasks of gymnasium at many temperatures",
    blocks,
    lambda told: [each for task in TASKS for each in learn(task, advanced=lambda learners: told(steps=learners))],
    "policy.json",
    list[Trained],
    facts=lambda found: {"tuned_on": TUNED_ON, "tested_on": TESTED_ON, "cap": EPISODES, "window": WINDOW, "rate": RATE},
    steps=lambda: len(TASKS) * len(METHODS) * (TUNED_ON + TESTED_ON),
    threads=1,
)
