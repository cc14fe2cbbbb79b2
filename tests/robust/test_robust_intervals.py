"""Intervals through every map: no scores within the ends give a probability outside, and the ends are attained where it is said."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import softmaxima as sm
from conftest import TOLERANCE, Case, at_most, normal, rows
from softmaxima import robust
from softmaxima.maps import REGISTRY

WIDTHS = st.sampled_from([0.0, 1e-3, 0.3, 2.0, 20.0])
LOOSE = ("normmax", "topp_softmax", "minp_softmax")


def within(low: Tensor, high: Tensor, many: int = 64, seed: int = 0) -> Tensor:
    """Scores [many + corners, n] in the box of a row, corners among them."""
    rng = torch.Generator().manual_seed(seed)
    n = len(low)
    share = torch.rand(many, n, generator=rng, dtype=torch.float64)
    at_corners = torch.rand(many, n, generator=rng) < 0.5
    share = torch.where(at_corners & (torch.arange(many) % 2 == 0).unsqueeze(1), share.round(), share)
    if n <= 6:
        share = torch.cat([share, torch.tensor(list(itertools.product((0.0, 1.0), repeat=n)), dtype=torch.float64)])
    width = torch.where(high > low, high - low, 0.0)
    return torch.where(share == 1, high, low + share * width)


@given(x=rows(), width=WIDTHS, seed=st.integers(0, 1000))
@at_most(24)
def test_no_scores_within_the_ends_are_outside(case: Case, x: Tensor, width: float, seed: int):
    low = x[0]
    high = low + width * torch.rand(low.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    ends = robust.interval(case.map, low, high, **case.params)
    found = case(within(low, high, seed=seed))
    allowed = low > -math.inf
    tolerance = 1e-10 * (1 + ends.lower.masked_fill(~allowed, 0.0).abs())
    assert (found >= ends.lower - tolerance)[:, allowed].all()
    assert (found <= ends.upper + tolerance)[:, allowed].all()
    assert (case.probabilities(low)[~allowed] == 0).all()


def test_a_map_that_claims_to_be_monotone_is(case: Case):
    """p_i rises with x_i alone."""
    if not case.claims.monotone:
        pytest.skip("claims nothing")
    x = normal(500, 6, scale=3.0)
    p = case(x)
    for j, step in itertools.product(range(6), (0.05, 1.0, 6.0)):
        change = case(x.index_add(1, torch.tensor([j]), torch.full((500, 1), step, dtype=torch.float64))) - p
        assert (change[:, j] >= -1e-12).all()
        assert (change[:, torch.arange(6) != j] <= 1e-12).all()


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("normmax", {"alpha": 3.0}),
        ("topp_softmax", {"p": 0.9}),
        ("minp_softmax", {"p": 0.6}),
        ("taylor_softmax", {}),
        ("proportional", {"f": torch.square}),
    ],
)
def test_a_map_that_does_not_claim_it_is_not(name: str, params: dict[str, Any]):
    assert not REGISTRY[name].properties.monotone
    x = normal(2000, 6)
    own = torch.arange(6) == 0
    change = REGISTRY[name](x + own * 0.5, **params) - REGISTRY[name](x, **params)
    assert max(float(change[:, ~own].max()), -float(change[:, own].min())) > 1e-2


@pytest.mark.parametrize("width", [0.1, 1.0, 5.0])
def test_the_ends_of_monotone_maps_are_attained_at_corners(case: Case, width: float):
    if not case.claims.monotone:
        pytest.skip("not monotone")
    low = normal(5)
    high = low + width * torch.rand(5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ends = robust.interval(case.map, low, high, **case.params)
    found = case(within(low, high))
    torch.testing.assert_close(found.amin(0), ends.lower, rtol=0, atol=1e-12)
    torch.testing.assert_close(found.amax(0), ends.upper, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("map", "params"), [("taylor_softmax", {"order": 2}), ("taylor_softmax", {"order": 4}), ("proportional", {"f": torch.square})]
)
@pytest.mark.parametrize("width", [0.3, 4.0])
def test_the_ends_of_ratios_of_convex_functions_are_attained(map: str, params: dict[str, Any], width: float):
    """On a grid of all three scores."""
    low = torch.tensor([-2.5, -1.2, 0.4], dtype=torch.float64)
    grid = torch.linspace(0, width, 61, dtype=torch.float64)
    found = REGISTRY[map](torch.cartesian_prod(*(each + grid for each in low)), **params)
    ends = robust.interval(map, low, low + width, **params)
    torch.testing.assert_close(found.amin(0), ends.lower, rtol=0, atol=2e-3)
    torch.testing.assert_close(found.amax(0), ends.upper, rtol=0, atol=2e-3)
    assert (found.amin(0) >= ends.lower - 1e-12).all()
    assert (found.amax(0) <= ends.upper + 1e-12).all()


@pytest.mark.parametrize("case_name", LOOSE)
def test_loose_intervals_are_narrow_where_scores_are_certain(case_name: str):
    x = normal(100, 6)
    ends = robust.interval(case_name, x, x + 1e-6)
    p = REGISTRY[case_name](x)
    narrow = (ends.upper - ends.lower).amax(1) < 1e-3
    assert narrow.double().mean() > (0.0 if case_name == "normmax" else 0.95)
    assert ((ends.lower <= p + 1e-9) & (p <= ends.upper + 1e-9)).all()
    wide = robust.interval(case_name, x, x + 0.3)
    assert (wide.upper - wide.lower).mean() < 0.5  # between nothing known, 1, and nothing lost


def auto_lirpa(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The bound of softmax that auto_LiRPA publishes (`BoundSoftmax.interval_propagate`, with its ε = 1e-12)."""
    shift = high.amax(-1, keepdim=True)
    light, heavy = (low - shift).exp(), (high - shift).exp()
    lower = light / (heavy.sum(-1, keepdim=True) - heavy + light + 1e-12)
    return lower, heavy / (light.sum(-1, keepdim=True) - light + heavy + 1e-12)


