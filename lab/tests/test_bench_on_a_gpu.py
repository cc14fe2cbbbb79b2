"""The benchmark as a GPU has it, on the CPU: awkward lengths, processes, a budget, graphs on a pretended device, targets."""

from __future__ import annotations

import math
import operator
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from softmaxima.kernels.native import Kernel
from softmaxima.maps import REGISTRY as MAPS
from softmaxima_lab.bench import checks, clocks, definitions, machine, peers, plan, run, tasks, workers
from softmaxima_lab.bench.checks import CheckTask, check, check_tasks
from softmaxima_lab.bench.clocks import Clock, CudaClock, Measured, Timing, measure
from softmaxima_lab.bench.definitions import deviation, expect
from softmaxima_lab.bench.peers import OUR_CPU, PEERS, Peer, missing
from softmaxima_lab.bench.plan import Settings
from softmaxima_lab.bench.results import Benchmark, Ground, PeerResult, Row, as_json, from_json
from softmaxima_lab.bench.run import bench
from softmaxima_lab.bench.subjects import Shape, Subject, choose, problem, read_shape, subjects, with_kernels
from softmaxima_lab.bench.tasks import OURS, check_row, time_row
from softmaxima_lab.bench.workers import LATE, Last, Lost, Workers
from softmaxima_lab.commands.bench import finish
from softmaxima_lab.pages.bench import TARGETS, labels


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads that wait for each other cost more than these small shapes where tests run side by side."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "RUNS", 1)
    monkeypatch.setattr(tasks, "OVERHEAD_CALLS", 1)


def settings(**more: Any) -> Settings:
    return Settings(**{"shapes": (Shape((4, 8), 1),), "seconds": 0.0, **more})


def fail(z: Tensor) -> Tensor:
    raise ZeroDivisionError("it was never going to work")


