"""What each estimator of logsumexp knows after how much work, and how often its interval holds the truth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from softmaxima.experiments import InputError
from softmaxima.lse import estimate


@dataclass(frozen=True)
class Subject:
    """A source with its exact logsumexp, the methods to try on it, and the largest score where it is to be known."""

    source: Any
    truth: float
    methods: tuple[str, ...]
    maximum: float | None = None
    temperature: float = 1.0


@dataclass(frozen=True)
class Work:
    """One method on one source at one target, over several seeds: medians in nats, with signs relative to the truth."""

    source: str
    method: str
    target: float
    evaluations: float
    lower: float
    upper: float
    error: float
    coverage: float
    certificates: dict[str, int]


def standard_subjects(n: int = 200_000, seed: int = 0) -> dict[str, Subject]:
    """Normal scores, wide ones, heavy tails, and a needle in a haystack, each with and without its maximum known.

    >>> sorted(standard_subjects(5000))[:2]
    ['N(0, 1)', 'N(0, 1), maximum known']
    """
    rng = np.random.default_rng(seed)
    normal = rng.standard_normal(n)
    needle = normal.copy()
    needle[n // 3] = 14.0
    heavy = np.minimum(rng.standard_t(3, n), 12.0)
    scores = {"N(0, 1)": normal, "N(0, 2²)": 2.0 * normal, "Student t, 3 degrees": heavy, "a needle": needle}
    methods = ("uniform", "stratified", "topk_tail", "bucket")
    subjects = {}
    for name, x in scores.items():
        largest = float(x.max())
        truth = largest + float(np.log(np.exp(x - largest).sum()))
        subjects[name] = Subject(x, truth, methods)
        subjects[f"{name}, maximum known"] = Subject(x, truth, methods[:2], maximum=largest)
    return subjects


def measure(
    subjects: Mapping[str, Subject], targets: Sequence[float] = (0.3, 0.1, 0.03), *, runs: int = 20, confidence: float = 0.95
) -> list[Work]:
    """The interval of every method at every target, against the scores that it read. Raises InputError for nothing to measure.

    >>> (work,) = measure({"few": Subject(np.zeros(10), float(np.log(10)), ("uniform",))}, (0.1,), runs=2)
    >>> work.evaluations, work.coverage, work.certificates
    (10.0, 1.0, {'deterministic': 2})
    """
    if not subjects or not targets or runs < 1:
        raise InputError(f"estimators need a subject, a target and a run, got {len(subjects)}, {len(targets)} and {runs}")
    return [
        _measure(name, subject, method, target, runs, confidence)
        for name, subject in subjects.items()
        for method in subject.methods
        for target in targets
    ]


def _measure(name: str, subject: Subject, method: str, target: float, runs: int, confidence: float) -> Work:
    options: dict[str, Any] = {"maximum": subject.maximum, "temperature": subject.temperature}
    found = [estimate(subject.source, target, confidence, method, seed=seed, **options) for seed in range(runs)]
    return Work(
        source=name,
        method=method,
        target=target,
        evaluations=float(np.median([e.evaluations for e in found])),
        lower=float(np.median([e.lower for e in found])) - subject.truth,
        upper=float(np.median([e.upper for e in found])) - subject.truth,
        error=float(np.median([abs(float(e.value) - subject.truth) for e in found])),
        coverage=float(np.mean([e.lower <= subject.truth <= e.upper for e in found])),
        certificates=dict(Counter(e.certificate for e in found)),
    )
