"""Losses: shapes and arguments as F.cross_entropy, gradients p − y, Fenchel–Young inequalities, second derivatives."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import dask.array as da
import mpmath
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.fx.experimental.proxy_tensor import make_fx

import softmaxima as sm
from conftest import INTERPRETED, ON_TRITON, TOLERANCE, Case, LossCase, chosen, normal, rows, some
from softmaxima.kernels import devices, native
from softmaxima.losses import evaluation
from softmaxima.maps import REGISTRY

pytestmark = pytest.mark.gpu

SHAPES = [((5,), ()), ((4, 5), (4,)), ((4, 5, 3), (4, 3)), ((2, 5, 2, 3), (2, 2, 3))]


def labels(shape: tuple[int, ...], classes: int = 5, seed: int = 0) -> torch.Tensor:
    return torch.randint(classes, shape, generator=torch.Generator().manual_seed(seed))


def soft(shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    return torch.softmax(normal(*shape, seed=seed), 0 if len(shape) == 1 else 1)


def test_a_temperature_divides_the_scores_and_may_learn(loss: LossCase, dtype: torch.dtype):
    if loss.loss.on_cosines:  # which have their own, or a scale
        pytest.skip("has a scale of its own")
    x, y = normal(2, 4, 3, dtype=dtype), labels((2, 3), 4)
    y[0, 1], x[0, :, 1] = -100, math.nan  # a row that is ignored
    x.requires_grad_()
    a_row = torch.tensor([[[0.25, 0.5, 1.0]], [[0.5, 2.0, 0.25]]], dtype=torch.float64)
    for tau, number in ((0.25, 0.25), (a_row.requires_grad_(), a_row.detach()), (sm.Temperature(0.25, dtype=torch.float64), 0.25)):
        z = (x.detach().double() / number).requires_grad_()
        found, expected = loss(x, y, reduction="none", temperature=tau), loss(z, y, reduction="none")
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), expected, rtol=2 * TOLERANCE[dtype], atol=2 * TOLERANCE[dtype])
        learnt = [] if isinstance(tau, float) else [tau] if isinstance(tau, torch.Tensor) else list(tau.parameters())
        slope, *by_tau = torch.autograd.grad(found.sum(), [x, *learnt])
        (of_z,) = torch.autograd.grad(expected.sum(), z)
        close = {"rtol": 50 * TOLERANCE[dtype], "atol": 50 * TOLERANCE[dtype]}
        torch.testing.assert_close(slope.double(), of_z / number, **close)
        for gradient in by_tau:  # by log τ of a module
            moved = -(of_z * z.detach().nan_to_num()).sum(1, keepdim=True)
            torch.testing.assert_close(gradient.double(), moved / number if gradient.ndim else moved.sum(), **close)


def of_operations(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """∂f/∂x where there is no kernel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "AVAILABLE", False)
        patch.setattr(native, "CALLS", None)
        patch.setattr(devices, "has_library", lambda kind: False)
        patch.setattr(devices, "has_kernel", lambda kind, key, what="": False)
        return torch.autograd.grad(f(x), x)[0]


# Ways to ∂f/∂x; the later ones record the operations.
SLOPES: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]] = {
    "eager": lambda f, x: torch.autograd.grad(f(x), x)[0],
    "create_graph": lambda f, x: torch.autograd.grad(f(x), x, create_graph=True)[0],
    "operations": of_operations,
    "torch.func.grad": lambda f, x: torch.func.grad(f)(x.detach()),
    "jvp": lambda f, x: torch.func.jacfwd(f)(x.detach()),
    "make_fx": lambda f, x: make_fx(torch.func.grad(f))(x.detach())(x.detach()),
    "jit.trace": lambda f, x: torch.autograd.grad(torch.jit.trace(f, x, check_trace=False)(x), x)[0],
    "compile": lambda f, x: torch.autograd.grad(torch.compile(f, backend="aot_eager")(x), x)[0],
}


@pytest.mark.filterwarnings("ignore:Dynamo")
@pytest.mark.parametrize("kind", ["labels", "soft"])
@pytest.mark.parametrize("n", [5, 40, 700])
def test_slope_of_a_probability_near_1_has_its_digits(loss: LossCase, dtype: torch.dtype, n: int, kind: str):
    """It is what the others and a sink add up to, and so is its own slope: a constant added to all of these changes no loss."""
    if loss.loss.on_cosines or "noise" in loss.options:
        pytest.skip("no shift of the scores leaves it as it is, or it is right in absolute terms alone")
    if dtype == torch.float16:
        pytest.skip("float16 has not the range of what is left")
    map = REGISTRY[loss.options.get("map") or loss.loss.map or "softmax"]
    sink = -math.inf
    if map.properties.mass == "at most one":
        if loss.loss.name in ("eps_cross_entropy", "soft_accuracy_loss"):
            pytest.skip("its slope by the sink is another")
        sink = loss.options.get("beta", math.log(loss.options.get("eps", 1.0)))
    elif not map.properties.shift_invariant:
        pytest.skip("a shift of the scores is another loss")
    y, few = 7 * torch.arange(20) % n, n == 5 and dtype != torch.bfloat16
    target = y if kind == "labels" else F.one_hot(y, n).to(dtype)
    tau = torch.full((20, 1), 0.5, dtype=torch.float64, requires_grad=True)
    there = (torch.arange(n) != (y + 1).unsqueeze(-1) % n) | (n == 2)
    plain: dict[str, object] = {}
    variants = [plain, {"weight": torch.linspace(0.5, 2, n)}, {"where": there}, {"temperature": tau}] if few else [plain]
    for spread, options in itertools.product((20.0, 80.0) if dtype != torch.float64 else (20.0, 40.0, 700.0), variants):
        x = normal(20, n, seed=n, scale=0.25).bfloat16().to(dtype)
        x.scatter_(1, y.unsqueeze(-1), spread).requires_grad_()
        f = with_options(loss, target, options)
        z = x.detach().double().masked_fill(~there, -math.inf) if "where" in options else x.detach().double()
        z = z / 0.5 if "temperature" in options else z
        p = torch.softmax(torch.cat((z, torch.full_like(z[:, :1], sink)), -1), -1)
        lost = p[:, -1:] * 2**13
        if "weight" in options:
            lost = lost * options["weight"][y].unsqueeze(-1)  # type: ignore[index]
        lost = lost / (0.5 if "temperature" in options else 1.0)
        paths = [path for path in SLOPES if few and (options is plain or path in ("create_graph", "torch.func.grad"))] or ["eager"]
        for path in paths:
            if path in ("make_fx", "jit.trace", "compile") and spread != 20.0:
                continue
            v = SLOPES[path](f, x)
            check_adds_up(v, y, lost, (path, spread, options))
            if path == "create_graph" and options is plain:
                own = torch.autograd.grad(v.gather(1, y.unsqueeze(-1)).sum(), x)[0]
                check_adds_up(own, y, -lost * p.gather(1, y.unsqueeze(-1)), ("second", spread))


def with_options(loss: LossCase, target: Tensor, options: dict[str, object]) -> Callable[[Tensor], Tensor]:
    return lambda x: loss(x, target, reduction="sum", **options) * 2**13


