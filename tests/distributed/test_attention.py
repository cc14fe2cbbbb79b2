"""Attention over a sequence that three ranks share, beside one process with all of it; what is sent; and ranks that disagree."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import Processes
from torch import Tensor

import softmaxima as sm
from conftest import cases, exhaustively
from softmaxima.attn.arguments import Visible
from softmaxima.distributed import ranks
from softmaxima.distributed.places import LAYOUTS, spans_of
from softmaxima.distributed.ranks import Agreement
from softmaxima.distributed.rounds import sees
from softmaxima.maps import REGISTRY as MAPS

MERGING = [name for name, map in MAPS.items() if map.blocks is not None and not map.properties.logarithmic]
FORMS = ("ring", "gather", "merge")
PLACES, WIDTHS = 13, (7, 0, 6)  # of the contiguous layout


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    processes = Processes(3, tmp_path_factory.mktemp("ranks") / "store")
    yield processes
    processes.close()


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def places_of(rank: int, layout: str) -> Tensor:
    if layout == "balanced":
        return sm.distributed.places(PLACES)
    return torch.arange(sum(WIDTHS[:rank]), sum(WIDTHS[: rank + 1]))


def sequence(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """q of four heads, k and v of two, and a gradient."""
    shapes = ((2, 4, PLACES, 8), (2, 2, PLACES, 8), (2, 2, PLACES, 5), (2, 4, PLACES, 5))
    return [normal(*shape, seed=seed, dtype=dtype) for seed, shape in enumerate(shapes)]


def apart(a: Tensor, b: Tensor) -> float:
    """The largest difference, in shares of the largest number."""
    assert a.shape == b.shape
    return 0.0 if a.numel() == 0 else float((a.double() - b.double()).abs().max() / b.abs().max().clamp_min(1.0))


def visible(is_causal: bool = False, window: tuple[int | None, int | None] = (None, None), first_query: int = 0) -> Tensor:
    """Which keys each query sees, place by place."""
    rows = [[True] * PLACES for _ in range(PLACES)]
    for i, j in itertools.product(range(PLACES), repeat=2):
        ahead = j - (i + first_query)
        rows[i][j] = not (is_causal and ahead > 0)
        rows[i][j] &= (window[0] is None or -ahead <= window[0]) and (window[1] is None or ahead <= window[1])
    return torch.tensor(rows)


def deviation(
    rank: int,
    form: str,
    layout: str,
    options: dict[str, Any],
    seen: dict[str, Any] | None = None,
    beside: dict[str, Tensor] | None = None,
    dtype: torch.dtype = torch.float64,
) -> float:
    """The largest of this rank's outputs and gradients, from those of one process with all places in double.

    `seen` is by places, and `beside` for all queries, [..., places, m], of which this rank has its own, or for any.
    """
    own, (q, k, v, g) = places_of(rank, layout), sequence(dtype)
    mine = torch.arange(PLACES) if form == "merge" else own
    seen, beside = seen or {}, beside or {}

    def cut(x: Tensor) -> Tensor:
        return x[..., mine, :] if x.ndim > 1 and x.shape[-2] == PLACES else x

    wide = [x.double().requires_grad_() for x in (q, k, v)]
    whole = {name: x.clone().requires_grad_(x.is_floating_point()) for name, x in beside.items()}
    learnt = [name for name, x in whole.items() if x.requires_grad]
    mask = visible(**seen) & whole.get("attn_mask", torch.tensor(True))
    expected = sm.attention(*wide, enable_gqa=True, **options, **{**whole, "attn_mask": mask})
    of_all = torch.autograd.grad((expected * g.double()).sum(), wide, retain_graph=True)
    (_, *of_mine) = torch.autograd.grad((expected * g.double())[:, :, mine].sum(), [wide[0], *(whole[name] for name in learnt)])

    parts = [x.clone().requires_grad_() for x in (q[:, :, mine], k[:, :, own], v[:, :, own])]
    given = {name: cut(x.detach()).clone().requires_grad_(x.requires_grad) for name, x in whole.items()}
    found = sm.distributed.attention(*parts, form=form, layout=layout, enable_gqa=True, **options, **seen, **given)
    slopes = torch.autograd.grad((found * g[:, :, mine]).sum(), [*parts, *(given[name] for name in learnt)])
    assert {x.dtype for x in (found, *slopes[:3])} == {dtype}
    right = (expected.detach()[:, :, mine], of_all[0][:, :, mine], of_all[1][:, :, own], of_all[2][:, :, own], *map(cut, of_mine))
    return max(apart(a, b) for a, b in zip((found.detach(), *slopes), right, strict=True))


# Outputs and gradients ----------------------------------------------------------------------------------------------------------

SEEN: list[dict[str, Any]] = [{}, {"is_causal": True}, {"window": (3, 1)}, {"window": (2, None), "first_query": 4, "is_causal": True}]
USUAL = [("contiguous", SEEN[1]), ("balanced", SEEN[2])]


def of_a_map(rank: int, name: str, seldom: bool) -> dict[Any, float]:
    every = itertools.product(LAYOUTS, SEEN) if seldom else USUAL
    some = list(cases(MAPS[name]))
    return {
        (form, layout, str(seen), str(case)): deviation(rank, form, layout, {"map": name, **case.params}, seen)
        for form, (layout, seen) in itertools.product(FORMS, every)
        for case in (some if seldom else some[-1:])
    }


@pytest.mark.parametrize("seldom", [False, exhaustively(True)])
@pytest.mark.parametrize("name", MERGING)
def test_every_map_is_that_of_one_process(name: str, seldom: bool, three: Processes) -> None:
    for found in three.run(of_a_map, name, seldom):
        assert max(found.values()) <= 1e-12, {what: far for what, far in found.items() if far > 1e-12}


def of_what_is_beside(rank: int, form: str) -> dict[Any, float]:
    """Masks, biases, lengths, and numbers of heads and of queries that learn."""
    head, row = (4, 1, 1), (2, 4, PLACES, 1)
    tau, alpha = normal(*row, seed=5).abs() + 0.5, normal(*head, seed=6).sigmoid() + 1.1
    mask, bias = normal(2, 1, PLACES, PLACES, seed=7) > -0.5, normal(4, PLACES, PLACES, seed=8)
    mask[0, 0, 2] = False  # a query that sees nothing
    lengths = torch.tensor([9, 0])
    every: list[tuple[str, dict[str, Any], dict[str, Tensor]]] = [
        ("softmax", {"temperature": 0.7}, {"attn_mask": mask, "bias": bias, "temperature": tau[0, :, :1]}),
        ("softmax", {"scale": 0.3}, {"temperature": tau, "key_lengths": lengths}),
        ("elastic_softmax", {}, {"beta": normal(*head, seed=9), "temperature": tau, "attn_mask": mask}),
        ("elastic_softmax", {}, {"beta": normal(*row, seed=9), "bias": bias[:, :1], "key_lengths": lengths}),
        ("entmax", {}, {"alpha": alpha, "temperature": tau, "bias": bias}),
        ("sparsemax", {}, {"attn_mask": mask, "key_lengths": lengths, "temperature": tau}),
    ]
    found = {}
    for (number, (name, options, beside)), (layout, seen) in itertools.product(enumerate(every), USUAL):
        options = {key: value for key, value in options.items() if key not in beside}
        found[number, name, layout] = deviation(rank, form, layout, {"map": name, **options}, seen, beside)
    return found


@pytest.mark.parametrize("form", FORMS)
def test_masks_biases_and_numbers_that_learn(form: str, three: Processes) -> None:
    for found in three.run(of_what_is_beside, form):
        assert max(found.values()) <= 1e-12, found


def of_a_dtype(rank: int, dtype: torch.dtype) -> dict[Any, float]:
    """In units of the dtype's epsilon."""
    maps = ("softmax", "elastic_softmax", "entmax15")
    return {
        (name, form): deviation(rank, form, "balanced", {"map": name}, SEEN[1], dtype=dtype) / torch.finfo(dtype).eps
        for name, form in itertools.product(maps, FORMS)
    }


@pytest.mark.parametrize("narrow", [torch.float32, torch.bfloat16])
def test_narrow_numbers_are_as_right_as_by_one_process(narrow: torch.dtype, three: Processes) -> None:
    for found in three.run(of_a_dtype, narrow):
        assert max(found.values()) <= 4, found
