"""The study of aggregations: its tasks, its networks, and what is said of them."""

from __future__ import annotations

from statistics import fmean

import pytest
import torch

from softmaxima_lab.pages import graph_study as graph_study_report
from softmaxima_lab.studies import graph_study


@pytest.mark.parametrize("name", [name for name in graph_study.TASKS if name not in graph_study.SPLITS])
def test_tasks_that_are_drawn_have_a_known_truth(name: str):
    task = graph_study.TASKS[name](3)
    assert task.edges.max() < len(task.y) == len(task.x)
    assert set(task.y.tolist()) == set(range(task.classes))
    source, to = task.edges
    degrees = to.bincount(minlength=len(task.y))
    if name == "largest":
        tops = [task.x[source[to == node], 0].max() for node in range(len(task.y))]
        assert torch.equal(task.y, (torch.stack(tops) > torch.stack(tops).median()).long())
    if name == "blocks":
        within = (task.y[source] == task.y[to]).float().mean()
        assert 0.6 < within < 0.75
        assert 7 < degrees.float().mean() < 9
        ceilings = [graph_study.ceiling(name, seed) for seed in range(3)]
        assert 0.88 < fmean(ceilings) < 0.98
    else:
        assert degrees.min() == 3
        assert 6 < degrees.float().mean() < 8
        assert graph_study.ceiling(name, 3) == 1.0


def test_the_karate_club_is_that_of_torch_geometric_and_broke_up_in_halves():
    from torch_geometric.datasets import KarateClub

    task, theirs = graph_study.karate(0), KarateClub()[0]
    places = [edges[:, (edges[0] * 34 + edges[1]).argsort()] for edges in (task.edges, theirs.edge_index)]
    assert torch.equal(*places)
    assert torch.equal(task.x, theirs.x)
    assert task.y.bincount().tolist() == [17, 17]
    assert task.y[[0, 33]].tolist() == [0, 1]  # the instructor and the officer


def test_splits_of_one_graph_count_as_less_than_graphs_of_their_own():
    values = [0.1 * (seed % 3) for seed in range(100)]
    anew, shared = graph_study.spread("blocks", values), graph_study.spread("karate club", values)
    assert shared.variance == pytest.approx((1 + 100 * 18 / 16) * anew.variance)
    assert shared.freedom == anew.freedom == 99


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["LSE, attention-weighted", "GAT, sparsemax"])
def test_networks_side_by_side_are_those_of_torch_geometric(name: str):
    import torch_geometric.nn as pyg

    from softmaxima.graph import LogSumExpAggregation, MapGATConv

    tasks = [graph_study.largest(seed) for seed in range(2)]
    stack = graph_study.network(name, graph_study.Graph.of(tasks), graph_study.FEATURES, 2)
    together = stack(torch.cat([task.x for task in tasks])).unflatten(0, (2, graph_study.NODES))
    for seed, task in enumerate(tasks):
        h = task.x
        for own in (stack[0], stack[2]):
            if isinstance(own, graph_study.Sage):
                wide, narrow = own.own.weight.shape[1:]
                gate = torch.nn.Linear(wide, 1, bias=False)
                layer = pyg.SAGEConv(wide, narrow, aggr=LogSumExpAggregation(gate=gate))
                bias, weight = own.of_neighbours.bias[seed, 0], own.of_neighbours.weight[seed].T
                pairs = [
                    (layer.lin_l.weight, weight), (layer.lin_l.bias, bias), (layer.lin_r.weight, own.own.weight[seed].T),
                    (gate.weight, own.aggregation.gate.weight[[seed]]),
                ]  # fmt: skip
            else:
                wide, narrow = own.linear.weight.shape[1:]
                layer = MapGATConv(wide, narrow // own.heads, heads=own.heads, map="sparsemax")
                pairs = [
                    (layer.lin.weight, own.linear.weight[seed].T), (layer.att_src, own.of_source[seed]),
                    (layer.att_dst, own.of_to[seed]), (layer.bias, own.bias[seed, 0]),
                ]  # fmt: skip
            with torch.no_grad():
                for to, value in pairs:
                    to.copy_(value)
            h = layer(h if own is stack[0] else h.relu(), task.edges)
        torch.testing.assert_close(together[seed], h, atol=1e-5, rtol=1e-5)


def test_first_numbers_are_the_same_whatever_the_aggregation():
    graph = graph_study.Graph.of([graph_study.largest(0)])
    drawn = []
    for name in ("mean", "LSE, attention-weighted"):
        torch.manual_seed(0)
        layer = graph_study.network(name, graph, graph_study.FEATURES, 2)[0]
        drawn.append((layer.of_neighbours.weight, layer.own.weight))
    assert all(torch.equal(a, b) for a, b in zip(*drawn, strict=True))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_networks_learn_and_choose_their_rate():
    reached, rates = graph_study.accuracies("max", "largest", range(2), {1e-6: 5, 0.03: 30})
    assert min(reached) > 0.6
    assert set(rates) == {0.03}


def test_gains_are_paired_and_say_no_more_than_they_know():
    found = [
        graph_study.Trained("task", name, accuracies)
        for name, accuracies in (
            ("mean", (0.5, 0.6, 0.7)),
            ("sum", (0.6, 0.7, 0.81)),
            ("max", (0.3, 0.3, 0.3)),
            ("LSE", (0.61, 0.69, 0.8)),
        )
    ]
    gain = graph_study.gain(found, "task", "LSE", "mean", 1)
    assert gain.mean == pytest.approx(fmean([0.11, 0.09, 0.1]))
    assert gain.better
    assert [(task, over) for task, over, _ in graph_study.verdict(found)] == [("task", "mean"), ("task", "sum")]
    said = graph_study_report.sentence(found)
    assert "+10.0" in said
    assert "points on mean, better" in said
    assert "points on sum, not told apart" in said
    ceilings = {"task": [0.9, 0.95, 0.9]}
    assert graph_study_report.markdown_table(found, ceilings).count("\n") == 6
    plot = graph_study_report.picture(found, ceilings)
    assert len(plot.data) == 2
    bars = plot.data[0]
    assert all(mean + above <= 100 + 1e-9 for mean, above in zip(bars.x, bars.error_x.array, strict=True))
    assert plot.layout.xaxis.range[1] > 100
