"""Losses and sums of scores that processes share: a step, what it sends, and what messages of each size take.

Every step is a forward and a backward pass, after a barrier, and its time that of the first rank, which has none before all have
sent. Messages are counted where torch dispatches them, whoever sends them.
"""

from __future__ import annotations

import pickle
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import loss_parallel
from torch.multiprocessing.spawn import spawn
from torch.utils._python_dispatch import TorchDispatchMode

import softmaxima as sm
from softmaxima.base.numbers import InputError, check_choice
from softmaxima.distributed.messages import ALL_GATHER
from softmaxima.distributed.ranks import ranks_of
from softmaxima_lab.bench.case import OURS, Case, Found, Group, Place, Result, Trial, Wanted, farthest, run_trial, sizes_of
from softmaxima_lab.bench.clock import Call, Clock
from softmaxima_lab.bench.workers import leave

SIZES, QUICK_SIZES = ("1x256x131072", "2x256x131072", "4x256x131072"), ("1x16x4096", "2x16x4096")
TASKS = ("cross_entropy", "sparsemax_loss", "logsumexp")
SCALINGS = {"strong": None, "weak": 4}  # on how many ranks there are so many classes: on all of them, or on four
GATHERED, TORCH, MESSAGE, HANDSHAKE = "gathered", "loss_parallel", "all-gather", "handshake"
BYTES = tuple(2**k for k in range(10, 25, 2))  # of a message, of each rank
FEW_BYTES, HANDSHAKES = 2, 20
KINDS = {
    "allgather_base": "all-gather", "allgather": "all-gather", "all_gather_into_tensor": "all-gather",
    "allreduce": "all-reduce", "all_reduce": "all-reduce",
}  # fmt: skip
TOLERANCE = 2e-5  # of float32 results beside those of all scores


def read_size(text: str) -> tuple[int, ...]:
    """(ranks, rows, classes of all ranks)"""
    ranks, rows, classes = sizes_of(text, 3, "ranks x rows x classes, as in 2x256x131072")
    for count in (ranks, 4):
        if classes % count:
            raise InputError(
                f"`shapes`: {classes} classes are not the same number on each of {count} ranks; give a multiple of {count}"
            )
    return ranks, rows, classes


def _cases(wanted: Wanted) -> list[Case]:
    """All tasks on so many ranks together."""
    tasks = tuple(check_choice("bench", "CASES", name, TASKS) for name in wanted.names) or TASKS
    sizes = wanted.sizes or (QUICK_SIZES if wanted.quick else SIZES)
    if wanted.device != "cpu" or wanted.dtypes not in ((), ("float32",)):
        raise InputError("CASES: ranks are measured on the CPU, in float32; leave out --device and --dtype")
    return [Case("ranks", "; ".join(tasks), "x".join(map(str, read_size(size))), "float32") for size in sizes]


class Messages(TorchDispatchMode):
    """Counts the collectives in its block, and the bytes that this rank gives to them."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: Counter[str] = Counter()
        self.bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the operation, and look at its name; those of DTensors come once more, of what each rank has."""
        if any(issubclass(each, DTensor) for each in types):
            return NotImplemented
        space, _, name = function.name().partition("::")
        kind = KINDS.get(name.partition(".")[0].strip("_")) if space in ("c10d", "_c10d_functional") else None
        if kind is not None:
            self.kinds[kind] += 1
            given = args[1] if name.startswith("_allgather_base") else args[0]
            self.bytes += sum(x.nbytes for x in (given if isinstance(given, (list, tuple)) else [given]))
        return function(*args, **(kwargs or {}))


class ClockOfRanks(Clock):
    """The CPU's, after a barrier."""

    def burst(self, run: Call, count: int) -> list[float]:
        seconds = []
        for _ in range(count):
            dist.barrier()
            seconds += super().burst(run, 1)
        return seconds


def _run(case: Case, place: Place, known: Sequence[Result] = (), timed: bool = True) -> Found:
    """What the first of so many processes finds."""
    ranks, _, _ = read_size(case.size)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # pyright: ignore[reportPrivateImportUsage]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "found")
        spawn(_rank, (store.port, path, case, place), nprocs=ranks)
        return Found(pickle.loads(path.read_bytes()))


