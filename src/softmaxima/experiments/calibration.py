"""Whether the probabilities of a table of scores mean what they say, before and after calibration, on held-out rows.

The rows are cut into folds. Each fold in turn is held out: what calibrates it was fitted to the others, so that every row is held
out once, and what is measured of all rows together is that of rows that nothing was fitted to. What is given out is fitted to all.

A difference is the mean over rows of what each gains, in the order of a draw. Its interval is that of the means of up to 16 batches
of them, each row counting as independent of the others, for log loss and Brier score together. The calibration error is no mean
over rows, and few rows bias it upwards: nothing is claimed of it.
"""

from __future__ import annotations

import datetime
import json
import math
import platform
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from sklearn.model_selection import KFold, StratifiedKFold
from torch import Tensor

from softmaxima.bench.machine import installed
from softmaxima.core.numbers import InputError, check_count
from softmaxima.core.writing import finite
from softmaxima.experiments.differences import Difference, interval_of, means_of_batches, of_mean
from softmaxima.experiments.encoding import digest
from softmaxima.experiments.measures import METRICS, Metric
from softmaxima.experiments.reading import NUMBERED
from softmaxima.experiments.suspicions import Doubt
from softmaxima.experiments.tables import read_table
from softmaxima.experiments.verdicts import interval
from softmaxima.experiments.wording import listed, named, rows, sentence
from softmaxima.temperature.calibration import Calibration, TemperatureCalibration, calibrate_safely, check_penalty
from softmaxima.temperature.reliability import Reliability, RowMeasures

EXPERIMENT = "calibrate"
EPS = float(np.finfo(np.float64).eps)
CLAIMED: tuple[Metric, ...] = tuple(
    replace(METRICS[name], most_gain=most) for name, most in (("log-loss", math.inf), ("brier", 2.0))
)
NAMES = {"temperature": "temperature", "per_class": "a temperature a class", "vector": "vector scaling", "matrix": "matrix scaling"}
LEAST_FACTOR = 1.1  # of τ, that folds may differ by before that is worth a word


@dataclass(frozen=True, eq=False)
class Scores:
    """A score of each class for rows whose class is known."""

    name: str
    target: str
    classes: tuple[str, ...]
    x: np.ndarray  # [rows, classes] float64
    labels: np.ndarray  # [rows] int64
    notes: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Settings:
    """What is asked for."""

    method: str = "temperature"
    folds: int = 5
    penalty: float | None = None
    probabilities: bool = False
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Calibrated:
    """What calibration did."""

    scores: Scores
    settings: Settings
    before: Reliability
    after: Reliability
    gains: dict[str, Difference]  # of each metric in CLAIMED
    calibration: Calibration  # fitted to all rows
    note: str  # what was done where no fit was best
    temperatures: tuple[float, ...]  # of each fold, with method "temperature"
    versions: dict[str, str]
    date: str
    command: str

    @property
    def changed(self) -> Difference:
        return self.gains[CLAIMED[0].name]

    @property
    def is_even(self) -> bool:
        """Whether all classes get the same probability."""
        return isinstance(self.calibration, TemperatureCalibration) and math.isinf(self.calibration.temperature)

    @property
    def headline(self) -> str:
        """What to do, in a sentence without its stop."""
        if not self.changed.better:
            return "Leave the scores as they are"
        if self.is_even:
            return "Give every class the same probability"
        if isinstance(self.calibration, TemperatureCalibration):
            return f"Divide the scores by τ = {self.calibration.temperature:.4g}"
        return f"Take {NAMES[self.settings.method]}, whose numbers are in results.json"

    @property
    def reason(self) -> str:
        metric, gain = CLAIMED[0], self.changed
        told = interval(gain, metric)
        if gain.better:
            words = f"On held-out rows the log loss falls by {told}: from {self.before.log_loss:.3f} to {self.after.log_loss:.3f}."
        elif gain.worse:
            words = f"On held-out rows calibration makes the log loss worse by {told}."
        else:
            words = f"On held-out rows the log loss with calibration cannot be told from that without: better by {told}."
        return words

    @property
    def code(self) -> str:
        """What makes calibrated probabilities, where it fits in a line."""
        if not self.changed.better or self.is_even or not isinstance(self.calibration, TemperatureCalibration):
            return ""
        given = "np.log(probabilities)" if self.settings.probabilities else "scores"
        return f"probabilities = sm.softmax({given}, temperature={self.calibration.temperature:.6g})"

    @property
    def reservations(self) -> tuple[str, ...]:
        found, told = [sentence(self.note)] if self.note else [], []
        finite = sorted(filter(math.isfinite, self.temperatures))
        if finite and finite[-1] > LEAST_FACTOR * finite[0]:
            told.append(f"{finite[0]:.3g} to {finite[-1]:.3g}")
        if infinite := len(self.temperatures) - len(finite):
            told.append(f"∞ in {infinite} of {len(self.temperatures)}")
        if told:
            found.append(f"The temperatures of the folds are {listed(told)}: more rows would tell better.")
        return tuple(found)


