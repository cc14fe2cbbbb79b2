"""sparsified_logsumexp: the certified error holds, the share is what was evaluated, hard inputs, axes and errors."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import softmaxima as sm
from conftest import normal, rows

INF, NAN = math.inf, math.nan


@given(x=rows(), eps=st.floats(1e-12, 0.9), tau=st.sampled_from([1.0, 0.3, 7.0]))
def test_the_certified_interval_holds_the_truth_and_is_as_narrow_as_promised(x: Tensor, eps: float, tau: float):
    result = sm.sparsified_logsumexp(x, eps, temperature=tau)
    with mpmath.workdps(150):
        for i, row in enumerate(x.tolist()):
            z = [mpmath.mpf(score) / mpmath.mpf(tau) for score in row if score > -INF]
            truth = max(z) + mpmath.log(mpmath.fsum(mpmath.exp(score - max(z)) for score in z))
            assert mpmath.mpf(float(result.interval.lower[i])) <= truth <= mpmath.mpf(float(result.interval.upper[i]))
            kept = [score for score in z if score - max(z) >= mpmath.log(eps)]
            dropped, mass = len(z) - len(kept), mpmath.fsum(mpmath.exp(score - max(z)) for score in kept)
            assert float(result.evaluated[i]) == pytest.approx(len(kept) / len(z))
            assert float(result.value[i]) == pytest.approx(float(max(z) + mpmath.log(mass)), rel=1e-13, abs=1e-13)
            assert float(result.interval.width[i]) == pytest.approx(math.log1p(dropped * eps / mass), rel=1e-9, abs=1e-11)


def test_few_terms_of_spread_scores_are_evaluated():
    x = normal(4, 65_537, scale=20.0)
    result = sm.sparsified_logsumexp(x, 1e-6)
    assert bool((result.evaluated < 0.01).all())
    assert bool((result.interval.width < math.log1p(65_537e-6)).all())
    torch.testing.assert_close(result.value, torch.logsumexp(x, -1), atol=1e-4, rtol=0)


def test_every_dtype_gets_its_own_kind_and_a_valid_interval(dtype: torch.dtype):
    for offset in (0.0, 1e4, -1e4):
        x = (normal(3, 50, scale=5.0) + offset).to(dtype)
        result, truth = sm.sparsified_logsumexp(x), torch.logsumexp(x.double(), -1)
        assert result.value.dtype == result.interval.lower.dtype == result.evaluated.dtype == dtype
        assert bool((result.interval.lower.double() <= truth).all())
        assert bool((result.interval.upper.double() >= truth).all())


def test_nothing_infinities_and_nan(dtype: torch.dtype):
    x = torch.tensor([[-INF, -INF], [INF, 0.0], [NAN, 0.0], [3.0, -INF]], dtype=dtype)
    result = sm.sparsified_logsumexp(x)
    expected = torch.tensor([-INF, INF, NAN, 3.0], dtype=dtype)
    for end in (result.value, result.interval.lower, result.interval.upper):
        torch.testing.assert_close(end, expected, equal_nan=True, rtol=0, atol=0)
    assert result.evaluated[[0, 3]].tolist() == [1, 1]
    assert sm.sparsified_logsumexp(x[:, :0]).value.tolist() == [-INF] * 4
    assert sm.sparsified_logsumexp(x[:0]).value.shape == (0,)
    assert float(sm.sparsified_logsumexp(torch.tensor(2.5, dtype=dtype)).value) == 2.5


@pytest.mark.parametrize("dim", [0, 1, -1, -2])
def test_axes_layouts_masks_and_temperatures_are_those_of_logsumexp(dim: int):
    x = normal(3, 4, 5, scale=3.0)
    tau = (normal(3, 4, 5, seed=2) / 2).exp().narrow(dim, 0, 1)
    for view in (x, x.movedim(0, -1).contiguous().movedim(-1, 0)):
        for where in (None, normal(3, 4, 5, seed=1) > -1):
            result = sm.sparsified_logsumexp(view, 1e-15, dim, temperature=tau, where=where)
            torch.testing.assert_close(result.value, sm.logsumexp(x, dim, temperature=tau, where=where), atol=1e-12, rtol=1e-12)


def test_numpy_gives_numpy():
    x = normal(3, 5).numpy()
    result = sm.sparsified_logsumexp(x)
    assert isinstance(result.value, np.ndarray)
    assert isinstance(result.interval.lower, np.ndarray)
    assert isinstance(sm.sparsified_logsumexp(x[0]).value, np.float64)
    assert sm.sparsified_logsumexp(np.array([1, 1])).value == pytest.approx(1 + math.log(2))


def test_wrong_use_raises_and_says_what_to_do():
    x = normal(2, 3)
    for eps in (0.0, 1.0, -1.0, NAN, True, "small"):
        with pytest.raises((TypeError, ValueError), match=r"eps must be a number in \(0, 1\), got"):
            sm.sparsified_logsumexp(x, eps)
    with pytest.raises(TypeError, match=r"must be a torch.Tensor or a numpy.ndarray, got list"):
        sm.sparsified_logsumexp([1.0])
    with pytest.raises(IndexError, match="dim must be in"):
        sm.sparsified_logsumexp(x, dim=2)
