"""Losses of a large linear layer beside torch's cross-entropy: times of a forward and a backward pass, exactness, and memory.

A head is measured with its first weights, where many probabilities are not 0, and after some steps of training by its own loss, on
labels with Zipf's frequencies and hidden states that tell them with some noise.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import softmaxima as sm
from softmaxima.core.writing import finite, write_text
from softmaxima_lab.bench.clocks import Quotient, clock_of
from softmaxima_lab.bench.machine import commit, machine, versions
from softmaxima_lab.bench.memory import peak_memory
from softmaxima_lab.bench.peers import missing
from softmaxima_lab.bench.workers import describe

ROWS, FEATURES = 2048, 512
CLASSES = (32_000, 128_256)
QUICK_CLASSES = (4_000,)
LOSSES: dict[str, Any] = {
    "cross_entropy": "cross_entropy",
    "sparsemax": "sparsemax",
    "entmax15": "entmax15",
    "entmax-1.3": ("entmax", 1.3),
}
MAPS = {
    "cross_entropy": ("softmax", {}),
    "sparsemax": ("sparsemax", {}),
    "entmax15": ("entmax15", {}),
    "entmax-1.3": ("entmax", {"alpha": 1.3}),
}
STATES = ("first", "trained")  # of weights
TORCH, PARTS, COMPILED, LIGER = "torch", "torch, in parts", "torch.compile", "Liger"
PASSES = 5  # turns of each
STEPS = 30  # of training
NOISE = 5.0  # of hidden states, whose signal has the size 1
CHECKED = 16  # rows on which a result is checked, over all classes
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float64: 1e-10}
PRODUCT = (2048, 512, 1024)  # that the peak is of: it stays in cache


@dataclass(frozen=True)
class Case:
    """A loss of ours, on weights of a state."""

    loss: str
    state: str
    classes: int

    def __str__(self) -> str:
        return f"{self.classes} classes: {self.loss}, {self.state} weights"


@dataclass(frozen=True)
class Result:
    """Seconds of a forward and a backward pass."""

    case: Case
    seconds: float | None = None
    ratios: dict[str, Quotient] = field(default_factory=dict)  # time of each peer / ours, of the same turns
    support: float | None = None  # how many probabilities of a row are not 0, on average
    deviation: float | None = None  # from float64, of the largest value, in units of the tolerance
    problem: str = ""


@dataclass(frozen=True)
class Peers:
    """Seconds of torch's cross-entropy on the first weights, each way, or why there are none."""

    classes: int
    seconds: dict[str, float | str]
    flops: float  # a second, of the fastest of torch's products that stays in cache


@dataclass(frozen=True)
class Benchmark:
    rows: int
    features: int
    results: list[Result]
    peers: list[Peers]
    memory: dict[str, float]  # bytes beyond those of the tensors and their gradients, by whose
    date: str
    commit: str | None
    machine: dict[str, Any]
    versions: dict[str, str]
    dtype: str

    def operations(self, case: Case) -> float:
        """Of the products that cannot be left out: all three, or the first where the loss is sparse."""
        return (6.0 if case.loss == "cross_entropy" else 2.0) * self.rows * self.features * case.classes


@dataclass
class Problem:
    """Hidden states, labels, and weights of each state and loss."""

    hidden: Tensor
    target: Tensor
    weights: dict[tuple[str, str], Tensor]  # by the loss and the state


def make_problem(rows: int, features: int, classes: int, losses: Sequence[str], dtype: torch.dtype, device: str) -> Problem:
    """Labels have Zipf's frequencies; a hidden state is the vector of its label, and noise."""
    rng = torch.Generator().manual_seed(0)
    vectors = torch.randn(classes, features, generator=rng) / math.sqrt(features)
    frequencies = 1 / torch.arange(1, classes + 1, dtype=torch.float64)

    def batch() -> tuple[Tensor, Tensor]:
        target = torch.multinomial(frequencies, rows, replacement=True, generator=rng)
        hidden = vectors[target] + NOISE * torch.randn(rows, features, generator=rng) / math.sqrt(features)
        return functional.layer_norm(hidden, (features,)).to(device), target.to(device)

    first = (torch.rand(classes, features, generator=rng) * 2 - 1).div_(math.sqrt(features)).to(device)
    trained = {loss: first.clone().requires_grad_() for loss in losses}
    optimisers = {loss: torch.optim.Adam([weight], lr=2e-2, fused=True) for loss, weight in trained.items()}
    for _ in range(STEPS):
        hidden, target = batch()
        for loss, weight in trained.items():
            weight.grad = None
            sm.linear_loss(hidden, weight, target, loss=LOSSES[loss]).backward()
            optimisers[loss].step()
    del optimisers
    hidden, target = batch()
    weights = {
        (loss, state): (first if state == "first" else trained[loss].detach()).to(dtype) for loss in losses for state in STATES
    }
    return Problem(hidden.to(dtype), target, weights)


