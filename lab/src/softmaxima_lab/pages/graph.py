"""What `softmaxima bench-graph` found, in words and a picture."""

from __future__ import annotations

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from softmaxima_lab.bench.graph import INDEX, OURS, PEER, STEPS, Benchmark, Result
from softmaxima_lab.pages.heads import seconds
from softmaxima_lab.pages.markdown import table

CAPTION = (
    "Seconds with Segments that were found before, the median over turns; and quotients of such medians, as in the picture, after "
    "each of ours the range that the quotients of single turns have. "
    "index: ours of an index, which is looked at and put in order in each call. torch_geometric: its softmax, and logsumexp made "
    "of its scatter; it has no sparsemax. copies: our time in copies of the scores."
)


def headings() -> list[str]:
    return ["s", "copies", f"{INDEX} / ours", f"{PEER} / ours", f"{PEER} / {INDEX}"]


def cells(benchmark: Benchmark, result: Result) -> list[str]:
    """A row of a table."""
    copies = f"{result.seconds[OURS] / benchmark.copy:.1f}"
    over_ours = (
        f"{over} ({result.ratios[way].low:.2f}–{result.ratios[way].high:.2f})" if (over := quotient(result, way, OURS)) else ""
        for way in (INDEX, PEER)
    )
    return [str(result.case), seconds(result.seconds[OURS]), copies, *over_ours, quotient(result, PEER, INDEX)]


def quotient(result: Result, way: str, over: str) -> str:
    """Of the medians of seconds; nothing where there is no such way."""
    return f"{result.seconds[way] / result.seconds[over]:.2f}" if way in result.seconds else ""


def made_with(benchmark: Benchmark) -> str:
    """Sizes, date, commit, machine and versions."""
    commit = [] if benchmark.commit is None else [f"commit {benchmark.commit}"]
    facts = [
        f"{benchmark.edges} edges, {benchmark.nodes} nodes of at most {benchmark.largest} edges",
        f"float32, a copy takes {seconds(benchmark.copy)} s",
        benchmark.date,
        *commit,
        str(benchmark.machine.get("device", benchmark.machine["processor"])),
        f"{benchmark.machine['threads']} threads",
    ]
    return ", ".join([*facts, f"torch {benchmark.versions['torch']}, torch_geometric {benchmark.versions['torch-geometric']}"])


def markdown(benchmark: Benchmark) -> str:
    """Everything, for a page."""
    found = table(["", *headings()], [cells(benchmark, result) for result in benchmark.results])
    return f"{found}\n\n*{CAPTION} {made_with(benchmark)}.*"


def picture(benchmark: Benchmark) -> go.Figure:
    """Nanoseconds an edge, of each way."""
    plot = make_subplots(1, 2, subplot_titles=STEPS, shared_yaxes=True, horizontal_spacing=0.04)
    for column, step in enumerate(STEPS, 1):
        of_step = [result for result in benchmark.results if result.case.step == step]
        for way, colour in ((OURS, "#1f77b4"), (INDEX, "#9ecae1"), (PEER, "#7f7f7f")):
            of_way = [result for result in of_step if way in result.seconds]
            plot.add_bar(
                x=[f"{result.case.task}<br>{result.case.order}" for result in of_way],
                y=[1e9 * result.seconds[way] / benchmark.edges for result in of_way],
                name={OURS: "ours, Segments", INDEX: "ours, index", PEER: PEER}[way], marker_color=colour,
                showlegend=column == 1, row=1, col=column,
            )  # fmt: skip
    plot.update_yaxes(title="ns an edge", row=1, col=1)
    plot.update_layout(
        template="simple_white", width=1000, height=420, margin={"l": 60, "r": 20, "t": 40, "b": 60},
        legend={"x": 0.01, "y": 0.99}, barmode="group",
    )  # fmt: skip
    return plot
