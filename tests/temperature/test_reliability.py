"""`sm.temperature.reliability` against its formulas, one row at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from softmaxima.temperature.reliability import BINS, Bin, bins_of, calibration_error, reliability
from softmaxima_lab.compare.measures import evaluate


def drawn(rows: int = 300, classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    p = random.dirichlet(np.ones(classes), rows)
    return p, random.integers(0, classes, rows)


def literal(p: np.ndarray, labels: np.ndarray, weight: np.ndarray) -> tuple[float, float, float, float]:
    """Accuracy, ECE, Brier score and log loss."""
    total, brier, log_loss, right = weight.sum(), 0.0, 0.0, 0.0
    bins: dict[int, list[float]] = {}
    for row, label, w in zip(p, labels, weight, strict=True):
        hit = float(row.argmax() == label)
        bin = bins.setdefault(min(int(row.max() * BINS), BINS - 1), [0.0])
        bin[0] += w * (hit - row.max())
        right += w * hit
        brier += w * sum((q - (c == label)) ** 2 for c, q in enumerate(row))
        log_loss -= w * math.log(row[label])
    return right / total, sum(abs(gap) for (gap,) in bins.values()) / total, brier / total, log_loss / total


@pytest.mark.parametrize("weighted", [False, True])
def test_it_is_what_the_formulas_say(weighted: bool):
    p, labels = drawn()
    weight = np.random.default_rng(1).random(len(p)) if weighted else None
    found = reliability(p, labels, sample_weight=weight)
    expected = literal(p, labels, np.ones(len(p)) if weight is None else weight)
    np.testing.assert_allclose((found.accuracy, found.calibration_error, found.brier, found.log_loss), expected, rtol=1e-12)
    assert found.rows == (len(p) if weight is None else pytest.approx(weight.sum()))
    assert sum(bin.rows for bin in found.bins) == pytest.approx(found.rows)


def test_a_weight_counts_as_so_many_rows():
    p, labels = drawn(40)
    times = np.random.default_rng(2).integers(0, 4, len(p))
    one, other = reliability(p, labels, sample_weight=times), reliability(p.repeat(times, 0), labels.repeat(times))
    for name in ("rows", "accuracy", "calibration_error", "brier", "log_loss"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-12)


def test_comparisons_measure_the_same():
    p, labels = map(torch.from_numpy, drawn())
    fold, _ = evaluate(p, labels, 0.0, 0.0)
    found = reliability(p, labels)
    assert fold.bins == found.bins
    assert fold.calibration == found.calibration_error
    assert fold.brier == pytest.approx(found.brier, rel=1e-12)


def test_tensors_axes_and_dtypes_say_the_same(dtype: torch.dtype):
    p, labels = drawn(24)
    rounded = torch.from_numpy(p).to(dtype)
    rounded = rounded.double() if dtype is torch.float64 else rounded
    expected = reliability(rounded.double(), torch.from_numpy(labels))
    assert reliability(rounded.view(2, 3, 4, 4), torch.from_numpy(labels).view(2, 3, 4)) == expected
    assert reliability(rounded[0], torch.tensor(int(labels[0]))).rows == 1


def test_certain_and_wrong_is_an_infinite_log_loss_and_a_brier_score_of_two():
    found = reliability(np.array([[1.0, 0.0]]), np.array([1]))
    assert (found.log_loss, found.brier, found.calibration_error, found.accuracy) == (math.inf, 2.0, 1.0, 0.0)


def test_bins_add_up_and_have_counts_for_ints():
    confidence, hits = torch.tensor([0.1, 0.9, 0.91, 1.0], dtype=torch.float64), torch.tensor([True, False, True, True])
    bins = bins_of(confidence, hits)
    assert bins[-1] == Bin(1, 1.0, 1)
    assert isinstance(bins[1].rows, int)
    assert isinstance(bins[1].hits, int)
    doubled = tuple(bin + bin for bin in bins)
    assert calibration_error(doubled) == pytest.approx(calibration_error(bins))


P, LABELS = np.full((3, 2), 0.5), np.array([0, 1, 0])


@pytest.mark.parametrize(
    ("p", "labels", "options", "told"),
    [
        (P * 3, LABELS, {}, "between 0 and 1, got 1.5; of logits take softmax"),
        (P * np.nan, LABELS, {}, "between 0 and 1, got nan"),
        (P * 1.9, LABELS, {}, "must sum to at most 1"),
        (P.astype(int), LABELS, {}, "must be float64"),
        (P[:, :1], LABELS, {}, "two classes or more"),
        (np.float64(0.5), LABELS, {}, r"must be \[..., classes\]"),
        (P[:0], LABELS[:0], {}, "must have rows"),
        (P, LABELS[:2], {}, r"labels must have the shape \(3,\)"),
        (P, LABELS + 1, {}, "labels must be from 0 to 1, got 2"),
        (P, LABELS * 1.0, {}, "labels must be ints"),
        (P, [0, 1, 0], {}, "labels must be a torch.Tensor or a numpy.ndarray"),
        (P, LABELS, {"sample_weight": -np.ones(3)}, "sample_weight must be finite and not negative, got -1"),
        (P, LABELS, {"sample_weight": np.zeros(3)}, "sample_weight must have a positive entry"),
        (P, LABELS, {"sample_weight": np.ones(2)}, r"sample_weight must have the shape \(3,\)"),
        (P, LABELS, {"sample_weight": np.ones(3, bool)}, "sample_weight must be real"),
    ],
)
def test_wrong_use_is_one_sentence(p: Any, labels: Any, options: dict[str, Any], told: str):
    with pytest.raises((TypeError, ValueError), match=told) as raised:
        reliability(p, labels, **options)
    assert str(raised.value).startswith("reliability: ")
    assert "\n" not in str(raised.value)
