"""Where rows lie: scores with the rows' axis last, of any shape, are [outer, n, inner] in memory, or are copied to be."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from softmaxima.kernels import structures
from softmaxima.kernels.interface import AVAILABLE, prefer_large_pages, threads
from softmaxima.kernels.kernel import Theta
from softmaxima.kernels.structures import Rows

LARGE = 4 << 20  # bytes, as in csrc/pages.h
DTYPES = {getattr(torch, name): number for name, number in structures.DTYPES.items()}


class Layout(NamedTuple):
    """Scores [..., n] as [outer, n, inner] in memory; `axis` is where n stands among the axes there."""

    outer: int
    n: int
    inner: int
    axis: int

    def to_memory(self, x: Tensor) -> Tensor:
        """A tensor [..., n] in the order of memory, copied if it must be."""
        return in_memory(x if self.inner == 1 else x.movedim(-1, self.axis))

    def laid_out(self, x: Tensor) -> Tensor:
        """A tensor [..., n] that lies like this, copied if it must be."""
        return x.contiguous() if self.inner == 1 else x.movedim(-1, self.axis).contiguous().movedim(self.axis, -1)

    def empty(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """A new tensor that lies like this, with n last, of x's dtype or another."""
        if self.inner == 1:
            return torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)
        shape = list(x.shape[:-1])
        shape.insert(self.axis, self.n)
        return x.new_empty(shape, dtype=dtype).movedim(self.axis, -1)


def computed_in(dtype: torch.dtype) -> torch.dtype:
    """What kernels hold numbers of this dtype in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def fresh(x: Tensor) -> Tensor:
    """A tensor that nothing was written to, in large pages where it is large (csrc/pages.h)."""
    if (size := x.numel() * x.element_size()) >= LARGE:
        prefer_large_pages(x.data_ptr(), size)
    return x


def zeros(like: Tensor, shape: Sequence[int]) -> Tensor:
    """New ones of a tensor's dtype, where it is."""
    if like.device.type != "cpu" or not AVAILABLE:
        return like.new_zeros(shape)
    return fresh(like.new_empty(shape)).zero_()


def in_memory(x: Tensor) -> Tensor:
    """The tensor as its memory reads, without a sign, or zeros, that torch has put off."""
    return (x.clone() if x._is_zerotensor() else x).contiguous().resolve_neg()


