"""What a benchmark is to measure, and in which order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from softmaxima.core.numbers import InputError
from softmaxima_lab.bench.checks import CheckTask, check_tasks
from softmaxima_lab.bench.peers import OUR_CPU, PACKAGES, Peer, peers_of
from softmaxima_lab.bench.subjects import Direction, Problem, Shape, Subject, problem, read_shape

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}

# What is measured on each device if nothing else is asked for, and for how many seconds each call.
SHAPES = {
    "cpu": ("4096x64", "1024x1024", "256x32000", "64x128256"),
    "cuda": ("4096x32000", "8192x4096", "2048x128256", "16384x1024", "64x4194304", "16384x128"),
}
QUICK_SHAPES = ("1024x64", "64x4096")
OUR_CPU_SHAPES = SHAPES["cuda"][:2]  # on which our CPU path is measured beside a GPU, in float32
DEFAULT_DTYPES = {"cpu": ("float32",), "cuda": ("float32", "bfloat16")}
SECONDS = {"cpu": 0.5, "cuda": 0.04}
QUICK_SECONDS = 0.03
MOST_THREADS = 1024
MOST_NEIGHBOURS = 1024
OVERHEAD_SCORES = 16
OVERHEADS = ("logsumexp", "softmax", "log_softmax", "cross_entropy")  # what torch has under the same name, as one operation


@dataclass(frozen=True)
class Settings:
    """What to measure, and for how long. What is None is as the device has it: shapes, peers and dtypes all that there are,
    threads as many as torch takes, processes as many as a GPU has room for, and none but this one on the CPU.
    """

    device: str = "cpu"
    shapes: tuple[Shape, ...] | None = None
    peers: tuple[str, ...] | None = None
    dtypes: tuple[str, ...] | None = None
    threads: int | None = None
    seconds: float | None = None  # for each call on a row
    budget: float = math.inf  # seconds for everything
    seed: int = 0
    lengths: tuple[int, ...] = ()  # of rows on which all kernels are checked first
    processes: int | None = None
    neighbours: int = 0  # processes that do nothing but take time of the processor

    def __post_init__(self) -> None:
        if self.device not in PACKAGES:
            raise InputError(f"`device` must be one of {', '.join(PACKAGES)}, got {self.device!r}")
        known = PACKAGES[self.device]
        defaults: dict[str, Any] = {
            "shapes": tuple(map(read_shape, SHAPES[self.device])),
            "peers": known,
            "dtypes": DEFAULT_DTYPES[self.device],
            "seconds": SECONDS[self.device],
        }
        for name, value in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        for name in self.peers or ():
            if name not in known:
                raise InputError(f"`peers`: there is no peer {name!r} on {self.device}; choose among: {', '.join(known)}")
        for dtype in self.dtypes or ():
            if dtype not in DTYPES:
                raise InputError(f"there is no dtype {dtype!r} here; choose among: {', '.join(DTYPES)}")
        if self.threads is not None and not 1 <= self.threads <= MOST_THREADS:
            raise InputError(f"`threads` must be from 1 to {MOST_THREADS}, got {self.threads}")
        if not 0 <= self.neighbours <= MOST_NEIGHBOURS:
            raise InputError(f"`neighbours` must be from 0 to {MOST_NEIGHBOURS}, got {self.neighbours}")
        if not self.budget > 0:
            raise InputError(f"`budget` must be more than 0 seconds, got {self.budget:g}")

    @property
    def in_processes(self) -> bool:
        return self.device != "cpu" if self.processes is None else self.processes > 0


@dataclass(frozen=True)
class Place:
    """Where and how rows are measured."""

    device: str
    packages: tuple[str, ...]
    seconds: float
    seed: int


@dataclass(frozen=True, eq=False)
class RowTask:
    """A row to check, or, with the labels of those that are right, to time."""

    subject: Subject
    shape: Shape
    dtype: str
    direction: Direction
    place: Place
    labels: tuple[str, ...] = ()
    without_graph: Mapping[str, str] = field(default_factory=dict)
    lost: str = ""  # how a process ended over it; then it goes on without peers

    @property
    def key(self) -> tuple[str, ...]:
        return str(self.shape), self.dtype, self.subject.title, self.direction

    def __str__(self) -> str:
        return f"{self.shape} {self.dtype}: {self.subject.title}, {self.direction}"

    @property
    def peers(self) -> tuple[Peer, ...]:
        if self.lost:
            return ()
        on_cpu = str(self.shape) in OUR_CPU_SHAPES and self.dtype == "float32"
        packages = [name for name in self.place.packages if name != OUR_CPU or on_cpu]
        return tuple(peers_of(self.subject, self.shape, packages, self.direction))

    def problem(self, seed: int = 0) -> Problem:
        return problem(self.subject, self.shape, DTYPES[self.dtype], self.place.device, seed=self.place.seed + seed)


@dataclass(frozen=True)
class GroundTask:
    """A shape whose copy is to be timed."""

    shape: Shape
    dtype: str
    place: Place

    def __str__(self) -> str:
        return f"{self.shape} {self.dtype}: copy"


@dataclass(frozen=True, eq=False)
class OverheadTask:
    """A function whose calls on few scores are to be timed, beside torch's."""

    subject: Subject
    dtype: str
    place: Place

    def __str__(self) -> str:
        return f"{OVERHEAD_SCORES} scores: {self.subject.title}"


