"""Whether it matters what a node makes of its neighbours: aggregations and attention in small networks, on graphs of known truth.

Of most tasks the graphs are drawn anew for each seed: in a stochastic block model a node's class is that of its block, and
neighbours' features, noisy, are of theirs by and large; in two others a node's class is what an aggregation says of its
neighbours' features, the largest or the sum, so that one that fits is there to be found.

Zachary's karate club (1977), which networkx brings, is one graph of 34 members and the side that each took when the club broke up.
There a seed is a split, and splits share members, so that the variance of a mean over them is not that of independent ones, but
(1/J + n_tested/n_others) s² of J splits, as Nadeau and Bengio (2003) have it.

Networks of many seeds are trained side by side: their graphs are one graph of parts without edges between them, and weights have
an axis for the seeds. No number of one seed meets one of another, so that each is trained as it would be by itself.
"""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

import softmaxima as sm
from softmaxima_lab.compare.differences import Difference, Spread, interval_of, of_mean, spread_of
from softmaxima_lab.compare.measures import METRICS
from softmaxima_lab.compare.turns import one_thread

SEEDS, STACK = 100, 25  # how many, and how many side by side
WIDTH, HEADS, DECAY = 16, 4, 5e-4
STEPS = {0.03: 60, 0.01: 90}  # of each rate of learning: smaller ones go further
EVERY = 5  # steps between two looks at the nodes that are validated
NODES, BLOCKS, FEATURES = 300, 4, 8  # of graphs that are drawn
DEGREE, WITHIN, SIGNAL = 8, 2 / 3, 0.7  # of blocks: mean degree, the share of it in a node's own block, the mean of its feature
TRAINED, VALIDATED = 0.3, 0.2  # shares of the nodes; the others are tested
BASELINE, USUAL = "mean", ("mean", "sum", "max")
ACCURACY = METRICS["accuracy"]


@dataclass(frozen=True)
class Task:
    """Nodes with features and classes, and edges (from, to)."""

    x: Tensor  # [nodes, features]
    y: Tensor  # [nodes]
    edges: Tensor  # [2, edges]
    classes: int


@dataclass(frozen=True)
class Trained:
    """The accuracies on the nodes that are tested, one for each seed, and the rates of learning that were chosen."""

    task: str
    aggregation: str
    accuracies: tuple[float, ...]
    rates: tuple[float, ...] = ()


@dataclass(frozen=True)
class Study:
    """All that was found, and on tasks whose truth is known the accuracies of who knows it."""

    ceilings: Mapping[str, Sequence[float]]
    results: Sequence[Trained]


# Tasks --------------------------------------------------------------------------------------------------------------------------


