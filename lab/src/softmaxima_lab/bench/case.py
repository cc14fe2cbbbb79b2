"""A case of the benchmark, what is run of it, and what was found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from softmaxima.base.numbers import InputError
from softmaxima_lab.bench.clock import Call, Clock, Measured, Quotient, clock_of, measure
from softmaxima_lab.bench.workers import describe

OURS = "softmaxima"
FORWARD, BACKWARD = "forward", "forward+backward"
UNRELIABLE = 2.0  # the spread of a ratio from which on it says nothing


@dataclass(frozen=True)
class Case:
    """What is measured, and on what. The fields say everything, so that a case can go to another process."""

    group: str
    name: str
    size: str  # as the group writes it
    dtype: str
    direction: str = BACKWARD

    def __str__(self) -> str:
        return f"{self.name} on {self.size}, {self.dtype}, {self.direction}"


@dataclass(frozen=True)
class Place:
    """Where and beside whom cases are measured, and for how long."""

    device: str = "cpu"
    peers: tuple[str, ...] = ()  # packages
    seconds: float = 0.0  # for each call, or
    passes: int | None = None  # turns of each
    seed: int = 0
    not_captured: Mapping[str, str] = field(default_factory=dict)  # what no CUDA graph can hold, as far as that is known


@dataclass
class Trial:
    """What is run of a case.

    `calls` has the calls of each side, on one or several problems of the same size. `check` says before they are timed how far one
    is from its definition, in units of what is allowed; None where there is no definition. `after` says the same of a result.
    """

    calls: Mapping[str, Sequence[Call]]
    check: Callable[[str], float | None]
    after: Callable[[str, Any], float] = lambda name, result: 0.0
    ours: Mapping[str, Case] = field(default_factory=dict)  # the case of each call that is ours; by default of the first
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of each of ours
    waits: Mapping[str, str] = field(default_factory=dict)  # calls that no CUDA graph can hold, and why


@dataclass(frozen=True)
class Peer:
    """The time of another call, or why there is none, and that over ours, by turns."""

    seconds: float | None = None
    ratio: Quotient | None = None
    deviation: float | None = None
    problem: str = ""


@dataclass(frozen=True)
class Result:
    """What was found of a case. `deviation` is in units of what is allowed, so at most 1 is right."""

    case: Case
    verdict: Literal["right", "wrong", "unchecked"] = "right"
    deviation: float | None = None
    seconds: float | None = None  # None where it is not known to be right, or the time was over
    problem: str = ""
    peers: Mapping[str, Peer] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    def ratio(self, name: str) -> float | None:
        """Time of the peer / ours: the median over turns, or that of the median times where there were less than two."""
        peer = self.peers.get(name)
        if peer is None or peer.seconds is None or self.seconds is None:
            return None
        return peer.seconds / self.seconds if peer.ratio is None else peer.ratio.median

    @property
    def spread(self) -> float | None:
        """The widest of its ratios' intervals, upper end / lower."""
        return max((peer.ratio.spread for peer in self.peers.values() if peer.ratio is not None), default=None)

    @property
    def is_unreliable(self) -> bool:
        """Whether its turns disagree too much for a ratio to say anything: the machine is busy, or its threads too many."""
        return self.spread is not None and self.spread > UNRELIABLE


@dataclass(frozen=True)
class Found:
    """The results of a case, and what no CUDA graph could hold, after which a process is not to be used again."""

    results: Sequence[Result]
    not_captured: Mapping[str, str] = field(default_factory=dict)

    @property
    def spoils(self) -> bool:
        return bool(self.not_captured)


class DeviceLostError(Exception):
    """An error has cost this process its device."""


def run_trial(case: Case, trial: Trial, clock: Clock, place: Place, known: Sequence[Result] = (), timed: bool = True) -> Found:
    """Check everything, then time what is right, in turns. What is `known` to be right or wrong is not checked again."""
    ours = dict(trial.ours) or {next(iter(trial.calls)): case}
    results = known or _checked(trial, ours, clock)
    right = {name: result for name, result in zip(ours, results, strict=True) if result.verdict == "right"}
    others = next((result.peers for result in results), {})
    calls = {name: each for name, each in trial.calls.items() if name in right or (name in others and not others[name].problem)}
    if not timed or not right or not calls:
        return Found(results)

    def complaint(name: str, result: Any) -> str:
        return _far(trial.after(name, result))

    waits = {**trial.waits, **place.not_captured} if place.device != "cpu" else {}
    found = measure(clock, calls, place.seconds, place.passes, waits, complaint)
    return Found(
        [_timed(result, name, found) if name in right else result for name, result in zip(ours, results, strict=True)],
        found.not_captured,
    )


