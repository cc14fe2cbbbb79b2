"""Policies over any map, their temperatures, and the soft values and Bellman operators that belong to them."""

from softmaxima.base.public import listing
from softmaxima.policy.bellman import SoftSolution, soft_bellman, soft_value_iteration
from softmaxima.policy.boltzmann import Policy
from softmaxima.policy.learning import AdaptiveTemperature, look_ahead
from softmaxima.policy.value import mellowmax, soft_value

__all__ = [
    "AdaptiveTemperature",
    "Policy",
    "SoftSolution",
    "look_ahead",
    "mellowmax",
    "soft_bellman",
    "soft_value",
    "soft_value_iteration",
]
__dir__ = listing(globals())
