"""calibrate_temperature: argmin over b = 1/τ of the mean of log Σ_c exp(b x_c) − b x_t, and the same of affine scores.

f(b) is convex, with f'(b) = mean ⟨p, x⟩ − x_t and f''(b) = mean Var_p(x). With d = x − max x ≤ 0 the optimum is where

    M(b) = −mean ⟨p, d⟩   and   T = −mean d_t   are equal,

M falling from b = 0 on. Newton's steps are those of log M = log T, b ← b + log(M/T) M/f'': M falls like e^{−mb} where most rows are
right, of which one step finds the root, and each step is longer than that of f' = 0 without overshooting where that does not. A
bracket holds the root, so that no step can leave it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from softmaxima.core.arguments import Array, as_scores, check_values, check_where, like_input
from softmaxima.core.numbers import SMALLEST_TEMPERATURE, TEMPERATURE, InputError, check_choice, check_number
from softmaxima.maps.softmax import softmax
from softmaxima.temperature.reliability import Reliability, RowMeasures, check_labels, check_sample_weight

METHODS = ("temperature", "per_class", "vector", "matrix")
BLOCK = 2**18  # scores that are looked at at a time
KEPT = 2**24  # scores up to which the blocks are kept between passes
ROUNDED = 2e-14  # |M − T|/(M + T) that is rounding
PASSES = 200  # a bracket halves to neighbouring numbers in fewer
STEPS = 60  # of Newton for several parameters
MOST_PRODUCTS = 300  # with H, of one of these steps
OFF_DIAGONAL = 0.1  # deviation of the prior of W beside its diagonal, over 1/τ
SURE = 1 - 1e-8  # of every row: more than a finite optimum makes of a free diagonal
NOISE = 1e-13  # of a mean log loss, below which a step is taken as it is
EQUAL = "the scores of each row are equal, which no calibration changes; give scores that differ between classes"


class NoOptimumError(InputError):
    """The log loss has no least value at finite numbers.

    `reason` says why: every row is told right ("separable"), scores tell no more than chance ("chance"), those of a row are equal
    ("equal"), or no least was reached ("unreached").
    """

    def __init__(self, reason: Literal["separable", "chance", "equal", "unreached"], message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, eq=False)
class TemperatureCalibration:
    """The temperature of least log loss. Called with logits it gives probabilities, softmax(x/τ).

    Attributes:
        temperature: τ, in the unit of the logits.
        before: what softmax(x) is worth on the rows that it was fitted to.
        after: what softmax(x/τ) is worth there.
        steps: passes over the rows.
        bound: "minimum" or "maximum", where τ is that because the log loss falls on beyond it; None for the optimum.
        label_smoothing: ε of the labels that it was fitted to.

    >>> import torch, softmaxima as sm
    >>> calibration = sm.calibrate_temperature(torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0]]), torch.tensor([0, 0, 1]))
    >>> calibration(torch.tensor([4.0, 0.0]))
    tensor([0.6667, 0.3333])
    """

    temperature: float
    before: Reliability
    after: Reliability
    steps: int
    bound: str | None = None
    label_smoothing: float = 0.0

    method = "temperature"

    def __call__(self, logits: Array, *, where: Any = None) -> Array:
        """Probabilities [..., classes] of logits [..., classes], of their dtype; gradients go through."""
        if math.isinf(self.temperature):
            x = as_scores("calibration", logits, "logits")
            return like_input(softmax(torch.where(x == -math.inf, x, 0 * x), where=where), logits)  # NaN of NaN and of ∞
        return softmax(logits, temperature=self.temperature, where=where)


@dataclass(frozen=True, eq=False)
class ScalingCalibration:
    """Factors of least log loss. Called with logits it gives probabilities, softmax(W x̃ + a), x̃ being x less its row's mean.

    Attributes:
        method: "per_class", "vector" or "matrix".
        factors: W, [classes] of the first two, which is its diagonal: 1/τ_c; [classes, classes] of a matrix. float64.
        bias: a [classes] float64; None of "per_class".
        before, after, steps, label_smoothing: as of `TemperatureCalibration`.
        penalty: λ of the fit.

    >>> import torch, softmaxima as sm
    >>> x, labels = torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 2.0], [0.0, 2.0]]), torch.tensor([0, 1, 1, 1])
    >>> calibration = sm.calibrate_scaling(x, labels, "vector", label_smoothing=0.1)
    >>> calibration(x[1:3])
    tensor([[0.5000, 0.5000],
            [0.0500, 0.9500]])
    """

    method: str
    factors: Tensor
    bias: Tensor | None
    before: Reliability
    after: Reliability
    steps: int
    penalty: float | None = 0.0
    label_smoothing: float = 0.0

    def __call__(self, logits: Array, *, where: Any = None) -> Array:
        """Probabilities [..., classes] of logits [..., classes], of their dtype; gradients go through."""
        x = as_scores("calibration", logits, "logits")
        if x.shape[-1:] != self.factors.shape[-1:]:
            raise InputError(f"calibration: logits must be of {len(self.factors)} classes, got shape {tuple(x.shape)}")
        allowed = x != -math.inf
        if (mask := check_where("calibration", where, x)) is not None:
            allowed = allowed & mask
        return like_input(softmax(self.scores(x, allowed), where=allowed).to(x.dtype), logits)

    def scores(self, x: Tensor, allowed: Tensor | None = None) -> Tensor:
        """W x̃ + a [..., classes] float64 of logits."""
        bias = None if self.bias is None else self.bias.to(x.device)
        return _affine(_centred(x.double(), allowed), self.factors.to(x.device), bias)


Calibration = TemperatureCalibration | ScalingCalibration


def calibrate_temperature(
    logits: Any,
    labels: Any,
    *,
    where: Any = None,
    sample_weight: Any = None,
    label_smoothing: float = 0.0,
    minimum: float | None = None,
    maximum: float | None = None,
) -> TemperatureCalibration:
    """The temperature τ > 0 for which softmax(x/τ) has the least log loss on rows whose class is known.

    Give it rows that the model did not learn from. The mean of log Σ_c exp(x_c/τ) − x_t/τ is convex in 1/τ, so that its optimum is
    the only one; it is found to the rounding of float64. Adding to all logits of a row changes nothing, and c-fold logits have c τ.

    Args:
        logits: x [..., classes], tensor or array of any floating dtype; −∞ leaves a class out. Of probabilities give log p.
        labels: [...] ints, the index of each row's class.
        where: boolean, broadcasts to x; False leaves a class out.
        sample_weight: [...] how much each row counts, ≥ 0; None: all alike.
        label_smoothing: ε in [0, 1): the label counts 1 − ε, and ε is shared by all classes that are not left out.
        minimum: the least τ to take, in place of an error where the log loss falls on towards τ = 0.
        maximum: the largest, which may be ∞, where it falls on towards τ = ∞.

    Returns:
        A `TemperatureCalibration`, which makes probabilities of logits and has what they are worth before and after.

    Raises:
        TypeError: for what is no array or has a wrong dtype.
        ValueError: where shapes do not fit, there are no rows or one class, a logit is NaN or +∞, the score of a label is left out,
            or no temperature is best: every label has the highest score (τ → 0; give `minimum` or `label_smoothing`), labels have
            no higher scores than the average class (τ → ∞; look whether labels and columns are in one order, or give `maximum`),
            or all scores of each row are equal.

    Cost: about 5 to 10 passes over the logits, in float64, a block of rows at a time; one copy of up to 2²⁴ logits in float64.

    Source: Guo, Pleiss, Sun & Weinberger (2017), arXiv:1706.04599.

    >>> import torch, softmaxima as sm
    >>> x = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0]])  # surer than two of three are right
    >>> round(sm.calibrate_temperature(x, torch.tensor([0, 0, 1])).temperature, 6)  # 4 / log 2
    5.77078
    """
    name = "calibrate_temperature"
    if minimum is not None:
        minimum = check_number(name, "minimum", minimum, *TEMPERATURE)
    if maximum is not None:
        maximum = check_number(name, "maximum", maximum, lambda tau: tau >= SMALLEST_TEMPERATURE, "positive, at least 2.3e-308")
    if minimum is not None and maximum is not None and minimum > maximum:
        raise InputError.of_argument(name, "minimum", f"must be at most maximum, {maximum:g}, got {minimum:g}")
    return _calibrated(name, _checked(name, logits, labels, where, sample_weight, label_smoothing), minimum, maximum)


def _calibrated(name: str, rows: _Rows, minimum: float | None, maximum: float | None) -> TemperatureCalibration:
    """Of checked rows, between bounds where these are given."""
    try:
        tau, steps = _best_temperature(name, rows)
    except NoOptimumError as error:
        bounds = {"separable": (minimum, 0.0), "chance": (maximum, math.inf)}
        bound, tau = bounds.get(error.reason, (None, math.nan))
        if bound is None:
            raise
        steps = 1
    taken = min(max(tau, minimum or 0.0), math.inf if maximum is None else maximum)
    bound = "minimum" if taken > tau else "maximum" if taken < tau or math.isinf(taken) else None
    return _measured(rows, taken, steps, bound)


def _measured(rows: _Rows, tau: float, steps: int, bound: Any = None) -> TemperatureCalibration:
    before, after = rows.reliability(lambda x, allowed: x), rows.reliability(lambda x, allowed: x / tau)
    return TemperatureCalibration(tau, before, after, steps, bound, rows.smoothing)


def calibrate_scaling(
    logits: Any,
    labels: Any,
    method: str = "temperature",
    *,
    where: Any = None,
    sample_weight: Any = None,
    label_smoothing: float = 0.0,
    penalty: float | None = 0.0,
) -> TemperatureCalibration | ScalingCalibration:
    """The affine scores z of least log loss of softmax(z), on rows whose class is known.

    With x̃ the logits less the mean of their row, so that logits and log-probabilities give the same,

        temperature   z = x/τ                                      1 number, as `calibrate_temperature`
        per_class     z_c = x̃_c/τ_c                                n
        vector        z_c = x̃_c/τ_c + a_c                          2n
        matrix        z = W x̃ + a                                  n² + n

    which minimise mean(log Σ_c exp z_c − z_t) + λ (mean over c ≠ d of W_cd² + mean over c of a_c²). Only the first keeps the
    order of the classes in a row; with n classes the last needs many times n² rows, or a penalty (ODIR, of Kull et al.).

    As Σ x̃ = 0, other numbers fit alike. Taken are the least: two classes have equal factors, biases sum to 0, and where no penalty
    holds a matrix, its rows and columns do.

    Args:
        logits, labels, where, sample_weight, label_smoothing: as of `calibrate_temperature`; a class left out counts as x̃ = 0 for
            others.
        method: one of the four.
        penalty: λ ≥ 0, for what has a bias or a matrix; the diagonal is free. None takes the penalty of normal priors, of deviation
            0.1/τ beside the diagonal and 1 of a bias, τ being the best temperature: it fades as rows are more, and is 0 of
            methods without either.

    Returns:
        A `ScalingCalibration`, or for "temperature" a `TemperatureCalibration`.

    Raises:
        TypeError, ValueError: as `calibrate_temperature`, or where the least log loss is not reached by finite numbers, as where a
            class has no rows, or some can be told from all others: give `penalty` or `label_smoothing`.

    Cost: Newton's steps, each by conjugate gradients: some ten to some thousand products of the logits with n or n × n numbers, in
    float64, with O(rows · classes) memory.

    Source: Guo, Pleiss, Sun & Weinberger (2017), arXiv:1706.04599; Kull, Perello-Nieto, Kängsepp, Silva Filho, Song & Flach (2019),
    arXiv:1910.12656.

    >>> import torch, softmaxima as sm
    >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0]])
    >>> found = sm.calibrate_scaling(x, torch.tensor([0, 1, 1, 1, 0]), "vector")
    >>> found(x[::2])[:, 0]  # as often as it was so
    tensor([0.5000, 0.3333, 0.3333])
    """
    name = "calibrate_scaling"
    penalty = check_penalty(name, method, penalty)
    rows = _checked(name, logits, labels, where, sample_weight, label_smoothing)
    if method == "temperature":
        return _calibrated(name, rows, None, None)
    factors, bias, steps = _best_scaling(name, rows, method, penalty)
    before = rows.reliability(lambda x, allowed: x)
    after = rows.reliability(lambda x, allowed: _affine(_centred(x, allowed), factors, bias))
    return ScalingCalibration(method, factors, bias, before, after, steps, penalty, rows.smoothing)


def check_penalty(name: str, method: Any, penalty: Any) -> float | None:
    """λ, or None, of a method that there is, and that has what it is for."""
    check_choice(name, "method", method, METHODS)
    if penalty is None:
        return None
    number = check_number(name, "penalty", penalty, lambda number: 0 <= number < math.inf, "a finite number of at least 0")
    if number and method in METHODS[:2]:
        raise InputError.of_argument(name, "penalty", f"is for biases and matrices, and method {method!r} has none; leave it out")
    return number


def calibrate_safely(
    logits: Any, labels: Any, method: str, *, sample_weight: Any = None, penalty: float | None = None
) -> tuple[Calibration, str]:
    """`calibrate_scaling`, or where no numbers are best what comes nearest, as cross-validation needs; and what was done, or "".

    Where rows are told without fault, or no finite numbers reach the least log loss, labels are smoothed by Platt's rule: of n rows
    all of which are right a new one is with (n + 1)/(n + 2). Where that does not help, one temperature is taken. Where scores tell
    no more than chance τ = ∞, and where there are no differences of scores τ = 1.
    """
    options: dict[str, Any] = {"sample_weight": sample_weight}
    try:
        return calibrate_scaling(logits, labels, method, penalty=penalty, **options), ""
    except NoOptimumError as error:
        reason = error.reason
    if reason == "chance":
        told = "the scores tell no more than chance, so that all classes get the same probability"
        return calibrate_temperature(logits, labels, maximum=math.inf, **options), told
    if reason == "equal":
        rows = _checked("calibrate_safely", logits, labels, None, sample_weight, 0.0)
        return _measured(rows, 1.0, 0), "the scores of each row are equal, which no calibration changes"
    told = "the scores tell classes without fault" if reason == "separable" else "no finite numbers reach the least log loss"
    count = max(1.0, math.prod(logits.shape[:-1]) if sample_weight is None else float(sample_weight.sum()))
    classes = logits.shape[-1]
    smoothing = classes / ((classes - 1) * (count + 2))
    told += f"; labels were smoothed as if one in {count + 2:g} were wrong, Platt's rule for {count:g} rows"
    try:
        return calibrate_scaling(logits, labels, method, penalty=penalty, label_smoothing=smoothing, **options), told
    except NoOptimumError:
        found, note = calibrate_safely(logits, labels, "temperature", **options)
        return found, "; ".join(
            filter(None, ("no finite numbers reach the least log loss, so that one temperature was taken", note))
        )


# What is fitted to --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows that were checked, those of weight 0 left out."""

    x: Tensor  # [rows, n], as it came
    labels: Tensor  # [rows]
    weight: Tensor | None  # [rows] float64
    allowed: Tensor | None  # [rows, n], where some are left out
    smoothing: float

    @property
    def shares(self) -> Tensor:
        """[rows] float64 that sum to 1."""
        if self.weight is None:
            return torch.full((len(self.x),), 1 / len(self.x), dtype=torch.float64, device=self.x.device)
        weight = self.weight / self.weight.max()
        return weight / weight.sum()

    def blocks(self) -> Iterator[slice]:
        height = max(1, BLOCK // self.x.shape[-1])
        return (slice(start, start + height) for start in range(0, len(self.x), height))

    def target(self, z: Tensor, part: slice = slice(None)) -> Tensor:
        """(1 − ε) z_t + ε mean z, of scores [rows, n] that are 0 where they are left out."""
        own = z.gather(-1, self.labels[part, None]).squeeze(-1)
        if not self.smoothing:
            return own
        count = z.shape[-1] if self.allowed is None else self.allowed[part].sum(-1)
        return (1 - self.smoothing) * own + self.smoothing * (z.sum(-1) / count)

    def reliability(self, scores: Callable[[Tensor, Tensor | None], Tensor]) -> Reliability:
        """Of softmax of what a function makes of the logits."""
        parts = []
        for part in self.blocks():
            allowed = None if self.allowed is None else self.allowed[part]
            z = scores(self.x[part].double(), allowed)
            z = z if allowed is None else z.masked_fill(~allowed, -math.inf)
            z = z - z.amax(-1, keepdim=True)
            log_p = z - z.exp().sum(-1, keepdim=True).log()
            target = self.labels[part]
            parts.append(RowMeasures.of(log_p.exp(), log_p.gather(-1, target[:, None]).squeeze(-1), target))
        return RowMeasures.together(parts).reliability(self.weight)


def _checked(name: str, logits: Any, labels: Any, where: Any, weight: Any, smoothing: Any) -> _Rows:
    epsilon = check_number(name, "label_smoothing", smoothing, lambda number: 0 <= number < 1, "from 0 to below 1")
    x = check_values(name, "logits", as_scores(name, logits, "logits")).detach()
    target = check_labels(name, labels, x, "logits")
    mask, weights = check_where(name, where, x), check_sample_weight(name, weight, x, "logits")
    mask = None if mask is None else mask.expand(x.shape).reshape(-1, x.shape[-1])
    x = x.reshape(-1, x.shape[-1])
    if not bool((right := x < math.inf).all()):
        row = int((~right).any(-1).nonzero()[0])
        wrong = float(x[row][~right[row]][0])
        raise InputError(f"{name}: logits must not be NaN or +∞, got {wrong} in row {row}; repair or leave out such rows")
    allowed = x > -math.inf if mask is None else (x > -math.inf) & mask
    if not bool((told := allowed.gather(-1, target[:, None]).squeeze(-1)).all()):
        row = int((~told).nonzero()[0])
        raise InputError(
            f"{name}: the class of a row must not be left out by where or −∞, got label {int(target[row])} in row {row}, whose "
            "log loss is infinite at every temperature; leave such rows out"
        )
    if weights is not None and not bool((counted := weights > 0).all()):
        x, target, weights, allowed = x[counted], target[counted], weights[counted], allowed[counted]
    return _Rows(x, target, weights, None if bool(allowed.all()) else allowed, epsilon)


# A temperature ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Block:
    """Rows as passes read them: d = (x − max x)/unit ≤ 0, and 0 where a class is left out."""

    d: Tensor  # [rows, n] float64
    allowed: Tensor | None  # [rows, n]
    target: Tensor  # [rows]
    share: Tensor  # [rows]

    def moments(self, b: float) -> tuple[Tensor, Tensor]:
        """−⟨p, d⟩ and Var_p(d), each the sum over rows of its share."""
        e = (self.d * b).exp_()
        if self.allowed is not None:
            e *= self.allowed
        mass = e.sum(-1)
        e *= self.d
        mean = e.sum(-1) / mass
        variance = torch.linalg.vecdot(e, self.d) / mass - mean * mean
        return -torch.dot(mean, self.share), torch.dot(variance, self.share)


def _best_temperature(name: str, rows: _Rows) -> tuple[float, int]:
    """τ and the number of passes."""
    exponent = _exponent(rows)
    shares = rows.shares

    def blocks() -> Iterator[_Block]:
        for part in rows.blocks():
            x = rows.x[part].double() * 2.0**-exponent
            allowed = None if rows.allowed is None else rows.allowed[part]
            if allowed is None:
                d = x - x.amax(-1, keepdim=True)
            else:
                d = (x - x.masked_fill(~allowed, -math.inf).amax(-1, keepdim=True)).masked_fill(~allowed, 0.0)
            yield _Block(d, allowed, rows.target(d, part), shares[part])

    kept = list(blocks()) if rows.x.numel() <= KEPT else None

    def passed(b: float) -> tuple[float, float]:
        totals = [torch.stack(block.moments(b)) for block in kept or blocks()]
        found, spread = torch.stack(totals).sum(0).tolist()
        return found, spread

    wanted = -float(sum(torch.dot(block.target, block.share) for block in kept or blocks()))  # T
    found, spread = passed(0.0)
    if found == 0:
        raise NoOptimumError("equal", f"{name}: {EQUAL}")
    if wanted == 0:
        raise NoOptimumError(
            "separable",
            f"{name}: every row's label has the highest score, so that the log loss falls without end towards a temperature of 0; "
            "give rows on which the model errs, or `minimum` or `label_smoothing`",
        )
    if wanted >= found:
        raise NoOptimumError(
            "chance",
            f"{name}: the labels' scores are no higher than the mean of their rows, so that the log loss falls towards an infinite "
            "temperature; look whether labels and columns are in one order, or give `maximum`",
        )
    low, high, b = 0.0, math.inf, math.log(found / wanted) * found / spread
    steps = 1
    while steps < PASSES:
        steps += 1
        found, spread = passed(b)
        if abs(found - wanted) <= ROUNDED * (found + wanted):
            break
        low, high = (b, high) if found > wanted else (low, b)
        step = math.log(found / wanted) * found / spread if found > 0 and spread > 0 else math.nan
        before, b = b, b + step
        if not low < b < high:  # NaN too
            b = 4 * low if math.isinf(high) else (low + high) / 2
        if abs(b - before) <= 2.0**-52 * before:
            break
    return _over(b, exponent), steps


def _over(b: float, exponent: int) -> float:
    """2^exponent/b, in the range of temperatures."""
    try:
        return max(math.ldexp(1 / b, exponent), SMALLEST_TEMPERATURE)
    except OverflowError:
        return math.ldexp(1.0, 1023)


def _exponent(rows: _Rows) -> int:
    """A power of two that no score is beyond, in size, so that differences and their squares are numbers."""
    x = rows.x if rows.allowed is None else rows.x.masked_fill(~rows.allowed, 0.0)
    largest = float(x.abs().max())
    return math.frexp(largest)[1] if largest else 0


# Several numbers ----------------------------------------------------------------------------------------------------------


def _centred(x: Tensor, allowed: Tensor | None) -> Tensor:
    """x less the mean of its row, 0 where a class is left out. Differences come first: Σ x̃ is 0 to the rounding of these."""
    if allowed is None:
        d = x - x.amax(-1, keepdim=True).detach()
        return d - d.mean(-1, keepdim=True)
    d = (x - x.masked_fill(~allowed, -math.inf).amax(-1, keepdim=True).detach()).masked_fill(~allowed, 0.0)
    return (d - d.sum(-1, keepdim=True) / allowed.sum(-1, keepdim=True).clamp_min(1)).masked_fill(~allowed, 0.0)


def _affine(x: Tensor, factors: Tensor, bias: Tensor | None) -> Tensor:
    z = x * factors if factors.ndim == 1 else x @ factors.mT
    return z if bias is None else z + bias


def _best_scaling(name: str, rows: _Rows, method: str, penalty: float | None) -> tuple[Tensor, Tensor | None, int]:
    """W, a and the number of Newton's steps, each solved by conjugate gradients.

    θ holds W and a of x̃ over its root mean square, and H of f is applied by two products with x̃: H v = pull(w p (u − ⟨p, u⟩)),
    u = scores(v).
    """
    x = _centred(rows.x.double() * 2.0 ** -(exponent := _exponent(rows)), rows.allowed)  # [rows, n]
    n, share = x.shape[-1], rows.shares
    unit = float(x.square().mean().sqrt())
    if not unit:
        raise NoOptimumError("equal", f"{name}: {EQUAL}")
    x = x / unit
    unit = unit * 2.0**exponent
    shape = (n, n) if method == "matrix" else (n,)
    size = math.prod(shape)
    theta = torch.zeros(size + n * (method != "per_class"), dtype=x.dtype, device=x.device)
    try:
        start = unit / _best_temperature(name, rows)[0]
    except NoOptimumError:
        start = 1.0
    theta[:size] = (start * (torch.eye(n, dtype=x.dtype, device=x.device) if len(shape) == 2 else torch.ones_like(x[0]))).flatten()
    strength = torch.zeros_like(theta)  # of ½ s θ²
    prior = 1 / (len(x) if rows.weight is None else float(rows.weight.sum()))
    if method == "matrix":
        off = prior / (OFF_DIAGONAL * start) ** 2 if penalty is None else 2 * penalty / (n * (n - 1)) / unit / unit
        strength[:size] = off * (1 - torch.eye(n, dtype=x.dtype, device=x.device)).flatten()
    strength[size:] = prior if penalty is None else 2 * penalty / n
    is_free = not bool(strength.any())
    hot = torch.zeros_like(x).scatter_(-1, rows.labels[:, None], 1.0)
    if rows.smoothing:
        even = torch.ones_like(x) if rows.allowed is None else rows.allowed.to(x.dtype)
        hot = (1 - rows.smoothing) * hot + rows.smoothing * even / even.sum(-1, keepdim=True)

    def scores(theta: Tensor) -> Tensor:
        return _affine(x, theta[:size].view(shape), None if method == "per_class" else theta[size:])

    def pull(g: Tensor, x: Tensor = x) -> Tensor:
        factors = (g * x).sum(0) if len(shape) == 1 else g.mT @ x
        return factors.flatten() if method == "per_class" else torch.cat((factors.flatten(), g.sum(0)))

    def free(v: Tensor) -> Tensor:
        """Without what changes nothing as Σ x̃ = 0: the least of all θ that give the same probabilities and cost the same.

        Free are what is the same for all classes in a, in a column of W and in a row of it, where no penalty holds them, and the
        difference of the factors of two classes.
        """
        factors, bias = v[:size].view(shape).clone(), v[size:]
        if is_free and method == "matrix":
            factors -= factors.mean(0)
            factors -= factors.mean(1, keepdim=True)
        if n == 2:
            own = factors if method != "matrix" else factors.diagonal()
            own.fill_(own.mean())
        return torch.cat((factors.flatten(), bias - bias.mean() if is_free else bias))

    def loss(theta: Tensor) -> tuple[float, Tensor]:
        z = scores(theta)
        z = z if rows.allowed is None else z.masked_fill(~rows.allowed, -math.inf)
        log_mass = z.logsumexp(-1)
        own = torch.where(hot > 0, hot * z, 0.0).sum(-1)
        return float(torch.dot(share, log_mass - own) + (strength * theta.square()).sum() / 2), (z - log_mass[:, None]).exp()

    theta = free(theta)
    value, p = loss(theta)
    for number in range(1, STEPS + 1):
        sure = float(p.gather(-1, rows.labels[:, None]).min())
        if not rows.smoothing and sure > (0.5 if is_free else SURE):
            raise NoOptimumError(  # c z with c → ∞ has a log loss of 0
                "separable",
                f"{name}: such scores tell every row's class, so that the log loss falls without end as they grow; give rows "
                "on which the model errs, or `label_smoothing`",
            )
        gradient = free(pull((p - hot) * share[:, None]) + strength * theta)
        rate = float(gradient.abs().max())
        weighted = share[:, None] * p

        def curvature(v: Tensor, p: Tensor = p, weighted: Tensor = weighted) -> Tensor:
            u = scores(v)
            return pull(weighted * (u - torch.linalg.vecdot(p, u)[:, None])) + strength * v

        diagonal = pull(weighted * (1 - p), x.square()) + strength
        step = _solved(curvature, -gradient, diagonal, min(0.1, math.sqrt(rate)), free)
        if rate <= 1e-12 and float(step.abs().max()) <= 1e-3 * (1 + float(theta.abs().max())):
            return theta[:size].view(shape) / unit, None if method == "per_class" else theta[size:], number
        slope = float(torch.dot(gradient, step))
        length, before = 1.0, value
        value, p = loss(theta + step)
        while value > before + 1e-4 * length * slope + NOISE * (1 + abs(before)) and length > 1e-10:
            length /= 2
            value, p = loss(theta + length * step)
        theta = theta + length * step
    raise NoOptimumError(
        "unreached",
        f"{name}: {STEPS} steps did not reach a least log loss at finite numbers, as where a class has no rows or can be told "
        "without fault; give more rows, `penalty` or `label_smoothing`",
    )


def _solved(
    apply: Callable[[Tensor], Tensor], target: Tensor, diagonal: Tensor, tolerance: float, free: Callable[[Tensor], Tensor]
) -> Tensor:
    """v with apply(v) ≈ target, by conjugate gradients with the diagonal for a preconditioner, in the subspace of `free`."""
    scale = diagonal.clamp_min(1e-30 * float(diagonal.max()) + 1e-300)

    def eased(rest: Tensor) -> Tensor:
        return free(free(rest) / scale)

    v, rest = torch.zeros_like(target), target
    direction = towards = eased(rest)
    product = float(torch.dot(rest, towards))
    least = tolerance**2 * product
    for _ in range(min(2 * len(target) + 20, MOST_PRODUCTS)):
        image = apply(direction)
        bend = float(torch.dot(direction, image))
        if product <= least or not bend > 0:
            break
        v = v + product / bend * direction
        rest = rest - product / bend * image
        towards = eased(rest)
        before, product = product, float(torch.dot(rest, towards))
        direction = towards + product / before * direction
    return v if bool(v.any()) else eased(target)