def layout_of(x: Tensor) -> Layout:
    """How rows x [..., n] are read, and what is computed of them lies: in x's own order, or copied to have the rows' axis last."""
    shape, strides = x.shape, x.stride()
    n, stride, last = shape[-1], strides[-1], len(shape) - 1
    outer = x.numel() // n if n else 0
    if stride != 1 and not x.is_contiguous():
        inner, axis = 1, last
        while axis > 0 and inner < stride and (shape[axis - 1] == 1 or strides[axis - 1] == inner):
            axis -= 1
            inner *= shape[axis]
        if 1 < inner <= stride:
            return Layout(outer // inner, n, inner, axis)
    return Layout(outer, n, 1, last)


def readable(x: Tensor, lines: bool = False) -> tuple[Layout, Tensor, int]:
    """(layout, x as it is read, distance of its rows where inner is 1).

    With `lines` those of x [inner] may lie apart where inner is not 1, and the distance is theirs.
    """
    layout = layout_of(x)
    if layout.inner > 1:
        if x.movedim(-1, layout.axis).is_contiguous():
            return layout, x, 0
        distance = _line_stride(x, layout) if lines else 0
        return layout, x if distance else layout.laid_out(x), distance
    if x.is_contiguous():
        return layout, x, layout.n
    stride = one_stride(x)
    return (layout, x.contiguous(), layout.n) if stride is None else (layout, x, stride)


def _line_stride(x: Tensor, layout: Layout) -> int:
    """The distance of consecutive lines of x as [outer · n, inner], if they are evenly apart; else 0."""
    distance = x.stride(-1)
    expected = layout.n * distance
    for axis in reversed(range(layout.axis)):
        if x.shape[axis] != 1 and x.stride(axis) != expected:
            return 0
        expected *= x.shape[axis]
    return distance


def one_stride(x: Tensor) -> int | None:
    """The distance of consecutive rows of x [..., n], if they are evenly apart and contiguous."""
    shape, strides = x.shape[:-1], x.stride()
    if strides[-1] != 1 and x.shape[-1] > 1:
        return None
    first = expected = None
    for size, stride in zip(reversed(shape), reversed(strides[:-1]), strict=True):
        if size == 1:
            continue
        if first is None:
            first = stride
        elif stride != expected:
            return None
        expected = stride * size
    return first or 0


def theta_in_memory(theta: Theta, x: Tensor) -> tuple[array[float] | Tensor | None, int, int]:
    """(θ of all rows, or of each [rows, …], where it is in memory, from one row to the next)."""
    if not theta:
        return None, 0, 0
    if all(not isinstance(value, Tensor) or value.numel() == 1 for value in theta):
        numbers = array("d", map(float, theta))
        return numbers, numbers.buffer_info()[0], 0
    rows = x.shape[:-1]
    # Without a device a tensor would go to torch's default one.
    wide = (torch.as_tensor(value, dtype=torch.float64, device=x.device).detach() for value in theta)
    each = torch.cat([value.expand(*rows, 1) for value in wide], -1)
    return each, each.data_ptr(), len(theta)


def one_per_row(value: float | Tensor, x: Tensor) -> tuple[float, Tensor | None]:
    """(number, or one double a row)."""
    if not isinstance(value, Tensor):
        return value, None
    if value.numel() == 1:
        return float(value), None
    return 1.0, in_memory(value.detach().to(torch.float64).expand(*x.shape[:-1], 1))


def mask_blocks(where: Tensor | None, x: Tensor, layout: Layout) -> tuple[Tensor | None, Tensor | None]:
    """(blocks [*, n, inner] of bytes, the number of the block of each outer index, None for one after the other)."""
    if where is None:
        return None, None
    mask = where if layout.inner == 1 else where.movedim(-1, layout.axis)
    full = x.shape if layout.inner == 1 else x.movedim(-1, layout.axis).shape
    outer_shape, block_shape = full[: layout.axis], full[layout.axis :]
    own = mask.shape[: layout.axis]
    blocks = mask.expand(*own, *block_shape).contiguous().view(torch.uint8)
    if own == outer_shape:
        return blocks, None
    return blocks, torch.arange(math.prod(own), device=where.device).view(own).expand(outer_shape).contiguous()


def address_of(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _plain_rows(x: Tensor, tau: float, theta: int) -> tuple[Any, ...]:
    """The fields of `Rows` for contiguous rows and numbers, without looking at them or naming them, which takes as long again."""
    n = x.shape[-1]
    return DTYPES[x.dtype], x.numel() // n, n, 1, threads(), x.data_ptr(), n, tau, 0, theta, 0, 0, 0


def described(
    x: Tensor, layout: Layout, address: int, stride: int, tau: float | Tensor, where: Tensor | None, theta: Theta
) -> tuple[Rows, tuple[Any, ...]]:
    """(the rows, what they point into)."""
    tau_number, taus = one_per_row(tau, x)
    numbers, theta_address, distance = theta_in_memory(theta, x)
    mask, blocks = mask_blocks(where, x, layout)
    starts = None if blocks is None else blocks * (layout.n * layout.inner)
    fields = Rows(
        dtype=DTYPES[x.dtype],
        outer=layout.outer,
        n=layout.n,
        inner=layout.inner,
        threads=threads(),
        x=address,
        stride=stride,
        tau=tau_number,
        taus=address_of(taus),
        theta=theta_address,
        distance=distance,
        mask=address_of(mask),
        blocks=address_of(starts),
    )
    return fields, (taus, numbers, mask, starts)


def read_rows(
    x: Tensor, tau: float | Tensor, where: Tensor | None, theta: Theta = (), lines: bool = False
) -> tuple[tuple[Any, ...], Layout, tuple[Any, ...]]:
    """(the fields of `Rows`, how the rows lie, what the fields point into); `lines` may lie apart."""
    if where is None and type(tau) is float and not theta and x.is_contiguous() and x.numel() > 0 and not x.is_neg():
        rows = _plain_rows(x, tau, 0)
        return rows, Layout(rows[1], rows[2], 1, x.ndim - 1), ()
    x = x.resolve_neg()
    layout, read, stride = readable(x, lines and where is None)
    rows, kept = described(x, layout, read.data_ptr(), stride, tau, where, theta)
    return rows, layout, (read, *kept)
