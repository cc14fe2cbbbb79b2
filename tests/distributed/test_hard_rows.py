"""Maps and losses of hard rows in one part and in several, by Dask and on one rank, beside those of whole rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import softmaxima as sm
from softmaxima.engine.blocks import Blocks
from softmaxima.losses import REGISTRY as LOSSES
from softmaxima.maps import REGISTRY as MAPS

ROWS = {
    np.float64: [
        [0.3, -1.2, 2.0], [0.0, math.inf, 1.0], [math.inf, 0.0, math.inf], [0.0, math.nan, 1.0], [math.nan, math.inf, 1.0],
        [-math.inf] * 3, [0.0, -math.inf, 1.0], [-740.0, -741.0, -745.0], [800.0, 799.0, 0.0], [1e-200, 2e-200, 0.0],
        [1e200, 2e200, -1e200], [1.7e308, -1.7e308, 0.0],
    ],
    np.float32: [[0.3, -1.2, 2.0], [0.0, math.nan, 1.0], [-1e6, -1e6 - 1, -2e6], [3e38, -3e38, 0.0]],
    np.float16: [[0.3, -1.2, 2.0], [6e4, -6e4, 0.0], [-65504.0, -65504.0, -6e4]],
}  # fmt: skip
CLOSE = {np.float64: 2e-14, np.float32: 2e-6, np.float16: 2e-3}
BEYOND = {  # (map, parameters) of which something overflows, vanishes or is chosen
    "proportional": [{"f": f} for f in (torch.sigmoid, torch.square, torch.nn.functional.softplus, torch.exp, torch.relu)],
    "topk_softmax": [{"k": 1}, {"k": 2}, {"k": 5}],
    "elastic_softmax": [{"beta": beta} for beta in (0.0, -750.0, 700.0, -math.inf)],
    "eps_softmax": [{"eps": eps} for eps in (5e-324, 1.0, 1e300)],
}
CHOSEN = {
    "sparse_softmax_loss": [{"k": 1}, {"k": 2}, {"p": 0.8}],
    "fenchel_young_loss": [{"map": "softmax"}, {"map": "elastic_softmax", "beta": -750.0}],
    "soft_accuracy_loss": [{"map": "topk_softmax", "k": 1}, {"map": "softmax"}],
}
MERGING = [name for name, map in MAPS.items() if map.blocks is not None]
FORMED = [name for name, loss in LOSSES.items() if loss.row_form is not None]


@pytest.fixture(autouse=True)
def one_thread_at_a_time() -> Iterator[None]:
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A group of one rank."""
    path = tmp_path_factory.mktemp("ranks") / "store"
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def alike(found: Any, expected: Any, close: float) -> None:
    np.testing.assert_allclose(
        np.asarray(found, float), np.asarray(expected, float), rtol=close, atol=1e-300 if close < 1e-9 else 0
    )


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("name", MERGING)
def test_every_map_of_hard_rows_in_chunks_is_that_of_whole_rows(name: str, width: int) -> None:
    for kind, rows in ROWS.items():
        x = np.array(rows).astype(kind)
        for params in BEYOND.get(name, [{}]):
            for tau in (1.0, 2.0):
                p = getattr(sm.dask, name)(da.from_array(x, chunks=(len(x), width)), temperature=tau, **params).compute()
                alike(p, getattr(sm, name)(x, temperature=tau, **params), CLOSE[kind])


@pytest.mark.parametrize(("kind", "width"), [(np.float64, 1), (np.float64, 3), (np.float32, 1)])
@pytest.mark.parametrize("name", FORMED)
def test_every_loss_of_hard_rows_in_chunks_is_that_of_whole_rows(name: str, kind: Any, width: int) -> None:
    rows = np.array(ROWS[kind]).astype(kind)
    weight, tolerance = np.array([0.0, 1.0, 1.0]), {"rtol": CLOSE[kind], "atol": 1e-15 if kind is np.float64 else 1e-6}
    labels = np.repeat(np.arange(3), len(rows))
    soft = np.repeat([[0.25, 0.75, 0.0], [0.25, 0.0, 0.75], [0.0, 1.0, 0.0]], len(rows), 0).astype(kind)
    x = np.tile(rows, (3, 1))
    lazy = da.from_array(x, chunks=(len(x), width))
    for options in CHOSEN.get(name, LOSSES[name].examples):
        ways: list[tuple[np.ndarray, dict[str, Any]]] = [(labels, {}), (labels, {"weight": weight})]
        ways += [(labels, {"label_smoothing": 0.1}), (soft, {}), (soft, {"weight": weight})]
        for target, way in ways:
            given = {"reduction": "none", **way, **options}
            found = getattr(sm.dask, name)(lazy, target, **given).compute()
            np.testing.assert_allclose(found, getattr(sm, name)(x, target, **given), **tolerance)