def _rank(rank: int, port: int, path: Path, case: Case, place: Place) -> None:
    ranks, rows, classes = read_size(case.size)
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port)  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(minutes=5))
    mesh, found = DeviceMesh("cpu", list(range(ranks))), []
    for task in case.name.split("; "):
        for scaling, on in SCALINGS.items():
            share = classes // (on or ranks)
            own = Case("ranks", f"{task}, {scaling}", f"{ranks}x{rows}x{share * ranks}", case.dtype)
            found += run_trial(own, _trial(task, own, mesh, rows, share), ClockOfRanks(), place).results
    for size in (BYTES[:FEW_BYTES] if place.passes == RANKS.quick else BYTES) if ranks > 1 else ():
        found.append(Result(Case("ranks", MESSAGE, f"{ranks}x{size}", "uint8"), seconds=_seconds_of_message(ranks, size)))
    if ranks > 1:
        found.append(Result(Case("ranks", HANDSHAKE, f"{ranks}", "uint8"), seconds=_seconds_of_handshake()))
    if rank == 0:
        path.write_bytes(pickle.dumps(found))
    dist.destroy_process_group()
    leave()


def _trial(task: str, case: Case, mesh: DeviceMesh, rows: int, share: int) -> Trial:
    rng = torch.Generator().manual_seed(dist.get_rank())
    x = (3 * torch.randn(rows, share, generator=rng)).requires_grad_()
    target = torch.randint(share * mesh.size(), (rows,), generator=torch.Generator().manual_seed(1000))
    calls, values = _ways(task, mesh, x, target), {}
    messages: dict[str, dict[str, int]] = {}
    sent: dict[str, int] = {}
    for name, call in calls.items():
        with Messages() as counted:
            values[name] = call()
        messages[name], sent[name] = dict(counted.kinds), counted.bytes

    def off(name: str, found: Sequence[Tensor]) -> float:
        """Of the rank that is the farthest, so that all go on or none."""
        far = torch.tensor(farthest(found, values[GATHERED]) / TOLERANCE)
        dist.all_reduce(far, dist.ReduceOp.MAX)
        return float(far)

    facts = {"messages": messages, "sent": sent}
    return Trial({name: [call] for name, call in calls.items()}, lambda name: off(name, values[name]), off, facts={OURS: facts})


def _ways(task: str, mesh: DeviceMesh, x: Tensor, target: Tensor) -> dict[str, Callable[[], Sequence[Tensor]]]:
    """A step, which gives its value and the gradient by this rank's scores: ours, torch's, and of scores that all ranks gather."""
    labels = () if task == "logsumexp" else (target,)
    ours, whole = getattr(sm.distributed, task), getattr(sm, task)

    def shared() -> Sequence[Tensor]:
        value = ours(x, *labels)
        return value, *torch.autograd.grad(value.sum(), x)

    def gathered() -> Sequence[Tensor]:
        scores = _gathered(x.detach(), mesh.size()).requires_grad_()
        value = whole(scores, *labels)
        (slope,) = torch.autograd.grad(value.sum(), scores)
        return value, slope.split(x.shape[1], 1)[dist.get_rank()]

    def parallel() -> Sequence[Tensor]:
        scores: Any = DTensor.from_local(x.detach(), mesh, [Shard(1)]).requires_grad_()
        with loss_parallel():
            value: Any = torch.nn.functional.cross_entropy(scores, DTensor.from_local(target, mesh, [Replicate()]))
            value.backward()
        return value.full_tensor(), scores.grad.to_local()

    found = {OURS: shared, GATHERED: gathered}
    return found | ({TORCH: parallel} if task == "cross_entropy" and mesh.size() > 1 else {})


def _gathered(x: Tensor, size: int) -> Tensor:
    if size == 1:
        return x.clone()
    every = x.new_empty((size, *x.shape))
    ALL_GATHER(every.view(-1), x.contiguous().view(-1), None)
    return torch.cat(list(every), 1)


def _seconds_of_message(ranks: int, size: int) -> float:
    """Of an all-gather of so many bytes from each rank."""
    message, every = torch.zeros(size, dtype=torch.uint8), torch.zeros(ranks * size, dtype=torch.uint8)
    return median(ClockOfRanks().burst(lambda: ALL_GATHER(every, message, None), 12)[2:])


def _seconds_of_handshake() -> float:
    """In which the ranks agree on what they have, as they do before each call."""
    ranks = ranks_of("bench", None)
    return median(Clock().burst(lambda: ranks.agree("bench", 1, {}), HANDSHAKES))


RANKS = Group(_cases, _run, {"cpu": ("torch",), "cuda": ()}, passes=7, quick=2)
