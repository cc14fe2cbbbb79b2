"""Ranks and what they tell each other by: stores, backends and dtypes of every kind, and groups that broke or are gone."""

from __future__ import annotations

import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import SECONDS, Processes, _join
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import softmaxima as sm
from softmaxima.distributed import messages
from softmaxima.distributed.ranks import ranks_of

d = sm.distributed
X = torch.arange(12.0, dtype=torch.float64).view(3, 4)
GATHERING = 1.0  # seconds, for which ranks on a busy machine exchange scores
TOO_LATE = 4.0  # seconds, of a group whose messages end after one


def attempt(call: Callable[[], Any]) -> tuple[str, float]:
    """(what it raises, or "right", after how many seconds)."""
    begun = time.monotonic()
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - begun
    return "right", time.monotonic() - begun


def of_rows(group: Any, rank: int, label: int, reduction: str) -> Tensor:
    """A loss of a DTensor of which each rank has a row."""
    mesh = DeviceMesh.from_group(group, "cpu")
    x, labels = (DTensor.from_local(own, mesh, [Shard(0)]) for own in (X[rank : rank + 1], torch.tensor([label])))
    return sm.cross_entropy(x, labels, reduction=reduction)


# Errors on one rank -----------------------------------------------------------------------------------------------------------


def of_an_error_that_nobody_waits_for(rank: int) -> list[str]:
    group = dist.new_group(timeout=timedelta(seconds=20))
    wrong, _ = attempt(lambda: of_rows(group, rank, 9 if rank == 1 else 1, "none"))
    return [wrong, *(attempt(lambda: of_rows(group, rank, 1, "mean"))[0] for _ in range(2))]


def test_an_error_in_losses_of_each_row_leaves_the_group_as_it_was(three: Processes) -> None:
    first, second, third = three.run(of_an_error_that_nobody_waits_for)
    assert first == third == ["right"] * 3
    assert second[0].startswith("IndexError: cross_entropy: target 9")
    assert second[1:] == ["right", "right"]


def of_a_broken_group(rank: int) -> list[tuple[str, float]]:
    group = dist.new_group(timeout=timedelta(seconds=1))
    d.softmax(X, group=group)
    found = [attempt(lambda: of_rows(group, rank, 9 if rank == 1 else 1, "mean"))]
    found += [attempt(lambda: of_rows(group, rank, 1, "mean")) for _ in range(2)]
    found += [attempt(lambda: d.softmax(X, group=group))]
    dist.barrier()
    return found


def test_all_know_at_once_of_a_group_whose_messages_no_longer_meet(three: Processes) -> None:
    for rank, (wrong, *later) in enumerate(three.run(of_a_broken_group)):
        assert "IndexError: cross_entropy: target 9" in wrong[0]
        assert wrong[0].startswith("IndexError" if rank == 1 else "RanksError: cross_entropy: rank 1 raised")
        for told, seconds in later:
            assert "no longer meet: rank 1 raised IndexError" in told
            assert "make a new group" in told
            assert seconds < TOO_LATE
        assert max(seconds for _, seconds in later[1:]) < 0.9


def of_messages_that_cannot_be_made(rank: int) -> list[str]:
    calls = [
        lambda group, device: d.batch_mean(torch.tensor(1.0), torch.ones((), device=device), group=group),
        lambda group, device: ranks_of("test", group).sum("test", Unmade() if device == "meta" else X),  # type: ignore[arg-type]
        lambda group, device: ranks_of("test", group).gather("test", Unmade() if device == "meta" else X),  # type: ignore[arg-type]
        unsent,
    ]
    groups = [dist.new_group(timeout=timedelta(seconds=1)) for _ in calls]
    devices = ["meta" if rank == 1 else "cpu"] * len(calls)
    return [attempt(lambda each=each: each[0](*each[1:]))[0] for each in zip(calls, groups, devices, strict=True)]


def unsent(group: Any, device: str) -> None:
    """A message that its own rank cannot begin."""
    gather = messages.ALL_GATHER
    if device == "meta":
        messages.ALL_GATHER = lambda *given, **more: torch.zeros(2).view(3)
    try:
        ranks_of("test", group).gather("test", X)
    finally:
        messages.ALL_GATHER = gather


class Unmade:
    """A message that a rank has no memory for."""

    def __getattr__(self, name: str) -> Any:
        raise MemoryError("no room")


