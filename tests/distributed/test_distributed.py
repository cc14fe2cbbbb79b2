"""Maps, losses and sums of scores on three ranks, beside one process with all of them; what calls send; and ranks that disagree."""

from __future__ import annotations

import functools
import gc
import itertools
import math
import os
import time
import weakref
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import Pool, Processes
from shards import apart, finite, in_turns, learnt_of, normal, own_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import softmaxima as sm
from conftest import Case, LossCase, cases, exhaustively, some
from softmaxima.distributed import RanksError, messages, rows
from softmaxima.losses import REGISTRY as LOSSES
from softmaxima.maps import REGISTRY as MAPS

WIDTHS = [(5, 0, 4), exhaustively((3, 3, 3)), exhaustively((0, 0, 9)), exhaustively((1, 2, 6))]
SHARED = [name for name, map in MAPS.items() if map.blocks is not None]
FORMED = [name for name, loss in LOSSES.items() if loss.row_form is not None]


# Maps -------------------------------------------------------------------------------------------------------------------------


def of_a_map(rank: int, name: str, widths: tuple[int, ...], dim: int) -> float:
    """The largest deviation of probabilities and of gradients by scores, temperature and parameters, in units of 1e-13."""
    shape, own, farthest = [4, 3], own_of(rank, widths), 0.0
    shape.insert(dim if dim >= 0 else 2, sum(widths))
    x, g, where = 3 * normal(*shape, seed=1), normal(*shape, seed=2), normal(*shape, seed=3) > -0.6
    per_row = list(shape)
    per_row[dim] = 1
    cut = lambda values: values.movedim(dim, -1)[..., own].movedim(-1, dim)
    where = where & (normal(*per_row, seed=4) > -1.5)  # some rows have nothing
    learnt = learnt_of(MAPS[name], per_row)
    options: list[Any] = [(1.0, None, {}), (normal(*per_row, seed=6).abs() + 0.5, where, {}), (0.7, None, learnt)]
    every = list(itertools.product(cases(MAPS[name]), options))

    def results(case: Case, tau: Any, mask: Tensor | None, params: dict[str, Any], shared: bool) -> list[Tensor]:
        scores = (cut(x) if shared else x).clone().requires_grad_()
        wrt = [scores, *(value.requires_grad_() for value in (tau, *params.values()) if isinstance(value, Tensor))]
        given: Any = {**case.params, **params, "temperature": tau}
        if mask is not None:
            given["where"] = cut(mask) if shared else mask
        p = getattr(sm.distributed if shared else sm, name)(scores, dim=dim, **given)
        return [p.detach(), *torch.autograd.grad((finite(p) * (cut(g) if shared else g)).sum(), wrt)]

    every = [*every[: len(options)], *some(every[len(options) :], name, widths, dim)]
    whole = in_turns([functools.partial(results, case, *given, shared=False) for case, given in every])
    for (case, given), (p, slope, *slopes) in zip(every, whole, strict=True):
        expected = [cut(p), cut(slope), *slopes]
        farthest = max(farthest, *(apart(a, b) for a, b in zip(results(case, *given, shared=True), expected, strict=True)))
    return farthest / 1e-13


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("name", SHARED)
def test_every_map_is_that_of_whole_rows(name: str, widths: tuple[int, ...], three: Processes) -> None:
    assert max(three.run(of_a_map, name, widths, -1)) <= 1


@pytest.mark.parametrize("name", ["softmax", exhaustively("entmax")])
def test_any_axis(name: str, three: Processes) -> None:
    assert max(three.run(of_a_map, name, (2, 3, 0), 0)) <= 1
    assert max(three.run(of_a_map, name, (2, 0, 3), 1)) <= 1


