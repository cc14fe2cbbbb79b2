r"""The worst case of logsumexp: the most and the least that LSE(x + δ) is where ‖δ‖ ≤ ε.

    ℓ∞   LSE ± ε, at δ = ± ε 1
    ℓ1   most: LSE + log(1 + (e^ε − 1) p_max), all on the largest score; least: at δ = −ε sparsemax(x/ε), the largest levelled
    ℓ2   at δ = ± ε p/‖p‖ with p = softmax(x + δ): most at the best of these points, least at the only one (`stationary.py`)

∇LSE = p > 0, so that no worst δ has two signs: ε·sign(p − mean p), which is sometimes given for ℓ∞, gains nothing where scores are
equal.
"""

from __future__ import annotations

import math
from typing import Generic, NamedTuple

import torch
from torch import Tensor

from softmaxima.base.arguments import Array
from softmaxima.base.public import public
from softmaxima.lse import logsumexp
from softmaxima.maps import sparsemax
from softmaxima.robust.arguments import check_norm, check_untransformed, largest, prepared, sum_up
from softmaxima.robust.stationary import LEAST_RADIUS, first_order, greatest, least

# Below these the direction is that of ε → 0, and so the gradient by ε at 0 that from the right.
NONE = {1.0: 1e-100, 2.0: LEAST_RADIUS}


class WorstLogSumExp(NamedTuple, Generic[Array]):
    """What a perturbation makes of logsumexp.

    >>> import numpy as np, softmaxima as sm
    >>> sm.robust.worst_logsumexp(np.zeros(2), 0.5).perturbation
    array([0.5, 0.5])
    """

    value: Array  # that is attained, one a row
    perturbation: Array  # that attains it, of the shape of the scores
    bound: Array  # no perturbation gives more (or less, of the least): the value, but for rounding


@public
def worst_logsumexp(
    x: Array,
    radius: float | Array,
    norm: float = math.inf,
    dim: int = -1,
    *,
    smallest: bool = False,
    temperature: float | Array = 1.0,
    where: Array | None = None,
) -> WorstLogSumExp[Array]:
    """The greatest LSE((x + δ)/τ) of any δ with ‖δ‖ ≤ ε, in nats, and where it is.

    Args:
        x: scores of any shape, a tensor or an array. −∞ is a mask, and stays one.
        radius: ε ≥ 0, a number or a tensor that broadcasts against x with size 1 along `dim`.
        norm: 1, 2 or `math.inf`.
        smallest: the least instead of the greatest.
        dim, temperature, where: as for `softmax`.

    Returns (value, perturbation, bound). Gradients of value, by x and by ε, are those of the worst case (Danskin): p at x + δ, and
    by ε at 0 that from the right; under ℓ2 there are no second ones. The bound holds in exact arithmetic: it is beyond the value by
    what rounding may be, (n + 16)(1 + ε/τ) 2⁻⁵², and 2⁻⁵² of the largest score over τ where τ is not 1; under ℓ2 with ε > τ also by
    what was not ruled out, up to 1e-11. A row with nothing allowed has the value −∞, one with NaN is NaN.

    Raises:
        TypeError, ValueError or IndexError for arguments that cannot be used, such as numbers above 2⁹⁶⁰, before any work.

    Cost: one logsumexp for ℓ∞ and ℓ1; some thousand reads of a row for ℓ2, up to seconds for a row of a thousand.

    Source: Lagrange's conditions (`robust/stationary.py` has the proof); Lipschitz constants of LSE under ℓ∞: Gao & Pavel (2017),
    arXiv:1704.00805.

    >>> import numpy as np, softmaxima as sm
    >>> x = np.array([2.0, 1.0, 0.0])
    >>> [float(sm.robust.worst_logsumexp(x, 1.0, norm).value.round(4)) for norm in (1, 2, np.inf)]
    [3.1698, 3.1799, 3.4076]
    """
    name = "worst_logsumexp"
    norm = check_norm(name, norm)
    if norm == 2.0:
        check_untransformed(name, "the worst case under ℓ2")
    rows = prepared(name, x, radius, dim, temperature, where)
    # Less the largest score, beside which δ may be too small to see.
    top = largest(rows.z) if rows.z.shape[-1] else torch.zeros_like(rows.radius)
    z, top = rows.z - top, top.squeeze(-1)
    direction, bound = _direction(z, rows.radius, norm, smallest)
    delta = rows.radius * direction
    above = logsumexp(z + delta)  # of the largest score
    value = first_order(name, above + top) if norm == 2.0 else above + top
    bound = above.detach() if bound is None else torch.maximum(bound, above.detach())
    sign, outward = (-1.0, -math.inf) if smallest else (1.0, math.inf)
    bound = sign * sum_up(sign * top, sign * bound + _rounding(z, rows.radius, rows.tau, top))
    bound = torch.where(bound.isfinite(), bound, value.detach())
    return WorstLogSumExp(rows.reduced(value), rows.perturbation(delta, norm), rows.reduced(bound, outward))


def _rounding(z: Tensor, radius: Tensor, tau: float | Tensor, top: Tensor) -> Tensor:
    """What the sum may be off: by its n terms, by δ, and by scores, which differ from the largest by −log p_j, over τ."""
    divided = torch.as_tensor(tau != 1.0, device=z.device)
    quotients = torch.where(divided.squeeze(-1) if divided.ndim else divided, top.abs(), 0.0)
    return torch.finfo(z.dtype).eps * ((z.shape[-1] + 16) * (1 + radius.detach().squeeze(-1)) + quotients)


def _direction(z: Tensor, radius: Tensor, norm: float, smallest: bool) -> tuple[Tensor, Tensor | None]:
    """(δ/r, a bound where it is not the value); 0 in rows without a finite largest score, and at masks."""
    sign = -1.0 if smallest else 1.0
    allowed = z > -math.inf
    if norm == math.inf or z.shape[-1] == 0:
        return sign * allowed.double(), None
    usable = z.amax(-1, keepdim=True).isfinite()
    if norm == 1.0 and not smallest:
        highest = torch.zeros_like(z).scatter(-1, z.argmax(-1, keepdim=True), 1.0)
        return torch.where(usable, highest, 0.0), None
    safe, r = torch.where(usable, z, 0.0), torch.where(usable, radius, 1.0).clamp_min(NONE[norm])
    if norm == 1.0:
        return torch.where(usable, -sparsemax(safe, temperature=r), 0.0), None
    n, shape = z.shape[-1], z.shape
    safe, r = safe.detach().reshape(-1, n), r.detach().reshape(-1, 1)
    if smallest:
        return torch.where(usable, -(least(safe, r) / r).reshape(shape), 0.0), None
    delta, bound = greatest(safe, r)
    return torch.where(usable, (delta / r).reshape(shape), 0.0), torch.where(
        usable.squeeze(-1), bound.reshape(shape[:-1]), -math.inf
    )
