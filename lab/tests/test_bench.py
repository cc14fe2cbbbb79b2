"""The benchmark: a row for everything, nothing timed that is wrong, peers that compute the same, and one line for wrong use."""

from __future__ import annotations

import io
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from rich.console import Console

import softmaxima as sm
from conftest import Run
from softmaxima.core.numbers import InputError
from softmaxima.losses import REGISTRY as LOSSES
from softmaxima.maps import REGISTRY as MAPS
from softmaxima_lab.bench import clocks, definitions, machine, plan, tasks
from softmaxima_lab.bench.clocks import Quotient
from softmaxima_lab.bench.peers import PEERS, Peer, stated_peers
from softmaxima_lab.bench.plan import QUICK_SHAPES, Settings
from softmaxima_lab.bench.results import Benchmark, PeerResult, as_json, from_json, read
from softmaxima_lab.bench.run import bench
from softmaxima_lab.bench.subjects import DIRECTIONS, Shape, choose, compulsory_bytes, problem, read_shape, subjects
from softmaxima_lab.bench.sums import SUMS
from softmaxima_lab.commands.bench import finish, show_benchmark
from softmaxima_lab.pages.bench import LOGSUMEXP_ROWS, beside_others, labels, made_with, markdown_table, number, picture

TINY = ("--shapes=4x8", "--threads=1")
OURS = [name for name, map in MAPS.items() if map.reference.__module__.startswith("softmaxima.")] + list(LOSSES)


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(plan.SECONDS, "cpu", 0.0)
    for module, name, value in ((plan, "QUICK_SECONDS", 0.0), (clocks, "RUNS", 1), (tasks, "OVERHEAD_CALLS", 1)):
        monkeypatch.setattr(module, name, value)


def measure(shapes: str = "4x8", names: str = "", **settings) -> Benchmark:
    chosen = choose([name for name in names.split(",") if name])
    return bench(Settings(shapes=tuple(map(read_shape, shapes.split(","))), threads=1, seconds=0.0, **settings), chosen)


@pytest.fixture
def run(run: Run) -> Run:
    return partial(run, "bench")


@pytest.fixture
def doubled(monkeypatch: pytest.MonkeyPatch) -> str:
    """A map that is registered and wrong."""
    wrong = replace(MAPS["softmax"], name="doubled", kernel=None, forward=lambda z: 2 * torch.softmax(z, -1))
    monkeypatch.setitem(MAPS, "doubled", wrong)
    return "doubled"


# What is measured


@pytest.mark.parametrize("name", [*SUMS, *OURS])
def test_everything_of_ours_has_a_definition(name: str) -> None:
    assert all(subject.entry.reference is not None for subject in choose([name]))


@pytest.mark.parametrize("name", [*SUMS, *OURS])
def test_everything_has_a_right_row_with_every_installed_peer(name: str) -> None:
    shapes = ("3x120", "2x5x3@1") if name not in LOSSES else ("3x120",)  # 120 is above entmax's partial sort
    result = measure(",".join(shapes), name)
    rows = [(row.shape, row.title, row.direction) for row in result.rows]
    assert rows == [(shape, s.title, direction) for shape in shapes for s in choose([name]) for direction in s.directions]
    assert not result.not_reached
    for row in result.rows:
        assert row.verdict == "right", row.problem
        assert row.timing is not None
        assert {peer.label for peer in row.peers} == {
            peer.label
            for peer in stated_peers(subjects()[row.title])
            if peer.package in result.peers
            and (row.shape == "3x120" or not peer.above)
            and (row.direction == "forward" or peer.differentiable)
        }
        for peer in row.peers:
            assert row.ratio(peer.label) is not None, peer.problem


def test_everything_is_right_in_every_dtype(dtype: torch.dtype) -> None:
    result = measure("3x40", dtypes=(str(dtype).removeprefix("torch."),), peers=())
    assert {row.name for row in result.rows} >= {*SUMS, *OURS}
    assert not result.wrong, [(row.name, row.problem) for row in result.wrong]


@pytest.mark.parametrize("shape", ["1x1", "1", "7x1", "1x7"])
def test_the_smallest_shapes_are_right(shape: str) -> None:
    assert not measure(shape, ",".join([*SUMS, *OURS]) if "x" in shape else "logsumexp,softmax,entmax", peers=()).wrong


def test_a_map_without_a_peer_has_a_row_without_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MAPS, "twin", replace(MAPS["softmax"], name="twin"))
    assert [(row.verdict, row.peers) for row in measure(names="twin").rows] == [("right", ())] * 2


