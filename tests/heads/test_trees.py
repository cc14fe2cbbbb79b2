"""Trees of classes: their shapes beside literal definitions, and what is no tree."""

from __future__ import annotations

import heapq
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from softmaxima.heads.trees import Tree

counts = st.lists(st.one_of(st.integers(1, 1000), st.sampled_from([0, 1, 2, 4, 2**40])), min_size=1, max_size=40).filter(any)
nested_trees = st.recursive(st.none(), lambda children: st.lists(children, min_size=1, max_size=4), max_leaves=20).filter(
    lambda tree: tree is not None
)


def numbered(tree: Any, classes: list[int]) -> Any:
    """The tree with the classes, which are taken from the end, in the place of its leaves."""
    return classes.pop() if tree is None else [numbered(child, classes) for child in tree]


def leaves(tree: Any) -> int:
    return 1 if tree is None else sum(leaves(child) for child in tree)


def depths(nested: list[Any], depth: int = 1) -> dict[int, int]:
    found: dict[int, int] = {}
    for child in nested:
        found |= depths(child, depth + 1) if isinstance(child, list) else {child: depth}
    return found


def smallest_mean_depth(frequencies: list[int], branching: int) -> float:
    """Of Huffman's algorithm as it is told: merge the rarest, again and again."""
    heap = list(frequencies)
    while (len(heap) - 1) % (branching - 1):
        heap.append(0)  # so that all merges are of as many
    heapq.heapify(heap)
    total = 0
    while len(heap) > 1:
        merged = sum(heapq.heappop(heap) for _ in range(branching))
        heapq.heappush(heap, merged)
        total += merged
    return total / sum(frequencies)


@given(shape=nested_trees, order=st.randoms(use_true_random=False))
def test_a_tree_is_what_is_written(shape: Any, order: Any):
    classes = list(range(leaves(shape)))
    order.shuffle(classes)
    nested = numbered(shape, classes)
    tree = Tree.of(nested)
    assert tree.nested() == nested
    expected = depths(nested)
    assert tree.depths.tolist() == [expected[c] for c in range(tree.classes)]
    assert tree.depth == max(expected.values())
    again = Tree.from_parents(tree.parents)
    assert torch.equal(again.depths, tree.depths)
    assert torch.equal(again.counts.sort().values, tree.counts.sort().values)


@given(shape=nested_trees, order=st.randoms(use_true_random=False))
def test_inner_nodes_may_have_any_numbers(shape: Any, order: Any):
    classes = leaves(shape)
    tree = Tree.of(numbered(shape, list(range(classes))))
    inner = list(range(classes, classes + tree.nodes))
    order.shuffle(inner)
    number = torch.tensor([*range(classes), *inner])
    parents = torch.empty_like(tree.parents)
    parents[number] = torch.where(tree.parents < 0, -1, number[tree.parents])
    again = Tree.from_parents(parents)
    assert torch.equal(again.depths, tree.depths)
    assert again.nodes == tree.nodes


@given(classes=st.integers(1, 300), branching=st.integers(2, 7))
def test_a_balanced_tree_has_the_smallest_depth_and_its_classes_in_order(classes: int, branching: int):
    tree = Tree.balanced(classes, branching)
    expected = next(depth for depth in itertools.count(1) if branching**depth >= classes)
    assert tree.depth == expected
    assert int(tree.counts.max()) <= branching
    flat = tree.nested()
    while any(isinstance(child, list) for child in flat):
        flat = [c for child in flat for c in (child if isinstance(child, list) else [child])]
    assert flat == list(range(classes))


@given(frequencies=counts, branching=st.integers(2, 5))
def test_huffmans_tree_has_the_mean_depth_of_the_literal_algorithm(frequencies: list[int], branching: int):
    tree = Tree.huffman(frequencies, branching)
    f = torch.tensor(frequencies, dtype=torch.float64)
    mean = float((f * tree.depths).sum() / f.sum())
    assert int(tree.counts.max()) <= branching
    if len(frequencies) == 1:
        assert mean == 1
        return
    assert mean == pytest.approx(smallest_mean_depth(frequencies, branching), rel=1e-12)
    p = f / f.sum()
    entropy = float(torch.special.entr(p).sum()) / math.log(branching)
    assert entropy - 1e-12 <= mean
    assert mean < entropy + 1 or 0 in frequencies


def test_huffmans_tree_is_of_frequencies_of_any_kind_and_size():
    expected = Tree.huffman([1, 2, 4, 8]).nested()
    for scale in (1e-300, 1.0, 1e307):
        frequencies = scale * np.array([1.0, 2.0, 4.0, 8.0])
        for kind in (frequencies, torch.from_numpy(frequencies), list(frequencies)):
            assert Tree.huffman(kind).nested() == expected
    assert Tree.huffman(torch.tensor([1, 2, 4, 8], dtype=torch.int32)).nested() == expected
    assert Tree.huffman([0.0, 0.0, 0.0, 1.0]).depth == 3
    assert Tree.huffman([1.0] * 64).depth == 6


