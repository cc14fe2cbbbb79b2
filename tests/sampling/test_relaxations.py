"""Relaxed and straight-through draws: derivatives at fixed noise, transforms, modules."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from softmaxima.maps import sparsemax
from softmaxima.sampling import (
    GumbelSoftmax,
    gumbel_max,
    gumbel_softmax,
    gumbel_top_k,
    perturbed_argmax,
    rao_blackwell_gumbel,
    reinforce,
    reinmax,
    relaxed_sample,
    relaxed_top_k,
    straight_through,
    sum_and_sample,
)
from softmaxima.temperature import ExponentialTemperature, Temperature

SMOOTH: dict[str, Callable[..., Any]] = {
    "gumbel_softmax": gumbel_softmax,
    "entmax15": lambda x, tau, **options: relaxed_sample(x, tau, map="entmax15", **options),
    "entmax": lambda x, tau, **options: relaxed_sample(x, tau, map="entmax", alpha=1.3, **options),
    "relaxed_top_k": lambda x, tau, **options: relaxed_top_k(x, 2, tau, **options),
}


def scores() -> torch.Tensor:
    return torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()


def temperatures() -> torch.Tensor:
    return torch.tensor([[0.5], [1.0], [2.0]], dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives_are_exact_at_fixed_noise_and_temperatures_learn(name: str):
    where = torch.tensor([[True, True, True, False], [True] * 4, [True] * 4])
    function = lambda x, tau: SMOOTH[name](x, tau, where=where, samples=2, generator=3)
    torch.autograd.gradcheck(function, (scores(), temperatures()), check_forward_ad=True)
    torch.autograd.gradgradcheck(function, (scores(), temperatures()))


def test_hard_draws_have_the_gradient_of_soft_ones():
    weights = torch.arange(4.0, dtype=torch.float64)
    for hard, soft in (
        (lambda x: gumbel_softmax(x, 0.5, True, generator=1), lambda x: gumbel_softmax(x, 0.5, generator=1)),
        (lambda x: relaxed_top_k(x, 2, 0.5, True, generator=1), lambda x: relaxed_top_k(x, 2, 0.5, generator=1)),
        (lambda x: straight_through(x, 0.5, map="sparsemax", draw=False), lambda x: sparsemax(x, temperature=0.5)),
    ):
        x = scores()
        found, wanted = (torch.autograd.grad((function(x) * weights).sum(), x)[0] for function in (hard, soft))
        torch.testing.assert_close(found, wanted)


def test_reinmax_has_the_gradient_of_its_algorithm():
    x = scores()
    drawn = reinmax(x, 1.5, generator=0)
    p = x.detach().softmax(-1)
    middle = (drawn.detach() + (x.detach() / 1.5).softmax(-1)) / 2
    g = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    pull = lambda q: q * (g - (q * g).sum(-1, keepdim=True))
    torch.testing.assert_close(torch.autograd.grad(drawn, x, g)[0], 2 * pull(middle) - pull(p) / 2)


@pytest.mark.parametrize(
    "function", [gumbel_softmax, straight_through, reinmax, rao_blackwell_gumbel, lambda x: relaxed_top_k(x, 2)]
)
def test_functions_transform(function: Callable[..., Any]):
    torch.manual_seed(0)
    x = scores().detach()
    drawn = torch.func.vmap(function, randomness="different")(x.expand(50, 3, 4))
    assert drawn.shape == (50, 3, 4)
    assert not (drawn == drawn[0]).all()
    slopes = torch.func.vmap(torch.func.grad(lambda row: function(row)[0]), randomness="different")(x)
    torch.testing.assert_close(slopes.sum(-1), torch.zeros(3, dtype=torch.float64), atol=1e-12, rtol=0)
    assert torch.func.jacfwd(lambda row: function(row), randomness="same")(x[0].float()).shape == (4, 4)


FORWARD: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gumbel_softmax": lambda x: gumbel_softmax(x, 0.5, generator=1),
    "hard": lambda x: gumbel_softmax(x, 0.5, True, generator=1),
    "elastic_softmax": lambda x: relaxed_sample(x, 0.5, map="elastic_softmax", generator=1),
    "straight_through": lambda x: straight_through(x, generator=1),
    "reinmax": lambda x: reinmax(x, 1.5, generator=1),
    "rao_blackwell_gumbel": lambda x: rao_blackwell_gumbel(x, 0.5, generator=1),
    "relaxed_top_k": lambda x: relaxed_top_k(x, 2, generator=1),
    "gumbel_top_k": lambda x: gumbel_top_k(x, 2, generator=1).log_prob,
    "reinforce": lambda x: reinforce(x, lambda draws: draws.cumsum(-1).sin().sum(-1), generator=1),
    "sum_and_sample": lambda x: sum_and_sample(x, lambda draws: draws.cumsum(-1).sin().sum(-1), generator=1),
    "perturbed_argmax": lambda x: perturbed_argmax(x, lambda x: x.argsort(-1).argsort(-1), samples=20, generator=1),
}


@pytest.mark.parametrize("name", FORWARD)
def test_both_modes_have_one_derivative(name: str):
    """What is constant in one mode is in the other."""
    x, function = scores().detach(), FORWARD[name]
    forward = torch.func.jacfwd(function, randomness="same")(x)
    torch.testing.assert_close(forward, torch.autograd.functional.jacobian(function, x), atol=1e-12, rtol=1e-12)


def test_draws_compile_to_one_graph():
    def draws(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        best = perturbed_argmax(x, lambda scores: scores.amax(-1), samples=2)
        return gumbel_max(x), gumbel_softmax(x, 0.5, True), best

    x = scores()
    index, p, best = torch.compile(draws, fullgraph=True, backend="aot_eager")(x)
    assert index.shape == best.shape == (3,)
    assert (p.sum(-1) == 1).all()
    p[:, 0].sum().backward()
    assert x.grad is not None


def test_narrow_gradients_stay_in_their_dtype():
    x = torch.tensor([1.0, 1.0], dtype=torch.float16, requires_grad=True)
    for seed in range(20):
        (gradient,) = torch.autograd.grad(gumbel_softmax(x, 1e-6, generator=seed)[0] * 1000, x)
        assert gradient.isfinite().all()


def test_a_straight_through_draw_counts_its_second_derivative():
    x = scores()
    (gradient,) = torch.autograd.grad(gumbel_softmax(x, 0.5, True, generator=0).square().sum(), x, create_graph=True)
    assert torch.autograd.grad(gradient.square().sum(), x)[0].any()


def test_the_temperature_of_the_module_may_follow_a_schedule():
    x = scores().detach()
    schedule = ExponentialTemperature(1.0, 0.5)
    module = GumbelSoftmax(schedule, True)
    for _ in range(3):
        torch.testing.assert_close(module(x, generator=1), gumbel_softmax(x, schedule().item(), True, generator=1))
        schedule.step()
    learnt = GumbelSoftmax(Temperature(0.5))
    learnt(x, generator=1)[0, 0].backward()
    assert all(parameter.grad is not None for parameter in learnt.parameters())


def test_the_module_is_the_function():
    x = scores().detach()
    for module, options in ((GumbelSoftmax(0.5), {}), (GumbelSoftmax(0.5, True, 0), {"hard": True, "dim": 0})):
        torch.testing.assert_close(module(x, generator=1), gumbel_softmax(x, 0.5, generator=1, **options))
    module = GumbelSoftmax(torch.nn.Parameter(torch.tensor(0.5)), map="entmax", alpha=1.2)
    for twin in (module, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        torch.testing.assert_close(twin(x, generator=1), relaxed_sample(x, 0.5, map="entmax", alpha=1.2, generator=1))
    module(x, generator=1).square().sum().backward()
    assert module.temperature.grad is not None  # type: ignore[union-attr]
    assert "map=entmax" in repr(module)
