"""Worst cases of logsumexp, margins and probabilities: no perturbation is worse, and the one that is told attains it."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import softmaxima as sm
from conftest import TOLERANCE, Case, at_most, normal, rows
from softmaxima import robust

NORMS = (1.0, 2.0, math.inf)
norms = pytest.mark.parametrize("norm", NORMS)
RADII = st.sampled_from([0.0, 1e-3, 0.5, 1.0, 1.7, 4.0, 20.0])
SEEDS = st.integers(0, 1000)


def on_spheres(norm: float, eps: float, many: int, n: int, seed: int = 0) -> Tensor:
    """Perturbations [many, n] of that length: random ones, sparse ones, and corners."""
    rng = torch.Generator().manual_seed(seed)
    delta = torch.randn(many, n, generator=rng, dtype=torch.float64)
    delta[: many // 3] = delta[: many // 3].sign()
    delta[many // 3 : many // 2] *= torch.rand(many // 2 - many // 3, n, generator=rng, dtype=torch.float64) ** 8
    delta[many // 2 :: 3] = torch.eye(n, dtype=torch.float64)[torch.randint(n, (len(delta[many // 2 :: 3]),), generator=rng)]
    delta[many // 2 + 1 :: 6] = delta[many // 2 + 1 :: 6].abs()
    return eps * delta / torch.linalg.vector_norm(delta, norm, -1, keepdim=True)


def literal_logsumexp(x: Tensor) -> Tensor:
    top = x.amax(-1).clamp_min(-1e300)
    return (x - top.unsqueeze(-1)).exp().sum(-1).log() + top


# logsumexp ----------------------------------------------------------------------------------------------------------------------


@norms
@given(x=rows(), eps=RADII, seed=SEEDS)
def test_no_perturbation_makes_logsumexp_greater_or_less(norm: float, x: Tensor, eps: float, seed: int):
    x = x[0]
    greatest, least = (robust.worst_logsumexp(x, eps, norm, smallest=smallest) for smallest in (False, True))
    found = literal_logsumexp(x + on_spheres(norm, eps, 300, len(x), seed))
    assert float(least.value) - 1e-9 <= float(found.min())
    assert float(found.max()) <= float(greatest.value) + 1e-9


@norms
@given(x=rows(), eps=RADII)
def test_the_worst_perturbation_is_attained_within_the_ball(norm: float, x: Tensor, eps: float):
    for smallest in (False, True):
        value, delta, bound = robust.worst_logsumexp(x, eps, norm, smallest=smallest)
        torch.testing.assert_close(value, literal_logsumexp(x + delta), rtol=1e-12, atol=1e-12)
        assert (torch.linalg.vector_norm(delta, norm, -1) <= eps * (1 + 1e-12)).all()
        assert ((x > -math.inf) | (delta == 0)).all()
        assert (bound - value).abs().max() <= 1e-11 * (1 + value.abs().max())


@pytest.mark.parametrize("eps", [0.3, 1.0, 1.5, 2.5, 6.0])
@pytest.mark.parametrize("x", [[0.0] * 6, [1.0, 1.0, 0.9, -3.0, -3.1], [5.0, 0.0], [2.0, 2.0, 1.0, 1.0, 0.0, 0.0, -9.0]])
def test_the_greatest_under_l2_is_that_of_ascent_from_everywhere(x: list[float], eps: float):
    """δ ← ε p/‖p‖ climbs to a local maximum, of which there may be many."""
    scores = torch.tensor(x, dtype=torch.float64)
    delta = on_spheres(2.0, eps, 200, len(x)).abs()
    for _ in range(2000):
        p = (scores + delta).softmax(-1)
        delta = eps * p / p.norm(dim=-1, keepdim=True)
    best = literal_logsumexp(scores + delta).max()
    worst = robust.worst_logsumexp(scores, eps, 2)
    torch.testing.assert_close(worst.value, best, rtol=1e-10, atol=1e-10)
    assert worst.bound >= best - 1e-12


def test_ties_jump_from_all_scores_to_one_as_the_radius_grows():
    """All ten rise together up to a radius, and one alone beyond: log 10 + ε/√10 against log(e^ε + 9) or so."""
    near, far = (robust.worst_logsumexp(torch.zeros(10, dtype=torch.float64), eps, 2).perturbation for eps in (1.0, 5.0))
    torch.testing.assert_close(near, torch.full((10,), 10**-0.5, dtype=torch.float64))
    assert (far > 1).sum() == 1


def test_the_published_attack_gains_nothing_where_the_worst_gains_epsilon():
    """ε·sign(p − mean p), claimed to be the worst under ℓ∞, is 0 at equal scores."""
    x, eps = torch.zeros(2, dtype=torch.float64), 0.3
    p = x.softmax(0)
    claimed = sm.logsumexp(x + eps * (p - p.mean()).sign()) - sm.logsumexp(x)
    ours = robust.worst_logsumexp(x, eps)
    assert float(claimed) == 0
    assert float(ours.value - sm.logsumexp(x)) == pytest.approx(eps, rel=1e-12)
    assert (ours.perturbation == eps).all()
    x = normal(200, 7)
    p = x.softmax(-1)
    claimed = sm.logsumexp(x + eps * (p - p.mean(-1, keepdim=True)).sign()) - sm.logsumexp(x)
    assert (claimed < eps - 1e-3).all()


def test_the_least_under_l1_levels_the_largest_scores():
    x = torch.tensor([3.0, 2.5, 0.0], dtype=torch.float64)
    delta = robust.worst_logsumexp(x, 1.5, 1, smallest=True).perturbation
    torch.testing.assert_close(x + delta, torch.tensor([2.0, 2.0, 0.0], dtype=torch.float64))


@norms
@pytest.mark.parametrize("smallest", [False, True])
def test_gradients_of_the_worst_case_by_scores_and_radius(norm: float, smallest: bool):
    x, eps = normal(3, 4).requires_grad_(), torch.tensor([[0.3], [0.8], [2.0]], dtype=torch.float64, requires_grad=True)
    value = lambda x, eps: robust.worst_logsumexp(x, eps, norm, smallest=smallest, temperature=0.7).value
    assert torch.autograd.gradcheck(value, (x, eps))


@pytest.mark.parametrize("norm", [1.0, math.inf])
@pytest.mark.parametrize("smallest", [False, True])
def test_second_derivatives_where_there_are_some(norm: float, smallest: bool):
    x, eps = normal(3, 4).requires_grad_(), torch.tensor([[0.3], [0.8], [2.0]], dtype=torch.float64, requires_grad=True)
    value = lambda x, eps: robust.worst_logsumexp(x, eps, norm, smallest=smallest).value
    assert torch.autograd.gradgradcheck(value, (x, eps))
    ends = lambda x, eps: robust.worst_probabilities("softmax", x, eps, norm)[:2]
    assert torch.autograd.gradgradcheck(ends, (x, eps))


@pytest.mark.parametrize("name", ["worst_logsumexp", "worst_probabilities"])
def test_second_derivatives_that_would_be_wrong_are_refused(name: str):
    """The point is held fixed, which only the first derivative may do."""
    x = normal(4).requires_grad_()
    arguments: tuple[Any, ...] = (x, 0.5, 2) if name == "worst_logsumexp" else ("softmax", x, 0.5, 2)
    value = getattr(robust, name)(*arguments)[0].sum()
    torch.autograd.grad(value, x, retain_graph=True)
    with pytest.raises(NotImplementedError, match=f"{name}: under ℓ2 there is a first derivative alone"):
        torch.autograd.grad(value, x, create_graph=True)


@norms
@pytest.mark.parametrize("smallest", [False, True])
def test_directions_and_slopes_at_radii_of_any_size(norm: float, smallest: bool):
    """At ε → 0 the direction of steepest change, at 0 the derivative by ε from the right; far out δ of length ε."""
    x = torch.tensor([1.0, 0.5, 0.2], dtype=torch.float64)
    p, sign = x.softmax(0), -1.0 if smallest else 1.0
    slope = sign * {1.0: p.max(), 2.0: p.norm(), math.inf: torch.tensor(1.0, dtype=torch.float64)}[norm]
    for eps in (0.0, 1e-300, 1e-100, 1e-16):
        radius = torch.tensor(eps, dtype=torch.float64, requires_grad=True)
        worst = robust.worst_logsumexp(x, radius, norm, smallest=smallest)
        torch.testing.assert_close(torch.autograd.grad(worst.value, radius)[0], slope, rtol=1e-12, atol=0)
        if norm == 2.0 and eps:
            torch.testing.assert_close(worst.perturbation / eps, sign * p / p.norm(), rtol=1e-10, atol=0)
    for eps in (1e100, 1e155, 1e280):
        delta = robust.worst_logsumexp(x, eps, norm, smallest=smallest).perturbation / eps
        assert float(torch.linalg.vector_norm(delta, norm)) == pytest.approx(1.0, rel=1e-12)


@norms
def test_what_is_said_of_narrow_scores_is_rounded_outward(norm: float, dtype: torch.dtype):
    x, eps = normal(60, 5, dtype=dtype), 0.3
    wide = robust.worst_logsumexp(x.double(), eps, norm)
    narrow = robust.worst_logsumexp(x, eps, norm)
    assert (narrow.bound.double() >= wide.bound).all()
    assert (torch.linalg.vector_norm(narrow.perturbation.double(), norm, -1) <= eps * (1 + 1e-14)).all()
    assert (robust.worst_margin(x, 0, eps, norm).double() <= robust.worst_margin(x.double(), 0, eps, norm)).all()
    ends, exact = (robust.worst_probabilities("entmax15", each, eps, norm) for each in (x, x.double()))
    assert (ends.lower.double() <= exact.lower).all()
    assert (ends.upper.double() >= exact.upper).all()


def test_nothing_is_said_of_rows_with_infinity():
    for norm in NORMS:
        worst = robust.worst_probabilities("softmax", torch.tensor([math.inf, 0.0]), 0.5, norm)
        assert worst.lower.isnan().all()
        assert worst.upper.isnan().all()


def test_many_rows_are_taken_some_at_a_time(monkeypatch: pytest.MonkeyPatch):
    x = normal(40, 9)
    whole = robust.worst_logsumexp(x, 3.0, 2)
    monkeypatch.setattr("softmaxima.robust.stationary.MOST", 32 * 9 * 7)
    parts = robust.worst_logsumexp(x, 3.0, 2)
    torch.testing.assert_close(parts.value, whole.value, rtol=1e-12, atol=0)
    assert (parts.bound >= parts.value).all()


def test_a_long_row_under_l2():
    x = normal(1, 65_537, scale=1.0)
    value, delta, bound = robust.worst_logsumexp(x, 2.0, 2)
    torch.testing.assert_close(value, literal_logsumexp(x + delta), rtol=1e-12, atol=0)
    assert value >= robust.worst_logsumexp(x, 2.0, 1).value  # whose ball is within
    assert bound - value < 1e-9


@norms
def test_hard_rows_of_the_worst_logsumexp(norm: float):
    x = torch.tensor([[-math.inf] * 3, [math.nan, 0.0, 1.0], [math.inf, 0.0, 1.0], [2.0, -math.inf, 1.0]], dtype=torch.float64)
    for smallest in (False, True):
        x.requires_grad_()
        value, delta, _ = robust.worst_logsumexp(x, 2.0, norm, smallest=smallest)
        assert value[0] == -math.inf
        assert value[1].isnan()
        assert value[2] == math.inf
        assert value[3].isfinite()
        assert (delta[x == -math.inf] == 0).all()
        (gradient,) = torch.autograd.grad(value[[0, 3]].nan_to_num(neginf=0).sum(), x)
        assert (gradient[0] == 0).all()
        assert gradient[3, 1] == 0


@norms
def test_offsets_spreads_dtypes_and_axes(norm: float, dtype: torch.dtype):
    x = normal(4, 6, dtype=dtype)
    value, delta, _ = robust.worst_logsumexp(x.T, 1.5, norm, 0)
    expected = robust.worst_logsumexp(x.double(), 1.5, norm)
    assert value.dtype == delta.dtype == dtype
    torch.testing.assert_close(value.double(), expected.value, rtol=4 * TOLERANCE[dtype], atol=0)
    torch.testing.assert_close(delta.T.double(), expected.perturbation, rtol=0, atol=4 * TOLERANCE[dtype])
    for scale, shift in ((1e-3, 0.0), (1e5, 0.0), (1.0, 1e6), (1.0, -1e6)):
        z = scale * normal(4, 6) + shift
        value, delta, _ = robust.worst_logsumexp(z, 1.5, norm)
        torch.testing.assert_close(value, literal_logsumexp(z + delta), rtol=1e-12, atol=0)


def test_arrays_numbers_and_temperatures():
    x = normal(2, 3)
    of_array = robust.worst_logsumexp(x.numpy(), 0.5, 2, temperature=2.0, where=np.array([True, True, False]))
    assert isinstance(of_array.value, np.ndarray)
    of_tensor = robust.worst_logsumexp(x[:, :2] / 2.0, 0.25, 2)
    np.testing.assert_allclose(of_array.value, of_tensor.value.numpy(), rtol=1e-14)
    np.testing.assert_allclose(of_array.perturbation[:, :2], 2 * of_tensor.perturbation.numpy(), rtol=1e-12)
    assert float(robust.worst_logsumexp(torch.tensor(1.0), 0.5).value) == 1.5
    assert robust.worst_logsumexp(torch.zeros(3, 0), 1.0, 2).value.tolist() == [-math.inf] * 3


# Margins ------------------------------------------------------------------------------------------------------------------------


@norms
@given(x=rows(), eps=RADII, seed=SEEDS)
def test_no_perturbation_makes_a_margin_less_and_one_attains_it(norm: float, x: Tensor, eps: float, seed: int):
    x, n = x[0], x.shape[1]
    worst = float(robust.worst_margin(x, 0, eps, norm))
    if n == 1:
        assert worst == math.inf
        return
    margin = lambda x: x[..., 0] - x[..., 1:].amax(-1)
    if worst == math.inf:
        assert (x[1:] == -math.inf).all()
        return
    assert float(margin(x + on_spheres(norm, eps, 300, n, seed)).min()) >= worst - 1e-9 * (1 + abs(worst))
    share = {1.0: 0.5, 2.0: 0.5**0.5, math.inf: 1.0}[norm]
    pair = torch.zeros(n, dtype=torch.float64)
    pair[0], pair[1 + int(x[1:].argmax())] = -eps * share, eps * share
    assert float(margin(x + pair)) == pytest.approx(worst, rel=1e-12, abs=1e-9)


def test_margins_of_masked_targets_and_lone_scores():
    x = torch.tensor([[-math.inf, 1.0], [1.0, -math.inf], [-math.inf, -math.inf], [math.nan, 1.0]])
    assert robust.worst_margin(x, 0, 0.5).tolist()[:3] == [-math.inf, math.inf, -math.inf]
    assert robust.worst_margin(x, 0, 0.5)[3].isnan()


# Probabilities ------------------------------------------------------------------------------------------------------------------


@norms
@given(x=rows(), eps=RADII, seed=SEEDS)
@at_most(12)
def test_no_perturbation_moves_a_probability_further(norm: float, case: Case, x: Tensor, eps: float, seed: int):
    x = x[0]
    worst = robust.worst_probabilities(case.map, x, eps, norm, **case.params)
    found = case(x + on_spheres(norm, eps, 120, len(x), seed))
    tolerance = 1e-9 * (1 + worst.lower.masked_fill(x == -math.inf, 0.0).abs())
    allowed = x > -math.inf
    assert (found >= worst.lower - tolerance)[:, allowed].all()
    assert (found <= worst.upper + tolerance)[:, allowed].all()


@norms
@pytest.mark.parametrize("eps", [0.05, 0.6, 3.0])
def test_what_is_exact_is_attained(norm: float, eps: float, case: Case):
    """By ascent on the scores from several points, and the corners of the ball."""
    x = normal(5, seed=3)
    worst = robust.worst_probabilities(case.map, x, eps, norm, **case.params)
    if not worst.exact:
        assert not case.map.properties.monotone or norm != math.inf
        return
    candidates = [on_spheres(norm, eps, 50, 5)]
    for i in range(5):
        own = torch.eye(5, dtype=torch.float64)[i]
        candidates += [sign * direction[None] for sign in (-eps, eps) for direction in (own, 2 * own - 1)] if norm != 2 else []
        for sign in (-1.0, 1.0):
            delta = on_spheres(norm, eps, 8, 5, seed=i) if norm == 2.0 else torch.zeros(1, 5, dtype=torch.float64)
            for _ in range(400 if norm == 2.0 else 0):
                others = (x + delta).masked_fill(own.bool(), -math.inf).softmax(-1)
                delta = -sign * eps * (others - own) / (others - own).norm(dim=-1, keepdim=True)
            candidates.append(delta)
    delta = torch.cat(candidates)
    delta = torch.cat([delta, delta * torch.rand(delta.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)])
    on_a_grid = case.map.name in ("taylor_softmax", "proportional")
    if on_a_grid:
        z = torch.linspace(-eps, eps, 4001, dtype=torch.float64)
        delta = torch.cat([delta, *(of_extremes(case, x, i, z) for i in range(5))])
    found = case(x + delta[torch.linalg.vector_norm(delta, norm, -1) <= eps * (1 + 1e-12)])
    tolerance = 1e-6 if on_a_grid else 1e-9
    torch.testing.assert_close(found.amin(0), worst.lower, rtol=0, atol=tolerance)
    torch.testing.assert_close(found.amax(0), worst.upper, rtol=0, atol=tolerance)


def of_extremes(case: Case, x: Tensor, i: int, z: Tensor) -> Tensor:
    """Perturbations that bring f of each score to its least or greatest, on a grid: p_i against a second score that stays."""
    f = lambda x: case(torch.stack([x, torch.ones_like(x)], -1))[..., 0]  # rises with f(x)
    least, most = (torch.stack([z[getattr(f(each + z), end)()] for each in x]) for end in ("argmin", "argmax"))
    own = torch.arange(5) == i
    return torch.stack([torch.where(own, least, most), torch.where(own, most, least)])


@norms
def test_gradients_of_worst_probabilities(norm: float):
    x, eps = normal(2, 4).requires_grad_(), torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    for name in ("softmax", "log_softmax", "entmax15", "sparsemax", "elastic_softmax"):
        assert torch.autograd.gradcheck(lambda x, eps, name=name: robust.worst_probabilities(name, x, eps, norm)[:2], (x, eps))


@norms
def test_hard_rows_of_probabilities(norm: float, case: Case):
    x = torch.tensor(
        [[-math.inf] * 3, [math.nan, 0.0, 1.0], [2.0, -math.inf, 1.0], [1.0, -math.inf, -math.inf]], dtype=torch.float64
    )
    x.requires_grad_()
    ends = robust.worst_probabilities(case.map, x, 0.5, norm, **case.params)[:2]
    for end in ends:
        p = end.exp() if case.claims.logarithmic else end
        assert (p[0] == 0).all()
        assert p[1].isnan().all()
        assert p[2].isfinite().all()
        assert p[2, 1] == p[3, 1] == 0
        (gradient,) = torch.autograd.grad(p[[0, 2, 3]].sum(), x, retain_graph=True)
        assert (gradient[x == -math.inf] == 0).all()
        assert gradient[[0, 2, 3]].isfinite().all()


def test_parameters_and_temperatures_of_each_row():
    x = normal(3, 2, 4)
    alpha, eps = (
        torch.tensor([1.2, 1.5, 2.0], dtype=torch.float64).reshape(3, 1, 1),
        torch.tensor([[0.1], [0.7]], dtype=torch.float64),
    )
    tau = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64).reshape(3, 1, 1)
    for norm in NORMS:
        worst = robust.worst_probabilities("entmax", x, eps, norm, alpha=alpha, temperature=tau)
        for i in range(3):
            for j in range(2):
                options: dict[str, Any] = {"alpha": float(alpha[i, 0, 0]), "temperature": float(tau[i, 0, 0])}
                one = robust.worst_probabilities("entmax", x[i, j], float(eps[j, 0]), norm, **options)
                torch.testing.assert_close(worst.lower[i, j], one.lower)
                torch.testing.assert_close(worst.upper[i, j], one.upper)


X = normal(2, 3)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: robust.worst_logsumexp(X, -0.1), ValueError, "radius must be at least 0 and finite, got -0.1"),
        (lambda: robust.worst_logsumexp(X, math.inf), ValueError, "radius must be at least 0 and finite, got inf"),
        (lambda: robust.worst_logsumexp(X, torch.tensor([[0.1], [-1.0]])), ValueError, "radius must be at least 0 and finite"),
        (lambda: robust.worst_logsumexp(X, torch.ones(2)), ValueError, "radius must broadcast against scores of shape"),
        (lambda: robust.worst_logsumexp(X, cast(Any, "a")), TypeError, "radius must be at least 0 and finite, got the string 'a'"),
        (lambda: robust.worst_logsumexp(X, 0.1, 3), ValueError, "norm must be 1, 2 or math.inf, got 3; pass one of these"),
        (lambda: robust.worst_logsumexp(X, 0.1, smallest=cast(Any, 1)), TypeError, "smallest must be True or False"),
        (lambda: robust.worst_logsumexp(X.long(), 0.1), TypeError, "scores must be float64"),
        (lambda: robust.worst_logsumexp(X, 0.1, dim=2), IndexError, "dim must be in"),
        (lambda: robust.worst_margin(X, 3, 0.1), ValueError, r"target must be in \[0, 2\], got 3"),
        (lambda: robust.worst_margin(X, torch.zeros(3, dtype=torch.int64), 0.1), ValueError, "target must be one class a row"),
        (lambda: robust.worst_margin(X, torch.zeros(2), 0.1), TypeError, "target must be class numbers of an integer dtype"),
        (lambda: robust.worst_probabilities("softmx", X, 0.1), ValueError, "unknown map 'softmx'; did you mean 'softmax'"),
        (
            lambda: robust.worst_probabilities("softmax", X, 0.1, alpha=2),
            TypeError,
            "unknown argument 'alpha'; it goes with a map that has it, as in map=.entmax., alpha=",
        ),
        (lambda: robust.worst_probabilities("proportional", X, 0.1, f=torch.abs), ValueError, "f must be one whose ends"),
    ],
)
def test_what_is_refused(call: Any, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        call()
