"""Private sums and choices: no record moves more than the sensitivity, costs are what was asked, an audit sees half the noise."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
import os
import pickle
import traceback
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

import softmaxima as sm
from conftest import at_most, exhaustively
from softmaxima.privacy.library import NUMBER, dp
from softmaxima.privacy.measurements import Cost, noisy_choice, noisy_sum, sum_of

privacy: Any = sm.privacy
SURELY = 1 - 1e-6  # noise takes no seed: a statistical test that is right fails once in so many runs
bounds = st.tuples(st.floats(-100, 100), st.floats(0.01, 100)).map(lambda pair: (pair[0], pair[0] + pair[1]))
temperatures = st.sampled_from([0.05, 0.5, 1.0, 3.0, 1e3])


def lse(x: np.ndarray, tau: float) -> float:
    return float(np.logaddexp.reduce(np.asarray(x, np.float64) / tau))


# Sensitivity --------------------------------------------------------------------------------------------------------------------


@given(bounds, st.integers(1, 9), temperatures, st.data())
def test_no_record_moves_the_sum_by_more_than_the_sensitivity(limits: Any, n: int, tau: float, data: st.DataObject):
    score = st.floats(*limits)
    x = np.array(data.draw(st.lists(score, min_size=n, max_size=n)))
    # One entry is another.
    other = x.copy()
    other[data.draw(st.integers(0, n - 1))] = data.draw(score)
    slack = 1e-12 * (1 + max(map(abs, limits)) / tau)  # of the two sums here
    assert abs(lse(x, tau) - lse(other, tau)) <= privacy.Entries(limits).sensitivity(n, tau) + slack
    # One entry more.
    more = np.append(x, data.draw(score))
    assert abs(lse(x, tau) - lse(more, tau)) <= privacy.Entries(limits, "add-remove", n).sensitivity(n, tau) + slack
    # All scores move by a little.
    change = data.draw(st.floats(1e-3, 10))
    moved = np.clip(x + data.draw(st.lists(st.floats(-change, change), min_size=n, max_size=n)), *limits)
    assert abs(lse(x, tau) - lse(moved, tau)) <= privacy.Scores(limits, change).sensitivity(tau) + slack


@given(bounds, st.integers(1, 1000), temperatures)
def test_the_sensitivity_is_attained(limits: Any, n: int, tau: float):
    low, high = limits
    slack = 1e-12 * (1 + max(map(abs, limits)) / tau)
    x = np.full(n, low)
    other = np.append(x[1:], high)
    close = pytest.approx
    assert lse(other, tau) - lse(x, tau) == close(privacy.Entries(limits).sensitivity(n, tau), abs=slack, rel=1e-9)
    more = np.append(x, high)
    assert lse(more, tau) - lse(x, tau) == close(privacy.Entries(limits, "add-remove", n).sensitivity(n, tau), abs=slack, rel=1e-9)
    change = (high - low) / 2
    assert lse(x + change, tau) - lse(x, tau) == close(privacy.Scores(limits, change).sensitivity(tau), abs=slack, rel=1e-9)


@pytest.mark.parametrize("tau", [0.3, 1.0, 20.0])
def test_no_pair_of_a_hundred_thousand_is_further_apart_and_the_worst_is_near(tau: float):
    rng = np.random.default_rng(0)
    low, high, change, pairs = -1.0, 2.0, 0.5, 40_000
    for n in (1, 2, 7):
        x = rng.choice([low, high, 0.3], (pairs, n), p=[0.8, 0.1, 0.1])
        other = x.copy()
        other[:, 0] = rng.choice([low, high, 1.7], pairs)
        more = np.append(x, rng.choice([low, high], (pairs, 1)), 1)
        moved = np.clip(x + rng.choice([-change, change, 0.1], (pairs, 1)) * rng.choice([1, 1, 0.5], (pairs, n)), low, high)
        sums = [np.logaddexp.reduce(each / tau, 1) for each in (x, other, more, moved)]
        stated = (
            privacy.Entries((low, high)).sensitivity(n, tau),
            privacy.Entries((low, high), "add-remove", n).sensitivity(n, tau),
            privacy.Scores((low, high), change).sensitivity(tau),
        )
        for neighbour, sensitivity in zip(sums[1:], stated, strict=True):
            furthest = np.abs(neighbour - sums[0]).max()
            assert 0.999 * sensitivity <= furthest <= sensitivity


def test_inputs_nearer_than_neighbours_move_as_much_and_further_ones_more():
    wide = sum_of(privacy.Scores((0, 1), 7.0), 3, 1.0)  # a change beyond the bounds: scores may move by 1 at any distance of 1
    assert wide.map(1.0) >= 1.0
    assert wide.map(14.0) >= 2 * wide.map(7.0)
    entries = sum_of(privacy.Entries((0, 1)), 3, 1.0)
    assert entries.map(2) >= math.log((2 * math.e + 1) / 3)


@pytest.mark.parametrize("monotone", [False, True])
@pytest.mark.parametrize("measure", ["epsilon", "rho"])
def test_no_index_is_more_likely_by_a_record_than_the_cost_allows(monotone: bool, measure: Any):
    """By the probabilities of permute-and-flip and of softmax, of random neighbours and of the worst."""
    rng, scale = np.random.default_rng(0), 0.7
    found = []
    for _ in range(600):
        x = rng.uniform(0, 2, 3)
        other = x + (rng.choice([0.0, 1.0], 3) * rng.choice([-1, 1]) if monotone else rng.choice([-1.0, 0.0, 1.0], 3))
        p, q = (_flipped(each / scale) if measure == "epsilon" else np.asarray(sm.softmax(each / scale)) for each in (x, other))
        found.append(np.abs(np.log(p / q)).max())
    records = privacy.Scores((-9, 9), 1.0, monotone=monotone)
    cost = noisy_choice(records, 3, scale, measure).map(1.0)
    epsilon = cost if measure == "epsilon" else math.sqrt(8 * cost)
    assert 0.6 * epsilon < max(found) <= epsilon * (1 + 1e-12)


def _flipped(x: np.ndarray) -> np.ndarray:
    """P[i] of argmax(x + Z), Z exponential: candidates in random order, each taken with probability exp(x_i − max x)."""
    p, taken = np.zeros(len(x)), np.exp(x - x.max())
    orders = list(itertools.permutations(range(len(x))))
    for order in orders:
        reached = 1.0
        for i in order:
            p[i] += reached * taken[i] / len(orders)
            reached *= 1 - taken[i]
    return p


@pytest.mark.parametrize("measure", ["epsilon", "rho"])
def test_ties_are_broken_evenly(measure: Any):
    draw = noisy_choice(privacy.Scores((0, 1), 1.0), 3, 1e-3, measure)
    counts = np.bincount([draw([1.0, 1.0, 0.0]) for _ in range(1000)], minlength=3)
    assert counts[2] == 0
    assert abs(counts[0] - 500) < 5 * math.sqrt(250)


def test_the_sensitivity_of_wide_bounds_is_finite_and_that_of_many_entries_small():
    assert privacy.Entries((-1e300, 1e300)).sensitivity(3) == pytest.approx(2e300)
    assert privacy.Entries((0, 1e5)).sensitivity(7) == pytest.approx(1e5 - math.log(7))
    assert privacy.Entries((0, 1)).sensitivity(10**12) == pytest.approx((math.e - 1) / 1e12, rel=0.1)  # and what rounding may take
    assert privacy.Scores((0, 1), 7.0).sensitivity(2.0) == pytest.approx(0.5)  # no more than the bounds are wide


@given(st.integers(1, 40), temperatures, st.data())
def test_opendp_sums_as_the_reference_does(n: int, tau: float, data: st.DataObject):
    x = data.draw(st.lists(st.floats(-50, 50), min_size=n, max_size=n))
    records = privacy.Scores((-50, 50), 1.0)
    assert sum_of(records, n, tau)(x) == pytest.approx(lse(np.array(x), tau), rel=1e-13, abs=1e-12)


# Costs --------------------------------------------------------------------------------------------------------------------------


@given(st.floats(1e-4, 50), st.floats(1e-3, 1e3), st.integers(1, 1000))
def test_what_opendp_says_is_spent_is_what_was_asked_for(amount: float, change: float, n: int):
    records = privacy.Scores((-1e3, 1e3), change)
    for cost in (Cost(amount), Cost(rho=amount)):
        measurement, scale = noisy_sum(records, n, 1.0, cost)
        spent = measurement.map(change)
        assert 0.999 * amount <= spent <= amount
        delta = records.sensitivity()
        assert scale == pytest.approx(delta / amount if cost.rho is None else delta / math.sqrt(2 * amount), rel=1e-3)
    entries = privacy.Entries((0.0, 2.0))
    assert noisy_sum(entries, n, 1.0, Cost(amount))[0].map(1) <= amount


@pytest.mark.parametrize("cost", [{"epsilon": 1.0}, {"rho": 0.5}, {"epsilon": 1.0, "delta": 1e-6}], ids=str)
def test_a_release_is_near_the_sum_and_its_interval_says_how_near(cost: dict[str, float]):
    x = np.random.default_rng(0).uniform(0, 1, 100)
    times, least = (10, 3) if "delta" in cost else (60, 38)  # each holds with 0.9: fewer once in 10⁶
    releases = [privacy.logsumexp(x, privacy.Entries((0, 1)), confidence=0.9, **cost) for _ in range(times)]
    assert sum(release.lower <= lse(x, 1.0) <= release.upper for release in releases) >= least
    assert all(release.scale < 0.2 for release in releases)
    assert len({release.value for release in releases}) == times
    assert {(r.epsilon, r.delta, r.rho) for r in releases} == {(cost.get("epsilon"), cost.get("delta", 0.0), cost.get("rho"))}
    assert {release.mechanism for release in releases} == {"laplace" if list(cost) == ["epsilon"] else "gaussian"}


@pytest.mark.parametrize("confidence", [0.5, 0.95])
@pytest.mark.parametrize("cost", [{"epsilon": 1.0}, {"rho": 0.5}], ids=str)
def test_an_interval_is_as_wide_as_quantiles_of_its_noise(cost: dict[str, float], confidence: float):
    """P[|Z| > t] is e^{−t/scale} of Laplace's noise."""
    release = privacy.logsumexp(np.zeros(100), privacy.Entries((0, 1)), confidence=confidence, **cost)
    wide = -math.log(1 - confidence) if "epsilon" in cost else norm.isf((1 - confidence) / 2)
    assert (release.value - release.lower, release.upper - release.value) == pytest.approx((release.scale * wide,) * 2, rel=1e-6)


