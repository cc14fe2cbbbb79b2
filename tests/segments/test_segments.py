"""Maps and sums of segments: each against its definition on the scores of one segment in float64, whatever the index, and whatever
way there is to the kernels."""

from __future__ import annotations

import math
import os
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import softmaxima as sm
from conftest import DEVICE, DTYPES, TOLERANCE, Case, at_most, normal
from softmaxima.kernels import native_segments

INFINITY = math.inf


def on_the_device(*values: Any) -> list[Any]:
    return [value.to(DEVICE) if isinstance(value, Tensor) else value for value in values]


def members(index: Tensor, s: int) -> Tensor:
    """The places of a segment's elements, one comparison at a time."""
    return torch.tensor([k for k, number in enumerate(index.tolist()) if number == s], dtype=torch.int64)


def defined(case: Case, x: Tensor, index: Tensor, segments: int, where: Tensor | None = None, tau: Any = 1.0) -> Tensor:
    """The map of every segment of x [elements, columns] by its literal definition, in float64."""
    out = torch.full(x.shape, case.nothing, dtype=torch.float64)
    allowed = torch.ones_like(x, dtype=torch.bool) if where is None else where.expand(x.shape)
    for s in range(segments):
        for column in range(x.shape[1]):
            own = [k for k in members(index, s).tolist() if allowed[k, column] and x[k, column] > -INFINITY]
            if own:
                temperature = float(tau[s, 0]) if isinstance(tau, Tensor) else tau
                out[own, column] = case.reference(x[own, column].double() / temperature)
    return out


@st.composite
def problems(draw: st.DrawFn) -> tuple[Tensor, Tensor, int]:
    """(scores [elements, columns] with ties and −∞, an index, the number of segments, of which some are empty)."""
    segments, columns = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    index = draw(st.lists(st.integers(0, segments - 1), max_size=25))
    if draw(st.booleans()):
        index.sort()
    score = st.one_of(st.floats(-20, 20, width=16), st.sampled_from([0.0, 1.0, -INFINITY]))
    x = [[draw(score) for _ in range(columns)] for _ in index]
    return torch.tensor(x, dtype=torch.float64).reshape(len(index), columns), torch.tensor(index, dtype=torch.int64), segments


@pytest.mark.gpu
@at_most(30)
@given(problem=problems(), data=st.data())
def test_a_map_of_segments_is_the_map_of_each(case: Case, problem: tuple[Tensor, Tensor, int], data: st.DataObject):
    x, index, segments = problem
    dtype = data.draw(st.sampled_from(DTYPES))
    where = normal(*x.shape, seed=len(x)) > -1.5 if data.draw(st.booleans()) else None
    tau = data.draw(st.sampled_from([1.0, torch.linspace(0.5, 2, segments, dtype=torch.float64).unsqueeze(-1)]))
    own = x.to(dtype)
    if where is not None and not case.claims.order_preserving:
        where = None  # what Taylor's polynomials make of scores below their root, a mask does not
    expected = defined(case, own, index, segments, where, tau)
    own, index, tau, where = on_the_device(own, index, tau, where)
    result = sm.segment_map(case.map, own, index, segments, temperature=tau, where=where, **case.params).cpu()
    assert result.dtype == dtype
    scale = 1 + expected.abs().nan_to_num(0, 0, 0)
    close = ((result.double() - expected).abs() <= 4 * TOLERANCE[dtype] * scale) | (result.double() == expected)
    assert close.all(), (result, expected)


def sums(x: Tensor, index: Tensor, segments: int, tau: Any = 1.0) -> Tensor:
    """logsumexp of segments of x [elements, columns] by mpmath."""
    import mpmath

    out = torch.full((segments, x.shape[1]), -INFINITY, dtype=torch.float64)
    with mpmath.workdps(60):
        for s in range(segments):
            own = members(index, s)
            temperature = float(tau[s, 0]) if isinstance(tau, Tensor) else tau
            for column in range(x.shape[1]):
                terms = [mpmath.exp(mpmath.mpf(v) / temperature) for v in x[own, column].tolist() if v > -INFINITY]
                if terms:
                    out[s, column] = float(mpmath.log(mpmath.fsum(terms)))
    return out


@pytest.mark.gpu
@at_most(200)
@given(problem=problems(), data=st.data())
def test_sums_of_segments_have_all_digits(problem: tuple[Tensor, Tensor, int], data: st.DataObject):
    x, index, segments = problem
    dtype = data.draw(st.sampled_from(DTYPES))
    offset = data.draw(st.sampled_from([0.0, -1e4, 1e4, -math.log(3)]))
    tau = data.draw(st.sampled_from([1.0, 0.25, torch.linspace(0.5, 2, segments, dtype=torch.float64).unsqueeze(-1)]))
    own = (x + offset).to(dtype)
    expected = sums(own.double(), index, segments, tau)
    units = 4 * torch.finfo(dtype).eps * expected.abs().nan_to_num(0, 0, 0) + torch.finfo(dtype).tiny
    there, index_there, tau = on_the_device(own, index, tau)
    result = sm.segment_logsumexp(there, index_there, segments, temperature=tau).cpu()
    assert (((result.double() - expected).abs() <= units) | (result.double() == expected)).all(), (result, expected)
    count = torch.zeros_like(expected).index_add_(0, index, torch.ones(own.shape, dtype=torch.float64))
    mean = sm.segment_log_mean_exp(there, index_there, segments, temperature=tau).cpu()
    units = 4 * torch.finfo(dtype).eps * (expected.abs() + count.log().abs()).nan_to_num(0, 0, 0) + torch.finfo(dtype).tiny
    assert (((mean.double() - (expected - count.log())).abs() <= units) | (expected == -INFINITY)).all()


