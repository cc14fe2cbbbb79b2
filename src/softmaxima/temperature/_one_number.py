"""The temperature of least log loss: argmin over b = 1/τ of the mean of log Σ_c exp(b x_c) − b x_t.

f(b) is convex, with f'(b) = mean ⟨p, x⟩ − x_t and f''(b) = mean Var_p(x). With d = x − max x ≤ 0 the optimum is where

    M(b) = −mean ⟨p, d⟩   and   T = −mean d_t   are equal,

M falling from b = 0 on. Newton's steps are those of log M = log T, b ← b + log(M/T) M/f'': M falls like e^{−mb} where most rows are
right, of which one step finds the root, and each step is longer than that of f' = 0 without overshooting where that does not. A
bracket holds the root, so that no step can leave it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from softmaxima.temperature._rows import NoOptimumError, Rows

KEPT = 2**24  # scores up to which the blocks are kept between passes
ROUNDED = 2e-14  # |M − T|/(M + T) that is rounding
PASSES = 200  # a bracket halves to neighbouring numbers in fewer


@dataclass(frozen=True, eq=False)
class _Block:
    """Rows as passes read them: d = (x − max x)/unit ≤ 0, and 0 where a class is left out."""

    d: Tensor  # [rows, n] float64
    allowed: Tensor | None  # [rows, n]
    target: Tensor  # [rows]
    share: Tensor  # [rows]

    def moments(self, b: float) -> tuple[Tensor, Tensor]:
        """−⟨p, d⟩ and Var_p(d), each the sum over rows of its share."""
        e = (self.d * b).exp_()
        if self.allowed is not None:
            e *= self.allowed
        mass = e.sum(-1)
        e *= self.d
        mean = e.sum(-1) / mass
        variance = torch.linalg.vecdot(e, self.d) / mass - mean * mean
        return -torch.dot(mean, self.share), torch.dot(variance, self.share)


def best_temperature(name: str, rows: Rows) -> tuple[float, int]:
    """τ, which is 0 or ∞ beyond the range of float64, and the number of passes."""
    exponent = rows.exponent
    shares = rows.shares

    def blocks() -> Iterator[_Block]:
        for part in rows.blocks():
            x = rows.x[part].double() * 2.0**-exponent
            allowed = None if rows.allowed is None else rows.allowed[part]
            if allowed is None:
                d = x - x.amax(-1, keepdim=True)
            else:
                d = (x - x.masked_fill(~allowed, -math.inf).amax(-1, keepdim=True)).masked_fill(~allowed, 0.0)
            yield _Block(d, allowed, rows.target(d, part), shares[part])

    kept = list(blocks()) if rows.x.numel() <= KEPT else None

    def passed(b: float) -> tuple[float, float]:
        totals = [torch.stack(block.moments(b)) for block in kept or blocks()]
        found, spread = torch.stack(totals).sum(0).tolist()
        return found, spread

    wanted = -float(sum(torch.dot(block.target, block.share) for block in kept or blocks()))  # T
    found, spread = passed(0.0)
    if found == 0:
        raise NoOptimumError(
            "equal",
            f"{name}: the scores of each row are equal, which no temperature changes; give scores that differ between classes",
        )
    if wanted == 0:
        raise NoOptimumError(
            "separable",
            f"{name}: every row's label has the highest score, so that the log loss falls without end towards a temperature of 0; "
            "give rows on which the model errs, or `minimum` or `label_smoothing`",
        )
    if wanted >= found:
        raise NoOptimumError(
            "chance",
            f"{name}: the labels' scores are no higher than the mean of their rows, so that the log loss falls towards an infinite "
            "temperature; look whether labels and columns are in one order, or give `maximum`",
        )
    low, high, b = 0.0, math.inf, math.log(found / wanted) * found / spread
    steps = 1
    while steps < PASSES:
        steps += 1
        found, spread = passed(b)
        if abs(found - wanted) <= ROUNDED * (found + wanted):
            break
        low, high = (b, high) if found > wanted else (low, b)
        step = math.log(found / wanted) * found / spread if found > 0 and spread > 0 else math.nan
        before, b = b, b + step
        if not low < b < high:  # NaN too
            b = 4 * low if math.isinf(high) else (low + high) / 2
        if abs(b - before) <= 2.0**-52 * before:
            break
    return _over(b, exponent), steps


def _over(b: float, exponent: int) -> float:
    """2^exponent/b."""
    try:
        return math.ldexp(1 / b, exponent)
    except OverflowError:
        return math.inf
