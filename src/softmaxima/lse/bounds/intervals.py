r"""Intervals that hold LSE(x) = log Σ exp(x_i), from less than all of its exponentials. With M = max x and gaps δ_i = M − x_i ≥ 0,

    LSE(x) = M + log Σ_i exp(−δ_i) = M + log1p(r),   r the sum without one maximum, between what a bound knows of the gaps:

    basic        0 ≤ r ≤ n − 1
    gap          Σ_{2≤i≤k} e^{−δ_(i)} ≤ r ≤ Σ_{2≤i≤k} e^{−δ_(i)} + (n−k) e^{−δ_(k)},     δ_(1) = 0 ≤ δ_(2) ≤ … the least k gaps
    adaptive     m − 1 + (k−m) e^{−Δ} ≤ r ≤ k − 1 + (n−k) e^{−Δ},                         k = #{δ ≤ Δ}, m = #{δ = 0}
    histogram    m − 1 + Σ_b c_b e^{−(b+1)w} ≤ r ≤ m − 1 + Σ_b c_b e^{−bw},               c_b = #{⌊δ/w⌋ = b, δ > 0}
    Rényi        M − Σ p δ + H_t(p) ≤ LSE(x) for t ≥ 1;                                   mean: p = 1/n
    Lipschitz    LSE(y) + min (x−y) ≤ LSE(x) ≤ LSE(y) + max (x−y),                        so |LSE(x) − LSE(y)| ≤ ‖x − y‖∞

They hold for what is returned, not only on paper (`_gaps.py`). No gradient passes through an interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softmaxima.base.arguments import Array, as_tensor, check_device, check_values, like_input
from softmaxima.base.numbers import check_count, check_number, shown
from softmaxima.base.onnx import refuse_export
from softmaxima.base.public import public
from softmaxima.base.tracing import is_eager
from softmaxima.lse.bounds._gaps import UNIT, Gaps, GapsAtOnce, GapsOfRows, ends, least, most, read_rows
from softmaxima.lse.logsumexp import row_logsumexp

NARROWEST = 1e-6  # nats, of which a histogram has some 10⁸ bins
LARGEST, WIDTH = 8, 0.1  # the defaults of gap_bounds and histogram_bounds
TINIEST = 1e-307  # what an exponential that underflows, or nearly, may lack


@dataclass(frozen=True, eq=False)
class Interval:
    """Numbers with lower ≤ LSE(x/τ) ≤ upper, and the name of the bound that gave each end: one for all, or an array of one a row.

    >>> import torch, softmaxima as sm
    >>> interval = sm.basic_bounds(torch.zeros(2, 1000))
    >>> interval.lower, interval.width, interval.upper_from
    (tensor([0., 0.]), tensor([6.9078, 6.9078]), 'basic')
    """

    lower: Any
    upper: Any
    lower_from: Any
    upper_from: Any

    @property
    def width(self) -> Any:
        """upper − lower; 0 where both are the same infinity."""
        same = self.lower == self.upper
        if isinstance(self.upper, Tensor):
            return (self.upper - self.lower).masked_fill(same, 0.0)
        with np.errstate(invalid="ignore"):
            return np.where(same, self.upper.dtype.type(0), self.upper - self.lower)[()]


# One function a bound ---------------------------------------------------------------------------------------------------------


@public
def basic_bounds(x: Array, dim: int = -1, *, temperature: float | Array = 1.0, where: Array | None = None) -> Interval:
    """`max x/τ ≤ LSE(x/τ) ≤ max x/τ + log n`, n counting the scores that are not −∞. In nats.

    Args:
        x: scores of any shape; integers become torch's default dtype, or float64 for NumPy.
        dim: the axis summed over.
        temperature: τ > 0, a number or a tensor that broadcasts against x with size 1 along `dim`. The interval is that of x/τ.
        where: boolean, broadcasts to x; False leaves a score out.

    Returns:
        An `Interval` of x's array kind and dtype, without `dim`. Both ends are −∞ for a sum of nothing, +∞ where a score is, NaN
        where a score is.

    Raises:
        TypeError, ValueError or IndexError, before any work, for anything else.

    Cost: one read. Source: Boyd & Vandenberghe (2004), Convex Optimization, section 3.1.5.

    >>> import numpy as np, softmaxima as sm
    >>> interval = sm.basic_bounds(np.array([1.0, 2.0, 3.0]))
    >>> float(interval.lower), float(interval.upper.round(6))
    (3.0, 4.098612)
    """
    return _one("basic", read_rows("basic_bounds", x, dim, temperature, where))


@public
def mean_bounds(x: Array, dim: int = -1, *, temperature: float | Array = 1.0, where: Array | None = None) -> Interval:
    """`LSE(x/τ) ≥ mean x/τ + log n`, by Jensen's inequality; equality where all scores are equal. The upper end is +∞.

    Arguments, results and errors as for `basic_bounds`. Cost: two reads.

    >>> import numpy as np, softmaxima as sm
    >>> sm.mean_bounds(np.array([1.0, 2.0, 3.0])).lower.round(6)
    np.float64(3.098612)
    """
    return _one("mean", read_rows("mean_bounds", x, dim, temperature, where))


@public
def renyi_bounds(
    x: Array, p: Array, order: float = 1.0, dim: int = -1, *, temperature: float | Array = 1.0, where: Array | None = None
) -> Interval:
    """`LSE(x/τ) ≥ Σ p x/τ + H_t(p)` for probabilities p and the Rényi entropy of order t ≥ 1. The upper end is +∞.

    H_t = log(Σ pᵗ)/(1−t) falls with t: Shannon's entropy at t = 1, with equality at p = softmax(x/τ), for
    `LSE = Σ p x + H_1(p) + KL(p ‖ softmax(x))`; Cauchy's inequality at t = 2; −log max p at t = ∞.

    Args:
        x, dim, temperature, where: as for `basic_bounds`.
        p: weights of x's array kind that broadcast to x: not negative and finite. They are divided by their sum over the scores
            that are allowed and not −∞; where that is 0, the lower end is −∞.
        order: t.

    Errors as for `basic_bounds`. Cost: two reads of x and of p. Source: Gibbs' variational principle; Rényi (1961)
    for H_t.

    >>> import numpy as np, softmaxima as sm
    >>> x = np.array([1.0, 2.0, 3.0])
    >>> [float(sm.renyi_bounds(x, sm.softmax(x), order=t).lower.round(4)) for t in (1, 2, math.inf)]
    [3.4076, 3.2475, 2.9828]
    """
    name = "renyi_bounds"
    order = check_number(name, "order", order, lambda order: order >= 1, "a number of at least 1")
    rows = read_rows(name, x, dim, temperature, where)
    weights = check_device(name, "p", as_tensor(name, "p", p), rows.scores)
    if weights.is_complex():
        raise TypeError(f"{name}: p must be real, got {weights.dtype}; take p.real or p.abs()")
    try:
        weights = weights.detach().double().expand(rows.shape)
    except RuntimeError:
        raise ValueError(f"{name}: p must broadcast to the scores' shape {tuple(rows.shape)}, got {tuple(weights.shape)}") from None
    if is_eager(weights) and not bool(((weights >= 0) & (weights < math.inf)).all()):
        raise ValueError(f"{name}: p must be finite and not negative; call abs() or softmax() on it first")
    weights = rows.blocks_of(weights.movedim(rows.dim, -1))
    found = (ends(block, *_renyi(block, p, order)) for block, p in zip(rows.blocks(), weights, strict=True))
    return interval_of(rows, "renyi", *in_order(found))


@public
def gap_bounds(
    x: Array, k: int = LARGEST, dim: int = -1, *, temperature: float | Array = 1.0, where: Array | None = None
) -> Interval:
    """The k largest scores summed exactly, and all others between nothing and the k-th: `LSE = x₍₁₎ + log(1 + Σ e^{−δ})`.

    Arguments, results and errors as for `basic_bounds`, with k ≥ 1. Cost: a selection of k, and k exponentials.

    >>> import numpy as np, softmaxima as sm
    >>> interval = sm.gap_bounds(np.array([5.0, 4.0, -20.0, -30.0]), k=3)
    >>> interval.width < 1e-10
    np.True_
    """
    k = check_count("gap_bounds", "k", k)
    return _one("gap", read_rows("gap_bounds", x, dim, temperature, where), k=k)


@public
def adaptive_bounds(
    x: Array, gap: float | None = None, dim: int = -1, *, temperature: float | Array = 1.0, where: Array | None = None
) -> Interval:
    """With k scores within Δ of the maximum: `log(1 + (k−1)e^{−Δ}) ≤ LSE(x/τ) − max x/τ ≤ log(k + (n−k)e^{−Δ})`.

    In the lower end scores that equal the maximum count as 1 each. Arguments, results and errors as for `basic_bounds`; `gap` is
    Δ ≥ 0 in units of τ, by default log n, at which the scores beyond it weigh less than the maximum alone. (The form `log(1 + k)`
    of the literature holds only if `(n−k)e^{−Δ} ≤ 1`.) Cost: two reads and one exponential.

    >>> import numpy as np, softmaxima as sm
    >>> x = np.concatenate([[20.0], np.zeros(1000)])
    >>> [float(interval.width.round(4)) for interval in (sm.basic_bounds(x), sm.adaptive_bounds(x), sm.adaptive_bounds(x, 19))]
    [6.9088, 0.6926, 0.0]
    """
    if gap is not None:
        domain = "a finite number of at least 0, or None for log n"
        gap = check_number("adaptive_bounds", "gap", gap, lambda gap: 0 <= gap < math.inf, domain)
    return _one("adaptive", read_rows("adaptive_bounds", x, dim, temperature, where), gap=gap)


@public
def histogram_bounds(
    x: Array, width: float = WIDTH, dim: int = -1, *, temperature: float | Array = 1.0, where: Array | None = None
) -> Interval:
    """An interval of at most `width` nats, but for rounding, from nothing but a histogram of the gaps.

    Bins are width/2 wide, up to gaps that weigh no more than width/2 together: `(2/width)·log(2n/width)` of them, and as many
    exponentials, however long the row. Arguments, results and errors as for `basic_bounds`, with width ≥ 1e-6. Cost: two reads and
    the counting, which is no less work than logsumexp itself.

    >>> import torch, softmaxima as sm
    >>> x = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    >>> interval = sm.histogram_bounds(x, width=0.01)
    >>> bool(interval.lower <= sm.logsumexp(x) <= interval.upper), bool(interval.width < 0.0101)
    (True, True)
    """
    width = check_number(
        "histogram_bounds", "width", width, lambda nats: NARROWEST <= nats < math.inf, "from 1e-6 nats, and finite"
    )
    return _one("histogram", read_rows("histogram_bounds", x, dim, temperature, where), width=width)


@public
def lipschitz_bounds(
    x: Array, y: Array, dim: int = -1, *, temperature: float | Array = 1.0, where: Array | None = None
) -> Interval:
    """LSE(x/τ) from that of other scores y: `LSE(y/τ) + min (x−y)/τ ≤ LSE(x/τ) ≤ LSE(y/τ) + max (x−y)/τ`.

    Both ends are within `‖x − y‖∞/τ` of LSE(y/τ), the Lipschitz bound, and one is reached where x − y is the same for all scores:
    the worst attack of size ε moves every score by ε. Arguments, results and errors as for `basic_bounds`, y of x's shape and array
    kind. Cost: two reads of y and one of x.

    >>> import numpy as np, softmaxima as sm
    >>> interval = sm.lipschitz_bounds(np.array([0.5, 1.25]), np.array([0.0, 1.0]))
    >>> float(interval.lower.round(4)), float(interval.upper.round(4))
    (1.5633, 1.8133)
    """
    name = "lipschitz_bounds"
    rows, others = read_rows(name, x, dim, temperature, where), read_rows(name, y, dim, temperature, where)
    check_device(name, "y", others.scores, rows.scores)
    if rows.shape != others.shape:
        raise ValueError(f"{name}: y must have the scores' shape {tuple(rows.shape)}, got {tuple(others.shape)}")
    found = (ends(x, *_lipschitz(x, y)) for x, y in zip(rows.blocks(), others.blocks(), strict=True))
    return interval_of(rows, name.removesuffix("_bounds"), *in_order(found))


@public
def bounds(
    x: Array,
    dim: int = -1,
    *,
    temperature: float | Array = 1.0,
    where: Array | None = None,
    among: Sequence[str] = ("basic", "mean", "gap", "adaptive", "histogram"),
) -> Interval:
    """The tightest interval that several bounds give together, and which of them gave each end.

    Arguments, results and errors as for `basic_bounds`; `among` names the bounds to try, each with its defaults: any of basic,
    mean, gap, adaptive, histogram. Of equal ends the first named counts. Cost: that of all.

    >>> import numpy as np, softmaxima as sm
    >>> interval = sm.bounds(np.array([[9.0, 1.0, 1.0], [1.0, 1.1, 1.2]]), among=("basic", "mean", "adaptive"))
    >>> interval.lower_from, interval.upper_from
    (array(['basic', 'mean'], dtype='<U8'), array(['adaptive', 'basic'], dtype='<U8'))
    """
    named = isinstance(among, Sequence) and not isinstance(among, str) and all(isinstance(each, str) for each in among)
    if not named or not among or {*among} - {*BOUNDS}:
        raise ValueError(f"bounds: among must be a sequence of names from {', '.join(BOUNDS)}, got {shown(among)}")
    rows = read_rows("bounds", x, dim, temperature, where)
    refuse_export("bounds", "values before it runs")
    check_values("bounds", "scores", rows.scores)  # that tell which of the bounds counts
    gaps = GapsAtOnce(rows, LARGEST, WIDTH / 2, _reach(rows.n, WIDTH)) if rows.is_native else rows
    parts = zip(*(BOUNDS[name](gaps) for name in among), strict=True)
    like = {"dtype": torch.float64, "device": gaps.count.device}
    together = (torch.stack([torch.as_tensor(part, **like).expand_as(gaps.count) for part in each]) for each in parts)
    lower, upper = ends(gaps, *together)
    names, shape = np.array(among), rows.scores.shape[:-1]
    chosen = lambda which: names[which.reshape(shape)] if shape else str(names[which.item()])
    first_highest, first_lowest = lower.double().numpy(force=True).argmax(0), upper.double().numpy(force=True).argmin(0)
    interval = interval_of(rows, "", lower.amax(0), upper.amin(0))
    return replace(interval, lower_from=chosen(first_highest), upper_from=chosen(first_lowest))


def interval_of(rows: GapsOfRows, name: str, lower: Tensor, upper: Tensor) -> Interval:
    """The interval of the ends of all rows, in order."""
    shape = rows.scores.shape[:-1]
    return Interval(like_input(lower.reshape(shape), rows.given), like_input(upper.reshape(shape), rows.given), name, name)


def in_order(found: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The ends of blocks of rows as those of all rows."""
    lower, upper = (torch.cat(end) for end in zip(*found, strict=True))
    return lower, upper


