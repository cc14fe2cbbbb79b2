"""Whether a kernel computes its float64 definition: values and gradients, on rows of every awkward length.

A gradient is held to `Map.sensitivity` in float64, which the tests hold to finite differences of the definition.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from benchmarks.subjects import IGNORED, Computed, Problem, Subject, Variant, call, checked, problem, variants
from benchmarks.workers import describe
from softmaxima.core.jacobian import jacobian_of
from softmaxima.experiments.check import GRADIENT_SLACK, TOLERANCE
from softmaxima.experiments.subjects import DIRECTIONS, Direction
from softmaxima.maps import Map

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
LENGTHS = (1000, 1, 31, 4097, 33000, 128256, 2**20 + 3, 2)
QUICK_LENGTHS = (31, 1, 1000)
VARIED = (31, 1000, 4097, 33000)  # lengths at which the other problems are checked too
SCORES, QUICK_SCORES = 2**16, 2**10  # of a problem, but at least 3 rows
SCALE = 2.0  # of the scores: the definitions subtract nothing, and exp(2·6) is far from overflow
CHECKED_ROWS = 3  # of a large problem
CHUNK = 1 << 24  # scores of a problem that is not large, and of a loss that is summed in float64 at a time
NUCLEUS = 1e-6  # the mass before a score may be this near to p before rounding decides whether it is in the nucleus
THRESHOLD = 1e-5  # and a score this near to the threshold of sparsemax before rounding decides whether it has a gradient,
STEEP = 1e-2  # of entmax with α > 2, whose gradient has no bound there, before it decides how large that is
LAST_DIGITS = 1e-13  # that the definition of entmax loses in float64


# What is right --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Expected:
    """Values [k, n], [k, 1] of a sum, [] of a loss, gradients [k, n], and the size that errors in them are relative to."""

    rows: Tensor  # [k], those of the problem that are compared
    value: Tensor
    value_size: Tensor
    gradient: Tensor
    gradient_size: Tensor
    rounding: float = 0.0  # an error in the gradient that is always allowed
    decided: Tensor | None = None  # [k, 1]: False where rounding may decide otherwise on the gradient,
    value_decided: Tensor | None = None  # and on the value


def expect(subject: Subject, given: Problem) -> Expected:
    """What is right, in float64, for all rows of a small problem and for CHECKED_ROWS of a large one."""
    rows, n = given.x.shape
    compared = rows if rows * n <= CHUNK else min(rows, CHECKED_ROWS)
    chosen = torch.linspace(0, rows - 1, compared, dtype=torch.float64, device=given.x.device).round().long()
    if subject.kind == "loss":
        return _expect_loss(subject, given, chosen)
    z, tau = _tempered(given, chosen)
    g = given.upstream[chosen].double()  # type: ignore[index]
    if subject.kind == "sum":
        return _expect_sum(chosen, z, g[:, None], tau)
    params = subject.params({name: _of_rows(value, chosen) for name, value in given.options.items()})
    return _expect_map(subject.map, chosen, z, g, tau, params)


def _of_rows(value: Any, chosen: Tensor) -> Any:
    return value[chosen].double() if isinstance(value, Tensor) else value


def _tempered(given: Problem, chosen: Tensor) -> tuple[Tensor, Any]:
    """(z = x/τ, −∞ where masked; τ)."""
    tau, where = _of_rows(given.options.get("temperature", 1.0), chosen), given.options.get("where")
    z = given.x[chosen].double() / tau
    return (z if where is None else z.masked_fill(~where[chosen], -math.inf)), tau


def _expect_map(map: Map, chosen: Tensor, z: Tensor, g: Tensor, tau: Any, params: dict[str, Any]) -> Expected:
    nothing = -math.inf if map.properties.logarithmic else 0.0
    empty = (z == -math.inf).all(-1, keepdim=True)
    p = map.reference(z.masked_fill(empty, 0.0), **params).masked_fill(empty, nothing)
    local = jacobian_of(map.sensitivity(p, z if map.uses_scores else None, **params))
    pulled = (local.q * g).sum(-1, keepdim=True)
    size = _without_infinities(p).abs().clamp_min(1.0) if map.properties.logarithmic else _largest(p)
    # The two terms of the gradient may cancel, so what they are before that is the size of its error.
    slope = _largest(local.s * g) + _largest(local.r * pulled)
    decided = _decided(map, z, p, params)
    of_value = None if map.properties.continuous else decided
    return Expected(chosen, p, size, local.pull(g) / tau, slope / tau, decided=decided, value_decided=of_value)


def _decided(map: Map, z: Tensor, p: Tensor, params: Mapping[str, Any]) -> Tensor | None:
    if map.name == "topp_softmax" and params["p"] < 1:
        ordered = z.softmax(-1).sort(-1, descending=True).values
        before = ordered.cumsum(-1) - ordered
        return ~((before - params["p"]).abs() <= NUCLEUS).any(-1, keepdim=True)
    beta = {"sparsemax": 2.0, "entmax": params.get("alpha")}.get(map.name, 1.0) - 1
    if isinstance(beta, Tensor) or beta < 1:
        return None
    above = beta * (z - z.amax(-1, keepdim=True)) + p.amax(-1, keepdim=True) ** beta  # βz − λ
    return ~(above.abs() <= (STEEP if beta > 1 else THRESHOLD)).any(-1, keepdim=True)


def _expect_sum(chosen: Tensor, z: Tensor, g: Tensor, tau: Any) -> Expected:
    value = z.logsumexp(-1, keepdim=True)
    gradient = z.softmax(-1).nan_to_num() * g / tau
    return Expected(chosen, value, _without_infinities(value).abs().clamp_min(1.0), gradient, _largest(gradient))


def _expect_loss(subject: Subject, given: Problem, chosen: Tensor) -> Expected:
    (target,), params, (rows, n) = given.target, subject.params(given.options), given.x.shape
    counted = int((target != IGNORED).sum()) if target.ndim == 1 else rows
    height = max(1, CHUNK // n)
    total = sum(
        float(_loss_of_rows(subject, given.x[first : first + height].double(), _distribution(given, first, height), params).sum())
        for first in range(0, rows, height)
    )
    mean = torch.tensor(total / counted, dtype=torch.float64, device=given.x.device)
    y = torch.cat([_distribution(given, int(row), 1) for row in chosen]) if len(chosen) < rows else _distribution(given, 0, rows)
    p = subject.map.reference(given.x[chosen].double(), **params)
    gradient = (p * y.sum(-1, keepdim=True) - y) / counted
    # p − y loses what is below the rounding of 1.
    rounding = max(torch.finfo(torch.promote_types(given.x.dtype, torch.float32)).eps, LAST_DIGITS) / counted
    return Expected(chosen, mean, mean.abs().clamp_min(1.0), gradient, _largest(gradient), rounding)


def _distribution(given: Problem, first: int, count: int) -> Tensor:
    """y [count, n] of the rows from `first` on, all zeros where they are ignored."""
    target = given.target[0][first : first + count]
    if target.ndim == 2:
        return target.double()
    n, smoothing = given.x.shape[1], given.options.get("label_smoothing", 0.0)
    y = F.one_hot(target.clamp_min(0), n).double() * (1 - smoothing) + smoothing / n
    return y * (target != IGNORED)[:, None]


def _loss_of_rows(subject: Subject, z: Tensor, y: Tensor, params: dict[str, Any]) -> Tensor:
    """Cross-entropy −⟨y, log p⟩, or the Fenchel–Young loss ⟨p, z⟩ − Ω(p) + Ω(y) − ⟨y, z⟩."""
    if subject.name == "cross_entropy":
        return -(y * z.log_softmax(-1)).sum(-1)
    omega: Any = subject.map.regulariser
    p = subject.map.reference(z, **params)
    return ((p - y) * z).sum(-1) - omega(p, **params) + omega(y, **params)


def _largest(rows: Tensor) -> Tensor:
    return rows.abs().amax(-1, keepdim=True)


def _without_infinities(values: Tensor) -> Tensor:
    return values.masked_fill(values.isinf(), 0.0)


# The comparison -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Deviation:
    """How far a call is from what is right: in units of the tolerance of the dtype, at most 1 being right; and the largest error of
    a value, absolute.
    """

    units: float
    error: float


def deviation(expected: Expected, computed: Computed, dtype: torch.dtype, *, selection: bool = False) -> Deviation:
    """Errors as shares of the row's largest, in units of TOLERANCE; of a selection by someone else, who may take another of equal
    scores, only those of the ordered values. NaN anywhere, also in rows that are not compared, is infinitely far.
    """
    value, gradient = computed
    if any(bool(result.isnan().any()) for result in computed if result is not None):
        return Deviation(math.inf, math.inf)
    spacing = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps  # of the numbers next to 0
    values, right = _pick(value, expected.rows), expected.value
    if selection:
        values, right = values.sort(-1).values, right.sort(-1).values
    units, error = _worst(values, right, expected.value_size, spacing, expected.value_decided)
    if gradient is not None and not selection:
        allowed = spacing + expected.rounding
        slope, _ = _worst(_pick(gradient, expected.rows), expected.gradient, expected.gradient_size, allowed, expected.decided)
        units = max(units, slope / GRADIENT_SLACK)
    return Deviation(units / TOLERANCE[dtype], error)


def _pick(values: Tensor, rows: Tensor) -> Tensor:
    """The rows, of a loss the value, in float64 beside the expected ones."""
    values = values.detach().to(rows.device)
    if values.ndim == 0:
        return values.double()
    return values.reshape(len(values), -1)[rows].double()


def _worst(values: Tensor, right: Tensor, size: Tensor, allowed: float, decided: Tensor | None) -> tuple[float, float]:
    """(the largest error beyond what is allowed, as a share of `size`; the largest error)."""
    error = torch.where(values == right, 0.0, (values - right).abs())
    if decided is not None:
        error = error.where(decided, 0.0)
    beyond = (error - allowed).clamp_min(0.0)
    return float(torch.where(beyond == 0, 0.0, beyond / size).max()), float(error.max())


def poison(x: Tensor) -> None:
    """Leave NaN in the memory that results like x are likely to be given, so that what a kernel does not write is seen."""
    blocks = [torch.full_like(x, math.nan) for _ in range(2)]
    del blocks


def is_lost(device: str) -> bool:
    """Whether an error has cost this process its device."""
    if device == "cpu":
        return False
    try:
        torch.cuda.synchronize()
    except Exception:
        return True
    return False


# The checks -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Check:
    """What became of a subject on one problem."""

    title: str
    dtype: str
    rows: int
    n: int
    variant: Variant
    units: float = math.inf
    error: float = math.inf
    problem: str = ""

    @property
    def right(self) -> bool:
        return not self.problem and self.units <= 1


@dataclass(frozen=True)
class CheckTask:
    """Subjects that share their kernels, on rows of one length, so that each kernel is compiled by one process."""

    subjects: tuple[Subject, ...]
    dtype: torch.dtype
    n: int
    device: str
    scores: int

    @property
    def kernels(self) -> str:
        return self.subjects[0].kernels

    @property
    def checks(self) -> tuple[Check, ...]:
        """Those that are to be done."""
        rows = max(3, min(257, self.scores // self.n))
        return tuple(
            Check(subject.title, name_of(self.dtype), rows, self.n, variant)
            for subject in self.subjects
            for variant in ("plain", *(variants(subject) if self.n in VARIED else ()))
        )


def check_tasks(device: str, quick: bool) -> list[CheckTask]:
    lengths, scores = (QUICK_LENGTHS, QUICK_SCORES) if quick else (LENGTHS, SCORES)
    return [CheckTask(subjects, dtype, n, device, scores) for n in lengths for dtype in DTYPES for subjects in checked()]


def check(task: CheckTask) -> list[Check]:
    """Every check of the task. What fails is named; only the loss of the device is raised."""
    by_title = {subject.title: subject for subject in task.subjects}
    return [_check(by_title[planned.title], planned, task) for planned in task.checks]


def _check(subject: Subject, planned: Check, task: CheckTask) -> Check:
    facts = (planned.title, planned.dtype, planned.rows, planned.n, planned.variant)
    try:
        given = problem(subject, planned.rows, planned.n, task.dtype, task.device, planned.variant, SCALE)
        expected = expect(subject, given)
        found = [_deviation(subject, given, expected, direction) for direction in DIRECTIONS]
    except Exception as error:
        if is_lost(task.device):
            raise
        return Check(*facts, problem=describe(error))
    return Check(*facts, max(each.units for each in found), max(each.error for each in found))


def _deviation(subject: Subject, given: Problem, expected: Expected, direction: Direction) -> Deviation:
    poison(given.x)
    with torch.set_grad_enabled(direction == "forward+backward"):
        return deviation(expected, call(subject, given, direction)(), given.x.dtype)


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
