"""Attention on a GPU, in Triton's interpreter, against its definition in float64: every option, and every boundary of blocks."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import softmaxima as sm
from attending import agree, check_spoilt, differentiated, learning, spoilt
from conftest import DEVICE, INTERPRETED
from softmaxima.attn import fused, naive
from softmaxima.attn.arguments import Request, check_request

if os.environ.get("SOFTMAXIMA_BACKEND") != "triton":
    pytest.skip("set SOFTMAXIMA_BACKEND=triton and TRITON_INTERPRET=1", allow_module_level=True)

from softmaxima.kernels.triton import attention
from softmaxima.kernels.triton.attention import Blocks

pytestmark = pytest.mark.gpu

# Of the largest value: products of halves round p and ∂x to halves.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
MAPS: dict[str, tuple[str, dict[str, Any]]] = {
    "softmax": ("softmax", {}),
    "elastic_softmax": ("elastic_softmax", {"beta": 0.5}),
    "eps_softmax": ("eps_softmax", {"eps": 2.0}),
    "sparsemax": ("sparsemax", {}),
    "entmax15": ("entmax15", {}),
    "entmax 1": ("entmax", {"alpha": 1.0}),
    "entmax 1.001": ("entmax", {"alpha": 1.001}),
    "entmax 1.3": ("entmax", {"alpha": 1.3}),
    "entmax 2": ("entmax", {"alpha": 2.0}),
}
FEW = ("softmax", "elastic_softmax", "sparsemax", "entmax15", "entmax 1.3")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that small problems have several of."""
    forward = Blocks(32, 16, 4, 1), Blocks(32, 16, 4, 1)
    shared = Blocks(16, 16, 4, 1), Blocks(16, 16, 4, 1)
    monkeypatch.setattr(attention, "FORWARD", dict.fromkeys((64, 128, 256), forward))
    monkeypatch.setattr(attention, "SHARED", dict.fromkeys((64, 128, 256), shared))


