"""The GPU kernels by themselves, in Triton's interpreter: rows on chip and rows shared among programs, around every boundary."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import softmaxima as sm
from conftest import TOLERANCE, cases, normal
from softmaxima.base.temperature import tempered
from softmaxima.losses.evaluation import _InPlace
from softmaxima.maps import REGISTRY

if os.environ.get("SOFTMAXIMA_BACKEND") != "triton":
    pytest.skip("set SOFTMAXIMA_BACKEND=triton and TRITON_INTERPRET=1", allow_module_level=True)

from softmaxima.kernels.triton import launches, library, threshold

pytestmark = pytest.mark.gpu

# Rows on chip, and rows of three parts, the last of one score.
SIZES = [("whole", 1), ("whole", 17), ("whole", 32), ("shared", 33)]
MAPS = [
    (case.map.name, case.params)
    for map in REGISTRY.values()
    if map.kernel is not None and map.kernel.on_gpus
    for case in cases(map)
]


@pytest.fixture
def rows_are(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """ "whole", on chip; or "shared" among programs of 16 columns."""
    if request.param == "shared":
        monkeypatch.setattr(launches, "ON_CHIP", 32)
        monkeypatch.setattr(launches, "PART", 16)
        monkeypatch.setattr(launches, "GROUP", 512)
        monkeypatch.setattr(threshold, "GATHERED", 8)


@pytest.fixture(autouse=True)
def results_begin_as_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may be left unwritten."""
    empty = torch.empty

    def spoilt(*arguments: Any, **options: Any) -> Tensor:
        made = empty(*arguments, **options)
        return made.fill_(math.nan) if made.is_floating_point() else made.fill_(-1)

    monkeypatch.setattr(library.torch, "empty", spoilt)


def scores(n: int, dtype: torch.dtype = torch.float32, height: int = 3) -> tuple[Tensor, Tensor]:
    """(x [height, n], a mask) with ties, −∞ and a first row without scores to keep."""
    x = normal(height, n, seed=n).to(dtype)
    x[..., n // 2] = x[..., 0]
    if n > 3:
        x[1, 3] = -math.inf
    where = torch.rand(height, n, generator=torch.Generator().manual_seed(n)) > 0.3
    where[0] = False
    return x, where


def truth(name: str, params: dict[str, Any], x: Tensor, tau: Any, where: Tensor | None) -> Tensor:
    """The map by torch's operations in float64."""
    return REGISTRY[name].forward(tempered(x.double(), tau, where), **params)


@pytest.mark.usefixtures("rows_are")
@pytest.mark.parametrize(("rows_are", "n"), SIZES, indirect=["rows_are"])
@pytest.mark.parametrize(("name", "params"), MAPS, ids=str)
def test_maps_and_their_gradients_at_every_boundary(name: str, params: dict[str, Any], n: int):
    map, (x, where) = REGISTRY[name], scores(n)
    for tau, mask in ((1.0, None), (0.7, where), (torch.tensor([[0.5], [1.0], [2.0]]), None)):
        g = normal(*x.shape, seed=1).float()
        expected = truth(name, params, x, tau, mask)
        p = map(x, temperature=tau, where=mask, **params)
        torch.testing.assert_close(p.double(), expected, atol=3e-6, rtol=1e-6, equal_nan=True)
        theta = map.kernel.theta(*params.values())  # type: ignore[union-attr]
        gradient = library.backward(map.kernel, p, g, x if map.uses_scores else None, tau, mask, theta)  # type: ignore[arg-type]
        z = tempered(x.double(), tau, mask)
        vjp = map.jacobian_of(map.sensitivity(p.double(), z if map.uses_scores else None, **params)).pull(g.double()) / tau
        torch.testing.assert_close(gradient.double(), vjp, atol=2e-5, rtol=1e-5, equal_nan=True)


@pytest.mark.usefixtures("rows_are")
@pytest.mark.parametrize(("rows_are", "n"), SIZES, indirect=["rows_are"])
@pytest.mark.parametrize("offset", [0.0, 1e4, -1e4])
def test_logsumexp_and_its_gradient_at_every_boundary(n: int, offset: float):
    x, where = scores(n)
    x = x + offset
    for tau, mask in ((1.0, None), (0.7, where), (torch.tensor([[0.5], [1.0], [2.0]]), None)):
        value, states = library.logsumexp(x, tau, mask, wide=True)
        z = tempered(x.double(), tau, mask)
        divisor = tau.squeeze(-1).double() if isinstance(tau, torch.Tensor) else tau
        torch.testing.assert_close(states[0] / divisor + states[1], z.logsumexp(-1), rtol=1e-7, atol=1e-7)
        torch.testing.assert_close(value, z.logsumexp(-1).float())
        g = torch.tensor([1.0, -2.0, 0.5])
        gradient = library.logsumexp_backward(x, states, g, tau, mask)
        expected = (z.softmax(-1) / tau * g.unsqueeze(-1)).nan_to_num(0.0)
        torch.testing.assert_close(gradient.double(), expected, atol=3e-6, rtol=1e-5)


@pytest.mark.usefixtures("rows_are")
@pytest.mark.parametrize("rows_are", ["whole", "shared"], indirect=True)
def test_logsumexp_keeps_infinities_and_digits_near_zero():
    x = torch.full((4, 40), -math.inf)
    x[1, ::20] = math.inf
    x[2, 3] = math.nan
    x[3, :2] = torch.tensor([0.0, -17.0])
    value, states = library.logsumexp(x, 1.0, None, wide=True)
    assert value[:3].tolist()[:2] == [-math.inf, math.inf]
    assert value[2].isnan()
    assert float(states[:, 3].sum()) == pytest.approx(math.log1p(math.exp(-17.0)), rel=1e-6)
    gradient = library.logsumexp_backward(x, states, torch.ones(4), 1.0, None)
    assert gradient[0].tolist() == [0.0] * 40
    assert gradient[1].isnan().all()


LOSSES: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "cross_entropy": (sm.cross_entropy, {}),
    "elastic_cross_entropy": (sm.elastic_cross_entropy, {"beta": 0.5}),
    **{
        f"{map.name} {case.params}": (sm.fenchel_young_loss, {"map": map, **case.params})
        for map in REGISTRY.values()
        if map.kernel is not None and map.kernel.loss is not None
        for case in list(cases(map))[-1:]
    },
}


