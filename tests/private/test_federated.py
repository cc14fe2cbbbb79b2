"""Sums of clients: exact of a state each, and an interval that holds whatever was left out."""

from __future__ import annotations

import json
import math
import pickle
from dataclasses import replace
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import softmaxima as sm
from conftest import at_most, exhaustively
from softmaxima.privacy.measurements import Cost
from softmaxima.privacy.sums import releasing

federated: Any = sm.federated
score = st.one_of(st.floats(-60, 60), st.sampled_from([-math.inf, 0.0, 1.0, 1.0 + 2**-40]))
clients = st.lists(st.lists(score, max_size=7).map(np.array), min_size=1, max_size=5)


def lse(rows: list[np.ndarray], tau: float = 1.0) -> float:
    whole = np.concatenate([np.asarray(row, float) for row in rows])
    return float(np.logaddexp.reduce(whole / tau)) if len(whole) else -math.inf


def floats(rows: list[np.ndarray]) -> list[np.ndarray]:
    return [row.astype(float) for row in rows]


@given(clients, st.integers(0, 4), st.sampled_from([0.1, 1.0, 20.0]))
def test_three_numbers_a_client_are_the_whole_sum(rows: list[np.ndarray], k: int, tau: float):
    rows = floats(rows)
    told = [pickle.loads(pickle.dumps(federated.summarise(row, k, temperature=tau))) for row in rows]
    found = federated.merge(told)
    assert found.estimate.value == pytest.approx(lse(rows, tau), rel=1e-14, abs=1e-13)
    assert found.estimate.value == -math.inf or found.estimate.upper - found.estimate.lower < 1e-11
    assert found.estimate.certificate == "deterministic"
    assert found.estimate.evaluations == found.n == sum(int((row > -math.inf).sum()) for row in rows)


@given(clients, st.integers(0, 8), st.one_of(st.none(), st.floats(0, 5)))
def test_the_interval_holds_whatever_was_left_out(rows: list[np.ndarray], k: int, below: float | None):
    rows = floats(rows)
    finite = np.concatenate(rows)[np.isfinite(np.concatenate(rows))]
    floor = -math.inf if below is None else float(finite.min(initial=0.0)) - below
    told = [federated.summarise(row, k, whole=False, floor=floor) for row in rows]
    found = federated.merge(told).estimate
    slack = 1e-13  # of the reference
    assert found.lower - slack <= lse(rows) <= found.upper + slack
    assert found.lower <= found.value <= found.upper
    # Anything within what was told is held as well, its ends among them.
    for place in ("floor", "cap"):
        others = [np.concatenate([each.top, np.full(each.left_out, getattr(each, place))]) for each in told]
        end = lse(others)
        assert math.isnan(end) or found.lower - slack <= end <= found.upper + slack
        tight = found.lower if place == "floor" else found.upper
        assert math.isnan(end) or tight == pytest.approx(end, rel=1e-12, abs=1e-12)  # no narrower interval holds all
    if k >= max(map(len, rows)):
        assert found.upper == pytest.approx(found.lower, abs=1e-12)


@given(clients, st.integers(1, 4), st.booleans())
def test_the_largest_of_all_are_known(rows: list[np.ndarray], k: int, whole: bool):
    rows = floats(rows)
    found = federated.merge([federated.summarise(row, k, whole=whole) for row in rows])
    everything = -np.sort(-np.concatenate(rows))
    everything = everything[everything > -math.inf]
    least = min(k, len(everything))
    assert len(found.top) >= least
    assert (found.top == everything[: len(found.top)]).all()
    for value, (client, item) in zip(found.top, found.items, strict=True):
        assert rows[client][item] == value


numbers = st.one_of(st.floats(-60, 60), st.sampled_from([-math.inf, 0.0, 0.1, 1.0, 1.0 + 2**-40]))


