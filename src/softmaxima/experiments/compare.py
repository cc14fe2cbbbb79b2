"""compare: the same classifier trained with every pair of a map and a loss, and which pair to take.

For every pair the folds, the initial weights, the order of the batches, the optimiser and its learning rate are the same, so that
what differs comes from the pair. With p the probabilities of a held-out row with n classes, t its class and y the indicator of t:

    accuracy     share of rows with argmax p = t
    NLL          −log((p_t + ε)/(1 + nε)), ε = 1e-6: an exact zero costs 13.8 nats, not ∞
    Brier        Σ_c (p_c − y_c)², between 0 and 2
    ECE          Σ_b (rows in b / rows) · |accuracy in b − mean max p in b|, over 15 bins b of equal width in max p
    support      number of classes with p_c > 0
    zeros        share of rows with p_t = 0

All but the ECE are means over folds; the ECE pools the bins of the folds, for it is biased upwards where bins hold few rows.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, median, stdev
from typing import Any, Literal

import numpy as np
import torch
from sklearn.model_selection import StratifiedKFold
from torch import Tensor
from torch.nn import functional

import softmaxima as sm
from softmaxima.core.numbers import InputError
from softmaxima.experiments.tables import Table
from softmaxima.maps import REGISTRY, Map, find_map

BATCH = 128
HIDDEN = 128
LEARNING_RATE = 3e-3
EPS = 1e-6  # of the negative log-likelihood
BINS = 15
MARGIN_TEMPERATURE = 1 / 16  # of cosines, which alone span too little for a confident softmax
EVALUATED_ROWS = 8192  # at once

# The pairs ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    """A map and the loss that trains it.

    A "linear" head gives scores h Wᵀ + b; a "cosine" head takes the same parameters as class vectors (W, b), and gives their
    cosines with (h, 1).
    """

    name: str
    map: str  # its name in softmaxima.maps.REGISTRY
    loss: str  # the name of a function of softmaxima
    params: Mapping[str, Any] = field(default_factory=dict)  # of the map
    options: Mapping[str, Any] = field(default_factory=dict)  # of the loss
    head: Literal["linear", "cosine"] = "linear"
    temperature: float = 1.0

    def probabilities(self, scores: Tensor) -> Tensor:
        """The map of the scores [rows, classes]."""
        return find_map(self.map)(scores, temperature=self.temperature, **self.params)

    def mean_loss(self, scores: Tensor, target: Tensor) -> Tensor:
        """The mean loss of the scores [rows, classes] for class indices [rows]."""
        return getattr(sm, self.loss)(scores, target, **self.options)

    @property
    def code(self) -> str:
        """Lines that train with the pair and predict, given `scores`, or `features` and `class_vectors`, and `target`."""
        options = "".join(f", {name}={_literal(value)}" for name, value in self.options.items())
        params = "".join(f", {name}={_literal(value)}" for name, value in self.params.items())
        if self.temperature != 1:
            params += f", temperature={_literal(self.temperature)}"
        function = f"sm.{self.map}" if hasattr(sm, self.map) else f"sm.maps.REGISTRY[{_literal(self.map)}]"
        lines = [f"loss = sm.{self.loss}(scores, target{options})", f"p = {function}(scores{params})"]
        if self.head == "cosine":
            normalize = "torch.nn.functional.normalize"
            lines.insert(0, f"scores = {normalize}(features) @ {normalize}(class_vectors).T")
        imports = ["import torch"] if "torch." in "".join(lines) else []
        return "\n".join([*imports, "import softmaxima as sm", "", *lines])


def _literal(value: Any) -> str:
    """Python for a parameter's value."""
    for module, name in ((torch, "torch"), (functional, "torch.nn.functional")):
        if callable(value) and getattr(module, value.__name__, None) is value:
            return f"{name}.{value.__name__}"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def pairs(classes: int) -> tuple[Pair, ...]:
    """Every pair for that many classes: those chosen here, and a default pair for each other map of probabilities of one class."""
    chosen = _chosen_pairs(k=min(3, classes - 1))
    maps = [map for map in REGISTRY.values() if map.properties.of_one_class and not map.properties.logarithmic]
    return tuple(pair for map in maps for pair in chosen.get(map.name, (_default_pair(map),)))


