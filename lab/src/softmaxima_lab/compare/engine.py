"""The engine of comparisons: candidates train on tasks with several seeds, and paired differences to softmax give a verdict.

With the same seed all candidates of a task begin with the same weights and see the same batches, so that what differs comes from
the candidate. A difference is taken seed by seed, and the variance of its mean over J seeds is

    s²/J + b²/B,

with s² the variance over seeds and b² that of the means of B ≤ 16 batches of neighbouring held-out rows; of a measure that is no
mean over rows, s²/J alone. The interval has t of J − 1 and of B − 1 degrees of freedom and Bonferroni's correction; `verdicts` says
what may be said of it.
"""

from __future__ import annotations

import datetime
import hashlib
import math
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product
from statistics import fmean
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from softmaxima_lab.bench.machine import installed
from softmaxima_lab.compare.differences import Difference, interval_of, means_of_batches, of_mean
from softmaxima_lab.compare.measures import METRICS, Metric, geometric_mean
from softmaxima_lab.compare.settings import Settings
from softmaxima_lab.compare.turns import in_turns, one_thread
from softmaxima_lab.compare.verdicts import Bar, Words, recommend

COST = METRICS["cost"]


class Candidate(Protocol):
    """What is compared."""

    @property
    def name(self) -> str: ...
    @property
    def map(self) -> str: ...  # or its class
    @property
    def kind(self) -> str: ...
    @property
    def is_peer(self) -> bool: ...  # measured beside the others and never recommended
    @property
    def is_bar(self) -> bool: ...  # trained, only to be beaten by the others


@dataclass(frozen=True)
class Question:
    """What is asked of the candidates: by which metric, of which measure, and what they must be better than."""

    title: str
    metric: Metric  # whose attribute is one of a result
    measure: str  # of `Reached`
    bars: Mapping[str, str]  # results that a candidate must beat to have learnt anything, and what follows where none does
    value: Callable[[float], float] = float  # of the metric, given that of the measure
    counts_bars: bool = True  # the intervals of a table hold for its bars too, not for the candidates alone
    weighs_time: bool = False  # also tell what is faster
    compares_all_the_same: bool = False  # tell what is better than softmax even where no bar is beaten


class Task(Protocol):
    """What is learnt."""

    @property
    def name(self) -> str: ...
    @property
    def heading(self) -> str: ...  # the name, as a heading begins
    @property
    def title(self) -> str: ...
    @property
    def candidates(self) -> Sequence[Candidate]: ...  # softmax first
    @property
    def questions(self) -> tuple[Question, ...]: ...
    @property
    def batch(self) -> int: ...
    @property
    def rate(self) -> float: ...  # the largest, of learning
    @property
    def model(self) -> str: ...  # in words
    @property
    def notes(self) -> tuple[str, ...]: ...
    @property
    def doubt(self) -> str: ...  # why what is held out says less than it seems, or nothing
    @property
    def digest(self) -> str: ...  # of all data


# What was reached -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reached:
    """What a candidate is like on held-out rows."""

    means: Mapping[str, float]  # of each measure
    batches: Mapping[str, tuple[float, ...]]  # of measures that are means over rows: the means of batches of neighbouring rows
    rows: Mapping[str, int]  # how many rows these measures have
    drawn: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # what figures show


NONE = Reached({}, {}, {})


def reached(
    of_rows: Mapping[str, Tensor], besides: Mapping[str, float] | None = None, drawn: Mapping[str, Sequence[float]] | None = None
) -> Reached:
    """The means of per-row measures, with measures that are no means over rows."""
    rows = {name: values.double().tolist() for name, values in of_rows.items()}
    return Reached(
        means={**{name: float(of_rows[name].double().mean()) for name in rows}, **(besides or {})},
        batches={name: means_of_batches(values) for name, values in rows.items()},
        rows={name: len(values) for name, values in rows.items()},
        drawn={name: tuple(values) for name, values in (drawn or {}).items()},
    )


def digest(*parts: Tensor) -> str:
    """Of tensors, which may be overlapping views."""
    found = hashlib.sha256()
    for part in parts:
        found.update(repr((part.shape, part.stride(), part.storage_offset(), part.dtype)).encode())
        found.update(torch.empty(0, dtype=torch.uint8).set_(part.untyped_storage()).numpy().data)
    return found.hexdigest()[:16]


