"""Every function that returns an interval: the exact value lies in it, from subnormal scores to the largest numbers; coverage."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import softmaxima as sm
from conftest import at_most, normal
from softmaxima.base.numbers import SMALLEST_TEMPERATURE
from softmaxima.lse.bounds._gaps import GapsAtOnce, read_rows
from softmaxima.lse.bounds.intervals import BOUNDS

INF = math.inf
LARGEST = 1.7976931348623157e308

Ends = tuple[Any, Any]


def ends(interval: Any) -> Ends:
    return interval.lower, interval.upper


def of_summary(bound: Callable[[sm.ScoreSummary], Any]) -> Callable[[Tensor, float], Ends]:
    """Each row in two blocks."""

    def function(x: Tensor, tau: float) -> Ends:
        summaries = [sm.ScoreSummary(tau).update(row[: len(row) // 2]).update(row[len(row) // 2 :]) for row in x]
        return tuple(zip(*(ends(bound(summary)) for summary in summaries), strict=True))  # type: ignore[return-value]

    return function


def of_estimate(method: str) -> Callable[[Tensor, float], Ends]:
    def function(x: Tensor, tau: float) -> Ends:
        found = [
            sm.estimate(row, 0.05, method=method, temperature=tau, maximum=max(float(row.max()), -LARGEST), generator=0)
            for row in x
        ]
        assert all(estimate.certificate == "deterministic" for estimate in found)
        return tuple(zip(*map(ends, found), strict=True))  # type: ignore[return-value]

    return function


# A function of (x [rows, n], τ) that returns intervals which are to hold LSE(x/τ). Any new one belongs here.
INTERVALS: dict[str, Callable[[Tensor, float], Ends]] = {
    "basic": lambda x, tau: ends(sm.basic_bounds(x, temperature=tau)),
    "mean": lambda x, tau: ends(sm.mean_bounds(x, temperature=tau)),
    "gap": lambda x, tau: ends(sm.gap_bounds(x, 3, temperature=tau)),
    "adaptive": lambda x, tau: ends(sm.adaptive_bounds(x, temperature=tau)),
    "adaptive 2": lambda x, tau: ends(sm.adaptive_bounds(x, 2.0, temperature=tau)),
    "histogram": lambda x, tau: ends(sm.histogram_bounds(x, temperature=tau)),
    "shannon": lambda x, tau: ends(sm.renyi_bounds(x, torch.ones(()), temperature=tau)),
    "renyi": lambda x, tau: ends(sm.renyi_bounds(x, normal(*x.shape).abs(), 1.7, temperature=tau)),
    "lipschitz": lambda x, tau: ends(sm.lipschitz_bounds(x, (0.75 * x.double()).to(x.dtype), temperature=tau)),
    "all": lambda x, tau: ends(sm.bounds(x, temperature=tau)),
    "sparsified": lambda x, tau: ends(sm.sparsified_logsumexp(x, 0.01, temperature=tau).interval),
    "robust": lambda x, tau: sm.robust_interval(x, 0.0, 0, temperature=tau),
    **{f"summary {bound}": of_summary(lambda summary, bound=bound: summary.interval(bound)) for bound in BOUNDS},
    "summary": of_summary(sm.ScoreSummary.bounds),
    "estimate": of_estimate("uniform"),
    "estimate bucket": of_estimate("bucket"),
}
ONE_SIDED = ("mean", "shannon", "renyi", "lipschitz", "summary mean")

every_interval = pytest.mark.parametrize("name", INTERVALS)


@st.composite
def magnitudes(draw: st.DrawFn, largest: int = 308) -> float:
    """Of any exponent that float64 has."""
    return min(
        draw(st.floats(1, 10)) * 10.0 ** draw(st.one_of(st.integers(-323, largest), st.sampled_from([-323, 0, largest]))), LARGEST
    )


@st.composite
def hard_rows(draw: st.DrawFn) -> tuple[Tensor, float]:
    """(x [rows, n] of any dtype, τ): all magnitudes of both, ties, −∞, neighbouring numbers, and gaps of a few τ far from zero."""
    dtype = draw(st.sampled_from([torch.float64, torch.float64, torch.float64, torch.float32, torch.bfloat16, torch.float16]))
    tau = draw(st.one_of(st.just(1.0), magnitudes().map(lambda tau: max(tau, SMALLEST_TEMPERATURE))))
    offset = draw(st.one_of(st.just(0.0), magnitudes())) * draw(st.sampled_from([-1.0, 1.0]))
    step = draw(st.one_of(st.just(tau), magnitudes()))
    score = st.one_of(
        st.floats(-800, 800).map(lambda gap: offset + gap * step),
        st.integers(-2, 2).map(lambda places: offset + places * math.ulp(offset)),
        st.sampled_from([offset, -offset, 0.0, LARGEST, -LARGEST, 5e-324]),
        st.just(-INF),
    )
    height, n = draw(st.integers(1, 3)), draw(st.integers(1, 9))
    table = torch.tensor([[draw(score) for _ in range(n)] for _ in range(height)], dtype=torch.float64)
    limit = torch.finfo(dtype).max
    return torch.where(table == -INF, table, table.clamp(-limit, limit)).to(dtype), tau


def excess(row: list[float], tau: float) -> tuple[Fraction, mpmath.mpf]:
    """(max x/τ exactly, LSE(x/τ) − max x/τ to 60 digits) of a row that is not −∞ alone."""
    scores = sorted(Fraction(score) for score in row if score > -INF)
    gaps = [(scores[-1] - score) / Fraction(tau) for score in scores[:-1]]
    # exp(−10⁴) is less than any difference of float64 numbers over τ
    terms = [mpmath.exp(-number(min(gap, Fraction(10_000)))) for gap in gaps]
    return scores[-1] / Fraction(tau), mpmath.log1p(mpmath.fsum(terms))


def number(value: Fraction) -> mpmath.mpf:
    return mpmath.mpf(value.numerator) / value.denominator


def assert_between(lower: float, upper: float, row: list[float], tau: float) -> None:
    if max(row) == -INF:
        assert lower == upper == -INF
        return
    with mpmath.workdps(60):
        top, rest = excess(row, tau)
        assert lower < INF
        assert upper > -INF
        assert lower == -INF or Fraction(lower) <= top or number(Fraction(lower) - top) <= rest
        assert upper == INF or (Fraction(upper) >= top and number(Fraction(upper) - top) >= rest)


@every_interval
@at_most(40)
@given(case=hard_rows())
def test_an_interval_holds_the_exact_value_at_every_magnitude(name: str, case: tuple[Tensor, float]):
    x, tau = case
    lower, upper = INTERVALS[name](x, tau)
    for low, high, row in zip(lower, upper, x.double().tolist(), strict=True):
        assert_between(float(low), float(high), row, tau)
        within = max(map(abs, row)) < 0.5 * min(1.0, tau) * torch.finfo(x.dtype).max
        if within and name not in ONE_SIDED:
            assert math.isfinite(low)
            assert math.isfinite(high)


# Bounds that are equalities on rows with a zero on top and the other scores far below: only their roundings keep the truth inside.
EQUALITIES: dict[str, Callable[[Tensor, float], Ends]] = {
    "gap": lambda x, tau: ends(sm.gap_bounds(x, x.shape[1], temperature=tau)),
    "adaptive": lambda x, tau: ends(sm.adaptive_bounds(x, float(-x.min() / tau), temperature=tau)),  # of one row of two levels
    "shannon": lambda x, tau: ends(sm.renyi_bounds(x, sm.softmax(x, temperature=tau), temperature=tau)),
    "lipschitz": lambda x, tau: ends(sm.lipschitz_bounds(x, x, temperature=tau)),
    "lipschitz moved": lambda x, tau: ends(sm.lipschitz_bounds(x, x - 10, temperature=tau)),
    "sparsified": lambda x, tau: ends(sm.sparsified_logsumexp(x, 1e-300, temperature=tau).interval),
    "robust": INTERVALS["robust"],
}


@pytest.mark.parametrize("name", EQUALITIES)
@pytest.mark.parametrize(("n", "nearest", "furthest"), [(2, 10, 30), (3, 10, 20), (8, 20, 60)])
def test_an_interval_holds_the_exact_value_where_its_bound_is_an_equality(name: str, n: int, nearest: int, furthest: int):
    uniform = torch.rand(40, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    x = -(nearest + (furthest - nearest) * uniform)
    x[:, 0] = 0
    if name == "adaptive":
        x[:, 1:] = x[:, 1:2]
    for rows in x.split(1 if name == "adaptive" else len(x)):
        lower, upper = EQUALITIES[name](rows, 0.7)
        for low, high, row in zip(lower, upper, rows.tolist(), strict=True):
            assert_between(float(low), float(high), row, 0.7)


@pytest.mark.parametrize("form", ["trimmed", "winsorized"])
@at_most(40)
@given(case=hard_rows(), proportion=st.floats(0, 0.49), data=st.data())
def test_a_robust_interval_holds_what_was_before_scores_were_replaced(
    form: str, case: tuple[Tensor, float], proportion: float, data: st.DataObject
):
    x, tau = case
    for row in x:
        present = row[row > -INF]
        cut = int(proportion * len(present))
        replaced = data.draw(st.integers(0, cut))
        corrupted = row.clone()
        places = (row > -INF).nonzero().flatten()[:replaced]
        corrupted[places] = torch.tensor(data.draw(st.sampled_from([INF, -60_000.0, 0.0, 60_000.0])), dtype=row.dtype)
        ranked = present.double().sort(descending=True).values.tolist()
        kept = ranked[cut : len(ranked) - cut]
        if form == "winsorized" and kept:
            kept = [kept[0]] * cut + kept + [kept[-1]] * cut
        lower, upper = sm.robust_interval(corrupted, proportion, replaced, form=form, temperature=tau)
        assert_between(float(lower), float(upper), kept or [-INF], tau)


def test_intervals_are_as_narrow_where_differences_overflow_as_elsewhere():
    for tau in (1.7e308, 2.0**1000):
        x = torch.tensor([[1.0, -1.0, 0.5, -0.75]], dtype=torch.float64)
        for name, function in INTERVALS.items():
            (lower, upper), (low, high) = function(x * tau, tau), function(x, 1.0)
            np.testing.assert_allclose(
                [float(lower[0]), float(upper[0])], [float(low[0]), float(high[0])], atol=1e-12, err_msg=name
            )


def spectra() -> dict[str, Tensor]:
    d = 24
    noise = normal(d, scale=0.3)
    spike, needle, two, cluster, hole = (
        noise.clone(),
        torch.zeros(d).double(),
        noise.clone(),
        noise.clone(),
        torch.zeros(d).double(),
    )
    spike[0] = needle[0] = 6.0
    two[:2] = torch.tensor([6.0, 5.5])
    cluster[:6] += 5.0
    hole[0] = -6.0
    tail = -2 * (torch.arange(d) / d + 0.01).log()
    return {
        "one spike": spike,
        "a spike over nothing": needle,
        "two spikes": two,
        "a cluster": cluster,
        "a hole": hole,
        "flat": torch.zeros(d).double(),
        "normal": normal(d, scale=2.0),
        "a heavy tail": tail,
    }


@pytest.mark.parametrize("spectrum", spectra())
def test_a_trace_lies_in_its_interval_as_often_as_that_claims_whatever_the_spectrum(spectrum: str):
    eigenvalues = spectra()[spectrum]
    truth, held, claimed, runs = float(sm.logsumexp(eigenvalues)), 0, 0, 60
    for seed in range(runs):
        estimate = sm.matrix_logsumexp(
            lambda V: eigenvalues[:, None] * V,
            size=len(eigenvalues),
            method="lanczos",
            deflation=4,
            confidence=0.95,
            tolerance=1.0,
            max_probes=32,
            generator=torch.Generator().manual_seed(seed),
        )
        claimed += estimate.certificate != "none"
        held += estimate.certificate != "none" and float(estimate.lower) <= truth <= float(estimate.upper)
    assert claimed == runs
    assert held >= 52  # 57 of 60, less 3 standard deviations


def test_no_interval_of_a_trace_is_claimed_beyond_what_draws_can_tell():
    eigenvalues = normal(60)
    options = {"size": 60, "method": "lanczos", "deflation": 2, "generator": torch.Generator().manual_seed(0)}
    certificates = [
        sm.matrix_logsumexp(lambda V: eigenvalues[:, None] * V, confidence=confidence, **options).certificate
        for confidence in (0.99, 0.999, 1 - 1e-9)
    ]
    assert certificates == ["asymptotic", "asymptotic", "none"]


def test_what_was_read_for_one_question_answers_no_other():
    rows = read_rows("bounds", normal(3, 1000), -1, 1.0, None)
    if not rows.is_native:
        pytest.skip("no rows are read at once")
    gaps = GapsAtOnce(rows, 8, 0.05, 10.0)
    for question, asked, other in (("smallest", (8,), (3,)), ("near", (None,), (1.0,)), ("histogram", (0.05, 10.0), (0.05, 12.0))):
        for answer, right in zip(getattr(gaps, question)(*asked), getattr(rows, question)(*asked), strict=True):
            torch.testing.assert_close(answer, right)
        with pytest.raises(ValueError, match=f"{question}: asked of"):
            getattr(gaps, question)(*other)
