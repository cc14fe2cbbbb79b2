"""Private sums and choices: no record moves more than the sensitivity, costs are what was asked, an audit sees half the noise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

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


def test_opendp_itself_refuses_beyond_the_budget():
    records = privacy.Entries((0, 1))
    budget = privacy.Budget(np.zeros(5), records, rho=0.5)
    with pytest.raises(dp.OpenDPException, match="exceed privacy budget"):
        budget._ask(noisy_sum(records, 5, 1.0, Cost(rho=0.6))[0])
    assert budget.spent == 0


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


def test_an_audit_of_no_difference_finds_nothing():
    rng = np.random.default_rng(0)
    assert privacy.audit(lambda x: rng.normal(), 0, 0, trials=1000).epsilon == 0.0
    assert privacy.audit(lambda x: x, 0, 1, trials=1000, delta=0.1).epsilon > 3


# Wrong use ----------------------------------------------------------------------------------------------------------------------

SCORES = privacy.Scores((0, 1), 0.5)
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
    (lambda: privacy.Budget(ROW, SCORES, epsilon=1).logsumexp(0), ValueError, "epsilon must be a positive"),
    (lambda: privacy.Budget(ROW, privacy.Entries((0, 1)), rho=1).sample(0.5), ValueError, "would name one of them"),
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
