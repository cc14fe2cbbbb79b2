"""bench: every map and loss, logsumexp and its relatives, beside what people use today: torch, the entmax package and scipy, in
the same run.

Nothing is timed before its values, and with the backward pass its gradients, agree with the float64 definition on a few rows.
Then ours and the peers take turns, ours A, peer B: A B A B …, so that a machine that is busy for a while slows all of them.

    ratio      median time of the peer / median time of ours
    bytes      inputs read once + outputs written once, the traffic that no implementation can avoid. Forward: x → p. With the
               backward pass: x and the upstream gradient g → p and ∂x for a map, x → ∂x for a loss, as if both were one kernel.
    copy       x → out by `out.copy_(x)`, the bandwidth that a result is held against
    floor      the time of `x.clone()` and of `x.amax(axis)`: the result allocated and written, and one more read of the row

Forward is timed under `no_grad` on scores without grad; the backward pass with a fixed upstream
gradient, for a loss with that of its mean.
"""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import metadata, util
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

import softmaxima as sm
from softmaxima.experiments import InputError
from softmaxima.experiments.check import TOLERANCE, Expected, deviation, expect
from softmaxima.experiments.peers import PACKAGES, PEERS, peers_of
from softmaxima.experiments.subjects import (
    Direction,
    Problem,
    Shape,
    Subject,
    call,
    normal,
    problem,
    read_shape,
    subjects,
)
from softmaxima.experiments.sums import Sum

SHAPES = ("4096x64", "1024x1024", "256x32000", "64x128256")
QUICK_SHAPES = ("1024x64", "64x4096")
SECONDS, QUICK_SECONDS = 1.5, 0.1  # for a row of the result
RUNS = 5  # of each call at least
SLOW, SLOW_RUNS = 1.0, 2  # but only so many of one that takes more seconds than this
BURST, BURST_SECONDS = 20, 0.02  # calls of one in its turn: at most so many, and for so long
OURS = "softmaxima"
OVERHEAD_SCORES = 16
OVERHEAD_CALLS = 50  # timed as one

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
PEER_TOLERANCE = 0.1  # a peer may be coarser than we are, but must compute the same thing


@dataclass(frozen=True)
class Settings:
    """What to measure, and for how long. Without threads: as many as torch takes."""

    shapes: tuple[Shape, ...] = tuple(map(read_shape, SHAPES))
    peers: tuple[str, ...] = ("torch", "entmax", "scipy")
    dtype: str = "float32"
    threads: int | None = None
    seconds: float = SECONDS  # for a row of the result
    seed: int = 0

    def __post_init__(self) -> None:
        for name in self.peers:
            if name not in PACKAGES:
                raise InputError(f"--peers: there is no peer {name!r}; choose among: {', '.join(PACKAGES)}")
        if self.dtype not in DTYPES:
            raise InputError(f"--dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")
        if self.threads is not None and self.threads < 1:
            raise InputError(f"--threads must be at least 1, got {self.threads}")

    @property
    def installed_peers(self) -> tuple[str, ...]:
        return tuple(name for name in self.peers if util.find_spec(name) is not None)


# What comes out -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timing:
    """The median of so many runs."""

    seconds: float
    runs: int


@dataclass(frozen=True)
class PeerResult:
    """A peer's time, or why there is none. `deviation` is in units of our tolerance."""

    label: str
    deviation: float | None
    problem: str = ""
    timing: Timing | None = None


@dataclass(frozen=True)
class Row:
    """A subject on a shape. `deviation` is in units of the tolerance, so at most 1 is right; None: there is no definition."""

    name: str
    title: str
    kind: str
    options: Mapping[str, Any]
    shape: str
    direction: Direction
    bytes: int
    verdict: Literal["right", "wrong", "unchecked"]
    deviation: float | None
    timing: Timing | None = None  # None where it is wrong
    peers: tuple[PeerResult, ...] = ()
    problem: str = ""

    def ratio(self, label: str) -> float | None:
        """Median time of the peer / median time of ours; None where either has none."""
        theirs = next((peer.timing for peer in self.peers if peer.label == label), None)
        return None if self.timing is None or theirs is None else theirs.seconds / self.timing.seconds

    @property
    def bytes_a_second(self) -> float | None:
        return None if self.timing is None else self.bytes / self.timing.seconds


