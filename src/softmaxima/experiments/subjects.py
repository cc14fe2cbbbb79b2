"""What a benchmark measures: a map, a loss, or one of logsumexp and its relatives, on scores of a shape."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

import softmaxima as sm
from softmaxima.experiments import InputError
from softmaxima.experiments.sums import STEPS, SUMS, Sum
from softmaxima.losses import REGISTRY as LOSSES
from softmaxima.losses import Loss
from softmaxima.maps import REGISTRY as MAPS
from softmaxima.maps import Map

Direction = Literal["forward", "forward+backward"]
DIRECTIONS: tuple[Direction, ...] = ("forward", "forward+backward")

# Options other than a function's defaults. entmax15 is entmax at its default.
OPTIONS: dict[str, dict[str, Any]] = {
    "entmax": {"alpha": 1.3},
    "entmax_loss": {"alpha": 1.3},
    "sparse_softmax_loss": {"k": 10},
}


@dataclass(frozen=True, eq=False)
class Subject:
    """A map, a sum or a loss. `function(x, axis, *operands)`, for a loss `function(x, target)`, computes it."""

    name: str
    kind: Literal["map", "sum", "loss"]
    function: Callable[..., Any]
    options: Mapping[str, Any]
    entry: Map | Sum | Loss

    @property
    def title(self) -> str:
        """The name, with the options that are not the function's defaults."""
        return " ".join([self.name, *(f"{name}={value}" for name, value in self.options.items())])

    @property
    def on_cosines(self) -> bool:
        return isinstance(self.entry, Loss) and self.entry.on_cosines

    @property
    def directions(self) -> tuple[Direction, ...]:
        """Those that are measured."""
        return DIRECTIONS[:1] if isinstance(self.entry, Sum) and not self.entry.differentiable else DIRECTIONS

    def __call__(self, x: Tensor, *arguments: Any) -> Any:
        return self.function(x, *arguments, **self.options)


def subjects() -> dict[str, Subject]:
    """All of them: logsumexp and its relatives, the registered maps, and the registered losses."""

    def subject(name: str, kind: Literal["map", "sum", "loss"], function: Callable[..., Any], entry: Map | Sum | Loss) -> Subject:
        return Subject(name, kind, function, OPTIONS.get(name, {}), entry)

    sums = {name: subject(name, "sum", sum.function, sum) for name, sum in SUMS.items()}
    maps = {name: subject(name, "map", getattr(sm, name, map), map) for name, map in MAPS.items()}
    losses = {name: subject(name, "loss", loss.function, loss) for name, loss in LOSSES.items()}
    return {**sums, **maps, **losses}


def choose(names: Sequence[str]) -> tuple[Subject, ...]:
    """The subjects of these names; no names: all. Case, spaces and punctuation do not count."""
    offered = subjects()
    for name in names:
        if _plain(name) not in map(_plain, offered):
            raise InputError(f"--maps: there is no map, loss or sum {name!r}; choose among: {', '.join(offered)}")
    wanted = {_plain(name) for name in names}
    return tuple(subject for name, subject in offered.items() if _plain(name) in wanted or not names)


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


@dataclass(frozen=True)
class Shape:
    """The sizes of a tensor of scores, and the axis that a row lies along."""

    sizes: tuple[int, ...]
    axis: int

    @property
    def n(self) -> int:
        """Scores of a row."""
        return self.sizes[self.axis]

    @property
    def rows(self) -> int:
        return self.scores // self.n

    @property
    def scores(self) -> int:
        return math.prod(self.sizes)

    @property
    def takes_losses(self) -> bool:
        """Whether it is (rows, classes), as losses have it."""
        return len(self.sizes) == 2 and self.axis == 1

    def __str__(self) -> str:
        return "x".join(map(str, self.sizes)) + (f"@{self.axis}" if self.axis != len(self.sizes) - 1 else "")


def read_shape(text: str) -> Shape:
    """The shape written as sizes joined by x, and @axis for another axis than the last.

    >>> read_shape("32000x4096@0")
    Shape(sizes=(32000, 4096), axis=0)
    """
    written = re.fullmatch(r"(\d+(?:x\d+)*)(?:@(-?\d+))?", text.strip().lower(), re.ASCII)
    if written is None:
        raise InputError(
            f"--shapes: {text!r} is not a shape; write sizes joined by x, and @axis for another axis than the last: "
            "256x32000 or 32000x4096@0"
        )
    sizes = tuple(int(size) for size in written[1].split("x"))
    if 0 in sizes:
        raise InputError(f"--shapes: every size must be at least 1, got {text!r}")
    axis = int(written[2] or -1)
    if not -len(sizes) <= axis < len(sizes):
        raise InputError(f"--shapes: the axis of {text!r} must be in [{-len(sizes)}, {len(sizes) - 1}]")
    return Shape(sizes, axis % len(sizes))


@dataclass(frozen=True, eq=False)
class Problem:
    """Scores, and what goes with them: the axis and perhaps an operand, for a loss the target. `upstream` is None for a loss."""

    shape: Shape
    x: Tensor
    arguments: tuple[Any, ...]
    upstream: Tensor | None


def problem(subject: Subject, shape: Shape, dtype: torch.dtype, seed: int) -> Problem:
    """N(0, 1) scores, 0.9 tanh of them where they must be cosines, random labels or operands, and an N(0, 1) upstream gradient."""
    generator = torch.Generator().manual_seed(seed)
    x = normal(shape, shape.sizes, generator, dtype)
    if not isinstance(subject.entry, Loss):
        of_rows = isinstance(subject.entry, Sum) and subject.entry.gives == "row"
        sizes = [size for axis, size in enumerate(shape.sizes) if not (of_rows and axis == shape.axis)]
        upstream = normal(shape, sizes, generator, dtype)
        if not isinstance(subject.entry, Sum):
            return Problem(shape, x, (shape.axis,), upstream)
        if subject.entry.quantised:
            x = (STEPS * x).round().clamp(-128, 127).to(torch.int8)
            return Problem(shape, x, (shape.axis, torch.tensor(1 / STEPS, dtype=dtype)), upstream)
        operand = subject.entry.operand
        operands = () if operand is None else (operand(normal(shape, shape.sizes, generator, dtype)),)
        return Problem(shape, x, (shape.axis, *operands), upstream)
    if subject.on_cosines:
        x = x.tanh() * 0.9  # at ±1 an angle has no derivative
    rows = [size for axis, size in enumerate(shape.sizes) if axis != shape.axis]
    return Problem(shape, x, (torch.randint(shape.n, rows, generator=generator),), None)


def normal(shape: Shape, sizes: Sequence[int], generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    try:
        return torch.randn(list(sizes), generator=generator).to(dtype)
    except (RuntimeError, TypeError, OverflowError):
        raise InputError(f"--shapes: {shape} does not fit in memory; take smaller sizes") from None


def call(function: Callable[..., Any], given: Problem, direction: Direction) -> Callable[[], Any]:
    """What is timed: the result, or (result, gradient). Gradients must be enabled for the latter only."""
    if direction == "forward":
        return lambda: function(given.x, *given.arguments)
    x = given.x.detach().requires_grad_()

    def both() -> tuple[Tensor, Tensor]:
        value = function(x, *given.arguments)
        return value, torch.autograd.grad(value, x, given.upstream)[0]

    return both


def of_target(values: Tensor, target: Tensor) -> Tensor:
    """[rows, classes], [rows] → [rows]"""
    return values.gather(1, target[:, None]).squeeze(1)
