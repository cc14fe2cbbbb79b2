r"""The loss of a softmax over a tree, −Σ log p(child | node) along the path of each label, without a loop over rows.

    node of two children, score s = w·h + b:      p(first) = σ(s), p(second) = σ(−s)
    node of more, scores s_i = w_i·h + b_i:       p(i) = e^{s_i}/Σ_j e^{s_j}

    ∂L/∂s = p − y at each node of the path, and 0 elsewhere.

Decisions at nodes of two are taken all at once; those at wider nodes node by node, where one product serves all rows that pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

from softmaxima.base.onnx import logsigmoid
from softmaxima.base.tracing import transforming
from softmaxima.engine.fused import fused
from softmaxima.heads.factored import blocks
from softmaxima.heads.trees import Tree
from softmaxima.losses.cross_entropy import cross_entropy
from softmaxima.maps.log_softmax import LOG_SOFTMAX

BLOCK = 2**20  # numbers that are made at a time
KEPT = 2**22  # numbers that the forward pass leaves to the backward pass, which computes those beyond again


@dataclass(frozen=True)
class Layer:
    """A tree with the parameters of its nodes: no row for a node of one child, one for two, and one for each of more children."""

    weight: Tensor  # [rows, features]
    bias: Tensor | None  # [rows], over the temperature, of the dtype that is computed in
    children: Tensor  # [edges], as of `Tree`
    counts: Tensor  # [nodes]
    first: Tensor  # [nodes], the first edge of each node
    row: Tensor  # [nodes], the first row of each node
    node: Tensor  # [edges], the node from which each edge goes
    leaf: Tensor  # [classes], the edge that leads to each class
    above: Tensor  # [edges + 1], the edge before each edge; their number where there is none
    sparse: bool

    @property
    def classes(self) -> int:
        return len(self.leaf)


TABLES = ("children", "counts", "first", "row", "node", "leaf", "above")  # what a `Layer` has of a tree


def rows_of(counts: Tensor) -> Tensor:
    """How many rows of parameters nodes of so many children have."""
    return counts - 1 + (counts > 2).long()


def tables(tree: Tree) -> dict[str, Tensor]:
    """The `TABLES` of a tree."""
    rows = rows_of(tree.counts)
    leaf, inner = tree.edge.split((tree.classes, tree.nodes))
    above = torch.cat((inner[tree.node], inner[:1]))
    return dict(zip(TABLES, (tree.children, tree.counts, tree.first, rows.cumsum(0) - rows, tree.node, leaf, above), strict=True))


@dataclass(frozen=True)
class Paths:
    """The decisions of a batch: at nodes of two children in the order of its rows, at wider ones in the order of nodes."""

    two: Tensor  # [m], the row of the batch
    row: Tensor  # [m], the row of the parameters
    sign: Tensor  # [m], 1 where the first child is taken, else −1
    many: Tensor  # [n], the row of the batch
    node: Tensor  # [n]
    place: Tensor  # [n], which child is taken
    widest: int  # children of a node

    def blocks(self) -> list[slice]:
        """Of the decisions at wider nodes."""
        return blocks(len(self.many), self.widest, BLOCK)


def paths(layer: Layer, labels: Tensor, left_out: Tensor | None, dtype: torch.dtype) -> Paths:
    """From the classes up to the root; rows that are left out have none."""
    edges = len(layer.children)
    edge = layer.leaf[labels]
    if left_out is not None:
        edge = edge.masked_fill(left_out, edges)
    found = [edge]
    while bool(((edge := layer.above[edge]) < edges).any()):
        found.append(edge)
    path = torch.stack(found, 1)  # [rows, depth]
    who, level = (path < edges).nonzero(as_tuple=True)
    edge = path[who, level]
    node = layer.node[edge]
    count, place = layer.counts[node], edge - layer.first[node]
    two, many = (count == 2).nonzero().squeeze(1), (count > 2).nonzero().squeeze(1)
    many = many[node[many].argsort()]
    widest = int(count[many].max()) if len(many) else 0
    return Paths(who[two], layer.row[node[two]], 1 - 2 * place[two].to(dtype), who[many], node[many], place[many], widest)


def path_losses(layer: Layer, states: Tensor, labels: Tensor, left_out: Tensor | None) -> Tensor:
    """−log p of each label [rows], of states [rows, features]; 0 where it is left out."""
    taken = paths(layer, labels, left_out, states.dtype)
    parts = (states, layer.weight) if layer.bias is None else (states, layer.weight, layer.bias)
    composite = lambda *parts: _composite(layer, taken, *parts)
    return composite(*parts) if transforming() else fused(_by_hand(layer, taken), composite, *parts)


def _composite(layer: Layer, taken: Paths, states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The losses in operations whose derivatives autograd knows, of any order."""
    weight = weight.to(states.dtype)  # before rows are taken, whose gradients are summed
    score = (states[taken.two] * weight[taken.row]).sum(-1)
    if bias is not None:
        score = score + bias[taken.row]
    losses = states.new_zeros(len(states)).index_add(0, taken.two, -logsigmoid(taken.sign * score))
    groups = list(_groups(layer, taken.node))
    if not groups:
        return losses
    rows = torch.cat([torch.arange(row, row + count, device=states.device) for _, row, count in groups])
    counts = [count for *_, count in groups]
    weights = weight[rows].split(counts)
    biases = [None] * len(groups) if bias is None else bias[rows].split(counts)
    own = states[taken.many]
    many = [
        cross_entropy(linear(own[part], w, b), taken.place[part], reduction="none")
        for (part, *_), w, b in zip(groups, weights, biases, strict=True)
    ]
    return losses.index_add(0, taken.many, torch.cat(many))