@given(
    st.lists(st.lists(numbers, max_size=7), min_size=1, max_size=4),
    st.sampled_from([1e-300, 1e-3, 1.0, 1e5]),
    st.sampled_from([-1e6, 0.0, 1e6]),
    st.sampled_from([1e-6, 0.3, 1.0, 7.0, 1e12]),
    st.sampled_from([np.float64, np.float32]),
    st.integers(0, 3),
    st.booleans(),
)
def test_the_interval_holds_the_exact_sum(drawn: Any, spread: float, offset: float, tau: float, kind: Any, k: int, whole: bool):
    """Of real numbers, in 60 digits: not to some slack."""
    rows = [(np.array(row, float) * spread + offset).astype(kind) for row in drawn]
    told = [federated.summarise(row, k, whole=whole, temperature=tau) for row in rows]
    found = federated.merge(told).estimate
    assert found.lower <= found.value <= found.upper
    exact = exact_sum(np.concatenate(rows).astype(float), tau)
    assert found.lower <= exact <= found.upper
    if whole and exact > -math.inf:
        assert found.upper - found.lower <= 2.0**-48 * (2 + max(abs(each.state.maximum) for each in told if each.n) + 4)


@pytest.mark.parametrize("spread", [1.0, exhaustively(1e-3), exhaustively(50.0)])
def test_the_interval_of_many_scores_holds_the_exact_sum(spread: float):
    rng = np.random.default_rng(0)
    for offset, tau in ((0.0, 1.0), (-math.log(10_000), 0.7), (1e6, 1.0)):
        rows = [rng.normal(offset * tau, spread, 5000) for _ in range(2)]
        for whole in (True, False):
            found = federated.merge([federated.summarise(row, 5000, whole=whole, temperature=tau) for row in rows]).estimate
            assert found.lower <= exact_sum(np.concatenate(rows), tau) <= found.upper


def exact_sum(x: np.ndarray, tau: float) -> Any:
    with mpmath.workdps(60):
        z = [mpmath.mpf(number) / mpmath.mpf(tau) for number in x.tolist() if number > -math.inf]
        top = max(z, default=mpmath.mpf(0))
        return top + mpmath.log(mpmath.fsum(mpmath.exp(one - top) for one in z)) if z else -mpmath.inf


@given(clients, st.integers(0, 4), st.booleans(), st.sampled_from([0.1, 1.0]), st.randoms(use_true_random=False))
def test_the_order_of_clients_moves_an_end_by_an_ulp(rows: Any, k: int, whole: bool, tau: float, order: Any):
    told = [federated.summarise(row, k, whole=whole, floor=-700.0, temperature=tau) for row in floats(rows)]
    first = federated.merge(told)
    order.shuffle(told)
    other = federated.merge(told)
    assert (other.top == first.top).all()
    for end in ("value", "lower", "upper"):
        now, before = (getattr(one.estimate, end) for one in (other, first))
        assert now == before or abs(now - before) <= 2 * np.spacing(abs(before))


def same(one: Any, other: Any) -> None:
    for what in ("n", "floor", "temperature"):
        assert getattr(one, what) == getattr(other, what)
        assert type(getattr(one, what)) is type(getattr(other, what))
    assert (one.top == other.top).all()
    assert one.items.tolist() == other.items.tolist()
    assert (one.state is None) == (other.state is None)


@given(clients, st.integers(0, 3), st.booleans(), st.sampled_from([0.1, 1.0]))
def test_a_summary_travels(rows: Any, k: int, whole: bool, tau: float):
    """And says the same to the last bit, also of numbers that came as NumPy's."""
    told = [
        federated.summarise(row, k, items=[f"é{i}" for i in range(len(row))], whole=whole, floor=np.float32(-700), temperature=tau)
        for row in floats(rows)
    ]
    for way in (lambda each: pickle.loads(pickle.dumps(each)), lambda each: federated.Summary.from_json(each.to_json())):
        came = [way(each) for each in told]
        for one, other in zip(came, told, strict=True):
            same(one, other)
        assert federated.merge(came).estimate == federated.merge(told).estimate


anything = st.one_of(st.floats(), st.integers(-3, 5), st.sampled_from([10**400, None, True, "", "é", [], [None], {}]))


