"""Layers and aggregations of graph networks against what each node makes of its own neighbours, and against torch_geometric's."""

from __future__ import annotations

import functools
import math
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import softmaxima as sm
from conftest import normal

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch_geometric's import, of torch.jit
    import torch_geometric.nn as pyg

    from softmaxima import graph
    from softmaxima.segments import grouping

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


class Says(nn.Module):
    """A gate of known scores."""

    def __init__(self, scores: Tensor) -> None:
        super().__init__()
        self.scores = scores

    def forward(self, x: Tensor) -> Tensor:
        return self.scores


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("way", ["sum", "normalised", "gated"])
@pytest.mark.parametrize("tau", [1e-10, 1e-4, 0.5, 30.0])
@pytest.mark.parametrize(
    "numbers", [(0.0, 0.5, 1.0), (10.0, 9.0, -3.0), (-1e4, -2e4, -3e4), (1e30, 9.0, 0.0), (-1e30, -2e30, -3e30)]
)
def test_logsumexp_is_rounded_once(numbers: tuple[float, ...], tau: float, way: str, kind: torch.dtype):
    if max(map(abs, numbers)) > torch.finfo(kind).max:
        return
    x, scores = torch.tensor(numbers, dtype=kind).unsqueeze(1), normal(3, 1)
    log_weights = {"sum": 0.0, "normalised": -math.log(3), "gated": scores.log_softmax(0)}[way]
    largest = x.double().max()
    expected = largest + tau * ((x.double() - largest) / tau + log_weights).logsumexp(0)
    aggregate = graph.LogSumExpAggregation(tau, normalise=way == "normalised", gate=Says(scores) if way == "gated" else None)
    found = aggregate(x, torch.tensor([1, 1, 1]))[1]
    assert found.dtype == kind
    digits = 1e-14 if kind == torch.float64 else 4e-7  # of τ log w, and of what is in between
    torch.testing.assert_close(found.double(), expected, rtol=2 * torch.finfo(kind).eps, atol=digits * tau)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32], ids=str)
def test_results_have_the_dtype_of_what_is_aggregated(kind: torch.dtype):
    x, tau = X.to(kind), nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
    gate = Says(normal(8, 1))
    for aggregate in (
        graph.LogSumExpAggregation(tau), graph.LogSumExpAggregation(tau, normalise=True),
        graph.LogSumExpAggregation(tau, gate=gate), graph.MapAggregation(sm.Softmax(temperature=tau), gate),
    ):  # fmt: skip
        assert aggregate(x, INDEX).dtype == kind


@pytest.mark.parametrize("way", ["sum", "normalised", "gated"])
def test_derivatives_by_scores_temperatures_and_gates(way: str):
    def value(x: Tensor, tau: Tensor, scores: Tensor) -> Tensor:
        aggregate = graph.LogSumExpAggregation(1.0, normalise=way == "normalised", gate=Says(scores) if way == "gated" else None)
        aggregate.temperature = tau
        return aggregate(x, INDEX, dim_size=5)

    taus = torch.tensor([[0.5], [0.7], [1.0], [2.0], [1.0]], dtype=torch.float64)
    inputs = [each.clone().requires_grad_() for each in (X[:, :2], taus, normal(8, 1, seed=2))]
    assert torch.autograd.gradcheck(value, inputs)
    assert torch.autograd.gradgradcheck(value, inputs)


def test_derivatives_where_exponents_are_beyond_the_dtype():
    x, tau = torch.tensor([[10.0], [9.0], [10.0]], requires_grad=True), nn.Parameter(torch.tensor(1e-38))
    graph.LogSumExpAggregation(tau)(1e3 * x, torch.zeros(3, dtype=torch.int64)).sum().backward()
    torch.testing.assert_close(x.grad, torch.tensor([[500.0], [0.0], [500.0]]))
    torch.testing.assert_close(tau.grad, torch.tensor(2.0).log())


