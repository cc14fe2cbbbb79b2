r"""Rows of scores on a GPU: where they lie, what a program reads of them, and how a long one is shared among programs.

A map states three functions of a block of rows [R, B], whose accumulators (a, b, c, d) are numbers [R, 1]:

    begin(x, p, g, column, theta, tau, …) → (a, b, c, d)         what the block adds up to; τ and each of θ are double
    merge(a, b, c, d, theta, tau, …) → (a, b, c, d)              of all parts of a row [1, parts], along them
    finish(x, p, g, column, theta, tau, …, a, b, c, d) → out     each element, when the whole row is known

Of a row that fits on chip one program reads every number once. A longer one is cut into parts, each with a program that begins
it; a second launch merges the parts, in every program anew, and finishes its own. What is not given is 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from softmaxima.kernels.triton.arithmetic import INFINITY, narrowed, row_sum

# Triton takes a named tuple apart: numbers and pointers are arguments, None and the constants, in capitals, are compiled in.


class Scores(NamedTuple):
    """Rows of scores, and what each map takes with them."""

    x: Any  # None where only p and g are read
    stride: Any
    starts: Any  # of each row, in strides; None for one after the other
    tau: Any  # the bits of a double
    taus: Any
    theta: Any  # each the bits of a double, or one a row
    mask: Any
    blocks: Any
    n: Any
    TEMPERED: Any
    COMPUTE: Any


class Inputs(NamedTuple):
    """What derivatives read beside the scores, one number an element or one a row."""

    p: Any
    g: Any
    EACH_P: Any
    EACH_G: Any


class Outputs(NamedTuple):
    """What is written: one number an element, or two a row; a derivative is divided by τ and kept within its dtype."""

    out: Any
    EACH_OUT: Any
    DERIVATIVE: Any


class Group(NamedTuple):
    """Long rows that several programs share, from the `first` on."""

    partial: Any  # accumulators [4, rows, parts]
    parts: Any
    first: Any
    programs: Any  # of each row


@triton.jit
def place_of(places, row):
    """Which place of equally long ones a row has; its own number where nothing else is said."""
    place = row
    if places is not None:
        place = tl.load(places + row)
    return place


@triton.jit
def read_scores(rows, row, column, inside):
    """x of rows [R, 1] and columns [1, B], −∞ where masked or outside."""
    if rows.x is None:
        scores = tl.zeros((1, 1), rows.COMPUTE)
    else:
        place = rows.x + place_of(rows.starts, row) * rows.stride + column
        scores = tl.load(place, mask=inside, other=-INFINITY).to(rows.COMPUTE)
        if rows.mask is not None:
            is_counted = tl.load(rows.mask + place_of(rows.blocks, row) * rows.n + column, mask=inside, other=1) != 0
            scores = tl.where(is_counted, scores, -INFINITY)
    return scores


@triton.jit
def double(bits):
    """The double [1, 1] of these bits: what Triton takes as a float argument has 32."""
    return tl.full((1, 1), bits, tl.int64).to(tl.float64, bitcast=True)


@triton.jit
def read_number(number, numbers, row):
    """A parameter of the rows in double, [R, 1]."""
    if numbers is None:
        parameter = double(number)
    else:
        parameter = tl.load(numbers + row)
    return parameter


@triton.jit
def read_each(number, row):
    if number.dtype.is_ptr():
        value = tl.load(number + row)
    else:
        value = double(number)
    return value


@triton.jit
def read_theta(theta, row):
    """θ of the rows, as many [R, 1] in double as the map's kernel has numbers."""
    numbers = ()
    for i in tl.static_range(len(theta)):
        numbers = numbers + (read_each(theta[i], row),)  # noqa: RUF005 - Triton has no star
    return numbers


@triton.jit
def read_values(rows, values, row, place, inside, EACH: tl.constexpr):
    """A block of p or g, 0 outside: one number an element, or one a row."""
    if values is None:
        block = tl.zeros((1, 1), rows.COMPUTE)
    elif EACH:
        block = tl.load(values + place, mask=inside, other=0.0).to(rows.COMPUTE)
    else:
        block = tl.load(values + row).to(rows.COMPUTE)
    return block


@triton.jit
def read_block(rows, inputs, row, column, inside):
    """(x, p, g) of a block; 0 for what is not given."""
    scores = read_scores(rows, row, column, inside)
    place = row * rows.n + column
    probability = read_values(rows, inputs.p, row, place, inside, inputs.EACH_P)
    return scores, probability, read_values(rows, inputs.g, row, place, inside, inputs.EACH_G)


@triton.jit
def write(rows, outputs, value, temperature, row, place, inside, is_row):
    if outputs.DERIVATIVE:
        value = narrowed(value, temperature, rows.TEMPERED, outputs.out.dtype.element_ty)
    if outputs.EACH_OUT:
        tl.store(outputs.out + place, value.to(rows.COMPUTE).to(outputs.out.dtype.element_ty), mask=inside)
    else:
        tl.store(outputs.out + 2 * row + tl.arange(0, 2)[None, :], value, mask=is_row)


