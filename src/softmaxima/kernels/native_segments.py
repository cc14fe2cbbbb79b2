"""Segments of scores by the native library: softmax and logsumexp in the order of an index, any kernel on rows of one length."""

from __future__ import annotations

import ctypes
import functools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from softmaxima.kernels.interface import find_function, run, threads
from softmaxima.kernels.kernel import Kernel, Theta
from softmaxima.kernels.layout import DTYPES, fresh, in_memory, one_per_row, theta_in_memory
from softmaxima.kernels.structures import GROUPING, INDEX, INDEXED, MOVE, PARTITION, SEGMENTS, Grouping, Index, Indexed, Move
from softmaxima.kernels.structures import Partition as PartitionCall
from softmaxima.kernels.structures import Segments as RowsCall

if TYPE_CHECKING:
    from softmaxima.segments.grouping import Segments

WINDOWS = 512  # that can be written to at a time
WINDOW = 16384  # elements of a window, if there are no more than so many windows
LONG = 2**20  # elements of a segment, or of a window, for which a thread by itself takes long
BY_INDEX = {"softmax": "softmax_by_index", "logsumexp": "logsumexp_by_index"}  # the kernels of rows that have one by index
NARROW = {torch.float32, torch.bfloat16, torch.float16}  # what those take
MOST = 2**31 - 1  # elements and segments that are counted in 32 bits


class Partition(NamedTuple):
    """Elements by windows of 2^shift segments, in order within each."""

    shift: int
    bounds: Tensor  # [windows + 1]: where windows begin
    places: Tensor  # [elements], int32: where each element goes
    numbers: Tensor  # [elements], int32: the segment of what stands at each place


class Lay(NamedTuple):
    """Where the elements of segments are."""

    segments: int
    partition: Partition | None  # None where they are in order
    starts: Tensor | None  # [segments + 1]; None where the partition does
    order: Tensor | None  # [elements]: those of each segment, among the places of the partition


class Numbers(NamedTuple):
    """What the kernels read beside scores [..., elements, inner] and their axis."""

    tau: float | Tensor  # a tensor [..., segments, inner]
    mask: Tensor | None  # [..., elements, inner]


class Kernels(NamedTuple):
    """The addresses of the kernels of rows, whether they give one number a row, and θ; and the kernel by index, if there is one."""

    forward: int
    derivative: int
    sums: bool
    by_index: str | None
    theta: Theta  # tensors like τ


def of_map(kernel: Kernel, theta: Theta) -> Kernels | None:
    """The kernels of a map."""
    forward, derivative, _ = kernel.addresses
    if forward is None or derivative is None:
        return None
    return Kernels(forward, derivative, False, BY_INDEX.get(kernel.forward) if kernel.library is None else None, theta)


def of_sum(name: str) -> Kernels | None:
    """Those of "logsumexp" or "log_mean_exp"."""
    return Kernels(_address_of(name), _address_of("logsumexp_backward"), True, BY_INDEX.get(name), ())


@functools.cache
def _address_of(name: str) -> int:
    return ctypes.cast(find_function(name), ctypes.c_void_p).value or 0  # type: ignore[arg-type]


# Grouping -------------------------------------------------------------------------------------------------------------------


def index_range(index: Tensor) -> tuple[int, int, bool]:
    """(the smallest number of an index, the largest, whether they are in order)."""
    found = _integers(3)
    run(find_function("index_range"), INDEX(*Index(len(index), threads(), index.data_ptr(), found.data_ptr())))
    least, most, in_order = found.tolist()
    return least, most, bool(in_order)


