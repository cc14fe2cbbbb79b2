"""Whether a call computes what its definition says: compared in float64 on a few rows, values and gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from softmaxima.core.jacobian import jacobian_of
from softmaxima.experiments.subjects import OPTIONS, Direction, Problem, Subject, of_target
from softmaxima.experiments.sums import Sum
from softmaxima.lse.bounds.intervals import Interval
from softmaxima.maps import REGISTRY as MAPS
from softmaxima.maps import Map

CHECKED_ROWS = 3

# How far a value may be from the float64 definition, as a share of the row's largest.
TOLERANCE = {
    torch.float64: 1e-11,
    torch.float32: 3e-6,
    torch.bfloat16: 2**-8 + 3e-6,  # the result is rounded by up to half a unit in the last place
    torch.float16: 2**-11 + 3e-6,
}
GRADIENT_SLACK = 8  # the backward pass starts from a result that is rounded already


# The losses, literally: [rows, classes] float64, [rows] → [rows], differentiable ------------------------------------------------


def _cross_entropy_of(map: str) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda z, target: -of_target(MAPS[map].reference(z, **_defaults(map)), target).log()


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
        return scores.exp().sum(-1).log() - of_target(scores, target)

    return loss


def _moved_angle(cosine: Tensor) -> Tensor:
    angle = cosine.acos()
    return torch.where(angle <= math.pi - 0.5, (angle + 0.5).cos(), -2 - (angle + 0.5).cos())


def _eps_definition(z: Tensor, target: Tensor) -> Tensor:
    p = MAPS["sparsemax"].reference(z)
    return -((of_target(p, target) + 1e-6) / (1 + z.shape[-1] * 1e-6)).log()


def _surrogate_definition(z: Tensor, target: Tensor) -> Tensor:
    p = MAPS["softmax"].reference(z.detach())
    return ((p - F.one_hot(target, z.shape[-1])) * z).sum(-1)


def _topk_definition(z: Tensor, target: Tensor) -> Tensor:
    return z.sort(descending=True, stable=True).values[:, :10].exp().sum(-1).log() - of_target(z, target)


DEFINITIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross_entropy": _cross_entropy_of("softmax"),
    "elastic_cross_entropy": _cross_entropy_of("elastic_softmax"),
    "sparsemax_loss": _fenchel_young_of("sparsemax"),
    "entmax15_loss": _fenchel_young_of("entmax15"),
    "entmax_loss": _fenchel_young_of("entmax"),
    "fenchel_young_loss": _fenchel_young_of("softmax"),
    "eps_cross_entropy": _eps_definition,
    "soft_accuracy_loss": lambda z, target: -of_target(MAPS["softmax"].reference(z), target),
    "surrogate_loss": _surrogate_definition,
    "sparse_softmax_loss": _topk_definition,
    "am_softmax_loss": _margin_of(lambda cosine: cosine - 0.35, 30.0),
    "cosface": _margin_of(lambda cosine: cosine - 0.35, 64.0),
    "arcface": _margin_of(_moved_angle, 64.0),
}


def _defaults(map: str) -> dict[str, Any]:
    return MAPS[map].complete(OPTIONS.get(map, {}))


# The comparison -----------------------------------------------------------------------------------------------------------


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
        return _expect_loss(subject, given, pick, z, pick(given.arguments[0]).long().squeeze(-1))
    g = pick(given.upstream)  # type: ignore[arg-type]
    if isinstance(subject.entry, Sum):
        return _expect_sum(subject.entry, given, pick, z, g)
    map: Map = subject.entry  # type: ignore[assignment]
    params = map.complete(subject.options)
    p = map.reference(z, **params)
    local = jacobian_of(map.sensitivity(p, z if map.uses_scores else None, **params))
    pulled = (local.q * g).sum(-1, keepdim=True)
    # The two terms of the gradient may cancel, so what they are before that is the size of its error.
    size = p.abs().clamp_min(1.0) if map.properties.logarithmic else _largest(p)
    return Expected(pick, p, size, local.pull(g), _largest(local.s * g) + _largest(local.r * pulled))


def _expect_sum(entry: Sum, given: Problem, pick: Callable, z: Tensor, g: Tensor) -> Expected:
    operands = [pick(operand) if operand.ndim else operand.double() for operand in given.arguments[1:]]
    with torch.enable_grad():
        z = z.requires_grad_()
        value = entry.reference(z, *operands)
        gradient, size = (torch.autograd.grad(value, z, along, retain_graph=True)[0] for along in (g, g.abs()))
    return Expected(pick, value.detach(), value.detach().abs().clamp_min(1.0), gradient, _largest(size))


def _expect_loss(subject: Subject, given: Problem, pick: Callable, z: Tensor, target: Tensor) -> Expected | None:
    if subject.name not in DEFINITIONS:
        return None
    with torch.enable_grad():
        z = z.requires_grad_()
        values = DEFINITIONS[subject.name](z, target)
        of_mean = torch.autograd.grad(values.sum(), z)[0] / given.shape.rows
    unrounded = given.x.float() if given.x.dtype.itemsize == 2 else given.x
    every = subject.function(unrounded, *given.arguments, reduction="none", **subject.options)
    rows = values.detach()[:, None]
    own = _worst(pick(every), rows, rows.abs().clamp_min(1.0), 0.0) / TOLERANCE[given.x.dtype]
    mean = every.double().mean()
    # p − y loses what is below the rounding of 1, and the margin losses multiply it by 64.
    rounding = (64 if subject.on_cosines else 1) * torch.finfo(unrounded.dtype).eps / given.shape.rows
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
    if isinstance(value, Interval):
        return _deviation_of_interval(expected, value)
    value = torch.as_tensor(value).detach()
    value = expected.pick(value) if expected.value.ndim else value.double()
    found = [_worst(value, expected.value, expected.value_size, spacing)]
    if gradient is not None:
        allowed = spacing + expected.rounding
        found.append(_worst(expected.pick(gradient), expected.gradient, expected.gradient_size, allowed) / GRADIENT_SLACK)
    return max(found, key=_nan_last) / TOLERANCE[dtype]


def _deviation_of_interval(expected: Expected, found: Interval) -> float:
    """0 for ends that hold the value, up to the rounding of that, and are numbers; else +∞."""
    lower, upper = expected.pick(found.lower), expected.pick(found.upper)
    slack = 8 * torch.finfo(torch.float64).eps * expected.value_size
    right = (lower <= expected.value + slack) & (upper >= expected.value - slack) & (upper - lower).isfinite()
    return 0.0 if bool(right.all()) else math.inf


def _nan_last(number: float) -> float:
    return math.inf if math.isnan(number) else number
