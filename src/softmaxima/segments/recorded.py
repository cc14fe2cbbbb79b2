"""Maps and sums of segments as the operations that recorders see, `softmaxima::segments` and `softmaxima::segments_backward`.

A recorder knows no numbers of an index, so that there segments are not found; they are when the operation runs, once for all that
run one after another over one index.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from softmaxima.base.tracing import is_exporting_to_onnx, is_recorded, operation, outside_compilers, transforming
from softmaxima.engine.recorded import decode, encode
from softmaxima.kernels.operations import join
from softmaxima.segments.arguments import check_count
from softmaxima.segments.grouping import Segments, Unfound, found_again, found_segments
from softmaxima.segments.operations import find_operation
from softmaxima.segments.ragged import Operation, of_segments


def compiled(function: Callable[..., Any], what: str, x: Any, index: Any, counted: bool) -> Callable[..., Any]:
    """The function, where a compiler can look into it; for Segments, nested tensors and what must be counted it calls it."""
    if not is_compiling():
        return function
    if transforming() or isinstance(index, Segments) or getattr(x, "is_nested", False):
        return outside_compilers(function, what)
    if not (counted or isinstance(index, Unfound)):
        return outside_compilers(function, f"{what} whose number is not given (num_segments=)")
    return function


def evaluate(
    operation: Operation, segments: Segments | Unfound, axis: int, x: Tensor, tau: Any, mask: Tensor | None, params: Sequence[Any]
) -> Tensor:
    """`of_segments`, or the operation that a recorder keeps."""
    if isinstance(segments, Segments):
        return of_segments(operation, segments, axis, x, tau, mask, params)
    if is_exporting_to_onnx():
        raise NotImplementedError("segments have no place in ONNX; pad them to rows, and give where= to a map of rows")
    tensors, numbers = _encoded(operation, tau, params)
    count = segments.count if operation.sums or segments.is_counted else -1
    return _recorded(operation.key, x, segments.given, segments.by_ptr, count, axis, mask, tensors, numbers)


def _encoded(operation: Operation, tau: Any, params: Sequence[Any]) -> tuple[list[Tensor], list[float]]:
    if operation.map is not None:
        coded = encode(operation.map, tau, params)
        if coded is None:
            said = f"a graph that is recorded cannot hold its parameters {params!r}; call it outside of the graph"
            raise NotImplementedError(f"{operation.map.name}: {said}")
        return coded
    values = (tau, *params)
    tensors = [value for value in values if isinstance(value, Tensor)]
    return tensors, [math.nan if isinstance(value, Tensor) else float(value) for value in values]


def _run(
    key: str,
    x: Tensor,
    given: Tensor,
    by_ptr: bool,
    count: int,
    axis: int,
    where: Tensor | None,
    tensors: Sequence[Tensor],
    numbers: Sequence[float],
) -> Tensor:
    operation = find_operation(key)
    name = "softmaxima::segments"
    segments = found_segments(name, None, None, given) if by_ptr else found_again(name, given, None if count < 0 else count)
    check_count(name, segments, x, axis)
    tau, *params = join(tensors, numbers) if operation.map is None else decode(operation.map, tensors, numbers)
    return of_segments(operation, segments, axis, x, tau, where, params).contiguous()


def _slopes(g: Tensor, needs: Sequence[bool], *inputs: Any) -> list[Tensor]:
    """∂⟨g, value⟩ by x and each tensor, of those that are needed."""
    key, x, given, by_ptr, count, axis, where, tensors, numbers = inputs
    twice = torch.is_grad_enabled()
    with torch.enable_grad():
        leaves = [v if twice else v.detach().requires_grad_(need) for v, need in zip((x, *tensors), needs, strict=True)]
        value = _run(key, leaves[0], given, by_ptr, count, axis, where, leaves[1:], numbers)
        wanted = [v for v, need in zip(leaves, needs, strict=True) if need]
        found = torch.autograd.grad(value, wanted, g, create_graph=twice, allow_unused=True)
        return [torch.zeros_like(v) if slope is None else slope for v, slope in zip(wanted, found, strict=True)]


_recorded = operation("segments")(_run)


@_recorded.register_fake
def _(key: str, x: Tensor, given: Tensor, by_ptr: bool, count: int, axis: int, *_: Any) -> Tensor:
    shape = list(x.shape)
    if find_operation(key).sums:
        shape[axis] = count
    return x.new_empty(shape)


@operation("segments_backward")
def _recorded_slopes(
    g: Tensor,
    needs: Sequence[bool],
    key: str,
    x: Tensor,
    given: Tensor,
    by_ptr: bool,
    count: int,
    axis: int,
    where: Tensor | None,
    tensors: Sequence[Tensor],
    numbers: Sequence[float],
) -> list[Tensor]:
    with _with_autograd():
        return [slope.contiguous() for slope in _slopes(g, needs, key, x, given, by_ptr, count, axis, where, tensors, numbers)]


@contextmanager
def _with_autograd() -> Iterator[None]:
    """Inside an operation torch keeps no graph, unless it is told to."""
    key = torch._C.DispatchKey.AutogradFunctionality
    before = torch._C._dispatch_tls_is_dispatch_key_excluded(key)
    torch._C._dispatch_tls_set_dispatch_key_excluded(key, False)
    try:
        yield
    finally:
        torch._C._dispatch_tls_set_dispatch_key_excluded(key, before)


@_recorded_slopes.register_fake
def _(
    g: Tensor,
    needs: Sequence[bool],
    key: str,
    x: Tensor,
    given: Any,
    by_ptr: Any,
    count: Any,
    axis: Any,
    where: Any,
    tensors: Any,
    *_: Any,
) -> list[Tensor]:
    return [v.new_empty(v.shape) for v, need in zip((x, *tensors), needs, strict=True) if need]


def _set_up(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    key, x, given, by_ptr, count, axis, where, tensors, numbers = inputs
    ctx.plain = key, by_ptr, count, axis, numbers
    ctx.save_for_backward(x, given, where, *tensors)


def _backward(ctx: Any, g: Tensor) -> Any:
    key, *numbered, numbers = ctx.plain
    x, given, where, *tensors = ctx.saved_tensors
    needs = [ctx.needs_input_grad[1], *ctx.needs_input_grad[7]]
    slopes = _recorded_slopes if is_recorded(g) else _slopes
    found = iter(slopes(g, needs, key, x, given, *numbered, where, tensors, numbers))
    by_x, *others = (next(found) if need else None for need in needs)
    return None, by_x, *(None,) * 5, others, None


_recorded.register_autograd(_backward, setup_context=_set_up)