def _checked(trial: Trial, ours: Mapping[str, Case], clock: Clock) -> list[Result]:
    """Results without times; of peers that differ or raise the reason."""

    def outcome(name: str) -> tuple[float | None, str]:
        try:
            units = trial.check(name)
        except Exception as error:  # whatever it is, others can still be measured
            try:
                clock.synchronise()
            except Exception:
                raise DeviceLostError(describe(error)) from error
            return None, str(error) if isinstance(error, WrongResultError) else describe(error)
        return units, "" if units is None else _far(units)

    results = []
    for name, case in ours.items():
        units, problem = outcome(name)
        verdict = "wrong" if problem else "unchecked" if units is None else "right"
        results.append(Result(case, verdict, units, problem=problem, facts=trial.facts.get(name, {})))
    if all(result.verdict != "right" for result in results):
        return results
    peers = {name: Peer(None, None, *outcome(name)) for name in trial.calls if name not in ours}
    return [replace(result, peers=peers if result.verdict == "right" else {}) for result in results]


class WrongResultError(Exception):
    """A result that is not right, and how."""


def _far(units: float) -> str:
    return "" if units <= 1 else f"{units:.3g} times the tolerance away from the float64 definition"


def _timed(result: Result, name: str, found: Measured) -> Result:
    if name in found.failed:
        return replace(result, verdict="wrong", problem=found.failed[name], peers={})
    peers = {
        peer: replace(
            known, seconds=found.seconds(peer), ratio=found.ratio(peer, name), problem=found.failed.get(peer, known.problem)
        )
        for peer, known in result.peers.items()
    }
    called = {} if (called := found.seconds(name, "called")) == (seconds := found.seconds(name)) else {"called": called}
    return replace(result, seconds=seconds, peers=peers, facts={**result.facts, **called})


# Groups of cases ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wanted:
    """Which cases of a group are asked for: what is None or empty is as the group has it."""

    names: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    device: str = "cpu"
    quick: bool = False


@dataclass(frozen=True)
class Group:
    """Cases that share what they are made of. CASES raises InputError for names and sizes that it does not know."""

    cases: Callable[[Wanted], list[Case]]
    run: Callable[[Case, Place, Sequence[Result], bool], Found]
    packages: Mapping[str, tuple[str, ...]]  # peers, by the device
    seconds: Mapping[str, float] = field(default_factory=dict)  # for each call, by the device; or
    passes: int | None = None  # turns of each
    quick: float | int = 0.03  # the same of a first look
    kind: Callable[[str], str] = lambda name: ""  # of a name: under a budget, something of each kind comes early
    is_timed: bool = True
    extra: tuple[str, ...] = ()  # packages beside torch whose versions are recorded

    def place(self, device: str, peers: tuple[str, ...], quick: bool, seed: int = 0) -> Place:
        """For how long a case is measured."""
        if self.passes is not None:
            return Place(device, peers, passes=int(self.quick) if quick else self.passes, seed=seed)
        return Place(device, peers, float(self.quick) if quick else self.seconds[device], seed=seed)


def by_trial(trial: Callable[[Case, Place], Trial]) -> Callable[[Case, Place, Sequence[Result], bool], Found]:
    """How a group runs whose cases are run in this process."""

    def run(case: Case, place: Place, known: Sequence[Result] = (), timed: bool = True) -> Found:
        with torch.set_grad_enabled(case.direction != FORWARD):
            return run_trial(case, trial(case, place), clock_of(place.device), place, known, timed)

    return run


def directions(names: Sequence[str], sizes: Sequence[str], dtypes: Sequence[str], group: str) -> list[Case]:
    """Every name on every size and dtype, forward and with the backward pass."""
    return [
        Case(group, name, size, dtype, direction)
        for size in sizes
        for dtype in dtypes
        for name in names
        for direction in (FORWARD, BACKWARD)
    ]


def sizes_of(text: str, count: int | tuple[int, ...], written: str) -> tuple[int, ...]:
    """The numbers of a size that are joined by x; raises InputError where there are more or less of them, or one is 0."""
    counts = (count,) if isinstance(count, int) else count
    parts = text.strip().lower().split("x")
    if len(parts) not in counts or not all(part.isascii() and part.isdigit() for part in parts):
        raise InputError(f"`shapes`: {text!r} is not {written}")
    numbers = tuple(map(int, parts))
    if 0 in numbers:
        raise InputError(f"`shapes`: every size must be at least 1, got {text!r}")
    return numbers


def farthest(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest error of any tensor, as a share of what is largest in it."""
    pairs = [(a.detach().double(), b.detach().double()) for a, b in zip(found, expected, strict=True)]
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)
