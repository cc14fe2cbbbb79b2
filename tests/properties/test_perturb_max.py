"""perturb_max beside the integral of each score alone, by scipy, beside samples, and beside softmax; and its conjugate loss."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch
from torch.autograd import gradcheck, gradgradcheck

import softmaxima as sm
from conftest import exhaustively, normal
from softmaxima.maps.perturb_max import PERTURB_MAX

EXACT: dict[Any, Any] = {
    "normal": scipy.stats.norm,
    "gumbel": scipy.stats.gumbel_r,
    "logistic": scipy.stats.logistic,
    "laplace": scipy.stats.laplace,
    "uniform": scipy.stats.uniform,
    "exponential": scipy.stats.expon,
    ("student_t", 0.5): scipy.stats.t(0.5),
    ("student_t", 1.0): scipy.stats.t(1.0),
    ("student_t", 3.0): scipy.stats.t(3.0),
    ("student_t", 30): scipy.stats.t(30.0),
    ("student_t", 100): scipy.stats.t(100.0),
}
TORCH: list[Any] = [
    (torch.distributions.Normal(0.5, 2.0), scipy.stats.norm(0.5, 2.0)),
    (torch.distributions.Gamma(torch.tensor(2.5).double(), torch.tensor(1.0).double()), scipy.stats.gamma(2.5)),
    (torch.distributions.Exponential(2.0), scipy.stats.expon(scale=0.5)),
    (torch.distributions.Uniform(-1.0, 3.0), scipy.stats.uniform(-1.0, 4.0)),
    exhaustively(torch.distributions.Cauchy(0.0, 2.0), scipy.stats.cauchy(0.0, 2.0)),
    exhaustively(torch.distributions.StudentT(4.0, 1.0, 0.5), scipy.stats.t(4.0, 1.0, 0.5)),
    (torch.distributions.HalfNormal(1.0), scipy.stats.halfnorm),
    (torch.distributions.Laplace(0.0, 1.0), scipy.stats.laplace),
    (torch.distributions.Gumbel(0.0, 1.0), scipy.stats.gumbel_r),
]
QUICK = (*(noise for noise in EXACT if isinstance(noise, str)), ("student_t", 3.0))


def some(noises: Any) -> Any:
    """Those of them, Student's t of all but one order where everything is tried."""
    return [noise if noise in QUICK else exhaustively(noise) for noise in noises]


NOISES = pytest.mark.parametrize("noise", some(EXACT), ids=str)
NAMES = QUICK[:-1]
MILD = pytest.mark.parametrize(
    "noise", some(noise for noise in EXACT if noise not in (("student_t", 0.5), ("student_t", 1.0))), ids=str
)


def integrals(x: np.ndarray, law: Any, places: list[float]) -> np.ndarray:
    """∫ f(z − x_i) Π_{j≠i} F(z − x_j) dz, each by itself, on panels of Gauss from the kinks out."""
    points, weights = np.polynomial.legendre.leggauss(20)
    spread = float(law.ppf(0.75) - law.ppf(0.25))
    steps = spread * 0.2 * np.concatenate((np.arange(1, 15), 15 * 1.3 ** np.arange(330)))
    steps = steps[steps < 1e30]
    low, high = x.max() + max(law.support()[0], -1e30), x.max() + min(law.support()[1], 1e30)
    edges = [c + s + k for c in x for k in (*places, float(law.median())) for s in (*-steps, 0.0, *steps)]
    edges = np.unique(np.clip(edges, low, high))
    half = np.diff(edges)[:, None] / 2
    z, w = ((edges[1:] + edges[:-1])[:, None] / 2 + half * points).ravel(), (half * weights).ravel()
    with np.errstate(all="ignore"):
        below = np.stack([law.cdf(z - v) for v in x])
        density = [np.nan_to_num(law.pdf(z - v)) for v in x]
    return np.array([(w * density[i] * np.delete(below, i, 0).prod(0)).sum() for i in range(len(x))])


@NOISES
def test_it_is_the_integral(noise: Any):
    rng = np.random.default_rng(0)
    places = [0.0, 1.0] if noise == "uniform" else [0.0]
    for n, size in itertools.product((1, 2, 5, 12), (0.1, 1.0, 8.0)):
        x = size * rng.standard_normal(n)
        found = sm.perturb_max(torch.from_numpy(x), noise=noise).numpy()
        np.testing.assert_allclose(found, integrals(x, EXACT[noise], places), rtol=0, atol=1e-13)


