"""Margin losses of very many classes, against their definition by angles in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn.functional import normalize

import softmaxima as sm
from conftest import normal
from softmaxima.heads.margins import Margin

MARGINS: tuple[tuple[str, Any, Margin], ...] = (
    ("arcface", 0.5, Margin(angle=0.5)),
    ("arcface", 2.5, Margin(angle=2.5)),
    ("cosface", 0.35, Margin(cosine=0.35)),
    ("am", 0.0, Margin()),
    ("combined", (1.0, 0.3, 0.2), Margin(1.0, 0.3, 0.2)),
    ("combined", (2.5, 1.0, 0.1), Margin(2.5, 1.0, 0.1)),
)


def literal(margin: Margin, cosine: Tensor) -> Tensor:
    """ψ, turn after turn."""
    turned = margin.factor * cosine.acos() + margin.angle
    value = turned.cos()
    for k in range(1, 6):
        value = torch.where(turned >= k * math.pi, (-1) ** k * turned.cos() - 2 * k, value)
    return value - margin.cosine


@pytest.mark.parametrize("subject", MARGINS, ids=str)
def test_a_margin_is_smooth_decreasing_in_the_angle_and_differentiable_at_its_ends(subject: Any):
    margin = subject[2]
    cosine = torch.linspace(-1, 1, 100_001, dtype=torch.float64)[1:-1].requires_grad_()
    moved = margin.moved(cosine)
    torch.testing.assert_close(moved, literal(margin, cosine))
    assert (moved.diff() > 0).all()
    assert (moved <= cosine + 1e-12).all()
    (slope,) = torch.autograd.grad(moved.sum(), cosine)
    torch.testing.assert_close(slope, torch.autograd.grad(literal(margin, cosine).sum(), cosine)[0], rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(margin.slope(cosine.detach()), slope, rtol=1e-6, atol=1e-8)
    for dtype in (torch.float64, torch.float32):
        ends = torch.tensor([-1.0, 1.0, 1.0000001], dtype=dtype).requires_grad_()
        (slope,) = torch.autograd.grad(margin.moved(ends).sum(), ends)
        assert slope.isfinite().all()
        torch.testing.assert_close(margin.slope(ends.detach()), slope, rtol=1e-3, atol=1e-3)


@given(data=st.data())
def test_every_margin_and_option_is_its_definition(data: st.DataObject):
    draw = data.draw
    kind, size, margin = draw(st.sampled_from(MARGINS), "margin")
    n, classes, features = draw(st.integers(1, 6)), draw(st.sampled_from([3, 90, 700])), draw(st.sampled_from([2, 19]))
    centres, scale = draw(st.sampled_from([1, 3]), "centres"), draw(st.sampled_from([1.0, 16.0]), "scale")
    loss = draw(st.sampled_from(["cross_entropy", "sparsemax"]), "loss")
    reduction, smoothing = draw(st.sampled_from(["mean", "sum", "none"])), draw(st.sampled_from([0.0, 0.1]))
    dtype = draw(st.sampled_from([torch.float64, torch.float32]), "dtype")
    hidden, weight = normal(n, features, seed=1).requires_grad_(), normal(classes * centres, features, seed=2).requires_grad_()
    y = torch.arange(n) % classes
    if draw(st.booleans(), "ignored"):
        y[-1] = -100
    inputs = [v.detach().to(dtype).requires_grad_() for v in (hidden, weight)]
    options = {"reduction": reduction, "label_smoothing": smoothing}
    found = sm.margin_softmax_loss(
        *inputs,
        y,
        kind=kind,
        margin=size,
        scale=scale,
        centres=centres,
        loss=loss,
        chunk=draw(st.sampled_from(["auto", 2])),
        **options,
    )
    cosine = (normalize(hidden, dim=-1) @ normalize(weight, dim=-1).T).unflatten(-1, (classes, centres)).amax(-1)
    index = y.clamp_min(0).unsqueeze(-1)
    x = scale * cosine.scatter(-1, index, literal(margin, cosine.gather(-1, index)))
    expected = getattr(sm, {"sparsemax": "sparsemax_loss"}.get(loss, loss))(x, y, **options)
    if reduction == "mean" and bool((y < 0).all()):
        assert found.isnan()
        return
    slope = normal(*expected.shape, seed=3)
    slopes = torch.autograd.grad(found, inputs, slope.to(dtype))
    for a, b in zip((found, *slopes), (expected, *torch.autograd.grad(expected, (hidden, weight), slope)), strict=True):
        size_of = max(1.0, float(b.detach().abs().max()))
        torch.testing.assert_close(a.double(), b, rtol=0, atol={torch.float64: 1e-9, torch.float32: 1e-3}[dtype] * size_of)


def test_derivatives_are_those_of_finite_differences():
    hidden, weight, y = normal(3, 4, seed=1).requires_grad_(), normal(8, 4, seed=2).requires_grad_(), torch.tensor([0, 3, 1])
    for options in ({"kind": "arcface"}, {"kind": "combined", "margin": (1.5, 0.3, 0.1), "centres": 2}):
        assert gradcheck(lambda h, w, options=options: sm.margin_softmax_loss(h, w, y, scale=4.0, **options), (hidden, weight))


@pytest.mark.parametrize("narrow", [torch.float32, torch.bfloat16])
def test_a_scale_that_learns_may_be_wider_than_the_layer(narrow: torch.dtype):
    hidden, weight = (torch.randn(*shape, dtype=narrow).requires_grad_() for shape in ((3, 4), (6, 4)))
    scale = torch.full((3, 1), 8.0, dtype=torch.float64, requires_grad=True)
    sm.margin_softmax_loss(hidden, weight, torch.tensor([0, 5, 2]), scale=scale).backward()
    wide = [x.detach().double().requires_grad_() for x in (hidden, weight, scale)]
    sm.margin_softmax_loss(*wide[:2], torch.tensor([0, 5, 2]), scale=wide[2]).backward()
    for own, exact in zip((hidden, weight, scale), wide, strict=True):
        torch.testing.assert_close(
            own.grad, exact.grad.to(own.dtype), rtol=16 * torch.finfo(narrow).eps, atol=4 * torch.finfo(narrow).eps
        )


@pytest.mark.parametrize("called", ["cross_entropy", "sparsemax", "soft_accuracy"])
@pytest.mark.parametrize("subject", MARGINS[::2], ids=str)
def test_a_scale_may_learn(subject: Any, called: str):
    kind, margin, _ = subject
    hidden, weight, target = normal(4, 3), normal(6, 3, seed=1), torch.tensor([0, 5, -100, 2])
    for shape, reduction in (((), "mean"), ((4, 1), "none")):
        scale = torch.full(shape, 4.0, dtype=torch.float64, requires_grad=True)
        found = lambda scale, reduction=reduction: sm.margin_softmax_loss(
            hidden, weight, target, kind=kind, margin=margin, scale=scale, loss=called, reduction=reduction
        )
        torch.testing.assert_close(found(scale), found(4.0))
        assert gradcheck(found, (scale,))


def test_it_is_the_loss_of_cosines_with_the_same_margin():
    hidden, weight, y = normal(5, 6, seed=1), normal(9, 6, seed=2), torch.arange(5)
    cosine = normalize(hidden, dim=-1) @ normalize(weight, dim=-1).T
    torch.testing.assert_close(
        sm.margin_softmax_loss(hidden, weight, y, margin=0.4, scale=8.0), sm.arcface(cosine, y, margin=0.4, scale=8.0)
    )
    torch.testing.assert_close(
        sm.margin_softmax_loss(hidden, weight, y, kind="am", margin=0.2, scale=5.0),
        sm.am_softmax_loss(cosine, y, margin=0.2, temperature=0.2),
    )


def test_zero_vectors_and_equal_vectors_have_finite_gradients():
    weight = normal(700, 4, seed=2, dtype=torch.float32)
    weight[3] = 0
    hidden = torch.stack((weight[5], -weight[6], torch.zeros(4), weight[3] + 1))
    for kind, margin in (("arcface", 0.5), ("cosface", 0.3), ("combined", (2.0, 0.1, 0.1))):
        inputs = [hidden.clone().requires_grad_(), weight.clone().requires_grad_()]
        found = sm.margin_softmax_loss(*inputs, torch.tensor([5, 6, 7, 3]), kind=kind, margin=margin)
        assert found.isfinite()
        assert all(v.isfinite().all() for v in torch.autograd.grad(found, inputs))


@pytest.mark.parametrize("classes", [7, 700])
@pytest.mark.parametrize(
    ("narrow", "length"),
    [(torch.float32, v) for v in (1e-36, 1e-13, 1e25, 1e37)] + [(torch.float64, v) for v in (1e-300, 1e-160, 1e160, 1e300)],
)
@pytest.mark.parametrize("compiles", [False, True])
def test_vectors_may_be_of_any_length(narrow: torch.dtype, length: float, classes: int, compiles: bool):
    hidden, weight, y = normal(3, 6, seed=1, dtype=narrow), normal(classes, 6, seed=2, dtype=narrow), torch.arange(3)
    lengths = torch.ones(classes, 1, dtype=narrow)
    lengths[::2] = length
    plain = [v.clone().requires_grad_() for v in (hidden, weight)]
    expected = sm.margin_softmax_loss(*plain, y)
    function = torch.compile(sm.margin_softmax_loss, backend="aot_eager") if compiles else sm.margin_softmax_loss
    for scales in ((length, 1.0), (1.0, lengths), (length, lengths)):
        inputs = [(scale * v).requires_grad_() for scale, v in zip(scales, (hidden, weight), strict=True)]
        found = function(*inputs, y)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=0)
        slopes = torch.autograd.grad(found, inputs)
        for slope, scale, exact in zip(slopes, scales, torch.autograd.grad(expected, plain, retain_graph=True), strict=True):
            if length > 1e-20 or (narrow == torch.float64 and length > 1e-200):  # else it is beyond the dtype
                torch.testing.assert_close(slope * scale, exact, rtol=1e-3, atol=1e-4)


def test_the_module_trains_and_says_cosines():
    torch.manual_seed(0)
    head = sm.MarginSoftmax(8, 20, kind="combined", margin=(1.0, 0.2, 0.1), scale=16.0, centres=2)
    features, y = normal(60, 8, seed=3, dtype=torch.float32), torch.arange(60) % 20
    layer = torch.nn.Linear(8, 8)
    optimiser = torch.optim.Adam([*head.parameters(), *layer.parameters()], lr=0.05)
    for _ in range(100):
        optimiser.zero_grad()
        loss = head(layer(features[:20]), y[:20])
        loss.backward()
        optimiser.step()
    assert (head.cosines(layer(features[:20])).argmax(-1) == y[:20]).all()
    assert head.cosines(torch.ones(2, 3, 8)).shape == (2, 3, 20)


def test_a_compiled_function_is_the_same_without_a_break():
    hidden, weight, y = normal(5, 4, seed=1).requires_grad_(), normal(700, 4, seed=2).requires_grad_(), torch.arange(5)
    function = lambda hidden, weight: sm.margin_softmax_loss(hidden, weight, y, scale=8.0)
    found, expected = torch.compile(function, fullgraph=True)(hidden, weight), function(hidden, weight)
    torch.testing.assert_close(found, expected)
    for a, b in zip(*(torch.autograd.grad(v, (hidden, weight)) for v in (found, expected)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"kind": "arc"}, ValueError, "kind must be one of arcface, cosface, am, combined, got 'arc'"),
        ({"margin": 4.0}, ValueError, r"margin must be a number in \[0, π\), got 4.0"),
        ({"kind": "cosface", "margin": 2.5}, ValueError, r"margin must be a number in \[0, 2\), got 2.5"),
        ({"kind": "combined"}, TypeError, r"must be \(m₁, m₂, m₃\), got 0.5"),
        ({"kind": "combined", "margin": (0.5, 0.0, 0.0)}, ValueError, r"margin\[0\] must be a finite number of at least 1"),
        ({"scale": 0}, ValueError, "scale must be positive"),
        ({"centres": 2}, ValueError, "weight must have 2 rows for each class, got 5 rows"),
        ({"loss": "arcface"}, ValueError, "arcface is a loss of cosines"),
    ],
    ids=str,
)
def test_wrong_arguments_are_told_in_a_sentence(options: dict[str, Any], error: type[Exception], says: str):
    with pytest.raises(error, match="margin_softmax_loss: ") as raised:
        sm.margin_softmax_loss(torch.ones(2, 3), torch.ones(5, 3), torch.tensor([0, 4]), **options)
    assert raised.match(says)
    with pytest.raises(ValueError, match="target must hold class indices"):
        sm.margin_softmax_loss(torch.ones(2, 3), torch.ones(5, 3), torch.ones(2, 5))