@dataclass(frozen=True)
class Run:
    """What one training of a candidate reached, or what a bar reaches without one. Times are medians over steps."""

    reached: Reached
    gradient_seconds: float = math.nan  # of a step, the loss and its gradient
    update_seconds: float = math.nan  # of a step, of the weights
    costs: Mapping[str, float] = field(default_factory=dict)  # seconds and bytes besides
    diverged: int | None = None  # the step whose loss was no number

    @property
    def step_seconds(self) -> float:
        return self.gradient_seconds + self.update_seconds


Trained = Mapping[str, Run]  # of each candidate and each bar, with one seed
C = TypeVar("C", bound=Candidate)


@dataclass(frozen=True)
class Result(Generic[C]):
    """What a candidate reached with all seeds, or a bar that is not trained, which has no candidate."""

    name: str
    candidate: C | None
    runs: tuple[Run, ...]

    @property
    def is_bar(self) -> bool:
        return self.candidate is None or self.candidate.is_bar

    def mean(self, measure: str) -> float:
        """Over seeds; NaN where it has no such measure."""
        return fmean(self.by_seed(measure))

    def by_seed(self, measure: str) -> list[float]:
        return [run.reached.means.get(measure, math.nan) for run in self.runs]

    @property
    def step_seconds(self) -> float:
        return geometric_mean([run.step_seconds for run in self.runs])

    def seconds(self, what: str) -> float:
        """Of a step's gradient or update."""
        return geometric_mean([getattr(run, f"{what}_seconds") for run in self.runs])

    def cost(self, what: str) -> float:
        """The geometric mean over the seeds that measured it; NaN where none did."""
        known = [run.costs[what] for run in self.runs if what in run.costs]
        return geometric_mean(known) if known else math.nan

    @property
    def diverged(self) -> tuple[int, ...]:
        """The steps at which trainings ended that did not come to numbers."""
        return tuple(run.diverged for run in self.runs if run.diverged is not None)

    def drawn(self, what: str) -> tuple[float, ...]:
        """What figures show, the mean over the seeds that have it."""
        kept = [run.reached.drawn[what] for run in self.runs if what in run.reached.drawn]
        return tuple(map(fmean, zip(*kept, strict=True)))


T = TypeVar("T", bound=Task)
R = TypeVar("R", bound=Result)


@dataclass(frozen=True)
class Verdict(Generic[R]):
    """The answer to a question."""

    question: Question
    taken: R | None  # the candidate to take, softmax where none is better, None where nothing was learnt
    headline: str
    reason: str


@dataclass(frozen=True)
class Finding(Generic[T, R]):
    """What one task found, the best by its first question first."""

    task: T
    results: tuple[R, ...]
    verdicts: tuple[Verdict[R], ...] = field(default=())

    @property
    def softmax(self) -> R:
        """What the others are compared with: the first candidate of the task."""
        return self.of(self.task.candidates[0].name)

    @property
    def trained(self) -> tuple[R, ...]:
        """What was trained to be compared: no bars."""
        return tuple(result for result in self.results if not result.is_bar)

    @property
    def others(self) -> tuple[R, ...]:
        """What is compared with softmax."""
        return tuple(result for result in self.trained if result is not self.softmax)

    @property
    def offered(self) -> tuple[R, ...]:
        """What may be recommended in softmax's place."""
        return tuple(result for result in self.others if result.candidate is not None and not result.candidate.is_peer)

    @property
    def taken(self) -> R | None:
        """What is recommended by the first question."""
        return self.verdicts[0].taken

    def of(self, name: str) -> R:
        """The result of that name."""
        return next(result for result in self.results if result.name == name)

    def family(self, question: Question) -> int:
        """How many differences to softmax have intervals that hold together."""
        return len(self.results) - 1 if question.counts_bars else len(self.others)

    def gain(self, result: R, question: Question) -> Difference:
        """How much better a result is than softmax."""
        return difference(result, self.softmax, question, self.family(question))

    def over_bars(self, result: R, question: Question) -> dict[str, Difference]:
        """How much better a result is than each bar; the intervals hold together for all results and bars."""
        tries = len(self.results) - 1 if question.counts_bars else len(question.bars) * len(self.trained)
        return {name: difference(result, self.of(name), question, tries) for name in question.bars}

    def unbeaten(self, result: R, question: Question) -> list[str]:
        """The bars that a result is not shown to be better than."""
        return [name for name, gain in self.over_bars(result, question).items() if not gain.better]

    def is_learnt(self, question: Question) -> bool:
        """Whether any candidate beats any bar."""
        return any(len(self.unbeaten(result, question)) < len(question.bars) for result in self.trained)

    def pace(self, result: R) -> Difference:
        """How much faster a step is than with softmax."""
        return pace(result, self.softmax, len(self.others))