def read_scores(
    path: Path, target: str | None = None, without: Sequence[str] = (), absent: Sequence[str] = (), probabilities: bool = False
) -> Scores:
    """The scores in a table whose columns have the names of the classes in its target; those in `absent` have no rows.

    Raises:
        InputError: where columns and classes do not fit together, or a probability is none.
    """
    table = read_table(path, target, without)
    if table.encoder is None:
        raise TypeError("a table that is read has an encoder")
    if texts := [column.name for column in table.encoder.columns if column.kind != "number"]:
        raise InputError(
            f"{path.name}: scores are numbers, and {named(map(repr, texts))} are none; leave columns out with --without"
        )
    columns, classes = [column.name for column in table.encoder.columns], list(table.classes)
    if all(NUMBERED.fullmatch(name) for name in columns) and len(columns) == len(classes):
        columns = classes  # an array's, in the order of the classes
    if missing := [name for name in classes if name not in columns]:
        raise InputError(
            f"{path.name}: the target {table.target!r} has classes without a column of scores: {named(map(repr, missing))}; the "
            f"columns are {named(map(repr, columns))}"
        )
    if unknown := [name for name in absent if name not in columns]:
        raise InputError(f"--absent: there is no column {named(map(repr, unknown))}; choose among: {named(map(repr, columns))}")
    if stray := [name for name in columns if name not in {*classes, *absent}]:
        raise InputError(
            f"{path.name}: columns {named(map(repr, stray))} have the name of no class in {table.target!r}; leave them out with "
            "--without, or name them in --absent where they are classes that no row has"
        )
    places = np.array([columns.index(name) for name in classes])
    x, notes = table.features, [note for note in table.notes if not isinstance(note, Doubt)]
    if probabilities:
        x, told = _logarithms(path.name, x)
        notes += told
    elif bool((x >= 0).all()) and bool((np.abs(x.sum(-1) - 1) < 0.01).all()):
        notes.append("the scores of each row sum to 1, as probabilities do; --probabilities takes them as such")
    return Scores(path.name, table.target, tuple(columns), x, places[table.labels], tuple(notes))


