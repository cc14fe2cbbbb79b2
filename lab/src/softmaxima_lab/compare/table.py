"""compare table: the same classifier trained with every pair of a map and a loss, and which pair to take.

For every pair the folds, the initial weights, the order of the batches and the optimiser are the same, so that what differs comes
from the pair; beside them stands a baseline that gives every row the frequencies of the classes. `measures` says what is measured,
`recommendation` what may be said of differences.
"""

from __future__ import annotations

import datetime
import math
import platform
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from statistics import median, median_low
from typing import Literal

import numpy as np
import torch
from sklearn.model_selection import RepeatedStratifiedKFold, train_test_split

from softmaxima.base.numbers import InputError
from softmaxima.integrations.classifier import Classifier, Prepared, usual_epochs, usual_rate
from softmaxima.integrations.pairs import Pair, pairs
from softmaxima_lab.bench.machine import installed
from softmaxima_lab.compare.differences import Difference
from softmaxima_lab.compare.fold_differences import difference
from softmaxima_lab.compare.measures import METRICS, Fold, Metric, Result, RowScores, evaluate
from softmaxima_lab.compare.recommendation import Recommendation, learnt, proving, recommend
from softmaxima_lab.compare.settings import check_counts, check_seed
from softmaxima_lab.compare.turns import one_thread, rotated
from softmaxima_lab.tables.tables import Table, check_folds

BATCH = 128
HIDDEN = 128
RATES = (1 / 3, 1.0, 10 / 3, 10.0)  # of the usual learning rate: what --tune tries
TUNING_SHARE = 0.25  # of the training rows, which judge them
LEAST_SECONDS, TIMED = 0.3, 5  # by which the time is estimated, in so many steps of each pair at a time
TURN = 10  # steps of one pair before it is the next one's turn
ROUNDINGS = 1e-3  # what they make of a training
BASELINE = "class frequencies"
REFERENCE = "softmax"

Folds = Sequence[Mapping[str, Fold]]  # of each split, what each pair reached


@dataclass(frozen=True)
class Settings:
    """How to train. `rows` is the most rows to take, the classes in proportion."""

    model: Literal["linear", "mlp"] = "mlp"
    folds: int = 5
    repeats: int = 2
    epochs: int = 30
    metric: str = "accuracy"
    tune: bool = False
    missing: Literal["refuse", "impute"] = "refuse"
    seed: int = 0
    rows: int | None = None

    def __post_init__(self) -> None:
        for option, value, offered in (("--model", self.model, ("linear", "mlp")), ("--metric", self.metric, tuple(METRICS))):
            if value not in offered:
                raise InputError(f"{option} must be one of {', '.join(offered)}, got {value!r}")
        check_counts((("--folds", self.folds, 2), ("--repeats", self.repeats, 1), ("--epochs", self.epochs, 1)))
        check_seed(self.seed)

    @property
    def splits(self) -> int:
        """How often every pair is trained and tested."""
        return self.folds * self.repeats

    @property
    def rate(self) -> float:
        """The learning rate without --tune."""
        return usual_rate(self.hidden)

    @property
    def rates(self) -> tuple[float, ...]:
        """Those that --tune tries."""
        return tuple(float(f"{self.rate * factor:.1g}") for factor in RATES)

    @property
    def hidden(self) -> tuple[int, ...]:
        return () if self.model == "linear" else (HIDDEN,)


def epochs_for(rows: int, folds: int, quick: bool = False) -> int:
    """30, or 10 for a quick look, and more where those would be too few steps to train anything: on a small table."""
    return usual_epochs(training_rows(rows, folds), BATCH, *((10, 60) if quick else ()))


def training_rows(rows: int, folds: int) -> int:
    """About how many of so many rows a fold trains on."""
    return max(1, math.floor(rows * (folds - 1) / folds))


@dataclass(frozen=True)
class Facts:
    """What the table is."""

    name: str
    rows: int  # that took part
    rows_in_table: int
    features: int
    target: str
    target_by_default: bool
    classes: tuple[tuple[str, int], ...]  # each with its rows
    notes: tuple[str, ...]  # how the file was read, and what looks odd in it
    digest: str  # of the numbers


