"""DTensors on a mesh of 2 × 2 ranks, beside one process with the whole scores: every map, loss and sum, in every placement."""

from __future__ import annotations

import functools
import itertools
import math
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import Processes, square
from shards import apart, finite, in_turns, learnt_of, normal
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import loss_parallel

import softmaxima as sm
from conftest import Case, LossCase, cases, exhaustively, some
from softmaxima.losses import REGISTRY as LOSSES
from softmaxima.maps import REGISTRY as MAPS

S0, S1, S2, R, P = Shard(0), Shard(1), Shard(2), Replicate(), Partial()
# Rows and classes of uneven shards, some of them empty, and each other way that an axis of the mesh can have them.
PLACEMENTS = [(S0, S1), (S1, S1), *map(exhaustively, ((P, S1), (S1, R), (R, S0), (S0, S0), (S1, S0), (S0, P)))]


def spread(x: Tensor, placements: tuple[Placement, ...]) -> DTensor:
    """x on the mesh; of what is Partial each rank has a share."""
    plain = [R if isinstance(p, Partial) else p for p in placements]
    found = distribute_tensor(x, square(), plain)
    count = math.prod(square().size(i) for i, p in enumerate(placements) if isinstance(p, Partial))
    if count == 1:
        return found
    own = found.to_local() / count
    return DTensor.from_local(own, square(), placements, run_check=False, shape=x.shape, stride=x.stride())


def added(placements: tuple[Placement, ...]) -> tuple[Placement, ...]:
    """Where a map's probabilities are."""
    return tuple(R if isinstance(p, Partial) else p for p in placements)


def of_a_map(rank: int, name: str, placements: tuple[Placement, ...], dim: int) -> float:
    """The largest deviation of probabilities and of gradients by scores, temperature and parameters."""
    shape, farthest = (3, 5, 2), 0.0
    x, g, where = 3 * normal(*shape, seed=1), normal(*shape, seed=2), normal(*shape, seed=3) > -0.6
    per_row = list(shape)
    per_row[dim] = 1
    tau, mask = normal(*per_row, seed=6).abs() + 0.5, where & (normal(*per_row, seed=4) > -1.5)
    learnt = learnt_of(MAPS[name], per_row)
    options: list[Any] = [{}, {"temperature": tau, "where": mask}, {"temperature": torch.tensor(0.7).double(), **learnt}]
    every = list(itertools.product(cases(MAPS[name]), options))

    def results(case: Case, options: dict[str, Any], spreads: bool) -> list[Tensor]:
        given = {key: v.clone().requires_grad_() if v.is_floating_point() else v for key, v in options.items()}
        scores = (spread(x, placements) if spreads else x).detach().requires_grad_()
        wrt = [scores, *(v for v in given.values() if v.requires_grad)]
        if spreads and "where" in given:  # what is plain is replicated; and as a DTensor of another placement
            given["where"] = distribute_tensor(mask, square(), [R, S0])
        p = getattr(sm, name)(scores, dim=dim, **{**case.params, **given})
        if spreads:
            assert isinstance(p, DTensor)
            expected = added(placements)
            if MAPS[name].blocks is None:
                expected = tuple(R if q == Shard(dim) else q for q in expected)
            assert p.placements == expected
        upstream = distribute_tensor(g, square(), [R, R]) if spreads else g
        slopes = torch.autograd.grad((finite(p) * upstream).sum(), wrt)
        if spreads:
            assert slopes[0].placements == added(placements)
        return [p.detach(), *slopes]

    every = [*every[: len(options)], *some(every[len(options) :], name, placements, dim)]
    whole = in_turns([functools.partial(results, *each, spreads=False) for each in every])
    for each, expected in zip(every, whole, strict=True):
        farthest = max(farthest, *(apart(a, b) for a, b in zip(results(*each, spreads=True), expected, strict=True)))
    return farthest / 1e-13


@pytest.mark.parametrize("placements", PLACEMENTS, ids=str)
@pytest.mark.parametrize("name", list(MAPS))
def test_every_map_is_that_of_the_whole(name: str, placements: tuple[Placement, ...], four: Processes) -> None:
    assert max(four.run(of_a_map, name, placements, 1)) <= 1