def test_a_sum_keeps_what_is_beside_a_largest_score_of_0(dtype: torch.dtype):
    x, index = torch.tensor([0.0, -40.0, -41.0, 0.0], dtype=dtype), torch.tensor([0, 1, 0, 1])
    expected = torch.tensor([math.log1p(math.exp(-41)), math.log1p(math.exp(-40))], dtype=dtype)
    torch.testing.assert_close(sm.segment_logsumexp(x, index), expected, rtol=2 * torch.finfo(dtype).eps, atol=0)


# Ways there ---------------------------------------------------------------------------------------------------------------------


def graph(elements: int, segments: int, seed: int = 0) -> Tensor:
    """An index in which some segments have many elements, and some none."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(elements, generator=generator) ** 3 * segments).long()


def by_loop(function: Any, x: Tensor, index: Tensor, segments: int) -> Tensor:
    order = index.argsort(stable=True)
    parts = [function(part) for part in x[order].split(index.bincount(minlength=segments).tolist())]
    return torch.empty_like(x).index_copy_(0, order, torch.cat(parts))


@pytest.mark.parametrize("name", ["softmax", "sparsemax"])
@pytest.mark.parametrize("shape", [(), (3,)], ids=str)
def test_many_segments_in_any_order_and_shape(name: str, shape: tuple[int, ...], dtype: torch.dtype):
    elements, segments = 40_000, 600  # two windows
    index = graph(elements, segments)
    x = normal(elements, *shape, dtype=dtype)
    expected = by_loop(lambda part: getattr(sm, name)(part.double(), 0).to(dtype), x, index, segments)
    ordered = index.sort(stable=True)
    results = {
        "index": sm.segment_map(name, x, index, segments),
        "segments": sm.segment_map(name, x, sm.Segments(index, segments)),
        "in order": torch.empty_like(x).index_copy_(0, ordered.indices, sm.segment_map(name, x[ordered.indices], ordered.values)),
        "ptr": torch.empty_like(x).index_copy_(
            0,
            ordered.indices,
            sm.segment_map(name, x[ordered.indices], ptr=torch.searchsorted(ordered.values, torch.arange(segments + 1))),
        ),
        "last": sm.segment_map(name, x.movedim(0, -1), index, segments, dim=-1).movedim(-1, 0),
    }
    for way, result in results.items():
        torch.testing.assert_close(result, expected, atol=TOLERANCE[dtype], rtol=0, msg=lambda text, way=way: f"{way}: {text}")
    if not shape:
        loop = torch.stack([x[index == s].double().logsumexp(0) for s in range(0, segments, 20)])
        torch.testing.assert_close(
            sm.segment_logsumexp(x, index, segments)[::20].double(), loop, atol=0.0, rtol=4 * torch.finfo(dtype).eps
        )


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "entmax15"])
def test_gradients_are_those_of_each_segment(name: str, dtype: torch.dtype):
    elements, segments = 35_000, 3000
    index, where = on_the_device(graph(elements, segments, 1), normal(elements, 2, seed=3) > -3)
    x, g, tau = on_the_device(
        normal(elements, 2, dtype=dtype),
        normal(elements, 2, seed=1, dtype=dtype),
        torch.rand(segments, 1, dtype=torch.float64) + 0.5,
    )
    x.requires_grad_()
    wide = x.detach().double().requires_grad_()
    expected = sm.segment_map(name, wide, index, segments, temperature=tau, where=where)  # by rows, in float64
    own = sm.segment_map(name, x, index, segments, temperature=tau, where=where)
    g = torch.where(own > -INFINITY, g, 0)
    (slope,) = torch.autograd.grad(own, x, g)
    (wanted,) = torch.autograd.grad(expected, wide, g.double())
    scale = 40 if dtype in (torch.bfloat16, torch.float16) else 10  # of J from p that was rounded
    torch.testing.assert_close(slope.double(), wanted, atol=scale * TOLERANCE[dtype], rtol=scale * torch.finfo(dtype).eps)
    own_sums, wide_sums = (sm.segment_logsumexp(v, index, segments, temperature=tau, where=where) for v in (x, wide))
    h = torch.where(own_sums > -INFINITY, normal(segments, 2, seed=2, dtype=dtype).to(DEVICE), 0)
    (slope,) = torch.autograd.grad(own_sums, x, h)
    (wanted,) = torch.autograd.grad(wide_sums, wide, h.double())
    torch.testing.assert_close(slope.double(), wanted, atol=4 * TOLERANCE[dtype], rtol=4 * torch.finfo(dtype).eps)


def slope_of(value: Tensor, x: Tensor, g: Tensor, **options: Any) -> Tensor:
    """∂⟨g, value⟩/∂x, zeros where value does not know of x."""
    if not value.requires_grad:
        return torch.zeros_like(x)
    (found,) = torch.autograd.grad(value, x, g, allow_unused=True, **options)
    return torch.zeros_like(x) if found is None else found


def test_derivatives_of_every_order_and_kind(case: Case):
    index, segments = torch.tensor([2, 0, 2, 0, 0, 3, 3, 2, 0, 3, 3, 2, 0, 3]), 5
    x = normal(14, 2).requires_grad_()
    tau = torch.linspace(0.7, 1.6, segments, dtype=torch.float64).unsqueeze(-1).requires_grad_()
    # A number inside its domain, and not where p may be at a corner: at a whole budget, or at α = 2.
    inside = {p.name for p in case.map.params if p.gradient is not None and p.valid(case.params[p.name] - 1e-3)}
    learnt = {name for name in inside if name not in ("alpha", "budget") or case.params[name] != 2}
    each = lambda v: torch.full((segments, 1), float(v), dtype=torch.float64).requires_grad_()
    values = {name: each(v) for name, v in case.params.items() if name in learnt}
    others = {name: v for name, v in case.params.items() if name not in learnt}

    def function(x: Tensor, tau: Tensor, *params: Tensor) -> Tensor:
        return sm.segment_map(case.map, x, index, segments, temperature=tau, **dict(zip(values, params, strict=True)), **others)

    inputs = (x, tau, *values.values())
    assert torch.autograd.gradcheck(function, inputs, check_forward_ad=True, atol=1e-4)
    g, h = normal(14, 2, seed=4), normal(14, 2, seed=5)
    second = slope_of(slope_of(function(*inputs), x, g, create_graph=True), x, h)
    for s in (0, 2, 3):  # is that of the map by itself
        own = members(index, s)
        part = x[own].detach().requires_grad_()
        params = {name: v[s].detach() for name, v in values.items()} | others
        alone = case.map(part, 0, temperature=tau[s].detach(), **params)
        expected = slope_of(slope_of(alone, part, g[own], create_graph=True), part, h[own])
        torch.testing.assert_close(second[own], expected, atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "sparsemax", "taylor_softmax", "logsumexp"])
def test_slopes_by_temperature_are_those_of_each_segment(name: str):
    index, segments = graph(400, 30), 31  # of up to a hundred elements, some none
    function = lambda x, tau: (
        sm.segment_logsumexp(x, index, segments, temperature=tau)[lengths > 0]
        if name == "logsumexp"
        else sm.segment_map(name, x, index, segments, temperature=tau)
    )
    lengths = index.bincount(minlength=segments)
    x = normal(400, 2) + 1000 * (name not in ("taylor_softmax", "logsumexp"))
    for tau in (torch.tensor(0.7), torch.linspace(0.5, 2, segments).unsqueeze(-1), torch.tensor([[0.5, 1.5]])):
        inputs = (x.clone().requires_grad_(), tau.double().requires_grad_())
        value = function(*inputs)
        g = normal(*value.shape, seed=1)
        found = torch.autograd.grad(value, inputs, g)
        wanted = torch.autograd.grad(function(*inputs), inputs, g, create_graph=True)  # by rows
        for ours, theirs in zip(found, wanted, strict=True):
            torch.testing.assert_close(ours, theirs.detach(), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", ["softmax", "entmax15"])
def test_second_derivatives_of_long_segments_with_masks(name: str):
    index, where = torch.arange(90) % 3, normal(90, 2, seed=2) > -2
    x = normal(90, 2).requires_grad_()
    for options in ({}, {"where": where}):
        assert torch.autograd.gradgradcheck(lambda x, options=options: sm.segment_map(name, x, index, **options), x)


def test_sums_and_weighted_sums_have_every_derivative():
    index = torch.tensor([0, 2, 0, 2, 1, 1, 4])
    x, weights = normal(7, 2).requires_grad_(), (normal(7, 2, seed=1).abs() + 0.1).requires_grad_()
    tau = torch.linspace(0.7, 1.6, 5, dtype=torch.float64).unsqueeze(-1).requires_grad_()
    there = torch.tensor([0, 1, 2, 4])
    for function in (
        lambda x, tau, w: sm.segment_logsumexp(x, index, 5, temperature=tau)[there],
        lambda x, tau, w: sm.segment_log_mean_exp(x, index, 5, temperature=tau)[there],
        lambda x, tau, w: sm.segment_logsumexp(x, index, 5, temperature=tau, weights=w)[there],
    ):
        inputs = (x, tau, weights)
        assert torch.autograd.gradcheck(function, inputs, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(function, inputs)
    loop = torch.stack([(weights[members(index, s)] * (x[members(index, s)] / tau[s]).exp()).sum(0).log() for s in range(5)])
    torch.testing.assert_close(sm.segment_logsumexp(x, index, temperature=tau, weights=weights), loop)
    assert sm.segment_logsumexp(torch.zeros(2), torch.tensor([0, 0]), weights=torch.tensor([1.0, -2.0])).isnan()


def test_transforms_of_functions():
    index = graph(30, 6)
    x = normal(3, 30)
    mapped = torch.func.vmap(lambda row: sm.segment_map("sparsemax", row, index, 6))(x)
    torch.testing.assert_close(mapped, sm.segment_map("sparsemax", x, index, 6, dim=1))
    jacobian = torch.func.jacrev(lambda row: sm.segment_softmax(row, index, 6))(x[0])
    p = sm.segment_softmax(x[0], index, 6)
    same = index.unsqueeze(0) == index.unsqueeze(1)
    torch.testing.assert_close(jacobian, p.diag() - same * p.outer(p))


def test_numbers_do_not_depend_on_the_number_of_threads():
    index, x = graph(200_000, 30_000), normal(200_000, dtype=torch.float32).requires_grad_()
    before = torch.get_num_threads()
    found = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        segments = sm.Segments(index)
        p, total = sm.segment_softmax(x, segments), sm.segment_logsumexp(x, segments)
        found.append((p, total, *torch.autograd.grad(p.square().sum() + total[total > -INFINITY].sum(), x), segments.order))
    torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_one_long_segment_is_shared_by_threads():
    elements = native_segments.LONG + 65_537
    x = normal(elements, dtype=torch.float32)
    index = torch.zeros(elements, dtype=torch.int64)
    torch.testing.assert_close(sm.segment_softmax(x, index), x.softmax(0))
    index[::2] = 1
    p = sm.segment_softmax(x, index)
    torch.testing.assert_close(p[::2], x[::2].softmax(0))
    torch.testing.assert_close(sm.segment_logsumexp(x, index), torch.stack([x[1::2].logsumexp(0), x[::2].logsumexp(0)]))


@pytest.mark.parametrize("name", ["sparsemax", "softmax"])
def test_every_long_segment_is_found_among_short_ones(name: str):
    lengths = torch.tensor([3, 70_000, 0, 65_537, 5, 65_536, 140_000, 0, 1, 66_000])
    x = normal(int(lengths.sum()), 2)
    result = sm.segment_map(name, x, sm.Segments.from_lengths(lengths))
    expected = torch.cat([getattr(sm, name)(part, 0) for part in x.split(lengths.tolist())])
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-14)


# Hard inputs --------------------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("order", ["sorted", "any"])
@pytest.mark.parametrize("offset", [0.0, 1e4, -1e4])
def test_hard_scores_stay_in_their_segment(order: str, offset: float, dtype: torch.dtype):
    index = torch.arange(6).repeat_interleave(3)
    index = index if order == "sorted" else index.view(6, 3).T.reshape(-1)
    rows = torch.tensor(
        [
            [1.0, 1.0, 1.0],
            [-INFINITY] * 3,
            [0.0, -INFINITY, 0.0],
            [1.0, math.nan, 2.0],
            [INFINITY, 0.0, INFINITY],
            [0.0, 0.0, -8.0],
        ],
        dtype=torch.float64,
    ).add(offset)
    x, index = on_the_device((rows.flatten() if order == "sorted" else rows.T.flatten()).to(dtype), index)
    x.requires_grad_()
    own = (lambda v: v.view(6, 3)) if order == "sorted" else (lambda v: v.view(3, 6).T)
    p = own(sm.segment_softmax(x, index))
    third = 1 / 3
    expected = torch.tensor([[third] * 3, [0.0] * 3, [0.5, 0.0, 0.5], [math.nan] * 3, [math.nan] * 3], dtype=torch.float64)
    torch.testing.assert_close(p[:5].double().cpu(), expected, atol=TOLERANCE[dtype], rtol=0, equal_nan=True)
    total = sm.segment_logsumexp(x, index)
    assert total[1] == -INFINITY
    assert total[3].isnan()
    assert total[4] == INFINITY
    (slope,) = torch.autograd.grad(total[[0, 1, 2, 4]].sum(), x)
    expected = torch.tensor([[third] * 3, [0.0] * 3, [0.5, 0.0, 0.5], [math.nan] * 3], dtype=torch.float64)
    torch.testing.assert_close(own(slope)[[0, 1, 2, 4]].double().cpu(), expected, atol=TOLERANCE[dtype], rtol=0, equal_nan=True)


@pytest.mark.gpu
@pytest.mark.parametrize("order", [[0, 1, 0, 1], [0, 0, 1, 1]])
def test_no_slope_is_read_where_a_probability_is_0(order: list[int]):
    index = torch.tensor(order, device=DEVICE)
    scores = [0.0, 0.0, -INFINITY, 0.0] if order == [0, 1, 0, 1] else [0.0, -INFINITY, 0.0, 0.0]
    x = torch.tensor(scores, device=DEVICE, requires_grad=True)
    g = torch.where(x > -INFINITY, torch.tensor([1.0, 2.0, 3.0, 4.0], device=DEVICE), math.nan)
    (slope,) = torch.autograd.grad(sm.segment_softmax(x, index), x, g)
    assert slope.isfinite().all()
    assert slope[x == -INFINITY] == 0
    (slope,) = torch.autograd.grad(sm.segment_softmax(x, index), x, torch.full_like(x, 3e38))
    assert (slope == 0).all()  # of equal slopes, however large


def test_segments_of_nothing():
    nothing = torch.empty(0, dtype=torch.int64)
    for dtype in DTYPES:
        x = torch.empty(0, 2, dtype=dtype)
        assert sm.segment_softmax(x, nothing).shape == sm.segment_map("entmax15", x, nothing, 3).shape == (0, 2)
        assert (sm.segment_logsumexp(x, nothing, 3) == -INFINITY).all()
        assert sm.segment_logsumexp(x, nothing).shape == (0, 2)
        assert (sm.segment_log_mean_exp(x, nothing, 3) == -INFINITY).all()
        assert sm.segment_logsumexp(torch.empty(3, 0, dtype=dtype), torch.tensor([1, 0, 1])).shape == (2, 0)
        far = sm.segment_logsumexp(torch.ones(2, dtype=dtype), torch.tensor([99_999, 3]), 100_000)  # windows without an element
        assert (far > -INFINITY).sum() == 2


def test_views_and_kinds_of_arrays():
    index = torch.tensor([0, 1, 0, 1, 2])
    x = normal(10, 6)[::2, ::3]
    expected = sm.segment_softmax(x.contiguous(), index)
    assert torch.equal(sm.segment_softmax(x, index), expected)
    assert torch.equal(sm.segment_softmax(x.mT, index, dim=-1).mT, expected)
    assert torch.equal(sm.segment_softmax(x[:, :1].expand(5, 3), index), expected[:, :1].expand(5, 3))
    for kind in (np.uint8, np.int32, np.int64):
        result = sm.segment_softmax(x.numpy(), index.numpy().astype(kind))
        assert isinstance(result, np.ndarray)
        assert np.array_equal(result, expected.numpy())
    assert sm.segment_logsumexp(np.array([1, 2]), np.array([0, 0])).dtype == np.float64
    assert torch.equal(sm.segment_softmax(x, torch.tensor([0, 9, 0, 9, 1, 9])[:-1], 10), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert sm.segment_softmax(x.bfloat16(), index).dtype == sm.softmax(x.bfloat16()).dtype
    compiled = torch.compile(lambda x: sm.segment_softmax(x, index) * 2, backend="eager")
    assert torch.equal(compiled(x), 2 * expected)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_jagged_tensors_are_segments():
    rows = [normal(n, 2, seed=n) for n in (3, 0, 5)]
    x = torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)
    p = sm.segment_map("sparsemax", x)
    for own, row in zip(p.unbind(), rows, strict=True):
        torch.testing.assert_close(own, sm.sparsemax(row, 0))
    p.values().square().sum().backward()
    assert x.grad is not None
    assert x.grad.is_nested
    total = sm.segment_logsumexp(x, temperature=torch.ones(3, 1, dtype=torch.float64))
    torch.testing.assert_close(total, torch.stack([sm.logsumexp(row, 0) for row in rows]))
    with pytest.raises(TypeError, match=r"^segment_softmax: a nested tensor says its segments itself; leave out index$"):
        sm.segment_softmax(x, torch.tensor([0]))
    with pytest.raises(ValueError, match=r"^segment_softmax: segments of a nested tensor are along dim 1 .* got dim=2"):
        sm.segment_softmax(x, dim=2)
    with pytest.raises(ValueError, match=r"^segment_softmax: .* whose ragged dim is 2; call .transpose\(1, 2\)"):
        sm.segment_softmax(x.transpose(1, 2), dim=2)
    with pytest.raises(TypeError, match=r"^segment_softmax: a nested tensor of segments must have torch's jagged layout"):
        sm.segment_softmax(torch.nested.nested_tensor(rows))


def nested_rows(*lengths: int) -> Tensor:
    return torch.nested.nested_tensor([normal(n, 2, seed=n) for n in lengths], layout=torch.jagged, requires_grad=True)


def test_every_map_of_a_jagged_tensor_is_that_of_its_rows_with_masks_and_second_derivatives(case: Case):
    x = nested_rows(3, 0, 5, 1)
    where = x.detach() > -0.5
    p = sm.segment_map(case.map, x, where=where, **case.params)
    assert p.shape == x.shape
    for own, row, allowed in zip(p.unbind(), x.unbind(), where.unbind(), strict=True):
        if len(row):
            torch.testing.assert_close(own, case.map(row, 0, where=allowed, **case.params))
    flat = x.values().detach().requires_grad_()
    lengths = torch.tensor([3, 0, 5, 1])
    of_flat = lambda v: sm.segment_map(case.map, v, sm.Segments.from_lengths(lengths), where=where.values(), **case.params)
    slopes = []
    for leaf, value in ((x, p.values()), (flat, of_flat(flat))):
        g = torch.where(value.isfinite(), normal(9, 2, seed=7), 0.0)
        (first,) = torch.autograd.grad(value, leaf, g, create_graph=True, allow_unused=True)
        first = first.values() if first.is_nested else first
        second = torch.autograd.grad(first.square().sum(), leaf)[0] if first.requires_grad else first
        slopes.append((first.detach(), second.values() if second.is_nested else second))
    torch.testing.assert_close(*slopes)


def test_weights_of_a_jagged_tensor_have_its_rows():
    x = nested_rows(3, 1)
    weights = x.detach().abs()
    expected = sm.segment_logsumexp(x.values(), ptr=torch.tensor([0, 3, 4]), weights=weights.values())
    torch.testing.assert_close(sm.segment_logsumexp(x, weights=weights), expected)
    for what in ("weights", "where"):
        with pytest.raises(ValueError, match=rf"^segment_logsumexp: {what} must have rows as long as those of the scores"):
            sm.segment_logsumexp(x, **{what: nested_rows(2, 2).detach() > 0})


def test_an_index_is_the_same_for_all_that_vmap_goes_over():
    with pytest.raises(ValueError, match=r"^segment_softmax: index must be the same for all that vmap goes over"):
        torch.func.vmap(lambda x, index: sm.segment_softmax(x, index))(normal(3, 4), torch.zeros(3, 4).long())


# Graphs that are recorded -------------------------------------------------------------------------------------------------------


class Over(torch.nn.Module):
    """A map over segments that learns."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case, self.tau = case, torch.nn.Parameter(torch.tensor([[0.7], [1.0], [1.3]], dtype=torch.float64))

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        return sm.segment_map(self.case.map, x, index, 3, temperature=self.tau, where=x > -1.5, **self.case.params)


