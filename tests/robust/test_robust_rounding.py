"""Certificates hold in exact arithmetic, of numbers of every size; and numbers of which they would not are refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from conftest import DTYPES, Case, at_most, exhaustively
from softmaxima import robust

NORMS = (1.0, 2.0, math.inf)
norms = pytest.mark.parametrize("norm", NORMS)
kinds = pytest.mark.parametrize("kind", DTYPES, ids=str)
LARGEST = 2.0**960

# Near one another, far from 0, of many sizes, subnormal.
SIZES = st.sampled_from([1.0, 1.0, 1e-3, 3e4, 1e14, 1e-30, 1e200, LARGEST / 4, 5e-324, 1e-310, 6e-8])
SCORES = st.builds(lambda size, numbers, offset: [size * number + offset for number in numbers], SIZES, st.lists(
    st.floats(-2, 2) | st.sampled_from([0.0, 1.0, 1 / 3]), min_size=2, max_size=5
), st.sampled_from([0.0, 0.0, 1.0, -1e6, 1e14, 1e280]))  # fmt: skip
RADII = st.floats(0, 3) | st.builds(lambda size, share: size * share, SIZES, st.sampled_from([0.0, 1.0, 0.3, 2.0]))


def as_given(scores: list[float], kind: torch.dtype) -> Tensor:
    return torch.tensor(scores, dtype=torch.float64).clamp(-LARGEST, LARGEST).to(kind).nan_to_num()


def exactly(x: Tensor) -> list[Fraction]:
    return [Fraction(v) for v in x.double().tolist()]


def slope_of(norm: float) -> Fraction:
    """2, √2 or 1, the root from below."""
    return {math.inf: Fraction(2), 2.0: Fraction(math.isqrt(2 * 10**120), 10**60), 1.0: Fraction(1)}[norm]


@norms
@kinds
@given(scores=SCORES, eps=RADII, lipschitz=st.floats(0.1, 1e3) | SIZES)
@at_most(80)
def test_margins_and_their_radii_are_rounded_down(
    norm: float, kind: torch.dtype, scores: list[float], eps: float, lipschitz: float
):
    x = as_given(scores, kind)
    own, *others = exactly(x)
    margin, c = own - max(others), slope_of(norm)
    worst = robust.worst_margin(x, 0, eps, norm).double()
    expected = margin - c * Fraction(eps)
    digits = 0 if norm != 2.0 else Fraction(eps) / 10**50  # of the root
    if worst.isfinite():
        assert Fraction(worst.item()) <= expected + digits
    close = Fraction(4 * torch.finfo(kind).eps)
    if abs(expected) < torch.finfo(kind).max:
        assert expected - Fraction(worst.item()) <= max(abs(expected) * close, Fraction(eps) / 2**50, Fraction(step_from_0(kind)))
    radius = robust.certified_radius(x, 0, norm, lipschitz=lipschitz).double()
    expected = max(margin, Fraction(0)) / (c * Fraction(lipschitz))
    assert radius >= 0
    assert Fraction(radius.item()) <= expected * (1 + (0 if norm != 2.0 else Fraction(1, 10**50)))
    if expected < torch.finfo(kind).max:
        assert expected - Fraction(radius.item()) <= expected * close + Fraction(step_from_0(kind))


def step_from_0(kind: torch.dtype) -> float:
    zero = torch.zeros((), dtype=kind)
    return 2 * torch.nextafter(zero, zero + 1).item()


def test_what_is_exact_is_not_rounded():
    x = torch.tensor([3.0, 1.0, 0.5], dtype=torch.float64)
    assert robust.worst_margin(x, 0, 0.25).item() == 1.5
    assert robust.certified_radius(x).item() == 1
    assert robust.certified_radius(x, norm=1, lipschitz=4.0).item() == 0.5
    assert robust.worst_margin(x, 0, 0.0, 2).item() == 2


@norms
@kinds
@pytest.mark.parametrize("smallest", [False, True])
@given(scores=SCORES, eps=RADII, tau=st.sampled_from([1.0, 1.0, 0.3, 7.0]))
@at_most(24)
def test_no_perturbation_gives_a_logsumexp_beyond_the_bound(
    norm: float, kind: torch.dtype, smallest: bool, scores: list[float], eps: float, tau: float
):
    x = as_given(scores, kind) / 8  # with room for τ
    worst = robust.worst_logsumexp(x, eps / 8, norm, smallest=smallest, temperature=tau)
    sign = -1 if smallest else 1
    assert sign * worst.bound.double() >= sign * worst.value.double()
    with mpmath.workdps(700):  # of numbers from 5e-324 to 2**960
        found = exact_extreme([mpmath.mpf(v) for v in x.double().tolist()], mpmath.mpf(eps / 8), norm, smallest, mpmath.mpf(tau))
        assert sign * (mpmath.mpf(worst.bound.item()) - found) >= 0


def exact_extreme(x: list[Any], eps: Any, norm: float, smallest: bool, tau: Any) -> Any:
    """Of LSE((x + δ)/τ): under ℓ2 that of a point of the ball, which is not the extreme but near it."""
    sign, top = -1 if smallest else 1, max(x)
    if norm == math.inf:
        delta = [sign * eps] * len(x)
    elif norm == 1 and not smallest:
        delta = [eps if i == x.index(top) else mpmath.mpf(0) for i in range(len(x))]
    elif norm == 1:
        ordered, total, level = sorted(x, reverse=True), mpmath.mpf(0), top
        for k, v in enumerate(ordered, 1):  # the largest k are levelled, where they come to lie above the next
            total += v
            level = (total - eps) / k
            if k == len(x) or level >= ordered[k]:
                break
        delta = [min(level - v, mpmath.mpf(0)) for v in x]
    else:
        delta = [mpmath.mpf(0)] * len(x)
        for _ in range(30):
            weights = [mpmath.exp((v + d - top) / tau) for v, d in zip(x, delta, strict=True)]
            length = mpmath.sqrt(sum(w * w for w in weights))
            delta = [sign * eps * w / length for w in weights]
    moved = [(v + d) / tau for v, d in zip(x, delta, strict=True)]
    most = max(moved)
    return most + mpmath.log(sum(mpmath.exp(max(v - most, mpmath.mpf(-2000))) for v in moved))


# Of any size --------------------------------------------------------------------------------------------------------------------

ROWS = torch.tensor([[0.75, 0.25, -0.5, 0.125], [-0.25, -0.375, 0.5, 0.5], [0.0, -0.5, -0.25, -0.75]], dtype=torch.float64)
CALLS: dict[str, Callable[[Tensor, float, float], Tensor]] = {
    "worst_logsumexp": lambda x, eps, norm: robust.worst_logsumexp(x, eps, norm).value,
    "least logsumexp": lambda x, eps, norm: robust.worst_logsumexp(x, eps, norm, smallest=True).bound,
    "worst_margin": lambda x, eps, norm: robust.worst_margin(x, 0, eps, norm),
    "certified_radius": lambda x, eps, norm: robust.certified_radius(x, norm=norm),
}
NEAR, FAR = 2.0**880, (2.0**930, 2.0**958, 2.0**960)


@norms
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_what_is_of_the_size_of_scores_grows_with_them(norm: float, call: Callable[[Tensor, float, float], Tensor]):
    near = call(ROWS * NEAR, 0.25 * NEAR, norm) / NEAR
    for size in FAR:
        torch.testing.assert_close(call(ROWS * size, 0.25 * size, norm) / size, near, rtol=1e-12, atol=1e-12)


@norms
def test_probabilities_and_their_radii_are_those_of_smaller_scores(norm: float, case: Case):
    ends = lambda size: robust.worst_probabilities(case.map, ROWS * size, 0.25 * size, norm, **case.params)
    radius = lambda size: robust.probability_radius(case.map, ROWS * size, 0, 0.2, norm, **case.params) / size
    near, far = ends(NEAR), ends(LARGEST)
    if case.claims.logarithmic:
        near, far = (type(each)(each.lower / size, each.upper / size, each.exact) for each, size in ((near, NEAR), (far, LARGEST)))
    torch.testing.assert_close(far.lower, near.lower, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(far.upper, near.upper, rtol=1e-9, atol=1e-12)
    assert not far.lower.isnan().any()
    if norm != 2.0:
        torch.testing.assert_close(radius(LARGEST), radius(NEAR), rtol=1e-9, atol=1e-12)
        assert not radius(LARGEST).isnan().any()


BEYOND = (1e289, 1e292, 1e300, 1.7e308)
REFUSED: dict[str, Callable[[float], Any]] = {
    "worst_logsumexp": lambda size: robust.worst_logsumexp(ROWS * size, 0.1),
    "worst_logsumexp of a radius": lambda size: robust.worst_logsumexp(ROWS, 2 * (size / 2)),
    "worst_margin": lambda size: robust.worst_margin(ROWS * size, 0, 0.1),
    "worst_margin of a radius": lambda size: robust.worst_margin(ROWS, 0, size),
    "certified_radius": lambda size: robust.certified_radius(ROWS * size),
    "worst_probabilities": lambda size: robust.worst_probabilities("softmax", ROWS * size, 0.1),
    "worst_probabilities of a radius": lambda size: robust.worst_probabilities("softmax", ROWS, size),
    "probability_radius": lambda size: robust.probability_radius("softmax", ROWS * size, 0, 0.5),
    "probability_radius over τ": lambda size: robust.probability_radius("softmax", ROWS, 0, 0.5, temperature=max(1 / size, 1e-300)),
    "interval": lambda size: robust.interval("softmax", -ROWS.abs() * size, ROWS.abs()),
    "attack": lambda size: robust.attack(torch.nn.Linear(4, 3).double(), ROWS.abs(), torch.zeros(3).long(), size),
    "attack of inputs": lambda size: robust.attack(
        torch.nn.Linear(4, 3).double(), ROWS * size, torch.zeros(3).long(), 0.1, limits=None
    ),
}


@pytest.mark.parametrize("size", BEYOND)
@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_numbers_too_large_for_sums_are_refused(call: Callable[[float], Any], size: float):
    with pytest.raises(ValueError, match=r"must be at most 2\^960 = 9\.7e\+288 in size"):
        call(2 * size if size < 1e300 else size)


def test_a_radius_is_refused_with_the_temperature_that_makes_it_large():
    tau = torch.tensor([[1e-200], [1.0], [1.0]], dtype=torch.float64, requires_grad=True)
    for call in (
        lambda: robust.worst_logsumexp(ROWS, 1e200, temperature=tau),
        lambda: robust.worst_probabilities("softmax", ROWS, 1e200, temperature=tau),
    ):
        with pytest.raises(ValueError, match=r"radius must be at most 2\^960 .* got 1e\+200 over 1e-200;"):
            call()


def test_where_values_cannot_be_read_large_numbers_become_nan():
    x = torch.stack([ROWS, ROWS * 1e300])
    worst = torch.func.vmap(lambda x: robust.worst_margin(x, torch.zeros(3, dtype=torch.int64), 0.1))(x)
    assert worst[0].isfinite().all()
    assert worst[1, :2].isnan().all()


@norms
@pytest.mark.parametrize("smallest", [False, True])
@given(
    scores=SCORES,
    eps=st.builds(lambda size, share: size * share, st.sampled_from([1e-320, 1e-300, 1e-3, 1.0, 300.0]), st.floats(0.1, 1)),
    tau=st.sampled_from([1.0, 3.0, 0.7, 1000.0]),
)
@at_most(60)
def test_perturbations_are_in_the_ball(norm: float, smallest: bool, scores: list[float], eps: float, tau: float):
    x = torch.tensor(scores, dtype=torch.float64).clamp(-1e200, 1e200)
    delta = [abs(v) for v in exactly(robust.worst_logsumexp(x, eps, norm, smallest=smallest, temperature=tau).perturbation)]
    r = Fraction(eps)
    assert {math.inf: max(delta) <= r, 2.0: sum(v**2 for v in delta) <= r**2, 1.0: sum(delta) <= r}[norm]


def test_attacked_inputs_are_in_the_ball_where_a_difference_rounds():
    model = lambda x: torch.cat([x, 1.5 - x], -1)
    found = robust.attack(model, torch.full((1, 1), 0.3, dtype=torch.float64), torch.tensor([1]), 0.7, steps=3)
    assert found.inputs.item() == math.nextafter(1.0, 0.0)  # 0.3 + 0.7 is 1 when rounded, but beyond 0.7 from 0.3


@norms
def test_temperatures_learn_beside_a_mask(norm: float):
    x, tau = torch.tensor([[0.3, 0.0, -0.1]], dtype=torch.float64), torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    masked = torch.cat([x, torch.full((1, 1), -math.inf, dtype=torch.float64)], -1)
    for call in (
        lambda x: robust.worst_logsumexp(x, 0.1, norm, temperature=tau).value,
        lambda x: robust.worst_probabilities("softmax", x, 0.1, norm, temperature=tau).upper[..., 0],
        lambda x: robust.worst_probabilities("sparsemax", x, 0.1, norm, temperature=tau).lower[..., 0],
        lambda x: robust.interval("softmax", x, x + 0.1, temperature=tau).upper[..., 0],
    ):
        slopes = [torch.autograd.grad(call(rows).sum(), tau)[0] for rows in (masked, x)]
        torch.testing.assert_close(*slopes)
        assert slopes[0] != 0


@norms
@pytest.mark.parametrize("far", [-1e9, *(exhaustively(far) for far in (-torch.finfo(torch.float32).max, -1e19, -math.inf))])
@pytest.mark.parametrize("name", ["softmax", "sparsemax"])
def test_a_radius_has_its_digits_beside_a_score_far_below(norm: float, far: float, name: str):
    x = torch.tensor([3.0, 1.0, far], dtype=torch.float64)
    alone = robust.probability_radius(name, x[:2], 0, 0.5, norm)
    torch.testing.assert_close(robust.probability_radius(name, x, 0, 0.5, norm), alone, rtol=1e-12, atol=0)


@pytest.mark.parametrize("statistic", ["entropy", "energy"])
@pytest.mark.parametrize("tau", [1e-8, 1e-3, 1.0, 1e3])
@given(scores=st.lists(st.floats(-1, 1), min_size=2, max_size=6))
@at_most(20)
def test_alike_rows_are_not_suspected_however_many_they_are(statistic: str, tau: float, scores: list[float]):
    row = tau * torch.tensor([[10.0 * scores[0], *scores[1:]]], dtype=torch.float64)
    detector = robust.fit_detector(row.expand(26, -1), statistic, temperature=tau)
    assert not any(bool(detector(row.expand(count, -1)).any()) for count in (1, 2, 3, 4, 5, 8, 33))
