"""What a comparison measures of held-out rows, and what of it a recommendation can go by.

With p the probabilities of a row with n classes, t its class and y the indicator of t:

    accuracy     share of rows with argmax p = t
    macro F1     mean over classes of 2·(rows of the class that were recognised)/(its rows + the rows that were called it)
    log loss     −log((p_t + ε)/(1 + nε)), ε = 1e-6: an exact zero costs 13.8 nats, not ∞
    Brier        Σ_c (p_c − y_c)², between 0 and 2
    calibration  Σ_b (rows in b / rows) · |accuracy in b − mean max p in b|, over 15 bins b of equal width in max p (ECE)
    support      number of classes with p_c > 0
    zeros        share of rows with p_t = 0

A result's are means over folds, but for two that are no means over rows: macro F1 and the calibration error are those of the
held-out rows of all folds together, counts of classes and of bins summed, as figures draw them. A fold has few rows, which bias
both: the calibration error upwards (Kumar, Liang and Ma, NeurIPS 2019), F1 by how the rare classes fell (Forman and Scholz, SIGKDD
Explorations 12, 2010).

The time of a step is the median over steps in each fold, and of several folds the geometric mean: the ratio of two such times is
then exp of the mean over folds of the logarithms of their ratios, which is what a gain in time is.
"""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from statistics import fmean
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from softmaxima.integrations.pairs import Pair
from softmaxima.temperature.reliability import BINS as BINS
from softmaxima.temperature.reliability import Bin, bins_of, calibration_error, which_bin

EPS = 1e-6  # of the log loss
MOST_EXPONENT = 700.0  # whose exponential is a number
MOST_SHOWN = 1e4  # per cent that a step may be slower by, before that is no number to read


@dataclass(frozen=True)
class ClassCounts:
    """Of one class, the held-out rows that are of it, that were called it, and that are both."""

    rows: int
    called: int
    hits: int

    def __add__(self, other: ClassCounts) -> ClassCounts:
        return ClassCounts(self.rows + other.rows, self.called + other.called, self.hits + other.hits)

    @property
    def recall(self) -> float:
        return self.hits / self.rows if self.rows else 0.0

    @property
    def precision(self) -> float:
        return self.hits / self.called if self.called else 0.0

    @property
    def f1(self) -> float:
        return 2 * self.hits / (self.rows + self.called) if self.rows + self.called else 0.0


@dataclass(frozen=True)
class Fold:
    """What a pair reached on the rows that one training left out."""

    accuracy: float
    log_loss: float
    brier: float
    support: float
    zeros: float
    bins: tuple[Bin, ...]
    classes: tuple[ClassCounts, ...]
    support_rows: tuple[int, ...]  # rows with 0, 1, …, n non-zero probabilities
    predicted: str  # a digest of the classes that the rows were called
    step_seconds: float  # the median over the steps of training
    learning_rate: float
    # The mean square over rows of the difference to another's: reference → metric → square.
    squares: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def calibration(self) -> float:
        return calibration_error(self.bins)

    @property
    def macro_f1(self) -> float:
        return macro_f1(self.classes)


def geometric_mean(values: Sequence[float]) -> float:
    """exp of the mean logarithm; 0 where one is."""
    return math.exp(fmean(map(math.log, values))) if all(values) else 0.0


def macro_f1(classes: tuple[ClassCounts, ...]) -> float:
    """The mean F1 of those classes."""
    return fmean(counts.f1 for counts in classes)


@dataclass(frozen=True)
class RowScores:
    """What each held-out row adds to each metric, which is the mean of that, to first order in how much the row counts."""

    rows: Mapping[str, Tensor]

    def squares(self, other: RowScores) -> dict[str, float]:
        """The mean square of the difference, for each metric."""
        return {name: float((values - other.rows[name]).square().mean()) for name, values in self.rows.items()}


def evaluate(p: Tensor, target: Tensor, step_seconds: float, learning_rate: float) -> tuple[Fold, RowScores]:
    """The measures of probabilities p [rows, classes] for classes [rows]; of equal probabilities the lowest index is predicted."""
    p = p.double()
    classes = p.shape[-1]
    confidence, predicted = p.max(-1)
    hits = (predicted == target) & p.isfinite().all(-1)
    p_target = p.gather(-1, target[:, None]).squeeze(-1)
    support = (p > 0).sum(-1)
    bins = bins_of(confidence, hits)
    too_low = torch.tensor([bin.hits - bin.confidence for bin in bins], dtype=torch.float64).sign()

    def by_class(of: Tensor) -> Tensor:
        return torch.bincount(of, minlength=classes)

    occurred, called, recognised = (by_class(of) for of in (target, predicted, target[hits]))
    # macro F1 = mean of 2h/(o + c): a row moves h and o of its class, and c of the one it was called
    size = (occurred + called).clamp_min(1).double()
    f1 = 2 * recognised / size
    moved = (2 * hits - f1[target]) / size[target] - f1[predicted] / size[predicted]
    rows = RowScores(
        {
            "accuracy": hits.double(),
            "macro-f1": f1.mean() + len(p) / classes * moved,
            "log-loss": -((p_target + EPS) / (1 + classes * EPS)).log(),
            "brier": (p - functional.one_hot(target, classes)).square().sum(-1),
            "calibration": too_low[which_bin(confidence)] * (hits.double() - confidence),
        }
    )

    fold = Fold(
        accuracy=float(rows.rows["accuracy"].mean()),
        log_loss=float(rows.rows["log-loss"].mean()),
        brier=float(rows.rows["brier"].mean()),
        support=float(support.double().mean()),
        zeros=float((p_target == 0).double().mean()),
        bins=bins,
        classes=tuple(ClassCounts(*counts) for counts in zip(occurred.tolist(), called.tolist(), recognised.tolist(), strict=True)),
        support_rows=tuple(torch.bincount(support, minlength=classes + 1).tolist()),
        predicted=hashlib.sha256(predicted.numpy().tobytes()).hexdigest()[:16],
        step_seconds=step_seconds,
        learning_rate=learning_rate,
    )
    return fold, rows


