"""Noise-contrastive estimation: stationary at the truth for any number of samples, and the likelihood's gradient for many."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from drawing import CLASSES, FEATURES, Told, full_gradient, layer, mean_gradient
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.functional import cross_entropy

from conftest import TOLERANCE, normal
from softmaxima.heads.noise_contrastive import NoiseContrastive, noise_contrastive_loss

Q = torch.tensor([0.1, 0.4, 0.2, 0.3], dtype=torch.float64)


def normaliser() -> float:
    hidden, weight, bias = layer()
    return float((weight @ hidden + bias).logsumexp(0))


def with_normaliser(log_z: float) -> Any:
    return lambda *rows, **options: noise_contrastive_loss(*rows, log_z=log_z, **options)


@pytest.mark.parametrize("shared", [True, False])
def test_the_loss_is_its_formula(shared: bool):
    hidden, (_, weight, bias) = normal(3, FEATURES, seed=4), layer()
    target, log_z = torch.tensor([0, 3, 1]), torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    draws = torch.tensor([[1, 1, 3], [3, 3, 3], [0, 1, 2]])
    draws = draws[0] if shared else draws
    options: dict[str, Any] = {"samples": 3, "sampler": Told(draws, Q), "shared": shared, "temperature": 0.7}
    found = noise_contrastive_loss(hidden, weight, target, bias=bias, log_z=log_z, reduction="none", **options)
    expected = []
    for scores, own, t, z in zip((hidden @ weight.T + bias) / 0.7, draws.expand(3, 3), target, log_z, strict=True):
        model = (scores - z).exp()
        is_label = model / (model + 3 * Q)
        expected.append(-is_label[t].log() - (1 - is_label[own]).log().sum())
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-12, atol=0)


@pytest.mark.parametrize("samples", [1, 2, 5])
def test_it_is_stationary_at_the_truth_for_any_number_of_samples(samples: int):
    hidden, weight, bias = layer()
    p = (weight @ hidden + bias).softmax(0)

    def slope_at_the_truth(log_z: float, said: Tensor) -> Tensor:
        loss = with_normaliser(log_z)
        return sum(p[t] * mean_gradient(loss, t, samples, Q, said) for t in range(CLASSES))  # type: ignore[return-value]

    torch.testing.assert_close(slope_at_the_truth(normaliser(), Q), torch.zeros(FEATURES).double(), atol=1e-12, rtol=0)
    assert slope_at_the_truth(normaliser() + 0.5, Q).abs().max() > 1e-3
    assert slope_at_the_truth(normaliser(), Q.clamp_min(0.2)).abs().max() > 1e-3


@pytest.mark.parametrize("target", range(CLASSES))
def test_its_gradient_tends_to_that_of_the_likelihood_as_one_over_the_samples(target: int):
    small, large = (
        (mean_gradient(with_normaliser(normaliser()), target, samples, Q) - full_gradient(target)).norm() for samples in (32, 64)
    )
    assert 0.45 < large / small < 0.6
    assert large < 0.2 * full_gradient(target).norm()


def test_scores_of_any_size_keep_their_digits():
    weight, target = torch.tensor([[200.0], [-200.0]], dtype=torch.float64), torch.tensor([0, 1])
    options: dict[str, Any] = {"samples": 1, "sampler": Told(torch.tensor([1]), torch.tensor([0.5, 0.5]).double(), 2)}
    loss = noise_contrastive_loss(torch.ones(2, 1).double(), weight, target, reduction="none", **options)
    small = math.exp(-200 + math.log(0.5)) + math.exp(-200 - math.log(0.5))
    torch.testing.assert_close(loss, torch.tensor([small, 200 + math.log(0.5)], dtype=torch.float64), rtol=1e-12, atol=0)


@pytest.mark.parametrize("shared", [True, False])
def test_every_derivative_with_the_draws_held(shared: bool):
    hidden, weight, bias = normal(5, FEATURES, scale=1.0), normal(6, FEATURES, seed=1, scale=1.0), normal(6, seed=2)
    target, others = torch.tensor([0, 1, -100, 5, 1]), [torch.tensor(0.8).double(), torch.tensor(0.3).double()]

    def loss(*x: Tensor) -> Tensor:
        options: dict[str, Any] = {"samples": 4, "sampler": "log_uniform", "shared": shared, "generator": 3}
        return noise_contrastive_loss(x[0], x[1], target, bias=x[2], temperature=x[3], log_z=x[4], **options)

    arguments = [x.requires_grad_() for x in (hidden, weight, bias, *others)]
    assert gradcheck(loss, arguments)
    assert gradgradcheck(loss, arguments)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 2)])
def test_shapes_reductions_and_ignored_rows(shape: tuple[int, ...], reduction: str):
    hidden, target = normal(*shape, FEATURES), torch.zeros(shape, dtype=torch.long)
    options: dict[str, Any] = {"samples": 4, "sampler": Told(torch.tensor([1, 2, 2, 3]), Q)}
    rows = noise_contrastive_loss(hidden, layer()[1], target, reduction="none", **options)
    assert rows.shape == shape
    found = noise_contrastive_loss(hidden, layer()[1], target, reduction=reduction, **options)
    expected = rows if reduction == "none" else getattr(rows, reduction)()
    torch.testing.assert_close(found, expected, equal_nan=True)
    if shape == (3,):
        target = torch.tensor([0, 0, 5])
        found = noise_contrastive_loss(hidden, layer()[1], target, reduction=reduction, ignore_index=5, **options)
        expected = rows[:2] if reduction != "none" else torch.cat((rows[:2], torch.zeros(1).double()))
        torch.testing.assert_close(found, expected if reduction == "none" else getattr(expected, reduction)())


def test_results_have_the_dtype_of_the_hidden_states(dtype: torch.dtype):
    hidden, weight = normal(4, FEATURES).to(dtype), normal(6, FEATURES, seed=1).to(dtype)
    target, options = torch.tensor([0, 1, 5, 5]), {"samples": 50, "sampler": "log_uniform", "generator": 0, "log_z": 1.0}
    found = noise_contrastive_loss(hidden, weight, target, **options)
    wide = noise_contrastive_loss(hidden.double(), weight.double(), target, **options)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), wide, rtol=2 * TOLERANCE[dtype], atol=0)


def test_it_compiles_whole():
    hidden, weight = normal(4, FEATURES).float().requires_grad_(), normal(6, FEATURES, seed=1).float().requires_grad_()
    sampler, target = Told(torch.tensor([1, 5, 2]), torch.full((6,), 1 / 6).double(), 6), torch.tensor([0, 1, 5, -100])

    def loss(hidden: Tensor, weight: Tensor) -> Tensor:
        return noise_contrastive_loss(hidden, weight, target, samples=3, sampler=sampler)

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")(hidden, weight)
    torch.testing.assert_close(compiled, loss(hidden, weight))
    for found, expected in zip(*(torch.autograd.grad(x, [hidden, weight]) for x in (compiled, loss(hidden, weight))), strict=True):
        torch.testing.assert_close(found, expected)


def test_a_head_learns_the_labels_probabilities_and_their_normaliser():
    p = torch.tensor([0.6, 0.25, 0.1, 0.05])
    generator = torch.Generator().manual_seed(0)
    log_z = torch.nn.Parameter(torch.tensor(3.0, dtype=torch.float64))
    head = NoiseContrastive(1, 4, 16, "uniform", log_z=log_z, generator=generator, dtype=torch.float64)
    optimizer = torch.optim.Adam(head.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    hidden = torch.ones(512, 1, dtype=torch.float64)
    for _ in range(500):
        optimizer.zero_grad()
        head(hidden, torch.multinomial(p, 512, replacement=True, generator=generator)).backward()
        optimizer.step()
        schedule.step()
    torch.testing.assert_close(head.log_prob(hidden[0]).exp(), p.double(), atol=0.02, rtol=0)
    scores = head.weight[:, 0] + head.bias
    assert float((scores.logsumexp(0) - log_z).detach()) == pytest.approx(0, abs=0.05)


def test_a_head_is_exact_in_eval_mode_and_normalised_from_the_start():
    head = NoiseContrastive(FEATURES, 1000, 4, dtype=torch.float64)
    hidden, target = normal(5, FEATURES), torch.arange(5)
    assert head.log_z == pytest.approx(math.log(1000))
    assert torch.isfinite(head(hidden, target))
    scores = hidden @ head.weight.T + head.bias
    torch.testing.assert_close(head.eval()(hidden, target), cross_entropy(scores, target))
    torch.testing.assert_close(head.log_prob(hidden), scores.log_softmax(-1))
    assert (head.predict(hidden, 2) == scores.topk(2).indices).all()
    assert torch.equal(copy.deepcopy(head)(hidden, target), head(hidden, target))


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"target": torch.tensor([0, 4])}, IndexError, "target 4 is out of range for 4 classes"),
        ({"log_z": math.inf}, ValueError, "log_z must be finite, got inf"),
        ({"log_z": "z"}, TypeError, "log_z must be finite, got the string 'z'"),
        ({"log_z": torch.ones(3)}, ValueError, r"log_z must broadcast to the rows' shape \(2,\), got \(3,\)"),
        ({"sampler": torch.tensor([0.0, 1, 1, 1])}, ValueError, "sampler gives class 0 the probability 0"),
        ({"samples": 0}, ValueError, "samples must be an int of at least 1, got 0"),
        ({"reduction": "avg"}, ValueError, "reduction must be one of"),
    ],
    ids=str,
)
def test_wrong_use_is_told(changed: dict[str, Any], error: type[Exception], message: str):
    given = {"hidden": torch.ones(2, 3), "weight": torch.ones(4, 3), "target": torch.tensor([0, 1]), "samples": 3}
    with pytest.raises(error, match=f"noise_contrastive_loss: .*{message}"):
        noise_contrastive_loss(**{**given, "sampler": "uniform", **changed})


def test_a_wrong_option_is_told_when_a_head_is_made():
    with pytest.raises(ValueError, match="NoiseContrastive: log_z must be finite, got nan"):
        NoiseContrastive(3, 4, 2, log_z=math.nan)
