"""What functions of segments are asked for, checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from softmaxima.core.arguments import broadcasts, check_device, check_dim, check_value, check_where
from softmaxima.core.numbers import TEMPERATURE
from softmaxima.segments.grouping import Segments, found_segments


def prepared(
    name: str, x: Tensor, index: Any, num_segments: Any, ptr: Any, dim: Any, temperature: Any, where: Any
) -> tuple[Segments, int, float | Tensor, Tensor | None]:
    """(the segments, dim ≥ 0, τ, mask)."""
    if x.ndim == 0:
        raise ValueError(f"{name}: scores need an axis of elements, got a 0-d tensor")
    axis = check_dim(name, dim, x.ndim)
    segments = found_segments(name, index, num_segments, ptr)
    if segments.elements != x.shape[axis]:
        what = "ptr ends at" if ptr is not None else "index has"
        raise ValueError(
            f"{name}: {what} {segments.elements}, and scores of shape {tuple(x.shape)} have {x.shape[axis]} "
            f"elements along dim {axis}; there is one index for each"
        )
    check_device(name, "index" if ptr is None else "ptr", segments.given, x)
    tau = value_of_segments(name, "temperature", temperature, x, axis, len(segments), *TEMPERATURE)
    return segments, axis, tau, check_where(name, where, x)


def value_of_segments(
    name: str, what: str, value: Any, x: Tensor, axis: int, segments: int, valid: Callable[[Any], Any], domain: str
) -> float | Tensor:
    """A number, or a tensor of x's rank with one for each segment, or for all, along the axis, that is `valid`."""
    tensor = check_value(name, what, value, valid, domain)
    if not isinstance(tensor, Tensor):
        return tensor
    tensor = check_device(name, what, tensor, x)
    shape = tuple(segments if a == axis else size for a, size in enumerate(x.shape))
    if not broadcasts(tensor, shape):
        raise ValueError(
            f"{name}: {what} must broadcast to {shape}, scores with one for each segment along dim "
            f"{axis}, got shape {tuple(tensor.shape)}"
        )
    return tensor[(None,) * (x.ndim - tensor.ndim)]
