"""Other libraries as oracles, where they are right."""

from __future__ import annotations

import importlib
from typing import Any

import entmax
import pytest
import scipy.special
import torch
from torch import Tensor

import softmaxima as sm
from conftest import normal

X = normal(50, 20, scale=3.0)
TARGET = torch.randint(20, (50,), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_torch(dim: int):
    torch.testing.assert_close(sm.softmax(X, dim), torch.softmax(X, dim))
    torch.testing.assert_close(sm.log_softmax(X, dim), torch.log_softmax(X, dim))
    torch.testing.assert_close(sm.softmin(X, dim), torch.nn.functional.softmin(X, dim))


# What torch tests its own functions with: (torch's function, ours), taken as they are.
SAMPLED = {
    "softmax": sm.softmax,
    "log_softmax": sm.log_softmax,
    "nn.functional.softmin": sm.softmin,
    "logsumexp": sm.logsumexp,
    "nn.functional.softplus": sm.softplus,
    "nn.functional.cross_entropy": sm.cross_entropy,
}


@pytest.fixture(scope="module")
def op_db() -> Any:
    pytest.importorskip("expecttest", reason="torch's own tests need it")
    return importlib.import_module("torch.testing._internal.common_methods_invocations").op_db


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("name", SAMPLED)
def test_torch_s_own_samples(name: str, kind: torch.dtype, op_db: Any):
    requires_grad = kind.is_floating_point
    samples = [
        (op.op, sample)
        for op in op_db
        if op.name == name and kind in op.supported_dtypes("cpu")
        for sample in op.sample_inputs("cpu", kind, requires_grad=requires_grad)
    ]
    for torch_s, sample in samples:
        if sample.kwargs.get("weight") is not None:
            sample.kwargs["weight"] = sample.kwargs["weight"].abs()  # torch takes negative ones
        ours, theirs = (function(sample.input, *sample.args, **sample.kwargs) for function in (SAMPLED[name], torch_s))
        half = {"atol": 2e-2, "rtol": 2e-2} if kind == torch.bfloat16 else {}
        torch.testing.assert_close(ours, theirs, **half)
        if requires_grad and ours.requires_grad and sample.input.numel():
            pair = [torch.autograd.grad(y.float().square().sum(), sample.input, retain_graph=True)[0] for y in (ours, theirs)]
            torch.testing.assert_close(*pair, **half)


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_torch_s_own_samples_of_attention(kind: torch.dtype, op_db: Any):
    (op,) = (op for op in op_db if op.name == "nn.functional.scaled_dot_product_attention")
    near = {torch.bfloat16: {"atol": 5e-2, "rtol": 5e-2}, torch.float32: {"atol": 1e-4, "rtol": 1e-4}}.get(kind, {})
    widened = lambda x: x.detach().double() if isinstance(x, Tensor) and x.is_floating_point() else x
    for sample in op.sample_inputs("cpu", kind, requires_grad=True):
        inputs = sample.input, *sample.args
        ours, theirs = (attend(*inputs, **sample.kwargs) for attend in (sm.attention, op.op))
        assert ours.shape == theirs.shape
        if sample.kwargs.get("dropout_p"):
            continue  # of other draws
        torch.testing.assert_close(ours, theirs, **near)
        wide = [widened(x).requires_grad_(number < 3) for number, x in enumerate(inputs)]
        true = op.op(*wide, **{name: widened(value) for name, value in sample.kwargs.items()})
        slopes = [
            torch.autograd.grad(y.double().square().sum(), x[:3]) for y, x in ((ours, inputs), (theirs, inputs), (true, wide))
        ]
        for a, b, right in zip(*slopes, strict=True):
            if kind != torch.bfloat16:
                torch.testing.assert_close(a, b, **{name: 20 * most for name, most in near.items()})
                continue
            far = [float((x.double() - right).abs().max()) for x in (a, b)]
            assert far[0] <= 2 * far[1] + 4 * torch.finfo(kind).eps * float(right.abs().max())


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "softmin"])
def test_torch_s_modules_work_with_ours(monkeypatch: pytest.MonkeyPatch, name: str):
    module = {"softmax": torch.nn.Softmax, "log_softmax": torch.nn.LogSoftmax, "softmin": torch.nn.Softmin}[name](1)
    expected = module(X)
    monkeypatch.setattr(torch.nn.functional, name, getattr(sm, name))
    torch.testing.assert_close(module(X), expected)
    torch.testing.assert_close(
        getattr(torch.nn.functional, name)(X, 0, _stacklevel=5, dtype=torch.float32),
        getattr(torch.nn.functional, name)(X.float(), 0),
    )


def test_scipy():
    torch.testing.assert_close(sm.softmax(X.numpy()), scipy.special.softmax(X.numpy(), axis=-1))
    torch.testing.assert_close(sm.log_softmax(X.numpy()), scipy.special.log_softmax(X.numpy(), axis=-1))


@pytest.mark.parametrize("dim", [0, -1])
def test_entmax_package_maps(dim: int):
    torch.testing.assert_close(sm.sparsemax(X, dim), entmax.sparsemax(X, dim=dim))
    torch.testing.assert_close(sm.entmax15(X, dim), entmax.entmax15(X, dim=dim), atol=1e-7, rtol=0)
    for alpha in (1.1, 1.3, 1.5, 2.0, 2.5):
        bisected = entmax.entmax_bisect(X, alpha=alpha, dim=dim, n_iter=100)
        torch.testing.assert_close(sm.entmax(X, dim=dim, alpha=alpha), bisected, atol=1e-9, rtol=0)


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
