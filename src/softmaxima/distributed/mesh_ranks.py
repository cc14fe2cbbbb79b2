"""The ranks that share a DTensor: those along some axes of a mesh."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from softmaxima.base.tracing import is_concrete
from softmaxima.distributed.ranks import Ranks, check_transforms, ranks_of


@dataclass(frozen=True)
class MeshRanks:
    """The processes along some axes of a mesh, in the order in which they have a tensor that is sharded along all of these.

    What they have is known from its placements. Values are not read: ranks with other rows would not learn of an error.
    """

    axes: tuple[Ranks, ...]

    @property
    def rank(self) -> int:
        return functools.reduce(lambda place, ranks: place * ranks.size + ranks.rank, self.axes, 0)

    @property
    def size(self) -> int:
        return math.prod(ranks.size for ranks in self.axes)

    @contextmanager
    def working(self, name: str) -> Iterator[None]:
        """As of the ranks along each axis."""
        with contextlib.ExitStack() as stack:
            for ranks in self.axes:
                stack.enter_context(ranks.working(name))
            yield

    @property
    def is_alone(self) -> bool:
        """Whether ranks along an axis are not there."""
        return all(ranks.is_alone for ranks in self.axes)

    def agree(self, name: str, same: Mapping[str, str]) -> None:
        """Raises RanksError on all where `same` differs among them; one that has nothing to say is waited for until the timeout."""
        for ranks in self.axes:
            ranks.agree(name, 0, same)

    def gather(self, name: str, message: Tensor) -> list[Tensor]:
        """The message of each rank, all of one shape, in their order; by one collective an axis."""
        if not self.axes:
            return [message]
        *outer, inner = self.axes
        every = torch.stack(inner.gather(name, message))
        return [each for part in MeshRanks(tuple(outer)).gather(name, every) for each in part]

    def total(self, name: str, values: Tensor) -> Tensor:
        """The sum of the values of all ranks, the same to the last bit on each."""
        return torch.stack(self.gather(name, values)).sum(0)


AnyRanks = Ranks | MeshRanks


def reads_values(ranks: AnyRanks, x: Tensor) -> TypeGuard[Ranks]:
    """Whether scores that are no numbers, and labels of no class, are looked for and told, which would wait for a GPU."""
    return isinstance(ranks, Ranks) and x.is_cpu and not (ranks.is_alone and ranks.size > 1)


def reads_labels(ranks: AnyRanks, labels: Tensor) -> bool:
    """Whether it is looked up which rows count: not where a compiler looks on, or a GPU would wait."""
    return is_concrete(labels) and not (ranks.is_alone and ranks.size > 1)


def ranks_along(name: str, mesh: DeviceMesh, axes: Iterable[int]) -> MeshRanks:
    """The ranks along axes of a mesh, which are given by their numbers."""
    check_transforms(name)
    return MeshRanks(tuple(ranks_of(name, mesh.get_group(axis)) for axis in axes))


def abandon(x: DTensor, error: BaseException) -> None:
    """This rank leaves a call with a DTensor, of which the ranks that share it may be anywhere."""
    with contextlib.suppress(Exception):  # of groups that are none
        for axis, placement in enumerate(x.placements):
            if not placement.is_replicate():
                ranks_of("distributed", x.device_mesh.get_group(axis)).abandon(error)
