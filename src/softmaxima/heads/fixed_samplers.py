"""Samplers whose Q is given: uniform, by Zipf's law, by weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.arguments import as_tensor
from softmaxima.base.numbers import check_int, check_number
from softmaxima.base.public import public
from softmaxima.base.randomness import Randomness
from softmaxima.base.tracing import is_concrete, sizes
from softmaxima.heads.sampler import Sampler, inverse


@public
class UniformSampler(Sampler):
    """Every class alike, `Q(c) = 1/classes`.

    >>> import torch, softmaxima as sm
    >>> sm.UniformSampler(4).log_prob(torch.tensor([0, 3])).exp()
    tensor([0.2500, 0.2500], dtype=torch.float64)
    """

    def log_prob(self, classes: Any) -> Tensor:
        return torch.full_like(self._checked(classes), -math.log(self.classes), dtype=torch.float64)

    def sample(self, shape: int | Sequence[int], generator: Randomness = None) -> Tensor:
        return (self._uniform(shape, generator) * self.classes).long()


@public
class LogUniformSampler(Sampler):
    """Zipf's law for classes that are sorted by falling frequency, `Q(c) = log((c + 2)/(c + 1)) / log(classes + 1)`.

    Args:
        classes: their number.
        first: how many more frequent ones there are before them, which are another's: Q(c) ∝ log((c + first + 2)/(c + first + 1)).

    No tables: a class is the integer part of a log-uniform number of [first + 1, first + classes + 1), less first + 1.

    >>> import torch, softmaxima as sm
    >>> sampler = sm.LogUniformSampler(1_000_000)
    >>> sampler.log_prob(torch.tensor([0, 999_999])).exp()
    tensor([5.0172e-02, 7.2382e-08], dtype=torch.float64)
    >>> sampler.sample((3,), generator=0)
    tensor([661177,  17656,    569])
    """

    def __init__(self, classes: int, first: int = 0) -> None:
        super().__init__(classes)
        self.first = check_int(type(self).__name__, "first", first, lambda place: place >= 0, "an int of at least 0")

    @property
    def _span(self) -> float:
        return math.log1p(self.classes / (self.first + 1))

    def log_prob(self, classes: Any) -> Tensor:
        log_share = (1 / (self._checked(classes).double() + self.first + 1)).log1p().log() - math.log(self._span)
        return log_share.clamp_max(0.0)  # of one class, but for rounding

    def sample(self, shape: int | Sequence[int], generator: Randomness = None) -> Tensor:
        drawn = (self._uniform(shape, generator) * self._span).expm1() * (self.first + 1)
        return drawn.long().clamp_max(self.classes - 1)


@public
class UnigramSampler(Sampler):
    """Classes by their weights, `Q(c) = w_c^power / Σ_j w_j^power`; one of weight 0 is never drawn.

    Args:
        weights: [classes], finite and not negative, such as how often each class was seen.
        power: 1 for the weights themselves, 0.75 as of word2vec, 0 for all alike whose weight is not 0.

    Raises:
        TypeError or ValueError for other weights, among them all 0.

    Cost: 16 bytes a class, and a binary search a draw. Source: Mikolov et al. (2013), arXiv:1310.4546.

    >>> import torch, softmaxima as sm
    >>> sampler = sm.UnigramSampler(torch.tensor([5, 0, 3, 2]))
    >>> sampler.log_prob(torch.arange(4)).exp()
    tensor([0.5000, 0.0000, 0.3000, 0.2000], dtype=torch.float64)
    >>> sampler.sample((8,), generator=0)
    tensor([3, 2, 0, 3, 2, 2, 0, 0])
    """

    log_q: Tensor
    cumulative: Tensor

    def __init__(self, weights: Any, power: float = 1.0) -> None:
        name = type(self).__name__
        weights = check_class_weights(name, weights)
        super().__init__(sizes(weights)[0])
        self.place = torch.empty(0, device=weights.device)
        self.power = check_number(name, "power", power, lambda p: 0 <= p < math.inf, "a finite number of at least 0")
        powers = torch.where(weights > 0, self.power * weights.log(), -math.inf)
        self.register_buffer("log_q", powers.log_softmax(-1), persistent=False)
        self.register_buffer("cumulative", self.log_q.exp().cumsum(-1), persistent=False)

    def log_prob(self, classes: Any) -> Tensor:
        return self.log_q[self._checked(classes)]

    def sample(self, shape: int | Sequence[int], generator: Randomness = None) -> Tensor:
        return inverse(self.cumulative, self._uniform(shape, generator))

    def extra_repr(self) -> str:
        return f"classes={self.classes}, power={self.power}"


def check_class_weights(name: str, weights: Any) -> Tensor:
    """Weights [classes] in float64, not all of them 0."""
    given = as_tensor(name, "weights", weights).detach()
    if given.ndim != 1 or given.numel() == 0 or given.is_complex() or given.dtype == torch.bool:
        raise ValueError(f"{name}: weights must hold one number for each class, got {given.dtype} of shape {sizes(given)}")
    values = given.double()
    wrong = ~((values >= 0) & (values < math.inf))
    if is_concrete(values) and bool(wrong.any()):
        place = int(wrong.nonzero()[0])
        raise ValueError(f"{name}: weights must be finite and not negative, got {float(values[place])} for class {place}")
    if is_concrete(values) and not bool(values.any()):
        raise ValueError(f"{name}: weights must not all be 0, got {sizes(given)[0]} zeros; give one of the classes a weight")
    return values
