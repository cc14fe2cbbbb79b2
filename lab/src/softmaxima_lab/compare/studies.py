"""What `compare-heads` and `compare-estimators` share: entries that are trained on tasks with several seeds, and what that says.

A difference to the reference is taken seed by seed, and the variance of its mean over J seeds is s²/J + b²/B, with s² the variance
over seeds and b² that of the means of B ≤ 16 batches of held-out rows; of what is no mean over rows, s²/J alone.
"""

from __future__ import annotations

import datetime
import hashlib
import math
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from softmaxima_lab.bench.machine import installed
from softmaxima_lab.compare.differences import Difference, interval_of, means_of_batches, of_mean
from softmaxima_lab.compare.measures import METRICS, Metric, geometric_mean
from softmaxima_lab.compare.turns import BETAS, rate
from softmaxima_lab.compare.verdicts import Bar, Words, recommend

COST = METRICS["cost"]


class Entry(Protocol):
    """What is compared."""

    @property
    def name(self) -> str: ...
    @property
    def is_peer(self) -> bool: ...  # measured beside the others and never recommended


@dataclass(frozen=True)
class Question:
    """What is asked of an entry: by which metric, of which measure, and what it must be better than to have learnt anything."""

    title: str
    metric: Metric  # whose attribute is one of a result
    measure: str  # of `Reached`
    bar: str
    why: str  # what follows where no entry is better than that
    value: Callable[[float], float] = float  # of the metric, given that of the measure
    weighs_time: bool = False  # so that it is told what is faster
    compares_all_the_same: bool = False  # where no entry is better than the bar, entries may still differ for a reason


