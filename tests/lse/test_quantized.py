"""quantized_logsumexp and quantized_softmax: what dequantised scores give, in every layout, mask and size; errors."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import softmaxima as sm
from conftest import TOLERANCE, normal
from softmaxima.kernels import native

INF = math.inf
CODES = (torch.int8, torch.uint8)


@pytest.fixture(params=["native", "torch"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "torch":
        monkeypatch.setattr(native, "AVAILABLE", False)
    elif not native.AVAILABLE:
        pytest.skip("there is no native library")
    return request.param


def codes(*shape: int, seed: int = 0, dtype: torch.dtype = torch.int8, spread: int = 256) -> Tensor:
    """Codes over the middle `spread` of the 256."""
    lowest = torch.iinfo(dtype).min + 128 - spread // 2
    return torch.randint(lowest, lowest + spread, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def dequantised(q: Tensor, scale: Any, zero_point: Any) -> Tensor:
    return scale * (q.double() - zero_point)


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-13, rtol=1e-13)


@pytest.mark.parametrize("kind", CODES)
@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 255, 257, 2048, 2049, 65_537, 300_001])
def test_agrees_with_dequantised_scores_of_every_length(backend: str, kind: torch.dtype, n: int):
    for spread in (256, 2):
        q, scale = codes(3, n, dtype=kind, spread=spread), torch.tensor(0.07, dtype=torch.float64)
        x = dequantised(q, 0.07, 5)
        assert_close(sm.quantized_logsumexp(q, scale, 5), torch.logsumexp(x, -1))
        assert_close(sm.quantized_softmax(q, scale, 5), torch.softmax(x, -1))
        assert_close(sm.quantized_logsumexp(q[0], scale, 5), torch.logsumexp(x[0], -1))
        assert_close(sm.quantized_softmax(q[0], scale, 5), torch.softmax(x[0], -1))


@given(
    values=st.lists(st.integers(-128, 127), min_size=1, max_size=20),
    scale=st.floats(1e-3, 20),
    zero_point=st.integers(-128, 127),
    seed=st.integers(0, 100),
)
def test_agrees_with_sums_in_fifty_digits(values: list[int], scale: float, zero_point: int, seed: int):
    q, where = torch.tensor(values, dtype=torch.int8), torch.rand(len(values), generator=torch.Generator().manual_seed(seed)) > 0.3
    with mpmath.workdps(50):
        for allowed in (None, where):
            kept = [v for v, keep in zip(values, where.tolist(), strict=True) if allowed is None or keep]
            total = mpmath.fsum(mpmath.exp(mpmath.mpf(scale) * (v - zero_point)) for v in kept)
            expected = float(mpmath.log(total)) if kept else -INF
            value = sm.quantized_logsumexp(q, torch.tensor(scale, dtype=torch.float64), zero_point, where=allowed)
            assert float(value) == pytest.approx(expected, rel=1e-14, abs=1e-14)


def test_keeps_its_digits_near_zero(backend: str):
    q = np.array([0, -80], dtype=np.int8)
    assert sm.quantized_logsumexp(q, 0.5) == pytest.approx(4.248354255291589e-18, rel=1e-14)
    assert sm.quantized_logsumexp(np.repeat(q, [1, 5000]), 0.5) == pytest.approx(5000 * 4.248354255291589e-18, rel=1e-12)


@pytest.mark.parametrize("dim", [0, -2, 2])
def test_every_layout_mask_and_parameter_is_as_dequantised(backend: str, dim: int):
    q, shape = codes(5, 70, 67), [5, 70, 67]
    shape[dim] = 1
    scale, zero_point, tau = normal(*shape, scale=0.3).exp() / 20, normal(*shape, seed=1).round(), normal(*shape, seed=2).exp()
    wider = torch.cat((q, q), 2)[:, :, :67]
    for view in (q, q.transpose(0, 1).contiguous().transpose(0, 1), q.movedim(0, -1).contiguous().movedim(-1, 0), wider):
        for where in (None, normal(5, 70, 67, seed=3) > -1, normal(70, 1, seed=4) > 0):
            x = dequantised(q, scale, zero_point) / tau
            x = x if where is None else x.masked_fill(~where, -INF)
            options = {"temperature": tau, "where": where}
            actual = sm.quantized_logsumexp(view, scale, zero_point, dim, **options)
            torch.testing.assert_close(actual, sm.logsumexp(x, dim), atol=1e-12, rtol=1e-12)
            kept = sm.quantized_logsumexp(view, scale, zero_point, dim, keepdim=True, **options)
            assert torch.equal(kept, actual.unsqueeze(dim))
            assert_close(sm.quantized_softmax(view, scale, zero_point, dim, **options), sm.softmax(x, dim))


def test_results_are_of_the_dtype_of_the_scale(backend: str, dtype: torch.dtype):
    for q in (codes(4, 300), codes(4, 20), codes(300, 4).T):
        scale = torch.full((4, 1), 2**-5, dtype=dtype)
        value, p = sm.quantized_logsumexp(q, scale), sm.quantized_softmax(q, scale)
        assert value.dtype == p.dtype == dtype
        expected = dequantised(q, scale.double(), 0)
        torch.testing.assert_close(value, sm.logsumexp(expected).to(dtype))
        torch.testing.assert_close(p.double(), sm.softmax(expected), atol=TOLERANCE[dtype], rtol=0)
    assert sm.quantized_logsumexp(codes(3), 0.1).dtype == torch.get_default_dtype()
    assert sm.quantized_softmax(codes(3).numpy(), 0.1).dtype == np.float64
    assert sm.quantized_softmax(codes(3).numpy(), np.array([0.1], dtype=np.float32)).dtype == np.float32


def test_nothing_allowed_and_nothing_at_all(backend: str):
    q, nobody = codes(2, 3), torch.tensor([[False], [True]])
    assert sm.quantized_logsumexp(q, 0.1, where=nobody)[0] == -INF
    assert sm.quantized_softmax(q, 0.1, where=nobody)[0].tolist() == [0, 0, 0]
    assert sm.quantized_logsumexp(q[:, :0], 0.1).tolist() == [-INF, -INF]
    assert sm.quantized_softmax(q[:0], 0.1).shape == (0, 3)
    assert sm.quantized_logsumexp(q[0, 0], 0.5, zero_point=2) == 0.5 * (float(q[0, 0]) - 2)
    assert sm.quantized_softmax(q[0, 0], 0.5).tolist() == 1


def test_extreme_scales_underflow_to_the_maximum(backend: str):
    q = torch.tensor([[-128, 127, 127], [0, 1, -1]], dtype=torch.int8)
    scale = torch.tensor(1e4, dtype=torch.float64)
    assert sm.quantized_logsumexp(q, scale).tolist() == [1.27e6 + math.log(2), 1e4]
    assert sm.quantized_softmax(q, scale).tolist() == [[0, 0.5, 0.5], [0, 1, 0]]


def test_numpy_and_threads_give_the_same(backend: str):
    q = codes(2, 200_003)
    expected = sm.quantized_logsumexp(q.numpy(), 0.05)
    assert isinstance(expected, np.ndarray)
    assert isinstance(sm.quantized_logsumexp(q[0].numpy(), 0.05), np.float64)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 4):
            torch.set_num_threads(count)
            np.testing.assert_array_equal(sm.quantized_logsumexp(q.numpy(), 0.05), expected)  # counts do not round
    finally:
        torch.set_num_threads(threads)


def test_scale_zero_point_and_temperature_learn():
    q, where = codes(3, 6, spread=8), normal(3, 6) > -1
    scale, zero_point = (normal(3, 1, scale=0.2).exp() / 5).requires_grad_(), normal(3, 1, seed=1).requires_grad_()
    tau = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    for function in (sm.quantized_logsumexp, sm.quantized_softmax):
        call = lambda scale, zero_point, tau, function=function: function(q, scale, zero_point, temperature=tau, where=where)
        assert gradcheck(call, (scale, zero_point, tau), check_forward_ad=True)
        assert gradgradcheck(call, (scale, zero_point, tau))
    value = sm.quantized_logsumexp(q, scale, zero_point)
    gradients = torch.autograd.grad(value.sum(), (scale, zero_point))
    p = sm.quantized_softmax(q, scale.detach())
    assert_close(gradients[0], (p * (q - zero_point.detach())).sum(-1, keepdim=True))
    assert_close(gradients[1], -scale.detach())
    nothing = sm.quantized_logsumexp(q, scale, where=torch.zeros(3, 6, dtype=torch.bool))
    assert torch.autograd.grad(nothing.exp().sum(), scale)[0].tolist() == [[0], [0], [0]]


def test_compiles_without_a_break():
    torch._dynamo.reset()
    q = codes(3, 5)
    compiled = torch.compile(lambda q: sm.quantized_softmax(q, 0.1, 2), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q), sm.quantized_softmax(q, 0.1, 2))


@pytest.mark.parametrize("function", [sm.quantized_logsumexp, sm.quantized_softmax])
def test_wrong_use_raises_and_says_what_to_do(function: Any):
    q = codes(2, 3)
    with pytest.raises(TypeError, match=r"must be int8 or uint8, got torch.float32; call logsumexp or softmax"):
        function(q.float(), 0.1)
    with pytest.raises(TypeError, match=r"must be a torch.Tensor or a numpy.ndarray"):
        function([1, 2], 0.1)
    with pytest.raises(ValueError, match=r"scale must be positive and finite, got 0.0"):
        function(q, 0)
    with pytest.raises(ValueError, match=r"zero_point must be finite"):
        function(q, 0.1, INF)
    with pytest.raises(ValueError, match=r"size 1 along dim 1"):
        function(q, torch.ones(3))
    with pytest.raises(TypeError, match=r"scale must be float64, float32, bfloat16 or float16, got torch.int64"):
        function(q, torch.ones(2, 1, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"temperature must be positive"):
        function(q, 0.1, temperature=-1.0)
    with pytest.raises(IndexError, match=r"dim must be in"):
        function(q, 0.1, dim=2)
    with pytest.raises(TypeError, match=r"where must be boolean"):
        function(q, 0.1, where=torch.ones(2, 3))


def test_a_module_that_says_the_scale_gives_its_dtype():
    q = torch.tensor([1, 2, 5], dtype=torch.uint8)
    scale = sm.Positive(0.5, dtype=torch.float64)
    for function in (sm.quantized_logsumexp, sm.quantized_softmax):
        torch.testing.assert_close(function(q, scale), function(q, scale()))