def _one(name: str, rows: GapsOfRows, **options: Any) -> Interval:
    return interval_of(rows, name, *ends(rows, *BOUNDS[name](rows, **options)))


# The bounds: (lower − M, upper − M, error of each), [..., 1] ---------------------------------------------------------------------

Parts = tuple[Tensor, Tensor, Tensor | float, Tensor | float]


def sums_between(lower: Tensor, upper: Tensor, count: Tensor, terms: int, reach: float | Tensor = 0.0) -> Parts:
    """log1p of an r between two sums of `terms` terms: exact numbers times exponentials of no less than −`reach`.

    Exponentials that are subnormal may be off by all that they are.
    """
    lower = (lower - (count - 1).clamp_min(0) * TINIEST).clamp_min(0)
    # A gap is within 2u of its value, relatively; an exponential of less than −745 is 0.
    relative = UNIT * (2 * (terms + 16) + 8 * torch.as_tensor(reach, dtype=torch.float64, device=lower.device).clamp(0.0, 750.0))
    below, above = (relative * r / (1 + r) for r in (lower, upper))
    return torch.log1p(lower), torch.log1p(upper), below, above + (count - 1).clamp_min(0) * TINIEST


def exact_sum(rows: GapsOfRows) -> Parts:
    """All of the terms."""
    rest = torch.where(rows.is_highest, 0.0, (-rows.each).exp()).sum(-1, keepdim=True) + rows.ties()
    return sums_between(rest, rest, rows.count, rows.n, most(rows.each.masked_fill(rows.each == math.inf, 0.0)))