@dataclass(frozen=True)
class Study(Generic[T, R]):
    """Everything that was found."""

    comparison: Comparison[T, R]
    settings: Settings
    findings: tuple[Finding[T, R], ...]
    versions: Mapping[str, str]
    done: int  # trainings of all candidates, one a task and seed
    wanted: int
    date: str
    left_out: Mapping[str, str]  # and why
    command: str = ""

    @property
    def partial(self) -> bool:
        return self.done < self.wanted


# The experiment -----------------------------------------------------------------------------------------------------------


Advanced = Callable[[int], None]  # called after steps of training


@dataclass(frozen=True)
class Comparison(Generic[T, R]):
    """What a comparison has of its own: how its candidates train, and what is measured and said besides."""

    name: str  # softmaxima compare NAME
    one: str  # of the candidates
    many: str
    result: type[R]
    begin: Callable[[T, int, int], Sequence[Any]]  # the `Training` of each candidate of a task, by seed and steps
    end: Callable[[T, Settings, Sequence[Any], int, bool, Advanced], Trained]  # by seed, and whether it is the first
    work: Callable[[T, Settings, bool], int]  # steps of a candidate's training, with what takes as long besides
    measures: Mapping[str, Callable[[R], float]]  # of the tables
    options: tuple[str, str]  # of the command: of data, and of candidates
    settings: Mapping[str, Any] = field(default_factory=dict)  # that are the same each time
    left_out: Mapping[str, str] = field(default_factory=dict)  # and why
    besides: Callable[[Finding[T, R], Verdict[R]], str] = lambda finding, verdict: ""  # what a verdict says besides
    of_task: Callable[[Finding[T, R]], Mapping[str, Any]] = lambda finding: {}  # in the record
    of_result: Callable[[Finding[T, R], R], Mapping[str, Any]] = lambda finding, result: {}  # in the record


def compare(
    comparison: Comparison[T, R], tasks: Sequence[T], settings: Settings, advanced: Advanced = lambda steps: None
) -> Study[T, R]:
    """Train every candidate of every task with every seed."""
    return summary(comparison, tasks, settings, list(trained(comparison, tasks, settings, advanced=advanced)))


def trained(
    comparison: Comparison[T, R], tasks: Sequence[T], settings: Settings, start: int = 0, advanced: Advanced = lambda steps: None
) -> Iterator[tuple[str, Trained]]:
    """(a task's name, what every candidate reached), seed after seed, on all tasks with each, so that an early end leaves some of
    all; from the one of number `start` on."""
    for number, task in islice(product(range(settings.seeds), tasks), start, None):
        seed = settings.seed + number
        with one_thread():
            trainings = comparison.begin(task, seed, settings.steps)
            in_turns(trainings, settings.steps, advanced)
            yield task.name, comparison.end(task, settings, trainings, seed, number == 0, advanced)


def total_steps(comparison: Comparison[T, R], tasks: Sequence[T], settings: Settings, start: int = 0) -> int:
    """Of all trainings together, from the ones of number `start` on."""
    left = islice(product(range(settings.seeds), tasks), start, None)
    return sum(len(task.candidates) * comparison.work(task, settings, number == 0) for number, task in left)


def seconds_of_all(comparison: Comparison[T, R], tasks: Sequence[T], settings: Settings, start: int = 0) -> float:
    """About what all trainings take from the ones of number `start` on, by a few steps of each, and one that is marked."""
    total = 0.0
    with one_thread():
        for place, task in enumerate(tasks):
            trainings = comparison.begin(task, settings.seed, 3)
            for training in trainings:
                training.advance(3)
            a_step = sum(min(map(sum, training.seconds)) for training in trainings)
            begin = time.perf_counter()
            trainings[0].end()
            marking = len(trainings) * (time.perf_counter() - begin)
            left = [number for number in range(settings.seeds) if number * len(tasks) + place >= start]
            total += sum(a_step * comparison.work(task, settings, number == 0) + marking for number in left)
    return total


