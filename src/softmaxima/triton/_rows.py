r"""Rows of scores on a GPU: where they lie, what a program reads of them, and how a long one is shared among programs.

A map states three functions of a block of a row, whose accumulators (a, b, c) are one number a row each:

    begin(z, p, g, theta) → (a, b, c)                what the block adds
    merge(a, b, c, a′, b′, c′) → (a, b, c)           associative, with begin of a block of −∞ as its identity
    finish(z, p, g, theta, a, b, c) → out            each element, when the whole row is known

Of a row that fits on chip, one program reads every number once. A longer one is cut into parts, each with a program that merges
its blocks; a second launch merges the parts and finishes. There p and g are 0 in a forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from softmaxima._kernels import Layout, mask_blocks, one_stride

ON_CHIP = 1 << 15  # the longest row in registers, in elements of 4 bytes
BLOCK = 1 << 12  # elements of a long row that a program holds at a time
TILE = 1 << 11  # elements of short rows that a program holds
PARTS = 1 << 10  # of one long row at most
PROGRAMS = 1 << 10  # that are wanted at a time
CACHED = 1 << 25  # bytes of rows that the second level of cache keeps until they are read again
TRITON_DTYPE = {torch.float32: tl.float32, torch.float64: tl.float64}
LOG2_E = tl.constexpr(1.4426950408889634)
LOG2_E_LOW = tl.constexpr(1.925963033500e-8)  # LOG2_E less its rounding to float32
LOG_2 = tl.constexpr(0.6931471805599453)


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
    """[rows, block] → [rows, 1]."""
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


# Kernels --------------------------------------------------------------------------------------------------------------------


@triton.jit
def tempered(value, tau, taus, row, COMPUTE: tl.constexpr):
    """value/τ, for a derivative by x of what is a function of x/τ."""
    if taus is not None:
        value = divide(value, tl.load(taus + row))
    elif tau != 1.0:
        value = divide(value, tl.full((1, 1), tau, COMPUTE))
    return value


@triton.jit
def read_scores(x, stride, tau, taus, mask, blocks, row, column, inside, n, COMPUTE: tl.constexpr):
    """x/τ of rows [R, 1] and columns [1, B], −∞ where masked or outside."""
    z = tl.load(x + row * stride + column, mask=inside, other=-float("inf")).to(COMPUTE)
    z = tempered(z, tau, taus, row, COMPUTE)
    if mask is not None:
        start = row * n if blocks is None else tl.load(blocks + row)
        z = tl.where(tl.load(mask + start + column, mask=inside, other=1) != 0, z, -float("inf"))
    return z


@triton.jit
def read_theta(theta, thetas, row, COMPUTE: tl.constexpr):
    """The map's parameter, [R, 1]."""
    if thetas is None:
        parameter = tl.full((1, 1), theta, COMPUTE)
    else:
        parameter = tl.load(thetas + row)
    return parameter


@triton.jit
def read_values(values, row, column, inside, n, COMPUTE: tl.constexpr):
    """A block of p or g, 0 outside; 0 for none."""
    if values is None:
        block = tl.zeros((1, 1), COMPUTE)
    else:
        block = tl.load(values + row * n + column, mask=inside, other=0.0).to(COMPUTE)
    return block


@triton.jit
def read_block(x, stride, tau, taus, mask, blocks, p, g, row, column, inside, n, COMPUTE: tl.constexpr):
    """(z, p, g) of a block; 0 for what is not given."""
    if x is None:
        z = tl.zeros((1, 1), COMPUTE)
    else:
        z = read_scores(x, stride, tau, taus, mask, blocks, row, column, inside, n, COMPUTE)
    return z, read_values(p, row, column, inside, n, COMPUTE), read_values(g, row, column, inside, n, COMPUTE)


