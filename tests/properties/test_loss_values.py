"""Losses: never below 0, as exact as their dtype, alike by kernel and by torch's operations, and those of F.cross_entropy."""

from __future__ import annotations

import inspect
import itertools
import math
import os
from collections.abc import Iterator
from functools import partial
from typing import Any

import mpmath
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import softmaxima as sm
from conftest import INTERPRETED, Case, LossCase, at_most, normal, some
from softmaxima.losses import evaluation

pytestmark = pytest.mark.gpu

CLASSES = (1, 5, 70) if not INTERPRETED else (5,)


def targets(case: LossCase, x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Labels and distributions for scores x [rows, classes]: dense, sparse, one-hot, and the map's own."""
    rows, classes = x.shape
    yield "labels", torch.arange(rows) % classes
    yield "soft", torch.softmax(4 * normal(rows, classes, seed=1), -1)
    yield "sparse", sm.sparsemax(3 * normal(rows, classes, seed=2)).float()
    yield "one-hot", F.one_hot(torch.arange(rows) % classes, classes).float()
    yield "narrow", torch.softmax(normal(rows, classes, seed=3), -1).to(torch.bfloat16)
    if not case.loss.on_cosines:
        yield "own", torch.softmax(x.float(), -1)


def hard_scores(case: LossCase, classes: int, dtype: torch.dtype) -> Tensor:
    """Ties, offsets, rows far apart and rows near together."""
    x = case.scores(16, classes)
    if case.loss.on_cosines:
        x[0], x[1] = 1.0, -1.0
        return x.to(dtype)
    x[:4] = x[:4].round()
    x[4:8] += 100.0
    x[8:10] = 0.5
    x[10:12] *= 20
    x[12:14] *= 1e-4
    return x.to(dtype)


def test_loss_that_claims_so_is_not_negative(loss: LossCase, dtype: torch.dtype):
    if not loss.loss.nonnegative:
        pytest.skip("claims nothing")
    for smoothing, classes in some(itertools.product((0.0, 0.1, 1.0)[: 2 if INTERPRETED else 3], CLASSES), loss, dtype):
        x, weight = hard_scores(loss, classes, dtype), torch.linspace(0.1, 2, classes)
        for kind, target in targets(loss, x):
            for class_weight in (None, weight):
                rows = loss(x, target, weight=class_weight, reduction="none", label_smoothing=smoothing)
                # Neither −0, which prints as a negative number.
                assert not bool(torch.signbit(rows).any()), (classes, kind, float(rows.min()))
                assert not bool(rows.isnan().any())


# How far a kernel may be from torch's operations, relative to 1: they round half precision alike only once.
APART = {torch.float64: 1e-11, torch.float32: 3e-6, torch.bfloat16: 2**-7, torch.float16: 2**-9}


def test_kernel_and_composition_agree(loss: LossCase, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch):
    x, weight = loss.scores(4 if INTERPRETED else 24, 37, dtype=dtype), torch.linspace(0.1, 2, 37)
    if loss.loss.on_cosines:
        x = 0.95 * x  # towards ±1 the derivative of the angle magnifies every rounding
    fusible = evaluation.is_fusible
    every_options = ({}, {"weight": weight, "reduction": "sum"}, {"label_smoothing": 0.2, "reduction": "none"})
    every = some(itertools.product(targets(loss, x), every_options), loss, dtype)
    for (_, target), options in every[:: 5 if INTERPRETED else 1]:
        results = []
        for by_kernel in (True, False):
            monkeypatch.setattr(evaluation, "is_fusible", fusible if by_kernel else lambda *_: False)
            scores = x.clone().requires_grad_()
            value = loss(scores, target, **options)
            assert value.dtype == dtype
            results.append((value.detach(), torch.autograd.grad(value.sum(), scores)[0]))
            torch.testing.assert_close(loss(x, target, **options), value.detach())  # the same without a gradient
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs, atol=4 * APART[dtype], rtol=APART[dtype])


def test_loss_is_its_definition(loss: LossCase):
    x = loss.scores(4 if INTERPRETED else 16, 37)
    if loss.loss.on_cosines:
        x = 0.95 * x
    own = loss.loss.complete(loss.options)
    for _, target in targets(loss, x):
        for smoothing in (0.0,) if loss.loss.on_cosines else (0.0, 0.2):  # whose margin is the unsmoothed target's
            if target.ndim == 2:
                target = y = target.double() / target.double().sum(-1, keepdim=True)
            else:
                y = F.one_hot(target, 37).double()
            y = y * (1 - smoothing) + smoothing / 37
            scores = [x.clone().requires_grad_() for _ in range(2)]
            ours = loss(scores[0], target, reduction="none", label_smoothing=smoothing)
            definition = loss.loss.reference(scores[1], y, **own)  # type: ignore[misc]
            torch.testing.assert_close(ours, definition, atol=1e-10, rtol=1e-10)
            if own.get("map") == "entmax15":
                continue  # whose definition bisects, which autograd does not see
            slopes = [torch.autograd.grad(v.sum(), z)[0] for v, z in zip((ours, definition), scores, strict=True)]
            torch.testing.assert_close(*slopes, atol=1e-9, rtol=1e-9)


