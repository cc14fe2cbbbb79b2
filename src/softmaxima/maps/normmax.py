r"""normmax: p = argmax_{q∈Δ} ⟨q, x⟩ − ‖q‖_α = u/Σu,  u = relu(x − λ)^{1/β},  with λ such that Σ u^α = 1;  β = α − 1.

It is entmax-α at a temperature that each row sets itself, p = entmax_α(‖p‖_α^β x/β). As ‖u‖_α = 1, u = p/‖p‖_α, and

    ∂u/∂x = diag(s) − s pᵀ,    s = u^{2−α}/β        ∂u/∂α = s Σ(u^α log u) ‖p‖_α/α − u log u/β
    ∂p/∂θ = ‖p‖_α (I − p 1ᵀ) ∂u/∂θ

α = 1 is the limit, uniform over the largest scores, with no gradient. For rows with maximum 0 the solver seeks t = −λ ∈ (0, 1] with

    G(t) = ‖relu(t + x)‖_{α/β} = (Σ u^α)^{β/α} = 1.

G is convex with slope ≥ 1 from its root on, so Newton's steps from t = 1 never pass the root. With g = G − 1 and its slope s, each
step has g′/g + s′/s ≤ 1, by convexity: g·s falls at least fourfold, and some log₂(n) + 26 steps always suffice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from softmaxima.base.arguments import Array, DType
from softmaxima.base.jacobian import Centred
from softmaxima.base.public import public
from softmaxima.base.rows import number_like, row_maximum, total
from softmaxima.base.tracing import is_exporting_to_onnx
from softmaxima.engine.blocks import RegulariserInParts, thresholded
from softmaxima.engine.contract import Cost, Map, Parameter, Properties, register
from softmaxima.engine.evaluation import evaluate
from softmaxima.kernels.kernel import Kernel
from softmaxima.maps._module import MapModule
from softmaxima.maps._threshold import halved
from softmaxima.maps.entmax import log_on_support


def reference(x: Tensor, alpha: float | Tensor) -> Tensor:
    z = x.double()
    high = z.amax(-1, keepdim=True)
    low = high - 1
    for _ in range(100):
        middle = (low + high) / 2
        above = ((z - middle).relu() ** (alpha / (alpha - 1))).sum(-1, keepdim=True) >= 1
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    u = (z - low).relu() ** (1 / (alpha - 1))
    return u / u.sum(-1, keepdim=True)


def forward(z: Tensor, alpha: float | Tensor) -> Tensor:
    alpha = number_like(alpha, z)
    x = z.double() - row_maximum(z).double()
    u = _by_halving(x, alpha) if is_exporting_to_onnx() else _by_newton(x, alpha)
    return (u / total(u)).to(z.dtype)


def _by_newton(x: Tensor, alpha: Tensor) -> Tensor:
    """u, of rows with maximum 0."""
    beta = alpha - 1
    level = torch.ones_like(x[..., :1])
    while True:
        base = (level + x).relu()
        u = base ** (1 / beta)
        mass = (base * u).sum(-1, keepdim=True)  # Σ u^α, where u^α would multiply the rounding of u by α
        step = mass ** (1 / alpha) * torch.expm1(mass.log() * beta / alpha) / u.sum(-1, keepdim=True)  # (G − 1)/G′
        moving = step > 4e-16 * level
        if not moving.any():
            return u
        level = torch.where(moving, level - step, level)


def _by_halving(x: Tensor, alpha: Tensor) -> Tensor:
    """The same without a loop whose length depends on the data, for ONNX."""
    power = lambda level: (level + x).relu() ** (1 / (alpha - 1))
    light = lambda level: (power(level) * (level + x).relu()).sum(-1, keepdim=True) < 1
    _, high = halved(torch.zeros_like(x[..., :1]), torch.ones_like(x[..., :1]), light)
    return power(high)


def _log_powers(p: Tensor, alpha: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(log p where p > 0, α log p and −∞ elsewhere, log Σ p^α and 0 for a row of zeros)."""
    support, log_p = log_on_support(p)
    powers = (alpha * log_p).masked_fill(~support, -math.inf)
    log_sum = torch.logsumexp(powers, -1, keepdim=True)
    return log_p, powers, log_sum.masked_fill(log_sum == -math.inf, 0.0)


def _per_beta(values: Tensor, alpha: float | Tensor) -> Tensor:
    """values/β, and 0 for β = 0, where p is piecewise constant."""
    beta = number_like(alpha, values, values.dtype) - 1
    return values / beta.masked_fill(beta == 0, math.inf)


def _in_double(p: Tensor, z: Tensor | None, alpha: float | Tensor) -> Tensor:
    """p in double, from its scores: for large α the rounding of p counts α times."""
    if p.dtype == torch.float64 or z is None:
        return p
    return torch.where(p == 0, 0.0, NORMMAX(z.double(), alpha=alpha))


def sensitivity(p: Tensor, z: Tensor | None, alpha: float | Tensor) -> Centred:
    wide = _in_double(p, z, alpha).double()
    log_p, _, log_sum = _log_powers(wide, alpha)
    slopes = ((2 - alpha) * log_p + (alpha - 1) / alpha * log_sum).exp()  # u^{2−α} ‖p‖
    return Centred(_per_beta(torch.where(wide > 0, slopes, 0.0), alpha), wide / total(wide))


