"""Launches of kernels on rows: what a program holds, and how a long row is shared among programs."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from softmaxima.kernels.kernel import Theta
from softmaxima.kernels.layout import Layout, computed_in, in_memory, mask_blocks, one_stride
from softmaxima.kernels.triton.rows import Group, Inputs, Outputs, Scores, begin_parts, finish_parts, scale_parts, whole_rows

ON_CHIP = 1 << 15  # numbers of 4 bytes for a row that stay in registers
PART = 1 << 13  # elements of a long row that a program holds
TILE = 1 << 10  # elements of short rows that a program holds
EACH, EACH_OF_STEPS = 16, 32  # of these a thread; more where steps add up a row again and again, and few warps wait for each other
GROUP = 1 << 28  # bytes of long rows that are worked on at a time, beside which as much is held; launches are few
TRITON_DTYPE = {torch.float32: tl.float32, torch.float64: tl.float64}


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
