r"""Attention by a map with a threshold: D first, from the sums of passes over the keys, and then the values.

The first pass has M and lists the blocks of keys with a score that M so far does not rule out; the second, at D = 0, those with a
p that is not 0. As D rises none comes back, so that later passes read the listed blocks alone. Newton's step is on (Σp)^β for
β ≤ 1, which is convex in D, with the slope Σs, and comes from the left; for β > 1 every third step halves a bracket instead. The
last pass adds up the values, divides them by the Σp that it finds, and marks the blocks that have a p for the derivative.
"""

from __future__ import annotations

import triton
import triton.language as tl

from softmaxima.kernels.triton.arithmetic import INFINITY
from softmaxima.kernels.triton.attention_blocks import (
    any_of,
    block_of,
    depth_of,
    is_spoilt,
    log1p,
    matrix_of,
    of_sinks,
    product,
    read,
    read_first,
    read_length,
    read_numbers,
    scores,
    span,
    weighted,
    write,
    write_state,
)

STEPS = tl.constexpr(40)
TOLERANCE = tl.constexpr(2.0**-18)  # of Σp, before a last step that costs no pass
HIGHEST = tl.constexpr(1.0 + 2.0**-16)  # times an end of the bracket, for its own rounding
HALF_TOLERANCE = tl.constexpr(2.0**-12)  # where scores have the rounding of a half