def test_overheads_and_disturbance_are_measured() -> None:
    result = measure("4x8,5x2", "softmax,sparsemax")
    assert [(overhead.name, overhead.by) for overhead in result.overheads] == [("softmax", "softmaxima"), ("softmax", "torch")]
    assert [ground.shape for ground in result.grounds] == ["4x8", "5x2"]
    for ground in result.grounds:
        assert ground.bytes == 8 * ground.scores
        assert ground.disturbance > 0


@pytest.mark.parametrize(
    ("name", "forward", "both"),
    [
        ("softmax", 2 * 32, 4 * 32),
        ("logsumexp", 32 + 4, 2 * 32 + 2 * 4),
        ("weighted_logsumexp", 2 * 32 + 4, 3 * 32 + 2 * 4),
        ("logcumsumexp", 2 * 32, 4 * 32),
        ("cross_entropy", 32 + 2 * 4 + 1, 2 * 32 + 2 * 4 + 1),
    ],
)
def test_compulsory_bytes_are_inputs_and_outputs_once(name: str, forward: int, both: int) -> None:
    (subject,) = choose([name])
    found = [compulsory_bytes(subject, Shape((4, 8), 1), direction, 4) for direction in DIRECTIONS]
    assert found == [4 * forward, 4 * both]  # a label is as long as two scores


def test_a_quantised_score_is_a_byte() -> None:
    (subject,) = choose(["quantized_logsumexp"])
    assert compulsory_bytes(subject, Shape((4, 8), 1), "forward", 4) == 32 + 4 * 4


# What is wrong


def test_a_wrong_map_is_called_wrong_and_not_timed(doubled: str) -> None:
    for row in measure(names=f"{doubled}").rows:
        assert row.verdict == "wrong"
        assert row.deviation is not None
        assert row.deviation > 1
        assert row.timing is None
        assert row.peers == ()


@pytest.mark.parametrize(("end", "distance"), [("upper", -1e-12), ("lower", 1e-12), ("upper", math.inf)])
def test_an_interval_beside_the_truth_is_called_wrong(end: str, distance: float, monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = lambda x, axis: replace(sm.bounds(x, axis), **{end: sm.logsumexp(x, axis) + distance})
    monkeypatch.setitem(SUMS, "bounds", replace(SUMS["bounds"], function=bounds))
    assert {row.verdict for row in measure(names="bounds", dtypes=("float64",)).rows} == {"wrong"}


@pytest.mark.parametrize("reference", [LOSSES["cross_entropy"].reference, None])
def test_the_speed_of_a_loss_that_is_wrong_or_has_no_definition_is_not_told(
    reference: Callable | None, monkeypatch: pytest.MonkeyPatch, run: Run, tmp_path: Path
) -> None:
    tripled = lambda x, target, **options: 3 * sm.cross_entropy(x, target, **options)
    planted = replace(LOSSES["cross_entropy"], name="planted", function=tripled, reference=reference)
    monkeypatch.setitem(LOSSES, "planted", planted)
    monkeypatch.setitem(PEERS, "planted", PEERS["cross_entropy"])
    code, out, err = run("--maps=planted,softmax", *TINY, f"--json={tmp_path / 'b.json'}")
    verdict = "unchecked" if reference is None else "wrong"
    assert re.search(rf"^planted +{verdict} *$", out, re.MULTILINE)
    assert ("no definition to check against: planted\n" in out, code) == ((True, 0) if reference is None else (False, 1)), err
    benchmark = read(tmp_path / "b.json")
    assert [row.verdict for row in benchmark.rows if row.timing is None and not row.peers] == [verdict] * 2
    assert all(row.name == "softmax" for row in benchmark.rows if row.timing is not None)
    assert {overhead.name for overhead in benchmark.overheads} == {"softmax"}
    assert not benchmark.not_reached


def test_the_speed_of_a_sum_without_a_definition_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SUMS, "logsumexp", replace(SUMS["logsumexp"], reference=None))
    result = measure(names="logsumexp")
    assert [(row.verdict, row.timing, row.peers) for row in result.rows] == [("unchecked", None, ())] * 2
    assert not result.overheads


def test_a_wrong_map_makes_the_command_fail_at_the_end(doubled: str, run: Run, tmp_path: Path) -> None:
    code, out, err = run("--maps=softmax,doubled", *TINY, f"--json={tmp_path / 'b.json'}")
    assert (code, err.count("\n")) == (1, 1)
    assert "2 of 4 results are wrong: doubled on 4x8, float32, forward: " in err
    assert re.search(r"^doubled +wrong *$", out, re.MULTILINE)
    assert [row["verdict"] for row in json.loads((tmp_path / "b.json").read_text())["rows"]] == ["right"] * 2 + ["wrong"] * 2