@pytest.mark.parametrize(("noise", "law"), TORCH, ids=lambda v: str(v) if isinstance(v, torch.distributions.Distribution) else "")
def test_it_takes_distributions(noise: Any, law: Any):
    rng = np.random.default_rng(0)
    places = [v for v in law.support() if math.isfinite(v)] or [0.0]
    for n, size in itertools.product((1, 2, 5, 12), (0.1, 1.0, 8.0)):
        x = size * rng.standard_normal(n)
        found = sm.perturb_max(torch.from_numpy(x), noise=noise).numpy()
        np.testing.assert_allclose(found, integrals(x, law, places), rtol=0, atol=1e-8)


@NOISES
def test_it_is_how_often_samples_are_largest(noise: Any):
    draws, rng = 100_000, np.random.default_rng(1)
    for n in (3, 40):
        x = rng.standard_normal(n)
        largest = (x + 0.7 * EXACT[noise].rvs(size=(draws, n), random_state=rng)).argmax(-1)
        p = sm.perturb_max(torch.from_numpy(x), noise=noise, scale=0.7).numpy()
        counted = np.bincount(largest, minlength=n) / draws
        assert (np.abs(counted - p) <= 5 * np.sqrt(p * (1 - p) / draws) + 1e-5).all()


@pytest.mark.parametrize(("kind", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-6)])
def test_of_gumbel_noise_it_is_softmax(kind: torch.dtype, tolerance: float):
    for n in (1, 2, 10, 1000, 100_000):
        for size in (0.01, 1.0, 30.0):
            x = normal(2, n, scale=size, dtype=kind)
            expected = sm.softmax(x, temperature=0.5)
            torch.testing.assert_close(sm.perturb_max(x, noise="gumbel", scale=0.5), expected, rtol=0, atol=tolerance)
            integral = PERTURB_MAX.forward(x, noise="gumbel", scale=0.5)  # kernels know that it is softmax
            torch.testing.assert_close(integral, expected, rtol=0, atol=tolerance)


@NOISES
def test_a_row_of_very_many_scores_has_its_mass_in_bounded_memory(noise: Any):
    x = normal(1, 2000 if noise[0] == "student_t" else 100_000, scale=1.0)
    p = sm.perturb_max(x, noise=noise)
    order = x.argsort(-1)
    assert bool((p.gather(-1, order).diff(dim=-1) >= -1e-15).all())
    assert float(p.sum()) == pytest.approx(1.0, abs=1e-12)
    torch.testing.assert_close(sm.perturb_max(x + 4.0, noise=noise), p, rtol=0, atol=1e-13)


