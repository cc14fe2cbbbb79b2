"""HierarchicalSoftmax beyond what all heads have: its trees, how its work is shared out, sparse gradients, and its search."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy, linear, logsigmoid

from conftest import normal
from softmaxima.heads import tree_descent, tree_paths
from softmaxima.heads.hierarchical import HierarchicalSoftmax
from softmaxima.heads.trees import Tree

FEATURES = 6


def states(rows: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return normal(rows, FEATURES, seed=seed, scale=scale)


def head_of(tree: Tree, scale: float = 1.0, **options: Any) -> Any:
    head = HierarchicalSoftmax(FEATURES, tree, dtype=torch.float64, **options)
    with torch.no_grad():
        for seed, parameter in enumerate(p for p in (head.weight, head.bias) if p is not None):
            parameter.copy_(normal(*parameter.shape, seed=20 + seed, scale=scale))
    return head


def gradients(head: Any, hidden: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    hidden = hidden.clone().requires_grad_()
    found = torch.autograd.grad(head(hidden, target), (hidden, *head.parameters()))
    return tuple(gradient.to_dense() for gradient in found)


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Of up to 60 classes, with nodes of any number of children."""
    classes = draw(st.integers(1, 60))
    parents, level, total = [0] * classes, list(range(classes)), classes
    while len(level) > 1 or total == classes:
        cuts = sorted(draw(st.sets(st.integers(1, max(1, len(level) - 1)), max_size=max(0, len(level) // 2))) - {len(level)})
        ends = [0, *cuts, len(level)]
        above = []
        for first, last in pairwise(ends):
            for node in level[first:last]:
                parents[node] = total
            above.append(total)
            parents.append(-1)
            total += 1
        level = above
    return Tree.from_parents(torch.tensor(parents))


@pytest.mark.parametrize("bias", [False, True])
def test_a_flat_tree_is_a_softmax(bias: bool):
    head, hidden, target = head_of(Tree.of(list(range(9))), bias=bias), states(5), torch.tensor([0, 8, 3, 3, 1])
    scores = linear(hidden, head.weight, head.bias)
    torch.testing.assert_close(head(hidden, target), cross_entropy(scores, target))
    torch.testing.assert_close(head.log_prob(hidden), scores.log_softmax(-1))


def test_a_binary_tree_is_that_of_word2vec():
    tree = Tree.huffman([5, 2, 1, 1, 7])
    head, hidden = head_of(tree, bias=False), states(1)
    assert head.weight.shape == (4, FEATURES)  # one row for each inner node
    parents = tree.parents.tolist()
    for c in range(tree.classes):
        node, expected = c, torch.zeros((), dtype=torch.float64)
        while (above := parents[node]) >= 0:
            row = above - tree.classes
            sign = 1 if tree.children[tree.first[row]] == node else -1
            expected = expected - logsigmoid(sign * head.weight[row] @ hidden[0])
            node = above
        torch.testing.assert_close(head(hidden, torch.tensor([c])), expected)


@given(tree=trees(), bias=st.booleans(), block=st.sampled_from([1, 7, 2**20]), kept=st.sampled_from([0, 30, 2**22]))
def test_any_tree_and_any_blocks_give_the_loss_of_the_logarithms(tree: Tree, bias: bool, block: int, kept: int):
    head, hidden = head_of(tree, bias=bias), states(8)
    target = torch.arange(8) * 7 % tree.classes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree_paths, "BLOCK", block)
        patch.setattr(tree_paths, "KEPT", kept)
        loss, found = head(hidden, target), gradients(head, hidden, target)
        own = hidden.clone().requires_grad_()
        log_p = head.log_prob(own)
        expected = -log_p.gather(1, target.unsqueeze(1)).mean()
        torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(log_p.exp().sum(1), torch.ones(8, dtype=torch.float64), rtol=0, atol=1e-12)
        slopes = torch.autograd.grad(expected, (own, *head.parameters()))
        torch.testing.assert_close(found, slopes, rtol=1e-11, atol=1e-12)
        sparse = head_of(tree, bias=bias, sparse=True)
        torch.testing.assert_close(gradients(sparse, hidden, target), found, rtol=1e-12, atol=1e-13)


@given(
    tree=trees(),
    scale=st.sampled_from([0.0, 0.1, 1.0, 5.0]),
    k=st.integers(1, 8),
    node=st.sampled_from([0, 1, 64]),
    held=st.sampled_from([1, 200, 2**24]),
)
def test_the_search_finds_the_best_of_any_tree(tree: Tree, scale: float, k: int, node: int, held: int):
    head, hidden, k = head_of(tree, scale), states(12, scale=2.0), min(k, tree.classes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree_descent, "NODE", node)
        patch.setattr(tree_descent, "CHILD", 1)
        patch.setattr(tree_descent, "HELD", held)
        found, classes = head.topk(hidden, k)
        log_p = head.log_prob(hidden)
    torch.testing.assert_close(found, log_p.topk(k).values, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(log_p.gather(1, classes), found, rtol=1e-12, atol=1e-12)
    assert all(len(set(row)) == k for row in classes.tolist())


def test_the_search_looks_at_few_nodes(monkeypatch: pytest.MonkeyPatch):
    head, hidden = head_of(Tree.balanced(4096)), states(20, scale=5.0)
    looked = []
    children = tree_descent._children

    def counted(layer: Any, states: Tensor, who: Tensor, node: Tensor) -> Tensor:
        looked.append(len(node))
        return children(layer, states, who, node)

    monkeypatch.setattr(tree_descent, "_children", counted)
    log_p, _ = head.topk(hidden, 1)
    torch.testing.assert_close(log_p, head.log_prob(hidden).max(1, keepdim=True).values)
    assert log_p.exp().median() > 0.05
    assert sum(looked) < 20 * 12 * 5  # 12 on the way down to one class


def test_a_sparse_gradient_is_of_the_rows_on_the_paths():
    tree = Tree.of([[0, 1, 2], [3, [4, 5]], [6, 7, 8, 9]])
    head = head_of(tree, sparse=True)
    head(states(3), torch.tensor([0, 2, 5])).backward()
    touched = [0, 1, 2, 3, 4, 5, 6, 11]  # the root, its first node, and two nodes of two children
    for parameter in (head.weight, head.bias):
        assert parameter.grad.layout == torch.sparse_coo
        assert sorted(parameter.grad.coalesce().indices()[0].tolist()) == touched
        assert parameter.grad.shape == parameter.shape
    before = head.weight.detach().clone()
    torch.optim.SparseAdam(head.parameters()).step()
    changed = (head.weight != before).any(1)
    assert changed.nonzero().flatten().tolist() == touched


def test_a_sparse_gradient_with_a_temperature_that_learns():
    tau = torch.nn.Parameter(torch.tensor(0.7, dtype=torch.float64))
    tree, target = Tree.of([[0, 1, 2], [3, 4]]), torch.tensor([0, 1, 4])
    own, other = (head_of(tree, sparse=sparse, temperature=tau) for sparse in (True, False))
    own.load_state_dict(other.state_dict())
    torch.testing.assert_close(gradients(own, states(3), target), gradients(other, states(3), target))


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
def test_many_rows_of_half_precision_are_summed_in_float32(half: torch.dtype):
    head = head_of(Tree.of([[0, 1, 2], [3, 4]]))
    hidden, target = states(1).expand(4000, FEATURES), torch.arange(4000) % 5
    expected = gradients(head, hidden, target)
    found = gradients(head.to(half), hidden.to(half), target)
    for own, right in zip(found, expected, strict=True):
        torch.testing.assert_close(own.double(), right, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_sparse_gradients_of_half_precision_are_the_dense_ones(half: torch.dtype, temperature: float):
    for tree in (Tree.balanced(30), Tree.balanced(30, 4), Tree.clusters(30)):
        dense = HierarchicalSoftmax(FEATURES, tree, dtype=half, temperature=temperature)
        sparse = HierarchicalSoftmax(FEATURES, tree, dtype=half, temperature=temperature, sparse=True)
        sparse.load_state_dict(dense.state_dict())
        hidden, target = states(100).to(half), torch.arange(100) % 30
        found, expected = (gradients(head, hidden, target) for head in (sparse, dense))
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_loaded_tree_takes_the_place_of_the_heads():
    first, second = head_of(Tree.huffman([9, 5, 3, 1, 1])), head_of(Tree.balanced(5))
    assert first.tree.nested() != second.tree.nested()
    second.load_state_dict(first.state_dict())
    assert second.tree.nested() == first.tree.nested()
    hidden = states(4)
    assert torch.equal(second.log_prob(hidden), first.log_prob(hidden))
    assert torch.equal(second.predict(hidden), first.predict(hidden))
    assert sorted(first.state_dict()) == ["bias", "tree_children", "tree_counts", "weight"]
    built = HierarchicalSoftmax(FEATURES, Tree(first.tree_children, first.tree_counts), dtype=torch.float64)
    built.load_state_dict(first.state_dict())
    assert torch.equal(built.log_prob(hidden), first.log_prob(hidden))


def test_a_tree_that_does_not_fit_is_not_loaded():
    head = head_of(Tree.balanced(5))
    before = head.tree_children.clone()
    other = head_of(Tree.of([[0, 1, 2], [3, 4]])).state_dict()
    with pytest.raises(RuntimeError, match=r"the tree of the state dict does not fit: it is Tree\(classes=5, nodes=3, depth=2\)"):
        head.load_state_dict(other)
    state = head.state_dict()
    state["tree_children"] = state["tree_children"].clone().fill_(0)
    with pytest.raises(RuntimeError, match="does not fit: Tree: each class must be there once"):
        head.load_state_dict(state)
    del state["tree_children"]
    with pytest.raises(RuntimeError, match=r"Missing key.*tree_children"):
        head.load_state_dict(state)
    assert torch.equal(head.tree_children, before)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: HierarchicalSoftmax(0, 5), ValueError, "in_features must be an int of at least 1, got 0"),
        (lambda: HierarchicalSoftmax(4, 0), ValueError, "classes must be an int of at least 1, got 0"),
        (lambda: HierarchicalSoftmax(4, 5, tree="hufman"), ValueError, "tree must be one of .* did you mean 'huffman'"),
        (lambda: HierarchicalSoftmax(4, 5, tree="huffman"), ValueError, "HierarchicalSoftmax: tree='huffman' needs frequencies"),
        (lambda: HierarchicalSoftmax(4, 5, frequencies=[1.0] * 5), ValueError, "tree='balanced' takes no frequencies"),
        (lambda: HierarchicalSoftmax(4, 5, tree="huffman", frequencies=[1.0]), ValueError, "one number for each of the 5 classes"),
        (lambda: HierarchicalSoftmax(4, Tree.balanced(5), tree="clusters"), TypeError, "tree and frequencies are for a number"),
        (lambda: HierarchicalSoftmax(4, Tree.balanced(5), frequencies=[1.0]), TypeError, "got them beside Tree.classes=5"),
        (lambda: HierarchicalSoftmax(4, [[0, 1], 2]), TypeError, r"classes must be an int or a Tree, got list; call Tree.of"),
        (lambda: HierarchicalSoftmax(4, 5, bias=1), TypeError, "bias must be True or False, got 1"),
        (lambda: HierarchicalSoftmax(4, 5, sparse=None), TypeError, "sparse must be True or False, got None"),
    ],
)
def test_what_makes_no_head_is_told(make: Any, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        make()


def test_a_step_at_many_classes_reads_few_rows():
    """Without this, a test of 10⁵ classes would take a second."""
    head = HierarchicalSoftmax(8, 100_000, tree="huffman", frequencies=1 / torch.arange(1.0, 100_001), sparse=True)
    head(torch.randn(64, 8), torch.arange(64)).backward()
    assert head.weight.grad._nnz() <= int(head.tree.depths[:64].sum())
    assert math.isclose(head.tree.depths.double().exp2().reciprocal().sum(), 1.0)