def bench(
    rows: int,
    features: int,
    classes: Sequence[int],
    losses: Sequence[str],
    dtype: torch.dtype,
    device: str,
    passes: int,
    starting: Callable[[str], None],
    remembers: bool,
) -> Benchmark:
    """Measure the losses, peers in turns with them, and the memory of each on the most classes."""
    memory = {}
    for name in (*losses, TORCH) if remembers else ():  # first, so that no times are lost where there is too little
        starting(f"memory of {name}")
        gradients = dtype.itemsize * features * (rows + max(classes))
        memory[name] = peak_memory(_both_passes, name, rows, features, max(classes), dtype) - gradients
    results, peers = [], []
    for count in classes:
        starting(f"training heads of {count} classes")
        problem = make_problem(rows, features, count, losses, dtype, device)
        starting(f"measuring heads of {count} classes")
        found, beside = _measure(problem, count, losses, device, passes)
        results += found
        peers.append(beside)
    facts = (date.today().isoformat(), commit(), machine(device), versions(device), str(dtype).removeprefix("torch."))
    return Benchmark(rows, features, results, peers, memory, *facts)


def _call(loss: Callable[[Tensor, Tensor], Tensor], hidden: Tensor, weight: Tensor) -> Callable[[], tuple[Tensor, ...]]:
    """A forward and a backward pass."""
    inputs = (hidden.detach().requires_grad_(), weight.detach().requires_grad_())

    def call() -> tuple[Tensor, ...]:
        value = loss(*inputs)
        return value, *torch.autograd.grad(value, inputs)

    return call


def peers_of(target: Tensor, device: str) -> Iterator[tuple[str, Callable[[Tensor, Tensor], Tensor]]]:
    """torch's cross-entropy of a layer, each way that there is."""

    def plain(hidden: Tensor, weight: Tensor) -> Tensor:
        return functional.cross_entropy(hidden @ weight.T, target)

    yield TORCH, plain
    if hasattr(functional, "linear_cross_entropy"):
        options = torch.nn.LinearCrossEntropyOptions()
        yield PARTS, lambda hidden, weight: functional.linear_cross_entropy(hidden, weight, target, options=options)
    yield COMPILED, torch.compile(plain)
    if device == "cuda" and not missing("liger_kernel"):
        from liger_kernel.ops.fused_linear_cross_entropy import (  # pyright: ignore[reportMissingImports]
            LigerFusedLinearCrossEntropyFunction,
        )

        yield LIGER, lambda hidden, weight: LigerFusedLinearCrossEntropyFunction.apply(hidden, weight, target)[0]