@given(st.sampled_from(["top", "items", "n", "state", "floor", "temperature", "kind"]), st.integers(0, 5), anything, st.booleans())
def test_whatever_comes_as_json_is_a_summary_or_refused_in_a_sentence(what: str, place: int, value: Any, inside: bool):
    content = json.loads(federated.summarise(np.array([1.0, 1.0, 0.5, -2.0]), 2, floor=-3.0).to_json())
    if inside and isinstance(content[what], list):
        content[what][place % len(content[what])] = value
    else:
        content[what] = value
    found = said = None
    try:
        found = federated.merge([federated.Summary.from_json(json.dumps(content))]).estimate
    except (TypeError, ValueError) as error:
        said = str(error)
    assert found is None or found.lower <= found.value <= found.upper
    assert said is None or (said.startswith(("from_json: ", "Summary: ")) and "\n" not in said)


HONEST = [federated.summarise(np.array(row)) for row in ([0.0, -3.0], [-700.0, -701.0, -702.5], [40.0, 39.5, -1.0])]


@given(
    st.lists(st.floats(-60, 60), min_size=1, max_size=6),
    st.integers(2, 5),
    st.sampled_from([0.0, 1e-9, 0.5, 0.999999, 1.0, -1.0, 60.0, 1060.0, -1060.0, 3e3, 1e300, -1e300]),
    st.booleans(),
)
def test_what_merges_is_what_was_looked_at(row: list[float], place: int, moved: float, zero: bool):
    """Of a state that was tampered with too: the sum with others is that of what it says alone."""
    content = json.loads(federated.summarise(np.array(row)).to_json())
    state = content["state"]
    state[place] = (0.0 if zero else state[place]) + moved
    try:
        told = federated.Summary.from_json(json.dumps(content))
    except ValueError:
        return
    alone = federated.merge([told]).estimate.value
    for other in HONEST:
        for pair in ([told, other], [other, told]):
            found = federated.merge(pair).estimate
            exact = np.logaddexp(alone, federated.merge([other]).estimate.value)
            assert found.value == pytest.approx(exact, rel=1e-14, abs=1e-13)
            assert found.upper - found.lower < 1e-11


moves = st.one_of(
    st.sampled_from([0.0, -math.inf, 1.0, -1.0, 2.0**-41, -(2.0**-41), 2.0**-48, 5.0, 2**53, 1e18]), st.floats(-80, 80)
)


@given(
    st.lists(st.one_of(st.floats(-60, 60), st.sampled_from([0.0, 1.0])), min_size=1, max_size=8),
    st.integers(0, 4),
    st.booleans(),
    st.sampled_from([0.0, 2.0, math.inf]),
    st.sampled_from(["n", "floor", "top", 0, 1, 2, 3, 4, 5]),
    moves,
    st.booleans(),
    st.integers(1, 3),
)
@at_most(1600)
def test_a_forged_summary_that_is_believed_is_one_that_scores_have(
    row: Any, k: int, whole: bool, below: float, what: Any, move: float, to: bool, copies: int
):
    """Whatever number was moved, by something or to it: the interval holds a sum of n scores of this top and floor."""
    told = json.loads(federated.summarise(np.array(row), k, whole=whole, floor=min(row) - below).to_json())
    place, within = (what, told["state"]) if isinstance(what, int) else (-1, told["top"]) if what == "top" else (what, told)
    if not within and what != "floor":
        return
    moved = move if to else (within[place] or 0) + move
    within[place] = int(moved) if what in ("n", 0, 1) and moved > -math.inf else moved if math.isfinite(moved) else None
    try:
        found = federated.merge([federated.Summary.from_json(json.dumps(told))] * copies + HONEST[:1]).estimate
    except (TypeError, ValueError):
        return
    with mpmath.workdps(60):
        other = mpmath.exp(exact_sum(np.array([0.0, -3.0]), 1.0))
        least, most = (mpmath.log(copies * end + other) for end in sums_of(told))
    assert found.lower <= most
    assert found.upper >= least


