"""Sums of shares: no result is further off than is stated, parties are told the result alone, and nothing where one is missing."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import softmaxima as sm
from conftest import at_most, exhaustively
from softmaxima.secure import evaluation, functions
from softmaxima.secure.evaluation import together
from softmaxima.secure.fixed_point import FixedPoint
from softmaxima.secure.library import runtime

secure: Any = sm.secure


def reference(what: str, x: np.ndarray, tau: float = 1.0) -> Any:
    """In 60 digits, of real x/τ."""
    with mpmath.workdps(60):
        z = [mpmath.mpf(number) / mpmath.mpf(tau) for number in x.tolist()]
        lse = mpmath.log(mpmath.fsum(mpmath.exp(one) for one in z))
        return lse if what == "logsumexp" else np.array([mpmath.exp(one - lse) for one in z])


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
    assert_within(format, x)


def assert_within(format: FixedPoint, x: np.ndarray) -> None:
    assert abs(opened("logsumexp", x, format)[0] - reference("logsumexp", x)) <= format.error
    p = opened("softmax", x, format)
    assert np.abs(p - reference("softmax", x)).max() <= format.softmax_error
    assert abs(p.sum() - 1) <= format.n * (format.softmax_error + 2.0**-53)
    index = int(opened("argmax", x, format))
    assert x[index] >= x.max() - format.spacing
    multiples = [round(mpmath.ldexp(number, format.bits)) for number in x.tolist()]
    assert index == multiples.index(max(multiples))  # the first of equals


BITS = range(12, 65)


@pytest.mark.parametrize("bits", [bits if bits in (20, 54) else exhaustively(bits) for bits in BITS])
def test_the_stated_error_holds_at_every_number_of_bits(bits: int):
    """Also where constants and results, which are float64, are coarser than shares."""
    rng = np.random.default_rng(bits)
    for bounds in ((-1.0, 1.0), (1000.0, 1000.5)):
        x = rng.uniform(*bounds, 3)
        x[:2] = bounds[1] - 0.1  # ties
        assert_within(FixedPoint(3, bounds, bits), x)


@pytest.mark.parametrize("n", [2, 40, exhaustively(1000)])
def test_the_stated_error_is_near_what_is_seen_of_equal_scores(n: int):
    """All terms are 1 with the same chance of being off: what is stated is no more than some times of that."""
    format = FixedPoint(n, (-8.0, 8.0), 24)
    off = abs(opened("logsumexp", np.full(n, 0.7), format)[0] - 0.7 - math.log(n))
    assert off <= format.error < 40 * 2**format.halvings * format.spacing * (1 + math.log2(n))
    assert abs(opened("softmax", np.full(n, 0.7), format) - 1 / n).max() <= format.softmax_error


def test_series_are_within_what_they_leave_out():
    for bits in (12, 24, 32, 48, 64):
        format = FixedPoint(4, (-1.0, 1.0), bits)
        allowed = format.spacing / 2 + 2.0**-52  # of constants in float64
        with mpmath.workdps(40):
            for k in range(-50, 51):
                z, t = mpmath.mpf(k) / 100, mpmath.mpf(k) / 100 * 17 / 16
                exponential = mpmath.polyval([mpmath.mpf(c) for c in format.exponential_series[::-1].tolist()], z)
                logarithm = mpmath.polyval([mpmath.mpf(c) for c in format.logarithm_series[::-1].tolist()], t)
                assert abs(exponential - mpmath.exp(z - mpmath.mpf(1) / 2)) <= allowed
                assert abs(logarithm - mpmath.log(t + mpmath.mpf(3) / 2)) <= allowed
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


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("batch", [(), (14,), (2, 3), (0,), (2, 0, 3)])
def test_results_have_the_shapes_that_are_stated(n: int, batch: tuple[int, ...]):
    format = FixedPoint(n, (-2.0, 2.0), 20)
    x = np.random.default_rng(0).uniform(-2, 2, (*batch, n))
    shapes = {"logsumexp": (*batch, 1), "softmax": (*batch, n), "argmax": batch}
    for what, shape in shapes.items():
        assert np.shape(opened(what, x, format)) == shape
    assert (np.asarray(opened("argmax", x, format)) == x.argmax(-1)).all()


def test_rows_of_tensors_with_a_temperature():
    found = secure.evaluate("logsumexp", [torch.tensor([1.0, 2.0, 0.5], dtype=torch.bfloat16)], bounds=(-8, 8), temperature=0.5)
    assert abs(found.value - np.logaddexp.reduce([2.0, 4.0, 1.0])) <= found.error
    assert (found.parties, found.bytes, found.rounds) == (1, 0, 0)


def test_a_temperature_rounds_scores_and_the_error_says_so():
    x = np.array([0.1, 0.7, 1.0]) * 1000
    for what in ("logsumexp", "softmax"):
        found = secure.evaluate(what, [x], bounds=(0, 2000), temperature=0.7, bits=48)
        assert np.max(np.abs(found.value - reference(what, x, 0.7))) <= found.error


LOOPS = """
import asyncio, threading, numpy as np, softmaxima as sm
def evaluate():
    return sm.secure.evaluate("argmax", [np.array([0.5, 1.0])], bounds=(-4, 4)).value