def check_adds_up(v: Tensor, y: Tensor, lost: Tensor, what: object) -> None:
    """That a row of slopes with `lost` adds up to 0, in the digits of all but y."""
    v = v.detach()
    others = v.double().scatter(1, y.unsqueeze(-1), 0.0).abs().sum(-1, keepdim=True) + lost.abs()
    limits = torch.finfo(v.dtype)
    assert bool(((v.double().sum(-1, keepdim=True) + lost).abs() <= 64 * limits.eps * others + limits.smallest_normal).all()), what


@pytest.mark.parametrize("n", [2, 5])
def test_two_classes_that_share_a_row_have_one_slope(loss: LossCase, dtype: torch.dtype, n: int):
    """Of two equal scores far above all others p is ½, or above it by a rounding, for both."""
    if loss.loss.on_cosines or not REGISTRY[loss.loss.map or loss.options.get("map", "softmax")].properties.order_preserving:
        pytest.skip("two equal scores need not share")
    x = torch.full((20, n), -30.0, dtype=dtype)
    x[:, :2] = torch.linspace(-3, 3, 20)[:, None].to(dtype)
    target = F.one_hot(torch.zeros(20, dtype=torch.long), n).to(dtype)
    target[:, :2] = 0.5
    for temperature in (1.0, 0.7):
        scores = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(loss(scores, target, temperature=temperature, reduction="sum"), scores)
        torch.testing.assert_close(slope[:, 0], slope[:, 1], atol=4 * TOLERANCE[dtype], rtol=4 * TOLERANCE[dtype])


@pytest.mark.parametrize(("function", "what"), [(sm.am_softmax_loss, "temperature"), (sm.cosface, "scale"), (sm.arcface, "scale")])
def test_the_scale_of_cosines_may_learn(function, what: str):
    x, y = 0.9 * torch.tanh(normal(2, 4, 3)), labels((2, 3), 4)
    scale = torch.full((2, 1, 3), 1.5, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(function(x, y, **{what: scale}), function(x, y, **{what: 1.5}))
    assert gradcheck(lambda scale: function(x, y, **{what: scale}), (scale,))


def test_a_soft_target_of_0_has_the_slope_of_moving_it(case: Case):
    claims = case.claims
    if case.map.regulariser is None or not claims.sparse or claims.mass != "one" or case.params.get("alpha", 2.0) < 1.5:
        pytest.skip("has no zeros to move a target from")
    if case.params.get("noise", "uniform") != "uniform":
        return  # their Ω′(0) is −∞
    x, y = normal(1, 3), torch.tensor([[0.75, 0.25, 0.0]], dtype=torch.float64, requires_grad=True)
    loss = lambda y: sm.fenchel_young_loss(x, y, map=case.map, reduction="sum", **case.params)
    (slope,) = torch.autograd.grad(loss(y), y)
    step = torch.tensor([[-1.0, 0.0, 1.0]], dtype=torch.float64)
    change = (loss(y.detach() + 1e-8 * step) - loss(y.detach())) / 1e-8
    torch.testing.assert_close((slope * step).sum(), change, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("shape", "rows_shape"), SHAPES, ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("kind", ["hard", "soft", "ignored"])
def test_cross_entropy_is_that_of_torch(shape, rows_shape, reduction, weighted, smoothing, kind):
    x = normal(*shape).requires_grad_()
    target = soft(shape, seed=3) if kind == "soft" else labels(rows_shape, seed=2)
    weight = torch.tensor([0.5, 1.0, 2.0, 0.25, 3.0], dtype=torch.float64) if weighted else None
    options = {"weight": weight, "reduction": reduction, "label_smoothing": smoothing}
    if kind == "ignored":
        options["ignore_index"] = int(target.flatten()[0])
    ours, theirs = sm.cross_entropy(x, target, **options), F.cross_entropy(x, target, **options)
    torch.testing.assert_close(ours, theirs, equal_nan=True)
    if bool(theirs.isfinite().all()):
        gradients = [torch.autograd.grad(value.sum(), x)[0] for value in (ours, theirs)]
        torch.testing.assert_close(*gradients)


def test_soft_targets_may_learn():
    x, y = normal(4, 5), soft((4, 5), seed=1).requires_grad_()
    ours, theirs = (torch.autograd.grad(f(x, y, label_smoothing=0.1), y)[0] for f in (sm.cross_entropy, F.cross_entropy))
    torch.testing.assert_close(ours, theirs)
    assert gradcheck(lambda y: sm.entmax_loss(x, y, alpha=1.3), (y,), check_forward_ad=True)


def test_soft_targets_and_weights_of_0_learn_in_every_loss(loss: LossCase):
    x, y = loss.scores(2, 3).double(), torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]], dtype=torch.float64, requires_grad=True)
    weight = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64, requires_grad=True)
    slopes = torch.autograd.grad(loss(x, y, weight=weight, reduction="sum"), (y, weight))
    assert all(slope.isfinite().all() for slope in slopes)
    step = torch.tensor([1e-6, 0.0, 0.0], dtype=torch.float64)
    for target in (y.detach(), torch.tensor([0, 1])):
        change = loss(x, target, weight=weight.detach() + step, reduction="sum") - loss(
            x, target, weight=weight.detach(), reduction="sum"
        )
        (slope,) = torch.autograd.grad(loss(x, target, weight=weight, reduction="sum"), weight)
        torch.testing.assert_close(slope[0], change / 1e-6, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_batch_with_all_targets_ignored_gives_what_torch_gives(loss: LossCase, reduction: str):
    x, target = loss.scores(3, 4), torch.full((3,), -100)
    expected = F.cross_entropy(x, target, reduction=reduction)
    torch.testing.assert_close(loss(x, target, reduction=reduction), expected, equal_nan=True)


def test_empty_batch_gives_what_torch_gives(loss: LossCase):
    x, target = loss.scores(0, 4), labels((0,))
    for reduction in ("mean", "sum", "none"):
        expected = F.cross_entropy(x, target, reduction=reduction)
        torch.testing.assert_close(loss(x, target, reduction=reduction), expected, equal_nan=True)


@pytest.mark.parametrize(("shape", "rows_shape"), SHAPES, ids=str)
def test_shapes_are_those_of_rows_taken_alone(loss: LossCase, shape, rows_shape):
    x, target = loss.scores(*shape), labels(rows_shape)
    flat = x.movedim(0 if len(shape) == 1 else 1, -1).reshape(-1, 5)
    alone = torch.stack([loss(row, t) for row, t in zip(flat, target.reshape(-1), strict=True)])
    none = loss(x, target, reduction="none")
    assert none.shape == rows_shape
    torch.testing.assert_close(none.reshape(-1), alone)
    torch.testing.assert_close(loss(x, target, reduction="sum"), alone.sum())
    torch.testing.assert_close(loss(x, target), alone.mean())


@pytest.mark.parametrize(("shape", "rows_shape"), SHAPES, ids=str)
def test_soft_one_hot_targets_equal_labels(loss: LossCase, shape, rows_shape):
    x, target = loss.scores(*shape), labels(rows_shape)
    one_hot = F.one_hot(target, 5).movedim(-1, 0 if len(shape) == 1 else 1).double()
    for smoothing in (0.0, 0.2):
        options = {"reduction": "none", "label_smoothing": smoothing}
        torch.testing.assert_close(loss(x, one_hot, **options), loss(x, target, **options))


def in_every_way(loss: LossCase, x: Tensor, y: Tensor, **shared: Any) -> Iterator[tuple[str, Tensor, Tensor]]:
    """(way, the loss, its gradient by the scores), of two axes; in parts where there are few scores."""
    calls: dict[str, Any] = {"kernel": loss, "operations": loss}
    found, options, n = loss.loss, dict(loss.options), x.shape[-1]
    in_parts = found.row_form is not None and x.numel() <= 20 and not INTERPRETED
    if in_parts:
        of_layer = {("class_weight" if key == "weight" else key): value for key, value in shared.items()}
        layer = functools.partial(sm.linear_loss, weight=torch.eye(n, dtype=x.dtype), loss=(found.name, options), **of_layer)
        calls["layer"] = lambda x, y, **_: layer(x, target=y)
        calls["classes of a layer"] = lambda x, y, **_: layer(x, target=y, chunk=(2, 3))
    for way, call in calls.items():
        scores = x.clone().requires_grad_()
        with pytest.MonkeyPatch.context() as patched:
            if way == "operations":
                patched.setattr(evaluation, "is_fusible", lambda *_: False)
            value = call(scores, y, **shared)
            yield way, value.detach(), torch.autograd.grad(value.sum(), scores)[0]
    if in_parts:
        parts = [slice(0, 2), slice(2, n)]
        own = [y[:, part] for part in parts] if y.is_floating_point() else y
        value, slopes = found.in_parts([x[:, part] for part in parts], own, **shared, **options)
        yield "parts", value, torch.cat(slopes, -1)
        lazy = getattr(sm.dask, found.name)(da.from_array(x.numpy(), chunks=(x.shape[0], 3)), y.numpy(), **shared, **options)
        yield "Dask", torch.as_tensor(lazy.compute(scheduler="synchronous")), torch.cat(slopes, -1)


@pytest.mark.parametrize("rows", [4, 20])
def test_labels_and_their_one_hot_rows_count_alike_in_every_way(loss: LossCase, rows: int):
    """Targets are smoothed, then weighed; the mean is over the weights of labels, and over rows of probabilities, as in torch."""
    classes = 5 if rows == 4 else 70
    x, y = 0.9 * loss.scores(rows, classes), labels((rows,), classes)
    hot, weight = F.one_hot(y, classes).double(), torch.linspace(0, 2, classes, dtype=torch.float64)
    for smoothing, reduction in itertools.product((0.0, 0.3, 1.0), ("none", "mean")):
        values, slopes = {}, {}
        for target, what in ((y, "labels"), (hot, "one-hot rows")):
            factor = weight[y].sum() / rows if reduction == "mean" and target is y else 1.0
            shared = {"weight": weight, "label_smoothing": smoothing, "reduction": reduction}
            for way, value, slope in in_every_way(loss, x, target, **shared):
                values[what, way], slopes[what, way] = value * factor, slope * factor
        first = values["labels", "kernel"], slopes["labels", "kernel"]
        for key in values:
            for ours, theirs in zip((values[key], slopes[key]), first, strict=True):
                assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-9), (key, smoothing, reduction, ours, theirs)
        if reduction == "none" and (loss.loss.name == "surrogate_loss" or getattr(loss.loss.row_form, "fenchel", False)):
            counts = ((hot * (1 - smoothing) + smoothing / classes) * weight).sum(-1)
            plain = loss(x, y, label_smoothing=smoothing, reduction="none")
            torch.testing.assert_close(first[0], counts * plain)


