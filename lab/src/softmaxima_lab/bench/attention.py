"""Attention beside `torch.nn.functional.scaled_dot_product_attention`, and the memory that it takes.

On a GPU also beside FlexAttention, of softmax, and adasplash, of entmax-1.5.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import softmaxima as sm
from softmaxima.attn.linear import CHUNK
from softmaxima.base.numbers import InputError
from softmaxima.engine.contract import find_map
from softmaxima_lab.bench.case import BACKWARD, FORWARD, OURS, Case, Group, Place, Trial, Wanted, by_trial, farthest, sizes_of
from softmaxima_lab.bench.memory import peak_memory

HEADS, SIZE = 8, 64
LENGTHS, MANY_KEYS = ("1024", "4096", "16384"), "1x100000"  # which one query looks at
GPU_SIZES = tuple(f"{n}x{n}x{size}" for size in (64, 128) for n in (4096, 8192, 16384, 32768))
LINEAR, LINEAR_LENGTHS = "linear_attention", (*LENGTHS, "65536")  # measured too, as if it were a map
BESIDE = 16384  # queries up to which torch's softmax is measured in turns with it: beyond, a call takes minutes
MAPS = ("softmax", "elastic_softmax", "sparsemax", "entmax15")
CHECKED = 1024  # queries and keys on which a result is checked, of the first head
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 4e-3, torch.float64: 1e-9}
SPREAD = 4.0  # of the scores of a trained model: sparse maps keep few of them
TORCH, MEMORY, CAUSAL = "torch", "memory", ", causal"

Attend = Callable[..., Tensor]


def read_size(text: str) -> tuple[int, int, int]:
    """(queries, keys, size of a head) of a size that is written as a length, or as these."""
    written = "a length, or queries x keys, or queries x keys x the size of a head, as in 1024, 1x100000 or 4096x4096x128"
    queries, *others = sizes_of(text, (1, 2, 3), written)
    keys, size = (*others, *((queries,) if not others else ()), SIZE)[:2]
    return queries, keys, size


def written(size: tuple[int, int, int]) -> str:
    return "x".join(map(str, size[:2] if size[2] == SIZE else size))


def _cases(wanted: Wanted) -> list[Case]:
    """Maps in both directions, and linear attention forward, at lengths; one query with many keys; and memory, on the CPU."""
    names = wanted.names or (*MAPS, LINEAR)
    maps = [find_map(name, "CASES") for name in names if name != LINEAR]
    if logarithmic := [map.name for map in maps if map.properties.logarithmic]:
        raise InputError(f"CASES: {logarithmic[0]} is left out, for it gives logarithms of probabilities; choose another")
    on_gpu = wanted.device == "cuda"
    usual = ("256",) if wanted.quick else GPU_SIZES if on_gpu else (*LENGTHS, MANY_KEYS)
    dtype, *_ = wanted.dtypes or ("bfloat16" if on_gpu else "float32",)
    sizes = [read_size(text) for text in wanted.sizes or usual]
    linear = [read_size(text) for text in wanted.sizes or (("256",) if wanted.quick else LINEAR_LENGTHS)]
    for size in (*sizes, *linear):
        _refuse_what_does_not_fit(size, dtype, wanted.device)
    found = []
    if not (on_gpu or wanted.quick):
        found += [Case("attention", MEMORY, written(size), "float32") for size in sizes if size[0] > 1]
    for size in sizes:
        for map in maps:
            for causal in ("", CAUSAL) if (map.name == "softmax" or on_gpu) and size[0] > 1 else ("",):
                for direction in (FORWARD, BACKWARD) if size[0] > 1 else (FORWARD,):
                    found.append(Case("attention", map.name + causal, written(size), dtype, direction))
    for size in linear if LINEAR in names else ():
        found += [Case("attention", LINEAR + causal, written(size), dtype, FORWARD) for causal in ("", CAUSAL)]
    return found


def _refuse_what_does_not_fit(size: tuple[int, int, int], dtype: str, device: str) -> None:
    """Of queries, keys, values, output and their gradients."""
    try:
        torch.empty(4, HEADS, size[0] + size[1], size[2], dtype=getattr(torch, dtype), device=device)
    except (RuntimeError, TypeError, OverflowError):
        raise InputError(f"`shapes`: {written(size)} does not fit in memory; take smaller lengths") from None


def problem(size: tuple[int, int, int], direction: str, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
    """(queries, keys, values, a gradient of the output)."""
    rng = torch.Generator().manual_seed(0)

    def normal(length: int) -> Tensor:
        return torch.randn(1, HEADS, length, size[2], generator=rng).to(device, dtype)

    query, key, value, g = normal(size[0]) * SPREAD, normal(size[1]), normal(size[1]), normal(size[0])
    return *(x.requires_grad_(direction == BACKWARD) for x in (query, key, value)), g


def run(attend: Attend, given: tuple[Tensor, ...], causal: bool) -> tuple[Tensor, ...]:
    query, key, value, g = given
    with torch.set_grad_enabled(query.requires_grad):
        output = attend(query, key, value, is_causal=causal)
        return (output, *torch.autograd.grad(output, (query, key, value), g)) if query.requires_grad else (output,)


def ours(map: str) -> Attend:
    return sm.linear_attention if map == LINEAR else functools.partial(sm.attention, map=map)


def _flex(length: int) -> Attend:
    """FlexAttention, compiled anew, for of one function the compiler keeps eight shapes."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch.compiler.reset()
    compiled = torch.compile(flex_attention, dynamic=False)
    mask = functools.cache(lambda: create_block_mask(lambda b, h, i, j: j <= i, None, None, length, length, device="cuda"))
    return lambda q, k, v, is_causal: compiled(q, k, v, block_mask=mask() if is_causal else None)


