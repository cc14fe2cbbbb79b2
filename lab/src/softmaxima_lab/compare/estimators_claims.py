"""What is said of Gumbel-softmax in a VAE, held to what was measured: orders of ELBO, of the gradient's SNR, and of convergence.

Said are an ELBO of −85.3, −83.1, −82.5, −81.9 and an SNR of 12.5, 3.2, 1.8, 8.7 for softmax, Gumbel-softmax of τ = 1, of τ = 0.5,
and with a control variate, which converge 1, 0.6, 0.4 and 0.9 times as fast as softmax; of no data and no network that are named,
so that these orders can be held to ours, and the numbers cannot. REBAR is Gumbel-softmax as a control variate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from softmaxima_lab.compare.differences import Difference
from softmaxima_lab.compare.engine import difference
from softmaxima_lab.compare.estimators import Finding, at_least_steps_to, mean_of, steps_to, target

SOFTMAX, ONE, HALF, CONTROL = "softmax", "Gumbel-softmax 1", "Gumbel-softmax 0.5", "REBAR"
ORDERS = {  # the best first
    "ELBO": (CONTROL, HALF, ONE, SOFTMAX),
    "gradient SNR": (SOFTMAX, CONTROL, ONE, HALF),
    "steps to converge": (SOFTMAX, CONTROL, ONE, HALF),
}
COUNT = sum(len(order) - 1 for order in ORDERS.values())
HOLDS, FAILS, OPEN = "holds", "does not hold", "open"


@dataclass(frozen=True)
class Claim:
    """That one is better than another in a measure: a verdict, and by how much, with an interval that holds for all claims."""

    measure: str
    better: str
    worse: str
    gain: Difference  # nats, the logarithm of a ratio of SNR, or steps fewer
    verdict: str
    told: str = ""  # who never converged, and counts as if it had with the last step


def claims(finding: Finding) -> list[Claim]:
    """Each step of each order of which both were trained."""
    known = {result.name for result in finding.trained if not result.diverged}
    pairs = [(measure, *pair) for measure, order in ORDERS.items() for pair in pairwise(n for n in order if n in known)]
    return [_claim(finding, *each) for each in pairs]


def _claim(finding: Finding, measure: str, better: str, worse: str) -> Claim:
    one, other = finding.of(better), finding.of(worse)
    if measure == "ELBO":
        return _judged(measure, better, worse, difference(one, other, finding.task.questions[0], COUNT))
    if measure == "gradient SNR":
        pairs = zip(one.by_seed("snr"), other.by_seed("snr"), strict=True)
        return _judged(measure, better, worse, mean_of([math.log(a / b) if a > 0 < b else math.nan for a, b in pairs], COUNT))
    level = target(finding)
    own, others = (at_least_steps_to(result, level) for result in (one, other))
    never = [result.name for result in (one, other) if all(map(math.isinf, steps_to(result, level)))]
    told = f"{' and '.join(never)} never there" if never else ""
    return _judged(measure, better, worse, mean_of([b - a for a, b in zip(own, others, strict=True)], COUNT), told)


def _judged(measure: str, better: str, worse: str, gain: Difference, told: str = "") -> Claim:
    return Claim(measure, better, worse, gain, HOLDS if gain.better else FAILS if gain.worse else OPEN, told)
