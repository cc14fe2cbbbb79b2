"""The tables and the picture of bounds of logsumexp."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from softmaxima_lab.pages.bench_tables import number
from softmaxima_lab.pages.documents import Block, Entry, Picture
from softmaxima_lab.pages.figures import FONT, styled
from softmaxima_lab.pages.markdown import table
from softmaxima_lab.pages.signed_log import axis, signed_log
from softmaxima_lab.studies.lse_bounds import CLAIMED, SIZES, Placed, Result, Sparsity, Study, place, run, sparsify

if TYPE_CHECKING:
    import plotly.graph_objects as go

BAR, BEST = "#0072B2", "#D55E00"
REACH = 20.0  # nats shown on either side of the truth


NARROWING_CAPTION = "Narrowing 1 − width / log n: the median over 200 rows, and in brackets the least."
SPARSITY_CAPTION = (
    "The share of the exponentials that is taken, the mean width of the certified interval in nats, and the time of `logsumexp` "
    "divided by that of `sparsified_logsumexp`; below 1 `logsumexp` is faster. 200 rows of float64."
)


def narrowing_table(result: Result) -> str:
    """By how much each bound narrows log n: a line for each kind of rows, the median over rows and the least of them."""
    bounds = list(dict.fromkeys(each.bound for each in result.narrowings))
    lines = []
    for rows, n in dict.fromkeys((each.rows, each.n) for each in result.narrowings):
        of = {each.bound: each for each in result.narrowings if (each.rows, each.n) == (rows, n)}
        lines.append([rows, str(n), *(f"{100 * of[bound].narrowing:.1f} ({100 * of[bound].worst:.1f})" for bound in bounds)])
    return table(["rows", "n", *(f"{bound}, %" for bound in bounds)], lines)


def verdict(result: Result) -> str:
    """What of the claim about sparse rows was found."""
    found = [each.narrowing for each in result.of("sparse", "adaptive")]
    low, high = (f"{100 * share:.0f}" for share in CLAIMED)
    return (
        f"Claimed for adaptive bounds on sparse rows: {low} to {high} %. Found: {100 * min(found):.0f} to "
        f"{100 * max(found):.0f} % at these lengths, {', '.join(str(size) for size in SIZES)} ({result.verdict})."
    )


def sparsity_table(found: Sequence[Sparsity]) -> str:
    """The share of exponentials, the certified error and the speed for each kind of rows and ε."""
    epsilons = list(dict.fromkeys(each.eps for each in found))
    head = ["rows", "n", *(f"ε = {eps:.0e}".replace("e-0", "e-") for eps in epsilons)]
    lines = []
    for rows, n in dict.fromkeys((each.rows, each.n) for each in found):
        of = {each.eps: each for each in found if (each.rows, each.n) == (rows, n)}
        cells = [
            f"{100 * each.evaluated:.1f} %, {each.width:.0e}, {number(each.speed, digits=2)}×"
            for each in map(of.__getitem__, epsilons)
        ]
        lines.append([rows, str(n), *cells])
    return table(head, lines)


def picture(found: Sequence[Placed]) -> go.Figure:
    """A panel for each kind of rows, a bar from lower to upper for each bound; the line in the middle is the truth."""
    from plotly.subplots import make_subplots

    kinds = list(dict.fromkeys((each.rows, each.n) for each in found))
    bounds = list(dict.fromkeys(each.bound for each in found))
    titles = [f"{rows}<br><span style='font-size:12px'>n = {n}</span>" for rows, n in kinds]
    plot = make_subplots(1, len(kinds), shared_yaxes=True, horizontal_spacing=0.025, subplot_titles=titles)
    for column, kind in enumerate(kinds, 1):
        where: dict[str, Any] = {"row": 1, "col": column}
        for each in (each for each in found if (each.rows, each.n) == kind):
            colour = BEST if each.bound == bounds[-1] else BAR
            upper = min(each.upper, REACH)
            plot.add_scatter(
                x=[signed_log(each.lower), signed_log(upper)],
                y=[each.bound] * 2,
                mode="lines+markers",
                line={"color": colour, "width": 5},
                marker={"symbol": ["line-ns", "arrow-right" if upper < each.upper else "line-ns"], "size": 11},
                marker_line={"width": 2, "color": colour},
                showlegend=False,
                **where,
            )
            plot.add_annotation(
                text=f"{_nats(each.lower)}, {_nats(each.upper)}", x=0, y=each.bound, yanchor="bottom", yshift=5,
                font={"size": 11, "color": "#555"}, bgcolor="white", borderpad=0, showarrow=False, **where,
            )  # fmt: skip
        plot.add_vline(x=0, line={"color": "#444", "width": 1}, layer="below", **where)
    plot.update_xaxes(**axis(REACH, (10.0, 1.0, 0.1)), tickfont={"size": 11}, tickangle=0)
    plot.update_yaxes(range=[len(bounds) - 0.5, -0.8], ticks="", showline=False)
    plot.update_annotations(selector={"yref": "paper"}, font={"size": 14})
    styled(plot, 38 * len(bounds) + 110, 10, 24, 50, 50, font=FONT | {"size": 12.5})
    plot.update_yaxes(automargin=True, row=1, col=1)
    plot.add_annotation(
        text="nats from the exact logsumexp to either end of the interval, logarithmic beyond ±0.01",
        xref="paper", yref="paper", x=0.5, y=0, yshift=-28, yanchor="top", showarrow=False,
    )  # fmt: skip
    return plot


def _nats(end: float) -> str:
    if math.isinf(end):
        return "+∞"
    return "0" if abs(end) < 5e-5 else f"{end:+.2g}".replace("-", "−")


def blocks(found: Study) -> list[Block]:
    """What docs/logsumexp.md says of it."""
    result = Result(found.narrowings)
    drawn = Picture("bounds.png", picture(found.placed), "Intervals of every bound on four kinds of rows")
    return [
        Block("bounds", (drawn,), note=""),
        Block("narrowing", (narrowing_table(result),), f"{NARROWING_CAPTION} {verdict(result)}"),
        Block("sparsity", (sparsity_table(found.sparsities),), SPARSITY_CAPTION),
    ]


ENTRY = Entry(
    "bounds",
    "measures intervals of logsumexp on several kinds of rows",
    blocks,
    lambda told: Study(run().narrowings, place(), sparsify()),
    "bounds.json",
    Study,
)