def test_what_is_wrong_has_no_overheads(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = replace(LOSSES["cross_entropy"], function=lambda x, target, **options: 2 * sm.cross_entropy(x, target, **options))
    monkeypatch.setitem(LOSSES, "cross_entropy", wrong)
    assert [overhead.name for overhead in measure(names="cross_entropy,softmax").overheads] == ["softmax"] * 2


def test_a_wrong_gradient_of_a_loss_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: torch.Tensor, target: torch.Tensor, **options: str) -> torch.Tensor:
        return sm.cross_entropy(2 * x - x.detach(), target, **options)

    monkeypatch.setitem(LOSSES, "cross_entropy", replace(LOSSES["cross_entropy"], function=function))
    assert [row.verdict for row in measure(names="cross_entropy").rows] == ["right", "wrong"]


def test_a_bound_that_does_not_hold_the_truth_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    for shift, verdict in ((0.0, "right"), (-1e-3, "wrong"), (1e-3, "wrong")):
        function = lambda x, axis, shift=shift: sm.bounds(x + shift, dim=axis)
        monkeypatch.setitem(SUMS, "bounds", replace(SUMS["bounds"], function=function))
        assert [row.verdict for row in measure(names="bounds").rows] == [verdict]


@pytest.mark.parametrize("dtypes", [("float32",), ("float64",), ("bfloat16",)])
def test_an_interval_that_is_wider_than_its_definition_is_called_wrong(
    dtypes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not measure("3x40,4x1000", "bounds", dtypes=dtypes).wrong
    among = lambda x, axis: sm.bounds(x, axis, among=("basic", "mean"))  # right, and no wider than log n
    monkeypatch.setitem(SUMS, "bounds", replace(SUMS["bounds"], function=among))
    assert len(measure("3x40,4x1000", "bounds", dtypes=dtypes).wrong) == 2


BAD_ROWS = {"1 mod 4": list(range(1, 40, 4)), "the end of a part": [18, 19], "one": [7]}


@pytest.fixture
def two_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definitions, "COMPARED", 1)
    monkeypatch.setattr(definitions, "LEAST_ROWS", 2)