def _by_hand(layer: Layer, taken: Paths) -> Callable[..., tuple[Tensor, Any, tuple[Tensor, ...]]]:
    """The losses in blocks, and how they are pulled back; ∂L/∂s is kept, up to a limit."""

    def native(states: Tensor, *rest: Any) -> tuple[Tensor, Any, tuple[Tensor, ...]]:
        gradient = rest[-1]
        margin = taken.sign * two_scores(layer, states, taken.two, taken.row)
        losses = states.new_zeros(len(states)).index_add_(0, taken.two, -logsigmoid(margin))
        kept, left = [-taken.sign * torch.sigmoid(-margin)], KEPT
        for block in taken.blocks():
            log_p = _log_p(layer, states, taken, block)
            losses.index_add_(0, taken.many[block], log_p.gather(-1, taken.place[block].unsqueeze(-1)).squeeze(-1), alpha=-1)
            left -= log_p.numel()
            if gradient and left >= 0:
                kept.append(_slope(log_p, taken.place[block]))
        return losses, lambda g, *saved: _pull(layer, taken, g, *saved), tuple(kept) if gradient else ()

    return native


def _log_p(layer: Layer, states: Tensor, taken: Paths, block: slice) -> Tensor:
    """log p(child | node) [part, widest] of decisions at wider nodes."""
    return LOG_SOFTMAX(many_scores(layer, states[taken.many[block]], taken.node[block]))


def _slope(log_p: Tensor, place: Tensor) -> Tensor:
    """p − y, in the place of log p."""
    return log_p.exp_().scatter_add_(-1, place.unsqueeze(-1), log_p.new_full((len(place), 1), -1.0))


