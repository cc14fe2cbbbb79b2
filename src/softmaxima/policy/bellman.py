r"""Soft Bellman operators of finite decision processes, and value iteration.

    (T q)(s, a) = r(s, a) + γ Σ_t P(t|s, a) V(q(t, ·))        V = max_p ⟨p, q⟩ − τ Ω(p)

As |V(q) − V(q′)| ≤ ‖q − q′‖∞, T is a contraction, ‖T q − T q′‖∞ ≤ γ ‖q − q′‖∞, and of q_{k+1} = T q_k

    ‖q_k − q*‖∞ ≤ γ/(1 − γ) ‖q_k − q_{k−1}‖∞.
"""

from __future__ import annotations

import functools
import math
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.arguments import Array, as_scores, broadcasts, check_tensor, check_value, check_where, like_input
from softmaxima.base.numbers import TEMPERATURE, check_count, check_number, check_positive
from softmaxima.base.public import public
from softmaxima.base.tracing import is_concrete
from softmaxima.engine.contract import AnyMap
from softmaxima.policy.boltzmann import Policy, as_policy_map
from softmaxima.policy.value import find_valued, value_of


@dataclass(frozen=True)
class SoftSolution:
    """The fixed point of a soft Bellman operator: q, its values and its policy, by so many iterations, within `error`.

    >>> import torch, softmaxima as sm
    >>> solution = sm.policy.soft_value_iteration(torch.tensor([[1.0, 0.0]]), torch.ones(1, 2, 1), 0.5)
    >>> solution.policy.probs, solution.value
    (tensor([[0.7311, 0.2689]]), tensor([2.6265]))
    """

    q: Tensor  # [..., states, actions], −∞ where illegal
    value: Tensor  # [..., states], 0 where no action is legal
    policy: Policy
    iterations: int
    error: float  # a bound of ‖q − q*‖∞, roundings aside


@public
def soft_bellman(
    q: Array,
    reward: Array,
    transition: Array,
    discount: float,
    temperature: float | Array = 1.0,
    *,
    map: AnyMap = "softmax",
    where: Array | None = None,
    prior: Array | None = None,
    **params: Any,
) -> Array:
    """The soft Bellman operator, (T q)(s, a) = r(s, a) + γ Σ_t P(t|s, a) V(q(t, ·)), a contraction by γ in ‖·‖∞.

    Args:
        q: values [..., states, actions].
        reward: r, which broadcasts to q.
        transition: P [..., states, actions, states] ≥ 0, whose sums over the last axis are at most 1; what they lack of 1 ends the
            episode; sums above 1 by a rounding, up to 1e-5, are divided out.
        discount: γ, from 0 to 1, without 1.
        temperature, map, where, prior, params: as for `soft_value`, of which V is made. A state without a legal action
            is an end, of value 0.

    Returns:
        T q with the shape, dtype and array kind of q, −∞ where an action is illegal; with gradients.

    Raises:
        TypeError or ValueError, before any work, for anything else.

    Cost: that of `soft_value` and of a product with P. Source: Geist, Scherrer & Pietquin (2019), arXiv:1901.11275.

    >>> import numpy as np, softmaxima as sm
    >>> P = np.array([[[0.0, 1.0], [1.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]])  # to the second state, where it ends; or to the first
    >>> sm.policy.soft_bellman(np.zeros((2, 2)), np.array([[1.0, 0.0], [2.0, 2.0]]), P, 0.9, map="sparsemax")
    array([[1.225, 0.225],
           [2.   , 2.   ]])
    """
    name = "soft_bellman"
    scores = as_scores(name, q, "q")
    r, p, gamma = _process(name, scores, reward, transition, discount)
    mask = check_where(name, where, scores)
    value: Any = value_of(name, scores.double(), temperature, map, params, where=mask, prior=prior)
    return like_input(_backed_up(value, r, p, gamma, mask).to(scores.dtype), q)


