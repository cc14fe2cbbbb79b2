"""The native kernels: every layout, mask and parameter as torch has them, the C interface on random calls, and loading it."""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch
from torch import Tensor

import softmaxima as sm
from conftest import DTYPES, TOLERANCE, Case, LossCase, cases, normal, some
from softmaxima.kernels import devices, interface, kernel, layout, native, structures
from softmaxima.kernels.kernel import Functions, Kernel
from softmaxima.kernels.layout import address_of
from softmaxima.kernels.structures import BACKWARD, FORWARD, GAPS, INTERFACE, KEPT, LOSS, NO_MARGIN, STATE, WEIGHTED
from softmaxima.lse._weighted import weighted_sum
from softmaxima.maps import REGISTRY

INF, NAN = math.inf, math.nan
HEADER = Path(__file__).parents[2] / "csrc" / "kernels.h"
needs_library = pytest.mark.skipif(not native.AVAILABLE, reason="there is no native library")


# Beside torch ---------------------------------------------------------------------------------------------------------------


class _Unwritten:
    """torch, with new memory that is NaN until it is written."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def empty(self, *args: Any, **options: Any) -> Tensor:
        return torch.empty(*args, **options).fill_(NAN)

    def empty_like(self, *args: Any, **options: Any) -> Tensor:
        return torch.empty_like(*args, **options).fill_(NAN)


@pytest.fixture
def unwritten_is_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (native, layout):
        monkeypatch.setattr(module, "torch", _Unwritten())


def by_torch(function: Callable[..., Any], *args: Any) -> Any:
    """What the function gives without the native library."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "AVAILABLE", False)
        patch.setattr(devices, "library", lambda device_type: None)
        return function(*args)


def with_gradient(function: Callable[[Tensor], Tensor], x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """(function(x), ∂⟨g, function(x)⟩/∂x), of which −∞ is no part."""
    x = x.detach().requires_grad_()
    out = function(x)
    (gradient,) = torch.autograd.grad(out.masked_fill(out == -INF, 0.0), x, g)
    return out.detach(), gradient


def assert_same(actual: tuple[Tensor, ...], expected: tuple[Tensor, ...], dtype: torch.dtype) -> None:
    # The gradient is by probabilities of TOLERANCE[dtype], times numbers of up to 4; log-probabilities are as far relatively.
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, atol=8 * TOLERANCE[dtype], rtol=8 * torch.finfo(dtype).eps)


def layouts(x: Tensor) -> Iterator[Tensor]:
    """The same numbers, as they can lie in memory."""
    for axes in itertools.permutations(range(x.ndim)):
        yield x.permute(axes).contiguous().permute(tuple(axes.index(axis) for axis in range(x.ndim)))
    for axis, size in enumerate(x.shape):
        wider = torch.cat((x, torch.full_like(x, NAN)), axis)
        yield wider.narrow(axis, 0, size)
        apart = torch.stack((x, torch.full_like(x, NAN)), axis + 1).flatten(axis, axis + 1)
        yield apart[tuple(slice(None, None, 2 if axis == a else 1) for a in range(x.ndim))]
    yield torch.cat((torch.full((1,), NAN, dtype=x.dtype), x.flatten()))[1:].view(x.shape)


def assert_as_by_torch(function: Callable[[Tensor], Tensor], x: Tensor, g: Tensor) -> None:
    """With the rows' scores beside one another, and with the rows beside one another, of as many axes as there are."""
    expected = by_torch(with_gradient, function, x, g)
    for axis in range(x.ndim):
        view = x.movedim(axis, -1).contiguous().movedim(-1, axis)
        assert_same(with_gradient(function, view, g), expected, torch.float64)


def broadcast_shapes(shape: tuple[int, ...], fixed: int | None = None) -> Iterator[tuple[int, ...]]:
    """Every shape that broadcasts to this one with all of its axes, with size 1 along `fixed`."""
    for chosen in itertools.product((False, True), repeat=len(shape)):
        sizes = tuple(size if own and axis != fixed else 1 for axis, (size, own) in enumerate(zip(shape, chosen, strict=True)))
        if fixed is None or not chosen[fixed]:
            yield sizes


@needs_library
@pytest.mark.usefixtures("unwritten_is_nan")
def test_every_layout_along_every_dim_is_as_by_torch(case: Case):
    # Rounded scores tie, and a jump may fall elsewhere where torch rounds z once more.
    for dtype in (torch.float64, torch.bfloat16) if case.claims.continuous else (torch.float64,):
        x, g = normal(3, 5, 4, dtype=dtype), normal(3, 5, 4, seed=1, dtype=dtype)
        for dim in range(x.ndim):
            function = partial(case, dim=dim)
            expected = by_torch(with_gradient, function, x, g)
            for view in layouts(x):
                assert_same(with_gradient(function, view, g), expected, dtype)
            for upstream in layouts(g):
                assert_same(with_gradient(function, x, upstream), expected, dtype)


@needs_library
@pytest.mark.usefixtures("unwritten_is_nan")
def test_repeated_rows_and_scores_are_as_by_torch(case: Case):
    x, g = normal(3, 5, 4), normal(3, 5, 4, seed=1)
    for axes in itertools.product((False, True), repeat=3):
        first = tuple(slice(0, 1) if repeated else slice(None) for repeated in axes)
        view, upstream = x[first].expand(x.shape), g[first].expand(x.shape)
        for dim in range(3):
            function = partial(case, dim=dim)
            expected = by_torch(with_gradient, function, view.clone(), upstream.clone())
            assert_same(with_gradient(function, view, upstream), expected, torch.float64)


@needs_library
@pytest.mark.usefixtures("unwritten_is_nan")
def test_masks_of_every_shape_along_every_dim_are_as_by_torch(case: Case):
    x, g = normal(3, 5, 4), normal(3, 5, 4, seed=1)
    for shape, dim, temperature in some(itertools.product(broadcast_shapes(x.shape), range(3), (1.0, 1.7)), case):
        where = normal(*shape, seed=2) > -0.5
        assert_as_by_torch(partial(case, dim=dim, where=where, temperature=temperature), x, g)


@needs_library
@pytest.mark.usefixtures("unwritten_is_nan")
def test_temperatures_of_every_shape_are_as_by_torch(case: Case):
    x, g = normal(3, 5, 4), normal(3, 5, 4, seed=1)
    for dim in range(3):
        for shape in broadcast_shapes(x.shape, fixed=dim):
            assert_as_by_torch(partial(case, dim=dim, temperature=normal(*shape, seed=3).exp()), x, g)


@needs_library
@pytest.mark.usefixtures("unwritten_is_nan")
def test_parameters_of_every_shape_are_as_by_torch(learnable):
    case, parameter = learnable
    x, g = normal(3, 5, 4), normal(3, 5, 4, seed=1)
    examples = torch.tensor(parameter.examples, dtype=torch.float64)
    for dim in range(3):
        for shape in broadcast_shapes(x.shape, fixed=dim):
            values = examples[torch.arange(math.prod(shape)) % len(examples)].view(shape)
            assert_as_by_torch(partial(case.map, dim=dim, **case.params | {parameter.name: values}), x, g)


@needs_library
@pytest.mark.usefixtures("unwritten_is_nan")
def test_logsumexp_of_every_layout_is_as_by_torch():
    x = normal(3, 5, 4)
    for dim in (0, 1, 2, (0, 2), (1, 0)):
        for where in (None, normal(1, 5, 4, seed=2) > -1):
            function = partial(sm.logsumexp, dim=dim, where=where, temperature=0.7)
            g = normal(*function(x).shape, seed=1)
            for upstream in (g, g[:1].expand(g.shape)):
                expected = by_torch(with_gradient, function, x, upstream)
                for view in layouts(x):
                    assert_same(with_gradient(function, view, upstream), expected, torch.float64)


@needs_library
@pytest.mark.usefixtures("unwritten_is_nan")
def test_losses_of_every_layout_are_as_by_torch(loss: LossCase):
    x, labels = loss.scores(4, 5, 3), torch.arange(12).view(4, 3) % 5
    labels[1, 2] = -100
    soft = torch.softmax(normal(4, 5, 3, seed=1), 1)
    weight = normal(5, seed=4).exp()
    for options in (
        {"target": labels},
        {"target": labels, "weight": weight, "label_smoothing": 0.1},
        {"target": labels, "reduction": "none"},
        {"target": soft},
        {"target": soft, "weight": weight, "label_smoothing": 0.2, "reduction": "sum"},
    ):
        function = partial(loss, **options)
        g = normal(1, *function(x).shape, seed=5)[0]
        expected = by_torch(with_gradient, function, x, g)
        for view in layouts(x):
            assert_same(with_gradient(function, view, g), expected, torch.float64)