def test_every_map_is_exported_for_any_index_and_learns(case: Case):
    dynamic = {0: torch.export.Dim("E", min=2)}
    own = Over(case)
    if any(map(callable, case.params.values())):
        with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(NotImplementedError, match=r"cannot hold its parameters"):
            own(normal(5, 2), torch.zeros(5).long())
        return
    made = torch.export.export(own, (normal(5, 2), torch.tensor([0, 1, 0, 2, 1])), dynamic_shapes=(dynamic, dynamic))
    exported = made.module()
    index, x = torch.tensor([2, 0, 2, 0, 0, 2, 2]), normal(7, 2, seed=3).requires_grad_()
    found = []
    for module in (own, exported):
        p = module(x, index)
        g = torch.where(p.detach().isfinite(), normal(7, 2, seed=1), 0.0)
        found.append((p.detach(), *torch.autograd.grad(p, (x, *module.parameters()), g)))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(theirs, ours)


@pytest.mark.parametrize("way", ["index", "ptr"])
def test_maps_and_sums_are_whole_in_a_compiled_graph(way: str):
    numbers = torch.tensor([0, 0, 2, 2, 2]) if way == "index" else torch.tensor([0, 2, 2, 5])
    given = {"num_segments": 3} if way == "index" else {}

    def function(x: Tensor, numbers: Tensor, alpha: Tensor) -> Tensor:
        segments = {way: numbers, **given}
        p = sm.segment_map("entmax", x, alpha=alpha, **segments)
        sums = sm.segment_logsumexp(x, weights=p, **segments), sm.segment_log_mean_exp(x, temperature=alpha, **segments)
        return torch.cat((p, *sums)).nan_to_num(neginf=0.0)

    found = []
    for each in (function, torch.compile(function, fullgraph=True, backend="aot_eager")):
        inputs = normal(5, 2).requires_grad_(), torch.tensor(1.3, dtype=torch.float64).requires_grad_()
        value = each(inputs[0], numbers, inputs[1])
        found.append((value, *torch.autograd.grad(value.square().sum(), inputs)))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(theirs, ours)