def sums_of(told: Any) -> tuple[Any, Any]:
    """The least and the greatest Σ eˣ of scores that are told so."""
    known = [mpmath.exp(one) for one in told["top"] or ([told["state"][2]] if told["state"] and told["n"] else [])]
    floor = mpmath.mpf(0) if told["floor"] is None else mpmath.exp(told["floor"])
    others = told["n"] - len(known)
    cap = known[-1] if known else mpmath.inf
    return mpmath.fsum(known) + others * floor, mpmath.fsum(known) + (others * cap if others else 0)


@pytest.mark.parametrize("more", [2.0**-41, -(2.0**-41), 2.0**-48])
def test_the_sum_of_a_summary_is_off_by_no_more_than_merging_rounds(more: float):
    for row in ([0.0], [0.0, -1.0], [0.0] * 5 + [-3.0]):
        told = json.loads(federated.summarise(np.array(row), len(row)).to_json())
        told["state"][3:] = [told["state"][3] * 2.0 ** max(told["state"][5], -60) + more, 0.0, 0.0]
        with pytest.raises(ValueError, match="Summary: state must be of"):
            federated.Summary.from_json(json.dumps(told))


def _whole(n: int) -> Any:
    zeros = {"kind": "softmaxima summary 1", "top": [], "items": [], "n": n, "floor": None, "temperature": 1.0}
    return federated.Summary.from_json(json.dumps(zeros | {"state": [n, n, 0.0, 0.0, 0.0, -1e300]}))


@pytest.mark.parametrize("kind", ["sum", "largest"])
def test_no_total_wraps_around(kind: str):
    """Of 2⁵³ zeros each."""
    told = _whole(2**53) if kind == "sum" else federated.Summary(np.zeros(1), np.zeros(1), 2**53, None, 0.0, 1.0)
    found = federated.merge([told] * 512)
    assert found.n == 2**62
    assert found.estimate.lower <= 62 * mpmath.log(2) <= found.estimate.upper
    for clients in (513, 1024, 2048):
        with pytest.raises(ValueError, match=f"^merge: summaries must be of at most 2⁶² scores in all, .* got {clients * 2**53};"):
            federated.merge([told] * clients)


def _merged(summaries: list[Any]) -> tuple[str, Any]:
    try:
        return "", federated.merge(summaries).estimate
    except (TypeError, ValueError) as error:
        return str(error), None


@pytest.mark.parametrize("kind", ["summary", "state", "rest"])
def test_a_pickle_with_other_things_in_it_is_refused_by_client(kind: str):
    junk: list[Any] = [
        None,
        0.5,
        "x",
        [],
        True,
        np.zeros(2),
        np.array(1.5),
        torch.zeros(1, device="meta"),
        torch.tensor(2),
        object(),
    ]
    told = federated.summarise(np.array([0.5, 1.0, 0.25]), 1)
    for what in {"summary": vars(told), "state": vars(told.state), "rest": ("high", "low", "exponent")}[kind]:
        for value in junk:
            false = pickle.loads(pickle.dumps(told))
            if kind == "summary":
                object.__setattr__(false, what, value)
            elif kind == "state":
                object.__setattr__(false.state, what, value)
            else:
                object.__setattr__(false.state, "rest", false.state.rest._replace(**{what: value}))
            said, found = _merged([told, false])
            assert said.startswith(("", "merge: client 1: ", "merge: summaries must be of one temperature")[found is None :])
            assert found is None or found.lower <= found.upper  # of a number that scores may have
    bare = object.__new__(federated.Summary)
    with pytest.raises(TypeError, match="merge: client 1: a Summary must have top, items"):
        federated.merge([told, bare])


def _fit(names: list[int]) -> bool:
    return all(-(2**63) <= each < 2**63 for each in names) or all(0 <= each < 2**64 for each in names)


name = st.one_of(st.integers(-3, 2**66), st.floats(), st.text(max_size=3), st.booleans(), st.none(), st.just(2**53 + 1))


