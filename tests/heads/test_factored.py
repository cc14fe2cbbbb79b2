"""Heads whose probability of a class is a product of softmaxes: every property of every head, beside its literal definition."""

from __future__ import annotations

import copy
import inspect
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call
from torch.nn.functional import log_softmax, logsigmoid, nll_loss

from conftest import normal
from softmaxima.heads import adaptive, factored, tree_descent, tree_paths
from softmaxima.heads.adaptive import AdaptiveSoftmax
from softmaxima.heads.factored import FactoredHead
from softmaxima.heads.hierarchical import HierarchicalSoftmax
from softmaxima.heads.trees import Tree

INF, NAN = math.inf, math.nan
CLASSES, FEATURES = 12, 5
FREQUENCIES = [3.0, 50.0, 1.0, 8.0, 0.0, 20.0, 5.0, 1.0, 2.0, 2.0, 9.0, 30.0]
# Nodes of one, two and more children, side by side.
MIXED = [[0, [3], [1, 2, 4]], [5, [[6]], 7, 8], 9, [10, [11]]]

HEADS: dict[str, Callable[..., FactoredHead]] = {
    "balanced": lambda **options: HierarchicalSoftmax(FEATURES, CLASSES, **options),
    "huffman": lambda **options: HierarchicalSoftmax(FEATURES, CLASSES, tree="huffman", frequencies=FREQUENCIES, **options),
    "clusters": lambda **options: HierarchicalSoftmax(FEATURES, CLASSES, tree="clusters", bias=False, **options),
    "clusters by frequency": lambda **options: HierarchicalSoftmax(
        FEATURES, CLASSES, tree="clusters", frequencies=FREQUENCIES, **options
    ),
    "of three": lambda **options: HierarchicalSoftmax(FEATURES, Tree.balanced(CLASSES, 3), **options),
    "mixed": lambda **options: HierarchicalSoftmax(FEATURES, Tree.of(MIXED), **options),
    "flat": lambda **options: HierarchicalSoftmax(FEATURES, Tree.of(list(range(CLASSES))), **options),
    "adaptive": lambda **options: AdaptiveSoftmax(FEATURES, CLASSES, [3, 7], div_value=2.0, **options),
    "adaptive by frequency": lambda **options: AdaptiveSoftmax(
        FEATURES, CLASSES, [2, 3, 8], div_value=1.2, head_bias=True, frequencies=FREQUENCIES, **options
    ),
    "adaptive of one part": lambda **options: AdaptiveSoftmax(FEATURES, CLASSES, (), head_bias=True, **options),
}

SMALL = [(adaptive, "FEW", 0), (adaptive, "HELD", 200), (tree_descent, "HELD", 200), (tree_paths, "BLOCK", 64)]  # parts of few rows

# A float32 score is a sum of 5 products of size 1, and log p one of 6 such; half precision rounds features and results.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.1, torch.float16: 0.02}