@given(frequencies=counts, share=st.floats(0.01, 1.0))
def test_clusters_are_two_levels_and_none_is_empty(frequencies: list[int], share: float):
    classes = len(frequencies)
    clusters = max(1, int(share * classes))
    equal, own = Tree.clusters(classes, clusters), Tree.clusters(classes, clusters, frequencies=frequencies)
    for tree in (equal, own):
        assert tree.nodes == clusters + 1
        assert (tree.depths == 2).all()
        assert int(tree.counts.min()) >= 1
    sizes = equal.counts[1:]
    assert int(sizes.max() - sizes.min()) <= 1
    order = [c for cluster in own.nested() for c in cluster]
    f = np.array(frequencies)
    assert (np.diff(f[order]) <= 0).all()


def test_clusters_by_frequency_read_fewer_classes():
    f = 1 / torch.arange(1.0, 1001)[torch.randperm(1000, generator=torch.Generator().manual_seed(0))]

    def read(tree: Tree) -> float:
        """How many classes are in the cluster of a label, on average."""
        sizes = torch.tensor([[len(cluster), c] for cluster in tree.nested() for c in cluster])
        return float((f[sizes[:, 1]] * sizes[:, 0]).sum() / f.sum())

    own, equal = read(Tree.clusters(1000, frequencies=f)), read(Tree.clusters(1000))
    best = float(f.sqrt().sum() ** 2 / f.sum()) / 32  # of a continuum of classes
    assert equal == pytest.approx(1000 / 32, rel=0.02)
    assert own == pytest.approx(best, rel=0.05)
    assert own < 0.55 * equal


def read_at_least(f: np.ndarray, clusters: int) -> float:
    """The smallest Σ f_c · (size of its cluster)/Σ f_c of so many clusters of falling frequencies, by trying all cuts."""
    ends, share = np.arange(len(f) + 1), np.append(0.0, np.cumsum(f / f.sum()))
    one = np.where(ends > ends[:, None], (share - share[:, None]) * (ends - ends[:, None]), np.inf)  # [begin, end]
    least = np.where(ends == 0, 0.0, np.inf)
    for _ in range(clusters):
        least = (least[:, None] + one).min(0)
    return float(least[-1])


@pytest.mark.parametrize(
    ("f", "above"), [(1 / np.arange(1.0, 1001), 1.003), (1 / np.arange(1.0, 101), 1.02), (0.9 ** np.arange(200), 1.14)]
)
def test_clusters_by_frequency_are_near_the_best_where_many_share_one(f: np.ndarray, above: float):
    tree = Tree.clusters(len(f), frequencies=f)
    sizes = tree.counts[1:].numpy()
    own = float((f / f.sum()) @ np.repeat(sizes, sizes))
    assert 1 - 1e-12 <= own / read_at_least(f, len(sizes)) < above


def test_fewer_clusters_than_the_root_are_read_less_by_zipfs_law():
    f = 1 / np.arange(1.0, 1001)
    assert 23 + read_at_least(f, 23) == pytest.approx((32 + read_at_least(f, 32)) / 1.06, rel=0.003)
    flat = np.ones(900)
    assert min(range(20, 40), key=lambda clusters: clusters + read_at_least(flat, clusters)) == 30


def test_the_number_of_clusters_is_the_root_of_the_classes():
    assert [Tree.clusters(classes).nodes - 1 for classes in (1, 2, 4, 5, 100, 101)] == [1, 2, 2, 3, 10, 11]


def test_a_chain_of_any_length_is_a_tree():
    nested: list[Any] = [0]
    for c in range(1, 3000):
        nested = [c, nested]
    tree = Tree.of(nested)
    assert tree.depth == 3000
    assert tree.depths.tolist() == list(range(3000, 0, -1))
    again = tree.nested()
    for c in range(2999, 0, -1):
        assert again[0] == c
        again = again[1]
    assert Tree.from_parents(tree.parents).depth == 3000
    assert Tree.huffman(2.0 ** torch.arange(500, dtype=torch.float64)).depth == 499


def test_a_tree_does_not_change_with_what_it_was_made_of():
    children, sizes = torch.tensor([0, 4, 1, 2]), torch.tensor([2, 2])
    tree = Tree(children, sizes)
    children.zero_()
    sizes.zero_()
    assert tree.nested() == [0, [1, 2]]
    with pytest.raises(AttributeError):
        tree.counts = sizes  # type: ignore[misc]


