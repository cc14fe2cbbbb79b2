"""Layers and aggregations of graph networks against what each node makes of its own neighbours, and against torch_geometric's."""

from __future__ import annotations

import pickle
import warnings

import pytest
import torch
from torch import Tensor, nn

import softmaxima as sm
from conftest import normal

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch_geometric's import, of torch.jit
    import torch_geometric.nn as pyg

    from softmaxima import graph

INDEX = torch.tensor([3, 0, 3, 0, 1, 3, 0, 0])
X = normal(8, 4)


def by_node(function: object, x: Tensor = X, nodes: int = 5) -> Tensor:
    """A function of each node's neighbours, 0 where there are none."""
    return torch.stack(
        [function(x[node == INDEX]) if (node == INDEX).any() else torch.zeros(4, dtype=x.dtype) for node in range(nodes)]
    )  # type: ignore[operator]


@pytest.mark.parametrize("tau", [0.5, 1.0, 3.0])
def test_logsumexp_of_neighbours(tau: float):
    expected = by_node(lambda own: tau * (own / tau).exp().sum(0).log())
    torch.testing.assert_close(graph.LogSumExpAggregation(tau)(X, INDEX, dim_size=5), expected)
    expected = by_node(lambda own: tau * (own / tau).exp().mean(0).log())
    torch.testing.assert_close(graph.LogSumExpAggregation(tau, normalise=True)(X, INDEX, dim_size=5), expected)
    gate = nn.Linear(4, 1).double()
    weights = lambda own: gate(own).softmax(0)
    expected = by_node(lambda own: tau * (weights(own) * (own / tau).exp()).sum(0).log())
    torch.testing.assert_close(graph.LogSumExpAggregation(tau, gate=gate)(X, INDEX, dim_size=5), expected)


def test_logsumexp_lies_between_the_largest_and_the_mean():
    largest, mean = pyg.MaxAggregation()(X, INDEX, dim_size=5), pyg.MeanAggregation()(X, INDEX, dim_size=5)
    torch.testing.assert_close(graph.LogSumExpAggregation(1e-3)(X, INDEX, dim_size=5), largest, atol=1e-3, rtol=0)
    torch.testing.assert_close(graph.LogSumExpAggregation(1e5, normalise=True)(X, INDEX, dim_size=5), mean, atol=1e-3, rtol=0)


@pytest.mark.parametrize("map", ["softmax", "sparsemax", sm.Entmax(alpha=1.3, temperature=0.7)], ids=str)
def test_means_weighted_by_a_map(map: object):
    held = map if isinstance(map, sm.MapModule) else sm.MapModule(map, 0)  # type: ignore[arg-type]
    p = lambda s: held.map(s, 0, **{name: value for name, value in held.options.items() if name != "dim"})
    aggregate = graph.MapAggregation(map)  # type: ignore[arg-type]
    torch.testing.assert_close(aggregate(X, INDEX, dim_size=5), by_node(lambda own: (p(own) * own).sum(0)))
    gate = nn.Linear(4, 1).double()
    aggregate = graph.MapAggregation(map, gate)  # type: ignore[arg-type]
    torch.testing.assert_close(aggregate(X, INDEX, dim_size=5), by_node(lambda own: (p(gate(own)) * own).sum(0)))
    order = INDEX.argsort(stable=True)
    ptr = torch.tensor([0, 4, 5, 5, 8, 8])
    torch.testing.assert_close(aggregate(X[order], ptr=ptr), aggregate(X, INDEX, dim_size=5))


def test_softmax_aggregation_is_that_of_torch_geometric():
    theirs = pyg.SoftmaxAggregation(t=2.0)
    ours = graph.MapAggregation(sm.Softmax(temperature=0.5))
    torch.testing.assert_close(ours(X, INDEX, dim_size=5), theirs(X, INDEX, dim_size=5))


EDGES = torch.tensor([[0, 1, 2, 3, 4, 0, 2, 1], [1, 0, 3, 1, 1, 3, 0, 0]])
LAYERS = [("MapGATConv", {"edge_dim": 2}), ("MapGATv2Conv", {"edge_dim": 2}), ("MapTransformerConv", {"edge_dim": 2, "beta": True})]


@pytest.mark.parametrize(("name", "options"), LAYERS, ids=lambda value: value if isinstance(value, str) else "")
def test_attention_with_softmax_is_that_of_torch_geometric(name: str, options: dict[str, object]):
    x, edge = normal(5, 4).float(), normal(8, 2, seed=1).float()
    theirs, ours = getattr(pyg, name.removeprefix("Map"))(4, 3, heads=2, **options), getattr(graph, name)(4, 3, heads=2, **options)
    ours.load_state_dict(theirs.state_dict(), strict=False)
    torch.testing.assert_close(ours(x, EDGES, edge), theirs(x, EDGES, edge))
    again = pickle.loads(pickle.dumps(ours))
    torch.testing.assert_close(again(x, EDGES, edge), theirs(x, EDGES, edge))


@pytest.mark.parametrize("name", [name for name, _ in LAYERS])
def test_sparse_attention_leaves_neighbours_out_and_learns(name: str):
    x = 8 * normal(5, 4).float()
    alpha = nn.Parameter(torch.tensor(1.7))
    layer = getattr(graph, name)(4, 3, heads=2, map=sm.Entmax(alpha=alpha, temperature=sm.Temperature(0.2)))
    assert any(parameter is alpha for parameter in layer.parameters())
    out, (edges, p) = layer(x, EDGES, return_attention_weights=True)
    total = torch.zeros(5, 2).index_add_(0, edges[1], p)
    torch.testing.assert_close(total[[0, 1, 3]], torch.ones(3, 2))
    assert (p == 0).any()
    out.square().sum().backward()
    assert alpha.grad is not None
    assert all(parameter.grad is not None for parameter in layer.map.parameters())


def test_an_aggregation_serves_a_layer():
    x = normal(5, 4).float()
    layer = pyg.SAGEConv(4, 3, aggr=graph.LogSumExpAggregation(sm.Temperature(0.5)))
    layer(x, EDGES).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in layer.parameters())
    isolated = layer.aggr_module(x[:0], torch.empty(0, dtype=torch.int64), dim_size=2)
    assert torch.equal(isolated, torch.zeros(2, 4))


def test_what_is_wrong_is_said_at_once():
    with pytest.raises(ValueError, match=r"^LogSumExpAggregation: temperature must be .*, got 0.0"):
        graph.LogSumExpAggregation(0.0)
    with pytest.raises(ValueError, match=r"^LogSumExpAggregation: the weights of a gate sum to 1"):
        graph.LogSumExpAggregation(1.0, normalise=True, gate=nn.Linear(4, 1))
    with pytest.raises(TypeError, match=r"^LogSumExpAggregation: normalise must be"):
        graph.LogSumExpAggregation(1.0, normalise=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^MapModule: .*'nonsense'"):
        graph.MapAggregation("nonsense")
