"""bench: every map and loss, and logsumexp, beside what people use today: torch, the entmax package and scipy, in the same run.

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
import math
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
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

import softmaxima as sm
from softmaxima.losses import REGISTRY as LOSSES
from softmaxima.losses import Loss
from softmaxima.maps import REGISTRY as MAPS
from softmaxima.maps import Map

SHAPES = ("4096x64", "1024x1024", "256x32000", "64x128256")
QUICK_SHAPES = ("1024x64", "64x4096")
SECONDS, QUICK_SECONDS = 1.5, 0.1  # for a row of the result
RUNS = 5  # of each call at least
SLOW, SLOW_RUNS = 1.0, 2  # but only so many of one that takes more seconds than this
BURST, BURST_SECONDS = 20, 0.02  # calls of one in its turn: at most so many, and for so long
OURS = "softmaxima"
OVERHEAD_SCORES = 16
OVERHEAD_CALLS = 50  # timed as one
CHECKED_ROWS = 3
PARTIAL_SORT = 100  # the entmax package's k: faster than its full sort where the support is smaller, and exact anyway

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}

# How far a value may be from the float64 definition, as a share of the row's largest.
TOLERANCE = {
    torch.float64: 1e-11,
    torch.float32: 3e-6,
    torch.bfloat16: 2**-8 + 3e-6,  # the result is rounded by up to half a unit in the last place
    torch.float16: 2**-11 + 3e-6,
}
GRADIENT_SLACK = 8  # the backward pass starts from a result that is rounded already
PEER_TOLERANCE = 0.1  # a peer may be coarser than we are, but must compute the same thing

Direction = Literal["forward", "forward+backward"]
DIRECTIONS: tuple[Direction, ...] = ("forward", "forward+backward")


class InputError(ValueError):
    """What was asked for cannot be measured. The message is one line: what was wrong, what arrived and what to do."""


# What is measured ---------------------------------------------------------------------------------------------------------

# Options other than a function's defaults. entmax15 is entmax at its default.
OPTIONS: dict[str, dict[str, Any]] = {
    "entmax": {"alpha": 1.3},
    "entmax_loss": {"alpha": 1.3},
    "sparse_softmax_loss": {"k": 10},
}


@dataclass(frozen=True, eq=False)
class Subject:
    """A map, a loss or logsumexp. `function(x, axis)`, for a loss `function(x, target)`, computes it."""

    name: str
    kind: Literal["map", "logsumexp", "loss"]
    function: Callable[..., Any]
    options: Mapping[str, Any]
    entry: Map | Loss | None = None

    @property
    def title(self) -> str:
        """The name, with the options that are not the function's defaults."""
        return " ".join([self.name, *(f"{name}={value}" for name, value in self.options.items())])

    def __call__(self, x: Tensor, second: Any) -> Tensor:
        return self.function(x, second, **self.options)


def subjects() -> dict[str, Subject]:
    """All of them: logsumexp, the registered maps, and the registered losses."""

    def subject(name: str, kind: Literal["map", "loss"], function: Callable[..., Any], entry: Map | Loss) -> Subject:
        return Subject(name, kind, function, OPTIONS.get(name, {}), entry)

    maps = {name: subject(name, "map", getattr(sm, name, map), map) for name, map in MAPS.items()}
    losses = {name: subject(name, "loss", loss.function, loss) for name, loss in LOSSES.items()}
    return {"logsumexp": Subject("logsumexp", "logsumexp", sm.logsumexp, {}), **maps, **losses}


def choose(names: Sequence[str]) -> tuple[Subject, ...]:
    """The subjects of these names; no names: all. Case, spaces and punctuation do not count."""
    offered = subjects()
    for name in names:
        if _plain(name) not in map(_plain, offered):
            raise InputError(f"--maps: there is no map or loss {name!r}; choose among: {', '.join(offered)}")
    wanted = {_plain(name) for name in names}
    return tuple(subject for name, subject in offered.items() if _plain(name) in wanted or not names)


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