@pytest.mark.parametrize(
    "x",
    [
        torch.tensor([0.5, 0.25], dtype=torch.float64, requires_grad=True),
        torch.tensor([0.5, 0.25], dtype=torch.bfloat16),
        np.array([0.5, 9, 0.25, 9], np.float32)[::2],
        np.array([0.5, 0.25], np.float16)[::-1],
    ],
    ids=lambda x: str(x.dtype),
)
def test_arrays_and_tensors_of_every_dtype_are_read(x: Any):
    release = privacy.logsumexp(x, privacy.Scores((0, 1), 0.5), epsilon=1e9)
    assert release.value == pytest.approx(lse(np.array([0.5, 0.25]), 1.0), abs=1e-7)


def test_noise_is_of_the_distribution_that_is_said():
    records, x = privacy.Scores((0, 1), 1.0), np.array([0.5])
    measurement, scale = noisy_sum(records, 1, 1.0, Cost(2.0))
    noise = np.array([measurement([0.5]) for _ in range(4000)]) - x[0]
    for t in (0.1, 0.5, 1.0):  # P[|Z| > t] = e^{−t/scale}
        p = math.exp(-t / scale)
        assert np.mean(np.abs(noise) > t) == pytest.approx(p, abs=5 * math.sqrt(p * (1 - p) / 4000))


