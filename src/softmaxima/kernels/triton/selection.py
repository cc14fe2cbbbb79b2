r"""Maps that keep the highest scores of a row: the softmax over {x > t}, and over the first few columns where x = t.

A map of this kind states

    measure(x, maximum, tau, …) → m                  what a score counts: an integer, or a float that is added up in double
    target(theta, total) → goal                      the Σ m [R, 1] that is to be kept, in double; ∞ keeps all

The threshold t is the highest number for which Σ_{x≥t} m ≥ goal, and is found bit by bit from the top of its key: an integer for
each number, in the order of numbers, 0 for −∞. Scores are compared as they are, so that none needs a key. A row is done as soon as
the lowest score above t may not be missed, Σ_{x≥t} m − m(t) < goal; sums of numbers that are not negative, in one order, respect
that order of thresholds however they round.

A long row is cut into spans of a few parts, and its key found by digits: each pass adds up every span above the thresholds of the
next digit, and begins with the digit of the pass before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from softmaxima.kernels.triton.arithmetic import INFINITY, exp, gap, inverse, over, row_max, row_sum
from softmaxima.kernels.triton.launches import EACH_OF_STEPS, RowFunctions, Rows, ceiling, next_power_of_2
from softmaxima.kernels.triton.rows import Group, begin_parts, read_number, read_parts, read_scores, read_theta, write_parts
from softmaxima.kernels.triton.threshold import begin_maximum, first

KEY_BITS = {torch.float64: 64, torch.float32: 32, torch.float16: 20, torch.bfloat16: 16}  # the others of a key are 0
DIGIT = tl.constexpr(4)  # bits
LEVELS = tl.constexpr(1 << 4)
SPANS = 1 << 10  # of a row at most, for each program reads what all of them added up


@triton.jit
def new_keys(like):
    """The key of −∞."""
    return tl.zeros(like.shape, tl.uint64 if like.dtype == tl.float64 else tl.uint32)


@triton.jit
def key_of_zero(key):
    return tl.full(key.shape, 0x7FF0000000000000 if key.dtype == tl.uint64 else 0x7F800000, key.dtype)


@triton.jit
def number(key):
    """What has this key; NaN beyond +∞."""
    zero = key_of_zero(key)
    magnitude = tl.where(key < zero, zero - key, key - zero)
    value = magnitude.to(tl.float64 if key.dtype == tl.uint64 else tl.float32, bitcast=True)
    return tl.where(key < zero, -value, value)


@triton.jit
def finest_bit(x, key):
    """The lowest that is set in any key of x, so that scores of fewer digits, as of bfloat16, take fewer steps."""
    bits = x.to(key.dtype, bitcast=True) | key_of_zero(key)
    return tl.min(bits ^ (bits & (bits - 1)))


@triton.jit
def weight(x, maximum, tau, TEMPERED: tl.constexpr):
    return exp(over(gap(x, maximum), tau, TEMPERED))


@triton.jit
def wide(values):
    """In double, but for integers."""
    if values.dtype != tl.int32:
        values = values.to(tl.float64)
    return values


@triton.jit
def sum_of(values):
    """Σ [R, 1] in double."""
    return row_sum(wide(values)).to(tl.float64)


@triton.jit
def reach(x, measures, threshold):
    """Σ_{x≥t} m."""
    return sum_of(tl.where(x >= threshold, measures, tl.zeros_like(measures)))


@triton.jit
def exceed(x, values, threshold):
    """Σ_{x>t}, NaN of the weights in a row with NaN or +∞."""
    return sum_of(tl.where(x <= threshold, tl.zeros_like(values), values))


@triton.jit
def is_open(goal, reached, unit):
    """Whether a higher threshold may reach the goal; not where all is kept, nor where the goal is NaN."""
    return (goal < INFINITY) & (reached - unit >= goal)


@triton.jit
def kept_ties(goal, exceeding, unit, ties):
    """How many of the `ties` at the threshold are kept."""
    kept = tl.ceil((goal - exceeding) / tl.where(unit == 0.0, 1.0, unit))
    return tl.where(kept < ties, kept, ties)


@triton.jit
def last_kept(is_tie, kept):
    """Where in a block the last of the ties stands that are kept, [R, 1]; −1 for none."""
    place = tl.arange(0, is_tie.shape[1])[None, :]
    rank = tl.cumsum(is_tie.to(tl.int32), 1)
    return row_max(tl.where(is_tie & (rank <= kept), place, -1))


@triton.jit
def begin_rows(x, theta, tau, TEMPERED: tl.constexpr, MEASURE: tl.constexpr, TARGET: tl.constexpr):
    """(M, Σ of the weights kept in double, t, the last column kept where x = t) of rows on chip."""
    maximum = row_max(x)
    measures = MEASURE(x, maximum, tau, TEMPERED)
    goal = TARGET(theta, reach(x, measures, -INFINITY))
    key = new_keys(maximum)
    reached = tl.full(maximum.shape, INFINITY, tl.float64)
    bit, finest = tl.full((), 1 << (key.dtype.primitive_bitwidth - 1), key.dtype), finest_bit(x, key)
    moving = tl.max((goal < INFINITY).to(tl.int32))
    while (moving > 0) & (bit >= finest):
        higher = key | bit
        more = reach(x, measures, number(higher))
        key = tl.where(more >= goal, higher, key)
        reached = tl.where(more >= goal, more, reached)
        unit = MEASURE(number(key), maximum, tau, TEMPERED).to(tl.float64)
        moving = tl.max(is_open(goal, reached, unit).to(tl.int32))
        bit = bit >> 1
    threshold = number(key)
    is_tie = x == threshold
    unit = MEASURE(threshold, maximum, tau, TEMPERED).to(tl.float64)
    kept = kept_ties(goal, exceed(x, measures, threshold), unit, sum_of(is_tie.to(tl.int32)))
    mass = exceed(x, weight(x, maximum, tau, TEMPERED), threshold)
    mass += kept * weight(threshold, maximum, tau, TEMPERED).to(tl.float64)
    return maximum, mass, threshold, last_kept(is_tie, kept.to(tl.int32))


@triton.jit
def finish(x, p, g, column, theta, tau, TEMPERED: tl.constexpr, a, b, c, d):
    threshold = c.to(x.dtype)
    is_kept = (x > threshold) | ((x == threshold) & (column <= d.to(column.dtype))) | (b != b)
    return tl.where(is_kept, weight(x, a.to(x.dtype), tau, TEMPERED) * inverse(b).to(x.dtype), 0.0)


# Long rows ------------------------------------------------------------------------------------------------------------------


@triton.jit
def digit_shift(key, digits):
    """Where the last of so many digits of a key stands."""
    return tl.full((1, 1), key.dtype.primitive_bitwidth - DIGIT * digits, key.dtype)


class Goal(NamedTuple):
    measure: Any
    target: Any


class Search(NamedTuple):
    """The keys of long rows, as far as the passes have found them."""

    sums: Any  # [digits, LEVELS, rows, spans]: Σ_{x≥t} m of each span, with t for every next digit of the key before
    keys: Any  # [digits, rows], before each pass
    reaches: Any  # [digits, rows], Σ m that they reach
    counts: Any  # [3, rows, spans]: Σ_{x>t} of weights, of m, and how many x = t
    spans: Any
    length: Any  # parts of a span


@triton.jit
def row_of(rows, group, search, digits, index, height, goal, PARTS: tl.constexpr, SPANS: tl.constexpr):
    """(M, τ, goal, key, Σ m that it reaches, m of it) of a row when so many `digits`, at least one, have been added up."""
    row = tl.zeros((1, 1), tl.int64) + group.first + index
    temperature = read_number(rows.tau, rows.taus, row)
    maximum = row_max(read_parts(group, index, height * group.parts, PARTS)[1])
    span = tl.arange(0, SPANS)[None, :]
    place = search.sums + index * search.spans + span
    total = row_sum(tl.load(place, mask=span < search.spans, other=0.0))
    wanted = goal.target(read_theta(rows.theta, row), total)
    before = (digits - 1) * height + index + tl.zeros((1, 1), tl.int64)
    key = tl.load(search.keys + before).to(new_keys(maximum).dtype)
    reached = tl.load(search.reaches + before)
    unit = goal.measure(number(key), maximum, temperature, rows.TEMPERED).to(tl.float64)
    level = tl.arange(0, LEVELS)[:, None]
    # Nothing was written for a row that was done, and the sum of level 0 is what the key reaches.
    written = is_open(wanted, reached, unit) & (span < search.spans) & (level > 0)
    before = ((digits - 1) * LEVELS + level) * height * search.spans
    met = row_sum(tl.load(place + before, mask=written, other=0.0))  # [LEVELS, 1]
    digit = tl.sum((met >= wanted).to(tl.int32), 0)[:, None]
    key |= digit.to(key.dtype) << digit_shift(key, digits)
    reached = tl.min(tl.where(met >= wanted, met, reached), 0)[:, None]
    unit = goal.measure(number(key), maximum, temperature, rows.TEMPERED).to(tl.float64)
    return maximum, temperature, wanted, key, reached, unit


@triton.jit
def scores_of(rows, row, span, part, length, WIDTH: tl.constexpr):
    """(the first column, x) of a part of a span."""
    start = (span * length + part) * WIDTH
    column = start + tl.arange(0, WIDTH)[None, :]
    return start, read_scores(rows, row, column, column < rows.n)


@triton.jit(do_not_specialize=["digits"])
def add_digit(
    rows, group, search, digits, goal, FIRST: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr, SPANS: tl.constexpr
):  # fmt: skip
    """Adds up every span for the next digit of a key that has `digits`."""
    index = tl.program_id(0).to(tl.int64)
    count = tl.num_programs(0).to(tl.int64)
    height = count // search.spans
    own = index // search.spans
    row = tl.zeros((1, 1), tl.int64) + group.first + own
    if FIRST:
        maximum = row_max(read_parts(group, own, height * group.parts, PARTS)[1])
        temperature = read_number(rows.tau, rows.taus, row)
        key = new_keys(maximum)
        reached = tl.full((1, 1), INFINITY, tl.float64)
        moving = True
    else:
        maximum, temperature, wanted, key, reached, unit = row_of(
            rows, group, search, digits, own, height, goal, PARTS, SPANS
        )  # fmt: skip
        moving = tl.max(is_open(wanted, reached, unit).to(tl.int32)) > 0
    state = digits * height + own + tl.zeros((1, 1), tl.int64)
    is_first = tl.zeros((1, 1), tl.int64) + index % search.spans == 0
    tl.store(search.keys + state, key.to(tl.int64), mask=is_first)
    tl.store(search.reaches + state, reached, mask=is_first)
    if moving:
        level = tl.arange(0, LEVELS)[:, None]
        threshold = number(key | (level.to(key.dtype) << digit_shift(key, digits + 1)))
        met = tl.zeros((LEVELS, 1), tl.float64)
        for part in range(search.length):
            _start, scores = scores_of(rows, row, index % search.spans, part, search.length, WIDTH)
            met += reach(scores, wide(goal.measure(scores, maximum, temperature, rows.TEMPERED)), threshold)
        tl.store(search.sums + (digits * LEVELS + level) * count + index, met)


@triton.jit
def count_ties(rows, group, search, digits, goal, WIDTH: tl.constexpr, PARTS: tl.constexpr, SPANS: tl.constexpr):
    """Fills the counts."""
    index = tl.program_id(0).to(tl.int64)
    count = tl.num_programs(0).to(tl.int64)
    own = index // search.spans
    row = tl.zeros((1, 1), tl.int64) + group.first + own
    maximum, temperature, wanted, key, _reached, _unit = row_of(
        rows, group, search, digits, own, count // search.spans, goal, PARTS, SPANS
    )  # fmt: skip
    threshold = number(key)
    mass, exceeding, ties = tl.zeros_like(wanted), tl.zeros_like(wanted), tl.zeros_like(wanted)
    for part in range(search.length):
        _start, scores = scores_of(rows, row, index % search.spans, part, search.length, WIDTH)
        mass += exceed(scores, weight(scores, maximum, temperature, rows.TEMPERED), threshold)
        exceeding += exceed(scores, goal.measure(scores, maximum, temperature, rows.TEMPERED), threshold)
        ties += sum_of((scores == threshold).to(tl.int32))
    place = search.counts + index + tl.zeros((1, 1), tl.int64)
    tl.store(place, mass)
    tl.store(place + count, exceeding)
    tl.store(place + 2 * count, ties)


@triton.jit
def settle(rows, group, search, solved, digits, goal, WIDTH: tl.constexpr, PARTS: tl.constexpr, SPANS: tl.constexpr):
    """solved [4, *, 1]: what `begin_rows` says, of one row a program, in double; of the row it reads the span with the last tie."""
    index = tl.program_id(0).to(tl.int64)
    height = tl.num_programs(0).to(tl.int64)
    maximum, temperature, wanted, key, _reached, unit = row_of(rows, group, search, digits, index, height, goal, PARTS, SPANS)
    threshold = number(key)
    span = tl.arange(0, SPANS)[None, :]
    place = search.counts + index * search.spans + span
    mass = row_sum(tl.load(place, mask=span < search.spans, other=0.0))
    exceeding = row_sum(tl.load(place + height * search.spans, mask=span < search.spans, other=0.0))
    ties = tl.load(place + 2 * height * search.spans, mask=span < search.spans, other=0.0)
    kept = kept_ties(wanted, exceeding, unit, row_sum(ties))
    before = tl.cumsum(ties, 1) - ties
    # Scalars, for which no layout of a block has to be found.
    last_span = tl.max(tl.where(before < kept, span, 0))
    remaining = tl.sum(tl.where(span == last_span, kept - before, 0.0)).to(tl.int32)
    row = tl.zeros((1, 1), tl.int64) + group.first + index
    last = tl.full((1, 1), -1, tl.int64)
    for part in range(search.length):
        start, scores = scores_of(rows, row, last_span.to(tl.int64), part, search.length, WIDTH)
        is_tie = scores == threshold
        found = last_kept(is_tie, remaining)
        last = tl.where(found < 0, last, start + found)
        remaining -= tl.sum(is_tie.to(tl.int32))
    mass += kept * weight(threshold, maximum, temperature, rows.TEMPERED).to(tl.float64)
    write_parts(solved, index, height, maximum.to(tl.float64), mass, threshold.to(tl.float64), last.to(tl.float64))


# Launches -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Selection(RowFunctions):
    """What a map that selects does with its rows."""

    merge: Any = first
    finish: Any = finish
    each: int = EACH_OF_STEPS
    goal: Goal

    def accumulated(self, rows: Rows, p: Tensor | None, g: Tensor | None) -> Iterator[tuple[int, Group]]:
        digits = KEY_BITS[rows.like.dtype] // DIGIT.value
        for taken, group in rows.shared():
            begin_parts[(taken * group.programs,)](rows.scores, self.inputs(p, g), group, BEGIN=begin_maximum, **rows.block)
            length = ceiling(group.parts, SPANS)
            spans = ceiling(group.parts, length)
            partial = group.partial
            search = Search(
                sums=partial.new_empty((digits, LEVELS.value, taken, spans), dtype=torch.float64),
                keys=partial.new_empty((digits, taken), dtype=torch.int64),
                reaches=partial.new_empty((digits, taken), dtype=torch.float64),
                counts=partial.new_empty((3, taken, spans), dtype=torch.float64),
                spans=spans,
                length=length,
            )
            solved = partial.new_empty((4, taken, 1), dtype=torch.float64)
            merging = {"PARTS": next_power_of_2(group.parts), "SPANS": next_power_of_2(spans)}
            found = (rows.scores, group, search)
            common = {"goal": self.goal, **merging, **rows.block}
            for digit in range(digits):
                add_digit[(taken * spans,)](*found, digits=digit, FIRST=digit == 0, **common)
            count_ties[(taken * spans,)](*found, digits=digits, **common)
            settle[(taken,)](*found, solved, digits=digits, **common)
            yield taken, group._replace(partial=solved, parts=1)
