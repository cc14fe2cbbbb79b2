"""Temperature scaling beside that of others, on the same rows: what held-out rows cost, and how long a fit takes.

Logits are those of an overfitted network on the digits, and drawn ones whose temperature is known. Half the rows are fitted to.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any, Self

import numpy as np
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import train_test_split

from softmaxima.integrations.classifier import Classifier
from softmaxima.temperature.calibration import METHODS, calibrate_safely
from softmaxima.temperature.reliability import Reliability, reliability

Predict = Callable[[np.ndarray], np.ndarray]
Fit = Callable[[np.ndarray, np.ndarray], tuple[Predict, float | None]]


@dataclass(frozen=True)
class Peer:
    """What one that calibrates reached on held-out rows, and how long it took to fit."""

    data: str
    rows: int
    classes: int
    name: str
    temperature: float | None
    held_out: Reliability
    seconds: float


def beside_others(seed: int = 0, repeats: int = 5) -> tuple[Peer, ...]:
    """Every method of softmaxima, scikit-learn's temperature scaling and, where it is installed, netcal's."""
    found = []
    for data, x, labels in datasets(seed):
        half = len(x) // 2
        for name, fit in _peers().items():
            predict, temperature = fit(x[:half], labels[:half])
            seconds = []
            for _ in range(repeats):
                start = time.perf_counter()
                fit(x[:half], labels[:half])
                seconds.append(time.perf_counter() - start)
            measured = reliability(predict(x[half:]), labels[half:])
            found.append(Peer(data, half, x.shape[-1], name, temperature, measured, median(seconds)))
    return tuple(found)


def datasets(seed: int) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Names, logits and labels."""
    return [_of_digits(seed), *(_drawn(seed, rows, classes) for rows, classes in ((10_000, 10), (4_000, 100), (100_000, 10)))]


def _peers() -> dict[str, Fit]:
    """What each does with logits."""

    def ours(method: str) -> Fit:
        def fit(x: np.ndarray, labels: np.ndarray) -> tuple[Predict, float | None]:
            found, _ = calibrate_safely(x, labels, method)
            return found, found.temperature

        return fit

    def theirs(x: np.ndarray, labels: np.ndarray) -> tuple[Predict, float | None]:
        logits = FrozenEstimator(_Logits(x.shape[-1]).fit(x, labels))
        model: Any = CalibratedClassifierCV(logits, method="temperature").fit(x, labels)
        return model.predict_proba, 1 / float(model.calibrated_classifiers_[0].calibrators[0].beta_)

    def plain(x: np.ndarray, labels: np.ndarray) -> tuple[Predict, float | None]:
        return _softmax, 1.0

    one, *several = METHODS
    found: dict[str, Fit] = {"none": plain, "softmaxima": ours(one), "scikit-learn": theirs}
    try:
        from netcal.scaling import TemperatureScaling  # type: ignore[import-not-found]
    except ImportError:
        pass
    else:

        def netcals(x: np.ndarray, labels: np.ndarray) -> tuple[Predict, float | None]:
            model = TemperatureScaling()
            model.fit(_softmax(x), labels)
            return lambda x: model.transform(_softmax(x)), 1 / float(np.ravel(model.temperature)[0])

        found["netcal"] = netcals
    return found | {f"softmaxima, {method}": ours(method) for method in several}


def _softmax(x: np.ndarray) -> np.ndarray:
    return softmax(x, -1)


class _Logits(ClassifierMixin, BaseEstimator):
    """A classifier of scikit-learn whose features are its scores."""

    def __init__(self, classes: int = 2) -> None:
        self.classes = classes

    def fit(self, x: np.ndarray, y: np.ndarray) -> Self:
        self.classes_, self.n_features_in_ = np.arange(self.classes), self.classes
        return self

    def decision_function(self, x: np.ndarray) -> np.ndarray:
        return x

    def predict(self, x: np.ndarray) -> np.ndarray:
        return self.classes_[np.argmax(x, -1)]


def _drawn(seed: int, count: int, classes: int, temperature: float = 3.0) -> tuple[str, np.ndarray, np.ndarray]:
    """Logits that are three times what the classes are drawn with."""
    random = np.random.default_rng(seed)
    x = 2 * random.standard_normal((count, classes))
    labels = np.argmax(x + random.gumbel(size=x.shape), -1)
    return f"drawn, τ = {temperature:g}", temperature * x, labels


def _of_digits(seed: int) -> tuple[str, np.ndarray, np.ndarray]:
    """Logits of a network on the digits with noise that it has learnt 300 of by heart, for the others."""
    pixels, labels = map(np.asarray, load_digits(return_X_y=True))
    noisy = pixels + 6 * np.random.default_rng(seed).standard_normal(pixels.shape)
    parts = train_test_split(noisy, labels, train_size=300, random_state=seed, stratify=labels)
    learning, others, known, unknown = parts
    model = Classifier(hidden=(128,), epochs=200, random_state=seed, dtype="float64").fit(learning, known)
    return "digits with noise", model.decision_function(others), np.asarray(unknown, np.int64)