T = TypeVar("T")


class Measure(Generic[T]):
    """What a result has: what its folds have under the same name, taken together."""

    def __init__(self, together: Callable[[list[Any]], T]) -> None:
        self.together = together

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, result: Result, owner: type) -> T:
        return self.together([getattr(fold, self.name) for fold in result.folds])


def _pooled(parts: list[tuple[T, ...]]) -> tuple[T, ...]:
    """The sum over folds of each entry."""
    return tuple(reduce(operator.add, column) for column in zip(*parts, strict=True))


@dataclass(frozen=True)
class Result:
    """What a pair reached, or the baseline without one, which gives every row the frequencies of the classes."""

    name: str
    pair: Pair | None
    folds: tuple[Fold, ...]
    twins: tuple[str, ...] = ()  # names of pairs that predicted the same

    accuracy = Measure(fmean)
    log_loss = Measure(fmean)
    brier = Measure(fmean)
    support = Measure(fmean)
    zeros = Measure(fmean)
    step_seconds = Measure[float](geometric_mean)
    bins = Measure[tuple[Bin, ...]](_pooled)
    classes = Measure[tuple[ClassCounts, ...]](_pooled)
    support_rows = Measure[tuple[int, ...]](_pooled)

    @property
    def calibration(self) -> float:
        return calibration_error(self.bins)

    @property
    def macro_f1(self) -> float:
        return macro_f1(self.classes)


@dataclass(frozen=True, eq=False)
class Metric:
    """What a recommendation can go by: the gain of one value over another is positive where it is the better one.

    A gain is `sign` times the difference of the values, or of their logarithms where `by_ratio`.
    """

    name: str  # on the command line
    words: str
    attribute: str  # of Fold and Result
    sign: int  # 1 where more is better, −1 where less is
    shown: str  # the format of a value times `scale`, with its unit
    scale: float = 1.0
    by_ratio: bool = False
    ratio_words: tuple[str, str] = ("faster", "slower")  # what a ratio is that is a gain, and what one that is a loss
    unit: str = ""  # of a gain `in_unit`
    decimals: int = 2  # of that
    least_gain: float = 0.0  # what is less is not worth a change
    most_gain: float = math.inf  # by which two values can differ
    least: float = 0.0  # that there can be, where less is better
    most: float = 1.0  # that there can be, where more is better
    is_mean_of_rows: bool = False  # of numbers of which two are at most that far apart

    def gain(self, value: float, reference: float) -> float:
        if not self.by_ratio:
            return self.sign * (value - reference)
        return self.sign * math.log(value / reference) if value > 0 < reference else math.nan

    def show(self, value: float) -> str:
        return self.shown.format(self.scale * value)

    def possible(self, value: float) -> float:
        """The largest gain over a value that there can be: shares and F1 end at 1, losses and errors at 0, perplexities at 1."""
        best = self.most if self.sign > 0 else self.least
        return math.inf if self.by_ratio and not best else self.gain(best, value)

    def in_unit(self, gain: float) -> float:
        """A gain in its unit; of a ratio, how many per cent less than the reference."""
        if not self.by_ratio or math.isinf(gain):
            return self.scale * gain
        return -math.inf if gain < -MOST_EXPONENT else -100 * math.expm1(-gain)

    def show_gain(self, gain: float, decimals: int | None = None) -> str:
        """A gain without its unit, positive where it is one."""
        decimals = self.decimals if decimals is None else decimals
        value = round(self.in_unit(gain), decimals) + 0.0  # zero has no minus
        return "−∞" if self.by_ratio and value < -MOST_SHOWN else f"{value:+.{decimals}f}".replace("-", "−")

    @property
    def gain_unit(self) -> str:
        """The unit after a number; the Brier score has none."""
        return f" {self.unit}" if self.unit else ""

    def with_unit(self, heading: str) -> str:
        """A heading of gains."""
        return f"{heading}, {self.unit}" if self.unit else heading


METRICS = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "accuracy", "accuracy", 1, "{:.2f} %", 100, unit="points", most_gain=1.0, is_mean_of_rows=True),
        Metric("macro-f1", "macro F1", "macro_f1", 1, "{:.2f} %", 100, unit="points", most_gain=1.0),
        Metric(
            "log-loss",
            "log loss",
            "log_loss",
            -1,
            "{:.3f}",
            unit="nats",
            decimals=3,
            most_gain=math.log1p(1 / EPS),
            is_mean_of_rows=True,
        ),
        Metric("brier", "Brier score", "brier", -1, "{:.4f}", decimals=4, most_gain=2.0, is_mean_of_rows=True),
        Metric("calibration", "calibration error", "calibration", -1, "{:.2f} %", 100, unit="points", most_gain=1.0),
        Metric(
            "cost",
            "time of a training step",
            "step_seconds",
            -1,
            "{:.2f} ms",
            1000,
            by_ratio=True,
            unit="%",
            decimals=0,
            least_gain=math.log(1.05),  # machines are not steadier
        ),
    )
}
