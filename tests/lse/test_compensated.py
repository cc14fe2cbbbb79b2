"""logsumexp with precision="compensated": within 1 ulp of exact arithmetic, whatever the row; and the arithmetic it is made of."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

import softmaxima as sm
from conftest import normal, rows
from softmaxima.base import double_double as dd
from softmaxima.lse import _compensated

INF, NAN = math.inf, math.nan
DIGITS = 1200  # enough for a sum that cancels down to the smallest number


def exact(scores, weights=None, tau: float = 1.0) -> tuple[mpmath.mpf, int]:
    """(log|S|, sign)."""
    weights = [1.0] * len(scores) if weights is None else weights
    with mpmath.workdps(DIGITS):
        scores = [mpmath.mpf(score) / mpmath.mpf(tau) for score in scores]
        top = max(scores)
        total = mpmath.fsum(b * mpmath.exp(z - top) for z, b in zip(scores, weights, strict=True) if b != 0)
        return top + mpmath.log(abs(total)) if total else -mpmath.inf, int(mpmath.sign(total))


def ulps(actual: float, expected: mpmath.mpf) -> float:
    if actual == expected:
        return 0.0
    with mpmath.workdps(DIGITS):
        return float(abs(mpmath.mpf(actual) - expected) / math.ulp(float(expected)))


def compensated(scores, weights=None, tau: float = 1.0) -> tuple[float, float]:
    b = None if weights is None else np.asarray(weights, np.float64)
    return sm.logsumexp(np.asarray(scores, np.float64), weights=b, temperature=tau, precision="compensated", return_sign=True)


HARD = {
    "one": [0.0],
    "near 0": [0.0, -40.0],
    "very near 0": [0.0, -700.0],
    "subnormal": [0.0, -740.0, -740.0],
    "below all numbers": [0.0, -1e4],
    "cancelling to 0": [-math.log(2), -math.log(2)],
    "cancelling to almost 0": [math.log(0.3), math.log(0.7)],
    "cancelling with a tail": [-1e-17, -39.14, -41.0],
    "far from 0": [1e6, 1e6 + 1e-9, 1e6 - 1e-9],
    "far below 0": [-1e6, -1e6 + 1e-9, -1e6 - 1e-9],
    "far apart and from 0": [1e15, 1e15 - 1, 1e15 - 2, 1e15 - 30],
    "huge": [1e300, 1e300, -1e300],
    "the largest number": [1.7976931348623157e308, 0.0],
    "masked by the smallest number": [-1.7976931348623157e308, -1.7976931348623157e308],
    "wide": [float(k) for k in range(-800, 40, 7)],
    "with masks": [-INF, 1.0, -INF, 2.0],
}


@pytest.mark.parametrize("scores", HARD.values(), ids=HARD)
@pytest.mark.parametrize("tau", [1.0, 0.7, 3.0])
def test_a_hard_row_is_summed_within_one_ulp(scores: list[float], tau: float):
    if tau < 1 and max(map(abs, (s for s in scores if s > -INF))) > 1e308:
        pytest.skip("x/τ is no number")
    value, sign = compensated(scores, tau=tau)
    expected, _ = exact([s for s in scores if s >= max(scores) - 1e5], tau=tau)
    assert ulps(value, expected) < 0.51
    assert sign == 1


WEIGHTED = {
    "cancelling entirely": ([1.0, 1.0, 3.0, 3.0], [2.0, -2.0, 0.1, -0.1]),
    "summing to one": ([0.0, 0.0], [0.5, 0.5]),
    "summing to one and almost nothing": ([0.0, 0.0, -100.0], [0.5, 0.5, 1.0]),
    "cancelling but for a tail": ([0.0, 0.0, -1000.0], [1.0, -1.0, 1.0]),
    "negative": ([1.0, 1.0, 1.0], [1.0, -1.0, -1.0]),
    "cancelling to the last digit": ([1.0, 1.0 + 2**-52], [1.0, -1.0]),
    "cancelling twice": ([1.0, 1.0 + 2**-52, 1.0 - 2**-52], [2.0, -1.0, -1.0]),
    "cancelling three times": ([1.0, 1.0 + 2**-52, 1.0 + 2**-51, 1.0 + 2**-52 + 2**-51], [1.0, -3.0, 3.0, -1.0]),
    "of extreme weights": ([0.0, 1386.2943611198906], [2.0**1000, 2.0**-1000]),
    "of extreme weights that cancel": ([0.0, 1386.2943611198906], [2.0**1000, -(2.0**-1000)]),
    "of subnormal weights": ([700.0, 699.0], [5e-324, -5e-324]),
    "with weights of 0": ([INF, NAN, 1.0], [0.0, 0.0, 2.0]),
}


@pytest.mark.parametrize(("scores", "weights"), WEIGHTED.values(), ids=WEIGHTED)
def test_a_hard_weighted_row_is_summed_within_one_ulp(scores: list[float], weights: list[float]):
    value, sign = compensated(scores, weights)
    kept = [(score, weight) for score, weight in zip(scores, weights, strict=True) if weight != 0]
    expected, expected_sign = exact(*zip(*kept, strict=True))
    assert ulps(value, expected) < 0.51
    assert sign == expected_sign


@given(x=rows(), tau=st.floats(0.1, 10))
def test_every_row_is_summed_within_one_ulp(x: torch.Tensor, tau: float):
    for row in x.tolist():
        value, _ = compensated(row, tau=tau)
        assert ulps(value, exact([score for score in row if score > -INF], tau=tau)[0]) < 0.51


@given(x=rows(masks=False), data=st.data())
def test_every_weighted_row_is_summed_within_one_ulp(x: torch.Tensor, data: st.DataObject):
    weight = st.one_of(st.floats(-10, 10), st.sampled_from([0.0, 1.0, -1.0]))
    for row in x.tolist():
        weights = [data.draw(weight) for _ in row]
        value, sign = compensated(row, weights)
        expected, expected_sign = exact(row, weights)
        assert ulps(value, expected) < 0.51
        assert sign == expected_sign


def test_decimals_are_needed_only_where_the_result_is_near_0(monkeypatch: pytest.MonkeyPatch):
    asked = []
    monkeypatch.setattr(_compensated, "_sum_in_decimals", lambda scores, *_: asked.append(len(scores)) or (NAN, NAN))
    for scores in ([0.0], [0.0, -40.0], [0.0, -600.0], [0.0, -1e4], [1e6] * 3, normal(1000).tolist(), [math.log(0.3)] * 3):
        compensated(scores)
    compensated(normal(1000).tolist(), normal(1000, seed=1).tolist())
    assert asked == []
    compensated([-math.log(2), -math.log(2)])
    assert asked == [2]


@pytest.mark.parametrize("n", [2, _compensated.BLOCK - 1, _compensated.BLOCK, _compensated.BLOCK + 1, 65_537])
def test_many_equal_terms_are_counted_exactly(n: int):
    value, _ = compensated(np.full(n, 0.1))
    with mpmath.workdps(50):
        assert ulps(value, mpmath.mpf(0.1) + mpmath.log(n)) < 0.51
    value, _ = compensated(np.append(np.full(n, 0.1), 50.0))
    with mpmath.workdps(50):
        assert ulps(value, 50 + mpmath.log1p(n * mpmath.exp(mpmath.mpf(0.1) - 50))) < 0.51


def test_it_is_exact_where_native_sums_are_not():
    x, b = normal(2000, seed=3), normal(2000, seed=4)
    b[-1] = 0
    b[-1] = -float((b * x.exp()).sum() / x[-1].exp())  # the rest cancels
    value, sign = compensated(x, b)
    expected, expected_sign = exact(x.tolist(), b.tolist())
    assert ulps(value, expected) < 0.51
    assert sign == expected_sign
    native = float(sm.logsumexp(x, weights=b, return_sign=True)[0])
    assert ulps(native, expected) > 1000


def test_infinities_and_nothing_are_those_of_native_sums(dtype: torch.dtype):
    x = torch.tensor([[-INF, -INF], [INF, 0.0], [INF, INF], [NAN, 0.0], [0.0, -INF]], dtype=dtype, requires_grad=True)
    b = torch.tensor([1.0, 3.0], dtype=dtype)
    for weights in (None, b):
        native = sm.logsumexp(x, weights=weights, return_sign=True)
        ours = sm.logsumexp(x, weights=weights, return_sign=True, precision="compensated")
        torch.testing.assert_close(ours, native, equal_nan=True)
        gradient, expected = (torch.autograd.grad(value.sum(), x)[0] for value, _ in (ours, native))
        torch.testing.assert_close(gradient, expected, equal_nan=True)
    assert sm.logsumexp(torch.zeros(2, 0, dtype=dtype), precision="compensated").tolist() == [-INF, -INF]
    assert sm.logsumexp(x, where=torch.tensor([False]), precision="compensated").tolist() == [-INF] * 5


def test_half_precision_scores_are_rounded_once(dtype: torch.dtype):
    x, tau = normal(4, 300, dtype=dtype), torch.tensor([[0.5], [1.0], [2.0], [0.3]], dtype=dtype)
    value = sm.logsumexp(x, temperature=tau, precision="compensated")
    assert value.dtype == dtype
    expected = [float(exact(row.tolist(), tau=float(t))[0]) for row, t in zip(x, tau, strict=True)]
    assert value.tolist() == torch.tensor(expected, dtype=torch.float64).to(dtype).tolist()


@pytest.mark.parametrize("dim", [0, -2, (0, 2), (-1, -2, 0)])
def test_axes_masks_and_strides_are_those_of_native_sums(dim):
    x, b, where = normal(5, 3, 4).permute(1, 2, 0), normal(4, 1, seed=1).abs(), normal(3, 1, 5, seed=2) > -1
    options = {"where": where, "keepdim": True, "temperature": 0.7}
    torch.testing.assert_close(sm.logsumexp(x, dim, precision="compensated", **options), sm.logsumexp(x, dim, **options))
    options["weights"] = b
    torch.testing.assert_close(sm.logsumexp(x, dim, precision="compensated", **options), sm.logsumexp(x, dim, **options))


def test_gradients_are_those_of_native_sums():
    x, b = normal(3, 4).requires_grad_(), normal(3, 4, seed=1).requires_grad_()
    tau = torch.tensor([[0.5], [1.0], [2.0]], dtype=torch.float64, requires_grad=True)
    plain = lambda x, tau: sm.logsumexp(x, temperature=tau, precision="compensated")
    weighted = lambda x, b, tau: sm.logsumexp(x, weights=b, temperature=tau, return_sign=True, precision="compensated")[0]
    for function, arguments in ((plain, (x, tau)), (weighted, (x, b, tau))):
        assert gradcheck(function, arguments, check_forward_ad=True, check_batched_grad=True)
        assert gradgradcheck(function, arguments, check_fwd_over_rev=True)


def test_transforms_and_compilation():
    x, b = normal(3, 4), normal(3, 4, seed=1).abs()
    function = lambda x, b: sm.logsumexp(x, weights=b, precision="compensated")
    torch.testing.assert_close(torch.func.vmap(function)(x, b), function(x, b))
    torch.testing.assert_close(torch.func.vmap(function, (0, None))(x, b[0]), function(x, b[0]))
    torch.testing.assert_close(torch.func.hessian(lambda x: function(x, b[0]))(x[0]), _hessian(x[0] + b[0].log()))
    torch._dynamo.reset()
    x.requires_grad_()
    compiled = torch.compile(lambda x: sm.logsumexp(x, precision="compensated"), fullgraph=True, backend="aot_eager")
    value = compiled(x)
    torch.testing.assert_close(value, sm.logsumexp(x))
    (gradient,) = torch.autograd.grad(value.sum(), x)
    torch.testing.assert_close(gradient, sm.softmax(x.detach()))


def _hessian(x: torch.Tensor) -> torch.Tensor:
    p = torch.softmax(x, -1)
    return torch.diag(p) - torch.outer(p, p)


def test_wrong_precision_raises():
    with pytest.raises(ValueError, match=r"precision must be one of native, compensated, got 'exact'"):
        sm.logsumexp(torch.zeros(2), precision="exact")
    with pytest.raises(TypeError, match=r"scores must be real, got torch.complex64; precision='native' takes complex scores"):
        sm.logsumexp(torch.zeros(2, dtype=torch.complex64), precision="compensated")


# The arithmetic --------------------------------------------------------------------------------------------------------------


def relative_error(pair: dd.Pair, function, arguments: list[float]) -> float:
    with mpmath.workdps(60):
        expected = [function(mpmath.mpf(argument)) for argument in arguments]
        actual = [mpmath.mpf(high) + mpmath.mpf(low) for high, low in zip(*(part.tolist() for part in pair), strict=True)]
        return max(float(abs(a / e - 1)) if e else float(a != 0) for a, e in zip(actual, expected, strict=True))


def test_pairs_have_96_bits():
    x = torch.cat((normal(200, scale=0.2), 10.0 ** -torch.arange(0.5, 200, dtype=torch.float64)))
    x = x[x.abs() < 0.5]
    nothing = torch.zeros_like(x)
    mantissa, power = dd.exp((600 * x, nothing))
    assert relative_error(dd.scale(mantissa, power), mpmath.exp, (600 * x).tolist()) < 2**-96
    assert relative_error(dd.expm1((x, nothing)), mpmath.expm1, x.tolist()) < 2**-96
    assert relative_error(dd.log1p((x, nothing)), mpmath.log1p, x.tolist()) < 2**-96
    assert relative_error(dd.log(x.abs()), mpmath.log, x.abs().tolist()) < 2**-96
    assert relative_error(dd.divide((x, nothing), torch.full_like(x, 0.7)), lambda v: v / mpmath.mpf(0.7), x.tolist()) < 2**-96


def test_exact_sums_and_products_are_exact():
    a, b = normal(1000, scale=1e8), normal(1000, seed=1, scale=1e-8)
    with mpmath.workdps(100):
        for exactly, operation in ((dd.two_sum, "__add__"), (dd.two_product, "__mul__")):
            high, low = exactly(a, b)
            for x, y, h, rest in zip(a.tolist(), b.tolist(), high.tolist(), low.tolist(), strict=True):
                assert getattr(mpmath.mpf(x), operation)(mpmath.mpf(y)) == mpmath.mpf(h) + mpmath.mpf(rest)


def test_powers_of_two_are_exact_down_to_the_smallest_number():
    exponents = torch.arange(-1100, 1024)
    ones = torch.ones(len(exponents), dtype=torch.float64)
    assert dd.scale((ones, ones), exponents)[0].tolist() == np.ldexp(1.0, exponents.numpy()).tolist()