def test_a_recorded_graph_says_what_is_wrong_when_it_runs():
    x, index = normal(5), torch.tensor([0, 1, 0, 2, 1])
    few = torch.compile(lambda x, index: sm.segment_logsumexp(x, index, 2), fullgraph=True, backend="eager")
    with pytest.raises(ValueError, match=r"index must be at least 0 and below num_segments=2, got 2"):
        few(x, index)
    by_ptr = torch.compile(lambda x, ptr: sm.segment_softmax(x, ptr=ptr), fullgraph=True, backend="eager")
    with pytest.raises(ValueError, match=r"index or ptr says 6, and scores of shape \(5,\) have 5 elements along dim 0"):
        by_ptr(x, torch.tensor([0, 6]))
    counts = torch.compile(lambda x, index: sm.segment_logsumexp(x, index), backend="eager")
    torch.testing.assert_close(counts(x, index), sm.segment_logsumexp(x, index))  # the graph breaks
    torch._dynamo.reset()
    counts = torch.compile(lambda x, index: sm.segment_logsumexp(x, index), fullgraph=True, backend="eager")
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"number is not given \(num_segments=\) .*: leave out fullgraph=True"):
        counts(x, index)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert sm.segment_softmax(x, index).shape == x.shape
        with pytest.raises(
            ValueError, match=r"^segment_logsumexp: who records a graph does not know the largest index; give num_s"
        ):
            sm.segment_logsumexp(x, index)


