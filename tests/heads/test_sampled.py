"""Sampled softmax: what its gradient is on average, beside that of the cross-entropy over all classes."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from drawing import CLASSES, FEATURES, Told, all_draws, full_gradient, gradient, layer, mean_gradient, standard_errors
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from conftest import TOLERANCE, exhaustively, normal
from softmaxima.heads import exact, labelled
from softmaxima.heads.corrections import CORRECTIONS
from softmaxima.heads.fixed_samplers import LogUniformSampler, UnigramSampler
from softmaxima.heads.noise_contrastive import NoiseContrastive
from softmaxima.heads.sampled import SampledSoftmax, sampled_softmax_loss

INF, NAN = math.inf, math.nan
Q = torch.tensor([0.1, 0.4, 0.2, 0.3], dtype=torch.float64)
# How log Q is corrected, and whether negatives that are the target are left out.
KINDS = [("positive", True), ("log_q", True), ("log_q", False), ("none", True), ("none", False)]


def reference(scores: Tensor, negatives: Tensor, q: Tensor, target: int, correction: str, remove_hits: bool) -> Tensor:
    """The loss of one row by its formula."""
    left = [int(c) for c in negatives if not (remove_hits and c == target)]
    if correction == "positive":
        if not left:
            return scores.new_zeros(())
        z = torch.stack([scores[c].exp() / (q[c] / (1 - q[target])) for c in left]).mean()
        return (1 + z / scores[target].exp()).log()
    weight = 1 / q if correction == "log_q" else torch.ones_like(q)
    own = scores[target].exp() * weight[target]
    return -(own / (own + sum(scores[c].exp() * weight[c] for c in left))).log()


@pytest.mark.parametrize(("correction", "remove_hits"), KINDS)
@pytest.mark.parametrize("shared", [True, False])
def test_the_loss_is_its_formula(correction: str, remove_hits: bool, shared: bool):
    hidden, (_, weight, bias) = normal(5, FEATURES, seed=4), layer()
    target = torch.tensor([0, 3, 1, 1, 2])
    draws = torch.tensor([[1, 1, 3], [3, 3, 3], [0, 1, 2], [0, 2, 3], [2, 1, 2]])
    options: dict[str, Any] = {"correction": correction, "remove_hits": remove_hits, "shared": shared, "temperature": 0.7}
    draws = draws[3] if shared else draws
    found = sampled_softmax_loss(hidden, weight, target, bias=bias, samples=3, sampler=Told(draws, Q), reduction="none", **options)
    scores = (hidden @ weight.T + bias) / 0.7
    rows = zip(scores, draws.expand(5, 3), target, strict=True)
    expected = torch.stack([reference(s, d, Q, int(t), correction, remove_hits) for s, d, t in rows])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("counts", [(1, 1, 1, 1), (1, 4, 2, 3)])
def test_negatives_in_exact_proportion_to_q_give_the_whole_loss(counts: tuple[int, ...]):
    times = torch.tensor(counts)
    sampler = Told(torch.arange(CLASSES).repeat_interleave(times), times / times.sum(dtype=torch.float64))
    hidden, (_, weight, bias) = normal(6, FEATURES, seed=4), layer()
    target = torch.tensor([0, 1, 2, 3, 0, 1])
    found = sampled_softmax_loss(hidden, weight, target, bias=bias, samples=int(times.sum()), sampler=sampler)
    torch.testing.assert_close(found, cross_entropy(hidden @ weight.T + bias, target), rtol=1e-13, atol=0)


@pytest.mark.parametrize("target", range(CLASSES))
def test_the_bias_of_the_gradient_falls_as_one_over_the_samples_with_the_constant_that_is_claimed(target: int):
    hidden, weight, bias = layer()
    others = torch.arange(CLASSES) != target
    e = (weight @ hidden + bias).exp()
    q = torch.where(others, Q, 0.0) / (1 - Q[target])
    w = torch.where(others, e / q, 0.0)
    u = w[:, None] * (weight - weight[target])
    total, rest = e.sum(), q @ w
    covariance, variance = q @ ((w - rest)[:, None] * u), q @ (w - rest).square()
    first_order = (variance * (e @ weight - total * weight[target]) / total**3 - covariance / total**2) / (1 - Q[target])
    for samples in (16, 32, 64):
        bias_of_mean = mean_gradient(sampled_softmax_loss, target, samples, Q) - full_gradient(target)
        assert (samples * bias_of_mean - first_order).norm() < 8 / samples * first_order.norm(), samples


def with_options(correction: str, remove_hits: bool) -> Any:
    return lambda *rows, **options: sampled_softmax_loss(*rows, correction=correction, remove_hits=remove_hits, **options)


def distance(correction: str, remove_hits: bool, samples: int, q: Tensor, said: Tensor | None = None) -> float:
    """From the gradient over all classes to the mean of what is drawn, in parts of it."""
    expected = full_gradient(1)
    return float((mean_gradient(with_options(correction, remove_hits), 1, samples, q, said) - expected).norm() / expected.norm())


@pytest.mark.parametrize(("correction", "remove_hits"), [("positive", True), ("log_q", False)])
def test_a_consistent_correction_leaves_a_bias_that_more_samples_halve(correction: str, remove_hits: bool):
    small, large = (distance(correction, remove_hits, samples, Q) for samples in (32, 64))
    assert 0.45 < large / small < 0.55
    assert large < 0.05


@pytest.mark.parametrize(
    ("correction", "remove_hits", "said"),
    [
        ("none", True, Q),
        ("none", False, Q),
        ("positive", True, Q.clamp_min(0.25)),  # clipped
        ("positive", True, Q.flip(0)),
        ("positive", True, torch.full((4,), 0.25, dtype=torch.float64)),
        ("log_q", False, Q.clamp_min(0.25)),
    ],
)
def test_the_test_of_bias_finds_what_is_wrong(correction: str, remove_hits: bool, said: Tensor):
    small, large = (distance(correction, remove_hits, samples, Q, said) for samples in (32, 64))
    assert large > 0.1
    assert large / small > 0.7


def test_the_usual_correction_without_hits_tends_to_a_gradient_that_is_too_long():
    hidden, weight, bias = layer()
    p = (weight @ hidden + bias).softmax(0)
    expected = full_gradient(1)
    small, large = (mean_gradient(with_options("log_q", True), 1, samples, Q) for samples in (32, 64))
    limit = expected / (1 - p[1])
    assert (large - limit).norm() < 0.55 * (small - limit).norm()
    assert (large - limit).norm() < 0.2 * (large - expected).norm()


@pytest.mark.parametrize("samples", [1, 2, 5])
def test_the_usual_correction_with_hits_is_stationary_at_the_truth_for_any_number_of_samples(samples: int):
    hidden, weight, bias = layer()
    p = (weight @ hidden + bias).softmax(0)

    def slope_at_the_truth(correction: str, remove_hits: bool) -> Tensor:
        return sum(p[t] * mean_gradient(with_options(correction, remove_hits), t, samples, Q) for t in range(CLASSES))  # type: ignore[return-value]

    torch.testing.assert_close(slope_at_the_truth("log_q", False), torch.zeros(FEATURES).double(), atol=1e-12, rtol=0)
    for other in (("none", False), ("positive", True), *([("log_q", True)] if samples > 1 else [])):
        assert slope_at_the_truth(*other).abs().max() > 1e-3


@pytest.mark.parametrize("samples", [1, 2, 5])
def test_without_correction_but_with_hits_the_scores_learn_log_p_less_log_q(samples: int):
    hidden, weight, bias = layer()
    p = ((weight @ hidden + bias) + Q.log()).softmax(0)

    def slope_where_scores_are_that(remove_hits: bool) -> Tensor:
        return sum(p[t] * mean_gradient(with_options("none", remove_hits), t, samples, Q) for t in range(CLASSES))  # type: ignore[return-value]

    torch.testing.assert_close(slope_where_scores_are_that(False), torch.zeros(FEATURES).double(), atol=1e-12, rtol=0)
    assert samples == 1 or slope_where_scores_are_that(True).abs().max() > 1e-3


def test_the_estimate_of_the_other_classes_sum_is_unbiased():
    hidden, weight, bias = layer()
    e = (weight @ hidden + bias).exp()

    def sum_of_others(h: Tensor, w: Tensor, t: Tensor, **options: Any) -> Tensor:
        loss = sampled_softmax_loss(h, w, t, **options)
        return loss.expm1() * (h @ w.T + options["bias"]).exp()[:, int(t[0])]

    classes, p = all_draws(6, Q)
    options = {"samples": 6, "sampler": Told(classes, Q), "shared": False, "bias": bias, "reduction": "none"}
    found = sum_of_others(hidden.expand(len(p), -1), weight, torch.full((len(p),), 2), **options)
    expected = (e.sum() - e[2]) * (1 - Q[2] ** 6)  # nothing where all draws are hits
    torch.testing.assert_close(p @ found, expected, rtol=1e-10, atol=0)


@pytest.mark.parametrize("shared", [True, False])
def test_the_gradient_is_that_of_the_paper_with_its_weight_of_the_same_negatives(shared: bool):
    _, weight, bias = layer()
    hidden, target, draws = normal(3, FEATURES, seed=5), torch.tensor([0, 1, 2]), torch.tensor([3, 1, 1, 0])

    def as_in_the_paper(h: Tensor) -> Tensor:
        losses = []
        for scores, t in zip(h @ weight.T + bias, target, strict=True):
            left = draws[draws != t]
            z = (scores[left] - (Q[left] / (1 - Q[t])).log()).logsumexp(0) - math.log(len(left))
            uncertain = (1 - (scores[t] - torch.logaddexp(scores[t], z)).exp()).detach()
            losses.append(uncertain * (z - scores[t]))
        return torch.stack(losses)

    options: dict[str, Any] = {"samples": 4, "sampler": Told(draws, Q), "shared": shared, "reduction": "none"}
    found = gradient(lambda h: sampled_softmax_loss(h, weight, target, bias=bias, **options), hidden)
    torch.testing.assert_close(found, gradient(as_in_the_paper, hidden), rtol=1e-12, atol=1e-12)


MANY, ROWS = 50, 4000


def drawn_gradients(samples: int, rows: int, sampler: Any, **options: Any) -> Tensor:
    """∂L/∂h of independent draws for one row, [rows, features]."""
    hidden, weight, bias = layer(MANY, scale=0.7)
    labels = torch.full((rows,), 7)
    given = {"bias": bias, "samples": samples, "sampler": sampler, "shared": False, "reduction": "none", "generator": 0, **options}
    return gradient(lambda h: sampled_softmax_loss(h, weight, labels, **given), hidden.expand(rows, -1))


def expected_of_many() -> Tensor:
    hidden, weight, bias = layer(MANY, scale=0.7)
    return gradient(lambda h: cross_entropy(weight @ h + bias, torch.tensor(7)), hidden)


@pytest.mark.parametrize(
    "sampler", ["log_uniform", "uniform", torch.arange(1, MANY + 1)], ids=["log_uniform", "uniform", "unigram"]
)
def test_the_mean_of_draws_is_within_its_standard_error_of_the_gradient_over_all_classes(sampler: Any):
    slopes = drawn_gradients(1000, ROWS // 4, sampler)
    assert standard_errors(slopes, expected_of_many()).abs().max() < 4
    assert (slopes.std(0) / math.sqrt(len(slopes))).norm() < 0.02 * expected_of_many().norm()


class Clipped(UnigramSampler):
    def log_prob(self, classes: Tensor) -> Tensor:
        return super().log_prob(classes).clamp_min(-4.5)


@pytest.mark.parametrize(
    ("sampler", "options"),
    [
        ("log_uniform", {"correction": "none"}),
        (Clipped(torch.arange(1, MANY + 1)), {}),
    ],
    ids=["uncorrected", "clipped"],
)
def test_the_same_test_finds_a_missing_and_a_clipped_correction(sampler: Any, options: dict[str, Any]):
    assert standard_errors(drawn_gradients(1000, ROWS // 4, sampler, **options), expected_of_many()).abs().max() > 10


def test_few_samples_have_a_bias_that_many_draws_show():
    few, more = (drawn_gradients(samples, ROWS, "log_uniform").mean(0) - expected_of_many() for samples in (8, 64))
    assert 5 < few.norm() / more.norm() < 12


def test_shared_negatives_have_the_distribution_of_those_of_each_row():
    hidden, weight, bias = layer(MANY, scale=0.7)
    own = drawn_gradients(20, ROWS, "log_uniform")
    generator = torch.Generator().manual_seed(1)
    target = torch.tensor([7])
    options: dict[str, Any] = {"bias": bias, "samples": 20, "sampler": "log_uniform", "generator": generator}
    shared = torch.cat([gradient(lambda h: sampled_softmax_loss(h, weight, target, **options), hidden[None]) for _ in range(800)])
    error = (own.var(0) / len(own) + shared.var(0) / len(shared)).sqrt()
    assert ((own.mean(0) - shared.mean(0)) / error).abs().max() < 4
    torch.testing.assert_close(own.std(0), shared.std(0), rtol=0.15, atol=0)


@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("shared", [True, False])
def test_a_row_whose_negatives_are_all_hits_learns_nothing(correction: str, shared: bool):
    hidden, weight, _ = layer()
    hidden, weight = hidden.expand(2, -1).clone().requires_grad_(), weight.requires_grad_()
    q = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    options: dict[str, Any] = {"samples": 3, "sampler": Told(torch.zeros(3, dtype=torch.long), q), "shared": shared}
    loss = sampled_softmax_loss(hidden, weight, torch.tensor([0, 0]), correction=correction, remove_hits=True, **options)
    assert loss == 0
    for slope in torch.autograd.grad(loss, [hidden, weight]):
        assert (slope == 0).all()


def test_log_q_of_any_size_is_not_clipped():
    _, weight, bias = layer()
    hidden, target = normal(1, FEATURES), torch.tensor([0])
    q = torch.tensor([1.0, 1e-300, 0.0, 0.0], dtype=torch.float64)
    found = sampled_softmax_loss(
        hidden, weight, target, bias=bias, samples=1, sampler=Told(torch.tensor([1]), q), correction="log_q", remove_hits=False
    )
    s = (hidden @ weight.T + bias)[0]
    torch.testing.assert_close(found, s[1] - s[0] + 300 * math.log(10))


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("correction", "remove_hits"), KINDS)
def test_every_derivative_with_the_draws_held(shared: bool, correction: str, remove_hits: bool):
    hidden, weight, bias = normal(5, FEATURES, scale=1.0), normal(6, FEATURES, seed=1, scale=1.0), normal(6, seed=2)
    tau = torch.tensor(0.8, dtype=torch.float64)
    target = torch.tensor([0, 1, -100, 5, 1])

    def loss(*x: Tensor) -> Tensor:
        options: dict[str, Any] = {"correction": correction, "remove_hits": remove_hits, "shared": shared, "generator": 3}
        return sampled_softmax_loss(x[0], x[1], target, bias=x[2], temperature=x[3], samples=4, sampler="uniform", **options)

    arguments = [x.requires_grad_() for x in (hidden, weight, bias, tau)]
    assert gradcheck(loss, arguments)
    assert gradgradcheck(loss, arguments)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("sparse", [True, False])
def test_a_sparse_gradient_and_one_of_parts_are_the_whole(shared: bool, sparse: bool, monkeypatch: pytest.MonkeyPatch):
    target = torch.tensor([0, 1, 5, 5])

    def slopes(**options: Any) -> list[Tensor]:
        hidden, weight, bias = normal(4, FEATURES), normal(6, FEATURES, seed=1), normal(6, seed=2)
        tau = normal(4, 1, seed=4).exp()
        x = [v.requires_grad_() for v in (hidden, weight, bias, tau)]
        drawing: dict[str, Any] = {"samples": 7, "sampler": "log_uniform", "generator": 0, "shared": shared}
        loss = sampled_softmax_loss(hidden, weight, target, bias=bias, temperature=tau, **drawing, **options)
        return [loss, *torch.autograd.grad(loss, x)]

    whole = slopes()
    monkeypatch.setattr(labelled, "HELD", 2 * 8 * FEATURES * 8)  # two rows of eight vectors
    found = slopes(sparse=sparse)
    assert all(x.is_sparse == sparse for x in found[2:4])
    for own, expected in zip(found, whole, strict=True):
        torch.testing.assert_close(own.to_dense(), expected)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 1, 2)])
@pytest.mark.parametrize("shared", [True, False])
def test_any_leading_shape(shape: tuple[int, ...], shared: bool):
    hidden, target = normal(*shape, FEATURES), torch.zeros(shape, dtype=torch.long)
    draws = torch.tensor([1, 2, 2, 3])
    options: dict[str, Any] = {"samples": 4, "sampler": Told(draws, Q), "shared": shared}
    rows = sampled_softmax_loss(hidden, layer()[1], target, reduction="none", **options)
    flat = sampled_softmax_loss(hidden.reshape(-1, FEATURES), layer()[1], target.flatten(), reduction="none", **options)
    assert rows.shape == shape
    torch.testing.assert_close(rows.flatten(), flat)
    torch.testing.assert_close(sampled_softmax_loss(hidden, layer()[1], target, **options), flat.mean())
    torch.testing.assert_close(sampled_softmax_loss(hidden, layer()[1], target, reduction="sum", **options), flat.sum())


@pytest.mark.parametrize("shared", [True, False])
def test_rows_that_are_ignored_are_not_read_and_no_rows_have_the_mean_nan(shared: bool):
    hidden, weight = normal(3, FEATURES), layer()[1].requires_grad_()
    hidden[1] = NAN
    hidden.requires_grad_()
    options: dict[str, Any] = {"samples": 4, "sampler": Told(torch.tensor([1, 2, 2, 3]), Q), "shared": shared}
    target = torch.tensor([0, -1, 2])
    loss = sampled_softmax_loss(hidden, weight, target, ignore_index=-1, **options)
    kept = sampled_softmax_loss(hidden[[0, 2]], weight, target[[0, 2]], **options)
    torch.testing.assert_close(loss, kept)
    by_hidden, by_weight = torch.autograd.grad(loss, [hidden, weight])
    assert (by_hidden[1] == 0).all()
    assert by_weight.isfinite().all()
    rows = sampled_softmax_loss(hidden, weight, target, ignore_index=-1, reduction="none", **options)
    assert rows[1] == 0
    for nothing in (hidden[:0], hidden[1:2]):
        none = torch.full((len(nothing),), -1)
        assert sampled_softmax_loss(nothing, weight, none, ignore_index=-1, **options).isnan()
        assert sampled_softmax_loss(nothing, weight, none, ignore_index=-1, reduction="sum", **options) == 0


@pytest.mark.parametrize("shared", [True, False])
def test_results_have_the_dtype_of_the_hidden_states_and_the_digits_of_float32(dtype: torch.dtype, shared: bool):
    hidden, weight, bias = (x.to(dtype) for x in (normal(4, FEATURES), normal(6, FEATURES, seed=1), normal(6, seed=2)))
    target, options = torch.tensor([0, 1, 5, 5]), {"samples": 50, "sampler": "log_uniform", "generator": 0, "shared": shared}
    found = sampled_softmax_loss(hidden, weight, target, bias=bias, reduction="none", **options)
    wide = sampled_softmax_loss(hidden.double(), weight.double(), target, bias=bias.double(), reduction="none", **options)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), wide, rtol=2 * TOLERANCE[dtype], atol=2 * TOLERANCE[dtype])


def test_under_autocast_it_is_of_float32():
    hidden, weight = normal(4, 64).float(), normal(6, 64, seed=1).float()
    target, options = torch.tensor([0, 1, 5, 5]), {"samples": 50, "sampler": "log_uniform", "generator": 0}
    plain = sampled_softmax_loss(hidden, weight, target, **options)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert sampled_softmax_loss(hidden, weight, target, **options) == plain
        assert sampled_softmax_loss(hidden.bfloat16(), weight, target, **options).dtype == torch.float32


@pytest.mark.parametrize("shared", [True, False])
def test_sparse_gradients_under_autocast_are_the_dense_ones(shared: bool):
    gradients = []
    for sparse in (True, False):
        weight = normal(6, FEATURES, seed=1).bfloat16().requires_grad_()
        bias = normal(6, seed=2).bfloat16().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            options = {"samples": 5, "sampler": "uniform", "generator": 0, "shared": shared, "sparse": sparse}
            loss = sampled_softmax_loss(normal(4, FEATURES).bfloat16(), weight, torch.tensor([0, 1, 5, 5]), bias=bias, **options)
        loss.backward()
        gradients.append((weight.grad.to_dense(), bias.grad.to_dense()))
    torch.testing.assert_close(*gradients)


def test_a_temperature_is_in_the_range_of_the_scores():
    for temperature in (1e-40, torch.tensor(1e-40), torch.full((4, 1), 1e-40)):
        with pytest.raises(ValueError, match=r"^sampled_softmax_loss: temperature must be positive, from 1.2e-38"):
            sampled_softmax_loss(
                torch.ones(4, 3), torch.ones(6, 3), torch.zeros(4).long(), samples=4, sampler="uniform", temperature=temperature
            )


def test_arrays_give_an_array():
    hidden, weight = np.ones((2, 3)), torch.ones(5, 3).double()
    rows = sampled_softmax_loss(hidden, weight, np.array([0, 1]), samples=4, sampler="uniform", reduction="none")
    assert isinstance(rows, np.ndarray)
    assert rows.shape == (2,)


@pytest.mark.parametrize("shared", [True, False])
def test_it_compiles_whole(shared: bool):
    hidden, weight = normal(4, FEATURES).float().requires_grad_(), normal(6, FEATURES, seed=1).float().requires_grad_()
    target = torch.tensor([0, 1, 5, -100])
    sampler = Told(torch.tensor([1, 5, 2]), torch.full((6,), 1 / 6).double(), 6)

    def loss(hidden: Tensor, weight: Tensor) -> Tensor:
        return sampled_softmax_loss(hidden, weight, target, samples=3, sampler=sampler, shared=shared)

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")(hidden, weight)
    torch.testing.assert_close(compiled, loss(hidden, weight))
    for found, expected in zip(*(torch.autograd.grad(x, [hidden, weight]) for x in (compiled, loss(hidden, weight))), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # the compiler's own, where it breaks its graph
@pytest.mark.parametrize("sampler", ["frequency", *map(exhaustively, ("log_uniform", "uniform", "in_batch"))])
def test_a_head_compiles_with_each_sampler_and_a_sparse_gradient(sampler: str):
    head = SampledSoftmax(FEATURES, 6, 4, sampler, sparse=True)
    compiled = torch.compile(head, backend="aot_eager")
    compiled(normal(4, FEATURES).float(), torch.tensor([0, 1, 5, -100])).backward()
    assert head.weight.grad is not None
    assert head.weight.grad.is_sparse


def test_by_torch_func_too():
    hidden, weight, _ = layer()
    target, options = torch.tensor(2), {"samples": 4, "sampler": Told(torch.tensor([1, 2, 2, 3]), Q)}
    found = torch.func.grad(lambda h: sampled_softmax_loss(h, weight, target, **options))(hidden)
    torch.testing.assert_close(found, gradient(lambda h: sampled_softmax_loss(h, weight, target, **options), hidden))


# The module.


@pytest.mark.parametrize("bias", [True, False])
def test_a_head_in_eval_mode_is_exact(bias: bool, monkeypatch: pytest.MonkeyPatch):
    head = SampledSoftmax(FEATURES, 7, 4, bias=bias, temperature=0.5, dtype=torch.float64).eval()
    hidden, target = normal(2, 5, FEATURES).requires_grad_(), torch.arange(10).view(2, 5) % 7
    target[0, 0] = -100
    scores = hidden @ head.weight.T / 0.5
    scores = scores if head.bias is None else scores + head.bias / 0.5
    expected = cross_entropy(scores.flatten(0, 1), target.flatten())
    for held in (labelled.HELD, 8 * 14):  # two rows at once
        monkeypatch.setattr(exact, "HELD", held)
        loss = head(hidden, target)
        torch.testing.assert_close(loss, expected)
        found, slope = (torch.autograd.grad(x, [hidden, head.weight], retain_graph=True) for x in (loss, expected))
        torch.testing.assert_close(found, slope)
        torch.testing.assert_close(head.log_prob(hidden), scores.log_softmax(-1))
        for k in (1, 3, 7):
            best = head.predict(hidden, k)
            assert best.shape == (2, 5, k)
            assert (best == scores.topk(k).indices).all()


@pytest.mark.parametrize("autocast", [False, True])
def test_log_probabilities_have_the_gradient_of_log_softmax_whatever_autocast_is(autocast: bool):
    head = SampledSoftmax(6, 10, 20, "uniform", temperature=0.7)
    hidden, g = normal(7, 6, seed=1).float().requires_grad_(), normal(7, 10, seed=2).float()
    inputs = [hidden, head.weight, head.bias]
    wide = [x.detach().double().requires_grad_() for x in inputs]
    expected = ((wide[0] @ wide[1].T + wide[2]) / 0.7).log_softmax(-1)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = head.log_prob(hidden)
    slopes = zip(torch.autograd.grad(found, inputs, g), torch.autograd.grad(expected, wide, g.double()), strict=True)
    for ours, theirs in ((found, expected), *slopes):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)


class Largest(TorchDispatchMode):
    """How many bytes the largest array has that is made, views and what is returned aside."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(x, Tensor) and not x._is_view():
                self.sizes.append(x.numel() * x.element_size())
        return out