@pytest.fixture(params=HEADS)
def make(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """A head in float64 with probabilities that are far from equal."""

    def make(dtype: torch.dtype = torch.float64, **options: Any) -> Any:
        head = HEADS[request.param](dtype=torch.float64, **options)
        with torch.no_grad():
            for seed, parameter in enumerate(p for name, p in head.named_parameters() if name != "temperature"):
                parameter.copy_(normal(*parameter.shape, seed=10 + seed, scale=1.0))
        return head.to(dtype)

    return make


def hidden_states(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """[*shape, features]."""
    return normal(*shape, FEATURES, seed=seed, scale=1.0, dtype=dtype)


def literal(head: Any, h: Tensor) -> Tensor:
    """log p of all classes for one hidden state, in float64, by the definition."""
    h = h.double() / head.temperature
    return (_of_tree if isinstance(head, HierarchicalSoftmax) else _of_clusters)(head, h)


def _of_tree(head: Any, h: Tensor) -> Tensor:
    nested = head.tree.nested()
    nodes, first, row = [nested], {}, 0
    for node in nodes:  # level by level
        first[id(node)] = row
        row += {1: 0, 2: 1}.get(len(node), len(node))
        nodes.extend(child for child in node if isinstance(child, list))
    found: dict[int, Tensor] = {}

    def descend(node: list[Any], log_p: Tensor) -> None:
        scores = []
        for place in range(first[id(node)], first[id(node)] + {1: 0, 2: 1}.get(len(node), len(node))):
            bias = 0.0 if head.bias is None else head.bias[place].double() / head.temperature
            scores.append(head.weight[place].double() @ h + bias)
        if len(node) == 1:
            own = [h.new_zeros(())]
        elif len(node) == 2:
            own = [logsigmoid(scores[0]), logsigmoid(-scores[0])]
        else:
            own = list(log_softmax(torch.stack(scores), 0))
        for child, more in zip(node, own, strict=True):
            if isinstance(child, list):
                descend(child, log_p + more)
            else:
                found[child] = log_p + more

    descend(nested, h.new_zeros(()))
    return torch.stack([found[c] for c in range(CLASSES)])


def _of_clusters(head: Any, h: Tensor) -> Tensor:
    bias = 0.0 if head.head.bias is None else head.head.bias.double() / head.temperature
    first = log_softmax(head.head.weight.double() @ h + bias, 0)
    short = (*head.cutoffs, CLASSES)[0]
    by_rank = [*first[:short]]
    for i, (inner, outer) in enumerate(head.tail):
        by_rank += [first[short + i] + more for more in log_softmax(outer.weight.double() @ (inner.weight.double() @ h), 0)]
    rank = range(CLASSES) if head.rank is None else head.rank.tolist()
    return torch.stack([by_rank[r] for r in rank])


def slopes(loss: Tensor, hidden: Tensor, head: Any, g: Tensor | None = None) -> tuple[Tensor, ...]:
    """∂⟨g, loss⟩/∂(hidden, parameters)."""
    return torch.autograd.grad(loss, (hidden, *head.parameters()), g, retain_graph=True, materialize_grads=True)


def test_the_logarithms_are_those_of_the_definition(make: Callable[..., Any]):
    for temperature in (1.0, 0.6):
        head, hidden = make(temperature=temperature), hidden_states(4)
        expected = torch.stack([literal(head, h) for h in hidden])
        torch.testing.assert_close(head.log_prob(hidden), expected, rtol=1e-13, atol=1e-13)


def test_probabilities_sum_to_one(make: Callable[..., Any]):
    hidden = 5 * hidden_states(50)
    total = make().log_prob(hidden).exp().sum(-1)
    torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=1e-12)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignoring", [False, True])
def test_the_loss_and_its_gradients_are_those_of_the_logarithms(
    make: Callable[..., Any], reduction: str, weighted: bool, ignoring: bool
):
    weight = torch.arange(CLASSES, dtype=torch.float64) if weighted else None  # 0 of class 0
    head = make(reduction=reduction, class_weight=weight, ignore_index=7 if ignoring else -100)
    hidden, target = hidden_states(3, 8).requires_grad_(), torch.arange(24).reshape(3, 8) % CLASSES
    found = head(hidden, target)
    log_p = torch.stack([literal(head, h) for h in hidden.reshape(-1, FEATURES)])
    expected = nll_loss(log_p, target.flatten(), weight, ignore_index=7 if ignoring else -100, reduction=reduction)
    expected = expected.view_as(found)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    g = normal(max(1, found.numel()), seed=3).reshape(found.shape)
    own, theirs = (slopes(loss, hidden, head, g) for loss in (found, expected))
    torch.testing.assert_close(own, theirs, rtol=1e-11, atol=1e-12)
    losses = (nll_loss(of.flatten(0, -2), target.flatten(), reduction="sum") for of in (head.log_prob(hidden), log_p))
    own, theirs = (slopes(loss, hidden, head) for loss in losses)
    torch.testing.assert_close(own, theirs, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_first_and_second_derivatives(make: Callable[..., Any], reduction: str):
    head = make(reduction=reduction, ignore_index=2)
    names = [name for name, _ in head.named_parameters()]
    hidden, target = hidden_states(4).requires_grad_(), torch.tensor([0, 2, 11, 6])

    def loss(hidden: Tensor, *values: Tensor) -> Tensor:
        return functional_call(head, dict(zip(names, values, strict=True)), (hidden, target))

    inputs = (hidden, *(p.detach().requires_grad_() for p in head.parameters()))
    assert gradcheck(loss, inputs)
    assert gradgradcheck(loss, inputs)


def test_first_and_second_derivatives_of_the_logarithms(make: Callable[..., Any]):
    class LogProb(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = make()

        def forward(self, hidden: Tensor) -> Tensor:
            return self.head.log_prob(hidden)

    of, hidden = LogProb(), hidden_states(3).requires_grad_()
    names = [name for name, _ in of.named_parameters()]

    def log_p(hidden: Tensor, *values: Tensor) -> Any:
        return functional_call(of, dict(zip(names, values, strict=True)), (hidden,))

    inputs = (hidden, *(p.detach().requires_grad_() for p in of.parameters()))
    assert gradcheck(log_p, inputs)
    assert gradgradcheck(log_p, inputs)


def test_what_does_not_learn_changes_no_other_gradient(make: Callable[..., Any]):
    hidden, target = hidden_states(6).requires_grad_(), torch.arange(6)
    head = make()
    expected = torch.autograd.grad(head(hidden, target), (hidden, *head.parameters()), allow_unused=True)
    for still, _ in head.named_parameters():
        head = make()
        learning = {name: p.requires_grad_(name != still) for name, p in head.named_parameters()}
        head(hidden, target).backward()
        for own, right in zip((hidden, *learning.values()), expected, strict=True):
            if own is learning[still] or right is None:
                assert own.grad is None
            else:
                torch.testing.assert_close(own.grad, right, rtol=0, atol=0)
        hidden.grad = None


def test_arrays_are_taken_and_the_parameters_learn(make: Callable[..., Any]):
    head, hidden, target = make(), hidden_states(6), torch.arange(6)
    loss, expected = head(hidden.numpy(), target.numpy()), head(hidden, target)
    torch.testing.assert_close(loss, expected, rtol=0, atol=0)
    own, right = (torch.autograd.grad(of, next(head.parameters()))[0] for of in (loss, expected))
    assert torch.equal(own, right)
    for found, expected in ((head.log_prob, head.log_prob(hidden)), (head.predict, head.predict(hidden))):
        assert np.array_equal(found(hidden.numpy()), expected.detach().numpy())


def test_transforms_of_functions(make: Callable[..., Any]):
    head, target = make(), torch.tensor([0, 5, 11])
    hidden = hidden_states(2, 3)
    expected = torch.stack([head(h, target) for h in hidden])
    torch.testing.assert_close(torch.func.vmap(lambda h: head(h, target))(hidden), expected)
    slope = torch.func.grad(lambda h: head(h, target))(hidden[0])
    h = hidden[0].clone().requires_grad_()
    torch.testing.assert_close(slope, torch.autograd.grad(head(h, target), h)[0])
    direction = hidden_states(3, seed=5)
    _, along = torch.func.jvp(lambda h: head(h, target), (hidden[0],), (direction,))
    torch.testing.assert_close(along, (slope * direction).sum())


def test_a_second_backward_pass_gives_the_same(make: Callable[..., Any]):
    head, hidden = make(), hidden_states(6).requires_grad_()
    loss = head(hidden, torch.arange(6))
    first, second = (slopes(loss, hidden, head) for _ in range(2))
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_results_have_the_dtype_of_the_hidden_states(make: Callable[..., Any], dtype: torch.dtype):
    head, hidden = make(dtype), hidden_states(6, dtype=dtype).requires_grad_()
    target, tolerance = torch.arange(6), {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    wide, wide_hidden = copy.deepcopy(head).double(), hidden.detach().double().requires_grad_()
    loss, expected = head(hidden, target), wide(wide_hidden, target)
    assert loss.dtype == dtype
    torch.testing.assert_close(loss.double(), expected, **tolerance)
    own = slopes(loss, hidden, head)
    theirs = slopes(expected, wide_hidden, wide)
    for found, right in zip(own, theirs, strict=True):
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), right, **tolerance)
    assert head.log_prob(hidden).dtype == dtype
    torch.testing.assert_close(head.log_prob(hidden).double(), wide.log_prob(wide_hidden), **tolerance)
    log_p, classes = head.topk(hidden, 3)
    assert (log_p.dtype, classes.dtype) == (dtype, torch.int64)
    assert head.sample(hidden, 4).dtype == torch.int64


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("parts", ["whole", "small"])
@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_half_precision_is_float32_of_the_same_numbers_rounded_once(
    make: Callable[..., Any], half: torch.dtype, parts: str, temperature: float, monkeypatch: pytest.MonkeyPatch
):
    if parts == "small":
        for module, what, held in SMALL:
            monkeypatch.setattr(module, what, held)
    hidden, target = hidden_states(60, dtype=half).requires_grad_(), torch.arange(60) % CLASSES
    wide_hidden = hidden.detach().float().requires_grad_()
    for reduction in ("mean", "sum", "none"):
        head = make(half, temperature=temperature, reduction=reduction)
        wide = copy.deepcopy(head).float()
        own, right = ((of(h, target), of.log_prob(h)) for of, h in ((head, hidden), (wide, wide_hidden)))
        pairs = [*zip(own, right, strict=True), (head.topk(hidden, 3).log_prob, wide.topk(wide_hidden, 3).log_prob)]
        for value, expected in zip(own, right, strict=True):
            g = normal(max(1, value.numel()), seed=4).reshape(value.shape).to(half)
            for again in (False, True):
                gradients = (
                    torch.autograd.grad(of, (h, *by.parameters()), slope, create_graph=again, retain_graph=True)
                    for of, h, by, slope in ((value, hidden, head, g), (expected, wide_hidden, wide, g.float()))
                )
                pairs += zip(*gradients, strict=True)
        for value, expected in pairs:
            assert value.dtype == half
            assert torch.equal(value, expected.to(half))
    each = make(half, temperature=temperature, reduction="none")
    assert torch.equal(each(hidden, target), -each.log_prob(hidden).gather(1, target.unsqueeze(1)).squeeze(1))


def test_autocast_changes_nothing_but_half_precision(make: Callable[..., Any]):
    head, target = make(torch.float32), torch.arange(6)
    hidden = hidden_states(6, dtype=torch.float32)
    expected = head(hidden, target), head.log_prob(hidden), head.topk(hidden, 2)
    with torch.autocast("cpu", torch.bfloat16):
        found = head(hidden, target), head.log_prob(hidden), head.topk(hidden, 2)
        half = head(hidden.bfloat16(), target)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, head(hidden.bfloat16().float(), target), rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(), (1,), (4,), (2, 3), (2, 1, 3), (0,), (2, 0)])
