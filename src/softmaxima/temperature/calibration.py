"""Temperatures and affine scores of least log loss, and what they are worth before and after."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from softmaxima.base.arguments import Array, as_scores, check_where, like_input
from softmaxima.base.numbers import SMALLEST_TEMPERATURE, TEMPERATURE, InputError, check_axis, check_choice, check_number
from softmaxima.base.public import public
from softmaxima.maps.softmax import softmax
from softmaxima.temperature._one_number import best_temperature
from softmaxima.temperature._rows import NoOptimumError, Rows, checked
from softmaxima.temperature._scaling import METHODS as METHODS
from softmaxima.temperature._scaling import affine, best_scaling, centred
from softmaxima.temperature.reliability import Reliability, check_single, classes_last

EPS = float(np.finfo(np.float64).eps)


@public
@dataclass(frozen=True, eq=False)
class TemperatureCalibration:
    """The temperature of least log loss. Called with logits it gives probabilities, softmax(x/τ).

    Attributes:
        temperature: τ, in the unit of the logits.
        before: what softmax(x) is worth on the rows that it was fitted to.
        after: what softmax(x/τ) is worth there.
        steps: passes over the rows.
        bound: "minimum" or "maximum", where τ is that, or the end of what float64 has, as the log loss falls on beyond; None for
            the optimum.
        label_smoothing: ε of the labels that it was fitted to.
        method: "temperature".
        dim: the axis of the classes, None of single logits of two classes, of which p is that of class 1.

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
    dim: int | None = -1

    method: ClassVar[str] = "temperature"

    def __call__(self, logits: Array, *, where: Any = None) -> Array:
        """Probabilities of logits, of their shape and dtype; gradients go through."""
        if self.dim is not None and math.isfinite(self.temperature):
            return softmax(logits, self.dim, temperature=self.temperature, where=where)
        x = as_scores("calibration", logits, "logits")
        if self.dim is None:
            check_single("calibration", where)
            return like_input(self.scores(x).sigmoid().to(x.dtype), logits)
        return like_input(softmax(self.scores(x), self.dim, where=where).to(x.dtype), logits)

    def scores(self, x: Tensor, allowed: Tensor | None = None) -> Tensor:
        """x/τ in float64 of logits, whose softmax is p. Of τ = ∞ it is 0, and NaN where x is NaN or +∞."""
        x = as_scores("TemperatureCalibration.scores", x, "x").double()
        return torch.where(x == -math.inf, x, 0 * x) if math.isinf(self.temperature) else x / self.temperature

    def numbers(self) -> dict[str, Any]:
        """What was fitted, as plain numbers."""
        return {"temperature": self.temperature}


