"""The groups of maps, losses and sums: their speed beside peers, and their kernels on rows of awkward lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch

import softmaxima as sm
from softmaxima.base.numbers import InputError
from softmaxima.losses import REGISTRY as LOSSES
from softmaxima.losses import Loss
from softmaxima.maps import REGISTRY as MAPS
from softmaxima.maps import Map
from softmaxima_lab.bench.case import BACKWARD, FORWARD, OURS, Case, Group, Place, Trial, Wanted, by_trial
from softmaxima_lab.bench.clock import clock_of
from softmaxima_lab.bench.definitions import PEER_TOLERANCE, TOLERANCE, Expected, check_ours, deviation, deviation_of_ours, expect
from softmaxima_lab.bench.maps import Problem, Shape, Subject, call, choose, compulsory_bytes, problem, read_shape, subjects
from softmaxima_lab.bench.peers import OUR_CPU, PACKAGES, Peer, peers_of
from softmaxima_lab.bench.sums import Sum

SHAPES = {
    "cpu": ("4096x64", "1024x1024", "256x32000", "64x128256"),
    "cuda": ("4096x32000", "8192x4096", "2048x128256", "16384x1024", "64x4194304", "16384x128"),
}
QUICK_SHAPES = ("1024x64", "64x4096")
OUR_CPU_SHAPES = SHAPES["cuda"][:2]  # on which our CPU path is measured beside a GPU, in float32
DTYPES = {"cpu": ("float32",), "cuda": ("float32", "bfloat16")}

COPY, TORCH_ALONE, OURS_ALONE, IN_TURNS = "copy", "torch.softmax", "sm.softmax", "one of each"
FLOOR = "floor"  # x.clone() and x.amax(axis): the result allocated and written, and one more read of the row

# What a call takes, of functions that torch has under the same name, as one operation.
FEW, FEW_CALLS = "1x16", 50  # timed as one
OVERHEADS, LEARNING = ("logsumexp", "softmax", "log_softmax", "cross_entropy"), "forward with grad"

LENGTHS, QUICK_LENGTHS = ("1000", "1", "31", "4097", "33000", "128256", str(2**20 + 3), "2"), ("31", "1", "1000")
VARIED = (31, 1000, 4097, 33000)  # lengths at which kernels are checked on other problems than the plain one too
SCORES, MOST_ROWS = 2**16, 257  # of a problem of a kernel, which has at least 3 rows
SCALE = 2.0  # of its scores: the definitions subtract nothing, and exp(2·6) is far from overflow


def _cases(wanted: Wanted) -> list[Case]:
    """Losses only where rows lie along axis 1; a copy of each shape; and calls on few scores, of the first dtype."""
    chosen = choose(wanted.names, wanted.device)
    shapes = [read_shape(size) for size in wanted.sizes or (QUICK_SHAPES if wanted.quick else SHAPES[wanted.device])]
    found: list[Case] = []
    for shape in dict.fromkeys(shapes):
        _refuse_what_does_not_fit(shape)
        fits = [subject for subject in chosen if subject.kind != "loss" or shape.takes_losses]
        for dtype in (wanted.dtypes or DTYPES[wanted.device]) if fits else ():
            found.append(Case("maps", COPY, str(shape), dtype, FORWARD))
            found += [Case("maps", s.title, str(shape), dtype, direction) for s in fits for direction in s.directions]
    if not found:
        raise InputError(
            f"`shapes`: losses are measured on rows x classes, as in 256x32000, got only {', '.join(map(str, shapes))}"
        )
    first, few = found[0].dtype, [subject.title for subject in chosen if subject.name in OVERHEADS]
    return found + [Case("maps", title, FEW, first, direction) for title in few for direction in (FORWARD, LEARNING, BACKWARD)]


def _refuse_what_does_not_fit(shape: Shape) -> None:
    try:
        torch.empty(shape.sizes)
    except (RuntimeError, TypeError, OverflowError):
        raise InputError(f"`shapes`: {shape} does not fit in memory; take smaller sizes") from None


@lru_cache(maxsize=1)
def _expected(entry: Map | Sum | Loss, title: str, size: str, dtype: str, device: str, seed: int) -> Expected | None:
    """What is right for the first problem: of all directions the same."""
    subject = subjects()[title]
    return expect(subject, problem(subject, read_shape(size), getattr(torch, dtype), device, seed=seed))


def _trial(case: Case, place: Place) -> Trial:
    if case.name == COPY:
        return _copy(case, place)
    shape, dtype = read_shape(case.size), getattr(torch, case.dtype)
    subject = subjects()[case.name]
    is_small = case.size == FEW
    size = compulsory_bytes(subject, shape, case.direction, dtype.itemsize)
    count = 1 if is_small else clock_of(place.device).problems(size)
    problems = [problem(subject, shape, dtype, place.device, seed=place.seed + number) for number in range(count)]
    expected = _expected(subject.entry, case.name, case.size, case.dtype, place.device, place.seed)
    peers = {peer.label: peer for peer in _peers(subject, shape, case, place)}
    allowed = PEER_TOLERANCE[dtype] / TOLERANCE[dtype]

    def calls(function: Callable[[Problem], Any], given: Sequence[Problem] = problems) -> list[Callable[[], Any]]:
        return [call(function, each, case.direction) for each in given] * (FEW_CALLS if is_small else 1)

    def of_peer(peer: Peer) -> list[Callable[[], Any]]:
        if peer.label == OUR_CPU:
            return calls(peer.function, [problems[0].to("cpu")])
        return calls(peer.function, [given.with_own_scores() for given in problems] if peer.overwrites else problems)

    def off(name: str, computed: Any) -> float:
        """In units of what is allowed."""
        if name == FLOOR or (name in peers and peers[name].overwrites):  # whose last results are others
            return 0.0
        if name == OURS:
            return deviation_of_ours(subject, problems[0], expected, computed, dtype)  # type: ignore[arg-type]
        return deviation(expected, computed, dtype, selection=subject.is_selection) / allowed  # type: ignore[arg-type]

    def check(name: str) -> float | None:
        if expected is None:
            return None
        if name == OURS:
            return check_ours(subject, problems[0], expected, case.direction, dtype)
        if name == FLOOR:
            return 0.0
        given = problems[0].to("cpu") if name == OUR_CPU else problems[0].with_own_scores()
        computed = call(peers[name].function, given, case.direction)()
        return deviation(expected, computed, dtype, selection=subject.is_selection) / allowed

    every = {OURS: calls(subject), **{label: of_peer(peer) for label, peer in peers.items()}}
    waits = {label: "it waits for a number from the device" for label, peer in peers.items() if peer.waits}
    if is_small:
        waits = dict.fromkeys(every, "launches are what is measured")
    else:
        every[FLOOR] = [lambda x=given.x: (x.clone(), x.amax(shape.axis)) for given in problems]
    return Trial(every, check, off, facts={OURS: {"bytes": size}}, waits=waits)


def _peers(subject: Subject, shape: Shape, case: Case, place: Place) -> list[Peer]:
    if case.size == FEW:
        return [peer for peer in peers_of(subject, shape, place.peers, case.direction) if peer.package == "torch"]
    on_cpu = case.size in OUR_CPU_SHAPES and case.dtype == "float32"
    return list(peers_of(subject, shape, [name for name in place.peers if name != OUR_CPU or on_cpu], case.direction))


def _copy(case: Case, place: Place) -> Trial:
    """The time of a copy of a shape, and whether torch and we disturb each other there."""
    shape, dtype = read_shape(case.size), getattr(torch, case.dtype)
    size = shape.scores * dtype.itemsize
    generator = torch.Generator(place.device).manual_seed(place.seed)
    count = clock_of(place.device).problems(size)
    scores = [torch.randn(shape.sizes, generator=generator, device=place.device).to(dtype) for _ in range(count)]
    outs = [torch.empty_like(x) for x in scores]
    theirs, ours = (lambda: torch.softmax(scores[0], shape.axis)), (lambda: sm.softmax(scores[0], shape.axis))
    return Trial(
        {
            COPY: [lambda x=x, out=out: out.copy_(x) for x, out in zip(scores, outs, strict=True)],
            TORCH_ALONE: [theirs],
            OURS_ALONE: [ours],
            IN_TURNS: [lambda: (theirs(), ours())],
        },
        check=lambda name: 0.0,
        facts={COPY: {"bytes": 2 * size, "scores": shape.scores}},
    )


# Kernels on rows of awkward lengths -------------------------------------------------------------------------------------------


def with_kernels() -> dict[str, tuple[Subject, ...]]:
    """Sums and cross-entropy, every map at the examples of its parameters, and its Fenchel–Young loss, that have a kernel on every
    device, by the title of the first: what shares one together, so that it is compiled once.
    """
    found: list[tuple[Subject, ...]] = [(s,) for s in subjects().values() if s.has_kernel and s.kind != "map" and s.variants]
    for name, map in MAPS.items():
        if map.kernel is not None and map.kernel.on_gpus:
            examples = [{p.name: value} for p in map.params for value in p.examples] or [{}]
            found.append(tuple(Subject(name, map, options) for options in examples))
            if map.kernel.loss is not None and map.regulariser is not None:
                loss = LOSSES["fenchel_young_loss"]
                found.append(tuple(Subject(loss.name, loss, {"map": name, **options}) for options in examples))
    return {group[0].title: group for group in found}


def _cases_of_kernels(wanted: Wanted) -> list[Case]:
    names = {subject.name for subject in choose(wanted.names)}
    titles = [title for title, group in with_kernels().items() if group[0].name in names]
    lengths = [str(read_shape(size).n) for size in wanted.sizes or (QUICK_LENGTHS if wanted.quick else LENGTHS)]
    dtypes = wanted.dtypes or ("float32", "bfloat16", "float16", "float64")
    return [Case("kernels", title, length, dtype) for length in lengths for dtype in dtypes for title in titles]


def _trial_of_kernels(case: Case, place: Place) -> Trial:
    n, dtype = int(case.size), getattr(torch, case.dtype)
    shape = Shape((max(3, min(MOST_ROWS, SCORES // n)), n), 1)
    problems = {
        f"{subject.title}, {variant}": (subject, problem(subject, shape, dtype, place.device, variant, SCALE, place.seed))
        for subject in with_kernels()[case.name]
        for variant in ("plain", *(subject.variants if n in VARIED else ()))
    }

    def check(name: str) -> float | None:
        subject, given = problems[name]
        expected = expect(subject, given)
        if expected is None:
            return None
        return max(check_ours(subject, given, expected, direction, dtype) for direction in (FORWARD, BACKWARD))

    ours = {name: Case("kernels", name, case.size, case.dtype) for name in problems}
    return Trial({name: [] for name in problems}, check, ours=ours)


def _kind(title: str) -> str:
    return subjects()[title].kind if title in subjects() else ""


MAPS_GROUP = Group(_cases, by_trial(_trial), PACKAGES, {"cpu": 0.5, "cuda": 0.04}, kind=_kind)
KERNELS = Group(_cases_of_kernels, by_trial(_trial_of_kernels), {}, {"cpu": 0.0, "cuda": 0.0}, is_timed=False)
