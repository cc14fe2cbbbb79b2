r"""Soft values: what a state is worth under the best regularised policy,

    V(q) = max_p ⟨p, q⟩ − τ Ω(p) = τ Ω*(q/τ)        ∂V/∂q = map(q/τ)        ∂V/∂τ = −Ω(p)

the conjugate under every Fenchel–Young loss. Of softmax Ω = Σ p log p and V = τ log Σ exp(q/τ); of sparsemax Ω = ½(‖p‖² − 1), and V
is the value of Tsallis' entropy. As Σp = 1 and p ≥ 0, V moves by no more than q does: |V(q) − V(q′)| ≤ ‖q − q′‖∞.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.arguments import Array, as_scores, check_dim, check_where, like_input
from softmaxima.base.numbers import check_number
from softmaxima.base.public import public
from softmaxima.base.rows import row_maximum
from softmaxima.base.tracing import is_concrete
from softmaxima.engine.contract import AnyMap, Map, find_map
from softmaxima.losses.fenchel_young import conjugate
from softmaxima.lse import log_mean_exp, logsumexp
from softmaxima.sampling.rows import Rows, as_rows, map_params, over_temperature


def find_valued(name: str, map: AnyMap) -> Map:
    """The map, which must have Ω and probabilities of one action."""
    found = find_map(map, name)
    if found.regulariser is None or not found.properties.of_one_class:
        raise ValueError(f"{name}: map must have a regulariser Ω and probabilities of one action, got {found.name!r}; take softmax")
    return found


@public
def soft_value(
    q: Array,
    temperature: float | Array = 1.0,
    *,
    map: AnyMap = "softmax",
    dim: int = -1,
    where: Array | None = None,
    prior: Array | None = None,
    **params: Any,
) -> Array:
    """The soft value of actions, V = max_p ⟨p, q⟩ − τ Ω(p) = τ Ω*(q/τ), whose gradient is the policy map(q/τ).

    Args:
        q: values of actions, of any shape, float64, float32, bfloat16 or float16; −∞ where an action is illegal.
        temperature: τ > 0, a number, a tensor that broadcasts against q with size 1 along `dim`, or a module that says it.
        map: a name or a function of a map with a regulariser Ω whose probabilities sum to at most 1.
        dim: the axis of the actions.
        where: boolean, broadcasts to q; False is an illegal action.
        prior: μ ≥ 0 and finite, a reference policy that broadcasts to q, of softmax alone:
            V = τ log Σ μ exp(q/τ) = max_p ⟨p, q⟩ − τ KL(p‖μ).
        params: the map's parameters.

    Returns:
        V with the shape of q without `dim`, in q's dtype and kind of array: between max q and max q + τ log n for softmax. −∞ where
        nothing is allowed, +∞ where q is.

    Raises:
        TypeError, ValueError or IndexError, before any work, for anything else.

    Cost: one read for softmax, the map in float64 for others. Source: Ziebart (2010) and Haarnoja et al. (2017),
    arXiv:1702.08165, for softmax; Lee, Choi & Oh (2018), arXiv:1709.06293, for sparsemax; Geist, Scherrer & Pietquin (2019),
    arXiv:1901.11275, for any Ω.

    >>> import numpy as np, softmaxima as sm
    >>> q = np.array([1.0, 0.8, -1.0])
    >>> sm.policy.soft_value(q, 0.5).round(4), sm.policy.soft_value(q, 0.5, map="sparsemax").round(4)
    (np.float64(1.262), np.float64(1.045))
    """
    return value_of("soft_value", q, temperature, map, params, dim=dim, where=where, prior=prior)


def value_of(
    name: str,
    q: Array,
    temperature: Any,
    map: AnyMap,
    params: dict[str, Any],
    *,
    dim: int = -1,
    where: Any = None,
    prior: Any = None,
) -> Array:
    """`soft_value`, for what is called `name`."""
    found = find_valued(name, map)
    if prior is not None and found.name != "softmax":
        raise ValueError(f"{name}: prior is of softmax alone, got map {found.name!r}; leave one of them out")
    rows = as_rows(name, q, dim, temperature, where, None)
    values = map_params(name, found, params, rows)
    if found.name == "softmax":
        weights = None if prior is None else _prior(name, prior, as_scores(name, q), rows)
        value = logsumexp(rows.x, -1, keepdim=True, temperature=rows.tau, weights=weights)
        none = value.detach() == -math.inf  # where no temperature has a say
        value = (rows.tau * value.masked_fill(none, 0.0)).masked_fill(none, -math.inf)
    else:
        top = row_maximum(rows.x)
        if not found.properties.shift_invariant:
            top = torch.zeros_like(top)
        z = over_temperature(rows.x - top, rows.tau)
        value = rows.tau * conjugate(found, z, found(z, **values), values).unsqueeze(-1) + top
        largest = rows.x.detach().amax(-1, keepdim=True) if rows.x.shape[-1] else torch.full_like(top, -math.inf)
        value = value.masked_fill(largest == math.inf, math.inf)
        if found.properties.mass == "one":
            value = value.masked_fill(largest == -math.inf, -math.inf)
    return like_input(rows.placed(value).squeeze(rows.dim).to(rows.dtype), q)


def _prior(name: str, prior: Any, q: Tensor, rows: Rows) -> Tensor:
    """μ [..., n] in float64."""
    mu = as_scores(name, prior, "prior")
    if is_concrete(mu) and bool((wrong := ~((mu.detach() >= 0) & (mu.detach() < math.inf))).any()):
        got = float(mu.detach()[wrong][0])
        raise ValueError(f"{name}: prior must be at least 0 and finite everywhere, got {got}; give probabilities")
    try:
        return mu.double().broadcast_to(q.shape).movedim(rows.dim, -1)
    except RuntimeError:
        shapes = f"{tuple(q.shape)}, got {tuple(mu.shape)}"
        raise ValueError(f"{name}: prior must broadcast to the shape of q, {shapes}; give one number for each action") from None


@public
def mellowmax(q: Array, omega: float = 1.0, dim: int = -1, *, where: Array | None = None) -> Array:
    """Mellowmax, mm_ω(q) = log((1/n) Σ exp(ω q))/ω: between the mean of q, as ω → 0, and the largest, as ω → ∞.

    It is `soft_value` at τ = 1/ω with the uniform prior, which takes τ log n off. Its gradient is softmax(ω q).

    Args:
        q, dim, where: as for `soft_value`; n counts what `where` allows, and an action of −∞ is one of these.
        omega: ω > 0, a number.

    Returns and raises as `soft_value`. Cost: one read of q. Source: Asadi & Littman (2017), arXiv:1612.05628.

    >>> import numpy as np, softmaxima as sm
    >>> sm.policy.mellowmax(np.array([1.0, 1.0, 4.0]), omega=1.0).round(4)
    np.float64(2.9963)
    """
    name = "mellowmax"
    scores = as_scores(name, q)
    axis = check_dim(name, dim, scores.ndim)
    mask = check_where(name, where, scores)
    valid = lambda omega: 0 < omega < math.inf and 0 < 1 / omega < math.inf
    tau = 1 / check_number(name, "omega", omega, valid, "a positive finite number")
    value = log_mean_exp(scores.double().reshape(scores.shape or (1,)), axis, temperature=tau, where=mask)
    return like_input((tau * value).to(scores.dtype), q)