@pytest.mark.parametrize("make", [graph.LogSumExpAggregation, graph.MapAggregation], ids=lambda make: make.__name__)
@pytest.mark.parametrize("left_out", [torch.inf, -torch.inf, torch.nan])
def test_what_the_gate_leaves_out_has_no_say(left_out: float, make: type[pyg.Aggregation]):
    x = torch.tensor([[left_out], [2.0]], requires_grad=True)
    scores = torch.tensor([[-torch.inf], [0.0]], requires_grad=True)
    found = make(gate=Says(scores))(x, torch.tensor([0, 0]))
    found.sum().backward()
    assert found.tolist() == [[2.0]]
    assert x.grad is not None
    assert x.grad.tolist() == [[0.0], [1.0]]
    assert scores.grad is not None
    assert scores.grad.tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize("aggregate", [graph.LogSumExpAggregation(), *map(graph.MapAggregation, ("softmax", "sparsemax"))], ids=str)
def test_minus_infinity_leaves_a_neighbour_out(aggregate: pyg.Aggregation):
    x = torch.tensor([[-torch.inf], [2.0], [-torch.inf]], requires_grad=True)
    found = aggregate(x, torch.tensor([0, 0, 1]))
    found.sum().backward()
    assert found.tolist() == [[2.0], [0.0]]
    assert x.grad is not None
    assert x.grad.tolist() == [[0.0], [1.0], [0.0]]


GATED = [None, nn.Linear(4, 1).double()]


@pytest.mark.parametrize("gate", GATED, ids=["no gate", "gate"])
def test_temperatures_are_checked_with_a_gate_and_without(gate: nn.Module | None):
    tau = nn.Parameter(torch.tensor(1.0))
    aggregate = graph.LogSumExpAggregation(tau, gate=gate)
    for wrong in (-1.0, 0.0, torch.nan):
        tau.data.fill_(wrong)
        with pytest.raises(ValueError, match=r"^LogSumExpAggregation: temperature must be positive"):
            aggregate(X, INDEX)
    for shape in ((7,), (3, 1, 1), (2, 1)):
        with pytest.raises(ValueError, match=r"^LogSumExpAggregation: temperature must broadcast to \(4, 4\)"):
            graph.LogSumExpAggregation(torch.ones(shape), gate=gate)(X, INDEX)


def test_reset_gives_what_learns_its_first_numbers():
    tau, gate = sm.Temperature(0.7), nn.Linear(4, 1)
    layers = (
        pyg.SAGEConv(4, 3, aggr=graph.LogSumExpAggregation(tau, gate=gate)),
        pyg.SAGEConv(4, 3, aggr=graph.MapAggregation(sm.Sparsemax(temperature=tau), gate)),
        graph.MapGATConv(4, 3, map=sm.Softmax(temperature=tau)),
        graph.MapGATv2Conv(4, 3, map=sm.Softmax(temperature=tau)),
        graph.MapTransformerConv(4, 3, map=sm.Softmax(temperature=tau)),
    )
    for layer in layers:
        weight = gate.weight.detach().clone()
        with torch.no_grad():
            tau.rho.add_(1.0)
        layer.reset_parameters()
        assert tau().item() == pytest.approx(0.7)
        assert isinstance(layer, pyg.SAGEConv) != torch.equal(weight, gate.weight)


def test_layers_say_their_map():
    map = sm.Entmax(alpha=1.3, temperature=sm.Temperature(1.0))
    assert repr(graph.MapGATConv(3, 4, heads=2, map=map)) == "MapGATConv(3, 4, heads=2, map=entmax(temperature=learnt, alpha=1.3))"
    assert repr(graph.MapAggregation("sparsemax")) == "MapAggregation(map=sparsemax(temperature=1.0), gate=None)"