def test_any_shape_of_rows(make: Callable[..., Any], shape: tuple[int, ...]):
    head = make(reduction="none")
    hidden, target = hidden_states(*shape), torch.full(shape, 3)
    assert head(hidden, target).shape == shape
    log_p = head.log_prob(hidden)
    assert log_p.shape == (*shape, CLASSES)
    torch.testing.assert_close(head(hidden, target), -log_p[..., 3])
    found = head.topk(hidden, 4)
    assert found.log_prob.shape == found.classes.shape == (*shape, 4)
    assert head.predict(hidden).shape == (*shape, 1)
    assert head.sample(hidden).shape == shape
    assert head.sample(hidden, 2).shape == (2, *shape)
    assert head.sample(hidden, (2, 0, 3)).shape == (2, 0, 3, *shape)


def test_rows_may_lie_in_memory_in_any_way(make: Callable[..., Any]):
    head, target = make(), torch.arange(12).reshape(4, 3).T
    hidden = hidden_states(4, 3).transpose(0, 1)
    torch.testing.assert_close(head(hidden, target), head(hidden.contiguous(), target.contiguous()))
    torch.testing.assert_close(head(hidden, target.int()), head(hidden, target))


def test_the_mean_over_no_rows_is_nan_and_their_sum_nothing(make: Callable[..., Any]):
    for target in (torch.zeros(0, dtype=torch.long), torch.full((3,), -100)):
        hidden = hidden_states(len(target)).requires_grad_()
        mean, total = make()(hidden, target), make(reduction="sum")(hidden, target)
        assert mean.isnan()
        assert total == 0
        for loss, head in ((mean, make()), (total, make(reduction="sum"))):
            loss = head(hidden, target)
            for gradient in slopes(loss, hidden, head):
                assert (gradient == 0).all()


