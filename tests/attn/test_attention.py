"""Attention against its definition, one query at a time in float64: every map, every option, every path."""

from __future__ import annotations

import inspect
import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.nn.functional import scaled_dot_product_attention

import softmaxima as sm
from attending import Results, agree, all_learning, check_spoilt, differentiated, learning, spoilt
from conftest import normal
from softmaxima.attn import blocks, fused, naive, products
from softmaxima.attn.arguments import Request, check_request
from softmaxima.kernels import native_attention
from softmaxima.maps import REGISTRY

MAPS = [name for name, map in REGISTRY.items() if not map.properties.logarithmic]
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-4, torch.bfloat16: 4e-2, torch.float16: 4e-3}


def definition(request: Request) -> Tensor:
    """Σ p v of each query, with the map's reference over the keys that it may see."""
    query, key, value = (x.detach().double() for x in (request.query, *map(request.repeated, (request.key, request.value))))
    key, value = (x.expand(*query.shape[:-2], *x.shape[-2:]) for x in (key, value))
    rows = query.shape[:-1]
    allowed = torch.ones(*rows, key.shape[-2], dtype=torch.bool)
    if request.mask is not None:
        allowed &= request.mask
    visible = request.visible
    if visible.lengths is not None:
        allowed &= torch.arange(key.shape[-2]) < visible.lengths
    first = torch.as_tensor(visible.first).expand(*rows[:-1], 1, 1)[..., 0, 0]
    bias = torch.zeros(()) if request.bias is None else request.bias.detach().double()
    bias = bias.expand(allowed.shape)
    of_row = {
        name: x.detach().double().expand(*rows, 1) if isinstance(x, Tensor) else x
        for name, x in {"τ": request.temperature, "sink": request.sink, **request.params}.items()
    }
    slopes = None if request.slopes is None else request.slopes.detach().double().expand(*rows[:-1], 1, 1)[..., 0, 0]
    output = torch.zeros(*rows, value.shape[-1], dtype=torch.float64)
    for row in itertools.product(*map(range, rows)):
        *matrix, i = row
        matrix = tuple(matrix)
        place = i + int(first[matrix])
        seen = [
            j
            for j in range(key.shape[-2])
            if allowed[row][j]
            and (visible.left is None or j >= place - visible.left)
            and (visible.right is None or j <= place + visible.right)
        ]
        tau, sink, *params = (float(x[row]) if isinstance(x, Tensor) else x for x in of_row.values())
        x = request.scale * (key[matrix][seen] @ query[row])
        if request.softcap is not None:
            x = request.softcap * torch.tanh(x / request.softcap)
        if slopes is not None:
            x = x - slopes[matrix] * (torch.tensor(seen) - place).abs()
        z = (x + bias[row][seen]) / tau
        if sink is not None:
            z = torch.cat((z, torch.tensor([sink], dtype=torch.float64)))
        if seen:
            p = request.map.reference(z[None], **dict(zip(request.params, params, strict=True)))[0]
            output[row] = p[: len(seen)] @ value[matrix][seen]
    return output


def jagged(lengths: tuple[int, ...], *shape: int) -> Any:
    rows = [normal(length, *shape, seed=seed, scale=1.0) for seed, length in enumerate(lengths)]
    return torch.nested.nested_tensor(rows, layout=torch.jagged)