def _basic(gaps: Gaps) -> Parts:
    return sums_between(torch.zeros_like(gaps.maximum), (gaps.count - 1).clamp_min(0), gaps.count, 1)


def _mean(gaps: Gaps) -> Parts:
    mean, error = gaps.mean()
    entropy = gaps.count.log()
    known = (gaps.count > 0) & mean.isfinite()
    lower = torch.where(known, entropy - mean, -math.inf)
    return lower, torch.full_like(lower, math.inf), torch.where(known, error + 4 * UNIT * (entropy + mean), 0.0), 0.0


def _renyi(rows: GapsOfRows, weights: Tensor, order: float) -> Parts:
    """H_t(p) − Σ p δ."""
    weights = weights.masked_fill(rows.each == math.inf, 0.0)
    largest = most(weights).clamp_min(0)
    weights = weights / largest.masked_fill(largest == 0, 1.0)  # at most 1, so that no power of them overflows
    mass = weights.sum(-1, keepdim=True)
    p = weights / mass.masked_fill(mass == 0, 1.0)
    spread = (p * rows.each).masked_fill(p == 0, 0.0).sum(-1, keepdim=True)
    if order == 1:
        entropy = -torch.xlogy(p, p).sum(-1, keepdim=True)
        amplified = 1.0
    elif order == math.inf:
        entropy = mass.log()
        amplified = 1.0
    else:  # −log Σ pᵗ = t log Σ w − log Σ wᵗ for p = w/Σw
        entropy = (order * mass.log() - weights.pow(order).sum(-1, keepdim=True).log()) / (order - 1)
        amplified = 1 + (order * mass.log().abs() + order + 1) / (order - 1)
    # Every sum of n numbers is within (n − 1) u of their absolute values, and p within n u of probabilities.
    error = 4 * UNIT * (rows.n + 16) * (spread + entropy.abs() + 1) * amplified
    known = (mass > 0) & spread.isfinite()
    lower = torch.where(known, entropy - spread, -math.inf)
    return lower, torch.full_like(lower, math.inf), torch.where(known, error, 0.0), 0.0


