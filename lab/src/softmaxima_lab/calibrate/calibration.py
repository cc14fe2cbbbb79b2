"""Whether the probabilities of a table of scores mean what they say, before and after calibration, on held-out rows.

The rows are cut into folds. Each fold in turn is held out: what calibrates it was fitted to the others, so that every row is held
out once, and what is measured of all rows together is that of rows that nothing was fitted to. What is given out is fitted to all.

A difference is the mean over rows of what each gains, with Student's interval, each row counting as independent of the others, for
log loss and Brier score together. Where few rows are called a wrong class those that are right may all gain alike, and the interval
would be none. So it is widened to hold the mean for the largest share of errors that so few leave possible, by Clopper and Pearson:
each error more takes a row that is right, by the chance that it is not, and gives it the likeliest other class. The calibration
error is no mean over rows, and few rows bias it upwards: nothing is claimed of it.

What calibrates a fold was fitted to the rows of the others, so that gains are not independent: with ℓ the log loss of a row, which
is fitted, m what is measured and K folds, the mean has besides the variance of gains that of what rows do to each other,

    K/(K − 1) tr(Σ ∇m ∇mᵀ (Σ ∇ℓ ∇ℓᵀ)⁻¹)/n²,    slopes by the numbers that are fitted,

for log loss K/(K − 1) of these numbers over n². It counts where scores need no calibration, and gains are as small.

A temperature makes the log loss of any scores less, of shuffled ones too. So what is calibrated must tell more than how frequent
each class is, and the score of no class may stand in another's column.
"""

from __future__ import annotations

import datetime
import json
import math
import platform
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import torch
from scipy.special import ndtri
from sklearn.model_selection import KFold, StratifiedKFold
from torch import Tensor

from softmaxima.base.numbers import InputError, check_count, check_int
from softmaxima.base.writing import finite
from softmaxima.temperature._scaling import centred
from softmaxima.temperature.calibration import METHODS, Calibration, calibrate_safely, check_penalty
from softmaxima.temperature.reliability import Reliability, RowMeasures
from softmaxima_lab.bench.machine import installed
from softmaxima_lab.calibrate.calibration_scores import Scores
from softmaxima_lab.compare.differences import Difference, Spread, interval_of, unseen, widened
from softmaxima_lab.compare.measures import METRICS, Metric
from softmaxima_lab.compare.verdicts import Words, by_how_much, sight
from softmaxima_lab.tables.encoding import digest
from softmaxima_lab.wording import listed, sentence

EXPERIMENT = "calibrate"
CLAIMED: tuple[Metric, ...] = tuple(
    replace(METRICS[name], most_gain=most) for name, most in (("log-loss", math.inf), ("brier", 2.0))
)
WORDS = Words("calibration", "calibrations", "on held-out rows", "over rows")
MOST_NATS = 1e6  # that a row may cost, where its class has a score of less than another
MOST_SCORE = 1e100  # by which its class may be above others, as where those are masked; its square is a number
LEAST_ROWS = 10  # of a class that is looked at for swapped columns
FALSE_ALARM = 1e-3
MOST_SLOPES = 2**24  # of rows by a matrix, which are held at once
MOST_CLASSES = 30  # of a matrix, whose slopes have a square matrix to invert
LEAST_FACTOR = 1.1  # of τ, that folds may differ by before that is worth a word


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
    informed: Difference  # how much better the log loss is, calibrated, than that of the frequencies of the classes
    crossed: tuple[tuple[str, str], ...]  # classes whose scores tell each other apart the wrong way round
    calibration: Calibration  # fitted to all rows
    note: str  # what was done where no fit was best
    temperatures: tuple[float, ...]  # of each fold that has one
    versions: dict[str, str]
    date: str
    command: str

    @property
    def changed(self) -> Difference:
        return self.gains[CLAIMED[0].name]

    @property
    def is_even(self) -> bool:
        """Whether all classes get the same probability."""
        return self.calibration.temperature == math.inf

    @property
    def is_doubtful(self) -> bool:
        """Whether what a calibration gains may come of scores that are no logits, or not those of the classes."""
        return bool(self.scores.sum or self.crossed) or (self.changed.better and not self.informed.better)

    @property
    def headline(self) -> str:
        """What to do, in a sentence without its stop."""
        if self.scores.sum:
            return "Look first whether the scores are probabilities"
        if self.is_doubtful:
            return "Look first whether the columns and the labels are in one order"
        if not self.changed.better:
            return "Leave the scores as they are"
        if self.is_even:
            return "Give every class the same probability"
        if self.calibration.temperature is None:
            return f"Take {METHODS[self.settings.method].words}, whose numbers are in results.json"
        return f"Divide the scores by τ = {self.calibration.temperature:.4g}"

    @property
    def reason(self) -> str:
        gain, told = self.changed, by_how_much(self.changed, CLAIMED[0])
        if gain.better or gain.worse:
            change = f"from {self.before.log_loss:.3f} to {self.after.log_loss:.3f}"
            words = f"On held-out rows the log loss with calibration is {told}: {change}."
        else:
            seen = sight(self.before.log_loss, {"": gain}, CLAIMED[0], WORDS)
            least = f"; {seen.told}" if seen else ""
            words = f"On held-out rows the log loss with calibration cannot be told from that without: {told}{least}."
        return " ".join((*self._doubts(), words))

    def _doubts(self) -> list[str]:
        found = [
            f"In rows of {first!r} and of {second!r} the scores of these two classes tell them apart the wrong way round."
            for first, second in self.crossed
        ]
        if self.scores.sum:
            repair = "take them as such with" if self.scores.sum == 1 else "divide them by 100, and give"
            found.append(f"The scores of each row sum to {self.scores.sum}, as probabilities do; {repair} --probabilities.")
        if not self.informed.better:
            told = by_how_much(self.informed, CLAIMED[0])
            found.append(f"Calibrated, the scores are not shown to tell more than how frequent each class is: {told}.")
        return found

    @property
    def code(self) -> str:
        """What makes calibrated probabilities, where it fits in a line."""
        if self.is_doubtful or not self.changed.better or self.is_even or self.calibration.temperature is None:
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


