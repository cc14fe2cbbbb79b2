"""The picture and the table of estimators of logsumexp."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from softmaxima_lab.pages.documents import Block, Entry, Picture, Told
from softmaxima_lab.pages.figures import ABOVE, GRID, styled
from softmaxima_lab.pages.markdown import table
from softmaxima_lab.pages.signed_log import axis, signed_log
from softmaxima_lab.studies.estimators import (
    MAXIMUM_KNOWN,
    Timing,
    Work,
    indexed_subjects,
    measure_budgets,
    measure_times,
    standard_subjects,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

COLOURS = {"uniform": "#0072B2", "stratified": "#E69F00", "topk_tail": "#009E73", "importance": "#CC79A7", "bucket": "#D55E00"}
STYLES = {"deterministic": "solid", "finite-sample": "solid", "asymptotic": "4px,3px", "none": "1px,3px"}
STYLE_NAMES = {"solid": "guaranteed", "4px,3px": "asymptotic", "1px,3px": "none: lower end only"}
REACH = 15.0  # nats shown on either side of the truth

CAPTION = (
    "200 000 scores, budgets from 300 to 100 000, 10 seeds each, confidence 95 %. Ends are medians over the seeds, in the style of "
    "what most of them claim. Table: of the intervals that have an upper end, at all budgets, those that hold the truth; the open "
    "ones say nothing of it. The budgets of a seed share their first draws: these are 10 independent runs, not 60."
)


TIMES_CAPTION = (
    "N(0, 1) scores in float32. Medians of 7 runs in turns, on one thread, summing (`logsumexp`, of a file that is mapped into "
    "memory, of inner products with the product) and estimating. A file on disk was dropped from the page cache before each."
)


def times_table(timings: Sequence[Timing]) -> str:
    """What a sum and an estimate take, a line a source and target."""
    lines = []
    for each in timings:
        cells = [each.source, f"{each.scores:.0e}".replace("e+0", "e"), f"{each.target:g}"]
        cells += [f"{1e3 * seconds:.3g} ms" for seconds in (each.summed, each.estimated)]
        lines.append([*cells, f"{each.evaluations:.2g}".replace("e+0", "e"), each.certificate, f"{each.error:.0e}"])
    head = ["source", "scores", "target", "sum", "estimate", "scores read", "certificate", "error"]
    return table(head, lines, left=(0, head.index("certificate")))


def certificate(work: Work) -> str:
    """What most of the runs claim."""
    return max(work.certificates, key=work.certificates.__getitem__)


def coverage_table(works: Sequence[Work]) -> str:
    """How many intervals hold the truth, of those with an upper end, over all runs: a line a source, a column a method."""
    methods = [method for method in COLOURS if any(work.method == method for work in works)]
    lines = []
    for source in dict.fromkeys(work.source for work in works):
        cells = []
        for method in methods:
            of = [work for work in works if (work.source, work.method) == (source, method)]
            runs, bounded = sum(sum(work.certificates.values()) for work in of), sum(work.bounded for work in of)
            held = f"{sum(work.held for work in of)} of {bounded}" if bounded else "none"
            cells.append(f"{held}, {runs - bounded} open" if bounded < runs else held if runs else "")
        lines.append([source, *cells])
    return table(["source", *methods], lines)


def picture(works: Sequence[Work]) -> go.Figure:
    """Both ends of each method's interval against the scores read: a column for each source, the maximum known in the lower row."""
    from plotly.subplots import make_subplots

    def place(end: float) -> float | None:
        return signed_log(end) if math.isfinite(end) else None

    names = [name for name in dict.fromkeys(work.source for work in works) if not name.endswith(MAXIMUM_KNOWN)]
    plot = make_subplots(
        2, len(names), shared_xaxes=True, shared_yaxes=True, horizontal_spacing=0.018, vertical_spacing=0.06, column_titles=names
    )
    for row, suffix in enumerate(("", MAXIMUM_KNOWN), 1):
        for column, name in enumerate(names, 1):
            for method, colour in COLOURS.items():
                of = [work for work in works if (work.source, work.method) == (name + suffix, method)]
                for style, part in _runs_of_a_style(of):
                    for end in ("lower", "upper"):
                        plot.add_scatter(
                            x=[work.evaluations for work in part],
                            y=[place(getattr(work, end)) for work in part],
                            mode="lines",
                            line={"color": colour, "width": 2, "dash": style},
                            showlegend=False,
                            row=row,
                            col=column,
                        )
                plot.add_scatter(
                    x=[work.evaluations for work in of for _ in range(2)],
                    y=[place(end) for work in of for end in (work.lower, work.upper)],
                    mode="markers",
                    marker={"color": colour, "size": 5},
                    showlegend=False,
                    row=row,
                    col=column,
                )
            plot.add_hline(y=0, line={"color": "#444", "width": 1}, row=row, col=column)  # type: ignore[arg-type]
    for method, colour in COLOURS.items():
        if any(work.method == method for work in works):
            line = {"color": colour, "width": 3}
            plot.add_scatter(x=[None], y=[None], mode="lines", line=line, name=method, row=1, col=1)
    for style, name in STYLE_NAMES.items():
        line = {"color": "#444", "width": 2, "dash": style}
        plot.add_scatter(x=[None], y=[None], mode="lines", line=line, name=name, row=1, col=1)
    ticks = {"tickvals": [1000, 10_000, 100_000], "ticktext": ["10³", "10⁴", "10⁵"]}
    plot.update_xaxes(type="log", **ticks, **GRID)
    plot.update_yaxes(**axis(REACH))
    plot.update_annotations(font={"size": 13})
    plot.update_yaxes(title="maximum unknown", row=1, col=1)
    plot.update_yaxes(title="maximum known", row=2, col=1)
    styled(plot, 600, 10, 20, 70, 52, legend=ABOVE)
    plot.add_annotation(
        text="scores read; up: nats from the exact logsumexp to either end of the interval, logarithmic beyond ±0.01",
        xref="paper", yref="paper", x=0.5, y=0, yshift=-28, yanchor="top", showarrow=False,
    )  # fmt: skip
    return plot


def _runs_of_a_style(works: Sequence[Work]) -> Iterator[tuple[str, list[Work]]]:
    """Pieces of a line between two works, in the style of the weaker claim."""
    claims = list(STYLES)
    for pair in pairwise(works):
        weaker = max((certificate(work) for work in pair), key=claims.index)
        yield STYLES[weaker], list(pair)


def blocks(works: Sequence[Work]) -> list[Block]:
    """What docs/logsumexp.md says of it."""
    says = "Both ends of each estimator's interval against the scores read, for five sources"
    return [Block("estimators", (Picture("estimators.png", picture(works), says), coverage_table(works)), CAPTION)]


def timed(told: Told) -> list[Timing]:
    """Sums and estimates of the same scores, some of them in files."""
    with tempfile.TemporaryDirectory() as folder:
        return measure_times(folder)


ENTRIES = (
    Entry(
        "estimators",
        "measures intervals of logsumexp against the scores read",
        blocks,
        lambda told: measure_budgets({**standard_subjects(), **indexed_subjects()}),
        "estimators.json",
        list[Work],
    ),
    Entry(
        "times",
        "measures what estimates take beside sums, in memory and on disk (400 MB in the folder for temporaries)",
        lambda found: [Block("times", (times_table(found),), TIMES_CAPTION)],
        timed,
        "times.json",
        list[Timing],
        threads=1,
    ),
)