def _lipschitz(rows: GapsOfRows, others: GapsOfRows) -> Parts:
    known = row_logsumexp(-others.each, 1.0, None).unsqueeze(-1)  # LSE(y/τ) − max y/τ
    # x − y less the difference of the maxima; what both leave out, or have beyond float64, does not count.
    change = others.each - rows.each
    neither = (rows.each == math.inf) & (others.each == math.inf)
    smallest, largest = (extreme(change.masked_fill(neither, math.inf * sign)) for extreme, sign in ((least, 1), (most, -1)))
    longest = most(torch.where(change.isfinite(), 8 * UNIT * rows.each + 8 * UNIT * others.each, 0.0))
    error = longest + UNIT * (8 * known + 2 * (rows.n + 16))
    silent = ~others.maximum.isfinite()  # a y of nothing, or with +∞ or NaN, says nothing of x
    lower, upper = (known + smallest).masked_fill(silent, -math.inf), (known + largest).masked_fill(silent, math.inf)
    error = error.masked_fill(silent, 0.0)
    return lower, upper, error, error


def _gap(gaps: Gaps, k: int = LARGEST) -> Parts:
    smallest = gaps.smallest(k)
    if smallest.shape[-1] == 0:
        return _basic(gaps)
    known = (-smallest[..., 1:]).exp().sum(-1, keepdim=True)
    others = (gaps.count - smallest.shape[-1]).clamp_min(0) * (-smallest[..., -1:]).exp()
    return sums_between(known, known + others, gaps.count, k, smallest[..., -1:])


