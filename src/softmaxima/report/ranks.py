"""What `softmaxima bench-ranks` found, in words and a picture, and what follows for many ranks."""

from __future__ import annotations

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from softmaxima.bench.network import FABRICS, Network, Scheme, Simulated, Straggling, fitted, predicted, simulate
from softmaxima.bench.ranks import GATHERED, OURS, TORCH, Benchmark, Result
from softmaxima.report.heads import seconds
from softmaxima.report.markdown import table

CAPTION = (
    "Seconds of a forward and a backward pass of float32 scores, as the first rank sees them, each rank with one thread, and the "
    "time of each other way / ours: the median over turns and their range. gathered: every rank gathers all scores and takes the "
    "function of whole rows; loss_parallel: torch's, of a DTensor. strong: so many classes in all; weak: on each rank. "
    "messages: ours of both passes, with the bytes that a rank gives to them. Results agree with those of all scores within 2e-5."
)
STEP_ROWS, STEP_CLASSES = 4096, 131_072  # of a simulated step
MANY = (8, 64, 1000)
GATHERING = "gathering scores"


def schemes(ranks: int) -> list[Scheme]:
    """What a loss of labels sends: float64 here, float32 elsewhere."""
    return [
        Scheme("cross_entropy", "all-gather", (4 * 8,)),
        Scheme("Transformer Engine", "all-gather", (3 * 4,)),
        Scheme("Megatron", "all-reduce", (4, 4, 4)),
        Scheme("Megatron, fused", "all-reduce", (4, 8)),
        Scheme("sparsemax_loss", "all-gather", ((1 + 1 + min(64, STEP_CLASSES // ranks)) * 8,)),
        Scheme(GATHERING, "all-gather", (4 * STEP_CLASSES / ranks,)),
    ]


def headings() -> list[str]:
    return ["s", f"{GATHERED} / ours", f"{TORCH} / ours", "messages", f"of {TORCH}"]


def cells(result: Result) -> list[str]:
    """A row of a table."""
    case = result.case
    title = f"{case.task}, {case.scaling}, {case.ranks} rank{'s' * (case.ranks > 1)}, {case.classes} classes"
    ratios = [result.ratios.get(way) for way in (GATHERED, TORCH)]
    times = ("" if ratio is None else f"{ratio.median:.2f} ({ratio.low:.2f}–{ratio.high:.2f})" for ratio in ratios)
    return [title, seconds(result.seconds[OURS]), *times, _sent(result, OURS), _sent(result, TORCH)]


def _sent(result: Result, way: str) -> str:
    kinds = ", ".join(f"{count} {kind}" for kind, count in result.messages.get(way, {}).items())
    return f"{kinds}: {result.sent[way]} B" if kinds else ""


def here(benchmark: Benchmark) -> Network | None:
    """What joins the processes that were measured; None without any."""
    points = [(message.ranks, message.bytes, message.seconds) for message in benchmark.messages]
    return fitted("these processes", points) if points else None


def model(benchmark: Benchmark) -> str:
    """A sentence on α and β, empty where there were no messages."""
    network = here(benchmark)
    if network is None:
        return ""
    off = [message.seconds / predicted(network, message.ranks, message.bytes) for message in benchmark.messages]
    largest = max(message.bytes for message in benchmark.messages)
    agreed = ", ".join(f"{1e3 * value:.2f} ms of {ranks} ranks" for ranks, value in benchmark.handshakes.items())
    return (
        f"Of {len(off)} all-gathers of 1 KiB to {largest / 2**20:.3g} MiB a message between two of "
        f"these processes takes α + βm, α = {1e6 * network.alpha:.0f} µs and β = {1e9 * network.beta:.2g} ns a byte: measured / "
        f"predicted is between {min(off):.2f} and {max(off):.2f}. Agreeing on what all have takes {agreed}."
    )


def simulated(
    work: float, networks: tuple[Network, ...] = FABRICS, many: tuple[int, ...] = MANY, steps: int = 300
) -> list[Simulated]:
    """Steps of a loss of 4096 rows and 131 072 classes, of which one rank alone has so many seconds of work."""
    return [
        simulate(
            scheme, network, ranks, STEP_ROWS, work if scheme.name == GATHERING else work / ranks, Straggling(), steps=steps
        )  # each rank takes the loss of all classes that it has gathered
        for network in networks
        for ranks in many
        for scheme in schemes(ranks)
    ]


def work_of(benchmark: Benchmark) -> float:
    """Seconds of one process for such a step, by what a row of classes took that was measured."""
    alone = [result for result in benchmark.results if result.case.task == "cross_entropy" and result.case.ranks == 1]
    each = min(result.seconds[OURS] / (benchmark.rows * result.case.classes) for result in alone)
    return each * STEP_ROWS * STEP_CLASSES


def simulation(found: list[Simulated]) -> str:
    """A table."""
    rows = [
        [
            f"{each.network}, {each.ranks} ranks: {each.scheme}",
            str(each.rounds),
            f"{each.received / 2**20:.3g}",
            f"{1e3 * each.messages:.3g}",
            f"{1e3 * each.median:.3g}",
            f"{1e3 * each.late:.3g}",
            f"{100 * each.waiting:.0f} %",
        ]
        for each in found
    ]
    return table(["", "rounds", "MiB received", "messages, ms", "step, ms", "one in 100, ms", "waiting"], rows)


SIMULATION = (
    "A step of 4096 rows and 131 072 classes, by the model: each rank works its share of what one process takes here, times a "
    "lognormal factor (σ = 0.05) and, once in 1000, three times as long, and a message of m bytes takes α + βm: 20 µs and "
    "12.5 GB/s, or 4 µs and 200 GB/s. Collectives go by doubling or by a ring, whichever is faster. rounds: messages one after "
    "the other. "
    "Not in it: how ranks agree on what they have, which takes longer with their number, for all ask one store. "
    "waiting: share of a step in which a rank waits for the work of others. 300 steps, with the same draws for all."
)


def made_with(benchmark: Benchmark) -> str:
    """Sizes, date, commit, machine and versions."""
    commit = [] if benchmark.commit is None else [f"commit {benchmark.commit}"]
    facts = [f"{benchmark.rows} rows", benchmark.date, *commit, str(benchmark.machine["processor"])]
    return ", ".join([*facts, f"{benchmark.machine['cores']} cores", f"torch {benchmark.versions['torch']}"])


def markdown(benchmark: Benchmark) -> str:
    """Everything, for a page."""
    found = [table(["", *headings()], [cells(result) for result in benchmark.results]), f"*{CAPTION} {made_with(benchmark)}.*"]
    return "\n\n".join([*found, model(benchmark), simulation(simulated(work_of(benchmark))), f"*{SIMULATION}*"])


def picture(benchmark: Benchmark) -> go.Figure:
    """A step against the number of ranks: measured here, and simulated on each fabric."""
    titles = ["measured here, 131 072 classes in all", *(f"simulated: {network.name}" for network in FABRICS)]
    plot = make_subplots(1, 3, subplot_titles=titles, horizontal_spacing=0.06)
    colours = ["#1f77b4", "#2ca02c", "#ff7f0e", "#bcbd22", "#d62728", "#7f7f7f"]
    for i, task in enumerate(dict.fromkeys(result.case.task for result in benchmark.results)):
        for way, dash in ((OURS, "solid"), (GATHERED, "dot"), (TORCH, "dash")):
            of = [r for r in benchmark.results if r.case.task == task and r.case.scaling == "strong" and way in r.seconds]
            if of:
                line = {"color": ["#1f77b4", "#d62728", "#9467bd"][i], "dash": dash}
                x, y = [r.case.ranks for r in of], [1e3 * r.seconds[way] for r in of]
                plot.add_scatter(x=x, y=y, name=f"{task}, {way}", line=line, mode="lines+markers", row=1, col=1, legend="legend")
    many, work = tuple(2**k for k in range(1, 11)), work_of(benchmark)
    for column, network in enumerate(FABRICS, 2):
        found = simulated(work, (network,), many, steps=40)
        for scheme, colour in zip(dict.fromkeys(each.scheme for each in found), colours, strict=True):
            of_scheme = [each for each in found if each.scheme == scheme]
            plot.add_scatter(
                x=[each.ranks for each in of_scheme], y=[1e3 * each.median for each in of_scheme], name=scheme,
                line={"color": colour}, showlegend=column == 2, row=1, col=column, legend="legend2",
            )  # fmt: skip
    plot.update_xaxes(type="log", title="ranks", dtick=0.30103, tickformat="d")
    plot.update_xaxes(tickvals=[2, 8, 32, 128, 1024], dtick=None, row=1, col=2)
    plot.update_xaxes(tickvals=[2, 8, 32, 128, 1024], dtick=None, row=1, col=3)
    plot.update_yaxes(type="log", dtick=1)
    plot.update_yaxes(title="ms a step", row=1, col=1)
    below = {"orientation": "h", "y": -0.25, "font": {"size": 10}}
    plot.update_layout(
        template="simple_white", width=1100, height=470, margin={"l": 60, "r": 20, "t": 40, "b": 130},
        legend=below | {"x": 0.0, "entrywidth": 190}, legend2=below | {"x": 0.45, "entrywidth": 150},
    )  # fmt: skip
    return plot
