"""The Jacobian of every map: its sums, and its products through each way to them; of entmax and normmax where entries are huge."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from mpmath import mp, mpf
from torch import Tensor

import softmaxima as sm
from conftest import INTERPRETED, Case, chosen, normal
from softmaxima.base.arguments import COMPUTE_DTYPE
from softmaxima.base.jacobian import jacobian_of
from softmaxima.engine.routing import has_kernel, kernels
from softmaxima.maps.entmax import ENTMAX
from softmaxima.maps.normmax import NORMMAX

pytestmark = pytest.mark.gpu

ALPHAS = chosen((1.0, 1.0 + 1e-8, 1.5, 2.0 - 1e-8, 2.0, 2.0 + 1e-8, 2.5, 4.0, 6.0, 10.0, 50.0, 100.0))
STEEP = pytest.mark.parametrize("steep", [Case(ENTMAX, {"alpha": 6.0}), Case(NORMMAX, {"alpha": 6.0})], ids=str)

# Relative to the largest entry. Of float64 the rounding of log p counts up to 100 times; others are rounded once, and for α ≤ 2
# have the roundings of a power of p in float32.
RELATIVE = {torch.float64: 2e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-3}


def products(case: Case, x: Tensor, g: Tensor) -> dict[str, Tensor]:
    """Jᵀg by the kernel, by torch's operations, and by the matrix; J g by forward mode and by the matrix."""
    scores = x.clone().requires_grad_()
    p = case(scores)
    (pulled,) = torch.autograd.grad(p, scores, g, retain_graph=True)
    (again,) = torch.autograd.grad(p, scores, g, create_graph=True)
    pushed = torch.func.jvp(case, (x,), (g,))[1]
    matrix = sm.jacobian(case.map, x, **case.params)
    of_matrix = (g.unsqueeze(-2) @ matrix).squeeze(-2), (matrix @ g.unsqueeze(-1)).squeeze(-1)
    return {
        "kernel": pulled,
        "operations": again.detach(),
        "pulled by the matrix": of_matrix[0],
        "forward mode": pushed,
        "pushed by the matrix": of_matrix[1],
    }


def slack(v: Tensor, g: Tensor) -> Tensor:
    """What rounding may do to v = J g or Jᵀg. Most maps have s ≤ 1, so that their terms are about as large as g."""
    return 200 * torch.finfo(v.dtype).eps * (v.abs().amax(-1) + g.abs().amax(-1))


def test_jacobian_adds_up_to_zero(case: Case, dtype: torch.dtype):
    check_sums(case, dtype)


@STEEP
def test_steep_jacobian_adds_up_to_zero(steep: Case, dtype: torch.dtype):
    check_sums(steep, dtype)


def check_sums(case: Case, dtype: torch.dtype) -> None:
    x, g = normal(40, 8, scale=1.0, dtype=dtype), normal(40, 8, seed=1, dtype=dtype)
    for way, v in products(case, x, g).items():
        along_scores = way in ("kernel", "operations", "pulled by the matrix")
        # A constant added to the scores changes nothing, and one number less a score is one more for the others.
        if case.claims.shift_invariant if along_scores else case.claims.constant_mass and not case.claims.logarithmic:
            assert bool((v.sum(-1).abs() <= slack(v, g)).all()), way
    if case.claims.shift_invariant:
        ones = torch.ones_like(x)
        still = torch.func.jvp(case, (x,), (ones,))[1]
        assert bool((still.abs().amax(-1) <= slack(still, ones)).all())


def test_products_with_the_jacobian_agree(case: Case):
    check_products(case)


@STEEP
def test_products_with_the_steep_jacobian_agree(steep: Case):
    check_products(steep)


def check_products(case: Case) -> None:
    x, g = normal(40, 8, scale=1.0), normal(40, 8, seed=1)
    found = products(case, x, g)
    for one, other in (("kernel", "operations"), ("kernel", "pulled by the matrix"), ("forward mode", "pushed by the matrix")):
        limit = slack(found[one], g) + slack(found[other], g)
        assert bool(((found[one] - found[other]).abs().amax(-1) <= limit).all()), (one, other)


# Slopes that are infinite, NaN or as large as numbers are ---------------------------------------------------------------------


