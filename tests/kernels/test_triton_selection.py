"""The GPU's selections in Triton's interpreter: the same scores as the CPU's, where a row stays on chip and where it is shared."""

from __future__ import annotations

import math
import os

import pytest
import torch
from torch import Tensor

from softmaxima.base.temperature import tempered
from softmaxima.maps import REGISTRY

if os.environ.get("SOFTMAXIMA_BACKEND") != "triton":
    pytest.skip("set SOFTMAXIMA_BACKEND=triton and TRITON_INTERPRET=1", allow_module_level=True)

from softmaxima.kernels.triton import launches, library, selection

pytestmark = pytest.mark.gpu

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "ON_CHIP", 64)
    monkeypatch.setattr(launches, "PART", 32)


def hard_rows(n: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(n)
    x = 2 * torch.randn(12, n, generator=generator, dtype=torch.float64)
    x[1] = x[1].round()
    x[2] = (x[2] / 4).round().abs()
    x[3] = 0.0
    x[4, ::2], x[4, 1::2] = 0.0, -0.0
    x[5] = -x[5].abs() - 3
    x[6] *= 15
    x[7, ::2] = -math.inf
    x[8] = -math.inf
    x[9, n // 2] = math.nan
    x[10, -1] = math.inf
    x[11] += 1000
    return x.to(dtype)


def check(name: str, theta: float, x: Tensor, tau: float | Tensor = 1.0, where: Tensor | None = None) -> None:
    p = library.forward(REGISTRY[name].kernel, x, tau, where, (theta,))
    parameter = REGISTRY[name].params[0].name
    value = int(theta) if parameter == "k" else theta
    expected = REGISTRY[name].forward(tempered(x.double(), tau, where), **{parameter: value}).to(x.dtype)
    torch.testing.assert_close(p, expected, atol=TOLERANCE[x.dtype], rtol=0, equal_nan=True)
    seen = expected > 1e-30  # what is less may come out as 0
    assert torch.equal(p[seen] > 0, expected[seen] > 0)
    assert torch.equal((p > 1e-30) & ~seen, torch.zeros_like(seen))


@pytest.mark.parametrize(
    ("name", "theta"), [("topk_softmax", 2), ("topk_softmax", 37), ("topp_softmax", 0.3), ("topp_softmax", 1.0)]
)
def test_rows_on_chip(name: str, theta: float, dtype: torch.dtype) -> None:
    for n in (1, 31, 32):
        check(name, theta, hard_rows(n, dtype))


@pytest.mark.parametrize(
    ("name", "theta"), [("topk_softmax", 1), ("topk_softmax", 31), ("topp_softmax", 0.9), ("topp_softmax", 1e-300)]
)
def test_temperature_and_mask_on_chip(name: str, theta: float) -> None:
    x = hard_rows(33, torch.float32)
    where = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) > 0.4
    check(name, theta, x, 0.7, where)
    check(name, theta, x, torch.linspace(0.5, 2.0, len(x))[:, None], where[:1])


@pytest.mark.parametrize(("name", "theta"), [("topk_softmax", 40), ("topp_softmax", 0.9)])
def test_rows_in_parts(name: str, theta: float) -> None:
    check(name, theta, hard_rows(65, torch.bfloat16)[[0, 2, 3, 4, 7, 9]])


@pytest.mark.parametrize(("name", "theta"), [("topk_softmax", 3), ("topp_softmax", 0.5)])
def test_digits_of_each_dtype(name: str, theta: float, dtype: torch.dtype) -> None:
    check(name, theta, hard_rows(66, dtype)[6:7])


def test_keeps_all_in_parts() -> None:
    x = hard_rows(96, torch.bfloat16)[[0, 8]]
    check("topk_softmax", 101, x)
    check("topp_softmax", 1.0, x)


@pytest.mark.parametrize(("name", "theta"), [("topk_softmax", 150), ("topp_softmax", 0.7)])
def test_spans_of_many_parts(name: str, theta: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "SPANS", 2)
    check(name, theta, hard_rows(200, torch.float16)[3:4])


@pytest.mark.parametrize(("name", "theta"), [("topk_softmax", 20), ("topp_softmax", 0.8)])
def test_temperature_mask_and_strides_in_parts(name: str, theta: float) -> None:
    x = hard_rows(80, torch.float16)[:2, :70]
    where = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) > 0.4
    check(name, theta, x, torch.tensor([[0.6], [1.5]]), where)


@pytest.mark.parametrize("name", ["topk_softmax", "topp_softmax"])
def test_reference(name: str) -> None:
    parameter = REGISTRY[name].params[0]
    for n in (20, 65):
        x = hard_rows(n, torch.float64)[:1]
        for theta in parameter.examples[:2]:
            expected = REGISTRY[name].reference(x, **{parameter.name: theta})
            torch.testing.assert_close(library.forward(REGISTRY[name].kernel, x, 1.0, None, (theta,)), expected, atol=1e-12, rtol=0)
