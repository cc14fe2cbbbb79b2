"""Which sampler is meant: by its name, by weights, or itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from torch import Tensor

from softmaxima.base.numbers import check_int, nearest
from softmaxima.heads.fixed_samplers import LogUniformSampler, UniformSampler, UnigramSampler
from softmaxima.heads.learned_samplers import FrequencySampler, InBatchSampler
from softmaxima.heads.sampler import AnySampler, Sampler

SAMPLERS: dict[str, Callable[[int], Sampler]] = {
    "uniform": UniformSampler,
    "log_uniform": LogUniformSampler,
    "frequency": FrequencySampler,
    "in_batch": InBatchSampler,
}


def as_sampler(name: str, sampler: Any, classes: int) -> AnySampler:
    """A sampler of so many classes: one, a name of one, or the weights of a unigram sampler."""
    if isinstance(sampler, str):
        if sampler not in SAMPLERS:
            known = ", ".join(SAMPLERS)
            raise ValueError(f"{name}: sampler must be one of {known}, got {sampler!r}{nearest(sampler, SAMPLERS)}")
        return SAMPLERS[sampler](classes)
    if isinstance(sampler, Tensor) or hasattr(sampler, "__array__"):
        sampler = UnigramSampler(sampler)
    if not isinstance(sampler, AnySampler):
        raise TypeError(
            f"{name}: sampler must be a name, one weight for each class, or an object with classes, log_prob and sample; got "
            f"{type(sampler).__name__}"
        )
    if check_int(name, "the sampler's classes", sampler.classes) != classes:
        raise ValueError(f"{name}: sampler must be of the layer's {classes} classes, got one of {sampler.classes}")
    return cast(AnySampler, sampler)
