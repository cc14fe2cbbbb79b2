"""Sampling: draws of classes and subsets, their relaxations, and estimators of the gradients of expectations over them.

`sampling.estimators.ESTIMATORS` lists the estimators with what each claims.
"""

from softmaxima.base.public import listing
from softmaxima.sampling.control_variates import Relax, rebar, relax, second_moment
from softmaxima.sampling.estimators import expectation
from softmaxima.sampling.gumbel import GumbelSoftmax, gumbel_max, gumbel_softmax, relaxed_sample
from softmaxima.sampling.perturbed import perturbed_argmax
from softmaxima.sampling.score_function import reinforce, score_function, sum_and_sample
from softmaxima.sampling.straight_through import rao_blackwell_gumbel, reinmax, straight_through
from softmaxima.sampling.subsets import OrderedDraw, gumbel_top_k, relaxed_top_k

__all__ = [
    "GumbelSoftmax",
    "OrderedDraw",
    "Relax",
    "expectation",
    "gumbel_max",
    "gumbel_softmax",
    "gumbel_top_k",
    "perturbed_argmax",
    "rao_blackwell_gumbel",
    "rebar",
    "reinforce",
    "reinmax",
    "relax",
    "relaxed_sample",
    "relaxed_top_k",
    "score_function",
    "second_moment",
    "straight_through",
    "sum_and_sample",
]
__dir__ = listing(globals())
