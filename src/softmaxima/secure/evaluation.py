"""A function of the scores of several parties, each a process on this machine that has its own scores and hears of the result."""

from __future__ import annotations

import contextlib
import fcntl
import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, Generic, Literal, TypeVar, overload

import numpy as np

from softmaxima.base.numbers import InputError, check_choice, check_number, check_one_temperature, check_positive
from softmaxima.base.public import public
from softmaxima.base.unquoted import read_scores
from softmaxima.secure.fixed_point import CONSTANT, FixedPoint, fixed_point
from softmaxima.secure.functions import FUNCTIONS
from softmaxima.secure.library import ONE_AT_A_TIME, apart, runtime

AT_ONCE = 0.5  # seconds after a party was ended, in which others that go with it are named too
GRACE = 5.0  # seconds for the others to tell, after one told that it cannot go on
START = 20.0  # seconds in which a party may start, before its own time begins
PROGRAM = """
import json, sys
sys.path[:], order = json.loads(sys.stdin.buffer.readline())
from softmaxima.secure.party import take_part
take_part(order)
"""

Value = TypeVar("Value", float, np.ndarray, int)


@dataclass(frozen=True)
class Opened(Generic[Value]):
    """What all parties were told, and what it took.

    value: a float of logsumexp, an array [n] of softmax, an int of argmax.
    error: what value may be off at most; of argmax, how far its x/τ may be below the largest.
    parties: how many there were.
    bytes: that all of them sent to one another.
    seconds: from the first share to the result, of the slowest.
    rounds: the longest chain of messages, each sent after the one before had come. Parties that take longer than messages send
        one after the other what could go at once; a `latency` longer than that work brings the number near the least.

    >>> import numpy as np, softmaxima as sm
    >>> opened = sm.secure.evaluate("argmax", [np.array([1.0, 3.0])], bounds=(-4, 4))
    >>> opened.value, opened.parties, opened.bytes
    (1, 1, 0)
    """

    value: Value
    error: float
    parties: int
    bytes: int
    seconds: float
    rounds: int


@overload
def evaluate(
    what: Literal["logsumexp"],
    scores: Sequence[Any],
    *,
    bounds: tuple[float, float],
    bits: int = ...,
    temperature: float = ...,
    timeout: float = ...,
    latency: float = ...,
) -> Opened[float]: ...
@overload
def evaluate(
    what: Literal["softmax"],
    scores: Sequence[Any],
    *,
    bounds: tuple[float, float],
    bits: int = ...,
    temperature: float = ...,
    timeout: float = ...,
    latency: float = ...,
) -> Opened[np.ndarray]: ...
@overload
def evaluate(
    what: Literal["argmax"],
    scores: Sequence[Any],
    *,
    bounds: tuple[float, float],
    bits: int = ...,
    temperature: float = ...,
    timeout: float = ...,
    latency: float = ...,
) -> Opened[int]: ...
@overload
def evaluate(
    what: str,
    scores: Sequence[Any],
    *,
    bounds: tuple[float, float],
    bits: int = ...,
    temperature: float = ...,
    timeout: float = ...,
    latency: float = ...,
) -> Opened[Any]: ...
@public
def evaluate(
    what: str,
    scores: Sequence[Any],
    *,
    bounds: tuple[float, float],
    bits: int = 32,
    temperature: float = 1.0,
    timeout: float = 60.0,
    latency: float = 0.0,
) -> Opened[Any]:
    """logsumexp, softmax or argmax of scores that are shared among parties on this machine, to see what it takes.

    Each party gets its scores, makes shares of them for the others (Shamir's, of which fewer than half of the parties learn
    nothing), computes on shares, and all of them open the result, and nothing else. What the result itself tells each learns: of
    softmax everyone's scores but for a constant, of argmax whose score is the largest. Between machines the same functions run in
    a program on mpyc: see `logsumexp`.

    Args:
        what: "logsumexp", "softmax" or "argmax", which of equals is the first.
        scores: of each party a row [n_i], NumPy's or torch's, none of −∞. One party computes alone, in this process, to try
            things; two could not hide from each other, and are refused.
        bounds: (a, b), public, which hold x/τ of all.
        bits: fractional bits f.
        temperature: τ > 0, public.
        timeout: seconds from its start after which a party gives up, and nothing is released: those that did not come or do not
            answer are named. One that goes away is named at once. Where none answers it ends 20 seconds later.
        latency: seconds by which each message is late, as in a network.

    Raises:
        TypeError or ValueError before any work, also for scores beyond the bounds; ConnectionError for parties that are missing.

    Cost: of 100 scores and three parties some seconds and, of 32 bits, seven megabytes. Source: Shamir (1979); mpyc of
    Schoenmakers.

    >>> import numpy as np, softmaxima as sm
    >>> opened = sm.secure.evaluate("logsumexp", [np.array([0.5, 1.0, 2.0])], bounds=(-4, 4))
    >>> bool(abs(opened.value - sm.logsumexp(np.array([0.5, 1.0, 2.0]))) <= opened.error)
    True
    """
    return evaluated("evaluate", what, scores, bounds, bits, temperature, timeout, latency)