@pytest.mark.parametrize("rows", [1, 40])
def test_the_exact_softmax_makes_no_array_larger_than_what_is_held(rows: int, monkeypatch: pytest.MonkeyPatch):
    held = 8 * 1024
    monkeypatch.setattr(exact, "HELD", held)
    head = SampledSoftmax(4, 900, 4).eval()
    hidden = normal(rows, 4).float()
    with torch.no_grad(), Largest() as largest:
        head.predict(hidden, 5)
    assert held / 4 < max(largest.sizes) <= held
    with torch.no_grad(), Largest() as largest:
        log_p = head.log_prob(hidden)
    assert max(x for x in largest.sizes if x != log_p.numel() * 4 or rows == 1) <= held


def test_a_head_learns_the_labels_probabilities():
    """Labels of known probabilities, whatever the hidden state: the bias becomes their logarithms."""
    p = torch.tensor([0.6, 0.25, 0.1, 0.05])
    generator = torch.Generator().manual_seed(0)
    head = SampledSoftmax(1, 4, 64, torch.tensor([1.0, 2.0, 3.0, 4.0]), generator=generator, dtype=torch.float64)
    optimizer = torch.optim.Adam(head.parameters(), lr=0.03)
    for _ in range(250):
        target = torch.multinomial(p, 512, replacement=True, generator=generator)
        optimizer.zero_grad()
        head(torch.ones(512, 1, dtype=torch.float64), target).backward()
        optimizer.step()
    torch.testing.assert_close(head.log_prob(torch.ones(1, dtype=torch.float64)).exp(), p.double(), atol=0.02, rtol=0)