@dataclass(frozen=True)
class Ground:
    """What a shape costs before anything is computed, and whether torch and we disturb each other there."""

    shape: str
    scores: int
    bytes: int  # of a copy: one read and one write
    clone: Timing
    copy: Timing
    amax: Timing
    torch_alone: Timing  # torch.softmax
    ours_alone: Timing  # sm.softmax
    alternating: Timing  # one of each, in turns

    @property
    def floor(self) -> float:
        return self.clone.seconds + self.amax.seconds

    @property
    def bytes_a_second(self) -> float:
        return self.bytes / self.copy.seconds

    @property
    def disturbance(self) -> float:
        """Time of one of each in turns / the sum of the two alone: above 1 where their threads compete for the cores."""
        return self.alternating.seconds / (self.torch_alone.seconds + self.ours_alone.seconds)


@dataclass(frozen=True)
class Overhead:
    """Seconds of a call on a row of 16 scores: without grad, with it, and with the backward pass."""

    name: str
    by: str
    forward: Timing
    forward_with_grad: Timing
    forward_backward: Timing


@dataclass(frozen=True)
class Benchmark:
    """Everything that was measured, and on what."""

    date: str
    commit: str | None
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    dtype: str
    seconds: float
    seed: int
    peers: tuple[str, ...]
    left_out: tuple[str, ...]  # peers that are not installed
    grounds: tuple[Ground, ...]
    rows: tuple[Row, ...]
    overheads: tuple[Overhead, ...]

    @property
    def wrong(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.verdict == "wrong")


# The experiment -----------------------------------------------------------------------------------------------------------


def plan(settings: Settings, chosen: Sequence[Subject]) -> dict[Shape, tuple[Subject, ...]]:
    """What is measured on each shape: losses only where rows lie along axis 1. Raises `InputError` where nothing is."""
    planned = {shape: tuple(s for s in chosen if s.kind != "loss" or shape.takes_losses) for shape in settings.shapes}
    if not any(planned.values()):
        shapes = ", ".join(map(str, settings.shapes))
        raise InputError(f"--shapes: losses are measured on rows x classes, as in 256x32000, got only {shapes}")
    return {shape: measured for shape, measured in planned.items() if measured}


def steps(settings: Settings, chosen: Sequence[Subject]) -> int:
    """How often `bench` calls `starting`."""
    planned = plan(settings, chosen).values()
    rows = sum(1 + sum(len(subject.directions) for subject in measured) for measured in planned)
    return rows + sum(subject.name in NATIVE for subject in chosen)


def bench(
    settings: Settings | None = None,
    chosen: Sequence[Subject] | None = None,
    starting: Callable[[str], None] = lambda what: None,
) -> Benchmark:
    """Measure every chosen subject (default: all) on every shape. `starting(what)` is called before each part."""
    settings = settings or Settings()
    chosen = tuple(subjects().values()) if chosen is None else chosen
    planned = plan(settings, chosen)
    facts: dict[str, Any] = {"date": datetime.date.today().isoformat(), "commit": commit(), "versions": versions()}
    grounds: list[Ground] = []
    rows: list[Row] = []
    overheads: list[Overhead] = []
    with _threads(settings.threads), torch.no_grad():
        facts["machine"] = machine()
        for shape, measured in planned.items():
            starting(f"{shape}: copy")
            grounds.append(_ground(shape, settings))
            for subject in measured:
                rows.extend(_rows(subject, shape, settings, starting))
        for subject in chosen:
            if subject.name in NATIVE:
                starting(f"{OVERHEAD_SCORES} scores: {subject.title}")
                if not any(row.verdict == "wrong" for row in rows if row.name == subject.name):
                    overheads.extend(_overheads(subject, settings))
    installed = settings.installed_peers
    return Benchmark(
        **facts,
        dtype=settings.dtype,
        seconds=settings.seconds,
        seed=settings.seed,
        peers=installed,
        left_out=tuple(name for name in settings.peers if name not in installed),
        grounds=tuple(grounds),
        rows=tuple(rows),
        overheads=tuple(overheads),
    )