@pytest.mark.usefixtures("two_compared")
@pytest.mark.parametrize("bad", BAD_ROWS.values(), ids=BAD_ROWS)
def test_rows_that_are_wrong_where_none_is_compared_are_found(bad: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(z: torch.Tensor) -> torch.Tensor:
        p = z.softmax(-1)
        return p.index_copy(0, torch.tensor(bad), p[bad].flip(-1))  # whose mass is right

    monkeypatch.setitem(MAPS, "planted", replace(MAPS["softmax"], name="planted", kernel=None, forward=forward))
    rows = measure("40x8", "planted,softmax").rows
    assert [row.verdict for row in rows] == ["right"] * 2 + ["wrong"] * 2
    assert all("the same rows in another order" in row.problem for row in rows if row.verdict == "wrong")


@pytest.mark.usefixtures("two_compared")
@pytest.mark.parametrize("of_values", [True, False])
def test_rows_of_a_loss_that_are_wrong_where_none_is_compared_are_found(of_values: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: torch.Tensor, target: torch.Tensor, **options: str) -> torch.Tensor:
        weights = torch.ones(len(x), 1).index_fill(0, torch.tensor(BAD_ROWS["1 mod 4"]), 1.01)
        moved = weights * x
        return sm.cross_entropy(moved if of_values else moved - (moved - x).detach(), target, **options)

    monkeypatch.setitem(LOSSES, "cross_entropy", replace(LOSSES["cross_entropy"], function=function))
    assert [row.verdict for row in measure("40x8", "cross_entropy").rows] == ["wrong" if of_values else "right", "wrong"]


def test_the_ends_of_parts_are_compared_and_other_rows_for_each_subject_shape_and_seed() -> None:
    shape, given = Shape((256, 32000), 1), subjects()
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    chosen = [definitions.compared_rows(shape, seed).tolist() for seed in range(20)]
    torch.set_num_threads(before)
    assert all({0, 127, 128, 255} <= {*rows} and len(rows) == definitions.LEAST_ROWS for rows in chosen)
    assert len({row for rows in chosen for row in rows}) > 20
    seeds = {
        problem(given[name], read_shape(text), torch.float32, seed=seed).seed
        for name in ("softmax", "logsumexp", "cross_entropy")
        for text in ("4x8", "8x4")
        for seed in (0, 1)
    }
    assert len(seeds) == 12


def turning_wrong(function: Callable, calls: int) -> Callable:
    """Right for so many calls."""
    seen = []

    def planted(*arguments: object, **options: object) -> object:
        seen.append(1)
        return function(*arguments, **options) * (1 if len(seen) <= calls else 2)

    return planted


def test_what_turns_wrong_while_it_is_timed_is_called_wrong(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    function = turning_wrong(sm.logsumexp, 2)  # as it is, and in another order
    monkeypatch.setitem(SUMS, "planted", replace(SUMS["logsumexp"], function=function))
    monkeypatch.setitem(PEERS, "planted", PEERS["logsumexp"])
    code, _, err = run("--maps=planted", *TINY, f"--json={tmp_path / 'b.json'}")
    assert code == 1
    assert "planted on 4x8, float32, forward: after it was timed: " in err
    for row in read(tmp_path / "b.json").rows:
        assert (row.verdict, row.timing, row.peers) == ("wrong", None, [])


def test_a_peer_that_turns_wrong_while_it_is_timed_gets_no_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    function = turning_wrong(lambda given: sm.logsumexp(given.x, 1), 1)
    monkeypatch.setitem(PEERS, "logsumexp", (Peer("torch", "torch", function),))
    first, _ = measure(names="logsumexp").rows
    assert (first.verdict, first.ratio("torch")) == ("right", None)
    assert first.peers[0].problem.startswith("after it was timed: ")


def test_a_wrong_result_on_few_scores_makes_the_command_fail(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    function = lambda x, target, **options: (2 if x.shape[1] == 16 else 1) * sm.cross_entropy(x, target, **options)
    monkeypatch.setitem(LOSSES, "cross_entropy", replace(LOSSES["cross_entropy"], function=function))
    code, out, err = run("--maps=cross_entropy,softmax", *TINY, f"--json={tmp_path / 'b.json'}")
    assert code == 1
    assert "1 of 5 results are wrong: cross_entropy on 16 scores: " in err
    assert "not reached" not in err
    assert re.search(r"^cross_entropy, softmaxima +wrong +wrong +wrong *$", out, re.MULTILINE)
    wrong, *others = read(tmp_path / "b.json").overheads[::-1]
    assert wrong.problem
    assert [overhead.problem for overhead in others] == ["", ""]


def test_nan_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MAPS, "nothing", replace(MAPS["softmax"], name="nothing", kernel=None, forward=lambda z: z * torch.nan))
    assert len(measure(names="nothing").wrong) == 2


def test_a_map_that_raises_is_wrong_and_the_others_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(z: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no kernel")

    monkeypatch.setitem(MAPS, "broken", replace(MAPS["softmax"], name="broken", kernel=None, forward=fail))
    result = measure(names="broken,softmax")
    assert {row.name: row.problem for row in result.rows} == {"broken": "RuntimeError: no kernel", "softmax": ""}


@pytest.mark.parametrize(("factor", "cell"), [(2.0, "differs"), (None, "fails")])
def test_a_peer_that_computes_something_else_gets_no_ratio(
    factor: float | None, cell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PEERS, "sparsemax", (Peer("entmax", "entmax", lambda given: sm.sparsemax(given.x) * factor),))
    result = measure(names="sparsemax")
    for row in result.rows:
        assert row.verdict == "right"
        assert row.timing is not None
        assert row.ratio("entmax") is None
    assert cell in markdown_table(result)


# How it is timed


def test_calls_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "RUNS", 5)
    order: list[str] = []
    calls = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
    times = clocks.take_turns(calls, 0.0, most=1)
    assert "".join(order) == "ab" * 6  # once to warm up
    assert [len(found) for found in times.values()] == [5, 5]

    order.clear()
    times = clocks.take_turns(calls, 0.0, most=3)
    assert "".join(order) == "ab" + "aabb" * 5  # the first of each turn warms up again
    assert [len(found) for found in times.values()] == [5, 5]

    monkeypatch.setattr(clocks, "TURNS", 1e-9)  # as long as a burst may be
    order.clear()
    times = clocks.take_turns(calls, 1e-9, most=3)
    assert "".join(order) == "ab" + "aaaabbbb" * 5
    assert [list(map(len, found.values())) for found in times.values()] == [[3] * 5] * 2


def test_a_slow_call_runs_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "RUNS", 5)
    seconds = {"quick": 0.001, "slow": 3.0}
    clock = [0.0]
    monkeypatch.setattr(clocks.time, "perf_counter", lambda: clock[0])

    def spend(amount: float) -> None:
        clock[0] += amount

    calls = {name: (lambda amount=amount: spend(amount)) for name, amount in seconds.items()}
    times = clocks.take_turns(calls, 0.0)
    assert {name: len(found) for name, found in times.items()} == {"quick": 5, "slow": 2}
    assert {name: clocks.median_round(found) for name, found in times.items()} == pytest.approx(seconds)


def test_a_call_that_was_slow_once_is_compared_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"quick": iter([3.0, *[0.2] * 100]), "slow": iter([3.0] * 100)}
    clock = [0.0]
    monkeypatch.setattr(clocks.time, "perf_counter", lambda: clock[0])

    def spend(name: str) -> None:
        clock[0] += next(seconds[name])

    times = clocks.take_turns({name: (lambda name=name: spend(name)) for name in seconds}, 2.0)
    quotient = clocks.Quotient.of(times["slow"], times["quick"])
    assert quotient is not None
    assert (quotient.median, quotient.turns) == (pytest.approx(15.0), clocks.SLOW_RUNS)


