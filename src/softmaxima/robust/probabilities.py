r"""The worst case of probabilities: the least and the greatest p_i where ‖δ‖ ≤ ε.

For a monotone map under ℓ∞ both are at corners (`intervals.py`). Where a constant on all scores does not lower p_i besides (maps
that are shift-invariant, and softmax with a sink), others that rise by at most m do no more than a fall of x_i by m. So δ does no
more than a fall of x_i by |δ_i| + max_j |δ_j|, which is

    at most ε under ℓ1, and attained there: p_i(x ∓ ε e_i) are exact,
    at most √2 ε under ℓ2: a bound.

For softmax under ℓ2, p_i = 1/(1 + e^{LSE(x_others) − x_i}), whose exponent has its extremes on the curve of `stationary.py`, with
δ_i = −Σ δ_j: exact. Everything else is bounded by what ℓ∞ allows, whose ball contains the other two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Generic, NamedTuple

import torch
from torch import Tensor

from softmaxima.base.arguments import Array, as_scores
from softmaxima.base.public import public
from softmaxima.engine.contract import AnyMap, Map, find_map
from softmaxima.lse import logsumexp
from softmaxima.robust.arguments import check_norm, check_untransformed, is_broken, moved, prepared
from softmaxima.robust.corners import corner, is_own
from softmaxima.robust.intervals import bounds_at, is_tight, ordered, parameters
from softmaxima.robust.margins import falls
from softmaxima.robust.stationary import LEAST_RADIUS, first_order, greatest, least

SINKS = ("elastic_softmax", "eps_softmax")  # whose p_i rises with all scores together
SOFTMAX = ("softmax", "log_softmax")  # of which ℓ2 is exact


class WorstProbabilities(NamedTuple, Generic[Array]):
    """What a perturbation makes of each probability at least and at most, and whether both are attained.

    >>> import numpy as np, softmaxima as sm
    >>> sm.robust.worst_probabilities("entmax15", np.zeros(3), 0.1, 2).exact
    False
    """

    lower: Array
    upper: Array
    exact: bool  # attained, each by a perturbation of its own; otherwise bounds that hold


@public
def worst_probabilities(
    map: AnyMap,
    x: Array,
    radius: float | Array,
    norm: float = math.inf,
    dim: int = -1,
    *,
    temperature: float | Array = 1.0,
    where: Array | None = None,
    **params: Any,
) -> WorstProbabilities[Array]:
    """The least and the greatest p_i of map((x + δ)/τ) for any δ with ‖δ‖ ≤ ε, each class for itself.

    Exact under ℓ∞ for all maps but `normmax` and top-p; under ℓ1 for monotone maps that do not move with a constant, and for
    softmax with a sink; under ℓ2 for softmax. Otherwise bounds that hold: `exact` says which.

    Args:
        map: a registered name, the function of a map or a `Map`.
        x, radius, norm, dim, temperature, where: as for `worst_logsumexp`.
        params: parameters of the map.

    Returns (lower, upper, exact), of log p for log_softmax; in a dtype narrower than float64 rounded outward. −∞ stays a mask, with
    probability 0; a row with NaN or +∞ is NaN. Both are differentiable by x and by ε, at ε = 0 from the right
    but at the edge of a support or a cap, as of sparsemax at (1, 0), where the slope may be that of inside; of `normmax` where all
    other scores are equal it is a mean of two slopes there, of the right sign.

    Raises:
        TypeError, ValueError or IndexError for arguments that cannot be used, such as numbers above 2⁹⁶⁰, before any work.

    Cost: the map of n rows for each row of n; for softmax under ℓ2 some thousand times that.

    Source: monotonicity, and Lagrange's conditions (`robust/stationary.py`).

    >>> import numpy as np, softmaxima as sm
    >>> worst = sm.robust.worst_probabilities("softmax", np.array([1.0, 0.0]), 0.5)
    >>> worst.lower.round(4), worst.upper.round(4), worst.exact
    (array([0.5   , 0.1192]), array([0.8808, 0.5   ]), True)
    """
    name = "worst_probabilities"
    found = find_map(map, name)
    norm = check_norm(name, norm)
    if searched := norm == 2.0 and found.name in SOFTMAX:
        check_untransformed(name, "the worst case of softmax under ℓ2")
    rows = prepared(name, x, radius, dim, temperature, where, x if found.properties.shift_invariant else None)
    scores = as_scores(name, x)
    values = parameters(name, found, params, scores if scores.ndim else scores.reshape(1), rows.dim)
    n = rows.z.shape[-1]
    block = 1 if searched else max(1, n)
    place = torch.arange(n, device=rows.z.device)
    parts = [
        worst_at(found, rows.z, rows.radius, norm, classes.expand(*rows.z.shape[:-1], -1), values) for classes in place.split(block)
    ]
    lower, upper = (torch.cat([part[end] for part in parts], -1) for end in (0, 1))
    return WorstProbabilities(rows.restored(lower, -math.inf), rows.restored(upper, math.inf), is_exact(found, norm, n, values))


def is_exact(map: Map, norm: float, n: int, params: Mapping[str, Any]) -> bool:
    """Whether the worst case is attained."""
    if not is_tight(map, params):
        return False
    if norm == math.inf or n <= 1:
        return True
    return _falls_alone(map) and (norm == 1.0 or map.name in SOFTMAX or (n == 2 and map.properties.shift_invariant))


def _falls_alone(map: Map) -> bool:
    """Whether a fall of x_i is as bad as the same rise of all others."""
    return map.properties.monotone and (map.properties.shift_invariant or map.name in SINKS)


def worst_at(map: Map, z: Tensor, radius: Tensor, norm: float, classes: Tensor, params: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """(lower, upper) of some classes of rows over their temperature, [..., m]."""
    broken = is_broken(z)
    lower, upper = ordered(*_worst_at(map, z, radius, norm, classes, params))
    return lower.masked_fill(broken, math.nan), upper.masked_fill(broken, math.nan)


def _worst_at(
    map: Map, z: Tensor, radius: Tensor, norm: float, classes: Tensor, params: Mapping[str, Any]
) -> tuple[Tensor, Tensor]:
    if norm == math.inf or z.shape[-1] <= 1 or not _falls_alone(map):
        return bounds_at(map, *moved(z, radius), classes, params)
    if norm == 2.0 and map.name in SOFTMAX:
        lower, upper = (_of_softmax(z, radius, classes, largest) for largest in (False, True))
        return (lower, upper) if map.properties.logarithmic else (lower.exp(), upper.exp())
    down, up = moved(z, radius if norm == 1.0 else falls(radius, norm))
    return corner(map, z, down, classes, params), corner(map, z, up, classes, params)


def _of_softmax(z: Tensor, radius: Tensor, classes: Tensor, largest: bool) -> Tensor:
    """The extreme log p_i of softmax under ℓ2, [..., m]: of −softplus(LSE(x_others) − x_i)."""
    x = z.gather(-1, classes)
    others = z.unsqueeze(-2).masked_fill(is_own(classes, z.shape[-1]), -math.inf)  # [..., m, n]
    flat = others.detach().reshape(-1, z.shape[-1])
    r = radius.detach().unsqueeze(-2).expand(*others.shape[:-1], 1).reshape(-1, 1)
    usable = flat.amax(-1, keepdim=True).isfinite()
    safe, safe_r = torch.where(usable, flat, 0.0), torch.where(usable, r, 1.0).clamp_min(LEAST_RADIUS)
    delta, bound = (-least(safe, safe_r, opposed=True), None) if largest else greatest(safe, safe_r, opposed=True)
    direction = torch.where(usable, delta / safe_r, 0.0).reshape(others.shape)
    moved = others + radius.unsqueeze(-2) * direction
    gap = logsumexp(moved) - (x - radius * direction.sum(-1))
    if bound is not None:  # what could not be ruled out besides the point
        gap = gap + (bound.reshape(gap.shape) - (gap + x).detach()).clamp_min(0.0)
    alone = (others == -math.inf).all(-1)
    log_p = -torch.nn.functional.softplus(torch.where(alone | (x == -math.inf), 0.0, first_order("worst_probabilities", gap)))
    return torch.where(x == -math.inf, -math.inf, torch.where(alone, x - x, log_p))