def of_a_dtype(rank: int, name: str) -> tuple[bool, list[Any]]:
    """(whether probabilities of narrow scores are those of whole rows in double, rounded once; their dtype, and if so again)."""
    x, own = 2 * normal(6, 40, seed=1, dtype=torch.bfloat16), own_of(rank, (13, 20, 7))
    p = getattr(sm.distributed, name)(x[:, own])
    whole = getattr(sm, name)(x.double())[:, own].to(torch.bfloat16)
    return torch.equal(p, whole), [p.dtype, getattr(sm.distributed, name)(x[:, own]).equal(p)]


@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax15", "topk_softmax"])
def test_narrow_scores_are_rounded_once_and_alike_again(name: str, three: Processes) -> None:
    for exact, (own, again) in three.run(of_a_dtype, name):
        assert exact
        assert own is torch.bfloat16
        assert again


def of_many_candidates(rank: int) -> tuple[float, list[int]]:
    """Rows of which more scores than one message has room for can be in the support, and what was sent."""
    x, own, sent = 1e-3 * normal(60, 600, seed=1), own_of(rank, (300, 100, 200)), []
    gather = messages.ALL_GATHER
    messages.ALL_GATHER = lambda out, message, *more, **how: (sent.append(message.numel()), gather(out, message, *more, **how))[1]
    try:
        far = apart(sm.distributed.sparsemax(x[:, own]), sm.sparsemax(x)[:, own])
        far = max(far, apart(sm.distributed.sparsemax(40 * x[:, own]), sm.sparsemax(40 * x)[:, own]))
    finally:
        messages.ALL_GATHER = gather
    return far, sent


def test_a_second_message_comes_where_a_support_is_wide_and_only_there(three: Processes) -> None:
    for far, sent in three.run(of_many_candidates):
        assert far <= 1e-13
        assert sent == [60 * (rows.CANDIDATES + 1), 60 * 300, 60 * (rows.CANDIDATES + 1)]


class Searches(TorchDispatchMode):
    """How often the largest scores are looked for."""

    number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += func is torch.ops.aten.topk.default
        return func(*args, **(kwargs or {}))


def of_searches(rank: int) -> tuple[int, float]:
    x, g, own = 3 * normal(4, 900, seed=1), normal(4, 900, seed=2), own_of(rank, (500, 0, 400))
    scores, whole = x[:, own].clone().requires_grad_(), x.requires_grad_()
    p = sm.distributed.entmax15(scores)
    with Searches() as searches:
        p.backward(g[:, own])
    (expected,) = torch.autograd.grad(sm.entmax15(whole), whole, g)
    assert scores.grad is not None
    return searches.number, apart(scores.grad, expected[:, own])


def test_the_gradient_looks_for_no_support_again(three: Processes) -> None:
    for number, far in three.run(of_searches):
        assert number == 0
        assert far <= 1e-13


def of_a_nucleus(rank: int) -> list[tuple[float, bool, list[int]]]:
    """Of rows whose nucleus is among the largest scores of each rank, or not, or both: (how far results are, in what p, gradient
    and loss are rounded to, whether the same scores are kept, what was sent).
    """
    widths = (300, 100, 200)
    own, y, sent, found = own_of(rank, widths), torch.tensor([5, 310, 599]).repeat(20), list[int](), list[Any]()
    few, many = 4 * normal(60, 600, seed=1), 1e-3 * normal(60, 600, seed=2)
    tied = (normal(3, 600, seed=3) > 1.4).double() * torch.tensor([[9.0], [8.0], [30.0]])  # some 48 equal scores
    several, tied = torch.cat((few[:59], many[:1])), tied.repeat(20, 1)
    gather = messages.ALL_GATHER
    keep = lambda out, message, *more, **how: (sent.append(message.numel()), gather(out, message, *more, **how))[1]
    for x, p in ((few, 0.5), (many, 0.9), (several, 0.9), (tied, 0.8), (tied.bfloat16(), 0.8), (few, 1.0)):
        whole, shard = x.double().requires_grad_(), x[:, own].clone().requires_grad_()
        messages.ALL_GATHER = keep
        try:
            ours, loss = sm.distributed.topp_softmax(shard, p=p), sm.distributed.sparse_softmax_loss(shard, y, p=p)
        finally:
            messages.ALL_GATHER = gather
        theirs, g = sm.topp_softmax(whole, p=p), normal(60, 600, seed=4)
        slopes = torch.autograd.grad((ours * g[:, own]).sum() + loss, shard)[0]
        least = sm.sparse_softmax_loss(whole, y, p=p)
        expected = torch.autograd.grad((theirs * g).sum() + least, whole)[0][:, own]
        pairs = [(ours, theirs[:, own].to(x.dtype)), (slopes, expected.to(x.dtype)), (loss, least.to(x.dtype))]
        narrow = 1e-13 if x.dtype == torch.float64 else 2 * torch.finfo(x.dtype).eps
        found.append(
            (max(apart(a.detach(), b.detach()) for a, b in pairs) / narrow, torch.equal(ours > 0, theirs[:, own] > 0), sent[:])
        )
        sent.clear()
    return found


