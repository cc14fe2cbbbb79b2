"""Numbers that are the same on all ranks and learn: each rank gets their whole gradient, as differences of the values tell it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import Processes
from shards import normal, own_of
from torch import Tensor, nn

import softmaxima as sm
from conftest import cases
from softmaxima.maps import REGISTRY as MAPS

WIDTHS = (5, 0, 4)
LABELS = torch.tensor([0, 8, -100, 3])
STEP = 1e-5
WITHOUT = {"RanksError", "batch_mean", "places", "shared_loss", "unshard"}  # which take no such numbers, or refuse them
# (what it is, numbers that are the same on all ranks, what is made of them, whether that is the same on all ranks too)
Case = tuple[str, dict[str, Tensor], Callable[..., Tensor], bool]


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def of_maps(rank: int) -> Iterator[Case]:
    own = own_of(rank, WIDTHS)
    x, g = normal(3, 9, seed=1)[:, own], normal(3, 9, seed=2)[:, own]
    for name in (name for name, map in MAPS.items() if map.blocks is not None):
        *_, last = cases(MAPS[name])
        params = last.params
        learnt = [p.name for p in MAPS[name].params if p.gradient is not None and isinstance(params.get(p.name), float)]
        numbers = {"temperature": number(0.7), **{what: number(params[what]) for what in learnt}}
        others = {what: value for what, value in params.items() if what not in learnt}
        of = functools.partial(sm.distributed.shared_map, name, x, **others)
        yield name, numbers, lambda of=of, **t: torch.where(g != 0, of(**t) * g, 0.0).sum(), False
    yield "softmin", {"temperature": number(0.7)}, lambda **t: (sm.distributed.softmin(x, **t) * g).sum(), False
    yield "logsumexp", {"temperature": number(0.7)}, lambda **t: sm.distributed.logsumexp(x, **t).sum(), True


def of_heads(rank: int) -> Iterator[Case]:
    own, hidden, weight, bias = own_of(rank, WIDTHS), normal(4, 6, seed=1), normal(9, 6, seed=2), normal(9, seed=3)
    of = sm.distributed
    taus = number(0.7), normal(4, 1, seed=4).abs() + 0.5
    for reduces, tau, has_bias in itertools.product((True, False), taus, (True, False)):
        layer: dict[str, Any] = {"weight": weight[own], "target": LABELS, "reduce_hidden": reduces}
        layer |= {"bias": bias[own]} if has_bias else {}
        same = {"temperature": tau, **({"hidden": hidden} if reduces else {})}
        sampled = {"samples": 3, "sampler": "uniform", "generator": rank}
        what = f"{reduces} {tuple(tau.shape)} {has_bias}"
        for name, more in (("linear_loss", {}), ("sampled_softmax_loss", sampled)):
            given = {"hidden": hidden, **layer, **more}
            yield f"{name} {what}", same, lambda name=name, given=given, **t: getattr(of, name)(**{**given, **t}), True
        if not has_bias and tau.ndim == 0:
            same = {"scale": 5 * tau, **({"hidden": hidden} if reduces else {})}
            given = {"hidden": hidden, **layer}
            yield f"margin_softmax_loss {what}", same, lambda given=given, **t: of.margin_softmax_loss(**{**given, **t}), True


class Said(nn.Module):
    """A module that says a number."""

    number = number(0.7)

    def forward(self) -> Tensor:
        return self.number


def of_modules(rank: int) -> Iterator[Case]:
    hidden, of = normal(4, 6, seed=1), sm.distributed

    def called(head: Any, call: Callable[..., Tensor], said: Said, number: Tensor, hidden: Tensor = hidden) -> Tensor:
        said.number, head.generator = number, torch.Generator().manual_seed(rank)
        return call(head, hidden)

    loss, log_prob = lambda head, h: head(h, LABELS), lambda head, h: head.log_prob(h).square().sum()
    for reduces in (True, False):
        said, made = Said(), {"reduce_hidden": reduces, "dtype": torch.float64}
        sampled = functools.partial(of.SampledSoftmax, 6, 9, 3, "uniform", temperature=said, **made)
        heads: list[tuple[str, nn.Module, Callable[..., Tensor], bool]] = [
            ("LinearLoss", of.LinearLoss(6, 9, bias=True, temperature=said, **made), loss, True),
            ("MarginSoftmax", of.MarginSoftmax(6, 9, scale=said, **made), loss, True),
            ("SampledSoftmax", sampled(), loss, True),
            ("SampledSoftmax in eval mode", sampled().eval(), loss, True),
            ("log_prob", sampled(), log_prob, False),
        ]
        for name, head, call, is_same in heads:
            same = {"number": number(0.7), **({"hidden": hidden} if reduces else {})}
            yield f"{name} {reduces}", same, functools.partial(called, head, call, said), is_same


def of_attention(rank: int) -> Iterator[Case]:
    places = own_of(rank, WIDTHS)
    q, k, v = (normal(2, 9, 3, seed=seed) for seed in range(3))
    g, heads, whole = normal(2, 9, 3, seed=4), normal(2, 1, 1, seed=5), normal(2, 1, 9, seed=6)
    asked: list[tuple[str, dict[str, Tensor]]] = [
        ("softmax", {"temperature": number(0.7), "bias": whole}),
        ("softmax", {"temperature": heads[:, 0, 0].abs() + 0.5, "attn_mask": whole[0]}),
        ("elastic_softmax", {"temperature": number(0.7), "beta": heads}),
        ("sparsemax", {"temperature": number(0.7)}),
        ("entmax", {"alpha": heads.sigmoid() + 1.1, "temperature": number(0.7), "bias": whole}),
    ]
    for form, (name, same) in itertools.product(("ring", "gather", "merge"), asked):
        mine = slice(None) if form == "merge" else places
        given = {"query": q[:, mine], "key": k[:, places], "value": v[:, places], "form": form, "map": name}
        of = functools.partial(sm.distributed.attention, **given)
        same |= {"query": given["query"]} if form == "merge" else {}
        yield f"{form} {name}", same, lambda of=of, mine=mine, **t: (of(**t) * g[:, mine]).sum(), form == "merge"


KINDS = {"maps": of_maps, "heads": of_heads, "modules": of_modules, "attention": of_attention}


def of_gradients(rank: int, kind: str) -> dict[str, float]:
    """How far the gradients, along one way, are from what the values of all ranks say, in shares of that."""
    found = {}
    for seed, (name, same, value, is_same) in enumerate(KINDS[kind](rank)):
        learning = {what: x.clone().requires_grad_() for what, x in same.items()}
        slopes = torch.autograd.grad(value(**learning), list(learning.values()))
        ways, ends = [normal(*x.shape, seed=seed).sign() for x in same.values()], []
        for step in (STEP, -STEP):
            moved = {what: x + step * way for (what, x), way in zip(same.items(), ways, strict=True)}
            ends.append(value(**moved).detach().clone())
            if not is_same:
                dist.all_reduce(ends[-1])
        expected = float(ends[0] - ends[1]) / (2 * STEP)
        along = sum(float((slope * way).sum()) for slope, way in zip(slopes, ways, strict=True))
        found[name] = abs(along - expected) / max(1.0, abs(expected))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_the_same_on_all_ranks_gets_its_whole_gradient(kind: str, three: Processes) -> None:
    for found in three.run(of_gradients, kind):
        assert max(found.values()) <= 1e-7, {what: far for what, far in found.items() if far > 1e-7}


# Of a number that comes of some hundred terms, which cancel: of narrow dtypes it is rounded once, but for outputs of attention.
EPSILONS = {torch.float16: 4, torch.bfloat16: 4, torch.float32: 16, torch.float64: 64}
LEARNS = [*(name for name, map in MAPS.items() if map.blocks is not None and map.properties.shift_invariant), "attention"]


def of_learnt_numbers(rank: int, name: str) -> dict[str, float]:
    """How far gradients by numbers are from those in float64 without an offset of the scores, in shares of what is allowed."""
    own, found = own_of(rank, (16, 0, 24)), {}
    rough = lambda *shape, seed: (16 * normal(*shape, seed=seed)).round() / 16  # beside which an offset leaves all digits
    x, g, learnt = 2 * rough(16, 40, seed=1), rough(16, 40, seed=2), {"temperature": number(0.75)}
    held: dict[str, Any] = {}
    queries, keys, values, slopes = (rough(2, 40, 4, seed=seed) for seed in range(3, 7))
    if name != "attention":
        *_, last = cases(MAPS[name])
        held = {what: value for what, value in last.params.items() if not isinstance(value, float)}
        for p in MAPS[name].params:
            values_of = [number(value) for value in (1.25, 0.5, 2.5)]
            learnt |= {p.name: next(v for v in values_of if bool(p.valid(v).all()))} if p.gradient is not None else {}

    def value(shared: bool, offset: float, dtype: torch.dtype, form: str, numbers: dict[str, Tensor]) -> Tensor:
        to, places = lambda values: values.to(dtype), own if shared else slice(None)
        if name != "attention":
            of = functools.partial(sm.distributed.shared_map, name) if shared else MAPS[name]
            return (of(to(x + offset)[:, places], **numbers, **held) * to(g)[:, places]).sum()
        bias = torch.full((1, 40), offset, dtype=dtype)
        mine = slice(None) if form == "merge" else places
        given: Any = {"query": to(queries)[:, mine], "key": to(keys)[:, places], "value": to(values)[:, places], "bias": bias}
        output = sm.distributed.attention(**given, form=form, **numbers) if shared else sm.attention(**given, **numbers)
        return (output * to(slopes)[:, mine]).sum()

    def by_numbers(*how: Any, dtype: torch.dtype) -> list[Tensor]:
        numbers = {what: v.to(dtype).requires_grad_() for what, v in learnt.items()}
        shared, offset, form = how
        return list(torch.autograd.grad(value(shared, offset, dtype, form, numbers), list(numbers.values())))

    for form in ("ring", "merge") if name == "attention" else ("",):
        expected = by_numbers(False, 0.0, form, dtype=torch.float64)
        for dtype, offset in ((torch.float16, 64.0), (torch.bfloat16, 0.0), (torch.float32, 2.0**13), (torch.float64, 2.0**30)):
            for what, a, b in zip(learnt, by_numbers(True, offset, form, dtype=dtype), expected, strict=True):
                found[f"{form} {what} {dtype} {offset:g}"] = (
                    float((a.double() - b).abs() / b.abs()) / torch.finfo(dtype).eps / EPSILONS[dtype]
                )
    return found


@pytest.mark.parametrize("name", LEARNS)
def test_what_learns_has_the_digits_of_its_dtype_at_any_offset(name: str, three: Processes) -> None:
    for found in three.run(of_learnt_numbers, name):
        assert max(found.values()) <= 1, found


def test_every_function_and_module_is_asked() -> None:
    layers, functions = {"LinearLoss", "MarginSoftmax", "SampledSoftmax"}, {"attention", "linear_loss", "logsumexp", "softmin"}
    asked = {*layers, *functions, "margin_softmax_loss", "sampled_softmax_loss", "shared_map"}
    assert {*sm.distributed.__all__} == asked | WITHOUT
