r"""normalize: p_i = f(x_i) / Σ_j f(x_j), for any elementwise f ≥ 0."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from softmaxima._map import Array, Cost, Map, Parameter, Properties, is_concrete, register, without_mask
from softmaxima.maps._module import MapModule


def reference(x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    y = torch.where(x > -math.inf, f(without_mask(x.double())), 0.0)
    mass = y.sum(-1, keepdim=True)
    return torch.where(mass == 0, 0.0, y / mass)


def divide(y: Tensor, mass: Tensor) -> Tensor:
    """y/mass, and zero for a row without mass."""
    return y / mass.masked_fill(mass == 0, 1.0)


def forward(z: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    y = f(without_mask(z.double())).masked_fill(z == -math.inf, 0.0)  # f may overflow or vanish in a narrower dtype
    y = y.masked_fill(z == math.inf, math.nan)  # as every map, also where f is bounded
    if is_concrete(y) and bool((y < 0).any()):
        raise ValueError(f"normalize: f must not be negative, got {float(y.min())}; take relu, sigmoid, softplus or a square")
    return divide(y, y.sum(-1, keepdim=True)).to(z.dtype)


def sensitivity(p: Tensor, z: Tensor, f: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    scores = without_mask(z.double())
    y, pull_back = torch.func.vjp(f, scores)[:2]
    (slope,) = pull_back(torch.ones_like(y))
    masked = z == -math.inf
    mass = y.masked_fill(masked, 0.0).sum(-1, keepdim=True)
    return divide(slope.masked_fill(masked, 0.0), mass).to(z.dtype), p


NORMALIZE = register(
    Map(
        name="normalize",
        reference=reference,
        forward=forward,
        sensitivity=sensitivity,
        params=(
            Parameter(
                name="f",
                default=torch.sigmoid,
                examples=(torch.sigmoid, torch.square, torch.nn.functional.softplus),
                valid=callable,
                domain="a function from a tensor to a non-negative tensor of its shape, elementwise",
            ),
        ),
        properties=Properties(mass="zero or one", shift_invariant=False, order_preserving=False),
        cost=Cost(reads=2),
        source="Su (2024), kexue.fm/archives/10145",
        uses_scores=True,
    )
)


def normalize(
    x: Array,
    dim: int = -1,
    *,
    f: Callable[[Tensor], Tensor] = torch.sigmoid,
    temperature: float | Array = 1.0,
    where: Array | None = None,
) -> Array:
    """Normalised f, `p_i = f(x_i/τ) / Σ_j f(x_j/τ)`.

    Args:
        f: an elementwise function of a tensor, differentiable by torch and nowhere negative: torch.sigmoid, torch.square,
            torch.nn.functional.softplus, … A negative value raises ValueError (on the CPU, outside torch.compile).
        x, dim, temperature, where: as for `softmax`.

    A row where f is zero throughout gives zeros. Order is kept if f increases. Errors as for `softmax`. Cost: two reads and
    one write, and f.

    >>> import numpy as np, torch, softmaxima as sm
    >>> sm.normalize(np.array([3.0, 1.0, 0.0]), f=torch.square)
    array([0.9, 0.1, 0. ])
    """
    return NORMALIZE(x, dim, f=f, temperature=temperature, where=where)


class Normalize(MapModule):
    """`normalize` as a module.

    >>> import torch, softmaxima as sm
    >>> sm.Normalize(torch.nn.functional.softplus)
    Normalize(dim=-1, temperature=1.0, f=softplus)
    """

    def __init__(self, f: Callable[[Tensor], Tensor] = torch.sigmoid, dim: int = -1, *, temperature: float | Tensor = 1.0) -> None:
        super().__init__(NORMALIZE, dim, temperature=temperature, f=f)
