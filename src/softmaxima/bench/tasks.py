"""The parts of a benchmark, each for a process: checks of a row, and the times of rows, copies and small calls."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import softmaxima as sm
from softmaxima.bench.checks import UNDEFINED, deviation_of, is_lost
from softmaxima.bench.clocks import Measured, Timing, clock_of, measure, take_turns
from softmaxima.bench.definitions import PEER_TOLERANCE, TOLERANCE, Expected, deviation, expect
from softmaxima.bench.peers import OUR_CPU, Peer, stated_peers
from softmaxima.bench.plan import DTYPES, OVERHEAD_SCORES, GroundTask, OverheadTask, RowTask
from softmaxima.bench.results import Ground, Overhead, PeerResult, Row
from softmaxima.bench.subjects import Direction, Problem, Shape, call, compulsory_bytes, problem
from softmaxima.bench.workers import Last, describe

OURS = "softmaxima"
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


def check_row(task: RowTask) -> Row:
    """Ours and the peers against what is right. On the way all kernels are compiled into the caches on disk."""
    subject, dtype, device = task.subject, DTYPES[task.dtype], task.place.device
    try:
        given = task.problem()
        expected = expect(subject, given)
        if expected is None:
            return row_of(task, "unchecked", problem=UNDEFINED)
        found = deviation_of(subject, given, dtype, expected, task.direction).units
    except Exception as error:  # whatever it is, the other rows can still be measured
        if is_lost(device):
            raise
        return row_of(task, "wrong", problem=describe(error))
    if not found <= 1:
        return row_of(task, "wrong", deviation=found, problem=_far(found))
    peers = tuple(_check_peer(peer, task, given, expected) for peer in task.peers)
    if device != "cpu":
        torch.cuda.empty_cache()
    return row_of(task, "right", deviation=found, peers=peers)


def _check_peer(peer: Peer, task: RowTask, given: Problem, expected: Expected) -> PeerResult:
    dtype = DTYPES[task.dtype]
    try:
        given = given.to("cpu") if peer.label == OUR_CPU else given.with_own_scores() if peer.overwrites else given
        with torch.set_grad_enabled(task.direction == "forward+backward"):
            computed = call(peer.function, given, task.direction)()
        found = deviation(expected, computed, dtype, selection=task.subject.is_selection).units
        return PeerResult(peer.label, found, "" if found <= PEER_TOLERANCE[dtype] / TOLERANCE[dtype] else _far(found))
    except Exception as error:
        if is_lost(task.place.device):
            raise
        return PeerResult(peer.label, problem=describe(error))


def _far(units: float) -> str:
    return f"{units:.3g} times the tolerance away from the float64 definition"


def time_row(task: RowTask) -> Measured | Last[Measured]:
    """The times of those whose labels are given."""
    place, clock = task.place, clock_of(task.place.device)
    peers = {peer.label: peer for peer in (Peer(OURS, OURS, task.subject), *task.peers) if peer.label in task.labels}
    size = row_of(task, "right").bytes
    problems = [task.problem(seed) for seed in range(clock.problems(size))]
    on_cpu = peers.pop(OUR_CPU, None)
    waiting = {label: "it waits for a number from the device" for label, peer in peers.items() if peer.waits}
    with torch.set_grad_enabled(task.direction == "forward+backward"):
        calls = {label: _calls(peer, problems, task.direction) for label, peer in peers.items()}
        known = {**waiting, **task.without_graph} if place.device != "cpu" else {}
        found = measure(clock, calls, place.seconds, known)
        if on_cpu is not None:
            runs = _calls(on_cpu, [problems[0].to("cpu")], task.direction)
            there = measure(clock_of("cpu"), {OUR_CPU: runs}, place.seconds)
            found.times.update(there.times)
            found.failed.update(there.failed)
    del calls, problems
    if found.not_captured:  # which leaves the allocator of the process in a state that it does not recover from
        return Last(found)
    if place.device != "cpu":
        torch.cuda.empty_cache()
    return found


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
    basic = measure(
        clock, {"clone": each(Tensor.clone), "copy": copies, "amax": each(Tensor.amax, shape.axis)}, place.seconds
    ).times
    theirs, ours = each(torch.softmax, shape.axis)[:1], each(sm.softmax, shape.axis)[:1]
    alone = [measure(clock, {"alone": calls}, place.seconds / 2).times["alone"] for calls in (theirs, ours)]
    both = take_turns({"theirs": theirs[0], "ours": ours[0]}, place.seconds / 2, clock, most=1)
    each_of_both = sum(map(statistics.median, both.values()))
    return Ground(
        str(shape),
        task.dtype,
        shape.scores,
        2 * size,
        **basic,
        torch_alone=alone[0],
        ours_alone=alone[1],
        alternating=Timing(each_of_both, len(both["ours"])),
    )


def time_overheads(task: OverheadTask) -> list[Overhead]:
    """Of ours and of torch's."""
    place, subject, clock = task.place, task.subject, clock_of(task.place.device)
    given = problem(subject, Shape((1, OVERHEAD_SCORES), 1), DTYPES[task.dtype], place.device, seed=place.seed)
    expected = expect(subject, given)
    if expected is None or not deviation_of(subject, given, DTYPES[task.dtype], expected, "forward+backward").units <= 1:
        return []
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
            for by, timing in measure(clock, calls, place.seconds / len(cases), without).times.items():
                found[by][name] = replace(timing, runs=timing.runs * OVERHEAD_CALLS)
    return [Overhead(subject.name, by, **timings) for by, timings in found.items() if len(timings) == len(cases)]