def saturated(spread: float, n: int, dtype: torch.dtype) -> Tensor:
    """Rows with one score above all others, at any place."""
    x = normal(20, n, seed=n, scale=0.25, dtype=torch.float32).bfloat16().to(dtype)
    return x.scatter_(1, (7 * torch.arange(20) % n).unsqueeze(-1), spread)


SPREADS = {torch.float64: (20.0, 40.0, 700.0), torch.float32: (20.0, 80.0), torch.bfloat16: (20.0, 80.0), torch.float16: (20.0,)}


@pytest.mark.parametrize("n", [5, 40, 700][: 2 if INTERPRETED else 3])
def test_entry_of_a_probability_near_1_has_its_digits(case: Case, dtype: torch.dtype, n: int):
    """Jᵀg adds up to 0 where a constant changes nothing, or with the slope of a sink: the entry is what the others add up to."""
    sink = next((name for name in ("beta", "eps") if name in case.params), None)
    if not case.claims.shift_invariant and sink is None:
        pytest.skip("its slopes need not add up to 0")
    for spread, slope in itertools.product(SPREADS[dtype], (0.0, -1.0)):
        if slope and case.claims.logarithmic:  # its own slope stands in each of the other entries, and not what this has of them
            continue
        x = saturated(spread, n, dtype)
        is_top = x == spread
        g = torch.where(is_top, 2.0, torch.where(torch.arange(n) % 3 == 0, slope, 0.0)).to(dtype) * 2**13
        scores = x.clone().requires_grad_()
        found = products(case, x, g) if n == 5 else {"kernel": torch.autograd.grad(case(scores), scores, g)[0]}
        turned = x.t().contiguous().requires_grad_()
        found["columns"] = torch.autograd.grad(case(turned, 0), turned, g.t())[0].t()
        p = case.probabilities(x).detach()
        has_subnormal = ((p > 0) & (p < torch.finfo(p.dtype).smallest_normal)).any(-1, keepdim=True) & (dtype != torch.float16)
        own = torch.tensor(0.0)
        least = torch.finfo(dtype).smallest_normal * (2**14 if dtype != torch.float16 else 1)  # of p, times g
        if sink:
            level = torch.full((20, 1), case.params[sink], dtype=torch.float64, requires_grad=True)
            own = torch.autograd.grad(case.map(x, **{sink: level}), level, g)[0] * (level if sink == "eps" else 1.0)
        for path, v in found.items():
            of_x = path in ("forward mode", "pushed by the matrix")  # which is J g
            if ("matrix" in path and dtype in (torch.bfloat16, torch.float16)) or (of_x and (sink or case.claims.logarithmic)):
                continue
            others = v.double().masked_fill(is_top, 0.0)
            sums = v.double().sum(-1, keepdim=True) + own.detach()
            size = others.abs().sum(-1, keepdim=True) + own.detach().abs()
            slack = (128 if "alpha" in case.params else 24) * torch.finfo(dtype).eps * size + least
            assert bool(((sums.abs() <= slack) | has_subnormal).all()), (path, spread, slope, sums, size)


def rows_with_zeros(dtype: torch.dtype) -> Tensor:
    """Rows with masks, scores far below and zeros, among them one of masks alone; a group of scores without support is cleared."""
    x = normal(6, 200, scale=1.0, dtype=dtype)
    x[:, ::3] = -math.inf
    x[1:4, 1::3] = -1e4
    x[1:5, 64:130] = torch.tensor([[-1e4], [-math.inf], [0.0], [-50.0]], dtype=dtype)
    x[5] = -math.inf
    return x


def test_slope_is_not_read_where_probability_is_zero(case: Case, dtype: torch.dtype):
    check_zeros(case, dtype)


@STEEP
def test_steep_slope_is_not_read_where_probability_is_zero(steep: Case, dtype: torch.dtype):
    check_zeros(steep, dtype)


def check_zeros(case: Case, dtype: torch.dtype) -> None:
    x = rows_with_zeros(dtype)
    # A Taylor polynomial and a function may be 0 where their slope is not.
    p = case(x.float() if dtype == torch.float16 else x)  # as the derivative has it
    nothing = (x == -math.inf) if case.map.uses_scores and not case.claims.sparse else p == case.nothing
    g, t = (normal(*x.shape, seed=seed, scale=1.0, dtype=dtype).masked_fill(nothing, 0.0) for seed in (1, 2))
    of_finite = all_derivatives(case, x, g, t)
    slopes = torch.tensor([math.inf, -math.inf, math.nan, math.inf, -math.inf, math.nan], dtype=dtype).unsqueeze(-1)
    *products, _ = found_of_any = all_derivatives(case, x, torch.where(nothing, slopes, g), t)
    assert all(bool((found[nothing] == 0).all()) for found in products)
    for found, expected in zip(found_of_any, of_finite, strict=True):
        torch.testing.assert_close(found, expected, rtol=8 * torch.finfo(dtype).eps, atol=8 * torch.finfo(dtype).eps)


