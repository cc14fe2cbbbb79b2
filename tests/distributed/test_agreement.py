"""What three ranks must agree on, each option by itself; and what one of them raises once they have agreed."""

from __future__ import annotations

import dataclasses
import decimal
import enum
import fractions
import functools
import inspect
import math
import operator
import time
import types
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.utils.checkpoint
from processes import Processes
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

import softmaxima as sm
from softmaxima.distributed import RanksError, agreement
from softmaxima.distributed.ranks import Ranks, ranks_of

d = sm.distributed
X = torch.arange(12.0, dtype=torch.float64).view(3, 4)
LABELS = torch.tensor([0, 11, 5])
LAYER: dict[str, Any] = {"hidden": X, "weight": X[:, :4], "target": torch.tensor([0, 8, 5])}
PARTS: dict[str, Any] = dict.fromkeys(("query", "key", "value"), X.view(1, 3, 4))

# What a rank has for itself: its part of the rows, and how it computes that
OWN = {
    "shard", "target", "group", "where", "hidden", "weight", "bias", "class_weight", "chunk", "generator", "sampler", "sparse",
    "query", "key", "value", "attn_mask", "total", "count", "params", "options", "shared", "map", "loss",
}  # fmt: skip


def rows(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).unsqueeze(-1)


def power(exponent: int) -> Callable[[Tensor], Tensor]:
    return lambda z: z.abs() ** exponent + 1


# Of the same names as those that are registered, and with other contents
OTHER_MAP = dataclasses.replace(sm.maps.REGISTRY["sparsemax"], blocks=sm.maps.REGISTRY["entmax15"].blocks)
ANOTHER_MAP = dataclasses.replace(sm.maps.REGISTRY["sparsemax"], blocks=sm.maps.REGISTRY["softmax"].blocks)
OTHER_LOSS = dataclasses.replace(
    sm.losses.REGISTRY["sparsemax_loss"], row_form=sm.losses.REGISTRY["entmax15_loss"].row_form, map="entmax15"
)