def exact(loss: LossCase, x: list[float], y: list[float]) -> mpmath.mpf | None:
    """Σ y_c (LSE(z) − z_c), z the scores with what the loss does to them; None for losses of another form."""
    name, options = loss.loss.name, loss.loss.complete(loss.options)
    z = [mpmath.mpf(v) for v in x]
    summed = list(z)
    if name == "elastic_cross_entropy":
        summed = [*z, mpmath.mpf(options["beta"])]
    elif name == "sparse_softmax_loss" and options["p"] is None:
        summed = sorted(z)[-options["k"] :]
    elif name in ("am_softmax_loss", "cosface"):
        scale = mpmath.mpf(options["scale"]) if "scale" in options else 1 / mpmath.mpf(options["temperature"])
        z = summed = [scale * (v - mpmath.mpf(options["margin"]) * share) for v, share in zip(z, y, strict=True)]
    elif name != "cross_entropy":
        return None
    log_sum = mpmath.log(mpmath.fsum(mpmath.exp(v) for v in summed))
    return mpmath.fsum(share * (log_sum - v) for share, v in zip(y, z, strict=True))


# In units of the last place of the result. The GPU's sums keep nothing of what their roundings lost.
ULPS = {torch.float64: 8 if os.environ.get("SOFTMAXIMA_BACKEND") == "triton" else 4, torch.float32: 3}


@pytest.mark.parametrize("classes", [7, 200][: 1 if INTERPRETED else 2])
@pytest.mark.parametrize("wide", [torch.float64, torch.float32], ids=str)
def test_loss_is_exact_to_the_last_places(loss: LossCase, classes: int, wide: torch.dtype):
    if loss.loss.on_cosines and wide == torch.float32:
        pytest.skip("a cosine with its margin is rounded before it is scaled")
    x = loss.scores(12, classes, dtype=wide)
    smoothed = 0.1
    label = torch.arange(12) % classes
    for target, smoothing in ((label, 0.0), (label, smoothed), (torch.softmax(normal(12, classes, seed=1), -1).to(wide), 0.0)):
        actual = loss(x, target, reduction="none", label_smoothing=smoothing)
        hot = F.one_hot(target, classes).to(wide) if target.ndim == 1 else target
        for row, y, value in zip(x.tolist(), hot.tolist(), actual.tolist(), strict=True):
            with mpmath.workdps(60):
                y = [mpmath.mpf(share) for share in y]
                if loss.loss.on_cosines and smoothing:
                    continue  # the margin is the unsmoothed target's
                y = [share * (1 - mpmath.mpf(smoothing)) + mpmath.mpf(smoothing) / classes for share in y] if smoothing else y
                expected = exact(loss, row, y)
                if expected is None:
                    pytest.skip("no exact form of this loss")
                unit = mpmath.mpf(torch.finfo(wide).eps) * mpmath.mpf(2) ** mpmath.floor(mpmath.log(abs(expected), 2))
                assert abs(value - expected) <= ULPS[wide] * unit, (row, value, expected)


@pytest.mark.parametrize("function", [sm.cross_entropy, sm.fenchel_young_loss, partial(sm.elastic_cross_entropy, beta=-1e30)])
@pytest.mark.parametrize("rows", [1, 40], ids=["alone", "side by side"])
def test_gradient_of_a_fitted_row_vanishes(function: Any, rows: int, dtype: torch.dtype):
    """p_t − 1 has no more of the rounding of p_t than double has."""
    small = 8 * torch.finfo(torch.float64).eps
    for classes, certainties in ((1, (-11.886795, 3.3)), (5, (60.4, 100.0, 400.0))):
        for certainty in certainties:
            x = torch.zeros(rows, classes, dtype=dtype)
            x[:, 0] = certainty
            x.requires_grad_()
            (gradient,) = torch.autograd.grad(function(x, torch.zeros(rows, dtype=torch.long), reduction="sum"), x)
            assert float(gradient[:, 0].abs().max()) <= small, (classes, certainty)
            assert float(gradient.double().sum(-1).abs().max()) <= small