@dataclass(frozen=True)
class Comparison:
    """Everything that a comparison found, the best pair first."""

    settings: Settings
    facts: Facts
    results: tuple[Result, ...]
    recommendation: Recommendation
    versions: Mapping[str, str]
    folds: Folds  # that are done
    date: str
    command: str = ""  # that began it

    @property
    def partial(self) -> bool:
        return len(self.folds) < self.settings.splits

    def of(self, name: str) -> Result:
        """The result of that name, which may be one of several pairs that predicted the same."""
        return next(result for result in self.results if name in (result.name, *result.twins))

    @property
    def softmax(self) -> Result:
        return self.of(REFERENCE)

    @property
    def baseline(self) -> Result:
        return self.of(BASELINE)

    @property
    def others(self) -> tuple[Result, ...]:
        """What is compared with softmax."""
        return tuple(result for result in self.results if result not in (self.softmax, self.baseline))

    @property
    def metric(self) -> Metric:
        return METRICS[self.settings.metric]

    @cached_property
    def unlearnt(self) -> tuple[Result, ...]:
        """The pairs that are not known to be better than the baseline, by what tells."""
        trained = [self.softmax, *self.others]
        known = learnt(trained, self.baseline, proving(self.metric), self.settings.folds)
        names = {result.name for found in known.values() for result in found}
        return tuple(result for result in self.results if result.name not in names and result is not self.baseline)

    @property
    def taken(self) -> Result | None:
        """The result of the pair that is recommended."""
        pair = self.recommendation.pair
        return None if pair is None else self.of(pair.name)

    def gain(self, result: Result, metric: Metric | None = None) -> Difference:
        """How much better a result is than softmax, by the metric that was asked for or another."""
        return difference(result, self.softmax, metric or self.metric, self.settings.folds, len(self.others))


# The experiment -----------------------------------------------------------------------------------------------------------


def compare(
    table: Table,
    settings: Settings,
    chosen: Sequence[Pair] | None = None,
    advanced: Callable[[int], None] = lambda steps: None,
) -> Comparison:
    """Train every chosen pair (default: all), and softmax, on every fold. `advanced(steps)` is called after steps of training.

    The same seed gives the same results, times aside, whatever the caller's random state.
    """
    check_classes(table, settings)
    table = sampled(table, settings)
    return summary(table, settings, list(trained_folds(table, settings, chosen, advanced=advanced)), chosen)


def compared(table: Table, chosen: Sequence[Pair] | None = None) -> tuple[Pair, ...]:
    """The chosen pairs (default: all), and softmax, which the others are compared with."""
    offered = pairs(len(table.classes))
    softmax = next(pair for pair in offered if pair.name == REFERENCE)
    chosen = offered if chosen is None else tuple(chosen)
    return chosen if softmax in chosen else (softmax, *chosen)


def trained_folds(
    table: Table,
    settings: Settings,
    chosen: Sequence[Pair] | None = None,
    start: int = 0,
    advanced: Callable[[int], None] = lambda steps: None,
) -> Generator[dict[str, Fold], None, None]:
    """What every pair reached in each fold of a table as `sampled` gives it, from the fold of number `start` on."""
    features, labels = table.features, table.labels
    for number, (training, held_out) in enumerate(_splits(table, settings, start), start):
        with one_thread():
            yield _fold(settings, compared(table, chosen), features, labels, training, held_out, _seed(settings, number), advanced)


