"""A map where one score of a row is at one end and all others are at another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from softmaxima.engine.contract import Map


def corner(map: Map, others: Tensor, own: Tensor, classes: Tensor, params: Mapping[str, Any]) -> Tensor:
    """p_i of (own_i, others), for some i of each row, [..., m]."""
    return rows_of(map, others, own, classes, params).gather(-1, classes.unsqueeze(-1)).squeeze(-1)


def rows_of(map: Map, others: Tensor, own: Tensor, classes: Tensor, params: Mapping[str, Any]) -> Tensor:
    """The map of (own_i, others) [..., m, n]."""
    scores = torch.where(is_own(classes, others.shape[-1]), own.unsqueeze(-2), others.unsqueeze(-2))
    of_rows: dict[str, Any] = {name: v.unsqueeze(-2) if isinstance(v, Tensor) and v.ndim else v for name, v in params.items()}
    return map(scores, -1, **of_rows)


def is_own(classes: Tensor, n: int) -> Tensor:
    return classes.unsqueeze(-1) == torch.arange(n, device=classes.device)  # [..., m, n]
