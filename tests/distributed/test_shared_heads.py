"""Heads whose classes are shared among three ranks, beside one process with the whole layer; what they send; and their modules."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import shards
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from processes import Processes
from shards import normal, own_of
from torch import Tensor

import softmaxima as sm
from conftest import exhaustively, some
from softmaxima.distributed import heads, messages
from softmaxima.losses import REGISTRY as LOSSES

FORMED = [name for name, loss in LOSSES.items() if loss.row_form is not None]
WIDTHS = [(5, 0, 4), exhaustively((3, 3, 3)), exhaustively((0, 0, 9)), exhaustively((1, 2, 6))]
apart = functools.partial(shards.apart, least=1e-3)  # gradients of means are small
NEAR = {torch.float64: 1e-12, torch.float32: 1e-6}


def compared(whole: Callable[..., Tensor], shared: Callable[..., Tensor], given: dict[str, Any], own: slice) -> float:
    """How far the value and the gradients by all tensors that are given are apart; those of classes are cut."""
    of_classes, found = ("weight", "bias"), []
    for function, cut in ((whole, False), (shared, True)):
        tensors = {key: value.clone().requires_grad_() for key, value in given.items()}
        value = function(**{key: tensor[own] if cut and key in of_classes else tensor for key, tensor in tensors.items()})
        slopes = torch.autograd.grad(value.sum(), list(tensors.values()))
        found.append([value.detach(), *(v[own] if key in of_classes else v for key, v in zip(given, slopes, strict=True))])
    return max(apart(a, b) for a, b in zip(*reversed(found), strict=True))


def doubled(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: value.double() for key, value in tensors.items()}


def layer(n: int, dtype: torch.dtype, rows: int = 7, features: int = 6) -> dict[str, Tensor]:
    return {
        "hidden": normal(rows, features, seed=1, dtype=dtype),
        "weight": normal(n, features, seed=2, dtype=dtype),
        "bias": normal(n, seed=3, dtype=dtype),
    }


# linear_loss ------------------------------------------------------------------------------------------------------------------


def of_a_loss(rank: int, name: str, widths: tuple[int, ...], dtype: torch.dtype) -> list[tuple[float, dict[str, Any]]]:
    """(how far all is from one process in float64, what was asked for), of each case."""
    n, own, found = sum(widths), own_of(rank, widths), []
    given, rows = layer(n, dtype), 7
    labels, class_weight = torch.tensor([0, n - 1, -100, 3, 2, 2, 1]), normal(n, seed=5, dtype=dtype).abs() + 0.1
    soft = normal(rows, n, seed=4, dtype=dtype).softmax(-1)
    for example in LOSSES[name].examples:
        of_v = LOSSES[name].row_form.of_p is None and name != "sparse_softmax_loss"  # type: ignore[union-attr]
        cases: list[tuple[Tensor, dict[str, Any]]] = [(labels, {"chunk": 2}), (labels, {"class_weight": class_weight})]
        cases += [(labels, {"reduction": "none", "temperature": 0.7, "softcap": 3.0})]
        cases += [(labels, {"z_loss": 0.05, "reduction": "sum"})] if of_v else []
        cases += [(soft, {"class_weight": class_weight, "label_smoothing": 0.3}), (labels, {"label_smoothing": 0.1, "chunk": 3})]
        cases += [(labels, {"class_weight": class_weight, "label_smoothing": 0.3})]
        for target, more in cases if not found else some(cases, name, example, widths, dtype):
            mine = {**more, "class_weight": more["class_weight"][own]} if "class_weight" in more else more
            y = target[:, own] if target.is_floating_point() else target
            wide = {k: v.double() if isinstance(v, Tensor) else v for k, v in more.items()}
            y64 = target.double() if target.is_floating_point() else target
            of: dict[str, Any] = {"loss": (name, example)}
            whole = lambda y=y64, wide=wide, of=of, **t: sm.linear_loss(target=y, **of, **wide, **doubled(t))
            alone = lambda y=target, more=more, of=of, **t: sm.linear_loss(target=y, **of, **more, **t)
            shared = lambda y=y, mine=mine, of=of, **t: sm.distributed.linear_loss(target=y, **of, **mine, **t)
            far = compared(whole, shared, given, own)
            if far > NEAR[dtype]:  # is one process as far off, whose scores are rounded as well?
                far /= max(1.0, 2 * compared(whole, alone, given, slice(0, n)) / NEAR[dtype])
            found.append((far, more))
    return found


@pytest.mark.parametrize("floats", [torch.float64, torch.float32])
@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("name", FORMED)
def test_every_loss_is_that_of_the_whole_layer(name: str, widths: tuple[int, ...], floats: torch.dtype, three: Processes) -> None:
    for found in three.run(of_a_loss, name, widths, floats):
        assert max(found, key=lambda pair: pair[0])[0] <= NEAR[floats], found


def of_half_precision(rank: int) -> list[float]:
    """bfloat16 layers beside the same numbers in float64: values and gradients, in the rounding of bfloat16."""
    widths, labels = (500, 0, 300), torch.arange(7) * 100
    own, given = own_of(rank, widths), layer(800, torch.bfloat16, features=64)
    found = []
    for name in ("cross_entropy", "sparsemax"):
        whole = lambda name=name, **t: sm.linear_loss(
            *(t[k].double() for k in ("hidden", "weight")), labels, bias=t["bias"].double(), loss=name
        )
        shared = lambda name=name, **t: sm.distributed.linear_loss(target=labels, loss=name, **t)
        found.append(compared(whole, shared, given, own) / torch.finfo(torch.bfloat16).eps)
    return found


def test_half_precision_is_summed_in_float32(three: Processes) -> None:
    for found in three.run(of_half_precision):
        assert max(found) <= 1, found


def of_the_largest_numbers(rank: int) -> list[float]:
    """Scores near ±1e4, a class that a bias leaves out, rows that hold NaN and are ignored, a target of probability 0."""
    widths = (5, 0, 4)
    own, given = own_of(rank, widths), layer(9, torch.float64)
    given["hidden"][:2] *= 3e3
    given["bias"][7] = -math.inf
    labels, found = torch.tensor([0, 8, -100, 3, 2, 2, 1]), []
    given["hidden"][2] = math.nan
    for name in ("cross_entropy", "entmax15"):
        for target in (labels, labels.masked_fill(labels == 8, 7)):
            whole = lambda name=name, target=target, **t: sm.linear_loss(target=target, loss=name, **t)
            shared = lambda name=name, target=target, **t: sm.distributed.linear_loss(target=target, loss=name, **t)
            found.append(compared(whole, shared, given, own))
    return found


def test_hard_numbers(three: Processes) -> None:
    for found in three.run(of_the_largest_numbers):
        assert max(found) <= 1e-12, found


class Gathered(torch.autograd.Function):
    """The rows of all ranks, two of each, whose gradient is the sum over the ranks, as of sequence parallelism."""

    @staticmethod
    def forward(ctx: Any, own: Tensor) -> Tensor:
        every = [torch.empty_like(own) for _ in range(3)]
        dist.all_gather(every, own.contiguous())
        return torch.cat(every)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Tensor:
        total = upstream[0].clone()
        dist.all_reduce(total)
        return total[2 * dist.get_rank() :][:2]


def of_what_learns(rank: int) -> list[float]:
    """A temperature of all rows, one of each, and rows of two axes; the gradient by hidden summed by a gather instead."""
    widths, labels = (5, 0, 4), torch.tensor([[0, 8, -100], [3, 2, 2]])
    own, given = own_of(rank, widths), layer(9, torch.float64, rows=6)
    given["hidden"] = given["hidden"].view(2, 3, 6)
    found = []
    for tau in (torch.tensor(0.7, dtype=torch.float64), normal(2, 1, 1, seed=9).abs() + 0.5, normal(2, 3, 1, seed=9).abs() + 0.5):
        for more in ({}, {"softcap": 2.0, "reduction": "none"}):
            whole = lambda more=more, **t: sm.linear_loss(target=labels, **more, **t)
            shared = lambda more=more, **t: sm.distributed.linear_loss(target=labels, **more, **t)
            found.append(compared(whole, shared, {**given, "temperature": tau}, own))

    def gathered(**t: Tensor) -> Tensor:
        """Each rank has the hidden states of two rows, and gathers those of others, by what sums in its backward pass."""
        rows = t["hidden"].flatten(0, 1)
        every = Gathered.apply(rows[2 * rank : 2 * rank + 2])
        own = {key: value for key, value in t.items() if key != "hidden"}
        return sm.distributed.linear_loss(every, target=labels.flatten(), reduce_hidden=False, **own)

    slopes = []
    for function in (lambda **t: sm.linear_loss(target=labels, **t), gathered):
        tensors = {key: value.clone().requires_grad_() for key, value in given.items()}
        cut = {k: v[own] if function is gathered and k != "hidden" else v for k, v in tensors.items()}
        slopes.append(torch.autograd.grad(function(**cut), tensors["hidden"])[0].flatten(0, 1)[2 * rank : 2 * rank + 2])
    return [*found, apart(slopes[1], slopes[0])]


def test_temperatures_learn_and_hidden_states_may_be_gathered(three: Processes) -> None:
    for found in three.run(of_what_learns):
        assert max(found) <= 1e-12, found


def of_long_rows(rank: int) -> tuple[float, float, int, list[Tensor]]:
    """float32 layers of more classes than one part of the rows has room for: (how far, again, the most rows of a part, results)."""
    widths = (40_000, 1000, 5000)
    own, given = own_of(rank, widths), layer(sum(widths), torch.float32, rows=200, features=16)
    labels, most = torch.arange(200) * 230, []
    was = heads.scored
    heads.scored = lambda part, *more: (most.append(len(part.hidden)), was(part, *more))[1]
    results = []
    try:
        for _ in range(2):
            tensors = {key: (v if key == "hidden" else v[own]).clone().requires_grad_() for key, v in given.items()}
            value = sm.distributed.linear_loss(target=labels, **tensors)
            results.append([value.detach(), *torch.autograd.grad(value, list(tensors.values()))])
    finally:
        heads.scored = was
    wide = {key: v.double().requires_grad_() for key, v in given.items()}
    scores = wide["hidden"] @ wide["weight"].T + wide["bias"]
    expected = torch.nn.functional.cross_entropy(scores, labels)
    slopes = torch.autograd.grad(expected, list(wide.values()))
    theirs = [expected.detach(), slopes[0], slopes[1][own], slopes[2][own]]
    far = max(apart(a, b) for a, b in zip(results[0], theirs, strict=True))
    again = max(apart(a, b) for a, b in zip(results[0], results[1], strict=True))
    return far, again, max(most), [results[0][0], results[0][1]]


def test_rows_in_parts_are_alike_on_all_ranks_and_again(three: Processes) -> None:
    found = three.run(of_long_rows)
    assert max(far for far, _, _, _ in found) <= 1e-6
    assert max(again for _, again, _, _ in found) == 0
    assert found[0][2] < 100  # rows at a time, of 40 000 classes in float32
    for _, _, _, (value, slope) in found[1:]:
        assert torch.equal(value, found[0][3][0])
        assert torch.equal(slope, found[0][3][1])


# Margins ----------------------------------------------------------------------------------------------------------------------


def of_margins(rank: int, dtype: torch.dtype) -> list[float]:
    widths, labels, found = (5, 0, 4), torch.tensor([0, 8, -100, 3, 2, 2, 1]), []
    own = own_of(rank, widths)
    given = {key: value for key, value in layer(9, dtype).items() if key != "bias"}
    class_weight = normal(9, seed=5, dtype=dtype).abs() + 0.1
    cases: list[dict[str, Any]] = [
        {"kind": "arcface", "margin": 0.5, "scale": 8.0, "chunk": 2},
        {"kind": "arcface", "margin": 2.5, "scale": 8.0, "class_weight": class_weight},
        {"kind": "am", "margin": 0.4, "scale": 5.0, "loss": "entmax15", "reduction": "none"},
        {"kind": "combined", "margin": (1.5, 0.3, 0.2), "scale": 4.0, "label_smoothing": 0.1},
    ]
    for more in cases:
        mine = {**more, "class_weight": more["class_weight"][own]} if "class_weight" in more else more
        wide = {k: v.double() if isinstance(v, Tensor) else v for k, v in more.items()}
        whole = lambda wide=wide, **t: sm.margin_softmax_loss(target=labels, **wide, **doubled(t))
        shared = lambda mine=mine, **t: sm.distributed.margin_softmax_loss(target=labels, **mine, **t)
        found.append(compared(whole, shared, given, own))
    scale = normal(7, 1, seed=6, dtype=dtype).abs() + 4
    whole = lambda **t: sm.margin_softmax_loss(target=labels, **doubled(t))
    shared = lambda **t: sm.distributed.margin_softmax_loss(target=labels, **t)
    found.append(compared(whole, shared, {**given, "scale": scale}, own))
    vectors = {"hidden": given["hidden"], "weight": normal(27, 6, seed=7, dtype=dtype)}
    whole = lambda **t: sm.margin_softmax_loss(target=labels, scale=9.0, centres=3, **doubled(t))
    shared = lambda **t: sm.distributed.margin_softmax_loss(target=labels, scale=9.0, centres=3, **t)
    return [*found, compared(whole, shared, vectors, slice(3 * own.start, 3 * own.stop))]


@pytest.mark.parametrize("floats", [torch.float64, torch.float32])
def test_margins_are_those_of_the_whole_layer(floats: torch.dtype, three: Processes) -> None:
    for found in three.run(of_margins, floats):
        assert max(found) <= NEAR[floats], found


def of_partial_classes(rank: int) -> tuple[float, float, float, float, float]:
    """(with all classes taken, how far from the exact loss; the mean of exp(loss) over draws beside the exact one, its gradient by
    hidden beside that, in standard errors; the largest deviation of draws; how far the gradient by the scale is from differences).
    """
    widths, labels = (12, 0, 8), torch.tensor([0, 19, -100, 3, 2, 2, 13])
    own = own_of(rank, widths)
    given = {"hidden": normal(7, 6, seed=1), "weight": normal(20, 6, seed=2)}
    same: dict[str, Any] = {"target": labels, "scale": 3.0, "margin": 0.4, "centres": 1}
    whole = lambda **t: sm.margin_softmax_loss(**same, **t)
    shared = lambda **t: sm.distributed.margin_softmax_loss(**same, samples=50, **t)
    exact = compared(whole, shared, given, own)
    hidden, few = given["hidden"].clone().requires_grad_(), given["weight"][own]
    generator, values, slopes = torch.Generator().manual_seed(rank), [], []
    for _ in range(144):
        each = sm.distributed.margin_softmax_loss(hidden, few, samples=6, reduction="none", generator=generator, **same).exp()
        values.append(each.detach())
        slopes.append(torch.autograd.grad(each.sum(), hidden)[0])
    expected = sm.margin_softmax_loss(hidden, given["weight"], reduction="none", **same).exp()
    by_hidden = torch.autograd.grad(expected.sum(), hidden)[0]
    errors = [
        float(((torch.stack(found).mean(0) - of).abs() / (torch.stack(found).std(0) / 12).clamp_min(1e-9)).max())
        for found, of in ((values, expected.detach()), (slopes, by_hidden))
    ]
    drawn = lambda scale: sm.distributed.margin_softmax_loss(hidden, few, labels, scale=scale, samples=6, generator=rank)
    scale, step = torch.tensor(3.0, dtype=torch.float64, requires_grad=True), 1e-5
    (by_scale,) = torch.autograd.grad(drawn(scale), scale)
    difference = (drawn(3.0 + step) - drawn(3.0 - step)) / (2 * step)
    return exact, errors[0], errors[1], float(torch.stack(values).std(0).max()), apart(by_scale, difference.detach())


def test_partial_classes_are_unbiased_and_all_of_them_exact(three: Processes) -> None:
    for exact, of_values, of_slopes, spread, by_scale in three.run(of_partial_classes):
        assert by_scale <= 1e-8
        assert exact <= 1e-12
        assert of_values < 4.5  # the largest of 6 rows
        assert of_slopes < 4.5  # of 36 numbers
        assert spread > 0.01  # there was something to draw


# Sampled ----------------------------------------------------------------------------------------------------------------------


class Listed(sm.Sampler):
    """Draws what it is told, of a Q of its own."""

    def __init__(self, classes: int, drawn: Tensor) -> None:
        super().__init__(classes)
        self.drawn, self.q = drawn, normal(classes, seed=classes).abs().log_softmax(-1)

    def log_prob(self, classes: Any) -> Tensor:
        return self.q[classes]

    def sample(self, shape: Any, generator: Any = None) -> Tensor:
        assert tuple(shape) == tuple(self.drawn.shape)
        return self.drawn


def of_negatives(rank: int, correction: str, shared: bool) -> float:
    """How far the loss and all gradients are from the formula, written down for all ranks' draws at once."""
    widths, labels, m = (5, 0, 4), torch.tensor([0, 8, -100, 3, 2, 2, 1]), 6
    own, shape = own_of(rank, widths), (6,) if shared else (7, 6)
    samplers = [Listed(n, torch.randint(n, shape, generator=torch.Generator().manual_seed(n))) if n else None for n in widths]

    def whole(hidden: Tensor, weight: Tensor, bias: Tensor, temperature: Tensor) -> Tensor:
        scores, losses = (hidden @ weight.T + bias) / temperature, []
        for row, label in enumerate(labels.tolist()):
            if label < 0:
                continue
            terms, at_label = [], scores[row, label]
            for r, sampler in enumerate(samplers):
                first = sum(widths[:r])
                if sampler is None:
                    continue
                drawn = sampler.drawn if shared else sampler.drawn[row]
                here = first <= label < first + widths[r]
                q = sampler.q.exp()
                if correction == "positive":
                    left = [int(c) for c in drawn if not (here and first + c == label)]
                    scale = 1 - q[label - first] if here else 1.0
                    terms += [scores[row, first + c].exp() / (q[c] / scale) / len(left) for c in left]
                elif correction == "log_q":
                    terms += [scores[row, first + c].exp() / q[c] for c in drawn]
                    at_label = at_label - q[label - first].log() if here else at_label
                else:
                    terms += [scores[row, first + c].exp() for c in drawn]
            losses.append((at_label.exp() + torch.stack(terms).sum()).log() - at_label)
        return torch.stack(losses).mean()

    ours = lambda **t: sm.distributed.sampled_softmax_loss(
        target=labels, samples=m, sampler=samplers[rank] or "uniform", correction=correction, shared=shared, **t
    )
    return compared(whole, ours, {**layer(9, torch.float64), "temperature": torch.tensor(0.8, dtype=torch.float64)}, own)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("correction", ["positive", "log_q", "none"])
