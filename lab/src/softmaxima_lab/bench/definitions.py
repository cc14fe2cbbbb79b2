"""Whether a call computes what its definition says: values and gradients, compared in float64.

A gradient of a map is held to `Map.sensitivity` in float64, which the tests hold to finite differences of the definition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from softmaxima.lse.bounds.intervals import Interval
from softmaxima.maps import Map
from softmaxima_lab.bench.case import FORWARD, WrongResultError
from softmaxima_lab.bench.maps import IGNORED, Computed, Problem, Shape, Subject, call
from softmaxima_lab.bench.sums import Sum

COMPARED, LEAST_ROWS = 1 << 16, 6  # scores that are compared with their definition, in at least so many rows
# Rounding decides where scores that are off by NUDGE move p or its derivative by more than STEEP: at a threshold, or the edge of a
# nucleus.
NUDGE, STEEP = 1e-5, 1e-3
LAST_DIGITS = 1e-13  # that the definition of entmax loses in float64

# How far a value may be from the float64 definition, as a share of the row's largest.
TOLERANCE = {
    torch.float64: 1e-11,
    torch.float32: 3e-6,
    torch.bfloat16: 2**-8 + 3e-6,  # the result is rounded by up to half a unit in the last place
    torch.float16: 2**-11 + 3e-6,
}
GRADIENT_SLACK = 8  # the backward pass starts from a result that is rounded already
# A peer may be coarser than we are, but must compute the same thing.
PEER_TOLERANCE = {torch.float64: 1e-3, torch.float32: 1e-3, torch.bfloat16: 3e-2, torch.float16: 1e-2}


# What is right ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Expected:
    """What the definition gives for some rows, and the size that errors in them are relative to."""

    pick: Callable[[Tensor], Tensor]  # those rows of a tensor with the shape of x, or of one value a row
    value: Tensor  # [k, n], [k, 1] of a sum or [] of a loss
    value_size: Tensor
    gradient: Tensor
    gradient_size: Tensor
    rounding: float = 0.0  # an error in the gradient that is always allowed
    decided: Tensor | None = None  # [k, n]: False where rounding may decide otherwise on the gradient,
    value_decided: Tensor | None = None  # and on the value
    each: Tensor | None = None  # [k, 1] of a loss: that of each row, where the value is the mean of ours
    ends: tuple[Tensor, Tensor] | None = None  # [k, 1] of an interval: what it is to be as tight as


def expect(subject: Subject, given: Problem) -> Expected | None:
    """What is right, in float64, for some rows, all of them where the problem is small; None where there is no definition."""
    if subject.entry.reference is None:
        return None
    shape = given.shape
    chosen = compared_rows(shape, given.seed).to(given.x.device)

    def pick(values: Tensor) -> Tensor:
        return given.rows_of(values)[chosen].double()

    if subject.kind == "loss":
        return _expect_loss(subject, given, pick)
    options = {name: pick(value) if isinstance(value, Tensor) else value for name, value in given.options.items()}
    tau, where = options.pop("temperature", 1.0), options.pop("where", None)
    z = pick(given.x) / tau
    z = z if where is None else z.masked_fill(where == 0, -math.inf)
    g = pick(given.upstream)  # type: ignore[arg-type]
    if isinstance(subject.entry, Sum):
        operands = [pick(operand) if operand.ndim else operand.double() for operand in given.arguments[1:]]
        return _expect_sum(subject.entry, pick, z, g, tau, operands)
    map: Map = subject.entry  # type: ignore[assignment]
    return _expect_map(map, pick, z, g, tau, map.complete(options))


def compared_rows(shape: Shape, seed: int) -> Tensor:
    """The first row, the last, some on both sides of a place where the part of a thread may end, and others at random, in order."""
    rows, parts = shape.rows, torch.get_num_threads()
    count = min(rows, max(LEAST_ROWS, COMPARED // shape.n))
    generator = torch.Generator().manual_seed(seed)
    starts = [start for part in range(1, parts) if (start := -(-rows * part // parts)) < rows]
    some = torch.randperm(len(starts), generator=generator)[: count // 4].tolist()
    sides = [row for place in some for row in (starts[place] - 1, starts[place])]
    anywhere = torch.randperm(rows, generator=generator).tolist()
    return torch.tensor(sorted(list(dict.fromkeys([0, rows - 1, *sides, *anywhere]))[:count]))


def _expect_map(map: Map, pick: Callable, z: Tensor, g: Tensor, tau: Any, params: dict[str, Any]) -> Expected:
    nothing = -math.inf if map.properties.logarithmic else 0.0
    empty = (z == -math.inf).all(-1, keepdim=True)
    p = map.reference(z.masked_fill(empty, 0.0), **params).masked_fill(empty, nothing)
    local = map.jacobian_of(map.sensitivity(p, z if map.uses_scores else None, **params))
    pulled = (local.q * g).sum(-1, keepdim=True)
    size = _without_infinities(p).abs().clamp_min(1.0) if map.properties.logarithmic else _largest(p)
    # The two terms of the gradient may cancel, so what they are before that is the size of its error.
    slope = _largest(local.s * g) + _largest(local.r * pulled)
    of_value, of_slope = _decided(map, z.masked_fill(empty, 0.0), p, local.s, params)
    if map.properties.continuous:
        return Expected(pick, p, size, local.pull(g) / tau, slope / tau, decided=of_slope)
    return Expected(pick, p, size, local.pull(g) / tau, slope / tau, decided=of_value & of_slope, value_decided=of_value)


def _decided(map: Map, z: Tensor, p: Tensor, s: Tensor, params: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """[k, n] each: whether p, and whether its derivative, move no more than they should for scores that are a little off."""
    noise = torch.randn(z.shape, generator=torch.Generator(z.device).manual_seed(0), device=z.device, dtype=z.dtype)
    values, slopes = torch.ones_like(z, dtype=torch.bool), torch.ones_like(z, dtype=torch.bool)
    for factor in (-NUDGE, NUDGE):
        near = z + factor * noise
        q = map.reference(near, **params)
        t = map.jacobian_of(map.sensitivity(q, near if map.uses_scores else None, **params)).s
        values &= (_without_infinities(q) - _without_infinities(p)).abs() <= STEEP * _without_infinities(p).abs()
        apart = (t - s).abs()
        slopes &= (apart <= STEEP * _largest(s)) & (apart.sum(-1, keepdim=True) <= STEEP * s.abs().sum(-1, keepdim=True))
    return values, slopes


def _expect_sum(entry: Sum, pick: Callable, z: Tensor, g: Tensor, tau: Any, operands: list[Tensor]) -> Expected:
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        value = entry.reference(z, *operands)
        slopes = (torch.autograd.grad(value, z, along, retain_graph=True)[0].nan_to_num(0.0) / tau for along in (g, g.abs()))
        gradient, size = slopes  # NaN: of a row of which all is masked
    value = value.detach()
    ends = None if entry.ends is None else entry.ends(z.detach())
    return Expected(pick, value, _without_infinities(value).abs().clamp_min(1.0), gradient, _largest(size), ends=ends)


def _expect_loss(subject: Subject, given: Problem, pick: Callable) -> Expected:
    loss: Any = subject.entry
    (target,), rows = given.arguments, given.shape.rows
    z, y = pick(given.x), _distribution(given, pick)
    counts = y.any(-1)
    counted = int((target != IGNORED).sum()) if target.ndim == 1 else rows
    with torch.enable_grad():
        z = z.requires_grad_()
        values = torch.where(counts, loss.reference(z, y, **loss.complete(subject.options)), 0.0)
        gradient = torch.autograd.grad(values.sum(), z)[0] / counted
    every = of_each_row(subject, given)
    mean = every.double().sum() / counted
    # p − y loses what is below the rounding of 1, and the margin losses multiply it by 64.
    eps = max(torch.finfo(every.dtype).eps, LAST_DIGITS)
    rounding = (64 if loss.on_cosines else 1) * eps / counted
    # Beside a label the gradient is p/N, far smaller than the label's own.
    others = _largest(torch.where(y == y.amax(-1, keepdim=True), 0.0, gradient))
    size = torch.where(y == y.amax(-1, keepdim=True), _largest(gradient), torch.where(others == 0, _largest(gradient), others))
    return Expected(pick, mean, mean.abs().clamp_min(1.0), gradient, size, rounding, each=values.detach()[:, None])


def of_each_row(subject: Subject, given: Problem) -> Tensor:
    """Our loss of every row, whose mean is checked and timed; of scores in half precision not rounded to that."""
    unrounded = given if given.x.dtype.itemsize > 2 else replace(given, x=given.x.float())
    with torch.no_grad():
        return subject(unrounded, reduction="none")


def _distribution(given: Problem, pick: Callable) -> Tensor:
    """y [k, n], all zeros where a row is ignored."""
    (target,) = given.arguments
    if target.ndim == 2:
        return pick(target)
    n, smoothing = given.shape.n, given.options.get("label_smoothing", 0.0)
    labels = pick(target).long().squeeze(-1)
    y = F.one_hot(labels.clamp_min(0), n).double() * (1 - smoothing) + smoothing / n
    return y * (labels != IGNORED)[:, None]


def _largest(rows: Tensor) -> Tensor:
    return rows.abs().amax(-1, keepdim=True)


def _without_infinities(values: Tensor) -> Tensor:
    return values.masked_fill(values.isinf(), 0.0)


# The comparison ---------------------------------------------------------------------------------------------------------------


def deviation(expected: Expected, computed: Computed, dtype: torch.dtype, *, selection: bool = False) -> float:
    """How far a call is from what is right, in units of the tolerance: errors as shares of the row's largest. Of a selection by
    someone else, who may take another of equal scores, only those of the ordered values. NaN anywhere, also in rows that are not
    compared, is infinitely far.
    """
    value, gradient = computed
    if isinstance(value, Interval):
        return _deviation_of_interval(expected, value, dtype)
    value = torch.as_tensor(value).detach()
    if bool(expected.value.isnan().any() or expected.gradient.isnan().any()):
        return math.inf  # the definition itself fails
    if any(bool(result.isnan().any()) for result in (value, gradient) if result is not None):
        return math.inf
    spacing = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps  # of the numbers next to 0
    device = expected.value.device
    values, right = expected.pick(value.to(device)) if expected.value.ndim else value.to(device).double(), expected.value
    if selection:
        values, right = values.sort(-1).values, right.sort(-1).values
    units = _worst(values, right, expected.value_size, spacing, expected.value_decided)
    if gradient is not None and not selection:
        found, allowed = expected.pick(gradient.to(device)), spacing + expected.rounding
        slope = _worst(found, expected.gradient, expected.gradient_size, allowed, expected.decided)
        units = max(units, slope / GRADIENT_SLACK)
    return units / TOLERANCE[dtype]


def deviation_of_ours(subject: Subject, given: Problem, expected: Expected, computed: Computed, dtype: torch.dtype) -> float:
    """The same, and of a loss also that of each row."""
    found = deviation(expected, computed, dtype)
    if expected.each is None:
        return found
    every = expected.pick(of_each_row(subject, given))
    return max(found, _worst(every, expected.each, expected.each.abs().clamp_min(1.0), 0.0, None) / TOLERANCE[dtype])


def check_ours(subject: Subject, given: Problem, expected: Expected, direction: str, dtype: torch.dtype) -> float:
    """How far we are from what is expected, where the memory of results holds NaN before.

    Raises WrongResultError where the same rows in another order give something else, which tells of rows that are not compared.
    """
    _poison(given.x)
    order = _another_order(given)
    moved = given.with_rows(order)
    with torch.set_grad_enabled(direction != FORWARD):
        computed, again = (call(subject, each, direction)() for each in (given, moved))
    found = deviation_of_ours(subject, given, expected, computed, dtype)
    if subject.kind == "loss":
        computed, again = ((of_each_row(subject, each), slope) for each, (_, slope) in ((given, computed), (moved, again)))
    displaced = _displacement(subject, given, computed, again, order, dtype)
    if displaced > max(found, 1.0):
        raise WrongResultError(f"{displaced:.3g} times the tolerance away from the same rows in another order")
    return found


def _another_order(given: Problem) -> Tensor:
    """A cycle through all rows at random: some row of any set of them, but of all, comes to a place outside it."""
    cycle = torch.randperm(given.shape.rows, generator=torch.Generator().manual_seed(given.seed))
    return torch.empty_like(cycle).index_copy(0, cycle, cycle.roll(1)).to(given.x.device)


def _displacement(subject: Subject, given: Problem, found: Computed, moved: Computed, order: Tensor, dtype: torch.dtype) -> float:
    """How far `moved`, the result on rows in this order, is from the rows of `found` in this order, in units of the tolerance: 0
    where the place of a row does not matter, next to nothing where it decides on a last digit.
    """
    least = 0.0 if isinstance(subject.entry, Map) and not subject.entry.properties.logarithmic else 1.0
    furthest = 0.0
    for values, others in zip(_parts(found), _parts(moved), strict=True):
        here, there = given.rows_of(values)[order], given.rows_of(others)
        if torch.equal(here, there):
            continue
        here, there = here.double(), there.double()
        sizes = _without_infinities(here).abs()
        units = _worst(there, here, (sizes + sizes.mean(-1, keepdim=True)).clamp_min(least), 0.0, None)
        furthest = max(furthest, math.inf if math.isnan(units) else units / GRADIENT_SLACK / TOLERANCE[dtype])
    return furthest


def _parts(computed: Computed) -> list[Tensor]:
    value, gradient = computed
    values = (value.lower, value.upper) if isinstance(value, Interval) else (value,)
    return [torch.as_tensor(each).detach() for each in (*values, gradient) if each is not None]


def _deviation_of_interval(expected: Expected, found: Interval, dtype: torch.dtype) -> float:
    """0 for ends that hold the value, up to the rounding of that, and are as tight as they are defined to be, up to the rounding
    outward to the dtype; else +∞.
    """
    lower, upper = expected.pick(found.lower), expected.pick(found.upper)
    slack = 8 * torch.finfo(torch.float64).eps * expected.value_size
    right = (lower <= expected.value + slack) & (upper >= expected.value - slack)
    lowest, highest = expected.ends or (expected.value, expected.value)
    rounding = max(2 * torch.finfo(dtype).eps, TOLERANCE[dtype]) * expected.value_size
    tight = (lower >= lowest - rounding) & (upper <= highest + rounding)
    every = torch.as_tensor(found.upper).double() - torch.as_tensor(found.lower).double()
    return 0.0 if bool(right.all() and tight.all() and (every >= 0).all()) else math.inf


def _worst(values: Tensor, right: Tensor, size: Tensor, allowed: float, decided: Tensor | None) -> float:
    """The largest error beyond what is allowed, as a share of `size`."""
    error = torch.where(values == right, 0.0, (values - right).abs())
    if decided is not None:
        error = error.where(decided, 0.0)
    beyond = (error - allowed).clamp_min(0.0)
    return float(torch.where(beyond == 0, 0.0, beyond / size).max())


def _poison(x: Tensor) -> None:
    """Leave NaN in the memory that results like x are likely to be given, so that what a kernel does not write is seen."""
    if x.is_floating_point():
        blocks = [torch.full_like(x, math.nan) for _ in range(2)]
        del blocks