@public
@dataclass(frozen=True, eq=False)
class ScalingCalibration:
    """Factors of least log loss. Called with logits it gives probabilities, softmax(W x̃ + a), x̃ being x less its row's mean.

    Attributes:
        method: "per_class", "vector" or "matrix".
        factors: W, [classes] of the first two, which is its diagonal: 1/τ_c; [classes, classes] of a matrix. float64.
        bias: a [classes] float64; None of "per_class".
        before: what softmax(x) is worth on the rows that it was fitted to.
        after: what softmax(W x̃ + a) is worth there.
        steps: Newton's, each of which is solved by many passes over the rows.
        penalty: λ that it was fitted with; None for that of normal priors.
        label_smoothing: ε of the labels that it was fitted to.
        temperature: None, as there is no single one.
        dim: the axis of the classes, None of single logits of two classes, of which p is that of class 1.

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
    dim: int | None = -1

    temperature: ClassVar[None] = None

    def __call__(self, logits: Array, *, where: Any = None) -> Array:
        """Probabilities of logits, of their shape and dtype; gradients go through."""
        x, mask = classes_last("calibration", as_scores("calibration", logits, "logits"), where, self.dim, "logits")
        if x.shape[-1:] != self.factors.shape[-1:]:
            raise InputError(f"calibration: logits must be of {len(self.factors)} classes, got shape {tuple(x.shape)}")
        allowed = x != -math.inf
        if mask is not None:
            allowed = allowed & mask
        p = softmax(self.scores(x, allowed), where=allowed).to(x.dtype)
        return like_input(p[..., 1] if self.dim is None else p.movedim(-1, self.dim), logits)

    def scores(self, x: Tensor, allowed: Tensor | None = None) -> Tensor:
        """W x̃ + a [..., classes] float64 of logits, whose softmax is p; what is not `allowed` has x̃ = 0."""
        name = "ScalingCalibration.scores"
        x, allowed = as_scores(name, x, "x"), check_where(name, allowed, x, "allowed")
        if x.shape[-1:] != self.factors.shape[-1:]:
            raise InputError(f"{name}: x must be of {len(self.factors)} classes, got shape {tuple(x.shape)}")
        bias = None if self.bias is None else self.bias.to(x.device)
        return affine(centred(x.double(), allowed), self.factors.to(x.device), bias)

    def numbers(self) -> dict[str, Any]:
        """What was fitted, as plain numbers."""
        return {"factors": self.factors.tolist(), "bias": None if self.bias is None else self.bias.tolist()}


Calibration = TemperatureCalibration | ScalingCalibration


@public
def calibrate_temperature(
    logits: Any,
    labels: Any,
    *,
    dim: int | None = -1,
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
        dim: the axis of the classes: 1 for [N, C, H, W] with labels [N, H, W]. None for single logits of two classes, of labels'
            shape, x being log p_1 − log p_0.
        where: boolean, broadcasts to x; False leaves a class out, whatever its logit.
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

    The least τ is 2.3e-308 and the largest 1.8e308: where the optimum is beyond, as of subnormal logits, that end is taken, and
    `bound` says so.

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
    dim = None if dim is None else check_axis(name, dim)
    rows = checked(name, logits, labels, where, sample_weight, label_smoothing, dim)
    return replace(_calibrated(name, rows, minimum, maximum), dim=dim)


def _calibrated(name: str, rows: Rows, minimum: float | None, maximum: float | None) -> TemperatureCalibration:
    """Of checked rows, between bounds where these are given."""
    try:
        tau, steps = best_temperature(name, rows)
    except NoOptimumError as error:
        ends = {"separable": (minimum, 0.0), "chance": (maximum, math.inf)}
        given, tau = ends.get(error.reason, (None, math.nan))
        if given is None:
            raise
        steps = 1
    taken = min(max(tau, minimum or SMALLEST_TEMPERATURE), maximum or sys.float_info.max)
    bound = "minimum" if taken > tau else "maximum" if taken < tau or math.isinf(taken) else None
    return _measured(rows, taken, steps, bound)


def _measured(rows: Rows, tau: float, steps: int, bound: str | None = None) -> TemperatureCalibration:
    before, after = rows.reliability(lambda x, allowed: x), rows.reliability(lambda x, allowed: x / tau)
    return TemperatureCalibration(tau, before, after, steps, bound, rows.smoothing)


@public
def calibrate_scaling(
    logits: Any,
    labels: Any,
    method: str = "temperature",
    *,
    dim: int | None = -1,
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
    holds a matrix, its rows and columns do. What a penalty far smaller than the slope of the log loss decides has few digits.

    Args:
        logits, labels, dim, where, sample_weight, label_smoothing: as of `calibrate_temperature`; a class left out counts as x̃ = 0
            for others.
        method: one of the four.
        penalty: λ ≥ 0, for what has a bias or a matrix; the diagonal is free. None takes the penalty of normal priors, of deviation
            0.1/τ beside the diagonal and 1 of a bias, τ being the best temperature: it fades as rows are more, and is 0 of
            methods without either.

    Returns:
        A `ScalingCalibration`, or for "temperature" a `TemperatureCalibration`.

    Raises:
        TypeError, ValueError: as `calibrate_temperature`, or where the least log loss is not reached by finite numbers, as where a
            class has no rows, or some can be told from all others: give `penalty` or `label_smoothing`. Scores that differ by less
            than 2.3e-308 count as equal, and those beyond 8.9e307 in size are refused.

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
    dim = None if dim is None else check_axis(name, dim)
    rows = checked(name, logits, labels, where, sample_weight, label_smoothing, dim)
    if METHODS[method].is_one_number:
        return replace(_calibrated(name, rows, None, None), dim=dim)
    factors, bias, steps = best_scaling(name, rows, METHODS[method], penalty)
    before = rows.reliability(lambda x, allowed: x)
    after = rows.reliability(lambda x, allowed: affine(centred(x, allowed), factors, bias))
    return ScalingCalibration(method, factors, bias, before, after, steps, penalty, rows.smoothing, dim)


def check_penalty(name: str, method: Any, penalty: Any) -> float | None:
    """λ, or None, of a method that there is, and that has what it is for."""
    check_choice(name, "method", method, tuple(METHODS))
    if penalty is None:
        return None
    number = check_number(name, "penalty", penalty, lambda number: 0 <= number < math.inf, "a finite number of at least 0")
    if number and not METHODS[method].has_penalty:
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
        rows = checked("calibrate_safely", logits, labels, None, sample_weight, 0.0)
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
        told = "no finite numbers reach the least log loss, so that one temperature was taken"
        return found, f"{told}; {note}" if note else told


def floor_of(p: np.ndarray) -> float:
    """What a probability of 0 counts as: half the least positive one, 2⁻⁵² at least, which it is where none is 0."""
    return EPS if p.all() else max(EPS, float(p[p > 0].min()) / 2)


def logarithms(p: np.ndarray, floor: float) -> np.ndarray:
    """log p [rows, classes], where 0 counts as the floor, and as no more than what else is in its row."""
    least = np.where(p > 0, p, floor).min(-1, keepdims=True)
    return np.log(np.where(p > 0, p, np.minimum(least, floor)))