@given(x=rows(masks=False), width=WIDTHS)
def test_as_tight_as_auto_lirpa_or_tighter(x: Tensor, width: float):
    """But where its ε makes its upper end fall below what is attained."""
    ours, theirs = robust.interval("softmax", x, x + width), auto_lirpa(x, x + width)
    assert (ours.lower >= theirs[0] * (1 - 1e-9) - 1e-12).all()
    assert (ours.upper <= theirs[1] + 1e-12 / (theirs[1] + 1e-300) + 1e-9).all() or (theirs[1] <= ours.upper).any()
    wider = ours.upper > theirs[1] * (1 + 1e-9)
    attained = sm.softmax(torch.where(torch.eye(x.shape[1], dtype=torch.bool), (x + width).unsqueeze(1), x.unsqueeze(1)))
    attained = attained.diagonal(dim1=1, dim2=2)
    assert (attained[wider] > theirs[1][wider]).all()  # theirs is no bound there


def test_where_auto_lirpa_fails_this_does_not():
    """A row whose other scores are far below: its upper end is below the probability itself."""
    low, high = torch.tensor([0.0, -60.0], dtype=torch.float64), torch.tensor([40.0, -60.0], dtype=torch.float64)
    truth = sm.softmax(low)
    assert auto_lirpa(low, low)[1][0] < truth[0]
    assert robust.interval("softmax", low, low).upper[0] >= truth[0]
    low_end = auto_lirpa(low, high)[0][0]  # e^−40 beside ε
    assert low_end < 1e-4
    assert robust.interval("softmax", low, high).lower[0] == pytest.approx(1.0)


def test_equal_ends_give_the_map(case: Case):
    x = normal(4, 6)
    ends = robust.interval(case.map, x, x, **case.params)
    if case.map.name not in LOOSE:
        torch.testing.assert_close(ends.lower, case(x), rtol=0, atol=1e-12)
        torch.testing.assert_close(ends.upper, case(x), rtol=0, atol=1e-12)


def test_dtypes_axes_and_arrays_of_intervals(dtype: torch.dtype):
    low = normal(2, 5, 3, dtype=dtype)
    high = (low.double() + 0.5).to(dtype)
    ends = robust.interval("entmax15", low, high, 1, temperature=0.8)
    expected = robust.interval("entmax15", low.movedim(1, -1).double(), high.movedim(1, -1).double(), temperature=0.8)
    assert ends.lower.dtype == dtype
    torch.testing.assert_close(ends.lower.movedim(1, -1).double(), expected.lower, rtol=0, atol=2 * TOLERANCE[dtype])
    torch.testing.assert_close(ends.upper.movedim(1, -1).double(), expected.upper, rtol=0, atol=2 * TOLERANCE[dtype])
    where = torch.tensor([True, False, True, True, True])
    masked = robust.interval("entmax15", low, high, 1, where=where[:, None])
    kept = robust.interval("entmax15", low[:, where], high[:, where], 1)
    assert (masked.upper[:, 1] == 0).all()
    torch.testing.assert_close(masked.lower[:, where], kept.lower)
    of_array = robust.interval(sm.entmax15, low.double().numpy(), high.double().numpy(), 1, temperature=0.8)
    assert isinstance(of_array.lower, np.ndarray)
    np.testing.assert_allclose(of_array.lower, expected.lower.movedim(-1, 1).numpy(), rtol=0, atol=1e-12)


