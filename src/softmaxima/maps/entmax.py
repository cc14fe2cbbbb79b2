r"""entmax-α: p = argmax_{q∈Δ} ⟨q, x⟩ − Ω_α(q) = relu(βx − λ)^{1/β}, β = α − 1, Ω_α(p) = (Σ p^α − 1) / (α(α − 1)).

α = 1 is softmax, α = 2 sparsemax, and below 1 nothing gets zero (`_below_one.py`). With l = log p, w = p^{2−α} and Σw their sum,

    ∂p/∂α = (p − q)/β² − (p l − q Σ p l)/β = p/Σw · [Σ pφ − φ − β (l Σ pφ − φ Σ p l)],   φ = (e^{−βl} − 1 + βl)/β² = l² φ₂(−βl).

The first form cancels near α = 1; in the second nothing does, and its value at 1 is the limit
½ p (Σ p l² − l²). Where p is small w and φ are beyond every dtype for large α: all are taken relative to e^c, c = max −βl.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from softmaxima.base.arguments import Array, DType
from softmaxima.base.jacobian import Balanced
from softmaxima.base.public import public
from softmaxima.base.rows import divisor, number_like
from softmaxima.base.series import expm1_ratio, expm1_ratio_slope, scaled_expm1_remainder
from softmaxima.base.tracing import is_concrete, is_eager
from softmaxima.engine.blocks import thresholded
from softmaxima.engine.contract import Cost, Map, Parameter, Properties, register
from softmaxima.engine.evaluation import evaluate
from softmaxima.kernels.kernel import Kernel
from softmaxima.maps._below_one import dense_rows, literal_rows
from softmaxima.maps._module import MapModule
from softmaxima.maps._threshold import entmax_rows


def reference(x: Tensor, alpha: float | Tensor) -> Tensor:
    alpha = torch.as_tensor(alpha, dtype=torch.float64, device=x.device)
    if (alpha == 1).all():
        e = x.double().exp()
        return e / e.sum(-1, keepdim=True)
    if (below := alpha < 1).any():
        dense = literal_rows(x, torch.where(below, alpha, 0.5) - 1)
        return dense if below.all() else torch.where(below, dense, reference(x, alpha.clamp_min(1.0)))
    beta = alpha - 1
    z = beta * x.double()
    low = z.amax(-1, keepdim=True) - 1
    high = z.amax(-1, keepdim=True) - z.shape[-1] ** -beta
    for _ in range(200):
        middle = (low + high) / 2
        above = ((z - middle).relu() ** (1 / beta)).sum(-1, keepdim=True) >= 1
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return (z - low).relu() ** (1 / beta)


# From here on p has stopped changing, and the squares of α do not overflow.
_LARGEST_ORDER = 1e150


def order(alpha: float | Tensor) -> float | Tensor:
    """α in double, bounded."""
    return alpha.double().clamp_max(_LARGEST_ORDER) if isinstance(alpha, Tensor) else min(float(alpha), _LARGEST_ORDER)


def forward(z: Tensor, alpha: float | Tensor) -> Tensor:
    alpha = order(alpha)
    if not isinstance(alpha, Tensor):
        return entmax_rows(z, alpha - 1) if alpha >= 1 else dense_rows(z, number_like(alpha - 1, z)).to(z.dtype)
    below = alpha < 1
    if is_concrete(alpha) and not below.any():
        return entmax_rows(z, alpha - 1)
    dense = dense_rows(z, torch.where(below, alpha, 0.5) - 1).to(z.dtype)
    return torch.where(below, dense, entmax_rows(z, alpha.clamp_min(1.0) - 1))


def theta(alpha: float | Tensor) -> tuple[float | Tensor] | None:
    """What the kernels take, α ≥ 1; a GPU's are given what cannot be read without waiting, and make NaN of α < 1."""
    if not isinstance(alpha, Tensor):
        return (alpha,) if alpha >= 1 else None
    return None if not is_eager(alpha) or (is_concrete(alpha) and bool((alpha < 1).any())) else (alpha,)


def log_on_support(p: Tensor) -> tuple[Tensor, Tensor]:
    """(where p > 0, or NaN, log p there and 0 elsewhere)."""
    support = ~(p <= 0)
    return support, torch.where(support, p, 1.0).log()


def sensitivity(p: Tensor, z: None, alpha: float | Tensor) -> Balanced:
    support, log_p = log_on_support(p.double())  # for large α the rounding of log p counts α times
    return Balanced(((2 - order(alpha)) * log_p).masked_fill(~support, -math.inf))