def test_negatives_of_all_ranks_make_the_formula(correction: str, shared: bool, three: Processes) -> None:
    assert max(three.run(of_negatives, correction, shared)) <= 1e-12


def of_estimates(rank: int, sampler: str) -> float:
    """How far the mean of exp(loss) over draws is from the exact one, in standard errors."""
    widths, labels = (30, 0, 20), torch.tensor([0, 49, -100, 3, 2, 2, 31])
    own, given = own_of(rank, widths), layer(50, torch.float64)
    hidden, weight, bias = given["hidden"] / 3, given["weight"], given["bias"]
    generator = torch.Generator().manual_seed(rank)
    of_classes: Any = sampler if sampler != "weights" else torch.arange(1, 51, dtype=torch.float64)[own]
    found = torch.stack([
        sm.distributed.sampled_softmax_loss(
            hidden, weight[own], labels, bias=bias[own], samples=8, sampler=of_classes, reduction="none", generator=generator
        ).exp()
        for _ in range(144)
    ])  # fmt: skip
    expected = sm.linear_loss(hidden, weight, labels, bias=bias, reduction="none").exp()
    return float(((found.mean(0) - expected).abs() / (found.std(0) / 12).clamp_min(1e-9)).max())


@pytest.mark.parametrize("sampler", ["uniform", "log_uniform", exhaustively("weights")])
def test_the_estimated_sum_is_unbiased(sampler: str, three: Processes) -> None:
    assert max(three.run(of_estimates, sampler)) < 4.5