def _splits(table: Table, settings: Settings, start: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The rows to train on and those held out, of each fold from the one of number `start` on."""
    splitter = RepeatedStratifiedKFold(n_splits=settings.folds, n_repeats=settings.repeats, random_state=settings.seed)
    return islice(splitter.split(table.features, table.labels), start, None)


def _fold(
    settings: Settings,
    chosen: Sequence[Pair],
    features: np.ndarray,
    labels: np.ndarray,
    training: np.ndarray,
    held_out: np.ndarray,
    seed: int,
    advanced: Callable[[int], None],
) -> dict[str, Fold]:
    """What every pair reached on the rows held out."""
    first = _classifier(settings, chosen[0], seed)
    prepared = first.prepare(features[training], labels[training])
    rates = [_tuned(settings, pair, seed, first, prepared, advanced) if settings.tune else None for pair in chosen]
    classifiers = [_classifier(settings, pair, seed, rate).share(first) for pair, rate in zip(chosen, rates, strict=True)]
    seconds = _train_in_turns(classifiers, prepared, advanced)
    target = torch.from_numpy(labels[held_out])
    frequencies = torch.from_numpy(np.bincount(labels[training]) / len(training)).expand(len(held_out), -1)
    found = {BASELINE: evaluate(frequencies, target, 0.0, 0.0)}
    for pair, classifier, taken, rate in zip(chosen, classifiers, seconds, rates, strict=True):
        p = torch.from_numpy(classifier.predict_proba(features[held_out]))
        found[pair.name] = evaluate(p, target, median(taken), rate or settings.rate)
    references = {name: found[name][1] for name in (BASELINE, REFERENCE)}
    return {name: replace(fold, squares=_squares(name, rows, references)) for name, (fold, rows) in found.items()}


def _squares(name: str, rows: RowScores, references: Mapping[str, RowScores]) -> dict[str, dict[str, float]]:
    return {other: rows.squares(reference) for other, reference in references.items() if other != name}


def _classifier(settings: Settings, pair: Pair, seed: int, rate: float | None = None) -> Classifier:
    return Classifier.of_pair(
        pair,
        hidden=settings.hidden,
        epochs=settings.epochs,
        batch_size=BATCH,
        learning_rate=rate or settings.rate,
        missing=settings.missing,
        dtype="float32",
        random_state=seed,
    )


def _train_in_turns(classifiers: Sequence[Classifier], prepared: Prepared, advanced: Callable[[int], None]) -> list[list[float]]:
    """Train them, some steps of each in turn; the seconds of each step."""
    trainings = [classifier.begin(prepared) for classifier in classifiers]
    seconds: list[list[float]] = [[] for _ in trainings]
    turn = 0
    while not trainings[0].finished:
        for training, taken in rotated(list(zip(trainings, seconds, strict=True)), turn):
            done = training.advance(TURN)
            taken += done
            advanced(len(done))
        turn += 1
    for classifier, training in zip(classifiers, trainings, strict=True):
        classifier.end(training)
    return seconds


def _tuned(
    settings: Settings, pair: Pair, seed: int, first: Classifier, prepared: Prepared, advanced: Callable[[int], None]
) -> float:
    """The learning rate that is best by the metric on a part of the training rows; of equal ones by the log loss."""
    metric = METRICS["accuracy" if settings.metric == "cost" else settings.metric]
    target = prepared.target.numpy()
    stratify = target if np.bincount(target).min() >= 2 and TUNING_SHARE * len(target) >= len(first.classes_) else None
    parts = train_test_split(np.arange(len(target)), test_size=TUNING_SHARE, random_state=seed, stratify=stratify)
    learning, judging = (torch.from_numpy(part) for part in parts)
    part = Prepared(prepared.x[learning], prepared.target[learning], None)

    def quality(rate: float) -> tuple[float, float]:
        classifier = _classifier(settings, pair, seed, rate).share(first)
        training = classifier.begin(part)
        while not training.finished:
            advanced(len(training.advance(TURN)))
        p = classifier.end(training).probabilities(prepared.x[judging])
        fold, _ = evaluate(p, prepared.target[judging], 0.0, rate)
        value = metric.gain(getattr(fold, metric.attribute), 0.0)
        return (value, -fold.log_loss) if math.isfinite(value + fold.log_loss) else (-math.inf, -math.inf)

    return max(sorted(settings.rates, key=lambda rate: abs(math.log(rate / settings.rate))), key=quality)


def trained(table: Table, settings: Settings, pair: Pair, folds: Folds) -> Classifier:
    """A classifier of a pair that has learnt from all rows, at the median of the learning rates that its folds had."""
    rate = median_low(fold[pair.name].learning_rate for fold in folds)
    with one_thread():
        return _classifier(settings, pair, settings.seed, rate).fit(table.features, table.labels)


def total_steps(table: Table, settings: Settings, chosen: Sequence[Pair] | None = None, start: int = 0) -> int:
    """The steps of training of all folds from the one of number `start` on, of all pairs together."""
    steps = 0
    for training, _ in _splits(table, settings, start):
        rows = len(training)
        steps += math.ceil(rows / BATCH)
        if settings.tune:
            steps += len(RATES) * math.ceil((rows - math.ceil(TUNING_SHARE * rows)) / BATCH)
    return steps * settings.epochs * len(compared(table, chosen))


def seconds_a_step(table: Table, settings: Settings, chosen: Sequence[Pair] | None = None) -> float:
    """What a step of training takes, by some of each pair: by the clock, so that it counts what else the machine does."""
    with one_thread():
        classifiers = [_classifier(settings, pair, settings.seed) for pair in compared(table, chosen)]
        prepared = classifiers[0].prepare(table.features, table.labels)
        for classifier in classifiers:
            classifier.share(classifiers[0]).begin(prepared).advance(1)  # the first one loads and compiles
        start, done = time.perf_counter(), 0
        while (taken := time.perf_counter() - start) < LEAST_SECONDS:
            done += sum(len(classifier.begin(prepared).advance(TIMED)) for classifier in classifiers)
    return taken / done


def summary(table: Table, settings: Settings, folds: Folds, chosen: Sequence[Pair] | None = None, command: str = "") -> Comparison:
    """What the folds that are done say, which may be fewer than the settings ask for."""
    trained = {pair.name: pair for pair in compared(table, chosen)}
    results = [Result(name, trained.get(name), tuple(fold[name] for fold in folds)) for name in folds[0]]
    if settings.metric != "cost":  # which may differ where predictions do not
        results = _merged(results)
    by_name = {result.name: result for result in results}
    softmax, baseline = by_name.pop(REFERENCE), by_name.pop(BASELINE)
    metric = METRICS[settings.metric]
    facts = Facts(
        name=table.name,
        rows=table.rows,
        rows_in_table=table.sample_of or table.rows,
        features=table.features.shape[1],
        target=table.target,
        target_by_default=table.target_by_default,
        classes=tuple(zip(table.classes, table.class_sizes().tolist(), strict=True)),
        notes=table.notes,
        digest=table.digest,
    )
    versions = installed("softmaxima", "torch", "numpy", "scikit-learn") | {"python": platform.python_version()}
    taken = recommend(softmax, baseline, list(by_name.values()), metric, settings.folds)
    ordered = sorted(results, key=lambda result: _rank(result, metric))
    return Comparison(settings, facts, tuple(ordered), taken, versions, tuple(folds), datetime.date.today().isoformat(), command)


def _rank(result: Result, metric: Metric) -> tuple[bool, float, float, str]:
    """The best first. Times count only where cost is the metric, so that a seed gives one order otherwise."""
    value = metric.gain(getattr(result, metric.attribute), 1.0)
    brier = round(result.brier, 4) if math.isfinite(result.brier) else math.inf
    return not math.isfinite(value), -value if math.isfinite(value) else 0.0, brier, result.name


def _merged(results: Sequence[Result]) -> list[Result]:
    """Pairs that predicted the same in every fold are one result, with the name of softmax or of the first."""
    kept: list[Result] = []
    for result in sorted(results, key=lambda result: result.name != REFERENCE):
        twin = next((other for other in kept if BASELINE not in (other.name, result.name) and _same(other, result)), None)
        if twin is None:
            kept.append(result)
        else:
            kept[kept.index(twin)] = replace(twin, twins=(*twin.twins, result.name))
    return kept


def _same(one: Result, other: Result) -> bool:
    """They called every row the same, as sure of it, but for what roundings make of a training."""
    return all(
        a.predicted == b.predicted
        and a.support_rows == b.support_rows
        and all(math.isclose(x, y, rel_tol=ROUNDINGS) for x, y in ((a.log_loss, b.log_loss), (a.brier, b.brier)))
        and math.isclose(sum(bin.confidence for bin in a.bins), sum(bin.confidence for bin in b.bins), rel_tol=ROUNDINGS)
        for a, b in zip(one.folds, other.folds, strict=True)
    )


def check_classes(table: Table, settings: Settings) -> None:
    """Raise `InputError` unless every class has a row in every fold."""
    try:
        check_folds(table.target, table.classes, table.labels, table.numeric_target, settings.folds)
    except InputError as error:
        raise InputError(f"{table.name}: {error}") from None


def sampled(table: Table, settings: Settings) -> Table:
    """At most about `settings.rows` rows of a table, the classes in proportion: the table that everything else here takes."""
    if settings.rows is None or table.rows <= settings.rows:
        return table
    random = np.random.default_rng(settings.seed)
    share = settings.rows / table.rows
    kept = [
        random.permutation(np.flatnonzero(table.labels == label))[: max(settings.folds, int(share * size))]
        for label, size in enumerate(table.class_sizes())
    ]
    rows = np.sort(np.concatenate(kept))
    return replace(table, features=table.features[rows], labels=table.labels[rows], sample_of=table.rows)


def _seed(settings: Settings, number: int) -> int:
    """The seed of a fold."""
    return int(np.random.SeedSequence((settings.seed, number)).generate_state(1)[0])
