r"""Attention by softmax, whose sums and values are added up in one pass over the keys.

With M the largest score so far, m = Σ e^{z − M} and o = Σ e^{z − M} v; a larger M′ that comes later multiplies both by e^{M − M′}.
At the end a sink, a score β whose value is 0, adds e^{β − M} to m. Kept for the derivative is M + log m, with which
p = e^{z − (M + log m)}.
"""

from __future__ import annotations

import triton
import triton.language as tl

from softmaxima.kernels.triton.arithmetic import INFINITY, LOG2_E, LOG_2
from softmaxima.kernels.triton.attention_blocks import (
    block_of,
    edge,
    edges,
    is_spoilt,
    matrix_of,
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


@triton.jit
def scores_of(problem, q, batch, head, at, row, length, inverse, EDGE: tl.constexpr, BLOCK: tl.constexpr):
    """Scores of the keys from `at` on."""
    key = read(problem.k, batch, head // problem.groups, at, length, problem.SIZE, BLOCK, q.shape[1], EDGE)
    column = (at + tl.arange(0, BLOCK)).to(tl.int32)[None, :]
    return scores(problem, product(q, key, problem.PRECISION), batch, head, row, column, length, inverse, EDGE)


@triton.jit
def add(
    problem, q, batch, head, at, row, length, inverse, maximum, mass, output,
    EDGE: tl.constexpr, BLOCK: tl.constexpr, CAREFUL: tl.constexpr,
):  # fmt: skip
    """(M, m, o) with the keys from `at` on."""
    y = scores_of(problem, q, batch, head, at, row, length, inverse, EDGE, BLOCK)
    top = tl.maximum(maximum, tl.max(y, 1)[:, None])
    origin = tl.where(top == -INFINITY, 0.0, top)
    p = tl.exp2(y - origin)
    shrink = tl.exp2(maximum - origin)
    value = read(problem.v, batch, head // problem.groups, at, length, problem.VALUE_SIZE, BLOCK, output.shape[1], EDGE)
    output = weighted(p, value, output * shrink, problem.PRECISION, CAREFUL)
    return top, mass * shrink + tl.sum(p, 1)[:, None], output


@triton.jit
def attend(
    problem, out, lse, state, spoilt, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, CAREFUL: tl.constexpr,
):  # fmt: skip
    if CAREFUL:
        if tl.load(spoilt + tl.program_id(0)) == 0:
            return
    index, first = block_of(problem.queries, ROWS)
    batch, head = matrix_of(problem, index)
    row = (first + tl.arange(0, ROWS)).to(tl.int32)[:, None]
    length = read_length(problem, index)
    inverse = read_numbers(problem.inverse, batch, head, row, problem.queries)
    q = read(problem.q, batch, head, first, problem.queries, problem.SIZE, ROWS, WIDTH, True)
    maximum = tl.full((ROWS, 1), -INFINITY, tl.float32)
    mass, output = tl.zeros((ROWS, 1), tl.float32), tl.zeros((ROWS, VALUE_WIDTH), tl.float32)
    last, aside = tl.minimum(first + ROWS, problem.queries) - 1, read_first(problem, index)
    begin, whole_begin, whole_end, end = span(first + aside, last + aside, problem.left, problem.right, length, True, BLOCK)
    if CAREFUL:  # M first, for an o that was made smaller in steps would not know which p are 0
        for at in range(begin, end, BLOCK):
            y = scores_of(problem, q, batch, head, at, row, length, inverse, True, BLOCK)
            maximum = tl.maximum(maximum, tl.max(y, 1)[:, None])
    for at in range(whole_begin, whole_end, BLOCK):
        maximum, mass, output = add(
            problem, q, batch, head, at, row, length, inverse, maximum, mass, output, EDGE=False, BLOCK=BLOCK,
            CAREFUL=CAREFUL,
        )  # fmt: skip
    for i in range(edges(begin, whole_begin, whole_end, end, BLOCK)):
        at = edge(i, begin, whole_begin, whole_end, BLOCK)
        maximum, mass, output = add(
            problem, q, batch, head, at, row, length, inverse, maximum, mass, output, EDGE=True, BLOCK=BLOCK,
            CAREFUL=CAREFUL,
        )  # fmt: skip
    if not CAREFUL:
        tl.store(spoilt + tl.program_id(0), is_spoilt(output).to(tl.int8))
    place, inside = index * problem.queries + row, row < problem.queries
    level = maximum + tl.log2(tl.where(mass == 0.0, 1.0, mass))  # −∞ where nothing is seen
    if lse is not None:
        tl.store(lse + place, level * LOG_2, mask=inside)
    total = mass
    if problem.SINK:
        sink = read_numbers(problem.sink, batch, head, row, problem.queries) * LOG2_E
        total += tl.exp2(sink - tl.where(maximum == -INFINITY, 0.0, maximum))
        high, low = tl.maximum(level, sink), tl.minimum(level, sink)
        level = tl.where(low == -INFINITY, high, high + tl.log2(1.0 + tl.exp2(low - high)))
    output = output / tl.where(mass == 0.0, 1.0, total)
    write(out, batch, head, first, problem.queries, output, problem.VALUE_SIZE, ROWS, VALUE_WIDTH)
    if state is not None:
        write_state(state, place, inside, tl.where(maximum == -INFINITY, INFINITY, level), tl.zeros_like(level))