def _rows(subject: Subject, shape: Shape, settings: Settings, starting: Callable[[str], None]) -> Iterator[Row]:
    dtype = DTYPES[settings.dtype]
    given = problem(subject, shape, dtype, settings.seed)
    expected, failure = None, ""
    try:
        expected = expect(subject, given)
    except Exception as error:
        failure = _raised(error)
    for direction in subject.directions:
        starting(f"{shape}: {subject.title}, {direction}")
        facts: dict[str, Any] = {
            "name": subject.name,
            "title": subject.title,
            "kind": subject.kind,
            "options": dict(subject.options),
            "shape": str(shape),
            "direction": direction,
            "bytes": compulsory_bytes(subject, shape, direction, dtype.itemsize),
        }
        with torch.set_grad_enabled(direction == "forward+backward"):
            run = call(subject, given, direction)
            off, problem_found = _check(run, expected, direction, dtype) if not failure else (None, failure)
            if problem_found:
                yield Row(**facts, verdict="wrong", deviation=off, problem=problem_found)
                continue
            calls, results = {OURS: run}, []
            for peer in peers_of(subject, shape, settings.installed_peers, direction):
                run = call(peer.function, given, direction)
                result = PeerResult(peer.label, *_check(run, expected, direction, dtype, PEER_TOLERANCE / TOLERANCE[dtype]))
                results.append(result)
                if not result.problem:
                    calls[peer.label] = run
            timings = take_turns(calls, settings.seconds)
        yield Row(
            **facts,
            verdict="unchecked" if expected is None else "right",
            deviation=off,
            timing=timings[OURS],
            peers=tuple(replace(result, timing=timings.get(result.label)) for result in results),
        )


def _check(
    run: Callable[[], Any], expected: Expected | None, direction: Direction, dtype: torch.dtype, most: float = 1.0
) -> tuple[float | None, str]:
    """(the deviation, what is wrong or nothing)."""
    try:
        if expected is None:
            run()
            return None, ""
        off = deviation(expected, run, direction, dtype)
    except Exception as error:  # whatever it is, the other rows can still be measured
        return None, _raised(error)
    return off, "" if off <= most else f"{off:.3g} times the tolerance away from the float64 definition"


def _raised(error: Exception) -> str:
    return f"raised {type(error).__name__}: {' '.join(str(error).split())[:200]}"


def compulsory_bytes(subject: Subject, shape: Shape, direction: Direction, size: int) -> int:
    """Inputs read once and outputs written once, in bytes, for elements of `size` bytes and labels of 8."""
    backward = direction == "forward+backward"
    if subject.kind == "map":  # x → p, and g → ∂x
        return shape.scores * size * (4 if backward else 2)
    scores = shape.scores * size * (2 if backward else 1)  # x, and ∂x
    if isinstance(subject.entry, Sum):  # an operand as large as x, the result, and g
        scores = shape.scores if subject.entry.quantised else scores
        operand = shape.scores * size if subject.entry.operand is not None else 0
        results = shape.scores if subject.entry.gives == "score" else shape.rows
        return scores + operand + results * size * (2 if backward else 1)
    return scores + shape.rows * 8 + size  # the labels, and the loss


def take_turns(calls: Mapping[str, Callable[[], Any]], seconds: float, burst: int = BURST) -> dict[str, Timing]:
    """The median time of each call. They run in turns for so many seconds, and each at least RUNS times, a slow one SLOW_RUNS.

    A turn is up to `burst` calls. With more than one, a call that is not counted comes first: it brings back data and threads after
    the others' turns.
    """
    started = time.perf_counter()
    first = {name: _time(run) for name, run in calls.items()}
    slow = {name for name, spent in first.items() if spent > SLOW}
    runs = {name: [spent] if name in slow else [] for name, spent in first.items()}  # the first only warms up, unless it is slow

    def waiting() -> list[str]:
        time_left = time.perf_counter() - started < seconds
        return [
            name for name in calls if len(runs[name]) < (SLOW_RUNS if name in slow else RUNS) or (time_left and name not in slow)
        ]

    while names := waiting():
        for name in names:
            repeated = min(burst, int(BURST_SECONDS / max(first[name], 1e-9)))
            if repeated > 1:
                _time(calls[name])
            runs[name] += [_time(calls[name]) for _ in range(max(repeated, 1))]
    return {name: Timing(median(times), len(times)) for name, times in runs.items()}