def test_the_parameters_are_those_of_a_linear_layer():
    head, linear = SampledSoftmax(16, 1000, 4), torch.nn.Linear(16, 1000)
    assert [(n, p.shape) for n, p in head.named_parameters()] == [(n, p.shape) for n, p in linear.named_parameters()]
    head.load_state_dict(linear.state_dict(), strict=False)
    for p in SampledSoftmax(16, 1000, 4).parameters():
        assert 0.2 < p.abs().max() <= 0.25


def test_a_head_copies_pickles_and_repeats_a_seed():
    tau = torch.nn.Parameter(torch.tensor(2.0))
    head = SampledSoftmax(FEATURES, 50, 4, "frequency", temperature=tau, generator=5)
    hidden, target = normal(4, FEATURES).float(), torch.tensor([0, 1, 5, 9])
    twins = [copy.deepcopy(head), pickle.loads(pickle.dumps(head))]
    first, second = head(hidden, target), head(hidden, target)
    assert first != second
    for twin in twins:
        assert (twin(hidden, target), twin(hidden, target)) == (first, second)
        assert twin.temperature is not tau
    assert "temperature" in dict(head.named_parameters())
    assert "samples=4" in repr(head)
    assert "sampler=Told" in repr(SampledSoftmax(FEATURES, 4, 3, Told(torch.zeros(3), Q)))


