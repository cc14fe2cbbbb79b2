r"""The derivative of attention: with p and s of each block computed again, and ∂p_j = ⟨∂o, v_j⟩,

    ∂x_j = s_j (∂p_j − δ)/τ,  δ = Σ s_j ∂p_j / Σ s_j,  times the slope of a cap
    ∂q = scale Σ_j ∂x_j k_j,  ∂k_j = scale Σ_i ∂x_ij q_i,  ∂v_j = Σ_i p_ij ∂o_i

Of softmax, whose s is p, δ = ⟨∂o, o⟩ − ∂LSE. One kernel has the queries, finds δ and goes through the keys; another has the keys
and goes through the queries of every head that shares them. Each number has one writer, so that results are the same in each run.
Of a map with a threshold both are given lists of the blocks in which some p is not 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from softmaxima.kernels.triton.arithmetic import INFINITY
from softmaxima.kernels.triton.attention_blocks import (
    block_of,
    edge,
    edges,
    is_spoilt,
    matrix_of,
    of_sinks,
    product,
    read,
    read_first,
    read_length,
    read_numbers,
    read_state,
    scores,
    slope_of_cap,
    span,
    weighted,
    write,
)


class Slopes(NamedTuple):
    """What is given beside the problem."""

    g: Any
    out: Any  # o, None where it does not tell δ
    lse: Any  # ∂LSE, or None
    state: Any  # [*, queries, 2]
    delta: Any  # [*, queries]
    blocks: Any  # of each block of queries, or of keys, those of the others in which a p is not 0; None where a span says which
    counts: Any  # how many


@triton.jit
def probabilities(
    problem, x, batch, head, row, column, length, inverse, order, origin, depth,
    EDGE: tl.constexpr, CAREFUL: tl.constexpr,
):  # fmt: skip
    """(p, s) of products of queries and keys."""
    y = scores(problem, x, batch, head, row, column, length, inverse, EDGE)
    p, s = problem.EXPONENTIAL(y - origin - depth, order)
    if CAREFUL:  # of a query with a NaN
        p, s = tl.where(y == -INFINITY, 0.0, p), tl.where(y == -INFINITY, 0.0, s)
    return p, s


@triton.jit
def sloped(s, dp, CAREFUL: tl.constexpr):
    """s ∂p, of CAREFUL 0 where s is 0."""
    y = s * dp
    if CAREFUL:
        y = tl.where(s == 0.0, 0.0, y)
    return y


# Of queries -----------------------------------------------------------------------------------------------------------------


@triton.jit
def of_keys(
    problem, queries, batch, head, at, row, length, inverse, order, origin, depth,
    EDGE: tl.constexpr, BLOCK: tl.constexpr, CAREFUL: tl.constexpr,
):  # fmt: skip
    """(s, ∂p, keys, the slope of the cap) of the keys from `at` on."""
    q, g = queries
    key = read(problem.k, batch, head // problem.groups, at, length, problem.SIZE, BLOCK, q.shape[1], EDGE)
    value = read(problem.v, batch, head // problem.groups, at, length, problem.VALUE_SIZE, BLOCK, g.shape[1], EDGE)
    column = (at + tl.arange(0, BLOCK)).to(tl.int32)[None, :]
    x = product(q, key, problem.PRECISION)
    p, s = probabilities(
        problem, x, batch, head, row, column, length, inverse, order, origin, depth,
        EDGE, CAREFUL,
    )  # fmt: skip
    return s, product(g, value, problem.PRECISION), key, slope_of_cap(problem, x)


@triton.jit
def pull(s, dp, delta, key, slope, dq, PRECISION: tl.constexpr, CAREFUL: tl.constexpr):
    return weighted(sloped(s, (dp - delta) * slope, CAREFUL), key, dq, PRECISION, CAREFUL)


@triton.jit
def pull_queries(
    problem, slopes, dq, spoilt, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, CAREFUL: tl.constexpr,
):  # fmt: skip
    """Fills δ and ∂q."""
    if CAREFUL:
        if tl.load(spoilt + tl.program_id(0)) == 0:
            return
    index, first = block_of(problem.queries, ROWS)
    batch, head = matrix_of(problem, index)
    row = (first + tl.arange(0, ROWS)).to(tl.int32)[:, None]
    place, inside = index * problem.queries + row, row < problem.queries
    length = read_length(problem, index)
    inverse = read_numbers(problem.inverse, batch, head, row, problem.queries)
    order = read_numbers(problem.order, batch, head, row, problem.queries)
    q = read(problem.q, batch, head, first, problem.queries, problem.SIZE, ROWS, WIDTH, True)
    g = read(slopes.g, batch, head, first, problem.queries, problem.VALUE_SIZE, ROWS, VALUE_WIDTH, True)
    origin, depth = read_state(slopes.state, place, inside)
    gradient = tl.zeros((ROWS, WIDTH), tl.float32)
    if slopes.blocks is None:
        out = read(slopes.out, batch, head, first, problem.queries, problem.VALUE_SIZE, ROWS, VALUE_WIDTH, True)
        delta = tl.sum(g.to(tl.float32) * out.to(tl.float32), 1)[:, None]
        if slopes.lse.data is not None:
            delta -= read_numbers(slopes.lse, batch, head, row, problem.queries)
        last, aside = tl.minimum(first + ROWS, problem.queries) - 1, read_first(problem, index)
        begin, whole_begin, whole_end, end = span(first + aside, last + aside, problem.left, problem.right, length, True, BLOCK)
        for at in range(whole_begin, whole_end, BLOCK):
            s, dp, key, slope = of_keys(
                problem, (q, g), batch, head, at, row, length, inverse, order, origin, depth, False, BLOCK, CAREFUL
            )
            gradient = pull(s, dp, delta, key, slope, gradient, problem.PRECISION, CAREFUL)
        for i in range(edges(begin, whole_begin, whole_end, end, BLOCK)):
            at = edge(i, begin, whole_begin, whole_end, BLOCK)
            s, dp, key, slope = of_keys(
                problem, (q, g), batch, head, at, row, length, inverse, order, origin, depth, True, BLOCK, CAREFUL
            )
            gradient = pull(s, dp, delta, key, slope, gradient, problem.PRECISION, CAREFUL)
    else:
        blocks, count = listed(
            slopes, index, first // ROWS, (problem.queries + ROWS - 1) // ROWS, (problem.keys + BLOCK - 1) // BLOCK
        )
        _, total = of_sinks(problem, batch, head, row, origin, depth, order)
        dot = tl.zeros((ROWS, 1), tl.float32)
        for i in range(count):
            s, dp, key, slope = of_keys(
                problem, (q, g), batch, head, tl.load(blocks + i) * BLOCK, row, length, inverse, order, origin, depth,
                True, BLOCK, CAREFUL,
            )  # fmt: skip
            total += tl.sum(s, 1)[:, None]
            dot += tl.sum(sloped(s, dp, CAREFUL), 1)[:, None]
        delta = dot / tl.where(total == 0.0, 1.0, total)
        for i in range(count):
            s, dp, key, slope = of_keys(
                problem, (q, g), batch, head, tl.load(blocks + i) * BLOCK, row, length, inverse, order, origin, depth,
                True, BLOCK, CAREFUL,
            )  # fmt: skip
            gradient = pull(s, dp, delta, key, slope, gradient, problem.PRECISION, CAREFUL)
    if not CAREFUL:
        tl.store(spoilt + tl.program_id(0), is_spoilt(gradient).to(tl.int8))
    tl.store(slopes.delta + place, delta, mask=inside)
    write(dq, batch, head, first, problem.queries, gradient * (inverse * problem.scale), problem.SIZE, ROWS, WIDTH)


@triton.jit
def listed(slopes, index, block, blocks, others):
    """(where the numbers of the others are, how many) of a block of a matrix."""
    place = index * blocks + block
    return slopes.blocks + place * others, tl.load(slopes.counts + place)


# Of keys and values ---------------------------------------------------------------------------------------------------------


@triton.jit
def add(
    problem, slopes, keys, batch, head, at, column, length, dk, dv,
    EDGE: tl.constexpr, ROWS: tl.constexpr, CAREFUL: tl.constexpr,
):  # fmt: skip
    """(∂k/scale, ∂v) with what the queries from `at` on add."""
    key, value = keys
    row = (at + tl.arange(0, ROWS)).to(tl.int32)[None, :]
    place, inside = (batch * problem.heads + head) * problem.queries + row, row < problem.queries
    inverse = read_numbers(problem.inverse, batch, head, row, problem.queries)
    order = read_numbers(problem.order, batch, head, row, problem.queries)
    origin, depth = read_state(slopes.state, place, inside)
    q = read(problem.q, batch, head, at, problem.queries, problem.SIZE, ROWS, key.shape[1], EDGE)
    g = read(slopes.g, batch, head, at, problem.queries, problem.VALUE_SIZE, ROWS, value.shape[1], EDGE)
    x = product(key, q, problem.PRECISION)
    p, s = probabilities(
        problem, x, batch, head, row, column, length, inverse, order, origin, depth,
        EDGE, CAREFUL,
    )  # fmt: skip
    dv = weighted(p, g, dv, problem.PRECISION, CAREFUL)
    slope = slope_of_cap(problem, x) * inverse
    dx = sloped(s, (product(value, g, problem.PRECISION) - tl.load(slopes.delta + place, mask=inside, other=0.0)) * slope, CAREFUL)
    return weighted(dx, q, dk, problem.PRECISION, CAREFUL), dv


@triton.jit
def pull_keys(
    problem, slopes, dk, dv, spoilt, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, CAREFUL: tl.constexpr,
):  # fmt: skip
    """Fills ∂k and ∂v of a head of keys, from all heads of queries that share it."""
    if CAREFUL:
        if tl.load(spoilt + tl.program_id(0)) == 0:
            return
    shared, first = block_of(problem.keys, BLOCK)
    heads = problem.heads // problem.groups
    batch, own = shared // heads, shared % heads
    column = (first + tl.arange(0, BLOCK)).to(tl.int32)[:, None]
    key = read(problem.k, batch, own, first, problem.keys, problem.SIZE, BLOCK, WIDTH, True)
    value = read(problem.v, batch, own, first, problem.keys, problem.VALUE_SIZE, BLOCK, VALUE_WIDTH, True)
    key_gradient, value_gradient = tl.zeros((BLOCK, WIDTH), tl.float32), tl.zeros((BLOCK, VALUE_WIDTH), tl.float32)
    for member in range(problem.groups):
        head = own * problem.groups + member
        index = batch * problem.heads + head
        length = read_length(problem, index)
        if slopes.blocks is None:
            last, aside = tl.minimum(first + BLOCK, length) - 1, read_first(problem, index)
            begin, whole_begin, whole_end, end = span(
                first - aside, last - aside, problem.right, problem.left, problem.queries, first + BLOCK <= length, ROWS
            )
            end = tl.where(first < length, end, begin)
            for at in range(whole_begin, whole_end, ROWS):
                key_gradient, value_gradient = add(
                    problem, slopes, (key, value), batch, head, at, column, length, key_gradient, value_gradient,
                    False, ROWS, CAREFUL,
                )  # fmt: skip
            for i in range(edges(begin, whole_begin, whole_end, end, ROWS)):
                key_gradient, value_gradient = add(
                    problem, slopes, (key, value), batch, head, edge(i, begin, whole_begin, whole_end, ROWS), column, length,
                    key_gradient, value_gradient, True, ROWS, CAREFUL,
                )  # fmt: skip
        else:
            blocks, count = listed(
                slopes, index, first // BLOCK, (problem.keys + BLOCK - 1) // BLOCK, (problem.queries + ROWS - 1) // ROWS
            )
            for i in range(count):
                key_gradient, value_gradient = add(
                    problem, slopes, (key, value), batch, head, tl.load(blocks + i) * ROWS, column, length,
                    key_gradient, value_gradient, True, ROWS, CAREFUL,
                )  # fmt: skip
    if not CAREFUL:
        tl.store(spoilt + tl.program_id(0), (is_spoilt(key_gradient) | is_spoilt(value_gradient)).to(tl.int8))
    write(dk, batch, own, first, problem.keys, key_gradient * problem.scale, problem.SIZE, BLOCK, WIDTH)
    write(dv, batch, own, first, problem.keys, value_gradient, problem.VALUE_SIZE, BLOCK, VALUE_WIDTH)