@pytest.mark.parametrize("spoilt", [NAN, INF])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_row_that_is_left_out_is_not_read(make: Callable[..., Any], spoilt: float, weighted: bool):
    weight = torch.tensor([1.0] * 11 + [0.0], dtype=torch.float64) if weighted else None
    head = make(class_weight=weight)
    hidden, target = hidden_states(4), torch.tensor([3, -100, 11, 0])
    left_out = torch.tensor([False, True, weighted, False])
    hidden[left_out] = spoilt
    hidden.requires_grad_()
    loss = head(hidden, target)
    torch.testing.assert_close(loss, head(hidden[~left_out], target[~left_out]))
    slope, *others = slopes(loss, hidden, head)
    assert (slope[left_out] == 0).all()
    assert all(gradient.isfinite().all() for gradient in (slope, *others))


@pytest.mark.parametrize("search", ["as it is", "to the end", "in full", "in small parts"])
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_the_best_classes_are_those_of_all_logarithms(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, search: str, scale: float
):
    if search == "to the end":
        monkeypatch.setattr(tree_descent, "NODE", 0)
        monkeypatch.setattr(tree_descent, "CHILD", 1)
    elif search == "in full":
        monkeypatch.setattr(tree_descent, "NODE", 10**6)
    elif search == "in small parts":
        monkeypatch.setattr(tree_descent, "HELD", 50)
        monkeypatch.setattr(adaptive, "HELD", 50)
    head, hidden = make(), scale * hidden_states(30, seed=2)
    log_p = head.log_prob(hidden)
    for k in (1, 2, 5, CLASSES):
        found, classes = head.topk(hidden, k)
        expected = log_p.topk(k)
        torch.testing.assert_close(found, expected.values, rtol=1e-12, atol=1e-12)
        assert torch.equal(classes, expected.indices)
        assert torch.equal(head.predict(hidden, k), classes)