@given(
    st.one_of(st.lists(name, max_size=4), st.lists(st.integers(-3, 2**66), max_size=4), st.lists(st.text(max_size=3))),
    st.booleans(),
)
@at_most(60)
def test_names_come_back_as_they_were_or_are_refused(names: list[Any], objects: bool):
    items: Any = names
    if objects:
        items = np.empty(len(names), object)
        items[:] = names
    kinds = {type(each) for each in names}
    kept = kinds <= {str} or (kinds == {float} and np.isfinite(names).all()) or (kinds == {int} and _fit(names))
    if not kept or any(each.endswith("\0") for each in names if isinstance(each, str)):
        with pytest.raises(TypeError, match="summarise: items must be all strings, all ints of 64 bits or all finite floats, got "):
            federated.summarise(np.zeros(len(names)), len(names), items=items)
        return
    told = federated.summarise(np.zeros(len(names)), len(names), items=items)
    came = federated.Summary.from_json(told.to_json()).items.tolist()
    assert came == names
    assert [type(each) for each in came] == [type(each) for each in names]


@pytest.mark.parametrize("offset", [0.0, -388.98443477219513, 1e3, -1e6, 2.0**30, -3.021191609060594e16, 1e18, 1e300])
def test_no_summary_of_scores_is_refused(offset: float):
    """Of many that are alike, far apart, or nearly so: their sums are rounded, and lose low bits far below the maximum."""
    rng = np.random.default_rng(0)
    for draw in (
        rng.uniform(-760, 0, 8),
        -rng.uniform(700, 2000, 3),
        -rng.exponential(1e-12, 5),
        np.zeros(1),
        [0, -744.44, -745.1],
    ):
        for n in (len(draw), 5000):
            for tau, k in ((1.0, 2), (0.7, 0), (0.7, n)):
                row = offset + np.resize(draw, n)
                told = federated.summarise(row, k, floor=float((row / tau).min()), temperature=tau)
                came = federated.Summary.from_json(told.to_json())
                assert federated.merge([came]).estimate == federated.merge([told]).estimate


def test_a_client_that_sends_its_sum_alone_hides_no_larger_score_than_its_maximum():
    rows = [np.array([5.0, 1.0, 4.0]), np.array([2.0, 0.0])]
    found = federated.merge([federated.summarise(rows[0], 2), federated.summarise(rows[1])])
    assert found.top.tolist() == [5.0, 4.0]
    assert federated.merge([federated.summarise(rows[0], 2), federated.summarise(rows[1], whole=False)]).top.tolist() == []


def test_scores_of_minus_infinity_are_not_below_the_floor():
    told = federated.summarise(np.array([0.5, -math.inf, 1.0]), 1, whole=False, floor=0.0)
    assert (told.n, told.left_out) == (2, 1)


def test_more_is_sent_and_the_interval_narrows():
    rows = list(np.random.default_rng(0).normal(size=(4, 50)))
    widths, numbers = [], []
    for k in (1, 5, 20, 50):
        found = federated.merge([federated.summarise(row, k, whole=False, floor=-6.0) for row in rows])
        widths.append(found.estimate.upper - found.estimate.lower)
        numbers.append(found.numbers)
    assert widths == sorted(widths, reverse=True)
    assert numbers == [4 * (2 * k + 3) for k in (1, 5, 20, 50)]
    assert widths[-1] < 1e-12


def test_some_clients_may_tell_all_and_others_their_largest():
    rows = [np.array([1.0, 2.0]), np.array([0.0, -1.0, 3.0])]
    found = federated.merge([federated.summarise(rows[0]), federated.summarise(rows[1], 1, whole=False)]).estimate
    assert found.lower == pytest.approx(lse([rows[0], np.array([3.0])]))
    assert found.upper == pytest.approx(lse([rows[0], np.full(3, 3.0)]))


def test_tensors_with_names_for_items(dtype: torch.dtype):
    told = federated.summarise(torch.tensor([1.0, 3.0, 2.0], dtype=dtype), 2, items=["a", "b", "c"])
    assert federated.merge([told], 1).items == [(0, "b")]


def test_nothing_sums_to_nothing():
    found = federated.merge([federated.summarise(np.array([])), federated.summarise(np.array([-math.inf]), 3)])
    assert found.estimate.value == -math.inf
    assert len(found.top) == 0


