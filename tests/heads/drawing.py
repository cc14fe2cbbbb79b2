"""Samplers and sums that make the mean over all draws exact, for the tests of losses that draw."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from conftest import normal

CLASSES, FEATURES = 4, 3


@dataclass
class Told:
    """A sampler, of no class of the library, that draws what it was told, from what it says is Q."""

    draws: Tensor
    q: Tensor
    classes: int = CLASSES

    def log_prob(self, classes: Tensor) -> Tensor:
        return self.q.log()[classes]

    def sample(self, shape: Sequence[int], generator: Any = None) -> Tensor:
        return self.draws.expand(tuple(shape))


def layer(classes: int = CLASSES, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """(one hidden state, a weight, a bias)."""
    weight, bias = normal(classes, FEATURES, seed=1, scale=scale), normal(classes, seed=2, scale=scale)
    return normal(FEATURES, seed=3, scale=scale), weight, bias


def gradient(loss: Callable[[Tensor], Tensor], hidden: Tensor) -> Tensor:
    """Of a loss by rows of hidden states."""
    hidden = hidden.clone().requires_grad_()
    return torch.autograd.grad(loss(hidden).sum(), hidden)[0]


def all_draws(samples: int, q: Tensor) -> tuple[Tensor, Tensor]:
    """(each multiset of `samples` classes as a row, the probability that independent draws of Q make it)."""
    cuts = torch.tensor(list(itertools.combinations(range(samples + len(q) - 1), len(q) - 1)))
    ends = torch.full((len(cuts), 1), samples + len(q) - 1)
    counts = torch.cat((cuts, ends), 1) - torch.cat((torch.full((len(cuts), 1), -1), cuts), 1) - 1  # [multisets, classes]
    classes = torch.arange(len(q)).repeat(len(cuts), 1).flatten().repeat_interleave(counts.flatten()).view(-1, samples)
    log_p = math.lgamma(samples + 1) - torch.lgamma(counts.double() + 1).sum(1) + torch.special.xlogy(counts, q).sum(1)
    log_p = log_p - log_p.logsumexp(0)  # lgamma's rounding
    return classes, log_p.exp()


def mean_gradient(loss: Callable[..., Tensor], target: int, samples: int, q: Tensor, said: Tensor | None = None) -> Tensor:
    """E ∂L/∂h over all draws of Q, to the last digits; the sampler says that they are of `said`."""
    classes, p = all_draws(samples, q)
    hidden, weight, bias = layer(len(q))
    options = {"samples": samples, "sampler": Told(classes, q if said is None else said, len(q)), "shared": False}
    labels = torch.full((len(p),), target)
    slopes = gradient(lambda h: loss(h, weight, labels, bias=bias, reduction="none", **options), hidden.expand(len(p), FEATURES))
    return p @ slopes


def full_gradient(target: int, classes: int = CLASSES) -> Tensor:
    """Of the cross-entropy over all classes."""
    hidden, weight, bias = layer(classes)
    return gradient(lambda h: torch.nn.functional.cross_entropy(weight @ h + bias, torch.tensor(target)), hidden)


def standard_errors(slopes: Tensor, expected: Tensor) -> Tensor:
    """How many standard errors the mean of independent rows is from what is expected."""
    return (slopes.mean(0) - expected) / (slopes.std(0) / math.sqrt(len(slopes)))
