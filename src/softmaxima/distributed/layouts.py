"""Which places of a sequence each rank has.

    contiguous    rank 0: ▉▉······    rank 1: ··▉▉····    rank 2: ····▉▉··    rank 3: ······▉▉
    balanced              ▉······▉            ·▉····▉·            ··▉··▉··            ···▉▉···

Where query i sees the keys 0 to i, the last of R contiguous parts has 2R − 1 times the work of the first. Balanced, of 2R chunks
rank r has those numbered r and 2R − 1 − r, and all have the same work.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.numbers import check_choice, check_count
from softmaxima.base.public import public
from softmaxima.distributed.agreement import Agreement
from softmaxima.distributed.ranks import Group, RanksError, ranks_of

LAYOUTS = ("contiguous", "balanced")


@dataclass(frozen=True)
class Span:
    """Neighbouring places of a sequence."""

    place: int  # of the first of them
    length: int
    first: int  # where it is among those of its rank

    @property
    def own(self) -> slice:
        """Where they are among those of their rank."""
        return slice(self.first, self.first + self.length)

    @property
    def whole(self) -> slice:
        """Where they are in the sequence."""
        return slice(self.place, self.place + self.length)


Spans = tuple[Span, ...]  # those of a rank, in the order of places


def spans_of(name: str, what: str, agreement: Agreement, layout: str) -> list[Spans]:
    """Those of each rank, of the lengths that they have. Raises RanksError, on every rank, for such that are not of the layout."""
    if layout == "contiguous":
        return [(Span(agreement.first(rank), width, 0),) for rank, width in enumerate(agreement.widths)]
    spans = _balanced(agreement.whole, len(agreement.widths))
    expected = tuple(sum(span.length for span in own) for own in spans)
    if expected != agreement.widths:
        raise RanksError(
            f"{name}: of {agreement.whole} balanced {what} the ranks must have {', '.join(map(str, expected))}, got "
            f"{', '.join(map(str, agreement.widths))}; each takes those at sm.distributed.places({agreement.whole})"
        )
    return spans


def _chunks(length: int, count: int) -> list[tuple[int, int]]:
    """(place, length) of each chunk of a sequence, the first of which may have one more."""
    lengths = [length // count + (chunk < length % count) for chunk in range(count)]
    return list(zip(itertools.accumulate(lengths, initial=0), lengths, strict=False))


def _balanced(length: int, size: int) -> list[Spans]:
    chunks = _chunks(length, 2 * size)
    pairs = [(chunks[rank], chunks[-1 - rank]) for rank in range(size)]
    return [(Span(*early, 0), Span(*late, early[1])) for early, late in pairs]


def check_layout(name: str, layout: Any) -> str:
    return check_choice(name, "layout", layout, LAYOUTS)


@public
def places(length: int, *, layout: str = "balanced", group: Group = None) -> Tensor:
    """The places that this rank has of a sequence, int64 [n]: `x[:, places]` is its part, and `unshard` puts all together.

    Args:
        length: of the whole sequence; the parts differ by two places at most.
        layout: "balanced", by which every rank has the same work in causal attention: of 2R chunks the rank r of R has those
            numbered r and 2R − 1 − r; or "contiguous", a chunk each.
        group: a process group, a mesh of one axis, or None for all ranks.

    Nothing is sent. Rotary and other embeddings of places take these.

    Source: the zig-zag of Llama 3, arXiv:2407.21783, section 3.3.2.
    """
    name = "distributed.places"
    length, layout = check_count(name, "length", length, 0), check_layout(name, layout)
    ranks = ranks_of(name, group)
    if layout == "balanced":
        spans = _balanced(length, ranks.size)[ranks.rank]
    else:
        spans = (Span(*_chunks(length, ranks.size)[ranks.rank], 0),)
    return torch.cat([torch.arange(span.place, span.place + span.length) for span in spans])