@pytest.mark.parametrize("tau", [0.5, 1.0, 4.0])
def test_a_draw_is_of_softmax(tau: float):
    x = np.array([0.0, 1.0, 2.0, -3.0])
    records = privacy.Scores((-5, 5), 1.0)
    assert privacy.sample(x, records, temperature=tau).epsilon == pytest.approx(2 / tau)
    draw = noisy_choice(records, 4, tau, "rho")
    counts = np.bincount([draw(x.tolist()) for _ in range(4000)], minlength=4)
    p = np.asarray(sm.softmax(x / tau))
    assert counts / 4000 == pytest.approx(p, abs=5 * 0.5 / math.sqrt(4000))


@pytest.mark.parametrize("cost", [{"epsilon": 1.0}, {"rho": 0.125}])
def test_the_chosen_score_is_as_near_the_largest_as_said(cost: dict[str, float]):
    x = np.linspace(0, 40, 20)
    records = privacy.Scores((0, 40), 1.0)
    choices = [privacy.argmax(x, records, confidence=0.8, **cost) for _ in range(100)]
    assert sum(x[choice.index] >= 40 - choice.within for choice in choices) >= 60
    assert choices[0].scale == pytest.approx(2.0, rel=1e-6)
    monotone = privacy.argmax(x, privacy.Scores((0, 40), 1.0, monotone=True), **cost)
    assert monotone.scale == pytest.approx(1.0, rel=1e-6)