@dataclass(frozen=True)
class Shape:
    """The sizes of a tensor of scores, and the axis that a row lies along."""

    sizes: tuple[int, ...]
    axis: int

    @property
    def n(self) -> int:
        """Scores of a row."""
        return self.sizes[self.axis]

    @property
    def rows(self) -> int:
        return self.scores // self.n

    @property
    def scores(self) -> int:
        return math.prod(self.sizes)

    @property
    def takes_losses(self) -> bool:
        """Whether it is (rows, classes), as losses have it."""
        return len(self.sizes) == 2 and self.axis == 1

    def __str__(self) -> str:
        return "x".join(map(str, self.sizes)) + (f"@{self.axis}" if self.axis != len(self.sizes) - 1 else "")


def read_shape(text: str) -> Shape:
    """The shape written as sizes joined by x, and @axis for another axis than the last.

    >>> read_shape("32000x4096@0")
    Shape(sizes=(32000, 4096), axis=0)
    """
    written = re.fullmatch(r"(\d+(?:x\d+)*)(?:@(-?\d+))?", text.strip().lower(), re.ASCII)
    if written is None:
        raise InputError(
            f"--shapes: {text!r} is not a shape; write sizes joined by x, and @axis for another axis than the last: "
            "256x32000 or 32000x4096@0"
        )
    sizes = tuple(int(size) for size in written[1].split("x"))
    if 0 in sizes:
        raise InputError(f"--shapes: every size must be at least 1, got {text!r}")
    axis = int(written[2] or -1)
    if not -len(sizes) <= axis < len(sizes):
        raise InputError(f"--shapes: the axis of {text!r} must be in [{-len(sizes)}, {len(sizes) - 1}]")
    return Shape(sizes, axis % len(sizes))


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


# The peers: what a competent user writes today ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Peer:
    """The same thing by another package: `function(x, axis)`, or for a loss `function(x, target)`, the mean over rows."""

    label: str
    package: str
    function: Callable[[Tensor, Any], Any]
    differentiable: bool = True
    above: int = 0  # takes part where rows have more scores: below, it is what another peer is


def _torch(function: Callable[[Tensor, Any], Any]) -> tuple[Peer, ...]:
    return (Peer("torch", "torch", function),)


def _scipy(function: Callable[[Any, Any, int], Any]) -> tuple[Peer, ...]:
    """function(scipy.special, x, axis), on the NumPy array over the same memory."""

    def run(x: Tensor, axis: int) -> Any:
        from scipy import special

        return function(special, x.numpy(), axis)

    return (Peer("scipy", "scipy", run, differentiable=False),)


def _entmax(function: Callable[[Any, Tensor, Any, int | None], Tensor], sorts: bool = True) -> tuple[Peer, ...]:
    """function(entmax, x, axis or target, k): with k = None, the package's default, and with the partial sort that it offers."""

    def peer(label: str, k: int | None, above: int) -> Peer:
        def run(x: Tensor, second: Any) -> Tensor:
            import entmax

            return function(entmax, x, second, k)

        return Peer(label, "entmax", run, above=above)

    full, partial = peer("entmax", None, 0), peer(f"entmax k={PARTIAL_SORT}", PARTIAL_SORT, PARTIAL_SORT)
    return (full, partial) if sorts else (full,)


def _with_sink(x: Tensor, axis: int, level: float) -> Tensor:
    """x with one more score in each row."""
    sink = x.new_full((), level).expand([1 if d == axis else size for d, size in enumerate(x.shape)])
    return torch.cat((x, sink), axis)


def _elastic(x: Tensor, axis: int, level: float) -> Tensor:
    return _with_sink(x, axis, level).softmax(axis).narrow(axis, 0, x.shape[axis])


def _over_sum(f: Tensor, axis: int) -> Tensor:
    return f / f.sum(axis, keepdim=True)