@needs_library
@pytest.mark.usefixtures("unwritten_is_nan")
@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1023, 1024, 1025, 1087, 2047, 2048, 2049, 3071])
def test_rows_about_the_boundaries_of_a_block_are_as_by_torch(n: int):
    x, g, where = normal(2, n, scale=3.0), normal(2, n, seed=1), normal(2, n, seed=2) > -2
    where[..., 0] = True
    for map in REGISTRY.values():
        for options in ({}, {"where": where, "temperature": 0.6}):
            function = partial(map, **options)
            assert_same(with_gradient(function, x, g), by_torch(with_gradient, function, x, g), torch.float64)


@needs_library
@pytest.mark.usefixtures("unwritten_is_nan")
@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 63, 64, 65, 128, 129, 257, 1000, 1023, 1024, 1025])
def test_thresholds_found_together_are_those_of_each_row(n: int, dtype: torch.dtype):
    """Of scores near and far, many and few, some NaN, +∞ or all −∞, each row with an α and a temperature of its own."""
    rows = 19
    spread = torch.logspace(-3, 2, rows, dtype=torch.float64)[torch.randperm(rows, generator=torch.Generator().manual_seed(n))]
    x = (normal(rows, n, seed=n) * spread[:, None]).to(dtype)
    where = normal(rows, n, seed=n + 1) > -1
    x[3, n // 2], x[8, n // 3], where[11] = NAN, INF, False
    x[12] = x[12].round()  # ties
    alpha = torch.tensor([1.0, 1.001, 1.05, 1.3, 1.5, 1.9, 2.0, 2.5, 9.0], dtype=torch.float64).repeat(3)[:rows, None]
    temperature = normal(rows, 1, seed=n + 2).exp()
    for function in (
        sm.sparsemax,
        sm.entmax15,
        partial(sm.entmax, alpha=1.3),
        partial(sm.entmax, alpha=alpha),
        partial(sm.entmax, alpha=alpha, where=where, temperature=temperature),
    ):
        p, expected = function(x), by_torch(function, x.double())
        torch.testing.assert_close(p.double(), expected, atol=8 * TOLERANCE[dtype], rtol=8 * torch.finfo(dtype).eps, equal_nan=True)
        assert bool(((p > 0) == (expected > 0))[~((expected > 0) & (expected < 4 * torch.finfo(dtype).tiny))].all())
    target = torch.arange(rows) % n
    for loss in (sm.sparsemax_loss, sm.entmax15_loss, partial(sm.entmax_loss, alpha=1.3), partial(sm.entmax_loss, alpha=2.5)):
        finite = x.nan_to_num(0.0, 0.0, 0.0).requires_grad_()
        wide = finite.detach().double().requires_grad_()
        for labels in (target, torch.nn.functional.one_hot(target, n).to(dtype)):
            value, expected = (
                loss(finite, labels, reduction="none"),
                by_torch(partial(loss, reduction="none"), wide, labels if labels.ndim == 1 else labels.double()),
            )
            scale = 1 + float(expected.detach().abs().max())
            torch.testing.assert_close(value.double(), expected, atol=8 * TOLERANCE[dtype] * scale, rtol=0)
            slopes = [torch.autograd.grad(v.sum(), z)[0].double() for v, z in ((value, finite), (expected, wide))]
            torch.testing.assert_close(*slopes, atol=8 * TOLERANCE[dtype], rtol=0)


@needs_library
def test_highest_score_is_found_wherever_it_is():
    for n in (1, 5, 64, 130, 1025, 2100):
        x = torch.full((n, n), -60.0)
        x.fill_diagonal_(60.0)
        for name in ("softmax", "sparsemax", "entmax15", "entmax", "topk_softmax", "topp_softmax", "rectified_softmax"):
            torch.testing.assert_close(REGISTRY[name](x), torch.eye(n), atol=1e-30, rtol=0)
        torch.testing.assert_close(sm.logsumexp(x), torch.full((n,), 60.0), atol=0, rtol=0)


# The C interface -------------------------------------------------------------------------------------------------------------

GUARD = 192  # bytes about a buffer; not a multiple of 64 more than needed, so that some buffers lie across a line of the cache
CANARY = 0xA5


class Memory:
    """Buffers between guards."""

    def __init__(self) -> None:
        self.buffers: list[tuple[Tensor, int]] = []

    def output(self, *shape: int, dtype: torch.dtype) -> Tensor:
        size = math.prod(shape) * dtype.itemsize
        raw = torch.full((size + 2 * GUARD,), CANARY, dtype=torch.uint8)
        self.buffers.append((raw, size))
        return raw[GUARD : GUARD + size].view(dtype).view(shape)

    def input(self, values: Tensor) -> Tensor:
        """A copy, with NaN (for a mask: True) about it."""
        size = values.numel() * values.dtype.itemsize
        raw = torch.full((size + 2 * GUARD,), 0xFF, dtype=torch.uint8)
        copy = raw[GUARD : GUARD + size].view(values.dtype).view(values.shape)
        return copy.copy_(values)

    def assert_guards_hold(self) -> None:
        for raw, size in self.buffers:
            assert bool((raw[:GUARD] == CANARY).all())
            assert bool((raw[GUARD + size :] == CANARY).all())


class Draw:
    """Rows of scores with everything that describes them to a kernel, drawn from a seed."""

    def __init__(self, seed: int, *, contiguous: bool = False, plain: bool = False) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.memory = Memory()
        self.dtype = self.choose(*DTYPES)
        n = self.choose(1, 2, 3, 7, 31, 63, 64, 65, 127, 128, 129, 300, 1023, 1024, 1025, 2047, 2049, 3000)
        inner = self.choose(1, 1, 1, 2, 3, 15, 16, 17, 33, 64, 65, 129)
        while n * inner > 9000:
            inner = max(1, inner // 4)
        outer = self.choose(0, 1, 2, 3, 5)
        while outer * n * inner > 20_000:
            outer -= 1
        self.shape = outer, n, inner
        scale, offset = self.choose(0.01, 0.1, 1.0, 3.0, 30.0), self.choose(0.0, 0.0, 100.0, -100.0, 1000.0)
        x = (torch.randn(self.shape, generator=self.generator, dtype=torch.float64) * scale + offset).to(self.dtype)
        if self.chance(0.3):
            x = x.round()  # ties
        x = self.masked_here_and_there(x)
        if self.chance(0.3) and not plain:
            x = self.with_hard_numbers(x)
        self.stride = n
        if inner == 1 and self.chance(0.5) and not contiguous:
            self.stride = self.choose(0, n + 1, n + 13)
        if self.stride == 0:
            x = x[:1].expand(self.shape) if outer else x
            self.x = self.memory.input(x[:1].contiguous() if outer else x)
        elif self.stride > n:
            apart = torch.full((outer, self.stride), NAN, dtype=self.dtype)
            apart[:, :n] = x[..., 0]
            self.x = self.memory.input(apart)
        else:
            self.x = self.memory.input(x)
        self.tau_number = 1.0 if plain else self.choose(1.0, 1.0, 0.3, 7.0)
        self.tau, self.taus = torch.tensor(self.tau_number, dtype=torch.float64), None
        if self.chance(0.3) and not plain:
            self.tau = torch.randn(outer, 1, inner, generator=self.generator, dtype=torch.float64).exp()
            self.taus = self.memory.input(self.tau)
        self.where, self.mask, self.blocks = (None, None, None) if plain else self.draw_mask()
        z = x.double()
        if self.where is not None:
            z = z.masked_fill(~self.where, -INF)
        self.raw = z.movedim(1, -1).reshape(outer * inner, n)  # x where allowed, −∞ elsewhere
        self.z = self.raw / self.tau.expand(outer, 1, inner).movedim(1, -1).reshape(-1, 1)
        self.wrong = self.z.isnan().any(-1)
        self.infinite = (self.z == INF).any(-1) & ~self.wrong
        self.nothing = (self.z == -INF).all(-1)
        self.finite = ~(self.wrong | self.infinite | self.nothing)

    def choose(self, *values: Any) -> Any:
        return values[int(torch.randint(len(values), (), generator=self.generator))]

    def chance(self, probability: float) -> bool:
        return float(torch.rand((), generator=self.generator)) < probability

    def masked_here_and_there(self, x: Tensor) -> Tensor:
        share = self.choose(0.0, 0.0, 0.1, 0.9)
        x = x.masked_fill(torch.rand(x.shape, generator=self.generator) < share, -INF)
        rows = torch.rand(x.shape[0], 1, x.shape[2], generator=self.generator) < share / 10
        return x.masked_fill(rows, -INF)

    def with_hard_numbers(self, x: Tensor) -> Tensor:
        """Some rows get a NaN of any sign and payload, signalling ones too, or +∞, subnormal numbers or −0."""
        size = x.dtype.itemsize
        integer = {8: torch.int64, 4: torch.int32, 2: torch.int16}[size]
        one, infinity = (torch.tensor(v, dtype=x.dtype).view(integer).item() for v in (1.0, INF))
        sign = -(1 << (8 * size - 1))
        hard = [infinity + 1, infinity + 5, sign | (infinity + 1), sign | (infinity + 7), -1, infinity, 1, 2, sign, sign | 3, one]
        bits = x.clone().view(integer)
        for _ in range(1 + x.numel() // 700):
            if x.numel():
                position = int(torch.randint(x.numel(), (), generator=self.generator))
                bits.view(-1)[position] = self.choose(*hard)
        return bits.view(x.dtype)

    def draw_mask(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        outer, n, inner = self.shape
        kind = self.choose("none", "none", "all", "blocks")
        if kind == "none":
            return None, None, None
        count = outer if kind == "all" else 2
        blocks = torch.rand(count, n, inner, generator=self.generator) < self.choose(0.2, 0.8)
        if kind == "all":
            return blocks, self.memory.input(blocks), None
        numbers = torch.randint(2, (outer,), generator=self.generator)
        return blocks[numbers], self.memory.input(blocks), self.memory.input(numbers * n * inner)

    def fields(self, threads: int, theta: Sequence[float] = (), each: Tensor | None = None) -> tuple[Any, ...]:
        """With θ for all rows, or one of each row [rows, …]."""
        outer, n, inner = self.shape
        address = address_of
        self.theta = self.memory.input(torch.tensor(theta, dtype=torch.float64)) if each is None else each
        return (
            layout.DTYPES[self.dtype], outer, n, inner, threads, self.x.data_ptr(), self.stride if inner == 1 else 0,
            self.tau_number, address(self.taus),
            self.theta.data_ptr(), 0 if each is None else each.shape[1], address(self.mask), address(self.blocks),
        )  # fmt: skip

    def sum_of(self, states: Tensor) -> Tensor:
        """LSE(x/τ) in float64, from the largest x and what it is above that over τ."""
        return states[0] / self.tau.double() + states[1]

    def as_rows(self, values: Tensor) -> Tensor:
        """[outer, n or 1, inner] → [rows, n or 1] in float64."""
        return values.double().movedim(1, -1).reshape(self.shape[0] * self.shape[2], values.shape[1])


MAPS = [name for name, map in REGISTRY.items() if map.kernel is not None]
KERNELS = {name: REGISTRY[name].kernel for name in MAPS}
# Of labels alone is the loss of perturb_max, which test_perturb_max.py has.
LOSSES = [name for name, kernel in KERNELS.items() if kernel.loss is not None and not kernel.labels_only]  # type: ignore[union-attr]
HARDER: dict[str, tuple[dict[str, Any], ...]] = {
    "budget_sparsemax": ({"budget": 0.0}, {"budget": 0.3}, {"budget": 17.0}, {"budget": 700.5}, {"budget": 1e300}),
    "elastic_softmax": ({"beta": -INF}, {"beta": 7.5}),
    "entmax": ({"alpha": 1.75},),
    "topk_softmax": ({"k": 70}, {"k": 2000}),
}


def examples(name: str) -> list[dict[str, Any]]:
    return [*(case.params for case in cases(REGISTRY[name])), *HARDER.get(name, ())]


def theta_of(name: str, params: dict[str, Any]) -> Sequence[float]:
    return REGISTRY[name].kernel.theta(*params.values())  # type: ignore[union-attr]


def functions_of(name: str) -> Functions:
    return REGISTRY[name].kernel.functions  # type: ignore[union-attr]


def simple_reference(name: str, z: Tensor, params: dict[str, Any]) -> Tensor:
    """The map of rows that hold a finite score and no NaN or +∞; shifted, for a literal exp to be finite, or by torch."""
    map = REGISTRY[name]
    return map.reference(z - z.amax(-1, keepdim=True), **params) if map.properties.shift_invariant else map.forward(z, **params)


def decided(name: str, z: Tensor, params: dict[str, Any]) -> Tensor:
    """The rows whose selection does not hang on rounding."""
    if name != "topp_softmax" or params["p"] == 1.0:
        return torch.ones(z.shape[:-1], dtype=torch.bool)
    near = [simple_reference(name, z, {"p": params["p"] * factor}) for factor in (1 - 1e-6, 1 + 1e-6)]
    return (near[0] - near[1]).abs().amax(-1) < 1e-5


def run_on_threads(function: interface.Function, pack: Callable[[int], bytes], draw: Draw, outputs: list[Tensor]) -> list[Tensor]:
    """The outputs by one thread; asserts that more threads give the same to the bit, over whatever was there before."""
    results = []
    for threads, before in ((1, 0x5A), (draw.choose(3, 4, 5), 0xC3)):
        for out in outputs:
            out.view(-1).view(torch.uint8).fill_(before)
        interface.run(function, pack(threads))
        draw.memory.assert_guards_hold()
        results.append([out.clone() for out in outputs])
    for one, several in zip(*results, strict=True):
        assert torch.equal(one.view(-1).view(torch.uint8), several.view(-1).view(torch.uint8))
    return results[0]


@needs_library
@pytest.mark.parametrize("name", MAPS)
def test_forward_kernel_on_random_calls(name: str):
    logarithmic = REGISTRY[name].properties.logarithmic
    for seed in some(range(60), name):
        draw = Draw(seed)
        params = draw.choose(*examples(name))
        out = draw.memory.output(*draw.shape, dtype=draw.dtype)
        pack = lambda threads, draw=draw, params=params, out=out: FORWARD(
            *draw.fields(threads, theta_of(name, params)), out.data_ptr(), 0
        )
        (result,) = run_on_threads(functions_of(name).forward, pack, draw, [out])
        p = draw.as_rows(result)
        assert bool(p[draw.wrong].isnan().all())
        assert bool(p[draw.infinite].isnan().any(-1).all())
        assert bool((p[draw.nothing] == (-INF if logarithmic else 0.0)).all())
        rows = draw.finite.nonzero().flatten()
        rows = rows[decided(name, draw.z[rows], params)]
        expected = simple_reference(name, draw.z[rows], params)
        relative = 4 * torch.finfo(draw.dtype).eps if logarithmic else 0.0
        torch.testing.assert_close(
            p[rows], expected, atol=TOLERANCE[draw.dtype], rtol=relative, msg=lambda text, s=seed: f"{s}: {text}"
        )


@needs_library
@pytest.mark.parametrize("name", [name for name in MAPS if any(parameter.gradient for parameter in REGISTRY[name].params)])
def test_parameters_of_each_row_on_random_calls(name: str):
    for seed in some(range(40), name):
        draw = Draw(seed)
        chosen = [draw.choose(*examples(name)) for _ in range(draw.shape[0] * draw.shape[2])]
        if not chosen:
            continue
        theta = draw.memory.input(torch.tensor([list(theta_of(name, params)) for params in chosen], dtype=torch.float64))
        out = draw.memory.output(*draw.shape, dtype=draw.dtype)
        pack = lambda threads, draw=draw, theta=theta, out=out: FORWARD(*draw.fields(threads, each=theta), out.data_ptr(), 0)
        (result,) = run_on_threads(functions_of(name).forward, pack, draw, [out])
        p = draw.as_rows(result)
        for row in draw.finite.nonzero().flatten().tolist()[:7]:
            expected = simple_reference(name, draw.z[row : row + 1], chosen[row])[0]
            torch.testing.assert_close(p[row], expected, atol=TOLERANCE[draw.dtype], rtol=0)


def of_sums(name: str, draw: Draw) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(memory for the results of a kernel of sums, its results, its states)."""
    outer, _, inner = draw.shape
    out, states = (
        draw.memory.output(outer, 1, inner, dtype=draw.dtype),
        draw.memory.output(2, outer, 1, inner, dtype=torch.float64),
    )
    pack = lambda threads: FORWARD(*draw.fields(threads), out.data_ptr(), states.data_ptr())
    return out, *run_on_threads(interface.find_function(name), pack, draw, [out, states])


@needs_library
def test_logsumexp_kernels_on_random_calls():
    for seed in some(range(100)):
        draw = Draw(seed)
        outer, _, inner = draw.shape
        out, result, wide = of_sums("logsumexp", draw)
        together = draw.sum_of(wide)
        torch.testing.assert_close(result, together.to(draw.dtype), rtol=2 * torch.finfo(draw.dtype).eps, atol=0, equal_nan=True)
        interface.run(interface.find_function("logsumexp"), FORWARD(*draw.fields(1), out.data_ptr(), 0))  # without the states
        torch.testing.assert_close(out, result, rtol=0, atol=0, equal_nan=True)
        value = draw.as_rows(together)[:, 0]
        expected = torch.logsumexp(draw.z, -1)
        # Before rounding to the dtype: the sum has the rounding of float32 terms, except in float64.
        digits = TOLERANCE[torch.float64] if draw.dtype == torch.float64 else TOLERANCE[torch.float32]
        torch.testing.assert_close(value, expected, atol=digits, rtol=1e-6 if draw.dtype != torch.float64 else 0, equal_nan=True)

        g = torch.randn(outer, 1, inner, generator=draw.generator, dtype=torch.float64).to(draw.dtype)
        upstream, gradient = draw.memory.input(g), draw.memory.output(*draw.shape, dtype=draw.dtype)
        pack = lambda threads, draw=draw, wide=wide, upstream=upstream, gradient=gradient: BACKWARD(
            *draw.fields(threads), 0, wide.data_ptr(), upstream.data_ptr(), gradient.data_ptr(), 0
        )
        (result,) = run_on_threads(interface.find_function("logsumexp_backward"), pack, draw, [gradient])
        p, rows = draw.as_rows(result), draw.finite
        scale = draw.as_rows(g) / draw.as_rows(draw.tau.expand(outer, 1, inner))
        size = scale.abs().clamp_min(1.0)[rows]
        torch.testing.assert_close(
            p[rows] / size, (scale * torch.softmax(draw.z, -1))[rows] / size, atol=4 * TOLERANCE[draw.dtype], rtol=0
        )
        assert bool((p[draw.nothing] == 0).all())
        assert bool(p[draw.wrong].isnan().all())
        assert bool(p[draw.infinite].isnan().all())


@needs_library
def test_rest_kernel_on_random_calls():
    for seed in some(range(100)):
        draw = Draw(seed)
        outer, _, inner = draw.shape
        states = draw.memory.output(2, outer, 1, inner, dtype=torch.float64)
        pack = lambda threads, draw=draw, states=states: FORWARD(*draw.fields(threads), 0, states.data_ptr())
        (found,) = run_on_threads(interface.find_function("logsumexp_rest"), pack, draw, [states])
        top, rest = (draw.as_rows(state)[:, 0] for state in found)
        expected = draw.raw.double().amax(-1)
        torch.testing.assert_close(top[~draw.wrong], expected[~draw.wrong], rtol=0, atol=0)
        scaled = expected / draw.as_rows(draw.tau.expand(outer, 1, inner))[:, 0]
        sums = torch.where(expected.abs() == INF, 0.0, (draw.z - scaled.unsqueeze(-1)).exp().sum(-1) - 1)
        digits = 1e-11 if draw.dtype == torch.float64 else TOLERANCE[torch.float32]
        torch.testing.assert_close(rest, torch.where(draw.wrong, NAN, sums), atol=1e-11, rtol=digits, equal_nan=True)


@needs_library
@pytest.mark.parametrize("columns", [False, True])
def test_the_rest_keeps_its_digits_beside_a_large_score(dtype: torch.dtype, columns: bool):
    for n, peak in ((5, 30.0), (70, 12.0), (3000, 16.0), (3000, 4.0)):
        x = normal(9, n, dtype=dtype)
        x[:, n // 2] += peak
        x = x.t().contiguous().t() if columns else x
        top, rest = native.logsumexp_rest(x, 0.9, None)
        wide = x.double()
        terms = ((wide - top.unsqueeze(-1)) / 0.9).exp()
        others = terms.masked_fill(wide == top.unsqueeze(-1), 0.0).sum(-1) + ((wide == top.unsqueeze(-1)).sum(-1) - 1)
        torch.testing.assert_close(rest, others, rtol=2e-15 * n**0.5 if dtype == torch.float64 else 2.0**-20, atol=0)


@needs_library
def test_terms_that_are_subnormal_are_summed():
    for count, gap in ((5000, -708.5), (100_000, -709.0)):
        x = torch.cat((torch.zeros(1), torch.full((count,), gap))).double()
        expected = math.exp(gap + math.log(count))
        _, rest = native.logsumexp_rest(x, 1.0, None)
        for found in (rest, sm.logsumexp(x), -sm.log_softmax(x, -1)[0], sm.cross_entropy(x, torch.tensor(0))):
            assert float(found) == pytest.approx(expected, rel=1e-12)


@needs_library
@pytest.mark.parametrize("narrow", [torch.float32, torch.float64])
def test_the_smallest_normal_probabilities_are_not_0(narrow: torch.dtype):
    smallest = torch.finfo(narrow).tiny
    gaps = torch.linspace(math.log(smallest), 0.98 * math.log(smallest), 400, dtype=torch.float64)[1:].to(narrow)
    rows = torch.stack((torch.zeros_like(gaps), gaps), -1)
    for x in (rows, torch.cat((rows, torch.full((len(rows), 600), -INF, dtype=narrow)), -1)):
        p = sm.softmax(x)[:, 1]
        torch.testing.assert_close(p.double(), gaps.double().exp(), rtol=4 * torch.finfo(narrow).eps, atol=0)


@needs_library
def test_log_mean_exp_kernel_on_random_calls():
    for seed in some(range(200)):
        draw = Draw(seed)
        _, result, wide = of_sums("log_mean_exp", draw)
        sums = draw.as_rows(draw.sum_of(wide))[:, 0]
        torch.testing.assert_close(sums, torch.logsumexp(draw.z, -1), atol=1e-11, rtol=1e-11, equal_nan=True)
        allowed = torch.ones(draw.shape, dtype=torch.bool) if draw.where is None else draw.where.expand(draw.shape)
        count = draw.as_rows(allowed).double().sum(-1)
        expected = torch.where(count > 0, torch.logsumexp(draw.z, -1) - count.log(), -INF)
        smallest = torch.finfo(draw.dtype).tiny * torch.finfo(draw.dtype).eps
        digits = {"atol": max(1e-11, smallest), "rtol": torch.finfo(draw.dtype).eps}
        torch.testing.assert_close(draw.as_rows(result)[:, 0].double(), expected.double(), **digits, equal_nan=True)


@needs_library
def test_state_kernel_on_random_calls():
    for seed in some(range(100)):
        draw = Draw(seed)
        outer, _, inner = draw.shape
        outputs = [draw.memory.output(outer, 1, inner, dtype=dtype) for dtype in (torch.float64, torch.float64, torch.int64)]
        pack = lambda threads, draw=draw, outputs=outputs: STATE(*draw.fields(threads), *(output.data_ptr() for output in outputs))
        rest, maximum, count = (
            draw.as_rows(result)[:, 0] for result in run_on_threads(interface.find_function("logsumexp_state"), pack, draw, outputs)
        )
        expected = torch.where(draw.wrong, NAN, draw.raw.double().amax(-1))
        torch.testing.assert_close(maximum, expected, rtol=0, atol=0, equal_nan=True)
        counts = (draw.raw == expected.unsqueeze(-1)).sum(-1)
        torch.testing.assert_close(count.long(), counts.masked_fill(draw.wrong | (expected == -INF), 0))
        top = (expected / draw.as_rows(draw.tau.expand(outer, 1, inner))[:, 0]).masked_fill(expected == -INF, 0.0)
        terms = (draw.z - top.unsqueeze(-1)).exp().masked_fill(draw.raw == expected.unsqueeze(-1), 0.0)
        others = torch.where(expected.abs() == INF, 0.0, terms.sum(-1))
        torch.testing.assert_close(rest, others, atol=1e-11, rtol=1e-11, equal_nan=True)


@needs_library
def test_cumulative_kernels_on_random_calls():
    for seed in some(range(100)):
        draw = Draw(seed)
        out, states = draw.memory.output(*draw.shape, dtype=draw.dtype), draw.memory.output(2, *draw.shape, dtype=torch.float64)
        pack = lambda threads, draw=draw, out=out, states=states: FORWARD(*draw.fields(threads), out.data_ptr(), states.data_ptr())
        result, wide = run_on_threads(interface.find_function("logcumsumexp"), pack, draw, [out, states])
        together = draw.sum_of(wide)
        torch.testing.assert_close(
            result, together.to(draw.dtype), rtol=2 * torch.finfo(draw.dtype).eps, atol=1e-15, equal_nan=True
        )
        expected = torch.logcumsumexp(draw.z, -1)
        infinite = (draw.z == INF).cumsum(-1)
        torch.testing.assert_close(draw.as_rows(together), expected, atol=1e-12, rtol=1e-14, equal_nan=True)

        g = torch.randn(draw.shape, generator=draw.generator, dtype=torch.float64).to(draw.dtype)
        upstream, gradient = draw.memory.input(g), draw.memory.output(*draw.shape, dtype=draw.dtype)
        pack = lambda threads, draw=draw, wide=wide, upstream=upstream, gradient=gradient: BACKWARD(
            *draw.fields(threads), 0, wide.data_ptr(), upstream.data_ptr(), gradient.data_ptr(), 0
        )
        (result,) = run_on_threads(interface.find_function("logcumsumexp_backward"), pack, draw, [gradient])
        tau = draw.as_rows(draw.tau.expand(draw.shape[0], 1, draw.shape[2]))
        for row, z, y, c, u, t in zip(draw.as_rows(result), draw.z, expected, infinite, draw.as_rows(g), tau, strict=True):
            if bool(z.isnan().any()) or len(z) > 300:
                continue
            shares = (z - y.unsqueeze(1)).exp().masked_fill(c.unsqueeze(1) > 0, NAN)
            slopes = torch.tril(torch.where((y == -INF).unsqueeze(1), 0.0, shares))
            size = (u.abs() @ slopes / t).clamp_min(1.0)
            torch.testing.assert_close(row / size, u @ slopes / t / size, atol=4 * TOLERANCE[draw.dtype], rtol=0, equal_nan=True)


@needs_library
def test_weighted_kernels_on_random_calls():
    for seed in some(range(200)):
        draw = Draw(seed)
        outer, n, inner = draw.shape
        if inner > 1:
            continue
        b = torch.randn(outer, n, generator=draw.generator, dtype=torch.float64)
        b = b.abs() if draw.chance(0.5) else b
        b[b.abs() < 0.3] = 0.0
        alike = draw.chance(0.5)
        b = b.to(draw.dtype) if alike else b
        weights, b = draw.memory.input(b), b.double()
        addresses = (weights.data_ptr(), 0, n) if alike else (0, weights.data_ptr(), n)
        outputs = [draw.memory.output(outer, 1, 1, dtype=torch.float64) for _ in range(2)]
        outputs.append(draw.memory.output(2, outer, 1, 1, dtype=torch.float64))
        pack = lambda threads, draw=draw, addresses=addresses, outputs=outputs: WEIGHTED(
            *draw.fields(threads), *addresses, *(output.data_ptr() for output in outputs), 0, 0
        )
        found = run_on_threads(interface.find_function("weighted"), pack, draw, outputs)
        value, sign = (draw.as_rows(result)[:, 0] for result in found[:2])
        used = b != 0
        undecided = (used & ~(draw.z < INF)).any(-1)
        assert torch.equal(sign == 2, undecided)
        total = weighted_sum(draw.z, b, 1.0)
        expected, its_sign = total.value(1.0).squeeze(-1), total.sign.squeeze(-1)
        sizes = torch.logsumexp(draw.z.masked_fill(~used, -INF) + b.abs().log(), -1)
        clear = ~undecided & ((sizes == -INF) | (expected > sizes - 10))  # of the others rounding is a larger part
        narrow = alike and draw.dtype != torch.float64  # terms in float, which are as exact as a result in float32 needs
        tolerance = {"atol": 1e-9, "rtol": 2**-24} if narrow else {"atol": 1e-9, "rtol": 1e-13}
        torch.testing.assert_close(value[clear], expected[clear], **tolerance)
        torch.testing.assert_close(sign[clear], its_sign[clear], atol=0, rtol=0)

        g = torch.randn(outer, generator=draw.generator, dtype=torch.float64)
        upstream, gradient = draw.memory.input(g), draw.memory.output(*draw.shape, dtype=draw.dtype)
        pack = lambda threads, draw=draw, addresses=addresses, found=found, upstream=upstream, gradient=gradient: WEIGHTED(
            *draw.fields(threads), *addresses, 0, *(v.data_ptr() for v in found[1:]), upstream.data_ptr(), gradient.data_ptr()
        )
        (result,) = run_on_threads(interface.find_function("weighted"), pack, draw, [gradient])
        slope = draw.as_rows(result)
        scale = (g / draw.as_rows(draw.tau.expand(outer, 1, 1))[:, 0]).unsqueeze(-1)
        shares = its_sign.unsqueeze(-1) * b * (draw.z.masked_fill(~used, -INF) - expected.unsqueeze(-1)).exp()
        shares = shares.masked_fill(expected.unsqueeze(-1) == -INF, 0.0)
        size = (scale.abs() * shares.abs().amax(-1, keepdim=True)).clamp_min(1.0)
        torch.testing.assert_close((slope / size)[clear], (scale * shares / size)[clear], atol=4 * TOLERANCE[draw.dtype], rtol=0)


@needs_library
def test_gap_kernels_on_random_calls():
    for seed in some(range(150)):
        draw = Draw(seed)
        outer, n, inner = draw.shape
        bins, k, width, reach = draw.choose(1, 7, 150), min(n, draw.choose(1, 2, 8)), draw.choose(0.05, 0.3), draw.choose(0.5, 14.0)
        sizes = {"summary": 6, "largest": k, "counts": bins + 1, "kept": 5}
        found = {what: draw.memory.output(outer, inner, size, dtype=torch.float64) for what, size in sizes.items()}
        *outputs, kept = found.values()
        pack = lambda threads, draw=draw, outputs=outputs, width=width, bins=bins, k=k: GAPS(
            *draw.fields(threads), width, bins, k, *(output.data_ptr() for output in outputs)
        )
        summary, largest, counts = (v.flatten(0, 1) for v in run_on_threads(interface.find_function("gaps"), pack, draw, outputs))
        pack = lambda threads, draw=draw, kept=kept, reach=reach: KEPT(*draw.fields(threads), reach, kept.data_ptr())
        (kept,) = run_on_threads(interface.find_function("kept"), pack, draw, [kept])
        kept = kept.flatten(0, 1)
        top = draw.raw.double().amax(-1)
        for own in (summary, kept):
            torch.testing.assert_close(own[:, 0], top, rtol=0, atol=0, equal_nan=True)
        rows = draw.finite
        x, tau = draw.raw.double()[rows], draw.as_rows(draw.tau.expand(outer, 1, inner))[rows]
        gaps = (top[rows].unsqueeze(-1) - x) / tau
        above = x > -INF
        _, count, ties, total, edge, near = summary[rows].unbind(-1)
        for own in (summary[rows], kept[rows]):
            assert torch.equal(own[:, 1], above.sum(-1).double())
            assert torch.equal(own[:, 2], (gaps == 0).sum(-1).double())
        torch.testing.assert_close(total, gaps.masked_fill(~above, 0.0).sum(-1), rtol=1e-12, atol=1e-12)
        expected = (top[rows] - count.log() * tau.squeeze(-1)).clamp_min(-torch.finfo(draw.dtype).max)
        torch.testing.assert_close(edge, expected.to(draw.dtype).double(), rtol=torch.finfo(draw.dtype).eps, atol=1e-7)
        assert torch.equal(near, (x >= edge.unsqueeze(-1)).sum(-1).double())
        assert torch.equal(largest[rows], x.topk(k).values)
        # A gap at the edge of a bin may round to the other side.
        nearest, furthest = ((gaps * factor / width).clamp_max(bins).floor() for factor in (1 - 1e-14, 1 + 1e-14))
        inside = above & (gaps > 0)
        for b in (0, bins // 2, bins):
            least = ((nearest == b) & (furthest == b) & inside).sum(-1)
            most = (((nearest == b) | (furthest == b)) & inside).sum(-1)
            assert bool(((least <= counts[rows][:, b]) & (counts[rows][:, b] <= most)).all())
        assert torch.equal(counts[rows].sum(-1), count - ties)
        close = (gaps - reach).abs() < 1e-12
        terms = (-gaps).exp().masked_fill((gaps > reach) | (gaps == 0), 0.0)
        clear = ~close.any(-1)
        assert torch.equal(kept[rows][clear, 3], (gaps <= reach).sum(-1).double()[clear])
        torch.testing.assert_close(kept[rows][clear, 4], terms.sum(-1)[clear], rtol=1e-13, atol=1e-290)


@needs_library
def test_the_state_of_a_row_that_threads_share_counts_every_maximum(dtype: torch.dtype):
    threads = torch.get_num_threads()
    x = normal(131_073, dtype=dtype)
    ascending, equal, apart = x.sort().values, torch.full_like(x, -3.0), x.clone()
    apart[[5, 70_000, 131_072]] = 40.0  # in every part
    wrong, nothing, infinite = x.clone(), torch.full_like(x, -INF), x.clone()
    wrong[100_000], infinite[[3, 99_999]] = NAN, INF
    try:
        for count in (1, 2, 3, 4):
            torch.set_num_threads(count)
            for row in (x, ascending, equal, apart, wrong, nothing, infinite):
                for tau in (1.0, 0.7):
                    rest, maximum, found = map(torch.from_numpy, native.logsumexp_state(row, tau))
                    top = row.double().amax()
                    torch.testing.assert_close(maximum, top, rtol=0, atol=0, equal_nan=True)
                    assert int(found) == (int((row == top).sum()) if top > -INF else 0)
                    terms = ((row.double() - top) / tau).exp().masked_fill(row == top, 0.0)
                    others = torch.where(top.abs() == INF, 0.0, terms.sum())
                    torch.testing.assert_close(rest, others, rtol=1e-14, atol=2.0**-52 * int(found), equal_nan=True)
    finally:
        torch.set_num_threads(threads)


@needs_library
@pytest.mark.parametrize("name", MAPS)
def test_backward_kernel_on_random_calls(name: str):
    forward, backward, _ = functions_of(name)
    for seed in some(range(60), name):
        draw = Draw(seed, contiguous=True)
        params = draw.choose(*examples(name))
        p = draw.memory.output(*draw.shape, dtype=draw.dtype)
        interface.run(forward, FORWARD(*draw.fields(1, theta_of(name, params)), p.data_ptr(), 0))
        g = torch.randn(draw.shape, generator=draw.generator, dtype=torch.float64).to(draw.dtype)
        inputs = draw.memory.input(p), draw.memory.input(g)
        out = draw.memory.output(*draw.shape, dtype=draw.dtype)
        pack = lambda threads, draw=draw, params=params, inputs=inputs, out=out: BACKWARD(
            *draw.fields(threads, theta_of(name, params)), inputs[0].data_ptr(), 0, inputs[1].data_ptr(), out.data_ptr(), 0
        )
        (result,) = run_on_threads(backward, pack, draw, [out])
        actual, rows = draw.as_rows(result), draw.finite
        assert bool((actual[draw.nothing] == 0).all())
        wide, upstream, z = draw.as_rows(p)[rows], draw.as_rows(g)[rows], draw.z[rows]
        tau = draw.as_rows(draw.tau.expand(draw.shape[0], 1, draw.shape[2]))[rows]
        if name in ("budget_sparsemax", "proportional"):  # whose kernels do not look at p, as it is rounded
            wide = REGISTRY[name].forward(z, **params)
        if name == "normmax" and draw.dtype.itemsize == 2:  # whose kernel finds it again, in float
            wide = REGISTRY[name].forward(z, **params).masked_fill(wide == 0, 0.0)
        local = REGISTRY[name].jacobian_of(REGISTRY[name].sensitivity(wide, z, **params))
        expected = local.pull(upstream) / tau
        # What rounding in the compute dtype can do: 2⁵ additions in a row, and a power of p with an exponent of up to 70.
        eps = torch.finfo(torch.float64 if draw.dtype == torch.float64 else torch.float32).eps
        if name == "perturb_max":  # whose s takes n² numbers: in double, of some hundred nodes
            eps, size = torch.finfo(torch.float64).eps, 8 * upstream.abs().amax(-1, keepdim=True) / tau
        else:
            size = (local.s.abs() * upstream.abs() + local.r.abs() * (local.q * upstream).abs().sum(-1, keepdim=True)) / tau
        bound = 128 * eps * size + torch.finfo(draw.dtype).eps * expected.abs() + torch.finfo(draw.dtype).smallest_normal
        if name == "proportional":  # torch has 1 − σ for σ(−z)
            bound += 4 * torch.finfo(torch.float64).eps * upstream.abs().sum(-1, keepdim=True) / tau
        excess = (actual[rows] - expected).abs() - bound
        fits = expected.abs() < torch.finfo(draw.dtype).max / 2
        assert bool((excess[fits] <= 0).all()), (seed, params, draw.dtype, draw.shape, float(excess[fits].max()))


def literal_loss(
    name: str, params: dict[str, Any], z: Tensor, y: Tensor, class_weight: Tensor, row_weight: Tensor | None, square: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(U·V(z) + U·square·V(z)² + Ω(y) − ⟨u, z⟩, its gradient, the size of its terms) of rows with a finite score.

    With a weight for each row the loss is Fenchel–Young's, with u = y and U = 1; else it is cross-entropy, with u = y times the
    class weights and without Ω. The gradient by a score of −∞ is 0.
    """
    classes = z.shape[-1]
    top = z.amax(-1, keepdim=True)
    z = z - top
    if REGISTRY[name].kernel.forward == "elastic_softmax":  # type: ignore[union-attr]  # the softmax over (z, β)
        z = torch.cat((z, theta_of(name, params)[0] - top), -1)
        name, y = "softmax", torch.cat((y, torch.zeros(len(y), 1)), -1)
        class_weight, params = torch.cat((class_weight, torch.zeros(1))), {}
    omega = partial(REGISTRY[name].regulariser, **params)  # type: ignore[arg-type]
    p, possible = simple_reference(name, z, params), z > -INF
    finite = z.masked_fill(~possible, 0.0)
    value = (p * finite).sum(-1) - omega(p)
    if row_weight is None:
        u = y * class_weight
        mass, regulariser, row_weight = (u * possible).sum(-1), torch.zeros(len(y)), torch.ones(len(y))
    else:
        u, mass, regulariser = y, torch.ones(len(y)), omega(y)
    whole = value + top.squeeze(-1)
    terms = torch.stack((mass * value, mass * (square * whole.square()), regulariser, -(u * finite).sum(-1)))
    loss = row_weight * terms.sum(0).masked_fill(((u > 0) & ~possible).any(-1), INF)
    slope = row_weight[:, None] * ((mass * (1 + 2 * square * whole))[:, None] * p - u * possible)
    return loss, slope[:, :classes], row_weight * terms.abs().sum(0)


@needs_library
@pytest.mark.parametrize("name", LOSSES)
def test_loss_kernel_on_random_calls(name: str):
    for seed in some(range(80), name):
        draw = Draw(seed, plain=True)
        outer, n, inner = draw.shape
        params = draw.choose(*examples(name))
        hard, smoothing, scale = draw.chance(0.6), draw.choose(0.0, 0.0, 0.1), draw.choose(1.0, 0.125)
        fenchel = REGISTRY[name].properties.sparse or draw.chance(0.5)
        class_weight = torch.rand(n, generator=draw.generator, dtype=torch.float64) if draw.chance(0.5) else None
        labels = torch.randint(-1, n, (outer, 1, inner), generator=draw.generator)
        # Shares of 64ths: they sum to 1 in every dtype.
        hits = torch.randint(n, (outer, 64, inner), generator=draw.generator)
        soft = torch.zeros(draw.shape, dtype=torch.float64).scatter_add(
            1, hits, torch.full(hits.shape, 1 / 64, dtype=torch.float64)
        )
        target = draw.memory.input(labels if hard else soft.to(draw.dtype))
        weight = None if class_weight is None else draw.memory.input(class_weight)
        values, out = draw.memory.output(outer, 1, inner, dtype=torch.float64), draw.memory.output(*draw.shape, dtype=draw.dtype)
        near = bool((draw.z[draw.finite & (draw.z > -INF).any(-1)].amax(-1).abs() < 100).all())
        square = draw.choose(0.0, 1e-3) if near else 0.0
        options = (address_of(weight), smoothing, scale, int(fenchel), square, values.data_ptr(), out.data_ptr())
        targets = (target.data_ptr(), 0) if hard else (0, target.data_ptr())
        pack = partial(_pack_loss, draw, theta_of(name, params), (*targets, *options))
        wide, slope = run_on_threads(functions_of(name).loss, pack, draw, [values, out])

        label = draw.as_rows(labels)[:, 0].long()
        rows = draw.finite & (label >= 0) if hard else draw.finite
        z, label = draw.z[rows], label[rows]
        y = torch.nn.functional.one_hot(label, n).double() if hard else draw.as_rows(soft)[rows]
        y = y * (1 - smoothing) + smoothing / n
        weights = torch.ones(n, dtype=torch.float64) if class_weight is None else class_weight
        row_weight = (y * weights).sum(-1) if fenchel else None
        expected, gradient, size = literal_loss(name, params, z, y, weights, row_weight, square)
        actual, actual_gradient = draw.as_rows(wide)[:, 0], draw.as_rows(slope)
        # Float32 terms in the sum of exponentials, double elsewhere.
        eps = torch.finfo(torch.float64 if draw.dtype == torch.float64 else torch.float32).eps
        far = ~((actual[rows] - expected).abs() <= 64 * eps * size + TOLERANCE[torch.float64]) & (actual[rows] != expected)
        assert not bool(far.any()), (seed, params, draw.dtype, draw.shape, hard, fenchel, actual[rows][far], expected[far])
        torch.testing.assert_close(actual_gradient[rows], scale * gradient, atol=2 * TOLERANCE[draw.dtype], rtol=2**-7)
        if hard:
            left_out = draw.as_rows(labels)[:, 0] < 0
            assert bool((actual[left_out] == 0).all())
            assert bool((actual_gradient[left_out] == 0).all())


def _pack_loss(draw: Draw, theta: Sequence[float], fields: tuple[Any, ...], threads: int) -> bytes:
    return LOSS(*draw.fields(threads, theta), *fields, *NO_MARGIN)


@needs_library
@pytest.mark.parametrize("of_p", ["soft_accuracy_loss", "eps_cross_entropy", "surrogate_loss"])
@pytest.mark.parametrize("map", [name for name in MAPS if not REGISTRY[name].properties.logarithmic])
@pytest.mark.parametrize("shape", [(40, 9), (3, 700), (4, 6, 5)])
def test_losses_of_probabilities_by_kernels_equal_those_by_operations(
    of_p: str, map: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    target = torch.randint(shape[1], (shape[0], *shape[2:]), generator=generator)
    target.view(-1)[::3] = -100
    weight = torch.rand(shape[1], generator=generator, dtype=torch.float64)
    weight[0] = 0

    def evaluate(reduction: str, weight: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        scores = x.clone().requires_grad_()
        value = getattr(sm, of_p)(scores, target, weight, map=map, reduction=reduction)
        return value.detach(), torch.autograd.grad(value.sum(), scores)[0]

    cases = [(reduction, w) for reduction in ("mean", "none") for w in (None, weight)]
    by_kernels = [evaluate(*case) for case in cases]
    monkeypatch.setattr("softmaxima.losses.row_losses.is_native", lambda x: False)
    for own, case in zip(by_kernels, cases, strict=True):
        torch.testing.assert_close(own, evaluate(*case), atol=1e-12, rtol=1e-10)


@needs_library
@pytest.mark.parametrize("name", [*MAPS, "logsumexp"])
def test_rows_that_threads_share_equal_rows_of_one_thread(name: str):
    if name in ("topk_softmax", "topp_softmax", "minp_softmax"):
        pytest.skip("one thread has a whole row")
    n, is_map = 131_073, name in MAPS
    function = functions_of(name).forward if is_map else interface.find_function(name)
    theta = torch.tensor(theta_of(name, REGISTRY[name].complete({})) if is_map else (), dtype=torch.float64)
    for kind in ("ordinary", "one finite", "far apart", "nan at the end", "infinite", "nothing"):
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            x = normal(n, scale=3.0, dtype=dtype)
            if kind == "one finite":
                x.fill_(-INF)[n - 7] = 2.0
            elif kind == "far apart":
                x[: n // 3] -= 40
                x[n // 2 :] += 30
            elif kind == "nan at the end":
                x[n - 1] = NAN
            elif kind == "infinite":
                x[n // 2] = INF
            elif kind == "nothing":
                x.fill_(-INF)
            results = []
            for threads, before in ((1, 0x5A), (4, 0xC3)):
                memory = Memory()
                out = memory.output(1 if name == "logsumexp" else n, dtype=dtype)
                out.view(torch.uint8).fill_(before)
                fields = layout.DTYPES[dtype], 1, n, 1, threads, x.data_ptr(), n, 1.0, 0, theta.data_ptr(), 0, 0, 0
                interface.run(function, FORWARD(*fields, out.data_ptr(), 0))
                memory.assert_guards_hold()
                results.append(out.clone())
            assert bool(results[0].isnan().any()) == (kind == "nan at the end" or (kind == "infinite" and name != "logsumexp"))
            for shared in results[1:]:
                # Sums in another order, and factors e^d of distances d ≤ 70 between the parts' origins.
                eps = 2 * torch.finfo(dtype).eps if dtype == torch.bfloat16 else 64 * torch.finfo(dtype).eps
                if name == "entmax":
                    eps = max(eps, 1e-11)  # the rounding of the threshold counts for much near the edge of the support
                torch.testing.assert_close(shared, results[0], atol=1e-30, rtol=eps, equal_nan=True)


@needs_library
def test_scores_at_the_very_threshold_are_decided():
    # A threshold that rounds down lets a score back in that it had just excluded. In a process, for it could go on for ever.
    program = """
import torch
import softmaxima as sm
for n in (2, 3, 5, 30):
    for seed in range(300):
        p = torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        p /= p.sum()
        near = (torch.arange(-3, 4) * 2.0**-54).double()
        for x in (torch.cat((p, torch.zeros(2))), torch.cat((p, near)), torch.cat((p.float(), torch.zeros(2)))):
            for out in (sm.sparsemax(x), sm.entmax15(2 * x.sqrt().clamp_min(0).nan_to_num()), sm.entmax(x, alpha=2.0)):
                assert abs(float(out.sum()) - 1) < 1e-6
            assert torch.allclose(sm.sparsemax(x), x.clamp_min(0), atol=1e-7)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@needs_library
def test_calls_from_several_threads_at_once_do_not_meet():
    inputs = [normal(40, 3000, seed=seed, dtype=torch.float32) for seed in range(8)]
    functions = [*(map for map in REGISTRY.values() if map.kernel is not None), sm.logsumexp]
    alone = [[function(x) for x in inputs] for function in functions]
    with ThreadPoolExecutor(4) as pool:
        for function, expected in zip(functions, alone, strict=True):
            for a, b in zip(pool.map(function, inputs * 3), expected * 3, strict=True):
                assert torch.equal(a, b)


def test_the_interface_is_what_the_header_says():
    text = re.sub(r"//[^\n]*", "", HEADER.read_text())
    for name, body in re.findall(r"struct Softmaxima(\w+) \{([^}]*)\};", text):
        fields = re.findall(r"^\s*((?:const )?\w+\*?) ([\w, ]+);", body, re.MULTILINE)
        assert body.count(";") == len(fields)
        theirs = [
            (field, float if kind == "double" else int)
            for kind, fields_of_kind in fields
            if not kind.startswith("Softmaxima")
            for field in fields_of_kind.split(", ")
        ]
        assert theirs == list(get_type_hints(getattr(structures, name)).items()), name
        nested = "".join("x" if kind.startswith("Softmaxima") else "." for kind, _ in fields)
        assert re.fullmatch(r"x*\.*x*", nested), name  # structures come first or last
    assert re.search(r"#define SOFTMAXIMA_INTERFACE (\d+)", text).group(1) == str(INTERFACE)

    sources = "".join(path.read_text() for path in HEADER.parent.glob("*.cpp"))
    declared = dict(re.findall(r"^SOFTMAXIMA_KERNEL\((\w+), (\w+)\)", sources, re.MULTILINE))
    kernels = [map.kernel for map in REGISTRY.values() if map.kernel is not None and map.kernel.library is None]
    of_maps = {kernel.forward for kernel in kernels}, {kernel.backward for kernel in kernels}, {kernel.loss for kernel in kernels}
    of_sums = (
        {"logsumexp", "logsumexp_rest", "log_mean_exp", "logcumsumexp"},
        {"logsumexp_backward", "logcumsumexp_backward"},
        {None},
    )
    for kind, maps, sums in zip(("Forward", "Backward", "Loss"), of_maps, of_sums, strict=True):
        assert maps | sums == {name for name, its_kind in declared.items() if its_kind == kind} | (sums & {None})
    if native.AVAILABLE:
        exported = {f"softmaxima_{name}{end}" for name in declared for end in ("", "_takes")}
        names = exported | {
            f"softmaxima_{name}" for name in ("interface", "instruction_set", "prefer_large_pages", "listen", "raise")
        }
        assert all(hasattr(interface.LIBRARY, name) for name in names)
        if shutil.which("nm"):
            listed = subprocess.run(
                ["nm", "-D", "--defined-only", interface.LIBRARY._name], capture_output=True, text=True, check=True
            )
            assert {line.split()[-1] for line in listed.stdout.splitlines() if " T " in line} == names


@needs_library
@pytest.mark.exhaustive
@pytest.mark.skipif(not shutil.which("objdump"), reason="there is no disassembler")
def test_no_kernel_leaves_the_registers_of_long_doubles_to_mmx():
    command = ["objdump", "--disassemble", "--no-show-raw-insn", interface.LIBRARY._name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as listing:
        found = [line for line in listing.stdout if re.search(r"%mm[0-7]", line)]
    assert listing.returncode == 0
    assert found == []


@needs_library
@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("logsumexp_backward", "softmax"), "forward= must .* takes Forward, got 'logsumexp_backward', which takes Backward"),
        (("softmax", "sparsemax"), "backward= must .* takes Backward, got 'sparsemax', which takes Forward"),
    ],
)
def test_a_kernel_of_another_structure_is_refused(names: tuple[str, str], message: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kernel, "KERNELS", {})
    with pytest.raises(ValueError, match=message):
        _ = Kernel(*names).functions


# As operations ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REGISTRY)
def test_operations_are_well_behaved(name: str):
    map = REGISTRY[name]
    values = [float(parameter.default) if parameter.kind in (int, float) else parameter.default for parameter in map.params]
    if any(callable(value) for value in values):
        pytest.skip("a parameter that is a function makes no operation")
    params = [float(p.examples.index(v)) if isinstance(v, str) else v for p, v in zip(map.params, values, strict=True)]
    x, tau = normal(2, 3, 4).requires_grad_(), normal(2, 3, 1, seed=1).exp()
    for where, tensors, number in some(((None, [], 1.5), (x > -1, [], 1.0), (None, [tau], math.nan)), name):
        numbers = [number, *params]
        torch.library.opcheck(torch.ops.softmaxima.map.default, (map.key, x, where, tensors, numbers))
        p = torch.ops.softmaxima.map(map.key, x, where, tensors, numbers).detach()
        scores = x.detach() if map.uses_scores else None
        arguments = (map.key, p, normal(2, 3, 4, seed=2), scores, where, tensors, numbers)
        torch.library.opcheck(torch.ops.softmaxima.map_backward.default, arguments)


@needs_library
def test_operations_of_logsumexp_are_well_behaved():
    x, tau = normal(2, 3, 4), normal(2, 3, 1, seed=1).exp()
    for view in (x, x.movedim(0, -1).contiguous().movedim(-1, 0)):
        for where, taus in ((None, None), (x > -1, None), (None, tau)):
            torch.library.opcheck(torch.ops.softmaxima.logsumexp.default, (view, taus, 1.5, where))
            _, values = torch.ops.softmaxima.logsumexp(view, taus, 1.5, where)
            arguments = (view, values, normal(2, 3, seed=2), taus, 1.5, where)
            torch.library.opcheck(torch.ops.softmaxima.logsumexp_backward.default, arguments)


@needs_library
@pytest.mark.parametrize("gradient", [False, True])
def test_operation_of_losses_is_well_behaved(gradient: bool):
    x, labels, weight = normal(4, 5, 3).movedim(1, -1), torch.arange(12).view(4, 3) % 6 - 1, normal(5, seed=4).exp()
    for target, class_weight in ((labels, None), (labels, weight), (torch.softmax(x, -1), weight)):
        for name, alphas in (("softmax", []), ("entmax", [torch.full((4, 3, 1), 1.3, dtype=torch.float64)])):
            theta = alphas, [math.nan] * len(alphas)
            key = REGISTRY[name].kernel.key  # type: ignore[union-attr]
            arguments = (key, x, target, gradient, *theta, class_weight, 0.1, 0.25, name == "entmax")
            torch.library.opcheck(torch.ops.softmaxima.loss.default, arguments)


def test_operation_of_labels_is_well_behaved():
    torch.library.opcheck(torch.ops.softmaxima.labels_in_range.default, ("loss", torch.tensor([[0, 2], [1, 0]]).T, 3))


# Loading ---------------------------------------------------------------------------------------------------------------------


def test_reference_backend_loads_nothing_and_says_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SOFTMAXIMA_BACKEND", "reference")
    assert interface.load() is None


def test_unknown_backend_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SOFTMAXIMA_BACKEND", "fast")
    with pytest.raises(ValueError, match="must be native, reference or triton, got 'fast'"):
        interface.load()


@pytest.mark.parametrize("problem", ["absent", "unreadable", "of another version"])
def test_library_that_cannot_be_used_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, problem: str):
    monkeypatch.delenv("SOFTMAXIMA_BACKEND", raising=False)
    library = tmp_path / "libsoftmaxima.so"
    library.write_text("no library")
    monkeypatch.setattr(interface, "find_library", lambda folders: None if problem == "absent" else library)
    if problem == "of another version":
        other = type("Other", (), {"softmaxima_interface": staticmethod(lambda: INTERFACE + 1)})
        monkeypatch.setattr(ctypes, "CDLL", lambda path: other)
    reason = {
        "absent": "was not built",
        "unreadable": "libsoftmaxima",
        "of another version": f"interface {INTERFACE + 1}",
    }
    with pytest.warns(UserWarning, match=f"{reason[problem]}.*C\\+\\+ compiler") as said:
        assert interface.load() is None
    assert len(said) == 1


def test_library_is_found_beside_the_package(tmp_path: Path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "libsoftmaxima.so").touch()
    assert interface.find_library([str(tmp_path / "a"), str(tmp_path / "b")]) == tmp_path / "b" / "libsoftmaxima.so"
    assert interface.find_library([]) is None


def test_without_a_library_everything_works_after_one_warning():
    program = """
import pathlib, warnings
exists = pathlib.Path.exists
pathlib.Path.exists = lambda path, **options: path.name != "libsoftmaxima.so" and exists(path, **options)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    import torch, softmaxima as sm
    from softmaxima.kernels import interface
    assert not interface.AVAILABLE and interface.instruction_set() == "none"
    x = torch.randn(3, 5, requires_grad=True)
    for map in sm.maps.REGISTRY.values():
        map(x.abs() + 0.1).sum().backward()
    sm.logsumexp(x).sum().backward()
    for loss in sm.losses.REGISTRY.values():
        loss.function(x.tanh(), torch.tensor([0, 1, 2]), **loss.examples[0]).backward()
    assert bool(x.grad.isfinite().all())
print([str(warning.message) for warning in said if "native library" in str(warning.message)])
"""
    environment = {name: value for name, value in os.environ.items() if name != "SOFTMAXIMA_BACKEND"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("runs without its native library") == 1


@pytest.mark.parametrize("alpha", [2.5, 10.0, 20.0, 50.0, 100.0])
@pytest.mark.parametrize("kind", [torch.float64, torch.float32])
def test_entmax_of_scores_that_are_nearly_equal_sums_to_one(alpha: float, kind: torch.dtype):
    smallest = 300 if kind == torch.float64 else 37
    for n in (2, 20, 130, 1500):
        for exponent in range(0, smallest, 6):
            x = torch.arange(n, dtype=kind) * 10.0**-exponent
            p = sm.entmax(x, alpha=alpha)
            assert float(p.double().sum()) == pytest.approx(1.0, abs=1e-5 if kind == torch.float32 else 1e-9)
            assert bool((p.diff() >= 0).all())