# (a call, what it is given, the option that differs, its value on all ranks but one, its value there)
DIFFERING: list[tuple[str, dict[str, Any], str, Any, Any]] = [
    ("softmax", {"shard": X}, "temperature", 0.5, 0.7),
    ("softmax", {"shard": X}, "temperature", torch.tensor(0.5), torch.tensor(0.7)),
    ("softmax", {"shard": X}, "temperature", rows(1, 2, 3), rows(1, 3, 2)),
    ("softmax", {"shard": X}, "dim", -1, 0),
    ("softmax", {"shard": X}, "dtype", None, torch.float32),
    ("softmin", {"shard": X}, "temperature", rows(1, 2, 3), rows(1, 2, 4)),
    ("softmin", {"shard": X}, "dim", -1, 0),
    ("softmin", {"shard": X}, "dtype", None, torch.float32),
    ("entmax", {"shard": X}, "alpha", rows(1.5, 1.5, 1.2), rows(1.5, 1.2, 1.5)),
    ("proportional", {"shard": X}, "f", torch.exp, torch.square),
    ("proportional", {"shard": X}, "f", power(2), power(4)),
    ("logsumexp", {}, "shard", X, X.clone().requires_grad_()),
    ("logsumexp", {"shard": X}, "keepdim", False, True),
    ("logsumexp", {"shard": X}, "dim", -1, 0),
    ("logsumexp", {"shard": X}, "temperature", rows(1, 2, 3), rows(3, 2, 1)),
    ("cross_entropy", {"shard": X}, "target", LABELS, LABELS[[0, 2, 1]]),
    ("cross_entropy", {"shard": X, "target": LABELS}, "reduction", "none", "sum"),
    ("cross_entropy", {"shard": X, "target": LABELS}, "ignore_index", -100, -1),
    ("cross_entropy", {"shard": X, "target": LABELS}, "label_smoothing", 0.1, 0.2),
    ("cross_entropy", {"shard": X, "target": LABELS}, "empty", "nan", "zero"),
    ("cross_entropy", {"shard": X, "target": LABELS}, "temperature", rows(1, 2, 3), rows(1, 2, 4)),
    ("cross_entropy", {"shard": X, "target": LABELS}, "weight", None, torch.ones(4, dtype=torch.float64)),
    ("fenchel_young_loss", {"shard": X, "target": LABELS}, "map", "sparsemax", "entmax15"),
    ("shared_map", {"shard": X}, "map", sm.maps.REGISTRY["sparsemax"], OTHER_MAP),
    ("shared_map", {"shard": X}, "map", OTHER_MAP, ANOTHER_MAP),
    ("shared_loss", {"shard": X, "target": LABELS}, "loss", sm.losses.REGISTRY["sparsemax_loss"], OTHER_LOSS),
    ("linear_loss", LAYER, "loss", sm.losses.REGISTRY["sparsemax_loss"], OTHER_LOSS),
    ("LinearLoss", {"in_features": 4, "classes": 9}, "loss", sm.losses.REGISTRY["sparsemax_loss"], OTHER_LOSS),
    ("linear_loss", LAYER, "loss", "sparsemax", "entmax15"),
    ("linear_loss", LAYER, "temperature", rows(1, 2, 3), rows(1, 2, 4)),
    ("linear_loss", LAYER, "softcap", 2.0, 3.0),
    ("linear_loss", LAYER, "z_loss", 0.0, 0.1),
    ("linear_loss", LAYER, "reduce_hidden", True, False),
    ("linear_loss", LAYER, "reduction", "mean", "none"),
    ("linear_loss", LAYER, "label_smoothing", 0.0, 0.1),
    ("linear_loss", LAYER, "ignore_index", -100, -1),
    ("margin_softmax_loss", LAYER, "kind", "arcface", "cosface"),
    ("margin_softmax_loss", LAYER, "margin", 0.5, 0.4),
    ("margin_softmax_loss", LAYER, "scale", rows(8, 9, 8), rows(8, 8, 9)),
    ("margin_softmax_loss", LAYER, "centres", 1, 3),
    ("margin_softmax_loss", LAYER, "samples", 2, None),
    ("margin_softmax_loss", LAYER, "reduce_hidden", True, False),
    ("margin_softmax_loss", LAYER, "reduction", "mean", "sum"),
    ("margin_softmax_loss", LAYER, "label_smoothing", 0.0, 0.1),
    ("margin_softmax_loss", LAYER, "ignore_index", -100, -1),
    *(
        ("sampled_softmax_loss", {**LAYER, "samples": 2, "sampler": "uniform"}, what, usual, other)
        for what, usual, other in (
            ("samples", 2, 3), ("correction", "log_q", "none"), ("temperature", 1.0, 2.0),
            ("reduction", "mean", "sum"), ("reduce_hidden", True, False), ("ignore_index", -100, 5),
        )
    ),
    ("sampled_softmax_loss", {**LAYER, "samples": 2, "sampler": "uniform", "correction": "log_q"}, "remove_hits", True, False),
    *(
        ("attention", PARTS, what, usual, other)
        for what, usual, other in (
            ("form", "ring", "gather"), ("layout", "contiguous", "balanced"), ("is_causal", False, True), ("first_query", 0, 1),
            ("scale", 0.5, 1.0), ("enable_gqa", False, True), ("temperature", 1.0, 2.0), ("window", 2, 1),
            ("map", "softmax", "sparsemax"), ("softcap", None, 2.0), ("alibi_slopes", torch.tensor([0.5]), torch.tensor([0.25])),
            ("key_lengths", torch.tensor([7]), torch.tensor([8])), ("bias", None, torch.zeros(3, 9, dtype=torch.float64)),
        )
    ),
    ("unshard", {"shard": X}, "dim", 0, 1),
    ("unshard", {"shard": X, "dim": 0}, "layout", "contiguous", "balanced"),
    ("LinearLoss", {"in_features": 4, "classes": 9}, "classes", 9, 8),
    ("LinearLoss", {"in_features": 4, "classes": 9}, "class_weight", torch.arange(1.0, 10), torch.arange(9.0, 0, -1)),
    ("MarginSoftmax", {"in_features": 4, "classes": 9}, "margin", 0.5, 0.4),
    ("SampledSoftmax", {"in_features": 4, "classes": 9}, "samples", 4, 5),
]  # fmt: skip
SAME_WITHOUT_EFFECT = {("attention", "enable_gqa")}  # changes nothing where heads are as many


