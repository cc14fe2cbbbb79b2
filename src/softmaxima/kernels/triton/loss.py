r"""Losses whose gradient is a map less the target, with that gradient, where a row fits on chip in one read:

    value = w (U v + Ω(y) + Σ u_c (M − x_c)),    gradient = scale · w (U p − u),    V(x) = M + v

y is the target with its smoothing, u = y times the class weights or, in a Fenchel–Young loss, y with the weight w of the row
outside; U = Σ u over the classes that are not −∞. Values are sums in double: near the loss's zero they cancel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from softmaxima.kernels.native import in_memory
from softmaxima.kernels.triton.rows import (
    INFINITY,
    RowFunctions,
    Rows,
    bits,
    double,
    gap,
    read_number,
    read_parts,
    read_scores,
    read_theta,
    row_sum,
    warps,
)

# Targets --------------------------------------------------------------------------------------------------------------------


@triton.jit
def shares(label, soft, row, column, inside, n, smoothing):
    """y [R, B] in double."""
    if soft is None:
        y = (column == label).to(tl.float64)
    else:
        y = tl.load(soft + row * n + column, mask=inside, other=0.0).to(tl.float64)
    share = double(smoothing)
    return tl.where(inside, y * (1.0 - share) + share / n, 0.0)


@triton.jit
def factors(weights, column, n):
    """The weights of classes [1, B] in double."""
    if weights is None:
        factor = tl.full((1, 1), 1.0, tl.float64)
    else:
        factor = tl.load(weights + column, mask=column < n, other=0.0)
    return factor


@triton.jit
def shannon(y, theta):
    """y log y."""
    return tl.where(y > 0.0, y * tl.log(tl.where(y > 0.0, y, 1.0)), y)


@triton.jit
def account(
    x, maximum, label, soft, weights, row, column, inside, n, smoothing, theta, FENCHEL: tl.constexpr, REGULARISER: tl.constexpr
):  # fmt: skip
    """(U, Σ u (M − x), Ω(y), w, Σ y, how many classes of −∞ have a target) of a block, in double."""
    y = shares(label, soft, row, column, inside, n, smoothing)
    factor = factors(weights, column, n)
    u = y if FENCHEL else y * factor
    possible = x != -INFINITY
    mass = row_sum(tl.where(possible, u, 0.0))
    below = -gap(x.to(tl.float64), maximum.to(tl.float64))
    distance = row_sum(tl.where((u == 0.0) | (x == -INFINITY), 0.0, u * below))
    impossible = row_sum(tl.where((u != 0.0) & (x == -INFINITY) & inside, 1.0, 0.0).to(tl.float64))
    omega = row_sum(REGULARISER(y, theta)) if FENCHEL else tl.zeros_like(mass)
    of_row = y
    if soft is None:
        of_row = (column == label).to(tl.float64)  # the weight of a label is not smoothed
    return mass, distance, omega, row_sum(of_row * factor), row_sum(y), impossible


@triton.jit
def account_label(
    x, stride, starts, maximum, label, weights, row, n, smoothing, theta,
    FENCHEL: tl.constexpr, REGULARISER: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """The account of a row in which no class but the label has a share: one score."""
    inside = (label >= 0) & (label < n)
    column = tl.where(inside, label, 0)
    score = read_scores(x, stride, starts, None, None, row, column, inside, n, COMPUTE)
    return account(score, maximum, label, None, weights, row, column, inside, n, smoothing, theta, FENCHEL, REGULARISER)


@triton.jit
def read_account(accounts, index, parts, count, PARTS: tl.constexpr):
    """The sums of all parts of a row."""
    part = tl.arange(0, PARTS)[None, :]
    place, is_part = accounts + index * parts + part, part < parts
    mass = row_sum(tl.load(place, mask=is_part, other=0.0))
    distance = row_sum(tl.load(place + count, mask=is_part, other=0.0))
    omega = row_sum(tl.load(place + 2 * count, mask=is_part, other=0.0))
    weight = row_sum(tl.load(place + 3 * count, mask=is_part, other=0.0))
    total = row_sum(tl.load(place + 4 * count, mask=is_part, other=0.0))
    return mass, distance, omega, weight, total, row_sum(tl.load(place + 5 * count, mask=is_part, other=0.0))


@triton.jit
def value_of(
    v, mass, distance, omega, weight, total, impossible, maximum, theta,
    FENCHEL: tl.constexpr, WEIGHTED: tl.constexpr, MISSING: tl.constexpr,
):  # fmt: skip
    """(the value, U, w) of rows [R, 1]."""
    if FENCHEL:
        mass = tl.full(mass.shape, 1.0, tl.float64)
        if MISSING is not None:
            omega += MISSING(1.0 - total, maximum, theta)
    if not (FENCHEL and WEIGHTED):
        weight = tl.full(mass.shape, 1.0, tl.float64)
    value = mass * v + omega + distance
    if FENCHEL:
        value = tl.maximum(value, 0.0, propagate_nan=tl.PropagateNan.ALL)
    value = tl.where(weight == 0.0, 0.0, weight * value)
    value = tl.where((impossible > 0.0) & (weight != 0.0), tl.where(v == v, INFINITY, v), value)
    return value, mass, weight


# Kernels --------------------------------------------------------------------------------------------------------------------


@triton.jit
def read_label(labels, row):
    if labels is None:
        label = tl.zeros((1, 1), tl.int64)
    else:
        label = tl.load(labels + row)
    return label


@triton.jit
def of_label(value, label, n):
    """0 for a row that is left out, NaN for a label of no class."""
    return tl.where(label < 0, 0.0, tl.where(label >= n, float("nan"), value))


@triton.jit
def store_gradient(
    out, p, x, label, soft, weights, row, column, inside, n, smoothing, mass, weight, scale, scales, FENCHEL: tl.constexpr
):  # fmt: skip
    y = shares(label, soft, row, column, inside, n, smoothing)
    u = y if FENCHEL else y * factors(weights, column, n)
    factor = weight * read_number(scale, scales, tl.zeros((1, 1), tl.int64))
    gradient = factor * (mass * p.to(tl.float64) - tl.where(x == -INFINITY, 0.0, u))
    gradient = tl.where(label < 0, 0.0, gradient)
    tl.store(out + row * n + column, gradient.to(p.dtype).to(out.dtype.element_ty), mask=inside)


@triton.jit
def whole_losses(
    x, stride, starts, theta, labels, soft, weights, smoothing, scale, scales, values, out, rows, n,
    BEGIN: tl.constexpr, FINISH: tl.constexpr, CONJUGATE: tl.constexpr, FENCHEL: tl.constexpr, REGULARISER: tl.constexpr,
    MISSING: tl.constexpr, COMPUTE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    is_row = row < rows
    column = tl.arange(0, WIDTH)[None, :]
    inside = is_row & (column < n)
    row = tl.minimum(row, rows - 1)
    scores = read_scores(x, stride, starts, None, None, row, column, inside, n, COMPUTE)
    theta = read_theta(theta, row)
    label = read_label(labels, row)
    one = tl.full((1, 1), 1.0, COMPUTE)
    a, b, c, d = BEGIN(scores, one, one, column, theta, one, False)
    sums = account(scores, a, label, soft, weights, row, column, inside, n, smoothing, theta, FENCHEL, REGULARISER)
    v = CONJUGATE(a, b, c, d, theta)
    value, mass, weight = value_of(
        v, sums[0], sums[1], sums[2], sums[3], sums[4], sums[5], a, theta, FENCHEL, weights is not None, MISSING
    )
    tl.store(values + row, of_label(value, label, n), mask=is_row)
    if out is not None:
        p = FINISH(scores, one, one, column, theta, one, False, a, b, c, d)
        store_gradient(
            out, p, scores, label, soft, weights, row, column, inside, n, smoothing, mass, weight, scale, scales, FENCHEL
        )


@triton.jit
def account_parts(
    x, stride, starts, theta, labels, soft, weights, smoothing, partial, accounts, first, n, parts, merged,
    MERGE: tl.constexpr, FENCHEL: tl.constexpr, REGULARISER: tl.constexpr, COMPUTE: tl.constexpr, WIDTH: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """accounts [6, *, parts]: what the target says of each part."""
    index = tl.program_id(0).to(tl.int64)
    count = tl.num_programs(0).to(tl.int64)
    height = count // parts
    row = tl.zeros((1, 1), tl.int64) + first + index // parts
    column = (index % parts) * WIDTH + tl.arange(0, WIDTH)[None, :]
    inside = column < n
    theta = read_theta(theta, row)
    one = tl.full((1, 1), 1.0, COMPUTE)
    is_part, a, b, c, d = read_parts(partial, index // parts, merged, height * merged, PARTS)
    a, b, c, d = MERGE(is_part, a, b, c, d, theta, one, False)
    scores = read_scores(x, stride, starts, None, None, row, column, inside, n, COMPUTE)
    sums = account(
        scores, a, read_label(labels, row), soft, weights, row, column, inside, n, smoothing, theta, FENCHEL,
        REGULARISER,
    )  # fmt: skip
    place = accounts + index + tl.zeros((1, 1), tl.int64)
    for i in tl.static_range(6):
        tl.store(place + i * count, sums[i])


@triton.jit
def finish_losses(
    x, stride, starts, theta, labels, soft, weights, smoothing, scale, scales, partial, accounts, values, out, first,
    n, parts, merged, accounted,
    MERGE: tl.constexpr, FINISH: tl.constexpr, CONJUGATE: tl.constexpr, FENCHEL: tl.constexpr, REGULARISER: tl.constexpr,
    MISSING: tl.constexpr, COMPUTE: tl.constexpr, WIDTH: tl.constexpr, MERGED: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0).to(tl.int64)
    height = tl.num_programs(0).to(tl.int64) // parts
    row = tl.zeros((1, 1), tl.int64) + first + index // parts
    column = (index % parts) * WIDTH + tl.arange(0, WIDTH)[None, :]
    inside = column < n
    theta = read_theta(theta, row)
    label = read_label(labels, row)
    one = tl.full((1, 1), 1.0, COMPUTE)
    is_part, a, b, c, d = read_parts(partial, index // parts, merged, height * merged, MERGED)
    a, b, c, d = MERGE(is_part, a, b, c, d, theta, one, False)
    if accounts is None:
        sums = account_label(x, stride, starts, a, label, weights, row, n, smoothing, theta, FENCHEL, REGULARISER, COMPUTE)
    else:
        sums = read_account(accounts, index // parts, accounted, height * accounted, PARTS)
    v = CONJUGATE(a, b, c, d, theta)
    value, mass, weight = value_of(
        v, sums[0], sums[1], sums[2], sums[3], sums[4], sums[5], a, theta, FENCHEL, weights is not None, MISSING
    )
    is_first = tl.zeros((1, 1), tl.int64) + index % parts == 0
    tl.store(values + row, of_label(value, label, n), mask=is_first)
    if out is not None:
        scores = read_scores(x, stride, starts, None, None, row, column, inside, n, COMPUTE)
        p = FINISH(scores, one, one, column, theta, one, False, a, b, c, d)
        store_gradient(
            out, p, scores, label, soft, weights, row, column, inside, n, smoothing, mass, weight, scale, scales, FENCHEL
        )


# Launches -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Loss:
    """The map of a Fenchel–Young loss, and what it has beside its map.

    conjugate(a, b, c, d, theta) → v             V(x) − M [R, 1] in double, from the map's accumulators
    regulariser(y, theta) → ω                    Ω(y) = Σ ω of a target y in double
    missing(share, M, theta) → ω                 what the share that a target lacks of 1 adds to Ω; None where it lacks none
    """

    map: RowFunctions
    conjugate: Any
    regulariser: Any
    missing: Any = None


def launch(
    loss: Loss,
    rows: Rows,
    labels: Tensor | None,
    soft: Tensor | None,
    weights: Tensor | None,
    smoothing: float,
    scale: float | Tensor,
    fenchel: bool,
    values: Tensor,
    out: Tensor | None,
) -> None:
    """Fills `values` [...] and, if there is one, the contiguous `out` [..., n] with the gradient."""
    target = (labels, soft, weights, bits(smoothing))
    inputs = (rows.x, rows.stride, rows.starts, rows.theta)
    scales = (bits(1.0), in_memory(scale.double())) if isinstance(scale, Tensor) else (bits(scale), None)
    compute = rows.numbers["COMPUTE"]
    kind = {"FENCHEL": fenchel, "REGULARISER": loss.regulariser, "COMPUTE": compute}
    functions = {"FINISH": loss.map.finish, "CONJUGATE": loss.conjugate, "MISSING": loss.missing}
    if rows.fits:
        programs, height = rows.tiles()
        whole_losses[(programs,)](
            *inputs, *target, *scales, values, out, rows.count, rows.n, BEGIN=loss.map.begin, ROWS=height, WIDTH=rows.width,
            num_warps=warps(height * rows.width), **kind, **functions,
        )  # fmt: skip
        return
    is_label_alone = labels is not None and smoothing == 0.0
    for first_row, taken, parts, partial, merged in loss.map.accumulated(rows, None, None):
        common = {"MERGE": loss.map.merge, **kind, **rows.block}
        accounts = None
        if not is_label_alone:
            accounts = torch.empty((6, taken, parts), dtype=torch.float64, device=partial.device)
            account_parts[(taken * parts,)](
                *inputs,
                *target,
                partial,
                accounts,
                first_row,
                rows.n,
                parts,
                merged,
                PARTS=triton.next_power_of_2(merged),
                **common,
            )
        finishing = 1 if out is None else parts
        finish_losses[(taken * finishing,)](
            *inputs, *target, *scales, partial, accounts, values, out, first_row, rows.n, finishing, merged, parts,
            MERGED=triton.next_power_of_2(merged), PARTS=triton.next_power_of_2(parts), **common, **functions,
        )  # fmt: skip
