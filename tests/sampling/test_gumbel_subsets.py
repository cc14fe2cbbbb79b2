"""Subsets without replacement: the order's probability, its gradient, and the relaxation."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from scipy import stats

from softmaxima.sampling import gumbel_top_k, relaxed_top_k
from softmaxima.sampling.noise import gumbel, uniform

X = torch.tensor([1.0, 0.0, -1.0, 0.5], dtype=torch.float64)


def order_probability(x: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    p, left, found = x.softmax(-1), torch.ones_like(x), torch.ones((), dtype=x.dtype)
    for i in order:
        found = found * p[i] / (p * left).sum()
        left = left.index_fill(0, torch.tensor(i), 0.0)
    return found


def test_orders_are_drawn_by_their_probability():
    draw = gumbel_top_k(X, 2, samples=40_000, generator=0)
    orders = list(permutations(range(4), 2))
    expected = torch.stack([order_probability(X, order) for order in orders])
    assert abs(expected.sum().item() - 1) < 1e-12
    counts = torch.tensor([(draw.indices == torch.tensor(order)).all(-1).sum() for order in orders])
    assert stats.chisquare(counts.numpy(), (expected * 40_000).numpy()).pvalue > 1e-6


@pytest.mark.parametrize("k", [1, 2, 4])
def test_log_probabilities_and_their_gradient(k: int):
    x = X.clone().requires_grad_()
    draw = gumbel_top_k(x, k, generator=1)
    wanted = order_probability(x, tuple(draw.indices.tolist())).log()
    torch.testing.assert_close(draw.log_prob, wanted)
    torch.testing.assert_close(torch.autograd.grad(draw.log_prob, x)[0], torch.autograd.grad(wanted, x)[0])
    torch.autograd.gradgradcheck(lambda x: gumbel_top_k(x, k, generator=1).log_prob, x)


def test_log_probabilities_keep_their_digits():
    """Where one class has nearly all, what is left is not a difference from 1."""
    draw = gumbel_top_k(torch.tensor([100.0, 0.0, -1.0], dtype=torch.float64), 3, generator=0)
    torch.testing.assert_close(
        draw.log_prob, torch.tensor([0.0, [-1.3132616875, -0.3132616875][int(draw.indices[1] == 1)]], dtype=torch.float64).sum()
    )


def test_rows_with_too_few_classes_are_marked():
    draw = gumbel_top_k(torch.zeros(2, 3), 2, where=torch.tensor([[True, False, False], [False] * 3]), generator=0)
    assert draw.indices.tolist() == [[0, -1], [-1, -1]]
    assert draw.log_prob.tolist() == [0.0, 0.0]


def test_the_relaxation_holds_k_and_tends_to_the_draw():
    x = torch.randn(200, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    hard = relaxed_top_k(x, 3, 1.0, True, generator=4)
    assert (hard.sum(-1) == 3).all()
    drawn = gumbel_top_k(x, 3, generator=4).indices
    assert hard.gather(-1, drawn).all()
    for tau in (1e-30, 1e-3, 1.0, 1e30):
        p = relaxed_top_k(x, 3, tau, generator=4)
        torch.testing.assert_close(p.sum(-1), torch.full((200,), 3.0, dtype=torch.float64))
        assert (p >= 0).all()
    torch.testing.assert_close(relaxed_top_k(x, 3, 1e-30, generator=4), hard)


def test_the_relaxation_is_its_definition():
    x = X.expand(20, 4)
    tau, a = 0.7, x + gumbel(uniform("test", x.shape, x.device, 2))
    wanted = torch.zeros_like(x)
    for _ in range(3):
        p = (a / tau).softmax(-1)
        wanted, a = wanted + p, a + torch.log1p(-p)
    torch.testing.assert_close(relaxed_top_k(x, 3, tau, generator=2), wanted)
