"""Sums of exponentials along the last axis, stable, and the largest scores: what several maps and logsumexp are made of."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from softmaxima.base.tracing import is_keeping, sizes

MOST_P = 0.75  # a p above it is most of its row; of two that share it both are ½, or above by a rounding
PIECE = 64  # scores of which one is the largest
FEW = 1 << 12  # numbers of which an operation takes little longer than of one, and so does a message


def row_maximum(z: Tensor) -> Tensor:
    """The maximum of each row as a constant, and 0 for a row of −∞, so that `z - row_maximum(z)` is −∞ there and not NaN."""
    if sizes(z)[-1] == 0:
        return z.new_zeros((*z.shape[:-1], 1))
    maximum = z.detach().amax(-1, keepdim=True)
    return maximum.masked_fill(maximum == -math.inf, 0.0)


def row_length(x: Tensor) -> int | Tensor:
    """n of x [..., n]; as a tensor [..., 1] in float64 where what is recorded will run with another n."""
    return ((x == x) | x.isnan()).double().sum(-1, keepdim=True) if is_keeping() else x.shape[-1]


def highest(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(the k highest scores of each row, or all of fewer, the highest first; where they are)."""
    if is_keeping():
        found, where = x.sort(dim=-1, descending=True)
        return found[..., :k], where[..., :k]
    return x.topk(min(k, x.shape[-1]), -1)


def number_like(value: float | Tensor, x: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """A number or tensor as a tensor on the device of x; torch.as_tensor warns of a constant where torch.jit traces."""
    return value.to(x.device, dtype) if isinstance(value, Tensor) else torch.full((), value, dtype=dtype, device=x.device)


def xlogx(p: Tensor) -> Tensor:
    """p log p; 0 at 0, where it is given no slope."""
    return p * p.masked_fill(p <= 0, 1.0).log()


def without_mask(z: Tensor) -> Tensor:
    """z with 0 for −∞, so that a product with an exact zero is zero."""
    return z.masked_fill(z == -math.inf, 0.0)


def divisor(mass: Tensor) -> Tensor:
    """The mass, and 1 where it is 0, so that a division leaves a row of zeros as it is."""
    return mass.masked_fill(mass == 0, 1.0)


def total(weights: Tensor, more: float | Tensor = 0.0) -> Tensor:
    """Σ weights + more in float64, as a divisor."""
    return divisor(weights.sum(-1, keepdim=True, dtype=torch.float64) + more)


def normalise_exp(z: Tensor) -> Tensor:
    """exp(z) / Σ exp(z)."""
    weights = (z - row_maximum(z)).exp()
    return (weights / total(weights)).to(z.dtype)


def largest_scores(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(the k largest scores of each row [..., n] in order, where they are), of long rows in the pieces with the largest maxima."""
    n = x.shape[-1]
    pieces = n // PIECE
    if pieces < 4 * k or pieces < PIECE:
        found, where = x.topk(k, -1)
        return found, where
    whole = x[..., : pieces * PIECE].unflatten(-1, (pieces, PIECE))
    _, best = largest_scores(whole.amax(-1), k)
    scores = whole.gather(-2, best.unsqueeze(-1).expand(*best.shape, PIECE)).flatten(-2)
    where = (PIECE * best.unsqueeze(-1) + torch.arange(PIECE, device=x.device)).flatten(-2)
    rest = torch.arange(pieces * PIECE, n, device=x.device)
    found, at = torch.cat((scores, x[..., pieces * PIECE :]), -1).topk(k, -1)
    return found, torch.cat((where, rest.expand(*x.shape[:-1], -1)), -1).gather(-1, at)
