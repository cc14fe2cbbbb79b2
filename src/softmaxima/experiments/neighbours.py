"""Whether it matters what a node makes of its neighbours: aggregations and attention in small networks, on graphs of known truth.

The tasks are a graph that is bundled with torch_geometric and three that are drawn anew for each seed: in a stochastic block model
a node's class is that of its block, and neighbours' features, noisy, are of theirs by and large; in the other two a node's class is
what an aggregation says of its neighbours' features, the largest or the sum, so that one that fits is there to be found.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

import softmaxima as sm
from softmaxima.core.writing import finite, write_text
from softmaxima.experiments.differences import Difference, interval_of, of_mean
from softmaxima.experiments.measures import METRICS

SEEDS, STEPS, WIDTH, LEARNING_RATE, DECAY = 10, 60, 16, 0.03, 5e-4
EVERY = 5  # steps between two looks at the nodes that are validated
NODES, BLOCKS, FEATURES = 300, 4, 8
TRAINED, VALIDATED = 0.3, 0.2  # shares of the nodes; the others are tested
BASELINE = "mean"
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
    """The accuracies on the nodes that are tested, one for each seed."""

    task: str
    aggregation: str
    accuracies: tuple[float, ...]


@dataclass(frozen=True)
class Gain:
    """How much more accurate an aggregation is than another, with an interval that holds together with the others of its task."""

    task: str
    aggregation: str
    over: str
    difference: Difference


# Tasks --------------------------------------------------------------------------------------------------------------------------


def karate(seed: int) -> Task:
    """Zachary's club: 34 nodes, four communities, and features that only tell nodes apart."""
    from torch_geometric.datasets import KarateClub

    graph: Any = KarateClub()[0]
    return Task(graph.x, graph.y, graph.edge_index, int(graph.y.max()) + 1)


