"""Sums of clients: exact of three numbers each, and an interval that holds whatever was left out."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import softmaxima as sm

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
    assert (
        found.estimate.value == found.estimate.lower == found.estimate.upper == pytest.approx(lse(rows, tau), rel=1e-14, abs=1e-13)
    )
    assert found.estimate.certificate == "deterministic"
    assert found.estimate.evaluations == found.n == sum(int((row > -math.inf).sum()) for row in rows)


@given(clients, st.integers(0, 8), st.one_of(st.none(), st.floats(0, 5)))
def test_the_interval_holds_whatever_was_left_out(rows: list[np.ndarray], k: int, below: float | None):
    rows = floats(rows)
    finite = np.concatenate(rows)[np.isfinite(np.concatenate(rows))]
    floor = -math.inf if below is None or (np.concatenate(rows) == -math.inf).any() else float(finite.min(initial=0.0)) - below
    told = [federated.summarise(row, k, whole=False, floor=floor) for row in rows]
    found = federated.merge(told).estimate
    slack = 1e-13  # where nothing is left out the ends are one number, and the reference is rounded too
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


def test_more_is_sent_and_the_interval_narrows():
    rows = list(np.random.default_rng(0).normal(size=(4, 50)))
    widths, numbers = [], []
    for k in (1, 5, 20, 50):
        found = federated.merge([federated.summarise(row, k, whole=False, floor=-6.0) for row in rows])
        widths.append(found.estimate.upper - found.estimate.lower)
        numbers.append(found.numbers)
    assert widths == sorted(widths, reverse=True)
    assert numbers == [4 * (2 * k + 2) for k in (1, 5, 20, 50)]
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


def test_clients_that_share_find_the_sum():
    rows = [np.array([0.5, 1.0]), np.array([-1.0]), np.array([2.0, 0.0, 0.0])]
    found = federated.secure_logsumexp(rows, bounds=(-4, 8), bits=20, temperature=2.0)
    assert abs(found.value - lse(rows, 2.0)) <= found.error
    assert found.parties == 3


# Wrong use ----------------------------------------------------------------------------------------------------------------------

ROW = np.array([0.5, 1.0])
WRONG: list[tuple[Any, Any, str]] = [
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
    (lambda: federated.private_logsumexp([ROW], sm.privacy.Entries((0, 1)), epsilon=0), ValueError, "epsilon must be"),
    (lambda: federated.private_logsumexp([ROW, ROW * 3], sm.privacy.Entries((0, 1)), epsilon=1), ValueError, "declared bounds"),
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