@triton.jit
def tile(rows, count, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """(rows [R, 1], which there are, columns [1, B], which are inside) of a program that has whole rows, of `count`."""
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    is_row = row < count
    column = tl.arange(0, WIDTH)[None, :]
    return tl.minimum(row, count - 1), is_row, column, is_row & (column < rows.n)


@triton.jit
def whole_rows(
    rows, inputs, outputs, count, BEGIN: tl.constexpr, FINISH: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    row, is_row, column, inside = tile(rows, count, ROWS, WIDTH)
    scores, probability, slope = read_block(rows, inputs, row, column, inside)
    theta = read_theta(rows.theta, row)
    temperature = read_number(rows.tau, rows.taus, row)
    a, b, c, d = BEGIN(scores, probability, slope, column, theta, temperature, rows.TEMPERED)
    value = FINISH(scores, probability, slope, column, theta, temperature, rows.TEMPERED, a, b, c, d)
    write(rows, outputs, value, temperature, row, row * rows.n + column, inside, is_row)


@triton.jit
def part_of(group, WIDTH: tl.constexpr):
    """(the program, its row [1, 1], its columns [1, B])."""
    index = tl.program_id(0).to(tl.int64)
    row = tl.zeros((1, 1), tl.int64) + group.first + index // group.programs
    return index, row, (index % group.programs) * WIDTH + tl.arange(0, WIDTH)[None, :]


@triton.jit
def begin_parts(rows, inputs, group, BEGIN: tl.constexpr, WIDTH: tl.constexpr):
    """Fills the accumulators of the group with what each part adds up to."""
    index, row, column = part_of(group, WIDTH)
    scores, probability, slope = read_block(rows, inputs, row, column, column < rows.n)
    theta = read_theta(rows.theta, row)
    temperature = read_number(rows.tau, rows.taus, row)
    a, b, c, d = BEGIN(scores, probability, slope, column, theta, temperature, rows.TEMPERED)
    write_parts(group.partial, index, tl.num_programs(0).to(tl.int64), a, b, c, d)


@triton.jit
def write_parts(partial, index, count, a, b, c, d):
    """One of so many accumulators [4, count]."""
    place = partial + index + tl.zeros((1, 1), tl.int64)
    tl.store(place, a)
    tl.store(place + count, b)
    tl.store(place + 2 * count, c)
    tl.store(place + 3 * count, d)


@triton.jit
def read_parts(group, index, count, PARTS: tl.constexpr):
    """(a, b, c, d) of a row's accumulators, [1, PARTS] each; those that are not there repeat the first, and `is_part` is False."""
    part = tl.arange(0, PARTS)[None, :]
    is_part = part < group.parts
    place = group.partial + index * group.parts + tl.where(is_part, part, 0)
    return is_part, tl.load(place), tl.load(place + count), tl.load(place + 2 * count), tl.load(place + 3 * count)


@triton.jit
def everywhere(x):
    """x [1, 1] as a number that every thread has: broadcast as it is, it would go to a wide block through shared memory."""
    return tl.full((1, 1), tl.sum(x), x.dtype)


@triton.jit
def merge_parts(
    group, index, count, theta, temperature, MERGE: tl.constexpr, TEMPERED: tl.constexpr, PARTS: tl.constexpr
):  # fmt: skip
    """(a, b, c, d) [1, 1] of a row, from all of its parts."""
    is_part, a, b, c, d = read_parts(group, index, count, PARTS)
    a, b, c, d = MERGE(is_part, a, b, c, d, theta, temperature, TEMPERED)
    return everywhere(a), everywhere(b), everywhere(c), everywhere(d)


@triton.jit
def finish_parts(
    rows, inputs, outputs, group, MERGE: tl.constexpr, FINISH: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr
):  # fmt: skip
    """Every program merges its row's accumulators."""
    index, row, column = part_of(group, WIDTH)
    height = tl.num_programs(0).to(tl.int64) // group.programs
    inside = column < rows.n
    theta = read_theta(rows.theta, row)
    temperature = read_number(rows.tau, rows.taus, row)
    a, b, c, d = merge_parts(
        group, index // group.programs, height * group.parts, theta, temperature, MERGE, rows.TEMPERED, PARTS
    )  # fmt: skip
    scores, probability, slope = read_block(rows, inputs, row, column, inside)
    value = FINISH(scores, probability, slope, column, theta, temperature, rows.TEMPERED, a, b, c, d)
    write(rows, outputs, value, temperature, row, row * rows.n + column, inside, None)


@triton.jit
def add(is_part, a, b, c, d, theta, tau, TEMPERED: tl.constexpr):
    """The merge of plain sums."""
    a, b = row_sum(tl.where(is_part, a, 0.0)), row_sum(tl.where(is_part, b, 0.0))
    return a, b, row_sum(tl.where(is_part, c, 0.0)), row_sum(tl.where(is_part, d, 0.0))


@triton.jit
def scale_parts(x, factors, step, n, parts, WIDTH: tl.constexpr):
    """x times the factor of its row; factors of 1 cost nothing."""
    index = tl.program_id(0).to(tl.int64)
    row = index // parts
    factor = tl.load(factors + row * step)
    if factor != 1.0:
        column = index % parts * WIDTH + tl.arange(0, WIDTH)
        place = x + row * n + column
        value = tl.load(place, mask=column < n, other=0.0) * factor
        tl.store(place, value.to(x.dtype.element_ty), mask=column < n)