def test_layers_find_the_neighbours_of_one_graph_once(monkeypatch: pytest.MonkeyPatch):
    found: list[object] = []
    find = grouping.found_segments
    monkeypatch.setattr(grouping, "found_segments", lambda *given: found.append(given) or find(*given))
    monkeypatch.setattr(grouping, "_last", None)
    x, edges = normal(5, 4).float(), EDGES.clone()
    layers = [graph.MapGATConv(4, 4) for _ in range(3)]
    for _ in range(2):
        for layer in layers:
            x = layer(x, edges)
    assert len(found) == 1
    edges[1, 0] = 4  # in place
    other = graph.MapGATConv(4, 4)
    torch.testing.assert_close(other(x, edges), other(x, edges.flip(1)))
    assert len(found) == 3


def test_an_index_that_changes_in_place_is_another():
    index, x = INDEX.numpy().copy(), X
    shared = torch.from_numpy(index)
    aggregate = graph.LogSumExpAggregation()
    aggregate(x, shared, dim_size=5)
    index[0] = 4  # which torch does not see
    torch.testing.assert_close(aggregate(x, shared, dim_size=5), aggregate(x, shared.clone(), dim_size=5))
    assert aggregate(x, shared, dim_size=5)[4].abs().sum() > 0
    assert len(aggregate(x, shared, dim_size=7)) == 7


@pytest.mark.parametrize("first", [True, False])
def test_what_inference_found_serves_no_training_and_the_other_way_round(first: bool):
    layer, x = graph.MapGATConv(4, 3, map="sparsemax"), normal(5, 4).float()
    for inference in (first, not first, first):
        with torch.inference_mode(inference):
            out = layer(x, EDGES)
        if not inference:
            out.sum().backward()


def test_indices_of_torch_geometric_are_taken():
    from torch_geometric import EdgeIndex, Index

    torch.testing.assert_close(
        graph.LogSumExpAggregation()(X, Index(INDEX), dim_size=5), graph.LogSumExpAggregation()(X, INDEX, dim_size=5)
    )
    layer, x = graph.MapGATConv(4, 3), normal(5, 4).float()
    torch.testing.assert_close(layer(x, EdgeIndex(EDGES, sparse_size=(5, 5))), layer(x, EDGES))


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
    with pytest.raises(ValueError, match=r"^LogSumExpAggregation: ptr ends at 3, and x of shape \(8, 4\) has 8 edges along dim -2"):
        graph.LogSumExpAggregation()(X, ptr=torch.tensor([0, 1, 3]))


WITH_MAPS: dict[str, Any] = {
    "MapAggregation": graph.MapAggregation,
    **{make.__name__: functools.partial(make, 4, 3) for make in (graph.MapGATConv, graph.MapGATv2Conv, graph.MapTransformerConv)},
}


@pytest.mark.parametrize("name", WITH_MAPS)
def test_parameters_beside_a_name_are_the_maps(name: str):
    make = WITH_MAPS[name]
    layer = make(map="entmax", alpha=1.3, temperature=sm.Temperature(2.0))
    assert layer.map.alpha == 1.3
    assert float(layer.map.temperature().detach()) == pytest.approx(2.0)
    for options, said in (
        ({"map": "nonsense"}, "unknown map 'nonsense'"),
        ({"map": 3}, "map must be the name or the function of a map, or a Map, got int"),
        ({"map": "sparsemax", "alpha": 1.3}, "unknown argument 'alpha'; map 'sparsemax' takes: none"),
        ({"map": "entmax", "alpha": -0.3}, "alpha must be positive and finite, got -0.3"),
        ({"map": "entmax", "temperature": -1.0}, "temperature must be positive"),
        ({"map": sm.Entmax(alpha=1.3), "alpha": 1.3}, r"a module has .* of its own, got alpha .* give them to Entmax\("),
    ):
        with pytest.raises((TypeError, ValueError), match=f"^{name}: {said}"):
            make(**options)


@pytest.mark.parametrize("name", [name for name in WITH_MAPS if name != "MapAggregation"])
def test_edges_that_are_no_pairs_are_refused(name: str):
    for edges, got in ((torch.zeros(5, 2), r"\(5, 2\); call edge_index.T"), (torch.zeros(5), r"\(5,\); give two rows")):
        with pytest.raises(ValueError, match=rf"^{name}: edge_index must be \[2, edges\].*, got shape {got}"):
            WITH_MAPS[name]()(X.float(), edges.long())