def blocks(seed: int) -> Task:
    """Nodes have 8 neighbours on average, two thirds of them of their own block; features are the block's, in noise."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(NODES) % BLOCKS
    linked = torch.rand(NODES, NODES, generator=rng) < _links()[y][:, y]
    upper = linked.triu(1)
    x = torch.randn(NODES, FEATURES, generator=rng) + SIGNAL * torch.eye(BLOCKS, FEATURES)[y]
    return Task(x, y, (upper | upper.T).nonzero().T.contiguous(), BLOCKS)


def _links() -> Tensor:
    """[blocks, blocks]: how likely two nodes of these are neighbours."""
    within, between = (WITHIN * DEGREE * BLOCKS / NODES, (1 - WITHIN) * DEGREE * BLOCKS / (BLOCKS - 1) / NODES)
    return torch.where(torch.eye(BLOCKS) > 0, within, between)


def largest(seed: int) -> Task:
    """Whether a node's largest neighbour, by the first feature, is above the median of all nodes'."""
    x, edges = _drawn(seed)
    scores = torch.full((NODES,), -torch.inf).scatter_reduce_(0, edges[1], x[edges[0], 0], "amax")
    return Task(x, (scores > scores.median()).long(), edges, 2)


def total(seed: int) -> Task:
    """Whether the sum of a node's neighbours' first features, each shifted so that degrees count, is above the median."""
    x, edges = _drawn(seed)
    scores = torch.zeros(NODES).index_add_(0, edges[1], x[edges[0], 0] + 0.5)
    return Task(x, (scores > scores.median()).long(), edges, 2)


def _drawn(seed: int) -> tuple[Tensor, Tensor]:
    """Normal features, and edges of a power law of degrees: 3 at least, 100 at most, 7 on average."""
    rng = torch.Generator().manual_seed(seed)
    degrees = ((1 - torch.rand(NODES, generator=rng)) ** (-1 / 1.6) * 3).long().clamp(3, 100)
    ends = torch.arange(NODES).repeat_interleave(degrees)
    edges = torch.stack([torch.randint(NODES, (len(ends),), generator=rng), ends])
    return torch.randn(NODES, FEATURES, generator=rng), edges


def karate(seed: int) -> Task:
    """The same club for every seed: friends, and the side that each member took; a feature says who a member is."""
    import networkx

    club = networkx.karate_club_graph()
    y = torch.tensor([club.nodes[member]["club"] == "Officer" for member in club]).long()
    friends = torch.tensor(list(club.edges)).T
    return Task(torch.eye(len(y)), y, torch.cat([friends, friends.flip(0)], 1), 2)


TASKS: dict[str, Callable[[int], Task]] = {"blocks": blocks, "largest": largest, "sum": total, "karate club": karate}
SPLITS = {"karate club"}  # of one graph, in which nobody knows what could be reached


def ceilings(seeds: Sequence[int]) -> dict[str, list[float]]:
    """What who knows how a task was drawn would reach with each seed, of those that are drawn."""
    return {task: [ceiling(task, seed) for seed in seeds] for task in TASKS if task not in SPLITS}


def ceiling(task: str, seed: int) -> float:
    """The accuracy of who knows how the task was drawn: 1 where classes follow from features, of blocks that of belief propagation.

    There a node tells each neighbour how likely its own classes are, of its features, its class where that is one of those that are
    trained on, and what all others told it (Decelle et al. 2011). Graphs have few short cycles, so that it is about the best.
    """
    if task != "blocks":
        return 1.0
    drawn = blocks(seed)
    trained, _, tested = split(seed, NODES)
    source, to = drawn.edges
    back = torch.argsort(to * NODES + source)  # edges are in order of (from, to): the one that goes the other way
    own = SIGNAL * drawn.x[:, :BLOCKS]  # log-likelihoods, but for what all classes share
    own[trained] = torch.where(torch.eye(BLOCKS)[drawn.y[trained]] > 0, 0.0, -torch.inf)
    links = _links().log()
    told = torch.zeros(len(source), BLOCKS)
    for _ in range(30):
        beliefs = own.index_add(0, to, told)
        told = torch.logsumexp((beliefs[source] - told[back]).log_softmax(1).unsqueeze(1) + links, 2)
    right = own.index_add(0, to, told).argmax(1) == drawn.y
    return float(right[tested].float().mean())


def split(seed: int, nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    """The nodes that are trained on, validated and tested."""
    order = torch.randperm(nodes, generator=torch.Generator().manual_seed(seed))
    first, second = (int(share * nodes) for share in (TRAINED, VALIDATED))
    trained, validated, tested = order.split((first, second, nodes - first - second))
    return trained, validated, tested


# Networks -----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Graph:
    """The graphs of several seeds as one, whose edges are in order of where they go to."""

    seeds: int
    nodes: int  # of each
    source: Tensor  # [edges]
    to: Tensor  # [edges]

    @staticmethod
    def of(tasks: Sequence[Task]) -> Graph:
        nodes = len(tasks[0].y)
        edges = torch.cat([task.edges + nodes * place for place, task in enumerate(tasks)], 1)
        source, to = edges[:, edges[1].argsort(stable=True)]
        return Graph(len(tasks), nodes, source, to)

    def with_loops(self) -> Graph:
        """Each node its own neighbour, once."""
        nodes = torch.arange(self.seeds * self.nodes)
        others = self.source != self.to
        to = torch.cat([self.to[others], nodes])
        order = to.argsort(stable=True)
        return Graph(self.seeds, self.nodes, torch.cat([self.source[others], nodes])[order], to[order])


def _uniform(bound: float, *shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))


class Linear(nn.Module):
    """A linear layer a seed, drawn as torch's."""

    def __init__(self, seeds: int, wide: int, narrow: int, bias: bool) -> None:
        super().__init__()
        self.weight = _uniform(wide**-0.5, seeds, wide, narrow)
        self.bias = _uniform(wide**-0.5, seeds, 1, narrow) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        value = x.unflatten(0, (len(self.weight), -1)) @ self.weight
        return (value if self.bias is None else value + self.bias).flatten(0, 1)


