r"""Negatives of labelled rows: drawn, scored, and with their log Q."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from softmaxima.core.numbers import check_count, check_flag
from softmaxima.core.randomness import as_torch_generator
from softmaxima.core.tracing import is_concrete, sizes
from softmaxima.heads.corrections import check_log_q
from softmaxima.heads.labelled import Labelled
from softmaxima.heads.samplers import AnySampler, Sampler, as_sampler


@dataclass(frozen=True)
class Candidates:
    """Scores of rows' labels and of the negatives that were drawn, with their logarithms of Q in float64."""

    target: Tensor  # [rows]
    negatives: Tensor  # [rows, m]
    log_q_target: Tensor  # [rows]
    log_q: Tensor  # [m] or [rows, m]
    hits: Tensor  # [rows, m], where a negative is the row's own label


def draw(name: str, labelled: Labelled, samples: Any, sampler: Any, shared: Any, sparse: Any, generator: Any) -> Candidates:
    """Checked; `shared` negatives are the same for all rows."""
    samples, rows, labels = check_count(name, "samples", samples), labelled.rows, labelled.labels
    shared, sparse = check_flag(name, "shared", shared), check_flag(name, "sparse", sparse)
    chosen = as_sampler(name, sampler, rows.classes)
    if isinstance(sampler, str) and isinstance(chosen, Sampler):
        chosen = chosen.to(labels.device)
    shape = (samples,) if shared else (sizes(labels)[0], samples)
    with torch.no_grad():
        negatives = _drawn(name, chosen, shape, generator).to(labels.device)
        log_q_target, log_q = (_log_q(name, chosen, classes) for classes in (labels, negatives))
    hits = negatives == labels.unsqueeze(-1)
    if shared:
        scores, own = rows.scores_of(negatives, labels, sparse)
    else:
        both = rows.scores_each(torch.cat((labels.unsqueeze(-1), negatives), -1), sparse)
        own, scores = both[:, 0], both[:, 1:]
    return Candidates(own, scores, log_q_target, log_q, hits)


def _drawn(name: str, sampler: AnySampler, shape: tuple[int, ...], generator: Any) -> Tensor:
    drawn = sampler.sample(shape, generator=as_torch_generator(name, generator))
    if not isinstance(drawn, Tensor) or drawn.dtype != torch.long or sizes(drawn) != shape:
        got = f"{drawn.dtype} of shape {sizes(drawn)}" if isinstance(drawn, Tensor) else type(drawn).__name__
        raise ValueError(f"{name}: sampler.sample must return int64 of shape {shape}, got {got}")
    if is_concrete(drawn) and bool((wrong := (drawn < 0) | (drawn >= sampler.classes)).any()):
        raise IndexError(f"{name}: the sampler drew class {int(drawn[wrong][0])}, out of range for {sampler.classes} classes")
    return drawn


def _log_q(name: str, sampler: AnySampler, classes: Tensor) -> Tensor:
    log_q = sampler.log_prob(classes.to(sampler.place.device) if isinstance(sampler, Sampler) else classes)
    if not isinstance(log_q, Tensor) or not log_q.is_floating_point() or sizes(log_q) != sizes(classes):
        got = f"{log_q.dtype} of shape {sizes(log_q)}" if isinstance(log_q, Tensor) else type(log_q).__name__
        raise ValueError(f"{name}: sampler.log_prob must return one float64 for each of {sizes(classes)} classes, got {got}")
    log_q = log_q.detach().double().to(classes.device)
    check_log_q(name, "the sampler", "class", log_q, classes)
    return log_q
