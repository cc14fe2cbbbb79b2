"""Maps and sums over the edges of a graph: seconds beside those of torch_geometric, and of a copy of the scores.

The graph is drawn: degrees of a power law, so that most nodes have few edges and some have thousands. All ways have turns in the
same pass, so that what slows one slows all.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

import softmaxima as sm
from softmaxima.core.writing import finite, write_text
from softmaxima_lab.bench.clocks import Clock, Quotient, clock_of
from softmaxima_lab.bench.machine import commit, installed, machine, versions

EDGES, MEAN_DEGREE, EXPONENT = 10_000_000, 10, 1.6
TASKS = ("softmax", "logsumexp", "sparsemax")
ORDERS = ("in order", "in any order")
STEPS = ("forward", "forward and backward")
PASSES = 5
OURS, INDEX, PEER = "Segments", "index", "torch_geometric"
TOLERANCE = 1e-5  # of float32, as a share of a number, or of the largest of a node
LEAST = 0.1  # what smaller ones of a node are taken for: gradients may be 0 by cancellation
SAMPLED = 300  # nodes, of as many lengths, that are held to the definition


@dataclass(frozen=True)
class Case:
    """A function of the edges of a graph, whose index is in order or not."""

    task: str
    step: str
    order: str

    def __str__(self) -> str:
        return f"{self.task}, {self.step}, edges {self.order}"


@dataclass(frozen=True)
class Result:
    """Seconds by who takes them, and the time of each / that of ours with `Segments` of the same turns."""

    case: Case
    seconds: dict[str, float]
    ratios: dict[str, Quotient]
    problem: str = ""


@dataclass(frozen=True)
class Benchmark:
    edges: int
    nodes: int
    largest: int  # the most edges of a node
    copy: float  # seconds to copy the scores of all edges
    results: list[Result]
    date: str = ""
    commit: str | None = None
    machine: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


def bench(edges: int, tasks: Sequence[str], passes: int, starting: Callable[[str], None], device: str = "cpu") -> Benchmark:
    """Measure the tasks on a graph of so many edges, in order and in any."""
    clock = clock_of(device)
    index, nodes = power_law(edges)
    index = index.to(device)
    x = torch.randn(edges, generator=torch.Generator().manual_seed(1)).to(device)
    orders = {ORDERS[0]: index, ORDERS[1]: index[torch.randperm(edges, generator=torch.Generator().manual_seed(2)).to(device)]}
    results = []
    for task, step in itertools.product(tasks, STEPS):
        starting(f"{task}, {step}")
        results += [_measure(Case(task, step, order), x, own, nodes, passes, clock) for order, own in orders.items()]
    to = torch.empty_like(x)
    copy = median(clock.burst(lambda: to.copy_(x), 2 * passes + 1))
    found = {**versions(device), **installed("torch-geometric")}
    largest = int(index.bincount().max()) if edges else 0
    return Benchmark(edges, nodes, largest, copy, results, date.today().isoformat(), commit(), machine(device), found)


def power_law(edges: int) -> tuple[Tensor, int]:
    """(the node of each edge, in order; how many nodes there are): degrees of a Pareto distribution, `MEAN_DEGREE` on average."""
    nodes = max(1, edges // MEAN_DEGREE)
    uniform = torch.rand(nodes, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weights = (1 - uniform) ** (-1 / EXPONENT)
    ends = (weights.cumsum(0) / weights.sum() * edges).round().long()
    ends[-1] = edges
    degrees = ends.diff(prepend=ends.new_zeros(1))
    return torch.arange(nodes).repeat_interleave(degrees), nodes


def _measure(case: Case, x: Tensor, index: Tensor, nodes: int, passes: int, clock: Clock) -> Result:
    calls = dict(_ways(case, x, index, nodes))
    values = {way: call().cpu() for way, call in calls.items()}
    turns: dict[str, dict[int, list[float]]] = {way: {} for way in calls}
    for number, (way, call) in itertools.product(range(passes), calls.items()):
        turns[way][number] = clock.burst(call, 1)
    seconds = {way: median(itertools.chain.from_iterable(each.values())) for way, each in turns.items()}
    ratios = {way: quotient for way in calls if way != OURS and (quotient := Quotient.of(turns[way], turns[OURS])) is not None}
    return Result(case, seconds, ratios, problem_of(case, values, x.cpu(), index.cpu(), nodes))


def problem_of(case: Case, values: Mapping[str, Tensor], x: Tensor, index: Tensor, nodes: int) -> str:
    """What is wrong with results, where anything is: ours is held to the definition at nodes of all lengths, all else to ours.

    Nothing but the sum of a node without edges is infinite here, and nothing is NaN.
    """
    ours = values[OURS]
    lengths = index.bincount(minlength=nodes)
    of_nodes = (case.task, case.step) == ("logsumexp", STEPS[0])
    finite = ours.isfinite() | (lengths == 0) & (ours == -math.inf) if of_nodes else ours.isfinite()
    if not bool(finite.all()):
        return f"{int((~finite).sum())} of {len(ours)} numbers of ours are not finite"
    g = _sensitivity(torch.Size([nodes]) if case.task == "logsumexp" else x.shape)
    for node, edges in _sampled(index, lengths):
        places = torch.tensor([node]) if of_nodes else edges
        expected = _defined(case, x[edges], g[[node]] if case.task == "logsumexp" else g[edges])
        apart = float((ours[places].double() - expected).abs().max() / expected.abs().max().clamp(min=LEAST))
        if not apart <= TOLERANCE:
            return f"ours is {apart:.2g} away from the definition at a node of {len(edges)} edges"
    for way, value in values.items():
        close = torch.isclose(value, ours, rtol=TOLERANCE, atol=TOLERANCE / 10)
        if not bool(close.all()):
            return f"{int((~close).sum())} of {len(ours)} numbers of {way} are not ours"
    return ""


def _sampled(index: Tensor, lengths: Tensor) -> Iterator[tuple[int, Tensor]]:
    """(a node, its edges): the first of each length, or of so many lengths from the shortest to the longest."""
    order, ends = index.argsort(stable=True), lengths.cumsum(0).tolist()
    first = {length: node for node, length in reversed(list(enumerate(lengths.tolist()))) if length}
    known = sorted(first)
    places = torch.linspace(0, len(known) - 1, min(len(known), SAMPLED)).round().long().tolist() if known else []
    for length in (known[place] for place in places):
        yield first[length], order[ends[first[length]] - length : ends[first[length]]]


def _defined(case: Case, x: Tensor, g: Tensor) -> Tensor:
    """What the definition gives for one node, in float64: [edges], or [1] of a sum."""
    x = x.double().requires_grad_()
    value = DEFINITIONS[case.task](x)
    return value.detach() if case.step == STEPS[0] else torch.autograd.grad(value, x, g.double())[0]


def _of_sparsemax(x: Tensor) -> Tensor:
    z = x.sort(descending=True).values
    candidates = (z.cumsum(0) - 1) / torch.arange(1, len(z) + 1)
    return (x - candidates[int((z > candidates).sum()) - 1]).relu()


DEFINITIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda x: x.exp() / x.exp().sum(),
    "logsumexp": lambda x: x.exp().sum(0, keepdim=True).log(),
    "sparsemax": _of_sparsemax,
}


def _ways(case: Case, x: Tensor, index: Tensor, nodes: int) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """Ours with segments that are known, as those of all layers but the first are; with an index; and torch_geometric's."""
    segments = sm.Segments(index, nodes)

    def ours(of: Any, count: int | None = None) -> Callable[[Tensor], Tensor]:
        if case.task == "logsumexp":
            return lambda x: sm.segment_logsumexp(x, of, count)
        return lambda x: sm.segment_map(case.task, x, of, count)

    functions = {OURS: ours(segments), INDEX: ours(index, nodes)}
    if case.task in PEERS:
        functions[PEER] = lambda x: PEERS[case.task](x, index, nodes)
    for way, function in functions.items():
        yield way, _step(case, function, x)


