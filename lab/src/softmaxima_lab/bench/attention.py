"""Attention beside `torch.nn.functional.scaled_dot_product_attention`: times, exactness, and the memory that it takes.

On a GPU also beside FlexAttention, of softmax, and adasplash, of entmax-1.5.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import softmaxima as sm
from softmaxima.attn.linear import CHUNK
from softmaxima.core.numbers import InputError
from softmaxima.core.writing import finite, write_text
from softmaxima_lab.bench.clocks import clock_of, measure
from softmaxima_lab.bench.machine import commit, machine, versions
from softmaxima_lab.bench.memory import peak_memory
from softmaxima_lab.bench.peers import missing
from softmaxima_lab.bench.subjects import DIRECTIONS, Direction
from softmaxima_lab.bench.workers import describe

HEADS, SIZE = 8, 64
LENGTHS = (1024, 4096, 16384)
QUICK_LENGTHS = (256,)
GPU_LENGTHS, GPU_SIZES = (4096, 8192, 16384, 32768), (64, 128)
MANY_KEYS = 100_000  # that one query looks at
LINEAR = "linear_attention"  # measured too, as if it were a map
LINEAR_LENGTHS = (1024, 4096, 16384, 65536)
BESIDE = 16384  # queries up to which torch's softmax is measured in turns with it: beyond, a call takes minutes
MAPS = ("softmax", "elastic_softmax", "sparsemax", "entmax15")
CHECKED = 1024  # queries and keys on which a result is checked, of the first head
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 4e-3, torch.float64: 1e-9}
SPREAD = 4.0  # of the scores of a trained model: sparse maps keep few of them
OURS, TORCH = "softmaxima", "torch"


@dataclass(frozen=True)
class Case:
    """Matrices of `heads` heads, in one direction."""

    map: str  # or LINEAR
    queries: int
    keys: int
    causal: bool
    direction: Direction
    size: int = SIZE

    @property
    def shape(self) -> str:
        return f"{self.queries}x{self.keys}" + (f", heads of {self.size}" if self.size != SIZE else "")

    @property
    def title(self) -> str:
        return f"{self.map}{', causal' if self.causal else ''}{'' if self.direction == 'forward' else ', + backward'}"

    def __str__(self) -> str:
        return f"{self.shape}: {self.title}"


@dataclass(frozen=True)
class Result:
    """Seconds of ours, of torch's softmax and of others of the same map, in turns; and what share of the probabilities is not 0."""

    case: Case
    seconds: float | None = None
    torch_seconds: float | None = None
    ratio: tuple[float, float, float] | None = None  # torch's / ours: the median over turns, and an interval that holds half
    support: float | None = None
    deviation: float | None = None  # from float64, of the largest value, in units of the tolerance
    problem: str = ""
    others: dict[str, float | str] = field(default_factory=dict)  # seconds, or why there are none

    @property
    def operations(self) -> float:
        """Of the two products of the forward pass, and the five of both; of linear attention those with its features, and those
        within chunks where it is causal."""
        case = self.case
        if case.map == LINEAR:
            features = 1 + SIZE + SIZE * (SIZE + 1) // 2
            within = 2.0 * case.queries * CHUNK * (2 * SIZE + 1) if case.causal else 0.0
            return HEADS * (2.0 * (case.queries + case.keys) * features * (SIZE + 1) + within)
        products = 2 if case.direction == "forward" else 7
        return products * 2.0 * HEADS * case.queries * case.keys * case.size * (0.5 if case.causal else 1.0)


@dataclass(frozen=True)
class Benchmark:
    results: list[Result]
    memory: dict[str, float]  # bytes beyond what tensors and their gradients take, by whose and how many queries and keys
    date: str
    commit: str | None
    machine: dict[str, Any]
    versions: dict[str, str]
    dtype: str


