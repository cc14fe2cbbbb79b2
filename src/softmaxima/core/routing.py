"""Which way a call goes: a kernel of the tensor's device, a registered operation, or torch's own operations."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor
from torch.compiler import is_compiling, is_exporting

from softmaxima.core.numbers import SMALLEST_TEMPERATURE
from softmaxima.core.tracing import is_eager, is_recording, transforming
from softmaxima.kernels import devices, native, operations

if TYPE_CHECKING:
    from softmaxima.kernels.native import Kernel


def is_plain(x: Any, dim: Any, temperature: Any, where: Any) -> bool:
    """Whether a kernel takes the scores as they are, with nothing to prepare or to refuse; on a few scores that costs more than
    the kernel.
    """
    if where is not None or type(x) is not Tensor or type(temperature) is not float:
        return False
    if not SMALLEST_TEMPERATURE <= temperature < math.inf:
        return False
    if is_recording() or transforming():
        return False
    return (
        type(dim) is int
        and (dim == -1 or dim == x.ndim - 1)
        and x.dtype in native.DTYPES
        and x.is_cpu
        and x.layout is torch.strided
        and x.is_contiguous()
        and x.numel() > 0
        and x.ndim > 0
        and native.AVAILABLE
        and not (x.is_neg() or x.is_nested)
        and not (x.itemsize == 2 and torch.is_autocast_enabled("cpu"))
    )


def has_kernel(kernel: Kernel | None, *tensors: Tensor) -> TypeGuard[Kernel]:
    """Whether the kernel takes these tensors, which are on one device."""
    if kernel is None or not all(takes_kernel(x) for x in tensors):
        return False
    return devices.has_kernel(tensors[0].device.type, kernel.key)


def takes_kernel(x: Tensor) -> bool:
    """Whether its device has kernels for the tensor: in memory now, or where torch.compile will have it."""
    there = not (transforming() or is_exporting()) if is_compiling() else is_eager(x)
    return there and x.dtype in native.DTYPES and devices.has_library(x.device.type)


def is_native(x: Tensor) -> bool:
    """Whether the native library, which has more functions than the GPU's kernels, takes the tensor."""
    return x.is_cpu and native.AVAILABLE and takes_kernel(x)


def kernels(x: Tensor) -> Any:
    """The kernels of the tensor's device, as registered operations where a compiler looks on."""
    return operations if is_compiling() else devices.library(x.device.type)
