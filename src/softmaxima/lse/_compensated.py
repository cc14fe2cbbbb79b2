r"""log|Σ b_i exp(x_i/τ)| within 1 ulp of float64.

    S = 2^K e^M (m + r),  M the score of the largest term,  2^K the exponent of its weight
    log|S| = M + K log 2 + log|c| + log1p((m + r − c)/c),  c = m where |r| ≤ |m|/2, else m + r rounded

in arithmetic of 106 bits, with a bound of the error. Where the bound is too large for the result (it is near 0 although its parts
are not, or the terms cancel) the row is summed in decimal arithmetic, with more digits until they suffice. They do at some number:
equal scores are put together exactly, and a sum of different exponentials with rational factors is transcendental (Lindemann &
Weierstrass), so that neither S is 0 nor |S| is 1 unless it is plain to see.
"""

from __future__ import annotations

import math
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from softmaxima.base import double_double as dd
from softmaxima.base.differentiable import batch_first
from softmaxima.base.double_double import Pair

BLOCK = 2**14  # scores at a time: what is held stays in cache
SMALLEST = -1500.0  # exp of less is 0
UNDERFLOW = -780.0  # a sum of so small terms is below all numbers
TERM_ERROR = 2.0**-93  # relative, of a term
BLOCK_ERROR = 2.0**-103  # relative, of a sum, for each block that is added
SUM_ERROR = 2.0**-100  # relative, of a sum of logarithms
ACCEPTED = 2.0**-60  # relative: far below half a unit in the last place
DIGITS = 60  # at first


