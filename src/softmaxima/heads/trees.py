r"""Trees of classes, for a softmax that decides node by node: the classes are the leaves, c = 0, …, V − 1.

    L = Σ_c p(c) · depth(c)        is the number of decisions on the way to a class, on average.

Huffman's tree has the smallest L of all trees of its branching b: H ≤ L < H + 1 for the entropy H of p > 0 in units of log b.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softmaxima.base.arguments import as_tensor, check_values
from softmaxima.base.numbers import check_count
from softmaxima.base.public import public


@public
@dataclass(frozen=True, eq=False, repr=False)
class Tree:
    """A tree whose leaves are the classes 0, …, V − 1; its inner nodes are numbered level by level, the root is 0.

    children: what the edges lead to, node by node: c for the class c, V + m for the inner node m; int64 of V + nodes − 1 entries.
    counts: how many children each inner node has, from 1; int64.

    Made by `balanced`, `huffman`, `clusters`, `of` nested lists or `from_parents`. Raises TypeError or ValueError for what is no
    tree of the classes.

    >>> from softmaxima.heads.trees import Tree
    >>> tree = Tree.of([0, [3, [1, 2]]])
    >>> tree
    Tree(classes=4, nodes=3, depth=3)
    >>> tree.depths
    tensor([1, 3, 3, 2])
    """

    children: Tensor
    counts: Tensor

    def __post_init__(self) -> None:
        children, counts = (as_integers("Tree", what, getattr(self, what)) for what in ("children", "counts"))
        edges, nodes = children.size, counts.size
        classes = edges - nodes + 1
        if counts.min() < 1 or counts.sum() != edges:
            got = f"{nodes} counts from {counts.min()} with the sum {counts.sum()}"
            raise ValueError(f"Tree: counts must hold from 1 for each inner node, and sum to the {edges} children; got {got}")
        inner = children >= classes
        _check_classes("Tree", children[~inner], classes)
        if not np.array_equal(children[inner], classes + np.arange(1, nodes)):
            raise ValueError("Tree: children must hold the inner nodes in their order, each but the root; call Tree.from_parents")
        late = np.flatnonzero(np.flatnonzero(inner) >= np.cumsum(counts)[:-1])  # whose parent is no earlier node
        if late.size:
            raise ValueError(f"Tree: each inner node must come after its parent, but node {late[0] + 1} is under itself")
        for what, numbers in (("children", children), ("counts", counts)):
            object.__setattr__(self, what, torch.from_numpy(numbers))

    @staticmethod
    def balanced(classes: int, branching: int = 2) -> Tree:
        """The tree of the smallest depth ⌈log_b V⌉, whose leaves from left to right are 0, 1, …; near each other are near numbers.

        Each node parts its classes among b children as equally as can be.

        >>> from softmaxima.heads.trees import Tree
        >>> Tree.balanced(5).nested()
        [[[0, 1], 2], [3, 4]]
        """
        name = "Tree.balanced"
        classes, branching = check_count(name, "classes", classes), check_count(name, "branching", branching, 2)
        branching = min(branching, max(classes, 2))  # so that it is an int64
        starts, sizes = np.zeros(1, np.int64), np.array([classes])
        children, counts, nodes = [], [], 1
        while sizes.size:
            parts = np.minimum(sizes, branching)
            counts.append(parts)
            of, place = _ragged(parts)
            share, more = np.divmod(sizes[of], parts[of])
            starts, sizes = starts[of] + place * share + np.minimum(place, more), share + (place < more)
            inner = sizes > 1
            children.append(np.where(inner, classes + nodes - 1 + np.cumsum(inner), starts))
            starts, sizes, nodes = starts[inner], sizes[inner], nodes + int(inner.sum())
        return _tree(children, counts)

    @staticmethod
    def huffman(frequencies: Any, branching: int = 2) -> Tree:
        """The tree of the smallest mean depth Σ f_c depth(c)/Σ f_c among those of this branching, after Huffman (1952).

        Args:
            frequencies: f, one finite number of at least 0 for each class, one of them above 0; in any order.
            branching: how many children a node has at most; one node near the bottom may have fewer.

        Cost: a sort, and one step in Python a class, 0.6 s for 10⁶ classes. Among equals the leaf comes first, so that the depth is
        the smallest too.

        >>> import torch
        >>> from softmaxima.heads.trees import Tree
        >>> Tree.huffman(torch.tensor([1, 5, 2, 1])).nested()
        [1, [2, [0, 3]]]
        """
        name = "Tree.huffman"
        weights = check_frequencies(name, frequencies)
        branching = check_count(name, "branching", branching, 2)
        classes = weights.size
        order = np.argsort(weights, kind="stable")
        merges = max(1, -(-(classes - 1) // (branching - 1)))
        leaves = [*(weights[order] / weights.max()).tolist(), np.inf]
        sums = [np.inf] * (merges + 1)
        parents = np.empty(classes + merges, np.int64)
        leaf, merged = [0] * classes, [-1] * merges
        first = second = 0
        width = classes - (merges - 1) * (branching - 1)  # so that all later merges are of `branching`
        for new in range(merges):
            total = 0.0
            for _ in range(width):
                if leaves[first] <= sums[second]:
                    total += leaves[first]
                    leaf[first] = new
                    first += 1
                else:
                    total += sums[second]
                    merged[second] = new
                    second += 1
            sums[new] = total
            width = branching
        parents[order] = classes + np.array(leaf)
        parents[classes:] = classes + np.array(merged)
        parents[-1] = -1
        return _levelled(name, parents, classes)

    @staticmethod
    def clusters(classes: int, clusters: int | None = None, *, frequencies: Any = None) -> Tree:
        """A tree of two levels: clusters of classes, ⌈√V⌉ of them where their number is not given.

        Without frequencies the classes are cut in their order into clusters of equal size; with them by falling frequency into
        clusters of Σ √f as equal as can be: frequent classes are in small clusters.

        Neither rule is an optimum. Σ √f is equal where Σ_c f_c · (size of its cluster) is smallest in the limit of so many classes
        that f changes little within a cluster: by Zipf's law that sum is 0.2 % above the smallest for 1000 classes in 32 clusters
        and 1 % for 100 in 10, but 14 % for f_c = 0.9ᶜ, 200 classes in 15. And √V clusters read the fewest rows, clusters and the
        classes of one together, where all classes are as frequent; by Zipf's law fewer are better, 23 for 1000 classes, by 6 %.

        Source: Goodman (2001), arXiv:cs/0108006; the cut by √f as in RNNLM, Mikolov et al. (2011).

        >>> from softmaxima.heads.trees import Tree
        >>> Tree.clusters(5).nested()
        [[0, 1], [2, 3], [4]]
        """
        name = "Tree.clusters"
        classes = check_count(name, "classes", classes)
        if clusters is None:
            clusters = int(np.ceil(np.sqrt(classes)))
        clusters = check_count(name, "clusters", clusters)
        if clusters > classes:
            raise ValueError(f"{name}: clusters must be at most the {classes} classes, got {clusters}")
        if frequencies is None:
            order, mass = np.arange(classes), np.arange(1.0, classes + 1)
        else:
            weights = check_frequencies(name, frequencies, classes)
            order = np.argsort(-weights, kind="stable")
            mass = np.cumsum(np.sqrt(weights[order]))
        place = np.arange(1, clusters)
        cuts = np.searchsorted(mass, mass[-1] * place / clusters * (1 - 1e-12)) + 1
        cuts = np.minimum(place + np.maximum.accumulate(cuts - place), classes - clusters + place)  # one class at least in each
        sizes = np.diff(np.concatenate(([0], cuts, [classes])))
        inner = classes + np.arange(1, clusters + 1)
        return _tree([inner, order], [np.array([clusters]), sizes])

    @staticmethod
    def of(nested: Any) -> Tree:
        """A tree as it is written: a node is a list of its children, a class an int.

        Raises TypeError or ValueError for a class that is missing or there twice, a list without children, and one within itself.

        >>> from softmaxima.heads.trees import Tree
        >>> Tree.of([[0, 1, 2], [3, 4]])
        Tree(classes=5, nodes=3, depth=2)
        """
        name = "Tree.of"
        if not isinstance(nested, (list, tuple)):
            raise TypeError(f"{name}: the tree must be a list of children, got {type(nested).__name__}")
        nodes, seen, children, counts = [nested], {id(nested)}, [], []
        for node in nodes:  # which grows
            if not node:
                raise ValueError(f"{name}: each list must have children, got an empty one")
            counts.append(len(node))
            for child in node:
                if not isinstance(child, (list, tuple)):
                    children.append(_as_class(name, child))
                elif id(child) in seen:
                    raise ValueError(f"{name}: each list must be in the tree once, got one twice or within itself: {_brief(child)}")
                else:
                    children.append(-len(nodes))
                    nodes.append(child)
                    seen.add(id(child))
        edges = np.array(children)
        classes = edges.size - len(nodes) + 1
        _check_classes(name, edges[edges >= 0], classes)
        return _tree([np.where(edges < 0, classes - edges, edges)], [np.array(counts)])

    @staticmethod
    def from_parents(parents: Any) -> Tree:
        """A tree of which each node names its parent, −1 for the root.

        Nodes are numbered from 0: first the classes, which are the nodes without children, then the inner nodes in any order.
        Children are in the order of their numbers. `tree.parents` is such an array.

        Raises TypeError or ValueError, naming a node, where there is no root or there are two, where a node's parents go in a
        circle, and where an inner node has no children.

        >>> import torch
        >>> from softmaxima.heads.trees import Tree
        >>> Tree.from_parents(torch.tensor([4, 3, 3, 4, -1])).nested()
        [0, [1, 2]]
        """
        name = "Tree.from_parents"
        above = as_integers(name, "parents", parents)
        beyond = np.flatnonzero((above < -1) | (above >= above.size))
        if beyond.size:
            node = beyond[0]
            raise ValueError(
                f"{name}: parents must be nodes 0 … {above.size - 1}, or −1 of the root; got {above[node]} of node {node}"
            )
        roots = np.flatnonzero(above == -1)
        if roots.size != 1:
            got = "none" if roots.size == 0 else f"the nodes {roots[0]} and {roots[1]}"
            raise ValueError(f"{name}: one node must be the root, with the parent −1; got {got}")
        is_inner = np.zeros(above.size, bool)
        is_inner[above[above >= 0]] = True
        classes = int((~is_inner).sum())
        if is_inner[:classes].any():
            node, leaf = np.flatnonzero(is_inner)[0], np.flatnonzero(~is_inner)[-1]
            raise ValueError(
                f"{name}: the classes are the nodes without children, and must have the first numbers; node {leaf} has none, "
                f"but node {node} has; number the classes 0 … {classes - 1}, or give node {leaf} children"
            )
        if roots[0] < classes:
            raise ValueError(f"{name}: the root must have children, but node {roots[0]} has none")
        return _levelled(name, above, classes)

    @property
    def classes(self) -> int:
        """V."""
        return len(self.children) - len(self.counts) + 1

    @property
    def nodes(self) -> int:
        """How many inner nodes there are."""
        return len(self.counts)

    @property
    def depth(self) -> int:
        """The largest number of edges from the root to a class."""
        return len(self.levels) - 1

    @cached_property
    def levels(self) -> list[int]:
        """The first node of each level, and at the end the number of nodes."""
        inner = np.cumsum(self.children.numpy() >= self.classes)
        last = np.cumsum(self.counts.numpy())
        levels = [0, 1]
        while (end := 1 + int(inner[last[levels[-1] - 1] - 1])) > levels[-1]:
            levels.append(end)
        return levels

    @cached_property
    def node(self) -> Tensor:
        """The node from which each edge goes."""
        return torch.repeat_interleave(self.counts)

    @cached_property
    def first(self) -> Tensor:
        """The first edge of each node."""
        return self.counts.cumsum(0) - self.counts

    @cached_property
    def edge(self) -> Tensor:
        """The edge that leads to each class, and then to each inner node; of the root, to which none leads, their number."""
        edges = len(self.children)
        found = torch.full((edges + 1,), edges)
        found[self.children] = torch.arange(edges)
        return found

    @cached_property
    def depths(self) -> Tensor:
        """How many edges there are from the root to each class."""
        sizes = torch.tensor([b - a for a, b in pairwise(self.levels)])
        return torch.repeat_interleave(sizes)[self.node[self.edge[: self.classes]]] + 1

    @property
    def parents(self) -> Tensor:
        """The parent of each node, with the classes before the inner nodes; −1 of the root."""
        above = torch.cat((self.node + self.classes, torch.tensor([-1])))
        return above[self.edge]

    def nested(self) -> list[Any]:
        """The tree as lists within lists, which `of` takes."""
        children, first, made = self.children.tolist(), [*self.first.tolist(), len(self.children)], []
        for a, b in reversed(list(pairwise(first))):  # from the last node, so that a node comes after its children
            made.append([c if c < self.classes else made[self.classes + self.nodes - 1 - c] for c in children[a:b]])
        return made[-1]

    def __repr__(self) -> str:
        return f"Tree(classes={self.classes}, nodes={self.nodes}, depth={self.depth})"


def check_frequencies(name: str, frequencies: Any, classes: int | None = None) -> np.ndarray:
    """One finite number of at least 0 for each class, not all 0, in float64."""
    values = _as_tensor(name, "frequencies", frequencies)
    shaped = values.ndim == 1 and len(values) > 0 and classes in (None, len(values))
    if not shaped or values.is_complex() or values.dtype == torch.bool:
        of, got = "class" if classes is None else f"of the {classes} classes", f"{values.dtype} of shape {tuple(values.shape)}"
        raise ValueError(f"{name}: frequencies must hold one number for each {of}, got {got}")
    numbers = values.detach().cpu().double().numpy()
    wrong = np.flatnonzero(~((numbers >= 0) & (numbers < np.inf)))
    if wrong.size:
        raise ValueError(f"{name}: frequencies must be finite and at least 0, got {numbers[wrong[0]]} for class {wrong[0]}")
    if numbers.max() == 0:
        raise ValueError(f"{name}: frequencies must not all be 0; leave them out where none is known")
    return numbers


def _tree(children: Sequence[np.ndarray], counts: Sequence[np.ndarray]) -> Tree:
    return Tree(*(torch.from_numpy(np.concatenate(parts).astype(np.int64)) for parts in (children, counts)))


def _levelled(name: str, parents: np.ndarray, classes: int) -> Tree:
    """The tree of parents that are inner nodes, −1 of one."""
    nodes = parents.size - classes
    below = np.argsort(parents, kind="stable")[1:]  # of each inner node its children, one node after the other
    counts = np.bincount(parents[below] - classes, minlength=nodes)
    first = np.cumsum(counts) - counts
    level = np.flatnonzero(parents[classes:] == -1)
    order, children = [], []
    while level.size:
        order.append(level)
        of, place = _ragged(counts[level])
        edges = below[first[level][of] + place]
        children.append(edges)
        level = edges[edges >= classes] - classes
    reached = np.concatenate(order)
    if reached.size < nodes:
        lost = np.setdiff1d(np.arange(nodes), reached)[0] + classes
        raise ValueError(f"{name}: each node must lead to the root, but the parents of node {lost} go in a circle")
    number = np.empty(nodes, np.int64)
    number[reached] = np.arange(nodes)
    edges = np.concatenate(children)
    inner = edges >= classes
    edges[inner] = classes + number[edges[inner] - classes]
    return _tree([edges], [counts[reached]])


def _ragged(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of groups with these counts, one after the other: (which group each entry is of, its place there)."""
    of = np.repeat(np.arange(counts.size), counts)
    return of, np.arange(of.size) - (np.cumsum(counts) - counts)[of]


