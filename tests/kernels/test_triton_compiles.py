"""The GPU kernels compile for a GPU, which takes none: code that the interpreter runs may be no code for the compiler."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("Triton interprets here", allow_module_level=True)
triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from softmaxima.kernels.attention import Options
from softmaxima.kernels.native_segments import Numbers
from softmaxima.kernels.triton import attention, library
from softmaxima.kernels.triton import segments as segments_on_gpus
from softmaxima.maps import REGISTRY
from softmaxima.segments import Segments

pytestmark = pytest.mark.compiles

SHORT, LONG = 1024, 100_000  # columns, on chip and in parts
KERNELS = {name: map.kernel for name, map in REGISTRY.items() if map.kernel is not None and map.kernel.on_gpus}
HALF = (torch.bfloat16, torch.float16)


class Hopper:
    """What the compiler asks of a device."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The PTX of each kernel that is launched, by its name, which is compiled for the arguments of the launch and not run."""
    found: dict[str, str] = {}
    run = JITFunction.run

    def compile(kernel: Any, *arguments: Any, warmup: bool, **options: Any) -> None:
        ptx = run(kernel, *arguments, warmup=True, **options).asm["ptx"]
        if not options.get("CAREFUL"):  # what runs again where a result is not finite need not be fast
            found[kernel.fn.__name__] = ptx

    monkeypatch.setattr(JITFunction, "run", compile)
    monkeypatch.setattr(driver, "_active", Hopper())
    return found


def theta_of(name: str) -> tuple[Any, ...]:
    return KERNELS[name].theta(*REGISTRY[name].complete({}).values())  # type: ignore[union-attr]


def forward(name: str, n: int, dtype: torch.dtype = torch.float32) -> None:
    library.forward(KERNELS[name], torch.zeros(2, n, dtype=dtype), 1.0, None, theta_of(name))  # type: ignore[arg-type]


def backward(name: str, n: int, dtype: torch.dtype = torch.float32) -> None:
    p = torch.zeros(2, n, dtype=dtype)
    scores = p if REGISTRY[name].uses_scores else None
    library.backward(KERNELS[name], p, p, scores, 0.5, None, theta_of(name))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", KERNELS)
def test_whole_rows_of_every_map_are_read_four_scores_at_a_time(name: str, compiled: dict[str, str]):
    forward(name, SHORT)
    assert "ld.global.v4.b32" in compiled["whole_rows"]
    assert "st.global.v4.b32" in compiled["whole_rows"]


@pytest.mark.parametrize("name", KERNELS)
def test_masks_and_numbers_a_row(name: str, compiled: dict[str, str]):
    x = torch.zeros(2, SHORT)
    each = tuple(torch.full((2, 1), float(number), dtype=torch.float64) for number in theta_of(name))
    library.forward(KERNELS[name], x, torch.ones(2, 1), x == 0, each)  # type: ignore[arg-type]
    assert not re.search(r"ld\.global\.[bu]8", compiled["whole_rows"])  # nor is a mask read one by one


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("kind", [torch.float64, *HALF], ids=str)
def test_scores_of_other_dtypes(name: str, kind: torch.dtype):
    forward(name, SHORT, kind)


@pytest.mark.parametrize("n", [SHORT, LONG])
@pytest.mark.parametrize("name", KERNELS)
def test_backward(name: str, n: int):
    backward(name, n)


@pytest.mark.parametrize("n", [SHORT, LONG])
@pytest.mark.parametrize("kind", [torch.float64, *HALF], ids=str)
def test_backward_of_other_dtypes(kind: torch.dtype, n: int):
    backward("entmax", n, kind)  # the one whose accumulators are double


@pytest.mark.parametrize("n", [SHORT, LONG])
def test_logsumexp(n: int):
    x = torch.zeros(2, n)
    _, states = library.logsumexp(x, 1.0, None, wide=True)
    library.logsumexp_backward(x, states, torch.ones(2), 1.0, None)


@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax15", "entmax", "topk_softmax", "topp_softmax", "minp_softmax"])
def test_long_rows(name: str):
    forward(name, LONG)


WITH_LOSS = [name for name, kernel in KERNELS.items() if kernel.loss is not None]


