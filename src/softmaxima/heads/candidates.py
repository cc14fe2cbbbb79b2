r"""Negatives of labelled rows: drawn, scored, and with their log Q."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.arguments import check_values
from softmaxima.base.numbers import check_count, check_flag
from softmaxima.base.randomness import as_torch_generator
from softmaxima.base.tracing import is_concrete, sizes
from softmaxima.heads.corrections import check_log_q
from softmaxima.heads.labelled import Labelled
from softmaxima.heads.sampler import AnySampler, Sampler
from softmaxima.heads.samplers import as_sampler


@dataclass(frozen=True)
class Candidates:
    """Scores of rows' labels and of the negatives that were drawn, with their logarithms of Q in float64."""

    target: Tensor  # [rows]
    negatives: Tensor  # [rows, m]
    log_q_target: Tensor  # [rows]
    log_q: Tensor  # [m] or [rows, m]
    hits: Tensor  # [rows, m], where a negative is the row's own label


@dataclass(frozen=True)
class Drawing:
    """Labelled rows, and how their negatives are drawn."""

    name: str  # of the function or module
    labelled: Labelled
    samples: int
    sampler: AnySampler
    shared: bool  # the same negatives for all rows
    sparse: bool
    generator: torch.Generator | None
    learns: bool  # whether the sampler is told of the labels, if it can be

    def candidates(self) -> Candidates:
        """After all checks of a call: a sampler that learns has learned when this returns."""
        name, sampler, rows = self.name, self.sampler, self.labelled.rows
        labels, ignored = self.labelled.labels, self.labelled.ignored
        shape = (self.samples,) if self.shared else (sizes(labels)[0], self.samples)
        if self.learns and (observe := getattr(sampler, "observe", None)) is not None:
            seen = check_values(name, "target", labels)
            observe(seen if ignored is None else seen[~ignored])
        with torch.no_grad():
            negatives = _drawn(name, sampler, shape, self.generator).to(labels.device)
            log_q_target, log_q = _log_q(name, sampler, labels, ignored), _log_q(name, sampler, negatives, None)
        hits = negatives == labels.unsqueeze(-1)
        if self.shared:
            scores, own = rows.scores_of(negatives, labels, self.sparse)
        else:
            both = rows.scores_each(torch.cat((labels.unsqueeze(-1), negatives), -1), self.sparse)
            own, scores = both[:, 0], both[:, 1:]
        return Candidates(own, scores, log_q_target, log_q, hits)


def as_drawing(
    name: str, labelled: Labelled, samples: Any, sampler: Any, shared: Any, sparse: Any, generator: Any, learns: bool = False
) -> Drawing:
    """Checked."""
    samples = check_count(name, "samples", samples)
    shared, sparse = check_flag(name, "shared", shared), check_flag(name, "sparse", sparse)
    chosen, labels = as_sampler(name, sampler, labelled.rows.classes), labelled.labels
    if isinstance(sampler, str) and not learns and hasattr(chosen, "observe"):
        raise ValueError(
            f"{name}: the sampler {sampler!r} learns from call to call; make one, or take a module, SampledSoftmax for instance"
        )
    if isinstance(sampler, str) and isinstance(chosen, Sampler):
        chosen = chosen.to(labels.device)
    if isinstance(chosen, Sampler) and not labels.is_meta:
        check_values(name, "sampler", chosen.place)
    return Drawing(name, labelled, samples, chosen, shared, sparse, as_torch_generator(name, generator), learns)


def _drawn(name: str, sampler: AnySampler, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    drawn = sampler.sample(shape, generator=generator)
    if not isinstance(drawn, Tensor) or drawn.dtype != torch.long or sizes(drawn) != shape:
        got = f"{drawn.dtype} of shape {sizes(drawn)}" if isinstance(drawn, Tensor) else type(drawn).__name__
        raise ValueError(f"{name}: sampler.sample must return int64 of shape {shape}, got {got}")
    if is_concrete(drawn) and bool((wrong := (drawn < 0) | (drawn >= sampler.classes)).any()):
        raise IndexError(f"{name}: the sampler drew class {int(drawn[wrong][0])}, out of range for {sampler.classes} classes")
    return drawn


def _log_q(name: str, sampler: AnySampler, classes: Tensor, ignored: Tensor | None) -> Tensor:
    log_q = sampler.log_prob(classes.to(sampler.place.device) if isinstance(sampler, Sampler) else classes)
    if not isinstance(log_q, Tensor) or not log_q.is_floating_point() or sizes(log_q) != sizes(classes):
        got = f"{log_q.dtype} of shape {sizes(log_q)}" if isinstance(log_q, Tensor) else type(log_q).__name__
        raise ValueError(f"{name}: sampler.log_prob must return one float64 for each of {sizes(classes)} classes, got {got}")
    log_q = log_q.detach().double().to(classes.device)
    if ignored is not None:
        log_q = log_q.masked_fill(ignored, -math.log(2))  # whatever that of class 0 is, which stands for their labels
    check_log_q(name, "the sampler", "class", log_q, classes)
    return log_q
