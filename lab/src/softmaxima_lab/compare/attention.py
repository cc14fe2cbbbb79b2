"""compare-attention: the same Transformer trained with every map in softmax's place, on a text and on pictures.

For every map the initial weights, the batches, their order and the optimiser are the same, so that what differs comes from the map.
Beside them stand a baseline that has counted classes and reads nothing, and even attention, which averages all that it sees: a map
that is not better than both has not learnt where to look, and says nothing of attention. Each seed is other weights and other
batches, on the same held-out rows. A difference to softmax is therefore taken seed by seed, and the variance of its mean over J
seeds is

    s²/J + b²/B,

with s² the variance over seeds, which training makes, and b² that of the means of B ≤ 16 batches of held-out rows, since these are
a sample too, and what follows in a text is alike: of single blocks the variance is 5 to 7 times too small. What may be said of it
is `verdicts`: t of J − 1 and of B − 1 degrees of freedom, Bonferroni's correction over the maps, and softmax where nothing is
better.
"""

from __future__ import annotations

import datetime
import math
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product
from statistics import fmean, median

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from softmaxima.maps import REGISTRY
from softmaxima_lab.bench.machine import installed
from softmaxima_lab.compare.attention_plan import EVEN, LEFT_OUT, REFERENCE, VARIANTS, Settings, Variant
from softmaxima_lab.compare.attention_tasks import Task
from softmaxima_lab.compare.differences import Difference, interval_of, means_of_batches, of_mean
from softmaxima_lab.compare.measures import METRICS, Metric, geometric_mean
from softmaxima_lab.compare.transformer import Transformer
from softmaxima_lab.compare.turns import BETAS, in_turns, one_thread, rate
from softmaxima_lab.compare.verdicts import Bar, Words, recommend

SCORED = 64  # held-out rows at once
LOOKED_AT = 16  # held-out rows, of whose attention is counted what is not 0
BASELINE = "class frequencies"
COST = METRICS["cost"]


@dataclass(frozen=True)
class Head:
    """What a head does with the keys that its queries see, on held-out rows: means over queries."""

    share: float  # of these keys, that have p > 0
    keys: float  # exp(H) of p/Σp: as many equal ones would be as spread
    mass: float  # Σp
    learnt: float | None = None  # its α or its sink, of a single run


@dataclass(frozen=True)
class Run:
    """What one training reached, NaN where it diverged."""

    quality: float  # the task's metric
    log_loss: float  # nats a prediction
    rows: tuple[float, ...]  # what each held-out row adds to the quality, which is their mean
    heads: tuple[tuple[Head, ...], ...]  # [layers, heads]
    step_seconds: float  # the median over steps
    kept_bytes: int  # what a step's forward pass keeps for its backward pass, weights and batch aside
    diverged: int | None = None  # the step whose loss was no number
    weights: Tensor | None = field(default=None, compare=False)  # of the first held-out row in the head pictured, [queries, keys]


Trained = Mapping[str, Run]  # of each map, with one seed


@dataclass(frozen=True)
class Result:
    """What a map reached with all seeds, or the baseline without one."""

    name: str
    variant: Variant | None
    runs: tuple[Run, ...]

    @property
    def quality(self) -> float:
        return fmean(run.quality for run in self.runs)

    @property
    def log_loss(self) -> float:
        return fmean(run.log_loss for run in self.runs)

    @property
    def step_seconds(self) -> float:
        return geometric_mean([run.step_seconds for run in self.runs])

    @property
    def kept_bytes(self) -> int:
        return self.runs[0].kept_bytes

    @property
    def diverged(self) -> tuple[int, ...]:
        """The steps at which trainings ended that did not come to numbers."""
        return tuple(run.diverged for run in self.runs if run.diverged is not None)

    @property
    def heads(self) -> tuple[tuple[Head, ...], ...]:
        """Means over the seeds that did not diverge, of the head with the fewest keys in effect first; nothing where all did.

        The first head of one seed is no relative of that of another.
        """
        kept = [[sorted(layer, key=lambda head: head.keys) for layer in run.heads] for run in self.runs if run.diverged is None]
        return tuple(tuple(_mean_head(same) for same in zip(*layers, strict=True)) for layers in zip(*kept, strict=True))

    @property
    def learnt(self) -> tuple[tuple[float, float], ...]:
        """The least and the largest number that heads of each layer have learnt, over the seeds that did not diverge."""
        kept = [run.heads for run in self.runs if run.diverged is None]
        found = [
            [head.learnt for layer in layers for head in layer if head.learnt is not None] for layers in zip(*kept, strict=True)
        ]
        return tuple((min(numbers), max(numbers)) for numbers in found if numbers)

    def mean(self, measure: str) -> float:
        """Over all heads."""
        return fmean(getattr(head, measure) for layer in self.heads for head in layer) if self.heads else math.nan