# Budgets ------------------------------------------------------------------------------------------------------------------------


def test_a_budget_adds_up_and_refuses_what_is_beyond():
    budget = privacy.Budget(np.zeros(5), privacy.Scores((0, 1), 0.5), epsilon=1.0)
    budget.logsumexp(0.25)
    with pytest.raises(ValueError, match=r"argmax: 0.8 of epsilon was asked for and 0.75 is left of 1.0; nothing was released"):
        budget.argmax(0.8)
    budget.argmax(0.5)
    budget.logsumexp(0.2, temperature=3.0)
    assert 0.9499 <= budget.spent <= 0.95
    with pytest.raises(ValueError, match="rho="):
        budget.sample(0.01)
    assert budget.left == pytest.approx(0.05)


@given(
    st.one_of(st.sampled_from([1.0, 0.3, 0.1, 3.0]), st.floats(1e-9, 1e9)),
    st.integers(1, 50),
    st.sampled_from(["divided", "multiplied"]),
)
@at_most(8)
def test_equal_shares_are_the_whole_budget_and_one_more_is_refused(amount: float, k: int, way: str):
    share, whole = (amount / k, amount) if way == "divided" else (amount, amount * k)
    budget = privacy.Budget(np.zeros(2), privacy.Scores((0, 1), 0.5), epsilon=whole)
    told = [budget.argmax(share) for _ in range(k)]
    assert sum(Fraction(choice.epsilon) for choice in told) <= Fraction(whole)  # without rounding
    assert all(choice.epsilon == pytest.approx(share, rel=1e-12) for choice in told)
    assert budget.spent == pytest.approx(whole, rel=1e-14)
    assert 0 <= budget.left <= 1e-13 * whole
    with pytest.raises(ValueError, match="nothing was released"):
        budget.argmax(share)
    with pytest.raises(ValueError, match="nothing was released"):
        budget.argmax(whole * 1e-15)  # nor a small one that would be cut to what is left


def test_ten_tenths_of_a_subnormal_budget_are_all_of_it():
    budget = privacy.Budget(np.zeros(2), privacy.Scores((0, 1e-300), 1e-301), rho=1e-308)
    told = [budget.logsumexp(1e-309) for _ in range(10)]
    assert [one.rho for one in told] == pytest.approx([1e-309] * 10, rel=1e-12, abs=0)
    assert (budget.spent, budget.left) == (1e-308, 0.0)


@pytest.mark.parametrize("share", [Fraction(1, 10), 0.1, np.float64(0.1)], ids=repr)
def test_three_tenths_are_three_times_a_tenth(share: Any):
    budget = privacy.Budget(np.zeros(2), privacy.Scores((0, 1), 0.5), rho=0.3)
    for _ in range(3):
        budget.logsumexp(share)
    assert (budget.spent, budget.left) == (0.3, 0.0)


@given(st.integers(0, 10**6))
@at_most(60)
def test_shares_that_are_divided_anyhow_are_the_whole_budget(seed: int):
    """Of the account alone: no noise is searched for. Of subnormal budgets too, whose shares are rounded by the least float."""
    rng = np.random.default_rng(seed)
    k, whole = int(rng.integers(1, 300)), float(10 ** (rng.uniform(-3, 3) if seed % 3 else rng.uniform(-312, -306)))
    weights = rng.exponential(size=k) if seed % 2 else rng.integers(1, 1000, k).astype(float)
    shares = weights / float(weights.cumsum()[-1]) * whole
    if shares.min() < (k + 3) * (2.0**-33 * whole + 2.0**-1055):  # one that rounding may miss by more than 2⁻²⁰ of itself
        return
    budget: Any = privacy.Budget(np.zeros(2), privacy.Scores((0, 1), 0.5), rho=whole)
    paid = [budget._account.release("logsumexp", float(share), lambda n, amount: lambda scores: amount) for share in shares]
    assert sum(map(Fraction, paid)) <= Fraction(whole)  # never over
    assert paid == pytest.approx(shares.tolist(), rel=2.0**-20)
    with pytest.raises(ValueError, match="nothing was released"):
        budget._account.release("logsumexp", float(shares[0]), lambda n, amount: lambda scores: amount)


