"""Numbers that are learnt within limits: the exact inverse, gradients that are alive everywhere, and who takes them."""

from __future__ import annotations

import copy
import io
import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import softmaxima as sm
from conftest import normal

KINDS = ("exp", "softplus", "sigmoid")


def limits(kind: str, dtype: torch.dtype) -> list[tuple[float | None, float | None]]:
    """Wide and narrow ones, and those of the dtype."""
    widest = (None, 1 / torch.finfo(dtype).tiny if kind == "sigmoid" else None)
    return [widest, (0.25, 4.0), (1e-4, 100.0), (None, 1.0), (1.0, 1.0 + 2 * torch.finfo(dtype).eps), (1e-4, 1e-4 * (1 + 2**-6))]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("init", [1e-3, 0.5, 1.0, 7.0, 99.0])
def test_it_is_what_it_is_given_but_for_the_rounding_of_rho(kind: str, init: float, dtype: torch.dtype):
    made = sm.Positive(init, 1e-4, 100.0, kind, (2, 1), dtype=dtype)
    value = made()
    assert (value.shape, value.dtype) == ((2, 1), dtype)
    rho = made.rho.detach().double().requires_grad_()
    (slope,) = torch.autograd.grad(made.range.value(rho).log().sum(), rho)
    half_units = 1 + float((rho.detach() * slope).abs().max())
    rounding = 3 * torch.finfo(dtype).eps / 2 * half_units  # of exp and log too
    torch.testing.assert_close(value.double(), torch.full((2, 1), init, dtype=torch.float64), rtol=rounding, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_wherever_steps_take_it_it_is_a_number_within_its_limits_and_has_a_way_back(kind: str, dtype: torch.dtype):
    numbers = torch.finfo(dtype)
    places = [
        0.0,
        *(sign * r for sign in (-1, 1) for r in (1e-3, 5.0, 9.6, 9.8, 11.2, 20.0, 87.0, 89.0, 110.0, 800.0, 3e4, numbers.max)),
    ]
    for minimum, maximum in limits(kind, dtype):
        within = sm.StateTemperature(nn.Identity(), minimum, maximum, kind).range
        a, b, low, high = within.within(dtype)
        assert low < high
        rho = torch.tensor(places, dtype=dtype, requires_grad=True)
        value = within.value(rho)
        rounded = torch.tensor([a, b], dtype=torch.float64).to(dtype)
        assert bool(((value >= rounded[0]) & (value <= rounded[1])).all())
        if minimum is None or maximum is None:
            assert bool((1 / value).isfinite().all())
        up, down = (torch.autograd.grad(way * value.sum(), rho, retain_graph=True)[0] for way in (-1, 1))
        assert bool((up.isfinite() & down.isfinite() & (up <= 0) & (down >= 0)).all())
        assert bool(((up < 0) == (rho < high)).all()), (a, b, low, high)
        assert bool(((down > 0) == (rho > low)).all()), (a, b, low, high)


@pytest.mark.parametrize("kind", KINDS)
def test_a_module_that_is_converted_keeps_to_the_numbers_of_its_new_dtype(kind: str, dtype: torch.dtype):
    for minimum, maximum, init in ((None, 1e30, 7e4), (1e-30, 1e-10, 1e-20), (1e5, 1e10, 1e7), (0.25, 4.0, 1.0)):
        made = sm.Positive(init, minimum, maximum, kind, dtype=torch.float64).to(dtype)
        value = made()
        (slope,) = torch.autograd.grad(value.log() * (-1 if made.rho <= 0 else 1), made.rho)
        assert (value.isfinite() & (1 / value).isfinite() & slope.isfinite()).item()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_the_way_back_from_a_step_far_out_is_short(kind: str, side: float):
    made = sm.Positive(1.0, 0.25, 4.0, kind)
    rate = torch.optim.SGD(made.parameters(), 1e6)
    (-side * made()).backward()
    rate.step()
    optimizer = torch.optim.Adam(made.parameters(), 0.5)
    for _ in range(300):
        optimizer.zero_grad()
        (side * made().log()).backward()
        optimizer.step()
    assert side * math.log(float(made().detach())) < -0.5


def test_nothing_is_written_into_what_others_look_at():
    """Two calls before backward; torch.func, a compiled call, a call that does not learn, and a ρ that is computed."""
    made = sm.Positive(1.0, 0.25, 4.0)
    far = torch.full((), 50.0)
    with torch.no_grad():
        made.rho.copy_(far)
        assert made() == 4.0
        assert made.rho == far
    compiled = torch.compile(lambda: made() * 2, fullgraph=True, backend="aot_eager")
    assert (compiled().item(), made.rho.item()) == (8.0, 50.0)
    other = far.clone().requires_grad_()
    slope = torch.func.grad(lambda rho: torch.func.functional_call(made, {"rho": rho}, ()))(other)
    assert (slope.item(), other.item(), made.rho.item()) == (4.0, 50.0, 50.0)
    again = torch.func.functional_call(made, {"rho": other}, ())
    assert (again.item(), other.item()) == (4.0, 50.0)
    torch.utils.checkpoint.checkpoint(lambda: made() * made() * made(), use_reentrant=False).backward()
    assert made.rho.item() == pytest.approx(math.log(4.0))
    assert made.rho.grad.item() == pytest.approx(3 * 4.0**3)


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


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_exported_to_onnx_it_is_what_it_is_here(kind: str):
    onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    layer, x, file = sm.Softmax(temperature=sm.Temperature(0.5, 0.1, 2.0, kind)), normal(2, 3).float(), io.BytesIO()
    torch.onnx.export(layer, (x,), file, dynamo=False)
    assert {node.domain for node in onnx.load_from_string(file.getvalue()).graph.node} == {""}
    session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), layer(x).detach())


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


