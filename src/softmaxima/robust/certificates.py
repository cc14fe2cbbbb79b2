r"""How far scores may be moved before a decision or a probability is lost, and how far that is for what they are made of.

argmax            ε < m/c             m the margin, c = 2, √2, 1 under ℓ∞, ℓ2, ℓ1
p_t ≥ level       ε ≤ (logit p_t − logit level)/2 for softmax under ℓ∞; in general by halving, for the least p_t falls with ε
of inputs         ε/L                 where scores move by at most L times what inputs do
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from softmaxima.base.arguments import Array, as_scores
from softmaxima.base.numbers import check_number, check_positive
from softmaxima.base.public import public
from softmaxima.engine.contract import AnyMap, find_map
from softmaxima.robust.arguments import (
    check_classes,
    check_norm,
    check_untransformed,
    is_broken,
    prepared,
    product_down,
    quotient_down,
    sum_up,
)
from softmaxima.robust.intervals import parameters
from softmaxima.robust.layers import check_layer, fall
from softmaxima.robust.margins import SLOPE, sides
from softmaxima.robust.probabilities import worst_at

HALVINGS, DOUBLINGS = 63, 40
NOT_EXPANDING = (nn.Identity, nn.Flatten, nn.ReLU, nn.ReLU6, nn.Tanh, nn.Hardtanh, nn.Sigmoid, nn.Softsign)
UNSEEN = 40.0  # a threshold from which softplus is its line but for e^−40, less than float64 tells


@public
def certified_radius(
    x: Array, target: Any = None, norm: float = math.inf, dim: int = -1, *, lipschitz: float = 1.0, where: Array | None = None
) -> Array:
    """The radius within which no perturbation changes the argmax: margin/(c L), c = 2, √2 and 1 under ℓ∞, ℓ2 and ℓ1.

    With L = 1 the perturbation is one of the scores, and the radius exact: a larger one changes the argmax. At the radius itself
    the target may tie with another.

    Args:
        x: scores of any shape, a tensor or an array.
        target: the class that is to stay the argmax, one a row or one for all; the argmax itself by default.
        norm: that of the scores, 1, 2 or `math.inf`.
        lipschitz: L, for the radius of what the scores are made of: ‖x(a) − x(b)‖ ≤ L ‖a − b‖ in that norm (`lipschitz_bound`).
        dim, where: as for `softmax`.

    Returns one number a row, rounded down; 0 where the target is not the argmax, ∞ where nothing else is allowed.

    Raises:
        TypeError, ValueError or IndexError for arguments that cannot be used, such as numbers above 2⁹⁶⁰, before any work.

    Cost: two reads of x. Source: Tsuzuku, Sato & Sugiyama (2018), arXiv:1802.04034.

    >>> import numpy as np, softmaxima as sm
    >>> sm.robust.certified_radius(np.array([3.0, 1.0, 0.5]))
    np.float64(1.0)
    """
    name = "certified_radius"
    norm = check_norm(name, norm)
    slope = SLOPE[norm] * check_positive(name, "lipschitz", lipschitz)
    slope = math.nextafter(slope, math.inf) if norm == 2.0 else slope  # √2 L, rounded up
    rows = prepared(name, x, 0.0, dim, 1.0, where)
    if target is None and rows.z.shape[-1] == 0:
        raise ValueError(f"{name}: there must be a class to certify, got scores with none along dim {rows.dim}; give at least one")
    classes = rows.z.argmax(-1) if target is None else check_classes(name, target, rows.z)
    own, rival = sides(rows.z, classes)
    return rows.reduced(quotient_down(-sum_up(rival, -own), slope), -math.inf)  # NaN stays


@public
def probability_radius(
    map: AnyMap,
    x: Array,
    target: Any,
    level: float,
    norm: float = math.inf,
    dim: int = -1,
    *,
    temperature: float | Array = 1.0,
    where: Array | None = None,
    lipschitz: float = 1.0,
    **params: Any,
) -> Array:
    """The largest ε for which p_t ≥ level for every δ with ‖δ‖ ≤ ε, p = map((x + δ)/τ).

    It is exact where `worst_probabilities` is, and a radius that holds elsewhere.

    Args:
        map, x, norm, dim, temperature, where, params: as for `worst_probabilities`.
        target: the class t, one a row or one for all.
        level: between 0 and 1, both out.
        lipschitz: as for `certified_radius`.

    Returns one number a row, rounded down; 0 where p_t is below the level as it is, ∞ where
    nothing brings it there, NaN in a row with NaN or +∞.

    Raises:
        TypeError, ValueError or IndexError for arguments that cannot be used, such as numbers above 2⁹⁶⁰, before any work.

    Cost: a hundred times that of the worst case of one class.

    >>> import numpy as np, softmaxima as sm
    >>> sm.robust.probability_radius("softmax", np.array([2.0, 0.0]), 0, 0.5).round(6)
    np.float64(1.0)
    """
    name = "probability_radius"
    found, norm = find_map(map, name), check_norm(name, norm)
    level = check_number(name, "level", level, lambda p: 0 < p < 1, "a number between 0 and 1")
    lipschitz = check_positive(name, "lipschitz", lipschitz)
    check_untransformed(name, "a search by halves")
    rows = prepared(name, x, 0.0, dim, temperature, where, x if found.properties.shift_invariant else None)
    classes = check_classes(name, target, rows.z).unsqueeze(-1)
    scores = as_scores(name, x)
    values = parameters(name, found, params, scores if scores.ndim else scores.reshape(1), rows.dim)
    z, bound = rows.z.detach(), math.log(level) if found.properties.logarithmic else level
    holds = lambda radius: worst_at(found, z, radius, norm, classes, values)[0] >= bound
    # Scores bring a probability down over distances like their own size.
    size = z.masked_fill(~z.isfinite(), 0.0).abs().amax(-1, keepdim=True) if z.shape[-1] else torch.zeros_like(rows.radius)
    low, high = torch.zeros_like(rows.radius), size.clamp_min(1.0)
    for _ in range(DOUBLINGS):
        if not bool((kept := holds(high)).any()):
            break
        high = torch.where(kept, 2 * high, high)
    endless = holds(high)
    low, high = low.view(torch.int64), high.view(torch.int64)  # as whole numbers they have the order of the floats that they are
    for _ in range(HALVINGS):
        middle = low + (high - low) // 2
        kept = holds(middle.view(torch.float64))
        low, high = torch.where(kept, middle, low), torch.where(kept, high, middle)
    low = low.view(torch.float64)
    radius = torch.where(endless, math.inf, quotient_down(product_down(low, rows.tau), lipschitz))
    return rows.reduced(radius.masked_fill(is_broken(z), math.nan).squeeze(-1), -math.inf)


@public
@torch.no_grad()
def lipschitz_bound(model: nn.Module, norm: float = math.inf) -> float:
    """A number L with ‖model(a) − model(b)‖ ≤ L ‖a − b‖: the product of the norms of its layers.

    Args:
        model: `nn.Linear`, functions of known slope (ReLU, tanh, ELU, …), and `nn.Sequential` of such; no subclasses, whose
            forward pass may be another. A softplus that becomes x below 40 (20 is PyTorch's default) falls there, and has no L:
            set its `threshold` to 40, which changes what it gives by e^−20/β at most.
        norm: of inputs and scores, 1 (the largest column sum of |W|), 2 (the largest singular value) or `math.inf` (the largest
            row sum).

    Raises:
        TypeError for a layer whose norm is not known here, one with hooks, as those of `weight_norm` and `prune`, and one with a
            forward pass of its own; ValueError for another norm, a weight that is not finite, and a slope that is NaN.

    Cost: a read of the weights, and their singular values under ℓ2. As a rule it is far above the least L there is. It is that of
    the weights, to the rounding of float64; what a network itself rounds is not in it.

    >>> import torch, softmaxima as sm
    >>> layer = torch.nn.Linear(2, 2)
    >>> _ = layer.weight.data.copy_(torch.tensor([[1.0, -2.0], [0.0, 0.5]]))
    >>> sm.robust.lipschitz_bound(torch.nn.Sequential(layer, torch.nn.ReLU()))
    3.0
    """
    name = "lipschitz_bound"
    norm = check_norm(name, norm)
    check_layer(name, model)
    kind: type = type(model)  # a subclass may have a forward pass of its own
    if kind is nn.Sequential:
        return math.prod(lipschitz_bound(layer, norm) for layer in model)  # type: ignore[arg-type]
    if isinstance(model, nn.Linear) and kind is nn.Linear:
        return float(torch.linalg.matrix_norm(model.weight.double(), norm))
    if kind in NOT_EXPANDING or (kind is nn.Dropout and not model.training):
        return 1.0
    if isinstance(model, nn.LeakyReLU) and kind is nn.LeakyReLU:
        return max(1.0, abs(float(model.negative_slope)))
    if isinstance(model, nn.ELU) and kind is nn.ELU:
        return max(1.0, abs(float(model.alpha)))
    if isinstance(model, nn.Softplus) and kind is nn.Softplus and model.beta > 0:
        if model.threshold >= UNSEEN:
            return 1.0
        raise TypeError(
            f"{name}: nn.Softplus with threshold {model.threshold:g} falls by {fall(model):.1g} "
            f"where it becomes x, so that no L holds; set layer.threshold = {UNSEEN:g}, or write nn.Softplus(beta={model.beta:g}, "
            f"threshold={UNSEEN:g}), which differs by no more than that"
        )
    raise TypeError(
        f"{name}: model must be nn.Linear, functions whose slope is known, or nn.Sequential of these, and no subclass, "
        f"got {model}; bound that layer otherwise, and multiply"
    )
