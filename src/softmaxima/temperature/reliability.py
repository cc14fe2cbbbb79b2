"""reliability: whether probabilities mean what they say. ECE = Σ_b (rows in b/rows) |accuracy in b − mean max p in b|."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.arguments import as_scores, as_tensor, check_device, check_dim, check_values, check_where, moved_last
from softmaxima.base.numbers import InputError
from softmaxima.base.onnx import refuse_export
from softmaxima.base.public import public

BINS = 15
ROUNDING = 2**-7  # by which a sum of probabilities of bfloat16 may be beyond 1
LABELS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass(frozen=True)
class Bin:
    """The rows whose top probability lies in one of the equal widths of [0, 1]; of rows with weights the sums of those."""

    rows: float
    confidence: float  # Σ max p
    hits: float  # rows with argmax p = t

    def __add__(self, other: Bin) -> Bin:
        return Bin(self.rows + other.rows, self.confidence + other.confidence, self.hits + other.hits)


def which_bin(confidence: Tensor) -> Tensor:
    """Of each top probability, where it lies."""
    return (confidence.nan_to_num() * BINS).long().clamp_max(BINS - 1)


def bins_of(confidence: Tensor, hits: Tensor, weight: Tensor | None = None) -> tuple[Bin, ...]:
    """The bins of top probabilities [rows] float64, and of whether they were right [rows]."""
    which = which_bin(confidence)

    def sums(values: Tensor | None) -> list[float]:
        weighted = weight if values is None else values if weight is None else values * weight
        return torch.bincount(which, weighted, minlength=BINS).tolist()

    rows, sure, right = sums(None), sums(confidence), sums(hits.double())
    right = right if weight is not None else list(map(int, right))
    return tuple(Bin(*each) for each in zip(rows, sure, right, strict=True))


def calibration_error(bins: Sequence[Bin]) -> float:
    """The expected calibration error of those bins."""
    return sum(abs(bin.hits - bin.confidence) for bin in bins) / sum(bin.rows for bin in bins)


@dataclass(frozen=True)
class Reliability:
    """How probabilities did on rows whose class is known.

    Attributes:
        rows: how many; of rows with weights the sum of those.
        accuracy: the share of rows whose most probable class is theirs; of equal ones the first counts.
        calibration_error: ECE, Σ_b (rows in b/rows) · |accuracy in b − mean max p in b| over 15 bins of equal width in max p. Few
            rows bias it upwards.
        brier: the mean of Σ_c (p_c − y_c)², from 0 to 2.
        log_loss: the mean of −log p_t in nats; ∞ where a p_t is 0.
        bins: rows, Σ max p and hits of each bin.

    >>> import numpy as np, softmaxima as sm
    >>> print(sm.reliability(np.array([[0.8, 0.2], [0.4, 0.6]]), np.array([0, 0])))
    log loss 0.5697 nats, Brier 0.4000, calibration error 40.00 %
    """

    rows: float
    accuracy: float
    calibration_error: float
    brier: float
    log_loss: float
    bins: tuple[Bin, ...]

    def __str__(self) -> str:
        return f"log loss {self.log_loss:.4f} nats, Brier {self.brier:.4f}, calibration error {100 * self.calibration_error:.2f} %"


@dataclass(frozen=True)
class RowMeasures:
    """What each row adds, [rows] float64."""

    confidence: Tensor
    hits: Tensor
    brier: Tensor
    log_loss: Tensor

    @classmethod
    def of(cls, p: Tensor, log_p_target: Tensor, labels: Tensor) -> RowMeasures:
        """Of p [rows, classes] float64."""
        confidence, predicted = p.max(-1)
        p_target = p.gather(-1, labels[:, None]).squeeze(-1)
        others = p.scatter(-1, labels[:, None], 0.0)
        # Σ (p_c − y_c)², without 1 − 2 p_t + Σ p_c², which cancels
        return cls(confidence, predicted == labels, others.square().sum(-1) + (1 - p_target).square(), -log_p_target)

    @classmethod
    def of_log(cls, log_p: Tensor, labels: Tensor) -> RowMeasures:
        """Of log p, whose least are not lost as those of p are."""
        return cls.of(log_p.exp(), log_p.gather(-1, labels[:, None]).squeeze(-1), labels)

    @classmethod
    def together(cls, parts: Sequence[RowMeasures]) -> RowMeasures:
        """Of the rows of all parts."""
        columns = zip(*((part.confidence, part.hits, part.brier, part.log_loss) for part in parts), strict=True)
        return cls(*map(torch.cat, columns))

    def reliability(self, weight: Tensor | None = None) -> Reliability:
        """Of all rows, each counting by its weight."""
        bins = bins_of(self.confidence, self.hits, weight)

        def mean(values: Tensor) -> float:
            return float(values.double().mean() if weight is None else (values * weight).sum() / weight.sum())

        return Reliability(
            rows=len(self.hits) if weight is None else float(weight.sum()),
            accuracy=mean(self.hits),
            calibration_error=calibration_error(bins),
            brier=mean(self.brier),
            log_loss=mean(self.log_loss),
            bins=bins,
        )


@public
def reliability(probabilities: Any, labels: Any, *, dim: int | None = -1, sample_weight: Any = None) -> Reliability:
    """Expected calibration error, Brier score and log loss of probabilities, with the bins of their picture.

    Args:
        probabilities: p [..., classes], tensor or array of any floating dtype; Σp ≤ 1, for some maps leave mass out.
        labels: [...] ints, the index of each row's class.
        dim: the axis of the classes; None for single probabilities, of class 1 of two.
        sample_weight: [...] how much each row counts, ≥ 0; None: all alike.

    Raises:
        TypeError: for what is no array or has a wrong dtype.
        ValueError: where shapes do not fit, there are no rows, or a number is no probability, label or weight.

    Cost: one read of p, and O(rows) memory beside a copy of it in float64.

    Source: Guo, Pleiss, Sun & Weinberger (2017), arXiv:1706.04599, of the ECE; Brier (1950).

    >>> import numpy as np
    >>> import softmaxima as sm
    >>> print(sm.reliability(np.array([[0.9, 0.1], [0.9, 0.1], [0.2, 0.8]]), np.array([0, 1, 1])))
    log loss 0.8770 nats, Brier 0.5733, calibration error 33.33 %
    """
    name = "reliability"
    refuse_export(name, "values before it runs")
    p = check_values(name, "probabilities", as_scores(name, probabilities, "probabilities")).detach()
    p, _ = classes_last(name, p, None, dim, "probabilities")
    target = check_labels(name, labels, p, "probabilities")
    weights = check_sample_weight(name, sample_weight, p, "probabilities")
    p = p.double().flatten(0, -2) if p.ndim > 1 else p.double()[None]
    if not bool(((p >= 0) & (p <= 1 + ROUNDING)).all()):
        wrong = float(p[~((p >= 0) & (p <= 1 + ROUNDING))][0])
        raise InputError(f"{name}: probabilities must be between 0 and 1, got {wrong:g}; of logits take softmax first")
    if not bool((p.sum(-1) <= 1 + ROUNDING).all()):
        raise InputError(f"{name}: the probabilities of a row must sum to at most 1, got {float(p.sum(-1).max()):g}; take softmax")
    log_p_target = p.gather(-1, target[:, None]).squeeze(-1).log()
    return RowMeasures.of(p, log_p_target, target).reliability(weights)


def classes_last(name: str, x: Tensor, where: Any, dim: Any, of: str) -> tuple[Tensor, Tensor | None]:
    """(x with its classes last, its mask): without an axis of classes, dim=None, the two of a single logit or probability."""
    if dim is None:
        check_single(name, where)
        return torch.stack((torch.zeros_like(x) if of == "logits" else 1 - x, x), -1), None
    axis, mask = check_dim(name, dim, x.ndim), check_where(name, where, x)
    return moved_last(x, axis) if x.ndim else x, moved_last(mask, axis)


def check_single(name: str, where: Any) -> None:
    """That nothing is left out of two classes."""
    if where is not None:
        raise InputError(f"{name}: where is for an axis of classes, and dim=None says that there is none; leave it out")


def check_labels(name: str, labels: Any, x: Tensor, of: str) -> Tensor:
    """[rows] int64, each the index of a class of x [..., classes], which has two or more, and rows."""
    if not x.ndim:
        raise InputError(f"{name}: {of} must be [..., classes], got a single number")
    classes = x.shape[-1]
    if classes < 2:
        repair = f"; single {of} of two classes are given without this axis, with dim=None" if classes else ""
        raise InputError(f"{name}: {of} must be of two classes or more, got shape {tuple(x.shape)}{repair}")
    found = check_values(name, "labels", as_tensor(name, "labels", labels))
    if found.dtype not in LABELS:
        repair = "call .long() of a tensor, .astype(int) of an array"
        if found.shape == x.shape and found.is_floating_point() and bool(((found != 0).sum(-1) == 1).all()):
            repair = "call .argmax(-1) of one-hot labels"
        raise TypeError(f"{name}: labels must be ints, the index of each row's class, got {found.dtype}; {repair}")
    found = _one_a_row(name, "labels", found, x, of).long()
    if not len(found):
        raise InputError(f"{name}: {of} must have rows, got shape {tuple(x.shape)}")
    if not bool(((found >= 0) & (found < classes)).all()):
        wrong = int(found[(found < 0) | (found >= classes)][0])
        raise InputError(f"{name}: labels must be from 0 to {classes - 1}, got {wrong}; leave out rows without a class")
    return found


def check_sample_weight(name: str, weight: Any, x: Tensor, of: str) -> Tensor | None:
    """[rows] float64 ≥ 0, not all 0."""
    if weight is None:
        return None
    found = check_values(name, "sample_weight", as_tensor(name, "sample_weight", weight)).detach()
    if found.is_complex() or found.dtype == torch.bool:
        raise TypeError(f"{name}: sample_weight must be real, got {found.dtype}")
    found = _one_a_row(name, "sample_weight", found, x, of).double()
    if not bool((right := (found >= 0) & found.isfinite()).all()):
        raise InputError(f"{name}: sample_weight must be finite and not negative, got {float(found[~right][0])}")
    if not bool(found.any()):
        raise InputError(f"{name}: sample_weight must have a positive entry, got zeros alone")
    return found


def _one_a_row(name: str, what: str, given: Tensor, x: Tensor, of: str) -> Tensor:
    """[rows], of what has an entry for each row of x."""
    if given.shape != x.shape[:-1]:
        shape, own = tuple(x.shape), tuple(given.shape)
        axis = next((axis for axis in range(len(shape) - 1) if shape[:axis] + shape[axis + 1 :] == own), None)
        repair = "" if axis is None else f"; dim={axis} says that the classes are along axis {axis}"
        if own == shape:
            repair = f"; dim=None says that {of} are single numbers of two classes"
            if what == "labels" and shape[-1] > 1 and bool(((given != 0).sum(-1) == 1).all()):  # of two columns it may be either
                repair = (repair if shape[-1] == 2 else "") + "; call .argmax(-1) of one-hot labels"
        raise InputError(f"{name}: {what} must have the shape {shape[:-1]}, one for each row of {of} {shape}, got {own}{repair}")
    return check_device(name, what, given, x).reshape(-1)
