r"""Boltzmann policies over any map: π(a|s) = map(x(s)/τ)_a, with log π = −∞ where it is 0.

    H(π) = −Σ_{π>0} π log π        KL(π‖ρ) = Σ_{π>0} π φ(log ρ − log π) + Σ_{π=0} ρ,   φ(t) = eᵗ − 1 − t

∞ where ρ is 0 at an action of π. The terms of that sum are positive, so that of two policies that are near each other only
what log ρ − log π itself has lost is lost; Σ π (log π − log ρ), to which it is equal, cancels there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, constraints, register_kl
from torch.distributions.utils import lazy_property, probs_to_logits

from softmaxima.base.arguments import broadcasts, check_tensor
from softmaxima.base.numbers import check_count
from softmaxima.base.public import public
from softmaxima.base.randomness import Randomness, as_torch_generator
from softmaxima.base.rows import without_mask
from softmaxima.base.series import scaled_expm1_remainder
from softmaxima.base.tracing import is_concrete
from softmaxima.engine.contract import AnyMap, Map, find_map
from softmaxima.maps import MapModule
from softmaxima.maps.log_softmax import LOG_SOFTMAX
from softmaxima.sampling import gumbel_max
from softmaxima.sampling.rows import as_rows, map_params


def as_policy_map(name: str, map: AnyMap | MapModule, temperature: Any, params: dict[str, Any]) -> tuple[Map, Any, dict[str, Any]]:
    """(map, τ, parameters), of a module what it has; the map must give probabilities of actions, one of which is taken."""
    if isinstance(map, MapModule):
        if params or not (isinstance(temperature, float) and temperature == 1.0):
            given = ", ".join(params) or "temperature"
            raise TypeError(
                f"{name}: a module has its own temperature and parameters, got {given} beside it; give map={map.map.name!r}"
            )
        if map.dim != -1:
            raise ValueError(f"{name}: actions are along the last axis, got a module of dim={map.dim}; give dim=-1 to it")
        params = {key: value for key, value in map.options.items() if key != "dim"}
        map, temperature = map.map, params.pop("temperature")
    found = find_map(map, name)
    if found.properties.logarithmic:
        raise ValueError(f"{name}: map must give probabilities, got {found.name!r}, which gives their logarithms; take softmax")
    if found.properties.mass not in ("one", "zero or one"):
        raise ValueError(
            f"{name}: map must give probabilities that sum to 1, got {found.name!r}, whose mass may be another; for an outcome "
            "beside the actions add its score to them"
        )
    return found, temperature, params


LEAST = 1e-290  # the least π but 0 of maps other than softmax: 1/π, the slope of log π, times what else there is passes 1e308 below


@public
class Policy(Distribution):
    """A distribution over n actions for each state, π(a|s) = map(x/τ)_a, as those of `torch.distributions`.

    Args:
        scores: x [..., n], a tensor of any batch shape, −∞ where an action is illegal; float64, float32, bfloat16 or float16.
        map: a name or a function of a map whose probabilities sum to 1 (`"sparsemax"`), or its module, with temperature and
            parameters that may learn: `sm.Entmax(alpha=sm.Positive(1.5, 1.0, 2.0, "sigmoid"))`.
        temperature: τ > 0, a number, a tensor that broadcasts to [..., 1] (one a state: `sm.StateTemperature`, or
            `sm.entropy_temperature` for a given entropy), or a module that says it (`sm.Temperature`, `sm.EntropyTarget`, a
            schedule).
        where: boolean, broadcasts to x; False is an illegal action, of probability exactly 0.
        validate_args: as of every distribution of torch.
        params: the map's parameters (`alpha=1.3`, `k=3`).

    `sample`, `log_prob`, `entropy`, `mode`, `probs`, `logits` (log π), `enumerate_support` and `expand` are those of
    `torch.distributions.Categorical`, with `kl_divergence` to another policy or a Categorical on either side. log π of softmax is
    computed as such, exact for probabilities that no dtype has. Of other maps π is 0, and log π −∞ with a gradient of 0, where they
    give less than 1e-290 in float64 (of entmax at α = 1 and topk_softmax too, from some 667 below the largest x/τ). The π of
    perturb_max is right to some 1e-17, so that its log π is rough below −40 or so. Entropy has finite gradients at exact zeros. In
    nats. All is computed in float64, and given in the dtype of x.

    Raises:
        TypeError or ValueError for anything else; `sample` and `mode` for a state in which no action has a probability above 0,
            whose place they say.

    Cost: the map in float64, when it is first needed. Source: Boltzmann policies as of Sutton & Barto (2018), section 2.8; with
    sparsemax Lee, Choi & Oh (2018), arXiv:1709.06293.

    >>> import torch, softmaxima as sm
    >>> policy = sm.policy.Policy(torch.tensor([[2.0, 1.0, -1.0], [0.0, 0.0, 0.0]]), "sparsemax", temperature=2.0)
    >>> policy.probs
    tensor([[0.7500, 0.2500, 0.0000],
            [0.3333, 0.3333, 0.3333]])
    >>> policy.entropy(), policy.log_prob(torch.tensor([2, 0]))
    (tensor([0.5623, 1.0986]), tensor([   -inf, -1.0986]))
    >>> policy.sample((2,), generator=0).shape
    torch.Size([2, 2])
    """

    arg_constraints: ClassVar[dict[str, Any]] = {"scores": constraints.independent(constraints.real, 1)}  # pyright: ignore[reportIncompatibleMethodOverride]
    has_enumerate_support = True

    def __init__(
        self,
        scores: Tensor,
        map: AnyMap | MapModule = "softmax",
        *,
        temperature: float | Tensor = 1.0,
        where: Tensor | None = None,
        validate_args: bool | None = None,
        **params: Any,
    ) -> None:
        name = type(self).__name__
        found, temperature, params = as_policy_map(name, map, temperature, params)
        if check_tensor(name, "scores", scores).ndim == 0:
            raise ValueError(f"{name}: scores must have an axis of actions, got a tensor of shape (); give scores [..., actions]")
        rows = as_rows(name, scores, -1, temperature, where, None)
        if validate_args is not False and Distribution._validate_args and is_concrete(scores) and scores.isnan().any():
            raise ValueError(f"{name}: scores must be numbers, got NaN; mend what computes them, or pass validate_args=False")
        self._params = map_params(name, found, params, rows)
        self.map, self.scores, self._rows = found, scores, rows
        super().__init__(scores.shape[:-1], validate_args=validate_args if scores.numel() else False)  # torch checks no empty ones

    @property
    def num_actions(self) -> int:
        return self.scores.shape[-1]

    @property
    def param_shape(self) -> torch.Size:
        return self.scores.shape

    @property
    def support(self) -> Any:
        """The actions, 0 … n − 1."""
        return constraints.integer_interval(0, self.num_actions - 1)

    # In float64.

    @lazy_property
    def _p(self) -> Tensor:
        p = self.map(self._rows.x, temperature=self._rows.tau, **self._params)
        return p if self.map.name == "softmax" else p.masked_fill(p < LEAST, 0.0)

    @lazy_property
    def _log_p(self) -> Tensor:
        if self.map.name == "softmax":
            return LOG_SOFTMAX(self._rows.x, temperature=self._rows.tau)
        return log_of(self._p)

    @property
    def probs(self) -> Tensor:
        """π [..., n]; zeros where no action is legal."""
        return self._p.to(self.scores.dtype)

    @property
    def logits(self) -> Tensor:
        """log π [..., n]."""
        return self._log_p.to(self.scores.dtype)

    @property
    def mode(self) -> Tensor:
        """The most probable action of each state, of equal ones the first."""
        self._check_possible("mode")
        if not self.num_actions:
            return torch.empty(self.batch_shape, dtype=torch.long, device=self.scores.device)
        return self._log_p.argmax(-1)

    @property
    def mean(self) -> Tensor:
        """NaN: actions have names, and no mean; as of Categorical."""
        return self.scores.new_full(self.batch_shape, math.nan)

    @property
    def variance(self) -> Tensor:
        return self.mean

    def sample(self, sample_shape: Any = torch.Size(), *, generator: Randomness = None) -> Tensor:  # noqa: B008 - as torch's
        """Actions [*sample_shape, ...], int64, by a torch.Generator, a NumPy one or a seed; None is torch's default generator."""
        name = f"{type(self).__name__}.sample"
        if not isinstance(sample_shape, Sequence) or isinstance(sample_shape, str):
            raise TypeError(f"{name}: sample_shape must be a tuple of sizes, got {sample_shape!r}; give (5,) for five")
        shape = torch.Size([check_count(name, "a size of sample_shape", size, 0) for size in sample_shape])
        self._check_possible("sample")
        if not self._extended_shape(shape).numel():
            return torch.empty(self._extended_shape(shape), dtype=torch.long, device=self.scores.device)
        drawn = gumbel_max(self._log_p.detach(), samples=shape.numel(), generator=as_torch_generator(name, generator))
        return drawn.reshape(self._extended_shape(shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """log π of actions of a shape that broadcasts with that of the states; −∞ where π is 0."""
        if self._validate_args:
            self._validate_sample(value)
        place, log_p = torch.broadcast_tensors(value.long().unsqueeze(-1), self._log_p)
        return log_p.gather(-1, place[..., :1]).squeeze(-1).to(self.scores.dtype)

    def entropy(self) -> Tensor:
        """H(π) of each state in nats; 0 where no action is legal."""
        h = 0.0 - (self._p * without_mask(self._log_p)).sum(-1)
        return _not_negative(h).to(self.scores.dtype)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """[n, 1, …], or [n, ...]: each action in each state."""
        actions = torch.arange(self.num_actions, device=self.scores.device).reshape(-1, *(1,) * len(self.batch_shape))
        return actions.expand(-1, *self.batch_shape) if expand else actions

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Policy:
        new: Any = self._get_checked_instance(Policy, _instance)
        batch_shape = tuple(check_count("Policy.expand", "a size of batch_shape", size, 0) for size in batch_shape)
        if not broadcasts(self.scores[..., 0], batch_shape):
            raise ValueError(f"Policy.expand: batch_shape must be one that {tuple(self.batch_shape)} expands to, got {batch_shape}")
        shape = (*batch_shape, self.num_actions)
        new.map, new.scores = self.map, self.scores.expand(shape)
        new._p, new._log_p = self._p.expand(shape), self._log_p.expand(shape)
        Distribution.__init__(new, torch.Size(batch_shape), validate_args=False)
        new._validate_args = self._validate_args
        return new

    def __repr__(self) -> str:
        return f"{type(self).__name__}(map={self.map.name}, actions={self.num_actions}, batch_shape={tuple(self.batch_shape)})"

    def _check_possible(self, method: str) -> None:
        if not is_concrete(self.scores):
            return
        total = self._p.detach().sum(-1)
        if bool((wrong := ~(total > 0)).any()):
            place = tuple(wrong.nonzero()[0].tolist())
            is_nan = bool(total[place].isnan())
            what = "has probabilities that are NaN" if is_nan else "has no action with a probability above 0"
            allow = "allow one by where=, raise the score of one, or leave the state out"
            repair = "scores must be below +∞ and not NaN" if is_nan else allow
            of = f"state {place}" if place else "the state"
            raise ValueError(f"{type(self).__name__}.{method}: {of} {what}; {repair}")


def log_of(p: Tensor) -> Tensor:
    """log p, and −∞ without a gradient where p is 0."""
    none = p <= 0
    positive = p.masked_fill(none, 1.0)
    log_p: Any = positive.log() if torch.compiler.is_compiling() else _Log.apply(positive)  # compilers take no jvp
    return log_p.masked_fill(none, -math.inf)


class _Log(torch.autograd.Function):
    """log p of the slope exp(−log p), so that each 1/p of its second derivative is beside a p: 1/p² is ∞ from 1e−154 down."""

    generate_vmap_rule = True

    @staticmethod
    def forward(p: Tensor) -> Tensor:
        return p.log()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Tensor:
        (log_p,) = ctx.saved_tensors
        return slopes[0] * (-log_p).exp()

    @staticmethod
    def jvp(ctx: Any, *moved: Tensor) -> Tensor:
        (log_p,) = ctx.saved_tensors
        return moved[0] * (-log_p).exp()


def _not_negative(value: Tensor) -> Tensor:
    """What rounding alone may have taken below 0, with its gradient."""
    return value + (value.detach().clamp_min(0.0) - value.detach())


def divergence(p: Tensor, log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p‖q) of rows [..., n] in float64."""
    taken = ~(p <= 0)
    lacking = log_q == -math.inf
    both = taken & ~lacking
    q = log_q.exp()
    t = torch.where(both, log_q, 0.0) - torch.where(both, log_p, 0.0)
    near = t.abs() < 0.5
    small = t.clamp(-0.5, 0.5)
    of_both = p * torch.where(near, small * small * scaled_expm1_remainder(small, torch.zeros_like(small)), -1.0 - t)
    terms = torch.where(both, of_both + torch.where(near, 0.0, q), torch.where(taken.any(-1, keepdim=True), q, 0.0))
    return terms.sum(-1).masked_fill((taken & lacking).any(-1), math.inf)


def _shared(name: str, p: int, q: int) -> None:
    if p != q:
        raise ValueError(f"{name}: both policies must be over the same actions, got {p} and {q}")


@register_kl(Policy, Policy)
def _kl_of_policies(p: Policy, q: Policy) -> Tensor:
    _shared("kl_divergence", p.num_actions, q.num_actions)
    return divergence(p._p, p._log_p, q._log_p).to(torch.promote_types(p.scores.dtype, q.scores.dtype))


@register_kl(Policy, Categorical)
def _kl_to_categorical(p: Policy, q: Categorical) -> Tensor:
    _shared("kl_divergence", p.num_actions, q.param_shape[-1])
    return divergence(p._p, p._log_p, _log_p_of(q)).to(torch.promote_types(p.scores.dtype, _parameter_of(q).dtype))


@register_kl(Categorical, Policy)
def _kl_of_categorical(p: Categorical, q: Policy) -> Tensor:
    _shared("kl_divergence", p.param_shape[-1], q.num_actions)
    log_p = _log_p_of(p)
    return divergence(log_p.exp(), log_p, q._log_p).to(torch.promote_types(_parameter_of(p).dtype, q.scores.dtype))


def _parameter_of(given: Categorical) -> Tensor:
    """The probabilities or logits that it was made of."""
    found: Any = given._param
    return found


def _log_p_of(given: Categorical) -> Tensor:
    """Of what it was made of: logits made of probabilities are never −∞, and probabilities made of logits may be 0."""
    return log_of(given.probs.double()) if _is_of_probabilities(given) else LOG_SOFTMAX(given.logits.double())


def _is_of_probabilities(given: Categorical) -> bool:
    """An expanded one takes its logits for its parameter once they have been read, whatever it was made of."""
    probs, logits = given.__dict__.get("probs"), given.__dict__.get("logits")
    if probs is None or logits is None:
        return logits is None
    return _parameter_of(given) is probs or torch.equal(logits, probs_to_logits(probs))