def _mean_head(heads: Sequence[Head]) -> Head:
    return Head(*(fmean(getattr(head, name) for head in heads) for name in ("share", "keys", "mass")))


@dataclass(frozen=True)
class Finding:
    """What one task found, the best map first."""

    task: Task
    results: tuple[Result, ...]
    taken: Result | None  # the map to take, softmax where none is better, None where nothing was learnt
    headline: str
    reason: str

    @property
    def metric(self) -> Metric:
        return self.task.metric

    @property
    def softmax(self) -> Result:
        return next(result for result in self.results if result.name == REFERENCE)

    @property
    def bars(self) -> tuple[Result, ...]:
        """What a map must be better than to have learnt where to look: the baseline and even attention."""
        return tuple(next(result for result in self.results if result.variant == variant) for variant in (None, EVEN))

    @property
    def maps(self) -> tuple[Result, ...]:
        """What may be taken."""
        return tuple(result for result in self.results if result not in self.bars)

    @property
    def others(self) -> tuple[Result, ...]:
        """What is compared with softmax."""
        return tuple(result for result in self.maps if result is not self.softmax)

    def over_bars(self, result: Result) -> dict[str, Difference]:
        """How much better a map is than what it must be better than."""
        return over_bars(result, self.bars, len(self.maps), self.metric)

    def gain(self, result: Result) -> Difference:
        """How much better a result is than softmax."""
        return difference(result, self.softmax, self.metric, len(self.others))

    def pace(self, result: Result) -> Difference:
        """How much faster a step is than with softmax."""
        if result.variant is None:
            return Difference(math.nan, -math.inf, math.inf)
        return difference(result, self.softmax, COST, len(self.others))

    @property
    def pictured(self) -> tuple[int, int]:
        """The layer and head that is shown."""
        return pictured(self.softmax.runs[0].heads, self.task.causal)


def pictured(heads: tuple[tuple[Head, ...], ...], causal: bool) -> tuple[int, int]:
    """The layer and head that is shown, of the heads of softmax with the first seed: that which looks at the fewest keys; without a
    causal mask in the last layer, whose first token alone is read on."""
    first = 0 if causal else max(0, len(heads) - 1)
    places = [(layer, head) for layer in range(first, len(heads)) for head in range(len(heads[layer]))]
    return min(places, key=lambda place: heads[place[0]][place[1]].keys, default=(0, 0))


@dataclass(frozen=True)
class Study:
    """Everything that was found."""

    settings: Settings
    findings: tuple[Finding, ...]
    versions: Mapping[str, str]
    done: int  # trainings of all maps, one a task and seed
    wanted: int
    date: str
    command: str = ""

    @property
    def partial(self) -> bool:
        return self.done < self.wanted


# The experiment -----------------------------------------------------------------------------------------------------------


def offered() -> tuple[Variant, ...]:
    """What is compared: the variants, and each map that is registered besides and gives probabilities of one key."""
    known = {variant.map for variant in VARIANTS} | set(LEFT_OUT)
    added = [map for map in REGISTRY.values() if map.name not in known]
    kept = [map for map in added if map.properties.of_one_class and not map.properties.logarithmic]
    return (*VARIANTS, *(Variant(map.name.replace("_", " "), map.name) for map in kept))


def compared(chosen: Sequence[Variant]) -> tuple[Variant, ...]:
    """The chosen ones, softmax, which they are compared with, and even attention."""
    softmax = VARIANTS[0]
    return (*chosen, EVEN) if softmax in chosen else (softmax, *chosen, EVEN)


def compare_attention(
    tasks: Sequence[Task], settings: Settings, chosen: Sequence[Variant], advanced: Callable[[int], None] = lambda steps: None
) -> Study:
    """Train every chosen map, and softmax, on every task with every seed. `advanced(steps)` is called after steps of training."""
    return summary(tasks, settings, chosen, list(trained(tasks, settings, chosen, advanced=advanced)))


def trained(
    tasks: Sequence[Task],
    settings: Settings,
    chosen: Sequence[Variant],
    start: int = 0,
    advanced: Callable[[int], None] = lambda steps: None,
) -> Iterator[tuple[str, Trained]]:
    """(a task's name, what every map reached), seed after seed, on all tasks with each, so that an early end leaves some of all;
    from the one of number `start` on."""
    for number, task in islice(product(range(settings.seeds), tasks), start, None):
        with one_thread():
            yield task.name, _trained(task, settings, compared(chosen), settings.seed + number, number == 0, advanced)


