"""Jagged nested tensors, which say their segments themselves: the rows of one are segments of its values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from softmaxima.core.arguments import check_dim
from softmaxima.segments.grouping import Segments


def is_jagged(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_nested and x.layout == torch.jagged


def segments_of_nested(name: str, x: Any, given: dict[str, Any], dim: Any) -> tuple[Tensor, Segments]:
    """(the values [elements, …], their segments) of a jagged nested tensor, beside which nothing else says what segments are."""
    others = [what for what, value in given.items() if value is not None]
    if others:
        raise TypeError(f"{name}: a nested tensor says its segments itself; leave out {' and '.join(others)}")
    if check_dim(name, dim, x.ndim) not in (0, 1) or x._ragged_idx != 1 or x.lengths() is not None:
        raise ValueError(
            f"{name}: segments of a nested tensor are along dim 1 of [batch, ragged, …] without gaps, got dim={dim} of a tensor "
            f"whose ragged dim is {x._ragged_idx}{', with lengths' if x.lengths() is not None else ''}; call .contiguous()"
        )
    return x.values(), Segments.from_ptr(x.offsets())


def nested_like(x: Any, values: Tensor) -> Tensor:
    """The values in the segments of a jagged nested tensor."""
    return torch.nested.nested_tensor_from_jagged(values, x.offsets())