def test_log_uniform_of_later_classes_is_what_is_left_to_them() -> None:
    whole, later = sm.LogUniformSampler(50), sm.LogUniformSampler(20, first=30)
    left = whole.log_prob(torch.arange(30, 50)).exp()
    torch.testing.assert_close(later.log_prob(torch.arange(20)).exp(), left / left.sum())
    counts = later.sample(100_000, generator=0).bincount(minlength=20) / 100_000
    assert float((counts - later.log_prob(torch.arange(20)).exp()).abs().max()) < 5 * (0.06 / 100_000) ** 0.5
    assert torch.equal(sm.LogUniformSampler(50, 0).sample(9, generator=1), whole.sample(9, generator=1))


# What is sent -----------------------------------------------------------------------------------------------------------------


def of_messages(rank: int, what: str) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """(what a forward pass of 4 rows of 6 features sends, of which one is ignored, what a backward pass sends)."""
    own, given, sent = own_of(rank, (4, 4, 4)), layer(12, torch.float32, rows=4), []
    gather, reduce = messages.ALL_GATHER, messages.ALL_REDUCE
    messages.ALL_GATHER = lambda out, x, *more, **how: (sent.append(("gather", x.numel())), gather(out, x, *more, **how))[1]
    messages.ALL_REDUCE = lambda message, **how: (sent.append(("sum", message.numel())), reduce(message, **how))[1]
    labels = torch.tensor([0, 5, 11, -100])
    try:
        hidden, weight = given["hidden"].requires_grad_(), given["weight"][own].clone().requires_grad_()
        of = sm.distributed
        if what == "sampled":
            loss = of.sampled_softmax_loss(hidden, weight, labels, samples=3, sampler="uniform")
        elif what in ("margin", "partial"):
            loss = of.margin_softmax_loss(hidden, weight, labels, chunk=1, samples=2 if what == "partial" else None)
        elif what == "detached":
            loss = of.linear_loss(hidden.detach(), weight, labels)
        elif what == "own part":
            loss = of.linear_loss(hidden, weight, labels, reduce_hidden=False)
        elif what == "tau":
            loss = of.linear_loss(hidden, weight, labels, temperature=torch.tensor(0.5, requires_grad=True))
        else:
            loss = of.linear_loss(hidden, weight, labels, loss=what, chunk=1)
        forward = list(sent)
        loss.backward()
    finally:
        messages.ALL_GATHER, messages.ALL_REDUCE = gather, reduce
    return forward, sent[len(forward) :]


