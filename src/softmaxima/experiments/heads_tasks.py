"""What tasks of a comparison of heads have in common: what is asked of a head, what it is taught, and what it reached."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor, nn

from softmaxima.experiments.differences import means_of_batches
from softmaxima.experiments.heads_layers import Layer
from softmaxima.experiments.heads_plan import Head
from softmaxima.experiments.measures import Metric


@dataclass(frozen=True)
class Reached:
    """What a head is like on held-out rows."""

    means: Mapping[str, float]  # of each measure
    batches: Mapping[str, tuple[float, ...]]  # of those that are means over rows, the means of rows that follow one another
    rows: Mapping[str, int]  # of how many
    drawn: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # what figures show


def reached(
    of_rows: Mapping[str, Tensor], besides: Mapping[str, float] | None = None, drawn: Mapping[str, Sequence[float]] | None = None
) -> Reached:
    """The means of what each row has, with measures that are no means over rows."""
    rows = {name: values.double().tolist() for name, values in of_rows.items()}
    return Reached(
        means={**{name: float(of_rows[name].double().mean()) for name in rows}, **(besides or {})},
        batches={name: means_of_batches(values) for name, values in rows.items()},
        rows={name: len(values) for name, values in rows.items()},
        drawn={name: tuple(values) for name, values in (drawn or {}).items()},
    )


@dataclass(frozen=True)
class Question:
    """What is asked of a head: by which metric, of which measure, and what a head must be better than to have learnt anything."""

    title: str
    metric: Metric  # whose attribute is one of a result
    measure: str  # of `Reached`, a mean over rows
    bar: str
    why: str  # what follows where no head is better than that
    value: Callable[[float], float] = float  # of the metric, given that of the measure
    weighs_time: bool = False  # so that it is told what is faster
    compares_all_the_same: bool = False  # where no head is better than the bar, heads may still differ for a reason


@dataclass(frozen=True)
class Lesson:
    """What is taught with one seed, and how what was learnt is marked."""

    x: Tensor  # to train on, [rows, …]
    y: Tensor
    counts: Tensor  # how often each class is in it
    body: Callable[[], nn.Module]  # untrained, whose outputs are the features
    features: int
    marks: Callable[[nn.Module, Layer], Reached]
    bars: Callable[[], Mapping[str, Reached]]


class Task(Protocol):
    """What is learnt."""

    @property
    def name(self) -> str: ...
    @property
    def heading(self) -> str: ...  # the name, as words begin
    @property
    def title(self) -> str: ...
    @property
    def heads(self) -> tuple[Head, ...]: ...
    @property
    def questions(self) -> tuple[Question, ...]: ...
    @property
    def rows(self) -> int: ...  # to train on, at least
    @property
    def batch(self) -> int: ...
    @property
    def rate(self) -> float: ...
    @property
    def model(self) -> str: ...  # in words
    @property
    def notes(self) -> tuple[str, ...]: ...
    @property
    def doubt(self) -> str: ...  # why what is held out says less than it seems, or nothing
    @property
    def is_large(self) -> bool: ...  # of so many classes that the head is most of the time and memory
    @property
    def digest(self) -> str: ...  # of all data
    def lesson(self, seed: int) -> Lesson: ...


def digest(*parts: Tensor) -> str:
    """Of tensors."""
    found = hashlib.sha256()
    for part in parts:
        found.update(repr((part.shape, part.dtype)).encode())
        found.update(part.contiguous().numpy().data)
    return found.hexdigest()[:16]
