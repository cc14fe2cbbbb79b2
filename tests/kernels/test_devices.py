"""Which kernels a tensor's device has, and what happens where it has none."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import pytest
import torch

from softmaxima.kernels import devices, native
from softmaxima.maps import REGISTRY


def test_the_cpu_has_the_native_library_and_other_devices_have_none():
    assert devices.library("cpu") is (native if native.AVAILABLE else None)
    assert devices.library("mps") is None
    assert not devices.has_library("meta")


def test_a_gpu_has_tritons_kernels_unless_that_is_not_wished_for(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("triton")
    monkeypatch.setattr(devices, "TRITON", ("cuda",))
    library = devices.library("cuda")
    for name in ("forward", "backward", "logsumexp", "logsumexp_backward", "loss"):
        assert callable(getattr(library, name))
        assert callable(getattr(native, name))
    monkeypatch.setattr(devices, "TRITON", ())
    assert devices.library("cuda") is None


def test_attention_is_by_one_module_a_device(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("triton")
    monkeypatch.setattr(devices, "TRITON", ("cuda",))
    for device in ("cpu", "cuda"):
        for name in ("largest_head", "kept_shapes", "forward", "backward"):
            assert devices.library(device) is None or callable(getattr(devices.attention(device), name))

    def largest(name: str, *theta: float | None, device: str = "cuda", dtype: torch.dtype = torch.float32) -> int:
        return devices.largest_head(device, REGISTRY[name].kernel.key, theta, dtype)  # type: ignore[union-attr]

    assert largest("softmax") == 256
    assert largest("topk_softmax", 4.0) == 0
    assert [largest("entmax", alpha) for alpha in (1.5, None, 2.5)] == [256, 256, 0]
    assert largest("sparsemax", device="mps") == 0
    assert largest("sparsemax", dtype=torch.float64) == 0


def test_a_gpu_without_triton_says_so_once(monkeypatch: pytest.MonkeyPatch):
    def missing(name: str) -> Any:
        raise ModuleNotFoundError("No module named 'triton'", name="triton")

    monkeypatch.setattr(devices, "TRITON", ("cuda",))
    monkeypatch.setattr(devices, "_triton", functools.cache(devices._triton.__wrapped__))
    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.warns(UserWarning, match=r"without its GPU kernels.*No module named 'triton'.*pip install triton"):
        assert devices.library("cuda") is None
    assert devices.library("cuda") is None  # a second warning would be an error