@pytest.mark.parametrize(
    ("what", "forward", "backward"),
    [
        ("cross_entropy", [12], [18]),
        ("sparsemax", [3 * (1 + 1 + 4)], [18]),
        ("soft_accuracy", [12, 3 * 5], [18]),
        ("margin", [12], [18]),
        ("partial", [12], [18]),
        ("sampled", [12], [24]),
        ("detached", [12], []),
        ("own part", [12], []),
        ("tau", [12], [19]),
    ],
)
def test_a_step_is_one_gather_and_one_sum(what: str, forward: list[int], backward: list[int], three: Processes) -> None:
    for there, back in three.run(of_messages, what):
        assert there == [("gather", numbers) for numbers in forward]
        assert back == [("sum", numbers) for numbers in backward]


# Modules ----------------------------------------------------------------------------------------------------------------------


def linear(rank: int) -> dict[str, Any]:
    """A module of three ranks beside the same layer whole: losses, gradients, steps of Adam, predictions."""
    torch.manual_seed(rank)  # of which only that of the first counts
    hidden, labels = normal(7, 6, seed=1, dtype=torch.float32), torch.tensor([0, 9, -100, 3, 2, 2, 1])
    weights = normal(10, seed=3, dtype=torch.float32).abs()
    head = sm.distributed.LinearLoss(6, 10, loss="entmax15", bias=True, temperature=0.7, class_weight=weights, chunk=2)
    whole = sm.LinearLoss(6, 10, loss="entmax15", bias=True, temperature=0.7, class_weight=weights)
    with torch.no_grad():
        whole.weight.copy_(head.weight.full_tensor())
        whole.bias.copy_(head.bias.full_tensor())
    begun = {"weight": whole.weight.detach().clone(), "bias": whole.bias.detach().clone()}
    far = []
    for module in (head, whole):
        optimiser = torch.optim.Adam(module.parameters(), lr=0.05)
        losses = []
        for _ in range(3):
            optimiser.zero_grad()
            loss = module(hidden, labels)
            loss.backward()
            optimiser.step()
            losses.append(loss.detach())
        far.append(torch.stack(losses))
    apart_by = {
        "losses": apart(*far), "weight": apart(head.weight.full_tensor().detach(), whole.weight.detach()),
        "bias": apart(head.bias.full_tensor().detach(), whole.bias.detach()),
        "predictions": float((head.predict(hidden, 4) != whole.predict(hidden, 4)).sum()),
    }  # fmt: skip
    return {**apart_by, "begun": begun, "own": len(head.own_classes), "local": len(head.weight.to_local()), "repr": repr(head)}