@pytest.fixture(autouse=True)
def results_begin_as_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may be left unwritten."""
    empty = torch.empty

    def spoilt(*arguments: Any, **options: Any) -> Tensor:
        made = empty(*arguments, **options)
        return made.fill_(math.nan) if made.is_floating_point() else made.fill_(-1)

    monkeypatch.setattr(attention.torch, "empty", spoilt)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(DEVICE, dtype)


def requested(
    name: str,
    batch: tuple[int, ...] = (1, 1),
    queries: int = 21,
    keys: int = 37,
    size: int = 16,
    value_size: int = 16,
    groups: int = 1,
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> Request:
    map, params = MAPS[name]
    shared = (*batch[:-1], *(heads // groups for heads in batch[-1:]))
    query = 3 * normal(*batch, queries, size, seed=1, dtype=dtype)
    key, value = normal(*shared, keys, size, seed=2, dtype=dtype), normal(*shared, keys, value_size, seed=3, dtype=dtype)
    return check_request("attention", query, key, value, map=map, enable_gqa=groups > 1, **{"params": params, **options})


def check(request: Request) -> None:
    """Outputs, and gradients, of the kernel and by the definition."""
    dtype = request.query.dtype
    assert fused.fits(request)
    own, inputs = learning(request)
    wide, wide_inputs = learning(request, torch.float64)
    wants_lse = request.map.name in ("softmax", "elastic_softmax")
    found, expected = [*fused.attend(own, wants_lse)], [naive.attend(wide)[0], naive.log_mass(wide) if wants_lse else None]
    pairs = [(a, b) for a, b in zip(found, expected, strict=True) if b is not None]
    for what, (a, b) in zip(("o", "lse"), pairs, strict=False):
        agree(a, b, TOLERANCE[dtype], what)
    slopes = [normal(*b.shape, seed=4 + i).to(a.dtype) for i, (a, b) in enumerate(pairs)]
    slopes = [torch.where(b.isfinite(), slope, 0.0) for slope, (_, b) in zip(slopes, pairs, strict=True)]
    gradients = torch.autograd.grad([a for a, _ in pairs], inputs, slopes)
    right = torch.autograd.grad([b for _, b in pairs], wide_inputs, [slope.double() for slope in slopes])
    for what, a, b in zip(("q", "k", "v", "number", "number"), gradients, right, strict=False):
        agree(a, b, TOLERANCE[dtype], f"∂{what}")


def some_mask(*shape: int) -> Tensor:
    """A first query that sees nothing, and a block of keys that nobody sees."""
    mask = normal(*shape, seed=7) > -0.5
    if shape[-2] > 1:
        mask[..., 0, :] = False
    if shape[-1] > 1:
        mask[..., 16:32] = False
    return mask


OPTIONS: dict[str, dict[str, Any]] = {
    "causal": {"is_causal": True},
    "causal, more queries": {"is_causal": True, "queries": 40, "keys": 18},
    "window": {"window": 3},
    "bottom right": {"is_causal": True, "first_query": "bottom_right"},
    "bottom right, more queries": {"window": (20, 1), "first_query": "bottom_right", "queries": 40, "keys": 18},
    "bottom right of lengths": {
        "batch": (3, 1),
        "key_lengths": torch.tensor([37, 0, 17]),
        "is_causal": True,
        "first_query": "bottom_right",
    },
    "places": {"batch": (2, 2), "groups": 2, "window": (9, 0), "first_query": torch.tensor([-5, 30])},
    "a place": {"window": (17, 3), "first_query": 20},
    "soft cap": {"softcap": 1.5, "temperature": 0.6, "bias": normal(21, 37, seed=8)},
    "soft cap, groups": {"softcap": 20.0, "batch": (1, 4), "groups": 2, "is_causal": True},
    "slopes": {"alibi_slopes": torch.tensor([0.5, 0.1]), "batch": (2, 2), "temperature": 0.6},
    "slopes of each": {
        "alibi_slopes": torch.tensor([[0.5, 0.1], [0.02, -0.3]]),
        "batch": (2, 2),
        "softcap": 3.0,
        "is_causal": True,
        "first_query": "bottom_right",
    },
    "window before": {"window": (17, None), "queries": 40},
    "window of both": {"window": (20, 1), "is_causal": True, "queries": 44, "keys": 44},
    "lengths": {"batch": (3, 1), "key_lengths": torch.tensor([37, 0, 17])},
    "lengths, causal": {"batch": (2, 1), "key_lengths": torch.tensor([20, 33]), "is_causal": True, "queries": 37},
    "mask": {"attn_mask": some_mask(21, 37)},
    "mask of keys": {"attn_mask": some_mask(1, 1, 1, 37)},
    "mask of queries": {"attn_mask": some_mask(2, 21, 1), "batch": (2,)},
    "additive": {"attn_mask": torch.where(some_mask(2, 21, 37), 0.3, -math.inf), "batch": (1, 2)},
    "bias": {"bias": normal(21, 37, seed=8), "temperature": 0.6, "is_causal": True},
    "bias of heads": {"bias": normal(2, 1, 37, seed=8).to(torch.bfloat16), "batch": (1, 2)},
    "temperature": {"temperature": 0.6, "scale": 0.4},
    "temperature a head": {"temperature": torch.tensor([0.5, 2.0]), "batch": (1, 2)},
    "temperature a query": {"temperature": 0.5 + normal(21, 1, seed=9).abs()},
    "groups": {"batch": (1, 4), "groups": 2, "is_causal": True},
    "sizes": {"size": 3, "value_size": 20},
    "one": {"queries": 1, "keys": 1, "size": 1, "value_size": 1},
    "one query": {"queries": 1, "keys": 70, "batch": (2, 1)},
    "no batch": {"batch": ()},
    "one axis": {"batch": (2,)},
    "three axes": {"batch": (2, 1, 2)},
    "blocks": {"queries": 32, "keys": 48},
}


@pytest.mark.parametrize("name", MAPS)
def test_maps(name: str) -> None:
    check(requested(name))


# A map with a sum and one with a threshold for each option.
PAIRS = itertools.cycle(itertools.product(("softmax", "elastic_softmax"), ("sparsemax", "entmax15", "entmax 1.3")))
CROSSED = [(options, name) for options, names in zip(OPTIONS, PAIRS, strict=False) for name in names]


@pytest.mark.parametrize(("options", "name"), CROSSED)
def test_options(options: str, name: str) -> None:
    moved = {key: value.to(DEVICE) if isinstance(value, Tensor) else value for key, value in OPTIONS[options].items()}
    check(requested(name, **moved))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, in the interpreter's sums
@pytest.mark.parametrize(("options", "name"), CROSSED[:: 3 if INTERPRETED else 1])
def test_what_is_excluded_is_never_read(options: str, name: str) -> None:
    moved = {key: value.to(DEVICE) if isinstance(value, Tensor) else value for key, value in OPTIONS[options].items()}
    case = spoilt(requested(name, **moved), torch.Generator().manual_seed(CROSSED.index((options, name))))
    check_spoilt(case, differentiated(learning, lambda own: fused.attend(own, False)[0]), TOLERANCE[torch.float32])


@pytest.mark.parametrize("name", FEW)
def test_outputs_without_gradients(name: str) -> None:
    request = requested(name)
    torch.testing.assert_close(fused.attend(request, False)[0], fused.attend(learning(request)[0], False)[0])


@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax 1.3", "eps_softmax"])
def test_a_sink(name: str) -> None:
    check(requested(name, sink=0.3, is_causal=True))
    check(requested(name, batch=(1, 2), sink=normal(2, seed=5), attn_mask=some_mask(21, 37)))
    check(requested(name, sink=normal(21, 1, seed=5) + 4))


def test_numbers_of_heads_and_queries() -> None:
    alpha = torch.tensor([1.0, 1.7], device=DEVICE)
    check(requested("entmax 1", params={"alpha": alpha}, temperature=alpha, batch=(1, 2)))
    check(requested("entmax 1", params={"alpha": 1 + normal(21, 1, seed=5).abs().clamp(max=1)}, sink=1.0))
    check(requested("elastic_softmax", params={"beta": normal(1, 2, 21, 1, seed=5)}, temperature=alpha, window=9, batch=(1, 2)))


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", FEW)
def test_halves(name: str, half: torch.dtype) -> None:
    check(requested(name, dtype=half, is_causal=True))


@pytest.mark.parametrize("name", ["softmax", "entmax15"])
@pytest.mark.parametrize("size", [64, 100, 256])
def test_sizes_of_heads(size: int, name: str) -> None:
    check(requested(name, size=size, value_size=size, queries=17, keys=16))


@pytest.mark.parametrize("name", ["softmax", "entmax15"])
def test_tensors_that_lie_otherwise(name: str) -> None:
    request = requested(name, batch=(2, 2), groups=2, queries=17, keys=18)
    check(replace(request, query=request.query.mT.contiguous().mT, key=request.key.transpose(1, 2).contiguous().transpose(1, 2)))
    check(replace(request, value=request.value[:1], key=torch.view_as_complex(normal(2, 1, 18, 16, 2)).conj().imag))


@pytest.mark.parametrize("name", FEW)
def test_scores_far_from_zero(name: str) -> None:
    """The rounding of scores of 10⁴ is 10⁻³, and the probabilities of these add up to 1 nevertheless."""
    request = requested(
        name, bias=torch.full((37,), 1e4, device=DEVICE), params=MAPS[name][1] if name != "elastic_softmax" else {"beta": 1e4}
    )
    ones = replace(request, value=torch.ones_like(request.value))
    expected = naive.attend(replace(ones, **{x: getattr(ones, x).double() for x in ("query", "key", "value")}))[0]
    assert float((fused.attend(ones, False)[0] - expected).abs().max()) < (2e-3 if name == "elastic_softmax" else 1e-6)


@pytest.mark.parametrize("name", FEW)
def test_nan_and_infinity_stay_in_their_rows(name: str) -> None:
    request = requested(name, batch=(1,))
    expected = fused.attend(request, False)[0]
    request.query[0, 2, 0], request.query[0, 5, 0] = math.nan, math.inf
    found = fused.attend(request, False)[0]
    assert found[0, [2, 5]].isnan().all()
    rest = [i for i in range(21) if i not in (2, 5)]
    torch.testing.assert_close(found[0, rest], expected[0, rest])


@pytest.mark.parametrize("name", FEW)
def test_a_key_with_nan_spoils_the_queries_that_see_it(name: str) -> None:
    request = requested(name, batch=(1,), is_causal=True)
    expected = fused.attend(request, False)[0]
    request.key[0, 18, 0] = math.nan
    found = fused.attend(request, False)[0]
    assert found[0, 18:].isnan().all()
    torch.testing.assert_close(found[0, :18], expected[0, :18])


@pytest.mark.parametrize("name", ["softmax", "entmax15"])
def test_keys_behind_the_last_may_hold_anything(name: str) -> None:
    request = requested(name, key_lengths=torch.tensor([18], device=DEVICE))
    own, inputs = learning(request)
    expected = torch.autograd.grad(fused.attend(own, False)[0].sum(), inputs)
    spoilt = replace(request, key=request.key.clone(), value=request.value.clone())
    spoilt.key[:, :, 18:], spoilt.value[:, :, 18:] = math.nan, math.nan
    own, inputs = learning(spoilt)
    for a, b in zip(torch.autograd.grad(fused.attend(own, False)[0].sum(), inputs), expected, strict=True):
        torch.testing.assert_close(a, b)


def test_blocks_without_support_are_not_read() -> None:
    """Keys in blocks whose scores are far below the others', behind a first block that has the support."""
    request = requested("entmax15", batch=(1, 1))
    request.query[..., 0], request.key[..., 0] = 10.0, torch.where(torch.arange(37, device=DEVICE) < 16, 10.0, -10.0)
    kernel = request.map.kernel
    options = fused._options(request)
    _, _, (state, marks) = attention.forward(request.query, request.key, request.value, options, lse=False, keeps=True)
    assert marks.shape == (1, 3, 2)
    assert marks[0].tolist() == [[1, 1], [0, 0], [0, 0]]
    assert attention.kept_shapes(request.query, request.key, request.value, kernel) == (state.shape, marks.shape)  # type: ignore[arg-type]
    spoilt = request.value.clone()
    spoilt[:, :, 16:] = math.nan
    own, inputs = learning(replace(request, value=spoilt))
    output = fused.attend(own, False)[0]
    assert output.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(output.sum(), inputs))