# With noise, and as shares ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", ["client", "server"])
def test_noise_of_clients_or_the_server_is_held_by_the_interval(noise: str):
    rows = list(np.random.default_rng(0).uniform(0, 1, (5, 200)))
    entries: Any = sm.privacy.Entries((0, 1))
    found = [federated.private_logsumexp(rows, entries, epsilon=1.0, noise=noise, confidence=0.9) for _ in range(12)]
    assert sum(one.lower <= lse(rows) <= one.upper for one in found) >= 5  # each with 0.9: fewer once in 10⁵
    scale = sm.privacy.Entries((0, 1)).sensitivity(200 if noise == "client" else 1000)
    assert found[0].scale == pytest.approx(scale, rel=1e-6)


@pytest.mark.parametrize(("noise", "together"), [("client", 5), ("server", 1)])
def test_intervals_of_noise_hold_at_once_for_all_who_add_it(noise: str, together: int):
    found = federated.private_logsumexp([np.zeros(200)] * 5, sm.privacy.Entries((0, 1)), epsilon=1.0, noise=noise, confidence=0.9)
    reach = found.scale * math.log(together / 0.1)  # of Laplace's noise
    assert (found.value - found.lower, found.upper - found.value) == pytest.approx((reach, reach), rel=1e-6)


@pytest.mark.parametrize("least", [50, 200])
def test_the_server_needs_less_noise_by_the_number_of_clients(least: int):
    rows = list(np.random.default_rng(0).uniform(0, 1, (5, 200)))
    for entries in (sm.privacy.Entries((0, 1)), sm.privacy.Entries((0, 1), "add-remove", least)):
        client, server = (
            federated.private_logsumexp(rows, entries, epsilon=1.0, noise=noise).scale for noise in ("client", "server")
        )
        assert client / server == pytest.approx(5, rel=0.1)


def test_the_value_of_clients_is_as_high_on_average_as_said():
    x, draws = np.array([0.5, 0.25, 1.0]), 400
    release = releasing("logsumexp", sm.privacy.Entries((0, 1)), 3, 1.0, Cost(1.2), 0.95)
    told = [[release(x.tolist()) for _ in range(2)] for _ in range(draws)]
    values = np.array([[one.value for one in pair] for pair in told])
    off = np.logaddexp(*values.T) - math.log(2) - values.mean(1)  # the mean of the noise is 0, and left out
    said, doubt = (1 - 1 / 2) * told[0][0].scale ** 2, 5 * off.std() / math.sqrt(draws)
    assert abs(off.mean() - said) < doubt + 0.17 * said
    assert doubt < 0.7 * said  # twice as much, or nothing, would be seen


def test_intervals_with_the_least_doubt_are_finite():
    found = federated.private_logsumexp([ROW] * 3, sm.privacy.Entries((0, 1)), epsilon=1.0, confidence=1 - 1e-16)
    assert found.lower < found.value < found.upper < math.inf
    assert found.confidence == 1 - 1e-16


def test_clients_that_share_find_the_sum():
    rows = [np.array([0.5, 1.0]), np.array([-1.0]), np.array([2.0, 0.0, 0.0])]
    found = federated.secure_logsumexp(rows, bounds=(-4, 8), bits=20, temperature=2.0)
    assert abs(found.value - lse(rows, 2.0)) <= found.error
    assert found.parties == 3


@pytest.mark.parametrize("n", [1, 2, 3])
def test_no_record_moves_what_is_released_by_more_than_stated(n: int):
    """All neighbours on a grid: a client's noise is for its own n, the server's for that of all."""
    entries: Any = sm.privacy.Entries((-1, 1))
    grid = np.linspace(-1, 1, 9)
    for tau in (0.3, 1.0):
        rows = np.stack(np.meshgrid(*[grid] * n, indexing="ij"), -1).reshape(-1, n)
        values = np.logaddexp.reduce(rows / tau, -1).reshape((9,) * n)
        most = max(float(np.ptp(values, axis=axis).max()) for axis in range(n))
        assert most <= entries.sensitivity(n, tau) == pytest.approx(most, rel=1e-9)
        told = federated.private_logsumexp([rows[0]], entries, epsilon=2.0, temperature=tau)
        assert told.scale >= most / 2