def check_options(settings: Settings) -> None:
    """Raise `InputError` for what no table can be used with, before it is read."""
    check_count(EXPERIMENT, "folds", settings.folds, 2)
    check_int(EXPERIMENT, "seed", settings.seed, lambda seed: 0 <= seed < 2**32, "an int from 0 to 4294967295")
    check_penalty(EXPERIMENT, settings.method, settings.penalty)


def check_rows(scores: Scores, settings: Settings) -> None:
    """Raise `InputError` for a table that nothing can be learnt from, before any work."""
    if scores.rows < 2 * settings.folds:
        raise InputError(
            f"{scores.name}: {settings.folds} folds, each held out once, need {2 * settings.folds} rows, got {scores.rows}; "
            "add rows, or take fewer --folds"
        )
    over = scores.x - np.take_along_axis(scores.x, scores.labels[:, None], -1)
    if bool((far := (over > MOST_NATS) | (over < -MOST_SCORE)).any()):
        row, column = np.argwhere(far)[0]
        own, other = (repr(scores.classes[c]) for c in (scores.labels[row], column))
        raise InputError(
            f"{scores.name}: in {scores.where(int(row))} the score of its class {own} is that of {other} "
            f"{-over[row, column]:+.3g}, as of no classifier; repair it, or leave the row out"
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
    found, frequencies, temperatures = torch.empty_like(x), torch.empty_like(x), []
    for learning, held_out in _splits(scores, settings):
        fitted, _ = calibrate_safely(x[learning], labels[learning], settings.method, penalty=settings.penalty)
        if fitted.temperature is not None:
            temperatures.append(fitted.temperature)
        found[held_out] = fitted.scores(x[held_out]).log_softmax(-1)
        counts = labels[learning].bincount(minlength=x.shape[-1]).double() + 1
        frequencies[held_out] = (counts / counts.sum()).log()
        advanced(1)
    of_each = x.log_softmax(-1), found, frequencies
    before, after, without = (RowMeasures.of_log(log_p, labels) for log_p in of_each)
    # what each row would be of the likeliest class that is not its own
    before_wrong, after_wrong, without_wrong = (RowMeasures.of_log(log_p, _likeliest_other(found, labels)) for log_p in of_each)

    through_the_fit = _through_the_fit(x, found, labels, settings)

    def gain(metric: Metric, other: RowMeasures, other_wrong: RowMeasures) -> Difference:
        gained, wrong = (
            getattr(one, metric.attribute) - getattr(calibrated, metric.attribute)
            for one, calibrated in ((other, after), (other_wrong, after_wrong))
        )
        spread = Spread(float(gained.var()) / scores.rows + through_the_fit[metric.attribute], scores.rows - 1)
        same = not bool(gained.any())
        difference = interval_of(gained.tolist(), [spread], metric, len(CLAIMED), scores.rows, same)
        return widened(difference, difference.mean + _by_errors_to_come(after, wrong - gained), metric)

    calibration, note = calibrate_safely(x, labels, settings.method, penalty=settings.penalty)
    return Calibrated(
        scores,
        settings,
        before.reliability(),
        after.reliability(),
        {metric.name: gain(metric, before, before_wrong) for metric in CLAIMED},
        gain(CLAIMED[0], without, without_wrong),
        crossed_classes(scores),
        calibration,
        note,
        tuple(temperatures),
        installed("softmaxima", "torch", "numpy", "scikit-learn") | {"python": platform.python_version()},
        datetime.date.today().isoformat(),
        shlex.join(["softmaxima", *sys.argv[1:]]) if command is None else command,
    )


def _through_the_fit(x: Tensor, log_p: Tensor, labels: Tensor, settings: Settings) -> dict[str, float]:
    """The variance of the means of what is measured that comes of what was fitted to other rows."""
    logits, p, count = centred(x, x > -math.inf), log_p.exp(), len(labels)
    error = p.scatter_add(-1, labels[:, None], torch.full_like(p[:, :1], -1.0))
    of_scores = {"log_loss": error, "brier": 2 * p * (error - (p * error).sum(-1, keepdim=True))}
    slopes = {name: _slopes(settings.method, logits, slope) for name, slope in of_scores.items()}
    size = slopes["log_loss"].norm(dim=0)
    scaled = {name: slope / torch.where(size > 0, size, 1.0) for name, slope in slopes.items()}
    of_fit = torch.linalg.pinv(scaled["log_loss"].mT @ scaled["log_loss"], rtol=1e-10, hermitian=True)
    more = settings.folds / (settings.folds - 1) / count**2
    return {name: more * float(((slope @ of_fit) * slope).sum()) for name, slope in scaled.items()}


def _slopes(method: str, x: Tensor, of_scores: Tensor) -> Tensor:
    """[rows, numbers] the slopes by what a method fits, of those by its scores; by a matrix too large to hold, of its diagonal."""
    if METHODS[method].is_one_number:
        return (of_scores * x).sum(-1, keepdim=True)
    if method == "matrix" and x.shape[-1] <= MOST_CLASSES and x.numel() * x.shape[-1] <= MOST_SLOPES:
        by_factors = (of_scores.unsqueeze(-1) * x.unsqueeze(-2)).flatten(1)
    else:
        by_factors = of_scores * x
    return by_factors if method == "per_class" else torch.cat((by_factors, of_scores), -1)


def _likeliest_other(log_p: Tensor, labels: Tensor) -> Tensor:
    """[rows] the most probable class of each row besides its own."""
    return log_p.scatter(-1, labels[:, None], -math.inf).argmax(-1)


def _by_errors_to_come(measures: RowMeasures, change: Tensor) -> float:
    """How far the mean lies from that of the rows with as many errors as may be, at the level of one end of an interval.

    `change` [rows] is by what the gain of each would change, were it of the likeliest class that is not its own.
    """
    right, count = measures.hits, len(measures.hits)
    errors = count - int(right.sum())
    weight = right * (1 - measures.confidence)
    if not bool(weight.any()):
        return 0.0
    return (unseen(count, 2 * len(CLAIMED), errors) - errors / count) * float((weight * change).sum() / weight.sum())


def crossed_classes(scores: Scores) -> tuple[tuple[str, str], ...]:
    """Pairs of classes whose scores differ less in the one's favour in its own rows than in the other's: columns that are swapped.

    By Welch's t, of all pairs together with a false alarm in a thousand where scores tell nothing.
    """
    of_class = [scores.x[scores.labels == c] for c in range(len(scores.classes))]
    pairs = list(combinations([c for c, x in enumerate(of_class) if len(x) >= LEAST_ROWS], 2))
    bound = ndtri(FALSE_ALARM / max(1, len(pairs)))
    found = []
    for first, second in pairs:
        own, others = (of_class[c][:, first] - of_class[c][:, second] for c in (first, second))
        error = math.sqrt(own.var(ddof=1) / len(own) + others.var(ddof=1) / len(others))
        if own.mean() - others.mean() < bound * error:
            found.append((scores.classes[first], scores.classes[second]))
    return tuple(found)


def _splits(scores: Scores, settings: Settings) -> Any:
    """Rows to fit to and rows held out; the classes in proportion where each has a row in every fold."""
    sizes = np.bincount(scores.labels)
    kind = StratifiedKFold if sizes[sizes > 0].min() >= settings.folds else KFold
    return kind(settings.folds, shuffle=True, random_state=settings.seed).split(scores.x, scores.labels)


def as_json(result: Calibrated) -> dict[str, Any]:
    """Everything; a number that is not finite becomes null."""
    scores, fitted = result.scores, result.calibration
    made = {"method": result.settings.method, "label_smoothing": fitted.label_smoothing, "note": result.note or None}
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
            "calibration": made | fitted.numbers(),
            "temperatures": list(result.temperatures),
            "before": asdict(result.before),
            "after": asdict(result.after),
            "gains": {name: asdict(gain) for name, gain in result.gains.items()},
            "better than frequencies": asdict(result.informed),
            "swapped": [list(pair) for pair in result.crossed],
        }
    )


def as_text(result: Calibrated) -> str:
    """The JSON as it is written."""
    return json.dumps(as_json(result), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
