"""compare-estimators: the same categorical VAE trained with every estimator of its gradient, and all judged by one objective.

With the same seed the weights at the beginning, the batches and their order are the same for every estimator. Whatever an
estimator maximises, the ELBO that is compared is that of one-hot draws, on held-out pictures, by the same noise for all. What
gradients are worth is measured at the weights that REINFORCE, which is unbiased, has half-way. Differences are those of `studies`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from statistics import fmean

import torch
from torch import Tensor

from softmaxima_lab.compare import studies
from softmaxima_lab.compare.attention_plan import Settings
from softmaxima_lab.compare.differences import Difference, interval_of, of_mean
from softmaxima_lab.compare.measures import Metric
from softmaxima_lab.compare.pixels import HELD_OUT, Pixels
from softmaxima_lab.compare.studies import Question, Reached, Run, Trained, Verdict, digest, reached, seconds_of_steps
from softmaxima_lab.compare.turns import in_turns, one_thread
from softmaxima_lab.compare.vae import CLASSES, HIDDEN, LATENTS, VAE, Estimated
from softmaxima_lab.compare.vae_gradients import BATCHES, QUICK_BATCHES, gradients
from softmaxima_lab.compare.vae_plan import LEFT_OUT, UNBIASED, Candidate
from softmaxima_lab.compare.verdicts import Words
from softmaxima_lab.wording import listed

BATCH, RATE = 64, 5e-3
KL_WARMING = 0.4  # of the steps, in which the weight of KL rises to 1: without it no latent variable is used for long
SAMPLES = 64  # draws of each held-out picture
WATCHED, WATCHED_SAMPLES, POINTS = 128, 8, 20  # held-out pictures, draws and times, while it trains
SHARE = 0.5  # of the way from pixel frequencies to the best ELBO, where convergence is measured
OF_GRADIENT = 4  # steps that take about as long as what is measured on one batch of one estimator
PIXELS = "pixel frequencies"
WHY = "knows no picture from another: nothing is learnt here, or there are too few steps to learn it, or too few seeds to see it."
ELBO = Metric("elbo", "ELBO", "elbo", 1, "{:.2f} nats", unit="nats", most=0.0)
BOUND = Metric("bound", f"bound of {SAMPLES} draws", "bound", 1, "{:.2f} nats", unit="nats", most=0.0)
QUESTIONS = (
    Question("by the ELBO of one-hot draws", ELBO, "elbo", PIXELS, WHY),
    Question(f"by the tighter bound of {SAMPLES} draws", BOUND, "bound", PIXELS, WHY),
)


@dataclass(frozen=True)
class Task:
    """Pictures of pixels that are 0 or 1."""

    name: str
    heading: str
    title: str
    entries: tuple[Candidate, ...]
    x: Tensor  # to train on, [rows, pixels]
    held: Tensor
    notes: tuple[str, ...]
    questions: tuple[Question, ...] = QUESTIONS
    batch: int = BATCH
    rate: float = RATE
    model: str = f"{LATENTS} latent variables of {CLASSES} classes, one hidden layer of {HIDDEN} on either side"

    @property
    def digest(self) -> str:
        return digest(self.x, self.held)


def vae_task(given: Pixels, entries: tuple[Candidate, ...]) -> Task:
    """Of pictures whose pixels are 1 where they are at least half as bright as can be."""
    x = (given.x >= 0.5).float()
    notes = (f"{len(x)} pictures of {given.size}, black and white, of which {100 * HELD_OUT:.0f} % are held out",)
    return Task(given.name, given.heading, given.title, entries, x[~given.is_held], x[given.is_held], notes)


class Result(studies.Result[Candidate]):
    """What an estimator reached with all seeds, or pixel frequencies, without one."""

    @property
    def elbo(self) -> float:
        return self.mean("elbo")

    @property
    def bound(self) -> float:
        return self.mean("bound")


Finding = studies.Finding[Task, Result]
Study = studies.Study[Settings, Finding]


# The experiment -----------------------------------------------------------------------------------------------------------


def compare_estimators(tasks: Sequence[Task], settings: Settings, advanced: Callable[[int], None] = lambda steps: None) -> Study:
    """Train with every estimator on every task with every seed. `advanced(steps)` is called after steps of training."""
    return summary(tasks, settings, list(trained(tasks, settings, advanced=advanced)))


def trained(
    tasks: Sequence[Task], settings: Settings, start: int = 0, advanced: Callable[[int], None] = lambda steps: None
) -> Iterator[tuple[str, Trained]]:
    """(a task's name, what every estimator reached), seed after seed, on all tasks with each; from the one of number `start` on."""
    for number, task in islice(product(range(settings.seeds), tasks), start, None):
        with one_thread():
            yield task.name, _trained(task, settings, settings.seed + number, advanced)


def _trained(task: Task, settings: Settings, seed: int, advanced: Callable[[int], None]) -> Trained:
    trainings = [Training(task, candidate, seed, settings.steps) for candidate in task.entries]
    in_turns(trainings, settings.steps, advanced)
    (common,) = (each for each in trainings if each.estimated.candidate.name == UNBIASED.name)
    found: dict[str, dict[str, float]] = {}
    if common.diverged is None:
        half_way = [each.half_way for each in trainings]
        found = gradients(common.half_way.vae, half_way, task.x, task.batch, _batches(settings), seed)
    advanced(OF_GRADIENT * _batches(settings) * len(trainings))
    runs = {each.estimated.candidate.name: each for each in trainings}
    return {name: each.end(found.get(name, {})) for name, each in runs.items()} | {PIXELS: Run(_frequencies(task))}


def _batches(settings: Settings) -> int:
    return QUICK_BATCHES if settings.quick else BATCHES


def frequencies(x: Tensor) -> Tensor:
    """How often each pixel is 1, and twice more, once each way."""
    return (x.double().sum(0) + 1) / (len(x) + 2)


def _frequencies(task: Task) -> Reached:
    """Of who has counted, for each pixel, where it is 1."""
    p = frequencies(task.x)
    likelihood = torch.where(task.held == 1, p, 1 - p).log().sum(-1)
    watched = {"taken": [0.0], "curve": [float(likelihood[:WATCHED].mean())]}
    return reached({"elbo": likelihood, "bound": likelihood}, {}, watched)


class Training(studies.Training):
    """With one estimator. On the way it keeps what it is half-way, and some ELBOs."""

    def __init__(self, task: Task, candidate: Candidate, seed: int, steps: int) -> None:
        self.task, self.seed = task, seed
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.estimated = Estimated(VAE(frequencies(task.x)), candidate)
        self.half_way = self.estimated
        self.generator = torch.Generator().manual_seed((seed + 2**31) % 2**32)  # not that of the batches
        self.curve: dict[int, float] = {}  # of the steps taken
        super().__init__([self.estimated], task.rate, len(task.x), task.batch, steps, seed)

    def loss(self, rows: Tensor) -> Tensor:
        weight = min(1.0, len(self.seconds) / (KL_WARMING * self.steps))
        return self.estimated.negative(self.task.x[rows], self.generator, weight, learns=True).mean()

    def advance(self, steps: int) -> int:
        due = super().advance(steps)
        taken = len(self.seconds)
        if self.half_way is self.estimated and taken >= self.steps / 2:
            self.half_way = copy.deepcopy(self.estimated)
        if taken >= max(self.curve, default=0) + self.steps / POINTS:
            elbo, _ = self.estimated.vae.bounds(self.task.held[:WATCHED], WATCHED_SAMPLES, self.seed)
            self.curve[taken] = float(elbo.mean())
        return due

    @torch.no_grad()
    def end(self, of_gradient: Mapping[str, float]) -> Run:
        """What it reached on the pictures held out, and what its gradient is worth."""

        def marks() -> Reached:
            elbo, bound = self.estimated.vae.bounds(self.task.held, SAMPLES, self.seed)
            own = -self.estimated.negative(self.task.held, torch.Generator().manual_seed(self.seed)).mean()
            drawn = {"taken": [float(steps) for steps in self.curve], "curve": list(self.curve.values())}
            return reached({"elbo": elbo, "bound": bound}, {"own": float(own), **of_gradient}, drawn)

        return self.run(marks)


def total_steps(tasks: Sequence[Task], settings: Settings, start: int = 0) -> int:
    """Of all trainings together, from the ones of number `start` on, and what takes as long."""
    left = islice(product(range(settings.seeds), tasks), start, None)
    return sum(len(task.entries) * (settings.steps + OF_GRADIENT * _batches(settings)) for _, task in left)


def seconds_of_all(tasks: Sequence[Task], settings: Settings, start: int = 0) -> float:
    """About what all trainings take from the ones of number `start` on, by a few steps with each estimator."""
    total = 0.0
    with one_thread():
        for place, task in enumerate(tasks):
            a_step = seconds_of_steps([Training(task, candidate, settings.seed, 3) for candidate in task.entries])
            seeds = sum(number * len(tasks) + place >= start for number in range(settings.seeds))
            total += seeds * a_step * (settings.steps + OF_GRADIENT * _batches(settings))
    return total


# What it says ---------------------------------------------------------------------------------------------------------------


def target(finding: Finding) -> float:
    """The ELBO at which convergence is measured: so far on the way from pixel frequencies to the best, of the pictures watched."""
    ends = {
        result.name: fmean(run.reached.drawn["curve"][-1] for run in result.runs)
        for result in finding.results
        if not result.diverged
    }
    least = ends[PIXELS]
    return least + SHARE * (max(ends.values()) - least)


def steps_to(result: Result, elbo: float) -> list[float]:
    """With each seed the steps until the ELBO is so large and stays it, between two by a line; infinite where that never is."""
    return [_reaches(run.reached.drawn.get("taken", ()), run.reached.drawn.get("curve", ()), elbo) for run in result.runs]


def _reaches(taken: Sequence[float], curve: Sequence[float], elbo: float) -> float:
    below = [number for number, value in enumerate(curve) if not value >= elbo]
    if not below:
        return taken[0] if taken else math.inf
    if (last := below[-1]) == len(curve) - 1:
        return math.inf
    return taken[last] + (taken[last + 1] - taken[last]) * (elbo - curve[last]) / (curve[last + 1] - curve[last])


def at_least_steps_to(result: Result, elbo: float) -> list[float]:
    """The same, with as many steps as were taken where it never is."""
    taken = [run.reached.drawn.get("taken", (math.inf,))[-1] for run in result.runs]  # none of what diverged
    return list(map(min, steps_to(result, elbo), taken))


def mean_of(values: Sequence[float], comparisons: int = 1) -> Difference:
    """The mean over seeds with its interval, one of so many that hold together."""
    return interval_of(values, [of_mean(values)], ELBO, comparisons)


def summary(
    tasks: Sequence[Task],
    settings: Settings,
    done: Sequence[tuple[str, Trained]],
    command: str = "",
    left_out: Mapping[str, str] | None = None,
) -> Study:
    """What the trainings that are done say, which may be fewer than the settings ask for."""
    return studies.study(tasks, settings, done, _finding, command, {**LEFT_OUT, **(left_out or {})})


def _finding(task: Task, runs: Sequence[Trained]) -> Finding:
    return studies.found(task, runs, Result, _verdict)


def _verdict(finding: Finding, question: Question) -> Verdict[Result]:
    words = Words("estimator", "estimators", f"on {finding.task.title}", "seed by seed")
    found = studies.recommended(finding, question, words)
    if found.taken in (None, finding.softmax):
        return found
    assert found.taken is not None
    pairs = math.comb(len(finding.trained), 2)  # any of them might have been the best
    alike = [r for r in finding.others if r is not found.taken and not studies.difference(found.taken, r, question, pairs).better]
    told = (
        f" Not told from it, of all pairs: {listed([r.name for r in alike])}."
        if alike
        else " It is better than every other, of all pairs."
    )
    return Verdict(question, found.taken, found.headline, found.reason + told)