def of_a_loss(rank: int, name: str, placements: tuple[Placement, ...]) -> float:
    """The largest deviation of values and gradients, in units of 1e-13."""
    rows, n, farthest = 6, 5, 0.0
    labels, soft = torch.tensor([0, 4, -100, 3, 2, 1]), normal(rows, n, seed=1).softmax(-1)
    weight, tau = normal(n, seed=2).abs() + 0.1, normal(rows, 1, seed=4).abs() + 0.5
    learnt = {"entmax_loss": "alpha", "elastic_cross_entropy": "beta", "arcface": "scale"}.get(name)
    every: list[tuple[Tensor, Tensor, dict[str, Any], bool]] = []
    for options in LOSSES[name].examples:
        case = LossCase(LOSSES[name], options)
        x = case.scores(rows, n, seed=3)
        calls: list[tuple[Tensor, dict[str, Any]]] = [(labels, {}), (labels, {"weight": weight}), (labels, {"reduction": "none"})]
        calls += [(labels, {"reduction": "sum"}), (labels.clamp_min(0), {"weight": weight, "reduction": "sum"})]
        calls += [(soft, {"weight": weight, "label_smoothing": 0.3}), (labels, {"weight": weight, "label_smoothing": 0.3})]
        calls += [(soft, {}), (labels, {"label_smoothing": 0.1}), (labels.clamp(max=-100), {})]
        calls += [(labels, {"temperature": 0.5}), (labels, {"temperature": tau})] if not LOSSES[name].on_cosines else []
        calls += [(labels, {learnt: torch.tensor(1.5, dtype=torch.float64)})] if learnt else []
        of_one = [(x, y, {**options, **more}, number % 2 == 1) for number, (y, more) in enumerate(calls)]
        every += of_one if not every else some(of_one, name, options, placements)

    def results(x: Tensor, target: Tensor, options: dict[str, Any], is_spread: bool, spreads: bool) -> list[Tensor]:
        scores = (spread(x, placements) if spreads else x).detach().requires_grad_()
        own = {key: options[key] for key in ("temperature", learnt) if isinstance(options.get(key), Tensor)}
        own = {key: value.clone().requires_grad_() for key, value in own.items()}
        given, wrt = {**options, **own}, [scores, *own.values()]
        y = distribute_tensor(target, square(), [S0, R]) if spreads and is_spread else target  # or plain, for all ranks
        loss = getattr(sm, name)(scores, y, **given)
        slopes = torch.autograd.grad(loss.sum(), wrt)
        if spreads:
            kept = S0 if given.get("reduction") == "none" else R
            assert loss.placements == tuple(kept if p == S0 else R for p in placements)
            assert slopes[0].placements == added(placements)
        return [loss.detach(), *slopes]

    whole = in_turns([functools.partial(results, *call, spreads=False) for call in every])
    for call, expected in zip(every, whole, strict=True):
        farthest = max(farthest, *(apart(a, b) for a, b in zip(results(*call, spreads=True), expected, strict=True)))
    return farthest / 1e-13


@pytest.mark.parametrize("placements", PLACEMENTS, ids=str)
@pytest.mark.parametrize("name", list(LOSSES))
def test_every_loss_is_that_of_the_whole(name: str, placements: tuple[Placement, ...], four: Processes) -> None:
    assert max(four.run(of_a_loss, name, placements)) <= 1


def of_sums(rank: int) -> float:
    x, farthest = 5 * normal(3, 5, 2, seed=1), 0.0
    tau, where = normal(3, 1, 2, seed=2).abs() + 0.5, normal(3, 5, 2, seed=3) > 0.5
    weights = normal(5, 1, seed=4)
    every: list[dict[str, Any]] = [{"dim": 1}, {"dim": -2, "keepdim": True, "where": where}, {"dim": 1, "temperature": tau}]
    every += [{"dim": (0, 1)}, {"dim": (1, 2), "keepdim": True}, {"dim": (0, 1, 2)}, {"dim": 1, "weights": weights}]
    every += [{"dim": 1, "precision": "compensated"}]
    for placements, options in itertools.product(((S0, S1), (S1, S1), (P, S1), (S2, S0)), every):
        results = []
        for spreads in (True, False):
            scores = (spread(x, placements) if spreads else x).detach().requires_grad_()
            given = {key: v.clone().requires_grad_() if key in ("temperature", "weights") else v for key, v in options.items()}
            value = sm.logsumexp(scores, **given)
            wrt = [scores, *(given[key] for key in ("temperature", "weights") if key in given)]
            cut = torch.where(value.isfinite(), value, torch.zeros_like(value))
            results.append([value.detach(), *torch.autograd.grad(cut.square().sum(), wrt)])
        farthest = max(farthest, *(apart(a, b) for a, b in zip(*results, strict=True)))
    value, sign = sm.logsumexp(spread(x, (S0, S1)), 1, weights=weights, return_sign=True)
    theirs = sm.logsumexp(x, 1, weights=weights, return_sign=True)
    counts = spread(torch.arange(15).view(3, 5), (S0, S1))
    farthest = max(farthest, apart(sm.logsumexp(counts), sm.logsumexp(torch.arange(15).view(3, 5))) / 1e6)
    assert value.placements == sign.placements == (S0, R)
    return max(farthest, apart(value, theirs[0]), apart(sign, theirs[1])) / 1e-14


