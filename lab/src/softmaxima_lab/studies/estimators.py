"""What each estimator of logsumexp knows after how much work, and how often its interval holds the truth."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from softmaxima.base.numbers import InputError
from softmaxima.lse import Estimate, InnerProduct, estimate, inner_product_index, logsumexp
from softmaxima.lse.estimates.sources import BLOCK

N = 200_000
BUDGETS = (300, 1000, 3000, 10_000, 30_000, 100_000)
UNREACHABLE = 1e-6  # a target in nats that only a budget stops
MAXIMUM_KNOWN = ", maximum known"


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
    """One method on one source at one target and budget, over several seeds: medians in nats, with signs relative to the truth.

    `coverage` is the share of the intervals that hold the truth; of those whose upper end is a number, `bounded`, `held` do.
    """

    source: str
    method: str
    target: float
    budget: int | None
    evaluations: float
    lower: float
    upper: float
    error: float
    coverage: float
    bounded: int
    held: int
    certificates: dict[str, int]


def standard_subjects(n: int = N, seed: int = 0) -> dict[str, Subject]:
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
        subjects[f"{name}{MAXIMUM_KNOWN}"] = Subject(x, truth, methods[:2], maximum=largest)
    return subjects


def indexed_subjects(n: int = N, d: int = 32, cells: int = 512, seed: int = 0) -> dict[str, Subject]:
    """Inner products ⟨W_i, h⟩ of n rows in 1000 clusters, h along one of the rows, with an IVF index over the rows."""
    rng = np.random.default_rng(seed)
    clusters = 3.0 * rng.standard_normal((1000, d))
    rows = (clusters[rng.integers(1000, size=n)] + rng.standard_normal((n, d))) / math.sqrt(d)
    scores = rows @ (query := 2.0 * rows[0])
    source = InnerProduct(rows, query, inner_product_index(rows, cells, generator=seed))
    largest = float(scores.max())
    truth = largest + float(np.log(np.exp(scores - largest).sum()))
    methods = ("uniform", "topk_tail", "importance")
    name = "inner products, indexed"
    return {name: Subject(source, truth, methods), f"{name}{MAXIMUM_KNOWN}": Subject(source, truth, methods, maximum=largest)}


def normal_file(path: str | Path, n: int = 10**9, seed: int = 0) -> Subject:
    """N(0, 1) scores in a memory-mapped .npy file, which is written (4n bytes) unless it exists; the truth takes a pass.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     subject = normal_file(f"{folder}/normal.npy", 10_000)
    >>> len(subject.source), subject.source.dtype, round(subject.truth - float(np.log(10_000)), 1)
    (10000, dtype('float32'), 0.5)
    """
    starts = range(0, n, BLOCK)
    if not Path(path).exists():
        written = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(n,))
        rng = np.random.default_rng(seed)
        for start in starts:
            written[start : start + BLOCK] = rng.standard_normal(min(BLOCK, n - start), dtype=np.float32)
        written.flush()
    scores = np.load(path, mmap_mode="r")
    if scores.shape != (n,) or scores.dtype != np.float32:
        raise InputError(f"normal_file: {path} holds {scores.dtype} of shape {scores.shape}, not float32 of ({n},); delete it")
    total = sum(float(np.exp(scores[start : start + BLOCK], dtype=np.float64).sum()) for start in starts)
    return Subject(scores, float(np.log(total)), ("uniform",))


@dataclass(frozen=True)
class Timing:
    """Seconds of the sum and of the estimate of one source, medians of several runs in turns, and what the estimate said."""

    source: str
    scores: int
    target: float
    summed: float
    estimated: float
    evaluations: int
    certificate: str
    error: float


def measure_times(
    folder: str | Path, sizes: Sequence[int] = (10**6, 10**7, 10**8), targets: Sequence[float] = (0.01, 0.001), *, runs: int = 7
) -> list[Timing]:
    """N(0, 1) scores in float32, in memory, in a file that is in memory or is not, and as inner products: what a sum takes there.

    On one thread: several wait for each other on a busy machine.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     timings = measure_times(folder, (10_000,), (0.1,), runs=1)
    >>> [(timing.source, timing.certificate) for timing in timings[:2]]
    [('in memory', 'deterministic'), ('file in memory', 'deterministic')]
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return list(_measured_times(Path(folder), sizes, targets, runs))
    finally:
        torch.set_num_threads(threads)