def test_a_process_that_is_forked_spends_nothing_of_the_budget():
    budget = privacy.Budget(np.zeros(2), privacy.Scores((0, 1), 0.5), epsilon=1.0)
    read, write = os.pipe()
    with budget._account._lock:  # as if a thread were asking
        child = os.fork()
        if not child:
            try:
                said = repr(budget.argmax(1.0))
            except RuntimeError as error:
                said = str(error)
            os.write(write, said.encode())
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as told:
        assert told.read().startswith("argmax: this Budget is a copy that came by a fork")
    os.waitpid(child, 0)
    assert budget.argmax(1.0).epsilon == 1.0


@given(st.floats(1e-6, 1e6), st.floats(1e-3, 1e3), st.booleans())
@at_most(20)
def test_what_was_asked_for_is_what_is_told(amount: float, change: float, monotone: bool):
    """To the last bit: nothing goes by way of another measure."""
    records = privacy.Scores((-1e3, 1e3), change, monotone)
    for draw in (privacy.argmax, privacy.sample):
        assert draw(np.zeros(2), records, epsilon=amount).epsilon == amount
        assert draw(np.zeros(2), records, rho=amount).rho == amount
    drawn = privacy.sample(np.zeros(2), records, epsilon=amount)
    assert drawn.rho == pytest.approx(amount**2 / 8, rel=1e-9)
    assert privacy.sample(np.zeros(2), records, temperature=amount).scale == amount


REFUSED: list[Any] = [
    lambda budget: budget.logsumexp(2.0),
    lambda budget: budget.logsumexp(math.nan),
    lambda budget: budget.logsumexp(0.1, temperature=0.0),
    lambda budget: budget.logsumexp(0.1, temperature=1e-308),  # whose sensitivity is beyond float64
    lambda budget: budget.argmax(0.1, confidence=1.0),
    lambda budget: budget.argmax(5e-324),
    lambda budget: budget.sample(0.1),
]


@pytest.mark.parametrize("refused", REFUSED)
def test_what_is_refused_spends_nothing_and_the_budget_goes_on(refused: Any):
    budget = privacy.Budget(np.zeros(2), privacy.Scores((0, 10), 5.0), epsilon=1.0)
    budget.argmax(0.5)
    with pytest.raises(ValueError, match=r"^\w+: "):
        refused(budget)
    assert budget.left == 0.5
    assert budget.argmax(0.5).epsilon == 0.5


def test_threads_never_spend_more_than_the_budget():
    budget = privacy.Budget(np.zeros(2), privacy.Scores((0, 1), 0.5), rho=1.0)

    def ask(turn: int) -> float:
        try:
            return (budget.argmax(0.1) if turn % 2 else budget.logsumexp(0.1)).rho
        except ValueError:
            return 0.0

    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(ask, range(40)))
    assert sum(map(Fraction, told)) <= 1
    assert sum(rho > 0 for rho in told) == 10
    assert budget.left == 0.0


SECRET = 0.123456789


def test_nothing_but_releases_tells_of_the_scores():
    x = np.full(3, SECRET)
    budget = privacy.Budget(x, privacy.Scores((0, 1), 0.5), epsilon=1.0)
    said = [repr(budget), repr(vars(budget))]
    for way in (pickle.dumps, copy.deepcopy, dataclasses.asdict):
        with pytest.raises(TypeError, match="spend the same budget again") as caught:
            way(budget)
        said.append(str(caught.value))
    with pytest.raises(ValueError, match="InitVar"):
        dataclasses.replace(budget, epsilon=2.0)
    copy.copy(budget).argmax(0.75)  # of the same account
    assert budget.left == 0.25
    for bad in ([SECRET, 7.5], [SECRET, math.nan], [[SECRET]]):
        with pytest.raises(ValueError, match=r"^logsumexp: ") as caught:
            privacy.logsumexp(np.array(bad), privacy.Scores((0, 1), 0.5), epsilon=1.0)
        said += traceback.format_exception(caught.value)
    assert not any(str(SECRET) in text or "7.5" in text for text in said)