def blocks(seed: int) -> Task:
    """Nodes have 8 neighbours on average, two thirds of them of their own block; features are the block's, in noise."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(NODES) % BLOCKS
    same = y.unsqueeze(0) == y.unsqueeze(1)
    within, between = 2 / 3 * 8 * BLOCKS / NODES, 1 / 3 * 8 * BLOCKS / (BLOCKS - 1) / NODES
    linked = torch.rand(NODES, NODES, generator=rng) < torch.where(same, within, between)
    upper = linked.triu(1)
    x = torch.randn(NODES, FEATURES, generator=rng) + 0.7 * torch.eye(BLOCKS, FEATURES)[y]
    return Task(x, y, (upper | upper.T).nonzero().T.contiguous(), BLOCKS)


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
    """Normal features, and edges of a power law of degrees, 8 on average and at least one."""
    rng = torch.Generator().manual_seed(seed)
    degrees = ((1 - torch.rand(NODES, generator=rng)) ** (-1 / 1.6) * 3).long().clamp(1, 100)
    ends = torch.arange(NODES).repeat_interleave(degrees)
    edges = torch.stack([torch.randint(NODES, (len(ends),), generator=rng), ends])
    return torch.randn(NODES, FEATURES, generator=rng), edges


TASKS: dict[str, Callable[[int], Task]] = {"KarateClub": karate, "blocks": blocks, "largest": largest, "sum": total}


# Networks -----------------------------------------------------------------------------------------------------------------------


def aggregations() -> dict[str, Callable[[int], Any]]:
    """What makes the `aggr` of a layer of so many channels."""
    from softmaxima.graph import LogSumExpAggregation, MapAggregation

    learnt: Callable[[], Any] = lambda: sm.Temperature(1.0, minimum=0.05, maximum=20.0)
    return {
        BASELINE: lambda width: "mean",
        "sum": lambda width: "sum",
        "max": lambda width: "max",
        "LSE": lambda width: LogSumExpAggregation(),
        "LSE, learnt τ": lambda width: LogSumExpAggregation(learnt()),
        "LSE − τ log d, learnt τ": lambda width: LogSumExpAggregation(learnt(), normalise=True),
        "LSE, attention-weighted": lambda width: LogSumExpAggregation(learnt(), gate=nn.Linear(width, 1)),
        "softmax-weighted, learnt τ": lambda width: MapAggregation(sm.Softmax(temperature=learnt())),
        "sparsemax-weighted, learnt τ": lambda width: MapAggregation(sm.Sparsemax(temperature=learnt())),
        "entmax15-weighted, learnt τ": lambda width: MapAggregation(sm.Entmax15(temperature=learnt())),
    }


ATTENTIONS = {"GAT, softmax": "softmax", "GAT, entmax15": "entmax15", "GAT, sparsemax": "sparsemax"}


class Network(nn.Module):
    """Two layers."""

    def __init__(self, make: Callable[[int, int, bool], nn.Module], features: int, classes: int) -> None:
        super().__init__()
        self.first, self.second = make(features, WIDTH, False), make(WIDTH, classes, True)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x, edges)), edges)


def network(name: str, task: Task) -> Network:
    """A network with this aggregation or attention."""
    from torch_geometric.nn import SAGEConv

    from softmaxima.graph import MapGATConv

    if name in ATTENTIONS:
        heads = lambda last: 1 if last else 4
        layer = lambda wide, narrow, last: MapGATConv(wide, narrow // heads(last), heads=heads(last), map=ATTENTIONS[name])
        return Network(layer, task.x.shape[1], task.classes)
    make = aggregations()[name]
    return Network(lambda wide, narrow, last: SAGEConv(wide, narrow, aggr=make(wide)), task.x.shape[1], task.classes)


def names() -> tuple[str, ...]:
    return *aggregations(), *ATTENTIONS


# The experiment -----------------------------------------------------------------------------------------------------------------


def run(
    tasks: Sequence[str] = tuple(TASKS), seeds: int = SEEDS, steps: int = STEPS, starting: Callable[[str], None] = lambda what: None
) -> list[Trained]:
    """Train every network on every task with so many seeds, the same graphs, splits and first numbers drawn for all."""
    found = []
    for task in tasks:
        for name in names():
            starting(f"{task}, {name}")
            found.append(Trained(task, name, tuple(accuracy(name, TASKS[task](seed), seed, steps) for seed in range(seeds))))
    return found


def accuracy(name: str, task: Task, seed: int, steps: int) -> float:
    """On the nodes that are tested, at the step of the least loss of those that are validated."""
    torch.manual_seed(seed)
    count = len(task.y)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    first, second = (int(share * count) for share in (TRAINED, VALIDATED))
    trained, validated, tested = order.split((first, second, count - first - second))
    model = network(name, task)
    optimiser = torch.optim.Adam(model.parameters(), LEARNING_RATE, weight_decay=DECAY)
    least, best = torch.inf, 0.0
    for step in range(1, steps + 1):
        optimiser.zero_grad()
        sm.cross_entropy(model(task.x, task.edges)[trained], task.y[trained]).backward()
        optimiser.step()
        if step % EVERY:
            continue
        with torch.no_grad():
            scores = model(task.x, task.edges)
            loss = float(sm.cross_entropy(scores[validated], task.y[validated]))
        if loss < least:
            least, best = loss, float((scores[tested].argmax(1) == task.y[tested]).float().mean())
    return best


def gains(found: Sequence[Trained], over: str = BASELINE) -> Iterator[Gain]:
    """Every aggregation against another, paired by seed, with intervals that hold at once in a task."""
    by = {(each.task, each.aggregation): each.accuracies for each in found}
    for task in dict.fromkeys(each.task for each in found):
        others = [name for of, name in by if of == task and name != over]
        for name in others:
            pairs = [a - b for a, b in zip(by[task, name], by[task, over], strict=True)]
            yield Gain(task, name, over, interval_of(pairs, [of_mean(pairs)], ACCURACY, len(others)))


def verdict(found: Sequence[Trained]) -> str:
    """What holds of the claim that logsumexp improves the classification of nodes by 3 to 5 %."""
    by: Mapping[tuple[str, str], tuple[float, ...]] = {(each.task, each.aggregation): each.accuracies for each in found}
    parts = []
    for task in dict.fromkeys(each.task for each in found):
        usual = max(("mean", "sum", "max"), key=lambda name: fmean(by[task, name]))
        (gain,) = (g.difference for g in gains(found, usual) if g.task == task and g.aggregation == "LSE")
        word = "better" if gain.better else "worse" if gain.worse else "no different for all that is known"
        parts.append(f"{task}: {100 * gain.mean:+.1f} ({100 * gain.low:+.1f} to {100 * gain.high:+.1f}) points on {usual}, {word}")
    return "; ".join(parts)


def write(found: Sequence[Trained], made_on: Mapping[str, Any], path: Path) -> None:
    """Write the JSON. The file appears complete or not at all."""
    record = {**made_on, "seeds": len(found[0].accuracies), "steps": STEPS, "results": [asdict(each) for each in found]}
    write_text(path, json.dumps(finite(record), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read(path: Path) -> list[Trained]:
    """What is in such a file."""
    record = json.loads(path.read_text(encoding="utf-8"))
    return [Trained(each["task"], each["aggregation"], tuple(each["accuracies"])) for each in record["results"]]
