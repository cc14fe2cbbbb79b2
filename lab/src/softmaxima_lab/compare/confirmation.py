"""confirmation: how often `compare` recommends what another half of the data does not confirm, on known tables and on noise.

The rows of a table are split into halves A and B at random, the classes in proportion. All pairs are compared on A. A pair that is
recommended there in the place of softmax is compared with softmax on B, with the same settings and folds of B:

    confirmed   Σ_j d_j / J > 0, the mean over the folds of B of its gain d over softmax by the same metric
    certain     the interval of that mean, which allows for this one comparison alone, is above 0

"Stay with softmax" and "nothing to choose" ask for no confirmation. On noise the features tell nothing of the target, so that there
is nothing to recommend; of recommendations that luck makes, luck confirms half.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.stats import beta
from sklearn import datasets
from sklearn.model_selection import train_test_split

from softmaxima.integrations.classifier import usual_epochs
from softmaxima.integrations.pairs import Pair, pairs
from softmaxima_lab.compare.differences import Difference
from softmaxima_lab.compare.fold_differences import difference
from softmaxima_lab.compare.measures import METRICS
from softmaxima_lab.compare.table import BATCH, Comparison, Settings, compare, summary, training_rows
from softmaxima_lab.tables.tables import Table

METRICS_OF_PROBABILITIES = tuple(name for name in METRICS if name != "cost")  # one training tells all of them
STEPS = 100  # of each training, at least
SETTINGS = Settings()  # those of `compare`
HALVES = {"known": 4, "noise": 30}  # of each table of that kind, so many times
LEVEL = 0.05  # the chance that the interval of a share misses it

Arrays = tuple[np.ndarray, np.ndarray]  # features [rows, features], target [rows]


def _thirds(arrays: Any) -> Arrays:
    """Classes by thirds of a target that is a number."""
    x, y = arrays
    return x, np.searchsorted(np.quantile(y, [1 / 3, 2 / 3]), y)


def _shuffled(arrays: Any, seed: int) -> Arrays:
    """The same classes, dealt to rows at random."""
    x, y = arrays
    return x, np.random.default_rng(seed).permutation(y)


def _normal(sizes: Sequence[int], features: int, seed: int) -> Arrays:
    """Features that are normal whatever the class; classes of these sizes."""
    return np.random.default_rng(seed).standard_normal((sum(sizes), features)), np.repeat(np.arange(len(sizes)), sizes)


# Of each table, what makes it of a seed; those that are drawn at random are drawn anew each time.
KNOWN: dict[str, Callable[[int], Any]] = {
    "iris": lambda _: datasets.load_iris(return_X_y=True),
    "wine": lambda _: datasets.load_wine(return_X_y=True),
    "breast cancer": lambda _: datasets.load_breast_cancer(return_X_y=True),
    "digits": lambda _: datasets.load_digits(return_X_y=True),
    "diabetes, thirds": lambda _: _thirds(datasets.load_diabetes(return_X_y=True)),
    "moons": lambda seed: datasets.make_moons(400, noise=0.3, random_state=seed),
    "circles": lambda seed: datasets.make_circles(400, noise=0.2, factor=0.5, random_state=seed),
    "gaussian quantiles": lambda seed: datasets.make_gaussian_quantiles(
        n_samples=400, n_features=4, n_classes=3, random_state=seed
    ),
    "hastie": lambda seed: datasets.make_hastie_10_2(400, random_state=seed),
    "classification": lambda seed: datasets.make_classification(
        400, n_features=20, n_informative=5, n_classes=3, flip_y=0.05, random_state=seed
    ),
}
NOISE: dict[str, Callable[[int], Arrays]] = {
    "normal features, 3 equal classes": lambda seed: _normal((100, 100, 100), 10, seed),
    "normal features, 97.7 % in a class": lambda seed: _normal((586, 14), 10, seed),
    "digits, labels shuffled": lambda seed: _shuffled(datasets.load_digits(return_X_y=True), seed),
    "wine, labels shuffled": lambda seed: _shuffled(datasets.load_wine(return_X_y=True), seed),
}
TABLES = KNOWN | NOISE


@dataclass(frozen=True)
class Trial:
    """What half A recommends by a metric, and the gain over softmax that half B finds."""

    table: str
    seed: int
    metric: str
    headline: str
    pair: str | None  # that is recommended in the place of softmax
    gain: Difference | None  # of that pair, on B

    @property
    def refuted(self) -> bool:
        """Recommended and not confirmed."""
        return self.gain is not None and not self.gain.mean > 0

    @property
    def uncertain(self) -> bool:
        """Recommended and not confirmed with an interval that leaves out 0."""
        return self.gain is not None and not self.gain.better


@dataclass(frozen=True)
class Share:
    """How many of so many, and the interval of Clopper and Pearson that holds the probability."""

    count: int
    of: int

    @property
    def value(self) -> float:
        return self.count / self.of

    @property
    def interval(self) -> tuple[float, float]:
        """The probabilities under which neither so few nor so many are rarer than LEVEL/2.

        >>> [round(end, 4) for end in Share(0, 100).interval]
        [0.0, 0.0362]
        """
        low = float(beta.ppf(LEVEL / 2, self.count, self.of - self.count + 1)) if self.count else 0.0
        high = float(beta.isf(LEVEL / 2, self.count + 1, self.of - self.count)) if self.count < self.of else 1.0
        return low, high


Rule = Callable[[Comparison], Pair | None]  # the pair that a comparison recommends


def recommended(comparison: Comparison) -> Pair | None:
    """What `compare` recommends."""
    return comparison.recommendation.pair


def half_table(name: str, seed: int, half: int) -> Table:
    """Half 0 or 1 of a table."""
    x, y = TABLES[name](seed)
    classes, labels = np.unique(y, return_inverse=True)
    rows = train_test_split(np.arange(len(labels)), test_size=0.5, random_state=seed, stratify=labels)[half]
    return Table(name, "target", False, x[rows].astype(np.float64), labels[rows], tuple(map(str, classes)))


def settings_of(table: Table, settings: Settings, seed: int, steps: int = STEPS) -> Settings:
    """As many epochs as give each training those steps."""
    return replace(settings, seed=seed, epochs=usual_epochs(training_rows(table.rows, settings.folds), BATCH, 1, steps))


def trials(
    name: str, seed: int, settings: Settings = SETTINGS, steps: int = STEPS, rule: Rule = recommended, chosen: Sequence[str] = ()
) -> tuple[Trial, ...]:
    """What the halves of one split say by every metric; of all pairs, or of softmax and the chosen ones."""
    first, second = (half_table(name, seed, half) for half in (0, 1))
    settings = settings_of(first, settings, seed, steps)
    offered = [pair for pair in pairs(len(first.classes)) if not chosen or pair.name in chosen]
    trained = compare(first, settings, offered)
    by_metric = {
        metric: summary(first, replace(settings, metric=metric), trained.folds, offered) for metric in METRICS_OF_PROBABILITIES
    }
    taken = {metric: rule(comparison) for metric, comparison in by_metric.items()}
    taken = {metric: None if pair == trained.softmax.pair else pair for metric, pair in taken.items()}
    asked = list({pair.name: pair for pair in taken.values() if pair is not None}.values())
    other = compare(second, settings, asked) if asked else None
    return tuple(
        Trial(
            name,
            seed,
            metric,
            by_metric[metric].recommendation.headline,
            pair and pair.name,
            _gain(other, pair, metric) if other and pair else None,
        )
        for metric, pair in taken.items()
    )


def _gain(comparison: Comparison, pair: Pair, metric: str) -> Difference:
    return difference(comparison.of(pair.name), comparison.softmax, METRICS[metric], comparison.settings.folds, 1)


def splits(halves: Mapping[str, int] = HALVES) -> int:
    """How many splits `confirmation` makes."""
    return len(KNOWN) * halves["known"] + len(NOISE) * halves["noise"]


def confirmation(
    halves: Mapping[str, int] = HALVES, processes: int = 1, advanced: Callable[[], None] = lambda: None
) -> tuple[Trial, ...]:
    """The trials of every table, so many splits of each of its kind. `advanced()` is called after each split."""
    asked = [(name, seed) for name in TABLES for seed in range(halves["known" if name in KNOWN else "noise"])]
    found = {}
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        tasks = {pool.submit(trials, name, seed): (name, seed) for name, seed in asked}
        for task in as_completed(tasks):
            found[tasks[task]] = task.result()
            advanced()
    return tuple(trial for split in asked for trial in found[split])


def of_kind(found: Sequence[Trial], tables: Mapping[str, object], metric: str) -> Iterator[Trial]:
    """The trials of these tables by this metric."""
    return (trial for trial in found if trial.table in tables and trial.metric == metric)
