"""What functions of segments are asked for, checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from softmaxima.base.arguments import broadcasts, check_device, check_dim, check_value, check_where
from softmaxima.base.numbers import TEMPERATURE
from softmaxima.base.tracing import is_recorded, is_recording, transforming
from softmaxima.segments.grouping import Segments, Unfound, found_segments


def prepared(
    name: str, x: Tensor, index: Any, num_segments: Any, ptr: Any, dim: Any, temperature: Any, where: Any
) -> tuple[Segments | Unfound, int, float | Tensor, Tensor | None]:
    """(the segments, dim ≥ 0, τ, mask)."""
    if x.ndim == 0:
        raise ValueError(f"{name}: scores need an axis of elements, got a 0-d tensor")
    axis = check_dim(name, dim, x.ndim)
    recorded = x.shape[axis] if (is_recording() or (is_recorded(x) and not x.is_meta)) and not transforming() else None
    segments = found_segments(name, index, num_segments, ptr, recorded)
    check_count(name, segments, x, axis, "index has" if ptr is None else "ptr ends at")
    check_device(name, "index" if ptr is None else "ptr", segments.given, x)
    tau = value_of_segments(name, "temperature", temperature, x, axis, segments, *TEMPERATURE)
    return segments, axis, tau, check_where(name, where, x)


def check_count(name: str, segments: Segments | Unfound, x: Tensor, axis: int, what: str = "index or ptr says") -> None:
    """Raise where there are more or fewer scores than elements."""
    if segments.elements != x.shape[axis]:
        raise ValueError(
            f"{name}: {what} {segments.elements}, and scores of shape {tuple(x.shape)} have {x.shape[axis]} "
            f"elements along dim {axis}; there is one index for each"
        )


def value_of_segments(
    name: str,
    what: str,
    value: Any,
    x: Tensor,
    axis: int,
    segments: Segments | Unfound,
    valid: Callable[[Any], Any],
    domain: str,
) -> float | Tensor:
    """A number, or a tensor of x's rank with one for each segment, or for all, along the axis, that is `valid`."""
    tensor = check_value(name, what, value, valid, domain)
    if not isinstance(tensor, Tensor):
        return tensor
    tensor = check_device(name, what, tensor, x)
    if tensor.ndim == 0:
        return tensor[(None,) * x.ndim]
    shape = tuple(segments.count if a == axis else size for a, size in enumerate(x.shape))
    if not broadcasts(tensor, shape):
        raise ValueError(
            f"{name}: {what} must broadcast to {shape}, scores with one for each segment along dim "
            f"{axis}, got shape {tuple(tensor.shape)}"
        )
    return tensor[(None,) * (x.ndim - tensor.ndim)]