def _ours(loss: str, target: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda hidden, weight: sm.linear_loss(hidden, weight, target, loss=LOSSES[loss])


def _measure(problem: Problem, classes: int, losses: Sequence[str], device: str, passes: int) -> tuple[list[Result], Peers]:
    cases = [Case(loss, state, classes) for loss in losses for state in STATES]
    checks = {case: _check(problem, case) for case in cases}
    calls: dict[Any, Callable[[], Any]] = {
        case: _call(_ours(case.loss, problem.target), problem.hidden, problem.weights[case.loss, case.state])
        for case in cases
        if checks[case][1] <= 1
    }
    first = next(iter(problem.weights.values()))
    calls |= {name: _call(loss, problem.hidden, first) for name, loss in peers_of(problem.target, device)}
    failed: dict[Any, str] = {}
    turns: dict[Any, dict[int, list[float]]] = {name: {} for name in calls}
    clock = clock_of(device)
    for number in range(-1, passes):  # of the first, that compiles and loads, the times do not count
        for name, call in calls.items():
            if name in failed:
                continue
            try:
                seconds = clock.burst(call, 1)
            except Exception as error:  # which may be any, and the others can still be measured
                failed[name] = describe(error)
                continue
            if number >= 0:
                turns[name][number] = seconds
    times = {name: median(itertools.chain.from_iterable(each.values())) for name, each in turns.items() if name not in failed}
    names = [name for name in calls if isinstance(name, str)]
    results = []
    for case in cases:
        support, deviation = checks[case]
        problem_of = failed.get(case, "" if deviation <= 1 else f"{deviation:.3g} times the tolerance away from float64")
        ratios = {name: quotient for name in names if (quotient := Quotient.of(turns[name], turns.get(case, {}))) is not None}
        results.append(Result(case, times.get(case), ratios if case in times else {}, support, deviation, problem_of))
    beside = {name: times.get(name, failed.get(name, "")) for name in names}
    return results, Peers(classes, beside, _fastest_product(problem.hidden.dtype, device))


def _fastest_product(dtype: torch.dtype, device: str) -> float:
    """Operations a second of the fastest of torch's products of matrices that stay in cache."""
    a, b = torch.randn(PRODUCT[0], PRODUCT[1]).to(device, dtype), torch.randn(PRODUCT[2], PRODUCT[1]).to(device, dtype)
    ways: list[Callable[[], Any]] = [lambda: a @ b.T]
    if device == "cpu" and dtype == torch.float32 and torch.backends.mkldnn.is_available():
        packed = a.to_mkldnn(), b.to_mkldnn()
        ways.append(lambda: functional.linear(*packed))
    clock = clock_of(device)
    least = min(median(clock.burst(way, 20)[5:]) for way in ways)
    return 2.0 * math.prod(PRODUCT) / least


def _check(problem: Problem, case: Case) -> tuple[float, float]:
    """(how many probabilities of a row are not 0, how far it is from the definition in float64) on a few rows."""
    hidden, target, weight = problem.hidden[:CHECKED], problem.target[:CHECKED], problem.weights[case.loss, case.state]
    found = _call(_ours(case.loss, target), hidden, weight)()
    map, params = MAPS[case.loss]
    wide = [x.detach().double().requires_grad_() for x in (hidden, weight)]
    scores = wide[0] @ wide[1].T
    loss = sm.cross_entropy(scores, target) if map == "softmax" else sm.fenchel_young_loss(scores, target, map=map, **params)
    expected = (loss, *torch.autograd.grad(loss, wide))
    pairs = [(a.detach().double(), b.detach()) for a, b in zip(found, expected, strict=True)]
    far = max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)
    p = sm.find_map(map)(scores.detach(), **params)
    return float((p > 0).sum(-1).double().mean()), far / TOLERANCE[found[0].dtype]


def _both_passes(name: str, rows: int, features: int, classes: int, dtype: torch.dtype) -> Callable[[], Any]:
    """A forward and a backward pass on the first weights, which have been made on a little."""

    def call(rows: int, classes: int) -> Callable[[], Any]:
        hidden, weight = (
            torch.randn(rows, features).to(dtype),
            torch.rand(classes, features).sub_(0.5).div_(math.sqrt(features)).to(dtype),
        )
        target = torch.randint(classes, (rows,))
        loss = dict(peers_of(target, "cpu"))[TORCH] if name == TORCH else _ours(name, target)
        return _call(loss, hidden, weight)

    call(600, 600)()
    return call(rows, classes)


def write(benchmark: Benchmark, path: Path) -> None:
    """Write the JSON. The file appears complete or not at all."""
    write_text(path, json.dumps(finite(asdict(benchmark)), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read(path: Path) -> Benchmark:
    """The benchmark in a file."""
    record = json.loads(path.read_text(encoding="utf-8"))
    results = [_result(entry) for entry in record["results"]]
    return Benchmark(**{**record, "results": results, "peers": [Peers(**entry) for entry in record["peers"]]})


def _result(entry: Mapping[str, Any]) -> Result:
    ratios = {name: Quotient(**quotient) for name, quotient in entry["ratios"].items()}
    return Result(**{**entry, "case": Case(**entry["case"]), "ratios": ratios})