def test_measurements_compose_with_those_of_opendp():
    records = privacy.Scores((0, 1), 1.0)
    both = dp.c.make_composition([noisy_sum(records, 3, 1.0, Cost(0.5))[0], noisy_choice(records, 3, 4.0, "epsilon")])
    assert 0.99 <= both.map(1.0) <= 1.0
    assert len(both([0.0, 0.5, 1.0])) == 2


# Audits -------------------------------------------------------------------------------------------------------------------------


def neighbours(kind: str) -> tuple[Any, list[float], list[float]]:
    """(what releases with a share of the noise, two inputs): the pairs at which the sensitivity is attained."""
    if kind == "entries":
        records, x, other = privacy.Entries((0, 1)), [0.0] * 3, [1.0, 0.0, 0.0]
        return lambda share: _with_noise(records, 3, share), x, other
    records = privacy.Scores((0, 10), 1.0)
    if kind == "scores":
        return lambda share: _with_noise(records, 2, share), [1.0, 2.0], [2.0, 3.0]
    return lambda share: noisy_choice(records, 2, 2.0 * share, "rho"), [5.0, 6.0], [4.0, 7.0]


def _with_noise(records: Any, n: int, share: float) -> Any:
    scale = noisy_sum(records, n, 1.0, Cost(1.0))[1]
    return sum_of(records, n, 1.0) >> dp.m.make_laplace(*NUMBER, scale=scale * share)


@pytest.mark.parametrize("kind", ["entries", exhaustively("scores"), "choice"])
def test_an_audit_finds_no_more_than_is_claimed_and_finds_half_the_noise(kind: str):
    with_share, x, other = neighbours(kind)
    trials = 12_000 if kind == "choice" else 4000  # so that what is planted is six standard deviations from being missed
    true = privacy.audit(with_share(1.0), x, other, trials=trials, confidence=SURELY)
    assert 0.2 < true.epsilon <= 1.0
    false = privacy.audit(with_share(0.5), x, other, trials=trials, confidence=SURELY)
    assert false.epsilon > 1.0  # the planted falsehood: 2 leaks


@pytest.mark.exhaustive
def test_an_audit_of_the_right_function_with_the_wrong_sensitivity_finds_it():
    """That of one record is 2 at τ = ½, and not 1."""
    records = privacy.Scores((0, 10), 1.0)
    wrong = sum_of(records, 2, 0.5) >> dp.m.make_laplace(*NUMBER, 1.0)
    assert privacy.audit(wrong, [1.0, 1.0], [2.0, 2.0], trials=4000, confidence=SURELY).epsilon > 1.0


def test_an_event_is_not_judged_by_the_answers_that_chose_it():
    """Those of x are at first the larger, and then the smaller: so they are too of both halves together."""
    halves = {0: [1.0, 1.0, 1.0, 0.0, 0.0] * 100 + [0.0] * 500, 1: [0.0, 0.0, 0.0, 1.0, 1.0] * 100 + [1.0] * 500}
    answers = {x: iter(given) for x, given in halves.items()}
    assert privacy.audit(lambda x: next(answers[x]), 0, 1, trials=1000).epsilon == 0.0