WITHIN: list[Any] = [0]
WITHIN.append(WITHIN)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Tree.of([0, [1], []]), ValueError, "each list must have children, got an empty one"),
        (lambda: Tree.of([0, 2]), ValueError, "2 leaves must be the classes 0 … 1, but class 1 is missing"),
        (lambda: Tree.of([0, [1, 0]]), ValueError, "each class must be there once, got class 0 2 times"),
        (lambda: Tree.of([0, 1.5]), TypeError, "a child must be a class, an int of at least 0, or a list of children; got 1.5"),
        (lambda: Tree.of([0, True]), TypeError, "a child must be a class.* got True"),
        (lambda: Tree.of([0, -1]), TypeError, "a child must be a class.* got -1"),
        (lambda: Tree.of([0, "a" * 99]), TypeError, "got 'aaaa.*…"),
        (lambda: Tree.of(WITHIN), ValueError, "each list must be in the tree once, got one twice or within itself"),
        (lambda: Tree.of(3), TypeError, "the tree must be a list of children, got int"),
        (lambda: Tree.from_parents([2, 2, 2]), ValueError, "one node must be the root, with the parent −1; got none"),
        (lambda: Tree.from_parents([3, 3, 3, -1, -1]), ValueError, "got the nodes 3 and 4"),
        (lambda: Tree.from_parents([5, 2, -1]), ValueError, "parents must be nodes 0 … 2, or −1 of the root; got 5 of node 0"),
        (lambda: Tree.from_parents([2, 2, -1, 2]), ValueError, r"node 3 has none, but node 2 has; number the classes 0 … 2"),
        (lambda: Tree.from_parents([4, 4, 4, -1, 5, 4]), ValueError, "the root must have children, but node 3 has none"),
        (lambda: Tree.from_parents([-1]), ValueError, "the root must have children, but node 0 has none"),
        (
            lambda: Tree.from_parents([3, 3, 4, -1, 5, 4]),
            ValueError,
            "each node must lead to the root, but the parents of node 4 go in",
        ),
        (lambda: Tree.from_parents([2, 2, 2, -1]), ValueError, "the classes are the nodes without children"),
        (
            lambda: Tree.from_parents([[0.0]]),
            TypeError,
            r"parents must be one row of integers, got torch.float64 of shape \(1, 1\)",
        ),
        (
            lambda: Tree.from_parents([[1], [2, 3]]),
            TypeError,
            r"parents must be one row of numbers, got \[\[1\], \[2, 3\]\]; give a",
        ),
        (lambda: Tree.huffman(torch.ones(3, device="meta")), ValueError, "frequencies must hold values, got a meta tensor"),
        (lambda: Tree.from_parents({}), TypeError, "parents must be a torch.Tensor or a numpy.ndarray, got dict"),
        (lambda: Tree([0, 2, 1], [1, 2]), ValueError, "children must hold the inner nodes in their order"),
        (lambda: Tree([0, 1, 2, 4, 3], [2, 2, 1]), ValueError, "children must hold the inner nodes in their order"),
        (lambda: Tree([0, 1, 4, 5, 2], [2, 1, 2]), ValueError, "each inner node must come after its parent, but node 1 is under"),
        (lambda: Tree([0, 2, 1], [2, 2]), ValueError, r"counts must hold from 1 for each inner node, and sum to the 3 children"),
        (lambda: Tree(list(range(200)), [1] * 3), ValueError, "to the 200 children; got 3 counts from 1 with the sum 3$"),
        (lambda: Tree([0, 1], []), TypeError, "counts must be one row of integers"),
        (lambda: Tree.balanced(0), ValueError, "Tree.balanced: classes must be an int of at least 1, got 0"),
        (lambda: Tree.balanced(4, 1), ValueError, "branching must be an int of at least 2, got 1"),
        (lambda: Tree.huffman([0, 0]), ValueError, "frequencies must not all be 0"),
        (lambda: Tree.huffman([1, -1]), ValueError, "frequencies must be finite and at least 0, got -1.0 for class 1"),
        (lambda: Tree.huffman([1, math.nan]), ValueError, "finite and at least 0, got nan for class 1"),
        (
            lambda: Tree.huffman([]),
            ValueError,
            r"frequencies must hold one number for each class, got torch.float64 of shape \(0,\)",
        ),
        (lambda: Tree.huffman([[1.0]]), ValueError, r"one number for each class, got torch.float64 of shape \(1, 1\)"),
        (lambda: Tree.clusters(3, 4), ValueError, "clusters must be at most the 3 classes, got 4"),
        (lambda: Tree.clusters(3, frequencies=[1.0]), ValueError, "one number for each of the 3 classes"),
    ],
)
def test_what_is_no_tree_is_told(make: Any, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        make()