@pytest.mark.parametrize("make", [graph.LogSumExpAggregation, graph.MapAggregation], ids=lambda make: make.__name__)
def test_what_is_wrong_with_a_gate_is_said(make: type[pyg.Aggregation]):
    for gate, said in (("x", "the string 'x'"), (sm.sparsemax, "function"), (sm.Softmax(), "the map Softmax"), (nn.Linear, "type")):
        with pytest.raises(TypeError, match=rf"^{make.__name__}: gate must be .*, got {said}"):
            make(gate=gate)
    for shape in ((8,), (8, 3), (4, 1), (8, 1, 1)):
        with pytest.raises(
            ValueError, match=rf"^{make.__name__}: gate must give scores of shape \(8, 1\) or of x's, \(8, 4\), got"
        ):
            make(gate=Says(torch.zeros(shape)))(X, INDEX)


@pytest.mark.parametrize("name", [name for name, _ in LAYERS])
def test_a_layer_without_a_softmax_is_refused(name: str, monkeypatch: pytest.MonkeyPatch):
    parent = getattr(pyg, name.removeprefix("Map"))
    method = "message" if name == "MapTransformerConv" else "edge_update"

    def of_another_version(self: object, alpha: Tensor) -> Tensor:
        return nn.functional.softmax(alpha, 0)

    monkeypatch.setattr(parent, method, of_another_version)
    with pytest.raises(ImportError, match=rf"^{name}: torch_geometric .* takes no softmax from its module in .*of_another_version"):
        getattr(graph, name)(4, 3)


EXPORTED = [
    graph.MapGATConv(4, 3, map=sm.Entmax(alpha=nn.Parameter(torch.tensor(1.5)), temperature=sm.Temperature(0.8))),
    graph.MapGATv2Conv(4, 3, map="sparsemax"),
    graph.MapTransformerConv(4, 3, map="entmax15"),
    pyg.SAGEConv(4, 3, aggr=graph.LogSumExpAggregation(sm.Temperature(0.5), gate=nn.Linear(4, 1))),
    pyg.SAGEConv(4, 3, aggr=graph.LogSumExpAggregation(normalise=True)),
    pyg.SAGEConv(4, 3, aggr=graph.MapAggregation("sparsemax")),
]
NAMES = ["gat", "gatv2", "transformer", "gated", "normalised", "sparse"]


@pytest.mark.parametrize("layer", EXPORTED, ids=NAMES)
@pytest.mark.parametrize("way", ["export", "compile"])
def test_layers_and_aggregations_are_exported_and_compiled_whole(way: str, layer: nn.Module):
    x, edges = normal(5, 4).float(), EDGES
    if way == "export":
        dynamic = {0: torch.export.Dim("N", min=2)}, {1: torch.export.Dim("E", min=2)}
        recorded = torch.export.export(layer, (x, edges), dynamic_shapes=dynamic).module()
        x, edges = normal(7, 4, seed=1).float(), torch.cat([EDGES, EDGES.flip(0), torch.tensor([[5, 6], [6, 6]])], 1)
    else:
        recorded = torch.compile(layer, fullgraph=True, backend="aot_eager")
    found = []
    for each in (layer, recorded):
        parameters = dict(layer.named_parameters() if way == "compile" else each.named_parameters())
        value = each(x, edges)
        slopes = torch.autograd.grad(value.square().sum(), [parameters[name] for name, _ in layer.named_parameters()])
        found.append((value, *slopes))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(theirs, ours)


@pytest.mark.parametrize("layer", EXPORTED, ids=NAMES)
def test_scripts_are_refused_in_a_sentence(layer: nn.Module):
    with pytest.raises(
        NotImplementedError, match=r"^\w+: torch.jit.script does not take it; use torch.export.export or torch.compile"
    ):
        torch.jit.script(layer)