def _check_classes(name: str, given: np.ndarray, classes: int) -> None:
    """Each class must be there once."""
    number, times = np.unique(given, return_counts=True)
    if (times > 1).any():
        raise ValueError(f"{name}: each class must be there once, got class {number[times > 1][0]} {times[times > 1][0]} times")
    if not np.array_equal(number, np.arange(classes)):
        missing = np.setdiff1d(np.arange(classes), number)[0]
        raise ValueError(f"{name}: {classes} leaves must be the classes 0 … {classes - 1}, but class {missing} is missing")


def _as_class(name: str, child: Any) -> int:
    try:
        number = -1 if isinstance(child, bool) else operator.index(child)
    except (TypeError, ValueError):
        number = -1
    if number < 0:
        raise TypeError(f"{name}: a child must be a class, an int of at least 0, or a list of children; got {_brief(child)}")
    return number


def as_integers(name: str, what: str, values: Any) -> np.ndarray:
    """A vector of int64, copied."""
    numbers = _as_tensor(name, what, values)
    integers = not (numbers.is_floating_point() or numbers.is_complex() or numbers.dtype == torch.bool)
    if not integers or numbers.ndim != 1 or len(numbers) == 0:
        raise TypeError(f"{name}: {what} must be one row of integers, got {numbers.dtype} of shape {tuple(numbers.shape)}")
    return numbers.detach().cpu().numpy().astype(np.int64)


def _as_tensor(name: str, what: str, values: Any) -> Tensor:
    if isinstance(values, (list, tuple)):
        try:
            values = np.asarray(values)
        except (TypeError, ValueError, RuntimeError):  # lists of several lengths, tensors of more than one number
            raise TypeError(f"{name}: {what} must be one row of numbers, got {_brief(values)}; give a list of numbers") from None
    return check_values(name, what, as_tensor(name, what, values))


def _brief(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:60] + "…"
