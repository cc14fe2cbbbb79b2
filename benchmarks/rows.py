"""The rows of the result: a subject on scores of a shape, checked, then timed beside its peers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.checks import deviation, expect, is_lost, poison
from benchmarks.peers import OUR_CPU, Peer, peers_of
from benchmarks.subjects import SUBJECTS, Problem, call, problem
from benchmarks.timing import Measured, Times, measure
from benchmarks.workers import Last, describe
from softmaxima.experiments.bench import PEER_TOLERANCE
from softmaxima.experiments.check import TOLERANCE
from softmaxima.experiments.subjects import DIRECTIONS, Direction

# Rows × scores, the most important first.
SHAPES = ((4096, 32000), (8192, 4096), (2048, 128256), (16384, 1024), (64, 2**22), (16384, 128))
QUICK_SHAPES = ((8, 1024), (32, 128))
CPU_SHAPES = (SHAPES[0], SHAPES[1])  # on which our CPU path is measured, in float32
DTYPES = ("float32", "bfloat16")
OURS = "softmaxima"
CACHES = 4  # the buffers together, in caches
SECONDS, QUICK_SECONDS = 0.04, 0.0  # for each way of timing each call


@dataclass(frozen=True)
class Row:
    """A subject on rows × n scores of a dtype."""

    title: str
    rows: int
    n: int
    dtype: str
    direction: Direction

    def __str__(self) -> str:
        return f"{self.rows}x{self.n} {self.dtype} {self.title}, {self.direction}"

    @property
    def scores_bytes(self) -> int:
        return self.rows * self.n * self.torch_dtype.itemsize

    @property
    def bytes(self) -> int:
        return SUBJECTS[self.title].bytes(self.rows, self.n, self.torch_dtype.itemsize, self.direction)

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)


@dataclass(frozen=True)
class Place:
    """Where rows are measured."""

    device: str
    cache: int  # bytes
    packages: tuple[str, ...]  # of peers
    seconds: float = SECONDS


@dataclass(frozen=True)
class Verdict:
    """Of ours or of a peer. `units` of the tolerance; a peer is right up to PEER_TOLERANCE as a share of the row's largest."""

    units: float = math.inf
    error: float = math.inf
    problem: str = ""


@dataclass(frozen=True)
class Result:
    """What is known of a row: a verdict on each that computes it, and the times of those that are right."""

    row: Row
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    times: dict[str, Times] = field(default_factory=dict)
    problem: str = ""  # why ours is not timed

    @property
    def right(self) -> bool:
        return not self.problem and OURS in self.verdicts and not self.verdicts[OURS].problem

    @property
    def awaits_timing(self) -> bool:
        return self.right and OURS not in self.times

    @property
    def bytes_a_second(self) -> float | None:
        return self.row.bytes / self.times[OURS].seconds if OURS in self.times else None

    def ratio(self, label: str) -> float | None:
        """Time of the peer / time of ours, both by graph where both have one, and both by events otherwise."""
        if OURS not in self.times or label not in self.times:
            return None
        ours, theirs = self.times[OURS], self.times[label]
        if ours.graph is not None and theirs.graph is not None:
            return theirs.graph.seconds / ours.graph.seconds
        return theirs.events.seconds / ours.events.seconds


def planned(quick: bool) -> list[Row]:
    """All rows, the most important first: subjects, shapes and dtypes count together, so that of each something comes early."""
    shapes = QUICK_SHAPES if quick else SHAPES
    order: dict[Row, int] = {
        Row(title, *shape, dtype, direction): at_subject + 3 * at_shape + at_dtype + at_direction
        for at_subject, (title, subject) in enumerate(SUBJECTS.items())
        for at_shape, shape in enumerate(shapes)
        for at_dtype, dtype in enumerate(DTYPES)
        for at_direction, direction in enumerate(DIRECTIONS)
        if direction in subject.directions
    }
    return sorted(order, key=order.__getitem__)


# Tasks ----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowTask:
    """A row to check, or, with the labels of those that are right, to time."""

    row: Row
    place: Place
    labels: tuple[str, ...] = ()
    without_graph: Mapping[str, str] = field(default_factory=dict)

    @property
    def peers(self) -> Iterator[Peer]:
        row = self.row
        on_cpu = (row.rows, row.n) in CPU_SHAPES and row.dtype == "float32"
        return peers_of(row.title, row.n, self.place.packages, self.place.device, on_cpu)

    def problem(self, seed: int = 0) -> Problem:
        row = self.row
        return problem(SUBJECTS[row.title], row.rows, row.n, row.torch_dtype, self.place.device, seed=seed)


def check_row(task: RowTask) -> Result:
    """Ours and the peers against what is right. On the way all kernels are compiled into the caches on disk."""
    row, subject, dtype = task.row, SUBJECTS[task.row.title], task.row.torch_dtype
    given = task.problem()
    expected = expect(subject, given)
    verdicts: dict[str, Verdict] = {}
    ours = Peer(OURS, OURS, subject)
    for peer in (ours, *task.peers):
        most = 1.0 if peer is ours else PEER_TOLERANCE / TOLERANCE[dtype]
        try:
            its_own = given.to("cpu") if peer.on_cpu else given.with_own_scores() if peer.overwrites else given
            poison(its_own.x)
            with torch.set_grad_enabled(row.direction == "forward+backward"):
                computed = call(peer.function, its_own, row.direction)()
            found = deviation(expected, computed, dtype, selection=subject.is_selection and peer is not ours)
            wrong = "" if found.units <= most else f"{found.units:.3g} times the tolerance away from the float64 definition"
            verdicts[peer.label] = Verdict(found.units, found.error, wrong)
        except Exception as error:
            if is_lost(task.place.device):
                raise
            verdicts[peer.label] = Verdict(problem=describe(error))
        if peer is ours and verdicts[OURS].problem:
            break
    _empty_cache(task.place.device)
    return Result(row, verdicts, problem=verdicts[OURS].problem)


def time_row(task: RowTask) -> Measured | Last[Measured]:
    """The times of those whose labels are given."""
    row, place = task.row, task.place
    peers = {peer.label: peer for peer in (Peer(OURS, OURS, SUBJECTS[row.title]), *task.peers) if peer.label in task.labels}
    buffers = [task.problem(seed) for seed in range(max(2, math.ceil(CACHES * place.cache / row.bytes)))]
    on_cpu = peers.pop(OUR_CPU, None)
    waiting = {label: "it waits for a number from the device" for label, peer in peers.items() if peer.waits}
    with torch.set_grad_enabled(row.direction == "forward+backward"):
        calls = {label: _calls(peer, buffers, row.direction) for label, peer in peers.items()}
        found = measure(calls, place.device, place.seconds, {**waiting, **task.without_graph})
        if on_cpu is not None:
            runs = _calls(on_cpu, [buffers[0].to("cpu")], row.direction)
            found.times.update(measure({OUR_CPU: runs}, "cpu", place.seconds, {}).times)
    del calls, buffers
    if found.not_captured:  # which leaves the allocator of the process in a state that it does not recover from
        return Last(found)
    _empty_cache(place.device)
    return found


def _empty_cache(device: str) -> None:
    if device != "cpu":
        torch.cuda.empty_cache()


def _calls(peer: Peer, buffers: list[Problem], direction: Direction) -> list[Callable[[], Any]]:
    return [call(peer.function, given.with_own_scores() if peer.overwrites else given, direction) for given in buffers]