def learners() -> dict[str, tuple[Callable[[Any], Any], tuple[Any, ...]]]:
    """What makes each module of a number that learns, and what it is called with: parameters of maps, losses and layers."""
    hidden, target, x = normal(3, 4).float(), torch.tensor([0, 3, 2]), normal(3, 4).float().tanh()
    found: dict[str, tuple[Callable[[Any], Any], tuple[Any, ...]]] = {
        f"{map.name}.{p.name}": (partial(lambda name, what, v: sm.MapModule(name, **{what: v}), map.name, p.name), (x,))
        for map in sm.maps.REGISTRY.values()
        for p in map.params
        if p.gradient is not None and not p.valid(-1.0)
    }
    for loss in sm.losses.REGISTRY.values():
        numbers = ["alpha", "gamma", "scale"] if loss.name in ("arcface", "cosface") else ["alpha", "gamma", "scale", "temperature"]
        for what in (name for name in numbers if name == "temperature" or name in loss.own_options):
            found[f"{loss.name}.{what}"] = (
                partial(lambda own, what, v: own.module(**{**own.examples[0], what: v}), loss, what),
                (x, target),
            )
    for kind in KINDS_OF_HEADS:
        found[kind] = (partial(lambda kind, v: head(kind, v)[0], kind), head(kind, 0.5)[1])
    attention = lambda v: sm.MultiheadAttention(4, 2, batch_first=True, map="entmax", alpha=v)
    return found | {
        "entmax of a head": (lambda v: sm.LinearLoss(4, 5, loss=("entmax", v)), (hidden, target)),
        "focal loss of a head": (lambda v: sm.LinearLoss(4, 5, loss=("focal_loss", v)), (hidden, target)),
        "alpha of attention": (attention, (hidden[None],) * 3),
        "gate": (lambda v: sm.MixtureOfMaps(("softmax", "sparsemax"), gate_temperature=v), (x,)),
        "gumbel": (lambda v: sm.GumbelSoftmax(temperature=v), (x,)),
    }


LEARNERS = learners()


@pytest.mark.parametrize("kind", LEARNERS)
def test_a_number_that_learns_beyond_its_domain_is_told_what_holds_it_and_that_does(kind: str):
    make, given = LEARNERS[kind]
    bare = nn.Parameter(torch.tensor(0.5 if kind == "minp_softmax.p" else 1.75))
    made = make(bare)
    bare.data.fill_(-0.5)
    with pytest.raises(ValueError, match=r"hold it there with sm\.Positive") as raised:
        made(*given)
    held = eval(str(raised.value).partition("hold it there with ")[2], {"sm": sm})
    for side in (1.0, -1.0):
        torch.manual_seed(0)
        module = make(held)
        optimiser = torch.optim.SGD(held.parameters(), lr=6.0)
        for _ in range(5):
            optimiser.zero_grad()
            value = module(*given)
            value = value[0] if isinstance(value, tuple) else value
            assert bool(value.isfinite().all()), held
            held.rho.grad = torch.full_like(held.rho, side)
            optimiser.step()


