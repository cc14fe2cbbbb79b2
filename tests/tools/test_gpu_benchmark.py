"""The GPU benchmark, run on the CPU: everything is checked before it is timed, and what fails, hangs or comes too late is named."""

from __future__ import annotations

import json
import math
import operator
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import checks, gpu, peers, rows, subjects, timing
from benchmarks.checks import Check, deviation, expect
from benchmarks.gpu import main
from benchmarks.peers import OTHERS, OUR_CPU, Package, Peer, installed, packages
from benchmarks.report import TARGETS, Report, as_json, as_markdown, outcome
from benchmarks.rows import OURS, Place, Result, Row, RowTask, Verdict, check_row, planned, time_row
from benchmarks.subjects import SUBJECTS, Subject, problem
from benchmarks.timing import Times, Timing, measure
from benchmarks.workers import LATE, Last, Lost, Workers
from softmaxima.kernels.native import Kernel
from softmaxima.maps import REGISTRY as MAPS

DTYPES = ("float32", "bfloat16", "float16", "float64")
CPU = Place("cpu", 0, ("torch", "entmax"), 0.0)


@dataclass(frozen=True)
class Done:
    status: int
    found: dict[str, Any]
    page: str
    progress: str

    def checks(self, name: str) -> list[dict[str, Any]]:
        return [check for check in self.found["checks"] if check["title"].startswith(name)]