def test_weight_and_ignored_rows_scale_as_in_torch(loss: LossCase):
    x, target = loss.scores(6, 5), torch.tensor([0, 1, -100, 3, 4, 0])
    weight = torch.tensor([0.5, 1.0, 2.0, 0.0, 3.0], dtype=torch.float64)
    plain = loss(x, target, reduction="none")
    row_weight = torch.where(target >= 0, weight[target.clamp_min(0)], 0.0)
    torch.testing.assert_close(loss(x, target, weight=weight, reduction="none"), row_weight * plain)
    torch.testing.assert_close(loss(x, target, weight=weight), (row_weight * plain).sum() / row_weight.sum())
    torch.testing.assert_close(loss(x, target), plain.sum() / 5)


@pytest.mark.parametrize("number", [1, 40])
def test_a_row_of_nan_is_nan_also_with_a_weight_of_0(loss: LossCase, dtype: torch.dtype, number: int):
    x, labels = loss.scores(number, 5, dtype=dtype), torch.zeros(number, dtype=torch.long)
    x[0, 1], x[-1, 2] = math.nan, math.nan
    weight = torch.tensor([0.0, 1.0, 2.0, 1.0, 1.0])
    for target in (labels, F.one_hot(labels, 5).to(dtype)):
        expected = F.cross_entropy(
            x.float(), target if target.ndim == 1 else target.float(), weight=weight, reduction="none"
        ).isnan()
        scores = x.clone().requires_grad_()
        for z in (x, scores):
            value = loss(z, target, weight=weight, reduction="none")
            assert torch.equal(value.isnan(), expected)
            assert not bool(value[~expected].any())
        (slope,) = torch.autograd.grad(loss(scores, target, weight=weight, reduction="sum"), scores)
        assert torch.equal(slope.isnan().any(-1), expected)
        map = sm.find_map(loss.options.get("map", loss.loss.map) or "softmax")
        if loss.loss.row_form is not None and map.blocks is not None:
            options = {"reduction": "none", **loss.options}
            y = target if target.ndim == 1 else [target[:, :2], target[:, 2:]]
            value, slopes = loss.loss.in_parts([x[:, :2], x[:, 2:]], y, weight, **options)
            assert torch.equal(value.isnan(), expected)
            assert torch.equal(torch.cat(slopes, -1).isnan().any(-1), expected)


def test_where_leaves_classes_out_and_smooths_among_the_others(loss: LossCase, dtype: torch.dtype):
    if loss.loss.on_cosines:
        pytest.skip("where= is not for cosines")
    x, kept, place = loss.scores(3, 7, 4, dtype=dtype), torch.tensor([0, 2, 3, 5]), torch.tensor([0, -1, 1, 2, -1, 3, -1])
    where = torch.zeros(7, dtype=torch.bool)
    where[kept] = True
    x[:, ~where] = math.nan  # which is not read
    weight, label = torch.linspace(0.5, 2, 7).to(dtype), kept[torch.arange(12).reshape(3, 4) % 4]
    soft_target = torch.zeros(3, 7, 4, dtype=dtype)
    soft_target[:, kept] = torch.tensor([0.5, 0.0, 0.25, 0.25], dtype=dtype)[:, None]
    every = some(itertools.product((label, soft_target), (0.0, 0.2, 1.0), (1.0, 0.7)), loss, dtype)
    for target, smoothing, temperature in every[:: 5 if INTERPRETED else 1]:
        own = place[target] if target.ndim == 2 else target[:, kept]
        for reduction, class_weight in (("none", None), ("mean", weight)):
            results = []
            for z, y, mask, w in (
                (x, target, where[:, None], class_weight),
                (x[:, kept], own, None, None if class_weight is None else weight[kept]),
            ):
                z = z.clone().requires_grad_()
                options = {"weight": w, "reduction": reduction, "label_smoothing": smoothing, "temperature": temperature}
                plain = loss(z.detach(), y, where=mask, **options)
                value = loss(z, y, where=mask, **options)
                (slope,) = torch.autograd.grad(value.sum(), z)
                if mask is not None:
                    assert not bool(slope[:, ~where].any())
                    slope = slope[:, kept]
                results.append((plain, value.detach(), slope))
            for ours, theirs in zip(*results, strict=True):
                torch.testing.assert_close(ours, theirs, atol=20 * TOLERANCE[dtype], rtol=20 * TOLERANCE[dtype])


