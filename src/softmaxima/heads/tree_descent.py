r"""From the root of a tree of classes down: the logarithms of all probabilities, the best classes, and classes that are drawn.

    log p(c) = Σ log p(child | node) along the path of c         log p(c) ≤ log p(node) for every class c below a node

A node no more probable than k classes that were found has none of the best k below it, and is not looked at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from softmaxima.base.onnx import logsigmoid
from softmaxima.heads.factored import draw_each
from softmaxima.heads.tree_paths import BLOCK, Layer, many_scores, two_scores
from softmaxima.maps.log_softmax import LOG_SOFTMAX

HELD = 2**24  # numbers that are made at a time

# A node that is looked at alone costs as much as NODE classes, and CHILD for each child, where all classes are computed at once.
NODE, CHILD = 64, 8
OPEN = 4096  # nodes of a row that may be left to look at


# All classes ----------------------------------------------------------------------------------------------------------------


def log_prob(layer: Layer, levels: list[int], states: Tensor) -> Tensor:
    """log p of all classes [rows, classes], of states [rows, features]; `levels` are the tree's."""
    kinds, layer = _kinds(layer), replace(layer, weight=layer.weight.to(states.dtype))  # once: its gradients add up in that
    step = max(1, HELD // (4 * len(layer.children)), len(states) // 32)  # so that it is little beside what is returned
    found = [_log_prob(layer, levels, kinds, part) for part in states.split(step)]
    return found[0] if len(found) == 1 else torch.cat(found)


class _Kind(NamedTuple):
    """The nodes of so many children."""

    children: int
    rows: Tensor  # [nodes, rows of each]
    edges: Tensor  # [nodes, children]


def _kinds(layer: Layer) -> list[_Kind]:
    kinds = []
    for count in layer.counts.unique().tolist():
        nodes = (layer.counts == count).nonzero()
        place = torch.arange(count, device=nodes.device)
        rows = place if count > 2 else place[: count - 1]
        kinds.append(_Kind(count, layer.row[nodes] + rows, layer.first[nodes] + place))
    return kinds


def _log_prob(layer: Layer, levels: list[int], kinds: list[_Kind], states: Tensor) -> Tensor:
    decisions = _decisions(kinds, linear(states, layer.weight, layer.bias))
    total, found = states.new_zeros(len(states), 1), []  # log p of the nodes of a level
    for a, b in pairwise(levels):
        edges = slice(int(layer.first[a]), int(layer.first[b - 1] + layer.counts[b - 1]))
        below = total.index_select(1, layer.node[edges] - a) + decisions[:, edges]
        found.append(below)
        total = below.index_select(1, (layer.children[edges] >= layer.classes).nonzero().squeeze(1))
    return torch.cat(found, 1).index_select(1, layer.leaf)


def _decisions(kinds: list[_Kind], scores: Tensor) -> Tensor:
    """log p(child | node) of each edge [rows, edges], of the scores of all rows of parameters."""
    found = []
    for count, rows, _ in kinds:
        own = (scores if len(kinds) == 1 else scores.index_select(1, rows.flatten())).unflatten(1, rows.shape)
        if count == 1:
            own = own.sum(2, keepdim=True)  # of nothing
        elif count == 2:
            own = torch.cat((logsigmoid(own), logsigmoid(-own)), 2)
        else:
            own = LOG_SOFTMAX(own)
        found.append(own.flatten(1))
    if len(kinds) == 1:
        return found[0]
    return torch.cat(found, 1).index_select(1, torch.cat([kind.edges.flatten() for kind in kinds]).argsort())


# Nodes one by one -----------------------------------------------------------------------------------------------------------


def _children(layer: Layer, states: Tensor, who: Tensor, node: Tensor) -> Tensor:
    """log p(child | node) [pairs, widest] of rows of states and nodes, a pair each; −∞ beyond the node's children."""
    count = layer.counts[node]
    found = states.new_full((len(node), int(count.max())), -math.inf)
    found[count == 1, 0] = 0.0
    two = (count == 2).nonzero().squeeze(1)
    if len(two):
        score = two_scores(layer, states, who[two], layer.row[node[two]])
        found[two, 0], found[two, 1] = logsigmoid(score), logsigmoid(-score)
    many = (count > 2).nonzero().squeeze(1)
    if len(many):
        many = many[node[many].argsort()]
        found[many] = LOG_SOFTMAX(many_scores(layer, states[who[many]], node[many]))
    return found


def draw(layer: Layer, states: Tensor, times: int, generator: torch.Generator | None) -> Tensor:
    """Classes [times, rows], independent and by their probabilities."""
    nodes = len(layer.counts)
    who = torch.arange(len(states), device=states.device).repeat(times)
    classes, drawing, node = torch.empty_like(who), torch.arange(len(who), device=who.device), torch.zeros_like(who)
    while len(drawing):
        width = max(int(layer.counts[node].max()), states.shape[1])
        log_p = lambda pair: _children(layer, states, pair // nodes, pair % nodes)
        place = draw_each(who[drawing] * nodes + node, log_p, width, BLOCK, generator)
        child = layer.children[layer.first[node] + place]
        is_class = child < layer.classes
        classes[drawing[is_class]] = child[is_class]
        drawing, node = drawing[~is_class], child[~is_class] - layer.classes
    return classes.view(times, len(states))


# The best -------------------------------------------------------------------------------------------------------------------


def best(layer: Layer, levels: list[int], states: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(log p, the classes) of the k most probable classes of each row, [rows, k], the most probable first."""
    edges, nodes, widest = len(layer.children), len(layer.counts), int(layer.counts.max())
    open_nodes = min(OPEN, edges * nodes // (NODE * nodes + CHILD * edges))
    step = max(1, HELD // (4 * max(k * widest, open_nodes)))
    found = [_best(layer, levels, part, k, open_nodes, HELD // (4 * step * widest)) for part in states.split(step)]
    return torch.cat([log_p for log_p, _ in found]), torch.cat([classes for _, classes in found])


def _best(layer: Layer, levels: list[int], states: Tensor, k: int, open_nodes: int, widest: int) -> tuple[Tensor, Tensor]:
    """First down to k classes of each row, the best children each time; then, of all nodes left out, those that may have better.

    Of these so many may be left, or all classes of the row are computed, and `widest` are looked at together.
    """
    rows = len(states)
    search = _Search(layer, states, states.new_full((rows, k), -math.inf), layer.children.new_zeros(rows, k))
    nearest = _Nodes(states.new_zeros(rows, 1), layer.children.new_zeros(rows, 1))
    left = nearest.part(slice(0))
    while nearest.width:
        left = left.joined(nearest.part(slice(k, None)))
        nearest = search.promising(search.look(nearest.part(slice(k))))
    left, width = search.promising(left), k
    whole = torch.zeros(rows, dtype=torch.bool, device=states.device)
    while left.width:
        too_many = (left.log_p > search.least).sum(1) > open_nodes
        whole |= too_many
        left = _Nodes(left.log_p.masked_fill(too_many.unsqueeze(1), -math.inf), left.node)
        left = search.promising(left.part(slice(width, None)).joined(search.look(left.part(slice(width)))))
        width = max(k, min(2 * width, widest))
    log_p, classes = search.log_p, search.classes
    whole |= search.least.squeeze(1) == -math.inf  # not so many were found
    if bool(whole.any()):
        log_p[whole], classes[whole] = log_prob(layer, levels, states[whole]).topk(k)
    return log_p, classes


@dataclass(frozen=True)
class _Nodes:
    """Nodes of each row [rows, width], with −∞ where there is none."""

    log_p: Tensor
    node: Tensor

    @property
    def width(self) -> int:
        return self.node.shape[1]

    def part(self, columns: slice) -> _Nodes:
        return _Nodes(self.log_p[:, columns], self.node[:, columns])

    def joined(self, others: _Nodes) -> _Nodes:
        return _Nodes(torch.cat((self.log_p, others.log_p), 1), torch.cat((self.node, others.node), 1))


@dataclass
class _Search:
    """The best classes so far, [rows, k]."""

    layer: Layer
    states: Tensor
    log_p: Tensor
    classes: Tensor

    @property
    def least(self) -> Tensor:
        return self.log_p[:, -1:]

    def promising(self, nodes: _Nodes) -> _Nodes:
        """Those that may have a better class below them, the most probable first."""
        width = int((nodes.log_p > self.least).sum(1).max()) if nodes.width and len(nodes.log_p) else 0
        log_p, place = nodes.log_p.topk(width)
        return _Nodes(log_p, nodes.node.gather(1, place))

    def look(self, nodes: _Nodes) -> _Nodes:
        """The inner nodes among the children; the classes among them are taken note of."""
        pair = (nodes.log_p > self.least).flatten().nonzero().squeeze(1)
        if not len(pair):
            return nodes.part(slice(0))
        node, classes, rows = nodes.node.flatten()[pair], self.layer.classes, len(self.states)
        own = _children(self.layer, self.states, pair // nodes.width, node) + nodes.log_p.flatten()[pair].unsqueeze(1)
        edge = self.layer.first[node].unsqueeze(1) + torch.arange(own.shape[1], device=own.device)
        child = self.layer.children[edge.clamp_max(len(self.layer.children) - 1)]
        shape = (nodes.node.numel(), own.shape[1])
        log_p = own.new_full(shape, -math.inf).index_copy_(0, pair, own).view(rows, -1)
        child = child.new_zeros(shape).index_copy_(0, pair, child).view(rows, -1)
        is_class = child < classes
        found = torch.cat((self.log_p, log_p.masked_fill(~is_class, -math.inf)), 1)
        self.log_p, place = found.topk(self.log_p.shape[1])
        self.classes = torch.cat((self.classes, child), 1).gather(1, place)
        return _Nodes(log_p.masked_fill(is_class, -math.inf), child - classes)