def of_differences(rank: int) -> list[str]:
    """What each call raises where rank 1 has another value, and whether the next call is right."""
    told = []
    for name, given, what, usual, other in DIFFERING:
        try:
            getattr(d, name)(**{**given, what: other if rank == 1 else usual})
        except RanksError as error:
            told.append(str(error))
        except (TypeError, ValueError) as error:
            told.append(f"own: {error}")
        else:
            told.append("nothing")
    right = torch.allclose(d.softmax(X), sm.softmax(torch.cat([X, X, X], -1))[:, :4], rtol=1e-14, atol=0)
    return [*told, "right" if right else "wrong"]


def test_every_option_that_differs_is_named_on_every_rank(three: Processes) -> None:
    every = three.run(of_differences)
    for case, told in zip(DIFFERING, zip(*(each[:-1] for each in every), strict=True), strict=True):
        if (case[0], case[2]) not in SAME_WITHOUT_EFFECT:
            assert all("rank 1" in each for each in told), (case, told)
            assert len({each.split(": ", 1)[1] for each in told}) == 1, (case, told)
    assert [each[-1] for each in every] == ["right"] * 3


@pytest.mark.parametrize("name", sorted({name for name, *_ in DIFFERING if not name[0].isupper()}))
def test_no_option_is_left_out(name: str) -> None:
    listed = {what for other, _, what, *_ in DIFFERING if other == name}
    maps, losses = ("entmax", "proportional", "shared_map"), ("fenchel_young_loss", "shared_loss")
    shared = {"temperature", "dim", "dtype"} if name in maps else set()  # the same code as of softmax
    shared |= {"ignore_index", "label_smoothing", "reduction", "empty", "temperature"} if name in losses else set()
    assert set(inspect.signature(getattr(d, name)).parameters) <= OWN | listed | shared


# (a call, what it is given, the option, two ways to give one value)
ALIKE: list[tuple[str, dict[str, Any], str, Any, Any]] = [
    ("softmax", {"shard": X}, "temperature", 2, 2.0),
    ("entmax", {"shard": X}, "alpha", 2, 2.0),
    ("entmax_loss", {"shard": X, "target": LABELS}, "alpha", 2, 2.0),
    ("cross_entropy", {"shard": X, "target": LABELS}, "label_smoothing", 0, 0.0),
    ("linear_loss", LAYER, "loss", ("entmax", 2), ("entmax", 2.0)),
    ("linear_loss", LAYER, "z_loss", 0, -0.0),
    ("linear_loss", LAYER, "label_smoothing", 0, 0.0),
    ("linear_loss", LAYER, "softcap", 2, 2.0),
    ("margin_softmax_loss", LAYER, "margin", 1, 1.0),
    ("LinearLoss", {"in_features": 4, "classes": 9}, "loss", ("entmax", 2), ("entmax", 2.0)),
]


def of_one_value(rank: int) -> list[str]:
    """What each call raises where rank 1 gives the same value in another way."""
    told = []
    for name, given, what, usual, other in ALIKE:
        try:
            getattr(d, name)(**{**given, what: other if rank == 1 else usual})
        except (RuntimeError, TypeError, ValueError) as error:
            told.append(str(error))
    return told


def test_one_value_may_be_given_in_two_ways(three: Processes) -> None:
    assert three.run(of_one_value) == [[], [], []]


# What is raised later -----------------------------------------------------------------------------------------------------------


def fails_on_one(z: Tensor) -> Tensor:
    if dist.get_rank() == 1:
        raise ValueError("no such power")
    return z.square()


class Fails(sm.Sampler):
    """A sampler that has nothing to draw on one rank."""

    def log_prob(self, classes: Tensor) -> Tensor:
        return torch.full(classes.shape, -math.log(self.classes))

    def sample(self, *shape: Any, **more: Any) -> Tensor:
        if dist.get_rank() == 1:
            raise ValueError("nothing to draw")
        return torch.zeros(*shape, dtype=torch.long)


def a_map(group: Any) -> None:
    d.proportional(X, f=fails_on_one, group=group)


def a_sampler(group: Any) -> None:
    d.sampled_softmax_loss(**LAYER, samples=2, sampler=Fails(3), group=group)


