"""Sampling: draws of classes and subsets, their relaxations, and estimators of the gradients of expectations over them."""

from softmaxima.sampling.gumbel import GumbelSoftmax, gumbel_max, gumbel_softmax, relaxed_sample
from softmaxima.sampling.straight_through import rao_blackwell_gumbel, reinmax, straight_through

__all__ = [
    "GumbelSoftmax",
    "gumbel_max",
    "gumbel_softmax",
    "rao_blackwell_gumbel",
    "reinmax",
    "relaxed_sample",
    "straight_through",
]