def test_a_nucleus_among_the_largest_scores_of_ranks_is_one_message(three: Processes) -> None:
    first, others, last = 60 * (7 + 2 * rows.CANDIDATES), [60 * 263] * 8, 60 * (8 + rows.CANDIDATES)
    for found in three.run(of_a_nucleus):
        assert max(far for far, _, _ in found) <= 1
        assert all(same for _, same, _ in found)
        few, many, several, *tied, all_scores = [sent for _, _, sent in found]
        for one in (few, *tied):  # the map's, and the loss's with the scores of its labels
            assert one == [first, first + 60]
        for more in (many, several):
            assert more == [first, *others, last, first + 60, *others, last]
        assert all_scores == [180, 240]


# Losses and sums --------------------------------------------------------------------------------------------------------------


def of_a_loss(rank: int, name: str, widths: tuple[int, ...]) -> float:
    """The largest deviation of values and gradients, in units of 1e-13."""
    n, own, farthest = sum(widths), own_of(rank, widths), 0.0
    labels, soft = torch.tensor([0, n - 1, -100, 3, 2]), normal(5, n, seed=1).softmax(-1)
    weight = normal(n, seed=2).abs() + 0.1
    every: list[tuple[dict[str, Any], Tensor, Tensor, dict[str, Any]]] = []
    for options in LOSSES[name].examples:
        case = LossCase(LOSSES[name], options)
        x = case.scores(5, n, seed=3)
        calls: list[tuple[Tensor, dict[str, Any]]] = [(labels, {}), (labels, {"weight": weight}), (labels, {"reduction": "none"})]
        calls += [(labels, {"temperature": 0.5, "reduction": "sum"})]
        calls += [(soft, {"weight": weight, "label_smoothing": 0.3}), (labels, {"weight": weight, "label_smoothing": 0.3})]
        calls += [(soft, {}), (labels, {"label_smoothing": 0.1})]
        every += [(options, x, *call) for call in (calls if not every else some(calls, name, options, widths))]

    def results(options: dict[str, Any], x: Tensor, target: Tensor, more: dict[str, Any], shared: bool) -> tuple[Tensor, Tensor]:
        scores = (x[:, own] if shared else x).clone().requires_grad_()
        mine = {**more, "weight": weight[own]} if shared and "weight" in more else more
        y = target[:, own] if shared and target.is_floating_point() else target
        loss = getattr(sm.distributed if shared else sm, name)(scores, y, **mine, **options)
        return loss.detach(), torch.autograd.grad(loss.sum(), scores)[0]

    whole = in_turns([functools.partial(results, *call, shared=False) for call in every])
    for call, (expected, expected_slope) in zip(every, whole, strict=True):
        loss, slope = results(*call, shared=True)
        farthest = max(farthest, apart(loss, expected), apart(slope, expected_slope[:, own]))
    return farthest / 1e-13


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("name", FORMED)
def test_every_loss_is_that_of_whole_rows(name: str, widths: tuple[int, ...], three: Processes) -> None:
    assert max(three.run(of_a_loss, name, widths)) <= 1


