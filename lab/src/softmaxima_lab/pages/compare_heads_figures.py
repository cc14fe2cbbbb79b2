"""The figures of a comparison of heads."""

from __future__ import annotations

import html
import math

import plotly.graph_objects as go

from softmaxima_lab.compare.heads import COMPARISON, Finding
from softmaxima_lab.compare.heads_pictures import BINS
from softmaxima_lab.compare.heads_text import SHARE, SHARES
from softmaxima_lab.pages.comparison import came_to_numbers, cost_figure, difference_figures, label_of, marks_of_families
from softmaxima_lab.pages.figures import COLOURS, GREY, Figure, logarithmic, panel, panels, rows_layout

FAMILIES = {  # of heads: the colour of each, and what its heads have in common
    "linear": (COLOURS[0], "all scores, the loss of a map"),
    "sampled": (COLOURS[1], "some classes, drawn"),
    "noise": (COLOURS[1], "some classes, drawn"),
    "tree": (COLOURS[2], "a tree of classes"),
    "adaptive": (COLOURS[3], "frequent classes first"),
    "margin": (COLOURS[1], "cosines, with a margin or without"),
    "torch linear": (COLOURS[4], "torch's own"),
    "torch adaptive": (COLOURS[4], "torch's own"),
}
OWN, OTHER = COLOURS[0], COLOURS[1]  # of cosines
GRADIENT, UPDATE = COLOURS[0], COLOURS[5]  # of a step


def figures(finding: Finding) -> list[Figure | None]:
    """The figures of one task."""
    own, task, named = marks(finding), finding.task, legend(finding)
    gains = difference_figures(finding, "heads", own, named)
    if task.is_large:
        cost = cost_figure(finding, COMPARISON, own, named, "ε-perplexity", ".2f", "a lower ε-perplexity", names_all=True)
        return [*gains, cost, eps_figure(finding), time_figure(finding), memory_figure(finding)]
    down = "fewer pictures whose nearest shows another digit, of digits left out,"
    cost = cost_figure(finding, COMPARISON, own, named, "not found, %", ".2f", down)
    return [*gains, cosine_figure(finding), neighbour_figure(finding), cost]


def marks(finding: Finding) -> dict[str, dict[str, str]]:
    """A colour for each family, and a symbol for each result of one."""
    return marks_of_families(finding, {kind: colour for kind, (colour, _) in FAMILIES.items()})


def legend(finding: Finding) -> dict[str, str]:
    """What each colour stands for."""
    found = (FAMILIES[result.candidate.kind] for result in finding.trained if result.candidate is not None)
    return {words: colour for colour, words in found}


def eps_figure(finding: Finding) -> Figure | None:
    """ε-perplexity by ε, of softmax and of heads that give p = 0; None where there are none."""
    zeros = [result for result in came_to_numbers(finding) if result.mean("zeros") > 0]
    if not zeros or finding.softmax.diverged:
        return None
    shown = [finding.softmax, *zeros][: len(COLOURS)]
    curves = [[math.exp(nats) for nats in result.drawn("curve")] for result in shown]
    colours = dict(zip([result.name for result in shown], COLOURS, strict=False))
    values = [value for curve in curves for value in curve]
    plot = go.Figure(
        layout={
            "height": 380,
            "margin": {"l": 64, "r": 16, "t": 12, "b": 52},
            "xaxis": {"title": "nε, shared out evenly", **logarithmic(SHARES[0], SHARES[-1])},
            "yaxis": {"title": "ε-perplexity", **logarithmic(min(values) / 1.3, max(values) * 1.1)},
            "showlegend": False,
        }
    )
    plot.add_vline(SHARE, line={"color": GREY, "width": 1, "dash": "dot"})
    for result, curve in zip(shown, curves, strict=True):
        plot.add_scatter(
            x=SHARES,
            y=curve,
            name=result.name,
            mode="lines",
            line={"color": colours[result.name], "width": 2.5},
            hovertemplate=f"{html.escape(result.name)}, nε = %{{x:.2g}}: %{{y:.1f}}<extra></extra>",
        )
    return Figure(
        f"{finding.task.name}-eps",
        f"{finding.task.heading}: what a zero costs is a choice",
        "The perplexity of a head that gives a word p = 0 which then comes is infinite. ε-perplexity makes it finite, and the "
        f"smaller ε, the more a zero costs. The table has nε = {SHARE:g} for every head, the dotted line. A head without zeros, "
        "such as softmax, has nearly one value for all small ε. At the right end most probability is shared out evenly, by every "
        "head.",
        plot,
        colours,
    )