def _step(case: Case, function: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], Tensor]:
    if case.step == STEPS[0]:
        return lambda: function(x)
    own = x.clone().requires_grad_()
    shape = function(x).shape
    g = _sensitivity(shape).to(x.device)
    return lambda: torch.autograd.grad(function(own), own, g)[0]


def _sensitivity(shape: torch.Size) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def _softmax(x: Tensor, index: Tensor, nodes: int) -> Tensor:
    from torch_geometric.utils import softmax

    return softmax(x, index, num_nodes=nodes)


def _logsumexp(x: Tensor, index: Tensor, nodes: int) -> Tensor:
    """As one composes it of torch_geometric's scatter."""
    from torch_geometric.utils import scatter

    top = scatter(x.detach(), index, 0, nodes, reduce="max")
    return scatter((x - top[index]).exp(), index, 0, nodes, reduce="sum").log() + top


PEERS = {"softmax": _softmax, "logsumexp": _logsumexp}  # torch_geometric has no sparsemax


def write(benchmark: Benchmark, path: Path) -> None:
    """Write the JSON. The file appears complete or not at all."""
    write_text(path, json.dumps(finite(asdict(benchmark)), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read(path: Path) -> Benchmark:
    """The benchmark in a file."""
    record = json.loads(path.read_text(encoding="utf-8"))
    return Benchmark(**{**record, "results": [_result(entry) for entry in record["results"]]})


def _result(entry: dict[str, Any]) -> Result:
    ratios = {name: Quotient(**quotient) for name, quotient in entry["ratios"].items()}
    return Result(**{**entry, "case": Case(**entry["case"]), "ratios": ratios})
