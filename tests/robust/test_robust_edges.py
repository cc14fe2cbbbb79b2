"""Bounds at edges: of a support, of what float64 holds, and of what it tells apart."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor

from conftest import normal
from softmaxima import robust


def exact_normmax(x: list[Any], alpha: float) -> list[Any]:
    """In 60 digits."""
    with mpmath.workdps(60):
        power = lambda level: [max(v - level, mpmath.mpf(0)) ** (1 / (mpmath.mpf(alpha) - 1)) for v in x]
        high = max(x)
        low = high - 1
        for _ in range(190):
            middle = (low + high) / 2
            low, high = (middle, high) if sum(u**alpha for u in power(middle)) >= 1 else (low, middle)
        u = power(low)
        return [each / sum(u) for each in u]


EDGES = ([1.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.0, 1 - 1e-15], [0.3, 0.3, -0.6], [0.0, 0.0, 0.0], [2.0, 1.0 + 1e-13, 1.5])


@pytest.mark.parametrize("alpha", [1.1, 2.0, 3.0, 5.0])
@pytest.mark.parametrize("eps", [0.0, 1e-15, 1e-11, 1e-9, 1e-3])
@pytest.mark.parametrize("x", EDGES, ids=str)
def test_bounds_of_normmax_hold_at_the_edge_of_its_support(alpha: float, eps: float, x: list[float]):
    worst = robust.worst_probabilities("normmax", torch.tensor(x, dtype=torch.float64), eps, alpha=alpha)
    n = len(x)
    signs = [[1 if j == i else -1 for j in range(n)] for i in range(n)]
    with mpmath.workdps(60):
        for sign in [*signs, *([-s for s in row] for row in signs), [0] * n]:
            p = exact_normmax([mpmath.mpf(v) + s * mpmath.mpf(eps) for v, s in zip(x, sign, strict=True)], alpha)
            assert all(low <= v <= high for low, v, high in zip(worst.lower.tolist(), p, worst.upper.tolist(), strict=True))


@pytest.mark.parametrize("alpha", [50.0, 400.0])
def test_bounds_of_normmax_hold_where_powers_underflow(alpha: float):
    x = normal(4, 300, scale=0.1)
    ends = robust.interval("normmax", x, x + 0.01, alpha=alpha)
    from softmaxima.maps import REGISTRY

    for step in (0.0, 0.003, 0.01):
        p: Tensor = REGISTRY["normmax"](x + step * (normal(4, 300, seed=1) > 0), alpha=alpha)
        assert ((ends.lower <= p) & (p <= ends.upper)).all()
    assert (ends.upper > 0).any()
    assert not math.isnan(float(ends.lower.sum() + ends.upper.sum()))