def test_segments_say_what_they_are():
    segments = sm.Segments(torch.tensor([2, 0, 2, 0, 0]), 4)
    assert len(segments) == 4
    assert segments.elements == 5
    assert segments.lengths.tolist() == [3, 0, 2, 0]
    assert segments.starts.tolist() == [0, 3, 3, 5, 5]
    assert segments.order is not None
    assert segments.order.tolist() == [1, 3, 4, 0, 2]
    assert sm.Segments.from_lengths(torch.tensor([3, 0, 2])).index.tolist() == [0, 0, 0, 2, 2]
    again = pickle.loads(pickle.dumps(segments))
    assert torch.equal(sm.segment_softmax(torch.ones(5), again), sm.segment_softmax(torch.ones(5), segments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"index": torch.tensor([0, 2, 1]), "num_segments": 2}, "index must be at least 0 and below num_segments=2, got 2"),
        ({"index": torch.tensor([0, -1, 1])}, "index must be at least 0 and below 2[*][*]40, got -1"),
        ({"index": torch.tensor([0, 2**63 - 1, 1])}, "index must be at least 0 and below 2[*][*]40, got 9223372036854775807"),
        (
            {"index": torch.tensor([0, 0, 1]), "num_segments": 2**70},
            "num_segments must be an int from 0 to 2[*][*]40, got one of 71 bits",
        ),
        ({"ptr": torch.tensor([0, 3]), "num_segments": True}, "num_segments must be an int of at least 0, got"),
        ({"index": torch.tensor([0.0, 1.0, 1.0])}, r"index must be integers, got torch.float32; make them int64"),
        ({"index": torch.tensor([[0, 1, 1]])}, "index must have one axis, got shape"),
        ({"index": torch.tensor([0, 1])}, "index has 2, and scores of shape .3,. have 3 elements along dim 0"),
        ({"index": torch.tensor([0, 1, 1], device="meta")}, "index must hold values, got a meta tensor"),
        ({"ptr": torch.tensor([0, 2, 1, 3])}, "ptr must not fall, got 2 before 1 at 1"),
        ({"ptr": torch.tensor([1, 3])}, "ptr must begin at 0, .* got one that begins at 1"),
        ({"ptr": torch.tensor([], dtype=torch.int64)}, "ptr must begin at 0, .* got none"),
        ({"ptr": torch.tensor([0, 2])}, "ptr ends at 2, and scores"),
        ({"ptr": torch.tensor([0, 3]), "num_segments": 2}, "num_segments is 2, and ptr has 1 segments"),
        ({"ptr": torch.tensor([0, 3]), "index": torch.tensor([0, 0, 0])}, "give index, .* or ptr, .* got both"),
        ({}, "give index, .* or ptr, .* got neither"),
        ({"index": sm.Segments(torch.tensor([0, 0, 0])), "num_segments": 1}, "Segments say all by themselves"),
        ({"index": torch.tensor([0, 1, 1]), "temperature": torch.ones(3)}, r"temperature must broadcast to \(2,\)"),
        ({"index": torch.tensor([0, 1, 1]), "temperature": torch.tensor([1.0, 0.0])}, "temperature must be"),
        ({"index": torch.tensor([0, 1, 1]), "dim": 1}, "dim"),
    ],
)
def test_wrong_segments_are_refused_before_any_work(arguments: dict[str, Any], message: str):
    for name, call in (("segment_softmax", sm.segment_softmax), ("segment_logsumexp", sm.segment_logsumexp)):
        with pytest.raises((ValueError, TypeError, IndexError), match=f"^{name}: {message}"):
            call(torch.zeros(3), **arguments)