def _topk(x: Tensor, axis: int) -> Tensor:
    values, order = x.topk(min(10, x.shape[axis]), axis)
    return torch.zeros_like(x).scatter(axis, order, values.softmax(axis))


def _topp(x: Tensor, axis: int) -> Tensor:
    ordered, order = x.softmax(axis).sort(axis, descending=True)
    kept = ordered * (ordered.cumsum(axis) - ordered < 0.9)
    return torch.zeros_like(x).scatter(axis, order, _over_sum(kept, axis))


def _of_target(x: Tensor, target: Tensor) -> Tensor:
    return x.gather(1, target[:, None]).squeeze(1)


def _surrogate(x: Tensor, target: Tensor) -> Tensor:
    residual = x.detach().softmax(1)  # p − y
    residual.scatter_add_(1, target[:, None], residual.new_full((1, 1), -1.0).expand(len(target), 1))
    return (residual * x).sum() / len(target)


def _with_margin(x: Tensor, target: Tensor, margin: float, scale: float) -> Tensor:
    penalty = x.new_full((1, 1), -margin).expand(len(target), 1)
    return F.cross_entropy(scale * x.scatter_add(1, target[:, None], penalty), target)


def _with_angle(x: Tensor, target: Tensor) -> Tensor:
    cosine = x.gather(1, target[:, None])
    moved = (cosine.acos() + 0.5).cos()
    moved = torch.where(cosine < -math.cos(0.5), -2 - moved, moved)
    return F.cross_entropy(64 * x.scatter(1, target[:, None], moved), target)


PACKAGES = ("torch", "entmax", "scipy")

PEERS: dict[str, tuple[Peer, ...]] = {
    "logsumexp": _torch(torch.logsumexp) + _scipy(lambda special, x, axis: special.logsumexp(x, axis)),
    "softmax": _torch(torch.softmax) + _scipy(lambda special, x, axis: special.softmax(x, axis)),
    "log_softmax": _torch(torch.log_softmax) + _scipy(lambda special, x, axis: special.log_softmax(x, axis)),
    "sparsemax": _entmax(lambda entmax, x, axis, k: entmax.sparsemax(x, axis, k)),
    "entmax15": _entmax(lambda entmax, x, axis, k: entmax.entmax15(x, axis, k)),
    "entmax": _entmax(lambda entmax, x, axis, k: entmax.entmax_bisect(x, 1.3, axis, n_iter=50), sorts=False),
    "elastic_softmax": _torch(lambda x, axis: _elastic(x, axis, 0.0)),
    "eps_softmax": _torch(lambda x, axis: _elastic(x, axis, math.log(1e-6))),
    "rectified_softmax": _torch(lambda x, axis: torch.where(x < 0, -math.inf, x).softmax(axis)),
    "taylor_softmax": _torch(lambda x, axis: _over_sum((x + 1).square() + 1, axis)),  # the same as of half that, 1 + x + x²/2
    "topk_softmax": _torch(_topk),
    "topp_softmax": _torch(_topp),
    "normalize": _torch(lambda x, axis: _over_sum(x.sigmoid(), axis)),
    "cross_entropy": _torch(F.cross_entropy),
    "elastic_cross_entropy": _torch(lambda x, target: F.cross_entropy(_with_sink(x, 1, 0.0), target)),
    "sparsemax_loss": _entmax(lambda entmax, x, target, k: entmax.sparsemax_loss(x, target, k).mean()),
    "entmax15_loss": _entmax(lambda entmax, x, target, k: entmax.entmax15_loss(x, target, k).mean()),
    "entmax_loss": _entmax(lambda entmax, x, target, k: entmax.entmax_bisect_loss(x, target, 1.3, 50).mean(), sorts=False),
    "fenchel_young_loss": _torch(F.cross_entropy),  # softmax's, and the entropy of a label is 0
    "eps_cross_entropy": _entmax(
        lambda entmax, x, target, k: (
            -((_of_target(entmax.sparsemax(x, 1, k), target) + 1e-6) / (1 + x.shape[1] * 1e-6)).log().mean()
        )
    ),
    "soft_accuracy_loss": _torch(lambda x, target: -_of_target(x.softmax(1), target).mean()),
    "surrogate_loss": _torch(_surrogate),
    "sparse_softmax_loss": _torch(
        lambda x, target: (x.topk(min(10, x.shape[1]), 1).values.logsumexp(1) - _of_target(x, target)).mean()
    ),
    "am_softmax_loss": _torch(lambda x, target: _with_margin(x, target, 0.35, 30.0)),
    "cosface": _torch(lambda x, target: _with_margin(x, target, 0.35, 64.0)),
    "arcface": _torch(_with_angle),
}