@pytest.mark.parametrize(("n", "smoothing", "weighted"), [(SHORT, 0.1, True), (LONG, 0.0, False), (LONG, 0.1, True)])
@pytest.mark.parametrize(("name", "target"), [*((name, "labels") for name in WITH_LOSS), ("softmax", "soft"), ("entmax", "soft")])
def test_losses(name: str, target: str, n: int, smoothing: float, weighted: bool, compiled: dict[str, str]):
    x = torch.zeros(2, n)
    library.loss(
        KERNELS[name],  # type: ignore[arg-type]
        x,
        x if target == "soft" else torch.zeros(2, dtype=torch.int64),
        theta=theta_of(name),
        class_weight=torch.ones(n) if weighted else None,
        smoothing=smoothing,
        scale=0.5,
        fenchel=name != "softmax",
        gradient=True,
    )
    for kernel in ("account_parts", "finish_losses"):  # a whole row in every thread makes ten times as many
        assert compiled.get(kernel, "").count("\n") < 10_000


def test_scaling_in_place():
    library.scale_rows(torch.zeros(2, SHORT), torch.ones(2))


@pytest.mark.parametrize("name", [*KERNELS, "logsumexp"])
@pytest.mark.parametrize("order", ["sorted", "any"])
def test_segments(name: str, order: str, compiled: dict[str, str]):
    index = torch.arange(600) // 20 if order == "sorted" else torch.arange(600) % 30
    x, segments, numbers = torch.zeros(600, 8), Segments(index), Numbers(torch.ones(30, 8), torch.ones(600, 1, dtype=torch.bool))
    of_sum = name == "logsumexp"
    kernels = segments_on_gpus.of_sum(name) if of_sum else segments_on_gpus.of_map(KERNELS[name], theta_of(name))  # type: ignore[arg-type]
    assert kernels is not None
    assert segments_on_gpus.fit(kernels, segments, x.dtype)
    segments_on_gpus.value(kernels, x, 0, segments, numbers)
    g, p = (torch.zeros(30, 8), None) if of_sum else (x, x)
    segments_on_gpus.slope(kernels, x, 0, segments, numbers, g, p, x)
    assert "whole_segments" in compiled


WITH_ATTENTION = ("softmax", "elastic_softmax", "sparsemax", "entmax15", "entmax")


def attend(
    name: str, size: int, dtype: torch.dtype, value_size: int | None = None, queries: int = 256, keys: int = 512, **more: Any
) -> None:
    """Both passes of attention over heads of this size, causal."""
    kernel, theta = KERNELS[name], theta_of(name)
    q, k, v = (torch.zeros(1, 2, n, wide, dtype=dtype) for n, wide in ((queries, size), (keys, size), (keys, value_size or size)))
    options = Options(**{"kernel": kernel, "theta": theta, "sparse": True, "scale": 0.5, "right": 0, **more})
    wants_lse = attention.module_of(kernel.triton).ATTENTION.online  # type: ignore[union-attr]
    out, lse, kept = attention.forward(q, k, v, options, lse=wants_lse, keeps=True)
    attention.backward(q, k, v, out, lse if wants_lse else None, options, out=out, kept=kept, uses_scores=False)


@pytest.mark.parametrize("size", [16, 64, 128, 256])
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["softmax", "entmax15"])
def test_attention(name: str, kind: torch.dtype, size: int, compiled: dict[str, str]):
    attend(name, size, kind)
    assert {"attend", "pull_queries", "pull_keys"} <= compiled.keys()
    if (kind, size) != (torch.float32, 256):  # of which only one block is under way
        assert "cp.async" in compiled["attend"]  # keys come while others are multiplied
    for kernel in ("attend", "pull_queries", "pull_keys"):
        assert re.search(r"wgmma\.mma_async|mma\.sync", compiled[kernel])
        assert not re.search(r"\b(atom|red)\.global", compiled[kernel])  # each number has one writer
        if kind == torch.bfloat16 and size in (64, 128):
            assert "wgmma.mma_async" in compiled[kernel]


@pytest.mark.parametrize("name", WITH_ATTENTION)
def test_attention_with_every_option(name: str):
    each = torch.ones(1, 2, 250, 1, dtype=torch.float64)
    theta = tuple(each * number for number in theta_of(name))
    mask, bias = torch.ones(250, 500, dtype=torch.bool), torch.zeros(1, 2, 1, 500)
    lengths = torch.full((1, 1, 1), 300)
    more = {"tau": each, "theta": theta, "mask": mask, "bias": bias, "lengths": lengths, "sinks": each, "left": 100}
    more |= {"softcap": 30.0, "slopes": torch.ones(1, 2, 1, 1), "first": lengths}
    attend(name, 80, torch.float16, value_size=40, queries=250, keys=500, **more)


@pytest.mark.parametrize("name", ["softmax", "sparsemax"])
def test_attention_of_one_query(name: str):
    attend(name, 1, torch.bfloat16, queries=1, keys=1, right=None)  # numbers of 1 are compiled in
