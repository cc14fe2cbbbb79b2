r"""Bounds through a map: the least and the greatest p_i where every score lies between two numbers, l ≤ x ≤ u.

**Monotone maps** (`Properties.monotone`: p_i does not fall with x_i nor rise with another score) have both at corners:

    lower_i = p_i(l_i, u_others)        upper_i = p_i(u_i, l_others)

and both are attained. Of softmax these are e^{l_i}/(e^{l_i} + Σ e^{u_j}) and e^{u_i}/(e^{u_i} + Σ e^{l_j}).

**Ratios** p_i = f(x_i)/Σ f(x_j) rise with f(x_i) and fall with f of the others, so that the same holds of the scores at which f is
least and greatest: with a convex f (Taylor polynomials of even order, squares) an end, or the lowest point of f.

**normmax** has p = u/Σu with u = p/‖p‖_α, where u, not p, is monotone; Σ u^α = 1 bounds what the others sum to: from
(1 − u_i^α)^{1/α} = ‖u_others‖_α to (n−1)^{1−1/α} times that.

**fusedmax and oscarmax** are sparsemax of a u that does not fall as any score rises: it lies between those of both ends.

Those of normmax, top-p (`nucleus.py`), min-p, fusedmax and oscarmax are bounds that hold, and not the tightest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple

import torch
from torch import Tensor

from softmaxima.base.arguments import Array
from softmaxima.base.public import public
from softmaxima.base.tracing import is_concrete
from softmaxima.engine.contract import AnyMap, Map, find_map
from softmaxima.engine.evaluation import check_params
from softmaxima.maps._clusters import Clusters, levels
from softmaxima.maps.fusedmax import clusters as fused_clusters
from softmaxima.maps.oscarmax import clusters as oscar_clusters
from softmaxima.maps.sparsemax import SPARSEMAX
from softmaxima.maps.taylor_softmax import polynomial
from softmaxima.robust.arguments import check_ends, is_broken, prepared
from softmaxima.robust.corners import corner, is_own, rows_of
from softmaxima.robust.nucleus import of_a_nucleus

Params = Mapping[str, Any]
Bounds = tuple[Tensor, Tensor]  # (lower, upper)
RISING = (torch.sigmoid, torch.nn.functional.softplus, torch.exp, torch.relu)  # functions of `proportional`
SOLVED = 2e-15  # of λ and of scores less their maximum, some units in the last place of 1
TOGETHER = 2**23  # numbers of the corners that are evaluated together


class ProbabilityInterval(NamedTuple, Generic[Array]):
    """What a probability is at least and at most, each of the shape of the scores.

    >>> import numpy as np, softmaxima as sm
    >>> sm.robust.interval("softmax", np.zeros(2), np.zeros(2)).upper
    array([0.5, 0.5])
    """

    lower: Array
    upper: Array


@public
def interval(
    map: AnyMap,
    lower: Array,
    upper: Array,
    dim: int = -1,
    *,
    temperature: float | Array = 1.0,
    where: Array | None = None,
    **params: Any,
) -> ProbabilityInterval[Array]:
    """The interval of each p_i = map(x/τ)_i over all x with lower ≤ x ≤ upper, each score for itself.

    The tightest one, both ends of which are attained, for every map but `normmax`, top-p, min-p, fusedmax and oscarmax, of
    which it holds and may be wider. (Of `proportional` the function must be one that is known here.) Rounding of the map in
    float64 apart; in a narrower dtype the ends are rounded outward.

    Args:
        map: a registered name, the function of a map or a `Map`.
        lower, upper: scores of one shape and dtype, tensors or arrays. −∞ in both is a mask.
        dim, temperature, where: as for `softmax`.
        params: parameters of the map.

    Returns (lower, upper), of log p for log_softmax; NaN in a row with NaN or +∞ in either end. Both are differentiable by both
    ends: training on them is certified training.

    Raises:
        TypeError, ValueError or IndexError for arguments that cannot be used, such as a lower end above its upper end, before any
        work.

    Cost: the map of n rows for each row of n, some at a time: O(n²) for a row.

    Source: interval bound propagation, Gowal et al. (2018), arXiv:1810.12715.

    >>> import numpy as np, softmaxima as sm
    >>> low, high = sm.robust.interval("sparsemax", np.array([0.5, 0.0, -1.0]), np.array([1.0, 0.2, -0.8]))
    >>> low.round(3), high.round(3)
    (array([0.65, 0.  , 0.  ]), array([1.  , 0.35, 0.  ]))
    """
    name = "interval"
    found = find_map(map, name)
    low_scores, high_scores = check_ends(name, lower, upper)
    alone = (low_scores == -math.inf) != (high_scores == -math.inf)
    if is_concrete(alone) and bool(alone.any()):
        raise ValueError(f"{name}: a score must be −∞ in both ends or in neither, got one in lower alone; give it a finite end")
    level = high_scores if found.properties.shift_invariant else None
    rows = prepared(name, lower, 0.0, dim, temperature, where, level)
    high = prepared(name, upper, 0.0, dim, temperature, where, level).z
    axis_scores = low_scores if low_scores.ndim else low_scores.reshape(1)
    values = parameters(name, found, params, axis_scores, rows.dim)
    least, most = bounds_of(found, rows.z, high, values)
    return ProbabilityInterval(rows.restored(least, -math.inf), rows.restored(most, math.inf))


def parameters(name: str, map: Map, params: Params, x: Tensor, dim: int) -> dict[str, Any]:
    """The map's parameters, checked; tensors with their axis last."""
    values = check_params(map, map.complete(params, name), x, dim, name)
    by_name = dict(zip((parameter.name for parameter in map.params), values, strict=True))
    if map.name in KNOWN:
        KNOWN[map.name].check(name, by_name)
    return {key: value.movedim(dim, -1) if isinstance(value, Tensor) and value.ndim else value for key, value in by_name.items()}