def test_long_rows_are_taken_some_classes_at_a_time(monkeypatch: pytest.MonkeyPatch):
    low = normal(2, 50)
    whole = robust.interval("sparsemax", low, low + 0.5)
    monkeypatch.setattr("softmaxima.robust.intervals.TOGETHER", 700)
    parts = robust.interval("sparsemax", low, low + 0.5)
    torch.testing.assert_close(parts.lower, whole.lower, rtol=0, atol=1e-15)
    torch.testing.assert_close(parts.upper, whole.upper, rtol=0, atol=1e-15)


def test_intervals_are_differentiable():
    low = normal(2, 4).requires_grad_()
    high = (low + 0.4).detach().requires_grad_()
    for name in ("softmax", "entmax15", "taylor_softmax", "topp_softmax", "normmax"):
        assert torch.autograd.gradcheck(lambda low, high, name=name: tuple(robust.interval(name, low, high)), (low, high))


def test_hard_rows_of_intervals(case: Case):
    low = torch.tensor([[-math.inf] * 3, [math.nan, 0.0, 1.0], [2.0, -math.inf, 1.0]], dtype=torch.float64)
    for end in robust.interval(case.map, low, low + 0.5, **case.params):
        p = end.exp() if case.claims.logarithmic else end
        assert (p[0] == 0).all()
        assert p[1].isnan().all()
        assert p[2, 1] == 0
        assert p[2].isfinite().all()


def test_a_network_trained_through_intervals_is_certified():
    """Interval bound propagation through two linear layers and a map, as one writes it."""
    torch.manual_seed(0)
    x = torch.cat([torch.randn(100, 2) * 0.15 + centre for centre in torch.tensor([[0.0, 1.0], [1.0, -0.6], [-1.0, -0.6]])])
    y = torch.arange(3).repeat_interleave(100)
    layers = [torch.nn.Linear(2, 16), torch.nn.Linear(16, 3)]
    optimiser = torch.optim.Adam([p for layer in layers for p in layer.parameters()], 0.02)

    def certified(eps: float) -> Tensor:
        low, high = x - eps, x + eps
        for number, layer in enumerate(layers):
            centre, reach = layer((low + high) / 2), (high - low) / 2 @ layer.weight.abs().T
            low, high = centre - reach, centre + reach
            if number == 0:
                low, high = low.relu(), high.relu()
        return robust.interval("softmax", low, high).lower.gather(1, y.unsqueeze(1)).squeeze(1)

    before = (certified(0.2) > 0.5).float().mean()
    for _ in range(150):
        optimiser.zero_grad()
        (-certified(0.2).clamp_min(1e-6).log()).mean().backward()
        optimiser.step()
    after = (certified(0.2) > 0.5).float().mean()
    assert before < 0.5 < 0.9 < after
    model = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1])
    attacked = robust.attack(model, x, y, 0.2, limits=None, steps=10)
    assert not (attacked.misled & (certified(0.2) > 0.5)).any()


X = normal(2, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: robust.interval("softmax", X + 1, X), r"got 6 that are above it, by up to 1; exchange them"),
        (lambda: robust.interval("softmax", X, X[:1]), r"lower and upper must be of one shape and dtype, got \(2, 3\)"),
        (lambda: robust.interval("softmax", X, X.float()), "lower and upper must be of one shape and dtype"),
        (lambda: robust.interval("softmax", X.clone().fill_(-math.inf), X), "a score must be −∞ in both ends or in neither"),
        (lambda: robust.interval("softmax", X, X.to("meta")), "upper must be on the device of lower, cpu, got meta"),
        (lambda: robust.interval("proportional", X, X, f=torch.abs), r"f must be one whose ends .* got abs; pass one of these"),
    ],
)
def test_intervals_that_are_refused(call: Any, message: str):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_map_that_claims_nothing_is_refused(monkeypatch: pytest.MonkeyPatch):
    from dataclasses import replace

    other = replace(REGISTRY["softmax"], name="other", properties=replace(REGISTRY["softmax"].properties, monotone=False))
    with pytest.raises(ValueError, match="other does not claim to be monotone, and no bounds of it are known"):
        robust.interval(other, X, X)