def test_a_module_learns_as_the_whole_layer_does(three: Processes) -> None:
    found = three.run(linear)
    for each in found:
        assert max(each[key] for key in ("losses", "weight", "bias")) <= 1e-5
        assert each["predictions"] == 0
    assert [each["own"] for each in found] == [each["local"] for each in found] == [4, 4, 2]
    assert "10, own_classes=4:8" in found[1]["repr"]
    assert float(found[0]["begun"]["weight"].abs().max()) <= 6**-0.5


def first_values(rank: int, kind: str) -> Tensor:
    torch.manual_seed(5)
    if kind == "linear":
        return sm.distributed.LinearLoss(3, 2500).weight.full_tensor().detach()
    return sm.distributed.MarginSoftmax(3, 2500, centres=2).weight.full_tensor().detach()


@pytest.mark.parametrize("kind", ["linear", "margin"])
def test_first_values_do_not_depend_on_the_number_of_ranks(kind: str, one: Processes, three: Processes) -> None:
    alone = one.run(first_values, kind)[0]
    for found in three.run(first_values, kind):
        assert torch.equal(found, alone)
    assert len(alone.unique()) > 0.9 * alone.numel()  # blocks differ


def save(rank: int, folder: str) -> tuple[Tensor, Tensor]:
    """A head and its optimiser after a step, written by all ranks."""
    head, optimiser = trained()
    state = {"head": head.state_dict(), "moments": optimiser.state_dict()["state"]}
    checkpoint.save(state, checkpoint_id=folder)
    return head.weight.full_tensor().detach(), optimiser.state[head.weight]["exp_avg"].full_tensor()


