"""In-batch softmax: the items of other pairs stand for all items, when it is known how often each is there."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.functional import cross_entropy

from conftest import TOLERANCE, normal
from softmaxima.heads import in_batch
from softmaxima.heads.frequencies import StreamingFrequency
from softmaxima.heads.in_batch import InBatchSoftmax, in_batch_softmax_loss
from softmaxima.heads.learned_samplers import FrequencySampler
from softmaxima.heads.sampled import SampledSoftmax

QUERIES, ITEMS = normal(6, 3, scale=1.0), normal(6, 3, seed=1, scale=1.0)
IDS = torch.tensor([4, 9, 4, 1, 9, 9])
LOG_Q = torch.tensor([0.2, 0.5, 0.2, 0.05, 0.5, 0.5], dtype=torch.float64).log()
KINDS = [("positive", True), ("log_q", True), ("log_q", False), ("none", True), ("none", False)]


def reference(scores: Tensor, ids: Tensor, log_q: Tensor, correction: str, remove_hits: bool) -> Tensor:
    """The loss of each row by its formula."""
    losses = []
    for i, row in enumerate(scores):
        left = [j for j in range(len(row)) if j != i and not (remove_hits and ids[j] == ids[i])]
        q = log_q.exp()
        if correction == "positive":
            z = sum(row[j].exp() / (q[j] / (1 - q[i])) for j in left) / len(left)
            losses.append((1 + z / row[i].exp()).log())
        else:
            weight = 1 / q if correction == "log_q" else torch.ones_like(q)
            own = row[i].exp() * weight[i]
            losses.append(-(own / (own + sum(row[j].exp() * weight[j] for j in left))).log())
    return torch.stack(losses)


@pytest.mark.parametrize(("correction", "remove_hits"), KINDS)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("held", [in_batch.HELD, 2 * 6 * 8], ids=["whole", "in parts"])
def test_the_loss_and_its_gradients_are_of_its_formula(
    correction: str, remove_hits: bool, symmetric: bool, held: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(in_batch, "HELD", held)
    x = [v.clone().requires_grad_() for v in (QUERIES, ITEMS, torch.tensor(0.7).double())]
    options: dict[str, Any] = {"correction": correction, "remove_hits": remove_hits, "symmetric": symmetric}
    found = in_batch_softmax_loss(x[0], x[1], IDS, LOG_Q, temperature=x[2], reduction="none", **options)
    scores = x[0] @ x[1].T / x[2]
    expected = reference(scores, IDS, LOG_Q, correction, remove_hits)
    if symmetric:
        expected = (expected + reference(scores.T, IDS, LOG_Q, "none", remove_hits)) / 2
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    for own, right in zip(*(torch.autograd.grad(loss.square().sum(), x) for loss in (found, expected)), strict=True):
        torch.testing.assert_close(own, right, rtol=1e-11, atol=1e-11)


def test_of_different_items_it_is_the_cross_entropy_of_the_diagonal_and_symmetric_as_clip():
    scores, diagonal = QUERIES @ ITEMS.T / 0.1, torch.arange(6)
    torch.testing.assert_close(in_batch_softmax_loss(QUERIES, ITEMS, temperature=0.1), cross_entropy(scores, diagonal))
    both = (cross_entropy(scores, diagonal) + cross_entropy(scores.T, diagonal)) / 2
    torch.testing.assert_close(in_batch_softmax_loss(QUERIES, ITEMS, temperature=0.1, symmetric=True), both)


def test_log_q_alone_means_the_corrected_form_and_a_row_of_hits_learns_nothing():
    found = in_batch_softmax_loss(QUERIES, ITEMS, IDS, LOG_Q)
    torch.testing.assert_close(found, in_batch_softmax_loss(QUERIES, ITEMS, IDS, LOG_Q, correction="positive"))
    queries = QUERIES.clone().requires_grad_()
    same = in_batch_softmax_loss(queries, ITEMS, torch.full((6,), 3), torch.zeros(6))
    assert same == 0
    assert (torch.autograd.grad(same, queries)[0] == 0).all()
    assert in_batch_softmax_loss(QUERIES[:1], ITEMS[:1]) == 0


def test_it_is_sampled_softmax_whose_negatives_are_the_batch():
    head = SampledSoftmax(3, 10, 6, "in_batch", bias=False, dtype=torch.float64)
    found = head(QUERIES, IDS)
    log_q = head.sampler.log_prob(IDS)
    torch.testing.assert_close(found, in_batch_softmax_loss(QUERIES, head.weight[IDS], IDS, log_q))


def batch_gradients(correction: str, size: int, batches: int, said: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(∂L/∂W of many batches of a known distribution, [batches, items · features], that of the cross-entropy over all items)."""
    generator = torch.Generator().manual_seed(0)
    q = torch.tensor([0.3, 0.2, 0.15, 0.1, 0.1, 0.08, 0.05, 0.02], dtype=torch.float64)
    weight, queries = normal(8, 3, seed=2, scale=0.7).requires_grad_(), normal(8, 3, seed=3, scale=0.7)  # a query of each item
    ids = torch.multinomial(q, batches * size, replacement=True, generator=generator).view(batches, size)
    log_q = q.log() if said is None else said.log()
    slopes = []
    for batch in ids:
        loss = in_batch_softmax_loss(queries[batch], weight[batch], batch, log_q[batch], correction=correction)
        slopes.append(torch.autograd.grad(loss, weight)[0].flatten())
    every = torch.arange(8)
    full = (q * cross_entropy(queries @ weight.T, every, reduction="none")).sum()
    return torch.stack(slopes), torch.autograd.grad(full, weight)[0].flatten()


