"""precision: errors of logsumexp in units in the last place on hard rows, ours beside torch's and scipy's, against mpmath.

    error      |value − exact| / ulp(exact), for the result's own dtype
    exact      log |Σ b_i exp(x_i)| with DIGITS decimal digits, equal terms taken together

Half is the best that a rounded result can do. The scores of a row are what its dtype holds: their own rounding is not counted.
"""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

import softmaxima as sm
from softmaxima.base.numbers import InputError
from softmaxima_lab.bench.machine import versions

DIGITS = 60
EQUAL_TERMS, QUICK_EQUAL_TERMS = 10_000_000, 100_000
METHODS = ("softmaxima", "softmaxima compensated", "torch", "scipy")


@dataclass(frozen=True)
class Row:
    """A hard row: n times the scores x, with weights or without. The peers get the same row."""

    title: str
    x: Tensor
    weights: Tensor | None = None

    @property
    def dtype(self) -> str:
        return str(self.x.dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Result:
    """The errors of each method on a row, in units in the last place; None where a method cannot do it."""

    title: str
    dtype: str
    terms: int
    exact: float
    ulps: Mapping[str, float | None]


@dataclass(frozen=True)
class Precision:
    """Everything that was computed, and with what."""

    versions: Mapping[str, str]
    results: tuple[Result, ...]


def rows(equal_terms: int = EQUAL_TERMS) -> Iterator[Row]:
    """The hard rows: many terms, large offsets, results near 0, cancelling weights, half precision."""
    double = lambda *values: torch.tensor(values, dtype=torch.float64)
    normal = torch.randn(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    yield Row(f"{equal_terms:,} equal terms".replace(",", " "), torch.full((equal_terms,), 0.1, dtype=torch.float64))
    yield Row("1000 normal scores", normal)
    yield Row("a triple at 10⁶", double(1e6, 1e6 + 1e-9, 1e6 - 1e-9))
    yield Row("a triple at −10⁶", double(-1e6, -1e6 + 1e-9, -1e6 - 1e-9))
    yield Row("near 0: (0, −40)", double(0, -40))
    yield Row("near 0: (log 0.3, log 0.7)", double(math.log(0.3), math.log(0.7)))
    yield Row("near 0: three times log ⅓", double(*[math.log(1 / 3)] * 3))
    yield Row("weights (1, −1) on neighbours", double(1, 1 + 2**-40), double(1, -1))
    yield Row("weights (1, −2, 1) on neighbours", double(1, 1 + 2**-20, 1 + 2**-19), double(1, -2, 1))
    yield Row("1000 weights of both signs", normal, normal.flip(0))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        yield Row("1000 normal scores", normal.to(dtype))
        yield Row("100 000 equal terms", torch.full((100_000,), 0.1, dtype=dtype))
    yield Row("near 0: (0, −40)", torch.tensor([0.0, -40.0]))
    yield Row("a triple at 10⁴", torch.tensor([1e4, 1e4 + 1e-3, 1e4 - 1e-3]))


def precision(equal_terms: int = EQUAL_TERMS, starting: Callable[[str], None] = lambda what: None) -> Precision:
    """Measure every method on every row. `starting(what)` is called before each row. Raises `InputError` without mpmath."""
    results = []
    for row in rows(equal_terms):
        starting(f"{row.title}, {row.dtype}")
        exact = exact_logsumexp(row.x, row.weights)
        ulps = {method: _ulps(_METHODS[method](row), exact, row.x.dtype) for method in METHODS}
        results.append(Result(row.title, row.dtype, row.x.numel(), float(exact), ulps))
    return Precision(versions(), tuple(results))


def exact_logsumexp(x: Tensor, weights: Tensor | None) -> Any:
    """log|Σ b_i exp(x_i)| of one row, as a number of mpmath."""
    mpmath = _optional("mpmath")
    if mpmath is None:
        raise InputError("mpmath is not installed; run: pip install mpmath")
    factors: Counter[float] | dict[float, Fraction]
    if weights is None:
        scores, counts = x.double().unique(return_counts=True)
        factors = Counter(dict(zip(scores.tolist(), counts.tolist(), strict=True)))
    else:
        factors = {}
        for score, weight in zip(x.tolist(), weights.tolist(), strict=True):
            factors[score] = factors.get(score, Fraction(0)) + Fraction(weight)
    with mpmath.workdps(DIGITS):
        top = max(factors)
        terms = (
            mpmath.mpf(Fraction(factor).numerator) / Fraction(factor).denominator * mpmath.exp(mpmath.mpf(score) - top)
            for score, factor in factors.items()
        )
        return top + mpmath.log(abs(mpmath.fsum(terms)))


def _ulps(value: Tensor | None, exact: Any, dtype: torch.dtype) -> float | None:
    if value is None:
        return None
    info = torch.finfo(dtype)
    magnitude = max(abs(float(exact)), info.smallest_normal)
    unit = 2.0 ** (math.frexp(magnitude)[1] - 1) * info.eps
    return float(abs(_optional("mpmath").mpf(float(value)) - exact) / unit)


def _ours(row: Row) -> Tensor:
    return sm.logsumexp(row.x, weights=row.weights, return_sign=True)[0]


def _ours_compensated(row: Row) -> Tensor:
    return sm.logsumexp(row.x, weights=row.weights, return_sign=True, precision="compensated")[0]


def _torch(row: Row) -> Tensor | None:
    return None if row.weights is not None else torch.logsumexp(row.x, -1)


def _scipy(row: Row) -> Tensor | None:
    special = _optional("scipy.special")
    if special is None or row.x.dtype == torch.bfloat16:  # NumPy has no bfloat16
        return None
    b = None if row.weights is None else row.weights.numpy()
    with np.errstate(all="ignore"):
        value, _ = special.logsumexp(row.x.numpy(), b=b, return_sign=True)
    return torch.tensor(float(value), dtype=torch.float64)


_METHODS: Mapping[str, Callable[[Row], Tensor | None]] = {
    "softmaxima": _ours,
    "softmaxima compensated": _ours_compensated,
    "torch": _torch,
    "scipy": _scipy,
}


def _optional(module: str) -> Any:
    """The module, or None where it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        return None
