"""Segments of scores on a GPU: the functions of every map's rows, of rows that each have a length and places of their own.

Segments of about one length, up to a power of two, are a launch, whose programs hold several short ones; an index out of order is
read through the order of its elements. What is longer than a row on chip is for the caller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from softmaxima.kernels.kernel import Kernel, Theta
from softmaxima.kernels.layout import computed_in, in_memory
from softmaxima.kernels.native_segments import Numbers, shape_of_sums
from softmaxima.kernels.triton import logsumexp
from softmaxima.kernels.triton.arithmetic import INFINITY
from softmaxima.kernels.triton.launches import TRITON_DTYPE, RowFunctions, fits, next_power_of_2, numbers_of_rows, tiles
from softmaxima.kernels.triton.library import has, module_of, on_device
from softmaxima.kernels.triton.rows import Scores, read_number, read_theta, read_values, write

if TYPE_CHECKING:
    from softmaxima.segments.grouping import Segments


class Kernels(NamedTuple):
    """What a map, or logsumexp, does with rows."""

    forward: RowFunctions
    derivative: RowFunctions
    sums: bool
    theta: Theta


class Places(NamedTuple):
    """Where the elements of some segments are, in arrays [outer, elements, inner]."""

    segments: Any  # of this launch
    starts: Any
    order: Any  # None where elements are in order
    taken: Any  # how many segments are of this launch
    all: Any
    elements: Any
    inner: Any


@triton.jit
def whole_segments(
    rows, inputs, outputs, places, count, BEGIN: tl.constexpr, FINISH: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """A row is one of `inner` of a segment of `outer`, in this order, so that neighbours in memory are in a program."""
    number = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    is_row = number < count
    number = tl.minimum(number, count - 1)
    inner, outer = number % places.inner, number // places.inner // places.taken
    segment = tl.load(places.segments + number // places.inner % places.taken)
    begin = tl.load(places.starts + segment)
    column = tl.arange(0, WIDTH)[None, :]
    inside = is_row & (column < tl.load(places.starts + segment + 1) - begin)
    element = begin + column
    if places.order is not None:
        element = tl.load(places.order + element, mask=inside, other=0)
    place = (outer * places.elements + element) * places.inner + inner
    row = (outer * places.all + segment) * places.inner + inner
    if rows.x is None:
        scores = tl.zeros((1, 1), rows.COMPUTE)
    else:
        scores = tl.load(rows.x + place, mask=inside, other=-INFINITY).to(rows.COMPUTE)
        if rows.mask is not None:
            scores = tl.where(tl.load(rows.mask + place, mask=inside, other=1) != 0, scores, -INFINITY)
    probability = read_values(rows, inputs.p, row, place, inside, inputs.EACH_P)
    slope = read_values(rows, inputs.g, row, place, inside, inputs.EACH_G)
    theta = read_theta(rows.theta, row)
    temperature = read_number(rows.tau, rows.taus, row)
    a, b, c, d = BEGIN(scores, probability, slope, column, theta, temperature, rows.TEMPERED)
    value = FINISH(scores, probability, slope, column, theta, temperature, rows.TEMPERED, a, b, c, d)
    write(rows, outputs, value, temperature, row, place, inside, is_row)


# What the room of segments asks for, as of `native_segments` --------------------------------------------------------------------


def of_map(kernel: Kernel, theta: Theta) -> Kernels | None:
    """The kernels of a map."""
    if not (has(kernel, "forward") and has(kernel, "backward")):
        return None
    module: Any = module_of(kernel.triton or "")
    return Kernels(module.FORWARD, module.BACKWARD, False, theta)


def of_sum(name: str) -> Kernels | None:
    """Those of "logsumexp"; of "log_mean_exp" there are none."""
    return Kernels(logsumexp.FORWARD, logsumexp.BACKWARD, True, ()) if name == "logsumexp" else None


def fit(kernels: Kernels, segments: Segments, dtype: torch.dtype) -> bool:
    """Whether the longest segment stays on chip, with p and g."""
    held = 3 + max(kernels.forward.beside, kernels.derivative.beside)
    return fits(held, next_power_of_2(segments.longest), computed_in(dtype)) if segments.longest else True


def value(kernels: Kernels, x: Tensor, axis: int, segments: Segments, numbers: Numbers) -> Tensor:
    """The map, or the sum, of x, whose axis has the elements: of sums it then has the segments."""
    if not kernels.sums:
        return _launch(kernels.forward, x, axis, segments, numbers, kernels.theta, torch.empty_like(x), x=x)
    maximum, log_sum = _states(kernels, x, axis, segments, numbers)
    return (maximum / numbers.tau + log_sum).to(x.dtype)


def slope(
    kernels: Kernels, like: Tensor, axis: int, segments: Segments, numbers: Numbers, g: Tensor, p: Tensor | None, x: Tensor | None
) -> Tensor:
    """∂⟨g, value⟩/∂x of a shape `like` that of x, from a map's value p; x where the derivative, or a sum, needs it."""
    theta = kernels.theta
    if kernels.sums and x is not None:
        p, log_sum = _states(kernels, x, axis, segments, numbers)
        theta = (log_sum,)
    return _launch(kernels.derivative, like, axis, segments, numbers, theta, torch.empty_like(like), x=x, p=p, g=g)


def _states(kernels: Kernels, x: Tensor, axis: int, segments: Segments, numbers: Numbers) -> tuple[Tensor, Tensor]:
    """(the largest x of each segment, LSE(x/τ) less that over τ), in double."""
    states = torch.full((*shape_of_sums(x, axis, len(segments)), 2), -torch.inf, dtype=torch.float64, device=x.device)
    _launch(kernels.forward, x, axis, segments, numbers, (), states, x=x)
    return states[..., 0].contiguous(), states[..., 1].contiguous()


def _launch(
    f: RowFunctions,
    like: Tensor,
    axis: int,
    segments: Segments,
    numbers: Numbers,
    theta: Theta,
    out: Tensor,
    *,
    x: Tensor | None,
    p: Tensor | None = None,
    g: Tensor | None = None,
) -> Tensor:
    """Fills `out`."""
    outer, elements, inner = like.shape[:axis].numel(), like.shape[axis], like.shape[axis + 1 :].numel()
    out = out.contiguous()
    if like.numel() == 0:
        return out
    x, p, g = (None if v is None else in_memory(v) for v in (x, p, g))
    mask = None if numbers.mask is None or x is None else numbers.mask.expand(like.shape).contiguous().view(torch.uint8)
    shape = shape_of_sums(like, axis, len(segments))
    scores = Scores(
        x=x, stride=0, starts=None, mask=mask, blocks=None, n=0, **numbers_of_rows(numbers.tau, theta, shape, like.device),
        COMPUTE=tl.constexpr(TRITON_DTYPE[computed_in(like.dtype)]),
    )  # fmt: skip
    with on_device(like):
        for width, own in segments.by_width:
            count = outer * len(own) * inner
            programs, tile = tiles(count, width, f.each)
            places = Places(own, segments.starts, segments.order, len(own), len(segments), elements, inner)
            whole_segments[programs](
                scores, f.inputs(p, g), f.outputs(out), places, count, BEGIN=f.begin, FINISH=f.finish, **tile
            )  # fmt: skip
    return out
