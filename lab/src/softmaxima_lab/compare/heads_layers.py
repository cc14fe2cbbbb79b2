"""The heads of a comparison as layers: each gives a loss to train with, probabilities of all classes, and the most probable one.

Class 0 is the most frequent and the last the rarest, as log-uniform draws and torch's adaptive softmax take them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from softmaxima.heads import AdaptiveSoftmax, HierarchicalSoftmax, LinearLoss, MarginSoftmax, NoiseContrastive, SampledSoftmax
from softmaxima.integrations.pairs import LOSSES
from softmaxima.maps import find_map
from softmaxima_lab.compare.heads_plan import SAMPLES, SCALE, Head


class Layer(nn.Module):
    """A head: `forward(hidden, target)` is its loss."""

    def probabilities(self, hidden: Tensor) -> Tensor:
        """[rows, classes], exactly."""
        raise NotImplementedError

    def predict(self, hidden: Tensor) -> Tensor:
        """The most probable class [rows]."""
        raise NotImplementedError

    def cosines(self, hidden: Tensor) -> Tensor:
        """Of each hidden state with each class's vector, [rows, classes]."""
        raise NotImplementedError


class Full(Layer):
    """A linear layer with the loss of a map; β of an elastic softmax learns."""

    def __init__(self, features: int, classes: int, head: Head) -> None:
        super().__init__()
        self.map, self.params = find_map(head.map), dict(head.params)
        if head.map == "elastic_softmax":
            self.beta = nn.Parameter(torch.zeros(()))
            self.params["beta"] = self.beta
        self.layer = LinearLoss(features, classes, loss=(LOSSES[head.map], self.params), bias=True)

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        return self.layer(hidden, target)

    def probabilities(self, hidden: Tensor) -> Tensor:
        return self.map(functional.linear(hidden, self.layer.weight, self.layer.bias), **self.params)

    def predict(self, hidden: Tensor) -> Tensor:
        return self.layer.predict(hidden).squeeze(-1)

    def cosines(self, hidden: Tensor) -> Tensor:
        return functional.normalize(hidden, dim=-1) @ functional.normalize(self.layer.weight, dim=-1).T


class OfParts(Layer):
    """A head that looks at a part of the classes for its loss, and has the logarithms of all probabilities."""

    def __init__(self, layer: SampledSoftmax | NoiseContrastive | HierarchicalSoftmax | AdaptiveSoftmax) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        return self.layer(hidden, target)

    def probabilities(self, hidden: Tensor) -> Tensor:
        return self.layer.log_prob(hidden).exp()

    def predict(self, hidden: Tensor) -> Tensor:
        return self.layer.predict(hidden).squeeze(-1)


class OfCosines(Layer):
    """A margin softmax, whose classes are directions."""

    def __init__(self, features: int, classes: int, head: Head) -> None:
        super().__init__()
        self.layer = MarginSoftmax(features, classes, scale=SCALE, **head.params)

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        return self.layer(hidden, target)

    def predict(self, hidden: Tensor) -> Tensor:
        return self.cosines(hidden).argmax(-1)

    def cosines(self, hidden: Tensor) -> Tensor:
        return self.layer.cosines(hidden)


class TorchFull(Layer):
    """What everyone writes: all scores, then torch's cross-entropy."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(features, classes)

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(self.layer(hidden), target)

    def probabilities(self, hidden: Tensor) -> Tensor:
        return self.layer(hidden).softmax(-1)

    def predict(self, hidden: Tensor) -> Tensor:
        return self.layer(hidden).argmax(-1)


class TorchAdaptive(Layer):
    """torch's adaptive softmax."""

    def __init__(self, features: int, classes: int, cutoffs: tuple[int, ...]) -> None:
        super().__init__()
        self.layer = nn.AdaptiveLogSoftmaxWithLoss(features, classes, list(cutoffs), head_bias=True)

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        return self.layer(hidden, target).loss

    def probabilities(self, hidden: Tensor) -> Tensor:
        return self.layer.log_prob(hidden).exp()

    def predict(self, hidden: Tensor) -> Tensor:
        return self.layer.predict(hidden)


def layer(head: Head, features: int, counts: Tensor, seed: int) -> Layer:
    """The head, untrained, for classes that are so frequent."""
    classes = len(counts)
    match head.kind:
        case "linear":
            return Full(features, classes, head)
        case "margin":
            return OfCosines(features, classes, head)
        case "sampled":
            return OfParts(SampledSoftmax(features, classes, SAMPLES, generator=seed))
        case "noise":
            return OfParts(NoiseContrastive(features, classes, SAMPLES, generator=seed))
        case "tree":
            tree: Any = head.params["tree"]
            return OfParts(HierarchicalSoftmax(features, classes, tree=tree, frequencies=None if tree == "balanced" else counts))
        case "adaptive":
            return OfParts(AdaptiveSoftmax(features, classes, cutoffs(features, counts), head_bias=True))
        case "torch linear":
            return TorchFull(features, classes)
        case "torch adaptive":
            return TorchAdaptive(features, classes, cutoffs(features, counts))


def cutoffs(features: int, counts: Tensor) -> tuple[int, ...]:
    """Those that `AdaptiveSoftmax` chooses by the counts, one at least, for both that are adaptive."""
    return AdaptiveSoftmax(features, len(counts), frequencies=counts, device="meta").cutoffs or (len(counts) // 2,)
