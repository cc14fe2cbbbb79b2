"""The ranks that share rows, and what they tell each other.

Each rank has some scores of the same rows, in the order of ranks. A collective with tensors of unequal sizes ends the process in
gloo and never ends in NCCL, so the ranks first agree on what they have, through the store by which they met: once for each kind of
call, as is remembered. After that a call is one collective.
"""

from __future__ import annotations

import json
import weakref
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_process_group_store

Group = dist.ProcessGroup | DeviceMesh | None

PATIENCE = timedelta(seconds=5)  # for the others to say that they have left a collective too


class RanksError(RuntimeError):
    """The ranks do not work on the same rows, or one of them is gone."""


@dataclass(frozen=True)
class Agreement:
    """What is known of all ranks for a kind of call."""

    widths: tuple[int, ...]  # scores of a row on each rank

    def first(self, rank: int) -> int:
        """The place in its row of a rank's first score."""
        return sum(self.widths[:rank])

    @property
    def whole(self) -> int:
        return sum(self.widths)


@dataclass(eq=False)
class Ranks:
    """The processes of a group."""

    group: dist.ProcessGroup
    rank: int = field(init=False)
    size: int = field(init=False)
    known: dict[str, Agreement] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)

    @property
    def names(self) -> list[int]:
        """The global rank of each."""
        return dist.get_process_group_ranks(self.group)

    # Agreement -------------------------------------------------------------------------------------------------------------------

    def agree(self, name: str, width: int, **same: Any) -> Agreement:
        """What all ranks have in this call, of which `same` must be the same on all. Raises RanksError on all where it is not."""
        own = json.dumps({"call": name, **{key: str(value) for key, value in same.items()}, "width": width})
        if own in self.known:
            return self.known[own]
        if self.size == 1:
            found = [own]
        else:
            found = self._exchange(name, own)
        told = [json.loads(each) for each in found]
        for key in told[0]:
            if key != "width" and len({each.get(key) for each in told}) > 1:
                each = ", ".join(f"{each.get(key)} on rank {rank}" for rank, each in zip(self.names, told, strict=True))
                raise RanksError(f"{name}: {key} must be the same on all ranks, got {each}; give every rank the same rows")
        self.known[own] = agreement = Agreement(tuple(each["width"] for each in told))
        return agreement

    @property
    def store(self) -> Store:
        return PrefixStore("softmaxima", _get_process_group_store(self.group))

    @property
    def timeout(self) -> timedelta:
        return self.group._get_backend(self.device).options._timeout

    @property
    def device(self) -> torch.device:
        """Where its messages are."""
        return self.group._device_types[0] if dist.get_backend(self.group) == "nccl" else torch.device("cpu")

    def _exchange(self, name: str, own: str) -> list[str]:
        """What each rank says at this step of the group's talk."""
        store, step = self.store, len(self.known)
        store.set(f"{step}/{self.rank}", own)
        if silent := self._silent(f"{step}/", self.timeout):
            raise RanksError(
                f"{name}: nothing came from {silent} within {self.timeout.total_seconds():g} s; every rank must make the same calls "
                "in the same order"
            )
        return [store.get(f"{step}/{rank}").decode() for rank in range(self.size)]

    def _silent(self, key: str, timeout: timedelta) -> str:
        """The ranks that have not said a thing in time, in words; "" where all have."""
        keys = [f"{key}{rank}" for rank in range(self.size)]
        try:
            self.store.wait(keys, timeout)
        except RuntimeError:  # DistStoreError where the store itself is there
            return ", ".join(f"rank {self.names[rank]}" for rank, each in enumerate(keys) if not self.store.check([each]))
        return ""

    # Messages --------------------------------------------------------------------------------------------------------------------

    def gather(self, name: str, message: Tensor) -> list[Tensor]:
        """The message of each rank, all of one shape, in the order of ranks."""
        if self.size == 1:
            return [message]
        message = message.contiguous()
        every = message.new_empty((self.size, *message.shape))
        try:
            dist.all_gather_into_tensor(every.view(-1), message.view(-1), self.group)
        except RuntimeError as error:
            self.store.set(f"left/{self.rank}", "")
            silent = self._silent("left/", PATIENCE) or "a rank"
            raise RanksError(f"{name}: {silent} did not answer rank {self.names[self.rank]} within the group's timeout") from error
        return list(every)


_RANKS: weakref.WeakKeyDictionary[dist.ProcessGroup, Ranks] = weakref.WeakKeyDictionary()


def ranks_of(name: str, group: Group) -> Ranks:
    """The ranks of a group, a mesh of one axis, or None for all."""
    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError(f"{name}: there is no process group; call torch.distributed.init_process_group, and start with torchrun")
    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            raise ValueError(f"{name}: group must be a mesh of one axis, got {group.ndim}; pass mesh['name of the axis']")
        group = group.get_group()
    found = dist.group.WORLD if group is None else group
    if not isinstance(found, dist.ProcessGroup):
        raise TypeError(f"{name}: group must be a ProcessGroup, a DeviceMesh or None, got {type(group).__name__}")
    if found not in _RANKS:
        _RANKS[found] = Ranks(found)
    return _RANKS[found]
