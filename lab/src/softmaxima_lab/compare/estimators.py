"""compare estimators: the same categorical VAE trained with every estimator of its gradient, and all judged by one objective.

With the same seed the weights at the beginning, the batches and their order are the same for every estimator. Whatever an
estimator maximises, the ELBO that is compared is that of one-hot draws, on held-out pictures, by the same noise for all. What
gradients are worth is measured at the weights that REINFORCE, which is unbiased, has half-way.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from softmaxima_lab.compare import engine, training
from softmaxima_lab.compare.differences import Difference, interval_of, of_mean
from softmaxima_lab.compare.engine import Advanced, Comparison, Question, Reached, Run, Trained, Verdict, digest, reached
from softmaxima_lab.compare.estimators_gradients import BATCHES, QUICK_BATCHES, gradients
from softmaxima_lab.compare.estimators_plan import LEFT_OUT, UNBIASED, Candidate
from softmaxima_lab.compare.measures import Metric
from softmaxima_lab.compare.pixels import HELD_OUT, Pixels
from softmaxima_lab.compare.settings import Settings
from softmaxima_lab.compare.vae import CLASSES, HIDDEN, LATENTS, VAE, Estimated
from softmaxima_lab.wording import listed

BATCH, RATE = 64, 5e-3
KL_WARMING = 0.4  # of the steps, in which the weight of KL rises to 1: without it no latent variable is used for long
SAMPLES = 64  # draws of each held-out picture
WATCHED, WATCHED_SAMPLES, POINTS = 128, 8, 20  # held-out pictures, draws and times, while it trains
SHARE = 0.5  # of the way from pixel frequencies to the best ELBO, where convergence is measured
OF_GRADIENT = 4  # steps that take about as long as what is measured on one batch of one estimator
PIXELS = "pixel frequencies"
WHY = "knows no picture from another: nothing is learnt here, or there are too few steps to learn it, or too few seeds to see it."
BARS = {PIXELS: WHY}
ELBO = Metric("elbo", "ELBO", "elbo", 1, "{:.2f} nats", unit="nats", most=0.0)
BOUND = Metric("bound", f"bound of {SAMPLES} draws", "bound", 1, "{:.2f} nats", unit="nats", most=0.0)
QUESTIONS = (
    Question("by the ELBO of one-hot draws", ELBO, "elbo", BARS),
    Question(f"by the tighter bound of {SAMPLES} draws", BOUND, "bound", BARS),
)


@dataclass(frozen=True)
class Task:
    """Pictures of pixels that are 0 or 1."""

    name: str
    heading: str
    title: str
    candidates: tuple[Candidate, ...]
    x: Tensor  # to train on, [rows, pixels]
    held: Tensor
    notes: tuple[str, ...]
    questions: tuple[Question, ...] = QUESTIONS
    batch: int = BATCH
    rate: float = RATE
    doubt: str = ""
    model: str = f"{LATENTS} latent variables of {CLASSES} classes, one hidden layer of {HIDDEN} on either side"

    @property
    def digest(self) -> str:
        return digest(self.x, self.held)


def vae_task(given: Pixels, candidates: tuple[Candidate, ...]) -> Task:
    """Of pictures whose pixels are 1 where they are at least half as bright as can be."""
    x = (given.x >= 0.5).float()
    notes = (f"{len(x)} pictures of {given.size}, black and white, of which {100 * HELD_OUT:.0f} % are held out",)
    return Task(given.name, given.heading, given.title, candidates, x[~given.is_held], x[given.is_held], notes)


class Result(engine.Result[Candidate]):
    """What an estimator reached with all seeds, or pixel frequencies, without one."""

    @property
    def elbo(self) -> float:
        return self.mean("elbo")

    @property
    def bound(self) -> float:
        return self.mean("bound")


Finding = engine.Finding[Task, Result]
Study = engine.Study[Task, Result]


def frequencies(x: Tensor) -> Tensor:
    """How often each pixel is 1, and twice more, once each way."""
    return (x.double().sum(0) + 1) / (len(x) + 2)


def _frequencies(task: Task) -> Reached:
    """Of who has counted, for each pixel, where it is 1."""
    p = frequencies(task.x)
    likelihood = torch.where(task.held == 1, p, 1 - p).log().sum(-1)
    watched = {"taken": [0.0], "curve": [float(likelihood[:WATCHED].mean())]}
    return reached({"elbo": likelihood, "bound": likelihood}, {}, watched)


class Training(training.Training):
    """With one estimator. On the way it keeps what it is half-way, and some ELBOs."""

    def __init__(self, task: Task, candidate: Candidate, seed: int, steps: int) -> None:
        self.task, self.seed = task, seed
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.estimated = Estimated(VAE(frequencies(task.x)), candidate)
        self.half_way = self.estimated
        self.generator = torch.Generator().manual_seed((seed + 2**31) % 2**32)  # not that of the batches
        self.curve: dict[int, float] = {}  # of the steps taken
        super().__init__(candidate, [self.estimated], task, len(task.x), steps, seed)

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

    def marks(self) -> Reached:
        elbo, bound = self.estimated.vae.bounds(self.task.held, SAMPLES, self.seed)
        own = -self.estimated.negative(self.task.held, torch.Generator().manual_seed(self.seed)).mean()
        drawn = {"taken": [float(steps) for steps in self.curve], "curve": list(self.curve.values())}
        return reached({"elbo": elbo, "bound": bound}, {"own": float(own)}, drawn)


def begin(task: Task, seed: int, steps: int) -> list[Training]:
    return [Training(task, candidate, seed, steps) for candidate in task.candidates]


def end(task: Task, settings: Settings, trainings: Sequence[Training], seed: int, is_first: bool, advanced: Advanced) -> Trained:
    """What the estimators reached, and what their gradients are worth at the weights that the unbiased one has half-way."""
    runs = {training.name: training.end() for training in trainings}
    common = next(training for training in trainings if training.name == UNBIASED.name)
    if common.diverged is None:
        half_way = [training.half_way for training in trainings]
        found = gradients(common.half_way.vae, half_way, task.x, task.batch, _batches(settings), seed)
        runs = {name: _with_means(run, found[name]) for name, run in runs.items()}
    advanced(OF_GRADIENT * _batches(settings) * len(trainings))
    return runs | {PIXELS: Run(_frequencies(task))}


def _with_means(run: Run, found: Mapping[str, float]) -> Run:
    """A run that did not diverge, with further measures."""
    if run.diverged is not None:
        return run
    return replace(run, reached=replace(run.reached, means={**run.reached.means, **found}))


def _batches(settings: Settings) -> int:
    return QUICK_BATCHES if settings.quick else BATCHES


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


def besides(finding: Finding, verdict: Verdict[Result]) -> str:
    """Which estimators cannot be told from the one that is taken."""
    if verdict.taken is None or verdict.taken is finding.softmax:
        return ""
    pairs = math.comb(len(finding.trained), 2)  # any of them might have been the best
    others = [result for result in finding.others if result is not verdict.taken]
    gains = {result.name: engine.difference(verdict.taken, result, verdict.question, pairs) for result in others}
    alike = [name for name, gain in gains.items() if not gain.better]
    if alike:
        return f"Not told from it, of all pairs: {listed(alike)}."
    return "It is better than every other, of all pairs."


def of_task(finding: Finding) -> Mapping[str, Any]:
    """What the record has besides: where convergence is measured, and the claims."""
    from softmaxima_lab.compare.estimators_claims import claims  # which are made of what is here

    return {"target": target(finding), "claims": [asdict(claim) for claim in claims(finding)]}


def of_result(finding: Finding, result: Result) -> Mapping[str, Any]:
    """What of each seed is shown with an interval."""
    if result.candidate is None:
        return {}
    over_seeds = {measure: result.by_seed(measure) for measure in ("snr", "snr of draws", "bias")}
    return {"steps_to_target": steps_to(result, target(finding)), "over_seeds": over_seeds}


COMPARISON = Comparison(
    name="estimators",
    one="estimator",
    many="estimators",
    result=Result,
    begin=begin,
    end=end,
    work=lambda task, settings, is_first: settings.steps + OF_GRADIENT * _batches(settings),
    measures={
        "elbo": lambda result: result.elbo,
        "bound": lambda result: result.bound,
        "own_objective": lambda result: result.mean("own"),
        "snr": lambda result: result.mean("snr"),
        "snr_of_draws": lambda result: result.mean("snr of draws"),
        "bias": lambda result: result.mean("bias"),
        "step_seconds": lambda result: result.step_seconds,
    },
    options=("--data", "--estimators"),
    settings={"samples": SAMPLES, "share": SHARE, "kl_warming": KL_WARMING},
    left_out=LEFT_OUT,
    besides=besides,
    of_task=of_task,
    of_result=of_result,
)