def trained() -> tuple[Any, Any]:
    head = sm.distributed.LinearLoss(6, 10, bias=True, class_weight=torch.arange(1.0, 11.0))
    optimiser = torch.optim.Adam(head.parameters())
    head(normal(4, 6, seed=1, dtype=torch.float32), torch.tensor([0, 9, 4, 5])).backward()
    optimiser.step()
    return head, optimiser


def load(rank: int, folder: str) -> tuple[Tensor, Tensor, Tensor]:
    head, optimiser = trained()
    state = {"head": head.state_dict(), "moments": optimiser.state_dict()["state"]}
    checkpoint.load(state, checkpoint_id=folder)
    return head.weight.full_tensor().detach(), state["moments"][0]["exp_avg"].full_tensor(), head.class_weight.full_tensor()


def test_a_checkpoint_of_three_ranks_is_read_by_one(one: Processes, three: Processes, tmp_path: Path) -> None:
    weight, moments = three.run(save, str(tmp_path / "saved"))[0]
    found = one.run(load, str(tmp_path / "saved"))[0]
    assert torch.equal(found[0], weight)
    assert torch.equal(found[1], moments)
    assert torch.equal(found[2], torch.arange(1.0, 11.0))


def other_modules(rank: int) -> list[tuple[str, float]]:
    """Margin and sampled modules beside whole ones with the same weights."""
    hidden, labels, found = normal(7, 6, seed=1, dtype=torch.float32), torch.tensor([0, 9, -100, 3, 2, 2, 1]), []
    head = sm.distributed.MarginSoftmax(
        6, 10, kind="combined", margin=(1.0, 0.3, 0.2), scale=9.0, centres=2, samples=2, generator=rank
    )
    whole = sm.MarginSoftmax(6, 10, kind="combined", margin=(1.0, 0.3, 0.2), scale=9.0, centres=2)
    with torch.no_grad():
        whole.weight.copy_(head.weight.full_tensor().flatten(0, 1))
    found.append(("some classes are not all", float(apart(head(hidden, labels), whole(hidden, labels)) < 1e-4)))
    found.append(("margins", apart(head.eval()(hidden, labels), whole(hidden, labels))))
    found.append(("best cosines", float((head.predict(hidden, 3) != whole.cosines(hidden).topk(3).indices).sum())))
    found.append(("of one process", float((whole.predict(hidden, 3) != whole.cosines(hidden).topk(3).indices).sum())))
    for sampler in ("log_uniform", "frequency", torch.arange(1.0, 11.0)):
        sampled = sm.distributed.SampledSoftmax(6, 10, 20, sampler, generator=rank)
        layer = sm.SampledSoftmax(6, 10, 20, "uniform")
        with torch.no_grad():
            layer.weight.copy_(sampled.weight.full_tensor())
            layer.bias.copy_(sampled.bias.full_tensor())  # type: ignore[union-attr]
        own = sampled.own_classes
        loss = sampled(hidden, labels)
        loss.backward()
        found.append(("a gradient", float(sampled.weight.grad.full_tensor().norm() < 1e-3)))  # type: ignore[union-attr]
        found.append(("near", float(apart(loss.detach(), layer.eval()(hidden, labels).detach()) > 0.5)))
        found.append(("exact", apart(sampled.eval()(hidden, labels), layer.eval()(hidden, labels))))
        found.append(("log_prob", apart(sampled.log_prob(hidden), layer.log_prob(hidden)[:, own.start : own.stop])))
        if sampler == "frequency" and rank != 2:  # labels of own classes were seen
            seen = sampled.sampler.counts
            mine = [int(label) - own.start for label in labels if label in own]
            found.append(("counts", float((seen != torch.tensor(mine, dtype=torch.long).bincount(minlength=len(own))).sum())))
    return found


