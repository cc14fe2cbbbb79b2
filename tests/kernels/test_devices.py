"""Which kernels a tensor's device has, and what happens where it has none."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest

from softmaxima.kernels import devices, native


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    devices.library.cache_clear()
    yield
    devices.library.cache_clear()


def test_the_cpu_has_the_native_library_and_other_devices_have_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SOFTMAXIMA_BACKEND", "native")
    assert devices.library("cpu") is (native if native.AVAILABLE else None)
    assert devices.library("mps") is None
    assert not devices.has_library("meta")


def test_a_gpu_has_tritons_kernels_unless_that_is_not_wished_for(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("triton")
    monkeypatch.setenv("SOFTMAXIMA_BACKEND", "native")
    library = devices.library("cuda")
    for name in ("forward", "backward", "logsumexp", "logsumexp_backward", "loss"):
        assert callable(getattr(library, name))
        assert callable(getattr(native, name))
    devices.library.cache_clear()
    monkeypatch.setenv("SOFTMAXIMA_BACKEND", "reference")
    assert devices.library("cuda") is None


def test_a_gpu_without_triton_says_so_once(monkeypatch: pytest.MonkeyPatch):
    def missing(name: str) -> Any:
        raise ModuleNotFoundError("No module named 'triton'", name="triton")

    monkeypatch.setenv("SOFTMAXIMA_BACKEND", "native")
    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.warns(UserWarning, match=r"without its GPU kernels.*No module named 'triton'.*pip install triton"):
        assert devices.library("cuda") is None
    assert devices.library("cuda") is None  # a second warning would be an error
