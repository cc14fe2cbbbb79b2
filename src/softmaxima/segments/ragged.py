"""What works on rows, of segments: by the kernels of their device, or by rows padded to few lengths, with all derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from softmaxima.base.tracing import transforming
from softmaxima.engine.routing import takes_kernel
from softmaxima.kernels import devices
from softmaxima.kernels.native_segments import Numbers
from softmaxima.segments.grouping import Segments, Unfound

if TYPE_CHECKING:
    from softmaxima.engine.contract import Map


@dataclass(frozen=True)
class Operation:
    """A map, or a sum, of rows [..., n], the axis last.

    key: by which a graph that is recorded finds it.
    rows(x, tau, mask, params): its value [..., n], or [...] of sums, with every derivative; a parameter that is a tensor is
        [..., 1], or [..., n] where it is one of weights.
    kernels(library, params): those of a module of `devices.segments`, None where it has none for them.
    uses_scores: whether the derivative needs the scores beside the value.
    shift_invariant: whether it is the same of x + c.
    """

    key: str
    rows: Callable[[Tensor, Any, Tensor | None, Sequence[Any]], Tensor]
    kernels: Callable[[Any, Sequence[Any]], Any]
    sums: bool
    uses_scores: bool
    shift_invariant: bool = False
    weighted: bool = False  # whether the first parameter has a number for each element
    map: Map | None = None


def of_segments(
    operation: Operation, segments: Segments, axis: int, x: Tensor, tau: Any, mask: Tensor | None, params: Sequence[Any]
) -> Tensor:
    """The operation of each segment of x along `axis`; τ and parameters that are tensors have the segments there."""
    if not transforming() and takes_kernel(x):
        library = devices.segments(x.device.type)
        kernels = operation.kernels(library, params)
        if kernels is not None and library.fit(kernels, segments, x.dtype):
            return _ByLibrary.apply(operation, library, kernels, segments, axis, mask, x, tau, *params)
    return by_rows(operation, segments, axis, x, tau, mask, params)


class _ByLibrary(torch.autograd.Function):
    """By kernels, and so its first derivative by the scores; what more is asked for by rows."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        operation, library, kernels, segments, axis, mask, x, tau, *params = inputs
        value = library.value(kernels, x, axis, segments, Numbers(tau, mask))
        numbers = [v if isinstance(v, Tensor) else None for v in (tau, *params)]
        ctx.plain, ctx.given = inputs[:6], [None if isinstance(v, Tensor) else v for v in (tau, *params)]
        ctx.save_for_backward(x, None if operation.sums else value, *numbers)
        ctx.set_materialize_grads(False)
        return value

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        g = grad_outputs[0]
        operation, library, kernels, segments, axis, mask = ctx.plain
        x, value, *numbers = ctx.saved_tensors
        given = [n if n is not None else v for n, v in zip(numbers, ctx.given, strict=True)]
        needs = ctx.needs_input_grad[6:]
        if g is None:
            return (None,) * (6 + len(needs))
        # Of a narrower dtype the slope by x has not the digits of that by τ.
        by_tau = needs[1] and x.dtype in (torch.float32, torch.float64)
        if not torch.is_grad_enabled() and not any(needs[2:]) and by_tau == needs[1]:
            scores = x if operation.uses_scores or operation.sums else None
            slope = library.slope(kernels, x, axis, segments, Numbers(given[0], mask), g, value, scores)
            of_tau = _slope_of_temperature(operation, segments, axis, x, given[0], mask, slope) if by_tau else None
            return *(None,) * 6, slope, of_tau, *(None,) * (len(given) - 1)
        inputs = [v for v, needed in zip((x, *given), needs, strict=True) if needed]
        twice = torch.is_grad_enabled()
        with torch.enable_grad():
            value = by_rows(operation, segments, axis, x, given[0], mask, given[1:])
            found = iter(torch.autograd.grad(value, inputs, g, create_graph=twice, allow_unused=True))
        return *(None,) * 6, *(next(found) if needed else None for needed in needs)


def _slope_of_temperature(
    operation: Operation, segments: Segments, axis: int, x: Tensor, tau: Tensor, mask: Tensor | None, slope: Tensor
) -> Tensor:
    """∂/∂τ = −⟨∂/∂x, x − A⟩/τ, A a segment's largest score, which keeps digits, where a shift by it changes nothing, else 0."""
    scores, index, shape = x.double(), segments.index, list(x.shape)
    shape[axis] = len(segments)
    if operation.shift_invariant:
        # Of all, for the slope of a largest score may have rounded to 0.
        allowed = scores if mask is None else scores.masked_fill(~mask, -math.inf)
        scores = scores - largest_of(allowed, segments, axis).index_select(axis, index)
    moved = scores.new_zeros(shape).index_add_(axis, index, scores.masked_fill(slope == 0, 0.0).mul_(slope))
    return -(moved / tau).sum_to_size(tau.shape).to(tau.dtype)