def test_the_samplers_that_learn_are_told_of_labels_that_count_in_training_alone():
    head = SampledSoftmax(FEATURES, 10, 4, "frequency")
    hidden, target = normal(4, FEATURES).float(), torch.tensor([2, 2, -100, 9])
    head.eval()(hidden, target)
    assert head.sampler.seen == 0
    head.train()(hidden, target)
    assert head.sampler.counts.tolist() == [0, 0, 2, 0, 0, 0, 0, 0, 0, 1]


HEADS = pytest.mark.parametrize("made", [SampledSoftmax, NoiseContrastive])


@HEADS
@pytest.mark.parametrize("sampler", ["uniform", "log_uniform", "frequency", "in_batch", torch.tensor([0.0, 1, 1, 1, 1])], ids=str)
@pytest.mark.parametrize("shared", [True, False])
def test_rows_that_are_ignored_need_no_class_of_the_sampler(made: Any, sampler: Any, shared: bool):
    head = made(FEATURES, 5, 4, sampler, shared=shared, generator=0)
    hidden = normal(4, FEATURES).float()
    for target in (torch.tensor([1, -100, 2, 1]), torch.full((4,), -100), torch.tensor([2, 2, 3, -100])):
        head.zero_grad()
        loss = head(hidden, target)
        loss.backward()
        assert loss.isfinite() == bool((target >= 0).any())  # the mean of no rows is NaN, as torch's
        assert head.weight.grad.isfinite().all() or loss.isnan()
    assert head(hidden[:0], target[:0]).isnan()