def _logarithms(name: str, p: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """log p, a 0 counting as half the least positive number."""
    if not bool(((p >= 0) & (p <= 1)).all()):
        wrong = p[(p < 0) | (p > 1)][0]
        raise InputError(f"{name}: --probabilities takes numbers between 0 and 1, got {wrong:g}; leave it out for logits")
    if not bool(p.any(-1).all()):
        raise InputError(f"{name}: a row has probabilities of 0 alone; leave such rows out")
    if not (zeros := int((p == 0).sum())):
        return np.log(p), []
    floor = max(EPS, float(p[p > 0].min()) / 2)
    return np.log(np.maximum(p, floor)), [f"{rows(zeros, 'number')} of 0 counted as {floor:.2g}, or the log loss may be infinite"]


def check_options(settings: Settings) -> None:
    """Raise `InputError` for what no table can be used with, before it is read."""
    check_count(EXPERIMENT, "folds", settings.folds, 2)
    check_penalty(EXPERIMENT, settings.method, settings.penalty)


def check_rows(scores: Scores, settings: Settings) -> None:
    """Raise `InputError` for a table that nothing can be learnt from, before any work."""
    if scores.rows < 2 * settings.folds:
        raise InputError(
            f"{scores.name}: {settings.folds} folds, each held out once, need {2 * settings.folds} rows, got {scores.rows}; "
            "add rows, or take fewer --folds"
        )
    if bool((scores.x == scores.x[:, :1]).all()):
        raise InputError(f"{scores.name}: the scores of each row are equal, which no calibration changes; give other columns")


def calibrated(
    scores: Scores, settings: Settings, advanced: Callable[[int], None] = lambda folds: None, command: str | None = None
) -> Calibrated:
    """Fit to all folds but one, and measure on that; then fit to all."""
    check_options(settings)
    check_rows(scores, settings)
    x, labels = torch.from_numpy(scores.x), torch.from_numpy(scores.labels)
    found, temperatures = torch.empty_like(x), []
    for learning, held_out in _splits(scores, settings):
        fitted, _ = calibrate_safely(x[learning], labels[learning], settings.method, penalty=settings.penalty)
        if isinstance(fitted, TemperatureCalibration):
            temperatures.append(fitted.temperature)
        found[held_out] = _log_probabilities(fitted, x[held_out])
        advanced(1)
    before, after = (_measures(log_p, labels) for log_p in (x.log_softmax(-1), found))
    order = torch.from_numpy(np.random.default_rng(settings.seed).permutation(scores.rows))
    gains = {}
    for metric in CLAIMED:
        gained = (getattr(before, metric.attribute) - getattr(after, metric.attribute))[order]
        batches = means_of_batches(gained.numpy())
        gains[metric.name] = interval_of(batches, [of_mean(batches)], metric, len(CLAIMED), scores.rows, not bool(gained.any()))
    calibration, note = calibrate_safely(x, labels, settings.method, penalty=settings.penalty)
    return Calibrated(
        scores,
        settings,
        before.reliability(),
        after.reliability(),
        gains,
        calibration,
        note,
        tuple(temperatures),
        installed("softmaxima", "torch", "numpy", "scikit-learn") | {"python": platform.python_version()},
        datetime.date.today().isoformat(),
        shlex.join(["softmaxima", *sys.argv[1:]]) if command is None else command,
    )


def _splits(scores: Scores, settings: Settings) -> Any:
    """Rows to fit to and rows held out; the classes in proportion where each has a row in every fold."""
    sizes = np.bincount(scores.labels)
    kind = StratifiedKFold if sizes[sizes > 0].min() >= settings.folds else KFold
    return kind(settings.folds, shuffle=True, random_state=settings.seed).split(scores.x, scores.labels)


def _log_probabilities(calibration: Calibration, x: Tensor) -> Tensor:
    """Whose least are not lost, as those of p would be."""
    if isinstance(calibration, TemperatureCalibration):
        return (x / calibration.temperature).log_softmax(-1)
    return calibration.scores(x).log_softmax(-1)


def _measures(log_p: Tensor, labels: Tensor) -> RowMeasures:
    return RowMeasures.of(log_p.exp(), log_p.gather(-1, labels[:, None]).squeeze(-1), labels)


def as_json(result: Calibrated) -> dict[str, Any]:
    """Everything; a number that is not finite becomes null."""
    scores, fitted = result.scores, result.calibration
    numbers: dict[str, Any] = {
        "method": result.settings.method,
        "label_smoothing": fitted.label_smoothing,
        "note": result.note or None,
    }
    if isinstance(fitted, TemperatureCalibration):
        numbers |= {"temperature": fitted.temperature}
    else:
        numbers |= {"factors": fitted.factors.tolist(), "bias": None if fitted.bias is None else fitted.bias.tolist()}
    sizes = np.bincount(scores.labels, minlength=len(scores.classes)).tolist()
    return finite(
        {
            "experiment": EXPERIMENT,
            "versions": result.versions,
            "settings": asdict(result.settings),
            "table": {
                "name": scores.name,
                "rows": scores.rows,
                "target": scores.target,
                "classes": list(zip(scores.classes, sizes, strict=True)),
                "notes": list(scores.notes),
                "digest": digest(scores.x, scores.labels),
            },
            "date": result.date,
            "command": result.command,
            "recommendation": {"headline": result.headline, "reason": result.reason, "code": result.code or None},
            "calibration": numbers,
            "temperatures": list(result.temperatures),
            "before": asdict(result.before),
            "after": asdict(result.after),
            "gains": {name: asdict(gain) for name, gain in result.gains.items()},
        }
    )


def as_text(result: Calibrated) -> str:
    """The JSON as it is written."""
    return json.dumps(as_json(result), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


# Beside others ------------------------------------------------------------------------------------------------------------


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
    """Temperature scaling of softmaxima, of scikit-learn and, where it is installed, of netcal, on the same rows.

    Logits: of an overfitted network on the digits, and drawn ones whose temperature is known. Half the rows are fitted to.
    """
    found = []
    for data, x, labels in datasets(seed):
        half = len(x) // 2
        target = torch.from_numpy(labels[half:])
        for name, fit in _peers().items():
            seconds = []
            for _ in range(repeats):
                start = time.perf_counter()
                fit(x[:half], labels[:half])
                seconds.append(time.perf_counter() - start)
            predict, temperature = fit(x[:half], labels[:half])
            p = torch.from_numpy(np.asarray(predict(x[half:]), np.float64))
            log_p = p.gather(-1, target[:, None]).squeeze(-1).log()
            measured = RowMeasures.of(p, log_p, target).reliability()
            found.append(Peer(data, half, x.shape[-1], name, temperature, measured, median(seconds)))
    return tuple(found)


def datasets(seed: int) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Names, logits and labels."""
    return [_of_digits(seed), *(_drawn(seed, rows, classes) for rows, classes in ((10_000, 10), (4_000, 100), (100_000, 10)))]


Fit = Callable[[np.ndarray, np.ndarray], tuple[Callable[[np.ndarray], Any], float | None]]


def _peers() -> dict[str, Fit]:
    """What each does with logits."""
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.frozen import FrozenEstimator

    def ours(method: str) -> Fit:
        def fit(x: np.ndarray, labels: np.ndarray) -> tuple[Callable[[np.ndarray], Any], float | None]:
            found, _ = calibrate_safely(x, labels, method)
            return found, found.temperature if isinstance(found, TemperatureCalibration) else None

        return fit

    def theirs(x: np.ndarray, labels: np.ndarray) -> tuple[Callable[[np.ndarray], Any], float | None]:
        logits = FrozenEstimator(_Logits(np.arange(x.shape[-1])))
        model: Any = CalibratedClassifierCV(logits, method="temperature").fit(x, labels)
        return model.predict_proba, 1 / float(model.calibrated_classifiers_[0].calibrators[0].beta_)

    def plain(x: np.ndarray, labels: np.ndarray) -> tuple[Callable[[np.ndarray], Any], float | None]:
        return lambda x: torch.from_numpy(x).softmax(-1).numpy(), 1.0

    found: dict[str, Fit] = {"none": plain, "softmaxima": ours("temperature"), "scikit-learn": theirs}
    try:
        from netcal.scaling import TemperatureScaling  # type: ignore[import-not-found]
    except ImportError:
        pass
    else:

        def netcals(x: np.ndarray, labels: np.ndarray) -> tuple[Callable[[np.ndarray], Any], float | None]:
            model = TemperatureScaling()
            model.fit(_softmax(x), labels)
            return lambda x: model.transform(_softmax(x)), 1 / float(np.ravel(model.temperature)[0])

        found["netcal"] = netcals
    return found | {f"softmaxima, {method}": ours(method) for method in ("per_class", "vector", "matrix")}


class _Logits:
    """A classifier of scikit-learn whose features are its scores."""

    _estimator_type = "classifier"

    def __init__(self, classes: np.ndarray) -> None:
        self.classes_ = classes
        self.n_features_in_ = len(classes)

    def fit(self, x: np.ndarray, y: np.ndarray) -> _Logits:
        return self

    def decision_function(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(x)

    def predict(self, x: np.ndarray) -> np.ndarray:
        return self.classes_[np.argmax(x, -1)]

    def __sklearn_tags__(self) -> Any:
        from sklearn.base import BaseEstimator, ClassifierMixin

        return type("Tagged", (ClassifierMixin, BaseEstimator), {})().__sklearn_tags__()


def _softmax(x: np.ndarray) -> np.ndarray:
    return torch.from_numpy(x).softmax(-1).numpy()


def _drawn(seed: int, count: int, classes: int, temperature: float = 3.0) -> tuple[str, np.ndarray, np.ndarray]:
    """Logits that are three times what the classes are drawn with."""
    random = np.random.default_rng(seed)
    x = 2 * random.standard_normal((count, classes))
    labels = np.argmax(x + random.gumbel(size=x.shape), -1)
    return f"drawn, τ = {temperature:g}", temperature * x, labels


def _of_digits(seed: int) -> tuple[str, np.ndarray, np.ndarray]:
    """Logits of a network on the digits with noise that it has learnt 300 of by heart, for the others."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    from softmaxima.integrations.classifier import Classifier

    pixels, labels = map(np.asarray, load_digits(return_X_y=True))
    noisy = pixels + 6 * np.random.default_rng(seed).standard_normal(pixels.shape)
    parts = train_test_split(noisy, labels, train_size=300, random_state=seed, stratify=labels)
    learning, others, known, unknown = parts
    model = Classifier(hidden=(128,), epochs=200, random_state=seed, dtype="float64").fit(learning, known)
    return "digits with noise", model.decision_function(others), np.asarray(unknown, np.int64)