@triton.jit
def whole_rows(
    x, stride, tau, taus, theta, thetas, mask, blocks, p, g, out, rows, n,
    BEGIN: tl.constexpr, FINISH: tl.constexpr, COMPUTE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    DERIVATIVE: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    column = tl.arange(0, WIDTH)[None, :]
    inside = (row < rows) & (column < n)
    row = tl.minimum(row, rows - 1)
    z, probability, slope = read_block(x, stride, tau, taus, mask, blocks, p, g, row, column, inside, n, COMPUTE)
    parameter = read_theta(theta, thetas, row, COMPUTE)
    a, b, c = BEGIN(z, probability, slope, parameter)
    value = FINISH(z, probability, slope, parameter, a, b, c)
    if DERIVATIVE:
        value = tempered(value, tau, taus, row, COMPUTE)
    tl.store(out + row * n + column, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def parts_of_rows(
    x, stride, tau, taus, theta, thetas, mask, blocks, p, g, partial, first, n, parts, length,
    BEGIN: tl.constexpr, MERGE: tl.constexpr, COMPUTE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """partial [*, parts, 3]: what each part of the rows from `first` on adds up to."""
    index = tl.program_id(0).to(tl.int64)
    row = tl.zeros((1, 1), tl.int64) + first + index // parts
    start = (index % parts) * length
    stop = tl.minimum(start + length, n)
    parameter = read_theta(theta, thetas, row, COMPUTE)
    column = start + tl.arange(0, WIDTH)[None, :]
    z, probability, slope = read_block(x, stride, tau, taus, mask, blocks, p, g, row, column, column < stop, n, COMPUTE)
    a, b, c = BEGIN(z, probability, slope, parameter)
    for at in range(start + WIDTH, stop, WIDTH):
        column = at + tl.arange(0, WIDTH)[None, :]
        z, probability, slope = read_block(x, stride, tau, taus, mask, blocks, p, g, row, column, column < stop, n, COMPUTE)
        more_a, more_b, more_c = BEGIN(z, probability, slope, parameter)
        a, b, c = MERGE(a, b, c, more_a, more_b, more_c)
    place = partial + 3 * index + tl.zeros((1, 1), tl.int64)
    tl.store(place, a)
    tl.store(place + 1, b)
    tl.store(place + 2, c)


@triton.jit
def merged_parts(partial, index, parts, MERGE: tl.constexpr, NOTHING: tl.constexpr, PARTS: tl.constexpr):
    """(a, b, c) of a row [1, 1], from all its parts."""
    part = tl.arange(0, PARTS)[None, :]
    place = partial + 3 * (index * parts + part)
    inside = part < parts
    a = tl.load(place, mask=inside, other=NOTHING)
    b = tl.load(place + 1, mask=inside, other=0.0)
    c = tl.load(place + 2, mask=inside, other=0.0)
    a, b, c = tl.reduce((a, b, c), 1, MERGE)
    return a[:, None], b[:, None], c[:, None]


@triton.jit
def finish_rows(
    x, stride, tau, taus, theta, thetas, mask, blocks, p, g, out, partial, first, n, parts, length,
    MERGE: tl.constexpr, FINISH: tl.constexpr, NOTHING: tl.constexpr, COMPUTE: tl.constexpr, WIDTH: tl.constexpr,
    PARTS: tl.constexpr, DERIVATIVE: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0).to(tl.int64)
    row = tl.zeros((1, 1), tl.int64) + first + index // parts
    start = (index % parts) * length
    stop = tl.minimum(start + length, n)
    parameter = read_theta(theta, thetas, row, COMPUTE)
    a, b, c = merged_parts(partial, index // parts, parts, MERGE, NOTHING, PARTS)
    for at in range(start, stop, WIDTH):
        column = at + tl.arange(0, WIDTH)[None, :]
        inside = column < stop
        z, probability, slope = read_block(x, stride, tau, taus, mask, blocks, p, g, row, column, inside, n, COMPUTE)
        value = FINISH(z, probability, slope, parameter, a, b, c)
        if DERIVATIVE:
            value = tempered(value, tau, taus, row, COMPUTE)
        tl.store(out + row * n + column, value.to(out.dtype.element_ty), mask=inside)


# Launches -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowFunctions:
    """What a map does with its rows; `nothing` is the first accumulator of a block without scores, the others' is 0."""

    begin: Any
    merge: Any
    finish: Any
    nothing: float = -float("inf")
    is_derivative: bool = False


@dataclass(frozen=True, eq=False)
class Rows:
    """Scores [..., n] as rows, with what kernels need to know of them. `x` is None where only p and g are read."""

    like: Tensor
    x: Tensor | None
    stride: int
    tau: float
    taus: Tensor | None
    theta: float
    thetas: Tensor | None
    mask: Tensor | None
    blocks: Tensor | None
    compute: torch.dtype

    @property
    def n(self) -> int:
        return self.like.shape[-1]

    @property
    def count(self) -> int:
        return self.like.numel() // self.n

    @property
    def arguments(self) -> tuple[Any, ...]:
        return self.x, self.stride, self.tau, self.taus, self.theta, self.thetas, self.mask, self.blocks


def read(x: Tensor | None, like: Tensor, tau: float | Tensor, where: Tensor | None, theta: float | Tensor) -> Rows:
    """The rows of x, of the shape and dtype of `like`. Outer axes may lie at any one distance; the last is made contiguous."""
    compute = torch.float64 if like.dtype == torch.float64 else torch.float32
    stride = like.shape[-1]
    if x is not None:
        found = one_stride(x)
        x, stride = (x.contiguous(), stride) if found is None else (x, found)

    def per_row(value: float | Tensor) -> tuple[float, Tensor | None]:
        if not isinstance(value, Tensor):
            return value, None
        return 1.0, value.detach().to(device=like.device, dtype=compute).expand(*like.shape[:-1], 1).contiguous()

    mask, blocks = mask_blocks(where, like, Layout(like.numel() // stride, like.shape[-1], 1, like.ndim - 1))
    return Rows(like, x, stride, *per_row(tau), *per_row(theta), mask, blocks, compute)


def launch(functions: RowFunctions, rows: Rows, p: Tensor | None, g: Tensor | None, out: Tensor) -> Tensor:
    """Fills the contiguous `out` [..., n]."""
    n, count, compute = rows.n, rows.count, TRITON_DTYPE[rows.compute]
    inputs = (*rows.arguments, p, g)
    width = triton.next_power_of_2(n)
    if width * rows.compute.itemsize <= 4 * ON_CHIP:
        height = max(1, min(TILE // width, triton.next_power_of_2(count)))
        whole_rows[(triton.cdiv(count, height),)](
            *inputs, out, count, n, functions.begin, functions.finish, compute, height, width,
            functions.is_derivative, num_warps=warps(height * width),
        )
        return out
    for first, taken, parts, length, partial in shared(rows):
        common = {"COMPUTE": compute, "WIDTH": BLOCK, "num_warps": warps(BLOCK)}
        parts_of_rows[(taken * parts,)](
            *inputs, partial, first, n, parts, length, functions.begin, functions.merge, **common
        )
        finish_rows[(taken * parts,)](
            *inputs, out, partial, first, n, parts, length, functions.merge, functions.finish, functions.nothing, **common,
            PARTS=triton.next_power_of_2(parts), DERIVATIVE=functions.is_derivative,
        )  # fmt: skip
    return out


def shared(rows: Rows) -> Iterator[tuple[int, int, int, int, Tensor]]:
    """(first row, how many, parts of each, length of a part, their accumulators) for rows that are read twice, as many at a time
    as stay in the second level of cache.
    """
    n, count = rows.n, rows.count
    height = max(1, min(count, CACHED // (n * 4)))
    parts = max(1, min(PARTS, triton.cdiv(n, BLOCK), triton.cdiv(PROGRAMS, height)))
    length = BLOCK * triton.cdiv(triton.cdiv(n, parts), BLOCK)
    parts = triton.cdiv(n, length)
    partial = torch.empty(height * parts * 3, dtype=rows.compute, device=rows.like.device)
    for first in range(0, count, height):
        yield first, min(height, count - first), parts, length, partial


def warps(elements: int) -> int:
    """Of a program that holds so many elements: 8 to 32 a thread."""
    return max(1, min(32, triton.next_power_of_2(elements) // 512))
