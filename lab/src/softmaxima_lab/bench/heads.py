"""Losses of a large linear layer beside torch's cross-entropy: a forward and a backward pass, and the memory that they take.

A head is measured with its first weights, where many probabilities are not 0, and after some steps of training by its own loss, on
labels with Zipf's frequencies and hidden states that tell them with some noise. All heads of a size take turns with all peers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import softmaxima as sm
from softmaxima.base.numbers import check_choice
from softmaxima_lab.bench.case import Case, Group, Place, Trial, Wanted, by_trial, farthest, sizes_of
from softmaxima_lab.bench.clock import clock_of
from softmaxima_lab.bench.memory import peak_memory

SIZES, QUICK_SIZES = ("2048x512x32000", "2048x512x128256"), ("256x64x4000",)
LOSSES: dict[str, tuple[str, dict[str, Any]]] = {  # the map and its parameters
    "cross_entropy": ("softmax", {}),
    "sparsemax": ("sparsemax", {}),
    "entmax15": ("entmax15", {}),
    "entmax-1.3": ("entmax", {"alpha": 1.3}),
}
FIRST, TRAINED, MEMORY = ", first weights", ", trained", "memory of "
TORCH, PARTS, COMPILED, LIGER = "torch", "torch, in parts", "torch.compile", "Liger"
STEPS = 30  # of training
NOISE = 5.0  # of hidden states, whose signal has the size 1
CHECKED = 16  # rows on which a result is checked, over all classes
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float64: 1e-10}
PRODUCT = (2048, 512, 1024)  # that the peak is of: it stays in cache

Loss = Callable[[Tensor, Tensor], Tensor]


def read_size(text: str) -> tuple[int, ...]:
    """(rows, features, classes)"""
    return sizes_of(text, 3, "rows x features x classes, as in 2048x512x32000")


def _cases(wanted: Wanted) -> list[Case]:
    """All losses of a size together; on the CPU the memory of each too, of the most classes."""
    names = tuple(check_choice("bench", "CASES", name, tuple(LOSSES)) for name in wanted.names) or tuple(LOSSES)
    sizes = wanted.sizes or (QUICK_SIZES if wanted.quick else SIZES)
    largest = max(sizes, key=lambda size: read_size(size)[2])
    dtypes = wanted.dtypes or ("bfloat16" if wanted.device == "cuda" else "float32",)
    remembers = wanted.device == "cpu" and not wanted.quick  # first, so that no times are lost where there is too little
    memory = [Case("heads", MEMORY + name, largest, dtypes[0]) for name in (*names, TORCH) if remembers]
    return memory + [Case("heads", "; ".join(names), size, dtype) for size in sizes for dtype in dtypes]


def _call(loss: Loss, hidden: Tensor, weight: Tensor) -> Callable[[], tuple[Tensor, ...]]:
    """A forward and a backward pass."""
    inputs = (hidden.detach().requires_grad_(), weight.detach().requires_grad_())

    def call() -> tuple[Tensor, ...]:
        value = loss(*inputs)
        return value, *torch.autograd.grad(value, inputs)

    return call


def ours(loss: str, target: Tensor) -> Loss:
    map, params = LOSSES[loss]
    given = "cross_entropy" if map == "softmax" else (map, *params.values()) if params else map
    return lambda hidden, weight: sm.linear_loss(hidden, weight, target, loss=given)  # type: ignore[arg-type]


def _peers(target: Tensor, place: Place) -> dict[str, Loss]:
    """torch's cross-entropy of a layer, each way that there is."""

    def plain(hidden: Tensor, weight: Tensor) -> Tensor:
        return functional.cross_entropy(hidden @ weight.T, target)

    found: dict[str, Loss] = {}
    if TORCH in place.peers:
        found[TORCH] = plain
        if hasattr(functional, "linear_cross_entropy"):
            options = torch.nn.LinearCrossEntropyOptions()
            found[PARTS] = lambda hidden, weight: functional.linear_cross_entropy(hidden, weight, target, options=options)
    if COMPILED in place.peers:
        found[COMPILED] = torch.compile(plain)
    if "liger" in place.peers:
        from liger_kernel.ops.fused_linear_cross_entropy import (  # pyright: ignore[reportMissingImports]
            LigerFusedLinearCrossEntropyFunction,
        )

        found[LIGER] = lambda hidden, weight: LigerFusedLinearCrossEntropyFunction.apply(hidden, weight, target)[0]
    return found


