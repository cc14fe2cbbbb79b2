"""Rows of scores that are drawn from: checked at the public edge, the axis last and in float64, and what is made of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.arguments import as_scores, like_input, moved_back, moved_last, rows_last
from softmaxima.base.jacobian import narrowed
from softmaxima.base.numbers import check_count
from softmaxima.base.randomness import Randomness
from softmaxima.base.rows import row_maximum, without_mask
from softmaxima.base.temperature import quotient
from softmaxima.base.tracing import is_recording, sizes
from softmaxima.engine.contract import Map
from softmaxima.engine.evaluation import check_params
from softmaxima.sampling.noise import gumbel, uniform


@dataclass(frozen=True)
class Rows:
    """Scores [..., n] in float64, −∞ where masked, and how they came."""

    name: str
    given: Any
    x: Tensor
    tau: float | Tensor
    dim: int
    dtype: torch.dtype
    draws: tuple[int, ...]  # sizes in front of those of x
    scalar: bool

    def uniform(self, generator: Randomness, *more: int) -> Tensor:
        """A number for each score of each draw."""
        return uniform(self.name, (*more, *self.draws, *self.x.shape), self.x.device, generator)

    @property
    def relative(self) -> Tensor:
        """x less the largest of its row, which keeps the digits of the noise that is added."""
        return self.x - row_maximum(self.x)

    def perturbed(self, generator: Randomness) -> Tensor:
        """x + G [draws…, ..., n], less the largest x of the row."""
        return self.relative + gumbel(self.uniform(generator))

    def tempered(self) -> Rows:
        """Rows of x/τ less the largest of each, so that none has the digits of an offset."""
        return replace(self, x=over_temperature(self.relative, self.tau), tau=1.0)

    def expanded(self, v: Tensor) -> Tensor:
        """[..., k] for each draw [draws…, ..., k]."""
        return v.expand(*self.draws, *self.x.shape[:-1], v.shape[-1])

    def placed(self, v: Tensor) -> Tensor:
        """The last axis where the scores had theirs."""
        place = self.dim + len(self.draws)
        return moved_back(v, place)

    def back(self, p: Tensor) -> Any:
        """What has a number a score, as the scores came."""
        p = self.placed(p.to(self.dtype))
        return like_input(p.squeeze(-1) if self.scalar else p, self.given)


def as_rows(name: str, x: Any, dim: Any, temperature: Any, where: Any, samples: Any) -> Rows:
    """Validated before any work."""
    scores = as_scores(name, x)
    axis, rows, tau, mask = rows_last(name, scores, dim, temperature, where)
    draws = () if samples is None else (check_count(name, "samples", samples),)
    wide = widened(rows)
    if mask is not None:
        wide = wide.masked_fill(~mask, -math.inf)
    return Rows(name, x, wide, tau, axis, scores.dtype, draws, scores.ndim == 0)


def map_params(name: str, map: Map, params: dict[str, Any], rows: Rows) -> dict[str, Any]:
    """The map's parameters, those of rows with the axis last."""
    values = check_params(map, map.complete(params, name), moved_back(rows.x, rows.dim), rows.dim, name)
    return {p.name: moved_last(value, rows.dim) for p, value in zip(map.params, values, strict=True)}


def over_temperature(x: Tensor, tau: float | Tensor) -> Tensor:
    """x/τ, −∞ where x is. What is given no derivative has none by τ either, though x/τ² alone may be infinite."""
    if not isinstance(tau, Tensor):
        return quotient(x, tau)
    tau = tau.to(x.dtype)
    moved = (tau.detach().log() - tau.log()).exp()  # 1, with the derivatives of 1/τ times τ, each a product one factor at a time
    z = x / tau.detach()
    return (without_mask(z) * moved).masked_fill(z == -math.inf, -math.inf)


def index_of(y: Tensor) -> Tensor:
    """The index of the largest of each row, −1 where there is none, or it is not finite."""
    y = y.detach()
    if sizes(y)[-1] == 0:
        return torch.full(sizes(y)[:-1], -1, dtype=torch.long, device=y.device)
    top, index = y.max(-1)
    return index.masked_fill(~((top > -math.inf) & (top < math.inf)), -1)


def largest(y: Tensor) -> Tensor:
    """Where that is, one of [..., n] or none, boolean."""
    return torch.arange(y.shape[-1], device=y.device) == index_of(y).unsqueeze(-1)


def moving(x: Tensor) -> Tensor:
    """0, with the derivative of x; none where that is −∞."""
    known = without_mask(x)
    return known - known.detach()


def straight(one_hot: Tensor, p: Tensor, dtype: torch.dtype) -> Tensor:
    """`one_hot` exactly, with the derivatives of p; NaN where p is."""
    p = p.to(dtype)
    return one_hot.to(dtype) + (p - p.detach())


# Scores in float64, whose derivative in their own dtype is its largest number where only the dtype makes it infinite ---------


class _Widened(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.double()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.dtype = inputs[0].dtype

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return narrowed(grads[0], ctx.dtype)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return tangents[0].double()


def widened(x: Tensor) -> Tensor:
    """x in float64."""
    return x.double() if x.dtype == torch.float64 or is_recording() else _Widened.apply(x)  # type: ignore[return-value]
