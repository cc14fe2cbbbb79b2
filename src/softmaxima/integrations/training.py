"""One small network that learns a table, some steps at a time, so that several can take turns."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from softmaxima.integrations.pairs import Head, Pair

EVALUATED_ROWS = 8192  # at once

Weights = tuple[tuple[Tensor, Tensor], ...]  # (W [outputs, inputs], b [outputs]) of each layer


class Training:
    """Adam on the mean loss of a pair, from weights and through batches that a random state decides and the pair does not.

    Args:
        pair: the map and the loss.
        x: features [rows, features] float32 or float64, which the network has too.
        target: class indices [rows] int64.
        weight: of each row [rows], or None for equal ones. A batch's loss is Σwℓ/Σw.
        classes: how many there are.
        hidden: units of each hidden layer.
        epochs: passes over the rows.
        random: draws the weights, then the order of the rows of each epoch.
    """

    def __init__(
        self,
        pair: Pair,
        x: Tensor,
        target: Tensor,
        weight: Tensor | None,
        classes: int,
        *,
        hidden: Sequence[int],
        epochs: int,
        batch: int,
        learning_rate: float,
        random: np.random.Generator,
    ) -> None:
        self.pair, self.x, self.target, self.weight = pair, x, target, weight
        initial = _initial_weights(random, (x.shape[1], *hidden, classes), x.dtype)
        self.network: Weights = tuple((w.requires_grad_(), b.requires_grad_()) for w, b in initial)
        self.optimiser = torch.optim.Adam([part for layer in self.network for part in layer], lr=learning_rate, fused=True)
        self.random, self.batch = random, batch
        self.steps_an_epoch = math.ceil(len(x) / batch)
        self.steps = epochs * self.steps_an_epoch
        self.done = 0
        self._batches: list[Tensor] = []  # what is left of an epoch, the next at the end
        self.losses: list[float] = []  # the mean loss of each epoch
        self._total = 0.0
        self._mass = len(x) if weight is None else float(weight.sum())

    @property
    def finished(self) -> bool:
        return self.done >= self.steps

    def advance(self, steps: int) -> list[float]:
        """Take so many steps, or those that are left; the seconds of each: forward pass, backward pass and Adam's update."""
        seconds = []
        with torch.enable_grad():
            for _ in range(min(steps, self.steps - self.done)):
                if not self._batches:
                    order = torch.from_numpy(self.random.permutation(len(self.x)))
                    self._batches = list(order.split(self.batch))[::-1]
                rows = self._batches.pop()
                inputs, classes = self.x[rows], self.target[rows]
                weight = None if self.weight is None else self.weight[rows]
                start = time.perf_counter()
                self.optimiser.zero_grad()
                loss = _mean_loss(self.pair, scores(self.pair.head, self.network, inputs), classes, weight)
                loss.backward()
                self.optimiser.step()
                seconds.append(time.perf_counter() - start)
                self._total += loss.item() * (len(rows) if weight is None else float(weight.sum()))
                self.done += 1
                if not self._batches:
                    self.losses.append(self._total / self._mass)
                    self._total = 0.0
        return seconds

    @torch.no_grad()
    def mean_loss(self, x: Tensor, target: Tensor, weight: Tensor | None) -> float:
        """The mean loss of other rows, ∞ where it is not a number."""
        loss = _mean_loss(self.pair, scores(self.pair.head, self.network, x), target, weight).item()
        return loss if math.isfinite(loss) else math.inf

    def weights(self) -> Weights:
        """A copy of the network."""
        return tuple((weight.detach().clone(), bias.detach().clone()) for weight, bias in self.network)


def _mean_loss(pair: Pair, scores: Tensor, target: Tensor, weight: Tensor | None) -> Tensor:
    if weight is None:
        return pair.losses(scores, target)
    total = weight.sum()
    return (pair.losses(scores, target, reduction="none") * weight).sum() / torch.where(total > 0, total, 1.0)


def _initial_weights(random: np.random.Generator, sizes: Sequence[int], dtype: torch.dtype) -> Weights:
    """Uniform in ±1/√inputs, as `torch.nn.Linear` has it."""
    layers = []
    for inputs, outputs in pairwise(sizes):
        bound = 1 / math.sqrt(inputs)
        weight, bias = (torch.from_numpy(random.uniform(-bound, bound, shape)).to(dtype) for shape in ((outputs, inputs), outputs))
        layers.append((weight, bias))
    return tuple(layers)


def scores(head: Head, network: Weights, x: Tensor) -> Tensor:
    """Scores [rows, classes] of features [rows, features]."""
    *hidden, (weight, bias) = network
    for hidden_weight, hidden_bias in hidden:
        x = functional.linear(x, hidden_weight, hidden_bias).relu()
    if head == "linear":
        return functional.linear(x, weight, bias)
    features = functional.normalize(functional.pad(x, (0, 1), value=1.0))
    return features @ functional.normalize(torch.cat((weight, bias[:, None]), 1)).T


@torch.no_grad()
def probabilities(pair: Pair, network: Weights, x: Tensor) -> Tensor:
    """Probabilities [rows, classes] in the dtype of the features."""
    return torch.cat([pair.probabilities(scores(pair.head, network, part)) for part in x.split(EVALUATED_ROWS)])