def a_gradient(group: Any) -> None:
    mask = torch.ones(3, 4, dtype=torch.bool)
    value = d.softmax(X.clone().requires_grad_(), where=mask, group=group).square().sum()
    if dist.get_rank() == 1:
        mask.zero_()
    value.backward()


def a_label(group: Any) -> None:
    """Of DTensors, of which each rank has other rows."""
    mesh = DeviceMesh.from_group(group, "cpu")
    labels = torch.tensor([12 if dist.get_rank() == 1 else 1])
    x = DTensor.from_local(X[:1], mesh, [Shard(0)])
    sm.cross_entropy(x, DTensor.from_local(labels, mesh, [Shard(0)]))


LATER = [
    (a_map, "ValueError: no such power"),
    (a_sampler, "ValueError: nothing to draw"),
    (a_gradient, "RuntimeError: distributed.softmax: a tensor that the gradient needs was changed in place"),
    (a_label, "IndexError: cross_entropy: target 12 is out of range"),
]


def of_later_errors(rank: int) -> list[list[str]]:
    """What is raised by a call that fails on rank 1, how soon, and by the next call, in a group of its own each."""
    found = []
    for call, _ in LATER:
        group, told = dist.new_group(timeout=timedelta(seconds=3)), []
        d.softmax(X, group=group)
        for function in (call, lambda group: d.softmax(X, group=group)):
            begun = time.monotonic()
            try:
                function(group)
                told.append("nothing")
            except Exception as error:
                told.append(f"{type(error).__name__}: {error}")
            told.append("in time" if time.monotonic() - begun < 12 else "late")
        found.append(told)
        dist.barrier()
    return found


def test_what_one_rank_raises_after_they_have_agreed_reaches_all(three: Processes) -> None:
    first, second, third = three.run(of_later_errors)
    for (call, words), own, *others in zip(LATER, second, first, third, strict=True):
        assert words in own[0], call
        assert own[1] == own[3] == "in time"
        assert own[2].startswith("RanksError: ")
        for told in others:
            assert told[0].startswith("RanksError: "), (call, told)
            assert f"rank 1 raised {words}" in told[0], (call, told)
            assert "rank 1 raised" in told[2], (call, told)  # what is wrong with the group is told again
            assert "make a new group" in told[2]
            assert told[1] == told[3] == "in time"


def of_alike(rank: int) -> list[str]:
    """What two gradients come to where the first fails on every rank, before its message."""
    masks, told = [torch.ones(3, 4, dtype=torch.bool) for _ in range(2)], []
    x = X.clone().requires_grad_()
    values = [d.softmax(x, where=mask).square().sum() for mask in masks]
    masks[0].zero_()
    for value in values:
        try:
            value.backward()
        except RuntimeError as error:
            told.append(str(error))
    whole = torch.cat([X, X, X], -1).requires_grad_()
    (expected,) = torch.autograd.grad(sm.softmax(whole).square().sum(), whole)
    assert x.grad is not None
    return [*told, str(float((x.grad - expected[:, 4 * rank : 4 * rank + 4]).abs().max()) <= 1e-15)]


def test_what_all_raise_alike_leaves_the_group_as_it_was(three: Processes) -> None:
    for changed, same in three.run(of_alike):
        assert "changed in place" in changed
        assert same == "True"


def of_a_local_error(rank: int) -> list[str]:
    """What a gradient that sends nothing comes to where one rank's mask was changed, and one that sends after it."""
    mask, told = torch.ones(3, 4, dtype=torch.bool), []
    x = X.clone().requires_grad_()
    values = d.logsumexp(x, where=mask).sum(), d.softmax(x).square().sum()
    if rank == 1:
        mask.zero_()
    for value in values:
        try:
            value.backward()
        except RuntimeError as error:
            told.append(str(error))
        else:
            told.append("right")
    return told


def test_an_error_that_nobody_waits_for_stays_with_its_rank(three: Processes) -> None:
    first, second, third = three.run(of_a_local_error)
    assert first == third == ["right", "right"]
    assert "changed in place" in second[0]
    assert second[1] == "right"


def of_a_group_formed_again(rank: int) -> list[tuple[int, ...]]:
    """What the ranks of groups agree on that have one name and one store, one after the other; a rank comes late to each."""
    found = []
    for late in range(3):
        ranks = Ranks(dist.group.WORLD)  # type: ignore[arg-type]
        time.sleep(0.2 if rank == late else 0.0)
        found.append(ranks.agree("test", 10 * late + rank, {}).widths)
    return found