def _default_pair(map: Map) -> Pair:
    """The map's Fenchel–Young loss, or the cross-entropy of its probabilities where it has none."""
    name = map.name.replace("_", " ")
    if map.regulariser is not None:
        return Pair(name, map.name, "fenchel_young_loss", options={"map": map.name})
    can_be_zero = map.properties.sparse or map.properties.mass == "zero or one"
    return _eps_pair(name, map.name, 1e-6 if can_be_zero else 0.0)


def _eps_pair(name: str, map: str, eps: float = 1e-6, **params: Any) -> Pair:
    return Pair(name, map, "eps_cross_entropy", params, {"map": map, "eps": eps, **params})


def _margin_pair(name: str, loss: str, options: Mapping[str, float]) -> Pair:
    return Pair(name, "softmax", loss, options=options, head="cosine", temperature=MARGIN_TEMPERATURE)


def _chosen_pairs(k: int) -> dict[str, tuple[Pair, ...]]:
    """The pairs of the maps whose loss has a name of its own, or which have several."""
    elementwise = (torch.sigmoid, functional.softplus, torch.square)
    return {
        "softmax": (
            Pair("softmax", "softmax", "cross_entropy"),
            Pair("softmax · smoothed", "softmax", "cross_entropy", options={"label_smoothing": 0.1}),
            Pair("softmax · soft accuracy", "softmax", "soft_accuracy_loss"),
            _margin_pair("softmax · AM margin", "am_softmax_loss", {"margin": 0.2, "temperature": MARGIN_TEMPERATURE}),
            _margin_pair("softmax · ArcFace", "arcface", {"margin": 0.2, "scale": 1 / MARGIN_TEMPERATURE}),
        ),
        "sparsemax": (
            Pair("sparsemax", "sparsemax", "sparsemax_loss"),
            _eps_pair("sparsemax · eps CE", "sparsemax"),
            Pair("sparsemax · surrogate", "sparsemax", "surrogate_loss", options={"map": "sparsemax"}),
        ),
        "entmax": (Pair("entmax-1.25", "entmax", "entmax_loss", {"alpha": 1.25}, {"alpha": 1.25}),),
        "entmax15": (Pair("entmax-1.5", "entmax15", "entmax15_loss"),),
        "elastic_softmax": (Pair("elastic softmax", "elastic_softmax", "elastic_cross_entropy"),),
        "topk_softmax": (Pair("top-k softmax", "topk_softmax", "sparse_softmax_loss", {"k": k}, {"k": k}),),
        "topp_softmax": (Pair("top-p softmax", "topp_softmax", "sparse_softmax_loss", {"p": 0.9}, {"p": 0.9}),),
        "rectified_softmax": (_eps_pair("rectified softmax", "rectified_softmax", empty="uniform"),),
        "proportional": tuple(_eps_pair(f"normalised {f.__name__}", "proportional", f=f) for f in elementwise),
    }


def choose(offered: Sequence[Pair], names: Sequence[str]) -> tuple[Pair, ...]:
    """The pairs of these names; a name that no pair has may be a map's, and stands for all its pairs. No names: every pair.

    Case, spaces and punctuation do not count: "sparsemax eps ce" is "sparsemax · eps CE".
    """
    wanted: set[str] = set()
    for name in names:
        found = [pair for pair in offered if _plain(pair.name) == _plain(name)]
        found = found or [pair for pair in offered if _plain(pair.map) == _plain(name)]
        if not found:
            raise InputError(f"--maps: there is no pair or map {name!r}; choose among: {', '.join(pair.name for pair in offered)}")
        wanted.update(pair.name for pair in found)
    return tuple(pair for pair in offered if pair.name in wanted or not names)


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


# What is asked, and what comes out ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Settings:
    """How to train. `rows` is the most rows to take, the classes in proportion."""

    model: Literal["linear", "mlp"] = "mlp"
    folds: int = 5
    epochs: int = 30
    seed: int = 0
    rows: int | None = None

    def __post_init__(self) -> None:
        if self.model not in ("linear", "mlp"):
            raise InputError(f"--model must be linear or mlp, got {self.model!r}")
        for option, value, least in (("--folds", self.folds, 2), ("--epochs", self.epochs, 1), ("--seed", self.seed, 0)):
            if value < least:
                raise InputError(f"{option} must be at least {least}, got {value}")
        if self.seed >= 2**32:
            raise InputError(f"--seed must be below 2**32, got {self.seed}")