def peers_of(subject: Subject, shape: Shape, packages: Sequence[str], direction: Direction) -> tuple[Peer, ...]:
    """The peers that take part in a row of the result."""
    return tuple(
        peer
        for peer in PEERS.get(subject.name, ())
        if peer.package in packages and shape.n > peer.above and (peer.differentiable or direction == "forward")
    )


# The definitions of the losses, literally: [rows, classes] float64, [rows] → [rows], differentiable -----------------------------


def _gathered(values: Tensor, target: Tensor) -> Tensor:
    return values.gather(-1, target[:, None]).squeeze(-1)


def _cross_entropy_of(map: str) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda z, target: -_gathered(MAPS[map].reference(z, **_defaults(map)), target).log()


def _fenchel_young_of(map: str) -> Callable[[Tensor, Tensor], Tensor]:
    """⟨p, z⟩ − Ω(p) + Ω(y) − z_t; by the envelope theorem its gradient is that at fixed p."""

    def loss(z: Tensor, target: Tensor) -> Tensor:
        params = _defaults(map)
        p = MAPS[map].reference(z.detach(), **params)
        omega: Any = MAPS[map].regulariser
        y = F.one_hot(target, z.shape[-1]).to(z.dtype)
        return ((p - y) * z).sum(-1) - omega(p, **params) + omega(y, **params)

    return loss


def _margin_of(moved: Callable[[Tensor], Tensor], scale: float) -> Callable[[Tensor, Tensor], Tensor]:
    def loss(z: Tensor, target: Tensor) -> Tensor:
        is_target = F.one_hot(target, z.shape[-1]).bool()
        scores = scale * torch.where(is_target, moved(z), z)
        return scores.exp().sum(-1).log() - _gathered(scores, target)

    return loss


def _moved_angle(cosine: Tensor) -> Tensor:
    angle = cosine.acos()
    return torch.where(angle <= math.pi - 0.5, (angle + 0.5).cos(), -2 - (angle + 0.5).cos())


def _eps_definition(z: Tensor, target: Tensor) -> Tensor:
    p = MAPS["sparsemax"].reference(z)
    return -((_gathered(p, target) + 1e-6) / (1 + z.shape[-1] * 1e-6)).log()


def _surrogate_definition(z: Tensor, target: Tensor) -> Tensor:
    p = MAPS["softmax"].reference(z.detach())
    return ((p - F.one_hot(target, z.shape[-1])) * z).sum(-1)


def _topk_definition(z: Tensor, target: Tensor) -> Tensor:
    return z.sort(descending=True, stable=True).values[:, :10].exp().sum(-1).log() - _gathered(z, target)


DEFINITIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross_entropy": _cross_entropy_of("softmax"),
    "elastic_cross_entropy": _cross_entropy_of("elastic_softmax"),
    "sparsemax_loss": _fenchel_young_of("sparsemax"),
    "entmax15_loss": _fenchel_young_of("entmax15"),
    "entmax_loss": _fenchel_young_of("entmax"),
    "fenchel_young_loss": _fenchel_young_of("softmax"),
    "eps_cross_entropy": _eps_definition,
    "soft_accuracy_loss": lambda z, target: -_gathered(MAPS["softmax"].reference(z), target),
    "surrogate_loss": _surrogate_definition,
    "sparse_softmax_loss": _topk_definition,
    "am_softmax_loss": _margin_of(lambda cosine: cosine - 0.35, 30.0),
    "cosface": _margin_of(lambda cosine: cosine - 0.35, 64.0),
    "arcface": _margin_of(_moved_angle, 64.0),
}


def _defaults(map: str) -> dict[str, Any]:
    return MAPS[map].complete(OPTIONS.get(map, {}))


# The check ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Problem:
    """Scores, and what goes with them. `second` is the axis, for a loss the target; `upstream` is None for a loss."""

    shape: Shape
    x: Tensor
    second: Any
    upstream: Tensor | None


def problem(subject: Subject, shape: Shape, dtype: torch.dtype, seed: int) -> Problem:
    """N(0, 1) scores, 0.9 tanh of them where they must be cosines, random labels, and an N(0, 1) upstream gradient."""
    generator = torch.Generator().manual_seed(seed)
    x = _normal(shape, shape.sizes, generator, dtype)
    if subject.kind != "loss":
        sizes = [size for axis, size in enumerate(shape.sizes) if subject.kind == "map" or axis != shape.axis]
        return Problem(shape, x, shape.axis, _normal(shape, sizes, generator, dtype))
    if _on_cosines(subject):
        x = x.tanh() * 0.9  # at ±1 an angle has no derivative
    rows = [size for axis, size in enumerate(shape.sizes) if axis != shape.axis]
    return Problem(shape, x, torch.randint(shape.n, rows, generator=generator), None)


def _on_cosines(subject: Subject) -> bool:
    return isinstance(subject.entry, Loss) and subject.entry.on_cosines


