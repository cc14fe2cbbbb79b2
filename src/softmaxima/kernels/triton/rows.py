r"""Rows of scores on a GPU: where they lie, what a program reads of them, and how a long one is shared among programs.

A map states three functions of a block of rows [R, B], whose accumulators (a, b, c, d) are numbers [R, 1]:

    begin(x, p, g, column, theta, tau, …) → (a, b, c, d)         what the block adds up to; τ and each of θ are double
    merge(a, b, c, d, theta, tau, …) → (a, b, c, d)              of all parts of a row [1, parts], along them
    finish(x, p, g, column, theta, tau, …, a, b, c, d) → out     each element, when the whole row is known

Of a row that fits on chip one program reads every number once. A longer one is cut into parts, each with a program that begins
it; a second launch merges the parts, in every program anew, and finishes its own. What is not given is 0.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from softmaxima.base import rows as of_rows
from softmaxima.kernels.kernel import Theta
from softmaxima.kernels.layout import Layout, computed_in, in_memory, mask_blocks, one_stride

ON_CHIP = 1 << 15  # numbers of 4 bytes for a row that stay in registers
PART = 1 << 13  # elements of a long row that a program holds
TILE = 1 << 10  # elements of short rows that a program holds
EACH, EACH_OF_STEPS = 16, 32  # of these a thread; more where steps add up a row again and again, and few warps wait for each other
GROUP = 1 << 28  # bytes of long rows that are worked on at a time, beside which as much is held; launches are few
TRITON_DTYPE = {torch.float32: tl.float32, torch.float64: tl.float64}
INFINITY = tl.constexpr(float("inf"))
MOST_P = tl.constexpr(of_rows.MOST_P)
LARGEST_FLOAT64 = tl.constexpr(torch.finfo(torch.float64).max)
LARGEST_FLOAT32 = tl.constexpr(torch.finfo(torch.float32).max)
LARGEST_BFLOAT16 = tl.constexpr(torch.finfo(torch.bfloat16).max)
LARGEST_FLOAT16 = tl.constexpr(torch.finfo(torch.float16).max)
LARGE_FLOAT64, SHRINK_FLOAT64 = tl.constexpr(2.0**900), tl.constexpr(2.0**-100)  # slopes, and what gives sums of them room
LARGE_FLOAT32, SHRINK_FLOAT32 = tl.constexpr(2.0**100), tl.constexpr(2.0**-24)
LOG2_E = tl.constexpr(1.4426950408889634)
LOG2_E_LOW = tl.constexpr(1.925963033500e-8)  # LOG2_E less its rounding to float32
LOG_2 = tl.constexpr(0.6931471805599453)
TINY, HUGE = tl.constexpr(2.0**-126), tl.constexpr(2.0**127)  # float32 has them


# Arithmetic -----------------------------------------------------------------------------------------------------------------


@triton.jit
def exp(x):
    """e^x to 2 ulp: 2^t for the rounded t = x log₂e, times what rounding t lost. −∞ and below −200 give 0."""
    if x.dtype == tl.float64:
        power = tl.exp(x)
    else:
        x = tl.maximum(x, -200.0, propagate_nan=tl.PropagateNan.ALL)  # x·LOG2_E − t is NaN at −∞
        t = x * LOG2_E
        lost = tl.fma(x, tl.full(x.shape, LOG2_E, tl.float32), -t) + x * LOG2_E_LOW
        power = tl.exp2(t)
        power += power * (lost * LOG_2)
    return power


@triton.jit
def row_max(x):
    """[R, B] → [R, 1]; NaN may be taken for nothing."""
    return tl.max(x, 1)[:, None]


@triton.jit
def row_sum(x):
    return tl.sum(x, 1)[:, None]


@triton.jit
def divide(a, b):
    """a/b, rounded to nearest."""
    if a.dtype == tl.float64:
        quotient = a / b
    else:
        quotient = tl.div_rn(a, b + tl.zeros_like(a))
    return quotient


@triton.jit
def over(x, tau, TEMPERED: tl.constexpr):
    """x/τ; float32 takes a τ beyond its numbers for the nearest of them."""
    if TEMPERED:
        if x.dtype == tl.float32:
            tau = tl.minimum(tl.maximum(tau, TINY), HUGE)
        x = divide(x, tau.to(x.dtype))
    return x


@triton.jit
def log1p(x):
    """log(1 + x) of numbers a row, in double, without cancellation."""
    whole = 1.0 + x
    return tl.where(whole == 1.0, x, tl.log(whole) * (x / tl.where(whole == 1.0, 1.0, whole - 1.0)))


@triton.jit
def expm1(x):
    """e^x − 1 of numbers a row, in double (Kahan)."""
    power = tl.exp(x)
    plain = power - 1.0
    logarithm = tl.log(tl.where(power == 0.0, 1.0, power))
    near = plain * (x / tl.where(logarithm == 0.0, 1.0, logarithm))
    return tl.where(power == 1.0, x, tl.where(plain == -1.0, -1.0, near))


@triton.jit
def gap(x, maximum):
    """x − M: exact before the temperature divides it; −∞ in a row without scores, NaN of +∞."""
    return x - tl.where(maximum == -INFINITY, 0.0, maximum)


@triton.jit
def inverse(mass):
    """1/mass, 1 for 0."""
    return divide(tl.full(mass.shape, 1.0, mass.dtype), tl.where(mass == 0.0, 1.0, mass))


@triton.jit
def narrowed(value, tau, TEMPERED: tl.constexpr, dtype: tl.constexpr):
    """value/τ, and the largest number of the dtype where that is more. In double, for τ may be beyond float32."""
    quotient = value
    if TEMPERED:
        quotient = value.to(tl.float64) / tau
    if dtype == tl.float64:
        bound: tl.constexpr = LARGEST_FLOAT64
    elif dtype == tl.float32:
        bound: tl.constexpr = LARGEST_FLOAT32
    elif dtype == tl.bfloat16:
        bound: tl.constexpr = LARGEST_BFLOAT16
    else:
        bound: tl.constexpr = LARGEST_FLOAT16
    return tl.where(quotient > bound, bound, tl.where(quotient < -bound, -bound, quotient))


@triton.jit
def weighed(s, g):
    """(Σ s g of moderate g, Σ s g of large ones, shrunk); where s is 0, g is not read."""
    limit: tl.constexpr = LARGE_FLOAT64 if g.dtype == tl.float64 else LARGE_FLOAT32
    shrink: tl.constexpr = SHRINK_FLOAT64 if g.dtype == tl.float64 else SHRINK_FLOAT32
    is_large = tl.abs(g) > limit
    moderate = row_sum(tl.where((s == 0.0) | is_large, 0.0, s * g))
    return moderate, row_sum(tl.where((s == 0.0) | ~is_large, 0.0, s * (g * shrink)))


@triton.jit
def pulled(s, g, moderate, large, total):
    """s (g − mean), the mean that of `weighed` over a total; where s is 0 it is 0, whatever g is."""
    shrink: tl.constexpr = SHRINK_FLOAT64 if g.dtype == tl.float64 else SHRINK_FLOAT32
    plain = s * (g - divide(moderate, total))
    shrunk = s * (g * shrink - divide(moderate * shrink + large, total)) * (1.0 / shrink)
    return tl.where(s == 0.0, 0.0, tl.where(large == 0.0, plain, shrunk))


# What kernels are given -----------------------------------------------------------------------------------------------------
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


# Kernels --------------------------------------------------------------------------------------------------------------------


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


# Launches -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Rows:
    """Scores [..., n] as rows of the shape and dtype of `like`, with what kernels are given of them."""

    like: Tensor
    scores: Scores
    compute: torch.dtype

    @property
    def n(self) -> int:
        return self.like.shape[-1]

    @property
    def count(self) -> int:
        return self.like.numel() // self.n

    @property
    def block(self) -> dict[str, int]:
        """What a program holds of a long row."""
        return {"WIDTH": PART, "num_warps": warps(PART)}

    @property
    def width(self) -> int:
        """Of a row on chip."""
        return next_power_of_2(self.n)

    def fit(self, numbers: int) -> bool:
        """Whether so many numbers for each element of a row stay on chip."""
        return fits(numbers, self.width, self.compute)

    def shared(self, dtype: torch.dtype | None = None) -> Iterator[tuple[int, Group]]:
        """(how many rows, with accumulators for each part) of long rows, a group at a time."""
        height = max(1, min(self.count, GROUP // (self.n * self.like.itemsize)))
        parts = ceiling(self.n, PART)
        for first in range(0, self.count, height):
            taken = min(height, self.count - first)
            yield taken, Group(self.like.new_empty((4, taken, parts), dtype=dtype or self.compute), parts, first, parts)


def read(x: Tensor | None, like: Tensor, tau: float | Tensor, where: Tensor | None, theta: Theta = ()) -> Rows:
    """The rows of x, of the shape and dtype of `like`. Outer axes may lie in any way; the last is made contiguous."""
    compute = computed_in(like.dtype)
    stride, starts = like.shape[-1], None
    if x is not None:
        x = x.resolve_neg()
        x = x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()
        found = one_stride(x)
        stride, starts = uneven_starts(x) if found is None else (found, None)

    mask, blocks = mask_blocks(where, like, Layout(like.numel() // like.shape[-1], like.shape[-1], 1, like.ndim - 1))
    scores = Scores(
        x=x, stride=stride, starts=starts, mask=mask, blocks=blocks, n=like.shape[-1],
        **numbers_of_rows(tau, theta, (*like.shape[:-1], 1), like.device), COMPUTE=tl.constexpr(TRITON_DTYPE[compute]),
    )  # fmt: skip
    return Rows(like, scores, compute)


def numbers_of_rows(tau: float | Tensor, theta: Theta, shape: tuple[int, ...], device: torch.device) -> dict[str, Any]:
    """τ and θ as fields of `Scores`: each the bits of a double, or one a row of this shape."""

    def per_row(value: float | Tensor) -> int | Tensor:
        if isinstance(value, Tensor):
            return in_memory(value.detach().to(device=device, dtype=torch.float64).expand(shape))
        return bits(value)

    found = per_row(tau)
    one, each = (0, found) if isinstance(found, Tensor) else (found, None)
    tempered = tl.constexpr(found is each or found != bits(1.0))
    return {"tau": one, "taus": each, "theta": tuple(map(per_row, theta)), "TEMPERED": tempered}


def uneven_starts(x: Tensor) -> tuple[int, Tensor]:
    """(a stride, where each row of x [..., n] starts in multiples of it)."""
    axes = [(size, stride) for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True) if size > 1]
    step = math.gcd(*(stride for _, stride in axes))
    starts = torch.zeros((), dtype=torch.int64, device=x.device)
    for size, stride in axes:
        starts = starts.unsqueeze(-1) + torch.arange(size, device=x.device) * (stride // step)
    return step, starts


def bits(value: float) -> int:
    """The bits of a double, for `double`."""
    return struct.unpack("q", struct.pack("d", value))[0]


@dataclass(frozen=True)
class RowFunctions:
    """What a map does with its rows, and whether it reads one number an element or one a row, and writes one an element or two."""

    begin: Any
    merge: Any
    finish: Any
    each_p: bool = True
    each_g: bool = True
    each_out: bool = True
    is_derivative: bool = False
    wide: bool = False  # whether the accumulators are double
    each: int = EACH  # elements a thread has of a row on chip
    beside: int = 0  # numbers that it holds for each beside those that it reads

    def numbers(self, x: Tensor | None, p: Tensor | None, g: Tensor | None) -> int:
        """How many a thread holds for each element."""
        return (x is not None) + (p is not None and self.each_p) + (g is not None and self.each_g) + self.beside

    def inputs(self, p: Tensor | None, g: Tensor | None) -> Inputs:
        return Inputs(p, g, tl.constexpr(self.each_p), tl.constexpr(self.each_g))

    def outputs(self, out: Tensor) -> Outputs:
        return Outputs(out, tl.constexpr(self.each_out), tl.constexpr(self.is_derivative))

    def accumulated(self, rows: Rows, p: Tensor | None, g: Tensor | None) -> Iterator[tuple[int, Group]]:
        """(how many, with their accumulators) of long rows, a group at a time."""
        for taken, group in rows.shared(torch.float64 if self.wide else None):
            begin_parts[(taken * group.programs,)](rows.scores, self.inputs(p, g), group, BEGIN=self.begin, **rows.block)
            yield taken, group


def launch(f: RowFunctions, rows: Rows, p: Tensor | None, g: Tensor | None, out: Tensor) -> Tensor:
    """Fills the contiguous `out`, [..., n] or [..., 2]."""
    inputs, outputs = f.inputs(p, g), f.outputs(out)
    if rows.fit(f.numbers(rows.scores.x, p, g)):
        programs, tile = tiles(rows.count, rows.width, f.each)
        whole_rows[programs](rows.scores, inputs, outputs, rows.count, BEGIN=f.begin, FINISH=f.finish, **tile)
        return out
    for taken, group in f.accumulated(rows, p, g):
        finishing = group if f.each_out else group._replace(programs=1)
        finish_parts[(taken * finishing.programs,)](
            rows.scores, inputs, outputs, finishing, MERGE=f.merge, FINISH=f.finish,
            PARTS=next_power_of_2(group.parts), **rows.block,
        )  # fmt: skip
    return out


def fits(numbers: int, width: int, compute: torch.dtype) -> bool:
    """Whether so many numbers for each element of a row of this width stay on chip."""
    return numbers * width * compute.itemsize <= 4 * ON_CHIP


def tiles(count: int, width: int, each: int = EACH) -> tuple[tuple[int], dict[str, int]]:
    """(programs, what each holds) of so many rows that fit."""
    height = max(1, min(TILE // width, next_power_of_2(count)))
    return (ceiling(count, height),), {"ROWS": height, "WIDTH": width, "num_warps": warps(height * width, each)}


def scale(x: Tensor, factors: Tensor) -> Tensor:
    """x [..., n], contiguous, times one factor or one a row, in place."""
    n = x.numel() if factors.ndim == 0 else x.shape[-1]
    width = min(PART, next_power_of_2(n))
    parts = ceiling(n, width)
    programs = parts * max(1, factors.numel())
    scale_parts[(programs,)](x, in_memory(factors), int(factors.ndim > 0), n, parts, WIDTH=width, num_warps=warps(width))
    return x


def warps(elements: int, each: int = EACH) -> int:
    """Of a program that holds so many elements, so many a thread, or more where these are too few."""
    return max(1, min(32, next_power_of_2(elements) // (32 * each)))


def next_power_of_2(n: int) -> int:
    """Triton's takes microseconds."""
    return 1 << (n - 1).bit_length()


def ceiling(n: int, size: int) -> int:
    """n/size, rounded up."""
    return -(-n // size)
