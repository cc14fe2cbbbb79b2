"""Jagged nested tensors, which say their segments themselves: the rows of one are segments of its values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from softmaxima.base.arguments import check_dim
from softmaxima.segments.grouping import Segments


def is_jagged(name: str, x: Any) -> bool:
    if isinstance(x, Tensor) and x.is_nested and x.layout != torch.jagged:
        wanted = "torch.nested.nested_tensor(list(x.unbind()), layout=torch.jagged)"
        raise TypeError(f"{name}: a nested tensor of segments must have torch's jagged layout, got {x.layout}; make it {wanted}")
    return isinstance(x, Tensor) and x.is_nested


def segments_of_nested(name: str, x: Any, given: dict[str, Any], dim: Any) -> tuple[Tensor, Segments]:
    """(the values [elements, …], their segments) of a jagged nested tensor, beside which nothing else says what segments are."""
    others = [what for what, value in given.items() if value is not None]
    if others:
        raise TypeError(f"{name}: a nested tensor says its segments itself; leave out {' and '.join(others)}")
    if x._ragged_idx != 1:
        raise ValueError(
            f"{name}: segments of a nested tensor are along dim 1 of [batch, ragged, …], got one whose ragged dim is "
            f"{x._ragged_idx}; call .transpose(1, {x._ragged_idx})"
        )
    if x.lengths() is not None:
        raise ValueError(f"{name}: segments of a nested tensor must follow one another, got one with lengths; call .contiguous()")
    if check_dim(name, dim, x.ndim) not in (0, 1):
        raise ValueError(f"{name}: segments of a nested tensor are along dim 1 of [batch, ragged, …], got dim={dim}; leave dim out")
    return x.values(), Segments.from_ptr(x.offsets())


def values_beside(name: str, what: str, value: Any, x: Any) -> Any:
    """The values of what may be nested as the scores x are, and then has rows of the same lengths."""
    if not is_jagged(name, value):
        return value
    same = value._ragged_idx == 1 and value.lengths() is None and torch.equal(value.offsets(), x.offsets())
    if not same:
        raise ValueError(
            f"{name}: {what} must have rows as long as those of the scores, one after another along dim 1, got "
            f"{len(value.offsets()) - 1} others; make it of the scores, as x > 0 is"
        )
    return value.values()


def nested_like(x: Any, values: Tensor) -> Tensor:
    """The values in the segments of a jagged nested tensor."""
    return _Nested.apply(values, x.offsets())  # type: ignore[return-value]


class _Nested(torch.autograd.Function):
    """`torch.nested.nested_tensor_from_jagged`, whose own derivative has none."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return torch.nested.nested_tensor_from_jagged(*inputs)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        return grad_outputs[0].values(), None
