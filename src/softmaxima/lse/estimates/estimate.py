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
from typing import Any

from softmaxima.base.numbers import (
    check_choice,
    check_confidence,
    check_count,
    check_number,
    check_one_temperature,
    check_positive,
    is_finite,
)
from softmaxima.base.public import public
from softmaxima.base.randomness import Randomness, as_numpy_generator
from softmaxima.lse.estimates.designs import METHODS, METHODS_OF_INDEX
from softmaxima.lse.estimates.drawing import LEAST, LOOK, PILOT, START, Run
from softmaxima.lse.estimates.opening import open_source
from softmaxima.lse.estimates.request import Estimate, Request, log_over
from softmaxima.lse.estimates.whole import exact


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
    ask = Request(
        source=scores,
        target=target,
        delta=1.0 - confidence,
        tau=tau,
        cap=None if maximum is None else log_over(maximum + 2.0**-40 * (1.0 + abs(maximum)), tau),
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
        return exact(ask, 0)
    begun = chosen.begin(ask)
    return begun if isinstance(begun, Estimate) else Run(ask, begun).estimate()