def test_margin_and_sampled_modules(three: Processes) -> None:
    for found in three.run(other_modules):
        for what, far in found:
            assert far <= 1e-5, (what, found)


def of_log_probabilities(rank: int) -> list[tuple[str, float]]:
    """How far they and their gradients are from log_softmax of the whole layer, in float64 and in float32 beside autocast."""
    found = []
    for dtype, autocast in ((torch.float64, False), (torch.float32, False), (torch.float32, True)):
        hidden, g = normal(7, 6, seed=1, dtype=dtype).requires_grad_(), normal(7, 10, seed=2, dtype=dtype)
        head = sm.distributed.SampledSoftmax(6, 10, 20, "uniform", dtype=dtype)
        own, weight = head.own_classes, head.weight.full_tensor().detach().double().requires_grad_()
        wide, bias = hidden.detach().double().requires_grad_(), head.bias.full_tensor().detach().double()
        expected = torch.log_softmax(wide @ weight.T + bias, -1)
        by_hidden, by_weight = torch.autograd.grad(expected, (wide, weight), g.double())
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            log_p = head.log_prob(hidden)
        log_p.backward(g[:, own.start : own.stop])
        slope = head.weight.grad.to_local()
        found.append((f"log p {dtype} {autocast}", apart(log_p.detach(), expected.detach()[:, own.start : own.stop])))
        found.append((f"by hidden {dtype} {autocast}", apart(hidden.grad, by_hidden)))
        found.append((f"by weight {dtype} {autocast}", apart(slope, by_weight[own.start : own.stop])))
        assert log_p.dtype == dtype
    return found


def test_log_probabilities_and_their_gradients_are_those_of_the_whole_layer(three: Processes) -> None:
    for found in three.run(of_log_probabilities):
        for what, far in found:
            assert far <= (1e-13 if "float64" in what else 2e-6), found


# Data parallel ----------------------------------------------------------------------------------------------------------------


def of_batches(rank: int) -> list[float]:
    """DDP over ranks with 4, 0 and 2 labels, beside one process with all rows."""
    labels = torch.tensor([0, 8, -100, 3, 2, -100, -100, 2, 1, -100, -100, -100])
    hidden, weights = normal(12, 6, seed=1, dtype=torch.float32), normal(9, seed=3, dtype=torch.float32).abs()
    order = torch.tensor([0, 1, 3, 4, 2, 5, 6, 9, 7, 8, 10, 11]).view(3, 4)  # of which rank which row is
    own, found = order[rank], []
    for class_weight in (None, weights):
        torch.manual_seed(0)
        body, of = torch.nn.Linear(6, 6), {"class_weight": class_weight}
        plain = Both(body, sm.LinearLoss(6, 9, reduction="sum", **of))
        whole = Both(copy.deepcopy(body), sm.LinearLoss(6, 9, **of))
        whole.load_state_dict(plain.state_dict())
        expected = whole(hidden, labels)
        expected.backward()
        model = torch.nn.parallel.DistributedDataParallel(plain)
        total = model(hidden[own], labels[own])
        counted = labels[own] != -100
        count = counted.sum() if class_weight is None else class_weight[labels[own][counted]].sum()
        loss = sm.distributed.batch_mean(total, count)
        loss.backward()
        found.append(apart(loss.detach(), expected.detach()))
        found += [apart(a.grad, b.grad) for a, b in zip(plain.parameters(), whole.parameters(), strict=True)]  # type: ignore[arg-type]
    return found