def of_pictures(rank: int) -> tuple[float, float]:
    """Classes on the second axis of three, and the loss itself, which is to be the same on all ranks."""
    x, own = normal(2, 7, 4, seed=1), own_of(rank, (3, 0, 4))
    target = torch.arange(8).view(2, 4) % 7
    loss = sm.distributed.cross_entropy(x[:, own], target)
    return float(loss), apart(loss, sm.cross_entropy(x, target))


def test_classes_are_on_the_second_axis(three: Processes) -> None:
    found = three.run(of_pictures)
    assert len({loss for loss, _ in found}) == 1
    assert max(far for _, far in found) <= 1e-15


def of_a_sum(rank: int) -> float:
    x, own = 5 * normal(4, 9, 3, seed=1), own_of(rank, (4, 0, 5))
    tau, farthest = (normal(4, 1, 3, seed=2).abs() + 0.5).requires_grad_(), 0.0
    every: list[dict[str, Any]] = [{}, {"keepdim": True}, {"where": normal(4, 9, 3, seed=3) > 0.5}, {"temperature": tau}]
    every += [{"dim": (0, 1)}, {"dim": (2, -2), "keepdim": True}]
    for options in every:
        results = []
        for shared in (False, True):
            scores = (x[:, own] if shared else x).clone().requires_grad_()
            mine = {**options, "where": options["where"][:, own]} if shared and "where" in options else options
            of: Any = sm.distributed if shared else sm
            value = of.logsumexp(scores, **{"dim": 1, **mine})
            slopes = torch.autograd.grad(finite(value).square().sum(), [scores, *([tau] if "temperature" in options else [])])
            results.append([value.detach(), slopes[0] if shared else slopes[0][:, own], *slopes[1:]])
        farthest = max(farthest, *(apart(a, b) for a, b in zip(*reversed(results), strict=True)))
    return farthest


def test_logsumexp_is_that_of_whole_rows(three: Processes) -> None:
    assert max(three.run(of_a_sum)) <= 1e-14


def of_infinities(rank: int) -> tuple[bool, bool]:
    """Whether the sum and its gradient are those of one process, where +∞ is on two ranks, by a number as τ and by a tensor."""
    x, own = normal(3, 9, seed=1), own_of(rank, (4, 0, 5))
    x[0, [1, 2, 7]], x[1, 8] = math.inf, math.inf
    same = []
    for tau in (2.0, torch.full((3, 1), 2.0).requires_grad_()):
        whole, scores = x.clone().requires_grad_(), x[:, own].clone().requires_grad_()
        value = sm.distributed.logsumexp(scores, temperature=tau)
        ours = torch.autograd.grad(value.sum(), scores)[0]
        theirs = torch.autograd.grad(sm.logsumexp(whole, temperature=2.0).sum(), whole)[0][:, own]
        same.append(bool((value[:2] == math.inf).all()) and apart(ours, theirs) <= 1e-15)
    return tuple(same)


def test_the_gradient_of_an_infinite_sum_is_shared_among_the_infinities_of_all_ranks(three: Processes) -> None:
    assert all(all(same) for same in three.run(of_infinities))