@HEADS
@pytest.mark.parametrize("sampler", ["frequency", "in_batch"])
@pytest.mark.parametrize(
    "changed",
    [
        {"hidden": torch.ones(4, 2)},
        {"hidden": [0.0]},
        {"target": [0, 1, 2, 3]},
        {"target": torch.tensor([0, 1, 2, 5])},
        {"target": torch.tensor([0, 1, 2])},
        {"temperature": torch.ones(3, 1)},
        {"log_z": torch.ones(3)},
    ],
    ids=str,
)
def test_a_call_that_is_refused_teaches_a_sampler_nothing(made: Any, sampler: str, changed: dict[str, Any]):
    given = {"hidden": normal(4, FEATURES).float(), "target": torch.tensor([0, 1, 2, 3]), **changed}
    own = {key: given.pop(key) for key in ("temperature", "log_z") if key in given}
    if "log_z" in own and made is SampledSoftmax:
        pytest.skip("has none")
    head = made(FEATURES, 5, 4, sampler, **own)
    with pytest.raises((TypeError, ValueError, IndexError), match=f"{made.__name__}: "):
        head(**given)
    learned = head.sampler.frequencies if sampler == "in_batch" else head.sampler
    assert learned.seen == 0


@HEADS
def test_a_head_learns_from_arrays(made: Any):
    head, hidden, target = made(FEATURES, 5, 4, "in_batch", generator=0), normal(4, FEATURES).float(), torch.tensor([0, 1, 2, 3])
    twin = copy.deepcopy(head)
    loss = head(hidden.numpy(), target.numpy())
    assert torch.equal(loss, twin(hidden, target))
    loss.backward()
    assert head.weight.grad is not None
    head.eval()
    assert torch.equal(head(hidden.numpy(), target.numpy()), twin.eval()(hidden, target))
    for found, expected in zip((head.log_prob, head.predict), (twin.log_prob, twin.predict), strict=True):
        assert np.array_equal(found(hidden.numpy()), expected(hidden).detach().numpy())
        assert isinstance(found(hidden.numpy()), np.ndarray)