def run(out: Path, capsys: pytest.CaptureFixture | None, *arguments: str) -> Done:
    status = main(["--out", str(out), "--device", "cpu", "--quick", *arguments])
    progress = capsys.readouterr().err if capsys else ""
    found = json.loads((out / "gpu.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)
    return Done(status, found, (out / "gpu.md").read_text(encoding="utf-8"), progress)


def shorten(patch: pytest.MonkeyPatch) -> None:
    for module, name, value in ((timing, "BURST", 2), (timing, "BURSTS", 1), (timing, "COPY_SECONDS", 0.0)):
        patch.setattr(module, name, value)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads that wait for each other cost more than these small shapes where tests run side by side."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """The whole benchmark."""
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        return run(tmp_path_factory.mktemp("whole"), None)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Next to nothing is checked and measured: sparsemax and softmax."""
    shorten(monkeypatch)
    monkeypatch.setattr(checks, "QUICK_LENGTHS", (5,))
    monkeypatch.setattr(rows, "QUICK_SHAPES", ((4, 8),))
    tables: tuple[dict[str, Any], ...] = (MAPS, SUBJECTS)
    before = [dict(table) for table in tables]
    for table in tables:
        for name in table.keys() - {"softmax", "sparsemax"}:
            del table[name]
    yield monkeypatch
    for table, entries in zip(tables, before, strict=True):  # in their order, which counts
        table.clear()
        table.update(entries)


def fail(z: Tensor) -> Tensor:
    raise ZeroDivisionError("it was never going to work")


@pytest.fixture
def broken(small: pytest.MonkeyPatch) -> None:
    """A map whose kernel raises, with a native library and without one."""
    map = replace(MAPS["sparsemax"], name="broken", forward=fail, kernel=Kernel("no_such_kernel", "no_such_kernel"))
    small.setitem(MAPS, "broken", map)


@pytest.fixture
def doubled(small: pytest.MonkeyPatch) -> None:
    """A map that is twice what it should be."""
    map = replace(MAPS["softmax"], name="doubled", kernel=None, forward=lambda z: 2 * torch.softmax(z, -1))
    small.setitem(MAPS, "doubled", map)
    small.setitem(SUBJECTS, "doubled", Subject("doubled", "map"))


# The whole --------------------------------------------------------------------------------------------------------------------


def test_everything_is_right_and_in_time(whole: Done) -> None:
    assert whole.status == 0
    assert whole.found["good"]
    assert whole.found["not_reached"] == {"checks": [], "rows": []}


@pytest.mark.parametrize("name", [name for name, map in MAPS.items() if map.kernel is not None])
def test_every_map_with_a_kernel_is_checked_at_every_example(whole: Done, name: str) -> None:
    map = MAPS[name]
    examples = [f"{map.name} {p.name}={value}" for p in map.params for value in p.examples] or [map.name]
    for title in examples:
        found = [check for check in whole.found["checks"] if check["title"] == title]
        assert {check["dtype"] for check in found} == set(DTYPES)
        assert {check["variant"] for check in found} == {"plain", "masked", "tempered"}
        assert {check["n"] for check in found} == set(checks.QUICK_LENGTHS)


def test_every_loss_with_a_kernel_is_checked(whole: Done) -> None:
    assert {check["variant"] for check in whole.checks("cross_entropy")} == {"plain", "smoothed", "ignored", "soft"}
    with_loss = {map.name for map in MAPS.values() if map.kernel is not None and map.kernel.loss is not None and map.regulariser}
    checked = {check["title"].split()[1].removeprefix("map=") for check in whole.checks("fenchel_young_loss")}
    assert checked == with_loss >= {"softmax", "sparsemax", "entmax"}


def test_every_subject_is_timed_beside_a_peer(whole: Done) -> None:
    timed = {(row["title"], row["dtype"], row["direction"]) for row in whole.found["rows"]}
    assert timed == {(s.title, dtype, d) for s in SUBJECTS.values() for dtype in rows.DTYPES for d in s.directions}
    for row in whole.found["rows"]:
        assert row["right"]
        assert row["seconds"] > 0
        assert row["bytes_a_second"] == pytest.approx(row["bytes"] / row["seconds"])
        assert row["share_of_copy"] > 0
        assert all(ratio > 0 for ratio in row["ratios"].values())
        assert row["ratios"] or any(verdict["problem"] for verdict in row["verdicts"].values())
    assert {label for row in whole.found["rows"] for label in row["ratios"]} == {"torch eager", "entmax", "entmax k=100"}


def test_result_says_where_and_with_what_it_was_measured(whole: Done) -> None:
    found = whole.found
    assert found["device"] == "cpu"
    assert {"softmaxima", "python", "torch", "entmax"} <= found["versions"].keys()
    assert found["machine"]["processor"]
    assert found["date"].startswith("20")
    assert len(found["copy_bytes_a_second"]) == 2
    assert found["tolerance"].keys() == set(DTYPES)
    assert 0 < found["elapsed"] < found["seconds"]


def test_page_has_a_table_for_each_pass(whole: Done) -> None:
    for heading in ("# Kernels on a GPU", "## Targets", "## Correctness", "## Speed, forward\n", "## Speed, forward+backward\n"):
        assert heading in whole.page
    assert "| subject | shape | dtype | ms | GB/s | of the copy | x torch eager | x entmax | x entmax k=100 |" in whole.page
    for title in SUBJECTS:
        assert f"| {title} | 8x1024 | bfloat16 |" in whole.page
    for target in TARGETS:
        assert f"| {target.title} | not measured |" in whole.page
    assert "- Liger is left out: it computes on a GPU only" in whole.page
    widths = {
        line.count("|") for line in whole.page.split("## Speed, forward\n")[1].split("## Speed")[0].splitlines() if line[:1] == "|"
    }
    assert len(widths) == 1


# What fails -------------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("broken")
def test_kernel_that_raises_is_named_and_the_rest_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    done = run(tmp_path, capsys)
    assert done.status == 1
    assert all("Error: " in check["problem"] and check["error"] is None for check in done.checks("broken"))
    assert len(done.checks("broken")) == len(DTYPES)
    assert all(check["right"] for check in done.found["checks"] if check["title"] != "broken")
    assert len(done.found["rows"]) == len(planned(quick=True))
    assert "broken: 0 of 4 checks are right" in done.progress
    assert "**wrong**" in done.page
    assert "- broken float32 204x5 plain: " in done.page


@pytest.mark.usefixtures("doubled")
def test_what_is_wrong_is_not_timed(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    done = run(tmp_path, capsys)
    assert done.status == 1
    wrong = [row for row in done.found["rows"] if row["title"] == "doubled"]
    assert len(wrong) == 4
    assert all("times the tolerance away" in row["problem"] and row["seconds"] is None for row in wrong)
    assert all(row["seconds"] for row in done.found["rows"] if row["title"] != "doubled")
    assert "4x8 float32 doubled, forward: " in done.progress
    assert "| doubled | 4x8 | float32 | wrong or failed |" in done.page


def test_peer_that_is_wrong_or_raises_is_marked_and_not_timed(small: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wrong = Peer("Liger", "entmax", lambda x, given: 2 * x.softmax(-1))
    raising = Peer("adasplash", "entmax", lambda x, given: fail(x))
    small.setitem(OTHERS, "softmax", (wrong, raising))
    done = run(tmp_path, None)
    assert done.status == 0  # it is not ours
    row = next(row for row in done.found["rows"] if row["title"] == "softmax")
    assert "torch eager" in row["times"]
    assert not {"Liger", "adasplash"} & row["times"].keys()
    assert "- adasplash, softmax: ZeroDivisionError: it was never going to work (4 rows)" in done.page
    assert row["verdicts"]["Liger"]["units"] > 1


def test_peer_that_overwrites_its_scores_gets_its_own(small: pytest.MonkeyPatch) -> None:
    peer = Peer("Liger", "entmax", lambda x, given: x.copy_(x.softmax(-1)), overwrites=True)
    after = Peer("adasplash", "entmax", lambda x, given: x.softmax(-1))
    small.setitem(OTHERS, "softmax", (peer, after))
    task = RowTask(Row("softmax", 4, 8, "float32", "forward"), CPU)
    result = check_row(task)
    assert not any(verdict.problem for verdict in result.verdicts.values())
    measured = time_row(replace(task, labels=tuple(result.verdicts)))
    assert isinstance(measured, timing.Measured)
    assert measured.times.keys() == {OURS, "torch eager", "Liger", "adasplash"}


def test_peer_that_fails_only_when_it_is_timed_is_named() -> None:
    measured = measure({"good": [lambda: None], "bad": [lambda: fail(torch.zeros(1))]}, "cpu", 0.0, {})
    assert measured.times.keys() == {"good"}
    assert measured.failed == {"bad": "ZeroDivisionError: it was never going to work"}


def test_nothing_is_reached_without_time(small: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done = run(tmp_path, None, "--seconds=0")
    assert done.status == 1
    assert done.found["checks"] == done.found["rows"] == []
    assert len(done.found["not_reached"]["rows"]) == len(planned(quick=True))
    assert "softmax float32 204x5 plain" in done.found["not_reached"]["checks"]
    assert "| sparsemax | 4x8 | bfloat16 | not reached |" in done.page
    assert "- sparsemax: float32 204x5 plain, " in done.page
    assert "The copy was not measured." in done.page


def test_row_that_was_checked_and_not_timed_was_not_reached(small: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small.setattr(gpu.Run, "_to_time", lambda self, rows: iter(()))
    done = run(tmp_path, None)
    assert done.status == 1
    assert len(done.found["not_reached"]["rows"]) == len(planned(quick=True))
    assert all(row["right"] and row["seconds"] is None for row in done.found["rows"])


def test_results_are_written_as_they_come_in(small: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small.setattr(gpu, "SAVED", 0.0)

    def stop(task: RowTask) -> None:
        raise KeyboardInterrupt

    small.setattr(gpu, "time_row", stop)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, None)
    found = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))
    assert found["checks"]
    assert found["rows"]
    assert not found["good"]


def test_missing_gpu_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["--out", str(tmp_path / "out")]) == 1
    assert "there is no CUDA device here; --device cpu" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# What is right ----------------------------------------------------------------------------------------------------------------


def test_numbers_that_were_not_written_are_infinitely_far() -> None:
    given = problem(SUBJECTS["softmax"], 4, 8, torch.float32, "cpu")
    expected, value = expect(SUBJECTS["softmax"], given), given.x.softmax(-1)
    assert deviation(expected, (value, None), torch.float32).units <= 1
    value[3, 7] = math.nan
    assert deviation(expected, (value, None), torch.float32).units == math.inf


def test_gradient_counts_as_much_as_the_value() -> None:
    given = problem(SUBJECTS["softmax"], 4, 8, torch.float32, "cpu")
    expected, value = expect(SUBJECTS["softmax"], given), given.x.softmax(-1)
    assert deviation(expected, (value, torch.zeros_like(value)), torch.float32).units > 1e4


def test_someone_elses_choice_among_equal_scores_is_theirs() -> None:
    subject = SUBJECTS["topk_softmax"]
    given = replace(problem(subject, 1, 12, torch.float32, "cpu"), x=torch.zeros(1, 12))
    expected = expect(subject, given)
    theirs = expected.value.flip(-1).float()
    assert deviation(expected, (theirs, None), torch.float32).units > 1
    assert deviation(expected, (theirs, None), torch.float32, selection=True).units <= 1


@pytest.mark.parametrize("title", ["sparsemax", "topp_softmax"])
def test_rows_that_rounding_decides_are_left_out(title: str) -> None:
    # Sparsemax of (1, 0) has its threshold at the second score; of two equal scores the first is a nucleus of exactly a half.
    subject = SUBJECTS[title] if title == "sparsemax" else Subject(title, "map", {"p": 0.5})
    scores = torch.tensor([[1.0, 0.0], [0.3, 0.0]] if title == "sparsemax" else [[0.0, 0.0], [0.3, 0.0]])
    expected = expect(subject, replace(problem(subject, 2, 2, torch.float32, "cpu"), x=scores))
    assert expected.decided is not None
    assert expected.decided.flatten().tolist() == [False, True]
    assert (expected.value_decided is None) == (title == "sparsemax")


def test_large_problem_is_compared_on_a_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = SUBJECTS["sparsemax_loss"]
    given = problem(subject, 7, 16, torch.float64, "cpu")
    whole = expect(subject, given)
    monkeypatch.setattr(checks, "CHUNK", 40)
    few = expect(subject, given)
    assert few.rows.tolist() == [0, 3, 6]
    torch.testing.assert_close(few.value, whole.value)
    torch.testing.assert_close(few.gradient, whole.gradient[few.rows])


@pytest.mark.parametrize(
    ("title", "forward", "both"),
    [
        ("softmax", 2 * 64, 5 * 64),
        ("taylor_softmax", 2 * 64, 6 * 64),
        ("logsumexp", 64 + 8, 3 * 64 + 3 * 8),
        ("cross_entropy", 2 * 64 + 16, 2 * 64 + 16),
    ],
)
def test_bytes_are_what_an_ideal_kernel_moves(title: str, forward: int, both: int) -> None:
    of = SUBJECTS[title].bytes
    assert (of(2, 8, 4, "forward"), of(2, 8, 4, "forward+backward")) == (forward, both)


def test_most_important_rows_come_first() -> None:
    plan = planned(quick=False)
    assert len(plan) == len(set(plan)) == 2 * len(rows.SHAPES) * sum(len(s.directions) for s in SUBJECTS.values())
    assert plan[0] == Row("softmax", 4096, 32000, "float32", "forward")
    assert {row.title for row in plan[:48]} >= {"softmax", "logsumexp", "cross_entropy", "sparsemax", "entmax15"}
    assert len({(row.rows, row.n) for row in plan[:48]}) > 2


# The report -------------------------------------------------------------------------------------------------------------------


def report_of(*results: Result, copy: float = 4e12) -> Report:
    planned_rows = [result.row for result in results]
    facts = {"date": "", "commit": None, "seconds": 1.0, "device": "cuda", "quick": False, "machine": {}, "versions": {}}
    report = Report(**facts, packages=[Package("torch", "2")], planned_checks=[], planned_rows=planned_rows, copies=[copy])
    report.results = {result.row: result for result in results}
    return report


def result_of(title: str, share: float, dtype: str = "float32", n: int = 32000, **peers: float) -> Result:
    """A row whose kernel reaches that share of 4 TB/s, with peers that take so many times as long."""
    row = Row(title, 4096, n, dtype, "forward")
    seconds = row.bytes / (share * 4e12)
    times = {label.replace("_", " "): Times(Timing(1.0, 3), Timing(ratio * seconds, 3)) for label, ratio in peers.items()}
    ours = Times(Timing(1.0, 3), Timing(seconds, 3))
    return Result(row, dict.fromkeys((OURS, *times), Verdict(0.5, 1e-7)), {OURS: ours, **times})


def outcomes(report: Report) -> list[bool | None]:
    return [outcome(target, report).reached for target in TARGETS]


def test_targets_are_told_reached_with_their_numbers() -> None:
    report = report_of(
        result_of("softmax", 0.9, Liger=1.2), result_of("sparsemax", 0.65, entmax=30.0, adasplash=1.5, softmaxima_CPU=150.0)
    )
    assert outcomes(report) == [True] * len(TARGETS)
    assert str(outcome(TARGETS[0], report)) == "reached on 1 rows, lowest 90% at 4096x32000 float32 softmax, forward"
    assert report.good


def test_targets_are_told_not_reached_with_their_numbers() -> None:
    report = report_of(
        result_of("softmax", 0.9, Liger=0.9),
        result_of("softmax", 0.7, "bfloat16"),
        result_of("sparsemax", 0.5, entmax=3.0, adasplash=0.5, softmaxima_CPU=15.0),
    )
    assert outcomes(report) == [False] * len(TARGETS)
    text = "not reached on 1 of 2 rows, lowest 70% at 4096x32000 bfloat16 softmax, forward"
    assert str(outcome(TARGETS[0], report)) == text
    assert f"| {TARGETS[0].title} | {text} |" in as_markdown(report)


def test_targets_of_large_tensors_do_not_ask_for_small_ones() -> None:
    assert outcomes(report_of(result_of("softmax", 0.1, n=1024))) == [None] * len(TARGETS)  # 16 MB


def test_ratio_is_by_graphs_only_if_both_have_one() -> None:
    result = result_of("cross_entropy", 0.9, Liger=2.0, entmax=2.0)
    result.times["Liger"] = Times(Timing(3.0, 3), None, "it waits for a number from the device")
    assert result.ratio("Liger") == 3.0
    assert result.ratio("entmax") == pytest.approx(2.0)
    page = as_markdown(report_of(result))
    assert "| 3~ |" in page
    assert "Liger, cross_entropy, without a graph: it waits for a number from the device (1 rows)" in page


def test_numbers_that_are_not_finite_are_null_in_json() -> None:
    report = report_of()
    report.checks = [Check("softmax", "float32", 3, 1, "plain", problem="it crashed")]
    (check,) = as_json(report)["checks"]
    assert (check["units"], check["right"]) == (None, False)


# Timing on a device, with one that is pretended --------------------------------------------------------------------------------


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A device whose events are milliseconds apart; the calls that it saw."""
    seen: list[str] = []
    clock = iter(range(1, 1_000_000))

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            self.at = 0

        def record(self) -> None:
            self.at = next(clock)

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

    for name, value in {"Event": Event, "CUDAGraph": Graph, "graph": Capture}.items():
        monkeypatch.setattr(torch.cuda, name, value)
    for name in ("synchronize", "set_stream", "default_stream", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda *arguments: None)
    monkeypatch.setattr(timing, "BURSTS", 2)
    return seen


def test_calls_are_timed_by_events_and_by_graphs(pretended: list[str]) -> None:
    measured = measure({"ours": [lambda: 1, lambda: 2]}, "cuda", 0.0, {})
    assert measured.times["ours"] == Times(Timing(0.0005, 6), Timing(0.0005, 6))  # a millisecond for two calls
    assert pretended.count("capture") == 1
    assert "replay" in pretended


def test_what_cannot_be_captured_is_timed_by_events(pretended: list[str]) -> None:
    def waits() -> None:
        if pretended[-1:] == ["capture"]:
            raise RuntimeError("operation not permitted\nwhen stream is capturing")

    measured = measure({"ours": [waits], "theirs": [lambda: None]}, "cuda", 0.0, {"theirs": "it waits"})
    assert measured.times["ours"].graph is None
    assert measured.not_captured == {"ours": "RuntimeError: operation not permitted when stream is capturing"}
    assert measured.times["theirs"] == Times(measured.times["theirs"].events, None, "it waits")
    assert pretended.count("capture") == 1


def test_process_is_not_used_again_after_a_capture_that_failed(small: pytest.MonkeyPatch) -> None:
    failing = timing.Measured({}, {}, {OURS: "why"})
    small.setattr(rows, "measure", lambda *arguments: failing)
    task = RowTask(Row("softmax", 4, 8, "float32", "forward"), CPU, (OURS,))
    assert time_row(task) == Last(failing)


# Processes --------------------------------------------------------------------------------------------------------------------


def test_tasks_are_shared_among_processes() -> None:
    with Workers(2) as workers:
        assert sorted(workers.map(operator.neg, [1, 2, 3])) == [(1, -1), (2, -2), (3, -3)]


def test_task_that_crashes_takes_nothing_with_it() -> None:
    with Workers(1) as workers:
        assert list(workers.map(os._exit, [7])) == [(7, Lost("its process ended with exit code 7"))]
        assert list(workers.map(operator.neg, [1])) == [(1, -1)]
        workers._idle[0].kill()
        assert list(workers.map(operator.neg, [1])) == [(1, -1)]


def test_task_that_hangs_is_stopped() -> None:
    with Workers(1) as workers:
        list(workers.map(operator.neg, [1]))
        assert list(workers.map(time.sleep, [60], limit=0.1)) == [(60, Lost("took more than 0 s"))]


def test_no_task_starts_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.workers.GRACE", 0.1)
    with Workers(1) as workers:
        list(workers.map(operator.neg, [1]))
        assert list(workers.map(time.sleep, [60, 61], ends=time.monotonic() + 0.1)) == [(60, Lost(LATE))]
        assert list(workers.map(operator.neg, [1], ends=0.0)) == []


@pytest.mark.parametrize("count", [0, 1])
def test_exception_is_told_in_one_line(count: int) -> None:
    with Workers(count) as workers:
        assert list(workers.map(int, ["a\nb"])) == [("a\nb", Lost("ValueError: invalid literal for int() with base 10: 'a\\nb'"))]
        assert list(workers.map(int, ["3"])) == [("3", 3)]


def test_last_result_of_a_process_is_a_result() -> None:
    with Workers(1) as workers:
        assert list(workers.map(Last, [5])) == [(5, 5)]
        assert not workers._idle
    assert list(Workers(0).map(Last, [5])) == [(5, 5)]


# Wheels -----------------------------------------------------------------------------------------------------------------------


def test_wheels_are_installed_for_the_time_of_the_run(tmp_path: Path) -> None:
    facts = "tiny_peer-1.0.dist-info"
    with zipfile.ZipFile(tmp_path / "tiny_peer-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_peer.py", "")
        wheel.writestr(f"{facts}/METADATA", "Metadata-Version: 2.1\nName: tiny-peer\nVersion: 1.0\n")
        wheel.writestr(f"{facts}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{facts}/RECORD", "")
    (tmp_path / "broken-1.0-py3-none-any.whl").write_text("")
    before = list(sys.path)
    with installed(tmp_path) as (failed,):
        assert __import__("tiny_peer").__file__.startswith(sys.path[-1])
    assert failed.name == "broken-1.0-py3-none-any.whl"
    assert failed.problem.startswith("pip could not install it: ")
    assert str(tmp_path) not in failed.problem
    assert sys.path == before


def test_package_that_cannot_be_imported_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(peers.MODULES, "entmax", ("no_such_module", "entmax"))
    monkeypatch.setattr(peers.native, "AVAILABLE", False)
    found = {package.name: package for package in packages("cpu")}
    assert found["entmax"].problem == "ModuleNotFoundError: No module named 'no_such_module'"
    assert found[OUR_CPU].problem == "its native library is not there"
    assert found["torch"].version == torch.__version__


@pytest.mark.parametrize(
    ("arguments", "message"), [(["--wheels=none"], "--wheels: there is no folder none"), (["--processes=-1"], "must be at least 0")]
)
def test_wrong_arguments_are_refused(arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        main(["--out", str(tmp_path), *arguments])
    assert message in capsys.readouterr().err


def test_machine_without_a_driver_is_not_asked_for_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert gpu._nvidia_smi("driver_version", "clocks.max.sm") == (None, None)


def test_softmaxima_is_found_without_being_installed() -> None:
    script = "import importlib.util as u; u.find_spec = lambda name: None; import benchmarks, sys; print(sys.path[0])"
    root = Path(subjects.__file__).parents[1]
    found = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    assert Path(found.stdout.strip()) == root / "src"