def evaluated(
    name: str,
    what: str,
    scores: Any,
    bounds: Any,
    bits: Any,
    temperature: Any = 1.0,
    timeout: Any = 60.0,
    latency: Any = 0.0,
) -> Opened[Any]:
    """What `evaluate` gives, for a function of this name."""
    check_choice(name, "what", what, tuple(FUNCTIONS))
    tau, timeout = check_one_temperature(name, temperature), check_positive(name, "timeout", timeout)
    latency = check_number(name, "latency", latency, lambda seconds: 0 <= seconds < 60, "a number of seconds from 0 to 60")
    if not isinstance(scores, (list, tuple)) or len(scores) in (0, 2):
        got = type(scores).__name__ if not isinstance(scores, (list, tuple)) else f"{len(scores)} of them"
        raise ValueError(f"{name}: scores must be a list of one row for each party, one party or at least three, got {got}")
    rows = [_row(name, party, row, tau) for party, row in enumerate(scores)]
    n = sum(map(len, rows))
    if not n:
        raise ValueError(f"{name}: scores must be at least one, got none from {len(rows)} parties")
    format = fixed_point(name, n, bounds, bits)
    low, high = format.bounds
    for party, row in enumerate(rows):
        if ((row < low) | (row > high)).any():
            raise ValueError(
                f"{name}: scores must lie in the bounds [{low}, {high}], and some of party {party} do not; declare wider bounds"
            )
    counts = [len(row) for row in rows]
    order = {"what": what, "counts": counts, "bounds": format.bounds, "bits": format.bits, "timeout": timeout, "latency": latency}
    orders = [order | {"scores": row.tolist()} for row in rows]
    if len(rows) == 1:
        with ONE_AT_A_TIME:
            told = [apart(lambda: _alone(name, orders[0], format))]
    else:
        told = together(orders, timeout, name=name)
    value = np.asarray(told[0]["value"])
    opened: Any = value if what == "softmax" else int(value) if what == "argmax" else float(value.reshape(()))
    error = {"logsumexp": format.error, "softmax": format.softmax_error, "argmax": format.spacing}[what]
    if tau != 1:
        error += 2 * CONSTANT * max(map(abs, format.bounds))  # of x/τ, of either of two scores
    seconds, rounds = (max(one[what] for one in told) for what in ("seconds", "rounds"))
    return Opened(opened, float(error), len(rows), sum(one["bytes"] for one in told), seconds, rounds)


def _row(name: str, party: int, row: Any, tau: float) -> np.ndarray:
    """x/τ of one party."""
    scores = read_scores(name, row, f" of party {party}")
    if not np.isfinite(scores).all():
        raise InputError.of_argument(
            name,
            "scores",
            f"must be finite, and some of party {party} are not; that a score is left out would show in their number",
        )
    with np.errstate(over="ignore"):
        return scores / tau


def _alone(name: str, order: dict[str, Any], format: FixedPoint) -> dict[str, Any]:
    mpc = runtime()
    if len(mpc.parties) > 1:
        raise RuntimeError(
            f"{name}: this process is one of {len(mpc.parties)} parties of mpyc; call sm.secure.logsumexp and its like"
        )
    begun = time.perf_counter()
    x = format.numbers.array(np.array(order["scores"]), integral=False)
    value = mpc.run(mpc.output(FUNCTIONS[order["what"]](x, format)))
    return {"value": value, "bytes": 0, "seconds": time.perf_counter() - begun, "rounds": 0}


