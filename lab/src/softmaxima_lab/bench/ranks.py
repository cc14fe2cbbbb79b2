"""Losses and sums of scores that are shared among processes: seconds of a step, what it sends, and what messages of each size take.

Every step is a forward and a backward pass. All ways to take it have turns, after a barrier, and the seconds are those of the first
rank, which has none before all have sent. Messages are counted where torch dispatches them, whoever sends them.
"""

from __future__ import annotations

import itertools
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date, timedelta
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
from softmaxima.core.writing import finite, write_text
from softmaxima.distributed.ranks import ALL_GATHER, ranks_of
from softmaxima_lab.bench.clocks import Quotient
from softmaxima_lab.bench.machine import commit, machine, versions
from softmaxima_lab.bench.workers import leave

ROWS, CLASSES = 256, 131_072
RANKS = (1, 2, 4)
TASKS = ("cross_entropy", "sparsemax_loss", "logsumexp")
OURS, TORCH, GATHERED = "ours", "loss_parallel", "gathered"
SCALINGS = ("strong", "weak")  # so many classes in all, or on each rank
PASSES = 7
SIZES = tuple(2**k for k in range(10, 25, 2))  # bytes of a message, of each rank
HANDSHAKES = 20
KINDS = {
    "allgather_base": "all-gather", "allgather": "all-gather", "all_gather_into_tensor": "all-gather",
    "allreduce": "all-reduce", "all_reduce": "all-reduce",
}  # fmt: skip
TOLERANCE = 2e-5  # of float32 results beside those of all scores


@dataclass(frozen=True)
class Case:
    """A function, over so many classes in all that so many ranks share."""

    task: str
    scaling: str
    ranks: int
    classes: int

    def __str__(self) -> str:
        return f"{self.task} of {self.classes} classes on {self.ranks} rank{'s' * (self.ranks > 1)}"


@dataclass(frozen=True)
class Result:
    """Of a step, by who takes it."""

    case: Case
    seconds: dict[str, float]
    ratios: dict[str, Quotient]  # time of each other way / ours, of the same turns
    messages: dict[str, dict[str, int]]  # how many of each kind
    sent: dict[str, int]  # bytes that one rank gives to them
    problem: str = ""


@dataclass(frozen=True)
class Message:
    """An all-gather of so many bytes from each rank."""

    ranks: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class Benchmark:
    rows: int
    results: list[Result]
    messages: list[Message]
    handshakes: dict[str, float]  # seconds in which so many ranks agree on what they have
    date: str = ""
    commit: str | None = None
    machine: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


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


def bench(
    rows: int,
    classes: int,
    ranks: Sequence[int],
    tasks: Sequence[str],
    passes: int,
    sizes: Sequence[int],
    starting: Callable[[str], None],
) -> Benchmark:
    """Measure the tasks on groups of each size of processes, one after the other."""
    results, messages, handshakes = [], [], {}
    for size in ranks:
        starting(f"{size} rank{'s' * (size > 1)}")
        found = _on_ranks(size, rows, classes, tasks, passes, sizes)
        results += [_result(entry) for entry in found["results"]]
        messages += [Message(size, count, seconds) for count, seconds in found["messages"]]
        if size > 1:
            handshakes[str(size)] = found["handshake"]
    results.sort(key=lambda result: (tasks.index(result.case.task), SCALINGS.index(result.case.scaling), result.case.ranks))
    return Benchmark(rows, results, messages, handshakes, date.today().isoformat(), commit(), machine(), versions())