def time_figure(finding: Finding) -> Figure:
    """What a step consists of."""
    results = sorted(finding.trained, key=lambda result: result.step_seconds)
    plot = go.Figure(layout=rows_layout(len(results), barmode="stack", xaxis={"title": "a step of training, ms"}))
    for what, colour in (("gradient", GRADIENT), ("update", UPDATE)):
        plot.add_bar(
            y=[label_of(finding, result) for result in results],
            x=[1000 * result.seconds(what) for result in results],
            orientation="h",
            marker={"color": colour},
            hovertemplate="%{y}: %{x:.2f} ms<extra></extra>",
        )
    return Figure(
        f"{finding.task.name}-time",
        f"{finding.task.heading}: what a step of training takes",
        "The loss with its gradient through the head and the network below it, and the update of all weights by Adam, which has a "
        "weight of each class to update whichever classes a head looked at. On one thread, in turns with the other heads.",
        plot,
        {"loss and gradient": GRADIENT, "update": UPDATE},
    )


def memory_figure(finding: Finding) -> Figure | None:
    """The peak memory of a step; None where the system does not tell."""
    results = sorted((r for r in finding.trained if math.isfinite(r.peak_bytes)), key=lambda result: result.peak_bytes)
    if not results:
        return None
    own = marks(finding)
    layout = rows_layout(len(results), xaxis={"title": "peak of a step, MiB"})
    plot = go.Figure(
        go.Bar(
            y=[label_of(finding, result) for result in results],
            x=[result.peak_bytes / 2**20 for result in results],
            orientation="h",
            marker={"color": [own[result.name]["color"] for result in results]},
            hovertemplate="%{y}: %{x:.1f} MiB<extra></extra>",
        ),
        layout,
    )
    return Figure(
        f"{finding.task.name}-memory",
        f"{finding.task.heading}: memory of a step",
        "How far the memory of a process of its own rises in one step of training: scores, gradients and what they are made of, "
        "beside the weights and the optimiser's state, which were there before. Measured once, to about 2 MiB.",
        plot,
        legend(finding),
    )


def cosine_figure(finding: Finding) -> Figure | None:
    """Cosines of held-out pictures of digits that were learnt with the vectors of their class and of the nearest other."""
    return _histograms(
        finding,
        "cosines",
        "cosines of digits that are learnt",
        "For each held-out picture of a digit that was learnt, the cosine of its features with the vector of its own class, and "
        "with that of the nearest other one. The less the two overlap, the surer the digit; a margin should move them apart. The "
        "height is how many pictures; the mean of all seeds.",
        (-1, 1, 1),
        ("own", "other"),
        ("the vector of its own class", "that of the nearest other class"),
    )


def neighbour_figure(finding: Finding) -> Figure | None:
    """Angles between pictures of digits that were left out and the nearest of the same digit and of another."""
    return _histograms(
        finding,
        "neighbours",
        "angles of digits left out of training",
        "For each picture of a digit that was left out, the angle in degrees between its features and those of the nearest "
        "picture of the same digit, and of another. It is found where the first is the smaller. The height is how many pictures; "
        "the mean of all seeds. Beside the heads stand the pixels, in the place of features.",
        (0, 90, 30),
        ("same", "different"),
        ("the nearest picture of the same digit", "the nearest of another digit"),
    )


def _histograms(
    finding: Finding,
    id: str,
    title: str,
    reading: str,
    ends: tuple[int, int, int],
    kinds: tuple[str, str],
    words: tuple[str, str],
) -> Figure | None:
    """Of two kinds for each result that has them, over (least, most, apart ticks)."""
    shown = [result for result in finding.results if result.drawn(kinds[0])]
    if not shown:
        return None
    least, most, apart = ends
    axis = {"range": [least, most], "tickvals": list(range(least, most + 1, apart)), "tickfont": {"size": 10}}
    counts = {"showgrid": False, "showticklabels": False, "ticks": "", "rangemode": "tozero"}
    plot = panels([label_of(finding, result) for result in shown], 0.6, xaxis=axis, yaxis=counts)
    middles = [least + (most - least) * (place + 0.5) / BINS for place in range(BINS)]
    for number, result in enumerate(shown, 1):
        for kind, colour, of in zip(kinds, (OWN, OTHER), words, strict=True):
            plot.add_scatter(
                x=middles,
                y=result.drawn(kind),
                mode="lines",
                fill="tozeroy",
                line={"color": colour, "width": 1.5, "shape": "hvh"},
                hovertemplate=f"{of}: %{{x:.3g}}<extra></extra>",
                **panel(number),
            )
    return Figure(
        f"{finding.task.name}-{id}",
        f"{finding.task.heading}: {title}",
        reading,
        plot,
        dict(zip(words, (OWN, OTHER), strict=True)),
    )