def _trained(
    task: Task, settings: Settings, chosen: Sequence[Variant], seed: int, is_first: bool, advanced: Callable[[int], None]
) -> Trained:
    """What every map reached with that seed, some steps of each in turn."""
    trainings = [Training(task, variant, seed, settings.steps) for variant in chosen]
    in_turns(trainings, settings.steps, advanced)
    runs = {variant.name: training.end(is_first) for variant, training in zip(chosen, trainings, strict=True)}
    layer, head = pictured(runs[REFERENCE].heads, task.causal)
    return {
        name: run if run.weights is None else replace(run, weights=run.weights[layer, head].clone()) for name, run in runs.items()
    }


class Training:
    """Of one model, that has a number of steps."""

    def __init__(self, task: Task, variant: Variant, seed: int, steps: int) -> None:
        self.task, self.variant, self.steps = task, variant, steps
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.model = task.model(variant)
        self.batches = torch.randint(len(task.x), (steps, task.batch), generator=torch.Generator().manual_seed(seed))
        self.optimizer = torch.optim.Adam(self.model.parameters(), task.rate, betas=BETAS, fused=True)
        self.seconds: list[float] = []
        self.diverged: int | None = None
        with torch.enable_grad():
            self.kept_bytes = kept_bytes(self.model, *self._batch(0))

    def advance(self, steps: int) -> int:
        """Take so many steps, or none once the loss is no number; how many were due."""
        for _ in range(steps if self.diverged is None else 0):
            start, number = time.perf_counter(), len(self.seconds)
            self.optimizer.param_groups[0]["lr"] = rate(self.task.rate, number, self.steps)
            x, y = self._batch(number)
            with torch.enable_grad():
                loss = functional.cross_entropy(self.model(x).flatten(0, -2), y.flatten())
                self.optimizer.zero_grad()
                loss.backward()
            self.optimizer.step()
            finite = math.isfinite(loss.item())
            self.seconds.append(time.perf_counter() - start)
            if not finite:
                self.diverged = number
                break
        return steps

    @torch.no_grad()
    def end(self, wants_weights: bool) -> Run:
        """What it reached on the rows held out."""
        found = [
            self.task.rows(self.model(x), y)
            for x, y in zip(self.task.held_x.split(SCORED), self.task.held_y.split(SCORED), strict=True)
        ]
        rows, nats = (torch.cat(parts) for parts in zip(*found, strict=True))
        if self.diverged is None and not bool(nats.isfinite().all()):
            self.diverged = self.steps  # the last step left weights that give no numbers
        failed = self.diverged is not None
        p = self.model.weights(self.task.held_x[:LOOKED_AT])
        return Run(
            quality=math.nan if failed else float(rows.mean()),
            log_loss=math.nan if failed else float(nats.mean()),
            rows=() if failed else tuple(rows.tolist()),
            heads=()
            if failed
            else heads(p, self.task.causal, self.model.learnt(self.variant.learnt) if self.variant.learnt else None),
            step_seconds=median(self.seconds),
            kept_bytes=self.kept_bytes,
            diverged=self.diverged,
            weights=p[:, 0].clone() if wants_weights and not failed else None,
        )

    def _batch(self, number: int) -> tuple[Tensor, Tensor]:
        rows = self.batches[number]
        return self.task.x[rows], self.task.y[rows].long()


def kept_bytes(model: Transformer, x: Tensor, y: Tensor) -> int:
    """What a forward pass keeps until its backward pass is done: the memory that autograd saves, counted once, without weights and
    batch. What a kernel needs while it runs is not in it."""
    found: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = functional.cross_entropy(model(x).flatten(0, -2), y.flatten())  # which holds what is kept
    known = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), x, y, loss)}
    return sum(size for place, size in found.items() if place not in known)


def heads(p: Tensor, causal: bool, learnt: list[list[float]] | None) -> tuple[tuple[Head, ...], ...]:
    """What p [layers, rows, heads, queries, keys] is like, of each layer and head; of the last layer without a causal mask that of
    the first token, for the others are not read."""
    layers = [*p.double()]
    if not causal:
        layers[-1] = layers[-1][:, :, :1]
    return tuple(_heads(layer, causal, learnt[n] if learnt else [None] * layer.shape[1]) for n, layer in enumerate(layers))


def _heads(p: Tensor, causal: bool, learnt: Sequence[float | None]) -> tuple[Head, ...]:
    """Of p [rows, heads, queries, keys]."""
    queries, keys = p.shape[-2:]
    visible = torch.arange(1, queries + 1, dtype=p.dtype) if causal else torch.full((queries,), float(keys), dtype=p.dtype)
    mass = p.sum(-1)
    even = p / mass.clamp_min(1e-300).unsqueeze(-1)
    spread = torch.special.entr(even).sum(-1).exp().where(mass > 0, 0.0)
    share = (p > 0).sum(-1).sum((0, 2)) / (visible.sum() * len(p))
    numbers = (x.tolist() for x in (share, spread.mean((0, 2)), mass.mean((0, 2))))
    return tuple(Head(*own) for own in zip(*numbers, learnt, strict=True))


