"""The benchmark: a row for everything, nothing timed that is wrong, peers that compute the same, and one line for wrong use."""

from __future__ import annotations

import io
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from rich.console import Console

import softmaxima as sm
from conftest import Run
from softmaxima.bench import clocks, machine, plan, tasks
from softmaxima.bench.peers import PEERS, Peer, stated_peers
from softmaxima.bench.plan import QUICK_SHAPES, Settings
from softmaxima.bench.results import Benchmark, as_json, from_json, read
from softmaxima.bench.run import bench
from softmaxima.bench.subjects import DIRECTIONS, Shape, choose, compulsory_bytes, read_shape, subjects
from softmaxima.bench.sums import SUMS
from softmaxima.cli.bench import show_benchmark
from softmaxima.core.numbers import InputError
from softmaxima.losses import REGISTRY as LOSSES
from softmaxima.maps import REGISTRY as MAPS
from softmaxima.report.bench import LOGSUMEXP_ROWS, labels, made_with, markdown_table, number, picture

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
        assert ground.floor > 0
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
    for shift, verdict in ((0.0, "right"), (-1.0, "wrong")):  # 8 scores: no bound is as wide as 1 + LSE − max
        function = lambda x, axis, shift=shift: sm.histogram_bounds(x + shift, dim=axis)
        monkeypatch.setitem(SUMS, "bounds", replace(SUMS["bounds"], function=function))
        assert [row.verdict for row in measure(names="bounds").rows] == [verdict]


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
    assert "".join(order) == "ab" + "aaaabbbb" * 2  # the first of each turn warms up again
    assert [len(found) for found in times.values()] == [6, 6]


def test_a_slow_call_runs_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "RUNS", 5)
    seconds = {"quick": 0.001, "slow": 3.0}
    clock = [0.0]
    monkeypatch.setattr(clocks.time, "perf_counter", lambda: clock[0])

    def spend(amount: float) -> None:
        clock[0] += amount

    calls = {name: (lambda amount=amount: spend(amount)) for name, amount in seconds.items()}
    times = clocks.take_turns(calls, 0.0)
    assert {name: len(found) for name, found in times.items()} == {"quick": 20, "slow": 2}
    assert {name: found[-1] for name, found in times.items()} == pytest.approx(seconds)


def test_the_seconds_are_spent_on_repetitions() -> None:
    assert len(clocks.take_turns({"a": lambda: None}, 0.02)["a"]) > 20


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


def test_every_part_is_announced() -> None:
    shapes = (Shape((2, 4), 1), Shape((3,), 0))
    settings, chosen, seen = Settings(shapes=shapes, seconds=0.0, lengths=(2,)), choose(["softmax", "arcface"]), []
    bench(settings, chosen, seen.append)
    assert len(seen) == len(plan.plan(settings, chosen))


# What comes out


def test_json_holds_everything_and_comes_back(run: Run, tmp_path: Path) -> None:
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
            *("timing", "gigabytes_a_second", "share_of_copy", "peers"),
        }
        assert row["timing"].keys() == {"called", "runs"}
        for peer in row["peers"]:
            assert peer.keys() == {"label", "deviation", "problem", "timing", "ratio"}
            assert peer["ratio"] == pytest.approx(peer["timing"]["called"] / row["timing"]["called"])
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
        "from softmaxima.cli import main\n"
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
        (("--maps=,",), "--maps: no name is given; leave it out to measure all"),
        (("--threads=two",), "--threads"),
        (("--dtype=int8",), "there is no dtype 'int8' here; choose among: float32, float64, bfloat16, float16"),
        (("--budget=0",), "--budget must be more than 0 seconds, got 0"),
        (("--device=cuda",), "--device: torch finds no CUDA device here"),
        (("4x8",), "4x8"),
        (("--json=.",), "is a directory; give a file"),
    ],
)
def test_wrong_use_exits_2_with_one_line(arguments: tuple[str, ...], part: str, run: Run) -> None:
    code, out, err = run(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("softmaxima: ")
    assert part in err


def test_a_place_that_cannot_be_written_to_is_refused_before_anything_runs(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for directory in ("file", "absent"):
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
