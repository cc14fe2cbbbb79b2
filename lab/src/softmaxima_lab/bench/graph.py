"""Maps and sums over the edges of a graph beside those of torch_geometric, and of a copy of the scores.

The graph is drawn: degrees of a power law, so that most nodes have few edges and some have thousands.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from statistics import median

import torch
from torch import Tensor

import softmaxima as sm
from softmaxima.base.numbers import InputError, check_choice
from softmaxima_lab.bench.case import FORWARD, OURS, Case, Group, Place, Trial, Wanted, by_trial, directions, sizes_of
from softmaxima_lab.bench.clock import clock_of

EDGES, QUICK_EDGES, MEAN_DEGREE, EXPONENT = "10000000", "100000", 10, 1.6
TASKS = ("softmax", "logsumexp", "sparsemax")
IN_ORDER, ANY_ORDER = ", edges in order", ", edges in any order"
INDEX, PEER = "index", "torch_geometric"
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}  # as a share of a number, or of the largest of a node
LEAST = 0.1  # what smaller ones of a node are taken for: gradients may be 0 by cancellation
SAMPLED = 300  # nodes, of as many lengths, that are held to the definition


def _cases(wanted: Wanted) -> list[Case]:
    try:
        import softmaxima.graph  # noqa: F401 - which says what is missing
    except ImportError as error:
        raise InputError(str(error)) from None
    tasks = tuple(check_choice("bench", "CASES", name, TASKS) for name in wanted.names) or TASKS
    sizes = [str(*sizes_of(text, 1, "a number of edges")) for text in wanted.sizes or (QUICK_EDGES if wanted.quick else EDGES,)]
    dtypes = [check_choice("bench", "dtype", dtype, tuple(TOLERANCE)) for dtype in wanted.dtypes or ("float32",)]
    return directions([task + order for task in tasks for order in (IN_ORDER, ANY_ORDER)], sizes, dtypes, "graph")


def power_law(edges: int) -> tuple[Tensor, int]:
    """(the node of each edge, in order; how many nodes there are): degrees of a Pareto distribution, `MEAN_DEGREE` on average."""
    nodes = max(1, edges // MEAN_DEGREE)
    uniform = torch.rand(nodes, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weights = (1 - uniform) ** (-1 / EXPONENT)
    ends = (weights.cumsum(0) / weights.sum() * edges).round().long()
    ends[-1] = edges
    return torch.arange(nodes).repeat_interleave(ends.diff(prepend=ends.new_zeros(1))), nodes


@functools.lru_cache(maxsize=1)
def _problem(edges: int, order: str, dtype: str, device: str) -> tuple[Tensor, Tensor, int]:
    """(scores, the node of each, how many nodes there are)."""
    index, nodes = power_law(edges)
    if order == ANY_ORDER:
        index = index[torch.randperm(edges, generator=torch.Generator().manual_seed(2))]
    x = torch.randn(edges, generator=torch.Generator().manual_seed(1)).to(device, getattr(torch, dtype))
    return x, index.to(device), nodes


def _trial(case: Case, place: Place) -> Trial:
    task, _, order = case.name.partition(", ")
    x, index, nodes = _problem(int(case.size), ", " + order, case.dtype, place.device)
    calls = {name: _step(function, x, case.direction) for name, function in ways(task, index, nodes, place.peers).items()}
    to, clock = torch.empty_like(x), clock_of(place.device)
    facts = {"nodes": nodes, "largest": int(index.bincount().max()), "copy": median(clock.burst(lambda: to.copy_(x), 11))}
    right, value = Definition(task, case.direction, x.cpu(), index.cpu(), nodes), calls[OURS]().cpu()

    def off(name: str, found: Tensor) -> float:
        """Of ours beside the definition, of others beside ours too."""
        close = torch.isclose(found.cpu(), value, rtol=TOLERANCE[case.dtype], atol=TOLERANCE[case.dtype] / 10)
        return right.deviation(found.cpu()) if bool(close.all()) else math.inf

    return Trial({name: [run] for name, run in calls.items()}, lambda name: off(name, calls[name]()), off, facts={OURS: facts})


def ways(task: str, index: Tensor, nodes: int, peers: Sequence[str]) -> dict[str, Callable[[Tensor], Tensor]]:
    """Ours with segments that are known, as those of all layers but the first are; with an index; and torch_geometric's."""
    segments = sm.Segments(index, nodes)
    if task == "logsumexp":
        found = {OURS: lambda x: sm.segment_logsumexp(x, segments), INDEX: lambda x: sm.segment_logsumexp(x, index, nodes)}
    else:
        found = {OURS: lambda x: sm.segment_map(task, x, segments), INDEX: lambda x: sm.segment_map(task, x, index, nodes)}
    return found | ({PEER: lambda x: PEERS[task](x, index, nodes)} if task in PEERS and PEER in peers else {})