class Taus(nn.Module):
    """A temperature that is learnt a seed, said for each node."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.learnt = sm.Temperature(1.0, minimum=0.05, maximum=20.0, shape=(graph.seeds, 1))
        self.nodes = graph.nodes

    def forward(self) -> Tensor:
        return self.learnt().repeat_interleave(self.nodes, 0)


class Gate(nn.Module):
    """A linear layer a seed from what edges bring to one score."""

    def __init__(self, graph: Graph, wide: int) -> None:
        super().__init__()
        self.weight = _uniform(wide**-0.5, graph.seeds, wide)
        self.of = graph.to // graph.nodes

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight.index_select(0, self.of)).sum(1, keepdim=True)


def aggregations() -> dict[str, Callable[[Graph, int], Any]]:
    """What makes the aggregation of a layer of so many channels."""
    from torch_geometric.nn import MaxAggregation, MeanAggregation, SumAggregation

    from softmaxima.graph import LogSumExpAggregation, MapAggregation

    return {
        "mean": lambda graph, wide: MeanAggregation(),
        "sum": lambda graph, wide: SumAggregation(),
        "max": lambda graph, wide: MaxAggregation(),
        "LSE": lambda graph, wide: LogSumExpAggregation(),
        "LSE, learnt τ": lambda graph, wide: LogSumExpAggregation(Taus(graph)),
        "LSE − τ log d, learnt τ": lambda graph, wide: LogSumExpAggregation(Taus(graph), normalise=True),
        "LSE, attention-weighted": lambda graph, wide: LogSumExpAggregation(Taus(graph), gate=Gate(graph, wide)),
        "softmax-weighted, learnt τ": lambda graph, wide: MapAggregation(sm.Softmax(temperature=Taus(graph))),
        "sparsemax-weighted, learnt τ": lambda graph, wide: MapAggregation(sm.Sparsemax(temperature=Taus(graph))),
        "entmax15-weighted, learnt τ": lambda graph, wide: MapAggregation(sm.Entmax15(temperature=Taus(graph))),
    }


ATTENTIONS = {"GAT, softmax": "softmax", "GAT, entmax15": "entmax15", "GAT, sparsemax": "sparsemax"}


class Sage(nn.Module):
    """`SAGEConv` of torch_geometric, a seed."""

    def __init__(self, graph: Graph, wide: int, narrow: int, make: Callable[[Graph, int], Any]) -> None:
        super().__init__()
        self.graph = graph
        # In this order, so that the first numbers of both are the same whatever the aggregation draws after them.
        self.of_neighbours, self.own = Linear(graph.seeds, wide, narrow, True), Linear(graph.seeds, wide, narrow, False)
        self.aggregation = make(graph, wide)

    def forward(self, x: Tensor) -> Tensor:
        found = self.aggregation(x.index_select(0, self.graph.source), self.graph.to, dim_size=len(x))
        return self.of_neighbours(found) + self.own(x)


class Gat(nn.Module):
    """`MapGATConv`, a seed."""

    def __init__(self, graph: Graph, wide: int, narrow: int, heads: int, map: str) -> None:
        super().__init__()
        self.graph, self.map, self.heads = graph.with_loops(), map, heads
        self.segments = sm.Segments(self.graph.to, graph.seeds * graph.nodes)
        self.linear = Linear(graph.seeds, wide, narrow, False)
        self.linear.weight = _uniform((6 / (wide + narrow)) ** 0.5, graph.seeds, wide, narrow)
        each = narrow // heads
        self.of_source, self.of_to = (_uniform((6 / (heads + each)) ** 0.5, graph.seeds, 1, heads, each) for _ in range(2))
        self.bias = nn.Parameter(torch.zeros(graph.seeds, 1, narrow))

    def forward(self, x: Tensor) -> Tensor:
        each, (source, to) = (self.graph.seeds, self.graph.nodes), (self.graph.source, self.graph.to)
        values = self.linear(x).unflatten(1, (self.heads, -1))  # [nodes, heads, channels]
        of_source, of_to = ((values.unflatten(0, each) * own).sum(-1).flatten(0, 1) for own in (self.of_source, self.of_to))
        scores = nn.functional.leaky_relu(of_source.index_select(0, source) + of_to.index_select(0, to), 0.2)
        p = sm.segment_map(self.map, scores, self.segments)
        sent = p.unsqueeze(-1) * values.index_select(0, source)
        return (torch.zeros_like(values).index_add(0, to, sent).flatten(1).unflatten(0, each) + self.bias).flatten(0, 1)


def network(name: str, graph: Graph, features: int, classes: int) -> nn.Sequential:
    """Two layers with this aggregation or attention, which take [seeds · nodes, features]."""

    def layer(wide: int, narrow: int, heads: int) -> nn.Module:
        if name in ATTENTIONS:
            return Gat(graph, wide, narrow, heads, ATTENTIONS[name])
        return Sage(graph, wide, narrow, aggregations()[name])

    return nn.Sequential(layer(features, WIDTH, HEADS), nn.ReLU(), layer(WIDTH, classes, 1))


def names() -> tuple[str, ...]:
    return *aggregations(), *ATTENTIONS


# The experiment -----------------------------------------------------------------------------------------------------------------


def run(
    tasks: Sequence[str] = tuple(TASKS),
    seeds: int = SEEDS,
    processes: int = 1,
    done: Callable[[str], None] = lambda what: None,
) -> list[Trained]:
    """Train every network on every task with so many seeds, of each the same graph and split for all, in so many processes."""
    found = []
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        for each in pool.map(_trained, *zip(*((task, name, seeds) for task in tasks for name in names()), strict=True)):
            done(f"{each.task}, {each.aggregation}")
            found.append(each)
    return found


def _trained(task: str, name: str, seeds: int) -> Trained:
    with one_thread():
        parts = [accuracies(name, task, range(first, min(first + STACK, seeds))) for first in range(0, seeds, STACK)]
    reached, rates = (tuple(value for part in parts for value in part[which]) for which in range(2))
    return Trained(task, name, reached, rates)


def accuracies(
    name: str, task: str, seeds: Sequence[int], steps: Mapping[float, int] = STEPS
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(the accuracies of the nodes that are tested, the rates), of each seed at the rate and step of the least loss of those that
    are validated."""
    drawn = [TASKS[task](seed) for seed in seeds]
    least = torch.full((len(seeds),), math.inf)
    best, chosen = torch.zeros(len(seeds)), torch.zeros(len(seeds), dtype=torch.float64)
    for rate, count in steps.items():
        for loss, reached in _train(name, drawn, seeds, rate, count):
            less = loss < least
            least, best, chosen = (
                torch.where(less, new, old)
                for new, old in ((loss, least), (reached, best), (torch.tensor(rate, dtype=torch.float64), chosen))
            )
    return tuple(best.tolist()), tuple(chosen.tolist())


