"""Perturbed maximisers: of any solver, in expectation what the noise makes of it, with the gradient of that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from softmaxima.sampling import perturbed_argmax

WAYS: dict[str, dict[str, Any]] = {"none": {"baseline": "none"}, "leave_one_out": {}, "antithetic": {"antithetic": True}}
X = torch.tensor([1.0, 0.5, 0.0, -1.0], dtype=torch.float64)
DEVIATIONS = 4.5


def one_hot(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.one_hot(x.argmax(-1), x.shape[-1]).double()


def estimates(noise: str, way: str, scale: Any = 0.7, samples: int = 6, rows: int = 10_000) -> tuple[torch.Tensor, torch.Tensor]:
    x = X.expand(rows, 4).clone().requires_grad_()
    y = perturbed_argmax(x, one_hot, noise=noise, scale=scale, samples=samples, generator=0, **WAYS[way])
    return y.detach(), torch.autograd.grad(y[:, 0].sum(), x)[0]


@pytest.mark.parametrize("way", WAYS)
def test_gumbel_noise_gives_softmax_and_its_gradient(way: str):
    y, gradients = estimates("gumbel", way)
    x = X.clone().requires_grad_()
    p = (x / 0.7).softmax(-1)
    (exact,) = torch.autograd.grad(p[0], x)
    for found, wanted in ((y, p.detach()), (gradients, exact)):
        assert ((found.mean(0) - wanted).abs() / (found.var(0) / len(found)).sqrt()).max() < DEVIATIONS


@pytest.mark.parametrize("noise", ["gumbel", "normal", "logistic"])
def test_baselines_take_variance_away_and_nothing_else(noise: str):
    found = {way: estimates(noise, way)[1] for way in WAYS}
    variance = {way: gradients.var(0).sum() for way, gradients in found.items()}
    for way in ("leave_one_out", "antithetic"):
        assert variance[way] < 0.9 * variance["none"]
        error = found[way].mean(0) - found["none"].mean(0)
        spread = (found[way].var(0) + found["none"].var(0)) / len(found["none"])
        assert (error.abs() / spread.sqrt()).max() < DEVIATIONS


def test_the_scale_learns():
    scale = torch.full((10_000, 1), 0.7, dtype=torch.float64, requires_grad=True)
    y = perturbed_argmax(X.expand(10_000, 4), one_hot, noise="gumbel", scale=scale, samples=6, generator=0)
    (gradients,) = torch.autograd.grad(y[:, 0].sum(), scale)
    tau = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    (exact,) = torch.autograd.grad((X / tau).softmax(-1)[0], tau)
    assert abs(gradients.mean() - exact) < DEVIATIONS * (gradients.var() / 10_000).sqrt()


def assign(cost: np.ndarray) -> np.ndarray:
    matching = np.zeros_like(cost)
    matching[linear_sum_assignment(cost, maximize=True)] = 1.0
    return matching


def test_a_solver_of_arrays_matches_one_problem_at_a_time():
    x = torch.randn(2, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    y = perturbed_argmax(x, assign, scale=2.0, samples=50, dim=(-2, -1), vectorized=False, numpy=True, generator=0)
    torch.testing.assert_close(y.sum(-1), torch.ones(2, 3, dtype=torch.float64))
    (gradient,) = torch.autograd.grad(y[0, 0, 0], x)
    assert gradient[0].any()
    assert not gradient[1].any()  # another problem
    given = x.detach().numpy()
    same = perturbed_argmax(given, assign, scale=2.0, samples=50, dim=(-2, -1), vectorized=False, generator=0)
    assert isinstance(same, np.ndarray)
    np.testing.assert_allclose(same, y.detach().numpy())


def test_decisions_of_another_shape_and_any_axis():
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    best = perturbed_argmax(x, lambda x: x.amax(-1), samples=20, generator=0)
    assert best.shape == (4,)
    assert torch.autograd.grad(best.sum(), x)[0].isfinite().all()
    ranked = perturbed_argmax(x, lambda x: x.argsort(-1).argsort(-1), dim=0, samples=20, generator=0)
    torch.testing.assert_close(ranked.sum(0), torch.full((5,), 6.0))
    torch.testing.assert_close(
        ranked, perturbed_argmax(x.T, lambda x: x.argsort(-1).argsort(-1), samples=20, generator=0).T, atol=1e-6, rtol=0
    )


@pytest.mark.parametrize("precision", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_no_nan(precision: torch.dtype, scale: float):
    x = torch.tensor([1e4, -1e4, 0.0, -torch.inf], dtype=precision, requires_grad=True)
    for noise in ("gumbel", "normal", "logistic"):
        y = perturbed_argmax(x, one_hot, noise=noise, scale=scale, samples=10, generator=0)
        assert y.dtype == precision
        assert y.isfinite().all()
        (gradient,) = torch.autograd.grad(y.sum() + y[0], x)
        assert gradient.isfinite().all()
        assert gradient[3] == 0


def test_the_gradient_sees_noise_that_the_scores_do_not():
    """Where ε is below the last digit of x, x + εZ has lost Z, and the scores of the noise have not."""
    x = torch.full((3,), 1e20, dtype=torch.float64, requires_grad=True)
    y = perturbed_argmax(x, lambda u: torch.rand(u.shape, generator=torch.Generator().manual_seed(0)), samples=50, generator=0)
    assert torch.autograd.grad(y[0], x)[0].abs().min() > 0


@pytest.mark.parametrize("offset", [0.0, 6e4, 1e8])
def test_the_dtype_of_the_scores_draws_nothing_else(offset: float, dtype: torch.dtype):
    """The solver sees the noise with all its digits."""
    x = torch.full((2,), min(offset, 6e4) if dtype == torch.float16 else offset, dtype=dtype)
    y = perturbed_argmax(x, one_hot, samples=20_000, generator=0)
    assert abs(float(y[0]) - 0.5) < 0.02