def of_floats(rank: int, name: str) -> list[float]:
    """By the kernels of the CPU: how far values and gradients are from the same numbers in double, in float32 epsilons."""
    own, labels = own_of(rank, (200, 0, 100)), torch.tensor([0, 299, -100, 150, 42])
    x = 3 * normal(5, 300, seed=1, dtype=torch.float32)
    x[2] = math.nan  # of the row that is left out
    x[1, 7] = -math.inf
    x[3, 150] += 12.0  # p is nearly 1, but p − 1 has digits in double
    weight, found = normal(300, seed=2).abs() + 0.1, []
    for options in ({}, {"reduction": "none"}, {"weight": weight}, {"temperature": 0.5}):
        results = []
        for scores in (x.double(), x[:, own]):
            scores, more = scores.clone().requires_grad_(), dict(options)
            if scores.shape[-1] < 300 and "weight" in more:
                more["weight"] = weight[own]
            loss = getattr(sm.distributed if scores.dtype == torch.float32 else sm, name)(scores, labels, **more)
            slope = torch.autograd.grad(loss.sum(), scores)[0]
            results.append((loss.detach(), slope if scores.dtype == torch.float32 else slope[:, own]))
        for theirs, ours in zip(*results, strict=True):
            gap = (ours.double() - theirs).abs() / theirs.abs().clamp_min(1e-30)
            found.append(float(gap.max()) / torch.finfo(torch.float32).eps if gap.numel() else 0.0)
    x = torch.where(x.isnan(), -math.inf, x)  # a row of nothing
    p = sm.distributed.softmax(x[:, own])
    theirs = sm.softmax(x.double())[:, own]
    return [*found, float(((p - theirs).abs() / theirs.clamp_min(1e-30)).max()) / 1.2e-7 if p.numel() else 0.0]


@pytest.mark.parametrize("name", ["cross_entropy", "elastic_cross_entropy", "eps_cross_entropy", "sparsemax_loss"])
def test_floats_are_as_right_as_by_one_process(name: str, three: Processes) -> None:
    for found in three.run(of_floats, name):
        assert max(found) <= 8, found


# What is sent -----------------------------------------------------------------------------------------------------------------


def of_messages(rank: int, name: str) -> tuple[list[int], list[int]]:
    """(numbers sent by a forward pass, by a backward pass), of two rows."""
    x, own, sent = normal(2, 12, seed=1), own_of(rank, (4, 4, 4)), []
    gather = messages.ALL_GATHER
    messages.ALL_GATHER = lambda out, message, *more, **how: (sent.append(message.numel()), gather(out, message, *more, **how))[1]
    try:
        scores = x[:, own].clone().requires_grad_()
        function = getattr(sm.distributed, name)
        value = function(scores, torch.tensor([3, 11])) if name in FORMED else function(scores)
        forward = list(sent)
        value.sum().backward()
    finally:
        messages.ALL_GATHER = gather
    return forward, sent[len(forward) :]


@pytest.mark.parametrize(
    ("name", "forward", "backward"),
    [
        ("softmax", [6], [6]),
        ("logsumexp", [6], []),
        ("cross_entropy", [8], []),
        ("sparsemax", [10], [8]),
        ("sparsemax_loss", [12], []),
        ("entmax_loss", [12], []),
    ],
)
def test_a_call_is_one_message(name: str, forward: list[int], backward: list[int], three: Processes) -> None:
    for found in three.run(of_messages, name):
        assert found[0] == forward
        assert len(found[1]) == len(backward)


# Ranks that disagree ------------------------------------------------------------------------------------------------------------