@pytest.mark.parametrize("value", ["logsumexp", "log_softmax"])
def test_results_are_rounded_as_those_of_whole_rows(value: str) -> None:
    x = np.array([[6e4, -6e4]], np.float16)
    alike(getattr(sm.dask, value)(da.from_array(x), temperature=0.5).compute(), getattr(sm, value)(x, temperature=0.5), 0.0)


@pytest.mark.parametrize("name", MERGING)
def test_a_state_that_was_sent_with_room_for_more_is_the_same(name: str) -> None:
    x = torch.tensor([[3.0, 1.0, 2.0, 0.0]], dtype=torch.float64)
    for params in BEYOND.get(name, [{}]):
        rows = sm.in_parts(name, **params)
        part, state = rows.part(x), rows.state([x])
        identity = rows.identity(part)
        if rows.passes > 1 or not any(values.shape[-1] == 0 for values in identity):
            continue
        padded = rows.unpack(rows.pack(state, identity, 9), identity)
        assert torch.equal(rows.finish(part, padded), rows.finish(part, state)), params
        blocks: Blocks = rows.blocks
        if blocks.conjugate is not None:
            alike(sum(blocks.conjugate(padded, 1.0, **rows.params)), sum(blocks.conjugate(state, 1.0, **rows.params)), 1e-15)


def slopes(function: Any, x: Tensor, *others: Any, **options: Any) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    value = function(x, *others, **options)
    (slope,) = torch.autograd.grad((value * torch.linspace(0.5, 1.5, value.numel(), dtype=x.dtype).view(value.shape)).sum(), x)
    return value.detach(), slope


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", MERGING)
def test_every_map_on_one_rank_is_that_of_whole_rows(name: str) -> None:
    x = torch.tensor([[3.0, 1.0, 2.0, 0.0], [-math.inf] * 4, [-50.0, -51.0, -math.inf, -60.0]], dtype=torch.float64)
    for params in BEYOND.get(name, [{}]):
        for found, expected in zip(
            slopes(getattr(sm.distributed, name), x, **params), slopes(getattr(sm, name), x, **params), strict=True
        ):
            torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-15, equal_nan=True)


@pytest.mark.usefixtures("alone")
def test_log_probabilities_beyond_a_narrow_dtype_are_infinite_on_ranks_too() -> None:
    x = torch.tensor([[6e4, -6e4]], dtype=torch.float16)
    assert torch.equal(sm.distributed.log_softmax(x), sm.log_softmax(x))
    assert sm.distributed.log_softmax(x)[0, 1] == -math.inf


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", FORMED)
def test_every_loss_on_one_rank_is_that_of_whole_rows(name: str) -> None:
    x = torch.tensor([[3.0, 1.0, 2.0, 0.0], [0.0, -0.5, 0.1, 0.7], [1.0, 2.0, 3.0, 4.0]], dtype=torch.float64)
    labels, weight = torch.tensor([0, 3, -100]), torch.tensor([0.0, 1.0, 2.0, 0.5], dtype=torch.float64)
    for options in CHOSEN.get(name, LOSSES[name].examples):
        for given in (None, weight, torch.zeros_like(weight)):
            for reduction in ("mean", "none"):
                both = [slopes(getattr(of, name), x, labels, given, reduction=reduction, **options) for of in (sm.distributed, sm)]
                for found, expected in zip(*both, strict=True):
                    if found.ndim and given is not None and not given.any():  # where p = 0 whole rows have no NaN
                        found = torch.where(expected == 0, 0.0, found)
                    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-15, equal_nan=True)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("form", ["ring", "gather", "merge"])
@pytest.mark.parametrize("name", ["softmax", "elastic_softmax", "topk_softmax", "sparsemax"])
def test_attention_on_one_rank_is_that_of_whole_sequences(name: str, form: str) -> None:
    made = torch.Generator().manual_seed(0)
    tensors = [torch.randn(5, size, generator=made, dtype=torch.float64, requires_grad=True) for size in (3, 3, 2)]
    mask = torch.rand(5, 5, generator=made) < 0.7
    mask[1] = False
    options: dict[str, Any] = {"map": name, **({"k": 1} if name == "topk_softmax" else {})}
    for where in (None, mask):
        found = sm.distributed.attention(*tensors, where, form=form, **options)
        expected = sm.attention(*tensors, where, **options)
        both = [(o.detach(), *torch.autograd.grad(o.square().sum(), tensors)) for o in (found, expected)]
        for own, whole in zip(*both, strict=True):
            torch.testing.assert_close(own, whole, rtol=1e-12, atol=1e-13)