class Both(torch.nn.Module):
    def __init__(self, body: torch.nn.Module, head: torch.nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, head

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        return self.head(self.body(hidden), target)


def test_the_mean_over_unequal_batches_is_that_of_one_process(three: Processes) -> None:
    for found in three.run(of_batches):
        assert max(found) <= 1e-6, found


def of_no_labels(rank: int) -> float:
    total = torch.zeros((), requires_grad=True)
    return float(sm.distributed.batch_mean(total, 0))


def test_the_mean_of_nothing_is_not_a_number(three: Processes) -> None:
    assert all(math.isnan(found) for found in three.run(of_no_labels))


# Wrong calls ------------------------------------------------------------------------------------------------------------------


def told(rank: int, what: str) -> str:
    """What a wrong call raises on this rank."""
    hidden, weight, labels = normal(3, 4, seed=1), normal(4, 4, seed=rank), torch.tensor([0, 11, 5])
    of = sm.distributed
    try:
        if what == "features":
            of.linear_loss(hidden[:, : 4 - (rank == 1)], weight[:, : 4 - (rank == 1)], labels)
        elif what == "no class":
            of.linear_loss(hidden, weight, torch.tensor([0, 12, 3]))
        elif what == "bias":
            of.linear_loss(hidden, weight, labels, bias=torch.zeros(4).double() if rank else None)
        elif what == "requires grad":
            of.linear_loss(hidden.requires_grad_(rank == 1), weight, labels)
        elif what == "log p requires grad":
            of.SampledSoftmax(4, 12, 2, dtype=torch.float64).log_prob(hidden.requires_grad_(rank == 1))
        elif what == "τ requires grad":
            tau = torch.tensor(0.5, requires_grad=True).double()
            h, tau = (hidden, tau) if rank else (hidden.requires_grad_(), tau.detach())
            of.sampled_softmax_loss(h, weight, labels, samples=2, sampler="uniform", temperature=tau)
        elif what == "form":
            of.linear_loss(hidden, weight, labels, loss="perturb_max")
        elif what == "option":
            of.linear_loss(hidden, weight, labels, loss=("entmax", torch.tensor(1.5, requires_grad=True)))
        elif what == "chunk":
            of.linear_loss(hidden, weight, labels, chunk=(2, 2))
        elif what == "z_loss":
            of.linear_loss(hidden, weight, labels, loss="soft_accuracy", z_loss=0.1)
        elif what == "one refuses":
            of.linear_loss(hidden, weight if rank != 1 else weight[:, :3], labels)
        elif what == "samples":
            of.margin_softmax_loss(hidden, weight, labels, samples=2, loss="sparsemax")
        elif what == "labels":
            of.margin_softmax_loss(hidden, weight, labels if rank else labels.flip(0) + 1, samples=2)
        elif what == "sampled class":
            of.sampled_softmax_loss(hidden, weight, torch.tensor([0, 12, 3]), samples=2, sampler="uniform")
        elif what == "sampler":
            of.sampled_softmax_loss(hidden, weight, labels, samples=2, sampler=sm.UniformSampler(12))
        elif what == "k":
            of.LinearLoss(4, 12, dtype=torch.float64).predict(hidden, 13)
        elif what == "loss":
            of.LinearLoss(4, 12, loss="sparsemox")
        elif what == "unknown":
            of.LinearLoss(4, 12, outputs="entropy")
        elif what == "count":
            of.batch_mean(hidden, 3)
        elif what == "second derivative":
            h = hidden.requires_grad_()
            (slope,) = torch.autograd.grad(of.linear_loss(h, weight, labels), h, create_graph=True)
            slope.sum().backward()
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("features", "features must be the same on all ranks, got 4 on rank 0, 3 on rank 1, 4 on rank 2"),
        ("no class", "each target must be a label on one rank, got 12 in a row, found on 0; ranks 0, 1, 2 have 12 classes"),
        ("bias", "bias must be the same on all ranks, got none on rank 0, given on rank 1"),
        ("requires grad", "gradients must be the same on all ranks, got none on rank 0, hidden on rank 1"),
        ("log p requires grad", "gradients must be the same on all ranks, got none on rank 0, hidden on rank 1"),
        ("τ requires grad", "gradients must be the same on all ranks, got hidden on rank 0, temperature on rank 1"),
        ("form", "it has no form in parts; take the loss of whole rows"),
        ("option", "alpha must not require grad here; give its value"),
        ("chunk", "chunk must be a number of rows, got (2, 2); classes come in parts here, one a rank"),
        ("z_loss", "z_loss needs a loss with ∂L/∂x = p − y"),
        ("samples", "samples are for cross_entropy without label_smoothing"),
        ("labels", "target must be the same on all ranks, got 3 labels from 1 to 12 with the checksum"),
        ("sampled class", "each target must be a label on one rank, got 12, out of range for 12 classes of all ranks"),
        ("sampler", "sampler must be of the layer's 4 classes, got one of 12"),
        ("k", "k must be at most 12, the number of classes, got 13"),
        ("loss", "unknown loss 'sparsemox'; did you mean 'sparsemax'"),
        ("unknown", "unknown argument 'outputs'; it takes: bias, chunk"),
        ("count", "total must have no axes, got shape (3, 4); take the loss with reduction='sum'"),
        ("second derivative", "there is no second derivative; take the loss of whole rows"),
    ],
)
def test_wrong_calls_are_told_on_every_rank(what: str, words: str, three: Processes) -> None:
    for found in three.run(told, what):
        assert words in found, found


def test_a_rank_that_refuses_its_weight_says_so_to_all(three: Processes) -> None:
    first, second, third = three.run(told, "one refuses")
    assert second.startswith("ValueError: distributed.linear_loss: weight must be (classes, 4)")
    assert first == third == f"RanksError: distributed.linear_loss: refused on rank 1: {second}"


def test_without_a_group_a_module_says_how_to_make_one() -> None:
    assert not dist.is_initialized()
    with pytest.raises(
        RuntimeError, match=r"distributed.LinearLoss: there is no process group; call torch.distributed.init_process"
    ):
        sm.distributed.LinearLoss(3, 4)