@st.composite
def requests(draw: Any, most: int = 9) -> tuple[Request, bool]:
    """(a request of small matrices, whether the logarithm of the divisor is wanted)."""
    seed = draw(st.integers(0, 2**32 - 1))
    rng = torch.Generator().manual_seed(seed)

    def drawn(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.randn(shape, generator=rng, dtype=torch.float64).to(dtype)

    def one_of(*options: Any) -> Any:
        return draw(st.sampled_from(options))

    name = draw(st.sampled_from(MAPS))
    params = {parameter.name: one_of(*parameter.examples) for parameter in REGISTRY[name].params}
    dtype = one_of(torch.float64, torch.float64, torch.float32, torch.bfloat16, torch.float16)
    batch, (heads, groups) = one_of(1, 2), one_of((1, 1), (2, 1), (4, 2), (3, 3))
    queries, keys = one_of(1, 2, 5, most), one_of(1, 3, 7, most, 70, *([600] if most > 9 else []))
    size, value_size = one_of(1, 3, 16), one_of(1, 5, 16, 20)
    q = one_of(0.3, 1.0, 4.0) * drawn(batch, heads, queries, size, dtype=dtype)
    k = drawn(batch, heads // groups, keys, size, dtype=dtype)
    v = drawn(batch, heads // groups, keys, value_size, dtype=dtype)
    if draw(st.booleans()):  # as a projection of [batch, length, heads, size]
        q, k, v = (x.transpose(-3, -2).contiguous().transpose(-3, -2) for x in (q, k, v))
    if draw(st.booleans()):
        v = v.transpose(-2, -1).contiguous().transpose(-2, -1)
    shapes = ((queries, keys), (batch, 1, 1, keys), (heads, queries, 1), (batch, heads, queries, keys), (keys,))
    masks = [None, *(torch.rand(shape, generator=rng) > 0.4 for shape in shapes), drawn(*one_of(*shapes))]
    per_row = (1,), (heads,), (queries, 1), (batch, 1, 1, 1)
    per_row = tuple(shape for shape in per_row if len(shape) != 1 or shape[0] in (1, heads))
    if name == "elastic_softmax" and draw(st.booleans()):
        params["beta"] = drawn(*one_of(*per_row))
    if "alpha" in params and REGISTRY[name].params[0].gradient is not None and draw(st.booleans()):
        params["alpha"] = 1 + torch.rand(one_of(*per_row), generator=rng, dtype=torch.float64)
    sinks = [None, None, 0.3, drawn(*one_of(*per_row))] if name != "elastic_softmax" else [None]
    request = check_request(
        "attention",
        q,
        k,
        v,
        map=name,
        attn_mask=one_of(None, *masks) if draw(st.booleans()) else None,
        is_causal=draw(st.booleans()),
        scale=one_of(None, 0.5),
        softcap=one_of(None, None, 0.7, 30.0, 1e9),
        bias=drawn(*one_of(*shapes)) if draw(st.booleans()) else None,
        alibi_slopes=one_of(None, None, drawn(heads), 0.1 * drawn(batch, heads).abs()),
        temperature=one_of(1.0, 0.6, 0.5 + torch.rand(one_of(*per_row), generator=rng, dtype=torch.float64)),
        sink=one_of(*sinks),
        enable_gqa=groups > 1,
        window=one_of(None, 2, (4, None), (0, 1)),
        key_lengths=torch.randint(0, keys + 1, (batch,), generator=rng) if draw(st.booleans()) else None,
        first_query=one_of(0, 0, "bottom_right", 3, -2, torch.randint(-3, keys + 3, (batch,), generator=rng)),
        params=params,
    )
    return request, draw(st.booleans()) and request.map.name in ("softmax", "elastic_softmax")


def paths(request: Request) -> list[Any]:
    return [naive, blocks, *([fused] if fused.fits(request) else [])]


@given(requests())
@settings(max_examples=150)
def test_every_path_equals_the_definition(case: tuple[Request, bool]) -> None:
    request, _ = case
    expected = definition(request)
    for path in paths(request):
        output = naive.attend(request)[0] if path is naive else path.attend(request, False)[0]
        assert output.dtype == request.value.dtype
        agree(output, expected, TOLERANCE[output.dtype], path.__name__)


@pytest.mark.parametrize("many", [1, native_attention.MANY])
@given(case=requests(most=40))
@settings(max_examples=150)
def test_gradients_of_the_kernel_are_those_of_the_definition(many: int, case: tuple[Request, bool]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native_attention, "MANY", many)
        agree_in_gradients(*case)


def agree_in_gradients(request: Request, wants_lse: bool) -> None:
    own, inputs = learning(request)
    if not fused.fits(own):
        return
    wide, wide_inputs = learning(request, torch.float64)
    rng = torch.Generator().manual_seed(0)
    output, mass = fused.attend(own, wants_lse)
    outputs, expected = [output], [naive.attend(wide)[0]]
    if wants_lse:
        outputs, expected = [output, mass], [*expected, naive.log_mass(wide)]
    slopes = [torch.randn(y.shape, generator=rng, dtype=torch.float64).to(y.dtype) for y in outputs]
    if wants_lse:
        slopes[1] = torch.where(outputs[1] == -math.inf, 0.0, slopes[1])
    found = torch.autograd.grad(outputs, inputs, slopes)
    right = torch.autograd.grad(expected, wide_inputs, [slope.double() for slope in slopes])
    for what, a, b in zip(("o", "lse"), outputs, expected, strict=False):
        agree(a, b, TOLERANCE[request.query.dtype], what)
    for what, a, b in zip(("q", "k", "v", "number", "number"), found, right, strict=False):
        agree(a, b, TOLERANCE[request.query.dtype], what)


@pytest.mark.parametrize("many", [1, native_attention.MANY])
@pytest.mark.parametrize("of", ["query", "bias", "a score of +∞"])
def test_scores_that_are_nan_give_nan_gradients_of_their_query_alone(of: str, many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_attention, "MANY", many)
    q, k, v, bias = normal(1, 9, 4), normal(1, 300, 4), normal(1, 300, 3), normal(9, 300)
    if of == "a score of +∞":
        bias[2, 7] = math.inf
    else:
        (q[0] if of == "query" else bias)[2] = math.nan
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    output = sm.attention(q, k, v, bias=bias)
    output.sum().backward()
    others = torch.arange(9) != 2
    for x in (output, q.grad):
        assert x is not None
        assert bool(x[0, 2].isnan().all())
        assert bool(x[0, others].isfinite().all())
    for x in (k.grad, v.grad):
        assert x is not None
        assert bool(x.isnan().all())


@pytest.mark.parametrize("path", ["composed", "composed, not looked at", "blocks", "kernel", "kernel by states"])
@given(case=requests(most=40), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60)
def test_what_is_excluded_is_never_read(path: str, case: tuple[Request, bool], seed: int) -> None:
    """In no product, forward or backward: NaN and ±∞ there are as zeros, and the gradient of a value that nobody sees is 0."""
    rng, request = torch.Generator().manual_seed(seed), case[0]
    if request.bias is not None:
        request = replace(request, bias=request.bias.masked_fill(torch.rand(request.bias.shape, generator=rng) < 0.2, -math.inf))
    case = spoilt(request, rng)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native_attention, "MANY", 1 if path == "kernel by states" else 2**62)
        if path == "composed, not looked at":
            patch.setattr(products, "_is_finite", lambda x: False)
        if path == "blocks":
            patch.setattr(blocks, "HELD", 1)
        if not path.startswith("kernel"):
            attend = (lambda own: blocks.attend(own, False)[0]) if path == "blocks" else (lambda own: naive.attend(own)[0])
            check_spoilt(case, differentiated(all_learning, attend), TOLERANCE[request.value.dtype])
        elif fused.fits(learning(case.request)[0]):
            attend = differentiated(learning, lambda own: fused.attend(own, False)[0])
            check_spoilt(case, attend, TOLERANCE[request.value.dtype])


@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax"])
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=20)
def test_second_derivatives_do_not_read_what_is_excluded(name: str, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    rows = (torch.randn(shape, generator=rng, dtype=torch.float64) for shape in ((2, 5, 3), (2, 7, 3), (2, 7, 2)))
    mask = torch.rand(2, 5, 7, generator=rng) < 0.5
    request = check_request("attention", *rows, map=name, attn_mask=mask)
    case = spoilt(request, rng, share=0.0)

    def results(request: Request, g: Tensor) -> Results:
        own, inputs = learning(request)
        output = fused.attend(own, False)[0]
        slopes = [x.requires_grad_() for x in (g.clone(),)]
        first = torch.autograd.grad(output, inputs, slopes, create_graph=True)
        return output.detach(), *torch.autograd.grad(sum(x.square().sum() for x in first), inputs)  # type: ignore[arg-type]

    check_spoilt(case, results, 1e-9)


@given(requests(), st.integers(1, 200))
@settings(max_examples=60)
def test_blocks_of_queries_change_nothing(case: tuple[Request, bool], held: int) -> None:
    request, wants_lse = case
    own, inputs = learning(request)
    whole = blocks.attend(own, wants_lse)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "HELD", held)
        parts = blocks.attend(own, wants_lse)
        gradients = [torch.autograd.grad(y[0].float().square().sum(), inputs, allow_unused=True) for y in (whole, parts)]
    agree(parts[0], whole[0], TOLERANCE[request.value.dtype], "o")
    for a, b in zip(*gradients, strict=True):
        agree(a, b, TOLERANCE[request.query.dtype], "gradient")


@pytest.mark.parametrize("many", [1, 2**62])
def test_values_far_from_0_keep_their_digits(many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum over keys to which each product were added by itself would lose digits, and ⟨g, o⟩, which gradients take, with it."""
    monkeypatch.setattr(native_attention, "MANY", many)
    q, k, v, g = (normal(1, rows, 16, seed=seed, scale=1.0).float() for seed, rows in enumerate((100, 9000, 9000, 100)))
    v += 100

    def found(dtype: torch.dtype) -> list[Tensor]:
        leaves = [x.to(dtype).requires_grad_() for x in (q, k, v)]
        out = sm.attention(*leaves)
        return [out, *torch.autograd.grad(out, leaves, g.to(dtype))]

    eps = torch.finfo(torch.float32).eps
    dp = 100 * float(g.abs().sum(-1).max())
    exact = found(torch.float64)
    spare = (100.0, dp * float(k.abs().max()), dp, float(exact[-1].abs().max()))
    for ours, expected, size in zip(found(torch.float32), exact, spare, strict=True):
        assert float((ours - expected).detach().abs().max()) <= 8 * eps * size


def small(*shape: int) -> Tensor:
    return normal(*shape, seed=sum(shape), scale=1.0).requires_grad_()


@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax", "taylor_softmax", "topk_softmax"])
def test_first_and_second_derivatives(name: str) -> None:
    q, k, v = small(1, 2, 3, 4), small(1, 2, 5, 4), small(1, 2, 5, 2)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return sm.attention(q, k, v, map=name)

    assert torch.autograd.gradcheck(attend, (q, k, v))
    assert torch.autograd.gradgradcheck(attend, (q, k, v))


def test_derivatives_by_numbers() -> None:
    q, k, v, bias, tau, sink = small(2, 3, 4), small(2, 5, 4), small(2, 5, 2), small(3, 5), small(2), small(3, 1)

    def attend(*args: Tensor) -> Any:
        *rows, tau, sink = args
        bias = {"bias": rows.pop()} if len(rows) > 3 else {}
        return sm.attention(*rows, temperature=tau.square() + 0.5, sink=sink, return_lse=True, **bias)

    for inputs in ((q, k, v, tau, sink), (q, k, v, bias, tau, sink)):
        assert torch.autograd.gradcheck(attend, inputs)
        assert torch.autograd.gradgradcheck(attend, inputs)

    def learned(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor) -> Tensor:
        return sm.attention(q, k, v, map="entmax", alpha=alpha.square() + 1.2)

    assert torch.autograd.gradcheck(learned, (q, k, v, tau))


def test_a_module_as_map_is_its_map_and_learns() -> None:
    q, k, v = small(2, 3, 4), small(2, 5, 4), small(2, 5, 2)
    alpha, tau = (torch.nn.Parameter(torch.tensor(x, dtype=torch.float64)) for x in ([1.3, 1.6], 0.7))
    module = sm.Entmax(alpha, temperature=tau)
    for learnt, plain in ((module, {"map": "entmax", "alpha": alpha, "temperature": tau}), (sm.Sparsemax(), {"map": "sparsemax"})):
        found, expected = sm.attention(q, k, v, map=learnt), sm.attention(q, k, v, **plain)
        torch.testing.assert_close(found, expected)
        inputs = (q, *learnt.parameters())
        for a, b in zip(*(torch.autograd.grad(y.square().sum(), inputs) for y in (found, expected)), strict=True):
            torch.testing.assert_close(a, b)
    positive = sm.Entmax(alpha=sm.Positive(1.5, minimum=1.0))
    sm.attention(q, k, v, map=positive).sum().backward()
    assert all(parameter.grad is not None for parameter in positive.parameters())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True, "map": "entmax15"},
        {"is_causal": True, "first_query": "bottom_right", "alibi_slopes": torch.tensor([0.1, 0.2, 0.0, 0.3])},
        {"window": 2, "first_query": torch.tensor([1, 0, 4]), "return_lse": True},
    ],
)
def test_nested_tensors_are_their_sequences(options: dict[str, Any]) -> None:
    shapes = ((3, 1, 6), 4, 5), ((4, 7, 2), 2, 5), ((4, 7, 2), 2, 3)
    leaves = [jagged(*shape).requires_grad_() for shape in shapes]
    found = sm.attention(*(x.transpose(1, 2) for x in leaves), enable_gqa=True, **options)
    outputs = found if isinstance(found, tuple) else (found,)
    assert outputs[0].shape[:3] == leaves[0].transpose(1, 2).shape[:3]  # as ragged as the queries are
    gradients = torch.autograd.grad(outputs[0].values().square().sum(), leaves)
    for i, rows in enumerate(zip(*(x.detach().unbind() for x in leaves), strict=True)):
        own = [x.clone().requires_grad_() for x in rows]
        places = {"first_query": int(options["first_query"][i])} if isinstance(options.get("first_query"), Tensor) else {}
        right = sm.attention(*(x.transpose(0, 1) for x in own), enable_gqa=True, **{**options, **places})
        for a, b in zip(outputs, right if isinstance(right, tuple) else (right,), strict=True):
            torch.testing.assert_close(a.transpose(1, 2).unbind()[i], b.transpose(0, 1))
        expected = torch.autograd.grad((right[0] if isinstance(right, tuple) else right).square().sum(), own)
        for a, b in zip(gradients, expected, strict=True):
            torch.testing.assert_close(a.unbind()[i], b)
    torch.testing.assert_close(
        sm.attention(jagged((3, 1), 4), jagged((3, 1), 4), jagged((3, 1), 4)).unbind()[1],
        sm.attention(*[jagged((3, 1), 4).unbind()[1]] * 3),
    )


def test_slopes_learn() -> None:
    q, k, v, slopes = small(2, 3, 4), small(2, 5, 4), small(2, 5, 2), small(2)

    def attend(*x: Tensor) -> Tensor:
        return sm.attention(*x[:3], alibi_slopes=x[3], softcap=0.8, map="entmax15", is_causal=True, first_query="bottom_right")

    assert torch.autograd.gradcheck(attend, (q, k, v, slopes))
    assert torch.autograd.gradgradcheck(attend, (q, k, v, slopes))
    assert torch.autograd.gradcheck(lambda *x: attend(*x, slopes.detach()), (q, k, v))


def test_alpha_of_each_head_learns_from_softmax_to_beyond_sparsemax() -> None:
    q, k, v = 2 * small(4, 5, 3).detach(), small(4, 7, 3).detach(), small(4, 7, 2).detach()

    def attend(alpha: Tensor) -> Tensor:
        return sm.attention(q, k, v, map="entmax", alpha=alpha)

    inside = torch.tensor([1.2, 1.5, 2.0, 2.5], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(attend, inside)
    assert torch.autograd.gradgradcheck(attend, inside)
    lowest = torch.ones(4, dtype=torch.float64, requires_grad=True)  # below which there is no α
    (found,) = torch.autograd.grad(attend(lowest).sum(), lowest)
    step = 1e-5 * torch.eye(4, dtype=torch.float64)
    sums = [torch.stack([attend(lowest.detach() + i * own).sum() for own in step]) for i in range(3)]
    torch.testing.assert_close(found, (4 * sums[1] - 3 * sums[0] - sums[2]) / 2e-5, rtol=1e-6, atol=1e-8)


def test_only_the_sink_of_softmax_is_a_number_whose_gradient_the_kernel_has() -> None:
    entmax, number = REGISTRY["entmax"], torch.tensor(1.5, requires_grad=True)
    namesake = replace(entmax, name="namesake", params=(replace(entmax.params[0], name="beta"),))
    rows = small(3, 4), small(5, 4), small(5, 2)
    for map, fits in (("elastic_softmax", True), (namesake, False)):
        assert fused.fits(check_request("attention", *rows, map=map, params={"beta": number})) == fits


@pytest.mark.parametrize("is_causal", [False, True])
def test_softmax_is_what_torch_computes(is_causal: bool) -> None:
    q, k, v = (normal(2, 4, 50, 24, seed=i, scale=1.0, dtype=torch.float32) for i in range(3))
    mask = None if is_causal else torch.rand(2, 1, 50, 50, generator=torch.Generator().manual_seed(3)) > 0.3
    found = sm.attention(q, k, v, mask, is_causal=is_causal)
    torch.testing.assert_close(found, scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal))
    grouped = sm.attention(q, k[:, :2], v[:, :2], enable_gqa=True)
    torch.testing.assert_close(grouped, scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True))


@pytest.mark.parametrize("bias", [causal_upper_left, causal_lower_right])
@pytest.mark.parametrize(("queries", "keys"), [(3, 50), (50, 50), (50, 60)])
def test_causal_biases_of_torch(bias: Any, queries: int, keys: int) -> None:
    q, k, v = (normal(2, 4, n, 8, seed=i, scale=1.0) for i, n in enumerate((queries, keys, keys)))
    mask = bias(queries, keys)
    expected = scaled_dot_product_attention(q, k, v, mask._materialize())
    torch.testing.assert_close(sm.attention(q, k, v, mask), expected)
    torch.testing.assert_close(sm.attention(q, k, v, mask, first_query="bottom_right"), expected)
    first = "bottom_right" if bias is causal_lower_right else 0
    torch.testing.assert_close(sm.attention(q, k, v, is_causal=True, first_query=first), expected)


def test_decoding_with_a_cache_is_causal_attention_at_once() -> None:
    q, k, v = (normal(2, 2, 12, 4, seed=i, scale=1.0) for i in range(3))
    for options in ({}, {"window": (3, None)}, {"map": "entmax15", "alibi_slopes": torch.tensor([0.1, 0.2])}):
        whole = sm.attention(q, k, v, is_causal=True, **options)
        for first, last in ((0, 1), (3, 8), (7, 8), (11, 12)):
            lengths = torch.tensor([last, last])  # of a cache that is allocated for all
            for keys, places in (
                (last, {"first_query": "bottom_right"}),
                (12, {"first_query": "bottom_right", "key_lengths": lengths}),
                (12, {"first_query": first}),
            ):
                found = sm.attention(q[:, :, first:last], k[:, :, :keys], v[:, :, :keys], is_causal=True, **places, **options)
                torch.testing.assert_close(found, whole[:, :, first:last])


@pytest.mark.parametrize("precision", [torch.float64, torch.float32])
def test_queries_broadcast_to_keys_and_keys_to_values(precision: torch.dtype) -> None:
    rows = [small(4, 3, 8), small(2, 1, 6, 8), small(1, 4, 6, 5)], [small(3, 8), small(4, 4, 6, 8), small(6, 5)]
    for inputs in rows:
        q, k, v = (x.to(precision).detach().requires_grad_() for x in inputs)
        batch = torch.broadcast_shapes(*(x.shape[:-2] for x in (q, k, v)))
        whole = [x.detach().expand(*batch, *x.shape[-2:]).contiguous().requires_grad_() for x in (q, k, v)]
        for name in ("softmax", "entmax15"):
            options: dict[str, Any] = {"map": name, "key_lengths": torch.tensor([5]), "is_causal": True}
            assert fused.fits(check_request("attention", q, k, v, **options))
            found, expected = (sm.attention(*x, **options) for x in ((q, k, v), whole))
            torch.testing.assert_close(found, expected)
            gradients = torch.autograd.grad(found.square().sum(), (q, k, v))
            right = torch.autograd.grad(expected.square().sum(), whole)
            for a, b in zip(gradients, right, strict=True):
                torch.testing.assert_close(a, b.sum_to_size(a.shape), rtol=1e-4, atol=1e-4)
    lse, p = sm.attention(q, k, v, return_lse=True, return_weights=True)[1:]
    assert (lse.shape, p.shape) == ((4, 4, 3), (4, 4, 3, 6))
    torch.testing.assert_close(sm.attention(q, k, v), scaled_dot_product_attention(q, k, v))


def test_weights_have_the_dtype_of_queries() -> None:
    for dtype in TOLERANCE:
        q, k, v = (normal(2, n, 4, seed=n, scale=1.0).to(dtype) for n in (3, 5, 5))
        _, lse, p = sm.attention(q, k, v, return_lse=True, return_weights=True)
        assert (lse.dtype, p.dtype) == (torch.promote_types(dtype, torch.float32), dtype)


def test_a_query_that_may_see_nothing_gives_zero_and_no_gradient() -> None:
    q, k, v = small(1, 2, 3, 4), small(1, 2, 5, 4), small(1, 2, 5, 2)
    mask = torch.tensor([True, False, True])[:, None]
    for name in MAPS:
        output = sm.attention(q, k, v, mask, map=name)
        assert (output[:, :, 1] == 0).all(), name
        (gradient,) = torch.autograd.grad(output.sum(), q)
        assert (gradient[:, :, 1] == 0).all(), name


def test_keys_that_nobody_sees_may_hold_anything() -> None:
    q, k, v = (x.detach().clone() for x in (small(1, 1, 8, 4), small(1, 1, 300, 4), small(1, 1, 300, 3)))
    expected = sm.attention(q, k[:, :, :100], v[:, :, :100])
    k[:, :, 100:] = math.nan
    torch.testing.assert_close(
        sm.attention(
            q, k, v[:, :, :100].new_zeros(v.shape).index_copy(2, torch.arange(100), v[:, :, :100]), key_lengths=torch.tensor([100])
        ),
        expected,
    )


def test_values_behind_the_lengths_may_hold_anything_on_every_path() -> None:
    q, k, v, bias = small(1, 2, 3, 4), small(1, 2, 9, 4).detach(), small(1, 2, 9, 3).detach(), small(3, 9)
    k[:, :, 7:], v[:, :, 7:] = math.nan, math.inf
    lengths = torch.tensor([7])
    expected = sm.attention(q, k[:, :, :7], v[:, :, :7], map="entmax15")
    for options in ({}, {"return_weights": True}, {"bias": 0 * bias}, {"dropout_p": 1e-12}):
        found = sm.attention(q, k, v, map="entmax15", key_lengths=lengths, **options)
        found = found[0] if isinstance(found, tuple) else found
        torch.testing.assert_close(found, expected)
        assert torch.autograd.grad(found.sum(), q)[0].isfinite().all()


def test_half_precision_biases_are_added_in_float32() -> None:
    q, k, v = torch.zeros(1, 4).bfloat16(), torch.zeros(2, 4).bfloat16(), torch.eye(2).bfloat16()
    mask, bias = torch.tensor([[0.9, 0.0]]).bfloat16(), torch.full((1, 2), 256.0).bfloat16()
    torch.testing.assert_close(sm.attention(q, k, v, mask, bias=bias), sm.attention(q, k, v, mask))


@pytest.mark.parametrize("name", [name for name in MAPS if name != "elastic_softmax"])
def test_a_sink_of_minus_infinity_is_none(name: str) -> None:
    q, k, v = small(3, 4), small(5, 4), small(5, 2)
    found = []
    for options in ({}, {"sink": -math.inf}, {"sink": torch.tensor(-math.inf)}):
        tau = torch.ones(1, dtype=torch.float64, requires_grad=True)
        output = sm.attention(q, k, v, map=name, temperature=tau, **options)
        found.append((output, *torch.autograd.grad(output.square().sum(), (q, tau))))
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("narrow", [torch.float16, torch.float32])
def test_a_sink_keeps_its_digits_where_the_temperature_has_few(narrow: torch.dtype) -> None:
    q, k, v = normal(1, 2, 3, 4), normal(1, 2, 5, 4), normal(1, 2, 5, 2)
    tau = torch.tensor([0.7, 2.9], dtype=narrow)
    for name in ("sparsemax", "topk_softmax"):
        exact = sm.attention(q, k, v, map=name, sink=0.1, temperature=tau.double())
        kernel = sm.attention(q, k, v, map=name, sink=0.1, temperature=tau)
        definition, _ = sm.attention(q, k, v, map=name, sink=0.1, temperature=tau, return_weights=True)
        for found in (kernel, definition):
            torch.testing.assert_close(found, exact, rtol=1e-12, atol=1e-12)


def test_grouped_heads_are_advised_where_they_can_be_shared() -> None:
    for heads, keys, values, advised in ((4, 2, 2, True), (4, 3, 3, False), (4, 4, 2, False)):
        with pytest.raises(ValueError, match="must broadcast") as refused:
            sm.attention(torch.ones(heads, 3, 4), torch.ones(keys, 5, 4), torch.ones(values, 5, 2))
        assert ("enable_gqa=True" in str(refused.value)) == advised


def test_a_sink_that_no_score_can_reach_takes_all() -> None:
    q, k, v = torch.ones(9, 4), torch.ones(3, 4), torch.ones(3, 2)
    for queries in (q, q[:1]):
        assert (sm.attention(queries, k, v, map="sparsemax", sink=1e9, temperature=1e30) == 0).all()
    assert (sm.attention(q, k, v, map="sparsemax", sink=1e9, temperature=1e30, return_weights=True)[0] == 0).all()


def test_under_autocast_the_output_has_the_dtype_of_the_values() -> None:
    q, k, v = (normal(1, 2, 5, 8, seed=i, dtype=torch.bfloat16) for i in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        assert sm.attention(q, k, v).dtype == sm.linear_attention(q, k, v).dtype == torch.bfloat16


@pytest.mark.parametrize("name", [name for name, map in REGISTRY.items() if map.params and not map.properties.logarithmic])
def test_every_parameter_of_a_map_can_be_given_beside_it(name: str) -> None:
    found, q, k, v = REGISTRY[name], normal(2, 3, 4), normal(2, 5, 4, seed=1), normal(2, 5, 2, seed=2)
    x = q @ k.mT / 2
    own: dict[str, Any]
    beside: dict[str, Any]
    for parameter in found.params:
        for value in parameter.examples:
            own, beside = ({key: value} for key in (parameter.name, "map_" + parameter.name))
            expected = found(x, **own) @ v
            torch.testing.assert_close(sm.attention(q, k, v, map=name, **beside), expected)
            if parameter.name not in inspect.signature(sm.attention).parameters:
                torch.testing.assert_close(sm.attention(q, k, v, map=name, **own), expected)
            if found.blocks is not None:
                queries = sm.attention_in_parts(q, map=name, **beside)
                torch.testing.assert_close(queries.attend([queries.part(k, v)]), expected)
            layers = [sm.MultiheadAttention(4, 2, map=name, **params) for params in (own, beside)]
            layers[1].load_state_dict(layers[0].state_dict())
            row = q.float()
            torch.testing.assert_close(layers[0](row, row, row)[0], layers[1](row, row, row)[0])


def test_the_scale_of_a_map_is_told_apart_from_that_of_attention() -> None:
    q = normal(2, 4)
    with pytest.raises(TypeError, match=r"attention: scale must be a number, .*; that of map='perturb_max' is map_scale="):
        sm.attention(q, q, q, map="perturb_max", scale=torch.tensor([0.5, 1.0]))
    with pytest.raises(TypeError, match=r"attention: a parameter of entmax was given twice, got alpha, map_alpha"):
        sm.attention(q, q, q, map="entmax", alpha=1.5, map_alpha=1.5)


def test_the_mass_of_a_query_that_may_see_nothing_is_the_sink() -> None:
    q, nothing = normal(2, 4), torch.zeros(2, 2, dtype=torch.bool)
    cases: list[tuple[dict[str, Any], float]] = [
        ({}, -math.inf),
        ({"sink": 0.5}, 0.5),
        ({"map": "elastic_softmax", "beta": 0.2}, 0.2),
    ]
    for options, mass in cases:
        for weights in (False, True):
            lse = sm.attention(q, q, q, nothing, return_lse=True, return_weights=weights, **options)[1]
            assert lse.tolist() == [mass, mass]


def test_weights_and_masses() -> None:
    q, k, v = small(2, 3, 4), small(2, 5, 4), small(2, 5, 2)
    output, mass, p = sm.attention(q, k, v, sink=0.3, return_lse=True, return_weights=True)
    torch.testing.assert_close(p @ v, output)
    torch.testing.assert_close(p.sum(-1) + torch.exp(0.3 - mass), torch.ones(2, 3, dtype=torch.float64))
    np.testing.assert_allclose(sm.attention(*(x.detach().numpy() for x in (q, k, v)), sink=0.3), output.detach().numpy())


@pytest.mark.parametrize("name", ["softmax", "entmax15", "entmax"])
def test_dropout_keeps_the_mean(name: str) -> None:
    q, k = torch.zeros(1, 1, 2000, 1), torch.zeros(1, 1, 64, 1)
    torch.manual_seed(0)
    output = sm.attention(q, k, torch.ones(1, 1, 64, 1), dropout_p=0.25, map=name)
    assert 0.02 < output.std() < 0.2
    assert abs(output.mean() - 1) < 0.01


def test_dropout_of_all_gives_zero_as_in_torch() -> None:
    q, k, v = small(3, 4), small(5, 4), small(5, 2)
    output = sm.attention(q, k, v, dropout_p=1.0)
    assert torch.equal(output, scaled_dot_product_attention(q, k, v, dropout_p=1.0))
    assert (torch.autograd.grad(output.sum(), q)[0] == 0).all()


@pytest.mark.parametrize("window", [2**62, 2**63, 10**30, (10**30, 0)])
def test_a_window_may_be_wider_than_any_row(window: Any) -> None:
    q, k, v = small(3, 4), small(5, 4), small(5, 2)
    expected = sm.attention(q, k, v, is_causal=isinstance(window, tuple))
    for options in ({}, {"return_weights": True}):
        found = sm.attention(q, k, v, window=window, **options)
        torch.testing.assert_close(found[0] if options else found, expected)


@pytest.mark.parametrize(
    ("params", "dynamic"),
    [
        ({"map": "softmax", "is_causal": True}, True),  # for every size
        ({"map": "sparsemax"}, True),
        ({"map": "elastic_softmax"}, None),
        ({"map": "softmax", "is_causal": True}, None),
    ],
)
def test_compiled_without_a_break(params: dict[str, Any], dynamic: bool | None) -> None:
    q, k, v = small(1, 2, 3, 4), small(1, 2, 5, 4), small(1, 2, 5, 2)
    plain = sm.attention(q, k, v, **params)
    compiled = torch.compile(lambda *x: sm.attention(*x, **params), fullgraph=True, backend="aot_eager", dynamic=dynamic)(q, k, v)
    torch.testing.assert_close(compiled, plain)
    for a, b in zip(*(torch.autograd.grad(y.square().sum(), (q, k, v)) for y in (compiled, plain)), strict=True):
        torch.testing.assert_close(a, b)


def test_transforms() -> None:
    q, k, v = small(3, 2, 3, 4), small(2, 5, 4), small(2, 5, 2)
    mapped = torch.func.vmap(lambda q: sm.attention(q, k, v, map="sparsemax"))(q)
    torch.testing.assert_close(mapped, torch.stack([sm.attention(one, k, v, map="sparsemax") for one in q]))
    tangent = torch.func.jvp(lambda q: sm.attention(q, k, v), (q[0],), (q[1],))[1]
    step = 1e-6 * q[1]
    torch.testing.assert_close(
        tangent, (sm.attention(q[0] + step, k, v) - sm.attention(q[0] - step, k, v)) / 2e-6, rtol=1e-5, atol=1e-7
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"query": torch.ones(4)}, "query must have a shape"),
        ({"key": torch.ones(2, 5, 3)}, "query and key must be of one size, got 4 and 3"),
        ({"value": torch.ones(2, 6, 2)}, "a value for each key, got 5 keys and 6 values"),
        ({"key": torch.ones(2, 5, 4).double()}, "one dtype and device"),
        ({"key": torch.ones(4, 5, 4)}, r"must broadcast with query of shape \(2, 3, 4\) but"),
        ({"value": torch.ones(3, 5, 2)}, r"must broadcast with query of shape \(2, 3, 4\) and key of shape \(2, 5, 4\) but"),
        ({"attn_mask": torch.ones(3, 5, dtype=torch.int64)}, "attn_mask must be boolean"),
        ({"attn_mask": torch.ones(3, 6) > 0}, "attn_mask must broadcast"),
        ({"bias": torch.ones(3, 6)}, "bias must broadcast"),
        ({"bias": torch.ones(3, 5, dtype=torch.int64)}, "bias must be of floating point"),
        ({"map": "log_softmax"}, "map must give probabilities"),
        ({"map": "softmx"}, "unknown map"),
        ({"map": "sparsemax", "return_lse": True}, "return_lse=True needs softmax"),
        ({"map": "elastic_softmax", "beta": 0.0, "sink": 1.0}, "give one of them"),
        ({"map": "entmax", "alpha": -0.5}, "alpha must be"),
        ({"temperature": 0.0}, "temperature must be"),
        ({"window": (1, 2, 3)}, "window must be"),
        ({"window": -1}, "window must be"),
        ({"key_lengths": torch.tensor([6])}, "key_lengths"),
        ({"dropout_p": 1.1}, "dropout_p must be between 0 and 1, got 1.1"),
        ({"scale": math.inf}, "scale must be"),
        ({"enable_gqa": True, "key": torch.ones(3, 5, 4)}, "which divides that of queries, got 3 of keys, "),
        ({"typo": 1}, "^attention: unknown argument 'typo'; map 'softmax' takes: none$"),
        ({"is_casual": True}, r"unknown argument 'is_casual'; did you mean 'is_causal'\?$"),
        ({"mask": None}, r"unknown argument 'mask'; did you mean 'attn_mask'\?"),
        ({"causal_offset": 3}, r"unknown argument 'causal_offset'; did you mean 'first_query'\?"),
        ({"is_causal": "bottom_right"}, "is_causal must be True or False, .* is_causal=True, first_query='bottom_right'$"),
        ({"softcap": 0.0}, "softcap must be above 0 and finite, got 0"),
        ({"softcap": torch.ones(2)}, "softcap must be"),
        ({"alibi_slopes": torch.ones(3)}, r"alibi_slopes must be \[heads\]"),
        ({"alibi_slopes": torch.ones(2, dtype=torch.int64)}, "alibi_slopes must be of floating point"),
        ({"alibi_slopes": torch.tensor([1, math.nan])}, "alibi_slopes must be finite"),
        ({"first_query": "top_left"}, r"first_query must be an integer, integers \[batch\] or 'bottom_right', got 'top_left'"),
        ({"first_query": 2**40}, "first_query must be an int between"),
        ({"first_query": torch.tensor([0.5, 1])}, "first_query must be integers"),
        ({"first_query": torch.zeros(3, dtype=torch.int64)}, "first_query must broadcast to the batch"),
        ({"attn_mask": causal_lower_right(4, 5)}, r"attn_mask must be of 3 queries and 5 keys, got a CausalBias of \(4, 5\)"),
        ({"where": None}, r"unknown argument 'where'; did you mean 'attn_mask'\?"),
        ({"map": "entmax", "alpa": 1.3}, r"unknown argument 'alpa'; did you mean 'alpha'\? \(map 'entmax' takes: alpha\)$"),
        ({"map": sm.Entmax(), "alpha": 1.3}, "has its own temperature and parameters; leave out alpha$"),
        ({"map": sm.Sparsemax(), "temperature": 2.0}, "has its own temperature and parameters; leave out temperature$"),
        ({"map": sm.Sparsemax(dim=1)}, "works along the keys, the last axis of scores, got .* with dim=1$"),
        ({"map": torch.nn.Softmax()}, "unknown map"),
        (
            {"query": np.ones((2, 3, 4))},
            "all must be tensors or all NumPy arrays, got query an array, key a tensor, value a tensor",
        ),
        ({"query": jagged((3, 3), 4)}, "must all be nested or all be dense, got key dense and another nested"),
        ({"query": jagged((3, 3), 2, 4)}, r"query must be nested .* call .transpose\(1, 2\) on one of"),
        ({"query": jagged((3, 3), 4), "key": jagged((5, 4), 4), "value": jagged((4, 5), 2)}, "there must be a value for each key"),
        ({"query": jagged((3, 3), 4), "key": jagged((5,), 4), "value": jagged((5,), 2)}, "as many sequences, got 2, 1, 1"),
        (
            {**dict.fromkeys(("query", "key", "value"), jagged((3, 3), 4)), "bias": torch.ones(3, 3)},
            "bias must be left out for nested tensors",
        ),
        ({"sink": torch.ones(2, device="meta")}, "sink must be on the device of the scores"),
        ({"bias": torch.ones(3, 5, device="meta")}, "bias must be on the device"),
        ({"attn_mask": torch.ones(3, 5, device="meta") > 0}, "attn_mask must be on the device"),
        ({"key_lengths": torch.ones(2, dtype=torch.int64, device="meta")}, "key_lengths must be on the device"),
        ({"map": "entmax", "alpha": torch.ones(2, device="meta")}, "alpha must be on the device"),
    ],
)
def test_errors_come_before_any_work(change: dict[str, Any], words: str) -> None:
    good = {"query": torch.ones(2, 3, 4), "key": torch.ones(2, 5, 4), "value": torch.ones(2, 5, 2)}
    with pytest.raises((TypeError, ValueError), match=words):
        sm.attention(**{**good, **change})