def _adasplash(length: int) -> Attend:
    from adasplash import adasplash  # pyright: ignore[reportMissingImports]

    return lambda q, k, v, is_causal: adasplash(q, k, v, alpha=1.5, is_causal=is_causal)


# On a GPU: (the map, the package that has it, its attention for so many keys).
OTHERS: dict[str, tuple[str, str, Callable[[int], Attend]]] = {
    "FlexAttention": ("softmax", "torch", _flex),
    "adasplash": ("entmax15", "adasplash", _adasplash),
}


def _trial(case: Case, place: Place) -> Trial:
    size, dtype = read_size(case.size), getattr(torch, case.dtype)
    if case.name == MEMORY:
        taken = {name: peak_memory(_both_passes, name, case.size) for name in (OURS, *place.peers, LINEAR)}
        return Trial({OURS: []}, lambda name: 0.0, facts={OURS: {"memory": taken}})
    map, causal = case.name.removesuffix(CAUSAL), case.name.endswith(CAUSAL)
    ways: dict[str, Callable[[int], Attend]] = {OURS: lambda length: ours(map)}
    if TORCH in place.peers and (map != LINEAR or size[0] <= BESIDE):
        ways[TORCH] = lambda length: scaled_dot_product_attention
    if place.device == "cuda":
        ways |= {name: way for name, (its, package, way) in OTHERS.items() if its == map and package in place.peers}
    short = (min(size[0], CHECKED), min(size[1], CHECKED), size[2])
    given = problem(short, case.direction, dtype, place.device)
    expected, support = _expected("taylor_softmax" if map == LINEAR else map, given, causal)

    def check(name: str) -> float:
        if name == TORCH:  # of softmax whatever our map is
            return 0.0
        found = run(ways[name](short[1]), given, causal)
        return farthest([x[:, :1] for x in found], expected) / TOLERANCE[dtype]

    whole = problem(size, case.direction, dtype, place.device)
    calls = {name: [functools.partial(run, way(size[1]), whole, causal)] for name, way in ways.items()}
    return Trial(calls, check, facts={OURS: {"support": support, "operations": operations(map, causal, size, case.direction)}})


def _expected(map: str, given: tuple[Tensor, ...], causal: bool) -> tuple[list[Tensor], float]:
    """(what the definition gives in float64 for the first head, the share of probabilities that are not 0)."""
    learns = given[0].requires_grad
    query, key, value, g = (x.detach()[:, :1].double().requires_grad_(learns) for x in given)
    scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
    allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril() if causal else None
    p = sm.find_map(map)(scores, where=allowed)
    output = p @ value
    slopes = torch.autograd.grad(output, (query, key, value), g.detach()) if learns else ()
    return [output.detach(), *slopes], float((p.detach() != 0).double().mean())


def operations(map: str, causal: bool, size: tuple[int, int, int], direction: str) -> float:
    """Of the two products of the forward pass, and the five of both; of linear attention those with its features, and those within
    chunks where it is causal."""
    queries, keys, width = size
    if map == LINEAR:
        features = 1 + SIZE + SIZE * (SIZE + 1) // 2
        within = 2.0 * queries * CHUNK * (2 * SIZE + 1) if causal else 0.0
        return HEADS * (2.0 * (queries + keys) * features * (SIZE + 1) + within)
    return (2 if direction == FORWARD else 7) * 2.0 * HEADS * queries * keys * width * (0.5 if causal else 1.0)


def _both_passes(name: str, size: str) -> Callable[[], Any]:
    """A forward and a backward pass of softmax, which have been made on a little."""
    given = problem(read_size(size), BACKWARD, torch.float32, "cpu")
    attend = scaled_dot_product_attention if name == TORCH else ours("softmax" if name == OURS else name)
    run(attend, problem((16, 16, SIZE), BACKWARD, torch.float32, "cpu"), causal=False)
    return lambda: run(attend, given, causal=False)


PACKAGES = {"cpu": (TORCH,), "cuda": (TORCH, "adasplash")}
ATTENTION = Group(_cases, by_trial(_trial), PACKAGES, {"cpu": 2.0, "cuda": 2.0})
