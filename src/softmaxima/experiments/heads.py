"""compare-heads: the same network trained with every head, a last layer and its loss, on a text and on pictures of digits.

For every head of a task the weights below it, the batches, their order and the optimiser are the same with the same seed, so that
what differs comes from the head. Beside them stands what a head must be better than to have learnt anything: who has counted the
classes and reads nothing, and for digits that were left out of training the pixels themselves. Each seed is other weights, other
batches, and of digits others that are left out. As in compare-attention, a difference to softmax is taken seed by seed, and the
variance of its mean over J seeds is

    s²/J + b²/B,

with s² the variance over seeds and b² that of the means of B ≤ 16 batches of held-out rows. What may be said of it is `verdicts`:
t of J − 1 and of B − 1 degrees of freedom, Bonferroni's correction over the heads, and softmax where nothing is better.
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

import torch

from softmaxima.bench.machine import installed
from softmaxima.experiments.differences import Difference, interval_of, of_mean
from softmaxima.experiments.heads_layers import layer
from softmaxima.experiments.heads_memory import peaks
from softmaxima.experiments.heads_plan import REFERENCE, Head, Settings
from softmaxima.experiments.heads_tasks import Lesson, Question, Reached, Task
from softmaxima.experiments.measures import METRICS, geometric_mean
from softmaxima.experiments.turns import BETAS, one_thread, rate, rotated
from softmaxima.experiments.verdicts import Bar, Words, interval, recommend, value_of
from softmaxima.experiments.wording import listed

TURN = 5  # steps of one head before it is the next one's turn
PREDICTED, REPEATS = 256, 7  # rows whose most probable classes are timed, and how often
OF_MEMORY = 200  # steps that take about as long as to measure the memory of one head, in which a process starts
COST = METRICS["cost"]
NONE = Reached({}, {}, {})


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


Trained = Mapping[str, Run]  # of each head and each bar, with one seed


@dataclass(frozen=True)
class Result:
    """What a head reached with all seeds, or who has learnt nothing, without a head."""

    name: str
    head: Head | None
    runs: tuple[Run, ...]

    def mean(self, measure: str) -> float:
        """Of a measure, over seeds; NaN where it has none."""
        return fmean(run.reached.means.get(measure, math.nan) for run in self.runs)

    @property
    def perplexity(self) -> float:
        """ε-perplexity."""
        return math.exp(self.mean("smoothed nats"))

    @property
    def exact_perplexity(self) -> float:
        """Infinite where a word had p = 0."""
        return math.exp(self.mean("nats"))

    @property
    def score(self) -> float:
        """The sparsemax score."""
        return self.mean("score")

    @property
    def top1(self) -> float:
        return self.mean("top1")

    @property
    def accuracy(self) -> float:
        return self.mean("accuracy")

    @property
    def recall(self) -> float:
        return self.mean("recall")

    @property
    def step_seconds(self) -> float:
        return geometric_mean([run.step_seconds for run in self.runs])

    def seconds(self, what: str) -> float:
        """gradient, update or predict."""
        return geometric_mean([getattr(run, f"{what}_seconds") for run in self.runs])

    @property
    def peak_bytes(self) -> float:
        return self.runs[0].peak_bytes

    @property
    def diverged(self) -> tuple[int, ...]:
        """The steps at which trainings ended that did not come to numbers."""
        return tuple(run.diverged for run in self.runs if run.diverged is not None)

    def drawn(self, what: str) -> tuple[float, ...]:
        """What figures show, its mean over seeds that did not diverge."""
        kept = [run.reached.drawn[what] for run in self.runs if what in run.reached.drawn]
        return tuple(map(fmean, zip(*kept, strict=True)))


@dataclass(frozen=True)
class Verdict:
    """The answer to a question."""

    question: Question
    taken: Result | None  # the head to take, softmax where none is better, None where nothing was learnt
    headline: str
    reason: str


@dataclass(frozen=True)
class Finding:
    """What one task found, the best by its first question first."""

    task: Task
    results: tuple[Result, ...]
    verdicts: tuple[Verdict, ...] = field(default=())

    @property
    def softmax(self) -> Result:
        return self.of(REFERENCE)

    @property
    def heads(self) -> tuple[Result, ...]:
        """What was trained."""
        return tuple(result for result in self.results if result.head is not None)

    @property
    def others(self) -> tuple[Result, ...]:
        """What is compared with softmax."""
        return tuple(result for result in self.heads if result is not self.softmax)

    @property
    def offered(self) -> tuple[Result, ...]:
        """What may be recommended in softmax's place: what is not torch's."""
        return tuple(result for result in self.others if result.head is not None and not result.head.is_peer)

    @property
    def taken(self) -> Result | None:
        """What is recommended by the first question."""
        return self.verdicts[0].taken

    def of(self, name: str) -> Result:
        """The result of that name."""
        return next(result for result in self.results if result.name == name)

    def is_learnt(self, question: Question) -> bool:
        """Whether any head is better than what all must be better than."""
        return any(self.above(result, question).better for result in self.heads)

    @property
    def family(self) -> int:
        """How many intervals hold together: of all but one that are compared with that one, what was not trained among them."""
        return len(self.results) - 1

    def gain(self, result: Result, question: Question) -> Difference:
        """How much better a result is than softmax."""
        return difference(result, self.softmax, question, self.family)

    def above(self, result: Result, question: Question) -> Difference:
        """How much better a head is than what it must be better than."""
        return difference(result, self.of(question.bar), question, self.family)

    def pace(self, result: Result) -> Difference:
        """How much faster a step is than with softmax."""
        return pace(result, self.softmax, len(self.others))


@dataclass(frozen=True)
class Study:
    """Everything that was found."""

    settings: Settings
    findings: tuple[Finding, ...]
    versions: Mapping[str, str]
    done: int  # trainings of all heads, one a task and seed
    wanted: int
    date: str
    left_out: Mapping[str, str]  # tasks, and why
    command: str = ""

    @property
    def partial(self) -> bool:
        return self.done < self.wanted


# The experiment -----------------------------------------------------------------------------------------------------------


def compare_heads(tasks: Sequence[Task], settings: Settings, advanced: Callable[[int], None] = lambda steps: None) -> Study:
    """Train every head of every task with every seed. `advanced(steps)` is called after steps of training."""
    return summary(tasks, settings, list(trained(tasks, settings, advanced=advanced)))


def trained(
    tasks: Sequence[Task], settings: Settings, start: int = 0, advanced: Callable[[int], None] = lambda steps: None
) -> Iterator[tuple[str, Trained]]:
    """(a task's name, what every head reached), seed after seed, on all tasks with each, so that an early end leaves some of all;
    from the one of number `start` on."""
    for number, task in islice(product(range(settings.seeds), tasks), start, None):
        with one_thread():
            measures_memory = task.is_large and number == 0
            yield task.name, _trained(task, settings, settings.seed + number, measures_memory, advanced)


def _trained(task: Task, settings: Settings, seed: int, measures_memory: bool, advanced: Callable[[int], None]) -> Trained:
    """What every head reached with that seed, some steps of each in turn."""
    advanced(0)  # a lesson and the memory take some seconds
    lesson = task.lesson(seed)
    found = peaks(task.heads, lesson.counts, task.batch, lambda: advanced(OF_MEMORY)) if measures_memory else {}
    trainings = [Training(task, lesson, head, seed, settings.steps) for head in task.heads]
    for turn, first in enumerate(range(0, settings.steps, TURN)):
        for training in rotated(trainings, turn):
            advanced(training.advance(min(TURN, settings.steps - first)))
    runs = {head.name: training.end() for head, training in zip(task.heads, trainings, strict=True)}
    runs = {name: replace(run, peak_bytes=found.get(name, math.nan)) for name, run in runs.items()}
    return runs | {name: Run(reached) for name, reached in lesson.bars().items()}


class Training:
    """Of one head and the network below it, that has a number of steps."""

    def __init__(self, task: Task, lesson: Lesson, head: Head, seed: int, steps: int) -> None:
        self.task, self.lesson, self.head, self.steps = task, lesson, head, steps
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.body, self.layer = lesson.body(), layer(head, lesson.features, lesson.counts, seed)
        self.batches = torch.randint(len(lesson.x), (steps, task.batch), generator=torch.Generator().manual_seed(seed))
        parameters = [*self.body.parameters(), *self.layer.parameters()]
        self.optimizer = torch.optim.Adam(parameters, task.rate, betas=BETAS, fused=True)
        self.seconds: list[tuple[float, float]] = []
        self.diverged: int | None = None

    def advance(self, steps: int) -> int:
        """Take so many steps, or none once the loss is no number; how many were due."""
        for _ in range(steps if self.diverged is None else 0):
            number = len(self.seconds)
            self.optimizer.param_groups[0]["lr"] = rate(self.task.rate, number, self.steps)
            rows = self.batches[number]
            x, y = self.lesson.x[rows], self.lesson.y[rows]
            start = time.perf_counter()
            with torch.enable_grad():
                loss = self.layer(self.body(x), y)
                self.optimizer.zero_grad()
                loss.backward()
            between = time.perf_counter()
            self.optimizer.step()
            finite = math.isfinite(loss.item())
            self.seconds.append((between - start, time.perf_counter() - between))
            if not finite:
                self.diverged = number
                break
        return steps

    @torch.no_grad()
    def end(self) -> Run:
        """What it reached on the rows held out."""
        self.layer.eval()
        reached = self.lesson.marks(self.body, self.layer) if self.diverged is None else NONE
        if self.diverged is None and any(map(math.isnan, reached.means.values())):
            self.diverged, reached = self.steps, NONE  # the last step left weights that give no numbers
        gradient, update = (median(seconds) for seconds in zip(*self.seconds, strict=True))
        return Run(reached, gradient, update, self._predict_seconds(), diverged=self.diverged)

    def _predict_seconds(self) -> float:
        hidden, found = self.body(self.lesson.x[:PREDICTED]), []
        for _ in range(REPEATS):
            start = time.perf_counter()
            self.layer.predict(hidden)
            found.append(time.perf_counter() - start)
        return median(found)


def total_steps(tasks: Sequence[Task], settings: Settings, start: int = 0) -> int:
    """Of all trainings together, from the ones of number `start` on."""
    left = islice(product(range(settings.seeds), tasks), start, None)
    of_heads = (len(task.heads) * (settings.steps + OF_MEMORY * (task.is_large and number == 0)) for number, task in left)
    return sum(of_heads)


def seconds_of_all(tasks: Sequence[Task], settings: Settings, start: int = 0) -> float:
    """About what all trainings take from the ones of number `start` on, by a few steps of each head, and one that is marked."""
    total = 0.0
    with one_thread():
        for place, task in enumerate(tasks):
            lesson = task.lesson(settings.seed)
            trainings = [Training(task, lesson, head, settings.seed, 3) for head in task.heads]
            for training in trainings:
                training.advance(3)
            a_step = sum(min(map(sum, training.seconds)) for training in trainings)
            begin = time.perf_counter()
            trainings[0].end()
            marking = len(trainings) * (time.perf_counter() - begin)
            seeds = [number for number in range(settings.seeds) if number * len(tasks) + place >= start]
            of_memory = OF_MEMORY * a_step if task.is_large and 0 in seeds else 0.0
            total += len(seeds) * (settings.steps * a_step + marking) + of_memory
    return total


# What it says ---------------------------------------------------------------------------------------------------------------


def difference(result: Result, reference: Result, question: Question, comparisons: int) -> Difference:
    """The gain of a result over a reference, of the same seeds and the same held-out rows."""
    metric, measure = question.metric, question.measure

    def gains(of_one: Sequence[float], of_other: Sequence[float]) -> list[float]:
        return [metric.gain(question.value(a), question.value(b)) for a, b in zip(of_one, of_other, strict=True)]

    pairs = list(zip(result.runs, reference.runs, strict=True))
    by_seed = gains(*([run.reached.means.get(measure, math.nan) for run in one] for one in zip(*pairs, strict=True)))
    if not all(map(math.isfinite, by_seed)):
        return interval_of(by_seed, [], metric, comparisons)
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
    tasks: Sequence[Task],
    settings: Settings,
    done: Sequence[tuple[str, Trained]],
    command: str = "",
    left_out: Mapping[str, str] | None = None,
) -> Study:
    """What the trainings that are done say, which may be fewer than the settings ask for."""
    versions = installed("softmaxima", "torch", "numpy", "scikit-learn", "mlxtend") | {"python": platform.python_version()}
    findings = [_finding(task, runs) for task in tasks if (runs := [found for name, found in done if name == task.name])]
    wanted = settings.seeds * len(tasks)
    date = datetime.date.today().isoformat()
    return Study(settings, tuple(findings), versions, len(done), wanted, date, dict(left_out or {}), command)


def _finding(task: Task, runs: Sequence[Trained]) -> Finding:
    heads = {head.name: head for head in task.heads}
    results = [Result(name, heads.get(name), tuple(run[name] for run in runs)) for name in runs[0]]
    first = task.questions[0].metric
    ordered = Finding(task, tuple(sorted(results, key=lambda result: _rank(result, first.attribute, first.sign))))
    return replace(ordered, verdicts=tuple(_verdict(ordered, question) for question in task.questions))


def _rank(result: Result, attribute: str, sign: int) -> tuple[bool, float, str]:
    """The best first, what has no number last."""
    value = getattr(result, attribute)
    return not math.isfinite(value), -sign * value if math.isfinite(value) else 0.0, result.name


def _verdict(finding: Finding, question: Question) -> Verdict:
    """What is torch's own is compared as well, and not weighed."""
    softmax, others = finding.softmax, finding.offered
    over = {result.name: {question.bar: finding.above(result, question)} for result in (softmax, *others)}
    gains = {result.name: finding.gain(result, question) for result in others}
    words = Words("head", "heads", f"on {finding.task.title}", "seed by seed")
    bars = [Bar(finding.of(question.bar), question.why)]
    taken, headline, reason = recommend(softmax, others, bars, over, gains, question.metric, words)
    return Verdict(question, taken, headline, f"{reason} {_besides(finding, question, taken)}".rstrip())


def _besides(finding: Finding, question: Question, taken: Result | None) -> str:
    """What there is to choose where quality does not decide: what is better than softmax all the same, or faster."""
    metric = question.metric
    if taken is None and question.compares_all_the_same:
        better = {r.name: gain for r in finding.offered if (gain := finding.gain(r, question)).better}
        told = listed([f"{name} by {interval(gain, metric)}" for name, gain in better.items()])
        return f"All the same, better than softmax for certain: {told}." if told else ""
    faster = [r for r in finding.offered if finding.pace(r).low > COST.least_gain and r is not taken]
    if taken is None or not question.weighs_time or not faster:
        return ""
    best = max(faster, key=lambda r: finding.gain(r, question).mean)
    which = f"Of the {len(faster)} heads whose step is faster for certain" if len(faster) > 1 else "Faster for certain"
    return (
        f"{which}, {best.name} has the best {metric.words}, {value_of(best, metric)}: that is "
        f"{interval(finding.gain(best, question), metric)}, at a step that is {interval(finding.pace(best), COST)}."
    )
