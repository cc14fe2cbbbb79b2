"""What calibration is fitted to: rows of logits whose class is known, checked once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from softmaxima.base.arguments import as_scores, check_values
from softmaxima.base.numbers import InputError, check_number
from softmaxima.base.onnx import refuse_export
from softmaxima.temperature.reliability import Reliability, RowMeasures, check_labels, check_sample_weight, classes_last

BLOCK = 2**18  # scores that are looked at at a time


class NoOptimumError(InputError):
    """The log loss has no least value at finite numbers.

    `reason` says why: every row is told right ("separable"), scores tell no more than chance ("chance"), those of a row are equal
    ("equal"), or no least was reached ("unreached").
    """

    def __init__(self, reason: Literal["separable", "chance", "equal", "unreached"], message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, eq=False)
class Rows:
    """Those of weight 0 left out."""

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

    @property
    def exponent(self) -> int:
        """Of a power of two that no score is beyond, in size, so that differences over it and their squares are numbers."""
        x = self.x if self.allowed is None else self.x.masked_fill(~self.allowed, 0.0)
        largest = float(x.abs().max())
        return max(math.frexp(largest)[1], -1022) if largest else 0

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
            parts.append(RowMeasures.of_log(z - z.exp().sum(-1, keepdim=True).log(), self.labels[part]))
        return RowMeasures.together(parts).reliability(self.weight)


def checked(name: str, logits: Any, labels: Any, where: Any, sample_weight: Any, label_smoothing: Any, dim: Any = -1) -> Rows:
    """Arguments of a function as rows."""
    epsilon = check_number(name, "label_smoothing", label_smoothing, lambda number: 0 <= number < 1, "from 0 to below 1")
    refuse_export(name, "values before it runs")
    x, mask = classes_last(name, check_values(name, "logits", as_scores(name, logits, "logits")).detach(), where, dim, "logits")
    target = check_labels(name, labels, x, "logits")
    weight = check_sample_weight(name, sample_weight, x, "logits")
    allowed = x != -math.inf if mask is None else (x != -math.inf) & mask
    x, allowed = (each.reshape(-1, x.shape[-1]) for each in (x, allowed))
    if bool((wrong := allowed & ~(x < math.inf)).any()):
        row = int(wrong.any(-1).nonzero()[0])
        raise InputError(
            f"{name}: logits must not be NaN or +∞, got {float(x[row][wrong[row]][0])} in row {row}; repair or leave out such rows"
        )
    if not bool((told := allowed.gather(-1, target[:, None]).squeeze(-1)).all()):
        row = int((~told).nonzero()[0])
        raise InputError(
            f"{name}: the class of a row must not be left out by where or −∞, got label {int(target[row])} in row {row}, whose "
            "log loss is infinite at every temperature; leave such rows out"
        )
    if weight is not None and not bool((counted := weight > 0).all()):
        x, target, weight, allowed = x[counted], target[counted], weight[counted], allowed[counted]
    return Rows(x, target, weight, None if bool(allowed.all()) else allowed, epsilon)