def usual_epochs(rows: int, folds: int, quick: bool = False) -> int:
    """30, or 10 for a quick look, and more where those would be too few steps to train anything: on a small table."""
    epochs, steps = (10, 60) if quick else (30, 360)
    steps_an_epoch = math.ceil(rows * (folds - 1) / folds / BATCH)
    return max(epochs, math.ceil(steps / steps_an_epoch))


@dataclass(frozen=True)
class Bin:
    """The rows whose top probability lies in one of the equal widths of [0, 1]."""

    rows: int
    confidence: float  # Σ max p
    hits: int  # rows with argmax p = t

    def __add__(self, other: Bin) -> Bin:
        return Bin(self.rows + other.rows, self.confidence + other.confidence, self.hits + other.hits)


@dataclass(frozen=True)
class Fold:
    """What a pair reached on the rows that one training left out."""

    accuracy: float
    nll: float
    brier: float
    support: float
    zeros: float
    bins: tuple[Bin, ...]
    support_rows: tuple[int, ...]  # rows with 0, 1, …, n non-zero probabilities
    step_seconds: float  # the median over the steps of training


@dataclass(frozen=True)
class Result:
    """What a pair reached."""

    pair: Pair
    folds: tuple[Fold, ...]

    @property
    def accuracy(self) -> float:
        return fmean(fold.accuracy for fold in self.folds)

    @property
    def accuracy_se(self) -> float:
        """The standard error of the mean accuracy over folds."""
        return stdev(fold.accuracy for fold in self.folds) / math.sqrt(len(self.folds))

    @property
    def nll(self) -> float:
        return fmean(fold.nll for fold in self.folds)

    @property
    def brier(self) -> float:
        return fmean(fold.brier for fold in self.folds)

    @property
    def support(self) -> float:
        return fmean(fold.support for fold in self.folds)

    @property
    def zeros(self) -> float:
        return fmean(fold.zeros for fold in self.folds)

    @property
    def step_seconds(self) -> float:
        return median(fold.step_seconds for fold in self.folds)

    @property
    def bins(self) -> tuple[Bin, ...]:
        """The folds' bins, pooled."""
        return tuple(sum(column, Bin(0, 0.0, 0)) for column in zip(*(fold.bins for fold in self.folds), strict=True))

    @property
    def ece(self) -> float:
        rows = sum(bin.rows for bin in self.bins)
        return sum(abs(bin.hits - bin.confidence) for bin in self.bins) / rows

    @property
    def support_rows(self) -> tuple[int, ...]:
        """Rows with 0, 1, …, n non-zero probabilities, over all folds."""
        return tuple(sum(column) for column in zip(*(fold.support_rows for fold in self.folds), strict=True))


@dataclass(frozen=True)
class Recommendation:
    """The pair to take, and why."""

    pair: Pair
    reason: str


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
    encoded: tuple[tuple[str, int], ...]  # one-hot encoded columns, and how many indicator columns each became


@dataclass(frozen=True)
class Comparison:
    """Everything that a comparison found, the best pair first."""

    settings: Settings
    facts: Facts
    results: tuple[Result, ...]
    recommendation: Recommendation
    versions: Mapping[str, str]


# The experiment -----------------------------------------------------------------------------------------------------------