def test_what_clients_share_is_not_beyond_the_bounds_by_rounding():
    for tau in (0.3, 0.7, 3.0):
        for end in (0.1, 1e3 / 3):
            for n in (1, 3):
                row = np.full(n, end)
                z = float(end / tau)
                for bounds in ((z, z + 1), (z - 1, z)):
                    found = federated.secure_logsumexp([row], bounds=bounds, temperature=tau, bits=48)
                    assert abs(found.value - exact_sum(row, tau)) <= found.error


# Wrong use ----------------------------------------------------------------------------------------------------------------------

ROW = np.array([0.5, 1.0])
TOLD = federated.summarise(ROW, 1)
PART = federated.summarise(ROW, 1, whole=False, floor=0.0)
FALSE: list[tuple[Any, dict[str, Any], str]] = [
    (TOLD, {"n": -1}, "n must be an int from 0"),
    (TOLD, {"n": 2.0}, "n must be an int"),
    (TOLD, {"n": 0}, "n must be at least 1"),
    (TOLD, {"top": np.array([math.nan])}, "top must be finite"),
    (TOLD, {"top": np.array([math.inf])}, "top must be finite"),
    (TOLD, {"top": [1.0]}, "top must be a float64 array"),
    (TOLD, {"top": np.array([0.5, 1.0]), "items": np.array([0, 1])}, "in falling order"),
    (TOLD, {"items": np.array([1, 2])}, "items must be an array of 1"),
    (TOLD, {"floor": 2.0}, "floor must be at most the smallest of top"),
    (TOLD, {"floor": math.nan}, "floor must be a number below"),
    (TOLD, {"temperature": 0.0}, "temperature must be"),
    (PART, {"n": 0}, "n must be at least 1"),
    (TOLD, {"state": 3}, "state must be a LogSumExpState or None"),
    (TOLD, {"n": 3}, "state must be of 3 scores"),
    (TOLD, {"top": np.array([0.5])}, "state must be of 2 scores"),
    (TOLD, {"floor": 0.75}, "state must be of 2 scores that have top as their largest and none below the floor"),
    (federated.summarise(ROW), {"floor": 5.0}, "state must be of 2 scores"),
    (TOLD, {"state": sm.LogSumExpState().update(ROW[None])}, "state must be of 2 scores"),
    (TOLD, {"state": replace(TOLD.state, maximum=np.array(math.nan))}, "state must be of 2 scores"),
    (TOLD, {"state": replace(TOLD.state, count=np.array(2))}, "state must be of 2 scores"),
    (TOLD, {"state": replace(TOLD.state, rest=sm.LogSumExpState().update(ROW * 9).merge(TOLD.state).rest)}, "state must be of 2"),
    (federated.summarise(ROW), {"state": replace(TOLD.state, count=np.array(3))}, "state must be of 2 scores"),
    (federated.summarise(ROW[:0]), {"state": replace(TOLD.state, n=np.array(0))}, "state must be of 0 scores"),
]


@pytest.mark.parametrize(("told", "changed", "said"), FALSE)
def test_what_no_scores_tell_is_no_summary_and_does_not_merge(told: Any, changed: dict[str, Any], said: str):
    with pytest.raises((TypeError, ValueError), match=f"^Summary: .*{said}"):
        replace(told, **changed)
    false = pickle.loads(pickle.dumps(told))
    for what, value in changed.items():
        object.__setattr__(false, what, value)
    with pytest.raises((TypeError, ValueError), match=f"^merge: client 1: .*{said}") as caught:
        federated.merge([TOLD, false])
    assert "\n" not in str(caught.value)


