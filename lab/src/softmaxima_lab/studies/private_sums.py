"""What privacy costs in accuracy: of a sum with noise, and of classes that teachers vote for, against ε and how many there are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from softmaxima_lab.compare.differences import Difference, interval_of, of_mean
from softmaxima_lab.compare.measures import METRICS

EPSILONS = 0.1, 0.3, 1.0, 3.0, 10.0
BOUNDS = (0.0, 1.0), (0.0, 5.0)
ENTRIES = 10, 100, 1000, 10_000
RELEASES = 200
TEACHERS = 10, 30, 100, 250
SEEDS, TESTED = 10, 400
FALL = 0.02  # of the claim
CONFIDENCE = 0.95
ACCURACY = METRICS["accuracy"]


@dataclass(frozen=True)
class Sum:
    """Releases of the logsumexp of n entries in [0, b]: how far off, in nats, and how many intervals of 95 % held."""

    bound: float
    n: int
    epsilon: float
    sensitivity: float
    off: float
    held: float


@dataclass(frozen=True)
class Votes:
    """Accuracies on the same rows, one for each seed, of the class that most teachers say: plainly, and with noise by ε a row."""

    teachers: int
    plain: tuple[float, ...]
    private: dict[str, tuple[float, ...]]


@dataclass(frozen=True)
class Study:
    """All that was found."""

    sums: Sequence[Sum]
    votes: Sequence[Votes]


def sums(starting: Callable[[str], None] = lambda what: None) -> list[Sum]:
    """Uniform entries, each a record of which another may stand in its place."""
    from softmaxima.privacy import Entries
    from softmaxima.privacy.measurements import Cost
    from softmaxima.privacy.sums import releasing

    found, rng = [], np.random.default_rng(0)
    for low, high in BOUNDS:
        for n in ENTRIES:
            starting(f"{n} entries in [{low:g}, {high:g}]")
            x, records = rng.uniform(low, high, n), Entries((low, high))
            exact = float(np.logaddexp.reduce(x))
            for epsilon in EPSILONS:
                release, row = releasing("sums", records, n, 1.0, Cost(epsilon), CONFIDENCE), x.tolist()
                told = [release(row) for _ in range(RELEASES)]
                off = float(np.mean([abs(one.value - exact) for one in told]))
                held = float(np.mean([one.lower <= exact <= one.upper for one in told]))
                found.append(Sum(high, n, epsilon, records.sensitivity(n), off, held))
    return found


def votes(starting: Callable[[str], None] = lambda what: None) -> list[Votes]:
    """Digits: each teacher has rows of its own, and says probabilities. A record moves those of one, and a sum by at most 1."""
    from sklearn.datasets import load_digits

    pixels, labels = (np.asarray(each) for each in load_digits(return_X_y=True))
    pixels = pixels / 16.0
    found = []
    for teachers in TEACHERS:
        starting(f"{teachers} teachers")
        plain, private = [], {epsilon: [] for epsilon in EPSILONS}
        for seed in range(SEEDS):
            order = np.random.default_rng(seed).permutation(len(labels))
            tested, rest = order[:TESTED], order[TESTED:]
            scores = sum(_says(pixels[part], labels[part], pixels[tested]) for part in np.array_split(rest, teachers))
            plain.append(float((np.argmax(scores, 1) == labels[tested]).mean()))
            for epsilon in EPSILONS:
                private[epsilon].append(float((_chosen(scores, teachers, epsilon) == labels[tested]).mean()))
        found.append(Votes(teachers, tuple(plain), {f"{epsilon:g}": tuple(each) for epsilon, each in private.items()}))
    return found


def _says(x: np.ndarray, y: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """The probabilities [rows, 10] of a teacher, 0 for classes of which it has no row."""
    from sklearn.linear_model import LogisticRegression

    p = np.zeros((len(asked), 10))
    classes = np.unique(y)
    if len(classes) == 1:
        p[:, classes[0]] = 1.0
    else:
        p[:, classes] = LogisticRegression(max_iter=200).fit(x, y).predict_proba(asked)
    return p


def _chosen(scores: Any, teachers: int, epsilon: float) -> np.ndarray:
    from softmaxima.privacy import Scores
    from softmaxima.privacy.measurements import Cost, noisy_choice, scale_of_choice

    records = Scores((0.0, float(teachers)), 1.0, clip=True)
    choose = noisy_choice(records, 10, scale_of_choice(records, 10, Cost(epsilon)), "epsilon")
    return np.array([choose(row) for row in scores.clip(0, teachers).tolist()])


def falls(found: Sequence[Votes]) -> dict[tuple[int, str], Difference]:
    """How much accuracy falls, paired by seed, with intervals that hold at once."""
    number = len(found) * len(EPSILONS)
    result = {}
    for each in found:
        for epsilon, accuracies in each.private.items():
            pairs = [a - b for a, b in zip(each.plain, accuracies, strict=True)]
            result[each.teachers, epsilon] = interval_of(pairs, [of_mean(pairs)], ACCURACY, number)
    return result


def verdict(added: Sequence[Sum], voted: Sequence[Votes]) -> str:
    """What holds of the claim: at ε = 1 accuracy falls by less than 2 %, and the sensitivity is 1."""
    at_one = {teachers: fall for (teachers, epsilon), fall in falls(voted).items() if epsilon == "1"}
    enough = [str(teachers) for teachers, fall in at_one.items() if fall.high < FALL]
    few = [str(teachers) for teachers, fall in at_one.items() if fall.low > FALL]
    open_ = [str(teachers) for teachers in at_one if str(teachers) not in (*enough, *few)]
    off = [each for each in added if each.epsilon == 1.0]
    near = [(b, [each.n for each in off if each.bound == b and math.expm1(each.off) < FALL]) for _, b in BOUNDS]
    enough_entries = [f"{min(ns)} entries in [0, {b:g}]" for b, ns in near if ns]
    said = [f"less than 2 points of accuracy are lost with {_listed(enough)} teachers"] if enough else []
    said += [f"more than 2 points of accuracy are lost with {_listed(few)} teachers"] if few else []
    said += [f"with {_listed(open_)} it may be more or less than 2"] if open_ else []
    widest = max(off, key=lambda each: each.sensitivity)
    least = min(off, key=lambda each: each.sensitivity)
    of_votes = "of classes by enough teachers" if enough else "of classes that teachers vote for it is not confirmed here"
    return (
        f"At ε = 1 {'; '.join(said)}. Of the numbers of entries that were tried, Σ exp(x) is off by less than 2 %, by the mean "
        f"distance in nats, from {_listed(enough_entries)} on. So it holds of a sum of enough entries; {of_votes}. "
        f"That the sensitivity is 1 does not hold: here it is from {least.sensitivity:.2g} "
        f"({least.n} entries in [0, {least.bound:g}]) to {widest.sensitivity:.2g} ({widest.n} in [0, {widest.bound:g}]), and c/τ "
        "for scores that one record moves by c"
    )


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words) or "none"
