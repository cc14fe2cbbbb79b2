"""Worst cases far from 0, where ε is less than what a dtype tells apart, and slopes at ε = 0."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor

from conftest import Case, normal
from softmaxima import robust
from softmaxima.engine.contract import find_map
from softmaxima.robust.probabilities import SINKS, SOFTMAX

NORMS = (1.0, 2.0, math.inf)
OFFSETS = (0.0, 1e6, 1e8, 1e14)
norms = pytest.mark.parametrize("norm", NORMS)
offsets = pytest.mark.parametrize("offset", OFFSETS)
kinds = pytest.mark.parametrize("kind", [torch.float32, torch.float64])


def far(offset: float, kind: torch.dtype) -> Tensor:
    """Rows about an offset, as the dtype has them, ties among them."""
    return (torch.tensor([[1.0, 0.0, -1.0], [0.25, 0.5, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64) + offset).to(kind)


def exact(x: Tensor, own: float, others: float) -> list[list[Any]]:
    """Each p_i of softmax of scores that moved by `own`, all others by `others`, in 60 digits."""
    with mpmath.workdps(60):
        found = []
        for row in x.double().tolist():
            top = max(map(mpmath.mpf, row))
            moved = lambda j, by, row=row, top=top: mpmath.exp(mpmath.mpf(row[j]) - top + mpmath.mpf(by))
            n = range(len(row))
            found.append([moved(i, own) / (moved(i, own) + sum(moved(j, others) for j in n if j != i)) for i in n])
        return found


@offsets
@kinds
@pytest.mark.parametrize("eps", [0.0, 1e-3, 0.3])
def test_softmax_is_bounded_on_the_safe_side_and_closely(offset: float, kind: torch.dtype, eps: float):
    x = far(offset, kind)
    slack = 4e-16 if kind == torch.float64 else 0.0  # in float64 they hold to its rounding
    for norm, others in ((math.inf, eps), (1.0, 0.0)):
        worst = robust.worst_probabilities("softmax", x, eps, norm)
        for end, sign in ((worst.lower, -1), (worst.upper, 1)):
            for found, truth in zip(end.double().tolist(), exact(x, sign * eps, -sign * others), strict=True):
                for a, b in zip(found, truth, strict=True):
                    beyond = sign * (mpmath.mpf(a) - b)
                    assert -slack <= beyond <= 3 * torch.finfo(kind).eps


@norms
@kinds
def test_a_constant_changes_nothing(norm: float, kind: torch.dtype, case: Case):
    """Of what it leaves of the scores, which is exact in float64."""
    offset = OFFSETS[-1]
    if not case.claims.shift_invariant:
        pytest.skip("moves with a constant")
    x = far(offset, kind)
    near = x.double() - x.double().amax(-1, keepdim=True)
    for eps in (0.0, 1e-3)[norm == 2.0 :]:
        ends, expected = (robust.worst_probabilities(case.map, each, eps, norm, **case.params) for each in (x, near))
        assert (ends.lower.double() <= expected.lower).all()
        assert (ends.upper.double() >= expected.upper).all()
        tolerance = 4 * torch.finfo(kind).eps * (1 + expected.lower.abs())
        assert ((ends.lower.double() - expected.lower).abs() <= tolerance).all()
        assert ((ends.upper.double() - expected.upper).abs() <= tolerance).all()
    if norm == 2.0 and case.map.name in SOFTMAX:
        return  # a hundred searches
    radius, wide = (robust.probability_radius(case.map, each, 0, 0.2, norm, **case.params) for each in (x, near))
    assert (radius.double() <= wide).all()
    assert ((radius.double() - wide).abs() <= 2 * torch.finfo(kind).eps * wide)[wide.isfinite()].all()


@offsets
@pytest.mark.parametrize("name", SINKS)
def test_maps_that_move_with_a_constant_are_bounded_outward(offset: float, name: str):
    """An ε that the offset rounds away is not lost."""
    worst = robust.worst_probabilities(name, far(offset, torch.float64), 1e-3)
    p = find_map(name)(far(offset, torch.float64))
    assert (worst.lower < p).all()
    assert (worst.upper > p).all()


@norms
@offsets
def test_the_worst_logsumexp_is_where_it_is_without_the_offset(norm: float, offset: float):
    x = far(offset, torch.float64)
    top = x.amax(-1, keepdim=True)
    for smallest in (False, True):
        worst, near = (robust.worst_logsumexp(each, 0.5, norm, smallest=smallest) for each in (x, x - top))
        torch.testing.assert_close(worst.perturbation, near.perturbation, rtol=0, atol=0)
        torch.testing.assert_close(worst.value, near.value + top.squeeze(1), rtol=0, atol=0)


@norms
def test_slopes_at_a_radius_of_0_are_those_from_the_right(norm: float, case: Case):
    """A lower end does not rise with ε, nor an upper one fall, and both move as fast as they do over a step."""
    x, step = torch.cat([normal(8, 4), normal(6, 4, scale=6.0), torch.zeros(1, 4, dtype=torch.float64)]), 1e-7
    radius = torch.zeros(len(x), 1, dtype=torch.float64, requires_grad=True)
    at = robust.worst_probabilities(case.map, x, radius, norm, **case.params)
    beyond = robust.worst_probabilities(case.map, x, step, norm, **case.params)
    for end, moved, sign in ((at.lower, beyond.lower, -1.0), (at.upper, beyond.upper, 1.0)):
        for i in range(4):
            (slope,) = torch.autograd.grad(end[:, i].sum(), radius, retain_graph=True)
            assert (sign * slope >= 0).all()
            found = (moved[:, i] - end[:, i]).detach() / step
            known = -1 if case.map.name == "normmax" else len(x)  # of ties it has a mean of two slopes
            slope, found = slope[:known], found[:known]
            smooth = found.abs() * step < 1e-3  # there is no slope where a map jumps
            torch.testing.assert_close(slope.squeeze(1)[smooth], found[smooth], rtol=1e-4, atol=1e-5)
