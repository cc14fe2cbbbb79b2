"""The ranks that share rows, and what they tell each other.

Each rank has some scores of the same rows, in the order of ranks. A collective with tensors of unequal sizes ends the process in
gloo and never ends in NCCL, so before it the ranks agree on what they have, through the store by which they met, which is no
collective: each says what it has, and the first reads that and tells all what is wrong, so that a store is asked some times a rank.
A rank that refuses its arguments says so there, and all of them raise. One that raises later, while others wait for its message,
leaves word in the store, which they read when the group's timeout ends their wait.
"""

from __future__ import annotations

import contextlib
import functools
import json
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_process_group_store

from softmaxima.core.tracing import transforming
from softmaxima.distributed.agreement import Agreement, wrong

Group = dist.ProcessGroup | DeviceMesh | None

START = dist.batch_isend_irecv
ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name before torch 2.13
ALL_REDUCE = dist.all_reduce
NOTHING = timedelta()
GONE = "the store by which the ranks met does not answer; see how the process ended that has it, rank 0 or torchrun"
PATIENCE = timedelta(seconds=5)  # for the others to say that they have left a collective too


class RanksError(RuntimeError):
    """The ranks do not work on the same rows, or one of them is gone."""


class Ranks:
    """The processes of a group, which this does not keep."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = weakref.ref(group)
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.step = 0  # agreements so far
        self.sent = 0  # messages since
        self.raised = False  # whether this rank raised since, while others may have waited for its message
        self.broken = ""  # why messages of this group no longer meet
        self._stale: list[str] = []  # keys that nobody reads once all have come to the next step

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
        """Before the ranks agree: what is raised within is told to the others, which raise too."""
        try:
            check_transforms(name)
            yield
        except Exception as error:
            self._say(name, {"problem": f"{type(error).__name__}: {error}"})
            raise

    def agree(self, name: str, width: int, same: Mapping[str, str]) -> Agreement:
        """What all ranks have in this call. Raises RanksError on all where `same`, which is by `alike`, is not."""
        return self.agree_on(name, (width,), same)[0]

    def agree_on(self, name: str, widths: Sequence[int], same: Mapping[str, str]) -> list[Agreement]:
        """The same of several axes that are shared."""
        told = self._say(name, {"call": name, **same, "widths": [*widths]})
        if "problem" in told:
            raise RanksError(f"{name}: {told['problem']}")
        return [Agreement(tuple(each)) for each in zip(*told["widths"], strict=True)]

    @functools.cached_property
    def store(self) -> Store:
        """That by which the group met, with a connection and a patience of this rank's own."""
        store = PrefixStore("softmaxima", _get_process_group_store(self.group)).clone()  # pyright: ignore[reportAttributeAccessIssue]
        store.set_timeout(self.timeout + (PATIENCE if self.rank else NOTHING))  # the first tells who did not come
        return store

    @property
    def timeout(self) -> timedelta:
        return self.group._get_backend(self.device).options._timeout

    @property
    def device(self) -> torch.device:
        """Where its messages are."""
        return torch.device("cuda" if dist.get_backend(self.group) == "nccl" else "cpu")

    def _say(self, name: str, own: dict[str, Any]) -> dict[str, Any]:
        """Says what this rank has: {"widths": of each rank} where nothing is wrong, {"problem": what is}."""
        if self.size == 1:
            return self._judged([own])
        self.step, self.sent, self.raised = self.step + 1, 0, False
        if self.broken:
            own = {"problem": f"{self.broken} in an earlier call"}
        try:
            self.store.set(f"{self.step}/{self.rank}", json.dumps(own))
            told = self._first(own) if self.rank == 0 else self._other(own)
        except dist.DistNetworkError:
            told = {"problem": GONE}
        self._check_unbroken(name)
        return told

    def _judged(self, said: Sequence[dict[str, Any]]) -> dict[str, Any]:
        problem = wrong(said, self.names)
        return {"widths": [each["widths"] for each in said]} if problem is None else {"problem": problem}

    def _first(self, own: dict[str, Any]) -> dict[str, Any]:
        """Reads what all say, and tells them; what it refuses itself, at once."""
        store, step, read = self.store, self.step, []
        if "problem" in own:
            told = {"problem": wrong([own], self.names[:1])}
        else:
            try:
                others = store.multi_get([f"{step}/{rank}" for rank in range(1, self.size)])
            except RuntimeError:  # of a store that is there, DistStoreError
                told = {"problem": self._silent()}
            else:
                told = self._judged([own, *map(json.loads, others)])
                read = [*self._stale]  # who says something now has read what was told before
        store.set(f"{step}/told", json.dumps(told))
        self._forget(read)
        self._stale += [f"{step}/0", f"{step}/told"]
        return told

    def _other(self, own: dict[str, Any]) -> dict[str, Any]:
        """Hears what the first tells; who refuses its arguments does not wait for that."""
        self._stale.append(f"{self.step}/{self.rank}")
        if "problem" in own:
            return own
        try:
            told = json.loads(self.store.get(f"{self.step}/told"))
        except RuntimeError:
            return {"problem": self._silent()}
        self._forget(self._stale)  # nobody reads what this rank said, once the first has told
        return told

    def _forget(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.store.delete_key(key)
        self._stale = self._stale[len(keys) :]

    def _silent(self) -> str:
        """Which ranks have not said anything at this step."""
        silent = [rank for rank in range(self.size) if not self._is_there(f"{self.step}/{rank}")]
        if self.rank in silent:
            return GONE
        return (
            f"nothing came from {self._listed(silent or [0])} within {self.timeout.total_seconds():g} s; every rank must make the "
            "same calls in the same order"
        )

    def _listed(self, ranks: Iterable[int]) -> str:
        return ", ".join(f"rank {self.names[rank]}" for rank in ranks)

    def _is_there(self, key: str) -> bool:
        try:
            return self.store.check([key])
        except RuntimeError:  # the store went with its rank, which is the first
            return False

    # What goes wrong later -------------------------------------------------------------------------------------------------------

    @contextmanager
    def working(self, name: str) -> Iterator[None]:
        """After the ranks have agreed: what is raised within is left for those who wait for a message of this rank."""
        try:
            yield
        except Exception as error:
            if self.size > 1 and not self.broken:
                self.raised = True
                self._leave(f"{type(error).__name__}: {error}")
            raise

    def _leave(self, problem: str = "", waited: float = 0.0) -> None:
        """Says that this rank has left off, raising a problem or having waited some seconds for a message."""
        key = f"left/{self.step}/{self.rank}"
        with contextlib.suppress(RuntimeError):  # the store went with its rank
            self.store.set(key, json.dumps([self.sent, problem, waited]))
            self._stale.append(key)

    def _check_unbroken(self, name: str) -> None:
        if self.broken:
            raise RanksError(
                f"{name}: the messages of this group no longer meet: {self.broken} in an earlier call; make a new group"
            )

    def _next(self, name: str) -> None:
        """Before a message: where this rank has raised, the others may wait for one of an earlier call, which that must not be."""
        self._check_unbroken(name)
        if self.raised:
            self.agree(f"{name} after an error", 0, {})
        self.sent += 1

    @contextmanager
    def _answered(self, name: str) -> Iterator[None]:
        begun = time.monotonic()
        try:
            yield
        except RuntimeError as error:
            self.broken = self._why(time.monotonic() - begun)
            raise RanksError(f"{name}: {self.broken}") from error

    def _why(self, waited: float) -> str:
        """Why this rank's last message, for which it waited some seconds, did not meet those of all."""
        self._leave(waited=waited)
        keys, raised, missing, waits = [f"left/{self.step}/{rank}" for rank in range(self.size)], [], [], {}
        with contextlib.suppress(RuntimeError):
            self.store.wait(keys, PATIENCE)
        if not self._is_there(keys[self.rank]):
            return GONE
        for rank, key in enumerate(keys):
            sent, problem, seconds = json.loads(self.store.get(key)) if self._is_there(key) else (-1, "", 0.0)
            if problem:
                raised.append(f"rank {self.names[rank]} raised {problem}")
            elif sent < self.sent:
                missing.append(rank)
            else:
                waits[rank] = seconds
        if waits and not missing and min(waits.values()) < max(waits.values()) / 2:  # who came last has waited least
            missing = [min(waits, key=waits.__getitem__)]
        return " and ".join(raised) or f"{self._listed(missing) or 'a rank'} did not answer within the group's timeout"

    # Messages --------------------------------------------------------------------------------------------------------------------

    def gather(self, name: str, message: Tensor) -> list[Tensor]:
        """The message of each rank, all of one shape, in the order of ranks."""
        if self.size == 1:
            return [message]
        self._next(name)
        message = message.contiguous()
        every = message.new_empty((self.size, *message.shape))
        with self._answered(name):
            ALL_GATHER(every.view(-1), message.view(-1), self.group)
        return list(every)

    def start(self, name: str, sends: Iterable[tuple[Tensor, int]], receives: Iterable[tuple[Tensor, int]]) -> Callable[[], None]:
        """Begins to send tensors to ranks of the group, and to fill others from them; what waits until that is done.

        Of two ranks each begins its messages to the other in the order in which that expects them.
        """
        self._next(name)
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

    def sum(self, name: str, message: Tensor) -> Tensor:
        """The sum over all ranks of tensors of one shape, the same on every rank."""
        if self.size == 1:
            return message
        self._next(name)
        total = message.clone(memory_format=torch.contiguous_format)
        with self._answered(name):
            ALL_REDUCE(total, group=self.group)
        return total


@dataclass(frozen=True)
class MeshRanks:
    """The processes along some axes of a mesh, in the order in which they have a tensor that is sharded along all of these.

    What they have is known from its placements. Values are not read: ranks with other rows would not learn of an error.
    """

    axes: tuple[Ranks, ...]

    @property
    def rank(self) -> int:
        return functools.reduce(lambda place, ranks: place * ranks.size + ranks.rank, self.axes, 0)

    @contextmanager
    def working(self, name: str) -> Iterator[None]:
        """As of the ranks along each axis."""
        with contextlib.ExitStack() as stack:
            for ranks in self.axes:
                stack.enter_context(ranks.working(name))
            yield

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
    check_transforms(name)
    return MeshRanks(tuple(ranks_of(name, mesh.get_group(axis)) for axis in axes))


def check_transforms(name: str) -> None:
    if transforming():
        raise RuntimeError(
            f"{name}: torch.func and forward mode do not go through what ranks send; take torch.autograd.grad or .backward(), or "
            "gather the scores, and take the function of whole rows"
        )


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
