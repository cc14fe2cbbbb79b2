"""Segments of scores by the native library: a map's own kernel, or a sum's, on as many rows of one length as there are."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from softmaxima.kernels.interface import GROUPING, SEGMENTS, Grouping, find_function, run, threads
from softmaxima.kernels.interface import Segments as Call
from softmaxima.kernels.native import DTYPES, Theta, in_memory, one_per_row, theta_in_memory


class Rows(NamedTuple):
    """What the kernels read beside scores [..., elements, inner]."""

    starts: Tensor  # [segments + 1]
    order: Tensor | None  # [elements]
    tau: float | Tensor  # a tensor [..., segments, inner, 1]
    mask: Tensor | None  # [..., elements, inner]
    theta: Theta  # tensors likewise
    forward: int  # the addresses of the kernels
    derivative: int
    sums: bool  # whether they give one number a row


@functools.cache
def address_of(name: str) -> int:
    """Where the library has a kernel."""
    return ctypes.cast(find_function(name), ctypes.c_void_p).value or 0  # type: ignore[arg-type]


def group(index: Tensor, segments: int) -> tuple[int, int, tuple[Tensor, Tensor | None] | None]:
    """(the smallest index, the largest, (starts, order)): None where one is out of range, and an order of None where they are in order."""
    index = index.contiguous()
    starts, order = (torch.empty(count, dtype=torch.int64, device="cpu") for count in (segments + 1, len(index)))
    found = torch.empty(3, dtype=torch.int64, device="cpu")
    addresses = (tensor.data_ptr() for tensor in (index, starts, order, found))
    run(find_function("grouping"), GROUPING(*Grouping(len(index), segments, threads(), *addresses)))
    least, most, sorted = found.tolist()
    if len(index) and not 0 <= least <= most < segments:
        return least, most, None
    return least, most, (starts, None if sorted else order)


def forward(x: Tensor, axis: int, rows: Rows) -> Tensor:
    """What the forward kernel makes of x, whose axis has the elements: of sums it then has the segments."""
    x = in_memory(x)
    shape = list(x.shape)
    if rows.sums:
        shape[axis] = len(rows.starts) - 1
    out = torch.empty(shape, dtype=x.dtype, device="cpu")
    _run(x, axis, rows, x=x, out=out)
    return out


def backward(like: Tensor, axis: int, rows: Rows, g: Tensor, p: Tensor | None, x: Tensor | None) -> Tensor:
    """∂⟨g, what `forward` made⟩/∂x, of a shape `like` that of x; x where the derivative, or a sum, needs it."""
    p, x = (None if v is None else in_memory(v) for v in (p, x))
    g = in_memory(g)
    out = torch.empty(like.shape, dtype=like.dtype, device="cpu")
    _run(like, axis, rows, x=x, p=p, g=g, out=out)
    return out


def _run(like: Tensor, axis: int, rows: Rows, **arrays: Tensor | None) -> None:
    if like.numel() == 0 and not (rows.sums and arrays.get("g") is None):
        return
    shape, segments = like.shape, len(rows.starts) - 1
    of_rows = torch.empty(0, dtype=like.dtype, device="cpu").expand(*shape[:axis], segments, *shape[axis + 1 :], 0)
    tau, taus = one_per_row(rows.tau, of_rows)
    numbers, theta, distance = theta_in_memory(rows.theta, of_rows)
    mask = None if rows.mask is None else rows.mask.expand(shape).contiguous()
    address: Any = lambda tensor: 0 if tensor is None else tensor.data_ptr()
    call = Call(
        dtype=DTYPES[like.dtype],
        outer=shape[:axis].numel(),
        elements=shape[axis],
        inner=shape[axis + 1 :].numel(),
        segments=segments,
        threads=threads(),
        starts=address(rows.starts),
        order=address(rows.order),
        x=address(arrays.get("x")),
        mask=address(mask),
        tau=tau,
        taus=address(taus),
        theta=theta,
        distance=distance,
        sums=int(rows.sums),
        forward=rows.forward,
        derivative=rows.derivative,
        p=address(arrays.get("p")),
        g=address(arrays.get("g")),
        out=address(arrays["out"]),
    )
    run(find_function("segments"), SEGMENTS(*call))
    del numbers
