"""Attention of jagged nested tensors, each sequence of which has its own queries and keys: padded, and cut again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from softmaxima.attn.arguments import BOTTOM_RIGHT
from softmaxima.segments.nested import is_jagged, nested_like


def any_nested(*given: Any) -> bool:
    return any(isinstance(x, Tensor) and x.is_nested for x in given)


class Sequences:
    """Where the sequences of a nested tensor [batch, heads, ragged, size] or [batch, ragged, size] are."""

    def __init__(self, name: str, what: str, x: Any) -> None:
        if not is_jagged(name, x):
            raise TypeError(f"{name}: query, key and value must all be nested or all be dense, got {what} dense and another nested")
        if x._ragged_idx != x.ndim - 2 or x.ndim not in (3, 4):
            raise ValueError(
                f"{name}: {what} must be nested [batch, heads, ragged, size] or [batch, ragged, size], got {x.ndim} dims of which "
                f"dim {x._ragged_idx} is ragged; call .transpose(1, 2) on one of [batch, ragged, heads, size]"
            )
        if x.lengths() is not None:
            raise ValueError(f"{name}: sequences of {what} must follow one another, got some with lengths; call .contiguous()")
        self.like = x
        self.lengths = x.offsets().diff()  # [batch]
        most = int(self.lengths.max()) if len(self.lengths) else 0
        self.there = torch.arange(most, device=x.device) < self.lengths[:, None]  # [batch, the longest]

    def padded(self) -> Tensor:
        """[batch, (heads,) the longest, size], 0 behind a sequence."""
        x = self.like
        rows = x.values().movedim(x._ragged_idx - 1, 0)  # [elements, (heads,) size]
        full = rows.new_zeros((*self.there.shape, *rows.shape[1:])).index_put((self.there,), rows)
        return full.transpose(1, 2) if x.ndim == 4 else full

    def cut(self, full: Tensor) -> Tensor:
        """A nested tensor of what is [batch, (heads,) the longest, …]."""
        rows = (full.transpose(1, 2) if self.like.ndim == 4 else full)[self.there]
        found = nested_like(self.like, rows)
        return found.transpose(1, 2) if self.like.ndim == 4 else found


def attend(
    name: str, function: Callable[..., Any], beside: Mapping[str, Any], first_query: Any, *given: Any, **options: Any
) -> Any:
    """What `function`, attention of dense tensors, gives of query, key and value; `beside` has what these do not go with."""
    for what, value in beside.items():
        if value is not None and value is not False:
            raise TypeError(f"{name}: {what} must be left out for nested tensors, whose sequences have scores of different shapes")
    queries, keys, values = (Sequences(name, what, x) for what, x in zip(("query", "key", "value"), given, strict=True))
    batches = [len(each.lengths) for each in (queries, keys, values)]
    if len(set(batches)) > 1:
        raise ValueError(f"{name}: query, key and value must have as many sequences, got {', '.join(map(str, batches))}")
    if not torch.equal(keys.lengths, values.lengths):
        raise ValueError(f"{name}: there must be a value for each key, got sequences of key and value with other lengths")
    dense = (each.padded() for each in (queries, keys, values))
    first = keys.lengths - queries.lengths if isinstance(first_query, str) and first_query == BOTTOM_RIGHT else first_query
    found = function(*dense, key_lengths=keys.lengths, first_query=first, **options)
    return tuple(queries.cut(x) for x in found) if isinstance(found, tuple) else queries.cut(found)