@pytest.mark.parametrize("noise", [*NAMES, torch.distributions.Normal(1.0, 3.0), torch.distributions.Uniform(-1.0, 2.0)], ids=str)
def test_kernels_have_the_nodes_that_torch_has(noise: Any, dtype: torch.dtype):
    for n, size in itertools.product((1, 2, 9, 70, 700), (0.02, 0.5, 3.0, 60.0)):
        x, g, scale = normal(3, n, scale=size, dtype=dtype), normal(3, n, seed=1, dtype=dtype), normal(3, 1, seed=2).exp()
        x[1, n // 2 :], x[2] = -math.inf, x[2, 0]
        x.requires_grad_()
        p = sm.perturb_max(x, noise=noise, scale=scale)
        z = x.detach().double()
        expected = PERTURB_MAX.forward(z, noise=noise, scale=scale)
        room = torch.finfo(dtype).eps
        torch.testing.assert_close(p.double(), expected, rtol=room, atol=max(1e-14, room * room))
        v = torch.autograd.grad(p, x, g)[0].double()
        of = expected if dtype == torch.float16 else p.detach().double()  # the slopes of float16 are of p before it is rounded
        expected = PERTURB_MAX.sensitivity(of, z, noise=noise, scale=scale).pull(g.double())
        torch.testing.assert_close(v, expected, rtol=2 * room, atol=max(1e-13, room * room))


@NOISES
def test_derivatives_of_scores_at_kinks_are_true(noise: Any):
    x = torch.tensor([[0.3, 0.1, -0.2, -0.65, -1.5], [2.0, 0.0, 0.01, -0.7, 1.4]], dtype=torch.float64, requires_grad=True)
    function = lambda x: sm.perturb_max(x, noise=noise, scale=0.9)
    assert gradcheck(function, (x,), atol=1e-6)
    assert gradgradcheck(function, (x,), atol=1e-5)


@pytest.mark.parametrize("noise", ["uniform", "exponential", "laplace"])
def test_ties_and_gaps_of_the_width_of_uniform_noise_have_one_sided_slopes(noise: str):
    """At u_i − u_j = 1 uniform noise has p_j = (1 − d)₊²/2, whose slope is 0 on both sides; at ties all are smooth."""
    for row in ([0.0, -1.0], [0.0, 0.0, -0.5], [1.0, 1.0, 1.0]):
        x = torch.tensor(row, dtype=torch.float64)
        matrix = sm.jacobian("perturb_max", x, noise=noise)
        for i in range(len(row)):
            step = 1e-6 * torch.eye(len(row), dtype=torch.float64)[i]
            slope = (sm.perturb_max(x + step, noise=noise) - sm.perturb_max(x - step, noise=noise)) / 2e-6
            torch.testing.assert_close(matrix[:, i], slope, rtol=0, atol=2e-6)


@NOISES
def test_derivatives_have_an_end_where_squares_of_scores_have_none(noise: Any):
    for far in (1e77, 1e103, 1e155, 1e308):
        x = torch.tensor([far, 0.0, -far], dtype=torch.float64, requires_grad=True)
        p = sm.perturb_max(x, noise=noise)
        (slope,) = torch.autograd.grad(p @ normal(3), x, create_graph=True)
        (bend,) = torch.autograd.grad(slope @ normal(3, seed=1), x)
        assert p.sum() == 1
        assert slope.isfinite().all()
        assert bend.isfinite().all()


@NOISES
def test_the_diagonal_of_the_jacobian_is_that_of_the_matrix_without_one(noise: Any):
    for x in (normal(4, 5), 30 * normal(3, 7), torch.tensor([[0.0, -math.inf, -1.0], [-math.inf] * 3, [2.0, 2.0, 2.0]]).double()):
        scale = torch.full((len(x), 1), 0.7, dtype=torch.float64)
        local = PERTURB_MAX.sensitivity(sm.perturb_max(x, noise=noise, scale=scale), x, noise=noise, scale=scale)
        torch.testing.assert_close(local.s, local.matrix(1.0).diagonal(dim1=-2, dim2=-1), rtol=1e-10, atol=1e-15)
    wide = normal(1, 20_000)
    assert PERTURB_MAX.sensitivity(wide.softmax(-1), wide, noise=noise, scale=1.0).s.shape == wide.shape  # n² would be 3 GB


@MILD
def test_by_every_way_it_is_the_same(noise: Any):
    """Where values cannot be read there are more nodes."""
    x, g = normal(3, 6), normal(3, 6, seed=1)
    function = lambda x: sm.perturb_max(x, noise=noise)
    expected = torch.autograd.grad(function(leaf := x.clone().requires_grad_()), leaf, g)[0]
    each = torch.func.vmap(lambda x, g: torch.func.vjp(function, x)[1](g)[0])(x, g)
    torch.testing.assert_close(each, expected, rtol=0, atol=1e-12)
    if not isinstance(noise, str):
        return  # a compiler looks into what makes a noise of a number, and does not see through it
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), function(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        ("gauss", r"perturb_max: noise must be one of 'normal', .*got 'gauss'"),
        (("student_t", 0.1), r"noise must be one of .*ν from 0.5 to 100.*got \('student_t', 0.1\)"),
        (len, r"noise must be one of"),
        (torch.distributions.Beta(2.0, 2.0), r"noise must have a CDF and a density, and torch has none for Beta; take one of"),
        (torch.distributions.Poisson(1.0), r"noise must have a density, got the discrete Poisson; take a continuous"),
        (torch.distributions.Normal(torch.zeros(3), 1.0), r"noise must be one distribution of a number .* shape \(3,\); give its"),
    ],
    ids=str,
)
def test_what_is_no_noise_is_refused_before_work(noise: Any, message: str):
    with pytest.raises(ValueError, match=message):
        sm.perturb_max(torch.zeros(2, 3), noise=noise)
    with pytest.raises(ValueError, match=message.replace("perturb_max", "PerturbMax|perturb_max")):
        sm.PerturbMax(noise)


@pytest.mark.parametrize(
    "noise", [("student_t", 3.0), torch.distributions.Cauchy(0.0, 1.0), torch.distributions.HalfNormal(1.0)], ids=str
)
def test_noises_whose_tails_go_on_have_no_loss_here(noise: Any):
    for call in (
        lambda: sm.perturb_max_loss(torch.zeros(2, 3), torch.tensor([0, 1]), noise=noise),
        lambda: sm.PerturbMaxLoss(noise),
    ):
        with pytest.raises(ValueError, match=r"perturb_max_loss: noise must be one of 'normal', .*take surrogate_loss"):
            call()


