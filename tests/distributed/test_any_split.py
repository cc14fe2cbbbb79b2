"""Rows split among three ranks in any way: results are those of one process, the same on every rank and again, by one message."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from processes import Pool
from shards import apart, finite, normal, own_of
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.profiler import ProfilerActivity, profile

import softmaxima as sm
from conftest import DTYPES, at_most
from softmaxima.distributed import messages
from softmaxima.losses import REGISTRY as LOSSES
from softmaxima.maps import REGISTRY as MAPS

SHARED = [name for name, map in MAPS.items() if map.blocks is not None]
FORMED = [name for name, loss in LOSSES.items() if loss.row_form is not None]
# Messages where no rank has more scores than one has room for: one of a state, and one of a loss of probabilities.
MESSAGES = {"minp_softmax": 2} | {name: 2 for name in FORMED if LOSSES[name].row_form.of_p is not None}
# Units in the last place of a number, of what is smaller at LEAST, from float64: itself rounded a few times, where one process
# rounds otherwise. Kernels add float32 in float32, in one process too: a loss near 0 has the rounding of numbers near 1.
LIMIT = {torch.float64: 8.0, torch.float32: 3.0, torch.bfloat16: 1.0, torch.float16: 1.0}
LEAST = {torch.float64: 1.0, torch.float32: 1e-3, torch.bfloat16: 1e-3, torch.float16: 1e-3}
OF_SUMS = {**LIMIT, torch.float32: 2.0}, {**LEAST, torch.float32: 1.0}


@st.composite
def splits(draw: st.DrawFn) -> dict[str, Any]:
    """How many scores each rank has, some of them none; which dtype; what is masked, of some ranks everything."""
    widths = draw(st.lists(st.sampled_from([0, 0, 1, 2, 5, 9]), min_size=3, max_size=3).filter(any))
    return {
        "widths": tuple(widths),
        "dtype": draw(st.sampled_from(DTYPES)),
        "seed": draw(st.integers(0, 99)),
        "scale": draw(st.sampled_from([0.1, 2.0, 30.0])),
        "masked": draw(st.sampled_from([None, "some", "a rank", "all"])),
        "soft": draw(st.booleans()),
    }


def scores(split: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    """(those of whole rows, which of them count)."""
    widths, seed = split["widths"], split["seed"]
    x = (split["scale"] * normal(3, sum(widths), seed=seed)).to(split["dtype"])
    if split["masked"] is None:
        return x, None
    where = normal(3, sum(widths), seed=seed + 100) > -0.3
    if split["masked"] == "a rank":
        where[:, own_of(seed % 3, widths)] = False
    if split["masked"] == "all":
        where[1] = False
    return x, where


def counted(call: Any) -> tuple[Any, list[int]]:
    """(what a call gives, how many bytes each collective that it begins is of)."""
    begun: list[int] = []
    gather, reduce, exchange = messages.ALL_GATHER, messages.ALL_REDUCE, messages.EXCHANGE
    messages.ALL_GATHER = lambda every, own, *given, **more: (begun.append(own.nbytes), gather(every, own, *given, **more))[1]
    messages.ALL_REDUCE = lambda total, **more: (begun.append(total.nbytes), reduce(total, **more))[1]
    messages.EXCHANGE = lambda into, own, *given, **more: (begun.append(len(into) + len(own)), exchange(into, own, *given, **more))[
        1
    ]
    try:
        return call(), begun
    finally:
        messages.ALL_GATHER, messages.ALL_REDUCE, messages.EXCHANGE = gather, reduce, exchange


def twice(call: Any) -> tuple[Tensor, int]:
    """(what a call gives, to the last bit again, how many collectives it begins)."""
    value, begun = counted(call)
    assert torch.equal(value.nan_to_num(7.0), call().nan_to_num(7.0))
    return value, len(begun)


def of_maps(rank: int, split: dict[str, Any], names: list[str]) -> list[tuple[str, Tensor, int]]:
    """(map, own probabilities, collectives)."""
    x, where = scores(split)
    own = own_of(rank, split["widths"])
    mine = x[:, own].clone()
    more = {} if where is None else {"where": where[:, own]}
    return [(name, *twice(functools.partial(getattr(sm.distributed, name), mine, **more))) for name in names]


def of_sums(rank: int, split: dict[str, Any], names: list[str]) -> list[tuple[str, Tensor, int]]:
    """(logsumexp or loss, its value for each row, collectives)."""
    x, where = scores(split)
    own, (y, weight) = own_of(rank, split["widths"]), targets(split)
    mine = x[:, own].clone()
    found = [
        ("logsumexp", *twice(functools.partial(sm.distributed.logsumexp, mine, where=None if where is None else where[:, own])))
    ]
    y = y[:, own] if split["soft"] else y
    for name in names:
        call = functools.partial(getattr(sm.distributed, name), mine, y, weight[own], reduction="none", **LOSSES[name].examples[0])
        found.append((name, *twice(call)))
    return found


def targets(split: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """(labels, one of them ignored, or probabilities; weights)."""
    n, seed = sum(split["widths"]), split["seed"]
    labels = torch.randint(n, (3,), generator=torch.Generator().manual_seed(seed))
    labels[seed % 3] = labels[seed % 3] if seed % 2 else -100
    y = normal(3, n, seed=seed + 1).softmax(-1) if split["soft"] else labels
    return y, normal(n, seed=seed + 2).abs() + 0.1


def ulps(found: Tensor, expected: Tensor, least: float) -> float:
    """How far from float64 values, in units in the last place there, or at `least` where they are smaller."""
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.isinf(), expected.to(found.dtype).isinf())
    keep = found.isfinite()
    unit = torch.finfo(found.dtype).eps * expected[keep].abs().clamp_min(least).log2().floor().exp2()
    return float(((found[keep].double() - expected[keep]).abs() / unit).max()) if keep.any() else 0.0


@pytest.mark.parametrize("part", range(4))
@at_most(12)
@given(split=splits())
def test_every_map_of_any_split_is_that_of_one_process(part: int, pool: Pool, split: dict[str, Any]) -> None:
    names = SHARED[part::4]
    every = pool.group(range(3)).run(of_maps, split, names)
    x, where = scores(split)
    for number, name in enumerate(names):
        assert {each[number][2] for each in every} == {MESSAGES.get(name, 1)}, name
        p = torch.cat([each[number][1] for each in every], -1)
        assert p.dtype == split["dtype"]
        whole = getattr(sm, name)(x.double(), **({} if where is None else {"where": where}))
        far = ulps(p, whole, LEAST[split["dtype"]])
        assert far <= LIMIT[split["dtype"]], (name, far)


@pytest.mark.parametrize("part", range(2))
@at_most(12)
@given(split=splits())
def test_every_loss_and_sum_of_any_split_is_that_of_one_process(part: int, pool: Pool, split: dict[str, Any]) -> None:
    names = FORMED[part::2]
    every = pool.group(range(3)).run(of_sums, split, names)
    x, where = scores(split)
    y, weight = targets(split)
    for number, name in enumerate(["logsumexp", *names]):
        values = [each[number][1] for each in every]
        assert all(torch.equal(values[0].nan_to_num(7.0), value.nan_to_num(7.0)) for value in values)
        assert {each[number][2] for each in every} == {MESSAGES.get(name, 1)}, name
        if name == "logsumexp":
            whole = sm.logsumexp(x.double(), where=where)
        else:
            whole = getattr(sm, name)(x.double(), y, weight, reduction="none", **LOSSES[name].examples[0])
        limit, least = (of[split["dtype"]] for of in OF_SUMS)
        far = ulps(values[0], whole, least)
        assert far <= limit, (name, far)


def of_padding(rank: int, names: list[str]) -> list[tuple[str, float, int, int]]:
    """(way and loss, how far from the loss of the rows that count, bytes of a call, and how many it should have)."""
    mesh = init_device_mesh("cpu", (2,))
    return [each for name in names for each in padded(name, own_of(rank, (200, 200)), mesh)]


def padded(name: str, own: slice, mesh: DeviceMesh) -> list[tuple[str, float, int, int]]:
    n, y, options = 400, torch.tensor([[-100, 7], [399, -100], [0, -100]]), LOSSES[name].examples[0]
    x, hidden, weight = normal(3, 2, n, seed=1), normal(3, 2, 8, seed=2), normal(n, 8, seed=3)
    x[0, 0, 3], x[1, 1, 300], x[2, 1], hidden[0, 0] = math.nan, math.inf, -math.inf, math.nan
    seen, found = y != -100, []
    mine = x.movedim(-1, 1)[:, own].contiguous().requires_grad_()
    plain, shared = (functools.partial(getattr(of, name), **options) for of in (sm, sm.distributed))
    layer = functools.partial(sm.distributed.linear_loss, weight=weight[own], loss=(name, options))
    expected, few = counted(lambda: shared(x[seen][:, own], y[seen]))
    of_layer, few_of_layer = counted(lambda: layer(hidden[seen], target=y[seen]))
    for way, whole, limit, call in (
        ("own", expected, few, lambda: shared(mine, y)),
        ("DTensor", expected, few, lambda: plain(DTensor.from_local(mine, mesh, [Shard(1)]), y)),
        ("layer", of_layer, few_of_layer, lambda: layer(hidden, target=y)),
    ):
        value, sent = counted(call)
        found.append((f"{way} {name}", apart(value.detach(), whole), sum(sent), sum(limit)))
        if value.requires_grad:
            (slope,) = torch.autograd.grad(value, mine)
            assert not slope.movedim(1, -1)[~seen].any(), name
    return found


def test_a_row_that_is_ignored_sends_nothing(pool: Pool) -> None:
    for every in pool.group(range(2)).run(of_padding, FORMED):
        for what, far, sent, limit in every:
            assert far <= 1e-14, what
            assert sent <= limit, what


def of_a_small_call(rank: int, names: list[str]) -> list[tuple[str, int, int]]:
    """(map or loss, how many operations its value and gradient take, how many messages)."""
    x, own, y, found = normal(4, 400, seed=1), own_of(rank, (200, 200)), torch.tensor([3, 250, 120, 399]), []
    for name in names:
        shard, call = x[:, own].clone().requires_grad_(), getattr(sm.distributed, name)
        call = functools.partial(call, target=y, **LOSSES[name].examples[0]) if name in FORMED else call
        with profile(activities=[ProfilerActivity.CPU]) as operations:
            _, sent = counted(lambda call=call, shard=shard: torch.autograd.grad(finite(call(shard)).sum(), shard))
        number = sum(each.count for each in operations.key_averages() if each.key.startswith("aten::"))
        found.append((name, number, len(sent)))
    return found


def test_a_small_call_takes_few_operations_and_messages(pool: Pool) -> None:
    for found in pool.group(range(2)).run(of_a_small_call, [*SHARED, *FORMED]):
        for name, number, sent in found:
            assert number <= 2500, name  # nested ones too, which differ among versions of torch
            assert sent == MESSAGES.get(name, 1) + (name in SHARED), name