def test_where_may_be_another_for_each_row_and_a_target_outside_costs_what_a_score_of_minus_infinity_does(loss: LossCase):
    if loss.loss.on_cosines:
        pytest.skip("where= is not for cosines")
    x, label = loss.scores(4, 5), torch.tensor([0, 1, 2, 3])
    where = torch.ones(4, 5, dtype=torch.bool)
    where[0, 1], where[1, 1], where[2, 3:] = False, False, False
    found = loss(x, label, where=where, reduction="none")
    torch.testing.assert_close(found[0], loss(x[0, [0, 2, 3, 4]], torch.tensor(0), reduction="none"))
    torch.testing.assert_close(found[2], loss(x[2, :3], torch.tensor(2), reduction="none"))
    torch.testing.assert_close(found[3], loss(x[3], torch.tensor(3), reduction="none"))
    if loss.loss.name != "eps_cross_entropy":  # which counts the classes that are there
        torch.testing.assert_close(found, loss(x.masked_fill(~where, -math.inf), label, reduction="none"))
    module = loss.loss.module(**loss.options, reduction="none")
    torch.testing.assert_close(module(x, label, where=where), found)


@pytest.mark.parametrize("dim", [0, 2, -1, (1,), (1, 3), (3, 1), (0, 1, 2, 3)], ids=str)
def test_dim_says_where_the_classes_are_and_several_axes_are_one(loss: LossCase, dim):
    if loss.loss.on_cosines:
        pytest.skip("dim= is not for cosines")
    shape = (2, 3, 4, 2)
    x = loss.scores(*shape)
    dims = tuple(d % 4 for d in (dim if isinstance(dim, tuple) else (dim,)))
    rest = [axis for axis in range(4) if axis not in dims]
    classes = math.prod(shape[axis] for axis in dims)
    first = len(rest[:1])
    merged = lambda v: v.permute(*rest[:1], *dims, *rest[1:]).flatten(first, first + len(dims) - 1)
    label = labels(tuple(shape[axis] for axis in rest), classes)
    y = torch.softmax(merged(x).roll(1, first), first)
    unmerged = y.unflatten(first, [shape[axis] for axis in dims])
    soft_target = unmerged.permute([[*rest[:1], *dims, *rest[1:]].index(axis) for axis in range(4)])
    where = x > -3.0
    tau = 0.7 + torch.rand([1 if axis in dims else n for axis, n in enumerate(shape)], dtype=torch.float64)
    for ours, theirs, reduction in ((label, label, "none"), (soft_target, y, "mean")):
        z = x.clone().requires_grad_()
        found = loss(z, ours, dim=dim, reduction=reduction, temperature=tau)
        torch.testing.assert_close(found, loss(merged(x), theirs, reduction=reduction, temperature=merged(tau)))
        assert torch.autograd.grad(found.sum(), z)[0].shape == shape
        array = loss(x.numpy(), ours.numpy(), dim=dim, reduction=reduction, where=where.numpy())
        torch.testing.assert_close(torch.as_tensor(array), loss(merged(x), theirs, reduction=reduction, where=merged(where)))


def test_dim_and_empty_that_are_wrong_are_refused(loss: LossCase):
    x, label = loss.scores(2, 3), torch.tensor([0, 1])
    with pytest.raises(ValueError, match="empty must be"):
        loss.loss.module(**loss.options, empty="none")
    if loss.loss.on_cosines:
        return
    with pytest.raises(ValueError, match="dim must name each axis"):
        loss(x, label, dim=(1, 1))
    with pytest.raises(IndexError, match="dim must be in"):
        loss(x, label, dim=2)
    with pytest.raises(ValueError, match="size 1 along dim"):
        loss(x, label, dim=(1,), temperature=torch.ones(2, 3))
    with pytest.raises(ValueError, match="scores' shape"):
        loss(x, soft((3, 2)), dim=0)
    with pytest.raises(TypeError, match="where must be boolean"):
        loss(x, label, where=x)


def test_the_mean_over_nothing_may_be_zero(loss: LossCase, dtype: torch.dtype):
    weight = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=dtype)
    of_weight = {"weight": weight, "label_smoothing": 0.1}  # whose sum of losses is not 0
    for number, label, options in (
        (0, 0, {}),
        (3, -100, {}),
        (3, 1, {"weight": weight}),
        (3, 1, {"ignore_index": 1}),
        (3, 1, of_weight),
    ):
        x, target = loss.scores(number, 4, dtype=dtype).requires_grad_(), torch.full((number,), label)
        for scores in (x, x.detach()):
            assert bool(loss(scores, target, **options).isnan())
        for value in (loss(x.detach(), target, empty="zero", **options), loss(x, target, empty="zero", **options)):
            assert float(value.detach()) == 0.0
        assert not bool(torch.autograd.grad(value, x)[0].any())
        own = {"weight": None, "ignore_index": -100} | options
        assert float(loss.loss.module(**loss.options, **own, empty="zero")(x.detach(), target)) == 0.0
        if loss.loss.row_form is not None and number and "label_smoothing" not in own:
            value, _ = loss.loss.in_parts([x.detach()[:, :2], x.detach()[:, 2:]], target, **own, empty="zero", **loss.options)
            assert float(value) == 0.0
    x, target = loss.scores(3, 4, dtype=dtype), torch.tensor([0, 3, 0])
    torch.testing.assert_close(loss(x, target, empty="zero"), loss(x, target))


def test_an_eps_beyond_the_dtype_makes_all_classes_alike(dtype: torch.dtype):
    x = normal(3, 5, dtype=dtype)
    for target, eps in itertools.product((torch.tensor([0, 4, 2]), soft((3, 5))), (1e3, 1e38, 1e39, 1.7e308)):
        value = sm.eps_cross_entropy(x.requires_grad_(), target, eps=eps)
        torch.testing.assert_close(value.double(), torch.tensor(math.log(5.0)).double(), atol=4e-3, rtol=4e-3)
        (slope,) = torch.autograd.grad(value, x)
        assert bool((slope.abs() <= 1 / eps).all())


def test_gradient_and_second_gradient_are_true(loss: LossCase):
    x = loss.scores(3, 5, seed=4).requires_grad_()
    for target in (torch.tensor([0, 4, 2]), soft((3, 5), seed=1)):
        if loss.loss.name == "surrogate_loss":
            continue  # its value is not the integral of its gradient
        function = lambda x, target=target: loss(x, target, label_smoothing=0.1)
        assert gradcheck(function, (x,), check_forward_ad=True, check_batched_grad=True)
        assert gradgradcheck(function, (x,), check_fwd_over_rev=True)


def test_gradient_is_p_minus_y_where_claimed(loss: LossCase):
    name = loss.loss.map or (loss.options.get("map") if loss.loss.name in ("surrogate_loss", "fenchel_young_loss") else None)
    if name is None:
        pytest.skip("the gradient of this loss has another form")
    params = {parameter.name: loss.options[parameter.name] for parameter in REGISTRY[name].params if parameter.name in loss.options}
    x, target = loss.scores(4, 5).requires_grad_(), labels((4,))
    p = REGISTRY[name](x.detach(), **params)
    (gradient,) = torch.autograd.grad(loss(x, target, reduction="sum"), x, create_graph=True)
    torch.testing.assert_close(gradient.detach(), p - F.one_hot(target, 5), atol=1e-10, rtol=0)
    (second,) = torch.autograd.grad(gradient[0, 1], x)
    torch.testing.assert_close(second[0], sm.jacobian(name, x.detach()[0], **params)[1], atol=1e-10, rtol=0)