def _time(run: Callable[[], Any]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def _ground(shape: Shape, settings: Settings) -> Ground:
    dtype = DTYPES[settings.dtype]
    x = normal(shape, shape.sizes, torch.Generator().manual_seed(settings.seed), dtype)
    out = torch.empty_like(x)

    def theirs() -> Tensor:
        return torch.softmax(x, shape.axis)

    def ours() -> Tensor:
        return sm.softmax(x, shape.axis)

    basic = take_turns({"clone": x.clone, "copy": lambda: out.copy_(x), "amax": lambda: x.amax(shape.axis)}, settings.seconds)
    alone_a = take_turns({"theirs": theirs}, settings.seconds / 4)["theirs"]
    alone_b = take_turns({"ours": ours}, settings.seconds / 4)["ours"]
    both = take_turns({"theirs": theirs, "ours": ours}, settings.seconds / 2, burst=1)
    together = Timing(both["theirs"].seconds + both["ours"].seconds, both["ours"].runs)
    return Ground(
        str(shape),
        shape.scores,
        2 * shape.scores * dtype.itemsize,
        **basic,
        torch_alone=alone_a,
        ours_alone=alone_b,
        alternating=together,
    )


# What torch has under the same name, as one operation.
NATIVE = ("logsumexp", "softmax", "log_softmax", "cross_entropy")


def _overheads(subject: Subject, settings: Settings) -> list[Overhead]:
    given = problem(subject, Shape((1, OVERHEAD_SCORES), 1), DTYPES[settings.dtype], settings.seed)
    learning = replace(given, x=given.x.detach().requires_grad_())
    functions = {OURS: subject, "torch": PEERS[subject.name][0].function}
    cases: tuple[tuple[str, Problem, Direction], ...] = (
        ("forward", given, "forward"),
        ("forward_with_grad", learning, "forward"),
        ("forward_backward", given, "forward+backward"),
    )
    found: dict[str, dict[str, Timing]] = {by: {} for by in functions}
    for name, its_problem, direction in cases:
        with torch.set_grad_enabled(name != "forward"):
            calls = {by: _often(call(function, its_problem, direction)) for by, function in functions.items()}
            for by, timing in take_turns(calls, settings.seconds / len(cases)).items():
                found[by][name] = Timing(timing.seconds / OVERHEAD_CALLS, timing.runs * OVERHEAD_CALLS)
    return [Overhead(subject.name, by, **timings) for by, timings in found.items()]


def _often(run: Callable[[], Any]) -> Callable[[], None]:
    def repeat() -> None:
        for _ in range(OVERHEAD_CALLS):
            run()

    return repeat


@contextmanager
def _threads(threads: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# Where and with what ------------------------------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    """The processor, its cores, and the threads that torch takes now."""
    facts = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", facts.read_text(encoding="utf-8")) if facts.exists() else []
    processor = names[0] if names else platform.processor() or platform.machine()
    return {"processor": processor, "cores": os.cpu_count(), "threads": torch.get_num_threads()}


def versions() -> dict[str, str]:
    """Of softmaxima, of Python, and of the packages that are installed."""
    found = {"softmaxima": sm.__version__, "torch": torch.__version__, "numpy": np.__version__}
    for name in ("scipy", "entmax"):
        if util.find_spec(name) is not None:
            found[name] = metadata.version(name)
    return {**found, "python": platform.python_version()}


def commit() -> str | None:
    """The commit that softmaxima is imported from, "-dirty" if files have changed since; None outside its git checkout."""
    source = Path(sm.__file__)

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=source.parent, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", source.name)
        return git("describe", "--always", "--dirty", "--exclude=*")
    except (OSError, subprocess.CalledProcessError):
        return None
