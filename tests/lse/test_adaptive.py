"""adaptive_logsumexp and multimodal_logsumexp: literal references, limits, hard inputs, gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import softmaxima as sm
from conftest import normal, rows

INF = math.inf
GATES = ({"between": (0.3, 1.2)}, {"between": (0, 0.5)}, {"around": 0.7}, {"around": 0.4, "width": 0.1})


def literal(x: Tensor, between: tuple[float, float] | None = None, around: float = 0.0, width: float = 1.0) -> Tensor:
    """α max + (1 − α) LSE in plain numbers, for small scores."""
    weights = x.exp()
    p = weights / weights.sum(-1, keepdim=True)
    entropy = -torch.xlogy(p, p).sum(-1)
    if between is None:
        alpha = 1 / (1 + ((entropy - around) / width).exp())
    else:
        low, high = between
        middle = (high - entropy) / (high - low)
        alpha = torch.where(entropy < low, 1.0, torch.where(entropy > high, 0.0, middle))
    return alpha * x.amax(-1) + (1 - alpha) * weights.sum(-1).log()


@pytest.mark.parametrize("gate", GATES, ids=str)
@given(x=rows())
def test_is_its_definition(gate: dict, x: Tensor):
    torch.testing.assert_close(sm.adaptive_logsumexp(x, **gate), literal(x, **gate), atol=1e-11, rtol=1e-12)


@pytest.mark.parametrize("gate", GATES, ids=str)
@given(x=rows(), shift=st.sampled_from([-1e4, -3.0, 1e4]))
def test_lies_between_max_and_logsumexp_and_shifts(gate: dict, x: Tensor, shift: float):
    value = sm.adaptive_logsumexp(x, **gate)
    assert bool((x.amax(-1) <= value).all())
    assert bool((value <= sm.logsumexp(x) + 1e-13 * (1 + value.abs())).all())
    torch.testing.assert_close(sm.adaptive_logsumexp(x + shift, **gate), value + shift, atol=1e-9, rtol=0)


def test_a_row_of_low_entropy_is_its_maximum_and_one_of_high_entropy_its_logsumexp():
    peaked, flat = torch.tensor([9.0, 0.0, 1.0]).double(), torch.tensor([0.1, 0.0, 0.2]).double()
    assert float(sm.adaptive_logsumexp(peaked, between=(0.2, 0.9))) == 9.0
    assert float(sm.adaptive_logsumexp(flat, between=(0.2, 0.9))) == float(sm.logsumexp(flat))
    smooth = [sm.adaptive_logsumexp(x, around=0.5, width=0.01) for x in (peaked, flat)]
    assert float(smooth[0]) == pytest.approx(9.0, abs=1e-12)
    assert float(smooth[1]) == pytest.approx(float(sm.logsumexp(flat)), abs=1e-12)


@pytest.mark.parametrize("gate", GATES, ids=str)
def test_infinities_nan_and_nothing(gate: dict, dtype: torch.dtype):
    x = torch.tensor([[-INF] * 3, [INF, 0, 1], [INF, INF, 0], [math.nan, 0, 1], [0, -INF, -INF]], dtype=dtype, requires_grad=True)
    value = sm.adaptive_logsumexp(x, **gate)
    torch.testing.assert_close(value, torch.tensor([-INF, INF, INF, math.nan, 0.0], dtype=dtype), equal_nan=True)
    (gradient,) = torch.autograd.grad(value[[0, 1, 2, 4]].sum(), x)
    assert gradient[[0, 4]].tolist() == [[0, 0, 0], [1, 0, 0]]
    assert bool(gradient[[1, 2]].isnan().all())
    assert sm.adaptive_logsumexp(torch.zeros(2, 0, dtype=dtype), **gate).tolist() == [-INF, -INF]
    assert float(sm.adaptive_logsumexp(torch.tensor(2.5, dtype=dtype), **gate)) == 2.5
    long = normal(65_537, dtype=dtype)
    expected = sm.adaptive_logsumexp(long.double(), **gate).to(dtype)
    torch.testing.assert_close(sm.adaptive_logsumexp(long, **gate), expected, atol=0, rtol=2 * torch.finfo(dtype).eps)


def test_keeps_its_digits_near_zero():
    x = torch.tensor([0.0, -40.0], dtype=torch.float64)
    assert float(sm.adaptive_logsumexp(x, around=-50.0)) == pytest.approx(4.248354255291589e-18, rel=1e-12)


@pytest.mark.parametrize("gate", GATES, ids=str)
def test_axes_masks_temperatures_and_arrays(gate: dict):
    x, where = normal(4, 5, 6), normal(4, 5, 6, seed=1) > -1
    function = lambda x, dim=-1, **options: sm.adaptive_logsumexp(x, dim, **gate, **options)
    for dim in (0, 1, -2, -3):
        torch.testing.assert_close(function(x, dim), literal(x.movedim(dim, -1), **gate))
    torch.testing.assert_close(function(x, where=where), function(x.masked_fill(~where, -INF)))
    tau = torch.tensor([0.5, 1.0, 2.0, 3.0, 4.0], dtype=torch.float64)[:, None]
    torch.testing.assert_close(function(x, temperature=tau), function(x / tau))
    torch.testing.assert_close(function(x, 1, temperature=tau.view(1, 5)[:, :1]), function(x / 0.5, 1))
    torch.testing.assert_close(function(x[::2, :, 1::2]), function(x[::2, :, 1::2].contiguous()))
    assert isinstance(function(x.numpy()), np.ndarray)
    assert function(np.array([0, 0])).dtype == np.float64


@pytest.mark.parametrize("gate", GATES, ids=str)
def test_gradients_include_that_of_the_gate(gate: dict):
    x, tau = (
        normal(4, 5, seed=3).requires_grad_(),
        torch.tensor([[0.5], [1.0], [2.0], [4.0]], dtype=torch.float64, requires_grad=True),
    )
    function = lambda x, tau: sm.adaptive_logsumexp(x, temperature=tau, **gate)
    assert gradcheck(function, (x, tau), check_forward_ad=True)
    assert gradgradcheck(function, (x, tau))
    (gradient,) = torch.autograd.grad(function(x, 2.0).sum(), x)
    torch.testing.assert_close(gradient.sum(-1), torch.full((4,), 0.5, dtype=torch.float64))


def test_ties_share_the_gradient_of_the_maximum():
    x = torch.tensor([1.0, 1.0, -9.0], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(sm.adaptive_logsumexp(x, between=(1.0, 1.2)), x)
    assert gradient.tolist() == [0.5, 0.5, 0.0]


# Modalities ------------------------------------------------------------------------------------------------------------------


def parts(seed: int = 0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return [normal(3, n, seed=seed + n, dtype=dtype) for n in (4, 1, 7)]


@given(image=rows(), taus=st.tuples(st.floats(0.05, 10), st.floats(0.05, 10)))
def test_modalities_are_one_row_end_to_end(image: Tensor, taus: tuple[float, float]):
    text = normal(image.shape[0], 5)
    together = torch.cat([image / taus[0], text / taus[1]], -1)
    torch.testing.assert_close(sm.multimodal_logsumexp([image, text], taus), sm.logsumexp(together), atol=1e-12, rtol=1e-13)


def test_modalities_keep_digits_near_zero_and_at_infinity(dtype: torch.dtype):
    tiny = sm.multimodal_logsumexp([torch.tensor([0.0], dtype=dtype), torch.tensor([-10.0, -11.0], dtype=dtype)])
    assert float(tiny) == pytest.approx(math.log1p(math.exp(-10) + math.exp(-11)), rel=4 * torch.finfo(dtype).eps)
    a, b = (torch.tensor([value, 0.0], dtype=dtype, requires_grad=True) for value in (INF, INF))
    value = sm.multimodal_logsumexp([a, b])
    assert value.tolist() == INF
    for gradient in torch.autograd.grad(value, (a, b)):
        assert bool(gradient[0].isnan())
    nothing = [torch.full((2,), -INF, dtype=dtype), torch.zeros(0, dtype=dtype)]
    assert float(sm.multimodal_logsumexp(nothing)) == -INF
    assert math.isnan(sm.multimodal_logsumexp([torch.tensor([math.nan], dtype=dtype), torch.zeros(2, dtype=dtype)]))


def test_modalities_broadcast_mask_and_promote():
    image, text = normal(4, 1, 3), normal(5, 2)
    value = sm.multimodal_logsumexp([image, text], [0.5, 2.0])
    together = torch.cat([(image / 0.5).expand(4, 5, 3), (text / 2).expand(4, 5, 2)], -1)
    torch.testing.assert_close(value, torch.logsumexp(together, -1))
    torch.testing.assert_close(sm.multimodal_logsumexp([image.mT, text.mT], [0.5, 2.0], dim=-2), value)
    keep = torch.tensor([True, False])
    masked = sm.multimodal_logsumexp([image, text], [0.5, 2.0], where=[None, keep])
    torch.testing.assert_close(masked, sm.multimodal_logsumexp([image, text[:, :1]], [0.5, 2.0]))
    mixed = sm.multimodal_logsumexp([image.half(), text.float()])
    assert mixed.dtype == torch.float32
    assert sm.multimodal_logsumexp([image.half(), text.bfloat16()]).dtype == torch.float32
    arrays = sm.multimodal_logsumexp([image.numpy(), text.numpy()], [0.5, 2.0])
    assert isinstance(arrays, np.ndarray)
    torch.testing.assert_close(torch.from_numpy(arrays), value)
    assert sm.multimodal_logsumexp([np.array([0, 0]), np.array([0.0], dtype=np.float16)]).dtype == np.float64
    assert sm.multimodal_logsumexp([torch.tensor([0, 0])]).dtype == torch.get_default_dtype()
    assert float(sm.multimodal_logsumexp([torch.tensor(1.5), torch.tensor([1.5])])) == pytest.approx(1.5 + math.log(2))


def test_gradients_of_scores_and_of_every_temperature():
    scores = [x.requires_grad_() for x in parts()]
    taus = [torch.tensor(t, dtype=torch.float64, requires_grad=True) for t in (0.1, 1.0, 3.0)]
    function = lambda *inputs: sm.multimodal_logsumexp(inputs[:3], [tau.view(1, 1) for tau in inputs[3:]])
    assert gradcheck(function, (*scores, *taus), check_forward_ad=True)
    assert gradgradcheck(function, (*scores, *taus))
    gradients = torch.autograd.grad(function(*scores, *taus).sum(), scores)
    total = sum(g.sum(-1) * tau.detach() for g, tau in zip(gradients, taus, strict=True))
    torch.testing.assert_close(total, torch.ones(3, dtype=torch.float64))


FUNCTIONS = {
    "around": lambda x, tau: sm.adaptive_logsumexp(x, around=0.5, temperature=tau),
    "between": lambda x, tau: sm.adaptive_logsumexp(x, between=(0.5, 1.0), temperature=tau),
    "multimodal": lambda x, tau: sm.multimodal_logsumexp([x, 2 * x], [tau, 2 * tau]),
    "trimmed": lambda x, tau: sm.trimmed_logsumexp(x, 0.2, temperature=tau),
    "winsorized": lambda x, tau: sm.winsorized_logsumexp(x, 0.2, temperature=tau),
    "median of means": lambda x, tau: sm.median_of_means_logsumexp(x, 4, temperature=tau),
}
EVERY = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)


@EVERY
@pytest.mark.parametrize("tau", [1.0, 0.37, 0.01])
@pytest.mark.parametrize("offset", [2.0**10, -(2.0**30), 2.0**34])
def test_a_shift_changes_no_gradient(function: Callable, tau: float, offset: float):
    x = (normal(5, 12) * 2**10).round() / 2**12  # a shift of which rounds nothing
    if tau == 1.0:
        x = torch.cat([x, torch.full((5, 12), -INF)], -1)  # and few scores of many
    slopes = [
        torch.autograd.grad(function(z, tau).sum(), z)[0] for z in (x.clone().requires_grad_(), (x + offset).requires_grad_())
    ]
    torch.testing.assert_close(*slopes, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("taus", [(1.0, 0.37), (0.01, 0.7), (1e-3, 3e5)])
@pytest.mark.parametrize("offset", [1e3, -1e7, 1e12])
def test_modalities_share_the_gradient_by_their_exact_quotients(taus: tuple[float, float], offset: float):
    parts = [(offset * tau / taus[0] + tau * normal(5, seed=i)).requires_grad_() for i, tau in enumerate(taus)]
    slopes = torch.autograd.grad(sm.multimodal_logsumexp(parts, taus), parts)
    z = [Fraction(score) / Fraction(tau) for x, tau in zip(parts, taus, strict=True) for score in x.tolist()]
    shares = torch.softmax(torch.tensor([float(score - max(z)) for score in z], dtype=torch.float64), 0).split(5)
    for slope, share, tau in zip(slopes, shares, taus, strict=True):
        torch.testing.assert_close(slope * tau, share, rtol=1e-12, atol=1e-15)


@EVERY
@pytest.mark.parametrize("outlier", [INF, 1.7e308])
def test_what_is_cut_off_or_left_out_changes_no_gradient(function: Callable, outlier: float):
    name = next(name for name, own in FUNCTIONS.items() if own is function)
    x, tau = normal(3, 12), torch.tensor([0.5], dtype=torch.float64, requires_grad=True)
    x[:, 5] = outlier if name in ("trimmed", "winsorized", "median of means") else -INF
    x.requires_grad_()
    gradients = torch.autograd.grad(function(x, tau).sum(), (x, tau))
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)
    torch.testing.assert_close(gradients[0].sum(-1) * tau.detach(), torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("lowest", [torch.finfo(torch.float32).min, -1e300])
@pytest.mark.parametrize("tau", [1.0, 0.7, 5 / 3, 176.24])
def test_modalities_of_equal_scores_share_the_gradient_equally(lowest: float, tau: float):
    parts = [torch.full((n,), lowest, dtype=torch.float64, requires_grad=True) for n in (1, 2, 4)]
    for slope in torch.autograd.grad(sm.multimodal_logsumexp(parts, tau), parts):
        torch.testing.assert_close(slope * 7 * tau, torch.ones_like(slope))
    assert float(sm.multimodal_logsumexp([-parts[0].detach(), parts[1].detach()], 1e-300)) == INF


@EVERY
def test_compiles_without_a_graph_break(function: Callable):
    torch._dynamo.reset()
    x = normal(4, 9).requires_grad_()
    value = torch.compile(function, fullgraph=True, backend="aot_eager")(x, 0.5)
    eager = function(x, 0.5)
    torch.testing.assert_close(value, eager)
    torch.testing.assert_close(torch.autograd.grad(value.sum(), x), torch.autograd.grad(eager.sum(), x))


X = torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: sm.adaptive_logsumexp(X), ValueError, r"give exactly one of between and around, got between=None"),
        (lambda: sm.adaptive_logsumexp(X, between=(0, 1), around=1.0), ValueError, r"give exactly one of between and around"),
        (lambda: sm.adaptive_logsumexp(X, between=(1, 1)), ValueError, r"0 ≤ θ₁ < θ₂, in nats, got \(1, 1\)"),
        (lambda: sm.adaptive_logsumexp(X, between=(-1, 1)), ValueError, r"0 ≤ θ₁ < θ₂"),
        (lambda: sm.adaptive_logsumexp(X, between=(0, INF)), ValueError, r"between\[1\] must be a finite number, got inf"),
        (lambda: sm.adaptive_logsumexp(X, between=0.5), ValueError, r"between must be two numbers"),
        (lambda: sm.adaptive_logsumexp(X, between=(0, "1")), TypeError, r"between\[1\] must be a finite number, got the string"),
        (lambda: sm.adaptive_logsumexp(X, around=INF), ValueError, r"around must be a finite number, got inf"),
        (lambda: sm.adaptive_logsumexp(X, around="1"), TypeError, r"around must be a finite number, got the string '1'"),
        (lambda: sm.adaptive_logsumexp(X, around=1.0, width=0.0), ValueError, r"width must be a positive finite number, got 0.0"),
        (lambda: sm.adaptive_logsumexp(X, 2, around=1.0), IndexError, r"dim must be in \[-2, 1\]"),
        (lambda: sm.adaptive_logsumexp([1.0], around=1.0), TypeError, r"must be a torch.Tensor or a numpy.ndarray, got list"),
        (lambda: sm.multimodal_logsumexp(X), TypeError, r"scores must be a list with at least one.*got Tensor"),
        (lambda: sm.multimodal_logsumexp([]), TypeError, r"scores must be a list with at least one"),
        (lambda: sm.multimodal_logsumexp([X, X.numpy()]), TypeError, r"all tensors or all arrays, got both"),
        (lambda: sm.multimodal_logsumexp([X, X], [1.0]), ValueError, r"temperatures must be one a modality, 2, got 1"),
        (lambda: sm.multimodal_logsumexp([X, X], [1.0, 0.0]), ValueError, r"temperature must be positive and finite.* got 0.0"),
        (lambda: sm.multimodal_logsumexp([X, X], where=[None]), ValueError, r"where must be one a modality, 2, got 1"),
        (lambda: sm.multimodal_logsumexp([X, X.new_zeros(3, 4)]), ValueError, r"must broadcast, got shapes"),
    ],
)  # fmt: skip
def test_wrong_use_raises(call: Callable, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        call()
