"""What the benchmark calls right of maps, losses and sums: their definitions, and what it finds that is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import softmaxima as sm
from softmaxima.kernels.kernel import Kernel
from softmaxima.losses import REGISTRY as LOSSES
from softmaxima.maps import REGISTRY as MAPS
from softmaxima_lab.bench import clock, definitions, graph, rows
from softmaxima_lab.bench.case import BACKWARD, FORWARD, OURS, Group, Place, Result
from softmaxima_lab.bench.definitions import deviation, expect
from softmaxima_lab.bench.maps import Shape, Subject, choose, compulsory_bytes, problem, read_shape, subjects
from softmaxima_lab.bench.peers import PEERS, Peer, stated_peers
from softmaxima_lab.bench.rows import with_kernels
from softmaxima_lab.bench.run import Settings, bench, plan
from softmaxima_lab.bench.sums import SUMS

MAPS_OF_OURS = [name for name, map in MAPS.items() if map.reference.__module__.startswith("softmaxima.")]
EVERY = [*SUMS, *MAPS_OF_OURS, *LOSSES]


@pytest.fixture(scope="module", autouse=True)
def _brief() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Group, "place", lambda self, device, peers, quick, seed=0: Place(device, peers, 0.0, None, seed))
        patch.setattr(clock, "LEAST_TURNS", 1)
        patch.setattr(rows, "FEW_CALLS", 1)
        yield


def measured(name: str, shapes: str = "4x8", **settings: Any) -> list[Result]:
    """The rows of these, without copies and calls on few scores."""
    found = bench(Settings(cases=tuple(name.split(",")), shapes=tuple(shapes.split(",")), threads=1, **settings))
    return [row for row in found.of("maps") if row.case.name != rows.COPY and row.case.size != rows.FEW]


@pytest.mark.parametrize("name", EVERY)
def test_everything_has_a_definition_and_a_right_row_with_every_installed_peer(name: str) -> None:
    shapes = ("3x120",) if name in LOSSES else ("3x120", "2x5x3@1")  # 120 is above entmax's partial sort
    found = measured(name, ",".join(shapes))
    cases = [(row.case.size, row.case.name, row.case.direction) for row in found]
    assert cases == [(shape, s.title, direction) for shape in shapes for s in choose([name]) for direction in s.directions]
    for row in found:
        subject = subjects()[row.case.name]
        assert subject.entry.reference is not None
        assert (row.verdict, row.problem) == ("right", "")
        assert row.seconds
        assert row.peers.keys() - {rows.FLOOR} == {
            peer.label
            for peer in stated_peers(subject)
            if peer.package in ("torch", "entmax", "scipy")
            and (row.case.size == "3x120" or not peer.above)
            and (row.case.direction == FORWARD or peer.differentiable)
        }
        assert all(row.ratio(peer) is not None for peer in row.peers)


def test_everything_is_right_in_every_dtype(dtype: torch.dtype) -> None:
    found = measured(",".join(EVERY), "3x40", dtypes=(str(dtype).removeprefix("torch."),), peers=())
    assert {row.case.name.partition(" ")[0] for row in found} == {*EVERY}
    assert [(str(row.case), row.problem) for row in found if row.verdict != "right"] == []


@pytest.mark.parametrize("shape", ["1x1", "1", "7x1", "1x7"])
def test_the_smallest_shapes_are_right(shape: str) -> None:
    names = ",".join(EVERY) if "x" in shape else "logsumexp,softmax,entmax"
    assert {row.verdict for row in measured(names, shape, peers=())} == {"right"}


@pytest.mark.parametrize("length", [31, 1, 1000])
def test_every_kernel_is_checked_at_every_example_and_right(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "SCORES", 2**10)
    found = bench(Settings(cases=("kernels",), shapes=(str(length),), threads=1))
    assert [(str(row.case), row.problem) for row in found.results if row.verdict != "right"] == []
    names = {row.case.name for row in found.results if row.case.dtype == "bfloat16"}
    varied = ("plain", "masked", "tempered") if length in rows.VARIED else ("plain",)
    for map in (map for map in MAPS.values() if map.kernel is not None and map.kernel.on_gpus):
        titles = [f"{map.name} {p.name}={value}" for p in map.params for value in p.examples] or [map.name]
        assert {f"{title}, {variant}" for title in titles for variant in varied} <= names
        if map.kernel is not None and map.kernel.loss is not None and map.regulariser:
            assert any(name.startswith(f"fenchel_young_loss map={map.name}") for name in names)
    assert {row.case.dtype for row in found.results} == {"float32", "bfloat16", "float16", "float64"}


def test_what_is_measured_on_a_gpu_has_a_kernel() -> None:
    titles = {subject.title for subject in choose((), "cuda")}
    assert titles >= {"softmax", "logsumexp", "cross_entropy", "entmax alpha=1.3", "entmax alpha=one a row", "sparsemax_loss"}
    assert titles.isdisjoint({"proportional", "arcface", "bounds", "logaddexp"})
    assert {case.name for case in plan(Settings(device="cuda"))["kernels"]} == with_kernels().keys()


@pytest.mark.parametrize(
    ("name", "forward", "both"),
    [
        ("softmax", 2 * 32, 4 * 32),
        ("logsumexp", 32 + 4, 2 * 32 + 2 * 4),
        ("weighted_logsumexp", 2 * 32 + 4, 3 * 32 + 2 * 4),
        ("logcumsumexp", 2 * 32, 4 * 32),
        ("cross_entropy", 32 + 2 * 4 + 1, 2 * 32 + 2 * 4 + 1),  # a label is as long as two scores
        ("quantized_logsumexp", 32 / 4 + 4, 32 / 4 + 2 * 4),
    ],
)
def test_compulsory_bytes_are_inputs_and_outputs_once(name: str, forward: float, both: float) -> None:
    (subject,) = choose([name])
    found = [compulsory_bytes(subject, Shape((4, 8), 1), direction, 4) for direction in (FORWARD, BACKWARD)]
    assert found == [4 * forward, 4 * both]


@pytest.mark.parametrize(
    ("text", "shape"),
    [("7", Shape((7,), 0)), ("4x8", Shape((4, 8), 1)), ("4X8@-2", Shape((4, 8), 0)), ("2x3x4@1", Shape((2, 3, 4), 1))],
)
def test_shapes_are_read_and_written(text: str, shape: Shape) -> None:
    assert read_shape(text) == read_shape(str(shape)) == shape


# What is wrong


def halved(z: Tensor) -> Tensor:
    return z.softmax(-1) * torch.ones(len(z), 1).index_fill(0, torch.tensor([1, 2]), 0.5)


FORWARDS: dict[str, Callable[[Tensor], Tensor]] = {
    "twice as much": lambda z: 2 * z.softmax(-1),
    "NaN": lambda z: z * torch.nan,
    "some rows": halved,
}


@pytest.mark.parametrize("what", FORWARDS)
def test_a_wrong_map_is_called_wrong(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = replace(MAPS["softmax"], name="planted", kernel=None, forward=FORWARDS[what])
    monkeypatch.setitem(MAPS, "planted", planted)
    assert [(row.verdict, row.seconds) for row in measured("planted")] == [("wrong", None)] * 2


def test_a_map_that_raises_is_wrong_and_the_others_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(z: Tensor) -> Tensor:
        raise RuntimeError("no kernel")

    monkeypatch.setitem(MAPS, "broken", replace(MAPS["softmax"], name="broken", kernel=None, forward=fail))
    found = {row.case.name: row.problem for row in measured("broken,softmax")}
    assert found == {"softmax": "", "broken": "RuntimeError: no kernel"}
    kernel = Kernel("no_such_kernel", "no_such_kernel", triton="softmaxima.kernels.triton.sparsemax")
    monkeypatch.setitem(MAPS, "broken", replace(MAPS["sparsemax"], name="broken", forward=fail, kernel=kernel))
    checked = bench(Settings(cases=("kernels/broken",), shapes=("5",))).results
    assert all("the native library has no kernel 'no_such_kernel'" in result.problem for result in checked)


@pytest.mark.parametrize("of_value", [True, False])
def test_a_loss_with_a_wrong_value_or_gradient_is_found(of_value: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: Tensor, target: Tensor, **options: str) -> Tensor:
        if of_value:
            return sm.cross_entropy(x, target, **options) + 0.1  # whose mean over rows is that of our own rows
        return sm.cross_entropy(2 * x - x.detach(), target, **options)

    monkeypatch.setitem(LOSSES, "cross_entropy", replace(LOSSES["cross_entropy"], function=function))
    assert [row.verdict for row in measured("cross_entropy")] == ["wrong" if of_value else "right", "wrong"]


@pytest.mark.parametrize("dtypes", [("float32",), ("float64",), ("bfloat16",)])
def test_an_interval_beside_the_truth_or_wider_than_its_definition_is_wrong(
    dtypes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    distance = 1e-12 if dtypes == ("float64",) else 0.1
    planted: dict[str, Callable[..., Any]] = {
        "right": sm.bounds,
        "below": lambda x, axis: replace(sm.bounds(x, axis), upper=sm.logsumexp(x, axis) - distance),
        "above": lambda x, axis: replace(sm.bounds(x, axis), lower=sm.logsumexp(x, axis) + distance),
        "endless": lambda x, axis: replace(sm.bounds(x, axis), upper=sm.logsumexp(x, axis) + math.inf),
        "shifted": lambda x, axis: sm.bounds(x + 0.1, axis),
        "wide": lambda x, axis: sm.bounds(x, axis, among=("basic", "mean")),  # right, and no wider than log n
    }
    for what, function in planted.items():
        monkeypatch.setitem(SUMS, "bounds", replace(SUMS["bounds"], function=function))
        verdicts = {row.verdict for row in measured("bounds", "3x40,4x1000", dtypes=dtypes)}
        assert verdicts == {"right" if what == "right" else "wrong"}, what


BAD_ROWS = {"1 mod 4": list(range(1, 40, 4)), "the end of a part": [18, 19], "one": [7]}


@pytest.mark.parametrize("bad", BAD_ROWS.values(), ids=BAD_ROWS)
@pytest.mark.parametrize("kind", ["map", "loss", "slope"])
def test_rows_that_are_wrong_where_none_is_compared_are_found(bad: list[int], kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definitions, "COMPARED", 1)
    monkeypatch.setattr(definitions, "LEAST_ROWS", 2)

    def forward(z: Tensor) -> Tensor:
        p = z.softmax(-1)
        return p.index_copy(0, torch.tensor(bad), p[bad].flip(-1))  # whose mass is right

    def function(x: Tensor, target: Tensor, **options: str) -> Tensor:
        factor = torch.ones(len(x), 1).index_fill(0, torch.tensor(bad), 1.01)
        moved = factor * x if kind == "loss" else x.clone()
        if kind == "slope" and moved.requires_grad:  # the value stays, to the last bit
            moved.register_hook(lambda slope: factor * slope)
        return sm.cross_entropy(moved, target, **options)

    if kind == "map":
        monkeypatch.setitem(MAPS, "planted", replace(MAPS["softmax"], name="planted", kernel=None, forward=forward))
    else:
        monkeypatch.setitem(LOSSES, "planted", replace(LOSSES["cross_entropy"], name="planted", function=function))
    found = measured("planted", "40x8")
    assert [row.verdict for row in found] == ["right" if kind == "slope" else "wrong", "wrong"]
    assert "the same rows in another order" in found[-1].problem


def test_the_ends_of_parts_are_compared_and_other_rows_for_each_subject_shape_and_seed() -> None:
    shape, before = Shape((256, 32000), 1), torch.get_num_threads()
    torch.set_num_threads(2)
    chosen = [definitions.compared_rows(shape, seed).tolist() for seed in range(20)]
    torch.set_num_threads(before)
    assert all({0, 127, 128, 255} <= {*found} and len(found) == definitions.LEAST_ROWS for found in chosen)
    assert len({row for found in chosen for row in found}) > 20
    given = [(name, text, seed) for name in ("softmax", "cross_entropy") for text in ("4x8", "8x4") for seed in (0, 1)]
    seeds = {problem(subjects()[name], read_shape(text), torch.float32, seed=seed).seed for name, text, seed in given}
    assert len(seeds) == len(given)


def test_a_peer_that_overwrites_its_scores_gets_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Peer("Liger", "entmax", lambda given: given.x.copy_(given.x.softmax(-1)), overwrites=True)
    after = Peer("adasplash", "entmax", lambda given: given.x.softmax(-1))
    monkeypatch.setitem(PEERS, "softmax", (first, after))
    row = measured("softmax")[0]
    assert [row.peers[name].problem for name in ("Liger", "adasplash")] == ["", ""]
    assert row.ratio("Liger") is not None


def test_what_is_right_of_a_few_numbers() -> None:
    """NaN is infinitely far, the gradient counts as the value does, and someone else's choice among equal scores is theirs."""
    subject = subjects()["softmax"]
    given = problem(subject, Shape((4, 8), 1), torch.float32)
    expected, value = expect(subject, given), given.x.softmax(-1)
    assert expected is not None
    assert deviation(expected, (value, None), torch.float32) <= 1
    assert deviation(expected, (value, torch.zeros_like(value)), torch.float32) > 1e4
    value[3, 7] = math.nan
    assert deviation(expected, (value, None), torch.float32) == math.inf
    subject = subjects()["topk_softmax"]
    given = replace(problem(subject, Shape((1, 12), 1), torch.float32), x=torch.zeros(1, 12))
    expected = expect(subject, given)
    assert expected is not None
    theirs = expected.value.flip(-1).float()
    assert deviation(expected, (theirs, None), torch.float32) > 1
    assert deviation(expected, (theirs, None), torch.float32, selection=True) <= 1


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


# Graphs


def test_the_graph_has_its_edges_in_order_and_some_nodes_have_many() -> None:
    index, nodes = graph.power_law(20_000)
    assert (len(index), nodes) == (20_000, 2000)
    assert (index.diff() >= 0).all()
    degrees = index.bincount(minlength=nodes)
    assert degrees.max() > 20 * degrees.double().median()


@pytest.mark.parametrize("what", ["nan", "inf", "-inf", "zeros"])
@pytest.mark.parametrize("direction", [FORWARD, BACKWARD])
@pytest.mark.parametrize("task", graph.TASKS)
def test_what_is_wrong_at_the_edges_of_a_node_is_found(task: str, direction: str, what: str) -> None:
    index, nodes = graph.power_law(3000)
    x = torch.randn(3000, generator=torch.Generator().manual_seed(1))
    right = graph.Definition(task, direction, x, index, nodes)
    function = graph.ways(task, index, nodes, ())[OURS]
    value = graph._step(function, x, direction)()
    assert right.deviation(value) <= 1
    node = int(index.bincount().argmax())
    wrong = value.clone()
    if what == "zeros":
        wrong[node if len(wrong) == nodes else index == node] = 0.0
    else:
        wrong[node] = float(what)
    assert right.deviation(wrong) > 1
