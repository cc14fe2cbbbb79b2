"""An ignored row is in no product of features and weights, forward or backward, whatever it holds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

import softmaxima as sm
from conftest import normal

ROWS, FEATURES, CLASSES = 3, 4, 6
LABELS = torch.tensor([1, 5, -100])
Loss = Callable[[Tensor, dict[str, Tensor], Tensor], Tensor]  # of features, weights and labels


def of_module(head: torch.nn.Module) -> tuple[Loss, dict[str, Tensor]]:
    weights = {name: normal(*x.shape, seed=2) for name, x in head.named_parameters()}
    return lambda h, w, y: functional_call(head, w, (h, y)), weights


def subjects() -> dict[str, tuple[Loss, dict[str, Tensor]]]:
    found: dict[str, tuple[Loss, dict[str, Tensor]]] = {}
    layer = {"weight": normal(CLASSES, FEATURES, seed=2)}

    def add(function: Any, of: dict[str, Tensor] = layer, features_first: bool = False, **options: Any) -> None:
        loss = lambda h, w, y: function(*((h, y, w["weight"]) if features_first else (h, w["weight"], y)), **options, **others(w))
        others = lambda w: {key: x for key, x in w.items() if key != "weight"}
        found[f"{function.__name__} {options}"] = loss, of

    for function in (sm.arcface, sm.cosface, sm.am_softmax_loss):
        options: dict[str, Any]
        for options in ({}, {"label_smoothing": 0.1}, {"empty": "zero"}, {"reduction": "sum"}, {"weight": normal(CLASSES).exp()}):
            add(function, features_first=True, **options)
    for options in ({}, {"kind": "cosface"}, {"label_smoothing": 0.1}, {"reduction": "sum"}):
        add(sm.margin_softmax_loss, **options)
    of_centres = {"weight": normal(2 * CLASSES, FEATURES, seed=2)}
    add(sm.margin_softmax_loss, of_centres, kind="combined", margin=(1.5, 0.3, 0.1), centres=2)
    with_bias = layer | {"bias": normal(CLASSES, seed=3)}
    for name, loss in sm.losses.REGISTRY.items():
        if not loss.on_cosines and name != "perturb_max_loss":
            add(sm.linear_loss, with_bias, loss=(name, loss.examples[0]), softcap=3.0)
    add(sm.linear_loss, with_bias, chunk=(1, 2))
    for shared in (False, True):
        for sampled in (sm.sampled_softmax_loss, sm.noise_contrastive_loss):
            add(sampled, with_bias, samples=3, sampler="uniform", shared=shared, generator=0)
    modules = (sm.AdaptiveSoftmax(FEATURES, CLASSES, [2, 4], div_value=2.0), sm.HierarchicalSoftmax(FEATURES, CLASSES))
    return found | {type(head).__name__: of_module(head.double()) for head in modules}


SUBJECTS = subjects()
HELD = (math.nan, math.inf, -math.inf)


def features(held: float) -> Tensor:
    h = normal(ROWS, FEATURES, seed=1)
    h[-1, 1] = held
    return h


def eager(loss: Loss, h: Tensor, weights: dict[str, Tensor], y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    h, weights = h.clone().requires_grad_(), {key: x.clone().requires_grad_() for key, x in weights.items()}
    slopes = torch.autograd.grad(loss(h, weights, y), (h, *weights.values()), materialize_grads=True)
    return slopes[0], dict(zip(weights, slopes[1:], strict=True))


def by_grad(loss: Loss, h: Tensor, weights: dict[str, Tensor], y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    return grad(loss, argnums=(0, 1))(h, weights, y)


def by_vmap(loss: Loss, h: Tensor, weights: dict[str, Tensor], y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    both = vmap(grad(loss, argnums=(0, 1)), in_dims=(0, None, None), randomness="same")(torch.stack((h, h)), weights, y)
    return both[0][1], {key: x[1] for key, x in both[1].items()}


@pytest.mark.parametrize("way", [eager, by_grad, by_vmap])
@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_loss_is_that_of_the_rows_that_count(subject: str, way: Any):
    loss, weights = SUBJECTS[subject]
    expected, of_weights = way(loss, features(0.0)[:-1], weights, LABELS[:-1])
    for held in HELD:
        h = features(held)
        torch.testing.assert_close(loss(h, weights, LABELS), loss(h[:-1], weights, LABELS[:-1]))
        found, slopes = way(loss, h, weights, LABELS)
        torch.testing.assert_close(found, torch.cat((expected, torch.zeros(1, FEATURES, dtype=h.dtype))))
        torch.testing.assert_close(slopes, of_weights)


@pytest.mark.parametrize("subject", SUBJECTS)
def test_where_no_row_counts_the_weights_have_no_gradient(subject: str):
    loss, weights = SUBJECTS[subject]
    if "zero" in subject or "sum" in subject:
        for held in HELD:
            h = features(held)
            found, slopes = eager(loss, h, weights, torch.full_like(LABELS, -100))
            assert not found.any()
            assert not any(slope.any() for slope in slopes.values())


@pytest.mark.parametrize("function", [sm.arcface, sm.cosface])
def test_a_compiled_loss_is_that_of_the_rows_that_count(function: Any):
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    loss = lambda h, w, y: compiled(h, y, w["weight"])
    weights = {"weight": normal(CLASSES, FEATURES, seed=2)}
    expected, of_weights = eager(loss, features(0.0)[:-1], weights, LABELS[:-1])
    for held in HELD:
        found, slopes = eager(loss, features(held), weights, LABELS)
        torch.testing.assert_close(found[:-1], expected)
        assert not found[-1].any()
        torch.testing.assert_close(slopes, of_weights)
