"""No NaN: every dtype, temperatures from 1e-30 to 1e30, huge scores and masks, and derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from softmaxima.base.numbers import SMALLEST_TEMPERATURE
from softmaxima.maps import REGISTRY
from softmaxima.sampling import (
    expectation,
    gumbel_softmax,
    gumbel_top_k,
    rao_blackwell_gumbel,
    reinmax,
    relaxed_sample,
    relaxed_top_k,
    straight_through,
)

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
TEMPERATURES = (1e-30, 1e-4, 1.0, 1e4, 1e30)
INF = torch.inf
SCORES = [[1e4, -1e4, 0.0, -INF], [-INF] * 4, [1.0, 2.0, 3.0, 4.0], [0.0] * 4, [1e4, 1e4, 1e4, 1e4 - 8], [-INF, -INF, 3.0, -INF]]
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "gumbel_softmax": gumbel_softmax,
    "hard gumbel_softmax": lambda x, tau, **options: gumbel_softmax(x, tau, True, **options),
    "straight_through": lambda x, tau, **options: straight_through(x, temperature=tau, **options),
    "reinmax": reinmax,
    "rao_blackwell_gumbel": rao_blackwell_gumbel,
    "relaxed_top_k": lambda x, tau, **options: relaxed_top_k(x, 3, tau, **options),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("tau", TEMPERATURES)
def test_values_and_gradients_are_finite(name: str, precision: torch.dtype, tau: float):
    x = torch.tensor(SCORES, dtype=precision, requires_grad=True)
    p = FUNCTIONS[name](x, tau, samples=50, generator=0)
    assert p.dtype == precision
    assert p.isfinite().all()
    assert not p[:, torch.tensor(SCORES) == -INF].any()
    weights = torch.tensor([1.0, -2.0, 3.0, 0.5], dtype=precision)
    (gradient,) = torch.autograd.grad((p[:20] * weights).sum(), x)
    assert gradient.isfinite().all()
    assert not gradient[torch.tensor(SCORES) == -INF].any()


@pytest.mark.parametrize("name", [*(name for name in FUNCTIONS if name != "reinmax"), "gumbel_top_k"])
def test_gradients_by_a_temperature_are_finite(name: str):
    """As small as they come: where 1/τ² is infinite, what has no weight has no gradient."""
    functions = {**FUNCTIONS, "gumbel_top_k": lambda x, tau, **options: gumbel_top_k(x, 3, temperature=tau, **options).log_prob}
    for value in (SMALLEST_TEMPERATURE, 1e-300, 1e-155, *TEMPERATURES, 1e300):
        tau = torch.tensor(value, dtype=torch.float64, requires_grad=True)
        found = functions[name](torch.tensor(SCORES, dtype=torch.float64), tau, samples=5, generator=0)
        weights = torch.arange(1.0, found.shape[-1] + 1, dtype=torch.float64)
        assert torch.autograd.grad((found * weights).sum(), tau)[0].isfinite(), value


@pytest.mark.parametrize("name", list(REGISTRY))
@pytest.mark.parametrize("tau", [1e-30, 1.0, 1e30])
def test_every_map_relaxes_without_nan(name: str, tau: float):
    x = torch.tensor([[100.0, -100.0, 0.0, -INF], [1.0, 2.0, 3.0, 4.0]], dtype=torch.float16)
    p = relaxed_sample(x, tau, map=name, samples=5, generator=0)
    assert not p.isnan().any()


def test_a_sparse_map_gives_exact_zeros_at_a_finite_temperature():
    p = relaxed_sample(torch.zeros(1000, 8), map="sparsemax", generator=0)
    assert 0.3 < (p == 0).float().mean() < 0.9
    torch.testing.assert_close(p.sum(-1), torch.ones(1000))


def test_the_peer_gives_what_we_do_not():
    """Why ours exists: of torch's, noisy scores over a small temperature are infinite in half precision."""
    torch.manual_seed(0)
    assert torch.nn.functional.gumbel_softmax(torch.zeros(1000, 8, dtype=torch.float16), 1e-5).isnan().any()
    assert gumbel_softmax(torch.zeros(1000, 8, dtype=torch.float16), 1e-5, generator=0).isfinite().all()


@pytest.mark.parametrize("name", ["gumbel_softmax", "reinmax", "reinforce", "reinforce_leave_one_out", "sum_and_sample", "rebar"])
@pytest.mark.parametrize("precision", DTYPES)
def test_estimates_are_finite(name: str, precision: torch.dtype):
    x = torch.tensor(SCORES, dtype=precision, requires_grad=True)
    options = {"exact": 3} if name == "sum_and_sample" else {}
    value = expectation(
        x, lambda draws: draws.float().square().sum(-1) + draws[..., 1].float(), name, samples=4, generator=0, **options
    )
    (gradient,) = torch.autograd.grad(value.sum(), x)
    assert value.isfinite().all()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("precision", DTYPES)
def test_probabilities_of_subsets_are_finite(precision: torch.dtype):
    x = torch.tensor(SCORES, dtype=precision, requires_grad=True)
    draw = gumbel_top_k(x, 3, samples=10, generator=0)
    assert draw.log_prob.isfinite().all()
    assert torch.autograd.grad(draw.log_prob.sum(), x)[0].isfinite().all()
    assert draw.indices[:, 1].eq(-1).all()


def test_rows_of_nan_stay_nan_where_the_result_can_say_so():
    x = torch.tensor([[0.0, torch.nan], [0.0, torch.inf], [0.0, 1.0]])
    for hard in (False, True):
        p = gumbel_softmax(x, 0.5, hard, generator=0)
        assert p[:2].isnan().any(-1).all()
        assert p[2].isfinite().all()