@public
def soft_value_iteration(
    reward: Tensor,
    transition: Tensor,
    discount: float,
    temperature: float | Tensor = 1.0,
    *,
    map: AnyMap = "softmax",
    where: Tensor | None = None,
    tolerance: float = 1e-9,
    max_iterations: int = 100_000,
    **params: Any,
) -> SoftSolution:
    """The fixed point of `soft_bellman` by value iteration from 0: the best policy with the regulariser τΩ.

    Args:
        reward, transition: r [..., states, actions] and P [..., states, actions, states], tensors.
        discount, temperature, map, where, params: as for `soft_bellman`; of maps with a sum of 1, and no prior.
        tolerance: the bound of ‖q − q*‖∞ at which it ends, in units of the reward.
        max_iterations: after which it ends in any case, with a RuntimeWarning; `error` says how far it came.

    Raises TypeError or ValueError, before any work, for anything else; ValueError, in the end, for values that the dtype of the
    reward does not hold. Computed in float64, without gradients. Cost: log(tolerance)/log(γ) times that of
    `soft_bellman`. Source: as of `soft_bellman`.

    >>> import torch, softmaxima as sm
    >>> reward, transition = torch.tensor([[1.0, 0.9], [0.0, 0.0]]), torch.eye(2).expand(2, 2, 2)
    >>> solution = sm.policy.soft_value_iteration(reward, transition, 0.5, 0.01, map="sparsemax")
    >>> solution.policy.probs, solution.iterations
    (tensor([[1., 0.],
            [1., 0.]]), 31)
    """
    name = "soft_value_iteration"
    scores = as_scores(name, check_tensor(name, "reward", reward), "reward")
    r, p, gamma = _process(name, scores, reward, transition, discount)
    mask = check_where(name, where, scores)
    as_policy_map(name, find_valued(name, map), temperature, {})
    if "prior" in params:
        raise TypeError(f"{name}: a Policy has no prior; leave it out, or iterate soft_bellman(…, prior=μ)")
    tolerance = check_positive(name, "tolerance", tolerance)
    limit = check_count(name, "max_iterations", max_iterations)
    r, p = r.detach(), p.detach()
    q, error, done = torch.zeros_like(r), math.inf, 0
    if mask is not None:
        q = q.masked_fill(~mask, -math.inf)
    with torch.no_grad():
        worth = functools.partial(value_of, name, temperature=temperature, map=map, params=params, where=mask)
        value: Any = worth(q)
        while error > tolerance and done < limit:
            following = _backed_up(value, r, p, gamma, mask)
            moved = torch.where(following == q, 0.0, following - q).abs()
            farthest = float(moved.max()) if moved.numel() else 0.0
            error = gamma / (1 - gamma) * farthest
            q, done = following, done + 1
            value = worth(q)
            if not math.isfinite(farthest):
                break
        narrow, final = value.masked_fill(value == -math.inf, 0.0).to(scores.dtype), q.to(scores.dtype)
        legal = final if mask is None else final.masked_fill(~mask, 0.0)
        if not bool(legal.isfinite().all() & narrow.isfinite().all()):
            largest, dtype = torch.finfo(scores.dtype).max, str(scores.dtype).removeprefix("torch.")
            hottest = float(torch.as_tensor(check_value(name, "temperature", temperature, *TEMPERATURE), dtype=torch.float64).max())
            raise ValueError(
                f"{name}: reward and temperature must be so small that values stay below {largest:.3g}, the largest of {dtype}, "
                f"got up to {float(r.abs().max()):.3g} and {hottest:.3g} with discount {gamma:g}; divide both by the same number"
            )
        if error > tolerance:
            said = f"the error is below {error:.3g} after {done} iterations, and not {tolerance:.3g}; raise max_iterations"
            warnings.warn(f"{name}: {said}", RuntimeWarning, stacklevel=2)
    return SoftSolution(final, narrow, Policy(final, map, temperature=temperature, where=mask, **params), done, error)


def _backed_up(value: Tensor, reward: Tensor, transition: Tensor, gamma: float, mask: Tensor | None) -> Tensor:
    """r + γ P V, V being 0 where nothing is legal; what a state never comes to has no say, be it NaN or ∞."""
    ended = value.masked_fill(value == -math.inf, 0.0)
    finite = ended.isfinite()
    following = torch.einsum("...sat,...t->...sa", transition, ended.masked_fill(~finite, 0.0))
    if not (is_concrete(finite) and bool(finite.all())):
        others = ended.masked_fill(finite, 0.0)[..., None, None, :]
        following = following + (transition * torch.where(transition > 0, others, 0.0)).sum(-1)  # no slope is 0 · ∞
    following = reward + gamma * following
    return following if mask is None else following.masked_fill(~mask, -math.inf)


def _process(name: str, q: Tensor, reward: Any, transition: Any, discount: Any) -> tuple[Tensor, Tensor, float]:
    """(r of q's shape, P, γ), checked."""
    if q.ndim < 2:
        raise ValueError(
            f"{name}: values must be [..., states, actions], got shape {tuple(q.shape)}; call unsqueeze(0) for one state"
        )
    r, p = as_scores(name, reward, "reward"), as_scores(name, transition, "transition")
    *_, states, actions = q.shape
    if p.shape[-3:] != (states, actions, states) or not broadcasts(total := p.detach().double().sum(-1), tuple(q.shape)):
        wanted = (*q.shape[:-2], states, actions, states)
        raise ValueError(f"{name}: transition must be [..., states, actions, states], {wanted}, got {tuple(p.shape)}")
    if not broadcasts(r, tuple(q.shape)):
        raise ValueError(f"{name}: reward must broadcast to [..., states, actions], {tuple(q.shape)}, got {tuple(r.shape)}")
    if is_concrete(r) and not bool(r.detach().isfinite().all()):
        raise ValueError(f"{name}: reward must be finite; leave illegal actions out by where=")
    negative = ~(p.detach() >= 0)  # or NaN
    if is_concrete(p) and bool(negative.any() | (total > 1 + 1e-5).any()):
        got = float(p.detach()[negative][0]) if bool(negative.any()) else float(total.max())
        raise ValueError(
            f"{name}: transition must be probabilities, at least 0 and of sums at most 1 over the last axis, got {got}"
        )
    gamma = check_number(name, "discount", discount, lambda gamma: 0 <= gamma < 1, "at least 0 and below 1")
    return r.double().broadcast_to(q.shape), p.double() / total.clamp(min=1.0).unsqueeze(-1), gamma
