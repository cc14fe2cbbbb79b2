"""The benchmark: properties over the cases of all groups, each on a size that takes a moment."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import softmaxima as sm
from conftest import Run
from softmaxima.base.numbers import InputError
from softmaxima.maps import REGISTRY as MAPS
from softmaxima_lab.bench import attention, clock, dask, graph, heads, machine, rows, run
from softmaxima_lab.bench.case import OURS, Group, Peer, Place, Wanted
from softmaxima_lab.bench.clock import Quotient
from softmaxima_lab.bench.memory import peak_memory
from softmaxima_lab.bench.peers import PEERS
from softmaxima_lab.bench.peers import Peer as PeerOfMaps
from softmaxima_lab.bench.record import Benchmark, as_json, from_json, read
from softmaxima_lab.bench.run import GROUPS, Settings, bench, plan
from softmaxima_lab.bench.sums import SUMS
from softmaxima_lab.commands.bench import finish, show_benchmark
from softmaxima_lab.pages import bench as pages
from softmaxima_lab.pages import bench_figures, bench_maps, bench_tables

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
SMALL = {
    "kernels": "31",
    "maps": "3x120",  # above entmax's partial sort
    "attention": "40",
    "heads": "20x8x300",
    "graph": "3000",
    "ranks": "2x4x64",
    "dask": "32x128@1/16x64",
}
PEERS_OF = {
    "attention": {"torch"},
    "heads": {heads.TORCH, heads.PARTS, heads.COMPILED},
    "graph": {graph.INDEX, graph.PEER},
    "ranks": {"gathered", "loss_parallel"},
    "dask": {dask.PLAIN},
}


@pytest.fixture(scope="module", autouse=True)
def _brief() -> Iterator[None]:
    def place(self: Group, device: str, peers: tuple[str, ...], quick: bool, seed: int = 0) -> Place:
        return Place(device, peers, 0.0, None if self.passes is None else 2, seed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Group, "place", place)
        patch.setattr(clock, "LEAST_TURNS", 2)
        patch.setattr(rows, "FEW_CALLS", 1)
        yield


def measure(*cases: str, shapes: str = "4x8", **settings: Any) -> Benchmark:
    return bench(Settings(cases=cases, shapes=tuple(shapes.split(",")), threads=1, **settings))


_found: dict[str, Benchmark] = {}


@pytest.fixture(params=SMALL)
def group(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def found(group: str) -> Benchmark:
    if group not in _found:
        cases = {"kernels": ["kernels/softmax"], "heads": ["heads/cross_entropy", "heads/sparsemax"]}.get(group, [group])
        _found[group] = measure(*cases, shapes=SMALL[group], quick=True)
    return _found[group]


# Properties of all groups


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_case_is_right_and_timed_beside_every_peer(group: str, found: Benchmark) -> None:
    assert not found.wrong, [(str(result.case), result.problem) for result in found.wrong]
    assert not found.not_reached
    assert {result.case.group for result in found.results} == {group}
    assert len({result.case for result in found.results}) == len(found.results)
    for result in found.results:
        assert (result.seconds is not None and result.seconds > 0) == GROUPS[group].is_timed
        assert result.peers.keys() <= PEERS_OF.get(group, result.peers.keys())
        for name, peer in result.peers.items():
            assert not peer.problem
            assert result.ratio(name) is not None
            if peer.ratio is not None:
                assert peer.ratio.low <= peer.ratio.median <= peer.ratio.high
    assert {name for result in found.results for name in result.peers} >= PEERS_OF.get(group, set())


def test_a_record_holds_what_is_shown_and_comes_back(group: str, found: Benchmark, tmp_path: Path) -> None:
    from softmaxima_lab.bench.record import write

    write(found, tmp_path / "found.json")
    assert [path.name for path in tmp_path.iterdir()] == ["found.json"]
    record = json.loads((tmp_path / "found.json").read_text())
    assert as_json(read(tmp_path / "found.json")) == as_json(from_json(record)) == record
    assert record["machine"].keys() == {"processor", "cores", "threads"}
    assert {"softmaxima", "torch", "python", *GROUPS[group].extra} <= record["versions"].keys()
    lines = (tmp_path / "found.json").read_text().splitlines()
    assert sum(line.startswith('  {"group": ') for line in lines) == len(found.results)


@pytest.mark.parametrize("width", [80, 140])
def test_every_result_has_its_row_in_the_terminal_and_on_the_page(group: str, found: Benchmark, width: int) -> None:
    text = io.StringIO()
    show_benchmark(found, Console(width=width, file=text))
    assert max(map(len, text.getvalue().splitlines())) <= width
    if group not in pages.PAGES:
        assert f"{len(found.results)} of {len(found.results)} are right" in text.getvalue()
        return
    page, markdown = pages.PAGES[group], bench_tables.markdown(found, page=pages.PAGES[group])
    for result in page.rows(found):
        assert f"| {page.title(result)} |" in markdown
        assert width == 80 or page.title(result).split(",")[0] in text.getvalue()
    for table in bench_tables.tables(found, page):
        assert all(len(row) == len(table.columns) for row in table.rows)
    assert f"commit {found.commit}" in markdown
    assert found.date in markdown


def test_peers_that_are_not_wanted_take_no_part(group: str) -> None:
    for result in measure(f"{group}/{NAMES[group]}", shapes=SMALL[group], quick=True, peers=()).results if group != "ranks" else ():
        assert result.peers.keys() <= {"floor", graph.INDEX} or result.case.name == rows.COPY


NAMES = {
    "kernels": "softmax", "maps": "sparsemax", "attention": "sparsemax", "heads": "sparsemax", "graph": "sparsemax",
    "ranks": "logsumexp", "dask": "memory",
}  # fmt: skip


def make_wrong(patch: pytest.MonkeyPatch) -> None:
    """What groups call ours, times 1.01."""

    def spoilt(function: Callable) -> Callable:
        return lambda *given, **options: 1.01 * function(*given, **options)

    for name in ("sparsemax", "attention", "segment_map"):
        patch.setattr(sm, name, spoilt(getattr(sm, name)))
    patch.setitem(dask.WAYS, OURS, spoilt(dask.WAYS[OURS]))


@pytest.mark.parametrize("name", ["maps", "attention", "graph", "dask"])
def test_what_is_wrong_is_not_timed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wrong(monkeypatch)
    case = (f"{name}/{NAMES[name]}",)
    found = measure(*case, shapes=SMALL[name], quick=True)
    own = [result for result in found.results if result.case.name != rows.COPY]
    assert own
    for result in own:
        assert (result.verdict, result.seconds, dict(result.peers)) == ("wrong", None, {}), result
        assert "times the tolerance away from the float64 definition" in result.problem


def test_a_wrong_head_is_not_timed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    right = heads.ours

    def ours(loss: str, target: torch.Tensor) -> Callable:
        return (lambda h, w: 1.01 * right(loss, target)(h, w)) if loss == "entmax15" else right(loss, target)

    monkeypatch.setattr(heads, "ours", ours)
    code, _, err = run(
        "bench", "heads/sparsemax,heads/entmax15", "--shapes", SMALL["heads"], "--threads=1", "--peers=torch", "--quick"
    )
    assert code == 1
    assert "2 of 4 results are wrong" in err
    assert "times the tolerance away" in err


def test_pictures_show_every_time_and_ratio() -> None:
    quiet = read(BENCHMARKS / "maps-cpu.json")
    drawn = [value for trace in bench_figures.of_maps(quiet).data for value in trace.x if value is not None]
    ratios = [row.ratio(label) for row in bench_maps.shown_of_maps(quiet) for label in bench_maps.labels(quiet)]
    assert len(drawn) == len([ratio for ratio in ratios if ratio is not None])
    found = read(BENCHMARKS / "graph-cpu.json")
    bars = sum(len(trace.x) for trace in bench_figures.of_graph(found).data)
    assert bars == len(found.results) + sum(len(result.peers) for result in found.results)
    lines = [list(line.x) for line in bench_figures.of_attention(read(BENCHMARKS / "attention-cpu.json")).data if line.showlegend]
    assert lines.count([1024, 4096, 16384, 65536]) == 2  # of linear attention, causal too


# Peers and runs


def test_a_peer_that_differs_or_raises_has_no_ratio_and_ours_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    others = {"entmax": lambda given: 2 * sm.sparsemax(given.x), "entmax k=100": lambda given: 1 // 0}
    monkeypatch.setitem(PEERS, "sparsemax", tuple(PeerOfMaps(name, "entmax", way) for name, way in others.items()))
    found = measure("sparsemax")
    for row in found.of("maps", "sparsemax"):
        assert row.verdict == "right"
        assert row.seconds
        assert [bench_tables.short_ratio(row, name) for name in others] == ["differs", "fails"]
        assert "ZeroDivisionError" in row.peers["entmax k=100"].problem


@pytest.mark.parametrize("of_ours", [True, False])
def test_what_turns_wrong_while_it_is_timed_is_told(of_ours: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def turning(*given: Any, **options: Any) -> torch.Tensor:
        seen.append(1)
        return torch.logsumexp(*given, **options) * (1 if len(seen) <= 2 else 2)

    if of_ours:
        monkeypatch.setitem(SUMS, "logsumexp", replace(SUMS["logsumexp"], function=turning))
    else:
        monkeypatch.setitem(PEERS, "logsumexp", (PeerOfMaps("torch", "torch", lambda given: turning(given.x, 1)),))
    first = measure("logsumexp").of("maps", "logsumexp")[0]
    assert (first.verdict, first.ratio("torch")) == ("wrong" if of_ours else "right", None)
    problem = first.problem if of_ours else first.peers["torch"].problem
    assert problem.startswith("after it was timed: ")


def test_a_wrong_map_makes_the_command_fail_at_the_end(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    planted = replace(MAPS["softmax"], name="doubled", kernel=None, forward=lambda z: 2 * torch.softmax(z, -1))
    monkeypatch.setitem(MAPS, "doubled", planted)
    monkeypatch.setitem(SUMS, "undefined", replace(SUMS["logsumexp"], reference=None))
    code, out, err = run("bench", "doubled", "undefined", "softmax", "--shapes=4x8", f"--json={tmp_path / 'b.json'}")
    assert (code, err.count("\n")) == (1, 1)
    assert "results are wrong: doubled on 4x8, float32, forward: " in err
    assert "not timed, for there is no definition to check against: undefined" in out
    verdicts = {result.case.name: result.verdict for result in read(tmp_path / "b.json").results}
    assert verdicts == {"copy": "right", "undefined": "unchecked", "softmax": "right", "doubled": "wrong"}


def test_an_interval_with_1_in_it_is_not_called_faster_and_a_wide_one_unreliable(capsys: pytest.CaptureFixture) -> None:
    whole = measure("softmax", peers=("torch",))
    for ratio, cell, words, symbol in (
        (Quotient(1.024, 0.966, 1.083), "≈ 1", "≈ 1 (0.97–1.08)", "circle-open"),
        (Quotient(1.204, 1.101, 1.283), "1.2", "1.20 (1.10–1.28)", "circle"),
        (Quotient(126.3, 119.4, 130.9), "126", "126 (119–131)", "circle"),
        (Quotient(3.0, 1.4, 9.0), "3.0", "3.0 (1.4–9.0), unreliable", "x-thin-open"),
    ):
        of = [replace(row, peers={"torch": Peer(1.0, ratio)}) for row in whole.of("maps", "softmax") if row.case.size == "4x8"]
        found = replace(whole, results=of)
        assert f"| {words} |" in bench_maps.chosen_table(found)
        assert f"| {cell} |" in bench_tables.markdown(found, page=bench_maps.MAPS)
        assert {each for trace in bench_figures.of_maps(found).data for each in trace.marker.symbol} == {symbol}
        finish(found)
        assert ("unreliable, for their turns disagree by more than a factor 2" in capsys.readouterr().out) == ("thin" in symbol)


def test_threads_grad_mode_and_neighbours_are_what_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    before, begun, seen = (torch.get_num_threads(), torch.is_grad_enabled()), [], []

    class Kept(subprocess.Popen):
        def __init__(self, *given: Any, **options: Any) -> None:
            super().__init__(*given, **options)
            begun.append(self)

    monkeypatch.setattr(run.subprocess, "Popen", Kept)

    def look(what: str) -> None:
        seen.append((torch.get_num_threads(), [p.poll() for p in begun if "while True" in str(p.args)]))

    settings = Settings(cases=("softmax",), shapes=("2x4",), threads=before[0] + 1, neighbours=2)
    found = bench(settings, look)
    assert seen == [(before[0] + 1, [None, None])] * len(plan(settings)["maps"])
    assert found.machine["threads"] == before[0] + 1
    assert all(process.returncode is not None for process in begun)
    assert (torch.get_num_threads(), torch.is_grad_enabled()) == before
    assert "beside 2 busy processes" in bench_tables.made_with(found, bench_maps.MAPS)


def test_what_the_budget_does_not_reach_is_named(capsys: pytest.CaptureFixture) -> None:
    settings = Settings(cases=("kernels/softmax", "softmax"), shapes=("4x8",), budget=1e-9)
    found = bench(settings)
    assert not found.results
    assert len(found.not_reached) == sum(map(len, plan(settings).values()))
    with pytest.raises(SystemExit):
        finish(found)
    assert "were not reached in 0 seconds: softmax on 8, float32" in capsys.readouterr().err


def test_results_are_saved_as_they_come_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "SAVED", 0.0)
    saved, steps = [], iter(range(3))

    def starting(what: str) -> None:
        if next(steps) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench(Settings(cases=("softmax",), shapes=("4x8",)), starting, lambda found: saved.append(as_json(found)))
    assert [len(each["results"]) for each in saved] == [1, 2, 2]
    assert saved[-1]["not_reached"]


# The command


def test_help_answers_without_torch_and_names_every_option() -> None:
    code = (
        "import sys\n"
        "from softmaxima_lab.commands import main\n"
        "try:\n    main(['bench', '--help'])\nfinally:\n    assert 'torch' not in sys.modules\n"
    )
    help = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for option in ("--shapes", "--peers", "--device", "--dtype", "--threads", "--neighbours", "--budget", "--json", "--quick"):
        (line,) = [line for line in help.splitlines() if line.strip("│ ").startswith(f"{option} ")]
        assert len(line.strip("│ ").split()) > 3, line
    assert all(group in help for group in GROUPS)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ("hardmax", "CASES: there is no group, map, loss or sum 'hardmax'; choose among"),
        ("graphs/softmax", "CASES: 'graphs/softmax' is not a group or GROUP/NAME; the groups are: kernels, maps"),
        ("maps/", "CASES: 'maps/' is not a group or GROUP/NAME"),
        ("attention/softmx", "CASES: unknown map 'softmx'; did you mean 'softmax'?"),
        ("attention/log_softmax", "CASES: log_softmax is left out, for it gives logarithms of probabilities"),
        ("heads/sparsemx", "did you mean 'sparsemax'?"),
        ("graph/nonsense", "CASES must be one of softmax, logsumexp, sparsemax"),
        ("softmax --peers=jax", "--peers: there is no peer 'jax' on cpu; choose among: torch, entmax, scipy"),
        ("softmax --shapes=axb", "--shapes: 'axb' is not a shape; write sizes joined by x"),
        ("softmax --shapes=4x", "'4x' is not a shape"),
        ("softmax --shapes=1.5x3", "'1.5x3' is not a shape"),
        ("softmax --shapes=4x0", "--shapes: every size must be at least 1, got '4x0'"),
        ("softmax --shapes=4x3@2", "--shapes: the axis of '4x3@2' must be in [-2, 1]"),
        ("softmax --shapes=,", "--shapes: no name is given"),
        ("cross_entropy --shapes=4x3@0", "--shapes: losses are measured on rows x classes, as in 256x32000, got only 4x3@0"),
        ("softmax --shapes=99999999999x99999999999", "99999999999x99999999999 does not fit in memory"),
        ("attention --shapes=100000000", "--shapes: 100000000x100000000 does not fit in memory; take smaller lengths"),
        ("attention --shapes=many", "--shapes: 'many' is not a length"),
        ("heads --shapes=2x3", "--shapes: '2x3' is not rows x features x classes"),
        ("ranks --shapes=4x8x4098", "4098 classes are not the same number on each of 4 ranks; give a multiple of 4"),
        ("ranks --dtype=float64", "ranks are measured on the CPU, in float32"),
        ("dask --shapes=8x8@1/4", "needs as many sizes of a chunk as of the array"),
        ("graph --shapes=0", "--shapes: every size must be at least 1"),
        ("softmax --threads=0", "--threads must be from 1 to 1024, got 0"),
        ("softmax --neighbours=-1", "--neighbours must be from 0 to 1024, got -1"),
        ("softmax --threads=two", "--threads"),
        ("softmax --dtype=int8", "there is no dtype 'int8' here; choose among: float32, float64, bfloat16, float16"),
        ("softmax --budget=0", "--budget must be more than 0 seconds, got 0"),
        ("softmax --device=cuda", "--device: torch finds no CUDA device here"),
        ("softmax --json=.", "it is a directory"),
    ],
)
def test_wrong_use_exits_2_with_one_line_before_anything_runs(arguments: str, part: str, run: Run) -> None:
    code, out, err = run("bench", *arguments.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("softmaxima: ")
    assert part in err


def test_names_are_found_in_any_spelling_and_peers_that_are_missing_are_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "entmax", None)  # which an import finds missing
    code, out, _ = run("bench", "Cross-Entropy", "SPARSEMAX", "--shapes=4x8,4x8@0", "--threads=1")
    assert code == 0
    assert "left out: entmax, for it is not installed\n" in out
    assert "losses are measured on rows x classes, so not on 4x8@0\n" in out
    assert out.index("\nsparsemax ") < out.index("\ncross_entropy ")


@pytest.mark.parametrize(("group", "module"), [("graph", "torch_geometric"), ("dask", "dask")])
def test_a_missing_extra_says_how_to_get_it(group: str, module: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, f"softmaxima.{group}", None)
    monkeypatch.delitem(sys.modules, f"softmaxima.{group}")
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None if name == module else object())
    code, _, err = run("bench", group)
    assert code == 2
    assert f'pip install "softmaxima[{group}]"' in " ".join(err.split())


def test_memory_that_cannot_be_measured_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    def ended(*arguments: Any) -> float:
        raise InputError("the process was ended")

    monkeypatch.setattr(heads, "peak_memory", ended)
    assert run("bench", "heads", f"--shapes={SMALL['heads']}")[::2] == (2, "softmaxima: the process was ended\n")


def test_usual_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured where no more than a group is named."""
    assert list(plan(Settings())) == ["maps"]
    every = {group: plan(Settings(cases=(group,)))[group] for group in ("attention", "graph", "ranks", "dask", "heads")}
    assert {case.size for case in every["attention"] if case.name == attention.LINEAR} == {
        f"{n}x{n}" for n in (1024, 4096, 16384, 65536)
    }
    assert [case.name for case in every["attention"] if case.size == attention.MANY_KEYS] == list(attention.MAPS)
    for group, cases in every.items():
        measured = {case for case in cases if "; " not in case.name and "memory" not in case.name}
        assert measured <= {result.case for result in read(BENCHMARKS / f"{group}-cpu.json").results}
    monkeypatch.setattr(attention, "_refuse_what_does_not_fit", lambda *given: None)
    on_gpu = GROUPS["attention"].cases(Wanted(device="cuda", names=attention.MAPS))
    assert len(on_gpu) == len(set(on_gpu)) == 4 * 2 * 4 * 2 * 2


def test_what_takes_minutes_is_measured_alone_and_operations_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "BESIDE", 20)
    found = measure("attention/linear_attention", shapes="16,24", quick=True).results
    assert [(result.case.size, *result.peers) for result in found] == [("16x16", "torch")] * 2 + [("24x24",)] * 2
    assert found[0].facts["operations"] == 8 * 2 * 32 * (1 + 64 + 64 * 65 // 2) * 65


@pytest.mark.exhaustive
def test_memory_is_less_than_the_scores_take() -> None:
    assert 0 < peak_memory(attention._both_passes, OURS, "1024") < 4 * attention.HEADS * 1024**2
    assert 0 < peak_memory(heads._both_passes, "sparsemax", 512, 8, 60_000, torch.float32) < 4 * 512 * 60_000


def test_the_commit_is_that_of_the_checkout_or_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "__init__.py").touch()
    monkeypatch.setattr(sm, "__file__", str(tmp_path / "__init__.py"))
    assert machine.commit() is None
    assert "commit" not in bench_tables.made_with(measure("softmax"), bench_maps.MAPS)
