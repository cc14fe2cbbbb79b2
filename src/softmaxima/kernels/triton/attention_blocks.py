r"""Blocks of attention on a GPU: what a program reads of queries, keys and numbers, which keys a query sees, and their scores.

Every map here is p = exp_β(z − D) of z = x/τ − M, with M a number near the largest of a query's scores and D that which makes the
probabilities add up to 1:

    exp_β(t) = relu(1 + βt)^{1/β},  exp_0(t) = e^t        s = exp_β′(t) = p^{1 − β}        ∂⟨g, p⟩/∂z = s ⊙ (g − Σ s g / Σ s)

softmax has β = 0, entmax-1.5 β = ½, sparsemax β = 1. Scores are held as `unit` times z, for which `exponential` is simplest.

A pair of a query and a key that has no p adds nothing, whatever the key, the value, the query and its slopes hold. In a product
0 · ∞ and 0 · NaN are NaN: a program whose results are not all finite says so, and the kernel runs again, CAREFUL, for such alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from softmaxima.kernels.attention import Options, contiguous_rows
from softmaxima.kernels.triton.arithmetic import INFINITY
from softmaxima.kernels.triton.launches import next_power_of_2

FARTHEST = 2**31 - 1  # places that an int32 counts


@dataclass(frozen=True)
class AttentionFunctions:
    """What attention needs of a map.

    exponential(t, beta) → (p, s): of t and β in float32, the former `unit` times z − D.
    order: β from θ. online: β is 0, so that the sum and D follow from one pass, and each θ is a sink, in z.
    """

    exponential: Any
    order: Callable[..., float | Tensor]
    unit: float = 1.0
    online: bool = False


# Arithmetic -----------------------------------------------------------------------------------------------------------------
# In float32, for doubles of each query would take the registers that blocks need.


@triton.jit
def log1p(w):
    """log(1 + w), by a series near 0; 0 where there is none."""
    outside = 1.0 + w <= 0.0
    is_near = tl.abs(w) < 0.375
    ratio = tl.where(is_near, w / tl.where(outside, 1.0, 2.0 + w), 0.0)
    square = ratio * ratio
    series = 2.0 * ratio * (1.0 + square * (1.0 / 3.0 + square * (0.2 + square * (1.0 / 7.0 + square / 9.0))))
    return tl.where(is_near, series, tl.log(tl.where(outside, 1.0, 1.0 + w)))


@triton.jit
def depth_of(logarithm, order):
    """(1 − e^{−βl})/β, which is l at β = 0."""
    w = -order * logarithm
    series = w * (1.0 + w * (1.0 / 2.0 + w * (1.0 / 6.0 + w * (1.0 / 24.0 + w * (1.0 / 120.0)))))
    power = tl.where(tl.abs(w) < 0.25, series, tl.exp(w) - 1.0)
    return tl.where(order == 0.0, logarithm, -power / tl.where(order == 0.0, 1.0, order))


@triton.jit
def tanh(x):
    """By a series near 0, where 1 − e^{−2|x|} has few digits."""
    size, square = tl.abs(x), x * x
    series = x * (1.0 - square * (1.0 / 3.0 - square * (2.0 / 15.0 - square * (17.0 / 315.0 - square * (62.0 / 2835.0)))))
    power = tl.exp(-2.0 * size)
    far = (1.0 - power) / (1.0 + power)
    return tl.where(size < 0.25, series, tl.where(x < 0.0, -far, far))


# What kernels are given -----------------------------------------------------------------------------------------------------


class Matrices(NamedTuple):
    """[rows, columns] for each batch and head."""

    data: Any  # None where there are none: Triton 3.6 compares no tuple with None
    batch: Any  # from one to the next, in elements
    head: Any
    row: Any
    column: Any


class Numbers(NamedTuple):
    """A float32 for all queries, or one for each."""

    number: Any
    data: Any
    batch: Any
    head: Any
    row: Any


class Problem(NamedTuple):
    """What both passes read."""

    q: Any
    k: Any
    v: Any
    mask: Any
    bias: Any
    lengths: Any
    inverse: Any  # 1/τ
    order: Any  # β
    sink: Any  # a score in z whose value is 0
    scale: Any
    softcap: Any  # c, or None
    slopes: Any  # of each matrix, or None
    queries: Any
    keys: Any
    heads: Any
    groups: Any
    left: Any
    right: Any
    first: Any  # the place of the first query
    firsts: Any  # or of each matrix
    EXPONENTIAL: Any  # of the map
    UNIT: Any  # of t
    SIZE: Any
    VALUE_SIZE: Any
    SINK: Any  # whether there is one
    PRECISION: Any  # of products of float32


def matrices(x: Tensor | None, batch: Sequence[int], shape: Sequence[int]) -> Matrices:
    """x broadcast to [*batch, *shape]."""
    if x is None:
        return Matrices(None, None, None, None, None)
    heads = batch[-1] if batch else 1
    x = x.expand(*batch, *shape).reshape(math.prod(batch[:-1]), heads, *shape)
    return Matrices(x, *x.stride())


def numbers(value: float | Tensor | None, like: Tensor) -> Numbers:
    """A number, or what broadcasts to [..., L, 1]."""
    if value is None:
        return Numbers(None, None, None, None, None)
    if not isinstance(value, Tensor):
        return Numbers(float(value), None, None, None, None)
    batch, queries = like.shape[:-2], like.shape[-2]
    value = value.detach().to(device=like.device, dtype=torch.float32).expand(*batch, queries, 1)
    value = value.reshape(math.prod(batch[:-1]), batch[-1] if batch else 1, queries)
    return Numbers(None, value, *value.stride())


def describe(q: Tensor, k: Tensor, v: Tensor, attention: AttentionFunctions, options: Options) -> Problem:
    """The arguments of the kernels."""
    batch, queries, keys = q.shape[:-2], q.shape[-2], k.shape[-2]
    shared = (*batch[:-1], *(heads // options.groups for heads in batch[-1:]))
    tau, lengths, first = options.tau, options.lengths, options.first
    firsts = _of_matrices(first, batch) if isinstance(first, Tensor) else None
    sinks = [*(options.theta if attention.online else ()), *([] if options.sinks is None else [options.sinks])]
    sink = sinks[0] if len(sinks) == 1 else _together(sinks, q) if sinks else None
    return Problem(
        q=matrices(contiguous_rows(q), batch, q.shape[-2:]),
        k=matrices(contiguous_rows(k), shared, k.shape[-2:]),
        v=matrices(contiguous_rows(v), shared, v.shape[-2:]),
        mask=matrices(None if options.mask is None else options.mask.view(torch.uint8), batch, (queries, keys)),
        bias=matrices(options.bias, batch, (queries, keys)),
        lengths=None if lengths is None else _of_matrices(lengths, batch),
        inverse=numbers(1 / tau.double() if isinstance(tau, Tensor) else 1 / tau, q),
        order=numbers(attention.order(*options.theta), q),
        sink=numbers(sink, q),
        scale=options.scale,
        softcap=options.softcap,
        slopes=None if options.slopes is None else _of_matrices(options.slopes.detach(), batch, torch.float32),
        queries=queries,
        keys=keys,
        heads=batch[-1] if batch else 1,
        groups=options.groups,
        left=_limit(options.left, queries, options.first),
        right=_limit(options.right, keys, -options.first),
        first=0 if firsts is not None else options.first,
        firsts=firsts,
        EXPONENTIAL=tl.constexpr(attention.exponential),
        UNIT=tl.constexpr(attention.unit),
        SIZE=tl.constexpr(q.shape[-1]),
        VALUE_SIZE=tl.constexpr(v.shape[-1]),
        SINK=tl.constexpr(sink is not None),
        PRECISION=tl.constexpr("tf32x3" if q.dtype == torch.float32 else "tf32"),
    )


def _of_matrices(x: Tensor, batch: Sequence[int], dtype: torch.dtype = torch.int32) -> Tensor:
    """Numbers [..., 1, 1], one for each matrix."""
    return x.to(dtype).expand(*batch, 1, 1).contiguous()


def _limit(side: int | None, count: int, aside: int | Tensor) -> int | None:
    """How far a query sees to a side on which so many places are, which stand so far aside; None where it sees all."""
    if side is None or (not isinstance(aside, Tensor) and side >= count + aside):
        return None
    return min(side, FARTHEST)


def _together(sinks: Sequence[float | Tensor], like: Tensor) -> Tensor:
    """One sink that has the mass of several."""
    wide = {"dtype": torch.float64, "device": like.device}
    total, *others = (sink.to(**wide) if isinstance(sink, Tensor) else torch.full((), sink, **wide) for sink in sinks)
    for other in others:
        total = torch.logaddexp(total, other)
    return total


def width(size: int) -> int:
    """Columns of a block that holds rows of this size."""
    return max(16, next_power_of_2(size))


# What a program reads -------------------------------------------------------------------------------------------------------


@triton.jit
def matrix_of(problem, index):
    """(batch, head of queries) of a matrix."""
    return index // problem.heads, index % problem.heads


@triton.jit
def read(x, batch, head, first, count, SIZE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, EDGE: tl.constexpr):
    """Rows from the `first` on, [ROWS, WIDTH], 0 behind the last of `count` and the last column; EDGE: some may be behind."""
    row, column = tl.arange(0, ROWS).to(tl.int64)[:, None], tl.arange(0, WIDTH)[None, :]
    place = x.data + batch * x.batch + head * x.head + first * x.row + (row * x.row + column)
    if EDGE and SIZE != WIDTH:
        block = tl.load(place, mask=(row + first < count) & (column < SIZE), other=0.0)
    elif EDGE:
        block = tl.load(place, mask=row + first < count, other=0.0)
    elif SIZE != WIDTH:
        block = tl.load(place, mask=column < SIZE, other=0.0)
    else:
        block = tl.load(place)
    return block


@triton.jit
def write(x, batch, head, first, count, block, SIZE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    row, column = tl.arange(0, ROWS).to(tl.int64)[:, None], tl.arange(0, WIDTH)[None, :]
    place = x.data + batch * x.batch + head * x.head + first * x.row + (row * x.row + column)
    tl.store(place, block.to(x.data.dtype.element_ty), mask=(row + first < count) & (column < SIZE))


@triton.jit
def read_numbers(x, batch, head, row, queries):
    """A number for each of the rows, or one for all, as many axes."""
    if x.data is None:
        value = tl.full((1, 1), x.number, tl.float32)
    else:
        place = x.data + batch * x.batch + head * x.head + row.to(tl.int64) * x.row
        value = tl.load(place, mask=row < queries, other=1.0)
    return value


@triton.jit
def read_length(problem, index):
    """How many keys there are, in int64 as all places of blocks."""
    length = tl.zeros((), tl.int64) + problem.keys
    if problem.lengths is not None:
        length = tl.load(problem.lengths + index).to(tl.int64)
    return length


@triton.jit
def read_first(problem, index):
    """The place of the first query, in int64."""
    first = tl.zeros((), tl.int64) + problem.first
    if problem.firsts is not None:
        first = tl.load(problem.firsts + index).to(tl.int64)
    return first


@triton.jit
def read_state(state, place, inside):
    """(M, D) of queries; of such that are not there +∞ and 0, which makes their p 0."""
    return tl.load(state + 2 * place, mask=inside, other=INFINITY), tl.load(state + 2 * place + 1, mask=inside, other=0.0)


@triton.jit
def write_state(state, place, inside, origin, depth):
    tl.store(state + 2 * place, origin, mask=inside)
    tl.store(state + 2 * place + 1, depth, mask=inside)


@triton.jit
def block_of(count, BLOCK: tl.constexpr):
    """(the matrix of a program, where its block of `count` places begins); the last blocks, which see most, come first."""
    program = tl.program_id(0).to(tl.int64)
    blocks = (count + BLOCK - 1) // BLOCK
    return program // blocks, (blocks - 1 - program % blocks) * BLOCK


# Which keys are seen --------------------------------------------------------------------------------------------------------


@triton.jit
def span(first, last, before, after, count, is_whole, BLOCK: tl.constexpr):
    """Blocks of the places below `count` that some of the places first … last see: from `before` before their own to `after` after.

    (begin, where those begin that all of them see as a whole, the end of these, end); without `is_whole` there are none such.
    """
    begin, end = tl.zeros((), tl.int64), tl.zeros((), tl.int64) + count
    whole_begin, whole_end = begin, end
    if before is not None:
        begin, whole_begin = tl.maximum(first - before, 0), tl.maximum(last - before, 0)
    if after is not None:
        end, whole_end = tl.minimum(last + after + 1, count), tl.minimum(first + after + 1, count)
    begin = begin // BLOCK * BLOCK
    end = tl.maximum(begin, end)
    whole_begin, whole_end = (whole_begin + BLOCK - 1) // BLOCK * BLOCK, whole_end // BLOCK * BLOCK
    is_whole = is_whole & (whole_begin < whole_end)
    return begin, tl.where(is_whole, whole_begin, begin), tl.where(is_whole, whole_end, begin), end


@triton.jit
def edges(begin, whole_begin, whole_end, end, BLOCK: tl.constexpr):
    """How many blocks of a span are not seen as a whole."""
    return (whole_begin - begin) // BLOCK + (tl.maximum(end - whole_end, 0) + BLOCK - 1) // BLOCK


@triton.jit
def edge(i, begin, whole_begin, whole_end, BLOCK: tl.constexpr):
    """Where the i-th of them begins."""
    before = (whole_begin - begin) // BLOCK
    return tl.where(i < before, begin + i * BLOCK, whole_end + (i - before) * BLOCK)


@triton.jit
def scores(problem, x, batch, head, row, column, length, inverse, EDGE: tl.constexpr):
    """`unit` times x/τ for x = scale ⟨q, k⟩, capped, + bias − slope |distance|, −∞ where a key is not seen.

    Rows and columns are [R, 1] and [1, C], or [1, R] and [C, 1].
    """
    if problem.softcap is not None:
        y = tanh(x * (problem.scale / problem.softcap)) * (inverse * (problem.softcap * problem.UNIT))
    else:
        y = x * (inverse * (problem.scale * problem.UNIT))
    if problem.slopes is not None:
        matrix = batch * problem.heads + head
        distance = column - (row + read_first(problem, matrix).to(tl.int32))
        y -= tl.abs(distance).to(tl.float32) * (tl.load(problem.slopes + matrix) * problem.UNIT * inverse)
    inside = (row < problem.queries) & (column < problem.keys)
    if problem.bias.data is not None:
        bias = problem.bias
        place = bias.data + batch * bias.batch + head * bias.head + row.to(tl.int64) * bias.row + column.to(tl.int64) * bias.column
        added = tl.load(place, mask=inside, other=0.0).to(tl.float32)
        y = tl.where(added == -INFINITY, -INFINITY, y + added * (inverse * problem.UNIT))
    if problem.mask.data is not None:
        mask = problem.mask
        place = mask.data + batch * mask.batch + head * mask.head + row.to(tl.int64) * mask.row + column.to(tl.int64) * mask.column
        y = tl.where(tl.load(place, mask=inside, other=0) != 0, y, -INFINITY)
    if EDGE:
        seen = (row < problem.queries) & (column < length)
        if problem.left is not None or problem.right is not None:
            place = row + read_first(problem, batch * problem.heads + head).to(tl.int32)
            if problem.left is not None:
                seen = seen & (place - column <= problem.left)
            if problem.right is not None:
                seen = seen & (column - place <= problem.right)
        y = tl.where(seen, y, -INFINITY)
    return y


@triton.jit
def slope_of_cap(problem, x):
    """The derivative of the cap at products of queries and keys: 1 − tanh²."""
    slope = tl.full(x.shape, 1.0, tl.float32)
    if problem.softcap is not None:
        t = tanh(x * (problem.scale / problem.softcap))
        slope -= t * t
    return slope


@triton.jit
def product(a, b, PRECISION: tl.constexpr):
    """a bᵀ in float32."""
    return tl.dot(a, tl.trans(b), input_precision=PRECISION)


@triton.jit
def weighted(p, x, total, PRECISION: tl.constexpr, CAREFUL: tl.constexpr):
    """total + p x, of CAREFUL without the terms whose p is 0."""
    if CAREFUL:
        wide = x.to(tl.float32)
        total = tl.dot(p.to(x.dtype), tl.where(tl.abs(wide) < INFINITY, x, 0.0).to(x.dtype), total, input_precision=PRECISION)
        there = (p != 0.0).to(x.dtype)
        above = tl.dot(there, ((wide != wide) | (wide == INFINITY)).to(x.dtype), input_precision="tf32")
        below = tl.dot(there, ((wide != wide) | (wide == -INFINITY)).to(x.dtype), input_precision="tf32")
        total += tl.where(above > 0.0, INFINITY, 0.0) - tl.where(below > 0.0, INFINITY, 0.0)  # ∞ − ∞ is NaN
    else:
        total = tl.dot(p.to(x.dtype), x, total, input_precision=PRECISION)
    return total


@triton.jit
def any_of(condition):
    return tl.max(tl.max(condition.to(tl.int32), 1), 0)


@triton.jit
def is_spoilt(results):
    """Whether some are infinite or NaN."""
    return any_of(~(tl.abs(results) < INFINITY))


@triton.jit
def of_sinks(problem, batch, head, row, origin, depth, order):
    """(Σp, Σs) of the sinks of rows, [R, 1]."""
    mass, slope = tl.zeros_like(depth), tl.zeros_like(depth)
    if problem.SINK:
        sink = read_numbers(problem.sink, batch, head, row, problem.queries) * problem.UNIT
        p, s = problem.EXPONENTIAL(sink - origin - depth, order)
        mass += p
        slope += s
    return mass, slope
