"""`softmaxima bench-graph`, its graph, its results and what is said of them; and the study of aggregations."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import fmean

import pytest
import torch

from conftest import Run
from softmaxima.bench import graph as bench
from softmaxima.experiments import neighbours
from softmaxima.report import graph as report
from softmaxima.report import neighbours as neighbours_report


def test_the_graph_has_its_edges_in_order_and_some_nodes_have_many():
    index, nodes = bench.power_law(20_000)
    assert (len(index), nodes) == (20_000, 2000)
    assert (index.diff() >= 0).all()
    degrees = index.bincount(minlength=nodes)
    assert degrees.max() > 20 * degrees.double().median()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_bench_graph_measures_and_writes(run: Run, tmp_path: Path):
    path = tmp_path / "found.json"
    code, out, _ = run("bench-graph", "--edges", "3000", "--quick", "--tasks", "softmax,logsumexp", "--json", str(path))
    assert code == 0, out
    found = bench.read(path)
    assert found.edges == 3000
    assert [str(result.case) for result in found.results] == [
        f"{task}, {step}, edges {order}" for task in ("softmax", "logsumexp") for step in bench.STEPS for order in bench.ORDERS
    ]
    for result in found.results:
        assert result.problem == ""
        assert result.seconds.keys() == {bench.OURS, bench.INDEX, bench.PEER}
        assert result.ratios[bench.PEER].median == pytest.approx(result.seconds[bench.PEER] / result.seconds[bench.OURS], rel=20)
    assert "softmax, forward, edges in order" in report.markdown(found)
    assert len(report.picture(found).data) == 6
    assert json.loads(path.read_text())["versions"]["torch-geometric"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--edges", "0"], "--edges must be"),
        (["--tasks", "nonsense"], "tasks must be"),
    ],
)
def test_wrong_options_are_told(arguments: list[str], message: str, run: Run):
    code, _, err = run("bench-graph", *arguments)
    assert code == 2
    assert message in err


def test_a_missing_extra_says_how_to_get_it(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "softmaxima.graph", None)
    monkeypatch.delitem(sys.modules, "softmaxima.graph")
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None if name == "torch_geometric" else object())
    code, _, err = run("bench-graph")
    assert code == 2
    assert 'sm.graph needs torch_geometric, which is not installed: pip install "softmaxima[graph]"' in " ".join(err.split())


@pytest.mark.parametrize("name", neighbours.TASKS)
def test_tasks_have_a_known_truth(name: str):
    task = neighbours.TASKS[name](3)
    assert task.edges.max() < len(task.y) == len(task.x)
    assert set(task.y.tolist()) == set(range(task.classes))
    source, to = task.edges
    if name == "largest":
        tops = [task.x[source[to == node], 0].max() for node in range(len(task.y))]
        assert torch.equal(task.y, (torch.stack(tops) > torch.stack(tops).median()).long())
    if name == "blocks":
        within = (task.y[source] == task.y[to]).float().mean()
        assert 0.6 < within < 0.75


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_networks_learn_and_gains_are_paired():
    task = neighbours.largest(0)
    reached = {name: neighbours.accuracy(name, task, 0, 30) for name in ("LSE, attention-weighted", "GAT, sparsemax")}
    assert all(value > 0.5 for value in reached.values())
    found = [
        neighbours.Trained("task", name, accuracies)
        for name, accuracies in (
            ("mean", (0.5, 0.6, 0.7)),
            ("sum", (0.4, 0.6, 0.7)),
            ("max", (0.3, 0.3, 0.3)),
            ("LSE", (0.61, 0.69, 0.8)),
        )
    ]
    by = {gain.aggregation: gain.difference for gain in neighbours.gains(found)}
    assert by["LSE"].mean == pytest.approx(fmean([0.11, 0.09, 0.1]))
    assert by["LSE"].better
    assert by["max"].mean == pytest.approx(-0.3)
    assert "task: +10.0" in neighbours.verdict(found)
    assert "better" in neighbours.verdict(found)
    assert neighbours_report.markdown_table(found).count("\n") == 5
    assert len(neighbours_report.picture(found).data) == 1