@pytest.mark.parametrize(
    ("noise", "law"),
    [
        *((name, EXACT[name]) for name in NAMES),
        (torch.distributions.Normal(0.5, 2.0), scipy.stats.norm(0.5, 2.0)),
        (torch.distributions.Uniform(-1.0, 3.0), scipy.stats.uniform(-1.0, 4.0)),
    ],
    ids=lambda v: "" if hasattr(v, "ppf") else str(v),
)
def test_the_loss_of_labels_is_the_expected_maximum_less_what_a_score_alone_has(noise: Any, law: Any):
    """E max(x + ε) = ∫ 1 − Π F over what is above 0, less ∫ Π F over what is below; both ways to the loss."""
    x = normal(3, 5)
    x[0, 1:] = x[0, 0]
    labels = torch.tensor([0, 2, 4])
    smallest, largest = float(x.min()) + law.ppf(1e-14), float(x.max()) + law.ppf(1 - 1e-14)
    edges = np.unique(np.concatenate([np.linspace(smallest, largest, 400), *(x.flatten() + end for end in (*law.support(), 0.0))]))
    edges = np.concatenate(([smallest], np.clip(edges[np.isfinite(edges)], smallest, largest), [0.0]))
    edges.sort()
    points, weights = np.polynomial.legendre.leggauss(12)
    half = np.diff(edges)[:, None] / 2
    z, w = ((edges[1:] + edges[:-1])[:, None] / 2 + half * points).ravel(), (half * weights).ravel()
    below = law.cdf(z - x.numpy()[..., None]).prod(1)
    expected = (w * np.where(z > 0, 1 - below, -below)).sum(-1)
    losses = torch.as_tensor(expected - law.mean()) - x.gather(-1, labels[:, None])[:, 0]
    torch.testing.assert_close(sm.perturb_max_loss(x, labels, noise=noise, reduction="none"), losses, rtol=0, atol=1e-11)
    shares = torch.nn.functional.one_hot(labels, 5).double()
    torch.testing.assert_close(sm.perturb_max_loss(x, shares, noise=noise, reduction="none"), losses, rtol=0, atol=1e-11)


@pytest.mark.parametrize("noise", NAMES)
@pytest.mark.parametrize("n", [2, 30, 700])
def test_targets_of_any_length_have_their_scores(noise: str, n: int):
    """The loss is 0 at perturb_max(x) of probable and very improbable classes."""
    x = normal(1, n) * torch.linspace(0.1, 0.4 if noise == "uniform" else 3.0, n)
    y = sm.perturb_max(x, noise=noise)
    assert float(sm.perturb_max_loss(x, y, noise=noise)) == pytest.approx(0.0, abs=1e-12)
    assert float(sm.perturb_max_loss(x + 0.1 * normal(1, n, seed=1), y, noise=noise)) > 0


def test_what_a_rule_is_too_coarse_for_is_refused():
    one = lambda value: torch.tensor(value, dtype=torch.float64)
    parts = torch.distributions.Normal(one([0.0, 20.0]), one([1.0, 0.01]))
    mixture = torch.distributions.MixtureSameFamily(torch.distributions.Categorical(one([0.9, 0.1])), parts)
    for noise in (torch.distributions.Gamma(one(0.1), one(1.0)), mixture):
        with pytest.raises(ValueError, match=r"(?s)perturb_max: the probabilities of .* add up to 1 with an error of"):
            sm.perturb_max(one([1.0, 0.25, 0.2, 0.1]), noise=noise)


@pytest.mark.parametrize(("noise", "n", "below"), [("normal", 10_000, 8.0), ("normal", 100_000, 5.0), ("gumbel", 100_000, 20.0)])
def test_a_score_above_very_many_equal_ones_has_its_digits(noise: str, n: int, below: float):
    """p₀ = ∫ f(z) F(z + d)^{n−1} dz by panels, and p are as many equal terms of it as there are."""
    x = torch.full((n,), -below, dtype=torch.float64)
    x[0] = 0.0
    p = sm.perturb_max(x, noise=noise)
    z, w = np.polynomial.legendre.leggauss(20)
    edges = np.arange(-10.0, 60.0, 0.02)
    places = (edges[:-1, None] + 0.01 * (1 + z)).ravel()
    law = EXACT[noise]
    exact = (np.tile(0.01 * w, len(edges) - 1) * law.pdf(places) * np.exp((n - 1) * law.logcdf(places + below))).sum()
    assert float(p[0]) == pytest.approx(exact, abs=3e-13)
    assert math.fsum(p.tolist()) == pytest.approx(1.0, abs=1e-13)


@pytest.mark.parametrize("noise", NAMES)
def test_the_loss_compiles_to_one_graph(noise: str):
    torch._dynamo.reset()
    x, labels = normal(2, 4), torch.tensor([1, 3])
    compiled = torch.compile(lambda x: sm.perturb_max_loss(x, labels, noise=noise), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), sm.perturb_max_loss(x, labels, noise=noise))


def test_the_noise_is_given_by_name():
    with pytest.raises(TypeError, match="must be named, got 'gumbel'; write noise='gumbel'"):
        sm.perturb_max(torch.zeros(2, 3), "gumbel")  # type: ignore[arg-type]
    assert PERTURB_MAX.params[0].name == "noise"
