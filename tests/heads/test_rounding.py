"""The gradient of a layer in half precision is a sum in float32 that is rounded once, however often a class occurs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import softmaxima as sm
from conftest import normal
from softmaxima.heads import exact, labelled

ROWS, CLASSES, FEATURES = 3000, 20, 8
HIDDEN, WEIGHT, BIAS = normal(ROWS, FEATURES, scale=1.0), normal(CLASSES, FEATURES, seed=1, scale=1.0), normal(CLASSES, seed=2)
TARGET = (normal(ROWS, seed=3) > 1.0).long()  # two classes, often
DRAWN: dict[str, Any] = {"samples": 20, "sampler": "uniform", "reduction": "sum", "generator": 0}


def log_prob(hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor) -> Tensor:
    """The sum of that of the targets."""
    rows = labelled.as_rows("log_prob", hidden, weight, bias, 0.7)
    wide = exact.exact_log_prob(rows).to(rows.hidden.dtype)
    return wide.gather(-1, target.unsqueeze(-1)).sum()


LOSSES: dict[str, Callable[..., Tensor]] = {
    f"{function.__name__}, {'shared' if shared else 'own'}, {'sparse' if sparse else 'dense'}": partial(
        function, **DRAWN, shared=shared, sparse=sparse, temperature=0.7
    )
    for function in (sm.sampled_softmax_loss, sm.noise_contrastive_loss)
    for shared in (True, False)
    for sparse in (True, False)
} | {"log_prob": log_prob}


def slopes(loss: Callable[..., Tensor], dtype: torch.dtype) -> list[Tensor]:
    """By hidden, weight and bias, of numbers that half precision has."""
    x = [v.half().bfloat16().to(dtype).requires_grad_() for v in (HIDDEN, WEIGHT, BIAS)]
    by = torch.autograd.grad(loss(x[0], x[1], TARGET, bias=x[2]), x)
    return [(v.coalesce().to_dense() if v.is_sparse else v).double() for v in by]


@pytest.mark.parametrize("held", [2**26, 2**14], ids=["whole", "in parts"])
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("summed", LOSSES.values(), ids=LOSSES)
def test_a_gradient_is_rounded_once(summed: Callable[..., Tensor], half: torch.dtype, held: int, monkeypatch: pytest.MonkeyPatch):
    expected = slopes(summed, torch.float64)
    monkeypatch.setattr(labelled, "HELD", held)
    monkeypatch.setattr(exact, "HELD", held)
    for found, exactly in zip(slopes(summed, half), expected, strict=True):
        assert exactly.abs().max() > 0.1
        allowed = torch.finfo(half).eps / 2 * exactly.abs() + 1e-5 * exactly.abs().max()  # and what float32 loses in the sum
        assert ((found - exactly).abs() <= allowed).all()


@pytest.mark.parametrize("shared", [True, False])
def test_a_sparse_gradient_has_the_classes_that_occur_alone(shared: bool):
    weight = WEIGHT.bfloat16().requires_grad_()
    sampler = sm.UnigramSampler((torch.arange(CLASSES) < 5).double())
    loss = partial(sm.sampled_softmax_loss, samples=200, sampler=sampler, shared=shared, sparse=True, generator=0)
    by = torch.autograd.grad(loss(HIDDEN[:50].bfloat16(), weight, TARGET[:50]), weight)[0]
    assert by._nnz() <= CLASSES
    assert by.coalesce().indices().flatten().tolist() == [0, 1, 2, 3, 4]
