"""Maps, losses, and logsumexp with its relatives: what is measured of them, on which problems."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

import softmaxima as sm
from softmaxima.base.numbers import InputError
from softmaxima.losses import REGISTRY as LOSSES
from softmaxima.losses import Loss
from softmaxima.maps import REGISTRY as MAPS
from softmaxima.maps import Map
from softmaxima_lab.bench.case import BACKWARD, FORWARD
from softmaxima_lab.bench.sums import STEPS, SUMS, Sum

Variant = Literal["plain", "masked", "tempered", "smoothed", "ignored", "soft"]
IGNORED = -100  # a label


@dataclass(frozen=True)
class OneARow:
    """An option that is a tensor of random numbers, one a row."""

    low: float
    high: float

    def __str__(self) -> str:
        return "one a row"


# Options other than a function's defaults, each set a subject of its own. entmax15 is entmax at its default.
OPTIONS: dict[str, tuple[dict[str, Any], ...]] = {
    "entmax": ({"alpha": 1.3}, {"alpha": OneARow(1.1, 1.9)}),
    "entmax_loss": ({"alpha": 1.3},),
    "sparse_softmax_loss": ({"k": 10},),
}


@dataclass(frozen=True, eq=False)
class Subject:
    """A map, a sum or a loss: `function(x, axis, *operands, **options)`, of a loss `function(x, target, **options)`."""

    name: str
    entry: Map | Sum | Loss
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The name, with the options that are not the function's defaults."""
        return " ".join([self.name, *(f"{name}={value}" for name, value in self.options.items())])

    @property
    def kind(self) -> Literal["map", "sum", "loss"]:
        return "map" if isinstance(self.entry, Map) else "sum" if isinstance(self.entry, Sum) else "loss"

    @property
    def map(self) -> Map | None:
        """The map itself; of a loss the one that its gradient is made of."""
        if isinstance(self.entry, Loss):
            name = self.options.get("map", self.entry.map)
            return None if name is None else MAPS[name]
        return self.entry if isinstance(self.entry, Map) else None

    @property
    def has_kernel(self) -> bool:
        """Whether a kernel computes it on every device, rather than torch's operations."""
        if isinstance(self.entry, Sum):
            return self.entry.has_kernel
        kernel = None if self.map is None else self.map.kernel
        return kernel is not None and kernel.on_gpus and (self.kind == "map" or kernel.loss is not None)

    @property
    def is_selection(self) -> bool:
        """Whether it keeps some of equal scores, which is a matter of choice."""
        claims = None if self.map is None else self.map.properties
        return claims is not None and claims.sparse and claims.shift_invariant and not claims.continuous

    @property
    def directions(self) -> tuple[str, ...]:
        return (FORWARD,) if isinstance(self.entry, Sum) and not self.entry.differentiable else (FORWARD, BACKWARD)

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The problems that its kernel is checked on beside the plain one."""
        if isinstance(self.entry, Loss):
            return () if self.entry.zero_at_target else ("smoothed", "ignored", "soft")
        return ("masked", "tempered")

    def __call__(self, given: Problem, **more: Any) -> Any:
        if isinstance(self.entry, Map):
            function = getattr(sm, self.name, self.entry)
            return function(given.x, dim=given.arguments[0], **given.options, **more)
        return self.entry.function(given.x, *given.arguments, **given.options, **more)


def subjects() -> dict[str, Subject]:
    """All of them by their titles: logsumexp and its relatives, the registered maps, and the registered losses."""
    entries = {**SUMS, **MAPS, **LOSSES}
    found = (Subject(name, entry, options) for name, entry in entries.items() for options in OPTIONS.get(name, ({},)))
    return {subject.title: subject for subject in found}


def choose(names: Sequence[str], device: str = "cpu") -> list[Subject]:
    """The subjects of these names; no names: all, on a GPU all that have a kernel. Case, spaces and punctuation do not count."""

    def plain(name: str) -> str:
        return "".join(letter for letter in name.lower() if letter.isalnum())

    offered, wanted = subjects().values(), {plain(name) for name in names}
    known = {plain(subject.name): subject.name for subject in offered}
    if unknown := [name for name in names if plain(name) not in known]:
        raise InputError(f"CASES: there is no group, map, loss or sum {unknown[0]!r}; choose among: {', '.join(known.values())}")
    return [s for s in offered if (plain(s.name) in wanted if names else device == "cpu" or s.has_kernel)]


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
    def scores(self) -> int:
        return math.prod(self.sizes)

    @property
    def rows(self) -> int:
        return self.scores // self.n

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
            f"`shapes`: {text!r} is not a shape; write sizes joined by x, and @axis for another axis than the last: "
            "256x32000 or 32000x4096@0"
        )
    sizes = tuple(int(size) for size in written[1].split("x"))
    if 0 in sizes:
        raise InputError(f"`shapes`: every size must be at least 1, got {text!r}")
    axis = int(written[2] or -1)
    if not -len(sizes) <= axis < len(sizes):
        raise InputError(f"`shapes`: the axis of {text!r} must be in [{-len(sizes)}, {len(sizes) - 1}]")
    return Shape(sizes, axis % len(sizes))


@dataclass(frozen=True, eq=False)
class Problem:
    """Scores, and what goes with them: the axis and perhaps an operand, for a loss the target. `upstream` is None for a loss.

    `seed` chooses the rows that are looked at: another one for each subject and shape.
    """

    shape: Shape
    x: Tensor
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]
    upstream: Tensor | None
    seed: int = 0

    def rows_of(self, values: Tensor) -> Tensor:
        """[rows, n] of what has the shape of x, [rows, 1] of one value a row."""
        alike = values.shape == self.x.shape
        return values.movedim(self.shape.axis, -1).reshape(-1, self.shape.n) if alike else values.reshape(-1, 1)

    def to(self, device: str) -> Problem:
        return self._with(lambda value: value.to(device))

    def with_rows(self, order: Tensor) -> Problem:
        """The same, with its rows in another order."""

        def ordered(values: Tensor) -> Tensor:
            if values.shape == self.x.shape:
                ends = values.movedim(self.shape.axis, -1).shape
                return self.rows_of(values)[order].reshape(ends).movedim(-1, self.shape.axis).contiguous()
            return values.reshape(-1)[order].reshape(values.shape) if values.numel() == self.shape.rows else values

        return self._with(ordered)

    def _with(self, changed: Callable[[Tensor], Tensor]) -> Problem:
        def each(value: Any) -> Any:
            return changed(value) if isinstance(value, Tensor) else value

        arguments, options = tuple(map(each, self.arguments)), {name: each(value) for name, value in self.options.items()}
        return Problem(self.shape, each(self.x), arguments, options, each(self.upstream), self.seed)

    def with_own_scores(self) -> Problem:
        """The same, with scores that may be overwritten."""
        return replace(self, x=self.x.clone())


def problem(
    subject: Subject,
    shape: Shape,
    dtype: torch.dtype,
    device: str = "cpu",
    variant: Variant = "plain",
    scale: float = 1.0,
    seed: int = 0,
) -> Problem:
    """N(0, scale²) scores, 0.9 tanh of them where they must be cosines, random labels or operands, N(0, 1) upstream gradients.

    Masked: a third of the scores, and all of the first row.
    """
    generator = torch.Generator(device).manual_seed(seed)
    looked_at = zlib.crc32(f"{seed} {subject.title} {shape} {dtype} {variant}".encode())

    def normal(sizes: Sequence[int]) -> Tensor:
        return torch.randn(list(sizes), generator=generator, device=device)

    def uniform(low: float, high: float, sizes: Sequence[int]) -> Tensor:
        return low + (high - low) * torch.rand(list(sizes), generator=generator, device=device)

    one_a_row = [1 if axis == shape.axis else size for axis, size in enumerate(shape.sizes)]
    rows = [size for axis, size in enumerate(shape.sizes) if axis != shape.axis]
    x, entry = scale * normal(shape.sizes), subject.entry
    options: dict[str, Any] = {
        name: uniform(value.low, value.high, one_a_row).to(dtype) if isinstance(value, OneARow) else value
        for name, value in subject.options.items()
    }
    if variant == "masked":
        options["where"] = uniform(0.0, 1.0, shape.sizes) < 2 / 3
        options["where"].movedim(shape.axis, -1)[(0,) * len(rows)] = False
    elif variant == "tempered":
        options["temperature"] = uniform(0.5, 2.0, one_a_row).to(dtype)
    elif variant == "smoothed":
        options["label_smoothing"] = 0.1
    if isinstance(entry, Loss):
        x = 0.9 * x.tanh() if entry.on_cosines else x  # at ±1 an angle has no derivative
        target = torch.randint(shape.n, rows, generator=generator, device=device)
        likely = uniform(0.0, 1.0, rows) < 0.75  # or labels of long rows would never be in a support
        target = torch.where(likely, x.argmax(shape.axis), target)
        if variant == "soft":
            target = normal(shape.sizes).softmax(shape.axis)
        elif variant == "ignored":
            target[::3] = IGNORED
        return Problem(shape, x.to(dtype), (target,), options, None, looked_at)
    of_rows = isinstance(entry, Sum) and entry.gives == "row"
    upstream, operands = normal(rows if of_rows else shape.sizes).to(dtype), ()
    if isinstance(entry, Sum) and entry.quantised:
        x, operands = (STEPS * x).round().clamp(-128, 127).to(torch.int8), (torch.tensor(1 / STEPS, dtype=dtype, device=device),)
    elif isinstance(entry, Sum) and entry.operand is not None:
        operands = (entry.operand(normal(shape.sizes)).to(dtype),)
    return Problem(shape, x if x.dtype == torch.int8 else x.to(dtype), (shape.axis, *operands), options, upstream, looked_at)


Computed = tuple[Any, Tensor | None]  # the value, and the gradient by the scores where the direction has one


def call(function: Callable[[Problem], Any], given: Problem, direction: str) -> Callable[[], Computed]:
    """What is checked and timed. Gradients must be enabled for all but forward."""
    if direction == FORWARD:
        return lambda: (function(given), None)
    x = given.x.detach().requires_grad_()
    learning = replace(given, x=x)
    if direction != BACKWARD:
        return lambda: (function(learning), None)

    def both() -> Computed:
        value = function(learning)
        return value, torch.autograd.grad(value, x, given.upstream)[0]

    return both


def compulsory_bytes(subject: Subject, shape: Shape, direction: str, size: int) -> int:
    """Inputs read once and outputs written once, in bytes, for elements of `size` bytes and labels of 8."""
    backward = direction == BACKWARD
    if subject.kind == "map":  # x → p, and g → ∂x
        return shape.scores * size * (4 if backward else 2)
    scores = shape.scores * size * (2 if backward else 1)  # x, and ∂x
    if isinstance(subject.entry, Sum):  # an operand as large as x, the result, and g
        scores = shape.scores if subject.entry.quantised else scores
        operand = shape.scores * size if subject.entry.operand is not None else 0
        results = shape.scores if subject.entry.gives == "score" else shape.rows
        return scores + operand + results * size * (2 if backward else 1)
    return scores + shape.rows * 8 + size  # the labels, and the loss