def _normal(shape: Shape, sizes: Sequence[int], generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    try:
        return torch.randn(list(sizes), generator=generator).to(dtype)
    except (RuntimeError, TypeError, OverflowError):
        raise InputError(f"--shapes: {shape} does not fit in memory; take smaller sizes") from None


def call(function: Callable[[Tensor, Any], Any], given: Problem, direction: Direction) -> Callable[[], Any]:
    """What is timed: the result, or (result, gradient). Gradients must be enabled for the latter only."""
    if direction == "forward":
        return lambda: function(given.x, given.second)
    x = given.x.detach().requires_grad_()

    def both() -> tuple[Tensor, Tensor]:
        value = function(x, given.second)
        return value, torch.autograd.grad(value, x, given.upstream)[0]

    return both


@dataclass(frozen=True, eq=False)
class Expected:
    """What the definition gives for a few rows, and the size that errors in them are relative to."""

    pick: Callable[[Tensor], Tensor]  # those rows of a tensor with the shape of x, or of one value a row
    value: Tensor
    value_size: Tensor
    gradient: Tensor
    gradient_size: Tensor
    rounding: float = 0.0  # an error in the gradient that is always allowed
    own: float = 0.0  # the deviation of our loss on the rows, from whose mean the expected value then comes


def expect(subject: Subject, given: Problem) -> Expected | None:
    """The values and gradients that are right, in float64; None for a loss that has no definition here."""
    shape = given.shape
    chosen = torch.linspace(0, shape.rows - 1, min(CHECKED_ROWS, shape.rows), dtype=torch.float64).round().long()

    def pick(values: Tensor) -> Tensor:
        if values.shape == given.x.shape:
            return values.movedim(shape.axis, -1).reshape(-1, shape.n)[chosen].double()
        return values.reshape(-1, 1)[chosen].double()

    z = pick(given.x)
    if subject.kind == "loss":
        return _expect_loss(subject, given, pick, z, pick(given.second).long().squeeze(-1))
    g = pick(given.upstream)  # type: ignore[arg-type]
    if subject.kind == "logsumexp":
        p = z.exp() / z.exp().sum(-1, keepdim=True)
        value = z.exp().sum(-1, keepdim=True).log()
        return Expected(pick, value, value.abs().clamp_min(1.0), p * g, _largest(p * g))
    map: Map = subject.entry  # type: ignore[assignment]
    params = map.complete(subject.options)
    p = map.reference(z, **params)
    s, q, *rest = map.sensitivity(p, z if map.uses_scores else None, **params)
    r = rest[0] if rest else s
    pulled = (q * g).sum(-1, keepdim=True)
    # The two terms of the gradient may cancel, so what they are before that is the size of its error.
    size = p.abs().clamp_min(1.0) if map.properties.logarithmic else _largest(p)
    return Expected(pick, p, size, s * g - r * pulled, _largest(s * g) + _largest(r * pulled))


def _expect_loss(subject: Subject, given: Problem, pick: Callable, z: Tensor, target: Tensor) -> Expected | None:
    if subject.name not in DEFINITIONS:
        return None
    with torch.enable_grad():
        z = z.requires_grad_()
        values = DEFINITIONS[subject.name](z, target)
        of_mean = torch.autograd.grad(values.sum(), z)[0] / given.shape.rows
    unrounded = given.x.float() if given.x.dtype.itemsize == 2 else given.x
    every = subject.function(unrounded, given.second, reduction="none", **subject.options)
    rows = values.detach()[:, None]
    own = _worst(pick(every), rows, rows.abs().clamp_min(1.0), 0.0) / TOLERANCE[given.x.dtype]
    mean = every.double().mean()
    # p − y loses what is below the rounding of 1, and the margin losses multiply it by 64.
    rounding = (64 if _on_cosines(subject) else 1) * torch.finfo(unrounded.dtype).eps / given.shape.rows
    return Expected(pick, mean, mean.abs().clamp_min(1.0), of_mean, _largest(of_mean), rounding, own)


def _largest(rows: Tensor) -> Tensor:
    return rows.abs().amax(-1, keepdim=True)


def _worst(values: Tensor, expected: Tensor, size: Tensor, allowed: float) -> float:
    """The largest error, beyond what is always allowed, as a share of `size`; NaN if any is."""
    error = torch.where(values == expected, 0.0, ((values - expected).abs() - allowed).clamp_min(0.0))
    return float(torch.where(error == 0, 0.0, error / size).max())


def deviation(expected: Expected, run: Callable[[], Any], direction: Direction, dtype: torch.dtype) -> float:
    """How far one call is from what is right, in units of TOLERANCE of the dtype: at most 1 is right."""
    spacing = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps  # of the numbers next to 0
    result = run()
    value, gradient = result if direction == "forward+backward" else (result, None)
    value = torch.as_tensor(value).detach()
    value = expected.pick(value) if expected.value.ndim else value.double()
    found = [_worst(value, expected.value, expected.value_size, spacing)]
    if gradient is not None:
        allowed = spacing + expected.rounding
        found.append(_worst(expected.pick(gradient), expected.gradient, expected.gradient_size, allowed) / GRADIENT_SLACK)
    return max(found, key=_nan_last) / TOLERANCE[dtype]


def _nan_last(number: float) -> float:
    return math.inf if math.isnan(number) else number


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
    """A map or loss on a shape. `deviation` is in units of the tolerance, so at most 1 is right; None: there is no definition."""

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
    return sum(1 + len(DIRECTIONS) * len(measured) for measured in planned) + sum(subject.name in NATIVE for subject in chosen)


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
    for direction in DIRECTIONS:
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
    if subject.kind == "logsumexp":  # the result, and g
        return scores + shape.rows * size * (2 if backward else 1)
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
    x = _normal(shape, shape.sizes, torch.Generator().manual_seed(settings.seed), dtype)
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