# Rows of awkward lengths ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checked() -> Benchmark:
    """Every kernel, on few rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "SCORES", 2**10)
        return bench(settings(lengths=(31, 1, 1000)), choose(["softmax"]))


def test_every_kernel_is_right_on_every_length(checked: Benchmark) -> None:
    assert not checked.wrong, [str(found) for found in checked.wrong]
    assert not checked.not_reached
    assert len(checked.checks) == len({str(found) for found in checked.checks})


@pytest.mark.parametrize("name", [name for name, map in MAPS.items() if map.kernel is not None and map.kernel.on_gpus])
def test_every_map_with_a_kernel_is_checked_at_every_example(checked: Benchmark, name: str) -> None:
    for title in [f"{name} {p.name}={value}" for p in MAPS[name].params for value in p.examples] or [name]:
        found = [check for check in checked.checks if check.title == title]
        assert {check.dtype for check in found} == {"float32", "bfloat16", "float16", "float64"}
        assert {check.variant for check in found} == {"plain", "masked", "tempered"}
        assert {check.n for check in found} == {31, 1, 1000}


def test_every_loss_with_a_kernel_is_checked(checked: Benchmark) -> None:
    assert {c.variant for c in checked.checks if c.title == "cross_entropy"} == {"plain", "smoothed", "ignored", "soft"}
    on_gpus = [map for map in MAPS.values() if map.kernel is not None and map.kernel.on_gpus]
    with_loss = {map.name for map in on_gpus if map.kernel.loss is not None and map.regulariser}  # type: ignore[union-attr]
    titles = [check.title.split() for check in checked.checks if check.title.startswith("fenchel_young_loss")]
    assert {words[1].removeprefix("map=") for words in titles} == with_loss >= {"softmax", "sparsemax", "entmax"}


def test_what_is_measured_on_a_gpu_has_a_kernel() -> None:
    titles = {subject.title for subject in choose((), "cuda")}
    assert titles >= {"softmax", "logsumexp", "cross_entropy", "entmax alpha=1.3", "entmax alpha=one a row", "sparsemax_loss"}
    assert titles.isdisjoint({"proportional", "arcface", "bounds", "logaddexp"})


TRITON = "softmaxima.kernels.triton.sparsemax"  # any


def test_a_kernel_that_raises_is_named_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = replace(
        MAPS["sparsemax"], name="broken", forward=fail, kernel=Kernel("no_such_kernel", "no_such_kernel", triton=TRITON)
    )
    monkeypatch.setitem(MAPS, "broken", broken)
    results = {task.subjects[0].name: check(task) for task in check_tasks("cpu", (5,)) if task.dtype == torch.float32}
    assert "the native library has no kernel 'no_such_kernel'" in results["broken"][0].problem
    assert all(found.right for name, checks in results.items() if name != "broken" for found in checks)


def test_a_number_that_is_not_finite_is_null_in_json_and_comes_back() -> None:
    (task,) = [task for task in check_tasks("cpu", (5,)) if task.subjects[0].name == "softmax"][:1]
    found = benchmark_of(row_of("softmax", 0.5))
    found.checks = [replace(planned, problem="it crashed") for planned in task.checks]
    record = as_json(found)
    assert record["checks"][0]["units"] is None
    assert record["grounds"][0]["copy"] == {"called": 1.0, "runs": 1, "replayed": 1.0}
    assert as_json(from_json(record)) == record


# What is right ----------------------------------------------------------------------------------------------------------------


def test_numbers_that_were_not_written_are_infinitely_far() -> None:
    subject = subjects()["softmax"]
    given = problem(subject, Shape((4, 8), 1), torch.float32)
    expected, value = expect(subject, given), given.x.softmax(-1)
    assert expected is not None
    assert deviation(expected, (value, None), torch.float32).units <= 1
    value[3, 7] = math.nan
    assert deviation(expected, (value, None), torch.float32).units == math.inf


def test_the_gradient_counts_as_much_as_the_value() -> None:
    subject = subjects()["softmax"]
    given = problem(subject, Shape((4, 8), 1), torch.float32)
    expected, value = expect(subject, given), given.x.softmax(-1)
    assert expected is not None
    assert deviation(expected, (value, torch.zeros_like(value)), torch.float32).units > 1e4


def test_someone_elses_choice_among_equal_scores_is_theirs() -> None:
    subject = subjects()["topk_softmax"]
    given = replace(problem(subject, Shape((1, 12), 1), torch.float32), x=torch.zeros(1, 12))
    expected = expect(subject, given)
    assert expected is not None
    theirs = expected.value.flip(-1).float()
    assert deviation(expected, (theirs, None), torch.float32).units > 1
    assert deviation(expected, (theirs, None), torch.float32, selection=True).units <= 1


@pytest.mark.parametrize("name", ["sparsemax", "topp_softmax"])
def test_rows_that_rounding_decides_are_left_out(name: str) -> None:
    # Sparsemax of (1, 0) has its threshold at the second score; of two equal scores the first is a nucleus of exactly a half.
    subject = Subject(name, MAPS[name], {} if name == "sparsemax" else {"p": 0.5})
    scores = torch.tensor([[1.0, 0.0], [0.3, 0.0]] if name == "sparsemax" else [[0.0, 0.0], [0.3, 0.0]])
    expected = expect(subject, replace(problem(subject, Shape((2, 2), 1), torch.float32), x=scores))
    assert expected is not None
    assert expected.decided is not None
    assert expected.decided.all(-1).tolist() == [False, True]
    assert (expected.value_decided is None) == (name == "sparsemax")


def test_a_large_problem_is_compared_on_a_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = subjects()["sparsemax_loss"]
    given = problem(subject, Shape((7, 16), 1), torch.float64)
    whole = expect(subject, given)
    monkeypatch.setattr(definitions, "COMPARED", 40)
    few = expect(subject, given)
    assert whole is not None
    assert few is not None
    every = torch.arange(7.0)
    assert few.pick(every).flatten().tolist() == sorted({*few.pick(every).flatten().tolist()})
    torch.testing.assert_close(few.gradient, whole.gradient[few.pick(every).flatten().long()])
    torch.testing.assert_close(few.value, whole.value)


def test_a_loss_whose_rows_are_wrong_is_wrong_though_their_mean_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = subjects()["cross_entropy"].entry
    shifted = replace(entry, function=lambda x, target, **more: entry.function(x, target, **more) + 0.1)  # type: ignore[union-attr]
    task = task_of("cross_entropy")
    assert check_row(replace(task, subject=Subject("cross_entropy", shifted))).verdict == "wrong"


def test_every_subject_that_goes_to_a_process_comes_back() -> None:
    for subject in (*subjects().values(), *(each for group in with_kernels() for each in group)):
        function, arguments = subject.__reduce__()
        again = function(*arguments)
        assert (again.title, again.entry) == (subject.title, subject.entry)


# Peers ------------------------------------------------------------------------------------------------------------------------


def task_of(name: str, **more: Any) -> plan.RowTask:
    (task, *_) = plan.plan(settings(**more), choose([name]), plan.PACKAGES["cpu"]).rows
    return task


def test_a_peer_that_overwrites_its_scores_gets_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer("Liger", "entmax", lambda given: given.x.copy_(given.x.softmax(-1)), overwrites=True)
    after = Peer("adasplash", "entmax", lambda given: given.x.softmax(-1))
    monkeypatch.setitem(PEERS, "softmax", (peer, after))
    task = task_of("softmax")
    row = check_row(task)
    assert row.verdict == "right"
    assert not any(found.problem for found in row.peers)
    measured = time_row(replace(task, labels=(OURS, *(found.label for found in row.peers))))
    assert isinstance(measured, Measured)
    assert measured.times.keys() == {OURS, "Liger", "adasplash"}


def test_a_peer_that_fails_only_when_it_is_timed_is_named() -> None:
    measured = measure(Clock(), {"good": [lambda: None], "bad": [lambda: fail(torch.zeros(1))]}, 0.0)
    assert measured.times.keys() == {"good"}
    assert measured.failed == {"bad": "ZeroDivisionError: it was never going to work"}


def test_a_peer_that_fails_later_is_named_and_ours_is_timed() -> None:
    seen = []

    def fails_later() -> None:
        seen.append(1)
        if len(seen) > 2:
            raise MemoryError("no memory")

    measured = measure(Clock(), {OURS: [lambda: None], "peer": [fails_later]}, 0.0)
    assert measured.times.keys() == {OURS}
    assert measured.failed == {"peer": "MemoryError: no memory"}


def _crash_with_peers(task: plan.RowTask) -> Row:
    if not task.lost:
        os._exit(7)
    return check_row(task)


def test_a_process_that_a_peer_ends_is_not_charged_to_us(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "check_row", _crash_with_peers)
    found = bench(settings(processes=1), choose(["sparsemax"]))
    assert [row.verdict for row in found.rows] == ["right", "right"]
    assert all(row.timing is not None for row in found.rows)
    assert {peer.problem for row in found.rows for peer in row.peers} == {"its process ended with exit code 7"}


def test_rows_that_are_not_compared_must_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definitions, "COMPARED", 1)
    halved = replace(
        MAPS["softmax"],
        name="halved",
        kernel=None,
        forward=lambda z: z.softmax(-1) * torch.ones(len(z), 1).index_fill(0, torch.tensor([1, 2, 5]), 0.0),
    )
    monkeypatch.setitem(MAPS, "halved", halved)
    assert {row.verdict for row in bench(settings(shapes=(Shape((40, 8), 1),)), choose(["halved"])).rows} == {"wrong"}


def test_a_package_that_cannot_be_imported_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(peers.MODULES, "entmax", "no_such_module")
    monkeypatch.setattr(peers.native, "AVAILABLE", False)
    assert missing("entmax") == "it is not installed"
    assert missing(OUR_CPU) == "its native library is not there"
    assert missing("torch") == ""


def test_a_machine_without_a_driver_is_not_asked_for_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert machine._nvidia_smi("driver_version", "clocks.max.sm") == (None, None)


# The run ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_processes_find_what_one_finds() -> None:
    here, there = (bench(settings(processes=count), choose(["softmax", "bounds"])) for count in (0, 1))
    for found in (here, there):
        assert not found.wrong
        assert not found.not_reached
        assert all(row.timing is not None for row in found.rows)
    assert [row.title for row in here.rows] == [row.title for row in there.rows]


def test_what_the_budget_does_not_reach_is_named(capsys: pytest.CaptureFixture) -> None:
    chosen = choose(["softmax"])
    found = bench(settings(budget=1e-9, lengths=(2,)), chosen)
    planned = plan.plan(settings(lengths=(2,)), chosen)
    assert found.rows == found.checks == []
    checks = sum(len(task.checks) for task in planned.checks)
    assert len(found.not_reached) == len(planned.rows) + checks + len(planned.overheads)
    assert {"4x8 float32: softmax, forward", "softmax float32 257x2 plain"} <= {*found.not_reached}
    with pytest.raises(SystemExit) as ended:
        finish(found)
    assert ended.value.code == 1
    assert "were not reached in 0 seconds: " in capsys.readouterr().err


def test_a_row_that_was_checked_and_not_timed_was_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run._Run, "_to_time", lambda self, tasks: iter(()))
    found = bench(settings(), choose(["softmax"]))
    assert [row.verdict for row in found.rows] == ["right", "right"]
    assert len(found.not_reached) == 2


def test_results_are_saved_as_they_come_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "SAVED", 0.0)
    saved = []

    def stop(task: plan.RowTask) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "time_row", stop)
    with pytest.raises(KeyboardInterrupt):
        bench(settings(lengths=(2,)), choose(["softmax"]), save=lambda found: saved.append(as_json(found)))
    assert saved[0]["checks"]
    assert saved[-1]["rows"]
    assert saved[-1]["not_reached"]


def test_the_most_important_rows_come_first() -> None:
    planned = plan.plan(Settings(device="cuda"), choose((), "cuda"))
    ordered = planned.rows_by_weight
    assert {task.key for task in ordered} == {task.key for task in planned.rows}
    assert len(ordered) == len(planned.rows)
    first = ordered[: run.WAVE]
    assert {task.subject.name for task in first} >= {"softmax", "logsumexp", "cross_entropy", "elastic_softmax", "entmax"}
    assert len({str(task.shape) for task in first}) >= 2


# Targets ------------------------------------------------------------------------------------------------------------------------


def benchmark_of(*rows: Row) -> Benchmark:
    facts = {"date": "", "commit": None, "machine": {}, "versions": {}, "seconds": 1.0, "seed": 0, "left_out": {}}
    second = Timing(1.0, 1, 1.0)
    times = dict.fromkeys(("copy", "torch_alone", "ours_alone", "alternating"), second)
    grounds = [Ground(row.shape, row.dtype, 1, row.bytes, **times) for row in rows]
    names = ("torch", "entmax", "liger", "adasplash", OUR_CPU)
    return Benchmark(**facts, device="cuda", dtypes=["float32"], peers=names, rows=rows, grounds=grounds)


def row_of(name: str, share: float, dtype: str = "float32", shape: str = "4096x32000", **peers: float) -> Row:
    """A row that moves its bytes in 1/share of a copy, with peers that take so many times as long."""
    where = read_shape(shape)
    timing = Timing(1.0, 3, 1 / share)
    theirs = tuple(PeerResult(label, 0.5, "", Timing(1.0, 3, ratio / share)) for label, ratio in peers.items())
    theirs = tuple(replace(peer, label=peer.label.replace("_", " ")) for peer in theirs)
    return Row(name, name, "map", shape, where.n, dtype, "forward", 8 * where.scores, "right", 0.5, timing, theirs)


def outcomes(*rows: Row) -> list[str]:
    return [target.outcome(benchmark_of(*rows)) for target in TARGETS]


def test_targets_are_told_reached_with_their_numbers() -> None:
    found = outcomes(row_of("softmax", 0.9, Liger=1.2), row_of("sparsemax", 0.65, entmax=30.0, adasplash=1.5, softmaxima_CPU=150.0))
    assert all(text.startswith("reached on ") for text in found)
    assert found[0] == "reached on 1 rows, lowest 0.9, softmax on 4096x32000, float32, forward"


def test_targets_are_told_not_reached_with_their_numbers() -> None:
    found = outcomes(
        row_of("softmax", 0.9, Liger=0.9),
        row_of("softmax", 0.7, "bfloat16"),
        row_of("sparsemax", 0.5, entmax=3.0, adasplash=0.5, softmaxima_CPU=15.0),
    )
    assert all(text.startswith("not on 1 of ") for text in found)
    assert found[0] == "not on 1 of 2 rows, lowest 0.7, softmax on 4096x32000, bfloat16, forward"


def test_targets_of_large_tensors_do_not_ask_for_small_ones() -> None:
    assert outcomes(row_of("softmax", 0.1, shape="16384x128")) == ["not measured"] * len(TARGETS)


def test_columns_are_in_the_order_of_the_packages() -> None:
    row = row_of("sparsemax", 0.5, softmaxima_CPU=2.0, Liger=1.0, entmax=3.0)
    assert labels(benchmark_of(row)) == ("entmax", "Liger", OUR_CPU)


def test_a_ratio_is_by_graphs_only_if_both_have_one() -> None:
    ours = Timing(1.0, 3, 0.5)
    assert Timing(3.0, 3, None, "it waits").over(ours) == 3.0
    assert Timing(1.0, 3, 1.0).over(ours) == 2.0


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
    measured = measure(CudaClock(), {"ours": [lambda: 1, lambda: 2]}, 0.0)
    assert measured.times["ours"] == Timing(0.0005, 1, 0.0005)  # a millisecond for two calls
    assert pretended.count("capture") == 1
    assert "replay" in pretended


def test_what_cannot_be_captured_is_timed_by_events(pretended: list[str]) -> None:
    def waits() -> None:
        if pretended[-1:] == ["capture"]:
            raise RuntimeError("operation not permitted\nwhen stream is capturing")

    measured = measure(CudaClock(), {"ours": [waits], "theirs": [lambda: None]}, 0.0, {"theirs": "it waits"})
    why = "RuntimeError: operation not permitted when stream is capturing"
    assert measured.not_captured == {"ours": why}
    assert (measured.times["ours"].replayed, measured.times["ours"].capture) == (None, why)
    assert (measured.times["theirs"].replayed, measured.times["theirs"].capture) == (None, "it waits")
    assert pretended.count("capture") == 1


@pytest.mark.usefixtures("pretended")
def test_the_problems_of_a_round_are_several_caches() -> None:
    assert [CudaClock().problems(size) for size in (1 << 20, 150 << 20, 1 << 30)] == [200, 2, 2]
    assert Clock().problems(1) == 1


def test_a_process_is_not_used_again_after_a_capture_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = Measured({}, {}, {OURS: "why"})
    monkeypatch.setattr(tasks, "measure", lambda *arguments: failing)
    assert time_row(replace(task_of("softmax"), labels=(OURS,))) == Last(failing)


# Processes --------------------------------------------------------------------------------------------------------------------


def test_tasks_are_shared_among_processes() -> None:
    with Workers(2) as workers:
        assert sorted(workers.map(operator.neg, [1, 2, 3])) == [(1, -1), (2, -2), (3, -3)]


def test_a_task_that_crashes_takes_nothing_with_it() -> None:
    with Workers(1) as workers:
        assert list(workers.map(os._exit, [7])) == [(7, Lost("its process ended with exit code 7"))]
        assert list(workers.map(operator.neg, [1])) == [(1, -1)]
        workers._idle[0].kill()
        assert list(workers.map(operator.neg, [1])) == [(1, -1)]


def test_a_task_that_hangs_is_stopped() -> None:
    with Workers(1) as workers:
        list(workers.map(operator.neg, [1]))
        assert list(workers.map(time.sleep, [60], limit=0.1)) == [(60, Lost("took more than 0 s"))]


def test_no_task_starts_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "GRACE", 0.1)
    with Workers(1) as processes:
        list(processes.map(operator.neg, [1]))
        assert list(processes.map(time.sleep, [60, 61], ends=time.monotonic() + 0.1)) == [(60, Lost(LATE))]
        assert list(processes.map(operator.neg, [1], ends=0.0)) == []


@pytest.mark.parametrize("count", [0, 1])
def test_an_exception_is_told_in_one_line(count: int) -> None:
    with Workers(count) as workers:
        assert list(workers.map(int, ["a\nb"])) == [("a\nb", Lost("ValueError: invalid literal for int() with base 10: 'a\\nb'"))]
        assert list(workers.map(int, ["3"])) == [("3", 3)]


def test_the_last_result_of_a_process_is_a_result() -> None:
    with Workers(1) as workers:
        assert list(workers.map(Last, [5])) == [(5, 5)]
        assert not workers._idle
    assert list(Workers(0).map(Last, [5])) == [(5, 5)]


def test_a_check_task_says_what_it_is_before_it_runs() -> None:
    (group,) = [group for group in with_kernels() if group[0].title == "logsumexp"]
    assert str(CheckTask(group, torch.float32, 5, "cpu")) == "logsumexp, rows of 5, float32"
