"""What a benchmark finds, and its JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from softmaxima.core.writing import finite, write_text
from softmaxima_lab.bench.checks import Check
from softmaxima_lab.bench.clocks import Quotient, Timing
from softmaxima_lab.bench.subjects import Direction

UNRELIABLE = 2.0  # the spread of a quotient from which on it says nothing


@dataclass(frozen=True)
class PeerResult:
    """A peer's time, or why there is none, and that over ours, by turns. `deviation` is in units of our tolerance."""

    label: str
    deviation: float | None = None
    problem: str = ""
    timing: Timing | None = None
    quotient: Quotient | None = None


@dataclass(frozen=True)
class Row:
    """A subject on a shape. `deviation` is in units of the tolerance, so at most 1 is right; None: it failed, or is unchecked."""

    name: str
    title: str
    kind: str
    shape: str
    n: int  # scores of a row
    dtype: str
    direction: Direction
    bytes: int
    verdict: Literal["right", "wrong", "unchecked"]
    deviation: float | None = None
    timing: Timing | None = None  # None where it is not known to be right, or the time was over
    peers: tuple[PeerResult, ...] = ()
    problem: str = ""
    floor: Quotient | None = None  # ours / x.clone() and x.amax() of the same turns

    def ratio(self, label: str) -> float | None:
        """Time of the peer / ours, the median over turns; that of the median times where turns are not known, None where either
        has no time.
        """
        quotient = self.quotient(label)
        theirs = next((peer.timing for peer in self.peers if peer.label == label), None)
        if self.timing is None or theirs is None:
            return None
        return theirs.over(self.timing) if quotient is None else quotient.median

    def quotient(self, label: str) -> Quotient | None:
        """The same with its interval; None where turns are not known."""
        return next((peer.quotient for peer in self.peers if peer.label == label), None)

    @property
    def spread(self) -> float | None:
        """The widest of its quotients' intervals, upper end / lower; None where turns are not known."""
        quotients = [peer.quotient for peer in self.peers] + [self.floor]
        return max((quotient.spread for quotient in quotients if quotient is not None), default=None)

    @property
    def is_unreliable(self) -> bool:
        """Whether its turns disagree too much for a quotient to say anything: the machine is busy, or its threads too many."""
        return self.spread is not None and self.spread > UNRELIABLE

    @property
    def bytes_a_second(self) -> float | None:
        return None if self.timing is None else self.bytes / self.timing.seconds


@dataclass(frozen=True)
class Ground:
    """The time of a copy of a shape, and whether torch and we disturb each other there."""

    shape: str
    dtype: str
    scores: int
    bytes: int  # of a copy: one read and one write
    copy: Timing
    torch_alone: Timing  # torch.softmax
    ours_alone: Timing  # sm.softmax
    alternating: Timing  # one of each, in turns

    @property
    def bytes_a_second(self) -> float:
        return self.bytes / self.copy.seconds

    @property
    def disturbance(self) -> float:
        """Time of one of each in turns / the sum of the two alone: above 1 where their threads compete for the cores."""
        return self.alternating.called / (self.torch_alone.called + self.ours_alone.called)


@dataclass(frozen=True)
class Overhead:
    """Seconds of a call on a row of 16 scores: without grad, with it, and with the backward pass; or why there are none."""

    name: str
    by: str
    forward: Timing | None = None
    forward_with_grad: Timing | None = None
    forward_backward: Timing | None = None
    problem: str = ""


@dataclass
class Benchmark:
    """Everything that was measured, and on what. It grows while the run goes on."""

    date: str
    commit: str | None
    device: str
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    dtypes: Sequence[str]
    seconds: float  # for each call on a row
    seed: int
    peers: Sequence[str]
    left_out: Mapping[str, str]  # other packages, and why
    grounds: Sequence[Ground] = ()
    checks: list[Check] = field(default_factory=list)
    rows: Sequence[Row] = ()
    overheads: list[Overhead] = field(default_factory=list)
    not_reached: Sequence[str] = ()  # before the time was over
    elapsed: float = 0.0

    @property
    def wrong(self) -> list[Row | Check | Overhead]:
        """What of ours is not right, or failed."""
        rows = [row for row in self.rows if row.verdict == "wrong"]
        return [check for check in self.checks if not check.right] + rows + [each for each in self.overheads if each.problem]

    @property
    def unreliable(self) -> list[Row]:
        """Those whose turns disagree too much."""
        return [row for row in self.rows if row.is_unreliable]

    @property
    def unchecked(self) -> list[Row]:
        """What is not timed, for nothing says what is right."""
        return [row for row in self.rows if row.verdict == "unchecked"]

    def ground(self, row: Row) -> Ground | None:
        """That of the row's shape and dtype."""
        return next((ground for ground in self.grounds if (ground.shape, ground.dtype) == (row.shape, row.dtype)), None)

    def share_of_copy(self, row: Row) -> float | None:
        """Of the bandwidth of a copy."""
        ground = self.ground(row)
        return None if ground is None or row.bytes_a_second is None else row.bytes_a_second / ground.bytes_a_second


def as_json(benchmark: Benchmark) -> dict[str, Any]:
    """Everything in the benchmark, with the ratios; a number that is not finite becomes null."""
    record = asdict(benchmark, dict_factory=_without_replays)
    for row, entry in zip(benchmark.rows, record["rows"], strict=True):
        entry["gigabytes_a_second"] = None if row.bytes_a_second is None else row.bytes_a_second / 1e9
        entry["share_of_copy"] = benchmark.share_of_copy(row)
        for peer in entry["peers"]:
            peer["ratio"] = row.ratio(peer["label"])
    for ground, entry in zip(benchmark.grounds, record["grounds"], strict=True):
        entry |= {
            "gigabytes_a_second": ground.bytes_a_second / 1e9,
            "disturbance": ground.disturbance,
        }
    return finite(record)


def _without_replays(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """Thousands of times on the CPU have none."""
    return {name: value for name, value in fields if (name, value) not in (("replayed", None), ("capture", ""))}


def from_json(record: Mapping[str, Any]) -> Benchmark:
    """The benchmark that `as_json` made the record of."""
    return _restore(Benchmark, record)


# What the fields hold that are no plain values.
_FIELDS: dict[str, type] = {"grounds": Ground, "checks": Check, "rows": Row, "peers": PeerResult, "overheads": Overhead}


def _restore(kind: type, record: Mapping[str, Any]) -> Any:
    def value(name: str, entry: Any) -> Any:
        if isinstance(entry, list):
            return [_restore(_FIELDS[name], part) if isinstance(part, dict) else part for part in entry]
        if not isinstance(entry, dict):
            return entry
        return Timing(**entry) if "called" in entry else Quotient(**entry) if "median" in entry else entry

    return kind(**{name: value(name, record[name]) for name in kind.__dataclass_fields__ if name in record})


def write(benchmark: Benchmark, path: Path) -> None:
    """Write the JSON. The file appears complete or not at all."""
    write_text(path, json.dumps(as_json(benchmark), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read(path: Path) -> Benchmark:
    """The benchmark in a file."""
    return from_json(json.loads(path.read_text(encoding="utf-8")))