def test_loss_does_not_fall_below_zero_where_claimed(loss: LossCase):
    if loss.loss.nonnegative:
        x, target = loss.scores(200, 5), labels((200,))
        assert float(loss(x, target, reduction="none").min()) >= 0


def test_loss_is_zero_where_p_is_the_target(loss: LossCase):
    if loss.loss.zero_at_target:
        name = loss.loss.map or loss.options["map"]
        params = {p.name: loss.options[p.name] for p in REGISTRY[name].params if p.name in loss.options}
        x = loss.scores(20, 5)
        p = REGISTRY[name](x, **params)
        if REGISTRY[name].properties.mass == "one":
            torch.testing.assert_close(loss(x, p, reduction="none"), torch.zeros(20, dtype=torch.float64), atol=1e-11, rtol=0)
            assert float(loss(x, p.roll(1, -1), reduction="none").min()) > 1e-4


@given(x=rows(masks=False), data=st.data())
def test_fenchel_young_inequality(case: Case, x: torch.Tensor, data: st.DataObject):
    if case.map.regulariser is None:
        pytest.skip("has no regulariser")
    y = REGISTRY["sparsemax"](data.draw(rows(masks=False)).flatten()[:1].expand(x.shape) + 0.1 * x.flip(-1))
    conjugate = lambda p: (p * x).sum(-1) - case.map.regulariser(p, **case.params)
    best = conjugate(case(x))
    assert bool((conjugate(y) <= best + 1e-9 * (1 + x.abs().amax())).all())


def test_fenchel_young_loss_works_for_every_map_with_a_regulariser(case: Case):
    x, target = normal(4, 5), labels((4,))
    if case.map.regulariser is None or case.claims.logarithmic:
        with pytest.raises(ValueError, match=r"no regulariser|logarithms"):
            sm.fenchel_young_loss(x, target, map=case.map, **case.params)
        return
    x.requires_grad_()
    value = sm.fenchel_young_loss(x, target, map=case.map, reduction="sum", **case.params)
    (gradient,) = torch.autograd.grad(value, x)
    torch.testing.assert_close(gradient, case(x.detach()) - F.one_hot(target, 5), atol=1e-10, rtol=0)


def test_every_map_has_a_surrogate_an_eps_cross_entropy_and_a_soft_accuracy(case: Case):
    if case.claims.logarithmic:
        pytest.skip("gives logarithms")
    x, target = normal(4, 5), labels((4,))
    p = case(x)
    at_target = p.gather(-1, target[:, None])[:, 0]
    eps, named = 1e-3, {f"map_{name}": value for name, value in case.params.items()}  # which an option may be called too
    torch.testing.assert_close(
        sm.eps_cross_entropy(x, target, map=case.map, eps=eps, reduction="none", **named),
        -torch.log((at_target + eps) / (1 + 5 * eps)),
    )
    torch.testing.assert_close(sm.soft_accuracy_loss(x, target, map=case.map, **named), -at_target.mean())
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(sm.surrogate_loss(x, target, map=case.map, reduction="sum", **named), x)
    torch.testing.assert_close(gradient, p - F.one_hot(target, 5), atol=1e-12, rtol=0)


@pytest.mark.parametrize("alpha", chosen([1.0, 1.0 + 1e-9, 1.02, 1.3, 1.5, 2.0, 2.7]))
def test_entmax_loss_gradient_of_alpha(alpha: float):
    x = normal(3, 5, seed=4).requires_grad_()
    a = torch.full((3, 1), max(alpha, 1 + 1e-3 * (alpha > 1)), dtype=torch.float64, requires_grad=True)
    for target in (torch.tensor([0, 4, 2]), soft((3, 5), seed=1)):
        if alpha > 1.001:
            assert gradcheck(lambda x, a, t=target: sm.entmax_loss(x, t, alpha=a), (x, a), check_forward_ad=True)
            assert gradgradcheck(lambda x, a, t=target: sm.entmax_loss(x, t, alpha=a), (x, a))
        at = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
        (exact,) = torch.autograd.grad(sm.entmax_loss(x.detach(), target, alpha=at), at)
        h = 1e-5
        low, mid, high = (float(sm.entmax_loss(x.detach(), target, alpha=max(alpha, 1.0) + i * h)) for i in range(3))
        assert float(exact) == pytest.approx((-3 * low + 4 * mid - high) / (2 * h), abs=1e-6)


def test_elastic_cross_entropy_gradient_of_beta_is_the_sink():
    x, target = normal(4, 5), labels((4,))
    beta = torch.tensor([[0.0], [-3.0], [2.0], [10.0]], dtype=torch.float64, requires_grad=True)
    value = sm.elastic_cross_entropy(x, target, beta=beta, reduction="none")
    p = sm.elastic_softmax(x, beta=beta.detach())
    torch.testing.assert_close(value.detach(), -p.gather(-1, target[:, None])[:, 0].log())
    (gradient,) = torch.autograd.grad(value.sum(), beta)
    torch.testing.assert_close(gradient, 1 - p.sum(-1, keepdim=True))
    assert gradcheck(lambda b: sm.elastic_cross_entropy(x, target, beta=b), (beta,), check_forward_ad=True)
    torch.testing.assert_close(sm.elastic_cross_entropy(x, target, beta=-math.inf), F.cross_entropy(x, target))


@pytest.mark.parametrize("alpha", [1.0, 1.25, 1.5, 2.0])
def test_entmax_loss_has_a_margin(alpha: float):
    if alpha > 1:
        gap = 1 / (alpha - 1)
        assert float(sm.entmax_loss(torch.tensor([gap, 0.0, 0.0]), torch.tensor(0), alpha=alpha)) == 0
        within = torch.tensor([0.99 * gap, 0.0, 0.0])
        assert float(sm.entmax_loss(within.double(), torch.tensor(0), alpha=alpha)) > 0
        assert float(sm.entmax_loss(within, torch.tensor(0), alpha=alpha)) >= 0


def test_sparsemax_loss_has_its_closed_form():
    x, target = normal(20, 6), labels((20,), 6)
    p = sm.sparsemax(x)
    support = p > 0
    threshold = ((x * support).sum(-1) - 1) / support.sum(-1)
    closed = 0.5 - x.gather(-1, target[:, None])[:, 0] + 0.5 * ((x**2 - threshold[:, None] ** 2) * support).sum(-1)
    torch.testing.assert_close(sm.sparsemax_loss(x, target, reduction="none"), closed)


def test_sparse_softmax_loss_does_not_need_the_target_in_its_set():
    x = torch.tensor([[3.0, 2.0, 1.0, 0.0]], requires_grad=True)
    value = sm.sparse_softmax_loss(x, torch.tensor([3]), k=2)
    torch.testing.assert_close(value, torch.logsumexp(x[:, :2], -1)[0] - x[0, 3])
    (gradient,) = torch.autograd.grad(value, x)
    torch.testing.assert_close(gradient, sm.topk_softmax(x.detach(), k=2) - torch.tensor([[0.0, 0, 0, 1]]))


def test_cross_entropy_keeps_its_digits_near_zero():
    x = torch.tensor([[0.0, -40.0]])
    assert float(sm.cross_entropy(x, torch.tensor([0]))) == pytest.approx(4.248354255e-18, rel=1e-6)
    assert float(sm.sparse_softmax_loss(x, torch.tensor([0]), k=2)) == pytest.approx(4.248354255e-18, rel=1e-6)


