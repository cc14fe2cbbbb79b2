"""Numbers that are learnt within limits: the exact inverse, gradients that are alive everywhere, and who takes them."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn

import softmaxima as sm
from conftest import normal

KINDS = ("exp", "softplus", "sigmoid")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("init", [1e-3, 0.5, 1.0, 7.0, 99.0])
def test_it_is_what_it_is_given_at_first_in_every_dtype(kind: str, init: float, dtype: torch.dtype):
    made = sm.Positive(init, 1e-4, 100.0, kind, (2, 1), dtype=dtype)
    value = made()
    assert (value.shape, value.dtype) == ((2, 1), dtype)
    rounding = torch.finfo(dtype).eps * (1 + float(made.rho.detach().abs().max()))  # of ρ
    torch.testing.assert_close(value.double(), torch.full((2, 1), init, dtype=torch.float64), rtol=rounding, atol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rho", [-1e30, -200.0, -30.0, 0.0, 30.0, 200.0, 1e30])
def test_it_stays_within_its_limits_wherever_steps_take_it(kind: str, rho: float, dtype: torch.dtype):
    made = sm.Positive(1.0, 0.25, 4.0, kind, dtype=dtype)
    with torch.no_grad():
        made.rho.fill_(max(min(rho, torch.finfo(dtype).max), torch.finfo(dtype).min))
    assert 0.25 <= float(made().detach()) <= 4.0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("target", [0.1, 0.3, 3.0, 8.0])
@pytest.mark.parametrize("first", [0.26, 3.9])
def test_descent_finds_the_best_number_from_either_end(kind: str, target: float, first: float):
    made = sm.Positive(first, 0.25, 4.0, kind, dtype=torch.float64)
    optimizer = torch.optim.Adam(made.parameters(), 0.1)
    for _ in range(400):
        optimizer.zero_grad()
        (made().log() - math.log(target)).square().backward()
        optimizer.step()
    assert float(made().detach()) == pytest.approx(min(max(target, 0.25), 4.0), rel=0.05)


@pytest.mark.parametrize("end", [0.25, 4.0])
def test_a_limit_lets_gradients_through_that_lead_inside(end: float):
    made = sm.Positive(end, 0.25, 4.0)
    inside = 1.0 if end == 4.0 else -1.0  # of a loss whose descent leads inside
    assert torch.autograd.grad(inside * made(), made.rho)[0] == inside * end
    assert torch.autograd.grad(-inside * made(), made.rho)[0] == 0
    (slope,) = torch.autograd.grad(made() * inside, made.rho, create_graph=True)
    assert torch.autograd.grad(slope, made.rho)[0].isfinite()


@pytest.mark.parametrize("kind", KINDS)
def test_its_derivatives_are_true(kind: str):
    made = sm.Positive(1.0, 0.25, 4.0, kind, dtype=torch.float64)
    rho = normal(3, scale=0.4).requires_grad_()
    assert torch.autograd.gradcheck(made.range.value, (rho,), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(made.range.value, (rho,))
    each = torch.func.vmap(torch.func.grad(made.range.value))(rho.detach())
    torch.testing.assert_close(each, torch.autograd.grad(made.range.value(rho).sum(), rho)[0])


def test_it_is_saved_copied_and_compiled():
    made = sm.Temperature(0.07, 0.01, 1.0, "sigmoid", (4, 1))
    again = sm.Temperature(0.5, 0.01, 1.0, "sigmoid", (4, 1))
    again.load_state_dict(made.state_dict())
    compiled = torch.compile(lambda: made() * 2, fullgraph=True, backend="aot_eager")
    for other in (again(), copy.deepcopy(made)(), compiled() / 2):
        torch.testing.assert_close(other, made())


def head(kind: str, temperature: Any) -> tuple[nn.Module, tuple[Any, ...]]:
    """A module with this temperature, and what it is called with."""
    hidden, target = normal(3, 4).float(), torch.tensor([0, 4, 2])
    heads = {
        "map": (lambda: sm.Softmax(temperature=temperature), (hidden,)),
        "loss": (lambda: sm.CrossEntropyLoss(temperature=temperature), (hidden, target % 4)),
        "linear": (lambda: sm.LinearLoss(4, 5, temperature=temperature), (hidden, target)),
        "margin": (lambda: sm.MarginSoftmax(4, 5, scale=temperature), (hidden, target)),
        "sampled": (lambda: sm.SampledSoftmax(4, 5, 3, "uniform", generator=0, temperature=temperature), (hidden, target)),
        "noise": (lambda: sm.NoiseContrastive(4, 5, 3, "uniform", generator=0, temperature=temperature), (hidden, target)),
        "in batch": (lambda: sm.InBatchSoftmax(temperature=temperature), (hidden, hidden)),
        "tree": (lambda: sm.HierarchicalSoftmax(4, 5, temperature=temperature), (hidden, target)),
        "adaptive": (lambda: sm.AdaptiveSoftmax(4, 5, [2], temperature=temperature), (hidden, target)),
        "attention": (lambda: sm.MultiheadAttention(4, 2, batch_first=True, temperature=temperature), (hidden[None],) * 3),
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return heads[kind][0](), heads[kind][1]


KINDS_OF_HEADS = ("map", "loss", "linear", "margin", "sampled", "noise", "in batch", "tree", "adaptive", "attention")


@pytest.mark.parametrize("kind", KINDS_OF_HEADS)
def test_every_module_takes_one_and_teaches_it(kind: str):
    temperature = sm.Temperature(0.5)
    (made, given), (fixed, _) = head(kind, temperature), head(kind, 0.5)
    found, expected = (module(*given) for module in (made, fixed))
    found, expected = (value[0] if isinstance(value, tuple) else value for value in (found, expected))
    torch.testing.assert_close(found, expected)
    assert any(parameter is temperature.rho for parameter in made.parameters())
    found.square().sum().backward()
    assert temperature.rho.grad.abs() > 0
    temperature.set_(2.0)
    changed = made(*given)
    assert not torch.allclose(changed[0] if isinstance(changed, tuple) else changed, found)
    assert "Temperature" in repr(made)


@pytest.mark.parametrize(
    "function", [sm.softmax, sm.logsumexp, lambda x, temperature: sm.attention(x, x, x, temperature=temperature)]
)
def test_functions_take_one(function: Any):
    x = normal(2, 3, 4).float()
    torch.testing.assert_close(function(x, temperature=sm.Temperature(0.5)), function(x, temperature=0.5))


def test_layers_share_what_is_learnt():
    temperatures = sm.LayerwiseTemperature(sm.Temperature(2.0), sm.Positive(0.5), layers=4)
    assert [round(float(one().detach()), 4) for one in temperatures] == [2.0, 1.0, 0.5, 0.25]
    assert temperatures[-1]().item() == temperatures()[-1].item()
    layers = nn.ModuleList(sm.Softmax(temperature=temperature) for temperature in temperatures)
    assert len(list(layers.parameters())) == 2
    layers[3](normal(2, 3).float())[:, 0].sum().backward()
    assert all(parameter.grad is not None for parameter in temperatures.parameters())
    assert list(sm.LayerwiseTemperature(2.0, 0.5, 2).state_dict()) == ["init.rho", "ratio.rho"]


def test_of_a_state_it_is_one_for_each_row():
    network = nn.Linear(3, 1)
    temperature = sm.StateTemperature(network, 0.1, 10.0, "sigmoid")
    state, scores = normal(5, 3).float(), normal(5, 4).float()
    p = sm.softmax(scores, temperature=temperature(state))
    torch.testing.assert_close(p, torch.softmax(scores / (0.1 + 9.9 * network(state).sigmoid()), -1))
    p[:, 0].sum().backward()
    assert network.weight.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: sm.Positive(-1.0), ValueError, r"init must be at least .*, got -1.0"),
        (lambda: sm.Positive(0.0, 0.0, 1.0, "softplus"), ValueError, "init must be above"),
        (lambda: sm.Positive(1.0, 0.1, 1.0, "sigmoid"), ValueError, "init must be above 0.1 and below 1"),
        (lambda: sm.Positive(1.0, 2.0, 1.0), ValueError, "minimum must be below maximum, got 2 and 1"),
        (lambda: sm.Positive(1.0, 1.0, 1.0), ValueError, "minimum must be below maximum"),
        (lambda: sm.Positive(1.0, -1.0), ValueError, "minimum must be 0, or from"),
        (lambda: sm.Positive(1.0, parametrization="sigmoid"), ValueError, "maximum must be given"),
        (lambda: sm.Positive(1.0, parametrization="square"), ValueError, "parametrization must be one of exp"),
        (lambda: sm.Positive(True), TypeError, "init must be"),
        (lambda: sm.Positive("1"), TypeError, "init must be"),
        (lambda: sm.Positive(torch.ones(2), shape=(3,)), ValueError, r"init must be a number or of the shape \(3,\)"),
        (lambda: sm.Positive(1.0, shape=3), TypeError, "shape must be a tuple"),
        (lambda: sm.Positive(1.0, dtype=torch.int64), TypeError, "dtype must be float64"),
        (lambda: sm.Temperature(float("nan")), ValueError, "Temperature: init must be"),
        (lambda: sm.Temperature(1.0, 0.5, 2.0).set_(3.0), ValueError, "Temperature.set_: value must be"),
        (lambda: sm.LayerwiseTemperature(1.0, -0.5, 3), ValueError, "ratio must be"),
        (lambda: sm.LayerwiseTemperature(1.0, 0.5, 0), ValueError, "layers must be an int of at least 1"),
        (lambda: sm.LayerwiseTemperature(1.0, 0.5, 2)[2], IndexError, "layer must be below 2, got 2"),
        (lambda: sm.StateTemperature(3), TypeError, "module must be a network"),
        (lambda: sm.softmax(torch.ones(2), temperature=nn.Linear(2, 1)), TypeError, "which must be given input"),
        (lambda: sm.Softmax(temperature=nn.Linear(2, 1)), TypeError, "which must be given input"),
        (lambda: sm.cross_entropy(torch.ones(2), torch.tensor(0), temperature=-1.0), ValueError, "temperature must be positive"),
        (lambda: sm.CrossEntropyLoss(temperature=0.0), ValueError, "temperature must be positive"),
    ],
)
def test_wrong_arguments_are_told_in_a_sentence(make: Any, error: type[Exception], says: str):
    with pytest.raises(error, match=r"^[\w.]+: ") as raised:
        make()
    assert raised.match(says)
