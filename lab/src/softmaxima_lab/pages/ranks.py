"""What follows for many ranks from what `softmaxima bench ranks` found, in words and a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from softmaxima_lab.bench.case import OURS
from softmaxima_lab.bench.ranks import GATHERED, HANDSHAKE, MESSAGE, TORCH
from softmaxima_lab.bench.record import Benchmark
from softmaxima_lab.pages.bench import RANKS, Shared, shared_of
from softmaxima_lab.pages.bench_tables import markdown as in_words
from softmaxima_lab.pages.bench_tables import seconds
from softmaxima_lab.pages.figures import styled
from softmaxima_lab.pages.markdown import table
from softmaxima_lab.studies.network import FABRICS, Network, Scheme, Step, Straggling, by_ring, first_faster, fitted, messages, step

STEP_ROWS, STEP_CLASSES = 4096, 131_072  # of a step by the model
MANY = (8, 64, 1000)
CROSS_ENTROPY, GATHERING = "cross_entropy", "gathering scores"
PEERS = {
    "Transformer Engine": "Transformer Engine's one all-gather",
    "Megatron": "Megatron's three all-reduces",
    "Megatron, fused": "its fused two",
}
MOST = 1024


def schemes(ranks: int) -> list[Scheme]:
    """What a loss of labels sends: float64 here, float32 elsewhere."""
    return [
        Scheme(CROSS_ENTROPY, "all-gather", (4 * 8,)),
        Scheme("Transformer Engine", "all-gather", (3 * 4,)),
        Scheme("Megatron", "all-reduce", (4, 4, 4)),
        Scheme("Megatron, fused", "all-reduce", (4, 8)),
        Scheme("sparsemax_loss", "all-gather", ((1 + 1 + min(64, STEP_CLASSES // ranks)) * 8,)),
        Scheme(GATHERING, "all-gather", (4 * STEP_CLASSES / ranks,)),
    ]


def slower(benchmark: Benchmark) -> str:
    """Sentences on what is slower than whole rows on one rank, and on what takes longer the more ranks there are; perhaps empty."""
    told, found = [], shared_of(benchmark)
    alone = [
        f"{each.task} of {each.classes} classes {1 / ratio.median:.2g} times"
        for each in found
        if each.ranks == 1 and (ratio := each.result.peers[GATHERED].ratio) is not None and ratio.high < 1
    ]
    if alone:
        told.append(f"On one rank the function of whole rows is the faster in every turn: ours took {', '.join(alone)} as long.")
    for each in found:
        fewer = [one for one in found if one.ranks < each.ranks and replace(one, ranks=each.ranks) == each]
        last = max(fewer, key=lambda one: one.ranks, default=each)
        before, after = last.result.seconds, each.result.seconds
        if each.scaling == "strong" and before is not None and after is not None and before < after:
            times = f"{seconds(after)} s beside {seconds(before)} s"
            told.append(f"{each.ranks} ranks took longer than {last.ranks} for {each.task} of {each.classes} classes, {times}.")
    if crowded := [f"{ranks}" for ranks in sorted({each.ranks for each in found}) if ranks > benchmark.machine["cores"]]:
        told.append(f"{' and '.join(crowded)} ranks are more than the {benchmark.machine['cores']} cores here.")
    return " ".join(told)


def all_gathers(benchmark: Benchmark) -> dict[int, dict[int, float]]:
    """Seconds by the number of ranks and the bytes from each."""
    found: dict[int, dict[int, float]] = {}
    for result in benchmark.of("ranks", MESSAGE):
        ranks, size = map(int, result.case.size.split("x"))
        found.setdefault(ranks, {})[size] = result.seconds or 0.0
    return found


def here(benchmark: Benchmark) -> dict[int, Network]:
    """What joins the processes that were measured, by their number."""
    return {
        ranks: fitted(f"{ranks} ranks", [(ranks, *point) for point in points.items()])
        for ranks, points in all_gathers(benchmark).items()
    }


def model(benchmark: Benchmark) -> str:
    """Sentences on α and β, empty where there were no messages."""
    networks = here(benchmark)
    if not networks:
        return ""
    sizes = sorted({size for points in all_gathers(benchmark).values() for size in points})
    agreed = ", ".join(f"{1e3 * (r.seconds or 0.0):.2f} ms of {r.case.size} ranks" for r in benchmark.of("ranks", HANDSHAKE))
    fits = [
        f"of {ranks} ranks α = {1e6 * network.alpha:.0f} µs and β = {1e9 * network.beta:.2g} ns a byte "
        f"({_off(benchmark, ranks, network)})"
        for ranks, network in networks.items()
    ]
    return (
        f"All-gathers of {_size(sizes[0])} to {_size(sizes[-1])} from each rank, as R − 1 messages of α + βm each round a ring, "
        f"fitted for each number of ranks by the least squares of logarithms: {'; '.join(fits)}. "
        f"Agreeing on what all have takes {agreed}."
    )


def _off(benchmark: Benchmark, ranks: int, network: Network) -> str:
    """How far measured sizes are from the model, the farthest by name."""
    off = {size: value / by_ring(ranks, size, network).seconds for size, value in all_gathers(benchmark)[ranks].items()}
    least, most = min(off, key=off.__getitem__), max(off, key=off.__getitem__)
    return f"measured / predicted from {off[least]:.2f}, of {_size(least)}, to {off[most]:.2f}, of {_size(most)}"


def _size(count: int) -> str:
    return f"{count / 2**20:.3g} MiB" if count >= 2**20 else f"{count / 2**10:.3g} KiB"


def steps_of(work: float, networks: Sequence[Network] = FABRICS, many: Sequence[int] = MANY) -> list[Step]:
    """Steps of a loss of 4096 rows and 131 072 classes, of which one rank alone has so many seconds of work."""
    return [
        step(scheme, network, ranks, STEP_ROWS, work if scheme.name == GATHERING else work / ranks, Straggling())
        for network in networks
        for ranks in many
        for scheme in schemes(ranks)
    ]


def work_of(benchmark: Benchmark) -> float:
    """Seconds of one process for such a step, by what a row of classes took that was measured."""
    alone = [each for each in shared_of(benchmark) if each.task == CROSS_ENTROPY and each.ranks == 1]
    each = min((one.result.seconds or math.inf) / (one.rows * one.classes) for one in alone)
    return each * STEP_ROWS * STEP_CLASSES


def by_the_model(found: Sequence[Step]) -> str:
    """A table."""
    rows = [
        [
            f"{each.network}, {each.ranks} ranks: {each.scheme}",
            str(each.messages.rounds),
            f"{each.messages.received / 2**20:.3g}",
            f"{1e3 * each.messages.seconds:.3g}",
            f"{1e3 * each.median:.3g}",
            f"{1e3 * each.late:.3g}",
            f"{100 * each.waiting:.0f} %",
        ]
        for each in found
    ]
    return table(["", "rounds", "MiB received", "messages, ms", "step, ms", "one in 100, ms", "waiting"], rows)


def crossings(networks: Sequence[Network] = FABRICS) -> str:
    """A table: up to how many ranks the messages of our cross-entropy are the faster ones, by the model."""
    named = {scheme.name: scheme for scheme in schemes(MANY[0])}
    of = lambda name, network: first_faster(named[CROSS_ENTROPY], named[name], network, STEP_ROWS, MOST)
    rows = [[spoken, *(_crossing(*of(name, network)) for network in networks)] for name, spoken in PEERS.items()]
    heading = f"Messages of our `cross_entropy`, of 2 to {MOST} ranks by the model below, beside"
    return table([heading, *(network.name for network in networks)], rows, left=range(len(networks) + 1))


def _crossing(upto: int, after: int) -> str:
    if upto == MOST:
        return "no slower of any number"
    if after == 2:
        return "slower of every number"
    faster = [f"no slower up to {upto}"] if upto > 1 else []
    return ", ".join([*faster, f"slower from {after} on" if after <= MOST else f"not of each number after {upto}"])


STRAGGLING, WIRES = Straggling(), "; ".join(f"{1e6 * n.alpha:.3g} µs and {1e-9 / n.beta:.4g} GB/s" for n in FABRICS)
MODEL = (
    "A step of 4096 rows and 131 072 classes, by the model: each rank works its share of what one process takes here for "
    f"cross_entropy, and all of it where it gathers all scores, times a lognormal factor (σ = {STRAGGLING.spread}) and, once in "
    f"{1 / STRAGGLING.odds:.0f}, {STRAGGLING.factor:g} times as long. A message of m bytes takes α + βm, with numbers that are "
    f"assumed, not measured: {WIRES}. All-gathers go by a ring or by Bruck's doubling, whichever is faster, and all-reduces by "
    "recursive doubling, of a number of ranks that is no power of 2 in ⌊log₂ R⌋ + 2 rounds "
    "([Thakur, Rabenseifner & Gropp 2005](https://doi.org/10.1177/1094342005051521)). "
    "rounds: messages one after the other; received: by the rank that receives the most; step: the slowest rank's work and the "
    "messages, the median, and the least of one in 100, by the law of the largest of R factors; waiting: share of all steps' time "
    "in which a rank waits for the work of others. Not in it: how ranks agree on what they have, which takes longer with their "
    "number, for all ask one store."
)


def markdown(benchmark: Benchmark) -> str:
    """Everything, for a page."""
    said = [in_words(benchmark, page=RANKS), slower(benchmark), model(benchmark), crossings()]
    return "\n\n".join([*filter(None, said), by_the_model(steps_of(work_of(benchmark))), f"*{MODEL}*"])


@dataclass(frozen=True)
class _Line:
    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str
    dash: str = "solid"


COLOURS = {"cross_entropy": "#1f77b4", "sparsemax_loss": "#d62728", "logsumexp": "#9467bd"}
PEERS_COLOURS = {"Transformer Engine": "#2ca02c", "Megatron": "#e07b00", "Megatron, fused": "#8c564b", GATHERING: "#555555"}
GAP = 0.047  # between the names of lines, as a share of a panel's height


def picture(benchmark: Benchmark) -> go.Figure:
    """A step measured here against the number of ranks, and its messages by the model on each fabric; each line has its name."""
    many, work = tuple(2**k for k in range(1, 11)), work_of(benchmark)
    every = [_measured(benchmark), *([*_messages(network, many), _slowest(work, many)] for network in FABRICS)]
    titles = ["a step, measured here: 131 072 classes", *(f"messages of a step: {network.name}" for network in FABRICS)]
    plot = make_subplots(1, 3, subplot_titles=titles)
    for column, (lines, right) in enumerate(zip(every, (0.17, 0.52, 0.87), strict=True), 1):
        plot.layout.annotations[column - 1].update(x=right - 0.085, font={"size": 14})
        plot.update_layout({f"xaxis{column if column > 1 else ''}": {"domain": [right - 0.17, right]}})
        logs = [math.log10(y) for line in lines for y in line.y]
        low, high = min(logs) - 0.1, max(logs) + 0.1
        steps = (1,) if high - low > 2 else (1, 2, 5)  # of a decade
        ticks = [step * 10.0**power for power in range(math.floor(low), math.ceil(high)) for step in steps]
        plot.update_yaxes(type="log", range=[low, high], tickvals=ticks, row=1, col=column)
        ends = {line.name: (math.log10(line.y[-1]) - low) / (high - low) for line in lines}
        for line in lines:
            style = {"color": line.colour, "dash": line.dash, "width": 2}
            plot.add_scatter(x=line.x, y=line.y, line=style, mode="lines", showlegend=False, row=1, col=column)
        for name, place in _apart(ends).items():
            line = next(each for each in lines if each.name == name)
            plot.add_annotation(
                x=right, xref="paper", y=low + place * (high - low), yref=f"y{column if column > 1 else ''}", text=name,
                xanchor="left", xshift=6, showarrow=False, font={"size": 11, "color": line.colour},
            )  # fmt: skip
    measured = sorted({x for line in every[0] for x in line.x})
    plot.update_xaxes(type="log", title="ranks", tickvals=[2, 8, 32, 128, 1024])
    plot.update_xaxes(tickvals=measured, row=1, col=1)
    plot.update_yaxes(title="ms", row=1, col=1)
    return styled(plot, 430, 60, 10, 40, 50, width=1200, font={})


def _measured(benchmark: Benchmark) -> list[_Line]:
    lines, strong = [], [each for each in shared_of(benchmark) if each.scaling == "strong"]
    for task in dict.fromkeys(each.task for each in strong):
        for way, dash in ((OURS, "solid"), (GATHERED, "dot"), (TORCH, "dash")):
            of = {each.ranks: time for each in strong if each.task == task and (time := _time(each, way)) is not None}
            if of:
                name = task if way == OURS else f"{task}, {way}"
                lines.append(_Line(name, list(of), [1e3 * time for time in of.values()], COLOURS.get(task, "#555555"), dash))
    return lines


def _time(each: Shared, way: str) -> float | None:
    peers = each.result.peers
    return each.result.seconds if way == OURS else peers[way].seconds if way in peers else None


def _messages(network: Network, many: Sequence[int]) -> list[_Line]:
    names, colours = [scheme.name for scheme in schemes(many[0])], COLOURS | PEERS_COLOURS
    return [
        _Line(name, many, [1e3 * messages(schemes(ranks)[i], network, ranks, STEP_ROWS).seconds for ranks in many], colours[name])
        for i, name in enumerate(names)
    ]


def _slowest(work: float, many: Sequence[int]) -> _Line:
    """The work that the messages come after."""
    of = [1e3 * work / ranks * Straggling().of_slowest(ranks)[0] for ranks in many]
    return _Line("the slowest rank's work", many, of, "#999999", "dot")


def _apart(ends: dict[str, float]) -> dict[str, float]:
    """Where names stand, as shares of the height: at the ends of their lines, or so far away that none covers another."""
    ordered = sorted(ends, key=lambda name: ends[name])
    placed: dict[str, float] = {}
    for name in ordered:
        placed[name] = max(ends[name], max(placed.values(), default=-1.0) + GAP)
    above = 1.0
    for name in reversed(ordered):
        placed[name] = above = min(placed[name], above)
        above -= GAP
    return placed
