"""Gauss's quadrature of qᴴ exp(A) q by Lanczos steps."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from softmaxima.lse.matrix.operators import Product

BASIS_ELEMENTS = 2**26  # of all Krylov bases held at one time: 512 MiB in double


@dataclass(frozen=True)
class Quadrature:
    """qᴴ exp(A) q for b columns q, and e^{−log_scale} exp(A·power) q, whose entries do not overflow."""

    log_value: Tensor  # [b]
    image: Tensor  # [d, b]; without columns if no power was asked for
    log_scale: Tensor  # [b]
    top: Tensor  # the largest θ, at most the largest eigenvalue
    radius: float  # the largest |θ|
    change: float  # nats by which the last steps moved the sum
    products: int


def quadrature_of(
    product: Product, start: Tensor, max_steps: int, enough: float, floor: Tensor, power: float | None = None
) -> Quadrature:
    """Lanczos with full orthogonalisation, on all columns of `start` [d, b] at once, until log(e^floor + Σ_q qᴴ exp(A) q) moves by
    at most `enough` nats.
    """
    d, b = start.shape
    real = torch.float64
    norm = start.norm(dim=0)
    log_norm = norm.log()
    limit = min(max_steps, d)
    basis = start.new_zeros(b, min(limit, 32), d)  # [b, m, d]
    basis[:, 0] = (start / norm.masked_fill(norm == 0, 1.0)).mT
    tridiagonal = torch.zeros(b, limit, limit, dtype=real, device=start.device)
    check, previous, scale = min(limit, 8), None, torch.zeros(b, dtype=real, device=start.device)
    ended = torch.zeros(b, dtype=torch.bool, device=start.device)
    m = 0
    while True:
        m += 1
        vector = basis[:, m - 1]
        image = product(vector.mT.contiguous()).mT.unsqueeze(-1)  # [b, d, 1]
        span = basis[:, :m]
        alpha = (vector.conj() * image.squeeze(-1)).sum(-1).real
        # A column that has ended goes on with weight 0, and with a node inside its own spectrum.
        alpha = torch.where(ended, tridiagonal[:, 0, 0], alpha)
        for _ in range(2):  # once leaves what rounding left; twice is enough (Kahan & Parlett)
            image = image - span.mT @ (span.conj() @ image)
        image = image.squeeze(-1)
        beta = image.norm(dim=-1)
        tridiagonal[:, m - 1, m - 1] = alpha
        scale = torch.maximum(scale, alpha.abs() + beta)
        ended = ended | (beta <= 16 * torch.finfo(real).eps * scale)  # the Krylov space is exhausted
        beta = beta.masked_fill(ended, 0.0)
        if m in (check, limit):
            nodes, vectors = torch.linalg.eigh(tridiagonal[:, :m, :m])
            first = vectors[:, 0]  # [b, m]: components of the starting vector
            log_value = 2 * log_norm + torch.logsumexp(nodes + 2 * first.abs().log(), -1)
            total = torch.logaddexp(floor, torch.logsumexp(log_value, 0))
            exhausted = m == d or bool(ended.all())
            change = 0.0 if exhausted else math.inf if previous is None else float((total - previous).abs())
            if m == limit or change <= enough:
                break
            previous, check = total, min(limit, m + max(4, m // 4))
        if m == basis.shape[1]:
            basis = torch.cat([basis, basis.new_zeros(b, min(m, limit - m), d)], 1)
        basis[:, m] = image / beta.masked_fill(beta == 0, math.inf).unsqueeze(-1)
        tridiagonal[:, m, m - 1] = tridiagonal[:, m - 1, m] = beta
    top = nodes.amax(-1, keepdim=True)
    columns = start[:, :0]
    if power is not None:
        coefficients = (vectors * ((power * (nodes - top)).exp() * first).unsqueeze(-2)).sum(-1)  # exp(power·(T − top)) e₁
        columns = (basis[:, :m].mT @ coefficients.to(start.dtype).unsqueeze(-1)).squeeze(-1).mT
        top_scale = log_norm + power * top.squeeze(-1)
    else:
        top_scale = log_norm[:0]
    return Quadrature(log_value, columns, top_scale, nodes.max(), float(nodes.abs().max()), change, m * b)


def in_blocks(
    product: Product, start: Tensor, max_steps: int, enough: float, floor: Tensor, power: float | None = None
) -> Quadrature:
    """`quadrature_of` on as many columns at a time as BASIS_ELEMENTS allow at 64 steps."""
    width = max(1, BASIS_ELEMENTS // (64 * start.shape[0]))
    parts = [quadrature_of(product, block, max_steps, enough, floor, power) for block in start.split(width, 1)]
    return joined(parts)


def joined(parts: list[Quadrature]) -> Quadrature:
    return Quadrature(
        torch.cat([part.log_value for part in parts]),
        torch.cat([part.image for part in parts], 1),
        torch.cat([part.log_scale for part in parts]),
        torch.stack([part.top for part in parts]).max(),
        max(part.radius for part in parts),
        max(part.change for part in parts),
        sum(part.products for part in parts),
    )
