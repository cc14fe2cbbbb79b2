"""What privacy, secret shares and sending less cost, in tables, pictures and sentences."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from softmaxima_lab.pages.documents import Block, Entry, Picture
from softmaxima_lab.pages.figures import GRID, styled
from softmaxima_lab.pages.markdown import table
from softmaxima_lab.studies import federated_top, private_sums, shared_sums

COLOURS = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
PRIVATE_CAPTION = (
    "Above: how far a released log Σ exp(x) is off, in nats, by Laplace's noise: means of "
    f"{private_sums.RELEASES} releases of uniform entries, another of which may stand in the place of each. Below: points of "
    "accuracy that are lost where the class that most teachers say is chosen with ε for each row; logistic regressions on parts "
    f"of the digits, {private_sums.TESTED} rows tested, means of {private_sums.SEEDS} seeds with intervals that hold at once at "
    "95 % (paired by seed; Bonferroni)."
)
SHARED_CAPTION = (
    f"logsumexp of normal scores in [{shared_sums.BOUNDS[0]:g}, {shared_sums.BOUNDS[1]:g}]. Each party is a process of one "
    f"machine, all on its cores; seconds are the median of {shared_sums.TURNS} turns, from the first share to the result. "
    "Bytes are those of all parties together. Rounds are the longest chain of messages of which each waits for the one before, "
    f"counted in a turn more, in which each was {1000 * shared_sums.LATENCY:g} ms late, as in a network."
)
FEDERATED_CAPTION = (
    f"{federated_top.CLIENTS} clients of {federated_top.EACH} scores, no score below {federated_top.FLOOR:g}, means of "
    f"{federated_top.SEEDS} seeds, in nats. Numbers are those in the JSON that all clients send: nine of each for its "
    "sum, with n, floor and τ. off: of the middle of the interval; what was "
    "sent alone: of the logsumexp of the scores that were sent, with nothing for the others."
)
NOISE_CAPTION = (
    f"{federated_top.CLIENTS} clients of {federated_top.EACH} scores in [0, 1], each a record; "
    f"means of {federated_top.RELEASES} releases."
)


def private_tables(added: Sequence[private_sums.Sum], voted: Sequence[private_sums.Votes]) -> str:
    """Sums by n, and falls by teachers, a column an ε."""
    epsilons = [f"ε = {epsilon:g}" for epsilon in private_sums.EPSILONS]
    by = {(each.bound, each.n, each.epsilon): each for each in added}
    rows = []
    for bound, n in dict.fromkeys((each.bound, each.n) for each in added):
        own = [by[bound, n, epsilon] for epsilon in private_sums.EPSILONS]
        rows.append([f"{n} in [0, {bound:g}]", f"{own[0].sensitivity:.2g}", *(f"{each.off:.2g}" for each in own)])
    first = table(["entries", "sensitivity", *epsilons], rows)
    falls = private_sums.falls(voted)
    lines = []
    for each in voted:
        cells = [falls[each.teachers, epsilon] for epsilon in each.private]
        shown = [f"{100 * one.mean:.1f}<br>({100 * one.low:.1f} to {100 * one.high:.1f})" for one in cells]
        lines.append([f"{each.teachers} teachers", f"{100 * fmean(each.plain):.1f} %", *shown])
    return f"{first}\n\n{table(['', 'accuracy without noise', *epsilons], lines)}"


def private_picture(added: Sequence[private_sums.Sum], voted: Sequence[private_sums.Votes]) -> go.Figure:
    """Both against ε."""
    plot = _panels("log Σ exp of n entries in [0, 5], nats off", "accuracy of n teachers, %")
    widest = max(each.bound for each in added)
    for colour, n in zip(COLOURS, private_sums.ENTRIES, strict=True):
        own = [each for each in added if each.n == n and each.bound == widest]
        _line(plot, 1, [each.epsilon for each in own], [each.off for each in own], f"n = {n}", colour)
    for colour, each in zip(COLOURS, voted, strict=True):
        means = [100 * fmean(accuracies) for accuracies in each.private.values()]
        _line(plot, 2, list(private_sums.EPSILONS), means, f"n = {each.teachers}", colour)
        plot.add_scatter(
            x=[private_sums.EPSILONS[0], private_sums.EPSILONS[-1]], y=[100 * fmean(each.plain)] * 2, mode="lines",
            line={"color": colour, "dash": "dot", "width": 1}, showlegend=False, row=1, col=2,
        )  # fmt: skip
    plot.add_scatter(
        x=[None], y=[None], mode="lines", line={"color": "#666666", "dash": "dot", "width": 1}, name="without noise",
        legend="legend2", row=1, col=2,
    )  # fmt: skip
    plot.update_xaxes(type="log", title="ε", tickvals=private_sums.EPSILONS)
    plot.update_yaxes(type="log", dtick=1, row=1, col=1)
    return plot


def shared_table(found: Sequence[shared_sums.Evaluation]) -> str:
    """A line a case."""
    head = ["parties", "scores", "bits", "seconds", "rounds", "MB", "off, nats", "at most, as stated"]
    rows = [
        [
            str(each.parties), str(each.n), str(each.bits), f"{each.seconds:.2f}", str(each.rounds), f"{each.bytes / 1e6:.2f}",
            f"{each.off:.1e}", f"{each.stated:.1e}",
        ]
        for each in found
    ]  # fmt: skip
    return table(head, rows, left=())


def federated_tables(found: Sequence[federated_top.Known], noises: Sequence[federated_top.Noise]) -> str:
    """A line a source and k; and the noise."""
    rows = []
    for each in found:
        sent = f"k = {each.k}" if each.k else "the sum"
        nats = (f"{number:.2g}" for number in (each.width, each.off, each.off_of_sent))
        rows.append([each.source, sent, str(each.numbers), *nats, f"{100 * each.held:.0f} %"])
    first = table(["scores", "sent", "numbers", "interval", "off", "what was sent alone", "held"], rows, left=(0, 1))
    lines = [
        [f"of each {each.by}" if each.by == "client" else "of the server", f"{each.epsilon:g}", f"{each.off:.1e}"]
        for each in noises
    ]
    return f"{first}\n\n{table(['noise', 'ε', 'off, nats'], lines)}\n\n*{NOISE_CAPTION}*"


def shared_picture(found: Sequence[shared_sums.Evaluation]) -> go.Figure:
    """Seconds, megabytes and rounds against n, and errors against bits."""
    plot = _panels("three parties, 24 bits", "three parties, 12 scores: nats off")
    own = [each for each in found if each.parties == 3 and each.bits == 24]
    for colour, name, values in zip(
        COLOURS,
        ("seconds", "MB", "rounds"),
        ([e.seconds for e in own], [e.bytes / 1e6 for e in own], [e.rounds for e in own]),
        strict=False,
    ):
        _line(plot, 1, [each.n for each in own], values, name, colour)
    by_bits = sorted((each for each in found if each.parties == 3 and each.n == 12), key=lambda each: each.bits)
    _line(plot, 2, [each.bits for each in by_bits], [each.off for each in by_bits], "seen", COLOURS[0])
    _line(plot, 2, [each.bits for each in by_bits], [each.stated for each in by_bits], "stated", COLOURS[1])
    plot.update_xaxes(type="log", title="scores", tickvals=[each.n for each in own], row=1, col=1)
    plot.update_xaxes(title="fractional bits", tickvals=[each.bits for each in by_bits], row=1, col=2)
    plot.update_yaxes(type="log", dtick=1).update_yaxes(exponentformat="power", row=1, col=2)
    return plot


def federated_picture(found: Sequence[federated_top.Known]) -> go.Figure:
    """Intervals, and what was sent alone, against k."""
    plot = _panels("width of the interval, nats", "off, of what was sent alone, nats")
    for colour, source in zip(COLOURS, dict.fromkeys(each.source for each in found), strict=True):
        own = [each for each in found if each.source == source and 0 < each.k < federated_top.EACH]
        _line(plot, 1, [each.k for each in own], [each.width for each in own], source, colour)
        _line(plot, 2, [each.k for each in own], [each.off_of_sent for each in own], source, colour)
    plot.for_each_trace(lambda trace: trace.update(showlegend=trace.legend == "legend2"))
    plot.update_traces(line={"width": 6}, selector={"name": next(iter(federated_top.SOURCES))})  # another lies on it
    plot.update_xaxes(type="log", title="k of 1000", tickvals=federated_top.LARGEST)
    plot.update_yaxes(type="log", dtick=1)
    return plot


def _panels(*titles: str) -> go.Figure:
    plot = make_subplots(1, len(titles), subplot_titles=titles, horizontal_spacing=0.26)
    plot.update_xaxes(**GRID)
    return styled(plot, 400, 60, 150, 40, 50, width=1100, legend={"x": 0.38, "y": 0.95}, legend2={"x": 1.01, "y": 0.95})


def _line(plot: go.Figure, column: int, x: Sequence[float], y: Sequence[float], name: str, colour: str) -> None:
    plot.add_scatter(
        x=x,
        y=y,
        mode="lines+markers",
        name=name,
        line={"color": colour},
        legend="legend" if column == 1 else "legend2",
        row=1,
        col=column,
    )


# The documents ------------------------------------------------------------------------------------------------------------


def shown_of_noise(found: private_sums.Study) -> list[Block]:
    """Sums and votes."""
    says = "Error of a released sum, and accuracy of classes that teachers vote for, against ε"
    drawn = Picture("private.png", private_picture(found.sums, found.votes), says)
    said = f"{private_sums.verdict(found.sums, found.votes)}."
    return [Block("private", (said, drawn, private_tables(found.sums, found.votes)), PRIVATE_CAPTION)]


def shown_of_shares(found: Sequence[shared_sums.Evaluation]) -> list[Block]:
    """Seconds, bytes and rounds."""
    drawn = Picture(
        "shared.png", shared_picture(found), "Cost of secret shares against the number of scores, and errors against bits"
    )
    return [Block("secure", (f"{shared_sums.verdict(found)}.", drawn, shared_table(found)), SHARED_CAPTION)]


def shown_of_clients(found: federated_top.Study) -> list[Block]:
    """Intervals of merged sums."""
    says = "Width of the interval, and error of what was sent alone, against k"
    drawn = Picture("federated.png", federated_picture(found.known), says)
    said = f"{federated_top.verdict(found.known)}."
    return [Block("federated", (said, drawn, federated_tables(found.known, found.noises)), FEDERATED_CAPTION)]


ENTRIES = (
    Entry(
        "private",
        "measures what noise costs released sums and votes, in a minute",
        shown_of_noise,
        lambda told: private_sums.Study(private_sums.sums(told), private_sums.votes(told)),
        "private.json",
        private_sums.Study,
        threads=1,
    ),
    Entry(
        "shared",
        "measures what secret shares cost, in 2 minutes",
        shown_of_shares,
        shared_sums.run,
        "shared.json",
        list[shared_sums.Evaluation],
        steps=lambda: len(shared_sums.CASES),
    ),
    Entry(
        "federated",
        "measures what clients' largest scores tell, in a minute",
        shown_of_clients,
        lambda told: federated_top.Study(federated_top.run(told), federated_top.noises()),
        "federated.json",
        federated_top.Study,
        steps=lambda: len(federated_top.SOURCES),
        threads=1,
    ),
)