def largest_of(x: Tensor, segments: Segments | Unfound, axis: int) -> Tensor:
    """The largest of each segment, by which scores may be shifted: 0 where that is not finite, or nothing is."""
    shape = list(x.shape)
    shape[axis] = segments.count
    each = segments.index.view(-1, *(1,) * (x.ndim - 1 - axis)).expand(x.shape)
    tops = x.new_full(shape, -math.inf).scatter_reduce(axis, each, x.detach(), "amax")
    return tops.masked_fill(~tops.isfinite(), 0.0)


def by_rows(
    operation: Operation, segments: Segments, axis: int, x: Tensor, tau: Any, mask: Tensor | None, params: Sequence[Any]
) -> Tensor:
    """The same by rows of a few lengths, padded where there are none."""
    last = lambda v: v.movedim(axis, -1) if isinstance(v, Tensor) and v.ndim else v
    value = _padded(operation, segments, last(x), last(tau), last(mask), [last(v) for v in params])
    return value.movedim(-1, axis)


def _padded(operation: Operation, segments: Segments, x: Tensor, tau: Any, mask: Tensor | None, params: Sequence[Any]) -> Tensor:
    table = segments.table
    sizes = [bucket.rows * bucket.width for bucket in table.buckets]
    counts = [bucket.rows for bucket in table.buckets]

    def of_rows(value: Any) -> Sequence[Any]:
        if not isinstance(value, Tensor) or value.ndim == 0 or value.shape[-1] == 1:
            return [value.unsqueeze(-1) if isinstance(value, Tensor) and value.ndim else value] * len(counts)
        return [part.unsqueeze(-1) for part in value.index_select(-1, table.segments).split(counts, -1)]

    def of_cells(value: Tensor, fill: Any) -> Sequence[Tensor]:
        return _move(value, table.there, table.back, fill).split(sizes, -1)

    scores = of_cells(x, -math.inf)
    allowed = None if mask is None else of_cells(mask.expand(*mask.shape[:-1], segments.elements), False)
    taus, weights = of_rows(tau), [of_cells(v, 0) for v in params[: operation.weighted]]
    values = [of_rows(v) for v in params[operation.weighted :]]
    results = []
    for i, (rows, width, padding) in enumerate(table.buckets):
        if width == 0 and not operation.sums:
            continue
        # A mask has all axes of the scores.
        padded = None if padding is None else padding[(None,) * (x.ndim - 1)]
        where = padded if allowed is None else allowed[i].unflatten(-1, (rows, width))
        own = [*(cells[i].unflatten(-1, (rows, width)) for cells in weights), *(value[i] for value in values)]
        value = operation.rows(scores[i].unflatten(-1, (rows, width)), taus[i], where, own)
        results.append(value if operation.sums else value.flatten(-2))
    if not results:  # of no scores, but a function of all that is given
        nothing = x.clone() if not operation.sums else x.new_empty((*x.shape[:-1], 0))
        return nothing + sum(v.sum().mul(0).to(x.dtype) for v in (tau, *params) if isinstance(v, Tensor))
    joined = torch.cat(results, -1)
    return joined.index_select(-1, table.rows) if operation.sums else _move(joined, table.back, table.there, None)


class _Move(torch.autograd.Function):
    """x[..., there], and `fill` where `there` is beyond; the derivative moves `back`. Each number goes to one place at most, so
    that nothing is added up, and results are the same in every run."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, there: Tensor, back: Tensor, fill: Any) -> Tensor:
        if fill is not None:
            x = torch.cat((x, x.new_full((*x.shape[:-1], 1), fill)), -1)
        return x.index_select(-1, there)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.there, ctx.back, ctx.fill = inputs

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        return _Move.apply(grad_outputs[0], ctx.back, ctx.there, 0.0 if ctx.fill is None else None), None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _Move.apply(tangents[0], ctx.there, ctx.back, None if ctx.fill is None else 0.0)  # type: ignore[return-value]


def _move(x: Tensor, there: Tensor, back: Tensor, fill: Any) -> Tensor:
    return _Move.apply(x, there, back, fill)  # type: ignore[return-value]