def refused() -> Iterator[tuple[str, Request]]:
    yield "float64", requested("softmax", dtype=torch.float64)
    yield "a large head", requested("softmax", size=257)
    yield "a map without a kernel", replace(requested("softmax"), map=sm.find_map("taylor_softmax"), params={"order": 2})
    yield "β > 1", requested("entmax 1", params={"alpha": 2.5})


def test_what_is_left_to_torch() -> None:
    for what, request in refused():
        assert not fused.fits(request), what


@pytest.mark.parametrize("name", ["elastic_softmax", "entmax15"])
def test_compiled_without_a_break(name: str) -> None:
    q, k, v = (normal(1, 2, n, 16, seed=n).requires_grad_() for n in (18, 21, 21))
    map, params = MAPS[name]

    def attend(*x: Tensor) -> Any:
        return sm.attention(*x, map=map, is_causal=True, **params)

    compiled, plain = torch.compile(attend, fullgraph=True, backend="aot_eager")(q, k, v), attend(q, k, v)
    torch.testing.assert_close(compiled, plain)
    for a, b in zip(*(torch.autograd.grad(y.square().sum(), (q, k, v)) for y in (compiled, plain)), strict=True):
        torch.testing.assert_close(a, b)


def test_results_are_the_same_in_each_run() -> None:
    own, inputs = learning(requested("entmax15", batch=(1, 2), groups=2))
    first, second = (torch.autograd.grad(fused.attend(own, False)[0].square().sum(), inputs) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