@triton.jit
def scores_of(problem, q, batch, head, at, row, length, inverse, BLOCK: tl.constexpr):
    """Scores of the keys from `at` on."""
    key = read(problem.k, batch, head // problem.groups, at, length, problem.SIZE, BLOCK, q.shape[1], True)
    column = (at + tl.arange(0, BLOCK)).to(tl.int32)[None, :]
    return scores(problem, product(q, key, problem.PRECISION), batch, head, row, column, length, inverse, True)


@triton.jit
def bracketed(depth, low, high, mass, slope, order, step, UNIT: tl.constexpr):
    """(the next D, bracket)."""
    low, high = tl.where(mass >= 1.0, depth, low), tl.where(mass <= 1.0, depth, high)
    logarithm = log1p(tl.where(mass > 0.0, mass - 1.0, 0.0))
    rise = mass * tl.where(order <= 1.0, depth_of(logarithm, order), logarithm)
    newton = depth + UNIT * rise / tl.where(slope > 0.0, slope, 1.0)
    halves = (newton < low) | (newton > high) | ((order > 1.0) & (step % 3 == 2))
    return tl.where(halves, 0.5 * (low + high), newton), low, high


@triton.jit
def moving(mass, depth, before, TOLERANCE: tl.constexpr):
    """Whether some row has no D yet; one without scores, or with a NaN, has."""
    return any_of((tl.abs(mass - 1.0) > TOLERANCE) & (mass > 0.0) & (depth != before))


@triton.jit
def note_possible(
    problem, q, batch, head, row, length, inverse, order, begin, end, possible, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """(the largest score of each query, how many blocks of keys may have a probability); their numbers go to `possible`."""
    reach = problem.UNIT / tl.where(order == 0.0, 1.0, order)
    reach = tl.where(order == 0.0, INFINITY, reach)
    origin = tl.full((ROWS, 1), -INFINITY, tl.float32)
    if problem.SINK:
        origin = tl.maximum(origin, read_numbers(problem.sink, batch, head, row, problem.queries) * problem.UNIT)
    count = 0
    for at in range(begin, end, BLOCK):
        y = scores_of(problem, q, batch, head, at, row, length, inverse, BLOCK)
        origin = tl.maximum(origin, tl.max(y, 1)[:, None])
        is_possible = any_of(~(y <= origin - reach) | (y == INFINITY))  # NaN is
        tl.store(possible + count, at // BLOCK, mask=is_possible != 0)
        count += is_possible
    return tl.where(origin == -INFINITY, 0.0, origin), count


@triton.jit
def attend(
    problem, out, state, lists, marks, spoilt, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, CAREFUL: tl.constexpr,
):  # fmt: skip
    """lists [*, blocks of queries, 2, blocks of keys] is what programs note; marks [*, blocks of keys, blocks of queries] is 0."""
    if CAREFUL:
        if tl.load(spoilt + tl.program_id(0)) == 0:
            return
    index, first = block_of(problem.queries, ROWS)
    batch, head = matrix_of(problem, index)
    row = (first + tl.arange(0, ROWS)).to(tl.int32)[:, None]
    length = read_length(problem, index)
    inverse = read_numbers(problem.inverse, batch, head, row, problem.queries)
    order = read_numbers(problem.order, batch, head, row, problem.queries)
    q = read(problem.q, batch, head, first, problem.queries, problem.SIZE, ROWS, WIDTH, True)
    row_blocks, key_blocks = (problem.queries + ROWS - 1) // ROWS, (problem.keys + BLOCK - 1) // BLOCK
    possible = lists + (index * row_blocks + first // ROWS) * 2 * key_blocks
    listed = possible + key_blocks

    last, aside = tl.minimum(first + ROWS, problem.queries) - 1, read_first(problem, index)
    begin, _whole_begin, _whole_end, end = span(first + aside, last + aside, problem.left, problem.right, length, False, BLOCK)
    origin, count = note_possible(problem, q, batch, head, row, length, inverse, order, begin, end, possible, ROWS, BLOCK)
    tl.debug_barrier()  # what one thread notes all read

    depth = tl.zeros((ROWS, 1), tl.float32)
    mass, slope = of_sinks(problem, batch, head, row, origin, depth, order)
    kept = 0
    for i in range(count):
        block = tl.load(possible + i)
        y = scores_of(problem, q, batch, head, block.to(tl.int64) * BLOCK, row, length, inverse, BLOCK)
        p, s = problem.EXPONENTIAL(y - origin, order)
        mass += tl.sum(p, 1)[:, None]
        slope += tl.sum(s, 1)[:, None]
        is_kept = any_of(p != 0.0)
        tl.store(listed + kept, block, mask=is_kept != 0)
        kept += is_kept
    tl.debug_barrier()

    bound: tl.constexpr = TOLERANCE if q.dtype == tl.float32 else HALF_TOLERANCE
    most = tl.log(tl.zeros((1, 1), tl.float32) + (problem.keys + 1))
    low, high = depth, tl.zeros((ROWS, 1), tl.float32) + problem.UNIT * depth_of(most, order) * HIGHEST
    step = 0
    is_moving = moving(mass, depth, high, bound)
    while (is_moving > 0) & (step < STEPS):
        before = depth
        depth, low, high = bracketed(depth, low, high, mass, slope, order, step, problem.UNIT)
        mass, slope = of_sinks(problem, batch, head, row, origin, depth, order)
        for i in range(kept):
            at = tl.load(listed + i).to(tl.int64) * BLOCK
            y = scores_of(problem, q, batch, head, at, row, length, inverse, BLOCK)
            p, s = problem.EXPONENTIAL(y - origin - depth, order)
            mass += tl.sum(p, 1)[:, None]
            slope += tl.sum(s, 1)[:, None]
        is_moving = moving(mass, depth, before, bound)
        step += 1
    depth, low, high = bracketed(depth, low, high, mass, slope, order, 0, problem.UNIT)

    output = tl.zeros((ROWS, VALUE_WIDTH), tl.float32)
    mass, slope = of_sinks(problem, batch, head, row, origin, depth, order)
    for i in range(kept):
        block = tl.load(listed + i).to(tl.int64)
        y = scores_of(problem, q, batch, head, block * BLOCK, row, length, inverse, BLOCK)
        p, s = problem.EXPONENTIAL(y - origin - depth, order)
        mass += tl.sum(p, 1)[:, None]
        value = read(problem.v, batch, head // problem.groups, block * BLOCK, length, problem.VALUE_SIZE, BLOCK, VALUE_WIDTH, True)
        output = weighted(p, value, output, problem.PRECISION, CAREFUL)
        if marks is not None:
            mark = marks + (index * key_blocks + block) * row_blocks + first // ROWS
            tl.store(mark, any_of(p != 0.0).to(tl.int8))
    if not CAREFUL:
        tl.store(spoilt + tl.program_id(0), is_spoilt(output).to(tl.int8))
    output = output / tl.where(mass == 0.0, 1.0, mass)
    write(out, batch, head, first, problem.queries, output, problem.VALUE_SIZE, ROWS, VALUE_WIDTH)
    if state is not None:
        write_state(state, index * problem.queries + row, row < problem.queries, origin, depth)