@dataclass(frozen=True)
class Plan:
    """Everything that is to be done, in the order of its tables."""

    checks: tuple[CheckTask, ...]
    grounds: tuple[GroundTask, ...]
    rows: tuple[RowTask, ...]
    overheads: tuple[OverheadTask, ...]

    def __len__(self) -> int:
        """How often `bench` calls `starting`."""
        return len(self.checks) + len(self.grounds) + len(self.rows) + len(self.overheads)

    @property
    def rows_by_weight(self) -> list[RowTask]:
        """The most important first: subjects of a kind, shapes and dtypes count together, so that of each something comes early."""
        orders = [list(dict.fromkeys(found)) for found in zip(*(self._places(task) for task in self.rows), strict=True)]

        def weight(task: RowTask) -> int:
            subject, shape, dtype, direction = (order.index(place) for order, place in zip(orders, self._places(task), strict=True))
            of_kind = [title for kind, title in orders[0] if kind == task.subject.kind]
            return of_kind.index(orders[0][subject][1]) + 3 * shape + dtype + direction

        return sorted(self.rows, key=weight)

    @staticmethod
    def _places(task: RowTask) -> tuple[Any, ...]:
        return (task.subject.kind, task.subject.title), str(task.shape), task.dtype, task.direction


def plan(settings: Settings, chosen: Sequence[Subject], packages: tuple[str, ...] = ()) -> Plan:
    """What is measured: losses only where rows lie along axis 1. Raises `InputError` where nothing is."""
    shapes, dtypes = settings.shapes or (), settings.dtypes or ()
    place = Place(settings.device, packages, settings.seconds or 0.0, settings.seed)
    rows = tuple(
        RowTask(subject, shape, dtype, direction, place)
        for shape in shapes
        for dtype in dtypes
        for subject in chosen
        if subject.kind != "loss" or shape.takes_losses
        for direction in subject.directions
    )
    if not rows:
        raise InputError(
            f"`shapes`: losses are measured on rows x classes, as in 256x32000, got only {', '.join(map(str, shapes))}"
        )
    grounds = dict.fromkeys((task.shape, task.dtype) for task in rows)
    return Plan(
        tuple(check_tasks(settings.device, settings.lengths)),
        tuple(GroundTask(shape, dtype, place) for shape, dtype in grounds),
        rows,
        tuple(OverheadTask(s, dtype, place) for dtype in dtypes[:1] for s in chosen if s.name in OVERHEADS),
    )