def cases(
    lengths: Sequence[int],
    maps: Sequence[str],
    many_keys: int | None,
    linear: Sequence[int] = (),
    sizes: Sequence[int] = (SIZE,),
    device: str = "cpu",
) -> list[Case]:
    """What is measured: maps at lengths, one query with many keys, and linear attention at lengths of its own."""
    found = [
        Case(map, length, length, causal, direction, size)
        for size in sizes
        for length in lengths
        for map in maps
        for causal in ((False, True) if map == "softmax" or device == "cuda" else (False,))
        for direction in DIRECTIONS
    ]
    found += [Case(LINEAR, length, length, causal, "forward") for length in linear for causal in (False, True)]
    return found + [Case(map, 1, many_keys, False, "forward") for map in maps if many_keys]


def refuse_what_does_not_fit(chosen: Sequence[Case], dtype: torch.dtype, device: str) -> None:
    """Raise InputError for a case whose queries, keys, values, output and their gradients no memory holds."""
    for case in chosen:
        try:
            torch.empty(4, HEADS, case.queries + case.keys, case.size, dtype=dtype, device=device)
        except (RuntimeError, TypeError, OverflowError):
            raise InputError(f"`lengths`: {case.shape} does not fit in memory; take smaller lengths") from None


def bench(
    chosen: Sequence[Case], dtype: torch.dtype, device: str, seconds: float, starting: Callable[[str], None], memory: Sequence[int]
) -> Benchmark:
    """Measure the cases, and the peak memory at lengths."""
    found: dict[str, float] = {}
    for length in memory:  # first, so that no times are lost where there is too little
        for name in (OURS, TORCH, LINEAR):
            starting(f"memory of {name} at {length}")
            found[f"{name} {length}"] = peak_memory(_both_passes, name, length)
    results = []
    for case in chosen:
        starting(str(case))
        results.append(_measure(case, dtype, device, seconds))
    return Benchmark(
        results, found, date.today().isoformat(), commit(), machine(device), versions(device), str(dtype).removeprefix("torch.")
    )