@pytest.mark.usefixtures("rows_are")
@pytest.mark.parametrize(("rows_are", "n"), [("whole", 2), ("whole", 9), ("shared", 33)], indirect=["rows_are"])
@pytest.mark.parametrize("kind", LOSSES)
def test_losses_and_their_gradients(kind: str, n: int, monkeypatch: pytest.MonkeyPatch):
    loss, options = LOSSES[kind]
    x, _ = scores(n, height=4)
    x[1] = normal(n, seed=2).float()
    soft = normal(4, n, seed=3).float().softmax(-1)
    weight = torch.arange(1.0, n + 1) / n
    labels = torch.tensor([0, n - 1, -100, n // 2])
    for target, more in (
        (labels, {}),
        (labels, {"weight": weight}),
        (labels, {"label_smoothing": 0.2, "weight": weight}),
        (soft, {"weight": weight}),
        (soft, {}),
        (labels, {"weight": 1e-39 * weight}),  # below the normal numbers of float32
    ):
        for reduction in ("mean", "none"):
            rows = x.clone().requires_grad_()
            value = loss(rows, target, reduction=reduction, **options, **more)
            (gradient,) = torch.autograd.grad(value.sum(), rows)
            with monkeypatch.context() as patch:
                patch.setattr("softmaxima.engine.routing.devices.has_library", lambda device: False)
                wide = x.double().requires_grad_()
                soft_or_label = target.double() if target.is_floating_point() else target
                doubles = {key: v.double() if isinstance(v, Tensor) else v for key, v in more.items()}
                expected = loss(wide, soft_or_label, reduction=reduction, **options, **doubles)
                (slope,) = torch.autograd.grad(expected.sum(), wide)
            torch.testing.assert_close(value.double(), expected, atol=2e-6, rtol=2e-6)
            torch.testing.assert_close(gradient.double(), slope, atol=3e-6, rtol=1e-5)
        torch.testing.assert_close(loss(x, target, reduction="none", **options, **more), value.detach())  # without a gradient
        masked = x.clone()
        masked[0, 0] = -math.inf
        assert loss(masked, target, reduction="none", **options, **more)[0] == math.inf


CALLS: dict[str, Callable[[Tensor], Any]] = {
    "softmax": sm.softmax,
    "sparsemax": lambda x: sm.sparsemax(x, temperature=0.5),
    "entmax": lambda x: sm.entmax(x, alpha=1.3),
    "logsumexp": sm.logsumexp,
    "cross_entropy": lambda x: sm.cross_entropy(x, torch.tensor([0, 2])),
    "entmax15_loss": lambda x: sm.entmax15_loss(x, torch.tensor([0, 2]), reduction="sum"),
}


@pytest.mark.parametrize("name", CALLS)
def test_compilation_second_derivatives_and_batches(name: str):
    call, x = CALLS[name], normal(2, 5)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    results = []
    for function in (call, compiled):
        leaf = x.clone().requires_grad_()
        value = function(leaf)
        results.append((value.detach(), torch.autograd.grad(value.square().sum(), leaf)[0]))
    torch.testing.assert_close(results[1], results[0])
    leaf = x.clone().requires_grad_()
    assert torch.autograd.gradcheck(call, leaf)
    assert torch.autograd.gradgradcheck(call, leaf)
    batch = normal(3, 2, 5)
    torch.testing.assert_close(torch.func.vmap(call)(batch), torch.stack([call(rows) for rows in batch]))


def test_a_label_of_no_class_makes_the_loss_nan():
    options: dict[str, Any] = {"theta": (), "class_weight": None, "smoothing": 0.0, "fenchel": False, "gradient": True}
    values, _ = library.loss(
        REGISTRY["softmax"].kernel, torch.zeros(2, 3), torch.tensor([3, -1]), scale=torch.tensor(0.5), **options
    )
    assert values[0].isnan()
    assert values[1] == 0


@pytest.mark.usefixtures("rows_are")
@pytest.mark.parametrize("rows_are", ["whole", "shared"], indirect=True)
def test_rows_are_scaled_in_place_and_a_second_time_anew():
    slope = normal(3, 40).float()
    for g in (torch.tensor(1.0), torch.tensor(2.0), torch.tensor([1.0, 0.5, 3.0])):
        pull = _InPlace(lambda x: slope.clone())
        for _ in range(2):
            mine = slope.clone()
            out = pull(g, slope, mine)
            torch.testing.assert_close(out, slope * g.unsqueeze(-1))


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_the_steps_to_a_threshold_are_enough(name: str, monkeypatch: pytest.MonkeyPatch):
    """Rows that Newton's method takes longest for, with a fifth of the steps that a kernel may take."""
    monkeypatch.setattr(threshold, "STEPS", threshold.tl.constexpr(21))
    dtype, k = getattr(torch, name), torch.arange(4096, dtype=torch.float64)
    edge = torch.where(k == 0, 0.0, -1 + 1e-6)
    rows = torch.stack([-(0.998**k), -k.sqrt() / 64, -k / 4096, -((k / 4096) ** 8), k * 0, -k.log1p() / 10, edge]).to(dtype)
    one = torch.ones(len(rows), dtype=torch.float64)
    tolerance = 1e-6 if name == "float32" else 1e-12
    for map, options in (
        (sm.sparsemax, {}),
        (sm.entmax15, {}),
        *((sm.entmax, {"alpha": a}) for a in (1.0, 1.01, 1.25, 1.5, 1.9, 2.0)),
    ):
        torch.testing.assert_close(map(rows, **options).double().sum(-1), one, atol=tolerance, rtol=0)


@pytest.mark.usefixtures("rows_are")
@pytest.mark.parametrize("rows_are", ["whole", "shared"], indirect=True)
@pytest.mark.parametrize("alpha", [2.5, 20.0])
def test_where_no_level_gives_a_mass_of_1_the_scores_at_the_edge_take_what_is_left(alpha: float):
    k = torch.arange(40.0, dtype=torch.float64)
    rows = torch.stack([-k / 40, 0 * k, -k.sqrt(), -1e-3 * k.sqrt(), -1e-9 * k, -(k > 3).double() * 1e-4])
    for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 3e-6)):
        x = rows.to(dtype)
        for columns in (40, 2):
            expected = sm.find_map("entmax").forward(x[:, :columns].double(), alpha=alpha)
            p = sm.entmax(x[:, :columns], alpha=alpha).double()
            torch.testing.assert_close(p, expected, atol=tolerance, rtol=0)
            torch.testing.assert_close(p.sum(-1), torch.ones(6, dtype=torch.float64), atol=tolerance, rtol=0)