def partition(index: Tensor, segments: int) -> Partition:
    """An index in any order by windows."""
    most = min(WINDOWS, max(1, len(index) // WINDOW))
    shift = max(0, (-(-segments // most) - 1).bit_length())
    bounds = _integers(-(-segments >> shift) + 1 if segments else 1)
    places, numbers = (fresh(torch.empty(len(index), dtype=torch.int32, device="cpu")) for _ in range(2))
    addresses = (tensor.data_ptr() for tensor in (index, bounds, places, numbers))
    run(find_function("partition"), PARTITION(*PartitionCall(len(index), len(bounds) - 1, shift, threads(), *addresses)))
    return Partition(shift, bounds, places, numbers)


def group(index: Tensor, segments: int, windows: Partition | None) -> tuple[Tensor, Tensor | None]:
    """(starts, order) of an index in order, or of its windows."""
    starts, order = _integers(segments + 1), None if windows is None else _integers(len(index))
    call = Grouping(
        elements=len(index),
        segments=segments,
        windows=0 if windows is None else len(windows.bounds) - 1,
        shift=0 if windows is None else windows.shift,
        threads=threads(),
        index=index.data_ptr() if windows is None else 0,
        bounds=0 if windows is None else windows.bounds.data_ptr(),
        numbers=0 if windows is None else windows.numbers.data_ptr(),
        starts=starts.data_ptr(),
        order=_address(order),
    )
    run(find_function("grouping"), GROUPING(*call))
    return starts, order


def _integers(count: int) -> Tensor:
    return fresh(torch.empty(count, dtype=torch.int64, device="cpu"))


def _moved(x: Tensor, axis: int, places: Tensor, back: bool = False) -> Tensor:
    """The elements of an array in memory at their places, or back from there."""
    out = fresh(torch.empty(x.shape, dtype=x.dtype, device="cpu"))
    call = Move(
        size=x.element_size(),
        outer=x.shape[:axis].numel(),
        elements=x.shape[axis],
        inner=x.shape[axis + 1 :].numel(),
        threads=threads(),
        back=int(back),
        places=places.data_ptr(),
        source=x.data_ptr(),
        to=out.data_ptr(),
    )
    run(find_function("move"), MOVE(*call))
    return out


# Maps and sums --------------------------------------------------------------------------------------------------------------


def fit(kernels: Kernels, segments: Segments, dtype: torch.dtype) -> bool:
    """Whether the kernels take such segments, however long they are."""
    return True


def value(kernels: Kernels, x: Tensor, axis: int, segments: Segments, numbers: Numbers) -> Tensor:
    """The map, or the sum, of x, whose axis has the elements: of sums it then has the segments."""
    if _goes_by_index(kernels, segments, x):
        return _by_index(kernels, x, axis, segments.lay, numbers, x=in_memory(x))
    return _by_rows(kernels, x, axis, segments.lay_of_rows, numbers, x=in_memory(x))


def slope(
    kernels: Kernels, like: Tensor, axis: int, segments: Segments, numbers: Numbers, g: Tensor, p: Tensor | None, x: Tensor | None
) -> Tensor:
    """∂⟨g, value⟩/∂x of a shape `like` that of x, from a map's value p; x where the derivative, or a sum, needs it."""
    p, x = (None if v is None else in_memory(v) for v in (p, x))
    if _goes_by_index(kernels, segments, like):
        return _by_index(kernels, like, axis, segments.lay, numbers, p=p, x=x, g=in_memory(g))
    return _by_rows(kernels, like, axis, segments.lay_of_rows, numbers, p=p, x=x, g=in_memory(g))


def _goes_by_index(kernels: Kernels, segments: Segments, x: Tensor) -> bool:
    """Whether there is a kernel by index; threads do not share a segment there, as they do a row."""
    return kernels.by_index is not None and x.dtype in NARROW and not segments.reach(LONG)


def _by_index(kernels: Kernels, like: Tensor, axis: int, lay: Lay, numbers: Numbers, **arrays: Tensor | None) -> Tensor:
    windows = lay.partition

    def call(arrays: dict[str, Tensor | None], mask: Tensor | None, out: Tensor) -> None:
        tau, taus = one_per_row(_per_row(numbers.tau, like), _rows_of(like, axis, lay))
        fields = Indexed(
            **_places(like, axis, lay),
            numbers=0 if windows is None else windows.numbers.data_ptr(),
            bounds=0 if windows is None else windows.bounds.data_ptr(),
            windows=0 if windows is None else len(windows.bounds) - 1,
            shift=0 if windows is None else windows.shift,
            x=_address(arrays.get("x")),
            mask=_address(mask),
            tau=tau,
            taus=_address(taus),
            p=_address(arrays.get("p")),
            g=_address(arrays.get("g")),
            out=out.data_ptr(),
        )
        run(find_function(str(kernels.by_index)), INDEXED(*fields))

    return _in_places(like, axis, lay, numbers.mask, kernels.sums, arrays, call)


def _by_rows(kernels: Kernels, like: Tensor, axis: int, lay: Lay, numbers: Numbers, **arrays: Tensor | None) -> Tensor:
    def call(arrays: dict[str, Tensor | None], mask: Tensor | None, out: Tensor) -> None:
        of_rows = _rows_of(like, axis, lay)
        tau, taus = one_per_row(_per_row(numbers.tau, like), of_rows)
        _theta, theta, distance = theta_in_memory([_per_row(value, like) for value in kernels.theta], of_rows)
        fields = RowsCall(
            **_places(like, axis, lay),
            order=_address(lay.order),
            x=_address(arrays.get("x")),
            mask=_address(mask),
            tau=tau,
            taus=_address(taus),
            theta=theta,
            distance=distance,
            sums=int(kernels.sums),
            forward=kernels.forward,
            derivative=kernels.derivative,
            p=_address(arrays.get("p")),
            g=_address(arrays.get("g")),
            out=out.data_ptr(),
        )
        run(find_function("segments"), SEGMENTS(*fields))

    return _in_places(like, axis, lay, numbers.mask, kernels.sums, arrays, call)


def _in_places(
    like: Tensor, axis: int, lay: Lay, where: Tensor | None, sums: bool, arrays: dict[str, Tensor | None], call: Any
) -> Tensor:
    """What call(arrays, mask, out) writes, of arrays whose elements are at the places of the partition.

    Of `sums` out has segments, unless there is a g, which then has.
    """
    gives_rows, backward = sums and "g" not in arrays, sums and "g" in arrays
    shape = shape_of_sums(like, axis, lay.segments) if gives_rows else like.shape
    out = fresh(torch.empty(shape, dtype=like.dtype, device="cpu"))
    if like.numel() == 0:
        return out.fill_(-math.inf)  # sums of nothing
    if out.numel() == 0:
        return out
    mask = None if where is None else where.expand(like.shape).contiguous()
    if lay.partition is None:
        call(arrays, mask, out)
        return out
    move = functools.partial(_moved, axis=axis, places=lay.partition.places)
    moved = {name: v if v is None or (backward and name == "g") else move(v) for name, v in arrays.items()}
    call(moved, None if mask is None else move(mask), out)
    return out if gives_rows else move(out, back=True)


def shape_of_sums(x: Tensor, axis: int, segments: int) -> tuple[int, ...]:
    """Of what has one number a segment."""
    return (*x.shape[:axis], segments, *x.shape[axis + 1 :])


def _rows_of(like: Tensor, axis: int, lay: Lay) -> Tensor:
    """Of the shape of what has a number a row, with one axis more."""
    return torch.empty(0, dtype=like.dtype, device="cpu").expand(*shape_of_sums(like, axis, lay.segments), 0)


def _per_row(value: Any, like: Tensor) -> Any:
    return value.unsqueeze(-1) if isinstance(value, Tensor) and value.ndim == like.ndim else value


def _places(like: Tensor, axis: int, lay: Lay) -> dict[str, int]:
    return {
        "dtype": DTYPES[like.dtype],
        "outer": like.shape[:axis].numel(),
        "elements": like.shape[axis],
        "inner": like.shape[axis + 1 :].numel(),
        "segments": lay.segments,
        "threads": threads(),
        "starts": _address(lay.starts),
    }


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