def alpha_gradient(p: Tensor, z: Tensor, alpha: float | Tensor) -> Tensor:
    beta, wide = order(alpha) - 1, p.double()
    _, log_p = log_on_support(wide)
    t = -beta * log_p
    scale = t.detach().amax(-1, keepdim=True).clamp_min(0.0)
    mass = (wide * (t - scale).exp()).sum(-1, keepdim=True)  # Σw e^{−c}, as those below
    phi = log_p**2 * scaled_expm1_remainder(t, scale)
    mean_phi = (wide * phi).sum(-1, keepdim=True)
    mean_log = (wide * log_p).sum(-1, keepdim=True)
    gradient = wide / divisor(mass) * (mean_phi - phi - beta * (log_p * mean_phi - phi * mean_log))
    return gradient.to(p.dtype)


def tsallis(p: Tensor, alpha: float | Tensor) -> Tensor:
    """Ω_α(p) = Σ p (p^β − 1)/(αβ), and Σ p log p at α = 1, of which 0 has no slope."""
    support, log_p = log_on_support(p)
    beta = alpha - 1
    if isinstance(beta, Tensor):
        at_zero = torch.where(beta == 0, 0.0, -1 / beta.where(beta != 0, 1.0))
    else:
        at_zero = -1 / beta if beta else 0.0
    return (p * torch.where(support, log_p * expm1_ratio(beta * log_p), at_zero) / alpha).sum(-1)


def alpha_regulariser_gradient(p: Tensor, alpha: float | Tensor) -> Tensor:
    _, log_p = log_on_support(p)
    t = (alpha - 1) * log_p
    return (p * log_p * (log_p * expm1_ratio_slope(t) - expm1_ratio(t) / alpha)).sum(-1, keepdim=True) / alpha


KERNEL = Kernel("entmax", "entmax_backward", "entmax_loss", theta=theta)
ENTMAX = register(
    Map(
        name="entmax",
        reference=reference,
        forward=forward,
        sensitivity=sensitivity,
        regulariser=tsallis,
        params=(
            Parameter(
                name="alpha",
                default=1.5,
                examples=(1.5, 1.0, 1.05, 1.25, 2.0, 2.5),
                valid=lambda alpha: (alpha > 0) & (alpha < math.inf),
                domain="positive and finite",
                gradient=alpha_gradient,
                regulariser_gradient=alpha_regulariser_gradient,
            ),
        ),
        properties=Properties(sparse=True),
        cost=Cost(reads=2),
        kernel=KERNEL,
        blocks=thresholded(forward, tsallis, KERNEL),
        formula="relu((α−1) x_i − λ)^{1/(α−1)}",
        source="Peters, Niculae & Martins (2019), arXiv:1905.05702; Correia et al. (2019), arXiv:1909.00015",
    )
)


@public
def entmax(
    x: Array,
    *,
    alpha: float | Array = 1.5,
    dim: int | Sequence[int] = -1,
    temperature: float | Array = 1.0,
    where: Array | None = None,
    dtype: DType = None,
) -> Array:
    """Entmax-α, `p = relu((α−1) x/τ − λ)^{1/(α−1)}` with λ such that Σp = 1, for every α > 0.

    α = 1 is softmax, α = 2 sparsemax, and p moves continuously with α, through α = 1 as well. For α > 1 scores more than
    1/(α−1) below the maximum of x/τ always get exactly zero; for α < 1 no finite score does, and p falls as |x|^{1/(α−1)}.

    Args:
        alpha: α > 0, a number or a tensor that broadcasts against x with size 1 along `dim` (one a row, or one a head); a tensor
            may require grad. A tensor on a GPU is not read, and gives NaN where it is below 1: there α < 1 is a number.
        x, dim, temperature, where, dtype: as for `softmax`.

    Errors as for `softmax`. Cost: two reads, one write and a Newton solve over the scores that can be in the support; never a sort.
    Below 1 some ten passes by torch's operations, in float64.

    >>> import numpy as np, softmaxima as sm
    >>> sm.entmax(np.array([1.0, 0.0, -2.0]), alpha=1.2).round(4)
    array([0.7622, 0.2328, 0.005 ])
    """
    return evaluate(ENTMAX, x, dim, temperature, where, {"alpha": alpha}, dtype)


@public
class Entmax(MapModule):
    """`entmax` as a module; give `Positive(1.5, minimum=1.0)` as α to learn it.

    >>> import torch, softmaxima as sm
    >>> sm.Entmax(alpha=1.25, dim=1)
    Entmax(dim=1, temperature=1.0, alpha=1.25)
    """

    def __init__(
        self,
        alpha: float | Tensor | nn.Module = 1.5,
        dim: int | Sequence[int] = -1,
        *,
        temperature: float | Tensor | nn.Module = 1.0,
    ) -> None:
        super().__init__(ENTMAX, dim, temperature=temperature, alpha=alpha)