def test_a_number_has_no_segments_and_lengths_are_not_negative():
    with pytest.raises(ValueError, match=r"^segment_softmax: scores need an axis of elements, got a 0-d tensor"):
        sm.segment_softmax(torch.tensor(1.0), torch.tensor([0]))
    with pytest.raises(ValueError, match=r"^Segments.from_lengths: lengths must be at least 0, got -1"):
        sm.Segments.from_lengths(torch.tensor([1, -1]))
    with pytest.raises(ValueError, match=r"^Segments.from_lengths: lengths must add up to less than 2\*\*63"):
        sm.Segments.from_lengths(torch.tensor([2**62] * 4 + [3]))


@pytest.mark.parametrize("order", [[0, 0, 1, 2], [2, 0, 1, 0]])
def test_segments_stay_what_they_were_made_of(order: list[int]):
    x = normal(4)
    index, ptr = torch.tensor(order), torch.tensor([0, 1, 1, 4])
    expected, by_ptr = sm.segment_softmax(x, index), sm.segment_softmax(x, ptr=ptr)
    segments, of_ptr, of_array = sm.Segments(index), sm.Segments.from_ptr(ptr), sm.Segments(index.numpy())
    given = index.clone().requires_grad_(False)
    tau = torch.ones(3).requires_grad_()
    p = sm.segment_map("entmax15", x, given, temperature=tau)
    for changed in (index, given):
        changed[0] = 10**9
    ptr[1] = 10**9
    assert torch.equal(sm.segment_softmax(x, segments), expected)
    assert torch.equal(sm.segment_softmax(x, of_array), expected)
    assert torch.equal(sm.segment_softmax(x, of_ptr), by_ptr)
    with pytest.raises(RuntimeError, match=r"^Segments: the index was changed in place before a derivative was taken"):
        torch.autograd.grad(p.square().sum(), tau)


