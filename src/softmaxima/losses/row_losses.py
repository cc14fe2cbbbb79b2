"""Kernels that make one loss a row."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from softmaxima.base.tracing import sizes
from softmaxima.engine.contract import Map
from softmaxima.engine.routing import is_native, kernels
from softmaxima.kernels import native
from softmaxima.kernels.devices import has_kernel
from softmaxima.losses.batch import Batch

# (rows, target, class_weight=, smoothing=, scale=, gradient=) → (the loss of each row in double, `scale` times its gradient)
RowLosses = Callable[..., tuple[Tensor, Tensor | None]]


def losses_of(batch: Batch, map: Map, params: Iterable[Any] = (), fenchel: bool = False) -> RowLosses | None:
    """The losses whose gradient is the map less the target, by its kernel."""
    kernel = map.kernel
    if kernel is None or not has_kernel(batch.rows.device.type, kernel.key, "loss"):
        return None
    if kernel.labels_only and (batch.soft is not None or batch.smoothing > 0):
        return None
    if (theta := kernel.theta(*params)) is None:
        return None
    return lambda x, target, **account: kernels(x).loss(kernel, x, target, theta=theta, fenchel=fenchel, **account)


def losses_given(batch: Batch, name: str, map: Map, params: Iterable[Any] = (), fenchel: bool = False) -> RowLosses | None:
    """The losses that the kernel `name` makes of the map's probabilities."""
    kernel = map.kernel
    if kernel is None or (theta := kernel.theta(*params)) is None:
        return None

    def losses(x: Tensor, target: Tensor, **account: Any) -> tuple[Tensor, Tensor | None]:
        return native.given_loss(name, native.forward(kernel, x, 1.0, None, theta), x, target, fenchel=fenchel, **account)

    return native_only(batch, losses)


def losses_of_p(
    batch: Batch, map: Map, params: Iterable[Any], of_p: Callable[[Tensor, Any], tuple[Tensor, Tensor]]
) -> RowLosses | None:
    """The losses w ℓ(p_t) of labels t by the map's kernels; of_p(p, n) = (ℓ(p), ℓ′(p)) in float64."""
    kernel = map.kernel
    if kernel is None or kernel.library is not None or batch.soft is not None or batch.smoothing > 0 or 0 in sizes(batch.rows):
        return None
    if (theta := kernel.theta(*params)) is None:
        return None

    def losses(
        x: Tensor, target: Tensor, *, class_weight: Tensor | None, smoothing: float, scale: float, gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        p = native.forward(kernel, x, 1.0, None, theta)
        label = target if batch.ignored is None else target.clamp_min(0)
        classes = batch.classes
        n = classes.squeeze(-1) if isinstance(classes, Tensor) else classes
        values, slopes = of_p(p.gather(-1, label.unsqueeze(-1)).squeeze(-1).double(), n)
        if class_weight is not None:
            weight = class_weight.double()[label]
            values = torch.where((weight == 0) & (values == math.inf), 0.0, values * weight)
            slopes = torch.where(weight == 0, 0.0, slopes * weight)
        if batch.ignored is not None:
            values = values.masked_fill(batch.ignored, 0.0)
        if not gradient:
            return values, None
        largest = torch.finfo(p.dtype).max  # of which 0 is 0
        g = (slopes * scale).clamp(-largest, largest).to(p.dtype)
        return values, native.backward_of_labels(kernel, p, g, target, x if map.uses_scores else None, theta)

    return native_only(batch, losses)


def native_only(batch: Batch, losses: RowLosses) -> RowLosses | None:
    """Losses that only the native library has, and no compiler takes."""
    return losses if is_native(batch.rows) and not is_compiling() else None
