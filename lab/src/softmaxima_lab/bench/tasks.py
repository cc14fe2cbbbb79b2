"""The parts of a benchmark, each for a process: checks of a row, and the times of rows, copies and small calls."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

import softmaxima as sm
from softmaxima_lab.bench.checks import UNDEFINED, deviation_of, deviation_of_result, is_lost
from softmaxima_lab.bench.clocks import Measured, Timing, clock_of, measure, median_round, take_turns
from softmaxima_lab.bench.definitions import PEER_TOLERANCE, TOLERANCE, Deviation, Expected, deviation, expect
from softmaxima_lab.bench.peers import OUR_CPU, Peer, stated_peers
from softmaxima_lab.bench.plan import DTYPES, OVERHEAD_SCORES, GroundTask, OverheadTask, Place, RowTask
from softmaxima_lab.bench.results import Ground, Overhead, PeerResult, Row
from softmaxima_lab.bench.subjects import DIRECTIONS, Computed, Direction, Problem, Shape, Subject, call, compulsory_bytes, problem
from softmaxima_lab.bench.workers import Last, describe

OURS, FLOOR = "softmaxima", "floor"
SHARE_OF_FLOOR = 0.25  # of the time for a call
OVERHEAD_CALLS = 50  # timed as one


def row_of(task: RowTask, verdict: Any, **facts: Any) -> Row:
    subject, size = task.subject, DTYPES[task.dtype].itemsize
    return Row(
        subject.name,
        subject.title,
        subject.kind,
        str(task.shape),
        task.shape.n,
        task.dtype,
        task.direction,
        compulsory_bytes(subject, task.shape, task.direction, size),
        verdict,
        **facts,
    )


@functools.lru_cache(maxsize=1)
def _expected(subject: Subject, shape: Shape, dtype: str, place: Place) -> Expected | None:
    """What is right for the first problem: of both directions, and before and after a row is timed, the same."""
    return expect(subject, problem(subject, shape, DTYPES[dtype], place.device, seed=place.seed))


def check_row(task: RowTask) -> Row:
    """Ours and the peers against what is right. On the way all kernels are compiled into the caches on disk."""
    subject, dtype, device = task.subject, DTYPES[task.dtype], task.place.device
    try:
        given = task.problem()
        expected = _expected(subject, task.shape, task.dtype, task.place)
        if expected is None:
            return row_of(task, "unchecked", problem=UNDEFINED)
        found = deviation_of(subject, given, dtype, expected, task.direction)
    except Exception as error:  # whatever it is, the other rows can still be measured
        if is_lost(device):
            raise
        return row_of(task, "wrong", problem=describe(error))
    if not found.units <= 1:
        return row_of(task, "wrong", deviation=found.units, problem=_far(found))
    peers = tuple(_check_peer(peer, task, given, expected) for peer in task.peers)
    if device != "cpu":
        torch.cuda.empty_cache()
    return row_of(task, "right", deviation=found.units, peers=peers)


def _check_peer(peer: Peer, task: RowTask, given: Problem, expected: Expected) -> PeerResult:
    dtype = DTYPES[task.dtype]
    try:
        given = given.to("cpu") if peer.label == OUR_CPU else given.with_own_scores() if peer.overwrites else given
        with torch.set_grad_enabled(task.direction == "forward+backward"):
            computed = call(peer.function, given, task.direction)()
        found = _deviation_of_peer(task, expected, computed)
        return PeerResult(peer.label, found.units, "" if found.units <= _allowed(dtype) else _far(found))
    except Exception as error:
        if is_lost(task.place.device):
            raise
        return PeerResult(peer.label, problem=describe(error))


def _deviation_of_peer(task: RowTask, expected: Expected, computed: Computed) -> Deviation:
    return deviation(expected, computed, DTYPES[task.dtype], selection=task.subject.is_selection)


def _allowed(dtype: torch.dtype) -> float:
    """How far a peer may be, in units of our tolerance."""
    return PEER_TOLERANCE[dtype] / TOLERANCE[dtype]


def _far(found: Deviation) -> str:
    return f"{found.units:.3g} times the tolerance away from {found.source}"


def time_row(task: RowTask) -> Measured | Last[Measured]:
    """The times of those whose labels are given, and of the floor, x.clone() and x.amax(axis), in the same turns."""
    place, clock = task.place, clock_of(task.place.device)
    peers = {peer.label: peer for peer in (Peer(OURS, OURS, task.subject), *task.peers) if peer.label in task.labels}
    size = row_of(task, "right").bytes
    problems = [task.problem(seed) for seed in range(clock.problems(size))]
    on_cpu = peers.pop(OUR_CPU, None)
    waiting = {label: "it waits for a number from the device" for label, peer in peers.items() if peer.waits}
    with torch.set_grad_enabled(task.direction == "forward+backward"):
        calls = {label: _calls(peer, problems, task.direction) for label, peer in peers.items()}
        calls[FLOOR] = [lambda x=given.x: (x.clone(), x.amax(task.shape.axis)) for given in problems]
        known = {**waiting, **task.without_graph} if place.device != "cpu" else {}
        unlike = (FLOOR, *(label for label, peer in peers.items() if peer.overwrites))  # whose last results are others
        complaint = functools.partial(_complaint, task, problems[0], unlike)
        found = measure(clock, calls, place.seconds, known, complaint, {FLOOR: SHARE_OF_FLOOR})
        found.times.pop(FLOOR, None)
        found.not_captured.pop(FLOOR, None)
        if on_cpu is not None:
            runs = _calls(on_cpu, [problems[0].to("cpu")], task.direction)
            there = measure(clock_of("cpu"), {OUR_CPU: runs}, place.seconds, {}, complaint)
            found.times.update(there.times)
            found.failed.update(there.failed)
    del calls, problems, complaint
    if found.not_captured:  # which leaves the allocator of the process in a state that it does not recover from
        return Last(found)
    if place.device != "cpu":
        torch.cuda.empty_cache()
    return found


def _complaint(task: RowTask, given: Problem, unlike: Sequence[str], label: str, computed: Computed) -> str:
    """What is wrong with a result on the first problem."""
    if label in unlike:
        return ""
    subject, dtype = task.subject, DTYPES[task.dtype]
    expected: Expected = _expected(subject, task.shape, task.dtype, task.place)  # type: ignore[assignment]
    if label == OURS:
        found, allowed = deviation_of_result(subject, given, dtype, expected, computed), 1.0
    else:
        found, allowed = _deviation_of_peer(task, expected, computed), _allowed(dtype)
    return "" if found.units <= allowed else _far(found)


def _calls(peer: Peer, problems: Sequence[Problem], direction: Direction) -> list[Callable[[], Any]]:
    return [call(peer.function, given.with_own_scores() if peer.overwrites else given, direction) for given in problems]


def time_ground(task: GroundTask) -> Ground:
    """What the shape costs before anything is computed."""
    place, shape, dtype, clock = task.place, task.shape, DTYPES[task.dtype], clock_of(task.place.device)
    size = shape.scores * dtype.itemsize
    generator = torch.Generator(place.device).manual_seed(place.seed)
    scores = [torch.randn(shape.sizes, generator=generator, device=place.device).to(dtype) for _ in range(clock.problems(size))]
    outs = [torch.empty_like(x) for x in scores]

    def each(function: Callable[..., Any], *more: Any) -> list[Callable[[], Any]]:
        return [lambda x=x: function(x, *more) for x in scores]

    copies = [lambda x=x, out=out: out.copy_(x) for x, out in zip(scores, outs, strict=True)]
    copy = measure(clock, {"copy": copies}, place.seconds).times["copy"]
    theirs, ours = each(torch.softmax, shape.axis)[:1], each(sm.softmax, shape.axis)[:1]
    alone = [measure(clock, {"alone": calls}, place.seconds / 2).times["alone"] for calls in (theirs, ours)]
    both = take_turns({"theirs": theirs[0], "ours": ours[0]}, place.seconds / 2, clock, most=1)
    each_of_both = sum(map(median_round, both.values()))
    return Ground(
        str(shape),
        task.dtype,
        shape.scores,
        2 * size,
        copy=copy,
        torch_alone=alone[0],
        ours_alone=alone[1],
        alternating=Timing(each_of_both, sum(map(len, both["ours"].values()))),
    )


def time_overheads(task: OverheadTask) -> list[Overhead]:
    """Of ours and of torch's; where ours is wrong, what is."""
    place, subject, dtype, clock = task.place, task.subject, DTYPES[task.dtype], clock_of(task.place.device)
    given = problem(subject, Shape((1, OVERHEAD_SCORES), 1), dtype, place.device, seed=place.seed)
    expected: Expected = expect(subject, given)  # type: ignore[assignment]
    for direction in DIRECTIONS:
        if not (far := deviation_of(subject, given, dtype, expected, direction)).units <= 1:
            return [Overhead(subject.name, OURS, problem=_far(far))]

    def complaint(by: str, computed: Computed) -> str:
        far = deviation_of_result(subject, given, dtype, expected, computed)
        return "" if by != OURS or far.units <= 1 else _far(far)

    learning = replace(given, x=given.x.detach().requires_grad_())
    theirs = next(peer.function for peer in stated_peers(subject) if peer.package == "torch")
    functions: dict[str, Callable[[Problem], Any]] = {OURS: subject, "torch": theirs}
    cases: tuple[tuple[str, Problem, Direction], ...] = (
        ("forward", given, "forward"),
        ("forward_with_grad", learning, "forward"),
        ("forward_backward", given, "forward+backward"),
    )
    found: dict[str, dict[str, Timing]] = {by: {} for by in functions}
    for name, its_problem, direction in cases:
        with torch.set_grad_enabled(name != "forward"):
            calls = {by: [call(function, its_problem, direction)] * OVERHEAD_CALLS for by, function in functions.items()}
            without = dict.fromkeys(calls, "launches are what is measured") if place.device != "cpu" else {}
            measured = measure(clock, calls, place.seconds / len(cases), without, complaint)
            if OURS in measured.failed:
                return [Overhead(subject.name, OURS, problem=measured.failed[OURS])]
            for by, timing in measured.times.items():
                found[by][name] = replace(timing, runs=timing.runs * OVERHEAD_CALLS)
    return [Overhead(subject.name, by, **timings) for by, timings in found.items() if len(timings) == len(cases)]  # type: ignore[arg-type]
