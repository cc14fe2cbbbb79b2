"""Rows of scores that are drawn from: checked at the public edge, the axis last and in float64, and what is made of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from softmaxima.core.arguments import as_scores, like_input, moved_last, rows_last
from softmaxima.core.contract import Map
from softmaxima.core.evaluation import check_params
from softmaxima.core.jacobian import narrowed
from softmaxima.core.numbers import check_count
from softmaxima.core.randomness import Randomness
from softmaxima.core.tracing import is_recording, sizes
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
        return uniform(self.name, (*more, *self.draws, *sizes(self.x)), self.x.device, generator)

    def perturbed(self, generator: Randomness) -> Tensor:
        """x + G [draws…, ..., n]."""
        return self.x + gumbel(self.uniform(generator))

    def back(self, p: Tensor) -> Any:
        """What has a number a score, as the scores came."""
        p = p.to(self.dtype)
        place = self.dim + len(self.draws)
        p = p.movedim(-1, place) if place != p.ndim - 1 else p
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
    values = check_params(map, map.complete(params), rows.x.movedim(-1, rows.dim), rows.dim, name)
    return {p.name: moved_last(value, rows.dim) for p, value in zip(map.params, values, strict=True)}


def largest(y: Tensor) -> Tensor:
    """Where the largest of each row is, one of [..., n] or none, boolean."""
    if sizes(y)[-1] == 0:
        return torch.zeros_like(y, dtype=torch.bool)
    place = torch.arange(y.shape[-1], device=y.device)
    top, index = y.detach().max(-1, keepdim=True)
    return place == index.masked_fill(~(top > -math.inf), -1)


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
