"""Whether the data can choose the map: `compare`'s recommendation and a learnt mixture against always softmax, on ten tables.

Every table is cut into folds. On the rows that a fold trains on, and on no others,

    softmax    is trained with cross-entropy;
    compare    trains every pair that has a linear head, on folds of these rows, and recommends one, by accuracy or by log loss,
               which is then trained on all of them; softmax where it recommends none;
    mixture    is trained with its own loss while its gate cools to one map, which is what predicts then. Either all learns from the
               same rows; or weights, temperatures and α learn from a quarter of them, and the network from the others, after which
               the map that is left trains another network on all of them, its own numbers as they are;
    learnt τ   is the mixture of softmax alone, either way: what a mixture has over it is due to its maps, and not to a temperature.

All of these train the same network from the same weights. What they reach on the rows held out is compared fold by fold with
softmax, and a mixture's with that of the learnt τ too; `fold_differences` says how the variance of such a mean is taken. Over
tables, each is one number, and the mean of ten is taken by Student's t. All intervals of tables hold at once, and all of means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from sklearn.model_selection import StratifiedKFold, train_test_split
from torch import Tensor, nn

import softmaxima as sm
from softmaxima.integrations.pairs import Pair, pairs
from softmaxima_lab.compare.confirmation import KNOWN, settings_of
from softmaxima_lab.compare.differences import Difference, Spread, interval_of, of_mean, spread_of
from softmaxima_lab.compare.measures import METRICS, evaluate
from softmaxima_lab.compare.table import Settings, compare, summary
from softmaxima_lab.tables.tables import Table

FOLDS, INNER = 5, Settings(folds=3, repeats=1)
STEPS, BATCH, HIDDEN, RATE, OWN_RATE = 200, 128, 128, 3e-3, 3e-2  # OWN_RATE is that of what the mixture learns
MAPS = ("softmax", "entmax", "sparsemax", "taylor_softmax")
COLD = 0.02  # the gate's temperature at the end
JUDGING = 0.25  # the share of rows that the mixture learns from where the network does not
MEASURES = ("accuracy", "log-loss", "brier")
TOLD = ("accuracy", "log-loss")
COMPARED = ("compare, by accuracy", "compare, by log loss")
LEARNT = {
    "learnt τ, same rows": ("softmax",),
    "mixture, same rows": MAPS,
    "learnt τ, other rows": ("softmax",),
    "mixture, other rows": MAPS,
}
WAYS = (*COMPARED, *LEARNT)
BESIDE = {"mixture, same rows": "learnt τ, same rows", "mixture, other rows": "learnt τ, other rows"}  # but for softmax
PAIRS = (*((way, "softmax") for way in WAYS), *BESIDE.items())

Rows = tuple[Tensor, Tensor]  # features and classes


@dataclass(frozen=True)
class Chosen:
    """What each way chose on a fold of a table, and reached there."""

    table: str
    way: str
    rows: int  # of the table
    choices: tuple[str, ...]
    reached: Mapping[str, tuple[float, ...]]  # by measure


def run(
    tables: Sequence[str] = tuple(KNOWN), folds: int = FOLDS, steps: int = STEPS, advanced: Callable[[], None] = lambda: None
) -> list[Chosen]:
    """Choose and train on every fold of every table; `advanced()` is called after each."""
    found = []
    for name in tables:
        x, y = KNOWN[name](0)
        labels = np.unique(y, return_inverse=True)[1]
        outcomes: dict[str, list[tuple[str, dict[str, float]]]] = {}
        splitter = StratifiedKFold(folds, shuffle=True, random_state=0)
        for number, (rows, held_out) in enumerate(splitter.split(x, labels)):
            for way, choice, reached in fold(name, x.astype(np.float64), labels, rows, held_out, number, steps):
                outcomes.setdefault(way, []).append((choice, reached))
            advanced()
        for way, each in outcomes.items():
            reached = {measure: tuple(values[measure] for _, values in each) for measure in MEASURES}
            found.append(Chosen(name, way, len(labels), tuple(choice for choice, _ in each), reached))
    return found


def fold(
    name: str, x: np.ndarray, labels: np.ndarray, rows: np.ndarray, held_out: np.ndarray, seed: int, steps: int
) -> Iterator[tuple[str, str, dict[str, float]]]:
    """(way, what it chose, what that reached)."""
    mean, spread = x[rows].mean(0), x[rows].std(0)
    scaled = torch.from_numpy((x - mean) / np.where(spread > 0, spread, 1.0)).float()
    target = torch.from_numpy(labels)
    classes = int(target.max()) + 1
    within = scaled[rows], target[rows]

    def reached(p: Tensor) -> dict[str, float]:
        found, _ = evaluate(p, target[held_out], 0.0, 0.0)
        return {measure: float(getattr(found, METRICS[measure].attribute)) for measure in MEASURES}

    done: dict[str, dict[str, float]] = {}

    def trained(pair: Pair) -> dict[str, float]:
        if pair.name not in done:
            network = fit(within, classes, pair.losses, seed, steps)
            with torch.no_grad():
                done[pair.name] = reached(pair.probabilities(network(scaled[held_out])))
        return done[pair.name]

    offered = [pair for pair in pairs(classes) if pair.head == "linear"]
    softmax = next(pair for pair in offered if pair.name == "softmax")
    yield "softmax", "softmax", trained(softmax)
    inner = Table(name, "target", False, x[rows], labels[rows], tuple(map(str, range(classes))))
    settings = settings_of(inner, INNER, seed)
    comparison = compare(inner, settings, offered)
    for metric, way in zip(TOLD, COMPARED, strict=True):
        pair = summary(inner, replace(settings, metric=metric), comparison.folds, offered).recommendation.pair or softmax
        yield way, pair.name, trained(pair)
    learning, judging = train_test_split(rows, test_size=JUDGING, random_state=seed, stratify=labels[rows])
    apart = (scaled[learning], target[learning]), (scaled[judging], target[judging])
    for way, maps in LEARNT.items():
        taught, judged = (within, within) if way.endswith("same rows") else apart
        cooling: Any = sm.GeometricTemperature(1.0, COLD, steps)
        mixture = sm.MixtureOfMaps(maps, gate_temperature=cooling)
        network = fit(taught, classes, mixture.loss, seed, steps, (mixture, judged, cooling))
        chosen = mixture.requires_grad_(False).prune()
        if judged is not within:
            network = fit(within, classes, sm.MixtureOfMaps([chosen]).loss, seed, steps)
        with torch.no_grad():
            yield way, chosen.map.name.replace("_", " "), reached(chosen(network(scaled[held_out])))


def fit(
    taught: Rows,
    classes: int,
    loss: Callable[[Tensor, Tensor], Tensor],
    seed: int,
    steps: int,
    gate: tuple[sm.MixtureOfMaps, Rows, Any] | None = None,
) -> nn.Module:
    """A network by Adam on batches that the seed decides; and a mixture that learns from its own rows as its gate cools."""
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(taught[0].shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, classes))
    optimiser = torch.optim.Adam(network.parameters(), RATE)
    own = None if gate is None else torch.optim.Adam(gate[0].parameters(), OWN_RATE)
    rng, other = (torch.Generator().manual_seed(seed + k) for k in range(2))
    for _ in range(steps):
        x, target = batch_of(taught, rng)
        optimiser.zero_grad()
        if gate is not None:
            gate[0].requires_grad_(False)  # it learns from its own rows
        loss(network(x), target).backward()
        optimiser.step()
        if gate is not None and own is not None:
            mixture, judged, cooling = gate
            x, target = batch_of(judged, other)
            with torch.no_grad():
                scores = network(x)
            own.zero_grad()
            mixture.requires_grad_(True)
            mixture.loss(scores, target).backward()
            own.step()
            cooling.step()
    return network


def batch_of(rows: Rows, rng: torch.Generator) -> Rows:
    """Some of them, drawn anew."""
    batch = torch.randperm(len(rows[0]), generator=rng)[:BATCH]
    return rows[0][batch], rows[1][batch]


# What it says -------------------------------------------------------------------------------------------------------------------


def gain(found: Sequence[Chosen], table: str, way: str, measure: str, beside: str = "softmax") -> Difference:
    """Over softmax or another way on a table, with an interval that holds at once with those of all pairs and tables that are told.
    Where both took the same in all folds it is 0; where other maps are as good in each fold it is what so few rows leave open."""
    by = {(each.table, each.way): each for each in found}
    metric, tables = METRICS[measure], len({each.table for each in found})
    own, other = by[table, way], by[table, beside]
    if own.choices == other.choices and own.reached == other.reached:
        return Difference(0.0, 0.0, 0.0, 0.0)
    gains = [metric.gain(a, b) for a, b in zip(own.reached[measure], other.reached[measure], strict=True)]
    spread = (1 / len(gains) + 1 / (len(gains) - 1)) * spread_of(gains)
    comparisons = tables * len(PAIRS) * len(TOLD)
    return interval_of(gains, [Spread(spread, len(gains) - 1)], metric, comparisons, own.rows, same=not any(gains))


def means(found: Sequence[Chosen], way: str, measure: str, beside: str = "softmax") -> list[float]:
    """The gain on each table."""
    return [gain(found, table, way, measure, beside).mean for table in dict.fromkeys(each.table for each in found)]


def overall(found: Sequence[Chosen], way: str, measure: str, beside: str = "softmax") -> Difference:
    """The mean over tables, of which each is one, with an interval that holds at once with those of all pairs that are told."""
    gains = means(found, way, measure, beside)
    if not any(gains):
        return Difference(0.0, 0.0, 0.0, 0.0)
    return interval_of(gains, [of_mean(gains)], METRICS[measure], len(PAIRS) * len(TOLD))


def verdict(found: Sequence[Chosen], way: str, beside: str) -> str:
    """What holds of the claim that the data can choose, of a way beside another: how far, where, and what of it is shown."""
    told = []
    for measure in TOLD:
        gains, d = means(found, way, measure, beside), overall(found, way, measure, beside)
        scale, digits, unit = (100, 1, "points of accuracy") if measure == "accuracy" else (1, 3, "nats of log loss")
        better, worse = sum(each > 0 for each in gains), sum(each < 0 for each in gains)
        word = "better" if d.better else "worse" if d.worse else "no difference is shown"
        ends = " to ".join(f"{scale * end:+.{digits}f}" for end in (d.low, d.high))
        where = f"better on {better} and worse on {worse} of {len(gains)} tables"
        told.append(
            f"{scale * d.mean:+.{digits}f} {unit} ({ends}: {word}), {where}"
            if better or worse
            else "the same " + unit.split(" of ")[1]
        )
    return f"{way}, beside {beside}: {'; '.join(told)}"
