"""Other libraries as oracles, where they are right."""

from __future__ import annotations

import entmax
import pytest
import scipy.special
import torch

import softmaxima as sm
from conftest import normal

X = normal(50, 20, scale=3.0)
TARGET = torch.randint(20, (50,), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_torch(dim: int):
    torch.testing.assert_close(sm.softmax(X, dim), torch.softmax(X, dim))
    torch.testing.assert_close(sm.log_softmax(X, dim), torch.log_softmax(X, dim))
    torch.testing.assert_close(sm.softmin(X, dim), torch.nn.functional.softmin(X, dim))


def test_scipy():
    torch.testing.assert_close(sm.softmax(X.numpy()), scipy.special.softmax(X.numpy(), axis=-1))
    torch.testing.assert_close(sm.log_softmax(X.numpy()), scipy.special.log_softmax(X.numpy(), axis=-1))


@pytest.mark.parametrize("dim", [0, -1])
def test_entmax_package_maps(dim: int):
    torch.testing.assert_close(sm.sparsemax(X, dim), entmax.sparsemax(X, dim=dim))
    torch.testing.assert_close(sm.entmax15(X, dim), entmax.entmax15(X, dim=dim), atol=1e-7, rtol=0)
    for alpha in (1.1, 1.3, 1.5, 2.0, 2.5):
        bisected = entmax.entmax_bisect(X, alpha=alpha, dim=dim, n_iter=100)
        torch.testing.assert_close(sm.entmax(X, dim, alpha=alpha), bisected, atol=1e-9, rtol=0)


def test_entmax_package_alpha_gradient():
    g = normal(50, 20, seed=5)
    for alpha in (1.2, 1.5, 1.9):
        ours, theirs = (torch.full((50, 1), alpha, dtype=torch.float64, requires_grad=True) for _ in range(2))
        (sm.entmax(X, alpha=ours) * g).sum().backward()
        (entmax.entmax_bisect(X, alpha=theirs, dim=-1, n_iter=100) * g).sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-7, rtol=1e-6)


def test_entmax_package_losses():
    torch.testing.assert_close(sm.sparsemax_loss(X, TARGET), entmax.SparsemaxLoss()(X, TARGET))
    torch.testing.assert_close(sm.entmax15_loss(X, TARGET), entmax.Entmax15Loss()(X, TARGET), atol=1e-7, rtol=1e-6)
    bisected = entmax.EntmaxBisectLoss(alpha=1.3, n_iter=100)(X, TARGET)
    torch.testing.assert_close(sm.entmax_loss(X, TARGET, alpha=1.3), bisected, atol=1e-8, rtol=1e-8)