def told(rank: int, what: str) -> str:
    """What a wrong call raises on this rank."""
    x = normal(3, 4, seed=rank)
    try:
        if what == "rows":
            sm.distributed.softmax(x[: 3 - (rank == 1)])
        elif what == "dtypes":
            sm.distributed.softmax(x.float() if rank == 2 else x)
        elif what == "maps":
            sm.distributed.shared_map("softmax" if rank else "sparsemax", x)
        elif what == "parameters":
            sm.distributed.entmax(x, alpha=1.5 if rank else 1.3)
        elif what == "one refuses":
            sm.distributed.softmax(x, temperature=-1.0 if rank == 1 else 1.0)
        elif what == "no class":
            sm.distributed.cross_entropy(x, torch.tensor([0, 12, 3]))
        elif what == "NaN":
            sm.distributed.sparsemax(x if rank != 1 else x.fill_(math.nan))
        elif what == "reduction":
            sm.distributed.cross_entropy(x, torch.tensor([0, 1, 3]), reduction="sum" if rank else "mean")
        elif what == "labels":
            sm.distributed.cross_entropy(x, torch.tensor([0, 11, 5 + (rank == 1)]))
        elif what == "a gradient":
            sm.distributed.softmax(x.requires_grad_(rank == 1))
        elif what == "a gradient by τ":
            sm.distributed.logsumexp(x, temperature=torch.ones(3, 1).double().requires_grad_(rank == 2))
        elif what == "a gradient of places":
            sm.distributed.unshard(x.requires_grad_(rank == 0), layout="contiguous")
        elif what == "any error":
            sm.distributed.shared_loss("cross_entropy", x, torch.zeros(3).long(), temperature=Broken() if rank == 1 else 1.0)
        elif what == "second derivative":
            scores = x.requires_grad_()
            (slope,) = torch.autograd.grad(sm.distributed.softmax(scores)[:, 0].sum(), scores, create_graph=True)
            slope.sum().backward()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


class Broken(torch.nn.Module):
    """A temperature that is not to be had."""

    def forward(self) -> Tensor:
        raise KeyError("temperatures")


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("rows", "rows must be the same on all ranks, got (3,) on rank 0, (2,) on rank 1, (3,) on rank 2"),
        ("dtypes", "dtype must be the same on all ranks, got torch.float64 on rank 0, torch.float64 on rank 1, torch.float32"),
        ("maps", "call must be the same on all ranks, got distributed.sparsemax on rank 0, distributed.softmax on rank 1"),
        ("parameters", "alpha must be the same on all ranks, got 1.3 on rank 0, 1.5 on rank 1, 1.5 on rank 2"),
        ("no class", "each target must be a label on one rank, got 12 in a row, found on 0; ranks 0, 1, 2 have 12 classes"),
        ("NaN", "there are NaN, or +∞ that have no probability, in the scores of rank 1"),
        ("reduction", "reduction must be the same on all ranks, got mean on rank 0, sum on rank 1, sum on rank 2"),
        ("labels", "target must be the same on all ranks, got 3 labels from 0 to 11 with the checksum"),
        ("a gradient", "gradients must be the same on all ranks, got none on rank 0, scores on rank 1, none on rank 2"),
        ("a gradient by τ", "gradients must be the same on all ranks, got none on rank 0, none on rank 1, temperature on rank 2"),
        ("a gradient of places", "gradients must be the same on all ranks, got shard on rank 0, none on rank 1, none on rank 2"),
        ("any error", "KeyError: 'temperatures'"),
        ("second derivative", "there is no second derivative; gather the scores, and take the map of whole rows"),
    ],
)
def test_what_differs_is_told_on_every_rank(what: str, words: str, three: Processes) -> None:
    for found in three.run(told, what):
        assert words in found


def test_a_rank_that_refuses_its_arguments_says_so_to_all(three: Processes) -> None:
    first, second, third = three.run(told, "one refuses")
    assert second.startswith("InputError: distributed.softmax: temperature must be positive")
    expected = f"RanksError: distributed.softmax: refused on rank 1: {second}"
    assert first == third == expected


def leave(rank: int, how: str) -> str:
    """One rank ends or hangs; what the others raise, and after how long."""
    begun, x = time.monotonic(), normal(3, 4, seed=rank)
    if rank == 1:
        if how == "ends":
            os._exit(3)
        time.sleep(12.0)
    try:
        sm.distributed.softmax(x)
    except RuntimeError as error:
        return f"{type(error).__name__} {time.monotonic() - begun:.0f}: {error}"
    return "nothing"


@pytest.mark.parametrize("how", ["ends", exhaustively("hangs")])
def test_a_rank_that_ends_or_hangs_is_named(how: str, pool: Pool) -> None:
    for rank, (found, error) in enumerate(pool.group(range(3), seconds=4.0).outcomes(leave, how)):
        if rank != 1:
            assert error is None
            assert found.startswith("RanksError")
            assert "from rank 1 within 4 s" in found
        elif how == "ends":
            assert error == "gone"