def test_an_audit_of_no_difference_finds_nothing():
    rng = np.random.default_rng(0)
    assert privacy.audit(lambda x: rng.normal(), 0, 0, trials=1000).epsilon == 0.0
    assert privacy.audit(lambda x: x, 0, 1, trials=1000, delta=0.1).epsilon > 3


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        (
            privacy.logsumexp(np.zeros(2), privacy.Scores((0, 1), 0.5), epsilon=1.0),
            TypeError,
            "got Release; pass .* such as .value",
        ),
        (
            privacy.argmax(np.zeros(2), privacy.Scores((0, 1), 0.5), epsilon=1.0),
            TypeError,
            "got Choice; pass .* .index of a Choice",
        ),
        (None, TypeError, "got None"),
        ("1.0", TypeError, "got str; pass"),
        (True, TypeError, "got bool"),
        (torch.tensor(1.0), TypeError, "got Tensor of torch.float32"),
        (np.zeros(2), TypeError, "got ndarray of float64"),
        (math.nan, ValueError, "got NaN"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_an_audit_takes_numbers_alone(answer: Any, error: Any, said: str):
    with pytest.raises(error, match=f"audit: release must give a number or an index, {said}"):
        privacy.audit(lambda x: answer if x else 1, 0, 1, trials=4)


def test_an_audit_sees_infinite_answers():
    rng = np.random.default_rng(0)
    assert privacy.audit(lambda x: math.inf if rng.random() < 0.9 - 0.8 * x else -math.inf, 0, 1, trials=2000).epsilon > 1.5
    assert privacy.audit(lambda x: math.inf, 0, 1, trials=100).epsilon == 0.0


# Wrong use ----------------------------------------------------------------------------------------------------------------------

SCORES = privacy.Scores((0, 1), 0.5)
ENTRIES = privacy.Entries((0, 1))
ROW = np.array([0.2, 0.9])
WRONG: list[tuple[Any, Any, str]] = [
    (lambda: privacy.Scores((0, math.inf), 1), ValueError, "bounds must be finite"),
    (lambda: privacy.Scores((1, 0), 1), ValueError, "bounds must be finite with a < b"),
    (lambda: privacy.Scores(3, 1), TypeError, "bounds must be a pair"),
    (lambda: privacy.Scores((0, "1"), 1), TypeError, "bounds must be a pair"),
    (lambda: privacy.Scores((0, 1), 0), ValueError, "change must be a positive"),
    (lambda: privacy.Entries((0, 1), "swap"), ValueError, "relation must be one of"),
    (lambda: privacy.Entries((0, 1), "add-remove"), ValueError, "pass least="),
    (lambda: privacy.Entries((0, 1), least=3), ValueError, "leave least= out"),
    (lambda: privacy.logsumexp(ROW, (0, 1), epsilon=1.0), TypeError, "records="),
    (lambda: privacy.logsumexp(ROW, SCORES), ValueError, "one of epsilon= and rho=, got neither"),
    (lambda: privacy.logsumexp(ROW, SCORES, epsilon=1, rho=1), ValueError, "got both"),
    (lambda: privacy.logsumexp(ROW, SCORES, epsilon=0), ValueError, "epsilon must be a positive"),
    (lambda: privacy.logsumexp(ROW, SCORES, epsilon=math.nan), ValueError, "epsilon must be a positive"),
    (lambda: privacy.logsumexp(ROW, SCORES, rho=-1), ValueError, "rho must be a positive"),
    (lambda: privacy.logsumexp(ROW, SCORES, rho=1, delta=0.1), ValueError, "delta goes with epsilon"),
    (lambda: privacy.logsumexp(ROW, SCORES, epsilon=1, delta=2), ValueError, "delta must be"),
    (lambda: privacy.logsumexp(ROW, SCORES, epsilon=1, temperature=0), ValueError, "temperature must be"),
    (lambda: privacy.logsumexp(ROW, SCORES, epsilon=1, confidence=1), ValueError, "confidence must be"),
    (lambda: privacy.logsumexp(np.array([0.2, math.nan]), SCORES, epsilon=1), ValueError, "got NaN; nothing was released"),
    (lambda: privacy.logsumexp(np.array([0.2, 1.5]), SCORES, epsilon=1), ValueError, "declared bounds .* clip=True"),
    (lambda: privacy.logsumexp(np.array([-math.inf, 0.5]), SCORES, epsilon=1), ValueError, "declared bounds"),
    (lambda: privacy.logsumexp(np.zeros((2, 2)), SCORES, epsilon=1), ValueError, "one row"),
    (lambda: privacy.logsumexp(np.zeros(0), SCORES, epsilon=1), ValueError, "one row"),
    (lambda: privacy.logsumexp(np.zeros(2, int), SCORES, epsilon=1), TypeError, "astype"),
    (lambda: privacy.logsumexp(ROW, privacy.Entries((0, 1), "add-remove", 3), epsilon=1), ValueError, "declared 3, and are fewer"),
    (lambda: privacy.argmax(ROW, privacy.Entries((0, 1)), epsilon=1), ValueError, "would name one of them"),
    (lambda: privacy.sample(ROW, SCORES), ValueError, "got none of them"),
    (lambda: privacy.sample(ROW, SCORES, epsilon=1, rho=1), ValueError, "got epsilon and rho"),
    (lambda: privacy.sample(ROW, SCORES, temperature=-1), ValueError, "temperature must be"),
    (lambda: privacy.Budget(ROW, SCORES, epsilon=1).logsumexp(0), ValueError, "logsumexp: amount must be a positive"),
    (lambda: privacy.Budget(ROW, privacy.Entries((0, 1)), rho=1).sample(0.5), ValueError, "would name one of them"),
    *(
        (lambda bad=bad: SCORES.sensitivity(bad), ValueError, "sensitivity: temperature must be")
        for bad in (0, -1, math.nan, math.inf)
    ),
    *((lambda bad=bad: ENTRIES.sensitivity(3, bad), ValueError, "sensitivity: temperature must be") for bad in (0, -1, math.nan)),
    *((lambda bad=bad: ENTRIES.sensitivity(bad), ValueError, "sensitivity: n must be") for bad in (0, -1)),
    (lambda: ENTRIES.sensitivity(2.0), TypeError, "sensitivity: n must be"),
    (lambda: ENTRIES.sensitivity(2, "1"), TypeError, "sensitivity: temperature must be"),
    (lambda: privacy.Scores((-1e308, 1e308), 1e308).sensitivity(0.1), ValueError, "finite when divided by the temperature"),
    (lambda: privacy.Entries((-1e308, 1e308)).sensitivity(3), ValueError, "finite when divided by the temperature"),
    (
        lambda: privacy.logsumexp(ROW, privacy.Entries((-1e308, 1e308)), epsilon=1),
        ValueError,
        "logsumexp: bounds must be finite when",
    ),
    (lambda: privacy.audit(3, 0, 1), TypeError, "release must be a function"),
    (lambda: privacy.audit(lambda x: x, 0, 1, trials=2), ValueError, "trials must be"),
    (lambda: privacy.audit(lambda x: x, 0, 1, delta=-1), ValueError, "delta must be"),
]


@pytest.mark.parametrize(("call", "error", "said"), WRONG)
def test_wrong_use_is_refused_before_anything_is_released(call: Any, error: Any, said: str):
    with pytest.raises(error, match=said) as caught:
        call()
    assert "\n" not in str(caught.value)


@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=6))
@at_most(20)
def test_clipped_scores_are_those_at_the_bounds(x: list[float]):
    records = privacy.Scores((-2, 3), 1.0, clip=True)
    release = privacy.logsumexp(np.array(x), records, epsilon=1e12)
    assert release.value == pytest.approx(lse(np.clip(x, -2, 3), 1.0), abs=1e-6)


