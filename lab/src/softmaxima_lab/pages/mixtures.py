"""What ways of choosing a map gain over softmax, in a sentence and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from softmaxima_lab.compare.confirmation import KNOWN
from softmaxima_lab.compare.differences import Difference
from softmaxima_lab.pages.documents import Block, Entry, Picture
from softmaxima_lab.pages.figures import GRID, styled
from softmaxima_lab.pages.markdown import table
from softmaxima_lab.studies.mixtures import (
    BESIDE,
    FOLDS,
    INNER,
    LEARNT,
    MAPS,
    PAIRS,
    STEPS,
    WAYS,
    Chosen,
    gain,
    means,
    overall,
    run,
    verdict,
)

CAPTION = (
    f"Accuracy of softmax in %, the mean over {FOLDS} folds, and what each way gains over it, or over the learnt τ, in points, and "
    "in nats of log loss (above 0: better), with intervals of which all in both tables, in both measures, hold at once at 95 % "
    "(corrected resampled t; Bonferroni), and so do all of the last lines (t over tables); ↑ and ↓ where they leave out 0, = where "
    "softmax was taken in all folds. Each way chooses on the rows that a fold trains on alone. The mixture is of "
    f"{', '.join(map.replace('_', ' ') for map in MAPS)}; {STEPS} steps of a network of 128 hidden units for all."
)
SILENT = f"`compare` chooses on {INNER.folds} folds without repetition, where it can hardly recommend any map but softmax"

COLOURS = ("#7F7F7F", "#0072B2", "#F0C27F", "#E69F00", "#7FCDB5", "#009E73")  # of the ways
MEASURES = (("accuracy", 100, "gain in accuracy, points"), ("log-loss", 1, "gain in log loss, nats"))


def sentence(found: Sequence[Chosen]) -> str:
    """What holds of each way, a line each."""
    lines = "\n".join(f"- {verdict(found, way, beside)}." for way, beside in PAIRS)
    held = "The intervals of these lines hold at once at 95 %, and where one holds 0, no difference is shown"
    return f"{SILENT}. {held}.\n\n{lines}\n" + "\n".join(f"- {share_of_temperature(found, *pair)}." for pair in BESIDE.items())


def share_of_temperature(found: Sequence[Chosen], way: str, beside: str) -> str:
    """What the learnt τ gains over softmax on the two tables where the mixture gains most and least."""
    own, other = (means(found, each, "log-loss") for each in (way, beside))
    tables = tuple(dict.fromkeys(each.table for each in found))
    ends = (("most", max), ("least", min))
    told = (
        f"{word} on {tables[k]}, {own[k]:+.3f} nats, where {beside} has {other[k]:+.3f}"
        for word, end in ends
        for k in (own.index(end(own)),)
    )
    return f"{way}, gains over softmax in log loss {' and '.join(told)}"


def markdown(found: Sequence[Chosen]) -> str:
    """The gains over softmax, those of mixtures over the learnt τ, and what was chosen."""
    tables = tuple(dict.fromkeys(each.table for each in found))
    accuracy = {each.table: 100 * fmean(each.reached["accuracy"]) for each in found if each.way == "softmax"}

    def cell(d: dict[str, Difference]) -> str:
        if all(own.low == own.high == 0 for own in d.values()):
            return "="
        lines = []
        for measure, scale, _ in MEASURES:
            own = d[measure]
            mark = " ↑" if own.better else " ↓" if own.worse else ""
            digits = 1 if scale == 100 else 3
            ends = " to ".join(f"{scale * end:+.{digits}f}" for end in (own.low, own.high))
            lines.append(f"{scale * own.mean:+.{digits}f} ({ends}){mark}")
        return "<br>".join(lines)

    def gains(pairs: Iterable[tuple[str, str]]) -> list[list[str]]:
        each = [[cell({m: gain(found, name, way, m, beside) for m, *_ in MEASURES}) for way, beside in pairs] for name in tables]
        return [*each, [cell({m: overall(found, way, m, beside) for m, *_ in MEASURES}) for way, beside in pairs]]

    names = (*tables, "all")
    shares = [*(f"{accuracy[name]:.1f}" for name in tables), f"{fmean(accuracy.values()):.1f}"]
    over = [[*row] for row in zip(names, shares, *zip(*gains([(way, "softmax") for way in WAYS]), strict=True), strict=True)]
    beside = [[name, *row] for name, row in zip(names, gains([*BESIDE.items()]), strict=True)]
    choices = {(each.table, each.way): Counter(each.choices).most_common() for each in found}
    free = [way for way in WAYS if LEARNT.get(way) != ("softmax",)]
    chosen = [[name, *(", ".join(f"{what} {n}" for what, n in choices[name, way]) for way in free)] for name in tables]
    return "\n\n".join((
        "Over softmax:", table(["", "softmax", *WAYS], over),
        "Of the mixtures over softmax with a learnt τ:", table(["", *BESIDE], beside),
        "What was chosen, in how many folds:", table(["", *free], chosen),
    ))  # fmt: skip


def picture(found: Sequence[Chosen]) -> go.Figure:
    """The mean gain of each way on each table, and on all with its interval; a panel a measure."""
    tables = tuple(dict.fromkeys(each.table for each in found))
    plot = make_subplots(1, len(MEASURES), shared_yaxes=True, horizontal_spacing=0.03)
    for column, (measure, scale, title) in enumerate(MEASURES, 1):
        for k, (way, colour) in enumerate(zip(WAYS, COLOURS, strict=True)):
            total = overall(found, way, measure)
            means = [*(gain(found, name, way, measure).mean for name in tables), total.mean]
            reach = [*[0.0] * len(tables), total.high - total.mean]
            plot.add_scatter(
                x=[scale * mean for mean in means], y=[place + 0.13 * (k - 2.5) for place in range(len(means))], mode="markers",
                error_x={"array": [scale * each for each in reach], "thickness": 1.5}, name=way, legendgroup=way,
                marker={"size": 7, "color": colour}, showlegend=column == 1, row=1, col=column,
            )  # fmt: skip
        plot.add_vline(0, line={"color": "#7f7f7f", "width": 1}, row=1, col=column)  # pyright: ignore[reportArgumentType]
        plot.update_xaxes(title=title, **GRID, row=1, col=column)
    names = [*tables, "all"]
    plot.update_yaxes(tickvals=list(range(len(names))), ticktext=names, autorange="reversed")
    return styled(plot, 640, 150, 20, 20, 50, width=1100)


def blocks(found: Sequence[Chosen]) -> list[Block]:
    """What docs/mixture.md says of it."""
    says = "What each way of choosing gains over softmax on each table, and on all with intervals"
    return [Block("mixture", (sentence(found), Picture("mixture.png", picture(found), says), markdown(found)), CAPTION)]


ENTRY = Entry(
    "mixture",
    "trains mixtures of maps on ten tables beside compare's choice",
    blocks,
    lambda told: run(advanced=told),
    "mixture.json",
    list[Chosen],
    facts=lambda found: {"folds": FOLDS, "steps": STEPS, "maps": MAPS},
    steps=lambda: len(KNOWN) * FOLDS,
    threads=1,
)