def _step(function: Callable[[Tensor], Tensor], x: Tensor, direction: str) -> Callable[[], Tensor]:
    if direction == FORWARD:
        return lambda: function(x)
    own = x.clone().requires_grad_()
    g = _sensitivity(function(x)).to(x.device)
    return lambda: torch.autograd.grad(function(own), own, g)[0]


def _sensitivity(values: Tensor) -> Tensor:
    return torch.randn(values.shape, generator=torch.Generator().manual_seed(3), dtype=values.dtype)


def _softmax(x: Tensor, index: Tensor, nodes: int) -> Tensor:
    from torch_geometric.utils import softmax

    return softmax(x, index, num_nodes=nodes)


def _logsumexp(x: Tensor, index: Tensor, nodes: int) -> Tensor:
    """As one composes it of torch_geometric's scatter."""
    from torch_geometric.utils import scatter

    top = scatter(x.detach(), index, 0, nodes, reduce="max")
    return scatter((x - top[index]).exp(), index, 0, nodes, reduce="sum").log() + top


PEERS = {"softmax": _softmax, "logsumexp": _logsumexp}  # torch_geometric has no sparsemax


# What is right ----------------------------------------------------------------------------------------------------------------


def _sparsemax(x: Tensor) -> Tensor:
    z = x.sort(descending=True).values
    candidates = (z.cumsum(0) - 1) / torch.arange(1, len(z) + 1)
    return (x - candidates[int((z > candidates).sum()) - 1]).relu()


DEFINITIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda x: x.exp() / x.exp().sum(),
    "logsumexp": lambda x: x.exp().sum(0, keepdim=True).log(),
    "sparsemax": _sparsemax,
}


class Definition:
    """What the definition gives in float64 at the first node of each length, or of so many lengths from short to long."""

    def __init__(self, task: str, direction: str, x: Tensor, index: Tensor, nodes: int) -> None:
        self.lengths, self.of_nodes = index.bincount(minlength=nodes), (task, direction) == ("logsumexp", FORWARD)
        order, ends = index.argsort(stable=True), self.lengths.cumsum(0).tolist()
        first = {length: node for node, length in reversed(list(enumerate(self.lengths.tolist()))) if length}
        known = sorted(first)
        places = torch.linspace(0, len(known) - 1, min(len(known), SAMPLED)).round().long().tolist()
        g = _sensitivity(torch.empty(nodes if task == "logsumexp" else len(x), dtype=x.dtype)).double()
        self.expected: list[tuple[Tensor, Tensor]] = []  # (places, values)
        for length in (known[place] for place in places):
            node = torch.tensor([first[length]])
            edges = order[ends[first[length]] - length : ends[first[length]]]
            with torch.enable_grad():
                own = x[edges].double().requires_grad_()
                value = DEFINITIONS[task](own)
                along = g[node if task == "logsumexp" else edges]
                value = value.detach() if direction == FORWARD else torch.autograd.grad(value, own, along)[0]
            self.expected.append((node if self.of_nodes else edges, value))
        self.tolerance = TOLERANCE[str(x.dtype).removeprefix("torch.")]

    def deviation(self, found: Tensor) -> float:
        """The largest error at a node, in units of the tolerance. Only the sum of a node without edges is infinite."""
        empty = (self.lengths == 0) & (found == -math.inf) if self.of_nodes else torch.tensor(False)
        if not bool((found.isfinite() | empty).all()):
            return math.inf
        errors = ((found[at].double() - value).abs().max() / value.abs().max().clamp(min=LEAST) for at, value in self.expected)
        return float(max(errors)) / self.tolerance


PACKAGES = {"cpu": (PEER,), "cuda": (PEER,)}
GRAPH = Group(_cases, by_trial(_trial), PACKAGES, passes=5, quick=2, extra=("torch-geometric",))
