"""How the benchmark times, on a clock that is pretended, on a GPU that is pretended, and in processes of their own."""

from __future__ import annotations

import operator
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from softmaxima_lab.bench import clock, machine, peers, run, workers
from softmaxima_lab.bench.case import OURS, Case, Found, Peer, Place, Result, Trial, run_trial
from softmaxima_lab.bench.clock import Clock, CudaClock, Quotient, measure, take_turns
from softmaxima_lab.bench.record import Benchmark
from softmaxima_lab.bench.run import Settings, Task, bench, by_weight, plan
from softmaxima_lab.bench.workers import Lost, Workers
from softmaxima_lab.pages import bench_maps


def fail(*given: object) -> None:
    raise ZeroDivisionError("it was never going to work")


# Turns


@pytest.fixture
def spend(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets time pass on a clock that stands still otherwise."""
    now = [0.0]
    monkeypatch.setattr(clock.time, "perf_counter", lambda: now[0])

    def spend(seconds: float) -> None:
        now[0] += seconds

    return spend


def test_calls_take_turns_and_the_first_of_each_turn_does_not_count(spend: Callable[[float], None]) -> None:
    order: list[str] = []

    def call(name: str) -> None:
        order.append(name)
        spend(1e-4 if len(order) > 1 and order[-2] == name else 1.0)  # what the turns of others took from the cache

    found = take_turns({name: lambda name=name: call(name) for name in "ab"}, 0.0, passes=2)
    assert "".join(order) == "ab" * 3  # once to warm up
    order.clear()
    found = take_turns({name: lambda name=name: call(name) for name in "ab"}, 0.0)
    assert "".join(order[:4]) == "abab"  # so slow that a turn is one call
    spend_of = {"a": 1e-4, "b": 1e-4}
    found = take_turns({name: lambda name=name: spend(spend_of[name]) for name in "ab"}, 0.05)
    assert all(len(turns) >= clock.LEAST_TURNS for turns in found.values())
    assert found["a"].keys() == found["b"].keys()
    assert all(seconds == pytest.approx(1e-4) for turns in found.values() for seconds in turns.values())


def test_a_slow_call_has_few_turns_and_more_once_it_is_fast(spend: Callable[[float], None]) -> None:
    slow = take_turns({"quick": lambda: spend(0.001), "slow": lambda: spend(3.0)}, 0.0)
    assert {name: len(turns) for name, turns in slow.items()} == {"quick": clock.LEAST_TURNS, "slow": clock.SLOW_TURNS}
    seconds = iter([3.0, *[0.2] * 100])  # the machine had paused
    paused = take_turns({"quick": lambda: spend(0.001), "paused": lambda: spend(next(seconds))}, 2.0)
    assert len(paused["paused"]) >= clock.LEAST_TURNS


@pytest.mark.parametrize("drift", [0.0, 1.0])
def test_a_ratio_is_that_of_the_same_pass(spend: Callable[[float], None], drift: float) -> None:
    load = [1.0]

    def work(seconds: float) -> None:  # on a machine that becomes slower and slower
        load[0] *= 1 + drift * seconds
        spend(seconds * load[0])

    found = measure(Clock(), {OURS: [lambda: work(1e-3)], "theirs": [lambda: work(2e-3)]}, 0.5)
    quotient = found.ratio("theirs", OURS)
    assert quotient is not None
    assert 1.9 < quotient.low <= quotient.median <= quotient.high < 2.2


def test_the_interval_holds_half_of_the_turns_and_of_few_turns_more() -> None:
    for count, inside in ((2, 2), (5, 5), (8, 8), (12, 10), (100, 50)):
        found = Quotient.of({number: float(number) for number in range(1, count + 1)}, dict.fromkeys(range(1, count + 1), 1.0))
        assert found is not None
        assert (found.high - found.low + 1, found.median) == (inside, (count + 1) / 2)
    assert Quotient.of({1: 1.0}, {1: 1.0}) is None


def test_what_fails_when_it_is_timed_is_named_and_the_others_are_timed() -> None:
    calls = iter(range(100))

    def fails_later() -> None:
        if next(calls) > 2:
            raise MemoryError("no memory")

    found = measure(Clock(), {OURS: [lambda: None], "later": [fails_later], "bad": [fail]}, 0.0)
    assert found.failed == {"later": "MemoryError: no memory", "bad": "ZeroDivisionError: it was never going to work"}
    assert found.seconds(OURS) is not None
    assert found.seconds("later") is found.ratio("later", OURS) is None
    wrong = measure(Clock(), {OURS: [lambda: 3]}, 0.0, complaint=lambda name, result: f"{name} is {result}")
    assert wrong.failed == {OURS: "after it was timed: softmaxima is 3"}


# A device that is pretended


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A device whose events are milliseconds apart; the calls that it saw."""
    seen: list[str] = []
    ticks = iter(range(1, 1_000_000))

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            self.at = 0

        def record(self) -> None:
            self.at = next(ticks)

        def elapsed_time(self, other: Event) -> float:
            return float(other.at - self.at)

    class Graph:
        def replay(self) -> None:
            seen.append("replay")

    class Capture:
        def __init__(self, graph: Graph) -> None:
            seen.append("capture")

        def __enter__(self) -> None: ...

        def __exit__(self, *exception: object) -> None:
            seen.append("end")

    @dataclass
    class Properties:
        L2_cache_size: int = 50 << 20

    for name, value in {"Event": Event, "CUDAGraph": Graph, "graph": Capture}.items():
        monkeypatch.setattr(torch.cuda, name, value)
    for name in ("synchronize", "set_stream", "default_stream", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda *arguments: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Properties())
    return seen


def test_calls_are_timed_by_events_and_by_graphs(pretended: list[str]) -> None:
    found = measure(CudaClock(), {OURS: [lambda: 1, lambda: 2]}, 0.0)
    assert found.seconds(OURS) == found.seconds(OURS, "called") == 0.0005  # a millisecond for two calls
    assert pretended.count("capture") == 1
    assert "replay" in pretended


def test_what_cannot_be_captured_is_timed_by_events_and_compared_so(pretended: list[str]) -> None:
    def waits() -> None:
        if pretended[-1:] == ["capture"]:
            raise RuntimeError("operation not permitted\nwhen stream is capturing")

    case = Case("maps", "softmax", "4x8", "float32")
    trial = Trial({OURS: [lambda: 1], "waits": [waits], "known": [lambda: 1]}, lambda name: 0.0, waits={"known": "it waits"})
    found = run_trial(case, trial, CudaClock(), Place("cuda"))
    assert found.not_captured == {"waits": "RuntimeError: operation not permitted when stream is capturing"}
    assert found.spoils  # a process is not used again after a capture that failed
    (result,) = found.results
    assert all(peer.seconds == 0.001 and peer.ratio and peer.ratio.median == 1.0 for peer in result.peers.values())
    assert pretended.count("capture") == 2


@pytest.mark.usefixtures("pretended")
def test_the_problems_of_a_round_are_several_caches() -> None:
    assert [CudaClock().problems(size) for size in (1 << 20, 150 << 20, 1 << 30)] == [200, 2, 2]
    assert Clock().problems(1) == 1


def test_a_machine_without_a_driver_is_not_asked_for_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert machine._nvidia_smi("driver_version", "clocks.max.sm") == (None, None)


def test_a_package_that_cannot_be_imported_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(peers.MODULES, "entmax", "no_such_module")
    monkeypatch.setattr(peers.native, "AVAILABLE", False)
    assert peers.missing("entmax") == "it is not installed"
    assert peers.missing(peers.OUR_CPU) == "its native library is not there"
    assert peers.missing("torch") == ""


# Targets


def on_gpu(*results: Result) -> Benchmark:
    copies = [
        Result(replace(result.case, name="copy", direction="forward"), seconds=1.0, facts={"bytes": result.facts["bytes"]})
        for result in results
    ]
    return Benchmark(
        "cuda", {"threads": 1, "processor": "any"}, {}, ("torch", "entmax", "liger", "adasplash"), results=[*copies, *results]
    )


def row_of(name: str, share: float, dtype: str = "float32", shape: str = "4096x32000", **ratios: float) -> Result:
    """A row that moves its bytes in 1/share of a copy, with peers that take so many times as long."""
    others = {label.replace("_", " "): Peer(ratio / share) for label, ratio in ratios.items()}
    size = 8 * 4096 * 32000 if shape == "4096x32000" else 1 << 24
    return Result(Case("maps", name, shape, dtype, "forward"), seconds=1 / share, peers=others, facts={"bytes": size})


@pytest.mark.parametrize(
    ("share", "factor", "told"), [(0.9, 1.0, "reached on 1 rows"), (0.5, 0.5, "not on 1 of 1 rows"), (None, 1.0, "not measured")]
)
def test_targets_are_told_with_their_numbers(share: float | None, factor: float, told: str) -> None:
    far = {"entmax": 30 * factor, "adasplash": 1.5 * factor, "Liger": 1.2 * factor, "softmaxima_CPU": 150 * factor}
    every = [row_of("softmax", share), row_of("sparsemax", share, **far)] if share else [row_of("softmax", 0.1, shape="16384x128")]
    found = bench_maps.outcomes(on_gpu(*every))
    assert len(found) == len(bench_maps.TARGETS)
    assert all(told in outcome for outcome in found), found
    if share:
        assert f"lowest {share}, softmax on 4096x32000, float32, forward" in found[0]
        assert bench_maps.labels(on_gpu(*every)) == ("entmax", "Liger", "adasplash", "softmaxima CPU")


# Runs in processes


def test_the_most_important_cases_come_first() -> None:
    planned = plan(replace(Settings(device="cuda"), cases=("maps",)))["maps"]
    ordered = by_weight(planned)
    assert {*ordered} == {*planned}
    first = ordered[: run.WAVE]
    assert {case.name for case in first} >= {"softmax", "logsumexp", "cross_entropy", "elastic_softmax", "entmax alpha=1.3"}
    assert len({case.size for case in first}) >= 2


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(run, "LIMIT", 600.0)
    return Settings(cases=("softmax", "bounds"), shapes=("4x8",), processes=1, quick=True)


@pytest.mark.exhaustive
def test_processes_find_what_one_finds(one_process: Settings) -> None:
    there, here = bench(one_process), bench(replace(one_process, processes=0))
    for found in (there, here):
        assert not found.wrong
        assert not found.not_reached
    assert [(r.case, r.verdict) for r in there.results] == [(r.case, r.verdict) for r in here.results]


def _crash_with_peers(task: Task) -> Found:
    if not task.lost and not task.known:
        os._exit(7)
    return run.run_task(task)


def test_a_process_that_a_peer_ends_is_not_charged_to_us(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "run_task", _crash_with_peers)
    monkeypatch.setattr(run, "LIMIT", 600.0)  # beside other tests a process takes minutes to start
    (row,) = bench(Settings(cases=("bounds",), shapes=("4x8",), processes=1, quick=True)).of("maps", "bounds")
    assert (row.verdict, row.seconds is not None) == ("right", True)
    assert row.peers["peers"].problem == "its process ended with exit code 7"


def _later(task: Any) -> Any:
    time.sleep(task)
    return task


@pytest.fixture
def one() -> Iterator[Workers]:
    with Workers(1) as workers:
        list(workers.map(operator.neg, [1]))  # so that it is there
        yield workers


def test_tasks_are_shared_and_what_ends_a_process_takes_nothing_with_it(one: Workers) -> None:
    assert sorted(one.map(operator.neg, [1, 2, 3])) == [(1, -1), (2, -2), (3, -3)]
    assert list(one.map(os._exit, [7])) == [(7, Lost("its process ended with exit code 7"))]
    assert list(one.map(int, ["a\nb"])) == [("a\nb", Lost("ValueError: invalid literal for int() with base 10: 'a\\nb'"))]
    assert list(one.map(operator.neg, [1])) == [(1, -1)]


def test_a_task_that_hangs_is_stopped_and_none_starts_after_the_end(one: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(one.map(_later, [60], limit=0.1)) == [(60, Lost("took more than 0 s"))]
    assert list(one.map(operator.neg, [1], ends=0.0)) == [(1, Lost("the budget ended", late=True))]
    monkeypatch.setattr(workers, "GRACE", 0.1)
    assert list(one.map(_later, [60], ends=time.monotonic() + 0.1)) == [(60, Lost("the budget ended", late=True))]
    with Workers(0) as here:
        assert list(here.map(int, ["3", "b"], ends=0.0)) == [(text, Lost("the budget ended", late=True)) for text in ("3", "b")]


def test_a_process_of_ranks_ends_whatever_its_threads_would_do_to_its_end() -> None:
    code = "import atexit, os; from softmaxima_lab.bench.workers import leave; atexit.register(os.abort); print('said'); leave()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "said\n", "")
