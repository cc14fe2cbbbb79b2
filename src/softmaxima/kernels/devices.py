"""Which kernels a device has: the native library's on the CPU, Triton's on a GPU, and none elsewhere, where torch does the work."""

from __future__ import annotations

import importlib
import warnings
from functools import cache
from typing import Any

import torch

from softmaxima.base.tracing import constant_when_compiled
from softmaxima.kernels import native, native_attention, native_segments
from softmaxima.kernels.interface import asked_backend
from softmaxima.kernels.kernel import KERNELS

# Triton's are tested on the CPU, in its interpreter.
TRITON = {"native": ("cuda",), "triton": ("cuda", "cpu"), "reference": ()}[asked_backend()]


def library(device_type: str) -> Any:
    """The module with the kernels for tensors on a device, or None. All such modules have functions of the same names."""
    if device_type == "cpu" and native.AVAILABLE:
        return native
    return _triton() if device_type in TRITON else None


@constant_when_compiled
def has_kernel(device_type: str, key: str, what: str = "forward") -> bool:
    """Whether the device has "forward", "backward" or "loss" of the kernel of this key."""
    kernels = library(device_type)
    return kernels is not None and kernels.has(KERNELS[key], what)


@constant_when_compiled
def has_library(device_type: str) -> bool:
    return library(device_type) is not None


def attention(device_type: str) -> Any:
    """The module with attention for tensors on a device, or None. All such modules have functions of the same names."""
    found = library(device_type)
    if found is None:
        return None
    return native_attention if found is native else importlib.import_module("softmaxima.kernels.triton.attention")


def segments(device_type: str) -> Any:
    """The module with maps and sums of segments for tensors on a device that has kernels. All such modules have functions of the
    same names."""
    if library(device_type) is native:
        return native_segments
    return importlib.import_module("softmaxima.kernels.triton.segments")


@constant_when_compiled  # and so asked without the sizes, which are symbols where code is compiled for all
def largest_head(device_type: str, key: str, theta: tuple[float | None, ...], dtype: torch.dtype) -> int:
    """Up to which size of heads the device has attention by the kernel of this key with these numbers, None for tensors, or 0."""
    found = attention(device_type)
    return 0 if found is None else found.largest_head(KERNELS[key], theta, dtype)


@cache  # so that its warning comes once
def _triton() -> Any:
    try:
        return importlib.import_module("softmaxima.kernels.triton.library")
    except ImportError as error:
        warnings.warn(
            f"softmaxima runs without its GPU kernels, much slower: {error}. Call: pip install triton, or set "
            "SOFTMAXIMA_BACKEND=reference to be content with it",
            stacklevel=2,
        )
        return None