async def within():
    return evaluate()
found = [asyncio.run(within()), asyncio.run(within()), evaluate()]
threads = [threading.Thread(target=lambda: found.append(evaluate())) for _ in range(3)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
assert found == [1] * 6, found
"""


def test_one_party_computes_within_a_loop_after_it_and_in_threads():
    exec(LOOPS, {})


@pytest.mark.exhaustive
def test_so_it_does_where_mpyc_is_first_loaded_within_a_loop():
    subprocess.run([sys.executable, "-c", LOOPS], check=True, timeout=60)


# Parties ------------------------------------------------------------------------------------------------------------------------

ROWS = [np.array([0.5, -1.0]), np.array([]), np.array([2.0])]


@pytest.mark.parametrize("what", ["logsumexp", exhaustively("softmax"), exhaustively("argmax")])
def test_three_parties_find_what_one_finds(what: str):
    bounds, numbers = (np.float32(-4), np.int64(4)), {"bits": np.int64(20), "timeout": np.float32(60), "latency": np.float16(0)}
    found, x = secure.evaluate(what, ROWS, bounds=bounds, **numbers), np.concatenate(ROWS)
    if what == "argmax":
        assert found.value == 2
    else:
        assert np.max(np.abs(found.value - reference(what, x))) <= found.error
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
    with pytest.raises(ConnectionError, match=r"party 2 of 3 failed within 5 s; nothing was released; party 2: .*InputError$"):
        together(orders, 5.0)


@pytest.mark.exhaustive
def test_what_a_party_cannot_import_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", [path for path in sys.path if "site-packages" not in path])
    with pytest.raises(ConnectionError, match=r"failed .*; nothing was released; party 0: ImportError: sm.secure needs mpyc"):
        together([ORDER | {"timeout": 5.0, "latency": 0.0}] * 3, 5.0)


EVALUATES = """
import os, pathlib, sys, numpy as np, softmaxima as sm
sys.path.insert(0, pathlib.Path("."))  # which Python leaves out
for stream in map(int, sys.argv[1:]): os.close(stream)
found = sm.secure.evaluate("argmax", [np.ones(2), np.zeros(1), np.zeros(1)], bounds=(-4, 4), bits=20).value
open("found", "w").write(str(found))
"""


@pytest.mark.parametrize("streams", ["0", exhaustively("0 1"), exhaustively("0 1 2"), exhaustively("1")])
def test_parties_import_what_their_parent_would_and_need_no_standard_streams(streams: str, tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "gmpy2.py").write_text("open('ran', 'w')")  # is of whoever owns that folder
    (tmp_path / "program.py").write_text(EVALUATES)
    command = [sys.executable, str(tmp_path / "program.py"), *streams.split()]
    odd = os.environ | {"PYTHONIOENCODING": "utf-16-le"}
    subprocess.run(command, cwd=tmp_path / "elsewhere", env=odd, check=True, timeout=120)
    assert (tmp_path / "elsewhere" / "found").read_text() == "0"
    assert not (tmp_path / "elsewhere" / "ran").exists()


LASTS = """
import subprocess, numpy as np, softmaxima as sm
from softmaxima.secure import evaluation
start = subprocess.Popen
def starts(*arguments, **options):
    process = start(*arguments, **options)
    print(process.pid, flush=True)
    return process
evaluation.subprocess.Popen = starts
sm.secure.evaluate("argmax", [np.ones(1)] * 3, bounds=(-4, 4), latency=20)
"""


@pytest.mark.parametrize("kind", [signal.SIGKILL, exhaustively(signal.SIGTERM), exhaustively(signal.SIGHUP)])
def test_no_party_outlives_who_began_it(kind: signal.Signals):
    with subprocess.Popen([sys.executable, "-c", LASTS], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        parties = [int(parent.stdout.readline()) for _ in range(3)]
        time.sleep(1.0)
        parent.send_signal(kind)
    until = time.monotonic() + 30
    while (left := [party for party in parties if Path(f"/proc/{party}/stat").exists()]) and time.monotonic() < until:
        time.sleep(0.1)
    assert not left


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[str]]:
    """The parties that were started."""
    found, start = [], subprocess.Popen

    def starts(*arguments: Any, **options: Any) -> subprocess.Popen[str]:
        found.append(start(*arguments, **options))
        return found[-1]

    monkeypatch.setattr(evaluation.subprocess, "Popen", starts)
    return found


ORDER = {"what": "logsumexp", "counts": [1, 1, 1], "bounds": [-4, 4], "bits": 20, "scores": [1.0]}


@pytest.mark.parametrize(
    ("party", "seconds"), [(1, 1.5), *(exhaustively(party, seconds) for party in range(3) for seconds in (0.0, 0.5, 2.0, 5.0))]
)
def test_a_party_that_is_killed_is_named_and_nothing_is_released(party: int, seconds: float, started: list[Any]):
    def kill() -> None:
        while len(started) < 3:
            time.sleep(0.01)
        time.sleep(seconds)
        started[party].kill()

    killing = threading.Thread(target=kill)
    killing.start()
    begun = time.monotonic()
    with pytest.raises(ConnectionError, match=f"party {party} of 3 was ended by SIGKILL within 20 s; nothing was released"):
        together([ORDER | {"timeout": 20.0, "latency": 0.2}] * 3, 20.0)
    killing.join()
    assert time.monotonic() - begun < 15
    assert all(process.returncode is not None for process in started)


def test_all_that_are_killed_at_once_are_named(started: list[Any]):
    def kill() -> None:
        while len(started) < 3:
            time.sleep(0.01)
        time.sleep(1.0)
        for party in (2, 1):
            started[party].kill()

    threading.Thread(target=kill).start()
    with pytest.raises(ConnectionError, match=r"party 1 of 3 was ended by SIGKILL, party 2 of 3 was ended by SIGKILL within 20 s"):
        together([ORDER | {"timeout": 20.0, "latency": 0.2}] * 3, 20.0)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("stopped", "seconds", "count"), [*(((party,), 2.0, 1) for party in range(3)), ((0, 2), 2.0, 1), ((0,), 0.0, 5000)]
)
def test_parties_that_are_stopped_are_named_and_nothing_is_released(
    stopped: tuple[int, ...], seconds: float, count: int, started: list[Any]
):
    def stop() -> None:
        for party in stopped:
            while len(started) <= party:
                time.sleep(0.001)
        time.sleep(seconds)
        for party in stopped:
            started[party].send_signal(signal.SIGSTOP)

    threading.Thread(target=stop).start()
    order = ORDER | {"counts": [count] * 3, "scores": [1.0] * count, "timeout": 5.0, "latency": 0.2}
    with pytest.raises(ConnectionError, match=f"{', '.join(map(str, stopped))} of 3 did not take part within 5 s"):
        together([order] * 3, 5.0)


def test_nobody_else_can_speak_to_a_party(started: list[Any]):
    """No party listens, at a port or at a path, from its first moment to its last."""
    psutil = pytest.importorskip("psutil")
    listening: set[str] = set()
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.005):
            for process in list(started):
                with contextlib.suppress(psutil.Error):
                    of = psutil.Process(process.pid).net_connections("all")
                    listening.update(str(one.laddr) for one in of if one.laddr)

    looking = threading.Thread(target=look)
    looking.start()
    assert secure.evaluate("argmax", ROWS, bounds=(-4, 4), bits=16).value == 2
    over.set()
    looking.join()
    assert len(started) == 3
    assert not listening


@pytest.mark.exhaustive
def test_parties_that_are_slow_are_not_blamed():
    with pytest.raises(ConnectionError, match=r"pass a longer timeout than 4 s|of 3 did not take part"):
        together([ORDER | {"timeout": 4.0, "latency": 1.0}] * 3, 4.0)


def test_an_interruption_leaves_no_party_behind(started: list[Any], monkeypatch: pytest.MonkeyPatch):
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluation.time, "sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        together([ORDER | {"timeout": 20.0, "latency": 0.0}] * 3, 20.0)
    assert [process.returncode for process in started] == [-signal.SIGKILL] * 3


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
    (lambda: secure.evaluate("softmax", [ROW], bounds=(1, 0)), ValueError, "bounds must be within ±2³² with a < b"),
    (lambda: secure.evaluate("softmax", [ROW], bounds=(0, math.inf)), ValueError, "bounds must be within"),
    (lambda: secure.evaluate("softmax", [ROW], bounds=(-1e308, 1e308)), ValueError, "bounds must be within"),
    (lambda: secure.evaluate("softmax", [ROW], bounds=(0, 1), bits=65), ValueError, "bits must be an int from 12 to 64"),
    (lambda: secure.evaluate("softmax", [ROW * 1e9], bounds=(0, 1), temperature=1e-305), ValueError, "of party 0 do not"),
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
