r"""Estimates of log Σ exp(x_i) from a few of very many scores, with an interval and the certificate that it carries.

A design draws terms ℓ = x_i + log(weight) with E exp(ℓ) = Σ exp(x_j) over the scores that it has not read exactly (the tail):

    uniform      i without replacement                              weight n
    stratified   one of each of H runs of positions a round         weight H·n_h
    runs         j without replacement, ℓ of the whole run          weight n / width
    topk_tail    the k largest exactly, then uniform over the rest  weight n − k
    importance   cell j with P_j, then uniform in the cell          weight n_j / P_j

Draws come in stages: each places the bets of the finite-sample limits (`confidence.py`) on the next, and says how many draws the
target needs. Where the largest score is known, terms are bounded and the interval is a confidence sequence; else it is asymptotic,
allows for one draw beyond the largest, and is withdrawn while the mean hangs on a few draws, or few scores were read. Once draws
would cost as much as a pass, all scores are read: in time where the design is chosen here, in scores where it was named.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from softmaxima.core.arguments import like_input
from softmaxima.core.numbers import (
    check_choice,
    check_confidence,
    check_count,
    check_number,
    check_one_temperature,
    check_positive,
    is_finite,
)
from softmaxima.core.public import public
from softmaxima.core.randomness import Randomness, as_numpy_generator
from softmaxima.lse.bounds._gaps import quotient
from softmaxima.lse.estimates.confidence import (
    Moments,
    Stage,
    bernstein_interval,
    betting_interval,
    extrapolated_interval,
    forecast,
    moments,
    skewness_of_mean,
    stake,
    tail_index,
    with_unseen,
)
from softmaxima.lse.estimates.sources import Source, open_source
from softmaxima.lse.logsumexp import logsumexp, row_logsumexp

PILOT = 2000  # draws at least, to know the variance and the skewness
START = 0.9e6  # nanoseconds of an estimate beside its draws
LOOK = 0.05  # of the time of a pass goes at least into draws before an asymptotic claim, to see scores that are large and rare
LEAST = 2_000_000  # scores of an array that are read before one, or half of a budget
GATHERED = 1 << 16  # numbers from all places that are in cache together, in float64
LARGEST_SKEWNESS = 0.5  # of the mean with an unseen draw; that of four equal draws that outweigh all others
LARGEST_TAIL_INDEX = 0.6  # two standard errors of 100 draws above ½, where variances end
FEWEST_DRAWS = 500  # for an asymptotic interval
EQUAL = 1e-12  # relative: terms that differ by no more are rounded differently
NORMAL_SHARE = 0.75  # of the error is spent on an asymptotic interval; the rest pays for stopping when it looks narrow
GROWTH = 1.02  # between the sample sizes that are considered
NEXT_LOOK = 1.03  # times as many draws, after an interval that was not quite narrow enough
STAGE = 3  # times as many draws as before, at most: a variance is known too little to trust it further
DEFENSIVE_SHARE = 0.2  # of importance draws that are uniform, so that no weight is more than 5n
LARGEST_HISTOGRAM = 1 << 22
NEGLIGIBLE = 40.0  # nats below the total, in which the last bucket of a histogram ends


@dataclass(frozen=True)
class Estimate:
    """A value of log Σ exp(x_i) in nats, with an interval and what stands behind it; `estimate` returns it.

    value: the estimate, in float64; for tensors a tensor, which autograd can follow.
    lower, upper: the interval.
    evaluations: how many scores were read, or computed, by the estimator and its index.
    draws: at how many random places: runs of neighbours where "auto" draws from an array, else scores; 0 if all were read.
    certificate: "deterministic" (the truth is inside), "finite-sample" (it is inside with the asked confidence if no score exceeds
        what bounds them: the `maximum`, or an exact head), "asymptotic" (so if what was not read is about like what was; see
        `estimate`), or "none" (the sample shows a tail too heavy for that: the lower limit holds, and the upper one is +∞).

    >>> import numpy as np, softmaxima as sm
    >>> sm.estimate(np.zeros(8), generator=0).certificate
    'deterministic'
    """

    value: Any
    lower: float
    upper: float
    evaluations: int
    certificate: Literal["deterministic", "finite-sample", "asymptotic", "none"]
    draws: int = 0

    @property
    def guaranteed(self) -> bool:
        return self.certificate in ("deterministic", "finite-sample")


@public
def estimate(
    source: Any,
    target_nats: float = 0.01,
    confidence: float = 0.95,
    method: str = "auto",
    *,
    maximum: float | None = None,
    temperature: float = 1.0,
    budget: int | None = None,
    k: int | None = None,
    strata: int = 64,
    generator: Randomness = None,
) -> Estimate:
    """Estimate `log Σ_i exp(x_i/τ)` to within `target_nats`, or sum it where that is expected to take no longer.

    Args:
        source: scores [n]: an array or a tensor, also of a memory-mapped file; the path of a .npy file; or an `InnerProduct`.
        target_nats: the distance from the value to either end of the interval at which to stop.
        confidence: the probability, over draws, with which the interval is to hold the truth; a draw that claims nothing holds it.
        method: "auto": all scores where a pass takes less time than draws; else with an index "topk_tail", of other inner products
            "uniform", and of arrays runs of up to 256 neighbours, in files 1024. Others draw as they say, and pass over all scores
            once they would read half of them: "uniform", "stratified" (by position), "bucket" (one pass, a histogram of gaps to
            the maximum), "topk_tail" (the k largest exactly, found by the index of an `InnerProduct` or else in one pass),
            "importance" (proposals from the cells of the IVF index).
        maximum: a number that no score exceeds, before the division by τ. It bounds what was not read, and makes the result a
            guarantee, the wider the further the maximum is from the scores: where a few have the mass, much wider than the
            asymptotic interval that leaving it out gives. Without it only "bucket", "topk_tail" without or with an exact index, and
            what was read whole, guarantee.
        temperature: τ > 0.
        budget: how many scores may be read, at least 100; by default as many as it takes. At the end of a budget the interval is
            as wide as it is.
        k: how many of the largest "topk_tail" reads; √n by default.
        strata: how many runs of positions "stratified" has. It pays where scores depend on their position, and else costs draws.
        generator: of the draws: torch's, NumPy's or a seed from 0 to 2⁶⁴ − 1; None: torch's default one.

    Returns:
        An `Estimate`. The value is corrected for the bias of a logarithm, E log Ẑ ≈ log Z − Var Ẑ/(2Z²), and then moved as far as
        puts both ends of the interval within the target. If a tensor of scores, or the W or h of an `InnerProduct`, requires grad,
        so does the value: its gradient is that of the sample's own logsumexp, Σ p̂_i ∂x_i with p̂ summing to 1. A score of −∞ counts
        as none. One of +∞ that is read makes the value +∞; one of NaN that is read makes it NaN, and the certificate "none". One
        that is not read is as unknown as any other score: a maximum is a promise that there are none. Limits hold for the scores
        as float64 computes them; a pass over narrower ones is in float32 where its error, which the interval allows for, is within
        the target.

    Raises:
        TypeError or ValueError, before any work, for anything else; ValueError when a score above `maximum` is met; ImportError
        where an index needs FAISS and it is missing.

    What an asymptotic interval claims: over draws it misses with a probability of about 1 − `confidence` if the scores that have
    the mass are not too rare. With 95 % confidence no more than the share 3/`draws` of all scores exceeds the largest that was
    read, wherever they are, and no more than 3/`evaluations` where their places are as good as random: neighbours that stand
    together are seen together, or not. What these sum to, no sample can know. Where a few that were read have much of the sum,
    nothing is claimed. Before a claim any method reads 2 million scores of an array, or half of a budget, and for a twentieth of
    the time of a pass. The probability counts the draws that claim nothing as right. Of a tail so heavy that most claim nothing,
    those that do miss more often: of terms with P(y > u) = u^(−3/2) and a budget of 20 000, a third claim and 9 % of these miss.

    Cost: of scores in memory the pass, 0.2 to 0.5 ns a score, is the faster below some 20 (float64) to 50 million (float32) scores,
    and estimates pay above where a run tells as much as its scores. They pay most where reading is slow: files that are not in
    memory, on a disk or on a network, where an estimate reads a few thousand pages, and inner products. Uniform draws take about
    (nΣp² − 1)(z/target)² reads, for N(0, 1) scores 1.7(z/target)² whatever n is, and no method without an index finds a needle in
    a haystack with fewer than n.

    Source: Waudby-Smith & Ramdas (2024), arXiv:2010.09686, finite samples; Hall (1992), JRSS B 54, and Hill (1975), asymptotics;
    Mussmann & Ermon (2016), top-k and tail.

    >>> import numpy as np, softmaxima as sm
    >>> x = np.random.default_rng(0).standard_normal(1_000_000)
    >>> sm.estimate(x).certificate  # a sum takes less time than draws
    'deterministic'
    >>> found = sm.estimate(x, 0.05, method="uniform", maximum=x.max(), generator=0)
    >>> found.certificate, found.evaluations < 50_000, bool(found.lower < sm.logsumexp(x) < found.upper)
    ('finite-sample', True, True)
    """
    name = "estimate"
    target, tau = check_positive(name, "target_nats", target_nats), check_one_temperature(name, temperature)
    confidence = check_confidence(name, confidence)
    check_choice(name, "method", method, ("auto", *METHODS_OF_INDEX))
    if maximum is not None:
        maximum = check_number(name, "maximum", maximum, is_finite, "a finite number that no score exceeds, or None")
    budget = None if budget is None else check_count(name, "budget", budget, 100)
    k = None if k is None else check_count(name, "k", k)
    strata = check_count(name, "strata", strata)
    rng = as_numpy_generator(name, generator)
    scores = open_source(source)
    methods, automatic = METHODS if scores.index is None else METHODS_OF_INDEX, method == "auto"
    if automatic:
        method = "uniform" if scores.index is None else "topk_tail"
    if method not in methods:
        raise ValueError(f"estimate: {method} sampling needs an InnerProduct with an IVF index; call inner_product_index(W)")
    chosen = methods[method]
    limit = 4 * scores.n + PILOT if budget is None else budget
    if limit < scores.n * chosen.passes + PILOT * chosen.passes * chosen.draws:
        raise ValueError(
            f"estimate: {method} reads all n = {scores.n} scores before it draws, too many for a budget of {budget}; "
            "choose uniform or stratified"
        )
    width = max(1, min(scores.run, limit // (2 * PILOT))) if automatic else 1
    times = scores.times(width)
    least = min(LEAST, limit // 2) / width if scores.run > 1 else 0.0
    ask = _Request(
        source=scores,
        target=target,
        delta=1.0 - confidence,
        tau=tau,
        cap=None if maximum is None else _over(maximum + 2.0**-40 * (1.0 + abs(maximum)), tau),
        budget=limit,
        rng=rng,
        k=k,
        strata=strata,
        width=width,
        whole=min(scores.n / (2 * width), scores.n * times.score / times.draw if automatic else math.inf),
        look=min(max(LOOK * scores.n * times.score / times.draw, least), limit / width),
    )
    few = max(PILOT, ask.look) if maximum is None and scores.index is None else PILOT
    pays = scores.n > 2 * PILOT and (not automatic or (ask.whole - few) * times.draw > START)
    if chosen.draws and scores.n <= limit and not pays:
        return _exact(ask, 0)
    begun = chosen.begin(ask)
    return begun if isinstance(begun, Estimate) else _Run(ask, begun).estimate()


@dataclass(frozen=True)
class _Request:
    """What was asked for, and what is drawn: units of `width` neighbours. `cap` bounds every x/τ, or is None.

    `whole` draws cost as much as a pass, and `look` of them come before an asymptotic claim.
    """

    source: Source
    target: float
    delta: float
    tau: float
    cap: float | None
    budget: int  # in scores
    rng: np.random.Generator
    k: int | None
    strata: int
    width: int
    whole: float
    look: float

    @property
    def units(self) -> int:
        return math.ceil(self.source.n / self.width)

    @property
    def bound(self) -> float | None:
        """Of log Σ exp(x/τ) over a unit, or None."""
        return None if self.cap is None else self.cap + math.log(self.width)

    def read(self, units: np.ndarray) -> np.ndarray:
        """log Σ exp(x/τ) over each of these units, whose scores are none above the cap; in the order of places, which is faster."""
        sums, order = np.empty(len(units)), np.argsort(units)
        height = max(1, GATHERED // (self.width * self.source.row))
        self.source.expect(units[order], self.width)
        with torch.no_grad():
            for start in range(0, len(units), height):
                part = order[start : start + height]
                sums[part] = self.select(units[part]).cpu().numpy()
        return sums

    def select(self, units: np.ndarray) -> Tensor:
        """The same, in the order of `units`, for autograd to follow."""
        z = quotient(self.source.runs(units, self.width), self.tau)
        if z.numel():
            self.check(float(z.detach().max()))
        return z.squeeze(1) if self.width == 1 else row_logsumexp(z, 1.0, None)

    def check(self, largest: float) -> None:
        if self.cap is not None and largest > self.cap:
            raise ValueError(
                f"estimate: maximum must be at least every score, and a score of {largest * self.tau} was met; raise maximum "
                "or leave it out"
            )


def _over(score: float, tau: float) -> float:
    return float(quotient(torch.tensor(score, dtype=torch.float64, device="cpu"), tau))


# What reads everything ------------------------------------------------------------------------------------------------------


def _exact(ask: _Request, spent: int) -> Estimate:
    """log Σ exp(x_i/τ) over a pass, which `spent` reads came before."""
    total, largest, error = ask.source.total(ask.tau, ask.target)
    ask.check(largest)
    value = float(total.detach())
    if math.isnan(value):
        return _not_a_number(ask, spent + ask.source.n)
    slack = _rounding(ask, value) + (error if math.isfinite(value) else 0.0)
    lower = value - slack
    if value == math.inf and not any(bool((block == math.inf).any()) for block in ask.source.blocks()):
        lower = sys.float_info.max  # beyond which a sum of numbers may be, but it is one
    return Estimate(like_input(total, ask.source.like), lower, value + slack, spent + ask.source.n, "deterministic")


def _bucket(ask: _Request) -> Estimate:
    """Counts c_b of gaps in [b·w, (b+1)·w) to the maximum M of a block: M + log Σ c_b e^{−(b+1)w} ≤ LSE ≤ M + log Σ c_b e^{−bw}.

    The width is 2·target, the value the middle. Gaps beyond the last edge have the lower limit 0.
    """
    width, n = 2.0 * ask.target, max(ask.source.n, 1)
    buckets = math.ceil((math.log(n) + NEGLIGIBLE) / width)
    if buckets > LARGEST_HISTOGRAM:
        raise ValueError(
            f"estimate: a target of {ask.target} nats needs {buckets} buckets, more than {LARGEST_HISTOGRAM}; "
            "call logsumexp, which is exact"
        )
    weights = np.exp(-width * np.arange(buckets + 1))
    lowers, uppers, values = [], [], []
    for scores in ask.source.blocks():
        scaled = quotient(scores, ask.tau)
        z = scaled.detach().cpu().numpy()
        largest = float(z.max())
        ask.check(largest)
        if math.isnan(largest):
            return _not_a_number(ask, ask.source.n)
        if math.isinf(largest):
            limits = (largest, largest)
        else:
            with np.errstate(over="ignore"):
                gaps = (largest - z[z > -math.inf]) / width
            counts = np.bincount(np.minimum(gaps, buckets).astype(np.int64), minlength=buckets + 1).astype(np.float64)
            limits = largest + math.log(counts[:-1] @ weights[1:]), largest + math.log(counts @ weights)
        lowers.append(limits[0])
        uppers.append(limits[1])
        if ask.source.differentiable:
            values.append(row_logsumexp(scaled, 1.0, None))
    lower, upper = _log_sum(np.array(lowers)), _log_sum(np.array(uppers))
    value = lower if math.isinf(lower) else 0.5 * lower + 0.5 * upper
    slack = _rounding(ask, value)
    exact = row_logsumexp(torch.stack(values), 1.0, None) if values else None
    return Estimate(_as_asked(ask, value, exact), lower - slack, upper + slack, ask.source.n, "deterministic")


def _rounding(ask: _Request, value: float) -> float:
    """A bound of what float64 loses in a sum of exponentials; 0 for a sum that is not finite."""
    return 2.0**-48 * (1.0 + abs(value) + math.log(max(ask.source.n, 1))) if math.isfinite(value) else 0.0


def _not_a_number(ask: _Request, evaluations: int, draws: int = 0) -> Estimate:
    return Estimate(_as_asked(ask, math.nan, None), math.nan, math.nan, evaluations, "none", draws)


def _as_asked(ask: _Request, value: float, differentiable: Tensor | None) -> Any:
    """The value as the kind of the source, with the gradient of a tensor that is about it."""
    number = torch.tensor(value, dtype=torch.float64, device="cpu")
    if isinstance(ask.source.like, Tensor):
        number = number.to(ask.source.like.device)
    if differentiable is not None:
        number = differentiable + (number - differentiable.detach()).nan_to_num(nan=0.0)
    return like_input(number, ask.source.like)


def _log_sum(z: np.ndarray) -> float:
    """LSE in float64, −∞ of nothing."""
    return float(logsumexp(z))


# Designs --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Design:
    """A head that is read exactly, and draws from the tail in rounds of one draw a stratum.

    draw(rounds) gives (numbers, log weights), [rounds, strata] each; a finite `population` is drawn without replacement.
    `unread` bounds every x/τ outside the head, or is None. `spent` scores were evaluated to find the head.
    """

    draw: Callable[[int], tuple[np.ndarray, np.ndarray]]
    largest_log_weight: float
    population: float = math.inf
    strata: int = 1
    head: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    unread: float | None = None
    spent: int = 0


class _WithoutReplacement:
    """Numbers below n in random order, none twice, and none of those that are taken already.

    Independent draws, of which only first occurrences are kept, are such an order.
    """

    def __init__(self, n: int, taken: np.ndarray, rng: np.random.Generator) -> None:
        self.n, self.taken, self.rng = n, np.sort(taken), rng

    def draw(self, count: int) -> np.ndarray:
        parts, missing = [], min(count, self.n - len(self.taken))
        while missing > 0:
            drawn = self.rng.integers(self.n, size=math.ceil(1.1 * missing) + 16)
            drawn = drawn[np.sort(_first_occurrences(drawn))]
            if len(self.taken):
                place = np.searchsorted(self.taken, drawn).clip(max=len(self.taken) - 1)
                drawn = drawn[self.taken[place] != drawn]
            drawn = drawn[:missing]
            self.taken = np.sort(np.concatenate([self.taken, np.sort(drawn)]), kind="stable")  # merges two sorted runs
            parts.append(drawn)
            missing -= len(drawn)
        return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _first_occurrences(numbers: np.ndarray) -> np.ndarray:
    """Where each number stands first, by the size of the number."""
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    return order[np.concatenate([[True], ordered[1:] != ordered[:-1]])] if len(order) else order


def _uniform_over(ask: _Request, head: np.ndarray, unread: float | None, spent: int) -> _Design:
    rest = ask.units - len(head)
    order = _WithoutReplacement(ask.units, head, ask.rng)

    def draw(rounds: int) -> tuple[np.ndarray, np.ndarray]:
        indices = order.draw(rounds)[:, None]
        return indices, np.full(indices.shape, math.log(rest))

    return _Design(draw, math.log(rest), population=rest, head=head, unread=unread, spent=spent)


def _uniform(ask: _Request) -> _Design:
    return _uniform_over(ask, np.empty(0, np.int64), ask.bound, 0)


def _stratified(ask: _Request) -> _Design:
    strata = min(ask.strata, ask.source.n, max(1, ask.budget // 16))
    edges = np.arange(strata + 1) * ask.source.n // strata
    log_weights = np.log(strata * np.diff(edges))

    def draw(rounds: int) -> tuple[np.ndarray, np.ndarray]:
        return ask.rng.integers(edges[:-1], edges[1:], size=(rounds, strata)), np.broadcast_to(log_weights, (rounds, strata))

    return _Design(draw, float(log_weights.max()), strata=strata, unread=ask.cap)


def _topk_tail(ask: _Request) -> _Design:
    n = ask.source.n
    return _head_and_tail(ask, _largest(ask, min(_k(ask), n // 2, (ask.budget - n) // 2)), 0.0, n)


def _topk_tail_of_index(ask: _Request) -> _Design:
    source: Any = ask.source
    exact, spent = source.search_cost()
    if ask.budget < spent + 100:
        raise ValueError(
            f"estimate: the index computes {spent} scores in a search, too many for a budget of {ask.budget}; "
            "lower its nprobe, or choose uniform"
        )
    k = min(_k(ask), source.n // 2, (ask.budget - spent) // 2)
    head = source.search(k)
    return _head_and_tail(ask, head, source.rounding if exact and len(head) == k else None, spent)


def _k(ask: _Request) -> int:
    return math.isqrt(ask.source.n) if ask.k is None else ask.k


def _head_and_tail(ask: _Request, head: np.ndarray, slack: float | None, spent: int) -> _Design:
    """The head, and draws from the rest, of which no score is above the smallest of the head by more than `slack`, if not None."""
    unread = ask.cap
    if slack is not None:
        smallest = float(np.nan_to_num(ask.read(head), nan=-math.inf).min()) + _over(slack, ask.tau)
        unread = smallest if unread is None else min(unread, smallest)
    return _uniform_over(ask, head, unread, spent)


def _largest(ask: _Request, k: int) -> np.ndarray:
    """The numbers of the k largest scores, in one pass."""
    values, numbers = (torch.empty(0, dtype=dtype, device="cpu") for dtype in (torch.float64, torch.int64))
    start = 0
    with torch.no_grad():
        for block in ask.source.blocks():
            found = torch.topk(block, min(k, len(block)))
            values = torch.cat([values, found.values.cpu()])
            numbers = torch.cat([numbers, found.indices.cpu() + start])
            kept = torch.topk(values, min(k, len(values)))
            values, numbers, start = kept.values, numbers[kept.indices], start + len(block)
    return numbers.numpy()


def _importance(ask: _Request) -> _Design:
    """Cells in proportion to n_j exp(⟨c_j, h⟩/τ), mixed with the uniform distribution."""
    source: Any = ask.source
    cells = source.cells
    if ask.budget < len(cells.starts) + 100:
        raise ValueError(
            f"estimate: importance sampling computes {len(cells.starts) - 1} scores of cells before it draws, too many for "
            f"a budget of {ask.budget}; choose uniform or stratified"
        )
    sizes = np.diff(cells.starts)
    z = np.where(sizes > 0, cells.centroids @ source.query / ask.tau + np.log(np.maximum(sizes, 1)), -math.inf)
    proposal = (1.0 - DEFENSIVE_SHARE) * np.exp(z - _log_sum(z)) + DEFENSIVE_SHARE * sizes / source.n
    proposal /= proposal.sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        log_weights = np.where(sizes > 0, np.log(sizes / proposal), -math.inf)

    def draw(rounds: int) -> tuple[np.ndarray, np.ndarray]:
        drawn = ask.rng.choice(len(sizes), size=(rounds, 1), p=proposal)
        return cells.members[ask.rng.integers(cells.starts[drawn], cells.starts[drawn + 1])], log_weights[drawn]

    return _Design(draw, float(log_weights.max()), unread=ask.cap, spent=len(sizes))


class _Method(NamedTuple):
    """How an estimate begins: with a design, or with all that is needed."""

    begin: Callable[[_Request], _Design | Estimate]
    passes: bool = False  # over all scores, at the beginning
    draws: bool = True


METHODS = {
    "uniform": _Method(_uniform),
    "stratified": _Method(_stratified),
    "bucket": _Method(_bucket, passes=True, draws=False),
    "topk_tail": _Method(_topk_tail, passes=True),
}
METHODS_OF_INDEX = METHODS | {"topk_tail": _Method(_topk_tail_of_index), "importance": _Method(_importance)}


# Drawing until the interval is narrow enough --------------------------------------------------------------------------------


class _Run:
    """One estimate: what a design has drawn so far, and the interval that it allows."""

    def __init__(self, ask: _Request, design: _Design) -> None:
        self.ask, self.design = ask, design
        self.head = ask.read(design.head)
        self.indices: list[np.ndarray] = []
        self.z: list[np.ndarray] = []  # x/τ
        self.terms: list[np.ndarray] = []  # x/τ + log weight
        self.bets: list[tuple[float, float]] = []
        self.rounds = 0

    @property
    def drawn(self) -> int:
        return self.rounds * self.design.strata

    @property
    def evaluations(self) -> int:
        return self.design.spent + (len(self.design.head) + self.drawn) * self.ask.width

    @property
    def bounded(self) -> bool:
        return self.design.unread is not None

    def estimate(self) -> Estimate:
        ask, design = self.ask, self.design
        limit = (ask.budget // ask.width - design.spent - len(design.head)) // design.strata
        limit = int(min(limit, design.population))  # rounds
        rounds = min(PILOT // design.strata + 2, limit // 4 + 2)
        planned, bets = limit, (0.0, 0.0)
        special = self._special(self.head)
        if special is not None:
            return special
        while True:
            interval = self._deterministic()
            if self._meets(*interval):
                return self._finish(self._value(), *interval, "deterministic")
            if self._is_dearer_than_a_pass(self.rounds + rounds):
                return _exact(ask, self.evaluations)
            self._draw(rounds, bets)
            special = self._special(self.z[-1])
            if special is not None:
                return special
            if self.rounds >= planned:
                lower, upper, certificate = self._look()
                if self.rounds >= limit or (certificate != "none" and self._meets(lower, upper)):
                    return self._finish(self._value(), lower, upper, certificate)
                # Each new look at nearly the same draws may refuse less by chance.
                least = math.ceil((2.0 if certificate == "none" else NEXT_LOOK) * self.rounds)
            else:
                least = 0
            planned = min(max(self._plan(limit), least), limit)
            bets = self._bets(planned)
            # A plan that costs more than a pass needs no better variance.
            trusted = planned if self._is_dearer_than_a_pass(planned) else STAGE * self.rounds
            rounds = min(planned, trusted) - self.rounds

    def _is_dearer_than_a_pass(self, rounds: int) -> bool:
        """Whether so many rounds cost what a pass does, and the budget allows one."""
        return rounds * self.design.strata >= self.ask.whole and self.evaluations + self.ask.source.n <= self.ask.budget

    def _draw(self, rounds: int, bets: tuple[float, float]) -> None:
        indices, log_weights = self.design.draw(rounds)
        z = self.ask.read(indices.ravel()).reshape(indices.shape)
        self.indices.append(indices)
        self.z.append(z)
        self.terms.append(z + log_weights)
        self.bets.append(bets)
        self.rounds += len(indices)

    def _special(self, z: np.ndarray) -> Estimate | None:
        """What a NaN or a +∞ among scores decides."""
        largest = float(np.max(z, initial=-math.inf))
        if math.isnan(largest):
            return _not_a_number(self.ask, self.evaluations, self.drawn)
        if largest < math.inf:
            return None
        value = _as_asked(self.ask, math.inf, None)
        return Estimate(value, math.inf, math.inf, self.evaluations, "deterministic", self.drawn)

    def _meets(self, lower: Any, upper: Any) -> Any:
        return upper - lower <= 2.0 * self.ask.target

    def _shift(self, bounded: bool) -> float:
        """What is taken from terms before exp: the largest that they can be, or the largest that was drawn."""
        if bounded and self.design.unread is not None:
            return self.design.unread + self.design.largest_log_weight
        largest = max((float(terms.max(initial=-math.inf)) for terms in self.terms), default=-math.inf)
        return largest if math.isfinite(largest) else 0.0

    def _draws(self, bounded: bool) -> np.ndarray:
        return np.exp(np.concatenate(self.terms) - self._shift(bounded))

    def _tail(self, mean: float, bounded: bool) -> float:
        """The logarithm of a tail of this mean."""
        return math.log(mean) + self._shift(bounded) if mean > 0.0 else -math.inf

    def _total(self, mean: float, bounded: bool) -> float:
        return float(np.logaddexp(_log_sum(self.head), self._tail(mean, bounded)))

    def _value(self) -> float:
        """log Ẑ + Var Ẑ/(2Ẑ²); before the first draw, the head with a tail in the middle of its limits."""
        if not self.terms:
            lower, upper = self._deterministic()
            return lower if math.isinf(lower) or math.isinf(upper) else 0.5 * lower + 0.5 * upper
        draws = moments(self._draws(False))
        value = self._total(draws.mean, False)
        if not math.isfinite(value):
            return value
        spread = draws.variance / self.drawn * max(0.0, 1.0 - self.drawn / self.design.population)
        return value + 0.5 * spread * math.exp(2.0 * (self._shift(False) - value))

    def _deterministic(self) -> tuple[float, float]:
        """The sum of what was read, and that with all the rest at its bound."""
        read, known = _log_sum(self.head), len(self.head)
        if self.z:
            indices = np.concatenate([part.ravel() for part in self.indices])
            z = np.concatenate([part.ravel() for part in self.z])
            if math.isinf(self.design.population):
                z = z[_first_occurrences(indices)]
                known = len(z)
            else:
                known += len(indices)
            read = float(np.logaddexp(read, _log_sum(z)))
        if (left := self.ask.units - known) == 0:
            return read, read
        return read, math.inf if self.design.unread is None else float(np.logaddexp(read, math.log(left) + self.design.unread))

    def _look(self) -> tuple[float, float, Any]:
        """(lower, upper, certificate) now."""
        sure = self._deterministic()
        if sure[0] == sure[1]:
            return *sure, "deterministic"
        if self.bounded:
            lower, upper = self._finite_sample()
            if sure[0] >= lower and sure[1] <= upper:
                return *sure, "deterministic"
            return max(lower, sure[0]), min(upper, sure[1]), "finite-sample"
        draws = moments(self._draws(False))
        low, high, claimed = self._asymptotic(draws, self.drawn)
        if not claimed:
            return sure[0], math.inf, "none"
        return max(self._total(float(low), False), sure[0]), self._total(float(high), False), "asymptotic"

    def _asymptotic(self, draws: Moments, m: Any) -> tuple[Any, Any, Any]:
        """(lower, upper, whether to claim them) for the mean of m draws with these moments."""
        low, high = extrapolated_interval(draws, m, NORMAL_SHARE * self.ask.delta, self.design.population)
        varied = draws.largest > EQUAL * draws.mean  # a sample of equal terms shows no tail, light or heavy
        light = tail_index(np.concatenate(self.terms)) <= LARGEST_TAIL_INDEX and draws.mean > 0.0 and varied
        normal = np.abs(skewness_of_mean(with_unseen(draws, m), m)) <= LARGEST_SKEWNESS
        return low, high, light & normal & (m >= FEWEST_DRAWS)

    def _finite_sample(self) -> tuple[float, float]:
        shift = self._shift(True)
        stages, centres = [], np.zeros(self.design.strata)
        for number, (terms, bets) in enumerate(zip(self.terms, self.bets, strict=True)):
            stages.append(Stage(np.exp(terms - shift), *bets, centres))
            centres = np.mean(np.concatenate([stage.y for stage in stages[: number + 1]]), axis=0)
        if self.design.strata > 1:
            low, high = bernstein_interval(stages, self.ask.delta)
        else:
            low, high = betting_interval(stages, self.ask.delta, self.design.population)
        return self._total(low, True), self._total(high, True)

    def _bets(self, rounds: int) -> tuple[float, float]:
        draws = moments(self._draws(True))
        best = float(stake(draws.variance, rounds * self.design.strata, self.ask.delta))
        return best, best

    def _plan(self, limit: int) -> int:
        """The fewest rounds, in steps of 2 %, after which the target is likely to be met."""
        if not math.isfinite(self._value()):
            return limit
        steps = math.ceil(math.log(max(limit / self.rounds, 1.0)) / math.log(GROWTH)) + 1
        rounds = np.minimum(np.ceil(self.rounds * GROWTH ** np.arange(1, steps + 1)), limit)
        m = rounds * self.design.strata
        draws, population = moments(self._draws(self.bounded)), self.design.population
        if self.bounded:
            placed = m - sum(z.size for z, bets in zip(self.z, self.bets, strict=True) if bets == (0.0, 0.0))
            low, high = forecast(draws, placed, self.ask.delta, population, linear=self.design.strata > 1)
            claimed = np.ones_like(m, dtype=bool)
        else:
            low, high, claimed = self._asymptotic(draws, m)
            claimed &= m >= self.ask.look
        with np.errstate(divide="ignore"):  # log 0
            limits = [np.logaddexp(_log_sum(self.head), np.log(mean) + self._shift(self.bounded)) for mean in (low, high)]
        enough = claimed & self._meets(*limits)
        return int(rounds[np.argmax(enough)]) if enough.any() else limit

    def _finish(self, value: float, lower: float, upper: float, certificate: Any) -> Estimate:
        slack = _rounding(self.ask, value)
        inner = (upper - self.ask.target, lower + self.ask.target) if self._meets(lower, upper) else (lower, upper)
        value = min(max(value, lower, inner[0]), upper, inner[1])
        exact = self._sample_logsumexp() if self.ask.source.differentiable else None
        value = _as_asked(self.ask, value, exact)
        return Estimate(value, lower - slack, upper + slack, self.evaluations, certificate, self.drawn)

    def _sample_logsumexp(self) -> Tensor:
        """log(Σ_head exp(z) + mean of exp(terms)), which autograd follows to the scores that were read."""
        parts = [self.ask.select(self.design.head)]
        for indices, z, terms in zip(self.indices, self.z, self.terms, strict=True):
            selected = self.ask.select(indices.ravel())
            log_weights = np.where(np.isinf(z), 0.0, terms - np.where(np.isinf(z), 0.0, z)).ravel() - math.log(self.drawn)
            parts.append(selected + torch.from_numpy(log_weights).to(selected.device))
        return row_logsumexp(torch.cat(parts), 1.0, None)
