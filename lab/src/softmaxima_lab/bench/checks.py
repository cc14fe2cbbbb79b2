"""The kernels on rows of every awkward length, in every dtype, with masks, temperatures and all kinds of targets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from softmaxima.maps import Map
from softmaxima_lab.bench.definitions import (
    Deviation,
    Expected,
    deviation,
    deviation_of_each_row,
    displacement,
    expect,
    of_each_row,
    poison,
)
from softmaxima_lab.bench.subjects import (
    DIRECTIONS,
    Computed,
    Direction,
    Problem,
    Shape,
    Subject,
    Variant,
    call,
    problem,
    with_kernels,
)
from softmaxima_lab.bench.workers import describe

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
LENGTHS = (1000, 1, 31, 4097, 33000, 128256, 2**20 + 3, 2)
QUICK_LENGTHS = (31, 1, 1000)
VARIED = (31, 1000, 4097, 33000)  # lengths at which the other problems are checked too
SCORES, MOST_ROWS = 2**16, 257  # of a problem, which has at least 3 rows
UNDEFINED = "it has no definition"
SCALE = 2.0  # of the scores: the definitions subtract nothing, and exp(2·6) is far from overflow


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

    def __str__(self) -> str:
        return f"{self.title} {self.dtype} {self.rows}x{self.n} {self.variant}"


@dataclass(frozen=True)
class CheckTask:
    """Subjects that share their kernels, on rows of one length, so that each kernel is compiled by one process."""

    subjects: tuple[Subject, ...]
    dtype: torch.dtype
    n: int
    device: str

    @property
    def checks(self) -> tuple[Check, ...]:
        """Those that are to be done."""
        rows = max(3, min(MOST_ROWS, SCORES // self.n))
        return tuple(
            Check(subject.title, name_of(self.dtype), rows, self.n, variant)
            for subject in self.subjects
            for variant in ("plain", *(subject.variants if self.n in VARIED else ()))
        )

    def __str__(self) -> str:
        return f"{self.subjects[0].title}, rows of {self.n}, {name_of(self.dtype)}"


def check_tasks(device: str, lengths: Sequence[int]) -> list[CheckTask]:
    return [CheckTask(subjects, dtype, n, device) for n in lengths for dtype in DTYPES for subjects in with_kernels()]


def check(task: CheckTask) -> list[Check]:
    """Every check of the task. What fails is named; only the loss of the device is raised."""
    by_title = {subject.title: subject for subject in task.subjects}
    return [_check(by_title[planned.title], planned, task) for planned in task.checks]


def _check(subject: Subject, planned: Check, task: CheckTask) -> Check:
    facts = (planned.title, planned.dtype, planned.rows, planned.n, planned.variant)
    try:
        shape = Shape((planned.rows, planned.n), 1)
        given = problem(subject, shape, task.dtype, task.device, planned.variant, SCALE)
        expected = expect(subject, given)
        if expected is None:
            return Check(*facts, problem=UNDEFINED)
        found = [deviation_of(subject, given, task.dtype, expected, direction) for direction in DIRECTIONS]
    except Exception as error:
        if is_lost(task.device):
            raise
        return Check(*facts, problem=describe(error))
    return Check(*facts, max(each.units for each in found), max(each.error for each in found))


def deviation_of(subject: Subject, given: Problem, dtype: torch.dtype, expected: Expected, direction: Direction) -> Deviation:
    """How far we are from what is expected, where the memory of results holds NaN before; or from ourselves on the same rows in
    another order, which tells of the rows that are not compared.
    """
    poison(given.x)
    order = another_order(given)
    moved = given.with_rows(order)
    with torch.set_grad_enabled(direction == "forward+backward"):
        computed, again = (call(subject, each, direction)() for each in (given, moved))
    found = deviation_of_result(subject, given, dtype, expected, computed)
    if subject.kind == "loss":
        computed, again = ((of_each_row(subject, each), slope) for each, (_, slope) in ((given, computed), (moved, again)))
    displaced = Deviation(
        displacement(subject, given, computed, again, order, dtype), found.error, "the same rows in another order"
    )
    return displaced if displaced.units > max(found.units, 1.0) else found


def another_order(given: Problem) -> Tensor:
    """A cycle through all rows at random: some row of any set of them, but of all, comes to a place outside it."""
    cycle = torch.randperm(given.shape.rows, generator=torch.Generator().manual_seed(given.seed))
    return torch.empty_like(cycle).index_copy(0, cycle, cycle.roll(1)).to(given.x.device)


def deviation_of_result(subject: Subject, given: Problem, dtype: torch.dtype, expected: Expected, computed: Computed) -> Deviation:
    """How far a result of ours is from what is expected, with the loss of each row, or what the rows of a map add up to."""
    found = deviation(expected, computed, dtype)
    if wrong_mass(subject, given, computed[0]):
        return Deviation(math.inf, math.inf)
    if expected.each is None:
        return found
    return Deviation(max(found.units, deviation_of_each_row(expected, of_each_row(subject, given), dtype)), found.error)


def wrong_mass(subject: Subject, given: Problem, value: Any) -> bool:
    """Whether a row's probabilities, compared with a definition or not, add up to something else than the map says."""
    map, n = subject.entry, given.shape.n
    if not isinstance(map, Map) or "where" in given.options:
        return False
    p, claims = value.detach(), map.properties
    mass = (p.exp() if claims.logarithmic else p).sum(given.shape.axis, dtype=torch.float64)
    most = float(claims.largest_mass(torch.tensor(float(n)), **subject.params))
    slack = 0.02 * most + n * torch.finfo(p.dtype).smallest_normal * torch.finfo(p.dtype).eps  # what is rounded to 0
    least = most - slack if claims.constant_mass else 0.0
    return not bool(((mass >= least) & (mass <= most + slack)).all())


def is_lost(device: str) -> bool:
    """Whether an error has cost this process its device."""
    if device == "cpu":
        return False
    try:
        torch.cuda.synchronize()
    except Exception:
        return True
    return False


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