def test_no_example_holds_a_number_with_limits_as_a_bare_parameter():
    root = Path(sm.__file__).parents[2]
    pages = [root / "README.md", *root.glob("docs/*.md"), *root.glob("src/softmaxima/**/*.py"), *root.glob("examples/*.py")]
    bounded = re.compile(r"\b(alpha|gamma|eps|budget|scale|temperature|tau)=(torch\.)?nn\.Parameter\(")
    assert [f"{page.name}: {line}" for page in pages for line in page.read_text().splitlines() if bounded.search(line)] == []


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
    numbers = sm.LayerwiseTemperature(0.1, 1 / 3, 3)
    assert [one().item() for one in numbers] == [0.1, 0.1 * (1 / 3), 0.1 * (1 / 3) ** 2]
    assert (numbers.state_dict(), repr(numbers)[:50]) == ({}, f"LayerwiseTemperature(init=0.1, ratio={1 / 3}, layers=3)"[:50])
    heads = sm.LayerwiseTemperature(torch.tensor([1.0, 2.0]), nn.Parameter(torch.tensor(0.5)), 2)
    torch.testing.assert_close(heads(), torch.tensor([[1.0, 2.0], [0.5, 1.0]]))
    assert set(heads.state_dict()) == {"init", "ratio"}
    layer = sm.Softmax(temperature=numbers[1])
    torch.testing.assert_close(layer(normal(2, 3)), sm.softmax(normal(2, 3), temperature=0.1 / 3))


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
        (
            lambda: sm.Temperature(7e4, dtype=torch.float16),
            ValueError,
            "init must be at least 6.1.*e-05 and at most 16384 .*float16",
        ),
        (lambda: sm.Temperature(1e-10, dtype=torch.float16), ValueError, "init must be at least 6.1.*e-05"),
        (lambda: sm.Positive(0.5, None, 8e37, "sigmoid"), ValueError, "init must be above 0.94"),
        (
            lambda: sm.Positive(1.0, maximum=1e5, dtype=torch.float16),
            ValueError,
            "maximum must be from 6.1e-05 to 1.6e.04, as torch.float16",
        ),
        (lambda: sm.Positive(1.0, maximum=math.inf), ValueError, "maximum must be from .*, got inf"),
        (lambda: sm.Positive(1.0, maximum=0.0), ValueError, "maximum must be from .*, got 0.0"),
        (lambda: sm.Positive(device="foo"), ValueError, "device must be one that torch has here, got 'foo'"),
        (lambda: sm.Positive(device=1.5), TypeError, "device must be one that torch has here, got 1.5"),
        (lambda: sm.LayerwiseTemperature(1.0, -0.5, 3), ValueError, "ratio must be"),
        (
            lambda: sm.LayerwiseTemperature(1.0, 1e200, 3),
            ValueError,
            r"ratio\^2, of the deepest layer, must be positive and .*, got inf",
        ),
        (
            lambda: sm.LayerwiseTemperature(1.0, 1e-200, 3),
            ValueError,
            r"ratio\^2, of the deepest layer, must be positive and .*, got 0.0",
        ),
        (
            lambda: sm.LayerwiseTemperature(torch.tensor([1.0, 0.0]), 0.5, 3),
            ValueError,
            "init must be positive .* a tensor with 0.0",
        ),
        (lambda: sm.LayerwiseTemperature("1", 0.5, 3), TypeError, "init must be positive .* the string '1'"),
        (
            lambda: sm.StateTemperature(nn.Identity())(torch.ones(2, 1).int()),
            TypeError,
            "must give a tensor of .*, got torch.int32",
        ),
        (lambda: sm.StateTemperature(nn.Identity())(1.0), TypeError, "must give a tensor of .*, got float"),
        (lambda: sm.StateTemperature(nn.Linear(3, 2))(torch.ones(4, 3)), ValueError, r"one number for each .* shape \(4, 2\)"),
        (lambda: sm.StateTemperature(nn.Identity())(torch.ones(())), ValueError, r"one number for each .* shape \(\)"),
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