def _train(name: str, drawn: Sequence[Task], seeds: Sequence[int], rate: float, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """([seeds] losses of the nodes that are validated, accuracies of those that are tested), every few steps."""
    torch.manual_seed(seeds[0])
    x, y = (torch.cat([getattr(task, what) for task in drawn]) for what in ("x", "y"))
    graph = Graph.of(drawn)
    splits = [split(seed, graph.nodes) for seed in seeds]
    trained, validated, tested = (
        torch.stack([own[which] + graph.nodes * place for place, own in enumerate(splits)]) for which in range(3)
    )
    model = network(name, graph, x.shape[1], drawn[0].classes)
    optimiser = torch.optim.Adam(model.parameters(), rate, weight_decay=DECAY)

    def losses(scores: Tensor, nodes: Tensor) -> Tensor:
        return sm.cross_entropy(scores[nodes.flatten()], y[nodes.flatten()], reduction="none").view(nodes.shape).mean(1)

    for step in range(1, steps + 1):
        optimiser.zero_grad()
        losses(model(x), trained).sum().backward()
        optimiser.step()
        if step % EVERY == 0:
            with torch.no_grad():
                scores = model(x)
                yield losses(scores, validated), (scores.argmax(1) == y)[tested].float().mean(1)


# What it says -------------------------------------------------------------------------------------------------------------------


def gain(found: Sequence[Trained], task: str, name: str, over: str, comparisons: int) -> Difference:
    """How much more accurate one is than another, paired by seed, with an interval that holds at once with so many."""
    by = {(each.task, each.aggregation): each.accuracies for each in found}
    pairs = [a - b for a, b in zip(by[task, name], by[task, over], strict=True)]
    return interval_of(pairs, [spread(task, pairs)], ACCURACY, comparisons)


def spread(task: str, values: Sequence[float]) -> Spread:
    """The variance of the mean over seeds."""
    if task not in SPLITS:
        return of_mean(values)
    trained, validated, tested = map(len, split(0, len(TASKS[task](0).y)))
    return Spread((1 / len(values) + tested / (trained + validated)) * spread_of(values), len(values) - 1)


def best_of(found: Sequence[Trained], task: str, among: Sequence[str] = USUAL) -> str:
    """The one that reaches most on the nodes that are tested."""
    by = {each.aggregation: fmean(each.accuracies) for each in found if each.task == task}
    return max(among, key=by.__getitem__)


def verdict(found: Sequence[Trained], name: str = "LSE") -> list[tuple[str, str, Difference]]:
    """(task, over whom, gain) against the mean and against the best of mean, sum and max, with intervals that hold at once.

    Which is the best is seen only then, so that each of the three counts as compared.
    """
    tasks = tuple(dict.fromkeys(each.task for each in found))
    pairs = [(task, over) for task in tasks for over in dict.fromkeys((BASELINE, best_of(found, task)))]
    return [(task, over, gain(found, task, name, over, len(USUAL) * len(tasks))) for task, over in pairs]
