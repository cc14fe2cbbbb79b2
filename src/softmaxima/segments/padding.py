"""Segments as rows of a few lengths, padded where they are shorter, for what works on rows of one length."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

EXACT = 16  # segments up to this length are not padded
STEPS = 8  # lengths between one power of two and the next


class Bucket(NamedTuple):
    """Segments of about one length, as rows [rows, width] of a padded table."""

    rows: int
    width: int
    mask: Tensor | None  # [rows, width]: False where a row is padded; None where none is


class Table(NamedTuple):
    """All segments as rows, those of about one length together."""

    buckets: tuple[Bucket, ...]
    there: Tensor  # [cells]: the element in each cell, `elements` where there is none
    back: Tensor  # [elements]: the cell of each
    segments: Tensor  # [segments]: in the order of the rows
    rows: Tensor  # [segments]: the row of each


def table_of(lengths: Tensor, starts: Tensor, order: Tensor | None) -> Table:
    """The table of segments that begin at `starts` once their elements are in `order`."""
    elements = int(starts[-1])
    widths = _rounded(lengths)
    segments = torch.argsort(widths, stable=True)
    kinds, counts = torch.unique_consecutive(widths[segments], return_counts=True)
    buckets: list[Bucket] = []
    there: list[Tensor] = []
    first = 0
    for width, rows in zip(kinds.tolist(), counts.tolist(), strict=True):
        own = segments[first : first + rows]
        first += rows
        places = torch.arange(width, device=own.device)
        mask = places < lengths[own].unsqueeze(-1)
        places = starts[own].unsqueeze(-1) + places
        if width > EXACT:
            places = torch.where(mask, places, elements)
        buckets.append(Bucket(rows, width, mask if width > EXACT else None))
        there.append(places.flatten())
    cells = torch.cat(there) if there else segments
    if order is not None:
        cells = torch.cat((order, order.new_tensor([elements])))[cells]
    back = cells.new_empty(elements + 1)
    back[cells] = torch.arange(len(cells), device=cells.device)
    rows = torch.empty_like(segments)
    rows[segments] = torch.arange(len(segments), device=segments.device)
    return Table(tuple(buckets), cells, back[:-1], segments, rows)


def _rounded(lengths: Tensor) -> Tensor:
    """The lengths, those beyond `EXACT` rounded up to one of `STEPS` between powers of two."""
    power = torch.log2((lengths - 1).clamp(min=1).double()).floor().to(torch.int64)
    step = 1 << (power - STEPS.bit_length() + 1).clamp(min=0)
    return torch.where(lengths > EXACT, (lengths + step - 1) // step * step, lengths)