# What it says ---------------------------------------------------------------------------------------------------------------


def difference(result: Result, reference: Result, question: Question, comparisons: int) -> Difference:
    """The gain of a result over a reference, of the same seeds and the same held-out rows."""
    metric, measure = question.metric, question.measure

    def gains(of_one: Sequence[float], of_other: Sequence[float]) -> list[float]:
        return [metric.gain(question.value(a), question.value(b)) for a, b in zip(of_one, of_other, strict=True)]

    by_seed = gains(result.by_seed(measure), reference.by_seed(measure))
    if not all(map(math.isfinite, by_seed)):
        return interval_of(by_seed, [], metric, comparisons)
    if measure not in result.runs[0].reached.batches:
        return interval_of(by_seed, [of_mean(by_seed)], metric, comparisons)
    pairs = list(zip(result.runs, reference.runs, strict=True))
    by_batch = [gains(a.reached.batches[measure], b.reached.batches[measure]) for a, b in pairs]
    over_rows = of_mean([fmean(same) for same in zip(*by_batch, strict=True)])
    rows = min(run.reached.rows[measure] for run in result.runs)
    same = all(a.reached.batches[measure] == b.reached.batches[measure] for a, b in pairs)
    return interval_of(by_seed, [of_mean(by_seed), over_rows], metric, comparisons, rows, same)


def pace(result: Result, reference: Result, comparisons: int) -> Difference:
    """How much faster a step is."""
    gains = [COST.gain(a.step_seconds, b.step_seconds) for a, b in zip(result.runs, reference.runs, strict=True)]
    return interval_of(gains, [of_mean(gains)], COST, comparisons)


def summary(
    comparison: Comparison[T, R],
    tasks: Sequence[T],
    settings: Settings,
    done: Sequence[tuple[str, Trained]],
    command: str = "",
    left_out: Mapping[str, str] | None = None,
) -> Study[T, R]:
    """What the trainings that are done say, which may be fewer than the settings ask for."""
    of_tasks = [(task, runs) for task in tasks if (runs := [trained for name, trained in done if name == task.name])]
    return Study(
        comparison,
        settings,
        tuple(_finding(comparison, task, runs) for task, runs in of_tasks),
        installed("softmaxima", "torch", "numpy", "scikit-learn", "mlxtend") | {"python": platform.python_version()},
        len(done),
        settings.seeds * len(tasks),
        datetime.date.today().isoformat(),
        {**comparison.left_out, **(left_out or {})},
        command,
    )


def _finding(comparison: Comparison[T, R], task: T, runs: Sequence[Trained]) -> Finding[T, R]:
    """What the runs of a task say, the best first."""
    candidates = {candidate.name: candidate for candidate in task.candidates}
    results = [comparison.result(name, candidates.get(name), tuple(run[name] for run in runs)) for name in runs[0]]
    metric = task.questions[0].metric
    ordered = Finding(task, tuple(sorted(results, key=lambda result: _rank(result, metric))))
    return replace(ordered, verdicts=tuple(_verdict(comparison, ordered, question) for question in task.questions))


def _rank(result: Result, metric: Metric) -> tuple[bool, float, str]:
    """The best first, what has no number last."""
    value = getattr(result, metric.attribute)
    return not math.isfinite(value), -metric.sign * value if math.isfinite(value) else 0.0, result.name


def _verdict(comparison: Comparison[T, R], finding: Finding[T, R], question: Question) -> Verdict[R]:
    """Of what may be recommended; a peer is compared as well, and not weighed."""
    softmax, others = finding.softmax, finding.offered
    over = {result.name: finding.over_bars(result, question) for result in (softmax, *others)}
    gains = {result.name: finding.gain(result, question) for result in others}
    bars = [Bar(finding.of(name), why) for name, why in question.bars.items()]
    words = Words(comparison.one, comparison.many, f"on {finding.task.title}", "seed by seed")
    verdict = Verdict(question, *recommend(softmax, others, bars, over, gains, question.metric, words))
    return replace(verdict, reason=f"{verdict.reason} {comparison.besides(finding, verdict)}".rstrip())