def _pull(layer: Layer, taken: Paths, g: Tensor, states: Tensor, _: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
    """∂⟨g, losses⟩/∂(states, weight, bias)."""
    two, *kept = rest if layer.bias is None else rest[1:]
    pulled, into = torch.zeros_like(states), _ParameterGradients(layer, taken, states.dtype)
    share = two * g[taken.two]
    for part in blocks(len(share), states.shape[-1], BLOCK):
        who, times = taken.two[part].unique_consecutive(return_counts=True)
        rows = layer.weight[taken.row[part]].to(states.dtype)
        pulled.index_add_(0, who, _weighted_sums(rows, torch.arange(len(rows), device=g.device), times, share[part]))
    into.add_two(share, states)
    for number, block in enumerate(taken.blocks()):
        who = taken.many[block]
        slope = kept[number] if number < len(kept) else _slope(_log_p(layer, states, taken, block), taken.place[block])
        slope, own = slope * g[who].unsqueeze(-1), states[who]
        own_pulled = torch.empty_like(own)
        for part, row, count in _groups(layer, taken.node[block]):
            torch.mm(slope[part, :count], layer.weight[row : row + count].to(own.dtype), out=own_pulled[part])
            into.add_many(row, slope[part, :count], own[part])
        pulled.index_add_(0, who, own_pulled)
    return pulled, *into.result()


class _ParameterGradients:
    """The gradient of the parameters: of all their rows, or, where it is sparse, of those that paths pass."""

    def __init__(self, layer: Layer, taken: Paths, dtype: torch.dtype) -> None:
        self.layer, self.taken, self.dtype = layer, taken, dtype
        self.sums, self.last = layer.weight.new_empty(0, dtype=dtype), -1  # of the node that came last, and its row
        self.order = taken.row.argsort()
        self.two, self.times = taken.row[self.order].unique_consecutive(return_counts=True)
        self.slots = self.two
        self.slot: dict[int, int] = {}  # of the rows of wider nodes
        height = len(layer.weight)
        if layer.sparse:
            groups = list(_groups(layer, taken.node))
            height = len(self.two)
            self.slots = torch.arange(height, device=self.two.device)
            for _, row, count in groups:
                self.slot[row] = height
                height += count
            rows = [torch.arange(row, row + count, device=self.two.device) for _, row, count in groups]
            self.rows = torch.cat((self.two, *rows))
        self.weight = _zeros(layer.weight, height)
        self.bias = None if layer.bias is None else _zeros(layer.bias, height)

    def add_two(self, share: Tensor, states: Tensor) -> None:
        """Σ share · h at nodes of two children."""
        who, share = self.taken.two[self.order], share[self.order]
        last = self.times.cumsum(0)
        for part in blocks(len(self.two), states.shape[-1], BLOCK):
            own = slice(int(last[part.start] - self.times[part.start]), int(last[part.stop - 1]))
            sums = _weighted_sums(states, who[own], self.times[part], share[own])
            self.weight[self.slots[part]] = sums.to(self.weight.dtype)
        if self.bias is not None:
            which = torch.repeat_interleave(self.times)
            self.bias[self.slots] = share.new_zeros(len(self.two)).index_add_(0, which, share)

    def add_many(self, row: int, slope: Tensor, states: Tensor) -> None:
        """Σ slope hᵀ at a wider node whose parameters begin in this row; the same node only one time after the other."""
        slot, count = self.slot.get(row, row), slope.shape[1]
        weight = self.weight[slot : slot + count]
        if row != self.last:
            self.sums = weight if weight.dtype == self.dtype else torch.empty_like(weight, dtype=self.dtype)
        self.sums.addmm_(slope.T, states, beta=float(row == self.last))
        weight.copy_(self.sums)
        self.last = row
        if self.bias is not None:
            self.bias[slot : slot + count].add_(slope.sum(0))

    def result(self) -> tuple[Tensor, ...]:
        found = [(self.weight, self.layer.weight)]
        if self.bias is not None and self.layer.bias is not None:
            found.append((self.bias, self.layer.bias))
        if self.layer.sparse:
            rows = self.rows.unsqueeze(0)
            return tuple(torch.sparse_coo_tensor(rows, made, like.shape, check_invariants=False) for made, like in found)
        return tuple(made for made, _ in found)


def two_scores(layer: Layer, states: Tensor, who: Tensor, row: Tensor) -> Tensor:
    """w·h + b of rows of parameters and rows of states, a pair each."""
    scores = states.new_empty(len(row))
    for part in blocks(len(row), states.shape[-1], BLOCK):
        scores[part] = torch.einsum("pd,pd->p", states[who[part]], layer.weight[row[part]].to(states.dtype))
    return scores if layer.bias is None else scores.add_(layer.bias[row])


def many_scores(layer: Layer, states: Tensor, node: Tensor) -> Tensor:
    """[rows, widest] of states, each at its node; −∞ beyond the node's children. The nodes come in order."""
    count = layer.counts[node]
    narrowest, widest = (int(n) for n in count.aminmax())
    scores = states.new_empty(len(states), widest)
    if narrowest < widest:
        scores.fill_(-math.inf)
    for part, row, count in _groups(layer, node):
        weight, out = layer.weight[row : row + count].to(states.dtype), scores[part, :count]
        if layer.bias is None:
            torch.mm(states[part], weight.T, out=out)
        else:
            torch.addmm(layer.bias[row : row + count], states[part], weight.T, out=out)
    return scores


def _groups(layer: Layer, node: Tensor) -> Iterator[tuple[slice, int, int]]:
    """(the decisions, the first row of the parameters, how many) of each node among those that come in order."""
    distinct, times = node.unique_consecutive(return_counts=True)
    start = 0
    for stop, row, count in torch.stack((times.cumsum(0), layer.row[distinct], layer.counts[distinct]), 1).tolist():
        yield slice(start, stop), row, count
        start = stop


def _weighted_sums(rows: Tensor, index: Tensor, times: Tensor, weights: Tensor) -> Tensor:
    """Σ weights · rows[index] of groups that come one after the other and have so many entries each."""
    return torch.embedding_bag(rows, index, times.cumsum(0) - times, False, 0, False, weights)[0]


def _zeros(like: Tensor, height: int) -> Tensor:
    """Rows of zeros, on the CPU in memory that the system gives as zeros: to write 0 in 10⁶ rows of 128 takes 0.2 s."""
    shape = (height, *like.shape[1:])
    if not like.is_cpu:
        return like.new_zeros(shape)
    size = math.prod(shape)
    return torch.from_numpy(np.zeros(max(1, size) * like.element_size(), np.uint8)).view(like.dtype)[:size].view(shape)
