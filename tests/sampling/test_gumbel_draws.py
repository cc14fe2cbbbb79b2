"""Draws: by their probabilities, reproducible, the same on any number of threads, along any axis, and of every function alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from softmaxima.engine.contract import find_map
from softmaxima.sampling import (
    gumbel_max,
    gumbel_softmax,
    gumbel_top_k,
    rao_blackwell_gumbel,
    reinmax,
    relaxed_sample,
    relaxed_top_k,
    straight_through,
)
from softmaxima.sampling.noise import conditional, gumbel, uniform
from softmaxima.sampling.rows import largest

FALSE_ALARM = 1e-6  # of a correct sampler, for each of the few seeded chi-squares
SCORES = torch.tensor([1.0, 0.3, -0.5, -2.0, -torch.inf, 0.3])
CPU = torch.device("cpu")

ONE_HOT: dict[str, Callable[..., Any]] = {
    "gumbel_softmax": lambda x, **options: gumbel_softmax(x, 0.7, True, **options),
    "gumbel_softmax, hot": lambda x, **options: gumbel_softmax(x, 1e30, True, **options),
    "gumbel_softmax, cold": lambda x, **options: gumbel_softmax(x, 1e-30, True, **options),
    "relaxed_sample": lambda x, **options: relaxed_sample(x, 0.7, True, map="sparsemax", **options),
    "straight_through": straight_through,
    "reinmax": reinmax,
    "rao_blackwell_gumbel": rao_blackwell_gumbel,
}


def assert_drawn_from(p: torch.Tensor, counts: torch.Tensor) -> None:
    """The chi-square of counts of classes, none of which is of probability 0."""
    assert not counts[p == 0].any()
    expected = p[p > 0].double() * counts.sum()
    assert stats.chisquare(counts[p > 0].numpy(), expected.numpy() * (counts.sum() / expected.sum()).item()).pvalue > FALSE_ALARM


@pytest.mark.parametrize("offset", [-1e18, 1e9, 1e18])
def test_an_offset_changes_no_draw(offset: float, dtype: torch.dtype):
    """The noise keeps its digits however large the scores are; of equal scores each is drawn as often."""
    x = torch.full((2000, 4), math.copysign(6e4, offset) if dtype == torch.float16 else offset, dtype=dtype)
    drawn = gumbel_max(x, generator=1)
    torch.testing.assert_close(drawn, gumbel_max(torch.zeros_like(x), generator=1))
    for function in ONE_HOT.values():
        torch.testing.assert_close(function(x, generator=2), function(torch.zeros_like(x), generator=2))
    assert drawn.bincount(minlength=4).min() > 400


@pytest.mark.parametrize("tau", [1.0, torch.tensor(1.0), 0.7])
def test_an_offset_changes_no_digit(tau: Any):
    """Of values and of what is told of draws, where the offset takes no digit of the scores."""
    x = torch.tensor([0.0, 1.0, 2.0, -1.0], dtype=torch.float64)
    functions = {
        **ONE_HOT,
        "relaxed_top_k": lambda x, **options: relaxed_top_k(x, 2, tau, **options),
        "soft": lambda x, **options: gumbel_softmax(x, tau, **options),
        "gumbel_top_k": lambda x, **options: gumbel_top_k(x, 3, temperature=tau, **options).log_prob,
    }
    for name, function in functions.items():
        assert torch.equal(function(x, samples=20, generator=0), function(x + 1e15, samples=20, generator=0)), name


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("precision", [torch.float64, torch.float16])
def test_indices_are_drawn_from_the_softmax(seed: int, precision: torch.dtype):
    x = SCORES.to(precision)
    drawn = gumbel_max(x, samples=50_000, generator=seed)
    assert_drawn_from(x.double().softmax(-1), drawn.bincount(minlength=6))


@pytest.mark.parametrize("name", ONE_HOT)
def test_one_hot_draws_are_those_of_gumbel_max_whatever_the_temperature(name: str):
    x = SCORES.expand(50, -1)
    drawn = ONE_HOT[name](x, samples=20, generator=3)
    assert set(drawn.unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(drawn.argmax(-1), gumbel_max(x, samples=20, generator=3))
    assert (drawn.sum(-1) == 1).all()


def test_narrow_scores_with_ties_draw_each_class_alike():
    """In bfloat16 x + G has ties by the hundred near 1000, of which an argmax would take the first."""
    x = torch.full((4,), 1000.0, dtype=torch.bfloat16)
    drawn = gumbel_softmax(x, 1.0, True, samples=20_000, generator=0).double().sum(0).long()
    assert_drawn_from(torch.full((4,), 0.25), drawn)


@pytest.mark.parametrize("name", ["sparsemax", "entmax15", "elastic_softmax"])
def test_straight_through_draws_from_the_map(name: str):
    p = find_map(name)(SCORES.double())
    drawn = straight_through(SCORES.double(), map=name, samples=30_000, generator=1).sum(0).long()
    none = 30_000 - drawn.sum()
    assert_drawn_from(
        torch.cat((p, 1 - p.sum(-1, keepdim=True)))[: 7 if none else 6], torch.cat((drawn, none[None]))[: 7 if none else 6]
    )


def test_noise_ends_where_it_says():
    u = torch.tensor([2.0**-54, 1 - 2.0**-53], dtype=torch.float64)
    ends = gumbel(u)
    torch.testing.assert_close(ends, torch.tensor([37.43, -3.605], dtype=torch.float64), atol=0.01, rtol=0)
    drawn = gumbel(uniform("test", (100_000,), CPU, 0))
    assert stats.kstest(drawn.numpy(), "gumbel_r").pvalue > FALSE_ALARM


def test_noise_of_a_known_argmax_is_noise():
    """Of an argmax that is drawn, x + G given it is x + G, each score by itself."""
    x = SCORES[:4].double()
    one_hot = largest(x + gumbel(uniform("test", (30_000, 4), CPU, 0)))
    y = conditional(x, one_hot, uniform("test", (30_000, 4), CPU, 1))
    assert (largest(y) == one_hot).all()
    for i in range(4):
        assert stats.kstest((y - x)[:, i].numpy(), "gumbel_r").pvalue > FALSE_ALARM


@pytest.mark.parametrize("function", [gumbel_max, gumbel_softmax, reinmax, rao_blackwell_gumbel])
def test_draws_repeat_by_generator(function: Callable[..., Any]):
    x = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    for make in (lambda: 7, lambda: torch.Generator().manual_seed(7), lambda: np.random.default_rng(7)):
        torch.testing.assert_close(function(x, generator=make()), function(x, generator=make()), rtol=0, atol=0)
    one = torch.Generator().manual_seed(7)
    assert not torch.equal(function(x, generator=one), function(x, generator=one))
    torch.manual_seed(7)
    first = function(x)
    torch.manual_seed(7)
    torch.testing.assert_close(function(x), first, rtol=0, atol=0)


def test_draws_are_the_same_on_any_number_of_threads():
    x, threads, found = torch.zeros(1_000_000), torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            found.append(
                (gumbel_max(x, generator=5), gumbel_softmax(x.view(1000, 1000), generator=5), gumbel_top_k(x, 10, generator=5))
            )
    finally:
        torch.set_num_threads(threads)
    (index, p, top), (index_two, p_two, top_two) = found
    assert torch.equal(index, index_two)
    assert torch.equal(top.indices, top_two.indices)
    assert torch.equal(p.argmax(-1), p_two.argmax(-1))
    torch.testing.assert_close(p, p_two, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dim", [0, 1, -2, 2])
def test_the_axis_does_not_move_the_draw(dim: int):
    x = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    last = x.movedim(dim, -1)
    torch.testing.assert_close(gumbel_max(x, dim, samples=2, generator=1), gumbel_max(last, samples=2, generator=1))
    place = dim % 3 + 1
    for function in (gumbel_softmax, straight_through, reinmax, rao_blackwell_gumbel, lambda x, **o: relaxed_top_k(x, 2, **o)):
        expected = function(last, samples=2, generator=1).movedim(-1, place)
        torch.testing.assert_close(function(x, dim=dim, samples=2, generator=1), expected)
    draw = gumbel_top_k(x, 2, dim, generator=1)
    torch.testing.assert_close(draw.indices, gumbel_top_k(last, 2, generator=1).indices.movedim(-1, dim))


def test_masks_are_never_drawn_and_nothing_allowed_is_marked():
    x = torch.zeros(2, 4)
    where = torch.tensor([[True, False, True, False], [False] * 4])
    drawn = gumbel_max(x, where=where, samples=200, generator=0)
    assert set(drawn[:, 0].tolist()) == {0, 2}
    assert (drawn[:, 1] == -1).all()
    with pytest.raises(RuntimeError):
        x[1].gather(-1, drawn[0, 1:])
    for function in (gumbel_softmax, straight_through, reinmax, rao_blackwell_gumbel):
        p = function(x, where=where, samples=200, generator=0)
        assert not p[:, ~where].any()
        torch.testing.assert_close(p.sum(-1), torch.tensor([1.0, 0.0]).expand(200, 2))
    assert gumbel_max(torch.zeros(2, 0)).tolist() == [-1, -1]


def test_arrays_come_back_as_arrays():
    x = np.zeros((2, 3))
    for given in (x, x.astype(np.float16)):
        p = gumbel_softmax(given, generator=0)
        assert isinstance(p, np.ndarray)
        assert p.dtype == given.dtype
    assert gumbel_max(x, generator=0).dtype == np.int64
    assert isinstance(gumbel_max(x[0], generator=0), np.int64)
    assert isinstance(gumbel_top_k(x, 2, generator=0).indices, np.ndarray)


@pytest.mark.parametrize("tau", [1e-3, 1.0])
def test_no_class_is_taken_twice_where_fewer_are_allowed_than_are_wanted(tau: float):
    x = torch.tensor([[0.0, -torch.inf, 1.0, -torch.inf, 2.0], [-torch.inf] * 5, [3.0, *[-torch.inf] * 4]]).double()
    p = relaxed_top_k(x, 5, tau, generator=1)
    torch.testing.assert_close(p.sum(-1), torch.tensor([3.0, 0.0, 1.0]).double())
    assert p[0, 1] == p[0, 3] == 0
    if tau < 1:
        torch.testing.assert_close(p, (x > -torch.inf).double())