def _on_ranks(size: int, *plan: Any) -> dict[str, Any]:
    """What the first of so many processes finds."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # pyright: ignore[reportPrivateImportUsage]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "found.json")
        spawn(_rank, (size, store.port, path, *plan), nprocs=size)
        return json.loads(path.read_text())


def _rank(
    rank: int, size: int, port: int, path: Path, rows: int, classes: int, tasks: Sequence[str], passes: int, sizes: Sequence[int]
) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port)  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(minutes=5))
    mesh = DeviceMesh("cpu", list(range(size)))
    shares = {"strong": classes // size, "weak": classes // 4}
    results = [
        _measure(Case(task, scaling, size, share * size), rank, mesh, rows, share, passes)
        for task in tasks
        for scaling, share in shares.items()
    ]
    found = {
        "results": [asdict(result) for result in results],
        "messages": [(count, _message(size, count)) for count in sizes] if size > 1 else [],
        "handshake": _handshake(),
    }
    if rank == 0:
        path.write_text(json.dumps(found))
    dist.destroy_process_group()
    leave()


def _measure(case: Case, rank: int, mesh: DeviceMesh, rows: int, share: int, passes: int) -> Result:
    rng = torch.Generator().manual_seed(rank)
    x = (3 * torch.randn(rows, share, generator=rng)).requires_grad_()
    target = torch.randint(case.classes, (rows,), generator=torch.Generator().manual_seed(1000))
    calls = dict(_ways(case, mesh, x, target))
    values, messages, sent = {}, {}, {}
    for way, call in calls.items():
        with Messages() as counted:
            values[way] = [value.detach().double() for value in call()]
        messages[way], sent[way] = dict(counted.kinds), counted.bytes
    turns: dict[str, dict[int, list[float]]] = {way: {} for way in calls}
    for number, (way, call) in itertools.product(range(passes), calls.items()):
        dist.barrier()
        begun = time.perf_counter()
        call()
        turns[way][number] = [time.perf_counter() - begun]
    far = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(values[OURS], values[GATHERED], strict=True))
    seconds = {way: median(itertools.chain.from_iterable(each.values())) for way, each in turns.items()}
    ratios = {way: quotient for way in calls if way != OURS and (quotient := Quotient.of(turns[way], turns[OURS])) is not None}
    problem = "" if far <= TOLERANCE else f"{far:.2g} away from the same of all scores"
    return Result(case, seconds, ratios, messages, sent, problem)


def _ways(case: Case, mesh: DeviceMesh, x: Tensor, target: Tensor) -> Iterator[tuple[str, Callable[[], Sequence[Tensor]]]]:
    """A step, which gives its value and the gradient by this rank's scores: ours, torch's, and of scores that all ranks gather."""
    labels = () if case.task == "logsumexp" else (target,)
    ours, whole = getattr(sm.distributed, case.task), getattr(sm, case.task)

    def shared() -> Sequence[Tensor]:
        value = ours(x, *labels)
        return value, *torch.autograd.grad(value.sum(), x)

    def gathered() -> Sequence[Tensor]:
        scores = _gathered(x.detach(), case.ranks).requires_grad_()
        value = whole(scores, *labels)
        (slope,) = torch.autograd.grad(value.sum(), scores)
        return value, slope.split(x.shape[1], 1)[dist.get_rank()]

    def parallel() -> Sequence[Tensor]:
        scores: Any = DTensor.from_local(x.detach(), mesh, [Shard(1)]).requires_grad_()
        with loss_parallel():
            value: Any = torch.nn.functional.cross_entropy(scores, DTensor.from_local(target, mesh, [Replicate()]))
            value.backward()
        return value.full_tensor(), scores.grad.to_local()

    yield OURS, shared
    yield GATHERED, gathered
    if case.task == "cross_entropy" and case.ranks > 1:
        yield TORCH, parallel


def _gathered(x: Tensor, size: int) -> Tensor:
    if size == 1:
        return x.clone()
    every = x.new_empty((size, *x.shape))
    ALL_GATHER(every.view(-1), x.contiguous().view(-1), None)
    return torch.cat(list(every), 1)


def _message(size: int, count: int) -> float:
    """Seconds of an all-gather of so many bytes from each rank."""
    message, every, seconds = torch.zeros(count, dtype=torch.uint8), torch.zeros(size * count, dtype=torch.uint8), []
    for _ in range(12):
        dist.barrier()
        begun = time.perf_counter()
        ALL_GATHER(every, message, None)
        seconds.append(time.perf_counter() - begun)
    return median(seconds[2:])


def _handshake() -> float:
    """Seconds in which the ranks agree on what they have, as they do before each call."""
    ranks, seconds = ranks_of("bench-ranks", None), []
    for _ in range(HANDSHAKES):
        begun = time.perf_counter()
        ranks.agree("bench-ranks", 1, {})
        seconds.append(time.perf_counter() - begun)
    return median(seconds)


def write(benchmark: Benchmark, path: Path) -> None:
    """Write the JSON. The file appears complete or not at all."""
    write_text(path, json.dumps(finite(asdict(benchmark)), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read(path: Path) -> Benchmark:
    """The benchmark in a file."""
    record = json.loads(path.read_text(encoding="utf-8"))
    results = [_result(entry) for entry in record["results"]]
    return Benchmark(**{**record, "results": results, "messages": [Message(**entry) for entry in record["messages"]]})


def _result(entry: dict[str, Any]) -> Result:
    ratios = {name: Quotient(**quotient) for name, quotient in entry["ratios"].items()}
    return Result(**{**entry, "case": Case(**entry["case"]), "ratios": ratios})