def _trial(case: Case, place: Place) -> Trial:
    rows, features, classes = read_size(case.size)
    dtype = getattr(torch, case.dtype)
    if case.name.startswith(MEMORY):
        name = case.name.removeprefix(MEMORY)
        taken = peak_memory(_both_passes, name, rows, features, classes, dtype) - dtype.itemsize * features * (rows + classes)
        return Trial({case.name: []}, lambda name: 0.0, facts={case.name: {"memory": taken}})
    names = case.name.split("; ")
    hidden, target, weights = problem(rows, features, classes, names, dtype, place.device)
    peak, facts, calls = fastest_product(dtype, place.device), {}, {}
    expected: dict[str, list[Tensor]] = {}
    for name, weight in weights.items():
        loss = name.partition(",")[0]
        calls[name] = [_call(ours(loss, target), hidden, weight)]
        expected[name], support = _expected(loss, hidden[:CHECKED], target[:CHECKED], weight)
        products = 6.0 if loss == "cross_entropy" else 2.0  # that cannot be left out: all three, or of a sparse loss the first
        facts[name] = {"support": support, "operations": products * rows * features * classes, "peak": peak}
    first = next(iter(weights.values()))
    calls |= {name: [_call(loss, hidden, first)] for name, loss in _peers(target, place).items()}

    def check(name: str) -> float:
        if name not in weights:  # of another function than ours
            return 0.0
        found = _call(ours(name.partition(",")[0], target[:CHECKED]), hidden[:CHECKED], weights[name])()
        return farthest(found, expected[name]) / TOLERANCE[dtype]

    return Trial(calls, check, ours={name: Case("heads", name, case.size, case.dtype) for name in weights}, facts=facts)


def problem(
    rows: int, features: int, classes: int, losses: list[str], dtype: torch.dtype, device: str
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """(hidden states, labels, weights of each loss): a hidden state is the vector of its label, and noise."""
    rng = torch.Generator().manual_seed(0)
    vectors = torch.randn(classes, features, generator=rng) / math.sqrt(features)
    frequencies = 1 / torch.arange(1, classes + 1, dtype=torch.float64)

    def batch() -> tuple[Tensor, Tensor]:
        target = torch.multinomial(frequencies, rows, replacement=True, generator=rng)
        hidden = vectors[target] + NOISE * torch.randn(rows, features, generator=rng) / math.sqrt(features)
        return functional.layer_norm(hidden, (features,)).to(device), target.to(device)

    first = (torch.rand(classes, features, generator=rng) * 2 - 1).div_(math.sqrt(features)).to(device)
    trained = {loss: first.clone().requires_grad_() for loss in losses}
    optimisers = [torch.optim.Adam([weight], lr=2e-2, fused=True) for weight in trained.values()]
    for _ in range(STEPS):
        hidden, target = batch()
        for (loss, weight), optimiser in zip(trained.items(), optimisers, strict=True):
            weight.grad = None
            ours(loss, target)(hidden, weight).backward()
            optimiser.step()
    hidden, target = batch()
    both = {loss + state: first if state == FIRST else trained[loss] for loss in losses for state in (FIRST, TRAINED)}
    return hidden.to(dtype), target, {name: weight.detach().to(dtype) for name, weight in both.items()}


def _expected(loss: str, hidden: Tensor, target: Tensor, weight: Tensor) -> tuple[list[Tensor], float]:
    """(the loss and its gradients in float64, how many probabilities of a row are not 0)."""
    map, params = LOSSES[loss]
    wide = [x.detach().double().requires_grad_() for x in (hidden, weight)]
    scores = wide[0] @ wide[1].T
    value = sm.cross_entropy(scores, target) if map == "softmax" else sm.fenchel_young_loss(scores, target, map=map, **params)
    p = sm.find_map(map)(scores.detach(), **params)
    return [value.detach(), *torch.autograd.grad(value, wide)], float((p > 0).sum(-1).double().mean())


def fastest_product(dtype: torch.dtype, device: str) -> float:
    """Operations a second of the fastest of torch's products of matrices that stay in cache."""
    a, b = torch.randn(PRODUCT[0], PRODUCT[1]).to(device, dtype), torch.randn(PRODUCT[2], PRODUCT[1]).to(device, dtype)
    ways: list[Callable[[], Any]] = [lambda: a @ b.T]
    if device == "cpu" and dtype == torch.float32 and torch.backends.mkldnn.is_available():
        packed = a.to_mkldnn(), b.to_mkldnn()
        ways.append(lambda: functional.linear(*packed))
    clock = clock_of(device)
    with torch.no_grad():
        return 2.0 * math.prod(PRODUCT) / min(median(clock.burst(way, 20)[5:]) for way in ways)


def _both_passes(name: str, rows: int, features: int, classes: int, dtype: torch.dtype) -> Callable[[], Any]:
    """A forward and a backward pass on the first weights, which have been made on a little."""

    def call(rows: int, classes: int) -> Callable[[], Any]:
        hidden = torch.randn(rows, features).to(dtype)
        weight = torch.rand(classes, features).sub_(0.5).div_(math.sqrt(features)).to(dtype)
        target = torch.randint(classes, (rows,))
        return _call(_peers(target, Place(peers=(TORCH,)))[TORCH] if name == TORCH else ours(name, target), hidden, weight)

    call(600, 600)()
    return call(rows, classes)


PACKAGES = {"cpu": (TORCH, COMPILED), "cuda": (TORCH, COMPILED, "liger")}
HEADS = Group(_cases, by_trial(_trial), PACKAGES, passes=5, quick=2)
