"""Soft values against their definition as a maximum, Bellman operators as contractions, value iteration against linear systems."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import softmaxima as sm
from conftest import normal, rows
from softmaxima.maps import REGISTRY
from softmaxima.policy import AdaptiveTemperature, Policy, look_ahead, mellowmax, soft_bellman, soft_value, soft_value_iteration

CONJUGATES = [name for name, map in REGISTRY.items() if map.regulariser is not None and map.properties.mass == "one"]
LITERAL = ("softmax", "sparsemax", "entmax15", "entmax", "normmax")  # Ω of a p as it stands


def of_softmax(q: Tensor, tau: float) -> float:
    top = float(q.max())
    return top + tau * math.log(math.fsum(math.exp((v - top) / tau) for v in q.tolist()))


def of_sparsemax(q: Tensor, tau: float) -> float:
    """Lee, Choi & Oh (2018): ½ Σ_S ((q/τ)² − λ²) + ½, times τ."""
    z = sorted((v / tau for v in q.tolist()), reverse=True)
    size = max(k for k in range(1, len(z) + 1) if 1 + k * z[k - 1] > math.fsum(z[:k]))
    threshold = (math.fsum(z[:size]) - 1) / size
    return tau * (0.5 * math.fsum(v * v - threshold**2 for v in z[:size]) + 0.5)


@given(rows(masks=False), st.sampled_from([0.1, 1.0, 7.0]))
def test_soft_values_are_those_of_the_literature(q: Tensor, tau: float):
    q = q / 4
    for name, definition in (("softmax", of_softmax), ("sparsemax", of_sparsemax)):
        expected = torch.tensor([definition(row, tau) for row in q], dtype=torch.float64)
        torch.testing.assert_close(soft_value(q, tau, map=name), expected, rtol=1e-9, atol=1e-9)
    mean = torch.tensor([of_softmax(row, tau) - tau * math.log(len(row)) for row in q], dtype=torch.float64)
    torch.testing.assert_close(mellowmax(q, 1 / tau), mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(soft_value(q, tau, prior=torch.full_like(q, 1 / q.shape[-1])), mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(soft_value(q, tau, map="entmax", alpha=2.0), soft_value(q, tau, map="sparsemax"))


@pytest.mark.parametrize("name", LITERAL)
def test_no_policy_is_worth_more(name: str):
    """V = max_p ⟨p, q⟩ − τ Ω(p), which the map reaches."""
    q, tau, omega = normal(6, 4), 0.7, REGISTRY[name].regulariser
    params = {parameter.name: parameter.default for parameter in REGISTRY[name].params}
    assert omega is not None
    value = soft_value(q, tau, map=name)
    best = REGISTRY[name](q, temperature=tau)
    torch.testing.assert_close(value, (best * q).sum(-1) - tau * omega(best, **params))
    others = normal(50, 6, 4, seed=1).mul(2).softmax(-1)
    assert (value >= (others * q).sum(-1) - tau * omega(others, **params) - 1e-12).all()


@pytest.mark.parametrize("name", CONJUGATES)
def test_the_slope_of_a_soft_value_is_the_policy(name: str):
    q, tau = normal(3, 4).requires_grad_(), torch.tensor([[0.5], [1.0], [3.0]], dtype=torch.float64, requires_grad=True)
    slope, _ = torch.autograd.grad(soft_value(q, tau, map=name).sum(), (q, tau))
    torch.testing.assert_close(slope, REGISTRY[name](q.detach(), temperature=tau.detach()), atol=1e-9, rtol=1e-9)
    assert torch.autograd.gradcheck(lambda q, tau: soft_value(q, tau, map=name), (q, tau), atol=1e-5)


def test_hard_values(dtype: torch.dtype):
    q = torch.tensor([[1.0, -math.inf], [-math.inf] * 2, [math.inf, 0.0], [math.nan, 0.0], [3e4, 3e4]]).to(dtype)
    for name in ("softmax", "sparsemax", "entmax15"):
        value = soft_value(q, map=name)
        assert value.dtype == dtype
        assert value[0] == 1
        assert value[1] == -math.inf
        assert value[2] == math.inf
        assert value.isnan().tolist() == [False, False, False, True, False]
        assert float(value[4]) == pytest.approx(3e4 + (math.log(2) if name == "softmax" else 0.25), rel=1e-2)
    leaf = q[:2].clone().requires_grad_()
    soft_value(leaf, map="sparsemax")[0].backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [[1, 0], [0, 0]]
    where = torch.tensor([[True, False], [False, False], [True, True], [True, True], [True, True]])
    finite = q.nan_to_num(nan=1.0, neginf=5.0, posinf=2.0)
    assert soft_value(finite, map="sparsemax", where=where)[:2].tolist() == [1, -math.inf]


def test_axes_arrays_and_temperatures_of_rows():
    q = normal(2, 3, 4)
    tau = torch.tensor([0.5, 2.0], dtype=torch.float64).reshape(2, 1, 1)
    for name in ("softmax", "sparsemax"):
        found = soft_value(q.movedim(-1, 1), tau, map=name, dim=1)
        assert found.shape == (2, 3)
        torch.testing.assert_close(found[1, 2], soft_value(q[1, 2], 2.0, map=name))
        array = soft_value(q.numpy(), 0.5, map=name)
        assert isinstance(array, np.ndarray)
        np.testing.assert_allclose(array, soft_value(q, 0.5, map=name).numpy())
    torch.testing.assert_close(mellowmax(q, 2.0, dim=0), mellowmax(q.movedim(0, -1), 2.0))
    where = normal(2, 3, 4, seed=2) > -2
    masked = q.masked_fill(~where, -math.inf)
    torch.testing.assert_close(mellowmax(q, where=where), torch.logsumexp(masked, -1) - where.sum(-1).log())
    torch.testing.assert_close(soft_value(q, sm.Temperature(0.5)), soft_value(q, 0.5), rtol=1e-6, atol=1e-6)


def process(seed: int, states: int = 5, actions: int = 3) -> tuple[Tensor, Tensor]:
    return normal(states, actions, seed=seed), normal(states, actions, states, seed=seed + 1).softmax(-1)


@pytest.mark.parametrize("name", CONJUGATES)
def test_a_soft_bellman_operator_is_a_contraction(name: str):
    """‖T q − T q′‖∞ ≤ γ ‖q − q′‖∞, for near and far q."""
    gamma = 0.9
    for seed, scale in enumerate((1e-3, 0.1, 1.0, 30.0)):
        reward, transition = process(seed)
        q = normal(5, 3, seed=10 + seed, scale=scale)
        other = q + normal(5, 3, seed=20 + seed, scale=scale)
        apart = (
            soft_bellman(q, reward, transition, gamma, 0.6, map=name)
            - soft_bellman(other, reward, transition, gamma, 0.6, map=name)
        ).abs()
        assert apart.max() <= gamma * (q - other).abs().max() + 1e-11
        shifted = soft_bellman(q + 3, reward, transition, gamma, 0.6, map=name)
        torch.testing.assert_close(shifted, soft_bellman(q, reward, transition, gamma, 0.6, map=name) + gamma * 3)


@pytest.mark.parametrize("name", LITERAL)
def test_value_iteration_finds_the_value_that_its_policy_has(name: str):
    """V = (I − γ P_π)⁻¹ (r_π − τ Ω(π)), and no other policy has more in any state."""
    reward, transition = process(3)
    gamma, tau, omega = 0.95, 0.4, REGISTRY[name].regulariser
    params = {parameter.name: parameter.default for parameter in REGISTRY[name].params}
    assert omega is not None
    solution = soft_value_iteration(reward, transition, gamma, tau, map=name)

    def worth(p: Tensor) -> Tensor:
        own = (p * reward).sum(-1) - tau * omega(p, **params)
        return torch.linalg.solve(torch.eye(5, dtype=torch.float64) - gamma * torch.einsum("sa,sat->st", p, transition), own)

    torch.testing.assert_close(worth(solution.policy.probs), solution.value, atol=1e-8, rtol=1e-8)
    assert solution.error <= 1e-9
    for seed in range(20):
        assert (worth(normal(5, 3, seed=50 + seed).softmax(-1)) <= solution.value + 1e-8).all()


def test_value_iteration_with_ends_and_illegal_actions():
    """A corridor of four states, whose last is the end; each step costs 1, and only the right way is legal in the first."""
    transition = torch.zeros(4, 2, 4, dtype=torch.float64)
    for s in range(3):
        transition[s, 0, max(s - 1, 0)] = transition[s, 1, s + 1] = 1
    where = torch.ones(4, 2, dtype=torch.bool)
    where[3], where[0, 0] = False, False
    reward = torch.full((4, 2), -1.0, dtype=torch.float64)
    solution = soft_value_iteration(reward, transition, 0.99, 1e-4, map="sparsemax", where=where)
    torch.testing.assert_close(solution.value, torch.tensor([-2.9701, -1.99, -1.0, 0.0], dtype=torch.float64))
    assert solution.policy.logits[:3].argmax(-1).tolist() == [1, 1, 1]
    assert solution.q[0, 0] == -math.inf
    with pytest.warns(RuntimeWarning, match="after 3 iterations"):
        assert soft_value_iteration(reward, transition, 0.99, max_iterations=3).error > 1


def test_bellman_operators_have_gradients_and_take_arrays():
    reward, transition = process(7)
    q = normal(5, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda q, r: soft_bellman(q, r, transition, 0.9, 0.5), (q, reward.requires_grad_()))
    array = soft_bellman(q.detach().numpy(), reward.detach().numpy(), transition.numpy(), 0.9)
    np.testing.assert_allclose(array, soft_bellman(q, reward, transition, 0.9).detach().numpy())


# Temperatures -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "h"), [("softmax", 0.8), ("sparsemax", 0.25), ("entmax15", 0.4)])
def test_an_adaptive_temperature_holds_its_entropy(name: str, h: float):
    q, omega = normal(200, 4).float(), REGISTRY[name].regulariser
    assert omega is not None
    tau = AdaptiveTemperature(h, map=name)
    optimiser = torch.optim.Adam(tau.parameters(), 0.05)
    for _ in range(200):
        optimiser.zero_grad()
        tau.loss(q).backward()
        optimiser.step()
    p = REGISTRY[name](q, temperature=tau().detach())
    assert float(-omega(p).mean()) == pytest.approx(h, abs=2e-3)
    if name == "softmax":
        exact = sm.EntropyTarget(h).fit_(q)
        torch.testing.assert_close(tau(), exact(), rtol=1e-2, atol=0)


@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax15"])
def test_an_entropy_that_no_policy_has_is_refused(name: str):
    q, omega = normal(6, 4), REGISTRY[name].regulariser
    assert omega is not None
    where = torch.ones(6, 4, dtype=torch.bool)
    where[:, 3], where[0] = False, False
    most = [-float(omega(torch.full((n,), 1 / n, dtype=torch.float64))) for n in (3, 4)]
    assert AdaptiveTemperature(0.99 * most[0], map=name).loss(q, where=where).isfinite()
    for h, mask, limit in ((5.0, None, most[1]), (1.01 * most[1], None, most[1]), (1.01 * most[0], where, most[0])):
        said = rf"loss: entropy must be below what the legal actions allow, {limit:.6g} in the mean over states, got {h:.6g}; give"
        with pytest.raises(ValueError, match=said):
            AdaptiveTemperature(h, map=name).loss(q, where=mask)
    tau = sm.Positive(torch.ones(6, 1))
    wanted = torch.tensor([5.0] + [0.5 * most[0]] * 5).unsqueeze(-1)
    assert AdaptiveTemperature(wanted, tau, map=name).loss(q, where=where).isfinite()  # of no state
    with pytest.raises(ValueError, match="got 5; give"):
        AdaptiveTemperature(wanted, tau, map=name).loss(q)


def test_an_adaptive_temperature_refuses_at_once_what_it_can_never_hold():
    refused: Any = (
        ({"map": "normmax"}, "map must have an entropy −Ω above 0, got 'normmax', whose −Ω of two equal actions is -0.707"),
        ({"map": "topk_softmax"}, "map must have a regulariser"),
        ({"map": "nosuch"}, "unknown map 'nosuch'"),
        ({"map": "entmax", "alpa": 1.5}, "unknown argument 'alpa'; did you mean 'alpha'"),
        ({"map": "entmax", "alpha": -1.0}, "alpha must be positive"),
        ({"temperature": 0.0}, "temperature must be positive and finite"),
        ({"temperature": sm.GeometricTemperature(1.0, 0.1, 10)}, "temperature must be positive and finite"),
    )
    for options, said in refused:
        with pytest.raises((TypeError, ValueError), match=rf"^AdaptiveTemperature: {said}"):
            AdaptiveTemperature(0.2, **options)
    q, alpha = normal(5, 4), sm.Positive(1.5, 1.0, 2.0, "sigmoid")
    assert AdaptiveTemperature(0.2, map="entmax", alpha=alpha).loss(q) == AdaptiveTemperature(0.2, map="entmax15").loss(q).item()
    with pytest.raises(ValueError, match=r"^AdaptiveTemperature\.loss: entropy must be below what the legal actions allow"):
        AdaptiveTemperature(1.0, map="entmax", alpha=alpha).loss(q)


def test_the_slope_of_its_loss_is_what_the_entropy_lacks():
    q = normal(6, 3)
    where = torch.ones(6, 3, dtype=torch.bool)
    where[5] = False  # no state
    tau = AdaptiveTemperature(0.5, sm.Positive(torch.full((6, 1), 0.7, dtype=torch.float64), dtype=torch.float64))
    tau.loss(q, where=where).backward()
    missing = (Policy(q, temperature=0.7).entropy() - 0.5)[:5] / 5
    assert tau.temperature.rho.grad is not None
    torch.testing.assert_close(tau.temperature.rho.grad[:5, 0], 0.7 * missing)
    assert tau.temperature.rho.grad[5] == 0


def test_a_meta_gradient_is_the_slope_of_what_a_step_reaches():
    """Against finite differences in τ, through one step of policy gradient, for a smooth and a sparse map."""
    state, action, gain = normal(6, 3), torch.tensor([0, 1, 1, 2, 0, 2]), normal(6, seed=2)
    network = torch.nn.Linear(3, 3).double()
    parameters = {key: (0.3 * normal(*value.shape, seed=5)).requires_grad_() for key, value in network.named_parameters()}

    def reached(tau: Tensor, name: str) -> Tensor:
        scores = torch.func.functional_call(network, parameters, state)
        policy = Policy(scores, name, temperature=tau)
        after = look_ahead(-(gain * policy.log_prob(action)).mean(), parameters, 0.3)
        return (gain * Policy(torch.func.functional_call(network, after, state)).log_prob(action)).mean()

    for name in ("softmax", "taylor_softmax", "sparsemax"):
        tau = torch.tensor(2.5, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda tau, name=name: reached(tau, name), (tau,))
        assert torch.autograd.grad(reached(tau, name), tau)[0] != 0
    unused = torch.zeros(2, requires_grad=True)
    own = torch.ones(2, requires_grad=True)
    after = look_ahead(own.square().sum(), {"own": own, "unused": unused}, 0.25)
    assert after["own"].tolist() == [0.5, 0.5]
    assert after["unused"] is unused


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: soft_value(torch.zeros(3), map="topk_softmax", k=2), "map must have a regulariser"),
        (lambda: soft_value(torch.zeros(3), 0.0), "soft_value: temperature must be positive"),
        (lambda: soft_value(torch.zeros(3), map="sparsemax", prior=torch.ones(3)), "prior is of softmax alone"),
        (lambda: soft_value(torch.zeros(3), prior=torch.tensor([0.5, -0.5, 1.0])), "prior must be at least 0"),
        (
            lambda: soft_value(torch.zeros(3), prior=torch.tensor([0.5, math.inf, 1.0])),
            "prior must be at least 0 and finite.*got inf",
        ),
        (lambda: soft_value(torch.zeros(3), prior=torch.ones(4)), "prior must broadcast"),
        (lambda: mellowmax(torch.zeros(3), 0.0), "mellowmax: omega must be a positive finite number"),
        (lambda: soft_bellman(torch.zeros(2), 0.0, torch.zeros(2), 0.5), r"states, actions\], got shape \(2,\)"),
        (lambda: soft_bellman(torch.zeros(2, 3), torch.zeros(3), torch.zeros(2, 2, 3), 0.5), "transition must be"),
        (lambda: soft_bellman(torch.zeros(2, 3), torch.zeros(4), torch.zeros(2, 3, 2), 0.5), "reward must broadcast"),
        (lambda: soft_bellman(torch.zeros(2, 3), torch.zeros(3), torch.ones(2, 3, 2), 0.5), "sums at most 1 .*got 2.0"),
        (lambda: soft_bellman(torch.zeros(2, 3), torch.zeros(3), -torch.ones(2, 3, 2), 0.5), "got -1.0"),
        (lambda: soft_bellman(torch.zeros(2, 3), torch.full((3,), math.inf), torch.zeros(2, 3, 2), 0.5), "reward must be finite"),
        (lambda: soft_bellman(torch.zeros(2, 3), torch.zeros(3), torch.zeros(2, 3, 2), 1.0), "discount must be"),
        (lambda: soft_value_iteration(np.zeros((2, 3)), np.zeros((2, 3, 2)), 0.5), "reward must be a torch.Tensor"),
        (lambda: soft_value_iteration(torch.zeros(2, 3), torch.zeros(2, 3, 2), 0.5, tolerance=0), "tolerance must be"),
        (lambda: AdaptiveTemperature(0.0), "AdaptiveTemperature: entropy must be"),
        (lambda: AdaptiveTemperature(0.5, map="topk_softmax"), "map must have a regulariser"),
        (lambda: look_ahead(torch.zeros(2), {}, 0.1), "loss must be a tensor of one number"),
        (lambda: look_ahead(torch.zeros((), requires_grad=True), {}, 0.0), "rate must be"),
    ],
)
def test_wrong_use_raises_before_any_work(call: Any, said: str):
    with pytest.raises((TypeError, ValueError), match=said):
        call()


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float32])
def test_narrow_rewards_have_the_values_of_wide_ones(kind: torch.dtype):
    transition = torch.tensor([[[0.1, 0.9]], [[0.7, 0.3]]], dtype=torch.float64)
    solution = sm.policy.soft_value_iteration(torch.ones(2, 1, dtype=kind), transition, 0.99)
    torch.testing.assert_close(solution.value, torch.full((2,), 100.0, dtype=kind))
    backed = sm.policy.soft_bellman(torch.full((2, 1), 100.0, dtype=kind), torch.ones(2, 1, dtype=kind), transition, 0.99)
    torch.testing.assert_close(backed, torch.full((2, 1), 100.0, dtype=kind))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_state_that_is_never_reached_has_no_say(value: float):
    q = torch.tensor([[value, 0.0], [1.0, 0.0]], dtype=torch.float64)
    stays = torch.eye(2, dtype=torch.float64).unsqueeze(1).expand(2, 2, 2)
    backed = sm.policy.soft_bellman(q, torch.zeros(2, 2, dtype=torch.float64), stays, 0.9)
    assert not backed[0].isfinite().any()
    torch.testing.assert_close(backed[1], (0.9 * q[1].logsumexp(0)).expand(2))


def test_mellowmax_of_any_omega_is_within_its_values():
    for dtype in (torch.float16, torch.float32, torch.float64):
        for omega in (1e-30, 1e-8, 1.0, 1000.0, 1e30):
            q = torch.tensor([1.0, 2.0, 4.0], dtype=dtype)
            assert q.mean() * (1 - 1e-3) <= sm.policy.mellowmax(q, omega) <= q.max()
    assert sm.policy.mellowmax(torch.tensor([100.0, 99.0], dtype=torch.float16), 1000.0) == 100


def test_one_state_without_a_number_leaves_the_others_their_temperature():
    q = torch.tensor([[0.0, 1.0], [math.nan, 0.0], [math.inf, 0.0]])
    tau = sm.policy.AdaptiveTemperature(0.3)
    tau.loss(q).backward()
    found = [parameter.grad for parameter in tau.parameters()]
    tau.zero_grad()
    tau.loss(q[:1]).backward()
    for one, parameter in zip(found, tau.parameters(), strict=True):
        torch.testing.assert_close(one, parameter.grad)


def test_what_does_not_learn_stays_as_it_is():
    network = torch.nn.Linear(2, 2)
    network.bias.requires_grad_(False)
    after = sm.policy.look_ahead(network(torch.ones(2)).sum(), dict(network.named_parameters()), 0.5)
    assert after["bias"] is network.bias
    torch.testing.assert_close(after["weight"], network.weight - 0.5)
    assert sm.policy.look_ahead(network(torch.ones(2)).sum(), {}, 0.5) == {}
    with pytest.raises(TypeError, match=r"^look_ahead: parameters must be tensors by their names, got list"):
        sm.policy.look_ahead(network(torch.ones(2)).sum(), list(network.parameters()), 0.5)  # type: ignore[arg-type]


def test_what_is_illegal_is_not_read_by_an_adaptive_temperature():
    q, where = torch.tensor([[0.0, 1.0, math.nan], [1.0, 0.0, 2.0]]), torch.tensor([[True, True, False], [True] * 3])
    slopes = []
    for values in (q, q.nan_to_num(7.0)):
        tau = AdaptiveTemperature(0.3)
        tau.loss(values, where=where).backward()
        slopes.append(tau.temperature.rho.grad)
    torch.testing.assert_close(slopes[0], slopes[1], rtol=0, atol=0)
    with pytest.raises(TypeError, match=r"AdaptiveTemperature\.loss: q must be a torch\.Tensor"):
        AdaptiveTemperature(0.3).loss([1.0, 2.0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"entropy must broadcast to the states, \(2, 1\), got shape \(3,\)"):
        AdaptiveTemperature(torch.tensor([0.3, 0.4, 0.5])).loss(torch.zeros(2, 3))


def test_values_that_are_no_numbers_are_the_same_in_transforms_and_have_no_slope_where_nobody_comes():
    transition = torch.full((2, 2, 2), 0.5, dtype=torch.float64)
    q = torch.tensor([[[math.nan, 0.0], [1.0, 0.0]], [[1.0, 0.0], [math.inf, 0.0]]], dtype=torch.float64)
    backed = lambda q: soft_bellman(q, torch.zeros(2, 2, dtype=torch.float64), transition, 0.9)
    torch.testing.assert_close(torch.func.vmap(backed)(q), backed(q), equal_nan=True)
    stays = torch.eye(2, dtype=torch.float64).unsqueeze(1).repeat(1, 2, 1).requires_grad_()
    far = torch.tensor([[math.inf, 0.0], [1.0, 0.0]], dtype=torch.float64)
    soft_bellman(far, torch.zeros(2, 2, dtype=torch.float64), stays, 0.9)[1].sum().backward()
    assert torch.as_tensor(stays.grad)[1].isfinite().all()


def test_no_states_are_solved_at_once():
    assert soft_value_iteration(torch.zeros(0, 2, 3), torch.zeros(0, 2, 3, 2), 0.9).value.shape == (0, 2)


TRANSFORMED: dict[str, Any] = {
    "value": lambda q, r, p, mu: soft_value(q, 0.5, map="sparsemax"),
    "value with a prior": lambda q, r, p, mu: soft_value(q, 0.5, prior=mu),
    "mellowmax": lambda q, r, p, mu: mellowmax(q, 2.0),
    "bellman": lambda q, r, p, mu: soft_bellman(q, r, p, 0.9),
}


@pytest.mark.parametrize("kind", TRANSFORMED)
def test_all_arguments_go_through_vmap_and_a_compiler(kind: str):
    call = TRANSFORMED[kind]
    q, r, p, mu = normal(5, 3, 2), normal(5, 3, 2, seed=1), normal(5, 3, 2, 3, seed=2).softmax(-1), normal(5, 2, seed=3).exp()
    alone = torch.stack([call(*each) for each in zip(q, r, p, mu, strict=True)])
    torch.testing.assert_close(torch.vmap(call)(q, r, p, mu), alone)
    compiled: Any = torch.compile(call, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(q[0], r[0], p[0], mu[0]), alone[0])


@pytest.mark.parametrize(("kind", "unit"), [(torch.float64, 1e307), (torch.float64, -1e307), (torch.float16, 30_000.0)])
@pytest.mark.parametrize("name", ["softmax", "sparsemax"])
def test_values_that_no_number_holds_are_refused_and_never_certified(kind: torch.dtype, unit: float, name: str):
    transition = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [0.5, 0.5]]])
    reward = torch.tensor([[1.0, 0.5], [0.5, 2.0]], dtype=torch.float64).mul(unit).to(kind)
    said = r"^soft_value_iteration: reward and temperature must be so small that values stay below .* of float.* and 1 with"
    with pytest.raises(ValueError, match=said):
        soft_value_iteration(reward, transition, 0.99, map=name)
    illegal = torch.tensor([[True, True], [False, False]])
    solution = soft_value_iteration(reward.sign(), transition, 0.5, map=name, where=illegal)
    assert solution.error <= 1e-9
    assert (solution.q[1] == -math.inf).all()


def test_what_no_policy_can_have_is_refused_before_any_work():
    reward, transition = torch.ones(2, 2), torch.full((2, 2, 2), 0.5)
    refused: Any = (
        ({"map": "elastic_softmax"}, "map must give probabilities that sum to 1, got 'elastic_softmax'"),
        ({"map": "topk_softmax"}, "map must have a regulariser"),
        ({"map": sm.Sparsemax()}, "map must be the name or the function of a map"),
        ({"prior": torch.ones(2)}, "a Policy has no prior; leave it out, or iterate soft_bellman"),
        ({"map": "entmax", "alpa": 1.5}, "unknown argument 'alpa'; did you mean 'alpha'"),
        ({"map": "entmax", "alpha": -1.0}, "alpha must be positive"),
        ({"map": "nosuch"}, "unknown map 'nosuch'"),
        *(({"temperature": tau}, "temperature must be positive and finite") for tau in (0.0, math.nan, torch.tensor([1.0, -1.0]))),
    )
    for options, said in refused:
        with pytest.raises((TypeError, ValueError), match=rf"^soft_value_iteration: {said}"):
            soft_value_iteration(reward, transition, 1 - 1e-12, max_iterations=10**9, **options)


VALUED = [name for name, map in REGISTRY.items() if map.regulariser is not None and map.properties.of_one_class]


@pytest.mark.parametrize("name", VALUED)
def test_values_of_no_actions_and_of_no_states_have_their_shape(name: str):
    for shape, dim, expected in (((3, 0), -1, (3,)), ((0,), -1, ()), ((0, 3), -1, (0,)), ((0, 3), 0, (3,)), ((2, 1), -1, (2,))):
        assert soft_value(torch.zeros(shape), map=name, dim=dim).shape == expected
    assert soft_bellman(torch.zeros(3, 0), torch.zeros(3, 0), torch.zeros(3, 0, 3), 0.9, map=name).shape == (3, 0)


@pytest.mark.parametrize("name", [name for name in VALUED if name != "normmax"])  # which has no entropy above 0
def test_a_state_without_a_legal_action_has_no_say_in_a_temperature(name: str):
    q = normal(4, 3)
    own, beside = (AdaptiveTemperature(0.2, map=name) for _ in range(2))
    own.loss(q[:2]).backward()
    q[2] = -math.inf
    beside.loss(q, where=torch.tensor([[True], [True], [True], [False]])).backward()
    slopes = [next(each.parameters()).grad for each in (own, beside)]
    torch.testing.assert_close(slopes[0], slopes[1])