def test_logsumexp_is_that_of_the_whole(four: Processes) -> None:
    assert max(four.run(of_sums)) <= 1


def of_hard_rows(rank: int) -> float:
    """Rows with NaN, +∞, −∞ and nothing at all, beside others, which do not know of it: the largest deviation, in 4 epsilons."""
    x, labels, farthest = 2 * normal(7, 6, seed=1), torch.tensor([0, 5, 1, 2, 3, 4, 0]), 0.0
    x[0, 1], x[1, 4], x[2, 3] = math.nan, math.inf, -math.inf
    x[3] = -math.inf
    x[4, ::3] = math.inf
    functions: dict[str, Any] = {}
    for case in (next(cases(map)) for map in MAPS.values() if map.blocks is not None):
        functions[case.map.name] = case
    for name in ("cross_entropy", "sparsemax_loss", "entmax15_loss", "elastic_cross_entropy", "soft_accuracy_loss"):
        functions[name] = lambda x, name=name: getattr(sm, name)(x, labels, reduction="none")
    functions["logsumexp"] = sm.logsumexp
    for function, dtype in itertools.product(functions.values(), (torch.float64, torch.float32)):
        results = []
        for scores in (spread(x.to(dtype), (S0, S1)).requires_grad_(), x.to(dtype).clone().requires_grad_()):
            value = function(scores)
            results.append((value.detach(), *torch.autograd.grad(value, scores, torch.ones_like(value))))
        farthest = max(farthest, *(apart(a, b) / torch.finfo(dtype).eps / 4 for a, b in zip(*results, strict=True)))
    return farthest


def test_infinite_and_missing_scores_are_those_of_their_row(four: Processes) -> None:
    assert max(four.run(of_hard_rows)) <= 1


def of_rounding(rank: int) -> list[float]:
    """Means of narrow scores whose sum is beyond their dtype, and probabilities, beside those of whole rows."""
    found = []
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        x, labels = 40 * normal(3000, 6, seed=1, dtype=dtype), torch.arange(3000) % 6
        for placements in ((S0, R), (S0, S1)):
            loss = sm.cross_entropy(spread(x, placements), labels)
            found.append(apart(loss, sm.cross_entropy(x, labels)) / torch.finfo(dtype).eps)
            p, whole = sm.entmax15(spread(x, placements)).full_tensor(), sm.entmax15(x.double()).to(dtype)
            found.append(apart(p, whole) / torch.finfo(dtype).eps)
    return found


def test_narrow_scores_are_rounded_once(four: Processes) -> None:
    for found in four.run(of_rounding):
        assert max(found) <= 1, found


def of_second_derivatives(rank: int) -> tuple[float, str]:
    """(how far that of whole rows is, what is said of rows that are shared)."""
    x, second = normal(3, 4, seed=1), []
    for scores in (spread(x, (S0, R)).requires_grad_(), x.clone().requires_grad_()):
        (slope,) = torch.autograd.grad(sm.softmax(scores).square().sum(), scores, create_graph=True)
        second.append(torch.autograd.grad(slope.square().sum(), scores)[0])
    shared = spread(x, (R, S1)).requires_grad_()
    try:
        torch.autograd.grad(sm.softmax(shared).square().sum(), shared, create_graph=True)
    except RuntimeError as error:
        return apart(*second), str(error)
    return apart(*second), ""


def test_second_derivatives_are_those_of_whole_rows_or_refused(four: Processes) -> None:
    for far, said in four.run(of_second_derivatives):
        assert far <= 1e-14
        assert "there is no second derivative" in said


def of_wrong_calls(rank: int) -> list[str]:
    x, said = spread(normal(4, 6, seed=1), (S0, S1)), []
    other = init_device_mesh("cpu", (4,))
    uneven = DTensor.from_local(normal(2, 1 + 4 * (rank % 2), seed=1), square(), (S0, S1), shape=torch.Size((4, 6)), stride=(6, 1))
    calls: list[Any] = [lambda: sm.softmax(x, temperature=torch.ones(2, 1)), lambda: sm.cross_entropy(x, torch.tensor([0, 1]))]
    calls += [lambda: sm.softmax(x, temperature=distribute_tensor(torch.ones(4, 1), other, [R])), lambda: sm.softmax(uneven)]
    calls += [lambda: sm.cross_entropy(x, torch.tensor([0, 1, 6, 2])), lambda: sm.softmax(x, 2), lambda: sm.entmax(x, alpha=-1.0)]
    calls += [lambda: sm.attention(x, x, x), lambda: sm.distributed.softmax(x), lambda: sm.linear_loss(x, x, torch.tensor([0]))]
    for call in calls:
        try:
            call()
            said.append("nothing")
        except (TypeError, ValueError, IndexError) as error:
            said.append(str(error))
    return said


