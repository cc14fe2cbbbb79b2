"""What a comparison of estimators trains: a categorical VAE with each estimator of its gradient, on which pictures, for how long.

Without torch, so that what is wrong with an option is told at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from softmaxima.base.numbers import choose
from softmaxima_lab.compare.heads_plan import missing as missing


@dataclass(frozen=True)
class Candidate:
    """An estimator of ∇E f(D), by its name in `sm.expectation`, with its options and draws."""

    name: str
    map: str  # that name, by which it can be chosen as well
    kind: str  # what it has in common with others
    samples: int  # of which each is so many evaluations of the decoder that all but softmax have four
    params: Mapping[str, Any] = field(default_factory=dict)
    is_peer: bool = False
    is_bar: bool = False


RELAXED, STRAIGHT, SCORE = "relaxed draws", "one-hot draws, a relaxed gradient", "unbiased"
SOFTMAX = Candidate("softmax", "softmax", "no draws", 1)  # f(softmax(x)), which is no estimate of E f(D)
UNBIASED = Candidate("REINFORCE", "reinforce_leave_one_out", SCORE, 4)  # at whose weights all gradients are measured
CANDIDATES = (
    SOFTMAX,
    Candidate("Gumbel-softmax 1", "gumbel_softmax", RELAXED, 4, {"temperature": 1.0}),
    Candidate("Gumbel-softmax 0.5", "gumbel_softmax", RELAXED, 4, {"temperature": 0.5}),
    Candidate("Gumbel-sparsemax 1", "gumbel_sparsemax", RELAXED, 4, {"temperature": 1.0}),
    Candidate("ST Gumbel-softmax 1", "straight_through_gumbel", STRAIGHT, 4, {"temperature": 1.0}),
    Candidate("ST Gumbel-softmax 0.5", "straight_through_gumbel", STRAIGHT, 4, {"temperature": 0.5}),
    Candidate("Rao-Blackwell 0.5", "rao_blackwell_gumbel", STRAIGHT, 4, {"temperature": 0.5, "conditionals": 4}),
    Candidate("straight-through", "straight_through", STRAIGHT, 4),
    Candidate("ReinMax", "reinmax", STRAIGHT, 4),
    UNBIASED,
    Candidate("REBAR", "rebar", SCORE, 2, {"temperature": 0.5}),
    Candidate("RELAX", "relax", SCORE, 2),
)
# Estimators of `sm.expectation` that are not compared, and why.
LEFT_OUT = {
    "sum_and_sample": "it needs a value of each latent variable alone, and a decoder has one of all together",
    "reinforce": "without a baseline it learns nothing in so many steps",
}
TASKS = ("digits", "mnist")
USUAL, QUICK = (5, 400), (2, 80)  # seeds and steps


def planned(names: Sequence[str]) -> tuple[Candidate, ...]:
    """The estimators of these names, or all; softmax, the first, and REINFORCE among them, which all are measured by.

    Raises:
        InputError: for a name of none.
    """
    chosen = choose("--estimators", CANDIDATES, names, "estimator")
    return tuple(one for one in CANDIDATES if one in (SOFTMAX, UNBIASED) or one in chosen)