@pytest.mark.usefixtures("rows_are")
@pytest.mark.parametrize("rows_are", ["whole", "shared"], indirect=True)
def test_dtypes_strides_and_parameters_per_row(dtype: torch.dtype):
    x = normal(4, 3, 66).to(dtype).transpose(0, 1)[:, ::2, :65]
    for map in (sm.softmax, sm.sparsemax, sm.logsumexp):
        torch.testing.assert_close(map(x), map(x.contiguous()), rtol=0, atol=0)
    alpha = torch.tensor([1.0, 1.5, 2.0])[:, None, None]
    p = sm.entmax(x, alpha=alpha)
    for i in range(3):
        expected = sm.find_map("entmax").forward(x[i].double(), alpha=float(alpha[i]))
        torch.testing.assert_close(
            p[i].double(), expected, atol=max(TOLERANCE[dtype], 3e-6), rtol=2**-8 if dtype.itemsize == 2 else 1e-5
        )


@pytest.mark.parametrize(("name", "params"), MAPS, ids=str)
def test_a_row_is_the_same_beside_whatever_rows(name: str, params: dict[str, Any], dtype: torch.dtype):
    """Rows that share a program end at different steps, and the one that ends first goes no further."""
    map, x = REGISTRY[name], normal(32, 250, seed=3).to(dtype) * torch.logspace(-2, 1, 32).to(dtype).unsqueeze(-1)
    order = torch.randperm(32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(map(x[order], **params), map(x, **params)[order])
