r"""Temperatures that are learnt with a policy: one that holds an entropy, and what a step of learning makes of τ.

Of a map with regulariser Ω the dual of "the mean of −Ω(π) is at least h" is, for each state,

    D(τ) = τ Ω*(q/τ) − τ h        ∂D/∂τ = −Ω(π) − h        convex in τ

whose descent raises τ where π is less random than h, and lowers it where it is more. −Ω is Shannon's entropy for softmax, and
Tsallis' for sparsemax and entmax: ½(1 − Σπ²) and (1 − Σπ^α)/(α(α − 1)).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from softmaxima.base.arguments import as_scores, broadcasts, check_value, check_where
from softmaxima.base.numbers import check_one_temperature, check_positive
from softmaxima.base.public import public
from softmaxima.base.tracing import is_concrete, sizes
from softmaxima.engine.contract import AnyMap, find_map
from softmaxima.policy.value import value_of
from softmaxima.sampling.rows import as_rows, map_params
from softmaxima.temperature import Positive, Temperature

ENTROPY = (lambda h: (h > 0) & (h < math.inf)), "positive and finite"


@public
class AdaptiveTemperature(nn.Module):
    """A temperature that is learnt so that a policy of any map keeps its entropy: SAC's, for −Ω of the map.

    Args:
        entropy: h > 0, of −Ω(π), in nats for softmax; below that of the uniform policy, for τ would grow without end. A number,
            or a tensor that broadcasts to [..., 1].
        temperature: τ at first, a number, or a `Positive` that is learnt, of one number or of a shape that broadcasts to [..., 1]
            for a τ of each task or learner.
        map, params: a map with a regulariser, and its parameters.

    `module()` is τ, which policies and maps take as `temperature=`. Minimise `loss(q)` beside whatever else is learnt; its gradient
    is by τ alone. Of softmax and one τ it is `sm.EntropyTarget`, which can also set τ to what a batch needs; the exact τ of each
    state is `sm.entropy_temperature`.

    Raises TypeError or ValueError for anything else; `loss` also for an h that is not below what the legal actions allow, −Ω of the
    policy that is uniform over them, on average over the states of one τ. That is not seen where values cannot be read first: in a
    compiled function, under `torch.func` and on a GPU. Cost: of `loss` that of `soft_value`, and Ω of the uniform policies. Source:
    Haarnoja et al. (2018), arXiv:1812.05905, for softmax.

    >>> import torch, softmaxima as sm
    >>> q = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    >>> tau = sm.policy.AdaptiveTemperature(0.25, map="sparsemax")
    >>> optimiser = torch.optim.Adam(tau.parameters(), 0.05)
    >>> for _ in range(200):
    ...     optimiser.zero_grad(); tau.loss(q).backward(); optimiser.step()
    >>> p = sm.sparsemax(q, temperature=tau()).detach()
    >>> round(float((1 - p.square().sum(-1)).mean() / 2), 3)
    0.25
    """

    entropy: Tensor

    def __init__(
        self, entropy: float | Tensor, temperature: float | Positive = 1.0, map: AnyMap = "softmax", **params: Any
    ) -> None:
        super().__init__()
        name = type(self).__name__
        self.register_buffer("entropy", torch.as_tensor(check_value(name, "entropy", entropy, *ENTROPY)))
        self.temperature = (
            temperature if isinstance(temperature, Positive) else Temperature(check_one_temperature(name, temperature))
        )
        self.map, self.params = map, params
        value_of(name, torch.zeros(1), 1.0, map, params)  # refuses what it cannot take at once
        if (most := self._most(torch.ones(2, dtype=torch.bool))) is not None and not bool((most > 0).all()):
            got = f"{find_map(map, name).name!r}, whose −Ω of two equal actions is {float(most.min()):.3g}"
            raise ValueError(f"{name}: map must have an entropy −Ω above 0, got {got}; take softmax, sparsemax or entmax")

    def forward(self) -> Tensor:
        return self.temperature()

    def loss(self, q: Tensor, *, where: Tensor | None = None) -> Tensor:
        """The mean of D(τ) over states with a legal action, of values q [..., n]; states of NaN or +∞ are left out."""
        name, tau = f"{type(self).__name__}.loss", self.temperature()
        q = as_scores(name, q, "q").detach()
        mask = check_where(name, where, q)
        q = q if mask is None else q.masked_fill(~mask, -math.inf)
        known = ((q == q) & (q < math.inf)).all(-1, keepdim=True)  # a state of NaN or +∞ has no entropy to hold
        shape = (*sizes(q)[:-1], 1)
        if not broadcasts(self.entropy, shape):
            raise ValueError(f"{name}: entropy must broadcast to the states, {shape}, got shape {sizes(self.entropy)}")
        value: Any = value_of(name, q.masked_fill(~known, 0.0), tau, self.map, self.params)
        each = value - (tau * self.entropy).broadcast_to(*value.shape, 1).squeeze(-1)
        allowed = known & (q > -math.inf)
        legal = allowed.any(-1)
        if is_concrete(q):
            self._check_reachable(name, allowed, legal.unsqueeze(-1), tau.detach())
        return torch.where(legal, each, 0.0).sum() / legal.sum().clamp_min(1)

    def _check_reachable(self, name: str, allowed: Tensor, counts: Tensor, tau: Tensor) -> None:
        """Of the states [..., 1] that count and share a τ, h must be below −Ω of the policies that are uniform over `allowed`."""
        if (most := self._most(allowed)) is None:
            return
        sums = [torch.where(counts, of.double(), 0.0).sum_to_size(tau.shape) for of in (self.entropy, most, torch.ones_like(most))]
        h, most, states = (each.flatten() for each in sums)
        if bool((wrong := (states > 0) & (h >= most)).any()):
            got, limit = (float(of[wrong][0] / states[wrong][0]) for of in (h, most))
            raise ValueError(
                f"{name}: entropy must be below what the legal actions allow, {limit:.6g} in the mean over states, got {got:.6g}; "
                "give a smaller one"
            )

    def _most(self, allowed: Tensor) -> Tensor | None:
        """−Ω [..., 1] of the policies that are uniform over `allowed`, the most that there is; None where it is not."""
        name = type(self).__name__
        found = find_map(self.map, name)
        if found.regulariser is None or found.properties.mass != "one":  # what is left for no action has an entropy too
            return None
        uniform = allowed.double() / allowed.sum(-1, keepdim=True).clamp_min(1)
        params = map_params(name, found, self.params, as_rows(name, uniform, -1, 1.0, None, None))
        return -found.regulariser(uniform, **params).detach().unsqueeze(-1)

    def extra_repr(self) -> str:
        h = self.entropy
        return f"entropy={f'{h.item():.6g}' if h.numel() == 1 else tuple(h.shape)}, map={self.map}"


@public
def look_ahead(loss: Tensor, parameters: Mapping[str, Tensor], rate: float) -> dict[str, Tensor]:
    """Parameters after one step of gradient descent, θ′ = θ − η ∂L/∂θ, which keeps how they depend on all that L depends on.

    What a loss makes of θ′ has then a gradient by a temperature that L was computed with, dL′(θ′)/dτ = −η ⟨∇L′(θ′), ∂²L/∂θ∂τ⟩:
    the temperature is meta-learnt.

    Args:
        loss: L, a tensor of one number.
        parameters: θ by their names, `dict(network.named_parameters())`; those that L does not depend on stay as they are.
        rate: η > 0.

    Returns θ′ as `torch.func.functional_call(network, θ′, …)` takes it. Raises TypeError or ValueError for anything else. Cost: two
    backward passes. Source: Xu, van Hasselt & Silver (2018), arXiv:1805.09801.

    >>> import torch, softmaxima as sm
    >>> network, tau = torch.nn.Linear(3, 2), sm.Temperature(1.0)
    >>> state, action, gain = torch.eye(3), torch.tensor([0, 1, 1]), torch.tensor([1.0, -1.0, 2.0])
    >>> inner = -(gain * sm.policy.Policy(network(state), temperature=tau).log_prob(action)).mean()
    >>> after = sm.policy.look_ahead(inner, dict(network.named_parameters()), 0.1)
    >>> scores = torch.func.functional_call(network, after, state)
    >>> (-(gain * sm.policy.Policy(scores).log_prob(action)).mean()).backward()
    >>> tau.rho.grad is not None
    True
    """
    name = "look_ahead"
    rate = check_positive(name, "rate", rate)
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
        got = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise ValueError(
            f"{name}: loss must be a tensor of one number with a gradient, got {got}; call .mean() of what requires grad"
        )
    if not isinstance(parameters, Mapping):
        raise TypeError(
            f"{name}: parameters must be tensors by their names, got {type(parameters).__name__}; call dict(net.named_parameters())"
        )
    if wrong := [key for key, value in parameters.items() if not isinstance(value, Tensor)]:
        raise TypeError(f"{name}: parameters must be tensors by their names, and {wrong[0]} is none")
    learnt = {key: value for key, value in parameters.items() if value.requires_grad}
    slopes = torch.autograd.grad(loss.sum(), list(learnt.values()), create_graph=True, allow_unused=True) if learnt else ()
    moved = {key: learnt[key] - rate * slope for key, slope in zip(learnt, slopes, strict=True) if slope is not None}
    return {**parameters, **moved}