def test_a_group_that_is_formed_again_knows_nothing_of_the_last(three: Processes) -> None:
    for found in three.run(of_a_group_formed_again):
        assert found == [(10 * late, 10 * late + 1, 10 * late + 2) for late in range(3)]


def of_checkpoints(rank: int) -> list[float]:
    """How far gradients of checkpointed calls are from those of plain ones."""
    found = []
    for call in (d.softmax, d.sparsemax, lambda x: d.logsumexp(x, temperature=rows(1, 2, 3).requires_grad_())):
        plain, again = (X.clone().requires_grad_() for _ in range(2))
        call(plain).square().sum().backward()
        torch.utils.checkpoint.checkpoint(call, again, use_reentrant=False).square().sum().backward()  # type: ignore[union-attr]
        assert plain.grad is not None
        assert again.grad is not None
        found.append(float((plain.grad - again.grad).abs().max()))
    return found


def test_activations_may_be_checkpointed(three: Processes) -> None:
    assert all(found == [0.0, 0.0, 0.0] for found in three.run(of_checkpoints))


def of_modules(rank: int) -> list[str]:
    """What heads raise where one rank gives other than a tensor, and makes a head that cannot be."""
    calls: list[Callable[[], Any]] = []
    for make in (lambda: d.LinearLoss(4, 9), lambda: d.MarginSoftmax(4, 9), lambda: d.SampledSoftmax(4, 9, 2)):
        head = make()
        calls.append(lambda head=head: head([1.0] if rank == 1 else torch.zeros(1, 4), torch.tensor([1])))
    calls.append(lambda: d.LinearLoss(4, 9, temperature=-1.0 if rank == 1 else 1.0))
    calls.append(lambda: d.SampledSoftmax(4, 9, 2, reduction="median" if rank == 1 else "mean"))
    calls.append(lambda: torch.func.grad(lambda x: d.softmax(x).square().sum())(X) if rank == 1 else d.softmax(X))
    calls.append(lambda: d.batch_mean(torch.tensor(1.0), math.inf if rank == 1 else 2))
    told = []
    for call in calls:
        with pytest.raises((RuntimeError, TypeError, ValueError)) as caught:
            call()
        told.append(f"{type(caught.value).__name__}: {caught.value}")
    return told


def test_what_a_rank_refuses_is_told_by_modules_too(three: Processes) -> None:
    first, second, third = three.run(of_modules)
    assert [each.split(": ")[1] for each in second[-2:]] == ["distributed.softmax", "distributed.batch_mean"]
    assert "torch.func and forward mode do not go through" in second[-2]
    assert "finite and at least 0, got inf" in second[-1]
    for own, *others in zip(second, first, third, strict=True):
        assert not own.startswith("RanksError")
        for told in others:
            assert told.startswith("RanksError")
            assert told.endswith(f"refused on rank 1: {own}")


# How agreement is reached -------------------------------------------------------------------------------------------------------


class Counted:
    """A store that counts what it is asked."""

    def __init__(self, store: Any) -> None:
        self.store, self.asked = store, Counter()

    def __getattr__(self, name: str) -> Any:
        self.asked[name] += 1
        return getattr(self.store, name)


def of_questions(rank: int) -> dict[str, int]:
    ranks = ranks_of("test", None)
    ranks.agree("test", 1, {})
    whole = ranks.store
    ranks.store = counted = Counted(whole)  # type: ignore[assignment]
    try:
        for _ in range(10):
            ranks.agree("test", 1, {})
    finally:
        ranks.store = whole  # type: ignore[assignment]
    del counted.asked["check"]  # whether all have come, more or less often
    return dict(counted.asked)


def test_a_store_is_asked_some_times_a_rank(three: Processes) -> None:
    first, *others = three.run(of_questions)
    assert first == {"set": 20, "multi_get": 10, "delete_key": 20}
    assert all(each == {"set": 10, "get": 10, "delete_key": 10} for each in others)