@st.composite
def cross_entropy_cases(draw: st.DrawFn) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Scores, a target and options in any combination that F.cross_entropy takes."""
    rows, classes = draw(st.integers(0, 4)), draw(st.integers(1, 5))
    shape = draw(st.sampled_from([(classes,), (rows, classes), (rows, classes, 2)]))
    x = normal(*shape, seed=draw(st.integers(0, 99)))
    rows_shape = (*shape[: min(1, len(shape) - 1)], *shape[2:])
    options: dict[str, Any] = {
        "reduction": draw(st.sampled_from(["mean", "sum", "none"])),
        "label_smoothing": draw(st.sampled_from([0.0, 0.1, 0.5, 1.0])),
    }
    if draw(st.booleans()):
        options["weight"] = torch.tensor(
            [draw(st.sampled_from([0.0, 0.0, 0.5, 1.0, 3.0])) for _ in range(classes)], dtype=torch.float64
        )
    if draw(st.booleans()):
        target = torch.softmax(normal(*shape, seed=7), 0 if len(shape) == 1 else 1)
    else:
        target = torch.randint(classes, rows_shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
        options["ignore_index"] = draw(st.sampled_from([-100, -1, 0, classes - 1]))
        if options["ignore_index"] < 0 and draw(st.booleans()):
            gone = torch.rand(rows_shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 9)))) < draw(
                st.sampled_from([0.4, 1.0])
            )
            target = target.masked_fill(gone, options["ignore_index"])
    return x, target, options


@at_most(400)
@given(case=cross_entropy_cases())
def test_cross_entropy_is_that_of_torch_in_every_corner(case: tuple[Tensor, Tensor, dict[str, Any]]):
    x, target, options = case
    results = []
    for function in (sm.cross_entropy, F.cross_entropy):
        scores = x.clone().requires_grad_()
        value = function(scores, target, **options)
        (gradient,) = torch.autograd.grad(value.sum(), scores)
        results.append((value.detach(), gradient))
    torch.testing.assert_close(*(value for value, _ in results), equal_nan=True)
    torch.testing.assert_close(*(gradient for _, gradient in results), equal_nan=True)


def test_gradient_may_be_changed_in_place(loss: LossCase):
    x, target = loss.scores(5, 6).requires_grad_(), torch.arange(5)
    for reduction in ("mean", "sum"):
        value = loss(x, target, reduction=reduction)
        (first,) = torch.autograd.grad(value, x, retain_graph=True)
        expected = first.clone()
        first.mul_(3)
        hook = x.register_hook(lambda g: g.mul_(2))
        for _ in range(2):
            x.grad = None
            value.backward(retain_graph=True)
            torch.testing.assert_close(x.grad, 2 * expected)
        hook.remove()
        x.grad.zero_()
        torch.testing.assert_close(torch.autograd.grad(value, x)[0], expected)


def test_arguments_have_the_names_that_torch_gives_them(loss: LossCase):
    theirs = list(inspect.signature(F.cross_entropy).parameters)
    ours = list(inspect.signature(loss.loss.function).parameters)
    assert [name for name in theirs if name not in ours] == ["size_average", "reduce"]
    x, target, weight = loss.scores(3, 4), torch.tensor([0, 3, 1]), torch.tensor([0.5, 1.0, 2.0, 0.0], dtype=torch.float64)
    expected = loss(x, target, weight=weight)
    torch.testing.assert_close(loss.loss.function(input=x, target=target, weight=weight, **loss.options), expected)
    torch.testing.assert_close(loss.loss.module(weight=weight, **loss.options)(input=x, target=target), expected)


@pytest.mark.parametrize("name", ["eps_cross_entropy", "fenchel_young_loss", "soft_accuracy_loss", "surrogate_loss"])
def test_parameter_of_the_map_may_be_told_from_an_option(name: str):
    loss = sm.losses.REGISTRY[name]
    x, target = normal(4, 5), torch.arange(4)
    of_map = {"map": "eps_softmax", "map_eps": 2.0}
    value = loss.function(x, target, **of_map)
    if name == "eps_cross_entropy":
        p = sm.eps_softmax(x, eps=2.0)
        value = loss.function(x, target, **of_map, eps=0.0)
        torch.testing.assert_close(value, -p[torch.arange(4), target].log().mean())
    else:
        torch.testing.assert_close(value, loss.function(x, target, map="eps_softmax", eps=2.0))
        with pytest.raises(TypeError, match="given twice"):
            loss.function(x, target, map="eps_softmax", eps=2.0, map_eps=2.0)
    module = loss.module(map="eps_softmax", map_eps=torch.nn.Parameter(torch.tensor(2.0, dtype=torch.float64)))
    torch.testing.assert_close(module(x, target), loss.function(x, target, **of_map))
    assert list(module.state_dict()) == ["map_eps"]


def test_weights_of_zero_alone_have_the_mean_of_torch(loss: LossCase):
    x, target = loss.scores(3, 4), torch.tensor([1, 1, 2])
    weight = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    value = loss(x, target, weight=weight)
    assert math.isnan(float(value))


# Beside which a quotient by the temperature has few digits, and a sink has no mass; eighths are added to them without rounding.
OFFSETS = {torch.float64: (1e6, 1e9), torch.float32: (1e5, 2e5), torch.bfloat16: (16.0, 24.0), torch.float16: (128.0, 192.0)}


@pytest.mark.parametrize("shape", [(3, 7, 2)] if INTERPRETED else [(16, 7), (3, 7, 5), (3, 70, 4)], ids=str)
def test_a_temperature_divides_differences_of_scores(loss: LossCase, dtype: torch.dtype, shape: tuple[int, ...]):
    """Scores that are moved as a whole have the same loss, with its first and second derivatives by x and τ, to the last digits."""
    map = sm.find_map(loss.options.get("map", loss.loss.map) or "softmax")
    if loss.loss.on_cosines or map.properties.order_preserving is False:
        pytest.skip("moved scores are others")
    x = (8 * loss.scores(*shape)).round() / 8
    soft = torch.zeros_like(x)
    soft[:, :3] = torch.tensor([0.5, 0.25, 0.25]).reshape(3, *[1] * (x.ndim - 2))
    hard = torch.arange(x[:, 0].numel()).reshape(x[:, 0].shape) % shape[1]
    tau = (0.7 + torch.arange(shape[0]) / 7).double().reshape(-1, *[1] * (x.ndim - 1))
    options = {"weight": torch.linspace(0.5, 2, shape[1]).to(dtype), "reduction": "none"}
    signs = (1, -1) if map.properties.shift_invariant else (1,)
    for target, offset, sign in itertools.product((hard, soft.to(dtype)), OFFSETS[dtype], signs):
        results = []
        for moved in (OFFSETS[dtype][0] if sign > 0 else 0.0, sign * offset):
            scores = (x.round() if dtype == torch.bfloat16 else x).add(moved).to(dtype).requires_grad_()
            by = tau.clone().requires_grad_()
            learnt, plain = (loss(scores, target, **options, temperature=t) for t in (by, tau))
            slopes = torch.autograd.grad(learnt.sum(), (scores, by), create_graph=True)
            second = torch.autograd.grad((slopes[0] * x.to(dtype)).sum() + slopes[1].sum(), (scores, by))
            results.append((plain, learnt, *torch.autograd.grad(plain.sum(), scores), *slopes, *second))
        close = {"atol": 30 * APART[dtype], "rtol": 30 * APART[dtype]} if dtype != torch.float64 else {"atol": 1e-11, "rtol": 1e-11}
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs, **close)


def test_a_temperature_divides_as_that_of_the_map_does(case: Case):
    if case.claims.logarithmic:
        pytest.skip("gives logarithms")
    x, named = (8 * normal(6, 5)).round() / 8, {f"map_{name}": value for name, value in case.params.items()}
    for offset, label in itertools.product((0.0, 1e6, 1e9), range(5)):
        p = case(x + offset, temperature=0.7)[:, label]
        for scores in (x + offset, (x + offset).reshape(2, 3, 5).movedim(-1, 1)):
            target = torch.full_like(scores[:, 0], label, dtype=torch.long)
            value = sm.soft_accuracy_loss(scores, target, map=case.map, reduction="none", temperature=0.7, **named)
            torch.testing.assert_close(-value.flatten(), p, atol=1e-13, rtol=1e-12)


@pytest.mark.parametrize("name", ["sparsemax", "entmax15", "entmax", "normmax"])
def test_a_sparse_map_s_logarithm_has_no_gradient_where_its_loss_has_one(name: str):
    """Of a target that has p = 0: what the README says of nll_loss(log p)."""
    x, target = torch.tensor([[5.0, 0.0, 1.0]], requires_grad=True), torch.tensor([1])
    of_log = torch.nn.functional.nll_loss(sm.find_map(name)(x).log(), target)
    assert of_log == math.inf
    assert not torch.autograd.grad(of_log, x)[0].any()
    slope = torch.autograd.grad(sm.fenchel_young_loss(x, target, map=name), x)[0]
    torch.testing.assert_close(slope, torch.tensor([[1.0, -1.0, 0.0]]))