def test_what_keeps_a_rank_from_its_message_reaches_all(three: Processes) -> None:
    first, second, third = three.run(of_messages_that_cannot_be_made)
    for own, *others in zip(second, first, third, strict=True):
        assert not own.startswith(("right", "RanksError"))
        said = "meta tensor" if "got a meta tensor" in own else own  # which is told once more as of an argument
        assert all(said in told and "rank 1 raised" in told for told in others), (own, others)


def of_an_early_end(rank: int) -> str:
    group = dist.new_group(timeout=timedelta(seconds=30))
    message = torch.zeros(3, dtype=torch.int16)  # has no sum in gloo
    return attempt(lambda: ranks_of("test", group).sum("test", message))[0]


def test_a_message_that_fails_at_once_does_not_tell_of_a_timeout(three: Processes) -> None:
    for told in three.run(of_an_early_end):
        assert told.startswith("RanksError: test: a message failed after 0.")
        assert "timeout" not in told


def of_nothing_that_counts(rank: int) -> tuple[float, float]:
    total = torch.tensor(3.0, requires_grad=True)
    value = d.batch_mean(total, 0)
    value.backward()
    assert total.grad is not None
    return value.item(), float(total.grad)


def test_the_mean_of_nothing_has_no_slope(three: Processes) -> None:
    for value, slope in three.run(of_nothing_that_counts):
        assert value != value
        assert slope == 0.0


# Ranks that are gone, and how soon the others know -----------------------------------------------------------------------------


def of_a_hang(rank: int, form: str) -> tuple[str, float]:
    """What attention raises, and how soon, where rank 1 hangs before its first message and comes when the others have left."""
    group, (exchange, gather) = dist.new_group(timeout=timedelta(seconds=1)), (messages.EXCHANGE, messages.ALL_GATHER)
    x = torch.ones(1, 2, 4)
    assert attempt(lambda: d.softmax(X, group=group))[0] == "right"
    if rank == 1:
        messages.EXCHANGE = lambda *given, **more: (time.sleep(3.0), exchange(*given, **more))[1]
        messages.ALL_GATHER = lambda *given, **more: (time.sleep(3.0), gather(*given, **more))[1]
    try:
        return attempt(lambda: d.attention(x, x, x, form=form, group=group))
    finally:
        messages.EXCHANGE, messages.ALL_GATHER = exchange, gather
        dist.barrier()


@pytest.mark.parametrize("form", ["ring", "gather"])
def test_of_ranks_that_wait_for_each_other_only_that_which_is_gone_is_named(form: str, four: Processes) -> None:
    for rank, (told, seconds) in enumerate(four.run(of_a_hang, form)):
        assert told.endswith("distributed.attention: rank 1 did not answer within the group's timeout"), told
        assert rank == 1 or 0.9 < seconds < 3.0  # the timeout, a second for a word of each, and one for slow machines


def of_a_rank_that_leaves(rank: int, error: type[BaseException], when: str) -> list[str]:
    """What two calls raise where rank 1 leaves the first, in a group of a long timeout."""
    group, told = dist.new_group(timeout=timedelta(seconds=30)), []
    x = DTensor.from_local(X, DeviceMesh.from_group(group, "cpu"), [Shard(1)])

    def leaving(z: Tensor) -> Tensor:
        if when == "working" and dist.get_rank() == 1:
            raise error
        if when == "in a ring" and dist.get_rank() == 0:
            time.sleep(1.0)
        return z.square()

    if "meeting" not in when:
        d.softmax(X, group=group)
    if when != "working":
        if rank == 1:
            threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        time.sleep(1.0 if rank == 2 and when != "in a ring" else 0.0)
    begun, seconds, q = time.monotonic(), [], X.float()[None]
    first = {
        "in a ring": lambda: d.attention(q, q, q, map="proportional", f=leaving, form="ring", group=group),
        "meeting in a message": lambda: sm.softmax(x),
    }
    for call in (first.get(when, lambda: d.proportional(X, f=leaving, group=group)), lambda: d.softmax(X, group=group)):
        try:
            call()
            told.append("right")
        except BaseException as caught:
            told.append(f"{type(caught).__name__}: {caught}")
        seconds.append(time.monotonic() - begun)
    return [*told, "in time" if seconds[-1] < 10 and (error is ValueError or rank != 1 or seconds[0] < 0.9) else "late"]