def test_the_seconds_are_spent_on_repetitions() -> None:
    assert sum(map(len, clocks.take_turns({"a": lambda: None}, 0.02)["a"].values())) > 20


def test_threads_and_grad_mode_are_what_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads(), torch.is_grad_enabled()
    seen = []
    result = bench(
        Settings(shapes=(Shape((2, 4), 1),), threads=before[0] + 1, seconds=0.0),
        choose(["softmax"]),
        lambda what: seen.append(torch.get_num_threads()),
    )
    assert set(seen) == {before[0] + 1}
    assert result.machine["threads"] == before[0] + 1
    assert (torch.get_num_threads(), torch.is_grad_enabled()) == before


def test_busy_processes_run_beside_what_is_measured_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[subprocess.Popen] = []

    class Kept(subprocess.Popen):
        def __init__(self, *args, **kwargs) -> None:
            super().__init__(*args, **kwargs)
            begun.append(self)

    monkeypatch.setattr(subprocess, "Popen", Kept)
    seen = []
    settings = Settings(shapes=(Shape((2, 4), 1),), seconds=0.0, neighbours=2)
    result = bench(
        settings, choose(["softmax"]), lambda what: seen.append([p.poll() for p in begun if "while True" in str(p.args)])
    )
    assert seen
    assert all(each == [None, None] for each in seen)
    assert all(process.returncode is not None for process in begun)
    assert "beside 2 busy processes" in made_with(result)


def test_the_ratios_beside_busy_processes_are_told_by_those_without() -> None:
    def measured(ratios: Sequence[float], **facts: int) -> Benchmark:
        peers = [(PeerResult("torch", timing=clocks.Timing(ratio, 1)),) for ratio in ratios]
        row, ours = measure(names="softmax").rows[0], clocks.Timing(1.0, 1)
        rows = [replace(row, shape=f"{i}x8", timing=ours, peers=its) for i, its in enumerate(peers)]
        return replace(measure(names="softmax"), rows=rows, machine={"threads": 1, "processor": "any", **facts})

    told = beside_others(measured((2, 2, 2)), measured((1, 4, 0.5), neighbours=1))
    assert told.startswith(
        "Beside 1 busy process the ratios to torch are 0.500 times as large in the median of 3 (0.250 to 2.00 for"
    )
    assert told.endswith("and 2 of them at least 1, where 3 are without.")
    assert beside_others(measured(()), measured((), neighbours=1)) == ""


def test_every_part_is_announced() -> None:
    shapes = (Shape((2, 4), 1), Shape((3,), 0))
    settings, chosen, seen = Settings(shapes=shapes, seconds=0.0, lengths=(2,)), choose(["softmax", "arcface"]), []
    bench(settings, chosen, seen.append)
    assert len(seen) == len(plan.plan(settings, chosen))


def test_a_quotient_is_that_of_the_same_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(clocks.time, "perf_counter", lambda: clock[0])

    def spend(amount: float) -> None:  # on a machine that becomes slower and slower
        clock[0] += amount * (1 + clock[0])

    calls = {"ours": [lambda: spend(1e-3)], "theirs": [lambda: spend(2e-3)]}
    found = clocks.measure(clocks.Clock(), calls, 2.0)
    assert found.times["ours"].called > 1.5e-3
    quotient = found.quotients["theirs"]
    assert quotient.turns > 10
    assert 1.9 < quotient.low <= quotient.median <= quotient.high < 2.2


