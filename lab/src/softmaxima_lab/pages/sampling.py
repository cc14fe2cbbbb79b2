"""The table and the picture of estimators of the gradient of an expectation over draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from softmaxima_lab.pages.documents import Block, Entry, Picture
from softmaxima_lab.pages.figures import ABOVE, GRID, styled
from softmaxima_lab.pages.markdown import table
from softmaxima_lab.studies.gradient_estimators import PLAN, TEMPERATURES, Measured, Study, measure_estimators, measure_temperatures

if TYPE_CHECKING:
    import plotly.graph_objects as go

COLOURS = {"gumbel_softmax": "#0072B2", "straight_through_gumbel": "#E69F00", "rao_blackwell_gumbel": "#009E73", "rebar": "#CC79A7"}

CAPTION = (
    "E f(D) of D one-hot from softmax(x) over 6 classes, whose gradient g is known. Of 20 000 estimates, each of four evaluations "
    "of f: bias |E ĝ − g|/|g|, with the largest deviation of an entry in standard errors, and variance E|ĝ − E ĝ|²/|g|². "
    "What REBAR, which has none, shows for a bias is the error of the mean. A temperature that is not told is 1; that of RELAX has "
    "learned with its control."
)


def markdown_table(rows: Sequence[Measured]) -> str:
    """A line an estimator, those without a bias first, the least variance first."""
    lines = []
    for row in sorted(rows, key=lambda row: (not row.unbiased, row.variance)):
        options, samples = PLAN[row.name]
        asked = ", ".join(f"{name}={value!r}" for name, value in {**options, "samples": samples}.items())
        biased = "no" if row.unbiased else "yes"
        lines.append([f"`{row.name}`", f"`{asked}`", biased, f"{row.bias:.3f}", f"{row.deviation:.1f}", f"{row.variance:.3f}"])
    return table(["estimator", "options", "biased", "bias", "in standard errors", "variance"], lines, left=(0, 1))


def picture(found: Mapping[str, Sequence[Measured]], rows: Sequence[Measured]) -> go.Figure:
    """Bias and variance against the temperature, beside those of REINFORCE with leave-one-out, which has none."""
    from plotly.subplots import make_subplots

    plot = make_subplots(1, 2, horizontal_spacing=0.09, subplot_titles=("bias", "variance"))
    (without,) = (row for row in rows if row.name == "reinforce_leave_one_out")
    for name, measured in found.items():
        for column, values in enumerate(([row.bias for row in measured], [row.variance for row in measured]), 1):
            plot.add_scatter(
                x=TEMPERATURES, y=values, mode="lines+markers", name=name, showlegend=column == 1,
                line={"color": COLOURS[name], "width": 2}, marker={"size": 5}, row=1, col=column,
            )  # fmt: skip
    line = {"color": "#444", "width": 1.5, "dash": "4px,3px"}
    plot.add_scatter(
        x=[TEMPERATURES[0], TEMPERATURES[-1]], y=[without.variance] * 2, mode="lines", name="reinforce_leave_one_out, unbiased",
        line=line, row=1, col=2,
    )  # fmt: skip
    ticks = {"tickvals": [0.1, 0.2, 0.5, 1, 2, 5], "ticktext": ["0.1", "0.2", "0.5", "1", "2", "5"]}
    plot.update_xaxes(type="log", title="temperature τ", **GRID, **ticks)
    plot.update_yaxes(type="log", **GRID, dtick=1)
    return styled(plot, 380, 50, 20, 70, 52, legend=ABOVE)


def blocks(found: Study) -> list[Block]:
    """What docs/sampling.md says of it."""
    says = "Bias and variance of each estimator against its temperature"
    drawn = Picture("sampling.png", picture(found.at_temperatures, found.results), says)
    return [Block("sampling", (markdown_table(found.results), drawn), CAPTION)]


ENTRY = Entry(
    "sampling",
    "measures bias and variance of every estimator of a gradient",
    blocks,
    lambda told: Study(measure_estimators(), measure_temperatures()),
    "sampling.json",
    Study,
)