def test_of_equal_classes_any_are_the_best_and_each_once(make: Callable[..., Any]):
    head = make()
    nn.init.zeros_(next(head.parameters()))
    hidden = torch.zeros(3, FEATURES, dtype=torch.float64)
    for k in (1, 3, CLASSES):
        found, classes = head.topk(hidden, k)
        torch.testing.assert_close(found, head.log_prob(hidden).topk(k).values)
        torch.testing.assert_close(head.log_prob(hidden).gather(1, classes), found)
        assert all(len(set(row)) == k for row in classes.tolist())


@pytest.mark.parametrize("seed", range(6))
def test_classes_that_cannot_be_are_the_last_of_the_best_and_each_once(make: Callable[..., Any], seed: int):
    head, hidden = make(), hidden_states(20)
    bias = head.bias if isinstance(head, HierarchicalSoftmax) else head.head.bias
    if bias is None:
        pytest.skip("a head without a bias has no score of −∞")
    with torch.no_grad():
        bias[torch.rand(bias.shape, generator=torch.Generator().manual_seed(seed)) < (0.3, 0.5, 0.8)[seed % 3]] = -INF
    log_p = head.log_prob(hidden)
    assert (log_p == -INF).any()
    for k in range(1, CLASSES + 1):
        found, classes = head.topk(hidden, k)
        torch.testing.assert_close(found, log_p.topk(k).values)
        torch.testing.assert_close(log_p.gather(1, classes), found)
        assert all(len(set(row)) == k for row in classes.tolist())
    hidden = hidden[(log_p.exp().sum(1) - 1).abs() < 1e-9]  # others reach a node of which no child can be
    drawn = head.sample(hidden, 500, generator=0)
    assert (head.log_prob(hidden).gather(1, drawn.T) > -INF).all()


def test_where_no_class_can_be_none_is_drawn():
    head = HierarchicalSoftmax(FEATURES, Tree.of([0, 1, 2]))
    nn.init.constant_(head.bias, -INF)
    assert (head.log_prob(torch.zeros(2, FEATURES)) == -INF).all()
    with pytest.raises(ValueError, match=r"sample: probabilities must sum to 1, got 0.0; hidden or the parameters"):
        head.sample(torch.zeros(2, FEATURES))


def test_nan_stays_in_its_row(make: Callable[..., Any]):
    head, hidden = make(reduction="none"), hidden_states(4)
    expected = head(hidden, torch.arange(4)), head.log_prob(hidden), head.topk(hidden, 3).log_prob
    hidden[2] = NAN
    others = torch.tensor([True, True, False, True])
    found = head(hidden, torch.arange(4)), head.log_prob(hidden), head.topk(hidden, 3).log_prob
    for own, right in zip(found, expected, strict=True):
        torch.testing.assert_close(own[others], right[others])
    assert found[1][2].isnan().all()
    assert found[2][2].isnan().any()


