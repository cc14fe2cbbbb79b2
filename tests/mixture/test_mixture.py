"""A learnt mixture of maps: its values, gradients and loss against their definitions, what it learns, and what is left of it."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

import softmaxima as sm
from conftest import normal

NAMES = ["softmax", "entmax", "sparsemax", "topk_softmax"]


def mixture(**options: Any) -> sm.MixtureOfMaps:
    made = sm.MixtureOfMaps([*NAMES[:3], sm.TopKSoftmax(k=2, temperature=0.5)], **options).double()
    with torch.no_grad():
        made.g.copy_(torch.tensor([0.3, -0.2, 0.5, 0.1]))
    return made


def definition(made: sm.MixtureOfMaps, x: Tensor) -> Tensor:
    """Σ w_k map_k(x/τ_k; θ_k), by the literal references."""
    w = made.g.exp() / made.g.exp().sum()
    total = torch.zeros_like(x)
    for weight, module in zip(w, made.maps, strict=True):
        options = module.options
        tau = options.pop("temperature")
        options.pop("dim")
        total = total + weight * module.map.reference(x / tau, **options)
    return total


def test_a_mixture_is_the_weighted_sum_of_its_maps(dtype: torch.dtype):
    made = mixture()
    x = normal(5, 6).to(dtype)
    x[0] = torch.tensor([0.5, 0.5, 0.0, 1.0, 1.0, -3.0], dtype=dtype)
    p = made(x)
    assert p.dtype == dtype
    torch.testing.assert_close(p, definition(made, x.double()).to(dtype), atol=2 * torch.finfo(dtype).eps, rtol=0)


def test_hard_rows_masks_and_axes():
    made = mixture()
    x = torch.tensor(
        [[1.0, -math.inf, 0.0], [-math.inf] * 3, [math.nan, 0.0, 1.0], [1e5, -1e5, 0.0], [1e6, 1e6, 1e6]], dtype=torch.float64
    ).requires_grad_()
    p = made(x)
    assert p[0, 1] == 0
    assert (p[1] == 0).all()
    assert p.isnan().any(1).tolist() == [False, False, True, False, False]
    torch.testing.assert_close(p[[0, 3, 4]].sum(1), torch.ones(3, dtype=torch.float64))
    p[[0, 1, 3, 4]].square().sum().backward()
    assert x.grad is not None
    assert x.grad[0, 1] == 0
    assert (x.grad[1] == 0).all()
    assert x.grad[[0, 1, 3, 4]].isfinite().all()
    y = normal(2, 3, 4)
    along = sm.MixtureOfMaps(["softmax", "sparsemax"], dim=1).double()
    torch.testing.assert_close(along(y).movedim(1, -1), sm.MixtureOfMaps(["softmax", "sparsemax"]).double()(y.movedim(1, -1)))
    where = normal(5, 3, seed=1) > 0
    finite = normal(5, 3)
    torch.testing.assert_close(made(finite, where), made(finite.masked_fill(~where, -math.inf)))


def test_gradients_by_scores_weights_temperatures_and_alpha():
    made, x = mixture(), normal(4, 5).requires_grad_()
    parameters = dict(made.named_parameters())
    assert len(parameters) == 1 + 3 + 1  # g, three τ and α

    def call(x: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(made, dict(zip(parameters, values, strict=True)), x)

    assert torch.autograd.gradcheck(call, (x, *parameters.values()))
    assert torch.autograd.gradgradcheck(call, (x, *parameters.values()))


def test_the_loss_has_the_value_and_the_two_gradients_that_it_states():
    made, x, target = mixture(), normal(6, 5), torch.tensor([0, 4, 2, -100, 1, 3])
    x[5, 3] = -40.0  # exactly 0 in every map but softmax, where it is nearly
    x.requires_grad_()
    loss = made.loss(x, target, eps=1e-3)
    loss.backward()
    kept = target != -100
    p, y = definition(made, x.detach()), torch.nn.functional.one_hot(target.clamp_min(0), 5)
    rows = -((p.gather(1, target.clamp_min(0)[:, None])[:, 0] + 1e-3) / (1 + 5e-3)).log()
    torch.testing.assert_close(loss.detach(), rows[kept].mean().detach())
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.where(kept[:, None], (p - y) / 5, 0.0).detach())
    torch.testing.assert_close(made.loss(x, target, eps=1e-3, reduction="none"), torch.where(kept, rows, 0.0))
    torch.testing.assert_close(made.loss(x, target, eps=1e-3, reduction="sum"), rows[kept].sum())
    for learnt in made.parameters():
        for place in range(learnt.numel()):
            ends = []
            for step in (1e-5, -1e-5):
                with torch.no_grad():
                    learnt.view(-1)[place] += step
                    ends.append(float(made.loss(x, target, eps=1e-3)))
                    learnt.view(-1)[place] -= step
            assert float(torch.as_tensor(learnt.grad).view(-1)[place]) == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-7)
    soft = normal(6, 5, seed=3).softmax(1)
    expected = -(soft * ((p + 1e-6) / (1 + 5e-6)).log()).sum(1).mean()
    torch.testing.assert_close(made.loss(x, soft), expected)


def test_of_softmax_alone_the_loss_is_cross_entropy():
    made = sm.MixtureOfMaps([sm.Softmax()]).double()
    x, target = normal(7, 4).requires_grad_(), torch.tensor([0, 1, 2, 3, 0, 1, 2])
    other = x.detach().clone().requires_grad_()
    made.loss(x, target, eps=1e-12).backward()
    torch.nn.functional.cross_entropy(other, target).backward()
    torch.testing.assert_close(x.grad, other.grad)
    torch.testing.assert_close(made.loss(x, target, eps=1e-12), torch.nn.functional.cross_entropy(other, target))


def train(made: sm.MixtureOfMaps, x: Tensor, p: Tensor, steps: int, schedule: Any = None) -> None:
    optimiser = torch.optim.Adam(made.parameters(), 0.05)
    for _ in range(steps):
        optimiser.zero_grad()
        made.loss(x, p).backward()
        optimiser.step()
        if schedule is not None:
            schedule.step()


@pytest.mark.parametrize("name", ["softmax", "sparsemax"])
def test_it_finds_the_map_and_the_temperature_that_made_the_data(name: str):
    x = normal(300, 5, scale=1.5)
    target = sm.find_map(name)(x, temperature=2.0)
    cooling = sm.GeometricTemperature(1.0, 0.02, 300)
    made = sm.MixtureOfMaps(["softmax", "sparsemax"], gate_temperature=cooling).double()  # type: ignore[arg-type]
    train(made, x, target, 300, cooling)
    assert made.prune().map.name == name
    assert made.weights.max() > 0.999
    tau = made.prune().options["temperature"]
    assert float(tau.detach()) == pytest.approx(2.0, rel=0.1)
    torch.testing.assert_close(made.prune()(x), made(x), atol=1e-3, rtol=0)


def test_sparse_gates_reach_zero_and_state_goes_on():
    made = sm.MixtureOfMaps(["softmax", "sparsemax"], gate="sparsemax").double()
    with torch.no_grad():
        made.g.copy_(torch.tensor([2.0, 0.5]))
    assert made.weights.tolist() == [1, 0]
    x = normal(3, 4)
    torch.testing.assert_close(made(x), sm.softmax(x))
    again = sm.MixtureOfMaps(["softmax", "sparsemax"], gate="sparsemax").double()
    again.load_state_dict(made.state_dict())
    for twin in (again, pickle.loads(pickle.dumps(made))):
        torch.testing.assert_close(twin(x), made(x))
    assert "softmax 1.000, sparsemax 0.000" in repr(made)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: sm.MixtureOfMaps([]), r"MixtureOfMaps: maps must be a sequence of maps, got \[\]"),
        (lambda: sm.MixtureOfMaps(["log_softmax"]), "probabilities of one class, got 'log_softmax'"),
        (lambda: sm.MixtureOfMaps(["budget_sparsemax"]), "probabilities of one class"),
        (lambda: sm.MixtureOfMaps(["softmax"], gate="entmax"), "gate must be one of softmax, sparsemax"),
        (lambda: sm.MixtureOfMaps([sm.Softmax(dim=0)]), "maps must be along dim -1"),
        (lambda: mixture().loss(normal(2, 3), torch.tensor([0, 3])), "target 3 is out of range for 3 classes"),
        (lambda: mixture().loss(normal(2, 3), torch.tensor([0])), r"target must hold class indices of shape \(2,\)"),
        (lambda: mixture().loss(normal(2, 3), torch.ones(3)), "target probabilities must have the scores' shape"),
        (lambda: mixture().loss(normal(2, 3), "01"), "target"),  # type: ignore[arg-type]
        (lambda: mixture().loss(normal(2, 3), torch.tensor([0, 1]), eps=0.0), "eps must be a number above 0"),
        (lambda: mixture().loss(normal(2, 3), torch.tensor([0, 1]), reduction="max"), "reduction must be one of"),
    ],
)
def test_wrong_use_raises(call: Any, said: str):
    with pytest.raises((TypeError, ValueError, IndexError), match=said):
        call()


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_the_loss_of_narrow_scores_has_their_digits(kind: torch.dtype):
    mixture, target = sm.MixtureOfMaps([sm.Softmax()]), torch.tensor([0])
    x = torch.tensor([[7.0, 0.0, 1.0]], dtype=kind).requires_grad_()
    wide = x.detach().double().requires_grad_()
    own, expected = mixture.loss(x, target), mixture.loss(wide, target)
    torch.testing.assert_close(own.double(), expected, rtol=2 * torch.finfo(kind).eps, atol=0)
    slopes = torch.autograd.grad(own, x)[0], torch.autograd.grad(expected, wide)[0]
    torch.testing.assert_close(slopes[0].double(), slopes[1], rtol=2 * torch.finfo(kind).eps, atol=1e-6)


def test_a_row_that_is_ignored_is_not_read():
    mixture, target = sm.MixtureOfMaps(["softmax", "sparsemax"]), torch.tensor([0, -100])
    x = torch.tensor([[1.0, 0.0], [math.nan, 1.0]]).requires_grad_()
    slopes = torch.autograd.grad(mixture.loss(x, target), [x, mixture.g])
    own = x.detach()[:1].requires_grad_()
    expected = torch.autograd.grad(mixture.loss(own, target[:1]), [own, mixture.g])
    torch.testing.assert_close(slopes[0], torch.cat((expected[0], torch.zeros(1, 2))))
    torch.testing.assert_close(slopes[1], expected[1])


def test_wide_scores_have_wide_weights():
    mixture = sm.MixtureOfMaps(["softmax", "sparsemax", "entmax"])
    mixture.g.data = torch.tensor([0.3, -0.4, 1.1])
    p = mixture(normal(50, 7))
    torch.testing.assert_close(p.sum(-1), torch.ones(50, dtype=torch.float64), rtol=0, atol=1e-14)


def test_what_is_no_target_and_no_weight_is_refused():
    mixture = sm.MixtureOfMaps(["softmax", "sparsemax"])
    with pytest.raises(ValueError, match="target probabilities must not be negative, got -1"):
        mixture.loss(torch.zeros(1, 2), -torch.ones(1, 2))
    with pytest.raises(ValueError, match="eps must be a number above 0, and at most 1, got 1e"):
        mixture.loss(torch.zeros(1, 2), torch.tensor([0]), eps=1e308)
    mixture.g.data.fill_(math.nan)
    with pytest.raises(ValueError, match=r"weights must be numbers, got .nan, nan.; training has diverged"):
        mixture.prune()


def test_scores_are_tensors_with_an_axis_and_the_gate_has_one_temperature():
    mixture = sm.MixtureOfMaps(["softmax", "sparsemax"])
    for call in (lambda x: mixture(x), lambda x: mixture.loss(x, torch.tensor([0]))):
        with pytest.raises(TypeError, match=r"scores must be a torch\.Tensor, got list"):
            call([[1.0, 2.0]])
    with pytest.raises(ValueError, match="an axis of classes"):
        mixture.loss(torch.tensor(1.0), torch.tensor(0))
    with pytest.raises(ValueError, match="gate_temperature must be one number"):
        sm.MixtureOfMaps(["softmax", "sparsemax"], gate_temperature=torch.tensor([1.0, 2.0]))
    with pytest.raises(ValueError, match="target probabilities must be finite, got inf"):
        mixture.loss(torch.zeros(1, 2), torch.tensor([[math.inf, 0.0]]))