@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_a_loss_beyond_the_dtype_is_infinite(reduction: str):
    x, target = torch.tensor([[3e38, -3e38]] * 2, requires_grad=True), torch.tensor([1, 1])
    for options in ({}, {"weight": torch.ones(2)}):
        value = sm.cross_entropy(x, target, reduction=reduction, **options)
        assert bool((value == math.inf).all())


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("target", [torch.tensor([0]), torch.tensor([[1.0, 0.0]])], ids=["label", "soft"])
def test_eps_cross_entropy_without_an_eps_has_its_gradient_where_its_slope_is_beyond_float32(kind, target):
    x = torch.tensor([[0.0, 85.0]], dtype=kind, requires_grad=True)
    weight = torch.tensor([100.0, 100.0])
    value = sm.eps_cross_entropy(x, target, weight, map="softmax", eps=0.0, reduction="sum")
    value.backward()
    assert value.dtype == x.dtype
    torch.testing.assert_close(x.grad, torch.tensor([[-100.0, 100.0]], dtype=kind))


def test_a_mean_over_weights_whose_sum_is_beyond_float32():
    x, target = normal(2, 3, dtype=torch.float32), labels((2,), 3)
    heavy = sm.cross_entropy(x, target, torch.full((3,), 3e38))
    torch.testing.assert_close(heavy, sm.cross_entropy(x, target))


@pytest.mark.parametrize("eps", [1e-6, 1e-3, 0.5])
@pytest.mark.parametrize("heavy", [1e30, 1e36, 3e38])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_eps_cross_entropy_of_weights_whose_slope_is_beyond_float32(eps: float, heavy: float, smoothing: float):
    x = torch.tensor([[0.0, 40.0, 41.0], [3.0, 0.0, 1.0]])
    loss = lambda x, weight: sm.eps_cross_entropy(
        x, torch.tensor([0, 1]), weight, map="softmax", eps=eps, label_smoothing=smoothing
    )
    grads = [torch.func.grad(loss)(x, torch.full((3,), w)) for w in (1.0, heavy)] if smoothing == 0 and heavy < 1e31 else []
    x = x.requires_grad_()
    values = [loss(x, torch.full((3,), w)) for w in (1.0, heavy)]
    grads += [torch.autograd.grad(value, x)[0] for value in values]
    torch.testing.assert_close(values[1], values[0])
    for grad in grads[1:]:
        torch.testing.assert_close(grad, grads[0])


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_a_mean_over_heavy_weights_is_that_over_light_ones(loss: LossCase, smoothing: float):
    x, target = loss.scores(4, 3, dtype=torch.float32), labels((4,), 3)
    values = []
    for weight in (1.0, 3e38):
        scores = x.clone().requires_grad_()
        value = loss(scores, target, weight=torch.full((3,), weight), label_smoothing=smoothing)
        (grad,) = torch.autograd.grad(value, scores, create_graph=True)
        values.append((value, grad))
    for light, heavy in zip(*values, strict=True):
        torch.testing.assert_close(heavy, light)


@pytest.mark.parametrize("name", ["cross_entropy", "elastic_cross_entropy", "sparse_softmax_loss", "sparsemax_loss", "entmax_loss"])
def test_a_small_share_of_a_span_beyond_float32_counts(name: str):
    x, y = torch.tensor([[3e38, -3e38]], requires_grad=True), torch.tensor([[0.999, 0.001]])
    value = sm.losses.REGISTRY[name].function(x, y, **({"k": 2} if name == "sparse_softmax_loss" else {}))
    (grad,) = torch.autograd.grad(value, x, create_graph=True)
    assert float(value.detach()) == pytest.approx(6e35, rel=1e-5)
    torch.testing.assert_close(grad, torch.tensor([[0.001, -0.001]]), rtol=1e-4, atol=1e-7)


def test_a_weight_that_the_dtype_of_the_scores_does_not_have_is_refused():
    with pytest.raises(ValueError, match=r"got 1e\+39, beyond torch.float32, for class 1"):
        sm.cross_entropy(torch.zeros(1, 2), torch.tensor([0]), torch.tensor([1.0, 1e39], dtype=torch.float64))


def test_half_precision_losses_compute_wide(loss: LossCase):
    for dtype in (torch.float16, torch.bfloat16):
        x, target = loss.scores(64, 7, dtype=dtype), labels((64,), 7)
        value = loss(x, target)
        assert value.dtype == dtype
        assert float(value) == pytest.approx(float(loss(x.double(), target)), rel=2 * torch.finfo(dtype).eps, abs=1e-3)


def test_half_precision_losses_do_not_round_target_probabilities(loss: LossCase):
    if loss.loss.on_cosines:
        pytest.skip("near ±1 the derivative of the angle magnifies every rounding")
    soft = torch.softmax(normal(64, 7, seed=1, dtype=torch.float32), -1)
    for dtype in (torch.float16, torch.bfloat16):
        x = loss.scores(64, 7, dtype=dtype).requires_grad_()
        wide = x.detach().double().requires_grad_()
        value, expected = loss(x, soft), loss(wide, soft.double())
        assert value.dtype == dtype
        assert float(value.detach()) == pytest.approx(float(expected.detach()), rel=2 * torch.finfo(dtype).eps, abs=1e-3)
        actual, exact = torch.autograd.grad(value, x)[0], torch.autograd.grad(expected, wide)[0]
        torch.testing.assert_close(actual.double(), exact, atol=2 * torch.finfo(dtype).eps / 64, rtol=2 * torch.finfo(dtype).eps)


