"""The ranks that share rows, and what they tell each other.

Each rank has some scores of the same rows, in the order of ranks. A collective with tensors of unequal sizes ends the process in
gloo and never ends in NCCL, so before it the ranks agree on what they have, through the store by which they met, which is no
collective. A rank that refuses its arguments says so there, and all of them raise.
"""

from __future__ import annotations

import functools
import json
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_process_group_store

Group = dist.ProcessGroup | DeviceMesh | None

START = dist.batch_isend_irecv
ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name before torch 2.13
ALL_REDUCE = dist.all_reduce
PATIENCE = timedelta(seconds=5)  # for the others to say that they have left a collective too


class RanksError(RuntimeError):
    """The ranks do not work on the same rows, or one of them is gone."""


@dataclass(frozen=True)
class Agreement:
    """What is known of all ranks in a call."""

    widths: tuple[int, ...]  # scores of a row on each rank

    def first(self, rank: int) -> int:
        """The place in its row of a rank's first score."""
        return sum(self.widths[:rank])

    @property
    def whole(self) -> int:
        return sum(self.widths)


class Ranks:
    """The processes of a group, which this does not keep."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = weakref.ref(group)
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.step = 0  # of what they have told each other

    @property
    def group(self) -> dist.ProcessGroup:
        """The group, while there is one."""
        group = self._group()
        if group is None:
            raise RuntimeError("distributed: the process group of this call is no longer there")
        return group

    @property
    def names(self) -> list[int]:
        """The global rank of each."""
        return dist.get_process_group_ranks(self.group)

    # Agreement -------------------------------------------------------------------------------------------------------------------

    @contextmanager
    def telling(self, name: str) -> Iterator[None]:
        """What is raised within is told to the other ranks, which raise too."""
        try:
            yield
        except Exception as error:
            self._exchange(name, {"problem": f"{type(error).__name__}: {error}"})
            raise

    def agree(self, name: str, width: int, **same: Any) -> Agreement:
        """What all ranks have in this call, of which `same` must be the same on all. Raises RanksError on all where it is not."""
        return self.agree_on(name, (width,), **same)[0]

    def agree_on(self, name: str, widths: Sequence[int], **same: Any) -> list[Agreement]:
        """The same of several axes that are shared."""
        told = self._exchange(name, {"call": name, **{key: _in_words(value) for key, value in same.items()}, "widths": [*widths]})
        refused = [f"on rank {rank}: {each['problem']}" for rank, each in zip(self.names, told, strict=True) if "problem" in each]
        if refused:
            raise RanksError(f"{name}: refused {'; '.join(refused)}")
        for key in told[0]:
            if key != "widths" and len({each.get(key) for each in told}) > 1:
                each = ", ".join(f"{each.get(key)} on rank {rank}" for rank, each in zip(self.names, told, strict=True))
                raise RanksError(f"{name}: {key} must be the same on all ranks, got {each}; give every rank the same {key}")
        return [Agreement(tuple(each)) for each in zip(*(each["widths"] for each in told), strict=True)]

    @property
    def store(self) -> Store:
        return PrefixStore("softmaxima", _get_process_group_store(self.group))

    @property
    def timeout(self) -> timedelta:
        return self.group._get_backend(self.device).options._timeout

    @property
    def device(self) -> torch.device:
        """Where its messages are."""
        return torch.device("cuda" if dist.get_backend(self.group) == "nccl" else "cpu")

    def _exchange(self, name: str, own: dict[str, Any]) -> list[dict[str, Any]]:
        """What each rank says at this step of the group's talk."""
        if self.size == 1:
            return [own]
        store, self.step = self.store, self.step + 1
        store.set(f"{self.step}/{self.rank}", json.dumps(own))
        if silent := self._silent(f"{self.step}/", self.timeout):
            raise RanksError(
                f"{name}: nothing came from {silent} within {self.timeout.total_seconds():g} s; every rank must make the "
                "same calls in the same order"
            )
        # Who says something at this step has read what was said at the last.
        store.delete_key(f"{self.step - 1}/{self.rank}")
        return [json.loads(each) for each in store.multi_get([f"{self.step}/{rank}" for rank in range(self.size)])]

    def _silent(self, key: str, timeout: timedelta) -> str:
        """The ranks that have not said a thing in time, in words; "" where all have."""
        keys = [f"{key}{rank}" for rank in range(self.size)]
        try:
            self.store.wait(keys, timeout)
        except RuntimeError:  # of a store that is there, DistStoreError
            return ", ".join(f"rank {self.names[rank]}" for rank, each in enumerate(keys) if not self._is_there(each))
        return ""

    def _is_there(self, key: str) -> bool:
        try:
            return self.store.check([key])
        except RuntimeError:  # the store went with its rank, which is the first
            return False

    # Messages --------------------------------------------------------------------------------------------------------------------

    def gather(self, name: str, message: Tensor) -> list[Tensor]:
        """The message of each rank, all of one shape, in the order of ranks."""
        if self.size == 1:
            return [message]
        message = message.contiguous()
        every = message.new_empty((self.size, *message.shape))
        with self._answered(name):
            ALL_GATHER(every.view(-1), message.view(-1), self.group)
        return list(every)

    def start(self, name: str, sends: Iterable[tuple[Tensor, int]], receives: Iterable[tuple[Tensor, int]]) -> Callable[[], None]:
        """Begins to send tensors to ranks of the group, and to fill others from them; what waits until that is done.

        Of two ranks each begins its messages to the other in the order in which that expects them.
        """
        operations = [dist.P2POp(dist.isend, x.contiguous(), self.names[to], self.group) for x, to in sends]
        operations += [dist.P2POp(dist.irecv, x, self.names[of], self.group) for x, of in receives]
        with self._answered(name):
            works = START(operations) if operations else []

        def wait() -> None:
            with self._answered(name):
                for work in works:
                    work.wait()
            operations.clear()  # which had the tensors

        return wait

    @contextmanager
    def _answered(self, name: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise RanksError(f"{name}: {self._missing()} did not answer within the group's timeout") from error

    def sum(self, name: str, message: Tensor) -> Tensor:
        """The sum over all ranks of tensors of one shape, the same on every rank."""
        if self.size == 1:
            return message
        total = message.clone(memory_format=torch.contiguous_format)
        with self._answered(name):
            ALL_REDUCE(total, group=self.group)
        return total

    def _missing(self) -> str:
        """The ranks that do not say that they have left a collective too."""
        try:
            self.store.set(f"left/{self.rank}", "")
        except RuntimeError:
            return f"rank {self.names[0]}, which has the store,"
        return self._silent("left/", PATIENCE) or "a rank"


@dataclass(frozen=True)
class MeshRanks:
    """The processes along some axes of a mesh, in the order in which they have a tensor that is sharded along all of these.

    What they have is known from its placements. Values are not read: ranks with other rows would not learn of an error.
    """

    axes: tuple[Ranks, ...]

    @property
    def rank(self) -> int:
        return functools.reduce(lambda place, ranks: place * ranks.size + ranks.rank, self.axes, 0)

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


def reads_values(ranks: AnyRanks) -> TypeGuard[Ranks]:
    """Whether scores that are no numbers, and labels of no class, are looked for and told, which would wait for a GPU."""
    return isinstance(ranks, Ranks) and ranks.device.type == "cpu"


def ranks_along(name: str, mesh: DeviceMesh, axes: Iterable[int]) -> MeshRanks:
    """The ranks along axes of a mesh, which are given by their numbers."""
    return MeshRanks(tuple(ranks_of(name, mesh.get_group(axis)) for axis in axes))


def learns(*values: Any) -> bool:
    """Whether any is asked for a gradient."""
    return torch.is_grad_enabled() and any(isinstance(value, Tensor) and value.requires_grad for value in values)


def requiring(**values: Any) -> str:
    """Which require grad, for ranks to agree on: the gradient of each is a message."""
    return " and ".join(what for what, value in values.items() if learns(value)) or "of own classes"


def _in_words(value: Any) -> str:
    """What is the same in every process where the value is."""
    if isinstance(value, Tensor):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    return str(value) if isinstance(value, (str, int, float, tuple, torch.dtype, type(None))) else type(value).__name__


_RANKS: weakref.WeakKeyDictionary[dist.ProcessGroup, Ranks] = weakref.WeakKeyDictionary()


def ranks_of(name: str, group: Group) -> Ranks:
    """The ranks of a group, a mesh of one axis, or None for all."""
    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError(f"{name}: there is no process group; call torch.distributed.init_process_group, and start with torchrun")
    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            raise ValueError(f"{name}: group must be a mesh of one axis, got {group.ndim} axes; pass mesh['name of the axis']")
        group = group.get_group()
    found = dist.group.WORLD if group is None else group
    if found is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError(f"{name}: this rank, {dist.get_rank()}, is not in the group; call on its ranks alone")
    if not isinstance(found, dist.ProcessGroup):
        raise TypeError(f"{name}: group must be a ProcessGroup, a DeviceMesh or None, got {type(group).__name__}")
    if found not in _RANKS:
        _RANKS[found] = Ranks(found)
    return _RANKS[found]


def summed(ranks: Ranks, name: str, tensors: Sequence[Tensor | None], dtype: torch.dtype | None = None) -> list[Tensor | None]:
    """The sum over all ranks of each of some tensors, by one message, in a dtype or in that of the first."""
    sent = [each.flatten() for each in tensors if each is not None]
    if not sent:
        return list(tensors)
    rest = iter(ranks.sum(name, torch.cat([each.to(dtype or sent[0].dtype) for each in sent])).split([len(each) for each in sent]))
    return [None if each is None else next(rest).view(each.shape) for each in tensors]
