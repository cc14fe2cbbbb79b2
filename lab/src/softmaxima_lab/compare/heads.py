"""compare heads: the same network trained with every head, a last layer and its loss, on a text and on pictures of digits.

Beside the heads stands what a head must be better than to have learnt anything: who has counted the classes and reads nothing, and
for digits that were left out of training the pixels themselves. With each seed other digits are left out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

import torch
from torch import Tensor

from softmaxima_lab.compare import engine, training
from softmaxima_lab.compare.engine import COST, Advanced, Comparison, Reached, Run, Trained, Verdict
from softmaxima_lab.compare.heads_layers import layer
from softmaxima_lab.compare.heads_memory import peaks
from softmaxima_lab.compare.heads_plan import SAMPLES, SCALE, Head
from softmaxima_lab.compare.heads_tasks import Lesson, Task
from softmaxima_lab.compare.settings import Settings
from softmaxima_lab.compare.verdicts import interval, value_of
from softmaxima_lab.wording import listed

PREDICTED, REPEATS = 256, 7  # rows whose most probable classes are timed, and how often
OF_MEMORY = 200  # steps that take about as long as to measure the memory of one head, in which a process starts
PREDICT, PEAK = "predict_seconds", "peak_bytes"  # of so many rows by the head alone; of a step in a process of its own


class Result(engine.Result[Head]):
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
        return self.cost(PEAK)


Finding = engine.Finding[Task, Result]
Study = engine.Study[Task, Result]


class Training(training.Training):
    """Of one head and the network below it."""

    def __init__(self, task: Task, lesson: Lesson, head: Head, seed: int, steps: int) -> None:
        self.lesson, self.head = lesson, head
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.body, self.layer = lesson.body(), layer(head, lesson.features, lesson.counts, seed)
        super().__init__(head, (self.body, self.layer), task, len(lesson.x), steps, seed)

    def loss(self, rows: Tensor) -> Tensor:
        return self.layer(self.body(self.lesson.x[rows]), self.lesson.y[rows])

    def marks(self) -> Reached:
        self.layer.eval()
        return self.lesson.marks(self.body, self.layer)

    def costs(self) -> Mapping[str, float]:
        """Seconds until the head has named the most probable class of so many rows."""
        self.layer.eval()
        hidden, found = self.body(self.lesson.x[:PREDICTED]), []
        for _ in range(REPEATS):
            start = time.perf_counter()
            self.layer.predict(hidden)
            found.append(time.perf_counter() - start)
        return {PREDICT: median(found)}


def begin(task: Task, seed: int, steps: int) -> list[Training]:
    lesson = task.lesson(seed)
    return [Training(task, lesson, head, seed, steps) for head in task.candidates]


def end(task: Task, settings: Settings, trainings: Sequence[Training], seed: int, is_first: bool, advanced: Advanced) -> Trained:
    """What the heads reached, and of the first seed the memory that a step takes where that can be told."""
    runs, lesson = {training.name: training.end() for training in trainings}, trainings[0].lesson
    if task.is_large and is_first:
        found = peaks(task.candidates, lesson.counts, task.batch, lambda: advanced(OF_MEMORY))
        runs = {name: replace(run, costs={**run.costs, PEAK: found[name]}) for name, run in runs.items()}
    return runs | {name: Run(reached) for name, reached in lesson.bars().items()}


def besides(finding: Finding, verdict: Verdict[Result]) -> str:
    """What there is to choose where quality does not decide: what is better than softmax all the same, or faster."""
    question, taken = verdict.question, verdict.taken
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


COMPARISON = Comparison(
    name="heads",
    one="head",
    many="heads",
    result=Result,
    begin=begin,
    end=end,
    work=lambda task, settings, is_first: settings.steps + OF_MEMORY * (task.is_large and is_first),
    measures={
        "eps_perplexity": lambda result: result.perplexity,
        "perplexity": lambda result: result.exact_perplexity,
        "zeros": lambda result: result.mean("zeros"),
        "sparsemax_score": lambda result: result.score,
        "top1": lambda result: result.top1,
        "top5": lambda result: result.mean("top5"),
        "calibration_error": lambda result: result.mean("calibration"),
        "support": lambda result: result.mean("support"),
        "recall": lambda result: result.recall,
        "accuracy": lambda result: result.accuracy,
        "pairs_in_order": lambda result: result.mean("pairs"),
        "step_seconds": lambda result: result.step_seconds,
        "gradient_seconds": lambda result: result.seconds("gradient"),
        "update_seconds": lambda result: result.seconds("update"),
        PREDICT: lambda result: result.cost(PREDICT),
        PEAK: lambda result: result.peak_bytes,
    },
    options=("--text or --task", "--heads"),
    settings={"samples": SAMPLES, "scale": SCALE},
    besides=besides,
)
