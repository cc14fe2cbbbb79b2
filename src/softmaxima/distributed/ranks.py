"""The ranks that share rows, and what they tell each other.

Each rank has some scores of the same rows, in the order of ranks. A collective with tensors of unequal sizes ends the process in
gloo and never ends in NCCL, so before it the ranks agree on what they have, through the store by which they met, which is no
collective: each says what it has, and the first reads that and tells all what is wrong, so that a store is asked some times a rank.
A rank that refuses its arguments says so there, and all of them raise. One that raises later, while others wait for its message,
leaves word in the store, which they read while they wait for a collective, or when the group's timeout ends their wait for another
message. From then on no messages meet: who knows it says why in the store, and tells who waits to agree.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.compiler import is_compiling
from torch.distributed.constants import default_pg_timeout
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import Store, _world

from softmaxima.base.dtensors import may_be_alone
from softmaxima.base.tracing import outside_compilers, transforming
from softmaxima.distributed import messages
from softmaxima.distributed.agreement import Agreement, wrong
from softmaxima.distributed.messages import Message, Tensors, as_sent, exchange, plain
from softmaxima.distributed.stores import BROKEN, GONE, Meeting, delete, heard, is_there, read, store_of

Group = dist.ProcessGroup | DeviceMesh | None

GRACE = timedelta(seconds=1)  # beyond the timeout, for the first to tell who is missing, or others that they wait in vain too
MESSAGES = "what ranks tell each other of rows that they share"
SKIPPED = "which not every rank sent; every rank must make the same calls in the same order, those of backward too"
PAUSE = timedelta(seconds=0.25)  # at most, between looks whether a message is awaited in vain


Function = TypeVar("Function", bound=Callable[..., Any])


def outside_the_graph(function: Function) -> Function:
    """A function of a group, which compilers call and do not look into: what ranks say differs from call to call."""

    @functools.wraps(function)
    def call(*given: Any, **options: Any) -> Any:
        try:
            return outside_compilers(function, MESSAGES)(*given, **options)
        except BaseException as error:
            if not may_be_alone(error):
                raise
            with contextlib.suppress(Exception):  # of a group that is none
                arguments = inspect.signature(function).bind_partial(*given, **options).arguments
                ranks = arguments["self"]._ranks if "self" in arguments else ranks_of("distributed", arguments.get("group"))
                ranks.abandon(error)
            raise

    return call  # type: ignore[return-value]


class RanksError(RuntimeError):
    """The ranks do not work on the same rows, or one of them is gone."""


class Ranks:
    """The processes of a group, which this does not keep."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = weakref.ref(group)
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.is_alone = self.size == 1 or dist.get_backend(group) == "fake"  # whose other ranks are not there
        self.store: Store | None = None  # by which the ranks talk, once they have met
        self._meeting: Meeting | None = None
        self.step = 0  # agreements so far
        self.sent = 0  # messages since
        self.agreed = True  # whether no rank raised in the last agreement
        self.raised = False  # whether this rank raised since, while others may have waited for its message
        self.pending = 0  # messages that are on their way
        self.withdrawn: tuple[int, str] | None = None  # the agreement that this rank has left, of which it has yet to learn
        self._unsaid = False  # whether the others have yet to be told that messages no longer meet
        self.broken = ""  # why messages of this group no longer meet
        self._stale: list[str] = []  # keys that nobody reads once all have come to the next step

    @property
    def group(self) -> dist.ProcessGroup:
        """The group, while there is one."""
        return _there("distributed", self._group())

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
        except BaseException as error:  # an interrupt too
            if not self._has_told(error):
                with contextlib.suppress(RanksError):
                    self._say(name, {"problem": named(error)})
                self._mark(error)
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

    def _meet(self, name: str) -> Store:
        """That by which the ranks talk; who asks first meets all others."""
        if self.store is None:
            self.store, self.broken, problem = self._met().attend(self.patience, self._silent)
            if self.broken:
                raise RanksError(f"{name}: {self.broken}; make a new group")
            if problem:
                raise RanksError(f"{name}: {problem}")
        return self.store

    def _met(self) -> Meeting:
        if self._meeting is None:
            self._meeting = Meeting(store_of(self.group, self.timeout), self.rank, self.names)
        return self._meeting

    @property
    def device(self) -> torch.device:
        """One from which its messages can be: a GPU where there is one."""
        kinds = {device.type for device in self.group._device_types}
        return torch.device("cuda" if "cuda" in kinds and (torch.cuda.is_available() or "cpu" not in kinds) else "cpu")

    @property
    def timeout(self) -> timedelta:
        options = (self.group._get_backend(device).options for device in self.group._device_types)
        return next((each._timeout for each in options if each is not None), default_pg_timeout)

    @property
    def patience(self) -> timedelta:
        """For which this rank waits to agree: the first tells who did not come."""
        return self.timeout + (GRACE if self.rank else timedelta())

    def _say(self, name: str, own: dict[str, Any]) -> dict[str, Any]:
        """Says what this rank has: {"widths": of each rank} where nothing is wrong, {"problem": what is}."""
        self._check_unbroken(name)
        if self.is_alone:
            return self._judged([own] * self.size)
        was_raised, self.step, self.sent, self.raised, self.agreed = self.raised, self.step + 1, 0, False, False
        try:
            store = self._meet(name)
            self._learn(name, store)
            if was_raised:
                self.broken = read(store, BROKEN) or ""
                self._check_unbroken(name)
            store.set(f"{self.step}/{self.rank}", json.dumps(own))
            told = self._first(store, own) if self.rank == 0 else self._other(store, own)
        except dist.DistNetworkError:
            told = {"problem": GONE}
        except RanksError:
            raise
        except BaseException as error:  # an interrupt, by a signal's handler too
            self._withdraw(named(error))
            self._mark(error)
            raise
        self._check_unbroken(name)
        self.agreed = "widths" in told
        return told

    def _withdraw(self, problem: str) -> None:
        """This rank leaves an agreement, which the others may come to yet; they raise there, or have heard its word and go on."""
        if self.store is None and self._met().has_left:  # an earlier one too, of which the first alone knows
            self._break(f"rank {self.names[self.rank]} raised {problem}")
            return
        self._leave(problem, withdraws=True)
        if self.store is None:
            return
        with contextlib.suppress(RuntimeError):  # the store went with its rank
            if self.rank:
                self.store.set(f"{self.step}/{self.rank}", json.dumps({"problem": problem}))
                self.withdrawn = self.step, problem
            elif is_there(self.store, f"{self.step}/told"):
                self._break(f"rank {self.names[0]} raised {problem}")
            else:
                self.store.set(f"{self.step}/told", json.dumps(self._judged([{"problem": problem}])))
                self._stale.append(f"{self.step}/told")

    def _learn(self, name: str, store: Store) -> None:
        """Whether all left the agreement that this rank has left, which the first tells; if they went on, no messages meet."""
        if self.withdrawn is None:
            return
        (step, problem), self.withdrawn = self.withdrawn, None
        try:
            told = json.loads(heard(store, [f"{step}/told"], self.patience, unless=BROKEN)[0])
        except dist.DistNetworkError:
            raise
        except RuntimeError:
            self.broken = read(store, BROKEN) or ""
            told = {"widths": []}
        if "widths" in told and not self.broken:
            self._break(f"rank {self.names[self.rank]} raised {problem}")
        self._check_unbroken(name)

    def _judged(self, said: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """What is told of what the first ranks, as a rule all, have said."""
        problem = wrong(said, self.names[: len(said)])
        return {"widths": [each["widths"] for each in said]} if problem is None else {"problem": problem}

    def _first(self, store: Store, own: dict[str, Any]) -> dict[str, Any]:
        """Reads what all say, and tells them; what it refuses itself, at once."""
        step, read = self.step, []
        if "problem" in own:
            told = self._judged([own])
        else:
            try:
                others = heard(store, self._keys[1:], self.patience, unless=BROKEN)
            except RuntimeError:  # of a store that is there, DistStoreError
                told = {"problem": self._silent(store, self._keys)}
            else:
                told = self._judged([own, *map(json.loads, others)])
                read = [*self._stale]  # who says something now has read what was told before
        if not self.broken:  # which the others read
            store.set(f"{step}/told", json.dumps(told))
        self._forget(store, read)
        self._stale += [f"{step}/0", f"{step}/told"]
        return told

    def _other(self, store: Store, own: dict[str, Any]) -> dict[str, Any]:
        """Hears what the first tells; who refuses its arguments does not wait for that."""
        self._stale.append(f"{self.step}/{self.rank}")
        if "problem" in own:
            return own
        try:
            told = json.loads(heard(store, [f"{self.step}/told"], self.patience, unless=BROKEN)[0])
        except RuntimeError:
            problem = self._silent(store, self._keys)
            if not self.broken:
                self._withdraw(problem)  # should the first come yet
            return {"problem": problem}
        if "widths" in told:  # all have come here, and read what this rank said before; of a problem the first may tell sooner
            self._forget(store, self._stale)
        return told

    def _forget(self, store: Store, keys: Sequence[str]) -> None:
        delete(store, keys)
        self._stale = self._stale[len(keys) :]

    @property
    def _keys(self) -> list[str]:
        """Where each rank says what it has at this step."""
        return [f"{self.step}/{rank}" for rank in range(self.size)]

    def _silent(self, store: Store, keys: Sequence[str]) -> str:
        """Which ranks have not said what they say by these keys; or why no messages meet, which one that has left says."""
        if (broken := read(store, BROKEN)) is not None:
            self.broken = broken
            return self.broken
        silent = [rank for rank, key in enumerate(keys) if not is_there(store, key)]
        if self.rank in silent:
            return GONE
        if behind := [rank for rank in silent if is_there(store, f"waits/{self.step - 1}/{rank}")]:
            return f"{self._listed(behind)} waits for a message of the call before, {SKIPPED}"
        return (
            f"nothing came from {self._listed(silent or [0])} within {self.timeout.total_seconds():g} s; every rank must make the "
            "same calls in the same order"
        )

    def _listed(self, ranks: Iterable[int]) -> str:
        return ", ".join(f"rank {self.names[rank]}" for rank in ranks)

    # What goes wrong later -------------------------------------------------------------------------------------------------------

    @contextmanager
    def working(self, name: str) -> Iterator[None]:
        """After the ranks have agreed: what is raised within is left for those who wait for a message of this rank."""
        try:
            yield
        except BaseException as error:
            if not self._has_told(error) and not self.is_alone and not self.broken:
                if self.pending or not isinstance(error, Exception):
                    self.abandon(error)
                else:
                    self.raised = True
                    self._leave(named(error))
            raise

    def abandon(self, error: BaseException) -> None:
        """This rank leaves a call, in which others may be anywhere, or a message that may come yet, in the place of later ones."""
        if not self._has_told(error) and not self.is_alone and not self.broken:
            self._mark(error)
            self._break(f"rank {self.names[self.rank]} raised {named(error)}")

    def _leave(self, problem: str = "", waited: float = 0.0, peers: Sequence[int] = (), withdraws: bool = False) -> None:
        """Says that this rank has left off, raising a problem or having waited some seconds for a message to or from some ranks."""
        key = f"left/{self.step}/{self.rank}"
        with contextlib.suppress(RuntimeError):  # the store went with its rank
            if self.store is None:  # who waits to meet this rank
                self.store = self._met().leave(problem)
            if (store := self.store) is None:
                return
            store.set(key, json.dumps([self.sent, problem, waited, [*peers]]))
            beside = f"{'withdrew' if withdraws else 'raised' if problem else 'failed'}/{self.step}"  # one word of all ranks
            store.set(beside, str(self.sent))
            self._stale += [key, beside]

    def _check_unbroken(self, name: str) -> None:
        _there(name, self._group())
        if self._unsaid:  # by an interrupt within an interrupt
            self._say_broken()
        if self.broken:
            raise RanksError(
                f"{name}: the messages of this group no longer meet: {self.broken} in an earlier call; make a new group"
            )

    def _next(self, name: str) -> None:
        """Before a message: where this rank has raised, the others may wait for one of an earlier call, which that must not be."""
        self._check_unbroken(name)
        if self.is_alone:
            return
        self._learn(name, self._meet(name))
        if self.raised:
            self.agree(f"{name} after an error", 0, {})
        self.sent += 1

    @contextmanager
    def _answered(self, name: str, peers: Sequence[int] = (), errors: type[RuntimeError] = RuntimeError) -> Iterator[None]:
        """A message to or from some ranks, or of all, of which these errors are; others are of this rank alone."""
        begun = time.monotonic()
        try:
            yield
        except errors as error:
            self._break(self._why(time.monotonic() - begun, peers, error))
            raise RanksError(f"{name}: {self.broken}") from error

    def _break(self, why: str) -> None:
        """Messages no longer meet, which who waits for one, or to agree, reads in the store."""
        self.broken, self._unsaid = why, True
        self._say_broken()

    def _say_broken(self) -> None:
        with contextlib.suppress(RuntimeError):  # the store went with its rank
            if self.store is None:
                self.store = self._met().leave(self.broken, breaks=True)
            if self.store is not None:
                self.store.set(BROKEN, self.broken)
        self._unsaid = False

    def _mark(self, error: BaseException) -> None:
        """The other ranks have been told of it."""
        error.told_to = {*getattr(error, "told_to", ()), id(self)}  # type: ignore[attr-defined]

    def _has_told(self, error: BaseException) -> bool:
        return id(self) in getattr(error, "told_to", ())

    def _why(self, waited: float, peers: Sequence[int], error: RuntimeError) -> str:
        """Why this rank's last message, which raised an error after some seconds, did not meet those of all."""
        self._leave(waited=waited, peers=peers)
        keys, store = [f"left/{self.step}/{rank}" for rank in range(self.size)], self._meet("distributed")
        if not is_there(store, keys[self.rank]):
            return GONE
        until = time.monotonic() + GRACE.total_seconds()
        while not (is_there(store, BROKEN) or is_there(store, *keys)) and time.monotonic() < until:
            time.sleep(0.02)
        left = {rank: json.loads(said) for rank, key in enumerate(keys) if (said := read(store, key)) is not None}
        ahead = [rank for rank in range(self.size) if rank not in left and is_there(store, f"{self.step + 1}/{rank}")]
        missing = [rank for rank in range(self.size) if rank not in left and rank not in ahead]
        if (broken := read(store, BROKEN)) is not None:
            return broken
        raised = [f"rank {self.names[rank]} raised {problem}" for rank, (_, problem, *_) in left.items() if problem]
        if raised:
            return " and ".join(raised)
        waits = {rank: seconds for rank, (_, _, seconds, _) in left.items()}
        awaited = {peer for *_, of in left.values() for peer in of}  # each of whom awaits the next, round a ring
        missing = [rank for rank in missing if rank in awaited] or missing
        is_late = max(waits.values()) > 0.9 * self.timeout.total_seconds()
        if is_late and not missing and min(waits.values()) < max(waits.values()) / 2:  # who came last has waited least
            missing = [min(waits, key=waits.__getitem__)]
        if is_late and ahead and not missing:
            return f"{self._listed(ahead)} went on without a message that {self._listed(left)} waited for, {SKIPPED}"
        if is_late:
            return f"{self._listed(missing) or 'a rank'} did not answer within the group's timeout"
        words = str(error).splitlines()[0] if str(error) else type(error).__name__
        told = f"{self._listed(missing)} did not answer, and a message" if missing else "a message"
        return f"{told} failed after {waited:.1f} s: {words}"

    def _wait(self, message: Message) -> None:
        """Until it is there, or a rank has said that its own will not come."""
        pause, store = min(self.timeout / 16, PAUSE), self.store
        waits = f"waits/{self.step}/{self.rank}"  # for who comes to the next call without a message
        while not message.is_there(pause):
            if store is None:
                continue
            try:
                is_in_vain = self._is_in_vain(store)
                if waits not in self._stale:
                    store.set(waits, "")
                    self._stale.append(waits)
            except RuntimeError:  # the store went with its rank, which may have ended as it should
                store = None
                continue
            if is_in_vain:
                raise RuntimeError("a rank has left the call")
        self.pending -= 1
        if store is not None and waits in self._stale:
            self._stale.remove(waits)
            delete(store, [waits])

    def _is_in_vain(self, store: Store) -> bool:
        """Whether messages no longer meet, a rank has raised before this message, or one has seen it or one before it fail."""
        if store.check([BROKEN]) or (self.agreed and store.check([f"withdrew/{self.step}"])):
            return True
        ends = (("raised", self.sent - 1), ("failed", self.sent))
        return any((said := read(store, f"{end}/{self.step}")) is not None and int(said) <= last for end, last in ends)

    # Messages --------------------------------------------------------------------------------------------------------------------

    def gather(self, name: str, message: Tensor) -> list[Tensor]:
        """The message of each rank, all of one shape, in the order of ranks."""
        if self.size == 1:
            return [message]
        if is_compiling():  # a compiler of one graph sees the collective alone
            message = plain(message)
            every = message.new_empty((self.size, *message.shape))
            messages.ALL_GATHER(as_sent(every), as_sent(message), self.group)
            return list(every)
        with self.working(name):
            self._next(name)
            message = plain(message)
            every = message.new_empty((self.size, *message.shape))
            with self._answered(name, errors=dist.DistError):
                begun = self._begun(messages.ALL_GATHER(as_sent(every), as_sent(message), self.group, async_op=True), message)
            with self._answered(name):
                self._wait(begun)
            return list(every)

    def start(self, name: str, sends: Tensors, receives: Tensors, device: torch.device) -> Callable[[], None]:
        """Begins to send tensors on a device to ranks of the group, and to fill others from them; what waits until that is done.

        Every rank begins it, whatever it has to send. Of two ranks each names its messages to the other in the order in which that
        expects them.
        """
        peers, begun = [rank for _, rank in (*sends, *receives)], []
        with self.working(name):
            self._next(name)
            with self._answered(name, peers):
                if self.is_alone:  # nobody sends anything
                    pass
                elif device.type == "cpu":
                    begun = [exchange(sends, receives, self.size, self.group)]
                else:
                    every = [dist.P2POp(dist.isend, as_sent(plain(x)), self.names[to], self.group) for x, to in sends]
                    every += [dist.P2POp(dist.irecv, as_sent(x), self.names[of], self.group) for x, of in receives]
                    begun = [Message(work, False) for work in (messages.START(every) if every else ())]
                self.pending += len(begun)

        def wait() -> None:
            with self.working(name), self._answered(name, peers):
                while begun:
                    self._wait(begun[0])
                    begun.pop(0)

        return wait

    def sum(self, name: str, message: Tensor) -> Tensor:
        """The sum over all ranks of tensors of one shape, the same on every rank."""
        if self.size == 1:
            return message
        with self.working(name):
            self._next(name)
            total = message.clone(memory_format=torch.contiguous_format)
            with self._answered(name, errors=dist.DistError):
                begun = self._begun(messages.ALL_REDUCE(total, group=self.group, async_op=True), total)
            with self._answered(name):
                self._wait(begun)
            return total

    def _begun(self, work: Any, message: Tensor) -> Message:
        self.pending += 1
        return Message(work, message.is_cpu)


def check_transforms(name: str) -> None:
    if not is_compiling() and torch._C._get_tracing_state() is not None:
        raise RuntimeError(
            f"{name}: torch.jit.trace does not record what ranks send; gather the scores, and trace the function of whole rows"
        )
    if transforming():
        raise RuntimeError(
            f"{name}: torch.func and forward mode do not go through what ranks send; take torch.autograd.grad or .backward(), or "
            "gather the scores, and take the function of whole rows"
        )


def _there(name: str, group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """The group, which torch knows until it is destroyed."""
    if group is None or group not in _world.pg_map:
        raise RuntimeError(f"{name}: the process group was destroyed; make another, and call with that")
    return group


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
        is_known = len(_world.pg_map) == 1  # in which group the others are
        with ranks_of(name, None).telling(name) if is_known else contextlib.nullcontext():
            raise TypeError(f"{name}: group must be a ProcessGroup, a DeviceMesh or None, got {type(group).__name__}")
    if _there(name, found) not in _RANKS:
        _RANKS[found] = Ranks(found)
    return _RANKS[found]


def summed(ranks: Ranks, name: str, tensors: Sequence[Tensor | None], dtype: torch.dtype | None = None) -> list[Tensor | None]:
    """The sum over all ranks of each of some tensors, by one message, in a dtype or in that of the first."""
    sent = [each.flatten() for each in tensors if each is not None]
    if not sent:
        return list(tensors)
    with ranks.working(name):
        total = ranks.sum(name, torch.cat([each.to(dtype or sent[0].dtype) for each in sent]))
    rest = iter(total.split([len(each) for each in sent]))
    return [None if each is None else next(rest).view(each.shape) for each in tensors]


def named(error: BaseException) -> str:
    """An error in words."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
