"""Which way a call goes: a kernel of the tensor's device, a registered operation, or torch's own operations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard

from torch import Tensor
from torch.compiler import is_compiling, is_exporting

from softmaxima.base.tracing import is_eager, transforming
from softmaxima.kernels import devices, native, operations
from softmaxima.kernels.layout import DTYPES

if TYPE_CHECKING:
    from softmaxima.kernels.kernel import Kernel


def is_plain(x: Any, dim: Any, temperature: Any, where: Any) -> bool:
    """Whether a kernel takes the scores of a tensor as they are, with nothing to prepare or to refuse.

    To find that out in Python costs more than the kernel on a few scores.
    """
    calls = native.CALLS if native.AVAILABLE else None
    return calls is not None and where is None and not is_compiling() and calls.is_plain(x, dim, temperature) is True


def has_kernel(kernel: Kernel | None, *tensors: Tensor) -> TypeGuard[Kernel]:
    """Whether the kernel takes these tensors, which are on one device."""
    if kernel is None or not all(takes_kernel(x) for x in tensors):
        return False
    return devices.has_kernel(tensors[0].device.type, kernel.key)


def takes_kernel(x: Tensor) -> bool:
    """Whether its device has kernels for the tensor: in memory now, or where torch.compile will have it."""
    there = not (transforming() or is_exporting()) if is_compiling() else is_eager(x)
    return there and x.dtype in DTYPES and devices.has_library(x.device.type)


def is_native(x: Tensor) -> bool:
    """Whether the native library, which has more functions than the GPU's kernels, takes the tensor."""
    return x.is_cpu and native.AVAILABLE and takes_kernel(x)


def kernels(x: Tensor) -> Any:
    """The kernels of the tensor's device, as registered operations where a compiler looks on."""
    return operations if is_compiling() else devices.library(x.device.type)
