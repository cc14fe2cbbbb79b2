"""The monoid of logsumexp: any split of a row, any order of merging, any part empty, and the same sum, whatever its numbers are."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from conftest import normal
from softmaxima.base.monoid import LogSum, log_sum, merge, nothing
from softmaxima.io import LogSumExpState
from softmaxima.lse._complex import complex_sum
from softmaxima.lse._weighted import weighted_sum

INF = math.inf
# The sum over columns of scores x and weights b, which a complex sum has for angles too.
KINDS: dict[str, Callable[[Tensor, Tensor, float], LogSum]] = {
    "plain": lambda x, b, tau: log_sum(x, tau),
    "weighted": weighted_sum,
    "complex": lambda x, b, tau: complex_sum(torch.complex(x / tau, b.clamp(-10, 10)), b),
}
scores = st.one_of(st.floats(-30, 30), st.sampled_from([0.0, 1.0, -INF, -50.0, 50.0]))
weights = st.one_of(st.floats(-10, 10), st.sampled_from([0.0, 1.0, -1.0, 1e200, 1e-200]))
rows = st.lists(st.tuples(scores, weights), min_size=1, max_size=12)
cuts = st.lists(st.integers(0, 12), max_size=4)


def parts(kind: str, x: Tensor, b: Tensor, tau: float, cuts: list[int]) -> list[LogSum]:
    ends = [0, *sorted(min(cut, x.shape[-1]) for cut in cuts), x.shape[-1]]
    return [KINDS[kind](x[..., i:j], b[..., i:j], tau) for i, j in itertools.pairwise(ends)]


def in_some_order(sums: list[LogSum], tau: float, shuffle: int) -> LogSum:
    """Merged two by two."""
    draw = random.Random(shuffle)
    while len(sums) > 1:
        draw.shuffle(sums)
        sums.append(merge(sums.pop(), sums.pop(), tau))
    return sums[0]


def assert_same(a: LogSum, b: LogSum, size: LogSum, tau: float) -> None:
    """To some roundings of the sizes of the terms, one of them of differences of up to 100/τ: a term may be large by its weight."""
    top = functools.reduce(lambda first, second: merge(first, second, tau), (a, b, size)).top
    first, second, sizes = (own.at(top, tau).mass for own in (a, b, size))
    assert bool(((first - second).abs() <= (32 + 100 / tau) * 2.0**-53 * sizes.abs()).all())


@pytest.mark.parametrize("kind", KINDS)
@given(
    row=rows,
    cuts=cuts,
    shuffle=st.integers(0, 1000),
    offset=st.sampled_from([0.0, 1e6, -1e6]),
    tau=st.sampled_from([1.0, 0.5, 1e6, 1e-38]),
)
def test_any_split_and_any_order_give_the_same_sum(kind: str, row, cuts: list[int], shuffle: int, offset: float, tau: float):
    tau = 1.0 if kind == "complex" else tau
    x, b = (torch.tensor(column, dtype=torch.float64)[None] for column in zip(*row, strict=True))
    x = x + offset
    (whole,), (size,) = parts(kind, x, b, tau, []), parts(kind, x, b.abs(), tau, [])
    if kind == "complex":
        size = complex_sum(torch.complex(x, torch.zeros_like(x)), b.abs())
    sums = parts(kind, x, b, tau, cuts)
    assert all(field.shape == (1, 1) for own in sums for field in own)
    assert_same(in_some_order(sums, tau, shuffle), whole, size, tau)


@given(
    row=st.lists(scores, min_size=1, max_size=12),
    cuts=cuts,
    orders=st.tuples(st.integers(0, 1000), st.integers(0, 1000)),
    tau=st.sampled_from([1.0, 0.5, 2.0]),
)
def test_states_merge_as_sums_do_in_any_order(row: list[float], cuts: list[int], orders: tuple[int, int], tau: float):
    x = torch.tensor(row, dtype=torch.float64)
    whole = in_some_order(parts("plain", x[None], x[None], tau, cuts), tau, orders[0])
    ends = [0, *sorted(min(cut, len(row)) for cut in cuts), len(row)]
    states = [LogSumExpState().update(x[i:j], temperature=tau) for i, j in itertools.pairwise(ends)]
    draw = random.Random(orders[1])
    while len(states) > 1:
        draw.shuffle(states)
        states.append(states.pop().merge(states.pop()))
    (state,) = states
    assert (float(state.maximum), int(state.count)) == (float(whole.top) / tau, int(whole.ties))
    assert float(state.rest.relative_to(state.maximum)) == pytest.approx(float(whole.rest), rel=32 * 2.0**-53, abs=0)
    assert float(state.value) == pytest.approx(float(whole.value(tau)), rel=2.0**-51, abs=2.0**-52 * abs(float(state.maximum)))


@pytest.mark.parametrize("kind", KINDS)
@given(first=rows, second=rows)
def test_nothing_is_the_identity_and_sides_do_not_matter(kind: str, first, second):
    a, b = (
        KINDS[kind](*(torch.tensor(column, dtype=torch.float64)[None] for column in zip(*row, strict=True)), 1.0)
        for row in (first, second)
    )
    none = nothing(a.top)
    for one, other in ((merge(a, b, 1.0), merge(b, a, 1.0)), (merge(a, none, 1.0), a), (merge(none, a, 1.0), a)):
        assert all(torch.equal(own, its) for own, its in zip(one, other, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_a_sum_in_parts_has_the_derivatives_of_the_whole(kind: str):
    x, b = normal(2, 6), normal(2, 6, seed=1)
    x[:, 1] = x[:, 4] = 2.0  # the largest, in two parts
    x, b = x.requires_grad_(), b.requires_grad_()
    found, tau = [], 1.0 if kind == "complex" else 0.7
    for cuts in ([], [3], [0, 2, 5]):
        total = in_some_order(parts(kind, x, b, tau, cuts), tau, 0)
        value = torch.view_as_real(total.value(tau)) if kind == "complex" else total.value(tau)
        gradients = torch.autograd.grad(value.square().sum(), (x, b), create_graph=True, allow_unused=True)
        second = torch.autograd.grad(gradients[0].square().sum(), x)
        found.append((value, gradients[0], *second, *(gradients[1:] if kind == "weighted" else ())))
    for own in found[1:]:
        torch.testing.assert_close(own, found[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["plain", "weighted"])
@pytest.mark.parametrize("cut", range(5))
def test_infinities_and_nan_in_parts(kind: str, cut: int):
    x = torch.tensor([[INF, 0, INF, 1], [INF, 0, 1, -INF], [-INF, -INF, -INF, 2], [0, math.nan, INF, 0], [-INF] * 4])
    b = torch.tensor([[1.0, 1.0, -2.0, 1.0]], dtype=torch.float64).expand(x.shape)
    total = in_some_order(parts(kind, x.double(), b, 0.5, [cut]), 0.5, 0)
    expected = [math.nan if kind == "weighted" else INF, INF, 4.0, math.nan, -INF]
    torch.testing.assert_close(total.value(0.5)[:, 0], torch.tensor(expected, dtype=torch.float64), equal_nan=True)