def bounds_of(map: Map, low: Tensor, high: Tensor, params: Params) -> Bounds:
    """(lower, upper) of every class of rows [..., n] over their temperature."""
    n, rows = low.shape[-1], max(1, low[..., :1].numel())
    block = max(1, min(n, TOGETHER // max(1, rows * n)))
    place = torch.arange(n, device=low.device)
    parts = [bounds_at(map, low, high, part.expand(*low.shape[:-1], -1), params) for part in place.split(block)]
    lower, upper = ordered(*(torch.cat([part[end] for part in parts], -1) for end in (0, 1)))
    broken = is_broken(low, high)
    return lower.masked_fill(broken, math.nan), upper.masked_fill(broken, math.nan)


def ordered(lower: Tensor, upper: Tensor) -> Bounds:
    """Ends that are equal but for the rounding of a map, in order. The slope of each end stays its own."""
    crossed = lower > upper
    slope = lambda end: torch.where(crossed, end - end.detach(), 0.0)  # a number that is 0
    return (
        torch.where(crossed, upper.detach() + slope(lower), lower),
        torch.where(crossed, lower.detach() + slope(upper), upper),
    )


def bounds_at(map: Map, low: Tensor, high: Tensor, classes: Tensor, params: Params) -> Bounds:
    """The same of some classes of each row, [..., m]."""
    if map.name in KNOWN:
        return KNOWN[map.name].bounds(map, low, high, classes, params)
    if not map.properties.monotone:
        raise ValueError(
            f"interval: {map.name} does not claim to be monotone, and no bounds of it are known; "
            "register it with Properties(monotone=True) if p_i rises with x_i alone"
        )
    return _at_corners(map, low, high, classes, params)


def is_tight(map: Map, params: Params) -> bool:
    """Whether both ends are attained."""
    return map.name not in KNOWN or KNOWN[map.name].tight(params)


def _at_corners(map: Map, low: Tensor, high: Tensor, classes: Tensor, params: Params) -> Bounds:
    return corner(map, high, low, classes, params), corner(map, low, high, classes, params)


# Maps that are not monotone -----------------------------------------------------------------------------------------------------


def _of_top_p(map: Map, low: Tensor, high: Tensor, classes: Tensor, params: Params) -> Bounds:
    """A nucleus of all is softmax."""
    if params["p"] == 1:
        return _at_corners(map, low, high, classes, params)
    return of_a_nucleus(low, high, classes, params["p"])


def _of_min_p(map: Map, low: Tensor, high: Tensor, classes: Tensor, params: Params) -> Bounds:
    """By which scores are kept surely, or perhaps: a score j is, if it is not below log p above the greatest of the others.

    It has least beside all that are kept perhaps, each at its upper end, and most beside those that surely are, at their lower.
    """
    level = torch.as_tensor(params["p"], dtype=low.dtype, device=low.device).log()
    off = SOLVED * (1 + level.abs().nan_to_num(posinf=0.0))
    surely = low >= _others_most(high) + level + off
    perhaps = high >= _others_most(low) + level - off
    top = high.detach().amax(-1, keepdim=True)
    top = top.masked_fill(top.isinf(), 0.0)
    least, most = (low - top).exp(), (high - top).exp()
    others = ~is_own(classes, low.shape[-1])
    sum_others = lambda weights: torch.where(others, weights.unsqueeze(-2), 0.0).sum(-1)
    share = lambda own, kept, rest: torch.where(kept & (own > 0), own / torch.where(own > 0, own + rest, 1.0), 0.0)
    at = lambda values: values.gather(-1, classes)
    return (
        share(at(least), at(surely), sum_others(torch.where(perhaps, most, 0.0))),
        share(at(most), at(perhaps), sum_others(torch.where(surely, least, 0.0))),
    )


def _of_clusters(clusters: Callable[..., Clusters]) -> Callable[..., Bounds]:
    """Of sparsemax of the levels u, which rise with every score."""

    def bounds(map: Map, low: Tensor, high: Tensor, classes: Tensor, params: Params) -> Bounds:
        least, most = (levels(clusters(z, **params), z, **params) for z in (low, high))
        return _at_corners(SPARSEMAX, least, most, classes, {})

    return bounds


def _others_most(x: Tensor) -> Tensor:
    """The greatest of all others in a row, −∞ of none."""
    first, second = torch.nn.functional.pad(x.detach(), (0, 1), value=-math.inf).topk(2, -1).values.split(1, -1)
    alone = (x == first) & (second < first)
    return torch.where(alone, second, first)


def _of_taylor(map: Map, low: Tensor, high: Tensor, classes: Tensor, params: Params) -> Bounds:
    order = params["order"]
    scale = torch.maximum(low.abs(), high.abs()).clamp_min(1.0).masked_fill(high == -math.inf, 1.0)
    ends = _ends(lambda z: polynomial(z, scale, order, order), _lowest_point(order), low, high)
    return _at_corners(map, *ends, classes, params)


def _of_proportional(map: Map, low: Tensor, high: Tensor, classes: Tensor, params: Params) -> Bounds:
    ends = _ends(torch.square, 0.0, low, high) if params["f"] is torch.square else (low, high)
    return _at_corners(map, *ends, classes, params)


def _check_function(name: str, params: Params) -> None:
    f = params["f"]
    if f is not torch.square and f not in RISING:
        known = ", ".join(each.__name__ for each in (*RISING, torch.square))
        got = getattr(f, "__name__", f)
        raise ValueError(f"{name}: f must be one whose ends between two numbers are known ({known}), got {got}; pass one of these")


def _ends(f: Callable[[Tensor], Tensor], lowest: float, low: Tensor, high: Tensor) -> Bounds:
    """The scores between two at which a convex f, least at `lowest`, is least and greatest."""
    masked = high == -math.inf
    falls, rises = high <= lowest, low >= lowest  # also between two that are equal: the slopes are those of each end
    most = torch.where(rises | (~falls & (f(high) >= f(low))), high, low)
    fewest = torch.where(rises, low, torch.where(falls, high, lowest))
    return torch.where(masked, -math.inf, fewest), torch.where(masked, -math.inf, most)


def _lowest_point(order: int) -> float:
    """The root of the Taylor polynomial of exp of an odd degree, order − 1: where that of `order`, which is convex, is least."""
    low, high = -float(order), 0.0
    for _ in range(60):
        middle = (low + high) / 2
        term, value = 1.0, 1.0
        for m in range(1, order):
            term *= middle / m
            value += term
        low, high = (middle, high) if value < 0 else (low, middle)
    return high


def _of_a_norm(map: Map, low: Tensor, high: Tensor, classes: Tensor, params: Params) -> Bounds:
    """Of normmax: u between its corners, and the sum of the others between what theirs and Σ u^α = 1 leave it.

    What Σ u^α = 1 leaves the others is their own norm at the corner, where 1 − u^α would cancel. normmax solves for λ to `SOLVED`,
    and p is a root of what is left of a score near the edge: so scores are moved outward by what λ may be off.
    """
    alpha, n = torch.as_tensor(params["alpha"], dtype=low.dtype, device=low.device), low.shape[-1]
    off = torch.where(alpha > 1, SOLVED * (1 + (alpha - 1) * n ** (1 - 1 / alpha)), 0.0)
    low, high = low - off, high + off
    everyone = torch.arange(n, device=low.device).expand(low.shape)
    least, most = (_scaled(map, others, own, everyone, params, alpha)[0] for others, own in ((high, low), (low, high)))
    rivals = ((low > -math.inf).sum(-1, keepdim=True) - 1).clamp_min(1).to(low.dtype)
    own_least, most_left = _scaled(map, high, low, classes, params, alpha)
    own_most, least_left = _scaled(map, low, high, classes, params, alpha)
    sum_others = lambda u: torch.where(is_own(classes, n), 0.0, u.unsqueeze(-2)).sum(-1)
    most_others = torch.minimum(sum_others(most), rivals ** (1 - 1 / alpha) * most_left)
    least_others = torch.maximum(sum_others(least), least_left)
    divide = lambda a, b: torch.where(a == 0, 0.0, a / torch.where(a == 0, 1.0, a + b))
    rounding = (n + 16) * torch.finfo(low.dtype).eps
    return divide(own_least, most_others) * (1 - rounding), (divide(own_most, least_others) * (1 + rounding)).clamp_max(1.0)


def _scaled(map: Map, others: Tensor, own: Tensor, classes: Tensor, params: Params, alpha: Tensor) -> Bounds:
    """(u_i, ‖u‖_α of all but u_i) of (own_i, others), u = p/‖p‖_α."""
    p = rows_of(map, others, own, classes, params)
    alpha = alpha.unsqueeze(-1) if alpha.ndim else alpha
    norm = _norm(p, alpha)
    norm = torch.where(norm == 0, 1.0, norm)  # of a row with nothing allowed
    return p.gather(-1, classes.unsqueeze(-1)).squeeze(-1) / norm, _norm(
        p.masked_fill(is_own(classes, p.shape[-1]), 0.0), alpha
    ) / norm


def _norm(p: Tensor, alpha: Tensor) -> Tensor:
    """‖p‖_α over the last axis, over the largest, whose powers do not underflow; 0 where all are."""
    most = p.detach().amax(-1, keepdim=True)
    some = most > 0
    share = torch.where(some, p / torch.where(some, most, 1.0), 0.0)
    powers = (share**alpha).sum(-1, keepdim=True)
    return torch.where(some, most * torch.where(some, powers, 1.0) ** (1 / alpha), 0.0).squeeze(-1)


@dataclass(frozen=True)
class Known:
    """Bounds of a map that are not at its own corners."""

    bounds: Callable[[Map, Tensor, Tensor, Tensor, Params], Bounds]  # of some classes [..., m] of rows [..., n] between two
    tight: Callable[[Params], bool]  # whether both are attained
    check: Callable[[str, Params], None] = lambda name, params: None  # refuses parameters of which nothing is known


KNOWN: dict[str, Known] = {
    "topp_softmax": Known(_of_top_p, lambda params: params["p"] == 1),
    "minp_softmax": Known(_of_min_p, lambda params: bool(torch.as_tensor(params["p"] == 0).all())),
    "normmax": Known(_of_a_norm, lambda params: False),
    "fusedmax": Known(_of_clusters(fused_clusters), lambda params: False),
    "oscarmax": Known(_of_clusters(oscar_clusters), lambda params: False),
    "taylor_softmax": Known(_of_taylor, lambda params: True),
    "proportional": Known(_of_proportional, lambda params: True, _check_function),
}
