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

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, product
from statistics import median

import torch
from torch import Tensor

from softmaxima_lab.compare import studies
from softmaxima_lab.compare.heads_layers import layer
from softmaxima_lab.compare.heads_memory import peaks
from softmaxima_lab.compare.heads_plan import Head, Settings
from softmaxima_lab.compare.heads_tasks import Lesson, Task
from softmaxima_lab.compare.studies import COST, Question, Run, Trained, Verdict, seconds_of_steps
from softmaxima_lab.compare.turns import in_turns, one_thread
from softmaxima_lab.compare.verdicts import Words, interval, value_of
from softmaxima_lab.wording import listed

PREDICTED, REPEATS = 256, 7  # rows whose most probable classes are timed, and how often
OF_MEMORY = 200  # steps that take about as long as to measure the memory of one head, in which a process starts


class Result(studies.Result[Head]):
    """What a head reached with all seeds, or who has learnt nothing, without a head."""

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
    def peak_bytes(self) -> float:
        return self.runs[0].peak_bytes


Finding = studies.Finding[Task, Result]
Study = studies.Study[Settings, Finding]


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
    found = peaks(task.entries, lesson.counts, task.batch, lambda: advanced(OF_MEMORY)) if measures_memory else {}
    trainings = [Training(task, lesson, head, seed, settings.steps) for head in task.entries]
    in_turns(trainings, settings.steps, advanced)
    runs = {head.name: training.end() for head, training in zip(task.entries, trainings, strict=True)}
    runs = {name: replace(run, peak_bytes=found.get(name, math.nan)) for name, run in runs.items()}
    return runs | {name: Run(reached) for name, reached in lesson.bars().items()}


class Training(studies.Training):
    """Of one head and the network below it, that has a number of steps."""

    def __init__(self, task: Task, lesson: Lesson, head: Head, seed: int, steps: int) -> None:
        self.task, self.lesson, self.head = task, lesson, head
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.body, self.layer = lesson.body(), layer(head, lesson.features, lesson.counts, seed)
        super().__init__((self.body, self.layer), task.rate, len(lesson.x), task.batch, steps, seed)

    def loss(self, rows: Tensor) -> Tensor:
        return self.layer(self.body(self.lesson.x[rows]), self.lesson.y[rows])

    @torch.no_grad()
    def end(self) -> Run:
        """What it reached on the rows held out."""
        self.layer.eval()
        return replace(self.run(lambda: self.lesson.marks(self.body, self.layer)), predict_seconds=self._predict_seconds())

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
    of_heads = (len(task.entries) * (settings.steps + OF_MEMORY * (task.is_large and number == 0)) for number, task in left)
    return sum(of_heads)


def seconds_of_all(tasks: Sequence[Task], settings: Settings, start: int = 0) -> float:
    """About what all trainings take from the ones of number `start` on, by a few steps of each head, and one that is marked."""
    total = 0.0
    with one_thread():
        for place, task in enumerate(tasks):
            lesson = task.lesson(settings.seed)
            trainings = [Training(task, lesson, head, settings.seed, 3) for head in task.entries]
            a_step = seconds_of_steps(trainings)
            begin = time.perf_counter()
            trainings[0].end()
            marking = len(trainings) * (time.perf_counter() - begin)
            seeds = [number for number in range(settings.seeds) if number * len(tasks) + place >= start]
            of_memory = OF_MEMORY * a_step if task.is_large and 0 in seeds else 0.0
            total += len(seeds) * (settings.steps * a_step + marking) + of_memory
    return total


# What it says ---------------------------------------------------------------------------------------------------------------


def summary(
    tasks: Sequence[Task],
    settings: Settings,
    done: Sequence[tuple[str, Trained]],
    command: str = "",
    left_out: Mapping[str, str] | None = None,
) -> Study:
    """What the trainings that are done say, which may be fewer than the settings ask for."""
    return studies.study(tasks, settings, done, _finding, command, dict(left_out or {}))


def _finding(task: Task, runs: Sequence[Trained]) -> Finding:
    return studies.found(task, runs, Result, _verdict)


def _verdict(finding: Finding, question: Question) -> Verdict[Result]:
    words = Words("head", "heads", f"on {finding.task.title}", "seed by seed")
    found = studies.recommended(finding, question, words)
    return replace(found, reason=f"{found.reason} {_besides(finding, question, found.taken)}".rstrip())


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