def test_losses_follow_autocast(loss: LossCase):
    x, target = loss.scores(3, 5, dtype=torch.bfloat16), labels((3,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert loss(x, target).dtype == torch.float32


@pytest.mark.parametrize("name", ["am_softmax_loss", "cosface", "arcface"])
def test_margin_losses_take_features_and_class_vectors(name: str):
    function = sm.losses.REGISTRY[name].function
    features, vectors, target = normal(6, 4).requires_grad_(), normal(5, 4, seed=1).requires_grad_(), labels((6,))
    cosines = F.normalize(features, dim=-1) @ F.normalize(vectors, dim=-1).T
    torch.testing.assert_close(function(features, target, vectors), function(cosines, target))
    assert gradcheck(lambda f, v: function(f, target, v), (features, vectors))
    images = normal(2, 4, 3)
    flat = images.movedim(1, -1).reshape(-1, 4)
    target = labels((2, 3))
    torch.testing.assert_close(function(images, target, vectors), function(flat, target.reshape(-1), vectors))
    scaled = function(1e3 * features, labels((6,)), 1e-3 * vectors)
    torch.testing.assert_close(scaled, function(features, labels((6,)), vectors))


COSINES = {
    **{name: sm.losses.REGISTRY[name].function for name in ("am_softmax_loss", "cosface", "arcface")},
    **{
        f"margin_softmax_loss {kind}": lambda h, y, w, kind=kind, margin=margin, **options: sm.margin_softmax_loss(
            h, w, y, kind=kind, margin=margin, **options
        )
        for kind, margin in (("arcface", 0.5), ("cosface", 0.35), ("combined", (1.5, 0.3, 0.1)))
    },
}


@pytest.mark.parametrize("name", COSINES)
@pytest.mark.parametrize("classes", [5, 600])
def test_losses_of_angles_are_right_for_vectors_of_any_length_and_at_any_angle(name: str, classes: int, dtype: torch.dtype):
    numbers, span = torch.finfo(dtype), {torch.float16: 1e2}.get(dtype, 1e30)
    vectors = (normal(classes, 4) * torch.logspace(-1, 1, classes, base=span, dtype=torch.float64)[:, None] ** 0.9).to(dtype)
    y = torch.arange(8) % 4
    directions = torch.stack([*vectors[:4], *-vectors[:3], torch.zeros_like(vectors[0])]).double()
    for length in (0.5, 64.0, 0.5 * numbers.max, 1.0 if dtype == torch.float16 else 2**20 * numbers.tiny):
        unit = directions / directions.abs().amax(-1, keepdim=True).clamp_min(numbers.tiny)
        features = (length * unit).to(dtype).requires_grad_()
        own, wide = vectors.clone().requires_grad_(), vectors.double()
        rows = COSINES[name](features, y, own, reduction="none")
        assert rows.dtype == dtype
        of_angle = 256 * math.sqrt(
            torch.finfo(torch.promote_types(dtype, torch.float32)).eps
        )  # at ±1 an angle has half of the digits
        expected = COSINES[name]((length * unit).to(dtype).double(), y, wide, reduction="none")
        torch.testing.assert_close(rows.double(), expected, rtol=4 * numbers.eps, atol=of_angle)
        slopes = torch.autograd.grad(rows.sum(), (features, own), create_graph=True)
        for slope, of in zip(slopes, (features, own), strict=True):
            size = of.detach().double().abs().amax(-1, keepdim=True)
            bound = (16 * 64 * (1 + math.log(classes)) / size.where(size > 0, 1.0)).clamp_max(float(numbers.max))
            assert bool((slope.double().abs() <= bound).all()), (length, slope)
        if length == 64.0 and dtype != torch.float16:  # which has no second derivatives of 1e5
            assert all(v.isfinite().all() for v in torch.autograd.grad(slopes[0].sum(), (features, own)))


def test_arcface_of_a_vector_of_zero_is_that_of_a_cosine_of_zero(dtype: torch.dtype):
    vectors = torch.tensor([[1.0, 2.0], [2.0, -1.0], [0.0, 0.0]], dtype=dtype)
    for feature, label in (([0.0, 0.0], 0), ([1.0, 0.0], 2), ([0.0, 0.0], 2)):
        x, y = torch.tensor([feature], dtype=dtype), torch.tensor([label])
        cosines = F.normalize(x.double(), dim=-1) @ F.normalize(vectors.double(), dim=-1).T
        expected = sm.arcface(cosines, y, scale=8.0)
        torch.testing.assert_close(sm.arcface(x, y, vectors, scale=8.0).double(), expected, rtol=2 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("near", [1.0, -1.0])
@pytest.mark.parametrize("angle", [1e-1, 1e-3, 1e-5])
def test_arcface_has_its_digits_at_small_and_at_flat_angles(near: float, angle: float):
    """Against the definition by θ, whose derivative by it is that of the features' direction."""
    margin, scale, length = 0.35, 30.0, 1.7
    theta = torch.tensor(angle if near > 0 else math.pi - angle, dtype=torch.float64, requires_grad=True)
    vectors = torch.tensor([[1.0, 0.0], [0.6, 0.8]], dtype=torch.float64)
    of_other = (theta - math.atan2(0.8, 0.6)).cos()
    moved = theta + margin
    psi = moved.cos() if float(moved.detach()) <= math.pi else -2 - moved.cos()
    expected = F.cross_entropy(scale * torch.stack((psi, of_other)).unsqueeze(0), torch.tensor([0]))
    (by_angle,) = torch.autograd.grad(expected, theta)
    small = math.sin(angle)
    direction = torch.tensor([near * math.cos(angle), small], dtype=torch.float64)
    across = torch.tensor([-small, near * math.cos(angle)], dtype=torch.float64)
    features = (length * direction).requires_grad_()
    value = sm.arcface(features.unsqueeze(0), torch.tensor([0]), vectors, margin=margin, scale=scale)
    (slope,) = torch.autograd.grad(value, features)
    torch.testing.assert_close(value, expected, rtol=1e-10, atol=0)
    torch.testing.assert_close(slope, across * by_angle / length, rtol=1e-13 / angle, atol=1e-13)
    slopes = []
    for dtype in (torch.float32, torch.float64):
        x, w = features.detach().float().to(dtype).requires_grad_(), vectors.float().to(dtype)
        loss = sm.arcface(x.unsqueeze(0), torch.tensor([0]), w, margin=margin, scale=scale)
        slopes.append(torch.autograd.grad(loss, x)[0].double())
    torch.testing.assert_close(*slopes, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["am_softmax_loss", "cosface", "arcface"])
@pytest.mark.parametrize("near", [1.0, -1.0])
@pytest.mark.parametrize("angle", [1e-1, 1e-3, 1e-6])
def test_gradients_by_class_vectors_have_their_digits_at_small_and_at_flat_angles(name: str, near: float, angle: float):
    """Against −s(1 − p) ∂ψ/∂θ ∂θ/∂w, of θ and of the direction across w in float64, and p from the loss itself."""
    scale, margin = 4.0, 0.5
    size = {"temperature": 1 / scale} if name == "am_softmax_loss" else {"scale": scale}
    vectors, other = normal(3, 6, dtype=torch.float32), normal(6, seed=1, dtype=torch.float32)
    features = near * 1.7 * vectors[:1] + angle * other
    w = vectors.clone().requires_grad_()
    loss = COSINES[name](features, torch.tensor([0]), w, margin=margin, **size)
    (slope,) = torch.autograd.grad(loss, w)
    h, v = features[0].double(), vectors[0].double()
    across = h - v * (h @ v) / (v @ v)
    theta = math.atan2(float(across.norm()), float(h @ v / v.norm()))
    turned = theta + margin if name == "arcface" else theta
    by_angle = -math.sin(turned) if turned <= math.pi else math.sin(turned)
    expected = -scale * math.expm1(-float(loss.detach())) * by_angle * across / (across.norm() * v.norm())
    torch.testing.assert_close(slope[0].double(), expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("name", ["am_softmax_loss", "cosface", "arcface"])
def test_the_slope_at_a_cosine_of_one_is_a_number_of_its_dtype(name: str, dtype: torch.dtype):
    for classes in (3, 700):
        x = torch.zeros(2, classes, dtype=dtype)
        x[0, 1], x[1, 1], x[:, 0] = 1.0, -1.0, 0.5
        for target in (torch.tensor([1, 1]), F.one_hot(torch.tensor([1, 1]), classes).to(dtype)):
            (slope,) = torch.autograd.grad(COSINES[name](x.requires_grad_(), target, reduction="sum"), x)
            assert bool((slope.double().abs() <= 64 * (1 + torch.finfo(dtype).eps ** -0.5)).all())


def test_margin_losses_have_their_published_form():
    cosine, target, m, tau = torch.tanh(normal(6, 5)), labels((6,)), 0.3, 0.1
    at = F.one_hot(target, 5).double()
    additive = F.cross_entropy((cosine - m * at) / tau, target)
    torch.testing.assert_close(sm.am_softmax_loss(cosine, target, margin=m, temperature=tau), additive)
    torch.testing.assert_close(sm.cosface(cosine, target, margin=m, scale=1 / tau), additive)
    moved = torch.cos(torch.arccos(cosine) + m * at)
    inside = (torch.arccos(cosine) + m * at <= math.pi).all(-1)
    rows = sm.arcface(cosine, target, margin=m, scale=1 / tau, reduction="none")
    torch.testing.assert_close(rows[inside], F.cross_entropy(moved / tau, target, reduction="none")[inside])


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("wide", [torch.float64, torch.float32], ids=str)
def test_focal_loss_and_its_gradient_are_exact_where_p_rounds_to_0_or_1(gamma: float, wide: torch.dtype):
    for z in ([20.0, 0.0, -3.0], [-200.0, 0.0, 1.0], [60.0, 0.0, 1.0], [-900.0, 800.0, 0.0], [1.0, 1.0, 1.0], [1e4, 1e4 - 40, 0.0]):
        with mpmath.workdps(80):
            e = [mpmath.exp(mpmath.mpf(v)) for v in z]
            p, q = e[0] / sum(e), (e[1] + e[2]) / sum(e)
            cost, slope = q**gamma * -mpmath.log(p), q**gamma * (q - gamma * p * mpmath.log(p))
            expected = [
                torch.tensor(list(map(float, v)), dtype=torch.float64).to(wide)
                for v in ([cost], [-slope, *(slope * v / (e[1] + e[2]) for v in e[1:])])
            ]
        close = {"rtol": 256 * torch.finfo(wide).eps, "atol": torch.finfo(wide).tiny}
        in_parts = close | {"atol": 1e-13}  # which know p to the last place of 1
        for y in (torch.tensor([0]), torch.tensor([[1.0, 0.0, 0.0]], dtype=wide)):
            x = torch.tensor([z], dtype=wide, requires_grad=True)
            value = sm.focal_loss(x, y, gamma=gamma)
            torch.testing.assert_close(value.unsqueeze(0), expected[0], **close)
            torch.testing.assert_close(torch.autograd.grad(value, x)[0][0], expected[1], **close)
            (*parts,), target = x.detach().split([1, 2], -1), y if y.ndim == 1 else [*y.split([1, 2], -1)]
            found, slopes = sm.losses.REGISTRY["focal_loss"].in_parts(parts, target, gamma=gamma)
            torch.testing.assert_close(found.unsqueeze(0), expected[0], **in_parts)
            torch.testing.assert_close(torch.cat(slopes, -1)[0], expected[1], **in_parts)


def test_focal_loss_is_what_others_call_so():
    x, y = normal(6, 5), labels((6,))
    torch.testing.assert_close(sm.focal_loss(x, y, gamma=0.0), sm.cross_entropy(x, y))
    cost = F.cross_entropy(x, y, reduction="none")
    torch.testing.assert_close(sm.focal_loss(x, y), ((1 - (-cost).exp()) ** 2 * cost).mean())
    alpha, z, of_two = torch.tensor([0.75, 0.25], dtype=torch.float64), normal(6), y % 2
    p = z.sigmoid()  # torchvision's sigmoid_focal_loss, whose alpha is that of class 1
    at = torch.where(of_two == 1, p, 1 - p)
    sigmoid = (
        torch.where(of_two == 1, 0.25, 0.75)
        * (1 - at) ** 2
        * F.binary_cross_entropy_with_logits(z, of_two.double(), reduction="none")
    )
    torch.testing.assert_close(sm.focal_loss(torch.stack((0 * z, z), -1), of_two, alpha, reduction="none"), sigmoid)
    y, p = soft((6, 5), seed=1), x.softmax(-1)  # MONAI's FocalLoss(use_softmax=True), a term of each class
    torch.testing.assert_close(sm.focal_loss(x, y, reduction="none"), ((1 - p) ** 2 * -p.log() * y).sum(-1))
    gamma = torch.tensor([[0.3], [1.0], [2.0], [3.0], [0.0], [5.0]], dtype=torch.float64)
    for target in (labels((6,)), y):
        rows = [sm.focal_loss(x[i], target[i], gamma=float(g)) for i, g in enumerate(gamma)]
        torch.testing.assert_close(sm.focal_loss(x, target, gamma=gamma, reduction="none"), torch.stack(rows))
        learnt = (x.clone().requires_grad_(), (gamma + 0.1).requires_grad_())
        assert gradcheck(lambda x, g, target=target: sm.focal_loss(x, target, gamma=g), learnt, check_forward_ad=True)
    with pytest.raises(ValueError, match=r"focal_loss: gamma must be at least 0 and finite, got -1\.0"):
        sm.focal_loss(x, y, gamma=-1)


def test_modules_mirror_functions(loss: LossCase):
    x, target = loss.scores(4, 5), labels((4,))
    weight = torch.tensor([0.5, 1.0, 2.0, 0.0, 3.0], dtype=torch.float64)
    for reduction, smoothing, ignore in itertools.product(("mean", "none"), (0.0, 0.1), (-100, int(target[0]))):
        options = {"reduction": reduction, "label_smoothing": smoothing, "ignore_index": ignore}
        module = loss.loss.module(weight=weight, **loss.options, **options)
        torch.testing.assert_close(module(x, target), loss(x, target, weight=weight, **options), equal_nan=True)
    assert "weight" in dict(module.named_buffers())


def test_loss_parameters_may_be_learnt():
    module = sm.EntmaxLoss(alpha=torch.nn.Parameter(torch.tensor(1.5)))
    module(normal(4, 5, dtype=torch.float32), labels((4,))).backward()
    assert module.alpha.grad is not None
    assert list(module.state_dict()) == ["alpha"]


@pytest.mark.parametrize("classes", [3, 700])
def test_a_little_smoothing_has_all_of_its_digits(loss: LossCase, classes: int):
    if loss.loss.map in (None, "fusedmax", "oscarmax", "perturb_max"):  # the last have no kernel of losses, and round y
        pytest.skip("has no kernel that knows what smoothing leaves")
    if ON_TRITON:
        pytest.skip("the GPU's kernels round y")
    smoothing, x = 1e-9, torch.zeros(1, classes, dtype=torch.float64)
    x[0, 1] = 1e6  # p_t is 1
    y = torch.full_like(x, -smoothing / classes)
    y[0, 1] = smoothing / classes * (classes - 1)
    target, shared = torch.tensor([1]), {"label_smoothing": smoothing, "reduction": "sum"}
    for own in ({}, {"weight": torch.ones(classes, dtype=torch.float64)}):
        z = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(loss(z, target, **own, **shared), z)
        torch.testing.assert_close(slope, y, rtol=1e-14 if not own else 1e-7, atol=0)


def test_the_logarithm_of_a_sparse_map_hardly_learns_where_its_loss_does():
    pictures, digits = (torch.as_tensor(v) for v in load_digits(return_X_y=True))
    pictures = pictures.float() / 16

    def right(loss: Callable[[Tensor, Tensor], Tensor]) -> float:
        torch.manual_seed(0)
        layer = torch.nn.Linear(64, 10)
        optimiser = torch.optim.Adam(layer.parameters(), lr=0.01)
        for _ in range(200):
            optimiser.zero_grad()
            loss(layer(pictures[:1200]), digits[:1200]).backward()
            optimiser.step()
        return float((layer(pictures[1200:]).argmax(-1) == digits[1200:]).double().mean())

    assert right(sm.sparsemax_loss) > 0.25 + right(lambda x, y: F.nll_loss(sm.sparsemax(x).log(), y))
