"""What the GPU benchmark computes, and on which scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

import softmaxima as sm
from softmaxima.experiments.subjects import Direction
from softmaxima.losses import REGISTRY as LOSSES
from softmaxima.maps import REGISTRY as MAPS
from softmaxima.maps import Map

Variant = Literal["plain", "masked", "tempered", "smoothed", "ignored", "soft"]
ONE_A_ROW = "one a row"  # the option of a parameter that is a tensor
IGNORED = -100


@dataclass(frozen=True, eq=False)
class Subject:
    """A map, logsumexp or a loss, with options other than its defaults."""

    name: str
    kind: Literal["map", "sum", "loss"]
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return " ".join([self.name, *(f"{name}={value}" for name, value in self.options.items())])

    @property
    def kernels(self) -> str:
        """What it shares with those that run the same kernels."""
        return " ".join([self.name, *filter(None, [self.options.get("map")])])

    @property
    def directions(self) -> tuple[Direction, ...]:
        """What is measured: losses compute their gradient in the same pass."""
        return ("forward+backward",) if self.kind == "loss" else ("forward", "forward+backward")

    @property
    def map(self) -> Map:
        """The map itself; of a sum or a loss the one that its gradient is made of."""
        if self.kind == "map":
            return MAPS[self.name]
        return MAPS[self.options.get("map") or (LOSSES[self.name].map if self.kind == "loss" else None) or "softmax"]

    @property
    def is_selection(self) -> bool:
        """Whether it keeps some of equal scores, which is a matter of choice."""
        return self.map.name in ("topk_softmax", "topp_softmax")

    def params(self, options: Mapping[str, Any]) -> dict[str, Any]:
        return self.map.complete({p.name: options[p.name] for p in self.map.params if p.name in options})

    @property
    def function(self) -> Callable[..., Any]:
        if self.kind == "map":
            return self.map
        return sm.logsumexp if self.kind == "sum" else LOSSES[self.name].function

    def __call__(self, x: Tensor, given: Problem) -> Tensor:
        return self.function(x, *given.target, **given.options)

    def bytes(self, rows: int, n: int, size: int, direction: Direction) -> int:
        """What an ideal kernel moves for elements of `size` bytes: x → p and p, g → ∂x, where ∂x needs x also that; of
        logsumexp x → LSE and x, LSE, g → ∂x; of a loss x and the labels → ∂x.
        """
        backward = direction == "forward+backward"
        scores = rows * n * size
        if self.kind == "loss":
            return 2 * scores + 8 * rows
        if self.kind == "sum":
            return scores + rows * size + (2 * scores + 2 * rows * size if backward else 0)
        return scores * (2 + (3 + self.map.uses_scores if backward else 0))


# What is measured, the most important first.
SUBJECTS = {
    subject.title: subject
    for subject in (
        Subject("softmax", "map"),
        Subject("logsumexp", "sum"),
        Subject("cross_entropy", "loss"),
        Subject("sparsemax", "map"),
        Subject("entmax15", "map"),
        Subject("log_softmax", "map"),
        Subject("entmax", "map", {"alpha": 1.25}),
        Subject("sparsemax_loss", "loss"),
        Subject("entmax15_loss", "loss"),
        Subject("topk_softmax", "map"),
        Subject("topp_softmax", "map"),
        Subject("entmax_loss", "loss", {"alpha": 1.25}),
        Subject("elastic_softmax", "map"),
        Subject("rectified_softmax", "map"),
        Subject("taylor_softmax", "map"),
        Subject("entmax", "map", {"alpha": ONE_A_ROW}),
    )
}


def checked() -> Iterator[tuple[Subject, ...]]:
    """Every map with a kernel at the examples of its parameters, logsumexp, cross-entropy, and the Fenchel–Young losses; what
    shares its kernels together, so that they are compiled once.
    """
    yield (Subject("logsumexp", "sum"),)
    yield (Subject("cross_entropy", "loss"),)
    for map in MAPS.values():
        if map.kernel is None:
            continue
        examples = [{p.name: value} for p in map.params for value in p.examples] or [{}]
        yield tuple(Subject(map.name, "map", options) for options in examples)
        if map.regulariser is not None and map.kernel.loss is not None:
            yield tuple(Subject("fenchel_young_loss", "loss", {"map": map.name, **options}) for options in examples)


def variants(subject: Subject) -> tuple[Variant, ...]:
    """The problems that it is checked on beside the plain one."""
    if subject.name == "cross_entropy":
        return ("smoothed", "ignored", "soft")
    return () if subject.kind == "loss" else ("masked", "tempered")


# The scores -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Problem:
    """Scores [rows, n] and what goes with them; `upstream` is None for a loss, and `target` empty for anything else."""

    x: Tensor
    upstream: Tensor | None
    target: tuple[Tensor, ...]
    options: dict[str, Any]

    def to(self, device: str) -> Problem:
        def moved(value: Any) -> Any:
            return value.to(device) if isinstance(value, Tensor) else value

        options = {name: moved(value) for name, value in self.options.items()}
        return Problem(moved(self.x), moved(self.upstream), tuple(map(moved, self.target)), options)

    def with_own_scores(self) -> Problem:
        """The same, with scores that may be overwritten."""
        return replace(self, x=self.x.clone())


def problem(
    subject: Subject,
    rows: int,
    n: int,
    dtype: torch.dtype,
    device: str,
    variant: Variant = "plain",
    scale: float = 1.0,
    seed: int = 0,
) -> Problem:
    """Scores N(0, scale²), N(0, 1) upstream gradients, random labels. Masked: a third of the scores, and all of the first row."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator, device=device)

    def uniform(low: float, high: float, *sizes: int) -> Tensor:
        return low + (high - low) * torch.rand(sizes, generator=generator, device=device)

    x = (scale * normal(rows, n)).to(dtype)
    options = {
        name: uniform(1.1, 1.9, rows, 1).to(dtype) if value == ONE_A_ROW else value for name, value in subject.options.items()
    }
    if variant == "masked":
        where = uniform(0.0, 1.0, rows, n) < 2 / 3
        where[0] = False
        options["where"] = where
    elif variant == "tempered":
        options["temperature"] = uniform(0.5, 2.0, rows, 1).to(dtype)
    elif variant == "smoothed":
        options["label_smoothing"] = 0.1
    if subject.kind != "loss":
        return Problem(x, normal(*((rows,) if subject.kind == "sum" else (rows, n))).to(dtype), (), options)
    if variant == "soft":
        return Problem(x, None, (normal(rows, n).softmax(-1),), options)
    labels = torch.randint(n, (rows,), generator=generator, device=device)
    if variant == "ignored":
        labels[::3] = IGNORED
    return Problem(x, None, (labels,), options)


Computed = tuple[Tensor, Tensor | None]  # the value, and the gradient by the scores where the direction has one


def call(function: Callable[[Tensor, Problem], Tensor], given: Problem, direction: Direction) -> Callable[[], Computed]:
    """What is checked and timed. Gradients must be enabled for forward+backward only."""
    if direction == "forward":
        return lambda: (function(given.x, given), None)
    x = given.x.detach().requires_grad_()

    def both() -> Computed:
        value = function(x, given)
        return value.detach(), torch.autograd.grad(value, x, given.upstream)[0]

    return both
