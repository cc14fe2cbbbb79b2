r"""Losses whose gradient is a map less the target, with that gradient, where a row fits on chip in one read:

    value = w (U v + Ω(y) + Σ u_c (M − x_c)),    gradient = scale · w (U p − u),    V(x) = M + v

y is the target with its smoothing, u = y times the class weights or, in a Fenchel–Young loss, y with the weight w of the row
outside; U = Σ u over the classes that are not −∞. Values are sums in double: near the loss's zero they cancel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from softmaxima.kernels.layout import in_memory
from softmaxima.kernels.triton.arithmetic import INFINITY, MOST_P, expm1, gap, narrowed, row_sum
from softmaxima.kernels.triton.launches import RowFunctions, Rows, bits, next_power_of_2, tiles
from softmaxima.kernels.triton.rows import double, everywhere, merge_parts, part_of, read_number, read_scores, read_theta, tile

ACCOUNTED = 3  # numbers that a thread holds for each element, where a target says something of all


class Target(NamedTuple):
    labels: Any  # or None
    soft: Any  # or None
    weights: Any  # of classes, or None
    smoothing: Any  # the bits of a double


class Results(NamedTuple):
    """What is written, and what gradients are times."""

    losses: Any  # [...] in double
    out: Any  # the gradient, or None
    scale: Any  # the bits of a double
    scales: Any  # one double instead, or None


class Formula(NamedTuple):
    conjugate: Any
    regulariser: Any
    missing: Any
    FENCHEL: Any
    IS_LOG: Any


class Account(NamedTuple):
    """What a target says of a row, sums in double."""

    mass: Any  # U
    distance: Any  # Σ u (M − x)
    omega: Any  # Ω(y), where y is given
    weight: Any  # w = Σ w_c y_c, where classes have weights
    total: Any  # Σ y, where y is given
    impossible: Any  # how many classes of −∞ have a target


# Targets --------------------------------------------------------------------------------------------------------------------


@triton.jit
def read_label(target, row):
    if target.labels is None:
        label = tl.zeros((1, 1), tl.int64)
    else:
        label = tl.load(target.labels + row)
    return label


@triton.jit
def shares(rows, target, label, row, column, inside, dtype: tl.constexpr):
    """y [R, B]."""
    share = double(target.smoothing)
    other = (share / rows.n).to(dtype)
    if target.soft is None:
        y = tl.where(column == label, (1.0 - share + share / rows.n).to(dtype), other)
    else:
        y = tl.load(target.soft + row * rows.n + column, mask=inside, other=0.0).to(dtype) * (1.0 - share).to(dtype) + other
    return tl.where(inside, y, 0.0)


@triton.jit
def factors(rows, target, column):
    """The weights of classes [1, B] in double."""
    if target.weights is None:
        factor = tl.full((1, 1), 1.0, tl.float64)
    else:
        factor = tl.load(target.weights + column, mask=column < rows.n, other=0.0)
    return factor


@triton.jit
def shannon(y, theta):
    """y log y."""
    return tl.where(y > 0.0, y * tl.log(tl.where(y > 0.0, y, 1.0)), y)


@triton.jit
def account(rows, target, formula, x, maximum, label, row, column, inside, theta):
    """The account of a block. Sums that no load is part of would lie whole in every thread: of a label `value_of` says them."""
    y = shares(rows, target, label, row, column, inside, tl.float64)
    factor = factors(rows, target, column)
    u = y if formula.FENCHEL else y * factor
    possible = x != -INFINITY
    mass = row_sum(tl.where(possible, u, 0.0))
    below = -gap(x.to(tl.float64), maximum.to(tl.float64))
    distance = row_sum(tl.where((u == 0.0) | (x == -INFINITY), 0.0, u * below))
    impossible = row_sum(tl.where((u != 0.0) & (x == -INFINITY) & inside, 1.0, 0.0).to(tl.float64))
    omega, weight, total = tl.zeros_like(mass), tl.zeros_like(mass), tl.zeros_like(mass)
    if target.weights is not None:
        weight = row_sum(y * factor)
    if target.soft is not None:
        omega = row_sum(formula.regulariser(y, theta)) if formula.FENCHEL else omega
        total = row_sum(y)
    return Account(mass, distance, omega, weight, total, impossible)


@triton.jit
def account_label(rows, target, formula, maximum, label, row, theta):
    """The account of a row in which no class but the label has a share: one score."""
    inside = (label >= 0) & (label < rows.n)
    column = tl.where(inside, label, 0)
    score = read_scores(rows, row, column, inside)
    return account(rows, target, formula, score, maximum, label, row, column, inside, theta)


@triton.jit
def read_account(accounts, index, count, PARTS: tl.constexpr):
    """The sums of all parts of a row."""
    part = tl.arange(0, PARTS)[None, :]
    place, is_part = accounts.partial + index * accounts.parts + part, part < accounts.parts
    mass = row_sum(tl.load(place, mask=is_part, other=0.0))
    distance = row_sum(tl.load(place + count, mask=is_part, other=0.0))
    omega = row_sum(tl.load(place + 2 * count, mask=is_part, other=0.0))
    weight = row_sum(tl.load(place + 3 * count, mask=is_part, other=0.0))
    total = row_sum(tl.load(place + 4 * count, mask=is_part, other=0.0))
    return Account(mass, distance, omega, weight, total, row_sum(tl.load(place + 5 * count, mask=is_part, other=0.0)))


@triton.jit
def value_of(rows, target, formula, sums, v, label, maximum, theta):
    """(the value, U, w) of rows [R, 1]."""
    one = tl.full(sums.mass.shape, 1.0, tl.float64)
    mass, omega, weight = sums.mass, sums.omega, one
    if formula.FENCHEL:
        mass = one
        if target.soft is None:
            other = double(target.smoothing) / rows.n
            omega = formula.regulariser(one - double(target.smoothing) + other, theta)
            omega += (rows.n - 1) * formula.regulariser(other * one, theta)
        elif formula.missing is not None:
            omega += formula.missing(1.0 - sums.total, maximum, theta)
        if target.weights is not None:
            weight = sums.weight
    value = mass * v + omega + sums.distance
    if formula.FENCHEL:
        value = tl.maximum(value, 0.0, propagate_nan=tl.PropagateNan.ALL)
    value = tl.where((weight == 0.0) & (value == value), 0.0, weight * value)
    value = tl.where((sums.impossible > 0.0) & (weight != 0.0), tl.where(v == v, INFINITY, v), value)
    return value, mass, weight


# Kernels --------------------------------------------------------------------------------------------------------------------


@triton.jit
def of_label(value, label, n):
    """0 for a row that is left out, NaN for a label of no class."""
    return tl.where(label < 0, 0.0, tl.where(label >= n, float("nan"), value))


@triton.jit
def store_gradient(rows, target, results, formula, p, x, v, label, row, column, inside, mass, weight):
    y = tl.where(x == -INFINITY, 0.0, shares(rows, target, label, row, column, inside, p.dtype))
    factor = weight * read_number(results.scale, results.scales, tl.zeros((1, 1), tl.int64))
    if formula.FENCHEL or target.weights is None:
        scale = narrowed(factor, None, False, p.dtype).to(p.dtype)
        gradient = scale * (mass.to(p.dtype) * p - y)
        if formula.IS_LOG:  # a p that is most of its row is that of the largest score, e^{−v}
            of_most = (mass - y.to(tl.float64)) - mass * (-expm1(-v))
            gradient = tl.where(p > MOST_P, scale * of_most.to(p.dtype), gradient)
    else:  # the weights of classes may be beyond float32, and their products with the factor are not
        of_class = narrowed(factor * factors(rows, target, column), None, False, p.dtype).to(p.dtype)
        gradient = narrowed(factor * mass, None, False, p.dtype).to(p.dtype) * p - y * of_class
        if formula.IS_LOG:
            taken = factor * factors(rows, target, column) * y.to(tl.float64)
            of_most = (factor * mass - taken) - factor * mass * (-expm1(-v))
            gradient = tl.where(p > MOST_P, narrowed(of_most, None, False, p.dtype).to(p.dtype), gradient)
    gradient = tl.where(label < 0, 0.0, gradient)
    tl.store(results.out + row * rows.n + column, gradient.to(results.out.dtype.element_ty), mask=inside)


@triton.jit
def whole_losses(
    rows, target, results, count, formula, BEGIN: tl.constexpr, FINISH: tl.constexpr, IS_LABEL: tl.constexpr, ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    row, is_row, column, inside = tile(rows, count, ROWS, WIDTH)
    scores = read_scores(rows, row, column, inside)
    theta = read_theta(rows.theta, row)
    label = read_label(target, row)
    one = tl.full((1, 1), 1.0, rows.COMPUTE)
    a, b, c, d = BEGIN(scores, one, one, column, theta, one, False)
    if IS_LABEL:
        sums = account_label(rows, target, formula, a, label, row, theta)
    else:
        sums = account(rows, target, formula, scores, a, label, row, column, inside, theta)
    v = formula.conjugate(a, b, c, d, theta)
    value, mass, weight = value_of(rows, target, formula, sums, v, label, a, theta)
    tl.store(results.losses + row, of_label(value, label, rows.n), mask=is_row)
    if results.out is not None:
        p = FINISH(scores, one, one, column, theta, one, False, a, b, c, d)
        store_gradient(rows, target, results, formula, p, scores, v, label, row, column, inside, mass, weight)


@triton.jit
def account_parts(rows, target, group, accounts, formula, MERGE: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr):
    """accounts [6, *, programs]: what the target says of each part."""
    index, row, column = part_of(group, WIDTH)
    count = tl.num_programs(0).to(tl.int64)
    height = count // group.programs
    theta = read_theta(rows.theta, row)
    one = tl.full((1, 1), 1.0, rows.COMPUTE)
    a, b, c, d = merge_parts(group, index // group.programs, height * group.parts, theta, one, MERGE, False, PARTS)
    inside = column < rows.n
    scores = read_scores(rows, row, column, inside)
    sums = account(rows, target, formula, scores, a, read_label(target, row), row, column, inside, theta)
    place = accounts + index + tl.zeros((1, 1), tl.int64)
    for i in tl.static_range(6):
        tl.store(place + i * count, sums[i])


@triton.jit
def finish_losses(
    rows, target, results, group, accounts, formula, MERGE: tl.constexpr, FINISH: tl.constexpr, WIDTH: tl.constexpr,
    MERGED: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    index, row, column = part_of(group, WIDTH)
    height = tl.num_programs(0).to(tl.int64) // group.programs
    theta = read_theta(rows.theta, row)
    label = read_label(target, row)
    one = tl.full((1, 1), 1.0, rows.COMPUTE)
    a, b, c, d = merge_parts(group, index // group.programs, height * group.parts, theta, one, MERGE, False, MERGED)
    if accounts is None:
        sums = account_label(rows, target, formula, a, label, row, theta)
    else:
        sums = read_account(accounts, index // group.programs, height * accounts.parts, PARTS)
    v = formula.conjugate(a, b, c, d, theta)
    value, mass, weight = value_of(rows, target, formula, sums, v, label, a, theta)
    mass, weight, v = everywhere(mass), everywhere(weight), everywhere(v)
    is_first = tl.zeros((1, 1), tl.int64) + index % group.programs == 0
    tl.store(results.losses + row, of_label(value, label, rows.n), mask=is_first)
    if results.out is not None:
        inside = column < rows.n
        scores = read_scores(rows, row, column, inside)
        p = FINISH(scores, one, one, column, theta, one, False, a, b, c, d)
        store_gradient(rows, target, results, formula, p, scores, v, label, row, column, inside, mass, weight)


# Launches -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Loss:
    """The map of a Fenchel–Young loss, and what it has beside its map.

    conjugate(a, b, c, d, theta) → v             V(x) − M [R, 1] in double, from the map's accumulators
    regulariser(y, theta) → ω                    Ω(y) = Σ ω of a target y in double
    missing(share, M, theta) → ω                 what the share that a target lacks of 1 adds to Ω; None where it lacks none
    is_log                                       whether p = exp(x − V)
    """

    map: RowFunctions
    conjugate: Any
    regulariser: Any
    missing: Any = None
    is_log: bool = False

    def formula(self, fenchel: bool) -> Formula:
        return Formula(self.conjugate, self.regulariser, self.missing, tl.constexpr(fenchel), tl.constexpr(self.is_log))


def launch(loss: Loss, rows: Rows, target: Target, results: Results, fenchel: bool) -> None:
    """Fills `losses` [...] and, if there is one, the contiguous `out` [..., n] with the gradient."""
    f, formula = loss.map, loss.formula(fenchel)
    is_label_alone = target.labels is not None and target.smoothing == bits(0.0)
    if rows.fit(f.numbers(rows.scores.x, None, None) + (0 if is_label_alone else ACCOUNTED)):
        programs, tile = tiles(rows.count, rows.width, f.each)
        whole_losses[programs](
            rows.scores, target, results, rows.count, formula, BEGIN=f.begin, FINISH=f.finish, IS_LABEL=is_label_alone, **tile
        )
        return
    for taken, group in f.accumulated(rows, None, None):
        accounts, merged = None, next_power_of_2(group.parts)
        if not is_label_alone:
            sums = torch.empty((6, taken, group.programs), dtype=torch.float64, device=rows.like.device)
            accounts = group._replace(partial=sums, parts=group.programs)
            account_parts[(taken * group.programs,)](
                rows.scores, target, group, sums, formula, MERGE=f.merge, PARTS=merged, **rows.block
            )  # fmt: skip
        finishing = group if results.out is not None else group._replace(programs=1)
        finish_losses[(taken * finishing.programs,)](
            rows.scores, target, results, finishing, accounts, formula, MERGE=f.merge, FINISH=f.finish, MERGED=merged,
            PARTS=next_power_of_2(group.programs), **rows.block,
        )  # fmt: skip


def target_of(target: Tensor, class_weight: Tensor | None, smoothing: float) -> Target:
    hard = target.dtype == torch.int64
    labels, soft = (in_memory(target), None) if hard else (None, in_memory(target))
    weights = None if class_weight is None else in_memory(class_weight.to(torch.float64))
    return Target(labels, soft, weights, bits(smoothing))


def results_of(values: Tensor, out: Tensor | None, scale: float | Tensor) -> Results:
    one, each = (bits(1.0), in_memory(scale.double())) if isinstance(scale, Tensor) else (bits(scale), None)
    return Results(values, out, one, each)