def test_a_slow_call_is_compared_with_what_ran_in_the_same_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, load = [0.0], [1.0]
    monkeypatch.setattr(clocks.time, "perf_counter", lambda: clock[0])

    def spend(amount: float) -> None:
        clock[0] += amount * load[0]

    def slow() -> None:  # the machine becomes slower from pass to pass
        load[0] *= 3
        spend(1.0)

    found = clocks.measure(clocks.Clock(), {"slow": [slow], "quick": [lambda: spend(1e-3)]}, 0.1)
    quotient = found.quotients["quick"]
    assert (quotient.low, quotient.high) == pytest.approx((1e-3, 1e-3))
    assert quotient.turns == clocks.SLOW_RUNS


def test_the_interval_holds_half_of_the_turns_and_of_few_turns_more() -> None:
    for count, inside in ((2, 2), (5, 5), (8, 8), (12, 10), (100, 50)):
        passes = range(1, count + 1)
        found = Quotient.of({number: [float(number)] for number in passes}, {number: [1.0] for number in passes})
        assert found is not None
        assert (found.high - found.low + 1, found.turns) == (inside, count)
        assert found.median == (count + 1) / 2
        assert found.reversed.spread == pytest.approx(found.spread)
    assert Quotient.of({1: [1.0]}, {1: [1.0]}) is None


