"""minp_softmax: the softmax over {x ≥ M + τθ}, θ = log p, a sum of exponentials that begins when the largest score M is known.

Of a long row a first pass finds M, and a second adds up what is kept of each part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from softmaxima.kernels.triton.arithmetic import INFINITY, exp, gap, inverse, over, row_max, row_sum
from softmaxima.kernels.triton.launches import RowFunctions, Rows, next_power_of_2
from softmaxima.kernels.triton.rows import (
    Group,
    begin_parts,
    part_of,
    read_number,
    read_parts,
    read_scores,
    read_theta,
    write_parts,
)
from softmaxima.kernels.triton.softmax import BACKWARD as BACKWARD
from softmaxima.kernels.triton.threshold import begin_maximum


@triton.jit
def weight(x, maximum, theta, tau, TEMPERED: tl.constexpr):
    """e^{(x − M)/τ} of the scores that are kept; NaN of NaN and of M = +∞."""
    lowest = maximum.to(tl.float64) + tau * theta[0]
    return tl.where(x.to(tl.float64) < lowest, 0.0, exp(over(gap(x, maximum), tau, TEMPERED)))


@triton.jit
def begin(x, p, g, column, theta, tau, TEMPERED: tl.constexpr):
    """(M, Σ e^{(x − M)/τ} over what is kept)."""
    maximum = row_max(x)
    mass = row_sum(weight(x, maximum, theta, tau, TEMPERED))
    return maximum, mass, tl.zeros_like(mass), tl.zeros_like(mass)


@triton.jit
def merge(is_part, a, b, c, d, theta, tau, TEMPERED: tl.constexpr):
    mass = row_sum(tl.where(is_part, b, 0.0))
    return row_max(a), mass, tl.zeros_like(mass), tl.zeros_like(mass)


@triton.jit
def finish(x, p, g, column, theta, tau, TEMPERED: tl.constexpr, a, b, c, d):
    mass = tl.where(a == INFINITY, float("nan"), b)
    return weight(x, a, theta, tau, TEMPERED) * inverse(mass)


@triton.jit
def add_kept(rows, group, masses, WIDTH: tl.constexpr, PARTS: tl.constexpr):
    """masses [4, *]: what `begin` says of each part of a long row, with the M of the whole row."""
    index, row, column = part_of(group, WIDTH)
    count = tl.num_programs(0).to(tl.int64)
    _is_part, a, _b, _c, _d = read_parts(group, index // group.programs, count, PARTS)
    maximum = row_max(a)
    tau = read_number(rows.tau, rows.taus, row)
    scores = read_scores(rows, row, column, column < rows.n)
    mass = row_sum(weight(scores, maximum, read_theta(rows.theta, row), tau, rows.TEMPERED))
    write_parts(masses, index, count, maximum, mass, tl.zeros_like(mass), tl.zeros_like(mass))


@dataclass(frozen=True, kw_only=True)
class Kept(RowFunctions):
    """What the map does with its rows."""

    merge: Any = merge

    def accumulated(self, rows: Rows, p: Tensor | None, g: Tensor | None) -> Iterator[tuple[int, Group]]:
        for taken, group in rows.shared():
            programs = (taken * group.programs,)
            begin_parts[programs](rows.scores, self.inputs(p, g), group, BEGIN=begin_maximum, **rows.block)
            masses = group.partial.new_empty(group.partial.shape)
            add_kept[programs](rows.scores, group, masses, PARTS=next_power_of_2(group.parts), **rows.block)
            yield taken, group._replace(partial=masses)


FORWARD = Kept(begin=begin, finish=finish)