EXTREME = (5e-324, 1e-300, 1e-160, 1e-100, 1.0, 1e100, 1e160, 1e300, 1.7e308)
finite = st.one_of(st.sampled_from(EXTREME), st.floats(5e-324, 1.7e308))


@given(finite, finite, finite, st.sampled_from(["epsilon", "rho"]), st.booleans())
@at_most(8)
def test_numbers_of_every_size_are_kept_to_or_refused_in_words(
    width: float, change: float, amount: float, measure: str, monotone: bool
):
    records, cost = privacy.Scores((0, width), change, monotone), {measure: amount}
    calls: list[Any] = [lambda each=each: each(np.zeros(2), records, **cost) for each in (privacy.logsumexp, privacy.argmax)]
    calls.append(lambda: privacy.sample(np.zeros(2), records, temperature=max(amount, 1e-307)))
    calls.append(lambda: privacy.Budget(np.zeros(2), records, **cost).argmax(amount / 4))
    for call in calls:
        _tells_or_says_why(call)


def test_so_are_epsilon_and_delta():
    _tells_or_says_why(lambda: privacy.logsumexp(np.zeros(2), privacy.Entries((0, 1.7e308)), epsilon=1e300, delta=1e-6))


def _tells_or_says_why(call: Any) -> None:
    try:
        told = call()
    except ValueError as error:
        said = str(error)
    else:
        said = "sample: "
        assert 0 < told.scale < math.inf
        assert not any(isinstance(value, float) and math.isnan(value) for value in vars(told).values())
    assert said.startswith(("logsumexp: ", "argmax: ", "sample: "))
    assert len(said) < 300
    assert "OpenDP" not in said


def test_float64_has_scales_for_costs_far_from_one():
    for amount in (1e-100, 1e100):
        for change in (1e-50, 1e50):
            records = privacy.Scores((-1e60, 1e60), change)
            assert privacy.argmax(np.zeros(2), records, epsilon=amount).scale == pytest.approx(2 * change / amount)
            assert privacy.argmax(np.zeros(2), records, rho=amount).scale == pytest.approx(change / math.sqrt(2 * amount))
