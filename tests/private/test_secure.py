"""Sums of shares: no result is further off than is stated, parties are told the result alone, and nothing where one is missing."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import softmaxima as sm
from conftest import at_most, exhaustively
from softmaxima.secure import functions
from softmaxima.secure.evaluation import together
from softmaxima.secure.fixed_point import FixedPoint
from softmaxima.secure.library import runtime

secure: Any = sm.secure


def reference(what: str, x: np.ndarray) -> Any:
    lse = np.logaddexp.reduce(x)
    return {"logsumexp": lse, "softmax": np.exp(x - lse)}[what]


@st.composite
def formats(draw: st.DrawFn) -> tuple[FixedPoint, np.ndarray]:
    """Numbers, and scores within their bounds, with ties, from narrow ones around 0 to wide and far ones."""
    n, bits = draw(st.integers(1, 9)), draw(st.sampled_from([16, 20, 32]))
    low = draw(st.sampled_from([0.0, -0.5, -3.0, 1e3, -1e3, 0.3]))
    high = low + draw(st.sampled_from([2.0**-7, 1.0, 2.5, 16.0, 40.0]))
    score = st.one_of(st.floats(low, high), st.sampled_from([low, high, (low + high) / 2]))
    return FixedPoint(n, (low, high), bits), np.array(draw(st.lists(score, min_size=n, max_size=n)))


def opened(what: str, x: np.ndarray, format: FixedPoint) -> Any:
    mpc = runtime()
    return mpc.run(mpc.output(getattr(secure, what)(format.numbers.array(x, integral=False), format)))


@given(formats())
@at_most(60)
def test_no_result_is_further_off_than_stated(drawn: tuple[FixedPoint, np.ndarray]):
    format, x = drawn
    slack = 1e-12 * (1 + max(map(abs, format.bounds)))  # of the reference
    assert abs(opened("logsumexp", x, format)[0] - reference("logsumexp", x)) <= format.error + slack
    p = opened("softmax", x, format)
    assert np.abs(p - reference("softmax", x)).max() <= format.softmax_error + slack
    assert x[int(opened("argmax", x, format))] >= x.max() - format.spacing


@pytest.mark.parametrize("n", [2, 40, exhaustively(1000)])
def test_the_stated_error_is_near_what_is_seen_of_equal_scores(n: int):
    """All terms are 1 with the same chance of being off: what is stated is no more than some times of that."""
    format = FixedPoint(n, (-8.0, 8.0), 24)
    off = abs(opened("logsumexp", np.full(n, 0.7), format)[0] - 0.7 - math.log(n))
    assert off <= format.error < 40 * 2**format.halvings * format.spacing * (1 + math.log2(n))
    assert abs(opened("softmax", np.full(n, 0.7), format) - 1 / n).max() <= format.softmax_error


def test_series_are_within_what_they_leave_out():
    for bits in (12, 24, 32, 48):
        format = FixedPoint(4, (-1.0, 1.0), bits)
        z, t = np.linspace(-0.5, 0.5, 1001), np.linspace(-17 / 32, 17 / 32, 1001)
        exponential = np.polynomial.polynomial.polyval(z, format.exponential_series)
        logarithm = np.polynomial.polynomial.polyval(t, format.logarithm_series)
        assert np.abs(exponential - np.exp(z - 0.5)).max() <= format.spacing / 2 + 1e-15
        assert np.abs(logarithm - np.log(1.5 + t)).max() <= format.spacing / 2 + 1e-14
    assert len(FixedPoint(4, (-1.0, 1.0), 12).exponential_series) < len(FixedPoint(4, (-1.0, 1.0), 48).exponential_series)


def test_a_step_of_newton_less_would_show_in_the_stated_error():
    for bits in (12, 16, 24, 32, 48):
        format = FixedPoint(4, (-1.0, 1.0), bits)
        s = np.linspace(31 / 32, 2 + 1 / 32, 500)
        r = 24 / 17 - 8 / 17 * s
        for _ in range(format.newton_steps):
            r = r * (2 - s * r)
        assert np.abs(r * s - 1).max() <= 10 * format.spacing + 1e-14


def test_products_of_negative_numbers_are_right():
    """In mpyc's arrays of the plain type one in 2ˡ⁻ᶠ comes out wrong."""
    format, mpc = FixedPoint(2, (-8.0, 8.0), 32), runtime()
    x = np.linspace(-4, 4, 400)
    a = format.numbers.array(x, integral=False)
    b = format.numbers.array(np.full(400, -1.3), integral=False)
    assert np.abs(mpc.run(mpc.output(a * b)) + 1.3 * x).max() < 1e-8


def test_rows_are_done_at_once():
    format = FixedPoint(3, (-2.0, 2.0), 20)
    x = np.random.default_rng(0).uniform(-2, 2, (2, 2, 3))
    found = opened("logsumexp", x, format)
    assert found.shape == (2, 2, 1)
    assert np.abs(found[..., 0] - np.logaddexp.reduce(x, -1)).max() <= format.error
    assert opened("softmax", x, format).shape == x.shape


def test_rows_of_tensors_with_a_temperature():
    found = secure.evaluate("logsumexp", [torch.tensor([1.0, 2.0, 0.5], dtype=torch.bfloat16)], bounds=(-8, 8), temperature=0.5)
    assert abs(found.value - np.logaddexp.reduce([2.0, 4.0, 1.0])) <= found.error
    assert (found.parties, found.bytes, found.rounds) == (1, 0, 0)


# Parties ------------------------------------------------------------------------------------------------------------------------

