"""compare attention: the same Transformer trained with every map in softmax's place, on a text and on pictures.

Beside the maps stand a baseline that has counted classes and reads nothing, and even attention, which averages all that it sees: a
map that is not better than both has not learnt where to look, and says nothing of attention.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import torch
from torch import Tensor
from torch.nn import functional

from softmaxima.maps import REGISTRY
from softmaxima_lab.compare import engine, training
from softmaxima_lab.compare.attention_plan import EVEN, LEFT_OUT, VARIANTS, Variant
from softmaxima_lab.compare.attention_tasks import BASELINE, Task
from softmaxima_lab.compare.engine import Advanced, Comparison, Reached, Run, Trained, reached
from softmaxima_lab.compare.settings import Settings
from softmaxima_lab.compare.transformer import Transformer

SCORED = 64  # held-out rows at once
LOOKED_AT = 16  # held-out rows on whose attention keys are counted
KEPT = "kept_bytes"  # what a step's forward pass keeps for its backward pass, weights and batch aside


@dataclass(frozen=True)
class Head:
    """What a head does with the keys that its queries see, on held-out rows: means over queries."""

    layer: int
    share: float  # of these keys, that have p > 0
    keys: float  # exp(H) of p/Σp: as many equal ones would be as spread
    mass: float  # Σp
    learnt: float | None = None  # its α or its sink, of a single run


class Result(engine.Result[Variant]):
    """What a map reached with all seeds, or the baseline without one."""

    @property
    def quality(self) -> float:
        return self.mean("quality")

    @property
    def heads(self) -> tuple[Head, ...]:
        """Means over the seeds that did not diverge, in each layer of the head with the fewest keys in effect first.

        The first head of one seed is no relative of that of another.
        """
        seeds = [sorted(heads_of(run), key=lambda head: (head.layer, head.keys)) for run in self.runs if run.reached.drawn]
        return tuple(_mean_head(same) for same in zip(*seeds, strict=True))

    @property
    def learnt(self) -> tuple[tuple[float, float], ...]:
        """The least and the largest number that heads of each layer have learnt, over seeds."""
        found: dict[int, list[float]] = {}
        for head in (head for run in self.runs for head in heads_of(run)):
            if head.learnt is not None:
                found.setdefault(head.layer, []).append(head.learnt)
        return tuple((min(numbers), max(numbers)) for numbers in found.values())


def _mean_head(heads: Sequence[Head]) -> Head:
    return Head(heads[0].layer, *(fmean(getattr(head, name) for head in heads) for name in ("share", "keys", "mass")))


Finding = engine.Finding[Task, Result]
Study = engine.Study[Task, Result]


def offered() -> tuple[Variant, ...]:
    """What is compared: the variants, and each map that is registered besides and gives probabilities of one key."""
    known = {variant.map for variant in VARIANTS} | set(LEFT_OUT)
    added = [map for map in REGISTRY.values() if map.name not in known]
    kept = [map for map in added if map.properties.of_one_class and not map.properties.logarithmic]
    return (*VARIANTS, *(Variant(map.name.replace("_", " "), map.name) for map in kept))


def compared(chosen: Sequence[Variant]) -> tuple[Variant, ...]:
    """The chosen ones with softmax first, and even attention."""
    softmax = VARIANTS[0]
    return (softmax, *(variant for variant in chosen if variant != softmax), EVEN)


class Training(training.Training):
    """Of one Transformer."""

    def __init__(self, task: Task, variant: Variant, seed: int, steps: int) -> None:
        self.task, self.variant = task, variant
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.network = task.network(variant)
        super().__init__(variant, [self.network], task, len(task.x), steps, seed)
        with torch.enable_grad():
            self.kept_bytes = kept_bytes(self.network, task.x[self.batches[0]], task.y[self.batches[0]].long())

    def loss(self, rows: Tensor) -> Tensor:
        return functional.cross_entropy(self.network(self.task.x[rows]).flatten(0, -2), self.task.y[rows].long().flatten())

    def costs(self) -> Mapping[str, float]:
        return {KEPT: self.kept_bytes}

    def marks(self) -> Reached:
        task = self.task
        parts = zip(task.held_x.split(SCORED), task.held_y.split(SCORED), strict=True)
        found = [task.rows(self.network(x), y) for x, y in parts]
        rows, nats = (torch.cat(parts) for parts in zip(*found, strict=True))
        p = self.network.weights(task.held_x[:LOOKED_AT])
        seen = heads(p, task.causal, self.network.learnt(self.variant.learnt) if self.variant.learnt else None)
        besides = {name: fmean(getattr(head, name) for head in seen) for name in ("share", "keys", "mass")}
        besides["log loss"] = float(nats.mean()) if bool(nats.isfinite().all()) else math.nan
        names = ("layer", "share", "keys", "mass", *["learnt"] * bool(self.variant.learnt))
        return reached({"quality": rows}, besides, {name: [getattr(head, name) for head in seen] for name in names})


def kept_bytes(network: Transformer, x: Tensor, y: Tensor) -> int:
    """What a forward pass keeps until its backward pass is done: the memory that autograd saves, counted once, without weights and
    batch. What a kernel needs while it runs is not in it."""
    found: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = functional.cross_entropy(network(x).flatten(0, -2), y.flatten())  # which holds what is kept
    known = {tensor.untyped_storage().data_ptr() for tensor in (*network.parameters(), x, y, loss)}
    return sum(size for place, size in found.items() if place not in known)


def heads(p: Tensor, causal: bool, learnt: list[list[float]] | None) -> list[Head]:
    """What p [layers, rows, heads, queries, keys] is like, of each layer and head; of the last layer without a causal mask that of
    the first token, for the others are not read."""
    layers = [*p.double()]
    if not causal:
        layers[-1] = layers[-1][:, :, :1]
    numbers = learnt or [[None] * p.shape[2]] * len(layers)
    return [head for n, layer in enumerate(layers) for head in _heads(n, layer, causal, numbers[n])]


def _heads(number: int, p: Tensor, causal: bool, learnt: Iterable[float | None]) -> list[Head]:
    """Of p [rows, heads, queries, keys] of one layer."""
    queries, keys = p.shape[-2:]
    visible = torch.arange(1, queries + 1, dtype=p.dtype) if causal else torch.full((queries,), float(keys), dtype=p.dtype)
    mass = p.sum(-1)
    even = p / mass.clamp_min(1e-300).unsqueeze(-1)
    spread = torch.special.entr(even).sum(-1).exp().where(mass > 0, 0.0)
    share = (p > 0).sum(-1).sum((0, 2)) / (visible.sum() * len(p))
    numbers = (x.tolist() for x in (share, spread.mean((0, 2)), mass.mean((0, 2))))
    return [Head(number, *own) for own in zip(*numbers, learnt, strict=True)]


def heads_of(run: Run) -> list[Head]:
    """Of a run; none where it diverged."""
    drawn = run.reached.drawn
    if "share" not in drawn:
        return []
    numbers = zip(drawn["layer"], drawn["share"], drawn["keys"], drawn["mass"], strict=True)
    learnt = drawn.get("learnt", (None,) * len(drawn["share"]))
    return [Head(int(layer), *own, learnt=last) for (layer, *own), last in zip(numbers, learnt, strict=True)]


def pictured(softmax: Run, causal: bool) -> tuple[int, int]:
    """The layer and head that is shown, given softmax with the first seed: that which looks at the fewest keys; without a causal
    mask in the last layer, whose first token alone is read on."""
    seen = heads_of(softmax)
    first = 0 if causal else max((head.layer for head in seen), default=0)
    if not (offered := [head for head in seen if head.layer >= first]):
        return 0, 0
    sharpest = min(offered, key=lambda head: head.keys)
    return sharpest.layer, [head for head in seen if head.layer == sharpest.layer].index(sharpest)


def begin(task: Task, seed: int, steps: int) -> list[Training]:
    return [Training(task, variant, seed, steps) for variant in task.candidates]


def end(task: Task, settings: Settings, trainings: Sequence[Training], seed: int, is_first: bool, advanced: Advanced) -> Trained:
    """What the maps reached, of the first seed with the weights that one head gives the keys of the first held-out row."""
    runs = {training.name: training.end() for training in trainings}
    if is_first:
        layer, head = pictured(runs[task.candidates[0].name], task.causal)
        for training in trainings:
            if (run := runs[training.name]).diverged is None:
                with torch.no_grad():
                    p = training.network.weights(task.held_x[:1])[layer, 0, head]
                weights = tuple(float(f"{x:.4g}") for x in p.flatten().tolist())
                drawn = {**run.reached.drawn, "weights": weights}
                runs[training.name] = replace(run, reached=replace(run.reached, drawn=drawn))
    return {**runs, BASELINE: Run(reached({"quality": task.baseline()}))}


COMPARISON = Comparison(
    name="attention",
    one="map",
    many="maps",
    result=Result,
    begin=begin,
    end=end,
    work=lambda task, settings, is_first: settings.steps,
    measures={
        "quality": lambda result: result.quality,
        "log_loss": lambda result: result.mean("log loss"),
        "share": lambda result: result.mean("share"),
        "keys": lambda result: result.mean("keys"),
        "mass": lambda result: result.mean("mass"),
        "step_seconds": lambda result: result.step_seconds,
        KEPT: lambda result: result.cost(KEPT),
    },
    options=("--text or --task", "--maps"),
    left_out=LEFT_OUT,
)