def test_without_a_group_it_says_how_to_make_one() -> None:
    assert not dist.is_initialized()
    with pytest.raises(RuntimeError, match=r"distributed.softmax: there is no process group; call torch.distributed.init_process"):
        sm.distributed.softmax(torch.zeros(3))
    with pytest.raises(AttributeError, match="no attribute 'softmox'"):
        sm.distributed.softmox(torch.zeros(3))
    assert RanksError.__mro__[1] is RuntimeError


def of_odd_rows(rank: int) -> list[str]:
    """What goes wrong with no rows, with a β of −∞ and with a rank that has NaN alone."""
    nothing = torch.zeros(0, rank + 1)
    wrong = [f"{name} of no rows" for name in SHARED if getattr(sm.distributed, name)(nothing).shape != nothing.shape]
    x, own = normal(3, 9, seed=1), own_of(rank, (4, 0, 5))
    found = sm.distributed.elastic_softmax(x[:, own], beta=-math.inf)
    wrong += [] if apart(found, sm.softmax(x)[:, own]) <= 1e-15 else ["elastic softmax without a sink"]
    for function in (sm.distributed.logsumexp, sm.distributed.softmax):
        try:
            function(torch.full((1, 2), math.nan if rank == 2 else 0.0))
        except RanksError as error:
            wrong += [] if "in the scores of rank 2" in str(error) else [str(error)]
        else:
            wrong.append(f"{function.__name__} of NaN")
    return wrong


def test_no_rows_no_sink_and_a_rank_of_nan_alone(three: Processes) -> None:
    assert three.run(of_odd_rows) == [[], [], []]


def of_groups_that_were(rank: int) -> list[bool]:
    """Whether a group, and the store of its ranks' talk, are gone when it was destroyed, where calls and graphs have used it."""
    gone = []
    for _ in range(2):
        group = dist.new_group([0, 1, 2])
        there, x = weakref.ref(group), normal(3, 4, seed=rank).requires_grad_()
        loss = sm.distributed.cross_entropy(x, torch.tensor([0, 11, 5]), group=group)
        (loss + sm.distributed.sparsemax(x, group=group).square().sum()).backward()
        assert sm.distributed.logsumexp(x, group=group).grad_fn is not None
        dist.destroy_process_group(group)
        del group
        gc.collect()
        gone.append(there() is None)
    return gone


def test_a_group_that_was_destroyed_is_freed(three: Processes) -> None:
    assert three.run(of_groups_that_were) == [[True, True]] * 3


def of_changes(rank: int) -> list[str]:
    """What a backward pass says of a mask, and of targets, that were changed since."""
    x, own, told = normal(3, 9, seed=1), own_of(rank, (4, 0, 5)), []
    mask, y = torch.ones(3, 9, dtype=torch.bool)[:, own].clone(), sm.softmax(normal(3, 9, seed=2))[:, own].clone()
    tau = torch.ones(3, 1, dtype=torch.float64)
    warm = lambda scores: sm.distributed.cross_entropy(scores, torch.tensor([0, 1, 8]), temperature=tau)
    masked = lambda scores: sm.distributed.softmax(scores, where=mask)
    summed = lambda scores: sm.distributed.logsumexp(scores, where=mask)
    soft = lambda scores: sm.distributed.cross_entropy(scores, y)
    for function, kept in ((masked, mask), (summed, mask), (soft, y), (warm, tau)):
        value = function(x[:, own].clone().requires_grad_()).square().sum()
        kept.zero_()
        try:
            value.backward()
        except RuntimeError as error:
            told.append(str(error))
    return told


def test_what_the_gradient_needs_must_not_be_changed(three: Processes) -> None:
    for told in three.run(of_changes):
        assert len(told) == 4
        assert all("changed in place after the call" in each for each in told)
