"""entmax on both sides of α = 1, where one map is solved in two ways: the same by every door."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import softmaxima as sm
from conftest import normal


def of_low_order() -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """Ways to p of scores [2, 5] and α [2, 1], which lies on both sides of 1."""
    compiled = partial(torch.compile, fullgraph=True, backend="aot_eager")
    one = torch.eye(5, dtype=torch.float64)
    attend = lambda x, by, **params: sm.attention(x, one, one, scale=1.0, map=by, **params)
    learnt = lambda alpha: sm.Entmax(alpha=nn.Parameter(alpha))
    return {
        "vmap": torch.func.vmap(lambda x, alpha: sm.entmax(x, alpha=alpha)),
        "compiled": lambda x, alpha: compiled(lambda x, alpha: sm.entmax(x, alpha=alpha))(x, alpha),
        "a compiled module": lambda x, alpha: compiled(learnt(alpha))(x),
        "an exported module": lambda x, alpha: torch.export.export(learnt(alpha), (x,)).module()(x),
        "a pickled module": lambda x, alpha: pickle.loads(pickle.dumps(learnt(alpha)))(x),
        "by name": lambda x, alpha: sm.MapModule("entmax", alpha=alpha)(x),
        "attention": lambda x, alpha: attend(x, "entmax", alpha=alpha),
        "attention by a module": lambda x, alpha: attend(x, learnt(alpha)),
        "compiled attention": lambda x, alpha: compiled(lambda x, alpha: attend(x, "entmax", alpha=alpha))(
            x, alpha.requires_grad_()
        ),
        "segments": lambda x, alpha: sm.segment_map(
            "entmax", x.flatten(), torch.arange(2).repeat_interleave(5), alpha=alpha.flatten()
        ).view_as(x),
    }


@pytest.mark.parametrize("way", of_low_order())
def test_entmax_on_both_sides_of_one_is_the_same_every_way(way: str):
    torch._dynamo.reset()
    x, alpha = normal(2, 5), torch.tensor([[0.6], [1.4]], dtype=torch.float64)
    expected = torch.stack([sm.entmax(row, alpha=each) for row, each in zip(x, (0.6, 1.4), strict=True)])
    torch.testing.assert_close(of_low_order()[way](x, alpha).detach(), expected, atol=1e-13, rtol=0)


def test_losses_of_entmax_below_one_are_the_same_every_way():
    torch._dynamo.reset()
    x, y, w = normal(4, 5), torch.arange(4), normal(5, 3, seed=1)
    compiled = torch.compile(lambda x, alpha: sm.entmax_loss(x, y, alpha=alpha), fullgraph=True, backend="aot_eager")
    for alpha in (0.5, 0.6, 1.5):  # the second time a compiler has a symbol
        expected = sm.entmax_loss(x, y, alpha=alpha)
        torch.testing.assert_close(compiled(x, alpha), expected)
        torch.testing.assert_close(compiled(x, torch.tensor(alpha)), expected)
        torch.testing.assert_close(sm.fenchel_young_loss(x, y, map="entmax", alpha=alpha), expected)
    h = normal(4, 3, seed=2)
    torch.testing.assert_close(sm.linear_loss(h, w, y, loss=("entmax", 0.7)), sm.entmax_loss(h @ w.T, y, alpha=0.7))
    value, gradients = sm.losses.REGISTRY["entmax_loss"].in_parts([x[:, :2], x[:, 2:]], y, alpha=0.7)
    z = x.clone().requires_grad_()
    torch.testing.assert_close(value, (whole := sm.entmax_loss(z, y, alpha=0.7)).detach())
    torch.testing.assert_close(torch.cat(gradients, -1), torch.autograd.grad(whole, z)[0])
