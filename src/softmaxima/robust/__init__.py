"""Scores that somebody moved: worst cases and certificates, bounds through every map, attacks on scores, and their detection."""

from softmaxima.base.public import listing
from softmaxima.robust.attacks import ATTACK_LOSSES, Attacked, attack
from softmaxima.robust.certificates import certified_radius, lipschitz_bound, probability_radius
from softmaxima.robust.detector import Detector, fit_detector
from softmaxima.robust.intervals import ProbabilityInterval, interval
from softmaxima.robust.logsumexp import WorstLogSumExp, worst_logsumexp
from softmaxima.robust.margins import worst_margin
from softmaxima.robust.probabilities import WorstProbabilities, worst_probabilities
from softmaxima.robust.propagation import interval_bound_propagation, is_certified

__all__ = [
    "ATTACK_LOSSES",
    "Attacked",
    "Detector",
    "ProbabilityInterval",
    "WorstLogSumExp",
    "WorstProbabilities",
    "attack",
    "certified_radius",
    "fit_detector",
    "interval",
    "interval_bound_propagation",
    "is_certified",
    "lipschitz_bound",
    "probability_radius",
    "worst_logsumexp",
    "worst_margin",
    "worst_probabilities",
]
__dir__ = listing(globals())