def compare(
    table: Table,
    settings: Settings,
    chosen: Sequence[Pair] | None = None,
    starting: Callable[[Pair, int], None] = lambda pair, fold: None,
) -> Comparison:
    """Train every chosen pair (default: all) on every fold of the table. `starting(pair, fold)` is called before each training.

    The same seed gives the same results, times aside, whatever the caller's random state.
    """
    check_classes(table, settings)
    chosen = pairs(len(table.classes)) if chosen is None else chosen
    rows = _sample(table, settings)
    features, labels = table.features[rows], table.labels[rows]
    splitter = StratifiedKFold(settings.folds, shuffle=True, random_state=settings.seed)
    folds: dict[str, list[Fold]] = {pair.name: [] for pair in chosen}
    with _one_thread(), torch.enable_grad():
        # Pairs take turns within a fold, so that a machine that is busy for a while slows all of them.
        for number, (training, held_out) in enumerate(splitter.split(features, labels)):
            scaled = torch.from_numpy(standardise(features[training], features).astype(np.float32))
            target = torch.from_numpy(labels)
            random = np.random.default_rng((settings.seed, number))
            initial = _initial_weights(random, features.shape[1], len(table.classes), settings.model)
            batches = [torch.from_numpy(training[random.permutation(len(training))]).split(BATCH) for _ in range(settings.epochs)]
            steps = [batch for epoch in batches for batch in epoch]
            for pair in chosen:
                starting(pair, number)
                network, seconds = train(pair, initial, scaled, target, steps)
                p = predict(pair, network, scaled[held_out])
                folds[pair.name].append(evaluate(p, target[held_out], seconds))
    results = [Result(pair, tuple(folds[pair.name])) for pair in chosen]
    sizes = np.bincount(labels, minlength=len(table.classes)).tolist()
    facts = Facts(
        name=table.name,
        rows=len(rows),
        rows_in_table=table.rows,
        features=features.shape[1],
        target=table.target,
        target_by_default=table.target_by_default,
        classes=tuple(zip(table.classes, sizes, strict=True)),
        encoded=table.encoded,
    )
    versions = {
        "softmaxima": sm.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
    return Comparison(settings, facts, tuple(sorted(results, key=_rank)), recommend(results), versions)


def check_classes(table: Table, settings: Settings) -> None:
    """Raise `InputError` unless every class has a row in every fold."""
    sizes = table.class_sizes()
    smallest = int(sizes.argmin())
    if sizes[smallest] >= settings.folds:
        return
    if len(sizes) > max(settings.folds, table.rows / settings.folds):
        kind = "a quantity (regression)" if table.numeric_target else "a name of each row"
        raise InputError(
            f"{table.name}: the target {table.target!r} has {len(sizes)} different values in {table.rows} rows, too many classes "
            f"for {settings.folds} folds; it looks like {kind}, so choose a column of classes with --target"
        )
    fewer = f"use --folds {sizes[smallest]}, or " if sizes[smallest] >= 2 else ""
    raise InputError(
        f"{table.name}: class {table.classes[smallest]!r} of {table.target!r} has {sizes[smallest]} row(s), and {settings.folds} "
        f"folds need {settings.folds} of each class; {fewer}add rows, or remove or merge that class"
    )


def _sample(table: Table, settings: Settings) -> np.ndarray:
    """Indices of at most about `settings.rows` rows, the classes in proportion, each with a row a fold or more."""
    if settings.rows is None or table.rows <= settings.rows:
        return np.arange(table.rows)
    random = np.random.default_rng(settings.seed)
    share = settings.rows / table.rows
    kept = [
        random.permutation(np.flatnonzero(table.labels == label))[: max(settings.folds, int(share * size))]
        for label, size in enumerate(table.class_sizes())
    ]
    return np.sort(np.concatenate(kept))


def standardise(training: np.ndarray, features: np.ndarray) -> np.ndarray:
    """(features − mean)/standard deviation of the training rows; a column that is constant there becomes 0."""
    scale = np.abs(training).max(0)
    scale[scale == 0] = 1.0
    training, features = training / scale, features / scale  # now no square overflows
    constant = training.min(0) == training.max(0)
    deviation = training.std(0)
    return np.where(constant, 0.0, (features - training.mean(0)) / np.where(constant, 1.0, deviation))


Weights = tuple[tuple[Tensor, Tensor], ...]  # (W [outputs, inputs], b [outputs]) of each layer


def _initial_weights(random: np.random.Generator, features: int, classes: int, model: str) -> Weights:
    """Uniform in ±1/√inputs, as `torch.nn.Linear` has it."""
    sizes = (features, classes) if model == "linear" else (features, HIDDEN, classes)
    layers = []
    for inputs, outputs in pairwise(sizes):
        bound = 1 / math.sqrt(inputs)
        weight, bias = (random.uniform(-bound, bound, shape).astype(np.float32) for shape in ((outputs, inputs), outputs))
        layers.append((torch.from_numpy(weight), torch.from_numpy(bias)))
    return tuple(layers)


def scores(pair: Pair, network: Weights, x: Tensor) -> Tensor:
    """Scores [rows, classes] of features [rows, features]."""
    *hidden, (weight, bias) = network
    for hidden_weight, hidden_bias in hidden:
        x = functional.linear(x, hidden_weight, hidden_bias).relu()
    if pair.head == "linear":
        return functional.linear(x, weight, bias)
    features = functional.normalize(functional.pad(x, (0, 1), value=1.0))
    return features @ functional.normalize(torch.cat((weight, bias[:, None]), 1)).T


def train(pair: Pair, initial: Weights, x: Tensor, target: Tensor, steps: Sequence[Tensor]) -> tuple[Weights, float]:
    """(the trained network, the median seconds of a step). A step is the forward pass, the backward pass and Adam's update."""
    network = tuple((weight.clone().requires_grad_(), bias.clone().requires_grad_()) for weight, bias in initial)
    optimiser = torch.optim.Adam([tensor for layer in network for tensor in layer], lr=LEARNING_RATE, fused=True)
    seconds = []
    for batch in steps:
        inputs, classes = x[batch], target[batch]
        start = time.perf_counter()
        optimiser.zero_grad()
        pair.mean_loss(scores(pair, network, inputs), classes).backward()
        optimiser.step()
        seconds.append(time.perf_counter() - start)
    return network, median(seconds)


@torch.no_grad()
def predict(pair: Pair, network: Weights, x: Tensor) -> Tensor:
    """Probabilities [rows, classes]."""
    return torch.cat([pair.probabilities(scores(pair, network, part)) for part in x.split(EVALUATED_ROWS)])


def evaluate(p: Tensor, target: Tensor, step_seconds: float) -> Fold:
    """The measures of probabilities p [rows, classes] for classes [rows]; of equal probabilities the lowest index is predicted."""
    p = p.double()
    classes = p.shape[-1]
    confidence, predicted = p.max(-1)
    hits = (predicted == target) & p.isfinite().all(-1)
    p_target = p.gather(-1, target[:, None]).squeeze(-1)
    support = (p > 0).sum(-1)
    which_bin = (confidence.nan_to_num() * BINS).long().clamp_max(BINS - 1)

    def sums(values: Tensor | None) -> list[float]:
        return torch.bincount(which_bin, values, minlength=BINS).tolist()

    bins = zip(sums(None), sums(confidence), sums(hits.double()), strict=True)
    return Fold(
        accuracy=float(hits.double().mean()),
        nll=float(-((p_target + EPS) / (1 + classes * EPS)).log().mean()),
        brier=float((p - functional.one_hot(target, classes)).square().sum(-1).mean()),
        support=float(support.double().mean()),
        zeros=float((p_target == 0).double().mean()),
        bins=tuple(Bin(int(count), total, int(correct)) for count, total, correct in bins),
        support_rows=tuple(torch.bincount(support, minlength=classes + 1).tolist()),
        step_seconds=step_seconds,
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Batches are too small for several threads, and sums over several threads could differ between machines."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _rank(result: Result) -> tuple[float, float, str]:
    """The best first. Times do not count, so that a seed gives one order."""
    return -result.accuracy, _brier(result), result.pair.name


def _brier(result: Result) -> float:
    """To four digits, ∞ where probabilities are NaN."""
    return round(result.brier, 4) if math.isfinite(result.brier) else math.inf


def recommend(results: Sequence[Result]) -> Recommendation:
    """Of the pairs within one standard error of the best accuracy, the one with the lowest Brier score, to four digits.

    Of equal ones the first is taken: sparsemax comes before its surrogate loss, which trains the same but means nothing.
    """
    best = min(results, key=_rank)
    close = [result for result in results if result.accuracy >= best.accuracy - best.accuracy_se]
    taken = min(close, key=_brier)
    accuracy, brier = f"{taken.accuracy:.2%}", f"{taken.brier:.4f}"
    if len(results) == 1:
        return Recommendation(
            taken.pair, f"It is the only pair that was trained; its accuracy is {accuracy}, its Brier score {brier}."
        )
    if len(close) == 1:
        reason = f"Its accuracy, {accuracy}, is the highest by more than one standard error ({best.accuracy_se:.2%})."
    else:
        lead = f"the highest, {accuracy}," if taken is best else f"{accuracy}, the best is {best.accuracy:.2%} ({best.pair.name}),"
        reason = (
            f"Its accuracy is {lead} and of the {len(close)} pairs within one standard error ({best.accuracy_se:.2%}) of the best "
            f"it has the lowest Brier score, {brier}."
        )
    sharpest = min(results, key=_brier)
    if _brier(sharpest) < _brier(taken):
        reason += (
            f" Where the probabilities matter more than the class, look at {sharpest.pair.name}: its Brier score is the lowest of "
            f"all, {sharpest.brier:.4f} to {brier}, at an accuracy of {sharpest.accuracy:.2%}."
        )
    return Recommendation(taken.pair, reason)