ROWS = [np.array([0.5, -1.0]), np.array([]), np.array([2.0])]


@pytest.mark.parametrize("what", ["logsumexp", exhaustively("softmax"), exhaustively("argmax")])
def test_three_parties_find_what_one_finds(what: str):
    found, x = secure.evaluate(what, ROWS, bounds=(-4, 4), bits=20), np.concatenate(ROWS)
    if what == "argmax":
        assert found.value == 2
    else:
        assert np.abs(found.value - reference(what, x)).max() <= found.error
    assert found.parties == 3
    assert found.bytes > 10_000
    assert found.rounds > 10
    assert found.seconds > 0


def test_a_party_that_is_missing_is_named_and_nothing_is_released():
    order = {"what": "logsumexp", "counts": [1, 1, 1], "bounds": [-4, 4], "bits": 20, "timeout": 1.0, "latency": 0}
    with pytest.raises(ConnectionError, match="party 2 of 3 did not take part within 1 s; nothing was released"):
        together([order | {"scores": [1.0]}] * 3, 1.0, absent={2})


@pytest.mark.exhaustive
def test_a_party_that_fails_is_named_and_nothing_is_released():
    order = {"what": "logsumexp", "counts": [1, 1, 1], "bounds": [-4, 4], "bits": 20, "timeout": 5.0, "latency": 0}
    orders = [order | {"scores": [1.0]}, order | {"scores": [1.0]}, order | {"scores": [1.0], "bits": 4}]
    with pytest.raises(ConnectionError, match="party 2 of 3 did not take part"):
        together(orders, 5.0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("parties", [3, 5])
def test_messages_that_are_late_take_longer_and_are_the_same(parties: int):
    rows = [np.array([0.5])] * parties
    fast = secure.evaluate("logsumexp", rows, bounds=(-1, 1), bits=16)
    slow = secure.evaluate("logsumexp", rows, bounds=(-1, 1), bits=16, latency=0.02)
    assert slow.seconds > 0.02 * slow.rounds > 0.4  # no message of the chain came sooner
    assert abs(slow.value - fast.value) <= 2 * fast.error


def test_the_command_line_is_left_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "argv", ["program", "-M3", "-x"])
    assert len(runtime().parties) == 1
    assert sys.argv == ["program", "-M3", "-x"]


# Wrong use ----------------------------------------------------------------------------------------------------------------------

ROW = np.array([0.5, 1.0])
WRONG: list[tuple[Any, Any, str]] = [
    (lambda: secure.evaluate("median", [ROW], bounds=(0, 1)), ValueError, "what must be one of"),
    (lambda: secure.evaluate("softmax", ROW, bounds=(0, 1)), ValueError, "a list of one row for each party"),
    (lambda: secure.evaluate("softmax", [ROW, ROW], bounds=(0, 1)), ValueError, "one party or at least three, got 2"),
    (lambda: secure.evaluate("softmax", [ROW[:0]], bounds=(0, 1)), ValueError, "at least one, got none"),
    (lambda: secure.evaluate("softmax", [ROW[None]], bounds=(0, 1)), ValueError, "one row"),
    (lambda: secure.evaluate("softmax", [np.array([1, 2])], bounds=(0, 1)), TypeError, "astype"),
    (lambda: secure.evaluate("softmax", [np.array([math.nan])], bounds=(0, 1)), ValueError, "some of party 0 are not"),
    (lambda: secure.evaluate("softmax", [ROW, ROW, np.array([-math.inf])], bounds=(0, 1)), ValueError, "some of party 2 are not"),
    (lambda: secure.evaluate("softmax", [ROW, ROW, ROW * 2], bounds=(0, 1)), ValueError, "some of party 2 do not"),
    (lambda: secure.evaluate("softmax", [ROW], bounds=(1, 0)), ValueError, "bounds must be finite with a < b"),
    (lambda: secure.evaluate("softmax", [ROW], bounds=(0, math.inf)), ValueError, "bounds must be finite"),
    (lambda: secure.evaluate("softmax", [ROW], bounds=3), TypeError, "bounds must be a pair"),
    (lambda: secure.evaluate("softmax", [ROW], bounds=(0, 1), bits=4), ValueError, "bits must be an int from 12"),
    (lambda: secure.evaluate("softmax", [ROW], bounds=(0, 1), temperature=0), ValueError, "temperature must be"),
    (lambda: secure.evaluate("softmax", [ROW], bounds=(0, 1), timeout=0), ValueError, "timeout must be"),
    (lambda: secure.evaluate("softmax", [ROW], bounds=(0, 1), latency=-1), ValueError, "latency must be"),
    (lambda: FixedPoint(0, (0, 1)), ValueError, "n must be"),
    (lambda: FixedPoint(10, (0, 1e6), 16), ValueError, "bits must be more for 10 scores"),
    (lambda: secure.softmax(ROW, (0, 1)), TypeError, "format must be"),
    (lambda: secure.softmax(ROW, FixedPoint(2, (0, 1))), TypeError, "array of format.numbers"),
    (lambda: secure.argmax(FixedPoint(2, (0, 1)).numbers.array(ROW), FixedPoint(3, (0, 1))), (TypeError, ValueError), "x must"),
]


@pytest.mark.parametrize(("call", "error", "said"), WRONG)
def test_wrong_use_is_refused_before_any_share_is_made(call: Any, error: Any, said: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(functions, "_sum_of", lambda *arguments: pytest.fail("it went on"))
    with pytest.raises(error, match=said) as caught:
        call()
    assert "\n" not in str(caught.value)