class Task(Protocol):
    """What is learnt."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def entries(self) -> Sequence[Entry]: ...
    @property
    def questions(self) -> tuple[Question, ...]: ...
    @property
    def digest(self) -> str: ...  # of all data


class Settings(Protocol):
    """For how long is trained."""

    @property
    def seeds(self) -> int: ...
    @property
    def steps(self) -> int: ...


# What was reached -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reached:
    """What an entry is like on held-out rows."""

    means: Mapping[str, float]  # of each measure
    batches: Mapping[str, tuple[float, ...]]  # of those that are means over rows, the means of rows that follow one another
    rows: Mapping[str, int]  # of how many
    drawn: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # what figures show


NONE = Reached({}, {}, {})


def reached(
    of_rows: Mapping[str, Tensor], besides: Mapping[str, float] | None = None, drawn: Mapping[str, Sequence[float]] | None = None
) -> Reached:
    """The means of what each row has, with measures that are no means over rows."""
    rows = {name: values.double().tolist() for name, values in of_rows.items()}
    return Reached(
        means={**{name: float(of_rows[name].double().mean()) for name in rows}, **(besides or {})},
        batches={name: means_of_batches(values) for name, values in rows.items()},
        rows={name: len(values) for name, values in rows.items()},
        drawn={name: tuple(values) for name, values in (drawn or {}).items()},
    )


def digest(*parts: Tensor) -> str:
    """Of tensors."""
    found = hashlib.sha256()
    for part in parts:
        found.update(repr((part.shape, part.dtype)).encode())
        found.update(part.contiguous().numpy().data)
    return found.hexdigest()[:16]


@dataclass(frozen=True)
class Run:
    """What one training reached, or who has learnt nothing without one. Times are medians."""

    reached: Reached
    gradient_seconds: float = math.nan  # of a step, the loss and its gradient
    update_seconds: float = math.nan  # of a step, of the weights
    predict_seconds: float = math.nan  # the most probable class of so many rows, by the head alone
    peak_bytes: float = math.nan  # of a step in a process of its own, measured with the first seed
    diverged: int | None = None  # the step whose loss was no number

    @property
    def step_seconds(self) -> float:
        return self.gradient_seconds + self.update_seconds


Trained = Mapping[str, Run]  # of each entry and each bar, with one seed

E = TypeVar("E", bound=Entry)


@dataclass(frozen=True)
class Result(Generic[E]):
    """What an entry reached with all seeds, or who has learnt nothing, without an entry."""

    name: str
    entry: E | None
    runs: tuple[Run, ...]

    def mean(self, measure: str) -> float:
        """Of a measure, over seeds; NaN where it has none."""
        return fmean(self.by_seed(measure))

    def by_seed(self, measure: str) -> list[float]:
        """A measure with each seed."""
        return [run.reached.means.get(measure, math.nan) for run in self.runs]

    @property
    def step_seconds(self) -> float:
        return geometric_mean([run.step_seconds for run in self.runs])

    def seconds(self, what: str) -> float:
        """gradient, update or predict."""
        return geometric_mean([getattr(run, f"{what}_seconds") for run in self.runs])

    @property
    def diverged(self) -> tuple[int, ...]:
        """The steps at which trainings ended that did not come to numbers."""
        return tuple(run.diverged for run in self.runs if run.diverged is not None)

    def drawn(self, what: str) -> tuple[float, ...]:
        """What figures show, its mean over seeds that did not diverge."""
        kept = [run.reached.drawn[what] for run in self.runs if what in run.reached.drawn]
        return tuple(map(fmean, zip(*kept, strict=True)))


T = TypeVar("T", bound=Task)
R = TypeVar("R", bound=Result)
S = TypeVar("S", bound=Settings)


@dataclass(frozen=True)
class Verdict(Generic[R]):
    """The answer to a question."""

    question: Question
    taken: R | None  # the entry to take, the reference where none is better, None where nothing was learnt
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
        """What the others are compared with: the first entry of the task."""
        return self.of(self.task.entries[0].name)

    @property
    def trained(self) -> tuple[R, ...]:
        return tuple(result for result in self.results if result.entry is not None)

    @property
    def others(self) -> tuple[R, ...]:
        """What is compared with softmax."""
        return tuple(result for result in self.trained if result is not self.softmax)

    @property
    def offered(self) -> tuple[R, ...]:
        """What may be recommended in softmax's place."""
        return tuple(result for result in self.others if result.entry is not None and not result.entry.is_peer)

    @property
    def taken(self) -> R | None:
        """What is recommended by the first question."""
        return self.verdicts[0].taken

    def of(self, name: str) -> R:
        """The result of that name."""
        return next(result for result in self.results if result.name == name)

    def is_learnt(self, question: Question) -> bool:
        """Whether any entry is better than what all must be better than."""
        return any(self.above(result, question).better for result in self.trained)

    @property
    def family(self) -> int:
        """How many intervals hold together: of all but one that are compared with that one, what was not trained among them."""
        return len(self.results) - 1

    def gain(self, result: R, question: Question) -> Difference:
        """How much better a result is than softmax."""
        return difference(result, self.softmax, question, self.family)

    def above(self, result: R, question: Question) -> Difference:
        """How much better an entry is than what it must be better than."""
        return difference(result, self.of(question.bar), question, self.family)

    def pace(self, result: R) -> Difference:
        """How much faster a step is than with softmax."""
        return pace(result, self.softmax, len(self.others))


F = TypeVar("F", bound=Finding)


@dataclass(frozen=True)
class Study(Generic[S, F]):
    """Everything that was found."""

    settings: S
    findings: tuple[F, ...]
    versions: Mapping[str, str]
    done: int  # trainings of all entries, one a task and seed
    wanted: int
    date: str
    left_out: Mapping[str, str]  # and why
    command: str = ""

    @property
    def partial(self) -> bool:
        return self.done < self.wanted


# The experiment -----------------------------------------------------------------------------------------------------------