def _adaptive(gaps: Gaps, gap: float | None = None) -> Parts:
    near, furthest, nearest = gaps.near(gap)
    others, ties = (near - 1).clamp_min(0), gaps.ties()
    lower = ties + (others - ties).clamp_min(0) * (-furthest).exp()
    upper = others + (gaps.count - near).clamp_min(0) * (-nearest).exp()
    return sums_between(lower, upper, gaps.count, 4, furthest)


def _histogram(gaps: Gaps, width: float = WIDTH) -> Parts:
    bins = gaps.histogram(width / 2, _reach(gaps.n, width))
    furthest, nearest = (bins.counts @ torch.stack((-bins.furthest, -bins.nearest), -1).exp()).split(1, -1)
    return sums_between(gaps.ties() + furthest, gaps.ties() + nearest, gaps.count, bins.counts.shape[-1] + 1, bins.nearest[-1])


def _reach(n: int, width: float) -> float:
    """The gap beyond which n scores weigh no more than width/2 together."""
    return math.log(2 * max(n, 1)) + max(0.0, -math.log(width))


BOUNDS: dict[str, Callable[..., Parts]] = {
    "basic": _basic,
    "mean": _mean,
    "gap": _gap,
    "adaptive": _adaptive,
    "histogram": _histogram,
}