@pytest.mark.parametrize(
    ("error", "when"),
    [
        (ValueError, "working"),
        *((KeyboardInterrupt, when) for when in ("working", "agreeing", "meeting", "meeting in a message", "in a ring")),
    ],
)
def test_a_rank_that_leaves_a_call_is_named_before_the_timeout(error: type[BaseException], when: str, three: Processes) -> None:
    for rank, (told, again, soon) in enumerate(three.run(of_a_rank_that_leaves, error, when)):
        assert soon == "in time"
        if when != "in a ring" or rank == 1:  # round which the others have what they need
            assert told.startswith(error.__name__) if rank == 1 else told.startswith("RanksError") and "rank 1" in told, told
            assert rank == 1 or error.__name__ in told
        assert again == "right" or (
            when in ("working", "in a ring", "meeting in a message")
            and f"rank 1 raised {error.__name__} in an earlier call; make" in again
        ), again


def of_two_that_leave(rank: int, error: type[BaseException]) -> list[str]:
    """What two calls give where rank 0 raises in one before its message, and rank 1 while it waits for that."""
    group, begun, found = dist.new_group(timeout=timedelta(seconds=30)), time.monotonic(), []

    def leaving(z: Tensor) -> Tensor:
        if dist.get_rank() == 0:
            time.sleep(0.6)
            raise error
        return z.square()

    d.softmax(X, group=group)
    if rank == 1:
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    for call in (lambda: d.proportional(X, f=leaving, group=group), lambda: d.softmax(X, group=group)):
        try:
            call()
            found.append("right")
        except BaseException as caught:
            found.append(f"{type(caught).__name__}: {caught}")
    return [*found, "in time" if time.monotonic() - begun < 10 else "late"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_message_that_a_rank_gave_up_is_never_taken_for_a_later_one(error: type[BaseException], three: Processes) -> None:
    for rank, (first, second, when) in enumerate(three.run(of_two_that_leave, error)):
        assert first.startswith([error.__name__, "KeyboardInterrupt", "RanksError"][rank])
        assert "no longer meet" in second, second
        assert when == "in time"


def of_a_twice_interrupted_meeting(rank: int, leaves: int, kinds: Sequence[str]) -> list[str]:
    """What three calls give, of which a rank is interrupted in the first two, before another comes."""
    group, found = dist.new_group(timeout=timedelta(seconds=30)), []
    x = DTensor.from_local(X, DeviceMesh.from_group(group, "cpu"), [Shard(1)])
    calls = {"shared": lambda: d.softmax(X, group=group), "DTensor": lambda: sm.softmax(x)}
    time.sleep(1.0 if rank == (leaves + 1) % 3 else 0.0)
    for number, kind in enumerate((*kinds, "shared")):
        if rank == leaves and number < 2:
            threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            calls[kind]()
            found.append("right")
        except BaseException as caught:
            found.append(f"{type(caught).__name__}: {caught}")
    return found


@pytest.mark.parametrize("leaves", [0, 1])
@pytest.mark.parametrize("kinds", [("shared", "shared"), ("shared", "DTensor")])
def test_a_rank_that_is_interrupted_twice_is_not_one_call_behind(leaves: int, kinds: Sequence[str], three: Processes) -> None:
    found = three.run(of_a_twice_interrupted_meeting, leaves, kinds)
    for number, every in enumerate(zip(*found, strict=True)):
        for rank, told in enumerate(every):
            if rank == leaves and number < 2:
                assert told.startswith("KeyboardInterrupt")
            else:
                assert f"rank {leaves}" in told or told == "right", told
    assert len({told == "right" for _, _, told in found}) == 1, found


class Late:
    """A collective that ends just after a wait for it has given up."""

    def __init__(self, failure: str = "") -> None:
        self.waits, self.failure = 0, failure

    def wait(self, *pause: timedelta) -> None:
        self.waits += 1
        if self.waits == 1 or self.failure:
            raise RuntimeError("timed out" if self.waits == 1 else self.failure)

    def is_completed(self) -> bool:
        return self.waits > 0


def test_a_message_that_comes_as_a_wait_ends_has_not_failed() -> None:
    assert messages.Message(Late(), True).is_there(timedelta(seconds=1))
    with pytest.raises(RuntimeError, match="connection closed"):
        messages.Message(Late("connection closed"), True).is_there(timedelta(seconds=1))


def of_an_interrupted_call(rank: int) -> list[str]:
    """What two calls raise, the first of some seconds of native code on each rank, in which rank 1 is interrupted."""
    group = dist.new_group(timeout=timedelta(seconds=30))
    x = DTensor.from_local(X.float().repeat(10, 5_000), DeviceMesh.from_group(group, "cpu"), [Shard(1)])
    if rank == 1:
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    told, begun = [], time.monotonic()
    try:
        sm.perturb_max(x)
        told.append("right")
    except KeyboardInterrupt:
        told.append("in time" if time.monotonic() - begun < 1.3 + GATHERING else "late")
    return [*told, attempt(lambda: sm.softmax(x))[0], attempt(lambda: d.softmax(X, group=group))[0]]


def test_a_call_of_ranks_is_interrupted_soon_and_the_others_learn_of_it(three: Processes) -> None:
    for rank, (told, *later) in enumerate(three.run(of_an_interrupted_call)):
        assert told == ("in time" if rank == 1 else "right")
        assert all("rank 1 raised KeyboardInterrupt" in each and "make a new group" in each for each in later), later


def of_a_message_that_some_skip(rank: int, skips: int) -> str:
    group = dist.new_group(timeout=timedelta(seconds=1))
    x = X.clone().requires_grad_()
    p = d.softmax(x, group=group)
    return attempt(lambda: (None if rank == skips else p.sum().backward(), d.logsumexp(X, group=group)))[0]


@pytest.mark.parametrize("skips", [0, 1])
def test_who_skips_a_backward_pass_is_not_told_that_others_are_at_fault(skips: int, three: Processes) -> None:
    for told in three.run(of_a_message_that_some_skip, skips):
        assert "every rank must make the same calls in the same order, those of backward too" in told, told


class Leaving(dist.Store):
    """A store that is gone after some questions."""

    def __init__(self, store: Any, questions: int) -> None:
        super().__init__()
        self.of, self.left = store, questions

    def __getattribute__(self, name: str) -> Any:
        if name not in ("set", "get", "multi_get", "check", "delete_key"):
            return super().__getattribute__(name)
        self.left -= 1
        if self.left < 0:
            raise dist.DistNetworkError("failed to recv, got 0 bytes")
        return getattr(self.of, name)


def of_a_store_that_goes(rank: int, questions: int) -> list[str]:
    """What calls raise where rank 1 raises, on ranks whose store goes after some questions."""
    group = dist.new_group(timeout=timedelta(seconds=0.5))
    d.softmax(X, group=group)
    own = ranks_of("test", group)
    if rank != 1:
        own.store = Leaving(own.store, questions)

    def raising(z: Tensor) -> Tensor:
        if dist.get_rank() == 1:
            raise ValueError
        return z.square()

    return [attempt(lambda: d.proportional(X, f=raising, group=group))[0], attempt(lambda: d.softmax(X, group=group))[0]]


@pytest.mark.parametrize("questions", range(0, 12, 2))
def test_a_store_that_goes_at_any_moment_is_told_by_name(questions: int, three: Processes) -> None:
    for rank, every in enumerate(three.run(of_a_store_that_goes, questions)):
        assert all(told.startswith(("RanksError", "ValueError" if rank == 1 else "RanksError")) for told in every), every


def of_first_compiled(rank: int) -> list[float]:
    """How far compiled calls, each the first of its group, and their gradients are from eager ones."""
    torch._dynamo.reset()
    x, y, weight = X.clone(), torch.tensor([0, 5, 11]), torch.linspace(-1, 1, 16, dtype=torch.float64).view(4, 4)
    calls: list[Any] = [
        lambda x, group: d.sparsemax(x, group=group),
        lambda x, group: d.cross_entropy(x, y, group=group),
        lambda x, group: d.logsumexp(x, group=group),
        lambda x, group: d.linear_loss(x, weight, y, group=group),
        lambda x, group: d.attention(x, x, x, group=group),
        lambda x, mesh: sm.cross_entropy(DTensor.from_local(x, mesh, [Shard(0)]), torch.cat([y % 4] * 3)),
    ]
    found = []
    for call in calls:
        results = []
        for each in (torch.compile(call, backend="aot_eager"), call):
            own = x.clone().requires_grad_()
            group = dist.new_group(timeout=timedelta(seconds=20))
            value = each(own, DeviceMesh.from_group(group, "cpu") if call is calls[-1] else group)
            value = value.to_local() if isinstance(value, DTensor) else value
            results.append((value.detach(), *torch.autograd.grad(value.sum(), own)))
        found.append(max(float((a - b).abs().max()) for a, b in zip(*results, strict=True)))
    return found


def test_the_first_call_of_a_group_may_be_compiled(three: Processes) -> None:
    for every in three.run(of_first_compiled):
        assert max(every) <= 1e-14, every


def of_a_wrong_group(rank: int, folder: str) -> list[str]:
    """Where the default group is the only one, and where there is another."""
    _join(rank, 3, f"{folder}/only", SECONDS)
    wrong = "x" if rank == 1 else None
    found = [attempt(lambda: d.softmax(X, group=wrong))[0], attempt(lambda: d.softmax(X))[0]]  # type: ignore[arg-type]
    found += [attempt(lambda: torch.jit.trace(d.softmax, (X,)))[0]]
    dist.new_group()
    call = d.logsumexp if rank == 1 else d.softmax
    return [*found, attempt(lambda: call(X))[0]]


def test_a_wrong_group_is_told_where_the_others_can_be_in_one_only(three: Processes, tmp_path: Path) -> None:
    for rank, (wrong, right, traced, other) in enumerate(three.run(of_a_wrong_group, str(tmp_path))):
        assert wrong.startswith("TypeError: " if rank == 1 else "RanksError: distributed.softmax: refused on rank 1: TypeError: ")
        assert "group must be a ProcessGroup, a DeviceMesh or None, got str" in wrong
        assert right == "right"
        assert "torch.jit.trace does not record what ranks send" in traced
        assert "distributed.logsumexp on rank 1" in other
        assert other.endswith("every rank must make the same calls in the same order")


# Kinds of messages, stores and devices ------------------------------------------------------------------------------------------

DTYPES = [
    torch.bool, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16, torch.float16, torch.float32, torch.float64,
    torch.complex64, torch.complex128,
]  # fmt: skip


def of_dtypes(rank: int) -> list[str]:
    """Of which dtypes a whole sequence is not what the ranks have, and gradients are not theirs."""
    wrong, whole = [], (torch.arange(14) % 3).view(7, 2)
    own = d.places(7)
    for dtype in DTYPES:
        x = whole.to(dtype)
        found = d.unshard(x[own] if dtype != torch.complex64 else x[own].conj())
        wrong += [] if torch.equal(found.to(torch.complex128), x.to(torch.complex128)) else [str(dtype)]
        if dtype.is_complex:
            shard = x[own].clone().requires_grad_()
            (slope,) = torch.autograd.grad((d.unshard(shard).abs() ** 2).sum(), shard)
            wrong += [] if torch.allclose(slope, 6 * x[own]) else [f"the gradient of {dtype}"]
    return wrong


def test_a_sequence_of_any_dtype_can_be_whole(three: Processes) -> None:
    assert three.run(of_dtypes) == [[], [], []]


class Written(dist.Store):
    """A store that is written in Python, which has no clone and deletes nothing."""

    def __init__(self, store: Any) -> None:
        super().__init__()
        self.of = store

    def set(self, key: str, value: str | bytes) -> None:
        self.of.set(key, value)

    def get(self, key: str) -> bytes:
        return self.of.get(key)

    def add(self, key: str, value: int) -> int:
        return self.of.add(key, value)

    def check(self, keys: list[str]) -> bool:
        return self.of.check(keys)

    def wait(self, keys: list[str], timeout: timedelta = timedelta(seconds=SECONDS)) -> None:
        self.of.wait(keys, timeout)


def of_a_written_store(rank: int, folder: str) -> list[str]:
    dist.destroy_process_group()
    store = Written(dist.FileStore(f"{folder}/written", 3))  # torch does not keep the object of Python
    dist.init_process_group("gloo", store=store, rank=rank, world_size=3)
    try:
        mesh = init_device_mesh("cpu", (3,))
        x = DTensor.from_local(X, mesh, [Shard(1)])
        calls = (
            lambda: d.softmax(X),
            lambda: sm.softmax(x),
            lambda: d.softmax(X, temperature=1.0 + (rank == 1)),
            lambda: d.softmax(X),
        )
        return [attempt(call)[0] for call in calls]
    finally:
        _join(rank, 3, f"{folder}/again", SECONDS)


def test_a_store_may_be_written_in_python(three: Processes, tmp_path: Path) -> None:
    for plain, of_dtensor, differing, again in three.run(of_a_written_store, str(tmp_path)):
        assert plain == of_dtensor == again == "right"
        assert "temperature must be the same on all ranks" in differing


def of_fake_ranks(rank: int, folder: str) -> list[str]:
    """In a group whose other ranks are not there, by which programs are tried out on one."""
    dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    try:
        x = DTensor.from_local(X, init_device_mesh("cpu", (2,)), [Shard(1)])
        labels, own = torch.tensor([0, 1, 2]), X.clone().requires_grad_()
        head = d.LinearLoss(4, 6, dtype=torch.float64)
        calls = [
            lambda: d.softmax(own).sum().backward(),
            lambda: d.cross_entropy(own, labels).backward(),
            lambda: head(own, labels).backward(),
            lambda: d.attention(X, X, X, is_causal=True),
            lambda: sm.softmax(x),
            lambda: sm.cross_entropy(x, labels),
            lambda: d.softmax(X, temperature=-1.0),
        ]
        return [attempt(call)[0] for call in calls]
    finally:
        _join(rank, 1, f"{folder}/again", SECONDS)


def test_a_group_of_ranks_that_are_not_there_answers_itself(one: Processes, tmp_path: Path) -> None:
    (found,) = one.run(of_fake_ranks, str(tmp_path))
    assert found[:-1] == ["right"] * 6
    assert found[-1].startswith("InputError: distributed.softmax: temperature must be positive")


def of_backends(rank: int, folder: str) -> list[float]:
    """The timeout of groups of each way to name backends, where they were told 7 seconds."""
    found = []
    for number, backend in enumerate(("gloo", "cpu:gloo", "cuda:gloo", "cpu:gloo,cuda:gloo", None)):
        dist.destroy_process_group()
        how = {"init_method": f"file://{folder}/{number}", "rank": 0, "world_size": 1, "timeout": timedelta(seconds=7)}
        dist.init_process_group(backend, **how)
        assert attempt(lambda: d.softmax(X))[0] == "right"
        found.append(ranks_of("test", None).timeout.total_seconds())
    _join(rank, 1, f"{folder}/again", SECONDS)
    return found


def test_every_way_to_name_a_backend_has_its_timeout(one: Processes, tmp_path: Path) -> None:
    assert one.run(of_backends, str(tmp_path)) == [[7.0] * 5]


def of_keys(rank: int) -> list[int]:
    """How many keys the store has after some calls, of which some fail alike on all ranks, and after many."""
    store, counts = dist.distributed_c10d._get_process_group_store(dist.group.WORLD), []  # type: ignore[arg-type]
    for calls in (4, 12):
        for _ in range(calls):
            mask, x = torch.ones(3, 4, dtype=torch.bool), X.clone().requires_grad_()
            value = d.softmax(x, where=mask).square().sum()
            mask.zero_()
            assert "changed in place" in attempt(value.backward)[0]
            assert "temperature" in attempt(lambda: d.softmax(X, temperature=1.0 + (rank == 1)))[0]
            d.softmax(X)
        dist.barrier()
        counts.append(store.num_keys())
        dist.barrier()
    return counts


def test_nothing_is_left_in_the_store_by_calls_or_errors(three: Processes) -> None:
    for few, many in three.run(of_keys):
        assert many <= few + 1  # of the barrier


# Groups that were, and layers that are not yet ----------------------------------------------------------------------------------


def of_a_destroyed_group(rank: int) -> list[tuple[str, float]]:
    group = dist.new_group(timeout=timedelta(seconds=5))
    x = X.clone().requires_grad_()
    value = d.softmax(x, group=group).square().sum()
    dist.destroy_process_group(group)
    assert weakref.ref(group)() is group
    return [attempt(lambda: d.softmax(X, group=group)), attempt(value.backward)]


def test_a_destroyed_group_is_told_at_once(three: Processes) -> None:
    for found in three.run(of_a_destroyed_group):
        for told, seconds in found:
            assert told.startswith("RuntimeError: distributed")
            assert "was destroyed; make another" in told
            assert seconds < TOO_LATE


def of_layers_without_memory(rank: int) -> list[float]:
    """How far first values that are drawn later are from those drawn at once."""
    makes = (
        lambda device: d.LinearLoss(4, 7, bias=True, device=device),
        lambda device: d.MarginSoftmax(4, 7, device=device),
        lambda device: d.SampledSoftmax(4, 7, 2, device=device),
    )
    found = []
    for make in makes:
        later = make("meta")
        assert all(parameter.is_meta for parameter in later.parameters())
        later = later.to_empty(device="cpu")
        torch.manual_seed(0)
        later.reset_parameters()
        torch.manual_seed(0)
        now = make("cpu")
        later(X.float(), torch.tensor([0, 6, 3])).backward()
        pairs = zip(now.parameters(), later.parameters(), strict=True)
        found += [float((a.full_tensor() - b.full_tensor()).abs().max()) for a, b in pairs]
    return found


def test_a_layer_may_be_given_memory_later(three: Processes) -> None:
    assert all(set(found) == {0.0} for found in three.run(of_layers_without_memory))