@pytest.mark.parametrize(
    ("correction", "said", "consistent"),
    [
        ("positive", None, True),
        ("none", None, False),
        ("positive", torch.tensor([0.2] + [0.8 / 7] * 7), False),
        ("log_q", None, False),
    ],
    ids=["positive", "none", "wrong", "log_q without hits"],
)
def test_the_mean_gradient_over_batches_is_that_over_all_items(correction: str, said: Tensor | None, consistent: bool):
    slopes, full = batch_gradients(correction, 256, 150, said)
    errors = (slopes.mean(0) - full) / (slopes.std(0) / math.sqrt(len(slopes)))
    assert (slopes.std(0) / math.sqrt(len(slopes))).norm() < 0.03 * full.norm()
    assert (errors.abs().max() < 4.5) if consistent else (errors.abs().max() > 10)


@pytest.mark.exhaustive
def test_the_bias_falls_as_one_over_the_batch():
    small, large = (
        (slopes.mean(0) - full).norm() for slopes, full in (batch_gradients("positive", n, 6000 // n * 8) for n in (8, 64))
    )
    assert small / large > 4


@pytest.mark.parametrize("symmetric", [True, False])
def test_every_derivative(symmetric: bool):
    x = [v.clone().requires_grad_() for v in (QUERIES, ITEMS, torch.tensor(0.7).double())]

    def loss(q: Tensor, v: Tensor, tau: Tensor) -> Tensor:
        return in_batch_softmax_loss(q, v, IDS, LOG_Q, temperature=tau, symmetric=symmetric)

    assert gradcheck(loss, x)
    assert gradgradcheck(loss, x)


@pytest.mark.parametrize("shape", [(6,), (2, 3), (0,), (1,)])
def test_shapes_and_reductions(shape: tuple[int, ...]):
    n = math.prod(shape)
    q, v, ids = QUERIES[:n].reshape(*shape, 3), ITEMS[:n].reshape(*shape, 3), IDS[:n].reshape(shape)
    rows = in_batch_softmax_loss(q, v, ids, reduction="none")
    assert rows.shape == shape
    torch.testing.assert_close(in_batch_softmax_loss(q, v, ids), rows.mean(), equal_nan=True)
    torch.testing.assert_close(in_batch_softmax_loss(q, v, ids, reduction="sum"), rows.sum())


def test_results_have_the_dtype_of_the_queries(dtype: torch.dtype):
    q, v = QUERIES.to(dtype), ITEMS.to(dtype)
    found = in_batch_softmax_loss(q, v, IDS, LOG_Q, reduction="none")
    assert found.dtype == dtype
    wide = in_batch_softmax_loss(q.double(), v.double(), IDS, LOG_Q, reduction="none")
    torch.testing.assert_close(found.double(), wide, rtol=2 * TOLERANCE[dtype], atol=2 * TOLERANCE[dtype])


def test_under_autocast_it_is_of_float32():
    q, v = normal(8, 64).float(), normal(8, 64, seed=1).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = in_batch_softmax_loss(q, v, temperature=10.0)
    assert found == in_batch_softmax_loss(q, v, temperature=10.0)


def test_arrays_give_an_array():
    loss = in_batch_softmax_loss(QUERIES.numpy(), ITEMS.numpy(), IDS.numpy(), reduction="none")
    assert isinstance(loss, np.ndarray)


def test_it_compiles_whole():
    loss = lambda q, v: in_batch_softmax_loss(q, v, IDS, LOG_Q, symmetric=True)
    x = [QUERIES.clone().requires_grad_(), ITEMS.clone().requires_grad_()]
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")(*x)
    torch.testing.assert_close(compiled, loss(*x))
    for found, expected in zip(*(torch.autograd.grad(value, x) for value in (compiled, loss(*x))), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "frequencies", [FrequencySampler(10, smoothing=0.0), StreamingFrequency(1000)], ids=lambda x: type(x).__name__
)
def test_a_module_learns_log_q_from_the_batches_that_it_trains_on(frequencies: Any):
    frequencies = copy.deepcopy(frequencies)
    module = InBatchSoftmax(frequencies, temperature=torch.nn.Parameter(torch.tensor(0.5)))
    for _ in range(3):
        loss = module(QUERIES, ITEMS, IDS)
    log_q = frequencies.log_prob(IDS)
    torch.testing.assert_close(log_q[3].exp(), torch.tensor(1 / 6).double(), atol=0.05, rtol=0)
    torch.testing.assert_close(loss, in_batch_softmax_loss(QUERIES, ITEMS, IDS, log_q, temperature=0.5))
    module.eval()(QUERIES, ITEMS, torch.full((6,), 4))
    assert torch.equal(frequencies.log_prob(IDS), log_q)
    loss.backward()
    assert module.temperature.grad is not None
    assert torch.equal(module(QUERIES, ITEMS, IDS, LOG_Q), in_batch_softmax_loss(QUERIES, ITEMS, IDS, LOG_Q, temperature=0.5))


def test_a_module_without_frequencies_is_the_function():
    options: dict[str, Any] = {"symmetric": True, "temperature": 0.2, "reduction": "sum"}
    assert InBatchSoftmax(**options)(QUERIES, ITEMS, IDS, LOG_Q) == in_batch_softmax_loss(QUERIES, ITEMS, IDS, LOG_Q, **options)
    assert "symmetric=True" in repr(InBatchSoftmax(**options))


def test_without_features_all_items_are_alike():
    none = torch.ones(2, 3, 0, requires_grad=True)
    torch.testing.assert_close(in_batch_softmax_loss(none, none.detach()), torch.tensor(6.0).log())
    assert InBatchSoftmax(StreamingFrequency(9))(none, none, IDS.view(2, 3)).isfinite()


def test_a_log_q_that_is_given_counts_and_frequencies_are_not_told():
    frequencies = FrequencySampler(10)
    found = InBatchSoftmax(frequencies)(QUERIES, ITEMS, IDS, LOG_Q)
    assert torch.equal(found, in_batch_softmax_loss(QUERIES, ITEMS, IDS, LOG_Q))
    assert frequencies.seen == 0


@pytest.mark.parametrize(
    "changed",
    [
        {"items": ITEMS[:5]},
        {"items": ITEMS.float()},
        {"queries": QUERIES.long()},
        {"item_ids": IDS[:5]},
        {"item_ids": IDS.double()},
        {"item_ids": IDS.tolist()},
        {"item_ids": IDS + 1},
        {"item_ids": torch.zeros_like(IDS), "window": 5},
        {"temperature": torch.ones(6, 1)},
    ],
    ids=str,
)
def test_a_call_that_is_refused_teaches_the_frequencies_nothing(changed: dict[str, Any]):
    given = {"queries": QUERIES, "items": ITEMS, "item_ids": IDS, **changed}
    frequencies = FrequencySampler(10, window=given.pop("window", 100), smoothing=0)
    module = InBatchSoftmax(frequencies, temperature=given.pop("temperature", 1.0))
    with pytest.raises((TypeError, ValueError, IndexError), match=r"(InBatchSoftmax|FrequencySampler): "):
        module(**given)
    assert frequencies.seen == 0


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"items": ITEMS[:5]}, ValueError, r"items must be one for each query, torch.float64 of shape \(6, 3\).* of \(5, 3\)"),
        ({"items": ITEMS.float()}, ValueError, "items must be one for each query, .* got torch.float32"),
        ({"queries": QUERIES.long()}, TypeError, "queries must be float64"),
        (
            {"item_ids": IDS[:5]},
            ValueError,
            r"item_ids must hold one integer for each item, of shape \(6,\), got torch.int64",
        ),
        ({"item_ids": IDS.double()}, ValueError, "item_ids must hold one integer for each item"),
        ({"log_q": IDS}, ValueError, "log_q must hold one floating-point number for each item"),
        ({"log_q": LOG_Q.exp()}, ValueError, "log_q must be logarithms of probabilities, at most 0, got 0.2 for item 4"),
        ({"log_q": LOG_Q.where(IDS != 1, -math.inf)}, ValueError, "log_q gives item 1 the probability 0, but it was seen"),
        ({"log_q": LOG_Q.where(IDS != 1, 0.0)}, ValueError, "log_q gives item 3 the probability 1, but others are in the batch"),
        ({"log_q": torch.zeros(6), "item_ids": None}, ValueError, "log_q gives item 0 the probability 1, but others are"),
        (
            {"log_q": None, "correction": "positive"},
            ValueError,
            "correction='positive' needs log_q, got None",
        ),
        ({"correction": "positive", "remove_hits": False}, ValueError, "correction='positive' needs remove_hits=True, got False"),
        ({"correction": "logq"}, ValueError, "correction must be one of positive, log_q, none"),
        ({"temperature": 0}, ValueError, "temperature must be positive"),
        ({"temperature": torch.ones(6, 1)}, ValueError, r"temperature must be one number, got shape \(6, 1\); divide queries by"),
        ({"symmetric": 1}, TypeError, "symmetric must be True or False, got 1"),
        ({"reduction": "avg"}, ValueError, "reduction must be one of"),
    ],
    ids=str,
)
def test_wrong_use_is_told(changed: dict[str, Any], error: type[Exception], message: str):
    given = {"queries": QUERIES, "items": ITEMS, "item_ids": IDS, "log_q": LOG_Q}
    with pytest.raises(error, match=f"in_batch_softmax_loss: .*{message}"):
        in_batch_softmax_loss(**{**given, **changed})


def test_wrong_use_of_the_module_is_told():
    with pytest.raises(TypeError, match="InBatchSoftmax: frequencies must have observe and log_prob, got float; use Streaming"):
        InBatchSoftmax(0.5)
    with pytest.raises(ValueError, match="InBatchSoftmax: item_ids must be given where frequencies learns of them, got None"):
        InBatchSoftmax(StreamingFrequency(9))(QUERIES, ITEMS)
    with pytest.raises(ValueError, match="InBatchSoftmax: correction must be one of"):
        InBatchSoftmax(correction="x")
    for given in ({"correction": "positive"}, {"frequencies": StreamingFrequency(9)}):
        with pytest.raises(ValueError, match="InBatchSoftmax: correction='positive' needs remove_hits=True, got False"):
            InBatchSoftmax(remove_hits=False, **given)
    with pytest.raises(ValueError, match="InBatchSoftmax: temperature must be positive"):
        InBatchSoftmax(temperature=0)