def of_near_sums(rank: int) -> list[float]:
    """How far softmin is from that of whole rows, and logarithms near 0 from those, in relative units."""
    x, cut = torch.randn(200, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64), slice(3 * rank, 3 * rank + 3)
    far = float((d.softmin(x[:, cut], temperature=0.7) - sm.softmin(x, temperature=0.7)[:, cut]).abs().max())
    one = x[:, : int(rank == 1)]  # one class, on one rank
    of_one = float(d.log_softmax(one).abs().sum() + d.cross_entropy(one, torch.zeros(200, dtype=torch.long)))
    x[:, 1:] -= 40.0
    ours, theirs = d.log_softmax(x[:, cut]), sm.log_softmax(x)[:, cut]
    return [far, of_one, float((ours / theirs - 1).abs().max())]


def test_softmin_and_logarithms_near_zero(three: Processes) -> None:
    for far, of_one, near in three.run(of_near_sums):
        assert far <= 1e-15
        assert of_one == 0.0
        assert near <= 1e-14


def of_narrow_losses(rank: int) -> list[float]:
    """How far cross-entropy of narrow scores, from 1 to 1e-20, is from that in float64, in units of its result's precision."""
    worst = []
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x = torch.randn(400, 18, generator=torch.Generator().manual_seed(1))
        x[torch.arange(400), torch.arange(400) % 18] += torch.linspace(0, 45, 400)
        x, labels = x.to(dtype), torch.arange(400) % 18
        own = x[:, 6 * rank : 6 * rank + 6].clone().requires_grad_()
        loss = d.cross_entropy(own, labels, reduction="none")
        loss.sum().backward()
        exact = torch.nn.functional.cross_entropy(x.double(), labels, reduction="none")
        z = x.double() - x.double()[torch.arange(400), labels].unsqueeze(-1)
        rest = z.exp().masked_fill(z == 0, 0.0).sum(-1)
        assert own.grad is not None
        assert bool((own.grad.gather(1, (labels % 6).unsqueeze(-1))[labels // 6 == rank] <= 0).all())
        exact = torch.where(exact < 0.1, rest.log1p(), exact)
        normal = exact > torch.finfo(dtype).tiny
        worst.append(float((loss.double() / exact - 1).abs()[normal].max()) / torch.finfo(dtype).eps)
    return worst


def test_losses_near_zero_keep_their_digits(three: Processes) -> None:
    for worst in three.run(of_narrow_losses):
        assert max(worst) <= 2, worst


def of_a_late_rank(rank: int) -> str:
    """What is said where rank 1 comes to a message when the others have given up, and is there to say that it has left."""
    group = dist.new_group(timeout=timedelta(seconds=2))
    value = d.sparsemax(X.clone().requires_grad_(), group=group).square().sum()
    time.sleep(3.0 if rank == 1 else 0.0)
    with pytest.raises(RanksError) as caught:
        value.backward()
    dist.barrier()
    return str(caught.value)


def test_a_rank_that_comes_late_is_named(three: Processes) -> None:
    for told in three.run(of_a_late_rank):
        assert "rank 1 did not answer within the group's timeout" in told


class Scaled:
    """A callable with a number of its own."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, z: Tensor) -> Tensor:
        return self.factor * z

    def applied(self, z: Tensor) -> Tensor:
        return self.factor * z


@dataclasses.dataclass(slots=True)
class Slotted:
    """The same without a dictionary."""

    factor: float

    def __call__(self, z: Tensor) -> Tensor:
        return self.factor * z


def local(factor: float) -> Callable[[Tensor], Tensor]:
    class Local:
        def __call__(self, z: Tensor) -> Tensor:
            return factor * z

    return Local()


def composed(inner: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda z: inner(z) + 1


def with_default(factor: float) -> Callable[[Tensor], Tensor]:
    def function(z: Tensor, *, by: float = factor) -> Tensor:
        return by * z

    return function


@pytest.mark.parametrize(
    "make",
    [
        Scaled,
        Slotted,
        local,
        lambda factor: functools.lru_cache(lambda z: factor * z),
        lambda factor: operator.methodcaller("pow", factor),
        lambda factor: Scaled(factor).applied,
        with_default,
        lambda factor: composed(lambda z: factor * z),
        lambda factor: torch.nn.Softplus(beta=factor),
        lambda factor: torch.nn.PReLU(init=factor),
    ],
)
def test_functions_are_known_by_all_that_they_hold(make: Callable[[float], Any]) -> None:
    assert agreement.in_words(make(2.0)) == agreement.in_words(make(2.0)) != agreement.in_words(make(3.0))


class Order(enum.Enum):
    FIRST = 1
    LAST = 2


# Two values of each kind, made anew
PAIRS: list[Callable[[], tuple[Any, Any]]] = [
    lambda: (2, 3),
    lambda: (2**60, 2**60 + 1),
    lambda: (1, True),
    lambda: (0.1, math.nextafter(0.1, 1)),
    lambda: (math.inf, math.nan),
    lambda: (1 + 2j, 1 - 2j),
    lambda: (b"a", b"b"),
    lambda: (bytearray(b"a"), bytearray(b"b")),
    lambda: ("a", "b"),
    lambda: (Order.FIRST, Order.LAST),
    lambda: (Slotted(2.0), Slotted(3.0)),
    lambda: (range(3), range(4)),
    lambda: (slice(3), slice(4)),
    lambda: (decimal.Decimal("0.1"), decimal.Decimal("0.2")),
    lambda: (fractions.Fraction(1, 3), fractions.Fraction(2, 3)),
    lambda: (timedelta(1), timedelta(2)),
    lambda: (Path("a"), Path("b")),
    lambda: (types.SimpleNamespace(a=1), types.SimpleNamespace(a=2)),
    lambda: (np.array(["a", None], object), np.array(["b", None], object)),
    lambda: (np.float32(0.5), np.float32(0.25)),
    lambda: (lambda z: z * 1j, lambda z: z * 2j),
    lambda: (lambda z: z * 1, lambda z: z * 1.0),
    lambda: (lambda z: b"a", lambda z: b"b"),
    lambda: (math.sin, math.cos),
    lambda: (np.sin, np.cos),
    lambda: ({"b": 1, "a": 2}, {"b": 2, "a": 1}),
]


@pytest.mark.parametrize("kind", range(len(PAIRS)))
def test_two_values_of_any_kind_are_told_apart(kind: int) -> None:
    value, other = map(agreement.in_words, PAIRS[kind]())
    assert value == agreement.in_words(PAIRS[kind]()[0]) != other


def test_what_each_rank_has_of_its_own_is_no_difference() -> None:
    def words(device: str, seed: int) -> str:
        place, source, numbers = torch.device(device), torch.Generator().manual_seed(seed), np.random.default_rng(seed)
        return agreement.in_words(lambda z: (z.to(place), source, numbers))

    assert words("cuda:0", 1) == words("cuda:1", 2)
    assert agreement.in_words({"a": 1, "b": 2}) == agreement.in_words({"b": 2, "a": 1})


def of_words(rank: int) -> list[str]:
    """Values of all kinds, and maps and losses that are not registered, in words."""
    copies = [dataclasses.replace(each) for each in (*sm.maps.REGISTRY.values(), *sm.losses.REGISTRY.values())]
    return [agreement.in_words(value) for value in (*(pair() for pair in PAIRS), *copies)]


def test_words_are_those_of_other_processes(three: Processes) -> None:
    first, second, third = three.run(of_words)
    assert first == second == third
    assert len(set(first)) == len(first)


def test_words_are_those_of_every_process() -> None:
    assert agreement.in_words(frozenset(("b", "a"))) == "{a, b}"
    assert agreement.in_words(-0.0) == agreement.in_words(0.0) == agreement.in_words(0) == "0"
    assert agreement.in_words(torch.tensor(-0.0)) == agreement.in_words(torch.tensor(0.0))
    holder: list[Any] = []
    holder.append(holder)
    assert agreement.in_words(holder) == "(itself,)"


def test_values_in_words_tell_values_apart_and_nothing_else() -> None:
    words = agreement.in_words
    x = torch.arange(6.0)
    assert words(x) == words(x.clone()) != words(x.flip(0))
    assert words(x[::2]) == words(x[::2].clone())
    assert words(torch.tensor([0.0, 1.0])) == words(torch.tensor([-0.0, 1.0]))
    assert words(x.bfloat16()) != words(x)
    assert words(power(2)) == words(power(2)) != words(power(3))
    assert words(torch.exp) != words(torch.sin)
    assert words({"a": (1, x)}) == words({"a": (1, x.clone())})
