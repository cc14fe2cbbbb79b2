r"""Maps with a threshold: the level at which the probabilities of a row add up to 1, by steps inside a bracket.

Scores are z = (x − M)/τ ≤ 0. A map of this kind states, for a level [R, 1] in double that begins at or below its root,

    sums(z, beta, level) → (mass, slope)             Σ p and Σ w of a block, where a step needs w
    step(level, mass, slope, beta) → level           the next level by Newton, from the left
    probability(z, beta, b, c) → p                   at the level b + c
    beta(theta) → β                                  in double

Only scores above −1/β can have a probability. Those of a long row are gathered in a scratch row, and its level found there.

A step of Newton on a convex function f from the left has f′/f + s′/s ≤ 1, s the slope: the product of both falls to a quarter,
which bounds the number of steps by the logarithm of n/ε. Where f is not convex (β > 1) every third step, and later each, halves
the bracket. There a score enters with infinite slope, and neighbouring levels may leave a jump of Σ p across 1: of a map with

    edges(z, beta, low, high) → which scores have a probability that the bracket leaves open

b is then the highest of these scores, which is below 0, and c its probability, halved into place between 0 and 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from softmaxima.kernels.triton.arithmetic import INFINITY, gap, over, pulled, row_max, row_sum, weighed
from softmaxima.kernels.triton.launches import EACH_OF_STEPS, RowFunctions, Rows, next_power_of_2, warps
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

STEPS = tl.constexpr(96)  # no row takes as many
HALVINGS = tl.constexpr(54)  # of an interval of 1, for a double
NEWTON_STEPS = tl.constexpr(24)  # before the bracket is only halved, where f is not convex
GATHERED = 1 << 12  # candidates that a program reads at a time
TOLERANCE = tl.constexpr(2.0**-22)  # of a mass, where its terms are float32
WIDE_TOLERANCE = tl.constexpr(2.0**-50)
JUMP_TOLERANCE = tl.constexpr(2.0**-40)  # the same where β > 1
STEEPEST = tl.constexpr(2.0**24)  # what a level of two float32 terms says little of
WIDE_STEEPEST = tl.constexpr(2.0**11)


class Method(NamedTuple):
    """The functions of a map with a threshold; `edges` is None where no mass jumps."""

    beta: Any
    bracket: Any
    sums: Any
    step: Any
    probability: Any
    edges: Any = None


@triton.jit
def is_one(mass, beta, like):
    if like.dtype == tl.float64:
        tolerance = tl.where(beta <= 1.0, WIDE_TOLERANCE, JUMP_TOLERANCE)
    else:
        tolerance = TOLERANCE
    return (tl.abs(mass - 1.0) <= tolerance) | (mass != mass) | (mass == 0.0)


@triton.jit
def is_settled(mass, slope, level, before, beta, like):
    """Whether the level stays, or the mass is 1 and (for β > 1) the last digit of the level does not change that."""
    steepest = WIDE_STEEPEST if like.dtype == tl.float64 else STEEPEST
    return (is_one(mass, beta, like) & ((beta <= 1.0) | (slope <= steepest) | (mass != mass))) | (level == before)


@triton.jit
def minus(z, level):
    """z − level for a level in double: near the level without a rounding, for what rounds it counts once for every score."""
    high = level.to(z.dtype)
    return (z - high) - (level - high.to(tl.float64)).to(z.dtype)


@triton.jit
def level_of(b, c):
    return b.to(tl.float64) + c.to(tl.float64)


@triton.jit
def bracketed(level, low, high, most, least, mass, slope, beta, settled, step, method):
    """(next level, bracket, the masses at its ends): Newton's step, the secant's where that is outside, or half of the bracket."""
    most, low = tl.where(mass >= 1.0, mass, most), tl.where(mass >= 1.0, level, low)
    least, high = tl.where(mass <= 1.0, mass, least), tl.where(mass <= 1.0, level, high)
    newton = method.step(level, mass, slope, beta)
    middle = (low + high) * 0.5
    inside = middle
    if method.edges is not None:
        if tl.max(beta) > 1.0:  # else Newton's steps leave the bracket by a rounding at most
            rise = tl.log(tl.where(most < INFINITY, most, 1.0))  # of an end not known yet 0, which makes the secant's the other
            fall = tl.log(tl.where(least > 0.0, least, 1.0))
            secant = low + (high - low) * (rise / tl.where(rise > fall, rise - fall, 1.0))
            inside = tl.where((secant > low) & (secant < high), secant, middle)
    inside = tl.where((newton >= low) & (newton <= high) & ((beta <= 1.0) | (newton != level)), newton, inside)
    halves = (beta > 1.0) & ~settled & ((step % 3 == 2) | (step >= NEWTON_STEPS))
    return tl.where(halves, middle, inside), low, high, most, least


@triton.jit
def solve(z, beta, lowest, highest, method):
    """(level, bracket, mass) of rows z [R, B], which stay on chip."""
    low, high, level = lowest, highest, lowest
    mass, slope = method.sums(z, beta, level)
    most, least = tl.full(mass.shape, INFINITY, tl.float64), tl.zeros_like(mass)
    settled = is_settled(mass, slope, level, high, beta, z)
    moves = ~settled
    step = 0
    while (tl.max(moves.to(tl.int32)) > 0) & (step < STEPS):
        before = level
        level, under, above, most, least = bracketed(level, low, high, most, least, mass, slope, beta, settled, step, method)
        level = tl.where(moves, level, before)  # so that a row is the same beside whatever rows
        low, high = tl.where(moves, under, low), tl.where(moves, above, high)
        mass, slope = method.sums(z, beta, level)
        rests = settled | (beta <= 1.0)  # above, where the tolerance is wider, after one step more
        settled = is_settled(mass, slope, level, before, beta, z)
        moves = moves & ~(settled & rests)
        step += 1
    return level, low, high, mass


@triton.jit
def products_of(z, beta, b, c, method):
    """Σ p z."""
    products = method.probability(z, beta, b, c).to(tl.float64) * tl.where(z == -INFINITY, 0.0, z).to(tl.float64)
    return row_sum(products)


@triton.jit
def two_terms(level, mass, DTYPE: tl.constexpr):
    """The level as accumulators, NaN in a row with NaN."""
    high = tl.where(mass != mass, mass, level).to(DTYPE)
    return high, (level - high.to(tl.float64)).to(DTYPE)


@triton.jit
def begin_rows(x, theta, tau, TEMPERED: tl.constexpr, method):
    """(M, b, c, Σ p z) of rows on chip."""
    beta = method.beta(theta)
    maximum = row_max(x)
    z = over(gap(x, maximum), tau, TEMPERED)
    low, high = method.bracket(row_sum((x > -INFINITY).to(x.dtype)))
    level, low, high, mass = solve(z, beta, low, high, method)
    b, c = two_terms(level, mass, z.dtype)
    if method.edges is not None:
        jumps = (beta > 1.0) & (b == b)
        if tl.max(jumps.to(tl.int32)) > 0:
            jumps = jumps & ~is_one(row_sum(method.probability(z, beta, b, c).to(tl.float64)), beta, z)
        if tl.max(jumps.to(tl.int32)) > 0:
            edge = row_max(tl.where(method.edges(z, beta, low, high), z, -INFINITY))
            jumps = jumps & (edge > -INFINITY)
            b, under, share = tl.where(jumps, edge, b), tl.zeros_like(c), tl.full(c.shape, 1.0, c.dtype)
            for _ in range(HALVINGS):
                middle = (under + share) * 0.5
                exceeds = row_sum(method.probability(z, beta, b, tl.where(jumps, middle, c)).to(tl.float64)) > 1.0
                under, share = tl.where(exceeds, under, middle), tl.where(exceeds, middle, share)
            c = tl.where(jumps, under, c)
    return maximum, b, c, products_of(z, beta, b, c, method).to(z.dtype)


@triton.jit
def finish_rows(x, beta, tau, TEMPERED: tl.constexpr, a, b, c, PROBABILITY: tl.constexpr):
    return PROBABILITY(over(gap(x, a), tau, TEMPERED), beta, b, c)


@triton.jit
def first(is_part, a, b, c, d, theta, tau, TEMPERED: tl.constexpr):
    """The merge of a row that has one part."""
    return row_max(a), row_sum(tl.where(is_part, b, 0.0)), row_sum(tl.where(is_part, c, 0.0)), row_sum(tl.where(is_part, d, 0.0))


@triton.jit
def conjugate_of(d, beta, depth):
    """(β Σ p z + (1 − p_max^β)/β)/(1 + β), by the depth (1 − p_max^β)/β."""
    return (beta * d.to(tl.float64) + depth) / (1.0 + beta)


@triton.jit
def begin_derivative(s, g):
    """(Σ s g of moderate g, of large ones, Σ s) of a gradient s ⊙ (g − Σ s g / Σ s)."""
    moderate, large = weighed(s, g)
    return moderate, large, row_sum(s), tl.zeros_like(moderate)


@triton.jit
def finish_derivative(s, g, a, b, c):
    return pulled(s, g, a, b, tl.where(c == 0.0, 1.0, c))


# Long rows ------------------------------------------------------------------------------------------------------------------


@triton.jit
def begin_maximum(x, p, g, column, theta, tau, TEMPERED: tl.constexpr):
    """(max x, whether there is a NaN or +∞)."""
    maximum = row_max(x)
    spoilt = row_sum(((x != x) | (x == INFINITY)).to(x.dtype))
    return maximum, spoilt, tl.zeros_like(maximum), tl.zeros_like(maximum)


@triton.jit
def candidates_of(rows, group, BETA: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr):
    """(the program, z, which of them can have a probability) of a part."""
    index, row, column = part_of(group, WIDTH)
    is_part, a, b, c, d = read_parts(group, index // group.programs, tl.num_programs(0).to(tl.int64), PARTS)
    beta = BETA(read_theta(rows.theta, row))
    tau = read_number(rows.tau, rows.taus, row)
    scores = read_scores(rows, row, column, column < rows.n)
    z = over(gap(scores, row_max(a)), tau, rows.TEMPERED)
    return index, z, (beta.to(rows.COMPUTE) * z > -1.0) & (z > -INFINITY)


@triton.jit
def count_candidates(rows, group, counts, BETA: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr):
    index, z, is_candidate = candidates_of(rows, group, BETA, WIDTH, PARTS)
    tl.store(counts + index, tl.sum(is_candidate.to(tl.int32)))


@triton.jit
def gather_candidates(rows, group, counts, gathered, BETA: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr):
    """gathered [*, n]: the candidates of each row, in their order."""
    index, z, is_candidate = candidates_of(rows, group, BETA, WIDTH, PARTS)
    part = tl.arange(0, PARTS)
    row = index // group.programs
    before = tl.sum(tl.load(counts + row * group.programs + part, mask=part < index % group.programs, other=0))
    place = before + tl.cumsum(is_candidate.to(tl.int32), 1) - 1
    tl.store(gathered + row * rows.n + place, z, mask=is_candidate)


@triton.jit
def read_gathered(gathered, at, total, WIDTH: tl.constexpr):
    place = at + tl.arange(0, WIDTH)[None, :]
    return tl.load(gathered + place, mask=place < total, other=-INFINITY)


@triton.jit
def gathered_sums(gathered, total, beta, level, method, WIDTH: tl.constexpr):
    mass = tl.zeros((1, 1), tl.float64)
    slope = tl.zeros((1, 1), tl.float64)
    for at in range(0, total, WIDTH):
        more, steeper = method.sums(read_gathered(gathered, at, total, WIDTH), beta, level)
        mass += more
        slope += steeper
    return mass, slope


@triton.jit
def gathered_mass(gathered, total, beta, b, c, method, WIDTH: tl.constexpr):
    mass = tl.zeros((1, 1), tl.float64)
    for at in range(0, total, WIDTH):
        mass += row_sum(method.probability(read_gathered(gathered, at, total, WIDTH), beta, b, c).to(tl.float64))
    return mass


@triton.jit
def solve_gathered(rows, group, counts, gathered, solved, method, WIDTH: tl.constexpr, PARTS: tl.constexpr):
    """solved [4, *, 1]: what `begin_rows` says, of one gathered row a program."""
    index = tl.program_id(0).to(tl.int64)
    height = tl.num_programs(0).to(tl.int64)
    is_part, a, b, c, d = read_parts(group, index, height * group.parts, PARTS)
    maximum = row_max(a)
    spoilt = row_sum(tl.where(is_part, b, 0.0)).to(tl.float64)
    part = tl.arange(0, PARTS)
    total = tl.sum(tl.load(counts + index * group.parts + part, mask=part < group.parts, other=0))
    gathered += index * rows.n
    beta = method.beta(read_theta(rows.theta, tl.zeros((1, 1), tl.int64) + group.first + index))
    low, high = method.bracket(tl.zeros((1, 1), rows.COMPUTE) + total)
    level = low
    mass, slope = gathered_sums(gathered, total, beta, level, method, WIDTH)
    most, least = tl.full((1, 1), INFINITY, tl.float64), tl.zeros_like(mass)
    settled = is_settled(mass, slope, level, high, beta, maximum)
    moving = tl.max(tl.where(settled | (spoilt > 0.0), 0, 1))
    step = 0
    while (moving > 0) & (step < STEPS):
        before = level
        level, low, high, most, least = bracketed(level, low, high, most, least, mass, slope, beta, settled, step, method)
        mass, slope = gathered_sums(gathered, total, beta, level, method, WIDTH)
        rests = settled | (beta <= 1.0)  # as in `solve`
        settled = is_settled(mass, slope, level, before, beta, maximum)
        moving = tl.max(tl.where(settled & rests, 0, 1))
        step += 1
    b, c = two_terms(level, mass, rows.COMPUTE)
    if method.edges is not None:
        edge = tl.full((1, 1), -INFINITY, rows.COMPUTE)
        if tl.max(tl.where((beta > 1.0) & (spoilt == 0.0), 1, 0)) > 0:
            mass = gathered_mass(gathered, total, beta, b, c, method, WIDTH)
            if tl.max(is_one(mass, beta, maximum).to(tl.int32)) == 0:
                for at in range(0, total, WIDTH):
                    z = read_gathered(gathered, at, total, WIDTH)
                    edge = tl.maximum(edge, row_max(tl.where(method.edges(z, beta, low, high), z, -INFINITY)))
        if tl.max(edge) > -INFINITY:
            b, under, share = edge, tl.zeros_like(edge), tl.full((1, 1), 1.0, rows.COMPUTE)
            for _ in range(HALVINGS):
                c = (under + share) * 0.5
                exceeds = gathered_mass(gathered, total, beta, b, c, method, WIDTH) > 1.0
                under, share = tl.where(exceeds, under, c), tl.where(exceeds, c, share)
            c = under
    b = tl.where(spoilt > 0.0, float("nan"), b)
    products = tl.zeros((1, 1), tl.float64)
    for at in range(0, total, WIDTH):
        products += products_of(read_gathered(gathered, at, total, WIDTH), beta, b, c, method)
    write_parts(solved, index, height, maximum, b, c, products.to(rows.COMPUTE))


# Launches -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Threshold(RowFunctions):
    """What a map with a threshold does with its rows."""

    merge: Any = first
    each: int = EACH_OF_STEPS
    method: Method

    def accumulated(self, rows: Rows, p: Tensor | None, g: Tensor | None) -> Iterator[tuple[int, Group]]:
        for taken, group in rows.shared():
            programs, partial = taken * group.programs, group.partial
            begin_parts[(programs,)](rows.scores, self.inputs(p, g), group, BEGIN=begin_maximum, **rows.block)
            counts = partial.new_empty(programs, dtype=torch.int32)
            gathered = partial.new_empty((taken, rows.n))
            solved = partial.new_empty((4, taken, 1))
            merging = {"PARTS": next_power_of_2(group.parts)}
            count_candidates[(programs,)](rows.scores, group, counts, BETA=self.method.beta, **rows.block, **merging)
            gather_candidates[(programs,)](rows.scores, group, counts, gathered, BETA=self.method.beta, **rows.block, **merging)
            solve_gathered[(taken,)](
                rows.scores, group, counts, gathered, solved, self.method, WIDTH=GATHERED, num_warps=warps(GATHERED), **merging
            )
            yield taken, group._replace(partial=solved, parts=1)