def alpha_gradient(p: Tensor, z: Tensor, alpha: float | Tensor) -> Tensor:
    wide = _in_double(p, z, alpha)
    log_p, powers, log_sum = _log_powers(wide, alpha)
    log_norm = log_sum / alpha
    log_u = log_p - log_norm
    mean_log = ((powers - log_sum).exp() * log_u).sum(-1, keepdim=True)  # Σ u^α log u
    slopes = sensitivity(wide, None, alpha).s * mean_log * log_norm.exp() / alpha - _per_beta(wide * log_u, alpha)  # ‖p‖ ∂u/∂α
    return (slopes - wide / total(wide) * slopes.sum(-1, keepdim=True)).to(p.dtype)


def norm(p: Tensor, alpha: float | Tensor) -> Tensor:
    """‖p‖_α by logarithms, as p^α underflows for large α; 1 for a row of zeros."""
    _, _, log_sum = _log_powers(p, alpha)
    return (log_sum / alpha).exp().squeeze(-1)


NORM_IN_PARTS = RegulariserInParts(
    of_part=lambda p, alpha: torch.logsumexp(_log_powers(p, alpha)[1], -1),
    merge=torch.logaddexp,
    whole=lambda log_sum, mass, alpha: (log_sum / _of_rows(alpha)).exp(),
)


def _of_rows(alpha: float | Tensor) -> float | Tensor:
    return alpha.squeeze(-1) if isinstance(alpha, Tensor) else alpha


def norm_gradient(p: Tensor, alpha: float | Tensor) -> Tensor:
    """∂‖p‖_α/∂α = ‖p‖_α (Σ w log p − log(Σ p^α)/α)/α,  w = p^α/Σ p^α."""
    log_p, powers, log_sum = _log_powers(p, alpha)
    mean_log = ((powers - log_sum).exp() * log_p).sum(-1, keepdim=True)
    return (log_sum / alpha).exp() * (mean_log - log_sum / alpha) / alpha


KERNEL = Kernel("normmax", "normmax_backward")
NORMMAX = register(
    Map(
        name="normmax",
        reference=reference,
        forward=forward,
        sensitivity=sensitivity,
        regulariser=norm,
        params=(
            Parameter(
                name="alpha",
                default=2.0,
                examples=(2.0, 1.1, 3.0),
                valid=lambda alpha: (alpha >= 1) & (alpha < math.inf),
                domain="at least 1 and finite",
                gradient=alpha_gradient,
                regulariser_gradient=norm_gradient,
            ),
        ),
        properties=Properties(sparse=True, monotone=False, additive_regulariser=False),
        cost=Cost(reads=2),
        uses_scores=True,
        kernel=KERNEL,
        blocks=thresholded(forward, norm, KERNEL),
        regulariser_in_parts=NORM_IN_PARTS,
        formula="u_i / Σ u_j, u = relu(x − λ)^{1/(α−1)}, Σ u_j^α = 1",
        source="Blondel, Martins & Niculae (2020), arXiv:1901.02324; Santos et al. (2024), arXiv:2402.13725",
    )
)


@public
def normmax(
    x: Array,
    *,
    alpha: float | Array = 2.0,
    dim: int | Sequence[int] = -1,
    temperature: float | Array = 1.0,
    where: Array | None = None,
    dtype: DType = None,
) -> Array:
    """Normmax, `p = argmax_{q∈Δ} ⟨q, x/τ⟩ − ‖q‖_α`: u/Σu with u = relu(x/τ − λ)^{1/(α−1)} and λ such that Σ u^α = 1.

    Scores 1 or more below the maximum of x/τ always get exactly zero, for every α. As α grows, p tends to uniform on its support,
    so that it chooses a set rather than an order.

    Args:
        alpha: α ≥ 1, a number or a tensor that broadcasts against x with size 1 along `dim`; a tensor may require grad. 1 shares
            equally among the largest scores: there p jumps with the scores, and has no gradient.
        x, dim, temperature, where, dtype: as for `softmax`.

    Its loss is `fenchel_young_loss(…, map="normmax")`. Errors as for `softmax`. Cost: two reads, one write and Newton's method on
    the scores within 1 of the maximum; never a sort. Source: Blondel, Martins & Niculae (2020), arXiv:1901.02324.

    >>> import numpy as np, softmaxima as sm
    >>> sm.normmax(np.array([1.0, 0.75, 0.5, 0.0])).round(4)
    array([0.4876, 0.3333, 0.179 , 0.    ])
    """
    return evaluate(NORMMAX, x, dim, temperature, where, {"alpha": alpha}, dtype)


@public
class Normmax(MapModule):
    """`normmax` as a module; give `Positive(1.5, minimum=1.0)` as α to learn it.

    >>> import torch, softmaxima as sm
    >>> sm.Normmax(alpha=3.0)(torch.tensor([1.0, 0.0]))
    tensor([1., 0.])
    """

    def __init__(
        self,
        alpha: float | Tensor | nn.Module = 2.0,
        dim: int | Sequence[int] = -1,
        *,
        temperature: float | Tensor | nn.Module = 1.0,
    ) -> None:
        super().__init__(NORMMAX, dim, temperature=temperature, alpha=alpha)