def test_casting_a_head_keeps_log_q():
    head = SampledSoftmax(FEATURES, 4, 8, torch.tensor([1.0, 2.0, 3.0, 5.0])).to(torch.bfloat16)
    assert head.weight.dtype == torch.bfloat16
    torch.testing.assert_close(head.sampler.log_prob(torch.arange(4)).exp(), torch.tensor([1, 2, 3, 5]).double() / 11)


H, W, T = torch.ones(2, 3), torch.ones(4, 3), torch.tensor([0, 1])
VALID: dict[str, Any] = {"samples": 3, "sampler": "uniform"}


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        (
            {"target": torch.tensor([0, 4])},
            IndexError,
            "target 4 is out of range for 4 classes; ignore_index=4 leaves",
        ),
        ({"target": torch.tensor([[0, 1]])}, ValueError, r"target must hold class indices of shape \(2,\)"),
        ({"weight": torch.ones(3, 4)}, ValueError, r"weight must be \(classes, 3\).*got \(3, 4\); call weight.T"),
        ({"weight": torch.ones(4, 3).double()}, TypeError, "weight must be torch.float32 as hidden is, got torch.float64"),
        ({"bias": torch.ones(3)}, ValueError, "bias must hold one number for each of the 4 classes"),
        ({"hidden": torch.ones(2, 3).long()}, TypeError, "hidden must be float64"),
        ({"samples": 0}, ValueError, "samples must be an int of at least 1, got 0"),
        ({"samples": 2.5}, TypeError, "samples must be an int of at least 1, got 2.5"),
        ({"sampler": "zipf"}, ValueError, "sampler must be one of uniform, log_uniform, frequency, in_batch, got 'zipf'"),
        ({"sampler": "uniforn"}, ValueError, "did you mean 'uniform'"),
        ({"sampler": 3}, TypeError, "sampler must be a name, .* or an object with classes, log_prob and sample; got int"),
        ({"sampler": torch.ones(5)}, ValueError, "sampler must be of the layer's 4 classes, got one of 5"),
        ({"sampler": torch.tensor([0.0, 1, 1, 1])}, ValueError, "sampler gives class 0 the probability 0, but it was seen"),
        ({"sampler": Told(torch.tensor([2, 3, 3]), torch.tensor([0.5, 0.5, 0, 0]))}, ValueError, "gives class 2 the probability 0"),
        ({"sampler": Told(torch.tensor([0, 1, 4]), torch.ones(5) / 5)}, IndexError, "drew class 4, out of range for 4 classes"),
        ({"sampler": Told(torch.tensor([0, 1, 1]), torch.full((4,), 2.0))}, ValueError, "at most 0, got 0.69.* for class 0"),
        (
            {"sampler": Told(torch.tensor([0.0, 1, 1]), torch.ones(4) / 4)},
            ValueError,
            r"must return int64 of shape \(3,\), got torch.float",
        ),
        (
            {"sampler": Told(torch.tensor([0, 1, 1]), torch.eye(4))},
            ValueError,
            r"must return one float64 for each of \(2,\) cl",
        ),
        ({"sampler": "in_batch"}, ValueError, "learns from call to call"),
        ({"correction": "logq"}, ValueError, "correction must be one of positive, log_q, none, got 'logq'; did you mean 'log_q'"),
        ({"remove_hits": False}, ValueError, "correction='positive' needs remove_hits=True, got False"),
        ({"remove_hits": 1}, TypeError, "remove_hits must be True or False, got 1"),
        ({"shared": None}, TypeError, "shared must be True or False, got None"),
        ({"sparse": None}, TypeError, "sparse must be True or False, got None"),
        ({"temperature": 0.0}, ValueError, "temperature must be positive"),
        ({"temperature": torch.ones(3, 1)}, ValueError, "temperature must broadcast"),
        ({"reduction": "avg"}, ValueError, "reduction must be one of mean, sum, none, got 'avg'"),
        ({"ignore_index": 0.5}, TypeError, "ignore_index must be an int"),
        ({"generator": "seed"}, TypeError, "generator must be a torch.Generator"),
    ],
    ids=str,
)
def test_wrong_use_is_told(changed: dict[str, Any], error: type[Exception], message: str):
    arguments = {"hidden": H, "weight": W, "target": T, **VALID, **changed}
    with pytest.raises(error, match=f"sampled_softmax_loss: .*{message}"):
        sampled_softmax_loss(**arguments)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"in_features": 0}, ValueError, "in_features must be an int of at least 1, got 0"),
        ({"classes": 0}, ValueError, "classes must be an int of at least 1, got 0"),
        ({"samples": 0}, ValueError, "samples must be"),
        ({"sampler": torch.ones(3)}, ValueError, "sampler must be of the layer's 5 classes, got one of 3"),
        ({"correction": "log"}, ValueError, "correction must be one of"),
        ({"remove_hits": False}, ValueError, "needs remove_hits=True"),
        ({"temperature": -1.0}, ValueError, "temperature must be positive"),
        ({"reduction": "avg"}, ValueError, "reduction must be one of"),
        ({"bias": "no"}, TypeError, "bias must be True or False, got the string 'no'"),
        ({"shared": 1}, TypeError, "shared must be True or False, got 1"),
    ],
    ids=str,
)
def test_wrong_options_are_told_when_a_head_is_made(changed: dict[str, Any], error: type[Exception], message: str):
    with pytest.raises(error, match=f"SampledSoftmax: .*{message}"):
        SampledSoftmax(**{"in_features": 3, "classes": 5, "samples": 2, **changed})