WRONG = [
    r"^softmax: temperature must have the shape \(4, 1\) beside scores of shape \(4, 6\), got \(2, 1\); a plain tensor is for",
    r"^cross_entropy: target must have the shape \(4,\) beside scores of shape \(4, 6\), got \(2,\)",
    r"^softmax: temperature must be on the mesh of the scores",
    r"^softmax: shards of scores of shape \(4, 6\) must be torch.chunk's, here \(2, 3\), got \(2, \d\); for others take",
    r"^cross_entropy: target 6 is out of range for 6 classes",
    r"^softmax: dim must be in",
    r"^entmax: alpha must be",
    r"^attention: query must be a plain tensor here, got a DTensor; call .full_tensor\(\)",
    r"^distributed.softmax: scores must be a plain tensor here, got a DTensor",
    r"^linear_loss: \w+ must be a plain tensor here, got a DTensor",
]


def test_wrong_calls_raise_on_every_rank(four: Processes) -> None:
    every = four.run(of_wrong_calls)
    for number, pattern in enumerate(WRONG):
        for said in every:
            assert re.search(pattern, said[number]), said[number]


def of_unlike_labels(rank: int) -> str:
    """What is said where ranks that share rows ignore others."""
    try:
        sm.cross_entropy(spread(normal(4, 6, seed=1), (S0, S1)), torch.tensor([[-100, 1, -100, 2], [1, -100, 2, -100]][rank % 2]))
    except sm.distributed.RanksError as error:
        return str(error)
    return "nothing"


def test_ranks_that_ignore_other_rows_all_raise(four: Processes) -> None:
    for said in four.run(of_unlike_labels):
        assert re.match(r"cross_entropy: target must be the same on all ranks, got 2 labels from", said), said


def of_training(rank: int) -> list[float]:
    """How far a model's losses, on tensor-parallel and data-parallel ranks, are from those of one process and from torch's."""
    train = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "tensor_parallel.py"))["train"]
    found = []
    for loss in (sm.cross_entropy, sm.sparsemax_loss):
        ours, alone = train(square(), loss, 5), train(None, loss, 5)
        found.append(max(abs(a - b) for a, b in zip(ours, alone, strict=True)))
        if loss is sm.cross_entropy:
            with loss_parallel():
                theirs = train(square(), torch.nn.functional.cross_entropy, 5)
            found.append(max(abs(a - b) for a, b in zip(ours, theirs, strict=True)))
    return found


def test_a_model_trains_as_on_one_process_and_as_with_torch_s_loss(four: Processes) -> None:
    for found in four.run(of_training):
        assert max(found) <= 1e-12, found


def of_compiled(rank: int) -> float:
    """How far compiled functions and their gradients are from eager ones: whole graphs where rows are whole."""
    x, labels, farthest = normal(4, 6, seed=1), torch.tensor([0, 1, 5, 3]), 0.0
    functions: list[Any] = [sm.sparsemax, sm.logsumexp, lambda x: sm.cross_entropy(x, labels)]
    for function, placements in itertools.product(functions, ((S0, R), (S0, S1))):
        results = []
        compiled = torch.compile(function, backend="aot_eager", fullgraph=placements == (S0, R))
        for each in (compiled, function):
            scores = spread(x, placements).requires_grad_()
            value = each(scores)
            slope = torch.autograd.grad(value, scores, torch.ones_like(value))[0].full_tensor()
            results.append([value.detach().full_tensor(), slope])
        farthest = max(farthest, *(apart(a, b) for a, b in zip(*results, strict=True)))
    return farthest


def of_compiled_again(rank: int) -> float:
    """The same of functions that were compiled for other sizes, and for scores that are sharded otherwise."""
    farthest = 0.0
    compiled = torch.compile(sm.sparsemax, backend="aot_eager")
    for placements in ((S0, R), (R, S1), (S1, S0)):
        scores = spread(normal(4, 6, seed=1), placements)
        farthest = max(farthest, apart(compiled(scores).full_tensor(), sm.sparsemax(scores).full_tensor()))
    compiled = torch.compile(sm.entmax15_loss, backend="aot_eager")
    for rows in (4, 6, 3):
        scores, labels = spread(normal(rows, 6, seed=1), (S0, R)), torch.arange(rows)
        farthest = max(farthest, apart(compiled(scores, labels).full_tensor(), sm.entmax15_loss(scores, labels).full_tensor()))
    return farthest


@pytest.mark.exhaustive
def test_compiled_functions_take_other_sizes_and_shards(four: Processes) -> None:
    assert max(four.run(of_compiled_again)) <= 1e-14


@pytest.mark.exhaustive
def test_compiled_functions_do_the_same(four: Processes) -> None:
    assert max(four.run(of_compiled)) <= 1e-14
