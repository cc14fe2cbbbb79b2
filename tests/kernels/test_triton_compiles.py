"""The GPU kernels compile for a GPU, which takes none: code that the interpreter runs may be no code for the compiler."""

from __future__ import annotations

import os
from typing import Any

import pytest

if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("Triton interprets here", allow_module_level=True)
triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from softmaxima.kernels.triton import logsumexp, loss, rows, threshold
from softmaxima.kernels.triton.library import module_of
from softmaxima.maps import REGISTRY

pytestmark = pytest.mark.compiles

tl = triton.language
HOPPER = GPUTarget("cuda", 90, 32)
POINTERS = {
    **dict.fromkeys(("x", "out", "p", "g"), "*fp32"),
    **dict.fromkeys(("taus", "values", "accounts", "weights", "scales"), "*fp64"),
    **dict.fromkeys(("partial", "gathered", "solved", "factors"), "*fp32"),
    "mask": "*u8",
    "blocks": "*i64",
    "starts": "*i64",
    "labels": "*i64",
    "soft": "*fp32",
    "counts": "*i32",
}


def compiled(kernel: Any, warps: int, constants: dict[str, Any], **pointers: Any) -> str:
    """PTX. Arguments that are not constants are pointers by their names, or int64; constants of other kernels are left out."""
    constants = {name: value for name, value in constants.items() if name in kernel.arg_names}
    kinds = {**POINTERS, "theta": (), **pointers}
    signature = {name: "constexpr" if name in constants else kinds.get(name, "i64") for name in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    return triton.compile(source, target=HOPPER, options={"num_warps": warps}).asm["ptx"]


NOTHING: dict[str, Any] = {"taus": None, "mask": None, "blocks": None, "starts": None}
PLAIN = {**NOTHING, "TEMPERED": False, "COMPUTE": tl.float32}
MASKED = {"TEMPERED": True, "COMPUTE": tl.float32}
KERNELS = {name: map.kernel for name, map in REGISTRY.items() if map.kernel is not None and map.kernel.on_gpus}
EVERY = {"EACH_P": True, "EACH_G": True, "EACH_OUT": True, "DERIVATIVE": False}
DERIVATIVE = {**EVERY, "DERIVATIVE": True}


def of(name: str) -> tuple[Any, tuple[str, ...], tuple[str, ...]]:
    """(a map's module, the kinds of θ where it is the same for all rows, and where each row has its own)."""
    map = REGISTRY[name]
    count = len(KERNELS[name].theta(*map.complete({}).values()))
    return module_of(KERNELS[name].triton), ("i64",) * count, ("*fp64",) * count  # type: ignore[arg-type]


@pytest.mark.parametrize("name", KERNELS)
def test_whole_rows_of_every_map(name: str):
    module, theta, _ = of(name)
    f = module.FORWARD
    options = {"BEGIN": f.begin, "FINISH": f.finish, "p": None, "g": None, "ROWS": 1, "WIDTH": 1024, **EVERY}
    assert "ld.global" in compiled(rows.whole_rows, 4, {**PLAIN, **options}, theta=theta)


@pytest.mark.parametrize("name", KERNELS)
def test_masks_and_numbers_a_row(name: str):
    module, _, theta = of(name)
    f = module.FORWARD
    options = {"BEGIN": f.begin, "FINISH": f.finish, "p": None, "g": None, "ROWS": 1, "WIDTH": 1024, **EVERY}
    assert "ld.global.b8" in compiled(rows.whole_rows, 4, {**MASKED, **options}, theta=theta).replace("u8", "b8")


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(("kind", "compute"), [("fp64", tl.float64), ("bf16", tl.float32), ("fp16", tl.float32)])
def test_scores_of_other_dtypes(name: str, kind: str, compute: Any):
    module, theta, _ = of(name)
    f = module.FORWARD
    options = {"BEGIN": f.begin, "FINISH": f.finish, "p": None, "g": None, "ROWS": 1, "WIDTH": 1024, **EVERY}
    compiled(rows.whole_rows, 4, {**PLAIN, **options, "COMPUTE": compute}, theta=theta, x=f"*{kind}", out=f"*{kind}")


@pytest.mark.parametrize("name", KERNELS)
def test_backward(name: str):
    module, theta, _ = of(name)
    f, own = module.BACKWARD, {"WIDTH": 4096, **PLAIN}
    compiled(rows.whole_rows, 8, {**own, "BEGIN": f.begin, "FINISH": f.finish, "ROWS": 1, **DERIVATIVE}, theta=theta)
    compiled(rows.begin_parts, 8, {**own, "BEGIN": f.begin, "EACH_P": True, "EACH_G": True}, theta=theta)
    compiled(rows.finish_parts, 8, {**own, "MERGE": f.merge, "FINISH": f.finish, "PARTS": 64, **DERIVATIVE}, theta=theta)


@pytest.mark.parametrize(("kind", "compute"), [("fp64", tl.float64), ("bf16", tl.float32), ("fp16", tl.float32)])
def test_backward_of_other_dtypes(kind: str, compute: Any):
    module, theta, _ = of("entmax")  # the one whose accumulators are double
    f = module.BACKWARD
    own = {"WIDTH": 4096, **PLAIN, "COMPUTE": compute}
    of_kind = {"p": f"*{kind}", "g": f"*{kind}", "theta": theta}
    whole = {**own, "BEGIN": f.begin, "FINISH": f.finish, "ROWS": 1, **DERIVATIVE}
    compiled(rows.whole_rows, 8, whole, out=f"*{kind}", **of_kind)
    compiled(rows.begin_parts, 8, {**own, "BEGIN": f.begin, "EACH_P": True, "EACH_G": True}, partial="*fp64", **of_kind)
    finish = {**own, "MERGE": f.merge, "FINISH": f.finish, "PARTS": 64, **DERIVATIVE}
    compiled(rows.finish_parts, 8, finish, partial="*fp64", out=f"*{kind}", **of_kind)


def test_logsumexp():
    f, own = logsumexp.FORWARD, {"p": None, "g": None, "WIDTH": 4096, **PLAIN}
    each = {**EVERY, "EACH_OUT": False}
    compiled(rows.whole_rows, 8, {**own, "BEGIN": f.begin, "FINISH": f.finish, "ROWS": 1, **each}, out="*fp64")
    compiled(rows.begin_parts, 8, {**own, "BEGIN": f.begin, "EACH_P": True, "EACH_G": True})
    compiled(rows.finish_parts, 8, {**own, "MERGE": f.merge, "FINISH": f.finish, "PARTS": 64, **each}, out="*fp64")
    f = logsumexp.BACKWARD
    options = {"BEGIN": f.begin, "FINISH": f.finish, "ROWS": 1, **DERIVATIVE, "EACH_P": False, "EACH_G": False}
    compiled(rows.whole_rows, 8, {**PLAIN, "WIDTH": 4096, **options}, theta=("*fp64",))


@pytest.mark.parametrize("name", ["sparsemax", "entmax15", "entmax"])
def test_thresholds_of_long_rows(name: str):
    module, theta, _ = of(name)
    f, own = module.FORWARD, {**PLAIN, "WIDTH": 8192, "PARTS": 512, "BETA": module.FORWARD.beta}
    compiled(threshold.count_candidates, 8, own, theta=theta)
    compiled(threshold.gather_candidates, 8, own, theta=theta)
    functions = {"BRACKET": f.bracket, "SUMS": f.sums, "STEP": f.step, "PROBABILITY": f.probability, "EDGES": f.edges}
    compiled(threshold.solve_gathered, 8, {**own, "WIDTH": 4096, **functions}, theta=theta)


WITH_LOSS = [name for name, kernel in KERNELS.items() if kernel.loss is not None]


@pytest.mark.parametrize(("name", "target"), [*((name, "labels") for name in WITH_LOSS), ("softmax", "soft"), ("entmax", "soft")])
def test_losses(name: str, target: str):
    module, theta, _ = of(name)
    f = module.LOSS
    absent = {"labels" if target == "soft" else "soft": None, "scales": None}
    kind = {"FENCHEL": name != "softmax", "REGULARISER": f.regulariser, "COMPUTE": tl.float32, "WIDTH": 4096, **absent}
    functions = {"FINISH": f.map.finish, "CONJUGATE": f.conjugate, "MISSING": f.missing}
    compiled(loss.whole_losses, 8, {**kind, **functions, "BEGIN": f.map.begin, "ROWS": 1, "weights": None}, theta=theta)
    parts = {"MERGE": f.map.merge, "PARTS": 32}
    compiled(loss.account_parts, 8, {**kind, **parts}, theta=theta)
    for accounts in ({}, {"accounts": None})[: 2 if target == "labels" else 1]:
        compiled(loss.finish_losses, 8, {**kind, **functions, **parts, "MERGED": 32, **accounts}, theta=theta)


def test_scaling_in_place():
    compiled(rows.scale_parts, 4, {"WIDTH": 4096})