def _measured_times(folder: Path, sizes: Sequence[int], targets: Sequence[float], runs: int) -> Iterator[Timing]:
    for n in sizes:
        path = folder / f"normal-{n}.npy"
        truth = normal_file(path, n).truth
        scores = np.load(path)
        yield from _timings("in memory", n, truth, lambda x=scores: logsumexp(x), lambda x=scores: x, targets, runs)
        del scores
        for name, forgotten in (("file in memory", False), ("file on disk", True)):

            def source(path: Path = path, forgotten: bool = forgotten) -> Path:
                if forgotten:
                    forget(path)
                return path

            mapped = lambda source=source: logsumexp(np.load(source(), mmap_mode="r"))
            yield from _timings(name, n, truth, mapped, source, targets, runs)
        path.unlink()
    d = 64
    for n in sizes[:-1]:
        rng = np.random.default_rng(0)
        rows, query = rng.standard_normal((n, d), dtype=np.float32), (rng.standard_normal(d) / math.sqrt(d)).astype(np.float32)
        products = InnerProduct(rows, query)
        truth = float(logsumexp((rows @ query).astype(np.float64)))
        pair = (lambda rows=rows, query=query: logsumexp(rows @ query)), (lambda products=products: products)
        yield from _timings(f"inner products of {d}", n, truth, *pair, targets, runs)


def forget(path: Path) -> None:
    """Drop a file from the page cache, which needs no privileges on Linux."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def _timings(
    name: str, n: int, truth: float, total: Callable[[], Any], source: Callable[[], Any], targets: Sequence[float], runs: int
) -> Iterator[Timing]:
    for target in targets:
        summed, estimated = [], []
        found: list[Estimate] = []
        for seed in range(runs):
            summed.append(_seconds(total))
            x = source()
            estimated.append(
                _seconds(lambda x=x, target=target, seed=seed, found=found: found.append(estimate(x, target, generator=seed)))
            )
        yield Timing(
            source=name,
            scores=n,
            target=target,
            summed=median(summed),
            estimated=median(estimated),
            evaluations=int(np.median([e.evaluations for e in found])),
            certificate=Counter(e.certificate for e in found).most_common(1)[0][0],
            error=float(np.median([abs(float(e.value) - truth) for e in found])),
        )


def _seconds(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


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
        _work(name, subject, method, target, None, _estimates(subject, method, target, None, runs, confidence))
        for name, subject in subjects.items()
        for method in subject.methods
        for target in targets
    ]


def measure_budgets(
    subjects: Mapping[str, Subject], budgets: Sequence[int] = BUDGETS, *, runs: int = 10, confidence: float = 0.95
) -> list[Work]:
    """The interval of every method once it has read so many scores. What needs more to begin with has no entry.

    >>> few = {"few": Subject(np.zeros(5000), float(np.log(5000)), ("uniform", "topk_tail"))}
    >>> [(work.method, work.budget, work.evaluations) for work in measure_budgets(few, (200, 400), runs=2)]
    [('uniform', 200, 200.0), ('uniform', 400, 400.0)]
    """
    if not subjects or not budgets or runs < 1:
        raise InputError(f"estimators need a subject, a budget and a run, got {len(subjects)}, {len(budgets)} and {runs}")
    works = []
    for name, subject in subjects.items():
        for method in subject.methods:
            for budget in budgets:
                try:
                    found = _estimates(subject, method, UNREACHABLE, budget, runs, confidence)
                except ValueError:  # too small a budget for the pass, or the search, that the method begins with
                    continue
                works.append(_work(name, subject, method, UNREACHABLE, budget, found))
    return works


def _estimates(subject: Subject, method: str, target: float, budget: int | None, runs: int, confidence: float) -> list[Estimate]:
    options: dict[str, Any] = {"maximum": subject.maximum, "temperature": subject.temperature, "budget": budget}
    return [estimate(subject.source, target, confidence, method, generator=seed, **options) for seed in range(runs)]


def _work(name: str, subject: Subject, method: str, target: float, budget: int | None, found: Sequence[Estimate]) -> Work:
    return Work(
        source=name,
        method=method,
        target=target,
        budget=budget,
        evaluations=float(np.median([e.evaluations for e in found])),
        lower=float(np.median([e.lower for e in found])) - subject.truth,
        upper=float(np.median([e.upper for e in found])) - subject.truth,
        error=float(np.median([abs(float(e.value) - subject.truth) for e in found])),
        coverage=float(np.mean([e.lower <= subject.truth <= e.upper for e in found])),
        bounded=sum(e.upper < math.inf for e in found),
        held=sum(e.lower <= subject.truth <= e.upper < math.inf for e in found),
        certificates=dict(Counter(e.certificate for e in found)),
    )