@torch.library.custom_op("softmaxima::compensated_logsumexp", mutates_args=())
def _compensated(x: Tensor, taus: Tensor | None, tau: float, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    n = x.shape[-1]
    rows = x.reshape(-1, n)
    temperatures = (torch.full_like(x[..., :1], tau) if taus is None else taus.expand(*x.shape[:-1], 1)).reshape(-1, 1)
    factors = None if weights is None else weights.expand(x.shape).reshape(-1, n)
    value, sign = x.new_empty(len(rows)), x.new_empty(len(rows))
    height = max(1, BLOCK // n)
    for start in range(0, len(rows), height):
        part = slice(start, start + height)
        value[part], sign[part] = _sum_rows(rows[part], temperatures[part], None if factors is None else factors[part])
    return value.reshape(x.shape[:-1]), sign.reshape(x.shape[:-1])


@_compensated.register_fake
def _(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape[:-1]), x.new_empty(x.shape[:-1])


@_compensated.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    x, taus, tau, weights = batch_first(in_dims, args)
    return _compensated(x.expand(info.batch_size, *x.shape[1:]), taus, tau, weights), (0, 0)


def compensated_logsumexp(x: Tensor, tau: float | Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """(log|S| [...], the sign of S [...]) of x [..., n] in float64, n > 0, without a gradient.

    NaN where a row holds +∞, NaN or nothing: float64 has the answer.
    """
    taus, number = (tau.detach().to(x.dtype), 1.0) if isinstance(tau, Tensor) else (None, tau)
    return _compensated(x.detach(), taus, number, None if weights is None else weights.detach())


def _sum_rows(x: Tensor, tau: Tensor, weights: Tensor | None) -> Pair:
    """(log|S| [rows], sign [rows])."""
    used = x != -math.inf if weights is None else (x != -math.inf) & (weights != 0)
    size = x / tau if weights is None else x / tau + weights.abs().log()
    first = size.masked_fill(~used, -math.inf).argmax(-1, keepdim=True)
    origin = dd.divide((x.gather(-1, first), torch.zeros_like(tau)), tau)
    exponent = torch.zeros_like(first)
    if weights is not None:
        exponent = torch.frexp(weights.gather(-1, first)).exponent.to(torch.int64)
    m, r, uncertain, highest = _sum_blocks(x, tau, weights, used, origin, exponent)
    whole = dd.add(m, r)
    base = torch.where(r[0].abs() <= 0.5 * m[0].abs(), m[0], whole[0])
    base = torch.where(base == 0, 1.0, base)  # such a row is summed again
    excess = dd.add(dd.add(m, (-base, torch.zeros_like(base))), r)
    share = dd.divide(excess, base)
    logarithm = dd.add(dd.times_log_2(exponent.to(x.dtype)), dd.log(base.abs()))
    value = dd.add(dd.add(origin, logarithm), dd.log1p(share))
    # x/τ is rounded, and relative to M as much as M is.
    sum_error = TERM_ERROR + BLOCK_ERROR * (x.shape[-1] / BLOCK) + SUM_ERROR * origin[0].abs()
    error = SUM_ERROR * (origin[0].abs() + logarithm[0].abs()) + sum_error * uncertain / whole[0].abs()
    error = error.masked_fill((share[0].abs() < 2.0**-900) & (highest > UNDERFLOW), math.inf)
    value, sign = value[0], whole[0].sign()
    doubtful = ~((error <= ACCEPTED * value.abs()) | ((error == 0) & (value == 0)))
    ordinary = used.any(-1, keepdim=True) & ((size < math.inf) | ~used).all(-1, keepdim=True)
    for row in (doubtful & ordinary).squeeze(-1).nonzero().flatten().tolist():
        kept = used[row]
        factors = [1.0] * int(kept.sum()) if weights is None else weights[row, kept].tolist()
        value[row], sign[row] = _sum_in_decimals(x[row, kept].tolist(), float(tau[row]), factors)
    return value.masked_fill(~ordinary, math.nan).squeeze(-1), sign.squeeze(-1)


def _sum_blocks(
    x: Tensor, tau: Tensor, weights: Tensor | None, used: Tensor, origin: Pair, exponent: Tensor
) -> tuple[Pair, Pair, Tensor, Tensor]:
    """(m, r, Σ of what is not exact in them, the largest other score − M), each [rows, 1].

    The blocks are added to each other place by place, and the places at the end.
    """
    at_m, at_r = ((torch.zeros_like(x[:, :BLOCK]), torch.zeros_like(x[:, :BLOCK])) for _ in range(2))
    uncertain, highest = torch.zeros_like(tau), torch.full_like(tau, SMALLEST)
    for start in range(0, x.shape[-1], BLOCK):
        columns = slice(start, start + BLOCK)
        factors, kept = None if weights is None else weights[:, columns], used[:, columns]
        (high, low), relative = _terms(x[:, columns], tau, factors, kept, origin, exponent)
        largest = kept & (relative == 0)
        others = kept & (relative != 0)
        if factors is None:
            at_m[0][:, : kept.shape[-1]] += largest
        else:
            _add_to(at_m, high.masked_fill(~largest, 0.0), low.masked_fill(~largest, 0.0))
        _add_to(at_r, high.masked_fill(~others, 0.0), low.masked_fill(~others, 0.0))
        # Without weights m is a count, and exact.
        inexact = others if factors is None else kept
        uncertain += high.abs().masked_fill(~inexact, 0.0).sum(-1, keepdim=True)
        highest = torch.maximum(highest, relative.masked_fill(~others, SMALLEST).amax(-1, keepdim=True))
    return dd.total(at_m), dd.total(at_r), uncertain, highest


def _add_to(sums: Pair, high: Tensor, low: Tensor) -> None:
    """Add terms to the first places of the sums."""
    first = slice(0, high.shape[-1])
    for own, added in zip(sums, dd.add((sums[0][:, first], sums[1][:, first]), (high, low)), strict=True):
        own[:, first] = added


def _terms(x: Tensor, tau: Tensor, weights: Tensor | None, used: Tensor, origin: Pair, exponent: Tensor) -> tuple[Pair, Tensor]:
    """(b exp(x/τ − M)/2^K, x/τ − M) of a block."""
    nothing = torch.zeros_like(x)
    z = dd.divide((x.masked_fill(~used, 0.0), nothing), tau)
    relative = dd.add(z, (-origin[0], -origin[1]))
    far = ~(used & (relative[0] > SMALLEST))
    relative = relative[0].masked_fill(far, SMALLEST), relative[1].masked_fill(far, 0.0)
    mantissa, power = dd.exp(relative)
    if weights is not None:
        factor, its_exponent = torch.frexp(weights)
        mantissa = dd.multiply(mantissa, (factor, nothing))
        power = power + (its_exponent.to(torch.int64) - exponent)
    return dd.scale(mantissa, power), relative[0]


def _sum_in_decimals(scores: list[float], tau: float, weights: list[float]) -> tuple[float, float]:
    """(log|S|, sign), from as many decimal digits as it takes."""
    sums: dict[float, Fraction] = {}
    for score, weight in zip(scores, weights, strict=True):
        sums[score] = sums.get(score, Fraction(0)) + Fraction(weight)
    sums = {score: weight for score, weight in sums.items() if weight}
    if not sums:
        return -math.inf, 0.0
    if sums.keys() == {0.0} and abs(sums[0.0]) == 1:
        return 0.0, float(sums[0.0])
    top, digits = max(sums), DIGITS
    while True:
        with localcontext(Context(prec=digits, Emax=MAX_EMAX, Emin=MIN_EMIN)):
            temperature, highest = Decimal(tau), Decimal(top)
            factors = {score: Decimal(weight.numerator) / Decimal(weight.denominator) for score, weight in sums.items()}
            terms = [factor * ((Decimal(score) - highest) / temperature).exp() for score, factor in factors.items()]
            whole = sum(terms, Decimal(0))
            unit = Decimal(10) ** (1 - digits)
            lost = (len(terms) + 10) * unit * sum(map(abs, factors.values()))
            if abs(whole) > 2 * lost:
                logarithm = abs(whole).ln()
                value = highest / temperature + logarithm
                error = unit * (abs(highest / temperature) + abs(logarithm)) + 2 * lost / abs(whole)
                if error <= max(abs(value) * Decimal(ACCEPTED), Decimal(2) ** -1080):
                    return float(value), math.copysign(1.0, whole)
        digits *= 2
