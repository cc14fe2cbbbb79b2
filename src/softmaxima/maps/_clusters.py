r"""Maps that give equal probabilities to clusters of scores: p = relu(u − λ) with Σp = 1, u equal in each cluster.

A solver says of a row [n] of finite scores, the largest of which is 0, in which order each cluster is in one piece, where each
begins and ends, its u, and ∂u/∂γ by the strength γ of what makes them equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from softmaxima.base.jacobian import Clustered
from softmaxima.base.onnx import refuse_export
from softmaxima.base.rows import number_like
from softmaxima.engine.contract import Parameter
from softmaxima.maps._threshold import entmax_rows

ROUNDING = 2.0**-48  # of levels: it must not say which equal scores are in one cluster, nor what is in the support at its edge
Cluster = tuple[int, int, float, float]  # (begin, end in the order, u, ∂u/∂γ)
Solver = Callable[[list[float], float], tuple[Sequence[int], list[Cluster]]]  # (z, γ) → (the order, the clusters)


class Clusters(NamedTuple):
    """Of each score [..., n]."""

    level: Tensor  # u in float64; −∞ where masked, NaN in a row with NaN or +∞
    rate: Tensor  # ∂u/∂γ in float64; 0 where masked
    number: Tensor  # of its cluster, in [0, n)


def probabilities(found: Clusters, gamma: float | Tensor) -> Tensor:
    p, count = entmax_rows(found.level, 1.0), (found.level > -math.inf).sum(-1, keepdim=True)
    rounding = torch.minimum(number_like(ROUNDING * (1 + gamma), p, p.dtype), 0.5 / count)
    return p.masked_fill(p <= rounding, 0.0)


def sensitivity(found: Clusters, p: Tensor) -> Clustered:
    size = torch.zeros_like(found.level).scatter_add(-1, found.number, (p > 0).double()).gather(-1, found.number)
    return Clustered(torch.where(p > 0, size, 0.0).masked_fill(p.isnan(), math.nan).to(p.dtype), found.number)


def gradient(found: Clusters, p: Tensor) -> Tensor:
    """∂p/∂γ = ∂u/∂γ less its mean over the support, on it."""
    support = p > 0
    mean = torch.where(support, found.rate, 0.0).sum(-1, keepdim=True) / support.sum(-1, keepdim=True).clamp_min(1)
    return torch.where(support, found.rate - mean, 0.0).masked_fill(p.isnan(), math.nan).to(p.dtype)


def levels(found: Clusters, z: Tensor, gamma: float | Tensor) -> Tensor:
    """u with its derivatives by z, less whose largest it is, and γ."""
    allowed = z > -math.inf
    total, count = (
        torch.zeros_like(v).scatter_add(-1, found.number, v).gather(-1, found.number)
        for v in (z.masked_fill(~allowed, 0.0), allowed.to(z.dtype))
    )
    moving = total / count.clamp_min(1.0) + found.rate * gamma
    top = z.amax(-1, keepdim=True).detach()
    return torch.where(allowed, (found.level + top).detach() + (moving - moving.detach()), -math.inf)


def solved(z: Tensor, gamma: Tensor, solve: Solver) -> tuple[Tensor, Tensor, Tensor]:
    """The `Clusters` of rows, one at a time on the host."""
    strengths = gamma.detach().double().expand(*z.shape[:-1], 1).reshape(-1).tolist()
    found = [_of_row(row, strength, solve) for row, strength in zip(_rows(z), strengths, strict=True)]
    columns = zip(*found, strict=True) if found else ((), (), ())
    kinds = (torch.float64, torch.float64, torch.int64)
    level, rate, number = (torch.tensor(v, dtype=kind).reshape(z.shape) for v, kind in zip(columns, kinds, strict=True))
    return level.to(z.device), rate.to(z.device), number.to(z.device)


def _rows(z: Tensor) -> list[list[float]]:
    return z.detach().double().reshape(-1, z.shape[-1]).tolist() if z.numel() else []


def _of_row(z: list[float], gamma: float, solve: Solver) -> tuple[list[float], list[float], list[int]]:
    level, rate, number = [-math.inf] * len(z), [0.0] * len(z), [0] * len(z)
    if not all(x < math.inf for x in z):
        return [math.nan] * len(z), rate, number
    place = [i for i, x in enumerate(z) if x > -math.inf]
    if place:
        top = max(z)
        order, clusters = solve([z[i] - top for i in place], gamma)
        for c, (begin, end, own_level, own_rate) in enumerate(clusters):
            for k in range(begin, end):
                i = place[order[k]]
                level[i], rate[i], number[i] = own_level, own_rate, c
    return level, rate, number


def operation(name: str, solve: Solver) -> Callable[[Tensor, Any], Clusters]:
    """`solved` as one operation, for its steps depend on the data, which torch.compile and vmap cannot trace."""

    @torch.library.custom_op(f"softmaxima::{name}_clusters", mutates_args=())
    def clusters(z: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return solved(z, gamma, solve)

    @clusters.register_fake
    def _(z: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        level = torch.empty_like(z, dtype=torch.float64, memory_format=torch.contiguous_format)
        return level, torch.empty_like(level), torch.empty_like(level, dtype=torch.int64)

    @clusters.register_vmap
    def _(info: Any, in_dims: tuple[Any, ...], z: Tensor, gamma: Tensor) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        z, gamma = (
            v.unsqueeze(0).expand(info.batch_size, *v.shape) if axis is None else v.movedim(axis, 0)
            for v, axis in zip((z, gamma), in_dims, strict=True)
        )
        gamma = gamma.reshape(info.batch_size, *[1] * (z.ndim - gamma.ndim), *gamma.shape[1:])
        return clusters(z, gamma), (0, 0, 0)

    def found(z: Tensor, gamma: Any) -> Clusters:
        return Clusters(*clusters(z.detach(), number_like(gamma, z).detach()))

    return found


def functions(
    name: str, clusters: Callable[[Tensor, Any], Clusters]
) -> tuple[Callable[..., Tensor], Callable[..., Clustered], Callable[..., Tensor]]:
    """(forward, sensitivity, ∂p/∂γ) of the map that its clusters make."""

    def forward(z: Tensor, gamma: float | Tensor) -> Tensor:
        refuse_export(name, "loop over the scores of a row")
        return probabilities(clusters(z, gamma), gamma).to(z.dtype)

    return (
        forward,
        lambda p, z, gamma: sensitivity(clusters(z, gamma), p),
        lambda p, z, gamma: gradient(clusters(z, gamma), p),
    )


def strength(default: float, examples: tuple[float, ...], gradient: Any, regulariser_gradient: Any) -> Parameter:
    """γ."""
    return Parameter(
        name="gamma",
        default=default,
        examples=examples,
        valid=lambda gamma: (gamma >= 0) & (gamma < math.inf),
        domain="at least 0 and finite",
        gradient=gradient,
        regulariser_gradient=regulariser_gradient,
    )


def one_per_row(gamma: float | Tensor, p: Tensor) -> float | Tensor:
    """γ as a number, or [...] to go with sums over rows p [..., n]."""
    return gamma.to(p).squeeze(-1) if isinstance(gamma, Tensor) and gamma.ndim else gamma