WRONG: list[tuple[Any, Any, str]] = [
    (lambda: federated.summarise(np.array([1e308]), temperature=0.1), ValueError, "over the temperature 0.1 must"),
    (lambda: federated.summarise(np.array([-1e308, 0.0]), temperature=0.1), ValueError, "must be within float64"),
    (lambda: federated.merge([PART, federated.summarise(ROW, 1, temperature=2.0)]), ValueError, "1.0 of client 0 and 2.0 of"),
    (lambda: federated.merge([PART, federated.summarise(ROW, whole=False)], 1), ValueError, "client 1 sent 0 of its 2"),
    (lambda: federated.merge([PART, ROW]), TypeError, "from client 1"),
    (lambda: federated.summarise(ROW, 1, items=np.array([{1}, {2}])), TypeError, "summarise: items must be .* got set"),
    (lambda: federated.Summary.from_json("{}"), ValueError, "from_json: text must be"),
    (lambda: federated.Summary.from_json(PART.to_json().replace("[1.0]", '["a"]')), ValueError, "from_json: text must be"),
    (lambda: federated.Summary.from_json(TOLD.to_json().replace('"state": [', '"state": [0,')), ValueError, "text must be"),
    (lambda: federated.secure_logsumexp([ROW] * 3, bounds=(0, 1), bits=4), ValueError, "^secure_logsumexp: bits must"),
    (lambda: federated.secure_logsumexp([ROW] * 3, bounds=(0, 1), timeout=0), ValueError, "^secure_logsumexp: timeout must"),
    (
        lambda: federated.private_logsumexp([ROW], sm.privacy.Entries((0, 1)), epsilon=1, temperature=-1),
        ValueError,
        "^private_logsumexp: temperature",
    ),
    (lambda: federated.summarise(np.array([math.nan])), ValueError, "nothing was sent"),
    (lambda: federated.summarise(np.array([math.inf])), ValueError, "below \\+inf"),
    (lambda: federated.summarise(ROW[None]), ValueError, "one row"),
    (lambda: federated.summarise(ROW, -1), ValueError, "k must be"),
    (lambda: federated.summarise(ROW, 1, items=[3]), ValueError, "items must name each"),
    (lambda: federated.summarise(ROW, floor=0.7), ValueError, "at least the floor"),
    (lambda: federated.summarise(ROW, floor=math.nan), ValueError, "floor must be"),
    (lambda: federated.summarise(ROW, temperature=0), ValueError, "temperature must be"),
    (lambda: federated.summarise(ROW, whole=1), TypeError, "whole must be"),
    (lambda: federated.merge([]), ValueError, "at least one client"),
    (lambda: federated.merge([ROW]), TypeError, "a list of Summary"),
    (lambda: federated.merge([federated.summarise(ROW, 1)], 2), ValueError, "known to be the largest"),
    (lambda: federated.private_logsumexp([], sm.privacy.Entries((0, 1)), epsilon=1), ValueError, "clients must be a list"),
    (lambda: federated.private_logsumexp([ROW], None, epsilon=1), TypeError, "records must be"),
    (lambda: federated.private_logsumexp([ROW], sm.privacy.Entries((0, 1)), epsilon=1, noise="x"), ValueError, "noise must be"),
    (lambda: federated.private_logsumexp([ROW], sm.privacy.Entries((0, 1)), epsilon=0), ValueError, "^private_logsumexp: eps"),
    (lambda: federated.private_logsumexp([ROW, ROW * 3], sm.privacy.Entries((0, 1)), epsilon=1), ValueError, "client 1: scores"),
    (lambda: federated.private_logsumexp([ROW * math.nan], sm.privacy.Entries((0, 1)), epsilon=1), ValueError, "NaN from client 0"),
    (lambda: federated.secure_logsumexp([ROW, ROW], bounds=(0, 1)), ValueError, "at least three"),
    (lambda: federated.secure_logsumexp([ROW, ROW, ROW * 3], bounds=(0, 1)), ValueError, "some of client 2"),
    (lambda: federated.secure_logsumexp([ROW, ROW, ROW[:0]], bounds=(0, 1)), ValueError, "none from client 2"),
    (lambda: federated.secure_logsumexp([ROW], bounds=(0, 1), temperature=-1), ValueError, "temperature must be"),
]


@pytest.mark.parametrize(("call", "error", "said"), WRONG)
def test_wrong_use_is_refused_and_nothing_is_sent(call: Any, error: Any, said: str):
    with pytest.raises(error, match=said) as caught:
        call()
    assert "\n" not in str(caught.value)