def test_an_index_of_torch_geometric_is_an_index():
    from torch_geometric import EdgeIndex, Index

    x, edges = normal(4), torch.tensor([[0, 1, 2, 0], [0, 1, 1, 2]])
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        plain = edges[1, order]
        for index in (Index(plain), EdgeIndex(edges[:, order])[1]):
            assert torch.equal(sm.segment_softmax(x, index), sm.segment_softmax(x, plain))
            assert torch.equal(sm.segment_logsumexp(x, sm.Segments(index)), sm.segment_logsumexp(x, plain))
    assert torch.equal(
        sm.segment_softmax(x, ptr=Index(torch.tensor([0, 1, 2, 4]))), sm.segment_softmax(x, torch.tensor([0, 1, 2, 2]))
    )


@pytest.mark.parametrize("spread", [1.0, 10.0, 17.0, 20.0, 40.0])
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "entmax15"])
def test_a_confident_segment_has_the_slope_by_temperature_of_a_row(name: str, spread: float):
    for kind in (torch.float32, torch.float64):
        row = torch.tensor([0.0, spread / 3, spread], dtype=kind)
        for place in range(3):
            slopes = []
            for function in (
                lambda x, tau: getattr(sm, name)(x, temperature=tau),
                lambda x, tau: sm.segment_map(name, x, 0 * x.long(), temperature=tau),
            ):
                tau = torch.ones(1, dtype=torch.float64).requires_grad_()
                slopes += torch.autograd.grad(function(row, tau)[place], tau)
            torch.testing.assert_close(slopes[1], slopes[0], rtol=1e-5 if kind == torch.float32 else 1e-12, atol=0)


