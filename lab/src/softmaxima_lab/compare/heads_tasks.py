"""What tasks of a comparison of heads have in common: what is asked of a head, what it is taught, and what it reached."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from softmaxima_lab.compare import engine
from softmaxima_lab.compare.engine import Reached
from softmaxima_lab.compare.heads_layers import Layer
from softmaxima_lab.compare.heads_plan import Head


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


class Task(engine.Task, Protocol):
    """What is learnt."""

    @property
    def candidates(self) -> tuple[Head, ...]: ...
    @property
    def rows(self) -> int: ...  # to train on, at least
    @property
    def is_large(self) -> bool: ...  # of so many classes that the head is most of the time and memory
    def lesson(self, seed: int) -> Lesson: ...