def all_derivatives(case: Case, x: Tensor, g: Tensor, t: Tensor) -> list[Tensor]:
    """Jᵀg by the kernel, of rows and of columns, and by torch's operations; J g; ∂⟨t, Jᵀg⟩/∂x."""
    scores = x.clone().requires_grad_()
    columns = x.mT.contiguous().requires_grad_()
    p = case(scores)
    (kernel,) = torch.autograd.grad(p, scores, g, retain_graph=True)
    (of_columns,) = torch.autograd.grad(case(columns, dim=0), columns, g.mT.contiguous())
    (operations,) = torch.autograd.grad(p, scores, g, create_graph=True)
    second = torch.autograd.grad(operations, scores, t)[0] if operations.requires_grad else torch.zeros_like(x)
    pushed = torch.func.jvp(case, (x,), (g,))[1]
    return [kernel, of_columns.mT, operations.detach(), pushed, second]


def test_slope_of_a_vanished_logarithm_is_its_own(dtype: torch.dtype):
    x = torch.tensor([[0.0, -1.0, -1e4, -math.inf]], dtype=dtype, requires_grad=True)
    g = torch.tensor([[math.inf, 1.0, 2.0, math.nan]], dtype=dtype)
    for options in ({}, {"create_graph": True}):
        (found,) = torch.autograd.grad(sm.log_softmax(x), x, g, **options)
        assert found[0, 2:].tolist() == [2.0, 0.0]
        assert not bool(found[0, 0].isfinite())


def test_slope_may_be_as_large_as_numbers_are(case: Case, dtype: torch.dtype):
    check_large(case, dtype)


@STEEP
def test_steep_slope_may_be_as_large_as_numbers_are(steep: Case, dtype: torch.dtype):
    check_large(steep, dtype)