def test_wrong_numbers_of_classes_to_predict_and_wrong_features_are_told():
    head = SampledSoftmax(3, 5, 2)
    for k, message in ((0, "k must be an int of at least 1, got 0"), (6, "k must be at most 5, the number of classes, got 6")):
        with pytest.raises(ValueError, match=f"SampledSoftmax: {message}"):
            head.predict(torch.ones(3), k)
    with pytest.raises(ValueError, match=r"SampledSoftmax: weight must be \(classes, 4\)"):
        head.log_prob(torch.ones(4))


@pytest.mark.parametrize(("correction", "removes"), [("positive", True), ("log_q", False), ("none", False)])
def test_hits_are_removed_where_the_correction_needs_it(correction: str, removes: bool):
    options: dict[str, Any] = {**VALID, "correction": correction, "generator": 0}
    found, expected = (sampled_softmax_loss(H, W, T, remove_hits=given, **options) for given in (None, removes))
    assert torch.equal(found, expected)
    assert SampledSoftmax(3, 4, 2, correction=correction).options["remove_hits"] is removes


def test_the_only_class_has_the_probability_1():
    for first in range(50):
        sampler = LogUniformSampler(1, first)
        assert float(sampler.log_prob(torch.tensor(0))) == pytest.approx(0.0, abs=1e-15)
        assert float(sampler.log_prob(torch.tensor(0))) <= 0