def together(
    orders: Sequence[dict[str, Any]], timeout: float, absent: Collection[int] = (), name: str = "evaluate"
) -> list[dict[str, Any]]:
    """What each party tells; all are ended before it returns. Those that are absent are never started."""
    parties: dict[int, _Party] = {}
    with contextlib.ExitStack() as open_until_then:
        ends: list[dict[int, socket.socket]] = [{} for _ in orders]  # of each party, by whom it reaches there
        for party, (order, own) in enumerate(zip(orders, ends, strict=True)):
            for other in range(party + 1, len(orders)):
                own[other], ends[other][party] = map(open_until_then.enter_context, _connected())
            if party not in absent:
                answer, errors = (open_until_then.enter_context(tempfile.TemporaryFile("w+", errors="replace")) for _ in range(2))
                arguments = [f"-M{len(orders)}", f"-I{party}"]
                parties[party] = open_until_then.enter_context(_Party(order, own, arguments, answer, errors))
            for end in own.values():
                end.close()  # so that the others hear where a party is gone
        deadline = time.monotonic() + timeout + START  # a party gives up by itself, and says who is missing
        while None in (codes := [one.process.poll() for one in parties.values()]) and time.monotonic() < deadline:
            if any(codes):
                deadline = min(deadline, time.monotonic() + AT_ONCE)
            if any(code == 0 and "value" not in one.told for one, code in zip(parties.values(), codes, strict=True)):
                deadline = min(deadline, time.monotonic() + GRACE)
            time.sleep(0.02)
        status = {party: one.process.poll() for party, one in parties.items()}
        told = {party: one.told for party, one in parties.items()}
        reasons = {party: parties[party].reason for party, code in status.items() if code}
    if all("value" in told.get(party, ()) for party in range(len(orders))):
        return list(told.values())
    because = "".join(f"; party {party}: {reason}" for party, reason in reasons.items() if reason)
    raise ConnectionError(f"{name}: {_which(told, status, len(orders))} {timeout:g} s; nothing was released{because}")


def _connected() -> Iterator[socket.socket]:
    """Two ends of a connection that has no address, so that nobody else can speak on it.

    Their numbers are above those of the standard streams, which a party has for itself.
    """
    for low in socket.socketpair():
        with low:
            yield socket.socket(fileno=fcntl.fcntl(low.fileno(), fcntl.F_DUPFD_CLOEXEC, 3))


class _Party:
    """A process that has what this one can import, its order, and a pipe whose end tells it that this process is gone."""

    def __init__(
        self, order: dict[str, Any], own: dict[int, socket.socket], arguments: Sequence[str], answer: IO[str], errors: IO[str]
    ) -> None:
        self._answer, self._errors = answer, errors
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", PROGRAM, *arguments, "--no-log", "--no-uvloop"],
            stdin=subprocess.PIPE,
            stdout=self._answer,
            stderr=self._errors,
            pass_fds=[end.fileno() for end in own.values()],
        )
        path = [entry for entry in sys.path if isinstance(entry, str)]  # Python leaves others out
        line = json.dumps([path, order | {"ends": {other: end.fileno() for other, end in own.items()}}]).encode() + b"\n"
        self._giving = threading.Thread(target=self._give, args=(line,), daemon=True)  # who is stopped does not read
        self._giving.start()

    def _give(self, line: bytes) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it may be gone
            self.process.stdin.write(line)
            self.process.stdin.flush()

    def __enter__(self) -> _Party:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()
        self._giving.join()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    @property
    def told(self) -> dict[str, Any]:
        """Its one message, or nothing where none is there as a whole."""
        self._answer.seek(0)
        text = self._answer.read()
        return json.loads(text) if text.endswith("\n") else {}

    @property
    def reason(self) -> str:
        """Why it failed by itself: what it could not import, or the type of another error, whose text may hold scores."""
        self._errors.seek(0)
        last = (self._errors.read().splitlines() or [""])[-1]
        kind, _, text = last.partition(": ")
        if not re.fullmatch(r"[\w.]*(Error|Exception)", kind):
            return ""
        return f"{kind}: {text}" if kind in ("ImportError", "ModuleNotFoundError") else kind


def _which(told: dict[int, dict[str, Any]], status: dict[int, int | None], count: int) -> str:
    """Who is to blame, as the beginning of a sentence. Who tells that another is missing is not, though it may be gone after."""
    failed = {party: code for party, code in status.items() if code}
    if failed:
        names = {int(each): each.name for each in signal.Signals}  # of a real-time signal there is none
        by = lambda number: names.get(number, f"signal {number}")
        ends = {party: f"was ended by {by(-code)}" if code < 0 else "failed" for party, code in failed.items()}
        return f"{', '.join(f'party {party} of {count} {end}' for party, end in ends.items())} within"
    named = {gone for one in told.values() for gone in one.get("missing", ())}
    silent = {party for party, code in status.items() if code is None}
    gone = sorted((named | silent | set(range(count)) - set(status)) - {party for party, one in told.items() if one})
    if not gone:
        return f"{count} parties were not done, so pass a longer timeout than"
    return f"part{'ies' if len(gone) > 1 else 'y'} {', '.join(map(str, gone))} of {count} did not take part within"