def test_draws_are_by_the_probabilities(make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tree_paths, "BLOCK", 64)
    monkeypatch.setattr(tree_descent, "BLOCK", 64)
    head, hidden, times = make(), 0.5 * hidden_states(3), 20_000
    drawn = head.sample(hidden, times, generator=1)
    p = head.log_prob(hidden).exp()
    counts = torch.stack([torch.bincount(row, minlength=CLASSES) for row in drawn.T])
    expected = times * p
    rare = expected < 5  # counted together
    counts = torch.cat((counts.double().masked_fill(rare, 0.0), (counts * rare).sum(1, keepdim=True)), 1)
    expected = torch.cat((expected.masked_fill(rare, 0.0), (expected * rare).sum(1, keepdim=True)), 1)
    statistic = ((counts - expected).square() / expected.clamp_min(1e-9)).sum(1)
    assert (statistic < 40).all()  # χ² of 12 degrees of freedom: 1 of 10⁴ is above
    together = drawn[: times // 2, 0] * CLASSES + drawn[times // 2 :, 0]  # of independent draws
    both = torch.bincount(together, minlength=CLASSES**2).double()
    product = times / 2 * torch.outer(p[0], p[0]).flatten()
    usual = product > 5
    assert ((both - product)[usual].square() / product[usual]).sum() < 2 * int(usual.sum()) + 30


def test_a_seed_repeats_the_draws_and_a_generator_moves_on(make: Callable[..., Any]):
    head, hidden = make(), hidden_states(5)
    assert torch.equal(head.sample(hidden, 20, generator=3), head.sample(hidden, 20, generator=3))
    generator = torch.Generator().manual_seed(3)
    first, second = (head.sample(hidden, 20, generator=generator) for _ in range(2))
    assert torch.equal(first, head.sample(hidden, 20, generator=3))
    assert not torch.equal(first, second)


def test_a_temperature_divides_all_scores_and_may_learn(make: Callable[..., Any]):
    tau = nn.Parameter(torch.tensor(0.6, dtype=torch.float64))
    head, same = make(temperature=tau), make(temperature=0.6)
    hidden, target = hidden_states(6), torch.arange(6)
    torch.testing.assert_close(head.log_prob(hidden), same.log_prob(hidden))
    torch.testing.assert_close(head.topk(hidden, 3), same.topk(hidden, 3))
    assert gradcheck(lambda tau: functional_call(head, {"temperature": tau}, (hidden, target)), tau)
    assert "temperature" in head.state_dict()


def test_a_state_dict_restores_the_head(make: Callable[..., Any]):
    head, hidden = make(), hidden_states(6)
    again = make()
    for parameter in again.parameters():
        nn.init.normal_(parameter)
    assert not torch.equal(again.log_prob(hidden), head.log_prob(hidden))
    again.load_state_dict(head.state_dict())
    assert torch.equal(again.log_prob(hidden), head.log_prob(hidden))
    for copied in (copy.deepcopy(head), pickle.loads(pickle.dumps(head))):
        assert torch.equal(copied.log_prob(hidden), head.log_prob(hidden))
        assert torch.equal(copied(hidden, torch.arange(6)), head(hidden, torch.arange(6)))


def test_a_head_moves_with_its_tables(make: Callable[..., Any]):
    head = make()
    before = {name: buffer.clone() for name, buffer in head.named_buffers()}
    head.half().double()
    for name, buffer in head.named_buffers():
        assert buffer.dtype == before[name].dtype
        assert torch.equal(buffer, before[name])
    meta = make().to("meta")
    assert all(tensor.is_meta for tensor in (*meta.parameters(), *meta.buffers()))
    meta.load_state_dict(head.state_dict(), assign=True)
    hidden = hidden_states(6)
    assert torch.equal(meta.log_prob(hidden), head.log_prob(hidden))
    assert torch.equal(meta(hidden, torch.arange(6)), head(hidden, torch.arange(6)))
    assert torch.equal(meta.predict(hidden), head.predict(hidden))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch's own, after a break of the graph
def test_compilers_leave_out_what_depends_on_labels(make: Callable[..., Any]):
    head, hidden, target = make(), hidden_states(6).requires_grad_(), torch.arange(6)
    torch._dynamo.reset()
    compiled = torch.compile(lambda h, t: 2 * head(h, t), backend="eager")
    own, expected = compiled(hidden, target), 2 * head(hidden, target)
    torch.testing.assert_close(own, expected)
    pair = (slopes(loss, hidden, head) for loss in (own, expected))
    torch.testing.assert_close(*pair)
    for method, arguments in ((head.log_prob, ()), (head.topk, (2,)), (head.predict, (2,))):
        torch.testing.assert_close(torch.compile(method, backend="eager")(hidden, *arguments), method(hidden, *arguments))
    with pytest.raises(Exception, match="function `disable`"):
        torch.compile(lambda h, t: -head(h, t), backend="eager", fullgraph=True)(hidden, target)


def test_initial_values_are_those_of_linear_layers_and_come_again(make: Callable[..., Any]):
    head = make()
    head.reset_parameters()
    first = [parameter.clone() for parameter in head.parameters()]
    head.reset_parameters()
    for parameter, before in zip(head.parameters(), first, strict=True):
        assert not torch.equal(parameter, before)
        assert parameter.abs().max().item() <= 1.0
    layers = [parameter for parameter in first if parameter.shape[-1:] == (FEATURES,)]
    assert all(weight.abs().max().item() <= FEATURES**-0.5 for weight in layers)


def test_a_head_says_what_it_is(make: Callable[..., Any]):
    said = repr(make(ignore_index=7, reduction="sum"))
    for part in ("5, ", "12", "temperature=1.0", "ignore_index=7", "reduction='sum'"):
        assert part in said


def test_training_learns_the_labels(make: Callable[..., Any]):
    head = make()
    hidden, target = 2 * hidden_states(CLASSES), torch.arange(CLASSES)
    optimiser = torch.optim.Adam(head.parameters(), lr=0.1)
    first = head(hidden, target).item()
    for _ in range(60):
        optimiser.zero_grad()
        loss = head(hidden, target)
        loss.backward()
        optimiser.step()
    assert loss.item() < first / 4


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (lambda head, h, t: head(h, t + 12), IndexError, "target 12 is out of range for 12 classes; ignore_index=12 leaves"),
        (lambda head, h, t: head(h, t - 1), IndexError, "target -1 is out of range for 12 classes"),
        (lambda head, h, t: head(h[:, :4], t), ValueError, r"hidden must have 5 features on its last axis, got shape \(3, 4\)"),
        (lambda head, h, t: head(h[0, 0], t), ValueError, "hidden must be .…, features., got a 0-d tensor"),
        (lambda head, h, t: head(h.float(), t), TypeError, "weight must be torch.float32 as hidden is, got torch.float64"),
        (lambda head, h, t: head(h.long(), t), TypeError, "hidden must be float64, float32, bfloat16 or float16, got torch.int64"),
        (lambda head, h, t: head(None, t), TypeError, "hidden must be a torch.Tensor or a numpy.ndarray, got NoneType"),
        (lambda head, h, t: head(h, t[:2]), ValueError, r"target must hold class indices of shape \(3,\).* of shape \(2,\)"),
        (lambda head, h, t: head(h, t.double()), ValueError, "target must hold class indices of .* got torch.float64"),
        (lambda head, h, t: head.topk(h, 13), ValueError, "k must be at most 12, the number of classes, got 13"),
        (lambda head, h, t: head.predict(h, 0), ValueError, "k must be an int of at least 1, got 0"),
        (lambda head, h, t: head.topk(h, 2.0), TypeError, "k must be an int of at least 1, got 2.0; pass an int"),
        (lambda head, h, t: head.sample(h, -1), ValueError, "shape must be an int of at least 0, got -1"),
        (lambda head, h, t: head.sample(h, (2, 0.5)), TypeError, "shape must be an int of at least 0, got 0.5"),
        (lambda head, h, t: head.sample(h, generator="1"), TypeError, "generator must be a torch.Generator"),
        (lambda head, h, t: head.sample(h * NAN), ValueError, "sample: probabilities must sum to 1, got nan; hidden or"),
        (lambda head, h, t: head.log_prob(h[..., :0]), ValueError, "hidden must have 5 features"),
    ],
)
def test_wrong_use_is_told(make: Callable[..., Any], use: Any, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        use(make(), hidden_states(3), torch.tensor([0, 5, 2]))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"reduction": "avg"}, ValueError, "reduction must be one of mean, sum, none, got 'avg'"),
        ({"ignore_index": 1.5}, TypeError, "ignore_index must be an int, got 1.5"),
        ({"temperature": 0}, ValueError, "temperature must be positive"),
        ({"temperature": torch.ones(2)}, ValueError, r"temperature must be one number, got a tensor of shape \(2,\)"),
        ({"class_weight": torch.ones(3)}, ValueError, "weight must hold one floating-point number for each of the 12 classes"),
        ({"class_weight": -torch.ones(12)}, ValueError, "weight must be finite and not negative, got -1.0 for class 0"),
    ],
)
def test_wrong_options_are_told(make: Callable[..., Any], options: dict[str, Any], error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        make(**options)


class Odd:
    pass


# What may come in the place of any argument.
ANYTHING: dict[str, Any] = {
    repr(value): value
    for value in (
        *(None, True, 1.5, -1, 0, 7, NAN, INF, 3 + 0j, "a", "", b"a", "cpu", "cuda:99", "float32", torch.device("cpu")),
        *((), [], [1, 2], [1.5], ["a"], [None], [[1], [2, 3]], [[1, 2]], {}, {1: 2}, range(3), slice(3)),
        *(torch.float32, torch.int64, torch.complex64, torch.float8_e4m3fn, np.float32, int, len),
        *(np.ones(2), np.ones(12), np.array(3), np.array(["a"]), np.array([None]), np.float32(2), np.int64(3), np.bool_(True)),
        *(torch.tensor(3), torch.tensor(1.0), torch.ones(2), torch.ones(12), torch.ones(0), -torch.ones(12), torch.ones(1, 5)),
        *(torch.ones(2, dtype=torch.complex64), torch.ones(3, dtype=torch.bool), torch.ones(1, 5).half()),
        *(torch.empty(12, device="meta"), torch.empty(3, 5, device="meta", dtype=torch.float64), torch.tensor([0, 5, 12])),
        *(torch.zeros(3, dtype=torch.long, device="meta"), torch.Generator(), np.random.default_rng(0), Tree.balanced(3)),
        nn.Linear(2, 3),
    )
} | {
    "an object": Odd(),
    "an iterator": iter([1, 2]),
    "sparse": torch.ones(12).to_sparse(),
}


def uses() -> dict[str, tuple[str, Callable[[Any], Any]]]:
    """For each argument of what is public: (the name that is told, the call with a value in the argument's place)."""
    found: dict[str, tuple[str, Callable[[Any], Any]]] = {}
    hidden, target = hidden_states(3), torch.tensor([0, 5, 2])
    layers: list[tuple[type[FactoredHead], dict[str, Any]]] = [
        (AdaptiveSoftmax, {"in_features": FEATURES, "classes": CLASSES, "cutoffs": [3, 7], "div_value": 2.0}),
        (HierarchicalSoftmax, {"in_features": FEATURES, "classes": CLASSES}),
    ]
    for made, given in layers:
        for what in inspect.signature(made).parameters:
            found[f"{made.__name__} {what}"] = (
                made.__name__,
                lambda v, made=made, given=given, what=what: made(**{**given, what: v}),
            )
        for device in ("cpu", "meta"):
            head, h, y = made(**given, dtype=torch.float64, device=device), hidden.to(device), target.to(device)
            calls: dict[str, Callable[[Any], Any]] = {
                "hidden": lambda v, head=head, y=y: head(v, y),
                "target": lambda v, head=head, h=h: head(h, v),
                "log_prob": head.log_prob,
                "predict": head.predict,
                "k": lambda v, head=head, h=h: head.topk(h, v),
                "sample": head.sample,
                "shape": lambda v, head=head, h=h: head.sample(h, v),
                "generator": lambda v, head=head, h=h: head.sample(h, (), v),
            }
            found |= {f"{made.__name__} {what} {device}": (made.__name__, call) for what, call in calls.items()}
    module = nn.AdaptiveLogSoftmaxWithLoss(FEATURES, CLASSES, [3, 7], 2.0)
    found["from_torch"] = "AdaptiveSoftmax.from_torch", AdaptiveSoftmax.from_torch
    for what in inspect.signature(AdaptiveSoftmax).parameters:
        call = lambda v, what=what: AdaptiveSoftmax.from_torch(module, **{what: v})
        found[f"from_torch {what}"] = "AdaptiveSoftmax", call
    found |= {
        "balanced": ("Tree.balanced", Tree.balanced),
        "balanced branching": ("Tree.balanced", lambda v: Tree.balanced(5, v)),
        "huffman": ("Tree.huffman", Tree.huffman),
        "huffman branching": ("Tree.huffman", lambda v: Tree.huffman(FREQUENCIES, v)),
        "clusters": ("Tree.clusters", Tree.clusters),
        "clusters clusters": ("Tree.clusters", lambda v: Tree.clusters(CLASSES, v)),
        "clusters frequencies": ("Tree.clusters", lambda v: Tree.clusters(CLASSES, frequencies=v)),
        "of": ("Tree.of", Tree.of),
        "of a child": ("Tree.of", lambda v: Tree.of([0, v])),
        "from_parents": ("Tree.from_parents", Tree.from_parents),
        "children": ("Tree", lambda v: Tree(v, [2, 2])),  # type: ignore[arg-type]
        "counts": ("Tree", lambda v: Tree([0, 4, 1, 2], v)),  # type: ignore[arg-type]
    }
    return found


USES = uses()


@pytest.mark.parametrize("use", USES)
@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's own
def test_any_argument_is_taken_or_answered_in_one_sentence(use: str):
    name, call = USES[use]
    told = {}
    for said, value in ANYTHING.items():
        try:
            call(value)
        except (TypeError, ValueError, IndexError) as error:
            told[said] = str(error).replace(repr(value), "…")  # which may be of several lines
    begins = f"{name}: ", f"{name}.from_torch: ", "sample: "
    assert [each for each in told.items() if not each[1].startswith(begins) or "\n" in each[1]] == []


def test_blocks_cover_all_once():
    for count, width, held in [(0, 5, 10), (7, 3, 10), (7, 100, 10), (7, 0, 3)]:
        parts = factored.blocks(count, width, held)
        assert [i for part in parts for i in range(count)[part]] == list(range(count))
        assert all(0 < (part.stop - part.start) * max(1, width) <= max(held, width) for part in parts)