def test_nothing_is_still_a_function_of_what_learns(case: Case, dtype: torch.dtype):
    nothing, x = torch.empty(0, dtype=torch.int64), torch.empty(0, 2, dtype=dtype).requires_grad_()
    learnt = {p.name: torch.full((3, 1), float(case.params[p.name])).requires_grad_() for p in case.map.params if p.gradient}
    tau = torch.ones(3, 1).requires_grad_()
    p = sm.segment_map(case.map, x, nothing, 3, temperature=tau, **{**case.params, **learnt})
    total = sm.segment_logsumexp(x, nothing, 3, temperature=tau).clamp(min=0.0)
    (p.sum() + total.sum()).backward()
    for leaf in (x, tau, *learnt.values()):
        assert leaf.grad is not None
        assert (leaf.grad == 0).all()


def test_a_first_derivative_keeps_no_graph():
    x, alpha = normal(4).requires_grad_(), torch.tensor(1.3).requires_grad_()
    p = sm.segment_map("entmax", x, torch.tensor([0, 1, 0, 1]), alpha=alpha)
    assert not any(slope.requires_grad for slope in torch.autograd.grad(p.square().sum(), (x, alpha)))


def test_no_weight_is_read_of_what_is_left_out():
    x, where = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([False, True, True])
    for weight in (math.nan, INFINITY):
        weights = torch.tensor([weight, 1.0, 1.0])
        expected = sm.logsumexp(x[1:])
        torch.testing.assert_close(sm.segment_logsumexp(x, torch.zeros(3).long(), weights=weights, where=where), expected[None])
        torch.testing.assert_close(sm.logsumexp(x, weights=weights, where=where), expected)


WITHOUT = """
import torch, softmaxima as sm
torch.manual_seed(0)
index, x = torch.randint(0, 50, (600,)), torch.randn(600, 2, dtype=torch.float64, requires_grad=True)
p, total = sm.segment_map("entmax15", x, index, 60), sm.segment_logsumexp(x, index, 60)
(slope,) = torch.autograd.grad(p.square().sum() + total[total > -9].sum() + sm.segment_softmax(x, index)[0, 0], x)
said = [v.square().sum().item() for v in (p, total[total > -9], slope)]
"""


def test_torch_does_the_same_without_the_library():
    environment = os.environ | {"SOFTMAXIMA_BACKEND": "reference"}
    command = [sys.executable, "-c", WITHOUT + "print(*said)"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    own: dict[str, Any] = {}
    exec(WITHOUT, own)
    assert [float(number) for number in done.stdout.split()] == pytest.approx(own["said"], rel=1e-12)


@pytest.mark.parametrize("segments", [1, 7, 5000])
def test_a_partition_keeps_order_within_windows(segments: int):
    index = graph(50_000, segments)
    found = native_segments.partition(index, segments)
    assert torch.equal(found.places.long().sort().values, torch.arange(50_000))
    assert torch.equal(found.numbers[found.places.long()].long(), index)
    windows = index >> found.shift
    assert torch.equal(found.places.long().argsort(), windows.argsort(stable=True))
    assert torch.equal(found.bounds.diff(), windows.bincount(minlength=len(found.bounds) - 1))
