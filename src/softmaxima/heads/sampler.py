r"""Samplers: distributions Q over classes, from which negatives are drawn, and whose logarithms correct what that does to a loss.

A sampler draws classes independently and with replacement, and knows log Q of each, normalised and in float64. What a loss makes
of it is in `corrections.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from softmaxima.base.arguments import as_tensor
from softmaxima.base.numbers import check_count, check_int
from softmaxima.base.public import public
from softmaxima.base.randomness import Randomness, as_torch_generator
from softmaxima.base.tracing import is_concrete
from softmaxima.heads.frequencies import KeepsDouble


@runtime_checkable
class AnySampler(Protocol):
    """What a loss asks of a sampler: a `Sampler`, or any object with these names."""

    classes: int

    def log_prob(self, classes: Tensor) -> Tensor: ...

    def sample(self, shape: Sequence[int], generator: Any = None) -> Tensor: ...


@public
class Sampler(KeepsDouble, ABC):
    """A distribution Q over the classes 0, …, classes − 1.

    Subclasses say `log_prob` and `sample`; one that learns says `observe(target)` too, which a head in training mode calls with
    the labels of each batch before it draws. Wherever a sampler is taken, an object of any class will do that has `classes`,
    `log_prob` and `sample`. It moves with the module that holds it, but its tables keep float64 whatever that is cast to: log Q
    stays exact.

    >>> import torch, softmaxima as sm
    >>> class Even(sm.Sampler):
    ...     def log_prob(self, classes):
    ...         return torch.where(classes % 2 == 0, 2 / self.classes, 0.0).double().log()
    ...     def sample(self, shape, generator=None):
    ...         return 2 * torch.randint(self.classes // 2, shape, generator=generator)
    >>> Even(10).log_prob(torch.tensor([4, 5])).exp()
    tensor([0.2000, 0.0000], dtype=torch.float64)
    """

    place: Tensor

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = check_count(type(self).__name__, "classes", classes)
        self.register_buffer(
            "place", torch.empty(0, device="cpu"), persistent=False
        )  # moves with the module, and so tells where to draw

    @abstractmethod
    def log_prob(self, classes: Any) -> Tensor:
        """Log Q(c) in float64, of each of `classes`, integers of any shape; −∞ where a class is never drawn."""

    @abstractmethod
    def sample(self, shape: int | Sequence[int], generator: Randomness = None) -> Tensor:
        """Classes of Q, int64, independent and with replacement. `shape` is n for (n,), or several sizes: () for a 0-d tensor."""

    def extra_repr(self) -> str:
        return f"classes={self.classes}"

    def _checked(self, classes: Any) -> Tensor:
        return check_classes(type(self).__name__, "classes", classes, self.classes, "class")

    def _uniform(self, shape: int | Sequence[int], generator: Randomness, numbers: int | None = None) -> Tensor:
        """Numbers of [0, 1), float64, drawn where the generator is; one for each place of a shape, or so many."""
        name = type(self).__name__
        axes = check_shape(name, shape) if numbers is None else (numbers, *check_shape(name, shape))
        source = as_torch_generator(name, generator)
        if source is None:
            return torch.rand(axes, dtype=torch.float64, device=self.place.device)
        return torch.rand(axes, dtype=torch.float64, device=source.device, generator=source).to(self.place.device)


def check_shape(name: str, shape: Any) -> tuple[int, ...]:
    """Of draws: an int, or several."""
    domain = "an int, or a tuple of ints, of at least 0"
    return tuple(
        size if type(size) is int and 0 <= size < 2**63 else check_int(name, "shape", size, lambda count: count >= 0, domain)
        for size in (shape if isinstance(shape, (tuple, list)) else (shape,))
    )


def check_classes(name: str, what: str, values: Any, classes: int, kind: str, repair: str = "") -> Tensor:
    """Indices of classes, int64, each of which is a `kind`."""
    given = as_tensor(name, what, values)
    if given.is_floating_point() or given.is_complex() or given.dtype == torch.bool:
        raise TypeError(f"{name}: {what} must hold class indices, got {given.dtype}; call {what}.long()")
    indices = given.long()
    if is_concrete(indices) and bool((wrong := (indices < 0) | (indices >= classes)).any()):
        repair = repair or f"give one of 0, …, {classes - 1}"
        raise IndexError(f"{name}: {kind} {int(indices[wrong][0])} is out of range for {classes} classes; {repair}")
    return indices


def inverse(cumulative: Tensor, u: Tensor) -> Tensor:
    """The class c with Σ_{j<c} w_j ≤ u Σ_j w_j < Σ_{j≤c} w_j, one of a positive weight for every u in [0, 1]."""
    total = cumulative[-1]
    found = torch.searchsorted(cumulative, u * total, right=True)
    return torch.minimum(found, torch.searchsorted(cumulative, total))
