"""Attention by its definition in blocks of queries, for what no kernel does: only a block's scores are held at once.

The backward pass computes the scores of each block again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from softmaxima.attn import naive
from softmaxima.attn.arguments import Request
from softmaxima.base.tracing import is_keeping, may_differentiate, transforming

HELD = 1 << 23  # scores that are held at once, at least those of one query of every matrix


def attend(request: Request, wants_lse: bool) -> tuple[Tensor, Tensor | None]:
    """(Σ p v, the logarithm of the divisor where it is wanted)."""
    parts = [request] if transforming() or is_keeping() else list(_blocks(request))
    learns = may_differentiate((request.query, request.key, request.value, *_beside(request)))
    again = learns and len(parts) > 1
    found = [checkpoint(_attend, part, wants_lse, use_reentrant=False) if again else _attend(part, wants_lse) for part in parts]
    if len(found) == 1:
        return found[0]
    outputs, masses = zip(*found, strict=True)
    return torch.cat(outputs, -2), torch.cat(masses, -1) if wants_lse else None


def _attend(request: Request, wants_lse: bool) -> tuple[Tensor, Tensor | None]:
    return naive.attend(request)[0], naive.log_mass(request) if wants_lse else None


def _beside(request: Request) -> tuple[object, ...]:
    return request.bias, request.temperature, request.sink, *request.params.values()


def _blocks(request: Request) -> Iterator[Request]:
    """The request of each block of queries."""
    queries, keys = request.visible.queries, request.visible.keys
    rows = max(1, HELD // max(1, request.query.shape[:-2].numel() * keys))
    if rows >= queries:
        yield request
        return
    for first in range(0, queries, rows):
        last = min(first + rows, queries)

        def part(x: object, first: int = first, last: int = last) -> object:
            """Of what has an axis of queries, the last but one, the block's."""
            return x[..., first:last, :] if isinstance(x, Tensor) and x.ndim > 1 and x.shape[-2] == queries else x

        yield replace(
            request,
            query=part(request.query),
            mask=part(request.mask),
            bias=part(request.bias),
            temperature=part(request.temperature),
            sink=part(request.sink),
            params={name: part(value) for name, value in request.params.items()},
            visible=replace(request.visible, queries=last - first, first=request.visible.first + first),
        )