def check_large(case: Case, dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    for scale in (0.01, 1.0):  # of a wide support, and of a narrow one
        x = normal(4, 70, scale=scale, dtype=dtype)
        g = normal(4, 70, seed=1).sign() * torch.tensor([[0.99], [1.0], [0.3], [1e-3]], dtype=torch.float64)
        g[0].abs_()
        g = (g * largest).to(dtype)
        expected = all_products(case, x, g * 2.0**-8)
        for found, small in zip(all_products(case, x, g), expected, strict=True):
            true = 2.0**8 * small.double()
            assert not bool(found.isnan().any())
            is_number = true.abs() < 0.99 * largest
            slack = 16 * torch.finfo(dtype).eps * torch.where(is_number, true.abs(), 0.0).amax(-1, keepdim=True)
            slack = slack + torch.finfo(dtype).eps * g.double().abs().amax(-1, keepdim=True)  # a constant less its mean
            assert bool(((found.double() - true).abs() <= slack)[is_number].all())
            assert bool((found.double().abs() >= 0.9 * largest)[~is_number].all())


def all_products(case: Case, x: Tensor, g: Tensor) -> list[Tensor]:
    """Jᵀg by the kernel and by torch's operations."""
    scores = x.clone().requires_grad_()
    p = case(scores)
    (kernel,) = torch.autograd.grad(p, scores, g, retain_graph=True)
    (operations,) = torch.autograd.grad(p, scores, g, create_graph=True)
    return [kernel, operations.detach()]


# Entmax, beside any number of digits -------------------------------------------------------------------------------------------


def powers(p: Sequence[float], alpha: float) -> list[Any]:
    """s, with the digits that the differences of its products need."""
    least = min((v for v in p if v > 0), default=1.0)
    mp.dps = int(40 - abs(2 - alpha) * math.log10(least) * 1.1)
    return [mpf(v) ** (2 - mpf(alpha)) if v > 0 else mpf(0) for v in p]


def mean(s: list[Any], g: Sequence[Any]) -> Any:
    return sum(a * mpf(b) for a, b in zip(s, g, strict=True)) / (sum(s) or 1)


def times_jacobian(s: list[Any], g: Sequence[Any]) -> list[Any]:
    center = mean(s, g)
    return [a * (mpf(b) - center) for a, b in zip(s, g, strict=True)]


def second_derivative(p: Sequence[float], s: list[Any], alpha: float, g: Sequence[float], t: Sequence[float]) -> list[Any]:
    """∂⟨t, J g⟩/∂x, with ∂⟨t, J g⟩/∂s = (g − mean g)(t − mean t) and ∂s/∂p = (2 − α) s/p."""
    of_g, of_t = mean(s, g), mean(s, t)
    slopes = [
        (2 - mpf(alpha)) * a / mpf(v) * (mpf(b) - of_g) * (mpf(c) - of_t) if v > 0 else mpf(0)
        for v, a, b, c in zip(p, s, g, t, strict=True)
    ]
    return times_jacobian(s, slopes)


def by_alpha(p: Sequence[float], s: list[Any], alpha: float) -> list[Any]:
    mp.dps += 30  # for the difference near α = 1
    beta, logs = mpf(alpha) - 1, [mp.log(v) if v > 0 else mpf(0) for v in p]
    h, total, mass = sum(mpf(v) * log for v, log in zip(p, logs, strict=True)), sum(s), sum(mpf(v) for v in p)
    if beta == 0:
        squares = sum(mpf(v) * log**2 for v, log in zip(p, logs, strict=True))
        return [mpf(v) * (squares - log**2) / 2 for v, log in zip(p, logs, strict=True)]
    # p as it is rounded does not sum to 1: what is meant is Σs = 1 − βh + β² Σpφ.
    phi = [(mp.exp(-beta * log) - 1 + beta * log) / beta**2 for log in logs]
    mean_phi = sum(mpf(v) * f for v, f in zip(p, phi, strict=True))
    assert total == 0 or abs(total - (mass - beta * h + beta**2 * mean_phi)) <= abs(total) * mpf(10) ** -30
    return [
        mpf(v) / total * (mean_phi - f - beta * (log * mean_phi - f * h)) if v > 0 else mpf(0)
        for v, f, log in zip(p, phi, logs, strict=True)
    ]


def assert_near(actual: Tensor, exact: list[Any], relative: float) -> None:
    """Relative to the largest of a row; beyond the dtype its largest number."""
    largest = mpf(torch.finfo(actual.dtype).max)
    scale = max(abs(v) for v in exact)
    assert bool(actual.isfinite().all())
    for found, true in zip(actual.double().tolist(), exact, strict=True):
        if scale < largest / 2:
            assert abs(mpf(found) - true) <= relative * scale + mpf(torch.finfo(actual.dtype).tiny), (actual, exact)
        elif abs(true) > max(2 * largest, relative * scale):
            assert found * math.copysign(1, true) >= largest * mpf("0.99"), (actual, exact)


def hard_scores(dtype: torch.dtype) -> Tensor:
    """Scores of the issue's kind, with ties at the edge of the support, with one in it, and with masks."""
    rows = [[-0.81, 0.25, 0.05, -3.0, -3.0], [0.25, 0.05, 0.05, 0.05, 0.0], [9.0, 0.0, 0.0, -1.0, -2.0], [0.0] * 5]
    rows += [[-math.inf, 0.1, 0.2, -math.inf, 0.15], [-math.inf, 1.0, -math.inf, -math.inf, -math.inf]]
    return torch.cat([torch.tensor(rows, dtype=dtype), normal(6 if INTERPRETED else 20, 5, scale=1.0, dtype=dtype)])


@pytest.mark.parametrize("alpha", ALPHAS)
def test_entmax_derivatives_are_exact_for_their_probabilities(dtype: torch.dtype, alpha: float):
    x = hard_scores(dtype)
    g, t = normal(*x.shape, seed=1).to(dtype), normal(*x.shape, seed=2).to(dtype)
    case = Case(ENTMAX, {"alpha": alpha})
    order = torch.full((len(x), 1), alpha, dtype=torch.float64, requires_grad=True)
    scores = x.clone().requires_grad_()
    p = case(scores)
    of = p if dtype != torch.float16 else case(x.float())  # which has not the range of p
    (kernel,) = torch.autograd.grad(p, scores, g, retain_graph=True)
    (pulled,) = torch.autograd.grad(p, scores, g, create_graph=True)
    (second,) = torch.autograd.grad(pulled, scores, t)
    assert bool(second.isfinite().all())
    pushed = torch.func.jvp(case, (x,), (g,))[1]
    matrix = sm.jacobian("entmax", x, alpha=alpha)
    (of_alpha,) = torch.autograd.grad(sm.entmax(x, alpha=order), order, g)
    rounded = float(torch.tensor(alpha, dtype=COMPUTE_DTYPE[dtype]))  # as the operations have it
    relative = RELATIVE[dtype]
    for i, (row, upstream, tangent) in enumerate(zip(of.detach().tolist(), g.tolist(), t.tolist(), strict=True)):
        s = powers(row, alpha)
        exact = times_jacobian(s, upstream)
        # Plain sums with s ≤ 1 are as exact as the terms are.
        slack = 0.0 if alpha > 2 else relative
        for found in (kernel[i], pulled[i].detach(), pushed[i]):
            assert_near_or(found, exact, relative, slack)
        for j in range(len(row) if dtype.itemsize > 2 else 0):  # of half precision it is that of p before its rounding
            unit = [float(k == j) for k in range(len(row))]
            assert_near(matrix[i, j], times_jacobian(s, unit), relative)
        if dtype.itemsize > 2:
            twice = second_derivative(row, s, alpha, upstream, tangent)
            if max(abs(v) for v in (*exact, *twice)) < torch.finfo(dtype).max / 2:
                assert_near(second[i], twice, 10 * relative)
            gradient = by_alpha(row, powers(row, rounded), rounded)
            expected = sum(a * mpf(b) for a, b in zip(gradient, upstream, strict=True))
            # Of equal probabilities it is 0, a difference of entries that are no larger than p.
            size = sum(abs(a * mpf(b)) + mpf(b) ** 2 * mpf(2) ** -10 for a, b in zip(gradient, upstream, strict=True))
            assert abs(mpf(float(of_alpha[i])) - expected) <= relative * size


def assert_near_or(actual: Tensor, exact: list[Any], relative: float, slack: float) -> None:
    if slack and max(abs(a - mpf(b)) for a, b in zip(exact, actual.double().tolist(), strict=True)) <= slack:
        return
    assert_near(actual, exact, relative)


@st.composite
def rows_of_probabilities(draw: st.DrawFn) -> list[float]:
    """Of any magnitude down to subnormal float32, with zeros and ties; they need not sum to 1."""
    some = st.one_of(st.floats(-40, 0).map(lambda e: 10.0**e), st.sampled_from([0.0, 1.0, 0.5, 1e-30, 1e-45]))
    values = draw(st.lists(some, min_size=1, max_size=6))
    return torch.tensor([*values, draw(st.sampled_from(values))], dtype=torch.float32).tolist()


@given(rows_of_probabilities(), st.sampled_from([1.0, 1.7, 2.0, 2.5, 4.0, 6.0, 30.0, 100.0]), st.integers(0, 9))
@example([1.0, 1e-30, 1e-30, 0.0], 100.0, 0)
@example([1.0, 1e-30, 1e-45], 6.0, 0)
def test_steep_derivative_of_any_probabilities(row: list[float], alpha: float, seed: int):
    p, g = torch.tensor([row]), normal(1, len(row), seed=seed, dtype=torch.float32)
    s = powers(row, alpha)
    exact = times_jacobian(s, g[0].tolist())
    found = [jacobian_of(ENTMAX.sensitivity(p, None, alpha=alpha)).pull(g)]
    if has_kernel(ENTMAX.kernel, p) and alpha > 2:
        found.append(kernels(p).backward(ENTMAX.kernel, p, g, None, 1.0, None, (alpha,)))
    for v in found:
        assert_near(v[0], exact, RELATIVE[torch.float32])
        if max(abs(a) for a in exact) < 1e37:
            assert abs(float(v.double().sum())) <= 1e-6 * float(v.double().abs().max())


@pytest.mark.parametrize("alpha", [1e3, 1e6, 1e30, 1e300])
def test_entmax_is_finite_for_every_alpha(dtype: torch.dtype, alpha: float):
    x = hard_scores(dtype)
    g = normal(*x.shape, seed=1).to(dtype)
    order = torch.full((len(x), 1), alpha, dtype=torch.float64, requires_grad=True)
    scores = x.clone().requires_grad_()
    for p in (sm.entmax(scores, alpha=alpha), sm.entmax(scores, alpha=order)):
        assert bool(((p.detach().double().sum(-1) - 1).abs() <= 3 * torch.finfo(dtype).eps).all())
        (kernel,) = torch.autograd.grad(p, scores, g, retain_graph=True)
        (pulled,) = torch.autograd.grad(p, scores, g, create_graph=True)
        (second,) = torch.autograd.grad(pulled, scores, g)
        assert bool(kernel.isfinite().all() and pulled.isfinite().all() and second.isfinite().all())
    (of_alpha,) = torch.autograd.grad(sm.entmax(x, alpha=order), order, g)
    assert bool(of_alpha.isfinite().all())
    assert float(of_alpha.abs().max()) <= 100 / min(alpha, 1e150)  # (p − q)/β² − (p log p − …)/β
    assert bool(sm.jacobian("entmax", x, alpha=alpha).isfinite().all())


@pytest.mark.parametrize("alpha", [*ALPHAS, 1e3, 1e6, 1e300])
def test_entmax_loss_by_alpha_is_exact(alpha: float):
    """∂L/∂α = ∂Ω(y)/∂α − ∂Ω(p)/∂α, Ω = Σ p (p^β − 1)/(αβ); of labels the first is 0."""
    x = hard_scores(torch.float64)
    order = torch.full((len(x), 1), alpha, dtype=torch.float64, requires_grad=True)
    target = torch.ones(len(x), dtype=torch.long)
    (gradient,) = torch.autograd.grad(sm.entmax_loss(x, target, alpha=order, reduction="sum"), order)
    a, b = mpf(alpha), mpf(alpha) - 1
    mp.dps = 100
    for found, row in zip(gradient.squeeze(-1).tolist(), sm.entmax(x, alpha=alpha).tolist(), strict=True):
        terms = [(mpf(v), mp.log(v)) for v in row if v > 0]
        if b == 0:
            exact = sum(v * log * (log / 2 - 1) for v, log in terms)
        else:
            exact = sum(v * (mp.exp(b * log) * log * a * b - mp.expm1(b * log) * (2 * a - 1)) / (a * b) ** 2 for v, log in terms)
        assert abs(mpf(found) + exact) <= 1e-12 * (sum(abs(v * log) for v, log in terms) + abs(exact))


# Normmax, beside any number of digits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", chosen((1.01, 1.5, 2.0, 3.0, 6.0, 50.0)))
def test_product_with_the_jacobian_of_normmax_has_its_digits(alpha: float):
    mp.dps = 60
    x = torch.cat((normal(20, 6, scale=0.4), -torch.logspace(-15, 0.3, 6, dtype=torch.float64).expand(2, 6)))
    for g in (normal(22, 6, seed=1), 1e6 + normal(22, 6, seed=2)):
        p = sm.normmax(x, alpha=alpha)
        pulled = jacobian_of(NORMMAX.sensitivity(p, None, alpha=alpha)).pull(g)
        for row, slopes, actual in zip(p.tolist(), g.tolist(), pulled, strict=True):
            norm = sum(mpf(v) ** alpha for v in row) ** (1 / mpf(alpha))
            s = [(v / norm) ** (2 - mpf(alpha)) * norm / (mpf(alpha) - 1) if v > 0 else mpf(0) for v in row]
            center = mean([mpf(v) for v in row], slopes)
            moved = [a * (b - center) for a, b in zip(s, slopes, strict=True)]
            exact = [m - mpf(v) / sum(row) * sum(moved) for m, v in zip(moved, row, strict=True)]
            assert_near(actual, exact, RELATIVE[torch.float64])


@pytest.mark.parametrize("alpha", chosen((1.1, 2.0, 6.0, 100.0)))
@pytest.mark.parametrize("n", [6, 17, 300])
def test_gradient_of_normmax_in_half_precision_is_that_of_its_scores(dtype: torch.dtype, alpha: float, n: int):
    x, g = normal(20, n, scale=0.4, dtype=dtype), normal(20, n, seed=1).to(dtype)
    case = Case(NORMMAX, {"alpha": alpha})
    exact = all_products(case, x.double(), g.double())[0]
    for found in all_products(case, x, g):
        error = (found.double() - exact).abs().amax(-1)
        assert bool((error <= (torch.finfo(dtype).eps + 200 * 2.0**-24) * exact.abs().amax(-1)).all())