def problem(case: Case, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(queries, keys, values, a gradient of the output)."""
    rng = torch.Generator().manual_seed(0)

    def normal(length: int) -> Tensor:
        return torch.randn(1, HEADS, length, case.size, generator=rng).to(device, dtype)

    query, key, value, g = normal(case.queries) * SPREAD, normal(case.keys), normal(case.keys), normal(case.queries)
    learns = case.direction != "forward"
    return query.requires_grad_(learns), key.requires_grad_(learns), value.requires_grad_(learns), g


def _run(attend: Callable[..., Tensor], given: tuple[Tensor, ...], case: Case) -> tuple[Tensor, ...]:
    query, key, value, g = given
    with torch.set_grad_enabled(case.direction != "forward"):
        output = attend(query, key, value, is_causal=case.causal)
        if case.direction == "forward":
            return (output,)
        return output, *torch.autograd.grad(output, (query, key, value), g)


def _attend(map: str) -> Callable[..., Tensor]:
    return sm.linear_attention if map == LINEAR else functools.partial(sm.attention, map=map)


def _flex(length: int) -> Callable[..., Tensor]:
    """FlexAttention, compiled anew, for of one function the compiler keeps eight shapes."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch.compiler.reset()
    compiled = torch.compile(flex_attention, dynamic=False)
    mask = functools.cache(lambda: create_block_mask(lambda b, h, i, j: j <= i, None, None, length, length, device="cuda"))
    return lambda q, k, v, is_causal: compiled(q, k, v, block_mask=mask() if is_causal else None)


def _adasplash(length: int) -> Callable[..., Tensor]:
    from adasplash import adasplash  # pyright: ignore[reportMissingImports]

    return lambda q, k, v, is_causal: adasplash(q, k, v, alpha=1.5, is_causal=is_causal)


# On a GPU: (the map, the package that has it, its attention for so many queries and keys).
OTHERS: dict[str, tuple[str, str, Callable[[int], Callable[..., Tensor]]]] = {
    "FlexAttention": ("softmax", "torch", _flex),
    "adasplash": ("entmax15", "adasplash", _adasplash),
}


def _others(case: Case, dtype: torch.dtype, device: str) -> tuple[dict[str, Callable[..., Tensor]], dict[str, float | str]]:
    """(others of the case's map that agree with its definition, why some do not take part)."""
    found: dict[str, Callable[..., Tensor]] = {}
    reasons: dict[str, float | str] = {}
    for name, (map, package, of_length) in OTHERS.items() if device == "cuda" else ():
        if map != case.map or missing(package):
            continue
        try:
            deviation = _check(case, dtype, device, of_length)[1]
            if deviation <= 1:
                found[name] = of_length(case.keys)
            else:
                reasons[name] = f"{deviation:.3g} times the tolerance away"
        except Exception as error:  # which may be any, and ours can still be measured
            reasons[name] = describe(error)
    return found, reasons


def _measure(case: Case, dtype: torch.dtype, device: str, seconds: float) -> Result:
    support, deviation = _check(case, dtype, device, lambda length: _attend(case.map))
    if not deviation <= 1:
        return Result(case, deviation=deviation, problem=f"{deviation:.3g} times the tolerance away from float64")
    given = problem(case, dtype, device)
    calls = {OURS: [lambda: _run(_attend(case.map), given, case)]}
    if case.map != LINEAR or case.queries <= BESIDE:
        calls[TORCH] = [lambda: _run(scaled_dot_product_attention, given, case)]
    others, reasons = _others(case, dtype, device)
    calls |= {name: [functools.partial(_run, attend, given, case)] for name, attend in others.items()}
    found = measure(clock_of(device), calls, seconds)
    reasons |= {name: found.times[name].seconds if name in found.times else found.failed[name] for name in others}
    quotient = found.quotients.get(TORCH)
    times = {name: found.times[name].seconds if name in found.times else None for name in (OURS, TORCH)}
    return Result(
        case,
        times[OURS],
        times[TORCH],
        None if quotient is None else (quotient.median, quotient.low, quotient.high),
        support,
        deviation,
        "; ".join(f"{name}: {why}" for name, why in found.failed.items() if name not in others),
        reasons,
    )


def _check(case: Case, dtype: torch.dtype, device: str, of_length: Callable[[int], Callable[..., Tensor]]) -> tuple[float, float]:
    """(the share of probabilities that are not 0, how far it is from the definition in float64) on a problem cut short."""
    short = replace(case, queries=min(case.queries, CHECKED), keys=min(case.keys, CHECKED))
    given = problem(short, dtype, device)
    found = _run(of_length(short.keys), given, short)
    query, key, value, g = (x.detach()[:, :1].double().requires_grad_() for x in given)
    scores = query @ key.transpose(-2, -1) * case.size**-0.5
    allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=device).tril() if case.causal else None
    p = sm.find_map("taylor_softmax" if case.map == LINEAR else case.map)(scores, where=allowed)
    output = p @ value
    expected = [output]
    if case.direction != "forward":
        expected += torch.autograd.grad(output, (query, key, value), g.detach())
    pairs = [(a.detach()[:, :1].double(), b.detach()) for a, b in zip(found, expected, strict=True)]
    far = max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)
    return float((p.detach() != 0).double().mean()), far / TOLERANCE[dtype]


def _both_passes(name: str, length: int) -> Callable[[], Any]:
    """A forward and a backward pass of softmax, which have been made on a little."""
    case = Case("softmax", length, length, False, "forward+backward")
    given = problem(case, torch.float32, "cpu")
    attend = scaled_dot_product_attention if name == TORCH else _attend("softmax" if name == OURS else name)
    small = replace(case, queries=16, keys=16)
    _run(attend, problem(small, torch.float32, "cpu"), small)
    return lambda: _run(attend, given, case)


def write(benchmark: Benchmark, path: Path) -> None:
    """Write the JSON. The file appears complete or not at all."""
    write_text(path, json.dumps(finite(asdict(benchmark)), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read(path: Path) -> Benchmark:
    """The benchmark in a file."""
    record = json.loads(path.read_text(encoding="utf-8"))
    results = [Result(**{**entry, "case": Case(**entry["case"])}) for entry in record["results"]]
    return Benchmark(**{**record, "results": results})