def test_the_floor_takes_turns_with_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def recorded(clock: clocks.Clock, calls: dict, *more: object) -> clocks.Measured:
        seen.append(tuple(calls))
        return clocks.measure(clock, calls, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(tasks, "measure", recorded)
    monkeypatch.setattr(clocks, "RUNS", 2)
    (row, _) = measure(names="softmax", peers=("torch",)).rows
    assert seen.count(("softmaxima", "torch", "floor")) == 2
    assert row.floor is not None
    assert row.floor.turns == 2


# What comes out


def with_quotient(quotient: Quotient) -> Benchmark:
    """softmax beside torch, with this quotient."""
    found = measure(names="softmax", peers=("torch",))
    found.rows = [replace(row, peers=(replace(row.peers[0], quotient=quotient),), floor=None) for row in found.rows]
    return found


def printed(found: Benchmark) -> str:
    text = io.StringIO()
    show_benchmark(found, Console(width=140, file=text))
    return text.getvalue()


@pytest.mark.parametrize(
    ("quotient", "cell", "words", "symbol"),
    [
        (Quotient(1.024, 0.966, 1.083, 25), "≈ 1", "≈ 1 (0.97–1.08)", "circle-open"),
        (Quotient(1.204, 1.101, 1.283, 25), "1.2", "1.20 (1.10–1.28)", "circle"),
        (Quotient(126.3, 119.4, 130.9, 2), "126", "126 (119–131)", "circle"),
        (Quotient(3.0, 1.4, 9.0, 5), "3.0", "3.0 (1.4–9.0), unreliable", "x-thin-open"),
    ],
)
def test_an_interval_with_1_in_it_is_not_called_faster_and_a_wide_one_unreliable(
    quotient: Quotient, cell: str, words: str, symbol: str, capsys: pytest.CaptureFixture
) -> None:
    found = with_quotient(quotient)
    (line,) = [line for line in markdown_table(found).splitlines() if "`softmax`" in line]
    assert line.split(" | ")[-1] == f"{words} |"
    (line,) = [line for line in printed(found).splitlines() if line.startswith("softmax  ")]
    assert f" {cell} " in line
    assert (" ? " in line) == (symbol == "x-thin-open")
    assert {each for trace in picture(found).data for each in trace.marker.symbol} == {symbol}
    finish(found)
    assert ("unreliable, for their turns disagree by more than a factor 2: softmax on 4x8" in capsys.readouterr().out) == (
        symbol == "x-thin-open"
    )


def test_a_file_without_quotients_is_read_and_its_ratios_are_those_of_medians() -> None:
    record = as_json(with_quotient(Quotient(1.0, 0.9, 1.1, 5)))
    for row in record["rows"]:
        del row["floor"]
        del row["peers"][0]["quotient"]
    for row in from_json(record).rows:
        assert row.spread is None
        assert row.timing is not None
        assert row.peers[0].timing is not None
        assert row.ratio("torch") == row.peers[0].timing.over(row.timing)
    assert "(" not in markdown_table(from_json(record))


def test_json_holds_everything_and_comes_back(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "RUNS", 2)
    path = tmp_path / "bench.json"
    code, out, err = run("--maps=softmax,sparsemax,entmax_loss", *TINY, f"--json={path}")
    assert (code, err) == (0, "")
    assert f"written: {path}" in out
    record = json.loads(path.read_text())
    assert record.keys() == {
        *("date", "commit", "device", "machine", "versions", "dtypes", "seconds", "seed", "peers", "left_out"),
        *("grounds", "checks", "rows", "overheads", "not_reached", "elapsed"),
    }
    assert record["machine"].keys() == {"processor", "cores", "threads"}
    assert record["versions"].keys() == {"softmaxima", "torch", "numpy", "scipy", "entmax", "python"}
    assert record["commit"] is None or re.match(r"[0-9a-f]{7,}(-dirty)?$", record["commit"])
    assert len(record["rows"]) == 6
    for row in record["rows"]:
        assert row.keys() == {
            *("name", "title", "kind", "shape", "n", "dtype", "direction", "bytes", "verdict", "deviation", "problem"),
            *("timing", "gigabytes_a_second", "share_of_copy", "peers", "floor"),
        }
        assert row["timing"].keys() == {"called", "runs"}
        for peer in row["peers"]:
            assert peer.keys() == {"label", "deviation", "problem", "timing", "quotient", "ratio"}
            assert peer["quotient"].keys() == {"median", "low", "high", "turns"}
            assert peer["quotient"]["low"] <= peer["ratio"] == peer["quotient"]["median"] <= peer["quotient"]["high"]
    assert as_json(from_json(record)) == record
    assert [path.name for path in path.parent.iterdir()] == ["bench.json"]


def test_numbers_that_are_not_finite_become_null(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MAPS, "nothing", replace(MAPS["softmax"], name="nothing", kernel=None, forward=lambda z: z * torch.nan))
    assert [row["deviation"] for row in as_json(measure(names="nothing"))["rows"]] == [None, None]


@pytest.mark.parametrize("width", [80, 140])
def test_the_tables_fit_the_terminal(width: int, doubled: str) -> None:
    result = measure("4x128", f"{doubled},softmax,sparsemax,sparse_softmax_loss,elastic_cross_entropy")
    text = io.StringIO()
    show_benchmark(result, Console(width=width, file=text))
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert sum(line.startswith("  + backward ") for line in lines) == 5  # no cell is wrapped
    assert any(line.startswith("sparse_softmax_loss k=10 ") for line in lines)
    assert "out.copy_(x)" in text.getvalue()


def test_table_and_picture_show_every_ratio_that_there_is() -> None:
    result = measure("4x8,2x128", "softmax,sparsemax,sparsemax_loss,taylor_softmax")
    lines = markdown_table(result).splitlines()
    assert lines[0] == "| times as fast as |  | 4 × 8 | 2 × 128 |"
    assert [line.split(" | ")[:2] for line in lines[2:]] == [
        ["| `softmax`", "torch"],
        ["| `sparsemax`", "entmax"],
        ["| `sparsemax`", "entmax k=100"],
        ["| `sparsemax_loss` and its gradient", "entmax"],
        ["| `sparsemax_loss` and its gradient", "entmax k=100"],
    ]
    drawn = [value for trace in picture(result).data for value in trace.x if value is not None]
    assert len(drawn) == sum(row.ratio(label) is not None for row in result.rows for label in labels(result))


def test_the_table_of_sums_shows_ratios_and_the_time_where_there_is_no_peer() -> None:
    lines = markdown_table(measure("4x8", "logaddexp,compensated_logsumexp"), LOGSUMEXP_ROWS).splitlines()
    assert [line.split(" | ")[:2] for line in lines[2:]] == [["| `logaddexp`", "torch"], ["| `compensated_logsumexp`", ""]]
    assert lines[-1].endswith(" ns a score |")


def test_numbers_have_no_exponents() -> None:
    assert [number(value) for value in (0.0, 1e-5, 0.999, 12.34, 123456.0, float("inf"))] == [
        *("0", "0.0000100", "0.999", "12.3", "123456", "inf")
    ]


def test_the_commit_is_that_of_the_checkout_or_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    elsewhere = tmp_path / "__init__.py"
    elsewhere.touch()
    monkeypatch.setattr(sm, "__file__", str(elsewhere))
    assert machine.commit() is None
    assert "commit" not in made_with(measure(names="softmax"))


# The command


def test_help_answers_without_torch_and_names_every_option() -> None:
    code = (
        "import sys\n"
        "from softmaxima_lab.commands import main\n"
        "try:\n    main(['bench', '--help'])\nfinally:\n    assert 'torch' not in sys.modules\n"
    )
    help = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for option in ("--maps", "--shapes", "--peers", "--device", "--dtype", "--threads", "--budget", "--json", "--quick"):
        (line,) = [line for line in help.splitlines() if line.strip("│ ").startswith(f"{option} ")]
        assert len(line.strip("│ ").split()) > 3, line


def test_names_are_found_in_any_spelling(run: Run) -> None:
    code, out, _ = run("--maps", "Cross-Entropy, SPARSEMAX", "--maps=logsumexp", *TINY)
    assert code == 0
    assert [line.split()[0] for line in out.splitlines() if re.match(r"[a-z_0-9]+ +[\d.]+ +[\d.]+ ", line)] == [
        *("logsumexp", "sparsemax", "cross_entropy")
    ]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--maps=hardmax",), "--maps: there is no map, loss or sum 'hardmax'; choose among: logsumexp, weighted_logsumexp"),
        (("--peers=jax",), "--peers: there is no peer 'jax' on cpu; choose among: torch, entmax, scipy"),
        (("--shapes=axb",), "--shapes: 'axb' is not a shape; write sizes joined by x"),
        (("--shapes=4x",), "'4x' is not a shape"),
        (("--shapes=-4x3",), "'-4x3' is not a shape"),
        (("--shapes=4x3@",), "'4x3@' is not a shape"),
        (("--shapes=1.5x3",), "'1.5x3' is not a shape"),
        (("--shapes=4x0",), "--shapes: every size must be at least 1, got '4x0'"),
        (("--shapes=4x3@2",), "--shapes: the axis of '4x3@2' must be in [-2, 1]"),
        (
            ("--shapes=4x3@0", "--maps=cross_entropy"),
            "--shapes: losses are measured on rows x classes, as in 256x32000, got only 4x3@0",
        ),
        (("--shapes=99999999999x99999999999", "--maps=softmax"), "99999999999x99999999999 does not fit in memory"),
        (("--threads=0",), "--threads must be from 1 to 1024, got 0"),
        (("--threads=100000",), "--threads must be from 1 to 1024, got 100000"),
        (("--neighbours=-1",), "--neighbours must be from 0 to 1024, got -1"),
        (("--maps=,",), "--maps: no name is given; leave it out to measure all"),
        (("--threads=two",), "--threads"),
        (("--dtype=int8",), "there is no dtype 'int8' here; choose among: float32, float64, bfloat16, float16"),
        (("--budget=0",), "--budget must be more than 0 seconds, got 0"),
        (("--device=cuda",), "--device: torch finds no CUDA device here"),
        (("4x8",), "4x8"),
        (("--json=.",), "it is a directory"),
    ],
)
def test_wrong_use_exits_2_with_one_line(arguments: tuple[str, ...], part: str, run: Run) -> None:
    code, out, err = run(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("softmaxima: ")
    assert part in err


def test_a_place_that_cannot_be_written_to_is_refused_before_anything_runs(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for directory in ("file", "file/absent"):
        code, out, err = run(f"--json={tmp_path / directory / 'b.json'}", *TINY)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "--json: cannot write" in err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_peers_that_are_not_installed_are_left_out_and_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("entmax", "scipy", "scipy.special"):
        monkeypatch.setitem(sys.modules, name, None)  # which an import finds missing
    code, out, _ = run("--maps=softmax,sparsemax", *TINY)
    assert code == 0
    assert "left out: entmax, for it is not installed; scipy, for it is not installed\n" in out
    assert "×torch" in out
    assert "×entmax" not in out


def test_only_the_named_peers_take_part(run: Run) -> None:
    _, out, _ = run("--maps=softmax", "--peers=scipy", *TINY)
    assert "×scipy" in out
    assert "×torch" not in out


def test_shapes_that_losses_do_not_take_are_named(run: Run) -> None:
    code, out, _ = run("--maps=softmax,cross_entropy", "--shapes=4x8,4x8@0", "--threads=1")
    assert code == 0
    assert "losses are measured on rows x classes, so not on 4x8@0\n" in out


def test_quick_takes_small_shapes_unless_others_are_named(run: Run) -> None:
    _, out, _ = run("--quick", "--maps=softmax", "--threads=1")
    assert [shape for shape in QUICK_SHAPES if f"\n{shape} " in out] == list(QUICK_SHAPES)
    _, out, _ = run("--quick", "--maps=softmax", *TINY)
    assert "\n4x8 " in out


@pytest.mark.parametrize(
    ("text", "shape"),
    [("7", Shape((7,), 0)), ("4x8", Shape((4, 8), 1)), ("4X8@-2", Shape((4, 8), 0)), ("2x3x4@1", Shape((2, 3, 4), 1))],
)
def test_shapes_are_read_and_written(text: str, shape: Shape) -> None:
    assert read_shape(text) == shape
    assert read_shape(str(shape)) == shape


def test_settings_in_code_are_checked_too() -> None:
    for wrong in ({"peers": ("jax",)}, {"dtypes": ("int8",)}, {"threads": 0}, {"device": "tpu"}, {"budget": math.nan}):
        with pytest.raises(InputError):
            Settings(**wrong)