def total_steps(tasks: Sequence[Task], settings: Settings, chosen: Sequence[Variant], start: int = 0) -> int:
    """Of all trainings together, from the ones of number `start` on."""
    return (settings.seeds * len(tasks) - start) * settings.steps * len(compared(chosen))


def seconds_of_all(tasks: Sequence[Task], settings: Settings, chosen: Sequence[Variant], start: int = 0) -> float:
    """About what all trainings take from the ones of number `start` on, by a few steps of each map."""
    total = 0.0
    with one_thread():
        for place, task in enumerate(tasks):
            trainings = [Training(task, variant, settings.seed, 3) for variant in compared(chosen)]
            for training in trainings:
                training.advance(3)
            left = len(range(place, settings.seeds * len(tasks), len(tasks))) - len(range(place, start, len(tasks)))
            total += left * settings.steps * sum(min(training.seconds) for training in trainings)
    return total


# What it says ---------------------------------------------------------------------------------------------------------------


def difference(result: Result, reference: Result, metric: Metric, comparisons: int) -> Difference:
    """The gain of a result over a reference, of the same seeds and the same held-out rows."""
    if metric is COST:
        gains = [metric.gain(a.step_seconds, b.step_seconds) for a, b in zip(result.runs, reference.runs, strict=True)]
        return interval_of(gains, [of_mean(gains)], metric, comparisons)
    gains = [metric.gain(a.quality, b.quality) for a, b in zip(result.runs, reference.runs, strict=True)]
    if not all(map(math.isfinite, gains)):
        return interval_of(gains, [], metric, comparisons)
    of_rows = [np.mean([run.rows for run in one.runs], 0) for one in (result, reference)]
    over_rows = of_mean(means_of_batches(of_rows[0] - of_rows[1]))
    same = all(run.rows == other.rows for run, other in zip(result.runs, reference.runs, strict=True))
    return interval_of(gains, [of_mean(gains), over_rows], metric, comparisons, len(of_rows[0]), same)


def over_bars(result: Result, bars: Sequence[Result], maps: int, metric: Metric) -> dict[str, Difference]:
    """How much better one of so many maps is than each of what all must be better than."""
    return {bar.name: difference(result, bar, metric, len(bars) * maps) for bar in bars}


def summary(
    tasks: Sequence[Task], settings: Settings, chosen: Sequence[Variant], done: Sequence[tuple[str, Trained]], command: str = ""
) -> Study:
    """What the trainings that are done say, which may be fewer than the settings ask for."""
    versions = installed("softmaxima", "torch", "numpy", "scikit-learn") | {"python": platform.python_version()}
    findings = [_finding(task, chosen, runs) for task in tasks if (runs := [found for name, found in done if name == task.name])]
    wanted = settings.seeds * len(tasks)
    return Study(settings, tuple(findings), versions, len(done), wanted, datetime.date.today().isoformat(), command)


def _finding(task: Task, chosen: Sequence[Variant], runs: Sequence[Trained]) -> Finding:
    rows = tuple(task.baseline().tolist())
    counted = Run(fmean(rows), math.nan, rows, (), 0.0, 0)
    baseline = Result(BASELINE, None, (counted,) * len(runs))
    results = [Result(variant.name, variant, tuple(run[variant.name] for run in runs)) for variant in compared(chosen)]
    taken, headline, reason = _recommend(task, results, baseline)
    ordered = sorted([*results, baseline], key=lambda result: _rank(result, task.metric))
    return Finding(task, tuple(ordered), taken, headline, reason)


def _rank(result: Result, metric: Metric) -> tuple[bool, float, str]:
    """The best first, what diverged last."""
    finite = math.isfinite(result.quality)
    return not finite, -metric.gain(result.quality, 0.0) if finite else 0.0, result.name


def _recommend(task: Task, results: Sequence[Result], baseline: Result) -> tuple[Result | None, str, str]:
    """(what to take, in words, why). Nothing where no map has learnt where to look, softmax unless another is better."""
    metric = task.metric
    by_name = {result.name: result for result in results}
    softmax, even = by_name[REFERENCE], by_name[EVEN.name]
    maps = [result for result in results if result is not even]
    others = [result for result in maps if result is not softmax]
    end = ", or there are too few steps to learn it, or too few seeds to see it."
    bars = (
        Bar(baseline, f"reads nothing: nothing can be learnt here{end}"),
        Bar(even, f"looks at all alike: where to look makes no difference here{end}"),
    )
    over = {result.name: over_bars(result, (baseline, even), len(maps), metric) for result in maps}
    gains = {result.name: difference(result, softmax, metric, len(others)) for result in others}
    return recommend(softmax, others, bars, over, gains, metric, Words("map", "maps", f"on {task.title}", "seed by seed"))