class Training:
    """Steps of Adam on batches that are the same for every entry with the same seed. `loss` is the entry's own."""

    def __init__(self, modules: Iterable[nn.Module], most: float, rows: int, batch: int, steps: int, seed: int) -> None:
        self.most, self.steps = most, steps
        self.batches = torch.randint(rows, (steps, batch), generator=torch.Generator().manual_seed(seed))
        parameters = [parameter for module in modules for parameter in module.parameters()]
        self.optimizer = torch.optim.Adam(parameters, most, betas=BETAS, fused=True)
        self.seconds: list[tuple[float, float]] = []
        self.diverged: int | None = None

    def loss(self, rows: Tensor) -> Tensor:
        """Of rows of these numbers."""
        raise NotImplementedError

    def advance(self, steps: int) -> int:
        """Take so many steps, or none once the loss is no number; how many were due."""
        for _ in range(steps if self.diverged is None else 0):
            number = len(self.seconds)
            self.optimizer.param_groups[0]["lr"] = rate(self.most, number, self.steps)
            start = time.perf_counter()
            with torch.enable_grad():
                self.optimizer.zero_grad()
                loss = self.loss(self.batches[number])
                loss.backward()
            between = time.perf_counter()
            self.optimizer.step()
            finite = math.isfinite(loss.item())
            self.seconds.append((between - start, time.perf_counter() - between))
            if not finite:
                self.diverged = number
                break
        return steps

    def run(self, marks: Callable[[], Reached]) -> Run:
        """What it reached, with its times."""
        found = marks() if self.diverged is None else NONE
        if self.diverged is None and any(map(math.isnan, found.means.values())):
            self.diverged, found = self.steps, NONE  # the last step left weights that give no numbers
        gradient, update = (median(seconds) for seconds in zip(*self.seconds, strict=True))
        return Run(found, gradient, update, diverged=self.diverged)


def seconds_of_steps(trainings: Sequence[Training]) -> float:
    """About what one step of each takes, by three."""
    for training in trainings:
        training.advance(3)
    return sum(min(map(sum, training.seconds)) for training in trainings)


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


def recommended(finding: Finding[T, R], question: Question, words: Words) -> Verdict[R]:
    """What is no more than measured beside the others is compared as well, and not weighed."""
    softmax, others = finding.softmax, finding.offered
    over = {result.name: {question.bar: finding.above(result, question)} for result in (softmax, *others)}
    gains = {result.name: finding.gain(result, question) for result in others}
    bars = [Bar(finding.of(question.bar), question.why)]
    return Verdict(question, *recommend(softmax, others, bars, over, gains, question.metric, words))


def found(
    task: T, runs: Sequence[Trained], result: type[R], verdict: Callable[[Finding[T, R], Question], Verdict[R]]
) -> Finding[T, R]:
    """What the runs of a task say, the best first."""
    entries = {entry.name: entry for entry in task.entries}
    results = [result(name, entries.get(name), tuple(run[name] for run in runs)) for name in runs[0]]
    first = task.questions[0].metric
    ordered = Finding(task, tuple(sorted(results, key=lambda each: _rank(each, first.attribute, first.sign))))
    return replace(ordered, verdicts=tuple(verdict(ordered, question) for question in task.questions))


def _rank(result: Result, attribute: str, sign: int) -> tuple[bool, float, str]:
    """The best first, what has no number last."""
    value = getattr(result, attribute)
    return not math.isfinite(value), -sign * value if math.isfinite(value) else 0.0, result.name


def study(
    tasks: Sequence[T],
    settings: S,
    done: Sequence[tuple[str, Trained]],
    finding: Callable[[T, Sequence[Trained]], F],
    command: str,
    left_out: Mapping[str, str],
) -> Study[S, F]:
    """What the trainings that are done say, which may be fewer than the settings ask for."""
    versions = installed("softmaxima", "torch", "numpy", "scikit-learn", "mlxtend") | {"python": platform.python_version()}
    findings = [finding(task, runs) for task in tasks if (runs := [trained for name, trained in done if name == task.name])]
    wanted = settings.seeds * len(tasks)
    return Study(settings, tuple(findings), versions, len(done), wanted, datetime.date.today().isoformat(), left_out, command)
