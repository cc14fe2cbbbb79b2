"""Policies over every map: log π, entropy, divergence and draws against their definitions, on hard rows, with gradients."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch.distributions import Categorical, kl_divergence

import softmaxima as sm
from conftest import Case, normal, rows
from softmaxima.maps import REGISTRY
from softmaxima.policy import Policy

TAKEN = [name for name, map in REGISTRY.items() if map.properties.mass in ("one", "zero or one") and not map.properties.logarithmic]
HARD = torch.tensor(
    [
        [1.0, 0.0, -1.0, 2.0],
        [0.0, 0.0, 0.0, 0.0],  # ties
        [-math.inf, 1.0, -math.inf, 1.5],
        [-math.inf, -math.inf, 3.0, -math.inf],  # one action
        [1e5, -1e5, 0.0, 1e5 - 1],
        [1e6, 1e6 + 1e-3, 1e6 - 1, 1e6 + 1],
        [-1e-3, 0.0, 1e-3, 0.0],
    ],
    dtype=torch.float64,
)


def definition(p: Tensor) -> Tensor:
    """−Σ p log p, number by number."""
    return torch.tensor([-math.fsum(v * math.log(v) for v in row if v > 0) for row in p.reshape(-1, p.shape[-1]).tolist()])


def divergence(p: Tensor, q: Tensor) -> float:
    """Σ p log(p/q), number by number."""
    return math.fsum(a * (math.log(a) - math.log(b)) if b else math.inf for a, b in zip(p.tolist(), q.tolist(), strict=True) if a)


@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize("tau", [1.0, 0.3, 20.0])
def test_a_policy_is_its_map(name: str, tau: float):
    policy = Policy(HARD, name, temperature=tau)
    p = REGISTRY[name](HARD, temperature=tau)
    torch.testing.assert_close(policy.probs, p, atol=1e-14, rtol=0)
    zero = p == 0
    log_p = policy.logits
    if name != "softmax":
        assert torch.equal(log_p == -math.inf, zero)
    torch.testing.assert_close(log_p.exp(), p, atol=1e-14, rtol=1e-9)
    torch.testing.assert_close(policy.entropy().float(), definition(p).float(), atol=1e-6, rtol=1e-6)
    for action in range(4):
        assert torch.equal(policy.log_prob(torch.full((7,), action)), log_p[:, action])
    assert torch.equal(policy.log_prob(policy.enumerate_support()), log_p.T)
    masked = Policy(HARD.nan_to_num(neginf=5.0), name, temperature=tau, where=-math.inf < HARD)
    torch.testing.assert_close(masked.probs, p, atol=1e-14, rtol=0)


@given(rows())
def test_log_prob_of_softmax_is_exact_where_no_dtype_has_the_probability(x: Tensor):
    policy = Policy(100 * x)
    expected = 100 * x - torch.logsumexp(100 * x, -1, keepdim=True)
    torch.testing.assert_close(policy.logits, expected, rtol=1e-13, atol=1e-11)
    narrow = Policy((100 * x).float()).log_prob(torch.zeros(len(x)))
    torch.testing.assert_close(narrow, expected[:, 0].float(), rtol=1e-5, atol=1e-4)


@given(rows(masks=False))
def test_divergences_are_those_of_the_definition_and_of_categorical(x: Tensor):
    y = x.flip(0) + 0.5 * torch.sin(x)
    for name in ("softmax", "entmax15", "sparsemax"):
        p, q = Policy(x / 10, name), Policy(y / 10, name)
        found = kl_divergence(p, q)
        expected = torch.tensor([divergence(a, b) for a, b in zip(p.probs, q.probs, strict=True)], dtype=torch.float64)
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-9)
        assert (found >= 0).all()
    p, q = x / 10, y / 10
    torch.testing.assert_close(
        kl_divergence(Policy(p), Policy(q)), kl_divergence(Categorical(logits=p), Categorical(logits=q)), atol=1e-12, rtol=1e-9
    )
    torch.testing.assert_close(kl_divergence(Policy(p), Categorical(logits=q)), kl_divergence(Policy(p), Policy(q)))
    torch.testing.assert_close(kl_divergence(Categorical(probs=p.softmax(-1)), Policy(q)), kl_divergence(Policy(p), Policy(q)))


def test_a_divergence_of_near_policies_keeps_its_digits():
    x = normal(5, 6)
    step = 1e-9 * normal(5, 6, seed=1)
    p = x.softmax(-1)
    expected = 0.5 * (p * (step - (p * step).sum(-1, keepdim=True)).square()).sum(-1)  # to second order
    found = kl_divergence(Policy(x), Policy(x + step))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
    assert (kl_divergence(Policy(x), Policy(x)) == 0).all()


def test_a_policy_that_lacks_an_action_is_infinitely_far_with_finite_gradients():
    x = torch.tensor([[2.0, 1.8, -3.0], [0.2, 0.1, 0.0]], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([[3.0, 0.0, 0.0], [0.0, 0.1, 0.0]], dtype=torch.float64, requires_grad=True)
    found = kl_divergence(Policy(x, "sparsemax"), Policy(y, "sparsemax"))
    assert found[0] == math.inf
    assert 0 < found[1] < math.inf
    found[1].backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert (x.grad[0] == 0).all()
    assert y.grad is not None
    assert y.grad.isfinite().all()
    assert y.grad[1].any()
    to_softmax = kl_divergence(Policy(x.detach(), "sparsemax"), Policy(y.detach()))
    assert to_softmax.isfinite().all()
    assert kl_divergence(Policy(y.detach()), Policy(x.detach(), "sparsemax"))[0] == math.inf
    tiny = Policy(torch.tensor([[0.0, -2000.0]], dtype=torch.float64))  # e⁻²⁰⁰⁰ is no number, and yet no zero
    assert kl_divergence(tiny, Policy(torch.zeros(1, 2, dtype=torch.float64))).item() == pytest.approx(math.log(2))
    assert kl_divergence(Policy(torch.zeros(1, 2, dtype=torch.float64)), tiny).item() == pytest.approx(1000 - math.log(2))


@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax15", "topk_softmax", "taylor_softmax", "normmax"])
def test_gradients_of_log_prob_entropy_and_divergence(name: str):
    params: dict[str, Any] = {"k": 2} if name == "topk_softmax" else {}
    x, y = normal(3, 4, scale=0.4).requires_grad_(), normal(3, 4, seed=1, scale=0.4).requires_grad_()
    tau = torch.tensor([[0.7], [1.0], [2.0]], dtype=torch.float64, requires_grad=True)
    action = Policy(x.detach(), name, temperature=tau.detach(), **params).mode

    def values(x: Tensor, y: Tensor, tau: Tensor) -> tuple[Tensor, ...]:
        p = Policy(x, name, temperature=tau, validate_args=False, **params)
        soft = Policy(y, temperature=tau, validate_args=False)
        return p.log_prob(action), p.entropy(), kl_divergence(p, soft)

    assert torch.autograd.gradcheck(values, (x, y, tau))
    if name in ("softmax", "sparsemax"):
        assert torch.autograd.gradgradcheck(values, (x, y, tau))


@pytest.mark.parametrize("name", TAKEN)
def test_gradients_are_finite_at_zeros_and_masks(name: str):
    x = HARD[[0, 2, 3]].clone().requires_grad_()
    policy = Policy(5 * x, name)
    policy.entropy().sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert (x.grad[HARD[[0, 2, 3]] == -math.inf] == 0).all()
    x.grad = None
    log_p = Policy(5 * x, name).log_prob(torch.tensor([2, 0, 0]))
    possible = log_p > -math.inf
    log_p.where(possible, 0.0).sum().backward()
    assert torch.as_tensor(x.grad).isfinite().all()
    x.grad = None
    Policy(5 * x, name).log_prob(torch.tensor([0, 0, 0]))[1:].sum().backward()  # −∞
    assert not torch.as_tensor(x.grad).any()


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.float16])
def test_log_prob_has_finite_slopes_however_small_the_probability(case: Case, kind: torch.dtype):
    """From e⁻¹ to less than 5e−324, in rows of two and of six, first slopes and second ones."""
    if case.map.name not in TAKEN:
        pytest.skip("no policy")
    gaps = torch.cat([torch.linspace(1, 50, 99), torch.linspace(51, 760, 89)]).to(kind)
    for n in (2, 6):
        x = torch.zeros(len(gaps), n, dtype=kind)
        x[:, 1] = -gaps
        x.requires_grad_()
        log_p = Policy(x, case.map, **case.params).log_prob(torch.tensor(1))
        (slope,) = torch.autograd.grad(log_p.sum(), x, create_graph=True)
        assert slope.isfinite().all()
        assert (slope[log_p == -math.inf] == 0).all()
        if case.map.properties.shift_invariant:
            assert (slope.sum(-1).abs() <= 1e-2 * slope.abs().sum(-1)).all()
        (second,) = torch.autograd.grad(slope.square().sum(), x, allow_unused=True)
        assert second is None or second.isfinite().all()


def test_dtypes_and_batch_shapes(dtype: torch.dtype):
    x = normal(2, 3, 4).to(dtype)
    policy = Policy(x, "entmax", alpha=1.3, temperature=torch.tensor([[[0.5]], [[2.0]]]))
    wide = Policy(x.double(), "entmax", alpha=1.3, temperature=torch.tensor([[[0.5]], [[2.0]]]))
    assert policy.batch_shape == (2, 3)
    assert policy.event_shape == ()
    for found, exact in ((policy.probs, wide.probs), (policy.entropy(), wide.entropy())):
        assert found.dtype == dtype
        assert torch.equal(found, exact.to(dtype))
    drawn = policy.sample((5,), generator=0)
    assert drawn.shape == (5, 2, 3)
    assert policy.log_prob(drawn).shape == (5, 2, 3)
    assert policy.sample().shape == (2, 3)
    assert policy.sample((0, 2)).shape == (0, 2, 2, 3)
    expanded = policy.expand((7, 2, 3))
    assert expanded.batch_shape == (7, 2, 3)
    assert torch.equal(expanded.entropy()[4], policy.entropy())
    assert expanded.sample(generator=1).shape == (7, 2, 3)
    assert Policy(x[0, 0]).sample(generator=0).shape == ()
    assert torch.equal(policy.mode, policy.probs.argmax(-1))
    assert policy.mean.isnan().all()


@pytest.mark.parametrize("name", TAKEN)
def test_draws_have_the_probabilities_and_never_what_is_impossible(name: str):
    x = torch.tensor([[1.0, 0.3, -0.2, -math.inf], [0.5, 0.5, -4.0, 0.5], [2.0, 1.0, 1.9, 1.5]])
    policy = Policy(x, name, where=torch.tensor([True, True, True, False]))
    count = 20_000
    drawn = policy.sample((count,), generator=3)
    assert torch.equal(drawn, policy.sample((count,), generator=3))
    for row, p in enumerate(policy.probs):
        found = drawn[:, row].bincount(minlength=4) / count
        assert (found[p == 0] == 0).all()
        assert ((found - p).abs() <= 5 * (p * (1 - p) / count).sqrt() + 1e-9).all()
    torch.manual_seed(0)
    first = policy.sample((10,))
    torch.manual_seed(0)
    assert torch.equal(first, policy.sample((10,)))


def test_a_state_without_a_legal_action_is_named():
    x = torch.zeros(2, 3, 4)
    x[1, 2] = -math.inf
    policy = Policy(x)
    assert (policy.probs[1, 2] == 0).all()
    assert policy.entropy()[1, 2] == 0
    assert policy.log_prob(torch.zeros(2, 3))[1, 2] == -math.inf
    assert kl_divergence(policy, Policy(torch.zeros(2, 3, 4)))[1, 2] == 0
    for method in (policy.sample, lambda: policy.mode):
        with pytest.raises(
            ValueError, match=r"Policy\.(sample|mode): state \(1, 2\) has no action with a probability above 0; allow one by where="
        ):
            method()
    with pytest.raises(ValueError, match=r"Policy\.sample: the state has probabilities that are NaN"):
        Policy(torch.tensor([math.nan, 1.0]), validate_args=False).sample()
    assert Policy(torch.tensor([[math.nan, 1.0], [0.0, 0.0]]), validate_args=False).entropy().isnan().tolist() == [True, False]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (lambda: Policy(torch.zeros(3), "log_softmax"), "which gives their logarithms"),
        (lambda: Policy(torch.zeros(3), "elastic_softmax"), "map must give probabilities that sum to 1, got 'elastic_softmax'"),
        (lambda: Policy(torch.zeros(3), "budget_sparsemax"), "whose mass may be another"),
        (lambda: Policy(torch.zeros(3), "nonsense"), "unknown map 'nonsense'"),
        (lambda: Policy(torch.zeros(3), alpha=2.0), "unknown argument 'alpha'"),
        (lambda: Policy([0.0, 1.0]), "scores must be a torch.Tensor, got list"),
        (lambda: Policy(torch.tensor(1.0)), "an axis of actions"),
        (lambda: Policy(torch.zeros(3), temperature=0.0), "temperature must be positive"),
        (lambda: Policy(torch.zeros(2, 3), temperature=torch.ones(2)), "reshape"),
        (lambda: Policy(torch.zeros(3), where=torch.ones(3)), "where must be boolean"),
        (lambda: Policy(torch.zeros(3), sm.Sparsemax(), temperature=2.0), "a module has its own temperature"),
        (lambda: Policy(torch.tensor([0.0, math.nan]), validate_args=True), "scores"),
        (lambda: Policy(torch.zeros(3), validate_args=True).log_prob(torch.tensor(3)), "support"),
        (lambda: kl_divergence(Policy(torch.zeros(3)), Policy(torch.zeros(4))), "the same actions, got 3 and 4"),
        (lambda: Policy(torch.zeros(3)).sample(generator=-1), "generator"),
        (lambda: Policy(torch.zeros(2, 2), sm.Softmax(dim=0)), "actions are along the last axis, got a module of dim=0"),
    ],
)
def test_wrong_use_raises(arguments: Any, said: str):
    with pytest.raises((TypeError, ValueError), match=said):
        arguments()


def test_modules_and_learnt_temperatures_learn_through_a_policy():
    alpha, tau = sm.Positive(1.5, 1.0, 2.0, "sigmoid"), sm.Temperature(0.8)
    x = normal(4, 3, scale=0.5).requires_grad_()
    policy = Policy(x, sm.Entmax(alpha=alpha, temperature=tau))
    policy.entropy().sum().backward()
    assert alpha.rho.grad is not None
    assert alpha.rho.grad != 0
    assert tau.rho.grad is not None
    assert tau.rho.grad != 0
    torch.testing.assert_close(policy.probs, sm.entmax(x, alpha=alpha(), temperature=tau()))
    state = sm.StateTemperature(torch.nn.Linear(2, 1), 0.1, 10.0, "sigmoid")
    assert Policy(torch.zeros(5, 3), temperature=state(torch.ones(5, 2))).probs.shape == (5, 3)
    wanted = Policy(x.detach(), temperature=sm.entropy_temperature(x.detach(), 0.9)).entropy()
    torch.testing.assert_close(wanted, torch.full_like(wanted, 0.9))


def test_the_score_function_has_mean_zero_and_the_slope_of_the_expected_reward(case: Case):
    """Σ_a π_a ∂log π_a = 0 of what has mass 1, and Σ_a π_a r_a ∂log π_a = ∂Σ π r, of every map and parameter."""
    if case.map.name not in TAKEN:
        pytest.skip("no policy")
    x, r = normal(5, scale=0.3).requires_grad_(), normal(5, seed=1)
    policy = Policy(x, case.map, **case.params)
    p, log_p = policy.probs, policy.logits
    estimate = (p.detach() * r * torch.where(p > 0, log_p, 0.0)).sum()
    (found,) = torch.autograd.grad(estimate, x, retain_graph=True)
    (expected,) = torch.autograd.grad((p * r).sum(), x)
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-7)


@pytest.mark.parametrize("name", ["softmax", "sparsemax"])
def test_transforms_see_through_a_policy(name: str):
    x = normal(4, 3)
    entropy = lambda x: Policy(x, name, validate_args=False).entropy()
    torch.testing.assert_close(torch.func.vmap(entropy)(x), entropy(x))
    leaf = x.clone().requires_grad_()
    entropy(leaf).sum().backward()
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(entropy))(x), leaf.grad)
    for row in (x[0], torch.tensor([0.0, -0.5, -1e3], dtype=torch.float64)):
        log_p = lambda x: Policy(x, name, validate_args=False).log_prob(torch.tensor(0))
        torch.testing.assert_close(torch.func.hessian(log_p)(row), torch.autograd.functional.hessian(log_p, row))
        torch.testing.assert_close(torch.func.vmap(torch.func.grad(log_p))(row[None])[0], torch.func.grad(log_p)(row))


def test_a_divergence_to_logits_is_of_logits_whoever_has_asked_for_probabilities():
    for policy in (Policy(torch.zeros(2, dtype=torch.float64)), Policy(torch.zeros(2))):
        far = Categorical(logits=torch.tensor([0.0, -200.0], dtype=torch.float64))
        before = kl_divergence(policy, far)
        far.sample()
        assert kl_divergence(policy, far) == before
        assert before.item() == pytest.approx(100 - math.log(2), rel=1e-12)
        assert before.dtype == torch.float64


@pytest.mark.parametrize("kind", ["probs", "logits"])
def test_a_divergence_is_of_what_a_categorical_was_made_of_whatever_has_been_read_or_expanded(kind: str):
    made = {"probs": torch.tensor([1.0, 0.0, 0.0]), "logits": torch.tensor([0.0, -200.0, -math.inf])}[kind]
    policies = Policy(torch.tensor([0.0, -1.0, -math.inf])), Policy(torch.zeros(3))
    for first, second in (("probs", "logits"), ("logits", "probs")):
        given = Categorical(**{kind: made}, validate_args=False)
        before = [(kl_divergence(p, given), kl_divergence(given, p)) for p in policies]
        assert before[1][0] == math.inf
        assert before[0][0].isfinite() == (kind == "logits")
        for reads in ((), (first,), (first, second)):
            given = Categorical(**{kind: made}, validate_args=False)
            for read in reads:
                getattr(given, read)
            for other in (given.expand((2,)), given.expand((2,)).expand((3, 2)), given):
                for p, (to, of) in zip(policies, before, strict=True):
                    p = p.expand(other.batch_shape)
                    torch.testing.assert_close(kl_divergence(p, other), to.expand(other.batch_shape))
                    torch.testing.assert_close(kl_divergence(other, p), of.expand(other.batch_shape))


def test_shapes_of_draws_are_checked_and_no_states_have_none():
    policy = Policy(torch.zeros(2, 3))
    for shape in ((-1,), (2, -1), (1.5,), 3, "3"):
        with pytest.raises((TypeError, ValueError), match=r"^Policy\.sample: .*sample_shape must be"):
            policy.sample(shape)
    for generator in (-1, "a", 1.5, True, 2**70):
        with pytest.raises((TypeError, ValueError), match=r"^Policy\.sample: generator must be"):
            policy.sample(generator=generator)
    empty = Policy(torch.zeros(0, 3))
    assert empty.sample((4,)).shape == (4, 0)
    assert empty.mode.shape == empty.entropy().shape == Policy(torch.zeros(0, 0)).mode.shape == (0,)


def test_a_state_to_which_a_map_gives_nothing_is_told_as_that():
    with pytest.raises(ValueError, match=r"the state has no action with a probability above 0; .*raise the score of one"):
        Policy(torch.tensor([-5.0, -6.0]), "rectified_softmax").sample()
